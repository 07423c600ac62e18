"""The handler ``sqlite``: the rows of a query on a database of this machine.

``query`` has parameters as ``:name``, which are bound, never put into its text. The database is opened for reading
alone, an authorizer refuses whatever else, and the query ends with the time limit. One value is shown as it is, a blob
as its bytes and NULL as nothing, rows as JSON, one a line; ``format: csv`` has them as a table.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from avmfs.errors import Invalid, NotFound, StoreFailed, TimedOut, TooBig
from avmfs.providers.handler import BaseHandler, Context, Names, text_of
from avmfs.store.schema.tables import APPLICATION_ID

Rows = list[Any]
STEPS: Final = 10_000  # of SQLite's machine between two looks at the clock
_READING: Final = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)

_looked: Final[dict[tuple[int, int], bool]] = {}  # by device and inode
_looking: Final = threading.Lock()


class SqliteHandler(BaseHandler):
    KEYS = ("database", "query", "list", "search", "format")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._database = text_of(config, "database")
        self._query = text_of(config, "query")
        self._format = config.get("format", "json")
        if self._format not in ("json", "csv"):
            raise Invalid("config.format: expected json or csv")

    def read(self, path: str, context: Context) -> str | bytes:
        names, rows = self._rows(self._query, context)
        if not rows:
            raise NotFound("no rows")
        if len(names) == 1 and len(rows) == 1:
            value = rows[0][0]
            return value if isinstance(value, bytes) else "" if value is None else f"{value}\n"
        rows = [[*map(_plain, row)] for row in rows]
        if self._format == "csv":
            table = io.StringIO()
            csv.writer(table, lineterminator="\n").writerows([names, *rows])
            return table.getvalue()
        return "".join(
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False) + "\n" for row in rows
        )

    def list(self, path: str, context: Context) -> Names | None:
        if "list" not in self.config:
            return None
        return _names(self._rows(text_of(self.config, "list"), context)[1])

    def search(self, path: str, query: str, context: Context) -> Names | None:
        if "search" not in self.config:
            return None
        asked = replace(context, params={**context.params, "query": query})
        return _names(self._rows(text_of(self.config, "search"), asked)[1])

    def _rows(self, query: str, context: Context) -> tuple[Names, Rows]:
        database = Path(os.path.expanduser(replace(context, params={}).fill(self._database)))  # no path says which
        if not database.is_file():
            raise StoreFailed("no such database")
        if _is_store(database):  # which this process has open, by another SQLite
            raise Invalid("config.database: this is a store of avmfs")
        deadline, late = time.monotonic() + context.timeout_s, False

        def look() -> bool:
            nonlocal late
            late = time.monotonic() > deadline
            return late

        db = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=context.timeout_s)
        try:
            db.set_progress_handler(look, STEPS)
            db.set_authorizer(
                lambda action, first, second, *_: (
                    sqlite3.SQLITE_OK if action in _READING and second != "load_extension" else sqlite3.SQLITE_DENY
                )
            )
            found = db.execute(query, {name: value for name, value in context.params.items() if name != "*"})
            rows, size = [], 0
            for row in found:
                size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
                if size > context.max_bytes:
                    raise TooBig(f"more than {context.max_bytes} bytes")
                rows.append(row)
            return [each[0] for each in found.description or ()], rows
        except (sqlite3.Error, UnicodeError) as e:
            if late:
                raise TimedOut(f"not done within {context.timeout_s:g} s") from None
            raise StoreFailed(f"the query fails: {e}") from None
        finally:
            db.close()


def _is_store(database: Path) -> bool:
    """Looked up once, before the first query there: who closes a file drops all locks that this process has on it, and
    SQLite's are among them, which keep others from writing below a query."""
    found = database.stat()
    at = found.st_dev, found.st_ino
    if at not in _looked:
        with _looking:
            if at not in _looked:  # nobody was faster
                with database.open("rb", buffering=0) as file:
                    _looked[at] = file.read(72)[68:72] == APPLICATION_ID.to_bytes(4, "big")
    return _looked[at]


def _names(rows: Rows) -> Names:
    return [str(_plain(row[0])) for row in rows if row[0] is not None]


def _plain(value: Any) -> Any:
    """As JSON and CSV can have it: SQLite's infinities are no numbers there."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
