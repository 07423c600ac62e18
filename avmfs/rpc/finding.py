"""Methods of the door about finding: search, recall, verify, warmup; and for comparing settings, the agent's own
questions and what recall finds with other weights. Called through the registry."""

from __future__ import annotations

import time
from typing import Any

from avmfs_config import SearchWeights

from avmfs import paths
from avmfs.errors import Busy, Invalid, StoreFailed
from avmfs.memory import Memory
from avmfs.rpc.methods import Limit, Page, method
from avmfs.search.engine import Answer
from avmfs.search.excerpts import summary
from avmfs.search.forms import format_search
from avmfs.text import segment
from avmfs.trust import marked
from avmfs.views.finding import unsearched_within
from avmfs.views.receipts import replayed
from avmfs.views.shape import lines
from avmfs.views.verifying import verified

NEAR, NEAR_TEXT = 100, 500
WARMUP_S = 100.0  # below the client's own time limit


@method
def search(
    memory: Memory, q: str, limit: Limit = 10, under: str = "/", mode: str = "hybrid", archive: bool = False
) -> dict[str, Any]:
    """{"text", "hits": [{"path", "handle", "relevance", "score", "summary"}], "degraded"}."""
    if mode not in ("hybrid", "lexical", "semantic"):
        raise Invalid(f"search mode {mode!r}")
    below = under_of(memory, under)
    answer = memory.search(q, limit=limit, under=below, mode=mode, archive=archive)  # type: ignore[arg-type]
    text = memory.unsearched(below, archive) + format_search(answer)
    return {"text": text, "hits": _hits(answer), "degraded": answer.degraded}


@method
def recall(
    memory: Memory,
    q: str,
    max_tokens: int | None = None,
    min_relevance: float | None = None,
    strategy: str = "balanced",
    under: str = "/",
    cite: str | None = None,
    scores: bool = False,
    archive: bool = False,
    preview: bool = False,
    format: str = "text",
) -> dict[str, Any]:
    """{"text", "tokens", "degraded", "seq", "items"}; ``text`` is empty when nothing is relevant. ``preview``: somebody
    looks at what an agent would get, which counts neither as a question nor as a saving. ``format``: "text",
    "markdown", "jsonl" or "xml"."""
    budget = memory.around.search.max_tokens if max_tokens is None else max_tokens
    below = under_of(memory, under)
    note, cost = unsearched_within(memory, budget, format, below, archive)
    found = memory.recall(
        q,
        max_tokens=max_tokens,
        min_relevance=min_relevance,
        strategy=strategy,
        under=below,
        cite=cite,
        scores=scores,
        archive=archive,
        handed_out=not preview,
        form=format,
        reserve=cost,
    )
    return {
        "text": note + found.text,
        "tokens": cost + found.tokens,
        "degraded": found.degraded,
        "seq": found.seq,
        "items": len(found.hits),
    }


@method
def nearness(memory: Memory, q: str, texts: list[Any]) -> dict[str, Any]:
    """How near texts are to a question in meaning. {"cosines", "degraded"}: None, and why, where there are no vectors.
    NEAR texts at most, of which NEAR_TEXT characters each count."""
    memory.who.require("search")
    if len(texts) > NEAR or not all(isinstance(each, str) for each in texts):
        raise Invalid(f"texts: expected {NEAR} texts at most")
    cosines, degraded = memory.around.engine.nearness(memory.who, q[:NEAR_TEXT], [each[:NEAR_TEXT] for each in texts])
    return {"cosines": cosines, "degraded": degraded}


@method
def verify(memory: Memory, text: str, q: str | None = None, replay: bool = False) -> dict[str, Any]:
    """What a text cites, checked. {"text", "verdicts": [{"what", "version", "state", "about"}], "good"}: of answers,
    whose ``version`` is None, then of citations; ``good``: all stand. ``q``: the question of the answers. ``replay``:
    then of each answer (the text may be its ``SEQ:NONCE`` alone) asked again as of its seq, and of the chain."""
    found = verified(memory, text, q) + (replayed(memory, text, q) if replay else [])
    verdicts = [
        {"what": each.what, "version": each.version, "state": each.state, "about": each.about} for each in found
    ]
    told = lines(map(str, found), "no citations")
    return {"text": told, "verdicts": verdicts, "good": all(each.good for each in found)}


@method
def warmup(memory: Memory) -> dict[str, Any]:
    """Wait until the model is there and has embedded a word; one that could not be loaded is tried again at once.
    {"model", "dimension"}. Raises StoreFailed with the reason when there is none, Busy when it takes longer than
    WARMUP_S."""
    memory.who.require("search")
    host = memory.around.host
    state = host("warmup", {})["embedding"] if host is not None else {}
    deadline = time.monotonic() + WARMUP_S
    while host is not None and state.get("state") == "loading":
        if time.monotonic() > deadline:
            raise Busy(f"the model is not loaded after {WARMUP_S:g} s")
        time.sleep(0.1)
        state = host("status", {})["embedding"]
    memory.around.embed()
    answer = memory.around.engine.search(memory.who, "the weather is warm", limit=1, mode="semantic")
    if answer.degraded is not None:
        raise StoreFailed(f"semantic search unavailable: {answer.degraded}")
    return {"model": state.get("model"), "dimension": state.get("dimension")}


def under_of(memory: Memory, under: str) -> tuple[bytes, ...]:
    """The names on the way to a directory. Raises Invalid for a file."""
    if under == "/":
        return ()
    with memory.reading() as reader:
        node = memory.directory(reader, under)
        return paths.split(reader.path(node.id))


def _hits(answer: Answer) -> Any:
    terms = tuple(segment.query_terms(answer.query))
    return [
        {
            "path": paths.text(scored.hit.path),
            "handle": f"@{scored.hit.handle}",
            "relevance": scored.relevance,
            "score": scored.score,
            "summary": marked(summary(scored.hit.text, terms), scored.hit.untrusted),
        }
        for scored in answer.hits
    ]


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
        each.pop("answer", None)
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
