"""``AsyncAVM``: the Python API for programs with an event loop.

Owns that no call of it blocks the loop: each runs in a thread. What the methods are and do is ``AVM``'s alone.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from avmfs.api.agent_memory import AgentMemory
from avmfs.avm import AVM


class Asynchronous:
    """Every public method of an object as a coroutine, run in a thread; other attributes as they are."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._of, name)
        return _in_thread(found) if callable(found) else found


class AsyncAVM(Asynchronous):
    """``AVM``, each method a coroutine, opened by ``async with``; ``await agent_memory()`` gives an ``AgentMemory``
    likewise. Takes what ``AVM`` takes and raises what it raises. Calls of one are one after the other, so whoever
    waits for mail has another one for that. A call that is cancelled is still carried out.

    >>> async def main() -> str:
    ...     async with AsyncAVM(agent="alice") as avm:
    ...         await avm.write("/shared/plan.md", "Ship on Monday.")
    ...         return str(await avm.read("/shared/plan.md"))
    >>> asyncio.run(main())
    'Ship on Monday.'
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(None)
        self._opened = functools.partial(AVM, *arguments, **named)

    async def __aenter__(self) -> AsyncAVM:
        self._of = await asyncio.to_thread(self._opened)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._of.close)


def _in_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        done = await asyncio.to_thread(method, *arguments, **named)
        return Asynchronous(done) if isinstance(done, AgentMemory) else done

    return call
