"""What has changed behind an agent's back: files that it has marked as read and that are newer now.

Owns these queries, for ``reader.pending``. Only what the asker may see, and only of its own marks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

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
_IN_SIGHT: Final = "+scope in (select value from json_each(:scopes))"
# The newest time that a directory came to where it is with a move of its own or of one above: these are the rows that
# are of such a path, since directories are made by mkdir.
_CAME: Final = f"""
select seq, at, op, node, path, other from log where seq > :after and seq < :before and op in ('create', 'rename')
  and substr(:place, 1, length(path) + 1) = cast(path || '/' as blob) and path <> x'' and {_IN_SIGHT}
  order by seq desc limit 1"""
# From where, in its request: who lost sight of the old place has a removal, of two that changed places the other one
# came from there.
_WENT: Final = f"""
select path from log where seq > :after and at = :at and {_IN_SIGHT} and case :op when 'create'
  then op = 'remove' and node = :node and seq < :seq else op = 'rename' and other is null and node <> :node end
  order by abs(seq - :seq) limit 1"""


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

    def places(self, path: bytes, after: int) -> list[tuple[int, bytes]]:
        """Where the directory that is now at ``path`` has stood since the change ``after``, before it came there, as
        far as the asker could see it: (up to which change, path), in order."""
        found: list[tuple[int, bytes]] = []
        bound: dict[str, Any] = {"scopes": self._visible.told_json, "after": after}
        before = sys.maxsize
        while rows := self._all(_CAME, place=path + b"/", before=before, **bound):
            before, at, op, node, there, was = rows[0]
            if was is None:
                went = self._all(_WENT, at=at, op=op, node=node, seq=before, **bound)
                if not went:
                    break
                was = went[0][0]
            path = bytes(was) + path[len(there) :]
            found.append((before, path))
        return found[::-1]

    def directories(self, limit: int) -> list[tuple[int, int]]:
        """Marked directories: (node, the seq that is marked), the latest mark first."""
        return self._all(
            "select node.id, mark.seq from mark indexed by marked cross join node on node.id = mark.subject"
            f" where mark.agent = :agent and node.kind = 2 and {_SEEN} order by mark.seq desc, node.id limit :limit",
            scopes=self._visible.searched()[1],
            limit=limit,
        )
