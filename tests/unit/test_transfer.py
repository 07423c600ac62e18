"""Out and in again: what is exported comes back as it was, whoever may not see it has none of it, a second import adds
nothing, and what is refused is counted."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import Busy, Exists, Invalid, OverQuota
from avmfs.memory import Memory
from avmfs.rpc import methods, transferring
from avmfs.rpc.people import create_key
from avmfs.rpc.transferring import INLINE
from avmfs.transfer import exporting, formats, front_matter, importing
from avmfs.transfer.files import output
from avmfs.transfer.importing import Import, Report
from avmfs.transfer.record import Record, Refusal, moment, nanoseconds
from avmfs.trust import Trusted
from tests.unit.views_fixtures import World, opened

OPERATOR = Principal("operator", operator=True)
NATIVE = [name for name, each in formats.readers().items() if each.native]


@dataclass
class Door:
    memory: Memory
    calls: int = 0

    @property
    def agent(self) -> str:
        return self.memory.who.name

    def call(self, method: str, /, **arguments: Any) -> Any:
        self.calls += 1
        return methods.call(self.memory, method, arguments)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than a kilobyte is too large for one call."""
    monkeypatch.setattr("avmfs.transfer.importing.PIECE", 1000)


def test_of_two_outputs_of_one_name_at_once_each_is_whole(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)  # 254 bytes of 255
    with output(path) as late:
        late.write(b"late, ")
        with output(path) as early:
            early.write(b"early")
        assert path.read_bytes() == b"early"
        late.write(b"and whole")
    assert path.read_bytes() == b"late, and whole" and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyError), output(path) as failed:
        failed.write(b"half")
        raise KeyError
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"late, and whole"


Open = Callable[..., World]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Open]:
    """A store of that name."""
    made: list[Any] = []

    def make(name: str, policy: Policy | None = None) -> World:
        context = opened(tmp_path / name, policy)
        (tmp_path / name).mkdir()
        made.append(context)
        return context.__enter__()

    yield make
    for each in made:
        each.__exit__(None, None, None)


def door(world: World, who: str | Principal) -> Door:
    principal = Principal(who) if isinstance(who, str) else who
    return Door(Memory(world.around, principal))


