"""A document drawn from several memories, and what belongs to a file. Owns :synthesis and :related (docs/FORMATS.md).

:synthesis is extractive: nothing is said that no memory says. The best hits and what they are linked with are cut into
sentences; those with most of the question's words are taken, none that says what another has said (though what denies
it), and told by the time of their source. The two headings carry the answer's nonce, which no memory can know.

:related has first what a file is linked with, link by link up to ``depth``; then what is alike, by the same search as a
question. A linked file is not named again for being alike."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated, Final

from avmfs import paths
from avmfs.agents.graph import REACHED, document_at, hops
from avmfs.memory import Memory
from avmfs.node import notice
from avmfs.search.duplicates import opposed
from avmfs.search.engine import Scored
from avmfs.search.pack import NOTHING
from avmfs.signatures import Range
from avmfs.store.queries.nodes import Reader
from avmfs.text import passages, segment, sniff
from avmfs.text.escapes import escaped
from avmfs.text.segment import one_line
from avmfs.trust import marked
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts

SENTENCE: Final = 400  # characters of one that are told
SOURCES: Final = 40
Sentences = Annotated[int, Range(1, 100)]
_CITED: Final = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    source: bytes
    untrusted: str
    at: int
    worth: float
    place: int


@view(
    "synthesis",
    "directory",
    "file",
    summary="what several memories say on `q`, sentence by sentence, cited",
    shows_bytes=True,
)
def synthesis(ctx: Context, *, q: str | None = None, sentences: Sentences = 12) -> str:
    text, degraded = synthesized(ctx.memory, ctx.node.id, q, sentences)
    return text or notice(degraded) + NOTHING


def synthesized(memory: Memory, of_node: int, q: str | None, sentences: int) -> tuple[str, str | None]:
    """The document, empty where nothing is relevant, and why vectors had no part in it."""
    with memory.reading() as reader:
        node = reader.node(of_node)
        here = reader.path(node.id)
        of = None if node.document is None else {here, *linked_with(reader, here, 1)}
        within = None if of is None else [it for path in of if (it := document_at(reader, path)) is not None]
        title = paths.printable(node.name) if q is None else one_line(q, 200)
    named = segment.as_question(os.path.splitext(paths.text(node.name))[0].replace("-", " "))
    question = named if q is None else q
    apart = paths.aside(parts(here))
    under = parts(here) if of is None else (paths.INDEX,) * (apart == "index")
    recalled = memory.search(question, limit=SOURCES, under=under, within=within, archive=apart == "archive")
    least = memory.around.search.min_relevance
    hits = [hit for hit in recalled.hits if (hit.relevance >= least if of is None else hit.hit.path in of)]
    told = _chosen(hits, question, sentences)
    if not told:
        return "", recalled.degraded
    numbers: dict[bytes, int] = {}
    handles = {hit.hit.path: hit.hit.handle for hit in hits}
    nonce = memory.store.nonce(memory.who, recalled.seq, question)
    body = [
        f"- {marked(_uncited(each.text), each.untrusted)} [{numbers.setdefault(each.source, len(numbers) + 1)}]"
        for each in told
    ]
    sources = [f"[{number}] @{handles[path]} {paths.printable(path)}" for path, number in numbers.items()]
    whole = [f"# {title} {nonce}", "", *body, "", f"## Sources {nonce}", "", *sources]
    return notice(recalled.degraded) + "\n".join(whole) + "\n", recalled.degraded


def _uncited(text: str) -> str:
    """What a memory says in brackets is no citation of ours."""
    return _CITED.sub(r"(\1)", text)


def _chosen(hits: list[Scored], question: str, count: int) -> list[_Sentence]:
    wanted = frozenset(segment.query_terms(question))
    found = []
    for scored in hits:
        for place, piece in enumerate(passages.sentences(scored.hit.text)):
            words = frozenset(segment.terms(piece))
            if len(words) >= 2 and not piece.lstrip().startswith("#"):
                shared = len(wanted & words) / max(len(wanted), 1)
                found.append(
                    _Sentence(
                        one_line(piece, SENTENCE),
                        scored.hit.path,
                        scored.hit.untrusted,
                        scored.hit.updated,
                        scored.relevance + shared,
                        place,
                    )
                )
    kept: list[_Sentence] = []
    said: list[frozenset[str]] = []
    for each in sorted(found, key=lambda each: (-each.worth, each.source, each.place)):
        words = frozenset(segment.content_terms(each.text))
        if not any(words <= known and not opposed(each.text, one.text) for known, one in zip(said, kept, strict=True)):
            kept.append(each)
            said.append(words)
        if len(kept) == count:
            break
    return sorted(kept, key=lambda each: (each.at, each.source, each.place))


ASKED: Final = 2000
"""Characters of the file that stand for it as a question."""


@view("related", "file", summary="files linked with it, `depth` links deep, then files like it", shows_bytes=True)
def related(ctx: Context, *, depth: Annotated[int, Range(1, 5)] = 1, limit: Annotated[int, Range(0, 100)] = 10) -> str:
    memory = ctx.memory
    with memory.reading() as reader:
        node = reader.node(ctx.node.id)
        here = reader.path(node.id)
        linked = linked_with(reader, here, depth)
        text = sniff.beginning(reader.read(node.id, 0, 4 * ASKED))[:ASKED]
    rows = [f"{paths.printable(path)}  ({escaped(kind)})" for path, kind in linked.items()]
    answer = memory.search(segment.as_question(text), limit=limit + len(linked) + 1) if limit else None
    least = memory.around.search.min_relevance
    alike = [
        f"[{scored.relevance:.2f}] {paths.printable(scored.hit.path)}"
        for scored in (answer.hits if answer is not None else ())
        if scored.hit.path != here and scored.hit.path not in linked and scored.relevance >= least
    ]
    above = notice(answer.degraded if answer is not None else None)
    return above + lines([*rows, *alike[:limit]], "nothing related")


def linked_with(reader: Reader, here: bytes, depth: int) -> dict[bytes, str]:
    """Paths within ``depth`` links, nearest first, with the way there: ``-> type``, ``<- type``, ``2 links``."""
    found: dict[bytes, str] = {}
    for far, steps in enumerate(hops(reader, [here], depth, REACHED), 1):
        for step in steps:
            found[step.path] = f"{'->' if step.outgoing else '<-'} {step.type}" if far == 1 else f"{far} links"
    return found
