"""What a new note seems to contradict is named to its writer, among what it sees, and nothing is done about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.rpc import methods
from tests.unit.views_fixtures import World, opened

OLD = "The backup of the mail server runs every night at 02:30."
BESIDE = [
    "The mail server was bought in 2021 and stands in rack 4.",
    "Every night the cleaners lock the east door.",
    "Restaurant Aurora has vegan lunch on weekdays.",
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        for text in (*BESIDE, OLD):
            remember(made, "bob", text, namespace="shared")
            made.clock.pass_(100)
        yield made


def remember(world: World, agent: str, content: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = methods.call(world.agent(agent).memory, "remember", {"content": content, **more})
    return found


@pytest.mark.parametrize(
    "new",
    [
        "The backup of the mail server runs every night at 04:00.",
        "Mail server backup moved to 04:00 at night.",
        "The backup of the mail server no longer runs at night.",
    ],
)
def test_a_note_that_says_something_else_of_the_same_matter_is_named(world: World, new: str) -> None:
    before = world.dump("link")
    (other,) = remember(world, "alice", new)["contradicts"]
    assert world.agent("alice").cat(f"{other['path']}:data") == f"{OLD}\n"
    assert other["handle"] == f"@{world.agent('bob').handle(other['path'])}"
    assert world.dump("link") == before, "it is proposed, and never done"


@pytest.mark.parametrize(
    "new", [OLD, f"Note: {OLD}", "Lunch for the whole team is on Tuesday.", "The web shop uses a new font.", "ok", "?!"]
)
def test_what_says_the_same_or_tells_of_something_else_names_nothing(world: World, new: str) -> None:
    assert remember(world, "alice", new)["contradicts"] == []


def test_nothing_is_named_that_the_asker_cannot_see(world: World) -> None:
    remember(world, "bob", "My locker code in the gym is 4471.")
    assert remember(world, "alice", "My locker code in the gym is 9023.")["contradicts"] == []
    assert remember(world, "bob", "My locker code in the gym is 9024.")["contradicts"] != []


def test_what_it_is_said_to_supersede_is_not_named_again(world: World) -> None:
    (other,) = remember(world, "alice", "The backup of the mail server runs every night at 04:00.")["contradicts"]
    new = "The backup of the mail server runs every night at 05:00."
    named = remember(world, "bob", new, supersedes=other["path"])["contradicts"]
    assert other["path"] not in [each["path"] for each in named]
