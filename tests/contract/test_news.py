"""What the writer tells of its commits in shared memory: complete, in order, and enough to ask the database nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from avmfs import wire
from avmfs.access import Policy
from avmfs.errors import Stale
from avmfs.node import Node
from avmfs.store.cache.follow import FollowedCache
from avmfs.store.files.wal_header import HEADER
from avmfs.store.notify import change_ring
from avmfs.store.notify.change_ring import ChangeRing, Follower, Part, Record
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.contract.store_world import ALICE, BOB, World

MANY = change_ring._MOST + 1


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, "attached")
    yield world
    world.close()


def follower(world: World) -> Follower:
    assert world.writer is not None
    made = Follower(world.writer.address)
    assert made.take() is None, "what was before it cannot be known"
    return made


def parts_of(record: Record) -> list[Part]:
    return list(record.concerning(-1, set(), set()))


def changed(records: Sequence[Record] | None) -> set[int]:
    assert records is not None, "some were missed"
    return {node[0] for record in records for part in parts_of(record) for node in part.unpacked()[1]}


def logged(records: Sequence[Record]) -> list[list[Any]]:
    return [row for record in records for part in parts_of(record) for row in part.unpacked()[0]]


def record(header: bytes, *nodes: list[Any]) -> Record:
    """That concerns everybody."""
    part = Part(change_ring._ALL, [], wire.pack([[], nodes]))
    (found,) = change_ring.records_in(change_ring.recorded(header.ljust(HEADER, b"\0"), 0, [part]))
    return found._replace(header=header)


def child(world: World, name: bytes, parent: int = MEMORY) -> Node:
    found = world.store.cached_child(ALICE, parent, name)
    assert isinstance(found, Node)
    return found


def test_after_a_commit_the_database_is_asked_nothing(attached: World, asked: list[object]) -> None:
    """Almost never: the writer indexes by itself, and who looks before it has told of that has to ask."""
    attached.write(ALICE, "/memory/f", b"1")
    node = child(attached, b"f").id
    attached.store.cached_node(ALICE, MEMORY)
    asked.clear()
    for turn in range(1, 41):
        attached.do(ALICE, "commit", node=node, handle=None, edits=[["t", 0], ["w", 0, bytes(turn)]])
        assert attached.store.cached_node(ALICE, node).size == turn
        assert attached.store.cached_node(ALICE, MEMORY).id == MEMORY
    assert len(asked) < 15


def test_names_that_were_asked_for_are_known_as_they_come_and_go(attached: World, asked: list[object]) -> None:
    attached.store.cached_node(ALICE, MEMORY)
    made = attached.do(ALICE, "mkdir", parent=MEMORY, name=b"d", mode=0o755)["node"]
    assert child(attached, b"d").id == made
    before = attached.store.cached_node(ALICE, made)
    names = [(b"f%d" % turn, b"g%d" % turn) for turn in range(20)]
    assert all(attached.store.cached_child(ALICE, made, name) is None for name, _ in names)
    asked.clear()
    for name, other in names:
        assert attached.store.cached_child(ALICE, made, name) is None
        file = attached.do(BOB, "create", parent=made, name=name, mode=0o644, exclusive=True)["node"]
        assert child(attached, name, made).id == file
        assert attached.store.cached_node(ALICE, made).mtime >= before.mtime
        attached.do(BOB, "rename", parent=made, name=name, new_parent=MEMORY, new_name=other)
        assert attached.store.cached_child(ALICE, made, name) is None
        assert child(attached, other).id == file
    assert len(asked) < 15


def test_a_directory_made_and_filled_at_once_is_known_to_be_filled(attached: World) -> None:
    attached.store.cached_node(ALICE, MEMORY)
    made = attached.do(BOB, "mkdir", parent=MEMORY, name=b"d", mode=0o755)["node"]
    file = attached.do(BOB, "create", parent=made, name=b"f", mode=0o644, exclusive=True)["node"]
    assert child(attached, b"f", made).id == file
    assert attached.store.cached_child(ALICE, made, b"other") is None


def test_what_happens_elsewhere_is_passed_over(attached: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is asked for: then all is as it should be, and it is followed from there on."""
    assert attached.writer is not None
    here, there = (attached.do(ALICE, "mkdir", parent=MEMORY, name=name, mode=0o755)["node"] for name in (b"h", b"t"))
    unpacked = []
    unpack = Part.unpacked

    def counted(self: Part) -> Any:
        unpacked.append(self)
        return unpack(self)

    monkeypatch.setattr(Part, "unpacked", counted)
    with contextlib.closing(attached.writer.attach(clock=attached.clock)) as other:
        assert other.cached_child(BOB, MEMORY, b"h") is not None
        assert other.cached_child(BOB, here, b"g") is None
        attached.drain()
        other.cached_node(BOB, here)
        before = other.cached_state()
        unpacked.clear()
        files = [
            attached.do(ALICE, "create", parent=there, name=name, mode=0o644, exclusive=True)["node"]
            for name in (b"a", b"b", b"c")
        ]
        attached.do(ALICE, "commit", node=files[0], handle=None, edits=[["w", 0, b"text"]])
        attached.do(ALICE, "rename", parent=there, name=b"a", new_parent=there, new_name=b"b")
        attached.do(ALICE, "unlink", parent=there, name=b"c")
        assert other.cached_node(BOB, here).id == here and not unpacked
        changes = other.cached_changes(before)
        assert changes is None or changes.nodes >= {*files, there}, "what was read of them before is of no use"
        deep = attached.do(ALICE, "mkdir", parent=there, name=b"d", mode=0o755)["node"]
        assert other.cached_node(BOB, here).id == here

        assert [getattr(other.cached_child(BOB, there, name), "id", None) for name in (b"a", b"b", b"c", b"d")] == [
            None,
            files[0],
            None,
            deep,
        ]
        assert other.cached_node(BOB, files[0]).size == 4
        assert other.cached_child(BOB, deep, b"x") is None
        made = attached.do(ALICE, "create", parent=deep, name=b"x", mode=0o644, exclusive=True)["node"]
        assert getattr(other.cached_child(BOB, deep, b"x"), "id", None) == made and unpacked


