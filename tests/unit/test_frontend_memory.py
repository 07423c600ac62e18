"""What the Linux front end remembers between requests: replies, and whose pages the kernel has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import handover as kept
from avmfs.errors import NotFound
from avmfs.fuse import protocol as p
from avmfs.fuse.entry_cache import CACHED_S, MOST_RESTS_S, RESTS_S, EntryCache
from avmfs.fuse.handover import Handover
from avmfs.fuse.inodes import Inodes, is_real
from avmfs.fuse.page_cache import PageCache
from avmfs.store.commands.upkeep import FIXED
from avmfs.store.notify import kernel_filter
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.vfs.address import Real
from avmfs.vfs.attributes import Caller
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Tree
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as world:
        yield world


def test_no_place_has_the_number_of_a_directory_that_every_tree_has() -> None:
    assert all(is_real(node) for node, *_ in FIXED)


def _size(entry: bytes) -> int:
    found: int = p.ATTR.unpack_from(entry, p.ENTRY_OUT.size)[1]
    return found


def _tree(world: World, agent: str = "alice") -> tuple[Tree, EntryCache, Real]:
    tree = Tree(world.agent(agent).memory, uid=os.getuid(), gid=os.getgid())
    world.store.keep = lambda kept, origin: bytes(8)  # no writer to repeat anything to
    numbers = Inodes(tree, Handover(tree, kept.make()))
    where, _ = tree.lookup(tree.node(1), b"memory")
    assert isinstance(where, Real)
    return tree, EntryCache(tree, numbers, KernelFilter(kernel_filter.create())), where


def _create(tree: Tree, where: Real, name: bytes) -> tuple[int, FileHandle]:
    found, handle = tree.create(where, name, 0o644, os.O_WRONLY, Caller(os.getuid(), os.getgid()))
    assert isinstance(found, Real) and isinstance(handle, FileHandle)
    return found.node.id, handle


def test_a_lookup_during_a_commit_tells_the_size_before_or_after_but_never_neither(world: World) -> None:
    """The row is read before the commit, the edits are looked at after it: neither has the bytes."""
    tree, replies, where = _tree(world)
    node, handle = _create(tree, where, b"f")
    handle.write(0, b"12345")
    ask, committed = tree.memory.store.cached_child, []

    def ask_and_be_overtaken(*arguments: Any) -> Any:
        found = ask(*arguments)
        if not committed:
            committed.append(True)
            handle.flush()
        return found

    tree.memory.store.cached_child = ask_and_be_overtaken  # type: ignore[assignment, method-assign]
    assert _size(replies.found(where.node.id, b"f")) == 5
    assert replies.known(node) is None or _size(replies.known(node) or b"") == 5


def test_an_entry_is_remembered_until_something_concerns_it(world: World) -> None:
    world.agent("bob")  # a new agent brings a new scope: then all is asked anew
    tree, replies, where = _tree(world)
    node, handle = _create(tree, where, b"f")
    assert replies.known(node) is None
    entry = replies.found(where.node.id, b"f")
    assert replies.known(node) == entry
    world.agent("bob").put("/memory/g", "of no concern")
    assert replies.known(node) == entry
    handle.write(0, b"uncommitted")
    assert replies.known(node) is None
    assert _size(replies.found(where.node.id, b"f")) == 11
    handle.flush()
    assert _size(replies.found(where.node.id, b"f")) == 11
    assert replies.known(node) is not None
    world.agent("bob").put("/memory/f", "by bob")
    assert replies.known(node) is None
    replies.switch(True)
    cached = replies.found(where.node.id, b"f")
    assert p.ENTRY_OUT.unpack_from(cached)[2] > 0
    replies.switch(False)
    assert replies.known(node) is None


def test_what_is_remembered_of_one_name_is_not_told_of_another(world: World) -> None:
    tree, replies, where = _tree(world)
    node, _ = _create(tree, where, b"f")

    def told(name: bytes) -> int:
        """The node of a name, 0 for none."""
        request = bytes(p.IN_HEADER.size) + name + b"\0"
        reply = replies.lookup(1, where.node.id, memoryview(request), len(request))
        assert reply is not None
        absent = p.OUT_HEADER.unpack_from(reply)[1]
        return 0 if absent else int(p.ENTRY_OUT.unpack_from(reply, p.OUT_HEADER.size)[0])

    for _ in range(2):  # from the store, from memory
        assert (told(b"f"), told(b"g")) == (node, 0)
    tree.rename(where, b"f", where, b"g")
    for _ in range(2):
        assert (told(b"f"), told(b"g")) == (0, node)
    assert replies.known(node) is not None


def test_attributes_that_come_with_a_name_are_not_for_keeping(world: World) -> None:
    """The kernel may have forgotten the node, and a notice about it would be lost while the reply is under way."""
    world.agent("bob")
    tree, replies, where = _tree(world)
    replies.switch(True)
    node, _ = _create(tree, where, b"f")
    request = bytes(p.IN_HEADER.size) + b"f\0"

    def kept() -> int:
        reply = replies.lookup(1, where.node.id, memoryview(request), len(request))
        assert reply is not None
        return int(p.ENTRY_OUT.unpack_from(reply, p.OUT_HEADER.size)[3])

    for _ in range(2):  # from the store, from memory
        assert kept() == 0
        asked = replies.getattr(1, node, memoryview(b""), 0)
        assert asked is not None and p.ATTR_OUT.unpack_from(asked, p.OUT_HEADER.size)[0] > 0


@pytest.mark.parametrize("kept", [True, False])
def test_an_open_drops_what_its_lookup_told_and_is_true_no_longer(world: World, kept: bool) -> None:
    """The notice found no node to tell: the reply to the lookup was under way."""
    bob = world.agent("bob")
    tree, replies, where = _tree(world)
    replies.switch(kept)
    node, _ = _create(tree, where, b"f")
    request = bytes(p.IN_HEADER.size) + b"f\0"

    def look() -> None:
        assert replies.lookup(1, where.node.id, memoryview(request), len(request)) is not None

    look()
    assert not replies.late(node)
    look()
    bob.put("/memory/f", "other bytes")
    assert replies.late(node) and not replies.late(node), "the second open is not that lookup's"
    look()
    bob.put("/memory/g", "of another")
    assert not replies.late(node)
    replies.found(where.node.id, b"f")
    bob.put("/memory/f", "others still")
    assert replies.late(node)


def test_attributes_that_changed_before_the_writer_knew_of_the_node_are_not_for_keeping(world: World) -> None:
    """Nobody will end them: the writer has looked, and has found that the kernel does not have the node."""
    bob = world.agent("bob")
    bob.put("/memory/f", "1")
    tree, replies, where = _tree(world)
    replies.switch(True)
    request = bytes(p.IN_HEADER.size) + b"f\0"
    ask, overtaken = tree.memory.store.cached_child, [False]

    def ask_and_be_overtaken(*arguments: Any) -> Any:
        found = ask(*arguments)
        if not overtaken[0]:
            overtaken[0] = True
            bob.put("/memory/f", "longer")
        return found

    def told() -> tuple[int, bool, int]:
        """The node, whether its attributes may be kept at all, and its size."""
        reply = replies.lookup(1, where.node.id, memoryview(request), len(request))
        assert reply is not None
        node, _, _, kept, _, kept_ns = p.ENTRY_OUT.unpack_from(reply, p.OUT_HEADER.size)
        return node, bool(kept or kept_ns), _size(reply[p.OUT_HEADER.size :])

    tree.memory.store.cached_child = ask_and_be_overtaken  # type: ignore[assignment, method-assign]
    node, kept, size = told()
    assert (kept, size) == (False, 1)
    assert told() == (node, True, 6)


def test_a_name_that_has_just_changed_is_not_left_to_the_kernel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ending it, when it changes again, would end all that the kernel has."""
    now = [100.0]
    monkeypatch.setattr("avmfs.fuse.entry_cache.monotonic", lambda: now[0])
    world.agent("bob")
    _, replies, where = _tree(world)
    replies.switch(True)
    replies.known(1)  # it has looked before
    table = replies.will_be_cached.__self__  # type: ignore[attr-defined]

    def told(name: bytes) -> tuple[bool, bool]:
        """May the kernel keep the name? Is it noted?"""
        request = bytes(p.IN_HEADER.size) + name + b"\0"
        reply = replies.lookup(1, where.node.id, memoryview(request), len(request))
        assert reply is not None
        absent = p.OUT_HEADER.unpack_from(reply)[1]
        answers = [0 if absent else p.ENTRY_OUT.unpack_from(reply, p.OUT_HEADER.size)[2]]
        with contextlib.suppress(NotFound):
            answers.append(p.ENTRY_OUT.unpack_from(replies.found(where.node.id, name))[2])
        assert len({bool(valid) for valid in answers}) == 1
        return answers[0] > 0, table.has(where.node.id, name)

    assert told(b"f") == (True, True)
    table.clear()
    world.agent("bob").put("/memory/f", "new")
    world.agent("bob").put("/memory/g", "new")
    for _ in range(2):  # from the store, from memory
        assert [told(name) for name in (b"f", b"g", b"h")] == [(False, False), (False, False), (True, True)]
    now[0] += RESTS_S - 0.1
    assert told(b"f") == (False, False)
    here = where.node.id
    world.agent("bob").memory.submit("rename", parent=here, name=b"g", new_parent=here, new_name=b"k")
    now[0] += 0.2
    for _ in range(2):
        assert [told(name) for name in (b"f", b"g")] == [(True, True), (False, False)]
    now[0] += RESTS_S
    assert told(b"g") == (True, True), "its absence has rested"

    for rests_s in (2 * RESTS_S, 4 * RESTS_S):  # a name that changes after it has rested rests longer
        assert told(b"f") == (True, True)
        world.agent("bob").put("/memory/new", "newer")
        world.agent("bob").memory.submit("rename", parent=here, name=b"new", new_parent=here, new_name=b"f")
        assert told(b"f") == (False, True)  # noted before; the notice that ends it clears the table
        now[0] += rests_s - 0.1
        assert told(b"f")[0] is False
        now[0] += 0.2


