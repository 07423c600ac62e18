"""The tree as it was, for one asker: a Reader like that of today, after a change of the log.

Owns the reading of ``past`` and its companions (``tx.states`` writes them). A name is one look at the index of the
names of now and one at that of the past, however large the tree is. Who asks sees what it may see *now* of what it
could have seen *then*: the place by the rules of today, the node by where it is or was last, and the class that it was
in. Called by ``Store.reading_at``.
"""

from __future__ import annotations

import contextlib
import json
from itertools import chain
from typing import Any, Final

import apsw

from avmfs import calls, paths
from avmfs.access import Principal
from avmfs.errors import Invalid, NotFound, ReadOnly
from avmfs.node import Document, Entry, Kind, Link, Mark, Moment, Node, Version
from avmfs.store.queries.counts import Counts
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows import content, kept_versions, preview, version_visibility
from avmfs.store.rows.nodes import NODE_JOINED, members, node_of
from avmfs.store.rows.parts import Parts
from avmfs.store.rows.scopes import Visible
from avmfs.store.schema.tables import ASIDE, ROOT

_NOW: Final = f"select {NODE_JOINED}, coalesce(head, 0) from node left join document on document.id = node.document"
_THEN: Final = (
    "select node, parent, name, kind, mode, uid, gid, size, null, mtime, mtime, scope, document, expires, version,"
    " since from past"
)
_HAS_HANDLE: Final = "select id from document where handle = ?"
_HAD_HANDLE: Final = (
    "select distinct document from past_said where what = 'document' and json_extract(value, '$[0]') = ?"
)
_TOP_TAGS: Final = 1000


