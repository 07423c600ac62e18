"""Putting a child's parts together: store, engine and memory from what the supervisor told it.

Called by the entry functions of the children. Knows which part needs which; nothing else does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from avmfs.access import Principal
from avmfs.agents import anchors
from avmfs.agents.questions import QuestionLog
from avmfs.agents.refusals import Refusals
from avmfs.embed.protocol import Embedder
from avmfs.localtime import LocalZone
from avmfs.memory import Memory
from avmfs.providers.live import SOCKET, LiveTree, RemoteAsker
from avmfs.search.engine import Engine
from avmfs.services import Services
from avmfs.store.store import open_attached
from avmfs.text.tokens import TokenCounter
from avmfs_daemon.child_spec import ChildSpec


def open_memory(
    spec: ChildSpec, embedder: Embedder | None, host: Callable[[str, dict[str, Any]], Any] | None = None
) -> Memory:
    """The memory of the spec's agent."""
    store = open_attached(spec.database, spec.writer_socket, spec.speaks_for, spec.proof, index=spec.index_socket)
    settings = spec.settings
    engine = Engine(
        store.search_index,
        embedder,
        TokenCounter(settings.search.encoding),
        weights=settings.search.weights,
        cache_size=0,
    )
    around = Services(
        store,
        engine,
        settings.search,
        settings.limits,
        time.time_ns,
        LocalZone(),
        host,
        webhooks=settings.webhooks,
        anchors=settings.audit.anchors or anchors.beside(spec.database),
        refusals=Refusals(store),
        questions=QuestionLog(spec.database, settings.search),
        live=LiveTree(
            store,
            settings.providers,
            RemoteAsker(spec.runtime_dir / SOCKET, settings.providers),
            time.time_ns,
            lasting=True,
        )
        if settings.providers
        else None,
    )
    return Memory(around, Principal(spec.agent, spec.operator, route="mount"))
