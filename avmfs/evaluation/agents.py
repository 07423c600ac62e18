"""Agents to be evaluated: a model, or the offline reader, with its conversation and, where wished, a memory in avmfs.

The memory is one store for a whole run, in which every scenario's agent has a private space of its own; what was
injected to press an agent is kept once, for all. Nothing here is the user's own store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

from avmfs.avm import AVM
from avmfs.evaluation.models import ChatModel, Endpoint, Reply
from avmfs.text.tokens import TokenCounter

SYSTEM: Final = "You are a helpful assistant. Use what you remember from our conversation to answer."
WINDOW_TOKENS, RECALL_TOKENS = 128_000, 500
FRAME_TOKENS = 4  # what a chat format lays around a message
_QUESTION: Final = ("?", "？")


def own_store(folder: Path, agent: str) -> AVM:
    """A new store in ``folder``, with the default model and nothing of the user's configuration; to be closed."""
    config = folder / "config.yaml"
    config.write_text("{}\n")
    return AVM(folder / "avm.db", config=config, agent=agent)


def factory(
    model: ChatModel, store: AVM | None, counter: TokenCounter, window: int = WINDOW_TOKENS
) -> Callable[[], ConversingAgent]:
    """Agents of one run. ``store``: where they remember; None: they have their conversation alone. ``window``: all that
    the model is sent and answers, in tokens; of the reader, which has no limit, the conversation."""
    numbers = itertools.count(1)
    kept: set[str] = set()
    return lambda: ConversingAgent(model, store, f"subject-{next(numbers)}", kept, counter, window)


class ConversingAgent:
    """Keeps its conversation, the newest that fits its window."""

    def __init__(
        self, model: ChatModel, store: AVM | None, name: str, kept: set[str], counter: TokenCounter, window: int
    ) -> None:
        self._model, self._counter, self._kept, self._window = model, counter, kept, window
        self._memory = store.agent_memory(name) if store is not None else None
        self._turns: list[tuple[str, str]] = []

    def respond(self, text: str) -> str:
        recalls = isinstance(self._model, Endpoint) or text.endswith(_QUESTION)
        recalled = self._memory.recall(text, max_tokens=RECALL_TOKENS) if self._memory is not None and recalls else ""
        reply = self._reply(text, recalled).text
        self._turns += [("user", text), ("assistant", reply)]
        if self._memory is not None and not text.endswith(_QUESTION):
            self._memory.remember(text)
        return reply

    def inject(self, text: str, reply: str) -> None:
        self._turns += [("user", text), ("assistant", reply)]
        if self._memory is not None and text not in self._kept:
            self._memory.remember(text, namespace="shared")
            self._kept.add(text)

    def reset_session(self) -> None:
        self._turns.clear()

    def _reply(self, text: str, recalled: str) -> Reply:
        if isinstance(self._model, Endpoint):
            said = f"What you remember:\n{recalled}\n\n{text}" if recalled else text
            taken = self._tokens(SYSTEM, said) + FRAME_TOKENS + self._model.max_tokens
            return self._model.reply([*self._in_window(taken), ("user", said)], SYSTEM)
        if not text.endswith(_QUESTION):
            return Reply("Noted.", 0, 0)
        turns = self._in_window(0)
        return self._model.ask("\n".join([recalled, *(said for role, said in turns if role == "user")]), text)

    def _in_window(self, taken: int) -> list[tuple[str, str]]:
        """The newest that fit beside ``taken`` tokens, from a turn of the user on: chat templates refuse another
        beginning."""
        room = self._window - taken
        for at in range(len(self._turns) - 2, -1, -2):
            room -= self._tokens(*(said for _, said in self._turns[at : at + 2]))
            if room < 0:
                return self._turns[at + 2 :]
        return self._turns

    def _tokens(self, *texts: str) -> int:
        return sum(self._counter.count(text) + FRAME_TOKENS for text in texts)
