"""A search index in memory: small, but a real one, with scopes, passages and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.embed.protocol import Embedder
from avmfs.node import Dispute, Hit
from avmfs.store.index.columns import ROW, Columns, arrange, ordered
from avmfs.store.index.postings import Postings
from avmfs.store.index.vectors import VectorTable
from avmfs.text import forms, passages, segment, speech
from tests.hashing import HashingEmbedding

END = 2**63 - 1


@dataclass
class MemoryCorpus:
    """Documents by path; ``owner`` None is visible to all. ``index(who)`` is what that one may search."""

    embedder: Embedder = field(default_factory=HashingEmbedding)
    embed: bool = True
    _hits: list[tuple[str | None, Hit]] = field(default_factory=list)
    _vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    model: str = ""

    def add(
        self,
        path: str,
        text: str,
        *,
        author: str = "alice",
        updated: int = 0,
        importance: float | None = None,
        owner: str | None = None,
        version: int = 1,
    ) -> None:
        document = 1 + len({hit.document for _, hit in self._hits})
        spans = passages.cut(text)
        for start, stop in spans:
            number = len(self._hits) + 1
            handle = "".join("abcdefghijklmnopqrstuvwxyz234567"[(document >> shift) & 31] for shift in (15, 10, 5, 0))
            hit = Hit(
                number,
                document,
                1000 + document,
                path.encode("utf-8", "surrogateescape"),
                handle,
                author,
                updated,
                updated,
                importance,
                version,
                (),
                text[start:stop],
                start,
                stop,
                len(spans) == 1,
            )
            self._hits.append((owner, hit))
            if self.embed:
                batch = self.embedder.embed_batch([hit.text])
                self.model = batch.model
                self._vectors[number] = batch.vectors[0]

    def index(self, who: Principal) -> MemoryIndex:
        return MemoryIndex(
            {hit: owner or "" for owner, hit in self._hits if owner is None or who.operator or owner == who.name},
            self._vectors,
            self.model,
            len(self._hits),
        )


class MemoryIndex:
    def __init__(self, hits: dict[Hit, str], vectors: dict[int, NDArray[np.float32]], model: str, seq: int) -> None:
        self._hits = {hit.passage: hit for hit in hits}
        self._owners = {hit.passage: owner for hit, owner in hits.items()}
        self._terms = {hit.passage: segment.terms(hit.text) for hit in hits}
        self._vectors = vectors
        self._model = model
        self._seq = seq

    def table(self) -> Columns:
        voices, voices_of, rows = {"": 0}, dict[str, frozenset[int]](), []
        for hit in self._hits.values():
            spoken = " ".join(speech.heading(hit.text).speaker)
            voice = spoken or hit.author
            number = voices.setdefault(voice, len(voices))
            for term in voice.split():
                voices_of[term] = voices_of.get(term, frozenset()) | {number}
            place = hash(hit.path.rpartition(b"/")[0])
            length, scope = len(self._terms[hit.passage]), hash(self._owners[hit.passage]) & 0xFFFF
            told = speech.flags(hit.text)
            rows.append(
                (
                    hit.passage,
                    hit.document,
                    hit.start,
                    scope,
                    place,
                    hit.updated,
                    hit.document,
                    length,
                    number if spoken else -number,
                    told,
                    END,
                )
            )
        return arrange(ordered(np.array(rows, ROW)), voices_of)

    def postings(self, terms: Sequence[str]) -> list[Postings]:
        found = []
        for term in terms:
            ways = forms.of(term)
            counts = {p: sum(map(own.count, ways)) for p, own in sorted(self._terms.items())}
            times = {p: count for p, count in counts.items() if count}
            found.append(Postings(np.array(list(times), np.int64), np.array(list(times.values()), np.int64)))
        return found

    def phrase(self, terms: Sequence[str]) -> NDArray[np.int64]:
        wanted, size = list(terms), len(terms)
        return np.array(
            [
                p
                for p, own in sorted(self._terms.items())
                if any(own[at : at + size] == wanted for at in range(len(own)))
            ],
            np.int64,
        )

    def nearest(
        self,
        model: str,
        vector: NDArray[np.float32],
        k: int,
        also: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        table = VectorTable(len(vector))
        table.put((p, 1, self._vectors[p].tobytes()) for p in self._hits if p in self._vectors and model == self._model)
        found = table.nearest(frozenset({1}), vector, k, also)
        return found.passages, found.cosines

    def hits(self, passages: Sequence[int], under: tuple[bytes, ...]) -> list[Hit]:
        inside = self.below(under)
        return [replace(self._hits[p]) for p in passages if p in self._hits and (inside is None or p in inside)]

    def below(self, under: tuple[bytes, ...]) -> frozenset[int] | None:
        if not under:
            return None
        prefix = b"/" + b"/".join(under) + b"/"
        return frozenset(p for p, hit in self._hits.items() if hit.path.startswith(prefix))

    def topics(self, under: tuple[bytes, ...]) -> tuple[list[tuple[str, str, int]], int]:
        return [], 0

    def about(self, key: str, under: tuple[bytes, ...], limit: int) -> list[Hit]:
        return []

    def disputed(self, documents: Sequence[int]) -> list[Dispute]:
        return []

    def seq(self) -> int:
        return self._seq
