"""The product behind an evaluator's adapter, through a mount: a daemon of its own, and answers read as files.

    python evaluate.py --adapter benchmarks/mount_adapter.py --data DATA --scopes ONE --limit 40

Owns how a question is put into a view's name. The store is filled as avm_adapter does it (same variables), before the
daemon starts. `AVM_BENCH_COMPARE=1` asks the Python API of a door beside the mount too, and ends the run at the first
answer that differs: what it measures is then what avm_adapter measures.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import avm_adapter  # isort: skip  (it says where the product lies)
from avmfs import AVM
from benchmarks.daemons import Daemon, agents, temporary_daemon

READER = "reader"  # avm_adapter's agent
READY_WITHIN_S = 120.0
_HIT = re.compile(r"^\[[01]\.\d\d\] (/.*)$", re.MULTILINE)


class Differs(AssertionError):
    """Mount and door gave different answers."""


def view(name: str, question: str, **parameters: int) -> str:
    """The name of a view at the root with its query, written so that any question is one file name."""
    quoted = "".join(f"%{ord(sign):02X}" if sign in "%/?&#\0\n" else sign for sign in question)
    return f":{name}?q={quoted}" + "".join(f"&{key}={value}" for key, value in parameters.items())


class Adapter:
    """See the evaluator: ingest() starts from an empty store every time."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._mount = Path()
        self._door: AVM | None = None
        self.ids: dict[str, str] = {}

    def ingest(self, memories: list[dict[str, Any]]) -> None:
        self.close()
        filled = avm_adapter.Adapter()

        def stock(database: Path) -> None:
            filled.ingest(memories, database)
            filled.close()

        daemon = self._open.enter_context(
            temporary_daemon(Path(tempfile.gettempdir()), agents(READER), {}, stock=stock)
        )
        self.ids = filled.ids
        self._mount = daemon.mountpoints[READER]
        _until_embedding(daemon)
        if os.environ.get("AVM_BENCH_COMPARE"):
            self._door = self._open.enter_context(AVM(agent=READER, environ=dict(daemon.environment)))

    def recall(self, query: str, max_tokens: int) -> str:
        found = (self._mount / view("recall", query, max_tokens=max_tokens)).read_text("utf-8")
        if self._door is not None:
            said = self._door.agent_memory().recall(query, max_tokens=max_tokens)
            if said != found and not (said == "" and found.startswith("(")):
                raise Differs(f"{query!r} in {max_tokens} tokens:\n--- mount\n{found}\n--- door\n{said}")
        return found

    def search(self, query: str, k: int) -> list[str]:
        found = _HIT.findall((self._mount / view("search", query, limit=k)).read_text("utf-8"))
        if self._door is not None and found != [hit["path"] for hit in self._door.search(query, limit=k)]:
            raise Differs(f"{query!r}: the order of search")
        return [self.ids[path] for path in found]

    def close(self) -> None:
        self._door = None
        self._open.close()


def _until_embedding(daemon: Daemon) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    while True:
        status = daemon.status()
        if status.get("embedding", {}).get("state") == "ready" and status["index"]["state"] == "ready":
            return
        if time.monotonic() > give_up:
            raise TimeoutError(f"no model or no index after {READY_WITHIN_S:g} s: {status}")
        time.sleep(0.2)
