"""What is alice's own is nowhere on bob's mount: no byte, no name, no count, no trace of her doings."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from tests.mount.mount_world import Place, cat, cat_bytes, code_of, echo, meta, sh, view

pytestmark = pytest.mark.mount

QUESTIONS = ("alpha", "alpha beta gamma", "momentum", "beta")


def _everything(mount: Path) -> dict[str, str]:
    """All that a curious agent can print without naming anything that he does not see."""
    found: dict[str, str] = {}
    directories = [mount, *(path for path in sorted((mount / "memory").rglob("*")) if path.is_dir()), mount / "memory"]
    for directory in directories:
        found[f"{directory} ls"] = repr(sorted(os.listdir(directory)))
        at = directory.stat()
        found[f"{directory} stat"] = repr((at.st_size, at.st_nlink, at.st_mtime_ns, at.st_ctime_ns))
        for name in (
            ":list",
            ":list?q=a",
            ":list?q=",
            ":stats",
            ":changes",
            ":changes?since=0",
            ":delta?peek=1",
            ":mark",
            *(f":search?q={question}&limit=200" for question in QUESTIONS),
            *(f":recall?q={question}&min_relevance=0&cite=path" for question in QUESTIONS),
        ):
            found[f"{directory}/{name}"] = cat(directory / name)
    for path in sorted((mount / "memory").rglob("*")):
        if path.is_file():
            found[str(path)] = cat(path)
            for name in (":meta", ":links", ":tags", ":history", ":shared"):
                found[f"{path}{name}"] = cat(view(path, name))
    for name in (":help", ":inbox", ":inbox?format=jsonl", ":urgent", ":error"):
        found[name] = cat(mount / name)
    found["tell"] = repr(sorted(os.listdir(mount / "tell")))
    return found


def _settle(mount: Path) -> None:
    for question in QUESTIONS:
        cat(mount / f":search?q={question}")


def test_no_trace_of_private_notes_is_on_the_other_s_mount(place: Place, alice: Path, bob: Path) -> None:
    for number in range(20):
        (place.alice / f"n{number}.md").write_text(f"alpha {'beta ' * (number % 4)} number {number}\n")
    (place.bob / "own.md").write_text("gamma momentum\n")
    _settle(bob)
    before = _everything(bob)

    space = alice / "private/zebra-canary"
    space.mkdir()
    for number in range(100):
        note = space / f"quagga-canary{number}.md"
        note.write_text(f"alpha beta gamma momentum okapi-canary {number}\n" * (number % 9 + 1))
    echo("tapir-canary", view(note, ":tags"))
    echo(f"{place.path}/n1.md gnu-canary", view(note, ":links"))
    echo("momentum lynx-canary", alice / ":ask/alpha")
    echo("to myself: ibex-canary", alice / "tell/alice")
    for number in range(10):
        (space / f"quagga-canary{number}.md").unlink()
    (space / "quagga-canary20.md").rename(alice / "private/addax-canary.md")
    _settle(alice)
    _settle(bob)

    after = _everything(bob)
    assert after.keys() == before.keys()
    for name, text in after.items():
        assert "canary" not in text, name
        assert text == before[name], name


def test_a_link_to_a_private_note_shows_only_to_its_owner(place: Place, alice: Path, bob: Path) -> None:
    (alice / "private/linked-canary.md").write_text("x")
    (place.alice / "f.md").write_text("x")
    echo("/private/linked-canary.md", place.alice / "f.md:links")
    assert cat(place.alice / "f.md:links") == "-> /memory/private/alice/linked-canary.md (related)\n"
    assert cat(place.bob / "f.md:links") == "(no links)\n"
    assert json.loads(cat(place.bob / ":stats"))["links"] == 0
    assert "canary" not in cat(bob / ":changes") + cat(place.bob / ":delta") + cat(place.bob / "f.md:meta")


def test_private_places_cannot_be_named(alice: Path, bob: Path) -> None:
    secret = alice / "private/secret.md"
    secret.write_text("one\n")
    secret.write_text("two\n")
    handle, there = meta(secret)["id"], bob / "memory/private/alice"
    for path in (
        there,
        there / "secret.md",
        bob / "memory/private/alice/",
        bob / "private/../alice/secret.md",
        bob / handle,
        bob / "memory/private/alic",
        bob / "memory/private/ALICE",
        bob / "memory/private/%",
        bob / "memory/private/a_ice",
    ):
        assert code_of(os.stat, path) == errno.ENOENT, path
        assert code_of(os.listdir, path) == errno.ENOENT, path
        assert code_of(cat_bytes, path) == errno.ENOENT, path
    for name in [
        ":meta",
        ":data",
        ":history",
        ":tags",
        ":links",
        ":delta",
        ":diff",
        ":path",
        ":shared",
        ":mark",
        ":ttl",
    ]:
        assert code_of(cat, there / f"secret.md{name}") == errno.ENOENT, name
        assert code_of(cat, bob / f"{handle}{name}") == errno.ENOENT, name
    for name in (":list", ":search?q=one", ":stats", ":changes", ":recall?q=one", ":delta"):
        assert code_of(cat, there / name) == errno.ENOENT, name
    assert code_of(os.open, there / "new.md", os.O_CREAT | os.O_WRONLY) == errno.ENOENT
    assert code_of(os.truncate, there / "secret.md", 0) == errno.ENOENT
    assert code_of(os.unlink, there / "secret.md") == errno.ENOENT
    assert code_of(os.rename, there / "secret.md", bob / "private/mine.md") == errno.ENOENT
    assert code_of(os.symlink, "x", there / "s") == errno.ENOENT
    assert code_of(os.mkdir, bob / "memory/private/carol") in (errno.EACCES, errno.EPERM)
    for link in ("../alice/secret.md", "/memory/private/alice/secret.md"):
        os.symlink(link, bob / "private/trick")
        assert code_of(cat, bob / "private/trick") == errno.ENOENT
        assert code_of(cat, bob / "private/trick:data") == errno.ENOENT
        (bob / "private/trick").unlink()
    (bob / "private/b.md").write_text("b")
    for target in ("../alice/secret.md", "/memory/private/alice/secret.md", handle):
        assert code_of(echo, target, bob / "private/b.md:links") in (errno.ENOENT, errno.EINVAL)
    assert "secret" not in cat(bob / ":error").replace("../alice/secret.md", "").replace("alice/secret.md", "")
    assert secret.read_text() == "two\n"


def test_a_name_that_is_not_there_and_one_that_is_hidden_are_refused_alike(
    alice: Path, bob: Path, place: Place
) -> None:
    (alice / "private/there.md").write_text("x")
    (place.bob / "f").write_text("x")
    handle = meta(alice / "private/there.md")["id"]
    for one, other in (("there.md", "not-there.md"), (handle, "@zzzz")):
        said = []
        for name in (one, other):
            target = name if name.startswith("@") else f"/memory/private/alice/{name}"
            code = code_of(echo, target, view(place.bob / "f", ":links"))
            said.append((code, cat(bob / ":error").replace(name, "NAME")))
            done = sh(f"cat {bob}/memory/private/alice/{name}", check=False)
            said.append((done.returncode, done.stderr.replace(name, "NAME")))
        assert said[:2] == said[2:]


def test_history_of_a_file_that_was_private_before_is_not_in_changes(place: Place, alice: Path, bob: Path) -> None:
    (alice / "private/draft-canary.md").write_text("first thoughts\n")
    sh(f"mv {alice}/private/draft-canary.md {place.alice}/published.md")
    told = "".join(cat(bob / name) for name in (":changes", ":delta?peek=1", f"{place.path[1:]}/:changes"))
    assert "published.md" in told and "draft-canary" not in told
    sh(f"mv {place.alice}/published.md {alice}/private/again-canary.md")
    told = "".join(cat(bob / name) for name in (":changes", ":delta?peek=1", f"{place.path[1:]}/:changes"))
    assert "again-canary" not in told
    assert code_of(cat, place.bob / "published.md") == errno.ENOENT


def test_an_open_view_or_file_does_not_outlive_the_right_to_read(place: Place) -> None:
    (place.alice / "f").write_text("before " * 1000)
    descriptor = os.open(place.bob / "f", os.O_RDONLY)
    try:
        echo("alice", view(place.alice / "f", ":shared"))
        (place.alice / "f").write_text("after " * 2000)
        try:
            assert b"after" not in os.pread(descriptor, 20_000, 0)
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.EACCES, errno.ESTALE, errno.EIO)
    finally:
        os.close(descriptor)


def test_the_seq_of_an_answer_is_of_what_the_asker_sees(place: Place, alice: Path, bob: Path) -> None:
    (place.alice / "f.md").write_text("alpha\n")
    _settle(bob)

    def seq() -> str:
        return re.findall(r"seq=(\d+)", cat(place.bob / ":recall?q=alpha"))[0]

    before = seq()
    (alice / "private/unseen.md").write_text("x")
    echo("x", alice / "tell/alice")
    assert seq() == before
    (place.alice / "g.md").write_text("x")
    assert seq() != before


def test_counts_are_of_what_the_asker_sees(place: Place, alice: Path, bob: Path) -> None:
    before = json.loads(cat(bob / ":stats"))
    (alice / "private/counted").mkdir()
    for number in range(5):
        (alice / f"private/counted/{number}.md").write_text("x")
    echo("+counted", alice / "private/counted/0.md:tags")
    after = json.loads(cat(bob / ":stats"))
    assert after == {**before, "waiting": after["waiting"]}
    assert after["waiting"] == before["waiting"], "what waits for the index is a count, too"
    assert json.loads(cat(alice / "private/:stats"))["files"] >= 5
