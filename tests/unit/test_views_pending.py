"""What waits for an agent, and what agents do: :pending and :feed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs import calls
from avmfs.errors import Interrupted
from avmfs.rpc import documents, methods
from avmfs.store.commands import outbox as commands
from avmfs.store.queries.outbox import Notice, OutboxReader
from tests.unit.views_fixtures import World, given_up, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        for name in ("alice", "bob"):
            made.agent(name)
        yield made


def pending(world: World) -> list[str]:
    return world.agent("bob").cat("/:pending").splitlines()


def feed(world: World, query: str = "", where: str = "", agent: str = "bob") -> list[str]:
    """Without the times."""
    return [line.partition("  ")[2] or line for line in world.agent(agent).cat(f"{where}/:feed{query}").splitlines()]


def test_nothing_waits_for_who_has_seen_all(world: World) -> None:
    world.agent("alice").put("/shared/a.md", "one")
    assert pending(world) == ["(nothing waits)"], "he never looked at it"
    world.agent("bob").cat("/shared/a.md:delta")
    assert pending(world) == ["(nothing waits)"]


def test_a_file_waits_once_it_is_newer_than_what_was_read(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in ("a", "b"):
        alice.put(f"/shared/{name}.md", "one")
        bob.cat(f"/shared/{name}.md:delta")
    world.clock.pass_(5)
    alice.put("/shared/a.md", "two")
    world.clock.pass_(5)
    alice.put("/shared/b.md", "two")
    assert pending(world) == [
        f"{handle}  v1 -> v2  2026-03-07 {time}  alice  /memory/shared/{name}.md:delta"
        for name, time in (("b", "10:40"), ("a", "10:35"))
        for handle in [f"@{bob.handle(f'/shared/{name}.md')}"]
    ]
    assert len(pending(world)) == 2, "looking marks nothing"
    bob.cat("/shared/a.md:delta")
    assert len(pending(world)) == 1
    bob.echo("", "/shared/b.md:mark")
    assert pending(world) == ["(nothing waits)"]


def test_what_is_no_longer_to_be_seen_does_not_wait(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/limited.md", "one")
    alice.put("/shared/brief.md", "one")
    alice.put("/shared/gone.md", "one")
    for name in ("limited", "brief", "gone"):
        bob.cat(f"/shared/{name}.md:delta")
        alice.put(f"/shared/{name}.md", "two")
    assert len(pending(world)) == 3
    alice.echo("alice\n", "/shared/limited.md:shared")
    alice.echo("5m\n", "/shared/brief.md:ttl")
    alice.memory.delete("/shared/gone.md")
    world.clock.pass_(6)
    assert pending(world) == ["(nothing waits)"]


def test_unread_mail_waits_unless_its_priority_is_low(world: World) -> None:
    alice = world.agent("alice")
    alice.memory.tell("bob", "x", priority="low")
    assert pending(world) == ["(nothing waits)"]
    alice.memory.tell("bob", "x", priority="urgent")
    alice.memory.tell("bob", "x", expires="1h")
    assert pending(world) == ["2 unread messages (1 urgent): /:inbox"]
    world.clock.pass_(61)
    assert pending(world) == ["1 unread message (1 urgent): /:inbox"]


def test_of_a_marked_directory_what_others_changed_waits(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/d/a.md", "one")
    bob.echo("", "/shared/d/:mark")
    bob.put("/shared/d/own.md", "mine")
    alice.put("/private/x.md", "not his")
    assert pending(world) == ["(nothing waits)"]
    alice.put("/shared/d/a.md", "two")
    alice.put("/shared/d/b.md", "new")
    assert pending(world) == ["2 files changed by others since you marked it: /memory/shared/d/:delta"]


def test_notices_of_subscriptions_without_a_webhook_wait_as_subscriptions_says(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.memory.submit("subscribe", pattern="/memory/shared/*", mode="realtime", every=None, url=None)
    alice.put("/shared/a\n.md", "one")
    bob.put("/shared/own.md", "his")
    alice.put("/private/x.md", "not his")
    bob.memory.store.match_subscriptions(calls.go_on)
    bob.memory.submit("collect_notices")
    assert "-> :pending  2 unread" in bob.cat("/:subscriptions")
    assert pending(world) == [
        "2 notices of your subscriptions (mark read: echo > /:pending)",
        "  2026-03-07 10:30  alice  create  /memory/shared/a\\n.md",
        "  2026-03-07 10:30  alice  write  /memory/shared/a\\n.md v1",
    ]
    assert len(pending(world)) == 3, "looking marks nothing"
    assert alice.cat("/:pending") == "(nothing waits)\n"
    alice.echo("", "/:pending")
    assert len(pending(world)) == 3, "hers are not his"
    bob.echo("", "/:pending")
    assert pending(world) == ["(nothing waits)"] and "0 unread" in bob.cat("/:subscriptions")


def test_notices_of_what_has_gone_hide_none_that_came_later(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    methods.call(bob.memory, "subscribe", {"pattern": "/memory/shared/*"})
    for number in range(30):  # as editors save: the file of before goes, and what it did
        alice.put("/shared/plan.md.new", f"text {number}\n")
        methods.call(bob.memory, "pending", {})
        alice.memory.rename(b"/shared/plan.md.new", b"/shared/plan.md")
        methods.call(bob.memory, "pending", {})
    shown = [line.partition("alice  ")[2] for line in pending(world)]
    assert shown[-1] == "rename  /memory/shared/plan.md" and f"  {len(shown) - 1} unread" in bob.cat("/:subscriptions")
    assert methods.call(bob.memory, "notices", {})["text"].splitlines()[-1].endswith(shown[-1])
    bob.echo("", "/:pending")
    assert pending(world) == ["(nothing waits)"]
    assert world.dump("outbox") == {"outbox": []}, "what cannot be shown is read with the rest"


def test_what_is_marked_as_read_has_been_shown(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    methods.call(bob.memory, "subscribe", {"pattern": "/memory/shared/*"})
    for number in range(60):
        alice.put(f"/shared/{number}.md", "x")
    shown, told = methods.call(bob.memory, "pending", {})["text"].splitlines(), []
    while shown != ["(nothing waits)"]:
        told += shown
        bob.echo("", "/:pending")
        shown = pending(world)
    assert [line.rpartition("/")[2] for line in told if "write" in line] == [f"{number}.md v1" for number in range(60)]


def test_a_notice_that_comes_after_the_others_were_shown_is_not_marked_with_them(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    methods.call(bob.memory, "subscribe", {"pattern": "/memory/shared/*"})
    alice.put("/shared/shown.md", "x")
    bob.memory.store.match_subscriptions(calls.go_on)
    bob.memory.submit("collect_notices")
    assert [line.rpartition("/")[2] for line in pending(world)[1:]] == ["shown.md", "shown.md v1"]
    alice.put("/shared/later.md", "x")
    bob.memory.store.match_subscriptions(calls.go_on)
    bob.memory.submit("collect_notices")
    for _ in range(2):
        bob.echo("", "/:pending")
    assert [line.rpartition("/")[2] for line in pending(world)[1:]] == ["later.md", "later.md v1"]


def test_a_notice_that_comes_while_others_are_marked_is_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob, notices = world.agent("alice"), world.agent("bob"), OutboxReader.notices
    methods.call(bob.memory, "subscribe", {"pattern": "/memory/shared/*"})
    alice.put("/shared/shown.md", "x")
    methods.call(bob.memory, "pending", {})

    def another_comes(reader: OutboxReader, limit: int) -> list[Notice]:
        found = notices(reader, limit)
        monkeypatch.undo()
        alice.put("/shared/later.md", "x")
        methods.call(bob.memory, "pending", {})
        return found

    monkeypatch.setattr(OutboxReader, "notices", another_comes)
    bob.echo("", "/:pending")
    assert [line.rpartition("/")[2] for line in pending(world)[1:]] == ["later.md", "later.md v1"]


@pytest.mark.parametrize("text", [b"\n", b"read\n", b"read"])
def test_what_a_shell_writes_after_it_has_closed_a_copy_of_its_handle_marks_no_more(world: World, text: bytes) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    methods.call(bob.memory, "subscribe", {"pattern": "/memory/shared/*"})
    for number in range(75):
        alice.put(f"/shared/{number}.md", "x")
    methods.call(bob.memory, "pending", {})  # collects what has been matched
    assert pending(world)[0].startswith("at least 100 notices"), "of 150"
    handle = bob.to_write("/:pending")
    handle.flush()
    handle.write(0, text)
    handle.flush()
    assert pending(world)[0].startswith("50 notices")
    handle.write(0, b"\n")
    assert pending(world) == ["(nothing waits)"], "which is another write"


def test_who_asks_for_notices_gets_all_that_there_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "AT_A_TIME", 3)
    alice, bob = world.agent("alice"), world.agent("bob")
    for pattern in ("/memory/shared/*", "/memory/*"):
        methods.call(bob.memory, "subscribe", {"pattern": pattern})
    for method in ("notices", "pending"):
        for number in range(3):
            alice.put(f"/shared/{method}{number}.md", "x")
        assert len(methods.call(bob.memory, method, {})["notices"]) == 12
        bob.echo("", "/:pending")


def test_the_feed_tells_deeds_newest_first_and_folds_the_same_ones(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/a.md", "one")
    for text in ("two", "three"):
        bob.put("/shared/a.md", text)
    alice.echo("+risk\n", "/shared/a.md:tags")
    alice.memory.rename(b"/shared/a.md", b"/shared/b.md")
    bob.memory.delete("/shared/b.md")
    assert feed(world, where="/shared") == [
        "bob  removed  /memory/shared/b.md",
        "alice  moved  /memory/shared/b.md (from /memory/shared/a.md)",
        "alice  tagged  /memory/shared/a.md",
        "bob  wrote 2 times  /memory/shared/a.md",
        "alice  made  /memory/shared/a.md",
    ]
    assert {line.split()[0] for line in feed(world, "?agent=bob", "/shared")} == {"bob"}
    assert feed(world, "?limit=1", "/shared")[1:] == ["(older ones left out: limit=1)"]
    world.clock.pass_(60)
    assert world.agent("bob").cat("/:feed?minutes=30") == "(no activity)\n"


def test_a_feed_that_nobody_waits_for_ends(world: World) -> None:
    world.agent("alice").put("/shared/a.md", "one")
    for query in ("", "?agent=bob"):
        with given_up(), pytest.raises(Interrupted):
            feed(world, query)


@pytest.mark.parametrize("view", [":feed?agent=bob", ":changes", None])
def test_what_reads_the_log_ends_in_its_midst_once_nobody_waits(world: World, view: str | None) -> None:
    class Leaves(calls.Call):
        looks = 0

        def look(self) -> None:
            self.looks += 1
            if self.looks == 5:
                self.give_up()

    bob = world.agent("bob")
    for number in range(5):
        world.agent("alice").put(f"/shared/{number}.md", "one")
    calls.working.call = Leaves()
    try:
        with pytest.raises(Interrupted) as told:
            bob.cat(f"/shared/{view}") if view else methods.call(bob.memory, "audit", {})
    finally:
        calls.working.call = None
    world.agent("alice").put("/shared/new.md", "one")
    assert "new.md" in bob.cat("/shared/:changes"), f"{told} holds a snapshot"


def test_the_feed_tells_of_nothing_private(world: World) -> None:
    before = feed(world)
    alice = world.agent("alice")
    for number in range(300):
        alice.put(f"/private/{number % 7}.md", str(number))
    alice.memory.tell("alice", "note to self")
    assert feed(world) == before
    assert any("/memory/private/alice/3.md" in line for line in feed(world, agent="alice"))


def test_a_watcher_hears_of_mail_that_takes_the_place_of_other_mail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    drawn = iter((7, 5, 3))  # the newest below all others
    monkeypatch.setattr(secrets, "randbelow", lambda below: next(drawn))
    alice.memory.tell("bob", "one")
    alice.memory.tell("bob", "two")
    before = documents._unread(bob.memory)
    bob.memory.submit("mark_read", messages=[min(each.id for each in bob.memory.inbox(unread_only=True))])
    alice.memory.tell("bob", "three")
    assert len(bob.memory.inbox(unread_only=True)) == 2 and documents._unread(bob.memory) != before
