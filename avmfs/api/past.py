"""A door to the tree as it was: what ``AVM(at=...)`` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from avmfs.errors import ReadOnly
from avmfs.rpc.client import Door
from avmfs.rpc.reconnect import ReconnectingDoor

_BY_PATH: Final = frozenset(("entries", "history", "links", "listing", "read", "tree", "version"))
_BELOW: Final = frozenset(("recall", "search"))
_ANYWHEN: Final = frozenset(("inbox", "urgent", "user", "warmup"))


class PastDoor:
    """``door``, whose paths are those of then. Raises ReadOnly for all but reading, listing and searching."""

    def __init__(self, door: Door, at: str) -> None:
        self.inner, self._at = door, at
        self.agent, self.urgent = door.agent, door.urgent

    def call(self, method: str, **arguments: Any) -> Any:
        key = "path" if method in _BY_PATH else "under" if method in _BELOW else None
        if key is not None:
            arguments[key] = f"/@{self._at}/{str(arguments.get(key) or '/').lstrip('/')}"
        elif method not in _ANYWHEN:
            raise ReadOnly("the past can only be read, listed and searched")
        return self.inner.call(method, **arguments)

    def close(self) -> None:
        self.inner.close()


class PastConnection(ReconnectingDoor):
    """See ReconnectingDoor."""

    def __init__(self, opener: Callable[[bool], Door], store: str, at: str) -> None:
        self._at = at
        super().__init__(opener, store)

    @property
    def door(self) -> Door:
        return PastDoor(super().door, self._at)
