"""Subscriptions and their outbox: what is found for whom, when it is due, and what nobody may learn from it."""

from __future__ import annotations

import json
from typing import Any

import apsw
import pytest

from avmfs.access import Principal
from avmfs.errors import Denied, Invalid, NotFound, OverQuota
from avmfs.store.commands import fanout, outbox
from avmfs.store.commands.subscribing import PER_AGENT
from avmfs.store.identity import OPERATOR
from avmfs.store.queries import matching
from avmfs.store.rows import events
from avmfs.store.schema import database
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, CAROL, Mode, World, rows

URL = "https://example.com/hook"
MINUTE = 60 * 10**9


@pytest.fixture(params=["direct"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """The commands are the same where a daemon runs: one test below looks there, and tests/faults/test_outbox.py."""
    return request.param


def _limits_can_be_set(world: World) -> None:
    if world.log:
        pytest.skip("the writer is another process")


def subscribe(world: World, who: Principal, pattern: str, mode: str = "realtime", **more: Any) -> dict[str, Any]:
    return dict(world.do(who, "subscribe", **{"pattern": pattern, "mode": mode, "every": None, "url": URL, **more}))


def take(world: World, **more: Any) -> list[dict[str, Any]]:
    """All that is due now, after the log has been looked through."""
    world.store.match_subscriptions()
    asked = {"busy": [], "full": [], "limit": 16, "each": 100, **more}
    return list(world.do(OPERATOR, "outbox_take", **asked)["subscriptions"])


def told(taken: list[dict[str, Any]], agent: str | None = None) -> list[tuple[str, str]]:
    """(event, path) of everything in it, in order."""
    return [
        (event[2], event[3])
        for each in taken
        if agent in (None, each["agent"])
        for delivery in each["deliveries"]
        for event in delivery["events"]
    ]


def done(world: World, taken: list[dict[str, Any]], **more: Any) -> None:
    for each in taken:
        sent = [delivery["turn"] for delivery in each["deliveries"]]
        world.do(
            OPERATOR,
            "outbox_report",
            **{
                "subscription": each["id"],
                "sent": sent,
                "failed": None,
                "error": "",
                "dead": False,
                "retry_at": None,
                **more,
            },
        )


def notices(world: World, who: Principal) -> list[tuple[str, str]]:
    world.store.match_subscriptions()
    while world.do(who, "collect_notices")["more"]:
        pass
    with world.reading(who) as reader:
        return [(event.event, event.path) for each in reader.outbox.notices() for event in each.events]


# What is found


@pytest.mark.parametrize("mode", ["direct", "attached"], indirect=True)
def test_each_change_below_the_pattern_is_told_in_order_and_nothing_else(world: World) -> None:
    world.write(ALICE, "/memory/shared/before.md", b"x")
    subscribe(world, BOB, "/shared/*")
    world.write(ALICE, "/memory/shared/a.md", b"x")
    world.write(ALICE, "/memory/other.md", b"x")
    world.mkdir(ALICE, "/memory/shared/d")
    world.tag(ALICE, "/memory/shared/a.md", "t")
    world.rename(ALICE, "/memory/shared/a.md", "/memory/shared/d/b.md")
    world.rename(ALICE, "/memory/shared/before.md", "/memory/after.md")
    world.unlink(ALICE, "/memory/shared/d/b.md")
    assert told(take(world)) == [
        ("create", "/memory/shared/a.md"),
        ("write", "/memory/shared/a.md"),
        ("mkdir", "/memory/shared/d"),
        ("tags", "/memory/shared/a.md"),
        ("rename", "/memory/shared/d/b.md"),
        ("remove", "/memory/shared/before.md"),
        ("remove", "/memory/shared/d/b.md"),
    ]


@pytest.mark.parametrize("url", [URL, None])
def test_a_save_by_a_shell_is_told_once(world: World, url: str | None) -> None:
    """It closes a copy of the handle first, with the file emptied and nothing written yet."""
    world.write(ALICE, "/memory/a", b"1")
    world.write(ALICE, "/memory/b", b"1")
    subscribe(world, BOB, "/memory/*", url=url)
    for number in (2, 3):
        world.clock.advance(3600)
        world.edit(ALICE, "/memory/a", ["t", 0], handle=number)
        world.edit(ALICE, "/memory/b", ["t", 0], handle=number)
        world.edit(ALICE, "/memory/a", ["w", 0, b"saved"], handle=number)
        assert world.document(ALICE, "/memory/a").head == number
    found = notices(world, BOB) if url is None else told(take(world))
    assert found == [("write", "/memory/b"), ("write", "/memory/a")] * 2


def test_every_delivery_has_an_id_that_stays_until_it_is_made(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    for n in range(3):
        world.write(ALICE, f"/memory/{n}", b"x")
    first = take(world)
    ids = [delivery["message"] for delivery in first[0]["deliveries"]]
    assert len(set(ids)) == 6 and all(each.startswith("msg_") for each in ids)
    assert [delivery["message"] for delivery in take(world)[0]["deliveries"]] == ids  # as after a kill
    done(world, first)
    assert take(world) == []
    with world.reading(BOB) as reader:
        assert reader.outbox.subscriptions()[0].sent == 6


def test_a_store_without_subscriptions_keeps_no_outbox_and_later_ones_hear_of_later_changes_only(world: World) -> None:
    world.write(ALICE, "/memory/a", b"x")
    with world.reading(OPERATOR) as reader:
        assert not reader.outbox.behind()
    subscribe(world, BOB, "/memory/*")
    assert take(world) == []
    world.do(BOB, "unsubscribe", pattern="/memory/*")
    world.write(ALICE, "/memory/b", b"x")
    subscribe(world, BOB, "/memory/*")
    assert take(world) == []


def test_a_notice_is_not_of_what_its_reader_did_and_a_webhook_is(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    subscribe(world, BOB, "/memory/*", url=None)
    world.write(BOB, "/memory/mine", b"x")
    world.write(ALICE, "/memory/hers", b"x")
    assert ("write", "/memory/mine") in told(take(world)) and ("write", "/memory/hers") in told(take(world))
    assert notices(world, BOB) == [("create", "/memory/hers"), ("write", "/memory/hers")]


def test_mail_can_be_followed_by_its_receiver_only_and_only_by_name(world: World) -> None:
    for pattern in ("/tell/alice", "/tell/*", "/tell/alice*", "/tell"):
        with pytest.raises(Invalid):
            subscribe(world, BOB, pattern)
    subscribe(world, BOB, "/tell/me")
    subscribe(world, BOB, "/*", url="https://example.com/all")
    subscribe(world, ALICE, "/tell/alice", url=None)
    limits = {"expires": None, "body_limit": 1000, "unread_limit": 100}
    world.do(ALICE, "tell", recipient="bob", body="secret words", priority="urgent", **limits)
    world.do(BOB, "tell", recipient="alice", body="secret words", priority="low", **limits)
    assert told(take(world)) == [("tell", "/tell/bob")]
    assert notices(world, ALICE) == [("tell", "/tell/alice")]
    assert "secret words" not in str(rows(world.path, "select events from outbox"))


# Privacy


def test_what_a_subscriber_may_not_see_leaves_no_trace(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    subscribe(world, BOB, "/memory/*", url=None)
    world.write(ALICE, "/memory/a", b"x")
    with world.reading(BOB) as reader:
        before = reader.outbox.subscriptions()
    seen = told(take(world))
    with world.reading(BOB) as reader:
        one_alone = [reader.outbox.subscriptions(), len(reader.outbox.notices())]
    for n in range(20):
        world.write(ALICE, f"/memory/private/alice/{n}", b"x")
    assert told(take(world)) == seen
    with world.reading(BOB) as reader:
        assert [reader.outbox.subscriptions(), len(reader.outbox.notices())] == one_alone != [before, 0]
    world.write(ALICE, "/memory/z", b"x")
    assert told(take(world))[-1] == ("write", "/memory/z")


def test_visibility_is_judged_at_the_change(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/private/alice/n.md", b"while it was hers")
    world.rename(ALICE, "/memory/private/alice/n.md", "/memory/shared/n.md")
    world.write(ALICE, "/memory/shared/n.md", b"for all")
    assert told(take(world)) == [("create", "/memory/shared/n.md"), ("write", "/memory/shared/n.md")]


def test_a_subscription_hears_of_files_that_come_or_go_with_their_directory(world: World) -> None:
    subscribe(world, BOB, "/memory/*.md")
    subscribe(world, CAROL, "/memory/private/alice/*")
    for name in ("a.md", "s/b.md", "c.txt"):
        world.write(ALICE, f"/memory/private/alice/d/{name}", b"x")
    assert told(take(world)) == []
    world.rename(ALICE, "/memory/private/alice/d", "/memory/shared/d")
    taken = take(world)
    assert told(taken) == [("create", "/memory/shared/d/a.md"), ("create", "/memory/shared/d/s/b.md")]
    done(world, taken)
    world.rename(ALICE, "/memory/shared/d", "/memory/private/alice/d")
    assert told(take(world)) == [("remove", "/memory/shared/d/a.md"), ("remove", "/memory/shared/d/s/b.md")]


def test_visibility_is_judged_again_at_delivery(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    for name in ("moved", "limited", "expired", "gone", "there"):
        world.write(ALICE, f"/memory/shared/{name}", b"x")
    assert len(told(take(world))) == 10  # taken, and the receiver was not there
    world.rename(ALICE, "/memory/shared/moved", "/memory/private/alice/moved")
    world.share(ALICE, "/memory/shared/limited", "alice", "carol")
    node = world.node(ALICE, "/memory/shared/expired").id
    world.do(ALICE, "set_ttl", node=node, expires=world.clock() + MINUTE)
    world.share(ALICE, "/memory/shared/gone", "alice", "carol")
    world.unlink(ALICE, "/memory/shared/gone")
    world.clock.advance(120)
    left = told(take(world))
    writes = [path for event, path in left if event == "write"]
    assert writes == ["/memory/shared/there"]
    # What could be seen and has vanished from sight is told as removed, which a look would tell too.
    assert {path for event, path in left if event == "remove"} == {
        "/memory/shared/moved",
        "/memory/shared/limited",
        "/memory/shared/gone",
    }
    assert not any("private" in path for _, path in left)


def test_a_rule_that_hides_a_place_holds_for_what_already_waits(build: Any) -> None:
    world: World = build()
    subscribe(world, BOB, "/memory/*")
    subscribe(world, CAROL, "/memory/*")
    world.write(ALICE, "/memory/shared/plan.md", b"x")
    world.write(ALICE, "/memory/shared/gone.md", b"x")
    world.unlink(ALICE, "/memory/shared/gone.md")
    assert len(told(take(world))) == 10
    world.restart([("/memory/shared/*", "none", ("bob",)), ("/memory/*", "rw", None)])
    taken = take(world)
    assert told(taken, "bob") == [] and len(told(taken, "carol")) == 5


def test_notices_and_dead_letters_hide_what_may_not_be_seen_any_more(world: World) -> None:
    subscribe(world, BOB, "/memory/*", url=None)
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/shared/a", b"x")
    assert len(notices(world, BOB)) == 2
    taken = take(world)
    for delivery in taken[0]["deliveries"]:
        done(world, taken, sent=[], failed=delivery["turn"], error="no", dead=True)
    with world.reading(BOB) as reader:
        assert len(reader.outbox.dead()) == 2
    world.rename(ALICE, "/memory/shared/a", "/memory/private/alice/a")
    assert notices(world, BOB) == [("remove", "/memory/shared/a")]
    with world.reading(BOB) as reader:
        assert reader.outbox.dead() == []


@pytest.mark.parametrize("place", ["/memory/private/alice/secret", "/memory/shared/limited", "/memory/shared/hidden/x"])
def test_what_has_been_found_goes_with_the_right_to_its_place(build: Any, place: str) -> None:
    def can(*capabilities: str) -> None:
        world.do(OPERATOR, "init_permissions", users={"bob": {"groups": [], "capabilities": ["write", *capabilities]}})

    world: World = build()
    can("search_all")
    world.mkdir(ALICE, "/memory/shared/hidden")
    subscribe(world, BOB, "/memory/*", url=None)
    subscribe(world, BOB, "/memory/*")
    subscribe(world, BOB, place)
    world.write(ALICE, place, b"x")
    world.write(ALICE, place + ".moved", b"x")
    if place == "/memory/shared/limited":
        world.share(ALICE, place, "alice")
    world.unlink(ALICE, place)
    assert {place, place + ".moved"} <= {path for _, path in notices(world, BOB)}
    taken = take(world)
    for delivery in taken[0]["deliveries"]:
        done(world, taken[:1], sent=[], failed=delivery["turn"], error="no", dead=True)
    world.rename(ALICE, place + ".moved", "/memory/open")
    can()
    if place == "/memory/shared/hidden/x":
        world.restart([("/memory/shared/hidden/*", "none", ("bob",)), ("/memory/*", "rw", None)])
    with world.reading(BOB) as reader:
        ready = [each.events for each in reader.outbox.notices()] + [each.events for each in reader.outbox.dead()]
        assert reader.outbox.subscriptions()[0].unread == len(reader.outbox.notices())
    left = {(event.event, event.path) for events in ready for event in events} | {*told(take(world))}
    left -= {("remove", "/memory/shared/limited")}  # when it was limited, it went for everybody else
    assert {path for _, path in left} <= {"/memory/shared/limited.moved", "/memory/open"}, left


def test_an_operators_subscription_sees_with_its_agents_eyes(world: World) -> None:
    subscribe(world, Principal("bob", operator=True), "/memory/*")
    world.write(ALICE, "/memory/private/alice/n", b"x")
    assert take(world) == []


def test_an_agent_touches_only_its_own_and_the_outbox_only_the_operator(world: World) -> None:
    subscribe(world, ALICE, "/memory/*")
    subscribe(world, ALICE, "/memory/*", url=None)
    world.write(BOB, "/memory/a", b"x")
    taken = take(world)
    done(world, taken, sent=[], failed=taken[0]["deliveries"][0]["turn"], dead=True)
    with world.reading(ALICE) as reader:
        dead = [letter.message for letter in reader.outbox.dead()]
    assert len(dead) == 1 and len(notices(world, ALICE)) == 2
    unread = [row[0] for row in rows(world.path, "select message from outbox where state = 3")]
    with world.reading(BOB) as reader:
        assert (reader.outbox.subscriptions(), reader.outbox.dead(), reader.outbox.notices()) == ([], [], [])
        for question in (lambda: reader.outbox.subscriptions(everybody=True), reader.outbox.figures):
            with pytest.raises(Denied):
                question()
    with pytest.raises(NotFound):
        world.do(BOB, "unsubscribe", pattern="/memory/*")
    assert world.do(BOB, "redeliver", messages=dead) == {"count": 0}
    assert world.do(BOB, "forget_notices", messages=unread) == {"count": 0}
    for command, arguments in (
        ("outbox_fill", {"after": 0, "upto": 1, "events": "[]", "found": []}),
        ("outbox_take", {"busy": [], "full": [], "limit": 1, "each": 1}),
        ("outbox_tidy", {}),
        ("set_hooks", {"hooks": []}),
        ("outbox_report", {"subscription": 1, "sent": [], "failed": None, "error": "", "dead": False, "retry_at": 0}),
    ):
        with pytest.raises(Denied):
            world.do(BOB, command, **arguments)
    assert world.do(ALICE, "forget_notices", messages=unread) == {"count": 2}
    assert notices(world, ALICE) == []


# Modes


def test_throttled_tells_the_last_state_of_a_path_once_in_its_time(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "throttled", every=MINUTE)
    for text in (b"1", b"2", b"3"):
        world.write(ALICE, "/memory/a", text)
    world.write(ALICE, "/memory/b", b"1")
    first = take(world)
    assert [(event[3], event[5]) for each in first[0]["deliveries"] for event in each["events"]] == [
        ("/memory/a", world.document(ALICE, "/memory/a").head),
        ("/memory/b", 1),
    ]
    done(world, first)
    world.clock.advance(5)
    world.write(ALICE, "/memory/a", b"4")
    world.write(ALICE, "/memory/c", b"1")
    second = take(world)
    assert told(second) == [("write", "/memory/c")]
    done(world, second)
    world.clock.advance(30)
    world.write(ALICE, "/memory/a", b"5")
    assert take(world) == []
    world.clock.advance(26)
    third = take(world)
    assert told(third) == [("write", "/memory/a")]
    assert third[0]["deliveries"][0]["events"][0][5] == world.document(ALICE, "/memory/a").head


def last_states(world: World) -> dict[str, str]:
    """What a receiver that keeps the last event of each path has in the end."""
    states: dict[str, str] = {}
    for _ in range(2):
        taken = take(world)
        states |= {path: event for event, path in told(taken)}
        done(world, taken)
        world.clock.advance(61)
    return states


@pytest.mark.parametrize("how", ["throttled", "digest"])
def test_the_last_state_of_a_path_whose_file_has_another_name_is_that_it_is_gone(world: World, how: str) -> None:
    subscribe(world, BOB, "/memory/*", how, every=MINUTE)
    world.write(ALICE, "/memory/a", b"1")
    world.mkdir(ALICE, "/memory/d")
    world.write(ALICE, "/memory/d/x", b"1")
    done(world, take(world))
    world.clock.advance(5)
    world.write(ALICE, "/memory/a", b"2")
    world.write(ALICE, "/memory/d/x", b"2")
    done(world, take(world))
    world.rename(ALICE, "/memory/a", "/memory/b")
    world.rename(ALICE, "/memory/d", "/memory/e")
    states = last_states(world)
    assert (states["/memory/a"], states["/memory/b"]) == ("remove", "rename")
    assert (states["/memory/d"], states["/memory/e"]) == ("remove", "rename")
    assert states["/memory/d/x"] == "write", "that it changed is told by nothing else"
    world.write(ALICE, "/memory/b.tmp", b"3")  # as editors save
    world.rename(ALICE, "/memory/b.tmp", "/memory/b")
    states = last_states(world)
    assert (states["/memory/b"], states["/memory/b.tmp"]) == ("rename", "remove")


@pytest.mark.parametrize("how", ["throttled", "digest"])
def test_a_change_is_told_whatever_its_file_is_called_by_then(world: World, how: str) -> None:
    subscribe(world, BOB, "/memory/*", how, url=None, every=MINUTE)
    subscribe(world, CAROL, "/memory/*", how, every=MINUTE)
    world.write(ALICE, "/memory/n", b"1")
    world.store.match_subscriptions()
    world.clock.advance(61)
    first = take(world)
    done(world, first, sent=[], failed=first[0]["deliveries"][0]["turn"], error="down", retry_at=world.clock() + MINUTE)
    world.mkdir(BOB, "/memory/done")
    world.rename(BOB, "/memory/n", "/memory/done/n")
    assert notices(world, BOB) == [("write", "/memory/n")]  # its own rename is no news to it
    world.clock.advance(61)
    assert take(world)[0]["deliveries"][0]["events"] == first[0]["deliveries"][0]["events"]


def test_a_name_that_is_no_text_holds_nothing_up(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "throttled", every=MINUTE)
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE, url=None)
    world.write(ALICE, "/memory/\udcff\udcfe.md", b"x")
    assert told(take(world)) == [("write", "/memory/\udcff\udcfe.md")]
    world.clock.advance(61)
    assert notices(world, BOB) == [("create", "/memory/\udcff\udcfe.md"), ("write", "/memory/\udcff\udcfe.md")]


def test_batched_tells_what_came_together_as_one(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
    world.write(ALICE, "/memory/a", b"1")
    assert take(world) == []
    world.clock.advance(30)
    world.write(ALICE, "/memory/b", b"1")
    assert take(world) == []
    world.clock.advance(31)
    taken = take(world)
    assert len(taken[0]["deliveries"]) == 1
    assert [path for event, path in told(taken) if event == "write"] == ["/memory/a", "/memory/b"]
    world.write(ALICE, "/memory/c", b"1")  # what has left once is closed
    again = take(world)
    assert told(again) == told(taken)
    done(world, again)
    world.clock.advance(61)
    assert ("write", "/memory/c") in told(take(world)) and len(told(take(world))) == 2


def test_a_batch_that_is_full_leaves_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
    for n in range(fanout.BATCH_EVENTS // 2 + 2):
        world.write(ALICE, f"/memory/{n}", b"x")
    taken = take(world)
    assert [len(each["events"]) for each in taken[0]["deliveries"]] == [fanout.BATCH_EVENTS]
    done(world, taken)
    world.clock.advance(61)
    assert len(told(take(world))) == 4


def test_a_digest_sums_up_each_path(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "digest", every=60 * MINUTE)
    for text in (b"1", b"2", b"3"):
        world.write(ALICE, "/memory/a", text)
        assert take(world) == []
    world.clock.advance(3601)
    ((event,),) = [each["events"] for each in take(world)[0]["deliveries"]]
    assert (event[2], event[3], event[8]) == ("write", "/memory/a", 4)  # made, and written three times


@pytest.mark.parametrize("then", ["digest", "realtime"])
def test_a_long_digest_is_gathered_in_pieces_and_is_one(
    world: World, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "PIECE_EVENTS", 4)
    monkeypatch.setattr(fanout, "PIECES_EVENTS", 20)
    subscribe(world, BOB, "/memory/*", "digest", every=60 * MINUTE)
    for n in range(40):
        world.write(ALICE, f"/memory/{n % 15}", b"%d" % n)
        assert take(world) == []
        with world.reading(OPERATOR) as reader:
            figures = reader.outbox.figures()
        assert (figures.waiting, figures.dead) == (1, 0)
    if then != "digest":
        subscribe(world, BOB, "/memory/*", then)
    world.clock.advance(3601)
    (delivery,) = take(world)[0]["deliveries"]
    counts = {event[3]: event[8] for event in delivery["events"]}
    assert counts == {f"/memory/{n}": 1 + len(range(n, 40, 15)) for n in range(15)}
    assert world.rows("select count(*) from outbox where state = 4") == [(0,)]


@pytest.mark.parametrize("then", ["realtime", "throttled", "batched", "digest"])
@pytest.mark.parametrize("first", ["throttled", "batched", "digest"])
def test_a_change_of_mode_loses_nothing_that_waits(
    world: World, first: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "PIECE_EVENTS", 4)
    monkeypatch.setattr(fanout, "BATCH_EVENTS", 8)
    subscribe(world, BOB, "/memory/*", first, every=60 * MINUTE)
    for n in range(6):
        world.write(ALICE, f"/memory/{n}", b"x")
        world.store.match_subscriptions()
    subscribe(world, BOB, "/memory/*", then, every=0 if then == "realtime" else MINUTE)
    for n in range(6, 9):
        world.write(ALICE, f"/memory/{n}", b"x")
    found: list[tuple[str, str]] = []
    for _ in range(3):
        taken = take(world)
        found += told(taken)
        done(world, taken)
        world.clock.advance(3601)
    assert {path for _, path in found} == {f"/memory/{n}" for n in range(9)}
    assert [event for event in found if event[0] == "write"] == [("write", f"/memory/{n}") for n in range(9)]
    assert world.rows("select * from outbox") == []


@pytest.mark.parametrize("by", ["a purge", "a purge of before"])
def test_pieces_whose_digest_has_gone_are_told(world: World, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "PIECE_EVENTS", 2)
    subscribe(world, BOB, "/memory/*", "digest", every=60 * MINUTE)
    for n in range(6):
        world.write(ALICE, f"/memory/{n}", b"x")
        world.store.match_subscriptions()
    if by == "a purge":
        world.do(ALICE, "purge", nodes=[world.node(ALICE, f"/memory/{n}").id for n in range(2)], documents=[])
    else:
        db = connect(world.path)
        database.run(db, "delete from outbox where state = 0")
        db.close()
        subscribe(world, BOB, "/memory/*", "batched")
    world.clock.advance(3601)
    assert told(take(world)) == [("write", f"/memory/{n}") for n in range(2, 6)]


def test_what_comes_to_a_long_digest_does_not_have_all_of_it_written_anew(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "digest", every=60 * MINUTE)
    items = [[[b"memory", b"%05d" % n], b"x"] for n in range(2000)]
    world.do(ALICE, "write_many", items=items)
    assert take(world) == []
    before = world.rows("select turn, events from outbox order by turn")
    world.write(ALICE, "/memory/one-more", b"x")
    assert take(world) == []
    after = dict(world.rows("select turn, events from outbox order by turn"))
    untouched = sum(len(events) for turn, events in before if after.get(turn) == events)
    assert untouched > 0.8 * sum(len(events) for _, events in before)


def test_a_clock_that_jumps_back_holds_nothing_up(world: World) -> None:
    world.clock.advance(2 * 86400)
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
    world.write(ALICE, "/memory/a", b"1")
    assert take(world) == []
    world.clock.advance(-86400)
    assert len(told(take(world))) == 2


# Failing


def test_deliveries_of_one_subscription_wait_for_the_first_and_others_do_not(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    subscribe(world, CAROL, "/memory/*")
    for n in range(3):
        world.write(ALICE, f"/memory/{n}", b"x")
    taken = {each["agent"]: each for each in take(world)}
    turns = [delivery["turn"] for delivery in taken["bob"]["deliveries"]]
    later = world.clock() + MINUTE
    done(world, [taken["bob"]], sent=turns[:2], failed=turns[2], error="down", retry_at=later)
    assert [each["agent"] for each in take(world)] == ["carol"]
    with world.reading(BOB) as reader:
        (mine,) = reader.outbox.subscriptions()
        assert (mine.sent, mine.waiting, mine.error, mine.retry_at) == (2, 4, "down", later)
    world.clock.advance(61)
    again = {each["agent"]: each for each in take(world)}["bob"]
    assert [each["turn"] for each in again["deliveries"]] == turns[2:3], "one try finds out whether it is back"
    assert again["failures"] == 1 and again["deliveries"][0]["attempts"] == 1
    done(world, [again])
    assert [each["turn"] for each in {each["agent"]: each for each in take(world)}["bob"]["deliveries"]] == turns[3:]


def test_no_batch_that_fills_up_overtakes_one_that_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(fanout, "BATCH_EVENTS", 4)
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
    world.write(ALICE, "/memory/0", b"x")
    assert take(world) == []
    world.clock.advance(61)
    (first,) = take(world)[0]["deliveries"]
    done(world, take(world), sent=[], failed=first["turn"], error="down", retry_at=world.clock() + MINUTE)
    for names in ((1, 2, 3), (4,)):  # a batch that is full from the beginning, and one that fills up later
        for name in names:
            world.write(ALICE, f"/memory/{name}", b"x")
        assert take(world) == []
    world.clock.advance(61)
    found: list[tuple[str, str]] = []
    while taken := take(world):
        found += told(taken)
        done(world, taken)
    assert [path for event, path in found if event == "write"] == [f"/memory/{n}" for n in range(5)]


def test_a_dead_letter_is_delivered_anew_under_its_id(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/a", b"x")
    taken = take(world)
    first = taken[0]["deliveries"][0]
    done(world, taken, sent=[], failed=first["turn"], error="answered 500", dead=True)
    with world.reading(BOB) as reader:
        (letter,) = reader.outbox.dead()
    assert (letter.message, letter.error, letter.attempts) == (first["message"], "answered 500", 1)
    assert first["message"] not in [each["message"] for each in take(world)[0]["deliveries"]]
    assert world.do(BOB, "redeliver", messages=["msg_other"]) == {"count": 0}
    assert world.do(BOB, "redeliver", messages=[first["message"]]) == {"count": 1}
    back = take(world)[0]["deliveries"][0]
    assert (back["message"], back["attempts"], back["events"]) == (first["message"], 0, first["events"])


def test_a_queue_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(fanout, "QUEUED", 5)
    subscribe(world, BOB, "/memory/*")
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    assert len(told(take(world))) == 5
    with world.reading(BOB) as reader:
        assert len(reader.outbox.dead()) == 3


def test_what_waits_for_one_agent_has_an_end_however_many_subscriptions_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(fanout, "OF_AN_AGENT", 5)
    for n in range(3):
        subscribe(world, BOB, "/memory/*", url=f"{URL}/{n}")
    subscribe(world, CAROL, "/memory/*")
    for n in range(4):
        world.write(ALICE, "/memory/a", b"%d" % n)
    world.store.match_subscriptions()
    waiting = rows(
        world.path,
        "select agent, count(*) from outbox join subscription on subscription.id = subscription"
        " where state in (0, 1) group by agent order by agent",
    )
    assert waiting == [("bob", 5), ("carol", 5)]


def test_of_what_nobody_reads_the_newest_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(outbox, "NOTICES", 3)
    monkeypatch.setattr(outbox, "LETTERS", 2)
    subscribe(world, BOB, "/memory/*", url=None)
    subscribe(world, BOB, "/memory/*")
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
        notices(world, BOB)
    assert notices(world, BOB) == [("write", "/memory/2"), ("create", "/memory/3"), ("write", "/memory/3")]
    taken = take(world)
    for delivery in taken[0]["deliveries"]:
        done(world, taken, sent=[], failed=delivery["turn"], dead=True)
    with world.reading(BOB) as reader:
        assert [letter.message for letter in reader.outbox.dead()] == [
            delivery["message"] for delivery in taken[0]["deliveries"][-2:]
        ]


def test_notices_that_cannot_be_shown_any_more_take_no_others_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(outbox, "NOTICES", 6)
    subscribe(world, BOB, "/memory/*", url=None)
    world.write(ALICE, "/memory/a", b"x")
    for _ in range(3):
        world.write(ALICE, "/memory/b", b"x")
        notices(world, BOB)
        world.unlink(ALICE, "/memory/b")
        notices(world, BOB)
    assert notices(world, BOB) == [
        ("create", "/memory/a"),
        ("write", "/memory/a"),
        *[("remove", "/memory/b")] * 3,
    ]
    with world.reading(BOB) as reader:
        assert [each.unread for each in reader.outbox.subscriptions()] == [5]


def test_dead_letters_that_may_not_be_seen_hide_no_others(world: World) -> None:
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
    for name in ("a", "b"):
        world.write(ALICE, f"/memory/{name}", b"x")
        assert take(world) == []
        world.clock.advance(61)
        taken = take(world)
        done(world, taken, sent=[], failed=taken[0]["deliveries"][0]["turn"], dead=True)
    world.share(ALICE, "/memory/a", "alice", "carol")
    with world.reading(BOB) as reader:
        (letter,) = reader.outbox.dead(1)
    assert {event.path for event in letter.events} == {"/memory/b"}


def test_tidying_drops_old_dead_letters_and_no_notices(world: World) -> None:
    subscribe(world, BOB, "/memory/*", url=None)
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/a", b"x")
    taken = take(world)
    done(world, taken, sent=[], failed=taken[0]["deliveries"][0]["turn"], dead=True)
    world.do(OPERATOR, "outbox_tidy")
    with world.reading(BOB) as reader:
        assert len(reader.outbox.dead()) == 1 and len(reader.outbox.notices()) == 2
    world.clock.advance(31 * 86400)
    world.do(OPERATOR, "outbox_tidy")
    with world.reading(BOB) as reader:
        assert reader.outbox.dead() == [] and len(reader.outbox.notices()) == 2


# Making and ending


def test_a_secret_is_shown_once_and_asking_again_changes_the_mode(world: World) -> None:
    made = subscribe(world, BOB, "/shared/*")
    assert made["secret"].startswith("whsec_") and made["new"]
    again = subscribe(world, BOB, "/shared/*", "throttled", every=MINUTE)
    assert again == {"number": made["number"], "secret": None, "new": False, "every": MINUTE}
    assert subscribe(world, BOB, "/shared/*", url="https://example.com/2")["secret"] not in (None, made["secret"])
    assert world.do(BOB, "unsubscribe", pattern="/shared/*", url=URL) == {"ended": 1}
    assert world.do(BOB, "unsubscribe", pattern="/shared/*") == {"ended": 1}
    assert rows(world.path, "select * from subscription") == [] == rows(world.path, "select * from outbox")


@pytest.mark.parametrize(
    "asked",
    [
        {"pattern": "memory/*"},
        {"pattern": ""},
        {"pattern": "/" + "*" * 33},
        {"pattern": "/" + "a" * 1024},
        {"pattern": "/" + "?" * 20 + "*" * 13},
        {"pattern": "/" + "[ab]" * 33},
        {"pattern": "/a\nb"},
        {"mode": "often"},
        {"mode": "batched", "every": 0},
        {"every": -1},
        {"mode": "digest", "every": 10**18},
        {"url": ""},
        {"url": "http://" + "x" * 3000},
    ],
)
def test_a_bad_subscription_is_refused(world: World, asked: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        subscribe(world, BOB, **{"pattern": "/memory/*", **asked})
    assert rows(world.path, "select * from subscription") == []


def test_one_agent_has_so_many_and_others_their_own(world: World) -> None:
    for n in range(PER_AGENT):
        subscribe(world, BOB, f"/memory/{n}")
    with pytest.raises(OverQuota):
        subscribe(world, BOB, "/memory/more")
    assert subscribe(world, ALICE, "/memory/*")["number"] == 1


def test_hooks_are_what_the_configuration_says_now(world: World) -> None:
    hook = {"pattern": "/memory/*", "event": "write", "command": ["/bin/true"], "timeout_s": 1.0}
    assert world.do(OPERATOR, "set_hooks", hooks=[hook]) == {"added": 1, "ended": 0}
    assert world.do(OPERATOR, "set_hooks", hooks=[hook]) == {"added": 0, "ended": 0}
    world.write(ALICE, "/memory/private/alice/x", b"x")
    taken = take(world)
    assert told(taken) == [("write", "/memory/private/alice/x")], "an operator's hook sees all, of the event it names"
    assert json.loads(taken[0]["hook"])["command"] == ["/bin/true"] and taken[0]["secret"] is None
    assert world.do(OPERATOR, "set_hooks", hooks=[]) == {"added": 0, "ended": 1}
    assert take(world) == []
    with world.reading(OPERATOR) as reader:
        assert reader.outbox.subscriptions(everybody=True) == []


def test_a_hook_with_another_time_limit_is_the_hook_that_it_was(world: World) -> None:
    hook = {"pattern": "/memory/*", "event": "write", "command": ["/bin/false"], "timeout_s": 1.0}
    world.do(OPERATOR, "set_hooks", hooks=[hook])
    world.write(ALICE, "/memory/failed", b"x")
    taken = take(world)
    done(world, taken, sent=[], failed=taken[0]["deliveries"][0]["turn"], error="no", dead=True)
    world.write(ALICE, "/memory/waits", b"x")
    world.store.match_subscriptions()
    assert world.do(OPERATOR, "set_hooks", hooks=[hook | {"timeout_s": 2.0}]) == {"added": 0, "ended": 0}
    taken = take(world)
    assert told(taken) == [("write", "/memory/waits")] and json.loads(taken[0]["hook"])["timeout_s"] == 2.0
    with world.reading(OPERATOR) as reader:
        assert len(reader.outbox.dead()) == 1
    assert world.do(OPERATOR, "set_hooks", hooks=[hook | {"event": "any"}]) == {"added": 1, "ended": 1}


def test_a_hook_hears_of_what_has_long_been_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(outbox, "JUDGED", 3)
    hook = {"pattern": "/memory/a", "event": "any", "command": ["/bin/true"], "timeout_s": 1.0}
    world.do(OPERATOR, "set_hooks", hooks=[hook])
    world.write(ALICE, "/memory/a", b"x")
    world.unlink(ALICE, "/memory/a")
    for number in range(5):
        world.write(ALICE, f"/memory/{number}", b"x")
    assert told(take(world)) == [("create", "/memory/a"), ("write", "/memory/a"), ("remove", "/memory/a")]


@pytest.mark.parametrize("who", [BOB, Principal("")], ids=["bob", "nobody"])
def test_what_a_hook_failed_at_is_the_operators_alone(world: World, who: Principal) -> None:
    hook = {"pattern": "/memory/*", "event": "write", "command": ["/bin/false", "secret"], "timeout_s": 1.0}
    world.do(OPERATOR, "set_hooks", hooks=[hook])
    world.write(ALICE, "/memory/private/alice/x", b"x")
    taken = take(world)
    done(world, taken, sent=[], failed=taken[0]["deliveries"][0]["turn"], error="token=abc", dead=True)
    with world.reading(OPERATOR) as reader:
        assert [letter.error for letter in reader.outbox.dead()] == ["token=abc"]
    with world.reading(who) as reader:
        assert reader.outbox.dead() == reader.outbox.notices() == []


# Cost and durability


def test_patterns_are_matched_where_no_writer_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _limits_can_be_set(world)
    subscribe(world, BOB, "/memory/*a*a*a*b")
    world.write(ALICE, "/memory/aaab", b"x")
    matched: list[bool] = []
    applier = world.applier
    real = events.matches

    def matches(place: str, path: str) -> bool:
        with world.store.connection() as (db, _):
            db.execute("select 1")
        matched.append(applier.db.get_autocommit())
        return real(place, path)

    monkeypatch.setattr(matching, "matches", matches)
    assert len(told(take(world))) == 2
    assert matched == [True] * 2, "outside of every transaction"
    assert not hasattr(fanout, "matches") and not hasattr(outbox, "matches")


def test_two_that_look_through_the_same_changes_queue_them_once(world: World) -> None:
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/a", b"x")
    with world.reading(OPERATOR) as reader:
        these = reader.outbox.unmatched()
    assert these is not None
    found = matching.matched(these)
    assert world.do(OPERATOR, "outbox_fill", **found)["done"]
    assert not world.do(OPERATOR, "outbox_fill", **found)["done"]
    assert len(told(take(world))) == 2
    with pytest.raises(Invalid):
        world.do(OPERATOR, "outbox_fill", **{**found, "after": found["upto"], "upto": 10**9})


@pytest.mark.parametrize("how", ["realtime", "digest"])
def test_what_is_purged_while_it_is_matched_is_not_queued(world: World, how: str) -> None:
    subscribe(world, BOB, "/memory/*", how)
    subscribe(world, BOB, "/memory/secret*", how)
    world.write(ALICE, "/memory/secret", b"x")
    world.write(ALICE, "/memory/open", b"x")
    with world.reading(OPERATOR) as reader:
        these = reader.outbox.unmatched()
    assert these is not None
    found = matching.matched(these)
    world.do(ALICE, "purge", nodes=[world.node(ALICE, "/memory/secret").id], documents=[])
    assert world.do(OPERATOR, "outbox_fill", **found)["done"]
    assert "secret" not in str(world.rows("select events from outbox"))
    world.clock.advance(2 * 86400)
    assert {path for _, path in told(take(world))} == {"/memory/open"}


def test_what_one_subscription_too_many_has_found_waits_for_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "FOUND", 3)
    subscribe(world, BOB, "/memory/*")
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    with world.reading(OPERATOR) as reader:
        these = reader.outbox.unmatched()
    assert these is not None
    assert matching.matched(these)["upto"] < these.rows[-1][0]
    assert len(told(take(world))) == 8


@pytest.mark.parametrize("url", [None, URL], ids=["notices", "webhooks"])
def test_one_command_judges_so_much_however_many_are_to_be_told(
    world: World, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limits_can_be_set(world)
    judged: list[str] = []
    real = outbox.visible
    monkeypatch.setattr(outbox, "AT_A_TIME", 10)
    monkeypatch.setattr(
        outbox, "visible", lambda tx, who, event, since: judged.append(event.path) or real(tx, who, event, since)
    )
    for who in (BOB, CAROL):
        for n in range(4):
            subscribe(world, who, f"/memory/{'*' * (n + 1)}", url=url)
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    world.store.match_subscriptions()
    found: list[tuple[str, str]] = []
    while True:
        answer = world.do(OPERATOR, "outbox_take", busy=[], full=[], limit=16, each=16)
        assert len(judged) <= 10
        judged.clear()
        if not answer["moved"]:
            break
        found += told(answer["subscriptions"])
        done(world, answer["subscriptions"])
    assert len(found if url else notices(world, BOB) + notices(world, CAROL)) == 2 * 4 * 8


def test_what_an_agent_asks_for_is_collected_in_parts_and_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(outbox, "AT_A_TIME", 10)
    for n in range(4):
        subscribe(world, BOB, f"/memory/{'*' * (n + 1)}", url=None)
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    world.store.match_subscriptions()
    answers = [world.do(BOB, "collect_notices")["more"]]
    assert 8 <= len(world.rows("select 1 from outbox where state = 3")) <= 10
    while answers[-1]:
        answers.append(world.do(BOB, "collect_notices")["more"])
    assert len(answers) > 3 and len(world.rows("select 1 from outbox where state = 3")) == 4 * 8


def test_what_an_agent_asks_for_is_collected_though_a_long_delivery_does_not_fit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limits_can_be_set(world)
    monkeypatch.setattr(outbox, "AT_A_TIME", 10)
    subscribe(world, BOB, "/memory/*", url=None)
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    world.store.match_subscriptions()
    subscribe(world, BOB, "/memory/*", "batched", every=MINUTE, url=None)
    for n in range(4, 7):
        world.write(ALICE, f"/memory/{n}", b"x")
    world.store.match_subscriptions()
    subscribe(world, BOB, "/memory/*", "realtime", url=None)
    assert len(notices(world, BOB)) == 14
    assert world.rows("select 1 from outbox where state <> 3") == []


def test_a_write_runs_as_many_statements_with_subscriptions_as_without(tmp_path: Any) -> None:
    world = World(tmp_path, "direct")
    try:
        ran: list[str] = []
        applier = world.applier
        world.write(ALICE, "/memory/a", b"0")
        applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
        world.write(ALICE, "/memory/a", b"1")
        without = len(ran)
        applier.db.trace_v2(0)
        for n in range(50):
            subscribe(world, BOB, "/memory/*", url=f"https://example.com/{n}")
        ran.clear()
        applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
        world.write(ALICE, "/memory/a", b"2")
        assert len(ran) == without > 5
        applier.db.trace_v2(0)
    finally:
        world.close()


def test_looking_through_many_changes_for_many_subscriptions_takes_few_statements(tmp_path: Any) -> None:
    world = World(tmp_path, "direct")
    try:
        for n in range(50):
            subscribe(world, BOB, f"/memory/other/{n}/*")
        for n in range(100):
            world.write(ALICE, f"/memory/{n}", b"1")
        ran: list[str] = []
        applier = world.applier
        applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
        world.store.match_subscriptions()
        applier.db.trace_v2(0)
        assert 3 < len(ran) < 20, ran
        with world.reading(OPERATOR) as reader:
            assert not reader.outbox.behind()
    finally:
        world.close()


def test_the_ids_of_a_fill_that_was_lost_come_again(tmp_path: Any) -> None:
    world = World(tmp_path, "direct")
    subscribe(world, BOB, "/memory/*")
    world.write(ALICE, "/memory/a", b"x")
    first = [delivery["message"] for delivery in take(world)[0]["deliveries"]]
    db = connect(world.path)  # as if power had been lost before the fill was on the disk
    database.run(db, "delete from outbox; update outbox_cursor set seq = (select since from subscription)")
    db.close()
    assert [delivery["message"] for delivery in take(world)[0]["deliveries"]] == first
    world.close()


def test_what_has_gone_since_is_looked_up_once_for_all(tmp_path: Any) -> None:
    world = World(tmp_path, "direct")
    try:
        subscribe(world, BOB, "/memory/*", "batched", every=MINUTE)
        for n in range(100):
            world.write(BOB, f"/memory/{n}", b"1")
            world.unlink(BOB, f"/memory/{n}")
        world.store.match_subscriptions()
        world.clock.advance(61)
        ran: list[str] = []
        applier = world.applier
        applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
        taken = take(world)
        applier.db.trace_v2(0)
        assert sum(event == "write" for event, _ in told(taken)) == 100
        assert sum("from log where" in sql for sql in ran) == 1
    finally:
        world.close()
