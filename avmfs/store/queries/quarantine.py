"""What waits in quarantine: found by nobody until somebody lets it out."""

from __future__ import annotations

import json
from typing import Any

import apsw

from avmfs.node import Node
from avmfs.store.rows.nodes import NODE, node_of
from avmfs.store.rows.scopes import Visible


class QuarantineReader:
    """Questions on the snapshot of a ``Reader``."""

    def __init__(self, db: apsw.Connection, visible: Visible, now: int) -> None:
        self._db, self._visible, self._now = db, visible, now

    def held(self, limit: int) -> tuple[list[Node], int]:
        """The files that were changed last, and how many there are. They have no index of their own: as a rule there
        is no class of them, and nothing is looked through."""
        if not self._visible.held:
            return [], 0
        rows: list[Any] = self._db.execute(
            f"select {NODE}, count(*) over () from node where scope in (select value from json_each(?))"
            " and parent is not null and document is not null and (expires is null or expires > ?)"
            " order by mtime desc, id limit ?",
            (json.dumps(sorted(self._visible.held)), self._now, limit),
        ).fetchall()
        return [node_of(row[:-1]) for row in rows], rows[0][-1] if rows else 0
