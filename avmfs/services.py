"""What the memories of one process have in common: the store, the search engine, settings, clocks.

Owns the record that carries them, and how it is filled from the settings; ``memory`` works with it, and whoever opens
a store has it ``composed``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Any

from avmfs_config import ConsolidateSettings, Limits, SearchSettings, Settings, WebhookSettings

from avmfs.agents import anchors
from avmfs.agents import digest_cache as digests
from avmfs.agents.presence import Presence
from avmfs.agents.questions import QuestionLog
from avmfs.agents.refusals import Refusals
from avmfs.embed.protocol import Embedder, Reranker
from avmfs.localtime import LocalZone
from avmfs.providers.live import Asker, LiveTree
from avmfs.search.engine import NO_EMBEDDER, Engine
from avmfs.search.reranking import Second
from avmfs.store.store import Store
from avmfs.text.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class Services:
    """What the memories of one process share. ``clock`` gives ns since the epoch, ``zone`` is for showing times;
    ``host`` answers questions that only the daemon can (embedding state), None without one."""

    store: Store
    engine: Engine
    search: SearchSettings
    limits: Limits
    clock: Callable[[], int]
    zone: tzinfo
    host: Callable[[str, dict[str, Any]], Any] | None = None
    digests: digests.DigestCache = field(default_factory=digests.DigestCache)  # of who knows what, as last laid out
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    anchors: Path | None = None  # of the audit, where they are known
    refusals: Refusals | None = None  # where what is refused above the store is told
    live: LiveTree | None = None  # what providers show; None without any
    questions: QuestionLog | None = None  # where what agents ask is kept
    embedded: bool = False  # a keeper computes the vectors of what is written, so that they are worth waiting for
    embed: Callable[[], None] = lambda: None  # computes those of all that waits, where no keeper does
    consolidate: ConsolidateSettings = field(default_factory=ConsolidateSettings)
    presence: Presence | None = None  # who is here, where a daemon runs


def composed(
    store: Store,
    settings: Settings,
    embedder: Embedder | None,
    host: Callable[[str, dict[str, Any]], Any] | None,
    asker: Callable[[], Asker],
    *,
    of_daemon: bool,
    absent: str = NO_EMBEDDER,
    presence: Presence | None = None,
    reranker: Reranker | None = None,
) -> Services:
    """Services on a store as the settings say. ``asker`` makes who fetches what providers show; ``absent`` is why
    there is no embedder; ``reranker`` is the one that the settings name. A process ``of_daemon`` lives on, and its
    embedder keeps the vectors of questions by itself.
    """
    engine = Engine(
        store.search_index,
        embedder,
        TokenCounter(settings.search.encoding),
        weights=settings.search.weights,
        absent=absent,
        half_life_days=settings.search.half_life_days,
        second=None if reranker is None else Second(reranker, settings.search.rerank),
    )
    live = LiveTree(store, settings.providers, asker(), time.time_ns, lasting=of_daemon) if settings.providers else None
    return Services(
        store,
        engine,
        settings.search,
        settings.limits,
        time.time_ns,
        LocalZone(),
        host,
        webhooks=settings.webhooks,
        anchors=settings.audit.anchors or anchors.beside(store.path),
        refusals=Refusals(store),
        live=live,
        questions=QuestionLog(store.path, settings.search),
        embedded=of_daemon and settings.embedding.enabled,
        consolidate=settings.consolidate,
        presence=presence,
    )
