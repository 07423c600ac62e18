"""Views that explain an answer, and those that need no keyword. Their forms are in docs/FORMATS.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from avmfs.access import Policy
from avmfs.errors import Interrupted, Invalid, NotFound
from avmfs.rpc import methods
from avmfs.rpc.aside import archive
from avmfs.rpc.remembering import remember
from avmfs.search.engine import Engine
from avmfs.search.explain import Words, matched
from avmfs.search.indexer import embed_pending
from avmfs.store.queries.nodes import Reader
from avmfs.text.tokens import TokenCounter
from avmfs.trust import Trusted
from avmfs.views import overview
from avmfs.views.listing import TREE_ENTRIES
from avmfs.views.overview import Note, Told, noted
from tests.unit.views_fixtures import Agent, World, given_up, opened

SECRET = "/private/secret.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        alice, bob = made.agent("alice"), made.agent("bob")
        alice.put("/shared/market/nvda.md", "# NVDA risk\nRSI at 72, reduce exposure. Nothing else happened.")
        made.clock.pass_(5)
        alice.put("/shared/market/amd.md", "AMD follows NVDA with a day of delay. #chips")
        made.clock.pass_(60 * 30)
        alice.put("/shared/garden.md", "Tomatoes need water twice a day in July.")
        bob.put(SECRET, "NVDA exposure of Zarathustra is our secret #secrets")
        yield made


def link(agent: Agent, source: str, target: str) -> None:
    agent.echo(target + " derived\n", f"{source}:links")


# :why


def test_why_adds_up_and_names_the_words(world: World) -> None:
    text = world.agent("alice").cat("/:why?q=RSI exposure tulips&limit=1")
    score, parts = re.search(r"score (\S+) = (.*)", text).groups()  # type: ignore[union-attr]
    signed = [float(sign + value) for sign, value in re.findall(r"([+-]?) ?[a-z]+ (\d+\.\d+)", parts)]
    assert sum(signed) == pytest.approx(float(score), abs=0.05)
    assert "no cosine · has rsi, exposur · lacks tulip" in text and "/memory/shared/market/nvda.md" in text


def test_why_says_that_a_vector_is_to_come_only_where_one_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "awaits_vectors", lambda self, document: True)
    assert "no vector yet · has rsi" in world.agent("alice").cat("/:why?q=RSI&limit=1")


def test_why_says_what_stands_around_it(world: World) -> None:
    text = world.agent("alice").cat("/:why?q=RSI&path=/shared/market/amd.md")
    assert "said around it: rsi" in text


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/shared/home/bath.md", "was not looked at: it has none of the question's words and no vector near it"),
        ("/shared/x.tmp", "is in no index: its name is on the ignore list"),
        ("/shared/blank.md", "is in no index: it has no words"),
        ("/shared/market/nvda.md", "its text is that of a better hit, which names it"),  # of two the newer comes first
        ("/shared/copy.md", "a recall of 4000 tokens has it"),
    ],
)
def test_why_not(world: World, path: str, reason: str) -> None:
    alice = world.agent("alice")
    alice.put("/shared/x.tmp", "RSI exposure")
    alice.put("/shared/blank.md", " \n")
    alice.put("/shared/home/bath.md", "The tap drips.")  # with nothing around it
    alice.put("/shared/copy.md", "# NVDA risk\nRSI at 72, reduce exposure. Nothing else happened!")
    assert reason in alice.cat(f"/:why?q=RSI exposure&path={path}")


def test_why_not_outside_of_the_directory_and_below_the_threshold(world: World) -> None:
    alice = world.agent("alice")
    assert "does not stand below this directory" in alice.cat("/shared/market/:why?q=water&path=/shared/garden.md")
    words = " ".join(f"word{n}" for n in range(30))
    assert re.search(
        r"relevance 0\.\d\d is below min_relevance=0\.3", alice.cat(f"/:why?q=july {words}&path=/shared/garden.md")
    )


def test_why_of_a_file_says_what_is_said_of_it_among_the_hits(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/old.md", "The ingress proxy of atlas is HAProxy.")
    world.clock.pass_(60 * 24 * 150)
    alice.put("/shared/new.md", "For atlas the gateway has been Envoy, says Rune, who asked.")
    alice.echo("old.md supersedes\n", "/shared/new.md:links")
    q = "ingress proxy of atlas HAProxy"
    hits = alice.cat(f"/shared/:why?q={q}").splitlines()
    for rank, name in enumerate(("new.md", "old.md"), 1):
        said = alice.cat(f"/shared/:why?q={q}&path=/shared/{name}").splitlines()
        assert said[0].startswith(f"/memory/shared/{name} is number {rank} of "), said
        at = next(at for at, line in enumerate(hits) if line.endswith(f"/{name}"))
        assert hits[at].startswith(f"{rank}. ") and said[1:] == hits[at + 1 : at + 3]


@pytest.mark.parametrize(
    ("zone", "days"),
    [("UTC", {"b", "utc"}), ("Asia/Shanghai", {"b"}), ("America/Los_Angeles", {"b", "utc"})],
)
def test_a_time_without_a_zone_before_a_note_is_of_the_day_that_it_names(
    world: World, zone: str, days: set[str]
) -> None:
    world.around = replace(world.around, zone=ZoneInfo(zone))
    eve = world.agent("eve")
    for name, stamp in (("a", "2026-03-06 19:30"), ("b", "2026-03-07 03:30"), ("utc", "2026-03-07T19:30Z")):
        eve.put(f"/shared/tide/{name}.md", f"[{stamp}] Ann: the tide table is printed.")
    said = eve.cat("/shared/tide/:why?q=tide table printed on 7 March 2026")
    dated = re.findall(r"/(\w+)\.md\n   score [^\n]*\bdate 0\.4", said)
    assert set(dated) == days and said.count("score") == 3


def test_why_of_a_file_that_NOT_leaves_out_says_so(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/old.md", "NVDA was a risk once, and is none.")
    why = "/shared/:why?q=NVDA exposure NOT risk"
    left_out = "/memory/shared/old.md has risk, which NOT leaves out of a search; a recall of 4000 tokens"
    assert alice.cat(f"{why}&path=/shared/old.md") == f"{left_out} has it\n"
    assert "NVDA was a risk once" in alice.cat("/shared/:recall?q=NVDA exposure NOT risk")
    world.around = replace(world.around, search=replace(world.around.search, max_tokens=40))
    eve = world.agent("eve")
    assert eve.cat(f"{why}&path=/shared/old.md").startswith(left_out.replace("4000", "40"))
    said = alice.cat(f"{why}&path=/shared/market/amd.md")
    assert "amd.md is number 1 of " in said and said == said.replace("risk", "") and "risk" not in alice.cat(why)


def test_why_says_that_a_recall_has_what_only_fills_it(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/proxy.md", "atlas moves the ingress proxy to Envoy in May")
    alice.put("/shared/weak.md", "the proxy has 3 backends")
    world.around = replace(world.around, search=replace(world.around.search, min_relevance=0.95))
    carol, q = world.agent("carol"), "ingress proxy of atlas"
    recalled, said = carol.cat(f"/:recall?q={q}"), carol.cat(f"/:why?q={q}&path=/shared/weak.md")
    assert "3 backends" in recalled and "a recall of 4000 tokens has it" in said
    below = carol.cat("/:why?q=backends in Oslo, Rome and May&path=/shared/weak.md")
    assert "is below min_relevance=0.95" in below


def test_why_of_a_file_that_the_asker_may_not_see_is_as_of_none(world: World) -> None:
    with pytest.raises(NotFound):
        world.agent("alice").cat("/:why?q=NVDA&path=/memory/private/bob/secret.md")
    with pytest.raises(Invalid):
        world.agent("alice").cat("/:why?q=NVDA&path=/shared/market")


def test_why_of_a_file_in_quarantine_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(trusted=(Trusted("web", "/*", "quarantine"),))) as world:
        alice = world.agent("alice")
        alice.put("/shared/page.md", "RSI exposure")
        alice.memory.submit("set_sources", node=alice.node("/shared/page.md").id, sources=["web"])
        why = "/:why?q=RSI&path=/shared/page.md"
        assert alice.cat(why) == "/memory/shared/page.md is in quarantine, and found by nobody\n"
        alice.echo("/shared/page.md\n", "/:quarantine")
        assert "is number 1 of 1" in alice.cat(why)


# :plan


def test_what_is_archived_is_explained_and_dated_there(world: World) -> None:
    """Other notes come first, as their passages do in the table: none of them may be taken for it."""
    alice = world.agent("alice")
    archive(alice.memory, "/memory/shared/garden.md")
    alice.put("/shared/later.md", "Tomatoes are mentioned here, too.")
    told = alice.cat("/archive/:why?q=Tomatoes")
    assert "1. [" in told and "has tomato" in told and "/archive/shared/garden.md" in told and "later" not in told
    assert "a recall of 4000 tokens has it" in alice.cat("/archive/:why?q=Tomatoes&path=/archive/shared/garden.md")
    for view in ("timeline?days=1000", "cold?days=0", "digest?days=1000"):
        told = alice.cat(f"/archive/:{view}")
        assert "/archive/shared/garden.md" in told and "later.md" not in told, view
        assert "garden.md" not in alice.cat(f"/:{view}"), view
    apart = "/archive/shared/garden.md is in the archive, which is not searched from here\n"
    assert alice.cat("/:why?q=Tomatoes&path=/archive/shared/garden.md") == apart


def test_what_was_indexed_anew_between_an_answer_and_its_explanation_has_nothing_around_it(world: World) -> None:
    alice = world.agent("alice").memory
    answer = alice.search("Tomatoes")
    index = alice.store.search_index(alice.who)
    ranking = alice.around.engine.ranking(alice.who, index, "Tomatoes")
    for passage in (0, answer.hits[0].hit.passage + 100):
        assert matched(index, ranking, "Tomatoes", [passage]) == {passage: Words((), (), ("tomato",))}


def test_a_plan_keeps_what_it_says(world: World) -> None:
    alice = world.agent("alice")
    for number in range(60):
        alice.put(
            f"/shared/many/{number}.md", f"NVDA note {number} with a number of words in it, about matter {number}."
        )
    rows = alice.cat("/:plan?q=NVDA note matter").splitlines()
    assert [int(row.split()[0]) for row in rows] == [250, 500, 1000, 2000, 4000]
    for row in rows:
        budget, tokens, items = (int(found) for found in re.match(r" *(\d+) +(\d+) tokens +(\d+) item", row).groups())  # type: ignore[union-attr]
        answer = alice.cat(f"/:recall?q=NVDA note matter&max_tokens={budget}")
        assert answer.startswith(f"## Relevant Memory ({items} item") and tokens <= budget
    assert rows[-1].endswith("(no more)") or len({row.split()[3] for row in rows}) == 5


@pytest.mark.parametrize("q", ["NVDA", "zebra"])
def test_a_plan_says_first_what_had_no_part_in_it(world: World, q: str) -> None:
    world.around = replace(world.around, engine=Engine(world.store.search_index, None, TokenCounter()))
    said = world.agent("eve").cat(f"/:plan?q={q}").splitlines()
    recalled = world.agent("eve").cat(f"/:recall?q={q}").splitlines()
    assert said[0] == recalled[0] and said[0].startswith("# semantic search unavailable")
    assert len(said) > 1 and not any("unavailable" in row for row in said[1:])


# :topics


def test_topics_are_those_of_visible_files_only(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    before = alice.cat("/:topics")
    assert "chips" in before and "secrets" not in before and "Zarathustra" not in before
    bob.put("/private/more.md", "# NVDA chips\n#chips #chips of Zarathustra")
    assert alice.cat("/:topics") == before
    assert "secrets" in bob.cat("/:topics") and "/secret.md" in bob.cat("/:topics?name=Secrets")
    assert alice.cat("/:topics?name=secrets") == "(no files)\n"


def test_topics_are_told_by_category_tag_and_topic(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in ("a", "b"):
        remember(alice.memory, f"note {name}", title=name, tags=["technical"])
    alice.put("/memory/archive2/deep/er/c.md", "# Gardening")
    alice.echo("crypto,technical\n", "/memory/archive2/deep/er/c.md:tags")
    told = alice.cat("/:topics").splitlines()
    by_tag = told.index("### By Tag:")
    assert told[:2] == ["## Memory Topics", "### By Category:"]
    assert {"   2  private", "   1  archive2"} <= {*told[2:by_tag]}
    assert told[by_tag + 1 : by_tag + 3] == ["   3  technical", "   1  crypto"]
    assert "   1  Gardening" in told[told.index("### By Topic:") :]
    assert alice.cat("/memory/:topics").splitlines()[:3] == told[:3]
    assert "  deep" in alice.cat("/memory/archive2/:topics") and "er\n" not in alice.cat("/memory/archive2/:topics")
    assert "   2  private" not in bob.cat("/:topics") and "   1  technical" in bob.cat("/:topics")
    assert len(alice.cat("/:topics?limit=1").splitlines()) == 7


def test_topics_follow_the_text_and_the_directory(world: World) -> None:
    alice = world.agent("alice")
    assert alice.cat("/shared/garden.md:tags") == "(no tags)\n"
    alice.put("/shared/market/amd.md", "all quiet")
    assert "chips" not in alice.cat("/:topics")
    alice.put("/shared/garden.md", "Now about #Compost, we need more #compost")
    assert alice.cat("/:topics?name=compost").count("\n") == 1
    assert "ompost" not in alice.cat("/shared/market/:topics")


# :timeline


def test_the_timeline_is_by_day_newest_first_and_in_its_window(world: World) -> None:
    alice = world.agent("alice")
    text = alice.cat("/shared/:timeline")
    assert [line for line in text.splitlines() if line.startswith("##")] == ["## 2026-03-08", "## 2026-03-07"]
    assert text.index("garden.md") < text.index("amd.md") < text.index("nvda.md")
    assert "nvda.md" not in alice.cat("/shared/:timeline?days=1") and "garden.md" in alice.cat(
        "/shared/:timeline?days=1"
    )
    assert "garden.md" not in alice.cat("/shared/market/:timeline") and "secret" not in alice.cat("/:timeline")
    assert alice.cat("/shared/:timeline?limit=1").endswith("(2 more: limit=3)\n")


def test_a_memory_stands_in_the_timeline_at_its_own_time(world: World) -> None:
    alice = world.agent("alice").memory
    remember(alice, "an old one", path="/shared/old.md", created=world.clock() - 86_400 * 10**9 * 40)
    assert "old.md" not in world.agent("alice").cat("/:timeline")
    assert "## 2026-01-27" in world.agent("alice").cat("/:timeline?days=50")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_note_that_begins_with_a_time_stands_at_that_time_of_this_zone(world: World, zone: str) -> None:
    alice, an_hour_ago = world.agent("alice"), world.clock() - 3600 * 10**9
    here = replace(alice.memory, around=replace(alice.memory.around, zone=ZoneInfo(zone)))
    remember(here, f"{here.local(an_hour_ago):%Y-%m-%d %H:%M} the boiler was lit", path="/shared/boiler.md")
    path = b"/memory/shared/boiler.md"
    (told,) = [note for note in noted(here, b"/memory", 0.05, 10).rows if note.path == path]
    assert 0 <= an_hour_ago - told.at < 60 * 10**9
    assert path not in [note.path for note in noted(here, b"/memory", 0.04, 10).rows]
    assert path in [note.path for note in noted(here, b"/memory", 0.04, 10, cold=True).rows]


def test_what_is_cold_is_told_oldest_first_below_the_directory_and_only_as_the_asker_sees_it(world: World) -> None:
    alice = world.agent("alice")
    for number in (40, 60):
        remember(
            alice.memory, f"of {number}", path=f"/shared/{number}.md", created=world.clock() - 86_400 * 10**9 * number
        )
    remember(alice.memory, "hers", path="/private/hers.md", created=world.clock() - 86_400 * 10**9 * 50)
    assert [line[:10] for line in alice.cat("/:cold?days=30").splitlines()] == [
        "2026-01-07",
        "2026-01-17",
        "2026-01-27",
    ]
    bob = world.agent("bob")
    assert "hers" not in bob.cat("/:cold?days=30") and "/memory/shared/40.md" in bob.cat("/shared/:cold?days=30")
    assert bob.cat("/shared/:cold?days=30&limit=1").endswith("(1 more: limit=2)\n")
    assert bob.cat("/shared/:cold") == "(nothing of 90 days ago or before)\n"


def test_a_limit_that_is_advised_is_one_that_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = world.agent("alice")
    many = Told([Note(b"/memory/shared/a.md", "k7f2", "alice", world.clock(), "a")], 25_000)
    monkeypatch.setattr(overview, "noted", lambda *_, **__: many)
    for name in ("timeline", "cold"):
        advised = re.fullmatch(r"\(24900 more: (limit=\d+)\)", alice.cat(f"/:{name}").splitlines()[-1])
        assert advised is not None
        assert alice.cat(f"/:{name}?{advised[1]}").endswith("(15000 more)\n")


# :tree


def test_the_tree_shows_what_the_asker_sees(world: World) -> None:
    alice = world.agent("alice")
    assert alice.cat("/shared/:tree") == "/memory/shared\n  market/\n    amd.md\n    nvda.md\n  garden.md\n"
    assert alice.cat("/shared/:tree?depth=1") == "/memory/shared\n  market/  (2)\n  garden.md\n"
    assert "bob" not in alice.cat("/:tree?depth=5") and "secret.md" in world.agent("bob").cat("/:tree?depth=5")


def test_a_broad_directory_is_counted(world: World) -> None:
    alice = world.agent("alice")
    for number in range(TREE_ENTRIES + 3):
        alice.put(f"/shared/broad/{number:03}", "x")
    assert alice.cat("/shared/broad/:tree").splitlines()[-1] == "  (3 more)"


# :related


def test_related_has_links_hop_by_hop_then_what_is_alike(world: World) -> None:
    alice = world.agent("alice")
    link(alice, "/shared/market/nvda.md", "/shared/garden.md")
    link(alice, "/shared/garden.md", "/shared/market/amd.md")
    one = alice.cat("/shared/market/nvda.md:related?limit=0").splitlines()
    assert one == ["/memory/shared/garden.md  (-> derived)"]
    two = alice.cat("/shared/market/nvda.md:related?depth=2&limit=0").splitlines()
    assert two == [*one, "/memory/shared/market/amd.md  (2 links)"]
    alice.put("/shared/twin.md", "RSI at 72: reduce exposure to NVDA now")
    alike = alice.cat("/shared/market/nvda.md:related")
    assert re.search(r"\[[01]\.\d\d\] /memory/shared/twin\.md", alike)
    assert "secret" not in alike and alike.count("garden.md") == 1 and "nvda.md" not in alike


@pytest.mark.parametrize("top", ["archive", "trash"])
def test_no_walk_goes_along_links_to_what_was_put_aside(world: World, top: str) -> None:
    alice = world.agent("alice")
    world.clock.pass_(5)
    alice.memory.make_searchable()  # only what is indexed, and not of just now, goes to the trash
    one, garden, amd = "/shared/market/nvda.md", "/shared/garden.md", "/shared/market/amd.md"
    link(alice, garden, one)
    link(alice, one, garden)
    link(alice, garden, amd)
    methods.call(alice.memory, "archive" if top == "archive" else "remove", {"path": garden})
    aside = f"/{top}/shared/garden.md"
    assert alice.cat(f"{one}:related?limit=0&depth=5") == "(nothing related)\n"
    assert methods.call(alice.memory, "explore", {"path": one})["hops"] == []
    assert methods.call(alice.memory, "retrieve", {"q": "RSI exposure"})["linked"] == []
    assert alice.cat("/shared/:graph") == "(no links)\n"
    assert alice.cat(f"{one}:links") == f"-> {aside} (derived)\n<- {aside} (derived)\n"
    assert alice.cat(f"{aside}:related?limit=0") == (
        "/memory/shared/market/amd.md  (-> derived)\n/memory/shared/market/nvda.md  (-> derived)\n"
    )


def test_a_walk_that_nobody_waits_for_ends(world: World) -> None:
    with given_up(), pytest.raises(Interrupted):
        world.agent("alice").peek("/shared/market/nvda.md:related?depth=5&limit=0")


def test_a_text_that_denies_or_quotes_something_asks_for_its_words_as_any_other(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/rules.md", 'Releases of the gateway: do NOT deploy the "canary fleet" on Fridays.')
    alice.put("/shared/log.md", "We deploy releases of the gateway to the fleet on Fridays.")
    assert "/memory/shared/log.md" in alice.cat("/shared/rules.md:related")


# :synthesis


def test_a_synthesis_says_nothing_that_no_memory_says_and_cites_it(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/again.md", "Reduce exposure, RSI at 72!")
    text = alice.cat("/:synthesis?q=NVDA RSI exposure delay")
    told = re.findall(r"^- (.*) \[(\d+)\]$", text, re.MULTILINE)
    sources = dict(re.findall(r"^\[(\d+)\] @\S+ (\S+)$", text, re.MULTILINE))
    assert told and {number for _, number in told} == set(sources)
    for sentence, number in told:
        with alice.memory.reading() as reader:
            node = alice.memory.resolve(reader, sources[number])
            assert sentence in " ".join(reader.read(node.id, 0, node.size).decode().split())
    assert sum("72" in sentence for sentence, _ in told) == 1, "said twice, told once"
    assert "secret" not in text
    assert alice.cat("/:synthesis?q=zebra") == "(nothing relevant)\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The ingress is reachable.", "The ingress is not reachable."),
        ("The ingress is up.", "The ingress is down."),
        ("Ingress goes from Oslo -> Rome.", "Ingress goes from Oslo <- Rome."),
        ("Rome owns the ingress, Oslo the cluster.", "Oslo owns the ingress, Rome the cluster."),
    ],
)
def test_a_synthesis_tells_both_of_two_that_deny_each_other(world: World, one: str, other: str) -> None:
    alice = world.agent("alice")
    alice.put("/shared/one.md", f"{one}\n")
    alice.put("/shared/other.md", f"{other}\n")
    text = alice.cat("/:synthesis?q=ingress")
    assert f"- {one} [" in text and f"- {other} [" in text


def test_a_files_synthesis_is_of_it_and_its_links(world: World) -> None:
    alice = world.agent("alice")
    link(alice, "/shared/garden.md", "/shared/market/amd.md")
    embed_pending(world.store, alice.memory.around.engine._embedder, "hashing-64")  # type: ignore[arg-type]
    text = alice.cat("/shared/garden.md:synthesis?q=water a day of delay")
    assert "Tomatoes need water" in text and "AMD follows" in text and "RSI" not in text


def test_a_files_synthesis_is_of_it_however_much_elsewhere_is_better(world: World) -> None:
    alice = world.agent("alice")
    link(alice, "/shared/garden.md", "/shared/market/amd.md")
    for number in range(60):
        alice.put(f"/shared/other/{number}.md", f"water water a day of delay {number}")
    text = alice.cat("/shared/garden.md:synthesis?q=water a day of delay")
    assert "Tomatoes need water" in text and "AMD follows" in text and "other" not in text


def test_a_synthesis_of_what_is_archived_is_of_it_and_its_links(world: World) -> None:
    alice = world.agent("alice")
    link(alice, "/shared/garden.md", "/shared/market/amd.md")
    archive(alice.memory, "/memory/shared/garden.md")
    text = alice.cat("/archive/shared/garden.md:synthesis?q=water a day of delay")
    assert "Tomatoes need water" in text and "AMD follows" in text and "/archive/shared/garden.md" in text
    assert "Tomatoes" not in alice.cat("/:synthesis?q=water a day")


def test_no_name_of_a_file_empties_a_synthesis(world: World) -> None:
    alice = world.agent("alice")
    world.agent("bob").put("/shared/ingress (nothing relevant)", "The ingress is reachable from Oslo.")
    text = alice.cat("/:synthesis?q=ingress")
    assert text.endswith("/memory/shared/ingress (nothing relevant)\n")
    assert methods.call(alice.memory, "synthesize", {"q": "ingress"})["text"] == text
    nothing = methods.call(alice.memory, "synthesize", {"q": "zebra"})
    assert (nothing["text"], nothing["degraded"]) == ("", None)


@pytest.mark.parametrize("place", ["/shared/tomatoes", "/shared/.tomatoes", "/shared/tomatoes.1.md"])
def test_a_synthesis_of_what_it_is_called(world: World, place: str) -> None:
    alice = world.agent("alice")
    alice.put(place, "Tomatoes like it warm.")
    assert "- Tomatoes like it warm. [1]" in alice.cat(f"{place}:synthesis")
    alice.put("/shared/1-tomatoes/x.md", "Tomatoes like it warm.")
    assert "- Tomatoes like it warm. [1]" in alice.cat("/shared/1-tomatoes/:synthesis")
    alice.put("/shared/do-NOT-water.md", "You should NOT water at noon.")
    assert "- You should NOT water at noon. [1]" in alice.cat("/shared/do-NOT-water.md:synthesis")


# :savings


def test_savings_are_measured_against_the_files(world: World) -> None:
    alice, count = world.agent("alice"), world.around.engine.counter.count
    assert json.loads(alice.cat("/:savings"))["recalls"] == json.loads(alice.cat("/:savings"))["percent"] == 0
    long = "\n\n".join(f"Paragraph {n} about matter {n}. " + "Filler words stand here. " * 30 for n in range(60))
    alice.put("/shared/long.md", long + "\n\nThe zebra crossed the road.")
    given = sum(count(alice.cat("/:recall?q=zebra road&max_tokens=500")) for _ in range(2))
    alice.cat("/:plan?q=zebra road")
    alice.cat("/:why?q=zebra&path=/shared/long.md")
    found = json.loads(alice.cat("/:savings"))
    whole = 2 * count(long + "\n\nThe zebra crossed the road.")
    percent = round(100 * (whole - given) / whole, 1)
    assert found == {
        "files": 1,
        "given": given,
        "percent": percent,
        "recalls": 2,
        "saved": whole - given,
        "whole": whole,
    }
    alice.memory.delete("/shared/long.md")
    assert json.loads(alice.cat("/:savings"))["recalls"] == 0, "what is gone would not be read"
    assert json.loads(world.agent("bob").cat("/:savings"))["recalls"] == 0


def test_savings_count_nothing_that_has_grown_beyond_what_is_searched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, around = world.agent("alice"), world.around
    for name in ("log", "note"):
        alice.put(f"/shared/{name}/a.md", f"The zebra crossed the road of {name}. " * 20)
        alice.cat(f"/shared/{name}/:recall?q=zebra road&max_tokens=500")
    before = json.loads(alice.cat("/:savings"))
    assert before["files"] == before["recalls"] == 2
    count, counted = around.engine.counter.count, list[int]()

    def counts(text: str) -> int:
        counted.append(len(text))
        return count(text)

    monkeypatch.setattr(around.engine.counter, "count", counts)
    for size in (around.search.max_index_bytes + 1, 257 << 20):  # the second is more than a view takes
        alice.memory.submit("commit", node=alice.node("/shared/log/a.md").id, handle=None, edits=[["t", size]])
        after = json.loads(alice.cat("/:savings"))
        assert (after["files"], after["recalls"]) == (1, 1)
    assert counted and max(counted) < 10_000
    with given_up(), pytest.raises(Interrupted):
        alice.peek("/:savings")
