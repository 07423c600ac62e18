"""Whether a model knows the words of a text, and what that does to its vectors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from avmfs.embed import knowledge
from avmfs.embed.local import LocalEmbedding
from avmfs.text import function_words

PIECES = ("[UNK]", "where", "is", "key", "server", "ser", "##ver", "##viction", "e", "ga", "##xz", "的")


def tokenizer(more: int = 0, words: Iterable[str] = ()) -> Tokenizer:
    pieces = dict.fromkeys((*PIECES, *(f"filler{at}" for at in range(more)), *words))
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    found = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    found.normalizer, found.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return found


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("where is the server", 1.0),  # short words do not count beside longer ones
        ("is key", 1.0),
        ("eviction", 7 / 8),  # a piece of five letters is as good as a word
        ("gaxz", 0.0),
        ("server gaxz", 0.6),
        ("clés", 0.0),
        ("的", 0.0),
        ("中东局势", 0.0),
        ("12:30", 1.0),
        ("", 1.0),
    ],
)
def test_what_share_of_a_text_is_known(text: str, share: float) -> None:
    assert knowledge.known(tokenizer(), text) == pytest.approx(share)


def weighed(text: str, urgent: bool, more: int = 0) -> float:
    vectors = np.ones((1, 1), np.float32)
    knowledge.weigh(tokenizer(more), [text], vectors, urgent)
    return float(vectors[0, 0])


def test_a_question_weighs_as_it_is_known_and_a_note_unless_it_is_of_other_letters() -> None:
    assert weighed("where is the server", True) == weighed("where is the server", False) == 1.0
    assert weighed("gaxz", True) == 0.0 and weighed("gaxz", False) == 1.0  # code is in pieces too
    assert weighed("中东局势紧张", True) == weighed("中东局势紧张", False) == 0.0
    assert 0 < weighed("server gaxz gaxz gaxz gaxz gaxz", True) < 1


def test_a_vocabulary_of_many_languages_judges_none() -> None:
    assert weighed("中东局势紧张", True, knowledge.ONE_LANGUAGE) == 1.0


@pytest.mark.model
def test_the_default_model_knows_english_and_does_not_judge_in_what_it_does_not_know(tmp_path: Path) -> None:
    embedder = LocalEmbedding()

    def lengths(texts: list[str]) -> list[float]:
        return [float(np.linalg.norm(vector)) for vector in embedder.embed_batch(texts, urgent=True).vectors]

    assert (
        lengths(["who painted this", "Redis eviction policy", "how often does the wifi password change"])
        == [pytest.approx(1.0, abs=1e-5)] * 3
    )
    assert (
        lengths(["音乐会门票", "концерт в субботу", "متى الحفلة", "콘서트 티켓", "zzz", "asdf qwer zxcv"]) == [0.0] * 6
    )


def test_an_english_question_of_names_alone_is_known_by_its_small_words() -> None:
    vectors = np.ones((3, 2), np.float32)
    questions = ["Is gaxz gaxz", "gaxz gaxz", "the gaxz"]  # this vocabulary has no "the"
    knowledge.weigh(tokenizer(), questions, vectors, urgent=True)
    assert vectors[:, 0].tolist() == [1, 0, 0]


def test_a_question_of_another_language_is_half_known_at_most_whatever_words_it_shares() -> None:
    def lengths(found: Tokenizer) -> list[float]:
        vectors = np.ones((3, 1), np.float32)
        knowledge.weigh(found, ["¿server key?", "quel server", "server key"], vectors, urgent=True)
        return [float(each) for each in vectors[:, 0]]

    assert lengths(tokenizer()) == [0.5, pytest.approx(0.5), 1]
    assert lengths(tokenizer(words=function_words.spoken("¿") | function_words.spoken("quel"))) == [1, 1, 1]


def test_a_small_word_marks_no_question_of_another_language() -> None:
    vectors = np.ones((2, 2), np.float32)
    questions = ["gaxz is gaxz gaxz", "is 中东局势紧张中东局势紧张"]
    knowledge.weigh(tokenizer(), questions, vectors, urgent=True)
    assert vectors[:, 0].tolist() == [0, 0]
