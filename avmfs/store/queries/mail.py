"""An agent's own mail, and what it may send: every SELECT about messages.

Owns the read side of mail for ``reader.mail``, and the words in which a limit refuses, which the command that sends
uses too. Every query is bound to the asker's name; expired mail is left out of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Invalid, OverQuota
from avmfs.node import Message
from avmfs.store.queries.part import Part
from avmfs.store.rows.mail_limits import MINUTE, UNREAD, UNREAD_FROM, all_full, full, re_unknown, too_fast, too_long
from avmfs.store.rows.stored_policy import policy_in_force

_LIVE: Final = "agent = :agent and (delivery.expires is null or delivery.expires > :now)"
_COLUMNS: Final = (
    "select delivery.number, delivery.sender, recipient, delivery.priority, body, at, delivery.expires, read_at,"
    " delivery.re, coalesce(delivery.thread, delivery.number)"
)
_URGENT_FIRST: Final = (
    "case delivery.priority when 'urgent' then 0 when 'normal' then 1 else 2 end, delivery.message desc"
)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """How much there is. ``unread`` holds numbers by priority: urgent, normal, low."""

    messages: int
    unread: dict[str, int]


class MailReader(Part):
    """Every question is about the asker's own mail, or about what it may send."""

    def messages(
        self, *, unread_only: bool = False, priority: str | None = None, read: int | None = None
    ) -> list[Message]:
        """The asker's mail: unread first, urgent first, then newest first; of what is read at most ``read`` messages.
        Expired mail is gone."""
        self._who.require("inbox")
        # A literal, where there is an index of just those.
        urgent = priority == "urgent"
        chosen = " and delivery.priority = 'urgent'" if urgent else " and delivery.priority = :priority"
        chosen, index = chosen if priority else "", "urgent" if urgent else "unread"
        found = self._all(
            f"{_COLUMNS} from delivery indexed by {index} join message on message.id = delivery.message"
            f" where {_LIVE} and read_at is null{chosen} order by {_URGENT_FIRST}",
            priority=priority,
        )
        if not unread_only:
            found += self._all(
                f"{_COLUMNS} from delivery join message on message.id = delivery.message"
                f" where {_LIVE} and delivery.message in (select message from delivery"
                f" where {_LIVE} and read_at is not null{chosen} order by message desc limit :read)"
                f" order by {_URGENT_FIRST}",
                priority=priority,
                read=-1 if read is None else read,
            )
        return [Message(*row) for row in found]

    def urgent(self, limit: int) -> list[Message]:
        """What is urgent and unread, the newest first; no more bodies are read than that."""
        self._who.require("inbox")
        found = self._all(
            f"{_COLUMNS} from delivery join message on message.id = delivery.message"
            " where agent = :agent and delivery.message in (select message from delivery indexed by urgent"
            f" where {_LIVE} and read_at is null and priority = 'urgent' order by message desc limit :limit)"
            " order by delivery.message desc",
            limit=limit,
        )
        return [Message(*row) for row in found]

    def unread(self) -> list[int]:
        """The numbers of what is unread, in order."""
        self._who.require("inbox")
        rows = self._all(f"select number from delivery indexed by unread where {_LIVE} and read_at is null")
        return sorted(number for (number,) in rows)

    def counts(self) -> Mailbox:
        self._who.require("inbox")
        unread = dict.fromkeys(("urgent", "normal", "low"), 0)
        unread |= dict(
            self._all(
                f"select priority, count(*) from delivery indexed by unread where {_LIVE} and read_at is null"
                " group by priority"
            )
        )
        (messages,) = self._all(f"select count(*) from delivery where {_LIVE}")[0]
        return Mailbox(messages, unread)

    def unread_of_all(self) -> dict[str, int]:
        """By agent, without low priority. Raises Denied for who is no operator."""
        self._who.require_operator("only an operator may look at others' mail")
        return dict(
            self._all(
                "select agent, count(*) from delivery where read_at is null and priority <> 'low'"
                " and (expires is null or expires > :now) group by agent"
            )
        )

    def any_unread(self, thread: int | None = None) -> bool:
        self._who.require("inbox")
        of_thread = "" if thread is None else " and coalesce(thread, number) = :thread"
        unread = f"select 1 from delivery indexed by unread where {_LIVE} and read_at is null{of_thread} limit 1"
        return bool(self._all(unread, thread=thread))

    def refusal(
        self, recipient: str, size: int, re: int | None, *, body_limit: int, unread_limit: int, rate_limit: int
    ) -> None:
        """Raises what sending ``size`` bytes there would raise now."""
        me, policy = self._who.name, policy_in_force(self._db)
        self._who.require("tell")
        policy.require(self._who, "write")
        if size > body_limit:
            raise OverQuota(too_long(body_limit))
        if re is not None:
            self._who.require("inbox")
        if re is not None and not self._all(
            "select 1 from delivery where agent = :agent and number = :number"
            " union all select 1 from message where sender = :agent and number = :number limit 1",
            number=re,
        ):
            raise Invalid(re_unknown(re))
        row: Any = self._db.execute("select since, told from mailbox where agent = ?", (me,)).fetchone()
        if row is not None and row[1] >= rate_limit and row[0] <= self._now < row[0] + MINUTE:
            raise OverQuota(too_fast(rate_limit, row[0] + MINUTE - self._now))
        if recipient == paths.EVERYONE:
            return
        quota = policy.person(recipient).quota.unread
        if quota is not None and self._db.execute(UNREAD, (recipient, self._now)).get >= quota:
            raise OverQuota(all_full(recipient))
        if self._db.execute(UNREAD_FROM, (recipient, me, False, self._now)).get >= unread_limit:
            raise OverQuota(full(recipient, unread_limit))
