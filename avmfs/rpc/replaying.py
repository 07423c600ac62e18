"""Methods of the door for comparing settings: the agent's own questions, and what recall finds with other weights.
Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs_config import SearchWeights

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.rpc.finding import under_of
from avmfs.rpc.methods import Page, method

HEAVIEST = 10.0


@method
def questions(memory: Memory, limit: Page = 50, forget: bool = False) -> dict[str, Any]:
    """What this agent has asked through recall, newest first, each once, as far as it is kept (``search.query_log``).
    {"questions": [{"at", "q", "under", "strategy", "max_tokens", "min_relevance"}], "kept": all there are}; with
    ``forget`` {"forgotten"}: they are deleted. Raises Denied for an API key: they are its agent's."""
    memory.who.require_itself()
    log = memory.around.questions
    if forget:
        return {"forgotten": 0 if log is None else log.forget(memory.who.name)}
    asked = [] if log is None else log.asked(memory.who.name)
    once: dict[tuple[Any, ...], Any] = {}
    for each in asked:
        once.setdefault(tuple(each[key] for key in sorted(each) if key != "at"), each)
    return {"questions": [*once.values()][:limit], "kept": len(asked)}


@method
def replay(
    memory: Memory,
    q: str,
    weights: dict[str, Any],
    max_tokens: int | None = None,
    min_relevance: float | None = None,
    strategy: str = "balanced",
    under: str = "/",
) -> dict[str, Any]:
    """What recall would find with these ``weights`` (of ``search.weights``; those not named as by default), the rest
    as recall has it. {"paths", "tokens", "degraded"}: each file once, best first. It counts neither as a question nor
    as a saving."""
    found = memory.recall(
        q,
        max_tokens=max_tokens,
        min_relevance=min_relevance,
        strategy=strategy,
        under=under_of(memory, under),
        handed_out=False,
        weights=_weights(weights),
    )
    names = dict.fromkeys(paths.text(scored.hit.path) for scored in found.hits)
    return {"paths": [*names], "tokens": found.tokens, "degraded": found.degraded}


def _weights(given: dict[str, Any]) -> SearchWeights:
    known = SearchWeights.__dataclass_fields__
    for name, value in given.items():
        if name not in known:
            raise Invalid(f"weights: unknown key {name!r} (it may have: {', '.join(known)})")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not -HEAVIEST <= value <= HEAVIEST:
            raise Invalid(f"weights: {name}: expected a number from {-HEAVIEST:g} to {HEAVIEST:g}")
    return SearchWeights(**{name: float(value) for name, value in given.items()})
