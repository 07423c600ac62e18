"""What the store tells of files and directories that changed behind an agent's back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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


class PendingReader(Protocol):
    def files(self, limit: int) -> list[Behind]:
        """Marked files with a newer version, the newest change first."""
        ...

    def directories(self, limit: int) -> list[tuple[int, int]]:
        """Marked directories: (node, the seq that is marked), the latest mark first."""
        ...
