"""Mountpoints: what may be covered, and that the bare directory refuses writes while it is guarded."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from avmfs_daemon import mountpoint
from avmfs_daemon.mountpoint import Mounted, Mountpoint, MountpointError

NOBODY = 65534


def as_nobody(action: Callable[[], int]) -> int:
    """What `action` returns in a process of another user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os._exit(action())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_missing_directories_are_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Mountpoint.prepare(tmp_path / "a/b/c").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_directory_with_entries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MountpointError, match="not empty"):
        Mountpoint.prepare(tmp_path)


def test_a_file_and_a_symbolic_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    for name in ("file", "link"):
        with pytest.raises(MountpointError, match="not a directory"):
            Mountpoint.prepare(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root has no more rights there than its own")
def test_root_is_led_nowhere_by_the_link_of_another_user(tmp_path: Path) -> None:
    """Who owns a home would choose where root makes directories, and what it covers."""
    home, victim = tmp_path / "home", tmp_path / "victim"
    (home / "own").mkdir(parents=True)
    (victim / "deep").mkdir(parents=True)
    (home / "sub").symlink_to(victim)
    os.lchown(home / "sub", NOBODY, NOBODY)
    (tmp_path / "usual").symlink_to(home)  # root's own, as where /home is one
    (tmp_path / "round").symlink_to("round")
    for through in (home / "sub/deep/mnt", home / "sub/mnt", tmp_path / "usual/sub/deep", home / "own/../sub/mnt"):
        with pytest.raises(MountpointError, match=f"symbolic link of uid {NOBODY}"):
            Mountpoint.prepare(through)
        with pytest.raises(MountpointError, match="symbolic link of uid"):
            mountpoint.detach_predecessor(through)
    assert not os.listdir(victim / "deep") and os.listdir(victim) == ["deep"]
    Mountpoint.prepare(tmp_path / "usual/own/mnt").close()
    os.lchown(home / "sub", 0, 0)
    Mountpoint.prepare(home / "sub/deep/mnt").close()
    with pytest.raises(MountpointError, match="levels"):
        Mountpoint.prepare(tmp_path / "round/mnt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the immutable flag")
def test_a_guarded_directory_refuses_even_root(tmp_path: Path) -> None:
    at = tmp_path / "at"
    directory = Mountpoint.prepare(at)
    directory.protect()
    try:
        with pytest.raises(PermissionError):
            (at / "file").touch()
        with pytest.raises(PermissionError):
            (at / "directory").mkdir()
    finally:
        directory.release()
    (at / "file").touch()
    directory.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_without_root_the_mode_guards_and_comes_back(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:3]):  # one more where tests run side by side
        if path.owner() == "root" and path.name.startswith(("test_", "popen-", "pytest-")):
            path.chmod(0o755)
    at = tmp_path / "at"
    at.mkdir(mode=0o750)
    os.chown(at, NOBODY, NOBODY)

    def refuses() -> int:
        directory = Mountpoint.prepare(at)
        assert directory.restore_mode == 0o750
        directory.protect()
        try:
            (at / "file").touch()
            return 1
        except PermissionError:
            pass
        directory.release()
        (at / "file").touch()
        (at / "file").unlink()
        directory.protect()
        return 0  # killed while it guarded

    assert as_nobody(refuses) == 0
    assert stat.S_IMODE(at.stat().st_mode) == 0

    def recovers() -> int:
        Mountpoint.prepare(at, 0o750).close()
        return 0

    assert as_nobody(recovers) == 0
    assert stat.S_IMODE(at.stat().st_mode) == 0o750


def test_nothing_is_mounted_at_an_ordinary_directory(tmp_path: Path) -> None:
    assert mountpoint.mounts_at(tmp_path) == []
    assert mountpoint.detach_stale(tmp_path) == 0


def test_what_is_mounted_is_found_by_any_name_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    assert mountpoint.mounts_at(tmp_path / "link/proc") == mountpoint.mounts_at(Path("/proc")) != []


def test_another_filesystem_is_never_taken_away() -> None:
    with pytest.raises(MountpointError, match="another filesystem"):
        mountpoint.detach_stale(Path("/proc"))
    with pytest.raises(MountpointError, match="another filesystem"):
        mountpoint.detach_predecessor(Path("/proc"))


def test_another_programs_filesystem_that_hangs_or_is_dead_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = ("fuse.sshfs", "alice@host:/srv"), ("fuse.avmfs", "avmfs")
    table, gone = list[Mounted](), list[Path]()

    def detach(path: Path, **_: bool) -> bool:
        gone.append(path)
        table.pop()
        return True

    monkeypatch.setattr(mountpoint, "_table", lambda: list(table))
    monkeypatch.setattr(mountpoint, "_answers", lambda path: False)
    monkeypatch.setattr(mountpoint, "detach", detach)
    for detached in (mountpoint.detach_stale, mountpoint.detach_predecessor):
        table[:] = [Mounted(tmp_path, "0:99", *theirs)]
        with pytest.raises(MountpointError, match="another filesystem"):
            detached(tmp_path)
        assert table and gone == []
        table[:] = [Mounted(tmp_path, "0:99", *ours)]
        detached(tmp_path)
        assert gone.pop() == tmp_path


def test_blanks_in_the_table_are_undone() -> None:
    assert mountpoint._plain(rb"/mnt/a\040b\134c") == r"/mnt/a b\c"
