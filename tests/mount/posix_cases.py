"""What system calls on names, modes, owners, times and bytes do, written down so that two filesystems can be compared.

Run as a program: ``posix_cases.py DIRECTORY`` runs every case in a directory of its own below DIRECTORY and prints
{case: [line, ...]} as JSON: a line per system call with what it returned or its errno. No line holds an inode number,
a device or a time, so that two filesystems that behave alike print the same. ``test_mount_posix.py`` compares a mount
with the machine's own filesystem. Cases with ``users`` need root, since they act as other users in child processes.

Sources: POSIX.1-2017 and the Linux man pages of section 2.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TICK_S = 0.012  # longer than what the times of any usual filesystem can tell apart
A, B, C = 65534, 65533, 65532  # users and groups that own nothing else here
LONG = "n" * 255
KINDS = ("file", "dir", "symlink")


@dataclass
class Case:
    name: str
    run: Callable[[Trace], None]
    users: bool


CASES: dict[str, Case] = {}


def case(function: Callable[[Trace], None]) -> Callable[[Trace], None]:
    name = function.__name__
    CASES[name] = Case(name, function, False)
    return function


def users(function: Callable[[Trace], None]) -> Callable[[Trace], None]:
    name = function.__name__
    CASES[name] = Case(name, function, True)
    return function


@dataclass
class Trace:
    """What a case has done. Called with a function and its arguments it notes what came of it."""

    lines: list[str] = field(default_factory=list)

    def note(self, *values: object) -> None:
        self.lines.append(" ".join(map(str, values)))

    def __call__(self, function: Callable[..., Any], *arguments: Any, note: bool = True, **named: Any) -> Any:
        shown = ", ".join([_short(a) for a in arguments] + [f"{k}={_short(v)}" for k, v in named.items()])
        try:
            value = function(*arguments, **named)
        except OSError as e:
            self.note(f"{function.__name__}({shown})", errno.errorcode.get(e.errno or 0, e.errno))
            return None
        self.note(f"{function.__name__}({shown})", "ok" if value is None or not note else _short(value))
        return value

    def as_user(self, uid: int, gid: int, *calls: tuple[Any, ...], groups: tuple[int, ...] = (), mask: int = 0) -> None:
        """Make calls, ``(function, argument, ...)``, in a child process of another user."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            inner = Trace()
            try:
                os.setgroups(groups or (gid,))
                os.setgid(gid)
                os.setuid(uid)
                os.umask(mask)
                for function, *arguments in calls:
                    inner(function, *arguments)
            except BaseException as e:
                inner.note("failed", repr(e))
            finally:
                with os.fdopen(writing, "w") as pipe:
                    json.dump(inner.lines, pipe)
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self.lines += [f"[{uid}:{gid}] {line}" for line in json.load(pipe)]
        os.waitpid(child, 0)

    def changed(self, paths: tuple[str, ...], function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Note which of mtime and ctime of the paths a call changes. A path that is gone afterwards has none."""
        before = {path: os.lstat(path) for path in paths}
        time.sleep(TICK_S)
        value = self(function, *arguments, **named)
        for path in paths:
            try:
                after = os.lstat(path)
            except FileNotFoundError:
                self.note("  gone", path)
                continue
            moved = [
                what
                for what in ("mtime", "ctime")
                if getattr(after, f"st_{what}_ns") != getattr(before[path], f"st_{what}_ns")
            ]
            backwards = [
                what for what in moved if getattr(after, f"st_{what}_ns") < getattr(before[path], f"st_{what}_ns")
            ]
            self.note("  changed", path, moved, *(["backwards", backwards] if backwards else []))
        return value


def _short(value: object) -> str:
    if callable(value):
        return getattr(value, "__name__", "?")
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:24]}...({len(text)})"


def show(path: str, *, follow: bool = False) -> tuple[object, ...]:
    """Kind, mode, links, owner, size (of a directory 0: every filesystem has its own idea of it)."""
    at = os.stat(path, follow_symlinks=follow)
    size = 0 if stat.S_ISDIR(at.st_mode) else at.st_size
    return stat.filemode(at.st_mode), at.st_nlink, at.st_uid, at.st_gid, size


def times(path: str) -> tuple[int, int]:
    at = os.lstat(path)
    return at.st_atime_ns, at.st_mtime_ns


def tree(top: str = ".") -> list[str]:
    found = []
    for folder, directories, files in os.walk(top):
        found += [os.path.relpath(os.path.join(folder, name), top) for name in directories + files]
    return sorted(found)


def make(kind: str, name: str) -> None:
    if kind == "dir":
        os.mkdir(name, 0o755)
    elif kind == "symlink":
        os.symlink("nowhere", name)
    else:
        put(name, b"contents")


def put(name: str, data: bytes = b"", mode: int = 0o644) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def get(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def drop(name: str) -> None:
    if os.path.isdir(name) and not os.path.islink(name):
        os.rmdir(name)
    elif os.path.lexists(name):
        os.unlink(name)


def opening(name: str, flags: int, mode: int = 0o644, data: bytes | None = None) -> tuple[int, ...] | None:
    """Open, maybe write, close."""
    descriptor = os.open(name, flags, mode)
    try:
        return (os.write(descriptor, data),) if data is not None else None
    finally:
        os.close(descriptor)


def ftruncate(name: str, size: int, flags: int = os.O_RDWR) -> None:
    descriptor = os.open(name, flags)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def access(path: str, mode: int) -> bool:
    return os.access(path, mode)


# chmod --------------------------------------------------------------------------------------------------------


@case
def chmod_of_every_kind(t: Trace) -> None:
    for kind in ("file", "dir"):
        make(kind, "n")
        for mode in (0o000, 0o111, 0o444, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777, 0o700):
            t(os.chmod, "n", mode)
            t(show, "n")
        t.changed(("n", "."), os.chmod, "n", 0o750)
        t.changed(("n",), os.chmod, "n", 0o750)  # the same once more
        os.symlink("n", "link")
        t.changed(("n", "link"), os.chmod, "link", 0o711)
        t(show, "n")
        os.unlink("link")
        drop("n")
    os.symlink("n", "link")
    t(os.chmod, "link", 0o600)
    t(os.chmod, "none", 0o600)
    put("f")
    t(os.chmod, "f/x", 0o600)
    descriptor = os.open("f", os.O_RDONLY)
    t.changed(("f",), os.fchmod, descriptor, 0o640)
    os.unlink("f")
    os.fchmod(descriptor, 0o604)
    t.note(oct(os.fstat(descriptor).st_mode), os.fstat(descriptor).st_nlink)
    os.close(descriptor)


@users
def chmod_as_somebody_else(t: Trace) -> None:
    for kind in ("file", "dir"):
        make(kind, "n")
        os.chown("n", A, A)
        t.as_user(A, A, (os.chmod, "n", 0o711), (show, "n"))
        t.as_user(B, B, (os.chmod, "n", 0o755), (show, "n"))
        os.chown("n", A, B)
        t.as_user(A, A, (os.chmod, "n", 0o2755), (show, "n"))  # not in the group: no set-group-id
        t.as_user(A, A, (os.chmod, "n", 0o2755), (show, "n"), groups=(A, B))
        t.as_user(A, A, (os.chmod, "n", 0o1755), (show, "n"))
        t.as_user(B, A, (os.chmod, "n", 0o1755), (show, "n"))
        drop("n")


@users
def set_id_bits_go_when_another_user_writes(t: Trace) -> None:
    for mode in (0o4777, 0o2777, 0o6777, 0o6766):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
            put("f", b"abc")
            os.chmod("f", mode)
            t.as_user(A, A, (opening, "f", flags, 0, b"x"), (show, "f"))
            t(show, "f")
            os.unlink("f")
        for function, *arguments in (
            (os.truncate, "f", 1),
            (ftruncate, "f", 2),
            (opening, "f", os.O_WRONLY | os.O_TRUNC),
            (opening, "f", os.O_RDWR | os.O_TRUNC),
            (os.truncate, "f", 0),
        ):
            put("f", b"abc")
            os.chmod("f", mode)
            t.as_user(A, A, (function, *arguments), (show, "f"))
            t(show, "f")
            os.unlink("f")
        put("f", b"abc")
        os.chmod("f", mode)
        t(opening, "f", os.O_WRONLY, 0, b"x")  # root keeps them
        t(show, "f")
        os.chmod("f", mode)
        t(os.truncate, "f", 1)
        t(show, "f")


# chown --------------------------------------------------------------------------------------------------------


@users
def chown_by_root(t: Trace) -> None:
    for kind in KINDS:
        make(kind, "n")
        t.changed(("n", "."), os.lchown, "n", 123, 456)
        t(show, "n")
        t(os.lchown, "n", -1, 7)
        t(os.lchown, "n", 8, -1)
        t(show, "n")
        if kind != "symlink":
            os.symlink("n", "link")
            t.changed(("n", "link"), os.chown, "link", 5, 6)
            t(show, "n")
            t(show, "link")
            os.unlink("link")
            for mode in (0o6555, 0o4755, 0o2755, 0o2745, 0o6644):
                os.chmod("n", mode)
                t(os.chown, "n", 0, 0)
                t(show, "n")
        drop("n")
    t(os.chown, "none", 0, 0)
    os.symlink("none", "dangling")
    t(os.chown, "dangling", 0, 0)


@users
def chown_by_owners_and_others(t: Trace) -> None:
    for kind in KINDS:
        make(kind, "n")
        os.lchown("n", A, A)
        t.as_user(A, A, (os.lchown, "n", -1, B), (show, "n"))
        t.as_user(A, A, (os.lchown, "n", -1, B), (show, "n"), groups=(A, B))
        t.as_user(A, A, (os.lchown, "n", A, A), (os.lchown, "n", B, -1), (os.lchown, "n", B, A), (show, "n"))
        t.as_user(B, B, (os.lchown, "n", -1, -1), (os.lchown, "n", B, B), (os.lchown, "n", -1, B), (show, "n"))
        if kind != "symlink":
            os.chown("n", A, A)
            for mode in (0o6555, 0o6777):
                os.chmod("n", mode)
                t.as_user(A, A, (os.chown, "n", -1, B), (show, "n"), groups=(A, B))
        t.changed(("n",), os.lchown, "n", B, B)
        drop("n")


@users
def new_names_belong_to_their_maker(t: Trace) -> None:
    os.chmod(".", 0o777)
    t.as_user(
        A,
        B,
        (put, "f"),
        (os.mkdir, "d"),
        (os.symlink, "x", "s"),
        (show, "f"),
        (show, "d"),
        (show, "s"),
        (os.mknod, "m", stat.S_IFREG | 0o640),
        (show, "m"),
    )
    for mode in (0o4755, 0o6755):  # a new file has nothing that truncating it could have taken the bits for
        t.as_user(A, A, (opening, "n", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), (show, "n"))
        os.unlink("n")
    t.as_user(A, C, (os.mkdir, "e", 0o700), (show, "e"))
    t.as_user(B, B, (os.mkdir, "e/inside"), (os.listdir, "e"), (os.stat, "e/."))


@users
def names_in_a_set_group_id_directory_get_its_group(t: Trace) -> None:
    os.mkdir("g")
    os.chown("g", A, C)
    os.chmod("g", 0o2777)
    t.as_user(
        A,
        B,
        (put, "g/f"),
        (os.mkdir, "g/d", 0o755),
        (os.symlink, "x", "g/s"),
        (os.mknod, "g/m", stat.S_IFREG | 0o644),
        (show, "g/f"),
        (show, "g/d"),
        (show, "g/s"),
        (show, "g/m"),
        (os.mkdir, "g/d/deeper", 0o700),
        (show, "g/d/deeper"),
        (opening, "g/x", os.O_CREAT | os.O_WRONLY, 0o2755),
        (show, "g/x"),
    )
    os.mkdir("g/r", 0o755)
    t(show, "g/r")
    put("g/rf")
    t(show, "g/rf")
    os.chmod("g", 0o777)
    os.mkdir("g/plain", 0o755)
    t(show, "g/plain")


# open ---------------------------------------------------------------------------------------------------------


@case
def open_makes_files_with_the_mode_less_the_umask(t: Trace) -> None:
    for mask in (0o000, 0o022, 0o077, 0o070, 0o501):
        old = os.umask(mask)
        for mode in (0o755, 0o151, 0o345, 0o666, 0o7777):
            t(opening, "f", os.O_CREAT | os.O_WRONLY, mode)
            t(show, "f")
            os.unlink("f")
            t(os.mkdir, "d", mode)
            t(show, "d")
            os.rmdir("d")
            t(os.mknod, "m", stat.S_IFREG | mode)
            t(show, "m")
            os.unlink("m")
        os.umask(old)


@case
def open_changes_the_times_that_it_should(t: Trace) -> None:
    t.changed((".",), opening, "f", os.O_CREAT | os.O_WRONLY)
    t.changed((".", "f"), opening, "f", os.O_CREAT | os.O_RDONLY)
    t.changed((".", "f"), opening, "f", os.O_WRONLY)
    t.changed((".", "f"), opening, "f", os.O_WRONLY | os.O_TRUNC)  # of an empty file: make(1)'s stamps rely on it
    t.changed((".", "f"), opening, "f", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    put("f", b"test")
    t.changed((".", "f"), opening, "f", os.O_WRONLY | os.O_TRUNC)
    t(show, "f")
    t.changed((".", "f"), opening, "f", os.O_WRONLY, 0, b"")
    t.changed((".", "f"), opening, "f", os.O_WRONLY, 0, b"x")
    t.changed((".", "f"), opening, "f", os.O_WRONLY | os.O_APPEND, 0, b"x")
    t.changed((".", "f"), opening, "f", os.O_WRONLY | os.O_APPEND, 0, b"")
    t.changed((".", "f"), get, "f")


@case
def open_flags_decide(t: Trace) -> None:
    create, excl, trunc, nofollow, directory = os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_NOFOLLOW, os.O_DIRECTORY
    os.mkdir("d")
    put("f", b"abc")
    os.symlink("f", "to-f")
    os.symlink("d", "to-d")
    os.symlink("new", "to-new")
    os.symlink("loop", "loop")
    for name in ("f", "d", "to-f", "to-d", "to-new", "loop", "none", "f/x", "d/", "f/", "none/", "d/.", ""):
        for flags in (
            os.O_RDONLY,
            os.O_WRONLY,
            os.O_RDWR,
            os.O_RDONLY | directory,
            os.O_RDONLY | nofollow,
            os.O_WRONLY | create,
            os.O_RDWR | create | excl,
            os.O_RDONLY | create | directory,
            os.O_WRONLY | nofollow | create,
            os.O_PATH | nofollow,
            os.O_RDONLY | trunc,
            os.O_RDONLY | create | excl | nofollow,
        ):
            t(opening, name, flags)
            if os.path.lexists("none"):
                os.unlink("none")
            if os.path.lexists("new"):
                os.unlink("new")
    t(get, "f")
    t(opening, "f", os.O_WRONLY | os.O_APPEND | trunc, 0, b"xy")
    t(get, "f")
    t(opening, "f", os.O_RDWR | os.O_SYNC, 0, b"z")
    t(opening, "f", os.O_RDWR | os.O_DSYNC | os.O_NOATIME, 0, b"Z")
    t(opening, "f", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY, 0, b"z")
    t(get, "f")


@case
def reading_and_writing_need_the_right_open(t: Trace) -> None:
    put("f", b"abc")
    reader, writer = os.open("f", os.O_RDONLY), os.open("f", os.O_WRONLY)
    t(_unnamed(os.write), _Descriptor(reader), b"x")
    t(_unnamed(os.read), _Descriptor(writer), 1)
    t(_unnamed(os.ftruncate), _Descriptor(reader), 0)
    t(_unnamed(os.posix_fallocate), _Descriptor(reader), 0, 10)
    t(_unnamed(os.lseek), _Descriptor(reader), -1, os.SEEK_SET)
    t(_unnamed(os.lseek), _Descriptor(reader), -2, os.SEEK_END)
    t(_unnamed(os.pread), _Descriptor(reader), 10, 3)
    t(_unnamed(os.pread), _Descriptor(reader), 10, 100)
    t(_unnamed(os.pwrite), _Descriptor(writer), b"yy", 5)
    t(get, "f")
    os.close(reader), os.close(writer)
    d = os.open(".", os.O_RDONLY)
    t(_unnamed(os.read), _Descriptor(d), 10)
    t(_unnamed(os.write), _Descriptor(d), b"x")
    t(_unnamed(os.ftruncate), _Descriptor(d), 0)
    t(_unnamed(os.fsync), _Descriptor(d))
    t(_unnamed(os.fdatasync), _Descriptor(d))
    os.close(d)


class _unnamed:
    """A call on a descriptor, whose number differs from run to run and is not shown."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, descriptor: _Descriptor, *arguments: Any) -> Any:
        return self.function(descriptor.number, *arguments)


@dataclass(frozen=True)
class _Descriptor:
    number: int = field(repr=False)


@case
def appends_go_to_the_end_whatever_the_offset(t: Trace) -> None:
    put("f", b"12345")
    one, two = os.open("f", os.O_RDWR | os.O_APPEND), os.open("f", os.O_WRONLY)
    os.lseek(one, 0, os.SEEK_SET)
    os.write(one, b"a")
    t.note(os.lseek(one, 0, os.SEEK_CUR))
    os.pwrite(two, b"Z", 8)
    os.write(one, b"b")
    t.note(os.lseek(one, 0, os.SEEK_CUR), os.lseek(one, 0, os.SEEK_END))
    os.pwrite(one, b"c", 0)  # Linux appends all the same
    t.note(os.pread(one, 100, 0))
    fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) & ~os.O_APPEND)
    os.pwrite(one, b"0", 0)
    t.note(os.pread(one, 100, 0))
    fcntl.fcntl(two, fcntl.F_SETFL, os.O_APPEND)
    os.write(two, b"end")
    t.note(os.pread(one, 100, 0))
    os.close(one), os.close(two)
    t(get, "f")
    t(show, "f")


