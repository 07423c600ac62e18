"""Versions keep the audience that they were written for.

A file that is moved out of a private space, or whose ``:shared`` is widened, is shown as it stands then. What it said
before was written for others: those versions are, for whoever could not see the file at that time, as if no longer
kept. And for whoever may not see any more what was there: readers ask with the rights of today. Where it comes within
more paths of API keys, for the same agents, no more is kept from these keys than was written outside of the paths.
Nothing is noted for a write; a change of scope costs one statement.

Owns the table ``veil``. Called by the commands that change a node's scope, drop a document or forget its past, and by
the readers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Final

import apsw

from avmfs import paths
from avmfs.store.rows.scopes import Visible

# Where the document stood in that scope: where the newest version was written whose row of the log has it, `before` too
# (one before may come from elsewhere, and was shown as the newest); or else the newest that is kept.
PLACE: Final = """coalesce(
  (select path from version cross join log on log.seq = version.seq
   where version.document = veil.document and number <= before and log.scope = veil.scope
   order by number desc limit 1),
  (select path from log where seq = coalesce(
    (select seq from version where version.document = veil.document and number <= before order by number desc limit 1),
    (select since from past_version where past_version.document = veil.document and number <= before
     order by number desc limit 1))), x'')"""
_WRITTEN: Final = """
select number, coalesce(path, x'') from (select number, seq from version where document = ?1
  union all select number, since from past_version where document = ?1) left join log using (seq)
order by number desc"""
_CLASSES: Final = (
    "select scope from veil where document = ?1 and exists (select 1 from version where document = ?1"
    " and number < before union all select 1 from past_version where document = ?1 and number < before)"
)
_FORGET = (
    "delete from veil where document in (select value from json_each(?))"
    " and not exists (select 1 from document where id = veil.document)"
    " and not exists (select 1 from past_version where document = veil.document)"
)


def draw(db: apsw.Connection, document: int, scope: int, before: int = sys.maxsize) -> None:
    """The document leaves this scope: all its versions but the newest, or those below ``before``, stay with those who
    may see it."""
    db.execute(
        "insert or ignore into veil(document, before, scope)"
        " select id, min(head, ?1), ?2 from document where id = ?3 and min(head, ?1) > 1",
        (before, scope, document),
    )


def written_since(db: apsw.Connection, document: int, tops: Iterable[tuple[bytes, ...]]) -> int:
    """From which version on a document was written below each of these places, where it is now."""
    below = list(tops)
    for number, path in db.execute(_WRITTEN, (document,)):
        place = paths.origin(paths.split(path))
        if any(place[: len(top)] != top for top in below):
            return int(number) + 1
    return 0


def forget(db: apsw.Connection, documents: Iterable[int]) -> None:
    """These have ended, or less of their past is kept: where no version is left, there is none to keep from anybody."""
    db.execute(_FORGET, (json.dumps(list(documents)),))


def may_purge_past(db: apsw.Connection, document: int, visible: Visible) -> bool:
    """Return whether versions that are kept may be purged with the document: of each scope that they were written for,
    beside the one that it is in or was last."""
    return all(visible.may_purge_past(scope) for (scope,) in db.execute(_CLASSES, (document,)))


def oldest_seen(db: apsw.Connection, document: int, saw: Callable[[int, bytes], bool]) -> int:
    """The oldest version that somebody may read who may be told of what was in a scope, at a path. What lies before one
    that is hidden is hidden, too, so that a history has no holes."""
    rows = db.execute(f"select before, scope, {PLACE} from veil where document = ? order by before desc", (document,))
    return next((before for before, scope, path in rows if not saw(scope, bytes(path))), 0)
