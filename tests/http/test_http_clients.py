"""avm --at URL, AVM(at=URL) and avm-mcp --at URL: the memory of a daemon that is reached by its HTTP service alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import Busy, Denied, Invalid, NotFound, ReadOnly, Stale
from avmfs.http import identity, values
from avmfs.rpc.over_http import HttpDoor
from tests.faults.daemons import LIMIT_S
from tests.http.http_world import Web

NOT_OURS = bytes(values.refusal(identity.Refused("this service is not called that"), False).body).decode()


@pytest.fixture
def elsewhere(web: Web, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has nothing of the daemon's but a key of alice's."""
    with contextlib.closing(web.door("alice")) as door:
        actions = ["read", "write", "search", "tell", "inbox"]
        key = door.call("create_key", actions=actions)["key"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
    places = {f"AVM_{name}_DIR": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    return {**kept, **places, "AVM_API_KEY": key}


def test_python_reads_writes_and_finds(web: Web, elsewhere: dict[str, str], tmp_path: Path) -> None:
    with AVM(at=web.url, environ=elsewhere) as avm:
        assert avm.agent == "alice"
        assert avm.write("/shared/far.md", "the far heron") == 1
        assert [hit["path"] for hit in avm.search("heron")][:1] == ["/memory/shared/far.md"]
        avm.append("/shared/far.md", b"\xff\x00")
        assert avm.read_bytes("/shared/far.md") == b"the far heron\xff\x00"
        with pytest.raises(FileNotFoundError):
            avm.read("/shared/none.md")
        with pytest.raises(Stale):
            avm.write("/shared/far.md", "x", if_version=1)
        avm.write("/shared/\udcff.md", "an odd name")
        assert avm.read("/shared/\udcff.md") == "an odd name"
    assert list(tmp_path.iterdir()) == []  # nothing was begun here


@pytest.mark.parametrize("zone", ["XST-9", "XST9"])  # whichever the service's is, one is another
def test_times_that_are_written_are_those_of_the_writer(
    web: Web, elsewhere: dict[str, str], zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with AVM(at=web.url, environ=elsewhere) as avm:
            begun = datetime.now().isoformat()
            avm.write("/shared/zone.md", zone)
            between = datetime.now()
            avm.write("/shared/zone.md", "later")
            assert avm.read_at("/shared/zone.md", between) == zone
            assert avm.purge("/shared/zone.md", before=begun, dry_run=True) == []
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_url_is_an_address_and_anything_else_an_instant(web: Web, elsewhere: dict[str, str]) -> None:
    with AVM(at=web.url, environ=elsewhere) as avm:
        avm.write("/shared/then.md", "now")
    there = {**elsewhere, "AVM_AT": web.url}
    with AVM(at="-1h", environ=there) as past, pytest.raises(ReadOnly):
        past.write("/shared/then.md", "x")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda url: (url, "", None, False), Denied),
        (lambda url: (url, "avm_aaaaaaaa_" + "a" * 43, None, False), Denied),
        (lambda url: (url, None, "bob", False), Denied),
        (lambda url: (url, None, None, True), Denied),
        (lambda url: (url + "/elsewhere", None, None, False), Invalid),
        (lambda url: ("ftp://localhost", None, None, False), Invalid),
        (lambda url: ("http://", None, None, False), Invalid),
        (lambda url: ("http://192.0.2.1:7654", None, None, False), Invalid),
        (lambda url: ("http://127.0.0.1:1", None, None, False), Busy),
    ],
)
def test_a_bad_address_or_token_is_refused(
    web: Web, elsewhere: dict[str, str], change: Callable[[str], Any], error: type[Exception]
) -> None:
    url, token, agent, operator = change(web.url)
    with pytest.raises(error):
        HttpDoor(url, agent, elsewhere["AVM_API_KEY"] if token is None else token, operator=operator)


