"""What a webhook carries, how it is signed and sent, and how a hook is run and ended."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from avmfs.agents import destinations, hooks, http_delivery, webhooks
from avmfs.agents.destinations import Allowed, parse
from avmfs.errors import Denied
from avmfs.store.rows.events import Event

HERE = Allowed(("127.0.0.1/32",))
AT = 1_774_257_300_000_000_000  # 2026-03-23T09:15:00Z


def event(n: int = 1, kind: str = "write", path: str = "/memory/shared/market/nvda.md") -> Event:
    return Event(n, AT + n * 10**9, kind, path, 4711, n, 1, "alice")


# Payloads and signatures


def test_a_payload_is_what_the_customer_documents_with_id_and_version_and_no_content() -> None:
    said = json.loads(webhooks.payload("msg_x", "realtime", "/memory/shared/market/*", "trader", [event(0)]))
    assert said == {
        "event": "write",
        "path": "/memory/shared/market/nvda.md",
        "pattern": "/memory/shared/market/*",
        "agent_id": "trader",
        "timestamp": "2026-03-23T09:15:00.000000Z",
        "id": "msg_x",
        "version": 0,
    }


def test_a_batch_is_an_array_and_a_digest_a_summary() -> None:
    events = [event(1), event(2, "tags"), event(3, path="/memory/b"), event(4, "remove", "/memory/b")]
    batch = json.loads(webhooks.payload("msg_x", "batched", "/memory/*", "bob", events))
    assert [each["version"] for each in batch] == [1, 2, 3, 4] and len({each["id"] for each in batch}) == 4
    digest = json.loads(webhooks.payload("msg_x", "digest", "/memory/*", "bob", events))
    assert (digest["event"], digest["counts"], digest["more"]) == ("digest", {"tags": 2, "remove": 2}, 0)
    assert [(each["path"], each["count"]) for each in digest["changes"]] == [
        ("/memory/shared/market/nvda.md", 2),
        ("/memory/b", 2),
    ]
    many = json.loads(webhooks.payload("m", "digest", "/*", "b", [event(n, path=f"/memory/{n}") for n in range(1200)]))
    assert (len(many["changes"]), many["more"], many["counts"]) == (webhooks.DIGEST_SHOWN, 200, {"write": 1200})


@pytest.mark.parametrize("mode", ["realtime", "throttled"])
def test_what_another_mode_had_gathered_is_sent_whole(mode: str) -> None:
    body = json.loads(webhooks.payload("msg_x", mode, "/memory/*", "bob", [event(n) for n in range(3)]))
    assert [(each["id"], each["version"]) for each in body] == [("msg_x.0", 0), ("msg_x.1", 1), ("msg_x.2", 2)]


def test_a_name_that_is_no_text_is_sent_as_json_that_everybody_reads() -> None:
    body = webhooks.payload("m", "realtime", "/memory/*", "bob", [event(path="/memory/\udcff.md")])
    assert json.loads(body.decode("utf-8"))["path"] == "/memory/\ufffd.md"


def test_a_signature_is_that_of_standard_webhooks() -> None:
    secret, body = b"\x01" * 24, b'{"a":1}'
    headers = webhooks.signed(secret, "msg_x", 1774257300, body)
    wanted = base64.b64encode(hmac.new(secret, b"msg_x.1774257300." + body, hashlib.sha256).digest()).decode()
    assert headers == {
        "webhook-id": "msg_x",
        "webhook-timestamp": "1774257300",
        "webhook-signature": f"v1,{wanted}",
    }
    shown = "whsec_" + base64.b64encode(secret).decode()
    assert webhooks.verify(shown, headers, body, 1774257300.0)
    for wrong in ({**headers, "webhook-id": "msg_y"}, {**headers, "webhook-timestamp": "1774257301"}, {}):
        assert not webhooks.verify(shown, wrong, body, 1774257300.0)
    assert not webhooks.verify(shown, headers, body + b" ", 1774257300.0)
    assert not webhooks.verify(shown, headers, body, 1774257300.0 + 301)
    for name, value in (
        ("webhook-signature", "v1,\xe9"),
        ("webhook-signature", "\ud800"),
        ("webhook-id", "\ud800"),
        ("webhook-timestamp", "9" * 400),
    ):
        assert not webhooks.verify(shown, {**headers, name: value}, body, 1774257300.0)


def test_pauses_grow_to_six_hours_and_scatter() -> None:
    chance = random.Random(1)
    bounds = [(5.0, 1), (15.0, 2), (405.0, 5), (21600.0, 30), (21600.0, 10**6)]
    for whole, failures in bounds:
        pauses = [webhooks.pause_s(failures, 5.0, chance) for _ in range(50)]
        assert whole / 2 <= min(pauses) < max(pauses) <= whole, (whole, failures)


# Posting


@contextmanager
def serving(talk: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that talks to one client."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            client, _ = listener.accept()
            with client:
                client.settimeout(300)
                if context is None:
                    talk(client)
                else:
                    with context.wrap_socket(client, server_side=True) as secure:
                        talk(secure)
        except OSError:
            pass  # it hung up: that is what the test looks at

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        thread.join(300)


def send(port: int, timeout_s: float = 60.0, allowed: Allowed = HERE, body: bytes = b"{}") -> int:
    request = http_delivery.Request(parse(f"http://127.0.0.1:{port}/hook?x=1"), {"webhook-id": "msg_x"}, body)
    return http_delivery.post(request, allowed, timeout_s)


def answering(answer: bytes, heard: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    def talk(client: socket.socket) -> None:
        said = client.recv(65536)
        if heard is not None:
            heard.append(said)
        client.sendall(answer)

    return talk


def test_a_post_says_who_it_is_for_and_takes_any_success() -> None:
    heard: list[bytes] = []
    with serving(answering(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nX: y\r\n\r\n", heard)) as port:
        assert send(port, body=b'{"a":1}') == 202
    head, _, body = heard[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /hook?x=1 HTTP/1.1" and f"Host: 127.0.0.1:{port}" in lines and body == b'{"a":1}'
    assert "Content-Length: 7" in lines and "webhook-id: msg_x" in lines and "Connection: close" in lines


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "redirects are not followed"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not HTTP"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"", "hung up"),
        (b"HTTP/1.1 200 OK\r\n", "hung up"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000, "does not end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "only interim"),
    ],
)
def test_anything_but_a_success_is_a_failure_that_says_why(answer: bytes, said: str) -> None:
    with serving(answering(answer)) as port, pytest.raises(http_delivery.PostFailed, match=said) as caught:
        send(port)
    assert not caught.value.final


def test_a_receiver_that_is_gone_for_good_or_asks_for_time_is_believed() -> None:
    with serving(answering(b"HTTP/1.1 410 Gone\r\n\r\n")) as port, pytest.raises(http_delivery.PostFailed) as caught:
        send(port)
    assert caught.value.final
    wait = b"HTTP/1.1 503 Busy\r\nretry-after: 120\r\n\r\n"
    with serving(answering(wait)) as port, pytest.raises(http_delivery.PostFailed) as caught:
        send(port)
    assert caught.value.wait_s == 120
    for in_s, low, high in ((3600, 3000, 3600), (10**6, http_delivery.RETRY_AFTER_MAX_S, 6 * 3600), (-60, 0, 0)):
        for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"):
            said = time.strftime(form, time.gmtime(time.time() + in_s)).encode()
            assert low <= http_delivery._retry_after([b"x: y", b"Retry-After: " + said]) <= high, said
    for said in (b"soon", b"Fri, 99 Nov 2025 23:00:00 GMT", b"Fri, 28 Nov 2025 23:00:00 +9999999999999", b",", b"\xff"):
        assert http_delivery._retry_after([b"Retry-After: " + said]) == 0


def test_the_time_limit_is_for_all_of_it() -> None:
    def trickle(client: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" * 1000:
            client.sendall(bytes([byte]))
            time.sleep(0.05)

    for talk in (trickle, lambda client: time.sleep(1.5)):
        began = time.monotonic()
        with serving(talk) as port, pytest.raises(http_delivery.PostFailed, match=r"no answer within 0\.3 s"):
            try:
                send(port, 0.3)
            finally:
                assert time.monotonic() - began < 100


def test_an_address_that_never_answers_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float | None]()

    class Far(socket.socket):
        def connect(self, address: Any) -> None:
            if address[0] == "192.0.2.1":
                given.append(self.gettimeout())
                raise TimeoutError
            super().connect(address)

    def resolved(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("192.0.2.1", "127.0.0.1")]

    answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    with serving(lambda client: client.sendall(answer)) as port:
        monkeypatch.setattr(
            http_delivery, "vetted", lambda where, allowed: destinations.vetted(where, allowed, resolved)
        )
        monkeypatch.setattr(socket, "socket", Far)
        where = parse(f"http://example.com:{port}/")
        allowed = Allowed(("127.0.0.1/32", "192.0.2.1/32"))
        try:
            assert http_delivery.post(http_delivery.Request(where, {}, b""), allowed, 300.0) == 204
        finally:
            socket.create_connection(("127.0.0.1", port)).close()  # the server waits for one client
    assert given[0] is not None and 0 < given[0] <= 150.0


def test_nothing_is_sent_to_an_address_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()
    with serving(lambda client: came.set()) as port:
        with pytest.raises(Denied):
            send(port, allowed=Allowed())
        # A name that was public when the subscription was made, and is this machine now.
        monkeypatch.setattr(
            http_delivery, "vetted", lambda where, allowed: destinations.vetted(where, allowed, _rebound)
        )
        with pytest.raises(Denied):
            http_delivery.post(http_delivery.Request(parse(f"http://example.com:{port}/"), {}, b""), Allowed(), 1.0)
        assert not came.wait(0.1)
        with socket.create_connection(("127.0.0.1", port)):
            assert came.wait(300)


def _rebound(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_asks_for_the_name_though_it_connects_to_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            certificate,
            "-days",
            "2",
            "-subj",
            "/CN=hooks.example",
            "-addext",
            "subjectAltName=DNS:hooks.example",
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    asked: list[str | None] = []
    server.sni_callback = lambda sock, name, context: asked.append(name)
    monkeypatch.setattr(http_delivery, "vetted", lambda where, allowed: _rebound(where.host, where.port))
    answer = answering(b"HTTP/1.1 204 No Content\r\n\r\n")
    with serving(answer, server) as port, pytest.raises(http_delivery.PostFailed, match="certificate"):
        http_delivery.post(http_delivery.Request(parse(f"https://hooks.example:{port}/"), {}, b""), HERE, 5.0)
    trusting = ssl.create_default_context(cafile=os.fspath(certificate))
    monkeypatch.setattr(http_delivery, "_tls", lambda: trusting)
    with serving(answer, server) as port:
        assert (
            http_delivery.post(http_delivery.Request(parse(f"https://hooks.example:{port}/"), {}, b""), HERE, 5.0)
            == 204
        )
    with serving(answer, server) as port, pytest.raises(http_delivery.PostFailed, match="certificate"):
        http_delivery.post(http_delivery.Request(parse(f"https://other.example:{port}/"), {}, b""), HERE, 5.0)
    assert asked == ["hooks.example", "hooks.example", "other.example"]


# Hooks


def test_a_hook_gets_the_event_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    secret = os.open(tmp_path / "open", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    said = webhooks.one_event("msg_x", "/memory/*", "alice", event(path="/memory/$(id);`id`\n-rf"))
    script = f"cat > {tmp_path}/stdin; env > {tmp_path}/env; ls -l /proc/$$/fd > {tmp_path}/fd; pwd > {tmp_path}/pwd"
    try:
        hooks.run(["/bin/sh", "-c", script], b"the body", hooks.environment(said, "/nowhere"), 10)
    finally:
        os.close(secret)
    assert (tmp_path / "stdin").read_text() == "the body"
    environ = (tmp_path / "env").read_text()
    assert "AVM_HOOK_PATH=/memory/$(id);`id`\n-rf\n" in environ and "AVM_HOOK_AUTHOR=alice\n" in environ
    assert "SECRET_TOKEN" not in environ and "PYTHONPATH" not in environ
    assert str(tmp_path / "open") not in (tmp_path / "fd").read_text()
    assert (tmp_path / "pwd").read_text() == "/\n"


def test_a_hook_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(hooks.HookFailed, match="not done within"):
        hooks.run(["/bin/sh", "-c", f"sleep 600 & echo $! > {pid}; wait"], b"", {"PATH": hooks.PATH}, 0.5)
    assert time.monotonic() - began < 300
    left = Path(f"/proc/{pid.read_text().strip()}/stat")
    for _ in range(1000):
        if not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("its child lives on")


def test_a_lock_is_held_over_a_hook_and_not_over_what_it_leaves_behind(tmp_path: Path) -> None:
    """Also where whoever ran it is gone."""
    lock, pid, go = tmp_path / "lock", tmp_path / "pid", tmp_path / "go"
    script = f"setsid sleep 600 > {tmp_path}/out 2>&1 & echo $! > {pid}; until [ -e {go} ]; do sleep 0.02; done"
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    child = hooks.start(["/bin/sh", "-c", script], {"PATH": hooks.PATH}, 300, subprocess.DEVNULL, held)
    os.close(held)
    try:
        deadline = time.monotonic() + 300
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with lock.open() as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            go.touch()
            assert child.wait(300) == 0
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert Path(f"/proc/{pid.read_text().strip()}").exists()
        with pytest.raises(hooks.HookFailed, match="signal 9"), lock.open() as file:
            hooks.run(["/bin/sh", "-c", "kill -9 $$"], b"", {"PATH": hooks.PATH}, 300, file.fileno())
    finally:
        hooks.end(child)
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_hook_has_an_alarm_for_when_nobody_is_left_to_end_it() -> None:
    with pytest.raises(hooks.HookFailed, match="not done within"):
        hooks.run(["/bin/sleep", "60"], b"", {"PATH": hooks.PATH}, 0.2)
    # The same command, begun as it is there, and left alone.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", hooks.LAUNCHER, "1", "-1", "/bin/sleep", "60"], start_new_session=True
    )
    try:
        assert child.wait(300) == -signal.SIGALRM
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/bin/sh", "-c", "echo broken >&2; exit 3"], "status 3: broken"),
        (["/bin/sh", "-c", "kill -9 $$"], "signal 9"),
        (["/nonexistent"], "No such file"),
        ([os.fspath(Path(__file__).parent)], "Permission denied"),
    ],
)
def test_a_hook_that_fails_says_how(command: list[str], said: str) -> None:
    with pytest.raises(hooks.HookFailed, match=said):
        hooks.run(command, b"x" * 100_000, {"PATH": hooks.PATH}, 5)
