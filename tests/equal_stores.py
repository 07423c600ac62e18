"""What two hosts of one store must have in common: every row, and what the words' index finds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import apsw

from avmfs.store.rows import log_position
from tests.behind import connect


def rows(db: apsw.Connection) -> dict[str, list[Any]]:
    """By table. Of the words' index, whose tables are each host's own, what it holds; of settings, all but where the
    host stands and what it has yet to do to its own file."""
    tables = [
        name
        for (name,) in db.execute("select name from sqlite_schema where type = 'table' and name not like 'terms%'")
        if not name.startswith("sqlite_") and name != "posting"
    ]
    found = {name: sorted(db.execute(f"select * from {name}").fetchall(), key=repr) for name in tables}
    found["setting"] = [row for row in found["setting"] if row[0] not in (log_position.KEY, "unwiped")]
    found["posting"] = sorted(db.execute("select term, doc, offset from posting").fetchall())
    return found


def differing(*stores: Path) -> list[str]:
    """The tables in which they differ, each read at one moment."""
    found = []
    for path in stores:
        with contextlib.closing(connect(path, read_only=True)) as db, db:
            found.append(rows(db))
    first, *others = found
    return [table for table in first if any(other[table] != first[table] for other in others)]
