"""The daemon's socket: who may speak for whom, hostile peers, and any value at all.

The door answers its own user within two seconds, whatever else is going on.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from avmfs_config import default_settings

from avmfs import wire
from avmfs.errors import AvmError, Busy, Denied, Invalid, NotSupported, StoreFailed, TooBig, from_wire
from avmfs.memory import Memory
from avmfs.rpc import methods, server
from avmfs.rpc.client import RemoteDoor
from avmfs.rpc.local import LocalDoor
from avmfs.rpc.server import _Door, _reply
from tests.behind import connect
from tests.faults.daemons import AS_USER, LIMIT_S, QUIET, Daemon, as_user, wait
from tests.log_lines import unexpected
from tests.threads import refused_once

pytestmark = pytest.mark.mount
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

KNOWN, STRANGER = 12345, 54321
PROMPT_S = 100.0
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    """alice's and bob's daemon; another user may speak for alice and helper. Started with no umask at all."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o711)  # others reach what is below by name
        daemon = Daemon(root)
        daemon.mounts("alice", "bob")
        daemon.settings(QUIET + f"uids: {{{KNOWN}: [alice, helper]}}\n")
        before = os.umask(0)
        try:
            daemon.start()
        finally:
            os.umask(before)
        try:
            (daemon.at("alice") / "private/secret.md").write_text("hers alone")
            (daemon.at("alice") / "shared/note.md").write_text("hello world")
            yield daemon
            assert unexpected(daemon.log(), ["door: dropping a client of uid"]) == [], daemon.log()[-6000:]
        finally:
            with contextlib.suppress(AssertionError):
                daemon.command("stop")
            daemon.clean_up()


def answers(daemon: Daemon) -> None:
    """A new client of the daemon's own user is served promptly."""
    started = time.monotonic()
    client = daemon.door()
    try:
        assert client.call("read", path="/shared/note.md")["data"] == b"hello world"
    finally:
        client.close()
    assert time.monotonic() - started < PROMPT_S


