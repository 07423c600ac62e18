"""avm claim, release: who works on what."""

from __future__ import annotations

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("claim", "Take a file to work on, or the next one of a directory.")
@click.argument("path", required=False)
@click.option("--next", "-n", "next_", is_flag=True, help="The oldest file of the directory PATH that nobody has.")
@click.option("--lease", default="10m", show_default=True, metavar="DURATION", help="Until it is free again by itself.")
def claim_(ctx: click.Context, memory: Door, path: str | None, next_: bool, lease: str) -> None:
    """Say that you work on the file PATH, so that no other agent does; without PATH, who works on what.

    Exactly one agent has a file. Exits 75 where another has claimed PATH, 1 where --next finds none. Claim it again to
    renew the lease; it ends with the file, too.
    """
    if path is None:
        found = memory.call("claims")
        lines = [f"{each['agent']}  {minute(each['until'])}  {escaped(each['path'])}\n" for each in found["claims"]]
        show(found, "".join(lines) or "(nothing is claimed)\n")
        return
    made = memory.call("claim_next" if next_ else "claim", path=path, lease=lease)
    show(made, f"{escaped(made['path'])}\n" if made["path"] else "(nothing to claim)\n")
    if made["path"] is None:
        ctx.exit(1)


@subcommand("release", "Give up what you have claimed.")
@click.argument("path")
def release_(memory: Door, path: str) -> None:
    """Give up your claim of the file PATH, so that others may take it."""
    done = memory.call("release", path=path)
    says = "released" if done["released"] else "nobody had claimed"
    show(done, f"{says} {escaped(done['path'])}\n")
