"""A disk that fails for a moment and works again: what is acknowledged afterwards stands on nothing that it lost.

AVM_POWER_ROUNDS makes more rounds of errors with a power loss after each. What one writer makes of an error is
test_durable.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avmfs.access import Policy
from avmfs.errors import AvmError, NoSpace, StoreFailed
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.store import open_direct
from tests.contract.store_world import ALICE, RULES, WriterProcess, faults
from tests.contract.thin_disks import thin_disk
from tests.dropping_disk import DroppingDisk

ROUNDS = int(os.environ.get("AVM_POWER_ROUNDS", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(210 + 30 * ROUNDS)]

LIMIT_S = 200.0
SMALL_LOG = {
    "CHECKPOINT_PAGES": 60,
    "RESTART_PAGES": 200,
    "HARD_PAGES": 300,
    "LEFT_PAGES": 20,
    "RETRY_PAGES": 10,
    "AHEAD_PAGES": 40,
    "ROOM": 256 * 1024,
}


@pytest.mark.parametrize("small", [False, True], ids=["log", "database"])
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "no journal"])
def test_a_thin_disk_that_was_full_loses_nothing_acknowledged_later(tmp_path: Path, journal: bool, small: bool) -> None:
    """The writes of the full time fail below the filesystem, at the sync of the log; the blocks stay bad."""
    with thin_disk(tmp_path, journal=journal) as disk, contextlib.ExitStack() as stack:
        writer = WriterProcess(
            disk.path / "avm.db",
            tmp_path / "clock",
            socket_path=tmp_path / "w.sock",
            constants={"checkpoint": SMALL_LOG} if small else {},
        )
        stack.callback(lambda: writer.alive() and writer.kill())
        stack.callback(writer.listener.close)
        kept: list[bytes] = []
        reader = writer.attach("*")  # keeps the log from being looked at anew, as mounts do
        stack.callback(reader.close)

        def write(name: bytes, data: bytes, patience_s: float) -> None:
            store = writer.attach("*", patience_s=patience_s)
            try:
                store.submit(ALICE, "write_path", path=[b"memory", name], data=data)
                kept.append(name)
            finally:
                store.close()

        for round_ in range(3):
            for number in range(10):
                write(b"before-%d-%d" % (round_, number), bytes(3000), LIMIT_S)
            with reader.reading(ALICE) as each:
                assert each.child(MEMORY, b"before-%d-9" % round_)
            disk.fill()
            with pytest.raises(AvmError):
                for number in range(400):
                    write(b"full-%d-%d" % (round_, number), bytes([number % 256]) * 60_000, 2.0)
            disk.make_room()
            if not writer.alive():
                writer.start()
            deadline = time.monotonic() + LIMIT_S
            while True:
                try:
                    write(b"again-%d" % round_, b"x", 2.0)
                    break
                except AvmError:
                    assert time.monotonic() < deadline, writer.log()
                    if not writer.alive():
                        writer.start()
            for number in range(30):
                write(b"after-%d-%d" % (round_, number), bytes(3000), LIMIT_S)
        writer.kill()
        reader.close()
        disk.lose_power()
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{writer.database}{suffix}", tmp_path / f"avm.db{suffix}")
    assert set(kept) - names_in(tmp_path / "avm.db") == set()
    assert database.integrity(tmp_path / "avm.db") == [] and faults(tmp_path / "avm.db", Policy()) == []


def names_in(database_path: Path) -> set[bytes]:
    with contextlib.closing(database.connect(database_path, writable=True)) as db:
        return {bytes(name) for (name,) in db.execute("select name from node where name is not null")}


@contextlib.contextmanager
def looking(path: Path) -> Iterator[Callable[[], int]]:
    """A reader that stays, as mounts do: who opens the store finds it in use, and its log as others left it."""
    with contextlib.closing(database.connect(path, writable=False)) as db:

        def look() -> int:
            return int(db.execute("select count(*) from node").get)

        look()
        yield look


class Clients:
    """Each writes one new file after the other, and goes on after errors."""

    def __init__(self, writer: WriterProcess) -> None:
        self.kept: list[bytes] = []
        self.errors = 0
        self._over = threading.Event()
        self._writer = writer
        self._threads = [threading.Thread(target=self._work, args=(writer, number)) for number in range(3)]
        for thread in self._threads:
            thread.start()

    def _work(self, writer: WriterProcess, client: int) -> None:
        chance, number = random.Random(client), 0
        with contextlib.closing(writer.attach("*", patience_s=LIMIT_S)) as store:
            while not self._over.is_set():
                number += 1
                name = b"%d-%d" % (client, number)
                data = chance.randbytes(chance.choice((10, 3000, 60_000)))
                try:
                    store.submit(ALICE, "write_path", path=[b"memory", name], data=data)
                    self.kept.append(name)
                except (StoreFailed, NoSpace):
                    self.errors += 1

    def more(self, count: int) -> None:
        """Returns when so many more have been acknowledged."""
        wanted, last, limit = len(self.kept) + count, len(self.kept), time.monotonic() + LIMIT_S
        while len(self.kept) < wanted:
            if len(self.kept) > last:
                last, limit = len(self.kept), time.monotonic() + LIMIT_S
            assert time.monotonic() < limit, f"{wanted - last} more: {self.errors} errors, {self._writer.log()[-2000:]}"
            time.sleep(0.005)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * LIMIT_S)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.mark.mount
@pytest.mark.parametrize("which", ["avm.db-wal", "avm.db"])
@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "is killed"])
@pytest.mark.parametrize(
    ("operation", "error"),
    [("sync", errno.EIO), ("write", errno.EIO), ("write", errno.ENOSPC)],
    ids=["sync EIO", "write EIO", "write ENOSPC"],
)
def test_what_is_acknowledged_after_an_error_of_the_disk_is_there_after_power_loss(
    tmp_path: Path, which: str, killed: bool, operation: str, error: int
) -> None:
    chance = random.Random(f"{which} {killed}")
    for number in range(ROUNDS):
        run = tmp_path / f"run{number}"
        run.mkdir()
        with DroppingDisk(run / "disk") as disk, contextlib.ExitStack() as stack:
            path = disk.path / "avm.db"
            small = {} if which == "avm.db-wal" else {"checkpoint": SMALL_LOG}
            writer = WriterProcess(path, run / "clock", socket_path=run / "w.sock", constants=small)
            stack.callback(writer.listener.close)
            stack.callback(lambda writer=writer: writer.alive() and writer.kill())
            with contextlib.closing(writer.attach("*")) as store:
                store.submit(ALICE, "enroll")
            look = stack.enter_context(looking(path))
            clients = Clients(writer)
            stack.callback(clients.stop)
            for failure in range(3):
                clients.more(chance.randrange(40))
                disk.fail(operation, error, times=chance.choice((1, 2, 5)), name=which)
                before = disk.counts()[f"{operation} {which}"]
                limit = time.monotonic() + LIMIT_S
                while disk.counts()[f"{operation} {which}"] == before:
                    assert time.monotonic() < limit
                    time.sleep(0.005)
                if killed:
                    writer.kill()
                    writer.start()
                disk.heal()
                look()
                clients.more(chance.choice((1, 30, 80)))
                kept = set(clients.kept)
                copy = disk.durable(run / f"copy{failure}") / "avm.db"
                assert kept - names_in(copy) == set()
                assert database.integrity(copy) == [] and faults(copy, Policy()) == []
            clients.stop()
            assert writer.alive(), writer.log()


# Without a daemon ----------------------------------------------------------------------------------------------

DIRECT = """
import sys
from pathlib import Path
from tests.contract.store_world import ALICE, RULES
from avmfs.access import Policy
from avmfs.errors import StoreFailed
from avmfs.store.store import open_direct
store = open_direct(Path(sys.argv[1]), Policy(), RULES)
for name in sys.argv[2:]:
    try:
        store.submit(ALICE, "write_path", path=[b"memory", name.encode()], data=b"x" * 9000)
    except StoreFailed:
        print("failed", name, flush=True)
    else:
        print("kept", name, flush=True)
