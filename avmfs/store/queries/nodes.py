"""Questions to the SQLite store: every SELECT that a view or the vfs needs.

One instance serves one request on a pooled connection, inside
one short read transaction. The visible scopes go into every query as a JSON list; the clock goes in
too, so that a passed ttl hides a node from all routes at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import cached_property
from itertools import islice
from typing import Any

import apsw

from avmfs import calls, paths
from avmfs.access import Access, Principal
from avmfs.errors import Invalid, NotFound, Stale
from avmfs.node import Change, Document, Ended, Entry, Kind, Link, Live, Mark, Moment, Node, Removed, Snapshot, Version
from avmfs.store.queries import counts as counting
from avmfs.store.queries import index_queue, moments
from avmfs.store.queries.audit import AuditReader
from avmfs.store.queries.claims import ClaimsReader
from avmfs.store.queries.counts import Counts
from avmfs.store.queries.discovery import DiscoveryReader
from avmfs.store.queries.mail import MailReader
from avmfs.store.queries.outbox import OutboxReader
from avmfs.store.queries.part import PartOf
from avmfs.store.queries.pending import PendingReader
from avmfs.store.queries.people import PeopleReader
from avmfs.store.queries.quarantine import QuarantineReader
from avmfs.store.queries.standing import Standing
from avmfs.store.rows import api_keys, content, kept_versions, log_ops, preview, version_visibility
from avmfs.store.rows.nodes import NODE, NODE_JOINED, members, node_of
from avmfs.store.rows.scopes import Visible
from avmfs.store.rows.stored_policy import policy_in_force
from avmfs.store.schema.tables import ASIDE, ROOT

_SEEN = "scope in (select value from json_each(:scopes)) and (expires is null or expires > :now)"
# All nodes below a directory that the asker may see, through directories that it may see. What follows joins with
# "cross", which is an order to SQLite: from these outwards, however many others there are.
_BELOW = f"""
with recursive below(id) as (
  select id from node where id = :under
  union all
  select node.id from node join below on node.parent = below.id where {_SEEN}
)
"""
# A column for each field of Document, by its name; the newest version has some.
_FIELDS = tuple(Document.__dataclass_fields__)
_SHARED, _USER = map(_FIELDS.index, ("shared", "user"))
_NEWEST = ("coalesce(version.author, creator)", "coalesce(version.at, document.created)", "coalesce(version.route, '')")
_OF_NEWEST = dict(zip(("author", "updated", "route"), _NEWEST, strict=True))
_DOCUMENT = f"""
select {", ".join(_OF_NEWEST.get(name, f"document.{name}") for name in _FIELDS)}
from document left join version on version.document = document.id and version.number = head where document.id = ?
"""
# Operations that change no file's contents or place.
_UNLISTED = tuple(sorted(log_ops.ops_where(lambda op: not op.listed)))
# Where each document that has ended was last. Of several states that are told of one it is the newest.
_ENDED = """
select said.document, value, max(log.at), path,
  (select value from past_said where document = said.document and what = 'tags' order by until desc limit 1)
from (select document, value, max(until) from past_said where what = 'document' group by document) as said
cross join (select document, path, at, max(seq) from log where path <> x''
            and document in (select document from past_said where what = 'document') group by document) as log
  on log.document = said.document
