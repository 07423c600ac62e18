"""Opening: new stores, foreign files, newer versions, locks; and what a failing disk must not mix up."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest
from store_world import ALICE, BOB, CAROL, RULES, World, faults

from avmfs import node
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, Invalid, StoreFailed, TooBig
from avmfs.store import database, schema
from avmfs.store.applier import Applier
from avmfs.store.lock import StoreLock
from avmfs.store.schema_bodies import BODIES
from avmfs.store.schema_due import DUE
from avmfs.store.sqlite import open_direct
from avmfs.store.submit import OPERATOR

pytestmark = pytest.mark.timeout(60)


def header(path: Path) -> tuple[int, int, str]:
    db = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return tuple(db.execute(f"pragma {name}").get for name in ("application_id", "user_version", "journal_mode"))  # type: ignore[return-value]
    finally:
        db.close()


def test_a_missing_or_empty_file_becomes_a_store(tmp_path: Path) -> None:
    for path in (tmp_path / "deep" / "er" / "new.db", tmp_path / "empty.db"):
        if path.name == "empty.db":
            path.touch(0o600)
        database.prepare(path)
        assert header(path) == (schema.APPLICATION_ID, schema.VERSION, "wal")
        assert path.stat().st_mode & 0o777 == 0o600
        database.prepare(path)
        assert database.integrity(path) == []
    assert (tmp_path / "deep").stat().st_mode & 0o077 == 0 or (tmp_path / "deep" / "er").stat().st_mode & 0o077 == 0


def test_an_interrupted_migration_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    db = apsw.Connection(os.fspath(path))
    db.execute(f"pragma application_id = {schema.APPLICATION_ID}")
    db.close()
    database.prepare(path)
    assert header(path)[1] == schema.VERSION and database.integrity(path) == []


_AS_BEFORE_BODIES = """
create table held as select node.id as node, data from node join body on body.id = node.body;
alter table node drop column body;
drop table body; create table body(node integer primary key, data blob not null);
insert into body select * from held; drop table held;
"""
_AS_BEFORE_DUE = (
    _AS_BEFORE_BODIES
    + """
create table queue as select turn, document from lexical_queue;
drop view lexical_queue; drop index document_due;
update document set due = null; alter table document drop column due;
drop index document_behind;
insert into mark(agent, subject, version, seq) select creator, id, read, 0 from document where read is not null;
alter table document drop column read;
create table lexical_queue(turn integer primary key autoincrement, document int not null unique);
insert into lexical_queue(turn, document) select 40 + turn, document from queue;
drop table queue; drop table ended;
drop index dirent; create unique index dirent on node(parent, name);
drop table passage_log; create table passage_log(seq integer primary key autoincrement, document int not null);
insert into passage_log(seq, document) select 7, id from document limit 1;
drop table vector_log; create table vector_log(seq integer primary key autoincrement, id int not null);
insert into vector_log(seq, id) values(9, 3);
create table mail as select * from message; drop table message;
create table message(id integer primary key autoincrement, sender text not null, number int not null,
  recipient text not null, priority text not null, body text not null, at int not null, expires int,
  root int, re int, thread int);
insert into message select * from mail; drop table mail;
create unique index sent on message(sender, number);
create index answers on message(root) where root is not null;
"""
)


def test_a_store_with_queues_beside_its_documents_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited keeps its turn, mail its numbers and threads; and all of it or nothing: the first try fails."""
    world = World(tmp_path, "direct")
    for name in ("one", "two", "three"):
        world.write(ALICE, f"/memory/{name}", b"word " + name.encode())
    world.unlink(ALICE, "/memory/two")
    world.drain()
    for name in ("three", "one"):
        world.write(ALICE, f"/memory/{name}", b"other " + name.encode())
    tell = {"priority": "normal", "expires": None, "body_limit": 9, "unread_limit": 9}
    for who in (ALICE, BOB):
        world.do(who, "enroll")
    world.do(ALICE, "tell", recipient="bob", body="first", **tell)
    world.do(BOB, "tell", recipient="alice", body="again", re=1, **tell)
    world.do(BOB, "mark", node=world.node(BOB, "/memory/three").id)
    world.write(BOB, "/memory/three", b"and more")
    waiting = [world.document(ALICE, f"/memory/{name}").id for name in ("three", "one")]
    before = world.rows("select * from message order by id")
    path = world.path
    world.store.close()
    db = apsw.Connection(os.fspath(path))
    number = schema.MIGRATIONS.index(DUE)
    database.run(db, f"{_AS_BEFORE_DUE} pragma user_version = {number}")
    db.execute("insert into node(id, name, kind, mode, mtime, ctime, scope) values(99, 'unlinked', 1, 0, 0, 0, 1)")
    db.close()

    with monkeypatch.context() as failing:
        failing.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:number], DUE + "select abs(1, 2);"))
        with pytest.raises(apsw.SQLError):
            database.prepare(path)
    assert header(path)[1] == number
    store = open_direct(path, Policy(), RULES)
    db = apsw.Connection(os.fspath(path))
    assert [document for (document,) in db.execute("select document from lexical_queue order by turn")] == waiting
    assert db.execute("select * from message order by id").fetchall() == before
    assert [db.execute(f"select max(seq) from {log}").get for log in ("passage_log", "vector_log")] == [7, 9]
    assert store.orphans() == [(99, 0)]
    for who, read, behind in ((ALICE, 2, 1), (BOB, 3, 0)):
        with store.reading(who) as reader:
            assert (reader.mark(waiting[0]) or node.Mark(0, 0)).version == read
            assert len(reader.pending.files(9)) == behind
    assert db.execute("select name from sqlite_sequence order by name").fetchall() == [("passage",)]
    assert store.submit(BOB, "tell", recipient="alice", body="more", re=1, **tell) == {"id": 3, "recipients": ["alice"]}
    assert db.execute("select thread from message where body = 'more'").get == 1
    assert store.submit(OPERATOR, "drain_lexical") == {"done": 2, "left": 0}
    db.close()
    store.close()
    assert faults(path, Policy()) == []


