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
