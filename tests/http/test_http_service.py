"""The HTTP service of a daemon: who is let in, what is refused, and that its end hurts nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import tracemalloc
from http.client import HTTPConnection
from pathlib import Path

import pytest

from avmfs.errors import NO_TEXT, Busy
from avmfs.http import identity, values
from avmfs.http.doors import EACH, Caller, Doors, Unauthorized
from tests.behind import connect
from tests.faults.daemons import LIMIT_S, QUIET, Daemon, as_user, wait
from tests.http.http_world import SETTINGS, Answer, Web, of, started


def test_a_session_reads_and_writes_as_its_agent(web: Web) -> None:
    alice, bob = web.token("alice"), web.token("bob")
    assert web.ask("GET", "/session", token=alice).json["result"]["agent"] == "alice"
    assert web.call(alice, "write", path="/private/hers.md", data="hers alone").status == 200
    got = web.call(alice, "read", path="/private/hers.md")
    assert got.json["result"]["data"] == {"base64": "aGVycyBhbG9uZQ=="}
    for path in ("/memory/private/alice/hers.md", "/memory/private/alice"):
        refused = web.call(bob, "read", path=path)
        assert (refused.status, refused.json["error"]["code"]) == (404, "ENOENT")
    assert b"alone" not in web.call(bob, "search", query="alone").body


def test_a_one_time_code_is_good_once(web: Web) -> None:
    code = web.code("alice")
    assert web.ask("POST", "/session", {"code": code}).status == 200
    for again in (web.ask("POST", "/session", {"code": code}), web.ask("GET", f"/sign-in?code={code}")):
        assert again.status == 401
        assert "set-cookie" not in again.headers and "token" not in again.body.decode()


def test_a_browser_is_signed_in_by_a_cookie_that_scripts_and_other_sites_do_not_get(web: Web) -> None:
    signed = web.ask("GET", f"/sign-in?code={web.code('alice')}")
    assert (signed.status, signed.headers["location"]) == (303, "/")
    cookie = signed.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    home = web.ask("GET", "/", cookie=cookie.partition(";")[0])
    assert home.status == 200 and "alice" in home.body.decode()
    assert web.ask("GET", "/").status == 401
    # A cookie opens no method: another site's form could bring it along.
    assert web.ask("POST", "/api/agents", {}, cookie=cookie.partition(";")[0]).status == 401
    web.ask("POST", "/sign-out", cookie=cookie.partition(";")[0])
    assert web.ask("GET", "/", cookie=cookie.partition(";")[0]).status == 401


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic YTp4", "Bearer x", "Bearer avm_aaaaaaaa_" + "a" * 43, "Bearer avm_", "x" * 999],
)  # fmt: skip
def test_who_shows_no_good_token_gets_401_and_nothing_else(web: Web, authorization: str) -> None:
    for verb, path in (("POST", "/api/agents"), ("GET", "/session"), ("GET", "/events"), ("POST", "/mcp")):
        got = web.ask(verb, path, {} if verb == "POST" else None, authorization=authorization)
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer"), (path, got)


def test_two_authorization_headers_are_none(web: Web) -> None:
    token = web.token("alice")
    with contextlib.closing(web.connection()) as connection:
        connection.putrequest("GET", "/session")
        for given in (token, token):
            connection.putheader("Authorization", f"Bearer {given}")
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_an_api_key_is_its_agent_within_its_limits_until_it_is_revoked(web: Web) -> None:
    with contextlib.closing(web.door("alice")) as alice:
        alice.call("write", path="/shared/keyed/open.md", data=b"for the key")
        alice.call("write", path="/private/closed.md", data=b"not for the key")
        made = alice.call("create_key", paths=["/shared/keyed/*"], actions=["read"])
        key = made["key"]
        assert web.ask("GET", "/session", token=key).json["result"]["agent"] == "alice"
        assert web.call(key, "read", path="/shared/keyed/open.md").status == 200
        assert web.call(key, "read", path="/private/closed.md").status == 404
        assert web.call(key, "write", path="/shared/keyed/open.md", data="x").status == 403
        alice.call("revoke_key", id=made["id"])
        assert web.call(key, "read", path="/shared/keyed/open.md").status == 401
        short = alice.call("create_key", expires="1s")["key"]
        wait(lambda: web.call(short, "tags").status == 401)
        assert web.call(key[:-1] + ("a" if key[-1] != "a" else "b"), "tags").status == 401


def test_what_a_key_may_not_do_is_asked_and_refused_once(web: Web) -> None:
    with contextlib.closing(web.door("gina")) as gina:
        key = gina.call("create_key", actions=["read"])["key"]

    def refusals() -> int:
        with contextlib.closing(connect(web.runtime.parent / "data/avm.db", read_only=True)) as db:
            ((count,),) = db.execute("select total(count) from refusal where agent = 'gina'")
            return int(count)

    assert web.call(key, "tags").status == 200  # by a connection that is kept
    assert web.call(key, "write", path="/shared/keyed/not.md", data="x").status == 403
    wait(refusals)
    assert refusals() == 1


def test_who_may_be_the_operator_no_more_is_none_by_any_open_way(root: Path) -> None:
    def settings(*capabilities: str) -> str:
        return f"{SETTINGS}agents: {{alice: {{capabilities: [{', '.join(capabilities)}]}}}}\n"

    daemon = started(root, settings("write", "sudo"))
    try:
        web = of(daemon)
        with contextlib.closing(web.door("bob")) as bob, contextlib.closing(web.door("alice", operator=True)) as alice:
            bob.call("write", path="/private/own.md", data=b"bob's")
            token = web.token("alice", operator=True)
            asked = {"path": "/memory/private/bob/own.md"}
            assert alice.call("read", **asked)["data"] == b"bob's"
            assert web.call(token, "read", **asked).status == web.ask("GET", "/metrics", token=token).status == 200
            daemon.settings(settings("write"))
            daemon.command("reload")
            assert of(daemon).url == web.url  # the same service, with the same sessions
            for method, more in (("read", {}), ("write", {"data": b"hers"})):
                with pytest.raises(PermissionError, match="may not be the operator"):
                    alice.call(method, **asked, **more)
            assert web.call(token, "read", **asked).status == 403
            assert web.ask("GET", "/metrics", token=token).status == 403
            assert bob.call("read", path="/private/own.md")["data"] == b"bob's"
    finally:
        daemon.command("stop")
        daemon.clean_up()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_session_of_another_user_s_operator_is_judged_as_that_user_s(root: Path) -> None:
    """A name that the rules know no more needs the capability, unless it is of the daemon's own user."""
    root.chmod(0o711)  # others reach what is below by name
    daemon = started(root, SETTINGS + "uids: {54321: [bob]}\n")
    try:
        web = of(daemon)
        with contextlib.closing(web.door("alice")) as alice, contextlib.closing(web.door("root", operator=True)) as own:
            alice.call("write", path="/private/own.md", data=b"hers")
            own.call("init_permissions", users={"bob": {"capabilities": ["write", "sudo"]}})
            ask = "door = RemoteDoor(sock, 'bob', operator=True); print(json.dumps(door.call('sign_in')['code']))"
            code = as_user(daemon, 54321, ask)
            token = str(web.ask("POST", "/session", {"code": code}).json["result"]["token"])
            trusted = web.token("root", operator=True)
            asked = {"path": "/memory/private/alice/own.md"}
            assert [web.call(each, "read", **asked).status for each in (token, trusted)] == [200, 200]
            own.call("init_permissions", users={"carol": {}})  # and nobody else is named any more
            assert [web.call(each, "read", **asked).status for each in (token, trusted)] == [403, 200]
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_sessions_end_where_somebody_may_not_be_an_agent_any_more(root: Path) -> None:
    """Who has signed in was let in by it, or may have been."""
    uids, agents = "uids: {65534: [alice]}\n", "agents: {alice: {capabilities: [write, sudo]}}\n"
    daemon = started(root, SETTINGS + uids)
    try:
        token = of(daemon).token("alice")
        for now, ends in ((uids + agents, False), (agents, True), ("", True)):
            daemon.settings(SETTINGS + now)
            daemon.command("reload")
            web = of(daemon)
            assert web.call(token, "tags").status == (401 if ends else 200), now
            token = web.token("alice", operator=bool(now))
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_a_session_ends_when_it_is_told_to(web: Web) -> None:
    token = web.token("alice")
    assert web.call(token, "tags").status == 200
    assert web.ask("DELETE", "/session", token=token).status == 200
    assert web.call(token, "tags").status == 401


