"""Cutting a passage to a number of tokens, its beginning or the sentences that answer, or to a line.

Owns where a text may be cut, the marks of what is left out, and what is never shown. Called by pack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from avmfs.text import segment
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

_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？；][」』”’）]*|\n""")
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
CONTROL: Final = {code: None for code in (*range(0x20), 0x7F, *_UNSEEN) if code != 0x09} | dict.fromkeys(
    range(0x80, 0xA0), " "
)


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
    tokens; with `` …`` where something is left out at the end, and ``… `` at the beginning. The whole text if it
    fits."""
    size = len(counter.encode(text))
    if size <= tokens:
        return text
    starts = [0, *(hit.end() for hit in _SENTENCE_END.finditer(text) if text[hit.end() :].strip())]
    wanted = frozenset(terms)
    said = [
        len(wanted.intersection(segment.terms(text[start:stop])))
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)
    ]
    start = starts[said.index(max(said))]
    if not start or tokens > NEARLY * size:
        return shorten(text, tokens, counter)
    rest = text[start:].lstrip()
    for room in range(tokens - 1, 0, -1):
        if (cut := shorten(rest, room, counter)) and counter.count(f"… {cut}") <= tokens:
            return f"… {cut}"
    return ""


@lru_cache(SUMMARIES)
def summary(text: str, terms: tuple[str, ...]) -> str:
    """The line of ``text`` with most of the query's ``terms``, the first such, else the first with a word in it;
    without its markup, and cut to SUMMARY characters around the match."""
    lines = [line for line in map(one_line, text.splitlines()) if any(c.isalnum() for c in line)]
    if not lines:
        return ""
    wanted = frozenset(terms)
    best = lines[0]
    if len(lines) > 1:
        best = max(lines, key=lambda line: len(wanted.intersection(segment.terms(line))))
    line = _MARKUP.sub("", best) or best
    if len(line) <= SUMMARY:
        return line
    low = line.casefold()
    at = min((place for term in terms if (place := low.find(term)) >= 0), default=0)
    start = line.rfind(" ", 0, max(at - SUMMARY // 3, 0)) + 1 if at > SUMMARY * 2 // 3 else 0
    before, after = "… " if start else "", MORE if start + SUMMARY < len(line) else ""
    return before + line[start : start + SUMMARY - len(before) - len(after)].rstrip() + after


def one_line(text: str) -> str:
    return " ".join(text.translate(CONTROL | {9: " ", 10: " ", 13: " "}).split())