def test_nothing_is_left_to_the_kernel_for_longer_than_a_file_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes without a commit: nothing would end it."""
    now = [100.0]
    monkeypatch.setattr("avmfs.fuse.entry_cache.monotonic", lambda: now[0])
    bob = world.agent("bob")
    tree, replies, where = _tree(world)
    replies.switch(True)
    for name, lives_s in ((b"f", 100), (b"g", None)):
        expires = None if lives_s is None else world.clock() + lives_s * 10**9
        bob.put(f"/memory/{name.decode()}", "x")
        found, _ = tree.lookup(where, name)
        assert isinstance(found, Real)
        node = found.node.id
        bob.memory.submit("set_ttl", node=node, expires=expires)
        replies.known(1)  # it hears of that
        now[0] += MOST_RESTS_S
        for left in (100, 20, 1):
            most = CACHED_S if expires is None else min(CACHED_S, left)
            world.clock.at += 0 if expires is None else expires - left * 10**9 - world.clock()
            for _ in range(2):  # from the store, from memory
                told = _told(tree, replies, where, name, node)
                assert max(map(max, told.values())) == told["lookup"][0] == most, (name, left, told)
                assert set(told) >= {"lookup", "found", "made", "attributes"}
        world.clock.at += 10**9
        request = bytes(p.IN_HEADER.size) + name + b"\0"
        reply = replies.lookup(1, where.node.id, memoryview(request), len(request))
        gone = reply is not None and not p.ENTRY_OUT.unpack_from(reply, p.OUT_HEADER.size)[0]
        assert gone == (expires is not None)
        assert (replies.known(node) is None) == (expires is not None)


def _told(tree: Tree, replies: EntryCache, where: Real, name: bytes, node: int) -> dict[str, list[int]]:
    """By request, the seconds for which the kernel may keep a name and attributes. Part of one is left out: it is but
    what spares stat(2) a second question."""
    request = bytes(p.IN_HEADER.size) + name + b"\0"
    looked = replies.lookup(1, where.node.id, memoryview(request), len(request))
    assert looked is not None
    entries = {
        "lookup": looked[p.OUT_HEADER.size :],
        "found": replies.found(where.node.id, name),
        "made": replies.made(tree.node(node)),
    }
    told = {request: list(p.ENTRY_OUT.unpack_from(entry)[2:4]) for request, entry in entries.items()}
    told["attributes"] = [p.ATTR_OUT.unpack_from(replies.attributes(node))[0]]
    if (asked := replies.getattr(1, node, memoryview(b""), 0)) is not None:
        told["getattr"] = [p.ATTR_OUT.unpack_from(asked, p.OUT_HEADER.size)[0]]
    return told


def test_uncommitted_edits_that_are_lost_are_not_remembered(world: World) -> None:
    tree, replies, where = _tree(world)
    node, handle = _create(tree, where, b"f")
    handle.write(0, b"12345")
    assert _size(replies.found(where.node.id, b"f")) == 5
    handle.file.edits.clear()
    assert replies.known(node) is None
    assert _size(replies.found(where.node.id, b"f")) == 0


@pytest.mark.parametrize("forgets", ["as the store does", "without a writer"])
def test_pages_are_dropped_of_bytes_that_changed_with_size_and_time_as_they_were(world: World, forgets: str) -> None:
    bob = Tree(world.agent("bob").memory, uid=os.getuid(), gid=os.getgid())
    tree, replies, where = _tree(world)
    node, handle = _create(tree, where, b"f")
    handle.write(0, b"first")
    handle.flush()
    dropped: list[int] = []
    tree.opened.gave_up = dropped.append
    bob.mkdir(where, b"d", 0o755, Caller(os.getuid(), os.getgid()))
    replies.attributes(node)
    assert replies.known(node) is not None
    other, mtime = bob.open_file(bob.peek(node), os.O_WRONLY), bob.peek(node).mtime
    world.clock.pass_(1)
    other.write(0, b"other")
    bob.set_attributes(bob.node(node), other, mtime=mtime)
    if forgets == "as the store does":
        bob.rename(where, b"d", where, b"e")
    else:
        replies.switch(True)
    replies.attributes(node)
    assert dropped == [node]


def test_pages_stay_only_for_the_version_that_they_are_known_to_be_of() -> None:
    pages = PageCache()
    assert not pages.keep(7, b"v1")
    pages.dropped(7, 1, b"v1")
    assert not pages.keep(7, b"v1"), "the kernel may not have dropped the old ones yet"
    pages.heard(7, 2)
    assert not pages.keep(7, b"v1"), "another handle says nothing of it"
    pages.heard(7, 1)
    assert pages.keep(7, b"v1") and not pages.keep(7, b"v2") and not pages.keep(8, b"v1")
    pages.dropped(7, 3, b"v2")
    assert not pages.keep(7, b"v1")
    pages.wrote(7)
    pages.heard(7, 3)
    assert not pages.keep(7, b"v2"), "written between the open and its first request"
    pages.dropped(7, 4, b"v2")
    pages.heard(7, 4)
    pages.wrote(7)
    assert not pages.keep(7, b"v2")
