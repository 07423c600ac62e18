"""A shared log in the memory of one process, for tests: the second implementation of ``SharedLog``.

``MemoryServer`` is what hosts share; each has a ``MemoryLog``. ``server.lose`` names what fails next: "take", "before"
(the append is not done), "neither" (nor is that known) or "after" (it is done, and the reply is lost). ``server.down``
is as if it were not there; ``server.clock`` is its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from avmfs.errors import Exists, NotFound, Stale
from avmfs.store.sharedlog.protocol import CLOCK_S, READ_BYTES, Host, InDoubt, Overtaken, Record, Snapshot, Unreachable

HELD_S = 5.0


class MemoryServer:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.baton: MemoryLog | None = None
        self.keeper: MemoryLog | None = None
        self.cluster = ""
        self.records: list[Record] = []
        self.newest = 0
        self.reported: dict[str, tuple[int, int, float]] = {}
        self.kept: dict[int, tuple[str, list[bytes], float]] = {}
        self.lose: list[str] = []
        self.down = False
        self.clock: Callable[[], float] = time.time

    def losing(self, what: str) -> bool:
        if self.lose and self.lose[0] == what:
            self.lose.pop(0)
            return True
        return False


class MemoryLog:
    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def _asked(self) -> MemoryServer:
        if self._server.down:
            self.close()
            raise Unreachable("the log is down")
        return self._server

    def close(self) -> None:
        server = self._server
        self.give()
        with server.changed:
            if server.keeper is self:
                server.keeper = None

    def create(self, cluster: str) -> None:
        server = self._asked()
        if server.cluster:
            raise Exists("there is one")
        server.cluster = cluster

    def cluster(self) -> str:
        if not self._asked().cluster:
            raise NotFound("there is no log")
        return self._server.cluster

    def take(self, after: int | None = None) -> int:
        server = self._asked()
        if server.losing("take"):
            raise Unreachable("the link was cut")
        with server.changed:
            if not server.changed.wait_for(lambda: server.baton in (None, self), HELD_S):
                raise Unreachable("the baton is held")
            server.baton = self
            return server.newest

    def head(self) -> int:
        return self._asked().newest

    def has(self, number: int, token: bytes) -> bool:
        with self._asked().changed:
            return not token or all(token == each.token for each in self._server.records if each.number == number)

    def append(self, record: Record, last: bytes = b"") -> None:
        server = self._asked()
        try:
            if server.losing("before"):
                raise Unreachable("the link was cut")
            if server.losing("neither"):
                raise InDoubt("the link was cut")
            with server.changed:
                if record.number != server.newest + 1 or not self.has(server.newest, last):
                    raise Overtaken("another record has that number")
                server.records.append(record)
                server.newest = record.number
                server.changed.notify_all()
            if server.losing("after"):
                raise InDoubt("the link was cut")
        finally:
            self.give()

    def give(self) -> None:
        with self._server.changed:
            if self._server.baton is self:
                self._server.baton = None
                self._server.changed.notify_all()

    def read(self, after: int, most: int) -> list[Record]:
        server = self._asked()
        with server.changed:
            found, size = [], 0
            for record in (each for each in server.records if each.number > after):
                if len(found) == most or size >= READ_BYTES:
                    break
                found.append(record)
                size += len(record.data)
            return found

    def wait(self, after: int, most_s: float) -> int:
        server = self._asked()
        with server.changed:
            server.changed.wait_for(lambda: server.newest > after or server.down, most_s)
        return self._asked().newest

    def keep(self, clock: float, able: bool = True) -> bool:
        server = self._asked()
        with server.changed:
            if able and abs(clock - server.clock()) <= CLOCK_S:
                server.keeper = server.keeper or self
            elif server.keeper is self:
                server.keeper = None
            return server.keeper is self

    def report(self, host: str, number: int, version: int) -> float:
        self._asked().reported[host] = number, version, time.monotonic()
        return self._server.clock()

    def hosts(self) -> list[Host]:
        now = time.monotonic()
        return [Host(name, n, v, now - at) for name, (n, v, at) in sorted(self._asked().reported.items())]

    def forget(self, host: str) -> None:
        self._asked().reported.pop(host, None)

    def put_snapshot(self, number: int, host: str, chunks: Iterable[bytes]) -> None:
        server = self._asked()
        whole = list(chunks)
        with server.changed:
            if any(each > number for each in server.kept):
                raise Stale("there is a newer snapshot")
            server.kept[number] = host, whole, time.monotonic()
            server.kept = {n: server.kept[n] for n in sorted(server.kept)[-2:]}
            server.records = [record for record in server.records if record.number > min(server.kept)]

    def cut(self, number: int) -> None:
        server = self._asked()
        with server.changed:
            if number not in server.kept:
                raise NotFound(f"there is no snapshot {number}")
            server.kept = {n: kept for n, kept in server.kept.items() if n >= number}
            server.records = [record for record in server.records if record.number > number]

    def snapshots(self) -> list[Snapshot]:
        now = time.monotonic()
        kept = sorted(self._asked().kept.items(), reverse=True)
        return [Snapshot(n, host, sum(map(len, chunks)), now - at) for n, (host, chunks, at) in kept]

    def snapshot(self, number: int) -> Iterator[bytes]:
        found = self._asked().kept.get(number)
        if found is None:
            raise NotFound(f"there is no snapshot {number}")
        yield from found[1]
