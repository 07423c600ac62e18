"""Search: ranking, relevance, degradation; a real index in memory, hashed vectors, MiniLM once."""

import dataclasses
import math
import os
import random
import unicodedata
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from avmfs_config import SearchWeights
from numpy.typing import NDArray

from avmfs.access import Key, Principal
from avmfs.embed import universal
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.errors import Busy
from avmfs.search import engine as engines
from avmfs.search import excerpts, fresh, fusion, lexical, semantic, signals
from avmfs.search.engine import EARLY_S, NO_EMBEDDER, Answer, Engine, Mode
from avmfs.search.excerpts import SUMMARY, summary
from avmfs.search.forms import format_search
from avmfs.search.fusion import POOL, Ranked, fuse
from avmfs.search.indexer import embed_pending
from avmfs.search.relevance import relevance
from avmfs.store.index.columns import SESSION_GAP, Columns
from avmfs.store.index.postings import Postings
from avmfs.store.index.vectors import NONE_YET
from avmfs.text import forms, passages, segment, speech
from avmfs.text.tokens import TokenCounter
from tests.hashing import HashingEmbedding
from tests.unit.fakes import MemoryCorpus, MemoryIndex
from tests.unit.views_fixtures import opened

os.environ.setdefault("OMP_NUM_THREADS", "1")

ALICE, BOB = Principal("alice"), Principal("bob")
COUNTER = TokenCounter()
NOTES = {
    "market/nvda.md": "NVDA showing weakness. RSI at 72, reduce exposure.",
    "market/chips.md": "Silicon vendors look frothy",
    "life/dinner.md": "Dinner was noodles with chilli oil",
    "life/football.md": "The kids have football on Tuesday",
    "ops/keys.md": "Rotate the API key of the billing service every 90 days",
    "life/flight.md": "Flight to Lisbon leaves at 09:40",
    "style/tabs.md": "Alice prefers tabs over spaces",
    "ops/vacuum.md": "Postgres vacuum ran for six hours",
    "life/dentist.md": "The dentist moved the appointment to May",
    "ops/disk.md": "Backup disk is nearly full",
    "life/fence.md": "Paint the fence green",
    "life/milk.md": "Buy milk and eggs",
    "life/garden.md": "Tomatoes need water twice a day in July",
}


def corpus() -> MemoryCorpus:
    made = MemoryCorpus()
    for name, text in NOTES.items():
        made.add(f"/memory/{name}", text)
    return made


def engine(made: MemoryCorpus, *, words_only: bool = False) -> Engine:
    return Engine(made.index, None if words_only else made.embedder, COUNTER)


def found(answer: Answer) -> list[str]:
    return [scored.hit.path.decode() for scored in answer.hits]


def words_of(made: MemoryCorpus, *terms: str) -> lexical.Lexical:
    index = made.index(ALICE)
    table = index.table()
    return lexical.search(table, terms, index.postings).over(np.arange(len(table.passages)))


def test_what_gets_its_vectors_while_it_is_asked_for_is_found() -> None:
    nothing, dinner = Answer("q", (), None, 0), engine(corpus()).search(ALICE, "noodles", limit=1)
    answers = [nothing, dinner]

    class Embedding:
        """A store whose one waiting note is embedded during the first question."""

        def vectors_wait(self) -> bool:
            return len(answers) == 2

        def newest_passage(self) -> int:
            return 1

    store: Any = Embedding()
    reading: Any = nullcontext
    assert fresh.once_embedded(store, reading, lambda: answers.pop(0), True) is dinner
    answers = [nothing]
    assert fresh.once_embedded(store, reading, lambda: answers.pop(0), True) is nothing


def test_what_others_write_meanwhile_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as world:
        alice, bob, naps = world.agent("alice"), world.agent("bob"), 0
        embedder, asked = HashingEmbedding(), 0

        def write() -> None:
            bob.put("/shared/log.md", f"step {naps} is done")
            bob.put(f"/shared/{naps}.md", "one more")
            bob.put(f"/private/{naps}.md", "which alice does not see")
            alice.memory.make_searchable()

        def nap(_seconds: float) -> None:
            nonlocal naps
            naps += 1
            if naps == 2:
                embed_pending(world.store, embedder, embedder.model_id)
            write()

        def ask() -> Answer:
            nonlocal asked
            asked += 1
            return Answer("q", (), None, 0)

        write()
        monkeypatch.setattr(fresh, "time", SimpleNamespace(sleep=nap, monotonic=lambda: naps / 20))
        fresh.once_embedded(world.store, alice.memory.reading, ask, True)
        assert (naps, asked) == (2, 2), "for the note of before, and neither for what came since nor until the limit"


def test_neither_another_agent_nor_a_key_is_answered_by_what_an_agent_has_asked() -> None:
    asked: list[str] = []

    class Listening(HashingEmbedding):
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            asked.extend(texts)
            return super().embed_batch(texts, urgent=urgent)

    made = Engine(corpus().index, Listening(), COUNTER)
    for who in (ALICE, BOB, Principal("alice", key=Key("k", None, ("search",)))) * 2:
        made.search(who, "flight to Lisbon")
        made.nearness(who, "flight to Lisbon", [])
    assert asked == ["flight to Lisbon"] * 3


@pytest.mark.parametrize("drained", [False, True])
def test_what_is_edited_while_it_is_asked_for_is_found_and_in_passages_of_its_new_text(
    tmp_path: Path, drained: bool
) -> None:
    old, new = "Tomatoes need water. " * 150, "In July all of the tomatoes are watered twice a day. " * 40

    class Editing(HashingEmbedding):
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            alice.put("/shared/garden.md", new)
            if drained:
                alice.memory.make_searchable()
            return super().embed_batch(texts, urgent=urgent)

    with opened(tmp_path) as world:
        alice = world.agent("alice")
        alice.put("/shared/garden.md", old)
        alice.memory.make_searchable()
        asked = Engine(world.store.search_index, Editing(), COUNTER)
        answer = asked.search(alice.memory.who, "tomatoes", one_per_document=False)
        spans = passages.cut(new)
        assert 1 < len(spans) < len(passages.cut(old))
        assert sorted((scored.hit.start, scored.hit.stop) for scored in answer.hits) == spans
        assert {scored.hit.text for scored in answer.hits} == {new[start:stop] for start, stop in spans}
        assert not any(scored.hit.whole for scored in answer.hits)