def test_what_a_session_has_asked_for_ends_with_it(web: Web) -> None:
    def code(asker: str) -> str:
        return str(web.call(asker, "sign_in").json["result"]["code"])

    def session(asker: str) -> str:
        return str(web.ask("POST", "/session", {"code": code(asker)}).json["result"]["token"])

    first = web.token("alice")
    tokens = [first, second := session(first), third := session(second), session(third)]
    assert web.ask("DELETE", "/session", token=third).status == 200
    assert [web.call(each, "tags").status for each in tokens] == [200, 200, 401, 401]
    left = code(second)
    assert web.ask("DELETE", "/session", token=first).status == 200
    assert [web.call(each, "tags").status for each in tokens] == [401] * 4
    assert web.ask("POST", "/session", {"code": left}).status == 401


def test_a_session_that_a_session_has_asked_for_lasts_no_longer() -> None:
    now = 0.0
    sessions = identity.Sessions(lambda: now)
    first = sessions.exchange(sessions.code(Caller("alice")))
    now = identity.TOKEN_S - 10
    sessions.bind(code := sessions.code(Caller("alice")), first)
    second = sessions.exchange(code)
    assert sessions.left_s(second) == 10 and sessions.caller(second) == Caller("alice")
    sessions.bind(code := sessions.code(Caller("alice")), second)
    now += 11
    assert sessions.caller(second) is None
    with pytest.raises(Unauthorized):
        sessions.exchange(code)
    with pytest.raises(Busy):  # of another process: its sessions are others
        sessions.bind("code", first)


