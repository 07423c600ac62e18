"""What becomes of the edits of an open file that the store refuses: see ``avmfs.vfs.open_file``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.errors import OverQuota, TooBig
from avmfs.memory import Memory
from avmfs.rpc import methods
from avmfs.store.commands import writing
from avmfs.store.queries.nodes import Reader
from avmfs.vfs import open_file
from avmfs.vfs.address import Real
from avmfs.vfs.attributes import Caller
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Tree
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as world:
        yield world


@pytest.fixture
def tree(world: World) -> Tree:
    return Tree(world.agent("alice").memory, uid=os.getuid(), gid=os.getgid())


class Asked:
    """The commands that a mount submits from now on, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commands: list[str] = []
        submit = Memory.submit

        def noted(memory: Memory, command: str, **arguments: Any) -> Any:
            self._commands.append(command)
            return submit(memory, command, **arguments)

        monkeypatch.setattr(Memory, "submit", noted)

    def now(self) -> list[str]:
        """Those since the last time."""
        found, self._commands[:] = list(self._commands), []
        return found


def _opened(tree: Tree, *flags: int) -> list[FileHandle]:
    """A new file of five bytes, closed and durable, and handles on it."""
    where, _ = tree.lookup(tree.node(1), b"memory")
    assert isinstance(where, Real)
    found, handle = tree.create(where, b"f", 0o644, os.O_WRONLY, Caller(os.getuid(), os.getgid()))
    assert isinstance(found, Real) and isinstance(handle, FileHandle)
    handle.write(0, b"first")
    handle.flush()
    handle.release()
    return [tree.open_file(tree.peek(found.node.id), each) for each in flags]


