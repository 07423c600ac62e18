"""Addresses and open virtual nodes as plain values, for the process that takes a mount over.

Owns what of them outlives a process. Called by the front end, which keeps the values; nothing here asks the store, so
that a takeover does not wait for it.
"""

from __future__ import annotations

from typing import Any

from avmfs import paths, views
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.vfs.address import Address, Alias, Mailbox, Place, Question, Real, Then, ViewOf, ViewThen
from avmfs.vfs.inject import InjectedHandle, Injection
from avmfs.vfs.live_handle import LiveHandle
from avmfs.vfs.virtual_handles import MailHandle, PastHandle, QuestionHandle, ViewHandle, VirtualHandle
from avmfs.views import AtEnd, Context, Rendered


def plain_node(node: Node) -> list[Any]:
    return [int(value) if isinstance(value, Kind) else value for value in node]


def node_from(values: list[Any]) -> Node:
    node = Node(*values)
    return node._replace(kind=Kind(node.kind))


def plain_address(found: Address) -> list[Any]:
    if isinstance(found, Real):
        return ["node", plain_node(found.node)]
    if isinstance(found, ViewOf):
        return ["view", plain_node(found.node), _plain_name(found.name)]
    if isinstance(found, Mailbox):
        return ["mailbox", found.recipient, found.name]
    if isinstance(found, Alias):
        return ["alias", found.name, found.target]
    if isinstance(found, Then | ViewThen):
        raise ValueError("a node of the past is not handed over")
    return ["place" if isinstance(found, Place) else "question", found.name]


def address_from(values: list[Any]) -> Address:
    """Inverse of plain_address. Raises Invalid for a view that there is no more."""
    kind, *rest = values
    if kind == "node":
        return Real(node_from(rest[0]))
    if kind == "view":
        node, name = node_from(rest[0]), _name_from(rest[1])
        return ViewOf(_view(name, node), node, name)
    if kind == "mailbox":
        return Mailbox(*rest)
    if kind == "alias":
        return Alias(*rest)
    return Place(rest[0]) if kind == "place" else Question(rest[0])


def plain_handle(handle: VirtualHandle) -> list[Any]:
    """What is known when it is opened."""
    rendered = handle.rendered
    end = None if rendered is None or rendered.at_end is None else [rendered.at_end.name, rendered.at_end.values]
    shown = None if rendered is None else [rendered.data, end]
    if isinstance(handle, ViewHandle):
        context = handle.context
        what: list[Any] = ["view", plain_node(context.node), context.path, _plain_name(handle.name)]
    elif isinstance(handle, MailHandle):
        what = ["mail", handle.name]
    elif isinstance(handle, LiveHandle):
        what = ["live", handle.node, [*handle.parts], bytes(handle.data), handle.emptied]
    elif isinstance(handle, PastHandle):
        what = ["past", list(handle.memory.then or ()), handle.node]
    elif isinstance(handle, InjectedHandle):
        what = ["injected", handle.node]
    else:
        assert isinstance(handle, QuestionHandle)
        what = ["question", handle.whole_name]
    return [what, handle.readable, handle.writable, shown]


def handle_from(memory: Memory, values: list[Any], injection: Injection | None = None) -> VirtualHandle:
    """Inverse of plain_handle; ``injection`` is the mount's, where it has one. Raises Invalid for a view that there is
    no more."""
    (kind, *what), readable, writable, shown = values
    if kind == "mail":
        return MailHandle(memory, what[0])
    if kind == "live":
        return LiveHandle(memory, what[0], tuple(what[1]), what[2], readable, emptied=what[3])
    if kind == "past":
        return PastHandle(memory.at(Moment(*what[0])), what[1])
    if kind == "injected":
        return (injection or Injection(memory)).opened(what[0], shown[0])
    if kind == "question":
        rendered = None if shown is None else Rendered(shown[0])
        return QuestionHandle(memory, what[0], readable, writable, None, None, rendered)
    node, name = node_from(what[0]), _name_from(what[2])
    context = Context(memory, node, what[1])
    rendered = None
    if shown is not None:
        rendered = Rendered(shown[0], None if shown[1] is None else AtEnd(shown[1][0], context, shown[1][1]))
    return ViewHandle(memory, _view(name, node), node, what[1], name, readable, writable, rendered)


def is_as_opened(handle: VirtualHandle) -> bool:
    """Return whether it is a mailbox that has sent all that it was given: ``plain_handle`` says all of it."""
    return isinstance(handle, MailHandle) and not handle.written and not handle.refused


def plain_progress(handle: VirtualHandle) -> list[Any]:
    """How far a handle has got; changes with what is done to it."""
    if isinstance(handle, ViewHandle):
        return [handle.ended, handle.applied, handle.undo, handle.refused]
    if isinstance(handle, MailHandle):
        return [handle.ended, handle.refused]
    if isinstance(handle, LiveHandle):
        return [handle.written_to, handle.emptied, handle.refused]
    if isinstance(handle, QuestionHandle):
        return [handle.ended, handle.asked]
    return [handle.ended]


def set_progress(handle: VirtualHandle, values: list[Any], data: bytes) -> None:
    """Inverse of plain_progress; ``data`` is what was written then, framed."""
    if data:
        handle.edit(data)
    if isinstance(handle, LiveHandle):
        handle.written_to, handle.emptied, handle.refused = values
        return
    handle.ended = values[0]
    if isinstance(handle, ViewHandle):
        handle.applied, handle.undo, handle.refused = (*values[1:], None, False)[:3]  # older versions knew of fewer
        if handle.refused:
            handle.refuse()
    elif isinstance(handle, MailHandle):
        (handle.refused,) = values[1:]
    elif isinstance(handle, QuestionHandle):
        (handle.asked,) = values[1:] or (0,)  # older versions did not know


def _view(name: paths.ViewName, node: Node) -> views.View:
    found = views.find(name.view, node)
    if found is None:
        raise Invalid(f"there is no view :{name.view} of it any more")
    return found


def _plain_name(name: paths.ViewName) -> list[Any]:
    return [name.base, name.view, name.query, None if name.literal is None else list(name.literal)]


def _name_from(values: list[Any]) -> paths.ViewName:
    base, view, query, literal = values
    return paths.ViewName(base, view, query, None if literal is None else (literal[0], literal[1]))