def test_the_first_vectors_of_a_store_are_waited_for_once_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a question is about: each that asks live paths, or from the archive, has an engine of its own."""
    made, slept = corpus(), [0.0]

    def none(self: MemoryIndex, model: str, *_: object) -> None:
        raise Busy(NONE_YET.format(model))

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    monkeypatch.setattr(MemoryIndex, "nearest", none)
    monkeypatch.setattr(engines, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: slept[0]))
    asked = engine(made)
    for _ in range(2):
        assert asked.vouching([], None).search(ALICE, "noodles").degraded == NONE_YET.format("hashing-64")
        assert slept[0] == pytest.approx(EARLY_S, abs=0.1)


def which(column: NDArray[np.float64]) -> list[int]:
    return (np.flatnonzero(column) + 1).tolist()


def test_what_a_term_adds_is_remembered_for_this_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MemoryCorpus(embed=False)
    for number in range(120):
        made.add(f"/{number % 7}/{number}", f"{'tea ' * (number % 3)} coffee{number % 5} plan{number} word")
    index = made.index(ALICE)
    table = index.table()
    asked: list[str] = []

    def postings(terms: Sequence[str]) -> list[Postings]:
        asked.extend(terms)
        return index.postings(terms)

    def told(terms: Sequence[str], table: Columns = table) -> list[bytes]:
        found = lexical.search(table, terms, postings)
        columns = (found.positions, found.words, found.context, found.coverage, found.near)
        return [column.tobytes() for column in columns]

    questions = [["tea", "coffee1"], ["word"], ["coffee1", "plan4", "nowhere"], ["tea", "word", "coffee2"]]
    first = [told(terms) for terms in questions]
    before = sorted(asked)
    assert before == sorted({term for terms in questions for term in terms})
    assert [told(terms) for terms in questions] == first and sorted(asked) == before
    monkeypatch.setattr(lexical, "_known", lexical._Known())
    assert [told(terms) for terms in reversed(questions)] == first[::-1] and len(asked) > len(before)
    made.add("/1/120", "tea coffee1 plan4")
    assert told(questions[0], made.index(ALICE).table()) != first[0]
    monkeypatch.setattr(lexical, "KEPT", 40)
    monkeypatch.setattr(lexical, "_known", known := lexical._Known())
    assert [told(terms) for terms in questions] == first
    assert 0 < known._terms.size <= 40


def test_bm25_is_the_published_formula() -> None:
    made = MemoryCorpus(embed=False)
    for number, text in enumerate(("apple apple pie", "apple tree grows tall", "pear tree")):
        made.add(f"/{number}/{text}", text)
    result = words_of(made, "appl")
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [idf * tf * 2.2 / (tf + 1.2 * (1 - 0.75 + 0.75 * length / 3)) for tf, length in ((2, 3), (1, 4))]
    assert np.allclose(result.words, [*expected, 0])
    assert np.allclose(result.context, result.words), "each in a place of its own: nothing stands before it"
    assert np.allclose(result.coverage, [1, 1, 0])


def test_a_short_note_is_found_by_what_was_written_just_before_it_in_the_same_place() -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a/1", "Did you book the hotel in Lisbon?", updated=1)
    made.add("/a/2", "Yes, the one at the harbour", updated=2)
    made.add("/b/3", "No, not yet", updated=3)
    made.add("/a/4", "Tomorrow, then " + "it is as we do it " * 50, updated=4)
    result = words_of(made, "lisbon")
    assert which(result.words) == [1]
    assert which(result.context) == [1, 2]
    assert which(result.near) == [1, 2]


def test_what_leans_on_its_neighbours_leans_most_on_the_one_before() -> None:
    made = MemoryCorpus(embed=False)
    for n, text in enumerate(
        ("Good to see you", "Guess where we are", "In Lisbon, at last", "How nice", "Is it", "Yes")
    ):
        made.add(f"/a/{n}", text, updated=n)
    result = words_of(made, "lisbon")
    assert which(result.words) == [3]
    assert which(result.context) == [2, 3, 4, 5], "the one before it, and two after it"
    assert result.context[3] > result.context[4] > 0
    assert result.context[3] > result.context[1] > 0
    assert result.near[[1, 3, 4]].tolist() == pytest.approx([0.5, 1.0, 0.5], abs=0.001)
    index = made.index(ALICE)
    assert [(lexical.leans_on(index.table(), at) + 1).tolist() for at in (0, 2, 5)] == [[2], [2, 1, 4], [5, 4]]


def test_what_follows_a_question_gets_some_of_its_score() -> None:
    made = MemoryCorpus(embed=False)
    for n, text in enumerate(("Where did you stay?", "By the harbour", "Nice", "Where to next?")):
        made.add(f"/a/{n}", text, updated=n)
    table = made.index(ALICE).table()
    names = ("words", "context", "speaker", "date", "when", "question", "length")
    columns = {name: np.zeros(4) for name in names} | {"cosine": np.array([0.8, 0.4, 0.2, 0.6])}
    fused = fuse(table, np.arange(4), columns, SearchWeights(session=0, next=0, answer=0.5))
    assert fused.parts["answer"].tolist() == pytest.approx([0, 0.4, 0, 0])
    assert fused.scores.tolist() == pytest.approx([0.8, 0.8, 0.2, 0.6])
    alone = fuse(table, np.array([1, 2]), {name: column[1:3] for name, column in columns.items()}, SearchWeights())
    assert alone.parts["answer"].tolist() == [0, 0], "the question is no candidate"


def test_what_was_written_long_before_is_no_context() -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a/1", "Did you book the hotel in Lisbon?", updated=0)
    made.add("/a/2", "Yes, the one at the harbour", updated=SESSION_GAP + 1)
    assert which(words_of(made, "lisbon").context) == [1]


def test_common_terms_are_left_out_of_a_large_store_unless_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = MemoryCorpus(embed=False)
    for n in range(100):
        made.add(f"/{n}/x", "meeting about budget" if n % 2 else f"meeting number n{n}")
    assert len(which(words_of(made, "meet", "n4").words)) == 100
    monkeypatch.setattr(lexical, "MANY", 99)
    assert which(words_of(made, "meet", "n4").words) == [5]
    assert len(which(words_of(made, "meet", "budget").words)) == 100
    assert len(which(words_of(made, "meet", "unheardof").words)) == 100
    assert which(words_of(made, "unheardof").words) == []
    assert which(words_of(made).words) == []


def test_coverage_counts_words_that_occur_nowhere() -> None:
    assert max(words_of(corpus(), "fenc").coverage) == 1.0
    assert max(words_of(corpus(), "fenc", "unheardof").coverage) == pytest.approx(0.5, abs=0.1)


def fused_of(cosine: list[float], words: list[float], **more: list[float]) -> tuple[MemoryCorpus, Ranked]:
    made = MemoryCorpus(embed=False)
    for n in range(len(cosine)):
        made.add(f"/{n}/x", f"text {n}")
    zeros = [0.0] * len(cosine)
    names = ("cosine", "words", "context", "speaker", "date", "when", "question", "length")
    given = {**dict.fromkeys(names, zeros), "cosine": cosine, "words": words, **more}
    columns = {name: np.array(column) for name, column in given.items()}
    return made, fuse(made.index(ALICE).table(), np.arange(len(cosine)), columns, WEIGHTS)


WEIGHTS = SearchWeights(session=0, next=0)


def test_fusion_adds_the_cosine_the_shares_of_the_best_and_the_rest_by_their_weights() -> None:
    _, fused = fused_of([0.3, 0.6, 0.1], [2.0, 0.0, 4.0], context=[3.0, 6.0, 0.0], speaker=[1.0, 0.0, 0.0])
    assert np.allclose(fused.scores, [0.3 + 0.1 + 0.35 + 0.4, 0.6 + 0.7, 0.1 + 0.2])
    assert fused.best(2).tolist() == [1, 0]
    assert np.allclose(sum(fused.parts.values()), fused.scores)


def test_what_has_no_vector_yet_does_not_lose_for_it() -> None:
    nan = math.nan
    _, fused = fused_of([0.5] * 20 + [nan], [1.0] * 20 + [1.1])
    assert fused.best(1).tolist() == [20]
    _, fused = fused_of([nan, nan], [0.0, 1.0])
    assert fused.positions.tolist() == [1], "neither a word nor a vector: no candidate"


def test_ties_are_broken_by_passage_id_however_many_there_are() -> None:
    made, fused = fused_of([math.nan] * 1000, [1.0] * 1000)
    table = made.index(ALICE).table()
    assert table.passages[fused.positions[fused.best(7)]].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert fused.best(0).tolist() == []
    assert len(fused.best(5000)) == 1000


def test_candidates_are_cut_at_a_score_and_never_within_a_tie() -> None:
    _, fused = fused_of([0.5] * (POOL + 10) + [0.1], [0.0] * (POOL + 11))
    assert len(fused.positions) == POOL + 10


def test_a_session_lifts_what_stands_in_it_and_a_good_answer_what_it_answers() -> None:
    made = MemoryCorpus(embed=False)
    for n in range(4):
        made.add(f"/{'ab'[n // 2]}/{n}", f"text {n}", updated=n)
    table = made.index(ALICE).table()
    names = ("words", "context", "speaker", "date", "when", "question", "length")
    columns = {name: np.zeros(4) for name in names} | {"cosine": np.array([0.1, 0.9, 0.1, 0.2])}
    fused = fuse(table, np.arange(4), columns, SearchWeights(session=0.5, next=0.1))
    assert fused.parts["session"].tolist() == pytest.approx([0.25, 0.25, 0.075, 0.075])
    assert fused.parts["next"].tolist() == pytest.approx([0.115, 0, 0.0275, 0])


def test_a_passage_stands_for_its_document_as_far_as_its_best_ones_agree() -> None:
    made = MemoryCorpus(embed=False)
    long = "\n\n".join("word " * 150 for _ in range(4))
    made.add("/long", long)
    made.add("/short", "a note")
    table = made.index(ALICE).table()
    assert len(set(table.documents.tolist())) == 2 and len(table.documents) == 5
    names = ("words", "context", "speaker", "date", "when", "question", "length", "dialogue")
    cosines = np.array([0.8, 0.1, 0.2, 0.0, 0.6])
    columns = {name: np.zeros(5) for name in names} | {"cosine": cosines}
    fused = fuse(table, np.arange(5), columns, SearchWeights(document=0.5))
    mean = (0.8 + 0.2 + 0.1) / 3
    assert fused.parts["document"].tolist() == pytest.approx([0.5 * (mean - each) for each in cosines[:4]] + [0.0])
    assert fused.positions[fused.best(1)].tolist() == [4]


def relevance_of(
    cosine: list[float], coverage: list[float], scores: list[float] | None = None, shortness: float = 1
) -> list[float]:
    given = np.array(scores if scores is not None else np.nan_to_num(cosine) + coverage)
    values = relevance(given, np.array(cosine), np.array(coverage), np.ones(len(cosine)) * shortness)
    assert np.all((values >= 0) & (values <= 1))
    return values.tolist()


def test_relevance_is_absolute_and_either_witness_can_convince() -> None:
    field = [0.05] * 500
    assert max(relevance_of([0.25, *field], [0.1] + [0.0] * 500)) < 0.1, "the best of a poor field"
    assert relevance_of([0.7, *field], [0.0] * 501)[0] > 0.9, "a paraphrase"
    assert relevance_of([0.1, *field], [1.0] + [0.0] * 500)[0] > 0.9, "a number that means nothing"
    assert relevance_of([0.45, *field], [0.5] + [0.0] * 500)[0] > 0.9, "both"


def test_witnesses_are_of_one_passage_and_words_say_less_where_a_model_finds_something_else() -> None:
    field = [0.0] * 200
    apart = relevance_of([0.35, 0.0, *field], [0.0, 0.75, *field])
    together = relevance_of([0.35, 0.0, *field], [0.75, 0.0, *field])
    assert max(apart) < 0.7 < 0.95 < max(together)
    own, nothing = np.array([0.1, *field]), np.array([0.65, *field])
    german = [float(relevance(own, own, nothing, np.ones(201), known=known).max()) for known in (0.3, 1.0)]
    assert german[1] < 0.35 < 0.45 < german[0], "a model that knows the question little says little against words"
    unseen = relevance_of([math.nan, math.nan], [0.75, 0.0])
    assert unseen[0] > 0.9 > 0.3 > relevance_of([0.0, *field], [0.75, *field])[0], "no model, or one that says no"
    # What has no vector yet is not held against the question: its nearest may be as near as any.
    assert max(relevance_of([0.35, math.nan, *field], [0.0, 0.75, *field])) > 0.9


def test_the_nearest_of_few_is_more_than_the_nearest_of_many() -> None:
    assert relevance_of([0.42, *[0.05] * 10], [0.0] * 11)[0] > relevance_of([0.42, *[0.05] * 5000], [0.0] * 5001)[0]


def test_the_only_note_is_not_what_all_have_in_common() -> None:
    assert relevance_of([0.42], [0.0])[0] > 0.3 > relevance_of([0.2], [0.0])[0]
    assert relevance_of([0.42, 0.1], [0.0, 0.0])[0] > 0.3


def test_what_all_cosines_have_in_common_says_nothing() -> None:
    few, many = relevance_of([0.6, *[0.1] * 500], [0.0] * 501), relevance_of([0.6, *[0.5] * 500], [0.0] * 501)
    assert few[0] > 0.7
    assert many[0] < 0.2


def test_among_many_notes_less_nearness_is_an_answer_than_among_pages_or_a_few_notes() -> None:
    def best(count: int, brevity: float | None, cosine: float = 0.3) -> float:
        scores = np.linspace(cosine, 0.0, count)
        cosines = np.where(scores == cosine, cosine, 0.0)
        return float(relevance(scores, cosines, np.full(count, 0.1), np.ones(count), brevity=brevity, count=count)[0])

    assert best(200, 0.0) < best(200, None) < best(200, 1.0)
    assert best(10, 1.0) / best(10, None) < 1.15 < 1.5 < best(200, 1.0) / best(200, None)
    assert best(200, 1.0, cosine=0.1) < 0.05
    blind = (np.array([0.3]), np.array([np.nan]), np.array([0.2]), np.ones(1))
    assert relevance(*blind, brevity=0.0, count=200) == relevance(*blind)


def test_a_question_that_is_near_to_all_that_a_store_says_is_on_its_subject() -> None:
    def best(common: float, nearest: float = 0.31) -> float:
        cosines = np.array([nearest, *[common] * 200])
        return float(relevance(cosines, cosines, np.zeros(201), np.ones(201), brevity=0.5, count=201)[0])

    assert best(0.0) < 0.3 < best(0.1)
    # A few notes on different matters beside a long page are near to nothing as a whole: one may answer all the same.
    assert best(0.0, 0.36) > 0.45


def test_of_a_question_whose_words_nothing_has_the_nearest_stands_out_or_is_no_answer() -> None:
    """As of a Chinese question to English notes."""

    def best(nearest: float, field: float, asked: int, word: float = 0.0) -> float:
        cosines, coverage = np.array([nearest, *[field] * 200]), np.array([0.0] * 200 + [word])
        how: dict[str, Any] = {"brevity": 0.2, "count": 201, "asked": asked}
        return float(relevance(cosines, cosines, coverage, np.ones(201), **how).max())

    assert best(0.31, 0.25, 8) < 0.3 < best(0.31, 0.1, 8)
    assert best(0.31, 0.1, 3) < 0.3 > best(0.31, 0.1, 8, word=0.05), "too few words to tell, or one that is there"


def test_what_all_texts_of_a_language_have_in_common_is_no_answer() -> None:
    german = np.array([0.44, *[0.33] * 10])  # the nearest of eleven German notes to a question on a mountain, by MiniLM
    assert relevance(german, german, np.zeros(11), np.ones(11), brevity=1.0, count=11).max() < 0.3
    assert relevance(german, german - [0, *[0.3] * 10], np.zeros(11), np.ones(11), brevity=1.0, count=11).max() > 0.5


def test_what_continues_an_answer_is_relevant_by_its_score_and_the_rest_is_not() -> None:
    cosine, coverage = [0.7, 0.1, 0.1, *[0.05] * 500], [0.8] + [0.0] * 502
    values = relevance_of(cosine, coverage, [2.0, 1.2, 0.45, *[0.3] * 500])
    assert values[1] > 0.5
    assert values[2] < 0.2
    assert max(values[3:]) < 0.05
    pages = relevance_of(cosine, coverage, [2.0, 1.2, 0.45, *[0.3] * 500], shortness=0)
    assert pages[0] == pytest.approx(values[0])
    assert 0.1 < pages[1] < values[1] / 2


def test_without_vectors_words_alone_tell() -> None:
    nan = math.nan
    assert relevance_of([nan, nan, nan], [0.0, 0.1, 0.0], [0, 1, 0])[1] < 0.1
    assert relevance_of([nan, nan, nan], [0.0, 0.5, 0.0], [0, 1, 0])[1] > 0.9
    assert relevance_of([], []) == []
    assert relevance_of([nan], [0.0]) == [0.0]


def test_search_finds_the_note_and_keeps_the_parts_of_its_score() -> None:
    answer = engine(corpus()).search(ALICE, "When does the flight to Lisbon leave?", limit=3)
    best = answer.hits[0]
    assert best.hit.path == b"/memory/life/flight.md"
    assert best.relevance > 0.9
    assert {"cosine", "words"} <= best.parts.keys() and not {"context", "length", "session"} & best.parts.keys()
    assert best.score == pytest.approx(sum(best.parts.values()))
    assert best.evidence.keys() == {"coverage", "near", "cosine"}
    assert len(answer.hits) == 3
    assert answer.degraded is None
    assert answer.seq == len(NOTES)


def test_search_gives_a_document_once_and_passages_gives_each_passage() -> None:
    made = MemoryCorpus()
    made.add("/long", "\n\n".join(f"zebra paragraph {n} " + "filler words here " * 40 for n in range(6)))
    made.add("/short", "a zebra crossing")
    assert sorted(found(engine(made).search(ALICE, "zebra"))) == ["/long", "/short"]
    assert len(engine(made).search(ALICE, "zebra", one_per_document=False).hits) > 5


def test_search_goes_on_until_enough_documents_are_found() -> None:
    made = MemoryCorpus()
    made.add("/long", "\n\n".join(f"zebra {n} " * 70 for n in range(300)))
    for n in range(5):
        made.add(f"/far/{n}", f"zebra seen among {n} lions, {n} giraffes and some buffalo")
    assert len(engine(made).search(ALICE, "zebra", limit=6).hits) == 6


def test_search_stays_below_a_directory() -> None:
    answer = engine(corpus()).search(ALICE, "disk vacuum garden flight", under=(b"memory", b"ops"), limit=50)
    assert set(found(answer)) <= {path for path in found(answer) if path.startswith("/memory/ops/")}
    assert len(answer.hits) >= 2


@pytest.mark.parametrize("words_only", [True, False])
def test_what_stands_elsewhere_or_is_not_wanted_takes_no_place_of_what_is(
    monkeypatch: pytest.MonkeyPatch, words_only: bool
) -> None:
    """However many are better: of a large store only the best are looked at."""
    monkeypatch.setattr(fusion, "POOL", 20)
    monkeypatch.setattr(semantic, "ALL", 40)
    monkeypatch.setattr(semantic, "DEPTH", 10)
    made = MemoryCorpus(embed=not words_only)
    for number in range(100):
        made.add(f"/memory/shared/{number}.md", f"deploy rollback deploy rollback {number}")
    made.add(
        "/memory/proj/p.md", "to deploy the harbour service, call the pilot, wait for the tide, and sign the sheet"
    )
    asked: list[tuple[Mode, tuple[bytes, ...], str]] = [
        ("hybrid", (b"memory", b"proj"), "deploy rollback"),
        ("semantic", (b"memory", b"proj"), "deploy rollback"),
        ("hybrid", (), "deploy NOT rollback"),
    ]
    for mode, under, q in asked:
        answer = engine(made, words_only=words_only).search(ALICE, q, under=under, mode=mode)
        assert found(answer) == ["/memory/proj/p.md"], (mode, q)


def test_a_crowd_of_one_directory_leaves_room_for_what_stands_elsewhere() -> None:
    """All but its best three step back, and those of a small directory, or where there is but one, do not."""
    for crowd, elsewhere, falls in ((100, 5, True), (25, 5, False), (100, 0, False)):
        made = MemoryCorpus(embed=False)
        for number in range(crowd):
            made.add(f"/memory/log/{number}.md", f"entry {number}")
        for number in range(elsewhere):
            made.add(f"/memory/ops/{number}.md", f"note {number}")
        count = crowd + elsewhere
        cosines = np.concatenate((np.linspace(0.6, 0.5, crowd), np.full(elsewhere, 0.55)))
        columns = {name: np.zeros(count) for name in ("words", "context")} | {"cosine": cosines}
        fused = fuse(made.index(ALICE).table(), np.arange(count), columns, SearchWeights(session=0, document=0, next=0))
        part = fused.parts["crowd"]
        assert not part[:3].any()
        assert not part[crowd:].any()
        assert (part[3:crowd] < -0.05).all() if falls else not part.any()
        if falls:
            assert fused.best(4)[3] == crowd, "the first of those elsewhere comes fourth"


def test_what_others_keep_private_changes_nothing() -> None:
    alone, crowded = corpus(), MemoryCorpus()
    for n, (name, text) in enumerate(NOTES.items()):
        crowded.add(f"/memory/private/bob/{n}", "flight disk dinner " * (n + 1), owner="bob")
        crowded.add(f"/memory/{name}", text)
    for question in ("flight to Lisbon", "disk", "who likes dinner", "vacuum key milk"):
        one, other = (engine(made).search(ALICE, question, limit=20) for made in (alone, crowded))
        assert [(s.hit.path, s.score, s.relevance) for s in one.hits] == [
            (s.hit.path, s.score, s.relevance) for s in other.hits
        ]
    assert any(b"/bob/" in s.hit.path for s in engine(crowded).search(BOB, "flight").hits)


def test_min_relevance_abstains() -> None:
    assert engine(corpus()).search(ALICE, "quantum chromodynamics", min_relevance=0.3).hits == ()
    assert engine(corpus()).search(ALICE, " \t ").hits == ()
    assert engine(MemoryCorpus()).search(ALICE, "anything").hits == ()


def test_without_vectors_the_answer_is_from_words_and_says_why() -> None:
    class Down:
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            raise EmbeddingUnavailable("the model is loading")

    made = corpus()
    for mode in ("hybrid", "semantic"):
        answer = Engine(made.index, Down(), COUNTER).search(ALICE, "flight to Lisbon", mode=mode)
        assert found(answer)[0] == "/memory/life/flight.md"
        assert all(scored.evidence["near"] for scored in answer.hits), "the others stand beside it"
        assert answer.degraded == "the model is loading"
    assert engine(made, words_only=True).search(ALICE, "flight").degraded == NO_EMBEDDER
    lexical_only = Engine(made.index, Down(), COUNTER).search(ALICE, "flight", mode="lexical")
    assert lexical_only.degraded is None
    assert found(lexical_only)[0] == "/memory/life/flight.md"


@pytest.mark.parametrize("lacking", [False, True])
def test_what_the_model_does_not_know_names_the_command_that_helps(
    lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class English:
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            return Batch("english", np.zeros((len(texts), 4), np.float32))

    monkeypatch.setattr(universal, "lacking", lambda: lacking)
    made = Engine(corpus().index, English(), COUNTER)
    bring = "pip install 'avmfs[multilingual]' && " if lacking else ""
    told = f"english does not know the words of the question; {bring}avm model use universal changes to one"
    answer = made.search(ALICE, "伊朗军事冲突")
    assert answer.hits == () and (answer.degraded or "").startswith(told)
    assert made.search(ALICE, "flight to Lisbon").degraded is None, "the words have found it"


def test_a_note_without_a_vector_is_found_by_its_words() -> None:
    made = corpus()
    made.embed = False
    made.add("/memory/new.md", "the aardvark escaped")
    answer = engine(made).search(ALICE, "aardvark")
    assert found(answer)[0] == "/memory/new.md"
    assert "cosine" not in answer.hits[0].evidence


def test_semantic_mode_does_not_look_at_words() -> None:
    assert all(s.parts.keys() <= {"cosine"} for s in engine(corpus()).search(ALICE, "flight", mode="semantic").hits)


@pytest.mark.parametrize("question", ['"quoted" AND (OR NOT', "*", "a:b^2", "\0", "\ud800", "中东", "x" * 100_000])
def test_any_question_is_answered(question: str) -> None:
    assert isinstance(engine(corpus()).search(ALICE, question), Answer)


@pytest.mark.parametrize("question", ["", " ", "?", "*", '"', "\0", "...", "%", "-- !", "…", "「」"])
def test_signs_alone_ask_nothing(question: str) -> None:
    """A model puts them beside every short note: "*" was found in "hello" with .88."""
    answer = engine(corpus()).search(ALICE, question, mode="semantic")
    assert answer.hits == () and answer.degraded is None


@pytest.mark.parametrize("question", ["a", "7", "中", "🚀", "€", "C++"])
def test_a_word_a_number_or_an_emoji_asks(question: str) -> None:
    assert engine(corpus()).search(ALICE, question, mode="semantic").hits


class Angles:
    """Vectors in a plane, by the degrees that a text begins with; a question's is at 0."""

    model_id, dimension = "angles", 64

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            angle = math.radians(float(text.split()[0]) if text[0].isdigit() else 0.0)
            row[:2] = math.cos(angle), math.sin(angle)
        return Batch(self.model_id, rows)