where not exists (select 1 from document where id = said.document)
group by said.document
"""
# What a file begins with, for a query over node.
_HEAD = f"""substr(coalesce(
  (select data from body where body.id = node.body),
  (select data from extent join block on block.id = extent.block where extent.node = node.id and n = 0)
), 1, {preview.READ})"""


class Reader:
    """Questions on one snapshot: ``db`` is in a read transaction that the creator ends. Node arguments that the asker
    cannot see raise NotFound."""

    people = PartOf(PeopleReader)
    discovery = PartOf(DiscoveryReader)
    outbox = PartOf(OutboxReader)
    mail = PartOf(MailReader)
    pending = PartOf(PendingReader)
    quarantine = PartOf(QuarantineReader)
    claims = PartOf(ClaimsReader)
    audit = PartOf(AuditReader)

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible, now: int) -> None:
        self._db = db
        self.who = who
        self.visible = visible
        self.now = now
        self._places: dict[int | None, tuple[bytes, ...]] = {ROOT: ()}
        api_keys.require_valid(db, who, now)

    @cached_property
    def _standing(self) -> Standing:
        return Standing(self._db, self.who, self.visible)

    def moment(self, when: Moment | int | str) -> Moment:
        """The instant that a time in ns, a snapshot's name or ``Moment(seq, 0)`` means. Raises NotFound for what is not
        kept any more, or not yet there."""
        return moments.moment(self._db, self.visible, self.now, when)

    def snapshots(self) -> list[Snapshot]:
        """The asker's own and the operators', the newest first."""
        return moments.snapshots(self._db, self.who)

    def node(self, node: int) -> Node:
        row = self._db.execute(f"select {NODE} from node where id = ?", (node,)).fetchone()
        if row is None or not self._shows(row) or (row[1] is None and node != ROOT):
            raise NotFound()
        return node_of(row)

    def open_node(self, node: int) -> Node:
        """Like node(), for one that is held open: its name may be gone, its ttl over. Raises Stale."""
        row = self._db.execute(f"select {NODE} from node where id = ?", (node,)).fetchone()
        if row is None or row[11] not in self.visible:
            raise Stale()
        return node_of(row)

    def child(self, parent: int, name: bytes) -> Node | None:
        row = self._db.execute(f"select {NODE} from node where parent = ? and name = ?", (parent, name)).fetchone()
        return node_of(row) if row is not None and self._shows(row) else None

    def children(self, parent: int) -> list[Node]:
        """In order of name."""
        self.node(parent)
        rows = self._db.execute(f"select {NODE} from node where parent = ? order by name", (parent,))
        return [node_of(row) for row in rows if self._shows(row)]

    def subdirectories(self, parent: int) -> int:
        self.node(parent)
        return int(
            self._one(
                f"select count(*) from node where parent = :parent and kind = {int(Kind.DIRECTORY)} and {_SEEN}",
                parent=parent,
            )
        )

    def path(self, node: int) -> bytes:
        """Absolute. Raises NotFound for an unlinked file."""
        self.node(node)
        return paths.join(self._parts(node))

    def trusted_as(self, node: Node) -> int:
        """The class that says how far a file is trusted, and where it came from."""
        return node.scope

    def read(self, node: int, offset: int, length: int) -> bytes:
        self.who.require("read")
        row = self._db.execute("select size, extents, scope from node where id = ?", (node,)).fetchone()
        if row is None or row[2] not in self.visible:
            raise Stale()
        return content.read(self._db, node, row[0], bool(row[1]), offset, length)

    def seek(self, node: int, offset: int, *, hole: bool) -> int | None:
        """Where data, or a hole, begins from ``offset`` on; the end of file is a hole. None past the end of file, or
        when there is no more data. Raises Stale."""
        row = self._db.execute("select size, extents, scope from node where id = ?", (node,)).fetchone()
        if row is None or row[2] not in self.visible:
            raise Stale()
        return content.seek(self._db, node, row[0], bool(row[1]), offset, hole=hole) if offset < row[0] else None

    def target(self, node: int) -> bytes:
        """Of a symlink."""
        self.node(node)
        data = self._db.execute("select data from node join body on body.id = node.body where node.id = ?", (node,)).get
        return bytes(data or b"")

    def document(self, node: Node) -> Document:
        self._require_document(node.document)
        row = self._db.execute(_DOCUMENT, (node.document,)).fetchone()
        if row is None:
            raise NotFound()
        said: list[Any] = list(row)
        said[_SHARED] = members(said[_SHARED])
        said[_USER] = json.loads(said[_USER] or "{}")
        return Document(*said)

    def by_handle(self, handle: str) -> Node | None:
        row = self._db.execute(
            f"select {NODE_JOINED} from document join node on node.id = document.node where handle = ?", (handle,)
        ).fetchone()
        return node_of(row) if row is not None and self._shows(row) else None

    def versions(self, document: int) -> list[Version]:
        """Newest first."""
        self._require_document(document)
        rows = self._db.execute(
            "select document, number, at, author, size, seq, route from version where document = ? and number >= ?"
            " order by number desc",
            (document, version_visibility.oldest_seen(self._db, document, self._standing.saw)),
        )
        return [Version(*row) for row in rows]

    def version_bytes(self, document: int, number: int) -> bytes:
        self.who.require("read")
        self._require_document(document)
        oldest = version_visibility.oldest_seen(self._db, document, self._standing.saw)
        there = self._db.execute("select 1 from version where document = ? and number = ?", (document, number)).get
        data = kept_versions.whole(self._db, document, number) if there and number >= oldest else None
        if data is None:
            raise Invalid(self._not_kept(document, number, oldest))
        return data

    def _not_kept(self, document: int, number: int, seen: int) -> str:
        oldest = self._db.execute(
            "select min(number) from version where document = ? and number >= ?", (document, seen)
        ).get
        if oldest is not None and 0 < number < oldest:
            return f"v{number} is no longer kept; the oldest version is v{oldest}"
        return f"there is no version v{number}"

    def tags(self, document: int) -> list[str]:
        self._require_document(document)
        return [row[0] for row in self._db.execute("select tag from tag where document = ? order by tag", (document,))]

    def links(self, document: int, *, told: bool = False) -> list[Link]:
        """``told``: without those from and to what is in quarantine."""
        self._require_document(document)
        found: list[Link] = []
        for outgoing, near, far in ((True, "source", "target"), (False, "target", "source")):
            rows = self._all(
                f"select node.id, link.type from link join document on document.id = link.{far}"
                f" join node on node.id = document.node where link.{near} = :document and {_SEEN}",
                document=document,
                scopes=self.visible.told_json if told else self.visible.json,
            )
            found += [Link(outgoing, self.path(node), kind) for node, kind in rows]
        return sorted(found, key=lambda link: (not link.outgoing, link.path, link.type))

    def disputes(self, limit: int, under: int = ROOT) -> tuple[list[tuple[int, int, str]], int]:
        """Nodes that contradict each other by a link and of which neither supersedes the other, one of them below a
        directory, and who says so, each pair once; the newest first, and how many there are in all."""
        seen = (
            "{0}.scope in (select value from json_each(:scopes)) and ({0}.expires is null or {0}.expires > :now)"
            " and {0}.parent is not null"
        )
        # Upwards from each dispute: of those there are few, of files below a directory perhaps many.
        below = (
            ""
            if under == ROOT
            else " and exists (with recursive up(id) as (select one.parent union select other.parent union"
            " select parent from up join node using (id)) select 1 from up where id = :under)"
        )
        rows = self._all(
            "select one.id, other.id, link.agent, count(*) over () from link join document as a on a.id = source"
            " join document as b on b.id = target join node as one on one.id = a.node join node as other"
            f" on other.id = b.node where type = 'contradicts' and {seen.format('one')} and {seen.format('other')}"
            " and not exists (select 1 from link as s where s.type = 'supersedes' and (s.source, s.target) in"
            " ((link.source, link.target), (link.target, link.source)))"
            " and not exists (select 1 from link as back where back.source = link.target and back.target = link.source"
            f" and back.type = 'contradicts' and (back.at, back.source) > (link.at, link.source)){below}"
            " order by link.at desc, one.id limit :limit",
            scopes=self.within(ROOT),
            limit=limit,
            under=under,
        )
        return [tuple(row[:3]) for row in rows], rows[0][3] if rows else 0

    def mark(self, subject: int) -> Mark | None:
        if self.who.key is not None and not self._all(
            f"select 1 from node where id = :subject and {_SEEN} union all select 1 from document"
            f" join node on node.id = document.node where document.id = :subject and {_SEEN}",
            subject=subject,
        ):
            return None  # of what its agent has read elsewhere
        row = self._db.execute(
            "select version, seq from mark where agent = ?1 and subject = ?2 union all"
            " select read, coalesce((select seq from version where document = ?2 and number = read), 0) from document"
            " where id = ?2 and creator = ?1 and read is not null",
            (self.who.name, subject),
        ).fetchone()
        return Mark(*row) if row is not None else None

    def unindexed(self, document: int) -> str | None:
        """Why the document is in no index; "" while it waits; None when it is indexed."""
        self._require_document(document)
        reason = self._db.execute("select reason from unindexed where document = ?", (document,)).get
        if reason is not None:
            return str(reason)
        waiting = self._db.execute("select 1 from lexical_queue where document = ?", (document,)).get
        return "" if waiting else None

    def awaits_vectors(self, document: int) -> bool:
        """Whether some of its passages have no vector yet, in a store where vectors are made."""
        self._require_document(document)
        waits = self._db.execute(
            "select 1 from setting where key = 'vector_model' and (exists (select 1 from lexical_queue"
            " where document = ?1) or exists (select 1 from semantic_queue where document = ?1))",
            (document,),
        ).get
        return waits is not None

    def without_vectors(self, newest: int, most: int) -> int:
        """How many documents, at most so many, wait for the vector of a passage up to ``newest`` that still stands."""
        return index_queue.without_vectors(self._db, self.visible.searched()[1], self.now, newest, most)

    def live(self, path: bytes) -> Live | None:
        """What is known of the source of a live path; None where nobody has asked it yet."""
        if not self.who.operator and self.people.access(self.who.name, paths.split(path)) < Access.READ:
            return None
        row: Any = self._db.execute("select source, fetched, until, error from live where path = ?", (path,)).fetchone()
        return None if row is None else Live(*row)

    def newest_seq(self) -> int:
        return moments.newest_seen(self._db, self.visible)

    def changes(
        self, under: int, *, after_seq: int = 0, since: int = 0, limit: int = 100, newest_first: bool = True
    ) -> list[Change]:
        within = (b"" if under == ROOT else self.path(under)) + b"/"
        # In the log's own order and until there are enough: "+" keeps the planner from sorting all that is visible.
        rows = self._db.execute(
            "select scope, seq, at, op, agent, node, document, version, path, other from log"
            f" where seq > :after and seq <= :until and at >= :since and op not in {_UNLISTED}"
            " and +scope in (select value from json_each(:scopes))"
            " and (substr(path, 1, :length) = :within or substr(other, 1, :length) = :within)"
            f" order by seq {'desc' if newest_first else 'asc'}",
            {
                # Behind the newest that the asker sees there is what others did, however much.
                "until": self.newest_seq() if newest_first and not self.who.operator else sys.maxsize,
                "after": after_seq,
                "since": since,
                "within": within,
                "length": len(within),
                "scopes": self.within(under),
            },
        )
        with contextlib.closing(rows):  # else an exception holds the snapshot until it has been told
            today = self._standing
            seen = (today.shown(Change(*row), within) for scope, *row in calls.going_on(rows) if today.holds(scope))
            return [*islice((change for change in seen if change is not None), limit)]

    def listing(
        self, under: int, *, limit: int, offset: int, query: str | None = None, tag: str | None = None
    ) -> tuple[list[tuple[Entry, str]], int]:
        """(entry, first line) in order of name, and how many there are in all. With a query or tag: the whole
        subtree; else the directory's own entries, without what is aside."""
        self.node(under)
        whole = query is not None or tag is not None
        below, within = "", " from node where parent = :under"
        if whole:
            below, within = _BELOW, " from below cross join node on node.id = below.id where node.id <> :under"
        chosen = (
            f"{within} and {_SEEN}"
            + (" and node.document in (select document from tag where tag = :tag)" if tag is not None else "")
            + (f" and node.kind = {int(Kind.FILE)}" if whole else f" and node.id not in {ASIDE}")
        )
        bound: dict[str, Any] = {"under": under, **({"tag": tag} if tag is not None else {})}
        if whole:
            bound["scopes"] = self.within(under)
        if query:  # case-folding is Python's: look at all of them here
            self._require_contents()
            rows = self._all(f"{below} select {NODE_JOINED}, {_HEAD} {chosen} order by node.name, node.id", **bound)
            rows = [row[:-1] for row in rows if preview.mentions(query, bytes(row[2]), bytes(row[-1] or b""))]
            total, rows = len(rows), rows[offset : offset + limit]
        else:
            total = self._one(f"{below} select count(*) {chosen}", **bound)
            rows = self._all(
                f"{below} select {NODE_JOINED} {chosen} order by node.name, node.id limit :limit offset :offset",
                limit=limit,
                offset=offset,
                **bound,
            )
        return [self._entry(node_of(tuple(row))) for row in rows], total

    def _entry(self, node: Node) -> tuple[Entry, str]:
        row: Any = self._db.execute(
            f"select (select handle from document where document.id = node.document), {_HEAD} from node where id = ?",
            (node.id,),
        ).fetchone()
        handle, head = row
        # SQLite's substr of an empty blob is null.
        told = node.kind is Kind.FILE and (self.who.may("read") or self.who.may("search"))
        line = self.visible.quoted(node.scope, preview.first_line(bytes(head or b""))) if told else ""
        return Entry(node, self.path(node.id), handle), line

    def counts(self, under: int) -> Counts:
        self.node(under)
        return counting.counts(self._db, under, self.within(under), self.now, self._standing.saw)

    def tag_counts(self, under: int) -> list[tuple[str, int]]:
        self.node(under)
        return counting.tag_counts(self._db, under, self.within(under), self.now)

    def file_counts(self, under: int, limit: int) -> list[tuple[bytes, int]]:
        """Directories in ``under`` and how many files the asker sees below each, those with the most first."""
        self.node(under)
        return counting.file_counts(self._db, under, self.within(under), self.now, limit)

    def was_removed(self, node: int) -> bool:
        """Return whether a file has come into the trash by being removed."""
        return bool(
            self._one(
                "select exists(select 1 from removed join node on node.id = removed.node"
                f" where removed.node = :node and {_SEEN})",
                scopes=self.visible.trash_json,
                node=node,
            )
        )

    def removed(self, limit: int) -> list[Removed]:
        """Files in the trash, the newest removal first."""
        rows = self._all(
            f"select {NODE_JOINED}, removed.at, agent, path from removed join node on node.id = removed.node"
            f" where parent is not null and {_SEEN} order by removed.at desc, node.id limit :limit",
            scopes=self.visible.trash_json,
            limit=limit,
        )
        return [Removed(node_of(row[:-3]), *row[-3:]) for row in rows]

    def consolidated(self, run: int | None = None) -> tuple[int, list[tuple[int, str, bytes]]]:
        """The asker's last run of consolidation, or this one (ns): its number and, of each document that it put away or
        wrote, (document, kind, path before). (0, []) where there is none that could be undone. No API key's to ask."""
        self.who.require_itself()
        rows = self._all(
            "select run, document, kind, path from consolidated where agent = :agent and run = coalesce(:run,"
            " (select max(run) from consolidated where agent = :agent)) order by kind <> 'summary', path, document",
            agent=self.who.name,
            run=run,
        )
        return (rows[0][0], [tuple(row[1:]) for row in rows]) if rows else (0, [])

    def ended(self) -> list[Ended]:
        """Documents of before that the asker could change where they were; none for an API key."""
        if self.who.key is not None:
            return []
        policy, found = policy_in_force(self._db), []
        for document, value, at, path, tags in self._db.execute(_ENDED):
            _, creator, *_, scope = json.loads(value)
            place = policy.scope(paths.split(bytes(path)), None, [])
            writable = self.visible.writable(scope) and place.access(self.who) >= Access.WRITE
            if writable and version_visibility.may_purge_past(self._db, document, self.visible):
                found.append(Ended(document, at, bytes(path), creator, tuple(json.loads(tags or "[]"))))
        return found

    def may_purge_past(self, document: int) -> bool:
        """See ``Visible.may_purge_past``: of all versions that are kept."""
        self._require_document(document)
        return version_visibility.may_purge_past(self._db, document, self.visible)

    def agents(self, *, enrolled: bool = False) -> list[str]:
        been = {name for (name,) in self._db.execute("select name from agent")}
        return sorted(been if enrolled else policy_in_force(self._db).named | been)  # or are configured

    def _shows(self, row: tuple[Any, ...]) -> bool:
        return row[11] in self.visible and (row[13] is None or row[13] > self.now)

    def _require_contents(self) -> None:
        """An API key may be for writing alone. Raises Denied."""
        if not self.who.may("read"):
            self.who.require("search")

    def _require_document(self, document: int | None) -> None:
        """Raise NotFound unless the asker may see the document's node."""
        if not self._all(
            "select 1 from document join node on node.id = document.node where document.id = :document and " + _SEEN,
            document=document,
        ):
            raise NotFound()

    def _parts(self, node: int) -> tuple[bytes, ...]:
        if node == ROOT:
            return ()
        row = self._db.execute("select parent, name from node where id = ?", (node,)).fetchone()
        if row is None:
            raise NotFound()
        return (*self._place(row[0]), bytes(row[1]))

    def _place(self, directory: int | None) -> tuple[bytes, ...]:
        """Names from the root to a directory: asked once in a snapshot, however many of its files are looked at."""
        way: list[tuple[int, bytes]] = []
        while (known := self._places.get(directory)) is None:
            row = self._db.execute("select parent, name from node where id = ?", (directory,)).fetchone()
            if directory is None or row is None:
                raise NotFound()
            way.append((directory, bytes(row[1])))
            directory = row[0]
        for each, name in reversed(way):
            known = self._places[each] = (*known, name)
        return known

    def within(self, under: int) -> str:
        """As JSON, the scopes of what is looked through below a directory: of the whole tree neither the trash nor the
        archive; what is in quarantine nowhere."""
        return self.visible.searched()[1] if under == ROOT else self.visible.told_json

    def _all(self, sql: str, **bindings: Any) -> list[Any]:
        return self._db.execute(sql, {"scopes": self.visible.json, "now": self.now, **bindings}).fetchall()

    def _one(self, sql: str, **bindings: Any) -> Any:
        return self._all(sql, **bindings)[0][0]
