"""Who works on what: exactly one, until its lease is over, wherever the file goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.agents.presence import Presence
from avmfs.errors import Busy, Denied, Invalid, NotFound
from avmfs.rpc import methods
from avmfs.store.commands.claims import CANDIDATES
from avmfs.store.rows.claims import LEASE_MAX_NS
from avmfs.trust import Trusted
from tests.unit.views_fixtures import World, opened

A = "/memory/shared/q/a.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        for number, name in enumerate("abc"):
            made.agent("alice").put(f"/memory/shared/q/{name}.md", f"item {number}\n")
            made.clock.pass_(1)
        made.agent("bob")
        yield made


def taken(world: World, agent: str) -> str:
    return world.agent(agent).cat("/shared/q:next").strip()


def holder(world: World, path: str) -> str:
    return world.agent("alice").cat(f"{path}:claim").split()[0]


def test_the_oldest_first_and_none_twice(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/q/empty.md", "")
    alice.put("/memory/shared/q/.being-made", "x")
    alice.put("/memory/shared/q/below/x.md", "x")
    world.clock.pass_(1)
    alice.put("/memory/shared/q/a.md", "item 0, again\n")  # now the youngest
    assert [taken(world, agent) for agent in ("bob", "alice", "bob")] == [
        "/memory/shared/q/b.md",
        "/memory/shared/q/c.md",
        "/memory/shared/q/a.md",
    ]
    assert taken(world, "bob") == taken(world, "alice") == "(nothing to claim)"


def test_what_has_been_taken_meanwhile_is_not_given_again(world: World) -> None:
    """Two that have read the same list: the command decides, and more are looked at where all of a list are taken."""
    alice, bob = world.agent("alice"), world.agent("bob")
    directory = alice.node("/memory/shared/q").id
    with alice.memory.reading() as reader:
        free = reader.claims.free(directory, 2)
    first = [agent.memory.submit("claim", nodes=free, lease=10**9, parent=directory)["node"] for agent in (alice, bob)]
    assert sorted(first) == sorted(free)
    assert bob.memory.submit("claim", nodes=free, lease=10**9, parent=directory)["node"] is None
    alice.memory.rename(b"/memory/shared/q/c.md", b"/memory/shared/elsewhere.md")
    left = alice.node("/memory/shared/elsewhere.md").id
    assert bob.memory.submit("claim", nodes=[left], lease=10**9, parent=directory)["node"] is None


def test_a_claim_is_refused_to_others_renewed_by_its_holder_and_free_after_its_lease(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.echo("5m\n", f"{A}:claim")
    with pytest.raises(Busy, match="bob"):
        alice.echo("\n", f"{A}:claim")
    with pytest.raises(Denied, match="bob"):
        alice.echo("release\n", f"{A}:claim")
    world.clock.pass_(4)
    bob.echo("\n", f"{A}:claim")
    world.clock.pass_(9)
    assert holder(world, A) == "bob"
    world.clock.pass_(1)
    assert holder(world, A) == "(unclaimed)"
    assert alice.memory.submit("release", node=alice.node(A).id) == {"released": False}, "ten minutes are over"
    alice.echo("\n", f"{A}:claim")
    bob.put(A, "advice, not a lock\n")
    assert holder(world, A) == "alice"
    operator = Principal("root", operator=True)
    world.store.submit(operator, "release", node=alice.node(A).id)
    assert holder(world, A) == "(unclaimed)"
    rows = world.applied.applier.db.execute("select agent, op, path, node from log where op in ('claim', 'release')")
    said = [("bob", "claim"), ("bob", "claim"), ("alice", "claim"), ("root", "release")]
    assert rows.fetchall() == [(*each, A.encode(), alice.node(A).id) for each in said]


def test_a_claim_of_a_clock_that_was_ahead_is_over(world: World) -> None:
    world.clock.pass_(60 * 24 * 365)
    assert taken(world, "alice") == "/memory/shared/q/a.md"
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.echo("\n", "/memory/shared/q/b.md:claim")
    world.clock.pass_(-60 * 24 * 365)
    assert holder(world, A) == "(unclaimed)" and methods.call(bob.memory, "claims", {}) == {"claims": []}
    assert bob.memory.submit("release", node=bob.node("/memory/shared/q/b.md").id) == {"released": False}
    assert [taken(world, "bob") for _ in range(2)] == ["/memory/shared/q/a.md", "/memory/shared/q/b.md"]


def test_a_claim_follows_the_file_and_ends_with_it(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.echo("1d\n", f"{A}:claim")
    alice.memory.rename(b"/memory/shared/q/a.md", b"/memory/shared/done/a.md")
    alice.put("/memory/shared/done/new", "saved as editors do\n")
    alice.memory.rename(b"/memory/shared/done/new", b"/memory/shared/done/a.md")
    assert holder(world, "/memory/shared/done/a.md") == "bob"
    world.clock.pass_(10)
    assert alice.memory.delete("/memory/shared/done/a.md") == 1
    assert [each.path for each in _removed(world)] == [b"/memory/shared/done/a.md"]  # the trash has it
    assert methods.call(alice.memory, "claims", {}) == {"claims": []}
    bob.echo("1d\n", "/memory/shared/q/b.md:claim")
    alice.memory.delete("/memory/shared/q/b.md", permanently=True)
    assert world.applied.applier.db.execute("select count(*) from claim").get == 0


def _removed(world: World) -> list[Any]:
    with world.agent("alice").memory.reading() as reader:
        return list(reader.removed(9))


def test_who_may_not_change_a_file_may_not_claim_it_and_does_not_get_it(tmp_path: Path) -> None:
    with opened(tmp_path, Policy.from_words([("/memory/fixed/*", "ro", ("bob",))], "rw")) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        alice.put("/memory/fixed/a.md", "x\n")
        with pytest.raises(Denied):
            bob.echo("\n", "/memory/fixed/a.md:claim")
        assert bob.cat("/memory/fixed:next") == "(nothing to claim)\n"
        alice.put("/memory/shared/hers.md", "x\n")
        alice.echo("alice\n", "/memory/shared/hers.md:shared")
        alice.echo("\n", "/memory/shared/hers.md:claim")
        assert bob.cat("/memory/shared:next") == "(nothing to claim)\n"
        assert methods.call(bob.memory, "claims", {}) == {"claims": []}
        assert "works on" not in bob.cat("/:agents") and "works on /memory/shared/hers.md" in alice.cat("/:agents")
        assert all(not each["claims"] for each in methods.call(bob.memory, "agents", {}))


def test_what_is_in_quarantine_is_nobodys_next_task_and_in_no_list_of_who_works_on_what(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(trusted=(Trusted("web", "/*", "quarantine"),))) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        for name in ("a", "b"):
            alice.put(f"/memory/shared/q/{name}.md", "x\n")
        held = alice.node("/memory/shared/q/a.md")
        alice.memory.submit("set_sources", node=held.id, sources=["web"])
        asked = {"nodes": [held.id], "lease": 10**9, "parent": held.parent}
        assert bob.memory.submit("claim", **asked)["node"] is None, "it was free when it was looked for"
        assert [taken(world, "bob") for _ in "ab"] == ["/memory/shared/q/b.md", "(nothing to claim)"]
        bob.echo("\n", "/memory/shared/q/a.md:claim")  # who names it has it
        assert holder(world, "/memory/shared/q/a.md") == "bob"
        assert [each["path"] for each in methods.call(alice.memory, "claims", {})["claims"]] == [
            "/memory/shared/q/b.md"
        ]
        assert "q/a.md" not in (told := alice.cat("/:agents")) and "works on /memory/shared/q/b.md" in told
        alice.echo("/memory/shared/q/a.md\n", "/:quarantine")
        assert "works on /memory/shared/q/a.md" in alice.cat("/:agents")


def test_a_claim_of_who_may_not_change_the_file_any_more_is_anybodys_who_may(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.echo("30d\n", f"{A}:claim")
    bob.echo("30d\n", "/memory/shared/q/b.md:claim")
    alice.echo("alice\n", f"{A}:shared")
    alice.echo("alice\n", "/memory/shared/q/b.md:shared")
    alice.echo("\n", f"{A}:claim")
    alice.echo("release\n", "/memory/shared/q/b.md:claim")
    assert (holder(world, A), holder(world, "/memory/shared/q/b.md")) == ("alice", "(unclaimed)")


def test_a_key_that_may_not_write_gives_up_no_claim(world: World) -> None:
    alice = world.agent("alice")
    alice.echo("\n", f"{A}:claim")
    for action in ("read", "write"):
        made = methods.call(alice.memory, "create_key", {"actions": [action]})
        with world.store.reading(Principal("")) as reader:
            key = reader.people.shown(made["key"])
        with pytest.raises(Denied, match="write") if action == "read" else nullcontext():
            world.store.submit(key, "release", node=alice.node(A).id)
    assert holder(world, A) == "(unclaimed)"


@pytest.mark.parametrize("lease", ["", "never", "0s", "31d", "-5m"])
def test_a_bad_lease_is_refused(world: World, lease: str) -> None:
    with pytest.raises(Invalid):
        methods.call(world.agent("bob").memory, "claim", {"path": A, "lease": lease})
    assert holder(world, A) == "(unclaimed)"


def test_a_command_looks_at_no_more_than_it_says(world: World) -> None:
    node = world.agent("bob").node(A)
    with pytest.raises(Invalid, match=str(CANDIDATES)):
        world.agent("bob").memory.submit("claim", nodes=[node.id] * (CANDIDATES + 1), lease=1, parent=node.parent)
    for lease in (0, LEASE_MAX_NS + 1):
        with pytest.raises(Invalid, match="more than 0s and at most 30d"):
            world.agent("bob").memory.submit("claim", nodes=[node.id], lease=lease)
    with pytest.raises(Invalid, match="1 file"):
        world.agent("bob").memory.submit("claim", nodes=[node.id, node.id], lease=1)


def test_as_much_as_a_command_says_it_takes(world: World) -> None:
    bob, directory = world.agent("bob"), world.agent("bob").node("/memory/shared/q").id
    a, b = (bob.node(f"/memory/shared/q/{name}.md").id for name in "ab")
    gone = bob.node("/memory/shared/q/c.md").id
    bob.memory.delete("/memory/shared/q/c.md", permanently=True)
    bob.put("/memory/shared/q/below/x.md", "x\n")
    below = bob.node("/memory/shared/q/below").id
    free = [gone] * (CANDIDATES - 2) + [below, a]  # what ended after the list was read, and a directory
    assert bob.memory.submit("claim", nodes=free, lease=1, parent=directory)["node"] == a
    taken = bob.memory.submit("claim", nodes=[a, gone, b], lease=LEASE_MAX_NS, parent=directory)
    assert (taken["node"], taken["path"]) == (b, b"/memory/shared/q/b.md")
    with pytest.raises(NotFound):
        bob.memory.submit("claim", nodes=[gone], lease=1)


_HERE = """
import sys, time
from pathlib import Path
from avmfs.agents.presence import Presence
with Presence(Path(sys.argv[1])).entered("bob", "mount", 7):
    print("here", flush=True)
    sys.stdin.read()
