"""From a path in the mount to what it addresses.

Owns the shape of one agent's tree: real nodes below /memory, the aliases /shared and /private, mailboxes,
short handles, questions, and the views of whatever exists. Pure resolution: looking something up never
writes, embeds, searches or marks. Knows nothing of FUSE and nothing of open files.
"""

from __future__ import annotations

from dataclasses import dataclass

from avmfs import paths, views
from avmfs.errors import NameTooLong, NotDirectory, NotFound
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT
from avmfs.views import View

ASK = b":ask"


@dataclass(frozen=True, slots=True)
class Real:
    """A node of the store."""

    node: Node


@dataclass(frozen=True, slots=True)
class Made(Real):
    """A file just as it was made here, by who could."""


@dataclass(frozen=True, slots=True)
class ViewOf:
    """A view of a node; ``name`` still holds its query."""

    view: View
    node: Node
    name: paths.ViewName


@dataclass(frozen=True, slots=True)
class Mailbox:
    recipient: str
    name: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """/:ask/NAME, an ephemeral file of this agent; ``name`` may carry recall parameters, ``stem`` is without them."""

    name: bytes

    @property
    def stem(self) -> bytes:
        return self.name.partition(b"?")[0]


@dataclass(frozen=True, slots=True)
class Alias:
    """A symlink that the tree itself has. ``target`` is relative to the root."""

    name: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that only the mount has: /tell or /:ask."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Then:
    """A node as it was: below ``/@TIME``. As little as is needed to find it again, since kernels keep many."""

    moment: Moment
    node: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class ViewThen:
    """A view of such a node."""

    moment: Moment
    of: ViewOf


Address = Real | ViewOf | Mailbox | Question | Alias | Place | Then | ViewThen


def aliases(memory: Memory) -> tuple[Alias, ...]:
    return (
        Alias(paths.PRIVATE, b"/".join((paths.MEMORY, paths.PRIVATE, paths.raw(memory.who.name)))),
        Alias(paths.SHARED, b"/".join((paths.MEMORY, paths.SHARED))),
    )


def leads(past: Memory, reader: Reader, alias: Alias) -> bool:
    """Whether there is what it leads to: a snapshot of a part may have neither /shared nor /private."""
    try:
        past.resolve(reader, b"/" + alias.target, follow=False)
    except NotFound:
        return False
    return True


def locate(memory: Memory, reader: Reader, path: bytes) -> Address:
    """What stands at ``path``. Raises NotFound or NotDirectory."""
    found: Address = Real(reader.node(ROOT))
    for name in paths.split(path):
        found = entry(memory, reader, found, name)
    return found


def entry(memory: Memory, reader: Reader, where: Address, name: bytes) -> Address:
    """What ``name`` is in a directory: a view, an alias of the root, or a real node. Raises NotFound, NotDirectory."""
    if isinstance(where, Then):
        past = memory.at(where.moment)
        with past.reading() as then:
            return of_then(past, then, where, name)
    if isinstance(where, Place):
        return _mailbox(reader, name) if where.name == paths.TELL else _question(memory, name)
    if not isinstance(where, Real) or where.node.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=paths.text(name))
    directory = where.node
    if directory.id == ROOT and name.startswith(b"@") and memory.then is None:
        text, rest = paths.split_moment(name)
        if text is not None:
            root = _past_root(memory, text)
            return root if rest == b"/" else entry(memory, reader, root, rest[1:])
    if directory.id == ROOT and name in (paths.TELL, ASK):
        return Place(name)
    if (parsed := paths.parse_view(name)) is not None:
        return _view(reader, directory, parsed)
    if directory.id == ROOT:
        for alias in aliases(memory):
            if alias.name == name:
                return alias
        if (handle := paths.parse_handle(name)) is not None and (named := reader.by_handle(handle)) is not None:
            return Alias(name, reader.path(named.id)[1:])
    found = reader.child(directory.id, name)
    if found is None:
        raise absent(name)
    return Real(found)


def _past_root(memory: Memory, text: str) -> Then:
    try:
        return Then(memory.moment(text), ROOT, Kind.DIRECTORY)
    except NotFound as e:
        memory.error = e.reason  # how far back it goes
        raise


def of_then(past: Memory, reader: Reader, where: Then, name: bytes) -> Address:
    """What a name was in a directory of the past, of which memory and reader are: a node, one of its views, or an
    alias, which leads into the past."""
    if where.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=paths.text(name))
    found = entry(past, reader, Real(reader.node(where.node)), name)
    if isinstance(found, Real):
        return Then(where.moment, found.node.id, found.node.kind)
    if isinstance(found, ViewOf) and found.view.past:
        return ViewThen(where.moment, found)
    if isinstance(found, Alias) and leads(past, reader, found):
        return found
    raise absent(name)


def absent(name: bytes) -> NotFound | NameTooLong:
    """Why there is no such name: kernels let FUSE have longer ones than can be made, for queries."""
    if len(name) > paths.NAME_MAX:
        return NameTooLong(path=paths.text(name))
    return NotFound(path=paths.text(name))


def _view(reader: Reader, directory: Node, parsed: paths.ViewName) -> ViewOf:
    handle = paths.parse_handle(parsed.base) if directory.id == ROOT else None
    if not parsed.base:
        node: Node | None = directory
    elif handle is not None:
        node = reader.by_handle(handle)
    else:
        node = reader.child(directory.id, parsed.base)
    view = views.find(parsed.view, node) if node is not None else None
    if node is None or view is None:
        raise NotFound()
    return ViewOf(view, node, parsed)


def _mailbox(reader: Reader, name: bytes) -> Mailbox:
    recipient = paths.text(name.partition(b"?")[0].partition(b":")[0])
    if recipient != paths.EVERYONE and recipient not in reader.agents():
        raise NotFound(f"no agent is called {recipient!r}", paths.text(name))
    return Mailbox(recipient, name)


def _question(memory: Memory, name: bytes) -> Question:
    found = Question(name)
    if paths.text(found.stem) not in memory.questions:
        raise NotFound(path=paths.text(name))
    return found
