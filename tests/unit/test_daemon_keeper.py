"""Housekeeping: what is written becomes searchable, what has passed goes, what is open stays."""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from avmfs_daemon import housekeeping
from avmfs_daemon.housekeeping import (
    BUSY_PER_S,
    HOLD_S,
    LOOK_S,
    ORPHAN_S,
    PACE_S,
    PAST_S,
    REAPED,
    RESTS,
    TRICKLE,
    Housekeeper,
)

from avmfs.access import Policy, Principal
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer, verify
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.errors import Busy, NoSpace, StoreFailed
from avmfs.search.engine import Engine as SearchEngine
from avmfs.search.indexer import PIECE
from avmfs.store.client.client import Submitter
from avmfs.store.commands import upkeep
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.schema.tables import BLOCK, MEMORY
from avmfs.store.store import Store
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from avmfs.text.tokens import TokenCounter
from avmfs.vfs import locks
from avmfs.vfs.locks import LockTable
from tests.behind import connect
from tests.hashing import HashingEmbedding

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


class Applying(Submitter):
    """Commands as the writer applies them: an unlinked file keeps its bytes."""

    def __init__(self, path: Path, clock: Any, rules: IndexRules) -> None:
        database.prepare(path)
        self.applier = Applier(path, Policy(), rules, orphans=True, clock=clock)
        self.applier.alone(OPERATOR, "settle", {})
        self.submitted: list[str] = []

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        self.submitted.append(command)
        return self.applier.alone(who, command, arguments)

    def close(self) -> None:
        self.applier.close()


class House:
    def __init__(self, path: Path, rules: IndexRules | None = None) -> None:
        self.wall, self.monotonic = time.time_ns(), 1000.0
        self.applying = Applying(path, lambda: self.wall, rules or IndexRules())
        self.store = Store(path, self.applying, lambda: self.wall)
        self.engine = Engine()
        self.keeper = self.new_keeper()

    def new_keeper(
        self,
        open_among: Callable[[list[int]], list[int] | None] = lambda nodes: None,
        gone: Callable[[list[int]], None] = lambda nodes: None,
    ) -> Housekeeper:
        clocks = (lambda: self.monotonic, lambda: self.wall)
        return Housekeeper(self.store, self.engine, *clocks, open_among=open_among, gone=gone)

    def write(self, name: str, text: str) -> int:
        self.store.submit(ALICE, "write_path", path=[b"memory", name.encode()], data=text.encode())
        return self.node(name)

    def node(self, name: str) -> int:
        with self.store.reading(ALICE) as reader:
            found = reader.child(MEMORY, name.encode())
            assert found is not None
            return found.id

    def rows(self, sql: str) -> list[Any]:
        with self.store.connection() as (db, _):
            return db.execute(sql).fetchall()

    def later(self, seconds: float) -> None:
        self.monotonic += seconds

    def index_words(self) -> None:
        """As the writer does when it is idle."""
        while self.applying.applier.alone(OPERATOR, "drain_lexical", {})["left"]:
            pass

    def work(self) -> None:
        self.index_words()
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


