"""The one place of bench_store that knows avmfs: a client of the running daemon's store."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, Protocol


class StoreClient(Protocol):
    """What the workload needs of a store. Each call returns once the write is durable."""

    def create(self, path: str, data: bytes) -> None: ...

    def update(self, path: str, data: bytes) -> None: ...

    def close(self) -> None: ...


class MemoryClient:
    """The public Python API as a StoreClient; owns nothing but the connection inside it."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def create(self, path: str, data: bytes) -> None:
        self._memory.write(path, data)

    def update(self, path: str, data: bytes) -> None:
        self._memory.write(path, data)

    def close(self) -> None:
        # The API promises no close(); the connection ends with the process.
        return


def open_client(env: Mapping[str, str], agent: str) -> StoreClient:
    """Connect to the daemon that the AVM_* variables of `env` name, as `agent`."""
    os.environ.update({name: value for name, value in env.items() if name.startswith("AVM_")})
    avmfs = importlib.import_module("avmfs")  # late: a run without the avmfs variant does without it
    return MemoryClient(avmfs.AVM(agent=agent))
