"""The steps of consolidation in each mode of the store: whole, of what was planned, for whom they are, and undone."""

from __future__ import annotations

from typing import Any

import pytest

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import Denied, Invalid, NotFound, Stale
from avmfs.node import Node
from avmfs.store.commands.consolidating import SUMMARIZES
from avmfs.store.identity import OPERATOR
from tests.contract.store_world import ALICE, BOB, World

RUN = 7


def noted(world: World, path: str, text: bytes, who: Principal = ALICE) -> Node:
    world.write(who, path, text)
    return world.node(who, path)


def step(world: World, command: str, *nodes: Node, who: Principal = ALICE, run: int = RUN, **more: Any) -> list[str]:
    planned = {"nodes": [each.id for each in nodes], "ctimes": [each.ctime for each in nodes]}
    return [paths.text(each) for each in world.do(who, command, run=run, **planned, **more)["paths"]]


def test_of_two_that_say_the_same_one_goes_and_comes_back(world: World) -> None:
    kept = noted(world, "/memory/shared/kept.md", b"the harvest begins in June")
    gone = noted(world, "/memory/shared/gone.md", b"the harvest begins in June")
    world.tag(BOB, "/memory/shared/gone.md", "farm")
    kept, gone = (world.node(ALICE, f"/memory/shared/{name}.md") for name in ("kept", "gone"))
    assert step(world, "merge", kept, gone) == ["/archive/shared/gone.md"]
    document = world.document(ALICE, "/memory/shared/kept.md")
    with world.reading(ALICE) as reader:
        assert reader.tags(document.id) == ["farm"]
        assert [(each.type, each.path) for each in reader.links(document.id)] == [
            ("supersedes", b"/archive/shared/gone.md")
        ]
        number, rows = reader.consolidated()
        assert (number, [row[1:] for row in rows]) == (RUN, [("merged", b"/memory/shared/gone.md")])
    with pytest.raises(NotFound):
        world.do(BOB, "take_back", run=RUN, document=rows[0][0])
    assert world.do(ALICE, "take_back", run=RUN, document=rows[0][0])["path"] == b"/memory/shared/gone.md"
    with world.reading(ALICE) as reader:
        assert reader.tags(document.id) == [] and reader.links(document.id) == []
        assert reader.consolidated() == (0, [])
    assert world.bytes(BOB, "/memory/shared/gone.md") == b"the harvest begins in June"


@pytest.mark.parametrize("taken", ["kept", "gone"])
def test_a_step_is_undone_also_where_others_have_taken_one_of_its_notes(world: World, taken: str) -> None:
    kept, gone = (noted(world, f"/memory/shared/{name}.md", b"the harvest begins in June") for name in ("kept", "gone"))
    step(world, "merge", kept, gone)
    path = {"kept": "/memory/shared/kept.md", "gone": "/archive/shared/gone.md"}[taken]
    world.rename(BOB, path, "/memory/private/bob/own.md")
    with world.reading(ALICE) as reader:
        [(document, _, was)] = reader.consolidated()[1]
    at = world.do(ALICE, "take_back", run=RUN, document=document)["path"]
    assert at == (was if taken == "kept" else None)
    assert world.exists(ALICE, "/memory/shared/gone.md") == (taken == "kept")
    with world.reading(ALICE) as reader:
        assert reader.consolidated() == (0, [])


def test_a_step_is_of_notes_as_they_were_with_the_same_readers_and_the_asker_s(world: World) -> None:
    one = noted(world, "/memory/shared/one.md", b"one")
    other = noted(world, "/memory/shared/other.md", b"other")
    theirs = noted(world, "/memory/private/bob/own.md", b"own", BOB)
    mine = noted(world, "/memory/private/alice/own.md", b"own")
    world.clock.advance(2)
    world.write(BOB, "/memory/shared/other.md", b"changed")
    for nodes, error in (((one, other), Stale), ((one, mine), Stale), ((theirs,), NotFound), ((one, one), Invalid)):
        with pytest.raises(error):
            step(world, "merge" if len(nodes) > 1 else "archive_cold", *nodes)
    with pytest.raises(Denied, match="only who wrote it"):
        step(world, "archive_cold", theirs, who=OPERATOR)
    assert world.bytes(ALICE, "/memory/shared/one.md") == b"one" and world.exists(BOB, "/memory/private/bob/own.md")
    assert step(world, "archive_cold", one) == ["/archive/shared/one.md"]


