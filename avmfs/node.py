"""Frozen values that every layer speaks of: nodes, documents, versions, changes, messages.

Owns their shape only. Nothing here knows SQL, FUSE or policy. Times are integers,
nanoseconds since the epoch (UTC); names are bytes, as the kernel gives them; sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from avmfs.text.escapes import visible

RERANKER = "re-ranker unavailable"  # how the reason begins where vectors had their part, and it had none
ITS_SEARCH = "the search of"  # likewise, where a source of live content was to be searched
UNINDEXED = "the words' index lacks the latest changes"  # likewise, where nothing can be written
NO_ROOM = "(nothing fits)\n"  # of an answer for which the budget of tokens is too small
UNOWNED = -1  # to chown(2): whoever's mount shows it
Priority = Literal["urgent", "normal", "low"]


class Kind(IntEnum):
    """What a node is. The numbers are stored."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class Node(NamedTuple):
    """An inode: the kernel's object. ``parent`` is None for the root and for a file that was unlinked
    while open. ``uid``/``gid`` are None until somebody other than the mount's owner creates or chowns it.

    A tuple, unlike the other values: a listing makes thousands of them, and this takes an eighth of the time."""

    id: int
    parent: int | None
    name: bytes
    kind: Kind
    mode: int
    uid: int | None
    gid: int | None
    size: int
    atime: int
    mtime: int
    ctime: int
    scope: int
    document: int | None
    expires: int | None


@dataclass(frozen=True, slots=True)
class Document:
    """The lineage of a name: what tags, links, sharing, history, handle and marks belong to."""

    id: int
    node: int
    handle: str
    creator: str
    created: int
    importance: float | None
    shared: tuple[str, ...] | None
    head: int
    author: str
    updated: int
    user: dict[str, object] = field(default_factory=dict)
    route: str = ""  # by which door the newest version came; "": not known


class Moment(NamedTuple):
    """An instant of the past: after the change ``seq``, at a time in ns; of a snapshot of a part, the node ``root``
    with what is below it."""

    seq: int
    at: int
    root: int = 1

    @property
    def key(self) -> bytes:
        """What tells it from others in the numbers of nodes."""
        return b"%d" % self.seq if self.root == 1 else b"%d.%d" % (self.seq, self.root)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An instant that ``agent`` gave a name, and that is kept whatever else is forgotten."""

    name: str
    agent: str  # "": an operator
    then: Moment


@dataclass(frozen=True, slots=True)
class Version:
    document: int
    number: int
    at: int
    author: str
    size: int
    seq: int
    route: str = ""

    @property
    def type(self) -> str:
        """What its change was, in the words that subscriptions have for it."""
        return "create" if self.number == 1 else "write"


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the log. ``path`` is where the node stood after the change (before it, for a removal);
    ``other`` is the old path of a rename."""

    seq: int
    at: int
    op: str
    agent: str
    node: int
    document: int | None
    version: int | None
    path: bytes
    other: bytes | None


@dataclass(frozen=True, slots=True)
class Live:
    """What is known of the source of a live path. ``source``: by which provider, without secrets; ``fetched``: when
    what is kept of it was right, None for never; ``until``: till then nobody asks again; ``error``: why the last try
    failed, "" where it did not."""

    source: str
    fetched: int | None
    until: int
    error: str


@dataclass(frozen=True, slots=True)
class Link:
    """An edge as seen from one document: ``outgoing`` points away from it; ``path`` is the other end."""

    outgoing: bool
    path: bytes
    type: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an agent stopped reading: a version of a document, or a seq for a directory."""

    version: int
    seq: int


@dataclass(frozen=True, slots=True)
class Message:
    """``id`` is its number, the same for its sender and all receivers, as are ``re``, of the message that it answers
    (None when the receiver does not have that one), and ``thread``, of the first that the receiver has of its thread.
    """

    id: int
    sender: str
    recipient: str
    priority: Priority
    body: str
    at: int
    expires: int | None
    read_at: int | None
    re: int | None
    thread: int


DISPUTES = ("supersedes", "contradicts")
"""Types of links that say something of the truth of their target."""


DERIVES = ("derived", "summarizes", "supersedes")
"""Types of links from what was made of their target: what is known of how that came in holds of it, too."""


class Dispute(NamedTuple):
    """A document, whose handle this is, supersedes or contradicts another, ``target``."""

    source: int
    handle: str
    target: int
    type: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a listing: a node with what a reader wants to see of it."""

    node: Node
    path: bytes
    handle: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A file in the trash: when (ns) and by whom it was removed, and from where."""

    node: Node
    at: int
    agent: str
    path: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A document that has ended and of which the past has something: when (ns), and the path where it was last."""

    document: int
    at: int
    path: bytes
    creator: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found, with what ranking and rendering need of its document. ``whole``: the
    passage is the entire text. ``start`` and ``stop`` are characters. ``untrusted``: where it came from, with commas,
    if that is to be marked."""

    passage: int
    document: int
    node: int
    path: bytes
    handle: str
    author: str
    updated: int
    created: int
    importance: float | None
    version: int
    tags: tuple[str, ...]
    text: str
    start: int
    stop: int
    whole: bool
    route: str = ""
    untrusted: str = ""


class StoredNode(str):
    """The text of a file or view of the store, which knows its path."""

    path: str

    def __new__(cls, path: str, content: str) -> StoredNode:
        made = super().__new__(cls, content)
        made.path = path
        return made

    def __reduce__(self) -> tuple[type[StoredNode], tuple[str, str]]:
        return StoredNode, (self.path, self.content)

    @property
    def content(self) -> str:
        """The text, as a plain str."""
        return str(self)


def signed(author: str, route: str) -> str:
    """Who wrote something and by which door, ``alice/cli``; the author alone where the door is not known."""
    return f"{author}/{route}" if route else author


def notice(degraded: str | None) -> str:
    """The line above an answer that says what had no part in it, and why ("": vectors, without); "" where all had."""
    if degraded is None:
        return ""
    whole = degraded.startswith((RERANKER, ITS_SEARCH, UNINDEXED))
    said = degraded if whole else f"semantic search unavailable: {degraded}"
    return f"# {visible(' '.join(said.split())).removesuffix(':')}\n"