def test_every_commit_is_told_with_all_nodes_that_it_changed(attached: World) -> None:
    following = follower(attached)
    made = attached.do(ALICE, "create", parent=MEMORY, name=b"f", mode=0o644, exclusive=True)["node"]
    records = following.take()
    assert records is not None
    assert [(row[2], row[3]) for row in logged(records)] == [("create", made)]
    assert changed(records) == {made, MEMORY}, "its directory's times have changed"
    attached.do(ALICE, "unlink", parent=MEMORY, name=b"f")
    attached.drain()
    records = following.take()
    assert records is not None and [row[2] for row in logged(records)] == ["remove"]
    gone = [node for record in records for part in parts_of(record) for node in part.unpacked()[1] if node[0] == made]
    assert gone and all(len(node) == 1 or node[1] is None for node in gone)


def test_of_requests_committed_together_only_those_are_unpacked_that_concern_one() -> None:
    parts = [Part(2, [number, 100 + number], b"%d" % number) for number in range(5)]
    header = bytes(range(HEADER))
    told = (
        change_ring.recorded(header, 7, parts)
        + change_ring.recorded(header, 8, [])
        + change_ring.recorded(header, 9, parts[:1])
    )
    first, empty, last = change_ring.records_in(told)
    assert [(each.header, each.seq) for each in (first, empty, last)] == [(header, 7), (header, 8), (header, 9)]

    def found(of: Record, scope: int, *held: int) -> list[Part]:
        return list(of.concerning(scope, set(held), set()))

    assert found(first, 2, 55) == [] and found(empty, -1, 3) == [] and found(last, 2, 3) == []
    assert found(first, 2, 3, 101) == [parts[1], parts[3]]
    assert found(first, 1, 3) == parts, "they may be of a scope that is not known yet"
    assert found(last, 2, 100) == parts[:1]
    coming: set[int] = set()
    reached = []
    for part in first.concerning(2, {1}, coming):
        reached.append(part)
        coming.add(103)
    assert reached == [parts[1], parts[3]], "what comes with one counts for those after it"


def test_more_than_there_is_room_for_is_not_told() -> None:
    most = [Part(2, [], b"")] * change_ring._MOST_PARTS
    assert len(change_ring.recorded(bytes(HEADER), 1, most)) <= change_ring._MORE
    assert not change_ring.recorded(bytes(HEADER), 1, [*most, most[0]])
    assert not change_ring.recorded(bytes(HEADER), 1, [Part(2, range(change_ring._MOST_NUMBERS + 1), b"")])
    assert not change_ring.recorded(bytes(HEADER), 1, [Part(2, [], bytes(change_ring._LONGEST + 1))])


def test_who_was_away_for_long_asks_the_database(attached: World) -> None:
    following = follower(attached)
    for turn in range(6000):
        attached.do(ALICE, "set_attributes", node=MEMORY, mtime=turn)
        if turn % 20 == 0:
            assert MEMORY in changed(following.take())
        elif turn == 30:
            away = follower(attached)
    assert away.take() is None
    attached.do(ALICE, "set_attributes", node=MEMORY, mtime=0)
    assert MEMORY in changed(away.take()), "from now on it follows"