@users
def permissions_of_open_and_access(t: Trace) -> None:
    for kind in ("file", "dir"):
        make(kind, "n")
        os.chown("n", A, B)
        for mode in (0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001, 0o070, 0o607, 0o000):
            os.chmod("n", mode)
            for uid, gid in ((A, A), (C, B), (C, C)):
                t.as_user(
                    uid,
                    gid,
                    *((access, "n", how) for how in (os.R_OK, os.W_OK, os.X_OK, os.F_OK)),
                    *((opening, "n", how) for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)),
                )
            t(access, "n", os.X_OK)
            t(opening, "n", os.O_RDONLY)
        drop("n")
    os.mkdir("d", 0o755)
    put("d/f", b"x", 0o666)
    os.chmod("d/f", 0o666)
    for mode in (0o644, 0o711, 0o600, 0o777, 0o755, 0o733):
        os.chmod("d", mode)
        t.as_user(
            A,
            A,
            (get, "d/f"),
            (show, "d/f"),
            (os.listdir, "d"),
            (opening, "d/new", os.O_CREAT | os.O_WRONLY),
            (os.unlink, "d/new"),
            (os.mkdir, "d/sub"),
            (os.rmdir, "d/sub"),
            (os.rename, "d/f", "d/g"),
            (os.rename, "d/g", "d/f"),
            (os.truncate, "d/f", 0),
            (os.chmod, "d/f", 0o600),
            (os.symlink, "a", "d/s"),
            (os.readlink, "d/s"),
            (os.unlink, "d/s"),
            (os.utime, "d/f", None),
            (os.utime, "d/f", (1, 1)),
        )


