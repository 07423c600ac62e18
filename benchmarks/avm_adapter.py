"""The product behind the shared evaluator's adapter: memories in by remember(), answers out by recall() and search().

Owns how a data set's memory becomes a note: a session is a directory, its time is when it was made, who said it stands
before the text, as in any chat log. Knows nothing of questions. Used by benchmarks/recall_quality.py and by any
evaluator that takes an adapter file. Environment:

  AVM_BENCH_VECTORS   a file in which vectors of texts are kept between runs (they are the dear part of ingesting)
  AVM_BENCH_CONFIG    a config.yaml
  AVM_BENCH_PLAIN     1: leave out what surrounds a memory (one directory, no times, no speakers)
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

os.environ.setdefault("TZ", "UTC")
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "daemon"), str(_ROOT / "config")]

from avmfs import AVM  # noqa: E402
from avmfs.embed import engines, knowledge  # noqa: E402
from avmfs.embed.local import LocalEmbedding  # noqa: E402
from avmfs.embed.protocol import Batch, Embedder  # noqa: E402
from avmfs.memory import Memory  # noqa: E402
from avmfs.rpc import local  # noqa: E402

_WEIGH = knowledge.weigh


class KeptVectors(LocalEmbedding):
    """The local model, with a file of what it has computed before. The same vectors, bit for bit."""

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        with sqlite3.connect(os.environ["AVM_BENCH_VECTORS"], timeout=60) as db:
            db.execute("create table if not exists kept(key blob primary key, data blob) without rowid")
            kind = f"{self.model_id} {urgent} {knowledge.weigh is _WEIGH}"  # what a model does not know is made short
            keys = [hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).digest() for text in texts]
            found: dict[bytes, bytes] = {}
            for key in keys:
                row = db.execute("select data from kept where key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = row[0]
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
            if missing:
                fresh = super().embed_batch(list(missing.values()), urgent=urgent)
                made = {key: vector.astype("<f4").tobytes() for key, vector in zip(missing, fresh.vectors, strict=True)}
                db.executemany("insert or replace into kept values(?, ?)", made.items())
                found |= made
        return Batch(self.model_id, np.stack([np.frombuffer(found[key], "<f4") for key in keys]))


def note(memory: dict[str, Any]) -> str:
    speaker = memory.get("speaker")
    return f"{speaker}: {memory['text']}" if speaker else str(memory["text"])


def place(memory: dict[str, Any]) -> str:
    session = str(memory.get("session") or memory["scope"])
    return f"/memory/shared/{session}/{int(memory['seq']):05}.md"


def nanoseconds(date: str | None) -> int | None:
    if not date:
        return None
    at = datetime.fromisoformat(date)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 10**9


class Adapter:
    """See the evaluator: ingest() starts from an empty store every time."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._avm: AVM | None = None
        self.ids: dict[str, str] = {}  # path: id
        atexit.register(self.close)  # not every evaluator closes its last store
        if os.environ.get("AVM_BENCH_VECTORS"):
            engines.LocalEmbedding = KeptVectors  # type: ignore[attr-defined]  # where a door looks for it

    def ingest(self, memories: list[dict[str, Any]], database: Path | None = None) -> None:
        """Into ``database``, or one that goes with this adapter."""
        self.close()
        if database is None:
            self._folder = Path(tempfile.mkdtemp(prefix="avm-bench-"))
            database = self._folder / "avm.db"
        config = os.environ.get("AVM_BENCH_CONFIG")
        self._avm = AVM(db=database, config=config, agent="reader")
        self.ids = {}
        for one in memories:
            self.remembered(one)
        self.caught_up()

    def caught_up(self) -> None:
        """Make the words and vectors of what was just written, which the first search does."""
        assert self._avm is not None
        self._avm.search("warm", limit=1)

    def remembered(self, one: dict[str, Any]) -> None:
        """Take one in."""
        assert self._avm is not None
        remembers = self._avm.agent_memory()
        if os.environ.get("AVM_BENCH_PLAIN"):
            path = remembers.remember(str(one["text"]), path=f"/memory/shared/notes/{int(one['seq']):05}.md")
        else:
            path = remembers.remember(note(one), path=place(one), created=nanoseconds(one.get("date")))
        self.ids[path] = one["id"]

    @property
    def memory(self) -> Memory:
        """What lies behind the API, for those who measure its parts."""
        assert self._avm is not None
        return cast(local.LocalDoor, self._avm._door)._memory

    @property
    def embedder(self) -> Embedder | None:
        return self.memory.around.engine._embedder

    def recall(self, query: str, max_tokens: int) -> str:
        assert self._avm is not None
        return self._avm.agent_memory().recall(query, max_tokens=max_tokens)

    def search(self, query: str, k: int) -> list[str]:
        assert self._avm is not None
        return [self.ids[hit["path"]] for hit in self._avm.search(query, limit=k)]

    def close(self) -> None:
        if self._avm is not None:
            self._avm.close()
            self._avm = None
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None
