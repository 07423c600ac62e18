"""The text of an answer, and fitting it to a token budget.

Owns the formats of :recall and :search (docs/FORMATS.md) and the promise that a recall never costs more tokens
than it was given, its own header and footer included. Called by recall and by the views. Knows nothing of how
hits were found.

What a note says is quoted so that it cannot pass for the frame: its first line follows a handle, every further
line is indented, line ends of all kinds are line ends here, and control characters and those that nobody would see are
left out. That is enough for a program; for a model the first and the last line carry a nonce, which no note can know.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from avmfs import paths
from avmfs.node import signed
from avmfs.search.engine import Answer, Scored
from avmfs.text import segment
from avmfs.text.tokens import TokenCounter

NOTHING: Final = "(nothing relevant)\n"
NO_MATCHES: Final = "(no matches)\n"
MORE: Final = " …"

SCRAP: Final = 24
"""Tokens below which what is left of the budget is not worth the beginning of a passage."""

SKIMMED: Final = 2000
FIRST: Final = 10
"""Who gets more than so many tokens may not read to the end: so many items come first, whatever their group."""

ALSO: Final = 3  # handles of the others that are named

USUAL: Final = 60
"""Tokens of an item with its share of a header: so many groups are looked at for what their places have in common."""
WORTH: Final = 20
"""Tokens below which it is not worth to name once what places have in common: a whole path is plainer."""

SUMMARY: Final = 160
"""Characters of the one line by which :search shows a hit."""

KNOWN: Final = 8192
"""Texts whose gist is remembered: the same memories are handed out again and again, and comparing what they say was
half the cost of an answer. A passage has a thousand characters at most, as a rule two hundred: 4 MB."""

_TRIES: Final = 8
_LOOK_AHEAD: Final = 10  # short ones to look for, once the next best no longer fits
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What nobody sees but a model reads, or what shows text elsewhere than it stands: overrides of the direction of
# writing, invisible operators, tags, selectors beyond those of emoji.
_UNSEEN: Final = (
    *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF, *range(0xE0000, 0xE0080), *range(0xE0100, 0xE01F0),
)  # fmt: skip
_CONTROL: Final = {code: None for code in (*range(0x20), *range(0x7F, 0xA0), *_UNSEEN) if code != 0x09}
_SENTENCE_END: Final = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？；][」』”’）]*|\n""")
_SPACE: Final = re.compile(r"\s+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_DENIALS: Final = frozenset(("not", "no", "nor", "never", "t", "cannot", "without"))
_NUMBER: Final = re.compile(r"\d+")
_PART_END: Final = re.compile(rb"(?<=[^/])(?=/|\Z)")
_MARKUP: Final = re.compile(r"^[\s#>*+\-=`|]+")


@dataclass(frozen=True, slots=True)
class Packed:
    """``tokens`` is the exact count of ``text``; ``hits`` are those in it, best first."""

    text: str
    hits: tuple[Scored, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the items. ``budget`` is what the text may cost, ``max_tokens`` what the reader asked
    for (more, when something else is shown above). ``cite``: name path and version in every item."""

    budget: int
    max_tokens: int
    strategy: str
    degraded: str | None
    seq: int
    tz: tzinfo
    cite: bool = False
    nonce: str = ""
    route: str = ""  # by which most of it came: said once, so that only the others' groups say it
    base: bytes = b""  # the directory from which groups say their places; b"" for none

    def notice(self) -> str:
        return "" if self.degraded is None else f"# semantic search unavailable: {_one_line(self.degraded)}\n"


_Group = tuple[int, bytes, str, str]


@dataclass(frozen=True, slots=True)
class _Item:
    """``group``: what its header says, and 0 for the first of a long answer, 1 for the rest. ``also``: handles of what
    says the same."""

    scored: Scored
    text: str
    group: _Group
    also: tuple[str, ...] = ()


def pack(ranked: Sequence[Scored], frame: Frame, counter: TokenCounter) -> Packed:
    """As many of ``ranked`` as fit, best first, grouped under one header per place, day and author; an answer of more
    than SKIMMED tokens has its FIRST best ones in groups of their own, before all others. A directory that many places
    have in common is named once, in the heading.

    What says the same in nearly the same words is given once, with the handles of the others. The first passage that
    does not fit is cut to what is left; when little is left, shorter ones are looked for. A budget too small for any
    item, or for any text at all, gives a line that says so, or nothing.
    """
    frame = replace(frame, route=_usual(ranked))
    items = _distinct(ranked, FIRST if frame.budget > SKIMMED else len(ranked), frame)
    if not items:
        return _plain(frame.notice() + NOTHING, frame, counter)
    frame = replace(frame, base=_base(items, frame, counter))
    chosen, tokens = _choose(items, frame, counter)
    while chosen:
        # Parts were counted alone; joined, they may cost a token more or less.
        settled = _settle(chosen, frame, counter, tokens)
        if settled is not None and settled.tokens <= frame.budget:
            return settled
        chosen.pop()
    return _plain(f"{frame.notice()}(nothing fits in {frame.max_tokens} tokens)\n", frame, counter)


def format_search(answer: Answer) -> str:
    """``[0.85] /path`` and one indented line of the passage for each hit; what is degraded first."""
    lines = [] if answer.degraded is None else [f"# semantic search unavailable: {_one_line(answer.degraded)}"]
    terms = segment.query_terms(answer.query)
    for scored in answer.hits:
        lines += [
            f"[{_figure(scored.relevance)}] {paths.printable(scored.hit.path)}",
            f"  {summary(scored.hit.text, terms)}".rstrip(),
        ]
    return "\n".join(lines) + "\n" if answer.hits else "\n".join([*lines, NO_MATCHES])


def summary(text: str, terms: Sequence[str]) -> str:
    """The line of ``text`` with most of the query's ``terms``, the first such, else the first with a word in it;
    without its markup, and cut to SUMMARY characters around the match."""
    lines = [line for line in map(_one_line, text.splitlines()) if any(c.isalnum() for c in line)]
    if not lines:
        return ""
    wanted = frozenset(terms)
    best = max(lines, key=lambda line: len(wanted.intersection(segment.terms(line))))
    line = _MARKUP.sub("", best) or best
    if len(line) <= SUMMARY:
        return line
    low = line.casefold()
    at = min((place for term in terms if (place := low.find(term)) >= 0), default=0)
    start = line.rfind(" ", 0, max(at - SUMMARY // 3, 0)) + 1 if at > SUMMARY * 2 // 3 else 0
    before, after = "… " if start else "", MORE if start + SUMMARY < len(line) else ""
    return before + line[start : start + SUMMARY - len(before) - len(after)].rstrip() + after


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


def _choose(items: Sequence[_Item], frame: Frame, counter: TokenCounter) -> tuple[list[_Item], int]:
    """What fits, and about how many tokens it costs: parts are counted alone. A token ends where a line begins that
    has no blank before it, so joined they cost the same; the blank line before a header is part of the last token."""
    chosen: list[_Item] = []
    groups: set[_Group] = set()
    spent = counter.count(_render(chosen, frame, frame.budget))
    refused = 0
    for item in items:
        header = 0 if item.group in groups else counter.count(_header(item.group, frame).lstrip("\n"))
        cost = header + counter.count(_block(item, frame))
        if spent + cost > frame.budget:
            left = frame.budget - spent - header
            cut = "" if refused else _cut(item, left, frame, counter, SCRAP if chosen else 1)
            refused += 1
            if not cut:
                if refused > _LOOK_AHEAD:
                    break
                continue
            item = replace(item, text=cut)
            cost = header + counter.count(_block(item, frame))
        chosen.append(item)
        groups.add(item.group)
        spent += cost
    return chosen, spent


def _cut(item: _Item, left: int, frame: Frame, counter: TokenCounter, least: int) -> str:
    """The beginning of an item's text that fits in ``left`` tokens with its handle, or "" below ``least``."""
    # Indents cost too, and are not in the plain text.
    room = left - counter.count(_block(replace(item, text=""), frame)) - item.text.count("\n")
    return shorten(item.text, room, counter) if room >= least else ""


def _settle(items: Sequence[_Item], frame: Frame, counter: TokenCounter, tokens: int) -> Packed | None:
    """The text that names its own number of tokens, beginning at a guess, or None where no number is right."""
    for _ in range(_TRIES):
        text = _render(items, frame, tokens)
        found = counter.count_lines(text)
        if found == tokens:
            return Packed(text, tuple(item.scored for item in items), tokens)
        tokens = found
    return None


def _render(items: Sequence[_Item], frame: Frame, tokens: int) -> str:
    groups: dict[_Group, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    fence = frame.nonce and f" {frame.nonce}"
    via = frame.route and f" {frame.route}"
    within = f" in {paths.printable(frame.base)}" if frame.base else ""
    noun = "item" if len(items) == 1 else "items"
    return "".join(
        [
            frame.notice(),
            f"## Relevant Memory ({len(items)} {noun}, {tokens} tokens){via}{within}{fence}\n",
            *(
                _header(group, frame) + "".join(_block(item, frame) for item in groups[group])
                for group in sorted(groups, key=lambda group: group[0])  # stable: each part in order of its best
            ),
            f"\n({tokens} tokens of {frame.max_tokens} · {frame.strategy} · seq={frame.seq}{fence})\n",
        ]
    )


def _usual(ranked: Sequence[Scored]) -> str:
    """The route of most of them."""
    count = Counter(scored.hit.route for scored in ranked)
    return max(count, key=lambda route: (count[route], route), default="")


def _group(scored: Scored, part: int, frame: Frame) -> _Group:
    hit = scored.hit
    route = "" if hit.route == frame.route else hit.route or "?"
    return part, hit.path.rpartition(b"/")[0] or b"/", _day(hit.updated, frame.tz), signed(hit.author, route)


@lru_cache(KNOWN)
def _day(at: int, tz: tzinfo) -> str:
    """``at`` in ns since the epoch."""
    return (_EPOCH + timedelta(microseconds=at // 1000)).astimezone(tz).date().isoformat()


def _base(items: Sequence[_Item], frame: Frame, counter: TokenCounter) -> bytes:
    """The directory whose name costs most when the groups of the best items repeat it; b"" where that is little."""
    places = [group[1] for group in dict.fromkeys(item.group for item in items[: frame.budget // USUAL])]
    below = Counter(place[: end.start()] for place in places for end in _PART_END.finditer(place))
    saved = {base: (count - 1) * counter.count(f" {paths.printable(base)}") for base, count in below.items()}
    best = max(saved, key=lambda base: (saved[base], base), default=b"")
    return best if saved.get(best, 0) >= WORTH else b""


def _header(group: _Group, frame: Frame) -> str:
    _, place, day, author = group
    if frame.base and (place + b"/").startswith(frame.base + b"/"):
        place = place[len(frame.base) + 1 :] or b"."
    return f"\n### {paths.printable(place)} {day} {_one_line(author)}\n"


def _block(item: _Item, frame: Frame) -> str:
    hit = item.scored.hit
    cited = f"[{paths.printable(hit.path)}@{hit.version}] " if frame.cite else ""
    quoted = item.text.replace("\n", "\n  ")
    also = f", also {' '.join(item.also)}" if item.also else ""  # not behind the text, which could say the same
    # Without its zero, the figure costs three tokens, not five: a thirtieth of an answer is that much more memory.
    figure = _figure(min(item.scored.relevance, 0.99)).removeprefix("0")
    return f"@{hit.handle} ({figure}{also}) {cited}{quoted}\n"


def _distinct(ranked: Sequence[Scored], first: int, frame: Frame) -> list[_Item]:
    """What is left of ``ranked`` once what says the same has been joined to the better one."""
    kept: list[_Item] = []
    alike: dict[str, list[int]] = {}  # by a glance, which is cheap and the same for all that say the same
    gists: dict[int, bytes] = {}
    for scored in ranked:
        text = _clean(scored.hit.text)
        if not text:
            continue
        rivals = alike.setdefault(_glance(text), [])
        gist = _gist(text) if rivals else None
        same = next((at for at in rivals if gist == gists.setdefault(at, _gist(kept[at].text))), None)
        if same is None:
            rivals.append(len(kept))
            kept.append(_Item(scored, text, _group(scored, int(len(kept) >= first), frame)))
        elif scored.hit.handle != kept[same].scored.hit.handle and len(kept[same].also) < ALSO:
            also = dict.fromkeys((*kept[same].also, f"@{scored.hit.handle}"))
            kept[same] = replace(kept[same], also=tuple(also))
    return kept


@lru_cache(KNOWN)
def _glance(text: str) -> str:
    """The beginning of the longest word, and the figures."""
    words = _LETTERS.findall(text.casefold())
    most = max(map(len, words), default=0)
    longest = max([word for word in words if len(word) == most], default="")
    return f"{longest[:5]} {_NUMBER.findall(text)}"


@lru_cache(KNOWN)
def _gist(text: str) -> bytes:
    """Equal for texts that say the same: the same words but for function words, in whatever order and inflection, the
    same figures, as many denials. A text without such words is itself. A digest: the words themselves would take ten
    times the room of the text."""
    words = segment.content_terms(text)
    denials = sum(word in _DENIALS for word in _LETTERS.findall(text.casefold()))
    said = f"{sorted(words)} {_NUMBER.findall(text)} {denials}" if words else f"= {' '.join(text.split())}"
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@lru_cache(KNOWN)
def _clean(text: str) -> str:
    """Lines ending in a newline and nothing else, none blank, no control characters."""
    lines = (line.translate(_CONTROL).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line).strip()


def _one_line(text: str) -> str:
    return " ".join(text.translate(_CONTROL | {9: " ", 10: " ", 13: " "}).split())


def _figure(relevance: float) -> str:
    return f"{relevance:.2f}"


def _plain(text: str, frame: Frame, counter: TokenCounter) -> Packed:
    tokens = counter.count(text)
    return Packed(text, (), tokens) if tokens <= frame.budget else Packed("", (), 0)
