"""Backups of a store at rest: what is kept, what is written, what a killed one leaves, and what comes back."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from avmfs_config import BackupSettings, Settings, default_settings
from click.testing import CliRunner

from avmfs.access import Policy, Principal
from avmfs.agents import anchors, auditing, backups
from avmfs.agents.auditing import Chainer
from avmfs.agents.backups import Schedule
from avmfs.cli.main import avm
from avmfs.errors import Busy, Exists, NoSpace, NotFound, StoreFailed
from avmfs.store.backup import archive
from avmfs.store.files import room, sync_note, wal_frames
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import examine
from avmfs.store.schema import database
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import read_by_another
from tests.small_disks import small_disk

SETTINGS = default_settings()
ALICE = Principal("alice")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    store = open_direct(path, Policy(), IndexRules())
    try:
        yield store
    finally:
        store.close()


def write(path: Path, name: str, data: bytes) -> None:
    with opened(path) as store:
        store.submit(ALICE, "write_path", path=[b"memory", b"shared", name.encode()], data=data)
        Chainer(store, anchors.beside(path), 0.0, time.time_ns).step()


def contents(path: Path) -> dict[bytes, bytes]:
    with opened(path) as store, store.reading(ALICE) as reader:
        return {node.name: reader.read(node.id, 0, node.size) for node in reader.children(3) if node.size}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "avm.db"
    path.parent.mkdir()
    write(path, "a.md", b"one")
    write(path, "large", os.urandom(500_000))
    return path


def back_up(path: Path, folder: Path, keep: int = 9) -> archive.Backup:
    return backups.backup(path, SETTINGS, folder, keep)


class Scheduled:
    """Backups as they are wanted, by a clock of their own."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.settings, self.said, self._now = settings, list[str](), time.time()
        self._schedule = Schedule(path, settings, self.said.append, lambda: self._now)

    def step(self, after_s: float) -> int:
        """How many there are then."""
        self._now += after_s
        self._schedule.step()
        assert self._schedule.work.wait(300)
        assert self.settings.backup.folder is not None
        return len(archive.backups(self.settings.backup.folder))


def test_a_restored_store_is_the_store_and_its_audit_verifies(path: Path, tmp_path: Path) -> None:
    made = back_up(path, tmp_path / "kept")
    before = contents(path)
    write(path, "b.md", b"later")
    to = tmp_path / "new" / "avm.db"
    assert backups.restore(tmp_path / "kept", to).seq == made.seq
    assert contents(to) == before
    with contextlib.closing(examine.FrozenStore(to, True)) as store:
        assert list(examine.rows(store)) == []
        noted = anchors.read(anchors.beside(to))
        assert noted and auditing.verify(store, OPERATOR, noted).ok
        assert auditing.verify(store, OPERATOR, noted).verdict.anchors == len(noted)
    write(to, "c.md", b"it goes on")
    assert {b"a.md", b"large", b"c.md"} <= contents(to).keys()


