"""Where in the code: signatures, an answer to a question, who calls what.

Owns how symbols are ranked. Called by the doors for people and programs. What may be seen is the door's matter: it
finds the notes by their words (search below /index), and these are read here.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from avmfs.codeindex import modules, scanning
from avmfs.codeindex.modules import Place
from avmfs.errors import Invalid, NotFound
from avmfs.text import forms, segment
from avmfs.transfer import exporting
from avmfs.transfer.record import Door

NOTES: Final = 60  # that are looked into for one question
CALLING: Final = 1000
_WEIGHTS: Final = (
    3.0,
    1.2,
    1.0,
    0.5,
)  # of a word in the name, in what it is in, in what is said of it, in the signature
_SMALL: Final = frozenset(("constant", "variable", "prototype", "macro"))


def sigs(door: Door, project: str, pattern: str = "", *, kind: str = "") -> Iterator[Place]:
    """All symbols of a project in the order of its files; ``pattern``: a file's path, a folder's, a glob of either, or
    a symbol's name (with or without what it is in). Raises NotFound for an unknown project."""
    where, _ = scanning.found(door, project)
    for each in exporting.told(door, where, data=True):
        source = _source(each)
        if source is None:
            continue
        within = not pattern or source.startswith(pattern.rstrip("/") + "/") or fnmatch.fnmatchcase(source, pattern)
        for symbol in modules.read(_text(door, each)):
            if kind in ("", symbol.kind) and (within or _named(symbol.name, pattern)):
                yield Place(project, each["path"], source, symbol)


def find(door: Door, question: str, project: str | None = None, limit: int = 5) -> list[Place]:
    """The symbols that answer a question best, of a project or of all that this agent may see, best first."""
    if limit < 1:
        raise Invalid(f"limit {limit}: expected 1 or more")
    words = list(dict.fromkeys(segment.query_terms(modules.apart(question))))
    asked = f"{question} {modules.apart(question)}" if modules.apart(question) != question.lower() else question
    places = [*_candidates(door, asked, project, NOTES)]
    plain = question.strip().lower().removesuffix("()")
    said = [_words_of(each) for each in places]
    count: Counter[str] = Counter()
    for fields in said:
        count.update({word for field in fields for word in field})
    wanted = [forms.of(word) for word in words]
    rare = [math.log(1 + len(places) / (1 + sum(count[form] for form in each))) for each in wanted]

    def score(number: int) -> float:
        symbol, fields = places[number].symbol, said[number]
        total, met = 0.0, 0.0
        for each, weight in zip(wanted, rare, strict=True):
            best = max(
                (_WEIGHTS[at] * any(form in field for form in each) for at, field in enumerate(fields)), default=0
            )
            total += best * weight
            met += weight * bool(best)
        total *= 0.4 + met / (sum(rare) or 1.0)
        total /= 1.0 + 0.08 * max(0, len(fields[0]) - len(words))
        if symbol.kind in _SMALL:
            total *= 0.8
        if _testing(places[number].source):
            total *= 0.6
        if plain in (symbol.name.lower(), symbol.name.lower().rpartition(".")[2]):
            total += 100.0
        return total

    scores = [score(number) for number in range(len(places))]
    order = sorted(range(len(places)), key=lambda each: (-scores[each], places[each].source, places[each].symbol.line))
    return [places[each] for each in order if scores[each] > 0][:limit]


def callers(door: Door, name: str, project: str | None = None) -> list[Place]:
    """What calls something of this name, as far as names tell: which of several is meant no parser knows."""
    last = _last(name)
    return [each for each in _candidates(door, last, project, CALLING) if last in each.symbol.calls]


def callees(door: Door, name: str, project: str | None = None) -> list[Place]:
    """The symbols of this name, each with the names that it calls."""
    asked = f"{name} {modules.apart(name)}"
    return [each for each in _candidates(door, asked, project, CALLING) if _named(each.symbol.name, name)]


def _candidates(door: Door, question: str, project: str | None, most: int) -> Iterator[Place]:
    tops = [modules.TOP] if project is None else [scanning.found(door, project)[0]]
    for top in tops:
        for hit in door.call("search", q=question, limit=most, under=top, mode="lexical")["hits"]:
            try:
                each = door.call("records", path=hit["path"], data=True)["records"][0]
            except NotFound:
                continue  # it has gone since
            if (source := _source(each)) is not None:
                named = each["path"][: -len(source) - 4].rpartition("/")[2]
                for symbol in modules.read(_text(door, each)):
                    yield Place(named, each["path"], source, symbol)


def _words_of(place: Place) -> tuple[frozenset[str], ...]:
    symbol = place.symbol
    above, _, name = symbol.name.rpartition(".")
    parts = (name, f"{above} {place.source.rpartition('.')[0]}", symbol.doc, symbol.signature)
    return tuple(frozenset(segment.terms(modules.apart(each))) for each in parts)


def _source(record: dict[str, Any]) -> str | None:
    said = record.get("user", {}).get(modules.META)
    return said.get("source") if isinstance(said, dict) else None


def _text(door: Door, record: dict[str, Any]) -> str:
    data = record["data"] if "data" in record else exporting.contents(door, record["path"])
    return str(data.decode("utf-8", "replace"))


def _named(name: str, asked: str) -> bool:
    return name == asked or name.endswith(f".{asked.replace('::', '.')}")


def _last(name: str) -> str:
    return name.replace("::", ".").rpartition(".")[2]


def _testing(source: str) -> bool:
    return not {"test", "tests", "testing", "spec", "examples"}.isdisjoint(segment.terms(source.replace("_", " ")))


def lines(places: Iterable[Place], *, project: bool = False) -> Iterator[str]:
    """``src/a.py:12  def f(x)``, one each, with the project's name where that is not known."""
    for each in places:
        where = f"{each.project}/{each.source}" if project else each.source
        yield f"{where}:{each.symbol.line}  {each.symbol.name} ({each.symbol.kind})  {each.symbol.signature}"
