"""Passages: nothing is lost, cuts fall where a reader would make them."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs.text.passages import LONGEST, SHORTEST, WHOLE, cut

SENTENCE = "The committee met on Tuesday and agreed on most of the points. "


def texts(text: str) -> list[str]:
    return [text[start:stop] for start, stop in cut(text)]


@given(
    st.lists(
        st.sampled_from(["word ", "a\u0301", "\n", "\n\n", "\n# Head\n", "中东局势。", "x" * 90, "\ud83d\ude00", "."]),
        max_size=700,
    )
)
@settings(max_examples=80)
def test_passages_cover_the_text_in_order(pieces: list[str]) -> None:
    text = "".join(pieces)
    spans = cut(text)
    assert spans == cut(text)
    if not text.strip():
        assert spans == []
        return
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == len(text)
    assert all(0 < stop - start <= WHOLE for start, stop in spans)


def test_a_short_text_is_one_passage_and_a_blank_one_is_none() -> None:
    assert cut("") == cut(" \n\t") == []
    assert cut("x" * WHOLE) == [(0, WHOLE)]
    assert len(cut("x" * (WHOLE + 1))) == 2


def test_sizes_stay_within_bounds_and_the_tail_is_no_crumb() -> None:
    for length in range(WHOLE + 1, 4000, 97):
        sizes = [len(one) for one in texts((SENTENCE * 100)[:length])]
        assert all(SHORTEST <= size <= LONGEST for size in sizes[:-1]) or length < SHORTEST + LONGEST
        assert sizes[-1] >= LONGEST - SHORTEST


def test_cuts_prefer_blank_lines_then_headings_lines_sentences_words() -> None:
    paragraph = SENTENCE * 11
    assert texts(f"{paragraph}\n\n{paragraph}\n\n{paragraph}")[0] == f"{paragraph}\n\n"
    assert texts(f"{paragraph}\n## Two\n{paragraph}{paragraph}")[1].startswith("## Two")
    assert texts(f"{paragraph}\n{paragraph}{paragraph}")[0].endswith(" \n")
    assert all(one.endswith(". ") for one in texts(SENTENCE * 60))
    assert all(one.endswith(" ") for one in texts("word " * 900)[:-1])


def test_wide_text_is_cut_sooner() -> None:
    spans = texts("中东局势持续紧张，各方表态。" * 100)
    assert all(one.endswith("。") for one in spans)
    assert all(len(one) <= LONGEST / 2 for one in spans[:-1])


def test_a_cut_without_any_break_keeps_letters_whole() -> None:
    for one in texts("e\u0301\u0316" * 2000) + texts("👩\u200d🚀" * 2000)[:-1]:
        assert one[0] in "e👩"
    assert all(len(one) % 2 == 0 for one in texts("\ud83d\ude00" * 2000))


def test_megabytes_are_cut_in_linear_time() -> None:
    for text in (" " * 10**6 + "x", "x" * 10**6, "\n" * 10**6 + "x", "中。" * 500_000):
        began = time.process_time()
        cut(text)
        assert time.process_time() - began < 20
