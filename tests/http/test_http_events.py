"""What a stream of events tells, what MCP over the service offers, and how a browser is let in by avm open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from avmfs.http.doors import ALL
from avmfs.http.events import STREAMS_OF_ONE
from avmfs.http.mcp import SERVERS, SERVERS_OF_ONE
from avmfs.rpc.server import CLIENTS, CLIENTS_PER_UID, STRANGERS
from tests.faults.daemons import LIMIT_S, QUIET, wait
from tests.http.http_world import Visitor, Web, of, started


class Stream:
    """A client of /events. ``next`` waits for an event that is no sign of life."""

    def __init__(self, web: Web, token: str, query: str = "", **headers: str) -> None:
        self._connection = web.connection()
        sent = {"authorization": f"Bearer {token}", **{name.replace("_", "-"): each for name, each in headers.items()}}
        self._connection.request("GET", f"/events{query}", headers=sent)
        self._answer: HTTPResponse = self._connection.getresponse()
        self.status, self.id = self._answer.status, ""

    def next(self) -> tuple[str, Any]:
        name, until = "", time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            line = self._answer.readline().decode()
            assert line, "the stream has ended"
            key, _, value = line.rstrip("\n").partition(": ")
            if key == "id":
                self.id = value
            elif key == "event":
                name = value
            elif key == "data":
                return name, json.loads(value)
        raise AssertionError("no event came in time")

    def until(self, path: str) -> list[str]:
        """The paths that are told of until this one is."""
        seen: list[str] = []
        while path not in seen:
            name, data = self.next()
            if name == "change":
                seen.append(data["path"])
        return seen

    def rest(self) -> bytes:
        """The next event's data, nothing where the stream ends without one."""
        return next((line for line in self._answer if line.startswith(b"data: ")), b"")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextlib.contextmanager
def stream(*arguments: Any, **headers: Any) -> Iterator[Stream]:
    opened = Stream(*arguments, **headers)
    try:
        yield opened
    finally:
        opened.close()


def test_changes_come_as_they_happen_and_to_whom_they_are_visible(web: Web) -> None:
    alice, bob = web.token("alice"), web.token("bob")
    with stream(web, bob) as told:
        assert told.status == 200
        web.call(alice, "write", path="/private/quiet.md", data="hers alone")
        web.call(alice, "write", path="/shared/loud.md", data="for all")
        assert told.until("/memory/shared/loud.md") == ["/memory/shared/loud.md"]
        web.call(alice, "move", source="/shared/loud.md", target="/shared/louder.md")
        assert "/memory/shared/louder.md" in told.until("/memory/shared/louder.md")


def test_the_streams_of_one_agent_are_counted_by_all_its_keys(web: Web) -> None:
    with contextlib.closing(web.door("kim")) as door, contextlib.ExitStack() as held:
        keys = [str(door.call("create_key", actions=["read", "inbox"])["key"]) for _ in range(3)]
        opened = [held.enter_context(stream(web, keys[n % 2])) for n in range(STREAMS_OF_ONE)]
        assert {each.status for each in opened} == {200}
        for shown in (*keys, web.token("kim")):
            with stream(web, shown) as one_more:
                assert one_more.status == 503
        with stream(web, web.token("alice")) as hers:
            assert hers.status == 200


def test_a_stream_goes_on_where_the_last_one_ended(web: Web) -> None:
    token = web.token("alice")
    with stream(web, token) as told:
        web.call(token, "write", path="/shared/first.md", data="1")
        told.until("/memory/shared/first.md")
        web.call(token, "write", path="/shared/second.md", data="2")
        told.until("/memory/shared/second.md")
        reached = told.id
    assert reached.isdecimal()
    web.call(token, "write", path="/shared/third.md", data="3")
    for how in ({"query": "", "last_event_id": reached}, {"query": f"?since={reached}"}):
        query = how.pop("query")
        with stream(web, token, query, **how) as again:
            assert "/memory/shared/third.md" in again.until("/memory/shared/third.md")