@users
def a_sticky_directory_guards_the_names_of_others(t: Trace) -> None:
    for owner in (0, A, B):
        os.mkdir("s")
        os.chown("s", owner, owner)
        os.chmod("s", 0o1777)
        for kind in KINDS:
            make(kind, "s/mine")
            os.lchown("s/mine", A, A)
            make(kind, "s/root")
            make(kind, "s/other")
            os.lchown("s/other", B, B)
            for name in ("mine", "root", "other"):
                remove = os.rmdir if kind == "dir" else os.unlink
                t.as_user(
                    A,
                    A,
                    (os.rename, f"s/{name}", "s/moved"),
                    (os.rename, "s/moved", f"s/{name}"),
                    (os.rename, "s/mine", f"s/{name}"),
                    (remove, f"s/{name}"),
                )
                for left in ("mine", "root", "other"):
                    t.note(left, os.path.lexists(f"s/{left}"))
            for left in ("mine", "root", "other"):
                drop(f"s/{left}")
        os.rmdir("s")


@users
def moving_a_directory_away_needs_the_right_to_write_it(t: Trace) -> None:
    for name in ("one", "two"):
        os.mkdir(name)
        os.chown(name, A, A)
    os.mkdir("one/d", 0o755)
    t.as_user(A, A, (os.rename, "one/d", "one/e"), (os.rename, "one/e", "two/d"), (os.rename, "one/e", "one/d"))
    os.chown("one/d", A, A)
    os.chmod("one/d", 0o555)
    t.as_user(A, A, (os.rename, "one/d", "two/d"))
    os.chmod("one/d", 0o755)
    t.as_user(A, A, (os.rename, "one/d", "two/d"))
    t(tree)


