"""Mail in the store: numbers and threads that tell nothing of others, limits, deleting and trimming."""

from __future__ import annotations

import contextlib
import random
import secrets
from dataclasses import dataclass, field

import pytest

from avmfs.access import Principal
from avmfs.errors import Denied, Invalid, OverQuota
from avmfs.node import Message
from avmfs.store.commands.messages import DIGESTS_UNREAD, PRIORITIES
from avmfs.store.identity import OPERATOR
from tests.contract.store_world import ALICE, BOB, CAROL, World

MINUTE_S = 60


@pytest.fixture(autouse=True)
def _carol(world: World) -> None:
    world.do(CAROL, "enroll")


def tell(world: World, who: Principal, to: str, body: str = "x", **more: object) -> int:
    limits = {"priority": "normal", "expires": None, "body_limit": 100, "unread_limit": 5, **more}
    return int(world.do(who, "tell", recipient=to, body=body, **limits)["id"])


def mail(world: World, who: Principal) -> list[Message]:
    """Oldest first."""
    order = {number: at for at, (number,) in enumerate(world.rows("select number from message order by id"))}
    with world.reading(who) as reader:
        return sorted(reader.mail.messages(), key=lambda message: order[message.id])


def test_who_enrolls_has_a_space_of_its_own_that_the_mode_opens_to_nobody_else(world: World) -> None:
    assert world.do(CAROL, "enroll") == {"new": False}
    assert world.do(Principal("dave"), "enroll") == {"new": True}
    assert world.node(CAROL, "/memory/private/carol").mode & 0o7777 == 0o755
    assert not world.exists(BOB, "/memory/private/carol")


def test_a_message_has_one_number_for_its_sender_and_all_who_receive_it(world: World) -> None:
    first, second, third = tell(world, ALICE, "bob"), tell(world, BOB, "alice"), tell(world, ALICE, "@all")
    assert [message.id for message in mail(world, BOB)] == [first, third]
    assert [message.id for message in mail(world, ALICE)] == [second]
    assert [message.id for message in mail(world, CAROL)] == [third]
    assert {len(str(number)) for number in (first, second, third)} == {6}


def test_numbers_tell_nothing_of_how_much_mail_there_is(world: World) -> None:
    """Neither their order nor their distance."""
    numbers = [tell(world, ALICE, "bob", unread_limit=99) for _ in range(40)]
    assert len(set(numbers)) == 40 and sorted(numbers) != numbers != sorted(numbers)[::-1]
    assert max(numbers) - min(numbers) > 400_000, "drawn from 900,000"


def test_a_number_that_is_taken_is_not_given_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.mode != "direct":
        pytest.skip("the numbers are drawn in another process")
    bounds: list[int] = []

    def drawn(below: int) -> int:
        bounds.append(below)
        return 7

    monkeypatch.setattr(secrets, "randbelow", drawn)
    world.do(Principal("dave"), "enroll")
    six, seven, eight = (10**digits + 7 for digits in (5, 6, 7))
    assert [tell(world, ALICE, "bob"), tell(world, BOB, "alice"), tell(world, ALICE, "@all")] == [six, seven, eight]
    assert bounds == [900_000, *(900_000, 9_000_000), *(900_000, 9_000_000, 90_000_000)], "all of so many digits"
    assert [message.id for message in mail(world, BOB)] == [six, eight]
    assert [message.id for message in mail(world, CAROL)] == [eight]
    assert tell(world, CAROL, "dave") == six, "neither of the two has it"
    assert tell(world, BOB, "carol") == 10**8 + 7, "he has got the first, sent the second, got the third"


def test_an_answer_names_the_message_as_its_receiver_knows_it(world: World) -> None:
    first = tell(world, ALICE, "bob", "question")
    asked = mail(world, BOB)[-1]
    assert (asked.id, asked.re, asked.thread) == (first, None, first)
    said = tell(world, BOB, "alice", "answer", re=first)
    answer = mail(world, ALICE)[-1]
    assert (answer.id, answer.re, answer.thread) == (said, first, first)
    tell(world, ALICE, "bob", "thanks", re=said)
    thanks = mail(world, BOB)[-1]
    assert (thanks.re, thanks.thread) == (said, first)
    tell(world, ALICE, "bob", "and one more thing", re=first)
    assert (mail(world, BOB)[-1].re, mail(world, BOB)[-1].thread) == (first, first)


