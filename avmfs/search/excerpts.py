"""Cutting a passage to a number of tokens, its beginning or the sentences that answer, or to a line.

Owns where a text may be cut, the marks of what is left out, and what is never shown. Called by pack.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from avmfs.text import escapes, forms, segment
from avmfs.text.tokens import TokenCounter

MORE: Final = " …"
UNUSED: Final = 8
"""What is cut ends at a sentence where that leaves no more than the last of so many parts of the budget unused: where
sentences are long, half of it may be left, and with it the answer."""
NEARLY: Final = 0.8
"""Share of a text from which its beginning is given, though the sentences that answer may stand elsewhere in it."""

SUMMARY: Final = 160
"""Characters of the one line by which :search shows a hit."""
SUMMARIES: Final = 256  # lines that are remembered: an answer shows each as text and as a field

_SENTENCE_END: Final = re.compile(r"""[.!?…؟۔।॥]["'”’)\]]*(?=\s)|[。！？；][」』”’）]*|\n""")
LONG: Final = 60
PARTS: Final = 3
"""A sentence of more than LONG tokens that is longer than what it is cut to may begin at each such part of that: or an
excerpt of a log, of JSON, of what has no sentences, were always its beginning."""
_SPACE: Final = re.compile(r"\s+")
_MARKUP: Final = re.compile(r"^[\s#>*+\-=`|]+")
# What nobody sees but a model reads, or what shows text elsewhere than it stands: overrides of the direction of
# writing, invisible operators, tags, selectors beyond those of emoji.
_UNSEEN: Final = (
    *range(0x202A, 0x202F),
    *range(0x2060, 0x206A),
    0xFEFF,
    *range(0xE0000, 0xE0080),
    *range(0xE0100, 0xE01F0),
)
# Where UTF-8 was once read as Latin-1, C1 characters stand for a dash or a quotation mark: words end there.
_CONTROL: Final = {code: None for code in (*range(0x20), 0x7F, *_UNSEEN) if code != 0x09} | dict.fromkeys(
    range(0x80, 0xA0), " "
)
_BLANK: Final = {9: " ", 10: " ", 13: " "}
_FAINT: Final = r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u2800]*"  # marks, a blank
LIKE_FRAME: Final = re.compile(_FAINT + r"(?:[#(@\[=]|\d{1,2}[A-Z])")
"""How lines of a recall's frame begin, and days; for eyes that miss what stands before."""


