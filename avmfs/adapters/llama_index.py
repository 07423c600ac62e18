"""``AvmMemoryBlock``: a block of LlamaIndex's ``Memory`` that recalls from one agent's memory, and remembers.

Owns what is asked (the last messages) and what is kept (messages that leave the short-term memory). Called by programs
that have LlamaIndex (``avmfs[llama-index]``).
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemoryBlock

from avmfs.avm import AVM


class AvmMemoryBlock(BaseMemoryBlock[str]):
    """``Memory.from_defaults(memory_blocks=[AvmMemoryBlock(avm=avm)])``.

    Every prompt gets what the agent's memory has on the last ``asked`` messages, in at most ``max_tokens`` tokens.
    Messages that no longer fit into the short-term memory become a note in ``namespace``: "private", "shared" or a
    directory; with ``accept_short_term_memory`` False nothing does. Raises what ``AVM`` raises.
    """

    name: str = "AvmMemory"
    avm: AVM
    max_tokens: int = 1000
    asked: int = 2
    namespace: str = "private"

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        question = _text(messages[-self.asked :] if messages else [])
        if not question:
            return ""
        return await asyncio.to_thread(self.avm.agent_memory().recall, question, self.max_tokens)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        said = [f"{each.role.value}: {each.content}" for each in messages if each.content]
        if said:
            await asyncio.to_thread(self.avm.agent_memory().remember, "\n".join(said), namespace=self.namespace)


def _text(messages: list[ChatMessage]) -> str:
    return "\n".join(each.content for each in messages if each.content)
