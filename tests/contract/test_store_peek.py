"""What the store answers from memory is what it would answer from the tables, whatever has been committed since."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Principal
from avmfs.errors import AvmError, Stale
from avmfs.node import Kind
from avmfs.store.cache import nodes
from avmfs.store.queries import counts as counting
from avmfs.store.queries.connections import Connections
from avmfs.store.queries.counts import Counts
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import MEMORY, PRIVATE, ROOT, SHARED
from avmfs.store.store import Store
from tests.contract.store_world import ALICE, BOB, CAROL, World

NOTHING = "nothing"


class _Actor:
    """Random commands on a small tree, by several agents; remembers every node and name that ever was."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.nodes: set[int] = {ROOT, MEMORY, SHARED, PRIVATE}
        self.names: set[tuple[int, bytes]] = set()
        for who in (ALICE, BOB, CAROL):
            world.do(who, "enroll")
        self.files: list[int] = []
        self.directories = [MEMORY, SHARED, world.node(ALICE, "/memory/private/alice").id]
        self.nodes.update(self.directories)

    def step(self) -> None:
        who = self.chance.choice((ALICE, ALICE, BOB))
        with contextlib.suppress(AvmError):
            self.chance.choice(self._steps())(who)

    def _steps(self) -> list[Callable[[Principal], Any]]:
        return [
            self._create,
            self._create,
            self._create,
            self._mkdir,
            self._symlink,
            self._commit,
            self._commit,
            self._append,
            self._unlink,
            self._rmdir,
            self._rename,
            self._rename,
            self._rename,
            self._attributes,
            self._tag,
            self._share,
            self._ttl,
            self._mark,
            self._tell,
        ]

    def _place(self) -> dict[str, Any]:
        parent, name = self.chance.choice(self.directories[:6]), self.chance.choice((b"a", b"b", b"c", b"c~"))
        self.names.add((parent, name))
        return {"parent": parent, "name": name}

    def _node(self) -> int:
        return self.chance.choice(sorted(self.nodes))

    def _file(self) -> int:
        return self.chance.choice(self.files[-12:] or [MEMORY])

    def _made(self, found: dict[str, Any]) -> int:
        self.nodes.add(found["node"])
        return int(found["node"])

    def _create(self, who: Principal) -> None:
        place = self._place()
        made = self.world.do(who, "create", mode=0o644, exclusive=False, uid=None, gid=None, **place)
        self.files.append(self._made(made))

    def _mkdir(self, who: Principal) -> None:
        made = self._made(self.world.do(who, "mkdir", mode=0o755, uid=None, gid=None, **self._place()))
        self.directories.append(made)

    def _symlink(self, who: Principal) -> None:
        self._made(self.world.do(who, "symlink", target=b"a", uid=None, gid=None, **self._place()))

    def _commit(self, who: Principal) -> None:
        data = self.chance.randbytes(self.chance.randrange(40))
        edits = [["t", self.chance.randrange(20)], ["w", self.chance.randrange(20), data]]
        self.world.do(who, "commit", node=self._file(), handle=None, edits=edits)

    def _append(self, who: Principal) -> None:
        self.world.do(who, "append", node=self._file(), handle=None, data=b"more")

    def _unlink(self, who: Principal) -> None:
        self.world.do(who, "unlink", **self._place())

    def _rmdir(self, who: Principal) -> None:
        self.world.do(who, "rmdir", **self._place())

    def _rename(self, who: Principal) -> None:
        old, new = self._place(), self._place()
        flags = self.chance.choice((0, 0, 0, 1, 2))
        self.world.do(who, "rename", **old, new_parent=new["parent"], new_name=new["name"], flags=flags)

    def _attributes(self, who: Principal) -> None:
        self.world.do(who, "set_attributes", node=self._node(), mode=0o600 + self.chance.randrange(8))

    def _tag(self, who: Principal) -> None:
        self.world.do(who, "set_tags", node=self._file(), add=["t"], remove=[], replace=False)

    def _share(self, who: Principal) -> None:
        agents = self.chance.choice((None, ["alice"], ["bob"], ["alice", "bob"]))
        self.world.do(who, "set_shared", node=self._file(), agents=agents)

    def _ttl(self, who: Principal) -> None:
        expires = time.time_ns() + self.chance.choice((1, 10**12))
        self.world.do(who, "set_ttl", node=self._file(), expires=self.chance.choice((None, expires)))

    def _mark(self, who: Principal) -> None:
        self.world.do(who, "mark", node=self._file())

    def _tell(self, who: Principal) -> None:
        self.world.do(
            who,
            "tell",
            recipient="bob",
            body="x",
            priority="normal",
            expires=None,
            body_limit=100,
            unread_limit=10**6,
        )


