"""avm backup, repair, cluster: the store kept elsewhere and brought back, mended, and on several hosts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from avmfs_config import Settings, load_settings

from avmfs.access import Policy
from avmfs.agents import anchors, backups, moments
from avmfs.agents.repairing import Repair, repair
from avmfs.cli.main import REFUSED, Command, CommandGroup, subcommand
from avmfs.cli.session import LOCAL, asking, confirm, locations, locations_here, show, working
from avmfs.errors import Busy, Invalid, NotFound
from avmfs.localtime import LocalZone, minute
from avmfs.providers.handler import apart
from avmfs.store.backup import archive, cluster
from avmfs.store.backup.archive import Backup
from avmfs.store.sharedlog.engines import host_name, shared_log
from avmfs.store.sharedlog.protocol import SharedLog
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.text.escapes import escaped, visible

_ACTIONS = ("make", "list", "check", "restore")


@subcommand("backup", "Back the store up, list backups, restore one.")
@click.argument("arguments", type=click.Path(), metavar="[make|list|check|restore] FOLDER", nargs=-1, required=True)
@click.option("--keep", type=click.IntRange(1, 10_000), help="make: how many backups stay. [default: backup.keep, 14]")
@click.option("--at", "when", metavar="TIME", help="restore: the last one made no later: yesterday, 2026-03-01T12:00.")
@click.option("--to", type=LOCAL, help="restore: the new data directory. [default: the usual one]")
def backup_(arguments: tuple[str, ...], keep: int | None, when: str | None, to: Path | None) -> None:
    """Back the whole store up to FOLDER, beside a running daemon or without one; only what has changed is written.

    The backup is of one moment, and verified before it counts. check reads all backups again; restore makes a store of
    one, where there is none. It is done on the files, as the user whose store it is.
    """
    action = arguments[0] if len(arguments) == 2 else "make"
    if len(arguments) > 2 or action not in _ACTIONS or (len(arguments) == 1 and arguments[0] in _ACTIONS):
        raise click.UsageError(f"expected [{'|'.join(_ACTIONS)}] FOLDER")
    for option, given, of in (("--keep", keep, "make"), ("--at", when, "restore"), ("--to", to, "restore")):
        if given is not None and action != of:
            raise click.UsageError(f"{option} is for {of}")
    folder: Path = LOCAL.convert(arguments[-1], None, None).absolute()
    if action == "restore":
        restored(folder, when, to)
        return
    if action == "make":
        where = locations_here()
        settings = load_settings(where.config_file, os.environ)
        with working("backing up") as progress:
            made = backups.backup(where.database, settings, folder, keep or settings.backup.keep, progress)
        show(_told(made), _line(made))
        return
    if not folder.is_dir():
        raise NotFound("no such folder", os.fspath(folder))
    found = archive.backups(folder)
    if action == "check" and not found:
        raise NotFound("no backup", os.fspath(folder))
    if action == "check":
        with archive.held_still(folder):
            found = archive.backups(folder)
            for each in found:
                with working(f"reading {each.path.name}") as progress:
                    archive.check(folder, each, progress)
    show(list(map(_told, found)), "".join(map(_line, found)) or "(no backups)\n")


def restored(folder: Path, when: str | None, to: Path | None) -> None:
    """Make a store of a backup, and say where."""
    where = locations_here() if to is None else locations()
    kept = load_settings(where.config_file, os.environ).audit.anchors if to is None else None
    database = where.database if to is None else to.absolute() / "avm.db"
    at = None if when is None else moments.parse(when, time.time_ns(), LocalZone())
    if at is not None and not isinstance(at, int):
        raise Invalid("backups are found by a time: yesterday, -2h, 2026-03-01T12:00", when)
    with working("restoring") as progress:
        made = backups.restore(folder, database, at, kept, progress)
    show({**_told(made), "database": os.fspath(database)}, f"{escaped(str(database))}: {_line(made)}")


def _told(made: Backup) -> dict[str, Any]:
    size = made.pages * archive.PAGE
    at = datetime.fromtimestamp(made.at // 1000 / 1e6).astimezone().isoformat()  # as `--at` takes it back
    return {
        "name": made.path.name,
        "store": made.about["database"],
        "at": at,
        "seq": made.seq,
        "bytes": size,
        "new_bytes": made.new * archive.PAGE,
    }


def _line(made: Backup) -> str:
    said = _told(made)
    sizes = f"{said['bytes']} bytes, {said['new_bytes']} new"
    return f"{minute(said['at'])}  seq {made.seq}  {sizes}  {made.path.name}  of {escaped(said['store'])}\n"


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
    where = locations_here()
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
        show(_outcome(done, "sound"), f"{escaped(str(path))}: nothing is wrong\n")
        return
    refused = done.missing > 0 and not accept_loss
    if not dry_run and not refused:
        if not yes and asking():
            click.echo(_lists(done, False), err=True, nl=False)
            confirm("Put this in the place of the store? (A copy of the old one is kept.)")
        done.install()
    show(_outcome(done, "refused" if refused else "dry run" if dry_run else "repaired"), _lists(done, refused))
    if refused:
        ctx.exit(REFUSED)


def _outcome(done: Repair, state: str) -> dict[str, object]:
    told = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in asdict(done).items()}
    return {"state": state} | {
        name: value for name, value in told.items() if name not in ("new", "new_anchors", "sound")
    }


def _lists(done: Repair, refused: bool) -> str:
    lines = [
        f"{title}:\n"
        + "".join(f"  {visible(line)}\n" for line in some[:_SHOWN])
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
        lines.append(f"the old store is in {escaped(str(done.aside))}\n")
    return "".join(lines)


@subcommand("cluster", "One store on several hosts: begin, join, leave, look.", cls=CommandGroup)
def cluster_() -> None:
    """Share the store with other hosts, by a log in a PostgreSQL database that all of them reach: `store.log` in
    config.yaml. init, join and leave are for a daemon that is stopped. avm help scaling has the whole."""


@cluster_.command("init", cls=Command)
def init_() -> None:
    """Make the log, and this machine's store its first host's."""
    path = locations_here().database
    with log_of_settings() as (log, settings):
        open_direct(path, Policy.from_settings(settings), IndexRules.of(settings)).close()  # with the rules of today
        at = cluster.init(path, log, host_name(settings.store))
    show({"cluster": at.cluster, "record": at.number}, f"shared log {at.cluster}; avm-daemon start\n")


@cluster_.command("join", cls=Command)
def join_() -> None:
    """Bring the newest snapshot here, and what came since."""
    path = locations_here().database
    with log_of_settings() as (log, settings):
        kept = settings.audit.anchors or anchors.beside(path)
        at = cluster.join(path, log, Policy.from_settings(settings), kept)
        for said in apart(settings.providers):
            click.echo(visible(f"avm: {said}"), err=True)
    show({"cluster": at.cluster, "record": at.number}, f"joined at record {at.number}; avm-daemon start\n")


@cluster_.command("leave", cls=Command)
def leave_() -> None:
    """Go on alone, with the store as it is here."""
    with log_of_settings() as (log, settings):
        cluster.leave(locations_here().database, log, host_name(settings.store))
    show({"left": True}, "this store is this machine's own now; take `store.log` out of config.yaml\n")


@cluster_.command("status", cls=Command)
def status_() -> None:
    """The log's newest record, how far each host has come, and the snapshots."""
    with log_of_settings() as (log, _):
        found = cluster.status(log)
    lines = [f"shared log {found['cluster']}, record {found['record']}\n"]
    for each in found["hosts"]:
        lines.append(f"{visible(each['name']):<24} {each['behind']:>8} behind  heard {each['age_s']:.0f}s ago\n")
    for each in found["snapshots"]:
        lines.append(f"snapshot {each['number']}  {each['size']} bytes  {visible(each['host'])}\n")
    show(found, "".join(lines))


@cluster_.command("snapshot", cls=Command)
def snapshot_() -> None:
    """Leave this store as it is for those who join; the log is cut behind the last two snapshots."""
    with log_of_settings() as (log, settings):
        number = cluster.snapshot(locations_here().database, log, host_name(settings.store))
    show({"record": number}, f"snapshot at record {number}\n")


@contextlib.contextmanager
def log_of_settings() -> Iterator[tuple[SharedLog, Settings]]:
    settings = load_settings(locations_here().config_file, os.environ)
    if settings.store.log is None:
        raise Invalid("config.yaml names no shared log: store: {log: postgresql://HOST/DATABASE}")
    with contextlib.closing(shared_log(settings.store)) as log:
        yield log, settings
