"""Mail in the store: numbers and threads that tell nothing of others, limits, deleting and trimming."""

from __future__ import annotations

from pathlib import Path

import pytest
from old_stores import first_version
from store_world import ALICE, BOB, CAROL, World

from avmfs.access import Principal
from avmfs.errors import Denied, Invalid, OverQuota
from avmfs.node import Message
from avmfs.store import database
from avmfs.store.submit import OPERATOR

pytestmark = pytest.mark.timeout(60)
MINUTE_S = 60


@pytest.fixture(autouse=True)
def _carol(world: World) -> None:
    world.do(CAROL, "enroll")


def tell(world: World, who: Principal, to: str, body: str = "x", **more: object) -> int:
    limits = {"priority": "normal", "expires": None, "body_limit": 100, "unread_limit": 5, **more}
    return int(world.do(who, "tell", recipient=to, body=body, **limits)["id"])


def mail(world: World, who: Principal) -> list[Message]:
    """Oldest first."""
    with world.reading(who) as reader:
        return sorted(reader.mail.messages(), key=lambda message: message.id)


def test_a_number_names_one_message_to_its_owner_sent_or_received(world: World) -> None:
    assert tell(world, ALICE, "bob") == 1
    assert tell(world, BOB, "alice") == 2, "after the one that he was sent"
    assert tell(world, ALICE, "bob") == 3
    assert [message.id for message in mail(world, BOB)] == [1, 3]
    assert [message.id for message in mail(world, ALICE)] == [2]
    for _ in range(3):
        tell(world, CAROL, "alice")
    assert tell(world, BOB, "carol") == 4, "what others are sent does not move his numbers"


def test_deleting_the_newest_does_not_give_its_number_again(world: World) -> None:
    tell(world, ALICE, "bob")
    assert world.do(BOB, "delete_mail", messages=[1]) == {"count": 1}
    tell(world, ALICE, "bob")
    assert [message.id for message in mail(world, BOB)] == [2]


def test_an_answer_names_the_message_as_its_receiver_knows_it(world: World) -> None:
    for _ in range(3):
        tell(world, CAROL, "bob", "noise")  # bob's numbers are ahead of alice's
    first = tell(world, ALICE, "bob", "question")
    asked = mail(world, BOB)[-1]
    assert (first, asked.id, asked.re, asked.thread) == (1, 4, None, 4)
    tell(world, BOB, "alice", "answer", re=asked.id)
    answer = mail(world, ALICE)[-1]
    assert (answer.re, answer.thread) == (first, first)
    tell(world, ALICE, "bob", "thanks", re=answer.id)
    thanks = mail(world, BOB)[-1]
    assert (thanks.re, thanks.thread) == (5, 4), "5 is what he sent"
    tell(world, ALICE, "bob", "and one more thing", re=first)
    assert (mail(world, BOB)[-1].re, mail(world, BOB)[-1].thread) == (4, 4)


def test_who_does_not_have_the_answered_message_is_told_nothing_of_it(world: World) -> None:
    tell(world, ALICE, "@all", "meeting?")
    tell(world, BOB, "alice", "between us", re=1)
    tell(world, ALICE, "carol", "so yes", re=2)
    said = mail(world, CAROL)[-1]
    assert (said.re, said.thread) == (None, 1), "the thread is one that she is in, the answered message is not hers"
    tell(world, BOB, "alice", "a new matter")
    secret = mail(world, ALICE)[-1].id
    tell(world, ALICE, "carol", "what do you think?", re=secret)
    said = mail(world, CAROL)[-1]
    assert (said.re, said.thread) == (None, said.id)


def test_only_ones_own_mail_can_be_answered(world: World) -> None:
    tell(world, ALICE, "bob")
    tell(world, ALICE, "bob")
    tell(world, BOB, "carol")
    sent = world.rows("select count(*) from message")
    for who, number in ((CAROL, 2), (BOB, 9), (BOB, 0), (BOB, -1)):
        with pytest.raises(Invalid, match=f"re={number}: you have no message #{number}"):
            tell(world, who, "alice", re=number)
    world.do(BOB, "delete_mail", messages=[1])
    with pytest.raises(Invalid):
        tell(world, BOB, "alice", re=1)
    assert world.rows("select count(*) from message") == [(sent[0][0] - 1,)]


def test_unread_mail_of_one_sender_keeps_no_other_one_out(world: World) -> None:
    for _ in range(5):
        tell(world, ALICE, "bob")
    with pytest.raises(OverQuota, match="bob has 5 messages of yours unread"):
        tell(world, ALICE, "bob")
    tell(world, CAROL, "bob")
    tell(world, ALICE, "carol")
    world.do(BOB, "mark_read", messages=[1])
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
        *(f"to bob {number}" for number in range(5)), *(f"to all {number}" for number in range(4, 9)),
    ]  # fmt: skip
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
    assert tell(world, ALICE, "bob", rate_limit=3) == 5, "what was refused has taken no number"
    world.clock.advance(2 * MINUTE_S)
    tell(world, ALICE, "bob", rate_limit=1)
    world.clock.advance(-MINUTE_S)
    tell(world, ALICE, "bob", rate_limit=1)  # a clock that was set back keeps nobody out


