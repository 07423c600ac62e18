"""The Python API beyond files and recall: navigation, links, versions, batches; forks and threads; its examples."""

from __future__ import annotations

import doctest
import gc
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM, avm
from avmfs.api import agent_memory
from avmfs.errors import AvmError, Busy, Invalid, NotFound
from avmfs.rpc.client import RemoteDoor
from tests.cli.shells import environment
from tests.mount.mount_world import World

pytestmark = pytest.mark.mount
Open = Callable[[str], AVM]


@pytest.fixture(scope="module")
def alice(opened: Open) -> AVM:
    return opened("alice")


@pytest.fixture(scope="module")
def bob(opened: Open) -> AVM:
    return opened("bob")


def refused(kind: type[AvmError], do: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        do()
    return str(caught.value)


def test_links_and_walks_along_them(alice: AVM, bob: AVM) -> None:
    for name in ("a", "b", "c"):
        alice.write(f"/shared/g/{name}.md", "zebra" if name == "a" else f"about {name}")
    alice.write("/private/hidden.md", "zebra too")
    alice.link("/shared/g/a.md", "/shared/g/b.md", "follows")
    alice.link("/shared/g/b.md", "/shared/g/c.md")
    alice.link("/private/hidden.md", "/shared/g/a.md", "derived")
    base = "/memory/shared/g"
    assert alice.links("/shared/g/b.md") == [
        {"direction": "out", "path": f"{base}/c.md", "type": "related"},
        {"direction": "in", "path": f"{base}/a.md", "type": "follows"},
    ]
    assert [each["path"] for each in alice.links("/shared/g/a.md")] == [
        f"{base}/b.md",
        "/memory/private/alice/hidden.md",
    ]
    assert [each["path"] for each in bob.links("/shared/g/a.md")] == [f"{base}/b.md"], "bob does not see hers"
    walk = bob.agent_memory().explore("/shared/g/a.md")
    assert walk == (
        f"## Starting from: {base}/a.md\n### Hop 1\n  -> [follows] {base}/b.md\n### Hop 2\n  -> [related] {base}/c.md\n"
    )
    assert bob.agent_memory().explore("/shared/g/a.md", depth=1).count("Hop") == 1
    found = bob.retrieve("zebra", k=1, depth=2, under="/shared/g")
    assert [hit["path"] for hit in found["hits"]] == [f"{base}/a.md"]
    assert [(each["path"], each["via"]) for each in found["linked"]] == [
        (f"{base}/b.md", f"{base}/a.md"),
        (f"{base}/c.md", f"{base}/b.md"),
    ]
    graph = bob._door.call("graph", path="/shared/g")
    assert graph["nodes"] == [f"{base}/{name}.md" for name in "abc"] and len(graph["edges"]) == 2
    alice.unlink("/shared/g/a.md", "/shared/g/b.md")
    assert bob.agent_memory().explore("/shared/g/a.md").endswith("(no links)\n")
    assert "type" in refused(Invalid, lambda: alice.link("/shared/g/a.md", "/shared/g/b.md", "two words"))
    refused(NotFound, lambda: bob.link("/shared/g/a.md", "/memory/private/alice/hidden.md"))
    refused(NotFound, lambda: bob.links("/memory/private/alice/hidden.md"))
    refused(Invalid, lambda: alice.link("/shared/g/a.md", "/shared/g/a.md"))


def test_old_versions(alice: AVM, bob: AVM) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    for text in ("one", "two", "drei"):
        alice.write("/shared/versions.md", text)
    assert [(each["version"], each["size"], each["author"]) for each in alice.history("/shared/versions.md")] == [
        (3, 4, "alice"),
        (2, 3, "alice"),
        (1, 3, "alice"),
    ]
    assert [bob.read_at("/shared/versions.md", number) for number in (1, 2, 3)] == ["one", "two", "drei"]
    assert alice.read_at("/shared/versions.md", datetime.now()) == "drei"
    first = alice.history("/shared/versions.md")[-1]["at"]
    assert alice.read_at("/shared/versions.md", first) == "one"
    refused(NotFound, lambda: alice.read_at("/shared/versions.md", before))
    for number in (0, 4, -1):
        refused(NotFound, lambda number=number: alice.read_at("/shared/versions.md", number))
    refused(Invalid, lambda: alice.read_at("/shared/versions.md", "soon"))
    large = "x" * 9_000_000
    alice.write("/private/large.txt", large)
    alice.write("/private/large.txt", "small")
    assert alice.read_at("/private/large.txt", 1) == large


def test_ways_around(alice: AVM, bob: AVM) -> None:
    mine = alice.agent_memory()
    path = mine.remember("The freeze ends on Tuesday", title="Freeze", tags=["release", "ops"])
    mine.remember("Old news", title="Old", created=datetime.now(UTC) - timedelta(days=30), tags=["ops"])
    alice.write("/private/deep/er/note.md", "down here")
    tree = mine.browse("/private", depth=3)
    assert "  freeze.md\n" in tree and "  deep/\n    er/\n      note.md\n" in tree
    assert path in mine.browse("when does the freeze end")
    assert "freeze.md" in mine.timeline(days=7) and "old.md" not in mine.timeline(days=7)
    assert "old.md" in mine.timeline(60, 500) and "private/alice" not in bob.agent_memory().timeline(60)
    assert mine.tag_cloud("/private") == {"ops": 2, "release": 1} and "release" not in bob.agent_memory().tag_cloud()
    handle = json.loads(alice.read(f"{path}:meta"))["id"]
    assert mine.fetch(path) == [
        {"path": path, "content": "The freeze ends on Tuesday\n", "more": False, "untrusted": ""}
    ]
    assert mine.fetch(path, max_bytes=3)[0] == {"path": path, "content": "The", "more": True, "untrusted": ""}
    old = "/memory/private/alice/old.md"
    assert [each["path"] for each in mine.fetch([path, old], handle)] == [path, old, path]
    mine.remember("Older news", title="Older", created="2001-02-03T04:05:06Z")
    (short,) = mine.batch_remember([{"content": "Oldest news", "created": "2000-02-03", "ttl": "1d"}])
    lives = [alice.read(f"{each}:ttl") for each in (mine.remember("brief", ttl="2h"), short, path)]
    assert [each[:4] for each in lives] == ["1h 5", "23h ", "neve"]
    assert "expected e.g." in refused(Invalid, lambda: mine.remember("x", ttl="soon"))
    assert json.loads(alice.read("/private/older.md:meta"))["created"].startswith("2001-02-03T04:05:06")
    assert "expected ISO 8601" in refused(Invalid, lambda: mine.remember("x", created="yesterday"))
    assert handle and mine.recent(limit=1)[0]["author"] == "alice" and mine.stats("/private")["files"] >= 3
    assert "Tuesday" in alice.synthesize("freeze ends Tuesday") and alice.synthesize("zzzz yyyy") == ""
    shared = mine.remember("for two", namespace="shared")
    bob.agent_memory().remember("known")
    mine.share(shared, ["bob"])
    assert alice.read(f"{shared}:shared") == "alice,bob\n"
    mine.share(shared)
    assert alice.read(f"{shared}:shared") == "all\n"
    assert mine.forget(shared) == 1
    refused(NotFound, lambda: alice.read(shared))
    refused(Invalid, lambda: mine.share(path, ["bob"]))
    assert "nothing-there" in refused(Invalid, lambda: mine.fetch(path, "/private/nothing-there.md"))
    for do in (
        lambda: mine.browse("/private", depth=0),
        lambda: mine.timeline(days=-1),
        lambda: mine.explore(path, depth=9),
        lambda: mine.tag_cloud(path),
        lambda: mine.timeline(limit=0),
        lambda: mine.share(shared, []),
        lambda: alice.retrieve("x", k=0),
        lambda: alice.synthesize("x", sentences=0),
    ):
        refused(Invalid, do)


def test_a_batch_is_whole_or_not_at_all(alice: AVM) -> None:
    mine = alice.agent_memory()
    paths = mine.batch_remember(
        [
            "first of many",
            {"content": "second of many", "title": "Second", "tags": ("x",), "importance": 0.5},
            {"content": "third", "path": "/shared/batch/third.md", "created": datetime(2024, 3, 1, tzinfo=UTC)},
            "first of many",
        ]
    )
    assert paths == [
        "/memory/private/alice/first-of-many.md",
        "/memory/private/alice/second.md",
        "/memory/shared/batch/third.md",
        "/memory/private/alice/first-of-many-2.md",
    ]
    meta = json.loads(alice.read(f"{paths[1]}:meta"))
    assert (meta["tags"], meta["importance"], meta["title"]) == (["x"], 0.5, "Second")
    assert json.loads(alice.read(f"{paths[2]}:meta"))["created"].startswith("2024-03-01")
    assert mine.batch_remember([]) == []
    many = mine.batch_remember({"content": f"number {number}", "namespace": "shared"} for number in range(230))
    assert len(set(many)) == 230 and alice.read(many[229]) == "number 229\n"
    before = mine.stats()["files"]
    for bad, says in (
        ({"content": " "}, "memory 1"),
        ({"title": "x"}, "memory 1"),
        ({"content": "x", "importance": 2}, "memory 1"),
        ({"content": "x", "tags": ["a,b"]}, "memory 1"),
        ({"content": "x", "colour": "red"}, "colour"),
        ({"content": "x", "importance": "high"}, "importance"),
        ({"content": "x", "path": "/x.md"}, "memory"),
        ("\ud800", "surrogate"),
    ):
        assert says in refused(Invalid, lambda bad=bad: mine.batch_remember(["good", bad]))
    refused(AvmError, lambda: mine.batch_remember(["good", {"content": "x", "path": "/memory/private/bob/x.md"}]))
    assert mine.stats()["files"] == before


def test_eight_threads_do_everything_at_once(opened: Open) -> None:
    shared = opened("threads")
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = shared.agent_memory()
            for turn in range(5):
                path = mine.remember(f"thread {number} turn {turn}", tags=[f"t{number}"])
                assert shared.read(path) == f"thread {number} turn {turn}\n"
                shared.append("/private/all.txt", f"{number} {turn}\n")
                assert f"thread {number}" in mine.recall(f"thread {number} turn {turn}", min_relevance=0.0)
                mine.timeline(), mine.tag_cloud(), shared.list("/private"), shared.history("/private/all.txt")
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join(300) for thread in threads]
    assert problems == []
    assert sorted(shared.read("/private/all.txt").splitlines()) == sorted(
        f"{n} {t}" for n in range(8) for t in range(5)
    )
    assert shared.agent_memory().tag_cloud() == {f"t{number}": 5 for number in range(8)}