def test_cosines_of_a_model_that_puts_all_texts_close_are_brought_to_scale() -> None:
    def cosine(model: str) -> float:
        made, plane = MemoryCorpus(embed=False), Angles()
        made.model = plane.model_id = model
        for degrees in (75, *range(100, 130)):
            made.add(f"/{degrees}", f"{degrees} a text that shares no word with it")
        for _, hit in made._hits:
            made._vectors[hit.passage] = plane.embed_batch([hit.text]).vectors[0]
        asked = Engine(made.index, plane, COUNTER).search(ALICE, "something", limit=1, mode="semantic")
        return asked.hits[0].evidence["cosine"]

    assert cosine("use-multilingual-3") == pytest.approx(1.4 * cosine("angles"))


def test_what_is_older_decays_by_half_lives_where_that_has_a_weight() -> None:
    made, day = MemoryCorpus(embed=False), 86_400 * 10**9
    for path, days in (("/old", 20), ("/older", 30), ("/new", 0)):
        made.add(path, "the build broke", updated=1000 * day - days * day)

    def score(weight: float) -> dict[str, float]:
        asked = Engine(made.index, None, COUNTER, weights=SearchWeights(decay=weight), half_life_days=10.0)
        hits = asked.search(ALICE, "build", now=1000 * day).hits
        return {os.fsdecode(scored.hit.path): scored.parts.get("decay", 0.0) for scored in hits}

    assert score(0.0) == {"/old": 0.0, "/older": 0.0, "/new": 0.0}
    assert list(score(0.4).items()) == [("/new", 0.4), ("/old", pytest.approx(0.1)), ("/older", pytest.approx(0.05))]


