"""What has changed behind an agent's back: files that it has marked as read and that are newer now.

Owns the one query, for ``reader.pending``. Only what the asker may see, and only of its own marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from avmfs.store.queries.part import Part
from avmfs.store.rows.nodes import SEEN_JOINED as _SEEN

# A creator's mark is in the document's row. cross: from the asker's marks outwards, however many documents there are.
_NEWEST: Final = """cross join node on node.id = document.node
  cross join version on version.document = document.id and version.number = head"""
_BEHIND: Final = f"""
select node.id, document.handle, mark.version, head, author, version.at, version.seq as seq, document.id as document
  from mark indexed by marked cross join document on document.id = mark.subject {_NEWEST}
  where agent = :agent and head > mark.version and {_SEEN}
union all
select node.id, document.handle, read, head, author, version.at, version.seq, document.id
  from document indexed by document_behind {_NEWEST}
  where creator = :agent and read < head and {_SEEN}
order by seq desc, document limit :limit"""


@dataclass(frozen=True, slots=True)
class Behind:
    """A file of which the asker has read version ``read``, and ``version``, of ``author`` at ``at`` (ns), is the
    newest."""

    node: int
    handle: str
    read: int
    version: int
    author: str
    at: int


class PendingReader(Part):
    def files(self, limit: int) -> list[Behind]:
        """Marked files with a newer version, the newest change first."""
        rows = self._all(_BEHIND, scopes=self._visible.searched()[1], limit=limit)
        return [Behind(*row[:-2]) for row in rows]

    def directories(self, limit: int) -> list[tuple[int, int]]:
        """Marked directories: (node, the seq that is marked), the latest mark first."""
        return self._all(
            "select node.id, mark.seq from mark indexed by marked cross join node on node.id = mark.subject"
            f" where mark.agent = :agent and node.kind = 2 and {_SEEN} order by mark.seq desc, node.id limit :limit",
            scopes=self._visible.searched()[1],
            limit=limit,
        )
