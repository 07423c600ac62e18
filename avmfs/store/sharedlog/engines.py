"""Which engine an address leads to, and what this host is called there. Loads a driver only when it is asked."""

from __future__ import annotations

import socket

from avmfs_config import StoreSettings

from avmfs.errors import Invalid
from avmfs.extras import bring
from avmfs.store.sharedlog.protocol import SharedLog


def host_name(settings: StoreSettings) -> str:
    return settings.host or socket.gethostname()


def shared_log(settings: StoreSettings) -> SharedLog:
    """One connection. Raises Invalid where the driver is missing."""
    assert settings.log is not None
    try:
        from avmfs.store.sharedlog.postgres import PostgresLog
    except ImportError as e:
        raise Invalid(f"store.log needs avmfs[cluster]: {bring('cluster')} ({e})") from None
    return PostgresLog(settings.log, host_name(settings))
