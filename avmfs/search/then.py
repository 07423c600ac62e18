"""Answers about the past from an index of today: what has the same text now as then, under its path of then.

Called by ``Memory``. The reader decides what the asker may see of then; what could not be searched is said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from avmfs import paths
from avmfs.search.engine import Answer, Scored
from avmfs.store.protocol.store import Past

CANDIDATES: Final = 10  # of today, for each hit that is asked for
MOST: Final = 1000  # files that are counted


def unchanged(reader: Past, found: Answer, under: tuple[bytes, ...], limit: int | None) -> Answer:
    hits: list[Scored] = []
    for scored in found.hits:
        path = reader.path_unchanged(scored.hit.node)
        if path is not None and paths.split(path)[: len(under)] == under:
            hits.append(replace(scored, hit=replace(scored.hit, path=path)))
    return replace(found, hits=tuple(hits[:limit]))


def unsearched(reader: Past, at: str) -> str:
    """The first line of an answer."""
    count = reader.changed_since(MOST)
    many = f"{count} or more files" if count == MOST else f"{count} file{'' if count == 1 else 's'}"
    what = f"{many} of then, changed or gone since, could not be searched" if count else "all of it was searched"
    return f"# as of {at}: {what}\n"
