"""What clients were answered last: a request that is sent again gets the same answer.

Owns the table ``applied``, and the newest of its rows in memory. Called by ``loop``.
"""

from __future__ import annotations

import time
from typing import Any, Final

import apsw

from avmfs import wire
from avmfs.errors import AvmError
from avmfs.lru import FIFO

ANSWERED: Final = 4096  # clients whose last reply is in memory


class AppliedRequests:
    """See the module. Replies are packed."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._do = db.cursor().execute
        self._known: FIFO[bytes, tuple[int, bytes]] = FIFO(ANSWERED)

    def last(self, client: bytes) -> tuple[int, bytes] | None:
        """The number and the reply of the last request that was applied for this client."""
        known = self._known.get(client)
        if known is None:
            row: Any = self._db.execute("select num, reply from applied where client = ?", (client,)).fetchone()
            if row is None:
                return None
            known = row[0], bytes(row[1])
            self._known.put(client, known)
        return known

    def record(self, client: bytes, number: int, packed: bytes) -> None:
        """Store the reply, in the transaction of the change."""
        self._do(
            "insert or replace into applied(client, num, reply, at) values(?, ?, ?, ?)",
            (client, number, packed, time.time_ns()),
        )

    def keep(self, client: bytes, number: int, packed: bytes) -> None:
        """In memory, what ``record`` has stored."""
        self._known.put(client, (number, packed))

    def forget(self) -> None:
        """After a rollback: what is in memory may not be in the table."""
        self._known.clear()


def reply(number: int, packed: bytes) -> bytes:
    """What ``wire.pack([number, None, result])`` makes, with the result packed already."""
    return b"\x93" + wire.pack(number) + b"\xc0" + packed


def refused(number: int, error: AvmError) -> bytes:
    return wire.pack([number, [error.code, error.reason, error.filename], None])


def refused_instead(answer: bytes, error: AvmError) -> bytes:
    """To the request that ``answer`` was for."""
    return refused(wire.unpack(answer)[0], error)
