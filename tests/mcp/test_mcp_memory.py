"""The memory tool's commands over /memories, and what it refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from avmfs_config import find_paths

from avmfs.errors import Exists, NotFound
from avmfs.mcp import memories
from avmfs.mcp.server import _Call
from avmfs.mcp.session import Session
from tests.mcp import peers
from tests.mcp.peers import Peer
from tests.mount.mount_world import World

pytestmark = pytest.mark.mount


@pytest.fixture
def notes(alice: Peer) -> Peer:
    """Alice, with nothing below /memories but what the test makes."""
    alice.call("avm_write", path="/private/other.md", content="x")
    for entry in alice.said("avm_list", path="/private")["entries"]:
        if entry["path"].endswith("/memories"):
            for each in alice.said("avm_list", path="/private/memories")["entries"]:
                name = each["path"].rpartition("/")[2]
                alice.call("memory", command="delete", path=f"/memories/{name}")
    return alice


def test_a_file_s_life(notes: Peer, world: World) -> None:
    def do(command: str, **arguments: object) -> str:
        return notes.text("memory", command=command, **arguments)

    assert do("view", path="/memories").endswith(":\n0\t/memories\n")
    assert do("create", path="/memories/plan.md", file_text="one\ntwo\nthree\n").startswith("File created successfully")
    assert do("view", path="/memories/plan.md") == (
        "Here's the content of /memories/plan.md with line numbers:\n     1\tone\n     2\ttwo\n     3\tthree\n     4\t"
    )
    assert do("view", path="/memories/plan.md", view_range=[2, 3]).endswith(":\n     2\ttwo\n     3\tthree")
    assert do("view", path="/memories/plan.md", view_range=[3, -1]).endswith("     3\tthree\n     4\t")
    assert "     2\tTWO\n     3\tand a half" in do(
        "str_replace", path="/memories/plan.md", old_str="two", new_str="TWO\nand a half"
    )
    assert "has been edited" in do("insert", path="/memories/plan.md", insert_line=0, insert_text="zero")
    do("insert", path="/memories/plan.md", insert_line=5, insert_text="four")
    assert notes.text("avm_read", path="/private/memories/plan.md") == "zero\none\nTWO\nand a half\nthree\nfour"
    do("insert", path="/memories/plan.md", insert_line=6, insert_text="five\n")
    assert notes.text("avm_read", path="/private/memories/plan.md").endswith("three\nfour\nfive\n")
    do("str_replace", path="/memories/plan.md", old_str="TWO\nand a half\n")  # without new_str it goes
    assert notes.text("avm_read", path="/private/memories/plan.md") == "zero\none\nthree\nfour\nfive\n"
    do("create", path="/memories/deep/er/est.md", file_text="x")
    do("create", path="/memories/deep/.hidden", file_text="x")
    shown = do("view", path="/memories").splitlines()[1:]
    assert [line.split("\t")[1] for line in shown] == [
        "/memories",
        "/memories/deep",
        "/memories/deep/er",
        "/memories/plan.md",
    ]
    assert do("rename", old_path="/memories/plan.md", new_path="/memories/old/plan.md") == (
        "Successfully renamed /memories/plan.md to /memories/old/plan.md"
    )
    assert do("delete", path="/memories/deep").startswith("Successfully deleted")
    assert "plan.md" in do("view", path="/memories/old") and "/deep" not in do("view", path="/memories")
    assert notes.said("avm_list", path="/private/memories/old")["total"] == 1
    do("create", path="/memories/empty.md", file_text="")
    do("insert", path="/memories/empty.md", insert_line=0, insert_text="first\n")
    assert notes.text("avm_read", path="/private/memories/empty.md") == "first\n"


def test_a_view_says_where_it_leaves_something_out(notes: Peer, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "deep/d"):
        notes.call("memory", command="create", path=f"/memories/{name}.md", file_text="x")
    monkeypatch.setattr(memories, "ENTRIES", 2)
    with contextlib.closing(Session(find_paths(world.environ), "alice", world.environ)) as session:
        said = memories.memory(_Call(session, None), "view", "/memories").text
    assert said.splitlines()[1:] == ["4\t/memories", "1\t/memories/a.md", "1\t/memories/b.md", "(2 more in /memories)"]


def test_it_says_why_it_did_nothing(notes: Peer) -> None:
    notes.call("memory", command="create", path="/memories/a.md", file_text="same\nother\nsame\n")

    def refused(command: str, **arguments: object) -> str:
        return notes.refused("memory", command=command, **arguments)

    # Word for word what the tool's documentation has, as far as it has it.
    assert refused("create", path="/memories/a.md", file_text="x") == "Error: File /memories/a.md already exists"
    missing = "The path /memories/b.md does not exist"
    assert refused("view", path="/memories/b.md") == f"{missing}. Please provide a valid path."
    assert refused("view", path="/memories/a.md/b.md").startswith("The path /memories/a.md/b.md does not exist.")
    assert refused("str_replace", path="/memories/b.md", old_str="a", new_str="b") == (
        f"Error: {missing}. Please provide a valid path."
    )
    assert refused("insert", path="/memories/b.md", insert_line=0, insert_text="b") == f"Error: {missing}"
    assert refused("delete", path="/memories/b.md") == f"Error: {missing}"
    # no prefix move
    assert refused("rename", old_path="/memories/b", new_path="/memories/c") == (
        "Error: The path /memories/b does not exist"
    )
    notes.call("memory", command="create", path="/memories/f.md", file_text="x")
    for below in ("/memories/f.md/c", "/memories/f.md/c/d"):
        assert refused("rename", old_path="/memories/a.md", new_path=below) == (
            f"Error: The destination {below} is below what is no directory"
        )
        assert refused("rename", old_path="/memories/b.md", new_path=below) == f"Error: {missing}"
        assert refused("create", path=below, file_text="x") == "/memories/f.md/c: Not a directory"
    assert refused("rename", old_path="/memories/a.md", new_path="/memories/a.md") == (
        "Error: The destination /memories/a.md already exists"
    )
    assert refused("str_replace", path="/memories/a.md", old_str="same", new_str="x") == (
        "No replacement was performed. Multiple occurrences of old_str `same` in lines: 1, 3. "
        "Please ensure it is unique"
    )
    assert refused("str_replace", path="/memories/a.md", old_str="none", new_str="x") == (
        "No replacement was performed, old_str `none` did not appear verbatim in /memories/a.md."
    )
    assert "old_str is empty" in refused("str_replace", path="/memories/a.md", old_str="", new_str="x")
    assert refused("insert", path="/memories/a.md", insert_line=4, insert_text="x") == (
        "Error: Invalid `insert_line` parameter: 4. It should be within the range of lines of the file: [0, 3]"
    )
    assert "[1, 4]" in refused("view", path="/memories/a.md", view_range=[3, 9])
    # a directory is no file
    notes.call("memory", command="create", path="/memories/d/e.md", file_text="x")
    assert refused("str_replace", path="/memories/d", old_str="a", new_str="b").startswith(
        "Error: The path /memories/d "
    )
    assert refused("insert", path="/memories/d", insert_line=0, insert_text="b") == (
        "Error: The path /memories/d does not exist"
    )
    assert "create needs file_text" in refused("create", path="/memories/c.md")
    assert "rename needs old_path and new_path" in refused("rename")
    assert "cannot be deleted" in refused("delete", path="/memories")
    assert refused("explode", path="/memories").startswith("command: ")
    assert notes.text("avm_read", path="/private/memories/a.md") == "same\nother\nsame\n"


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../secret.md",
        "/memories/a/../../secret.md",
        "/memories/%2e%2e/secret.md",
        "/memories/..%2fsecret.md",
        "/memories/..\\secret.md",
        "/memories/./a.md",
        "/memories//a.md",
        "/memories/a\x00b",
        "/memoriesx/a.md",
        "memories/a.md",
        "/private/secret.md",
        "/",
        "",
        "~/a.md",
        "/memories/a.md:meta",
        "/memories/a.md:tags",
        "/memories/:list",
        "/memories/%2E%2E/%2E%2E/x",
        "/memories/" + "x" * 300,
    ],
)
def test_a_path_that_leaves_memories_or_names_a_view_is_refused(notes: Peer, path: str) -> None:
    notes.call("avm_write", path="/private/secret.md", content="not for this tool\n")
    tried: dict[str, dict[str, Any]] = {
        "view": {"path": path},
        "create": {"path": path, "file_text": "x"},
        "str_replace": {"path": path, "old_str": "not", "new_str": "x"},
        "insert": {"path": path, "insert_line": 0, "insert_text": "x"},
        "delete": {"path": path},
        "rename": {"old_path": path, "new_path": "/memories/stolen.md"},
    }
    for command, arguments in tried.items():
        said = notes.refused("memory", command=command, **arguments)
        assert "not for this tool" not in said
    notes.call("memory", command="create", path="/memories/mine.md", file_text="x")
    notes.refused("memory", command="rename", old_path="/memories/mine.md", new_path=path)
    assert notes.text("avm_read", path="/private/secret.md") == "not for this tool\n"


def test_the_root_itself_is_no_file_to_create(world: World, portal: BlockingPortal) -> None:
    with peers.stdio(portal, world.environ, "erin") as erin:
        assert "/memories is a directory" in erin.refused("memory", command="create", path="/memories", file_text="x")
        erin.call("memory", command="create", path="/memories/a.md", file_text="x")
        assert erin.text("memory", command="view", path="/memories").endswith("/memories/a.md\n")


def test_a_directory_whose_name_is_no_unicode_stands_in_the_view_with_the_others(carol: Peer, world: World) -> None:
    carol.call("memory", command="create", path="/memories/odd/a.md", file_text="x")
    odd = os.fsencode(world.mounts["carol"] / "private/memories/odd")
    os.makedirs(odd + b"/d\xefr/below")
    try:
        shown = carol.text("memory", command="view", path="/memories/odd")
        assert "?\t/memories/odd/d\ufffdr\n" in shown and "/memories/odd/a.md\n" in shown, shown
    finally:
        shutil.rmtree(odd)


def test_each_agent_has_memories_of_its_own(notes: Peer, bob: Peer) -> None:
    notes.call("memory", command="create", path="/memories/mine.md", file_text="alice's")
    assert "mine.md" not in bob.text("memory", command="view", path="/memories")
    assert "does not exist" in bob.refused("memory", command="view", path="/memories/mine.md")


def test_a_line_ends_where_view_says_and_a_directory_weighs_what_is_in_it(notes: Peer) -> None:
    notes.call("memory", command="create", path="/memories/odd.md", file_text="a\u2028b\x0cc\nd\n")
    notes.call("memory", command="insert", path="/memories/odd.md", insert_line=1, insert_text="X\n")
    assert notes.text("avm_read", path="/private/memories/odd.md") == "a\u2028b\x0cc\nX\nd\n"
    notes.call("memory", command="create", path="/memories/far/down/below.md", file_text="x" * 2048)
    shown = notes.text("memory", command="view", path="/memories").splitlines()
    assert "2.0K\t/memories/far" in shown and "2.0K\t/memories/far/down" in shown


def test_no_edit_of_two_sessions_at_once_is_lost(notes: Peer, portal: BlockingPortal, world: World) -> None:
    notes.call("memory", command="create", path="/memories/log.md", file_text="0 0\n")
    with peers.stdio(portal, world.environ, "alice") as other, ThreadPoolExecutor() as pool:

        def edit(peer: Peer, place: int) -> None:
            for number in range(20):
                peer.call("memory", command="insert", path="/memories/log.md", insert_line=0, insert_text=f"{place}\n")
                old, new = (f"{number} ", f"{number + 1} ") if place == 0 else (f" {number}\n", f" {number + 1}\n")
                peer.call("memory", command="str_replace", path="/memories/log.md", old_str=old, new_str=new)

        for done in [pool.submit(edit, peer, place) for place, peer in enumerate((notes, other))]:
            done.result(300)
    lines = notes.text("avm_read", path="/private/memories/log.md").splitlines()
    assert sorted(lines) == sorted(["20 20", *["0"] * 20, *["1"] * 20])


class _Raced(_Call):
    """Just before it moves a file somebody else does something."""

    def __init__(self, session: Session, meanwhile: Callable[[], object]) -> None:
        super().__init__(session, None)
        self._meanwhile = meanwhile

    def door(self, method: str, /, **arguments: Any) -> Any:
        if method == "move":
            self._meanwhile()
        return super().door(method, **arguments)


def test_a_rename_takes_the_place_of_nothing_that_came_meanwhile_and_moves_nothing_else(
    notes: Peer, world: World
) -> None:
    def create(name: str) -> object:
        return notes.call("memory", command="create", path=f"/memories/{name}", file_text=f"as {name}")

    for name in ("a.md", "plan", "plan-old.md", "plans.md"):
        create(name)
    with contextlib.closing(Session(find_paths(world.environ), "alice", world.environ)) as session:
        for new, made in (("plan.md", "plan.md"), ("folder", "folder/x.md")):
            raced = _Raced(session, partial(create, made))
            with pytest.raises(Exists, match=f"The destination /memories/{new} already exists"):
                memories.memory(raced, "rename", old_path="/memories/a.md", new_path=f"/memories/{new}")
        raced = _Raced(session, lambda: notes.call("memory", command="delete", path="/memories/plan"))
        with pytest.raises(NotFound, match="The path /memories/plan does not exist"):
            memories.memory(raced, "rename", old_path="/memories/plan", new_path="/memories/done")
    shown = notes.text("memory", command="view", path="/memories").splitlines()[2:]
    names = ("a.md", "folder", "folder/x.md", "plan-old.md", "plan.md", "plans.md")
    assert [line.partition("\t")[2] for line in shown] == [f"/memories/{name}" for name in names]
    for name in ("a.md", "folder/x.md", "plan.md"):
        assert notes.text("avm_read", path=f"/private/memories/{name}") == f"as {name}"


@pytest.fixture
def carol(world: World, portal: BlockingPortal) -> Iterator[Peer]:
    """She has a mount, too, where links can be made."""
    with peers.stdio(portal, world.environ, "carol") as peer:
        yield peer


OUT = {
    # how it leads out: (what /memories has under `way`, the path that goes by it, what is there)
    "file": ("../../../shared/out/plan.md", "way"),
    "absolute": ("/memory/shared/out/plan.md", "way"),
    "middle": ("../../../shared/out", "way/plan.md"),
    "new file": ("../../../shared/out", "way/new.md"),
    "new folder": ("../../../shared/out", "way/new/er.md"),
    "dangling": ("../../../shared/out/new.md", "way"),
    "dangling middle": ("../../../shared/none", "way/new.md"),
    "own, but not below": ("../own.md", "way"),
    "by another": ("second", "way"),
    "loop": ("way", "way"),
}


@pytest.mark.parametrize("how", OUT)
def test_a_link_that_leads_out_of_memories_is_not_followed(carol: Peer, world: World, how: str) -> None:
    mount = world.mounts["carol"]
    memories, out = mount / "private/memories", mount / "shared/out"
    target, path = OUT[how]
    memories.mkdir(exist_ok=True)
    out.mkdir(exist_ok=True)
    for file in (out / "plan.md", mount / "private/own.md"):
        file.write_text("kept\n")
    carol.call("memory", command="create", path="/memories/mine.md", file_text="mine\n")
    (memories / "way").symlink_to(target)
    (memories / "second").symlink_to("../../../shared/out/plan.md")
    try:
        lines: list[dict[str, Any]] = [
            {"command": "view", "path": f"/memories/{path}"},
            {"command": "create", "path": f"/memories/{path}", "file_text": "leaked\n"},
            {"command": "str_replace", "path": f"/memories/{path}", "old_str": "kept", "new_str": "leaked"},
            {"command": "insert", "path": f"/memories/{path}", "insert_line": 0, "insert_text": "leaked\n"},
            *(
                [
                    {"command": "delete", "path": f"/memories/{path}"},
                    {"command": "rename", "old_path": f"/memories/{path}", "new_path": "/memories/stolen.md"},
                ]
                if "/" in path
                else []
            ),
            {"command": "rename", "old_path": "/memories/mine.md", "new_path": f"/memories/{path}/x.md"},
        ]
        for line in lines:
            said = carol.refused("memory", **line)
            assert "kept" not in said.replace("`kept`", ""), line
            assert sorted(each.name for each in out.iterdir()) == ["plan.md"], line
            assert (out / "plan.md").read_text() == "kept\n" == (mount / "private/own.md").read_text(), line
        assert "kept" not in carol.text("memory", command="view", path="/memories")
        if "/" not in path:  # the link itself is hers to move and to remove
            carol.call("memory", command="rename", old_path=f"/memories/{path}", new_path="/memories/moved")
            assert (memories / "moved").is_symlink()
            carol.call("memory", command="delete", path="/memories/moved")
            assert (out / "plan.md").exists()
    finally:
        for name in ("way", "second", "moved", "mine.md"):
            (memories / name).unlink(missing_ok=True)


def test_memories_that_are_a_link_themselves_are_not_followed(carol: Peer, world: World) -> None:
    mount = world.mounts["carol"]
    memories, out = mount / "private/memories", mount / "shared/out"
    memories.mkdir(exist_ok=True)
    out.mkdir(exist_ok=True)
    memories.rename(mount / "private/aside")
    memories.symlink_to("../../shared/out")
    try:
        assert "leads out" in carol.refused("memory", command="view", path="/memories")
        assert "leads out" in carol.refused("memory", command="create", path="/memories/x.md", file_text="leaked")
        assert not (out / "x.md").exists()
    finally:
        memories.unlink()
        (mount / "private/aside").rename(memories)


def test_a_link_within_memories_is_followed(carol: Peer, world: World) -> None:
    memories = world.mounts["carol"] / "private/memories"
    carol.call("memory", command="create", path="/memories/real/plan.md", file_text="one\n")
    (memories / "file").symlink_to("real/plan.md")
    (memories / "folder").symlink_to("/private/memories/real")
    carol.call("memory", command="str_replace", path="/memories/file", old_str="one", new_str="two")
    assert "two" in carol.text("memory", command="view", path="/memories/folder/plan.md")
    carol.call("memory", command="create", path="/memories/folder/new.md", file_text="x\n")
    assert (memories / "real/new.md").read_text() == "x\n"
    carol.call("memory", command="rename", old_path="/memories/folder/new.md", new_path="/memories/folder/newer.md")
    carol.call("memory", command="delete", path="/memories/folder/newer.md")
    assert (memories / "file").is_symlink() and sorted(each.name for each in (memories / "real").iterdir()) == [
        "plan.md"
    ]
    for name in ("file", "folder"):
        (memories / name).unlink()
