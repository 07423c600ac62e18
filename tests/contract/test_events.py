"""What a command tells kernel caches: every name that came, went or changed hands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.store import database
from avmfs.store.applier import Applier
from avmfs.store.commands.renaming import EXCHANGE
from avmfs.store.schema import MEMORY, SHARED
from avmfs.store.submit import OPERATOR
from avmfs.store.transaction import IndexRules

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