def _child(mine: AVM, number: int, said: Any) -> None:
    try:
        mine.write(f"/private/child{number}.md", f"of child {number}")
        for turn in range(20):
            mine.append("/private/family.txt", f"{number} {turn}\n")
            assert mine.read("/private/before.md") == "before"
        said.put(
            (
                number,
                mine.read(f"/private/child{number}.md"),
                mine.agent_memory().recall("child", min_relevance=0.0) != "",
            )
        )
    except BaseException as e:
        said.put((number, repr(e), False))


def test_after_a_fork_parent_and_children_go_on(opened: Open) -> None:
    """Four children and the parent, through the same AVM, at the same time."""
    mine = opened("forks")
    mine.write("/private/before.md", "before")
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    children = [context.Process(target=_child, args=(mine, number, said)) for number in range(4)]
    [child.start() for child in children]
    for turn in range(20):
        mine.append("/private/family.txt", f"parent {turn}\n")
        assert mine.read("/private/before.md") == "before"
    found = sorted(said.get(timeout=300) for _ in children)
    [child.join(300) for child in children]
    assert found == [(number, f"of child {number}", True) for number in range(4)]
    lines = sorted(mine.read("/private/family.txt").splitlines())
    assert lines == sorted(f"{who} {turn}" for who in (0, 1, 2, 3, "parent") for turn in range(20))


