"""A shared log whose server fails over to a synchronous standby: what was acknowledged is on both, and what is on one
alone is not shown."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg")

import psycopg

from avmfs.store.sharedlog.postgres import PostgresLog
from avmfs.store.sharedlog.protocol import InDoubt, Record, Unreachable
from tests.postgres import Postgres, programs, running


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """The server, and its synchronous standby."""
    if programs() is None:
        pytest.skip("there is no PostgreSQL")
    with running(Path(f"/tmp/avm-pg-{secrets.token_hex(4)}")) as first:
        second = first.standby("b")
        try:
            yield first, second
        finally:
            second.remove()


def opened(address: str) -> PostgresLog:
    return PostgresLog(address, call_s=2.0)


def append(log: PostgresLog, data: bytes) -> None:
    log.append(Record(log.take() + 1, secrets.token_bytes(16), "a", data))


def test_what_only_a_killed_server_has_is_not_shown_by_it(pair: tuple[Postgres, Postgres]) -> None:
    first, second = pair
    log = opened(first.address_with(second))
    log.create("c1")
    log.put_snapshot(0, "a", [b"empty"])
    append(log, b"on both")
    second.kill()
    with pytest.raises(InDoubt):
        append(log, b"on one")
    first.kill()
    first.start()
    with psycopg.connect(first.address(), autocommit=True) as db:  # which has it, and would show it to anybody
        assert db.execute("select count(*) from avm_record").fetchone() == (2,)
    with pytest.raises(Unreachable):
        log.read(0, 10)
    with pytest.raises(Unreachable):
        log.take()
    first.kill()
    second.start()
    second.promote()
    assert [each.data for each in log.read(0, 10)] == [b"on both"]
    append(log, b"after")
    assert [each.data for each in log.read(0, 10)] == [b"on both", b"after"]
    log.close()
