"""Housekeeping: what is written becomes searchable, what has passed goes, what is open stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from avmfs_daemon.keeper import ORPHAN_S, Keeper

from avmfs.access import Policy, Principal
from avmfs.embed.hashing import HashingEmbedding
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.store import database
from avmfs.store.applier import Applier
from avmfs.store.schema import MEMORY
from avmfs.store.sqlite import SqliteStore
from avmfs.store.submit import OPERATOR
from avmfs.store.transaction import IndexRules

ALICE = Principal("alice")


class Engine(HashingEmbedding):
    """Hashing, with the word that the daemon's client has about its model, and a switch."""

    def __init__(self, dimension: int = 64) -> None:
        super().__init__(dimension)
        self.loading = False

    def info(self) -> tuple[str, int]:
        if self.loading:
            raise EmbeddingUnavailable("the model is still loading")
        return self.model_id, self.dimension

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        self.info()
        return super().embed_batch(texts, urgent=urgent)


class Applying:
    """Commands as the writer applies them: an unlinked file keeps its bytes."""

    def __init__(self, path: Path, clock: Any) -> None:
        database.prepare(path)
        self.applier = Applier(path, Policy(), IndexRules(), orphans=True, clock=clock)
        self.applier.alone(OPERATOR, "settle", {})
        self.submitted: list[str] = []

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        self.submitted.append(command)
        return self.applier.alone(who, command, arguments)

    def close(self) -> None:
        self.applier.close()


class House:
    def __init__(self, path: Path) -> None:
        self.wall, self.monotonic = time.time_ns(), 1000.0
        self.applying = Applying(path, lambda: self.wall)
        self.store = SqliteStore(path, self.applying, lambda: self.wall)
        self.engine = Engine()
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Keeper:
        return Keeper(self.store, self.engine, lambda: self.monotonic, lambda: self.wall)

    def write(self, name: str, text: str) -> int:
        self.store.submit(ALICE, "write_path", path=[b"memory", name.encode()], data=text.encode())
        return self.node(name)

    def node(self, name: str) -> int:
        with self.store.reading(ALICE) as reader:
            found = reader.child(MEMORY, name.encode())
            assert found is not None
            return found.id

    def later(self, seconds: float) -> None:
        self.monotonic += seconds

    def work(self) -> None:
        while self.applying.applier.alone(OPERATOR, "drain_lexical", {})["left"]:  # as the writer does when it is idle
            pass
        while self.keeper.step():
            pass


@pytest.fixture
def house(tmp_path: Path) -> Any:
    house = House(tmp_path / "avm.db")
    yield house
    house.store.close()


def test_what_is_written_gets_words_and_vectors(house: House) -> None:
    for number in range(70):
        house.write(f"n{number}", f"note number {number}")
    assert house.store.queue_lengths() == (70, 70)
    house.work()
    assert house.store.queue_lengths() == (0, 0)


def test_a_document_without_text_leaves_the_queue(house: House) -> None:
    house.write("empty", "")
    house.write("binary", "\0\1\2")
    house.work()
    assert house.store.queue_lengths() == (0, 0)


def test_while_the_model_loads_vectors_wait(house: House) -> None:
    house.engine.loading = True
    house.write("note", "text")
    house.work()
    assert house.store.queue_lengths() == (0, 1)
    house.engine.loading = False
    house.work()
    assert house.store.queue_lengths() == (0, 0)


def test_another_model_gets_vectors_of_its_own(house: House) -> None:
    house.write("note", "text")
    house.work()
    house.engine = Engine(32)
    house.keeper = house.new_keeper()
    house.applying.submitted.clear()
    house.work()
    assert house.applying.submitted.count("put_vectors") == 1
    assert house.store.queue_lengths() == (0, 0)


def test_an_idle_keeper_commits_nothing(house: House) -> None:
    house.work()
    house.applying.submitted.clear()
    for _ in range(5):
        house.work()
    assert house.applying.submitted == []


def test_what_has_expired_is_reaped(house: House) -> None:
    node = house.write("note", "text")
    house.store.submit(ALICE, "set_ttl", node=node, expires=house.wall + 1)
    house.work()
    house.wall += 10
    house.later(31)
    house.work()
    assert (
        house.applying.applier.db.execute(
            "select count(*) from node where name = ? and parent not null", (b"note",)
        ).get
        == 0
    )


def orphaned(house: House) -> int:
    node = house.write("note", "text")
    house.store.submit(ALICE, "unlink", parent=MEMORY, name=b"note")
    assert [found for found, _ in house.store.orphans()] == [node]
    return node


def test_an_unlinked_file_that_a_mount_holds_keeps_its_bytes(house: House) -> None:
    node = orphaned(house)
    for _ in range(20):
        house.store.submit(ALICE, "hold", holder=b"mount", nodes=[node])
        house.wall += 30_000_000_000
        house.later(31)
        house.work()
    assert house.store.orphans()


def test_an_unlinked_file_that_nobody_holds_is_freed_after_a_while(house: House) -> None:
    orphaned(house)
    house.work()
    house.later(ORPHAN_S - 1)
    house.work()
    assert house.store.orphans()
    house.later(32)
    house.work()
    assert not house.store.orphans()


def test_a_jump_of_the_wall_clock_frees_nothing_that_is_open(house: House) -> None:
    orphaned(house)
    house.work()
    house.wall += 10 * 365 * 24 * 3600 * 1_000_000_000
    house.later(31)
    house.work()
    assert house.store.orphans()


def test_a_keeper_that_has_just_started_has_watched_nothing_yet(house: House) -> None:
    orphaned(house)
    house.work()
    house.later(ORPHAN_S + 1)
    house.keeper = house.new_keeper()
    house.work()
    assert house.store.orphans()


def test_stop_ends_a_sleeping_keeper_at_once(house: House) -> None:
    keeper = Keeper(house.store, None)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    time.sleep(0.05)
    keeper.stop()
    thread.join(2)
    assert not thread.is_alive()
