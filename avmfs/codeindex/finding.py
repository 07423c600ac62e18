"""Where in the code: signatures, an answer to a question, who calls what.

Owns how symbols are ranked. Called by the doors for people and programs. What may be seen is the door's matter: it
finds the notes by their words (search below /index), and these are read here.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from avmfs.codeindex import modules, scanning
from avmfs.codeindex.modules import Place
from avmfs.errors import Invalid, NotFound
from avmfs.text import forms, segment
from avmfs.transfer import exporting
from avmfs.transfer.record import Door

NOTES: Final = 100  # that are looked into for one question
CALLING: Final = 1000
MEANT: Final = 50  # symbols that meaning is asked of
MEANING: Final = 2.0  # of a cosine, beside a share of the best score by words
TOGETHER: Final = 2  # symbols of one class, before those of others have come
NAMED: Final = 1000.0  # beyond any score: what has the very name that was asked for
SATURATION: Final = 2.0  # of BM25F, whose weights and shares of length were chosen on one project's questions
PART: Final = 0.6
_FIELDS: Final = ((3.0, 0.6), (1.0, 0.3), (0.7, 0.3), (1.5, 0.5), (0.4, 0.3))
"""Weight and share of length of a symbol's name, of what it is in, its file, what is said of it, and its signature."""
_SMALL: Final = frozenset(("constant", "variable", "prototype", "macro"))


def sigs(door: Door, project: str, pattern: str = "", *, kind: str = "") -> Iterator[Place]:
    """All symbols of a project in the order of its files; ``pattern``: a file's path, a folder's, a glob of either, or
    a symbol's name (with or without what it is in). Raises NotFound for an unknown project."""
    where, _ = scanning.found(door, project)
    for each in exporting.told(door, where, data=True):
        for place in _places(door, each):
            source, symbol = place.source, place.symbol
            within = not pattern or source.startswith(pattern.rstrip("/") + "/") or fnmatch.fnmatchcase(source, pattern)
            if kind in ("", symbol.kind) and (within or named(symbol.name, pattern)):
                yield place


def find(
    door: Door,
    question: str,
    project: str | None = None,
    limit: int = 5,
    degraded: Callable[[str], object] = lambda reason: None,
) -> list[Place]:
    """The symbols that answer a question best, of a project or of all that this agent may see, best first: by words,
    the first MEANT of them by meaning too, or ``degraded`` is told why not."""
    if limit < 1:
        raise Invalid(f"limit {limit}: expected 1 or more")
    apart = modules.apart(question)
    places = [*_candidates(door, question if apart == question.lower() else f"{question} {apart}", project, NOTES)]
    asked = dict.fromkeys(segment.query_terms(apart))
    scores = _scores(places, [(each,) if segment.lone(each) else forms.of(each) for each in asked])
    plain = question.strip().lower().removesuffix("()")
    for number, each in enumerate(places):
        if plain in (each.symbol.name.lower(), last(each.symbol.name.lower())):
            scores[number] += NAMED
    found = _ordered((score, each) for score, each in zip(scores, places, strict=True) if score > 0)
    if found and found[0][0] < NAMED:
        found[:MEANT] = _by_meaning(door, question, found[:MEANT], degraded)
        found = _spread(found)
    return [each for _, each in found[:limit]]


_Scored = list[tuple[float, Place]]


def _ordered(scored: Iterable[tuple[float, Place]]) -> _Scored:
    return sorted(scored, key=lambda each: (-each[0] * _standing(each[1]), each[1].source, each[1].symbol.line))


def _by_meaning(door: Door, question: str, scored: _Scored, degraded: Callable[[str], object]) -> _Scored:
    """The same by words and meaning: names and one line of text are short, and a question is put otherwise."""
    told = door.call("nearness", q=question, texts=[_said(each) for _, each in scored])
    if told["cosines"] is None:
        degraded(told["degraded"])
        return scored
    best = max(score for score, _ in scored)
    near = zip(scored, told["cosines"], strict=True)
    return _ordered((score / best + MEANING * max(cosine, 0.0), each) for (score, each), cosine in near)


def _spread(scored: _Scored) -> _Scored:
    """A class that fits brings all its methods: the rest of them come last."""
    met: Counter[tuple[str, str]] = Counter()
    ranks = []
    for _, each in scored:
        whole = each.path, each.symbol.name.replace("::", ".").partition(".")[0]
        ranks.append(met[whole] >= TOGETHER)
        met[whole] += 1
    return [each for _, each in sorted(zip(ranks, scored, strict=True), key=lambda ranked: ranked[0])]