def test_an_agent_that_signs_in_without_end_ends_its_own_sessions_alone() -> None:
    sessions = identity.Sessions()
    bobs, code = sessions.exchange(sessions.code(Caller("bob"))), sessions.code(Caller("bob"))
    alices = [sessions.exchange(sessions.code(Caller("alice", operator=bool(n % 2)))) for n in range(identity.MOST)]
    codes = [sessions.code(Caller("alice")) for _ in range(identity.MOST)]
    assert sessions.caller(bobs) == Caller("bob")
    assert sessions.caller(alices[0]) is None and sessions.caller(alices[-1]) is not None
    assert sessions.caller(sessions.exchange(code)) == Caller("bob")
    with pytest.raises(Unauthorized):
        sessions.exchange(codes[0])


def test_the_keys_and_sessions_of_one_agent_share_its_room_and_leave_others_theirs(web: Web) -> None:
    doors, held = Doors(web.runtime / "avm.sock"), []
    with contextlib.closing(web.door("alice")) as alice:
        keys = [Caller(None, key=alice.call("create_key", actions=["read"])["key"]) for _ in range(8)]
    try:
        for number in range(EACH):
            caller = Caller("alice") if number % 4 == 0 else keys[number % 3]
            held.append((caller, doors.take(caller)[0]))
        for caller in (Caller("alice"), *keys):  # the later ones show for the first time whose they are
            with pytest.raises(Busy):
                doors.admit(caller)
        doors.admit(Caller("bob"))
        doors.put_back(*held.pop(), True)
        for caller in (Caller("alice"), *keys):
            doors.admit(caller)
    finally:
        for each in held:
            doors.put_back(*each, False)
        doors.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "[::2]:{port}"])
def test_a_name_that_is_not_ours_is_refused_before_the_token(web: Web, host: str) -> None:
    """What a page does whose own name was made to lead here (DNS rebinding)."""
    got = web.ask("GET", "/session", token=web.token("alice"), host=host.format(port=web.port))
    assert got.status == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "LOCALHOST:{port}", "localhost:9", "[::1]:8"])
def test_names_of_this_machine_are_ours_at_any_port(web: Web, host: str) -> None:
    assert web.ask("GET", "/health", host=host.format(port=web.port)).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "https://localhost"]
)
def test_a_page_of_another_origin_is_refused(web: Web, origin: str) -> None:
    token = web.token("alice")
    assert web.ask("POST", "/api/tags", {}, token, origin=origin).status == 403
    assert web.ask("GET", "/", origin=origin).status == 403
    assert web.ask("POST", "/api/tags", {}, token, origin=web.url).status == 200


def test_a_form_of_another_site_cannot_send_a_body_that_is_read(web: Web) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        assert web.ask("POST", "/api/tags", b"{}", web.token("alice"), content_type=kind).status == 400


