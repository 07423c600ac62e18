"""The database of the earlier AVM: its nodes and edges as plain values. Reads, and never changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from avmfs.errors import Invalid, StoreFailed

_COLUMNS = ("path", "content", "meta", "node_type", "created_at", "updated_at")


def nodes(path: Path) -> Iterator[dict[str, Any]]:
    """Each with ``path``, ``content``, ``meta``, ``node_type``, ``created_at``, ``updated_at`` and ``edges`` [(target,
    type)], in the order of paths; what no column says is None. Text that is no UTF-8 comes as its bytes. Raises Invalid
    for another program's database, StoreFailed for a damaged one."""
    name = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)) as db:
            has = {row[1] for row in db.execute("pragma table_info(nodes)")}
            if not {"path", "content"} <= has:
                raise Invalid("not the earlier AVM's database: it has no table of nodes", os.fspath(path))
            columns = ", ".join(f"cast({each} as blob)" if each in has else "null" for each in _COLUMNS)
            edges: dict[bytes, list[tuple[str, str]]] = {}
            if db.execute("pragma table_info(edges)").fetchall():
                rows: Any = db.execute("select cast(source as blob), cast(target as blob), edge_type from edges")
                for source, target, kind in rows:
                    edges.setdefault(source, []).append((os.fsdecode(target), str(kind)))
            found: Any = db.execute(f"select {columns} from nodes order by path")
            for row in found:
                yield {**dict(zip(_COLUMNS, row, strict=True)), "edges": edges.get(row[0], [])}
    except (apsw.Error, UnicodeDecodeError) as e:
        raise StoreFailed(f"the database cannot be read: {e}", os.fspath(path)) from e
