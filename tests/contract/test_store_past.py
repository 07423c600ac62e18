"""The tree as it was, beside a plain copy of it at many instants: whatever three agents did, names, kinds, bytes, modes
and mtimes are the same, after a restart and after the past has been trimmed around snapshots."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import Limits, SearchSettings

from avmfs.access import Person, Policy, Principal
from avmfs.cli.past import place
from avmfs.errors import AvmError, NotFound, Stale, TooBig
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.rpc import methods
from avmfs.rpc import past as past_methods
from avmfs.search.engine import Engine
from avmfs.search.then import unsearched
from avmfs.services import Services
from avmfs.store.commands import past, versions
from avmfs.store.commands.aside import YOUNG_NS
from avmfs.store.identity import OPERATOR
from avmfs.store.queries import moments
from avmfs.store.queries.nodes import Reader
from avmfs.store.repair import rebuild, traces
from avmfs.store.rows.deltas import Encoding
from avmfs.store.schema import database
from avmfs.store.schema.tables import ROOT
from avmfs.store.store import Store, open_direct
from avmfs.store.tx.transaction import _FEW_VERSIONS, IndexRules
from avmfs.text.tokens import TokenCounter
from avmfs.trust import Trusted, marked
from avmfs.vfs import address, listings
from avmfs.vfs.virtual_handles import AT_OPEN, PastHandle
from tests.behind import connect

AGENTS = [Principal(name) for name in ("alice", "bob", "carol")]
ALICE, BOB, CAROL = AGENTS
DAY = 86_400 * 10**9
Tree = dict[bytes, tuple[Any, ...]]


class World:
    """A store of its own whose clock a test moves."""

    def __init__(self, path: Path, **rules: Any) -> None:
        self.path, self.now = path, 1_800_000_000 * 10**9
        self.rules = IndexRules(**{"past_days": 30, **rules})
        self.policy = Policy()
        self.store = self._open()
        for who in AGENTS:
            self.store.submit(who, "enroll")

    def _open(self) -> Store:
        return open_direct(self.path, self.policy, self.rules, lambda: self.now)

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def do(self, who: Principal, command: str, **arguments: Any) -> Any:
        self.now += 1_500_000_000
        return self.store.submit(who, command, **arguments)

    def write(self, who: Principal, path: str, data: bytes, **more: Any) -> int:
        return int(self.do(who, "write_path", path=path.encode().split(b"/"), data=data, **more)["node"])

    def node(self, who: Principal, path: str) -> Node:
        with self.store.reading(who) as reader:
            return found(reader, path)

    def seq(self) -> int:
        with self.store.connection() as (db, _):
            return int(db.execute("select max(seq) from log").get)

    def at(self, who: Principal, when: Moment | int | str) -> Tree:
        with self.store.reading(who) as reader:
            then = reader.moment(when)
        with self.store.reading_at(who, then) as reader:
            return tree(reader)

    def rows(self, table: str) -> int:
        with self.store.connection() as (db, _):
            return int(db.execute(f"select count(*) from {table}").get)


def found(reader: Reader, path: str) -> Node:
    node = reader.node(ROOT)
    for name in path.encode().split(b"/"):
        child = reader.child(node.id, name)
        if child is None:
            raise NotFound(path=path)
        node = child
    return node


def tree(reader: Reader) -> Tree:
    """All that the asker sees: by path kind, mode, owner, mtime, size and bytes, or target."""
    seen: Tree = {}
    waiting = [(b"", reader.node(ROOT))]
    while waiting:
        path, node = waiting.pop()
        data = b""
        if node.kind is Kind.FILE:
            data = reader.read(node.id, 0, node.size)
        elif node.kind is Kind.SYMLINK:
            data = reader.target(node.id)
        else:
            waiting += [(path + b"/" + child.name, child) for child in reader.children(node.id)]
        tags = tuple(reader.tags(node.document)) if node.document is not None else ()
        seen[path] = (node.kind, node.mode, node.uid, node.mtime, node.size, data, tags)
    return seen


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "avm.db")
    yield made
    made.store.close()


def memory(world: World, who: Principal) -> Memory:
    engine = Engine(world.store.search_index, None, TokenCounter())
    return Memory(Services(world.store, engine, SearchSettings(), Limits(), lambda: world.now, UTC), who)


class Churn:
    """Random changes by three agents over some files, of which an oracle keeps plain copies."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.spaces = ["memory", "memory/shared", *(f"memory/private/{who.name}" for who in AGENTS)]

    def step(self) -> None:
        who = self.random.choice(AGENTS)
        with contextlib.suppress(AvmError):  # not there, not hers, or not empty: nothing has changed
            self.change(who)

    def place(self) -> str:
        deep = self.random.choice(["", "d1/", "d1/d2/", "d3/"])
        return f"{self.random.choice(self.spaces)}/{deep}f{self.random.randrange(25)}"

    def change(self, who: Principal) -> None:
        world, rnd = self.world, self.random
        path, other, kind = self.place(), self.place(), rnd.randrange(14)
        if kind < 4:
            size = rnd.choice([0, 7, 300, 5000, 70_000, 200_000])
            world.write(who, path, rnd.randbytes(size) if size < 70_000 else bytes([rnd.randrange(256)]) * size)
        elif kind == 4:
            world.write(who, path, rnd.randbytes(rnd.choice([5, 900])), mode="append")
        elif kind == 5:
            node = world.node(who, path)
            world.do(who, "commit", node=node.id, handle=rnd.randrange(3), edits=[["w", rnd.randrange(400), b"middle"]])
        elif kind == 6:
            node = world.node(who, path)
            world.do(who, "commit", node=node.id, handle=None, edits=[["t", rnd.randrange(0, 90_000)]])
        elif kind in (7, 8):
            here, there = (world.node(who, each.rpartition("/")[0]) for each in (path, other))
            names = [each.rpartition("/")[2].encode() for each in (path, other)]
            flags = rnd.choice([0, 0, 0, 1, 2])
            world.do(who, "rename", parent=here.id, name=names[0], new_parent=there.id, new_name=names[1], flags=flags)
        elif kind == 9:
            here = world.node(who, path.rpartition("/")[0])
            world.do(who, "unlink", parent=here.id, name=path.rpartition("/")[2].encode())
        elif kind == 10:
            node = world.node(who, rnd.choice([path, path.rpartition("/")[0]]))
            world.do(
                who,
                "set_attributes",
                node=node.id,
                mode=rnd.choice([0o600, 0o755, 0o640]),
                mtime=rnd.choice([None, 5 * 10**17]),
            )
        elif kind == 11:
            here = world.node(who, path.rpartition("/")[0])
            world.do(who, "symlink", parent=here.id, name=b"s%d" % rnd.randrange(9), target=other.encode())
        elif kind == 12:
            here = world.node(who, rnd.choice(self.spaces))
            name, new = (rnd.choice([b"d1", b"d3", b"d4"]) for _ in range(2))
            if rnd.random() < 0.5:
                world.do(who, "unlink", parent=here.id, name=b"s%d" % rnd.randrange(9))
            else:
                world.do(who, "rename", parent=here.id, name=name, new_parent=here.id, new_name=new, flags=0)
        else:
            world.do(
                who,
                "set_tags",
                node=world.node(who, path).id,
                add=[f"t{rnd.randrange(5)}"],
                remove=[f"t{rnd.randrange(5)}"],
                replace=False,
            )


def oracle(world: World, who: Principal) -> Tree:
    with world.store.reading(who) as reader:
        return tree(reader)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_past_is_what_a_plain_copy_of_it_was(world: World, seed: int) -> None:
    churn = Churn(world, seed)
    kept: list[tuple[int, int, Tree]] = []
    named: dict[str, Tree] = {}
    steps = 1000
    instants = set(churn.random.sample(range(steps), 30))
    for step in range(steps):
        churn.step()
        if step in instants:
            kept.append((world.seq(), world.now, oracle(world, OPERATOR)))
            if len(kept) % 7 == 0:
                name = f"s{len(kept)}"
                world.store.submit(OPERATOR, "snapshot", name=name)
                named[name] = kept[-1][2]
    assert len(kept[-1][2]) > 40
    for _ in range(2):
        for seq, at, was in kept:
            assert world.at(OPERATOR, Moment(seq, 0)) == was
            assert world.at(OPERATOR, at) == was
        world.restart()
    world.now += 40 * DAY
    while world.store.submit(OPERATOR, "trim_past", limit=50)["more"]:
        pass
    with pytest.raises(NotFound, match="the past is kept from"):
        world.at(OPERATOR, kept[0][1])
    for name, was in named.items():
        assert world.at(OPERATOR, name) == was
        world.store.submit(OPERATOR, "remove_snapshot", name=name)
    _trim(world)
    assert world.rows("past") == world.rows("past_version") == world.rows("past_said") == 0


