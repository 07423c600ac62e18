"""Views that answer a question. Owns :search, :recall, :plan and :why (docs/FORMATS.md); what is found is
``avmfs.search``'s.

A recall's banner of urgent messages counts inside the budget that the reader named. What it does not name is as the
configuration says (``search``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.node import NO_ROOM, Kind, notice
from avmfs.search.engine import FILLING, Answer, Mode, Ranking, Scored
from avmfs.search.explain import Words, explained, matched, unwanted_in
from avmfs.search.forms import Format, format_search, structured
from avmfs.search.index import SearchIndex, Wanted
from avmfs.signatures import Range
from avmfs.text import segment
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts

SHOWN: Final = 200
"""Hits among which a file is looked for that `:why` is asked about; behind them its place is that by score."""
BUDGETS: Final = (250, 500, 1000, 2000, 4000)
"""Tokens, of :plan."""

Strategy = Literal["balanced", "relevance", "importance", "recency"]
Include = Literal["archive"] | None


@view("search", "directory", summary="paths that answer `q`, with relevance and one line each", prose=True, past=True)
def search(
    ctx: Context, *, q: str, limit: Annotated[int, Range(1, 200)] = 10, mode: Mode = "hybrid", include: Include = None
) -> str:
    under, archive = _under(ctx), include == "archive"
    found = ctx.memory.search(q, limit=limit, under=under, mode=mode, archive=archive)
    return ctx.memory.unsearched(under, archive) + format_search(found)


@view("recall", "directory", summary="what memory has on `q`, within a budget of tokens", prose=True, past=True)
def recall(
    ctx: Context,
    *,
    q: str,
    max_tokens: Annotated[int | None, Range(1, 200_000)] = None,
    min_relevance: Annotated[float | None, Range(0, 1)] = None,
    strategy: Strategy = "balanced",
    cite: Literal["path"] | None = None,
    scores: bool = False,
    include: Include = None,
    format: Format = "text",
) -> str:
    budget = ctx.memory.around.search.max_tokens if max_tokens is None else max_tokens
    banner, cost = ("", 0) if structured(format) else _banner(ctx, budget)
    under, archive = _under(ctx), include == "archive"
    note, more = unsearched_within(ctx.memory, budget - cost, format, under, archive)
    banner, cost = banner + note, cost + more
    answer = ctx.memory.recall(
        q,
        max_tokens=budget,
        min_relevance=min_relevance,
        strategy=strategy,
        under=under,
        cite=cite,
        scores=scores,
        form=format,
        reserve=cost,
        archive=archive,
    )
    return banner + (answer.text or ("" if structured(format) else NO_ROOM))


def unsearched_within(
    memory: Memory, budget: int, form: str, under: tuple[bytes, ...], archive: bool
) -> tuple[str, int]:
    """The line on what of the past could not be searched, where the budget bears it, and its tokens."""
    note = memory.unsearched(under, archive, form)
    cost = memory.around.engine.counter.count(note)
    return (note, cost) if cost <= budget else ("", 0)


def _banner(ctx: Context, budget: int) -> tuple[str, int]:
    """The fullest banner that the budget bears, and its tokens: whole up to a third of it, then one line."""
    whole, line = ctx.memory.urgent_banner()
    counter = ctx.memory.around.engine.counter
    for banner, most in ((whole, budget // 3), (line, budget)):
        if (cost := counter.count(banner)) <= most:
            return banner, cost
    return "", 0


@view("plan", "directory", summary="what recalls of 250 to 4000 tokens for `q` would hold")
def plan(ctx: Context, *, q: str, min_relevance: Annotated[float | None, Range(0, 1)] = None) -> str:
    under, whole, above = _under(ctx), 0, ""
    rows = []
    for budget in BUDGETS:
        found = ctx.memory.recall(q, max_tokens=budget, min_relevance=min_relevance, under=under, handed_out=False)
        above = notice(found.degraded)
        if not found.hits:
            rows += [f"{budget:>6}  nothing fits"] if whole == 0 and "fits" in found.text else []
            continue
        documents = len({scored.hit.document for scored in found.hits})
        least = min(scored.relevance for scored in found.hits)
        more = "" if len(found.hits) > whole else "  (no more)"
        whole = len(found.hits)
        rows.append(
            f"{budget:>6}  {found.tokens:>5} tokens  {whole:>3} item{' ' if whole == 1 else 's'}"
            f"  {documents:>3} file{' ' if documents == 1 else 's'}  relevance from {least:.2f}{more}"
        )
    return above + lines(rows, "nothing relevant")


@view("why", "directory", summary="parts of each hit's score for `q`; why `path` is not among them")
def why(ctx: Context, *, q: str, path: str | None = None, limit: Annotated[int, Range(1, 100)] = 5) -> str:
    memory, under = ctx.memory, _under(ctx)
    answer = memory.search(q, limit=limit if path is None else SHOWN, under=under)
    index = memory.store.search_index(memory.who, paths.searched(under))
    asked, (q, unwanted) = q, segment.unwanted(q)
    wanted = Wanted(under, unwanted)
    ranking = memory.around.engine.ranking(memory.who, index, q, now=memory.now(), tz=memory.zone, wanted=wanted)
    above = notice(answer.degraded).splitlines()
    if path is not None:
        return "\n".join([*above, *_of_path(ctx, index, ranking, asked, path, answer)]) + "\n"
    if not answer.hits:
        return "\n".join([*above, "(no matches)"]) + "\n"
    words = matched(index, ranking, q, [scored.hit.passage for scored in answer.hits])
    rows = []
    for number, scored in enumerate(answer.hits, 1):
        shown = paths.printable(scored.hit.path)
        rows.append(f"{number}. [{scored.relevance:.2f}] @{scored.hit.handle} {shown}")
        rows += _reasons(ctx, scored, words[scored.hit.passage])
    return "\n".join([*above, *rows]) + "\n"


def _of_path(
    ctx: Context,
    index: SearchIndex,
    ranking: Ranking,
    asked: str,
    path: str,
    answer: Answer,
) -> list[str]:
    memory, (q, unwanted) = ctx.memory, segment.unwanted(asked)
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        if node.kind is not Kind.FILE or node.document is None:
            raise Invalid(f":why: path={path[:80]!r}: not a file")
        where = reader.path(node.id)
        if node.scope in reader.visible.held:
            return [f"{paths.printable(where)} is in quarantine, and found by nobody"]
        reason = reader.unindexed(node.document)
        inside = where.startswith((b"" if ctx.path == b"/" else reader.path(ctx.node.id)) + b"/")
    found = explained(index, ranking, node.document)
    for rank, scored in enumerate(answer.hits, 1):
        if scored.hit.document == node.document:  # as an answer shows it: what holds now has changed places
            found = replace(found, best=scored, rank=rank)
    shown = paths.printable(where)
    if reason:
        return [f"{shown} is in no index: {reason}"]
    if not inside:
        return [f"{shown} does not stand below this directory"]
    if (apart := paths.aside(parts(where))) != paths.aside(_under(ctx)):
        return [f"{shown} is in the {apart}, which is not searched from here"]
    if not found.passages:
        return [f"{shown} is in no index: it has no words"]
    if had := unwanted_in(index, ranking, node.document, unwanted):
        told = _verdict(ctx, asked, node.document, None)
        return [f"{shown} has {', '.join(had)}, which NOT leaves out of a search; {told}"]
    if found.best is None:
        return [f"{shown} was not looked at: it has none of the question's words and no vector near it"]
    verdict = f"{shown} is number {found.rank} of {found.of}: {_verdict(ctx, asked, node.document, found.best)}"
    words = matched(index, ranking, q, [found.best.hit.passage])
    return [verdict, *_reasons(ctx, found.best, words[found.best.hit.passage])]


def _verdict(ctx: Context, asked: str, document: int, best: Scored | None) -> str:
    """Whether a recall as it stands gives it, else why not."""
    settings = ctx.memory.around.search
    given = ctx.memory.recall(asked, under=_under(ctx), handed_out=False)
    whole = f"a recall of {settings.max_tokens} tokens"
    if any(scored.hit.document == document for scored in given.hits):
        return f"{whole} has it"
    if best is None:
        return f"{whole} does not have it"
    if f"@{best.hit.handle}" in given.text:
        return "its text is that of a better hit, which names it"
    if best.relevance < settings.min_relevance * (FILLING if given.hits else 1):
        return f"relevance {best.relevance:.2f} is below min_relevance={settings.min_relevance:g}"
    return f"{whole} is full before it"


def _reasons(ctx: Context, scored: Scored, words: Words) -> list[str]:
    added = sorted(scored.parts.items(), key=lambda part: (-abs(part[1]), part[0]))
    score = " ".join(f"{'+' if value >= 0 else '-'} {name} {abs(value):.2f}" for name, value in added)
    evidence = scored.evidence
    said = [f"cosine {evidence['cosine']:.2f}" if "cosine" in evidence else _unmeasured(ctx, scored.hit.document)]
    said += [
        f"{label} {', '.join(terms)}"
        for label, terms in (("has", words.own), ("said around it:", words.near), ("lacks", words.missing))
        if terms
    ]
    said += scored.standing
    return [f"   score {scored.score:.2f} = {score.removeprefix('+ ')}", f"   {' · '.join(said)}"]


def _unmeasured(ctx: Context, document: int) -> str:
    """A note or a question that the model does not know never has a vector, nor has any where none are made."""
    with ctx.memory.reading() as reader:
        return "no vector yet" if reader.awaits_vectors(document) else "no cosine"


def _under(ctx: Context) -> tuple[bytes, ...]:
    with ctx.memory.reading() as reader:
        return parts(reader.path(ctx.node.id))
