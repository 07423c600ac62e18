"""avm snapshot, blame, restore: instants with a name, who wrote which line, and what was, back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from avmfs.cli.main import SNAPSHOT, Command, CommandGroup, subcommand
from avmfs.cli.session import LOCAL, door, show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped
from avmfs.trust import heading

_SIGNS = {"added": "+", "removed": "-", "modified": "M"}


@subcommand("snapshot", "Instants of the tree, or of a part, that are kept by name.", cls=CommandGroup)
def snapshot_() -> None:
    """Instants of the tree, or of a part, that are kept whatever else is forgotten: below /@snap.NAME at every mount,
    and with --at snap.NAME here. An operator's are everybody's."""


@snapshot_.command("make", cls=Command)
@click.argument("name")
@click.argument("path", required=False)
def make_(memory: Door, name: str, path: str | None) -> None:
    """Keep the tree as it is now, or what is at PATH, as NAME."""
    made = memory.call("snapshot", name=name, path=path)
    show(made, f"{made['name']}  {minute(made['at'])}\n")


@snapshot_.command("ls", cls=Command)
def ls_(memory: Door) -> None:
    """Your snapshots and the operators', the newest first."""
    found = memory.call("snapshots")["snapshots"]
    lines = [f"{each['name']}  {minute(each['at'])}  {each['agent'] or '(operator)'}{place(each)}\n" for each in found]
    show({"snapshots": found}, "".join(lines) or "(no snapshots)\n")


def place(snapshot: dict[str, Any]) -> str:
    """What a snapshot has, where that is not all."""
    if snapshot["path"] == "/":
        return ""
    return "  " + escaped(snapshot["path"] or ("(gone)" if snapshot["gone"] else "(not for you)"))


@snapshot_.command("rm", cls=Command)
@click.argument("name", type=SNAPSHOT)
def rm_(memory: Door, name: str) -> None:
    """Forget NAME; what it alone has kept goes with the next trimming."""
    memory.call("remove_snapshot", name=name)
    show({"name": name}, "")


@snapshot_.command("diff", cls=Command)
@click.argument("older", type=SNAPSHOT)
@click.argument("newer", required=False, type=SNAPSHOT)
@click.option("--path", default="/memory", metavar="DIR", help="Only below this directory.")
@click.option("--limit", "-n", default=1000, show_default=True, help="At most so many.")
def diff_(memory: Door, older: str, newer: str | None, path: str, limit: int) -> None:
    """What differs between the snapshots OLDER and NEWER, or now: + added, - removed, M modified."""
    named = None if newer is None else f"snap.{newer}"
    found = memory.call("compare", older=f"snap.{older}", newer=named, path=path, limit=limit)
    lines = [f"{_SIGNS[each['status']]} {escaped(each['path'])}\n" for each in found["changes"]]
    more = ["(more: --limit)\n"] if found["more"] else []
    show(found, "".join([*lines, *more]) or "(no difference)\n")


@subcommand("blame", "With which version each line of a file came.")
@click.argument("path")
def blame_(memory: Door, path: str) -> None:
    """Of each line: version, author, date."""
    found: dict[str, Any] = memory.call("blame", path=path)
    wide = max((len(each["author"]) for each in found["lines"]), default=0)
    text = "".join(
        f"v{each['version']:<4} {each['author']:<{wide}}  {minute(each['at'])}  {escaped(each['text'])}\n"
        for each in found["lines"]
    )
    show(found, heading(found["untrusted"]) + text or "(empty)\n")


@subcommand("restore", "Bring back a file or subtree as it was, or the whole store.")
@click.argument("path", required=False)
@click.option("--at", "when", metavar="TIME", help="As it was then: yesterday, -2h, 2026-03-01T12:00, snap.NAME.")
@click.option("--version", type=click.IntRange(1), help="A file's version, as avm history shows them.")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--from", "folder", type=LOCAL, help="The whole store, from this folder of backups.")
@click.option("--to", type=LOCAL, help="With --from: the new data directory. [default: the usual]")
def restore_(
    path: str | None, when: str | None, version: int | None, dry_run: bool, folder: Path | None, to: Path | None
) -> None:
    """Make PATH again what it was in a version or, with all below it, at an instant: as a change of now, which its
    history has too, and bring back tags and links that it had. What came since stays. A file below it that is
    "lost" is no longer kept, and stays as it is.

    With --from, make a store of a backup, where there is none: the last one made no later than --at. avm backup restore
    FOLDER is the same.
    """
    if folder is not None:
        if path is not None or version is not None or dry_run:
            raise click.UsageError("--from is for the whole store: it takes --at and --to alone")
        from avmfs.cli.keeping import restored

        restored(folder.absolute(), when, to)
        return
    if path is None or to is not None or (when is None) == (version is None):
        raise click.UsageError("expected PATH with --at or --version, or --from FOLDER")
    with door() as memory:
        found = memory.call("restore", path=path, at=when, version=version, dry_run=dry_run)
        lines = [f"{each['action']:<5}  {escaped(each['path'])}\n" for each in found["restored"]]
        text = "".join(lines) + ("(and more)\n" if found["more"] else "")
        show(found, text or "(all is as it was)\n", prose=False)
