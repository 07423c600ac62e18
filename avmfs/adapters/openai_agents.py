"""``AvmSession``: a session of the OpenAI Agents SDK, kept as a file of one agent's memory.

Owns that file: the conversation's items, a line of JSON each. It is a ``Session`` by its methods and imports nothing of
the SDK (``avmfs[openai-agents]`` brings that). Called by the SDK's runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
from typing import Any

from avmfs.adapters import as_json, file_name
from avmfs.avm import AVM
from avmfs.errors import Invalid, NotFound, Stale
from avmfs.transfer.importing import PIECE, laid_beside


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
        items = [self._item(line) for line in _lines(await asyncio.to_thread(self._read))]
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

    def _read(self) -> bytes:
        try:
            return self._avm.read_bytes(self._path)
        except FileNotFoundError:
            return b""

    def _item(self, line: bytes) -> Any:
        try:
            return json.loads(line.decode("utf-8", "surrogateescape"))
        except ValueError as e:
            raise Invalid(f"not JSON: {e}", self._path) from None

    def _pop(self) -> Any | None:
        while lines := _lines(data := self._read()):
            item, left = self._item(lines[-1]), b"".join(line + b"\n" for line in lines[:-1])
            with contextlib.suppress(Stale, NotFound):  # another has added or popped meanwhile, or begun anew
                self._replace(left, hashlib.sha256(data).digest())
                return item
        return None

    def _replace(self, left: bytes, instead_of: bytes) -> None:
        """What is too large for one call is laid beside, for the same readers, and comes in one step all the same."""
        door = self._avm._door
        if len(left) <= PIECE:
            door.call("write", path=self._path, data=left, instead_of=instead_of)
            return
        [was] = door.call("records", path=self._path)["records"]
        kept = {name: was[name] for name in ("mode", "shared", "sources")}
        beside = f"{self._path.rpartition('/')[0]}/.{secrets.token_hex(16)}"
        with laid_beside(door, beside, left, self._path, kept):
            door.call("move", source=beside, target=self._path, instead_of=instead_of)


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")[:-1]