def test_small_contents_under_their_nodes_numbers_are_taken_over(tmp_path: Path) -> None:
    world = World(tmp_path, "direct")
    written = {name: name.encode() * 40 for name in ("one", "two", "three", "old")} | {"large": b"large " * 20_000}
    for name, data in (written | {"empty": b""}).items():
        world.write(ALICE, f"/memory/{name}", data)
    world.do(ALICE, "symlink", parent=schema.MEMORY, name=b"link", target=b"one")
    world.write(ALICE, "/memory/old", b"newer")
    path = world.path
    world.store.close()
    db = apsw.Connection(os.fspath(path))
    database.run(db, f"{_AS_BEFORE_BODIES} pragma user_version = {schema.MIGRATIONS.index(BODIES)}")
    assert db.execute("select count(*) from body join node on node.id = node where kind in (1, 3)").get == 5
    db.close()

    world = World(tmp_path, "direct")
    assert world.rows("select id from body where id not in (select id from node)") == []
    for name, data in (written | {"old": b"newer", "empty": b""}).items():
        assert world.bytes(ALICE, f"/memory/{name}") == data
    world.write(ALICE, "/memory/one", b"one once more")
    world.write(ALICE, "/memory/two", b"")
    world.write(ALICE, "/memory/three", b"x" * 100_000)
    world.write(ALICE, "/memory/large", b"small")
    for name in ("four", "five"):
        world.write(ALICE, f"/memory/{name}", name.encode())
    ids = [world.rows("select body from node where name = ?", name)[0][0] for name in (b"one", b"four", b"five")]
    assert ids[0] == world.node(ALICE, "/memory/one").id and ids[2] == ids[1] + 1 > ids[0]
    world.unlink(ALICE, "/memory/one")
    for name, data in {"two": b"", "three": b"x" * 100_000, "large": b"small", "four": b"four"}.items():
        assert world.bytes(ALICE, f"/memory/{name}") == data
    world.store.close()
    assert faults(path, Policy()) == []


@pytest.mark.parametrize("made_by", ["application_id", "user_version", "a table"])
def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, made_by: str) -> None:
    path = tmp_path / "theirs.db"
    db = sqlite3.connect(path)
    db.execute({"application_id": "pragma application_id = 1234", "user_version": "pragma user_version = 7"}.get(
        made_by, "create table theirs(x)"
    ))  # fmt: skip
    db.commit()
    db.close()
    before = path.read_bytes()
    openers = [
        lambda: database.prepare(path), lambda: open_direct(path, Policy(), RULES),
        lambda: database.connect(path, writable=True), lambda: database.connect(path, writable=False),
    ]  # fmt: skip
    for opener in openers:
        with pytest.raises(Invalid, match="another program"):
            opener()
        assert path.read_bytes() == before
    assert header(path)[2] == "delete", "not even its journal mode"


def test_a_newer_stores_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    database.prepare(path)
    db = apsw.Connection(os.fspath(path))
    db.execute(f"pragma user_version = {schema.VERSION + 1}")
    db.close()
    for opener in (database.prepare, lambda p: database.connect(p, writable=False)):
        with pytest.raises(Invalid, match="newer"):
            opener(path)


@pytest.mark.parametrize("content", [b"{}", b"hello world\n" * 100, os.urandom(8192)], ids=["short", "text", "noise"])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(AvmError, match=r"not a database|another program"):
        database.prepare(path)
    assert path.read_bytes() == content


