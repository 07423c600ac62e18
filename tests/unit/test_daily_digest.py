"""The keeper's digests: one a day at an hour of local time, and one for all the time that nobody was there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from avmfs_daemon.daily_digest import DailyDigest

from avmfs.access import Person, Policy
from avmfs.errors import Busy
from tests.unit.views_fixtures import START, World, opened

HOUR, DAY = 60, 24 * 60  # minutes
AT = 8 * HOUR


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.agent("alice"), made.agent("bob")
        yield made


def keeper(world: World) -> DailyDigest:
    """A process of its own: what the store knows decides."""
    return DailyDigest(replace(world.around, clock=world.clock), AT, 90)


def stepped(daily: DailyDigest) -> None:
    daily.step()
    assert daily.work.wait(300)


def digests(world: World, agent: str) -> list[str]:
    """Newest first."""
    return [each.body for each in world.agent(agent).memory.inbox() if each.sender == "avmfs"]


def test_a_digest_comes_once_a_day_with_what_is_new_for_that_agent(world: World) -> None:
    daily = keeper(world)
    stepped(daily)
    world.clock.pass_(HOUR)
    shared = world.agent("alice").put("/memory/shared/plan.md", "The quagga moves in May.")
    own = world.agent("bob").put("/memory/private/bob/own.md", "A quokka of mine.")
    world.clock.pass_(DAY - 3.6 * HOUR)  # 07:54 of the next day
    stepped(daily)
    assert digests(world, "alice") == []
    world.clock.pass_(0.2 * HOUR)
    for _ in range(3):
        stepped(daily)
        stepped(keeper(world))
    plan, mine = world.agent("alice").handle(shared), world.agent("bob").handle(own)
    (alice,), (bob,) = digests(world, "alice"), digests(world, "bob")
    assert alice == (
        "Digest since 2026-03-07 10:30: 1 new, 0 disputed, 0 cold, 0 urgent of 0 unread messages."
        f" In full: cat '/:digest?days=1'\nNew: @{plan}\n"
    )
    assert ": 2 new," in bob and f"@{plan}" in bob and f"@{mine}" in bob
    assert not any(word in alice + bob for word in ("quagga", "quokka", "plan.md", "own.md")), "they can be purged"


def test_after_days_without_a_daemon_one_digest_covers_them_and_a_quiet_day_has_none(world: World) -> None:
    stepped(keeper(world))
    for name in "abc":
        world.clock.pass_(DAY)
        world.agent("alice").put(f"/memory/shared/{name}.md", f"Fact {name} of that day.")
    stepped(keeper(world))
    (bob,) = digests(world, "bob")
    assert bob.startswith("Digest since 2026-03-07 10:30: 3 new,") and "?days=3'" in bob
    world.clock.pass_(DAY)
    daily = keeper(world)
    stepped(daily)
    assert digests(world, "bob") == [bob]
    world.clock.pass_(HOUR)
    world.agent("alice").put("/memory/shared/d.md", "Fact d.")
    world.clock.pass_(DAY - HOUR)
    stepped(daily)
    assert len(digests(world, "bob")) == 2 and "since 2026-03-11 10:30: 1 new" in "".join(digests(world, "bob"))


def test_a_clock_that_goes_back_delivers_nothing_twice(world: World) -> None:
    daily = keeper(world)
    stepped(daily)
    world.clock.pass_(HOUR)
    world.agent("alice").put("/memory/shared/a.md", "Fact a.")
    world.clock.pass_(DAY - HOUR)
    stepped(daily)
    world.clock.pass_(-4 * HOUR)  # before the hour again
    stepped(daily)
    stepped(keeper(world))
    world.clock.pass_(4 * HOUR)
    stepped(daily)
    stepped(keeper(world))
    assert len(digests(world, "bob")) == 1


@pytest.mark.parametrize(
    ("here", "due"),
    [
        ("2026-03-28T08:00", "2026-03-28T08:00+01:00"),
        ("2026-03-28T07:59", "2026-03-27T08:00+01:00"),
        ("2026-03-29T12:00", "2026-03-29T08:00+02:00"),  # summer time began in that night
        ("2026-03-29T07:59", "2026-03-28T08:00+01:00"),
        ("2026-10-25T09:00", "2026-10-25T08:00+01:00"),
    ],
)
def test_the_hour_is_that_of_the_place_in_summer_and_in_winter(world: World, here: str, due: str) -> None:
    zone = ZoneInfo("Europe/Vienna")
    daily = DailyDigest(replace(world.around, zone=zone), AT, 90)
    now = int(datetime.fromisoformat(here).replace(tzinfo=zone).timestamp()) * 10**9
    assert datetime.fromtimestamp(daily.due(now, AT) / 1e9, UTC) == datetime.fromisoformat(due)


@pytest.mark.logs("digest of alice")
@pytest.mark.parametrize("minutes", [11, -HOUR])  # also where the clock is set back
def test_what_fails_for_one_agent_is_tried_again_and_keeps_no_other_one_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, minutes: int
) -> None:
    daily = keeper(world)
    stepped(daily)
    world.clock.pass_(HOUR)
    world.agent("alice").put("/memory/shared/a.md", "Fact a.")
    world.clock.pass_(DAY - HOUR)
    whole = daily._deliver

    def broken(agent: str, due: int) -> None:
        if agent == "alice":
            raise Busy("not now")
        whole(agent, due)

    monkeypatch.setattr(daily, "_deliver", broken)
    stepped(daily)
    assert digests(world, "alice") == [] and len(digests(world, "bob")) == 1
    monkeypatch.undo()
    stepped(daily)
    assert digests(world, "alice") == [], "not before ten minutes"
    world.clock.pass_(minutes)
    stepped(daily)
    assert len(digests(world, "alice")) == len(digests(world, "bob")) == 1
    assert "digest of alice: not now" in caplog.text
    assert world.clock() > START


def test_no_digest_waits_for_an_agent_that_has_not_come(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(people={"carol": Person()})) as world:
        stepped(keeper(world))
        world.clock.pass_(DAY)
        world.agent("alice").put("/memory/shared/new.md", "The quagga moves in May.")
        stepped(keeper(world))
        assert digests(world, "carol") == []