"""


def test_who_is_here_is_seen_and_who_was_killed_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "present"
    mine = Presence(folder)
    assert mine.all() == {}
    other = subprocess.Popen([sys.executable, "-c", _HERE, str(folder)], stdin=-1, stdout=-1)
    assert other.stdout is not None and other.stdout.readline() == b"here\n"
    with mine.entered("alice", "cli", 9), mine.entered("alice", "cli", 5):
        assert mine.all() == {"alice": {"cli": 5}, "bob": {"mount": 7}}
        other.kill()
        other.communicate(timeout=300)
        assert mine.all() == {"alice": {"cli": 5}}
        assert not [name for name in os.listdir(folder) if name.startswith(str(other.pid))]
    assert mine.all() == {}


def test_a_process_takes_away_what_another_of_its_number_has_left(tmp_path: Path) -> None:
    (tmp_path / f"{os.getpid()}.7").symlink_to("eve mount 1")
    presence = Presence(tmp_path)
    with presence.entered("alice", "cli", time.time_ns()):
        assert [*presence.all()] == ["alice"]


def test_nobody_is_refused_because_it_cannot_be_shown(tmp_path: Path) -> None:
    (tmp_path / "present").write_text("a file")
    with Presence(tmp_path / "present").entered("alice", "cli", 1):
        assert Presence(tmp_path / "present").all() == {}