def test_a_fork_while_another_thread_is_asking_does_not_hang(opened: Open) -> None:
    mine = opened("midway")
    mine.write("/private/x.md", "x")
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            mine.read("/private/x.md")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                os._exit(0 if mine.read("/private/x.md") == "x" else 1)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join(300)


def test_a_closed_one_stays_closed(opened: Open) -> None:
    mine = opened("closed")
    mine.write("/private/x.md", "x")
    mine.close()
    mine.close()
    assert "closed" in refused(Invalid, lambda: mine.read("/private/x.md"))


def test_what_a_closed_one_held_in_memory_is_free_at_once(tmp_path: Path) -> None:
    mine = AVM(db=tmp_path / "avm.db", agent="alice", embeddings=False, environ={"HOME": str(tmp_path)})
    mine.write("/memory/zebra.md", "a zebra")
    assert "zebra" in mine.agent_memory().recall("zebra")
    held = [weakref.ref(each) for each in (mine._door, mine._door._store, mine._door._memory.around.engine)]  # type: ignore[attr-defined]
    gc.disable()  # it looks for circles some time later, and arrays weigh nothing for it
    try:
        mine.close()
        assert [ref() for ref in held] == [None] * 3
    finally:
        gc.enable()


def test_a_connection_that_the_daemon_has_ended_is_made_anew(world: World) -> None:
    mine = AVM(agent="alice", environ=world.environ)
    mine.write("/private/idle.md", "idle")
    first = mine._door
    assert isinstance(first, RemoteDoor)
    first._sock.shutdown(2)  # as when it was silent for too long
    assert mine.read("/private/idle.md") == "idle" and mine._door is not first
    mine.close()


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(world: World) -> None:
    door = RemoteDoor(world.root / "run/avm.sock", "alice")
    seen = door.call("watch")
    door._sock.settimeout(0.5)
    with pytest.raises(Busy):
        door.call("watch", since=seen["seq"], unread=seen["unread"], wait=60.0)
    with pytest.raises(Busy):
        door.call("read", path="/:version")
    assert door.ended()