def _said(place: Place) -> str:
    """What a symbol is, in words."""
    of = modules.apart(place.source.rpartition(".")[0])
    return f"{modules.apart(place.symbol.name)}: {place.symbol.doc} ({of})"


def _standing(place: Place) -> float:
    """What is asked for is seldom a constant, private, or a test."""
    small = 0.8 if place.symbol.kind in _SMALL else 1.0
    private = 0.9 if last(place.symbol.name).startswith("_") else 1.0
    return small * private * (0.5 if _testing(place.source) else 1.0)


def _scores(places: list[Place], wanted: list[tuple[str, ...]]) -> list[float]:
    """BM25F (Zaragoza et al. 2004) over these symbols, times the share of what is ``wanted`` that is there. Names
    shorten words and join them (``mail_admins``, ``slugify``): one that another begins with is PART of it."""
    said = [_words_of(each) for each in places]
    mean = [sum(len(fields[at]) for fields in said) / max(len(said), 1) or 1.0 for at in range(len(_FIELDS))]
    count = Counter(word for fields in said for word in {word for field in fields for word in field})
    rare = [
        math.log1p((len(places) - found + 0.5) / (found + 0.5))
        for found in (min(len(places), sum(count[form] for form in each)) for each in wanted)
    ]
    near = [{word for word in count if _begin(word, each[0])} for each in wanted]
    scores = []
    for fields in said:
        total = met = 0.0
        for each, close, weight in zip(wanted, near, rare, strict=True):
            often = 0.0
            for at, (field, (share, by_length)) in enumerate(zip(fields, _FIELDS, strict=True)):
                times: float = sum(map(field.count, each))
                if not times and at == 0:
                    times = PART * sum(word in close for word in field)
                often += share * times / (1 - by_length + by_length * len(field) / mean[at])
            total += weight * often * (SATURATION + 1) / (often + SATURATION)
            met += weight * bool(often)
        scores.append(total * met / (sum(rare) or 1.0))
    return scores


def _begin(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return word != other and len(short) >= 4 and (long.startswith(short) or (len(short) >= 5 and short in long))


def callers(door: Door, name: str, project: str | None = None) -> list[Place]:
    """What calls something of this name, as far as names tell: which of several is meant no parser knows."""
    return calling(_candidates(door, last(name), project, CALLING), name)


def calling(places: Iterable[Place], name: str) -> list[Place]:
    called = last(name)
    return [each for each in places if called in each.symbol.calls]


def callees(door: Door, name: str, project: str | None = None) -> list[Place]:
    """The symbols of this name, each with the names that it calls."""
    asked = f"{name} {modules.apart(name)}"
    return [each for each in _candidates(door, asked, project, CALLING) if named(each.symbol.name, name)]


def _candidates(door: Door, question: str, project: str | None, most: int) -> Iterator[Place]:
    tops = [modules.TOP] if project is None else [scanning.found(door, project)[0]]
    for top in tops:
        for hit in door.call("search", q=segment.as_question(question), limit=most, under=top, mode="lexical")["hits"]:
            try:
                each = door.call("records", path=hit["path"], data=True)["records"][0]
            except NotFound:
                continue  # it has gone since
            yield from _places(door, each)


def _words_of(place: Place) -> list[list[str]]:
    symbol = place.symbol
    above, _, name = symbol.name.rpartition(".")
    parts = (name, above, place.source.rpartition(".")[0], symbol.doc, symbol.signature)
    return [segment.terms(modules.apart(each)) for each in parts]


def _places(door: Door, record: dict[str, Any]) -> Iterator[Place]:
    said = record.get("user", {}).get(modules.META)
    if isinstance(said, dict):
        data = record["data"] if "data" in record else exporting.contents(door, record["path"])
        yield from modules.places(record["path"], said, data.decode("utf-8", "replace"))


def named(name: str, asked: str) -> bool:
    return name == asked or name.endswith(f".{asked.replace('::', '.')}")


def last(name: str) -> str:
    return name.replace("::", ".").rpartition(".")[2]


def _testing(source: str) -> bool:
    words = segment.terms(source.replace("_", " "))
    return source.startswith("t/") or not {"test", "tests", "testing", "spec", "examples"}.isdisjoint(words)


def lines(places: Iterable[Place], *, project: bool = False) -> Iterator[str]:
    """``src/a.py:12  def f(x)``, one each, with the project's name where that is not known."""
    for each in places:
        where = f"{each.project}/{each.source}" if project else each.source
        yield f"{where}:{each.symbol.line}  {each.symbol.name} ({each.symbol.kind})  {each.symbol.signature}"
