"""A disk that is full: what fails says so, nothing acknowledged is lost, and removing files makes room again."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import LIMIT_S, World, cat_bytes, code_of, view

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk"),
]

DISK = 16 << 20


@pytest.fixture(scope="module")
def world(mounts: list[dict[str, Any]], settings: str) -> Iterator[World]:
    world = World(mounts, settings)
    world.expected += ["is full", "has room again", "bytes written to node"]  # the latter: told to close(2) before
    disk = Path(tempfile.mkdtemp(prefix="avmt-disk-", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", disk], check=True, timeout=LIMIT_S)
    try:
        (world.root / "data").rmdir()
        (world.root / "data").symlink_to(disk)
        try:
            world.start()
            yield world
        finally:
            world.end()
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=LIMIT_S)
        disk.rmdir()


def save(path: Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def test_a_file_that_is_too_large_can_be_removed_again(alice: Path, bob: Path) -> None:
    for large in ("large", "larger"):
        with pytest.raises(OSError, match="No space left"):
            save(alice / "memory/shared" / large, os.urandom(DISK))
    for file in (bob / "memory/shared").iterdir():
        file.unlink()
    save(bob / "memory/shared/small", b"1" * 30_000)
    assert cat_bytes(alice / "memory/shared/small") == b"1" * 30_000
    (alice / "memory/shared/small").unlink()


def test_what_is_full_refuses_and_keeps_and_can_be_emptied(alice: Path, bob: Path) -> None:
    home = "memory/shared"
    kept: dict[str, bytes] = {}
    refused = 0
    sizes = (10, 5_000, 300_000, 40_000)
    for number in range(2_000):
        name, data = f"f{number}", os.urandom(sizes[number % 4])
        try:
            save(alice / home / name, data)
        except OSError as e:
            assert e.errno == errno.ENOSPC
            refused += 1
            if refused == 30:
                break
        else:
            kept[name] = data
    assert refused == 30
    assert sum(map(len, kept.values())) > DISK // 2, "most of the disk is for what is kept"
    for name, data in kept.items():
        assert cat_bytes(bob / home / name) == data
    first = next(iter(kept))
    assert b'"size": 10' in cat_bytes(view(bob / home / first, ":meta"))
    for entry in (bob / home).iterdir():
        entry.unlink()
    assert not os.listdir(alice / home)

    # What they took is free once it is known that no mount has them open: after two looks, under our own front end.
    if os.environ.get("AVM_FRONT_END") != "portable":
        until = time.monotonic() + LIMIT_S
        again = os.urandom(sum(map(len, kept.values())) // 2)
        while True:
            try:
                save(alice / home / "again", again)
                break
            except OSError as e:
                assert e.errno == errno.ENOSPC and time.monotonic() < until
                time.sleep(1)
        assert cat_bytes(bob / home / "again") == again


def test_nobody_sees_what_a_full_disk_has_refused(alice: Path, bob: Path) -> None:
    path, home = alice / "memory/shared/kept", bob / "memory/shared"
    path.write_bytes(b"old")
    descriptor, reader = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    try:
        number = 0
        while code_of(save, home / f"fill{number}", os.urandom(2 << 20)) != errno.ENOSPC:
            number += 1
        refused = 0
        while refused < 3:
            os.pwrite(descriptor, os.urandom(6 << 20), 0)
            if (code := code_of(os.fsync, descriptor)) is None:  # there was room again, which the version takes
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, b"old", 0)
                os.fsync(descriptor)
                continue
            refused += 1
            assert code == errno.ENOSPC
            assert (path.read_bytes(), os.pread(reader, 9, 0), path.stat().st_size) == (b"old", b"old", 3)
        assert code_of(os.fsync, descriptor) is None
    finally:
        os.close(reader)
        os.close(descriptor)
    assert cat_bytes(home / "kept") == b"old"
    for entry in home.iterdir():
        entry.unlink()