class PastReader(Reader):
    """See the module. What has no past (mail, marks, what waits for the index) is as of now, or nothing."""

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible, now: int, then: Moment) -> None:
        super().__init__(db, who, visible, now)
        self.then = then
        self._states: dict[int, tuple[Node, int] | None] = {}  # as asked for already, with the version
        self._part = None if then.root == ROOT else Parts(db, [(then.seq, then.root)])

    # Nodes -----------------------------------------------------------------------------------------------------

    def node(self, node: int) -> Node:
        found = self._state(node)
        if found is None:
            raise NotFound()
        return found[0]

    def open_node(self, node: int) -> Node:
        return self.node(node)

    def child(self, parent: int, name: bytes) -> Node | None:
        now: Any = self._db.execute(
            f"{_NOW} where parent = ? and name = ? and since <= ?", (parent, name, self.then.seq)
        ).fetchone()
        was: Any = None
        if now is None:
            was = self._db.execute(
                f"{_THEN} where parent = ? and name = ? and until > ? order by until limit 1",
                (parent, name, self.then.seq),
            ).fetchone()
        return self._taken(now, was)

    def children(self, parent: int) -> list[Node]:
        self.node(parent)
        now = self._db.execute(f"{_NOW} where parent = ? and since <= ?", (parent, self.then.seq)).fetchall()
        was = self._db.execute(
            f"{_THEN} where parent = ? and until > ? and since <= ?", (parent, self.then.seq, self.then.seq)
        ).fetchall()
        found = [self._taken(row, None) for row in now] + [self._taken(None, row) for row in was]
        return sorted((node for node in found if node is not None), key=lambda node: node.name)

    def subdirectories(self, parent: int) -> int:
        return sum(node.kind is Kind.DIRECTORY for node in self.children(parent))

    def path(self, node: int) -> bytes:
        return paths.join(self._parts(node))

    def target(self, node: int) -> bytes:
        self.node(node)
        row: Any = self._db.execute(
            "select target from past where node = ?1 and until > ?2 and target is not null limit 1",
            (node, self.then.seq),
        ).fetchone()
        if row is None:
            row = self._db.execute(
                "select data from node join body on body.id = node.body where node.id = ?", (node,)
            ).fetchone()
        return bytes(row[0]) if row is not None else b""

    def by_handle(self, handle: str) -> Node | None:
        """A document keeps its handle; once it has ended, another one may draw it."""
        for holders in (_HAS_HANDLE, _HAD_HANDLE):
            rows: list[Any] = self._db.execute(holders, (handle,)).fetchall()
            for (document,) in rows:
                if (node := self.node_with(document)) is not None:
                    return self.node(node)
        return None

    def read(self, node: int, offset: int, length: int) -> bytes:
        """Raises NotFound where the bytes are no longer kept, whatever is known of the file."""
        self.who.require("read")
        found = self._state(node)
        if found is None:
            raise NotFound()
        state, version = found
        if not state.size:
            return b""
        current: Any = self._db.execute(
            "select size, extents from node where id = ? and since <= ?", (node, self.then.seq)
        ).fetchone()
        if current is not None:
            return content.read(self._db, node, current[0], bool(current[1]), offset, length)
        data = None
        if state.document is not None:
            length = max(0, min(length, state.size - offset))
            data = kept_versions.read_at(self._db, state.document, version, offset, length)
        if data is None:
            raise NotFound("its bytes of then are no longer kept", paths.text(self.path(node)))
        return data

    def seek(self, node: int, offset: int, *, hole: bool) -> int | None:
        size = self.node(node).size
        return None if offset >= size else size if hole else offset

    def _state(self, node: int) -> tuple[Node, int] | None:
        if node not in self._states:
            now: Any = self._db.execute(f"{_NOW} where node.id = ? and since <= ?", (node, self.then.seq)).fetchone()
            was: Any = None
            if now is None or (now[1] is None and node != ROOT):
                was = self._db.execute(
                    f"{_THEN} where node = ? and until > ? order by until limit 1", (node, self.then.seq)
                ).fetchone()
            if self._taken(None if was is not None else now, was) is None:
                self._states[node] = None
        return self._states[node]

    def _taken(self, now: Any, was: Any) -> Node | None:
        """A row of today, or of the past, as far as the asker may see it."""
        if now is not None:
            row, shows = now, now[11] in self.visible and (now[1] is not None or now[0] == ROOT)
        elif was is not None and was[15] <= self.then.seq:
            row, shows = was, self._showed(was)
        else:
            return None
        if not shows or (row[13] is not None and row[13] <= self.then.at):
            return None
        if self._part is not None and not self._part.has(row[0], row[1], self.then.seq, self.then.seq + 1):
            return None
        node = node_of(row[:14])
        self._states[node.id] = (node, row[14])
        return node

    def _showed(self, was: Any) -> bool:
        """Rights are those of now, and no veil is lifted: a node has to be visible by the class that it was in, by the
        rules of today for the place where it was, and where it is now, or was last."""
        if not self._standing.holds(was[11]):
            return False
        if self.who.operator:
            return True
        last = self._db.execute("select scope from node where id = ? and parent is not null", (was[0],)).get
        if last is not None and last not in self.visible:
            return False
        if was[12] is not None and (of := self._last_scope(was[12])) is not None and of not in self.visible:
            return False
        if was[1] is None:
            return True
        try:
            place = (*self._parts(was[1]), bytes(was[2]))
        except NotFound:
            return False
        return self._standing.reads(paths.join(place))

    def _last_scope(self, document: int) -> int | None:
        live = self._db.execute(
            "select scope from document join node on node.id = document.node where document.id = ?", (document,)
        ).get
        if live is None and (ended := self._ended(document)) is not None:
            live = ended[6]
        return None if live is None else int(live)

    def _parts(self, node: int) -> tuple[bytes, ...]:
        found = self.node(node)
        return () if node == ROOT else (*self._place(found.parent), found.name)

    def _place(self, directory: int | None) -> tuple[bytes, ...]:
        way: list[Node] = []
        while (known := self._places.get(directory)) is None:
            if directory is None:
                raise NotFound()
            way.append(self.node(directory))
            directory = way[-1].parent
        for each in reversed(way):
            known = self._places[each.id] = (*known, each.name)
        return known

    # Documents -------------------------------------------------------------------------------------------------

    def _ended(self, document: int) -> list[Any] | None:
        value = self._db.execute(
            "select value from past_said where document = ? and what = 'document' order by until limit 1", (document,)
        ).get
        return None if value is None else json.loads(value)

    def _told(self, document: int, what: str) -> Any:
        """What was said of it then, where it has changed since; None: as it is now."""
        value = self._db.execute(
            "select value from past_said where document = ? and what = ? and until > ? order by until limit 1",
            (document, what, self.then.seq),
        ).get
        return None if value is None else json.loads(value)

    def _require_document(self, document: int | None) -> None:
        """Raises NotFound for one of which no node that was asked for is visible."""
        if not any(held is not None and held[0].document == document for held in self._states.values()):
            raise NotFound()

    def document(self, node: Node) -> Document:
        state = self._state(node.id)
        if state is None or state[0].document is None:
            raise NotFound()
        number, head = state[0].document, state[1]
        row: Any = self._db.execute(
            "select handle, creator, created, importance, user, shared, node from document where id = ?", (number,)
        ).fetchone()
        if row is None and (row := self._ended(number)) is None:
            raise NotFound()
        handle, creator, created, importance, user, shared, _ = row
        if (meta := self._told(number, "meta")) is not None:
            importance, user = meta
        newest = next((each for each in self.versions(number) if each.number == head), None)
        by: tuple[str, int] = (creator, created) if newest is None else (newest.author, newest.at)
        user, route = json.loads(user or "{}"), "" if newest is None else newest.route
        return Document(number, node.id, handle, creator, created, importance, members(shared), head, *by, user, route)

    def versions(self, document: int) -> list[Version]:
        self._require_document(document)
        heads = [held[1] for held in self._states.values() if held is not None and held[0].document == document]
        oldest = version_visibility.oldest_seen(self._db, document, self._standing.saw)
        rows = self._db.execute(
            "select document, number, at, author, size, seq, route from version where document = ?1"
            " and number between ?2 and ?3 union all select document, number, at, author, size, since, route"
            " from past_version where document = ?1 and number between ?2 and ?3 order by 2 desc",
            (document, oldest, max(heads)),
        )
        return [Version(*row) for row in rows]

    def version_bytes(self, document: int, number: int) -> bytes:
        self.who.require("read")
        if all(each.number != number for each in self.versions(document)):
            raise Invalid(f"v{number} is not kept, or came later")
        data = kept_versions.whole(self._db, document, number)
        if data is None:
            raise Invalid(f"v{number} is no longer kept")
        return data

    def tags(self, document: int) -> list[str]:
        self._require_document(document)
        told = self._told(document, "tags")
        if told is not None:
            return sorted(told)
        return [row[0] for row in self._db.execute("select tag from tag where document = ? order by tag", (document,))]

    def links(self, document: int, *, told: bool = False) -> list[Link]:
        self._require_document(document)
        links = self._told(document, "links")
        if links is None:
            links = self._db.execute(
                "select source, target, type from link where source = ?1 or target = ?1", (document,)
            ).fetchall()
        found = []
        for source, target, kind in links:
            other = self.node_with(target if source == document else source)
            if other is not None and not (told and self.trusted_as(self.node(other)) in self.visible.held):
                found.append(Link(source == document, self.path(other), kind))
        return sorted(found, key=lambda link: (not link.outgoing, link.path, link.type))

    def node_with(self, document: int) -> int | None:
        """The node that carried a document then, if the asker may see it: the one of now, or of its end."""
        now = self._db.execute("select node from document where id = ?", (document,)).get
        rows: list[Any] = [(now,)] if now is not None else []
        rows += self._db.execute(
            "select node from past where document = ? and since <= ? and until > ?",
            (document, self.then.seq, self.then.seq),
        ).fetchall()
        for (node,) in rows:
            held = self._state(node)
            if held is not None and held[0].document == document:
                return int(node)
        return None

    def mark(self, subject: int) -> Mark | None:
        return None

    def unindexed(self, document: int) -> str | None:
        return None

    def awaits_vectors(self, document: int) -> bool:
        return False

    # Together --------------------------------------------------------------------------------------------------

    def listing(
        self, under: int, *, limit: int, offset: int, query: str | None = None, tag: str | None = None
    ) -> tuple[list[tuple[Entry, str]], int]:
        if query is None and tag is None:
            found = [node for node in self.children(under) if node.id not in ASIDE]
        else:
            found = [node for node in self._below(under) if node.kind is Kind.FILE]
        if tag is not None:
            found = [node for node in found if node.document is not None and tag in self.tags(node.document)]
        if query:
            self._require_contents()
            found = [node for node in found if preview.mentions(query, node.name, self._beginning(node))]
        found.sort(key=lambda node: (node.name, node.id))
        told = self.who.may("read") or self.who.may("search")
        return [
            (
                Entry(node, self.path(node.id), self._handle(node)),
                self.visible.quoted(self.trusted_as(node), preview.first_line(self._beginning(node)))
                if told and node.kind is Kind.FILE
                else "",
            )
            for node in found[offset : offset + limit]
        ], len(found)

    def _beginning(self, node: Node) -> bytes:
        try:
            return self.read(node.id, 0, preview.READ)
        except NotFound:
            return b""

    def trusted_as(self, node: Node) -> int:
        """Today's, where that says anything, for what was found out since; or that of then."""
        last = None if node.document is None else self._last_scope(node.document)
        return last if last is not None and last in self.visible and self.visible.untrusted(last) else node.scope

    def _handle(self, node: Node) -> str | None:
        return None if node.document is None else self.document(node).handle

    def _below(self, under: int) -> list[Node]:
        """All that could be seen below a directory, but for what is in quarantine; of the whole tree, without what is
        aside."""
        found: list[Node] = []
        held = self.visible.held
        waiting = [under]
        while waiting:
            calls.go_on()
            below = [node for node in self.children(waiting.pop()) if under != ROOT or node.id not in ASIDE]
            found += [node for node in below if not held or self.trusted_as(node) not in held]
            waiting += [node.id for node in below if node.kind is Kind.DIRECTORY]
        return found

    def counts(self, under: int) -> Counts:
        found = self._below(under)
        files = [node for node in found if node.kind is Kind.FILE]
        documents = [node.document for node in files if node.document is not None]
        versions = sum(len(self.versions(document)) for document in documents)
        links = sum(link.outgoing for document in documents for link in self.links(document))
        directories, symlinks = (sum(node.kind is kind for node in found) for kind in (Kind.DIRECTORY, Kind.SYMLINK))
        size, tags = sum(node.size for node in files), tuple(self._tagged(files))
        return Counts(len(files), directories, symlinks, size, versions, tags, links, 0, 0)

    def tag_counts(self, under: int) -> list[tuple[str, int]]:
        return self._tagged(self._below(under))

    def _tagged(self, nodes: list[Node]) -> list[tuple[str, int]]:
        number: dict[str, int] = {}
        for node in nodes:
            for tag in self.tags(node.document) if node.document is not None else ():
                number[tag] = number.get(tag, 0) + 1
        return sorted(number.items(), key=lambda each: (-each[1], each[0]))[:_TOP_TAGS]

    def file_counts(self, under: int, limit: int) -> list[tuple[bytes, int]]:
        raise ReadOnly("directories are not counted in the past")

    def path_unchanged(self, node: int, aside: str, among: str) -> bytes | None:
        """The path that a file had then, if a search of what is ``aside`` (``paths.searched``) looked there, and its
        bytes are those of today, ``among`` what is searched today (``Visible.searched``)."""
        held = self._state(node)
        if held is None or held[0].document is None:
            return None
        now: Any = self._db.execute(
            "select head, size, scope from document join node on node.id = node where document.id = ? and node = ?"
            " and (expires is null or expires > ?)",
            (held[0].document, node, self.now),
        ).fetchone()  # of one version more may have been appended since
        same = now is not None and now[:2] == (held[1], held[0].size) and now[2] in self.visible.searched(among)[0]
        return self.path(node) if same and self._looked_at(held[0], aside) else None

    def _looked_at(self, node: Node, aside: str) -> bool:
        """Return whether a search of what stands ``aside`` looked at it then: it is not in quarantine."""
        try:
            stood = paths.aside(self._parts(node.id))
        except NotFound:  # what is above it cannot be seen
            return False
        there = stood == aside or (not stood and aside == "archive")
        return there and (not self.visible.held or self.trusted_as(node) not in self.visible.held)

    def unchanged_below(self, under: int, aside: str, among: str) -> list[int]:
        """Documents of the files below a directory then that ``path_unchanged`` has a path of."""
        files = [node for node in self._below(under) if self.path_unchanged(node.id, aside, among) is not None]
        return [node.document for node in files if node.document is not None]

    def changed_since(self, most: int, aside: str, among: str) -> int:
        """Files that a search of then looked at, at most so many, whose bytes are otherwise now, or gone, or stand
        elsewhere: see ``path_unchanged``."""
        rows = self._db.execute(
            f"{_THEN} where until > ?1 and since <= ?1 and kind = {int(Kind.FILE)} order by id desc", (self.then.seq,)
        )
        expired = self._db.execute(  # and not put into the past yet
            f"{_NOW} where expires <= ? and since <= ? and kind = {int(Kind.FILE)}", (self.now, self.then.seq)
        )
        found = 0
        with contextlib.closing(expired), contextlib.closing(rows):  # as in Reader.changes
            for node in chain((self._taken(row, None) for row in expired), (self._taken(None, row) for row in rows)):
                calls.go_on()
                if node is None or self.path_unchanged(node.id, aside, among) is not None:
                    continue
                found += self._looked_at(node, aside)
                if found >= most:
                    break
        return found
