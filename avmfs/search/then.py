"""Answers about the past from an index of today: what has the same text now as then, under its path of then.

Called by ``Memory``, for its own instant or, with None, for today, when all is as it is. The reader decides what the
asker may see of then; what could not be searched is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Final

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import ReadOnly
from avmfs.node import Moment
from avmfs.search.engine import Answer, Scored
from avmfs.store.index.search_index import searched_below
from avmfs.store.store import Store

CANDIDATES: Final = 10  # of today, for each hit that is asked for
MOST: Final = 1000  # files that are counted
REFUSED: Final = "the past cannot be changed"


def refuse(command: str) -> None:
    """Raises ReadOnly for what changes a memory of the past: all but making the words of today."""
    if command != "drain_lexical":
        raise ReadOnly(REFUSED)


def among(aside: str) -> str:
    """Where today's index is looked through (``Visible.searched``) for what stood ``aside`` then (``paths.searched``):
    some of it was removed or archived since."""
    return aside if aside == "index" else "past"


def search(
    store: Store,
    then: Moment | None,
    find: Callable[..., Answer],
    archive: bool,
    who: Principal,
    q: str,
    *,
    limit: int,
    under: tuple[bytes, ...],
    one_per_document: bool = True,
    **how: Any,
) -> Answer:
    """As ``find``, which is ``Engine.search``, does it. The best of today are asked for first; where these leave too
    few of then, and there are more, the best of what has the same text as then. ``archive``: it looks there, too."""
    ask = partial(find, who, q, one_per_document=one_per_document, **how)
    if then is None:
        return ask(limit=limit, under=under)
    aside = paths.searched(under, archive)
    found = ask(limit=limit * CANDIDATES if one_per_document else limit)
    hits = _unchanged(store, who, then, found, under, aside)
    # A recall asks for twice as many passages as it has room for, as a rule.
    enough = limit if one_per_document else limit // 2
    if len(hits) < enough and found.more:
        found = ask(limit=limit, within=_there(store, who, then, under, aside))
        hits = _unchanged(store, who, then, found, under, aside)
    return replace(found, hits=tuple(hits[:limit] if one_per_document else hits))


def _unchanged(
    store: Store, who: Principal, then: Moment, found: Answer, under: tuple[bytes, ...], aside: str
) -> list[Scored]:
    hits: list[Scored] = []
    with store.reading_at(who, then) as reader:
        for scored in found.hits:
            path = reader.path_unchanged(scored.hit.node, aside, among(aside))
            if path is None:
                continue
            parts = paths.split(path)
            if under in (parts[: len(under)], paths.origin(parts)[: len(under)]):
                hits.append(replace(scored, hit=replace(scored.hit, path=path)))
    return hits


def _there(store: Store, who: Principal, then: Moment, under: tuple[bytes, ...], aside: str) -> list[int]:
    """The documents of what stood below ``under`` then, with the text of today: dear where these are many."""
    with store.reading_at(who, then) as reader:
        tops = searched_below(reader, under, aside)
        return [each for top in tops for each in reader.unchanged_below(top, aside, among(aside))]


def unsearched(store: Store, who: Principal, then: Moment | None, zone: tzinfo, aside: str = "") -> str:
    """The first line of an answer."""
    if then is None:
        return ""
    with store.reading_at(who, then) as reader:
        count = reader.changed_since(MOST, aside, among(aside))
    at = f"{datetime.fromtimestamp(then.at // 10**9, zone):%Y-%m-%d %H:%M}"
    many = f"{count} or more files" if count == MOST else f"{count} file{'' if count == 1 else 's'}"
    what = f"{many} of then, changed or gone since, could not be searched" if count else "all of it was searched"
    return f"# as of {at}: {what}\n"
