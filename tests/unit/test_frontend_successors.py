"""What the Linux front end leaves to a successor while it commits: in which order, and what counts no more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from avmfs import handover as kept
from avmfs.errors import Invalid, NoSpace, NotFound, OverQuota, Stale
from avmfs.fuse import protocol as p
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.file_ops import FileOps
from avmfs.fuse.handles import Handles
from avmfs.fuse.handover import Handover
from avmfs.fuse.inodes import Inodes, is_past
from avmfs.fuse.namespace_ops import NamespaceOps
from avmfs.fuse.page_cache import PageCache
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Request
from avmfs.memory import Memory
from avmfs.store.client.inflight import COMMIT, REQUEST
from avmfs.store.notify import kernel_filter
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.store.schema.tables import MEMORY
from avmfs.vfs.address import ASK
from avmfs.vfs.attributes import Caller
from avmfs.vfs.open_file import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, FileHandle
from avmfs.vfs.tree import Tree
from avmfs.vfs.virtual_handles import WRITE_LIMIT, MailHandle, QuestionHandle, ask
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as world:
        world.store.keep = lambda kept, origin: bytes(8)  # no writer to repeat anything to
        yield world


def made(world: World, name: bytes, flags: int = os.O_WRONLY) -> tuple[Tree, int, Any]:
    tree = Tree(world.agent("alice").memory, uid=os.getuid(), gid=os.getgid())
    where, _ = tree.lookup(tree.node(1), b"memory")
    found, handle = tree.create(where, name, 0o644, flags, Caller(os.getuid(), os.getgid()))
    return tree, found.node.id, handle  # type: ignore[union-attr]


def test_an_append_is_answered_before_its_work_ends(world: World) -> None:
    """Else who is killed in between leaves an append that was done, a request that was not answered, and nothing that
    says that they are the same."""
    tree, node, handle = made(world, b"log", os.O_WRONLY | os.O_APPEND)
    continuity = Handover(tree, kept.make())
    steps: list[str] = []

    @contextlib.contextmanager
    def once(kind: int, key: int) -> Iterator[None]:
        assert (kind, key) == (REQUEST, 7)
        steps.append("begins")
        yield
        steps.append("ends")

    def told(reply: bytes) -> None:
        assert p.OUT_HEADER.unpack_from(reply) == (len(reply), 0, 7)
        steps.append("answered")

    world.store.once = once
    quick: dict[int, Callable[..., bytes | None]] = {}
    session: Any = SimpleNamespace(answers=quick.update, serves=lambda handlers, **how: None, send=told)
    numbers, handles = Inodes(tree, continuity), Handles(continuity)
    locks: Any = None
    FileOps(
        session,
        tree,
        numbers,
        EntryCache(tree, numbers, KernelFilter(kernel_filter.create())),
        handles,
        PageCache(),
        locks,
    )
    fh = handles.keep(handle, 1)
    body = p.WRITE_IN.pack(fh, 0, 5, 0, 0, os.O_WRONLY | os.O_APPEND, 0) + b"line\n"
    request = bytes(p.IN_HEADER.size) + body
    assert quick[Op.WRITE](7, node, memoryview(request), len(request)) == b""
    assert steps == ["begins", "answered", "ends"]
    assert handle.read(0, 10) == b"line\n"


def test_a_commit_that_was_done_and_noted_as_such_is_not_taken_for_the_next_one(world: World) -> None:
    """A process that was killed between the two left the number that it had used: of use to nobody."""
    memory = kept.make()
    tree, _, done = made(world, b"done")
    Handover(tree, memory)
    done.write(0, b"committed")
    done.flush()
    found, waiting = tree.create(
        tree.lookup(tree.node(1), b"memory")[0], b"waiting", 0o644, os.O_WRONLY, Caller(os.getuid(), os.getgid())
    )
    waiting.write(0, b"not yet")
    settled: list[tuple[int, set[int]]] = []
    world.store.settle = lambda kind, still: settled.append((kind, still))
    Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file))
    assert settled == [(COMMIT, {found.node.id})]  # type: ignore[union-attr]


def test_a_successor_commits_what_was_zeroed_and_lengthened_over_what_is_there_then(world: World) -> None:
    memory = kept.make()
    tree, node, first = made(world, b"f", os.O_RDWR)
    first.write(0, b"0123456789")
    first.flush()
    first.release()
    Handover(tree, memory)
    handle = tree.open_file(tree.peek(node), os.O_RDWR)
    handle.allocate(ZERO_RANGE | KEEP_SIZE, 2, 3)
    handle.allocate(PUNCH_HOLE | KEEP_SIZE, 7, 100)
    handle.truncate(12)
    assert handle.read(0, 20) == b"01\0\0\x0056\0\0\0\0\0"
    tree.memory.submit("append", node=node, handle=None, data=b"another mount's")
    after = Tree(tree.memory, uid=0, gid=0)
    Handover(after, kept.reopen(memory.tables, memory.log_file))
    after.opened.commit(node)
    assert after.open_known(node).read(0, 30) == b"01\0\0\x0056\0\0\0another mount's"


def test_a_file_that_was_open_when_it_was_removed_has_no_link_whatever_the_clocks_say_and_whoever_serves(
    world: World,
) -> None:
    memory = kept.make()
    tree, node, handle = made(world, b"service.lock", os.O_RDWR)
    handle.write(0, b"1234")
    handle.flush()
    handle.release()
    world.clock.at += 120 * 10**9
    handles, unlink = Handles(Handover(tree, memory)), tree.memory.submit
    handles.keep(tree.open_file(tree.peek(node), os.O_RDWR), 1)
    world.clock.at -= 1  # whoever removes it has looked at the clock before
    assert unlink("unlink", parent=MEMORY, name=b"service.lock", trash=True)["kept"]
    assert tree.attributes_of(node).nlink == 0
    after = Tree(tree.memory, uid=0, gid=0)
    Handover(after, kept.reopen(memory.tables, memory.log_file))
    assert after.attributes_of(node).nlink == 0
    # Who finds it in the trash has what has a name; a successor too.
    memory, there = kept.make(), Tree(tree.memory, uid=0, gid=0)
    Handles(Handover(there, memory)).keep(there.open_known(node), 1)
    assert there.attributes_of(node).nlink == 1
    after = Tree(tree.memory, uid=0, gid=0)
    Handover(after, kept.reopen(memory.tables, memory.log_file))
    assert after.attributes_of(node).nlink == 1
    # Until it is taken out, and removed again.
    unlink("put_back", node=node)
    assert after.attributes_of(node).nlink == 1
    unlink("unlink", parent=MEMORY, name=b"service.lock", trash=True)
    assert after.attributes_of(node).nlink == 0


@pytest.mark.parametrize("last", ["flush", "release"])
def test_a_truncation_by_who_opened_the_file_for_reading_is_committed_by_a_successor(world: World, last: str) -> None:
    memory = kept.make()
    tree, node, first = made(world, b"f", os.O_RDWR)
    first.write(0, b"old")
    first.flush()
    first.release()
    handles = Handles(Handover(tree, memory))
    reader = tree.open_known(node)
    numbers = [
        handles.keep(each, unique)
        for unique, each in enumerate((tree.open_file(tree.peek(node), os.O_RDONLY | os.O_TRUNC), reader), 1)
    ]
    continuity = Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file))
    successor, looks = (continuity.handles[number] for number in numbers)
    assert isinstance(successor, FileHandle) and isinstance(looks, FileHandle)
    assert successor.pending and not looks.pending, "who only reads has no hand in it"
    getattr(successor, last)()
    with tree.memory.reading() as committed:
        assert committed.node(node).size == 0


@pytest.mark.parametrize("killed_before", [None, "drop"])
def test_a_question_is_kept_or_gone_whenever_the_process_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch, killed_before: str | None
) -> None:
    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    memory = kept.make()
    tree, _, _ = made(world, b"f")
    continuity = Handover(tree, memory)
    for number in range(3):
        ask(tree.memory, f"q{number}", f"what about {number}?")
        continuity.asked()
    del tree.memory.questions["q1"]
    with monkeypatch.context() as patched:
        if killed_before:
            patched.setattr(kept.Log, killed_before, killed)
        with contextlib.suppress(Killed):
            continuity.asked()
    for _ in range(2):  # of a successor, of a successor's
        successor = Tree(world.agent("alice").memory, uid=0, gid=0)
        successor.memory.questions.clear()
        Handover(successor, kept.reopen(memory.tables, memory.log_file))
        assert successor.memory.questions == {"q0": "what about 0?", "q2": "what about 2?"}


@pytest.mark.parametrize("killed_in", [None, "asked", "progress"])
def test_a_question_file_that_stays_open_asks_once_for_what_was_written(
    world: World, monkeypatch: pytest.MonkeyPatch, killed_in: str | None
) -> None:
    """A shell that has it open closes a copy of the handle with each command. ``killed_in``: before that was noted."""

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    memory = kept.make()
    tree = Tree(world.agent("alice").memory, uid=0, gid=0)
    continuity = Handover(tree, memory)
    handles, questions = Handles(continuity), tree.memory.questions
    handle: Any = QuestionHandle(tree.memory, b"n", False, True, None, None)
    fh = handles.keep(handle, 1)

    def closes(handles: Handles, handle: Any) -> None:
        handle.flush()
        handles.went_on(fh, handle)

    handle.write(0, b"first\n")
    handles.went_on(fh, handle, 2, b"first\n")
    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        if killed_in is not None:
            patched.setattr(Handover, killed_in, killed)
        closes(handles, handle)
    if killed_in is not None:  # the kernel sends the FLUSH again
        questions.clear()
        handles = Handles(Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file)))
        handle = handles[fh]
        closes(handles, handle)
    assert questions == {"n": "first"}
    ask(tree.memory, "n", "another's")
    closes(handles, handle)
    assert questions == {"n": "another's"}
    del questions["n"]
    for _ in range(2):
        handles = Handles(Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file)))
        questions.clear()
        closes(handles, handles[fh])
        assert not questions
    handles[fh].write(0, b"and more\n")
    handles[fh].flush()
    assert questions == {"n": "first\nand more"}


def test_a_mailbox_takes_any_number_of_messages_and_leaves_a_successor_what_is_not_sent(world: World) -> None:
    memory = kept.make()
    world.agent("bob")
    tree = Tree(world.agent("alice").memory, uid=0, gid=0)
    continuity = Handover(tree, memory)
    handles = Handles(continuity)
    handle = MailHandle(tree.memory, b"bob")
    fh, sizes = handles.keep(handle, 1), set[int]()
    for number in range(2 * WRITE_LIMIT // 50_000):
        text = b"%02d" % number * 25_000
        handle.write(0, text)
        handles.went_on(fh, handle, 2 * number, text)
        handle.flush()
        handles.went_on(fh, handle)
        sizes.add(memory.log.add(b"k"))
        memory.log.drop(b"k")
    assert len(sizes) == 1
    handle.write(0, b"not yet")
    handles.went_on(fh, handle, 1000, b"not yet")
    successor = Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file)).handles[fh]
    assert isinstance(successor, MailHandle) and successor.text() == "not yet"


def test_views_beyond_those_that_are_noted_are_served_and_a_successor_is_asked_for_them_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kept.AREAS, "nodes", 4)
    memory = kept.make()
    tree, _, _ = made(world, b"f")
    numbers, where = Inodes(tree, Handover(tree, memory)), tree.lookup(tree.node(1), b"memory")[0]
    views = [tree.lookup(where, b"f:" + name)[0] for name in (b"meta", b"tags", b"links", b"ttl", b"info", b"path")]
    given = [numbers.number(each) for each in views]
    assert len(set(given)) == 6 and [numbers.number(each) for each in views] == given
    assert [numbers.address(each) for each in given] == views and not any(map(is_past, given))
    after = Tree(tree.memory, uid=0, gid=0)
    successor = Inodes(after, Handover(after, kept.reopen(memory.tables, memory.log_file)))
    assert [successor.address(each) for each in given[:4]] == views[:4]
    for lost in given[4:]:
        with pytest.raises(Stale):
            successor.address(lost)
    assert successor.number(views[4]) not in given
    numbers.forget(Request(Op.FORGET, 1, given[5], 0, 0, p.FORGET_IN.pack(2)))
    with pytest.raises(Stale):
        numbers.address(given[5])


@pytest.mark.parametrize("last", [b"\n", b"hi again\n"], ids=["refused", "sent"])
@pytest.mark.parametrize("op", [Op.FLUSH, Op.FSYNC])
def test_what_a_mailbox_has_refused_or_sent_is_no_part_of_the_next_message(world: World, op: Op, last: bytes) -> None:
    memory, bob = kept.make(), world.agent("bob").memory
    tree = Tree(world.agent("alice").memory, uid=0, gid=0)
    continuity = Handover(tree, memory)
    handles, numbers = Handles(continuity), Inodes(tree, continuity)
    handlers: dict[int, Callable[[Request], bytes]] = {}
    session: Any = SimpleNamespace(
        answers=lambda quick: None, serves=lambda served, **how: handlers.update(served), may_block=lambda: True
    )
    locks: Any = None
    replies = EntryCache(tree, numbers, KernelFilter(kernel_filter.create()))
    FileOps(session, tree, numbers, replies, handles, PageCache(), locks)
    fh = handles.keep(MailHandle(tree.memory, b"bob"), 1)

    def message(unique: int, text: bytes) -> None:
        body = p.WRITE_IN.pack(fh, 0, len(text), 0, 0, 0, 0) + text
        handlers[Op.WRITE](Request(Op.WRITE, unique, 0, 0, 0, body))
        end = p.FLUSH_IN.pack(fh, 0, 0, 0) if op is Op.FLUSH else p.FSYNC_IN.pack(fh, 0, 0)
        handlers[op](Request(op, unique + 1, 0, 0, 0, end))

    with pytest.raises(Invalid):
        message(2, b"\n")
    message(4, b"hi\n")
    assert [each.body for each in bob.inbox()] == ["hi"]
    with pytest.raises(Invalid) if last == b"\n" else contextlib.nullcontext():
        message(6, last)
    successor = Handover(Tree(tree.memory, uid=0, gid=0), kept.reopen(memory.tables, memory.log_file)).handles[fh]
    assert isinstance(successor, MailHandle) and successor.text() == ""


def test_what_could_not_be_sent_is_no_part_of_the_next_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = world.agent("alice").memory, world.agent("bob").memory
    handle = MailHandle(alice, b"bob")
    handle.write(0, b"one\n")

    def full(*message: Any, **more: Any) -> None:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(NoSpace):
        patched.setattr(Memory, "tell", full)
        handle.flush()
    handle.write(0, b"two\n")
    handle.flush()
    assert [each.body for each in bob.inbox()] == ["two"]


def test_the_removal_of_a_question_that_is_sent_again_has_been_done(world: World) -> None:
    tree, _, _ = made(world, b"f")
    continuity = Handover(tree, kept.make())
    numbers = Inodes(tree, continuity)
    handlers: dict[int, Callable[[Request], bytes]] = {}
    session: Any = SimpleNamespace(
        answers=lambda quick: None, serves=lambda served, **how: handlers.update(served), send=None
    )
    replies = EntryCache(tree, numbers, KernelFilter(kernel_filter.create()))
    NamespaceOps(session, tree, numbers, replies, Handles(continuity), PageCache())
    place = numbers.number(tree.lookup(tree.node(1), ASK)[0])
    ask(tree.memory, "q", "what?")

    def remove(unique: int, where: int, name: bytes) -> None:
        handlers[Op.UNLINK](Request(Op.UNLINK, unique, where, 0, 0, name + b"\0"))

    remove(7, place, b"q")
    remove(7 | p.RESENT, place, b"q")
    with pytest.raises(NotFound):
        remove(8, place, b"q")
    with pytest.raises(NotFound):
        remove(9 | p.RESENT, numbers.number(tree.lookup(tree.node(1), b"memory")[0]), b"q")


@pytest.mark.parametrize("killed_before", [None, "set", "drop"])
def test_what_was_given_up_stays_so_and_who_was_not_told_yet_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, killed_before: str | None
) -> None:
    """``killed_before``: the step that the process did not come to."""
    memory = kept.make()
    tree, node, first = made(world, b"f", os.O_RDWR)
    first.write(0, b"old")
    first.flush()
    first.release()
    handles = Handles(Handover(tree, memory))
    handle, reader = tree.open_file(tree.peek(node), os.O_RDWR), tree.open_known(node)
    numbers = [handles.keep(each, unique) for unique, each in enumerate((handle, reader), 1)]
    handle.write(0, b"refused")

    def no_room(self: Memory, command: str, **arguments: Any) -> Any:
        raise OverQuota("no room")

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        if killed_before is not None:
            patched.setattr(kept.Rows if killed_before == "set" else kept.Log, killed_before, killed)
        with pytest.raises(OverQuota if killed_before is None else Killed):
            handle.fsync()
    after = Tree(tree.memory, uid=0, gid=0)
    continuity = Handover(after, kept.reopen(memory.tables, memory.log_file))
    successor, looks = (continuity.handles[number] for number in numbers)
    assert isinstance(successor, FileHandle) and isinstance(looks, FileHandle)
    assert successor.read(0, 10) == looks.read(0, 10) == b"old" and after.attributes_of(node).size == 3
    looks.flush()
    with pytest.raises(OverQuota):
        successor.write(0, b"more")
    with pytest.raises(OverQuota):
        successor.flush()
    successor.write(0, b"new")
    successor.flush()
    assert looks.read(0, 10) == b"new"
