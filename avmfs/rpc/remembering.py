"""The methods of the door that store memories: one, which looks whether the agent has it already, or several at once.
Called through the registry.

The older note is looked for among what the asker may find, by its words: nothing tells of notes that it cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Denied, Exists, Invalid, NotFound
from avmfs.memory import Memory
from avmfs.node import Document, Node
from avmfs.rpc.files import reached
from avmfs.rpc.methods import method
from avmfs.search.contradictions import contradicted
from avmfs.search.current import RIVALS
from avmfs.search.duplicates import NEAR, likeness
from avmfs.search.engine import Scored
from avmfs.store.queries.nodes import Reader
from avmfs.text import segment, sniff
from avmfs.views.shape import parts

REMEMBERED: Final = 200  # new memories in one transaction: others wait meanwhile
ON_DUPLICATE: Final = ("keep", "update", "refuse")
_ASKED: Final = 400  # characters of a note by which others are looked for
_RIVALS: Final = 8  # that are compared
_LARGEST: Final = 64 * 1024  # bytes of a note that is compared


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An older note that says the same."""

    node: Node
    document: Document
    path: str
    likeness: float

    def __str__(self) -> str:
        how = "exactly" if self.likeness == 1 else f"nearly, {self.likeness:.2f}"
        return f"@{self.document.handle} says it already ({how})"


@method
def remember(
    memory: Memory,
    content: str,
    title: str | None = None,
    path: str | None = None,
    tags: list[str] | None = None,
    importance: float | None = None,
    namespace: str | None = None,
    created: int | None = None,
    on_duplicate: str = "keep",
    ttl: str | None = None,
    supersedes: str | None = None,
    source: str = "own",
) -> dict[str, Any]:
    """{"path", "done", "duplicate": {"path", "handle", "likeness"} or None, "contradicts": [{"path", "handle"}]}: the
    older note that says the same, if any, ``likeness`` 1 being the same text; and those that seem to say something else
    of the same matter, of which nothing is done. ``on_duplicate``: "keep" both (done "stored"), "update" the older one
    (done "updated", with the longer ttl of the two; where others may read it than what was to be made, "stored"),
    "refuse": raises Exists, which names it. ``supersedes``: a file, by path or handle, that holds no more; it is no
    duplicate then. ``source``: "own" words, or how the text came in: "tool", "web", "imported", "live"."""
    if on_duplicate not in ON_DUPLICATE:
        raise Invalid(f"on_duplicate {on_duplicate!r}: expected {', '.join(ON_DUPLICATE)}")
    made = memory.new_memory(content, title, path, tags or (), importance, namespace, created, ttl, supersedes, source)
    _follow(memory, made)
    hits = _alike(memory, content, made["supersedes"])
    found = _duplicate(memory, content, hits)
    told = {
        "duplicate": None if found is None else _told(found),
        "contradicts": _contradicted(content, hits, found),
    }
    if found is not None and on_duplicate == "refuse":
        raise Exists(str(found), found.path)
    memory.enroll()
    if found is not None and on_duplicate == "update":
        with memory.reading() as reader:
            alike = _same_readers(reader, found, tuple(made["path"]))
        if alike:
            older = {"path": list(parts(paths.raw(found.path))), "over": found.document.head}
            memory.submit("remember", **{**made, **older})
            return {"path": found.path, "done": "updated", **told}
    try:
        stored = memory.submit("remember", **made)
    except Denied as e:  # no argument names where it was to be made
        e.filename = e.filename or path or paths.text(paths.join(tuple(made["path"][:-1])))
        raise
    return {"path": paths.text(stored["path"]), "done": "stored", **told}


@method
def remember_many(memory: Memory, items: list[Any]) -> dict[str, Any]:
    """Several new memories, all or none: each a mapping with what ``remember`` takes but ``on_duplicate``. {"paths"} in
    their order."""
    if len(items) > REMEMBERED:
        raise Invalid(f"{len(items)} memories: at most {REMEMBERED} at a time")
    made = [_new_memory(memory, index, item) for index, item in enumerate(items)]
    if not made:
        return {"paths": []}
    memory.enroll()
    return {"paths": [paths.text(each["path"]) for each in memory.submit("remember_many", items=made)]}


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
        made = memory.new_memory(**{**item, "tags": item.get("tags") or ()})
    except Invalid as e:
        raise Invalid(f"{where}: {e.reason}") from None
    _follow(memory, made)
    return made


def _follow(memory: Memory, made: dict[str, Any]) -> None:
    """Directories' symlinks on the way are followed, as wherever a path is written."""
    *above, name = made["path"]
    with memory.reading() as reader:
        made["path"] = [*parts(reached(memory, reader, tuple(above))), name]


def _alike(memory: Memory, content: str, gone: int | None) -> list[Scored]:
    """Notes that the asker may find by its words, best first, but for the node ``gone``; none where it may not look."""
    if not (memory.who.may("search") and memory.who.may("read")) or len(content) > _LARGEST:
        return []
    answer = memory.search(segment.as_question(content[:_ASKED]), limit=RIVALS, mode="lexical")
    return [scored for scored in answer.hits if scored.hit.node != gone]


def _contradicted(content: str, hits: list[Scored], same: Duplicate | None) -> list[dict[str, Any]]:
    """But for what says the ``same``."""
    known = None if same is None else same.node.id
    return [
        {"path": paths.text(scored.hit.path), "handle": f"@{scored.hit.handle}"}
        for scored in contradicted(content, hits)
        if scored.hit.node != known
    ]


def _duplicate(memory: Memory, content: str, hits: list[Scored]) -> Duplicate | None:
    """The most alike of ``hits``; of several the older."""
    best: Duplicate | None = None
    for scored in hits[:_RIVALS]:
        with memory.reading() as reader:
            try:
                node = reader.node(scored.hit.node)
                text = sniff.decode(reader.read(node.id, 0, node.size)) if node.size <= _LARGEST else None
                document, path = reader.document(node), paths.text(reader.path(node.id))
            except NotFound:  # it went meanwhile
                continue
        found = 0.0 if text is None else likeness(content, text)  # which may take long, with no snapshot open
        if found >= NEAR and (best is None or found > best.likeness):
            best = Duplicate(node, document, path, found)
    return best


def _same_readers(reader: Reader, found: Duplicate, where: tuple[bytes, ...]) -> bool:
    """Return whether what is made at ``where`` is for the same agents as the older note."""
    scope = reader.people.policy().scope
    return found.document.shared is None and scope(where) == scope(parts(paths.raw(found.path)))


def _told(found: Duplicate) -> dict[str, Any]:
    return {"path": found.path, "handle": f"@{found.document.handle}", "likeness": round(found.likeness, 2)}
