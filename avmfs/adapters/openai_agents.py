"""``AvmSession``: a session of the OpenAI Agents SDK, kept as a file of one agent's memory.

Owns that file: the conversation's items, a line of JSON each. It is a ``Session`` by its methods and imports nothing of
the SDK (``avmfs[openai-agents]`` brings that). Called by the SDK's runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from avmfs.adapters import as_json, file_name
from avmfs.avm import AVM
from avmfs.errors import Invalid, Stale


class AvmSession:
    """The session ``session_id`` in the memory of the agent of ``avm``: ``Runner.run(agent, text, session=…)``.

    ``root`` is a directory, /private/sessions by default. Sessions of one name are one, in whichever process: what is
    added is appended in one piece, and what is popped is popped once. Raises what ``AVM`` raises.
    """

    def __init__(
        self, session_id: str, avm: AVM, root: str = "/private/sessions", *, session_settings: Any = None
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._avm = avm
        self._path = f"{root.rstrip('/')}/{file_name(session_id)}.jsonl"

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The last ``limit`` items, oldest first; without it what the settings say, else all."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        items = [self._item(line) for line in await asyncio.to_thread(self._lines)]
        return items if limit is None else items[max(0, len(items) - limit) :]

    async def add_items(self, items: list[Any]) -> None:
        if items:
            lines = "".join(as_json(item) + "\n" for item in items)
            await asyncio.to_thread(self._avm.append, self._path, lines)

    async def pop_item(self) -> Any | None:
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(self._avm.delete, self._path)

    def _lines(self) -> list[str]:
        try:
            return self._avm.read(self._path).split("\n")[:-1]
        except FileNotFoundError:
            return []

    def _item(self, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as e:
            raise Invalid(f"not JSON: {e}", self._path) from None

    def _pop(self) -> Any | None:
        while True:
            try:
                version = self._avm.history(self._path, limit=1)[0]["version"]
            except FileNotFoundError:
                return None
            lines = self._lines()
            if not lines:
                return None
            item = self._item(lines[-1])
            try:
                self._avm.write(self._path, "".join(line + "\n" for line in lines[:-1]), if_version=version)
            except Stale:  # another has added or popped meanwhile
                continue
            return item
