"""A store of two weeks of three agents' work, written in seconds: python two_weeks.py DAYS, AVM_* naming the place.

Run as a program of its own, since its clock is moved: what is written has the time that it would have had. Everything
goes through the door's methods, as of any client. ``PRIVATE`` stands in alice's notes alone.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

AGENTS = ("alice", "bob", "carol")
PRIVATE = "canaryofalice"
TOPICS = ("pricing", "deploys", "onboarding", "incident", "roadmap", "billing", "search", "hiring")
SAID = (
    "The {0} review moved to Thursday; {1} blocks it until the numbers are in.",
    "Measured again: {0} takes 240 ms at p99, twice what {1} may.",
    "Decision: {0} goes first, {1} waits for the next release.",
    "Open question about {0}: who owns the fallback when {1} is down?",
    "Customers ask for {0} in the export; {1} has the list.",
)


def days(count: int) -> Iterator[int]:
    """Nanoseconds of working hours, oldest first."""
    now = time.time_ns()
    for day in range(count, 0, -1):
        for hour in range(10):
            yield now - (day * 24 - hour) * 3_600_000_000_000


def main(count: int) -> None:
    moment = [0]
    moments = [*days(count)]
    time.time_ns = lambda: moment[0]  # before anything of avmfs asks for it
    moment[0] = moments[0]
    from avmfs.api.connect import located, open_door

    dice = random.Random(7)
    with ExitStack() as held:
        where = located(os.environ, None, None)
        doors = {each: open_door(where, each, environ=os.environ, embeddings=False, autostart=False) for each in AGENTS}
        for door in doors.values():
            held.callback(door.close)
        for agent, door in doors.items():  # mail finds who has written
            door.call("write", path=f"/memory/private/{agent}/about.md", data=f"# {agent}\n".encode())
        doors["alice"].call("write", path=f"/memory/private/alice/{PRIVATE}.md", data=PRIVATE.encode())
        doors["bob"].call("write", path="/memory/shared/old-draft.md", data=b"an old draft\n")
        for number, at in enumerate(moments):
            moment[0] = at
            _hour(doors, AGENTS[number % 3], number, dice)
        moment[0] = moments[-1] + 3_600_000_000_000
        _last(doors)


def _hour(doors: dict[str, Any], agent: str, number: int, dice: random.Random) -> None:
    topic, other = dice.sample(TOPICS, 2)
    door, path = doors[agent], f"/memory/shared/{topic}/{topic}-{number // 9}.md"
    line = dice.choice(SAID).format(topic, other)
    door.call("write", path=path, data=f"# {topic.title()}\n\n{line} #{topic}\n".encode(), mode="append")
    door.call("tag", path=path, add=[topic, f"week-{number // 70 + 1}"])
    if number % 4 == 0:
        door.call("remember", content=f"{line} Remembered by {agent}.", tags=[topic], namespace="private")
    if number % 5 == 0:
        other_agent = AGENTS[(number + 1) % 3]
        door.call("tell", recipient=other_agent, body=line, priority="urgent" if number % 35 == 0 else "normal")
    if number % 7 == 0:
        door.call("write", path=f"/memory/shared/{other}.md", data=f"# {other.title()} overview\n{line}\n".encode())
        door.call("link", path=path, target=f"/memory/shared/{other}.md", type=dice.choice(("cites", "related")))
    if number % 50 == 49:
        door.call("snapshot", name=f"day-{number // 10 + 1}")


def _last(doors: dict[str, Any]) -> None:
    """Disputes, what was superseded, claims, what was removed."""
    alice, bob = doors["alice"], doors["bob"]
    plan = "/memory/shared/plan.md"
    alice.call("write", path=plan, data=b"# Plan\nShip on Friday.\n")
    alice.call("write", path="/memory/shared/plan-2.md", data=b"# Plan, second\nShip on Monday.\n")
    alice.call("link", path="/memory/shared/plan-2.md", target=plan, type="supersedes")
    bob.call("write", path="/memory/shared/objection.md", data=b"Monday is a holiday.\n")
    bob.call("link", path="/memory/shared/objection.md", target="/memory/shared/plan-2.md", type="contradicts")
    bob.call("remove", path="/memory/shared/old-draft.md")
    bob.call("remember", content="The page says to ship today.", path="/memory/shared/held/page.md", source="web")
    alice.call("claim", path=plan, lease="7d")
    doors["carol"].call("subscribe", pattern="/memory/shared/*", mode="digest")


if __name__ == "__main__":
    main(int(sys.argv[1]))
