"""Listings through the Linux front end: what a reader of a directory gets, from the front end or from the kernel's own
cache as the front end has let it keep it, is what the store has."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from avmfs import handover as kept
from avmfs.fuse import directory_ops
from avmfs.fuse import protocol as p
from avmfs.fuse.directory_ops import DirectoryOps
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.handover import Handover
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.listing_cache import CachedListing
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Request
from avmfs.handover import HandoverState
from avmfs.store.notify import kernel_filter
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.store.schema.tables import MEMORY
from avmfs.vfs.attributes import Caller
from avmfs.vfs.listings import Entry
from avmfs.vfs.tree import Tree
from tests.unit.views_fixtures import World, opened

FOLDER = 0o40000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as world:
        yield world


class Reader:
    """Stands for the kernel: asks, and keeps a listing where it is told that it may."""

    def __init__(self, world: World, left: HandoverState | None = None) -> None:
        self.tree = Tree(world.agent("alice").memory, uid=os.getuid(), gid=os.getgid())
        world.store.keep = lambda kept, origin: bytes(8)  # no writer to repeat to
        continuity = Handover(self.tree, kept.make() if left is None else left)
        numbers = Inodes(self.tree, continuity)
        replies = EntryCache(self.tree, numbers, KernelFilter(kernel_filter.create()))
        replies.switch(True)
        self.quick: dict[int, Callable[..., bytes | None]] = {}
        self.handlers: dict[int, Callable[[Request], bytes]] = {}
        DirectoryOps(self, self.tree, numbers, replies, continuity)  # type: ignore[arg-type]
        self.unique = 0
        self.kept: list[str] | None = None
        self.from_cache = self.read = 0

    def answers(self, quick: Mapping[int, Callable[..., bytes | None]]) -> None:
        self.quick.update(quick)

    def serves(self, handlers: Mapping[int, Any], **how: bool) -> None:
        self.handlers.update(handlers)

    def may_block(self) -> bool:
        return True

    def keeps(self, request: Request) -> bool:
        return True

    def ask(self, op: Op, body: bytes) -> bytes:
        self.unique += 2
        request = bytes(p.IN_HEADER.size) + body
        answer = self.quick.get(op)
        reply = None if answer is None else answer(self.unique, MEMORY, memoryview(request), len(request))
        if reply is not None:
            return reply[p.OUT_HEADER.size :]
        return self.handlers[op](Request(op, self.unique, MEMORY, 0, 0, body))

    def open(self) -> tuple[int, int]:
        number, flags, _ = p.OPEN_OUT.unpack(self.ask(Op.OPENDIR, bytes(p.OPEN_IN.size)))
        if not flags & p.FOPEN_KEEP_CACHE:
            self.kept = None
        return number, flags

    def entries(self, number: int, room: int) -> list[str]:
        return [name for name, _ in self.rest(number, room)]

    def rest(self, number: int, room: int, offset: int = 0) -> list[tuple[str, int]]:
        """From an offset on: the names, each with the offset behind it."""
        found: list[tuple[str, int]] = []
        while some := self.some(number, room, offset):
            found += some
            offset = some[-1][1]
        return found

    def some(self, number: int, room: int, offset: int) -> list[tuple[str, int]]:
        """What one reply tells."""
        found: list[tuple[str, int]] = []
        data = self.ask(Op.READDIR, p.READ_IN.pack(number, offset, room, 0, 0, 0, 0))
        at = 0
        while at < len(data):
            _, offset, length, _ = p.DIRENT.unpack_from(data, at)
            at += p.DIRENT.size
            found.append((data[at : at + length].decode(), offset))
            at += length + -length % 8
        return found

    def close(self, number: int) -> None:
        self.ask(Op.RELEASEDIR, p.RELEASE_IN.pack(number, 0, 0, 0))

    def names(self, room: int) -> list[str]:
        number, flags = self.open()
        if self.kept is not None:
            self.from_cache += 1
            found = self.kept
        else:
            self.read += 1
            found = self.entries(number, room)
            self.kept = found if flags & p.FOPEN_CACHE_DIR else None
        self.close(number)
        assert found[:2] == [".", ".."]
        return found[2:]


def test_nothing_is_cached_beside_a_listing_that_a_predecessor_had_opened(world: World) -> None:
    """Its reader may still be putting into the kernel's cache what it was told before."""
    left = kept.make()
    number, flags = Reader(world, left).open()
    assert flags & p.FOPEN_CACHE_DIR
    reader = Reader(world, left)
    for _ in range(2):
        other, flags = reader.open()
        assert not flags & p.FOPEN_CACHE_DIR
        assert len(reader.entries(other, 4096)) == 4
        reader.close(other)
    assert len(reader.entries(number, 4096)) == 4
    assert not reader.open()[1] & p.FOPEN_CACHE_DIR
    reader.close(number)
    assert reader.open()[1] & p.FOPEN_CACHE_DIR


