"""Stores as they once were, for tests of what the migrations make of them. Beside conftest.py, so that tests of every
folder find it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from avmfs.store import database, schema


@contextmanager
def first_version(path: Path) -> Iterator[apsw.Connection]:
    """A new store of version 1, without a row; closed when the block ends."""
    db = apsw.Connection(os.fspath(path))
    try:
        for statements in (
            f"pragma application_id = {schema.APPLICATION_ID}", schema.MIGRATIONS[0], "pragma user_version = 1",
        ):  # fmt: skip
            database.run(db, statements)
        yield db
    finally:
        db.close()
