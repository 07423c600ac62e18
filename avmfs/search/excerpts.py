"""Cutting a passage to a number of tokens: its beginning, or the sentences that answer.

Owns where a text may be cut and the marks of what is left out. Called by pack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from avmfs.text import segment
from avmfs.text.tokens import TokenCounter

MORE: Final = " …"
NEARLY: Final = 0.8
"""Share of a text from which its beginning is given, though the sentences that answer may stand elsewhere in it."""

_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？；][」』”’）]*|\n""")
_SPACE: Final = re.compile(r"\s+")


def shorten(text: str, tokens: int, counter: TokenCounter) -> str:
    """The beginning of ``text`` in at most ``tokens`` tokens, ending at a sentence if one ends in its second half,
    else at a word, with `` …``; the whole text if it fits, "" if nothing does."""
    encoded = counter.encode(text)
    if len(encoded) <= tokens:
        return text
    room = tokens - counter.count(MORE)
    while room > 0:
        # A character cut in half decodes as U+FFFD.
        short = counter.decode(encoded[:room]).rstrip("\ufffd")
        ends = [hit.end() for hit in _SENTENCE_END.finditer(short, len(short) // 2)]
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
