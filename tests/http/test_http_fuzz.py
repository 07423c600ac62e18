"""Requests made from the service's own description: none makes it fail or tells of another agent, and none gets an
undescribed answer."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from tests.http.http_world import Web

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'avmfs[fuzz]'")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402

CANARY = "zqfuzzqz"
EACH = int(os.environ.get("AVM_FUZZ", "12"))  # requests to each operation
PATIENT = {"inbox", "watch", "warmup"}  # which may wait for what does not come


@pytest.fixture(scope="module")
def schema(web: Web) -> Any:
    return schemathesis.openapi.from_dict(web.ask("GET", "/openapi.json").json)


def test_the_description_is_one_of_openapi(schema: Any) -> None:
    assert schema.validate() is None
    assert len(list(schema.get_all_operations())) > 80


def test_no_request_by_the_description_makes_the_service_fail(web: Web, schema: Any) -> None:
    token, asked, refused = web.token("fuzz"), 0, 0
    with contextlib.closing(web.door("alice")) as door:
        door.call("write", path=f"/memory/private/alice/{CANARY}.md", data=f"{CANARY} is hers".encode())
        door.call("tag", path=f"/memory/private/alice/{CANARY}.md", add=[CANARY])
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/session" or operation.path.rpartition("/")[2] in PATIENT:
            continue

        @settings(
            max_examples=EACH, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            database=None, derandomize=True,
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            nonlocal asked, refused
            got = web.ask("POST", case.formatted_path, case.body if case.body != _UNSET else {}, token)
            asked += 1
            refused += got.status == 400
            assert got.status < 500 or got.status in (503, 504), (case.formatted_path, case.body, got)
            assert CANARY.encode() not in got.body, (case.formatted_path, case.body, got)
            assert ("result" if got.status == 200 else "error") in got.json, got

        one()
    assert asked > 10 * 80
    assert refused < asked  # most of it is taken apart from its values, not for its form


_UNSET = getattr(schemathesis.core, "NOT_SET", object()) if hasattr(schemathesis, "core") else object()
