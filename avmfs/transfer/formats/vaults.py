"""obsidian and basic-memory: vaults of notes. Wiki links are links, #tags and front matter are tags; attachments come
as they are. In basic-memory's a list item ``- requires [[Other]]`` is a link of the type requires, and a link may name
a title or a permalink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from avmfs.transfer.formats import reader
from avmfs.transfer.notes import vault
from avmfs.transfer.record import Record, Refusal


@reader("obsidian", "an Obsidian vault: wiki links, #tags, front matter, attachments")
def obsidian(path: Path) -> Iterator[Record | Refusal]:
    return vault(path, "obsidian", relations=False)


@reader("basic-memory", "a basic-memory folder: observations, typed relations")
def basic_memory(path: Path) -> Iterator[Record | Refusal]:
    return vault(path, "basic-memory", relations=True)
