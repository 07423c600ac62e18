"""How messages look, and how durations are written.

Owns the text of inbox lines and of the urgent banner (docs/FORMATS.md has them exactly). A body is
quoted line by line, so that no message can forge a header. Pure functions; the store keeps the mail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from avmfs.errors import Invalid
from avmfs.node import Message

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST_S = 100 * 366 * 86400
_READ_SHOWN = 20  # read messages that a listing keeps; :inbox?format=jsonl has them all
# Terminal escapes and the like: a body shall not redraw the reader's screen. Line ends are cut before.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09}


def parse_duration(text: str) -> int:
    """``90s``, ``5m``, ``2h``, ``1d``, ``1h 30m`` -> nanoseconds. Raises Invalid."""
    seconds, position = 0.0, 0
    while found := _DURATION.match(text, position):
        seconds += float(found[1]) * _SECONDS[found[2].lower()]
        position = found.end()
    if position != len(text) or not text.strip() or not 0 < seconds <= _LONGEST_S:
        raise Invalid(f"duration {text.strip()!r}: expected e.g. 90s, 5m, 2h, 1d")
    return int(seconds * 1e9)


def show_duration(nanoseconds: int) -> str:
    """The two largest units: ``1h 59m``; below a second ``0s``."""
    left, shown = max(0, nanoseconds) // 1_000_000_000, []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            shown.append(f"{count}{unit}")
    return " ".join(shown[:2]) or "0s"


def show_time(at: int, zone: tzinfo) -> str:
    """Nanoseconds since the epoch as ``2026-03-07 10:30`` in the zone."""
    return datetime.fromtimestamp(at // 1_000_000_000, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M")


def quote(body: str) -> str:
    """Every line behind ``> ``: a body cannot pose as a header. Control characters show as ``\\x1b``."""
    lines = body.splitlines() or [""]
    return "\n".join(f"> {line.translate(_CONTROL)}".rstrip() for line in lines)


def header(message: Message, zone: tzinfo) -> str:
    """``#12 2026-03-07 10:30 alice [urgent]``; to everybody: ``alice -> @all``."""
    to = " -> @all" if message.recipient == "@all" else ""
    priority = "" if message.priority == "normal" else f" [{message.priority}]"
    state = "" if message.read_at is None else " (read)"
    return f"#{message.id} {show_time(message.at, zone)} {message.sender}{to}{priority}{state}"


def listing(messages: Sequence[Message], zone: tzinfo) -> str:
    """The inbox as text: a heading with counts, then each message quoted under its header; of those that are read
    only the first few."""
    if not messages:
        return "(no messages)\n"
    unread = sum(message.read_at is None for message in messages)
    shown = messages[: unread + _READ_SHOWN]
    noun = "message" if len(messages) == 1 else "messages"
    text = f"## Inbox ({len(messages)} {noun}, {unread} unread)\n\n{_blocks(shown, zone)}"
    left = len(messages) - len(shown)
    return f"{text}\n({left} older ones, read: :inbox?format=jsonl)\n" if left else text


def urgent(messages: Sequence[Message], zone: tzinfo) -> str:
    """Unread urgent messages as text."""
    return _blocks(messages, zone) if messages else "(no urgent messages)\n"


def _blocks(messages: Sequence[Message], zone: tzinfo) -> str:
    return "\n".join(f"{header(message, zone)}\n{quote(message.body)}\n" for message in messages)


def jsonl(messages: Sequence[Message]) -> str:
    """One JSON object a line: id, sender, recipient, priority, at, expires, read, body."""
    rows = (
        {
            "at": iso(message.at), "body": _utf8(message.body), "expires": iso(message.expires), "id": message.id,
            "priority": message.priority, "read": message.read_at is not None, "recipient": message.recipient,
            "sender": message.sender,
        }
        for message in messages
    )  # fmt: skip
    return "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)


def _utf8(text: str) -> str:
    """JSON is UTF-8: bytes of a message that are not become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def banner(urgent: Sequence[Message], zone: tzinfo) -> str:
    """The delimited banner of unread urgent mail; empty when there is none."""
    if not urgent:
        return ""
    return f"=== {_count(urgent)} (mark read: echo > /:inbox) ===\n{_blocks(urgent, zone)}=== end of urgent ===\n\n"


def short_banner(urgent: Sequence[Message]) -> str:
    """One line for where the whole banner costs too much."""
    return f"=== {_count(urgent)}: cat /:urgent ===\n\n" if urgent else ""


def _count(urgent: Sequence[Message]) -> str:
    return f"{len(urgent)} urgent message" + ("s" if len(urgent) > 1 else "")


def iso(at: int | None) -> str | None:
    """ISO 8601, UTC, to the microsecond; None stays None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
