"""Views that answer a question. Owns :search and :recall; what they find and its format are ``avmfs.search``'s.

A recall's banner of urgent messages counts inside the budget that the reader named. What it does not name is as the
configuration says (``search``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from avmfs.search.engine import Mode
from avmfs.search.pack import NOTHING, format_search
from avmfs.signatures import Range
from avmfs.views.registry import Context, view
from avmfs.views.shape import parts

Strategy = Literal["balanced", "relevance", "importance", "recency"]


@view(
    "search",
    "directory",
    summary="paths that answer `q`, with relevance and one line each",
    prose=True,
    slow=True,
    past=True,
)
def search(ctx: Context, *, q: str, limit: Annotated[int, Range(1, 200)] = 10, mode: Mode = "hybrid") -> str:
    return ctx.memory.unsearched() + format_search(ctx.memory.search(q, limit=limit, under=_under(ctx), mode=mode))


@view(
    "recall", "directory", summary="what memory has on `q`, within a budget of tokens", prose=True, slow=True, past=True
)
def recall(
    ctx: Context,
    *,
    q: str,
    max_tokens: Annotated[int | None, Range(1, 200_000)] = None,
    min_relevance: Annotated[float | None, Range(0, 1)] = None,
    strategy: Strategy = "balanced",
    cite: Literal["path"] | None = None,
    scores: bool = False,
) -> str:
    budget = ctx.memory.around.search.max_tokens if max_tokens is None else max_tokens
    banner, cost = _banner(ctx, budget)
    if note := ctx.memory.unsearched():
        banner, cost = banner + note, cost + ctx.memory.around.engine.counter.count(note)
    answer = ctx.memory.recall(
        q,
        max_tokens=budget,
        min_relevance=min_relevance,
        strategy=strategy,
        under=_under(ctx),
        cite=cite,
        scores=scores,
        reserve=cost,
    )
    return banner + (answer.text or NOTHING)


def _banner(ctx: Context, budget: int) -> tuple[str, int]:
    """The fullest banner that the budget bears, and its tokens: whole up to a third of it, then one line."""
    whole, line = ctx.memory.urgent_banner()
    counter = ctx.memory.around.engine.counter
    for banner, most in ((whole, budget // 3), (line, budget)):
        if (cost := counter.count(banner)) <= most:
            return banner, cost
    return "", 0


def _under(ctx: Context) -> tuple[bytes, ...]:
    with ctx.memory.reading() as reader:
        return parts(reader.path(ctx.node.id))
