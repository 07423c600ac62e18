"""Bringing in what another store or program had: bytes with all that is said of them, in one command."""

from __future__ import annotations

import hashlib

import pytest

from avmfs.errors import Denied, Exists, Invalid, NotFound, Stale
from avmfs.store.identity import OPERATOR
from tests.contract.store_world import ALICE, BOB, CAROL, World

A = [b"memory", b"d", b"a.md"]


def test_put_makes_a_file_with_what_is_said_of_it_and_later_adds_to_that(world: World) -> None:
    said = {"mode": 0o640, "created": 5, "mtime": 7, "tags": ["x", "y"], "importance": 0.5, "user": {"k": 1}}
    node = world.do(ALICE, "put", path=A, data=b"bytes", **said)["node"]
    found, document = world.node(BOB, "/memory/d/a.md"), world.document(BOB, "/memory/d/a.md")
    assert (found.id, found.mode, found.mtime) == (node, 0o640, 7)
    assert (document.created, document.importance, document.user) == (5, 0.5, {"k": 1})
    assert world.bytes(BOB, "/memory/d/a.md") == b"bytes" and world.tags(BOB, "/memory/d/a.md") == ["x", "y"]
    world.do(BOB, "put", path=A, tags=["z"])
    assert world.tags(ALICE, "/memory/d/a.md") == ["z"]
    assert world.document(ALICE, "/memory/d/a.md").importance == 0.5
    world.do(ALICE, "put", path=[b"memory", b"d", b"l"], target=b"a.md")
    with world.reading(BOB) as reader:
        assert reader.target(world.node(BOB, "/memory/d/l").id) == b"a.md"


@pytest.mark.parametrize("said", [{"mtime": 7}, {"created": 7}])
def test_whoever_follows_the_log_hears_of_the_times_that_put_sets(said: dict[str, int], world: World) -> None:
    node = world.do(ALICE, "put", path=A, data=b"bytes")["node"]
    world.do(ALICE, "put", path=[b"memory", b"other"], data=b"bytes")
    before, began = world.newest_seq(), world.clock()
    world.do(ALICE, "put", path=A, **said)
    assert world.rows("select node, op from log where seq > ? and scope <> 0", before) == [(node, "attributes")]
    assert world.node(BOB, "/memory/d/a.md").ctime >= began


def test_put_replaces_only_the_bytes_that_it_names(world: World) -> None:
    world.do(ALICE, "put", path=A, data=b"first")
    with pytest.raises(Exists):
        world.do(ALICE, "put", path=A, data=b"second")
    with pytest.raises(Stale):
        world.do(ALICE, "put", path=A, data=b"second", instead_of=hashlib.sha256(b"other").digest())
    world.do(ALICE, "put", path=A, data=b"second", instead_of=hashlib.sha256(b"first").digest())
    assert world.history(ALICE, "/memory/d/a.md") == [b"first", b"second"]


def test_put_brings_what_was_laid_beside_in_one_step_with_what_is_said_of_it(world: World) -> None:
    world.do(ALICE, "put", path=A, data=b"first", tags=["kept"])
    world.do(ALICE, "put", path=[*A[:-1], b".laid"], data=b"second")
    laid = {"path": A, "laid": b".laid", "mtime": 7, "importance": 0.5}
    digest = hashlib.sha256(b"first").digest()
    for wrong, error in (
        ({}, Exists),
        ({"instead_of": hashlib.sha256(b"other").digest()}, Stale),
        ({"instead_of": digest, "importance": 2.0}, Invalid),
        ({"instead_of": digest, "laid": b".none"}, NotFound),
    ):
        with pytest.raises(error):
            world.do(ALICE, "put", **laid | wrong)
        assert world.names(ALICE, "/memory/d") == [".laid", "a.md"] and world.bytes(ALICE, "/memory/d/a.md") == b"first"
    world.do(ALICE, "put", **laid, instead_of=digest, shared=["bob"])
    assert world.names(BOB, "/memory/d") == ["a.md"] and world.names(CAROL, "/memory/d") == []
    assert world.history(BOB, "/memory/d/a.md") == [b"first", b"second"]
    assert world.node(BOB, "/memory/d/a.md").mtime == 7 and world.tags(BOB, "/memory/d/a.md") == ["kept"]
    assert world.document(BOB, "/memory/d/a.md").importance == 0.5


def test_put_many_is_all_or_nothing(world: World) -> None:
    with pytest.raises(Exists):
        world.do(ALICE, "put_many", items=[{"path": A, "data": b"1"}, {"path": A, "data": b"2"}])
    assert not world.exists(ALICE, "/memory/d")
    with pytest.raises(Invalid):
        world.do(ALICE, "put_many", items=[{"path": A, "data": b"1", "no such": 1}])
    made = world.do(ALICE, "put_many", items=[{"path": A, "data": b"1"}, {"path": A, "tags": ["t"]}])
    assert made[0] == made[1] and world.tags(BOB, "/memory/d/a.md") == ["t"]


def test_put_goes_where_the_asker_may_write_and_an_operator_brings_private_spaces(world: World) -> None:
    hers = [b"memory", b"private", b"alice", b"n.md"]
    with pytest.raises((Denied, NotFound)):
        world.do(BOB, "put", path=hers, data=b"x")
    with pytest.raises(Invalid):
        world.do(ALICE, "put", path=[b"trash", b"n.md"], data=b"x")
    world.do(OPERATOR, "put", path=[b"memory", b"private", b"dora", b"n.md"], data=b"hers")
    assert world.names(OPERATOR, "/memory/private") == ["alice", "bob", "dora"]
    assert not world.exists(ALICE, "/memory/private/dora")
