"""What a writer acknowledged is on the disk: a mounted one that drops what was not synced (``dropping_disk``).

Rounds on one store: clients change their files while the log is moved and begun anew all the time, the power goes, the
next writer starts. AVM_POWER_ROUNDS makes more of them. What goes through mounts is tests/faults/test_power_loss.py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import wire
from avmfs.access import Policy
from avmfs.agents import anchors, auditing
from avmfs.agents.auditing import Chainer
from avmfs.errors import StoreFailed
from avmfs.store.identity import OPERATOR, proof
from avmfs.store.schema import database
from avmfs.store.schema.tables import ROOT
from avmfs.store.store import Store, open_direct
from tests.contract.store_world import ALICE, RULES, WriterProcess, faults
from tests.disk_model import Keep, Names
from tests.dropping_disk import DroppingDisk
from tests.ext4_disk import Ext4Disk

ROUNDS = int(os.environ.get("AVM_POWER_ROUNDS", "2"))
pytestmark = [pytest.mark.slow, pytest.mark.mount, pytest.mark.timeout(180 + 30 * ROUNDS)]

CLIENTS = 3
FILES = 12  # of each client
SYNCS = ((0.0, 0.0), (0.001, 0.02), (0.02, 0.08))  # seconds: a quick disk, a usual one, a slow one

SMALL_LOG = {
    "CHECKPOINT_PAGES": 60,
    "RESTART_PAGES": 200,
    "HARD_PAGES": 300,
    "LEFT_PAGES": 20,
    "RETRY_PAGES": 10,
    "AHEAD_PAGES": 40,
    "ROOM": 256 * 1024,
}

Files = dict[bytes, bytes]


@contextlib.contextmanager
def connected(writer: WriterProcess, client: bytes) -> Iterator[socket.socket]:
    """Alice, by the writer's protocol."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(os.fspath(writer.address))
        shown = proof(writer.key, ALICE.name)
        wire.send(sock, {"v": wire.PROTOCOL, "client": client, "agent": ALICE.name, "proof": shown})
        yield sock


def ask(sock: socket.socket, number: int, command: str, **arguments: Any) -> None:
    wire.send(sock, [number, None, 0, command, arguments])


class Refused(Exception):
    """An error instead of an answer, at a moment."""


def answer(sock: socket.socket, number: int) -> Any:
    found, error, result = wire.receive_answer(sock)
    assert found == number
    if error is not None:
        raise Refused(time.monotonic(), *error)
    return result


