"""basic-memory: its folder of notes. A list item ``- requires [[Other]]`` is a link of the type requires; a link may
name a title or a permalink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from avmfs.transfer.formats import reader
from avmfs.transfer.notes import vault
from avmfs.transfer.record import Record, Refusal


@reader("basic-memory", "a basic-memory folder: observations, typed relations")
def read(path: Path) -> Iterator[Record | Refusal]:
    return vault(path, "basic-memory", relations=True)
