"""avm restore: what was, back again."""

from __future__ import annotations

from pathlib import Path

import click

from avmfs.cli.main import subcommand


@subcommand("restore", "Bring the whole store back from a backup.")
@click.option("--from", "folder", type=click.Path(path_type=Path), required=True, help="The folder of the backups.")
@click.option("--at", "when", metavar="TIME", help="The last backup made no later (ISO 8601). [default: the newest]")
@click.option("--to", type=click.Path(path_type=Path), help="The new data directory. [default: the usual one]")
@click.pass_context
def restore_(ctx: click.Context, folder: Path, when: str | None, to: Path | None) -> None:
    """Make a store of a backup, where there is none: avm backup restore FOLDER is the same."""
    from avmfs.cli.backing_up import restored

    restored(ctx, folder.absolute(), when, to)
