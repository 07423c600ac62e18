"""The diff gives the newer text back, and is never slow."""

from __future__ import annotations

import random
import re
import time
from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avmfs import calls
from avmfs.errors import Interrupted
from avmfs.views import difference
from avmfs.views.difference import COARSE, Effort, unified

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")
_LINES = st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\r\n", "e\x0cf\n", "- x\n", "+++ y\n"])
_TEXTS = st.lists(_LINES, max_size=30).map("".join)


def patched(before: str, diff: str) -> str:
    """What patch(1) does, and does not forgive."""
    old, out, at = before.split("\n"), [], 0
    old = [line + "\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    lines = re.findall(r"[^\n]*\n", diff.removeprefix(COARSE))[2:]
    while lines:
        header = _HUNK.fullmatch(lines.pop(0))
        assert header is not None
        start, counts = int(header[1]), {"-": int(header[2] or 1), "+": int(header[4] or 1)}
        start -= counts["-"] > 0
        out += old[at:start]
        at = start
        assert len(out) == int(header[3]) - (counts["+"] > 0)
        while lines and not lines[0].startswith("@@"):
            sign, text = lines[0][0], lines.pop(0)[1:]
            if lines and lines[0].startswith("\\"):
                lines.pop(0)
                text = text[:-1]
            if sign in " -":
                assert old[at] == text
                at += 1
                counts["-"] -= 1
            if sign in " +":
                out.append(text)
                counts["+"] -= 1
        assert counts == {"-": 0, "+": 0}
    return "".join(out + old[at:])


@given(_TEXTS, _TEXTS, st.sampled_from(["", "end"]), st.sampled_from(["", "end", "c"]))
def test_a_diff_applied_to_the_older_text_gives_the_newer(before: str, after: str, tail: str, end: str) -> None:
    before, after = before + tail, after + end
    diff = unified(before.encode(), after.encode(), "v1", "v2")
    if before == after:
        assert diff == "(no differences)\n"
    else:
        assert patched(before, diff) == after


def test_a_small_change_is_a_small_hunk() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 41))
    diff = unified(before.encode(), before.replace("line 20\n", "line 20\nnew\n").encode(), "v1", "v2")
    assert diff == (
        "--- v1\n+++ v2\n@@ -18,6 +18,7 @@\n line 18\n line 19\n line 20\n+new\n line 21\n line 22\n line 23\n"
    )


def test_what_is_not_text_is_one_line() -> None:
    assert unified(b"\0" * 2048, b"text", "v1", "v2") == "(binary: 2.0 KiB became 4 bytes)\n"


def test_only_a_byte_order_mark_differs() -> None:
    assert unified(b"a\n", b"\xef\xbb\xbfa\n", "v1", "v2") == "(only the encoding differs)\n"


def peeled(levels: int, between: str) -> str:
    """Of each part one line is in it once, and only where the parts around it are taken away."""
    lines = [line for n in range(levels) for line in (f"{n + 1}\n", between, f"{n}\n", between)]
    return "".join(lines)


def runs(letters: str, seed: int, count: int) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice(letters) + "\n" for _ in range(count))


HOSTILE = {
    "few lines again and again": ("x\n" * 60_000, "y\nx\n" * 30_000),
    "two rhythms": ("".join(f"{n % 97}\n" for n in range(60_000)), "".join(f"{n % 89}\n" for n in range(60_000))),
    "reversed": ("".join(f"{n}\n" for n in range(60_000)), "".join(f"{60_000 - n}\n" for n in range(60_000))),
    "one anchor at a time": (peeled(12_000, "x\n"), peeled(12_000, "y\n")),
    "two letters beside each other": tuple(
        "".join(f"part {n}\n" + runs("ab", seed + n, count) for n in range(20))
        for seed, count in ((1, 5000), (100, 199))
    ),
    "few words": tuple(
        "".join(f"part {n}\n" + runs("abcdefgh", seed + n, 900) for n in range(100)) for seed in (1, 1000)
    ),
}


@pytest.mark.parametrize("texts", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.slow
def test_hostile_texts_cost_a_bounded_number_of_steps(texts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = texts
    took = 0
    real = Effort.take

    def take(self: Effort, steps: int) -> bool:
        nonlocal took
        done = real(self, steps)
        took += steps if done else 1
        return done

    monkeypatch.setattr(Effort, "take", take)
    began = time.process_time()
    diff = unified(before.encode(), after.encode(), "v1", "v2")
    assert patched(before, diff) == after
    assert took <= difference.WORK + 10 * (before.count("\n") + after.count("\n"))
    assert time.process_time() - began < 20  # minutes before


def test_what_is_not_as_short_as_it_could_be_says_so() -> None:
    before, after = runs("abc", 1, 150), runs("abc", 2, 150)
    fine = unified(before.encode(), after.encode(), "v1", "v2")
    coarse = unified(before.encode(), after.encode(), "v1", "v2", Effort(0))
    assert not fine.startswith("#") and coarse.startswith(COARSE + "--- v1\n+++ v2\n@@ ")
    assert patched(before, coarse) == patched(before, fine) == after
    assert coarse.count("\n") > fine.count("\n")


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_the_longest_blocks_are_those_of_the_standard_library(a: list[str], b: list[str]) -> None:
    found = SequenceMatcher(None, a, b).get_matching_blocks()
    pairs = [(i + k, j + k) for i, j, length in found for k in range(length)]
    assert sorted(difference._longest_first(a, b, Effort())) == pairs


def test_a_diff_that_nobody_waits_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = HOSTILE["one anchor at a time"]
    call = Impatient()
    monkeypatch.setattr(calls.working, "call", call, raising=False)
    with pytest.raises(Interrupted):
        unified(before.encode(), after.encode(), "v1", "v2")
    assert call.looks == 5


class Impatient(calls.Call):
    """Given up at the fifth look."""

    looks = 0

    def look(self) -> None:
        self.looks += 1
        if self.looks == 5:
            self.give_up()
