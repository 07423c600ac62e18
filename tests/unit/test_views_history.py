"""What an agent has read, and what it is told next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs.errors import Invalid
from avmfs.rpc import methods
from avmfs.vfs import handover
from avmfs.vfs.virtual_handles import VirtualHandle
from avmfs.views import difference, history
from tests.unit.views_fixtures import Agent, World, opened

NOTE = "/shared/note.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.agent("alice").put(NOTE, "one\n")
        made.agent("bob")
        yield made


def write(world: World, text: str, path: str = NOTE, agent: str = "alice") -> None:
    world.clock.pass_(1)
    world.agent(agent).put(path, text)


# :blame ----------------------------------------------------------------------------------------------------


def test_lines_end_at_a_line_feed_and_nowhere_else(world: World) -> None:
    odd = "a\rb\x0b\x0c\x1c\x1e\x85c\u2028d\u2029e"
    write(world, f"one\n{odd}\r\n")
    write(world, f"one\n{odd}\r\nlast", agent="bob")
    with world.agent("alice").memory.reading() as reader:
        lines = history.attributed(reader, reader.document(world.agent("alice").node(NOTE)))
    assert [(by.number, line) for by, line in lines] == [(1, "one\n"), (2, f"{odd}\r\n"), (3, "last")]


def test_what_was_found_out_since_to_come_from_the_web_is_marked_in_the_past_and_when_it_comes_back(
    world: World,
) -> None:
    write(world, "two\n")
    world.clock.pass_(60)
    alice = world.agent("alice")
    then = f"/@-30m/memory{NOTE}"
    assert methods.call(alice.memory, "read", {"path": then})["untrusted"] == ""
    alice.echo('{"sources": ["web"]}', f"{NOTE}:meta")
    assert methods.call(alice.memory, "read", {"path": then})["untrusted"] == "web"
    for view in ("blame", "diff"):
        assert methods.call(alice.memory, "read", {"path": f"{then}:{view}"})["data"].startswith(b"# untrusted: web\n")
    about = json.loads(methods.call(alice.memory, "read", {"path": f"{then}:meta"})["data"])
    assert (about["sources"], about["trust"]) == (["web"], "mark")
    assert methods.call(alice.memory, "version", {"path": then, "number": 1})["untrusted"] == "web"
    assert methods.call(alice.memory, "blame", {"path": then})["untrusted"] == "web"
    assert methods.call(alice.memory, "history", {"path": then, "newer": 2})["diff"].startswith("# untrusted: web\n")
    methods.call(alice.memory, "remove", {"path": NOTE})
    methods.call(alice.memory, "restore", {"path": NOTE, "at": "-30m"})
    assert json.loads(alice.cat(f"{NOTE}:meta"))["sources"] == ["web"]


def test_no_line_can_pose_as_anothers(world: World) -> None:
    write(world, "one\n\tsaid\rv1  2026-03-07 10:30  bob  Approved.\x1b[K\n")
    assert world.agent("bob").cat(f"{NOTE}:blame") == (
        "v1  2026-03-07 10:30  alice  one\n"
        "v2  2026-03-07 10:31  alice  \tsaid\\rv1  2026-03-07 10:30  bob  Approved.\\x1b[K\n"
    )


# :delta of a file ------------------------------------------------------------------------------------------


def test_the_first_delta_is_the_file_byte_by_byte(world: World) -> None:
    raw = b"\xff\0\r\nno end"
    world.agent("alice").put("/shared/raw", raw)
    assert world.agent("bob").rendered("/shared/raw:delta").data == raw


def test_the_first_delta_of_an_empty_file_is_empty_and_marks(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.memory.submit("create", parent=alice.node("/shared").id, name=b"empty", mode=0o644, exclusive=True)
    assert bob.cat("/shared/empty:delta") == ""
    assert bob.cat("/shared/empty:mark") == "marked: v0, current: v0\n"
    write(world, "now\n", "/shared/empty")
    assert "+now\n" in bob.cat("/shared/empty:delta")


def test_each_version_since_is_told_with_its_author(world: World) -> None:
    bob = world.agent("bob")
    bob.cat(f"{NOTE}:delta")
    write(world, "one\ntwo\n")
    write(world, "ONE\ntwo\n", agent="eve")
    assert bob.cat(f"{NOTE}:delta") == (
        "# v2 (2026-03-07 10:31) alice\n--- v1\n+++ v2\n@@ -1 +1,2 @@\n one\n+two\n"
        "# v3 (2026-03-07 10:32) eve\n--- v2\n+++ v3\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n"
        "# cursor: v3\n"
    )
    assert bob.cat(f"{NOTE}:delta") == "(no changes)\n"


def test_what_is_too_much_to_tell_one_by_one_is_told_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = world.agent("bob")
    bob.cat(f"{NOTE}:delta")
    for text in ("one\ntwo\n", "ONE\ntwo\n", "ONE\ntwo\nthree\n"):
        write(world, text)
    monkeypatch.setattr(history, "TOLD", 7)
    assert bob.cat(f"{NOTE}:delta") == (
        "# v2 (2026-03-07 10:31) alice\n--- v1\n+++ v2\n@@ -1 +1,2 @@\n one\n+two\n"
        "# v3 to v4 (2026-03-07 10:33), together\n--- v2\n+++ v4\n@@ -1,2 +1,3 @@\n-one\n+ONE\n two\n+three\n"
        "# cursor: v4\n"
    )
    assert bob.cat(f"{NOTE}:delta") == "(no changes)\n"


def test_what_is_too_dear_to_compare_one_by_one_is_told_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = world.agent("bob")
    bob.cat(f"{NOTE}:delta")
    for text in ("two\n", "three\n", "four\n"):
        write(world, text)

    class Exhausted(difference.Effort):
        def take(self, steps: int) -> bool:
            self.spent = self.coarse = True
            return False

    monkeypatch.setattr(history, "Effort", Exhausted)
    assert bob.cat(f"{NOTE}:delta") == (
        f"# v2 (2026-03-07 10:31) alice\n{difference.COARSE}--- v1\n+++ v2\n@@ -1 +1 @@\n-one\n+two\n"
        f"# v3 to v4 (2026-03-07 10:33), together\n{difference.COARSE}--- v2\n+++ v4\n@@ -1 +1 @@\n-two\n+four\n"
        "# cursor: v4\n"
    )


def test_a_version_without_a_change_says_so(world: World) -> None:
    world.agent("bob").cat(f"{NOTE}:delta")
    write(world, "one\n")
    assert world.agent("bob").cat(f"{NOTE}:delta") == "# v2 (2026-03-07 10:31) alice\n(no differences)\n# cursor: v2\n"


def test_the_mark_stays_where_reading_stopped_early_or_peeked(world: World) -> None:
    bob = world.agent("bob")
    for _ in range(2):
        assert bob.peek(f"{NOTE}:delta") == bob.cat(f"{NOTE}:delta?peek=1") == "one\n"
    assert bob.cat(f"{NOTE}:mark") == "marked: never, current: v1\n"


@pytest.mark.parametrize("reads", [[(1000, 10)], [(0, 2), (1000, 10)], [(1, 10), (4, 10)], [(0, 2), (3, 10), (4, 10)]])
def test_who_was_not_handed_all_of_it_has_not_read_it(world: World, reads: list[tuple[int, int]]) -> None:
    bob = world.agent("bob")
    handle = bob.to_read(f"{NOTE}:delta")  # of four bytes
    for offset, length in reads:
        assert handle.read(offset, length) == b"one\n"[offset : offset + length]
    assert bob.cat(f"{NOTE}:mark") == "marked: never, current: v1\n"
    for offset in (*range(4), 4):
        handle.read(offset, 1)
    assert bob.cat(f"{NOTE}:mark") == "marked: v1, current: v1\n"


def test_of_what_is_read_in_pieces_all_must_have_been_told(world: World) -> None:
    bob = world.agent("bob")

    def piece(offset: int) -> bytes:
        given = {"path": f"{NOTE}:delta", "offset": offset, "limit": 2, "whole": False}
        return bytes(methods.call(bob.memory, "read", given)["data"])

    assert (piece(0), piece(1000)) == (b"on", b"")
    assert bob.cat(f"{NOTE}:mark") == "marked: never, current: v1\n"
    assert piece(2) == b"e\n"
    assert bob.cat(f"{NOTE}:mark") == "marked: v1, current: v1\n"


def test_own_writes_count_as_read_only_when_all_before_was_read(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    assert alice.cat(f"{NOTE}:delta") == "(no changes)\n"  # its maker
    write(world, "one\ntwo\n", agent="bob")
    write(world, "one\ntwo\nthree\n")  # alice had not read bob's
    assert alice.cat(f"{NOTE}:delta").startswith("# v2 (2026-03-07 10:31) bob\n")
    bob.cat(f"{NOTE}:delta")
    write(world, "four\n", agent="bob")
    assert bob.cat(f"{NOTE}:delta") == "(no changes)\n"


def test_what_was_written_while_one_read_is_told_next(world: World) -> None:
    bob = world.agent("bob")
    reading = bob.rendered(f"{NOTE}:delta")
    write(world, "one\ntwo\n")
    assert reading.at_end is not None
    reading.at_end()
    assert bob.cat(f"{NOTE}:mark") == "marked: v1, current: v2\n"
    assert "+two" in bob.cat(f"{NOTE}:delta")


def test_a_version_that_was_amended_while_one_read_is_told_again(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    node = alice.node(NOTE).id
    bob.cat(f"{NOTE}:delta")
    world.clock.pass_(1)
    alice.memory.submit("append", node=node, handle=7, data=b"tw")
    reading = bob.rendered(f"{NOTE}:delta")
    alice.memory.submit("append", node=node, handle=7, data=b"o\n")  # the same handle, within a second: still v2
    assert reading.at_end is not None
    reading.at_end()
    assert "+two\n" in bob.cat(f"{NOTE}:delta")
    assert bob.cat(f"{NOTE}:delta") == "(no changes)\n"


@pytest.mark.parametrize(("who", "other"), [("bob", "alice"), ("alice", "bob")], ids=["another's", "its own"])
def test_a_slower_reader_does_not_move_the_mark_back(world: World, who: str, other: str) -> None:
    reader = world.agent(who)
    write(world, "two\n", agent=other)
    slow = reader.rendered(f"{NOTE}:delta")
    write(world, "three\n", agent=other)
    assert "three" in reader.cat(f"{NOTE}:delta")
    assert slow.at_end is not None
    slow.at_end()
    assert reader.cat(f"{NOTE}:delta") == "(no changes)\n"


def test_a_slower_reader_of_a_directory_does_not_move_its_mark_back(world: World) -> None:
    bob = world.agent("bob")
    bob.cat("/shared/:delta")
    write(world, "1\n", "/shared/first.md")
    slow = bob.rendered("/shared/:delta")
    write(world, "2\n", "/shared/second.md")
    assert "second.md" in bob.cat("/shared/:delta")
    assert slow.at_end is not None
    slow.at_end()
    assert bob.cat("/shared/:delta") == "(no changes)\n"


def test_reaching_the_end_of_a_file_removed_meanwhile_is_no_error(world: World) -> None:
    alice = world.agent("alice")
    reading, below = world.agent("bob").rendered(f"{NOTE}:delta"), world.agent("bob").rendered("/shared/:delta")
    alice.memory.delete(NOTE)
    for rendered in (reading, below):
        assert rendered.at_end is not None
        rendered.at_end()


def test_a_delta_follows_a_file_over_an_editors_save(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.cat(f"{NOTE}:delta")
    write(world, "one\nsaved\n", "/shared/.note.tmp")
    alice.memory.rename(b"/shared/.note.tmp", NOTE.encode())
    told = bob.cat(f"{NOTE}:delta")
    assert told.startswith("# v2 ") and "+saved\n" in told


# :history, :diff -------------------------------------------------------------------------------------------


def test_a_file_never_written_has_no_versions(world: World) -> None:
    alice = world.agent("alice")
    alice.memory.submit("create", parent=alice.node("/shared").id, name=b"empty", mode=0o644, exclusive=True)
    assert alice.cat("/shared/empty:history") == alice.cat("/shared/empty:diff") == "(no versions)\n"


def test_diff_takes_numbers_as_history_shows_them(world: World) -> None:
    for text in ("two\n", "three\n"):
        write(world, text)
    alice = world.agent("alice")
    assert alice.cat(f"{NOTE}:diff") == "--- v2\n+++ v3\n@@ -1 +1 @@\n-two\n+three\n"
    assert alice.cat(f"{NOTE}:diff?from=1") == "--- v1\n+++ v3\n@@ -1 +1 @@\n-one\n+three\n"
    assert alice.cat(f"{NOTE}:diff?to=v2") == "--- v1\n+++ v2\n@@ -1 +1 @@\n-one\n+two\n"
    assert alice.cat(f"{NOTE}:diff?from=v3&to=0") == "--- v3\n+++ v0\n@@ -1 +0,0 @@\n-three\n"


@pytest.mark.parametrize("query", ["from=4", "to=9", "from=-1", "from=x", "to=", "from_=1", "from=1.5"])
def test_diff_refuses_versions_that_are_not_there(world: World, query: str) -> None:
    with pytest.raises(Invalid):
        world.agent("alice").cat(f"{NOTE}:diff?{query}")


# :delta of a directory -------------------------------------------------------------------------------------


def test_a_directory_tells_each_path_once_and_others_changes_only(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    assert alice.cat("/shared/:delta").startswith("# 1 file\nA /memory/shared/note.md\n# cursor: ")
    write(world, "mine\n", "/shared/mine.md")
    assert alice.cat("/shared/:delta") == "(no changes)\n"
    for text in ("a\n", "b\n"):
        write(world, text, "/shared/sub/new.md", agent="bob")
    bob.echo("+tag\n", f"{NOTE}:tags")
    write(world, "x\n", "/shared/moved.md", agent="bob")
    bob.memory.rename(b"/shared/mine.md", b"/shared/yours.md")
    told = alice.cat("/shared/:delta").splitlines()
    assert told[:-1] == [
        "# 4 changed paths",
        "A /memory/shared/moved.md",
        "M /memory/shared/note.md",
        "A /memory/shared/sub/new.md",
        "R /memory/shared/yours.md (was /memory/shared/mine.md)",
    ]
    bob.memory.rename(b"/shared/moved.md", b"/private/moved.md")
    bob.memory.delete(NOTE)
    assert alice.cat("/shared/:delta").splitlines()[:-1] == [
        "# 2 changed paths",
        "D /memory/shared/moved.md",
        "D /memory/shared/note.md",
    ]


def test_what_moves_out_of_a_directory_is_gone_from_it(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    write(world, "x\n", "/shared/from/a.md")
    bob.cat("/shared/from/:delta")
    alice.memory.rename(b"/shared/from/a.md", b"/shared/to/a.md")
    assert bob.cat("/shared/from/:delta").startswith("# 1 changed path\nD /memory/shared/from/a.md\n")


def test_files_that_come_or_go_with_their_directory_are_told(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    write(world, "x\n", "/private/d/f.md")
    handle = alice.handle("/private/d/f.md")
    bob.echo("", "/shared/:mark")
    alice.memory.rename(b"/private/d", b"/shared/d")
    (told,) = [line for line in bob.cat("/shared/:changes").splitlines() if "/memory/shared/d/f.md" in line]
    assert handle in told and "private" not in told
    assert bob.cat("/shared/:delta").splitlines()[:-1] == [
        "# 2 changed paths",
        "A /memory/shared/d",
        "A /memory/shared/d/f.md",
    ]
    alice.memory.rename(b"/shared/d", b"/private/d")
    assert "private" not in bob.cat("/shared/:changes")
    assert bob.cat("/shared/:delta").splitlines()[:-1] == [
        "# 2 changed paths",
        "D /memory/shared/d",
        "D /memory/shared/d/f.md",
    ]


def _moved_by(alice: Agent, how: str) -> str:
    """Where /shared/p/d is then."""
    rename = alice.memory.rename
    if how == "itself":
        rename(b"/shared/p/d", b"/shared/p/\xc3\xa9")
        return "/shared/p/\xe9"
    if how == "above":
        rename(b"/shared/p", b"/shared/elsewhere")
        return "/shared/elsewhere/d"
    if how == "twice and back":
        for old, new in ((b"p/d", b"d"), (b"p", b"q"), (b"d", b"q/e"), (b"q/e", b"q/d"), (b"q", b"p")):
            rename(b"/shared/" + old, b"/shared/" + new)
            if new == b"q/e":
                alice.put("/shared/q/e/meanwhile.md", "x\n")
        return "/shared/p/d"
    if how == "exchanged":
        alice.put("/shared/other/e/x.md", "x\n")
        there = {"new_parent": alice.node("/shared/other").id, "new_name": b"e", "flags": 2}
        alice.memory.submit("rename", parent=alice.node("/shared/p").id, name=b"d", **there)
        return "/shared/other/e"
    if how == "archived":
        return str(methods.call(alice.memory, "archive", {"path": "/shared/p/d"})["path"])
    path = methods.call(alice.memory, "archive", {"path": "/shared/p/d"})["path"]
    return str(methods.call(alice.memory, "put_back", {"path": path, "to": "/shared/back"})["path"])


@pytest.mark.parametrize("how", ["itself", "above", "twice and back", "exchanged", "archived", "put back"])
def test_what_was_before_a_directory_was_moved_is_told_after_it(world: World, how: str) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in ("a", "b", "c"):
        write(world, "one\n", f"/shared/p/d/{name}.md")
    write(world, "one\n", "/shared/p/beside.md")
    bob.cat("/shared/p/d/:delta")
    write(world, "two\n", "/shared/p/d/a.md")
    write(world, "new\n", "/shared/p/d/new.md")
    write(world, "two\n", "/shared/p/beside.md")
    write(world, "two\n", "/shared/p/d/c.md", agent="bob")
    alice.memory.delete("/shared/p/d/b.md", permanently=True)
    now = _moved_by(alice, how)
    write(world, "three\n", f"{now}/late.md")
    there = f"/memory{now}" if now.startswith("/shared") else now
    assert (f"since you marked it: {there}/:delta" in bob.cat("/:pending")) is (how != "archived")
    told = bob.cat(f"{now}/:delta").splitlines()[1:-1]
    assert {f"M {there}/a.md", f"D {there}/b.md", f"A {there}/new.md", f"A {there}/late.md"} <= set(told)
    assert not any("beside" in line or "x.md" in line for line in told)
    assert (f"A {there}/meanwhile.md" in told) is (how == "twice and back")
    assert how in ("archived", "put back") or not any("c.md" in line for line in told), "what he did himself he knows"
    assert bob.cat(f"{now}/:delta") == "(no changes)\n" and "marked it" not in bob.cat("/:pending")


def test_a_directory_that_has_been_moved_before_it_was_read_is_told_once(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    write(world, "one\n", "/shared/p/a.md")
    alice.memory.rename(b"/shared/p", b"/shared/q")
    for marked in (lambda: bob.cat("/shared/q/:delta"), lambda: bob.echo("", "/shared/q/:mark")):
        marked()
        assert bob.cat("/shared/q/:delta") == "(no changes)\n"
        alice.memory.rename(b"/shared/q", b"/shared/r")
        assert bob.cat("/shared/r/:delta") == "(no changes)\n"
        alice.memory.rename(b"/shared/r", b"/shared/q")


def test_where_a_directory_has_been_out_of_sight_is_not_told(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    write(world, "one\n", "/shared/p/a.md")
    bob.cat("/shared/p/:delta")
    alice.memory.rename(b"/shared/p", b"/private/p")
    write(world, "secret\n", "/private/p/hidden.md")
    alice.memory.delete("/private/p/hidden.md", permanently=True)
    alice.memory.rename(b"/private/p", b"/shared/q")
    assert bob.cat("/shared/q/:delta").splitlines()[:-1] == ["# 1 changed path", "A /memory/shared/q/a.md"]


@pytest.mark.parametrize("page", [200, 2])
def test_what_has_expired_is_gone_before_it_is_put_away(
    world: World, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PAGE", page)
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in ("kept", "ends", "moves"):
        write(world, "one\n", f"/shared/d/{name}.md")
    bob.cat("/shared/d/:delta")
    write(world, "two\n", "/shared/d/kept.md")
    write(world, "two\n", "/shared/d/ends.md")
    write(world, "new\n", "/shared/d/brief.md")
    alice.memory.rename(b"/shared/d/moves.md", b"/shared/d/moved.md")
    for name in ("ends", "brief", "moved"):
        alice.echo("5m\n", f"/shared/d/{name}.md:ttl")
    world.clock.pass_(6)
    assert "3 files changed by others" in bob.cat("/:pending")
    told: list[str] = []
    while (found := bob.cat("/shared/d/:delta").splitlines()) != ["(no changes)"]:
        told += found[1:-1]
    gone = {"D /memory/shared/d/ends.md", "D /memory/shared/d/moves.md"}
    assert [line for line in told if not line.startswith("D ")] == ["M /memory/shared/d/kept.md"]
    assert gone <= set(told) and (page < 200 or len(told) == 3)


def test_what_the_asker_has_put_another_file_over_is_not_gone(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    write(world, "one\n", "/shared/d/a.md")
    bob.cat("/shared/d/:delta")
    write(world, "two\n", "/shared/d/a.md")
    alice.memory.delete("/shared/d/a.md", permanently=True)
    write(world, "mine\n", "/shared/d/a.md", agent="bob")
    assert not any(line.startswith("D ") for line in bob.cat("/shared/d/:delta").splitlines())


def test_changes_are_told_page_by_page_and_none_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGE", 3)
    monkeypatch.setattr(history, "_ROWS", 4)
    bob = world.agent("bob")
    bob.cat("/shared/:delta")
    expected = set()
    for number in range(8):
        write(world, "x\n", f"/shared/{number}.md")
        write(world, "own\n", f"/shared/own{number}.md", agent="bob")
        expected.add(f"A /memory/shared/{number}.md")
    first = bob.cat("/shared/:delta").splitlines()
    assert first[0] == "# 3 of 8 changed paths"
    told, pages = set(first[1:-1]), 1
    while (page := bob.cat("/shared/:delta").splitlines()) != ["(no changes)"]:
        told.update(page[1:-1])
        pages += 1
    assert (told, pages) == (expected, 3)


def test_what_came_and_went_is_not_told_however_much_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are of the log: a first page told files as new that were long gone, and a later one told them as gone."""
    monkeypatch.setattr(history, "PAGE", 3)
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.cat("/shared/:delta")
    for number in range(8):
        write(world, "x\n", f"/shared/t{number}")
    write(world, "x\n", "/shared/kept")
    for number in range(8):
        alice.memory.delete(f"/shared/t{number}")
    told = bob.cat("/shared/:delta").splitlines()
    assert told[:-1] == ["# 1 changed path", "A /memory/shared/kept"]
    assert bob.cat("/shared/:delta") == "(no changes)\n"


