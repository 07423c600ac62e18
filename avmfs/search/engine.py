"""Searching: from a question to scored passages.

Owns the order of steps (words, vectors and other signals, fuse, calibrate, threshold, fetch) and what happens when
there are no vectors. Called by views, the command line and recall. Knows neither where the index is kept nor how an
embedder works, and never imports torch. Threads: any; it keeps no state but the cache of query vectors.
"""

from __future__ import annotations

import copy
import time
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from avmfs_config import SearchWeights
from numpy.typing import NDArray

from avmfs import calls
from avmfs.access import Principal
from avmfs.embed import universal
from avmfs.embed.cache import QueryCache
from avmfs.embed.protocol import Batch, Embedder, EmbeddingUnavailable, Remembering
from avmfs.errors import Busy
from avmfs.node import Dispute, Hit
from avmfs.search import current, fusion, lexical, linked, semantic, signals
from avmfs.search.index import EVERYTHING, SearchIndex, Wanted
from avmfs.search.relevance import relevance, scale
from avmfs.store.index.columns import NONE, Columns
from avmfs.store.index.vectors import NONE_YET
from avmfs.text import segment
from avmfs.text.tokens import TokenCounter

if TYPE_CHECKING:
    from avmfs.search.reranking import Second

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Figures = tuple[float, float, Mapping[str, float], Mapping[str, float]]
Mode = Literal["hybrid", "lexical", "semantic"]

NO_EMBEDDER: Final = "no embedding engine"
OTHER_MODEL: Final = "changes to one that knows 16 languages"
STRADDLE: Final = 3.0
"""Pairs of characters stand across two words as often as not, and those are found nowhere: the same share of them
found means so many times more than one of words."""
CLEAR: Final = (0.3, 0.4)
"""How far the nearest stands above the mean of cosines: below, the model does not tell these texts apart (MiniLM in
Chinese: 0.29), and what it finds alike is not."""
FILLING: Final = 0.5
SIBLINGS: Final = 8
EARLY_S: Final = 8.0  # for the first vectors of a store, which a model that was just loaded computes in two
COMMON: Final = (0.15, 0.25)
"""Mean cosine from which it does not (MiniLM in Arabic: 0.24, in English below 0.1)."""
_SPARE: Final = 10  # passages fetched beyond what is wanted
_BY_MEANING: Final = SearchWeights(1.0, *[0.0] * (len(fields(SearchWeights)) - 1))


@dataclass(frozen=True, slots=True)
class Scored:
    """``score`` orders the hits of one answer and means nothing beyond it; ``relevance`` (0 to 1) is absolute.
    ``parts`` add up to the score; ``evidence`` is what the relevance is made of: coverage, near (coverage with the
    context) and, where there is a vector, cosine. ``replaces`` are handles of hits that say what was true before, and
    ``replaced`` ones are among those of another (see current). ``matter``: it and others are of one, in the order that
    the question wants. ``standing``: what links say of it, for a reader."""

    hit: Hit
    score: float
    relevance: float
    parts: Mapping[str, float]
    evidence: Mapping[str, float]
    replaces: tuple[str, ...] = ()
    replaced: bool = False
    matter: bool = False
    standing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Hits, best first. ``degraded`` is why vectors, or the re-ranker, had no part in it (``node.notice``); ``seq`` the
    snapshot it came from. ``links`` are what the order heeds. ``more``: there may be others, less relevant ones."""

    query: str
    hits: tuple[Scored, ...]
    degraded: str | None
    seq: int
    links: tuple[Dispute, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every candidate, before anything is fetched: what an answer is cut from, and ``:why`` looks into.
    ``relevance`` and ``evidence`` (m,) are the candidates'. ``wanted``: which rows of the table were looked for (n,),
    None for all. ``early``: there are notes, and none has a vector yet."""

    table: Columns
    candidates: fusion.Ranked
    relevance: NDArray[np.float64]
    evidence: Mapping[str, NDArray[np.float64]]
    degraded: str | None
    wanted: NDArray[np.bool_] | None
    early: bool = False

    def only(self, keep: NDArray[np.bool_]) -> Ranking:
        evidence = {name: column[keep] for name, column in self.evidence.items()}
        candidates = self.candidates.only(keep)
        return Ranking(self.table, candidates, self.relevance[keep], evidence, self.degraded, self.wanted)

    def here(self) -> NDArray[np.bool_]:
        """Which candidates (m,) are wanted, and relevant at all."""
        relevant = self.relevance > 0
        return relevant if self.wanted is None else relevant & self.wanted[self.candidates.positions]

    def passages(self) -> NDArray[np.int64]:
        return self.table.passages[self.candidates.positions]

    def scored(self, hit: Hit, at: int) -> Scored:
        return Scored(hit, *self.figures(np.array([at]))[0])

    def figures(self, chosen: Places) -> list[Figures]:
        """What Scored says of each of the candidates ``chosen`` (k,) beside its passage. Of all at once: one number
        after the other taken out of columns is a tenth of an answer's time."""
        parts = {name: part[chosen].tolist() for name, part in self.candidates.parts.items()}
        evidence = {name: column[chosen].tolist() for name, column in self.evidence.items()}
        return [
            (
                score,
                absolute,
                {name: value for name, column in parts.items() if (value := column[at])},
                {name: value for name, column in evidence.items() if (value := column[at]) == value},  # no NaN
            )
            for at, (score, absolute) in enumerate(
                zip(self.candidates.scores[chosen].tolist(), self.relevance[chosen].tolist(), strict=True)
            )
        ]


