"""Every method of the door over HTTP: the door's own answers, for two agents; and nothing of alice's for bob.

The registry is walked, with the values of the sweep's recipes, so that a method that is added later is asked too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

pytest.importorskip("starlette")

from avmfs import metrics, wire
from avmfs.errors import AvmError
from avmfs.http import values
from avmfs.rpc import methods
from tests.faults.daemons import Daemon, wait
from tests.http.http_world import Web, of
from tests.mount.mount_world import OnTwoHosts
from tests.sweep.planting import CANARY, SETTINGS, Planted
from tests.sweep.recipes import Ground, cases, of_function

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def web(copies: Callable[..., Path]) -> Iterator[Web]:
    """The service of a daemon on a copy: what is asked here changes it."""
    root = copies()
    daemon = Daemon(root)
    daemon.mounts()
    daemon.settings(SETTINGS + "http: {listen: '127.0.0.1:0'}\n")
    daemon.start()
    try:
        wait(lambda: daemon.status()["http"]["state"] == "ready")
        yield of(daemon)
    finally:
        with contextlib.suppress(AssertionError):
            daemon.command("stop")
        daemon.clean_up()


@pytest.fixture(scope="module")
def tokens(web: Web) -> dict[str, str]:
    return {agent: web.token(agent) for agent in ("alice", "bob")}


def method_cases(ground: Ground, name: str, each_most: int) -> Iterator[dict[str, Any]]:
    function = methods.function(name)
    return cases(ground, name, of_function(function, get_type_hints(function), skip=1), each_most)


def packed(web: Web, token: str, name: str, given: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer in the exact form."""
    got = web.ask("POST", f"/api/{name}", wire.pack(given), token, content_type=values.MSGPACK)
    assert got.headers["content-type"] == values.MSGPACK, got
    return got.status, wire.unpack(got.body)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_answers_as_the_door_does(web: Web, tokens: dict[str, str], ground: Ground, name: str) -> None:
    """Where the door says the same before and after. Else nothing is known but that it is an answer."""
    compared = 0
    for agent, token in tokens.items():
        with contextlib.closing(web.door(agent)) as door:

            def asked(given: dict[str, Any], door: Any = door) -> Any:
                try:
                    return [None, door.call(name, **given)]
                except AvmError as e:
                    return [[e.code, e.reason, e.filename], None]

            for given in method_cases(ground, name, 3):
                before = asked(given)
                status, mine = packed(web, token, name, given)
                plain = web.ask("POST", f"/api/{name}", json.loads(values.json_text(given)), token)
                if before == asked(given):
                    assert [mine["error"], mine["result"]] == before, given
                    assert status == plain.status
                    told = plain.json.get("result") if status == 200 else plain.json["error"]["reason"]
                    same = before[1] if status == 200 else before[0][1]
                    assert json.dumps(told, sort_keys=True) == json.dumps(
                        json.loads(values.json_text(same)), sort_keys=True
                    )
                    compared += 1
                assert status < 500 or status in (503, 504) or name == "warmup", (given, mine)
    assert compared or name in CHANGING


# Whose answer is another one each time.
CHANGING = {
    "agents", "create_key", "remember", "tell", "snapshot", "delete_mail", "mark_read", "recent", "watch",
    "audit_anchor", "sign_in", "remember_many", "replay", "claim", "claim_next", "write",
}  # fmt: skip


@pytest.mark.parametrize("name", methods.names())
def test_no_method_tells_bob_what_is_hers(web: Web, tokens: dict[str, str], ground: Ground, name: str) -> None:
    typed: set[str] = set()
    for given in method_cases(ground, name, 12):
        typed |= set(CANARY.findall(repr(given)))
        got = web.ask("POST", f"/api/{name}", json.loads(values.json_text(given)), tokens["bob"])
        # What he has typed may be repeated to him. Bytes are looked at as they are.
        exact = packed(web, tokens["bob"], name, given)[1]
        for text in (got.body.decode(), repr(exact)):
            for word in typed:
                text = text.replace(word, "")
            hit = CANARY.search(text)
            assert hit is None, (given, text[max(0, hit.start() - 300) : hit.end() + 300])
        assert got.status < 500 or got.status in (503, 504) or name == "warmup", got


def test_what_mounts_are_asked_is_counted(planted: Planted) -> None:
    if isinstance(planted.world, OnTwoHosts):
        pytest.skip("bob's mount is counted on the other host")

    def opened() -> float:
        found = metrics.read(planted.world.root / "run" / metrics.FOLDER)
        return found["counter", "avm_fuse_requests_total", (("op", "open"),), ()][0]

    path = planted.mount("bob") / "shared/counted.md"
    path.write_text("x")
    before = opened()
    for _ in range(5):
        path.read_text()
    path.unlink()
    assert opened() - before >= 5


@pytest.mark.parametrize("path", ["/", "/health", "/openapi.json", "/nowhere", "/session", "/api/tags", "/events"])
def test_no_address_tells_a_stranger_anything_of_anybody(web: Web, path: str) -> None:
    body = web.ask("GET", path).body.decode()
    assert CANARY.search(body) is None and "alice" not in body.replace("avm init alice bob", "")