def test_what_begins_with_a_time_decays_from_that_time_of_the_askers_zone() -> None:
    hour, flags = 3600 * 10**9, np.array([speech.LOCAL, 0, speech.LOCAL], np.uint8)
    noon = int(datetime(2026, 3, 8, 12, tzinfo=UTC).timestamp()) * 10**9
    table: Any = SimpleNamespace(times=np.array([noon - 9 * hour, noon - hour, noon - 11 * hour]), flags=flags)
    found = signals.decay(table, np.arange(3), noon, 1 / 24, ZoneInfo("Pacific/Honolulu"))
    assert found.tolist() == pytest.approx([1.0, 0.5, 0.5])  # 13:00, 11:00 and 11:00 there


def test_a_chinese_question_in_other_words_still_goes_by_its_words() -> None:
    assert segment.pairs(segment.query_terms("中东局势")) == 1.0
    assert segment.pairs(segment.query_terms("NVDA 局势")) == 0.5
    assert segment.pairs([]) == 0.0


def test_what_is_put_in_quotes_is_looked_for_as_it_stands() -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a", "the house is green and the door is white, white as a house")
    made.add("/b", "we met at the White House on Monday and talked about the weather and the price of tea")
    made.add("/c", "白色的房子")
    ask = engine(made, words_only=True)
    assert found(ask.search(ALICE, "white house")) == ["/a", "/b"]
    for question in ('"white house"', "who was in the “White House”?", "«white houses»"):
        answer = ask.search(ALICE, question)
        assert found(answer) == ["/b", "/a"], question
        assert answer.hits[0].parts["phrase"] == 0.5
    assert found(ask.search(ALICE, '"white house" "price of tea"'))[0] == "/b"
    assert "phrase" not in ask.search(ALICE, '"white house" "green house"').hits[0].parts
    assert ask.search(ALICE, "「白色的房子」").hits[0].parts["phrase"] == 0.5
    assert segment.quoted('"one" and "two words"') == [["two", "word"]]
    assert len(segment.quoted('"two words" ' * 50)) == segment.QUOTES