# truncate -----------------------------------------------------------------------------------------------------


@case
def truncating_changes_size_bytes_and_times(t: Trace) -> None:
    put("f", b"0123456789")
    for size in (10, 3, 3, 20, 0, 0, 70_000, 65_536, 65_535, 1, 200_000, 131_072, 0):
        t.changed(("f",), os.truncate, "f", size)
        t.note(os.stat("f").st_size, len(get("f")), get("f").strip(b"\0"))
    for size in (5, 5, 100_000, 7, 0, 0):
        t.changed(("f",), ftruncate, "f", size)
        t.note(os.stat("f").st_size, len(get("f")), get("f").strip(b"\0"))
    put("f", b"0123456789" * 10_000)
    for size in (99_999, 65_537, 1_000_000, 65_536, 40_000, 99_999, 4096, 4095, 5000):
        t(os.truncate, "f", size)
        data = get("f")
        t.note(len(data), hash_of(data))
    t(os.truncate, "f", -1)
    t(os.truncate, "f", 1 << 40)
    t.note(os.stat("f").st_size)
    t(os.truncate, "f", 3)
    os.mkdir("d")
    os.symlink("f", "to-f")
    t(os.truncate, "to-f", 2)
    for name in ("d", "none", "f/x", "d/none", ""):
        t(os.truncate, name, 0)
    os.chmod("f", 0)
    t(ftruncate, "f", 1)
    t(get, "f")
    descriptor = os.open("f", os.O_RDWR)
    os.unlink("f")
    os.ftruncate(descriptor, 100_000)
    t.note(os.fstat(descriptor).st_size, len(os.pread(descriptor, 200_000, 0)))
    os.close(descriptor)


