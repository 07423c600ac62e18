"""Questions about agents, API keys and quotas to the SQLite store.

Owns these SELECTs. One instance serves one request, in its reader's snapshot.
"""

from __future__ import annotations

from avmfs.access import Access, Policy, Principal, Scope
from avmfs.store.queries.part import Part
from avmfs.store.rows import api_keys as keys
from avmfs.store.rows import usage
from avmfs.store.rows.api_keys import KeyRow
from avmfs.store.rows.stored_policy import policy_in_force
from avmfs.store.rows.usage import Used
from avmfs.store.schema.tables import ROOT


class PeopleReader(Part):
    """One snapshot, one asker. What an agent may do is no secret from others, as its name is none; what it takes up is,
    and so are its keys."""

    def policy(self) -> Policy:
        """What the scopes of this snapshot were folded with."""
        return policy_in_force(self._db)

    def used(self, agent: str) -> Used | None:
        """What the asker (the operator: any agent) takes up; None of others, while nothing is counted, and for an API
        key, which may be for a part of it."""
        itself = agent == self._who.name and self._who.key is None
        return usage.used_by(self._db, agent) if self._who.operator or itself else None

    def miscounted(self) -> list[str]:
        """Counters that a recount contradicts, a line each; whose and how is for the operator alone."""
        found = usage.wrong(self._db)
        return found if self._who.operator else ["an agent is charged for something else than it has"] * len(found)

    def api_keys(self) -> list[KeyRow]:
        """The asker's API keys, the operator's view: everybody's. The newest first."""
        found = keys.rows(self._db, None if self._who.operator else self._who.name)
        return [row for row in found if self._who.key is None or row.id == self._who.key.id]

    def shown(self, key: str) -> Principal:
        """Whom an API key that somebody shows speaks for. Raises Denied when for nobody."""
        return keys.shown(self._db, key, self._now)

    def access(self, agent: str, parts: tuple[bytes, ...]) -> Access:
        """What an agent may do with a path. Of what the asker does not see it tells what place and rules alone say,
        whether there is anything or not."""
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
