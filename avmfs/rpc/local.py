"""The door without a daemon: the same methods, called in this process on the store itself.

Owns what a daemon would do around them: the lock per command, and vectors for what was just written, computed
before a search when this process may load the model.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from avmfs_config import Settings

from avmfs.access import Policy, Principal
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer
from avmfs.agents.refusals import Refusals
from avmfs.embed import engines
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.localtime import LocalZone
from avmfs.memory import Memory, Surroundings
from avmfs.rpc import methods
from avmfs.search.engine import Engine
from avmfs.search.indexer import embed_pending
from avmfs.store.sqlite import open_direct
from avmfs.store.transaction import IndexRules
from avmfs.text.tokens import TokenCounter

NO_DAEMON = "no daemon is running (start one: avm-daemon start --daemon)"
_NEED_VECTORS = frozenset({"search", "recall", "warmup"})


class LocalDoor:
    """See rpc.client.Door. ``embeddings`` False never loads the model: searches use words alone and say so."""

    def __init__(self, database: Path, settings: Settings, who: Principal, embeddings: bool) -> None:
        self.urgent = ""
        rules = ((rule.pattern, rule.access, rule.agents) for rule in settings.permissions)
        policy = Policy.from_words(rules, settings.default_access)
        index = IndexRules(
            settings.search.ignore, settings.search.max_index_bytes, settings.limits.versions,
            settings.limits.history_bytes,
        )  # fmt: skip
        self._store = open_direct(database, policy, index)
        wanted = settings.embedding
        self._embedder = engines.make(wanted, database.parent / "models") if embeddings and wanted.enabled else None
        engine = Engine(
            self._store.search_index, self._embedder, TokenCounter(settings.search.encoding),
            weights=settings.search.weights, absent=NO_DAEMON,
        )  # fmt: skip
        kept = settings.audit.anchors or anchors.beside(database)
        self._refusals = Refusals(self._store)
        around = Surroundings(
            self._store, engine, settings.search, settings.limits, time.time_ns, LocalZone(), self._host, kept,
            self._refusals,
        )  # fmt: skip
        self._memory = Memory(around, who)
        chainer = Chainer(self._store, kept, settings.audit.interval_s, time.time_ns)
        if chainer.due(settings.audit.interval_s):  # where no daemon keeps the chain, whoever comes next does
            chainer.step()
        if who.operator:
            self._memory.submit("act_as_operator")

    def call(self, method: str, **arguments: Any) -> Any:
        if method in _NEED_VECTORS and self._embedder is not None:
            with contextlib.suppress(EmbeddingUnavailable):  # the search says so itself, first thing
                embed_pending(self._store, self._embedder, self._embedder.model_id)
        result = methods.call(self._memory, method, arguments)
        self.urgent = self._memory.banner()
        return result

    def close(self) -> None:
        self._refusals.flush()
        self._store.close()

    def _host(self, question: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a daemon would answer of itself."""
        embedder = self._embedder
        known = {} if embedder is None else {"model": embedder.model_id, "dimension": embedder.dimension}
        return {"embedding": known}