def test_a_stream_that_goes_on_tells_of_mail_that_came_meanwhile(web: Web) -> None:
    alice, ivy = web.token("alice"), web.token("ivy")
    web.call(ivy, "write", path="/private/here.md", data="so that there is an ivy")
    with stream(web, ivy) as told:
        for number in (1, 2):  # the id of the first is there when the second is
            web.call(alice, "write", path=f"/shared/before mail {number}.md", data="x")
            told.until(f"/memory/shared/before mail {number}.md")
        reached = told.id
    assert reached.isdecimal() and web.call(alice, "tell", recipient="ivy", body="are you there?").status == 200
    with contextlib.closing(web.door("ivy")) as door:
        key = str(door.call("create_key", actions=["read"])["key"])  # it opens no inbox
    for shown, mail in ((ivy, [{"urgent": 0, "normal": 1, "low": 0}]), (key, [])):
        with stream(web, shown, last_event_id=reached) as again:
            again.until("/memory/shared/before mail 2.md")
            web.call(alice, "write", path=f"/shared/after mail {len(mail)}.md", data="x")
            seen = [again.next()]
            while seen[-1][0] != "change" or seen[-1][1]["path"] != f"/memory/shared/after mail {len(mail)}.md":
                seen.append(again.next())
        assert [data for name, data in seen if name == "mail"] == mail, seen


def test_a_stream_can_go_on_from_its_first_event(web: Web) -> None:
    token = web.token("alice")
    with stream(web, token) as told:
        web.call(token, "write", path="/shared/begun.md", data="1")
        told.until("/memory/shared/begun.md")
        reached = told.id
    assert reached.isdecimal()
    with stream(web, token, f"?since={reached}") as again:
        assert again.status == 200 and again.until("/memory/shared/begun.md")


def test_a_stream_that_goes_on_from_a_change_that_is_lost_says_that_there_was_more(web: Web) -> None:
    with stream(web, web.token("alice"), last_event_id="999999") as told:
        assert told.next() == ("more", {})


def test_a_stream_ends_with_its_session(web: Web) -> None:
    alice, bob = web.token("alice"), Visitor(web, "bob")
    bearer = web.token("bob")
    with stream(web, bearer) as by_token, stream(web, "", cookie=bob.cookie) as by_cookie:
        assert (by_token.status, by_cookie.status) == (200, 200)
        web.call(alice, "write", path="/shared/ending/before.md", data="x")
        for told in (by_token, by_cookie):
            told.until("/memory/shared/ending/before.md")
        assert web.ask("DELETE", "/session", token=bearer).status == 200
        assert bob.web.ask("POST", "/sign-out", cookie=bob.cookie, origin=web.url).status == 303
        web.call(alice, "write", path="/shared/ending/after.md", data="x")
        assert (by_token.rest(), by_cookie.rest()) == (b"", b"")


def test_a_pattern_limits_what_is_told(web: Web) -> None:
    token = web.token("alice")
    with stream(web, token, "?pattern=/shared/only/*") as told:
        web.call(token, "write", path="/shared/other.md", data="x")
        web.call(token, "write", path="/shared/only/this.md", data="x")
        assert told.until("/memory/shared/only/this.md") == ["/memory/shared/only/this.md"]


def test_mail_is_told_to_its_receiver(web: Web) -> None:
    alice, bob = web.token("alice"), web.token("bob")
    web.call(bob, "write", path="/private/here.md", data="x")  # who has written is known
    with stream(web, bob, "?pattern=/none/*") as told:
        assert web.call(alice, "tell", recipient="bob", body="numbers are in").status == 200
        name, data = told.next()
        while name != "mail":
            name, data = told.next()
        assert data["normal"] >= 1