@pytest.mark.parametrize("part", [456_400, 456_600])
def test_a_time_that_is_told_of_a_change_names_what_that_change_made(world: World, part: int) -> None:
    world.now += part
    for text in (b"one", b"two"):
        world.write(ALICE, "memory/shared/plan", text)
    hers = memory(world, ALICE)
    versions = methods.call(hers, "history", {"path": "/shared/plan"})["versions"]
    changed = methods.call(hers, "recent", {"path": "/shared"})["changes"]
    about = json.loads(methods.call(hers, "read", {"path": "/shared/plan:meta"})["data"])
    assert about["updated"] == changed[0]["at"] == versions[0]["at"]
    for told, text in zip(versions, (b"two", b"one"), strict=True):
        then = {"path": f"/@{told['at']}/shared/plan"}
        assert methods.call(hers, "read", then)["data"] == text
        assert methods.call(hers, "version", {"path": "/shared/plan", "at": told["at"]})["data"] == text
    since = {"path": "/shared", "since": versions[0]["at"]}
    assert [each["at"] for each in methods.call(hers, "recent", since)["changes"]] == [versions[0]["at"]]
    world.now += 40 * DAY
    _trim(world)
    with pytest.raises(NotFound, match="the past is kept from") as refused:
        hers.moment("1999-01-01")
    assert hers.moment(refused.value.reason.split()[-2]).seq == world.seq()


@pytest.mark.parametrize("seed", [3, 4])
def test_a_snapshot_of_a_part_has_that_and_keeps_no_more(world: World, seed: int) -> None:
    churn = Churn(world, seed)
    named: dict[str, Tree] = {}
    for step in range(400):
        churn.step()
        if step in (150, 250, 350):
            with world.store.reading(OPERATOR) as reader:
                everything = tree(reader)
                tops = [path for path, each in everything.items() if path.count(b"/") > 1 and each[0] is Kind.DIRECTORY]
                tops = [top for top in tops if any(path.startswith(top + b"/") for path in everything)]
                for number, top in enumerate(churn.random.sample(sorted(tops), 2)):
                    root = found(reader, top[1:].decode()).id
                    world.store.submit(OPERATOR, "snapshot", name=f"s{step}-{number}", root=root)
                    named[f"s{step}-{number}"] = {
                        path: each
                        for path, each in everything.items()
                        if path.startswith(top + b"/") or f"{top.decode()}/".startswith(f"{path.decode()}/")
                    }
    for later in (0, 40 * DAY):
        world.now += later
        while later and world.store.submit(OPERATOR, "trim_past", limit=50)["more"]:
            pass
        for name, was in named.items():
            assert world.at(OPERATOR, name) == was
    held = world.rows("past")
    assert 0 < held < len(world.at(OPERATOR, Moment(world.seq(), 0))) * 6
    for name in named:
        world.store.submit(OPERATOR, "remove_snapshot", name=name)
    world.store.submit(OPERATOR, "trim_past", limit=10**6)
    assert world.rows("past") == world.rows("past_version") == world.rows("past_said") == 0


def test_what_trimming_asks_of_a_version_is_one_look_at_an_index(world: World) -> None:
    with world.store.connection() as (db, _):
        plan = [str(row[3]) for row in db.execute(f"explain query plan {past._CARRIED}", (0, 0, 0))]
    assert any("past_document (document=? AND until>?)" in step for step in plan), plan


def test_a_step_of_trimming_is_bounded_and_the_next_goes_on_where_it_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever snapshots keep; a restart in between loses no more than what is known."""
    for number in range(30):
        world.write(ALICE, f"memory/x/d{number % 3}/{number}", b"kept" * number)
    root = world.node(ALICE, "memory/x").id
    for number in range(20):
        world.do(ALICE, "snapshot", name=f"s{number}", root=root)
        world.write(ALICE, f"memory/free/free{number}", b"x")
    was = world.at(ALICE, "s19")
    for top in ("memory/x/d0", "memory/x/d1", "memory/x/d2", "memory/free"):
        with world.store.reading(ALICE) as reader:
            here = found(reader, top)
            names = [child.name for child in reader.children(here.id)]
        for name in names:
            world.do(ALICE, "unlink", parent=here.id, name=name)
    world.now += 40 * DAY
    for limit, value in (("LOOKED", 7), ("ASKED", 3)):
        monkeypatch.setattr(past, limit, value)
    before, steps = world.rows("past"), 0
    while world.store.submit(OPERATOR, "trim_past", limit=5)["more"]:
        assert before - 5 <= (before := world.rows("past"))
        steps += 1
        if steps % 10 == 0:
            world.restart()
    assert steps > 20 and world.at(ALICE, "s19") == was
    with world.store.connection() as (db, _):
        names = {bytes(name) for (name,) in db.execute("select name from past where kind = 1")}
    assert names == {str(number).encode() for number in range(30)}


def test_a_step_of_trimming_frees_the_blocks_of_no_second_large_file(world: World) -> None:
    for name in ("a", "b"):
        world.write(ALICE, f"memory/{name}", random.Random(name).randbytes(3 << 20))
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=name.encode())
    world.now += 40 * DAY
    left = []
    while world.store.submit(OPERATOR, "trim_past", limit=20)["more"]:
        left.append(world.rows("block"))
    assert left[:1] == [48] and world.rows("block") == world.rows("past_version") == 0


def test_a_snapshot_of_a_part_is_only_of_what_the_asker_sees_and_finds_nothing_beside_it(world: World) -> None:
    hers = world.write(ALICE, "memory/private/alice/plan", b"hers")
    beside, inside = world.write(ALICE, "memory/x/beside", b"1"), world.write(ALICE, "memory/x/d/inside", b"2")
    with pytest.raises(NotFound):
        world.do(BOB, "snapshot", name="s", root=world.node(ALICE, "memory/private/alice").id)
    world.do(OPERATOR, "snapshot", name="private", root=world.node(ALICE, "memory/private/alice").id)
    assert b"/memory/private/alice/plan" in world.at(ALICE, "private")
    assert not any(b"alice" in path for path in world.at(BOB, "private"))
    world.do(ALICE, "snapshot", name="d", root=world.node(ALICE, "memory/x/d").id)
    with world.store.reading(ALICE) as reader:
        then = reader.moment("d")
    with world.store.reading_at(ALICE, then) as was:
        assert was.read(inside, 0, 9) == b"2"
        for other in (beside, hers):
            with pytest.raises(NotFound):
                was.node(other)
    world.do(ALICE, "commit", node=beside, handle=None, edits=[["w", 0, b"3"]])
    world.do(ALICE, "commit", node=inside, handle=None, edits=[["w", 0, b"4"]])
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory/x/d").id, name=b"inside")
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory/x").id, name=b"beside")
    world.now += 40 * DAY
    world.store.submit(OPERATOR, "trim_past")
    kept = world.at(ALICE, "d")
    assert kept[b"/memory/x/d/inside"][5] == b"2" and b"/memory/x/beside" not in kept
    with world.store.connection() as (db, _):
        assert [bytes(name) for (name,) in db.execute("select name from past where kind = 1")] == [b"inside"]


def test_a_snapshot_of_what_was_purged_is_told_to_be_gone_to_its_owner_and_the_operator(world: World) -> None:
    node = world.write(ALICE, "memory/x", b"1")
    world.do(ALICE, "snapshot", name="x", root=node)
    world.do(OPERATOR, "snapshot", name="hers", root=world.write(ALICE, "memory/private/alice/plan", b"hers"))
    told = [past_methods.snapshots(memory(world, who))["snapshots"] for who in (ALICE, BOB)]
    assert [each["path"] for each in told[0]] == ["/memory/private/alice/plan", "/memory/x"]
    assert [each["path"] for each in told[1]] == [None]
    world.do(ALICE, "purge", nodes=[node], documents=[])
    one = past_methods.snapshots(memory(world, ALICE))["snapshots"][1]
    assert (one["name"], one["path"]) == ("x", None) and place(one) == "  (gone)"
    assert place(told[1][0]) == "  (not for you)" and place(told[0][1]) == "  /memory/x"
    assert place({"path": "/", "agent": ""}) == ""
    world.do(OPERATOR, "purge", nodes=[world.node(ALICE, "memory/private/alice/plan").id], documents=[])
    for who, said in ((OPERATOR, "  (gone)"), (BOB, "  (not for you)"), (ALICE, "  (not for you)")):
        assert place(past_methods.snapshots(memory(world, who))["snapshots"][0]) == said


def test_the_root_of_a_part_has_links_only_to_what_it_has(world: World) -> None:
    world.write(ALICE, "memory/x/plan", b"1")
    world.write(ALICE, "memory/shared/plan", b"2")
    for name in ("x", "shared"):
        world.do(ALICE, "snapshot", name=name, root=world.node(ALICE, f"memory/{name}").id)
    hers = memory(world, ALICE)
    for name, links in (("x", []), ("shared", [b"shared"])):
        then = address.Then(hers.moment(f"snap.{name}"), ROOT, Kind.DIRECTORY)
        assert [entry for entry, _, _ in listings.names(hers, then)] == [b"memory", *links]
        was = hers.at(then.moment)
        with was.reading() as reader:
            for link in (b"shared", b"private"):
                if link in links:
                    assert isinstance(address.of_then(was, reader, then, link), address.Alias)
                else:
                    with pytest.raises(NotFound):
                        address.of_then(was, reader, then, link)


def test_the_past_needs_the_rights_of_today_and_lifts_no_veil(world: World) -> None:
    secret = world.write(ALICE, "memory/private/alice/plan", b"the secret draft")
    private = world.seq()
    world.do(ALICE, "commit", node=secret, handle=None, edits=[["t", 0], ["w", 0, b"for all"]])
    here, there = world.node(ALICE, "memory/private/alice"), world.node(ALICE, "memory/shared")
    world.do(ALICE, "rename", parent=here.id, name=b"plan", new_parent=there.id, new_name=b"plan")
    world.write(ALICE, "memory/hers", b"for all, then for her")
    shown = world.seq()
    world.do(ALICE, "set_shared", node=world.node(ALICE, "memory/hers").id, agents=["alice"])
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=b"hers")
    last = world.seq()
    secrets = {seq: repr(world.at(BOB, Moment(seq, 0))) for seq in range(1, last + 1)}
    assert not any(word in text for text in secrets.values() for word in ("secret", "private/alice", "hers"))
    assert "for all" in secrets[shown]
    assert b"/memory/private/alice/plan" in world.at(ALICE, Moment(private, 0))
    assert world.at(ALICE, Moment(shown, 0))[b"/memory/hers"][5] == b"for all, then for her"
    with world.store.reading(BOB) as reader:
        then = reader.moment(Moment(shown, 0))
    with world.store.reading_at(BOB, then) as reader:
        node = found(reader, "memory/shared/plan")
        assert node.document is not None
        assert [version.number for version in reader.versions(node.document)] == [2]
        with pytest.raises(AvmError):
            reader.version_bytes(node.document, 1)
    world.policy = Policy.from_words([("/memory/shared/*", "none", ("bob",))], "rw")
    world.restart()
    assert b"/memory/shared/plan" not in world.at(BOB, Moment(shown, 0))
    assert b"/memory/shared/plan" in world.at(CAROL, Moment(shown, 0))


def test_the_past_that_only_search_all_showed_goes_with_it(world: World) -> None:
    def rules(*capabilities: str) -> None:
        world.policy = Policy(people={"carol": Person(capabilities=("write", *capabilities))})
        world.restart()

    rules("search_all")
    world.write(ALICE, "memory/hers", b"secret")
    node = world.node(ALICE, "memory/hers").id
    world.do(ALICE, "set_shared", node=node, agents=["alice"])
    world.do(ALICE, "commit", node=node, handle=None, edits=[["t", 0], ["w", 0, b"the secret draft"]])
    limited = world.seq()
    world.do(ALICE, "commit", node=node, handle=None, edits=[["t", 0], ["w", 0, b"for all"]])
    world.do(ALICE, "set_shared", node=node, agents=None)
    shown = world.seq()
    assert world.at(CAROL, Moment(limited, 0))[b"/memory/hers"][5] == b"the secret draft"
    rules()
    for who in (BOB, CAROL):
        assert b"/memory/hers" not in world.at(who, Moment(limited, 0))
        assert world.at(who, Moment(shown, 0))[b"/memory/hers"][5] == b"for all"
    assert world.at(ALICE, Moment(limited, 0))[b"/memory/hers"][5] == b"the secret draft"


ENDS: dict[str, Callable[[World], object]] = {
    "removed": lambda world: world.do(ALICE, "unlink", parent=world.node(ALICE, "memory/shared").id, name=b"plan"),
    "emptied": lambda world: (_discard(world), world.do(ALICE, "empty_trash", before=world.now + 1)),
    "trimmed": lambda world: (_discard(world), world.do(OPERATOR, "trim_trash", before=world.now + 1, most=10**9)),
    "saved over another": lambda world: _rename(world, "memory/shared/plan", "memory/shared/other"),
    "replaced by a link": lambda world: (
        world.do(ALICE, "symlink", parent=world.node(ALICE, "memory/shared").id, name=b"link", target=b"other"),
        _rename(world, "memory/shared/link", "memory/shared/plan"),
    ),
    "expired": lambda world: (
        world.do(ALICE, "set_ttl", node=world.node(ALICE, "memory/shared/plan").id, expires=world.now + 10**10),
        setattr(world, "now", world.now + 10**11),
        world.do(OPERATOR, "reap_expired"),
    ),
}


def _discard(world: World) -> None:
    world.now += 2 * YOUNG_NS
    shared = world.node(ALICE, "memory/shared").id
    world.do(ALICE, "unlink", parent=shared, name=b"plan", trash=True)
    world.node(ALICE, "trash/shared/plan")


def _trim(world: World) -> None:
    """The keeper's steps, until nothing is left to forget."""
    while world.store.submit(OPERATOR, "trim_past")["more"]:
        pass


