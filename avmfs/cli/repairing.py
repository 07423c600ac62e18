"""avm repair: save what can be saved of a damaged store, and say what was lost."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict

import click
from avmfs_config import load_settings

from avmfs.agents.repairing import Repair, repair
from avmfs.cli.main import REFUSED, subcommand
from avmfs.cli.session import asking, confirm, locations, show, working
from avmfs.errors import Busy, NotFound

_SHOWN = 200  # lines of a list


@subcommand("repair", "Save what can be saved of a damaged store, and say what was lost.")
@click.option("--dry-run", is_flag=True, help="Say what would be saved and lost, and leave the store as it is.")
@click.option("--accept-loss", is_flag=True, help="Go on without changes that are known and nowhere to be found.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
def repair_(ctx: click.Context, dry_run: bool, accept_loss: bool, yes: bool) -> None:
    """Make a whole store of a damaged one, which is copied aside first; no daemon may run.

    What the write-ahead log has behind a damaged frame is saved, rows of damaged pages are left out, files without a
    directory go to lost+found in their owner's private space, and the index is made anew. Lists what was lost.
    """
    where = locations()
    settings = load_settings(where.config_file, os.environ)
    path, stack = where.database, ctx.with_resource(contextlib.ExitStack())
    if not path.parent.exists():
        raise NotFound("no store", os.fspath(path))
    try:
        with working("reading the store"):
            done = stack.enter_context(repair(path, settings, dry=dry_run))
    except Busy as e:
        raise Busy(f"{e.reason}; stop it first: avm-daemon stop", e.filename) from None
    if done.sound:
        show(_told(done, "sound"), f"{path}: nothing is wrong\n")
        return
    refused = done.missing > 0 and not accept_loss
    if not dry_run and not refused:
        if not yes and asking():
            click.echo(_text(done, False), err=True, nl=False)
            confirm("Put this in the place of the store? (A copy of the old one is kept.)")
        done.install()
    show(_told(done, "refused" if refused else "dry run" if dry_run else "repaired"), _text(done, refused))
    if refused:
        ctx.exit(REFUSED)


def _told(done: Repair, state: str) -> dict[str, object]:
    told = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in asdict(done).items()}
    return {"state": state} | {
        name: value for name, value in told.items() if name not in ("new", "new_anchors", "sound")
    }


def _text(done: Repair, refused: bool) -> str:
    lines = [
        f"{title}:\n"
        + "".join(f"  {line}\n" for line in some[:_SHOWN])
        + (f"  and {len(some) - _SHOWN} more (--json has all)\n" if len(some) > _SHOWN else "")
        for title, some in (("found", done.found), ("lost", done.lost), ("kept, though damaged", done.kept))
        if some
    ]
    lines.append("saved: " + ", ".join(f"{count} {what}" for what, count in done.saved.items()) + "\n")
    if refused:
        lines.append(
            f"{done.missing} changes are known and nowhere to be found; nothing was done. Put the right files"
            " back, or go on without them: avm repair --accept-loss\n"
        )
    elif done.aside is not None:
        lines.append(f"the old store is in {done.aside}\n")
    return "".join(lines)
