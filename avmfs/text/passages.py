"""Cutting a document into passages: what is indexed, embedded and handed out as one piece.

Owns the sizes and the choice of places, and what a sentence is. Called by the store's indexer and by whoever draws
sentences from notes. Knows characters only.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

WHOLE: Final = 1000
"""A text of up to this width is one passage. Width counts characters, a CJK one as two: it carries about as
much, and an embedding model reads no more than some 250 tokens of a passage anyhow."""

SHORTEST: Final = 600
LONGEST: Final = 900

_WIDE: Final = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff]")
# Where to cut, best first; the cut is at the end of the match.
_BREAKS: Final = (
    re.compile(r"\n[ \t]*\r?\n\s*|\n(?=#{1,6} )"),  # blank lines, and before a heading
    re.compile(r"\n"),
    re.compile(r"""[.!?…]["'”’)\]]*\s+|[。！？；][」』”’）]*\s*"""),
    re.compile(r"\s+|[，、]"),
)
_SENTENCE: Final = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")
_SHY: Final = 32  # how far a cut without any break moves back to keep a letter and its marks together


def cut(text: str) -> list[tuple[int, int]]:
    """Character spans (start, stop) of the passages of ``text``, in order, that together cover all of it.

    Nothing for a blank text; one span for a short one; else spans of SHORTEST to LONGEST width (the last may
    reach WHOLE), ending at a blank line or before a heading when there is one in that window, else at a line
    end, sentence end or space. Deterministic; linear in the length.
    """
    if not text or text.isspace():
        return []
    wide = 0 if text.isascii() else sum(1 for _ in _WIDE.finditer(text))
    whole, shortest, longest = (int(size * len(text) / (len(text) + wide)) for size in (WHOLE, SHORTEST, LONGEST))
    spans = []
    start = 0
    while len(text) - start > whole:
        # The tail must not be a crumb: leave at least what lies between SHORTEST and LONGEST for it.
        high = min(start + longest, len(text) - (longest - shortest))
        stop = _place(text, min(start + shortest, high), high)
        spans.append((start, stop))
        start = stop
    spans.append((start, len(text)))
    return spans


def sentences(text: str) -> list[str]:
    """The pieces that end with a sentence or a line, as they stand."""
    return _SENTENCE.split(text)


def _place(text: str, low: int, high: int) -> int:
    """The best cut in (low, high]: the last one of the best kind."""
    for kind in _BREAKS:
        found = [hit.end() for hit in kind.finditer(text, low, high)]
        if found:
            return found[-1]
    for at in range(high, max(low, high - _SHY), -1):
        if not _inside(text, at):
            return at
    return high


def _inside(text: str, at: int) -> bool:
    """Whether a cut before ``at`` would part a letter from its marks, or a surrogate from its other half."""
    after = text[at]
    return (
        after == "\u200d"
        or text[at - 1] == "\u200d"
        or unicodedata.category(after).startswith("M")
        or ("\ud800" <= text[at - 1] <= "\udbff" and "\udc00" <= after <= "\udfff")
    )