@pytest.mark.parametrize("module", [avm, agent_memory], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_run(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = doctest.DocTestFinder()
    with tempfile.TemporaryDirectory(prefix="avmd-", dir="/tmp") as name:
        examples = [test for test in finder.find(module, extraglobs={"AVM": AVM}) if test.examples]
        assert len(examples) >= 2
        for number, example in enumerate(examples):
            root = Path(name, str(number))
            (root / "config").mkdir(parents=True)
            (root / "config/config.yaml").write_text("embedding: {enabled: false}\n")
            for key, value in environment(root).items():
                monkeypatch.setenv(key, value)
            assert doctest.DocTestRunner().run(example).failed == 0, example.name


def test_savings_are_of_an_agent_whatever_it_asked_through(world: World) -> None:
    with AVM(agent="saver", environ=world.environ) as first:
        first.write("/private/long.md", "The amber kettle stands in the hall. " + "Something else entirely. " * 200)
        assert "amber kettle" in first.agent_memory().recall("amber kettle", max_tokens=100)
    with AVM(agent="saver", environ=world.environ) as second:
        found = json.loads(second.read("/:savings"))
    assert found["recalls"] == 1 and 0 < found["given"] <= 100 and found["saved"] == found["whole"] - found["given"] > 0
    with AVM(agent="other", environ=world.environ) as other:
        assert json.loads(other.read("/:savings"))["recalls"] == 0