def test_a_long_directory_is_listed_in_part_the_first_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGE", 2)
    for name in "abc":
        write(world, "x\n", f"/shared/d/{name}")
    bob = world.agent("bob")
    assert bob.cat("/shared/d/:delta").splitlines()[:-1] == [
        "# 2 of 3 files",
        "A /memory/shared/d/a",
        "A /memory/shared/d/b",
        "(1 more: :list?q=&offset=2)",
    ]
    assert bob.cat("/shared/d/:list?q=&offset=2").endswith("  c  x\n")
    assert bob.cat("/shared/d/:delta") == "(no changes)\n"


def test_a_directory_delta_can_be_peeked_at(world: World) -> None:
    bob = world.agent("bob")
    assert bob.cat("/shared/:delta?peek=1") == bob.peek("/shared/:delta") == bob.cat("/shared/:delta")
    assert bob.cat("/shared/:delta") == "(no changes)\n"


def test_other_agents_unseen_work_moves_no_number(world: World) -> None:
    bob = world.agent("bob")
    bob.cat("/:delta")
    before = bob.cat("/:mark"), bob.cat("/:delta")
    write(world, "secret\n", "/private/diary.md")
    world.agent("alice").memory.tell("eve" if "eve" in world.agents else "alice", "psst")
    assert (bob.cat("/:mark"), bob.cat("/:delta")) == before


