"""avmfs.adapters.llama_index: LlamaIndex recalls what others wrote, and what it drops is kept."""

from __future__ import annotations

import asyncio

import pytest

from avmfs import AVM
from tests.cli.shells import Shell

pytest.importorskip("llama_index.core.memory")

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory

from avmfs.adapters.llama_index import AvmMemoryBlock


def test_a_prompt_gets_what_is_relevant_and_what_is_dropped_is_kept(alone: Shell) -> None:
    async def main(avm: AVM) -> None:
        block = AvmMemoryBlock(avm=avm, max_tokens=200)
        memory = Memory.from_defaults(
            session_id="s", token_limit=60, chat_history_token_ratio=0.5, token_flush_size=10, memory_blocks=[block]
        )
        await memory.aput(ChatMessage(role="user", content="When are releases frozen?"))
        prompt = "".join(str(each.content) for each in await memory.aget())
        assert "Releases are frozen on Fridays" in prompt
        assert await block.aget([]) == "" and await block.aget([ChatMessage(role="user", content="")]) == ""
        for number in range(12):
            await memory.aput(ChatMessage(role="user", content=f"Umbrella number {number} is blue and rather wet."))
        assert "user: Umbrella number 0" in await block.aget([ChatMessage(role="user", content="umbrella number 0")])
        quiet = AvmMemoryBlock(avm=avm, accept_short_term_memory=False)
        await quiet.aput([ChatMessage(role="user", content="a password")], from_short_term_memory=True)
        assert avm.search("password") == []
        await memory.sql_store._async_engine.dispose()

    with AVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
        avm.agent_memory().remember("Releases are frozen on Fridays.", namespace="shared")
        asyncio.run(main(avm))
