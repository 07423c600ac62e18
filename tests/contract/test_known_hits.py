"""The contract of a store: what is remembered of passages between questions is what the store would say now."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from avmfs.access import Principal
from avmfs.node import Hit
from avmfs.store.index import hit_cache, passage_columns
from avmfs.store.index.passage_columns import PassageColumns
from avmfs.store.store import Store
from tests.contract.store_world import ALICE, BOB, World

FILES = tuple(f"/memory/{place}/{n}.md" for place in ("a", "b") for n in range(3))


def every(store: Store, who: Principal) -> list[Hit]:
    """All passages that ``who`` sees, as an answer shows them."""
    index = store.search_index(who)
    return index.hits(index.table().passages.tolist(), ())


def anew(store: Store, who: Principal) -> list[Hit]:
    """The same, of a store that remembers nothing."""
    store._catalogue.hits = hit_cache.HitCache()
    return every(store, who)


def both(world: World, who: Principal, remembers: Store) -> tuple[list[Hit], list[Hit]]:
    """``every`` and ``anew`` of one state: the writer itself takes in what waits, when it has nothing else to do."""
    while True:
        waits = world.rows("select document from lexical_queue")
        found = every(remembers, who), anew(world.store, who)
        if world.rows("select document from lexical_queue") == waits:
            return found


def paths_of(hits: list[Hit]) -> list[str]:
    return sorted(hit.path.decode() for hit in hits)


@pytest.fixture
def stocked(world: World) -> World:
    for number, path in enumerate(FILES):
        world.write(ALICE, path, b"note number %d of coffee" % number)
    world.write(ALICE, "/memory/private/alice/own.md", b"my own coffee")
    world.drain()
    assert len(every(world.store, ALICE)) == 7 and len(every(world.store, BOB)) == 6
    return world


def meta(world: World) -> None:
    world.do(ALICE, "merge_meta", node=world.node(ALICE, FILES[0]).id, user={}, importance=0.9)


CHANGES: dict[str, Callable[[World], object]] = {
    "edit": lambda world: world.write(BOB, FILES[0], b"another text about tea"),
    "edit in place": lambda world: world.edit(BOB, FILES[0], ["w", 0, b"NOTE"]),
    "rename": lambda world: world.rename(ALICE, FILES[0], "/memory/a/new.md"),
    "rename over": lambda world: world.rename(ALICE, FILES[0], FILES[4]),
    "exchange": lambda world: world.rename(ALICE, FILES[0], FILES[4], flags=2),
    "directory": lambda world: world.rename(ALICE, "/memory/a", "/memory/c"),
    "directories": lambda world: world.rename(ALICE, "/memory/a", "/memory/b", flags=2),
    "hidden": lambda world: world.rename(ALICE, FILES[0], "/memory/private/alice/0.md"),
    "shown": lambda world: world.rename(ALICE, "/memory/private/alice/own.md", "/memory/a/own.md"),
    "delete": lambda world: world.unlink(ALICE, FILES[0]),
    "tag": lambda world: world.tag(ALICE, FILES[0], "drink", "hot"),
    "meta": meta,
    "mode": lambda world: world.do(ALICE, "set_attributes", node=world.node(ALICE, FILES[0]).id, mode=0o400),
    "times": lambda world: world.do(ALICE, "set_attributes", node=world.node(ALICE, FILES[0]).id, mtime=10**18),
    "shared with nobody": lambda world: world.share(ALICE, FILES[0], "alice"),
    "backup": lambda world: (world.rename(ALICE, FILES[0], FILES[0] + "~"), world.create(ALICE, FILES[0])),
    "rules": lambda world: world.restart([]),
    "word index": lambda world: world.reindex(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("drained", [True, False])
def test_what_is_remembered_follows_each_change(stocked: World, change: str, drained: bool) -> None:
    CHANGES[change](stocked)
    if drained:
        stocked.drain()
    for who in (ALICE, BOB):
        known, fresh = both(stocked, who, stocked.store)
        assert known == fresh and len(known) >= 3


def test_a_change_that_shows(stocked: World) -> None:
    """That the others are compared with something: an answer without the changes would be another one."""
    before = every(stocked.store, BOB)
    for change in ("tag", "meta", "times", "edit", "exchange", "rename over", "directory"):
        CHANGES[change](stocked)
        stocked.drain()
        after = every(stocked.store, BOB)
        assert after != before, change
        before = after
    assert any(hit.path.startswith(b"/memory/c/") for hit in before)


def test_a_document_that_ended_by_replacing_another_leaves_the_columns(stocked: World) -> None:
    """Its row of the log names the other."""
    index = stocked.store.search_index(ALICE)
    assert len(index.table().passages) == 7
    stocked.rename(ALICE, FILES[0], FILES[4])
    kept = stocked.rows("select passage.id from passage join document on document.id = passage.document")
    assert sorted(index.table().passages.tolist()) == sorted(number for (number,) in kept)


def test_what_has_expired_is_no_longer_shown(stocked: World) -> None:
    until = stocked.clock() + 60 * 10**9
    stocked.do(ALICE, "set_ttl", node=stocked.node(ALICE, FILES[0]).id, expires=until)
    index = stocked.store.search_index(BOB)
    passages = index.table().passages.tolist()
    assert FILES[0] in paths_of(index.hits(passages, ()))
    before = stocked.newest_seq()
    stocked.clock.advance(100)
    assert FILES[0] not in paths_of(index.hits(passages, ())) and stocked.newest_seq() == before


def test_what_one_agent_has_asked_for_is_not_shown_to_another(stocked: World) -> None:
    own = [hit.passage for hit in every(stocked.store, ALICE) if hit.path.endswith(b"/own.md")]
    assert own and stocked.store.search_index(ALICE).hits(own, ())
    assert stocked.store.search_index(BOB).hits(own, ()) == []
    shared = [hit.passage for hit in every(stocked.store, BOB) if hit.path == FILES[0].encode()]
    stocked.share(ALICE, FILES[0], "alice")
    assert stocked.store.search_index(BOB).hits(shared, ()) == []


def test_an_older_snapshot_is_answered_from_itself(stocked: World) -> None:
    """And leaves nothing behind that a newer one would take for its own."""
    store = stocked.store
    passages = store.search_index(ALICE).table().passages.tolist()
    with store._opened(ALICE) as (db, reader):
        old = store._catalogue.hits.of(db, reader, passages)
        stocked.rename(BOB, FILES[0], "/memory/a/new.md")
        new = {hit.passage: hit for hit in store.search_index(ALICE).hits(passages, ())}
        assert store._catalogue.hits.of(db, reader, passages) == old != new
    assert {hit.passage: hit for hit in store.search_index(ALICE).hits(passages, ())} == new


def test_nothing_is_asked_again_while_nothing_changes(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: object) -> None:
        raise AssertionError("asked the database")

    stocked.tag(ALICE, FILES[1], "drink")  # of which only this file is read anew
    asked: list[list[int]] = []
    fetch = hit_cache._fetched
    monkeypatch.setattr(
        hit_cache,
        "_fetched",
        lambda db, reader, passages, places: (asked.append(list(passages)), fetch(db, reader, passages, places))[1],
    )
    hits = every(stocked.store, ALICE)
    assert [len(each) for each in asked] == [1]
    monkeypatch.setattr(hit_cache, "_fetched", fetched)
    assert every(stocked.store, ALICE) == hits and len(every(stocked.store, BOB)) == 6


def test_the_memory_is_bounded(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_cache, "KEPT", 4)
    monkeypatch.setattr(hit_cache, "_PLACES", 2)
    assert every(stocked.store, ALICE) == every(stocked.store, ALICE) == anew(stocked.store, ALICE)
    known = stocked.store._catalogue.hits
    assert len(known._hits) == 4 and len(known._places) <= 2


def test_the_tables_of_those_who_see_different_notes_are_bounded(
    stocked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_columns, "ROWS", 14)
    stocked.store._catalogue = PassageColumns()
    agents = [Principal(f"agent{number}") for number in range(5)]
    for who in agents:
        stocked.do(who, "enroll")
        stocked.write(who, f"/memory/private/{who.name}/own.md", b"my own coffee")
    stocked.drain()
    for who in (*agents, *agents):
        assert len(every(stocked.store, who)) == 7
    assert len(stocked.store._catalogue._views) == 2


def test_a_table_larger_than_all_that_is_kept_is_kept_alone(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_columns, "ROWS", 3)
    stocked.store._catalogue = PassageColumns()
    assert len(every(stocked.store, ALICE)) == 7
    table = stocked.store.search_index(ALICE).table()
    assert stocked.store.search_index(ALICE).table() is table


def test_many_changes_by_two_processes(stocked: World) -> None:
    """The store of one process follows what goes through another one's, whatever happens between two questions."""
    random_ = random.Random(4)
    if stocked.writer is None:
        pytest.skip("one process has the store to itself")
    other = stocked.writer.attach(clock=stocked.clock)
    try:
        for step in range(40):
            for _ in range(random_.randrange(1, 5)):
                name = random_.choice([p for p in FILES if stocked.exists(ALICE, p)] or [None])
                if name is None or random_.random() < 0.3:
                    name = random_.choice(FILES)
                    stocked.write(ALICE, name, b"words of step %d" % step)
                elif random_.random() < 0.4:
                    stocked.tag(ALICE, name, f"t{step}")
                elif random_.random() < 0.5:
                    stocked.rename(ALICE, name, random_.choice(FILES))
                else:
                    stocked.share(ALICE, name, *random_.choice([("alice",), ()]))
            if step % 3:
                stocked.drain()
            for who in (ALICE, BOB):
                known, fresh = both(stocked, who, other)
                assert known == fresh
    finally:
        other.close()
