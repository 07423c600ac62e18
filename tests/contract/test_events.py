"""What a command tells kernel caches: every name that came, went or changed hands."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.errors import AvmError
from avmfs.node import Kind, Node
from avmfs.store.client.client import Submitter
from avmfs.store.commands.renaming import EXCHANGE
from avmfs.store.identity import OPERATOR
from avmfs.store.rows.nodes import NODE, node_of
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY, SHARED
from avmfs.store.store import Store
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier

ALICE = Principal("alice")


class Told:
    def __init__(self, root: Path) -> None:
        database.prepare(root / "avm.db")
        self.applier = Applier(root / "avm.db", Policy(), IndexRules(), orphans=True, clock=time.time_ns)
        self.applier.alone(OPERATOR, "settle", {})
        self.applier.alone(ALICE, "enroll", {})

    def do(self, command: str, **arguments: Any) -> Any:
        self.applier.events.clear()
        return self.applier.alone(ALICE, command, arguments)

    @property
    def names(self) -> set[tuple[str, int | None, bytes]]:
        return {(event.op, event.parent, event.name) for event in self.applier.events if event.name}

    def file(self, name: bytes, parent: int = MEMORY) -> int:
        return int(self.do("create", parent=parent, name=name, mode=0o644, exclusive=True)["node"])

    def directory(self, name: bytes, parent: int = MEMORY) -> int:
        return int(self.do("mkdir", parent=parent, name=name, mode=0o755)["node"])


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.applier.close()


def test_a_new_name_and_a_removed_one(told: Told) -> None:
    told.file(b"f")
    assert told.names == {("create", MEMORY, b"f")}
    told.do("unlink", parent=MEMORY, name=b"f")
    assert told.names == {("remove", MEMORY, b"f")}
    told.directory(b"d")
    assert told.names == {("mkdir", MEMORY, b"d")}
    told.do("rmdir", parent=MEMORY, name=b"d")
    assert told.names == {("rmdir", MEMORY, b"d")}


def test_a_renamed_file_has_two_names(told: Told) -> None:
    told.file(b"old")
    there = told.directory(b"there")
    told.do("rename", parent=MEMORY, name=b"old", new_parent=there, new_name=b"new")
    assert {("rename", MEMORY, b"old"), ("rename", there, b"new")} <= told.names


def test_exchanged_files_have_two_names(told: Told) -> None:
    told.file(b"a")
    told.file(b"b")
    told.do("rename", parent=MEMORY, name=b"a", new_parent=MEMORY, new_name=b"b", flags=EXCHANGE)
    assert {("rename", MEMORY, b"a"), ("rename", MEMORY, b"b")} <= told.names


def test_a_replaced_file_is_its_name(told: Told) -> None:
    for name in (b"note.md", b"note.tmp"):
        node = told.file(name)
        told.do("commit", node=node, handle=None, edits=[["w", 0, name]])
    told.do("rename", parent=MEMORY, name=b"note.tmp", new_parent=MEMORY, new_name=b"note.md")
    assert {("rename", MEMORY, b"note.tmp"), ("rename", MEMORY, b"note.md")} <= told.names


def test_a_moved_directory_is_more_than_its_name(told: Told) -> None:
    told.directory(b"d")
    told.do("rename", parent=MEMORY, name=b"d", new_parent=SHARED, new_name=b"d")
    assert ("moved", SHARED, b"d") in told.names


def test_a_file_that_changes_hands_is_named(told: Told) -> None:
    node = told.file(b"f", SHARED)
    told.do("set_shared", node=node, agents=["bob"])
    assert {("remove", SHARED, b"f"), ("shared", SHARED, b"f")} <= told.names


def test_another_owner_or_mode_is_told_of_the_name_and_the_same_is_not(told: Told) -> None:
    node = told.file(b"f")
    for change in ({"mode": 0o600}, {"uid": 7}, {"gid": 8}, {"mode": 0o4755, "uid": 9, "atime": 5}):
        told.do("set_attributes", node=node, **change)
        assert told.names == {("attributes", MEMORY, b"f"), ("rights", MEMORY, b"f")}
        told.do("set_attributes", node=node, mtime=6, **change)
        assert told.names == {("attributes", MEMORY, b"f")}, "the same again, and another time"


# Whoever remembers rows ------------------------------------------------------------------------------------


class Here(Submitter):
    """Commands applied in this process, as a Submitter."""

    def __init__(self, applier: Applier) -> None:
        self.applier = applier

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        return self.applier.alone(who, command, arguments)


def test_what_is_remembered_is_what_is_stored(told: Told) -> None:
    """Random commands; after each, every node, name and list of names is asked of one who remembers."""
    db = told.applier.db
    store = Store(told.applier.path, Here(told.applier))
    random_ = random.Random(5)
    refused = 0
    for step in range(500):
        command, arguments = _random_command(random_, told, step)
        try:
            store.submit(OPERATOR if command.startswith("reap") else ALICE, command, **arguments)
        except AvmError:
            refused += 1
            continue
        now = time.time_ns()
        with store.reading(ALICE) as reader:
            visible = reader.visible
        rows = [node_of(row) for row in db.execute(f"select {NODE} from node")]
        below: dict[int | None, list[Node]] = {}
        for node in rows:
            if node.scope in visible:
                assert store.cached_node(ALICE, node.id) == node, (command, arguments)
                if node.expires is None or node.expires > now:
                    below.setdefault(node.parent, []).append(node)
        for node in rows:
            if node.kind is Kind.DIRECTORY and node.scope in visible:
                inside = sorted(below.get(node.id, []), key=lambda each: each.name)
                assert store.cached_children(ALICE, node.id, b"", 1000)[0] == inside, (command, arguments)
                count = sum(each.kind is Kind.DIRECTORY for each in inside)
                assert store.cached_subdirectories(ALICE, node.id) == count, (command, arguments)
                named = {each.name: each for each in inside}
                for name in (b"n%d" % number for number in range(12)):
                    assert store.cached_child(ALICE, node.id, name) == named.get(name), (command, arguments)
    assert refused < 350
    store.close()


def _random_command(random_: random.Random, told: Told, step: int) -> tuple[str, dict[str, Any]]:
    db = told.applier.db
    rows = db.execute("select id, parent, name, kind from node where id > 15 and parent is not null").fetchall()
    orphans = [row[0] for row in db.execute("select id from node where id > 15 and parent is null")]
    directories = [MEMORY, SHARED, *(row[0] for row in rows if row[3] == 2)]
    parent, name = random_.choice(directories), b"n%d" % random_.randrange(12)
    here: Any = random_.choice(rows) if rows else (MEMORY, MEMORY, b"none", 2)
    files = [row[0] for row in rows if row[3] == 1] + orphans
    node = random_.choice(files) if files else SHARED
    place = {"parent": here[1], "name": bytes(here[2])}
    commands: list[tuple[str, dict[str, Any]]] = [
        ("create", {"parent": parent, "name": name, "mode": 0o644, "exclusive": False}),
        ("create", {"parent": parent, "name": name, "mode": 0o644, "exclusive": False}),
        ("mkdir", {"parent": parent, "name": name, "mode": 0o755}),
        ("symlink", {"parent": parent, "name": name, "target": b"x"}),
        ("unlink", place),
        ("rmdir", place),
        ("rename", {**place, "new_parent": parent, "new_name": random_.choice([name, name + b"~"])}),
        ("rename", {**place, "new_parent": parent, "new_name": name}),
        ("rename", {**place, "new_parent": parent, "new_name": name, "flags": EXCHANGE}),
        (
            "commit",
            {"node": node, "handle": step, "edits": [["t", 0], ["w", random_.randrange(9000), b"x" * 3000]]},
        ),
        ("append", {"node": node, "handle": step, "data": b"y" * 700}),
        ("set_attributes", {"node": node, "mode": 0o600}),
        ("set_ttl", {"node": node, "expires": random_.choice([None, 1, 1 << 62])}),
        ("set_shared", {"node": node, "agents": random_.choice([None, ["bob"], []])}),
        ("set_tags", {"node": node, "add": ["t"], "remove": [], "replace": False}),
        ("write_path", {"path": [b"memory", name, b"deep", b"f"], "data": b"z"}),
        ("remember", {"path": [b"memory", name], "data": b"r", "created": 5}),
        ("reap_expired", {}),
        ("reap_orphans", {"nodes": orphans[:2]}),
    ]
    return random_.choice(commands)
