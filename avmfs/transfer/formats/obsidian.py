"""obsidian: a vault. Wiki links are links, #tags and front matter are tags; attachments come as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from avmfs.transfer.formats import reader
from avmfs.transfer.notes import vault
from avmfs.transfer.record import Record, Refusal


@reader("obsidian", "an Obsidian vault: wiki links, #tags, front matter, attachments")
def read(path: Path) -> Iterator[Record | Refusal]:
    return vault(path, "obsidian", relations=False)
