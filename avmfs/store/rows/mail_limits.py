"""The limits of mail: how what counts against them is counted, and the words in which they refuse."""

from __future__ import annotations

from typing import Final

MINUTE: Final = 60 * 1_000_000_000

UNREAD: Final = (
    "select count(*) from delivery indexed by unread"
    " where agent = ? and read_at is null and (expires is null or expires > ?)"
)

UNREAD_FROM: Final = (
    "select count(*) from delivery indexed by unread"
    " where agent = ? and sender = ? and everyone = ? and read_at is null and (expires is null or expires > ?)"
)


def too_long(limit: int) -> str:
    return f"a message may have {limit} bytes"


def too_fast(limit: int, left: int) -> str:
    """``left`` until the minute is over, ns."""
    return f"{limit} messages a minute are the most that one agent may send: go on in {max(1, left // 10**9)} s"


def full(receiver: str, limit: int) -> str:
    return f"{receiver} has {limit} messages of yours unread, the most that are kept"


def all_full(receiver: str) -> str:
    return f"the mailbox of {receiver} is full"


def re_unknown(number: int) -> str:
    return f"re={number}: you have no message #{number}"
