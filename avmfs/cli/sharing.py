"""avm cluster: one store on several hosts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from avmfs_config import Settings, load_settings

from avmfs.access import Policy
from avmfs.cli.main import Command, CommandGroup, subcommand
from avmfs.cli.session import locations, show
from avmfs.errors import Invalid
from avmfs.store.backup import cluster
from avmfs.store.sharedlog.engines import host_name, shared_log
from avmfs.store.sharedlog.protocol import SharedLog
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.text.escapes import visible


@subcommand("cluster", "One store on several hosts: begin, join, leave, look.", cls=CommandGroup)
def cluster_() -> None:
    """Share the store with other hosts, by a log in a PostgreSQL database that all of them reach: `store.log` in
    config.yaml. init, join and leave are for a daemon that is stopped. avm help scaling has the whole."""


@cluster_.command("init", cls=Command)
def init_() -> None:
    """Make the log, and this machine's store its first host's."""
    path = locations().database
    with log_of_settings() as (log, settings):
        open_direct(path, Policy.from_settings(settings), IndexRules.of(settings)).close()  # with the rules of today
        at = cluster.init(path, log, host_name(settings.store))
    show({"cluster": at.cluster, "record": at.number}, f"shared log {at.cluster}; avm-daemon start\n")


@cluster_.command("join", cls=Command)
def join_() -> None:
    """Bring the newest snapshot here; what came since follows when the daemon starts."""
    with log_of_settings() as (log, settings):
        at = cluster.join(locations().database, log, Policy.from_settings(settings))
    show({"cluster": at.cluster, "record": at.number}, f"joined at record {at.number}; avm-daemon start\n")


@cluster_.command("leave", cls=Command)
def leave_() -> None:
    """Go on alone, with the store as it is here."""
    with log_of_settings() as (log, settings):
        cluster.leave(locations().database, log, host_name(settings.store))
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
        number = cluster.snapshot(locations().database, log, host_name(settings.store))
    show({"record": number}, f"snapshot at record {number}\n")


@contextlib.contextmanager
def log_of_settings() -> Iterator[tuple[SharedLog, Settings]]:
    settings = load_settings(locations().config_file, os.environ)
    if settings.store.log is None:
        raise Invalid("config.yaml names no shared log: store: {log: postgresql://HOST/DATABASE}")
    with contextlib.closing(shared_log(settings.store)) as log:
        yield log, settings