def _rename(world: World, source: str, target: str) -> None:
    (here, _, name), (there, _, new) = source.rpartition("/"), target.rpartition("/")
    at, to = world.node(ALICE, here).id, world.node(ALICE, there).id
    world.do(ALICE, "rename", parent=at, name=name.encode(), new_parent=to, new_name=new.encode())


def _published(world: World, *, snapshots: bool = False) -> Moment:
    """Two drafts of alice's, and what she shows all then."""
    for draft in (b"draft one", b"draft two", b"for all"):
        world.write(ALICE, "memory/private/alice/plan", draft)
        if snapshots:
            world.do(OPERATOR, "snapshot", name=draft.decode().replace(" ", "-"))
    world.write(BOB, "memory/shared/other", b"another")
    _rename(world, "memory/private/alice/plan", "memory/shared/plan")
    world.now += 1_500_000_000
    return Moment(world.seq(), world.now)


def _told(world: World, who: Principal, then: Moment | str) -> dict[int, bytes]:
    """All versions that one reads of the plan as it was then, by any number."""
    told: dict[int, bytes] = {}
    with world.store.reading(who) as reader:
        moment = reader.moment(then)
    with world.store.reading_at(who, moment) as reader:
        document = found(reader, "memory/shared/plan").document
        assert document is not None
        listed = [version.number for version in reader.versions(document)]
        for number in range(1, 5):
            with contextlib.suppress(AvmError):
                told[number] = reader.version_bytes(document, number)
    assert listed == sorted(told, reverse=True)
    return told


EVERY = {1: b"draft one", 2: b"draft two", 3: b"for all"}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_private_stays_so_once_the_file_has_ended(world: World, end: str) -> None:
    then = _published(world)
    assert (_told(world, BOB, then), _told(world, ALICE, then)) == ({3: b"for all"}, EVERY)
    stamp = datetime.fromtimestamp(world.now / 10**9, UTC).isoformat()
    ENDS[end](world)
    assert (_told(world, BOB, then), _told(world, ALICE, then)) == ({3: b"for all"}, EVERY)
    with world.store.connection() as (db, _):
        assert db.execute("select count(*) from past_said where what = 'document'").get == 1
    path = f"/@{stamp}/memory/shared/plan"
    assert methods.call(memory(world, ALICE), "version", {"path": path, "number": 1})["data"] == b"draft one"
    for number in (1, 2):
        with pytest.raises(NotFound):
            methods.call(memory(world, BOB), "version", {"path": path, "number": number})
    history, diff = (
        methods.call(memory(world, BOB), "read", {"path": path + view})["data"] for view in (":history", ":diff")
    )
    assert history.startswith(b"v3") and history.count(b"\n") == 1
    assert diff == b"--- (no longer kept)\n+++ v3\n@@ -0,0 +1 @@\n+for all\n\\ No newline at end of file\n"
    world.now += 40 * DAY
    while world.store.submit(OPERATOR, "trim_past", limit=1)["more"]:
        pass
    assert world.rows("past_version") == world.rows("veil") == 0


def test_what_was_private_stays_so_in_a_snapshot_and_is_gone_with_it(world: World) -> None:
    _published(world, snapshots=True)
    world.do(OPERATOR, "snapshot", name="s")
    world.do(OPERATOR, "remove_snapshot", name="draft-two")
    ENDS["removed"](world)
    world.now += 40 * DAY
    _trim(world)
    hers = {1: b"draft one", 3: b"for all"}  # as snapshots have them
    assert (_told(world, BOB, "s"), _told(world, ALICE, "s")) == ({3: b"for all"}, hers)
    assert (world.rows("veil"), world.rows("past_version")) == (1, 2)
    for name in ("s", "draft-one", "for-all"):
        world.do(OPERATOR, "remove_snapshot", name=name)
    _trim(world)
    assert world.rows("veil") == world.rows("past_version") == 0


