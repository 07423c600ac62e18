"""Waiting for mail, and giving that up.

Owns how a thread waits: it is woken by the writer's notice when messages are sent, looks, and sleeps again. It neither
polls nor holds a connection to the database meanwhile, and what else is committed does not wake it. Who serves the call
that waits (a front end) says in ``working`` on whose behalf a thread works, and may give the call up from another
thread. Knows nothing of messages or requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from avmfs.errors import Interrupted
from avmfs.store.protocol import Store

working = threading.local()
"""``call`` is what this thread works for at the moment, None or absent for nothing that can be given up."""


class Call:
    """What somebody waits for. ``given_up`` stays true. ``look_every_s``: where nobody can tell that it was given up,
    as often the thread that waits looks for itself (`look`)."""

    __slots__ = ("given_up", "wake")
    look_every_s: ClassVar[float | None] = None

    def __init__(self) -> None:
        self.given_up = False
        self.wake: Callable[[], None] | None = None

    def look(self) -> None:
        """In the thread that works for this: has it been given up?"""

    def give_up(self) -> None:
        """From any thread: nobody waits for this any more."""
        self.given_up = True
        if (wake := self.wake) is not None:
            wake()


def until(store: Store, ready: Callable[[], bool], seconds: float) -> bool:
    """Return True once ``ready()``, False after ``seconds``. Raises Interrupted when the call is given up, NotSupported
    where nobody tells of commits (no daemon runs)."""
    deadline = time.monotonic() + seconds
    if ready():
        return True
    call: Call = getattr(working, "call", None) or Call()
    woken = threading.Event()
    call.wake = woken.set
    try:
        # The store also wakes us when the watch begins, so that nothing falls between the first look and that.
        with store.watch(lambda seq: woken.set(), mail=True):
            while not call.given_up and (left := deadline - time.monotonic()) > 0:
                if woken.wait(left if call.look_every_s is None else min(left, call.look_every_s)):
                    woken.clear()
                    if ready():
                        return True
                call.look()
    finally:
        call.wake = None
    if call.given_up:
        raise Interrupted("nobody waits any more")
    return False
