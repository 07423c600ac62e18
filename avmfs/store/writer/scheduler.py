"""Whose requests are in the writer's next transaction.

Owns the queue of what was asked and not yet taken. Called by the writer, in its one thread. Oldest first, but a new
note is two requests, and those who make one must not wait twice as long as those who change one. So its first bytes do
not queue again, and still come into a transaction that is about to be committed (``late``), as does a wait for the
disk, which adds nothing to it; and the request that makes it comes before what else was asked during the same
transaction, though never before what has waited for longer. Of many that wait a part is taken at once, so that there is
something to come before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from avmfs.store.writer.request import Request

MOST: Final = 256  # requests in a transaction
MOST_BYTES: Final = 4 * 1024 * 1024  # of writes in it: its pages must fit into the log (``checkpoint``)
AT_ONCE: Final = 8  # requests that are taken even where no more wait than that;
SHARE: Final = 2  # of more than twice as many, half
_UNFINISHED: Final = 4096  # files that are remembered to have had no bytes yet

_Who = TypeVar("_Who")


class Scheduler(Generic[_Who]):
    """Requests and from whom they are; their arguments are not checked yet. ``alone`` says which must not share a
    transaction with others."""

    def __init__(self, alone: Callable[[Request], bool]) -> None:
        self._alone = alone
        self._queue: deque[tuple[int, _Who, Request]] = deque()  # during which transaction it came, from whom, what
        self._taken = 0  # transactions so far
        self._unfinished: set[int] = set()  # files whose first bytes are still to come
        self._room: int  # bytes that the transaction under way still takes: see next

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, who: _Who, request: Request) -> None:
        self._queue.append((self._taken, who, request))

    def applied(self, request: Request, reply: Any) -> None:
        """Hear what has been done for somebody: by that is known who has yet to finish what."""
        if request.traits.begins_file:
            if len(self._unfinished) >= _UNFINISHED:  # killed, or content with an empty file
                self._unfinished.clear()
            self._unfinished.add(reply["node"])
        elif request.traits.fills_file:
            self._unfinished.discard(request.arguments["node"])

    def next(self) -> list[tuple[_Who, Request]]:
        """What the next transaction is for; there is something. One that has to be alone is."""
        self._taken += 1
        queue = self._queue
        if len(queue) > AT_ONCE:
            self._queue = queue = deque(sorted(queue, key=self._rank))
        most = min(MOST, max(AT_ONCE, len(queue) // SHARE))
        batch = [queue.popleft()[1:]]
        first = batch[0][1]
        self._room = -1 if self._alone(first) else MOST_BYTES - first.size
        while queue and len(batch) < most and self._fits(queue[0][2]):
            batch.append(queue.popleft()[1:])
        return batch

    def take(self, wanted: Callable[[Request], bool]) -> list[tuple[_Who, Request]]:
        """What waits and is ``wanted``. It is in no transaction."""
        found = [asked[1:] for asked in self._queue if wanted(asked[2])]
        self._queue = deque(asked for asked in self._queue if not wanted(asked[2]))
        return found

    def late(self, *, everybody: bool = False) -> list[tuple[_Who, Request]]:
        """What is added to the transaction that ``next`` began, of what has come meanwhile; all that it takes where
        ``everybody`` is let in."""
        found: list[tuple[_Who, Request]] = []
        others: deque[tuple[int, _Who, Request]] = deque()
        for asked in self._queue:
            _, who, request = asked
            allowed = everybody or request.traits.only_syncs or self._is_unfinished(request)
            if allowed and len(found) < MOST and self._fits(request):
                found.append((who, request))
            else:
                others.append(asked)
        self._queue = others
        return found

    def _fits(self, request: Request) -> bool:
        """Return whether the transaction takes a request. Then it has."""
        if fits := request.size <= self._room and not self._alone(request):
            self._room -= request.size
        return fits

    def _rank(self, asked: tuple[int, _Who, Request]) -> tuple[bool, int, bool]:
        """By this the queue is sorted, which is in the order of coming."""
        came, _, request = asked
        return not self._is_unfinished(request), came, not request.traits.begins_file

    def _is_unfinished(self, request: Request) -> bool:
        """Return whether these are the first bytes of a file that was just made. Its maker has queued once, like
        anybody."""
        node = request.arguments.get("node")
        return request.traits.fills_file and type(node) is int and node in self._unfinished