def test_what_is_forgotten_of_the_past_unveils_nothing_of_a_file_that_is_there(tmp_path: Path) -> None:
    world = World(tmp_path / "few.db", versions=16)
    for number in range(20):
        world.write(ALICE, "memory/private/alice/plan", b"%d" % number)
        if number == 1:
            world.do(ALICE, "snapshot", name="mine")
    _rename(world, "memory/private/alice/plan", "memory/shared/plan")
    assert world.rows("past_version") == 1
    world.do(ALICE, "remove_snapshot", name="mine")
    world.now += 40 * DAY
    _trim(world)
    assert (world.rows("past_version"), world.rows("veil")) == (0, 1)
    with world.store.reading(BOB) as reader:
        document = found(reader, "memory/shared/plan").document
        assert document is not None and [version.number for version in reader.versions(document)] == [20]
    world.store.close()


def test_a_repair_leaves_what_was_private_so(world: World) -> None:
    then = _published(world)
    ENDS["removed"](world)
    newest = world.seq()
    world.store.close()
    with contextlib.closing(database.connect(world.path, writable=True)) as db:
        rebuild.mend(db, newest)
    world.store = world._open()
    assert (_told(world, BOB, then), _told(world, ALICE, then)) == ({3: b"for all"}, EVERY)


@pytest.mark.parametrize("ended", [True, False])
def test_a_purge_leaves_nothing_of_who_could_read_what(world: World, ended: bool) -> None:
    _published(world)
    node = world.node(ALICE, "memory/shared/plan")
    if ended:
        ENDS["removed"](world)
    assert world.rows("veil") == 1
    only = {"nodes": [], "documents": [node.document]} if ended else {"nodes": [node.id], "documents": []}
    world.do(ALICE, "purge", **only)
    assert world.rows("veil") == world.rows("past_version") == 0


def test_an_instant_by_its_change_tells_nothing_of_when_others_wrote_their_own(tmp_path: Path) -> None:
    def told(name: str, wrote_at: int) -> list[tuple[int, str]]:
        world = World(tmp_path / name)
        start = world.now + DAY
        for at, who, path in ((0, BOB, "shared/b"), (wrote_at, ALICE, "private/alice/a"), (9, BOB, "shared/b")):
            world.now = start + at * DAY
            world.write(who, f"memory/{path}", b"%d" % at)
        newest, world.now = world.seq(), start + 10 * DAY
        world.write(ALICE, "memory/private/alice/a", b"again")
        world.now = start + 11 * DAY
        with world.store.reading(BOB) as reader:
            moments = [reader.moment(Moment(seq, 0)) for seq in range(1, world.seq() + 9)]
        assert [then.seq for then in moments[:newest]] == [*range(1, newest + 1)]
        assert {then.at for then in moments[newest - 1 :]} == {world.now}, "nothing of his has changed since"
        lines = [unsearched(world.store, BOB, then, UTC) for then in moments]
        world.store.close()
        return [(then.at, line) for then, line in zip(moments, lines, strict=True)]

    assert told("early.db", 1) == told("late.db", 8)


def test_what_is_aside_is_in_no_list_of_then_and_there_by_name(world: World) -> None:
    then = _published(world)
    _discard(world)
    hers = memory(world, ALICE)
    now = Moment(world.seq(), world.now)
    root = address.Then(then, ROOT, Kind.DIRECTORY)
    aside = {b"trash", b"archive", b"index"}
    assert b"memory" in (listed := {name for name, *_ in listings.names(hers, root)}) and not aside & listed
    with world.store.reading_at(ALICE, now) as reader:
        listed = {entry.node.name for entry, _ in reader.listing(ROOT, limit=99, offset=0)[0]}
        assert b"memory" in listed and not aside & listed
        for path in ("trash", "archive", "trash/shared/plan"):
            assert found(reader, path)
    with world.store.reading(ALICE) as reader:
        assert listed == {entry.node.name for entry, _ in reader.listing(ROOT, limit=99, offset=0)[0]}


def test_what_is_counted_of_then_is_what_one_sees(world: World) -> None:
    """No version that is hidden, and of the whole tree nothing that is aside, as today."""
    then = _published(world)
    world.write(ALICE, "memory/shared/thrown", b"for all, too")
    world.now += 2 * YOUNG_NS
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory/shared").id, name=b"thrown", trash=True)
    later = Moment(world.seq(), world.now)
    for who, seen in ((BOB, 1 + 1), (ALICE, 3 + 1)):
        for moment in (then, later):
            with world.store.reading_at(who, moment) as reader:
                counts = reader.counts(ROOT)
                assert (counts.files, counts.versions) == (2, seen)
                listed, _ = reader.listing(ROOT, limit=9, offset=0, query="for all")
                assert [entry.path for entry, _ in listed] == [b"/memory/shared/plan"]
        with world.store.reading(who) as reader:
            assert (reader.counts(ROOT).files, reader.counts(ROOT).versions) == (2, seen)


def test_what_is_not_trusted_is_marked_or_held_in_lists_of_then_as_in_those_of_today(world: World) -> None:
    world.policy = Policy(trusted=(Trusted("web", "/memory/shared/held/*", "quarantine"),))
    world.restart()
    for path in ("web", "held/web", "held/out", "later", "held/later"):
        world.write(ALICE, f"memory/shared/{path}", b"plant\n", sources=["web"] if "later" not in path else [])
        node = world.node(ALICE, f"memory/shared/{path}")
        world.do(ALICE, "set_tags", node=node.id, add=["t"], remove=[], replace=False)
    then = Moment(world.seq(), world.now)
    world.do(ALICE, "let_out", node=world.node(ALICE, "memory/shared/held/out").id)
    for path in ("later", "held/later"):
        world.do(ALICE, "set_sources", node=world.node(ALICE, f"memory/shared/{path}").id, sources=["web"])

    def told() -> list[Any]:
        lists: list[Any] = []
        for under in ("memory/shared", "memory/shared/held"):
            node = found(reader, under).id
            lists += [
                sorted((entry.path, line) for entry, line in reader.listing(node, limit=9, offset=0, **how)[0])
                for how in ({}, {"query": "plant"}, {"tag": "t"})
            ]
            lists += [reader.counts(node).files, reader.tag_counts(node)]
        return lists

    with world.store.reading(BOB) as reader:
        today = told()
    assert [path for path, _ in today[1]] == [b"/memory/shared/" + each for each in (b"held/out", b"later", b"web")]
    assert {line for _, line in today[1]} == {marked("plant", "web")}
    for path in ("web", "held/web", "held/out", "later", "held/later"):  # all is as it was, of what has gone, too
        world.write(ALICE, f"memory/shared/{path}", b"other\n")
        node = world.node(ALICE, f"memory/shared/{path}")
        world.do(ALICE, "unlink", parent=node.parent, name=node.name)
    with world.store.reading_at(BOB, then) as reader:
        assert told() == today


def test_links_of_then_and_what_has_ended_are_told(world: World) -> None:
    world.write(ALICE, "memory/a", b"a")
    b = world.write(ALICE, "memory/b", b"b")
    a = world.node(ALICE, "memory/a")
    world.do(ALICE, "add_link", node=a.id, target=b, type="see")
    world.do(ALICE, "merge_meta", node=a.id, importance=0.7, user={"k": 1})
    linked = world.seq()
    world.do(ALICE, "merge_meta", node=a.id, importance=0.1, user={"k": None})
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=b"a")
    with world.store.reading_at(BOB, Moment(linked, world.now)) as reader:
        then, other = found(reader, "memory/a"), found(reader, "memory/b")
        told = reader.document(then)
        assert (told.creator, told.importance, told.user, told.head) == ("alice", 0.7, {"k": 1}, 1)
        assert [(link.outgoing, link.path, link.type) for link in reader.links(told.id)] == [
            (True, b"/memory/b", "see")
        ]
        assert [(link.outgoing, link.path) for link in reader.links(reader.document(other).id)] == [
            (False, b"/memory/a")
        ]
        assert reader.counts(ROOT).links == 1
        assert [entry.path for entry, _ in reader.listing(ROOT, limit=9, offset=0, query="a")[0]] == [b"/memory/a"]