def raw(daemon: Daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(LIMIT_S)
    sock.connect(str(daemon.run / "avm.sock"))
    return sock


# --- who


_SPEAK = """
def speak(agent, operator):
    door = RemoteDoor(sock, agent, operator=operator)
    read = lambda path: door.call("read", path=path)["data"].decode()
    door.call("write", path="/private/mine.md", data=b"x")
    return [said(lambda: read("/private/secret.md")), said(lambda: read("/memory/private/alice/secret.md")),
            read("/private/mine.md")]
print(json.dumps({f"{agent} {operator}": said(lambda: speak(agent, operator))
    for agent in ("alice", "helper", "bob", "operator", "avmfs", "alice2") for operator in (False, True)}))
"""


@as_root
def test_another_user_speaks_for_the_agents_it_was_given_and_is_never_the_operator(served: Daemon) -> None:
    said = as_user(served, KNOWN, _SPEAK)
    assert said.pop("alice False") == ["hers alone", "hers alone", "x"]
    assert said.pop("helper False") == [2, 2, "x"]
    assert said.pop("avmfs False") == said.pop("avmfs True") == errno.EINVAL  # the system's own name is nobody's
    assert set(said.values()) == {13}, said


@as_root
def test_a_user_without_agents_is_refused_for_all(served: Daemon) -> None:
    said = as_user(served, STRANGER, _SPEAK)
    assert said.pop("avmfs False") == said.pop("avmfs True") == errno.EINVAL  # the system's own name is nobody's
    assert set(said.values()) == {13}, said
    said = as_user(
        served,
        STRANGER,
        "s = socket.socket(socket.AF_UNIX); s.settimeout(300); s.connect(sock)\n"
        "wire.send(s, {'v': 1, 'agent': 'alice', 'operator': False, 'uid': 0})\n"
        "error = wire.receive(s)['error']\n"
        "request = {'id': 1, 'method': 'read', 'arguments': {'path': '/private/secret.md'}}\n"
        "print(json.dumps([error, said(lambda: wire.send(s, request)), said(lambda: len(s.recv(100)))]))",
    )
    assert said[0][0] == 13 and "secret" not in str(said) and said[2] in (0, 32, 104)


@as_root
def test_another_user_gets_at_no_other_socket_and_no_file(served: Daemon) -> None:
    found = [path for top in (served.run, served.root / "data") for path in (top, *top.rglob("*"))]
    names = {path.name for path in found}
    assert {"avm.db", "avm.db-wal", "avm.db.lock", "writer.sock", "control.sock", "avm.sock", "logs"} <= names
    for path in found:
        if path.name not in ("avm.sock", "run") and not path.is_symlink():  # whose mode says nothing
            assert not path.lstat().st_mode & 0o077, path
    tried = as_user(
        served,
        KNOWN,
        f"found = {[str(path) for path in found]!r}\n"
        "def connect(path):\n"
        "    s = socket.socket(socket.AF_UNIX); s.settimeout(300); s.connect(path); return 'connected'\n"
        "def look(path):\n"
        "    return os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1).hex()\n"
        "use = {path: connect if path.endswith('.sock') else look for path in found}\n"
        "print(json.dumps({path: said(lambda: use[path](path)) for path in found}))",
    )
    assert tried.pop(str(served.run / "avm.sock")) == "connected"
    assert set(tried.values()) == {13}, tried
    mounts = as_user(served, KNOWN, f"print(json.dumps(said(lambda: os.listdir({str(served.at('alice'))!r}))))")
    assert mounts == 13


def test_a_bad_greeting_is_refused_with_a_reason(served: Daemon) -> None:
    for greeting in (
        {"v": 1},
        {"v": 1, "agent": 7},
        {"v": 1, "agent": "BAD NAME"},
        {"v": 1, "agent": "../alice"},
        {"v": 99, "agent": "bob"},
        {"v": 1, "agent": "bob", "operator": 1},
        {"v": 1, "agent": "all"},
        {"agent": "bob"},
        [1, 2],
        "bob",
        None,
        3,
        {"v": 1, "agent": "\udcff"},
        {"v": [], "agent": "bob"},
        {"v": 1, "agent": "bob", "operator": "yes"},
    ):
        with raw(served) as sock:
            wire.send(sock, greeting)
            reply = wire.receive(sock)
            assert set(reply) == {"error"} and reply["error"][0] == 22 and reply["error"][1], greeting
            assert sock.recv(1) == b""
    answers(served)


# --- hostile peers


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/avm-pickled",)


GREETING = wire.frame({"v": wire.PROTOCOL, "agent": "bob", "operator": False})
JUNK = {
    "garbage": os.urandom(64),
    "newlines": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "nothing": struct.pack(">I", 0),
    "pickle": pickle.dumps(Evil()),
    "framed pickle": struct.pack(">I", len(pickle.dumps(Evil()))) + pickle.dumps(Evil()),
    "oversize": struct.pack(">I", 0xFFFFFFFF) + b"x" * 4096,
    "no msgpack": struct.pack(">I", 1) + b"\xc1",
    "huge array": struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
    "huge map": struct.pack(">I", 5) + b"\xdf\xff\xff\xff\xff",
    "deep": struct.pack(">I", 4000) + b"\x91" * 4000,
    "list as key": struct.pack(">I", 4) + b"\x81\x91\x01\x01",
    "bomb": struct.pack(">I", 9_000_005) + b"\xdd" + struct.pack(">I", 9_000_000) + b"\x80" * 9_000_000,
    "extension": struct.pack(">I", 3) + b"\xd4\x01\x00",
    "two values": struct.pack(">I", 2) + b"\x01\x01",
}


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("kind", JUNK)
def test_what_is_no_frame_ends_that_connection_only(served: Daemon, kind: str, greeted: bool) -> None:
    with raw(served) as sock:
        if greeted:
            sock.sendall(GREETING)
            assert wire.receive(sock) == {"ok": {"agent": "bob", "operator": False}}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(JUNK[kind])
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    answers(served)
    assert not os.path.exists("/tmp/avm-pickled")


def test_requests_that_are_none_end_the_connection_or_are_refused(served: Daemon) -> None:
    for request in (1, [], {}, {"id": "1"}, {"id": None, "method": "read"}, "read"):
        with raw(served) as sock:
            sock.sendall(GREETING + wire.frame(request))
            wire.receive(sock)
            assert sock.recv(1) == b"", request
    for request in (
        {"id": 1},
        {"id": 1, "method": 3},
        {"id": 1, "method": "read", "arguments": [1]},
        {"id": 1, "method": "read", "arguments": {b"path": "/"}},
        {"id": 1, "method": "__class__", "arguments": {}},
        {"id": 1, "method": "submit", "arguments": {}},
        {"id": 1, "method": "read", "arguments": {"memory": 1}},
        {"id": 1, "method": "read", "arguments": {"path": "/", "self": 1}},
        {"id": 1, "method": "", "arguments": {}},
    ):
        with raw(served) as sock:
            sock.sendall(GREETING + wire.frame(request))
            wire.receive(sock)
            reply = wire.receive(sock)
            assert reply["id"] == 1 and reply["error"][0] == 22 and reply["result"] is None, request
    answers(served)


def _peeled(between: str) -> bytes:
    """A text whose lines a diff finds again one at a time."""
    return "".join(f"{n + 1}\n{between}\n{n}\n{between}\n" for n in range(12_000)).encode()


def test_long_work_keeps_nobody_else_waiting_and_ends_with_its_client(served: Daemon) -> None:
    client = served.door()
    for between in ("x", "y"):
        client.call("write", path="/private/long.md", data=_peeled(between))
        time.sleep(1.1)  # another version
    pid = served.family()["door"]
    began = _cpu_s(pid)
    assert client.call("read", path="/private/long.md:diff")["data"].startswith(b"# coarse: ")
    one = _cpu_s(pid) - began
    idle = len(os.listdir(f"/proc/{pid}/task"))
    request = wire.frame({"id": 1, "method": "read", "arguments": {"path": "/private/long.md:diff"}})
    clients = [raw(served) for _ in range(15)]
    try:
        for sock in clients:
            sock.sendall(GREETING)
            assert "ok" in wire.receive(sock)
            sock.sendall(request)
        answers(served)
    finally:
        for sock in clients:
            sock.close()
    began = _cpu_s(pid)
    wait(lambda: len(os.listdir(f"/proc/{pid}/task")) <= idle)
    assert _cpu_s(pid) - began < 7.5 * one, "fifteen of them take twice as long"
    client.close()


def test_who_waits_for_a_change_ends_with_its_client(served: Daemon) -> None:
    client = served.door()
    seen = client.call("watch")
    arguments = {"since": seen["seq"], "unread": seen["unread"], "wait": 60.0}
    threads = f"/proc/{served.family()['door']}/task"
    idle = len(os.listdir(threads))
    clients = [raw(served) for _ in range(5)]
    try:
        for sock in clients:
            sock.sendall(GREETING)
            assert "ok" in wire.receive(sock)
            sock.sendall(wire.frame({"id": 1, "method": "watch", "arguments": arguments}))
        wait(lambda: len(os.listdir(threads)) >= idle + 2 * len(clients))  # each with one for the writer's notices
    finally:
        for sock in clients:
            sock.close()
    wait(lambda: len(os.listdir(threads)) <= idle, 55)  # each has asked to wait for 60
    client.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_half_frames_hold_nobody_up_and_are_dropped(served: Daemon) -> None:
    slow = [raw(served) for _ in range(60)]
    try:
        started = time.monotonic()
        for number, sock in enumerate(slow):
            sock.sendall((GREETING if number % 2 else b"")[: number % 20] + b"\0")
        answers(served)
        for sock in slow:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        assert time.monotonic() - started < 200, "one after the other"
    finally:
        for sock in slow:
            sock.close()
    answers(served)


def test_four_hundred_clients_of_its_own_user(served: Daemon) -> None:
    clients: list[socket.socket] = []
    refused, before = 0, served.family()["door"]
    try:
        for _ in range(400):
            sock = raw(served)
            clients.append(sock)
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(GREETING)
            reply = wire.receive(sock)
            if "error" in reply:
                refused += 1
                assert reply["error"][0] == Busy.code
        assert served.family()["door"] == before, served.log()[-6000:]
        assert 100 < refused < 399, served.log()[-6000:]
        started = time.monotonic()
        with pytest.raises(Busy, match="too many clients"):
            served.door()
        assert time.monotonic() - started < PROMPT_S
        # Those who are in are served, and so are the mounts.
        wire.send(clients[0], {"id": 1, "method": "read", "arguments": {"path": "/shared/note.md"}})
        assert wire.receive(clients[0])["result"]["data"] == b"hello world"
        assert (served.at("bob") / "shared/note.md").read_text() == "hello world"
    finally:
        for sock in clients:
            sock.close()
    wait(lambda: _admitted(served))
    answers(served)


def _admitted(daemon: Daemon) -> bool:
    with contextlib.suppress(Busy):
        daemon.door().close()
        return True
    return False


_CROWD = """
import contextlib
held = []
for _ in range(300):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5)
    try:
        s.connect(sock)
    except OSError:
        continue
    held.append(s)
print("holding", flush=True)
sys.stdin.read()
"""


@as_root
@pytest.mark.parametrize("uids", [[KNOWN], [STRANGER], [*range(20001, 20021)]], ids=["known", "stranger", "many"])
def test_other_users_crowds_do_not_keep_its_own_user_out(served: Daemon, uids: list[int]) -> None:
    crowd = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                AS_USER + _CROWD.replace("300", str(300 // len(uids) + 5)),
                str(served.run / "avm.sock"),
                str(uid),
            ],
            env=served.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for uid in uids
    ]
    try:
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "holding\n"
        answers(served)
    finally:
        for process in crowd:
            process.kill()
            process.communicate(timeout=LIMIT_S)
    wait(lambda: _admitted(served))


def test_a_key_that_revokes_itself_hears_that_it_is_done(served: Daemon) -> None:
    with contextlib.closing(served.door()) as bob:
        made = bob.call("create_key", actions=["inbox"])
    with contextlib.closing(served.door(key=made["key"])) as keyed:
        assert keyed.call("revoke_key", id=made["id"])["agent"] == "bob" and keyed.urgent == ""
        with pytest.raises(Denied, match="revoked"):
            keyed.call("inbox")


def test_what_the_supervisor_is_asked_can_be_asked_without_end(served: Daemon) -> None:
    """Its loop is everybody's: it hangs up on a child that floods it, and the door is every client's."""
    pid, until = served.family()["door"], time.monotonic() + 3

    def ask(number: int) -> None:
        with contextlib.closing(served.door()) as client:
            while time.monotonic() < until:
                with pytest.raises((NotSupported, Busy)):  # a busy machine's supervisor may be late to answer
                    client.call("sign_in")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))
    answers(served)
    with contextlib.closing(served.door()) as client, pytest.raises(NotSupported, match="no HTTP service"):
        client.call("sign_in")
    assert served.family()["door"] == pid


