"""avm consolidate: what says the same as another note goes to the archive, and comes back."""

from __future__ import annotations

from typing import Any

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import asking, confirm, door, show, working
from avmfs.search.duplicates import NEAR
from avmfs.text.escapes import escaped, visible_lines


@subcommand("consolidate", "Put notes that another one makes needless into the archive.")
@click.argument("path", default="/memory")
@click.option("--likeness", default=NEAR, show_default=True, help="How alike two notes have to be, up to 1: the same.")
@click.option("--limit", default=1000, show_default=True, help="Put away so many notes at most.")
@click.option("--cold", type=float, metavar="DAYS", help="Put away what is older, too, unless it is important.")
@click.option("--summaries", is_flag=True, help="Draw a summary from the notes of each topic that has many.")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--undo", is_flag=True, help="Undo your last run, or that of --run.")
@click.option("--run", type=int, metavar="NUMBER", help="Which run to undo.")
def consolidate_(
    path: str,
    likeness: float,
    limit: int,
    cold: float | None,
    summaries: bool,
    dry_run: bool,
    yes: bool,
    undo: bool,
    run: int | None,
) -> None:
    """Of notes below PATH that say the same sentences, one stays: that which says most, else the oldest. The others go
    to /archive, and what stays gets their tags, their importance and links to them ("supersedes").

    Compared are notes of one place with the same readers, mode and ttl. Another number, date, name or denial makes
    another note. Private notes are touched by whoever wrote them alone. Where nobody can be asked, --yes has to say so.
    """
    if run is not None and not undo:
        raise click.UsageError("--run says what to --undo")
    with door() as memory:
        if undo:
            back = memory.call("unconsolidate", run=run, dry=dry_run)
            show(back, _back(back), prose=False)
            return
        named = {"path": path, "likeness": likeness, "limit": limit, "cold": cold, "summaries": summaries}
        with working("comparing"):
            plan = memory.call("consolidate", **named)
        if dry_run or not plan["steps"]:
            show(plan, _text(plan), prose=False)
            return
        if not yes:
            if not asking():
                raise click.UsageError("--yes says that it is meant, --dry-run what it would be")
            click.echo(_text(plan), nl=False, err=True)
            confirm("put these away?")
        with working("consolidating"):
            done = memory.call("consolidate", **named, agreed=plan["agreed"])
        show(done, f"{_sum(done)}\n# avm consolidate --undo --run {done['run']}\n", prose=False)


def _text(plan: dict[str, Any]) -> str:
    lines = []
    for step in plan["steps"]:
        if step["step"] == "summary":
            lines.append(f"summary  {escaped(step['into']['path'])}  of {len(step['from'])} notes\n")
            lines += [f"  {visible_lines(line)}\n" for line in step["text"].splitlines()]
        elif step["into"]:
            lines.append(f"{step['into']['handle']}  {escaped(step['into']['path'])}\n")
        for each in step["gone"]:
            how = f"{each['likeness']:.2f}" if "likeness" in each else "old" if step["into"] else "cold"
            lines.append(f"  {how:4}  {each['handle']}  {escaped(each['path'])}\n")
    return "".join(lines) + f"# {_sum(plan)}\n"


def _sum(plan: dict[str, Any]) -> str:
    left = f"; {plan['left_out']} steps left out: a note has changed meanwhile" if plan["left_out"] else ""
    return f"{plan['fewer']} of {plan['notes']} notes, {plan['bytes']} bytes{left}"


def _back(done: dict[str, Any]) -> str:
    lines = []
    for each in done["back"]:
        gone = " (removed)" if each["kind"] == "summary" else " (no longer in the archive)"
        now = f" -> {escaped(each['path'])}" if each["path"] else gone
        lines.append(escaped(each["was"]) + now * (each["path"] != each["was"]) + "\n")
    lines += [
        f"{escaped(each['was'])} stays{' in the archive' * (each['kind'] != 'summary')}: {each['why']}\n"
        for each in done["left"]
    ]
    return "".join(lines)
