"""How much one asker may see below a directory: files, bytes, versions, tags, links, what waits to be indexed.

Owns these SELECTs. Called by the reader, in its snapshot. Each walks directories alone and looks at every entry once;
what a store has none of (links, tags, a queue) costs nothing. Nothing invisible is counted, and no version that is
veiled from the asker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import apsw

from avmfs.node import Kind
from avmfs.store.rows import version_visibility
from avmfs.store.rows.nodes import SEEN_JOINED as _SEEN

# "cross" is an order to SQLite: from the directories outwards, however many other nodes there are. The kind is a
# literal: so it is the index of directories that is read.
_DIRECTORIES: Final = f"""with recursive directory(id) as (
  select id from node where id = :under
  union all
  select node.id from directory cross join node on node.parent = directory.id
  where node.kind = {int(Kind.DIRECTORY)} and {_SEEN}
)"""
_ENTRIES: Final = f"from directory cross join node on node.parent = directory.id and {_SEEN}"
_VERSIONS: Final = "(select count(*) from version where version.document = node.document)"
_VEILS: Final = f"""{_DIRECTORIES} select veil.document, before, veil.scope, {version_visibility.PLACE} {_ENTRIES}
  cross join veil on veil.document = node.document order by before"""
_VEILED: Final = """select count(*) from json_each(?) as oldest
  cross join version on document = cast(key as integer) and number < oldest.value"""
_LINKS: Final = f"""{_DIRECTORIES}, seen(id, document) as materialized (select node.id, node.document {_ENTRIES})
  select count(*) from seen cross join link on link.source = seen.document
  cross join document on document.id = link.target where document.node in (select id from seen)"""
_TAGS: Final = f"""{_DIRECTORIES} select tag, count(*) {_ENTRIES} cross join tag on tag.document = node.document
  group by tag order by count(*) desc, tag"""

_BELOW: Final = f"""with recursive directory(id, top) as (
  select id, name from node where parent = :under and kind = {int(Kind.DIRECTORY)} and {_SEEN}
  union all
  select node.id, directory.top from directory cross join node on node.parent = directory.id
  where node.kind = {int(Kind.DIRECTORY)} and {_SEEN}
)
select top, count(*) {_ENTRIES} where node.kind = {int(Kind.FILE)}
  group by top order by count(*) desc, top limit :limit"""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one agent may see below a directory. ``tags``: how many files have each, the most frequent first."""

    files: int
    directories: int
    symlinks: int
    bytes: int
    versions: int
    tags: tuple[tuple[str, int], ...]
    links: int
    waiting_lexical: int
    waiting_semantic: int


def counts(db: apsw.Connection, under: int, scopes: str, now: int, saw: Callable[[int, bytes], bool]) -> Counts:
    """Below the directory ``under``, which the asker may see, in the scopes that these are (a JSON array). ``saw``: may
    the asker be told of what was in a scope, at a path?"""
    bound = {"under": under, "scopes": scopes, "now": now}

    def waiting(*queues: str) -> str:
        waits = (
            f"exists (select 1 from {queue} where document = node.document)" for queue in queues if _any(db, queue)
        )
        return f"sum({' or '.join(waits) or '0'})"

    figures = (
        *(f"count(*) filter (where node.kind = {int(kind)})" for kind in (Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK)),
        "sum(node.size)",
        f"sum({_VERSIONS})",
        waiting("lexical_queue"),
        waiting("lexical_queue", "semantic_queue"),
    )
    [row] = db.execute(f"{_DIRECTORIES} select {', '.join(figures)} {_ENTRIES}", bound)
    files, directories, symlinks, size, versions, lexical, semantic = (figure or 0 for figure in row)
    if _any(db, "veil"):
        oldest = {document: before for document, before, *was in db.execute(_VEILS, bound) if not saw(*was)}
        versions -= db.execute(_VEILED, (json.dumps(oldest),)).get
    links = db.execute(_LINKS, bound).get if _any(db, "link") else 0
    tags = tag_counts(db, under, scopes, now)
    return Counts(files, directories, symlinks, size, versions, tuple(tags), links, lexical, semantic)


def tag_counts(db: apsw.Connection, under: int, scopes: str, now: int) -> list[tuple[str, int]]:
    """Tags and how many files have each, the most frequent first."""
    if not _any(db, "tag"):
        return []
    found: list[Any] = db.execute(_TAGS, {"under": under, "scopes": scopes, "now": now}).fetchall()
    return found


def file_counts(db: apsw.Connection, under: int, scopes: str, now: int, limit: int) -> list[tuple[bytes, int]]:
    """Directories in ``under`` and how many files there are below each, those with the most first."""
    bound = {"under": under, "scopes": scopes, "now": now, "limit": limit}
    return [(bytes(name), count) for name, count in db.execute(_BELOW, bound)]


def stand_until(db: apsw.Connection, now: int) -> int | None:
    """When the next node expires: until then what was counted ``now`` stands, unless something is committed."""
    found: int | None = db.execute("select min(expires) from node where expires > ?", (now,)).get
    return found


def _any(db: apsw.Connection, table: str) -> bool:
    return db.execute(f"select 1 from {table} limit 1").get is not None
