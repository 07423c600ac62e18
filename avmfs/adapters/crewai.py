"""``AvmStorage``: what CrewAI's ``Memory`` keeps, as files in one agent's memory.

Owns what a record is: one of scope ``/team`` is ``ROOT/team/ID.json``, as CrewAI writes it, so that shells, other
agents and recalls find it too; its vector, by whichever embedder the crew has, is ``ROOT/team/ID.f32`` beside it
(float32, little-endian). Called by programs that have CrewAI (``avmfs[crewai]``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from crewai.memory.storage.backend import EmbeddingDimensionMismatchError
from crewai.memory.types import MemoryRecord, ScopeInfo

from avmfs.adapters import file_name, files_below, root_of
from avmfs.avm import AVM
from avmfs.errors import Invalid

log = logging.getLogger(__name__)

_RECORD: Final = ".json"
_VECTOR: Final = ".f32"
_FLOATS: Final = np.dtype("<f4")


class AvmStorage:
    """``Memory(storage=AvmStorage(avm))``, in the memory of the agent of ``avm``.

    ``root`` is a directory by its path below /memory: /memory/private/AGENT/crewai by default; below /memory/shared all
    agents have one memory, in whichever process. A search is exact, by cosine, 0 to 1. What is asked for by several
    things (scope, categories, metadata, age) must agree with all of them. Raises what ``AVM`` raises, and
    EmbeddingDimensionMismatchError.
    """

    def __init__(self, avm: AVM, root: str | None = None) -> None:
        self._avm = avm
        self._root = root_of(avm, root, "crewai")
        self._read: dict[str, tuple[int, MemoryRecord]] = {}  # by path, as of its mtime (ns)
        self._guard = threading.Lock()  # a crew saves from threads

    def save(self, records: list[MemoryRecord]) -> None:
        for record in records:
            path = f"{self._folder(record.scope)}/{file_name(record.id)}"
            if record.embedding:  # before the record: one that is there has its vector
                self._avm.write(path + _VECTOR, np.asarray(record.embedding, _FLOATS).tobytes())
            self._avm.write(path + _RECORD, record.model_dump_json(indent=2) + "\n")

    def update(self, record: MemoryRecord) -> None:
        before = self.get_record(record.id)
        if before is not None and record.embedding is None:
            record = record.model_copy(update={"embedding": before.embedding})
        self.save([record])
        if before is not None and self._folder(before.scope) != self._folder(record.scope):
            self._remove(before)

    def search(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        found = [each for each in self._chosen(scope_prefix, categories, metadata_filter) if each.embedding]
        for each in found:
            if len(each.embedding or ()) != len(query_embedding):
                raise EmbeddingDimensionMismatchError(len(each.embedding or ()), len(query_embedding))
        if not found:
            return []
        vectors, query = np.array([each.embedding for each in found]), np.asarray(query_embedding)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        scores = np.clip(np.divide(vectors @ query, lengths, out=np.zeros(len(found)), where=lengths > 0), 0, 1)
        best = np.argsort(-scores, kind="stable")[: max(0, limit)]
        return [(found[at], float(scores[at])) for at in best if scores[at] >= min_score]

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        chosen = [
            each
            for each in self._chosen(scope_prefix, categories, metadata_filter)
            if (record_ids is None or each.id in record_ids)
            and (older_than is None or _utc(each.created_at) < _utc(older_than))
        ]
        return sum(map(self._remove, chosen))

    def get_record(self, record_id: str) -> MemoryRecord | None:
        wanted = file_name(record_id) + _RECORD
        return next((each for each in self._records(self._root, lambda name: name == wanted)), None)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        if limit <= 0 or offset < 0:
            return []
        newest = sorted(self._chosen(scope_prefix), key=lambda each: _utc(each.created_at), reverse=True)
        return newest[offset : offset + limit]

    def get_scope_info(self, scope: str) -> ScopeInfo:
        records = list(self._chosen(scope))
        times = [each.created_at for each in records]
        return ScopeInfo(
            path=scope.rstrip("/") or "/",
            record_count=len(records),
            categories=sorted({category for each in records for category in each.categories}),
            oldest_record=min(times, key=_utc, default=None),
            newest_record=max(times, key=_utc, default=None),
            child_scopes=self.list_scopes(scope),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        above = parent.strip("/")
        below = (each.scope.strip("/").removeprefix(above).strip("/") for each in self._chosen(parent))
        tops = {name.split("/")[0] for name in below if name}
        return sorted("/" + "/".join(filter(None, (above, name))) for name in tops)

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        return dict(Counter(category for each in self._chosen(scope_prefix) for category in each.categories))

    def count(self, scope_prefix: str | None = None) -> int:
        return sum(1 for _ in self._chosen(scope_prefix))

    def reset(self, scope_prefix: str | None = None) -> None:
        self.delete(scope_prefix)

    async def asave(self, records: list[MemoryRecord]) -> None:
        await asyncio.to_thread(self.save, records)

    async def asearch(self, query_embedding: list[float], **given: Any) -> list[tuple[MemoryRecord, float]]:
        return await asyncio.to_thread(self.search, query_embedding, **given)

    async def adelete(self, **given: Any) -> int:
        return await asyncio.to_thread(self.delete, **given)

    def _folder(self, scope: str | None) -> str:
        return "/".join([self._root, *map(file_name, filter(None, (scope or "").split("/")))])

    def _chosen(
        self,
        scope: str | None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Iterator[MemoryRecord]:
        for each in self._records(self._folder(scope), lambda name: name.endswith(_RECORD)):
            if (not categories or not set(categories).isdisjoint(each.categories)) and all(
                key in each.metadata and each.metadata[key] == value for key, value in (metadata or {}).items()
            ):
                yield each

    def _records(self, folder: str, wanted: Callable[[str], bool]) -> Iterator[MemoryRecord]:
        """Those at and below a folder, read anew only when they have changed."""
        for entry in files_below(self._avm, folder, wanted):
            try:
                record = self._record(entry["path"], entry["mtime"])
            except FileNotFoundError:  # removed since
                continue
            except Invalid as e:
                log.warning("a file beside the records: %s", e)
                continue
            yield record

    def _record(self, path: str, mtime: int) -> MemoryRecord:
        """Raises Invalid for a file that is none."""
        with self._guard:
            known = self._read.get(path)
        if known is None or known[0] != mtime:
            try:
                record = MemoryRecord.model_validate_json(self._avm.read(path))
            except ValueError as e:
                raise Invalid(f"no record of CrewAI: {e}", path) from None
            with contextlib.suppress(FileNotFoundError):
                data = self._avm.read_bytes(path.removesuffix(_RECORD) + _VECTOR)
                record.embedding = np.frombuffer(data, _FLOATS).tolist()
            known = mtime, record
            with self._guard:
                self._read[path] = known
        return known[1].model_copy()

    def _remove(self, record: MemoryRecord) -> bool:
        """Whether it was still there."""
        path = f"{self._folder(record.scope)}/{file_name(record.id)}"
        with self._guard:
            self._read.pop(path + _RECORD, None)
        try:
            self._avm.delete(path + _RECORD)
        except FileNotFoundError:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._avm.delete(path + _VECTOR)
        return True


def _utc(when: datetime) -> datetime:
    """CrewAI's own times have no zone and are UTC."""
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when
