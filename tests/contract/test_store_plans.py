"""No statement that the store executes walks a whole table which grows with use, but for those named here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from avmfs.search.engine import Engine
from avmfs.search.indexer import embed_pending
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY, ROOT
from avmfs.text.tokens import TokenCounter
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, CAROL, World
from tests.hashing import HashingEmbedding

MAY_SCAN = {
    "applied": "once a day",
    "agent": "as many as there are agents",
    "area": "a thousand at most, of API keys",
    "api_key": "as many as there are keys, when rules change",
    "ended": "what waits",
    "document USING COVERING INDEX document_due": "what waits",
    "document USING INDEX document_due": "what waits, as far as it is asked for",
    "node USING INDEX orphan": "what was unlinked and is not freed yet",
    "semantic_queue": "what waits",
    "passage": "the columns that ranking needs, once per process",
    "vector": "a process's first search loads them all",
    "below": "the subtree that was asked for",
    "above": "what has expired and waits for the keeper, with the directories above it",
    "directory": "the directories below the one that was asked for",
    "seen": "the same, with what is counted of it",
}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Statement (in one line): the bindings it had."""
    seen: dict[str, Any] = {}
    connect = database.connect

    def traced(path: Path, **more: Any) -> apsw.Connection:
        db = connect(path, **more)

        def note(cursor: object, sql: str, bindings: Any) -> bool:
            if sql.split(maxsplit=1)[0].lower() in ("select", "insert", "update", "delete", "with"):
                seen.setdefault(re.sub(r"\s+", " ", sql.strip()), bindings)
            return True

        db.exec_trace = note
        return db

    monkeypatch.setattr(database, "connect", traced)
    return seen


def work(world: World) -> None:
    for number in range(30):
        world.write(ALICE, f"/memory/d/{number}", b"hello %d words" % number, handle=5)
        world.write(ALICE, f"/memory/d/{number}", b"hello %d more words" % number, handle=5)
    world.write(ALICE, "/memory/big", bytes(300_000))
    world.edit(ALICE, "/memory/big", ["w", 5, b"x"])
    world.edit(ALICE, "/memory/big", ["t", 70_000])
    world.unlink(ALICE, "/memory/big")
    one, two = world.node(ALICE, "/memory/d/1").id, world.node(ALICE, "/memory/d/2").id
    world.tag(ALICE, "/memory/d/1", "t")
    world.do(ALICE, "add_link", node=one, target=two, type="x")
    world.do(ALICE, "remove_link", node=one, target=two, type="x")
    world.rename(ALICE, "/memory/d/3", "/memory/d/4")
    world.rename(ALICE, "/memory/d/5", "/memory/d/5~")
    world.create(ALICE, "/memory/d/5")
    world.rename(ALICE, "/memory/d/6", "/memory/d/7", 2)
    world.mkdir(ALICE, "/memory/e")
    world.rename(ALICE, "/memory/e", "/memory/f")
    world.rmdir(ALICE, "/memory/f")
    world.share(ALICE, "/memory/d/9", "bob")
    world.do(ALICE, "mark", node=two)
    world.do(ALICE, "mark", node=MEMORY)
    world.do(ALICE, "set_ttl", node=one, expires=5)
    world.do(ALICE, "merge_meta", node=two, importance=0.5, user={"a": 1})
    world.do(OPERATOR, "reap_expired")
    world.do(OPERATOR, "forget_clients", before=0)
    world.do(OPERATOR, "reap_orphans", nodes=[5])
    world.do(ALICE, "hold", holder=b"x", nodes=[3])
    few = {"body_limit": 9, "unread_limit": 9}
    first = world.do(ALICE, "tell", recipient="bob", body="x", priority="low", expires=None, **few)["id"]
    limits = {"priority": "urgent", "body_limit": 9, "unread_limit": 1, "expires": world.clock() + 1}
    second = world.do(BOB, "tell", recipient="alice", body="y", re=first, **limits)["id"]
    world.do(CAROL, "enroll")
    for _ in range(2):
        world.do(BOB, "tell", recipient="@all", body="z", re=second, **limits)
    world.do(BOB, "mark_read")
    world.do(BOB, "delete_mail", messages=[first])
    world.do(BOB, "delete_mail")
    world.clock.advance(5)
    world.do(OPERATOR, "trim_mail", before=5, keep=0)
    world.do(ALICE, "remember", path=[b"memory", b"r"], data=b"x", title="t", tags=["x"], importance=0.5, created=5)
    embedder = HashingEmbedding()
    embed_pending(world.store, embedder, embedder.model_id)
    Engine(world.store.search_index, embedder, TokenCounter()).search(BOB, "hello", under=(b"memory",))
    world.store.orphans()
    document = world.document(BOB, "/memory/d/10")
    below = world.node(BOB, "/memory/d").id
    with world.reading(BOB) as reader:
        for ask in (reader.versions, reader.tags, reader.links, reader.mark, reader.unindexed):
            ask(document.id)
        reader.version_bytes(document.id, 1)
        reader.by_handle(document.handle)
        reader.changes(ROOT)
        reader.changes(below, since=5, after_seq=3, newest_first=False)
        reader.newest_seq()
        reader.listing(below, limit=5, offset=0)
        for query in ("", "h"):
            reader.listing(below, limit=5, offset=0, query=query)
        reader.listing(below, limit=5, offset=0, tag="t")
        reader.counts(below)
        reader.tag_counts(below)
        reader.file_counts(below, 9)
        reader.mail.messages()
        reader.mail.messages(unread_only=True, priority="urgent")
        reader.mail.counts()
        reader.pending.files(5)
        reader.pending.directories(5)
        reader.mail.any_unread()
        reader.mail.any_unread(5)
        reader.mail.urgent(5)
        reader.mail.unread()
        reader.mail.refusal("alice", 1, None, body_limit=9, unread_limit=9, rate_limit=9)
        reader.children(below)
        reader.subdirectories(below)


def test_nothing_walks_a_whole_table(executed: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path, "direct")
    work(world)
    db = connect(world.path)
    scans = []
    for sql, bindings in executed.items():
        if re.fullmatch(r"select 1 from \w+ limit 1", sql):  # is there any? One row is read
            continue
        for row in db.execute(f"explain query plan {sql}", bindings):
            step = str(row[3])
            if "AUTOMATIC" in step:  # an index that SQLite builds for this one query: a scan in disguise
                scans.append((step, sql))
            if (found := re.match(r"SCAN (?!\d+ CONSTANT ROWS)((\w+)(?! VIRTUAL).*)", step)) and not {
                found[1],
                found[2],
            } & {
                *MAY_SCAN,
                "CONSTANT",
                "json_each",
                "value",
            }:
                scans.append((step, sql))
    db.close()
    world.close()
    assert len(executed) > 100
    # Queuing everything again is what it says.
    anew = ("where due is null", "semantic_queue select")
    assert [(step, sql) for step, sql in scans if "VIRTUAL" not in step and not any(a in sql for a in anew)] == []