class Engine:
    """``index_for`` gives the index of one asker, ``aside`` saying of what (``Visible.searched``); ``embedder`` None
    answers from words alone, for the reason ``absent``. In ``half_life_days`` what counts for being recent halves.
    ``second`` reads the best hits of a question by words and meaning once more."""

    def __init__(
        self,
        index_for: Callable[..., SearchIndex],
        embedder: Embedder | None,
        counter: TokenCounter,
        *,
        weights: SearchWeights | None = None,
        absent: str = NO_EMBEDDER,
        half_life_days: float = 30.0,
        second: Second | None = None,
    ) -> None:
        self.counter = counter
        self.second = second
        self.half_life_days = half_life_days
        self._weights = weights or SearchWeights()
        self._absent = absent
        self._early_until: list[float] = []  # until when one waits for the first vectors; one list, of copies too
        self._index_for = index_for
        self._heeds_links = True
        self._vouched: tuple[tuple[int, ...], str | None] = ((), None)
        # A service has a cache of its own, which knows when the model changes.
        if embedder is not None and not isinstance(embedder, Remembering):
            embedder = QueryCache(embedder)
        self._embedder: Remembering | None = embedder

    def weighing(self, weights: SearchWeights) -> Engine:
        """The same engine with other weights."""
        other = copy.copy(self)
        other._weights = weights
        return other

    def searching(self, aside: str) -> Engine:
        """The same engine, which looks through what ``Visible.searched`` says."""
        other = copy.copy(self)
        other._index_for = partial(self._index_for, aside=aside)
        return other

    def vouching(self, documents: Sequence[int], failed: str | None) -> Engine:
        """The same engine, which is told that these documents answer, best first, and why others could not be asked:
        what they have beside the question's words nobody here knows."""
        other = copy.copy(self)
        other._vouched = (tuple(documents), failed)
        return other

    def without_links(self) -> Engine:
        """The same engine, to which links say nothing of what holds."""
        other = copy.copy(self)
        other._heeds_links = False
        return other

    def search(
        self,
        who: Principal,
        q: str,
        *,
        limit: int = 10,
        under: tuple[bytes, ...] = (),
        min_relevance: float = 0.0,
        mode: Mode = "hybrid",
        now: int | None = None,
        tz: tzinfo = UTC,
        one_per_document: bool = True,
        within: Collection[int] | None = None,
    ) -> Answer:
        """The best ``limit`` documents for ``q`` below ``under`` (and ``within``), each with its best passage, by
        relevance; none that has what ``q`` puts after NOT. There is no hit where no word is found and nothing reaches
        ``min_relevance``.

        Without ``one_per_document`` passages, best first: several may be of one document, and NOT is a word like
        others. Where one reaches ``min_relevance``, the others of its document come with it, and what reaches FILLING
        of it. Behind them stand, with no relevance of their own, what else the documents of the first hits say: what
        fits is handed out whole.

        Without vectors the answer is lexical, whatever the mode, and says why. A blank question has no hits. Dates in
        it are counted from ``now`` (ns since the epoch) in ``tz``; without ``now`` they are words like others.
        """
        index = self._index_for(who)
        seq = index.seq()
        q, unwanted = segment.unwanted(q) if one_per_document else (q, [])
        if not _asks(q):
            return Answer(q, (), None, seq)
        wanted = Wanted(under, unwanted, within)
        ranking = self.ranking(who, index, q, mode, now, tz, wanted)
        while ranking.early and self._patient():
            index = self._index_for(who)
            seq, ranking = index.seq(), self.ranking(who, index, q, mode, now, tz, wanted)
        documents = ranking.table.documents[ranking.candidates.positions]
        here = ranking.here()
        keep = here & (ranking.relevance >= min_relevance)
        if one_per_document:  # by meaning alone no word can vouch for what is nearest: it is shown as far as it is
            shown = mode == "semantic" or keep.any() or bool(ranking.evidence["coverage"][here].any())
            keep = here & shown
        elif keep.any():
            keep |= here & ((ranking.relevance >= FILLING * min_relevance) | np.isin(documents, documents[keep]))
        second = self.second if mode == "hybrid" else None
        least = limit if second is None else max(limit, second.settings.top)
        found = _fetch(index, ranking.only(keep), least, under, one_per_document)
        found, unjudged = (found, None) if second is None else second.on(found, q)
        spans = signals.spans(signals.asked(q, now, tz), now, tz) if now is not None else ()
        links = index.disputed([scored.hit.document for scored in found]) if self._heeds_links else []
        heeded = linked.heeded(links, found, q, spans)
        hits = linked.placed(self._current(found, q, spans, links), links, heeded)
        # That the words are all there is to go by is said where it matters: not above what they have found.
        unknown = mode == "hybrid" and hits and (ranking.degraded or "").endswith(OTHER_MODEL)
        reasons = [None if unknown else ranking.degraded, unjudged, self._vouched[1]]
        hits = _with_vouched(index, ranking, self._vouched[0], hits, limit, under, min_relevance)
        if not one_per_document:
            hits += _rest(index, ranking.table, hits, under)
        more = int(np.count_nonzero(keep)) >= min(limit, semantic.DEPTH)
        return Answer(q, tuple(hits), "; ".join(filter(None, reasons)) or None, seq, tuple(heeded), more)

    def _current(
        self, found: Sequence[Scored], q: str, spans: Sequence[current.Span], links: Sequence[Dispute]
    ) -> list[Scored]:
        return current.ordered(found, q, spans, self._weights.current, linked.replaced(links))

    def ranking(
        self,
        who: Principal,
        index: SearchIndex,
        q: str,
        mode: Mode = "hybrid",
        now: int | None = None,
        tz: tzinfo = UTC,
        wanted: Wanted = EVERYTHING,
    ) -> Ranking:
        """Score whatever has a word of ``q`` or a vector: of a large store the best, and the best of what is
        ``wanted``."""
        question = signals.asked(q, now, tz) if now is not None else signals.Asked((), False, signals.names(q))
        asks = signals.addressed(index.table(), q, question) if mode == "hybrid" and self._weights.speaker > 0 else q
        meaning, degraded = self._meaning(who, asks, mode)
        table = index.table()  # of now: a model may take long, and what was indexed anew meanwhile has other passages
        rows = wanted.rows(index, table)
        by_meaning = mode == "semantic" and meaning is not None
        terms = segment.query_terms(q)
        words = lexical.search(table, [] if by_meaning else terms, index.postings)
        phrased, nearest, early = _phrased(index, table, q), None, False
        if meaning is not None:
            found = self._strongest(table, words, rows)
            if not by_meaning:
                for more in (signals.of_those_days(table, question, tz, semantic.DEPTH), phrased[: semantic.DEPTH]):
                    found = np.union1d(found, more) if len(more) else found
            try:
                nearest = semantic.search(index, table, meaning.model, meaning.vectors[0], found)
            except Busy as error:
                degraded = error.reason
                early = degraded == NONE_YET.format(meaning.model) and len(table.passages) > 0
        if nearest is None and by_meaning:
            by_meaning, words = False, lexical.search(table, terms, index.postings)
        at, near = nearest or signals.unseen(table, words.positions, question, tz, semantic.DEPTH)
        near = near * (1.0 if meaning is None else scale(meaning.model))
        if not by_meaning:
            near = np.where(near == 0, np.nan, near)  # of length 0: the model does not know what it says
        words = words.over(at)
        columns = signals.columns(table, at, near, question, tz) | {"cosine": near, "context": words.context}
        columns["words"] = columns["date"] if nearest is None and question.days_alone else words.words
        columns["phrase"] = np.isin(at, phrased).astype(np.float64) if len(phrased) else np.zeros(len(at))
        weights = _BY_MEANING if by_meaning else self._weights
        if weights.decay and now is not None:
            columns["decay"] = signals.decay(table, at, now, self.half_life_days, tz)
        known = float(words.coverage.max(initial=0.0)) * (1 + STRADDLE * segment.pairs(terms))
        brevity = lexical.brevity(table)
        ranked = fusion.fuse(table, at, columns, weights, brevity, known, _clear(near), rows)
        chosen = np.searchsorted(at, ranked.positions)
        asked = [] if by_meaning else terms
        covered = signals.covered(table, words, asked, question, columns["date"], index.postings)
        evidence = {"coverage": covered[chosen], "near": words.near[chosen], "cosine": near[chosen]}
        lengths = table.lengths[ranked.positions]
        short, terms_in = lexical.shortness(lengths), lengths.astype(np.float64)
        named = columns["speaker"][chosen] if asks != q else None
        count, cosine, coverage = len(table.passages), evidence["cosine"], evidence["coverage"]
        told = 1.0 if meaning is None else float(np.linalg.norm(meaning.vectors[0]))
        shown = (ranked.scores, cosine, coverage, short, terms_in, named)
        absolute = relevance(*shown, brevity, count, told, len(asked))
        absolute *= mode != "hybrid" or not lexical.unheard_of(q, index.postings)
        return Ranking(table, ranked, absolute, evidence, degraded, rows, early)

    def nearness(self, who: Principal, q: str, texts: Sequence[str]) -> tuple[list[float] | None, str | None]:
        """Cosines of texts with a question; None where there are no vectors, and why."""
        if self._embedder is None:
            return None, self._absent
        try:
            vectors = self._embedder.embed_batch([q, *texts], urgent=True, asker=_asker(who)).vectors
        except (EmbeddingUnavailable, Busy) as error:
            return None, error.reason
        return (vectors[1:] @ vectors[0]).tolist(), None

    def _patient(self) -> bool:
        """Wait a little for the first vectors of what was written: what begins with a note and a question to it has
        its model a moment later. False once EARLY_S have been waited, in all."""
        if not self._early_until:
            self._early_until.append(time.monotonic() + EARLY_S)
        if time.monotonic() >= self._early_until[0]:
            return False
        time.sleep(0.05)
        return True

    def _meaning(self, who: Principal, q: str, mode: Mode) -> tuple[Batch | None, str | None]:
        """The vector of ``q``, or why there is none."""
        if mode == "lexical":
            return None, None
        if self._embedder is None:
            return None, self._absent
        try:
            found = self._embedder.embed_batch([q], urgent=True, asker=_asker(who))
        except (EmbeddingUnavailable, Busy) as error:
            return None, error.reason
        if found.vectors.any():
            return found, None
        return (
            found if mode == "semantic" else None,
            f"{found.model} does not know the words of the question; {universal.way()} {OTHER_MODEL}",
        )

    def _strongest(self, table: Columns, words: lexical.Lexical, wanted: NDArray[np.bool_] | None) -> Places:
        """What words have found; of a large store the best of it, ties included, and of what is ``wanted`` all, or the
        best of it: those of elsewhere are no rivals."""
        most = semantic.depth(table)
        if most is None:
            return words.positions
        score = fusion.share(words.words) * self._weights.words + fusion.share(words.context) * self._weights.context
        found = words.positions[fusion.reaching(score, most)]
        if wanted is None:
            return found
        here = np.flatnonzero(wanted)
        if len(here) > semantic.ALL:
            inside = wanted[words.positions]
            here = words.positions[inside][fusion.reaching(score[inside], most)]
        return np.union1d(found, here)


