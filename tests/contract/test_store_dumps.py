"""Stores that earlier versions made, from dumps beside this file, and what the migrations make of them.

``stores/make.py`` wrote each dump with the code of its version; none is ever edited.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from avmfs_config import default_settings

from avmfs.access import Policy
from avmfs.agents.repairing import repair
from avmfs.errors import Invalid, NotFound
from avmfs.rpc.local import LocalDoor
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.audit import normalised
from avmfs.store.repair.salvage import salvage
from avmfs.store.schema import database, tables
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.contract.store_world import faults, rows

DUMPS = Path(__file__).with_name("stores")
VERSIONS = range(tables.OLDEST, tables.VERSION + 1)


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The store of a version, as a daemon left it."""
    return load(request.param, tmp_path)


def load(version: int, folder: Path) -> Path:
    path = folder / "avm.db"
    with contextlib.closing(connect(path)) as db:
        database.run(db, (DUMPS / f"v{version}.sql").read_text("utf-8"))
    assert rows(path, "pragma user_version") == [(version,)]
    return path


@contextlib.contextmanager
def doors(path: Path) -> Iterator[dict[str, LocalDoor]]:
    opened = {name: LocalDoor(path, default_settings(), name, embeddings=False) for name in ("alice", "bob", "carol")}
    try:
        yield opened
    finally:
        for door in opened.values():
            door.close()


def statements(path: Path) -> dict[str, str]:
    return {name: normalised(sql) for name, sql in rows(path, "select name, sql from sqlite_schema where sql <> ''")}


def test_there_is_a_store_of_every_version() -> None:
    assert sorted(dump.stem for dump in DUMPS.glob("*.sql")) == [f"v{version}" for version in VERSIONS]


