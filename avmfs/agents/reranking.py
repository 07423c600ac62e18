"""Who gives a second opinion on hits: the configured cross-encoder, or an endpoint as Cohere, Jina and others have it.

Owns the choice and the endpoint's protocol: a POST of {"model", "query", "documents"}, answered by {"results":
[{"index", "relevance_score"}]}, or by the like of it that others give. It goes where the rules of webhooks let an
operator's address go, and follows no redirect, so that nobody else sees key or passages. Called by whoever composes
services, and by the supervisor, which tries it. Threads may share it.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from avmfs_config import RerankSettings, Settings
from numpy.typing import NDArray

from avmfs.agents import destinations
from avmfs.agents.destinations import Allowed
from avmfs.agents.http_exchange import bearer, exchange
from avmfs.calls import within
from avmfs.embed.cross_encoder import CrossEncoder
from avmfs.embed.protocol import EmbeddingUnavailable, Reranker, checked
from avmfs.errors import AvmError

PAUSE_S: Final = 15.0
"""So long after a failure nobody is asked: one that hangs costs the first question its time limit, not every one."""
AT_ONCE: Final = 8
MAX_BYTES: Final = 4 * 1024 * 1024


def made(settings: Settings) -> Reranker | None:
    """The configured one, unloaded; None where there is none."""
    wanted = settings.search.rerank
    if wanted.model is not None:
        return CrossEncoder(wanted.model, wanted.timeout_s)
    return None if wanted.endpoint is None else Endpoint(wanted, settings.webhooks.allow)


class Endpoint:
    """A Reranker somewhere else."""

    def __init__(
        self, settings: RerankSettings, allow: tuple[str, ...] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert settings.endpoint is not None
        self._url = settings.endpoint
        self.name = settings.name or self._url.split("/")[2]
        self._settings = settings
        self._allowed = Allowed(allow, operator=True)
        self._clock = clock
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._failed: tuple[float, str] | None = None  # until when nobody is asked, and why

    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        if self._failed is not None and self._clock() < self._failed[0]:
            raise EmbeddingUnavailable(self._failed[1])
        if not self._room.acquire(blocking=False):
            raise EmbeddingUnavailable(f"{AT_ONCE} questions wait for it already")
        asked = functools.partial(self._asked, question, texts)
        try:
            found = within(self._settings.timeout_s, self._room, "re-ranker", asked)
        except (AvmError, EmbeddingUnavailable) as e:
            self._failed = self._clock() + PAUSE_S, e.reason
            raise EmbeddingUnavailable(e.reason) from None
        self._failed = None
        return found

    def _asked(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        limit = self._settings.timeout_s
        deadline = time.monotonic() + limit
        asked = {"query": question, "documents": list(texts)}
        named = {} if self._settings.name is None else {"model": self._settings.name}
        body = json.dumps(named | asked).encode()
        headers = {"Content-Type": "application/json", **bearer(self._settings.key_env, self._settings.key_file)}
        where = destinations.parse(self._url)
        status, _, data = exchange(
            "POST", where, headers, body, self._allowed, deadline, timeout_s=limit, max_bytes=MAX_BYTES
        )
        if 300 <= status < 400:
            raise EmbeddingUnavailable(f"answered {status}: redirects are not followed")
        if status != 200:
            raise EmbeddingUnavailable(f"answered {status}")
        return _figures(data, len(texts))


def _figures(data: bytes, count: int) -> NDArray[np.float64]:
    """What Cohere, Jina and vLLM call "results", Voyage "data", and others give as it is."""
    try:
        answer: Any = json.loads(data)
        rows = (answer.get("results") or answer["data"]) if isinstance(answer, dict) else answer
        found = {row["index"]: float(row.get("relevance_score", row.get("score"))) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise EmbeddingUnavailable("its answer is not that of a /rerank") from None
    if found.keys() != set(range(count)) or len(rows) != count:
        raise EmbeddingUnavailable(f"no figure for each of {count} texts")
    return checked([found[at] for at in range(count)], count)