@users
def truncating_needs_the_right_to_write(t: Trace) -> None:
    put("f", b"abc")
    for mode in (0o644, 0o646, 0o622, 0o444):
        os.chmod("f", mode)
        t.as_user(A, A, (os.truncate, "f", 1), (ftruncate, "f", 2, os.O_WRONLY), (show, "f"))
    os.chown("f", A, A)
    t.as_user(A, A, (os.truncate, "f", 1))


def hash_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()[:12]


# mkdir, rmdir, unlink -----------------------------------------------------------------------------------------


@case
def directories_come_and_go(t: Trace) -> None:
    t.changed((".",), os.mkdir, "d")
    t(show, "d")
    t(show, ".")
    t.changed((".", "d"), os.mkdir, "d/e")
    t(show, "d")
    t.changed((".", "d"), put, "d/f")
    t.changed((".", "d"), os.rmdir, "d")
    t.changed((".", "d"), os.rmdir, "d/e")
    t.changed((".", "d"), os.unlink, "d/f")
    put("f")
    os.symlink("d", "to-d")
    os.symlink("nowhere", "dangling")
    for name in ("d", "f", "to-d", "dangling", "none/d", "f/d", "", ".", "..", "/", "d/", "d/."):
        t(os.mkdir, name)
    for name in ("f", "to-d", "dangling", "none", "f/d", "", ".", "d/.", "d/..", "to-d/", "f/"):
        t(os.rmdir, name)
    t(os.mkdir, "new/")
    t(os.mkdir, "dangling/")
    t(show, "new")
    t(os.rmdir, "new/")
    t.changed((".",), os.rmdir, "d")
    t(show, ".")
    t(tree)


@case
def unlinking(t: Trace) -> None:
    for kind in ("file", "symlink"):
        make(kind, "n")
        t.changed((".",), os.unlink, "n")
        t(os.unlink, "n")
    os.mkdir("d")
    put("f", b"still here")
    os.symlink("d", "to-d")
    for name in ("d", "none", "f/x", "", ".", "d/", "f/", "to-d/", "d/.."):
        t(os.unlink, name)
    t(os.unlink, "to-d")
    descriptor = os.open("f", os.O_RDWR)
    time.sleep(TICK_S)
    before = os.fstat(descriptor)
    time.sleep(TICK_S)
    os.unlink("f")
    after = os.fstat(descriptor)
    t.note(after.st_nlink, after.st_size, after.st_ctime_ns > before.st_ctime_ns, after.st_ino == before.st_ino)
    t.note(os.pread(descriptor, 100, 0), os.pwrite(descriptor, b"and more", 10), os.pread(descriptor, 100, 0))
    t.note(os.fstat(descriptor).st_size)
    put("f", b"another")
    t.note(os.pread(descriptor, 100, 0), get("f"), os.fstat(descriptor).st_ino != os.stat("f").st_ino)
    os.fsync(descriptor)
    os.fchmod(descriptor, 0o600)
    os.utime(descriptor, (5, 6))
    t.note(os.fstat(descriptor).st_mtime, oct(os.fstat(descriptor).st_mode))
    os.close(descriptor)
    inside = os.open("d", os.O_RDONLY)
    os.rmdir("d")
    t.note(os.fstat(inside).st_nlink, os.listdir(inside))
    t(_unnamed(_make_in), _Descriptor(inside))
    os.close(inside)


def _make_in(directory: int) -> None:
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=directory))


_make_in.__name__ = "make_in"