def test_who_does_not_have_the_answered_message_is_told_nothing_of_it(world: World) -> None:
    first = tell(world, ALICE, "@all", "meeting?")
    answer = tell(world, BOB, "alice", "between us", re=first)
    tell(world, ALICE, "carol", "so yes", re=answer)
    said = mail(world, CAROL)[-1]
    assert (said.re, said.thread) == (None, first), "the thread is one that she is in, the answered message is not hers"
    tell(world, BOB, "alice", "a new matter")
    secret = mail(world, ALICE)[-1].id
    tell(world, ALICE, "carol", "what do you think?", re=secret)
    said = mail(world, CAROL)[-1]
    assert (said.re, said.thread) == (None, said.id)


def test_only_ones_own_mail_can_be_answered(world: World) -> None:
    first, second = tell(world, ALICE, "bob"), tell(world, ALICE, "bob")
    tell(world, BOB, "carol")
    sent = world.rows("select count(*) from message")
    for who, number in ((CAROL, second), (BOB, 9), (BOB, 0), (BOB, -1)):
        with pytest.raises(Invalid, match=f"re={number}: you have no message #{number}"):
            tell(world, who, "alice", re=number)
    world.do(BOB, "delete_mail", messages=[first])
    with pytest.raises(Invalid):
        tell(world, BOB, "alice", re=first)
    assert world.rows("select count(*) from message") == [(sent[0][0] - 1,)]


def test_unread_mail_of_one_sender_keeps_no_other_one_out(world: World) -> None:
    for _ in range(5):
        tell(world, ALICE, "bob")
    with pytest.raises(OverQuota, match="bob has 5 messages of yours unread"):
        tell(world, ALICE, "bob")
    tell(world, CAROL, "bob")
    tell(world, ALICE, "carol")
    world.do(BOB, "mark_read", messages=[mail(world, BOB)[0].id])
    tell(world, ALICE, "bob")
    assert len(mail(world, BOB)) == 7


def test_the_oldest_unread_broadcast_of_a_sender_gives_way(world: World) -> None:
    for number in range(5):
        tell(world, ALICE, "bob", f"to bob {number}")
    for number in range(8):
        tell(world, ALICE, "@all", f"to all {number}")
    world.do(CAROL, "mark_read")
    tell(world, ALICE, "@all", "to all 8")
    assert [message.body for message in mail(world, BOB)] == [
        *(f"to bob {number}" for number in range(5)),
        *(f"to all {number}" for number in range(4, 9)),
    ]
    assert len(mail(world, CAROL)) == 6, "5 that she has read, and the new one"
    kept = world.rows("select body from message where recipient = '@all' order by id")
    assert kept == [(f"to all {number}",) for number in range(3, 9)], "what nobody has any more is gone"


def test_a_sender_has_so_many_messages_a_minute(world: World) -> None:
    for _ in range(3):
        tell(world, ALICE, "@all", rate_limit=3)
    with pytest.raises(OverQuota, match="3 messages a minute"):
        tell(world, ALICE, "bob", rate_limit=3)
    tell(world, BOB, "alice", rate_limit=3)
    world.clock.advance(MINUTE_S)
    tell(world, ALICE, "bob", rate_limit=3)
    world.clock.advance(2 * MINUTE_S)
    tell(world, ALICE, "bob", rate_limit=1)
    world.clock.advance(-MINUTE_S)
    tell(world, ALICE, "bob", rate_limit=1)  # a clock that was set back keeps nobody out


def test_the_limit_of_a_minute_holds_in_every_minute(world: World) -> None:
    for _ in range(3):
        for _ in range(3):
            tell(world, ALICE, "carol", rate_limit=3, unread_limit=99)
        world.clock.advance(MINUTE_S / 2)
        with pytest.raises(OverQuota, match="go on in"):
            tell(world, ALICE, "carol", rate_limit=3, unread_limit=99)
        world.clock.advance(MINUTE_S / 2)