def test_a_large_commit_and_another_writer_are_not_followed(attached: World) -> None:
    attached.store.cached_node(ALICE, MEMORY)
    following = follower(attached)
    items = [[[b"memory", b"many", b"f%d" % i], b"text"] for i in range(MANY)]
    attached.do(ALICE, "write_many", items=items)
    assert following.take() is None
    many = child(attached, b"many").id
    assert len(attached.store.cached_children(ALICE, many, b"", 1000)[0]) == MANY
    attached.write(ALICE, "/memory/after", b"1")
    assert following.take()
    assert attached.writer is not None
    attached.writer.kill()
    attached.writer.start()
    attached.do(ALICE, "unlink", parent=many, name=b"f1")
    assert following.take() is None
    assert attached.store.cached_child(ALICE, many, b"f1") is None
    attached.do(BOB, "rename", parent=many, name=b"f2", new_parent=many, new_name=b"f1")
    assert following.take()
    assert child(attached, b"f1", many).name == b"f1"


def test_a_writer_that_leaves_takes_its_file_along_and_the_next_one_is_followed(attached: World) -> None:
    following = follower(attached)
    assert attached.writer is not None and change_ring.beside(attached.writer.address).exists()
    assert attached.writer.stop() == 0
    assert not change_ring.beside(attached.writer.address).exists()
    assert following.take() is None
    attached.writer.start()
    attached.write(ALICE, "/memory/f", b"1")
    assert following.take() is None
    attached.write(ALICE, "/memory/f", b"2")
    assert MEMORY not in changed(following.take())
    attached.do(ALICE, "set_attributes", node=MEMORY, mtime=0)
    assert MEMORY in changed(following.take())


def test_the_file_of_the_next_writer_is_followed_where_that_of_a_killed_one_was_removed(attached: World) -> None:
    following = follower(attached)
    assert attached.writer is not None
    change_ring.beside(attached.writer.address).unlink()
    attached.do(ALICE, "set_attributes", node=MEMORY, mtime=0)
    assert MEMORY in changed(following.take()), "who has it open needs no name"
    attached.writer.kill()
    attached.writer.start()
    attached.write(ALICE, "/memory/f", b"1")
    assert following.take() is None
    attached.do(ALICE, "set_attributes", node=MEMORY, mtime=1)
    following.take()
    attached.do(ALICE, "set_attributes", node=MEMORY, mtime=2)
    assert MEMORY in changed(following.take())


class _Told(Follower):
    """What a test tells."""

    def __init__(self) -> None:
        self.records: list[Record] | None = []

    def take(self) -> list[Record] | None:
        return self.records


def test_news_that_led_nowhere_are_made_up_for_by_the_database_alone(attached: World) -> None:
    told = _Told()
    kept = FollowedCache(told)
    made = attached.do(ALICE, "create", parent=MEMORY, name=b"f", mode=0o644, exclusive=True)["node"]
    told.records = [record(b"1")]
    assert not kept.told(b"1"), "nothing is known yet"
    with contextlib.closing(database.connect(attached.path, writable=False)) as db:
        kept.catch_up(b"1", db)
        told.records = [record(b"2")]
        assert kept.told(b"2") and kept.header == b"2"
        kept.add(kept.moment, attached.node(ALICE, "/memory/f"))
        attached.do(ALICE, "set_attributes", node=made, mode=0o600)
        told.records = [record(b"3")]  # which tells of it, but not of all
        assert not kept.told(b"4") and kept.header == b"2"
        told.records = [record(b"5")]
        assert not kept.told(b"5"), "the database could not be asked in between"
        kept.catch_up(b"5", db)
    assert kept.nodes[made].mode == 0o600
    told.records = [record(b"6", [made])]
    assert kept.told(b"6") and made not in kept.nodes
    told.records = None
    assert not kept.told(b"7")


def test_without_room_for_it_nothing_is_told_and_all_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "avm.db"
    store = open_direct(path, Policy.from_words([], "rw"), IndexRules())
    with contextlib.closing(store), contextlib.closing(database.connect(path, writable=True)) as db:
        address = tmp_path / "missing" / "writer.sock"
        made = ChangeRing(db, path, address, lambda: b"", list)
        assert "they will have to ask" in caplog.text
        made.gather()
        made.tell()
        assert Follower(address).take() is None


def test_a_rolled_back_command_is_not_told(attached: World) -> None:
    following = follower(attached)
    with pytest.raises(Stale):
        attached.do(ALICE, "commit", node=12345, handle=None, edits=[["w", 0, b"x"]])
    attached.write(ALICE, "/memory/f", b"1")
    records = following.take()
    assert records is not None
    assert {row[2] for row in logged(records) if row[1]} == {"create", "write"}
