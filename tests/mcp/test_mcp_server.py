"""The server itself: who may start it, what it survives, resources and their changes, prompts, HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, AsyncMock, Mock, patch

import anyio
import anyio.to_thread
import httpx2
import mcp_types as types
import pytest
from anyio.from_thread import BlockingPortal
from avmfs_config import ConfigError, find_paths
from mcp import Client
from mcp.shared.exceptions import MCPError

from avmfs import AVM
from avmfs.api.connect import open_door
from avmfs.errors import NO_TEXT, AvmError, Busy, Interrupted, Invalid
from avmfs.mcp import resources
from avmfs.mcp.guard import Guarded, listen, token
from avmfs.mcp.server import AT_ONCE, MemoryServer
from avmfs.mcp.session import Session
from avmfs.mcp.watching import Watching
from avmfs.rpc.client import BODY_MOST, RemoteDoor
from tests.mcp.peers import LIMIT_S, TOKEN, Lines, Peer, http, http_server, stdio
from tests.mount.mount_world import World, until

pytestmark = [
    pytest.mark.mount,
    # The client warns of the older protocol's calls, which most clients still use.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

KNOWN, STRANGER = 12345, 54321


# The interpreter may be where only root can read: everything is loaded before the user changes.
_AS = """
import os, sys
import avmfs.mcp.main, avmfs.mcp.server, avmfs.mcp.session, avmfs.mcp.stdio, anyio._backends._asyncio
uid = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(uid); os.setuid(uid)
avmfs.mcp.main.main()
"""


def started(environ: dict[str, str], *options: str, user: int | None = None) -> tuple[int, str]:
    """Exit code and stderr of a server that is to end by itself; stdout stays empty."""
    program = ["-m", "avmfs.mcp"] if user is None else ["-c", _AS, str(user)]
    done = subprocess.run(
        [sys.executable, *program, *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
    assert done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


# --- who takes whose room


class Slow:
    """A session whose calls that wait do so until ``go``."""

    def __init__(self, agent: str, go: threading.Event) -> None:
        self.agent, self._go = agent, go

    def another(self) -> Slow:
        return self

    def call(self, method: str, arguments: dict[str, Any]) -> tuple[Any, str]:
        if arguments.get("wait"):
            self._go.wait(LIMIT_S)
        return {"urgent": 0, "normal": 0, "text": self.agent, "messages": []}, ""

    def close(self) -> None: ...


def test_calls_that_wait_hold_up_neither_other_agents_nor_other_calls() -> None:
    """Of servers that one process has; which had the event loop's threads together."""
    go = threading.Event()
    alice, bob = (MemoryServer(Slow(name, go), "0") for name in ("alice", "bob"))  # type: ignore[arg-type]

    async def inbox(server: MemoryServer, wait: float) -> str:
        asked = types.CallToolRequestParams(name="avm_inbox", arguments={"wait": wait})
        return str((await server._call_tool(None, asked)).content)

    async def scenario() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with anyio.create_task_group() as group:
            for _ in range(2 * AT_ONCE):
                group.start_soon(inbox, alice, 60)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(LIMIT_S / 2):
                assert "bob" in await inbox(bob, 0) and "alice" in await inbox(alice, 0)
            go.set()

    try:
        anyio.run(scenario)
    finally:
        go.set()
        alice.close()
        bob.close()


# --- who


def test_without_a_name_or_with_a_bad_one_it_does_not_start(world: World) -> None:
    code, said = started(world.environ)
    assert code == 2 and "who is asking" in said
    code, said = started(world.environ, "--user", "Not A Name")
    assert code == 2 and "Not A Name" in said
    assert started(world.environ, "--user", "alice", "--bogus")[0] == 2


