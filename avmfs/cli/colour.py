"""Colour, on terminals only.

Owns which parts of a text that a person reads are coloured. Texts that are data (a file's bytes, JSON) never come here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, TextIO

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
_WHOLE_LINES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"#{1,3} .*"), BOLD),
    (re.compile(r"(---|\+\+\+) .*"), BOLD),
    (re.compile(r"@@ .* @@"), CYAN),
    (re.compile(r"\+.*"), GREEN),
    (re.compile(r"-(?![r-][w-][x-]|> ).*"), RED),  # neither the mode of `ls -l` nor a link
    (re.compile(r"\(.*\)"), DIM),
)
_PARTS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"(?<!\S)@[a-z2-7]{4,}(?!\S)"), YELLOW),
    (re.compile(r"[\[(][01]\.\d\d[\])]"), CYAN),
)


def wanted(stream: TextIO, environ: Mapping[str, str] = os.environ, *, refused: bool = False) -> bool:
    """Whether this stream shows colours: a terminal that is not dumb, and nobody said no (https://no-color.org)."""
    return not refused and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and stream.isatty()


def painted(text: str) -> str:
    """The same text with colours: headings, differences, handles, scores, remarks."""
    return "".join(_line(line) for line in text.splitlines(keepends=True))


def _line(line: str) -> str:
    body = line.rstrip("\n")
    for pattern, code in _WHOLE_LINES:
        if pattern.fullmatch(body):
            return f"\x1b[{code}m{body}\x1b[0m{line[len(body) :]}"
    for pattern, code in _PARTS:
        body = pattern.sub(f"\x1b[{code}m\\g<0>\x1b[0m", body)
    return body + ("\n" if line.endswith("\n") else "")
