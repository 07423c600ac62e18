"""avm snapshot, blame: instants with a name, and who wrote which line."""

from __future__ import annotations

from typing import Any

import click

from avmfs.cli.main import SNAPSHOT, Command, CommandGroup, subcommand
from avmfs.cli.session import show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped

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
    above = f"# untrusted: {found['untrusted']}\n" if found["untrusted"] else ""
    show(found, above + text or "(empty)\n")
