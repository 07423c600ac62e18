"""chatgpt and claude: the conversations.json of their data exports, a conversation becomes a note. One of ChatGPT is a
tree of messages; the note has the branch that was open last, and says how many messages stand in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from avmfs.transfer.files import document
from avmfs.transfer.formats import reader
from avmfs.transfer.notes import conversation, text_of
from avmfs.transfer.record import Record, Refusal, time_or_none

Note = Callable[[str, dict[str, Any]], Record | Refusal]


@reader("chatgpt", "conversations.json of ChatGPT's data export, its folder or zip")
def chatgpt(path: Path) -> Iterator[Record | Refusal]:
    return _read(path, "mapping", dict, _of_chatgpt)


@reader("claude", "conversations.json of Claude's data export, its folder or zip")
def claude(path: Path) -> Iterator[Record | Refusal]:
    return _read(path, "chat_messages", list, _of_claude)


def _read(path: Path, key: str, kind: type, note: Note) -> Iterator[Record | Refusal]:
    """Of each conversation that has its messages under ``key`` what ``note`` makes of it, given its place."""
    said = document(path, "conversations.json")
    for number, each in enumerate(said if isinstance(said, list) else [said], 1):
        place = f"conversation {number}"
        good = isinstance(each, dict) and isinstance(each.get(key), kind)
        yield note(place, each) if good else Refusal(place, f"no conversation: it has no {key}")


def _of_chatgpt(place: str, each: dict[str, Any]) -> Record | Refusal:
    mapping = each["mapping"]
    id = text_of(each.get("conversation_id") or each.get("id") or f"{each.get('create_time')} {each.get('title')}")
    told = {name: message for name, node in mapping.items() if (message := _message(node)) is not None}
    branch = [name for name in _branch(mapping, each.get("current_node")) if name in told]
    if not branch:
        return Refusal(f"{place} ({id})", "it has no text")
    others = len(told) - len(branch)
    return conversation(
        str(each.get("title") or ""),
        [told[name] for name in branch],
        "chatgpt",
        id,
        created=each.get("create_time"),
        updated=each.get("update_time"),
        tags=("conversation",),
        meta={"other_branches": others} if others else {},
    )


def _of_claude(place: str, each: dict[str, Any]) -> Record | Refusal:
    told = [
        (text_of(one.get("sender", "unknown")), time_or_none(one.get("created_at")), text)
        for one in each["chat_messages"]
        if isinstance(one, dict) and (text := _claude_text(one)).strip()
    ]
    if not told:
        return Refusal(f"{place} ({each.get('uuid')})", "it has no text")
    return conversation(
        str(each.get("name") or ""),
        told,
        "claude",
        str(each.get("uuid") or f"{each.get('created_at')} {each.get('name')}"),
        created=each.get("created_at"),
        updated=each.get("updated_at"),
        tags=("conversation",),
    )


def _branch(mapping: dict[str, Any], leaf: Any) -> list[str]:
    """From the root to the leaf; without one that is there, to the newest message. A circle ends where it closes."""
    if not isinstance(leaf, str) or leaf not in mapping:
        leaf = max(mapping, key=lambda name: _time(mapping[name]), default=None)
    way: list[str] = []
    seen: set[Any] = set()
    while isinstance(leaf, str) and leaf in mapping and leaf not in seen:
        seen.add(leaf)
        way.append(leaf)
        leaf = _mapping(mapping[leaf]).get("parent")
    return way[::-1]


def _time(node: Any) -> float:
    at = _mapping(_mapping(node).get("message")).get("create_time")
    return at if isinstance(at, int | float) else float("-inf")


def _message(node: Any) -> tuple[str, int | None, str] | None:
    """Who, when, text; None for what has none, or is hidden from the people who talk."""
    message = _mapping(_mapping(node).get("message"))
    if _mapping(message.get("metadata")).get("is_visually_hidden_from_conversation"):
        return None
    content = _mapping(message.get("content"))
    parts = content.get("parts")
    told = parts if isinstance(parts, list) else [content.get("text")]
    texts = [part if isinstance(part, str) else _other(part) for part in told if part]
    text = "\n\n".join(each for each in texts if each.strip())
    who = _mapping(message.get("author")).get("role", "unknown")
    return (text_of(who), time_or_none(message.get("create_time")), text) if text else None


def _mapping(said: Any) -> dict[str, Any]:
    """It, or an empty one in the place of what is none: what others keep has odd records in it."""
    return said if isinstance(said, dict) else {}


def _other(part: Any) -> str:
    """A part that is no text."""
    if not isinstance(part, dict):
        return str(part)
    return part["text"] if isinstance(part.get("text"), str) else f"[{part.get('content_type', 'not text')}]"


def _claude_text(message: dict[str, Any]) -> str:
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