def _asker(who: Principal) -> str:
    return f"{who.name} {who.rights}"  # an agent, one of its API keys, or as the operator


def _clear(near: Floats) -> float:
    """How well a model tells these texts apart, by CLEAR and COMMON: 1 for well, -1 where all are alike to it, 0 where
    there are no cosines."""
    known = near[~np.isnan(near)]
    if not len(known):
        return 0.0
    mean = float(known.mean())
    apart, alike = (
        min(max((value - low) / (high - low), 0.0), 1.0)
        for value, (low, high) in ((float(known.max()) - mean, CLEAR), (mean, COMMON))
    )
    return apart * (1 - alike) - alike


def _phrased(index: SearchIndex, table: Columns, q: str) -> Places:
    """Positions, ascending, of what has all that ``q`` puts in quotation marks, word by word."""
    found: Places | None = None
    for terms in segment.quoted(q):
        at = table.find(index.phrase(terms))
        at = at[at != NONE]
        found = at if found is None else np.intersect1d(found, at)
    return np.zeros(0, np.int64) if found is None else found


def _fetch(
    index: SearchIndex, ranking: Ranking, limit: int, under: tuple[bytes, ...], one_per_document: bool
) -> list[Scored]:
    """At least ``limit`` of the best, where there are so many, best first; more, where they were read anyway."""
    found: dict[int, Scored] = {}
    passages, documents = ranking.passages(), ranking.table.documents[ranking.candidates.positions]
    # Fetching is dear (a row and its text each), and some fall away: expired ones, what stands elsewhere. So begin with
    # about what is wanted and go on until enough are left.
    best = ranking.candidates.best(len(passages))
    if one_per_document:
        _, first = np.unique(documents[best], return_index=True)
        best = best[np.sort(first)]
        best = best[np.argsort(-ranking.relevance[best], kind="stable")]
    else:
        best = _together(documents, best)
    done, wanted = 0, _SPARE + limit
    while len(found) < limit and done < len(best):
        calls.go_on()
        wave = best[done : done + wanted]
        figures = dict(zip(passages[wave].tolist(), ranking.figures(wave), strict=True))
        for hit in index.hits(list(figures), under):
            found[hit.passage] = Scored(hit, *figures[hit.passage])
        done += wanted
        wanted *= 4
    if one_per_document:
        return list(found.values())
    chosen = list(found.values())[:limit]
    return sorted(chosen, key=lambda scored: (-scored.score, scored.hit.passage))


