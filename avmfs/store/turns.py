"""Whose requests are in the writer's next transaction.

Owns the queue of what was asked and not yet taken. Called by the writer, in its one thread. Oldest first, but who is in
the middle of something does not queue again for the rest of it: a new note is two requests, and those who make one
would otherwise wait twice as long as those who change one. So the rest still comes into a transaction that is about to
be committed (``late``), as does a wait for the disk, which adds nothing to it; and of many that wait a part is taken at
once, so that there is something to come before.
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
        self._queue: deque[tuple[_Who, list[Any]]] = deque()
        self._unfinished: set[int] = set()  # files whose first bytes are still to come
        self._room = 0  # bytes that the transaction under way still takes

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, who: _Who, item: list[Any]) -> None:
        self._queue.append((who, item))

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
        queue = self._queue
        if len(queue) > AT_ONCE:
            self._first(self._is_unfinished)
        most = min(MOST, max(AT_ONCE, len(queue) // SHARE))
        batch = [queue.popleft()]
        self._room = 0
        if not queue or self._alone(batch[0][1]):
            return batch
        self._room = MOST_BYTES - written(batch[0][1])
        while queue and len(batch) < most and self._fits(queue[0][1]):
            batch.append(queue.popleft())
        return batch

    def late(self) -> list[tuple[_Who, list[Any]]]:
        """What is added to the transaction that ``next`` began, of what has come meanwhile."""
        count = self._first(lambda item: item[3] == SYNC or self._is_unfinished(item))
        found: list[tuple[_Who, list[Any]]] = []
        while len(found) < count and self._fits(self._queue[0][1]):
            found.append(self._queue.popleft())
        return found

    def _fits(self, item: list[Any]) -> bool:
        """Does the transaction take a request? Then it has."""
        size = written(item)
        if size > self._room or self._alone(item):
            return False
        self._room -= size
        return True

    def _first(self, chosen: Callable[[list[Any]], bool]) -> int:
        """Let these come first, and say how many they are."""
        first = [asked for asked in self._queue if chosen(asked[1])]
        if first:
            others = [asked for asked in self._queue if not chosen(asked[1])]
            self._queue.clear()
            self._queue.extend(first + others)
        return len(first)

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
