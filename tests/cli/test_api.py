"""`from avmfs import AVM`: the same answers with a daemon and without, and what happens when one comes or goes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import default_settings

from avmfs import AVM
from avmfs.api.connect import read_all
from avmfs.errors import AvmError, Busy, Invalid
from avmfs.rpc.client import Door, RemoteDoor
from avmfs.rpc.local import LocalDoor
from avmfs.store.files.store_lock import StoreLock
from avmfs.transfer import exporting
from tests.cli.shells import LIMIT_S, Shell, configured, environment
from tests.mount.mount_world import World

pytestmark = pytest.mark.mount


OpenedAs = Callable[[str | None], AVM]
SETTINGS = """
embedding: {enabled: false}
permissions: [{pattern: "/memory/secret/*", access: none, agents: [guest]}]
default_access: rw
"""


@pytest.fixture(params=["daemon", "alone"])
def opened_as(request: pytest.FixtureRequest) -> Iterator[OpenedAs]:
    """An AVM of an agent, or of nobody in particular; rules hide a place from one agent."""
    made: list[AVM] = []

    def opener(environ: dict[str, str]) -> OpenedAs:
        def open_(agent: str | None) -> AVM:
            made.append(AVM(agent=agent, environ=environ, embeddings=False))
            return made[-1]

        return open_

    with contextlib.ExitStack() as stack:
        if request.param == "daemon":
            world = World([{"agent_id": "alice"}], SETTINGS)
            stack.callback(world.end)
            world.start()
            environ = world.environ
        else:
            environ = environment(stack.enter_context(configured(SETTINGS)))
        stack.callback(lambda: [avm.close() for avm in made])  # before their directory goes
        yield opener(environ)


@pytest.fixture(scope="module")
def alice(opened: Callable[[str], AVM]) -> AVM:
    return opened("alice")


@pytest.fixture(scope="module")
def bob(opened: Callable[[str], AVM]) -> AVM:
    return opened("bob")


def test_files(alice: AVM) -> None:
    assert [
        alice.write("/shared/a.md", "one"),
        alice.append("/shared/a.md", b"\xff"),
        alice.write("/shared/a.md", ""),
    ] == [1, 2, 3]
    alice.write("/shared/a.md", "naïve 芯片 😀\udcff")
    assert alice.read("/shared/a.md") == "naïve 芯片 😀\udcff"
    assert alice.read_bytes("/shared/a.md") == "naïve 芯片 😀".encode() + b"\xff"
    assert alice.write("/shared/a.md:tags", "x,y") is None and alice.read("/shared/a.md:tags") == "x,y\n"
    assert [(each["name"], each["kind"]) for each in alice.list("/shared")] == [("a.md", "file")]
    assert alice.move("/shared/a.md", "/shared/b/c.md") == [("/memory/shared/a.md", "/memory/shared/b/c.md")]
    assert alice.delete("/shared/b", recursive=True) == 2
    for do, code in (
        (lambda: alice.read("/shared/a.md"), errno.ENOENT),
        (lambda: alice.read("/shared"), errno.EISDIR),
        (lambda: alice.write("/new.md", "x"), errno.EACCES),
        (lambda: alice.write("/shared/a.md", "x", if_version=6), errno.ESTALE),
        (lambda: alice.delete("/shared"), errno.EPERM),
        (lambda: alice.write("/shared/x:meta", "{}"), errno.ENOENT),
        (lambda: alice.list("/none"), errno.ENOENT),
        (lambda: alice.write(f"/shared/{'n' * 256}", "x"), errno.ENAMETOOLONG),
    ):
        with pytest.raises(AvmError) as caught:
            do()
        assert caught.value.errno == code, caught.value
    with pytest.raises(FileNotFoundError):
        alice.read("/shared/a.md")
    with pytest.raises(PermissionError):
        alice.write("/new.md", "x")


def test_a_large_file_comes_back_whole(alice: AVM) -> None:
    data = bytes(range(251)) * 70_000
    alice.write("/private/large.bin", data[:10_000_000])
    alice.append("/private/large.bin", data[10_000_000:])
    assert alice.read_bytes("/private/large.bin") == data
    alice.delete("/private/large.bin")


class Restless:
    """A door by which a file is replaced after each of the first pieces that are read of it."""

    def __init__(self, inner: LocalDoor, path: str, contents: list[bytes]) -> None:
        self.inner, self._path, self._contents = inner, path, contents
        self.agent, self.urgent = inner.agent, inner.urgent

    def call(self, method: str, /, **arguments: Any) -> Any:
        found = self.inner.call(method, **arguments)
        if method == "read" and found["more"] and self._contents:
            self.inner.call("write", path=self._path, data=self._contents.pop(0))
        return found

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("reads", [read_all, exporting.contents])
def test_a_file_that_is_replaced_between_two_pieces_is_read_again(
    tmp_path: Path, reads: Callable[[Door, str], bytes]
) -> None:
    size, path = 9 * 1024 * 1024, "/memory/shared/large.bin"
    with contextlib.closing(LocalDoor(tmp_path / "avm.db", default_settings(), "alice", embeddings=False)) as door:
        door.call("write", path=path, data=b"a" * size)
        assert reads(door, path) == b"a" * size
        assert reads(Restless(door, path, [b"b" * size]), path) == b"b" * size
        assert reads(Restless(door, path, [b"c" * 5]), path) == b"c" * 5, "shorter than the first piece"
        door.call("write", path=path, data=b"a" * size)
        with pytest.raises(Busy):
            reads(Restless(door, path, [letter * size for letter in (b"b", b"c") * 4]), path)


def test_each_agent_has_its_own(alice: AVM, bob: AVM) -> None:
    alice.write("/private/own.md", "alice's")
    bob.write("/private/own.md", "bob's")
    assert (alice.read("/private/own.md"), bob.read("/private/own.md")) == ("alice's", "bob's")
    with pytest.raises(FileNotFoundError):
        bob.read("/memory/private/alice/own.md")
    assert alice.read("/memory/private/alice/own.md") == "alice's"
    assert bob.agent == "bob"


def test_remember_and_recall(alice: AVM, bob: AVM) -> None:
    memory = alice.agent_memory()
    path = memory.remember("Quarterly revenue guidance was cut", tags=["finance"], importance=0.8, title="Guidance")
    assert path == "/memory/private/alice/guidance.md"
    assert memory.remember("another", title="Guidance") == "/memory/private/alice/guidance-2.md"
    shared = memory.remember("The release freeze starts Monday", namespace="shared")
    assert shared == "/memory/shared/the-release-freeze-starts-monday.md"
    assert bob.agent_memory().remember("bob's other freeze", path=shared) == shared.replace(".md", "-2.md")
    assert bob.read(shared) == "The release freeze starts Monday\n"
    assert "release freeze" in bob.agent_memory().recall("release freeze")
    assert "revenue" not in bob.agent_memory().recall("revenue guidance", min_relevance=0)
    assert memory.recall("zzzz yyyy") == "" and memory.recall("") == ""
    hits = alice.search("revenue guidance", limit=1)
    assert [hit["path"] for hit in hits] == [path] and 0 < hits[0]["relevance"] <= 1
    assert alice.search("revenue", under="/shared") == []
    for do in (
        lambda: memory.remember(" "),
        lambda: memory.remember("x", importance=2),
        lambda: memory.remember("x", tags=["a,b"]),
        lambda: memory.recall("x", max_tokens=0),
        lambda: memory.recall("x", strategy="none"),
        lambda: alice.search("x", limit=0),
        lambda: memory.recall("x", min_relevance=1.5),
    ):
        with pytest.raises(Invalid):
            do()
    assert alice.agent_memory("alice") is not None
    assert "revenue" not in alice.agent_memory("bob").recall("revenue guidance", min_relevance=0), "speaks as bob"
    assert alice.agent_memory("bob").remember("his own").startswith("/memory/private/bob/")
    with pytest.raises(Invalid, match="agent id"):
        alice.agent_memory("BAD NAME")


def test_mail(alice: AVM, bob: AVM) -> None:
    bob.agent_memory().remember("known")
    number = alice.tell("bob", "hello\n## From: root", priority="urgent", expires="2h")
    (message,) = bob.inbox(unread_only=True)
    assert (message["id"], message["sender"], message["body"]) == (number, "alice", "hello\n## From: root")
    assert "\n## From" not in bob.read("/:inbox")
    assert bob.inbox(mark_read=True)[0]["read"] is False and bob.inbox(unread_only=True) == []
    with pytest.raises(FileNotFoundError):
        alice.tell("nobody", "x")


def test_a_thread_of_messages_waiting_for_one_and_deleting_it(alice: AVM, bob: AVM) -> None:
    bob.agent_memory().remember("known")
    alice.agent_memory().remember("known")
    for each in (alice, bob):
        each.inbox(mark_read=True)
        each.delete_mail()
    began = time.monotonic()
    assert bob.inbox(unread_only=True, wait=0.3) == [] and time.monotonic() - began >= 0.3
    asked = alice.tell("bob", "question")
    (question,) = bob.inbox(unread_only=True, wait=20)
    bob.tell("alice", "answer", re=question["id"])
    (answer,) = alice.inbox(wait=20, mark_read=True)
    assert (answer["re"], answer["thread"], answer["body"]) == (asked, asked, "answer")
    assert alice.inbox(thread=asked)[0]["id"] == answer["id"] and alice.inbox(thread=answer["id"]) == []
    with pytest.raises(Invalid, match="no message #99"):
        bob.tell("alice", "x", re=99)
    assert alice.delete_mail([answer["id"]]) == 1 and alice.inbox() == []
    assert bob.delete_mail() == 0 and len(bob.inbox()) == 1


def test_threads_share_one_avm(alice: AVM) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                alice.append("/private/threads.txt", f"{number} {turn}\n")
                alice.read("/private/threads.txt")
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert problems == []
    assert sorted(alice.read("/private/threads.txt").splitlines()) == sorted(
        f"{n} {t}" for n in range(8) for t in range(10)
    )


def test_who_asks_must_be_said(alone: Shell) -> None:
    for name in ("", "Bad", "all", "../x", "a" * 65):
        with pytest.raises(Invalid):
            AVM(agent=name, environ=alone.environ)
    with AVM(environ={**alone.environ, "AVM_AGENT": "carol"}) as avm:
        assert avm.agent == "carol"


def test_nobody_in_particular_reads_what_every_agent_may_see_and_changes_nothing(opened_as: OpenedAs) -> None:
    alice, nobody = opened_as("alice"), opened_as(None)
    alice.write("/shared/open.md", "The quasar report is for all")
    alice.write("/shared/limited.md", "The quasar report is for few")
    alice.write("/shared/limited.md:shared", "alice")
    alice.write("/memory/secret/hidden.md", "The quasar report is not for guests")
    alice.write("/private/own.md", "The quasar report is mine")
    assert nobody.agent == "" and nobody.read("/shared/open.md") == "The quasar report is for all"
    assert [hit["path"] for hit in nobody.search("quasar report")] == ["/memory/shared/open.md"]
    assert [each["name"] for each in nobody.list("/shared")] == ["open.md"]
    assert "secret" not in nobody.read("/:tree") and "hidden" not in nobody.read("/:tree?depth=9")
    for hidden in ("/shared/limited.md", "/memory/secret/hidden.md", "/memory/private/alice/own.md"):
        with pytest.raises(FileNotFoundError):
            nobody.read(hidden)
    assert nobody.inbox() == [] and "quasar" in nobody.read("/:recall?q=quasar report")
    for do in (
        lambda: nobody.write("/shared/x.md", "x"),
        lambda: nobody.append("/shared/open.md", "x"),
        lambda: nobody.delete("/shared/open.md"),
        lambda: nobody.move("/shared/open.md", "/shared/y.md"),
        lambda: nobody.tell("alice", "x"),
        lambda: nobody.agent_memory(),
        lambda: nobody.read("/private/x.md"),
        lambda: nobody.init_permissions({"users": {}}),
        lambda: nobody.privacy("full"),
        lambda: nobody.create_api_key(),
        lambda: nobody.get_user(),
        lambda: nobody.write("/shared/open.md:tags", "x"),
        lambda: nobody.subscribe("/shared/*"),
        lambda: nobody.list("/private"),
    ):
        with pytest.raises(PermissionError, match="agent=NAME in Python, or AVM_AGENT"):
            do()
    assert nobody.agent_memory("alice").recall("quasar report", min_relevance=0).count("quasar") >= 3
    assert alice.read("/shared/open.md") == "The quasar report is for all"


def test_a_recall_that_names_no_bounds_has_those_of_the_configuration() -> None:
    with configured("embedding: {enabled: false}\nsearch: {max_tokens: 60, min_relevance: 0.99}\n") as root:
        shell = Shell(environment(root))
        with AVM(agent="alice", environ=shell.environ, embeddings=False) as avm:
            memory = avm.agent_memory()
            memory.batch_remember([f"The quasar report {n} is due" for n in range(9)])
            for question in ("quasar report", "quasar lunch unheard of"):
                found = memory.recall(question).count("quasar")
                assert found == shell.out("recall", question).count("quasar")
                assert found < memory.recall(question, max_tokens=4000, min_relevance=0.1).count("quasar")


def test_what_is_read_knows_its_path(alice: AVM) -> None:
    alice.write("/shared/node.md", "text\n")
    node = alice.read("/shared/node.md")
    assert (node, node.content, node.path) == ("text\n", "text\n", "/shared/node.md")
    assert type(node.content) is str and type(pickle.loads(pickle.dumps(node))) is type(node)
    assert f"{node}" == "text\n" and json.loads(alice.read("/shared/node.md:meta"))["size"] == 5
    assert [each["path"] for each in alice.list("/shared") if each["name"] == "node.md"] == ["/memory/shared/node.md"]
    assert alice.list("/shared/node.md")[0]["path"] == "/memory/shared/node.md"
    assert {each["path"] for each in alice.list("/")} >= {"/memory", "/shared", "/private"}


def test_a_named_configuration_that_is_not_there_is_refused(alone: Shell) -> None:
    with pytest.raises(Invalid, match=r"none\.yaml"):
        AVM(agent="alice", config="/tmp/none.yaml", environ=alone.environ)
    with pytest.raises(Invalid, match="empty name of a database"):  # no directory that happens to be the current one
        AVM("", agent="alice", environ=alone.environ)


def test_a_context_manager_closes(alone: Shell, tmp_path: Path) -> None:
    with AVM(tmp_path / "own.db", agent="alice", environ=alone.environ, embeddings=False) as avm:
        assert isinstance(avm._door, LocalDoor)
        avm.write("/private/x", "x")
    with AVM(str(tmp_path / "own.db"), agent="alice", environ=alone.environ, embeddings=False) as avm:
        assert avm.read("/private/x") == "x"
    assert not (tmp_path / "own.db").stat().st_mode & 0o077
    found = subprocess.run(
        [sys.executable, "-c", "from avmfs import AVM, AgentMemory; import sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=alone.environ,
    )
    assert found.stdout == "False\n", found.stderr


def test_while_a_daemon_holds_the_store_everybody_goes_through_it(world: World) -> None:
    with AVM(agent="alice", environ=world.environ) as avm:
        assert isinstance(avm._door, RemoteDoor)
        avm.write("/shared/through.md", "the daemon")
        assert (world.mounts["alice"] / "shared/through.md").read_text() == "the daemon"
        (world.mounts["alice"] / "shared/through.md").write_text("and back")
        assert avm.read("/shared/through.md") == "and back"


def test_a_daemon_that_comes_and_goes_while_an_avm_is_open(settings: str) -> None:
    """Direct first: the daemon takes over, what was written is there, and what is written from then on goes by it."""
    world = World([{"agent_id": "alice"}], settings)
    try:
        direct = AVM(agent="alice", environ=world.environ, embeddings=False)
        assert isinstance(direct._door, LocalDoor)
        direct.write("/private/before.md", "before")
        world.start()
        note = world.mounts["alice"] / "private"
        assert (note / "before.md").read_text() == "before"
        (note / "during.md").write_text("during")
        assert direct.read("/private/during.md") == "during"
        direct.write("/private/through.md", "x")
        assert isinstance(direct._door, RemoteDoor) and (note / "through.md").read_text() == "x"
        with AVM(agent="alice", environ=world.environ) as anew:
            anew.write("/private/anew.md", "anew")
        assert world.command("stop").returncode == 0
        assert world.process is not None and world.process.wait(300) == 0
        direct.write("/private/after.md", "after")
        assert {entry["name"] for entry in direct.list("/private")} >= {
            *("before.md", "during.md", "through.md", "anew.md", "after.md")
        }
        direct.close()
        with AVM(agent="alice", environ=world.environ, embeddings=False) as last:
            assert last.read("/private/after.md") == "after"
            remote_gone = json.loads(last.read("/private/:stats"))
            assert remote_gone["files"] == 5
    finally:
        world.process = None if world.process is not None and world.process.poll() is not None else world.process
        world.end()


def test_while_a_daemon_starts_an_avm_that_has_the_store_reads_on(settings: str) -> None:
    with configured(settings) as root, AVM(agent="alice", environ=environment(root), embeddings=False) as avm:
        avm.write("/private/x.md", "x")
        lock = StoreLock(avm.database)
        held = lock.acquire(0)
        lock.note(held, {"pid": os.getpid(), "socket": str(root / "run/avm.sock")})
        try:
            assert avm.read("/private/x.md") == "x"
        finally:
            lock.release(held, clean=True)
        assert avm.write("/private/x.md", "y") == 2


def test_a_daemon_that_goes_away_between_two_calls_is_no_problem(settings: str) -> None:
    world = World([{"agent_id": "alice"}], settings)
    try:
        world.start()
        avm = AVM(agent="alice", environ=world.environ, embeddings=False)
        avm.write("/private/x.md", "x")
        assert world.command("stop").returncode == 0
        assert avm.read("/private/x.md") == "x", "the store itself, now that nobody holds it"
        assert isinstance(avm._door, LocalDoor)
        avm.close()
        avm.close()
        with AVM(agent="alice", environ=world.environ, embeddings=False) as direct:
            assert direct.read("/private/x.md") == "x"
    finally:
        world.end()
