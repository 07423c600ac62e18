"""AsyncAVM: what AVM does, without blocking the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from avmfs import AVM
from avmfs.aio import AsyncAVM
from tests.cli.shells import Shell


def test_calls_are_coroutines_and_at_once(alone: Shell) -> None:
    async def main() -> tuple[str, str]:
        async with AsyncAVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
            assert avm.agent == "alice"
            await asyncio.gather(*(avm.append("/shared/log.md", f"{number}\n") for number in range(20)))
            memory = await avm.agent_memory()
            await memory.remember("Releases are frozen on Fridays.")
            with pytest.raises(FileNotFoundError):
                await avm.read("/shared/none.md")
            return str(await avm.read("/shared/log.md")), await memory.recall("releases Fridays")

    log, recalled = asyncio.run(main())
    assert sorted(map(int, log.split())) == [*range(20)] and "frozen on Fridays" in recalled


def test_the_loop_goes_on_while_a_call_waits(alone: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(AVM, "stuck", lambda self: go_on.wait(300), raising=False)

    async def main() -> bool:
        async with AsyncAVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
            waiting = asyncio.create_task(avm.stuck())
            await asyncio.sleep(0)  # it has begun; were it in this thread, nothing below would run
            go_on.set()
            return bool(await waiting)

    assert asyncio.run(main())


def test_what_avm_has_not_it_has_not(alone: Shell) -> None:
    async def main() -> None:
        async with AsyncAVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
            with pytest.raises(AttributeError):
                _ = avm.no_such_method
            with pytest.raises(AttributeError):
                _ = avm._door

    asyncio.run(main())
