"""Whose work a file is, what comes from outside the store, an index of code, and a purge's last word: their commands,
against a store of one process and of several."""

from __future__ import annotations

import pytest

from avmfs.errors import Busy, Denied, Invalid, NameTooLong
from avmfs.store.commands import mirroring
from avmfs.store.identity import OPERATOR
from tests.contract.store_world import ALICE, BOB, World

MINUTE = 60 * 10**9


def test_one_agent_has_a_claim_until_it_is_released_or_over(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"a")
    node = world.node(ALICE, "/memory/a.md").id
    assert world.do(ALICE, "claim", nodes=[node], lease=MINUTE)["node"] == node
    with pytest.raises(Busy, match="alice"):
        world.do(BOB, "claim", nodes=[node], lease=MINUTE)
    with pytest.raises(Denied, match="alice"):
        world.do(BOB, "release", node=node)
    assert world.do(ALICE, "release", node=node) == {"released": True}
    assert world.do(ALICE, "release", node=node) == {"released": False}
    assert world.do(BOB, "claim", nodes=[node], lease=MINUTE)["node"] == node
    world.clock.advance(61)
    assert world.do(ALICE, "claim", nodes=[node], lease=MINUTE)["node"] == node


def test_only_the_operator_brings_what_lies_outside(world: World) -> None:
    source = {"source": "s", "until": 0}
    path = [b"live", b"price"]
    for who, where in ((ALICE, path), (OPERATOR, [b"memory", b"shared", b"x"])):
        with pytest.raises((Denied, Invalid)):
            world.do(who, "mirror", path=where, data=b"1", **source)
    first = world.do(OPERATOR, "mirror", path=path, data=b"1", **source)
    assert first["changed"] and world.bytes(ALICE, "/live/price") == b"1"
    assert not world.do(OPERATOR, "mirror", path=path, data=b"1", **source)["changed"]
    assert world.do(OPERATOR, "mirror", path=path, data=b"2", **source) == {**first, "changed": True}
    with pytest.raises(Denied):
        world.write(ALICE, "/live/price", b"mine")
    world.do(OPERATOR, "mirror_names", path=[b"live"], names=[b"price", b"deeper/"], **source)
    assert world.names(ALICE, "/live") == ["deeper", "price"]
    world.do(OPERATOR, "mirror_failed", path=path, error="no answer", gone=False, **source)
    assert world.bytes(ALICE, "/live/price") == b"2"
    world.do(OPERATOR, "mirror_failed", path=path, error="no such thing", gone=True, **source)
    assert world.names(ALICE, "/live") == ["deeper"]


def test_what_an_agent_writes_to_a_source_is_its_act_and_what_goes_for_it_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "MOST", 1)
    old, new = [b"live", b"old"], [b"live", b"new"]
    world.do(OPERATOR, "mirror", path=old, data=b"1", source="s", until=0)
    world.clock.advance(2)
    before = world.newest_seq()
    world.do(OPERATOR, "mirror", path=new, data=b"1", source="s", until=0, by=["alice", "mount", False])
    world.do(OPERATOR, "mirror", path=new, data=b"2", source="s", until=0, by=["bob", "cli", True])
    acts = world.rows("select op, path, agent, route, elevated from log where seq > ? and op <> 'create'", before)
    wrote = [(bytes(path), *by) for op, path, *by in acts if op == "write"]
    assert wrote == [(b"/live/new", "alice", "mount", 0), (b"/live/new", "bob", "cli", 1)]
    gone = [(bytes(path), agent) for op, path, agent, *_ in acts if op == "remove"]
    assert gone == [(b"/live/old", OPERATOR.name)] * (world.mode == "direct"), "the writer process keeps more"


def test_a_source_that_is_searched_now_is_found_though_it_says_the_same(world: World) -> None:
    for searched in (False, True, False):
        world.do(OPERATOR, "mirror", path=[b"live", b"x"], data=b"tea", source="s", until=0, searched=searched)
        world.drain()
        assert [count for (count,) in world.rows("select count(*) from passage")] == [searched]


def test_what_is_a_directory_at_the_source_now_or_a_file_is_one_here(world: World) -> None:
    source = {"source": "s", "until": 0}
    listed: dict[str, object] = {"path": [b"live"], **source}
    for _ in range(2):
        world.do(OPERATOR, "mirror", path=[b"live", b"x"], data=b"1", **source)
        world.do(OPERATOR, "mirror_names", names=[b"x/"], **listed)  # as its directory lists it
        world.do(OPERATOR, "mirror", path=[b"live", b"x", b"deep", b"y"], data=b"2", **source)
        world.do(OPERATOR, "mirror_names", names=[b"x"], **listed)
        assert world.bytes(ALICE, "/live/x") == b"" and world.rows("select path from live") == [(b"/live",)]
        world.do(OPERATOR, "mirror_names", path=[b"live", b"x"], names=None, **source)  # as reading it finds
        assert world.names(ALICE, "/live/x") == []
        world.do(OPERATOR, "mirror", path=[b"live", b"x"], data=b"3", **source)
        world.do(OPERATOR, "mirror", path=[b"live", b"x", b"y"], data=b"4", **source)
        assert world.bytes(ALICE, "/live/x/y") == b"4"


def test_an_index_is_written_by_whose_it_is_and_by_nobody_else(world: World) -> None:
    note = {"path": [b"src", b"x.py.md"], "data": b"# src/x.py\n"}
    assert world.do(ALICE, "write_index", project=b"house", items=[note]) == {"written": 1}
    assert world.bytes(BOB, "/index/house/src/x.py.md") == b"# src/x.py\n"
    with pytest.raises(Denied):
        world.do(BOB, "write_index", project=b"house", items=[note])
    for who in (ALICE, BOB):
        with pytest.raises(Denied):
            world.write(who, "/index/house/src/x.py.md", b"changed")
    for name in (b"x.py:meta", b"a/b", b"n" * 256):  # as little by moving as by making
        with pytest.raises((Invalid, NameTooLong)):
            moved = {**note, "path": [b"src", name], "was": note["path"]}
            world.do(ALICE, "write_index", project=b"house", items=[moved])
    assert world.do(ALICE, "write_index", project=b"house", items=[{"path": note["path"]}]) == {"written": 1}
    assert not world.exists(BOB, "/index/house/src/x.py.md")


def test_without_a_purge_nothing_is_left_to_be_wiped(world: World) -> None:
    assert world.do(ALICE, "wipe") == {"wiped": True}
