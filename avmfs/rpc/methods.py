"""Every method of the door, one function each; those about what is known of files are in ``documents``.

A method takes one agent's memory and plain values, and returns plain values (what msgpack can carry). Its
signature is checked against what a caller sent: names and types. Adding a method is adding a function
with ``@method``. The policy is applied below, in the store; nothing here decides who may see what.
"""

from __future__ import annotations

import importlib
import inspect
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import Busy, Invalid, NotFound, StoreFailed
from avmfs.memory import Memory
from avmfs.node import Kind, Message
from avmfs.search.engine import Answer
from avmfs.search.pack import format_search, summary
from avmfs.text import segment
from avmfs.vfs import address
from avmfs.vfs.address import Alias
from avmfs.vfs.tree import Tree

PIECE = 8 * 1024 * 1024
WARMUP_S = 100.0  # below the client's own time limit
_METHODS: dict[str, Callable[..., Any]] = {}
_MODULES = ("documents",)  # which import this one: they are loaded with the first call


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    _METHODS[function.__name__] = function
    return function


def names() -> tuple[str, ...]:
    return tuple(sorted(_loaded()))


def call(memory: Memory, name: str, arguments: dict[str, Any]) -> Any:
    """Run one method. Raises Invalid for an unknown name or arguments of the wrong name or type."""
    function = _loaded().get(name)
    if function is None:
        raise Invalid(f"unknown method {name!r}")
    _check(name, function, arguments)
    return function(memory, **arguments)


@cache
def _loaded() -> dict[str, Callable[..., Any]]:
    for module in _MODULES:
        importlib.import_module(f"avmfs.rpc.{module}")
    return _METHODS


@method
def read(memory: Memory, path: str, offset: int = 0, limit: int = PIECE, banner: bool = True) -> dict[str, Any]:
    """A file or view from ``offset``. {"data", "more"}: a real file comes in pieces of ``limit`` bytes (at most 8 MiB),
    a view whole. Without ``banner`` no view has urgent mail on top: the caller shows that apart."""
    if offset < 0:
        raise Invalid(f"offset {offset}: expected 0 or more")
    if not 1 <= limit <= PIECE:
        raise Invalid(f"limit {limit}: expected 1 to {PIECE}")
    if not banner:
        quiet = replace(memory, quiet=True)
        try:
            return read(quiet, path, offset, limit)  # type: ignore[no-any-return]
        finally:
            memory.error = quiet.error
    tree = _tree(memory)
    handle = tree.open(tree.locate(_canonical(memory, path)), os.O_RDONLY)
    try:
        data = handle.read(offset, limit if not handle.direct else PIECE)
        if handle.direct:
            pieces = [data]
            while piece := handle.read(offset + sum(map(len, pieces)), PIECE):
                pieces.append(piece)
            return {"data": b"".join(pieces), "more": False}
        return {"data": data, "more": len(data) == limit}
    finally:
        handle.release()


@method
def write(memory: Memory, path: str, data: bytes, mode: str = "replace") -> dict[str, Any]:
    """Write a file (``mode``: replace, create, append) or a view. {"path", "version"}."""
    where = _canonical(memory, path)
    with memory.reading() as reader:
        try:
            real = isinstance(address.locate(memory, reader, where), address.Real)
        except NotFound:
            real = True
    if real:
        memory.enroll()
        written = memory.submit("write_path", path=list(paths.split(where)), data=data, mode=mode)
        return {"path": paths.text(where), "version": written["version"]}
    tree = _tree(memory)
    handle = tree.open(tree.locate(where), os.O_WRONLY)
    try:
        handle.write(0, data)
        handle.flush()
    finally:
        handle.release()
    return {"path": paths.text(where), "version": None}


@method
def entries(memory: Memory, path: str = "/") -> list[dict[str, Any]]:
    """The entries of a directory, or the file itself: [{"name", "kind", "size", "mtime", "mode"}] by name."""
    tree = _tree(memory)
    where = _canonical(memory, path)
    found = tree.locate(where)
    attributes = tree.attributes(found)
    if not stat.S_ISDIR(attributes.mode):
        return [_entry(paths.split(where)[-1], attributes)]
    return [_entry(name, tree.lookup(found, name)[1]) for name, _, _ in tree.names(found)]


@method
def remove(memory: Memory, path: str, recursive: bool = False) -> dict[str, Any]:
    return {"removed": memory.delete(path, recursive=recursive)}


@method
def move(memory: Memory, source: str, target: str) -> dict[str, Any]:
    moved = memory.move(source, target)
    return {"moved": [[paths.text(old), paths.text(new)] for old, new in moved]}


@method
def make_directory(memory: Memory, path: str) -> dict[str, Any]:
    memory.make_directories(memory.real_parts(paths.raw(path)))
    return {}


@method
def search(memory: Memory, q: str, limit: int = 10, under: str = "/", mode: str = "hybrid") -> dict[str, Any]:
    """{"text", "hits": [{"path", "handle", "relevance", "score", "summary"}], "degraded"}."""
    if mode not in ("hybrid", "lexical", "semantic"):
        raise Invalid(f"search mode {mode!r}")
    if not 1 <= limit <= 1000:
        raise Invalid(f"limit {limit}: expected 1 to 1000")
    answer = memory.search(q, limit=limit, under=_under(memory, under), mode=mode)  # type: ignore[arg-type]
    return {"text": format_search(answer), "hits": _hits(answer), "degraded": answer.degraded}


