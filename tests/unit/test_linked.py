"""What agents say of the truth of notes by links: recall, search, :why and /:disputes go by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from avmfs.errors import Exists, IsDirectory, NotFound
from avmfs.node import Dispute, Hit
from avmfs.rpc import methods
from avmfs.search.engine import Scored
from avmfs.search.linked import CONTRADICTS, SUPERSEDES, heeded, placed
from avmfs.search.recall import STRATEGIES
from tests.unit.views_fixtures import World, opened

OLD, NEW = "The ingress proxy of atlas is HAProxy.", "For atlas the proxy at the ingress has been Envoy, says Rune."
ASKED = "/memory/:search?q=ingress proxy of atlas HAProxy"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.agent("alice").put("/memory/shared/old.md", f"{OLD}\n")
        made.clock.pass_(1)  # one sitting: nothing else says that the newer holds
        made.agent("bob").put("/memory/shared/new.md", f"{NEW}\n")
        yield made


def order(world: World, agent: str = "alice", ask: str = ASKED) -> list[str]:
    said = world.agent(agent).cat(ask)
    return sorted((name for name in ("old.md", "new.md") if name in said), key=said.index)


def test_without_links_nothing_is_said_and_nothing_moves(world: World) -> None:
    assert order(world) == ["old.md", "new.md"]
    assert " by @" not in world.agent("alice").cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert world.agent("alice").cat("/:disputes") == "(no disputes)\n"


def test_what_supersedes_comes_first_and_the_old_one_says_so(world: World) -> None:
    bob = world.agent("bob")
    bob.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    said = f"superseded by @{bob.handle('/memory/shared/new.md')}"
    assert order(world) == ["new.md", "old.md"]
    assert said in bob.cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert said in bob.cat("/memory/:why?q=ingress proxy of atlas HAProxy")
    assert order(world, ask="/memory/:search?q=ingress proxy of atlas HAProxy before")[0] == "old.md"
    bob.echo("-old.md\n", "/memory/shared/new.md:links")
    assert order(world) == ["old.md", "new.md"]
    bob.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    methods.call(bob.memory, "archive", {"path": "/memory/shared/new.md"})  # what was put aside says nothing
    assert " by @" not in bob.cat("/memory/:recall?q=ingress proxy of atlas HAProxy")


def test_a_private_note_supersedes_for_its_agent_alone(world: World) -> None:
    before = order(world, "alice"), world.agent("alice").cat(ASKED)
    made = methods.call(
        world.agent("bob").memory,
        "remember",
        {"content": "atlas: ingress proxy is Traefik", "supersedes": "/shared/old.md"},
    )
    assert made["duplicate"] is None
    assert (order(world, "alice"), world.agent("alice").cat(ASKED)) == before
    handle = world.agent("bob").handle(made["path"])
    assert f"superseded by @{handle}" in world.agent("bob").cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert "traefik" not in world.agent("alice").cat("/memory/:recall?q=ingress proxy of atlas").lower()


def test_what_is_to_be_superseded_must_be_there_and_is_no_duplicate(world: World) -> None:
    bob = world.agent("bob").memory

    def remember(**given: Any) -> Any:
        return methods.call(bob, "remember", {"content": OLD, "namespace": "shared", **given})

    with pytest.raises(NotFound):
        remember(supersedes="/shared/none.md")
    assert remember(supersedes="/shared/old.md", on_duplicate="refuse")["done"] == "stored"


def test_what_is_superseded_hides_no_other_duplicate_and_is_a_file(world: World) -> None:
    bob = world.agent("bob")
    bob.put("/memory/shared/new-2.md", f"{NEW}\n")
    given = {"content": NEW, "namespace": "shared"}
    for one, other in (("new.md", "new-2.md"), ("new-2.md", "new.md")):
        with pytest.raises(Exists) as refused:
            methods.call(bob.memory, "remember", {**given, "supersedes": f"/shared/{one}", "on_duplicate": "refuse"})
        assert refused.value.filename == f"/memory/shared/{other}"
    more = {"tags": ["a"], "importance": 0.9, "supersedes": "/memory/shared", "on_duplicate": "update"}
    with pytest.raises(IsDirectory):
        methods.call(bob.memory, "remember", {**given, **more})
    assert [bob.cat(f"/memory/shared/{name}:tags") for name in ("new.md", "new-2.md")] == ["(no tags)\n"] * 2


def test_of_two_that_supersede_each_other_none_is_said_to_replace_the_other(world: World) -> None:
    bob = world.agent("bob")
    for one, other in (("old.md", "new.md"), ("new.md", "old.md")):
        bob.echo(f"{other} supersedes\n", f"/memory/shared/{one}:links")
    given = bob.cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert given.count("(superseded by @") == 2 and "replaces" not in given


def test_of_many_notes_each_may_supersede(world: World) -> None:
    bob = world.agent("bob")
    items = [{"content": "first"}, {"content": "atlas: ingress proxy is Traefik", "supersedes": "/shared/old.md"}]
    [_, made] = methods.call(bob.memory, "remember_many", {"items": items})["paths"]
    assert bob.cat(f"{made}:links") == "-> /memory/shared/old.md (supersedes)\n"
    for path, error in (("/shared/none.md", NotFound), ("/shared", IsDirectory)):
        with pytest.raises(error):
            methods.call(bob.memory, "remember_many", {"items": [{"content": "x", "supersedes": path}]})


def test_a_note_that_is_updated_supersedes_what_it_was_told_to(world: World) -> None:
    given = {"content": NEW, "namespace": "shared", "on_duplicate": "update", "supersedes": "/shared/old.md"}
    done = methods.call(world.agent("bob").memory, "remember", given)
    assert done["done"] == "updated" and order(world) == ["new.md", "old.md"]


def hits(*documents: int) -> list[Scored]:
    """Best first."""
    return [
        Scored(
            Hit(at, n, n, b"/m", f"k{n}", "a", 0, 0, None, 1, (), f"{n}", 0, 1, True), 1 - at / 9, 0.9 - at / 10, {}, {}
        )
        for at, n in enumerate(documents)
    ]


def link(source: int, target: int, kind: str = SUPERSEDES) -> Dispute:
    return Dispute(source, f"k{source}", target, kind)


@pytest.mark.parametrize(
    ("found", "pairs", "expected"),
    [
        ([1, 2, 3], [(2, 1), (3, 2)], [3, 2, 1]),
        ([0, 1, 2, 3, 4], [(1, 0), (2, 1), (3, 2), (4, 3)], [4, 3, 2, 1, 0]),
        ([0, 9, 1, 8, 2], [(2, 1), (1, 0)], [2, 9, 1, 8, 0]),
        ([1, 8, 2, 7], [(8, 1), (7, 2)], [8, 1, 7, 2]),  # what does not hang together keeps its places
        ([1, 1, 8, 2, 1, 2], [(2, 1)], [2, 1, 8, 1, 1, 2]),  # whichever of its passages
        ([1, 2, 3], [(1, 2), (2, 1)], [1, 2, 3]),
        ([4, 1, 2, 3], [(2, 1), (3, 2), (1, 3), (5, 4), (4, 4)], [4, 1, 3, 2]),
    ],
)
def test_of_a_chain_each_stands_behind_what_supersedes_it(
    found: list[int], pairs: list[tuple[int, int]], expected: list[int]
) -> None:
    for links in ([link(*pair) for pair in pairs], [link(*pair) for pair in reversed(pairs)]):
        given = placed(hits(*found), links, links)
        assert [each.hit.document for each in given] == expected
        assert [each.score for each in given] == [each.score for each in hits(*found)]
        assert [each.hit.document for each in placed(hits(*found), links, [])] == found


def test_nothing_supersedes_for_the_past_nor_for_days_that_had_ended_when_it_was_written() -> None:
    found = [replace(each, hit=replace(each.hit, updated=each.hit.document * 10)) for each in hits(1, 2, 3)]
    links = [link(2, 1), link(3, 1), link(3, 2, CONTRADICTS)]
    for q, spans, left in (
        ("ports", (), links),
        ("ports before", (), links[2:]),
        ("ports in May", [(10, 15), (15, 20)], links[2:]),
        ("ports in June", [(10, 25)], [links[0], links[2]]),
        ("ports this year", [(0, 31)], links),
        ("ports of RFC 1918", [(0, 5)], links),  # before any of them
        ("ports of RFC 1918 before", [(0, 5)], links[2:]),
        ("ports older than a week", (), links),
        ("ports to open before I merge", (), links),
    ):
        assert heeded(links, found, q, spans) == left


def test_a_question_about_a_month_gets_what_was_true_then_whatever_supersedes_it(world: World) -> None:
    bob = world.agent("bob")
    bob.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    world.clock.pass_(90 * 1440)
    bob.put("/memory/shared/new.md", f"{NEW}\n\n")
    day = datetime.fromtimestamp(world.clock() / 10**9, UTC) - timedelta(days=60)
    q = f"ingress proxy of atlas HAProxy in {day:%B %Y}"
    assert order(world, ask=f"/memory/:search?q={q}") == ["old.md", "new.md"]
    said = bob.cat(f"/memory/:recall?q={q}")
    assert said.index(OLD) < said.index(NEW) and "superseded by" in said


def test_the_sides_of_a_dispute_join_behind_what_supersedes_and_keep_their_relevance() -> None:
    disputed = link(1, 3, CONTRADICTS)
    given = placed(hits(1, 2, 3), [disputed], [disputed])
    assert [each.hit.document for each in given] == [1, 3, 2]
    assert [round(each.relevance, 1) for each in given] == [0.9, 0.7, 0.8]
    assert given[0].score == given[1].score > given[2].score
    both = [disputed, link(2, 3)]
    given = placed(hits(1, 2, 4, 3), both, both)
    assert [each.hit.document for each in given] == [1, 2, 3, 4]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_supersedes_comes_first_by_any_strategy(world: World, strategy: str) -> None:
    bob = world.agent("bob")
    bob.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    bob.echo('{"importance": 0.1}\n', "/memory/shared/new.md:meta")
    bob.echo('{"importance": 1.0}\n', "/memory/shared/old.md:meta")
    world.clock.pass_(100_000)
    bob.put("/memory/shared/old.md", f"{OLD} Indeed.\n")
    q = "/memory/:recall?q=ingress proxy of atlas HAProxy{}&strategy={}"
    said = bob.cat(q.format("", strategy))
    assert said.index(NEW) < said.index(OLD)
    said = bob.cat(q.format(" before", strategy))
    assert said.index(NEW) > said.index(OLD)


def test_what_was_said_later_changes_no_answer_about_the_past(world: World) -> None:
    bob = world.agent("bob")
    past = bob.memory.at(bob.memory.moment(f"seq.{bob.memory.store.search_index(bob.memory.who).seq()}"))
    before = bob.memory.recall("ingress proxy of atlas HAProxy").hits
    bob.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    assert bob.memory.recall("ingress proxy of atlas HAProxy").hits != before
    found = past.recall("ingress proxy of atlas HAProxy")
    assert found.hits == before and " by @" not in found.text
    names = [scored.hit.path for scored in past.search("ingress proxy of atlas HAProxy").hits]
    assert names == [b"/memory/shared/old.md", b"/memory/shared/new.md"]


def test_a_dispute_is_shown_on_both_sides_until_one_supersedes_the_other(world: World) -> None:
    alice = world.agent("alice")
    alice.echo("new.md contradicts\n", "/memory/shared/old.md:links")
    old, new = (alice.handle(f"/memory/shared/{name}") for name in ("old.md", "new.md"))
    given = alice.cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert f"@{old} (disputed by @{new})" in given and f"@{new} (disputed by @{old})" in given
    line = f"@{old} /memory/shared/old.md  contradicts  @{new} /memory/shared/new.md  (alice)\n"
    assert alice.cat("/:disputes") == world.agent("bob").cat("/:disputes") == line
    alice.echo("bob\n", "/memory/shared/old.md:shared")
    assert world.agent("eve").cat("/:disputes") == "(no disputes)\n"
    assert "disputed" not in world.agent("eve").cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    alice.echo("old.md supersedes\n", "/memory/shared/new.md:links")
    assert alice.cat("/:disputes") == "(no disputes)\n"
    given = alice.cat("/memory/:recall?q=ingress proxy of atlas HAProxy")
    assert f"@{old} (superseded by @{new})" in given and "disputed" not in given