store.close()
"""


def direct(path: Path, *names: str) -> dict[str, list[str]]:
    """What a command of its own process says of these files."""
    done = subprocess.run(
        [sys.executable, "-c", DIRECT, path, *names],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    said: dict[str, list[str]] = {"kept": [], "failed": []}
    for line in done.stdout.splitlines():
        word, name = line.split()
        said[word].append(name)
    return said


@pytest.mark.mount
def test_a_command_after_one_whose_sync_failed_trusts_nothing_of_it(tmp_path: Path) -> None:
    with DroppingDisk(tmp_path / "disk") as disk:
        path = disk.path / "avm.db"
        kept = direct(path, "first")["kept"]
        with looking(path):
            for number in range(3):
                disk.fail("sync", errno.EIO, name="avm.db-wal")
                said = direct(path, *(f"{number}-fails-{n}" for n in range(3)))
                assert len(said["failed"]) == 1
                kept += said["kept"] + direct(path, f"{number}-after")["kept"]
                there = names_in(disk.durable(tmp_path / f"copy{number}") / "avm.db")
                assert {name.encode() for name in kept} - there == set()
        assert len(kept) == 10 and StoreLock(path).clean


@pytest.mark.mount
def test_a_checkpoint_that_failed_without_a_daemon_is_made_again_from_the_beginning(tmp_path: Path) -> None:
    """A reader cuts one short, which SQLite does not sync then. The next one is told that the sync failed."""
    with DroppingDisk(tmp_path / "disk") as disk:
        path = disk.path / "avm.db"
        kept = direct(path, "first")["kept"]
        with contextlib.closing(database.connect(path, writable=False)) as db:
            db.execute("begin")
            db.execute("select count(*) from node").fetchall()
            kept += direct(path, *(f"cut-{n}" for n in range(100)))["kept"]
            db.execute("commit")
            db.execute("begin")
            db.execute("select count(*) from node").fetchall()
            kept += direct(path, *(f"moved-{n}" for n in range(200)))["kept"]
            db.execute("commit")
            before = disk.counts()["sync avm.db"]
            disk.fail("sync", errno.EIO, name="avm.db")
            kept += direct(path, *(f"fails-{n}" for n in range(300)))["kept"]
            assert disk.counts()["sync avm.db"] > before + 1, "it was tried again"
            copy = disk.durable(tmp_path / "copy") / "avm.db"
        assert database.integrity(copy) == [], "contents of files that were moved first"
        assert {name.encode() for name in kept} - names_in(copy) == set() and len(kept) == 601


def test_a_direct_store_whose_files_are_gone_says_so_and_may_be_closed_twice(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store = open_direct(folder / "avm.db", Policy(), RULES)
    store.submit(ALICE, "enroll")
    shutil.rmtree(folder)
    with pytest.raises(StoreFailed, match="removed or replaced"):
        store.submit(ALICE, "write_path", path=[b"memory", b"f"], data=b"1")
    store.close()
    store.close()