def test_a_handle_leads_to_the_note_that_had_it_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that is removed gives it up, and another one may draw it."""
    monkeypatch.setattr(versions, "_handle", lambda length: "same")
    there = world.node(ALICE, "memory").id
    instants = {}
    for name in (b"a", b"b", b"c"):
        world.write(ALICE, f"memory/{name.decode()}", name)
        instants[name] = world.seq()
        if name != b"c":
            world.do(ALICE, "unlink", parent=there, name=name)
    for name, seq in instants.items():
        with world.store.reading_at(BOB, Moment(seq, world.now)) as reader:
            held = reader.by_handle("same")
            assert held is not None and held.name == name
            assert reader.by_handle("none") is None
    with world.store.reading_at(BOB, Moment(instants[b"c"] - 1, world.now)) as reader:
        assert reader.by_handle("same") is None


def test_before_a_save_by_rename_joined_them_both_files_had_their_own_tags_and_links(world: World) -> None:
    for name in ("note", "draft", "other"):
        node = world.write(ALICE, f"memory/{name}", name.encode())
        world.do(ALICE, "set_tags", node=node, add=[name], remove=[], replace=False)
    there = world.node(ALICE, "memory").id
    world.do(ALICE, "add_link", node=world.node(ALICE, "memory/draft").id, target=node, type="see")
    before = world.seq()
    world.do(ALICE, "rename", parent=there, name=b"draft", new_parent=there, new_name=b"note", flags=0)

    def said(reader: Reader, path: str) -> tuple[list[str], list[bytes]]:
        told = reader.document(found(reader, path))
        return reader.tags(told.id), [link.path for link in reader.links(told.id) if link.outgoing]

    world.write(ALICE, "memory/note", b"later")
    then = world.at(BOB, Moment(before, world.now))
    assert (then[b"/memory/note"][5], then[b"/memory/draft"][5]) == (b"note", b"draft")
    with world.store.reading_at(BOB, Moment(before, world.now)) as reader:
        assert said(reader, "memory/note") == (["note"], [])
        assert said(reader, "memory/draft") == (["draft"], [b"/memory/other"])
    with world.store.reading(BOB) as reader:
        assert said(reader, "memory/note") == (["draft", "note"], [b"/memory/other"])


def test_what_comes_from_outside_has_no_past(world: World) -> None:
    world.write(ALICE, "memory/a", b"a")
    world.do(OPERATOR, "mirror", path=[b"live", b"price"], data=b"1", source="s", until=0)
    assert world.node(ALICE, "live/price").size == 1
    then = world.at(ALICE, Moment(world.seq(), world.now))
    assert b"/memory/a" in then and b"/live/price" not in then


@pytest.mark.parametrize("looks", [40, moments.LOOKS])
@pytest.mark.parametrize("wrong_by", [DAY, -DAY])
def test_an_instant_is_found_though_the_clock_was_wrong_for_a_while(
    wrong_by: int, looks: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead, or behind; also where a search begins within that while, and once it is long ago."""
    monkeypatch.setattr(moments, "LOOKS", looks)
    instants: list[tuple[int, int, bytes]] = []

    def write() -> None:
        data = b"%d" % len(instants)
        world.write(ALICE, "memory/a", data)
        instants.append((world.seq(), world.now, data))

    while len(instants) < 40:
        write()
    world.now += wrong_by
    began = world.seq()
    for number in range(10):
        world.write(ALICE, "memory/wrong", b"%d" % number)
    ended = world.seq()
    world.now -= wrong_by
    while world.seq() < 2 * began + 8:
        write()
    beside = 2 * (ended - began)  # there as many changes are right as are wrong
    far = [each for each in instants if each[0] < began - beside or each[0] > ended + beside]
    assert len(far) > 30
    for _ in range(2):
        for _, at, data in far:
            assert world.at(ALICE, at)[b"/memory/a"][5] == data
        world.now += 3 * DAY


def test_a_snapshot_keeps_the_version_that_is_one_too_many(tmp_path: Path) -> None:
    world = World(tmp_path / "few.db", versions=16)
    for number in range(40):
        world.write(ALICE, "memory/a", b"%d" % number)
        if number == 3:
            world.do(ALICE, "snapshot", name="s")
    assert world.rows("version") == 16
    assert world.at(ALICE, "s")[b"/memory/a"][5] == b"3" and world.at(ALICE, world.now)[b"/memory/a"][5] == b"39"
    world.store.close()


def test_a_damaged_version_that_a_snapshot_has_keeps_nobody_from_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path / "few.db", versions=16)
    for number in range(12):
        world.write(ALICE, "memory/a", b"%d with words" % number)
        if number == 3:
            world.do(ALICE, "snapshot", name="s")
    with contextlib.closing(connect(world.path)) as db:
        db.execute("update version set crc = crc + 1 where number = 4")
    for number in range(12, 40):
        world.write(ALICE, "memory/a", b"%d with words" % number)
    assert world.rows("version") == 16 and world.rows("past_version") == 0
    with pytest.raises(NotFound, match="no longer kept"):
        world.at(ALICE, "s")
    said = [each.getMessage() for each in caplog.records if "not kept as of the past" in each.getMessage()]
    assert [each.partition(":")[0] for each in said] == ["/memory/a"]
    world.store.close()


def test_what_is_damaged_of_the_past_keeps_nothing_else_from_being_trimmed(world: World) -> None:
    for name in ("a", "b"):
        for number in range(3):
            world.write(ALICE, f"memory/{name}", b"%d with words" % number)
            if number == 1:
                world.do(ALICE, "snapshot", name=name, root=world.node(ALICE, f"memory/{name}").id)
    for name in (b"a", b"b"):
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=name)
    with contextlib.closing(connect(world.path)) as db:
        db.execute("update past_version set crc = crc + 1 where number = 3 and id < 4")
    world.now += 40 * DAY
    _trim(world)
    assert world.rows("past_version") == 1 and world.at(ALICE, "b")[b"/memory/b"][5] == b"1 with words"
    with pytest.raises(NotFound, match="no longer kept"):
        world.at(ALICE, "a")


def test_a_snapshot_keeps_what_it_has_while_no_past_is_kept(world: World) -> None:
    """Also what is changed or removed then, after a restart, after trimming, and once a past is kept again."""
    for name in ("changed", "removed", "moved"):
        world.write(ALICE, f"memory/{name}", b"one")
    world.do(ALICE, "snapshot", name="s")
    before, there = world.at(ALICE, "s"), world.node(ALICE, "memory").id
    for days, gone in ((0, b"removed"), (30, b"moved")):
        world.rules = replace(world.rules, past_days=days)
        world.restart()
        world.write(ALICE, "memory/changed", b"%d" % days)
        world.write(ALICE, "memory/new", b"%d" % days)
        world.do(ALICE, "unlink", parent=there, name=gone)
        if not days:
            with pytest.raises(NotFound, match="no past is kept"):
                world.at(ALICE, world.now)
        _trim(world)
        assert world.at(ALICE, "s") == before
    world.do(ALICE, "remove_snapshot", name="s")
    world.rules = replace(world.rules, past_days=0)
    world.restart()
    world.write(ALICE, "memory/changed", b"two")
    _trim(world)
    assert world.rows("past") == world.rows("past_version") == world.rows("past_said") == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_snapshot_that_is_made_where_no_past_is_kept_has_what_there_was(restarts: bool, tmp_path: Path) -> None:
    world = World(tmp_path / "none.db", past_days=0)
    for data in (b"one", b"two"):
        for name in ("changed", "removed", "written"):
            world.write(ALICE, f"memory/{name}", data)
    world.do(ALICE, "snapshot", name="s")
    before, there = world.at(ALICE, "s"), world.node(ALICE, "memory").id
    assert before[b"/memory/changed"][5] == b"two"
    for name, what in (("changed", b"three"), ("new", b"x"), ("changed", b"four")):
        world.write(ALICE, f"memory/{name}", what)
    world.do(ALICE, "unlink", parent=there, name=b"removed")
    if restarts:
        world.restart()
    world.write(ALICE, "memory/written", b"later")
    _trim(world)
    assert world.at(ALICE, "s") == before
    with pytest.raises(NotFound, match="but for snapshots no past is kept"):
        world.at(ALICE, world.now - 1)
    world.store.close()