# :mark -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["v1", "1\n", "# cursor: v1\n", "cursor: v1"])
def test_a_cursor_marks_there(world: World, text: str) -> None:
    write(world, "two\n")
    bob = world.agent("bob")
    bob.echo(text, f"{NOTE}:mark")
    assert bob.cat(f"{NOTE}:mark") == "marked: v1, current: v2\n"


@pytest.mark.parametrize("text", ["", "\n", "read\n"])
def test_any_other_write_marks_now(world: World, text: str) -> None:
    write(world, "two\n")
    bob = world.agent("bob")
    bob.echo(text, f"{NOTE}:mark")
    assert bob.cat(f"{NOTE}:mark") == "marked: v2, current: v2\n"
    bob.echo(text, "/shared/:mark")
    assert bob.cat("/shared/:delta") == "(no changes)\n"


@pytest.mark.parametrize("text", ["v9\n", "v1 v2\n", "# cursor: x\n", "3rd\n", "v١\n"])
def test_what_looks_like_a_cursor_and_is_none_is_refused(world: World, text: str) -> None:
    with pytest.raises(Invalid):
        world.agent("bob").echo(text, f"{NOTE}:mark")
    assert world.agent("bob").cat(f"{NOTE}:mark") == "marked: never, current: v1\n"


@pytest.mark.parametrize("text", ["v9\n", "v9", "# cursor: x\n", "# cursor: x"])
@pytest.mark.parametrize("marked", ["v1", "v0", "never"])
@pytest.mark.parametrize(("agent", "taken_over"), [("bob", False), ("bob", True), ("alice", False)])
def test_what_is_refused_leaves_the_mark_though_its_shell_has_closed_a_copy_of_the_handle(
    world: World, text: str, marked: str, agent: str, taken_over: bool
) -> None:
    bob = world.agent(agent)
    write(world, "two\n", agent="bob" if agent == "alice" else "alice")
    bob.echo("-1" if marked == "never" else marked, f"{NOTE}:mark")
    handle: VirtualHandle = bob.to_write(f"{NOTE}:mark")
    handle.flush()
    if taken_over:
        known, progress = handover.plain_handle(handle), handover.plain_progress(handle)
        handle = handover.handle_from(bob.memory, known)
        handover.set_progress(handle, progress, b"")
    for _ in range(2):
        with pytest.raises(Invalid):
            handle.write(0, text.encode())
            handle.flush()
        assert bob.cat(f"{NOTE}:mark") == f"marked: {marked}, current: v2\n"
    assert (NOTE in bob.cat("/:pending")) == (marked != "never")
    told = bob.peek(f"{NOTE}:delta")
    assert told == "two\n" if marked == "never" else "+two" in told


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_refused_leaves_the_mark_of_a_directory(world: World, marked: bool) -> None:
    bob = world.agent("bob")
    if marked:
        bob.cat("/shared/:delta")
    before = bob.cat("/shared/:mark").partition(",")[0]
    write(world, "two\n")
    handle = bob.to_write("/shared/:mark")
    handle.flush()
    with pytest.raises(Invalid, match="version of a file"):
        handle.write(0, b"v1\n")
    assert bob.cat("/shared/:mark").partition(",")[0] == before


