"""Whether bytes are text, and its line ends. Owns the one decision whether a file's bytes are read as words.

Called by the indexer, by views that show text and by whoever edits it. Looks at the bytes alone: names and
extensions lie. Knows nothing of sizes allowed or of ignore lists.
"""

from __future__ import annotations

import codecs
from typing import Final

CONTROL_SHARE: Final = 0.02
"""More control characters than this, and a file that happens to be valid UTF-8 is no text (a core dump of
ASCII, a terminal recording); a few of them occur in honest logs."""

# What text files do contain: tab, line ends, form feed, backspace (man pages), escape (coloured logs).
_HARMLESS: Final = frozenset("\t\n\r\f\v\b\x1b")
_CONTROLS: Final = "".join(chr(c) for c in (*range(1, 0x20), 0x7F) if chr(c) not in _HARMLESS)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes) -> str | None:
    """The text that ``data`` is: UTF-8 with or without a byte order mark, UTF-16 with one. None for anything else.

    The mark is not part of the text; line ends are left alone. Empty bytes are the empty text.
    """
    encoding, rest = _marked(data)  # a UTF-32-LE mark is taken for UTF-16: the text is full of NULs, and refused
    return _plausible(_strict(rest, encoding))


def beginning(head: bytes) -> str:
    """What the first bytes of a file say, without a character that is cut in two. With NULs in it it is no text."""
    encoding, rest = _marked(head)
    return codecs.getincrementaldecoder(encoding)("replace").decode(rest)


def is_crlf(text: str) -> bool:
    """Whether every line ends as on Windows."""
    return "\n" in text and "\n" not in text.replace("\r\n", "")


def _marked(data: bytes) -> tuple[str, bytes]:
    """The encoding that a byte order mark names, or UTF-8; and the bytes behind it."""
    encodings = (each for each in _MARKS if data.startswith(each[0]))
    mark, encoding = next(encodings, (b"", "utf-8"))
    return encoding, data[len(mark) :]


def _strict(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def _plausible(text: str | None) -> str | None:
    if text is None or "\0" in text:
        return None
    controls = sum(map(text.count, _CONTROLS))
    return text if controls <= CONTROL_SHARE * len(text) else None
