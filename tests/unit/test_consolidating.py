"""Consolidation: what says the same becomes one note, for whoever could read both, and comes back as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from views_fixtures import Agent, World, opened

from avmfs.access import Policy, Principal
from avmfs.errors import Denied, Invalid, NotFound, Stale
from avmfs.memory import Memory
from avmfs.rpc import methods
from avmfs.search.duplicates import NEAR, Note, redundant

FACT = "The release train leaves every second Thursday at 14:00 from the staging branch."
ALIKE = [
    FACT,
    f"  {FACT}\n\n",
    FACT.upper(),
    f"Note: {FACT}",
    FACT.replace("The ", "").rstrip("."),
    f"- **{FACT}**",
    FACT.replace("every second", "every second\n"),
]
OTHER = [
    FACT.replace("14:00", "15:00"),
    FACT.replace("Thursday", "Monday"),
    FACT.replace("leaves", "never leaves"),
    FACT.replace("staging", "main"),
    FACT.replace("leaves", "left"),
    FACT.replace("leaves", "departs"),
    FACT.replace(".", "?"),
    f"{FACT} Ask Tomasz about it.",
    f"{FACT} Its number is 7.",
    f"{FACT} It is not announced.",
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        yield made


def call(agent: Agent, name: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = methods.call(agent.memory, name, arguments)
    return found


def plan(agent: Agent, **arguments: Any) -> list[tuple[str, list[str]]]:
    steps = call(agent, "consolidate", **arguments)["steps"]
    return [(step["into"]["path"], [each["path"] for each in step["gone"]]) for step in steps]


def apply(agent: Agent, **arguments: Any) -> dict[str, Any]:
    return call(agent, "consolidate", **arguments, agreed=call(agent, "consolidate", **arguments)["agreed"])


def checksum(agent: Agent) -> str:
    """Of all that the agent sees: bodies, modes, times of content, metadata, tags, links."""
    records = call(agent, "records", data=True)["records"]
    kept = [{key: value for key, value in each.items() if key != "seq"} for each in records]
    return hashlib.sha256(repr(kept).encode()).hexdigest()


@pytest.mark.parametrize("text", ALIKE)
def test_what_says_the_same_is_redundant(text: str) -> None:
    assert [found[:2] for found in redundant([Note(FACT, 1), Note(text, 1)])] == [(1, 0)]


@pytest.mark.parametrize("text", OTHER)
def test_another_number_name_day_denial_or_word_is_not(text: str) -> None:
    assert redundant([Note(FACT, 1), Note(text, 1)]) == redundant([Note(text, 1), Note(FACT, 1)]) == []


def test_the_one_that_says_more_stays_and_else_the_first() -> None:
    more = f"{FACT} It stops for the freeze in winter."
    assert [found[:2] for found in redundant([Note(FACT, 1), Note(more, 1)])] == [(0, 1)]
    assert [found[:2] for found in redundant([Note(FACT, 1), Note(FACT, 2), Note(FACT, 3)])] == [(1, 0), (2, 0)]


def test_today_of_another_day_is_another_day() -> None:
    said = "The nightly export has failed today because of the full disk."
    assert redundant([Note(said, 1), Note(said, 2)]) == []
    assert len(redundant([Note(said, 1), Note(said, 1)])) == 1


def test_the_order_of_what_is_to_be_done_is_kept() -> None:
    steps = "Stop the ingest workers first.\nThen drain the queue.\nThen restart the ledger service.\n"
    lines = steps.splitlines(keepends=True)
    assert redundant([Note(steps, 1), Note(lines[0] + lines[2] + lines[1], 1)]) == []


def test_duplicates_go_to_the_archive_and_the_newer_says_so(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.put("/memory/shared/old.md", FACT)
    bob.echo("train,bob", "/memory/shared/old.md:tags")
    bob.echo('{"importance": 0.9}', "/memory/shared/old.md:meta")
    alice.put("/memory/shared/new.md", f"{FACT}\n")
    alice.put("/memory/shared/else.md", FACT.replace("14", "15"))
    before = [checksum(agent) for agent in (alice, bob)]
    old = alice.handle("/memory/shared/old.md")
    assert plan(alice) == [("/memory/shared/new.md", ["/memory/shared/old.md"])]
    assert [checksum(agent) for agent in (alice, bob)] == before  # a plan changes nothing
    done = apply(alice)
    assert (done["fewer"], done["stale"], done["notes"]) == (1, 0, 3)
    assert alice.cat(f"/@{old}:path") == "/archive/shared/old.md\n"
    assert "supersedes" in alice.cat("/memory/shared/new.md:links")
    assert alice.cat("/memory/shared/new.md:tags") == "bob,train\n"
    assert '"importance": 0.9' in alice.cat("/memory/shared/new.md:meta")
    assert plan(alice) == []
    assert call(alice, "unconsolidate", dry=True)["back"][0]["was"] == "/memory/shared/old.md"
    assert call(alice, "unconsolidate")["back"] == [{"path": "/memory/shared/old.md", "was": "/memory/shared/old.md"}]
    assert [checksum(agent) for agent in (alice, bob)] == before
    with pytest.raises(NotFound, match="consolidation"):
        call(alice, "unconsolidate")


def test_a_stale_plan_is_refused_and_so_is_a_stale_step(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/a.md", FACT)
    alice.put("/memory/shared/b.md", FACT)
    agreed = call(alice, "consolidate")["agreed"]
    nodes = [alice.node(f"/memory/shared/{name}.md") for name in "ba"]
    alice.echo("seen", "/memory/shared/a.md:tags")
    with pytest.raises(Stale, match="look at the plan again"):
        call(alice, "consolidate", agreed=agreed)
    with pytest.raises(Stale, match="changed"):
        alice.memory.submit("merge", run=1, nodes=[n.id for n in nodes], ctimes=[n.ctime for n in nodes])
    assert call(alice, "listing", path="/shared")["total"] == 2


@pytest.mark.parametrize(
    ("other", "how"),
    [
        ("/memory/private/alice/b.md", {}),
        ("/memory/shared/b.md", {":shared": "bob"}),
        ("/memory/shared/b.md", {":ttl": "2h"}),
        ("/memory/shared/elsewhere/b.md", {}),
        ("/memory/shared/hapag-contract.md", {}),
    ],
)
def test_other_readers_place_ttl_or_matter_are_never_mixed(world: World, other: str, how: dict[str, str]) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/a.md", FACT)
    alice.put(other, FACT)
    for view, value in how.items():
        alice.echo(value, other + view)
    assert plan(alice) == []


def test_another_mode_is_another_class(world: World) -> None:
    alice = world.agent("alice")
    nodes = [alice.put(f"/memory/shared/{name}.md", FACT) or alice.node(f"/memory/shared/{name}.md") for name in "ab"]
    alice.memory.submit("set_attributes", node=nodes[1].id, mode=0o600)
    assert plan(alice) == []
    found = [alice.node(f"/memory/shared/{name}.md") for name in "ab"]
    with pytest.raises(Stale, match="mode"):
        alice.memory.submit("merge", run=1, nodes=[n.id for n in found], ctimes=[n.ctime for n in found])


def test_agents_directories_are_one_place(world: World) -> None:
    alice = world.agent("alice")
    world.agent("bob").put("/memory/shared/bob/trains/a.md", FACT)
    alice.put("/memory/shared/alice/trains/a.md", FACT)
    assert plan(alice) == [("/memory/shared/alice/trains/a.md", ["/memory/shared/bob/trains/a.md"])]


def test_private_notes_are_for_whoever_wrote_them(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in "ab":
        alice.put(f"/memory/private/alice/{name}.md", FACT)
        alice.put(f"/memory/shared/{name}.md", FACT)
        alice.echo("bob", f"/memory/shared/{name}.md:shared")
    assert plan(bob) == []
    operator = Memory(world.around, Principal("alicia", operator=True))
    assert methods.call(operator, "consolidate", {})["steps"] == []
    nodes = [alice.node(f"/memory/shared/{name}.md") for name in "ab"]
    for who in (bob.memory, operator):
        with pytest.raises(Denied, match="alice"):
            who.submit("merge", run=1, nodes=[n.id for n in nodes], ctimes=[n.ctime for n in nodes])
    assert len(plan(alice)) == 2


def test_what_may_only_be_read_is_not_put_away(tmp_path: Path) -> None:
    policy = Policy.from_words([("/memory/open/*", "ro", ("bob",))], "rw")
    with opened(tmp_path, policy) as world:
        for name in "ab":
            world.agent("alice").put(f"/memory/open/{name}.md", FACT)
        assert plan(world.agent("bob")) == [] and len(plan(world.agent("alice"))) == 1


def test_claimed_and_disputed_notes_stay(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in "ab":
        alice.put(f"/memory/shared/{name}.md", FACT)
    call(bob, "claim", path="/memory/shared/a.md")
    assert plan(alice) == [] and len(plan(bob)) == 1
    call(bob, "release", path="/memory/shared/a.md")
    alice.put("/memory/shared/c.md", "No train leaves at all.")
    call(alice, "link", path="/memory/shared/c.md", target="/memory/shared/a.md", type="contradicts")
    assert plan(alice) == []


def test_undo_leaves_what_was_changed_since_and_finds_another_name(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/a.md", FACT)
    alice.echo('{"importance": 0.4}', "/memory/shared/a.md:meta")
    alice.put("/memory/shared/b.md", FACT)
    run = apply(alice)["run"]
    alice.echo('{"importance": 0.7}', "/memory/shared/b.md:meta")
    alice.put("/memory/shared/a.md", "something else by now")
    with pytest.raises(NotFound):
        call(world.agent("bob"), "unconsolidate", run=run)
    assert call(alice, "unconsolidate", run=run)["back"] == [
        {"path": "/memory/shared/a (2).md", "was": "/memory/shared/a.md"}
    ]
    assert '"importance": 0.7' in alice.cat("/memory/shared/b.md:meta")
    assert alice.cat("/memory/shared/a.md:data") == "something else by now"


def test_limits_are_held_and_said(world: World) -> None:
    alice = world.agent("alice")
    for name in "abcd":
        alice.put(f"/memory/shared/{name}.md", FACT)
    assert [len(gone) for _, gone in plan(alice, limit=2)] == [2]
    for wrong in ({"limit": 0}, {"likeness": 0.1}, {"likeness": 1.5}, {"path": "/archive"}):
        with pytest.raises(Invalid, match="limit|likeness|archive"):
            call(alice, "consolidate", **wrong)
    assert NEAR == 0.6