def test_a_snapshot_for_which_an_earlier_avmfs_kept_nothing_says_so(world: World) -> None:
    world.write(ALICE, "memory/a", b"one")
    world.do(ALICE, "snapshot", name="s")
    world.write(ALICE, "memory/a", b"two")
    world.store.close()
    with contextlib.closing(database.connect(world.path, writable=True)) as db:
        db.execute("delete from setting where key = 'past_from'")  # as that left it, with past_days 0
    for days in (0, 30):
        world.rules = replace(world.rules, past_days=days)
        world.store = world._open()
        with pytest.raises(NotFound, match="'s' is lost"):
            world.at(ALICE, "s")
        world.store.close()
    world.store = world._open()
    world.do(ALICE, "snapshot", name="t")
    assert world.at(ALICE, "t")[b"/memory/a"][5] == b"two"


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(("size", "past_bytes"), [(200_000, 100_000), (1_000, 0)])
def test_a_snapshot_keeps_what_is_removed_however_large_it_is(
    size: int, past_bytes: int, short: bool, tmp_path: Path
) -> None:
    world = World(tmp_path / "few.db", past_bytes=past_bytes)
    data, newer = random.Random(size).randbytes(size), random.Random(-size).randbytes(size)
    for name in ("a", "b", "later"):
        if name == "later":
            world.do(ALICE, "snapshot", name="s")
        world.write(ALICE, f"memory/{name}", data)
    world.write(ALICE, "memory/b", newer)
    writer: Any = world.store._submitter
    writer._applier.short = lambda: short
    for name in (b"a", b"b", b"later"):
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=name)
    assert world.rows("past_version") == 3, "of what no snapshot has nothing is kept"
    _trim(world)
    seen = world.at(ALICE, "s")
    assert seen[b"/memory/a"][5] == seen[b"/memory/b"][5] == data and b"/memory/later" not in seen
    assert world.rows("past_version") == 2
    world.do(ALICE, "remove_snapshot", name="s")
    _trim(world)
    assert world.rows("past_version") == 0
    world.store.close()


@pytest.mark.parametrize("limited", [False, True])
def test_what_was_removed_and_is_not_kept_is_listed_where_it_was_to_whom_it_was_last_for(
    limited: bool, tmp_path: Path
) -> None:
    world = World(tmp_path / "few.db", past_bytes=100)
    world.write(ALICE, "memory/small", b"x")
    node = world.write(ALICE, "memory/large", b"x" * 1000)
    before = world.seq()
    if limited:
        world.do(ALICE, "set_shared", node=node, agents=[])
    there = world.node(ALICE, "memory").id
    world.do(ALICE, "unlink", parent=there, name=b"large")
    assert world.rows("past_version") == 0
    for who, seen in ((ALICE, [b"large", b"small"]), (BOB, [b"large"] * (not limited) + [b"small"])):
        with world.store.reading_at(who, Moment(before, world.now)) as reader:
            entries, _ = reader.listing(there, limit=9, offset=0)
            assert [entry.node.name for entry, _ in entries if entry.node.kind is Kind.FILE] == seen
            if b"large" in seen:
                with pytest.raises(NotFound, match="no longer kept"):
                    reader.read(node, 0, 9)
    world.store.close()


def test_a_write_after_a_snapshot_is_a_version_of_its_own(world: World) -> None:
    node = world.write(ALICE, "memory/a", b"one", handle=7)
    world.store.submit(ALICE, "snapshot", name="s")
    world.now -= 1_500_000_000
    world.do(ALICE, "commit", node=node, handle=7, edits=[["w", 0, b"two"]])
    assert world.at(ALICE, "s")[b"/memory/a"][5] == b"one"
    assert [snap.name for snap in _snapshots(world, ALICE)] == ["s"] and _snapshots(world, BOB) == []
    with pytest.raises(NotFound, match="no snapshot"):
        world.at(BOB, "s")


@pytest.mark.parametrize("then", ["written", "removed"])
@pytest.mark.parametrize("changed", ["mode", "name", "nothing"])
def test_what_a_snapshot_has_of_a_log_is_kept_though_it_is_appended_to_at_once(
    changed: str, then: str, tmp_path: Path
) -> None:
    """Also where what was said of the file alone has changed in between."""
    world, path = World(tmp_path / "few.db", versions=16), "memory/a"
    node = world.write(ALICE, path, b"one", handle=7)
    world.store.submit(ALICE, "append", node=node, handle=7, data=b" two")
    assert world.rows("version") == 1
    world.store.submit(ALICE, "snapshot", name="s")
    if changed == "mode":
        world.store.submit(ALICE, "set_attributes", node=node, mode=0o600)
    elif changed == "name":
        path = "memory/a.1"
        there = world.node(ALICE, "memory").id
        world.store.submit(ALICE, "rename", parent=there, name=b"a", new_parent=there, new_name=b"a.1")
    for piece in (b" three", b" four"):
        world.store.submit(ALICE, "append", node=node, handle=7, data=piece)
    assert world.rows("version") == 2
    for number in range(40 if then == "written" else 0):
        world.write(ALICE, path, b"%d" % number)
    if then == "removed":
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=path.rpartition("/")[2].encode())
    world.now += 40 * DAY
    _trim(world)
    assert world.at(ALICE, "s")[b"/memory/a"][5] == b"one two"
    world.store.close()


def test_a_symlink_leads_again_where_it_led(world: World) -> None:
    place = world.node(ALICE, "memory/shared").id
    for name in (b"moved", b"gone", b"same"):
        world.do(ALICE, "symlink", parent=place, name=name, target=b"one")
    world.do(ALICE, "snapshot", name="s")
    for name in (b"moved", b"gone"):
        world.do(ALICE, "unlink", parent=place, name=name)
    world.do(ALICE, "symlink", parent=place, name=b"moved", target=b"two")
    who = memory(world, ALICE)
    differs = past_methods.compare(who, "snap.s", path="/shared")["changes"]
    assert differs == [
        {"path": "/memory/shared/gone", "status": "removed"},
        {"path": "/memory/shared/moved", "status": "modified"},
    ]
    planned = past_methods.restore(who, "/shared", at="snap.s", dry_run=True)
    assert past_methods.restore(who, "/shared", at="snap.s") == planned
    assert [each["action"] for each in planned["restored"]] == ["make", "write"]
    leads = {path: each[5] for path, each in world.at(ALICE, world.now).items() if each[0] is Kind.SYMLINK}
    assert leads == {b"/memory/shared/" + name: b"one" for name in (b"gone", b"moved", b"same")}
    assert past_methods.restore(who, "/shared", at="snap.s")["restored"] == []


def test_what_was_let_out_of_quarantine_is_out_when_it_comes_back(world: World) -> None:
    world.policy = Policy(trusted=(Trusted("web", "/memory/shared/*", "quarantine"),))
    world.restart()
    nodes = {
        name: world.write(ALICE, f"memory/shared/{name}", b"the words of a page\n", sources=["web"])
        for name in ("changed", "held", "later", "removed")
    }

    def marks() -> dict[str, tuple[str, bool]]:
        with world.store.reading(ALICE) as reader:
            scopes = {name: found(reader, f"memory/shared/{name}").scope for name in nodes}
            return {name: (reader.visible.untrusted(at), at in reader.visible.held) for name, at in scopes.items()}

    for name in ("changed", "removed"):
        world.do(ALICE, "let_out", node=nodes[name])
    world.do(ALICE, "snapshot", name="s")
    world.do(ALICE, "let_out", node=nodes["later"])
    before = marks()
    for name in ("changed", "later"):
        world.write(ALICE, f"memory/shared/{name}", b"her own words\n")
    for name in ("held", "removed"):
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory/shared").id, name=name.encode())
    assert len(past_methods.restore(memory(world, ALICE), "/shared", at="snap.s")["restored"]) == 4
    assert marks() == before == {name: ("web", name == "held") for name in nodes}


def _snapshots(world: World, who: Principal) -> list[Any]:
    with world.store.reading(who) as reader:
        return reader.snapshots()


def test_what_is_appended_for_long_is_as_long_as_it_was_then(world: World) -> None:
    node = world.write(ALICE, "memory/log", b"")
    sizes = {}
    for line in range(20):
        world.now -= 900_000_000  # a line every 0.6 s: the version stays open
        world.do(ALICE, "append", node=node, handle=3, data=b"line %d\n" % line)
        sizes[world.now] = (line + 1) * 7 if line < 10 else 70 + (line - 9) * 8
    assert world.rows("version") < 4
    for at, size in sizes.items():
        seen = world.at(ALICE, at)[b"/memory/log"]
        assert seen[4] == len(seen[5]) and size <= seen[4] <= size + 16, at


def test_what_was_appended_since_is_no_answer_about_then_though_it_is_one_version(world: World) -> None:
    node, hers = world.write(ALICE, "memory/log", b""), memory(world, ALICE)
    for line in range(10):
        world.now -= 900_000_000  # a line every 0.6 s: the version stays open
        world.do(ALICE, "append", node=node, handle=3, data=b"apple\n" if line < 5 else b"zebra\n")
        if line == 4:
            then = hers.at(Moment(world.seq(), world.now))
    assert world.rows("version") < 4
    assert [each.hit.node for each in hers.search("zebra", mode="lexical").hits] == [node]
    assert then.search("zebra", mode="lexical").hits == ()
    assert ": 1 file of then, changed or gone since, could not be searched" in then.unsearched()