@case
def names_have_limits(t: Trace) -> None:
    for name in (LONG, LONG + "n"):
        t(put, name)
        t(show, name)
        drop(name) if len(name) <= 255 else None
        t(os.mkdir, name)
        t(os.rmdir, name)
        t(os.symlink, "x", name)
        t(os.readlink, name)
        t(os.unlink, name)
        put("f")
        t(os.rename, "f", name)
        t(os.rename, name, "f")
        t(os.truncate, name, 0)
        t(os.chmod, name, 0o600)
        t(os.utime, name, None)
        t(opening, f"{name}/x", os.O_RDONLY)
        t(opening, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        drop("f")
        for left in os.listdir("."):
            drop(left)
    for length in (1, 4094, 4095, 4096):
        t(os.symlink, "t" * length, "s")
        t(len_of_link, "s")
        drop("s")
    t(os.symlink, "", "empty")
    deep = "/".join(["d" * 200] * 19)  # below PATH_MAX, with room
    os.makedirs(deep)
    t(put, f"{deep}/f", b"deep")
    t(get, f"{deep}/f")
    rest = 4095 - len(f"{deep}/")
    for length in (rest, rest + 1):
        t(opening, f"{deep}/{'/' * (length - 1)}f", os.O_RDONLY)
    t(os.stat, "x" * 5000)
    shutil.rmtree("d" * 200)
    for name in (b"\xff\xfe", "é中文 🎉".encode(), b" ", b"-rf", b"a\nb", b"*?[", b"a:b", b"a?b", b"%41", b"@at", b"~"):
        t(put, os.fsdecode(name), name)
        t.note(os.fsencode(os.listdir(".")[0]), get(os.fsdecode(name)))
        os.unlink(name)
    t(opening, "a\0b".replace("\0", ""), os.O_CREAT | os.O_WRONLY)


def len_of_link(name: str) -> tuple[int, int]:
    return len(os.readlink(name)), os.lstat(name).st_size


# rename -------------------------------------------------------------------------------------------------------


@case
def renaming_over_every_kind(t: Trace) -> None:
    for source in (*KINDS, "full"):
        for target in (None, *KINDS, "full"):
            for name, kind in (("from", source), ("to", target)):
                if kind == "full":
                    os.mkdir(name)
                    put(f"{name}/inside")
                elif kind is not None:
                    make(kind, name)
            os.mkdir("other")
            t.note(source, "over", target)
            number = os.lstat("from").st_ino
            t.changed((".",), os.rename, "from", "to")
            t.note("moved", os.path.lexists("to") and os.lstat("to").st_ino == number)
            t(tree)
            t(show, ".")
            if os.path.lexists("to"):
                t.changed((".", "to", "other"), os.rename, "to", "other/to")
                t(show, "other/to")
                t(show, "other")
            for name in ("from", "to", "other"):
                if os.path.isdir(name) and not os.path.islink(name):
                    shutil.rmtree(name)
                elif os.path.lexists(name):
                    os.unlink(name)


@case
def renaming_mistakes(t: Trace) -> None:
    os.makedirs("d/sub/deep")
    os.makedirs("e/full")
    put("f", b"f")
    put("d/f", b"df")
    os.symlink("loop", "loop")
    os.symlink("d", "to-d")
    os.symlink("f", "to-f")
    for old, new in (
        ("none", "x"),
        ("none", "f"),
        ("f", "none/x"),
        ("f/x", "y"),
        ("f", "f/x"),
        ("d", "d/x"),
        ("d", "d/sub/x"),
        ("d", "d/sub"),
        ("d/sub", "d"),
        ("d", "e"),
        ("f", "d"),
        ("d", "f"),
        ("f", "."),
        (".", "x"),
        ("d/.", "x"),
        ("d/..", "x"),
        ("..", "x"),
        ("f", ""),
        ("", "f"),
        ("f", "f"),
        ("d", "d"),
        ("f", "./f"),
        ("d/", "d"),
        ("f", "g/"),
        ("f/", "g"),
        ("d", "g/"),
        ("g", "d"),
        ("g/", "d/"),
        ("loop/x", "y"),
        ("f", "loop/x"),
        ("to-d/", "moved"),
        ("to-d", "moved"),
        ("moved", "to-d"),
        ("to-f", "to-g"),
        ("to-g", "to-f"),
        ("f", "to-f"),
        ("to-f", "f"),
        ("d/sub", "to-d"),
        ("d/sub", "to-d/"),
        ("f", "d/"),
        ("d/f", "f"),
        ("e/full", "d/sub"),
        ("d/sub/deep", "d"),
        ("d/sub/deep", "e"),
        ("d/sub", "e"),
    ):
        t(os.rename, old, new)
    t(tree)


@case
def renaming_keeps_what_a_node_is(t: Trace) -> None:
    put("f", b"data", 0o640)
    os.utime("f", ns=(10**18, 10**18 + 5))
    number = os.stat("f").st_ino
    t.changed((".", "f"), os.rename, "f", "f")
    t.changed((".",), os.rename, "f", "g")
    t.note(os.stat("g").st_ino == number, times("g"), show("g"))
    opened = os.open("g", os.O_RDWR)
    put("h", b"other")
    os.rename("h", "g")
    t.note(get("g"), os.pread(opened, 10, 0), os.fstat(opened).st_nlink, os.fstat(opened).st_ino == number)
    os.pwrite(opened, b"DATA", 0)
    os.close(opened)
    t(get, "g")
    writer = os.open("g", os.O_WRONLY)
    os.rename("g", "i")
    os.write(writer, b"after")
    os.close(writer)
    t(get, "i")
    os.makedirs("a/b/c")
    put("a/b/c/f", b"deep")
    inside = os.open("a/b/c", os.O_RDONLY)
    os.rename("a/b", "moved")
    t(get, "moved/c/f")
    descriptor = os.open("f", os.O_RDONLY, dir_fd=inside)
    t.note(os.read(descriptor, 10), sorted(os.listdir(inside)))
    os.close(descriptor), os.close(inside)
    t(show, "a")
    t(show, "moved")
    t.note(os.stat("moved/..").st_ino == os.stat(".").st_ino)


# symlink ------------------------------------------------------------------------------------------------------


@case
def symlinks(t: Trace) -> None:
    os.mkdir("d")
    put("f", b"x")
    t.changed((".",), os.symlink, "f", "s")
    t(show, "s")
    t(os.readlink, "s")
    t(get, "s")
    for target, name in (
        ("x", "s"),
        ("x", "d"),
        ("x", "f"),
        ("x", "none/s"),
        ("x", "f/s"),
        ("x", ""),
        ("x", "."),
        ("x", "new/"),
        ("s", "t"),
        ("loop2", "loop1"),
        ("loop1", "loop2"),
        ("d/../f", "up"),
        ("/", "root"),
        ("./././f", "dots"),
    ):
        t(os.symlink, target, name)
    for name in ("t", "up", "dots", "loop1", "f", "d", "none"):
        t(get, name)
        t(os.readlink, name)
    for function in (os.stat, os.listdir, os.rmdir):
        t(function, "loop1/x", note=False)
        t(function, "loop1", note=False)
    t(os.mkdir, "loop1/x")
    t(os.chmod, "loop1", 0o600)
    t(os.truncate, "loop1", 0)
    previous = "f"
    for number in range(42):
        os.symlink(previous, f"chain{number}")
        previous = f"chain{number}"
    t(get, "chain38")
    t(get, "chain39")
    t(get, "chain40")
    t(get, "chain41")
    t(os.utime, "s", (3, 4), follow_symlinks=False)
    t.note(os.lstat("s").st_mtime, os.stat("f").st_mtime != 4)
    t.changed(("s", "f"), os.utime, "s", (7, 8))
    t.note(os.stat("f").st_mtime)


# times --------------------------------------------------------------------------------------------------------


@case
def setting_times(t: Trace) -> None:
    for kind in ("file", "dir"):
        make(kind, "n")
        for atime, mtime in (
            (0, 0),
            (1, 2),
            (10**18 + 1, 10**18 + 123_456_789),
            (2**31 * 10**9, 2**31 * 10**9 + 5),
            (4_102_444_800 * 10**9, 4_102_444_800 * 10**9),
            (999_999_999, 1),
            (-1, -1),
            (-(10**9) - 5, -2 * 10**9),
        ):
            t.changed(("n", "."), os.utime, "n", ns=(atime, mtime))
            t(times, "n")
        drop("n")
    put("f", b"x")
    os.utime("f", ns=(10**18, 10**18))
    t.changed(("f",), os.utime, "f", None)
    t.note(abs(os.stat("f").st_mtime - time.time()) < 5, abs(os.stat("f").st_atime - time.time()) < 5)
    os.utime("f", ns=(10**18, 10**18))
    for how in (UTIME_NOW, UTIME_OMIT):
        for which in (0, 1):
            os.utime("f", ns=(10**18, 10**18))
            pair = [(5, 7), (5, 7)]
            pair[which] = (0, how)
            time.sleep(TICK_S)
            before = os.stat("f").st_ctime_ns
            time.sleep(TICK_S)
            t(utimensat, "f", pair)
            at = os.stat("f")
            t.note([round(when - time.time()) if when > 1e9 + 1 else when for when in (at.st_atime, at.st_mtime)])
            t.note(at.st_ctime_ns > before)
    before = os.stat("f").st_ctime_ns
    time.sleep(TICK_S)
    t(utimensat, "f", [(0, UTIME_OMIT), (0, UTIME_OMIT)])
    t.note(os.stat("f").st_ctime_ns > before)
    t(utimensat, "f", [(0, 10**9), (0, 0)])
    for name in ("none", "f/x", ""):
        t(os.utime, name, (1, 1))


UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


def utimensat(name: str, pair: list[tuple[int, int]]) -> None:
    """utimensat(2) itself: os.utime() knows neither UTIME_NOW nor UTIME_OMIT."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    values = (ctypes.c_long * 4)(*pair[0], *pair[1])
    if libc.utimensat(-100, os.fsencode(name), values, 0) != 0:
        raise OSError(ctypes.get_errno(), "utimensat")


@users
def setting_times_needs_the_right(t: Trace) -> None:
    put("f", b"x")
    for mode in (0o644, 0o666, 0o444, 0o600):
        os.chmod("f", mode)
        t.as_user(A, A, (os.utime, "f", None), (os.utime, "f", (1, 1)), (utimensat, "f", [(0, UTIME_NOW)] * 2))
        t.as_user(A, A, (utimensat, "f", [(0, UTIME_NOW), (0, UTIME_OMIT)]), (utimensat, "f", [(0, UTIME_OMIT)] * 2))
    os.chown("f", A, A)
    os.chmod("f", 0o000)
    t.as_user(A, A, (os.utime, "f", None), (os.utime, "f", (1, 1)), (times, "f"))


@case
def times_of_all_ages(t: Trace) -> None:
    put("f")
    for second in (1 - (1 << 31), -1, 0, 1 << 31, (1 << 32) - 1, 1 << 32):
        t(utimensat, "f", [(second, 5), (second, 999_999_999)])
        t(times, "f")
    for second in (1 << 34, 1 << 40, -(1 << 40)):  # the nearest that there is, which differs
        t(utimensat, "f", [(second, 0), (second, 0)])


@case
def room_set_aside_is_a_change(t: Trace) -> None:
    put("f", b"x" * 10_000)
    for mode in (0, 1, 3, 16 | 1):
        t.changed(("f",), fallocate, "f", mode, 0, 4096)
        t.changed(("f",), fallocate, "f", mode, 8000, 100)
    t(show, "f")


@users
def room_set_aside_ends_set_ids(t: Trace) -> None:
    put("f", b"x" * 10_000)
    for mode in (0, 1, 3, 16 | 1):
        os.chmod("f", 0o6777)
        t.as_user(A, A, (fallocate, "f", mode, 100, 200))
        t(show, "f")


def fallocate(name: str, mode: int, offset: int, length: int) -> None:
    """Python knows posix_fallocate(3) only."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(name, os.O_RDWR)
    try:
        if libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(descriptor)


@case
def a_removed_directory_is_empty(t: Trace) -> None:
    os.mkdir("d")
    put("d/f")
    here = os.getcwd()
    os.chdir("d")
    os.unlink("f")
    os.rmdir("../d")
    try:
        t(os.listdir, ".")
        t(os.stat, "f")
        t(os.mkdir, "e")
    finally:
        os.chdir(here)


@case
def writing_changes_times(t: Trace) -> None:
    put("f", b"0123456789")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        descriptor = os.open("f", flags)
        for function, *arguments in (
            (os.write, b"xx"),
            (os.fsync,),
            (os.ftruncate, 5),
            (os.ftruncate, 5),
            (os.posix_fallocate, 0, 30),
            (os.posix_fallocate, 0, 3),
        ):
            t.changed(("f", "."), _unnamed(function), _Descriptor(descriptor), *arguments)
        os.utime(descriptor, (10, 20))
        t.note(os.fstat(descriptor).st_mtime)
        os.close(descriptor)
        t.note(os.stat("f").st_mtime, os.stat("f").st_size)
    descriptor = os.open("f", os.O_RDWR)
    with mmap.mmap(descriptor, 5) as mapped:
        t.changed(("f",), lambda: (mapped.__setitem__(0, 65), mapped.flush())[0])
    os.close(descriptor)
    t.note(get("f")[:3])


# link, mknod: the documented differences ----------------------------------------------------------------------


@case
def what_is_refused_leaves_nothing(t: Trace) -> None:
    os.mkdir("d")
    put("f", b"x")
    t(os.link, "none", "g")
    t(os.link, "f", "f")
    t(os.link, "f", "none/g")
    t(os.link, "f/x", "g")
    t(os.link, "d", "g")
    t(os.mkfifo, "d")
    t(os.mkfifo, "none/x")
    t(os.mkfifo, "f/x")
    t(os.mknod, "f", stat.S_IFREG)
    t(os.mknod, "r", stat.S_IFREG | 0o600)
    t(show, "r")
    t(tree)


# bytes --------------------------------------------------------------------------------------------------------


@case
def sparse_files_are_zeros(t: Trace) -> None:
    descriptor = os.open("f", os.O_RDWR | os.O_CREAT)
    for at, data in ((1_000_000, b"far"), (70_000, b"middle"), (0, b"start"), (65_535, b"ab"), (131_071, b"cd")):
        os.pwrite(descriptor, data, at)
    t.note(os.fstat(descriptor).st_size, hash_of(os.pread(descriptor, 2_000_000, 0)))
    os.close(descriptor)
    t.note(os.stat("f").st_size, hash_of(get("f")))
    os.truncate("f", 500_000)
    os.truncate("f", 1_500_000)
    t.note(hash_of(get("f")))
    with open("f", "rb") as file:
        t.note(file.seek(0, os.SEEK_END), file.seek(2_000_000), file.read(1))
    descriptor = os.open("f", os.O_RDWR)
    os.posix_fallocate(descriptor, 1_400_000, 200_000)
    t.note(os.fstat(descriptor).st_size, hash_of(os.pread(descriptor, 2_000_000, 0)))
    os.close(descriptor)


@case
def mapping_files(t: Trace) -> None:
    put("f", b"a" * 10_000)
    descriptor = os.open("f", os.O_RDWR)
    with mmap.mmap(descriptor, 10_000) as mapped:
        mapped[5000:5003] = b"XYZ"
        t.note(os.pread(descriptor, 5, 4999))
        os.pwrite(descriptor, b"Q", 0)
        t.note(mapped[:2])
        mapped.flush()
    t.note(hash_of(get("f")))
    with mmap.mmap(descriptor, 10_000, access=mmap.ACCESS_COPY) as mapped:
        mapped[0:3] = b"zzz"
    t.note(get("f")[:3])
    reader = os.open("f", os.O_RDONLY)
    with mmap.mmap(reader, 10_000, prot=mmap.PROT_READ) as mapped:
        os.pwrite(descriptor, b"after", 100)
        t.note(mapped[100:105])
    os.close(reader), os.close(descriptor)
    t.note(os.stat("f").st_size)


@case
def one_file_through_many_descriptors(t: Trace) -> None:
    one = os.open("f", os.O_RDWR | os.O_CREAT)
    two = os.open("f", os.O_RDWR)
    three = os.open("f", os.O_RDONLY)
    os.write(one, b"from one")
    t.note(os.pread(two, 100, 0), os.pread(three, 100, 0), os.stat("f").st_size)
    os.pwrite(two, b"TWO", 5)
    t.note(os.pread(one, 100, 0), os.fstat(three).st_size)
    os.ftruncate(one, 3)
    t.note(os.pread(three, 100, 0), os.pread(two, 100, 0))
    os.pwrite(two, b"end", 6)
    t.note(os.pread(three, 100, 0))
    copy = os.dup(one)
    os.close(one)
    t.note(os.write(copy, b"8"), os.lseek(copy, 0, os.SEEK_CUR), os.pread(three, 100, 0))
    for descriptor in (copy, two, three):
        os.close(descriptor)
    t(get, "f")
    with open("f", "r+b") as file, open("g", "w+b") as other:
        t.note(os.sendfile(other.fileno(), file.fileno(), 0, 100))
        t.note(os.copy_file_range(file.fileno(), other.fileno(), 5, 0, 20))
        t.note(os.readv(file.fileno(), [bytearray(2), bytearray(3)]), os.writev(other.fileno(), [b"ab", b"cd"]))
    t(get, "g")


@case
def listing_while_it_changes(t: Trace) -> None:
    for number in range(300):
        put(f"f{number:03}")
    seen = []
    with os.scandir(".") as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.name)
            t.note(entry.is_file(follow_symlinks=False)) if len(seen) < 3 else None
    t.note(len(seen), len(set(seen)), len(os.listdir(".")))
    os.mkdir("d")
    os.symlink("d", "s")
    put("f")
    with os.scandir(".") as entries:
        found = {entry.name: (entry.is_dir(), entry.is_symlink(), entry.inode()) for entry in entries}
    t.note(sorted((name, what[:2], what[2] == os.lstat(name).st_ino) for name, what in found.items()))
    t.note(os.stat("d/..").st_ino == os.stat(".").st_ino, os.stat("d/.").st_ino == os.stat("d").st_ino)