def test_a_close_after_appends_waits_until_they_are_durable(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append itself promises nothing of the disk: ``append`` is relaxed, ``sync`` is not."""
    handle, other, reader = _opened(tree, os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_RDONLY)
    asked = Asked(monkeypatch)
    for data in (b"one", b"two"):
        handle.write(0, data, append=True)
    assert asked.now() == ["append", "append"] and handle.pending
    reader.flush()
    assert asked.now() == [] and not reader.pending, "who only read has nothing to wait for"
    handle.flush()
    assert asked.now() == ["sync"] and not handle.pending
    handle.flush()
    assert asked.now() == [], "of a duplicate, or once more by the release"
    handle.write(0, b"three", append=True)
    other.flush()
    assert asked.now() == ["append", "sync"], "of another descriptor of the same file"
    handle.write(0, b"four", append=True)
    handle.release()
    assert asked.now() == ["append", "sync"]


def test_what_follows_an_append_makes_it_durable_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    asked = Asked(monkeypatch)
    handle.write(0, b"one", append=True, sync=True)
    assert asked.now() == ["append", "sync"] and not handle.pending
    handle.write(0, b"two", append=True)
    handle.write(0, b"!")
    handle.flush()
    assert asked.now() == ["append", "commit"], "a commit waits for the disk, which then has what came before"
    handle.truncate(tree.peek(handle.file.node).size)
    handle.flush()
    assert asked.now() == ["commit"], "times are kept as bytes are"


def test_a_touch_that_is_told_late_sets_no_time_back(world: World, tree: Tree) -> None:
    """A kernel that has heard of the newer bytes would take the old time for the old bytes."""
    (handle,) = _opened(tree, os.O_RDWR)
    node, first = handle.file.node, tree.peek(handle.file.node).mtime
    handle.truncate(5)
    world.clock.pass_(1)
    other = Tree(world.agent("bob").memory, uid=os.getuid(), gid=os.getgid())
    newer = other.open_file(other.peek(node), os.O_RDWR)
    newer.write(0, b"other")
    newer.flush()
    committed = tree.peek(node).mtime
    handle.flush()
    assert first < committed <= tree.peek(node).mtime and handle.read(0, 9) == b"other"
    world.clock.pass_(1)
    handle.truncate(5)
    handle.flush()
    assert tree.peek(node).mtime == world.clock() and tree.peek(node).size == 5


def test_what_was_told_of_a_file_with_edits_is_told_anew_once_they_are_committed(world: World, tree: Tree) -> None:
    """Where the clock has been set back, say, no file gets the time that was told."""
    (handle,) = _opened(tree, os.O_RDWR)
    dropped: list[int] = []
    tree.opened.changed = dropped.append
    world.clock.pass_(-1)
    handle.write(0, b"one")
    handle.flush()
    assert not dropped, "nobody has looked"
    handle.write(0, b"two")
    told = tree.attributes_of(handle.file.node)
    handle.flush()
    assert tree.attributes_of(handle.file.node).mtime != told.mtime and dropped == [handle.file.node]


def test_where_the_clock_goes_back_it_is_still_known_what_was_appended_before_an_edit(world: World, tree: Tree) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    world.clock.pass_(1)
    handle.write(0, b"OLD", append=True)
    world.clock.pass_(-0.5)
    handle.truncate(0)
    handle.write(0, b"new")
    shown = tree.peek(handle.file.node)
    handle.flush()
    assert handle.read(0, 99) == b"new", "not with what was appended before"
    handle.truncate(2)
    bob = world.agent("bob").memory
    bob.submit("append", node=handle.file.node, handle=None, data=b"ONE")
    bob.submit("append", node=handle.file.node, handle=None, data=b"TWO")
    handle.flush()
    assert handle.read(0, 99) == b"neONETWO", "nor without what was appended after"
    assert tree.peek(handle.file.node).ctime > shown.ctime
    handle.truncate(2)
    handle.flush()
    assert handle.read(0, 99) == b"ne"


def test_an_append_stays_where_the_file_is_touched_after_it(world: World, tree: Tree) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    handle.truncate(2)
    world.clock.pass_(1)
    bob = world.agent("bob").memory
    bob.submit("append", node=handle.file.node, handle=None, data=b"BOB")
    world.clock.pass_(1)
    handle.truncate(2)
    handle.allocate(0, 0, 1)
    handle.flush()
    assert handle.read(0, 99) == b"fiBOB" and tree.peek(handle.file.node).mtime == world.clock()


def test_more_than_can_be_moved_behind_edits_is_told_and_stays(
    world: World, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    handle.truncate(0)
    for data in (b"one", b"two"):
        world.clock.pass_(1)
        world.agent("bob").memory.submit("append", node=handle.file.node, handle=None, data=data)
    with monkeypatch.context() as patched:
        patched.setattr(writing, "_MOVED_MAX", 5)
        with pytest.raises(TooBig, match="appended meanwhile"):
            handle.flush()
    assert handle.read(0, 99) == b"firstonetwo"
    world.clock.pass_(1)
    handle.truncate(5)
    handle.flush()
    assert handle.read(0, 99) == b"first", "what had been appended before it was made is cut off"


def no_room(self: Memory, command: str, **arguments: Any) -> Any:
    raise OverQuota("no room")


def _refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> FileHandle:
    """A handle with edits that its close has refused; by now there is room."""
    (handle,) = _opened(tree, os.O_RDWR)
    handle.write(0, b"too much")
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        with pytest.raises(OverQuota, match="no room"):
            handle.flush()
    return handle


def test_what_close_has_refused_is_shown_and_tried_no_more(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writer has perhaps unlinked it: the bytes would be charged to the agent, where nobody can free them."""
    handle = _refused(tree, monkeypatch)
    asked = Asked(monkeypatch)
    assert (handle.read(0, 10), handle.file.now().size) == (b"first", 5)
    handle.flush()
    handle.release()
    assert asked.now() == [] and tree.peek(handle.file.node).size == 5
    assert caplog.text == "", "who wrote it was told"


class Full:
    """What keeps edits for a successor, with no room for a word more."""

    def edited(self, *_: Any) -> bool:
        return False

    def committed(self, *_: Any) -> None:
        raise OverQuota("too much is kept")

    gave_up = committed


def test_what_cannot_be_noted_as_committed_or_given_up_is_committed_no_second_time(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    handle.file.keep = Full()
    asked = Asked(monkeypatch)
    handle.write(0, b"FIRST")
    with pytest.raises(OverQuota):
        handle.flush()
    assert asked.now() == ["commit"] and not handle.file.edits
    tree.memory.submit("append", node=handle.file.node, handle=None, data=b" and another mount's")
    handle.flush()
    handle.release()
    assert "commit" not in asked.now() and handle.read(0, 99) == b"FIRST and another mount's"


def test_what_is_written_after_the_refusal_is_committed_alone(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = _refused(tree, monkeypatch)
    handle.write(5, b"!")
    handle.release()
    assert tree.open_known(handle.file.node).read(0, 10) == b"first!"


def test_pages_that_nobody_can_be_told_of_are_lost_aloud(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle, other, reader = _opened(tree, os.O_RDWR, os.O_RDWR, os.O_RDONLY)
    dropped: list[int] = []
    tree.opened.gave_up = dropped.append
    handle.write(0, b"!", mapped=True)
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        handle.release()
    assert "are lost: no room" in caplog.text and dropped == [handle.file.node]
    assert reader.read(0, 10) == b"first"
    reader.flush()
    with pytest.raises(OverQuota):
        other.flush()  # it may have been its pages: the kernel sends them through any handle


def test_each_process_is_told_once_and_writes_nothing_before(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, other, idle = _opened(tree, os.O_RDWR, os.O_RDWR, os.O_RDWR)
    reader = tree.open_known(handle.file.node)
    asker = [os.getpid()]
    tree.opened.asker = lambda: asker[0]
    handle.write(0, b"one")
    other.write(2, b"two")
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        with pytest.raises(OverQuota):
            reader.fsync()  # it has written nothing, and is told that what there is was refused
    idle.write(9, b"?")
    for process in (os.getpid(), 1):
        asker[0] = process
        for each in (handle, other):
            for append in (False, True):
                with pytest.raises(OverQuota):
                    each.write(0, b"x", append=append)
            with pytest.raises(OverQuota):
                each.truncate(0)
            with pytest.raises(OverQuota):
                each.flush()
            each.flush()
            each.fsync()
    assert reader.read(0, 10) == b"first\0\0\0\0?"
    handle.write(0, b"F")
    handle.flush()
    assert reader.read(0, 10) == b"First\0\0\0\0?"


def test_of_what_is_refused_that_stays_which_was_committed_on_the_way(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, reader = _opened(tree, os.O_RDWR | os.O_TRUNC, os.O_RDONLY)
    monkeypatch.setattr(open_file, "SPILL_BYTES", 8)
    handle.write(0, b"12345")
    handle.write(5, b"6789")
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        with pytest.raises(OverQuota):
            handle.flush()
    assert reader.read(0, 99) == b"12345"


def test_a_write_that_cannot_commit_what_came_before_takes_nothing_and_gives_nothing_up(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (handle,) = _opened(tree, os.O_RDWR)
    handle.write(0, bytes(open_file.SPILL_BYTES - 1))
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        for append in (False, True):
            with pytest.raises(OverQuota):
                handle.write(0, b"more", append=append)
    handle.flush()
    assert tree.open_known(handle.file.node).read(0, 10) == bytes(10)


def test_what_comes_behind_a_piece_that_is_read_is_none_that_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a door, which had been told of the end of the file: another writer is as quick as that."""
    alice, read = world.agent("alice"), Reader.read

    def and_more_comes(reader: Reader, node: int, offset: int, size: int) -> bytes:
        data = read(reader, node, offset, size)
        alice.put("/shared/note.md", "and some more")
        return data

    alice.put("/shared/note.md", "some")
    monkeypatch.setattr(Reader, "read", and_more_comes)
    found = methods.call(alice.memory, "read", {"path": "/shared/note.md"})
    assert (found["data"], found["more"]) == (b"some", False)
    found = methods.call(alice.memory, "read", {"path": "/shared/note.md", "limit": 4})
    assert (found["data"], found["more"]) == (b"and ", True)
