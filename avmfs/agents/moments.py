"""Instants of the past as people name them: ``yesterday``, ``-2h``, ``2026-03-01T12:00``, ``seq.7``, ``snap.NAME``.

Owns what such names mean, and which instant one stands for while somebody is in it. Called by ``Memory.moment``. Which
of them the store still has is its own question.
"""

from __future__ import annotations

import threading
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from avmfs.access import Principal
from avmfs.agents import mail
from avmfs.errors import Invalid, NotFound
from avmfs.localtime import DAY_NS
from avmfs.lru import LRU
from avmfs.node import Moment
from avmfs.store.schema.tables import ROOT

if TYPE_CHECKING:
    from avmfs.store.store import Store

RESTS_NS, KEPT = 60 * 10**9, 64


def parse(text: str, now: int, zone: tzinfo) -> Moment | int | str:
    """What ``Reader.moment`` takes. A time is local unless it has an offset, and the end of its microsecond: one that
    was told of a change (``mail.iso``) is after that change. Raises NotFound."""
    kind, _, rest = text.partition(".")
    if kind == "seq" and rest.isascii() and rest.isdecimal():
        return Moment(int(rest), 0)
    if kind == "snap":
        return rest
    if text == "yesterday":
        return now - DAY_NS
    try:
        if text.startswith("-"):
            return now - mail.parse_duration(text[1:])
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=zone) if at.tzinfo is None else at
        return int(at.timestamp()) * 10**9 + at.microsecond * 1000 + 999
    except (Invalid, ValueError, OverflowError):
        raise NotFound(
            f"@{text[:80]}: expected @yesterday, @-2h, a time such as @2026-03-07T10:30, @seq.N or @snap.NAME"
        ) from None


class Moments:
    """The instants that one agent has named of late. Threads may share it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: LRU[str, tuple[Moment, int]] = LRU(KEPT)

    def named(self, store: Store, who: Principal, text: str, now: int, zone: tzinfo) -> Moment:
        """While somebody is in it, ``-2h`` and the like stay where they are. Raises NotFound; for an API key also of a
        snapshot that has nothing for it."""
        with self._mutex:
            known = self._known.get(text)
        fresh = known is not None and now - known[1] < RESTS_NS
        if known is not None and fresh:
            then = known[0]
        else:
            with store.reading(who) as reader:
                then = reader.moment(parse(text, now, zone))
        if who.key is not None and then.root != ROOT:
            with store.reading_at(who, then) as past:
                try:
                    past.path(then.root)
                except NotFound:
                    raise NotFound(f"there is no snapshot {text.partition('.')[2]!r}") from None
        if not text.startswith("snap."):
            with self._mutex:
                self._known.put(text, (then, now))
        return then
