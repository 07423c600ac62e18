"""How a search is written, and a recall for who wants Markdown, JSON lines or XML in place of text (docs/FORMATS.md).

Owns what stands around an item and how its words are quoted, so that no note can end its own quotation. Called by pack,
which chooses, cuts and counts. Each form has the nonce in its first and in its last line, and behind what is not to be
trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from html import escape
from typing import Final, Literal, Protocol, get_args

from avmfs import paths
from avmfs.node import notice
from avmfs.search.engine import Answer
from avmfs.search.excerpts import summary
from avmfs.text import segment
from avmfs.text.escapes import json_safe, visible, visible_lines
from avmfs.trust import marked

Format = Literal["text", "markdown", "jsonl", "xml"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
NO_MATCHES: Final = "(no matches)\n"
_NO_XML: Final = {0xFFFE: None, 0xFFFF: None}
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

KNOWN: Final = 8192
"""Texts whose form is remembered, and times whose day."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the first line says. ``notice``: what had no part in the answer, or why nothing is in it; "" for neither."""

    items: int
    tokens: int
    strategy: str
    seq: int
    nonce: str
    notice: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """What is given of one document. ``day`` in ISO 8601; ``noted``: what links and other notes say of it, in words;
    ``untrusted``: where it came from, if that is to be marked."""

    handle: str
    path: str
    version: int
    author: str
    day: str
    relevance: float
    noted: tuple[str, ...]
    untrusted: str
    text: str


@lru_cache(KNOWN)
def day_of(at: int, tz: tzinfo) -> str:
    """``at`` in ns since the epoch."""
    return (_EPOCH + timedelta(microseconds=at // 1000)).astimezone(tz).date().isoformat()


def short_day(day: str, shared: str) -> str:
    """2026-03-07 as 7Mar26, without the year where it is that of the ``shared`` day: two tokens, where ISO has six."""
    year, month, date = day.split("-")
    return f"{int(date)}{_MONTHS[int(month) - 1]}" + ("" if year == shared[:4] else year[-2:])


def beside(place: bytes, base: bytes) -> bytes:
    """``place`` as seen from ``base``, where it is below it or beside it."""
    up = base.rpartition(b"/")[0]
    if base not in (b"", b"/") and place.startswith(base + b"/"):
        return place[len(base) + 1 :]
    return b".." + place[len(up) :] if up and place.startswith(up + b"/") else place


def closing(nonce: str, came: str) -> str:
    """What ends a quotation that is not to be trusted, behind a line end: no text knows the nonce."""
    return f"\n  ({nonce or 'end'} untrusted ends)" if came else ""


class Form(Protocol):
    """``prose``: lines for people, such as the banner of urgent mail, may stand above it."""

    prose: bool

    def opening(self, around: Around) -> str: ...
    def item(self, quoted: Quoted, nonce: str) -> str: ...
    def closing(self, around: Around) -> str: ...


class Markdown:
    prose = True

    def opening(self, around: Around) -> str:
        notice = f"# {around.notice}\n" if around.notice else ""
        items = f"{around.items} item{'' if around.items == 1 else 's'}"
        return f"{notice}## Relevant Memory ({items}, {around.tokens} tokens) {around.nonce}\n"

    def item(self, quoted: Quoted, nonce: str) -> str:
        came = f"untrusted: {quoted.untrusted}" if quoted.untrusted else ""
        about = ", ".join(filter(None, (came, f"v{quoted.version}", quoted.author, quoted.day, *quoted.noted)))
        text = "".join(f"> {line}\n" for line in quoted.text.split("\n"))
        end = f"> ({nonce} untrusted ends)\n" if came else ""
        return f"### @{quoted.handle} ({about}) {quoted.path}\n{text}{end}"

    def closing(self, around: Around) -> str:
        return f"\n({around.strategy} · seq={around.seq} {around.nonce})\n"


class Jsonl:
    prose = False

    def opening(self, around: Around) -> str:
        said = {name: getattr(around, name) for name in ("items", "nonce", "seq", "strategy", "tokens")}
        return f"{json_safe(said | ({'notice': around.notice} if around.notice else {}))}\n"

    def item(self, quoted: Quoted, nonce: str) -> str:
        about = _about(quoted) | {"version": quoted.version, "relevance": round(quoted.relevance, 2)}
        told = {"note": about, "text": quoted.text}  # in this order: whose words they are is read before them
        return f"{json_safe(told | ({'untrusted_ends': nonce} if quoted.untrusted else {}))}\n"

    def closing(self, around: Around) -> str:
        return f"{json_safe({'nonce': around.nonce, 'seq': around.seq})}\n"


class Xml:
    prose = False

    def opening(self, around: Around) -> str:
        said = {name: str(getattr(around, name)) for name in ("items", "tokens", "strategy", "seq", "nonce")}
        return f"<memory{_attributes(said | ({'notice': around.notice} if around.notice else {}))}>\n"

    def item(self, quoted: Quoted, nonce: str) -> str:
        about = _about(quoted) | {"version": str(quoted.version), "relevance": f"{quoted.relevance:.2f}"}
        end = f"({nonce} untrusted ends)\n" if quoted.untrusted else ""
        text = escape(visible_lines(quoted.text).translate(_NO_XML), quote=False)
        return f"<note{_attributes(about)}>\n{text}\n{end}</note>\n"

    def closing(self, around: Around) -> str:
        return f"</memory><!-- {around.nonce} -->\n"


def _about(quoted: Quoted) -> dict[str, object]:
    """What is said of a note beside numbers; nothing of what there is nothing to say of."""
    found: dict[str, object] = {"untrusted": quoted.untrusted} if quoted.untrusted else {}
    found |= {"handle": f"@{quoted.handle}", "path": quoted.path, "author": quoted.author, "day": quoted.day}
    return found | ({"noted": ", ".join(quoted.noted)} if quoted.noted else {})


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f' {name}="{escape(visible(str(each)).translate(_NO_XML))}"' for name, each in values.items())


def structured(form: str) -> bool:
    """Whether nothing may stand above it."""
    return (found := FORMS.get(form)) is not None and not found.prose


FORMS: Final[Mapping[str, Form | None]] = {"text": None, "markdown": Markdown(), "jsonl": Jsonl(), "xml": Xml()}


def format_search(answer: Answer) -> str:
    """``[0.85] /path`` and one indented line of the passage for each hit; what is degraded first."""
    lines = notice(answer.degraded).splitlines()
    terms = tuple(segment.query_terms(answer.query))
    for scored in answer.hits:
        live = f"  (live, of {datetime.fromtimestamp(scored.hit.updated // 10**9, UTC):%Y-%m-%d %H:%MZ})"
        of = live if door_of(scored.hit.path, scored.hit.route) == "live" else ""
        lines.append(f"[{scored.relevance:.2f}] {paths.printable(scored.hit.path)}{of}")
        lines.append(f"  {marked(summary(scored.hit.text, terms), scored.hit.untrusted)}".rstrip())
    return "\n".join(lines) + "\n" if answer.hits else "\n".join([*lines, NO_MATCHES])


@lru_cache(8192)
def door_of(path: bytes, route: str) -> str:
    """By which door it came: what stands at a live path is live, whoever gave it to the source."""
    return "live" if paths.is_live(tuple(path.split(b"/")[1:2])) else route
