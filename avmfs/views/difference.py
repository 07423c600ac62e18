"""Unified diffs between two versions, bounded in time whatever the texts are.

Owns the diff. Called by :diff and :delta. Pure functions over bytes. Lines end at a line feed and nowhere else;
a text that does not end in one says so like diff(1), so that patch(1) gives the newer text back byte by byte
(UTF-8 without a byte order mark; other encodings are shown as the text they are).
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final

from avmfs.text import sniff
from avmfs.views.shape import size

CONTEXT: Final = 3
_SMALL: Final = 1_000_000  # pairs of lines that the standard library's matcher compares in bearable time

_Change = tuple[int, int, int, int]  # lines [i1, i2) of the older text became lines [j1, j2) of the newer


def unified(before: bytes, after: bytes, older: str, newer: str) -> str:
    """The difference, under a ``---`` and a ``+++`` line that name the two; one parenthesised line where there is
    none or where one of the two is not text."""
    if before == after:
        return "(no differences)\n"
    old, new = sniff.decode(before), sniff.decode(after)
    if old is None or new is None:
        return f"(binary: {size(len(before))} became {size(len(after))})\n"
    a, b = io.StringIO(old).readlines(), io.StringIO(new).readlines()
    hunks = "".join(_hunk(a, b, group) for group in _groups(_changes(a, b)))
    return f"--- {older}\n+++ {newer}\n{hunks}" if hunks else "(only the encoding differs)\n"


def _hunk(a: Sequence[str], b: Sequence[str], group: Sequence[_Change]) -> str:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first[0])
    trail = min(CONTEXT, len(a) - last[1])
    lines = [
        f"@@ -{_range(first[0] - lead, last[1] + trail)} +{_range(first[2] - lead, last[3] + trail)} @@\n",
    ]
    at = first[0] - lead
    for i1, i2, j1, j2 in group:
        lines += [_line(" ", line) for line in a[at:i1]]
        lines += [_line("-", line) for line in a[i1:i2]]
        lines += [_line("+", line) for line in b[j1:j2]]
        at = i2
    lines += [_line(" ", line) for line in a[at : at + trail]]
    return "".join(lines)


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> str:
    """As POSIX diff -u has it: an empty range is named by the line before it, a length of 1 is left out."""
    length = stop - start
    return f"{start},0" if not length else f"{start + 1}" if length == 1 else f"{start + 1},{length}"


def _groups(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Changes whose context would touch share a hunk."""
    group: list[_Change] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _changes(a: Sequence[str], b: Sequence[str]) -> list[_Change]:
    found: list[_Change] = []
    i = j = 0
    for i2, j2 in [*sorted(_matches(a, b)), (len(a), len(b))]:
        if i2 > i or j2 > j:
            found.append((i, i2, j, j2))
        i, j = i2 + 1, j2 + 1
    return found


def _matches(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of equal lines, none crossing another: patience diff (Bram Cohen, 2005). Lines that occur once in both
    texts are anchors; between them the same again; where there is none, the standard library's matcher."""
    found: list[tuple[int, int]] = []
    todo = [(0, len(a), 0, len(b))]
    while todo:
        i1, i2, j1, j2 = todo.pop()
        while i1 < i2 and j1 < j2 and a[i1] == b[j1]:
            found.append((i1, j1))
            i1, j1 = i1 + 1, j1 + 1
        while i1 < i2 and j1 < j2 and a[i2 - 1] == b[j2 - 1]:
            i2, j2 = i2 - 1, j2 - 1
            found.append((i2, j2))
        if i1 == i2 or j1 == j2:
            continue
        if anchors := _anchors(a, b, i1, i2, j1, j2):
            found += anchors
            edges = [(i1 - 1, j1 - 1), *anchors, (i2, j2)]
            todo += [(p + 1, q, r + 1, s) for (p, r), (q, s) in pairwise(edges)]
        elif (i2 - i1) * (j2 - j1) <= _SMALL:
            matcher = SequenceMatcher(None, a[i1:i2], b[j1:j2])
            for i, j, length in matcher.get_matching_blocks():
                found += [(i1 + i + k, j1 + j + k) for k in range(length)]
    return found


def _anchors(a: Sequence[str], b: Sequence[str], i1: int, i2: int, j1: int, j2: int) -> list[tuple[int, int]]:
    """Lines that are unique on both sides, in the longest order that both sides share."""
    once = {line for line, times in Counter(a[i1:i2]).items() if times == 1}
    once &= {line for line, times in Counter(b[j1:j2]).items() if times == 1}
    where = {b[j]: j for j in range(j1, j2) if b[j] in once}
    pairs = [(i, where[a[i]]) for i in range(i1, i2) if a[i] in once]
    # Longest increasing subsequence of j by patience sorting: tops[n] ends the best one of length n + 1.
    tops: list[int] = []
    ends: list[int] = []
    before: list[int | None] = []
    for number, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        before.append(ends[pile - 1] if pile else None)
        tops[pile : pile + 1] = [j]
        ends[pile : pile + 1] = [number]
    chosen: list[tuple[int, int]] = []
    at = ends[-1] if ends else None
    while at is not None:
        chosen.append(pairs[at])
        at = before[at]
    return chosen[::-1]
