"""Vector search for Python programs: ``EmbeddingStore`` over nodes of one's own choice.

A program that only wants answers asks ``AVM.semantic`` or ``AgentMemory.recall``, which know every memory. This is
for one that wants an index of some nodes, under its own hand: it adds them, saves, and searches. Everything is read
through the ``AVM`` that it is given, as that agent; nothing here opens the database.

    from avmfs import AVM
    from avmfs.embedding import EmbeddingStore, LocalEmbedding

    with AVM(agent="alice") as avm:
        index = EmbeddingStore(avm, LocalEmbedding())
        index.add_nodes(["/memory/market/nvda.md", "/memory/market/chips.md"])
        index.save()
        for node, score in index.search("which stocks are risky?", k=5):
            print(score, node.path)

Owns what an index holds and its file; how rows are searched is ``Rows``, exact here, FAISS in ``faiss_store``.
Threads: one at a time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from avmfs import paths, wire
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.protocol import Batch, Embedder, EmbeddingBackend, EmbeddingUnavailable
from avmfs.errors import AvmError, Denied, Invalid, IsDirectory, NotDirectory, NotFound
from avmfs.node import StoredNode
from avmfs.store.files.io import sync_directory
from avmfs.transfer.files import output

__all__ = [
    "Batch",
    "Embedder",
    "EmbeddingBackend",
    "EmbeddingStore",
    "EmbeddingUnavailable",
    "LocalEmbedding",
    "Match",
    "StoredNode",
]

log = logging.getLogger(__name__)

MAGIC: Final = b"avmfs vectors 1\n"
BATCH: Final = 256
DEAD: Final = 0.2  # of the rows: when more belong to nodes that were replaced or removed, all are laid anew

Vectors = NDArray[np.float32]


class NodeSource(Protocol):
    """What an index needs of a store. ``AVM`` has it."""

    agent: str
    database: Path
    address: str  # which memory that is, and of which instant

    def read(self, path: str) -> str: ...
    def list(self, path: str = "/memory") -> list[dict[str, Any]]: ...


class Match(NamedTuple):
    """A node and its cosine with the query, -1 to 1."""

    node: StoredNode
    score: float


class Rows(Protocol):
    """Vectors by number, from 0, in the order in which they were appended."""

    def __len__(self) -> int: ...
    def append(self, vectors: Vectors) -> None: ...
    def nearest(self, query: Vectors, k: int) -> list[tuple[int, float]]:
        """Numbers and cosines, best first; equal ones by number."""
        ...

    def vectors(self) -> Vectors: ...
    def dump(self) -> bytes: ...


class ExactRows:
    """Every row is compared."""

    kind: Final = "exact"

    def __init__(self, dimension: int) -> None:
        self._vectors: Vectors = np.zeros((0, dimension), np.float32)

    def __len__(self) -> int:
        return len(self._vectors)

    def append(self, vectors: Vectors) -> None:
        self._vectors = np.concatenate([self._vectors, vectors])

    def nearest(self, query: Vectors, k: int) -> list[tuple[int, float]]:
        scores = self._vectors @ query
        pool = np.arange(len(scores))
        if k < len(scores):
            pool = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        order = pool[np.lexsort((pool, -scores[pool]))][:k]
        return [(int(row), float(scores[row])) for row in order]

    def vectors(self) -> Vectors:
        return self._vectors

    def dump(self) -> bytes:
        return self._vectors.astype("<f4").tobytes()

    @staticmethod
    def load(data: bytes, dimension: int) -> ExactRows:
        rows = ExactRows(dimension)
        rows.append(np.frombuffer(data, "<f4").reshape(-1, dimension).astype(np.float32))
        return rows


class _Unusable(Exception):
    """The file is no index of ours, or damaged; ``str()`` says how."""


class EmbeddingStore:
    """An index of nodes of ``store``, by the vectors of ``embedder``.

    ``path`` is its file; by default one per memory, agent and kind of index, in a folder ``vectors`` beside the
    database. An index that was saved is there again. One that is damaged is made anew from all text files that the
    agent sees, one of another model from the nodes it had: ``rebuilt`` then says why.

    Raises EmbeddingUnavailable when there is no model, and what reading the store raises.
    """

    kind = "exact"

    def __init__(self, store: NodeSource, embedder: Embedder, *, path: str | os.PathLike[str] | None = None) -> None:
        self.store = store
        self.embedder = embedder
        self.rebuilt: str | None = None
        name = f"{quote(store.address, '')}-{store.agent or paths.EVERYONE}-{self.kind}.vectors"
        default = store.database.parent / "vectors" / name
        self.path = default if path is None else Path(path)
        probe = embedder.embed_batch(["dimension"])
        self.model, self.dimension = probe.model, int(probe.vectors.shape[1])
        self._clear()
        self._restore()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, path: object) -> bool:
        return path in self._places

    def __iter__(self) -> Iterator[str]:
        """The paths of the nodes in it, in order."""
        return iter(sorted(self._places))

    def add_nodes(self, nodes: Iterable[str | tuple[str, str] | Mapping[str, Any] | StoredNode]) -> int:
        """Add nodes, or replace them where their text has changed; how many were embedded.

        A node is a path, whose text is read from the store; a path with its text: a pair, what ``AVM.read`` returns, or
        any object with ``path`` and ``content``; or a mapping with ``path``, such as ``AVM.search`` and ``AVM.list``
        return, with ``content`` where that is not to be read. Directories and symlinks of a list are passed over.
        Raises Invalid for anything else.
        """
        waiting: list[tuple[StoredNode, str]] = []
        embedded = 0
        for given in nodes:
            if isinstance(given, Mapping) and given.get("kind", "file") != "file":
                continue
            node = self._node(given)
            digest = hashlib.sha256(node.content.encode("utf-8", "surrogatepass")).hexdigest()
            at = self._places.get(node.path)
            if at is not None and self._nodes[at] == (node.path, digest):
                continue
            waiting.append((node, digest))
            if len(waiting) == BATCH:
                embedded += self._embed(waiting)
                waiting = []
        return embedded + (self._embed(waiting) if waiting else 0)

    def remove(self, path: str) -> bool:
        """Take a node out; whether it was there."""
        at = self._places.pop(path, None)
        if at is not None:
            self._nodes[at] = None
        return at is not None

    def search(self, query: str, k: int = 5) -> list[Match]:
        """The ``k`` nodes nearest in meaning to ``query``, best first, each with its text as it is now. A node that
        the store no longer shows to this agent is left out."""
        if k < 1 or not self._places:
            return []
        batch = self.embedder.embed_batch([query], urgent=True)
        if batch.model != self.model:
            raise EmbeddingUnavailable(f"the model is {batch.model} now; this index is of {self.model}")
        wanted = k
        while True:
            # Rows of nodes that were replaced are still in the index until it is laid anew. A larger answer need not
            # begin with the smaller one: a graph may find what is nearer, and equal rows stand in any order.
            ranked = self._rows.nearest(batch.vectors[0], min(wanted, len(self._rows)))
            found: list[Match] = []
            for row, score in ranked:
                known = self._nodes[row]
                if known is not None and len(found) < k and (node := self._current(known[0])) is not None:
                    found.append(Match(node, score))
            if len(found) == k or wanted >= len(self._rows) or len(ranked) < wanted:
                return found
            wanted *= 4

    def save(self) -> None:
        """Keep the index in its file: whole or, if the machine stops meanwhile, as it was before."""
        if len(self._rows) > len(self._places) * (1 + DEAD):
            self._compact()
        body = wire.pack({"nodes": self._nodes, "rows": self._rows.dump()})
        header = {
            "model": self.model,
            "dimension": self.dimension,
            "kind": self.kind,
            "count": len(self._places),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with output(self.path.absolute()) as file:  # a file may be called "-"
            file.write(MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + body)
        sync_directory(self.path.parent)

    def rebuild(self, paths: Iterable[str] | None = None) -> int:
        """Embed these nodes, or all text files that the agent sees, into an empty index; how many there are."""
        wanted = self._all("/memory") if paths is None else paths
        self._clear()
        self.add_nodes(node for path in wanted if (node := self._current(path)) is not None)
        return len(self)

    # What kind of rows: overridden in faiss_store -------------------------------------------------------------

    def _new_rows(self) -> Rows:
        return ExactRows(self.dimension)

    def _load_rows(self, data: bytes) -> Rows:
        return ExactRows.load(data, self.dimension)

    # ----------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._rows = self._new_rows()
        self._nodes: list[tuple[str, str] | None] = []  # by row: path and sha256 of the text
        self._places: dict[str, int] = {}  # path: row

    def _embed(self, waiting: list[tuple[StoredNode, str]]) -> int:
        batch = self.embedder.embed_batch([node.content for node, _ in waiting])
        if batch.model != self.model:
            raise EmbeddingUnavailable(f"the model is {batch.model} now; this index is of {self.model}")
        self._rows.append(batch.vectors)
        for node, digest in waiting:
            self.remove(node.path)
            self._places[node.path] = len(self._nodes)
            self._nodes.append((node.path, digest))
        return len(waiting)

    def _compact(self) -> None:
        kept = sorted(self._places.values())
        vectors, nodes = self._rows.vectors()[kept], [self._nodes[row] for row in kept]
        self._clear()
        self._rows.append(vectors)
        self._nodes = nodes
        self._places = {node[0]: row for row, node in enumerate(nodes) if node is not None}

    def _restore(self) -> None:
        try:
            header, body = _opened(self.path)
            if (header["kind"], header["count"]) != (self.kind, sum(node is not None for node in body["nodes"])):
                raise _Unusable("of another kind")
            known = [None if node is None else (str(node[0]), str(node[1])) for node in body["nodes"]]
        except FileNotFoundError:
            return
        except _Unusable as problem:
            self._start_over(f"{self.path}: {problem}", None)
            return
        paths = {node[0]: row for row, node in enumerate(known) if node is not None}
        if (header["model"], header["dimension"]) != (self.model, self.dimension):
            self._start_over(f"{self.path}: of the model {header['model']}, now it is {self.model}", sorted(paths))
            return
        rows = self._load_rows(body["rows"])
        if len(rows) != len(known):
            self._start_over(f"{self.path}: {len(rows)} rows for {len(known)} nodes", sorted(paths))
            return
        self._rows, self._nodes, self._places = rows, known, paths

    def _start_over(self, reason: str, paths: list[str] | None) -> None:
        log.warning("%s; the index is made anew", reason)
        self.rebuilt = reason
        self.rebuild(paths)

    def _node(self, given: Any) -> StoredNode:
        if isinstance(given, StoredNode):
            return given
        if isinstance(given, str):
            return StoredNode(given, self.store.read(given))
        if isinstance(given, tuple) and len(given) == 2:
            path, content = given
        elif isinstance(given, Mapping):
            path, content = given.get("path"), given.get("content")
            if isinstance(path, str) and "content" not in given:
                content = self.store.read(path)
        else:
            path, content = getattr(given, "path", None), getattr(given, "content", None)
        if not isinstance(path, str) or not isinstance(content, str):
            raise Invalid(f"{given!r} is no node: expected a path, or a path with its text")
        return StoredNode(path, content)

    def _current(self, path: str) -> StoredNode | None:
        try:
            return StoredNode(path, self.store.read(path))
        except (NotFound, IsDirectory, NotDirectory, Denied):
            return None  # gone, or another thing now, or not for this agent

    def _all(self, directory: str) -> Iterator[str]:
        for entry in self.store.list(directory):
            path = str(entry["path"])
            if entry["kind"] == "directory":
                yield from self._all(path)
            elif entry["kind"] == "file" and self._is_text(path):
                yield path

    def _is_text(self, path: str) -> bool:
        try:
            return "\0" not in self.store.read(path)
        except AvmError:
            return False  # gone meanwhile, or not for this agent


def _opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and body of a file whose checksum is right. Raises _Unusable, FileNotFoundError."""
    data = path.read_bytes()
    head, found, body = data.removeprefix(MAGIC).partition(b"\n")
    if not data.startswith(MAGIC) or not found:
        raise _Unusable("not an index of avmfs")
    try:
        header: dict[str, Any] = json.loads(head)
        if header["sha256"] != hashlib.sha256(body).hexdigest():
            raise _Unusable("damaged (its checksum is wrong)")
        contents: dict[str, Any] = wire.unpack(body)
        if not {"model", "dimension", "kind", "count"} <= header.keys() or not {"nodes", "rows"} <= contents.keys():
            raise _Unusable("damaged (something is missing)")
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise _Unusable(f"damaged ({problem})") from None
    return header, contents