def _told(call: Callable[[], Any]) -> Any:
    """What a call answers: its error's kind counts as an answer."""
    try:
        return call()
    except AvmError as e:
        return type(e).__name__


def _quick(store: Store, who: Principal, what: tuple[Any, ...]) -> Any:
    match what:
        case ("child", parent, name):
            return _told(lambda: store.cached_child(who, parent, name))
        case ("children", parent):
            return _told(lambda: store.cached_children(who, parent, b"", 100)[0])
        case ("read", node):
            return _told(lambda: store.cached_read(who, node, 0, 1000))
        case ("links", node):
            return _told(lambda: store.cached_subdirectories(who, node))
        case ("counts", node):
            return _told(lambda: _settled(store.cached_counts(who, node)))
        case (_, node):
            return _told(lambda: store.cached_node(who, node))


def _settled(counts: Counts) -> Counts:
    """Without what the writer changes by itself, between two questions."""
    return dataclasses.replace(counts, waiting_lexical=0, waiting_semantic=0)


def _slow(reader: Reader, what: tuple[Any, ...]) -> Any:
    match what:
        case ("child", parent, name):
            return _told(lambda: reader.child(parent, name))
        case ("children", parent):
            return _told(lambda: reader.open_node(parent) and list(reader.children(parent)))
        case ("read", node):
            return _told(lambda: reader.read(node, 0, 1000))
        case ("links", node):
            return _told(lambda: reader.subdirectories(node))
        case ("counts", node):
            return _told(lambda: _settled(reader.counts(node)))
        case (_, node):
            return _told(lambda: reader.open_node(node))


def _questions(actor: _Actor, share: float) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = [("child", *pair) for pair in sorted(actor.names)]
    asked += [("node", node) for node in sorted(actor.nodes)]
    asked += [("read", node) for node in sorted(actor.nodes)]
    asked += [("links", node) for node in (MEMORY, SHARED)]
    asked += [(what, node) for what in ("children", "counts") for node in (MEMORY, SHARED)]
    return [what for what in asked if actor.chance.random() < share]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("share", "steps"), [(1.0, 1), (0.2, 1), (0.2, 6)])
def test_quick_answers_are_right_after_any_command_of_anybody(
    world: World, seed: int, share: float, steps: int
) -> None:
    _compare(world, world.store, _Actor(world, seed), share, steps)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "steps"), [(1.0, 1), (0.2, 1), (0.05, 2), (0.2, 6)])
