"""What a process that shows the tree does with live paths: whether what is kept still holds, and whom to ask if not.

Called by mounts, the door and programs, before a name is looked up, a file is read or a directory is listed. Asking is
done elsewhere (``Asker``): by ``fetching`` in this process, or over a socket in the one that does it for all. Holds no
lock and no snapshot while it waits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from avmfs_config import Provider

from avmfs import paths, wire
from avmfs.access import Access, Principal
from avmfs.errors import AvmError, Busy, Denied, NotFound, StoreFailed, from_wire
from avmfs.listener import Listener, in_thread
from avmfs.node import ITS_SEARCH, Live
from avmfs.providers.fetching import GONE, NAMES_S, NOBODY, SECOND, By, holds
from avmfs.providers.handler import ttl_of
from avmfs.store.identity import OPERATOR
from avmfs.store.schema.tables import ROOT
from avmfs.store.store import Store

SOCKET: Final = "live.sock"
LATE_S: Final = 5.0  # that an answer may be late beyond the time of the provider
TIMES: Final = 4  # that time: a write and the fetch after it, each of which may have to wait for a place first
CLIENTS: Final = 512


class Asker(Protocol):
    def ask(
        self, operation: str, parts: tuple[bytes, ...], data: bytes = b"", *, wait: bool = True, by: By = NOBODY
    ) -> list[bytes]:
        """See Fetcher.ask."""
        ...


class LiveTree:
    """See the module."""

    def __init__(
        self, store: Store, providers: tuple[Provider, ...], asker: Asker, clock: Callable[[], int], *, lasting: bool
    ) -> None:
        """``lasting``: this process lives on, so that what is stale can be fetched behind its reader."""
        self._store, self._providers, self._asker, self._clock = store, providers, asker, clock
        self._lasting = lasting
        self._tops = {paths.split(paths.raw(each.pattern))[:1] for each in providers}
        self.changed: dict[int, bytearray] = {}
        """By node, what a file has for who has it open and changed it last: its source may not have that yet."""

    def refresh(self, parts: tuple[bytes, ...]) -> None:
        """Before a read. Raises NotFound, StoreFailed where the source has nothing that may be shown."""
        provider = self._provider(parts)
        if provider is None:
            return
        known, now = self._known(parts), self._clock()
        if not holds(known, now, ttl_of(provider.handler, provider.ttl)):
            stale = known is not None and self._may_show(provider, known, now)
            self._asker.ask("fetch", parts, wait=not (stale and self._lasting))
            if stale and self._lasting:
                return
            known = self._known(parts)
        self._judge(provider, parts, known)

    def appear(self, who: Principal, parts: tuple[bytes, ...]) -> bool:
        """Of a name that the store does not have: may it be looked up once more? Raises what refresh does."""
        may, provider = self._access(who, parts), self._provider(parts)  # both, that time does not tell what is hidden
        leads = provider is not None or any(paths.leads_to(each.pattern, parts) for each in self._providers)
        if may < Access.READ or not leads:
            return False
        if provider is not None:
            self.refresh(parts)
        else:
            self._asker.ask("names", parts)
        return True

    def bring(self, parts: tuple[bytes, ...], directory: bool) -> None:
        """Before a file is read or a directory listed."""
        (self._listed if directory else self.refresh)(parts)

    def _listed(self, parts: tuple[bytes, ...]) -> None:
        if not any(
            paths.leads_to(each.pattern, parts) or paths.matches(each.pattern, (*parts, b"x"))
            for each in self._providers
        ):
            return
        known = self._known(parts)
        if not holds(known, self._clock(), NAMES_S):
            self._asker.ask("names", parts, wait=known is None or not self._lasting)

    def write(self, who: Principal, parts: tuple[bytes, ...], data: bytes) -> None:
        """Give a source that ``takes`` it the whole of a file. Raises what it refuses it with."""
        self._asker.ask("write", parts, data, by=(who.name, who.route, who.operator))

    def place(self, parts: tuple[bytes, ...]) -> None:
        """The name is there, for what is about to be written to it."""
        self._asker.ask("place", parts)

    def most(self, parts: tuple[bytes, ...]) -> int:
        """Bytes that a file may have there."""
        provider = self._provider(parts)
        return 0 if provider is None else provider.max_bytes

    def search(self, who: Principal, under: tuple[bytes, ...], q: str) -> tuple[list[int], str | None]:
        """What sources that ``under`` lies in answer to a question: documents, best first, whose texts are in the store
        by now, and why one could not be asked."""
        found: list[tuple[bytes, ...]] = []
        failed = None
        tops = {paths.fixed_part(each.pattern): each for each in self._providers if each.search}
        for top, provider in tops.items():
            if under[: len(top)] != top or paths.matches(provider.pattern, top) or not self._access(who, top):
                continue
            try:
                names = self._asker.ask("search", top, q.encode("utf-8", "surrogateescape"))
            except AvmError as e:
                failed = f"{ITS_SEARCH} {paths.printable(paths.join(top))}: {e.reason}"
                continue
            found += [(*top, *paths.split(b"/" + name)) for name in names]
        here = [parts for parts in found if parts[: len(under)] == under]
        if not here:
            return [], failed
        with ThreadPoolExecutor(len(here)) as pool:
            came = pool.map(partial(self._comes, who), here)
        return [each for each in came if each is not None], failed

    def _comes(self, who: Principal, parts: tuple[bytes, ...]) -> int | None:
        """The document at a path, once it has been fetched; None for what cannot be, which its readers are told."""
        with contextlib.suppress(AvmError):
            self.appear(who, parts)
            with self._store.reading(who) as reader:
                node = reader.node(ROOT)
                for name in parts:
                    if (found := reader.child(node.id, name)) is None:
                        return None
                    node = found
                return node.document
        return None

    def takes(self, who: Principal, parts: tuple[bytes, ...]) -> bool:
        """Return whether a source takes what is written there. Raises Denied where ``who`` may only read."""
        provider = self._provider(parts)
        if provider is None or not provider.writable or (may := self._access(who, parts)) < Access.READ:
            return False
        who.require("write")
        if may < Access.WRITE or who.nameless:
            raise Denied("read-only for you", paths.text(paths.join(parts)))
        return True

    def has(self, parts: tuple[bytes, ...]) -> bool:
        """Return whether anything below that name of the root is live."""
        return parts[:1] in self._tops

    def _access(self, who: Principal, parts: tuple[bytes, ...]) -> Access:
        """Of a path that may not be in the store yet. What an area of a key has is not known before it is there."""
        if who.key is not None and who.key.areas is not None:
            return Access.NONE
        if who.operator:
            return Access.WRITE
        with self._store.reading(who) as reader:
            may = reader.people.access(who.name, parts)
        return may if who.may("read") else Access.NONE

    def _provider(self, parts: tuple[bytes, ...]) -> Provider | None:
        return next((each for each in self._providers if paths.matches(each.pattern, parts)), None)

    def _known(self, parts: tuple[bytes, ...]) -> Live | None:
        with self._store.reading(OPERATOR) as reader:
            return reader.live(paths.join(parts))

    def _may_show(self, provider: Provider, known: Live, now: int) -> bool:
        """Whether what is kept is not too old; what was fetched at a time to come may be of any age."""
        ttl = ttl_of(provider.handler, provider.ttl)
        most = int((ttl + (ttl if provider.stale_s is None else provider.stale_s)) * SECOND)
        return known.fetched is not None and 0 <= now - known.fetched < most

    def _judge(self, provider: Provider, parts: tuple[bytes, ...], known: Live | None) -> None:
        where = paths.text(paths.join(parts))
        if known is None or not known.error:
            return  # a directory, or just fetched
        if known.error == GONE:
            raise NotFound(GONE, where)
        if not self._may_show(provider, known, self._clock()):
            raise StoreFailed(known.error, where)


class RemoteAsker:
    """Asks the process that fetches for all, over its socket."""

    def __init__(self, path: Path, providers: tuple[Provider, ...]) -> None:
        self._path = path
        self._limit = max((each.timeout_s for each in providers), default=0.0) * TIMES + LATE_S

    def ask(
        self, operation: str, parts: tuple[bytes, ...], data: bytes = b"", *, wait: bool = True, by: By = NOBODY
    ) -> list[bytes]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(self._limit)
                wire.connect(sock, self._path)
                wire.send(sock, [operation, [*parts], data, wait, [*by]])
                names, error = wire.receive(sock)
        except (OSError, EOFError, wire.FrameError) as e:
            raise Busy(f"live content: the daemon does not answer ({e})") from None
        if error:
            raise from_wire(*error)
        return [*names]


def serve(listener: socket.socket, asker: Asker, stop: threading.Event) -> None:
    """Answer until ``stop``: each request in a thread of its own, which waits for its source."""
    room = threading.BoundedSemaphore(CLIENTS)

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError, wire.FrameError):
            try:
                client.settimeout(LATE_S)
                operation, parts, data, wait, by = wire.receive(client)
                wire.send(client, [asker.ask(operation, tuple(parts), data, wait=wait, by=tuple(by)), None])
            except AvmError as e:
                wire.send(client, [None, [e.code, e.reason, e.filename]])
            finally:
                room.release()

    for client in Listener(listener, "live").clients(stop):
        if client is not None:
            room.acquire()
            if not in_thread("live", answer, client):
                room.release()
                client.close()
