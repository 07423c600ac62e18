"""What becomes of the edits of an open file that the store refuses: see ``avmfs.vfs.files``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from views_fixtures import opened

from avmfs.errors import OverQuota
from avmfs.memory import Memory
from avmfs.vfs.address import Real
from avmfs.vfs.attributes import Caller
from avmfs.vfs.files import FileHandle
from avmfs.vfs.tree import Tree

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with opened(tmp_path) as world:
        yield Tree(world.agent("alice").memory, uid=os.getuid(), gid=os.getgid())


def _refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> tuple[FileHandle, int]:
    """A handle with edits that its close has refused; by now there is room."""
    where, _ = tree.lookup(tree.node(1), b"memory")
    assert isinstance(where, Real)
    found, handle = tree.create(where, b"f", 0o644, os.O_WRONLY, Caller(os.getuid(), os.getgid()))
    assert isinstance(found, Real) and isinstance(handle, FileHandle)
    handle.write(0, b"too much")

    def no_room(self: Memory, command: str, **arguments: Any) -> Any:
        raise OverQuota("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Memory, "submit", no_room)
        with pytest.raises(OverQuota):
            handle.flush()
    return handle, found.node.id


def test_what_close_has_refused_is_not_committed_behind_the_back_of_who_was_told(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writer has perhaps unlinked it: the bytes would be charged to the agent, where nobody can free them."""
    handle, node = _refused(tree, monkeypatch)
    handle.release()
    assert tree.peek(node).size == 0
    assert "are lost: no room" in caplog.text


def test_a_second_close_tries_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, node = _refused(tree, monkeypatch)
    handle.flush()
    handle.release()
    assert tree.peek(node).size == 8


def test_pages_that_come_after_the_refusal_are_committed_with_all_before(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, node = _refused(tree, monkeypatch)
    handle.write(8, b"!")
    handle.release()
    assert tree.peek(node).size == 9