@method
def recall(
    memory: Memory, q: str, max_tokens: int | None = None, min_relevance: float | None = None,
    strategy: str = "balanced", under: str = "/", cite: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """{"text", "tokens", "degraded", "seq", "items"}; ``text`` is empty when nothing is relevant."""
    if min_relevance is not None and not 0 <= min_relevance <= 1:  # also refuses nan
        raise Invalid(f"min_relevance {min_relevance}: expected 0 to 1")
    found = memory.recall(
        q, max_tokens=max_tokens, min_relevance=min_relevance, strategy=strategy, under=_under(memory, under), cite=cite
    )
    return {
        "text": found.text, "tokens": found.tokens, "degraded": found.degraded, "seq": found.seq,
        "items": len(found.hits),
    }  # fmt: skip


@method
def remember(
    memory: Memory, content: str, title: str | None = None, path: str | None = None, tags: list[str] | None = None,
    importance: float | None = None, namespace: str | None = None, created: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """{"path"} of the new memory."""
    where = memory.remember(
        content, title=title, path=path, tags=tags or (), importance=importance, namespace=namespace, created=created
    )
    return {"path": where}


@method
def tell(
    memory: Memory, recipient: str, body: str, priority: str = "normal", expires: str | None = None
) -> dict[str, Any]:
    return {"id": memory.tell(recipient, body, priority=priority, expires=expires)}


@method
def inbox(memory: Memory, unread_only: bool = False, mark_read: bool = False) -> dict[str, Any]:
    """{"text", "messages"}; ``mark_read`` marks just what is shown."""
    messages = memory.inbox(unread_only=unread_only)
    if mark_read:
        memory.mark_read([message.id for message in messages if message.read_at is None])
    return {"text": mail.listing(messages, memory.zone), "messages": [_message(each) for each in messages]}


@method
def warmup(memory: Memory) -> dict[str, Any]:
    """Wait until the model is there and has embedded a word. {"model", "dimension"}. Raises StoreFailed with the
    reason when there is none, Busy when it takes longer than WARMUP_S."""
    host = memory.around.host
    state = host("status", {})["embedding"] if host is not None else {}
    deadline = time.monotonic() + WARMUP_S
    while host is not None and state.get("state") == "loading":
        if time.monotonic() > deadline:
            raise Busy(f"the model is not loaded after {WARMUP_S:g} s")
        time.sleep(0.1)
        state = host("status", {})["embedding"]
    answer = memory.around.engine.search(memory.who, "warmup", limit=1, mode="semantic")
    if answer.degraded is not None:
        raise StoreFailed(f"semantic search unavailable: {answer.degraded}")
    return {"model": state.get("model"), "dimension": state.get("dimension")}


@method
def urgent(memory: Memory) -> str:
    """The banner of unread urgent mail, empty when there is none."""
    return memory.banner()


def _tree(memory: Memory) -> Tree:
    return Tree(memory, uid=os.getuid(), gid=os.getgid())


def _canonical(memory: Memory, path: str, *, follow: bool = True) -> bytes:
    """The path with aliases spelled out and directories' symlinks followed; the last name may be a view."""
    parts = memory.real_parts(paths.raw(path))
    if not parts or parts[0] in (paths.TELL, address.ASK):
        return paths.join(parts)
    with memory.reading() as reader:
        directory = b"/" if len(parts) == 1 else _directory(memory, reader, parts[:-1])
        where = directory.rstrip(b"/") + b"/" + parts[-1]
        try:
            found = address.locate(memory, reader, where)
        except NotFound:
            return where
        symlink = isinstance(found, address.Real) and found.node.kind is Kind.SYMLINK
        if follow and (symlink or isinstance(found, Alias)):
            return reader.path(memory.resolve(reader, where).id)
        return where


def _directory(memory: Memory, reader: Any, parts: tuple[bytes, ...]) -> bytes:
    try:
        return bytes(reader.path(memory.resolve(reader, paths.join(parts)).id))
    except NotFound:
        return paths.join(parts)


def _under(memory: Memory, under: str) -> tuple[bytes, ...]:
    if under == "/":
        return ()
    with memory.reading() as reader:
        node = memory.resolve(reader, under)
        if node.kind is not Kind.DIRECTORY:
            raise Invalid("not a directory", under)
        return paths.split(reader.path(node.id))


def _entry(name: bytes, found: Any) -> dict[str, Any]:
    kind = "directory" if stat.S_ISDIR(found.mode) else "symlink" if stat.S_ISLNK(found.mode) else "file"
    return {
        "name": paths.text(name), "kind": kind, "size": found.size, "mtime": found.mtime,
        "mode": stat.filemode(found.mode),
    }  # fmt: skip


def _hits(answer: Answer) -> Any:
    terms = segment.query_terms(answer.query)
    return [
        {
            "path": paths.text(scored.hit.path), "handle": f"@{scored.hit.handle}", "relevance": scored.relevance,
            "score": scored.score, "summary": summary(scored.hit.text, terms),
        }
        for scored in answer.hits
    ]  # fmt: skip


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": message.id, "sender": message.sender, "recipient": message.recipient, "priority": message.priority,
        "body": message.body, "at": mail.iso(message.at), "expires": mail.iso(message.expires),
        "read": message.read_at is not None,
    }  # fmt: skip


@cache
def _schema(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    """Types and parameters of a method, but for the memory."""
    return get_type_hints(function), dict(tuple(inspect.signature(function).parameters.items())[1:])


def _check(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    hints, parameters = _schema(function)
    for given, value in arguments.items():
        if given not in parameters:
            raise Invalid(f"{name}: unknown argument {given!r}")
        if not _fits(value, hints[given]):
            raise Invalid(f"{name}: {given}: wrong type {type(value).__name__}")
    for wanted, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and wanted not in arguments:
            raise Invalid(f"{name}: {wanted} is required")


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (None, NoneType):
        return value is None
    if get_origin(hint) is not None:
        (inner,) = get_args(hint)
        return isinstance(value, get_origin(hint)) and all(_fits(each, inner) for each in value)
    return isinstance(value, hint)
