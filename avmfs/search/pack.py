"""The text of an answer, and fitting it to a token budget.

Owns the plain format of :recall (docs/FORMATS.md) and the promise that a recall never costs more tokens
than it was given, its own header and footer included. Called by recall and by the views. Knows nothing of how
hits were found.

What a note says is quoted so that it cannot pass for the frame: a first line that begins with a sign of the frame
follows a handle, every further line is indented, line ends of all kinds are line ends here, and control characters and
those that nobody would see are left out. That is enough for a program; for a model the first and the last line carry a
nonce, which no note can know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from avmfs import calls, paths
from avmfs.node import notice, signed
from avmfs.search.duplicates import glance, repeated
from avmfs.search.engine import Scored
from avmfs.search.excerpts import LIKE_FRAME, NEARLY, excerpt, one_line, seen, widened
from avmfs.search.forms import KNOWN, Around, Form, Quoted, beside, closing, day_of, door_of, short_day
from avmfs.text.tokens import TokenCounter

USUAL: Final = "balanced"  # the strategy that is not named
NOTHING: Final = "(nothing relevant)\n"

SCRAP: Final = 24
"""Tokens below which what is left of the budget is not worth the beginning of a passage."""

SKIMMED: Final = 2000
FIRST: Final = 10
"""Who gets more than so many tokens may not read to the end: so many items come first, whatever their group."""

ALSO: Final = 3  # handles of the others that are named

SEEN: Final = 30
"""So many of the best items are looked at for what they have in common: whatever the budget, so that a larger one does
not change the frame."""
SCATTERED: Final = 0.6
FEW: Final = 3
"""Share of groups among items above which each item says its own day, unless there are but a few."""
WORTH: Final = 20
"""Tokens below which it is not worth to name once what places have in common: a whole path is plainer."""

SMALL: Final = 100
"""Tokens of a budget below which the frame is but a line of place, day and author, and the nonce."""

PRICE: Final = 0.3
EARLY: Final = 3
"""An item's turn to be packed is (its rank + EARLY) times (its tokens + OVERHEAD) to the power of PRICE: of two that
rank about the same the shorter goes first. The best one goes before all."""
OVERHEAD: Final = 12

ALL_BUT: Final = 0.9
"""Share of what ranks next that has to fit for it to be cut, in place of something else that fits whole."""

JOINED: Final = 2000
"""Tokens up to which the passages of one document that were found go together: most of what answers is told nearby."""

JOINS: Final = 4
"""Tokens that a text may save by what stands before and behind it."""
_TRIES: Final = 8
_IN_TEXT: Final = attrgetter("scored.hit.start")
_PART_END: Final = re.compile(rb"(?<=[^/])(?=/|\Z)")


@dataclass(frozen=True, slots=True)
class Packed:
    """``tokens`` is the exact count of ``text``; ``hits`` are those in it, best first."""

    text: str
    hits: tuple[Scored, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What most items have in common, said once in the heading: by which door they came, the directory below which
    they are (b"" for none), their day, or its year alone, and their author. ``scattered``: hardly two are of one place
    and day, so each item begins with its day, and headers say none."""

    route: str = ""
    base: bytes = b""
    day: str = ""
    author: str = ""
    scattered: bool = False


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
    scores: bool = False  # handle and relevance in every item
    terms: tuple[str, ...] = ()  # of the question: what an excerpt is chosen by
    shared: Shared = Shared()
    timed: bool = False  # the question is about a time
    form: Form | None = None  # other than plain text
    about: str = ""  # what is said first, where a form is no prose

    def notice(self) -> str:
        return notice(self.degraded)

    def around(self, count: int, tokens: int, said: str = "") -> Around:
        told = "; ".join(filter(None, (self.about, self.notice().removeprefix("# ").strip(), said)))
        return Around(count, tokens, self.strategy, self.seq, self.nonce, told)


_Group = tuple[int, str]


