"""avm backup, restore --from: the store of one moment, kept elsewhere, and back again."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from avmfs_config import load_settings

from avmfs.agents import backups
from avmfs.cli.main import subcommand
from avmfs.cli.session import locations, show, working
from avmfs.localtime import minute, nanoseconds
from avmfs.store.backup import archive
from avmfs.store.backup.archive import Backup
from avmfs.text.escapes import escaped

_ACTIONS = ("make", "list", "check", "restore")


@subcommand("backup", "Back the store up, list backups, restore one.")
@click.argument("arguments", metavar="[make|list|check|restore] FOLDER", nargs=-1, required=True)
@click.option("--keep", type=click.IntRange(1, 10_000), help="How many backups stay. [default: backup.keep, 14]")
@click.option("--at", "when", metavar="TIME", help="restore: the last backup made no later (ISO 8601).")
@click.option("--to", type=click.Path(path_type=Path), help="restore: the new data directory. [default: the usual one]")
def backup_(arguments: tuple[str, ...], keep: int | None, when: str | None, to: Path | None) -> None:
    """Back the whole store up to FOLDER, beside a running daemon or without one; only what has changed is written.

    The backup is of one moment, and verified before it counts. check reads all backups again; restore makes a store of
    one, where there is none. It is done on the files, as the user whose store it is.
    """
    action = arguments[0] if len(arguments) == 2 else "make"
    if len(arguments) > 2 or action not in _ACTIONS:
        raise click.UsageError(f"expected [{'|'.join(_ACTIONS)}] FOLDER")
    folder = Path(arguments[-1]).absolute()
    if action == "restore":
        restored(folder, when, to)
        return
    if action == "make":
        where = locations()
        settings = load_settings(where.config_file, os.environ)
        with working("backing up") as progress:
            made = backups.backup(where.database, settings, folder, keep or settings.backup.keep, progress)
        show(_told(made), _line(made))
        return
    found = archive.backups(folder)
    if action == "check":
        for each in found:
            with working(f"reading {each.path.name}") as progress:
                archive.check(folder, each, progress)
    show(list(map(_told, found)), "".join(map(_line, found)) or "(no backups)\n")


def restored(folder: Path, when: str | None, to: Path | None) -> None:
    """Make a store of a backup, and say where."""
    where = locations()
    kept = load_settings(where.config_file, os.environ).audit.anchors if to is None else None
    database = where.database if to is None else to.absolute() / "avm.db"
    with working("restoring") as progress:
        made = backups.restore(folder, database, None if when is None else nanoseconds(when), kept, progress)
    show({**_told(made), "database": os.fspath(database)}, f"{escaped(str(database))}: {_line(made)}")


def _told(made: Backup) -> dict[str, Any]:
    size = made.pages * archive.PAGE
    at = datetime.fromtimestamp(made.at / 1e9).astimezone().isoformat()
    return {"name": made.path.name, "at": at, "seq": made.seq, "bytes": size, "new_bytes": made.new * archive.PAGE}


def _line(made: Backup) -> str:
    said = _told(made)
    return f"{minute(said['at'])}  seq {made.seq}  {said['bytes']} bytes, {said['new_bytes']} new  {made.path.name}\n"