def test_chinese_is_found_by_parts_of_words() -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a", "中东局势紧张升级，油价上涨")
    made.add("/b", "今天晚饭吃了面条")
    assert found(engine(made, words_only=True).search(ALICE, "局势怎么样")) == ["/a"]


def test_format_of_search() -> None:
    made = corpus()
    lines = format_search(engine(made).search(ALICE, "lisbon flight", limit=1)).splitlines()
    assert lines == ["[1.00] /memory/life/flight.md", "  Flight to Lisbon leaves at 09:40"]
    assert format_search(Answer("x", (), None, 1)) == "(no matches)\n"
    assert format_search(Answer("x", (), "model\nis loading", 1)) == (
        "# semantic search unavailable: model is loading\n(no matches)\n"
    )
    made.add("/memory/odd\nname", "xylophone")
    assert format_search(engine(made, words_only=True).search(ALICE, "xylophone")).splitlines() == [
        f"# semantic search unavailable: {NO_EMBEDDER}",
        "[1.00] /memory/odd\\nname",
        "  xylophone",
    ]


def test_summary_is_the_line_that_matches() -> None:
    text = "---\n# Title of it\n\n- first thing\n- the zebra crossed\n"
    assert summary(text, tuple(segment.query_terms("zebras"))) == "the zebra crossed"
    assert summary(text, ("nothing",)) == "Title of it"
    assert summary("---\n***\n", ("x",)) == ""
    long = summary("padding words " * 60 + "the needle is here " + "more words " * 60, ("needl",))
    assert "needle" in long
    assert len(long) <= SUMMARY
    assert long.startswith("… ")
    assert long.endswith(" …")
    line = "2026-03-07T10:05:00 " + "info " * 60 + "host 10.0.0.5 refused " + "info " * 40
    assert "10.0.0.5" in summary(line, tuple(segment.query_terms("10.0.0.5")))


