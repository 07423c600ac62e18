"""The memory tool's commands over /memories, and what it refuses."""

from __future__ import annotations

import pytest
from mount_world import World
from peers import Peer

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]


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
        "/memories", "/memories/deep", "/memories/deep/er", "/memories/plan.md",
    ]  # fmt: skip
    assert do("rename", old_path="/memories/plan.md", new_path="/memories/old/plan.md") == (
        "Successfully renamed /memories/plan.md to /memories/old/plan.md"
    )
    assert do("delete", path="/memories/deep").startswith("Successfully deleted")
    assert "plan.md" in do("view", path="/memories/old") and "/deep" not in do("view", path="/memories")
    assert notes.said("avm_list", path="/private/memories/old")["total"] == 1
    do("create", path="/memories/empty.md", file_text="")
    do("insert", path="/memories/empty.md", insert_line=0, insert_text="first\n")
    assert notes.text("avm_read", path="/private/memories/empty.md") == "first\n"


def test_it_says_why_it_did_nothing(notes: Peer) -> None:
    notes.call("memory", command="create", path="/memories/a.md", file_text="same\nother\nsame\n")

    def refused(command: str, **arguments: object) -> str:
        return notes.refused("memory", command=command, **arguments)

    assert "already exists" in refused("create", path="/memories/a.md", file_text="x")
    assert "does not exist" in refused("view", path="/memories/b.md")
    assert "does not exist" in refused("str_replace", path="/memories/b.md", old_str="a", new_str="b")
    assert "does not exist" in refused("insert", path="/memories/b.md", insert_line=0, insert_text="b")
    assert "does not exist" in refused("delete", path="/memories/b.md")
    assert "does not exist" in refused("rename", old_path="/memories/b", new_path="/memories/c")  # no prefix move
    assert "already exists" in refused("rename", old_path="/memories/a.md", new_path="/memories/a.md")
    assert "in lines: 1, 3" in refused("str_replace", path="/memories/a.md", old_str="same", new_str="x")
    assert "did not appear verbatim" in refused("str_replace", path="/memories/a.md", old_str="none", new_str="x")
    assert "old_str is empty" in refused("str_replace", path="/memories/a.md", old_str="", new_str="x")
    assert "[0, 3]" in refused("insert", path="/memories/a.md", insert_line=4, insert_text="x")
    assert "[1, 4]" in refused("view", path="/memories/a.md", view_range=[3, 9])
    assert "create needs file_text" in refused("create", path="/memories/c.md")
    assert "rename needs old_path and new_path" in refused("rename")
    assert "directory" in refused("str_replace", path="/memories", old_str="a", new_str="b")
    assert "cannot be deleted" in refused("delete", path="/memories")
    assert refused("explode", path="/memories").startswith("command: ")
    assert notes.text("avm_read", path="/private/memories/a.md") == "same\nother\nsame\n"


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../secret.md", "/memories/a/../../secret.md", "/memories/%2e%2e/secret.md",
        "/memories/..%2fsecret.md",
        "/memories/..\\secret.md", "/memories/./a.md", "/memories//a.md", "/memories/a\x00b", "/memoriesx/a.md",
        "memories/a.md", "/private/secret.md", "/", "", "~/a.md", "/memories/a.md:meta", "/memories/a.md:tags",
        "/memories/:list", "/memories/%2E%2E/%2E%2E/x", "/memories/" + "x" * 300,
    ],
)  # fmt: skip
def test_a_path_that_leaves_memories_or_names_a_view_is_refused(notes: Peer, path: str) -> None:
    notes.call("avm_write", path="/private/secret.md", content="not for this tool\n")
    for command, arguments in {
        "view": {"path": path}, "create": {"path": path, "file_text": "x"},
        "str_replace": {"path": path, "old_str": "not", "new_str": "x"},
        "insert": {"path": path, "insert_line": 0, "insert_text": "x"}, "delete": {"path": path},
        "rename": {"old_path": path, "new_path": "/memories/stolen.md"},
    }.items():  # fmt: skip
        said = notes.refused("memory", command=command, **arguments)
        assert "not for this tool" not in said
    notes.call("memory", command="create", path="/memories/mine.md", file_text="x")
    notes.refused("memory", command="rename", old_path="/memories/mine.md", new_path=path)
    assert notes.text("avm_read", path="/private/secret.md") == "not for this tool\n"


def test_each_agent_has_memories_of_its_own(notes: Peer, bob: Peer) -> None:
    notes.call("memory", command="create", path="/memories/mine.md", file_text="alice's")
    assert "mine.md" not in bob.text("memory", command="view", path="/memories")
    assert "does not exist" in bob.refused("memory", command="view", path="/memories/mine.md")
