"""A mount's process is killed after the writer committed what it asked for, and before the kernel was answered.

The kernel sends the request again; the successor finds the change done already, and has to give the answer that was
lost. Every case is one request of alice, who must not notice, and a look at what bob finds then. All of them are under
way when the one kill comes: the writer is stopped while they are submitted, the mount while they are committed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avmfs.avm import AVM
from tests.faults.daemons import KILLED, Daemon, wait
from tests.faults.test_immortal import in_background

pytestmark = [pytest.mark.mount, pytest.mark.logs(KILLED)]
AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)

Act = Callable[[], Any]
Case = tuple[Act, Any, Callable[[], Any], Any]
"""What alice does, what it returns or its errno; what is to be seen afterwards, and what that is."""
_CASES: dict[str, Callable[[Path, Path], Case]] = {}


def case(function: Callable[[Path, Path], Case]) -> Callable[[Path, Path], Case]:
    """Given alice's and bob's path of a directory with an old note a.md, prepares all but the request itself."""
    _CASES[function.__name__.strip("_")] = function
    return function


def view(path: Path, name: str) -> str:
    return Path(f"{path}:{name}").read_text()


def opened(path: Path | str, flags: int, data: bytes = b"") -> int:
    descriptor = os.open(path, flags, 0o644)
    if data:
        os.write(descriptor, data)
    return descriptor


def renamed(old: Path, new: Path, flags: int = 0) -> None:
    if _LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def texts(place: Path) -> dict[str, str]:
    return {each.name: each.read_text() if each.is_file() else "" for each in sorted(place.iterdir())}


def text_and_versions(file: Path) -> tuple[str, int]:
    return file.read_text(), len(view(file, "history").splitlines())


OLD = {"a.md": "old\n"}

# Names -----------------------------------------------------------------------------------------------------


@case
def mkdir(here: Path, there: Path) -> Case:
    return lambda: (here / "d").mkdir(), None, lambda: texts(there), {**OLD, "d": ""}


@case
def create(here: Path, there: Path) -> Case:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    return lambda: os.close(os.open(here / "b.md", flags)), None, lambda: texts(there), {**OLD, "b.md": ""}


@case
def symlink(here: Path, there: Path) -> Case:
    return lambda: os.symlink("x", here / "b"), None, lambda: os.readlink(there / "b"), "x"


@case
def mkfifo(here: Path, there: Path) -> Case:
    return lambda: os.mkfifo(here / "p"), errno.EPERM, lambda: texts(there), OLD


@case
def link(here: Path, there: Path) -> Case:
    return lambda: os.link(here / "a.md", here / "b.md"), errno.EPERM, lambda: texts(there), OLD


@case
def unlink(here: Path, there: Path) -> Case:
    return lambda: os.unlink(here / "a.md"), None, lambda: texts(there), {}


@case
def rmdir(here: Path, there: Path) -> Case:
    (here / "d").mkdir()
    return lambda: os.rmdir(here / "d"), None, lambda: texts(there), OLD


@case
def rename(here: Path, there: Path) -> Case:
    return lambda: renamed(here / "a.md", here / "b.md"), None, lambda: texts(there), {"b.md": "old\n"}


@case
def rename_over_a_file(here: Path, there: Path) -> Case:
    (here / "b.md").write_text("replaced\n")
    return lambda: renamed(here / "a.md", here / "b.md"), None, lambda: texts(there), {"b.md": "old\n"}


@case
def rename_over_a_directory(here: Path, there: Path) -> Case:
    (here / "d").mkdir()
    (here / "e").mkdir()
    return lambda: renamed(here / "d", here / "e"), None, lambda: texts(there), {**OLD, "e": ""}


@case
def rename_with_noreplace(here: Path, there: Path) -> Case:
    return lambda: renamed(here / "a.md", here / "b.md", NOREPLACE), None, lambda: texts(there), {"b.md": "old\n"}


@case
def rename_with_exchange(here: Path, there: Path) -> Case:
    (here / "b.md").write_text("b\n")
    both = {"a.md": "b\n", "b.md": "old\n"}
    return lambda: renamed(here / "a.md", here / "b.md", EXCHANGE), None, lambda: texts(there), both


@case
def rename_of_what_is_being_written(here: Path, there: Path) -> Case:
    opened(here / "a.md", os.O_WRONLY | os.O_TRUNC, b"new\n")  # is committed first
    return lambda: renamed(here / "a.md", here / "b.md"), None, lambda: texts(there), {"b.md": "new\n"}


@case
def rm_into_the_trash(here: Path, there: Path) -> Case:
    return lambda: os.unlink(here / "old.md"), None, lambda: (texts(there), _trash(there).read_text()), (OLD, "x\n")


@case
def mv_out_of_the_trash(here: Path, there: Path) -> Case:
    (here / "old.md").unlink()
    both = {**OLD, "b.md": "x\n"}, False
    return lambda: renamed(_trash(here), here / "b.md"), None, lambda: (texts(there), _trash(there).exists()), both


@case
def rm_in_the_trash(here: Path, there: Path) -> Case:
    (here / "old.md").unlink()
    return lambda: os.unlink(_trash(here)), None, lambda: _trash(there).exists(), False


def _trash(place: Path) -> Path:
    return place.parents[2] / "trash/shared" / place.name / "old.md"


# Attributes ------------------------------------------------------------------------------------------------


@case
def chmod(here: Path, there: Path) -> Case:
    seen = there / "a.md"
    return lambda: os.chmod(here / "a.md", 0o600), None, lambda: stat.S_IMODE(seen.stat().st_mode), 0o600


@case
def chown_of_a_set_user_id_file(here: Path, there: Path) -> Case:
    """The kernel has the bit dropped by the same request: two changes, of which the first was made."""
    (here / "a.md").chmod(0o4755)

    def seen() -> tuple[int, int]:
        found = (there / "a.md").stat()
        return found.st_uid, stat.S_IMODE(found.st_mode)

    return lambda: os.chown(here / "a.md", 1234, -1), None, seen, (1234, 0o755)


@case
def utime(here: Path, there: Path) -> Case:
    return lambda: os.utime(here / "a.md", (5, 7)), None, lambda: (there / "a.md").stat().st_mtime, 7


@case
def setxattr(here: Path, there: Path) -> Case:
    return _attribute(here, there, 0)


@case
def setxattr_of_a_new_one(here: Path, there: Path) -> Case:
    return _attribute(here, there, os.XATTR_CREATE)


@case
def setxattr_of_an_old_one(here: Path, there: Path) -> Case:
    Path(f"{here}/a.md:tags").write_text("blue\n")
    return _attribute(here, there, os.XATTR_REPLACE)


def _attribute(here: Path, there: Path, flags: int) -> Case:
    act = functools.partial(os.setxattr, here / "a.md", "user.avm.tags", b"red", flags)
    return act, None, lambda: view(there / "a.md", "tags"), "red\n"


@case
def removexattr(here: Path, there: Path) -> Case:
    Path(f"{here}/a.md:tags").write_text("red\n")
    act = functools.partial(os.removexattr, here / "a.md", "user.avm.tags")
    return act, None, lambda: view(there / "a.md", "tags"), "(no tags)\n"


# Bytes -----------------------------------------------------------------------------------------------------


@case
def truncate(here: Path, there: Path) -> Case:
    return lambda: os.truncate(here / "a.md", 2), None, lambda: text_and_versions(there / "a.md"), ("ol", 2)


@case
def close_of_written_bytes(here: Path, there: Path) -> Case:
    written = opened(here / "a.md", os.O_WRONLY | os.O_TRUNC, b"new\n")
    return lambda: os.close(written), None, lambda: text_and_versions(there / "a.md"), ("new\n", 2)


@case
def fsync_of_written_bytes(here: Path, there: Path) -> Case:
    written = opened(here / "a.md", os.O_WRONLY | os.O_TRUNC, b"new\n")
    return lambda: os.fsync(written), None, lambda: text_and_versions(there / "a.md"), ("new\n", 2)


@case
def fsync_of_a_directory(here: Path, there: Path) -> Case:
    directory = os.open(here, os.O_RDONLY)
    return lambda: os.fsync(directory), None, lambda: texts(there), OLD


@case
def append(here: Path, there: Path) -> Case:
    appending = opened(here / "a.md", os.O_WRONLY | os.O_APPEND)
    return lambda: os.write(appending, b"once\n"), 5, lambda: (there / "a.md").read_text(), "old\nonce\n"


@case
def append_with_o_dsync(here: Path, there: Path) -> Case:
    appending = opened(here / "a.md", os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
    return lambda: os.write(appending, b"once\n"), 5, lambda: (there / "a.md").read_text(), "old\nonce\n"


@case
def append_after_a_cut(here: Path, there: Path) -> Case:
    """Which is committed first."""
    appending = opened(here / "a.md", os.O_WRONLY | os.O_APPEND)
    os.ftruncate(appending, 2)
    return lambda: os.write(appending, b"once\n"), 5, lambda: (there / "a.md").read_text(), "olonce\n"


# Views and mail --------------------------------------------------------------------------------------------


def _write(path: Path, name: str, text: str) -> tuple[Act, int]:
    descriptor = os.open(f"{path}:{name}", os.O_WRONLY)
    return lambda: os.write(descriptor, text.encode()), len(text)


@case
def claim(here: Path, there: Path) -> Case:
    return *_write(here / "a.md", "claim", "10m\n"), lambda: view(there / "a.md", "claim").split()[0], "alice"


@case
def release_of_a_claim(here: Path, there: Path) -> Case:
    Path(f"{here}/a.md:claim").write_text("10m\n")
    return *_write(here / "a.md", "claim", "release\n"), lambda: view(there / "a.md", "claim"), "(unclaimed)\n"


@case
def next_(here: Path, there: Path) -> Case:
    item = f"/memory/shared/{here.name}/a.md\n"
    return lambda: view(here, "next"), item, lambda: view(there / "a.md", "claim").split()[0], "alice"


@case
def tags(here: Path, there: Path) -> Case:
    return *_write(here / "a.md", "tags", "+red\n"), lambda: view(there / "a.md", "tags"), "red\n"


@case
def links(here: Path, there: Path) -> Case:
    """Two changes, of which the first was made."""
    for name in ("b.md", "c.md"):
        (here / name).write_text("linked\n")
    act = _write(here / "a.md", "links", "b.md cites\nc.md\n")
    return *act, lambda: len(view(there / "a.md", "links").splitlines()), 2


@case
def links_removed(here: Path, there: Path) -> Case:
    (here / "b.md").write_text("linked\n")
    Path(f"{here}/a.md:links").write_text("b.md cites\n")
    return *_write(here / "a.md", "links", "-b.md cites\n"), lambda: view(there / "a.md", "links"), "(no links)\n"


@case
def meta(here: Path, there: Path) -> Case:
    """Three changes, of which the first was made."""
    act = _write(here / "a.md", "meta", '{"importance": 0.5, "tags": ["red"], "sources": ["web"], "colour": "blue"}\n')
    found = {'"red"', '"web"', '"blue"'}
    return *act, lambda: {each for each in found if each in view(there / "a.md", "meta")}, found


@case
def shared(here: Path, there: Path) -> Case:
    return *_write(here / "a.md", "shared", "bob\n"), lambda: view(there / "a.md", "shared"), "alice,bob\n"


@case
def ttl(here: Path, there: Path) -> Case:
    return *_write(here / "a.md", "ttl", "2h\n"), lambda: view(there / "a.md", "ttl").split()[0][:2], "1h"


@case
def mark(here: Path, there: Path) -> Case:
    return *_write(here / "a.md", "mark", "\n"), lambda: view(here / "a.md", "mark"), "marked: v1, current: v1\n"


@case
def mail(here: Path, there: Path) -> Case:
    telling = opened(here.parents[2] / "tell/bob", os.O_WRONLY, b"said once\n")
    inbox = there.parents[2] / ":inbox"
    return lambda: os.close(telling), None, lambda: inbox.read_text().count("said once"), 1


@case
def inbox_that_marks_as_read(here: Path, there: Path) -> Case:
    (there.parents[2] / "tell/alice").write_text("read me\n")
    reading = os.open(here.parents[2] / ":inbox?mark=read", os.O_RDONLY)
    assert b"read me" in os.read(reading, 1 << 20)
    unread = here.parents[2] / ":inbox?unread=true"
    return lambda: os.read(reading, 1), b"", lambda: "read me" in unread.read_text(), False


# The kill --------------------------------------------------------------------------------------------------


def resting(pid: int, beats: int = 8) -> bool:
    """Return whether no thread of a process has run for a while, nor could have."""
    before: list[list[str]] = []
    for beat in range(beats):
        try:
            found = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return False
        threads = [each.rpartition(")")[2].split() for each in found]
        if any(each[0] not in "ST" for each in threads) or (beat and [each[11:13] for each in threads] != before):
            return False
        before = [each[11:13] for each in threads]  # processor time
        time.sleep(0.05)
    return True


def of_yesterday(daemon: Daemon, *notes: str) -> None:
    """Notes that are old enough to go to the trash."""
    with AVM(agent="alice", environ=daemon.environ, embeddings=False) as avm:
        for note in notes:
            avm.write(note, "x\n")
    with contextlib.closing(sqlite3.connect(daemon.root / "data/avm.db")) as db, db:
        db.execute("update document set created = created - 86400 * 1000000000")


def outcome(act: Act) -> Any:
    """What it returns, of an error its number."""
    try:
        return act()
    except OSError as e:
        return e.errno


def test_what_a_killed_mount_had_committed_is_answered_as_if_it_had_lived(daemon: Daemon) -> None:
    of_yesterday(daemon, *(f"/memory/shared/{name}/old.md" for name in _CASES if "trash" in name))
    daemon.mounts("alice", "bob", more=", xattr: true")
    daemon.start()
    (daemon.at("alice") / ":search?q=x").read_text()  # only what is indexed goes to the trash
    cases = {}
    for name, prepare in _CASES.items():
        here, there = (daemon.at(agent) / "memory/shared" / name for agent in ("alice", "bob"))
        here.mkdir(exist_ok=True)
        (here / "a.md").write_text("old\n")
        cases[name] = prepare(here, there)
    time.sleep(1.1)  # what is committed within a second of a version amends it
    family = daemon.family()
    os.kill(family["writer"], signal.SIGSTOP)
    try:
        asked = {name: in_background(functools.partial(outcome, act)) for name, (act, *_) in cases.items()}
        time.sleep(0.5)  # they have begun
        wait(lambda: resting(family["alice"]))
    finally:
        os.kill(family["alice"], signal.SIGSTOP)
        os.kill(family["writer"], signal.SIGCONT)
    time.sleep(0.2)
    wait(lambda: resting(family["writer"]))
    os.kill(family["alice"], signal.SIGKILL)
    answers = {name: answer() for name, answer in asked.items()}
    wrong = [(name, "answer", answers[name]) for name, (_, expect, _, _) in cases.items() if answers[name] != expect]
    for name, (_, _, look, expect) in cases.items():
        if (found := outcome(look)) != expect:
            wrong.append((name, "seen", found))
    assert not wrong, "\n".join(map(str, wrong))
