"""Answers about the past from an index of today: what has the same text now as then, under its path of then.

Called by ``Memory``, for its own instant or, with None, for today, when all is as it is. The reader decides what the
asker may see of then; what could not be searched is said.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Final

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import ReadOnly
from avmfs.node import Moment
from avmfs.search.engine import Answer, Scored
from avmfs.store.store import Store

CANDIDATES: Final = 10  # of today, for each hit that is asked for
MOST: Final = 1000  # files that are counted
REFUSED: Final = "the past cannot be changed"


def refuse(command: str) -> None:
    """Raises ReadOnly for what changes a memory of the past: all but making the words of today."""
    if command != "drain_lexical":
        raise ReadOnly(REFUSED)


def unchanged(
    store: Store, who: Principal, then: Moment | None, found: Answer, under: tuple[bytes, ...], limit: int | None = None
) -> Answer:
    if then is None:
        return found
    hits: list[Scored] = []
    with store.reading_at(who, then) as reader:
        for scored in found.hits:
            path = reader.path_unchanged(scored.hit.node)
            if path is not None and paths.split(path)[: len(under)] == under:
                hits.append(replace(scored, hit=replace(scored.hit, path=path)))
    return replace(found, hits=tuple(hits[:limit]))


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