def test_every_answer_forbids_framing_sniffing_and_foreign_scripts(web: Web) -> None:
    for path in ("/", "/health", "/openapi.json", "/nowhere", "/session"):
        headers = web.ask("GET", path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store"), path
        assert "access-control-allow-origin" not in headers and "server" not in headers


def test_addresses_and_verbs_that_are_not_there(web: Web) -> None:
    token = web.token("alice")
    for verb, path, status in (
        ("GET", "/nowhere", 404),
        ("POST", "/api/nothing", 404),
        ("POST", "/api/__class__", 404),
        ("GET", "/api/tags", 405),
        ("PUT", "/session", 405),
        ("DELETE", "/health", 405),
        ("POST", "/api/tags/", 404),
        ("GET", "/../../etc/passwd", 404),
    ):
        got = web.ask(verb, path, token=token)
        assert got.status == status, (verb, path, got)
        assert {"code", "errno", "reason", "path"} == got.json["error"].keys()


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"1", b"{", b"{}x", b'{"path": NaN}', b'{"path": {"base64": "?"}}', b"[" * 100_000, b"\xff\xfe",
        b'{"a":' * 90_000, b'{"path": ' + b"9" * 30 + b"}", b'{"path": ' + b"[" * 800 + b"]" * 800 + b"}",
        b'{"nothing": 1}', b'{"path": 5}', b'{"path": "/\\ud800"}', b"[" + b"1," * 300_000 + b"1]",
    ],
)  # fmt: skip
def test_a_bad_body_is_refused_with_a_reason(web: Web, body: bytes) -> None:
    got = web.ask("POST", "/api/tags", body, web.token("alice"), content_type="application/json")
    assert got.status == 400 and got.json["error"]["reason"], got


def test_half_of_a_surrogate_pair_is_no_text_for_bytes_either_and_no_code(web: Web) -> None:
    token = web.token("alice")

    def answered(path: str, body: bytes) -> tuple[int, str]:
        got = web.ask("POST", path, body, token, content_type="application/json")
        return got.status, got.json["error"]["reason"]

    for name, body in (
        ("data", b'{"path": "/private/cut.md", "data": "cut \\ud83d"}'),
        ("instead_of", b'{"path": "/private/cut.md", "data": "x", "instead_of": "\\udc00"}'),
    ):
        assert answered("/api/write", body) == (400, f"{name}: {NO_TEXT}")
    assert answered("/session", b'{"code": "\\ud800"}')[0] == 401
    assert web.call(token, "read", path="/private/cut.md").status == 404


def test_an_unknown_argument_is_named_whatever_its_name(web: Web) -> None:
    for name in ("nothing", "method", "self", "memory", "name", "arguments", "caller"):
        got = web.ask("POST", "/api/tags", {name: 1}, web.token("alice"))
        assert got.status == 400 and name in got.json["error"]["reason"], got


def test_text_with_many_commas_is_no_body_with_many_items(web: Web) -> None:
    got = web.call(web.token("alice"), "write", path="/private/commas.csv", data="1," * 300_000)
    assert got.status == 200, got


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        (b'["' + b"," * (1 << 22) + b'"]', True),
        (b'["' + b'\\\\\\",' * (1 << 20) + b'"]', True),
        (b'["\\\\"' + b",1" * 300_000 + b"]", False),
        (b'["",' * 150_000 + b"1" + b"]" * 150_000, False),
        (b'["' + b'","' * (1 << 20) + b'"]', False),
        (b'"' * (1 << 22) + b"," * 300_000, False),
    ],
)
def test_the_items_of_a_body_are_counted_in_little_memory(body: bytes, fits: bool) -> None:
    tracemalloc.start()
    try:
        if fits:
            values._check_items(body)
        else:
            with pytest.raises(ValueError, match="items"):
                values._check_items(body)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(body) + (32 << 20)
    finally:
        tracemalloc.stop()
    if fits:
        assert len(json.loads(body)) == 1


def test_a_body_that_is_too_large_is_refused_announced_or_not(web: Web) -> None:
    token = web.token("alice")
    with contextlib.closing(web.connection()) as connection:
        connection.putrequest("POST", "/api/write")
        connection.putheader("Authorization", f"Bearer {token}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(10**10))
        connection.endheaders()
        assert connection.getresponse().status == 413
    piece = b'{"path": "' + b"a" * (1 << 20)
    with contextlib.closing(web.connection()) as connection:
        connection.request(
            "POST", "/api/write", iter([piece] * 25),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}, encode_chunked=True,
        )  # fmt: skip
        assert connection.getresponse().status == 413
    wide = web.call(token, "write", path="/private/wide.bin", data="x" * (17 << 20))
    assert (wide.status, wide.json["error"]["code"]) == (413, "EFBIG")