@pytest.mark.parametrize("query", ["?since=x", "?since=-1", "?nothing=1", "?pattern=", "?since=9999999999999999999"])
def test_a_bad_question_for_events_is_refused(web: Web, query: str) -> None:
    assert web.ask("GET", f"/events{query}", token=web.token("alice")).status == 400


def test_a_caller_may_have_so_many_streams_and_those_that_end_leave_room(web: Web) -> None:
    token = web.token("dora")
    with contextlib.ExitStack() as held:
        statuses = [held.enter_context(stream(web, token)).status for _ in range(9)]
        assert statuses == [200] * 8 + [503]
        with stream(web, web.token("alice")) as other:
            assert other.status == 200

    def room() -> bool:
        with stream(web, token) as again:
            return again.status == 200

    wait(room)


def test_streams_that_are_opened_at_once_are_counted_too(web: Web) -> None:
    """As a page has them reconnect: each would find none open, and they would take all of the agent's requests."""
    token, many = web.token("lea"), STREAMS_OF_ONE + 4
    together = threading.Barrier(many)

    def opened(_: int) -> Stream:
        together.wait(LIMIT_S)
        return Stream(web, token)

    with ThreadPoolExecutor(many) as pool:
        streams = [*pool.map(opened, range(many))]
    try:
        assert sorted(each.status for each in streams) == [200] * STREAMS_OF_ONE + [503] * 4
        assert web.call(token, "tags").status == 200
    finally:
        for each in streams:
            each.close()

    def refused() -> int:
        return web.ask("GET", "/events?pattern=", token=token).status

    wait(lambda: refused() == 400)  # once one has left
    assert {refused() for _ in range(STREAMS_OF_ONE)} == {400}, "what is refused keeps no place"


def test_mcp_over_the_service_is_the_agent_of_the_token(web: Web) -> None:
    pytest.importorskip("mcp")
    import httpx2
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    with contextlib.closing(web.door("alice")) as door:
        key = door.call("create_key", actions=["read", "write", "search", "tell", "inbox"])["key"]

    async def talk(token: str) -> tuple[list[str], str]:
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=LIMIT_S) as client,
            streamable_http_client(f"{web.url}/mcp", http_client=client) as (reading, writing, *_),
            ClientSession(reading, writing) as session,
        ):
            said = await session.initialize()
            tools = await session.list_tools()
            done = await session.call_tool("avm_remember", {"content": f"The kiln of {token[:4]} is warm on Mondays."})
            assert not done.is_error, done
            large = await session.call_tool("avm_write", {"path": "/private/large", "content": "x" * 4_300_000})
            assert not large.is_error, large
            return [tool.name for tool in tools.tools], said.instructions or ""

    for token in (key, web.token("alice"), web.token("bob")):
        names, instructions = asyncio.run(talk(token))
        assert "avm_recall" in names
    assert "You are bob" in instructions
    found = web.call(web.token("alice"), "search", query="kiln").body + web.call(key, "search", q="kiln").body
    assert b"kiln" in found


def test_one_agent_has_so_many_mcp_servers_by_all_its_keys(web: Web) -> None:
    pytest.importorskip("mcp")
    said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "many", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": said}

    def status(token: str) -> int:
        return web.ask("POST", "/mcp", hello, token, accept="application/json, text/event-stream").status

    with contextlib.closing(web.door("mallory")) as door:
        keys = [str(door.call("create_key", actions=["read", "inbox"])["key"]) for _ in range(SERVERS_OF_ONE + 1)]
    assert [status(key) for key in keys] == [200] * len(keys), "one of which nothing is under way makes room"
    *listening, last = keys
    with contextlib.ExitStack() as streams:
        for key in listening:
            streams.enter_context(contextlib.closing(_listening(web, key)[0]))
        assert status(last) == 503 and status(web.token("carol")) == 200 and status(keys[0]) == 200
    wait(lambda: status(last) == 200)


