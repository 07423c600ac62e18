"""The re-ranker beside the supervisor's loop: a model is loaded and run here, an endpoint is tried.

Owns the state that `status` shows. A cross-encoder serves all processes from here, each in the thread of its pipe; an
endpoint is asked by each process itself, and from here once at every load, so that a wrong key is known before the
first question. Threads: any. Nothing but `judged` waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import EmbeddingUnavailable, Reranker

log = logging.getLogger(__name__)

RETRY_S: Final = (15.0, 30.0, 60.0, 120.0, 300.0)
"""A load that failed is tried again after these times, and then after the last one for ever."""
LOADING: Final = "it is still loading"


def until_it_loads(attempt: Callable[[], bool], changed: threading.Condition, over: Callable[[], bool]) -> None:
    """Try until an attempt says that it was the last, or it is ``over``, which ``changed`` tells."""
    tries = 0
    while not attempt():
        pause, tries = RETRY_S[min(tries, len(RETRY_S) - 1)], tries + 1
        with changed:
            if changed.wait_for(over, pause):
                return


class RerankService:
    """`load` may be called again with another one; None turns it off."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reranker: Reranker | None = None
        self._state, self._reason = "off", "none is configured"

    def load(self, reranker: Reranker | None) -> None:
        """Try it in a thread, until it answers."""
        with self._changed:
            self._reranker = reranker
            self._state, self._reason = ("off", "none is configured") if reranker is None else ("loading", LOADING)
            self._changed.notify_all()
        if reranker is not None:
            trying = partial(self._try, reranker), self._changed, lambda: self._reranker is not reranker
            try:
                threading.Thread(target=until_it_loads, args=trying, name="load re-ranker", daemon=True).start()
            except RuntimeError as e:  # no thread to be had: the next load may get one
                self._state, self._reason = "failed", str(e)
                log.error("no re-ranker: %s", e)

    def status(self) -> dict[str, str]:
        with self._changed:
            if self._reranker is None:
                return {"state": "off"}
            told = {"state": self._state, "name": str(getattr(self._reranker, "name", ""))}
            return told | ({"reason": self._reason} if self._reason else {})

    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """As Reranker's."""
        with self._changed:
            reranker, reason = self._reranker, self._reason
        if reranker is None or reason:
            raise EmbeddingUnavailable(reason)
        return reranker.judged(question, texts)

    def _try(self, reranker: Reranker) -> bool:
        state, reason = _tried(reranker)
        with self._changed:
            if self._reranker is not reranker:
                return True
            known, self._state, self._reason = self._reason == reason, state, reason
        if state == "ready":
            log.info("the re-ranker is ready")
        elif not known:  # told once, however often it fails
            log.error("no re-ranker: %s", reason)
        return state == "ready"


def _tried(reranker: Reranker) -> tuple[str, str]:
    """Its state, and what is wrong."""
    try:
        reranker.judged("ready", ["ready"])
    except EmbeddingUnavailable as e:
        return "failed", e.reason
    except Exception as e:  # a model is foreign code; without it the daemon still serves
        log.exception("trying the re-ranker failed")
        return "failed", type(e).__name__
    return "ready", ""