def test_clients_that_send_nothing_or_half_a_head_are_hung_up_on(web: Web) -> None:
    clients = []
    for sent in (b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        sock = socket.create_connection((web.host, web.port), LIMIT_S)
        sock.sendall(sent)
        clients.append(sock)
    for sock in clients:
        with contextlib.closing(sock):
            while sock.recv(65536):  # the last one has its answer first
                pass


def test_health_tells_of_the_door(web: Web) -> None:
    got = web.ask("GET", "/health")
    assert (got.status, got.json) == (200, {"status": "ok"})


def test_a_client_that_hangs_up_ends_its_call_in_the_door(web: Web) -> None:
    """More waiting calls than one caller may have at once, each given up: the next is answered all the same."""
    token = web.token("carol")
    for _ in range(40):
        connection = HTTPConnection(web.host, web.port, timeout=LIMIT_S)
        connection.request(
            "POST", "/api/inbox", b'{"wait": 30}',
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        time.sleep(0.02)
        connection.close()
    wait(lambda: web.call(token, "tags").status == 200)


def _served(web: Web) -> Answer:
    return web.ask("GET", "/health")


def test_the_service_is_replaced_when_it_is_killed_and_nothing_else_is(root: Path) -> None:
    daemon = started(root)
    try:
        web = of(daemon)
        with contextlib.closing(web.door("alice")) as alice:
            key = alice.call("create_key", actions=["read", "write"])["key"]
        web.call(key, "write", path="/shared/note.md", data="before")
        before = daemon.family()
        os.kill(before["http"], signal.SIGKILL)
        wait(lambda: daemon.status()["http"]["pid"] not in (before["http"], None))
        wait(lambda: daemon.status()["http"]["state"] == "ready" and "http" in daemon.family())
        assert web.call(key, "read", path="/shared/note.md").status == 200  # at the same address
        after = daemon.family()
        assert {name for name in before if before[name] != after.get(name)} == {"http"}
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_a_reload_starts_moves_and_stops_it(root: Path) -> None:
    daemon = started(root)
    try:
        web, keeper = of(daemon), daemon.family()["keeper"]
        daemon.settings(QUIET)
        daemon.command("reload")
        assert daemon.status()["http"] == {"state": "off", "url": "", "pid": None}
        with pytest.raises(ConnectionRefusedError):
            _served(web)
        daemon.settings(SETTINGS)
        daemon.command("reload")
        wait(lambda: daemon.status()["http"]["state"] == "ready")
        assert _served(of(daemon)).status == 200
        assert daemon.family()["keeper"] == keeper  # no other process is replaced for it
        assert "http       ready at http://127.0.0.1:" in daemon.command("status")
        daemon.settings(QUIET + "http: {listen: '0.0.0.0:0'}\n")
        assert "only with TLS" in daemon.command("reload", expect=1)
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_a_changed_form_of_the_log_reaches_the_service(root: Path) -> None:
    daemon = started(root)
    try:
        before = daemon.status()["http"]["pid"]
        daemon.settings(SETTINGS + "log: {format: json}\n")
        daemon.command("reload")
        wait(lambda: daemon.status()["http"]["pid"] != before and daemon.status()["http"]["state"] == "ready")
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_an_address_in_use_is_told_and_the_daemon_serves_on(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = Daemon(root)
        daemon.mounts()
        daemon.settings(QUIET + f"http: {{listen: '127.0.0.1:{taken.getsockname()[1]}'}}\n")
        try:
            daemon.run_command("start", "--daemon")
            said = daemon.status()["http"]
            assert said["state"] == "failed" and "Address already in use" in said["error"]
            assert "Address already in use" in daemon.command("status", expect=0)
            taken.close()
            wait(lambda: daemon.status()["http"]["state"] == "ready")  # it is tried again
            assert "error" not in daemon.status()["http"] and of(daemon).ask("GET", "/health").status == 200
            assert daemon.log().count("Address already in use") == 2  # when it was tried, and when all was ready
        finally:
            daemon.command("stop")
            daemon.clean_up()