def test_all_that_comes_over_http_leaves_programs_of_the_same_user_room() -> None:
    of_an_mcp_server = 2  # its own connection, and the one that waits for changes
    assert ALL + of_an_mcp_server * SERVERS <= CLIENTS_PER_UID - 64
    assert CLIENTS_PER_UID + STRANGERS <= CLIENTS


def test_a_stream_of_mcp_ends_with_its_session_and_with_its_key(web: Web) -> None:
    pytest.importorskip("mcp")
    with contextlib.closing(web.door("alice")) as door:
        made = door.call("create_key", actions=["read", "inbox"])
    tokens = [web.token("bob"), web.token("bob"), made["key"]]
    streams = [_listening(web, token) for token in tokens]
    assert web.ask("DELETE", "/session", token=tokens[0]).status == 200
    with contextlib.closing(web.door("alice")) as door:
        door.call("revoke_key", id=made["id"])
    ended, _, also = streams
    for connection, answer in (ended, also):
        assert b"updated" not in answer.read()
        connection.close()
    assert web.call(tokens[1], "write", path="/shared/mcp-ending.md", data="x").status == 200
    connection, answer = streams[1]  # of another session of this agent's
    while b"list_changed" not in (line := answer.readline()):
        assert line
    connection.close()


def _listening(web: Web, token: str) -> tuple[HTTPConnection, HTTPResponse]:
    """A stream of a client of MCP that has asked what there is, and is told when that changes."""
    headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    for number, (method, params) in enumerate(
        [("initialize", hello), ("notifications/initialized", {}), ("resources/list", {})]
    ):
        asked: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
        asked |= {} if method.startswith("notifications") else {"id": number}
        said = web.ask("POST", "/mcp", asked, **headers)
        assert said.status in (200, 202), said
        headers.setdefault("mcp-session-id", said.headers["mcp-session-id"])
    connection = web.connection()
    connection.request("GET", "/mcp", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    return connection, answer


def test_avm_open_signs_a_browser_in_and_begins_the_service_where_it_is_off(root: Path) -> None:
    daemon = started(root, QUIET, on=False)

    def avm(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "avmfs.cli", *arguments]
        done = subprocess.run(command, env=daemon.environ, capture_output=True, text=True, timeout=LIMIT_S, cwd=root)
        assert done.returncode == code, (done.stdout, done.stderr, daemon.log())
        return done.stdout + done.stderr

    try:
        assert daemon.status()["http"]["state"] == "off"
        url = avm("open", "-a", "alice", "--print").strip()
        web = of(daemon)
        assert url.startswith(f"{web.url}/sign-in?code=")
        signed = web.ask("GET", url.removeprefix(web.url))
        assert signed.status == 303
        home = web.ask("GET", "/", cookie=signed.headers["set-cookie"].partition(";")[0])
        assert home.status == 200 and "alice" in home.body.decode()
        found = json.loads(avm("open", "--operator", "--print", "--json"))
        token = web.ask("POST", "/session", {"code": found["code"]}).json["result"]["token"]
        assert web.ask("GET", "/session", token=token).json["result"]["operator"] is True
        assert web.call(token, "audit_verify").status == 200
        assert web.call(web.token("alice"), "audit_verify").status == 403
        daemon.command("reload")  # what was asked for stays
        assert daemon.status()["http"]["state"] == "ready"
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_who_may_not_be_the_operator_does_not_begin_the_service(root: Path) -> None:
    daemon = started(root, QUIET + "agents:\n  alice: {capabilities: [write]}\n", on=False)
    try:
        command = [sys.executable, "-m", "avmfs.cli", "open", "-a", "alice"]
        done = subprocess.run(command, env=daemon.environ, capture_output=True, text=True, timeout=LIMIT_S, cwd=root)
        assert done.returncode == 1 and "operator" in done.stderr, done
        assert daemon.status()["http"]["state"] == "off"
    finally:
        daemon.command("stop")
        daemon.clean_up()
