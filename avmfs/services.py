"""What the memories of one process have in common: the store, the search engine, settings, clocks.

Owns nothing but the record that carries them; ``memory`` works with it, and whoever opens a store fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Any

from avmfs_config import Limits, SearchSettings, WebhookSettings

from avmfs.agents import digest_cache as digests
from avmfs.agents.presence import Presence
from avmfs.agents.questions import QuestionLog
from avmfs.agents.refusals import Refusals
from avmfs.providers.live import LiveTree
from avmfs.search.engine import Engine
from avmfs.store.store import Store


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
    presence: Presence | None = None  # who is here, where a daemon runs