def test_a_missing_store_is_not_made_by_readers(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        database.connect(tmp_path / "none.db", writable=False)
    assert list(tmp_path.iterdir()) == []


def test_direct_mode_refuses_while_a_daemon_runs(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    store = open_direct(path, Policy(), RULES)
    lock = StoreLock(path)
    assert lock.holder() is None
    held = lock.acquire(1, {"pid": os.getpid(), "socket": "/run/x"})
    try:
        assert (lock.holder() or {})["pid"] == os.getpid()
        store._submitter._wait = 0.05  # type: ignore[attr-defined]
        with pytest.raises(Busy, match=f"the daemon with pid {os.getpid()}"):
            store.submit(ALICE, "enroll")
        with store.reading(ALICE) as reader:
            assert reader.agents() == []
    finally:
        lock.release(held)
    assert store.submit(ALICE, "enroll") == {"new": True}
    store.close()


def test_two_direct_processes_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    script = (
        "import sys\nfrom pathlib import Path\nfrom avmfs.access import Policy, Principal\n"
        "from avmfs.store.sqlite import open_direct\nfrom avmfs.store.transaction import IndexRules\n"
        "store = open_direct(Path(sys.argv[1]), Policy(), IndexRules())\n"
        "who = Principal(sys.argv[2])\nstore.submit(who, 'enroll')\n"
        "for n in range(60):\n"
        "    where = [b'memory', b'private', who.name.encode(), b'%d' % n]\n"
        "    store.submit(who, 'write_path', path=where, data=b'x')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, os.fspath(path), name]) for name in ("alice", "bob", "carol")
    ]
    assert [process.wait(40) for process in processes] == [0, 0, 0]
    store = open_direct(path, Policy(), RULES)
    for who in (ALICE, BOB, CAROL):
        with store.reading(who) as reader:
            assert reader.counts(schema.ROOT).files == 60
    store.close()
    assert faults(path, Policy()) == []


def test_a_forked_child_opens_its_own_connections(tmp_path: Path) -> None:
    world = World(tmp_path, "direct")
    world.write(ALICE, "/memory/f", b"1")
    assert world.bytes(ALICE, "/memory/f") == b"1"
    child = os.fork()
    if child == 0:
        os._exit(0 if world.bytes(BOB, "/memory/f") == b"1" and world.store.peek_child(BOB, 2, b"f") is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    world.write(ALICE, "/memory/f", b"2")
    assert world.bytes(BOB, "/memory/f") == b"2"
    world.close()


class Full:
    """Writes past the present sizes of the store's files fail, as on a full disk, until the block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        sizes = [file.stat().st_size for file in self._path.parent.glob(self._path.name + "*")]
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes), self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def test_a_failed_commit_forgets_the_scopes_it_interned(tmp_path: Path) -> None:
    """Else the next scope gets the number of one that never came to be, and two agents share a private space."""
    path = tmp_path / "avm.db"
    database.prepare(path)
    applier = Applier(path, Policy(), RULES, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    applier.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    with Full(path), pytest.raises(StoreFailed):
        for number in range(2000):  # the log file's size is what it is: fill it
            applier.alone(Principal(f"agent{number}"), "enroll", {})
    known = {name for (name,) in applier.db.execute("select name from agent")}
    lost = next(f"agent{number}" for number in range(2000) if f"agent{number}" not in known)
    applier.alone(BOB, "enroll", {})
    applier.alone(Principal(lost), "enroll", {})
    applier.alone(
        Principal(lost), "write_path", {"path": [b"memory", b"private", lost.encode(), b"f"], "data": b"secret"}
    )
    applier.close()
    assert faults(path, Policy()) == []
    store = open_direct(path, Policy(), RULES)
    with store.reading(BOB) as reader:
        assert [node.name for node in reader.children(schema.PRIVATE)] == [b"bob"]
    store.close()


def test_rules_that_cannot_be_settled_do_not_come_into_force(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    database.prepare(path)
    applier = Applier(path, Policy(), RULES, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    applier.alone(ALICE, "write_path", {"path": [b"memory", b"d", b"f"], "data": b"x"})
    applier.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    hidden = Policy.from_words([("/memory/d/*", "none", ("bob",))], "rw")
    with Full(path):
        with pytest.raises(StoreFailed):
            for number in range(2000):
                applier.alone(ALICE, "set_attributes", {"node": schema.SHARED, "mtime": number})
        with pytest.raises(StoreFailed):
            applier.set_rules(hidden, RULES)
    applier.alone(ALICE, "write_path", {"path": [b"memory", b"d", b"g"], "data": b"x"})
    applier.close()
    assert faults(path, Policy()) == []
    applier = Applier(path, hidden, RULES, orphans=True, clock=time.time_ns)
    applier.set_rules(hidden, RULES)
    applier.close()
    assert faults(path, hidden) == []


def test_a_request_that_is_too_big_is_refused_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, "attached")
    started = time.monotonic()
    with pytest.raises(TooBig):
        world.write(ALICE, "/memory/f", bytes(40 << 20))
    assert time.monotonic() - started < 20
    world.write(ALICE, "/memory/f", bytes(20 << 20))
    world.close()
