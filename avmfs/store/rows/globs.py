"""Globs that agents choose, matched in time linear in the path whatever the pattern is.

Owns ``Glob``, which means what ``fnmatch.fnmatchcase`` means (``*`` also crosses ``/``). Called by ``events``. Pure.

A regular expression made of such a pattern looks for what follows a star anew from every place of the path. Here each
piece between two stars is looked for once, leftmost first: as text, or where it has other wildcards by Shift-And
(Baeza-Yates and Gonnet, 1992), a bit per character of the piece.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import Final

_KEPT: Final = 4096  # characters of which a piece remembers where it allows them
_Allows = Callable[[str], object]  # one character


def wildcards(pattern: str) -> int:
    """How many characters of a pattern may be special."""
    return sum(map(pattern.count, "*?["))


class Glob:
    """See the module."""

    __slots__ = ("_pieces",)

    def __init__(self, pattern: str) -> None:
        self._pieces = [_Piece("".join(piece)) for piece in _between_stars(pattern)]

    def matches(self, text: str) -> bool:
        first, *others = self._pieces
        if not others:
            return len(text) == first.length and first.stands_at(text, 0)
        *middle, last = others
        stop = len(text) - last.length
        if stop < first.length or not first.stands_at(text, 0) or not last.stands_at(text, stop):
            return False
        at = first.length
        return all((at := piece.end_in(text, at, stop)) >= 0 for piece in middle)


class _Piece:
    """What stands between two stars."""

    __slots__ = ("_fixed", "_plain", "_text", "_where", "length")

    def __init__(self, text: str) -> None:
        tokens = list(_tokens(text))
        self.length = len(tokens)
        self._plain = all(not _is_wild(token) for token in tokens)
        self._text = text
        self._fixed = [(1 << at, _allows(token)) for at, token in enumerate(tokens) if _is_wild(token)]
        self._where: dict[str, int] = {}  # character: the places of the piece that allow it
        if not self._plain:
            literal: dict[str, int] = {}
            for at, token in enumerate(tokens):
                if not _is_wild(token):
                    literal[token] = literal.get(token, 0) | 1 << at
            self._where = {token: places | self._wild_for(token) for token, places in literal.items()}

    def stands_at(self, text: str, at: int) -> bool:
        """Return whether it is there. The text has at least its length from there on."""
        if self._plain:
            return text.startswith(self._text, at)
        return self.end_in(text, at, at + self.length) >= 0

    def end_in(self, text: str, start: int, stop: int) -> int:
        """Where its leftmost occurrence in ``text[start:stop]`` ends; -1: there is none."""
        if self._plain:
            found = text.find(self._text, start, stop)
            return found if found < 0 else found + self.length
        goal, state = 1 << self.length - 1, 0
        for at in range(start, stop):
            state = (state << 1 | 1) & self._places(text[at])
            if state & goal:
                return at + 1
        return -1

    def _places(self, character: str) -> int:
        places = self._where.get(character)
        if places is None:
            places = self._wild_for(character)
            if len(self._where) < _KEPT:
                self._where[character] = places
        return places

    def _wild_for(self, character: str) -> int:
        return sum(bit for bit, allows in self._fixed if allows(character))


def _between_stars(pattern: str) -> Iterator[list[str]]:
    piece: list[str] = []
    for token in _tokens(pattern):
        if token == "*":
            yield piece
            piece = []
        else:
            piece.append(token)
    yield piece


def _tokens(pattern: str) -> Iterator[str]:
    """A character, or a whole ``[...]``; an opening bracket without a closing one is itself."""
    at = 0
    while at < len(pattern):
        stop = at + 1
        if pattern[at] == "[":
            first = at + 2 + pattern.startswith("!", at + 1)  # a closing bracket that comes first is a member
            stop = pattern.find("]", first) + 1 or stop
        yield pattern[at:stop]
        at = stop


def _is_wild(token: str) -> bool:
    return token == "?" or len(token) > 1


def _allows(token: str) -> _Allows:
    return re.compile(fnmatch.translate(token)).match
