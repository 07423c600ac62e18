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
from avmfs.node import Moment, Node
from avmfs.search.engine import Answer, Scored
from avmfs.store.schema.tables import ROOT
from avmfs.store.store import Store

CANDIDATES: Final = 10  # of today, for each hit that is asked for
MOST: Final = 1000  # files that are counted
REFUSED: Final = "the past cannot be changed"


def refuse(command: str) -> None:
    """Raises ReadOnly for what changes a memory of the past: all but making the words of today."""
    if command != "drain_lexical":
        raise ReadOnly(REFUSED)


def search(
    store: Store,
    then: Moment | None,
    find: Callable[..., Answer],
    who: Principal,
    q: str,
    *,
    limit: int,
    under: tuple[bytes, ...],
    one_per_document: bool = True,
    **how: Any,
) -> Answer:
    """As ``find``, which is ``Engine.search``, does it. The best of today are asked for first; where these leave too
    few of then, and there are more, the best of what has the same text as then."""
    ask = partial(find, who, q, one_per_document=one_per_document, **how)
    if then is None:
        return ask(limit=limit, under=under)
    found = ask(limit=limit * CANDIDATES if one_per_document else limit)
    hits = _unchanged(store, who, then, found, under)
    # A recall asks for twice as many passages as it has room for, as a rule.
    enough = limit if one_per_document else limit // 2
    if len(hits) < enough and found.more:
        found = ask(limit=limit, within=_there(store, who, then, under))
        hits = _unchanged(store, who, then, found, under)
    return replace(found, hits=tuple(hits[:limit] if one_per_document else hits))


def _unchanged(store: Store, who: Principal, then: Moment, found: Answer, under: tuple[bytes, ...]) -> list[Scored]:
    hits: list[Scored] = []
    with store.reading_at(who, then) as reader:
        for scored in found.hits:
            path = reader.path_unchanged(scored.hit.node)
            if path is not None and paths.split(path)[: len(under)] == under:
                hits.append(replace(scored, hit=replace(scored.hit, path=path)))
    return hits


def _there(store: Store, who: Principal, then: Moment, under: tuple[bytes, ...]) -> list[int]:
    """The documents of what stood below ``under`` then, with the text of today: dear where these are many."""
    with store.reading_at(who, then) as reader:
        at: Node | None = reader.node(ROOT)
        for name in under:
            at = None if at is None else reader.child(at.id, name)
        return [] if at is None else reader.unchanged_below(at.id)


def unsearched(store: Store, who: Principal, then: Moment | None, zone: tzinfo) -> str:
    """The first line of an answer."""
    if then is None:
        return ""
    with store.reading_at(who, then) as reader:
        count = reader.changed_since(MOST)
    at = f"{datetime.fromtimestamp(then.at // 10**9, zone):%Y-%m-%d %H:%M}"
    many = f"{count} or more files" if count == MOST else f"{count} file{'' if count == 1 else 's'}"
    what = f"{many} of then, changed or gone since, could not be searched" if count else "all of it was searched"
    return f"# as of {at}: {what}\n"
