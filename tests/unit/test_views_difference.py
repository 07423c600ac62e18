"""The diff gives the newer text back, and is never slow."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avmfs.views.difference import unified

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")
_LINES = st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\r\n", "e\x0cf\n", "- x\n", "+++ y\n"])
_TEXTS = st.lists(_LINES, max_size=30).map("".join)


def patched(before: str, diff: str) -> str:
    """What patch(1) does, and does not forgive."""
    old, out, at = before.split("\n"), [], 0
    old = [line + "\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    lines = re.findall(r"[^\n]*\n", diff)[2:]
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x\n" * 60_000, "y\nx\n" * 30_000),
        ("".join(f"{n % 97}\n" for n in range(60_000)), "".join(f"{n % 89}\n" for n in range(60_000))),
        ("".join(f"{n}\n" for n in range(60_000)), "".join(f"{60_000 - n}\n" for n in range(60_000))),
    ],
)
def test_hostile_texts_do_not_keep_the_reader_waiting(before: str, after: str) -> None:
    began = time.monotonic()
    assert patched(before, unified(before.encode(), after.encode(), "v1", "v2")) == after
    assert time.monotonic() - began < 20