def _trashed(world: World, who: Principal, path: str) -> None:
    world.now += 2 * YOUNG_NS
    node = world.node(who, path)
    assert world.do(who, "unlink", parent=node.parent, name=node.name, trash=True)["kept"]


def _archived(world: World, who: Principal, path: str) -> None:
    node = world.node(who, path)
    world.do(who, "archive", parent=node.parent, name=node.name)


@pytest.mark.parametrize("put_aside", [_trashed, _archived])
def test_what_was_put_aside_since_is_found_where_it_stood_by_who_may_see_it_now_and_then(
    world: World, put_aside: Callable[[World, Principal, str], None]
) -> None:
    for path in ("shared/owls/gone", "private/alice/gone", "shared/stays"):
        world.write(ALICE, f"memory/{path}", b"the owl sleeps in %s" % path.encode())
    hers, his = memory(world, ALICE), memory(world, BOB)
    then = Moment(world.seq(), world.now)
    for path in ("shared/owls/gone", "private/alice/gone"):
        hers.make_searchable()
        put_aside(world, ALICE, f"memory/{path}")

    def told(who: Memory, **how: Any) -> list[bytes]:
        return sorted(each.hit.path for each in who.search("owl", mode="lexical", **how).hits)

    shared = [b"/memory/shared/owls/gone", b"/memory/shared/stays"]
    assert told(hers.at(then)) == [b"/memory/private/alice/gone", *shared]
    assert told(his.at(then)) == shared == told(his.at(then), under=(b"memory", b"shared"))
    assert told(his.at(then), under=(b"memory", b"shared", b"owls")) == shared[:1]
    assert all(who.at(then).unsearched().endswith(": all of it was searched\n") for who in (hers, his))
    later = Moment(world.seq(), world.now)
    for moment in (None, later):
        assert told(hers if moment is None else hers.at(moment)) == shared[1:], "aside, it is in no search"
    world.do(ALICE, "purge", nodes=[world.node(ALICE, "memory/shared/stays").id], documents=[])
    assert told(his.at(then)) == shared[:1]


def test_what_stood_in_the_trash_then_is_not_missed_by_a_search_of_then(world: World) -> None:
    world.write(ALICE, "memory/shared/gone", b"the owl sleeps")
    hers = memory(world, ALICE)
    hers.make_searchable()
    _trashed(world, ALICE, "memory/shared/gone")
    then, trashed = hers.at(Moment(world.seq(), world.now)), world.node(ALICE, "trash/shared/gone")
    world.do(ALICE, "unlink", parent=trashed.parent, name=trashed.name)
    assert then.unsearched().endswith(": all of it was searched\n")


def test_what_was_archived_then_is_found_where_the_archive_is_asked_for(world: World) -> None:
    for path in ("shared/old/gone", "private/alice/gone"):
        world.write(ALICE, f"memory/{path}", b"the owl sleeps")
        _archived(world, ALICE, f"memory/{path}")
    then = Moment(world.seq(), world.now)
    for path in ("archive/shared/old/gone", "archive/private/alice/gone"):
        node = world.node(ALICE, path)
        world.do(ALICE, "put_back", node=node.id)
    hers, changed = memory(world, ALICE).at(then), "archive/shared/old/gone"

    def told(**how: Any) -> list[bytes]:
        return sorted(each.hit.path for each in hers.search("owl", mode="lexical", **how).hits)

    archived = [b"/archive/private/alice/gone", b"/archive/shared/old/gone"]
    assert told() == [] and told(archive=True) == archived == told(under=(b"archive",))
    assert told(archive=True, under=(b"memory", b"shared")) == archived[1:]
    assert told(archive=True, under=(b"memory", b"private", b"alice")) == archived[:1]
    world.write(ALICE, changed.replace("archive", "memory"), b"the owl wakes")
    assert hers.unsearched().endswith(": all of it was searched\n"), "no search of then looked there"
    assert ": 1 file of then" in hers.unsearched(archive=True)
    assert ": 1 file of then" in hers.unsearched(under=(b"archive", b"shared"))


def test_what_was_removed_is_kept_up_to_a_size_and_the_horizon_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "small.db", past_bytes=100_000)
    for number in range(4):
        world.write(ALICE, f"memory/f{number}", random.Random(number).randbytes(40_000))
    before = world.now
    for number in range(4):
        world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=b"f%d" % number)
    world.store.submit(OPERATOR, "trim_past")
    with pytest.raises(NotFound, match="the past is kept from"):
        world.at(ALICE, before)
    assert world.rows("past_version") == 2
    world.store.close()


def test_what_is_no_longer_kept_is_told_and_the_rest_of_a_directory_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path / "small.db", past_bytes=100_000)
    who, top = memory(world, ALICE), world.node(ALICE, "memory").id
    for number in range(4):
        node = world.write(ALICE, f"memory/f{number}", (b"%d" % number) * (200_000 if number < 2 else 9))
        world.do(ALICE, "set_tags", node=node, add=["kept"], remove=[], replace=False)
    then = f"seq.{world.seq()}"
    for number in range(4):
        world.do(ALICE, "unlink", parent=top, name=b"f%d" % number)
    world.write(ALICE, "memory/f0", random.Random(9).randbytes(200_000))
    changes = past_methods.compare(who, then)["changes"]
    assert [each["status"] for each in changes] == ["modified", "removed", "removed", "removed"]
    with pytest.raises(NotFound, match="no longer kept"):
        past_methods.restore(who, "/memory/f1", at=then)
    planned = past_methods.restore(who, "/memory", at=then, dry_run=True)["restored"]
    assert past_methods.restore(who, "/memory", at=then)["restored"] == planned
    assert [(each["path"], each["action"]) for each in planned if each["action"] != "mode"] == [
        ("/memory/f0", "lost"),
        ("/memory/f1", "lost"),
        *((f"/memory/f{number}", action) for number in (2, 3) for action in ("make", "tags")),
    ]
    seen = world.at(ALICE, Moment(world.seq(), world.now))
    assert {path: seen[path][5:] for path in seen if path.startswith(b"/memory/f")} == {
        b"/memory/f0": (random.Random(9).randbytes(200_000), ()),
        b"/memory/f2": (b"2" * 9, ("kept",)),
        b"/memory/f3": (b"3" * 9, ("kept",)),
    }
    world.store.close()


def test_a_change_made_with_the_clock_set_back_ends_none_of_the_past(world: World) -> None:
    seqs = []
    for day in range(40):
        world.now += DAY
        world.write(ALICE, "memory/f", b"%d" % day)
        seqs.append(world.seq())
    world.now -= 60 * DAY
    world.write(BOB, "memory/other", b"x")
    world.now += 60 * DAY
    _trim(world)
    assert world.at(ALICE, Moment(seqs[34], 0))[b"/memory/f"][5] == b"34"
    with pytest.raises(NotFound, match="the past is kept from"):
        world.at(ALICE, Moment(seqs[5], 0))
    with world.store.connection() as (db, _):
        plan = [str(row[3]) for row in db.execute(f"explain query plan {past._YOUNG}", (0, 0))]
    assert plan == ["SEARCH log USING INTEGER PRIMARY KEY (rowid>?)"], "from where the last look ended"


def test_a_directory_has_the_times_of_then_however_fast_names_leave_it(world: World) -> None:
    memory = world.node(ALICE, "memory").id
    busy = world.do(ALICE, "mkdir", parent=memory, name=b"busy", mode=0o755)["node"]
    for number in range(10):
        world.write(ALICE, f"memory/busy/f{number}", b"%d" % number)
    world.do(ALICE, "set_tags", node=world.node(ALICE, "memory/busy/f9").id, add=["last"], remove=[], replace=False)
    seen = {}
    for number in range(10):
        seen[world.seq()] = {path: told for path, told in world.at(ALICE, world.now).items() if b"busy" in path}
        world.now += 50_000_000
        world.store.submit(ALICE, "unlink", parent=busy, name=b"f%d" % number)
    world.store.submit(ALICE, "rename", parent=memory, name=b"busy", new_parent=memory, new_name=b"quiet")
    for seq, was in seen.items():
        then = world.at(ALICE, Moment(seq, world.now))
        assert {path: told for path, told in then.items() if b"busy" in path or b"quiet" in path} == was
        assert then[b"/memory/busy/f9"][6] == ("last",)


