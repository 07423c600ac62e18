"""One agent's door, kept open for as long as the server lives.

Owns the choice of the door at every call: a daemon that was started, stopped or replaced since the last one is found,
and a connection that the daemon has closed for its silence is opened again. What only reads is asked once more when the
daemon went away in the middle; what changes something is not, since it may have been done, nor a view that tells once.

Threads share it; calls are one after the other. Imports no model, and no store while a daemon runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from avmfs_config import ConfigError, Paths

from avmfs import paths
from avmfs.api.autostart import begin
from avmfs.api.connect import open_door
from avmfs.errors import Busy, Interrupted, Invalid
from avmfs.mcp.content import clean
from avmfs.rpc.client import Door, OpenDoor, RemoteDoor
from avmfs.rpc.tracing import traced
from avmfs.store.files.store_lock import StoreLock

_READS = "bundle digest entries history links listing locate nonce read recall recent search unread urgent watch"
READING = frozenset(_READS.split())


class Session:
    """Raises what the door raises, at once when this user may not be that agent. ``begins``: a daemon that it starts is
    not waited for."""

    def __init__(
        self, where: Paths, agent: str, environ: Mapping[str, str] = os.environ, *, begins: bool = False
    ) -> None:
        self._where = where
        self._environ = environ
        self._mutex = threading.Lock()
        self._over = False
        # A client waits for the server's start for a few seconds only: the daemon is there at one of the next calls.
        with contextlib.suppress(PermissionError):  # another user's store, which has a daemon or none for this one
            if begins and not environ.get("AVM_AT") and StoreLock(where.database).holder() is None:
                begin(where, environ)
        self._door: OpenDoor | None = self._open(agent, autostart=not begins)
        self.agent = agent or self._door.agent  # whose the token of an address is

    def another(self) -> Session:
        """The same with a connection of its own, for who waits long."""
        return Session(self._where, self.agent, self._environ)

    def call(self, method: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        """A method's result, and the banner of unread urgent mail as of then."""
        with self._mutex:
            try:
                return self._ask(method, arguments)
            except Busy:
                if self._door is not None or method not in READING or _tells_once(arguments.get("path")):
                    raise
                return self._ask(method, arguments)

    def close(self) -> None:
        """For good. Whoever waits for an answer is woken with an error."""
        self._over = True
        door, self._door = self._door, None
        if door is not None:
            door.close()

    def hang_up(self) -> None:
        """From any thread, for good: whoever waits for a daemon's answer is woken with an error, and it is told."""
        self._over = True
        if isinstance(self._door, RemoteDoor) or self._environ.get("AVM_AT"):  # not the store, in use by that thread
            self.close()

    def _ask(self, method: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        door = self._opened()
        try:
            if self._over:  # looked at once the door is there for close to end
                self._drop(door)
                raise Interrupted("nobody waits any more")
            result = traced(door, self._environ.get("AVM_AT") or str(self._where.database)).call(method, **arguments)
        except Busy:
            if isinstance(door, RemoteDoor):  # also after a time limit: the answer to come would pass for the next one
                self._drop(door)
            raise
        # Bytes that are read are looked at by who asks, and paths that are watched are compared and never shown.
        return result if method in ("read", "watch") else clean(result), str(clean(door.urgent))

    def _opened(self) -> OpenDoor:
        door = self._door
        if door is not None:
            if not door.ended():
                return door
            self._drop(door)
        self._door = self._open(self.agent)
        return self._door

    def _open(self, agent: str, *, autostart: bool = True) -> OpenDoor:
        try:
            return open_door(
                self._where, agent, environ=self._environ, embeddings=False, route="mcp", autostart=autostart
            )
        except ConfigError as e:  # whoever edits the file mends it, and the next call finds that
            raise Invalid(str(e)) from None

    def _drop(self, door: Door) -> None:
        self._door = None
        door.close()


def _tells_once(path: object) -> bool:
    """Whether reading there may mark what it shows as read: the next answer would be without it."""
    view = paths.view_at(path)[1] if isinstance(path, str) else None
    return view is not None and (view.view == "delta" or "mark" in view.parameters())
