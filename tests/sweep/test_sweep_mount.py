"""Everything that bob can name on his mount, asked for what is alice's: every folder and file with every registered
view and its parameters, attributes, listings, guessed names, handles, links, and every way to write.

What a view may be asked comes from the registry and from `recipes`, so that a new view is swept without a line here.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import apsw
import pytest

from avmfs import signatures
from avmfs.errors import AvmError
from avmfs.fuse.protocol import Op
from avmfs.vfs.tree import Tree
from avmfs.views import registry
from benchmarks.frames import Frames, Kernel
from tests.mount.mount_world import cat, cat_bytes, echo, housekeeping_is_done, release_claims, until, view
from tests.sweep.planting import CANARY, CONTROL, WORD, Planted
from tests.sweep.recipes import FULL, Ground, Parameter, cases
from tests.sweep.test_sweep_doors import door_of

pytestmark = [pytest.mark.mount, pytest.mark.timeout(3600)]

MOVES = (":delta", ":savings", ":error", ":next", ":inbox?mark=read")  # reading these changes what they say next


def code_of(do: Callable[..., Any], *arguments: Any) -> str:
    """The name of the errno, or "done"."""
    try:
        do(*arguments)
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno or 0]


def clean(said: object, where: object, typed: str = "") -> None:
    text = said if isinstance(said, str) else repr(said)
    for word in CANARY.findall(typed):
        text = text.replace(word, "")
    hit = CANARY.search(text)
    assert hit is None, f"{where}: {hit[0]} in {text[max(0, hit.start() - 300) : hit.end() + 300]}"


def suffixes(ground: Ground, *places: str) -> Iterator[str]:
    """Every view of such a place, with its parameters in every way that `recipes` knows."""
    for each in registry.all_views():
        if each.read is None or not each.on.intersection(places):
            continue
        parameters = [
            Parameter(found.name, _hint(found), found.default is inspect.Parameter.empty) for found in each.parameters
        ]
        seen = set()
        for given in cases(ground, f":{each.name}", parameters):
            spoken = {name: int(value) if isinstance(value, bool) else value for name, value in given.items()}
            query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in spoken.items())
            suffix = f":{each.name}" + (f"?{query}" if query else "")
            if suffix not in seen and len(suffix) < 250:
                seen.add(suffix)
                yield suffix


def _hint(found: signatures.Parameter) -> Any:
    if found.choices:
        return Literal[found.choices]
    return found.type if found.type in (bool, int, float, str) else int


def asked(ground: Ground, mount: Path) -> Iterator[tuple[Path, str]]:
    """(node, view's suffix with its query) of all that there is to read."""
    of_file, of_folder = [*suffixes(ground, "file")], [*suffixes(ground, "directory")]
    of_root = [*suffixes(ground, "directory", "root")]
    for path in ground.files:
        for suffix in of_file:
            yield mount / path.lstrip("/"), suffix
    # Of folders, all that may be asked of the root and of one below, and the plain views of the others.
    for folder in ground.folders:
        short = of_folder if FULL or folder == "/memory/shared/team" else of_folder[::7]
        for suffix in of_root if folder == "/" else short:
            yield mount / folder.lstrip("/"), suffix


def read(mount: Path, node: Path, suffix: str) -> str:
    """What a view says, or why it says nothing."""
    try:
        return cat(view(node, suffix) if node.is_file() else node / suffix)
    except OSError as e:
        assert e.errno in (errno.EINVAL, errno.EACCES, errno.ENOENT), (node, suffix, e)
        return f"{errno.errorcode[e.errno or 0]}: {cat(mount / ':error')}"


def test_no_view_with_any_question_tells_of_what_is_hers(planted: Planted, ground: Ground) -> None:
    bob, count = planted.mount("bob"), 0
    for node, suffix in asked(ground, bob):
        clean(read(bob, node, suffix), f"{node}{suffix}", suffix)
        count += 1
    assert count > 1000, count


def test_the_same_questions_find_it_all_as_alice(planted: Planted, ground: Ground) -> None:
    """The sweep can fail: what it looks for is found where it may be."""
    alice = planted.mount("alice")
    found: set[str] = set()
    own = ["/memory/private/alice/note.md", "/memory/private/alice/old.md", "/memory/shared/team/open1.md"]
    limited = [path for path in planted.hers if WORD["limitedname"] in path]
    for node, suffix in asked(Ground((*own, *limited), ground.folders, ()), alice):
        found |= set(CANARY.findall(read(alice, node, suffix)))
    wanted = {
        WORD[kind]
        for kind in (
            "content",
            "name",
            "folder",
            "tag",
            "metakey",
            "linktype",
            "linkname",
            "old",
            "limitedname",
            "limitedtext",
            "limitedtag",
            "limitedlater",
            "message",
            "moved",
            "hidden",
            "hiddenname",
            "draft",
        )
    }
    assert wanted - found == set()


def test_listings_attributes_and_bytes_are_of_what_bob_sees(planted: Planted, ground: Ground) -> None:
    bob = planted.mount("bob")
    for folder in ground.folders:
        clean(os.listdir(bob / folder.lstrip("/")), folder)
        clean(os.listxattr(bob / folder.lstrip("/")), folder)
    clean(os.listdir(bob / ":ask"), ":ask")
    for path in ground.files:
        where = bob / path.lstrip("/")
        clean(where.read_bytes(), path)
        for name in os.listxattr(where):
            clean((name, os.getxattr(where, name)), path)
    assert sorted(os.listdir(bob / "memory/private")) == ["bob"]


def guesses(planted: Planted, bob: Path) -> Iterator[str]:
    for path in planted.hers:
        where = path.lstrip("/")
        yield from (where, where.upper(), f"memory/./{where.removeprefix('memory/')}", f"private/../../{where}")
        yield f"memory/shared/../{where.removeprefix('memory/')}"
    for handle in planted.handles:
        yield from (handle, handle.upper(), f"memory/../{handle}", f"{handle}/", f"{handle}/x")
    for name in (
        "alice",
        "Alice",
        "ALICE",
        "alic%",
        "a_ice",
        "alice ",
        "alice2",
        "ali",
        "%",
        "*",
        "carol",
        "alice.",
        ".",
    ):
        if name != ".":
            yield from (f"memory/private/{name}", f"private/../{name}", f"memory/private/bob/../{name}")
            yield from (f"memory/private/{name}/note.md", f"memory/private/{name}/old.md")
    for word in WORD.values():
        for folder in ("memory/private/alice", "memory/shared/team", "memory/hidden", "memory", "private", "trash"):
            yield from (f"{folder}/{word}", f"{folder}/{word}.md")
    yield from (
        f":ask/{WORD['question']}",
        "memory/hidden",
        "memory/shared/team/ends.md",
        "memory/shared/team/brief.md",
    )


def test_guessed_names_are_not_there_with_any_view_and_whatever_is_done(planted: Planted, ground: Ground) -> None:
    bob, count = planted.mount("bob"), 0
    views = [f":{each.name}" for each in registry.all_views()]
    doing: dict[str, Callable[[Path], Any]] = {
        "lstat": os.lstat,
        "open": lambda path: os.open(path, os.O_RDONLY),
        "list": os.listdir,
        "readlink": os.readlink,
        "xattrs": os.listxattr,
        "write": lambda path: os.open(path, os.O_WRONLY),
        "truncate": lambda path: os.truncate(path, 0),
        "unlink": os.unlink,
        "rmdir": os.rmdir,
        "rename": lambda path: os.rename(path, bob / "private/stolen"),
        "chmod": lambda path: os.chmod(path, 0o777),
        "link": lambda path: os.link(path, bob / "private/hard"),
        "utime": os.utime,
        "xattr": lambda path: os.setxattr(path, "user.avm.tags", b"x"),
    }
    for number, guess in enumerate(dict.fromkeys(guesses(planted, bob))):
        where = Path(f"{bob}/{guess}")
        for name, do in doing.items():
            # Of a handle's link, whether it is there is asked first; EPERM of link(2) may come before that.
            got = code_of(do, where)
            assert got in ("ENOENT", "ENOTDIR") or (name == "link" and got == "EPERM"), (guess, name, got)
            count += 1
        for suffix in views if FULL else views[number % 5 :: 5]:
            assert code_of(os.lstat, f"{where}{suffix}") in ("ENOENT", "ENOTDIR"), (guess, suffix)
            count += 1
    assert count > 2000, count


def test_symlinks_of_his_own_lead_into_nothing_of_hers(planted: Planted) -> None:
    bob = planted.mount("bob")
    way = bob / "private/way"
    targets = [
        "../alice",
        "../alice/note.md",
        "/memory/private/alice/note.md",
        "../../../private/../alice",
        planted.handles[0],
        *(str(bob / each) for each in ("memory/hidden", planted.handles[0])),
        str(bob / "memory/private/alice/old.md"),
    ]
    for target in targets:
        way.symlink_to(target)
        try:
            for path in (way, way / "note.md", way / ":list", way / ":recall?q=market", view(way, ":data")):
                said = code_of(cat_bytes, path)
                assert said in ("ENOENT", "ENOTDIR"), (target, path, said)
        finally:
            way.unlink()


def test_every_writable_view_refuses_what_is_not_his(planted: Planted, ground: Ground) -> None:
    bob, before = planted.mount("bob"), {path: cat(planted.mount("alice") / path.lstrip("/")) for path in planted.hers}
    fixed = bob / "memory/fixed/note.md"
    own = {":mark", ":delta", ":inbox"}  # what bob has read is his own
    for each in registry.all_views():
        if each.write is None or "file" not in each.on:
            continue
        suffix = f":{each.name}"
        for path in planted.hers:
            assert code_of(os.open, view(bob / path.lstrip("/"), suffix), os.O_WRONLY) == "ENOENT", (path, suffix)
        if suffix not in own:
            got = code_of(echo, "x", view(fixed, suffix))
            assert got in ("EACCES", "EINVAL"), (suffix, got)
    for do in (
        lambda: os.open(fixed, os.O_WRONLY),
        lambda: os.truncate(fixed, 0),
        lambda: os.unlink(fixed),
        lambda: os.rename(fixed, bob / "private/x"),
        lambda: os.chmod(fixed, 0o777),
        lambda: os.rename(bob / "private/own.md", fixed),
        lambda: os.mkdir(fixed.parent / "d"),
        lambda: os.open(fixed.parent / "new", os.O_CREAT | os.O_WRONLY),
        lambda: echo("bob", view(fixed, ":shared")),
    ):
        assert code_of(do) == "EACCES"
    assert {path: cat(planted.mount("alice") / path.lstrip("/")) for path in planted.hers} == before


class Asking:
    """Bob's mount without a kernel, on a copy of the store: what the mount's own process does for a path."""

    def __init__(self, root: Path) -> None:
        door = door_of(root, "bob")
        self._kernel = Kernel(Tree(door._memory, uid=os.getuid(), gid=os.getgid()), root)
        with door._memory.reading() as reader:
            self._db = reader._db

    def costs(self, path: str) -> tuple[int, int, int]:
        """What a look at it runs through: functions the first time, functions and steps of SQLite the next."""
        with Frames() as first:
            self._look(path)
        steps: list[int] = []
        self._db.trace_v2(
            apsw.SQLITE_TRACE_PROFILE, lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
        )
        try:
            with Frames() as again:
                self._look(path)
        finally:
            self._db.trace_v2(0)
        return first.calls, again.calls, sum(steps)

    def _look(self, path: str) -> None:
        node = 1
        with contextlib.suppress(AvmError):
            for name in path.strip("/").split("/"):
                found = self._kernel.ask(Op.LOOKUP, node, os.fsencode(name) + b"\0")
                node = int.from_bytes(found[:8], sys.byteorder)
                if not node:
                    return
            self._kernel.read(node)


def test_a_name_that_is_hidden_costs_what_one_does_that_is_not_there(
    planted: Planted, copies: Callable[..., Path]
) -> None:
    """Else a script could tell them apart by the time. Counted, since a clock tells the machine's load as well."""
    asking = Asking(copies())
    limited = next(path for path in planted.hers if "/shared/" in path)
    mine = next(path for path in planted.hers if "/private/" in path)
    for hidden, absent in (
        (planted.hers[0], "/memory/{}/{}.md"),
        (mine, "/memory/private/{}/{}.md"),
        (limited, "/memory/shared/team/{}.md"),
        (f"{limited}:meta", "/memory/shared/team/{}.md:meta"),
        (f"/live/hers/{WORD['livename']}", "/live/{}/{}"),
        (f"/{planted.handles[0]}", "/@{}"),
        (f"/:search?q={WORD['content']}", "/:search?q={}"),
    ):
        asking.costs(absent.format("zzzy", "zzzy"))  # what is loaded with the first one is loaded
        costs = asking.costs(hidden), asking.costs(absent.format(CONTROL, CONTROL))
        for number, (of_hidden, of_absent) in enumerate(zip(*costs, strict=True)):
            assert abs(of_hidden - of_absent) <= (0.25, 0.25, 0.5)[number] * of_absent, (hidden, absent, costs)


def measured(planted: Planted, ground: Ground) -> dict[str, str]:
    """All that bob can measure: text, sizes, times, counts, numbers, order."""
    bob = planted.mount("bob")
    said = {
        f"{node}{suffix}": read(bob, node, suffix)
        for node, suffix in asked(ground, bob)
        if not suffix.startswith(MOVES) and "minutes=" not in suffix  # a window that time moves on by itself
    }
    for path in (*ground.folders, *ground.files):
        where = bob / path.lstrip("/")
        at = where.lstat()
        said[f"stat {path}"] = repr((at.st_ino, at.st_mode, at.st_nlink, at.st_size, at.st_mtime_ns, at.st_ctime_ns))
        said[f"xattrs {path}"] = repr([(name, os.getxattr(where, name)) for name in sorted(os.listxattr(where))])
    for path in ground.folders:
        said[f"order {path}"] = repr(os.listdir(bob / path.lstrip("/")))
    said["names"] = repr(os.statvfs(bob).f_namemax)
    return said


def test_a_hundred_private_notes_change_nothing_that_a_mount_shows(planted: Planted, ground: Ground) -> None:
    alice, carol = planted.mount("alice"), planted.mount("carol")
    cat(planted.mount("bob") / ":search?q=market")
    release_claims(planted.world, ground.files)
    until(lambda: housekeeping_is_done(planted.world, "alice"), 300)
    before = measured(planted, ground)
    busy = alice / "private/busy"
    busy.mkdir()
    for number in range(100):
        note = busy / f"market{number}.md"
        note.write_text("market report of the open team\n" * (number % 7 + 1))
        if number % 10 == 0:
            echo("+shown", view(note, ":tags"))
            echo("/shared/team/open0.md cites", view(note, ":links"))
            echo("market", alice / "tell/carol")
            echo("market", carol / "tell/alice?priority=urgent")
        if number % 9 == 0:
            note.unlink()
    limited = next(path for path in planted.hers if "/shared/" in path)
    (alice / limited.lstrip("/")).write_text("market report " * 300)
    (alice / "memory/hidden/more.md").write_text("market report")
    cat(alice / ":search?q=market")
    after = measured(planted, ground)
    assert {where: (before[where], after[where]) for where in before if before[where] != after[where]} == {}
    assert len(before) > 800