def test_what_others_have_claimed_or_disputed_since_the_plan_stays(world: World) -> None:
    kept, gone = (noted(world, f"/memory/shared/{name}.md", b"the harvest begins in June") for name in ("kept", "gone"))
    unseen = noted(world, "/memory/private/bob/own.md", b"it does not", BOB)
    world.do(ALICE, "claim", nodes=[kept.id], lease=3600 * 10**9)
    world.do(BOB, "claim", nodes=[gone.id], lease=3600 * 10**9)
    for command in ("merge", "archive_cold"):
        with pytest.raises(Stale, match="claimed or disputed"):
            step(world, command, *([kept, gone] if command == "merge" else [gone]))
    world.do(BOB, "release", node=gone.id)
    world.do(BOB, "add_link", node=unseen.id, target=gone.id, type="contradicts")
    other = noted(world, "/memory/shared/other.md", b"it does not", BOB)
    world.do(BOB, "add_link", node=other.id, target=gone.id, type="contradicts")
    with pytest.raises(Stale, match="claimed or disputed"):
        step(world, "merge", kept, gone)
    world.do(BOB, "remove_link", node=other.id, target=gone.id, type="contradicts")
    assert step(world, "merge", kept, gone) == ["/archive/shared/gone.md"], "alice sees nothing of what else bob says"


def test_a_summary_has_its_sources_and_goes_when_it_is_taken_back(world: World) -> None:
    notes = [noted(world, f"/memory/shared/{number}.md", b"the harvest %d" % number) for number in range(3)]
    where: dict[str, Any] = {"path": list(paths.split(b"/memory/shared/summary.md")), "data": b"- the harvest"}
    assert step(world, "summarise", *notes, **where) == ["/memory/shared/summary.md"]
    document = world.document(ALICE, "/memory/shared/summary.md")
    with world.reading(ALICE) as reader:
        assert {each.type for each in reader.links(document.id)} == {SUMMARIZES}
        assert reader.tags(document.id) == ["summary"]
    newer = {**where, "data": b"- the harvest, again", "older": world.node(ALICE, "/memory/shared/summary.md").id}
    assert step(world, "summarise", *notes, run=RUN + 1, **newer) == ["/memory/shared/summary.md"]
    assert world.bytes(BOB, "/archive/shared/summary.md") == b"- the harvest"
    with pytest.raises(Stale):
        step(
            world, "summarise", noted(world, "/memory/private/alice/x.md", b"x"), **{**where, "path": [b"memory", b"y"]}
        )
    assert not world.exists(ALICE, "/memory/y")
    newest = world.document(ALICE, "/memory/shared/summary.md")
    assert world.do(ALICE, "take_back", run=RUN + 1, document=newest.id)["path"] is None
    assert not world.exists(ALICE, "/memory/shared/summary.md")


def test_the_keeper_begins_one_run_in_a_while(world: World) -> None:
    day = 24 * 3600 * 10**9
    with pytest.raises(Denied):
        world.do(ALICE, "begin_consolidation", every=day)
    assert world.do(OPERATOR, "begin_consolidation", every=day) == {"wait": 0}
    world.clock.advance(3600)
    left = day - 3600 * 10**9 - world.do(OPERATOR, "begin_consolidation", every=day)["wait"]
    assert 0 <= left < 600 * 10**9  # the world's clock goes on by itself as well
    world.clock.advance(23 * 3600)
    assert world.do(OPERATOR, "begin_consolidation", every=day) == {"wait": 0}