@pytest.mark.parametrize("page", [1024, 8])
def test_a_listing_is_what_the_store_has_after_any_changes(
    world: World, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_ops, "PAGE", page)
    reader, chance = Reader(world), random.Random(page)
    other = Tree(world.agent("bob").memory, uid=os.getuid(), gid=os.getgid())
    where, me = other.node(MEMORY), Caller(os.getuid(), os.getgid())
    here = {name.decode() for name, _, _ in other.names(where)}
    for _ in range(250):
        for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
            name, new = f"n{chance.randrange(14):02}", f"n{chance.randrange(14):02}"
            if name not in here:
                other.create(where, name.encode(), 0o644, os.O_WRONLY, me)[1].release()
                here.add(name)
            elif chance.random() < 0.5:
                other.unlink(where, name.encode())
                here.remove(name)
            else:
                other.rename(where, name.encode(), where, new.encode())
                here -= {name}
                here.add(new)
        assert reader.names(chance.choice((64, 160, 4096))) == sorted(here)
    assert reader.from_cache and reader.read


def test_a_listing_held_open_is_begun_again_as_the_directory_is_and_spoils_no_cache(world: World) -> None:
    reader, bob = Reader(world), world.agent("bob")
    bob.put("/memory/a", "1")
    held, _ = reader.open()
    before = reader.entries(held, 4096)
    bob.put("/memory/b", "1")
    assert "b" in reader.names(4096) and reader.names(4096) == sorted(["b", *before[2:]])
    assert reader.entries(held, 4096) == [".", "..", *sorted(["b", *before[2:]])]
    number, flags = reader.open()
    assert not flags, "what the kernel was given may be a mixture"
    reader.close(number)
    reader.close(held)
    reader.names(4096)
    assert reader.open()[1] & p.FOPEN_KEEP_CACHE


def test_a_listing_that_is_read_again_and_again_leaves_its_last_reading_alone(world: World) -> None:
    """What a successor is left grew until the descriptor was closed."""
    left = kept.make()
    reader = Reader(world, left)
    number, _ = reader.open()
    sizes = set[int]()
    for _ in range(3):
        names = reader.entries(number, 40)
        sizes.add(left.log.add(b"k"))
        left.log.drop(b"k")
    assert len(sizes) == 1
    assert Reader(world, left).entries(number, 4096) == names


@pytest.mark.parametrize("page", [1024, 8])
def test_a_successor_goes_on_from_inside_what_was_told_last(
    world: World, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with a small buffer has taken but half of it."""
    monkeypatch.setattr(directory_ops, "PAGE", page)
    bob = world.agent("bob")
    for number in range(40):
        bob.put(f"/memory/f{number:02}", "x")
    left = kept.make()
    number, _ = Reader(world, left).open()
    whole = Reader(world, left).rest(number, 200)
    assert len(whole) == len({name for name, _ in whole}) > 42
    for taken in range(1, len(whole) + 1):
        name, offset = whole[taken - 1]
        for room in (200, 4096):
            there = [name for name, _ in Reader(world, left).rest(number, room, offset)]
            assert there == [name for name, _ in whole[taken:]], (name, room)


@pytest.mark.parametrize("process", ["same", "successor"])
def test_who_goes_back_in_a_large_directory_misses_nothing_that_was_there(
    world: World, process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_ops, "PAGE", 8)
    bob = world.agent("bob")
    for number in range(40):
        bob.put(f"/memory/f{number:02}", "x")
    left = kept.make()
    reader = Reader(world, left)
    number, _ = reader.open()
    told, places = [], [(0, 0)]
    while len(told) < 35:
        told += reader.some(number, 130, places[-1][1])
        places.append((len(told), told[-1][1]))
    gone = {"f01", "f02", "f09", "f17", "f18"}
    for name in gone:
        bob.memory.submit("unlink", parent=MEMORY, name=name.encode())
    for name in ("e", "f03x", "f10w", "f10x", "f10y", "f11x", "f19x"):
        bob.put(f"/memory/{name}", "x")
    if process == "successor":
        reader = Reader(world, left)
    for taken, offset in [*reversed(places[1:]), *places[1:]]:
        there = [name for name, _ in reader.rest(number, 130, offset)]
        assert len(there) == len(set(there))
        assert {name for name, _ in told[taken:]} - gone <= set(there)
        assert not {name for name, _ in told[:taken]} & set(there)


def test_a_listing_packs_as_one_entry_after_the_other() -> None:
    chance = random.Random(5)

    def some(count: int) -> list[Entry]:
        names = {b"x" * chance.randrange(1, 30) + b"%d" % chance.randrange(10**6) for _ in range(count)}
        return [(name, chance.randrange(1, 1 << 63), chance.choice((FOLDER, 0o100000))) for name in sorted(names)]

    for start in (2, 1026):
        entries = some(60)
        snapshot = CachedListing(entries)
        for _ in range(5):
            for room in (24, 100, 700, 1 << 16):
                place = 0
                while True:
                    piece, count = snapshot.packed(start, place, room)
                    alone = [p.dirent(i, start + n + 1, kind, name) for n, (name, i, kind) in enumerate(entries)]
                    fitting = 0
                    while place + fitting < len(alone) and len(b"".join(alone[place : place + fitting + 1])) <= room:
                        fitting += 1
                    assert (piece, count) == (b"".join(alone[place : place + fitting]), fitting)
                    if not count:
                        break
                    place += count
            new, gone = some(3), chance.sample(entries, 3)
            found: dict[bytes, Entry | None] = {name: None for name, _, _ in gone}
            found |= {name: (name, ino, kind) for name, ino, kind in new}
            snapshot = snapshot.with_names(found)
            entries = sorted({name: (name, i, k) for name, i, k in [*(set(entries) - set(gone)), *new]}.values())
            assert snapshot.entries == entries
