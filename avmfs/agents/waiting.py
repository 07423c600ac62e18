"""Waiting for mail, or for any commit, and giving that up.

Owns how a thread waits: it is woken by the writer's notice of a commit, looks, and sleeps again. It neither polls nor
holds a connection to the database meanwhile, and one that waits for mail is woken by commits that send some alone. Who
serves the call that waits (``calls``) may give it up from another thread. Knows nothing of messages or requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from avmfs.calls import Call, working
from avmfs.errors import Interrupted
from avmfs.store.store import Store


def until(store: Store, ready: Callable[[], bool], seconds: float, mail: bool = True) -> bool:
    """Return True once ``ready()``, False after ``seconds``. Raises Interrupted when the call is given up, NotSupported
    where nobody tells of commits (no daemon runs). ``mail``: it looks only after commits that send messages."""
    deadline = time.monotonic() + seconds
    if ready():
        return True
    call: Call = getattr(working, "call", None) or Call()
    woken = threading.Event()
    call.wake = woken.set
    call.rest()
    try:
        # The store also wakes us when the watch begins, so that nothing falls between the first look and that.
        with store.watch(lambda seq: woken.set(), mail=mail):
            while not call.given_up and (left := deadline - time.monotonic()) > 0:
                if woken.wait(left if call.look_every_s is None else min(left, call.look_every_s)):
                    woken.clear()
                    if ready():
                        return True
                call.rest()
    finally:
        call.wake = None
    if call.given_up:
        raise Interrupted("nobody waits any more")
    return False