def filled(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/memory/private/alice/secret.md", "alice's own\n")
    alice.put("/memory/shared/plan.md", "the plan\n")
    world.clock.pass_(1)
    alice.put("/memory/shared/plan.md", "the plan, again\n")
    bob.put("/memory/shared/front.md", "---\ntitle: Of bob\ntags: [q]\n---\nbob's\n")
    bob.put("/memory/shared/only a rule.md", "---\nno end of it\n")
    bob.put("/memory/shared/not yaml.md", "---\na: [\n---\nx\n")
    bob.put("/memory/shared/bytes.md", b"\xff\x00\xfe")
    bob.put("/memory/shared/windows.md", b"---\r\na: 1\r\n---\r\nx\r\n")
    bob.put("/memory/shared/empty.md", b"")
    bob.put("/memory/shared/.gitignore", "*.log\n")
    bob.put("/memory/shared/.github/ci.yml", "on: push\n")
    bob.put("/memory/shared/.github/README.md", "---\ntitle: x\n---\nwhat runs\n")
    bob.put("/memory/shared/d/program", b"#!/bin/sh\n" + bytes(range(256)) * 300)
    for name in (b"new\nline.md", b"odd \xff.md", "多.md".encode(), b'a"b\\c', b"q?x=1%41"):
        bob.memory.submit("write_path", path=[b"memory", b"shared", b"names", name], data=name)
    directory = bob.node("/memory/shared/d")
    bob.memory.submit("symlink", parent=directory.id, name=b"link", target=b"../plan.md")
    bob.memory.submit("mkdir", parent=directory.id, name=b"nothing in it", mode=0o755)
    bob.memory.submit("set_attributes", node=bob.node("/memory/shared/d/program").id, mode=0o755, mtime=1_234_567_890)
    plan, secret = alice.node("/memory/shared/plan.md"), alice.node("/memory/private/alice/secret.md")
    alice.memory.submit("set_tags", node=plan.id, add=["x", "market"], remove=[], replace=False)
    alice.memory.submit("merge_meta", node=plan.id, importance=0.5, user={"title": "A plan", "k": {"n": [1, None]}})
    alice.memory.submit("add_link", node=plan.id, target=secret.id, type="follows")
    alice.memory.submit("set_ttl", node=secret.id, expires=world.clock.at + 10**15)
    alice.memory.submit("set_shared", node=plan.id, agents=["carol"])


def exported(world: World, who: str | Principal, path: str = "/memory") -> dict[str, Record]:
    return {each.path: each for each in exporting.records(door(world, who), path)}


def brought(world: World, who: str | Principal, format: str, source: Path, into: str = "/memory", **how: Any) -> Report:
    run = Import(door(world, who), into, now=lambda: world.clock.at, **how)
    report = run.run(formats.readers()[format].call(source))  # type: ignore[arg-type]
    assert report.read == report.added + report.updated + report.same + len(report.refused)
    return report


def newest(world: World) -> int:
    with world.store.reading(OPERATOR) as reader:
        return reader.newest_seq()


@pytest.mark.parametrize("format", NATIVE)
def test_what_is_exported_comes_back_byte_for_byte_with_all_that_is_said_of_it(
    format: str, store: Open, tmp_path: Path
) -> None:
    first, second = store("first"), store("second")
    filled(first)
    for path in ("/memory/shared/d", "/memory/shared/d/nothing in it", "/memory/private/alice"):
        door(first, OPERATOR).memory.submit(
            "set_attributes", node=first.agent("alice").node(path).id, mtime=1_234_567_891
        )
    before = exported(first, OPERATOR)
    assert before["shared/plan.md"].links == (("private/alice/secret.md", "follows"),)
    count = formats.writers()[format].call(tmp_path / "out", iter(before.values()))
    assert count == len(before)
    report = brought(second, OPERATOR, format, tmp_path / "out")
    assert not report.refused and not report.links_refused
    after = exported(second, OPERATOR)
    after["shared"] = replace(after["shared"], updated=before["shared"].updated)  # it stood there before
    assert after == before and before["shared/d/link"].updated and before["shared/d/nothing in it"].updated
    with second.store.reading(Principal("bob")) as reader:
        assert reader.child(4, b"alice") is None, "private stays private"
    at = newest(second)
    again = brought(second, OPERATOR, format, tmp_path / "out")
    assert (again.added, again.updated, again.linked, again.refused) == (0, 0, 0, [])
    assert again.same == len(before) and newest(second) == at, "a second run changes nothing"


@pytest.mark.parametrize("format", NATIVE)
def test_what_was_let_out_of_quarantine_is_out_where_it_comes_in(
    format: str, store: Open, tmp_path: Path, small_pieces: None
) -> None:
    rules = Policy(trusted=(Trusted("web", "/memory/shared/*", "quarantine"),))
    first, second, unruled = store("first", rules), store("second", rules), store("unruled")
    alice, place = first.agent("alice").memory, [b"memory", b"shared"]
    texts = {"a.md": b"of b", "b.md": b"of page", "large.md": b"large " * 1000, "page.md": b"the words of a page\n"}
    texts["twin.md"] = texts["page.md"]
    nodes = {
        name: alice.submit("write_path", path=[*place, name.encode()], data=data, sources=["web"])["node"]
        for name, data in texts.items()
    }
    for name, other in (("a.md", "b.md"), ("b.md", "page.md")):
        alice.submit("add_link", node=nodes[name], target=nodes[other], type="derived")
    for name in nodes.keys() - {"page.md"}:
        alice.submit("let_out", node=nodes[name])
    before = exported(first, OPERATOR, "/memory/shared")
    assert {each.path for each in before.values() if each.data is not None and not each.released} == {"page.md"}
    formats.writers()[format].call(tmp_path / "out", iter(before.values()))
    for world in (second, unruled):
        assert not brought(world, OPERATOR, format, tmp_path / "out", "/memory/shared").refused
        assert exported(world, OPERATOR, "/memory/shared") == before
        at = newest(world)
        again = brought(world, OPERATOR, format, tmp_path / "out", "/memory/shared")
        assert (again.added, again.updated, again.refused) == (0, 0, []) and newest(world) == at


def test_an_agent_exports_what_it_sees_and_nothing_else(store: Open) -> None:
    world = store("first")
    filled(world)
    seen = exported(world, "bob")
    assert "shared/front.md" in seen and not any("alice" in path for path in seen)
    assert "shared/plan.md" not in seen, "it is for alice and carol"
    carols = exported(world, "carol")["shared/plan.md"]
    assert carols.links == () and b"again" in (carols.data or b"")


def test_an_agent_brings_in_what_it_may_make_and_the_rest_is_listed(store: Open, tmp_path: Path) -> None:
    first, second = store("first"), store("second")
    filled(first)
    second.agent("alice").put("/memory/private/alice/other.md", "hers\n")
    formats.writers()["jsonl"].call(tmp_path / "out", iter(exported(first, OPERATOR).values()))
    report = brought(second, "bob", "jsonl", tmp_path / "out")
    refused = {each.where.partition(":")[0] + " " + each.reason for each in report.refused}
    assert report.added > 5 and len(report.refused) == 2 and len(refused) >= 1
    assert "private/alice/secret.md" not in exported(second, OPERATOR)
    mine = exported(second, "bob")["shared/front.md"]
    assert mine.author == "bob"


def test_who_imports_is_named_by_the_log_and_the_author_by_the_metadata(store: Open, tmp_path: Path) -> None:
    first, second = store("first"), store("second")
    filled(first)
    formats.writers()["jsonl"].call(tmp_path / "out", iter(exported(first, OPERATOR).values()))
    brought(second, OPERATOR, "jsonl", tmp_path / "out")
    with second.store.reading(OPERATOR) as reader:
        assert {row.agent for row in reader.changes(1, limit=1000) if row.op == "write"} == {"operator"}
        assert not reader.audit.misattributed(1, (-1, 0), 99)[0]
    assert exported(second, OPERATOR)["shared/plan.md"].author == "alice"


def test_what_differs_is_refused_until_it_is_to_be_replaced(store: Open, tmp_path: Path) -> None:
    world = store("first")
    alice = world.agent("alice")
    alice.put("/memory/shared/a.md", "one\n")
    formats.writers()["jsonl"].call(tmp_path / "out", exporting.records(door(world, "alice"), "/memory/shared"))
    world.clock.pass_(5)
    alice.put("/memory/shared/a.md", "two\n")
    report = brought(world, "alice", "jsonl", tmp_path / "out", "/memory/shared")
    assert [each.where for each in report.refused] == ["out:1"] and "--replace" in report.refused[0].reason
    assert exported(world, "alice")["shared/a.md"].data == b"two\n"
    dry = brought(world, "alice", "jsonl", tmp_path / "out", "/memory/shared", replacing=True, dry=True)
    assert dry.became == [("out:1", "/memory/shared/a.md", "updated")]
    assert exported(world, "alice")["shared/a.md"].data == b"two\n", "a dry run changes nothing"
    assert brought(world, "alice", "jsonl", tmp_path / "out", "/memory/shared", replacing=True).updated == 1
    assert exported(world, "alice")["shared/a.md"].data == b"one\n"
    assert len(methods.call(world.agent("alice").memory, "history", {"path": "/shared/a.md"})["versions"]) == 3


def test_an_import_that_was_cut_off_goes_on(store: Open) -> None:
    world = store("first")
    records = [Record(f"n/{number}.md", str(number).encode()) for number in range(1000)]

    def cut() -> Iterator[Record | Refusal]:
        yield from records[:500]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Import(door(world, "alice"), "/memory/shared").run(cut())
    there = len(exported(world, "alice", "/memory/shared/n"))
    assert there == 400, "what was brought in whole batches stays"
    report = Import(door(world, "alice"), "/memory/shared").run(iter(records))
    assert (report.added, report.same, report.refused) == (600, 400, [])
    assert len(exported(world, "alice", "/memory/shared/n")) == 1000


def test_a_file_larger_than_a_call_comes_whole(store: Open, small_pieces: None) -> None:
    world, data = store("first"), bytes(range(256)) * 40
    report = Import(door(world, "alice"), "/memory/shared").run(iter([Record("big.bin", data, created=5, updated=7)]))
    assert report.added == 1
    got = exported(world, "alice", "/memory/shared")
    assert list(got) == ["big.bin"] and got["big.bin"].data == data and got["big.bin"].updated == 7


def test_a_large_file_comes_in_whatever_the_length_of_its_name(store: Open, small_pieces: None) -> None:
    world, name, data = store("first"), "é" * 125 + ".bin", b"large " * 1000
    report = Import(door(world, "alice"), "/memory/shared").run(iter([Record(name, data)]))
    assert (report.added, report.refused) == (1, [])
    got = exported(world, "alice", "/memory/shared")
    assert list(got) == [name] and got[name].data == data


@dataclass
class Watched(Door):
    """Notes what another agent can read after each call."""

    watch: Door | None = None
    read: list[bytes] = field(default_factory=list)

    def call(self, method: str, /, **arguments: Any) -> Any:
        answer = super().call(method, **arguments)
        assert self.watch is not None
        for each in exporting.records(self.watch, "/memory/shared"):
            self.read += [] if each.data is None else [each.data]
        return answer


@pytest.mark.parametrize("there", [False, True])
def test_a_large_file_that_is_limited_is_so_from_its_first_piece_on(
    there: bool, store: Open, small_pieces: None
) -> None:
    world = store("first")
    if there:
        world.agent("alice").put("/memory/shared/big.bin", b"for all")
    world.agent("alice").put("/memory/shared/.big.bin.importing", b"left by an import that was cut off")
    watched = Watched(door(world, "alice").memory, watch=door(world, "bob"))
    record = Record("big.bin", b"secret " * 1000, mode=0o440, shared=("alice", "carol"))
    report = Import(watched, "/memory/shared", replacing=True).run(iter([record]))
    assert report.added + report.updated == 1 and not report.refused
    assert not any(b"secret" in each for each in watched.read) and (b"for all" in watched.read) == there
    got = exported(world, "carol", "/memory/shared")
    assert list(got) == ["big.bin"] and got["big.bin"].data == record.data
    assert (got["big.bin"].mode, got["big.bin"].shared) == (record.mode, record.shared)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("at", ["big.bin", "big.bin/in.md", "none"])
def test_a_large_file_replaces_nothing_that_came_or_changed_since_the_import_began(
    at: str, there: bool, store: Open, small_pieces: None
) -> None:
    world = store("first")
    if there:
        world.agent("alice").put("/memory/shared/big.bin", b"before")

    class Meanwhile(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if method == "write":
                bob = door(world, "bob")
                if there and at != "big.bin":
                    bob.call("remove", path="/memory/shared/big.bin")
                if at != "none":
                    bob.call("write", path=f"/memory/shared/{at}", data=b"of bob")
            return super().call(method, **arguments)

    run = Import(Meanwhile(door(world, "alice").memory), "/memory/shared", replacing=True)
    report = run.run(iter([Record("big.bin", b"x" * 1500)]))
    new = at == "none" and not there
    assert (report.added, len(report.refused)) == (new, not new), report
    left = {name: each.data for name, each in exported(world, "bob", "/memory/shared").items() if each.data is not None}
    assert left == ({"big.bin": b"x" * 1500} if new else {} if at == "none" else {at: b"of bob"})


def test_what_is_refused_half_way_leaves_nothing(store: Open, small_pieces: None) -> None:
    world = store("first")

    class Full(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if method == "write":
                raise OverQuota("no room")
            return super().call(method, **arguments)

    big = Record("big.bin", bytes(3000))
    report = Import(Full(door(world, "alice").memory), "/memory/shared").run(iter([big, Record("a.md", b"a")]))
    assert [each.reason for each in report.refused] == ["no room"] and report.added == 1
    assert list(exported(world, "alice", "/memory/shared")) == ["a.md"]
    report = Import(door(world, "alice"), "/memory/private/bob").run(iter([big]))
    assert len(report.refused) == 1 and "NotFound" not in report.refused[0].reason


@pytest.mark.parametrize("there", [False, True])
def test_a_large_file_is_refused_with_what_is_said_of_it(there: bool, store: Open, small_pieces: None) -> None:
    world = store("first")
    if there:
        world.agent("alice").put("/memory/shared/big.md", "old")
    before = exported(world, "alice", "/memory/shared")
    for bad in ({"tags": ("a,b",)}, {"importance": 2.0}, {"meta": {"k": "x" * 100_000}}):
        record = Record("big.md", b"x" * 5000, **bad)
        report = Import(door(world, "alice"), "/memory/shared", replacing=True).run(iter([record]))
        assert len(report.refused) == 1 and exported(world, "alice", "/memory/shared") == before, bad


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_large_file_that_is_cut_off_is_all_there_or_not_and_comes_once(
    foreign: bool, there: bool, store: Open, small_pieces: None
) -> None:
    world, over = store("first", Policy(trusted=(Trusted("imported", "/memory/shared/*", "quarantine"),))), False

    class Cut(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if self.calls == number:
                raise KeyboardInterrupt
            return super().call(method, **arguments)

    for number in range(30):
        if over:
            break
        name, source = f"big{number}.md", f"x:{number}" if foreign else None
        old, new = (Record(name, data, tags=(data.decode()[:3],), source=source) for data in (b"old", b"new" * 1000))
        said: Record | None = None
        if there:
            assert Import(door(world, "alice"), "/memory/shared").run(iter([old])).added == 1
            said = exported(world, "alice", "/memory/shared")[name]
        try:
            Import(Cut(door(world, "alice").memory), "/memory/shared", replacing=True).run(iter([new]))
            over = True
        except KeyboardInterrupt:
            left = exported(world, "alice", "/memory/shared").get(name)
            assert left == said or (left is not None and left.data == new.data and left.tags == new.tags), number
        report = Import(door(world, "alice"), "/memory/shared", replacing=True).run(iter([new]))
        assert report.refused == [] and report.read == 1
        found = {
            each: record for each, record in exported(world, "alice", "/memory/shared").items() if name[:-3] in each
        }
        assert list(found) == [name] and found[name].data == new.data and found[name].tags == new.tags
        assert found[name].sources == (("imported",) if foreign else ())
    assert over and number > 5


@pytest.mark.parametrize("format", NATIVE)
def test_an_agent_s_directories_that_take_no_more_come_back_with_what_is_in_them(
    format: str, store: Open, tmp_path: Path
) -> None:
    first, second = store("first"), store("second")
    alice = first.agent("alice")
    for name in ("a.md", "sub/b.md"):
        alice.put(f"/memory/private/alice/closed/{name}", "x\n")
    for name in ("/sub", ""):
        node = alice.node(f"/memory/private/alice/closed{name}").id
        alice.memory.submit("set_attributes", node=node, mode=0o555)
    before = exported(first, "alice", "/private")
    formats.writers()[format].call(tmp_path / "out", iter(before.values()))
    report = brought(second, "alice", format, tmp_path / "out", "/memory/private/alice")
    assert report.refused == [] and report.added == 4
    assert exported(second, "alice", "/private") == before
    assert brought(second, "alice", format, tmp_path / "out", "/memory/private/alice").same == 4


def test_a_second_run_adds_nothing_though_the_store_says_more(store: Open) -> None:
    world = store("first")
    said: dict[str, Any] = {"shared": ("alice",), "meta": {"k": 1, "none": None}, "sources": ("web",)}
    records = [Record("a.md", b"x", author="alice", **said), Record("b.md", b"x", shared=("tom", "alice"))]
    assert Import(door(world, "tom"), "/memory/shared").run(iter(records)).added == 2
    note = world.agent("tom").node("/memory/shared/a.md").id
    world.agent("tom").memory.submit("merge_meta", node=note, importance=None, user={"more": 2})
    for replacing in (False, True):
        report = Import(door(world, "tom"), "/memory/shared", replacing=replacing).run(iter(records))
        assert (report.same, report.refused) == (2, [])
    others = [Record("a.md", b"x", meta={"k": 2}), Record("b.md", b"x", shared=("tom", "bob"))]
    for other in (*others, Record("b.md", b"x", shared=())):
        assert len(Import(door(world, "tom"), "/memory/shared").run(iter([other])).refused) == 1, other


@pytest.mark.parametrize("path", ["../x.md", "a/../../x.md", "/x.md", "a//b", "", "."])
def test_a_path_that_leads_out_of_the_folder_is_refused(path: str, store: Open) -> None:
    world = store("first")
    report = Import(door(world, "alice"), "/memory/shared/in").run(iter([Record(path, b"x", place="the place")]))
    assert [each.where for each in report.refused] == ["the place"]
    assert exported(world, "alice", "/memory/shared") == {}


def test_one_bad_record_does_not_keep_its_batch_out(store: Open) -> None:
    world = store("first")
    bad = (
        Record("bad.md", b"x", tags=("a,b",)),
        Record("bad.md:meta", b"x"),
        Record("more.md", b"x", importance=1e9),
        Record("imp.md", b"x", meta={"k": [[0]] * 9}),
    )
    report = Import(door(world, "alice"), "/memory/shared").run(
        iter([Record("a.md", b"a"), *bad, Record("b.md", b"b")])
    )
    assert report.added == 3 and [each.where for each in report.refused] == ["bad.md", "bad.md:meta", "more.md"]


LINES = (
    '{"path":"\\ud800","content":"x"}',
    '{"path":"l","target":"\\ud800"}',
    '{"path":"m","content":"x","meta":{"k":"\\ud800"}}',
    '{"path":"n","content":"x","meta":{"k":123456789012345678901234567890}}',
    '{"path":"o","content":"x","author":"\\ud800"}',
    '{"path":"p","content":"x","tags":["\\ud800"]}',
    '{"path":"q","content":"x","expires":1e30}',
    '{"path":"r","content":"x","created":"9999-12-31T00:00:00Z"}',
)


@pytest.mark.parametrize(
    ("areas", "actions", "taken"),
    [
        (["/memory/shared/*"], ["read", "search"], []),
        (["/memory/shared/a/*"], ["read", "write"], ["/shared/a/old.md", "/shared/a/new.md", "/shared/a/b/new.md"]),
        (["/"], ["write"], ["/shared/a/old.md", "/shared/a/new.md", "/shared/a/b/new.md", "/shared/b/c/new.md"]),
    ],
)
def test_a_dry_run_refuses_what_a_key_may_not_bring(
    areas: list[str], actions: list[str], taken: list[str], store: Open
) -> None:
    world = store("first")
    alice = world.agent("alice")
    alice.put("/shared/a/old.md", "x")
    made = create_key(alice.memory, paths=areas, actions=actions)
    with world.store.reading(Principal("")) as reader:
        keyed = Memory(world.around, reader.people.shown(made["key"]))
    names = ["/shared/a/old.md", "/shared/a/new.md", "/shared/a/b/new.md", "/shared/b/c/new.md"]
    items = [{"path": name, "tags": ["t"], **({} if "old" in name else {"data": b"x"})} for name in names]
    for dry in (True, False):
        answers = transferring.put(keyed, items=items, dry=dry)
        assert [name for name, refused in zip(names, answers, strict=True) if refused is None] == taken, (dry, answers)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("dry", [False, True])
def test_a_record_that_no_store_could_give_back_is_refused_with_its_place(
    line: str, dry: bool, store: Open, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text('{"path":"a","content":"a"}\n' + line + '\n{"path":"z","content":"z"}\n')
    world = store("first")
    report = brought(world, "alice", "jsonl", tmp_path / "in", "/memory/shared", dry=dry)
    assert report.added == 2 and [each.where for each in report.refused] == ["in:2"]
    assert set(exported(world, "alice", "/memory/shared")) == (set() if dry else {"a", "z"})
    wire.pack(door(world, "alice").call("records"))


def test_an_archive_s_header_that_is_no_object_is_refused_with_its_place(store: Open, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, header in (("a", "[1]"), ("b", "{}"), ("c", "[" * 100_000)):
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = 1, {"AVM.record": header}
            tar.addfile(member, io.BytesIO(b"x"))
    report = brought(store("first"), "alice", "tar", tmp_path / "x.tar", "/memory/shared")
    assert report.added == 1 and [each.where for each in report.refused] == ["x.tar:a", "x.tar:c"]


def test_a_bad_line_beside_a_folder_is_refused_with_its_place(store: Open, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ".avm.jsonl").write_bytes(b'\xff\n{"path": 1, "kind": "directory"}\n[]\n')
    (tmp_path / "in" / "a.txt").write_text("a")
    report = brought(store("first"), "alice", "markdown", tmp_path / "in", "/memory/shared")
    assert report.added == 1 and [each.where for each in report.refused] == [f".avm.jsonl:{n}" for n in (1, 2, 3)]


@dataclass
class Weighed(Door):
    """The bytes of its largest request or answer."""

    most: int = 0

    def call(self, method: str, /, **arguments: Any) -> Any:
        answer = super().call(method, **arguments)
        self.most = max(self.most, len(wire.pack(arguments)), len(wire.pack(answer)))
        return answer


def test_notes_of_much_metadata_go_by_few_at_a_time_and_none_is_lost(
    store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transferring, "ANSWER", 20_000)
    monkeypatch.setattr(importing, "BATCH_BYTES", 20_000)
    first, second = store("first"), store("second")
    alice = first.agent("alice")
    for number in range(20):
        node = alice.node(alice.put(f"/memory/shared/{number}.md", "little\n"))
        alice.memory.submit("merge_meta", node=node.id, importance=None, user={"said": "x" * 5_000})
    out, into = (Weighed(door(world, "alice").memory) for world in (first, second))
    told = exporting.records(out, "/memory/shared")
    assert Import(into, "/memory/shared", now=lambda: second.clock.at).run(told).added == 20
    assert exported(first, "alice", "/memory/shared").keys() == exported(second, "alice", "/memory/shared").keys()
    assert 20_000 < out.most < 26_000 and 20_000 < into.most < 26_000


def test_a_file_called_as_what_a_folder_has_beside_is_not_lost_unsaid(store: Open, tmp_path: Path) -> None:
    first, second = store("first"), store("second")
    alice = first.agent("alice")
    for name, text in (("a.txt", "a\n"), (".avm.jsonl", '{"kind": "file", "path": "a.txt"}\n'), ("z.txt", "z\n")):
        alice.put(f"/memory/shared/{name}", text)
    alice.memory.submit("set_tags", node=alice.node("/memory/shared/z.txt").id, add=["t"], remove=[], replace=False)
    records = exporting.records(door(first, "alice"), "/memory/shared")
    with pytest.raises(Invalid, match=r"all is exported but \.avm\.jsonl: "):
        formats.writers()["markdown"].call(tmp_path / "out", records)
    assert brought(second, "alice", "markdown", tmp_path / "out", "/memory/shared").added == 2
    assert exported(second, "alice", "/memory/shared")["z.txt"].tags == ("t",)


def test_a_file_whose_name_another_has_on_this_disk_is_not_lost_unsaid(tmp_path: Path) -> None:
    """As ``A.md`` has that of ``a.md`` on a disk where the case of letters says nothing."""
    records = [
        *(Record("a.md", data) for data in (b"1", b"2")),
        Record("a.md/in.md", b"3"),
        Record("a.md"),
        Record("z"),
    ]
    with pytest.raises(Invalid, match=r"all is exported but a\.md, a\.md/in\.md, a\.md: "):
        formats.writers()["markdown"].call(tmp_path / "out", iter(records))
    read: Any = formats.readers()["markdown"].call(tmp_path / "out")
    assert [(each.path, each.data) for each in read] == [("z", None), ("a.md", b"1")]


def repository(world: World, path: str, at: Path, left: dict[str, str] | None = None) -> Callable[..., bytes]:
    """git in a repository that has the history below a path."""
    formats.writers()["git"].call(at / "out", exporting.history(door(world, OPERATOR), path, left))

    def git(*arguments: str, data: bytes = b"") -> bytes:
        command = ["git", "-C", str(at / "repo"), "-c", "safe.directory=*", *arguments]
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout

    subprocess.run(["git", "init", "-q", "-b", "main", str(at / "repo")], check=True)
    git("fast-import", "--quiet", data=(at / "out").read_bytes())
    assert git("fsck", "--strict") == b""
    return git


def test_git_reads_the_history_with_the_agents_as_authors(store: Open, tmp_path: Path) -> None:
    world = store("first")
    filled(world)
    alice = world.agent("alice")
    alice.memory.rename(b"/memory/shared/d", b"/memory/shared/e")
    alice.memory.rename(b"/memory/shared/front.md", b"/memory/shared/e/front.md")
    world.clock.pass_(1)
    alice.put("/memory/shared/e/front.md", "alice changed it\n")
    alice.put("/memory/shared/gone.md", "gone\n")
    alice.memory.delete("/memory/shared/gone.md")
    git = repository(world, "/memory", tmp_path)
    names = git("ls-tree", "-rz", "--name-only", "main").split(b"\0")[:-1]
    now = {
        each.path.encode("utf-8", "surrogateescape"): each
        for each in exporting.records(door(world, OPERATOR), "/memory")
    }
    assert sorted(names) == sorted(name for name, each in now.items() if each.kind != "directory")
    for name, each in now.items():
        if each.kind == "file":
            assert git("cat-file", "blob", "main:" + os.fsdecode(name)) == each.data
    log = git("log", "--format=%an %s", "--follow", "main", "--", "shared/e/front.md").decode().splitlines()
    assert log == ["alice write shared/e/front.md", "alice rename shared/e/front.md", "bob write shared/front.md"]
    assert b"-the plan\n+the plan, again" in git("log", "-p", "main")


def test_each_commit_has_the_tree_as_it_was_whatever_directories_were_renamed(store: Open, tmp_path: Path) -> None:
    world, top = store("first"), "/memory/shared/top"
    alice = world.agent("alice")
    trees: list[dict[str, bytes]] = []

    def put(name: str) -> None:
        alice.put(f"{top}/{name}", f"{len(trees)}\n")
        done()

    def rename(was: str, name: str) -> None:
        alice.memory.rename(f"{top}/{was}".encode(), f"{top}/{name}".encode())
        done()

    def done() -> None:
        world.clock.pass_(1)
        trees.append(
            {path: each.data for path, each in exported(world, OPERATOR, top).items() if each.data is not None}
        )

    put("d/f")
    put("d/sub/g")
    put("dd")
    rename("d", "e")
    put("d/f")
    rename("e/f", "e/g")
    rename("d/f", "d/h")
    rename("e/sub", "sub")
    put("sub/g")
    git = repository(world, top, tmp_path)
    commits = git("rev-list", "--reverse", "main").decode().split()
    found = [
        {
            name: git("cat-file", "blob", f"{commit}:{name}")
            for name in git("ls-tree", "-r", "--name-only", commit).decode().split()
        }
        for commit in commits
    ]
    assert found == trees


def test_what_is_git_s_own_in_a_repository_is_left_out_of_the_history_and_named(store: Open, tmp_path: Path) -> None:
    world, top = store("first"), "/memory/shared"
    alice = world.agent("alice")
    own = ("p/.git/HEAD", "p/.git/out.md", "q/.GIT./HEAD", "git~1")
    for name in (*own, "p/a.md", "p/in.md", ".github/b.md", "r/c.md"):
        alice.put(f"{top}/{name}", name)
    world.clock.pass_(1)
    for was, name in (("p/.git/out.md", "p/out.md"), ("p/in.md", "p/.git/in.md"), ("r", "r.git"), ("p", "s")):
        alice.memory.rename(f"{top}/{was}".encode(), f"{top}/{name}".encode())
    left: dict[str, str] = {}
    git = repository(world, "/memory", tmp_path, left)
    git("checkout", "-q", "main")
    repo = tmp_path / "repo"
    found = {str(each.relative_to(repo / "shared")): each.read_text() for each in repo.glob("shared/**/*.md")}
    came = {"s/a.md": "p/a.md", "s/out.md": "p/.git/out.md", ".github/b.md": ".github/b.md", "r.git/c.md": "r/c.md"}
    assert found == came
    assert left == dict.fromkeys((f"{top}/{name}" for name in ("git~1", "q/.GIT.", "s/.git")), exporting.GITS)


def test_the_history_for_an_agent_has_nothing_of_what_it_cannot_see(store: Open, tmp_path: Path) -> None:
    world = store("first")
    filled(world)
    alice = world.agent("alice")
    alice.memory.rename(b"/memory/private/alice/secret.md", b"/memory/shared/told.md")
    world.clock.pass_(1)
    alice.put("/memory/shared/told.md", "for everybody\n")
    formats.writers()["git"].call(tmp_path / "out", exporting.history(door(world, "bob"), "/memory"))
    said = (tmp_path / "out").read_bytes()
    assert b"for everybody" in said
    assert not any(hers in said for hers in (b"alice's own", b"private/alice", b"shared/plan.md", b"the plan"))


@dataclass
class Meddled(Door):
    """Before each call of a method about a file, something is done to it."""

    method: str = ""
    path: str = ""
    meddle: Callable[[str], object] = lambda path: None

    def call(self, method: str, /, **arguments: Any) -> Any:
        if method == self.method and arguments["path"] == self.path:
            self.meddle(self.path)
        if method == "read":
            arguments.setdefault("limit", 100_000)
        return super().call(method, **arguments)


@pytest.mark.parametrize(
    ("format", "method"), [("git", "history"), ("git", "version"), ("git", "read"), ("tar", "read")]
)
@pytest.mark.parametrize("becomes", [None, "a directory"])
def test_what_goes_while_it_is_exported_is_left_out(
    becomes: str | None, format: str, method: str, store: Open, tmp_path: Path
) -> None:
    world, gone = store("first"), list[str]()
    alice, path = world.agent("alice"), "/memory/shared/goes.md"
    alice.put("/memory/shared/a.md", "stays")
    alice.put(path, b"goes" * INLINE)
    alice.put("/memory/shared/z.md", "stays")

    def goes(path: str) -> None:
        if not gone:
            gone.append(path)
            alice.memory.delete(path)
            if becomes is not None:
                alice.put(f"{path}/in.md", "in it")

    source = Meddled(door(world, OPERATOR).memory, method=method, path=path, meddle=goes)
    if format == "tar":
        assert [each.path for each in exporting.records(source, "/memory/shared")] == ["a.md", "z.md"]
        return
    tree = set[str]()
    for step in exporting.history(source, "/memory/shared"):
        tree -= set(step.gone)
        tree |= {name for name, _, _ in step.written}
    assert tree == {"a.md", "z.md"}


@pytest.mark.parametrize("format", ["git", "tar"])
def test_a_large_file_that_changes_while_it_is_read_is_named_and_the_others_are_exported(
    format: str, store: Open
) -> None:
    world, path = store("first"), "/memory/shared/busy.log"
    alice = world.agent("alice")
    alice.put("/memory/shared/a.md", "a")
    alice.put(path, b"line\n" * INLINE)
    alice.put("/memory/shared/z.md", "z")

    def grows(path: str) -> None:
        alice.memory.submit("write_path", path=path.encode().split(b"/")[1:], data=b"more\n", mode="append")

    def busy() -> Door:
        return Meddled(door(world, OPERATOR).memory, method="read", path=path, meddle=grows)

    source: Any = exporting.history if format == "git" else exporting.records
    with pytest.raises(Busy, match=path):
        list(source(busy(), "/memory/shared"))
    left: dict[str, str] = {}
    found = list(source(busy(), "/memory/shared", left))
    assert left == {path: exporting.HALFWAY}
    if format == "tar":
        assert [each.path for each in found] == ["a.md", "z.md"]
    else:
        assert {name for step in found for name, _, _ in step.written} == {"a.md", "busy.log", "z.md"}
        assert not any(step.gone for step in found)


SMILE = "\U0001f600"
AWKWARD = (
    Record("emoji.md", b"x", tags=(SMILE,), meta={"title": f"{SMILE} a", "k": SMILE}),
    Record("emoji in front.md", b"---\na: 1\n---\nx", tags=(SMILE,), meta={"title": SMILE}),
    Record(
        "breaks.md", b"x", author="a\x7f\x85\u2028\u2029\ufeff\ufffe\uffff\ud7ff\ue000", meta={"\x85": "\u2028 \x9f"}
    ),
    Record("surrogate.md", b"x", links=(("\udcff", "about"),)),
    Record("prose.md", b"---\nSome prose.\n---\nMore.\n", tags=("t",)),
    Record("list.md", b"---\n- a\n- b\n---\nx\n", tags=("t",)),
    Record("flow.md", b"---\n{a: 1}\n---\nx\n", tags=("t",)),
    Record("indented.md", b"---\n  a: 1\n  b: 2\n---\nx\n", tags=("t",)),
    Record("nothing.md", b"---\n---\nx\n", tags=("t",)),
    Record("long.md", b"x", meta={"k" * 1100: 1}),
    Record("number.md", b"x", meta={"k": 1e22}),
    Record("once exported.md", b'---\navm: {"own": true}\n---\nx', tags=("t",)),
    Record("says it too.md", b"---\navm: {}\na: 1\n---\nx", tags=("t",)),
)


@pytest.mark.parametrize("note", AWKWARD, ids=lambda note: note.path)
def test_a_note_comes_back_from_a_folder_whatever_it_says(note: Record, tmp_path: Path) -> None:
    formats.writers()["markdown"].call(tmp_path / "out", iter([note]))
    [back] = list(formats.readers()["markdown"].call(tmp_path / "out"))  # type: ignore[call-overload]
    assert isinstance(back, Record), back
    assert replace(back, place="", updated=None) == note


def test_a_folder_of_notes_that_people_write_is_read_as_it_is(store: Open, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text(
        "---\ntitle: An A\ntags: [x, y]\ncreated: 2026-01-02\nauthor: kim\n---\ntext\n"
    )
    (tmp_path / "notes" / "bad.md").write_text("---\na: [\n---\nx\n")
    (tmp_path / "notes" / ".hidden").write_text("x")
    (tmp_path / "notes" / "link.md").symlink_to("a.md")
    world = store("first")
    report = brought(world, "alice", "markdown", tmp_path / "notes", "/memory/shared")
    assert report.added == 1 and [each.where for each in report.refused] == ["bad.md", "link.md"]
    got = exported(world, "alice", "/memory/shared")["a.md"]
    assert got.data == (tmp_path / "notes" / "a.md").read_bytes() and got.tags == ("x", "y") and got.author == "kim"
    assert got.created == nanoseconds("2026-01-02") and got.meta == {"title": "An A"}


def test_a_note_that_people_wrote_is_as_old_as_its_file_and_the_same_where_that_is_another_copy(
    store: Open, tmp_path: Path
) -> None:
    notes, world = tmp_path / "notes", store("first")
    notes.mkdir()
    said = {"a.md": b"a\n", "tags.md": b"---\ntags: x\n---\nb\n", "c.txt": b"c\n"}
    dated = b"---\ndate: 2020-01-01\nmodified: 2021-01-01\n---\nd\n"
    for name, data in {**said, "dated.md": dated}.items():
        (notes / name).write_bytes(data)
        os.utime(notes / name, ns=(10**18, 10**18))
    assert brought(world, "alice", "markdown", notes, "/memory/shared").added == 4
    got = exported(world, "alice", "/memory/shared")
    assert {name: each.updated for name, each in got.items()} == {
        **dict.fromkeys(said, 10**18),
        "dated.md": nanoseconds("2021-01-01"),
    }
    for name in said:
        os.utime(notes / name)  # as git or cp does it
    again = brought(world, "alice", "markdown", notes, "/memory/shared")
    assert (again.same, again.refused) == (4, [])


def test_what_a_person_changes_in_our_front_matter_holds(store: Open, tmp_path: Path) -> None:
    first, second = store("first"), store("second")
    filled(first)
    formats.writers()["markdown"].call(tmp_path / "out", exporting.records(door(first, OPERATOR), "/memory"))
    note = tmp_path / "out" / "shared" / "plan.md"
    note.write_text(note.read_text().replace('"market"', '"shop"').replace("the plan", "a plan"))
    brought(second, OPERATOR, "markdown", tmp_path / "out")
    got = exported(second, OPERATOR)["shared/plan.md"]
    assert got.tags == ("shop", "x") and got.data == b"a plan, again\n" and got.importance == 0.5


def test_a_folder_of_an_export_is_its_owner_s_alone(store: Open, tmp_path: Path) -> None:
    world = store("first")
    filled(world)
    before = os.umask(0o022)
    try:
        formats.writers()["markdown"].call(
            tmp_path / "new" / "out", exporting.records(door(world, OPERATOR), "/memory")
        )
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert tmp_path / "new" / "out" / "shared" / "plan.md" in made and len([*filter(Path.is_dir, made)]) > 4
    assert [each for each in made if each.stat().st_mode & 0o077] == []


def test_a_folder_that_has_something_is_no_place_for_an_export(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(Exists):
        formats.writers()["markdown"].call(tmp_path, iter([Record("a.md", b"x")]))
    assert (tmp_path / "x").read_text() == "mine"


def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    def failing() -> Iterator[Record]:
        yield Record("a.md", b"x")
        raise OSError("no more")

    (tmp_path / "out").write_text("before")
    with pytest.raises(OSError, match="no more"):
        formats.writers()["jsonl"].call(tmp_path / "out", failing())
    assert (tmp_path / "out").read_text() == "before" and len(list(tmp_path.iterdir())) == 1


def test_archives_and_lines_that_are_broken_name_the_place(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(
        b'{"path": "a", "content": "x"}\n{\n\xff\n{"path": 1}\n{"path": "b", "base64": "*"}\n'
        b'{"path": "c", "content": "x", "created": "then"}\n'
        b'{"path": "d", "content": "\\ud800"}\n'
    )
    found = list(formats.readers()["jsonl"].call(tmp_path / "lines"))  # type: ignore[call-overload]
    assert [each.where for each in found if isinstance(each, Refusal)] == [f"lines:{n}" for n in range(2, 8)]
    formats.writers()["tar"].call(tmp_path / "whole", iter([Record("a", b"x" * 100_000), Record("b", b"y" * 9999)]))
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-40])
    with pytest.raises(Invalid, match="read to its end"):
        list(formats.readers()["tar"].call(tmp_path / "cut"))  # type: ignore[call-overload]


def test_times_are_read_as_others_write_them() -> None:
    assert nanoseconds("2026-03-01T12:00:00.123456789Z") == nanoseconds("2026-03-01T13:00:00.123456789+01:00")
    assert moment(nanoseconds("2026-03-01T12:00:00.000000001Z")) == "2026-03-01T12:00:00.000000001Z"
    assert nanoseconds(1772366400) == nanoseconds(1772366400000) == nanoseconds("2026-03-01 12:00:00")
    for bare, said in (("20260307", "2026-03-07"), ("202603071405", "2026-03-07T14:05:00")):
        assert nanoseconds(int(bare)) == nanoseconds(bare) == nanoseconds(said)
    assert nanoseconds(20260307140509) == nanoseconds("2026-03-07T14:05:09")
    assert nanoseconds(20261399) == nanoseconds(20261399.0) == 20261399 * 10**9, "no date, so seconds"
    with pytest.raises(ValueError, match="soon"):
        nanoseconds("soon")


def test_front_matter_gives_the_bytes_back() -> None:
    for data in (b"", b"---\n", b"---\n---\n", b"text", b"---\nx: 1\n---\n", b"---\nx: 1\n---", b"\n---\na\n---\n"):
        said, back, _ = front_matter.without_said(front_matter.with_said(data, {"tags": ["a"], "mode": "0644"}))
        assert back == data and said["tags"] == ["a"]


@pytest.mark.parametrize("replacing", [False, True])
def test_what_has_expired_is_refused_and_leaves_what_is_there(replacing: bool, store: Open) -> None:
    world = store("first")
    world.agent("alice").put("/memory/shared/there.md", "lives\n")
    records = [Record(f"{name}.md", b"x\n", expires=1, place=name) for name in ("there", "new")]
    report = Import(door(world, "alice"), "/memory/shared", replacing=replacing).run(iter(records))
    assert (report.added, report.updated) == (0, 0)
    assert report.refused == [Refusal(name, "its ttl has passed") for name in ("there", "new")]
    assert exported(world, "alice")["shared/there.md"].data == b"lives\n"
