"""avm trash and avm archive."""

from __future__ import annotations

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import asking, confirm, door, show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("trash", "What was removed: list it, bring it back, empty it.")
@click.argument("action", type=click.Choice(("ls", "restore", "empty")), default="ls")
@click.argument("paths", nargs=-1)
@click.option("--to", metavar="PATH", help="restore: another name for it.")
@click.option("--older-than", type=click.FloatRange(0), default=0.0, metavar="DAYS", help="empty: only these.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="ls: at most so many.")
@click.option("--yes", "-y", is_flag=True, help="empty: do not ask.")
def trash_(action: str, paths: tuple[str, ...], to: str | None, older_than: float, limit: int, yes: bool) -> None:
    """Notes that were removed, under the rights of where they were.

    restore PATH: a path in /trash, or what the file was called; it comes back under its old name, or a free one beside
    it. empty [PATH]: what was below PATH, or all, is gone for good."""
    if action != "restore" and to is not None:
        raise click.UsageError("--to is for restore")
    with door() as memory:
        if action == "ls":
            if paths:
                raise click.UsageError("ls takes no PATH")
            found = memory.call("trash", limit=limit)
            lines = (
                f"{minute(each['at'])}  {each['agent']}  {escaped(each['was'])}  {escaped(each['path'])}\n"
                for each in found["files"]
            )
            show(found, "".join(lines) or "(nothing in the trash)\n", prose=False)
        elif action == "restore":
            if not paths or (to is not None and len(paths) > 1):
                raise click.UsageError("restore takes a PATH, with --to exactly one")
            more = {} if to is None else {"to": to}
            back = [memory.call("put_back", path=path, **more)["path"] for path in paths]
            show({"paths": back}, "".join(f"{escaped(path)}\n" for path in back), prose=False)
        else:
            if not yes and asking():
                confirm("remove for good what is in the trash?")
            removed = sum(
                memory.call("empty_trash", older_than_days=older_than, under=path)["removed"]
                for path in paths or (None,)
            )
            show({"removed": removed}, f"{removed} removed\n", prose=False)


@subcommand("archive", "Put notes out of the way, still readable; --back brings them back.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--back", is_flag=True, help="Bring back what is in the archive.")
def archive_(memory: Door, paths: tuple[str, ...], back: bool) -> None:
    """Move files and directories to the same place below /archive.

    They keep their tags, links, history and handle, and who could read them can. No recall, search or list has them,
    unless it is asked below /archive or with --include archive."""
    method = "put_back" if back else "archive"
    moved = [[path, memory.call(method, path=path)["path"]] for path in paths]
    show({"moved": moved}, "".join(f"{escaped(a)} -> {escaped(b)}\n" for a, b in moved), prose=False)
