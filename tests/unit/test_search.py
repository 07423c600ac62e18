"""Search: ranking, relevance, degradation; a real index in memory, hashed vectors, MiniLM once."""

import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
from fakes import MemoryCorpus

from avmfs.access import Principal
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.search import lexical, semantic
from avmfs.search.engine import NO_EMBEDDER, Answer, Engine
from avmfs.search.fuse import LEXICAL, fuse
from avmfs.search.pack import SUMMARY, format_search, summary
from avmfs.search.relevance import relevance
from avmfs.text import segment
from avmfs.text.tokens import TokenCounter

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


def test_bm25_is_the_published_formula() -> None:
    made = MemoryCorpus(embed=False)
    for text in ("apple apple pie", "apple tree grows tall", "pear tree"):
        made.add(f"/{text}", text)
    result = lexical.search(made.index(ALICE), ["appl"])
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [idf * tf * 2.2 / (tf + 1.2 * (1 - 0.75 + 0.75 * length / 3)) for tf, length in ((2, 3), (1, 4))]
    assert result.passages.tolist() == [1, 2]
    assert np.allclose(result.scores, expected)
    assert np.allclose(result.coverage, 1)


def test_common_terms_are_left_out_unless_there_is_nothing_else() -> None:
    made = MemoryCorpus(embed=False)
    for n in range(100):
        made.add(f"/{n}", "meeting about budget" if n % 2 else f"meeting number n{n}")
    index = made.index(ALICE)
    assert lexical.search(index, ["meet", "n4"]).passages.tolist() == [5]
    assert len(lexical.search(index, ["meet", "budget"]).passages) == 100
    assert len(lexical.search(index, ["meet", "unheardof"]).passages) == 100
    assert lexical.search(index, ["unheardof"]).passages.tolist() == []
    assert lexical.search(index, []).passages.tolist() == []


def test_coverage_counts_words_that_occur_nowhere() -> None:
    index = corpus().index(ALICE)
    assert lexical.search(index, ["fenc"]).coverage.tolist() == [1.0]
    assert lexical.search(index, ["fenc", "unheardof"]).coverage[0] == pytest.approx(0.5, abs=0.1)


def test_fusion_adds_cosine_and_the_share_of_the_best_bm25() -> None:
    words = lexical.Lexical(np.array([1, 3]), np.array([2.0, 4.0]), np.array([0.5, 1.0]))
    near = semantic.Semantic(np.array([1, 2]), np.array([0.3, 0.6]))
    fused = fuse(words, near)
    assert fused.passages.tolist() == [1, 2, 3]
    assert np.allclose(fused.scores, [0.3 + LEXICAL / 2, 0.6, LEXICAL])
    assert np.isnan(fused.cosines[2])
    assert fused.best(2).tolist() == [1, 0]


def test_ties_are_broken_by_passage_id_however_many_there_are() -> None:
    ids = np.arange(1, 1001)
    fused = fuse(lexical.Lexical(ids, np.ones(1000), np.ones(1000)), semantic.NOTHING)
    assert fused.passages[fused.best(7)].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert fused.best(0).tolist() == []
    assert len(fused.best(5000)) == 1000


def test_relevance_is_absolute_and_grows_with_either_witness() -> None:
    nan = np.nan
    cosine = np.array([-0.1, 0.15, 0.36, 0.6, 0.0, 0.0, nan, nan, nan])
    cover = np.array([0.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.0, 0.4, 1.0])
    values = relevance(cosine, cover)
    assert np.all((values >= 0) & (values <= 1))
    assert values[0] < 0.01 > values[6]
    assert values[1] < 0.1
    assert values[2] == pytest.approx(0.5)
    assert values[3] > 0.9 < values[5]
    assert values[4] < 0.1
    assert values[7] == pytest.approx(0.38)


def test_search_finds_the_note_and_keeps_the_parts_of_its_score() -> None:
    answer = engine(corpus()).search(ALICE, "When does the flight to Lisbon leave?", limit=3)
    best = answer.hits[0]
    assert best.hit.path == b"/memory/life/flight.md"
    assert best.relevance > 0.9
    assert best.parts.keys() == {"bm25", "coverage", "cosine"}
    assert best.score == pytest.approx(best.parts["cosine"] + LEXICAL)
    assert len(answer.hits) == 3
    assert answer.degraded is None
    assert answer.seq == len(NOTES)


def test_search_gives_a_document_once_and_passages_gives_each_passage() -> None:
    made = MemoryCorpus()
    made.add("/long", "\n\n".join(f"zebra paragraph {n} " + "filler words here " * 40 for n in range(6)))
    made.add("/short", "a zebra crossing")
    assert sorted(found(engine(made).search(ALICE, "zebra"))) == ["/long", "/short"]
    assert len(engine(made).passages(ALICE, "zebra").hits) > 5


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
        assert found(answer) == ["/memory/life/flight.md"]
        assert answer.degraded == "the model is loading"
    assert engine(made, words_only=True).search(ALICE, "flight").degraded == NO_EMBEDDER
    lexical_only = Engine(made.index, Down(), COUNTER).search(ALICE, "flight", mode="lexical")
    assert lexical_only.degraded is None
    assert found(lexical_only) == ["/memory/life/flight.md"]


def test_a_note_without_a_vector_is_found_by_its_words() -> None:
    made = corpus()
    made.embed = False
    made.add("/memory/new.md", "the aardvark escaped")
    answer = engine(made).search(ALICE, "aardvark")
    assert found(answer)[0] == "/memory/new.md"
    assert "cosine" not in answer.hits[0].parts


def test_semantic_mode_does_not_look_at_words() -> None:
    assert all(s.parts["bm25"] == 0 for s in engine(corpus()).search(ALICE, "flight", mode="semantic").hits)


@pytest.mark.parametrize("question", ['"quoted" AND (OR NOT', "*", "a:b^2", "\0", "\ud800", "中东", "x" * 100_000])
def test_any_question_is_answered(question: str) -> None:
    assert isinstance(engine(corpus()).search(ALICE, question), Answer)


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
    made.add("/odd\nname", "xylophone")
    assert format_search(engine(made, words_only=True).search(ALICE, "xylophone")).splitlines() == [
        f"# semantic search unavailable: {NO_EMBEDDER}",
        "[0.95] /odd\\nname",
        "  xylophone",
    ]


def test_summary_is_the_line_that_matches() -> None:
    text = "---\n# Title of it\n\n- first thing\n- the zebra crossed\n"
    assert summary(text, segment.query_terms("zebras")) == "the zebra crossed"
    assert summary(text, ["nothing"]) == "Title of it"
    assert summary("---\n***\n", ["x"]) == ""
    long = summary("padding words " * 60 + "the needle is here " + "more words " * 60, ["needl"])
    assert "needle" in long
    assert len(long) <= SUMMARY
    assert long.startswith("… ")
    assert long.endswith(" …")


@pytest.mark.model
def test_minilm_finds_a_paraphrase_that_shares_no_word() -> None:
    embedder = LocalEmbedding(device="cpu", allow_download=False)
    made = MemoryCorpus(embedder)
    for name, text in NOTES.items():
        made.add(f"/memory/{name}", text)
    asked = Engine(made.index, embedder, COUNTER)
    answer = asked.search(ALICE, "semiconductor stock is too expensive", min_relevance=0.3)
    assert found(answer) == ["/memory/market/chips.md"]
    assert asked.search(ALICE, "quantum chromodynamics on a lattice", min_relevance=0.3).hits == ()
