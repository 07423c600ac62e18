"""Search and recall as views: scope, budget, banner. Ranking has tests of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from avmfs_config import default_settings

from avmfs.embed import engines
from avmfs.errors import Invalid
from avmfs.rpc import methods
from avmfs.rpc.local import LocalDoor
from tests.hashing import HashingEmbedding
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        alice, _ = made.agent("alice"), made.agent("bob")
        alice.put("/shared/market/nvda.md", "NVDA shows weakness, RSI at 72.")
        alice.put("/shared/other/nvda.md", "NVDA earnings come next week.")
        yield made


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("search", {"q": "zebra"}),
        ("retrieve", {"q": "zebra"}),
        ("synthesize", {"q": "zebra"}),
        ("bundle", {"q": "zebra"}),
        ("who", {"q": "giraffe"}),
        ("ask", {"question": "zebra"}),
        ("read", {"path": "/shared/:recall?q=zebra"}),
        ("read", {"path": "/shared/:why?q=zebra"}),
        ("read", {"path": "/shared/note.md:related"}),
    ],
)
def test_without_a_daemon_whatever_searches_first_embeds_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, asked: dict[str, str]
) -> None:
    monkeypatch.setattr(engines, "shared", lambda *given: HashingEmbedding())
    door = LocalDoor(tmp_path / "avm.db", default_settings(), "alice")
    try:
        door.call("remember", content="the zebra crosses at noon", path="/shared/note.md")
        assert door._store.vectors_wait()  # nothing was searched by meaning yet
        door.call(method, **asked)
        assert not door._store.vectors_wait()
    finally:
        door.close()


@pytest.mark.parametrize("view", ["search", "recall"])
def test_a_question_is_asked_of_the_views_directory(world: World, view: str) -> None:
    bob = world.agent("bob")
    everywhere = bob.cat(f"/:{view}?q=NVDA")
    assert "/memory/shared/market" in everywhere and "/memory/shared/other" in everywhere
    below = bob.cat(f"/shared/other/:{view}?q=NVDA")
    assert "/memory/shared/market" not in below and "/memory/shared/other" in below


def test_what_was_just_written_is_found(world: World) -> None:
    world.agent("bob").put("/private/fresh.md", "zebra crossing")
    assert "/memory/private/bob/fresh.md" in world.agent("bob").cat("/:search?q=zebra")
    assert world.agent("alice").cat("/:search?q=zebra") == "(no matches)\n"
    assert world.agent("alice").cat("/:recall?q=zebra") == "(nothing relevant)\n"


def test_a_search_is_by_words_or_by_meaning_as_asked(world: World) -> None:
    bob = world.agent("bob")
    by_words = bob.cat("/:search?q=NVDA weakness&mode=lexical")
    assert "/memory/shared/market/nvda.md" in by_words and not by_words.startswith("#")
    assert bob.cat("/:search?q=zebra&mode=lexical") == "(no matches)\n"
    told = bob.cat("/:search?q=NVDA&mode=semantic")
    assert told == "(no matches)\n"  # nothing has a vector yet, and its word does not count
    rest = bob.cat("/:search?q=NVDA NOT earnings")
    assert "/memory/shared/market/nvda.md" in rest and "/memory/shared/other/nvda.md" not in rest


@pytest.mark.parametrize("query", ["", "q=x&limit=0", "q=x&limit=201", "q=x&mode=fast"])
def test_bad_searches_are_refused(world: World, query: str) -> None:
    with pytest.raises(Invalid):
        world.agent("bob").cat(f"/:search?{query}")


@pytest.mark.parametrize(
    "query",
    ["", "q=x&max_tokens=0", "q=x&max_tokens=200001", "q=x&min_relevance=nan", "q=x&strategy=best", "q=x&cite=1"],
)
def test_bad_recalls_are_refused(world: World, query: str) -> None:
    with pytest.raises(Invalid):
        world.agent("bob").cat(f"/:recall?{query}")


@pytest.mark.parametrize("budget", [1, 10, 20, 40, 60, 100, 200, 400, 4000])
def test_a_recall_keeps_its_budget_with_the_banner_in_it(world: World, budget: int) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.memory.tell("bob", "The schema changed; stop writing to the old table at once.", priority="urgent")
    for number in range(30):
        alice.put(f"/shared/many/{number}.md", f"NVDA note {number}: " + "words about it " * number)
    said = bob.cat(f"/:recall?q=NVDA&max_tokens={budget}")
    count = world.around.engine.counter.count
    assert said == "(nothing fits)\n" if budget == 1 else count(said) <= budget
    if budget >= 200:
        assert said.startswith("=== 1 urgent message (mark read") and "## Relevant Memory" in said
    elif budget >= 20:
        assert said.startswith("=== 1 urgent message: cat /:urgent ===\n\n")


def test_a_search_carries_the_banner_until_it_is_read(world: World) -> None:
    bob = world.agent("bob")
    world.agent("alice").memory.tell("bob", "now", priority="urgent")
    assert bob.cat("/:search?q=NVDA").startswith("=== 1 urgent message")
    bob.echo("", "/:inbox")
    assert bob.cat("/:search?q=NVDA").startswith("[")


def test_what_a_recall_does_not_name_is_as_configured(world: World) -> None:
    for number in range(30):
        world.agent("alice").put(f"/shared/many/{number}.md", f"NVDA note {number}: " + "words about it " * number)
    world.around = replace(world.around, search=replace(world.around.search, max_tokens=120, min_relevance=0.0))
    carol = world.agent("carol")
    answers = {"": 120, "&max_tokens=300": 300}
    for named, budget in answers.items():
        tokens = re.search(r"items, (\d+) tokens", carol.cat(f"/:recall?q=NVDA{named}"))
        assert tokens and 0.8 * budget < int(tokens[1]) <= budget
    assert len(carol.cat("/:recall?q=NVDA&max_tokens=300&min_relevance=1")) < len(carol.cat("/:recall?q=NVDA"))


def test_a_question_about_the_past_finds_what_was_there_however_much_of_today_is_better(world: World) -> None:
    alice = world.agent("alice")
    for number in range(160):
        alice.put(f"/shared/o{number}.md", f"deploy rollback deploy rollback {number}")
    alice.put("/shared/proj/p.md", "To deploy the harbour service call the pilot, then wait for the tide and sign.")
    world.clock.pass_(60)
    for number in range(160):
        alice.put(f"/shared/o{number}.md", f"deploy rollback deploy rollback {number}, deploy")
    alice.memory.move("/shared/proj/p.md", "/shared/moved.md")
    for under in ("", "/memory/shared/proj"):
        asked = {"q": "deploy rollback", "under": f"/@-30m{under}"}
        given = methods.call(alice.memory, "recall", {**asked, "max_tokens": 300, "cite": "path"})
        found = methods.call(alice.memory, "search", asked)["hits"]
        assert [hit["path"] for hit in found] == ["/memory/shared/proj/p.md"]
        assert "/memory/shared/proj/p.md" in given["text"] and given["items"] == 1


@pytest.mark.parametrize("form", ["text", "markdown", "jsonl"])
def test_a_recall_of_the_past_keeps_its_budget_with_the_line_on_what_was_not_searched(world: World, form: str) -> None:
    alice = world.agent("alice")
    for number in range(8):
        alice.put(f"/shared/n{number}.md", f"note {number} about the harbour, with the pilot of day {number}")
    world.clock.pass_(60)
    alice.put("/shared/n0.md", "changed")
    past = alice.memory.at(alice.memory.moment("-30m"))
    count, said = past.around.engine.counter.count, []
    for budget in (5, 10, 20, 30, 60, 100, 200, None):
        asked = {"q": "harbour pilot", "max_tokens": budget, "format": form}
        given = methods.call(past, "recall", asked)
        assert count(given["text"]) == given["tokens"] <= (budget or 4000)
        said.append("1 file of then" in given["text"])
    assert said[-1] and (form == "jsonl" or said[:4] == [False] * 3 + [count(past.unsearched()) <= 30])
