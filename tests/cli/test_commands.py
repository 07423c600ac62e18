"""The `avm` command: every sub-command, with a daemon and without, as text and as JSON; exit codes and streams."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import load_mounts

from avmfs.cli.commands import COMMANDS, GROUPS
from tests.cli.shells import LIMIT_S, QuickShell, Shell, configured, environment
from tests.mount.mount_world import World

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module", params=["daemon", "alone"])
def avm(request: pytest.FixtureRequest, settings: str) -> Iterator[Shell]:
    """The same commands, answered by a daemon and by the store itself."""
    if request.param == "daemon":
        world: World = request.getfixturevalue("world")
        yield QuickShell({**world.environ, "LC_ALL": "C.UTF-8"}, world.root)
        return
    with configured(settings) as root:
        yield QuickShell(environment(root), root)


def parsed(shell: Shell, *arguments: str, **more: Any) -> Any:
    """The JSON that a command prints: one line."""
    text = shell.out("--json", *arguments, **more)
    assert text.endswith("\n") and text.count("\n") == 1
    return json.loads(text)


# --- files


def test_the_examples_of_files_are_taken(alone: Shell) -> None:
    """But for one that reads what is piped to it, and one that does not end."""
    for path in ("/memory/2024-01", *(f"/shared/{name}" for name in ("plan", "plan", "a", "b", "report"))):
        alone.run("write", f"{path}.md", path)
    for name, line in GROUPS["Files"].items():
        alone.run("write", "/shared/drafts/x.md", name)
        if name not in ("write", "watch"):
            alone.run(*shlex.split(line)[1:])


def test_write_read_append(avm: Shell) -> None:
    assert avm.out("write", "/shared/f/note.md", "one") == "/memory/shared/f/note.md v1\n"
    assert avm.out("read", "/shared/f/note.md") == "one"
    assert avm.out("append", "/shared/f/note.md", "two") == "/memory/shared/f/note.md v2\n"
    assert avm.out("read", "/memory/shared/f/note.md") == "onetwo\n"
    assert parsed(avm, "write", "/shared/f/note.md", "three") == {"path": "/memory/shared/f/note.md", "version": 3}
    assert parsed(avm, "read", "/shared/f/note.md") == {"path": "/shared/f/note.md", "content": "three"}
    avm.run("write", "/shared/f/bytes", data=b"caf\xe9")
    told = {"path": "/shared/f/bytes", "content": "caf\ufffd", "base64": "Y2Fm6Q=="}
    assert parsed(avm, "read", "/shared/f/bytes") == told
    avm.run("write", "/shared/f/note.md", "--content", "four")
    assert avm.out("read", "/shared/f/note.md") == "four"
    assert avm.complaint("write", "--new", "/shared/f/note.md", "x", code=1).startswith("avm: ")
    avm.run("write", "--new", "/shared/f/new.md", "x")
    avm.run("write", "--if-version", "1", "/shared/f/new.md", "y")
    assert "it is at version 2, not 1" in avm.complaint("write", "--if-version", "1", "/shared/f/new.md", "z", code=1)
    assert avm.complaint("write", "--if-version", "1", "/shared/f/new.md:tags", "z", code=2)


def test_what_stands_in_the_way_of_a_write_is_named_whole_and_advice_fits_the_command(avm: Shell) -> None:
    avm.run("write", "/shared/way/z.md", "x")
    below = avm.complaint("remember", "y", "--path", "/shared/way/z.md/n.md", code=1)
    assert below.startswith("avm: /memory/shared/way/z.md: Not a directory")
    avm.run("write", "/shared/way/z.md:shared", "alice")
    for new in ([], ["--new"]):
        told = avm.complaint("write", *new, "/shared/way/z.md", "y", agent="bob", code=1)
        assert "File exists" in told and ("leave out --new" in told) is bool(new)


def test_bytes_go_in_and_out_as_they_are(avm: Shell) -> None:
    data = bytes(range(256)) * 50
    avm.run("write", "/private/b.bin", data=data)
    assert avm.run("read", "/private/b.bin").stdout == data
    avm.run("write", "/private/b.bin", "-", data=b"a\n")
    avm.run("append", "/private/b.bin", data=b"\xff")
    avm.run("append", "/private/b.bin", "-", data=b"\n\n")
    avm.run("append", "/private/b.bin", "--content", "-", data=b"\xfe")
    assert avm.run("read", "/private/b.bin").stdout == b"a\n\xff\n\n\xfe"
    avm.run("write", "/private/empty", data=b"")
    assert avm.run("read", "/private/empty").stdout == b""


def test_names_and_texts_in_any_script(avm: Shell) -> None:
    for name, text in (("芯片 笔记.md", "估值过高 😀"), ("Ünïcødé.md", "naïve café"), ("a b?c%41+d.md", "odd")):
        path = f"/shared/u/{name}"
        avm.run("write", path, text)
        assert avm.out("read", path) == text
        assert name in avm.out("ls", "/shared/u").splitlines()
    assert parsed(avm, "search", "估值")["hits"][0]["path"] == "/memory/shared/u/芯片 笔记.md"
    undecodable = os.fsdecode(b"/private/\xff\xfe.md")
    avm.run("write", undecodable, "x")
    assert avm.out("read", undecodable) == "x"
    assert r"\xff\xfe.md" in avm.out("ls", "/private").splitlines()
    assert b"\xff\xfe.md" in avm.run("ls", "-0", "/private").stdout.split(b"\0")
    avm.run("rm", undecodable)


def test_views_are_read_and_written_like_files(avm: Shell) -> None:
    avm.run("write", "/private/v.md", "one\n")
    avm.run("write", "/private/v.md", "two\n")
    avm.run("write", "/private/v.md:tags", "a,b")
    assert avm.out("read", "/private/v.md:tags") == "a,b\n"
    assert parsed(avm, "write", "/private/v.md:tags", "+c") == {
        "path": "/memory/private/alice/v.md:tags",
        "version": None,
    }
    assert json.loads(avm.out("read", "/private/v.md:meta"))["tags"] == ["a", "b", "c"]
    assert "v2" in avm.out("read", "/private/v.md:history")
    assert "-one\n+two\n" in avm.out("read", "/private/v.md:diff?from=1&to=2")
    assert "v.md" in avm.out("read", "/private/:list")
    assert "two" in avm.out("read", "/:recall?q=two&min_relevance=0")
    assert avm.out("read", "/:version").startswith("avmfs ")
    assert "no JSON object" in avm.complaint("write", "/private/v.md:meta", "{bad", code=2)
    assert "expected" in avm.complaint("write", "/private/v.md:ttl", "soon", code=2)
    assert avm.complaint("read", "/private/v.md:recall?q=x", code=1).startswith("avm: ")
    assert "unknown parameter" in avm.complaint("read", "/:list?limt=1", code=2)
    avm.complaint("write", "/private/v.md:history", "x", code=1)


def test_ls(avm: Shell) -> None:
    avm.run("write", "/shared/l/b/x.md", "12345")
    avm.run("write", "/shared/l/a.md", "1")
    assert avm.out("ls", "/shared/l") == "a.md\nb/\n"
    long = avm.out("ls", "-l", "/shared/l").splitlines()
    assert long[0].startswith("-rw") and long[0].endswith(" a.md") and " 1 " in long[0] and long[1].startswith("drwx")
    found = parsed(avm, "ls", "/shared/l")
    assert [sorted(each) for each in found] == [["kind", "mode", "mtime", "name", "path", "size"]] * 2
    assert [(each["name"], each["kind"], each["size"]) for each in found] == [
        ("a.md", "file", 1),
        ("b", "directory", 0),
    ]
    assert avm.out("ls", "/shared/l/a.md") == "a.md\n"
    assert "shared/" in avm.out("ls").splitlines()
    assert {"memory/", "tell/", "shared@", "private@"} == {*avm.out("ls", "/").split()}
    avm.complaint("ls", "/shared/none", code=1)


def test_mv_of_a_node_a_directory_and_a_prefix(avm: Shell) -> None:
    for name in ("one.md", "d/two.md", "2024-01.md", "2024-02.md", "2025-01.md"):
        avm.run("write", f"/shared/m/{name}", name)
    base = "/memory/shared/m"
    assert avm.out("mv", "/shared/m/one.md", "/shared/m/uno.md") == f"{base}/one.md -> {base}/uno.md\n"
    assert parsed(avm, "mv", "/shared/m/uno.md", "/shared/m/d") == {"moved": [[f"{base}/uno.md", f"{base}/d/uno.md"]]}
    avm.run("mv", "/shared/m/d", "/shared/m/e")
    assert avm.out("read", "/shared/m/e/two.md") == "d/two.md"
    moved = parsed(avm, "mv", "/shared/m/2024-", "/shared/m/archive/old-")["moved"]
    assert sorted(moved) == [[f"{base}/2024-0{n}.md", f"{base}/archive/old-0{n}.md"] for n in (1, 2)]
    assert avm.out("ls", "/shared/m/archive") == "old-01.md\nold-02.md\n"
    assert avm.out("read", "/shared/m/2025-01.md") == "2025-01.md"
    for source, target, code in (
        ("/shared/m/none", "/shared/m/x", 1),
        ("/", "/x", 1),
        ("/memory", "/x", 1),
        ("/shared/m/e", "/shared/m/e/f", 2),
        ("/shared/m/2025-01.md", "/new.md", 1),
        ("/shared/m/2025-01.md", "/shared/m/x.md:meta", 2),
    ):
        avm.complaint("mv", source, target, code=code)
    assert avm.out("read", "/shared/m/2025-01.md") == "2025-01.md"


def test_rm(avm: Shell) -> None:
    for name in ("a", "b", "d/e/f"):
        avm.run("write", f"/shared/r/{name}", "x")
    assert avm.out("rm", "/shared/r/a", "/shared/r/b") == ""
    assert (
        avm.complaint("rm", "/shared/r/d", code=1)
        .strip()
        .endswith("Is a directory\n     avm rm -r removes it with all below it")
    )
    assert parsed(avm, "rm", "-r", "/shared/r/d") == {"removed": 3}
    assert avm.out("ls", "/shared/r") == ""
    for path in ("/shared/r/a", "/", "/memory", "/shared", "/tell/alice", "/shared/r/a:meta"):
        avm.complaint("rm", path, code=1)
    avm.complaint("rm", "-r", "/memory/private", code=1)
    avm.complaint("rm", code=2)


def test_of_several_paths_those_that_can_be_are_done_and_told(avm: Shell) -> None:
    for name in ("a", "b", "c"):
        avm.run("write", f"/shared/several/{name}", "x")
    none, other = "/shared/several/none", "/shared/several/other"
    done = avm.run("archive", none, "/shared/several/a", other, code=1)
    assert done.stdout == b"/shared/several/a -> /archive/shared/several/a\n"
    said = done.stderr.decode()
    assert f"{none}: " in said and f"{other}: " in said
    done = avm.run("archive", "--back", none, "/archive/shared/several/a", "--json", code=1)
    assert json.loads(done.stdout) == {"moved": [["/archive/shared/several/a", "/memory/shared/several/a"]]}
    assert none in json.loads(done.stderr)["error"]
    avm.run("rm", none, "/shared/several/b", other, "/shared/several/c", code=1)
    assert avm.out("ls", "/shared/several") == "a\n"


def test_what_is_archived_comes_back_by_the_name_it_had_and_nothing_of_the_trash_does(avm: Shell) -> None:
    for path in ("/shared/aside/a.md", "/private/aside.md"):
        avm.run("write", path, "archived")
        at = parsed(avm, "archive", path)["moved"][0][1]
        back = parsed(avm, "archive", "--back", path)["moved"][0][1]
        assert back == at.replace("/archive", "/memory", 1) and avm.out("read", path) == "archived"
    avm.complaint("archive", "--back", "/shared/aside/a.md", code=1)
    assert "not in the archive" in avm.complaint("archive", "--back", "/trash/shared/aside/a.md", code=2)


# --- finding


def test_remember_search_recall(avm: Shell) -> None:
    path = avm.out(
        "remember",
        "NVDA RSI at 72, overbought",
        "--tag",
        "market,risk",
        "--tag",
        "nvda",
        "--importance",
        "0.9",
        "--ttl",
        "2h",
    )
    assert path == "/memory/private/alice/nvda-rsi-at-72-overbought.md\n"
    meta = json.loads(avm.out("read", f"{path.strip()}:meta"))
    assert meta["tags"] == ["market", "nvda", "risk"] and meta["importance"] == 0.9 and meta["ttl"].startswith("1h 59m")
    found = parsed(avm, "search", "nvda", "overbought", "-n", "3")
    assert sorted(found) == ["degraded", "hits", "text"]
    assert sorted(found["hits"][0]) == ["handle", "path", "relevance", "score", "summary"]
    assert found["hits"][0]["path"] == path.strip() and 0 < found["hits"][0]["relevance"] <= 1
    assert path.strip() in avm.out("search", "nvda overbought")
    assert path.strip() in avm.out("search", "overbought", "--mode", "lexical")
    assert avm.out("search", "overbought", "--mode", "semantic").startswith("# semantic search unavailable")
    assert path.strip() not in avm.out("search", "nvda", "NOT", "overbought")
    assert "'fast'" in avm.complaint("search", "x", "--mode", "fast", code=2)
    told = parsed(avm, "recall", "nvda overbought", "--cite")
    assert sorted(told) == ["degraded", "items", "seq", "text", "tokens"] and told["items"] == 1
    assert "RSI at 72" in told["text"] and f"[{path.strip()}@1]" in told["text"]
    assert parsed(avm, "recall", "nvda", "--max-tokens", "60")["tokens"] <= 60
    assert "overbought" in avm.out("recall", "nvda overbought", "--strategy", "importance", "--under", "/private")
    assert "overbought" not in avm.out("recall", "nvda overbought", "--under", "/shared")
    assert "semantic" in avm.out("semantic", "overbought").splitlines()[0], "without a model it says so first"
    assert avm.out("recall", "overbought", "-t", "3") == avm.out("ask", "overbought", "-t", "3") == "(nothing fits)\n"
    nothing = avm.out("recall", "zzzz", "yyyy").splitlines()[-1]
    assert nothing.startswith("(") and nothing.endswith(")")
    for arguments in (
        ["search"],
        ["search", "x", "-n", "0"],
        ["search", "x", "-n", "a"],
        ["recall", "x", "-t", "0"],
        ["recall", "x", "--strategy", "none"],
        ["recall", "x", "--min-relevance", "nan"],
        ["recall", "x", "--min-relevance", "2"],
        ["search", "x", "--under", "/private/nvda-rsi-at-72-overbought.md"],
        ["search", "x", "--nonsense"],
    ):
        avm.complaint(*arguments, code=2)
    avm.complaint("search", "x", "--under", "/none", code=1)


def test_browse_says_whether_more_answers_a_question(avm: Shell) -> None:
    for number in range(3):
        avm.run("write", f"/shared/browsed/{number}.md", f"the wombat digs burrow {number}")
    for limit, more in ((2, True), (3, False)):
        found = parsed(avm, "browse", "wombat", "-n", str(limit))
        assert (len(found["places"]), found["more"]) == (limit, more)
        assert ("(there are more)" in avm.out("browse", "wombat", "-n", str(limit))) is more
    for limit in ("0", "-1"):
        avm.complaint("browse", "wombat", "-n", limit, code=2)
    assert not parsed(avm, "browse", "wombat", "-n", "5000")["more"]


def test_a_synthesis_of_nothing_says_what_had_no_part_in_it(avm: Shell) -> None:
    said = avm.out("synthesize", "zebra").splitlines()
    assert said[0].startswith("# semantic search unavailable") and said[1:] == ["(nothing relevant)"]
    assert parsed(avm, "synthesize", "zebra")["degraded"]


def test_remember_says_where_and_never_replaces(avm: Shell) -> None:
    first = avm.out("remember", "first", "--title", "Same title", "-n", "shared").strip()
    second = avm.out("remember", "second", "--title", "Same title", "-n", "shared", agent="bob").strip()
    assert (first, second) == ("/memory/shared/same-title.md", "/memory/shared/same-title-2.md")
    assert avm.out("read", first) == "first\n" and avm.out("read", second) == "second\n"
    assert avm.out("remember", "x", "--path", "/shared/same-title.md").strip() == "/memory/shared/same-title-3.md"
    for slip in ("Private", "privat", "pirvate", "SHARED"):
        assert "/shared/team" in avm.complaint("remember", "my secret", "-n", slip, code=2)
    avm.run("write", "/shared/shared-2/old.md", "x")  # what is in use is no slip
    assert avm.out("remember", "x", "-n", "shared-2", "--title", "Of").strip() == "/memory/shared/shared-2/of.md"
    third = avm.out("remember", "x", "-n", "projects", "--title", "Räder & Zeug").strip()
    assert third == "/memory/shared/projects/räder-zeug.md"
    said = parsed(avm, "remember", "-", data=b"from stdin\n")
    assert said == {
        "path": "/memory/private/alice/from-stdin.md",
        "done": "stored",
        "duplicate": None,
        "contradicts": [],
    }
    path = avm.out("remember", "old", "--created", "2024-03-01T12:00:00+00:00").strip()
    assert json.loads(avm.out("read", f"{path}:meta"))["created"].startswith("2024-03-01T12:00:00")
    for arguments, data in (
        (["  "], None),
        ([], b""),
        (["x", "--importance", "2"], None),
        (["x", "--importance", "high"], None),
        (["x", "--created", "soon"], None),
        (["x", "--tag", "+bad"], None),
        (["x", "--path", "/x.md"], None),
    ):
        avm.complaint("remember", *arguments, data=data, code=2)


def test_stats(avm: Shell) -> None:
    avm.run("write", "/private/s/one.md", "12345")
    counts = json.loads(avm.out("stats", "/private/s"))
    assert (counts["files"], counts["bytes"], counts["versions"]) == (1, 5, 1)
    assert parsed(avm, "stats", "/private/s").keys() == counts.keys()
    assert json.loads(avm.out("stats"))["files"] >= 1
    avm.complaint("stats", "/none", code=1)


# --- mail


def test_tell_and_inbox(avm: Shell) -> None:
    avm.run("remember", "so that they are known", "--title", "known", agent="dora")
    avm.run("remember", "so that they are known", "--title", "known", agent="emil")
    assert avm.out("inbox", agent="emil") == "(no messages)\n" and parsed(avm, "inbox", agent="emil") == []
    sent = parsed(avm, "tell", "emil", "hello", agent="dora")
    assert list(sent) == ["id"]
    assert avm.out("tell", "emil", "--priority", "low", "--expires", "2h", data=b"two\nlines\n", agent="dora").endswith(
        "to emil\n"
    )
    text = avm.out("inbox", agent="emil")
    assert text.startswith("## Inbox (2 messages, 2 unread)\n") and "> two\n> lines\n" in text
    first = parsed(avm, "inbox", agent="emil")[0]
    assert sorted(first) == [
        "at",
        "body",
        "expires",
        "id",
        "priority",
        "re",
        "read",
        "recipient",
        "sender",
        "thread",
    ]
    assert (first["sender"], first["read"]) == ("dora", False)
    assert first["id"] == sent["id"], "who sends and who receives call it the same"
    avm.run("inbox", "--mark-read", agent="emil")
    assert parsed(avm, "inbox", "--unread", agent="emil") == [] and len(parsed(avm, "inbox", agent="emil")) == 2
    avm.run("tell", "@all", "to everybody", agent="dora")
    assert parsed(avm, "inbox", "--unread", agent="emil")[0]["recipient"] == "@all"
    assert all(message["sender"] != "dora" for message in parsed(avm, "inbox", agent="dora"))
    avm.complaint("tell", "nobody", "x", agent="dora", code=1)
    avm.complaint("tell", "emil", "x", "--priority", "high", agent="dora", code=2)
    avm.complaint("tell", "emil", "x", "--expires", "soon", agent="dora", code=2)
    avm.complaint("tell", "emil", data=b"x" * 1_000_000, agent="dora", code=1)


def test_a_conversation_on_the_command_line(avm: Shell) -> None:
    for name in ("hugo", "ida"):
        avm.run("remember", "so that they are known", "--title", "known", agent=name)
    said = avm.out("tell", "ida", "shall we?", agent="hugo")
    assert avm.out("pending", agent="ida") == "1 unread message: /:inbox\n"
    (asked,) = parsed(avm, "inbox", "--wait", "20", "-m", agent="ida")
    assert said == f"sent #{asked['id']} to ida\n", "both call it the same"
    assert f"#{asked['id']} " in avm.out("inbox", agent="ida")
    assert parsed(avm, "pending", agent="ida")["unread"] == {"urgent": 0, "normal": 0}
    avm.run("tell", "hugo", "yes", "--re", str(asked["id"]), agent="ida")
    line = avm.out("inbox", "--wait", "20", "--unread", "--jsonl", agent="hugo")
    answer = json.loads(line)
    assert line.count("\n") == 1 and answer["body"] == "yes" and answer["re"] == answer["thread"] == asked["id"]
    assert f"ida re #{asked['id']}\n> yes\n" in avm.out("inbox", "--thread", str(asked["id"]), agent="hugo")
    avm.complaint("tell", "hugo", "x", "--re", "99", agent="ida", code=2)
    avm.run("inbox", "--wait", "0.1", "--unread", agent="ida", code=1)
    assert avm.out("inbox", "--delete", str(answer["id"]), agent="hugo") == "removed 1\n"
    assert avm.out("inbox", "--delete-read", agent="ida") == "removed 1\n"
    assert avm.out("inbox", agent="hugo") == "(no messages)\n"


def test_urgent_mail_is_on_stderr_of_every_command_that_is_asked_for_it_until_it_is_read(
    avm: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    avm.run("remember", "so that he is known", agent="fritz")
    avm.run("write", "/shared/plain.md", "plain")
    avm.run("tell", "fritz", "fire in the server room", "-p", "urgent", agent="alice")
    assert avm.run("read", "/shared/plain.md", agent="fritz").stderr == b""  # no terminal, and not asked
    monkeypatch.setitem(avm.environ, "AVM_URGENT", "1")
    for arguments in (["read", "/shared/plain.md"], ["--json", "ls", "/shared"], ["write", "/private/x", "x"]):
        done = avm.run(*arguments, agent="fritz")
        assert b"> fire in the server room\n" in done.stderr and b"fire" not in done.stdout
    assert avm.run("read", "/shared/plain.md", agent="fritz").stdout == b"plain"
    assert avm.run("read", "/shared/plain.md", agent="alice").stderr == b""
    other = avm.run("inbox", "--thread", "99", agent="fritz")  # shows another thread, and not the urgent one
    assert other.stdout == b"(no messages)\n" and b"fire" in other.stderr
    shown = avm.run("inbox", "-m", agent="fritz")
    assert b"fire" in shown.stdout and shown.stderr == b""
    assert avm.run("ls", agent="fritz").stderr == b""


# --- options, exit codes, streams


def test_global_options_before_and_after_the_sub_command(avm: Shell) -> None:
    avm.run("write", "/private/mine.md", "alice's")
    for arguments in (
        ["--agent", "alice", "read", "/private/mine.md"],
        ["read", "/private/mine.md", "--agent", "alice"],
        ["-a", "alice", "read", "/private/mine.md"],
        ["read", "-a", "alice", "/private/mine.md"],
        ["--agent", "bob", "read", "/private/mine.md", "-a", "alice", "--no-color"],
    ):
        assert avm.out(*arguments, agent="bob") == "alice's"
    assert json.loads(avm.out("read", "/private/mine.md", "--json"))["content"] == "alice's"
    assert avm.out("read", "/memory/private/alice/mine.md", "--operator", agent=None) == "alice's"
    assert avm.out("--operator", "read", "/memory/private/alice/mine.md", agent="bob") == "alice's"
    assert avm.out("read", "--", "/private/mine.md") == "alice's"
    error = json.loads(avm.complaint("read", "/private/none", "--json", code=1))
    assert sorted(error) == ["errno", "error", "hint"] and error["errno"] == 2


def test_without_a_name_one_is_told_how_to_give_it(avm: Shell) -> None:
    for command in ("read", "ls", "inbox", "stats"):
        said = avm.complaint(command, *(["/x"] if command == "read" else []), agent=None, code=2)
        assert "--agent" in said and "AVM_AGENT" in said
    assert "agent id" in avm.complaint("ls", "--agent", "BAD NAME", code=2)
    avm.complaint("ls", "-a", "all", code=2)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_refuses_what_it_does_not_know(alone: Shell, command: str) -> None:
    text = alone.out(command, "--help", agent=None)
    assert text.startswith(f"Usage: python -m avmfs.cli {command}") or f" {command} [OPTIONS]" in text
    for option in ("--db", "--config", "--agent", "--operator", "--json", "--no-color"):
        assert option in text
    alone.complaint(command, "--nonsense", code=2)


def test_usage_errors(alone: Shell) -> None:
    alone.complaint("nonsense", code=2)
    for arguments in (["read"], ["read", "a", "b"], ["mv", "a"], ["tell"], ["write"]):
        alone.complaint(*arguments, code=2)
    assert all(name in alone.out("--help", agent=None) for name in COMMANDS)
    assert alone.out("--version", agent=None).startswith("avm")


def test_what_is_wrong_with_files_of_the_machine_is_told_in_one_line(alone: Shell, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("permissions: 3\n")
    (tmp_path / "noise.db").write_bytes(b"noise" * 1000)
    for arguments, code in (
        (["--db", "/proc/none/x.db", "ls"], 1),
        (["--db", str(tmp_path), "ls"], 1),
        (["--config", str(tmp_path / "bad.yaml"), "ls"], 2),
        (["--config", str(tmp_path / "none.yaml"), "ls"], 2),
    ):
        said = alone.complaint(*arguments, code=code)
        first, *advice = said.splitlines()
        assert (
            first.startswith("avm: ") and len(advice) <= 1 and all(line.startswith("     avm ") for line in advice)
        ), said
    said = alone.complaint("--db", str(tmp_path / "noise.db"), "ls", code=2)
    assert "noise.db" in said and (tmp_path / "noise.db").read_bytes() == b"noise" * 1000
    assert "permissions" in alone.complaint("--config", str(tmp_path / "bad.yaml"), "ls", code=2)


def test_a_reader_that_goes_away_is_no_error(avm: Shell) -> None:
    avm.run("write", "/private/long.txt", data=b"line\n" * 400_000)
    done_as = {**avm.environ, "AVM_AGENT": "alice"}
    done_as.pop("PYTHONUNBUFFERED", None)  # with which a write that is cut short is none that fails
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m avmfs.cli read /private/long.txt | head -1"],
        env=done_as,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")
    reading, writing = os.pipe()
    os.close(reading)  # before the first byte
    with open(writing, "wb") as out:
        for gone in (["read", "/private/long.txt"], ["--help"], ["--version"], ["read", "--help"]):
            command = [sys.executable, "-m", "avmfs.cli", *gone]
            done = subprocess.run(command, env=done_as, stdout=out, stderr=subprocess.PIPE, timeout=LIMIT_S)
            assert (done.returncode, done.stderr) == (0, b""), gone


def test_an_export_that_leaves_something_out_names_it(avm: Shell, tmp_path: Path) -> None:
    for name in (".git/HEAD", "a.md"):
        avm.run("write", f"/shared/repository/{name}", name)
    told = avm.complaint("export", "git", str(tmp_path / "out"), "/shared/repository", code=2)
    assert "all is exported but /memory/shared/repository/.git: " in told
    assert (tmp_path / "out").read_bytes().endswith(b"done\n")


def test_init(alone: Shell, tmp_path: Path) -> None:
    told = alone.out("init", "alice", "bob", "--root", str(tmp_path), agent=None)
    mounts = Path(alone.environ["AVM_CONFIG_DIR"]) / "mounts.yaml"
    assert str(mounts) in told and "avm-daemon start" in told
    assert f"mountpoint: {tmp_path}/alice/avm\n    agent_id: alice" in mounts.read_text()
    checked = subprocess.run(
        [sys.executable, "-m", "avmfs_daemon", "check"],
        env=alone.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert checked.returncode == 0, checked.stderr
    before = mounts.read_text()
    assert "--force" in alone.complaint("init", "carol", code=1, agent=None)
    assert mounts.read_text() == before
    config = mounts.with_name("config.yaml")
    mine = config.read_text()
    assert json.loads(alone.out("--json", "init", "carol", "--force", agent=None)) == {
        "agents": ["carol"],
        "mounts_file": str(mounts),
        "config_file": str(config),
        "written": [str(mounts)],
    }
    assert config.read_text() == mine, "what is there stays"
    config.unlink()
    assert f"would write {config}" in alone.out("init", "--force", "--dry-run", agent=None) and not config.exists()
    alone.run("init", "--force", agent=None)
    assert "agent_id: bob" in mounts.read_text() and config.read_text().startswith(
        "# yaml-language-server: $schema=file:"
    )
    assert alone.out("config", "check", agent=None) == "ok\n", "the examples as they are written"
    for line in config.read_text().splitlines():  # and with every line of them in force
        assert not line.strip() or line.startswith("#")
    alone.complaint("init", "BAD NAME", "--force", code=2, agent=None)
    assert "twice" in alone.complaint("init", "alice", "alice", "--force", code=2, agent=None)


def test_init_follows_links_to_where_the_files_are_kept(alone: Shell, tmp_path: Path) -> None:
    folder, kept = Path(alone.environ["AVM_CONFIG_DIR"]), {}
    for name in ("mounts.yaml", "config.yaml"):  # one is there, the other is not yet
        kept[name] = tmp_path / "dotfiles" / name
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(kept[name])
    kept["mounts.yaml"].parent.mkdir()
    kept["mounts.yaml"].write_text("mounts: []\n")
    alone.run("init", "alice", "--force", agent=None)
    assert all((folder / name).readlink() == kept[name] for name in kept)
    assert "agent_id: alice" in kept["mounts.yaml"].read_text() and "embedding" in kept["config.yaml"].read_text()


def daemon_check(shell: Shell) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "avmfs_daemon", "check"]
    return subprocess.run(command, env=shell.environ, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(
    "root", ["agents", "./a b/agents", "/srv/my: agents", "/srv/a #1", "/srv/{x}", "~/x", "$HOME/x"]
)
def test_init_writes_a_root_that_can_be_used(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with configured("embedding: {enabled: false}\n") as where:
        shell, place = Shell({**environment(where), "HOME": str(tmp_path)}), where / "config/mounts.yaml"
        monkeypatch.chdir(tmp_path)
        shell.run("init", "alice", "--root", root, agent=None)
        checked = daemon_check(shell)
        assert checked.returncode == 0, checked.stderr
        [mount] = load_mounts(place, shell.environ)
        expanded = root.replace("~", str(tmp_path)).replace("$HOME", str(tmp_path))
        assert mount.mountpoint == Path(os.path.abspath(expanded)) / "alice/avm"


def test_init_quotes_names_for_yaml_and_what_comes_next_for_a_shell(tmp_path: Path) -> None:
    with configured("embedding: {enabled: false}\n") as where:
        shell = Shell(environment(where))
        told = shell.out("init", "no", "007", "--root", str(tmp_path / "my agents"), agent=None)
        assert [mount.agent_id for mount in load_mounts(where / "config/mounts.yaml", shell.environ)] == ["no", "007"]
    (line,) = [line for line in told.splitlines() if "echo hello" in line]
    (tmp_path / "my agents/no/avm/memory").mkdir(parents=True)
    subprocess.run(["sh", "-c", line], check=True, cwd=tmp_path, timeout=LIMIT_S)
    assert (tmp_path / "my agents/no/avm/memory/hello.md").read_text() == "hello\n"


def test_init_writes_nothing_for_a_root_that_cannot_be_used(tmp_path: Path) -> None:
    with configured("embedding: {enabled: false}\n") as where:
        shell = Shell(environment(where))
        for more in ([], ["--dry-run"]):
            said = shell.complaint("init", "alice", "--root", "/srv/a$no_such_b", *more, code=2, agent=None)
            assert "mounts[0].mountpoint: $no_such_b is not set" in said
            assert "--root" in shell.complaint("init", "alice", "--root", "", *more, code=2, agent=None)
        assert [each.name for each in (where / "config").iterdir()] == ["config.yaml"]


def test_check_fails_where_a_provider_cannot_be_made() -> None:
    provider = {"pattern": "/live/y/{v}", "handler": "no_such_handler", "config": {}}
    with configured(json.dumps({"embedding": {"enabled": False}, "providers": [provider]})) as where:
        (where / "config/mounts.yaml").write_text("mounts: []\n")
        (where / "config/config.yaml").chmod(0o600)
        checked = daemon_check(Shell(environment(where)))
        assert (checked.returncode, checked.stdout) == (1, "")
        said = "config.yaml: providers[0].handler: no handler 'no_such_handler'"
        assert said in checked.stderr
        assert said in Shell(environment(where)).out("config", "check", agent=None, code=1)


def test_a_store_behind_a_symlink_is_one_store_by_both_names() -> None:
    with configured("embedding: {enabled: false}\n") as where:
        shell = Shell(environment(where))
        shell.run("write", "/shared/n.md", "one")
        (where / "big").mkdir()
        for each in (where / "data").glob("avm.db*"):
            each.rename(where / "big" / each.name)
        (where / "data/avm.db").symlink_to(where / "big/avm.db")
        assert shell.out("read", "/shared/n.md") == "one"
        shell.run("write", "/shared/n.md", "two")
        assert shell.out("--db", str(where / "big/avm.db"), "read", "/shared/n.md") == "two"
        assert not [each.name for each in (where / "data").glob("avm.db-*")], "its log lies beside it"


def test_warmup_without_a_model_says_why(avm: Shell) -> None:
    assert avm.complaint("warmup", agent=None, code=1).startswith("avm: semantic search unavailable")
    avm.run("semantic", "anything")


# --- the daemon


def test_a_store_that_a_stopped_daemon_holds_is_a_temporary_problem(apart: Shell) -> None:
    """A lock whose holder does not answer: exit code 75, and no waiting without end."""
    code = """
