"""Which rules the writer has: bringing it others, and what it says to that.

Called by the supervisor's loop alone. Rules live in the writer, which folds them into scopes; a process of it begins
with those of its spec, and takes others between two transactions. One that hangs may take them late, or not at all:
then those of before are sent after them, so that in the end it has what the configuration in force says.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

from avmfs_config import Settings

from avmfs_daemon.child import Child
from avmfs_daemon.child_spec import rules_message

log = logging.getLogger(__name__)

RULES_S: Final = 20.0


class WriterRules:
    """`problem`: why it may have others than those in force."""

    def __init__(self, writer: Child) -> None:
        self.problem = ""
        self._writer = writer
        self._numbers = itertools.count(1)
        self._awaited: int | None = None  # what was sent last, until the writer has said whether it takes them
        self._wanted: dict[str, Any] = {}
        self._given: dict[str, Any] = {}  # what its process began with, or has taken since; empty: not known
        self._refused = ""

    def begin(self, settings: Settings) -> None:
        """A process is about to start, with these."""
        self._given = rules_message(settings)

    def change(
        self, before: Settings, settings: Settings, turn_until: Callable[[Callable[[], bool], float], bool]
    ) -> str:
        """Return why it goes on with those of before; empty where it does not, or is not there to say."""
        if rules_message(settings) == rules_message(before) and not self.problem:
            return ""
        self._tell(settings)
        if turn_until(lambda: self._awaited is None, RULES_S):
            if not (refused := self._refused):
                self.problem = ""
            elif self.problem:  # nor has it said yet that it has those of before
                self._tell(before)
            return refused
        if self._writer.current is None or self._given == self._wanted:  # it will begin with them
            return ""
        self._tell(before)
        self.problem = f"the writer has not confirmed its rules within {RULES_S:g} s"
        return self.problem

    def heard(self, message: dict[Any, Any]) -> None:
        """It is ready, or takes what it was sent, or says why not."""
        if "rules" in message and not message.get("refused"):
            self._given = self._wanted if message["rules"] == self._awaited else {}
        if "ready" in message and self._awaited is not None and self._given != self._wanted:
            self._send()  # what its predecessor was sent, or it before it could hear
        elif "ready" in message or message["rules"] == self._awaited:
            self._awaited, self._refused = None, str(message.get("refused", ""))
            if self.problem:
                self.problem = self._refused and f"the writer has not gone back to the rules in force: {self._refused}"
                log.warning("%s", self.problem or "the writer has the rules in force")

    def _tell(self, settings: Settings) -> None:
        self._wanted, self._refused = rules_message(settings), ""
        self._send()

    def _send(self) -> None:
        self._awaited = next(self._numbers)
        if self._writer.current is not None:
            self._writer.current.stream.tell({"rules": self._wanted, "number": self._awaited})
