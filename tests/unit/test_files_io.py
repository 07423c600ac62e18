"""Whole reads and writes where one call does a part, and directories that cannot be synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from avmfs.store.files import io


def test_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        io.write_all(descriptor, b"0123456789", 2)
        assert io.read_all(descriptor, 100, 0) == b"\0\0" + b"0123456789"
        assert io.read_all(descriptor, 5, 4) == b"23456"
        assert io.read_all(descriptor, 5, 50) == b""
    finally:
        os.close(descriptor)


def test_zeros_stand_for_a_page_that_the_disk_does_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, data, code = os.pread, os.urandom(3 * io.PAGE + 100), [errno.EIO]

    def failing(descriptor: int, size: int, at: int) -> bytes:
        if at < io.PAGE + 200 < at + size:
            raise OSError(code[0], "Input/output error")
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", failing)
    (tmp_path / "f").write_bytes(data)
    with open(tmp_path / "f", "rb") as file:
        with pytest.raises(OSError, match="Input/output"):
            io.read_all(file.fileno(), 1 << 20, 0)
        for offset, size in ((0, 1 << 20), (100, 3 * io.PAGE), (io.PAGE + 50, 200)):
            lost: list[int] = []
            found = data[: io.PAGE] + bytes(io.PAGE) + data[2 * io.PAGE :]
            assert io.read_all(file.fileno(), size, offset, lost) == found[offset : offset + size] and lost == [2]
        code[0] = errno.EBADF
        with pytest.raises(OSError, match="Input/output"):
            io.read_all(file.fileno(), 1 << 20, 0, [])


def test_a_full_disk_is_an_error_after_the_part_that_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [4]

    def pwrite(fd: int, data: memoryview, at: int) -> int:
        if not (fits := min(room[0], len(data))):
            raise OSError(errno.ENOSPC, "full")
        room[0] -= fits
        return fits

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="full"):
        io.write_all(-1, b"01234", 0)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_only_a_filesystem_that_syncs_no_directories_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(code, "x")

    monkeypatch.setattr(os, "fsync", fsync)
    if code == errno.EINVAL:
        io.sync_directory(tmp_path)
    else:
        with pytest.raises(OSError, match="x"):
            io.sync_directory(tmp_path)