def test_how_far_a_backup_is_only_rises_and_ends_with_all(path: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> None:
        heard.append((done, of))

    folder = tmp_path / "kept"
    made = backups.backup(path, SETTINGS, folder, 9, progress)
    parts = [done / of for done, of in heard]
    assert parts == sorted(parts) and heard[-1] == (2 * made.pages - 1, 2 * made.pages)
    for work in (
        lambda: archive.check(folder, made, progress),
        lambda: backups.restore(folder, tmp_path / "new/avm.db", progress=progress),
    ):
        heard.clear()
        work()
        assert heard == [(done, made.pages) for done in range(made.pages)]


def test_only_what_has_changed_is_written(path: Path, tmp_path: Path) -> None:
    first = back_up(path, tmp_path / "kept")
    assert first.new == first.pages
    assert back_up(path, tmp_path / "kept").new == 0
    write(path, "b.md", b"small")
    third = back_up(path, tmp_path / "kept")
    assert 0 < third.new < first.pages // 4
    packs = sum(each.stat().st_size for each in (tmp_path / "kept").glob("*.pack"))
    assert packs == (first.new + third.new) * archive.PAGE


def test_each_backup_is_its_own_moment_and_the_oldest_go(path: Path, tmp_path: Path) -> None:
    folder, moments = tmp_path / "kept", []
    for number in range(5):
        write(path, "n.md", f"as of {number}".encode())
        write(path, f"{number}.bin", os.urandom(100_000))
        moments.append(back_up(path, folder, keep=3))
    assert [each.at for each in archive.backups(folder)] == [each.at for each in moments[2:]]
    for number, each in enumerate(moments[2:], 2):
        to = tmp_path / f"to{number}" / "avm.db"
        assert backups.restore(folder, to, each.at).seq == each.seq
        assert contents(to)[b"n.md"] == f"as of {number}".encode()
        archive.check(folder, each)
    with pytest.raises(NotFound, match="that old"):
        backups.restore(folder, tmp_path / "x" / "avm.db", moments[0].at)


@pytest.mark.parametrize("part", [400, 600])
def test_the_time_that_is_told_of_a_backup_is_that_backups(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setenv("AVM_CONFIG_DIR", str(tmp_path / "c"))
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_123_456_000 + part)
    back_up(path, tmp_path / "kept")
    told = json.loads(CliRunner().invoke(avm, ["--json", "backup", "list", str(tmp_path / "kept")]).stdout)
    at = ["--at", told[0]["at"], "--to", str(tmp_path / "to")]
    done = CliRunner().invoke(avm, ["--json", "backup", "restore", str(tmp_path / "kept"), *at])
    assert done.exit_code == 0 and json.loads(done.stdout)["name"] == told[0]["name"], done.output


def test_the_newest_backup_is_the_one_made_last_whatever_a_clock_said(tmp_path: Path) -> None:
    folder, image, day = tmp_path / "kept", tmp_path / "image", 86_400 * 10**9

    def made(seq: int, at: int, keep: int) -> archive.Backup:
        image.write_bytes(bytes([seq]) * 3 * archive.PAGE)
        with archive.held(folder):
            found = archive.add(folder, image, seq, at, {})
            archive.prune(folder, keep)
        return found

    made(100, 9 * day, 3)  # the clock was ahead
    for seq in (101, 102):
        assert made(seq, (seq - 100) * day, 3).path.exists()
        assert archive.newest(folder).seq == seq
    assert archive.newest(folder, 2 * day).seq == 102 and archive.newest(folder, day).seq == 101
    assert made(103, 3 * day, 1).path.exists() and [each.seq for each in archive.backups(folder)] == [103]


def test_pages_that_no_backup_needs_any_more_are_zeros(tmp_path: Path) -> None:
    folder, image = tmp_path / "kept", tmp_path / "image"
    pages = [b"%d secret " % number * 400 for number in range(10)]
    made = []
    for number in range(3):
        pages[number] = b"%d changed" % number * 500
        image.write_bytes(b"".join(page[: archive.PAGE].ljust(archive.PAGE, b".") for page in pages))
        with archive.held(folder):
            made.append(archive.add(folder, image, number, number, {}))
    with archive.held(folder):
        archive.prune(folder, 1)
    archive.check(folder, made[2])
    packs = b"".join(path.read_bytes() for path in folder.glob("*.pack"))
    assert made[2].new == 1 and b"0 changed" in packs and b"9 secret" in packs
    assert b"1 secret" not in packs and b"2 secret" not in packs


def test_no_backup_is_made_while_one_is_restored(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    made = back_up(path, folder)
    refused: list[str] = []

    def progress(done: int, of: int) -> None:
        if not refused:
            with pytest.raises(Busy, match="restored from") as caught:
                back_up(path, folder, keep=1)
            refused.append(str(caught.value))

    assert backups.restore(folder, tmp_path / "new" / "avm.db", progress=progress).at == made.at and refused
    with archive.held(folder), pytest.raises(Busy, match="being made"):
        backups.restore(folder, tmp_path / "again" / "avm.db")
    back_up(path, folder, keep=1)


def test_no_backup_is_made_while_the_others_are_checked(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, checked = tmp_path / "kept", list[archive.Backup]()
    back_up(path, folder)

    def check(where: Path, each: archive.Backup, *_: Any) -> None:
        with pytest.raises(Busy, match="checked"):
            back_up(path, folder, keep=1)
        checked.append(each)

    monkeypatch.setattr(archive, "check", check)
    done = CliRunner().invoke(avm, ["backup", "check", str(folder)])
    assert done.exit_code == 0 and checked, done.output


@pytest.mark.parametrize("lock", [True, False])
def test_a_backup_is_restored_from_where_nothing_can_be_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: bool
) -> None:
    folder = tmp_path / "kept"
    made = back_up(path, folder)
    if not lock:
        (folder / "lock").unlink()
    really = os.open

    def read_only(file: Any, flags: int, *more: Any, **named: Any) -> int:
        at = Path(os.fsdecode(file))
        if at.parent == folder and (flags & os.O_ACCMODE or (flags & os.O_CREAT and not at.exists())):
            raise OSError(errno.EROFS, "read-only", str(at))
        return really(file, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    assert backups.restore(folder, tmp_path / "new" / "avm.db").at == made.at


def test_a_pack_is_opened_for_writing_only_where_a_page_is_to_be_zeroed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may have made it read-only. Looked at where it is opened: root may write to all of them."""
    back_up(path, tmp_path / "kept")
    modes: list[str] = []

    def noted(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if str(file).endswith(".pack"):
            modes.append(mode)
        return open(file, mode, *more, **named)

    monkeypatch.setattr(archive, "open", noted, raising=False)
    back_up(path, tmp_path / "kept")
    assert modes and set(modes) == {"rb"}


def test_packs_that_are_hardly_used_any_more_go(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for number in range(8):
        for each in range(3):
            write(path, f"{each}.bin", bytes([number]) * 200_000)
        back_up(path, folder, keep=1)
    image = path.stat().st_size
    assert sum(each.stat().st_size for each in folder.glob("*.pack")) < 3 * image
    backups.restore(folder, tmp_path / "new" / "avm.db")
    assert contents(tmp_path / "new" / "avm.db") == contents(path)


def test_a_damaged_page_is_found_and_the_next_backup_writes_it_again(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    made = back_up(path, folder)
    [pack] = folder.glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[9 * archive.PAGE + 7] ^= 1
    pack.write_bytes(data)
    with pytest.raises(StoreFailed, match="page 9 of it is damaged"):
        archive.check(folder, made)
    with pytest.raises(StoreFailed, match="page 9 of it is damaged"):
        backups.restore(folder, tmp_path / "new" / "avm.db")
    assert not (tmp_path / "new" / "avm.db").exists(), "nothing that is not whole takes the name"
    assert back_up(path, folder).new == 1
    backups.restore(folder, tmp_path / "new" / "avm.db")
    assert contents(tmp_path / "new" / "avm.db") == contents(path)


def test_a_damaged_store_is_not_backed_up_over_the_good_one(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    good = back_up(path, folder)
    data = bytearray(path.read_bytes())
    at = data.find(b"one", 8192)
    data[at : at + 3] = b"two"
    path.write_bytes(data)
    with pytest.raises(StoreFailed, match="damaged, and was not backed up"):
        back_up(path, folder)
    assert [each.at for each in archive.backups(folder)] == [good.at] and not (folder / archive.IMAGE).exists()
    told = backups.last(path)
    assert told is not None and told["at"] == good.at


def test_a_changed_log_is_not_backed_up(path: Path, tmp_path: Path) -> None:
    from avmfs.store.schema import database

    with contextlib.closing(database.connect(path, writable=True)) as db:
        db.execute("drop trigger if exists log_is_kept")
        for (name,) in db.execute(
            "select name from sqlite_schema where type = 'trigger' and tbl_name = 'log'"
        ).fetchall():
            db.execute(f"drop trigger {name}")
        db.execute("update log set agent = 'mallory' where seq = (select min(seq) from log where op = 'write')")
    with pytest.raises(StoreFailed, match="audit: row"):
        back_up(path, tmp_path / "kept")


def test_a_store_is_restored_only_where_there_is_none(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "kept")
    with pytest.raises(Exists):
        backups.restore(tmp_path / "kept", path)
    path.unlink()  # but not what tells of it
    with pytest.raises(Exists, match=r"avm\.db"):
        backups.restore(tmp_path / "kept", path)
    with pytest.raises(NotFound):
        backups.restore(tmp_path / "none", tmp_path / "new" / "avm.db")
    with pytest.raises(NotFound):
        back_up(tmp_path / "no" / "avm.db", tmp_path / "kept")


def test_a_restored_store_is_read_by_no_index_of_the_one_that_was_there(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "kept")
    to, away = tmp_path / "new" / "avm.db", tmp_path / "away"
    to.parent.mkdir()
    away.mkdir()
    write(to, "a.md", b"one")
    with read_by_another(to):
        write(to, "b.md", b"two")
        for each in (to, wal_frames.beside(to), sync_note.beside(to), anchors.beside(to)):  # what it finds in the way
            if each.exists():
                each.rename(away / each.name)
        backups.restore(tmp_path / "kept", to)
        assert database.integrity(to) == [] and contents(to) == contents(path)


def test_anchors_that_are_kept_elsewhere_come_back_to_a_folder_that_is_not_there(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "kept")
    backups.restore(tmp_path / "kept", tmp_path / "new/avm.db", kept=tmp_path / "log" / "avm" / "anchors")
    assert anchors.read(tmp_path / "log" / "avm" / "anchors") == anchors.read(anchors.beside(path))


def test_a_backup_whose_pages_have_no_room_beside_the_image_is_refused_before_they_are_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pages = tmp_path / "kept", path.stat().st_size // archive.PAGE

    def disk(at: object) -> SimpleNamespace:
        """With room for the image, and half of it again."""
        image = folder / archive.IMAGE
        taken = image.stat().st_size // archive.PAGE if image.exists() else 0
        return SimpleNamespace(f_frsize=archive.PAGE, f_blocks=1 << 14, f_bavail=256 + pages * 3 // 2 - taken)

    with monkeypatch.context() as small, pytest.raises(NoSpace, match="new in a backup"):
        small.setattr(os, "statvfs", disk)
        back_up(path, folder)
    assert [each.name for each in folder.iterdir()] == ["lock"]
    assert back_up(path, folder).new


def test_a_restore_for_which_there_is_no_room_is_not_begun(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, to = back_up(path, tmp_path / "kept").pages, tmp_path / "new" / "avm.db"
    disk = SimpleNamespace(f_frsize=archive.PAGE, f_blocks=1 << 14, f_bavail=pages)
    with monkeypatch.context() as small, pytest.raises(NoSpace, match="the store that is restored"):
        small.setattr(os, "statvfs", lambda at: disk)
        backups.restore(tmp_path / "kept", to)
    assert [each.name for each in to.parent.iterdir() if not each.name.endswith(".lock")] == []
    backups.restore(tmp_path / "kept", to)
    assert contents(to) == contents(path)


def test_a_restore_that_fails_leaves_nothing(path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "kept")
    (tmp_path / "anchors").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        backups.restore(tmp_path / "kept", tmp_path / "new/avm.db", kept=tmp_path / "anchors")
    [pack] = (tmp_path / "kept").glob("*.pack")
    with open(pack, "r+b") as file:
        file.seek(5000)
        file.write(b"damaged")
    with pytest.raises(StoreFailed):
        backups.restore(tmp_path / "kept", tmp_path / "new/avm.db")
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["avm.db.lock"]


KILLED_RESTORE = """
import os, sys
from pathlib import Path
from avmfs.agents import backups
replace = Path.replace
Path.replace = lambda path, to: os._exit(9) if path.name == "avm.db.restored" else replace(path, to)
backups.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_restore_that_was_killed_leaves_nothing_in_the_way_of_the_next(path: Path, tmp_path: Path) -> None:
    to, before = tmp_path / "new" / "avm.db", contents(path)
    made, noted = back_up(path, tmp_path / "kept"), anchors.read(anchors.beside(path))
    write(path, "b.md", b"later")
    back_up(path, tmp_path / "kept")
    killed = subprocess.run([sys.executable, "-c", KILLED_RESTORE, tmp_path / "kept", to])
    left = anchors.read(anchors.beside(to))
    assert killed.returncode == 9 and not to.exists() and len(left) > len(noted)
    note = sync_note.beside(to)
    note.touch()
    with pytest.raises(Exists, match=note.name):
        backups.restore(tmp_path / "kept", to)
    assert anchors.read(anchors.beside(to)) == left
    note.unlink()
    backups.restore(tmp_path / "kept", to, made.at)
    assert contents(to) == before and anchors.read(anchors.beside(to)) == noted
    assert not list(to.parent.glob("*.restored*"))


def test_a_folder_is_of_one_store_and_of_what_is_restored_of_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "kept", tmp_path / "other" / "avm.db"
    other.parent.mkdir()
    write(other, "b.md", b"another store's")
    made = back_up(path, folder)
    with pytest.raises(Exists, match="another store"):
        back_up(other, folder, keep=1)
    scheduled = Scheduled(other, replace(SETTINGS, backup=BackupSettings(folder, every_s=3600.0, keep=1)))
    for after_s in (0, 4000):  # one that is there says nothing of this store, whether one is due or not
        assert scheduled.step(after_s) == 1 and "another store" in scheduled.said.pop()
    assert [each.path for each in archive.backups(folder)] == [made.path] and not (folder / archive.IMAGE).exists()
    monkeypatch.setenv("AVM_CONFIG_DIR", str(tmp_path / "c"))
    told = CliRunner().invoke(avm, ["restore", "--from", str(folder), "--to", str(tmp_path / "new")])
    assert told.exit_code == 0 and f"of {path}" in told.output, told.output
    assert back_up(tmp_path / "new" / "avm.db", folder).number == 2


def test_backups_from_before_they_told_of_their_store_are_gone_on_with(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = archive.add

    def add(folder: Path, image: Path, seq: int, at: int, about: dict[str, Any], progress: Any) -> archive.Backup:
        return really(folder, image, seq, at, {name: about[name] for name in ("anchors", "database")}, progress)

    with monkeypatch.context() as before:
        before.setattr(archive, "add", add)
        back_up(path, tmp_path / "kept")
    assert back_up(path, tmp_path / "kept").number == 2


def test_two_at_once_are_one_after_the_other(path: Path, tmp_path: Path) -> None:
    with archive.held(tmp_path / "kept"), pytest.raises(Busy):
        back_up(path, tmp_path / "kept")


KILLED = """
import sys
from pathlib import Path
from avmfs_config import default_settings
from click.testing import CliRunner
from avmfs.agents import backups
print("begun", flush=True)
backups.backup(Path(sys.argv[1]), default_settings(), Path(sys.argv[2]), 9)
print("made", flush=True)
"""


@pytest.mark.parametrize("when", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_backup_killed_in_the_middle_leaves_those_before(when: float, path: Path, tmp_path: Path) -> None:
    """At whatever moment it strikes: what was good is, and the next one is made over what was left."""
    folder = tmp_path / "kept"
    good, before = back_up(path, folder), contents(path)
    write(path, "more.bin", os.urandom(3_000_000))
    process = subprocess.Popen([sys.executable, "-c", KILLED, path, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(when)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert archive.backups(folder)[0].at == good.at
    backups.restore(folder, tmp_path / "new" / "avm.db", good.at)
    assert contents(tmp_path / "new" / "avm.db") == before
    again = back_up(path, folder)
    backups.restore(folder, tmp_path / "newer" / "avm.db")
    assert contents(tmp_path / "newer" / "avm.db") == contents(path)
    left = {each.suffix for each in folder.iterdir()}
    assert left <= {"", ".pack", ".backup"} and not (folder / archive.IMAGE).exists()
    assert again.seq > good.seq


def test_what_a_kill_leaves_between_the_pack_and_its_list_is_swept(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    back_up(path, folder)
    shutil.copy(next(folder.glob("*.pack")), folder / "00000009.pack")
    (folder / "00000010.pack.partial").write_bytes(b"x")
    (folder / "20260301T120000Z-00000010.backup.partial").write_bytes(b"x")
    (folder / archive.IMAGE).write_bytes(b"x")
    back_up(path, folder)
    assert sorted(each.name for each in folder.iterdir() if each.suffix != ".backup") == ["00000001.pack", "lock"]


def test_files_of_others_in_the_folder_stay(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    theirs = {
        "image",
        "lock.txt",
        "database.backup",
        "video.mkv.partial",
        "x.pack.partial",
        "objects.pack",
        "pack-1.pack",
        "123.pack",
    }
    for name in theirs:
        (folder / name).write_text(name)
    for number in range(3):
        write(path, "more.md", b"%d" % number)
        back_up(path, folder, keep=1)
    assert {name: (folder / name).read_text() for name in theirs} == {name: name for name in theirs}


def test_the_folder_of_backups_may_be_the_one_that_has_the_database(path: Path) -> None:
    for _ in range(2):
        back_up(path, path.parent)
    assert backups.note(path).exists() and len(archive.backups(path.parent)) == 2
    assert len(archive.told_between(path.parent, time.time() - 3600, time.time())) == 2


def test_packs_of_another_program_are_not_taken_for_what_a_backup_left(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "00000001.pack").write_bytes(b"theirs")
    for _ in range(2):
        with pytest.raises(Exists, match="another folder"):
            back_up(path, folder)
    assert [each.read_bytes() for each in folder.iterdir()] == [b"theirs"]


def test_a_backup_that_is_none_is_no_reason_to_remove_anything(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    made = back_up(path, folder)
    other = folder / "20260301T120000Z-00000010.backup"
    other.write_bytes(b"theirs")
    with pytest.raises(StoreFailed, match="move it away"):
        back_up(path, folder)
    other.unlink()
    archive.check(folder, made)


def test_what_could_not_be_written_whole_is_not_left(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "require", lambda *_: None)  # there was room, and others took it
    write(path, "more", os.urandom(2_000_000))
    with small_disk(tmp_path / "kept", f"{path.stat().st_size * 3 // 2}") as folder:
        with pytest.raises(OSError, match="No space"):
            back_up(path, folder)
        assert [each.name for each in folder.iterdir()] == ["lock"]


@pytest.fixture
def schedule(path: Path, tmp_path: Path) -> Scheduled:
    settings = replace(SETTINGS, backup=BackupSettings(tmp_path / "kept", every_s=3600.0, keep=2))
    return Scheduled(path, settings)


def test_whether_a_backup_is_due_is_read_from_its_folder(schedule: Scheduled, path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "kept")
    assert schedule.step(60) == 1, "the one by hand counts"
    for _ in range(4):
        back_up(path, tmp_path / "another")
        assert schedule.step(60) == 1, "not due: the one by hand is elsewhere"
    backups.note(path).unlink()
    assert schedule.step(60) == 1
    assert schedule.step(3500) == 2


def test_a_backup_whose_note_cannot_be_written_is_made_and_said(
    schedule: Scheduled, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the store is full, that of the backups is not."""
    note = backups.note(path)
    note.with_name(note.name + ".new").mkdir()
    assert schedule.step(0) == 1 and schedule.said == [""]
    assert note.name in caplog.text
    assert schedule.step(1200) == 1, "it is made, and the next one is due in an hour"


def test_a_clock_that_is_set_back_stops_no_schedule(schedule: Scheduled, path: Path) -> None:
    assert schedule.step(10 * 86_400) == 1
    assert schedule.step(-9 * 86_400) == 2
    path.rename(path.with_name("away"))
    assert schedule.step(4000) == 2 and "there is no store" in schedule.said[-1]
    path.with_name("away").rename(path)
    write(path, "x.md", b"x")
    schedule.step(-4001)
    assert schedule.said[-1] == ""


def test_a_schedule_makes_one_when_it_is_due_and_says_what_went_wrong(
    schedule: Scheduled, path: Path, tmp_path: Path
) -> None:
    step, said, wanted = schedule.step, schedule.said, schedule.settings.backup
    assert step(0) == 1 and said == [""]
    assert step(1800) == 1, "not due"
    assert backups.status(path, wanted, {})["age_s"] >= 0
    assert step(1900) == 2
    write(path, "x.md", b"x")
    path.rename(path.with_name("away"))
    assert step(4000) == 2 and "there is no store" in said[-1]
    path.with_name("away").rename(path)
    assert step(60) == 2, "not again at once"
    assert step(600) == 2 and said[-1] == "" and len(said) == 4, "and the oldest has gone"
    assert backups.status(path, wanted, {"error": "x"})["error"] == "x"
    assert backups.status(tmp_path / "other.db", BackupSettings(), {}) == {}