def test_the_place_where_most_terms_stand_is_found_with_a_few_looks_at_each_match() -> None:
    looks: list[Any] = []

    class Found(list[tuple[int, str]]):
        def __getitem__(self, at: Any) -> Any:
            looks.append(at)
            return super().__getitem__(at)

    chance = random.Random(4)
    for count in (*range(60), 5000):
        found = Found((place, chance.choice("abcdef")) for place in sorted(chance.sample(range(9 * count), count)))
        said = [
            len({term for there, term in found[n : n + 106] if there - place < 106})
            for n, (place, _) in enumerate(found)
        ]
        looks.clear()
        most = excerpts._fullest(found, 106)
        assert len(looks) <= 4 * count
        assert most == (found[said.index(max(said))][0] if found else 0)


@pytest.mark.model
def test_minilm_finds_a_paraphrase_that_shares_no_word() -> None:
    embedder = LocalEmbedding(device="cpu", allow_download=False)
    made = MemoryCorpus(embedder)
    for name, text in NOTES.items():
        made.add(f"/memory/{name}", text)
    asked = Engine(made.index, embedder, COUNTER)
    answer = asked.search(ALICE, "semiconductor stock is too expensive", min_relevance=0.3)
    assert found(answer)[0] == "/memory/market/chips.md"
    assert asked.search(ALICE, "quantum chromodynamics on a lattice", min_relevance=0.3).hits == ()


def test_one_ideograph_is_found_wherever_it_stands(tmp_path: Path) -> None:
    with opened(tmp_path) as world:
        alice = world.agent("alice")
        for name, text in (("begin", "茶叶很好"), ("inside", "喝绿茶很好"), ("end", "下午喝绿茶"), ("other", "喝咖啡")):
            alice.put(f"/shared/{name}", text)
        alice.memory.make_searchable()
        for _ in range(2):  # the second time from memory, and with what came since
            said = {scored.hit.path for scored in alice.memory.search("茶", mode="lexical", limit=100).hits}
            assert said >= {b"/memory/shared/begin", b"/memory/shared/inside", b"/memory/shared/end"}, said
            assert b"/memory/shared/other" not in said
            for n in range(40):
                alice.put(f"/shared/more{n}", "红茶真好")
            alice.memory.make_searchable()
        left = alice.memory.search("喝 NOT 茶", mode="lexical").hits
        assert [scored.hit.path for scored in left] == [b"/memory/shared/other"]


def test_a_search_by_words_alone_waits_for_no_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as world:
        alice = world.agent("alice")
        alice.memory.around = dataclasses.replace(alice.memory.around, embedded=True)
        alice.put("/shared/note", "the kiln is hot")
        alice.memory.make_searchable()
        naps: list[float] = []
        clock = SimpleNamespace(sleep=naps.append, monotonic=lambda: float(len(naps)))
        monkeypatch.setattr(fresh, "time", clock)
        assert not alice.memory.search("zzz", mode="lexical").hits and not naps
        alice.memory.search("zzz")


@pytest.mark.parametrize(
    ("singular", "plural"),
    [("شهادة", "شهادات"), ("الاجتماع", "اجتماعات"), ("سيارة", "سيارات"), ("ملاحظة", "الملاحظات"), ("تعليق", "تعليقات")],
)
def test_a_regular_plural_of_arabic_and_its_singular_find_each_other(singular: str, plural: str) -> None:
    for written, asked in ((singular, plural), (plural, singular)):
        made = MemoryCorpus(embed=False)
        made.add("/a", f"{written} TLS")
        made.add("/b", "القطة نائمة")
        assert found(engine(made, words_only=True).search(ALICE, asked)) == ["/a"], asked


def test_a_word_is_found_in_the_form_in_which_it_was_written() -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a", "We bought a kiln for the studio")
    made.add("/b", "The children went to the lake")
    made.add("/c", "Nobody took the train")
    ask = engine(made, words_only=True)
    for question, path in (
        ("What did she buy?", "/a"),
        ("buying", "/a"),
        ("Where does every child go?", "/b"),
        ("who takes it", "/c"),
    ):
        assert found(ask.search(ALICE, question)) == [path], question
    assert set(forms.of("go")) == set(forms.of("went")) == {"go", "went", "gone"}
    assert forms.of("kiln") == ("kiln",)


def test_every_family_of_forms_is_apart_from_the_others() -> None:
    families = {frozenset(forms.of(term)) for term in segment.terms(forms._GROUPS)}
    assert sum(map(len, families)) == len(set().union(*families))
    assert all(len(family) > 1 for family in families)


