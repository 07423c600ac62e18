"""What a store answers about who knows what: the part of ``protocol.store`` that discovery needs.

Owns the Protocol of a Reader's ``discovery`` and the values in its answers. Nothing that the asker may not learn ever
leaves it: of what it cannot see, only what the owner's privacy mode allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Privacy = Literal["full", "owner", "existence", "none"]
PRIVACY: Final = ("full", "owner", "existence", "none")
NOBODY: Final = "none"  # the mode of whoever has said nothing


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document about a topic that the asker can see, and an agent that made it or wrote it last."""

    agent: str
    key: str
    name: str
    document: int
    node: int
    modified: int
    handle: str


@dataclass(frozen=True, slots=True)
class Revealed:
    """That an agent knows of what the asker cannot see. ``agent`` None: somebody. ``topics``: (name, documents), empty
    unless the agent's mode is full."""

    agent: str | None
    topics: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """A Bloom digest; ``agent`` "" is of those who stay unnamed, ``bits`` b"" of who has withdrawn it."""

    host: str
    agent: str
    version: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class Host:
    """A store whose digests are known. ``version``: all of its digests up to it; ``alive``: ns, by its own clock."""

    host: str
    name: str
    version: int
    alive: int
    own: bool


class DiscoveryReader(Protocol):
    """``keys`` are topics as index terms with blanks between."""

    def evidence(self, keys: Sequence[str]) -> list[Evidence]:
        """Of all visible documents about any of the topics."""
        ...

    def revealed(self, keys: Sequence[str]) -> list[Revealed]:
        """What the owners of documents that the asker cannot see let be learnt; named ones in order of name, then at
        most one of somebody. Nothing for an operator, who sees everything."""
        ...

    def privacy(self, agent: str) -> Privacy:
        """Raises Denied unless it is the asker's own or the asker is an operator."""
        ...

    def hosts(self) -> list[Host]: ...
    def digests(self, host: str | None = None, after: int = 0, limit: int = -1) -> list[Digest]:
        """In order of version within a host."""
        ...

    def digest_state(self) -> int:
        """The same number for as long as no digest has changed."""
        ...

    def topics_state(self) -> tuple[int, int]:
        """The same for as long as ``known_to_all`` gives the same, but for what expires. For housekeeping."""
        ...

    def known_to_all(self) -> Iterator[tuple[str, str]]:
        """(agent, key) of all that everybody may learn, in order of agent; "" for those who stay unnamed. For
        housekeeping: raises Denied unless the asker is an operator."""
        ...