@case
def locks_between_processes(t: Trace) -> None:
    put("f", b"x" * 100)
    descriptor = os.open("f", os.O_RDWR)

    def child(function: Callable[[int], object]) -> None:
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                function(os.open("f", os.O_RDWR))
            except OSError as e:
                code = e.errno or 255
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        t.note("child", errno.errorcode.get(code, code))

    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0))
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 15))
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 15))
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0))
    fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 5)
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 5))
    fcntl.lockf(descriptor, fcntl.LOCK_UN)
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    child(lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))
    child(lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))  # the two kinds do not meet
    other = os.open("f", os.O_RDWR)
    t(_unnamed(fcntl.flock), _Descriptor(other), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    t(_unnamed(fcntl.flock), _Descriptor(other), fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(other, fcntl.LOCK_EX)
    os.close(os.open("f", os.O_RDONLY))  # closing any descriptor drops the process' own fcntl locks
    child(lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
    os.close(other)


def main(top: str) -> None:
    os.umask(0o022)
    told = {}
    for name, found in CASES.items():
        if found.users and os.geteuid() != 0:
            continue
        here = os.path.join(top, name)
        os.mkdir(here)
        os.chmod(here, 0o777 if found.users else 0o755)
        os.chdir(here)
        trace = Trace()
        try:
            found.run(trace)
        except Exception as e:  # what it did until then is compared all the same
            import traceback

            trace.note("RAISED", type(e).__name__, e, traceback.extract_tb(e.__traceback__)[-1].lineno)
        told[name] = trace.lines
        os.chdir(top)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
