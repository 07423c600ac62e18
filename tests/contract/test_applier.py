"""Transactions of several commands, and what the writing connection remembers between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from avmfs.access import Person, Policy, Principal, Quota
from avmfs.errors import Denied, Exists, Invalid, NoSpace, NotFound, Stale, StoreFailed
from avmfs.store import commands
from avmfs.store.commands import indexing, upkeep, versions
from avmfs.store.identity import OPERATOR
from avmfs.store.rows import api_keys
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY, PRIVATE
from avmfs.store.tx import random_ids
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from tests.contract.store_world import faults

ALICE = Principal("alice")


def opened(path: Path, clock: Any = time.time_ns) -> Applier:
    applier = Applier(path, Policy(), IndexRules(), orphans=True, clock=clock)
    applier.alone(OPERATOR, "settle", {})
    return applier


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database.prepare(tmp_path / "avm.db")
    return tmp_path / "avm.db"


@pytest.fixture
def applier(path: Path) -> Iterator[Applier]:
    made = opened(path)
    made.alone(ALICE, "enroll", {})
    yield made
    made.close()


def create(name: str) -> dict[str, Any]:
    return {"parent": MEMORY, "name": name.encode(), "mode": 0o644, "exclusive": True}


def write(applier: Applier, name: str, data: bytes = b"words") -> dict[str, Any]:
    found: dict[str, Any] = applier.alone(ALICE, "write_path", {"path": [b"memory", name.encode()], "data": data})
    return found


def one(applier: Applier, statement: str, *values: Any) -> Any:
    return applier.db.execute(statement, values).get


def document(applier: Applier, name: str) -> int:
    return int(one(applier, "select document from node where parent = ? and name = ?", MEMORY, name.encode()))


def refuse(reply: Any) -> None:
    raise Invalid("after all")


# Commands that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_command_that_fails_takes_no_other_of_its_transaction_along(applier: Applier, place: int) -> None:
    applier.begin()
    for number in range(3):
        if number == place:
            with pytest.raises(Invalid):
                applier.apply(ALICE, "create", create("never"), refuse)
        else:
            applier.apply(ALICE, "create", create(f"f{number}"))
    applier.commit()
    names = {bytes(name) for (name,) in applier.db.execute("select name from node where parent = ?", (MEMORY,))}
    assert {b"f0", b"f1", b"f2", b"never"} & names == {b"f%d" % number for number in range(3) if number != place}
    assert one(applier, "select count(*) from document") == 2
    assert one(applier, "select count(*) from log where op = 'create'") == 2


@pytest.mark.parametrize("before", [False, True])
def test_a_refusal_is_counted_wherever_in_a_transaction_it_comes(applier: Applier, before: bool) -> None:
    applier.begin()
    if before:
        applier.apply(ALICE, "create", create("before"))
    with pytest.raises(Denied):
        applier.apply(ALICE, "mkdir", {"parent": PRIVATE, "name": b"mine", "mode": 0o755})
    with pytest.raises(Invalid):
        applier.apply(ALICE, "create", create("never"), refuse)  # which is no refusal of a right
    applier.apply(ALICE, "create", create("after"))
    applier.commit()
    assert one(applier, "select sum(count) from refusal") == 1
    assert one(applier, "select count(*) from node where name = ?", b"after") == 1


def test_what_a_snapshot_has_is_kept_from_the_next_command_of_its_transaction_on(applier: Applier) -> None:
    """Where no past is kept but that."""
    write(applier, "f", b"one")
    applier.begin()
    applier.apply(ALICE, "snapshot", {"name": "s"})
    applier.apply(ALICE, "unlink", {"parent": MEMORY, "name": b"f"})
    applier.commit()
    assert one(applier, "select version from past where name = ?", b"f") == 1
    assert one(applier, "select count(*) from past_version") == 1


@pytest.mark.parametrize("first", [False, True])
def test_a_refused_command_leaves_no_scope_behind(applier: Applier, path: Path, first: bool) -> None:
    """Its number goes to the next that is new: two agents would share a private space."""
    applier.begin()
    if not first:
        applier.apply(ALICE, "create", create("before"))
    with pytest.raises(Invalid):
        applier.apply(Principal("dave"), "enroll", {}, refuse)
    for name in ("erin", "dave"):
        applier.apply(Principal(name), "enroll", {})
    applier.commit()
    assert one(applier, "select count(distinct scope) from node where parent = ?", PRIVATE) == 3
    assert faults(path, Policy()) == []


def test_nothing_remembers_a_refused_change_to_where_a_directory_stands(applier: Applier) -> None:
    made = applier.alone(ALICE, "mkdir", {"parent": MEMORY, "name": b"d", "mode": 0o755})["node"]
    inside = {**create("f"), "parent": made}
    applier.alone(ALICE, "create", inside)
    move = {"parent": MEMORY, "name": b"d", "new_parent": MEMORY, "new_name": b"e"}
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "rename", move, refuse)
    applier.apply(ALICE, "create", {**inside, "name": b"g"})
    applier.commit()
    applier.alone(ALICE, "rename", move)
    applier.alone(ALICE, "create", {**inside, "name": b"h"})
    paths = [bytes(path) for (path,) in applier.db.execute("select path from log where op = 'create' order by seq")]
    assert paths == [b"/memory/d/f", b"/memory/d/g", b"/memory/e/h"]


@pytest.mark.parametrize("lost", ["first", "later", "transaction"])
@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("append", {"data": b"more"}),
        ("commit", {"edits": [["w", 0, b"anew"]]}),
        ("commit", {"edits": [["w", 10, b"AAA"]], "made": True}),
    ],
)
def test_what_was_appended_is_known_where_what_changed_the_file_then_was_not_done(
    applier: Applier, command: str, more: dict[str, Any], lost: str
) -> None:
    node, made = write(applier, "f", b"0123456789")["node"], applier._clock()
    applier.alone(ALICE, "append", {"node": node, "handle": 7, "data": b"ONE"})
    if "made" in more:
        more = {**more, "made": made}
    asked = ALICE, command, {"node": node, "handle": 9, **more}
    applier.begin()
    if lost == "later":
        applier.apply(ALICE, "append", {"node": node, "handle": 7, "data": b"TWO"})
    if lost == "transaction":
        applier.apply(*asked)
        applier.rollback()
    else:
        with pytest.raises(Invalid):
            applier.apply(*asked, refuse)
        applier.commit()
    applier.rollback()  # of none
    done = applier.alone(ALICE, "commit", {"node": node, "handle": 1, "edits": [["t", 3]], "made": made})
    behind = len("ONETWO" if lost == "later" else "ONE")
    assert (done.get("behind"), done["size"]) == (behind, 3 + behind)


# What is remembered ---------------------------------------------------------------------------------------------


def test_a_document_is_queued_again_after_its_words_were_made(applier: Applier) -> None:
    write(applier, "f")
    found = document(applier, "f")
    for _ in range(2):
        assert one(applier, "select count(*) from lexical_queue where document = ?", found) == 1
        applier.alone(ALICE, "drain_lexical", {})
        assert one(applier, "select count(*) from lexical_queue") == 0
        write(applier, "f", b"other words")
        write(applier, "f", b"and more")


def test_what_waits_for_indexing_is_counted_by_documents(applier: Applier) -> None:
    """The writer puts indexing off by this while it is busy: requests that leave nothing to index do not count."""
    before = applier.waiting
    node = applier.alone(ALICE, "create", create("a"))["node"]
    assert applier.waiting == before
    for _ in range(3):
        applier.alone(ALICE, "append", {"node": node, "handle": None, "data": b"words "})
    write(applier, "b")
    assert applier.waiting == before + 2
    assert applier.alone(OPERATOR, "drain_lexical", {}) == {"done": 2, "left": 0}
    write(applier, "a")
    applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": b"b"})
    assert applier.waiting - before - 2 == 2 == one(applier, indexing.WAITING)
    applier.alone(OPERATOR, "drain_lexical", {})
    applier.set_rules(Policy(), IndexRules(("a",)))
    assert applier.waiting - before - 4 == 1 == one(applier, indexing.WAITING)


def test_other_rules_of_what_is_indexed_hold_for_what_is_there(path: Path) -> None:
    def indexed(applier: Applier) -> dict[str, str]:
        while applier.alone(OPERATOR, "drain_lexical", {})["left"]:
            pass
        rows: list[Any] = applier.db.execute(
            "select name, coalesce(reason, 'found') from node join document on document.id = node.document"
            " left join unindexed on unindexed.document = document.id"
        ).fetchall()
        found = {bytes(name).decode(): reason for name, reason in rows}
        assert one(applier, "select count(*) from passage") == [*found.values()].count("found")
        return found

    applier = opened(path)
    for name, data in (("a.md", b"words"), ("b.md", b"words " * 100), ("c.log", b"words"), ("d.bin", b"\0")):
        write(applier, name, data)
    assert indexed(applier) == {"a.md": "found", "b.md": "found", "c.log": "found", "d.bin": "not text"}
    narrow = IndexRules(("*.log", "memory/a*/*"), 100)
    ignored, larger = "its name is on the ignore list", "larger than {} bytes"
    applier.set_rules(Policy(), narrow)
    assert one(applier, indexing.WAITING) == 2, "and nothing else is made anew"
    assert indexed(applier) == {"a.md": "found", "b.md": larger.format(100), "c.log": ignored, "d.bin": "not text"}
    applier.set_rules(Policy(), replace(narrow, max_bytes=200))
    assert indexed(applier)["b.md"] == larger.format(200)
    applier.close()
    applier = Applier(path, Policy(), narrow, orphans=True, clock=time.time_ns)  # a restart with others
    for expected in (1, 0):
        applier.alone(OPERATOR, "settle", {})
        assert one(applier, indexing.WAITING) == expected
        indexed(applier)
    applier.close()
    applier = opened(path)
    assert set(indexed(applier).values()) == {"found", "not text"}
    applier.close()


def test_a_document_that_only_a_refused_command_has_queued_is_not(applier: Applier) -> None:
    write(applier, "f")
    applier.alone(ALICE, "drain_lexical", {})
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "write_path", {"path": [b"memory", b"f"], "data": b"no"}, refuse)
    applier.commit()
    assert one(applier, "select count(*) from lexical_queue") == 0
    write(applier, "f", b"yes")
    assert one(applier, "select document from lexical_queue") == document(applier, "f")


def test_a_failed_transaction_leaves_nothing_queued(applier: Applier) -> None:
    write(applier, "f")
    applier.alone(ALICE, "drain_lexical", {})
    applier.begin()
    applier.apply(ALICE, "write_path", {"path": [b"memory", b"f"], "data": b"no"})
    applier.rollback()
    write(applier, "f", b"yes")
    assert one(applier, "select document from lexical_queue") == document(applier, "f")


def test_where_room_is_short_the_past_keeps_nothing_of_what_ends(path: Path) -> None:
    applier = Applier(path, Policy(), IndexRules(past_days=30), orphans=False, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    applier.alone(ALICE, "enroll", {})
    for name, short in (("one", False), ("two", True)):
        write(applier, name)
        if short:
            applier.short = functools.partial(bool, True)
        applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": name.encode()})
        assert one(applier, "select count(*) from past_version") == 1, name
    applier.close()


def test_where_room_is_short_what_was_removed_is_freed_in_small_steps(path: Path) -> None:
    applier = Applier(path, Policy(), IndexRules(), orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    nodes = [write(applier, f"f{number}")["node"] for number in range(upkeep.FREED_SHORT + 1)]
    for number in range(len(nodes)):
        applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": b"f%d" % number})
    applier.short = functools.partial(bool, True)
    for reaped, more in ((upkeep.FREED_SHORT, True), (1, False)):
        done = applier.alone(OPERATOR, "reap_orphans", {"nodes": nodes})
        assert done == {"reaped": reaped, "more": more}
    applier.close()


def test_a_version_is_sealed_by_more_than_a_second_of_idleness(path: Path) -> None:
    now = [time.time_ns()]
    applier = opened(path, lambda: now[0])
    node = write(applier, "f")["node"]
    numbers = []
    for idle in (0, versions.AMEND_WITHIN_NS, versions.AMEND_WITHIN_NS + 1):
        now[0] += idle
        edit = {"node": node, "handle": 7, "edits": [["w", 0, b"x"]]}
        numbers.append(applier.alone(ALICE, "commit", edit)["version"])
    assert numbers == [2, 2, 3]
    applier.close()


def test_a_document_that_goes_on_has_no_more_tags_and_links_than_one_may_have(
    applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("kept", "gone", "x", "y", "z")
    nodes = {name: write(applier, name)["node"] for name in names}
    for name, tags in (("kept", "ab"), ("gone", "cde"), ("x", "stuvw")):
        applier.alone(ALICE, "set_tags", {"node": nodes[name], "add": [*tags], "remove": [], "replace": False})
    for name, targets in (("kept", "x"), ("gone", "yz"), ("y", "x"), ("z", "x")):
        for target in targets:
            applier.alone(ALICE, "add_link", {"node": nodes[name], "target": nodes[target], "type": "see"})
    monkeypatch.setattr(versions, "TAGS_MAX", 3)
    monkeypatch.setattr(versions, "LINKS_MAX", 2)
    kept = document(applier, "kept")
    place = {"parent": MEMORY, "new_parent": MEMORY, "flags": 0}
    applier.alone(ALICE, "rename", {**place, "name": b"gone", "new_name": b"kept"})
    tags = [row[0] for row in applier.db.execute("select tag from tag where document = ? order by tag", (kept,))]
    assert tags == ["a", "b", "c"]
    targets = {row[0] for row in applier.db.execute("select target from link where source = ?", (kept,))}
    least = min(document(applier, name) for name in "yz")
    assert targets == {document(applier, "x"), least}
    assert (one(applier, "select count(*) from tag"), one(applier, "select count(*) from link")) == (8, 4)


def test_no_more_versions_are_kept_than_are_to_be(path: Path) -> None:
    rules = IndexRules(versions=1)
    most = rules.versions_kept(1)  # always a few
    applier = Applier(path, Policy(), rules, orphans=False, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    for number in range(1, most + 4):
        write(applier, "f", b"%d" % number)
        kept = [row[0] for row in applier.db.execute("select number from version order by number")]
        assert kept == [*range(max(1, number + 1 - most), number + 1)]
    applier.close()


def test_a_version_that_is_damaged_is_not_stated_anew_as_if_it_were_whole(applier: Applier) -> None:
    text = b"the zebra crossed the river at noon, and then slept until it was dark"
    _, node, _ = (write(applier, name, text)["node"] for name in ("e", "f", "g"))
    applier.alone(ALICE, "commit", {"node": node, "handle": 7, "edits": [["w", 4, b"Z"]]})
    applier.db.execute("update version set crc = crc + 1 where number = 1 and encoding <> 0")
    with pytest.raises(StoreFailed, match=r"/memory/f: .*not those that were written"):
        applier.alone(ALICE, "commit", {"node": node, "handle": 7, "edits": [["w", 5, b"E"]]})


def test_a_name_left_for_a_backup_is_known_to_the_next_writer(path: Path) -> None:
    """What an editor renamed away just before the writer was killed is found by the one that replaces it."""
    now = time.time_ns()
    first = opened(path, lambda: now)
    write(first, "note")
    was = document(first, "note")
    first.alone(ALICE, "rename", {"parent": MEMORY, "name": b"note", "new_parent": MEMORY, "new_name": b"note~"})
    first.close()
    second = opened(path, lambda: now + 5 * 10**9)
    second.alone(ALICE, "create", create("note"))
    assert document(second, "note") == was
    second.close()


def test_a_name_left_long_ago_is_a_new_document(path: Path) -> None:
    times = [time.time_ns()]
    applier = opened(path, lambda: times[0])
    for wait_s, continues in ((11, False), (9, True)):
        write(applier, "note")
        was = document(applier, "note")
        applier.alone(ALICE, "rename", {"parent": MEMORY, "name": b"note", "new_parent": MEMORY, "new_name": b"note~"})
        times[0] += wait_s * 10**9
        applier.alone(ALICE, "create", create("note"))
        assert (document(applier, "note") == was) is continues
        for name in (b"note", b"note~"):
            applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": name})
    applier.close()


def test_a_taken_handle_is_not_given_again(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_handle", lambda length: "a" * length)
    for number in range(3):
        applier.alone(ALICE, "create", create(f"f{number}"))
    handles = [handle for (handle,) in applier.db.execute("select handle from document order by length(handle)")]
    assert handles == ["aaaa", "aaaaa", "aaaaaa"]


def test_handles_are_of_all_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {letter for _ in range(500) for letter in versions._handle(4)} == set("abcdefghijklmnopqrstuvwxyz234567")
    monkeypatch.setattr(random_ids, "number", lambda bits: (1 << bits) - 1)
    assert versions._handle(6) == "777777"


# What is left of a file -----------------------------------------------------------------------------------------


def mentions(applier: Applier, number: int) -> dict[str, list[str]]:
    """Columns in which the number stands, by table; but for the log, which keeps everything, and its cursors."""
    found: dict[str, list[str]] = {}
    tables: list[Any] = applier.db.execute("select name from sqlite_schema where type = 'table'").fetchall()
    for (table,) in tables:
        if table in ("log", "passage_log", "vector_log") or table.startswith(("terms", "posting", "sqlite_")):
            continue
        columns: list[Any] = applier.db.execute(f"pragma table_info({table})").fetchall()
        for _, column, *_ in columns:
            if one(applier, f"select 1 from {table} where {column} = ?", number):
                found.setdefault(table, []).append(column)
    return found


def test_nothing_is_said_any_more_of_a_document_that_ended(applier: Applier) -> None:
    other = write(applier, "other")["node"]
    node = write(applier, "f", b"# First\n\nAbout gliders.\n" * 6000)["node"]  # large: versions are maps of blocks
    applier.alone(ALICE, "append", {"node": node, "handle": None, "data": b"more"})
    write(applier, "f", b"# Second\n\nAbout kites.\n" * 6000)
    write(applier, "f", b"# Third\n\nAbout #kites again.\n")
    found = document(applier, "f")
    applier.alone(ALICE, "drain_lexical", {})
    applier.db.execute("insert into tag(document, tag) values(?, 't')", (found,))
    for source, target in ((found, document(applier, "other")), (document(applier, "other"), found)):
        applier.db.execute("insert into link values(?, ?, 'related', 'alice', 0)", (source, target))
    applier.db.execute("insert into mark(agent, subject, version, seq) values('bob', ?, 1, 1)", (found,))
    applier.db.execute("insert into veil values(?, 2, 1)", (found,))
    applier.db.execute("insert into unindexed values(?, 'binary')", (found,))
    applier.db.execute("insert into vector values(1, ?, 1, 'm', x'00')", (found,))
    write(applier, "f", b"# Fourth\n")  # and waits in the queues
    said = mentions(applier, found)
    assert {"node", "document", "version", "tag", "link", "veil", "unindexed", "mark", "passage", "topic"} <= set(said)
    assert {"semantic_queue", "vector"} <= set(said)
    assert one(applier, "select document from lexical_queue") == found
    applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": b"f"})
    index = {table: ["document"] for table in ("passage", "topic", "vector", "ended")}
    assert mentions(applier, found) == index, "in one step more"
    applier.alone(ALICE, "drain_lexical", {})
    assert mentions(applier, found) == {}
    assert one(applier, "select count(*) from link") == 0
    assert one(applier, "select count(*) from block") == 0
    assert one(applier, "select name from node where id = ?", other) == b"other"


def test_an_exclusive_creation_finds_what_another_command_of_the_transaction_made(applier: Applier) -> None:
    applier.begin()
    applier.apply(ALICE, "create", create("f"))
    with pytest.raises(Exists):
        applier.apply(ALICE, "create", create("f"))
    applier.commit()
    assert one(applier, "select count(*) from node where name = ?", b"f") == 1


def test_a_directory_is_remembered_as_it_is_now(applier: Applier) -> None:
    """What it is decides about every name made in it: its mode, its scope, its ttl, whether it is there at all."""
    made = applier.alone(ALICE, "mkdir", {"parent": MEMORY, "name": b"d", "mode": 0o755})["node"]
    inside = {**create("f"), "parent": made}
    applier.alone(ALICE, "create", inside)
    by_path = {"path": [b"memory", b"d", b"g"], "data": b"x"}
    applier.alone(ALICE, "set_attributes", {"node": made, "mode": 0o555})
    with pytest.raises(Denied):
        applier.alone(ALICE, "write_path", by_path)
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "set_attributes", {"node": made, "mode": 0o755}, refuse)
    with pytest.raises(Denied):
        applier.apply(ALICE, "write_path", by_path)
    applier.commit()
    applier.alone(ALICE, "set_attributes", {"node": made, "mode": 0o755})
    applier.alone(ALICE, "write_path", by_path)
    move = {"parent": MEMORY, "name": b"d", "new_parent": PRIVATE, "new_name": b"d"}
    space = one(applier, "select id from node where parent = ? and name = ?", PRIVATE, b"alice")
    applier.alone(ALICE, "rename", {**move, "new_parent": space})
    with pytest.raises(NotFound):
        applier.alone(Principal("bob"), "create", {**inside, "name": b"h"})
    applier.alone(ALICE, "create", {**inside, "name": b"h"})
    for name in (b"f", b"g", b"h"):
        applier.alone(ALICE, "unlink", {"parent": made, "name": name})
    applier.alone(ALICE, "rmdir", {"parent": space, "name": b"d"})
    with pytest.raises(NotFound):
        applier.alone(ALICE, "create", inside)


def test_only_commands_after_the_first_of_a_transaction_cost_a_savepoint(applier: Applier) -> None:
    said: list[str] = []

    def note(cursor: apsw.Cursor, statement: str, values: Any) -> bool:
        said.extend(word for word in ("savepoint", "release", "rollback") if statement.startswith(word))
        return True

    applier.db.exec_trace = note
    applier.begin()
    for number in range(3):
        applier.apply(ALICE, "create", create(f"f{number}"))
    with pytest.raises(Invalid):
        applier.apply(ALICE, "create", create("g"), refuse)
    applier.commit()
    assert said == ["savepoint", "release"] * 2 + ["savepoint", "rollback", "release"]


def test_what_is_learnt_in_a_transaction_outlasts_the_failure_of_its_first_command(path: Path) -> None:
    """The triggers that note the past are made in it."""
    rules = IndexRules(past_days=30)
    for last in (False, True):
        applier = Applier(path, Policy(), rules, orphans=False, clock=time.time_ns)
        if not last:
            applier.alone(OPERATOR, "settle", {})
            applier.alone(ALICE, "enroll", {})
            write(applier, "f")
        else:
            applier.begin()
            with pytest.raises(Invalid):
                applier.apply(ALICE, "mark_read", {}, refuse)
            node = one(applier, "select id from node where parent = ? and name = ?", MEMORY, b"f")
            applier.apply(ALICE, "set_attributes", {"node": node, "mode": 0o600})
            applier.commit()
            assert one(applier, "select mode & 511 from past where node = ?", node) == 0o644
        applier.close()


def test_a_writer_knows_the_newest_row_of_the_log_and_syncs_what_others_do_not(path: Path) -> None:
    applier = Applier(path, Policy(), IndexRules(), orphans=False, clock=time.time_ns)
    assert applier.seq == (one(applier, "select max(seq) from log") or 0)
    applier.alone(OPERATOR, "settle", {})
    applier.alone(ALICE, "enroll", {})
    write(applier, "f")
    before = applier.seq
    applier.begin()
    applier.apply(ALICE, "create", create("g"))
    assert applier.seq > before
    applier.rollback()
    assert applier.seq == before == one(applier, "select max(seq) from log")
    assert one(applier, "pragma synchronous") == 1, "the log is synced beside it"
    applier.close()
    alone = Applier(path, Policy(), IndexRules(), orphans=False, clock=time.time_ns, shared=True)
    assert alone.seq == before and one(alone, "pragma synchronous") == 2
    alone.close()


def test_what_a_failed_command_did_is_not_written_down_with_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as the past of a file, nor as what somebody takes up."""
    policy, run = Policy(people={"alice": Person(quota=Quota(bytes=10**6))}), commands.run
    applier = Applier(path, policy, IndexRules(past_days=30), orphans=False, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    node = write(applier, "f")["node"]
    applier.close()
    applier = Applier(path, policy, IndexRules(past_days=30), orphans=False, clock=time.time_ns)
    used = one(applier, "select bytes from usage where agent = 'alice'")

    def fails(tx: Any, command: str, arguments: dict[str, Any]) -> None:
        run(tx, command, arguments)
        raise Invalid("after all")

    applier.begin()
    for asked in (("set_attributes", {"node": node, "mode": 0o600}), ("create", create("g"))):
        with monkeypatch.context() as patched, pytest.raises(Invalid):
            patched.setattr(commands, "run", fails)
            applier.apply(ALICE, *asked)
        applier.apply(ALICE, "mark_read", {})
        applier.apply(ALICE, "mkdir", {"parent": MEMORY, "name": asked[0].encode(), "mode": 0o755})
    applier.commit()
    assert one(applier, "select count(*) from past where node = ?", node) == 0
    assert one(applier, "select bytes from usage where agent = 'alice'") == used
    assert one(applier, "select nodes from usage where agent = 'alice'") == 3
    applier.close()


def test_a_key_that_was_revoked_since_it_was_shown_opens_nothing(applier: Applier) -> None:
    key = {"id": "k", "hash": bytes(32), "agent": "alice", "label": "", "within": [b"/"], "actions": ["read", "write"]}
    applier.alone(ALICE, "create_key", {**key, "expires": None})
    shown = api_keys.limited(applier.db, "alice", "k", time.time_ns())
    assert applier.alone(shown, "create", create("f"))["new"]
    applier.alone(ALICE, "revoke_key", {"id": "k"})
    with pytest.raises(Denied, match="revoked"):
        applier.alone(shown, "create", create("g"))
    assert one(applier, "select count(*) from node where name = ?", b"g") == 0


def test_what_a_failed_command_has_learnt_is_forgotten(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its refusal is counted, too: areas and scopes that it made are no more."""
    run = commands.run
    key = {"id": "k", "hash": bytes(32), "agent": "alice", "label": "", "within": [b"/memory/d"], "actions": ["read"]}

    def denied(tx: Any, command: str, arguments: dict[str, Any]) -> None:
        run(tx, command, arguments)
        raise Denied("after all")

    applier.begin()
    applier.apply(ALICE, "mark_read", {})
    for count in (1, 2):
        with monkeypatch.context() as patched, pytest.raises(Denied):
            patched.setattr(commands, "run", denied)
            applier.apply(ALICE, "create_key", {**key, "expires": None})
        assert one(applier, "select sum(count) from refusal") == count and not applier._stale
        with pytest.raises(Invalid):
            applier.apply(ALICE, "create_key", {**key, "expires": None}, refuse)
        assert applier._stale
    applier.apply(ALICE, "mkdir", {"parent": MEMORY, "name": b"e", "mode": 0o755})
    with pytest.raises(Invalid):
        moved = {"parent": MEMORY, "name": b"e", "new_parent": MEMORY, "new_name": b"moved"}
        applier.apply(ALICE, "rename", moved, refuse)
    assert applier._stale, "where directories stand"
    applier.apply(ALICE, "create_key", {**key, "expires": None})
    applier.commit()
    assert one(applier, "select count(*) from api_key") == 1


def test_a_refusal_is_not_counted_without_a_transaction(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(tx: Any, command: str, arguments: dict[str, Any]) -> None:
        applier.db.execute("rollback")
        raise Denied("no")

    monkeypatch.setattr(commands, "run", ends)
    applier.begin()
    with pytest.raises(Denied) as refused:
        applier.apply(ALICE, "create", create("f"))
    assert not refused.value.recorded and one(applier, "select count(*) from refusal") == 0


def test_agents_that_the_store_knows_of_join_the_policy(applier: Applier) -> None:
    assert "carol" not in applier.policy.people
    carol = {"carol": {"groups": [], "capabilities": ["search_all"]}}
    applier.alone(OPERATOR, "init_permissions", {"users": carol})
    assert applier.policy.people["carol"].capabilities == ("search_all",)
    applier.begin()
    applier.apply(OPERATOR, "init_permissions", {"users": {}})
    assert "carol" not in applier.policy.people
    applier.rollback()
    applier.alone(ALICE, "mark_read", {})
    assert "carol" in applier.policy.people, "as it was"


def test_a_transaction_that_is_lost_takes_what_was_begun_with_it_along(path: Path) -> None:
    """What counts and notes the past is made in the first transaction of a connection."""
    policy = Policy(people={"alice": Person(quota=Quota(bytes=10**6))})
    first = Applier(path, policy, IndexRules(past_days=30), orphans=False, clock=time.time_ns)
    first.alone(OPERATOR, "settle", {})
    node = write(first, "f")["node"]
    first.close()
    applier = Applier(path, policy, IndexRules(past_days=30), orphans=False, clock=time.time_ns)
    applier.begin()
    applier.apply(ALICE, "mark_read", {})
    applier.rollback()
    write(applier, "f", b"longer words")
    assert one(applier, "select bytes from usage where agent = 'alice'") == len(b"longer words")
    assert one(applier, "select size from past where node = ?", node) == len(b"words")
    applier.close()


def test_only_what_there_is_room_for_is_let_in(applier: Applier) -> None:
    asked: list[Any] = []

    def admit(command: str, arguments: dict[str, Any]) -> None:
        asked.append((command, arguments))
        if command == "create":
            raise NoSpace("full")

    applier.admit = admit
    with pytest.raises(NoSpace):
        applier.alone(ALICE, "create", create("f"))
    assert applier.alone(ALICE, "mark_read", {}) == {"count": 0}
    assert asked == [("create", create("f")), ("mark_read", {})]
    assert one(applier, "select count(*) from node where name = ?", b"f") == 0


def test_what_others_have_to_hear_of_is_kept_until_somebody_takes_it(applier: Applier) -> None:
    applier.take_rows()
    applier.events.clear()
    applier.words = []
    applier.origin, before = b"mount", applier.seq
    write(applier, "f")
    assert {event.origin for event in applier.events} == {b"mount"} and applier.words == []
    applier.origin = b""
    write(applier, "g")
    assert {event.origin for event in applier.events} == {b"mount", b""}
    rows = applier.take_rows()
    assert [row[0] for row in rows] == [*range(before + 1, applier.seq + 1)] and applier.take_rows() == []
    applier.alone(OPERATOR, "drain_lexical", {})
    assert len(applier.words) == 2 and applier.seq == rows[-1][0], "indexing appends no row"
    events = [*applier.events]
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "create", create("h"), refuse)
    applier.commit()
    assert applier.events == events and applier.take_rows() == [] and applier.seq == rows[-1][0]
    applier.begin()
    applier.apply(ALICE, "create", create("h"))
    applier.rollback()
    assert applier.events == [] and applier.take_rows() == [] and applier.seq == rows[-1][0]
    applier.rollback()  # of none
    assert applier.seq == rows[-1][0]


def test_what_changes_something_leaves_a_row_and_what_does_not_none(
    applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = applier.seq
    applier.alone(ALICE, "enroll", {})
    assert one(applier, "select max(seq) from log") == before, "she is known"
    changes = "insert or replace into setting(key, value) values('x', 1)"
    monkeypatch.setattr(commands, "run", lambda tx, command, arguments: tx.do(changes) and None)
    applier.alone(Principal("avmfs", operator=True, route="daemon"), "changes", {})
    assert one(applier, "select max(seq) from log") == before
    applier.alone(ALICE, "changes", {})
    assert one(applier, "select op from log where seq > ?", before) == "changes"


@pytest.mark.parametrize("said", [{}, {"clean": True}, {"clean": False}])
def test_a_log_that_cannot_be_trusted_is_not_moved_into_the_database(path: Path, said: dict[str, bool]) -> None:
    opened(path).close(**said)
    log = path.with_name("avm.db-wal")
    assert (log.exists() and log.stat().st_size > 0) is not said.get("clean", True)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), StoreFailed("disk I/O error")])
def test_rules_that_cannot_be_settled_are_not_those_in_force(
    applier: Applier, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    settled = Policy.from_words([("/memory/d/*", "none", ("alice",))], "rw"), IndexRules(past_days=30)
    before = applier.policy, applier.index
    with monkeypatch.context() as patched:

        def fails(tx: Any, command: str, arguments: dict[str, Any]) -> None:
            assert tx.who.operator and tx.who.route == "daemon" and command == "settle" and tx.index is settled[1]
            raise error

        patched.setattr(commands, "run", fails)
        with pytest.raises(type(error), match=str(error)):
            applier.set_rules(*settled)
    made = write(applier, "f")
    assert made["size"] == 5 and applier.index is before[1] and applier.policy.rules == before[0].rules
    applier.set_rules(*settled)
    assert applier.index is settled[1] and applier.policy.rules == settled[0].rules


@pytest.mark.parametrize("shared", [False, True])
def test_directories_are_remembered_where_nobody_else_writes(path: Path, shared: bool) -> None:
    applier = Applier(path, Policy(), IndexRules(), orphans=False, clock=time.time_ns, shared=shared)
    applier.alone(OPERATOR, "settle", {})
    applier.alone(ALICE, "enroll", {})
    made = applier.alone(ALICE, "mkdir", {"parent": MEMORY, "name": b"d", "mode": 0o755})["node"]
    applier.alone(ALICE, "create", {**create("f"), "parent": made})
    assert (applier._known.directory(made) is None) is shared
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "mark_read", {}, refuse)
    applier.commit()
    assert not applier._stale, "a refusal that has learnt nothing forgets nothing"
    applier.close()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("a defect"), StoreFailed("disk I/O error")])
def test_whatever_ends_a_command_ends_its_transaction(
    applier: Applier, monkeypatch: pytest.MonkeyPatch, error: Exception, lost: bool
) -> None:
    def fails(*_: object) -> None:
        if lost:
            applier.db.execute("rollback")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(commands, "run", fails)
        with pytest.raises(type(error), match=str(error)):
            applier.alone(ALICE, "create", create("f"))
    assert applier.db.get_autocommit() and applier.alone(ALICE, "create", create("f"))["new"]


def test_what_is_remembered_ends_where_another_process_may_have_written(path: Path) -> None:
    one_process, other = (
        Applier(path, Policy(), IndexRules(), orphans=False, clock=time.time_ns, shared=True) for _ in range(2)
    )
    for applier in (one_process, other):
        applier.alone(OPERATOR, "settle", {})
        applier.alone(ALICE, "enroll", {})
    made = one_process.alone(ALICE, "mkdir", {"parent": MEMORY, "name": b"d", "mode": 0o755})["node"]
    one_process.alone(ALICE, "create", {**create("f"), "parent": made})
    space = one(other, "select id from node where parent = ? and name = ?", PRIVATE, b"alice")
    other.alone(ALICE, "rename", {"parent": MEMORY, "name": b"d", "new_parent": space, "new_name": b"d"})
    one_process.alone(ALICE, "create", {**create("g"), "parent": made})
    for applier in (one_process, other):
        applier.close()
    assert faults(path, Policy()) == []


def test_a_directory_that_was_never_made_is_not_remembered(applier: Applier) -> None:
    """A command made it, and made a name in it, before it failed."""
    applier.begin()
    with pytest.raises(Invalid):
        applier.apply(ALICE, "write_path", {"path": [b"memory", b"d", b"f"], "data": b"x"}, refuse)
    assert applier._known._directories == {}
    applier.apply(ALICE, "write_path", {"path": [b"memory", b"d", b"g"], "data": b"x"})
    applier.commit()
    names = {bytes(name) for (name,) in applier.db.execute("select name from node")}
    assert {b"d", b"g"} <= names and b"f" not in names


def test_the_ttl_of_a_remembered_directory_passes(path: Path) -> None:
    times = [time.time_ns()]
    applier = opened(path, lambda: times[0])
    made = applier.alone(ALICE, "mkdir", {"parent": MEMORY, "name": b"d", "mode": 0o755})["node"]
    applier.db.execute("update node set expires = ? where id = ?", (times[0] + 10**9, made))
    applier.alone(ALICE, "create", {**create("f"), "parent": made})
    times[0] += 2 * 10**9
    with pytest.raises(NotFound):
        applier.alone(ALICE, "create", {**create("g"), "parent": made})
    applier.close()


def test_what_has_ended_leaves_the_index_under_the_next_writer(path: Path) -> None:
    """As after kill -9 between the removal and the next step of indexing."""
    first = opened(path)
    for name in ("f", "g"):
        write(first, name, b"# Title\n\nsome words")
    first.alone(ALICE, "drain_lexical", {})
    gone = document(first, "f")
    first.alone(ALICE, "unlink", {"parent": MEMORY, "name": b"f"})
    first.close()
    second = opened(path)
    assert one(second, "select document from ended") == gone
    assert second.alone(ALICE, "drain_lexical", {}) == {"done": 1, "left": 0}
    assert mentions(second, gone) == {}
    [(passage, scope)] = second.db.execute("select id, scope from passage").fetchall()
    assert second.db.execute("select rowid from terms where terms match ?", (f"{scope}xword",)).fetchall() == [
        (passage,)
    ]
    second.close()


def test_a_step_of_indexing_writes_one_segment(applier: Applier) -> None:
    """What goes has lower numbers than what comes, and FTS5 ends a segment wherever a number is lower than the last."""
    applier.db.execute("insert into terms(terms, rank) values('automerge', 0)")
    names = [f"f{number}" for number in range(8)]
    for turn in (1, 2):
        for name in names:
            write(applier, name, f"word of {name}, turn {turn}".encode())
        applier.alone(ALICE, "drain_lexical", {"limit": len(names)})
        assert one(applier, "select count(distinct segid) from terms_idx") == turn


def test_what_goes_counts_like_what_comes(applier: Applier) -> None:
    """Others wait for a step: a long document that is now short, or gone, is long to remove."""
    long = b"many words " * 6000
    for name in ("a", "b", "c", "d"):
        write(applier, name, long)
    while applier.alone(ALICE, "drain_lexical", {})["left"]:
        pass
    write(applier, "a", b"short")
    write(applier, "b", b"short")
    for name in (b"c", b"d"):
        applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": name})
    for left in (3, 2, 1, 0):
        assert applier.alone(ALICE, "drain_lexical", {"hurry": True}) == {"done": 1, "left": left}


def test_words_that_somebody_waits_for_come_before_what_has_ended(applier: Applier) -> None:
    write(applier, "f")
    applier.alone(ALICE, "drain_lexical", {})
    applier.alone(ALICE, "unlink", {"parent": MEMORY, "name": b"f"})
    for name in ("c", "a", "b"):
        write(applier, name)
    for name, left in (("c", 3), ("a", 2), ("b", 1)):
        assert applier.alone(ALICE, "drain_lexical", {"limit": 1}) == {"done": 1, "left": left}
        assert one(applier, "select 1 from passage where document = ?", document(applier, name))
    assert applier.alone(ALICE, "drain_lexical", {"limit": 1}) == {"done": 1, "left": 0}


def test_a_backup_that_moves_on_is_none_any_more(applier: Applier) -> None:
    write(applier, "note")
    was = document(applier, "note")
    for old, new in (("note", "note~"), ("note~", "kept.md")):
        name, new_name = old.encode(), new.encode()
        applier.alone(ALICE, "rename", {"parent": MEMORY, "name": name, "new_parent": MEMORY, "new_name": new_name})
    assert one(applier, "select count(*) from document where away_parent is not null") == 0
    applier.alone(ALICE, "create", create("note"))
    assert document(applier, "kept.md") == was != document(applier, "note")


# What it costs --------------------------------------------------------------------------------------------------


def test_commands_change_few_pages(applier: Applier) -> None:
    """Each page is copied into the log and checksummed: half of what a command costs. A split changes a few more."""
    log = [0]

    def hook(db: object, name: str, pages: int) -> int:
        log.append(pages)
        return 0

    applier.db.set_wal_hook(hook)

    def pages(command: str, *each: dict[str, Any]) -> float:
        counts = []
        for arguments in each:
            before = log[-1]
            applier.alone(ALICE, command, arguments)
            counts.append(log[-1] - before)
        return sorted(counts)[len(counts) // 2]

    names = [f"n{number:03}" for number in range(60)]
    assert pages("create", *map(create, names)) <= 8
    nodes = [one(applier, "select id from node where name = ?", name.encode()) for name in names]
    edit: dict[str, Any] = {"handle": 7, "edits": [["t", 0], ["w", 0, b"# A title\n\nand some words"]]}
    assert pages("commit", *({"node": node, **edit} for node in nodes)) <= 8
    while applier.alone(ALICE, "drain_lexical", {})["left"]:
        pass
    edit = {"handle": 8, "edits": [["w", 2, b"another"]]}
    assert pages("commit", *({"node": node, **edit} for node in nodes)) <= 8
    move: list[dict[str, Any]] = [{"parent": MEMORY, "name": name.encode(), "new_parent": MEMORY} for name in names]
    assert pages("rename", *({**one, "new_name": one["name"] + b".md"} for one in move)) <= 6
    assert pages("unlink", *({"parent": MEMORY, "name": name.encode() + b".md"} for name in names)) <= 12


def _deep(applier: Applier, depth: int, node: int = MEMORY) -> int:
    for _ in range(depth):
        node = int(applier.alone(ALICE, "mkdir", {"parent": node, "name": b"d", "mode": 0o755})["node"])
    return node


def test_removing_directories_asks_no_more_the_deeper_they_are(applier: Applier) -> None:
    counted: list[int] = []
    node = MEMORY
    for more in (2, 40):
        node = _deep(applier, more, node)
        for name in (b"x", b"y"):
            applier.alone(ALICE, "mkdir", {"parent": node, "name": name, "mode": 0o755})
        ran: list[str] = []
        applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event, ran=ran: ran.append(event["sql"]))
        for name in (b"x", b"y"):
            applier.alone(ALICE, "rmdir", {"parent": node, "name": name})
        applier.db.trace_v2(0)
        counted.append(len(ran))
    assert counted[0] == counted[1]


def test_a_removed_directory_stands_nowhere_and_the_others_where_they_stood(applier: Applier) -> None:
    node = _deep(applier, 3)
    gone = int(applier.alone(ALICE, "mkdir", {"parent": node, "name": b"x", "mode": 0o755})["node"])
    applier.begin()
    applier.apply(ALICE, "rmdir", {"parent": node, "name": b"x"})
    with pytest.raises((NotFound, Stale)):
        applier.apply(ALICE, "create", {**create("f"), "parent": gone})
    applier.apply(ALICE, "mkdir", {"parent": node, "name": b"x", "mode": 0o755})
    applier.commit()
    applier.alone(ALICE, "rename", {"parent": MEMORY, "name": b"d", "new_parent": MEMORY, "new_name": b"e"})
    applier.alone(ALICE, "create", {**create("f"), "parent": node})
    assert bytes(one(applier, "select path from log order by seq desc limit 1")) == b"/memory/e/d/d/f"


def test_a_removal_that_is_undone_leaves_the_directory_where_it_stood(applier: Applier) -> None:
    node = _deep(applier, 2)
    parent = one(applier, "select parent from node where id = ?", node)
    applier.begin()
    applier.apply(ALICE, "mkdir", {"parent": node, "name": b"before", "mode": 0o755})
    applier.apply(ALICE, "rmdir", {"parent": node, "name": b"before"})
    with pytest.raises(Invalid):
        applier.apply(ALICE, "rmdir", {"parent": parent, "name": b"d"}, refuse)
    applier.apply(ALICE, "create", {**create("f"), "parent": node})
    applier.commit()
    assert bytes(one(applier, "select path from log order by seq desc limit 1")) == b"/memory/d/d/f"
