"""What a store is, for everybody above it: the seam where a second engine fits.

Owns two Protocols. A ``Reader`` answers questions on one snapshot, for one asker; nothing that the asker
cannot see, and nothing whose ttl has passed, ever leaves it. ``submit`` runs one of the commands of
``avmfs.store.commands``, durably: when it returns, the change survives kill -9 and power loss. The
contract suite (tests/contract) runs over every implementation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from avmfs.access import Principal
from avmfs.handover import HandoverState
from avmfs.node import Change, Document, Ended, Entry, Link, Live, Mark, Moment, Node, Removed, Snapshot, Version
from avmfs.store.protocol.audit import AuditReader
from avmfs.store.protocol.claims import ClaimsReader
from avmfs.store.protocol.discovery import DiscoveryReader
from avmfs.store.protocol.mail import MailReader
from avmfs.store.protocol.outbox import OutboxReader
from avmfs.store.protocol.pending import PendingReader
from avmfs.store.protocol.people import PeopleReader
from avmfs.store.rows.scopes import Visible
from avmfs.store.rows.vector_model import VectorModel


@dataclass(frozen=True, slots=True)
class Counts:
    """What one agent may see below a directory. ``tags``: how many files have each, the most frequent first."""

    files: int
    directories: int
    symlinks: int
    bytes: int
    versions: int
    tags: tuple[tuple[str, int], ...]
    links: int
    waiting_lexical: int
    waiting_semantic: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Nodes of which something has changed, and (parent, name) of entries that now stand for something else."""

    nodes: frozenset[int]
    names: frozenset[tuple[int, bytes]]


class Reader(Protocol):
    """Questions on one snapshot. Node arguments that the asker cannot see raise NotFound."""

    who: Principal
    visible: Visible
    now: int

    @property
    def people(self) -> PeopleReader: ...
    @property
    def discovery(self) -> DiscoveryReader: ...
    @property
    def outbox(self) -> OutboxReader: ...
    @property
    def mail(self) -> MailReader: ...
    @property
    def pending(self) -> PendingReader: ...
    @property
    def audit(self) -> AuditReader: ...
    @property
    def claims(self) -> ClaimsReader: ...
    def moment(self, when: Moment | int | str) -> Moment:
        """The instant that a time in ns, a snapshot's name or ``Moment(seq, 0)`` means. Raises NotFound for what is not
        kept any more, or not yet there."""
        ...

    def snapshots(self) -> list[Snapshot]:
        """The asker's own and the operators', the newest first."""
        ...

    def node(self, node: int) -> Node: ...
    def child(self, parent: int, name: bytes) -> Node | None: ...
    def children(self, parent: int) -> list[Node]:
        """In order of name."""
        ...

    def subdirectories(self, parent: int) -> int: ...
    def path(self, node: int) -> bytes:
        """Absolute. Raises NotFound for an unlinked file."""
        ...

    def open_node(self, node: int) -> Node:
        """Like node(), for one that is held open: its name may be gone, its ttl over. Raises Stale."""
        ...

    def read(self, node: int, offset: int, length: int) -> bytes: ...
    def seek(self, node: int, offset: int, *, hole: bool) -> int | None:
        """Where data, or a hole, begins from ``offset`` on; the end of file is a hole. None past the end of file, or
        when there is no more data. Raises Stale."""
        ...

    def target(self, node: int) -> bytes:
        """Of a symlink."""
        ...

    def document(self, node: Node) -> Document: ...
    def by_handle(self, handle: str) -> Node | None: ...
    def versions(self, document: int) -> list[Version]:
        """Newest first."""
        ...

    def version_bytes(self, document: int, number: int) -> bytes: ...
    def tags(self, document: int) -> list[str]: ...
    def links(self, document: int) -> list[Link]: ...
    def disputes(self, limit: int) -> list[tuple[int, int, str]]:
        """Nodes that contradict each other by a link and of which neither supersedes the other, and who says so; the
        newest first."""
        ...

    def mark(self, subject: int) -> Mark | None: ...
    def unindexed(self, document: int) -> str | None:
        """Why the document is in no index; "" while it waits; None when it is indexed."""
        ...

    def awaits_vectors(self, document: int) -> bool:
        """Whether some of its passages have no vector yet, in a store where vectors are made."""
        ...

    def newest_seq(self) -> int: ...
    def live(self, path: bytes) -> Live | None:
        """What is known of the source of a live path; None where nobody has asked it yet."""
        ...

    def changes(
        self, under: int, *, after_seq: int = 0, since: int = 0, limit: int = 100, newest_first: bool = True
    ) -> list[Change]: ...
    def listing(
        self, under: int, *, limit: int, offset: int, query: str | None = None, tag: str | None = None
    ) -> tuple[list[tuple[Entry, str]], int]:
        """(entry, first line) in order of name, and how many there are in all. With a query or tag: the whole
        subtree; else the directory's own entries."""
        ...

    def counts(self, under: int) -> Counts: ...
    def tag_counts(self, under: int) -> list[tuple[str, int]]: ...
    def file_counts(self, under: int, limit: int) -> list[tuple[bytes, int]]:
        """Directories in ``under`` and how many files the asker sees below each, those with the most first."""
        ...

    def removed(self, limit: int) -> list[Removed]:
        """Files in the trash, the newest removal first."""
        ...

    def has_term(self, term: str, but: set[int]) -> bool:
        """For an operator: whether the text of any document but these has an index term."""
        ...

    def ended(self) -> list[Ended]:
        """Documents of before that the asker could change where they were; none for an API key."""
        ...

    def agents(self) -> list[str]: ...