def _with_vouched(
    index: SearchIndex,
    ranking: Ranking,
    documents: Sequence[int],
    hits: list[Scored],
    limit: int,
    under: tuple[bytes, ...],
    relevance: float,
) -> list[Scored]:
    """``limit`` of the hits, the last places of which, half of them at most, are for those of the ``documents`` that
    are wanted and not among the others, in their order: a file by what it was found by, else by its first passage."""
    table, wanted = ranking.table, True if ranking.wanted is None else ranking.wanted
    found = {each.hit.document: replace(each, relevance=max(each.relevance, relevance)) for each in reversed(hits)}
    at = [np.flatnonzero((table.documents == each) & wanted)[:1] for each in documents if each not in found]
    passages = [int(table.passages[each[0]]) for each in at if len(each)]
    for hit in index.hits(passages, under) if passages else ():
        found[hit.document] = Scored(hit, 0.0, relevance, {}, {})
    answers = [found[each] for each in dict.fromkeys(documents) if each in found]
    keep, least = limit, (limit + 1) // 2
    while True:
        there = {each.hit.document for each in hits[:keep]}
        late = [each for each in answers if each.hit.document not in there]
        if len(late) <= limit - keep or keep == least:
            return [*hits[:keep], *late][:limit]
        keep = max(limit - len(late), least)