class _Item(NamedTuple):
    """``rank``: 0 for the best. ``group``: 0 for those of the first of a long answer, 1 for the rest, and what its
    header says. ``day``: said before its text. ``also``: handles of what says the same. ``cut``: its text is an excerpt
    of the passage's."""

    scored: Scored
    rank: int
    text: str
    tokens: int
    group: _Group = (0, "")
    day: str = ""
    also: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """``said``: letters of its items' texts. ``cut``: one of them is an excerpt."""

    packed: Packed
    said: int
    cut: bool


def pack(ranked: Sequence[Scored], frame: Frame, counter: TokenCounter) -> Packed:
    """As many of ``ranked`` as fit, by rank and price (see PRICE), shown best first, grouped under one header for each
    place, day and author that differ from what the heading says; an answer of more than SKIMMED tokens has its FIRST
    best ones in groups of their own, before all others.

    What says the same in nearly the same words is given once, with the handles of the others. The best one, where it
    does not fit, the next one, where ALL_BUT its end fits, and at last the best of the others that do not, are cut to
    the sentences that have most of the question's words. The order of packing does not depend on the budget: the items
    up to the first that does not fit whole are among those of any larger budget (on either side of SMALL). The heading
    of an answer of SMALL tokens or some more takes nothing from what a smaller one would say. A budget too small for
    any item, or for any text at all, gives a line that says so, or nothing.
    """
    items = _distinct(ranked, counter)
    found = _framed(items, frame, counter) if items else None
    if items and frame.form is None and SMALL <= frame.budget < 2 * SMALL:
        small = _framed(items, replace(frame, budget=SMALL - 1), counter)
        found = small if small is not None and (found is None or small.said > found.said) else found
    if found:
        return found.packed
    empty = _empty(f"(nothing fits in {frame.max_tokens} tokens)\n" if items else NOTHING, frame, counter)
    if frame.degraded is None or (empty.text and not items):
        return empty
    # Why there are no vectors is said as far as it takes no item's place.
    brief = "" if frame.notice().startswith("# semantic search unavailable:") else None
    return pack(ranked, replace(frame, degraded=brief), counter)


def _framed(items: Sequence[_Item], frame: Frame, counter: TokenCounter) -> _Found | None:
    """With place, day and author, where that does not go before what is said."""
    framed = frame if frame.form is not None else replace(frame, shared=_shared(items, frame, counter))
    found = _fitting(items, framed, counter)
    if framed != frame and (found is None or (frame.budget < SMALL and found.cut)):
        found = min(
            filter(None, (found, _fitting(items, frame, counter))), key=lambda one: (one.cut, -one.said), default=None
        )
    return found


def _fitting(items: Sequence[_Item], frame: Frame, counter: TokenCounter) -> _Found | None:
    """The answer, if any fits."""
    units, room = _by_price(items), frame.budget
    while chosen := (found := _choose(units, frame, counter, room))[0]:
        left = (room - found[1]) // max(sum(item.cut for item in chosen), 1)
        for at, item in enumerate(chosen):
            if item.cut:
                chosen[at] = item._replace(text=widened(item.text, _clean(item.scored.hit.text), left, counter))
        settled = _settle(chosen, frame, counter, found[1])
        if settled is not None and settled.tokens <= frame.budget:
            said = sum(len(item.text) for item in chosen)
            return _Found(settled, said, any(item.cut for item in chosen))
        room -= 1 if settled is None else settled.tokens - frame.budget  # joined, parts may cost a token more
    return None


def _by_price(items: Sequence[_Item]) -> list[list[_Item]]:
    """What is packed together, in the order in which it is: the passages of a document, where they are JOINED."""
    documents: dict[bytes, list[_Item]] = {}
    for item in items:
        documents.setdefault(item.scored.hit.path, []).append(item)
    units: list[list[_Item]] = []
    for inside in documents.values():
        whole = sum(item.tokens for item in inside) <= JOINED
        units += [inside] if whole else [[item] for item in inside]

    def turn(unit: list[_Item]) -> tuple[float, int]:
        rank = unit[0].rank
        return ((rank + EARLY) * (sum(item.tokens for item in unit) + OVERHEAD) ** PRICE if rank else 0.0), rank

    return sorted(units, key=turn)


