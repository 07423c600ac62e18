"""mem0: its export or the answer of its get_all, a memory becomes a note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from avmfs.transfer.files import document
from avmfs.transfer.formats import reader
from avmfs.transfer.notes import slug, tags_of, text_of
from avmfs.transfer.record import Record, Refusal, time_or_none


@reader("mem0", "mem0's memories as JSON")
def read(path: Path) -> Iterator[Record | Refusal]:
    """A list, or an object with one in ``results`` or ``memories``."""
    said = document(path, "memories.json")
    if isinstance(said, dict):
        said = next((said[key] for key in ("results", "memories") if isinstance(said.get(key), list)), [said])
    for number, each in enumerate(said if isinstance(said, list) else [said], 1):
        place = f"{path.name}: memory {number}"
        text = each.get("memory", each.get("content", each.get("text"))) if isinstance(each, dict) else None
        if not isinstance(text, str) or not text.strip():
            yield Refusal(place, "no memory: it has no text")
            continue
        created = time_or_none(each.get("created_at"))
        metadata = each.get("metadata")
        who = next((each[key] for key in ("agent_id", "user_id") if isinstance(each.get(key), str)), None)
        id = each.get("id", each.get("hash"))
        yield Record(
            f"{slug(text)}.md",
            (text_of(text).strip() + "\n").encode(),
            author=who,
            created=created,
            updated=time_or_none(each.get("updated_at")) or created,
            tags=tags_of(each.get("categories")),
            meta={"mem0": metadata} if isinstance(metadata, dict) and metadata else {},
            source=f"mem0:{text_of(id) if id is not None else text_of(text)[:200]}",
            place=place if id is None else f"{place} ({id})",
        )
