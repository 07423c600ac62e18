"""Text that others chose, made safe to show: what would redraw, reorder, break or hide a line becomes an escape.

Owns which characters those are and how they are written, for names (``escaped``, which has an inverse) and for prose
(``visible``), or left out (``unhidden``). Every text form of every door ends here; JSON has escapes of its own
(``json_safe``). Imports nothing of avmfs. Any thread.

Escaped are control characters (C0, C1), ends of lines and paragraphs, everything that Unicode calls format (controls
of the direction of writing, zero-width and invisible characters, tags), private use, lone surrogates, and what fonts
show as nothing (Hangul fillers, unassigned default-ignorable ranges). Zero-width joiners and variation selectors are
part of words in some scripts and of emoji: one stays where it does such work, between or behind other than ASCII
characters, and is an escape anywhere else, where it could only hide.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final

# By ranges, and not by the categories of this interpreter's Unicode: one pass of `re` over a text, at any length. A
# test compares them with the categories.
_HIDDEN: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff"
)
_JOINER: Final = "\u200c\u200d"
_SELECTOR: Final = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_PLAIN: Final = f"[^\x00-\u02ff{_HIDDEN}]"  # neither Latin nor hidden
# A joiner between two such, the first perhaps with its selector; a selector behind one, or behind what begins a keycap.
_WORKS: Final = (
    f"(?:(?<={_PLAIN})|(?<={_PLAIN}[{_SELECTOR}]))[{_JOINER}](?={_PLAIN})"
    f"|(?<=[0-9#*\xa9\xae])[\ufe0e\ufe0f]|(?<={_PLAIN})[{_SELECTOR}]"
)
_OF_A_NAME: Final = f"[{_HIDDEN}\\\\]"
_OF_A_LINE: Final = f"(?!\t)[{_HIDDEN}]"
_OF_LINES: Final = f"(?![\t\n])[{_HIDDEN}]"
_SHORT: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROLS: Final = {chr(code): f"\\x{code:02x}" for code in (*range(0x20), 0x7F)} | _SHORT


@cache
def _signs(expression: str) -> re.Pattern[str]:
    return re.compile(expression)  # at its first use: together they take longer than a hook may


def escaped(text: str) -> str:
    """A name on one line: ``\\n``, ``\\t``, ``\\r``, ``\\x1b``; ``\\xff`` for a byte that is no UTF-8; ``\\u202e``,
    ``\\U000e0041``; and ``\\\\`` for a backslash. In bash, zsh and ksh ``$'...'`` reads it back."""
    if text.isascii() and text.isprintable() and "\\" not in text:  # most
        return text
    return _signs(_OF_A_NAME).sub(_shown, text)


def visible(text: str) -> str:
    """A line of prose, whose backslashes and tabs stay: no inverse, and the same when it is done again."""
    if text.isascii() and text.isprintable():
        return text
    return _signs(_OF_A_LINE).sub(_shown, text)


def visible_lines(text: str) -> str:
    """Like visible(), of several lines that end in a line feed."""
    return _signs(_OF_LINES).sub(_shown, text)


def unhidden(text: str) -> str:
    """Without what visible_lines() escapes: as it is seen."""
    if text.isascii() and text.isprintable():
        return text
    return _signs(_OF_LINES).sub(lambda found: found[0] if _works(found) else "", text)


def json_safe(value: Any, **options: Any) -> str:
    """``json.dumps`` with sorted keys, readable and still safe to show: letters as they are, the same characters as
    above as JSON's own escapes. A byte of a name that is no UTF-8 is \\udc80 to \\udcff, as in Python's str."""
    return _signs(_OF_LINES).sub(_in_json, json.dumps(value, ensure_ascii=False, sort_keys=True, **options))


def _shown(found: re.Match[str]) -> str:
    sign = found[0]
    if sign < "\u180b":  # most: neither joiner nor selector is
        return _CONTROLS.get(sign) or f"\\u{ord(sign):04x}"
    if _works(found):
        return sign
    code = ord(sign)
    if 0xDC80 <= code <= 0xDCFF:  # a byte, see os.fsdecode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(found: re.Match[str]) -> str:
    return found[0] if _works(found) else json.dumps(found[0])[1:-1]


def _works(found: re.Match[str]) -> bool:
    return _signs(_WORKS).match(found.string, found.start()) is not None
