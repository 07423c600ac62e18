"""Where terms occur, remembered between questions: one per process, for all askers.

Owns the value ``Postings`` and a bounded memory of them. Called by the search index, with terms that already name a
scope of the asker's. Walking 20,000 occurrences through SQLite takes ten milliseconds and more, and people's words
recur; what was written since is fetched by its ids alone, which grow and are never used twice. Passages that have gone
stay in an entry until it is made anew: whoever reads it looks up which of them still stand. Thread-safe.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw
import numpy as np
from numpy.typing import NDArray

from avmfs.lru import LRU

KEPT: Final = 400_000
"""Passages in all entries together, 6 bytes each."""
SMALL: Final = 32
"""Passages of a term below which it is as quick to ask SQLite."""
BEHIND: Final = 2_000
"""Passages written since, beyond which an entry is made anew."""
_MOST: Final = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True)
class Postings:
    """Where a term occurs: passage ids (n,), ascending, and how often in each (n,)."""

    passages: NDArray[np.int64]
    times: NDArray[np.int64]

    def __len__(self) -> int:
        """How often it occurs."""
        return int(self.times.sum())


@dataclass(frozen=True, slots=True)
class _Entry:
    """``upto``: the newest passage that was looked at."""

    passages: NDArray[np.uint32]
    times: NDArray[np.uint16]
    upto: int


class PostingsCache:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: LRU[str, _Entry] = LRU(KEPT, lambda entry: len(entry.passages))
        self._counting: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()  # those that know _occurs

    def of(self, db: apsw.Connection, terms: Sequence[str]) -> Postings:
        """All passages with any of ``terms`` (the same word in several scopes and forms), as ``db``'s transaction sees
        it."""
        newest = int(db.execute("select max(id) from passage").get or 0)
        found = [self._one(db, term, newest) for term in terms]
        passages = np.concatenate([entry.passages for entry in found]) if found else np.zeros(0, np.uint32)
        times = np.concatenate([entry.times for entry in found]) if found else np.zeros(0, np.uint16)
        ids, counts = passages.astype(np.int64), times.astype(np.int64)
        if len(found) > 1:
            order = np.argsort(ids, kind="stable")
            ids, counts = ids[order], counts[order]
            first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))) if len(ids) else order
            if len(first) < len(ids):  # two forms of a word in one passage
                ids, counts = ids[first], np.add.reduceat(counts, first)
        return Postings(ids, counts)

    def _one(self, db: apsw.Connection, term: str, newest: int) -> _Entry:
        with self._lock:
            entry = self._entries.get(term)
        if entry is None or newest - entry.upto > BEHIND or newest < entry.upto:
            entry = _Entry(*_occurrences(db, term), newest)
        elif newest > entry.upto:
            with self._lock:  # once: SQLite keeps each function that it is given until the connection is closed
                if db not in self._counting:
                    db.register_fts5_function("occurs", _occurs)
                    self._counting.add(db)
            entry = _later(db, term, entry, newest)
        else:
            return entry
        with self._lock:
            if len(entry.passages) >= SMALL and newest < 2**32:
                self._entries.put(term, entry)
            else:
                self._entries.drop(term)
        return entry


def _occurrences(db: apsw.Connection, term: str) -> tuple[NDArray[Any], NDArray[Any]]:
    # Joined by SQLite, parsed by numpy: a Python object per row would be dear.
    beginning = term.removesuffix("*")
    joined = (
        db.execute("select group_concat(doc) from posting where term = ?", (term,))
        if beginning == term
        else db.execute(
            "select group_concat(doc) from posting where term >= ? and term <= ?",
            (beginning, beginning + chr(sys.maxunicode)),
        )
    ).get
    if not joined:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint16)
    ids, counts = np.unique(np.fromstring(joined, np.int64, sep=","), return_counts=True)
    kind = np.uint32 if int(ids[-1]) < 2**32 else np.int64
    return ids.astype(kind), np.minimum(counts, _MOST).astype(np.uint16)


def phrase(terms: Sequence[str]) -> str:
    """In FTS5's language: these terms, one after the other. The last may be the beginning of many, with "*"."""
    last = terms[-1].removesuffix("*")
    return f'"{" ".join([*terms[:-1], last])}"' + (" *" if last != terms[-1] else "")


def _occurs(api: apsw.FTS5ExtensionApi, *_: Any) -> int:
    return api.inst_count


def _later(db: apsw.Connection, term: str, entry: _Entry, newest: int) -> _Entry:
    rows: list[Any] = db.execute(
        "select rowid, occurs(terms) from terms where terms match ? and rowid > ?", (phrase([term]), entry.upto)
    ).fetchall()
    if not rows:
        return _Entry(entry.passages, entry.times, newest)
    fresh = np.array(rows, np.int64)
    return _Entry(
        np.concatenate((entry.passages, fresh[:, 0].astype(entry.passages.dtype))),
        np.concatenate((entry.times, np.minimum(fresh[:, 1], _MOST).astype(np.uint16))),
        newest,
    )
