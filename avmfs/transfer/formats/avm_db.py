"""avm-db: the database of the earlier AVM. Its tree below /memory, with what its nodes and edges say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from avmfs.store.foreign import earlier_avm
from avmfs.transfer.formats import reader
from avmfs.transfer.notes import importance_of, kind_of, tags_of
from avmfs.transfer.record import Record, Refusal, time_or_none

_OURS: Final = ("tags", "importance", "created_by", "author", "shared_with", "expires_at")


@reader("avm-db", "the earlier AVM's avm.db", into="/memory")
def read(path: Path) -> Iterator[Record | Refusal]:
    """What it kept beside memory (/trash, /tell, /live and the like) is refused."""
    for row in earlier_avm.nodes(path):
        name = os.fsdecode(row["path"] or b"")
        if not name.startswith("/memory/"):
            yield Refusal(name, "not below /memory")
            continue
        meta = _meta(row["meta"])
        directory = row["node_type"] in (b"directory", b"dir")
        shared = meta.get("shared_with")
        yield Record(
            name.removeprefix("/memory/").rstrip("/"),
            None if directory else row["content"] or b"",
            author=next((str(meta[key]) for key in ("created_by", "author") if meta.get(key)), None),
            created=time_or_none(os.fsdecode(row["created_at"] or b"")),
            updated=time_or_none(os.fsdecode(row["updated_at"] or b"")),
            tags=tags_of(meta.get("tags")),
            links=tuple((target.removeprefix("/memory/"), kind_of(kind)) for target, kind in row["edges"]),
            importance=importance_of(meta.get("importance")),
            expires=time_or_none(meta.get("expires_at")),
            shared=tuple(map(str, shared)) if isinstance(shared, list) and shared and "all" not in shared else None,
            meta={key: value for key, value in meta.items() if key not in _OURS},
            source=None if directory else f"avm-db:{name}",
            folder=path,
            place=name,
        )


def _meta(said: bytes | None) -> dict[str, Any]:
    """What is no JSON is kept as it is."""
    try:
        meta = json.loads(said or b"{}")
    except (ValueError, RecursionError):  # or nested too deeply
        meta = None
    return meta if isinstance(meta, dict) else {"meta": os.fsdecode(said or b"")[:4096]}