import sys, time
from pathlib import Path
from avmfs.store.files.store_lock import StoreLock
lock = StoreLock(Path(sys.argv[1]))
lock.note(lock.acquire(1), {"pid": 1, "socket": sys.argv[1] + ".sock"})
print("held", flush=True)
time.sleep(60)
"""
    data = Path(apart.environ["AVM_DATA_DIR"]) / "avm.db"
    holder = subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert "does not answer" in apart.complaint("ls", code=75)
    finally:
        holder.kill()
        holder.communicate(timeout=300)
    apart.run("ls")


HEAVY = {"numpy", "apsw", "yaml", "torch", "faiss", "sentence_transformers", "onnxruntime", "tiktoken", "Stemmer"}
_IMPORTED = """
import sys
from avmfs.cli.main import main
sys.argv = ["avm", *sys.argv[1:]]
try:
    main()
finally:
    print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["read", "--help"],
        ["read", "/shared/light.md"],
        ["write", "/shared/light.md", "x"],
        ["search", "x"],
        ["recall", "x"],
        ["remember", "light"],
        ["inbox"],
        ["ls"],
        ["tell", "alice", "x"],
        ["stats"],
        ["--json", "ls"],
    ],
    ids=" ".join,
)
def test_a_command_that_asks_the_daemon_loads_next_to_nothing(world: World, arguments: list[str]) -> None:
    environ = {**world.environ, "AVM_AGENT": "alice"}
    (world.mounts["alice"] / "shared/light.md").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *arguments], env=environ, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert not HEAVY & {*done.stderr.split()}
