"""avm restore: what was, back again."""

from __future__ import annotations

from pathlib import Path

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import door, show
from avmfs.text.escapes import escaped


@subcommand("restore", "Bring back a file or subtree as it was, or the whole store.")
@click.argument("path", required=False)
@click.option("--at", "when", metavar="TIME", help="As it was then: yesterday, -2h, 2026-03-01T12:00, snap.NAME.")
@click.option("--version", type=click.IntRange(1), help="A file's version, as avm history shows them.")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--from", "folder", type=click.Path(path_type=Path), help="The whole store, from this folder of backups.")
@click.option("--to", type=click.Path(path_type=Path), help="With --from: the new data directory. [default: the usual]")
def restore_(
    path: str | None, when: str | None, version: int | None, dry_run: bool, folder: Path | None, to: Path | None
) -> None:
    """Make PATH again what it was in a version or, with all below it, at an instant: as a change of now, which its
    history has too, and bring back tags and links that it had. What came since stays.

    With --from, make a store of a backup, where there is none: the last one made no later than --at. avm backup restore
    FOLDER is the same.
    """
    if folder is not None:
        if path is not None or version is not None or dry_run:
            raise click.UsageError("--from is for the whole store: it takes --at and --to alone")
        from avmfs.cli.backing_up import restored

        restored(folder.absolute(), when, to)
        return
    if path is None or to is not None or (when is None) == (version is None):
        raise click.UsageError("expected PATH with --at or --version, or --from FOLDER")
    with door() as memory:
        found = memory.call("restore", path=path, at=when, version=version, dry_run=dry_run)
        lines = [f"{each['action']:<5}  {escaped(each['path'])}\n" for each in found["restored"]]
        text = "".join(lines) + ("(and more)\n" if found["more"] else "")
        show(found, text or "(all is as it was)\n", prose=False)
