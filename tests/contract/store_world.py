"""A store under test, in each of the two modes, with a clock that a test can move; and an auditor of its rows.

``World`` speaks the store's commands by path. ``faults`` looks at the tables themselves: whatever a test did, no row
may be left over, no block may have a wrong count of owners, and every node's scope must be the one that the policy
gives to its place. ``World.close`` runs it, so that every test of the suite is also a test of that.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import apsw

from avmfs import paths
from avmfs.access import Policy, Principal, Scope
from avmfs.errors import NotFound
from avmfs.node import Document, Kind, Node
from avmfs.store.backup import cluster
from avmfs.store.client.client import WriterClient
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.queries.audit import AuditReader
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows import content, usage
from avmfs.store.rows.nodes import members
from avmfs.store.rows.scopes import Visible
from avmfs.store.schema.tables import ROOT
from avmfs.store.store import Store, open_attached, open_direct
from avmfs.store.tx.transaction import IndexRules
from tests import forked
from tests.behind import connect
from tests.contract.store_writer import SharedClock
from tests.equal_stores import differing

ALICE, BOB, CAROL = Principal("alice"), Principal("bob"), Principal("carol")
RULES = IndexRules(("*.swp", "*~", ".git/*"), 64 * 1024)
MODULE = "tests.contract.store_writer"
Mode = Literal["direct", "attached"]
Rule = tuple[str, str, tuple[str, ...] | None]


class WriterProcess:
    """A writer child and the listening socket, which stays here when the child is killed."""

    def __init__(
        self,
        database: Path,
        clock: Path,
        rules: list[Rule] | None = None,
        default: str = "rw",
        connections: int | None = None,
        socket_path: Path | None = None,
        constants: Mapping[str, Mapping[str, float]] | None = None,
        log: str = "",
    ) -> None:
        self.database = database
        self.rules, self.default = rules or [], default
        self.key = secrets.token_bytes(32)
        self.address = socket_path or database.with_name("writer.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(self.address))
        self.listener.listen(128)
        self.said = self.address.with_name("writer.log")
        self._clock = clock
        self._connections = connections
        self._constants = constants
        self.shared_log = log  # its address
        self._starts = 0
        self.process: forked.Forked | subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        asked = json.dumps(self.asked())
        with open(self.said, "ab") as said, open(os.devnull, "rb") as nothing:
            files = (nothing.fileno(), said.fileno(), said.fileno())
            self.process = forked.start(MODULE, [asked], files=files, passed=[self.listener.fileno()])

    def asked(self) -> dict[str, Any]:
        """What the next one is told."""
        self._starts += 1
        return {
            "database": os.fspath(self.database), "listener": self.listener.fileno(), "key": self.key.hex(),
            "rules": self.rules, "default": self.default, "clock": os.fspath(self._clock), "first": self._starts == 1,
            "connections": self._connections, "constants": self._constants, "log": self.shared_log,
            "host": self.database.parent.name,
        }  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(300)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(300)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        return self.said.read_text("utf-8", "replace")

    def processor_ns(self) -> int:
        assert self.process is not None
        return time.clock_gettime_ns((~self.process.pid << 3) | 2)  # of all its threads: CPUCLOCK_SCHED, Linux

    def attach(self, agent: str = ANYBODY, patience_s: float = 200.0, clock: SharedClock | None = None) -> Store:
        shown = proof(self.key, agent)
        if clock is None:
            return Store(self.database, WriterClient(self.address, agent, shown, patience_s))
        return open_attached(self.database, self.address, agent, shown, clock)

    def close(self) -> None:
        if self.alive():
            self.stop()
        self.listener.close()


@functools.cache
def begun() -> dict[str, bytes]:
    """The files of a store that knows alice and bob, by name: most worlds begin as copies, a tenth of the making."""
    with TemporaryDirectory() as root:
        store = open_direct(Path(root, "avm.db"), Policy(), RULES)
        for who in (ALICE, BOB):
            store.submit(who, "enroll")
        store.close()
        return {each.name: each.read_bytes() for each in Path(root).iterdir()}


class World:
    def __init__(
        self, root: Path, mode: Mode, rules: list[Rule] | None = None, default: str = "rw", log: str = ""
    ) -> None:
        """``log``: the address of a shared log, by which another host follows, and is audited as well in the end."""
        self.mode = mode
        self.log, self.follower = log, root / "follower" / "avm.db"
        self.path = root / "avm.db"
        self.rules, self.default = rules or [], default
        self.clock = SharedClock(root / "clock")
        self.writer: WriterProcess | None = None
        if log:
            self._share()
        elif not self.rules and default == "rw" and not self.path.exists():
            for name, data in begun().items():
                self.path.with_name(name).write_bytes(data)
        if mode == "attached":
            self.writer = WriterProcess(self.path, root / "clock", self.rules, default, log=log)
        try:
            self.store = self._open()
            for who in (ALICE, BOB):
                self.do(who, "enroll")
        except BaseException:
            if self.writer is not None:
                self.writer.close()
            raise

    def processor_ns(self) -> int:
        """Of whoever carries out commands."""
        return time.process_time_ns() if self.writer is None else self.writer.processor_ns()

    @property
    def applier(self) -> Any:
        """What carries commands out, where that is this process."""
        return self.store._submitter._applier  # type: ignore[attr-defined]

    @property
    def policy(self) -> Policy:
        return Policy.from_words(self.rules, self.default)

    def _share(self) -> None:
        from avmfs.store.sharedlog.postgres import PostgresLog

        open_direct(self.path, self.policy, RULES, self.clock).close()
        shared = PostgresLog(self.log)
        cluster.init(self.path, shared, "first")
        cluster.join(self.follower, shared, self.policy)
        shared.close()

    def _followed(self) -> list[str]:
        """What is wrong with the other host once it has all that is in the log."""
        from avmfs.store.sharedlog.postgres import PostgresLog
        from avmfs.store.writer.replicated import ReplicatedApplier

        host = ReplicatedApplier(
            self.follower, self.policy, RULES, orphans=True, clock=self.clock, shared_log=PostgresLog(self.log),
            host="other",
        )  # fmt: skip
        host.resolve()
        host.close()
        return differing(self.path, self.follower) + faults(self.follower, self.policy)

    def _open(self) -> Store:
        if self.writer is not None:
            return self.writer.attach(clock=self.clock)
        return open_direct(self.path, self.policy, RULES, self.clock)

    def restart(self, rules: list[Rule] | None = None, default: str | None = None) -> None:
        """Close and open again, with other rules when given."""
        self.store.close()
        self.rules = self.rules if rules is None else rules
        self.default = default or self.default
        if self.writer is not None:
            assert self.writer.stop() == 0
            self.writer.rules, self.writer.default = self.rules, self.default
            self.writer.start()
        self.store = self._open()
        self.do(ALICE, "mark_read")  # answered once the rules are settled

    def close(self, *, audit: bool = True) -> None:
        self.store.close()
        if self.writer is not None:
            self.writer.close()
        if self.log and audit:
            assert (wrong := self._followed()) == [], wrong
        self.clock.close()
        if audit:
            assert faults(self.path, self.policy) == []
            if self.writer is not None:
                assert self.writer.log() == ""

    # Commands by path ------------------------------------------------------------------------------------------

    def do(self, who: Principal, command: str, **arguments: Any) -> Any:
        return self.store.submit(who, command, **arguments)

    @contextmanager
    def reading(self, who: Principal) -> Iterator[Reader]:
        with self.store.reading(who) as reader:
            yield reader

    def node(self, who: Principal, path: str) -> Node:
        with self.store.reading(who) as reader:
            node = reader.node(ROOT)
            for name in paths.split(paths.raw(path)):
                child = reader.child(node.id, name)
                if child is None:
                    raise NotFound(path=path)
                node = child
            return node

    def exists(self, who: Principal, path: str) -> bool:
        try:
            self.node(who, path)
        except NotFound:
            return False
        return True

    def document(self, who: Principal, path: str) -> Document:
        node = self.node(who, path)
        with self.reading(who) as reader:
            return reader.document(node)

    def history(self, who: Principal, path: str) -> list[bytes]:
        """The bytes of every version, oldest first."""
        document = self.document(who, path).id
        with self.reading(who) as reader:
            return [reader.version_bytes(document, version.number) for version in reversed(reader.versions(document))]

    def names(self, who: Principal, path: str) -> list[str]:
        node = self.node(who, path)
        with self.reading(who) as reader:
            return [paths.text(child.name) for child in reader.children(node.id)]

    def tags(self, who: Principal, path: str) -> list[str]:
        document = self.document(who, path).id
        with self.reading(who) as reader:
            return reader.tags(document)

    def at(self, who: Principal, path: str) -> dict[str, Any]:
        """Arguments parent and name of a path whose directory ``who`` sees."""
        above, _, name = path.rpartition("/")
        return {"parent": self.node(who, above or "/").id, "name": paths.raw(name)}

    def write(self, who: Principal, path: str, data: bytes, **more: Any) -> dict[str, Any]:
        return dict(self.do(who, "write_path", path=list(paths.split(paths.raw(path))), data=data, **more))

    def edit(self, who: Principal, path: str, *edits: list[Any], handle: int | None = None) -> dict[str, Any]:
        return dict(self.do(who, "commit", node=self.node(who, path).id, handle=handle, edits=list(edits)))

    def create(self, who: Principal, path: str, *, exclusive: bool = True) -> dict[str, Any]:
        return dict(self.do(who, "create", **self.at(who, path), mode=0o644, exclusive=exclusive))

    def mkdir(self, who: Principal, path: str) -> int:
        return int(self.do(who, "mkdir", **self.at(who, path), mode=0o755)["node"])

    def deepen(self, directory: int, levels: int) -> int:
        """So many directories in one another below this one, as older programs could make them; the deepest."""
        db = connect(self.path)
        with db:
            for _ in range(levels):
                made = secrets.randbits(62) | 1 << 61
                db.execute(
                    "insert into node(id, parent, name, kind, mode, mtime, ctime, scope, owner)"
                    " select ?, id, cast('d' as blob), 2, 493, 1, 1, scope, owner from node where id = ?",
                    (made, directory),
                )
                directory = made
        db.close()
        return directory

    def unlink(self, who: Principal, path: str) -> None:
        self.do(who, "unlink", **self.at(who, path))

    def rmdir(self, who: Principal, path: str) -> None:
        self.do(who, "rmdir", **self.at(who, path))

    def rename(self, who: Principal, old: str, new: str, flags: int = 0) -> dict[str, Any]:
        there = self.at(who, new)
        return dict(
            self.do(who, "rename", **self.at(who, old), new_parent=there["parent"], new_name=there["name"], flags=flags)
        )

    def tag(self, who: Principal, path: str, *tags: str) -> None:
        self.do(who, "set_tags", node=self.node(who, path).id, add=list(tags), remove=[], replace=False)

    def share(self, who: Principal, path: str, *agents: str) -> None:
        self.do(who, "set_shared", node=self.node(who, path).id, agents=list(agents) or None)

    def drain(self) -> None:
        while self.store.queue_lengths()[0]:
            self.do(OPERATOR, "drain_lexical")

    def reindex(self) -> None:
        """Have the words of everything made anew."""
        with contextlib.closing(connect(self.path)) as db, db:
            db.execute("update document set due = 1 where due is null")

    def rows(self, sql: str, *bindings: Any) -> list[Any]:
        return rows(self.path, sql, *bindings)

    def newest_seq(self) -> int:
        return int(self.rows("select max(seq) from log where scope <> 0")[0][0])

    def bytes(self, who: Principal, path: str) -> bytes:
        node = self.node(who, path)
        with self.reading(who) as reader:
            return reader.read(node.id, 0, node.size)


def rows(path: Path, sql: str, *bindings: Any) -> list[Any]:
    db = connect(path, read_only=True)
    try:
        return db.execute(sql, bindings).fetchall()
    finally:
        db.close()


# Auditing ------------------------------------------------------------------------------------------------------

_LEFT_OVER = {
    "body without a node": "select id from body where id not in (select body from node where body is not null)",
    "body that is not there": "select id from node where body is not null and body not in (select id from body)",
    "body of two nodes": "select body from node where body is not null group by body having count(*) > 1",
    "body beside extents": "select id from node where extents and body is not null",
    "extent without a node": "select node from extent where node not in (select id from node where extents)",
    "extent of no block": "select block from extent where block not in (select id from block)",
    "document whose node does not know it":
        "select document.id from document left join node on node.id = document.node"
        " where node.document is not document.id",
    "node of no document":
        "select id from node where document is not null and document not in (select id from document)",
    "file in the tree without a document":
        "select id from node where kind = 1 and parent is not null and document is null",
    "orphan with a document": "select id from node where parent is null and document is not null",
    "node below nothing":
        "select id from node where parent is not null and parent not in (select id from node where kind = 2)",
    "node that nobody is charged for":
        "with recursive trash(id) as (select 5 union all select node.id from node join trash on parent = trash.id)"
        " select id from node where owner is null and parent is not null and parent <> 4 and id >= 16"
        " and id not in (select id from trash)",
    "version of no document": "select document from version where document not in (select id from document)",
    "a gap in the versions up to head":
        "select id from document where (select count(*) from version where document = id)"
        " <> head + 1 - coalesce((select min(number) from version where document = id), 1)"
        " or coalesce((select max(number) from version where document = id), 0) <> head",
    "an older version stated as the node's bytes":
        "select document, number from version join document on document.id = version.document"
        " where encoding = 0 and number <> head",
    "version whose seq is not in the log":
        "select document, number from version where seq not in (select seq from log)",
    "tag of no document": "select tag from tag where document not in (select id from document)",
    "link of no document":
        "select type from link where source not in (select id from document)"
        " or target not in (select id from document)",
    "mark of nothing":
        "select agent, subject from mark where subject not in (select id from document)"
        " and subject not in (select id from node where kind = 2)",
    "queued for words, no document":
        "select document from lexical_queue where document not in (select id from document)",
    "mark of a creator, which has its own place":
        "select agent, subject from mark join document on document.id = subject where creator = agent",
    "read further than it was written": "select id from document where read > head",
    "queued for vectors, no document":
        "select document from semantic_queue where document not in (select id from document)",
    "reason of no document": "select document from unindexed where document not in (select id from document)",
    "passage of no document":
        "select id from passage where document not in (select id from document union all select document from ended)",
    "ended, and still there": "select document from ended where document in (select id from document)",
    "ended, and nothing left to remove":
        "select document from ended where document not in (select document from passage)"
        " and document not in (select document from topic)",
    "passage in another scope than its node":
        "select passage.id from passage join document on document.id = passage.document"
        " join node on node.id = document.node where passage.scope <> node.scope",
    "vector of no passage": "select id from vector where id not in (select id from passage)",
    "vector in another scope":
        "select vector.id from vector join passage using(id) where vector.scope <> passage.scope",
    "words of no passage": "select distinct doc from posting where doc not in (select id from passage)",
    "hold of no node": "select node from hold where node not in (select id from node)",
    "something to deliver to no subscription":
        "select message from outbox where subscription not in (select id from subscription)",
    "the outbox has looked past the log":
        "select seq from outbox_cursor where seq > (select coalesce(max(seq), 0) from log)",
    "delivery of no message": "select message from delivery where message not in (select id from message)",
    "statistics that are not the sums":
        "select scope_stat.scope from scope_stat where passages <>"
        " (select count(*) from passage where passage.scope = scope_stat.scope) or terms <>"
        " (select coalesce(sum(len), 0) from passage where passage.scope = scope_stat.scope)",
    "passage without statistics": "select id from passage where scope not in (select scope from scope_stat)",
    "document neither indexed nor queued nor excused":
        "select document.id from document join node on node.id = document.node where node.size > 0"
        " and document.id not in (select document from passage)"
        " and document.id not in (select document from lexical_queue)"
        " and document.id not in (select document from unindexed)",
}  # fmt: skip


def faults(path: Path, policy: Policy) -> list[str]:
    """What is wrong with the tables; empty for a sound store."""
    db = connect(path)  # writable: fts5vocab and the integrity checks need it
    try:
        found = [f"{what}: {bad}" for what, sql in _LEFT_OVER.items() if (bad := db.execute(sql).fetchall())]
        # Blank documents are indexed as nothing at all.
        found = [line for line in found if not line.startswith("document neither") or not _all_blank(db, line)]
        found += _blocks(db) + _sizes(db) + _scopes(db, policy) + usage.wrong(db)
        found += [line for (line,) in db.execute("pragma integrity_check") if line != "ok"]
        audit = AuditReader(db, OPERATOR, Visible(OPERATOR, {}), 0)
        found += audit.altered() + audit.misattributed(1, (-1, 0), 10**6)[0] + audit.missent(99)
        return found
    finally:
        db.close()


def _all_blank(db: apsw.Connection, line: str) -> bool:
    numbers = [int(word.strip("(,)[]")) for word in line.rpartition(": ")[2].split()]
    for number in numbers:
        node, size, extents = db.execute(
            "select node.id, size, extents from node where document = ?", (number,)
        ).fetchone()
        if content.read(db, node, size, bool(extents), 0, size).strip():
            return False
    return True


def _blocks(db: apsw.Connection) -> list[str]:
    owners: Counter[int] = Counter(block for (block,) in db.execute("select block from extent"))
    for (packed,) in db.execute("select body from version where encoding = 4"):
        owners.update(block for _, block in struct.iter_unpack(">QQ", packed))
    shared = dict(db.execute("select block, others from shared"))
    found = []
    for (block,) in db.execute("select id from block"):
        if owners[block] == 0:
            found.append(f"block {block} has no owner")
        elif owners[block] - 1 != shared.get(block, 0):
            found.append(f"block {block} has {owners[block]} owners, shared says {shared.get(block)}")
    stored = {block for (block,) in db.execute("select id from block")}
    found += [f"block {block} is owned and gone" for block in owners.keys() - stored]
    found += [f"shared names block {block}, which is gone" for block in shared.keys() - stored]
    return found


def _sizes(db: apsw.Connection) -> list[str]:
    found = []
    for node, size, extents in db.execute("select id, size, extents from node where kind <> 2"):
        if extents:
            last = db.execute(
                "select max(n * 65536 + length(data)) from extent join block on id = block where node = ?", (node,)
            ).get
            end = last or 0
            if end > size:
                found.append(f"node {node}: size {size}, blocks reach {last}")
            for at, length in db.execute("select at, length(data) from tail where node = ? order by at", (node,)):
                if at < end:
                    found.append(f"node {node}: a piece at {at} lies over what ends at {end}")
                end = at + length
            if end > size:
                found.append(f"node {node}: size {size}, its tail reaches {end}")
        elif db.execute("select 1 from tail where node = ?", (node,)).get:
            found.append(f"node {node}: inline, with a tail")
        elif (
            db.execute("select length(data) from node join body on body.id = body where node.id = ?", (node,)).get or 0
        ) != size:
            found.append(f"node {node}: size {size}, body differs")
    return found


def _scopes(db: apsw.Connection, policy: Policy) -> list[str]:
    known = {number: Scope.parse(spec) for number, spec in db.execute("select id, spec from scope")}
    tree = {row[0]: row for row in db.execute("select id, parent, name, scope, document from node")}
    shared = dict(db.execute("select id, shared from document"))
    areas = [(number, tuple(bytes(path).split(b"/")[1:])) for number, path in db.execute("select id, path from area")]
    found = []
    for node, parent, _, scope, document in tree.values():
        if parent is None and node != ROOT:
            continue
        names, at = [], node
        while at != ROOT:
            names.append(bytes(tree[at][2]))
            at = tree[at][1]
        parts = tuple(reversed(names))
        limited = shared.get(document) if paths.agent_space(parts) is None else None
        right = policy.scope(parts, members(limited), areas, known[scope].origin)
        if known[scope] != right:
            found.append(f"{paths.join(parts)!r} has scope {known[scope].spec}, {right.spec} is right")
        if paths.agent_space(parts) is not None and shared.get(document) is not None:
            found.append(f"{paths.join(parts)!r} is private and :shared")
    return found


def kinds(nodes: list[Node]) -> list[Kind]:
    return [node.kind for node in nodes]
