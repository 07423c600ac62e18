"""What a reader says of its asker's mail: the seam beside ``protocol.store``.

Nothing here names another agent's mail: every question is about the asker's own, or about what the asker may send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from avmfs.node import Message


@dataclass(frozen=True, slots=True)
class Mailbox:
    """How much there is. ``unread`` holds numbers by priority: urgent, normal, low."""

    messages: int
    unread: dict[str, int]


class MailReader(Protocol):
    def messages(
        self, *, unread_only: bool = False, priority: str | None = None, read: int | None = None
    ) -> list[Message]:
        """The asker's mail: unread first, urgent first, then newest first; of what is read at most ``read`` messages.
        Expired mail is gone."""
        ...

    def counts(self) -> Mailbox: ...
    def unread_of_all(self) -> dict[str, int]:
        """By agent, without low priority. Raises Denied for who is no operator."""
        ...

    def any_unread(self) -> bool: ...
    def refusal(
        self, recipient: str, size: int, re: int | None, *, body_limit: int, unread_limit: int, rate_limit: int
    ) -> None:
        """Raises what sending ``size`` bytes there would raise now."""
        ...