@pytest.mark.parametrize("token", ["avm_x_sec\x00ret_secret", "avm_x_secret\r\nx: y", "avm_x_secret_\u20ac"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(Denied, match="AVM_API_KEY") as refused:
        HttpDoor("http://127.0.0.1:1", None, token)
    assert "secret" not in str(refused.value)


def test_the_line_end_of_the_file_that_a_token_was_in_is_no_part_of_it(web: Web, elsewhere: dict[str, str]) -> None:
    with contextlib.closing(HttpDoor(web.url, None, elsewhere["AVM_API_KEY"] + "\r\n")) as door:
        assert door.agent == "alice"


@pytest.mark.parametrize(
    ("status", "kind", "body", "error", "reason"),
    [
        (200, "text/html", "hi", NotFound, "no memory is served"),
        (403, "application/json", NOT_OURS, Denied, "not called that"),
        (404, "application/json", '{"error": "none"}', NotFound, "no memory is served"),
        (404, "application/json", "[" * 100_000, NotFound, "no memory is served"),
        (429, "text/plain", "slower", Busy, "status 429"),
        (502, "text/html", "its proxy", Busy, "status 502"),
        (503, "text/plain", "Service Unavailable", Busy, "status 503"),  # uvicorn's own, beyond CLIENTS
        (503, "application/json", '{"error": {"code": 14}}', Busy, "status 503"),
    ],
)
def test_what_stands_before_a_memory_is_told(
    elsewhere: dict[str, str], status: int, kind: str, body: str, error: type[Exception], reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall((head + body).encode())

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(error, match=reason):
            HttpDoor(f"http://127.0.0.1:{server.getsockname()[1]}", None, elsewhere["AVM_API_KEY"])


def test_what_was_never_sent_is_known_not_to_be_done(elsewhere: dict[str, str]) -> None:
    ask = ["write", "/shared/a.md", "x"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        assert "is not known" in avm(elsewhere, "--at", url, *ask, code=75)
    said = avm(elsewhere, "--at", url, *ask, code=75)
    assert "was not sent" in said and "not known" not in said


def test_a_connection_that_was_closed_for_its_silence_is_opened_anew(web: Web, elsewhere: dict[str, str]) -> None:
    door = HttpDoor(web.url, None, elsewhere["AVM_API_KEY"])
    try:
        sock = door._connection.sock
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        assert door.call("tags") == {"tags": {}}
    finally:
        door.close()


def test_an_operators_session_is_one_from_elsewhere_too(web: Web) -> None:
    door = HttpDoor(web.url, None, web.token("operator", operator=True), operator=True)
    try:
        assert door.call("audit_verify")["ok"] is True
    finally:
        door.close()


def avm(environ: dict[str, str], *arguments: str, data: bytes = b"", code: int = 0) -> str:
    command = [sys.executable, "-m", "avmfs.cli", *arguments]
    done = subprocess.run(command, env=environ, input=data, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == code, (done.stdout, done.stderr)
    return (done.stdout + done.stderr).decode()


def test_of_a_service_that_is_not_there_nothing_is_told_of_what_was_done() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "https://nowhere.invalid"):
        with pytest.raises(Busy) as caught:
            HttpDoor(url, None, "a-token")
        assert "does not answer" in caught.value.reason and "whether it was done" not in caught.value.reason


def test_the_command_line(web: Web, elsewhere: dict[str, str], tmp_path: Path) -> None:
    avm(elsewhere, "--at", web.url, "write", "/shared/typed.md", "-", data=b"typed elsewhere\n")
    assert avm(elsewhere, "--at", web.url, "read", "/shared/typed.md") == "typed elsewhere\n"
    assert "typed.md" in avm({**elsewhere, "AVM_AT": web.url}, "ls", "/shared")
    # Below a command it is a moment.
    seq = web.call(web.token("alice"), "watch").json["result"]["seq"]
    avm(elsewhere, "--at", web.url, "write", "/shared/later.md", "-", data=b"x")
    listed = avm(elsewhere, "--at", web.url, "ls", "/shared", "--at", f"seq.{seq}")
    assert "typed.md" in listed and "later.md" not in listed
    assert "no such" in avm(elsewhere, "--at", web.url, "read", "/shared/none.md", code=1).lower()
    assert "http://192.0.2.1" not in avm(elsewhere, "--at", "http://192.0.2.1", "ls", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_named_is_meant_whatever_avm_at_says(
    web: Web, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    avm(elsewhere, "--at", web.url, "write", "/shared/production.md", "-", data=b"production\n")
    there = {**elsewhere, "AVM_AT": web.url, "AVM_AUTOSTART": "0", "AVM_AGENT": "alice"}
    scratch, config = tmp_path / "scratch.db", tmp_path / "config.yaml"
    config.write_text("embedding: {enabled: false}\n")
    assert "key" in avm(there, "--db", str(scratch), "rm", "/shared/production.md", code=1)  # it is one of there
    keyless = {name: value for name, value in there.items() if name != "AVM_API_KEY"}
    avm(keyless, "write", "/shared/production.md", "-", "--db", str(scratch), data=b"scratch\n")
    assert avm(keyless, "--db", str(scratch), "read", "/shared/production.md") == "scratch\n"
    avm(keyless, "--config", str(config), "write", "/shared/production.md", "-", data=b"usual\n")
    with AVM(db=scratch, environ=keyless, embeddings=False) as named:
        assert named.address == "scratch.db" and named.read("/shared/production.md") == "scratch\n"
    with AVM(config=config, environ=keyless, embeddings=False) as named:
        assert named.read("/shared/production.md") == "usual\n"
    made = avm(keyless, "--db", str(scratch), "--json", "backup", "make", str(tmp_path / "kept"))
    assert json.loads(made)["store"] == str(scratch)
    assert avm(there, "read", "/shared/production.md") == "production\n"


def test_a_database_beside_an_address_is_refused(web: Web, elsewhere: dict[str, str], tmp_path: Path) -> None:
    scratch = str(tmp_path / "scratch.db")
    for arguments in (["--db", scratch, "ls"], ["ls", "--db", scratch], ["config", "--db", scratch]):
        assert "--at" in avm(elsewhere, "--at", web.url, *arguments, code=2)
    with pytest.raises(Invalid, match="two memories"):
        AVM(db=scratch, at=web.url, environ=elsewhere)
    command = [sys.executable, "-m", "avmfs.mcp", "--at", web.url, "--db", scratch]
    done = subprocess.run(command, env=elsewhere, input=b"", capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 2 and b"two memories" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("named", "file"), [("--db", "scratch.db"), ("--config", "config.yaml")])
def test_an_mcp_server_of_a_file_is_that_files(
    web: Web, elsewhere: dict[str, str], tmp_path: Path, named: str, file: str
) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "config.yaml").write_text("embedding: {enabled: false}\n")
    where = {**elsewhere, "AVM_AT": web.url, "AVM_AUTOSTART": "0", "AVM_API_KEY": ""}
    command = [sys.executable, "-m", "avmfs.mcp", "--user", "carol", named, str(tmp_path / file)]
    done = subprocess.run(command, env=where, input=b"", capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def test_an_mcp_server_in_front_of_it(web: Web, elsewhere: dict[str, str]) -> None:
    pytest.importorskip("mcp")
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "avm_remember", "arguments": {"content": "Kilns cool by themselves."}},
        },
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "avmfs.mcp", "--at", web.url],
        env=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        answers = []
        for line in lines:
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
            if "id" in line:
                answers.append(json.loads(process.stdout.readline()))
        assert "You are alice" in answers[0]["result"]["instructions"]
        assert not answers[1]["result"].get("isError"), answers
    finally:
        process.communicate(timeout=LIMIT_S)
    assert b"Kilns cool" in web.call(web.token("alice"), "search", q="kilns").body


def test_a_hook_and_a_shell_ask_there_too(web: Web, elsewhere: dict[str, str], tmp_path: Path) -> None:
    web.call(web.token("alice"), "write", path="/shared/otters.md", data="Otters are counted on Mondays.")
    event = json.dumps({"prompt": "when are otters counted?"}).encode()
    there = {**elsewhere, "AVM_AT": web.url}
    asked = ["hook", "--client", "claude", "-a", "alice", "prompt"]
    for environ, arguments in ((there, asked), (elsewhere, ["--at", web.url, *asked])):
        said = avm({**environ, "AVM_HOOK_S": "60", "AVM_AUTOSTART": "0"}, *arguments, data=event)
        assert "counted on Mondays" in said
    program = "from avmfs.cli.main import avm; avm(prog_name='avm')"
    for environ, line in ((there, "avm read /shared/ott"), (elsewhere, f"avm --at {web.url} read /shared/ott")):
        tab = {"_AVM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([sys.executable, "-c", program], env={**environ, **tab}, capture_output=True, text=True)
        assert "/shared/otters.md" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_hook_for_elsewhere_starts_no_daemon_here(elsewhere: dict[str, str], tmp_path: Path) -> None:
    there = {**elsewhere, "AVM_AT": "http://127.0.0.1:1", "AVM_AGENT": "alice"}
    for arguments in (["--client", "claude", "-a", "alice", "prompt"], ["prompt"]):
        assert avm(there, "hook", *arguments, data=b'{"prompt": "when are otters counted?"}') == ""
    assert list(tmp_path.iterdir()) == []
