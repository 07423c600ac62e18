"""What is asked of a store about agents, API keys and quotas: a part of ``protocol.Reader``.

Owns one Protocol. What an agent may do is no secret from others, as its name is none; what it takes up is, and so are
its keys.
"""

from __future__ import annotations

from typing import Protocol

from avmfs.access import Access, Policy, Principal
from avmfs.store.rows.api_keys import KeyRow
from avmfs.store.rows.usage import Used


class PeopleReader(Protocol):
    """One snapshot, one asker."""

    def policy(self) -> Policy:
        """What the scopes of this snapshot were folded with."""
        ...

    def used(self, agent: str) -> Used | None:
        """What the asker (the operator: any agent) takes up; None of others, and while nothing is counted."""
        ...

    def miscounted(self) -> list[str]:
        """Counters that a recount contradicts, a line each; whose and how is for the operator alone."""
        ...

    def api_keys(self) -> list[KeyRow]:
        """The asker's API keys, the operator's view: everybody's. The newest first."""
        ...

    def shown(self, key: str) -> Principal:
        """Whom an API key that somebody shows speaks for. Raises Denied when for nobody."""
        ...

    def access(self, agent: str, parts: tuple[bytes, ...]) -> Access:
        """What an agent may do with a path. Of what the asker does not see it tells what place and rules alone say,
        whether there is anything or not."""
        ...
