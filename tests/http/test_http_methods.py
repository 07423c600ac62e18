"""Every method of the door over HTTP: the door's own answers, for two agents; and nothing of alice's for bob.

The registry is walked, with the values of the sweep's recipes, so that a method that is added later is asked too.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from http_world import Web
from mount_world import World, until
from planting import CANARY, SETTINGS, Planted, plant
from recipes import Ground, cases, of_function

from avmfs import wire
from avmfs.errors import AvmError
from avmfs.http import values
from avmfs.rpc import methods

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def planted() -> Iterator[Planted]:
    settings = SETTINGS + "http: {listen: '127.0.0.1:0'}\n"
    world = World([{"agent_id": agent, "xattr": True} for agent in ("alice", "bob", "carol")], settings)
    try:
        world.start()
        yield plant(world)
    finally:
        world.end()


@pytest.fixture(scope="module")
def web(planted: Planted) -> Web:
    def service() -> dict[str, Any]:
        found = planted.world.status()
        return dict(found["http"]) if found is not None else {"state": ""}

    until(lambda: service()["state"] == "ready", 200)
    return Web(service()["url"], planted.world.root / "run")


@pytest.fixture(scope="module")
def tokens(web: Web) -> dict[str, str]:
    return {agent: web.token(agent) for agent in ("alice", "bob")}


@pytest.fixture(scope="module")
def ground(planted: Planted) -> Ground:
    bob = planted.mount("bob")
    files, folders = [], ["/", "/shared", "/private"]
    for top, _, names in os.walk(bob / "memory"):
        where = "/" + str(Path(top).relative_to(bob))
        folders.append(where)
        files += [f"{where}/{name}" for name in names if not Path(top, name).is_symlink()]
    return Ground.of(planted, sorted(files), folders)


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
    "agents", "create_key", "remember", "tell", "snapshot", "delete_mail", "recent", "watch", "audit_anchor", "sign_in",
    "remember_many", "replay", "claim", "claim_next", "write",
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


def test_what_mounts_are_asked_is_counted(web: Web, planted: Planted) -> None:
    token = (web.runtime.parent / "data/metrics.token").read_text().strip()

    def opened() -> float:
        text = web.ask("GET", "/metrics", token=token).body.decode()
        [line] = [line for line in text.splitlines() if line.startswith('avm_fuse_requests_total{op="open"}')]
        return float(line.rpartition(" ")[2])

    (planted.mount("bob") / "shared/counted.md").write_text("x")
    before = opened()
    for _ in range(5):
        (planted.mount("bob") / "shared/counted.md").read_text()
    assert opened() - before >= 5


@pytest.mark.parametrize("path", ["/", "/health", "/openapi.json", "/nowhere", "/session", "/api/tags", "/events"])
def test_no_address_tells_a_stranger_anything_of_anybody(web: Web, path: str) -> None:
    body = web.ask("GET", path).body.decode()
    assert CANARY.search(body) is None and "alice" not in body.replace("avm init alice bob", "")
