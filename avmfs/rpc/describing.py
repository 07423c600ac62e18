"""Methods of the door about what is said of files: tags, links, old versions, the state of the index; and several new
memories at once. Called through the registry."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import Invalid, NotFound
from avmfs.memory import Memory, check_tag
from avmfs.node import Version
from avmfs.rpc.documents import LARGEST
from avmfs.rpc.methods import method
from avmfs.store.commands.documents import check_tags
from avmfs.views.documents import DEFAULT_LINK, LINK_TYPE

REMEMBERED = 200  # new memories in one transaction: others wait meanwhile
PIECE = 8 * 1024 * 1024


@method
def tag(
    memory: Memory, path: str, add: list[str] | None = None, remove: list[str] | None = None, clear: bool = False
) -> dict[str, Any]:
    """Change the tags of a file, or ask for them: ``clear`` takes all away before ``add``. {"path", "tags"}."""
    check_tags(max(len(add or ()), len(remove or ())))
    wanted, unwanted = (sorted({check_tag(each) for each in given or ()}) for given in (add, remove))
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        reader.document(node)
    if wanted or unwanted or clear:
        memory.submit("set_tags", node=node.id, add=wanted, remove=unwanted, replace=clear)
    with memory.reading() as reader:
        node = reader.node(node.id)
        return {"path": paths.text(reader.path(node.id)), "tags": reader.tags(reader.document(node).id)}


@method
def tags(memory: Memory, path: str = "/") -> dict[str, Any]:
    """How many files below a directory have each tag. {"tags": {name: count}}, the most frequent first."""
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        return {"tags": dict(reader.tag_counts(node.id))}


@method
def link(memory: Memory, path: str, target: str, type: str | None = None, remove: bool = False) -> dict[str, Any]:
    """Link a file to another, or take the link away (of every type when none is named). {"path", "target", "type"}."""
    if type is not None and not LINK_TYPE.fullmatch(type):
        raise Invalid(f"link type {type!r}: expected a word of letters, digits, '.', '_' or '-'")
    with memory.reading() as reader:
        node, other = memory.resolve(reader, path), memory.resolve(reader, target)
        names = {"path": paths.text(reader.path(node.id)), "target": paths.text(reader.path(other.id))}
    if remove:
        memory.submit("remove_link", node=node.id, target=other.id, type=type)
        return {**names, "type": type}
    memory.submit("add_link", node=node.id, target=other.id, type=type or DEFAULT_LINK)
    return {**names, "type": type or DEFAULT_LINK}


@method
def version(
    memory: Memory, path: str, number: int | None = None, at: str | None = None, offset: int = 0
) -> dict[str, Any]:
    """A file as it was: version ``number``, or the one that stood at the ISO 8601 time ``at``. {"path", "version",
    "at", "author", "size", "data", "more", "untrusted"}: bytes from ``offset``, at most 8 MiB. Raises NotFound for a
    version that is not kept, or a time before the first."""
    if (number is None) == (at is None):
        raise Invalid("name a version, or a time: one of the two")
    if not 0 <= offset <= LARGEST:
        raise Invalid(f"offset {offset}: expected 0 or more")
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        versions = reader.versions(reader.document(node).id)
        found = _standing(memory, versions, number, at)
        if found is None:
            raise NotFound("no such version is kept", path)
        data = reader.version_bytes(found.document, found.number)
        return {
            "path": paths.text(reader.path(node.id)),
            "version": found.number,
            "at": mail.iso(found.at),
            "author": found.author,
            "size": found.size,
            "data": data[offset : offset + PIECE],
            "more": len(data) > offset + PIECE,
            "untrusted": reader.visible.untrusted(node.scope),
        }


@method
def remember_many(memory: Memory, items: list[Any]) -> dict[str, Any]:
    """Several new memories, all or none: each a mapping with what ``remember`` takes. {"paths"} in their order."""
    if len(items) > REMEMBERED:
        raise Invalid(f"{len(items)} memories: at most {REMEMBERED} at a time")
    made = [_new_memory(memory, index, item) for index, item in enumerate(items)]
    if not made:
        return {"paths": []}
    memory.enroll()
    return {"paths": [paths.text(each["path"]) for each in memory.submit("remember_many", items=made)]}


@method
def index_status(memory: Memory, path: str = "/") -> dict[str, Any]:
    """How far the index is. {"files", "waiting": {"words", "vectors"}, "model", "dimension", "state", "reason"}: the
    counts are of what the asker may see below ``path``; ``state`` is of the model, null without a daemon."""
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        counts = reader.counts(node.id)
    host = memory.around.host
    known = host("status", {})["embedding"] if host is not None else {}
    stored = memory.store.vector_model()
    return {
        "files": counts.files,
        "waiting": {"words": counts.waiting_lexical, "vectors": counts.waiting_semantic},
        "model": known.get("model") or (stored.model if stored is not None else None),
        "dimension": known.get("dimension") or (stored.dimension if stored is not None else None),
        "state": known.get("state"),
        "reason": known.get("reason"),
    }


_FIELDS: dict[str, tuple[type, ...]] = dict.fromkeys(
    ("content", "title", "path", "namespace", "ttl", "supersedes", "source"), (str,)
)
_FIELDS |= {"tags": (list, tuple), "importance": (int, float), "created": (int,)}


def _new_memory(memory: Memory, index: int, item: Any) -> dict[str, Any]:
    where = f"memory {index}"
    if not isinstance(item, dict) or not isinstance(item.get("content"), str):
        raise Invalid(f"{where}: expected a mapping with a content")
    for name, value in item.items():
        if name not in _FIELDS:
            raise Invalid(f"{where}: unknown key {name!r} (it may have: {', '.join(_FIELDS)})")
        if value is not None and (isinstance(value, bool) or not isinstance(value, _FIELDS[name])):
            raise Invalid(f"{where}: {name}: wrong type {type(value).__name__}")
    if not all(isinstance(each, str) for each in item.get("tags") or ()):
        raise Invalid(f"{where}: tags: expected a list of text")
    try:
        return memory.new_memory(**{**item, "tags": item.get("tags") or ()})
    except Invalid as e:
        raise Invalid(f"{where}: {e.reason}") from None


def _standing(memory: Memory, versions: list[Version], number: int | None, at: str | None) -> Version | None:
    if number is not None:
        return next((each for each in versions if each.number == number), None)
    assert at is not None
    try:
        when = datetime.fromisoformat(at)
        moment = int((when if when.tzinfo else when.replace(tzinfo=memory.zone)).timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        raise Invalid(f"time {at[:80]!r}: expected ISO 8601, such as 2026-03-07T10:30") from None
    return next((each for each in versions if each.at // 1000 <= moment // 1000), None)  # times are told in us