def test_quick_answers_are_right_after_what_another_process_did(
    tmp_path: Path, seed: int, share: float, steps: int
) -> None:
    """Which passes over what it has never asked for, and then asks for it."""
    world = World(tmp_path, "attached")
    with contextlib.closing(world):
        actor = _Actor(world, seed)
        assert world.writer is not None
        with contextlib.closing(world.writer.attach(clock=world.clock)) as other:
            _compare(world, other, actor, share, steps)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_to_have_changed_is_all_when_others_commit_while_something_is_read(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row may be newer than the commit up to which changes have been heard of."""
    actor = _Actor(world, seed)
    meanwhile = _Meanwhile(actor, monkeypatch)
    kept: dict[Any, Any] = {}
    moment = world.store.cached_state()
    for _ in range(150):
        for who in (ALICE, BOB):
            for what in _questions(actor, 0.3):
                if what[0] not in ("child", "children"):
                    continue
                with meanwhile.sometimes():
                    moment = _without_what_changed(kept, world.store, moment)
                    answer = _quick(world.store, who, what)
                    now = world.store.cached_state()
                if now == moment:
                    kept[who, what] = answer
        actor.step()
        moment = _without_what_changed(kept, world.store, moment)
        for (who, what), answer in kept.items():
            with world.reading(who) as reader:
                assert _entries(answer) == _entries(_slow(reader, what)), (who, what)
    assert meanwhile.commits > 50


class _Meanwhile:
    """Lets others commit between a look at what is remembered and the read that follows, or after that."""

    def __init__(self, actor: _Actor, monkeypatch: pytest.MonkeyPatch) -> None:
        self._actor = actor
        self._armed = ""
        self.commits = 0
        borrow, give_back = Connections.borrow, Connections.give_back

        def before(connections: Connections) -> Any:
            self._commit("before")
            return borrow(connections)

        def after(connections: Connections, pooled: Any) -> None:
            give_back(connections, pooled)
            self._commit("after")

        monkeypatch.setattr(Connections, "borrow", before)
        monkeypatch.setattr(Connections, "give_back", after)

    @contextlib.contextmanager
    def sometimes(self) -> Iterator[None]:
        self._armed = self._actor.chance.choice(("", "before", "before", "after"))
        yield
        self._armed = ""

    def _commit(self, place: str) -> None:
        if self._armed == place:
            self._armed = ""
            self.commits += 1
            self._actor.step()


def _without_what_changed(kept: dict[Any, Any], store: Store, moment: int) -> int:
    """Drop the answers that others derived from, as they do, and the moment of those that stay."""
    while (now := store.cached_state()) != moment:
        changes = store.cached_changes(moment)
        if changes is None:
            kept.clear()
        else:
            listings = {parent for parent, _ in changes.names}
            for who, what in list(kept):
                about = what[1:] if what[0] == "child" else what[1]
                if about in (listings if what[0] == "children" else changes.names | changes.nodes):
                    del kept[who, what]
        moment = now
    return moment


def _entries(answer: Any) -> Any:
    """What a name or a listing says besides the nodes' own attributes."""
    if isinstance(answer, list):
        return [(node.name, node.id) for node in answer if node.expires is None]
    return getattr(answer, "id", answer) if getattr(answer, "expires", None) is None else None


def _compare(world: World, store: Store, actor: _Actor, share: float, steps: int) -> None:
    """What ``store`` answers, with what the database says, after commands that go through another store or the same."""
    kept: dict[Any, Any] = {}  # answers that were given at `moment`
    moment = store.cached_state()
    for _ in range(100):
        for _ in range(steps):
            actor.step()
        moment = _without_what_changed(kept, store, moment)
        for who in (ALICE, BOB):
            for what in _questions(actor, share):
                answer = _quick(store, who, what)
                with world.reading(who) as reader:
                    assert answer == _slow(reader, what), (who, what)
                lasting = getattr(answer, "expires", None) is None and getattr(answer, "parent", ROOT) is not None
                if what[0] == "node" and lasting and not isinstance(answer, str):
                    assert kept.setdefault((who, what), answer) == answer, (who, what)
                elif what[0] == "child" and lasting:
                    node = getattr(answer, "id", None)
                    assert kept.setdefault((who, what), node) == node, (who, what)
                elif what[0] == "children" and isinstance(answer, list) and all(n.expires is None for n in answer):
                    entries = [(node.name, node.id) for node in answer]
                    assert kept.setdefault((who, what), entries) == entries, (who, what)


def test_a_name_that_another_took_and_gave_up_again_is_told(world: World) -> None:
    """The log names neither the file that lost it, nor, once the other has gone, that it had ever been there."""
    for name in ("a", "b"):
        world.write(ALICE, f"/memory/{name}", b"1")
        lost = world.node(ALICE, f"/memory/{name}").id
        assert world.store.cached_child(BOB, MEMORY, name.encode()) is not None
        before = world.store.cached_state()
        world.write(ALICE, "/memory/new", b"2")
        world.rename(ALICE, "/memory/new", f"/memory/{name}")
        if name == "a":
            world.do(ALICE, "unlink", parent=MEMORY, name=b"a")
        else:
            world.rename(ALICE, "/memory/b", "/memory/c")
        changes = world.store.cached_changes(before)
        assert changes is None or ((MEMORY, name.encode()) in changes.names and lost in changes.nodes)
        assert world.store.cached_child(BOB, MEMORY, name.encode()) is None


@pytest.mark.parametrize("change", ["rename", "share"])
@pytest.mark.parametrize("read", ["listing", "name"])
def test_a_row_newer_than_the_last_commit_heard_of_hides_no_change(
    world: World, change: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing went on showing a name that was gone: what took its node elsewhere had been read before it was told."""
    world.write(ALICE, "/memory/a", b"1")
    store = world.store
    node = store.cached_child(ALICE, MEMORY, b"a")
    assert node is not None
    store.cached_children(ALICE, MEMORY, b"", 100)
    before = store.cached_state()

    def meanwhile(connections: Connections, borrow: Any = Connections.borrow) -> Any:
        monkeypatch.setattr(Connections, "borrow", borrow)
        if change == "rename":
            world.rename(ALICE, "/memory/a", "/memory/b")
        else:
            world.do(ALICE, "set_shared", node=node.id, agents=["bob"])
        return borrow(connections)

    monkeypatch.setattr(Connections, "borrow", meanwhile)
    if read == "listing":
        store.cached_children(ALICE, MEMORY, b"", 100)
    else:
        store.cached_child(ALICE, MEMORY, b"b")
    changes = store.cached_changes(before)
    assert changes is None or (MEMORY, b"a") in changes.names
    found = store.cached_child(ALICE, MEMORY, b"a")
    assert (found is None) == (change == "rename")


def test_a_foreign_change_of_one_file_lets_others_stay_remembered(world: World) -> None:
    for name in ("a", "b"):
        world.write(ALICE, f"/memory/{name}", b"1")
    a, b = (world.node(ALICE, f"/memory/{name}").id for name in ("a", "b"))
    for node in (a, b):
        world.store.cached_node(BOB, node)
    before = world.store.cached_state()
    world.write(ALICE, "/memory/a", b"2")
    world.drain()
    changes = world.store.cached_changes(before)
    assert changes is not None and changes.nodes == {a}
    after = world.store.cached_state()
    world.do(ALICE, "mark", node=a)
    assert world.store.cached_state() == after, "a mark is of nobody's business"


def test_a_file_that_another_replaced_is_remembered_as_unlinked(world: World) -> None:
    """The log names the file that took its place, not the one that lost it."""
    for name in ("old", "new"):
        world.write(ALICE, f"/memory/{name}", b"1")
    old, new = (world.node(ALICE, f"/memory/{name}").id for name in ("old", "new"))
    assert world.store.cached_node(BOB, old).parent == MEMORY
    before = world.store.cached_state()
    world.rename(ALICE, "/memory/new", "/memory/old")
    changes = world.store.cached_changes(before)
    assert changes is None or {old, new} <= changes.nodes
    found = _told(lambda: world.store.cached_node(BOB, old))
    assert found == "Stale" or found.parent is None
    answer = world.store.cached_child(BOB, MEMORY, b"old")
    assert answer is not None and answer.id == new


def test_a_directory_that_another_removed_is_known_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be in it. Not a file, whose bytes are gone, and not to those who never saw it."""
    monkeypatch.setattr(nodes, "_MOST_GONE", 2)
    world.restart()
    world.write(ALICE, "/memory/private/alice/f", b"1")
    home = world.node(ALICE, "/memory/private/alice").id
    file = world.store.cached_child(ALICE, home, b"f")
    assert file is not None
    world.do(ALICE, "unlink", parent=home, name=b"f")
    gone = []
    for number in range(3):
        name = b"d%d" % number
        made = world.do(ALICE, "mkdir", parent=home, name=name, mode=0o750, uid=None, gid=None)["node"]
        found = world.store.cached_node(ALICE, made)
        assert world.store.cached_gone(ALICE, made) is None
        world.do(ALICE, "rmdir", parent=home, name=name)
        with pytest.raises(Stale):
            world.store.cached_node(ALICE, made)
        assert world.store.cached_gone(ALICE, made) == found._replace(parent=None)
        assert world.store.cached_gone(BOB, made) is None
        gone.append(made)
    assert [world.store.cached_gone(ALICE, node) is None for node in gone] == [True, False, False]
    assert world.store.cached_gone(ALICE, file.id) is None


def test_a_removed_directory_is_known_also_where_all_else_was_forgotten_meanwhile(world: World) -> None:
    """As when any directory moves: whatever is below it goes along."""
    for name in ("d", "x"):
        world.mkdir(ALICE, f"/memory/{name}")
    found = world.store.cached_child(BOB, MEMORY, b"d")
    assert found is not None
    world.rename(ALICE, "/memory/x", "/memory/y")
    world.store.cached_state()
    world.rmdir(ALICE, "/memory/d")
    assert world.store.cached_gone(BOB, found.id) == found._replace(parent=None)


def test_a_directory_in_whose_place_another_one_has_come_is_known_as_removed(world: World) -> None:
    world.mkdir(ALICE, "/memory/d")
    for _ in range(20):
        world.mkdir(ALICE, "/memory/e")
        found = world.store.cached_child(BOB, MEMORY, b"d")
        assert found is not None
        world.rename(ALICE, "/memory/e", "/memory/d")
        assert world.store.cached_gone(BOB, found.id) == found._replace(parent=None)


@pytest.mark.parametrize("looks", [True, False])
def test_what_becomes_of_a_directory_that_has_gone_out_of_sight_is_not_told(world: World, looks: bool) -> None:
    world.mkdir(ALICE, "/memory/d")
    world.mkdir(ALICE, "/memory/d/below")
    above = world.store.cached_child(BOB, MEMORY, b"d")
    assert above is not None
    below = world.store.cached_child(BOB, above.id, b"below")
    assert below is not None
    world.rename(ALICE, "/memory/d", "/memory/private/alice/d")
    if looks:
        assert _told(lambda: world.store.cached_node(BOB, above.id)) == "Stale"
    for path in ("d/below", "d"):
        world.rmdir(ALICE, f"/memory/private/alice/{path}")
    assert [world.store.cached_gone(BOB, each.id) for each in (above, below)] == [None, None]


def test_memory_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_MOST", 50)
    for number in range(200):
        assert world.store.cached_child(ALICE, MEMORY, b"%d" % number) is None
    kept = world.store._kept
    assert len(kept.children) + len(kept.nodes) <= 52


def test_of_too_much_the_oldest_is_forgotten_and_told_to_have_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is derived from it would otherwise not hear when it does change."""
    monkeypatch.setattr(nodes, "_MOST", 50)
    names = [b"%d" % number for number in range(60)]
    world.write(ALICE, "/memory/f", b"text")
    node = world.store.cached_child(ALICE, MEMORY, b"f")
    assert node is not None
    before = world.store.cached_state()
    for name in names:
        assert world.store.cached_child(ALICE, MEMORY, name) is None
    kept = world.store._kept
    assert kept.child(MEMORY, names[-1]) == 0 and kept.child(MEMORY, names[-20]) == 0
    assert kept.child(MEMORY, names[0]) is None
    changes = world.store.cached_changes(before)
    assert changes is not None and (MEMORY, names[0]) in changes.names and (MEMORY, names[-1]) not in changes.names
    assert (MEMORY, b"f") in changes.names
    assert world.store.cached_child(ALICE, MEMORY, b"f") == node


def test_new_bytes_of_a_file_change_what_no_name_stands_for(world: World) -> None:
    world.write(ALICE, "/memory/f", b"text")
    node = world.store.cached_child(ALICE, MEMORY, b"f")
    assert node is not None
    before = world.store.cached_state()
    world.edit(ALICE, "/memory/f", ["w", 4, b" and more"])
    changes = world.store.cached_changes(before)
    assert changes is not None and changes.nodes == {node.id} and not changes.names
    assert world.store.cached_node(ALICE, node.id).size == 13


def test_threads_that_ask_while_others_commit_never_remember_what_was(world: World) -> None:
    world.write(ALICE, "/memory/f", b"0")
    node = world.node(ALICE, "/memory/f").id
    over, wrong, acknowledged = threading.Event(), [], [0]

    def asking() -> None:
        while not over.is_set():
            least = acknowledged[0]
            found = int(world.store.cached_read(BOB, node, 0, 100))
            size = world.store.cached_node(BOB, node).size
            if found < least or size < len(str(least)):
                wrong.append((found, size, least))

    threads = [threading.Thread(target=asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 300):
            world.edit(ALICE, "/memory/f", ["w", 0, str(number).encode()])
            acknowledged[0] = number
    finally:
        over.set()
        for thread in threads:
            thread.join(300)
    assert wrong == []


def test_a_directory_that_moves_into_a_private_space_takes_all_below_it_out_of_sight(world: World) -> None:
    world.write(ALICE, "/memory/d/e/f", b"x")
    node = world.node(BOB, "/memory/d/e/f")
    assert world.store.cached_node(BOB, node.id).kind is Kind.FILE
    world.do(ALICE, "enroll")
    world.rename(ALICE, "/memory/d", "/memory/private/alice/d")
    assert _told(lambda: world.store.cached_node(BOB, node.id)) == "Stale"
    assert _told(lambda: world.store.cached_read(BOB, node.id, 0, 9)) == "Stale"


def test_counts_are_of_now_after_indexing_which_the_log_does_not_tell_and_after_a_ttl(world: World) -> None:
    world.write(ALICE, "/memory/a", b"words")
    world.write(ALICE, "/memory/b", b"words")
    counts = world.store.cached_counts(BOB, ROOT)
    assert (counts.files, counts.waiting_lexical) == (2, 2)
    world.drain()
    assert world.store.cached_counts(BOB, ROOT).waiting_lexical == 0
    world.do(ALICE, "set_ttl", node=world.node(ALICE, "/memory/a").id, expires=world.clock() + 10**12)
    assert world.store.cached_counts(BOB, ROOT).files == 2
    world.clock.advance(1001)
    assert world.store.cached_counts(BOB, ROOT).files == 1


def test_counts_asked_again_are_not_counted_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write(ALICE, "/memory/a", b"words")
    world.drain()  # or the writer does, in between
    first = world.store.cached_counts(BOB, ROOT)
    monkeypatch.setattr(counting, "counts", lambda *args: pytest.fail("counted again"))
    assert world.store.cached_counts(BOB, ROOT) == first