def test_what_would_be_refused_is_known_beforehand(world: World) -> None:
    tell(world, ALICE, "bob")
    limits = {"body_limit": 9, "unread_limit": 1, "rate_limit": 9}

    def asked(recipient: str, size: int = 1, re: int | None = None, **more: int) -> type[Exception] | None:
        with world.reading(ALICE) as reader:
            try:
                reader.mail.refusal(recipient, size, re, **{**limits, **more})
            except (OverQuota, Invalid) as e:
                return type(e)
        return None

    assert asked("bob") is asked("carol", 10) is asked("carol", rate_limit=1) is OverQuota
    assert asked("carol", re=2) is Invalid
    assert asked("carol") is asked("@all") is asked("carol", 9, 1) is None
    world.clock.advance(MINUTE_S)
    assert asked("carol", rate_limit=1) is None


def test_mail_is_deleted_by_its_receiver_for_itself(world: World) -> None:
    tell(world, ALICE, "@all", "hello")
    tell(world, ALICE, "bob", "psst")
    assert world.do(CAROL, "delete_mail", messages=[2]) == {"count": 0}, "not her message"
    assert world.do(ALICE, "delete_mail", messages=[1, 2]) == {"count": 0}, "what was sent is the receiver's"
    assert world.do(BOB, "delete_mail") == {"count": 0}, "nothing is read"
    world.do(BOB, "mark_read", messages=[2])
    assert world.do(BOB, "delete_mail") == {"count": 1}
    assert [message.body for message in mail(world, BOB)] == ["hello"] == [m.body for m in mail(world, CAROL)]
    assert world.rows("select body from message") == [("hello",)]
    world.do(BOB, "delete_mail", messages=[1])
    world.do(CAROL, "delete_mail", messages=[1])
    assert world.rows("select * from message") == [] == world.rows("select * from delivery")


def test_read_mail_is_trimmed_by_age_and_number_and_unread_mail_is_not(world: World) -> None:
    for number in range(6):
        tell(world, ALICE, "bob", str(number), unread_limit=99)
    world.do(BOB, "mark_read", messages=[1, 2, 3, 4])
    tell(world, ALICE, "carol", "brief", expires=world.clock() + 5)
    world.clock.advance(10)
    with pytest.raises(Denied):
        world.do(ALICE, "trim_mail", before=0, keep=0)
    assert world.do(OPERATOR, "trim_mail", before=0, keep=3) == {"count": 2}
    assert [message.body for message in mail(world, BOB)] == ["1", "2", "3", "4", "5"]
    world.do(BOB, "mark_read", messages=[5])
    assert world.do(OPERATOR, "trim_mail", before=world.clock() - 10**9, keep=99) == {"count": 3}
    assert [message.body for message in mail(world, BOB)] == ["4", "5"]
    assert world.do(OPERATOR, "trim_mail", before=world.clock() - 10**9, keep=99) == {"count": 0}
    assert world.rows("select body from message order by id") == [("4",), ("5",)]


def test_an_answer_keeps_its_thread_when_what_it_answers_is_deleted(world: World) -> None:
    tell(world, ALICE, "bob", "question")
    tell(world, BOB, "alice", "answer", re=1)
    world.do(BOB, "delete_mail", messages=[1])
    answer = mail(world, ALICE)[-1]
    assert (answer.re, answer.thread) == (1, 1)


def test_only_the_log_rows_of_a_tell_say_whose_mail_has_moved(world: World) -> None:
    tell(world, ALICE, "bob")
    tell(world, ALICE, "@all")
    rows = world.rows("select agent, path, version, spec from log join scope on scope.id = scope where op = 'tell'")
    assert rows == [
        ("alice", b"/tell/bob", 1, rows[0][3]), ("alice", b"/tell/bob", 2, rows[0][3]),
        ("alice", b"/tell/carol", 1, rows[2][3]),
    ]  # fmt: skip
    assert "bob" in rows[0][3] and "carol" in rows[2][3]


def test_mail_of_a_store_of_version_1_is_numbered_on(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with first_version(path) as db:
        for name in ("alice", "bob"):
            db.execute("insert into agent values(?, 0)", (name,))
        for number, recipient in ((1, "bob"), (2, "@all")):
            db.execute(
                "insert into message(sender, number, recipient, priority, body, at) values('alice', ?, ?, ?, ?, 1)",
                (number, recipient, "urgent", f"old {number}"),
            )
            db.execute("insert into delivery values('bob', ?, ?, null)", (number, db.last_insert_rowid()))
    (tmp_path / "world").mkdir()
    path.rename(tmp_path / "world" / "avm.db")
    world = World(tmp_path / "world", "direct")
    try:
        assert [(m.id, m.sender, m.priority, m.thread) for m in mail(world, BOB)] == [
            (1, "alice", "urgent", 1), (2, "alice", "urgent", 2),
        ]  # fmt: skip
        with world.reading(BOB) as reader:
            assert len(reader.mail.messages(unread_only=True, priority="urgent")) == 2
        assert tell(world, BOB, "alice", "new", re=2) == 3
        assert [(m.id, m.re) for m in mail(world, ALICE)] == [(3, 2)]
        with pytest.raises(OverQuota):
            tell(world, ALICE, "bob", unread_limit=1)
        assert database.integrity(world.path) == []
    finally:
        world.close()