def test_without_its_extra_it_names_what_brings_it(alone: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = sys.modules['mcp'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    code, said = started({**alone, "PYTHONPATH": path}, "--user", "alice")
    assert code == 1 and said.startswith("avm-mcp: it needs more: pip install 'avmfs[mcp]' (") and said.count("\n") == 1


@as_root
def test_a_user_starts_it_for_the_agents_it_may_speak_for_and_no_other(tmp_path: Path) -> None:
    world = World([{"agent_id": "carol"}], f"embedding: {{enabled: false}}\nuids: {{{KNOWN}: [helper]}}\n")
    try:
        world.root.chmod(0o711)
        world.start()
        environ = {**world.environ, "HOME": str(tmp_path)}
        code, said = started(environ, "--user", "helper", user=KNOWN)
        assert (code, said) == (0, "")
        for agent, uid in (("carol", KNOWN), ("alice", KNOWN), ("helper", STRANGER)):
            code, said = started(environ, "--user", agent, user=uid)
            assert code == 1 and said.splitlines() == [
                f"avm-mcp: uid {uid} may not speak for '{agent}': see `uids` in config.yaml"
            ]
    finally:
        world.end()


def test_what_is_private_cannot_be_reached(alice: Peer, bob: Peer) -> None:
    path = alice.said("avm_remember", content="xylophone secret", path="/private/secret.md", tags=["hushed"])["path"]
    handle = alice.said("avm_list", path="/private")["entries"][0]["handle"]
    for arguments in (path, handle, f"/{handle}", f"{path}:meta", "/private/../alice/secret.md"):
        assert "No such file" in bob.refused("avm_read", path=arguments)
        assert bob.ask("call_tool", "avm_fetch", {"targets": [arguments]}).is_error
    for tool, arguments in {
        "avm_write": {"path": path, "content": "x"},
        "avm_history": {"path": path},
        "avm_link": {"path": path},
        "avm_tags": {"path": path, "add": ["x"]},
        "avm_list": {"path": "/memory/private/alice"},
        "avm_recent": {"under": "/memory/private/alice"},
        "avm_stats": {"under": "/memory/private/alice"},
        "avm_recall": {"query": "xylophone", "under": "/memory/private/alice"},
    }.items():
        assert "No such file" in bob.refused(tool, **arguments)
    assert bob.said("avm_recall", query="xylophone secret", min_relevance=0.0)["items"] == 0
    assert bob.said("avm_search", query="xylophone")["hits"] == []
    assert "hushed" not in bob.said("avm_tags")["counts"]
    assert path not in {each["path"] for each in bob.said("avm_recent", under="/memory", limit=1000)["changes"]}
    with pytest.raises(MCPError, match="No such file"):
        bob.ask("read_resource", f"avm:/{path}")
    assert "xylophone" in alice.text("avm_read", path=path)


def test_waiting_for_changes_tells_nothing_of_others(world: World, alice: Peer) -> None:
    door = RemoteDoor(world.root / "run/avm.sock", "bob")
    other = RemoteDoor(world.root / "run/avm.sock", "bob")
    try:
        first = door.call("watch")
        alice.call("avm_write", path="/private/unseen.md", content="x")
        alice.call("avm_tell", recipient="carol", body="x")
        again = door.call("watch", since=first["seq"], unread=first["unread"], wait=0.3)
        assert again == {**first, "paths": [], "all": False}
        assert not any("alice/" in each for each in door.call("watch", since=0, unread=0)["paths"])
        other.call("write", path="/shared/seen.md", data=b"x")
        found = door.call("watch", since=first["seq"], unread=first["unread"], wait=10.0)
        assert found["paths"] == ["/memory/shared/seen.md"] and found["seq"] > first["seq"]
        with pytest.raises(Invalid, match="wait 61"):
            door.call("watch", wait=61.0)
    finally:
        door.close()
        other.close()


def test_a_session_that_is_closed_while_it_waits_asks_no_door_again(world: World) -> None:
    session = Session(find_paths(world.environ), "bob", world.environ)
    now, _ = session.call("watch", {})
    ended: list[Exception] = []

    def wait() -> None:
        try:
            session.call("watch", {"since": now["seq"], "unread": now["unread"], "wait": 50.0})
        except AvmError as e:
            ended.append(e)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(session._mutex.locked)
    session.close()
    waiting.join(LIMIT_S)
    assert [type(each) for each in ended] == [Interrupted] and session._door is None


@pytest.mark.parametrize("daemon", [True, False])
def test_a_message_is_left_to_the_next_by_a_wait_that_was_cancelled(
    daemon: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = request.getfixturevalue("world").environ if daemon else request.getfixturevalue("alone")
    where = find_paths(environ)
    ask, close = Session.call, Session.close
    begun, closed = threading.Event(), threading.Event()

    def asks(self: Session, method: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        if method == "inbox":
            begun.set()
        return ask(self, method, arguments)

    def closes(self: Session) -> None:
        close(self)
        if threading.current_thread() is not threading.main_thread():
            closed.set()

    async def cancelled(server: MemoryServer) -> None:
        async with anyio.create_task_group() as group:
            taking = {"wait": 60, "unread_only": True, "mark_read": True}
            group.start_soon(server._call_tool, None, types.CallToolRequestParams(name="avm_inbox", arguments=taking))
            assert await anyio.to_thread.run_sync(begun.wait, LIMIT_S)
            group.cancel_scope.cancel()

    monkeypatch.setattr(Session, "call", asks)
    monkeypatch.setattr(Session, "close", closes)
    dora, eric = Session(where, "dora", environ), Session(where, "eric", environ)
    try:
        dora.call("write", {"path": "/private/known.md", "data": b"x"})
        anyio.run(cancelled, MemoryServer(dora, "0"))
        eric.call("tell", {"recipient": "dora", "body": "for whoever asks next"})
        assert closed.wait(LIMIT_S)
        (left,) = dora.call("inbox", {"unread_only": True})[0]["messages"]
        assert left["body"] == "for whoever asks next"
    finally:
        dora.close()
        eric.close()


@pytest.mark.parametrize("path", ["/shared/market.md:delta", "/shared/market.md:delta/.", "/:inbox?mark=read&unread=1"])
def test_what_an_answer_marks_is_not_asked_for_again_where_the_answer_is_lost(
    path: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`(no changes)` would be told as all that there was."""
    where, called = find_paths(world.environ), RemoteDoor.call
    lost: list[str] = []

    def call(door: RemoteDoor, method: str, /, **arguments: Any) -> Any:
        result = called(door, method, **arguments)
        if method == "read" and lost:
            lost.pop()
            door.close()
            raise Busy("the daemon went away during read")
        return result

    monkeypatch.setattr(RemoteDoor, "call", call)
    fay, gus = Session(where, "fay", world.environ), Session(where, "gus", world.environ)
    try:
        fay.call("write", {"path": "/private/known.md", "data": b"x"})
        gus.call("write", {"path": "/shared/market.md", "data": b"told"})
        gus.call("tell", {"recipient": "fay", "body": "told"})
        lost.append("a file is read twice")
        assert fay.call("read", {"path": "/shared/market.md"})[0]["data"] == b"told" and not lost
        lost.append("what marks is not")
        with pytest.raises(Busy, match="went away"):
            fay.call("read", {"path": path})
        assert b"told" not in fay.call("read", {"path": path})[0]["data"]
    finally:
        fay.close()
        gus.close()


def test_who_waits_for_changes_ends_with_the_key(world: World) -> None:
    where = find_paths(world.environ)
    alice = Session(where, "alice", world.environ)
    made = alice.call("create_key", {"actions": ["read", "inbox"]})[0]
    keyed = Session(where, "alice", {**world.environ, "AVM_API_KEY": made["key"]})
    watching = Watching(keyed)
    before = {*threading.enumerate()}
    try:
        anyio.run(watching.begin)
        (thread,) = (each for each in {*threading.enumerate()} - before if each.name == "watch")
        alice.call("revoke_key", {"id": made["id"]})
        alice.call("write", {"path": "/shared/wakes.md", "data": b"x"})
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    finally:
        watching.close()
        keyed.close()
        alice.close()


def test_changes_are_waited_for_as_soon_as_there_is_a_thread_for_it(world: World) -> None:
    alice = Session(find_paths(world.environ), "alice", world.environ)
    watching, before = Watching(alice), {*threading.enumerate()}
    try:
        with (
            patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
            pytest.raises(RuntimeError),
        ):
            anyio.run(watching.begin)
        anyio.run(watching.begin)
        assert [each.name for each in {*threading.enumerate()} - before] == ["watch"]
    finally:
        watching.close()
        alice.close()


def test_a_configuration_that_is_wrong_for_a_while_is_said_and_ends_no_waiting_for_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ConfigError("config.yaml", "search", "no such key")
    opened = chain([wrong, wrong, ValueError("not a frame")], repeat(DEFAULT))
    alice = Session(find_paths(world.environ), "alice", world.environ)
    watching = Watching(alice)
    monkeypatch.setattr("avmfs.mcp.watching.PAUSE_S", 0.01)
    monkeypatch.setattr("avmfs.mcp.session.open_door", Mock(wraps=open_door, side_effect=opened))
    try:
        with pytest.raises(Invalid, match="no such key"):
            alice.another()
        anyio.run(watching.begin)
        until(lambda: watching._session is not None)
    finally:
        watching.close()
        alice.close()


class _Held(Session):
    """One that has no second connection before ``held`` is set."""

    held: threading.Event

    def another(self) -> Session:
        assert self.held.wait(LIMIT_S)
        return super().another()


@pytest.fixture
def slow(world: World) -> Iterator[tuple[_Held, Watching]]:
    session = _Held(find_paths(world.environ), "alice", world.environ)
    session.held = threading.Event()
    watching = Watching(session)
    yield session, watching
    session.held.set()
    watching.close()
    session.close()


def test_no_subscription_is_acknowledged_before_changes_are_watched(
    slow: tuple[_Held, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, watching = slow
    monkeypatch.setattr("avmfs.mcp.watching.READY_S", LIMIT_S)
    done: list[int] = []

    async def one(number: int) -> None:
        await watching.begin()
        done.append(number)

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)
            await anyio.wait_all_tasks_blocked()
            assert done == []
            session.held.set()

    anyio.run(scenario)
    assert sorted(done) == [0, 1, 2]


def test_who_was_acknowledged_too_early_is_told_that_all_may_be_another(
    slow: tuple[_Held, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, watching = slow
    monkeypatch.setattr("avmfs.mcp.watching.READY_S", 0.01)

    async def scenario() -> None:
        told = anyio.Event()
        listener = Mock(send_resource_updated=AsyncMock(side_effect=lambda uri: told.set()))
        await watching.subscribe(listener, "avm://memory/shared/soon.md")
        session.held.set()
        with anyio.fail_after(LIMIT_S):
            await told.wait()

    anyio.run(scenario)


def test_a_subscriber_is_told_that_all_may_be_another_where_the_newest_change_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a restore: what it shows has the text of a change that is no more."""
    called = Session.call

    def call(session: Session, method: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        found, urgent = called(session, method, arguments)
        if method == "watch" and arguments["since"] is None:
            found = {**found, "seq": found["seq"] + 1000}  # of the store before
        return found, urgent

    monkeypatch.setattr(Session, "call", call)
    alice = Session(find_paths(world.environ), "alice", world.environ)
    watching = Watching(alice)

    async def scenario() -> None:
        told = anyio.Event()
        listener = Mock(send_resource_updated=AsyncMock(side_effect=lambda uri: told.set()))
        await watching.subscribe(listener, "avm://memory/shared/plan.md")
        with anyio.fail_after(LIMIT_S):
            await told.wait()

    try:
        anyio.run(scenario)
    finally:
        watching.close()
        alice.close()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_of_a_client_that_is_gone_nothing_is_kept(world: World, mode: str) -> None:
    alice = Session(find_paths(world.environ), "alice", world.environ)
    alice.call("write", {"path": "/shared/heard.md", "data": b"x"})
    server = MemoryServer(alice, "0")
    watching = server._watching

    async def scenario() -> None:
        async with Client(server, mode=mode) as stays:
            await stays.list_resources()
            before = len(watching._lists)
            for _ in range(5):
                async with Client(server, mode=mode) as goes:
                    await goes.list_resources()
                    if mode == "legacy":
                        await goes.subscribe_resource("avm://memory/shared/heard.md")
                        assert len(watching._lists) == before + 1 and watching._subscribed
            assert len(watching._lists) == before and watching._subscribed == {}
        assert watching._lists == {}

    try:
        anyio.run(scenario)
    finally:
        server.close()


def test_how_much_mail_waits_is_told_where_the_server_is_of_one_session(world: World, portal: BlockingPortal) -> None:
    """Over HTTP it would be what waited when the server began, to each session that comes."""
    alice, gita = (Session(find_paths(world.environ), name, world.environ) for name in ("alice", "gita"))
    try:
        gita.call("write", {"path": "/private/here.md", "data": b"so that there is a gita"})
        alice.call("tell", {"recipient": "gita", "body": "are you there?"})
        with stdio(portal, world.environ, "gita") as peer:
            assert "1 message had come that you have not read" in str(peer.client.instructions)
        with http_server(world.environ, "gita") as url:
            gita.call("inbox", {"mark_read": True})
            with http(portal, url, mode="legacy") as old, http(portal, url) as new:
                said = [str(peer.client.instructions) for peer in (old, new)]
        assert not any("have not read" in each for each in said), said
    finally:
        alice.close()
        gita.close()


# --- what it survives


def test_a_malformed_line_does_not_end_the_server_and_stdout_is_protocol_alone(world: World) -> None:
    with Lines(world.environ) as server:
        assert server.greet()["result"]["serverInfo"]["name"] == "avm"
        for odd in (
            b"",
            b"not json",
            b"\xff\xfe\x00",
            b'{"jsonrpc": "2.0"}',
            b"[]",
            b"null",
            b'{"id": 1',
            b'"' * 70_000,
            b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "avm_read", "arguments": '
            b'{"path": "\\ud800"}}}',
            b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}',
            b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}',
        ):
            server.send(odd)
        assert "error" in server.request(1, "no/such/method")
        assert "error" in server.request(2, "tools/call", name=5)
        result = server.request(3, "tools/call", name="avm_list", arguments={"path": "/"})["result"]
        assert "isError" not in result or result["isError"] is False
        nul = server.request(4, "tools/call", name="avm_read", arguments={"path": "/shared/a\x00b"})["result"]
        assert nul["isError"] is True
        assert "Traceback" not in server.end()


def test_who_asks_in_a_line_that_is_no_message_is_answered(world: World) -> None:
    """Else it would wait: for text that was cut in the middle of an emoji, and for a batch (protocol 2025-03-26)."""

    def asking(number: object, text: str) -> bytes:
        said = {"jsonrpc": "2.0", "id": number, "method": "tools/call"}
        return json.dumps({**said, "params": {"name": "avm_remember", "arguments": {"content": text}}}).encode()

    def errors(server: Lines) -> list[tuple[int, str]]:
        return [(each["error"]["code"], each["error"]["message"]) for each in server.said if each.get("id", 0) is None]

    with Lines(world.environ, "dora") as server:
        server.greet()
        server.send(asking(7, "cut \ud83d"))
        assert server.answer(7)["error"] == {"code": types.INVALID_REQUEST, "message": NO_TEXT}
        server.send(b'{"id": 8, "method": "tools/list"}')
        assert server.answer(8)["error"]["code"] == types.INVALID_REQUEST
        server.send(b"[%s, %s, 5, %s]" % (asking(9, "of a batch"), asking(10, "\udc00"), asking(11, "its last")))
        for number in (9, 10, 11):  # in whatever order
            if not any(each.get("id") == number for each in server.said):
                server.answer(number)
        of_batch = {each["id"]: each for each in server.said if each.get("id")}
        assert all("remembered" in of_batch[number]["result"]["content"][0]["text"] for number in (9, 11)), of_batch
        assert of_batch[10]["error"]["message"] == NO_TEXT
        assert [code for code, _ in errors(server)] == [types.INVALID_REQUEST]  # for the 5
        for odd in (b"", b"[]", b"not json", b"[" * 70_000, b'{"id": 12, "result": 5}', asking("\ud800", "x\ud800")):
            server.send(odd)
        assert "result" in server.request(13, "tools/list")
        said = [code for code, _ in errors(server)]
        assert said.count(types.PARSE_ERROR) == 2 and said.count(types.INVALID_REQUEST) == 4, errors(server)
        assert "Traceback" not in server.end()


def test_a_request_is_answered_whatever_its_id_is(world: World, url: str) -> None:
    """As of clients whose language writes 1 as 1.0; the SDK takes these for notifications."""
    asked = b'{"jsonrpc": "2.0", "id": %s, "method": "ping"}'
    with Lines(world.environ, "dora") as server:
        server.greet()
        server.send(asked % b"1.0")
        assert "result" in server.answer(1)
        server.send(b"[%s, %s]" % (asked % b"2.0", asked % b"null"))
        assert "result" in server.answer(2)
        for odd in (b"1.5", b"null", b"true", b"[1]", b'{"a": 1}'):
            server.send(asked % odd)
        server.send(b'{"jsonrpc": "2.0", "id": null, "method": "notifications/cancelled", "params": {"requestId": 99}}')
        server.request(3, "ping")
        refused = [each["error"]["code"] for each in server.said if each.get("id", 0) is None]
        assert refused == [types.INVALID_REQUEST] * 6, server.said
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }

    def post(body: bytes) -> Any:
        return httpx2.post(url, content=body, headers=headers, timeout=LIMIT_S)

    hello = b'{"jsonrpc": "2.0", "id": 0.0, "method": "initialize", "params": {"protocolVersion": "2025-06-18",'
    greeted = post(hello + b'"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}')
    assert greeted.status_code == 200 and '"id":0,' in greeted.text
    headers["Mcp-Session-Id"] = greeted.headers["mcp-session-id"]
    assert post(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}').status_code == 202
    found = post(asked % b"1.0")
    assert found.status_code == 200 and '"id":1,' in found.text, found.text
    for odd in (b"1.5", b"null", b"true"):
        found = post(asked % odd)
        said = found.json()
        assert found.status_code == 400 and said["id"] is None and said["error"]["code"] == types.INVALID_REQUEST
    assert post(b"{").json()["error"]["code"] == types.PARSE_ERROR
    assert httpx2.delete(url, headers=headers, timeout=LIMIT_S).status_code == 200


def test_text_in_another_encoding_is_refused_not_changed(world: World, url: str) -> None:
    arguments = b'{"path": "/shared/latin.md", "content": "caf\xe9"}'
    asked = b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "avm_write", "arguments": %s}}'
    with Lines(world.environ, "dora") as server:
        server.greet()
        server.send(asked % arguments)
        refused = server.answer(7)
        assert refused["error"] == {"code": types.INVALID_REQUEST, "message": "this is not in UTF-8"}
        found = server.request(8, "tools/call", name="avm_read", arguments={"path": "/shared/latin.md"})["result"]
        assert found["isError"] is True
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
    headers["Content-Type"] = "application/json"
    answered = httpx2.post(url, content=asked % arguments, headers=headers, timeout=LIMIT_S)
    assert answered.status_code == 400 and answered.json() == refused


@pytest.mark.parametrize(
    "asked",
    [b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', b"\n".join([b"no message"] * 50)],
    ids=["a request", "no messages"],
)
@pytest.mark.parametrize("half", [False, True], ids=["at all", "for answers alone"])
def test_a_client_that_is_gone_before_its_answer_is_no_error(world: World, half: bool, asked: bytes) -> None:
    with Lines(world.environ) as server:
        server.greet()
        process = server.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        server.send(asked)
        if not half:
            process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        assert b"Traceback" not in process.stderr.read()


def test_where_no_answer_can_be_written_it_says_why_and_ends(world: World) -> None:
    with (
        open("/dev/full", "wb") as full,
        subprocess.Popen(
            [sys.executable, "-m", "avmfs.mcp", "--user", "alice"],
            env=world.environ,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=full,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        try:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b"no message\n" * 50)
            process.stdin.flush()
            assert process.wait(LIMIT_S) == 1
            said = process.stderr.read().decode()
            assert "No space left on device" in said and "Traceback" not in said, said
        finally:
            process.kill()


def test_while_a_daemon_runs_no_model_index_or_store_is_loaded(world: World) -> None:
    with Lines(world.environ) as server:
        server.greet()
        for number, name in enumerate(("avm_recall", "avm_search"), 1):
            assert "result" in server.request(number, "tools/call", name=name, arguments={"query": "market"})
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "pydantic_core" in maps
        for library in ("numpy", "torch", "faiss", "apsw"):
            assert library not in maps, library
        server.end()


def test_it_goes_on_without_the_daemon_and_with_the_next_one(portal: BlockingPortal, tmp_path: Path) -> None:
    world = World([{"agent_id": "carol"}])
    try:
        world.start()
        with stdio(portal, world.environ, "alice", errors=tmp_path / "log") as alice:
            alice.call("avm_write", path="/shared/note.md", content="the heron stands\n")
            world.command("stop")
            assert world.process is not None
            world.process.wait(300)
            assert alice.text("avm_read", path="/shared/note.md") == "the heron stands\n"
            alice.call("avm_write", path="/shared/note.md", content="and waits\n", mode="append")
            found = alice.said("avm_recall", query="heron")
            assert "waits" in found["text"] and "no daemon is running" in found["degraded"]
            world.start()
            assert (world.mounts["carol"] / "shared/note.md").read_text() == "the heron stands\nand waits\n"
            assert alice.text("avm_read", path="/shared/note.md") == "the heron stands\nand waits\n"
            alice.call("avm_write", path="/shared/note.md", content="still\n", mode="append")
            # And when only the door is replaced.
            doors = [pid for pid in world.ours if _name(pid) == "avm door"]
            assert len(doors) == 1
            os.kill(doors[0], 9)
            until(lambda: _name(doors[0]) != "avm door")
            assert alice.text("avm_read", path="/shared/note.md").endswith("still\n")
            world.expected.append("door (pid")
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        world.end()


def _name(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if "\nState:\tZ" in status else status.splitlines()[0].partition("\t")[2]


def test_without_any_daemon_every_kind_of_request_works(alone: dict[str, str], portal: BlockingPortal) -> None:
    with stdio(portal, alone, "alice") as alice:
        path = alice.said("avm_remember", content="the egret fishes", namespace="shared")["path"]
        assert alice.said("avm_search", query="egret")["hits"][0]["path"] == path
        browsed = [alice.text("avm_browse", target=target) for target in ("egret", "when may we ship")]
        assert all(text.startswith("# semantic search unavailable: ") for text in browsed), browsed
        assert path in browsed[0] and browsed[1].endswith("\n(nothing found)\n"), browsed
        assert alice.ask("read_resource", f"avm:/{path}").contents[0].text == "the egret fishes\n"
        assert "egret" in alice.ask("get_prompt", "session_start", {"task": "egrets"}).messages[0].content.text
        with (
            alice.listening(resource_subscriptions=[f"avm:/{path}"]) as events,
            stdio(portal, alone, "bob", mode="legacy") as bob,
        ):
            bob.call("avm_write", path=path, content="and sleeps\n", mode="append")
            until(lambda: events)
            assert events[0].uri == f"avm:/{path}"


# --- resources


def test_resources_are_listed_with_templates_and_read(world: World, alice: Peer, bob: Peer) -> None:
    (world.mounts["carol"] / "shared/res").mkdir()
    (world.mounts["carol"] / "shared/res/a b.md").write_text("walrus\n")
    (world.mounts["carol"] / "shared/res/pixel.png").write_bytes(b"\x89PNG\xff")
    for peer in (alice, bob):
        listed = {each.uri: each for each in peer.ask("list_resources").resources}
        assert {each.uri for each in resources.FIXED} <= set(listed)
        assert listed["avm://memory/shared/res/a%20b.md"].name == "/memory/shared/res/a b.md"
        templates = {each.uri_template for each in peer.ask("list_resource_templates").resource_templates}
        assert templates == {"avm://memory/{+path}", "avm://recall/{query}", "avm://search/{query}"}

        def read(uri: str, peer: Peer = peer) -> Any:
            (content,) = peer.ask("read_resource", uri).contents
            assert content.uri == uri
            return content

        assert read("avm://memory/shared/res/a%20b.md").text == "walrus\n"
        assert read("avm://memory/shared/res/a%20b.md").mime_type == "text/markdown"
        assert "v1" in read("avm://memory/shared/res/a%20b.md:history").text
        assert read("avm://memory/shared/res/a%20b.md:meta").mime_type == "application/json"
        assert read("avm://memory/shared/res/pixel.png").blob == base64.b64encode(b"\x89PNG\xff").decode()
        assert read("avm://memory/shared/res/pixel.png").mime_type == "image/png"
        assert "a b.md" in read("avm://memory/shared/res").text
        assert "walrus" in read("avm://recall/walrus").text and "a b.md" in read("avm://search/walrus").text
        assert read("avm://recall/walrus%2Fseal").mime_type == read("avm://recall/walrus").mime_type == "text/markdown"
        assert "a b.md" in read("avm://search/walrus%20%2Fa.md:next").text
        assert "a b.md" in read("avm://search/walrus%20%2F%2050%25%20%26%20a%3Db%3F").text
        assert "a b.md" in read("avm://recent").text and ":recall" in read("avm://help").text
        assert read("avm://inbox").text and read("avm://urgent").text and '"files"' in read("avm://stats").text


@pytest.mark.parametrize(
    "uri",
    [
        "avm://memory/shared/none.md",
        "avm://memory/../etc/passwd",
        "avm://memory/shared/%2e%2e/private",
        "avm://nothing",
        "avm://memory/a%00b",
        "file:///etc/passwd",
        "avm://recall/",
        "avm://memory/shared:list?limit=x",
    ],
)
def test_a_bad_uri_is_a_protocol_error_that_says_why(alice: Peer, bob: Peer, uri: str) -> None:
    for peer in (alice, bob):
        with pytest.raises(MCPError) as caught:
            peer.ask("read_resource", uri)
        assert caught.value.error.code in (-32602, -32002) and "Traceback" not in str(caught.value)


def test_uris_and_paths_are_each_other_s_inverse() -> None:
    for path in ("/memory/shared/a b.md", "/memory/shared/50%.md", "/memory/shared/über?#.md", "/memory/x:meta"):
        assert resources.path_of(resources.uri_of(path)) == path


def updates(peer: Peer) -> list[str]:
    return [str(each.params.uri) for each in peer.heard if type(each).__name__ == "ResourceUpdatedNotification"]


def test_a_subscriber_hears_of_changes_in_the_handshake_protocol(world: World, alice: Peer) -> None:
    shared = world.mounts["carol"] / "shared"
    (shared / "sub").mkdir()
    (shared / "sub/one.md").write_text("1\n")
    latin = shared / "sub" / os.fsdecode(b"caf\xe9.md")  # a name that is no UTF-8
    latin.write_text("1\n")
    uris = ["avm://memory/shared/sub/one.md", "avm://memory/shared/sub", "avm://inbox"]
    uris.append("avm://memory/shared/sub/caf%E9.md")
    alice.call("avm_write", path="/private/known.md", content="who has written can be told")
    alice.ask("list_resources")
    for uri in [*uris, uris[0]]:  # twice is once
        alice.ask("subscribe_resource", uri)
    alice.heard.clear()
    (shared / "sub/one.md").write_text("2\n")
    until(lambda: updates(alice).count(uris[0]) == updates(alice).count(uris[1]) > 0)
    until(lambda: any(type(each).__name__ == "ResourceListChangedNotification" for each in alice.heard))
    assert "avm://inbox" not in updates(alice)
    latin.write_text("2\n")
    until(lambda: uris[3] in updates(alice))
    (world.mounts["carol"] / "tell/alice").write_text("ping\n")
    until(lambda: "avm://inbox" in updates(alice))
    alice.heard.clear()
    (shared / "elsewhere.md").write_text("x\n")
    for uri in uris:
        alice.ask("unsubscribe_resource", uri)
    (shared / "sub/one.md").write_text("3\n")
    time.sleep(0.5)
    assert updates(alice) == []
    with pytest.raises(MCPError):
        alice.ask("subscribe_resource", "file:///etc/passwd")


def test_a_listener_hears_of_changes_in_the_newest_protocol(world: World, bob: Peer) -> None:
    shared = world.mounts["carol"] / "shared"
    (shared / "two.md").write_text("1\n")
    bob.call("avm_write", path="/private/known.md", content="who has written can be told")
    with bob.listening(
        resource_subscriptions=["avm://memory/shared/two.md", "avm://inbox"], resources_list_changed=True
    ) as events:
        (shared / "two.md").write_text("2\n")
        until(lambda: {"ResourceUpdated", "ResourcesListChanged"} <= {type(each).__name__ for each in events})
        uris = {each.uri for each in events if type(each).__name__ == "ResourceUpdated"}
        assert uris == {"avm://memory/shared/two.md"}
        (world.mounts["carol"] / "tell/bob").write_text("ping\n")
        until(lambda: any(getattr(each, "uri", "") == "avm://inbox" for each in events))


def test_completion_offers_agents_and_names(world: World, alice: Peer, bob: Peer) -> None:
    from mcp_types import PromptReference, ResourceTemplateReference

    alice.call("avm_write", path="/shared/comp/alpha.md", content="x")
    found = bob.ask("complete", PromptReference(name="handoff"), {"name": "to", "value": "al"})
    assert found.completion.values == ["alice"]
    template = ResourceTemplateReference(uri="avm://memory/{+path}")
    found = bob.ask("complete", template, {"name": "path", "value": "shared/comp/a"})
    assert found.completion.values == ["shared/comp/alpha.md"]
    (world.mounts["carol"] / "shared/comp/leads").symlink_to("alpha.md")
    for typed in ("nowhere/x", "shared/comp/alpha.md/", "shared/comp/leads/"):  # nothing is below a file
        assert bob.ask("complete", template, {"name": "path", "value": typed}).completion.values == []
    other = ResourceTemplateReference(uri="avm://other/{path}")
    assert bob.ask("complete", other, {"name": "path", "value": "shared/comp/a"}).completion.values == []


def test_a_cursor_that_was_never_given_out_is_refused(alice: Peer, bob: Peer) -> None:
    for peer in (alice, bob):
        for kind in ("tools", "resources", "resource_templates", "prompts"):
            with pytest.raises(MCPError, match="no such cursor"):
                peer.ask(f"list_{kind}", cursor="elsewhere")


# --- prompts


def test_prompts_are_filled_with_what_is_so(alice: Peer, bob: Peer) -> None:
    for peer in (alice, bob):
        listed = {each.name: each for each in peer.ask("list_prompts").prompts}
        assert set(listed) == {"handoff", "session_start"}
        assert [(each.name, each.required) for each in listed["handoff"].arguments] == [("to", True), ("task", False)]
    alice.call("avm_remember", content="The okapi test fails on Tuesdays", namespace="shared")
    alice.call("avm_tell", recipient="bob", body="look at the okapi")
    (message,) = bob.ask("get_prompt", "session_start", {"task": "okapi test"}).messages
    assert "look at the okapi" in message.content.text and "fails on Tuesdays" in message.content.text
    assert len(bob.said("avm_inbox", unread_only=True)["messages"]) > 0  # nothing was marked
    (message,) = alice.ask("get_prompt", "handoff", {"to": "bob"}).messages
    assert "bob" in message.content.text and "okapi" in message.content.text
    for name, arguments in (("handoff", {}), ("handoff", {"to": "x", "y": "z"}), ("nothing", {})):
        with pytest.raises(MCPError, match=r"required|no such argument|no prompt"):
            bob.ask("get_prompt", name, arguments)


def test_a_prompt_is_filled_with_what_an_api_key_opens(world: World, portal: BlockingPortal, alice: Peer) -> None:
    alice.call("avm_remember", content="The tapir test fails on Mondays", namespace="shared")
    refused = "(this API key does not allow it)"
    with AVM(agent="alice", environ=world.environ) as avm:
        keys = [avm.create_api_key(actions=actions) for actions in (["read", "search"], ["inbox"])]
    for key, told, start, hand in zip(keys, (True, False), (1, 2), (0, 1), strict=True):
        with stdio(portal, {**world.environ, "AVM_API_KEY": key}, "alice") as peer:
            (message,) = peer.ask("get_prompt", "session_start", {"task": "tapir test"}).messages
            assert ("fails on Mondays" in message.content.text) == told
            assert message.content.text.count(refused) == start
            (message,) = peer.ask("get_prompt", "handoff", {"to": "bob"}).messages
            assert message.content.text.count(refused) == hand


# --- HTTP


def test_http_offers_the_same_in_both_protocols(world: World, portal: BlockingPortal, url: str) -> None:
    for mode in ("legacy", "auto"):
        with http(portal, url, mode=mode) as peer:
            path = peer.said("avm_remember", content=f"over http {mode}", namespace="shared")["path"]
            assert f"over http {mode}" in peer.said("avm_recall", query=f"http {mode}")["text"]
            assert "no such argument" in peer.refused("avm_read", path=path, other=1)
            peer.call("avm_write", path=f"/private/large-{mode}", content="x" * 4_300_000)  # as over stdio
            assert peer.ask("read_resource", f"avm:/{path}").contents[0].text == f"over http {mode}\n"
            mounted = world.mounts["carol"] / path.removeprefix("/")
            if mode == "legacy":
                peer.ask("subscribe_resource", f"avm:/{path}")
                mounted.write_text("changed\n")
                until(lambda peer=peer, path=path: f"avm:/{path}" in updates(peer))
            else:
                with peer.listening(resource_subscriptions=[f"avm:/{path}"]) as events:
                    mounted.write_text("changed\n")
                    until(lambda events=events: events)


def test_two_agents_speak_over_http_and_stdio(portal: BlockingPortal, url: str, bob: Peer) -> None:
    with http(portal, url) as alice:
        alice.call("avm_remember", content="here I am")  # else nobody is called so yet
        bob.call("avm_tell", recipient="alice", body="over the wire", priority="urgent")
        assert "over the wire" in alice.call("avm_stats").content[1].text
        alice.call("avm_inbox", mark_read=True)


def test_http_is_for_who_has_the_token_and_names_the_server(url: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    usual = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }

    def code(**changed: str | None) -> int:
        headers = {name: value for name, value in {**usual, **changed}.items() if value is not None}
        return int(httpx2.post(url, json=body, headers=headers, timeout=LIMIT_S).status_code)

    port = url.split(":")[2].split("/")[0]
    assert code() == 400  # a request without a session: past all guards
    assert code(Authorization=None) == 401 and code(Authorization=f"Bearer {TOKEN}x") == 401
    assert code(Authorization=TOKEN) == 401 and code(Authorization="Bearer") == 401
    assert code(Authorization=f"Basic {TOKEN}") == 401 and code(Authorization=f"bearer {TOKEN}") != 401
    assert code(Host="evil.example") == 421 and code(Host=f"evil.example:{port}") == 421
    assert code(Host="127.0.0.1:1") == 421
    assert code(Origin="http://evil.example") == 403 and code(Origin="null") == 403
    assert code(Origin=f"http://localhost:{port}") == 400
    assert httpx2.get(url, headers={}, timeout=LIMIT_S).status_code == 401
    assert httpx2.post(url, content=b"x" * (BODY_MOST + 1), headers=usual, timeout=LIMIT_S).status_code == 413


def test_a_client_that_sends_nothing_is_hung_up_on(world: World) -> None:
    impatient = ("-c", "from avmfs.mcp import main, patience; patience.HEAD_S = 0.3; main.main()")
    with http_server(world.environ, "alice", program=impatient) as url:
        at = urllib.parse.urlsplit(url)
        with socket.create_connection((str(at.hostname), int(at.port or 0)), LIMIT_S) as silent:
            assert silent.recv(1) == b""


def test_http_is_not_served_beyond_this_machine_unasked(world: World) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "localhost.example"):
        with pytest.raises(Invalid, match="--allow-remote"):
            listen(host, 0, remote=False)
    for host in ("127.0.0.1", "127.1.2.3", "localhost"):
        listen(host, 0, remote=False).close()
    code, said = started({**world.environ, "AVM_MCP_TOKEN": TOKEN}, "--user", "alice", "--http", "--host", "0.0.0.0")
    assert code == 2 and "--allow-remote" in said
    code, said = started({**world.environ, "AVM_MCP_TOKEN": "short"}, "--user", "alice", "--http")
    assert code == 2 and "at least 16" in said


def test_nothing_but_http_with_the_token_gets_to_the_server() -> None:
    reached: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["type"])

    async def ask(kind: str, headers: list[tuple[bytes, bytes]]) -> None:
        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await Guarded(app, TOKEN)({"type": kind, "headers": headers}, None, send)

    for kind in ("websocket", "http"):
        anyio.run(ask, kind, [])
    anyio.run(ask, "websocket", [(b"authorization", f"Bearer {TOKEN}".encode())])
    assert reached == [] and [each["type"] for each in sent] == [
        "websocket.close",
        "http.response.start",
        "http.response.body",
        "websocket.close",
    ]
    anyio.run(ask, "http", [(b"authorization", f"Bearer {TOKEN}".encode())])
    anyio.run(ask, "lifespan", [])
    assert reached == ["http", "lifespan"]


def test_the_token_is_made_once_and_kept_from_others(world: World) -> None:
    environ = {name: value for name, value in world.environ.items() if name != "AVM_MCP_TOKEN"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "token")
        made = token(str(path), Path(folder), "alice")
        assert path.stat().st_mode & 0o777 == 0o600 and re.fullmatch(r"[\w-]{43}", made)
        assert token(str(path), Path(folder), "alice") == made
        path.chmod(0o644)
        code, said = started(environ, "--user", "alice", "--http", "--port", "0", "--token-file", str(path))
        assert code == 1 and "chmod 600" in said


def test_a_start_that_is_killed_while_it_makes_the_token_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "token")
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(secrets, "token_urlsafe", Mock(side_effect=KeyboardInterrupt))
            token(str(path), Path(folder), "alice")
        assert re.fullmatch(r"[\w-]{43}", token(str(path), Path(folder), "alice"))
        assert os.listdir(folder) == ["token"]


def test_a_port_that_is_taken_is_a_clear_error(world: World, url: str) -> None:
    port = url.split(":")[2].split("/")[0]
    code, said = started({**world.environ, "AVM_MCP_TOKEN": TOKEN}, "--user", "alice", "--http", "--port", port)
    assert code == 1 and "in use" in said


def test_an_outer_host_can_be_named(world: World) -> None:
    with http_server(world.environ, "alice", "--allow-host", "memory.example") as url:
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "memory.example", "Content-Type": "application/json"}
        assert httpx2.post(url, json={}, headers=headers, timeout=LIMIT_S).status_code != 421