@pytest.mark.logs("door: an answer cannot be sent: ")
def test_an_answer_that_no_frame_can_carry_is_an_error_and_the_connection_goes_on(daemon: Daemon) -> None:
    """Of a store that has what is refused by now."""
    daemon.mounts()
    daemon.settings(QUIET)
    daemon.start()
    with contextlib.closing(daemon.door()) as bob:
        bob.call("write", path="/shared/note.md", data=b"hello world")
    daemon.command("stop")
    with contextlib.closing(connect(daemon.root / "data/avm.db")) as db:
        db.execute("update document set user = ? where user is null or user = '{}'", (json.dumps({"n": 10**30}),))
        assert db.changes()
    daemon.start()
    with contextlib.closing(daemon.door()) as bob:
        with pytest.raises(StoreFailed, match="the answer cannot be sent"):
            bob.call("records", path="/shared")
        assert bob.call("read", path="/shared/note.md")["data"] == b"hello world"


def test_an_answer_of_more_bytes_than_a_client_takes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = wire.frame({"id": 7, **(answer := {"error": None, "result": [{"name": "x" * 255}] * 100, "urgent": ""})})
    monkeypatch.setattr(wire, "LIMIT", len(sent) - 4)  # the length stands before what it counts
    assert _reply(7, answer) == sent
    monkeypatch.setattr(wire, "LIMIT", len(sent) - 5)
    said = wire.unpack(_reply(7, answer)[4:])
    assert said["id"] == 7 and isinstance(from_wire(*said["error"]), TooBig)


