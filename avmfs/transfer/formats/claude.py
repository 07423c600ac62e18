"""claude: the conversations.json of Claude's data export, a conversation becomes a note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avmfs.transfer.files import document
from avmfs.transfer.formats import reader
from avmfs.transfer.notes import conversation, text_of
from avmfs.transfer.record import Record, Refusal, time_or_none


@reader("claude", "conversations.json of Claude's data export, its folder or zip")
def read(path: Path) -> Iterator[Record | Refusal]:
    said = document(path, "conversations.json")
    for number, each in enumerate(said if isinstance(said, list) else [said], 1):
        place = f"conversation {number}"
        messages = each.get("chat_messages") if isinstance(each, dict) else None
        if not isinstance(messages, list):
            yield Refusal(place, "no conversation: it has no chat_messages")
            continue
        told = [
            (text_of(one.get("sender", "unknown")), time_or_none(one.get("created_at")), text)
            for one in messages
            if isinstance(one, dict) and (text := _text(one)).strip()
        ]
        if not told:
            yield Refusal(f"{place} ({each.get('uuid')})", "it has no text")
            continue
        yield conversation(
            str(each.get("name") or ""),
            told,
            "claude",
            str(each.get("uuid") or f"{each.get('created_at')} {each.get('name')}"),
            created=each.get("created_at"),
            updated=each.get("updated_at"),
            tags=("conversation",),
        )


def _text(message: dict[str, Any]) -> str:
    """Its text, or the texts of its parts, and what was attached by name."""
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    text = message.get("text")
    if not isinstance(text, str) or not text.strip():
        text = "\n\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    lists = [message.get(key) for key in ("attachments", "files")]
    attached = [one for some in lists if isinstance(some, list) for one in some if isinstance(one, dict)]
    lines = []
    for one in attached:
        lines.append(f"[attached: {one.get('file_name', 'a file')}]")
        if isinstance(one.get("extracted_content"), str) and one["extracted_content"].strip():
            lines.append(one["extracted_content"])
    return "\n\n".join([text, *lines]) if text or lines else ""