def shorten(text: str, tokens: int, counter: TokenCounter) -> str:
    """The beginning of ``text`` in at most ``tokens`` tokens, ending at a sentence where that leaves little unused
    (UNUSED), else at a word, with `` …``; the whole text if it fits, "" if nothing does."""
    encoded = counter.encode(text)
    if len(encoded) <= tokens:
        return text
    room = tokens - counter.count(MORE)
    while room > 0:
        # A character cut in half decodes as U+FFFD.
        short = counter.decode(encoded[:room]).rstrip("\ufffd")
        ends = [hit.end() for hit in _SENTENCE_END.finditer(short, len(short) - len(short) // UNUSED)]
        spaces = [hit.start() for hit in _SPACE.finditer(short, len(short) // 2)]
        cut = short[: ends[-1] if ends else spaces[-1] if spaces else len(short)].rstrip() + MORE
        if cut != MORE and counter.count(cut) <= tokens:
            return cut
        room -= 1
    return ""


def excerpt(text: str, tokens: int, terms: Sequence[str], counter: TokenCounter) -> str:
    """Of ``text`` the sentence with most of ``terms``, the first such, and those after it, in at most ``tokens``
    tokens; with `` …`` where something is left out at the end, and ``… `` at the beginning. Of a sentence that does not
    fit its part (PARTS). The whole text if it fits."""
    size = len(counter.encode(text))
    if size <= tokens:
        return text
    starts = [*_starts(text, len(text) * max(tokens, LONG) // size + 1)]
    told = _telling(terms)
    said = [told(text[start:stop]) for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]
    start = starts[said.index(max(said))]
    if not start or tokens > NEARLY * size:
        short = shorten(text, tokens, counter)
        if not start or told(short) >= max(said):
            return short
    rest = text[start:].lstrip()
    for room in range(tokens - 1, 0, -1):
        if (cut := shorten(rest, room, counter)) and counter.count(f"… {cut}") <= tokens:
            return f"… {cut}"
    return ""


def _telling(terms: Sequence[str]) -> Callable[[str], int]:
    """How many of a question's terms a text has, in any of their forms, as the index finds them."""
    wanted, lone = frozenset(form for term in terms for form in forms.of(term)), [*filter(segment.lone, terms)]
    return lambda text: len(wanted.intersection(segment.terms(text))) + sum(each in text for each in lone)


def widened(short: str, text: str, tokens: int, counter: TokenCounter) -> str:
    """``short``, an excerpt of the end of ``text``, with as many of the sentences before it as take ``tokens`` more at
    most, with the indents of their lines. Another excerpt is left as it is."""
    rest = short.removeprefix("… ")
    if rest == short or not text.endswith(rest):
        return short

    def cost(start: int) -> int:
        return counter.count(text[start:].lstrip().replace("\n", "\n  "))

    start = len(text) - len(rest)
    before, most = [each for each in _starts(text, len(text)) if 0 < each < start], cost(start) + tokens
    starts = [*before, start]
    return "… " + text[starts[bisect_left(before, True, key=lambda each: cost(each) <= most)] :].lstrip()


def _starts(text: str, room: int) -> Iterator[int]:
    """Where an excerpt may begin of some ``room`` characters."""
    ends = [hit.end() for hit in _SENTENCE_END.finditer(text) if text[hit.end() :].strip()]
    for start, stop in itertools.pairwise((0, *ends, len(text))):
        at, step = start, room // PARTS
        while stop - at > room:
            yield at
            blank = text.rfind(" ", at + 1, at + step)
            at = at + step if blank < 0 else blank
            while at < stop and unicodedata.combining(text[at]):
                at += 1
        yield at


@lru_cache(SUMMARIES)
def summary(text: str, terms: tuple[str, ...]) -> str:
    """The line of ``text`` with most of the query's ``terms``, the first such, else the first with a word in it;
    without its markup, and cut to SUMMARY characters around the match."""
    lines = [line for line in map(one_line, text.splitlines()) if any(c.isalnum() for c in line)]
    if not lines:
        return ""
    best = max(lines, key=_telling(terms)) if len(lines) > 1 else lines[0]
    line = _MARKUP.sub("", best) or best
    if len(line) <= SUMMARY:
        return line
    low = line.casefold()
    own = {form.removesuffix("*"): term for term in terms for form in forms.of(term)}
    begins = (rf"(?<![0-9a-z]){re.escape(form)}" if form.isascii() else re.escape(form) for form in own)
    found = [(hit.start(), own[hit[0]]) for hit in re.finditer("|".join(begins), low)] if terms else []
    at, start = min(_fullest(found, SUMMARY * 2 // 3), len(line) - 1), 0  # folded, it may be longer
    if at > SUMMARY * 2 // 3:
        start, blank = at - SUMMARY // 3, line.rfind(" ", at - SUMMARY * 2 // 3, at - SUMMARY // 3)
        start = start if blank < 0 else blank + 1
        while start < at and unicodedata.combining(line[start]):
            start += 1
    before, after = "… " if start else "", MORE if start + SUMMARY < len(line) else ""
    return before + line[start : start + SUMMARY - len(before) - len(after)].rstrip() + after


def _fullest(found: Sequence[tuple[int, str]], room: int) -> int:
    """Of (place, term), in order, the first place from which most terms stand within so many characters; else 0."""
    at = most = stop = 0
    inside: Counter[str] = Counter()
    for place, term in found:
        while stop < len(found) and found[stop][0] - place < room:
            inside[found[stop][1]] += 1
            stop += 1
        if len(inside) > most:
            at, most = place, len(inside)
        inside[term] -= 1
        if not inside[term]:
            del inside[term]
    return at


def seen(line: str) -> str:
    """Of a line what is seen of it: with anything else it could begin like another, and not be taken for that."""
    return escapes.unhidden(line.translate(_CONTROL))


def one_line(text: str) -> str:
    return " ".join(seen(text.translate(_BLANK)).split())