def test_a_damaged_note_keeps_no_other_from_its_vectors(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("first", "broken", "last"):
        house.write(name, f"a note on harbours, the {name} one")
    house.index_words()
    with contextlib.closing(connect(house.store.path)) as db:
        db.execute(
            "update body set data = zeroblob(length(data)) where id = (select body from node where name = ?)",
            (b"broken",),
        )
    house.work()
    assert house.store.queue_lengths() == (0, 0)
    house.write("later", "another one on lighthouses")
    house.work()
    assert house.store.queue_lengths() == (0, 0)
    found = SearchEngine(house.store.search_index, house.engine, TokenCounter()).search(ALICE, "harbours lighthouses")
    assert sorted(scored.hit.path for scored in found.hits) == [b"/memory/first", b"/memory/last", b"/memory/later"]
    assert all("cosine" in scored.evidence for scored in found.hits)
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["/memory/broken"]


def test_what_cannot_be_embedded_holds_up_nothing_else(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.write("note", "with words")
    house.index_words()

    def failing(texts: Sequence[str], *, urgent: bool = False) -> Batch:
        raise StoreFailed("disk I/O error")

    monkeypatch.setattr(house.engine, "embed_batch", failing)
    rounds: list[int] = []
    keeper = Housekeeper(
        house.store, house.engine, lambda: house.monotonic, lambda: house.wall, also=[lambda: rounds.append(1)]
    )
    house.applying.submitted.clear()
    house.later(24 * 3600)
    with pytest.raises(StoreFailed, match="disk I/O error"):
        keeper.step()
    assert {"trim_mail", "trim_past", "sum_contents"} <= set(house.applying.submitted) and rounds == [1]


@pytest.mark.parametrize("fails", ["reap_expired", "trim_trash", "trim_past", "trim_mail"])
def test_a_chore_that_fails_at_every_look_keeps_no_other_from_being_done(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    """As on a full disk: the backups may go to another one."""
    house.store.submit(ALICE, "set_ttl", node=house.write("brief", "x"), expires=house.wall + 1)
    house.wall += 3600 * 10**9
    applying, rounds = house.applying.submit, list[int]()

    def submit(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        if command == fails:
            raise NoSpace("the past cannot be written")
        return applying(who, command, arguments)

    def full() -> None:
        raise NoSpace("digests cannot be written")

    monkeypatch.setattr(house.applying, "submit", submit)
    keeper = Housekeeper(
        house.store,
        None,
        lambda: house.monotonic,
        lambda: house.wall,
        also=[full, lambda: rounds.append(1)],
        chainer=Chainer(house.store, tmp_path / "anchors", 0.0, lambda: house.wall),
    )
    house.later(100_000)
    for said in ("the past", "digests"):
        with pytest.raises(NoSpace, match=said):
            keeper.step()
    assert rounds == [1, 1] and anchors.read(tmp_path / "anchors")
    others = {"reap_expired", "sum_contents", "trim_mail", "trim_trash", "trim_past", "forget_clients"} - {fails}
    assert others <= set(house.applying.submitted)


def damage(path: Path, *notes: str, page: bool = False) -> None:
    """A byte of the contents of each, or a page in the middle of them."""
    with contextlib.closing(connect(path)) as db:
        pages = "select pageno from dbstat where name = 'body' and pagetype = 'overflow' order by path"
        numbers: list[int] = [number for (number,) in db.execute(pages)]
    whole = path.read_bytes()
    with open(path, "r+b") as file:
        for note in notes:
            first = next(n for n in numbers if note.encode() in whole[(n - 1) * 4096 : n * 4096])
            file.seek((first - 1) * 4096 + (0 if page else 99))
            file.write(bytes(4096) if page else b"?")


def test_what_is_damaged_keeps_nothing_else_from_going_when_its_time_has_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes itself, into no past."""
    path, briefs, olds = tmp_path / "avm.db", ("brief1", "brief2"), ("old1", "old2")
    house = House(path, IndexRules(past_days=30))
    for name in (*briefs, *olds):
        house.write(name, f"{name} has words " * 1500)
    house.index_words()
    house.wall += 3600 * 10**9
    for name in briefs:
        house.store.submit(ALICE, "set_ttl", node=house.node(name), expires=house.wall + 1)
    for name in olds:
        house.store.submit(ALICE, "unlink", parent=MEMORY, name=name.encode(), trash=True)
    later = house.wall + 366 * 86400 * 10**9
    house.store.close()
    damage(path, "brief1", "old1")
    house = House(path, IndexRules(past_days=30))
    house.wall = later
    house.later(PAST_S)
    house.keeper.step()
    with house.store.connection() as (db, _):
        assert db.execute("select name from node where parent is not null and kind = 1").fetchall() == []
        assert db.execute("select count(*) from past_version").get == 2
    said = [record.getMessage() for record in caplog.records]
    assert sum(each.endswith("version 1 of it is not kept as of the past") for each in said) == 2
    house.store.close()


def test_an_unlinked_file_that_is_damaged_keeps_no_other_from_being_freed(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    house = House(path)
    for number in range(4):
        house.write(f"n{number}", f"n{number} has words " * 1500)
        house.store.submit(ALICE, "unlink", parent=MEMORY, name=b"n%d" % number)
    house.store.close()
    damage(path, "n1", page=True)
    house = House(path)
    house.keeper = house.new_keeper(lambda nodes: [])
    house.keeper.step()
    house.later(LOOK_S + 0.1)
    with pytest.raises(StoreFailed, match="malformed"):
        house.keeper.step()
    with house.store.connection() as (db, _):
        assert db.execute("select name from node where kind = 1").fetchall() == [(b"n1",)]
    house.store.close()


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


def test_a_model_change_is_queued_a_slice_at_a_time_and_goes_on_after_a_restart(
    house: House,
) -> None:
    for number in range(9):
        house.write(f"n{number}", f"note number {number}")
    house.work()
    house.engine = Engine(32)
    first = house.store.submit(OPERATOR, "follow_model", model=house.engine.model_id, dimension=32, limit=4)
    assert first == {"queued": 4, "left": 5}
    model = house.store.vector_model()
    assert model is not None and not model.settled
    house.keeper = house.new_keeper()
    house.work()
    model = house.store.vector_model()
    assert model is not None and (model.model, model.settled) == (house.engine.model_id, True)
    assert house.store.queue_lengths() == (0, 0)
    assert vectors(house) == {house.engine.model_id: 9}


def test_a_restarted_keeper_looks_through_no_passages_again(house: House) -> None:
    house.write("note", "text")
    house.work()
    house.applying.submitted.clear()
    house.keeper = house.new_keeper()
    house.work()
    assert not {"follow_model", "put_vectors"} & set(house.applying.submitted)


def test_what_was_written_last_is_embedded_first(house: House) -> None:
    house.engine.loading = True
    for number in range(300):
        house.write(f"old{number}", f"note number {number}")
    house.work()
    house.write("new", "the newest note")
    house.work()
    house.engine.loading = False
    while not vectors(house):
        house.keeper.step()
    assert house.store.queue_lengths()[1] > 100
    with house.store.reading(ALICE) as reader:
        document = reader.node(house.node("new")).document
        assert document is not None and not reader.awaits_vectors(document)
    house.work()
    assert vectors(house) == {house.engine.model_id: 301}


def test_a_damaged_vector_is_made_anew_when_its_store_is_looked_through(house: House) -> None:
    house.write("note", "text")
    house.work()
    house.applying.applier.db.execute("update vector set data = x'00'")
    house.applying.applier.db.execute("delete from setting where key = 'vector_model'")
    house.keeper = house.new_keeper()
    house.work()
    assert house.applying.applier.db.execute("select length(data) from vector").get == 4 * 64


def test_while_somebody_writes_as_fast_as_it_goes_few_vectors_are_made(house: House) -> None:
    house.work()
    for number in range(50):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    told = commits(house, 100, 2 * BUSY_PER_S)
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: TRICKLE}, "some, after the wait"
    for _ in range(5):
        assert not house.keeper.step(), "it waits for the next commit or the end of its pause"
    assert vectors(house) == {house.engine.model_id: TRICKLE}
    commits(house, told, 2 * BUSY_PER_S, HOLD_S)
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: 2 * TRICKLE}
    house.later(PACE_S)
    house.work()
    assert vectors(house) == {house.engine.model_id: 50}, "the writing is over, of which no notice tells"


def test_long_texts_take_no_more_of_the_processor_from_who_writes_than_short_ones(house: House) -> None:
    house.work()
    embed_batch, told = house.engine.embed_batch, [100]

    def time_passes(seconds: float = PACE_S) -> None:
        told.append(commits(house, told[-1], 2 * BUSY_PER_S, seconds))

    def slow(texts: Sequence[str], *, urgent: bool = False) -> Batch:
        time_passes()
        return embed_batch(texts, urgent=urgent)

    house.engine.embed_batch = slow  # type: ignore[method-assign]
    for number in range(50):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    time_passes(2 * PACE_S)
    house.keeper.step()
    for _ in range(RESTS - 1):
        time_passes()
        assert not house.keeper.step()
    assert vectors(house) == {house.engine.model_id: TRICKLE}
    time_passes()
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: 2 * TRICKLE}


def test_who_writes_now_and_then_is_waited_for_by_nobody(house: House) -> None:
    house.work()
    told = commits(house, 100, BUSY_PER_S / 2)
    for number in range(50):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    commits(house, told, BUSY_PER_S / 2)
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: 50}


def test_how_fast_somebody_writes_is_not_averaged_with_the_silence_before(house: House) -> None:
    house.work()
    told = commits(house, 100, BUSY_PER_S / 2)
    house.later(3600.0)
    for number in range(50):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    commits(house, told, 2 * BUSY_PER_S)
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: TRICKLE}


def test_who_begins_to_write_as_fast_as_it_goes_is_noticed_before_the_pace_has_been_measured(house: House) -> None:
    house.work()
    told = commits(house, 100, BUSY_PER_S / 2)
    house.later(3600.0)
    for number in range(50):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    commits(house, told, 10 * BUSY_PER_S, PACE_S / 5)
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: TRICKLE}


def test_a_batch_under_way_ends_when_somebody_begins_to_write(house: House) -> None:
    house.work()
    for number in range(3 * PIECE):
        house.write(f"n{number}", f"note number {number}")
    house.index_words()
    told = commits(house, 100, BUSY_PER_S / 2)
    embed_batch = house.engine.embed_batch

    def meanwhile(texts: Sequence[str], *, urgent: bool = False) -> Batch:
        commits(house, told, 10 * BUSY_PER_S)
        return embed_batch(texts, urgent=urgent)

    house.engine.embed_batch = meanwhile  # type: ignore[method-assign]
    house.keeper.step()
    assert vectors(house) == {house.engine.model_id: PIECE}


def commits(house: House, newest: int, per_s: float, seconds: float = 2 * PACE_S) -> int:
    """Tell the keeper of changes at this pace, as the writer's notices do. Return the newest."""
    for _ in range(10):
        newest += round(per_s * seconds / 10)
        house.keeper.wake(newest)
        house.later(seconds / 10)
    return newest


def test_progress_and_the_time_to_searchable_are_reported(house: House) -> None:
    said: list[dict[str, Any]] = []
    house.keeper = Housekeeper(
        house.store, house.engine, lambda: house.monotonic, lambda: house.wall, report=said.append
    )
    for number in range(5):
        house.write(f"n{number}", f"note number {number}")
    house.work()
    assert said[-1]["embedded"] == said[-1]["last_burst"] == 5 and said[-1]["searchable_after_s"] == 0.0


def vectors(house: House) -> dict[str, int]:
    rows: Any = house.applying.applier.db.execute("select model, count(*) from vector group by model").fetchall()
    return dict(rows)


def test_an_idle_keeper_commits_nothing(house: House) -> None:
    house.work()
    house.applying.submitted.clear()
    for _ in range(5):
        house.work()
    assert house.applying.submitted == []


def test_damage_is_in_the_log_once_however_often_it_is_met(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps: Iterator[str | StoreFailed] = iter(
        ["its bytes", StoreFailed("disk I/O error"), "its bytes", "its pages", "its bytes"]
    )

    def step() -> bool:
        if (met := next(steps, None)) is None:
            house.keeper.stop()
            return False
        house.keeper.wake()
        raise met if isinstance(met, StoreFailed) else database.damaged(met, "/memory/keeper")

    monkeypatch.setattr(house.keeper, "step", step)
    house.keeper.run()
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == ["/memory/keeper: its bytes", "disk I/O error", "/memory/keeper: its pages"]


def test_all_that_has_expired_or_been_too_long_in_the_trash_goes_at_one_look(house: House) -> None:
    for number in range(REAPED + 1):
        node = house.write(f"brief{number}", "gone soon")
        house.store.submit(ALICE, "set_ttl", node=node, expires=house.wall + 1)
        house.write(f"old{number}", "put away")
    house.wall += 3600 * 10**9  # what was just made goes at once
    for number in range(REAPED + 1):
        house.store.submit(ALICE, "unlink", parent=MEMORY, name=f"old{number}".encode(), trash=True)
    house.wall += 366 * 86400 * 10**9
    house.later(PAST_S)
    house.keeper.step()
    with house.store.connection() as (db, _):
        assert db.execute("select name from node where parent is not null and kind = 1").fetchall() == []


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


def test_an_unlinked_file_that_is_known_to_be_open_nowhere_is_freed_at_the_second_look(house: House) -> None:
    orphaned(house)
    house.keeper = house.new_keeper(lambda nodes: [])
    house.work()
    assert house.store.orphans()
    house.later(LOOK_S + 0.1)
    house.work()
    assert not house.store.orphans()


def test_of_a_file_that_is_gone_for_good_no_lock_file_is_left(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    stays = house.write("stays", "text")
    gone = orphaned(house)
    table = LockTable(folder, lambda: False)
    for node in (stays, gone):
        table.set_range(node, 1, fcntl.F_RDLCK, 0, 0, wait=False, alone=True)
        table.set_whole(node, 1, fcntl.LOCK_EX)
    table.close()
    house.keeper = house.new_keeper(lambda nodes: [], partial(locks.forget_files, folder))
    house.work()
    assert len(list(folder.iterdir())) == 6
    house.later(LOOK_S + 0.1)
    house.work()
    assert {path.stem for path in folder.iterdir()} == {f"{stays:016x}"}


def test_who_opened_it_between_two_looks_keeps_it(house: House) -> None:
    node = orphaned(house)
    looks: list[list[int]] = [[], [node], [], []]
    house.keeper = house.new_keeper(lambda nodes: looks.pop(0))
    for left in (3, 2, 1):
        house.work()
        assert len(looks) == left and house.store.orphans()
        house.later(LOOK_S + 0.1)
    house.work()
    assert not house.store.orphans()


@pytest.mark.parametrize(("known", "kept_s"), [(True, 10 * ORPHAN_S), (False, ORPHAN_S - 2 * LOOK_S)])
def test_what_is_open_somewhere_is_kept_and_what_is_not_known_is_waited_for(
    house: House, known: bool, kept_s: float
) -> None:
    node = orphaned(house)
    house.keeper = house.new_keeper(lambda nodes: [node] if known else None)
    for _ in range(int(kept_s / LOOK_S)):
        house.work()
        house.later(LOOK_S + 0.1)
    assert house.store.orphans()


def test_a_late_answer_does_not_bring_two_looks_together(house: House) -> None:
    orphaned(house)

    def answer(nodes: list[int]) -> list[int]:
        house.later(LOOK_S - 1)
        return []

    house.keeper = house.new_keeper(answer)
    house.work()
    house.later(2)
    house.work()
    assert house.store.orphans()
    house.later(LOOK_S)
    house.work()
    assert not house.store.orphans()


def test_many_unlinked_files_are_freed_in_several_transactions(house: House) -> None:
    for number in range(2 * REAPED + 1):
        house.write(f"n{number}", "text")
        house.store.submit(ALICE, "unlink", parent=MEMORY, name=b"n%d" % number)
    house.keeper = house.new_keeper(lambda nodes: [])
    house.work()
    house.later(LOOK_S + 0.1)
    before = house.applying.submitted.count("reap_orphans")
    house.work()
    assert not house.store.orphans() and house.applying.submitted.count("reap_orphans") == before + 3


def test_a_large_unlinked_file_is_freed_in_several_transactions(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rest at the next look, also after a kill."""
    monkeypatch.setattr(upkeep, "FREED", 4)
    monkeypatch.setattr(housekeeping, "ROUNDS", 3)
    house.write("large", "x" * (20 * BLOCK))
    house.store.submit(ALICE, "unlink", parent=MEMORY, name=b"large")
    assert house.store.submit(OPERATOR, "reap_all_orphans") == {"reaped": 0, "more": True}
    blocks = "select count(*) from block"
    left = house.rows(blocks)
    for _ in range(2):
        house.keeper = house.new_keeper(lambda nodes: [])
        house.work()
        house.later(LOOK_S + 0.1)
        house.work()
        left += house.rows(blocks)
    assert left == [(16,), (4,), (0,)] and not house.store.orphans()


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
    keeper = Housekeeper(house.store, None)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    time.sleep(0.05)
    keeper.stop()
    thread.join(300)
    assert not thread.is_alive()


def test_mail_that_is_over_goes_every_few_minutes(house: House) -> None:
    limits = {"priority": "low", "body_limit": 9, "unread_limit": 99}
    for who in (ALICE, Principal("bob")):
        house.store.submit(who, "enroll")
    sent = [
        house.store.submit(ALICE, "tell", recipient="bob", body=body, expires=until, **limits)["id"]
        for body, until in (("brief", house.wall + 1), ("read", None), ("unread", None))
    ]
    house.store.submit(Principal("bob"), "mark_read", messages=[sent[1]])
    house.work()
    assert "trim_mail" not in house.applying.submitted
    house.wall += 31 * 24 * 3600 * 10**9
    house.later(301)
    house.work()
    with house.store.reading(Principal("bob")) as reader:
        assert [message.body for message in reader.mail.messages()] == ["unread"]
    assert house.applying.submitted.count("trim_mail") == 1


def test_the_audit_is_chained_and_anchored(house: House, tmp_path: Path) -> None:
    chainer = Chainer(house.store, tmp_path / "anchors", 60, lambda: house.wall)
    house.keeper = Housekeeper(house.store, None, lambda: house.monotonic, lambda: house.wall, chainer=chainer)
    house.write("note", "text")
    with pytest.raises(PermissionError):
        house.store.submit(ALICE, "settle_refusals")
    house.work()
    with house.store.reading(OPERATOR) as reader:
        assert reader.audit.tip().seq == reader.audit.bounds()[1] > 0
    assert len(anchors.read(tmp_path / "anchors")) == 1
    for _ in range(3):
        house.later(31)
        house.wall += 31 * 10**9
        house.write("note", "again")
        house.work()
    assert len(anchors.read(tmp_path / "anchors")) == 2, "a minute apart"
    with house.store.reading(OPERATOR) as reader:
        assert [act.op for act in reader.audit.acts()].count("refused") == 1
    verdict, altered, forged = verify(house.store, OPERATOR, anchors.read(tmp_path / "anchors"))
    assert (verdict.bad, altered, forged, verdict.unchained) == (None, (), (), 0)


def test_a_purge_that_cannot_be_finished_keeps_nothing_from_being_chained(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chainer, applying = Chainer(house.store, tmp_path / "anchors", 60, lambda: house.wall), house.applying.submit

    def submit(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        if command == "wipe":
            raise Busy("somebody reads the store as it was before")
        return applying(who, command, arguments)

    monkeypatch.setattr(house.applying, "submit", submit)
    keeper = Housekeeper(house.store, None, lambda: house.monotonic, lambda: house.wall, chainer=chainer)
    house.store.submit(ALICE, "purge", nodes=[house.write("note", "text")], documents=[])
    with pytest.raises(Busy):
        keeper.step()
    with house.store.reading(OPERATOR) as reader:
        assert reader.audit.tip().seq == reader.audit.bounds()[1] > 0
    assert "sum_contents" in house.applying.submitted


def test_a_chain_that_grows_while_it_is_verified_is_no_alarm(house: House, tmp_path: Path) -> None:
    chainer = Chainer(house.store, tmp_path / "anchors", 60, lambda: house.wall)
    house.write("note", "text")
    chainer.step()
    reading = house.store.reading
    looks = 0

    def meanwhile(who: Principal) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:  # between the beginning of the walk and its batches
            house.write("note", "more")
            house.wall += 61 * 10**9
            chainer.step()
        return reading(who)

    house.store.reading = meanwhile  # type: ignore[method-assign]
    assert verify(house.store, OPERATOR, ()).verdict.bad is None and looks > 3