class Client:
    """Writes its files one after the other, each time with other bytes, and appends to what it has just written
    (relaxed) until it asks for a sync."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: Files = {}  # as the disk had them after the last power loss
        self.asked: list[tuple[bytes, bytes]] = []  # changes since then: a file, and its bytes from then on
        self.answers: list[tuple[float, int]] = []  # when so many of them had been acknowledged
        self.refused: Refused | None = None
        self.change = 0
        self.total = 0  # acknowledged in time, in all rounds

    def work(self, writer: WriterProcess, chance: random.Random) -> None:
        """Until the writer is killed. By hand, since a client of ours would ask the next one."""
        self.asked, self.answers, self.refused = [], [], None
        try:
            self._work(writer, chance)
        except Refused as e:
            self.refused = e

    def _work(self, writer: WriterProcess, chance: random.Random) -> None:
        requests = itertools.count(1)
        with contextlib.suppress(EOFError, ConnectionError), connected(writer, os.urandom(16)) as sock:
            while True:
                self.change += 1
                name = b"%d-%d" % (self.number, self.change % FILES)
                data = b"%d %d\n" % (self.number, self.change) + chance.randbytes(chance.choice((10, 3000, 60_000)))
                self.asked.append((name, data))
                ask(sock, number := next(requests), "write_path", path=[b"memory", name], data=data)
                node = answer(sock, number)["node"]
                self.answers.append((time.monotonic(), len(self.asked)))
                for _ in range(chance.choice((0, 0, 5))):  # each as close() after O_APPEND
                    data += b"+" * chance.choice((1, 5000))
                    self.asked.append((name, data))
                    piece = data[len(self.asked[-2][1]) :]
                    ask(sock, number := next(requests), "append", node=node, handle=None, data=piece)
                    answer(sock, number)
                    ask(sock, number := next(requests), "sync")
                    answer(sock, number)
                    self.answers.append((time.monotonic(), len(self.asked)))

    def check(self, found: Files, at: float) -> None:
        """They are as after the last change that was acknowledged before the power went, or after a later one."""
        assert self.refused is None or self.refused.args[0] > at, self.refused
        acknowledged = max((count for answered, count in self.answers if answered < at), default=0)
        files, possible = dict(self.files), [dict(self.files)]
        for name, data in self.asked:
            files[name] = data
            possible.append(dict(files))
        assert found in possible[acknowledged:], (
            f"client {self.number}: of {len(self.asked)} changes {acknowledged} were acknowledged; "
            f"there is {shown(found)}, and it should be {shown(possible[acknowledged])}"
        )
        self.files, self.total = found, self.total + acknowledged


def shown(files: Files) -> list[tuple[bytes, bytes, int]]:
    return sorted((name, data[:12], len(data)) for name, data in files.items())


def files_of(store: Store, client: Client) -> Files:
    found = {}
    with store.reading(ALICE) as reader:
        memory = reader.child(ROOT, b"memory")
        assert memory is not None
        for number in range(FILES):
            name = b"%d-%d" % (client.number, number)
            node = reader.child(memory.id, name)
            if node is not None:
                found[name] = reader.read(node.id, 0, node.size)
    return found


@contextlib.contextmanager
def writing(path: Path, run: Path, quick_s: float = 0.0005) -> Iterator[WriterProcess]:
    """A writer whose log is begun anew after a few hundred pages. Its sockets are on another disk. ``quick_s``: what it
    takes for a quick sync, which it does by itself."""
    run.mkdir()
    writer = WriterProcess(
        path,
        run / "clock",
        socket_path=run / "writer.sock",
        constants={"checkpoint": SMALL_LOG, "wal_sync": {"QUICK_S": quick_s}},
    )
    try:
        yield writer
    finally:
        if writer.alive():
            writer.kill()
        writer.listener.close()


@pytest.mark.parametrize("names", ["ext4", "posix"])
@pytest.mark.parametrize("keep", ["synced", "some"])
def test_what_was_acknowledged_is_there_after_power_loss(tmp_path: Path, names: Names, keep: Keep) -> None:
    with DroppingDisk(tmp_path / "disk", names) as disk:
        rounds(disk, tmp_path, random.Random(f"{names} {keep}"), keep)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can use loop devices")
def test_what_was_acknowledged_is_there_after_ext4_was_shut_down(tmp_path: Path) -> None:
    with Ext4Disk(tmp_path / "disk") as disk:
        rounds(disk, tmp_path, random.Random(1), "synced")


def rounds(disk: DroppingDisk | Ext4Disk, root: Path, chance: random.Random, keep: Keep) -> None:
    clients = [Client(number) for number in range(CLIENTS)]
    path = disk.path / "data/avm.db"
    at = 0.0
    for number in range(ROUNDS + 1):
        with writing(path, root / f"run{number}", chance.choice((0.0, 1.0))) as writer:
            with contextlib.closing(writer.attach("*")) as store:
                store.submit(ALICE, "enroll")
                for client in clients:
                    client.check(files_of(store, client), at)
            if number == ROUNDS:
                break
            disk.slow(*chance.choice(SYNCS))
            threads = [threading.Thread(target=client.work, args=(writer, random.Random(number))) for client in clients]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.1, 1.5))
            said = writer.log()
            at = disk.cut(keep, number)
            assert writer.process is not None
            writer.process.kill()
            disk.revive()
            writer.process.wait(200)
            writer.listener.close()  # or who was not accepted yet would wait
            for thread in threads:
                thread.join(200)
            assert not any(thread.is_alive() for thread in threads)
        # What was not acknowledged may be there in part, and it is right to say that it is left out.
        assert all(line.startswith("WARNING ") for line in said.splitlines()), said
    assert database.integrity(path) == [] and faults(path, Policy()) == []
    assert sum(client.total for client in clients) > ROUNDS, "they hardly got to work"
    print(f"{disk.path.parent.name}: {ROUNDS} rounds, {sum(client.total for client in clients)} acknowledged, 0 lost")


@contextlib.contextmanager
def a_store(disk: DroppingDisk, run: Path) -> Iterator[tuple[WriterProcess, Store]]:
    with writing(disk.path / "data/avm.db", run) as writer:
        store = writer.attach("*")
        store.submit(ALICE, "enroll")
        yield writer, store
        store.close()


def lose_power(disk: DroppingDisk, writer: WriterProcess, keep: Keep = "synced", seed: int = 0) -> None:
    disk.cut(keep, seed)
    assert writer.process is not None
    writer.process.kill()
    disk.revive()
    writer.process.wait(200)


def on_disk(disk: DroppingDisk, target: Path) -> Files:
    """The files in /memory, if the power went now."""
    path = disk.durable(target) / "data/avm.db"
    store = open_direct(path, Policy(), RULES)
    try:
        with store.reading(ALICE) as reader:
            memory = reader.child(ROOT, b"memory")
            assert memory is not None
            return {node.name: reader.read(node.id, 0, node.size) for node in reader.children(memory.id)}
    finally:
        store.close()


def syncing(disk: DroppingDisk, before: int) -> None:
    """Returns when one more sync of the log has begun."""
    limit = time.monotonic() + 60
    while disk.counts()["sync avm.db-wal"] <= before:
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_nobody_is_answered_before_the_sync_that_is_under_way_is_over(tmp_path: Path) -> None:
    """While a sync is under way what it is for is not on the disk: not for who asks again for an answer that waits for
    it, nor for who follows up a relaxed change from before."""
    with DroppingDisk(tmp_path / "disk") as disk:
        disk.slow(0.3, 0.3)  # never quick: the writer's other thread syncs
        with a_store(disk, tmp_path / "run") as (writer, _):
            one, two = os.urandom(16), os.urandom(16)
            with connected(writer, one) as alice, connected(writer, two) as other:
                ask(alice, 1, "write_path", path=[b"memory", b"f"], data=b"1")
                node = answer(alice, 1)["node"]
                for number in (1, 2):  # each is asking now and then, so that nobody is alone
                    ask(other, number, "write_path", path=[b"memory", b"g"], data=b"%d" % number)
                    answer(other, number)
                    ask(alice, 2 * number, "append", node=node, handle=None, data=b"+")
                    answer(alice, 2 * number)  # relaxed
                    ask(alice, 2 * number + 1, "sync")
                    answer(alice, 2 * number + 1)
                ask(alice, 6, "append", node=node, handle=None, data=b"+")
                answer(alice, 6)
                before = disk.counts()["sync avm.db-wal"]
                ask(other, 3, "write_path", path=[b"memory", b"g"], data=b"3")
                syncing(disk, before)
                ask(alice, 7, "sync")
                with connected(writer, two) as again:  # its connection was lost, say
                    ask(again, 3, "write_path", path=[b"memory", b"g"], data=b"3")
                    answer(again, 3)
                    assert on_disk(disk, tmp_path / "copy1")[b"g"] == b"3"
                answer(alice, 7)
                assert on_disk(disk, tmp_path / "copy2")[b"f"] == b"1+++"


def test_what_a_killed_writer_has_not_synced_its_successor_does(tmp_path: Path) -> None:
    """A relaxed change was answered by the one, and its author closes the file with the other. A reader has the log
    open meanwhile, or all of it would be moved when the successor looks at it first."""
    with (
        DroppingDisk(tmp_path / "disk") as disk,
        a_store(disk, tmp_path / "run") as (writer, store),
        store.reading(ALICE),
    ):
        client = os.urandom(16)
        with connected(writer, client) as sock:
            ask(sock, 1, "write_path", path=[b"memory", b"f"], data=b"1")
            node = answer(sock, 1)["node"]
            ask(sock, 2, "append", node=node, handle=None, data=b"+")
            answer(sock, 2)
            writer.kill()
        writer.start()
        with connected(writer, client) as sock:
            ask(sock, 3, "sync")
            answer(sock, 3)
            assert on_disk(disk, tmp_path / "copy")[b"f"] == b"1+"


def test_no_anchor_of_the_audit_is_ahead_of_the_store(tmp_path: Path) -> None:
    """The rows of what is relaxed, and their batch, are on the disk before the anchor that vouches for them."""
    with DroppingDisk(tmp_path / "disk") as disk:
        kept = disk.path / "kept.anchors"
        for number in range(3):
            with a_store(disk, tmp_path / f"run{number}") as (writer, store):
                made = store.submit(ALICE, "write_path", path=[b"memory", b"f"], data=b"%d" % number)
                chainer = Chainer(store, kept, 0.0, time.time_ns)
                chainer.step()
                store.submit(ALICE, "set_attributes", node=made["node"], mode=0o600 + number)
                chainer.step()
                assert auditing.verify(store, OPERATOR, anchors.read(kept))[0].bad is None
                lose_power(disk, writer)
            with a_store(disk, tmp_path / f"after{number}") as (writer, store):
                for name in (b"g", b"h"):
                    store.submit(ALICE, "write_path", path=[b"memory", name], data=b"%d" % number)
                Chainer(store, kept, 0.0, time.time_ns).step()
                verdict = auditing.verify(store, OPERATOR, anchors.read(kept))[0]
                assert verdict.bad is None, (number, verdict)


def test_a_new_store_whose_name_cannot_be_synced_is_no_store(tmp_path: Path) -> None:
    with DroppingDisk(tmp_path / "disk") as disk:
        disk.fail("sync", errno.EIO, times=100, name="data")
        with pytest.raises(StoreFailed, match="directory cannot be synced"):
            database.prepare(disk.path / "data/avm.db")
        disk.heal()
        database.prepare(disk.path / "data/avm.db")


@pytest.mark.parametrize("names", ["ext4", "posix"])
def test_a_log_that_was_removed_does_not_come_back(tmp_path: Path, names: Names) -> None:
    """Who closes the store last removes the log; the name is another file's after that. Two processes, say: one has
    made the new log, and the other one is first to write to it."""
    with DroppingDisk(tmp_path / "disk", names) as disk:
        path = disk.path / "data/avm.db"
        for number in range(6):
            first, second = (open_direct(path, Policy(), RULES) for _ in range(2))
            for store in (first, second)[:: 1 if number % 2 else -1]:
                data = b"%d" % number + os.urandom(3000)
                store.submit(ALICE, "write_path", path=[b"memory", b"f"], data=data)
                assert on_disk(disk, tmp_path / f"copy{number}{store is first}")[b"f"] == data
            for store in (first, second):
                store.close()
            assert not path.with_name("avm.db-wal").exists()
            assert on_disk(disk, tmp_path / f"closed{number}")[b"f"] == data
            if number % 2:
                disk.power_loss("some" if number % 3 else "synced", number)
