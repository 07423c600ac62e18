"""Recall: the best of memory for a question, within a token budget.

Owns the strategies and the order of items. Called by the :recall view, the command line and Python. Knows
neither the store nor the clock: ``now`` and the time zone are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from avmfs_config import SearchSettings

from avmfs import metrics
from avmfs.access import Principal
from avmfs.errors import Invalid
from avmfs.localtime import DAY_NS
from avmfs.search import forms, linked, pack, signals
from avmfs.search.engine import Answer, Engine, Scored
from avmfs.text import segment

DEFAULTS: Final = SearchSettings()
MOST: Final = 2000
"""Passages from which a recall is packed."""
USUAL: Final = 0.5
"""Importance of what nobody gave one."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Weights of the three figures, each 0 to 1, by whose sum items are ordered: ``score`` (as a share of the best
    hit's), ``recency``, ``importance``."""

    score: float
    recency: float
    importance: float


STRATEGIES: Final = {
    "balanced": Strategy(1.0, 0.1, 0.1),
    "relevance": Strategy(1.0, 0.0, 0.0),
    "importance": Strategy(0.4, 0.0, 0.6),
    "recency": Strategy(0.4, 0.6, 0.0),
}


@dataclass(frozen=True, slots=True)
class Recall:
    """``text`` has exactly ``tokens`` tokens; ``hits`` are the passages in it, best first, none when nothing was
    relevant; ``degraded`` is why vectors had no part in it."""

    text: str
    hits: tuple[Scored, ...]
    tokens: int
    degraded: str | None
    seq: int


def recall(
    engine: Engine,
    who: Principal,
    q: str,
    *,
    now: int,
    tz: tzinfo,
    max_tokens: int = DEFAULTS.max_tokens,
    min_relevance: float = DEFAULTS.min_relevance,
    strategy: str = "balanced",
    under: tuple[bytes, ...] = (),
    cite: str | None = None,
    scores: bool = False,
    form: str = "text",
    about: str = "",
    reserve: int = 0,
    nonce: Callable[[int], str] | None = None,
    find: Callable[..., Answer] | None = None,
) -> Recall:
    """Passages for ``q`` below ``under``, if one is at least ``min_relevance`` (0 to 1) relevant: those, and what fills
    the budget (``Engine.search``).

    The text has at most ``max_tokens`` minus ``reserve`` tokens; ``reserve`` is for what the caller puts above it.
    ``now`` is in nanoseconds since the epoch; days are shown in ``tz``. ``cite="path"`` names path and version in
    every item, ``scores`` adds handle and relevance, ``form`` is of ``forms.FORMS``, ``about`` said first where that is
    no prose. ``nonce`` gives what fences an answer of that seq, ``find`` is asked instead of ``Engine.search``. Raises
    Invalid for an unknown strategy, citation or form, a budget below 1 and a ``min_relevance`` out of its bounds.
    """
    _check(strategy, cite, form, max_tokens, min_relevance)
    # An item takes some 15 tokens; below 100 candidates, neither strategies nor prices would have much to choose from.
    # Where the score says least a larger budget would have others to choose from, and not what a smaller one has given.
    by_score = STRATEGIES[strategy].score > 0.5
    limit = min(max(max_tokens // 15, 100), MOST) if by_score else MOST
    answer = (find or engine.search)(
        who, q, limit=limit, under=under, min_relevance=min_relevance, now=now, tz=tz, one_per_document=False
    )
    frame = pack.Frame(
        max_tokens - reserve,
        max_tokens,
        strategy,
        answer.degraded,
        answer.seq,
        tz,
        cite=cite is not None,
        scores=scores,
        terms=tuple(segment.query_terms(q)),
        nonce="" if nonce is None else nonce(answer.seq),
        timed=(asked := signals.asked(q, now, tz)).when or bool(asked.days),
        form=forms.FORMS[form],
        about=about,
    )
    # Neither age nor importance makes hold what another note supersedes.
    ordered = linked.in_order(order(answer.hits, STRATEGIES[strategy], now, engine.half_life_days), answer.links)
    packed = pack.pack(ordered, frame, engine.counter)
    return Recall(packed.text, packed.hits, packed.tokens, answer.degraded, answer.seq)


def _check(strategy: str, cite: str | None, form: str, max_tokens: int, min_relevance: float) -> None:
    if strategy not in STRATEGIES:
        raise Invalid(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    if cite not in (None, "path"):
        raise Invalid(f"cite {cite!r}: expected path")
    if form not in forms.FORMS:
        raise Invalid(f"format {form!r}: expected one of {', '.join(forms.FORMATS)}")
    if max_tokens < 1:
        raise Invalid(f"max_tokens {max_tokens}: expected 1 or more")
    if not 0 <= min_relevance <= 1:  # also refuses nan
        raise Invalid(f"min_relevance {min_relevance}: expected 0 to 1")


def counted(found: Recall) -> Recall:
    """The same, which somebody reads: counted by its outcome."""
    outcome = "degraded" if found.degraded else "answered" if found.hits else "silent"
    metrics.counter("avm_recalls_total", outcome=outcome).add()
    metrics.counter("avm_recall_tokens_total").add(found.tokens)
    return found


def order(hits: tuple[Scored, ...], strategy: Strategy, now: int, half_life_days: float) -> list[Scored]:
    """Best first by the strategy, recency halving every ``half_life_days``; equals stay as they are. So do those of one
    ``matter``: each place of theirs has its score, and so the recency and importance that go with it."""
    top = max((scored.score for scored in hits), default=0.0)
    recency = [math.exp2(-max(now - scored.hit.updated, 0) / (half_life_days * DAY_NS)) for scored in hits]
    importance = [USUAL if scored.hit.importance is None else scored.hit.importance for scored in hits]
    matter = [at for at, scored in enumerate(hits) if scored.matter]
    for figures in (recency, importance):
        for at, figure in zip(matter, sorted((figures[at] for at in matter), reverse=True), strict=True):
            figures[at] = figure

    def weight(at: int) -> float:
        share = hits[at].score / top if top > 0 else 0.0
        return strategy.score * share + strategy.recency * recency[at] + strategy.importance * importance[at]

    return [hits[at] for at in sorted(range(len(hits)), key=weight, reverse=True)]