def _choose(
    units: Sequence[Sequence[_Item]], frame: Frame, counter: TokenCounter, room: int
) -> tuple[list[_Item], int]:
    """What fits into ``room`` tokens, and about how many it costs: parts are counted alone. A token ends where a line
    begins that has no blank before it, so joined they cost the same."""
    chosen, groups = list[_Item](), set[_Group]()
    spent = counter.count(_heading(0, frame, frame.budget) + _closing(frame))
    refused: Sequence[_Item] = ()

    def add(unit: Sequence[_Item], most: int) -> bool:
        nonlocal spent
        header = 0 if unit[0].group in groups else counter.count(_header(unit[0].group))
        cost = header + counter.count(_block(sorted(unit, key=_IN_TEXT), frame))
        if fits := cost <= most:
            chosen.extend(unit)
            groups.add(unit[0].group)
            spent += cost
        return fits

    def cut(item: _Item, most: int) -> None:
        header = 0 if item.group in groups else counter.count(_header(item.group))
        left = room = most - header - counter.count(_block([item._replace(text="", cut=True)], frame))
        while text := excerpt(item.text, room, frame.terms, counter):
            short = item._replace(text=text, cut=True)
            if add([short], most):
                return
            # Indents cost too, and are not in the plain text: as many as a shorter one has lines. More than is left.
            cost = counter.count(_block([short], frame)) - counter.count(_block([short._replace(text="")], frame))
            room = room * left // cost

    def some(unit: Sequence[_Item], most: int) -> None:
        """Passages of what does not fit, the best first, and of the next one the sentences that do."""
        stop = spent + most
        for item in unit:
            if item.rank not in {one.rank for one in chosen} and not add([item], stop - spent):
                if stop - spent >= SCRAP or not chosen:
                    cut(item, stop - spent)
                return

    for each in units:
        if refused and _least(each) > room - spent:
            continue  # most of them, and to say where one stands is dear
        unit = each if frame.shared == Shared() else _placed(each, frame)
        if add(unit, room - spent):
            continue
        found = [item for item in unit if item.scored.score > 0]
        if chosen and found and add(found, room - spent):
            continue
        if unit[0].rank == 0:  # it comes first. Its best passage; others may tell all of theirs in the rest
            alone = room < 3 * SMALL or sum(item.tokens for item in unit) * NEARLY < room - spent
            some(unit[: None if alone else 1], room - spent if alone else (room - spent) // 2)
        elif not refused and sum(item.tokens for item in unit) * ALL_BUT < room - spent:
            some(unit, room - spent)
        if not refused:
            refused = unit
    if room - spent >= SCRAP:
        some(refused, room - spent)
    return sorted(chosen, key=lambda item: item.rank), spent


def _least(unit: Sequence[_Item]) -> int:
    """Tokens without which nothing of it is packed: joined to what stands around it, a text may cost some less."""
    return sum(item.tokens - JOINS for item in unit if item.scored.score > 0 or unit[0].scored.score <= 0)


def _settle(items: Sequence[_Item], frame: Frame, counter: TokenCounter, tokens: int, said: str = "") -> Packed | None:
    """The text that names its own number of tokens, beginning at a guess, or None where no number is right. ``said``:
    why there are no items."""
    body, last = _body(items, frame), _closing(frame)
    for _ in range(_TRIES):
        text = _heading(len(items), frame, tokens, said) + body + last
        found = counter.count_lines(text)
        if found == tokens:
            return Packed(text, tuple(item.scored for item in items), tokens)
        tokens = found
    return None


def _heading(count: int, frame: Frame, tokens: int, said: str = "") -> str:
    if frame.form is not None:
        return frame.form.opening(frame.around(count, tokens, said))
    shared = frame.shared
    base = f"in {_place(shared.base)}" if shared.base else ""
    within = " ".join(filter(None, ["#", base, shared.day, shared.author]))
    if frame.budget < SMALL:
        return f"{frame.notice()}{within}{_fence(frame)}\n"
    items = f"{count} item{'' if count == 1 else 's'}"
    via = f" {shared.route}" if shared.route else ""
    return f"{frame.notice()}## Relevant Memory ({items}, {tokens} tokens){via}{_fence(frame)}\n{within}\n"


def _closing(frame: Frame) -> str:
    if frame.form is not None:
        return frame.form.closing(frame.around(0, 0))
    if frame.budget < SMALL:
        return f"({frame.nonce or 'end'})\n"
    return f"({'' if frame.strategy == USUAL else f'{frame.strategy} · '}seq={frame.seq}{_fence(frame)})\n"


def _fence(frame: Frame) -> str:
    return f" {frame.nonce}" if frame.nonce else ""


def _body(items: Sequence[_Item], frame: Frame) -> str:
    groups: dict[_Group, dict[bytes, list[_Item]]] = {}
    for item in items:
        groups.setdefault(item.group, {}).setdefault(item.scored.hit.path, []).append(item)
    ordered = sorted(groups, key=lambda group: group[0])  # stable: each part in order of its best
    return "".join(
        ("" if group[1] == "" and at == 0 else _header(group))
        + "".join(_block(sorted(own, key=_IN_TEXT), frame) for own in groups[group].values())
        for at, group in enumerate(ordered)
    )


def _shared(items: Sequence[_Item], frame: Frame, counter: TokenCounter) -> Shared:
    """Of the best SEEN. A small answer says it all once, in the heading: there is room for one or two of one place."""
    seen = [item.scored.hit for item in items[: 1 if frame.budget < SMALL else SEEN]]
    doors = [door_of(hit.path, hit.route) for hit in seen]
    route = _most(doors)
    days = [day_of(hit.updated, frame.tz) for hit in seen]
    day = days[0] if len(set(days)) == 1 else _most(each[:4] for each in days)
    authors = [_author(hit.author, door, route) for hit, door in zip(seen, doors, strict=True)]
    places = [_directory(hit.path) for hit in seen]
    groups = dict.fromkeys(zip(places, days, authors, strict=True))
    base = _base([place for place, *_ in groups], counter)
    return Shared(route, base, day, _most(authors), len(groups) > max(SCATTERED * len(seen), FEW))


def _most(values: Iterable[str]) -> str:
    count = Counter(values)
    return max(count, key=lambda value: (count[value], value), default="")


def _placed(unit: Sequence[_Item], frame: Frame) -> list[_Item]:
    """With what differs from what is shared: the place, which ends with a slash, the day, the author."""
    shared, part = frame.shared, int(frame.budget > SKIMMED and unit[0].rank >= FIRST)
    found = []
    for item in unit:
        hit = item.scored.hit
        place, day = _directory(hit.path), day_of(hit.updated, frame.tz)
        author = _author(hit.author, door_of(hit.path, hit.route), shared.route)
        where = "" if place == shared.base else _place(beside(place, shared.base))
        short = "" if day == shared.day else short_day(day, shared.day)
        where += "" if shared.scattered else short
        said = " ".join(filter(None, [where, "" if author == shared.author else author]))
        dated = shared.scattered and (item.rank < FIRST or frame.timed)
        group = part, said
        found.append(_Item(item.scored, item.rank, item.text, item.tokens, group, short if dated else "", item.also))
    return found


@lru_cache(KNOWN)
def _directory(path: bytes) -> bytes:
    return path.rpartition(b"/")[0] or b"/"


def _place(directory: bytes) -> str:
    """Ends with a slash, as neither days nor authors do, and has no blanks."""
    return _word(paths.printable(directory)).rstrip("/") + "/"


def _word(text: str) -> str:
    return one_line(text).replace(" ", "\\x20")


@lru_cache(KNOWN)
def _author(author: str, door: str, shared: str) -> str:
    """With the ``door`` that it came by, where that is not the one which most items ``shared``."""
    return _word(signed(author, "" if door == shared else door or "?"))


def _base(places: Sequence[bytes], counter: TokenCounter) -> bytes:
    """The directory whose name costs most when headers repeat it; the only one there is; b"" where that is little."""
    if len(set(places)) == 1:
        return places[0]
    below = Counter(place[: end.start()] for place in places for end in _PART_END.finditer(place))
    saved = {base: (count - 1) * counter.count(f" {paths.printable(base)}") for base, count in below.items()}
    worth = (base for base, tokens in saved.items() if tokens >= WORTH)
    return max(worth, key=lambda base: (saved[base], base), default=b"")


def _header(group: _Group) -> str:
    return f"# {group[1] or './'}\n"


def _block(passages: Sequence[_Item], frame: Frame) -> str:
    """What is given of one document, its passages in order. With its handle where there is more to it than its text:
    where it is an excerpt, of several passages, or stands for others, where it would begin as the frame does, where it
    is not to be trusted, and on demand."""
    first = passages[0]
    scored, hit = first.scored, first.scored.hit
    if len(passages) == 1 and hit.whole and frame.form is None and not (first.cut or first.also or hit.untrusted):
        said = scored.replaces or scored.replaced or scored.standing or frame.scores or frame.cite
        if not said:  # as most are
            begin = first.day or (f"@{hit.handle}" if LIKE_FRAME.match(first.text) else "")
            return (f"{begin} {first.text}" if begin else first.text).replace("\n", "\n  ") + "\n"
    text, stop = "", hit.start
    for item in passages:
        text += ("\n" if text else "") + ("…\n" if item.scored.hit.start != stop else "") + item.text
        stop = item.scored.hit.stop
    also = [*dict.fromkeys(handle for item in passages for handle in item.also)]
    replaces = tuple(dict.fromkeys(handle for item in passages for handle in item.scored.replaces))
    # What was only read to fill the note up has none, and may come first.
    standing = tuple(dict.fromkeys(said for item in passages for said in item.scored.standing))
    others = {"replaces": [f"@{handle}" for handle in replaces], "also": also}
    noted = (*standing, *(f"{word} {' '.join(named)}" for word, named in others.items() if named))
    relevance = max(item.scored.relevance for item in passages)
    if frame.form is not None:
        path, day = paths.printable(hit.path), day_of(hit.updated, frame.tz)
        told = Quoted(hit.handle, path, hit.version, _word(hit.author), day, relevance, noted, hit.untrusted, text)
        return frame.form.item(told, frame.nonce or "end")
    # Without its zero, the figure costs three tokens, not five.
    figure = [f"{min(relevance, 0.99):.2f}".removeprefix("0")] if frame.scores else []
    about = ", ".join([*([f"untrusted: {hit.untrusted}"] if hit.untrusted else []), *figure, *noted])
    cited = f"[{paths.printable(hit.path)}@{hit.version}]" if frame.cite else ""
    parts = [f"@{hit.handle}", f"({about})" if about else "", cited, first.day, text.replace("\n", "\n  ")]
    return " ".join(filter(None, parts)) + closing(frame.nonce, hit.untrusted) + "\n"


def _distinct(ranked: Sequence[Scored], counter: TokenCounter) -> list[_Item]:
    """What is left of ``ranked`` once what says the same has been joined to the better one."""
    kept: list[_Item] = []
    alike: dict[str, list[int]] = {}  # by a glance, which is cheap and the same for all that say the same
    for scored in ranked:
        calls.go_on()
        if not (text := _clean(scored.hit.text)):
            continue
        rivals = alike.setdefault(glance(text), [])
        same = repeated(text, ((at, kept[at].text) for at in rivals))
        if same is None:
            rivals.append(len(kept))
            kept.append(_Item(scored, len(kept), text, counter.count(text)))
        elif scored.hit.handle != kept[same].scored.hit.handle and len(kept[same].also) < ALSO:
            also = dict.fromkeys((*kept[same].also, f"@{scored.hit.handle}"))
            kept[same] = kept[same]._replace(also=tuple(also))
    return kept


@lru_cache(KNOWN)
def _clean(text: str) -> str:
    """Lines ending in a newline and nothing else, none blank, nothing that is not seen."""
    lines = (seen(line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line).strip()


def _empty(said: str, frame: Frame, counter: TokenCounter) -> Packed:
    """An answer without items that says why."""
    if frame.form is not None and not frame.form.prose:
        found = _settle((), frame, counter, 0, said.strip("()\n"))
    else:
        text = frame.notice() + said
        found = Packed(text, (), counter.count(text))
    return found if found is not None and found.tokens <= frame.budget else Packed("", (), 0)
