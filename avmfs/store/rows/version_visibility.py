"""Versions keep the audience that they were written for.

A file that is moved out of a private space, or whose ``:shared`` is widened, is shown as it stands then. What it said
before was written for others: those versions are, for whoever could not see the file at that time, as if no longer
kept. Nothing is noted for a write; a change of scope costs one statement.

Owns the table ``veil``. Called by the commands that change a node's scope, drop a document or forget its past, and by
the readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import apsw

_FORGET = (
    "delete from veil where document in (select value from json_each(?))"
    " and not exists (select 1 from document where id = veil.document)"
    " and not exists (select 1 from past_version where document = veil.document)"
)


def draw(db: apsw.Connection, document: int, scope: int) -> None:
    """The document leaves this scope: all its versions but the newest stay with those who may see it."""
    db.execute(
        "insert or ignore into veil(document, before, scope)"
        " select id, head, ? from document where id = ? and head > 1",
        (scope, document),
    )


def forget(db: apsw.Connection, documents: Iterable[int]) -> None:
    """These have ended, or less of their past is kept: where no version is left, there is none to keep from anybody."""
    db.execute(_FORGET, (json.dumps(list(documents)),))


def oldest_seen(db: apsw.Connection, document: int, visible: str) -> int:
    """The oldest version that somebody who may see these scopes (a JSON array) may read. What lies before one that is
    hidden is hidden, too, so that a history has no holes."""
    found = db.execute(
        "select max(before) from veil where document = ? and scope not in (select value from json_each(?))",
        (document, visible),
    ).get
    return int(found or 0)
