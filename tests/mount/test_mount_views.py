"""Views, through the kernel: what they are on, what can be asked, what is refused and how one is told."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM, paths, views
from tests.mount.mount_world import Place, World, cat, cat_bytes, code_of, echo, meta, quoted, sh, until, view

pytestmark = pytest.mark.mount

ON_FILES = [each.name for each in views.all_views() if "file" in each.on]
ON_DIRECTORIES = [each.name for each in views.all_views() if "directory" in each.on]
ON_ROOT = [each.name for each in views.all_views() if {"directory", "root"} & each.on]
NEEDED = dict.fromkeys(("search", "recall", "plan", "why", "synthesis", "bundle"), "?q=alpha")


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice"}, {"agent_id": "bob"}, {"agent_id": "carol"}]


def _tree(place: Place) -> None:
    (place.alice / "d/e").mkdir(parents=True)
    for name in ("a.md", "d/b.md", "d/e/c.md"):
        (place.alice / name).write_text(f"alpha {name}\n")


# What is there ------------------------------------------------------------------------------------------------


def test_views_are_never_listed(place: Place, alice: Path) -> None:
    _tree(place)
    for name in ON_FILES:
        cat(view(place.alice / "a.md", f":{name}"))
    for top in (place.alice, place.bob):
        found = sorted(str(path.relative_to(top)) for path in top.rglob("*"))
        assert found == ["a.md", "d", "d/b.md", "d/e", "d/e/c.md"]
    assert sorted(os.listdir(alice)) == ["memory", "private", "shared", "tell"]
    assert sh("find . | sort && ls -aR | grep : | grep -v :$ | wc -l", cwd=place.bob).stdout.split() == [
        ".",
        "./a.md",
        "./d",
        "./d/b.md",
        "./d/e",
        "./d/e/c.md",
        "0",
    ]


def test_recursive_programs_do_not_meet_views(place: Place) -> None:
    _tree(place)
    sh("cp -r d copied && diff -r d copied", cwd=place.bob)
    assert sorted(sh("grep -rl alpha . | sort", cwd=place.bob).stdout.split()) == [
        "./a.md",
        "./copied/b.md",
        "./copied/e/c.md",
        "./d/b.md",
        "./d/e/c.md",
    ]
    sh("rm -r d copied a.md", cwd=place.bob)
    assert os.listdir(place.alice) == []


def test_every_view_of_the_table_can_be_opened_where_it_belongs(place: Place, alice: Path) -> None:
    _tree(place)
    for top, names in ((view(place.bob / "a.md", ""), ON_FILES), (place.bob / "d/", ON_DIRECTORIES)):
        for name in names:
            path = f"{top}:{name}" if top.name == "a.md" else f"{top}/:{name}"
            assert cat(path + NEEDED.get(name, "")), path
    for name in ON_ROOT:
        cat(f"{alice}/:{name}{NEEDED.get(name, '')}")
    # A directory's view, named from above it.
    assert cat(f"{place.bob}/d:list") == cat(f"{place.bob}/d/:list")


def test_views_exist_only_where_their_file_or_directory_does(place: Place) -> None:
    _tree(place)
    for name in sorted(paths.CORE_VIEWS):
        for path in (place.bob / f"{missing}:{name}" for missing in ("missing.md", "missing/", "a.md.")):
            assert code_of(path.stat) == errno.ENOENT, path
            assert code_of(cat, path) == errno.ENOENT, path
        if name not in ON_FILES:
            assert code_of(cat, place.bob / f"a.md:{name}") == errno.ENOENT
        if name not in ON_DIRECTORIES:
            assert code_of(cat, place.bob / f"d/:{name}") == errno.ENOENT
    for name in ("metadata", "x-unknown", "lists"):
        assert code_of(cat, place.bob / f"a.md:{name}") == errno.ENOENT


def test_a_view_name_cannot_be_made_in_any_way(place: Place, alice: Path) -> None:
    (place.alice / "real").write_text("x")
    (place.alice / "dir").mkdir()
    for name in sorted(paths.CORE_VIEWS):
        for target in (f"planted:{name}", f":{name}" if name not in ON_DIRECTORIES else f"x:{name}", f"p:{name}?a=b"):
            path = place.alice / target
            assert code_of(os.open, path, os.O_CREAT | os.O_WRONLY) == errno.EINVAL, target
            assert code_of(os.open, path, os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EINVAL, target
            assert code_of(os.mkdir, path) == errno.EINVAL, target
            assert code_of(os.mknod, path) == errno.EINVAL, target
            assert code_of(os.symlink, "real", path) == errno.EINVAL, target
            assert code_of(os.rename, place.alice / "real", path) == errno.EINVAL, target
            assert code_of(os.rename, place.alice / "dir", path) == errno.EINVAL, target
    assert sorted(os.listdir(place.alice)) == ["dir", "real"]
    assert "reads as the view" in cat(alice / ":error")
    for name in ("a:b", "what?", "100%", "x@y", ":-)", "a:metadata", "12:30", "note.md:x?y=z"):
        (place.alice / name).write_text("fine")
        assert (place.bob / name).read_text() == "fine"


def test_an_existing_view_cannot_be_replaced_moved_or_removed(place: Place) -> None:
    (place.alice / "note.md").write_text("x\n")
    (place.alice / "other").write_text("other\n")
    echo("kept", place.alice / "note.md:tags")
    for name in ("tags", "meta", "data", "list"):
        path = place.alice / (f"note.md:{name}" if name != "list" else ":list")
        assert code_of(os.rename, place.alice / "other", path) == errno.EINVAL
        assert code_of(os.mkdir, path) in (errno.EEXIST, errno.EINVAL)
        assert code_of(os.rename, path, place.alice / "elsewhere") is not None
        assert code_of(os.unlink, path) is not None
        assert code_of(os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY) in (errno.EEXIST, errno.EINVAL)
    assert sorted(os.listdir(place.bob)) == ["note.md", "other"]
    assert cat(place.bob / "note.md:tags") == "kept\n" and (place.bob / "other").read_text() == "other\n"


# stat ---------------------------------------------------------------------------------------------------------


def test_stat_of_a_view_has_no_effect_and_says_size_0(place: Place, alice: Path, bob: Path) -> None:
    _tree(place)
    (place.alice / "a.md").write_text("alpha again\n")
    echo("urgent!", alice / "tell/bob?priority=urgent")
    echo("normal", alice / "tell/bob")
    marks = [cat(place.bob / "a.md:mark"), cat(place.bob / "d/:mark")]
    everything = [f"{place.bob}/a.md:{name}{query}" for name in ON_FILES for query in ("", "?x=1")]
    everything += [f"{place.bob}/d/:{name}{NEEDED.get(name, '')}" for name in ON_DIRECTORIES]
    everything += [f"{bob}/:{name}{NEEDED.get(name, '')}" for name in ON_ROOT]
    everything += [f"{bob}/:inbox?mark=read", f"{bob}/:inbox?wait=600", f"{bob}/:recall?q=alpha&max_tokens=9999999"]
    everything += [f"{bob}/tell/alice", f"{bob}/tell/alice?priority=urgent"]
    began = time.monotonic()
    for path in everything:
        at = os.stat(path)
        assert at.st_size == 0 and stat.S_ISREG(at.st_mode), path
        os.access(path, os.R_OK)
    sh("ls -l " + " ".join(map(quoted, everything)) + " && test -e :list && test ! -s :list", cwd=place.bob)
    assert time.monotonic() - began < 300, "something was rendered"
    assert [cat(place.bob / "a.md:mark"), cat(place.bob / "d/:mark")] == marks
    assert "(2 messages, 2 unread)" in cat(bob / ":inbox")
    assert cat(alice / ":inbox") == "(no messages)\n"
    echo("", bob / ":inbox")


def test_mode_bits_of_views_say_what_can_be_done(place: Place, bob: Path) -> None:
    (place.alice / "f").write_text("x")
    for each in views.all_views():
        if "file" in each.on:
            mode = (place.bob / f"f:{each.name}").stat().st_mode
            assert bool(mode & 0o400) == (each.read is not None), each.name
            assert bool(mode & 0o200) == (each.write is not None), each.name
    assert (bob / "tell/alice").stat().st_mode & 0o666 == 0o222
    for name in ("history", "data", "path", "info"):
        assert code_of(echo, "x", place.bob / f"f:{name}") == errno.EACCES


def test_an_owner_and_a_mode_change_nothing_of_a_view(place: Place, alice: Path, bob: Path) -> None:
    """They are no touch either, which would be a write of nothing: it marks mail as read."""
    note = place.alice / "note.md"
    note.write_text("alpha\n")
    sh(f"touch {quoted(alice / ':inbox')}")
    echo("text", bob / "tell/alice")
    every = [view(note, f":{name}") for name in ON_FILES]
    every += [place.alice / f":{name}" for name in ON_DIRECTORIES] + [alice / f":{name}" for name in ON_ROOT]
    for path in (*every, alice / "tell/bob"):
        before = path.stat().st_mode
        os.chown(path, os.geteuid(), os.getegid())
        os.chmod(path, 0o600)
        assert path.stat().st_mode == before, path
    assert " 1 unread)" in cat(alice / ":inbox")
    sh(f"touch {quoted(alice / ':inbox')}")
    assert " 0 unread)" in cat(alice / ":inbox")


def test_reading_a_view_works_with_every_way_of_reading(place: Place) -> None:
    (place.alice / "f").write_text("".join(f"line {number}\n" for number in range(20_000)))
    whole = (place.alice / "f").read_bytes()
    path = place.bob / "f:data"
    assert cat_bytes(path) == path.read_bytes() == whole
    with path.open("rb") as file:
        assert file.read(7) == whole[:7]
        file.seek(100_000)
        assert file.read(10) == whole[100_000:100_010]
    assert sh(f"head -c 5 {quoted(path)}; wc -c < {quoted(path)}; tail -n 1 {quoted(path)}").stdout.split() == [
        "line",
        str(len(whole)),
        "line",
        "19999",
    ]
    sh("cp f:data copied && cmp copied f", cwd=place.bob)


# Writing values -----------------------------------------------------------------------------------------------


def test_a_bad_value_fails_visibly_and_changes_nothing(place: Place, alice: Path) -> None:
    note = place.alice / "note.md"
    note.write_text("x\n")
    echo("1h", view(note, ":ttl"))
    echo("keep", view(note, ":tags"))
    for command in (
        "echo soon > note.md:ttl",
        "/bin/echo soon > note.md:ttl",
        "printf soon > note.md:ttl; exit 1",
        "/usr/bin/printf soon > note.md:ttl",
        "printf 'soon\\n' > note.md:ttl",
        "echo soon | tee note.md:ttl > /dev/null",
        "sh -c 'echo soon > note.md:ttl'",
        "cp /etc/hostname note.md:ttl",
        "echo soon | dd of=note.md:ttl status=none",
    ):
        done = sh(command, cwd=place.alice, check=False)
        assert done.returncode != 0, command
        if "exit 1" not in command:
            assert "Invalid argument" in done.stderr or "I/O error" in done.stderr, command  # dash says the latter
            assert "soon" in cat(alice / ":error") or "cp " in command
    assert re.fullmatch(r"59m( \d+s)?|1h\n", cat(view(note, ":ttl")).strip())
    for name, bad in (
        ("tags", "a,+b"),
        ("tags", "x" * 65),
        ("meta", "[1]"),
        ("meta", '{"size": 1}'),
        ("meta", '{"importance": 2}'),
        ("links", "/no/such/file"),
        ("links", "-"),
        ("shared", "zed"),
        ("mark", "v99x"),
        ("meta", "{bad json}"),
    ):
        assert code_of(echo, bad, view(note, f":{name}")) in (errno.EINVAL, errno.ENOENT), (name, bad)
    assert cat(view(note, ":tags")) == "keep\n" and meta(note)["importance"] is None


def test_a_shell_s_echo_is_one_write(world: World, place: Place, bob: Path) -> None:
    """Before it writes, it closes a copy of the handle, which to a mark or a mailbox is a write of nothing."""
    note = place.alice / "f.md"
    for text in ("one", "two", "three"):
        note.write_text(f"{text}\n")
        if text == "one":
            cat(place.bob / "f.md:delta")
    assert sh("sh -c 'echo v9 > f.md:mark'", cwd=place.bob, check=False).returncode != 0
    assert cat(place.bob / "f.md:mark") == "marked: v1, current: v3\n"
    sh("sh -c 'echo v2 > f.md:mark'", cwd=place.bob)
    assert cat(place.bob / "f.md:mark") == "marked: v2, current: v3\n"
    with AVM(agent="bob", environ=world.environ) as avm:
        avm.subscribe(f"{place.path}/*")
        for number in range(75):
            (place.alice / f"{number}.md").write_text("x\n")
        until(lambda: "  150 unread" in cat(bob / ":subscriptions"))
        sh("sh -c 'echo > :pending'", cwd=bob)
        assert "  50 unread" in cat(bob / ":subscriptions") and "50 notices of your" in cat(bob / ":pending")
        avm.unsubscribe(f"{place.path}/*")


def test_the_reason_of_an_error_is_the_agent_s_own(place: Place, alice: Path, bob: Path) -> None:
    (place.alice / "f").write_text("x")
    assert code_of(echo, "whenever", place.alice / "f:ttl") == errno.EINVAL
    assert "whenever" in cat(alice / ":error")
    assert "whenever" not in cat(bob / ":error")


def test_a_refusal_by_any_error_of_a_view_has_a_reason_and_one_of_a_file_leaves_it(place: Place, alice: Path) -> None:
    """The reason of an older refusal would mislead: whoever reads :error asks about what was just refused."""
    note = place.alice / "f"
    note.write_text("x")
    for path, code, said in (
        (view(note, ":links"), errno.ENOENT, "nowhere.md"),
        (view(note, ":history"), errno.EACCES, ":history cannot be written"),
        (alice / "tell/nobody", errno.ENOENT, "no agent of that name"),
    ):
        assert code_of(echo, "whenever", view(note, ":ttl")) == errno.EINVAL
        assert code_of(echo, "nowhere.md", path) == code, path
        assert said in cat(alice / ":error"), path
    assert code_of(cat, alice / "tell/alice") == errno.EACCES
    assert "read /:inbox" in cat(alice / ":error")
    assert code_of(cat, alice / ":why?q=x&path=nowhere.md") == errno.ENOENT
    assert "nowhere.md" in cat(alice / ":error")
    assert code_of((alice / "at the root").mkdir) == errno.EACCES
    assert "nowhere.md" in cat(alice / ":error")


def test_tags_are_set_added_and_removed(place: Place) -> None:
    (place.alice / "f").write_text("x")
    tags, theirs = place.alice / "f:tags", place.bob / "f:tags"
    for write, wanted in (
        ("b,a", "a,b"),
        ("+c", "a,b,c"),
        ("-a", "b,c"),
        ("+x -b", "c,x"),
        ("only", "only"),
        ("#hash, two words", "hash,two words"),
        ("", "(no tags)"),
    ):
        echo(write, tags)
        assert cat(theirs) == f"{wanted}\n", write
    sh("echo +p > f:tags; /bin/echo +q > f:tags; printf +r > f:tags; echo +s >> f:tags", cwd=place.bob)
    assert cat(tags) == "p,q,r,s\n"
    assert cat(place.bob / ":list?tag=q").count("f") >= 1 and cat(place.bob / ":list?tag=z") == "(no matches)\n"


def test_links_show_at_both_ends_and_follow_moves(place: Place) -> None:
    for name in ("one", "two"):
        (place.alice / name).write_text(name)
    echo("two derived", place.alice / "one:links")
    assert cat(place.bob / "one:links") == f"-> {place.path}/two (derived)\n"
    assert cat(place.bob / "two:links") == f"<- {place.path}/one (derived)\n"
    (place.bob / "two").rename(place.bob / "2")
    assert cat(place.alice / "one:links") == f"-> {place.path}/2 (derived)\n"
    echo(f"-{meta(place.bob / '2')['id']}", place.bob / "one:links")
    assert cat(place.alice / "2:links") == "(no links)\n"
    assert code_of(echo, "nowhere", place.alice / "one:links") in (errno.EINVAL, errno.ENOENT)


def test_meta_is_merged(place: Place) -> None:
    (place.alice / "f").write_text("hello world\n")
    echo('{"a": 1, "b": {"c": [1, 2]}, "importance": 0.5}', place.alice / "f:meta")
    echo('{"a": null, "d": "ü"}', place.bob / "f:meta")
    found = meta(place.alice / "f")
    assert "a" not in found and found["b"] == {"c": [1, 2]} and found["d"] == "ü" and found["importance"] == 0.5
    assert found["size"] == 12 and found["tokens"] == 3 and found["author"] == "alice" and found["version"] == 1
    assert json.dumps(found["tags"]) == "[]"


def test_a_large_meta_written_in_many_pieces_arrives_whole(place: Place) -> None:
    (place.alice / "f").write_text("x")
    value = json.dumps({"long": "x" * 20_000, "more": list(range(2000))}, indent=1)
    descriptor = os.open(place.alice / "f:meta", os.O_WRONLY)
    try:
        for start in range(0, len(value), 1000):
            os.write(descriptor, value[start : start + 1000].encode())
    finally:
        os.close(descriptor)
    assert meta(place.bob / "f")["long"] == "x" * 20_000


# :shared ------------------------------------------------------------------------------------------------------


def test_shared_limits_reading_and_writing_everywhere(world: World, place: Place) -> None:
    carol = world.mounts["carol"] / place.path[1:]
    note = place.alice / "plan.md"
    note.write_text("alpha for few\n")
    (place.alice / "linking.md").write_text("y\n")
    echo("plan.md", view(place.alice / "linking.md", ":links"))
    echo("secrettag", view(note, ":tags"))
    handle = meta(note)["id"]
    opened = os.open(carol / "plan.md", os.O_RDWR)
    world.expected.append("bytes written to node")  # said again, after close(2) has failed
    echo("bob", view(note, ":shared"))
    assert cat(place.bob / "plan.md:shared") == "alice,bob\n"
    (place.bob / "plan.md").write_text("alpha by bob\n")
    assert note.read_text() == "alpha by bob\n"
    for function, *arguments in (
        ((carol / "plan.md").read_text,),
        (os.open, carol / "plan.md", os.O_WRONLY),
        ((carol / "plan.md").stat,),
        (os.truncate, carol / "plan.md", 0),
        ((carol / "plan.md").chmod, 0o777),
        ((carol / "plan.md").unlink,),
        ((carol / "plan.md").rename, carol / "mine"),
        (cat, carol / "plan.md:meta"),
        (cat, carol / "plan.md:history"),
        (cat, world.mounts["carol"] / handle),
        (cat, world.mounts["carol"] / f"{handle}:data"),
        (os.open, carol / "plan.md:shared", os.O_WRONLY),
    ):
        assert code_of(function, *arguments) == errno.ENOENT, function
    assert os.listdir(carol) == ["linking.md"]
    for name in (":list", ":changes", ":stats", ":search?q=alpha", ":recall?q=alpha", ":delta", ":list?tag=secrettag"):
        told = cat(carol / name)
        assert "plan.md" not in told or "(removed)" in told or name == ":delta", (name, told)
        assert "secrettag" not in told and "alpha by" not in told, (name, told)
    assert cat(carol / "linking.md:links") == "(no links)\n"
    assert code_of(os.write, opened, b"overwritten") in (errno.EACCES, errno.ENOENT, errno.ESTALE) or (
        code_of(os.close, opened) in (errno.EACCES, errno.ENOENT, errno.ESTALE)
    )
    assert note.read_text() == "alpha by bob\n"
    # Only the owner may change it.
    assert code_of(echo, "all", place.bob / "plan.md:shared") == errno.EACCES
    echo("all", view(note, ":shared"))
    assert (carol / "plan.md").read_text() == "alpha by bob\n"


def test_a_private_file_cannot_be_shared_and_one_is_told_what_to_do(alice: Path) -> None:
    (alice / "private/p.md").write_text("x")
    assert code_of(echo, "bob", alice / "private/p.md:shared") == errno.EINVAL
    assert "move it to /shared" in cat(alice / ":error")
    assert cat(alice / "private/p.md:shared") == "(private to alice)\n"


def test_sharing_ends_when_a_file_leaves_shared_space(place: Place, alice: Path, bob: Path) -> None:
    note = place.alice / "n.md"
    note.write_text("x\n")
    echo("bob", view(note, ":shared"))
    sh(f"mv {quoted(note)} {quoted(alice / 'private/n.md')}")
    assert not (place.bob / "n.md").exists()
    sh(f"mv {quoted(alice / 'private/n.md')} {quoted(note)}")
    assert cat(place.bob / "n.md:shared") == "all\n"


# :ttl ---------------------------------------------------------------------------------------------------------


def test_an_expired_file_is_gone_from_every_route_at_once(place: Place, alice: Path, bob: Path) -> None:
    (place.alice / "stays.md").write_text("alpha stays\n")
    brief = place.alice / "brief.md"
    brief.write_text("alpha brief\n")
    echo("brief.md", view(place.alice / "stays.md", ":links"))
    echo("passing", view(brief, ":tags"))
    handle = meta(brief)["id"]
    assert "brief.md" in cat(place.bob / ":search?q=alpha")
    at_first = time.time() + 5
    echo("5s", view(brief, ":ttl"))
    expires = time.time() + 5
    try:
        assert cat(place.bob / "brief.md:ttl") in [f"{left}s\n" for left in range(6)]
        assert (place.bob / "brief.md").read_text() == "alpha brief\n"
        assert sorted(os.listdir(place.bob)) == ["brief.md", "stays.md"]
    except (OSError, AssertionError):
        if time.time() < at_first:  # a busy machine may have come to it too late
            raise
    while time.time() < expires + 0.005:  # a name that has rested is one that the kernel may keep
        brief.exists(), (place.bob / "brief.md").exists()
        time.sleep(0.005)
    assert os.listdir(place.bob) == os.listdir(place.alice) == ["stays.md"]
    for path in (place.bob / "brief.md", brief, place.bob / "brief.md:data", bob / handle, bob / f"{handle}:meta"):
        assert code_of(cat, path) == errno.ENOENT, path
    assert code_of(brief.stat) == errno.ENOENT
    for name in (":list", ":list?q=brief", ":search?q=alpha", ":recall?q=alpha", ":list?tag=passing"):
        assert "brief" not in cat(place.bob / name), name
    assert json.loads(cat(place.bob / ":stats"))["files"] == 1
    assert "passing" not in cat(place.bob / ":stats")
    assert cat(place.bob / "stays.md:links") == "(no links)\n"
    sh("cp -r . ../copy && grep -r alpha ../copy && rm -r ../copy", cwd=place.bob)
    brief.write_text("a new one\n")
    assert cat(place.bob / "brief.md:ttl") == "never\n" and cat(place.bob / "brief.md:tags") == "(no tags)\n"
    assert meta(brief)["version"] == 1


def test_a_file_with_a_ttl_that_is_saved_by_rename_is_gone_in_time_where_it_was_saved(place: Place) -> None:
    brief = place.alice / "brief.md"
    for lives_s in (4, 20, 100):  # a busy machine may be too late to save it
        brief.write_text("a")
        echo(f"{lives_s}s", view(brief, ":ttl"))
        expires = time.time() + lives_s
        (place.alice / "new").write_text("b")
        os.rename(place.alice / "new", brief)
        left = ""
        with suppress(FileNotFoundError):
            left = cat(view(place.bob / "brief.md", ":ttl"))
        if left != "never\n":
            break
    while time.time() < expires + 0.005:
        time.sleep(0.05)
    for path in (brief, place.bob / "brief.md"):
        assert code_of(cat, path) == errno.ENOENT, path


def test_a_directory_whose_files_have_expired_can_be_removed(place: Place) -> None:
    (place.alice / "d").mkdir()
    (place.alice / "d/f").write_text("x")
    echo("1s", place.alice / "d/f:ttl")
    until(lambda: os.listdir(place.bob / "d") == [])
    (place.bob / "d").rmdir()


# Handles, questions, queries ----------------------------------------------------------------------------------


def test_a_short_handle_is_a_link_to_the_file_and_the_way_to_its_views(place: Place, bob: Path) -> None:
    (place.alice / "f.md").write_text("by handle\n")
    handle = meta(place.alice / "f.md")["id"]
    assert re.fullmatch("@[a-z2-7]{4,}", handle)
    assert (bob / handle).read_text() == "by handle\n"
    assert (bob / handle).is_symlink() and os.path.realpath(bob / handle) == str(place.bob / "f.md")
    assert json.loads(cat(bob / f"{handle}:meta"))["path"] == f"{place.path}/f.md"
    assert handle not in os.listdir(bob)
    (place.alice / "f.md").rename(place.alice / "moved.md")
    assert cat(bob / f"{handle}:path") == f"{place.path}/moved.md\n"
    echo("+via", bob / f"{handle}:tags")
    assert cat(place.alice / "moved.md:tags") == "via\n"
    for name in ("@zzzz", "@abc", "@k7f2:meta", "@"):
        assert code_of((bob / name).lstat) == errno.ENOENT


def test_a_handle_of_another_s_private_file_does_not_exist(alice: Path, bob: Path) -> None:
    (alice / "private/h.md").write_text("mine")
    handle = meta(alice / "private/h.md")["id"]
    assert (alice / handle).read_text() == "mine"
    for suffix in ("", ":meta", ":data", ":tags"):
        assert code_of((bob / f"{handle}{suffix}").lstat) == errno.ENOENT
        assert code_of(cat, bob / f"{handle}{suffix}") == errno.ENOENT
    assert code_of(os.open, bob / f"{handle}:tags", os.O_WRONLY) == errno.ENOENT


def test_a_question_is_asked_in_a_file_of_its_own(place: Place, alice: Path, bob: Path) -> None:
    (place.alice / "rsi.md").write_text("RSI above 70 means overbought & risky, 50% drop?\n")
    sh("echo 'What about RSI & a 50% drop?' > ':ask/my question' && cat ':ask/my question'", cwd=bob)
    assert "rsi.md" in cat(bob / ":ask/my question") or "RSI above 70" in cat(bob / ":ask/my question")
    assert "RSI above 70" in cat(bob / ":ask/my question?max_tokens=300")
    assert code_of(cat, alice / ":ask/my question") == errno.ENOENT
    assert code_of(cat, bob / ":ask/never asked") == errno.ENOENT
    assert ":ask" not in os.listdir(bob)
    echo("something else entirely", bob / ":ask/my question")
    assert "RSI above 70" not in cat(bob / ":ask/my question")
    (bob / ":ask/my question").unlink()
    echo("What about RSI?", bob / ":ask/short?max_tokens=300")
    assert os.listdir(bob / ":ask") == ["short"] and "RSI above 70" in cat(bob / ":ask/short")
    (bob / ":ask/short?max_tokens=300").unlink()
    assert os.listdir(bob / ":ask") == []
    assert code_of(cat, bob / ":ask/my question") == errno.ENOENT


def test_queries_decode_what_is_well_formed_and_nothing_else(place: Place) -> None:
    for name in ("a+b.md", "a b.md", "100%zz.md", "R&D.md", "x=y.md", "ü.md", "q?.md", "50% drop.md"):
        (place.alice / name).write_text("x\n")

    def listed(query: str) -> list[str]:
        rows = cat(f"{place.bob}/:list{query}").splitlines()
        return [row.split("  ")[1] for row in rows if not row.startswith("(")]

    assert listed("?q=a+b") == listed("?q=a%2Bb") == listed(":q=a+b") == ["a+b.md"]
    assert listed("?q=a%20b") == listed(":q=a b") == ["a b.md"]
    assert listed("?q=100%zz") == listed(":q=100%zz") == ["100%zz.md"]
    assert listed("?q=R%26D") == listed(":q=R&D") == ["R&D.md"]
    assert listed("?q=x%3Dy") == listed("?q=x=y") == listed(":q=x=y") == ["x=y.md"]
    assert listed("?q=%C3%BC") == listed("?q=ü") == ["ü.md"]
    assert listed(":q=50% drop") == ["50% drop.md"] and listed(":q=a%20b") == []
    assert listed("?limit=2&offset=3&q=.md")[:2] == sorted(os.listdir(place.bob))[3:5]
    shell = sh("cat ':list:q=R&D' && cat ':recall:q=R&D spending, 50% drop' | wc -l && cat :list?q=ü", cwd=place.bob)
    assert "R&D.md" in shell.stdout and "ü.md" in shell.stdout


def test_unknown_and_ill_typed_parameters_are_refused_with_a_reason(place: Place, bob: Path) -> None:
    (place.alice / "f").write_text("x\n")
    (place.alice / "f").write_text("y\n")
    for path, said in {
        ":list?limt=5": "limt",
        ":list?limit=abc": "limit='abc'",
        ":list?limit=0": "1 to",
        ":list?limit=1e3": "number",
        ":list?limit=99999999999999": "1 to",
        ":search": "'q' is required",
        ":recall?q=x&max_tokens=-1": "1 to",
        ":recall?q=x&min_relevance=nan": "0 to 1",
        ":recall?q=x&strategy=best": "balanced",
        ":list?q=a&q=b": "twice",
        ":list?q": "KEY=VALUE",
        ":list?=x": "KEY=VALUE",
        ":list:limt=5": "limt",
        ":changes?since=yesterdayish": "since",
        "f:diff?from=x": "from",
        "f:delta?peek=maybe": "peek",
        "f:tags?x=1": "x",
        ":stats?a=b": "none",
    }.items():
        assert code_of(cat, f"{place.bob}/{path}") == errno.EINVAL, path
        assert said in cat(bob / ":error"), path
    for path in (":inbox?mark=unread", ":inbox?format=xml", ":inbox?wait=-1", ":inbox?wait=soon", ":help?x=1"):
        assert code_of(cat, f"{bob}/{path}") == errno.EINVAL, path
    for path in ("f:tags?x=1", "f:mark?x=1"):
        assert code_of(echo, "x", f"{place.bob}/{path}") == errno.EINVAL, path
    assert code_of(cat, f"{place.bob}/f:diff?from=7&to=9") in (errno.EINVAL, errno.ENOENT)


def test_odd_questions_are_answered_or_refused_but_never_fail_otherwise(place: Place) -> None:
    (place.alice / "f").write_text("alpha AND beta\n")
    for query in (
        '"',
        "AND",
        "OR NOT",
        "alpha AND",
        "NEAR(a b)",
        "col:x",
        "*",
        "^a",
        "-",
        "(",
        "'",
        "🦊",
        "局势",
        "a" * 200,
        "\x01",
        "%00",
        "",
        " ",
        "\\",
        "alpha*",
        "{}",
        "%ff%fe",
    ):
        for form in (f":search?q={query}", f":recall:q={query}", f":list?q={query}"):
            assert code_of(cat, f"{place.bob}/{form}") in (None, errno.EINVAL), form


def test_history_and_diff_tell_the_versions(place: Place) -> None:
    note = place.alice / "n.md"
    note.write_text("one\n")
    (place.bob / "n.md").write_text("one\ntwo\n")
    rows = cat(place.bob / "n.md:history").splitlines()
    assert re.fullmatch(r"v2  \S+ \S+  write  bob/mount  8 bytes \(\+4 bytes\)", rows[0])
    assert re.fullmatch(r"v1  \S+ \S+  create  alice/mount  4 bytes \(\+4 bytes\)", rows[1])
    assert cat(note.with_name("n.md:diff")) == "--- v1\n+++ v2\n@@ -1 +1,2 @@\n one\n+two\n"
    assert cat(note.with_name("n.md:diff?from=0&to=1")) == "--- v0\n+++ v1\n@@ -0,0 +1 @@\n+one\n"
    assert cat(note.with_name("n.md:diff?from=v2&to=v1")) == "--- v2\n+++ v1\n@@ -1,2 +1 @@\n one\n-two\n"


def test_list_changes_and_stats_tell_what_is_there(place: Place) -> None:
    _tree(place)
    echo("t", place.alice / "d/b.md:tags")
    stats = json.loads(cat(place.bob / ":stats"))
    assert stats["bytes"] == sum(len(f"alpha {name}\n") for name in ("a.md", "d/b.md", "d/e/c.md"))
    os.symlink("a.md", place.alice / "s")
    assert [row.split(maxsplit=1)[1] for row in cat(place.bob / ":list").splitlines()] == [
        "a.md  alpha a.md",
        "d/",
        "s -> a.md",
    ]
    stats = json.loads(cat(place.bob / ":stats"))
    assert stats["files"] == 3 and stats["directories"] == 2 and stats["symlinks"] == 1 and stats["tags"] == {"t": 1}
    changed = [row.split("  ")[-1] for row in cat(place.bob / ":changes?minutes=5").splitlines()]
    assert f"{place.path}/d/b.md" in changed and f"{place.path}/a.md" in changed
    (place.alice / "a.md").unlink()
    assert cat(place.bob / ":changes?limit=1").splitlines()[0].endswith(f"  alice  {place.path}/a.md (removed)")