def test_a_minute_begins_with_its_first_message_and_ends_before_the_next_minute(still: World) -> None:
    def sent(seconds: float) -> bool:
        """After so long; and it was known beforehand."""
        still.clock.advance(seconds)
        outcome = []
        with still.reading(ALICE) as reader:
            for ask in (
                lambda: reader.mail.refusal("carol", 1, None, body_limit=9, unread_limit=99, rate_limit=2),
                lambda: tell(still, ALICE, "carol", rate_limit=2, unread_limit=99),
            ):
                with contextlib.suppress(OverQuota):
                    ask()
                    outcome.append(ask)
        assert len(outcome) != 1
        return bool(outcome)

    assert [sent(seconds) for seconds in (0, 0, 0, 59.5, 0.5, 30, 29.5)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(OverQuota, match="2 messages a minute are the most that one agent may send: go on in 1 s"):
        tell(still, ALICE, "carol", rate_limit=2)
    still.clock.advance(-20.5)
    with pytest.raises(OverQuota, match="go on in 21 s"):
        tell(still, ALICE, "carol", rate_limit=2)
    assert [sent(seconds) for seconds in (-39.25, 0, 0, 59.75, 0.25)] == [True, True, False, False, True]


def test_mail_is_there_until_it_expires_and_not_at_that_time(still: World) -> None:
    over = still.clock() + 5 * 10**9
    number = tell(still, ALICE, "bob", expires=over, priority="urgent", unread_limit=1)

    def full() -> bool:
        try:
            with still.reading(ALICE) as reader:
                reader.mail.refusal("bob", 1, None, body_limit=9, unread_limit=1, rate_limit=9)
        except OverQuota:
            return True
        return False

    for seconds, there in ((4.5, True), (0.5, False)):
        still.clock.advance(seconds)
        with still.reading(BOB) as reader, still.reading(OPERATOR) as operator:
            found = [each.id for each in reader.mail.messages()]
            assert found == [each.id for each in reader.mail.messages(priority="urgent", unread_only=True)]
            assert found == ([number] if there else []) and full() is there is reader.mail.any_unread()
            assert reader.mail.counts().messages == sum(reader.mail.counts().unread.values()) == int(there)
            assert operator.mail.unread_of_all() == ({"bob": 1} if there else {})
        if there:
            with pytest.raises(OverQuota):
                tell(still, ALICE, "bob", unread_limit=1)
            assert still.do(OPERATOR, "trim_mail", before=0, keep=9) == {"count": 0}
    tell(still, ALICE, "bob", unread_limit=1)
    assert still.do(OPERATOR, "trim_mail", before=0, keep=9) == {"count": 1}
    assert number not in [each.id for each in mail(still, BOB)]


def test_a_broadcast_that_has_expired_is_not_the_one_that_gives_way(still: World) -> None:
    tell(still, ALICE, "@all", "brief", expires=still.clock() + 10**9)
    for number in range(2):
        tell(still, ALICE, "@all", str(number))
    still.clock.advance(1)
    for number in range(2, 4):
        tell(still, ALICE, "@all", str(number), unread_limit=2)
        assert [each.body for each in mail(still, BOB)] == [str(number - 1), str(number)]


def test_read_mail_is_trimmed_by_when_it_was_read_and_so_many_at_a_time(still: World) -> None:
    for receiver, count, expires in (("bob", 6, None), ("carol", 3, still.clock() + 10**9)):
        for _ in range(count):
            tell(still, ALICE, receiver, expires=expires, unread_limit=99)
    still.do(BOB, "mark_read")
    at = still.clock()
    still.clock.advance(5)
    assert still.do(OPERATOR, "trim_mail", before=at, keep=6, limit=2) == {"count": 2}, "two that have expired"
    assert still.do(OPERATOR, "trim_mail", before=at, keep=6) == {"count": 1}, "read not before, but just then"
    assert still.do(OPERATOR, "trim_mail", before=at + 1, keep=6, limit=2) == {"count": 2}
    left = mail(still, BOB)
    assert still.do(OPERATOR, "trim_mail", before=0, keep=3, limit=2) == {"count": 1}
    assert mail(still, BOB) == left[1:] and len(left) == 4
    assert still.do(OPERATOR, "trim_mail", before=0, keep=0, limit=2) == {"count": 2}
    assert still.do(OPERATOR, "trim_mail", before=at + 1, keep=0) == {"count": 1}
    assert still.rows("select * from message") == []


def test_an_operator_is_told_how_much_waits_for_whom(world: World) -> None:
    for priority, expires in (("low", None), ("normal", None), ("urgent", None), ("normal", world.clock() + 10**9)):
        tell(world, ALICE, "bob", priority=priority, expires=expires)
    read = tell(world, ALICE, "carol", "read")
    tell(world, ALICE, "carol", "not read")
    world.do(CAROL, "mark_read", messages=[read])
    world.clock.advance(2)
    with world.reading(OPERATOR) as reader:
        assert reader.mail.unread_of_all() == {"bob": 2, "carol": 1}, "neither what can wait nor what has expired"
    with world.reading(BOB) as reader:
        counts = reader.mail.counts()
        with world.reading(CAROL) as other:
            assert other.mail.counts().unread == {"urgent": 0, "normal": 1, "low": 0}
        assert (counts.messages, counts.unread) == (3, {"urgent": 1, "normal": 1, "low": 1})
        with pytest.raises(Denied):
            reader.mail.unread_of_all()


def test_what_would_be_refused_is_known_beforehand(world: World) -> None:
    first = tell(world, ALICE, "bob")
    limits = {"body_limit": 9, "unread_limit": 1, "rate_limit": 9}

    def asked(recipient: str, size: int = 1, re: int | None = None, **more: int) -> type[Exception] | None:
        with world.reading(ALICE) as reader:
            try:
                reader.mail.refusal(recipient, size, re, **{**limits, **more})
            except (OverQuota, Invalid) as e:
                return type(e)
        return None

    assert asked("bob") is asked("carol", 10) is asked("carol", rate_limit=1) is OverQuota
    assert asked("carol", re=first + 1) is Invalid
    assert asked("carol") is asked("@all") is asked("carol", 9, first) is None
    world.clock.advance(MINUTE_S)
    assert asked("carol", rate_limit=1) is None


def test_a_minute_of_messages_is_over_when_the_clock_has_its_next(world: World) -> None:
    """What is known beforehand goes by the minute that counts the messages."""
    tell(world, ALICE, "bob")
    [(since,)] = world.rows("select since from mailbox where agent = 'alice'")
    with world.reading(ALICE) as reader:
        for reader.now, refused in ((since + MINUTE_S * 10**9 - 1, True), (since + MINUTE_S * 10**9, False)):
            with pytest.raises(OverQuota) if refused else contextlib.nullcontext():
                reader.mail.refusal("carol", 1, None, body_limit=9, unread_limit=9, rate_limit=1)


def test_mail_is_deleted_by_its_receiver_for_itself(world: World) -> None:
    hello, psst = tell(world, ALICE, "@all", "hello"), tell(world, ALICE, "bob", "psst")
    assert world.do(CAROL, "delete_mail", messages=[psst]) == {"count": 0}, "not her message"
    assert world.do(ALICE, "delete_mail", messages=[hello, psst]) == {"count": 0}, "what was sent is the receiver's"
    assert world.do(BOB, "delete_mail") == {"count": 0}, "nothing is read"
    world.do(BOB, "mark_read", messages=[psst])
    assert world.do(BOB, "delete_mail") == {"count": 1}
    assert [message.body for message in mail(world, BOB)] == ["hello"] == [m.body for m in mail(world, CAROL)]
    assert world.rows("select body from message") == [("hello",)]
    world.do(BOB, "delete_mail", messages=[hello])
    world.do(CAROL, "delete_mail", messages=[hello])
    assert world.rows("select * from message") == [] == world.rows("select * from delivery")


def test_read_mail_is_trimmed_by_age_and_number_and_unread_mail_is_not(world: World) -> None:
    sent = [tell(world, ALICE, "bob", str(number), unread_limit=99) for number in range(6)]
    world.do(BOB, "mark_read", messages=sent[:4])
    tell(world, ALICE, "carol", "brief", expires=world.clock() + 5)
    world.clock.advance(10)
    with pytest.raises(Denied):
        world.do(ALICE, "trim_mail", before=0, keep=0)
    assert world.do(OPERATOR, "trim_mail", before=0, keep=3) == {"count": 2}
    assert [message.body for message in mail(world, BOB)] == ["1", "2", "3", "4", "5"]
    world.do(BOB, "mark_read", messages=[sent[4]])
    assert world.do(OPERATOR, "trim_mail", before=world.clock() - 10**9, keep=99) == {"count": 3}
    assert [message.body for message in mail(world, BOB)] == ["4", "5"]
    assert world.do(OPERATOR, "trim_mail", before=world.clock() - 10**9, keep=99) == {"count": 0}
    assert world.rows("select body from message order by id") == [("4",), ("5",)]


def test_unread_mail_stays_however_much_newer_mail_was_read_and_trimmed(world: World) -> None:
    sent = [tell(world, ALICE, "bob", str(number), unread_limit=99) for number in range(1, 7)]
    world.do(BOB, "mark_read", messages=sent[1::2])
    world.clock.advance(10)
    assert world.do(OPERATOR, "trim_mail", before=0, keep=1) == {"count": 2}
    assert [message.body for message in mail(world, BOB)] == ["1", "3", "5", "6"]
    assert world.do(OPERATOR, "trim_mail", before=world.clock(), keep=0) == {"count": 1}
    with world.reading(BOB) as reader:
        assert {message.body for message in reader.mail.messages(unread_only=True)} == {"1", "3", "5"}


def test_an_answer_keeps_its_thread_when_what_it_answers_is_deleted(world: World) -> None:
    first = tell(world, ALICE, "bob", "question")
    tell(world, BOB, "alice", "answer", re=first)
    world.do(BOB, "delete_mail", messages=[first])
    answer = mail(world, ALICE)[-1]
    assert (answer.re, answer.thread) == (first, first)


@pytest.mark.parametrize("by", ["delete_mail", "trim_mail"])
def test_a_thread_keeps_its_number_and_its_first_message_can_be_answered(world: World, by: str) -> None:
    first = tell(world, ALICE, "bob", "question")
    answer = tell(world, BOB, "alice", "answer", re=first)
    world.do(BOB, "mark_read")
    if by == "delete_mail":
        assert world.do(BOB, by) == {"count": 1}
    else:
        assert world.do(OPERATOR, by, before=0, keep=0) == {"count": 1}
    assert ("question",) not in world.rows("select body from message"), "nobody can read it"
    more = tell(world, ALICE, "bob", "more", re=answer)
    assert (mail(world, BOB)[-1].re, mail(world, BOB)[-1].thread) == (answer, first)
    last = tell(world, BOB, "alice", "and more", re=more)
    assert [each.thread for each in mail(world, ALICE)] == [first, first]
    tell(world, ALICE, "bob", "to the question", re=first)
    assert [each.thread for each in mail(world, BOB)] == [first, first]
    with pytest.raises(Invalid):
        tell(world, BOB, "alice", "it is not his any more", re=first)
    for agent in (ALICE, BOB):
        world.do(agent, "mark_read")
        world.do(agent, "delete_mail")
    assert world.rows("select * from message") == [], last


def test_only_the_log_rows_of_a_tell_say_whose_mail_has_moved(world: World) -> None:
    one, other = tell(world, ALICE, "bob"), tell(world, ALICE, "@all")
    rows = world.rows("select agent, path, version, spec from log join scope on scope.id = scope where op = 'tell'")
    assert rows == [
        ("alice", b"/tell/bob", one, rows[0][3]),
        ("alice", b"/tell/bob", other, rows[0][3]),
        ("alice", b"/tell/carol", other, rows[2][3]),
    ]
    assert "bob" in rows[0][3] and "carol" in rows[2][3]
    first = world.rows("select min(seq) from log where op = 'tell' group by version order by min(seq)")
    assert world.rows("select id from message order by id") == first, "each has the number of its first row"


def test_a_digest_is_delivered_once_and_the_first_is_the_one_that_is_due_next(world: World) -> None:
    day, first = 24 * 3600, world.clock() - 10**9

    def deliver(due: int, body: str | None = None) -> int | None:
        done = world.do(OPERATOR, "deliver_digest", agent="alice", due=due, told=due + 5, body=body)
        return None if done["since"] is None else int(done["since"])

    with pytest.raises(Denied):
        world.do(ALICE, "deliver_digest", agent="alice", due=first, told=first, body="forged")
    assert deliver(first) is None and deliver(first, "x") is None and mail(world, ALICE) == []
    done = world.do(OPERATOR, "deliver_digest", agent="bob", due=1, told=2, body="x")
    assert (done, mail(world, BOB)) == ({"since": None}, []), "the next is his first, too"
    assert world.do(OPERATOR, "deliver_digest", agent="bob", due=3, told=4) == {"since": 2}
    second = first + day * 10**9
    world.clock.advance(day)
    assert deliver(second) == first + 5, "nobody has put it yet"
    assert [deliver(second, "three new"), deliver(second, "again"), deliver(second)] == [first + 5, None, None]
    third = second + day * 10**9
    world.clock.advance(day)
    assert deliver(third, "") == second + 5 and deliver(third, "late") is None, "there was nothing to tell"
    (message,) = mail(world, ALICE)
    assert (message.sender, message.body, message.priority, mail(world, BOB)) == ("avmfs", "three new", "low", [])
    assert deliver(third + 10**9 * day * 400, "the clock was wrong") == third + 5
    assert deliver(third) is None and deliver(third, "x") is None, "what was due in a time to come is forgotten"
    assert len(mail(world, ALICE)) == 2


def test_what_was_due_a_day_from_now_is_no_mistake_of_the_clock(still: World) -> None:
    due = still.clock() + 24 * 3600 * 10**9
    for more, since in ((0, 7), (1, None)):
        still.do(OPERATOR, "deliver_digest", agent="alice", due=due + more, told=7, body=None if more == 0 else "")
        done = still.do(OPERATOR, "deliver_digest", agent="alice", due=due + 2 * more + 1, told=8)
        assert done == {"since": since}


def test_digests_that_nobody_reads_give_way_to_newer_ones_and_keep_no_mail_out(world: World) -> None:
    due = world.clock() - 10**9
    for number in range(DIGESTS_UNREAD + 3):
        world.do(OPERATOR, "deliver_digest", agent="alice", due=due, told=due, body=f"number {number}")
        world.clock.advance(24 * 3600)
        due += 24 * 3600 * 10**9
    tell(world, BOB, "alice", unread_limit=1)
    bodies = [message.body for message in mail(world, ALICE)]
    assert bodies == [*(f"number {number}" for number in range(3, DIGESTS_UNREAD + 3)), "x"]


# Against a model -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Told:
    number: int
    sender: str
    recipient: str
    priority: str
    root: Told | None  # None: this is its thread's first
    known: tuple[int | None, int | None]  # re and thread, as the sender has them
    read: dict[str, bool] = field(default_factory=dict)  # who has it
    theirs: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    answers: list[Told] = field(default_factory=list)  # all of the thread that it began

    def had_by(self, agent: str) -> bool:
        return agent in self.read or (
            agent == self.sender and (bool(self.read) or any(one.read for one in self.answers))
        )

    def thread(self, agent: str) -> int:
        """As this agent knows it."""
        return (self.theirs[agent] if agent in self.read else self.known)[1] or self.number


class Mail:
    """All mail of some agents, oldest first, and what each has and knows of it."""

    LIMIT = 3

    def __init__(self) -> None:
        self.told: list[Told] = []

    def of(self, agent: str) -> list[Told]:
        """As its inbox has it."""
        newest = [each for each in reversed(self.told) if agent in each.read]
        return sorted(newest, key=lambda each: (each.read[agent], PRIORITIES.index(each.priority)))

    def answered(self, asker: str, number: int) -> Told | None:
        return next((each for each in self.told if each.number == number and each.had_by(asker)), None)

    def waiting(self, receiver: str, sender: str, *, everyone: bool) -> list[Told]:
        return [
            each
            for each in self.told
            if each.read.get(receiver) is False and each.sender == sender and (each.recipient == "@all") is everyone
        ]

    def known(self, agent: str, answered: Told | None) -> tuple[int | None, int | None]:
        if answered is None:
            return None, None
        root = answered.root or answered
        thread = [each.thread(agent) for each in (root, *root.answers) if each.had_by(agent)]
        return answered.number if answered.had_by(agent) else None, next(iter(thread), None)

    def tell(
        self, number: int, sender: str, recipient: str, receivers: list[str], priority: str, answered: Told | None
    ) -> None:
        root = None if answered is None else answered.root or answered
        made = Told(number, sender, recipient, priority, root, self.known(sender, answered))
        for receiver in receivers:
            if recipient == "@all" and len(waiting := self.waiting(receiver, sender, everyone=True)) >= self.LIMIT:
                del waiting[0].read[receiver]
            made.theirs[receiver] = self.known(receiver, answered)
            made.read[receiver] = False
        self.told.append(made)
        if root is not None:
            root.answers.append(made)


def look(world: World, model: Mail, agent: str, random_: random.Random) -> None:
    """Everything that a reader says of an agent's mail is what the model has."""
    mail, least, priority = model.of(agent), random_.randrange(3), random_.choice(PRIORITIES)
    unread = [each for each in mail if not each.read[agent]]
    kept = [each for each in reversed(model.told) if each.read.get(agent)][:least]
    of_one = [each for each in reversed(model.told) if each.read.get(agent) and each.priority == priority][:least]
    with world.reading(Principal(agent)) as reader:
        box = reader.mail
        assert [
            (each.id, each.sender, each.recipient, each.priority, each.body, each.re, each.thread, each.read_at is None)
            for each in box.messages()
        ] == [
            (each.number, each.sender, each.recipient, each.priority, each.recipient, each.theirs[agent][0],
             each.theirs[agent][1] or each.number, not each.read[agent]) for each in mail
        ]  # fmt: skip
        for found, expected in (
            (box.messages(unread_only=True), unread),
            (box.messages(read=least), [*unread, *(each for each in mail if each in kept)]),
            (box.messages(priority=priority), [each for each in mail if each.priority == priority]),
            (
                box.messages(priority=priority, read=least),
                [*(each for each in unread if each.priority == priority), *of_one],
            ),
        ):
            assert [each.id for each in found] == [each.number for each in expected]
        counts = box.counts()
        assert counts.messages == len(mail) and box.any_unread() is bool(unread)
        assert counts.unread == {each: sum(one.priority == each for one in unread) for each in PRIORITIES}


def write(world: World, model: Mail, sender: str, recipient: str, random_: random.Random) -> None:
    """One message, or its refusal, which is known beforehand."""
    number = random_.choice([each.number for each in model.told]) if model.told and random_.random() < 0.6 else None
    answered, priority = None if number is None else model.answered(sender, number), random_.choice(PRIORITIES)
    full = recipient != "@all" and len(model.waiting(recipient, sender, everyone=False)) >= model.LIMIT
    refused = Invalid if number is not None and answered is None else OverQuota if full else None
    limits = {"body_limit": 9, "unread_limit": model.LIMIT, "rate_limit": 10**6}
    with world.reading(Principal(sender)) as reader:
        with pytest.raises(refused) if refused else contextlib.nullcontext():
            reader.mail.refusal(recipient, 1, number, **limits)
        with pytest.raises(refused) if refused else contextlib.nullcontext():
            told = world.do(
                Principal(sender),
                "tell",
                recipient=recipient,
                body=recipient,
                re=number,
                priority=priority,
                expires=None,
                **limits,
            )
            model.tell(told["id"], sender, recipient, told["recipients"], priority, answered)


@pytest.mark.parametrize("seed", [1, 2])
def test_mail_is_what_was_told_by_whom_and_is_left(world: World, seed: int) -> None:
    random_, model = random.Random(seed), Mail()
    world.do(Principal("dave"), "enroll")
    agents = ["alice", "bob", "carol", "dave"]
    for _ in range(100):
        agent, some = random_.choice(agents), [each for each in model.told if random_.random() < 0.3]
        chosen, numbers = (some, [each.number for each in some]) if random_.random() < 0.7 else (model.told, None)
        hers = [each for each in chosen if agent in each.read]
        match random_.randrange(10):
            case 0:
                unread = [each for each in hers if not each.read[agent]]
                assert world.do(Principal(agent), "mark_read", messages=numbers) == {"count": len(unread)}
                for each in unread:
                    each.read[agent] = True
            case 1:
                gone = [each for each in hers if numbers is not None or each.read[agent]]
                assert world.do(Principal(agent), "delete_mail", messages=numbers) == {"count": len(gone)}
                for each in gone:
                    del each.read[agent]
            case _:
                write(world, model, agent, random_.choice([*agents, "@all", "@all"]), random_)
        look(world, model, random_.choice(agents), random_)
    for agent in agents:
        look(world, model, agent, random_)
    kept = [(each.number, *each.known) for each in model.told if each.had_by(each.sender)]
    assert world.rows("select number, re, thread from message order by id") == kept
    waiting = {
        name: sum(each.read.get(name) is False and each.priority != "low" for each in model.told) for name in agents
    }
    with world.reading(OPERATOR) as reader:
        assert reader.mail.unread_of_all() == {name: count for name, count in waiting.items() if count}
