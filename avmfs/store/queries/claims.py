"""Who works on which file, and which nobody has taken.

Owns these SELECTs, for ``reader.claims``. Only what the asker may see.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from avmfs.node import Kind
from avmfs.store.queries.part import Part
from avmfs.store.rows.claims import OVER
from avmfs.store.rows.nodes import SEEN_JOINED as _SEEN

_CLAIMS: Final = (
    "select node.id, agent, claim.since, until from claim cross join document on document.id = claim.document"
    f" cross join node on node.id = document.node where not {OVER} and parent is not null and {_SEEN}"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """``agent`` works on the file, since and until these times (ns)."""

    node: int
    agent: str
    since: int
    until: int


class ClaimsReader(Part):
    """Of what the asker sees, and of claims that are not over."""

    def of(self, node: int) -> Claim | None:
        found = self._all(f"{_CLAIMS} and claim.document = (select document from node where id = :node)", node=node)
        return Claim(*found[0]) if found else None

    def held(self, limit: int) -> list[Claim]:
        """Those that are over last first, but for those of what is in quarantine."""
        asked = f"{_CLAIMS} order by until desc, node.id limit :limit"
        return [Claim(*row) for row in self._all(asked, scopes=self._visible.told_json, limit=limit)]

    def free(self, parent: int, limit: int) -> list[int]:
        """Files of a directory that nobody has claimed and that the asker may change, in order of mtime: none that is
        empty still, whose name begins with a dot, or that is in quarantine."""
        scopes = [scope for scope in self._visible.told if self._visible.writable(scope)]
        rows = self._all(
            f"select node.id from node left join claim on claim.document = node.document and not {OVER}"
            f" where parent = :parent and kind = {int(Kind.FILE)} and size > 0 and substr(name, 1, 1) <> x'2e'"
            f" and {_SEEN} and claim.document is null order by mtime, name limit :limit",
            scopes=json.dumps(scopes),
            parent=parent,
            limit=limit,
        )
        return [row[0] for row in rows]
