"""What the audit asks of a store: the seam for a second engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from avmfs.store.rows.hash_chain import Anchor, Batch, Row

Subject = tuple[int, int]  # a version: document and number


@dataclass(frozen=True, slots=True)
class Act:
    """A row of the audit as its reader may see it."""

    seq: int
    at: int
    agent: str
    elevated: bool
    route: str
    op: str
    path: bytes
    other: bytes | None
    version: int | None
    about: str | None


class AuditReader(Protocol):
    """``reader.audit``: questions on one snapshot, for one asker. All but ``acts`` are the operator's: they raise
    Denied for anybody else."""

    def acts(
        self,
        *,
        since: int = 0,
        after_seq: int = 0,
        agent: str | None = None,
        path: bytes | None = None,
        limit: int = 100,
    ) -> list[Act]:
        """What the asker did, as itself, and what happened to what it may see; the operator sees everything. Newest
        first; ``since`` in ns, ``path`` is a node's or that of a directory above it."""
        ...

    def refusals_before(self, at: int) -> bool:
        """Return whether there is a window of refusals that began before ``at`` (ns)."""
        ...

    def tip(self) -> Anchor:
        """Up to where the chain reaches."""
        ...

    def start(self) -> Anchor | None:
        """Where it begins when rows were trimmed."""
        ...

    def unchained(self, limit: int) -> list[Row]:
        """The rows that come next."""
        ...

    def batches(self, after: int, limit: int) -> list[Batch]:
        """Of the chain, those that begin after row ``after``."""
        ...

    def rows(self, first: int, last: int) -> list[Row]: ...
    def bounds(self) -> tuple[int | None, int]:
        """The first and the last seq of the log."""
        ...

    def trim_is_told(self, start: Anchor) -> bool:
        """Return whether a later row of the log tells that the rows up to ``start`` were removed."""
        ...

    def altered(self) -> list[str]:
        """What of the schema is not as this version makes it: any trigger, any table of the audit. Their names."""
        ...

    def misattributed(self, kept_from: int, after: Subject, limit: int) -> tuple[list[str], Subject | None]:
        """Of ``limit`` versions behind ``after``, those that the log tells otherwise, a line each, and the last one
        looked at; None: there are no more. Rows before ``kept_from`` were trimmed."""
        ...

    def missent(self, limit: int) -> list[str]:
        """Messages that name another sender than the log does, a line each."""
        ...
