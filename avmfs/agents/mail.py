"""How messages look, and how durations are written.

Owns the text of inbox lines and of the urgent banner (docs/FORMATS.md has them exactly). A body is quoted line by line,
so that no message can forge a header, and what would redraw, reorder or hide text shows as an escape. Pure functions;
the store keeps the mail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo

from avmfs import calls
from avmfs.errors import Invalid
from avmfs.node import Message
from avmfs.text.escapes import json_safe, visible

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", re.IGNORECASE | re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST_S = 100 * 366 * 86400
READ_SHOWN = 20  # read messages that a listing keeps; :inbox?format=jsonl has them all
BANNER_MESSAGES, _BANNER_LINES, _BANNER_CHARACTERS = 10, 20, 2000  # what a banner shows of much, and of one message
_BANNER_READ = 2 * _BANNER_CHARACTERS  # of a body: blanks at the end of its lines are not shown


def parse_duration(text: str) -> int:
    """``90s``, ``5m``, ``2h``, ``1d``, ``1h 30m`` -> nanoseconds. Raises Invalid."""
    seconds, position = 0.0, 0
    while found := _DURATION.match(text, position):
        seconds += float(found[1]) * _SECONDS[found[2].lower()]
        position = found.end()
    if position != len(text) or not text.strip() or not 0 < seconds <= _LONGEST_S:
        raise Invalid(f"duration {text.strip()!r}: expected e.g. 90s, 5m, 2h, 1d")
    return int(seconds * 1e9)


def parse_number(text: str) -> int:
    """A message's number, ``12`` or ``#12``. Raises Invalid."""
    digits = text.removeprefix("#")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise Invalid(f"re={text[:80]!r}: expected the number of a message")
    return int(digits)


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
    """Every line behind ``> ``: a body cannot pose as a header."""
    return "\n".join(f"> {visible(line)}".rstrip() for line in body.splitlines() or [""])


def header(message: Message, zone: tzinfo) -> str:
    """``#12 2026-03-07 10:30 alice re #9 [urgent]``; to everybody: ``alice -> @all``."""
    to = " -> @all" if message.recipient == "@all" else ""
    answers = "" if message.re is None else f" re #{message.re}"
    priority = "" if message.priority == "normal" else f" [{message.priority}]"
    state = "" if message.read_at is None else " (read)"
    return f"#{message.id} {show_time(message.at, zone)} {message.sender}{to}{answers}{priority}{state}"


def listing(messages: Sequence[Message], zone: tzinfo, older: int = 0, fitting: Sequence[str] | None = None) -> str:
    """The inbox as text: a heading with counts, then each message quoted under its header. ``older``: how many read
    ones there are beyond ``messages``. ``fitting``: blocks of the first ones, where there is no room for more."""
    if not messages:
        return "(no messages)\n"
    total, unread = len(messages) + older, sum(message.read_at is None for message in messages)
    noun = "message" if total == 1 else "messages"
    blocks = [block(message, zone) for message in messages] if fitting is None else fitting
    text = f"## Inbox ({total} {noun}, {unread} unread)\n\n" + "\n".join(blocks)
    if left := len(messages) - len(blocks):
        return f"{text}\n({left + older} more: mark these as read, or delete them, to see the rest)\n"
    return f"{text}\n({older} older ones, read: :inbox?format=jsonl)\n" if older else text


def urgent(messages: Sequence[Message], zone: tzinfo) -> str:
    """Unread urgent messages as text."""
    return "\n".join(block(message, zone) for message in messages) if messages else "(no urgent messages)\n"


def block(message: Message, zone: tzinfo) -> str:
    """One message as text; of many, whoever waits for them may be gone before the last."""
    calls.go_on()
    return f"{header(message, zone)}\n{quote(message.body)}\n"


def plain(message: Message) -> dict[str, object]:
    """A message for machines: at, body, expires, id, priority, re, read, recipient, sender, thread. An id is
    the same for the sender and all receivers."""
    return {
        "at": iso(message.at),
        "body": _utf8(message.body),
        "expires": iso(message.expires),
        "id": message.id,
        "priority": message.priority,
        "re": message.re,
        "read": message.read_at is not None,
        "recipient": message.recipient,
        "sender": message.sender,
        "thread": message.thread,
    }


def jsonl(messages: Sequence[Message]) -> str:
    """One JSON object a line, see ``plain``. What nobody would see is an escape here, too."""
    return "".join(f"{json_safe(plain(message))}\n" for message in messages)


def _utf8(text: str) -> str:
    """JSON is UTF-8: bytes of a message that are not become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def banner(urgent: Sequence[Message], unread: Mapping[str, int], zone: tzinfo) -> str:
    """The delimited banner of unread urgent mail; empty when there is none. ``urgent``: the first BANNER_MESSAGES at
    least; ``unread``: how many there are by priority, normal ones are only counted. Of many or long messages it shows
    the beginning, so the way to mark them read that it names is one that shows them."""
    if not urgent:
        return ""
    count, others = unread["urgent"], unread["normal"]
    more = f", {others} more unread" if others else ""
    text = "\n".join(f"{header(message, zone)}\n{_beginning(message.body)}\n" for message in urgent[:BANNER_MESSAGES])
    left = count - BANNER_MESSAGES
    rest = f"\n({left} more: cat /:urgent)\n" if left > 0 else ""
    return f"=== {_count(count)}{more} (mark read: cat '/:inbox?mark=read') ===\n{text}{rest}=== end of urgent ===\n\n"


def _beginning(body: str) -> str:
    """Its beginning, quoted. Every call at the door may carry it: what is cut anyhow is not quoted."""
    quoted = quote(body[:_BANNER_READ])
    shown = "\n".join(quoted.split("\n")[:_BANNER_LINES])[:_BANNER_CHARACTERS]
    return quoted if shown == quoted and len(body) <= _BANNER_READ else f"{shown}\n> (it goes on: cat /:urgent)"


def short_banner(count: int) -> str:
    """One line for where the whole banner of so many messages costs too much."""
    return f"=== {_count(count)}: cat /:urgent ===\n\n" if count else ""


def _count(count: int) -> str:
    return f"{count} urgent message" + ("s" if count > 1 else "")


def iso(at: int | None) -> str | None:
    """ISO 8601, UTC, to the microsecond that it is in (``moments.parse`` takes it back); None stays None."""
    if at is None:
        return None
    whole, part = divmod(at, 10**9)
    when = datetime.fromtimestamp(whole, UTC).replace(microsecond=part // 1000)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