def test_of_remarks_about_as_near_the_one_that_tells_of_an_event_comes_first() -> None:
    made = MemoryCorpus()
    made.add("/a/1", "The kiln is lovely", updated=0)
    made.add("/b/1", "The kiln arrived yesterday", updated=0)
    made.add("/c/1", "Nothing of note today", updated=0)
    made.add("/d/1", "The kiln came yesterday " + "and so on and so forth " * 60, updated=0)
    table = made.index(ALICE).table()
    cosines = np.array([0.5, 0.5, -0.1, 0.5])
    events = signals.event(table, np.arange(4), cosines)
    assert events[:3].tolist() == pytest.approx([0, 0.5, 0], abs=0.001), "only where it is near"
    assert events[3] < 0.01, "a page names a time by the way"
    assert signals.event(table, np.arange(4), np.full(4, math.nan)).tolist() == [0, 0, 0, 0]


def test_a_remark_of_a_word_or_two_is_not_relevant_for_what_it_stands_beside() -> None:
    cosine, coverage = [0.7, 0.1, 0.1, *[0.05] * 500], [0.8] + [0.0] * 502
    given = (np.array([2.0, 1.9, 1.8, *[0.3] * 500]), np.array(cosine), np.array(coverage), np.ones(503))
    terms = np.array([12.0, 1.0, 9.0] + [8.0] * 500)
    free, held = relevance(*given), relevance(*given, terms)
    assert free[1] > 0.8
    assert held[1] < 0.1
    assert held[[0, 2]].tolist() == free[[0, 2]].tolist()
    alone = relevance(
        np.array([1.0, 0.1]), np.array([0.8, 0.0]), np.array([1.0, 0.0]), np.ones(2), np.array([1.0, 9.0])
    )
    assert alone[0] > 0.9, "it is what was asked for"


class Recorder(HashingEmbedding):
    """Remembers what was to be embedded last."""

    last: tuple[str, ...] = ()

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        self.last = tuple(texts)
        return super().embed_batch(texts, urgent=urgent)


def talk(turns: int, *, owner: str | None = None) -> MemoryCorpus:
    """``turns`` of Mary Jane's and as many of Tom's, and a few notes headed by their matter."""
    made = MemoryCorpus(Recorder())
    for turn in range(turns):
        made.add(f"/talk/{turn:03}a", f"Mary Jane: number {turn} of the lanterns is mended", owner=owner)
        made.add(f"/talk/{turn:03}b", f"Tom: then there are {turn} to go", owner=owner)
    for turn in range(3):
        made.add(f"/ops/{turn}", f"Redis: instance {turn} was moved")
    return made


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        ("What did Tom mend?", "What did you mend?"),
        ("Which lantern is Tom's, and which is Mary’s?", "Which lantern is your, and which is your?"),
        ("Have Mary Jane's lanterns come?", "Have your lanterns come?"),
        ("Did Mary Jane or Tom mend it?", "Did you or you mend it?"),
        ("what did tom mend?", "what did tom mend?"),  # may be another word
        ("Tom, and Mary", "Tom, and Mary"),  # nothing else is there to look for
        ("When was Redis moved?", "When was Redis moved?"),  # a matter, not somebody who talks
        ("What did alice write, or Alice?", "What did alice write, or Alice?"),  # the author, whose name is in no text
        ("Thomas mends lanterns. Tommy?", "Thomas mends lanterns. Tommy?"),
    ],
)
def test_a_model_is_asked_without_the_names_of_those_who_talk_here(question: str, asks: str) -> None:
    made = talk(signals.OFTEN)
    assert isinstance(made.embedder, Recorder)
    engine(made).search(ALICE, question)
    assert made.embedder.last == (asks,)


def test_a_name_stays_in_the_question_where_nobody_of_that_name_talks_much() -> None:
    made = talk(signals.OFTEN - 1)
    assert isinstance(made.embedder, Recorder)
    engine(made).search(ALICE, "What did Tom mend?")
    assert made.embedder.last == ("What did Tom mend?",)


def test_a_name_stays_in_the_question_where_the_meaning_alone_or_no_speaker_counts() -> None:
    made = talk(signals.OFTEN)
    assert isinstance(made.embedder, Recorder)
    engine(made).search(ALICE, "What did Tom mend?", mode="semantic")
    assert made.embedder.last == ("What did Tom mend?",)
    engine(made).weighing(SearchWeights(speaker=0.0)).search(ALICE, "What did Tom bend?")
    assert made.embedder.last == ("What did Tom bend?",)


def test_who_talks_in_private_to_others_is_not_known_by_the_question() -> None:
    made = talk(signals.OFTEN, owner="bob")
    assert isinstance(made.embedder, Recorder)
    engine(made).search(ALICE, "What did Tom mend?")
    assert made.embedder.last == ("What did Tom mend?",)
    engine(made).search(BOB, "What did Tom mend?")
    assert made.embedder.last == ("What did you mend?",)


def test_a_name_that_was_left_out_of_the_question_counts_for_the_relevance_of_its_speaker() -> None:
    scores, cosines, few = np.array([1.0, 0.9, 0.1]), np.array([0.2, 0.2, 0.0]), np.zeros(3)
    plain = relevance(scores, cosines, few, np.ones(3))
    named = relevance(scores, cosines, few, np.ones(3), named=np.array([1.0, 0.0, 0.0]))
    assert named[0] > plain[0] + 0.1
    assert named[0] > named[1]


def test_what_stands_after_NOT_is_in_no_hit() -> None:
    made = corpus()
    both = engine(made, words_only=True).search(ALICE, "exposure noodles backup")
    assert len(both.hits) == 3
    for q, gone in {
        "exposure noodles NOT backup": {"/memory/ops/disk.md"},
        "exposure noodles backup NOT reducing": {"/memory/market/nvda.md"},  # another form of the word
        'exposure noodles backup NOT "backup disk" NOT chilli': {"/memory/ops/disk.md", "/memory/life/dinner.md"},
        'exposure noodles backup NOT "disk backup"': set(),  # the words, in another order
    }.items():
        answer = engine(made, words_only=True).search(ALICE, q)
        assert set(found(answer)) == set(found(both)) - gone, q
        hits = found(engine(made).search(ALICE, q, limit=50))
        assert hits and not gone & set(hits), q  # by meaning neither


def test_what_a_source_vouches_for_is_shown_where_much_else_answers_and_never_what_is_not_wanted() -> None:
    made = MemoryCorpus()
    for number in range(15):
        made.add(f"/live/{number}", f"printer {number} is on fire" if number < 12 else f"thermal event {number} laser")
    asked, q = engine(made), "printer on fire"

    def told(*documents: int, q: str = q, **how: Any) -> list[str]:
        return found(asked.vouching(documents, None).search(ALICE, q, **how))

    plain = found(asked.search(ALICE, q))
    assert len(plain) == 10 and "/live/14" not in plain
    assert told(15) == [*plain[:9], "/live/14"]
    ranked = found(asked.search(ALICE, q, limit=20))
    late = 1 + int(ranked[11].rpartition("/")[2])  # one of its words, which does not come among the first ten
    assert told(15, late) == [*plain[:8], "/live/14", ranked[11]] and told(late, 15)[-2:] == [ranked[11], "/live/14"]
    assert told(*range(15, 0, -1))[:5] == plain[:5], "half the places are for what is ranked here"
    first = 1 + int(plain[0].rpartition("/")[2])
    assert told(first, first) == plain and told(15, limit=1) == plain[:1]
    assert told(first, 15, limit=2) == [plain[0], "/live/14"]
    assert "/live/14" not in told(15, q=f"{q} NOT laser") and told(15, within={1, 2})[2:] == []
    assert told(15, under=(b"memory",)) == [] and told(15, q="zzzqx", min_relevance=0.3) == ["/live/14"]
    passages = asked.vouching((15,), None).search(ALICE, q, limit=4, one_per_document=False).hits
    assert b"/live/14" in [scored.hit.path for scored in passages[:4]]


