"""What a shared log is, whatever engine keeps it. tests/contract/test_sharedlog.py holds each of them to this.

Records are numbered from 1 without a gap. Who appends says which number the record has to get, so that a host that has
missed one cannot write as if it had not (fencing), and the token of the one before it, so that a host which has another
one of that number, as where the log has lost its end, cannot either. The *baton* is held by one host at a time, from
``take`` to ``append`` or ``give``, and ends with its connection: it spares hosts from colliding, and what is right does
not hang on it. An object is one connection, for one thread at a time; it connects when it is first asked, and anew
after a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from avmfs.errors import Busy, ReadOnly, StoreFailed

READ_BYTES: Final = 512 * 1024  # of records that are read at once, or of a larger one: a slow link has them in time
CLOCK_S: Final = 5.0  # by so much a host's clock may differ from the log's


class Unreachable(ReadOnly):
    """The log does not answer. What was asked has not been done."""


class InDoubt(StoreFailed):
    """The log was lost while it appended: it may have the record."""


class Overtaken(Busy):
    """Another record has that number. Nothing was appended."""


class Record(NamedTuple):
    """What one transaction of a host has changed. ``token``: 16 random bytes, by which a host knows its own again."""

    number: int
    token: bytes
    host: str
    data: bytes


class Host(NamedTuple):
    """``number``: up to which it has applied the log, when it last said so, ``age_s`` seconds ago by the log's clock.
    ``version``: of the tables that it can read."""

    name: str
    number: int
    version: int
    age_s: float


class Snapshot(NamedTuple):
    """A whole store as it was after the record ``number``."""

    number: int
    host: str
    size: int
    age_s: float


class SharedLog(Protocol):
    """See the module. Every method raises Unreachable."""

    def create(self, cluster: str) -> None:
        """Make the log, empty, under this id. Raises Exists."""

    def cluster(self) -> str:
        """The id that it was made with. Raises NotFound when there is none yet."""

    def take(self, after: int | None = None) -> int:
        """Wait for the baton, then return the newest number, 0 where there is none. ``after``: the ``has`` that comes
        next asks for that number, and the ``read`` for what follows it, and they need no way of their own."""

    def head(self) -> int:
        """Return the newest number, 0 where there is none."""

    def has(self, number: int, token: bytes) -> bool:
        """Return whether that is the token of the record of this number, for all that can be told: one that was cut may
        have had it, and b"" is any."""

    def append(self, record: Record, last: bytes = b"") -> None:
        """With the baton, which it gives back in any case. Durable once it returns. ``last``: the token of the one that
        it follows, as ``has`` takes it. Raises Overtaken when that, or the number, does not follow the newest,
        InDoubt."""

    def give(self) -> None:
        """Give the baton back. Never raises."""

    def read(self, after: int, most: int) -> list[Record]:
        """Records above ``after``, in order, at most so many; where they are large fewer, at least one, and with the
        baton perhaps none, as that takes its time."""

    def wait(self, after: int, most_s: float) -> int:
        """Return the newest number, as soon as it is above ``after`` or after ``most_s`` seconds."""

    def keep(self, clock: float, able: bool = True) -> bool:
        """Return whether this connection is the one that keeps house. It is until it ends, until its host is not
        ``able`` to, or until ``clock``, what that takes for the time (seconds since the epoch), is more than CLOCK_S
        away from what the log does."""

    def report(self, host: str, number: int, version: int) -> float:
        """Note how far a host has come. Returns what the log takes for the time, in seconds since the epoch."""

    def hosts(self) -> list[Host]: ...

    def forget(self, host: str) -> None:
        """It has left."""

    def put_snapshot(self, number: int, host: str, chunks: Iterable[bytes]) -> None:
        """Keep the snapshot and the one before it, and of the log what follows that one. All or nothing. Raises Stale
        where there is one of a greater number: the log may have been cut for what is in this one to be gone."""

    def cut(self, number: int) -> None:
        """Drop everything up to ``number``, of which there is a snapshot, but for that: records and snapshots, and
        their bytes too where the engine lets us. Can be repeated. Raises NotFound; Busy while the bytes are read."""

    def snapshots(self) -> list[Snapshot]:
        """The newest first."""

    def snapshot(self, number: int) -> Iterator[bytes]:
        """Its chunks, in order. Raises NotFound; Stale at the end of what another one has taken the place of."""

    def close(self) -> None: ...
