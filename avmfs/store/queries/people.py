"""Questions about agents, API keys and quotas to the SQLite store: see ``protocol.people``.

Owns these SELECTs. One instance serves one request, in its reader's snapshot.
"""

from __future__ import annotations

import apsw

from avmfs.access import Access, Policy, Principal, Scope
from avmfs.store.rows import api_keys as keys
from avmfs.store.rows import usage
from avmfs.store.rows.api_keys import KeyRow
from avmfs.store.rows.scopes import Visible
from avmfs.store.rows.stored_policy import policy_in_force
from avmfs.store.rows.usage import Used
from avmfs.store.schema.tables import ROOT


class PeopleReader:
    """See protocol_people.PeopleReader."""

    __slots__ = ("_db", "_now", "_visible", "_who")

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible, now: int) -> None:
        self._db, self._who, self._visible, self._now = db, who, visible, now

    def policy(self) -> Policy:
        return policy_in_force(self._db)

    def used(self, agent: str) -> Used | None:
        return usage.used_by(self._db, agent) if self._who.operator or agent == self._who.name else None

    def miscounted(self) -> list[str]:
        found = usage.wrong(self._db)
        return found if self._who.operator else ["an agent is charged for something else than it has"] * len(found)

    def api_keys(self) -> list[KeyRow]:
        found = keys.rows(self._db, None if self._who.operator else self._who.name)
        return [row for row in found if self._who.key is None or row.id == self._who.key.id]

    def shown(self, key: str) -> Principal:
        return keys.shown(self._db, key, self._now)

    def access(self, agent: str, parts: tuple[bytes, ...]) -> Access:
        node: int | None = ROOT
        scope: int | None = self._db.execute("select scope from node where id = ?", (ROOT,)).get
        for name in parts:
            row = self._db.execute(
                "select id, scope, expires from node where parent = ? and name = ?", (node, name)
            ).fetchone()
            node, scope = (
                (row[0], row[1]) if row is not None and (row[2] is None or row[2] > self._now) else (None, None)
            )
            if scope is None or scope not in self._visible:
                return self.policy().scope(parts).of(agent)
        spec = self._db.execute("select spec from scope where id = ?", (scope,)).get
        return Scope.parse(spec).of(agent)
