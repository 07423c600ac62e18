"""Extended attributes of real files: what is known about the document, as ``user.avm.*``.

Owns their names and how they map to the document. Offered per mount (``xattr: true``): their mere presence makes
``ls -l`` ask for them one by one. Written through the writers of the views, which parse and check. Directories have
none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from avmfs import paths, views
from avmfs.errors import Exists, NoAttribute, NotSupported
from avmfs.memory import Memory
from avmfs.node import Document, Kind, Node
from avmfs.store.queries.nodes import Reader
from avmfs.vfs.address import Address, Real
from avmfs.views import Context

PREFIX: Final = b"user.avm."

_READ: Final[dict[str, Callable[[Reader, Node, Document], str | None]]] = {
    "author": lambda reader, node, document: document.author,
    "id": lambda reader, node, document: f"@{document.handle}",
    "importance": lambda reader, node, document: None if document.importance is None else f"{document.importance:g}",
    "shared": lambda reader, node, document: None if document.shared is None else ",".join(document.shared),
    "source": lambda reader, node, document: reader.visible.origin(node.scope).plain or None,
    "tags": lambda reader, node, document: ",".join(reader.tags(document.id)) or None,
    "version": lambda reader, node, document: str(document.head),
}
"""None: the file has no such attribute."""

_WRITTEN: Final[dict[str, tuple[str, Callable[[str], str]]]] = {
    "importance": ("meta", lambda text: json.dumps({"importance": _number(text)})),
    "shared": ("shared", lambda text: text or "all"),
    "source": ("meta", lambda text: json.dumps({"sources": [each for each in text.split(",") if each]})),
    "tags": ("tags", lambda text: text),
}
"""The view whose writer takes it, and what it is given; an empty value removes the attribute."""


def names(memory: Memory, found: Address) -> list[bytes]:
    """Those that the file has, in order."""
    if not _has_any(found):
        return []
    with memory.reading() as reader:
        node, document = _asked(reader, found)
        return [PREFIX + name.encode() for name, read in _READ.items() if read(reader, node, document) is not None]


def get(memory: Memory, found: Address, name: bytes) -> bytes:
    """Raises NoAttribute."""
    read = _READ.get(paths.text(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else None
    if read is None or not _has_any(found):
        raise NoAttribute()
    with memory.reading() as reader:
        value = read(reader, *_asked(reader, found))
    if value is None:
        raise NoAttribute()
    return value.encode("utf-8", "surrogateescape")


def put(
    memory: Memory, found: Address, name: bytes, value: bytes, *, create: bool = False, replace: bool = False
) -> None:
    """Raises NotSupported for a name that cannot be set, Invalid for a value that is not right, Denied; Exists where it
    is to ``create`` an attribute that is there, NoAttribute where it is to ``replace`` one that is not."""
    if create or replace:
        try:
            get(memory, found, name)
        except NoAttribute:
            if replace:
                raise
        else:
            if create:
                raise Exists("the file has this attribute")
    known = _WRITTEN.get(paths.text(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else None
    if known is None or not isinstance(found, Real) or found.node.kind is not Kind.FILE:
        raise NotSupported(
            "of these attributes only user.avm.importance, .shared, .source and .tags can be set, of files"
        )
    view = views.find(known[0], found.node)
    if view is None or view.write is None:
        raise NotSupported(f":{known[0]} cannot be written")
    with memory.reading() as reader:
        path = reader.path(found.node.id)
        reader.visible.require(found.node.scope, paths.text(path))
    text = known[1](value.decode("utf-8", "surrogateescape").strip())
    if view.check is not None:
        view.check(text)
    view.write(Context(memory, found.node, path), text)


def remove(memory: Memory, found: Address, name: bytes, *, again: bool = False) -> None:
    """Raises NoAttribute, but where it is removed ``again``, and what put() does."""
    if not again:
        get(memory, found, name)
    if name == PREFIX + b"importance":
        raise NotSupported("importance can be set, not removed")
    put(memory, found, name, b"")


def _has_any(found: Address) -> bool:
    return isinstance(found, Real) and found.node.kind is Kind.FILE and found.node.document is not None


def _asked(reader: Reader, found: Address) -> tuple[Node, Document]:
    assert isinstance(found, Real)
    node = reader.node(found.node.id)
    return node, reader.document(node)


def _number(text: str) -> object:
    """A number if it reads as one; what is wrong with anything else the writer says."""
    try:
        return float(text)
    except ValueError:
        return text