def test_a_document_goes_whole_for_one_passage_with_an_unwanted_word() -> None:
    made = MemoryCorpus()
    page = "\n\n".join([f"# Kafka {number}\n\n" + "brokers and topics of the cluster " * 60 for number in range(3)])
    made.add("/page", page + "\n\nretention is a week")
    made.add("/note", "kafka brokers")
    assert set(found(engine(made).search(ALICE, "kafka brokers"))) == {"/page", "/note"}
    assert found(engine(made).search(ALICE, "kafka brokers NOT retention")) == ["/note"]


def test_hits_stand_in_the_order_of_the_relevance_shown() -> None:
    made = MemoryCorpus()
    said = (
        "ann: how do I rotate the billing key of the payment service",
        "bob: ok",
        "ann: and when does the billing key expire",
        "bob: rotate billing",  # high in the ranking, and says next to nothing
        "carl: the garden needs water",
        "eva: the disk of the backup is full",
    )
    for number, text in enumerate(said):
        made.add(f"/chat/{number}", text, updated=number * 10**10)
    hits = engine(made).search(ALICE, "how to rotate the billing key", limit=20).hits
    shown, scores = [scored.relevance for scored in hits], [scored.score for scored in hits]
    assert shown == sorted(shown, reverse=True) and scores != sorted(scores, reverse=True)


def test_nothing_is_a_hit_where_neither_a_word_nor_the_meaning_fits() -> None:
    made = corpus()
    strange = engine(made).search(ALICE, "zzzqx", min_relevance=0.3)
    assert not strange.hits and format_search(strange) == "(no matches)\n"
    asked = "noodles of quantum chromodynamics on a lattice of gauge symmetries"
    by_word = engine(made).search(ALICE, asked, min_relevance=0.99)
    assert by_word.hits and by_word.hits[0].relevance < 0.99  # its word is there
    assert not engine(made).search(ALICE, asked.partition(" of ")[2], min_relevance=0.99).hits
    by_meaning = engine(made).search(ALICE, "RSI exposure", limit=50, min_relevance=0.3).hits
    assert by_meaning[-1].relevance < 0.3 < by_meaning[0].relevance  # who looks for files sees what is near as well


def test_summary_shows_the_match_in_texts_without_blanks() -> None:
    for before in ("天" * 250, "2026-03-07 " + "天" * 250, "{" + '"key":"value",' * 40):
        told = summary(before + "局势紧张" + "地" * 160, ("局势",))
        assert "局势" in told and told.startswith("… ") and told.endswith(" …") and len(told) <= SUMMARY
    assert summary("İ" * 300 + " needle", ("needl",)), "folded, it is longer than it is"
    assert not unicodedata.combining(summary("a" * 100 + "\u0301" * 100 + "局势", ("局势",))[2])


def test_summary_is_the_line_that_was_found_by_another_form() -> None:
    asked = tuple(segment.query_terms("who went"))
    assert summary("# Log\nlunch was fine\nwe go to Oslo\n", asked) == "we go to Oslo"
    assert summary("# 日志\n今天下雨\n我们的猫睡了\n", ("猫",)) == "我们的猫睡了"
    assert "the child is" in summary("padding words " * 60 + "the child is here " + "more words " * 60, ("children",))


def test_a_note_of_the_days_that_are_asked_for_need_not_say_them() -> None:
    made, day = MemoryCorpus(), 86_400 * 10**9
    now = int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()) * 10**9
    for path, days in (("/fresh", 8), ("/stale", 40)):
        made.add(path, "we decided on the blue tiles", updated=now - days * day)

    def covered(q: str, now: int | None = now) -> dict[str, float]:
        ranked = engine(made).ranking(ALICE, made.index(ALICE), q, now=now)
        paths = [os.fsdecode(hit.path) for hit in made.index(ALICE).hits(ranked.passages().tolist(), ())]
        return dict(zip(paths, ranked.evidence["coverage"].round(2).tolist(), strict=True))

    asked = "what tiles have we decided on last week"
    assert covered(asked) == {"/fresh": 1.0, "/stale": covered(asked, None)["/stale"]}
    assert covered(asked)["/stale"] < 0.7
    assert covered("what tiles have we decided on") == {"/fresh": 1.0, "/stale": 1.0}
    assert covered("zebra stripes last week") == {"/fresh": 0.0, "/stale": 0.0}
    assert covered("what did I write last week") == {"/fresh": 1.0, "/stale": 0.0}
    assert not any(covered("what happened in 2019").values())


@pytest.mark.parametrize(
    "question",
    [
        "what did I write last week",
        "Was habe ich letzte Woche notiert?",
        "¿Qué pasó la semana pasada?",
        "Что произошло на прошлой неделе?",
        "ماذا كتبت الأسبوع الماضي",
        "先週何を書きましたか",
        "지난주에 뭐 썼지",
        "지난주에 무슨 일이 있었어?",
        "上周写了什么",
        "上周我记录了什么",
    ],
)
def test_what_asks_for_all_of_certain_days_needs_no_word_and_no_vector(question: str) -> None:
    made, day = MemoryCorpus(embed=False), 86_400 * 10**9
    now = int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()) * 10**9
    for path, days in (("/fresh", 8), ("/stale", 40)):
        made.add(path, "blue tiles", updated=now - days * day)
    made.add("/week", "this week, esta semana, diese Woche, this write", updated=now - 60 * day)
    answer = engine(made, words_only=True).search(ALICE, question, now=now, min_relevance=0.2)
    assert found(answer)[:1] == ["/fresh"]
    assert "/stale" not in found(answer)


@pytest.mark.parametrize(
    ("question", "answered"),
    [
        ("ORD-5582", True),
        ("ORD-9999", False),
        ('"ORD-9999"?', False),
        ("CVE-2021-44228", False),
        ("INC-2041", False),
        ("INC-204", False),
        ("SP-800-53", True),
        ("ORD-99", True),
        ("ORD-2024", True),
        ("order ORD-9999", True),
    ],
)
def test_an_identifier_that_occurs_nowhere_is_not_answered_with_another_one(question: str, answered: bool) -> None:
    made = MemoryCorpus(embed=False)
    made.add("/a", "ORD-5582 was sent")
    made.add("/b", "ORD-7110 came back in 2021, see INC4711 and SP800-53, sp")
    assert bool(engine(made, words_only=True).search(ALICE, question).hits) == answered
    assert not lexical.unheard_of("INC-4711", made.index(ALICE).postings)  # a model may find it