def test_what_was_small_before_a_hole_is_kept_and_read_at_its_own_size(world: World) -> None:
    """The writer has a terabyte in memory for none of it; a version of that size is read in pieces."""
    hole, block = 1 << 40, 256 * 1024
    node = world.write(ALICE, "memory/f", b"hello, v1\n")
    world.do(OPERATOR, "snapshot", name="small")

    def commit(number: int, *edits: list[Any]) -> None:
        world.do(ALICE, "commit", node=node, handle=number, edits=list(edits))

    commit(1, ["w", 3 * block, b"far off"], ["t", hole])
    world.do(OPERATOR, "snapshot", name="large")
    for number in range(2, 2 * _FEW_VERSIONS):
        commit(number, ["w", number, b"x"])
    with world.store.reading(ALICE) as reader:
        document = reader.node(node).document
        assert document is not None
        with pytest.raises(TooBig):
            reader.version_bytes(document, reader.versions(document)[0].number)
        small, large = reader.moment("small"), reader.moment("large")
    with world.store.reading_at(ALICE, small) as reader:
        assert reader.read(node, 0, 100) == b"hello, v1\n" == reader.version_bytes(document, 1)
    with world.store.reading_at(ALICE, large) as reader:
        assert reader.read(node, 0, 12) == b"hello, v1\n\0\0"
        assert reader.read(node, 3 * block - 2, 11) == b"\0\0far off\0\0" == b"\0\0" + reader.read(node, 3 * block, 9)
        assert reader.read(node, hole - 2, 100) == b"\0\0"
    assert len(list(traces.of(world.path, "hello, v1"))) >= 1
    with pytest.raises(TooBig):  # nobody has read it whole
        world.do(ALICE, "write_path", path=[b"memory", b"f"], data=b"y", instead_of=b"0" * 32)
    world.do(OPERATOR, "remove_snapshot", name="large")
    world.do(OPERATOR, "remove_snapshot", name="small")
    world.now += 40 * DAY
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=b"f")
    world.now += 40 * DAY
    while world.do(OPERATOR, "trim_past")["more"]:
        pass
    assert world.rows("block") == world.rows("shared") == world.rows("past_version") == 0


def test_what_is_too_large_for_memory_is_compared_and_read_in_pieces(world: World) -> None:
    hole, who = 1 << 40, memory(world, ALICE)
    node = world.write(ALICE, "memory/f", b"hello, v1\n")
    world.write(ALICE, "memory/a", b"is not made before it is known that all can be")
    world.do(ALICE, "commit", node=node, handle=1, edits=[["t", hole]])
    world.do(ALICE, "snapshot", name="s")
    world.do(ALICE, "commit", node=node, handle=2, edits=[["w", 3, b"x"]])
    written = [{"path": "/memory/f", "action": "write"}]
    assert past_methods.restore(who, "/memory/f", version=1, dry_run=True)["restored"] == written
    assert past_methods.compare(who, "snap.s")["changes"] == [{"path": "/memory/f", "status": "modified"}]
    then = PastHandle(who.at(who.moment("snap.s")), node)
    assert then.read(1 << 30, 4096) == bytes(4096) and then.read(0, 12) == b"hello, v1\n\0\0"
    assert then.read(AT_OPEN - 2, 4) == bytes(4) and then.read(hole - 2, 4) == bytes(2) and then.read(hole, 4) == b""
    world.do(ALICE, "unlink", parent=world.node(ALICE, "memory").id, name=b"a")
    for dry_run in (True, False):
        with pytest.raises(TooBig, match=r"1\.0 TiB"):
            past_methods.restore(who, "/memory", at="snap.s", dry_run=dry_run)
    with pytest.raises(NotFound):
        world.node(ALICE, "memory/a")
    past_methods.restore(who, "/memory/f", version=1)
    with world.store.reading(ALICE) as reader:
        assert reader.read(node, 0, 99) == b"hello, v1\n"
    again = PastHandle(who.at(who.moment("snap.s")), node)
    assert again.read(hole - 2, 4) == bytes(2), "its blocks are those of a version that is stated alone"


@pytest.mark.parametrize("end", ["right", "purge"])
def test_a_file_of_the_past_that_is_open_is_read_no_more_once_it_is_not_the_readers(world: World, end: str) -> None:
    node = world.write(ALICE, "memory/f", b"of then")
    then = memory(world, BOB).at(Moment(world.seq(), world.now))
    world.write(ALICE, "memory/f", b"of now")
    held = PastHandle(then, node)
    assert held.read(0, 2) == b"of"
    if end == "right":
        world.do(ALICE, "set_shared", node=node, agents=[])
    else:
        world.do(ALICE, "purge", nodes=[node], documents=[])
    with pytest.raises(Stale):
        held.read(2, 5)


def test_a_file_of_the_past_that_is_open_is_stale_once_its_bytes_are_no_longer_kept(tmp_path: Path) -> None:
    world = World(tmp_path / "few.db", versions=_FEW_VERSIONS)
    node = world.write(ALICE, "memory/f", b"x" * 300_000)
    held = PastHandle(memory(world, ALICE).at(Moment(world.seq(), world.now)), node)
    for number in range(2 * _FEW_VERSIONS):
        world.write(ALICE, "memory/f", b"%d" % number)
    assert held.read(0, 4) == b"xxxx"
    with pytest.raises(Stale):
        held.read(200_000, 4)
    world.store.close()


def test_what_was_large_before_it_took_the_place_of_another_file_is_read_in_pieces(tmp_path: Path) -> None:
    hole = 1 << 40
    world = World(tmp_path / "avm.db", past_bytes=2 * hole)
    who, there = memory(world, ALICE), world.node(ALICE, "memory").id
    world.write(ALICE, "memory/f", b"before")
    node = world.do(ALICE, "create", parent=there, name=b"f.tmp", mode=0o644, exclusive=True)["node"]
    world.do(ALICE, "commit", node=node, handle=1, edits=[["w", 200_000, b"far off"], ["t", hole]])
    then = who.at(Moment(world.seq(), world.now))
    world.do(ALICE, "rename", parent=there, name=b"f.tmp", new_parent=there, new_name=b"f")
    with world.store.connection() as (db, _):
        assert db.execute("select encoding from past_version").get == Encoding.SAME
    past = PastHandle(then, node)
    assert past.read(199_999, 9) == b"\0far off\0" and past.read(hole - 2, 4) == bytes(2)
    world.store.close()


def test_a_snapshot_keeps_a_draft_that_was_saved_over_another_file_whatever_was_said_of_it_since(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "avm.db", versions=_FEW_VERSIONS)
    there = world.node(ALICE, "memory").id
    world.write(ALICE, "memory/f", b"text")
    node = world.write(ALICE, "memory/draft", b"drafted")
    world.do(ALICE, "snapshot", name="s")
    world.do(ALICE, "set_attributes", node=node, mode=0o600)
    world.do(ALICE, "rename", parent=there, name=b"draft", new_parent=there, new_name=b"f")
    for number in range(_FEW_VERSIONS + 4):
        world.write(ALICE, "memory/f", b"%d" % number)
    world.now += 40 * DAY
    _trim(world)
    assert [world.at(ALICE, "s")[b"/memory/" + name][5] for name in (b"f", b"draft")] == [b"text", b"drafted"]
    world.store.close()


def test_of_a_file_that_was_saved_by_rename_more_often_than_is_kept_the_old_bytes_are_gone(tmp_path: Path) -> None:
    """Nothing is damaged: what the temporary file said is the document's version, which has been trimmed."""
    world = World(tmp_path / "avm.db", versions=_FEW_VERSIONS)
    there = world.node(ALICE, "memory").id
    world.write(ALICE, "memory/f", b"text")
    moments = []
    for number in range(_FEW_VERSIONS + 4):
        node = world.write(ALICE, "memory/f.new", b"text %d" % number)
        moments.append((Moment(world.seq(), world.now), node))
        world.do(ALICE, "rename", parent=there, name=b"f.new", new_parent=there, new_name=b"f", flags=0)
    (first, gone), (last, kept) = moments[0], moments[-1]
    with world.store.reading_at(ALICE, last) as reader:
        assert reader.read(kept, 0, 99) == b"text %d" % (_FEW_VERSIONS + 3)
    with world.store.reading_at(ALICE, first) as reader, pytest.raises(NotFound, match="no longer kept"):
        reader.read(gone, 0, 99)
    with world.store.reading_at(ALICE, first) as reader:
        assert b"/memory/f.new" in [entry.path for entry, _ in reader.listing(there, limit=9, offset=0)[0]]
    list(traces.of(world.path, "whatever"))  # looks at every version


def test_what_has_expired_counts_as_not_searched_before_it_is_put_away_too(world: World) -> None:
    node, hers = world.write(ALICE, "memory/log", b"apple\n"), memory(world, ALICE)
    then = hers.at(Moment(world.seq(), world.now))
    world.do(ALICE, "set_ttl", node=node, expires=world.now + 10**10)
    assert "all of it was searched" in then.unsearched()
    world.now += 10**11
    for _ in range(2):
        assert then.search("apple", mode="lexical").hits == ()
        assert ": 1 file of then, changed or gone since, could not be searched" in then.unsearched()
        world.store.submit(OPERATOR, "reap_expired")