def test_an_older_store_becomes_the_same_as_a_new_one(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    database.prepare(new)
    database.prepare(old)
    assert statements(old) == statements(new)
    for pragma in ("user_version", "application_id"):
        assert rows(old, f"pragma {pragma}") == rows(new, f"pragma {pragma}")


def test_where_the_text_of_an_older_store_came_from_is_known_of_its_copies(tmp_path: Path) -> None:
    """What is not known of an older store is learnt at the first start: of small files, large ones, appended ones."""
    path = load(tables.VERSION, tmp_path)
    texts = [b"a page of words\n", b"words and words\n" * 8000, b"words of a page\n" * 200]
    with doors(path) as at:
        for number, text in enumerate(texts):
            at["alice"].call("write", path=f"/memory/{number}", data=text[:-16])
            at["alice"].call("write", path=f"/memory/{number}", data=text[-16:], mode="append")
            at["alice"].call("write", path=f"/memory/{number}:meta", data=b'{"sources": ["web"]}\n')
    known = rows(path, "select id, came from node where came is not null order by id")
    assert len(known) == len(texts) + 1
    with contextlib.closing(connect(path)) as db:
        database.run(db, "update node set came = null; insert into setting values('unknown_copies', '')")
    with doors(path) as at:
        for number, text in enumerate(texts):
            at["bob"].call("write", path=f"/memory/{number}.copy", data=text)
            assert b'"trust": "mark"' in at["alice"].call("read", path=f"/memory/{number}.copy:meta")["data"]
    found = rows(path, "select id, came from node where came is not null order by id")
    assert set(known) < set(found) and len(found) == 2 * len(texts) + 1
    assert rows(path, "select value from setting where key = 'unknown_copies'") == []


@pytest.mark.parametrize("trashed", [False, True])
def test_a_document_in_a_private_space_of_an_older_store_is_charged_to_its_agent(trashed: bool, tmp_path: Path) -> None:
    path = load(18, tmp_path)
    with contextlib.closing(connect(path)) as db:
        diary = db.execute("select document from node where name = cast('diary.md' as blob)").get
        db.execute("update document set creator = 'bob' where id = ?", (diary,))
        if trashed:
            made = (
                "insert into node(id, parent, name, kind, mode, mtime, ctime, scope) values(?, ?, ?, 2, 493, 1, 1, 1)"
            )
            db.executemany(made, [(1001, tables.TRASH, b"private"), (1002, 1001, b"carol")])
            db.execute("update node set parent = 1002 where document = ?", (diary,))
    database.prepare(path)
    assert rows(path, "select id, charged from document where charged is not null") == [(diary, "carol")]


def test_everybody_finds_in_an_older_store_what_they_had_and_nothing_else(old: Path) -> None:
    files = {
        "/shared/plan.md": b"# Plan\n\nstep 2\nstep 2\nstep 2\nsecond step\n",
        "/shared/draft.md": b"the published draft\n",
        "/memory/empty": b"",
        "/memory/late.md": b"written after the last search\n",
        "/memory/latest": b"# Plan\n\nstep 2\nstep 2\nstep 2\nsecond step\n",  # a symlink
        "/memory/large.bin": b"head" + bytes(199_993) + b"end and a tail",
    }
    for_some = {"/memory/for-bob.md": {"alice", "bob"}, "/memory/private/carol/diary.md": {"carol"}}
    with doors(old) as opened:
        for name, door in opened.items():
            for path, data in files.items():
                assert door.call("read", path=path)["data"] == data, (name, path)
            for path, readers in for_some.items():
                if name in readers:
                    assert door.call("read", path=path)["data"]
                else:
                    with pytest.raises(NotFound):
                        door.call("read", path=path)
            assert door.call("tags", path="/shared")["tags"] == {"q3": 1, "q4": 1, "roadmap": 1}
        alice, bob, carol = opened["alice"], opened["bob"], opened["carol"]
        seen = {
            name: [v["version"] for v in door.call("history", path="/shared/draft.md")["versions"]]
            for name, door in opened.items()
        }
        assert seen == {"alice": [2, 1], "bob": [2], "carol": [2]}
        texts = [bob.call("version", path="/shared/plan.md", number=number)["data"] for number in (1, 2, 3)]
        assert texts == [b"# Plan\n\n" + b"step %d\n" % number * (number + 1) for number in range(3)]
        (link,) = bob.call("links", path="/shared/draft.md")["links"]
        assert (link["path"], link["type"]) == ("/memory/shared/plan.md", "depends-on")
        mail = {
            name: [(m["sender"], m["body"]) for m in door.call("inbox")["messages"]] for name, door in opened.items()
        }
        assert sorted(mail["alice"]) == [("bob", "done"), ("carol", "hello all")]
        assert sorted(mail["bob"]) == [("alice", "please read the plan"), ("carol", "hello all")]
        assert mail["carol"] == []
        assert bob.call("unread")["normal"] == 1 and alice.call("unread")["normal"] == 2
        assert [s["pattern"] for s in bob.call("subscriptions")["subscriptions"]] == ["/shared/*", "/memory/*"]
        assert carol.call("privacy")["mode"] == "existence"
        for name, door in opened.items():
            found = {hit["path"] for hit in door.call("search", q="written")["hits"]}
            assert "/memory/late.md" in found, name
        bob.call("write", path="/shared/plan.md", data=b"anew\n")
        (plan,) = (m["id"] for m in bob.call("inbox")["messages"] if m["sender"] == "alice")
        bob.call("tell", recipient="alice", body="more", re=plan)
        threads = {m["body"]: m["thread"] for m in alice.call("inbox")["messages"]}
        assert threads["more"] == threads["done"] != threads["hello all"]
    assert faults(old, Policy.from_settings(default_settings())) == []
    with repair(old, default_settings(), dry=True) as done:
        assert done.found == [] and done.sound


def test_contents_of_an_older_store_get_their_checksums(old: Path) -> None:
    store = open_direct(old, Policy(), IndexRules())
    while store.submit(OPERATOR, "sum_contents")["more"]:
        pass
    store.close()
    for table in ("body", "block"):
        assert rows(old, f"select id from {table} where crc is null") == []
    assert rows(old, "select value from setting where key = 'unsummed'") == []


def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = load(tables.OLDEST, tmp_path)
    before = statements(path)
    with monkeypatch.context() as failing:
        failing.setattr(tables, "MIGRATIONS", (tables.MIGRATIONS[0] + "select abs(1, 2);", *tables.MIGRATIONS[1:]))
        with pytest.raises(apsw.SQLError):
            database.prepare(path)
    assert rows(path, "pragma user_version") == [(tables.OLDEST,)] and statements(path) == before
    database.prepare(path)
    assert rows(path, "pragma user_version") == [(tables.VERSION,)]


def test_a_store_of_a_development_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = load(tables.OLDEST, tmp_path)
    with contextlib.closing(connect(path)) as db:
        db.execute(f"pragma user_version = {tables.OLDEST - 1}")
    before = path.read_bytes()
    for opener in (database.prepare, lambda p: database.connect(p, writable=False)):
        with pytest.raises(Invalid, match=f"a development version of avmfs .version {tables.OLDEST - 1}"):
            opener(path)
    with pytest.raises(Invalid, match="before any release"), repair(path, default_settings(), dry=True):
        pass
    assert path.read_bytes() == before


def test_rows_of_an_older_store_are_saved_though_their_table_is_lost(old: Path, tmp_path: Path) -> None:
    """They are shorter than today's, and known by the shape that they had."""
    contents = rows(old, "select id, data from body")
    with contextlib.closing(connect(old)) as db:
        database.run(db, "pragma writable_schema = on; delete from sqlite_schema where name = 'body'")
    new = tmp_path / "new.db"
    saved, *_ = salvage(old, new)
    assert rows(new, "select id, data from body") == contents and saved["body"] == len(contents) > 3
    assert rows(new, "pragma user_version") == [(tables.VERSION,)]
    assert rows(new, "select value from setting where key = 'unsummed'") == [("body",)]


def test_rows_of_a_store_that_was_brought_to_this_version_are_saved_beside_new_ones(old: Path, tmp_path: Path) -> None:
    """They stay as short as they were until they are written again, on pages with rows of today's width."""
    with doors(old) as at:
        at["alice"].call("write", path="/memory/new.md", data=b"a note of today\n")
    kept = ("node", "body", "block", "tail", "document", "version", "snapshot", "area", "api_key")
    before = {table: rows(old, f"select * from {table}") for table in kept}
    with contextlib.closing(connect(old)) as db:
        database.run(db, "pragma writable_schema = on; delete from sqlite_schema")
    new = tmp_path / "new.db"
    salvage(old, new)
    assert {table: rows(new, f"select * from {table}") for table in kept} == before


def test_texts_whose_terms_are_made_in_another_way_are_indexed_anew(tmp_path: Path) -> None:
    path = load(19, tmp_path)
    with contextlib.closing(connect(path)) as db:
        version = tables.VERSION
        database.run(db, f"pragma user_version = {version}")  # as of now, so that nothing is queued yet
    with doors(path) as at:
        at["alice"].call("write", path="/shared/кот.md", data="Королёв пьёт чай".encode())
        at["alice"].call("write", path="/shared/tea.md", data=b"tea for two\n")
        at["alice"].call("search", q="tea", mode="lexical")
    with contextlib.closing(connect(path)) as db:
        database.run(db, "pragma user_version = 19")
    database.prepare(path)
    due = rows(
        path, "select cast(name as text) from node join document on document.node = node.id where due is not null"
    )
    assert {*due} == {("кот.md",), ("large.bin",)}, "what stands in extents is not looked into"
    with doors(path) as at:
        assert "кот" in at["bob"].call("search", q="королев", mode="lexical")["text"]
