"""Caches that stay small: ``LRU`` drops what was asked for longest ago, ``FIFO`` what was put there first.

Owns the order of what is remembered and the sum of its sizes. Knows nothing of what that is, nor when it stops being
true: whoever remembers it does. An LRU has no lock of its own, since its users guard more than one call: one thread at
a time. A FIFO is for any threads: each of its steps is one of a dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LRU(Generic[_Key, _Value]):
    """Values by key, of at most ``most`` together as ``size`` says of each; without one it is a number of values.
    What alone is larger is not remembered. ``gone`` hears of every value that is remembered no longer, but for
    ``clear``."""

    def __init__(
        self, most: int, size: Callable[[_Value], int] = lambda _: 1, gone: Callable[[_Value], None] = lambda _: None
    ) -> None:
        self._most = most
        self._size_of = size
        self._gone = gone
        self._values: OrderedDict[_Key, _Value] = OrderedDict()  # the one asked for last at the end
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: _Key) -> bool:
        return key in self._values

    def get(self, key: _Key) -> _Value | None:
        """None where nothing is remembered. What is, has now been asked for last."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        """Remember it, as if it had been asked for, in place of what was remembered under this key."""
        self.drop(key)
        size = self._size_of(value)
        if size > self._most:
            return
        self._values[key] = value
        self.size += size
        while self.size > self._most:
            self.drop(next(iter(self._values)))

    def drop(self, key: _Key) -> None:
        """Forget it, if it is remembered."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= self._size_of(value)
            self._gone(value)

    def clear(self) -> None:
        self._values.clear()
        self.size = 0


class FIFO(dict[_Key, _Value]):
    """A dict of at most ``most`` values, for where a lookup must not cost more than a dict's: it does not say what was
    asked for last. Those that were put there first go, an eighth at a time."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: _Key, value: _Value) -> None:
        """Remember it. What stood under this key keeps its place in the order."""
        if len(self) >= self._most and key not in self:
            for first in tuple(self)[: 1 + self._most // 8]:
                self.pop(first, None)
        self[key] = value
