"""An ext4 on a thinly provisioned device: a sparse file on a tmpfs that can be made full, and have room again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.small_disks import small_disk

EXT4_IOC_SHUTDOWN: Final = 0x8004587D  # _IOR('X', 125, __u32)
NO_LOG_FLUSH: Final = 2
BLOCK: Final = 4096
_TOOLS = ("mkfs.ext4", "debugfs", "losetup", "mount", "umount")


def _run(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=200).stdout.strip()


class ThinDisk:
    """Mounted at ``path``."""

    def __init__(self, pool: Path, path: Path, device: str) -> None:
        self.path = path
        self._ballast, self._device = pool / "ballast", device

    def fill(self) -> None:
        """From now on blocks that were never written cannot be: the kernel finds out when it writes pages back."""
        with contextlib.suppress(OSError), open(self._ballast, "wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def make_room(self) -> None:
        self._ballast.unlink()

    def lose_power(self) -> None:
        """What no sync has brought to the device is gone; mounted again. Nobody may have a file open."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)
        _run("umount", self.path)
        _run("mount", self._device, self.path)


def _provision(image: Path) -> None:
    """What the filesystem keeps for itself is not to fail: its tables at the beginning, and its journal."""
    blocks = {*range((4 << 20) // BLOCK), *map(int, _run("debugfs", "-R", "blocks <8>", image).split())}
    with open(image, "r+b", buffering=0) as file:
        for block in blocks:
            os.pwrite(file.fileno(), os.pread(file.fileno(), BLOCK, block * BLOCK), block * BLOCK)


@contextlib.contextmanager
def thin_disk(where: Path, *, journal: bool) -> Iterator[ThinDisk]:
    """At ``where``/disk. Skips the test where we may not have loop devices."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in _TOOLS):
        pytest.skip("needs root, losetup and mkfs.ext4")
    with small_disk(where / "pool", "64m") as pool:
        image, path = pool / "image", where / "disk"
        path.mkdir()
        with open(image, "wb") as file:
            file.truncate(120 << 20)  # one group of blocks, with all its tables at the beginning
        features = ["-J", "size=4"] if journal else ["-O", "^has_journal"]
        _run("mkfs.ext4", "-q", "-m0", "-N256", "-b", str(BLOCK), *features, image)
        _provision(image)
        try:
            device = _run("losetup", "-f", "--show", image)
        except subprocess.CalledProcessError as e:
            pytest.skip(f"no loop device: {e.stderr}")
        # A loop device takes a write that was cut short for a whole one: no longer ones than can only fail as a whole.
        Path(f"/sys/block/{Path(device).name}/queue/max_sectors_kb").write_text(str(BLOCK >> 10))
        try:
            _run("mount", device, path)
            try:
                yield ThinDisk(pool, path, device)
            finally:
                _run("umount", "-l", path)
        finally:
            _run("losetup", "-d", device)
