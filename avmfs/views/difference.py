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
from itertools import accumulate, pairwise
from typing import Final

from avmfs import calls
from avmfs.text import sniff
from avmfs.views.shape import size

CONTEXT: Final = 3
WORK: Final = 10_000_000  # steps of comparing, of some 50 ns each, beside what grows with the texts alone
COARSE: Final = (
    "# coarse: too many lines differ to compare them all; some that are in both stand as removed and added\n"
)
_SMALL: Final = 1_000_000  # pairs of lines that the standard library's matcher is given
_A_LINE: Final = 8  # steps that looking at a line once may cost

_Change = tuple[int, int, int, int]  # lines [i1, i2) of the older text became lines [j1, j2) of the newer


class Effort:
    """What is left of the work that one reader's question may cost; several diffs may share it."""

    def __init__(self, steps: int = WORK) -> None:
        self._left = steps
        self._free = 0
        self.spent = False  # has there not been enough of it?
        self.coarse = False  # is the last diff longer than it could be?

    def begin(self, lines: int) -> None:
        """Another diff, of texts of so many lines together."""
        self._free, self.coarse = _A_LINE * lines, False

    def take(self, steps: int) -> bool:
        """Spend so much, and return whether it was left. Raises Interrupted once nobody waits for the answer."""
        calls.go_on()
        free = min(steps, self._free)
        if steps - free > self._left:
            self.spent = self.coarse = True
            return False
        self._free -= free
        self._left -= steps - free
        return True


def unified(before: bytes, after: bytes, older: str, newer: str, effort: Effort | None = None) -> str:
    """The difference, under a ``---`` and a ``+++`` line that name the two; one parenthesised line where there is
    none or where one of the two is not text. A line COARSE on top says that it is not as short as it could be."""
    effort = Effort() if effort is None else effort
    if before == after:
        return "(no differences)\n"
    old, new = sniff.decode(before), sniff.decode(after)
    if old is None or new is None:
        return f"(binary: {size(len(before))} became {size(len(after))})\n"
    a, b = io.StringIO(old).readlines(), io.StringIO(new).readlines()
    effort.begin(len(a) + len(b))
    hunks = "".join(_hunk(a, b, group) for group in _groups(_changes(a, b, effort)))
    coarse = COARSE if effort.coarse else ""
    return f"{coarse}--- {older}\n+++ {newer}\n{hunks}" if hunks else "(only the encoding differs)\n"


def _hunk(a: Sequence[str], b: Sequence[str], group: Sequence[_Change]) -> str:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first[0])
    trail = min(CONTEXT, len(a) - last[1])
    lines = [f"@@ -{_range(first[0] - lead, last[1] + trail)} +{_range(first[2] - lead, last[3] + trail)} @@\n"]
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


def kept(before: Sequence[str], after: Sequence[str], effort: Effort) -> list[tuple[int, int]]:
    """Which lines of ``after`` are lines of ``before``: (there, here)."""
    effort.begin(len(before) + len(after))
    return _matches(before, after, effort)


def _changes(a: Sequence[str], b: Sequence[str], effort: Effort) -> list[_Change]:
    found: list[_Change] = []
    i = j = 0
    for i2, j2 in [*sorted(_matches(a, b, effort)), (len(a), len(b))]:
        if i2 > i or j2 > j:
            found.append((i, i2, j, j2))
        i, j = i2 + 1, j2 + 1
    return found


def _matches(a: Sequence[str], b: Sequence[str], effort: Effort) -> list[tuple[int, int]]:
    """Pairs of equal lines, none crossing another: patience diff (Bram Cohen, 2005). Lines that occur once in both
    texts are anchors; between them the same again; where there is none, the standard library's matcher. What there is
    no effort for is left without a pair."""
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
        if i1 == i2 or j1 == j2 or not effort.take(_A_LINE * (i2 - i1 + j2 - j1) // 2):
            continue
        if anchors := _anchors(a, b, i1, i2, j1, j2):
            found += anchors
            edges = [(i1 - 1, j1 - 1), *anchors, (i2, j2)]
            todo += [(p + 1, q, r + 1, s) for (p, r), (q, s) in pairwise(edges)]
        elif (i2 - i1) * (j2 - j1) <= _SMALL:
            found += [(i1 + i, j1 + j) for i, j in _longest_first(a[i1:i2], b[j1:j2], effort)]
        else:
            effort.coarse = True
    return found


def _longest_first(a: Sequence[str], b: Sequence[str], effort: Effort) -> Iterator[tuple[int, int]]:
    """What SequenceMatcher.get_matching_blocks finds, which takes n**3 for some texts of n lines."""
    matcher = SequenceMatcher(None, a, b)
    where: dict[str, list[int]] = matcher.b2j  # type: ignore[attr-defined]  # documented
    upto = [0, *accumulate(1 + len(where.get(line, ())) for line in a)]
    todo = [(0, len(a), 0, len(b))]
    while todo:
        i1, i2, j1, j2 = todo.pop()
        if not effort.take(upto[i2] - upto[i1]):
            continue
        i, j, length = matcher.find_longest_match(i1, i2, j1, j2)
        if length:
            yield from ((i + k, j + k) for k in range(length))
            if i1 < i and j1 < j:
                todo.append((i1, i, j1, j))
            if i + length < i2 and j + length < j2:
                todo.append((i + length, i2, j + length, j2))


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
