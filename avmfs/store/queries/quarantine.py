"""What waits in quarantine: found by nobody until somebody lets it out."""

from __future__ import annotations

import json

from avmfs.node import Node
from avmfs.store.queries.part import Part
from avmfs.store.rows.nodes import NODE, node_of
from avmfs.store.rows.nodes import SEEN_JOINED as _SEEN


class QuarantineReader(Part):
    def held(self, limit: int) -> tuple[list[Node], int]:
        """The files that were changed last, and how many there are. They have no index of their own: as a rule there
        is no class of them, and nothing is looked through."""
        if not self._visible.held:
            return [], 0
        rows = self._all(
            f"select {NODE}, count(*) over () from node where {_SEEN} and parent is not null and document is not null"
            " order by mtime desc, id limit :limit",
            scopes=json.dumps(sorted(self._visible.held)),
            limit=limit,
        )
        return [node_of(row[:-1]) for row in rows], rows[0][-1] if rows else 0