def test_a_directory_takes_its_own_cursor_back_and_no_files(world: World) -> None:
    bob = world.agent("bob")
    cursor = bob.cat("/shared/:delta").splitlines()[-1]
    write(world, "two\n")
    changed = bob.cat("/shared/:delta")
    bob.echo(f"{cursor}\n", "/shared/:mark")
    assert bob.cat("/shared/:delta") == changed
    with pytest.raises(Invalid, match="version of a file"):
        bob.echo("v1\n", "/shared/:mark")


# Versions that are no longer kept --------------------------------------------------------------------------


def test_a_delta_from_before_what_is_kept_begins_with_the_oldest(world: World) -> None:
    world.keep_versions(16)
    bob = world.agent("bob")
    bob.cat(f"{NOTE}:delta")
    for number in range(2, 31):
        write(world, f"{number}\n")
    listed = bob.cat(f"{NOTE}:history").splitlines()
    assert len(listed) == 16 and listed[0].startswith("v30 ") and listed[-1].startswith("v15 ")
    assert listed[-1].endswith("  write  alice/mount  3 bytes") and listed[-2].endswith("  3 bytes (+0 bytes)")
    told = bob.cat(f"{NOTE}:delta")
    assert told.startswith("# v15 (") and "\n--- (no longer kept)\n+++ v15\n@@ -0,0 +1 @@\n+15\n# v16 (" in told
    assert told.endswith("-29\n+30\n# cursor: v30\n") and bob.cat(f"{NOTE}:delta") == "(no changes)\n"
    assert bob.cat(f"{NOTE}:diff?from=15&to=30") == "--- v15\n+++ v30\n@@ -1 +1 @@\n-15\n+30\n"
    with pytest.raises(Invalid, match="v14 is no longer kept; the oldest version is v15"):
        bob.cat(f"{NOTE}:diff?from=14")
