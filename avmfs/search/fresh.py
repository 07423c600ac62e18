"""Asking again for what has just been written, once it has its vectors.

Owns how long a question waits for that, and that it has words before. Called by ``memory``; knows nothing of what the
question is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from avmfs import calls
from avmfs.errors import NoSpace, ReadOnly, StoreFailed
from avmfs.node import UNINDEXED
from avmfs.search.engine import Answer
from avmfs.search.recall import Recall
from avmfs.store.queries.nodes import Reader
from avmfs.store.store import Store

VECTORS_S: Final = 6.0  # an idle machine takes a tenth of one, one with ten processes a core the others
FEW: Final = 64  # notes that wait; of an import more do, and take as long as it takes
Found = TypeVar("Found", Answer, Recall)


def in_words(store: Store, submit: Callable[..., Any]) -> str | None:
    """Whatever was committed before this call is in the words' index after it. Where nothing can be written, as on a
    full disk or a host without its shared log, return that it is not, and why."""
    waiting = store.words_wait()
    while waiting > 0:  # what others write meanwhile is theirs to wait for
        try:
            done = submit("drain_lexical", limit=64)
        except (NoSpace, ReadOnly, StoreFailed) as e:
            return f"{UNINDEXED}: {e.reason}"  # not how many: they may be of others
        waiting = min(waiting - done["done"], done["left"])
    return None


def once_embedded(
    store: Store, reading: Callable[[], AbstractContextManager[Reader]], ask: Callable[[], Found], embedded: bool
) -> Found:
    """An answer. One that has found nothing while a few notes that this agent may see wait for their vectors is asked
    for once more when they have them, or after VECTORS_S; where nobody computes them (``embedded`` False) it is not.
    What is written meanwhile is not waited for: somebody may write all the time."""
    waited = embedded and store.vectors_wait()  # what waits now may have its vectors before it is waited for
    found = ask()
    if found.hits or found.degraded is not None or not embedded:
        return found
    deadline, newest = time.monotonic() + VECTORS_S, store.newest_passage()
    while store.vectors_wait() and time.monotonic() < deadline:  # which saves counting, and decides nothing
        with reading() as reader:
            if not 0 < reader.without_vectors(newest, FEW + 1) <= FEW:
                break
        waited = True
        calls.go_on()
        time.sleep(0.05)
    return ask() if waited else found
