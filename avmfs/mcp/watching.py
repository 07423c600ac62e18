"""Change notifications: who wants to hear of which resource, and the thread that waits for changes.

Owns subscriptions of both protocol eras: resources/subscribe with notifications to the session (until 2025-11), and
subscriptions/listen with a stream of events (2026-07). One thread asks the door's ``watch`` over a connection of its
own, and only once somebody has subscribed or asked for the list of resources.

Everything but that thread runs in the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated

from avmfs.errors import AvmError, Denied
from avmfs.mcp.resources import News, touched
from avmfs.mcp.session import Session

log = logging.getLogger(__name__)

WAIT_S = 50.0
PAUSE_S = 1.0  # before trying again while there is no door
READY_S = 5.0  # that a subscription waits until changes are watched


Listener = Any  # the SDK's ServerSession


class Watching:
    """See the module. ``close`` ends the thread."""

    def __init__(self, session: Session) -> None:
        self.bus = InMemorySubscriptionBus()
        self._main = session
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = anyio.Event()  # changes are told of
        self._early = False  # somebody did not wait for that
        self._over = threading.Event()
        self._here: set[int] = set()  # connections of which something is kept
        self._subscribed: dict[str, dict[int, Listener]] = {}
        self._lists: dict[int, Listener] = {}
        self._wanted: dict[str, int] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def subscribe(self, listener: Listener, uri: str) -> None:
        self._subscribed.setdefault(uri, {})[self._connection(listener)] = listener
        await self.begin()

    def unsubscribe(self, listener: Listener, uri: str) -> None:
        self._drop(self._connection(listener), uri)

    async def listed(self, listener: Listener) -> None:
        """This client has seen the list of resources: it hears when that changes."""
        self._lists[self._connection(listener)] = listener
        await self.begin()

    def _connection(self, listener: Listener) -> int:
        """Whose requests a listener is of: one is made for each. Once the connection is over nothing of it is kept; the
        SDK says nowhere that nobody takes what is sent, and has no public way to a connection from here."""
        connection = listener._connection
        if id(connection) not in self._here:
            self._here.add(id(connection))
            connection.exit_stack.callback(self._gone, id(connection))
        return id(connection)

    def _gone(self, connection: int) -> None:
        self._here.discard(connection)
        self._lists.pop(connection, None)
        for uri in [*self._subscribed]:
            self._drop(connection, uri)

    def _drop(self, connection: int, uri: str) -> None:
        held = self._subscribed.get(uri, {})
        held.pop(connection, None)
        if not held:
            self._subscribed.pop(uri, None)

    @contextlib.contextmanager
    def wanted(self, uris: list[str]) -> Iterator[None]:
        """Publish events of these resources meanwhile."""
        for uri in uris:
            self._wanted[uri] = self._wanted.get(uri, 0) + 1
        try:
            yield
        finally:
            for uri in uris:
                self._wanted[uri] -= 1
                if not self._wanted[uri]:
                    del self._wanted[uri]

    def close(self) -> None:
        self._over.set()
        if self._session is not None:
            self._session.close()

    async def begin(self) -> None:
        """Returns once changes from now on will be told; after READY_S all the same, and then, later, of everything."""
        if self._loop is None:
            self._loop, self._ready = asyncio.get_running_loop(), anyio.Event()
            ready = (partial(self._loop.call_soon_threadsafe, self._ready.set),)
            try:
                threading.Thread(target=self._watch, args=ready, name="watch", daemon=True).start()
            except RuntimeError:  # no more threads: whoever asks next begins
                self._loop = None
                raise
        with anyio.move_on_after(READY_S) as waited:
            await self._ready.wait()
        self._early |= waited.cancelled_caught

    def _watch(self, ready: Any) -> None:
        seq: int | None = None
        unread: int | None = None
        while not self._over.is_set():
            try:
                if self._session is None:
                    self._session = self._main.another()
                    if self._over.is_set():  # ``close`` has found nothing to close
                        self._session.close()
                found, _ = self._session.call("watch", {"since": seq, "unread": unread, "wait": WAIT_S})
            except Denied as e:  # its key was revoked: who subscribes later asks anew
                log.info("waiting for changes is over: %s", e)
                self._loop = None
                break
            except (OSError, ValueError) as e:  # nobody would begin anew what a defect ends
                level = logging.INFO if isinstance(e, AvmError) else logging.ERROR
                log.log(level, "waiting for changes: %s", e)
                self._over.wait(PAUSE_S)
                continue
            before, (seq, unread) = (seq, unread), (found["seq"], found["unread"])
            if before == (None, None):
                ready()
                if self._early:
                    self._tell(News((), everything=True, mail=True))
            elif before != (seq, unread):
                self._tell(News(found["paths"], bool(found["all"]), mail=before[1] != unread))
                time.sleep(0.05)  # a burst of commits is one notification

    def _tell(self, news: News) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it closed just now
                loop.call_soon_threadsafe(self._spread, news)

    def _spread(self, news: News) -> None:
        task = asyncio.ensure_future(self._send(news))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, news: News) -> None:
        for uri in [uri for uri in self._wanted if touched(uri, news)]:
            await self.bus.publish(ResourceUpdated(uri=uri))
        for uri in [uri for uri in self._subscribed if touched(uri, news)]:
            for listener in list(self._subscribed.get(uri, {}).values()):
                await listener.send_resource_updated(uri)
        if news.of_files:
            await self.bus.publish(ResourcesListChanged())
            for listener in list(self._lists.values()):
                await listener.send_resource_list_changed()
