"""Why a search answers as it does. Owns :why (docs/FORMATS.md)."""

from __future__ import annotations

from typing import Annotated

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.node import Kind
from avmfs.search.engine import Ranking, Scored
from avmfs.search.explain import RankExplanation, Words, explained, matched
from avmfs.search.index import SearchIndex
from avmfs.signatures import Range
from avmfs.views.registry import Context, view
from avmfs.views.shape import parts


@view("why", "directory", summary="parts of each hit's score for `q`; why `path` is not among them", slow=True)
def why(ctx: Context, *, q: str, path: str | None = None, limit: Annotated[int, Range(1, 100)] = 5) -> str:
    memory = ctx.memory
    answer = memory.search(q, limit=limit, under=_under(ctx))
    index = memory.around.store.search_index(memory.who)
    ranking = memory.around.engine.ranking(index, q, now=memory.now(), tz=memory.zone)
    notice = [] if answer.degraded is None else [f"# semantic search unavailable: {answer.degraded}"]
    if path is not None:
        return "\n".join([*notice, *_of_path(ctx, index, ranking, q, path)]) + "\n"
    if not answer.hits:
        return "\n".join([*notice, "(no matches)"]) + "\n"
    words = matched(index, ranking, q, [scored.hit.passage for scored in answer.hits])
    lines = []
    for number, scored in enumerate(answer.hits, 1):
        shown = paths.printable(scored.hit.path)
        lines.append(f"{number}. [{scored.relevance:.2f}] @{scored.hit.handle} {shown}")
        lines += _reasons(scored, words[scored.hit.passage])
    return "\n".join([*notice, *lines]) + "\n"


def _of_path(ctx: Context, index: SearchIndex, ranking: Ranking, q: str, path: str) -> list[str]:
    memory = ctx.memory
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        if node.kind is not Kind.FILE or node.document is None:
            raise Invalid(f":why: path={path[:80]!r}: not a file")
        where = reader.path(node.id)
        reason = reader.unindexed(node.document)
        inside = where.startswith((b"" if ctx.path == b"/" else reader.path(ctx.node.id)) + b"/")
    found = explained(index, ranking, node.document)
    shown = paths.printable(where)
    if reason:
        return [f"{shown} is in no index: {reason}"]
    if not inside:
        return [f"{shown} does not stand below this directory"]
    if not found.passages:
        return [f"{shown} is in no index: it has no words"]
    if found.best is None:
        return [f"{shown} was not looked at: it has none of the question's words and no vector near it"]
    lines = [f"{shown} is number {found.rank} of {found.of}: {_verdict(ctx, q, found)}"]
    words = matched(index, ranking, q, [found.best.hit.passage])
    return [*lines, *_reasons(found.best, words[found.best.hit.passage])]


def _verdict(ctx: Context, q: str, found: RankExplanation) -> str:
    """Whether a recall as it stands gives it, else why not."""
    memory, best = ctx.memory, found.best
    assert best is not None
    settings = memory.around.search
    if best.relevance < settings.min_relevance:
        return f"relevance {best.relevance:.2f} is below min_relevance={settings.min_relevance:g}"
    given = memory.recall(q, under=_under(ctx), handed_out=False)
    if any(scored.hit.document == best.hit.document for scored in given.hits):
        return f"a recall of {settings.max_tokens} tokens has it"
    if f"@{best.hit.handle}" in given.text:
        return "its text is that of a better hit, which names it"
    return f"a recall of {settings.max_tokens} tokens is full before it"


def _reasons(scored: Scored, words: Words) -> list[str]:
    added = sorted(scored.parts.items(), key=lambda part: (-abs(part[1]), part[0]))
    score = " ".join(f"{'+' if value >= 0 else '-'} {name} {abs(value):.2f}" for name, value in added)
    evidence = scored.evidence
    said = [f"cosine {evidence['cosine']:.2f}" if "cosine" in evidence else "no vector yet"]
    said += [
        f"{label} {', '.join(terms)}"
        for label, terms in (
            ("has", words.own),
            ("said around it:", words.near),
            ("lacks", words.missing),
        )
        if terms
    ]
    return [f"   score {scored.score:.2f} = {score.removeprefix('+ ')}", f"   {' · '.join(said)}"]


def _under(ctx: Context) -> tuple[bytes, ...]:
    with ctx.memory.reading() as reader:
        return parts(reader.path(ctx.node.id))