# --- its own process


@pytest.fixture
def here(tmp_path: Path) -> Iterator[_Door]:
    """A door in this process, on a store of its own."""
    with contextlib.closing(LocalDoor(tmp_path / "avm.db", default_settings(), "bob", embeddings=False)) as local:
        yield _Door(partial(Memory, local._memory.around), default_settings(), Mock())


@contextlib.contextmanager
def visiting(door: _Door) -> Iterator[socket.socket]:
    own, theirs = socket.socketpair()
    with own:
        own.settimeout(LIMIT_S)
        wire.send(own, {"v": wire.PROTOCOL, "agent": "bob", "operator": False})
        door.admit(theirs)
        yield own
    wait(lambda: not door._clients.total())


def test_a_door_that_finds_no_thread_once_says_so_and_serves_the_next_client(here: _Door) -> None:
    with refused_once("client"), visiting(here) as turned_away:
        assert wire.receive(turned_away)["error"][0] == errno.EAGAIN
    with visiting(here) as bob:
        assert wire.receive(bob)["ok"]["agent"] == "bob"


def test_who_does_not_take_its_answer_is_hung_up_on(here: _Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_S", 0.1)
    with visiting(here) as bob:
        assert "ok" in wire.receive(bob)
        large = {"path": "/private/large.bin"}
        for number, (method, more) in enumerate([("write", {"data": bytes(4 * MEGABYTE)}), ("read", {})]):
            wire.send(bob, {"id": number, "method": method, "arguments": large | more})
            if method == "write":
                assert wire.receive(bob)["error"] is None
        wait(lambda: not here._clients.total())


class Leisurely:
    """The door's end of a client that takes so many bytes a second, by a clock of its own."""

    def __init__(self, rate: float) -> None:
        self.limit, self.taken, self._rate = 0.0, bytearray(), rate

    def settimeout(self, seconds: float) -> None:
        self.limit = seconds

    def sendall(self, data: memoryview) -> None:
        if len(data) > self._rate * self.limit:
            raise TimeoutError
        self.taken += data


def test_who_takes_its_answer_slowly_has_it_whole() -> None:
    answer = os.urandom(100 * server.TAKEN + 1)
    client = Leisurely(1.01 * server.TAKEN / server.SEND_S)
    server._deliver(cast(socket.socket, client), answer)
    assert client.taken == answer and client.limit == server.IDLE_S


# --- any value at all


QUERIES = [
    "",
    " ",
    '"',
    '""',
    "'",
    "*",
    "a*",
    "^a",
    "NEAR(a b)",
    "NEAR(",
    "body:x",
    "t : x",
    "{t}: x",
    "AND",
    "OR",
    "NOT",
    "AND OR NOT",
    "a AND b OR NOT c",
    "(",
    "((((",
    ")",
    "-",
    "--",
    "-a",
    "+",
    "a + b",
    "\0",
    "a\0b",
    "\n",
    "\\",
    ";",
    "; drop table node;--",
    "%",
    "_",
    "%00",
    "%zz",
    "😀",
    "👩‍👩‍👧",
    "芯片估值过高",
    "株式会社",
    "반도체",
    "é",
    "e\u0301",
    "\u202eabc",
    "\udcff",
    "\x1b[2J",
    "hello\udc80world",
    "1",
    "1e999",
    "NaN",
    "x" * 300,
    "<script>",
    "${HOME}",
    "`id`",
    "0x1F",
]


def prompt(client: RemoteDoor, method: str, **arguments: Any) -> AvmError | None:
    """The method answers or refuses within its time, and never fails."""
    started = time.monotonic()
    refused = None
    try:
        client.call(method, **arguments)
    except AvmError as e:
        refused = e
    took = time.monotonic() - started
    about = f"{method} {str(arguments)[:200]}: {refused!r} after {took:.1f} s"
    assert not isinstance(refused, (StoreFailed, Busy)), about
    assert took < PROMPT_S, about
    return refused


@pytest.mark.parametrize("size", [1, MEGABYTE], ids=["short", "megabyte"])
def test_any_question_is_answered_or_refused(served: Daemon, size: int) -> None:
    client = served.door()
    questions = (
        QUERIES
        if size == 1
        else [
            (query * (size // len(query.encode()) + 1))[: size * len(query) // len(query.encode())]
            for query in ("hello ", "x", '"AND" OR NOT ', "😀", "芯片估值", "\0")
        ]
    )
    try:
        for number, query in enumerate(questions):
            asked: list[tuple[str, dict[str, str]]] = [
                ("search", {"q": query}),
                ("search", {"q": query, "mode": "semantic"}),
                ("recall", {"q": query}),
                ("read", {"path": f"/:recall?q={query}"}),
                ("read", {"path": f"/:search:q={query}"}),
                ("read", {"path": f"/shared/:list?q={query}"}),
                ("read", {"path": f"/:list?tag={query}"}),
            ]
            for method, arguments in asked if size == 1 else asked[number % 2 :: 2]:  # half: they take seconds each
                refused = prompt(client, method, **arguments)
                assert refused is None or isinstance(refused, Invalid), (query[:40], refused)
    finally:
        client.close()
    answers(served)


def test_a_large_file_of_one_word_does_not_make_searching_slow(served: Daemon) -> None:
    client = served.door()
    try:
        for number in range(3):
            client.call("write", path=f"/shared/flood{number}.md", data=b"flood" * (MEGABYTE // 5))
            client.call("write", path=f"/shared/words{number}.md", data=b"flood " * (MEGABYTE // 6))
        client.call("search", q="warm")  # indexes them
        assert prompt(client, "search", q="flood") is None
        assert prompt(client, "recall", q="flood") is None
        assert prompt(client, "read", path="/:recall?q=flood&max_tokens=200000") is None
    finally:
        for number in range(3):
            for name in ("flood", "words"):
                client.call("remove", path=f"/shared/{name}{number}.md")
        client.close()


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    10**9,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "/",
    ".",
    "..",
    "\udcff",
    "a\0b",
    "é",
    "/private/y.md",
    "/shared",
    "/tell/alice",
    "/:inbox",
    "/:ask/x",
    "/@aaaa",
    b"x",
    b"",
    [],
    ["\udcff"],
    ["a\0b"],
    [1],
    [[]],
    {},
    {"a": 1},
    "x" * MEGABYTE,
    b"x" * MEGABYTE,
    "/:recall?q=" + "y" * MEGABYTE,
    "/shared/:list?q=\udcff",
    "/shared/" + "a/" * 5000,
    "/shared/" + "b" * 300,
    "../" * 1000,
    "😀",
]
GOOD: dict[str, dict[str, Any]] = {
    "read": {"path": "/private/y.md"},
    "write": {"path": "/private/y.md", "data": b"z"},
    "entries": {},
    "remove": {"path": "/private/none"},
    "move": {"source": "/private/none", "target": "/private/none2"},
    "make_directory": {"path": "/private/dir"},
    "search": {"q": "hello"},
    "recall": {"q": "hello"},
    "remember": {"content": "hello"},
    "tell": {"recipient": "bob", "body": "b"},
    "inbox": {},
    "delete_mail": {},
    "mark_read": {},
    "unread": {},
    "pending": {},
    "warmup": {},
    "nearness": {"q": "x", "texts": ["y", "z"]},
    "verify": {"text": "[/private/y.md@1]"},
    "urgent": {},
    "listing": {"path": "/shared"},
    "locate": {"path": "/private/y.md"},
    "links": {"path": "/private/y.md"},
    "history": {"path": "/private/y.md"},
    "recent": {},
    "watch": {},
    "agents": {},
    "user": {"name": "alice"},
    "check_usage": {},
    "list_keys": {},
    "revoke_key": {"id": "nokey"},
    "check_permission": {"user": "alice", "path": "/private/y.md", "action": "read"},
    "init_permissions": {"users": {}},
    "create_key": {"actions": ["none"]},
    "who": {"q": "hello"},
    "ask": {"question": "hello"},
    "privacy": {},
    "topics": {},
    "subscribe": {"pattern": "/shared/*"},
    "unsubscribe": {"pattern": "/shared/*"},
    "subscriptions": {},
    "dead_letters": {},
    "redeliver": {},
    "notices": {},
    "audit": {},
    "audit_verify": {},
    "audit_anchor": {},
    "nonce": {"about": "x"},
    "sign_in": {},
    "tree": {},
    "timeline": {},
    "explore": {"path": "/private/y.md"},
    "retrieve": {"q": "hello"},
    "synthesize": {"q": "hello"},
    "graph": {},
    "digest": {},
    "bundle": {"q": "hello"},
    "fetch": {"targets": ["/private/y.md"]},
    "tag": {"path": "/private/y.md", "add": ["x"]},
    "tags": {},
    "version": {"path": "/private/y.md", "number": 1},
    "link": {"path": "/private/y.md", "target": "/shared/note.md"},
    "delta": {},
    "remember_many": {"items": [{"content": "hello"}]},
    "index_status": {},
    "write_index": {"project": "mine", "items": [{"path": "x.md", "data": b"x"}]},
    "questions": {},
    "replay": {"q": "hello", "weights": {}},
    "archive": {"path": "/private/y.md"},
    "put_back": {"path": "/private/none"},
    "trash": {},
    "empty_trash": {"older_than_days": 1.0},
    "blame": {"path": "/private/y.md"},
    "claim": {"path": "/private/y.md"},
    "claim_next": {"path": "/private"},
    "claims": {},
    "release": {"path": "/private/y.md"},
    "quarantine": {},
    "let_out": {"path": "/private/y.md"},
    "reject": {"path": "/private/y.md"},
    "compare": {"older": "nothing"},
    "snapshot": {"name": "fuzz"},
    "snapshots": {},
    "remove_snapshot": {"name": "none"},
    "restore": {"path": "/private/y.md", "version": 1},
    "purge": {"path": "/private/y.md"},
    "consolidate": {"path": "/private"},
    "unconsolidate": {"dry": True},
    "wipe": {},
    "names_log": {},
    "records": {},
    "put": {"items": [{"path": "/private/put.md", "data": b"x"}]},
}


def test_the_values_below_are_of_all_methods() -> None:
    assert set(GOOD) == set(methods.names())


@pytest.mark.parametrize("method", sorted(set(GOOD) - {"warmup"}))
def test_any_value_of_any_argument_is_taken_or_refused(served: Daemon, method: str) -> None:
    client = served.door("fuzz")
    names = [*inspect.signature(methods._loaded()[method]).parameters][1:]
    try:
        client.call("write", path="/private/y.md", data=b"z")
        for name in names:
            for value in VALUES:
                prompt(client, method, **{**GOOD[method], name: value})
        refused = prompt(client, method, **{**GOOD[method], "nobody": 1})
        assert isinstance(refused, Invalid)
    finally:
        client.close()
    answers(served)


@pytest.mark.parametrize("limit", [10**9, -1, 0, 2**63, -(2**63)])
def test_limits_out_of_range_are_refused(served: Daemon, limit: int) -> None:
    client = served.door()
    try:
        assert isinstance(prompt(client, "search", q="hello", limit=limit), Invalid)
        assert isinstance(prompt(client, "read", path=f"/:list?limit={limit}"), Invalid)
        assert isinstance(prompt(client, "read", path=f"/:changes?limit={limit}"), Invalid)
        assert isinstance(prompt(client, "read", path=f"/:recall?q=hello&max_tokens={limit}"), Invalid)
        if limit < 0:
            assert isinstance(prompt(client, "read", path="/shared/note.md", offset=limit), Invalid)
    finally:
        client.close()


def test_relevance_is_a_number_from_0_to_1(served: Daemon) -> None:
    client = served.door()
    try:
        for value in (float("nan"), float("inf"), -0.1, 1.1):
            assert isinstance(prompt(client, "recall", q="hello", min_relevance=value), Invalid)
    finally:
        client.close()


def test_a_path_may_not_be_deeper_than_anybody_needs(served: Daemon) -> None:
    client = served.door()
    try:
        for path in ("/private/" + "d/" * 30_000 + "f", "/private/" + f"{'d' * 200}/" * 30 + "f"):
            for refused in (
                prompt(client, "write", path=path, data=b"x"),
                prompt(client, "make_directory", path=path),
                prompt(client, "remember", content="x", path=path),
                prompt(client, "move", source="/shared/note.md", target=path),
                prompt(client, "read", path=path),
                prompt(client, "entries", path=path),
                prompt(client, "check_permission", user="bob", path=path, action="read"),
                prompt(client, "create_key", paths=[path]),
            ):
                assert refused is not None and refused.errno == 36, refused
        for refused in (
            prompt(client, "write", path="/private/" + "d/" * 125 + "f", data=b"x"),
            prompt(client, "make_directory", path="/private/" + "d/" * 126),
        ):
            assert refused is not None and refused.errno == 36, refused
        assert "d" not in [each["name"] for each in client.call("entries", path="/private")]
        deep = "/private/" + "d/" * 124 + "f"
        assert prompt(client, "write", path=deep, data=b"x") is None
        assert client.call("read", path=deep)["data"] == b"x"
        assert prompt(client, "remove", path="/private/d", recursive=True) is None
    finally:
        client.close()