def _rest(index: SearchIndex, table: Columns, hits: Sequence[Scored], under: tuple[bytes, ...]) -> list[Scored]:
    """Passages of the first _SPARE documents of ``hits`` that are not among them, of each that has SIBLINGS at most.
    Those of one document were indexed together, so they stand next to each other."""
    there = {scored.hit.passage for scored in hits}
    parts = {scored.hit.document: scored.hit.passage for scored in reversed(hits) if not scored.hit.whole}
    missing: list[int] = []
    for document in list(dict.fromkeys(scored.hit.document for scored in hits))[:_SPARE]:
        if document in parts:
            at = int(table.find(np.array([parts[document]]))[0])
            near = slice(max(at - SIBLINGS, 0), at + SIBLINGS + 1)
            inside = table.passages[near][table.documents[near] == document].tolist()
            missing += [passage for passage in inside if passage not in there] if len(inside) <= SIBLINGS else []
    return [Scored(hit, 0.0, 0.0, {}, {}) for hit in index.hits(missing, under)] if missing else []


def _together(documents: Places, best: Places) -> Places:
    """``best`` in another order: behind the first passage of each document the next ones of it, SIBLINGS at most."""
    own = np.arange(len(best))
    _, first, inverse = np.unique(documents[best], return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(inverse))[:-1])) if len(best) else own
    number = np.empty(len(best), np.int64)
    number[order] = own - starts[inverse[order]]
    return np.asarray(best[np.lexsort((own, np.where(number < SIBLINGS, first[inverse], own)))])


def _asks(q: str) -> bool:
    """Return whether there is a word in it, or an emoji. Signs alone ask nothing, but a model puts them beside every
    short note."""
    return any(each.isalnum() or (not each.isascii() and unicodedata.category(each)[0] == "S") for each in q)
