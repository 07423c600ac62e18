"""avmfs.adapters.openai_agents: a conversation that the SDK's runner keeps in a memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from avmfs import AVM
from avmfs.adapters.openai_agents import AvmSession
from avmfs.errors import Invalid, TooBig
from tests.cli.shells import Shell


@pytest.fixture
def avm(alone: Shell) -> Iterator[AVM]:
    with AVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
        yield avm


def item(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"line\nbreak ☂ \u2028 {number}"}


def test_items_come_back_in_order_the_last_ones_where_there_is_a_limit(avm: AVM) -> None:
    async def main() -> None:
        session = AvmSession("a/b: c?", avm)
        assert await session.get_items() == [] and await session.pop_item() is None
        await session.clear_session()
        await session.add_items([item(0), item(1)])
        await session.add_items([])
        await session.add_items([item(2)])
        assert await AvmSession("a/b: c?", avm).get_items() == [item(0), item(1), item(2)]
        assert await session.get_items(2) == [item(1), item(2)] and await session.get_items(0) == []
        assert await session.get_items(9) == [item(0), item(1), item(2)]
        assert await session.pop_item() == item(2) and await session.get_items() == [item(0), item(1)]
        assert await AvmSession("a", avm).get_items() == []
        half = {"role": "user", "content": "half of a pair: \ud83d"}
        await session.add_items([half])
        assert await session.pop_item() == half
        await session.pop_item()
        await session.pop_item()
        assert await session.pop_item() is None
        await session.add_items([item(3)])
        await session.clear_session()
        assert await session.get_items() == []

    asyncio.run(main())


def test_what_several_pop_and_add_at_once_is_popped_once_and_nothing_is_lost(avm: AVM) -> None:
    session = AvmSession("s", avm)
    asyncio.run(session.add_items([item(number) for number in range(12)]))
    popped: list[Any] = []

    def take(base: int) -> None:
        for number in range(3):
            popped.append(asyncio.run(session.pop_item()))
            asyncio.run(session.add_items([item(base + number)]))

    threads = [threading.Thread(target=take, args=(base,)) for base in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = asyncio.run(session.get_items())
    written = [item(number) for number in (*range(12), *(base + n for base in (100, 200, 300) for n in range(3)))]
    assert len(left) == 12 and sorted(map(str, popped + left)) == sorted(map(str, written))


def test_what_is_popped_is_of_the_conversation_that_was_begun_anew(avm: AVM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose file has the version of the one before."""
    session, other = AvmSession("s", avm), AvmSession("s", avm)
    asyncio.run(session.add_items([item(0), item(1)]))
    read = avm.read_bytes

    def begun_anew(path: str) -> bytes:
        monkeypatch.undo()
        data = read(path)
        asyncio.run(other.clear_session())
        asyncio.run(other.add_items([item(2), item(3)]))
        return data

    monkeypatch.setattr(avm, "read_bytes", begun_anew)
    assert asyncio.run(session.pop_item()) == item(3)
    assert asyncio.run(session.get_items()) == [item(2)]


def test_the_last_item_of_a_session_that_no_call_takes_whole_is_popped(
    avm: AVM, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("avmfs.adapters.openai_agents", "avmfs.transfer.importing"):
        monkeypatch.setattr(f"{name}.PIECE", 1000)
    session, path, call = AvmSession("s", avm, "/shared/talk"), "/memory/shared/talk/s.jsonl", avm._door.call
    came = 0

    def limited(method: str, /, **arguments: Any) -> Any:
        nonlocal came
        pieces = [arguments, *arguments.get("items", ())]
        if any(len(each.get("data", b"")) > 1000 for each in pieces):
            raise TooBig("more than a call takes")
        if method == "move":
            assert call("records", path=arguments["source"])["records"][0]["shared"] == ["alice"]
            came += 1
            if came == 1:
                call("write", path=path, data=b'"another"\n', mode="append")
        return call(method, **arguments)

    for number in range(60):
        asyncio.run(session.add_items([item(number)]))
    avm.write(f"{path}:tags", "kept")
    avm.write(f"{path}:shared", "alice")
    monkeypatch.setattr(avm._door, "call", limited)
    assert asyncio.run(session.pop_item()) == "another" and came == 2
    assert asyncio.run(session.pop_item()) == item(59)
    assert asyncio.run(session.get_items()) == [item(number) for number in range(59)]
    assert [each["name"] for each in avm.list("/shared/talk")] == ["s.jsonl"]
    assert "kept" in avm.read(f"{path}:tags") and "alice" in avm.read(f"{path}:shared")


def test_a_line_that_is_no_json_is_named(avm: AVM) -> None:
    session = AvmSession("s", avm, "/shared/talk")
    avm.write("/shared/talk/s.jsonl", "by hand\n")
    with pytest.raises(Invalid, match=r"s\.jsonl"):
        asyncio.run(session.get_items())


def test_the_runner_goes_on_with_a_session_of_another_process(avm: AVM, monkeypatch: pytest.MonkeyPatch) -> None:
    agents: Any = pytest.importorskip("agents")
    from agents.memory import Session, SessionSettings
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    agents.set_tracing_disabled(True)

    class Echo(agents.Model):
        async def get_response(self, system_instructions: Any, input: Any, *given: Any, **named: Any) -> Any:
            said = [each["content"] for each in input if each.get("role") == "user"]
            text = ResponseOutputText(text=f"you said {said}", type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
            return agents.ModelResponse(output=[message], usage=agents.Usage(), response_id=None)

        def stream_response(self, *given: Any, **named: Any) -> Any:
            raise NotImplementedError

    agent = agents.Agent(name="echo", model=Echo())
    assert isinstance(AvmSession("talk", avm), Session)

    async def main() -> None:
        for said, heard in (("one", "['one']"), ("two", "['one', 'two']")):
            answer = await agents.Runner.run(agent, said, session=AvmSession("talk", avm))
            assert answer.final_output == f"you said {heard}"
        few = AvmSession("talk", avm, session_settings=SessionSettings(limit=1))
        assert len(await few.get_items()) == 1
        assert (await agents.Runner.run(agent, "three", session=few)).final_output == "you said ['three']"

    asyncio.run(main())
    assert "you said" in avm.read("/memory/private/alice/sessions/talk.jsonl")
