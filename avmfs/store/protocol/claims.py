"""What the store tells of claims: who works on which file, and which nobody has taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Claim:
    """``agent`` works on the file, since and until these times (ns)."""

    node: int
    agent: str
    since: int
    until: int


class ClaimsReader(Protocol):
    """Of what the asker sees, and of claims that are not over."""

    def of(self, node: int) -> Claim | None: ...
    def held(self, limit: int) -> list[Claim]:
        """Those that are over last first."""
        ...

    def free(self, parent: int, limit: int) -> list[int]:
        """Files of a directory that nobody has claimed and that the asker may change, in order of mtime: none that is
        empty still or whose name begins with a dot."""
        ...