class Past(Reader, Protocol):
    """Questions on the tree as it was."""

    def path_unchanged(self, node: int) -> bytes | None:
        """The path that a file had then, if its bytes are those of today."""
        ...

    def changed_since(self, most: int) -> int:
        """Files of then, at most so many, whose bytes are otherwise now, or gone."""
        ...


class Attendant(Protocol):
    """Somebody whose threads submit, and have others waiting for them."""

    def answer_from(self, descriptor: int) -> None:
        """This thread is about to wait for what can be read there, which will not take long. Returns when something
        can be read, or when this thread may wait."""
        ...

    def aside(self) -> None:
        """This thread is about to wait, for who knows how long."""
        ...


class Store(Protocol):
    """One store, from one process."""

    def reading(self, who: Principal) -> AbstractContextManager[Reader]: ...
    def reading_at(self, who: Principal, then: Moment) -> AbstractContextManager[Past]:
        """The tree as it was: names, bytes, modes, times, what was said of documents; of it what the asker could see
        then and may see now."""
        ...

    def cached_state(self) -> int:
        """The same number for as long as nothing has been committed, by any process, that concerns what the other
        peeks tell: what is derived from their answers is valid while this is what it was before they were asked for."""
        ...

    def cached_changes(self, since: int) -> Changes | None:
        """What has changed since an earlier state; None: anything may have."""
        ...

    def cached_node(self, who: Principal, node: int) -> Node:
        """Like Reader.open_node, from memory while nothing has been committed. Raises Stale."""
        ...

    def cached_gone(self, who: Principal, node: int) -> Node | None:
        """A directory or symlink that has been removed, as it was last, without its name; None where that is not known
        any more: at most of the last 1,024 of those that were remembered, and visible, when it was."""
        ...

    def cached_child(self, who: Principal, parent: int, name: bytes) -> Node | None: ...
    def cached_children(self, who: Principal, parent: int, after: bytes, limit: int) -> tuple[list[Node], bool]:
        """The entries of a directory in order of name, from the first after ``after`` on, at most ``limit``; and
        whether there are more. Raises Stale."""
        ...

    def cached_read(self, who: Principal, node: int, offset: int, length: int) -> bytes:
        """Like Reader.read. Raises Stale."""
        ...

    def cached_subdirectories(self, who: Principal, parent: int) -> int: ...
    def cached_counts(self, who: Principal, under: int) -> Counts:
        """Like Reader.counts, from memory while nothing has been committed and nothing has expired."""
        ...

    def cached_writable(self, who: Principal, scope: int) -> bool: ...
    def cached_live(self, who: Principal, scope: int) -> bool:
        """Return whether what has this scope comes from outside the store."""
        ...

    def submit(self, who: Principal, command: str, **arguments: Any) -> Any:
        """Run a write command. Raises what the command raises, Busy when the writer cannot be reached in time."""
        ...

    def nonce(self, who: Principal, seq: int, question: str) -> str:
        """What fences an answer (see fence.py): six digits, the same for the same arguments."""
        ...

    def search_index(self, who: Principal, aside: str = "") -> Any:
        """An avmfs.search.index.SearchIndex for this asker (a layer above: named there)."""
        ...

    def vector_model(self) -> VectorModel | None:
        """None while nothing has ever been embedded."""
        ...

    def pending_passages(self, model: str, limit: int) -> Sequence[tuple[int, int, str]]:
        """Passages that wait for a vector: (id, document, text), the newest first. For the indexer."""
        ...

    def idle_documents(self, model: str, limit: int) -> list[int]:
        """Documents on the semantic queue with nothing to embed. For the indexer."""
        ...

    def queue_lengths(self) -> tuple[int, int]:
        """Documents waiting for words and for vectors."""
        ...

    def anything_expired(self) -> bool:
        """Return whether there is a node whose ttl has passed and that still takes room."""
        ...

    def unwiped(self) -> bool:
        """Return whether something was purged whose bytes may still be in the store's file."""
        ...

    def orphans(self) -> list[tuple[int, int]]:
        """Unlinked files: (node, when a mount last said that it holds it open, 0 for never)."""
        ...

    def watch(
        self, notify: Callable[[int], None], every_s: float = 0.0, mail: bool = False
    ) -> AbstractContextManager[None]:
        """Call ``notify(seq)`` from another thread when the watch begins and soon after commits; several commits may be
        one call, all those within ``every_s`` are. ``mail``: only after commits that send messages, to whomever."""
        ...

    def feed_cache(
        self,
        descriptors: Sequence[int],
        names: bytes,
        node: bytes,
        at: int,
        switch: Callable[[bool], None],
        over: threading.Event,
        registered: int | None = None,
        keep: Callable[[int], None] = lambda descriptor: None,
    ) -> None:
        """Keep a kernel cache told of changes (see sinks), until ``over``; blocks. Returns at once where no daemon
        runs: nothing may be cached then. ``keep`` and ``registered``: see submit.WriterClient."""
        ...

    def keep(self, kept: HandoverState, origin: bytes | None) -> bytes:
        """Note what `once` spans in memory that outlives this process, and go on where its predecessor was killed.
        Returns the origin that the writer knows this process by; ``origin`` is the predecessor's."""
        ...

    def once(self, kind: int, key: int) -> AbstractContextManager[None]:
        """Of what this thread submits inside, each is applied once and answered with its first answer, even when the
        process is killed and its successor runs the same work, named by ``kind`` and ``key``, again. Without `keep`
        nothing is promised."""
        ...

    def left(self, kind: int, key: int) -> bool:
        """Return whether the predecessor was killed while it did this work."""
        ...

    def settle(self, kind: int, still: set[int]) -> None:
        """Of the predecessor's work of this kind only ``still`` will be run again."""
        ...

    def attended(self, by: Attendant) -> None:
        """From now on tell of waiting, in the thread that submits, before it waits."""
        ...

    def capacity(self) -> os.statvfs_result:
        """Of the filesystem that holds the store."""
        ...

    def close(self) -> None: ...
