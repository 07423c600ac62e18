"""The door without a daemon: the same methods, called in this process on the store itself.

Owns what a daemon would do around them: the lock per command, and vectors for what was just written, computed
before a search when this process may load the model.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from avmfs_config import Settings

from avmfs.access import Policy, Principal
from avmfs.agents import anchors, digest_cache, reranking
from avmfs.agents.auditing import Chainer
from avmfs.embed import engines
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.errors import NoSpace
from avmfs.memory import Memory
from avmfs.providers.fetching import Fetcher
from avmfs.rpc import identity, methods
from avmfs.search.indexer import embed_pending
from avmfs.services import Services, composed
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules

NO_DAEMON = "no daemon is running (start one: avm-daemon start --daemon)"


class LocalDoor:
    """See rpc.client.Door. ``embeddings`` False never loads the model: searches use words alone and say so."""

    def __init__(
        self,
        database: Path,
        settings: Settings,
        agent: str | None,
        *,
        operator: bool = False,
        embeddings: bool = True,
        key: str = "",
        route: str = "",
    ) -> None:
        self.urgent = ""
        policy, index = Policy.from_settings(settings), IndexRules.of(settings)
        kept = settings.audit.anchors or anchors.beside(database)
        self._lock = StoreLock(database)
        self._store = open_direct(database, policy, index, at_least=anchors.newest(kept))
        wanted = settings.embedding
        # What a person can do about it is no part of what a model reads.
        absent = NO_DAEMON.partition(" (")[0] if route in ("mcp", "http") else NO_DAEMON

        embedder = engines.shared(wanted, database.parent / "models") if embeddings and wanted.enabled else None
        store = self._store  # what lives on in others must not keep this door alive

        def asker() -> Fetcher:
            return Fetcher(store, settings.providers, time.time_ns, os.environ, settings.webhooks.allow)

        def host(_question: str, _arguments: dict[str, Any]) -> dict[str, Any]:
            """What a daemon would answer of itself."""
            known = {} if embedder is None else {"model": embedder.model_id, "dimension": embedder.dimension}
            return {"embedding": known}

        def embed() -> None:
            if embedder is not None:
                with contextlib.suppress(EmbeddingUnavailable, NoSpace):  # the search says so itself, first thing
                    embed_pending(store, embedder, embedder.model_id)

        second = reranking.made(settings) if embeddings else None
        around = composed(store, settings, embedder, host, asker, of_daemon=False, absent=absent, reranker=second)
        around = replace(around, embed=embed)
        try:
            self._memory = Memory(around, _identified(around, agent, operator, key, route))
            chainer = Chainer(self._store, kept, settings.audit.interval_s, time.time_ns)
            # Where no daemon keeps the chain, whoever comes next does; of several hosts the one that keeps house.
            if self._store.followed() < 0 and chainer.due(settings.audit.interval_s):
                chainer.step()
            if operator:
                self._memory.submit("act_as_operator")
        except BaseException:
            self._store.close()
            raise
        self.agent = self._memory.who.name

    def call(self, method: str, /, **arguments: Any) -> Any:
        identity.require_valid(self._memory)
        if method == "who" and arguments.get("via") == "gossip":
            digest_cache.publish(self._store)  # no keeper does
        result = methods.call(self._memory, method, arguments)
        self.urgent = methods.urgent(self._memory)
        return result

    def ended(self) -> bool:
        """Whether a daemon has the store by now."""
        return self._lock.holder() is not None

    def close(self) -> None:
        if (refusals := self._memory.around.refusals) is not None:
            refusals.close()
        self._store.close()


def _identified(around: Services, agent: str | None, operator: bool, key: str, route: str) -> Principal:
    if key:
        return identity.by_key(Memory(around, identity.NOBODY), key, agent, operator, route)
    who = Principal(agent or "", operator, route=route)
    if operator:
        identity.require_sudo(Memory(around, who))
    return who
