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

from avmfs.store import piecemeal

MOST: Final = 256  # requests in a transaction
MOST_BYTES: Final = 4 * 1024 * 1024  # of writes in it: its pages must fit into the log (``checkpoint``)
AT_ONCE: Final = 8  # requests that are taken even where no more wait than that;
SHARE: Final = 2  # of more than twice as many, half
_UNFINISHED: Final = 4096  # files that are remembered to have had no bytes yet

CREATE, COMMIT, SYNC = "create", "commit", "sync"

_Who = TypeVar("_Who")


class Turns(Generic[_Who]):
    """Requests as they come over the wire: ``[number, agent, rights, command, arguments, ...]``, none of it checked.
    ``alone`` says which must not share a transaction with others."""

    def __init__(self, alone: Callable[[list[Any]], bool]) -> None:
        self._alone = alone
        self._queue: deque[tuple[int, _Who, list[Any]]] = deque()  # during which transaction it came, from whom, what
        self._taken = 0  # transactions so far
        self._unfinished: set[int] = set()  # files whose first bytes are still to come
        self._room = 0  # bytes that the transaction under way still takes

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, who: _Who, item: list[Any]) -> None:
        self._queue.append((self._taken, who, item))

    def applied(self, command: str, arguments: dict[str, Any], reply: Any) -> None:
        """Hear what has been done for somebody: by that is known who has yet to finish what."""
        if command == CREATE:
            if len(self._unfinished) >= _UNFINISHED:  # killed, or content with an empty file
                self._unfinished.clear()
            self._unfinished.add(reply["node"])
        elif command == COMMIT:
            self._unfinished.discard(arguments["node"])

    def next(self) -> list[tuple[_Who, list[Any]]]:
        """What the next transaction is for; there is something. One that has to be alone is."""
        self._taken += 1
        queue = self._queue
        if len(queue) > AT_ONCE:
            self._queue = queue = deque(sorted(queue, key=self._rank))
        most = min(MOST, max(AT_ONCE, len(queue) // SHARE))
        batch = [queue.popleft()[1:]]
        self._room = 0
        if not queue or self._alone(batch[0][1]):
            return batch
        self._room = MOST_BYTES - written(batch[0][1])
        while queue and len(batch) < most and self._fits(queue[0][2]):
            batch.append(queue.popleft()[1:])
        return batch

    def late(self) -> list[tuple[_Who, list[Any]]]:
        """What is added to the transaction that ``next`` began, of what has come meanwhile."""
        found: list[tuple[_Who, list[Any]]] = []
        others: deque[tuple[int, _Who, list[Any]]] = deque()
        for asked in self._queue:
            _, who, item = asked
            if (item[3] == SYNC or self._is_unfinished(item)) and self._fits(item):
                found.append((who, item))
            else:
                others.append(asked)
        self._queue = others
        return found

    def _fits(self, item: list[Any]) -> bool:
        """Does the transaction take a request? Then it has."""
        size = written(item)
        if size > self._room or self._alone(item):
            return False
        self._room -= size
        return True

    def _rank(self, asked: tuple[int, _Who, list[Any]]) -> int:
        """By this the queue is sorted, which is in the order of coming."""
        came, _, item = asked
        return -1 if self._is_unfinished(item) else 2 * came + (item[3] != CREATE)

    def _is_unfinished(self, item: list[Any]) -> bool:
        """Are these the first bytes of a file that was just made? Its maker has queued once, like anybody."""
        command, arguments = item[3:5]
        if command != COMMIT or not isinstance(arguments, dict):
            return False
        node = arguments.get("node")
        return type(node) is int and node in self._unfinished


def written(item: list[Any]) -> int:
    """How many bytes a request writes."""
    return piecemeal.size(item[4]) if isinstance(item[4], dict) else 0
