"""The columns that ranking needs of all passages, in memory: one per process, for all askers.

Owns the rows and how they are kept in step: a cursor over passage_log (what was indexed or dropped) and one over the
log (what was moved, dated, given a ttl). Called by the search index of this store. ``visible`` filters by scope;
nothing of an invisible row goes into what it returns. Thread-safe.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

import apsw
import numpy as np
from numpy.typing import NDArray

from avmfs.lru import LRU
from avmfs.store.index.columns import ROW, Columns, arrange, merged, ordered, picked
from avmfs.store.index.hit_cache import HitCache
from avmfs.store.index.postings import PostingsCache
from avmfs.text import segment

_NEVER: Final = 2**63 - 1
_PIECE: Final = 2048  # rows that are converted at once
ROWS: Final = 4_000_000  # of all tables that are remembered, 81 bytes each; one that is larger is remembered alone
_MANY: Final = 4096  # changed documents above which everything is read anew
_COLUMNS: Final = """select passage.id, passage.document, passage.part, passage.scope, node.parent,
 coalesce(passage.at, node.mtime), coalesce(version.seq, 0), passage.len, coalesce(passage.voice, ''),
 coalesce(version.author, document.creator), passage.flags, coalesce(node.expires, 9223372036854775807)
 from {}passage on passage.document = document.id join node on node.id = document.node
 left join version on version.document = document.id and version.number = document.head
 where node.parent is not null"""


class PassageColumns:
    """See the module. ``postings`` and ``hits`` are kept beside the columns: they are in step with nothing but
    themselves."""

    def __init__(self) -> None:
        self.hits = HitCache()
        self.postings = PostingsCache()
        self._lock = threading.Lock()
        self._rows = ordered(np.zeros(0, ROW))
        self._read = (-1, -1)  # newest of passage_log, newest of log
        self._forget_voices()
        self._views: LRU[str, tuple[Columns, int]] = LRU(ROWS, lambda view: min(len(view[0].passages), ROWS))

    def visible(self, db: apsw.Connection, scopes: str, ids: frozenset[int], now: int) -> Columns:
        """The table of what stands in the scopes ``ids`` (as JSON: ``scopes``) and has not expired by ``now`` (ns)."""
        with self._lock:
            self._catch_up(db)
            table, until = self._views.get(scopes) or (None, 0)
            if table is None or now >= until:
                seen = np.isin(self._rows["scope"], np.fromiter(ids, np.int64, len(ids)))
                seen &= self._rows["expires"] > now
                chosen = self._rows if seen.all() else picked(self._rows, seen)
                table = arrange(chosen, self._voices_of)
                self._views.put(scopes, (table, int(chosen["expires"].min(initial=_NEVER))))
            return table

    def _catch_up(self, db: apsw.Connection) -> None:
        row: Any = db.execute("select (select max(seq) from passage_log), (select max(seq) from log)").fetchone()
        newest = (row[0] or 0, row[1] or 0)
        if newest == self._read:
            return
        oldest = db.execute("select min(seq) from passage_log").get or 0
        changed: list[int] | None = None
        if self._read[0] >= max(oldest - 1, 0):
            changed = [
                row[0]
                for row in db.execute(
                    "select document from passage_log where seq > ?1 union"
                    " select document from log where seq > ?2 and document is not null limit ?3",
                    (*self._read, _MANY + 1),
                )
            ]
        if changed is None or len(changed) > _MANY:
            self._forget_voices()
            self._rows = ordered(self._taken(db.execute(_COLUMNS.format("document join "))))
            self._views.clear()
        elif changed:
            fresh = self._taken(
                db.execute(
                    _COLUMNS.format("json_each(?) as wanted cross join document on document.id = wanted.value join "),
                    ("[" + ",".join(map(str, changed)) + "]",),
                )
            )
            gone = np.isin(self._rows["document"], np.array(changed, np.int64))
            if len(fresh) or gone.any():
                self._rows = merged(self._rows, gone, fresh)
                self._views.clear()
        self._read = newest

    def _taken(self, rows: Any) -> NDArray[np.void]:
        """In pieces: a hundred thousand rows as Python values would stay in the process' memory."""
        pieces = [np.zeros(0, ROW)]
        while some := list(itertools.islice(rows, _PIECE)):
            values = [(*row[:8], self._voice(row[8]) or -self._voice(self._name(row[9])), *row[10:12]) for row in some]
            pieces.append(np.array(values, ROW))
        return np.concatenate(pieces)

    def _forget_voices(self) -> None:
        """New numbers for who speaks: tables of before keep theirs."""
        self._names: dict[str, str] = {}
        self._voices: dict[str, int] = {"": 0}
        self._voices_of: dict[str, list[int]] = {}

    def _name(self, author: str) -> str:
        """An author as a voice. There are few of them, and many rows."""
        known = self._names.get(author)
        if known is None:
            known = self._names[author] = " ".join(segment.terms(author))
        return known

    def _voice(self, voice: str) -> int:
        known = self._voices.get(voice)
        if known is None:
            known = self._voices[voice] = len(self._voices)
            for term in voice.split():
                self._voices_of.setdefault(term, []).append(known)
        return known
