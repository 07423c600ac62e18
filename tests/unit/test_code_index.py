"""The index of code: what each language's files define, that only what changed is written, that nobody else writes
there, and that questions find the right place."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Access, Key, Policy, Principal, Rule
from avmfs.cli.indexing import named
from avmfs.codeindex import finding, modules, scanning
from avmfs.codeindex import sources as sources_of
from avmfs.codeindex.languages import BY_SUFFIX
from avmfs.codeindex.parsing import Module, Symbol, parse
from avmfs.errors import AvmError, Busy, Denied, Invalid, NotFound
from avmfs.memory import Memory
from avmfs.rpc import methods
from tests.unit.views_fixtures import World, opened

SAMPLES = {
    "a.py": (
        '''"""What it is for."""\nLIMIT = 3\n\n@cache\ndef top(a: int) -> str:\n    """Make text.\n\n    More."""\n'''
        "    return str(a.b())\n\nclass Box(Base):\n    def put(self): pass\n",
        "constant LIMIT 2 |LIMIT = 3||; function top 5 |def top(a: int) -> str|Make text.|str,b;"
        " class Box 11 |class Box(Base)||; method Box.put 12 |def put(self)||",
    ),
    "a.js": (
        "// Adds.\nexport function add(a, b) { return sum(a, b) }\nclass A {\n  run() { new B() }\n}\n"
        "const f = async (x) => x;\nexports.g = function (y) {};\nconst K = 1;\n",
        "function add 2 |function add(a, b)|Adds.|sum; class A 3 |class A||; method A.run 4 |run()||B;"
        " function f 6 |f = async (x)||; function g 7 |exports.g = function (y)||; constant K 8 |K = 1||",
    ),
    "a.ts": (
        "/** A shape.\n * @see x */\nexport interface Shape {\n  area(n: number): number;\n}\nenum E { a }\n"
        "type T = string;\nabstract class C {\n  private x = () => 1;\n}\n",
        "interface Shape 3 |interface Shape|A shape.|; method Shape.area 4 |area(n: number): number||;"
        " enum E 6 |enum E||; type T 7 |type T = string||; class C 8 |abstract class C||;"
        " method C.x 9 |private x = ()||",
    ),
    "a.go": (
        "package p\n\n// Box holds.\ntype Box struct {\n\tx int\n}\n\n// Put puts.\nfunc (b *Box) Put(x int) error {\n"
        "\treturn b.inner.Store(x)\n}\n\nconst (\n\tA = 1\n)\n",
        "struct Box 4 |Box struct|Box holds.|; method Box.Put 9 |func (b *Box) Put(x int) error|Put puts.|Store;"
        " constant A 14 |A = 1||",
    ),
    "a.rs": (
        "//! The crate.\n\n/// A box.\n#[derive(Debug)]\npub struct Box<T> { x: T }\n\nimpl<T> Trait for Box<T> {\n"
        "    fn put(&self) { self.store::<u8>(1); log!(2) }\n}\nmacro_rules! log { () => {} }\n",
        "struct Box 5 |pub struct Box<T>|A box.|; method Box.put 8 |fn put(&self)||store,log; macro log 10",
    ),
    "A.java": (
        "package p;\n\n/** A box. */\npublic class A<T> {\n  static final int K = 1;\n  A() {}\n"
        "  /** Puts. */\n  void put(int a) { b.store(a); new C<D>(1); }\n}\n",
        "class A 4 |public class A<T>|A box.|; constant A.K 5 |static final int K = 1||; method A.A 6 |A()||;"
        " method A.put 8 |void put(int a)|Puts.|store,C",
    ),
    "a.c": (
        "/* Copyright */\n\n/* Finds it. */\nstatic int *find(int a)\n{\n  return look(a);\n}\nstruct s { int a; };\n"
        "#define MAX 1\nint other(void);\n",
        "function find 4 |static int *find(int a)|Finds it.|look; struct s 8 |struct s||; macro MAX 9 |#define MAX 1||;"
        " prototype other 10 |int other(void)||",
    ),
    "a.cpp": (
        "namespace n {\nclass A : public B {\n  int f(int a) const;\n};\n// Does f.\n"
        "int A::f(int a) const { return q::z<int>(1); }\n}\n",
        "namespace n 1 |namespace n||; class n.A 2 |class A : public B||; method n.A.f 3 |int f(int a) const||;"
        " function n.A.f 6 |int A::f(int a) const|Does f.|z",
    ),
}


@dataclass
class Door:
    memory: Memory

    @property
    def agent(self) -> str:
        return self.memory.who.name

    def call(self, method: str, /, **arguments: Any) -> Any:
        return methods.call(self.memory, method, arguments)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path / "store", Policy([Rule("/index/hidden*", Access.NONE, ("bob",))])) as made:
        yield made


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "house"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "door.py").write_text('def open_door(key):\n    """Let somebody in."""\n    turn(key)\n')
    (folder / "src" / "RoofTop.java").write_text("class RoofTop { void keepRainOut() { sealEdges(); } }\n")
    return folder


def door(world: World, name: str) -> Door:
    return Door(world.agent(name).memory)


def sources(world: World, name: str = "alice", project: str = "house") -> dict[str, int]:
    """Of each note: its document."""
    where = modules.folder(project)
    told = door(world, name).call("records", path=where)["records"]
    return {each["path"][len(where) + 1 :]: each["document"] for each in told if each["kind"] == "file"}


def found(places: list[modules.Place]) -> list[str]:
    return [f"{each.source}:{each.symbol.line} {each.symbol.name}" for each in places]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_file_defines(name: str) -> None:
    text, wanted = SAMPLES[name]
    module = parse(text.encode(), BY_SUFFIX[os.path.splitext(name)[1]])
    got = [
        f"{each.kind} {each.name} {each.line} |{each.signature}|{each.doc}|{','.join(each.calls)}"
        for each in module.symbols
    ]
    assert not module.broken
    for line, want in zip(got, wanted.split("; "), strict=True):
        assert line.startswith(want.strip().rstrip("|")), (line, want)


def test_a_note_is_read_as_it_was_written() -> None:
    symbols = tuple(
        Symbol(f"C.f{n}", "method", n + 1, f"def f{n}()", "Says" * (n % 2), ("a", "b")[:n]) for n in range(3)
    )
    odd = Symbol("operator ==", "method", 9, "bool operator==(X a)", "## not a (heading, line 3)")
    module = Module("python", 9, "Doc.", (*symbols, odd))
    assert tuple(modules.read(modules.written("a.py", module))) == module.symbols
    assert modules.apart("HTTPServer.maxRetryDelay_ms") == "http server max retry delay ms"


def test_only_what_changed_is_written_and_what_moved_keeps_its_document(world: World, code: Path) -> None:
    alice = door(world, "alice")
    first = scanning.scan(alice, "house", code)
    assert (first.files, first.added, first.languages) == (2, 2, {"java": 1, "python": 1})
    before, seq = sources(world), newest(world)
    assert set(before) == {"INDEX.md", "src/door.py.md", "src/RoofTop.java.md"}
    again = scanning.scan(alice, "house")
    assert (again.added, again.changed, again.moved, again.removed, newest(world)) == (0, 0, 0, 0, seq)
    (code / "new").mkdir()
    (code / "src" / "RoofTop.java").rename(code / "new" / "Top.java")
    (code / "src" / "door.py").write_text("def shut_door(): pass\n")
    assert scanning.status(alice, "house") | {"new": 1, "changed": 1, "gone": 1} == scanning.status(alice, "house")
    third = scanning.scan(alice, "house")
    assert (third.added, third.changed, third.moved, third.removed) == (0, 1, 1, 0)
    after = sources(world)
    assert after["new/Top.java.md"] == before["src/RoofTop.java.md"] and "src/RoofTop.java.md" not in after
    assert found(list(finding.sigs(alice, "house", "src"))) == ["src/door.py:1 shut_door"]
    (code / "src" / "door.py").unlink()
    assert scanning.scan(alice, "house").removed == 1 and set(sources(world)) == {"INDEX.md", "new/Top.java.md"}
    assert scanning.drop(alice, "house") == 2
    with pytest.raises(NotFound):
        scanning.status(alice, "house")
    assert [each["name"] for each in alice.call("entries", path="/index")] == ["private"]


def newest(world: World) -> int:
    with world.store.reading(Principal("o", operator=True)) as reader:
        return int(reader.newest_seq())


def test_what_is_no_source_is_left_out_and_counted(world: World, code: Path) -> None:
    (code / ".gitignore").write_text("build/\n*_gen.py\n!keep_gen.py\n")
    for name, data in {
        "build/x.py": b"def ignored(): pass\n",
        "x_gen.py": b"def ignored(): pass\n",
        "keep_gen.py": b"def kept(): pass\n",
        "big.py": b"x = 1\n" * 200_000,
        "made.go": b"// Code generated by tool. DO NOT EDIT.\npackage p\n",
        "packed.js": b"var a=1;" * 1000,
        "binary.c": b"int a;\0",
        "latin.py": "def caf\xe9(): pass\n".encode("latin-1"),
        "broken.py": b"def whole(): pass\ndef (:\n",
        "a:meta?q=.py": b"def unnamed(): pass\n",
        ".git/x.py": b"",
        "node_modules/x.js": b"",
        "x.txt": b"",
    }.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(data)
    (code / "loop").symlink_to(code)
    (code / "src" / "link.py").symlink_to("door.py")
    (code / "sub").mkdir()
    (code / "sub" / ".gitignore").write_text("/own.py\n")
    (code / "sub" / "own.py").write_text("")
    report = scanning.scan(door(world, "alice"), "house", code)
    assert report.left_out == {"generated": 2, "ignored": 3, "large": 1, "link": 1, "not text": 1}
    assert (report.broken, report.not_utf8, report.files) == (1, 1, 5)
    assert [each[0] for each in report.refused] == ["a:meta?q=.py"]
    names = [each.symbol.name for each in finding.sigs(door(world, "alice"), "house")]
    assert set(names) == {"whole", "kept", "caf\xe9", "open_door", "RoofTop", "RoofTop.keepRainOut"}


def test_what_is_no_pattern_and_a_gitignore_that_cannot_be_read_leave_nothing_out(
    world: World, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / ".gitignore").write_text("build/\nbin\\\n!\n[z-a]\n*_gen.py\n")
    for name in ("build/x.py", "x_gen.py", "bin/kept.py", "sub/.gitignore", "sub/kept.py"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("")
    real = Path.read_text

    def read(self: Path, *how: Any, **named: Any) -> str:
        if self == code / "sub" / ".gitignore":
            raise PermissionError
        return real(self, *how, **named)

    monkeypatch.setattr(Path, "read_text", read)
    report = scanning.scan(door(world, "alice"), "house", code)
    assert report.left_out == {"ignored": 2, "no pattern": 3, "unreadable": 1} and report.files == 4
    assert scanning.status(door(world, "alice"), "house")["here"] is True


def test_a_file_that_goes_while_it_is_looked_for_ends_no_scan(code: Path) -> None:
    found = sources_of.files(code, Counter())
    assert next(found)[0] == "src/RoofTop.java"
    (code / "src" / "door.py").unlink()
    assert list(found) == []


def test_nobody_but_the_scan_of_its_agent_writes_there(world: World, code: Path) -> None:
    alice, bob = door(world, "alice"), door(world, "bob")
    scanning.scan(alice, "house", code)
    note = "/index/house/src/door.py.md"
    assert b"open_door" in bob.call("read", path=note)["data"]
    for who in (alice, bob):
        for method, arguments in (
            ("write", {"path": note, "data": b"x"}),
            ("write", {"path": "/index/house/own.md", "data": b"x"}),
            ("write", {"path": "/index/own.md", "data": b"x"}),
            ("make_directory", {"path": "/index/other"}),
            ("remove", {"path": note}),
            ("remove", {"path": "/index/house", "recursive": True}),
            ("move", {"source": note, "target": "/memory/x.md"}),
            ("archive", {"path": note}),
            ("put_back", {"path": note}),
            ("tag", {"path": note, "add": ["x"]}),
            ("write", {"path": f"{note}:ttl", "data": b"1s"}),
            ("write", {"path": f"{note}:shared", "data": b"bob"}),
        ):
            with pytest.raises(AvmError):
                who.call(method, **arguments)
        who.call("write", path=f"/memory/{who.agent}.md", data=b"x")
        with pytest.raises(AvmError):
            who.call("move", source=f"/memory/{who.agent}.md", target="/index/house/x.md")
    for refused in (lambda: scanning.scan(bob, "house", code), lambda: scanning.drop(bob, "house")):
        with pytest.raises(Denied, match="another agent"):
            refused()
    for project in ("a/b", "..", "private", "", "x" * 65):
        with pytest.raises(Invalid, match="expected letters"):
            scanning.scan(alice, project, code)
        with pytest.raises(Invalid, match="expected letters"):
            world.store.submit(Principal("alice"), "write_index", project=project.encode(), items=[])
    assert set(sources(world, "bob")) == {"INDEX.md", "src/door.py.md", "src/RoofTop.java.md"}


def test_who_may_see_an_index(world: World, code: Path) -> None:
    alice, bob = door(world, "alice"), door(world, "bob")
    scanning.scan(alice, "mine", code, private=True)
    scanning.scan(alice, "hidden", code)
    assert [each["project"] for each in scanning.projects(alice)] == ["hidden", "mine"]
    assert scanning.projects(bob) == [] and bob.call("entries", path="/index/private") == []
    assert finding.find(bob, "open door") == [] and finding.callers(bob, "turn") == []
    for project in ("mine", "hidden"):
        for ask in (scanning.status, finding.sigs):
            with pytest.raises(NotFound, match="no such project"):
                list(ask(bob, project))
    assert len(finding.find(alice, "open door", "mine")) == 1
    with pytest.raises(Denied):
        scanning.scan(bob, "hidden2", code)
    scanning.scan(bob, "mine", code)  # a name that a private index has is free
    assert [each["path"] for each in scanning.projects(bob)] == ["/index/mine"]


def test_it_is_found_below_index_alone_and_by_words_alone(world: World, code: Path) -> None:
    alice = door(world, "alice")
    alice.call("write", path="/memory/note.md", data=b"The door opens with a key.\n")
    scanning.scan(alice, "house", code)

    def hits(**where: str) -> list[str]:
        return [each["path"] for each in alice.call("search", q="open door key", mode="lexical", **where)["hits"]]

    assert hits() == ["/memory/note.md"]
    assert hits(under="/index") == hits(under="/index/house") == ["/index/house/src/door.py.md"]
    assert "door.py" not in alice.call("recall", q="open door key", min_relevance=0.0)["text"]
    assert "open_door" in alice.call("recall", q="open door key", min_relevance=0.0, under="/index")["text"]
    waiting = world.store.queue_lengths()
    assert waiting == (0, 1), "the note's vectors alone"
    world.store.submit(Principal("o", operator=True), "follow_model", model="m", dimension=3)
    assert world.store.queue_lengths() == (0, 1)


def test_a_question_finds_the_place(world: World, code: Path) -> None:
    alice = door(world, "alice")
    scanning.scan(alice, "house", code)
    for question, first in {
        "who lets somebody in": "src/door.py:1 open_door",
        "who does NOT let somebody in": "src/door.py:1 open_door",
        "keeping the rain out": "src/RoofTop.java:1 RoofTop.keepRainOut",
        "keepRainOut": "src/RoofTop.java:1 RoofTop.keepRainOut",
        "roof top": "src/RoofTop.java:1 RoofTop",
        "open_door()": "src/door.py:1 open_door",
    }.items():
        assert found(finding.find(alice, question))[:1] == [first], question
    assert finding.find(alice, "zebra crossing") == []
    assert found(finding.callers(alice, "turn")) == ["src/door.py:1 open_door"]
    assert finding.callers(alice, "open_door") == []
    assert finding.callees(alice, "RoofTop.keepRainOut")[0].symbol.calls == ("sealEdges",)
    assert found(list(finding.sigs(alice, "house", "*.py", kind="function"))) == ["src/door.py:1 open_door"]


def test_a_question_is_met_by_parts_of_names_by_rare_words_and_by_code_before_tests(world: World, code: Path) -> None:
    (code / "tests").mkdir()
    names = ("send_mail", "mail_admins", "retry_later", "prefetch_mail")
    (code / "src" / "post.py").write_text("".join(f"def {each}(to): pass\n" for each in names))
    for name in ("tests/a.py", "z.py"):
        (code / name).write_text("def slugify(value): pass\n")
    alice = door(world, "alice")
    scanning.scan(alice, "house", code)
    assert found(finding.find(alice, "mail to the administrators"))[0] == "src/post.py:2 mail_admins"
    assert found(finding.find(alice, "fetch of mail"))[0] == "src/post.py:4 prefetch_mail"
    assert found(finding.find(alice, "retry of mail"))[0] == "src/post.py:3 retry_later"
    assert found(finding.find(alice, "slug of value")) == ["z.py:1 slugify", "tests/a.py:1 slugify"]


def test_a_known_project_stays_where_it_is_whatever_directory_one_stands_in(
    world: World, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice: Any = door(world, "alice")
    scanning.scan(alice, "house", code)
    other = tmp_path / "elsewhere" / "house"
    other.mkdir(parents=True)
    monkeypatch.chdir(other.parent)
    assert named(alice, "house", None) == ("house", None)
    assert named(alice, str(code), None) == ("house", code)
    for directory in ("./house", str(other)):
        with pytest.raises(Invalid, match=f"house is the project in {code}"):
            named(alice, directory, None)
    assert named(alice, "house", Path("house")) == ("house", Path("house")), "it is said"
    assert named(alice, "house", None, private=True) == ("house", other), "that is another project"
    (other.parent / "garden").mkdir()
    assert named(alice, "garden", None) == ("garden", other.parent / "garden")


def test_watching_follows_a_change_and_ends(world: World, code: Path) -> None:
    over, seen = threading.Event(), []
    busy = [Busy("its daemon starts anew")]
    told: list[Busy] = []

    def scanned() -> None:
        if seen and busy:
            raise busy.pop()
        seen.append(scanning.scan(door(world, "alice"), "house", code))
        if len(seen) == 1:
            (code / "src" / "late.py").write_text("def late(): pass\n")
        else:
            over.set()

    scanning.watch(scanned, code, 0.01, over, told.append, signals=False)
    assert [each.added for each in seen] == [2, 1]
    assert len(told) == 1


def test_a_note_shows_who_calls_what_it_defines_and_what_that_calls(world: World, code: Path) -> None:
    (code / "src" / "lib.py").write_text("class Key:\n    def turn(self): return snap()\n\ndef unused(): pass\n")
    (code / "src" / "other.py").write_text("def second(): turn(1)\n")
    scanning.scan(door(world, "alice"), "house", code)
    (code / "far.py").write_text("def elsewhere(): turn(2)\n")
    scanning.scan(door(world, "bob"), "far", code)
    alice, note = world.agent("alice"), "/index/house/src/lib.py.md"
    method = "src/lib.py:2  Key.turn (method)  def turn(self)\n"
    calling = (
        "    src/door.py:1  open_door (function)  def open_door(key)\n"
        "    src/other.py:1  second (function)  def second()\n"
    )
    assert alice.cat(f"{note}:callers") == method + calling
    assert alice.cat(f"{note}:callers?name=turn") == alice.cat(f"{note}:callers")
    assert alice.cat(f"{note}:callers?name=unused") == "src/lib.py:4  unused (function)  def unused()\n"
    assert alice.cat(f"{note}:callees") == f"{method}    snap\n" == alice.cat(f"{note}:callees?name=Key.turn")
    assert alice.cat(f"{note}:callees?name=nothing") == "(none)\n" == alice.cat("/index/house/INDEX.md:callers")
    alice.put("/memory/a.md", "## turn (function, line 1)\n    def turn()\ncalls: snap\n")
    assert alice.cat("/memory/a.md:callees") == "(none)\n"


def test_what_is_called_NOT_has_callers_and_keeps_nobody_elses_back(world: World, code: Path) -> None:
    (code / "src" / "logic.py").write_text("def NOT(x): pass\ndef ALSO(x): NOT(x)\ndef EITHER(x): ALSO(x)\n")
    scanning.scan(door(world, "alice"), "house", code)
    said = world.agent("alice").cat("/index/house/src/logic.py.md:callers")
    assert [line.split()[1] for line in said.splitlines()] == ["NOT", "ALSO", "ALSO", "EITHER"]


def test_callers_are_shown_though_one_goes_meanwhile(world: World, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "src" / "lib.py").write_text("def turn(): pass\n")
    (code / "src" / "other.py").write_text("def second(): turn(1)\n")
    scanning.scan(door(world, "alice"), "house", code)
    search = Memory.search

    def searched(self: Memory, *args: Any, **how: Any) -> Any:
        found = search(self, *args, **how)
        (code / "src" / "other.py").unlink(missing_ok=True)
        scanning.scan(door(world, "alice"), "house", code)
        return found

    monkeypatch.setattr(Memory, "search", searched)
    said = world.agent("alice").cat("/index/house/src/lib.py.md:callers")
    assert "open_door" in said and "second" not in said


def test_a_synthesis_of_a_note_is_of_it(world: World, code: Path) -> None:
    scanning.scan(door(world, "alice"), "house", code)
    said = world.agent("alice").cat("/index/house/src/door.py.md:synthesis?q=open door key")
    assert "/index/house/src/door.py.md" in said


def test_callers_in_an_index_that_a_rule_hides_are_not_shown(world: World, code: Path) -> None:
    scanning.scan(door(world, "alice"), "hidden", code)
    (code / "src" / "door.py").write_text("def turn(): pass\n")
    scanning.scan(door(world, "alice"), "house", code)
    assert world.agent("bob").cat("/index/house/src/door.py.md:callers") == "(none)\n"


def test_meaning_decides_where_words_say_as_much_and_is_said_to_be_missing(world: World, code: Path) -> None:
    names = ("alpha_mail", "beta_mail", "_gamma_mail")
    (code / "src" / "post.py").write_text("".join(f"def {each}(to): pass\n" for each in names))
    alice, asked = door(world, "alice"), list[str]()
    scanning.scan(alice, "house", code)

    class Meaning(Door):
        cosines: list[float] | None = None

        def call(self, method: str, /, **arguments: Any) -> Any:
            if method != "nearness":
                return super().call(method, **arguments)
            asked.extend(arguments["texts"])
            near = (
                None if self.cosines is None else [self.cosines[names.index(each)] for each in self._named(arguments)]
            )
            return {"cosines": near, "degraded": "no model"}

        @staticmethod
        def _named(arguments: dict[str, Any]) -> list[str]:
            return [next(name for name in names if modules.apart(name) in each) for each in arguments["texts"]]

    mail, told = Meaning(alice.memory), list[str]()
    plain = [each.symbol.name for each in finding.find(mail, "of mail", degraded=told.append)]
    assert plain == list(names) and told == ["no model"] and asked[0] == "alpha mail:  (src post)"
    Meaning.cosines = [0.1, 0.6, 0.3]
    assert [each.symbol.name for each in finding.find(mail, "of mail", degraded=told.append)] == [
        "beta_mail",
        "_gamma_mail",
        "alpha_mail",
    ]
    Meaning.cosines = [0.9, -1.0, 0.0]
    assert finding.find(mail, "beta_mail")[0].symbol.name == "beta_mail"  # its very name
    assert len(told) == 1


def test_a_class_that_fits_does_not_take_all_places(world: World, code: Path) -> None:
    methods = "".join(f"    def send_{each}_mail(self): pass\n" for each in ("fast", "slow", "late"))
    (code / "src" / "post.py").write_text(f"class MailSender:\n{methods}\ndef mail(to): pass\n")
    alice = door(world, "alice")
    scanning.scan(alice, "house", code)
    names = [each.symbol.name for each in finding.find(alice, "who sends mail")]
    assert len(names) == 5 and names[2] == "mail" and {each.partition(".")[0] for each in names[:2]} == {"MailSender"}


def test_nearness_is_of_so_many_texts(world: World) -> None:
    alice = door(world, "alice")
    found = alice.call("nearness", q="a mail", texts=["a mail", "x" * 5000])
    assert round(found["cosines"][0], 5) == 1.0 and len(found["cosines"]) == 2 and found["degraded"] is None
    assert alice.call("nearness", q="x", texts=[])["cosines"] == []
    for texts in (["x"] * 101, [1]):
        with pytest.raises(Invalid, match="100 texts"):
            alice.call("nearness", q="x", texts=texts)
    teller = Memory(alice.memory.around, Principal("alice", key=Key("k", None, ("tell",))))
    with pytest.raises(Denied, match="'search'"):
        methods.call(teller, "nearness", {"q": "x", "texts": []})
