"""A second judge of power loss, where root may use loop devices: ext4 itself, shut down in mid-flight.

EXT4_IOC_SHUTDOWN ends all writing at once, that of its journal included; what is mounted afterwards is what had been
written by then. The device keeps what it was sent: nothing is lost that ext4 had written without a barrier.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.disk_model import Keep

_SHUTDOWN: Final = 0x8004587D  # _IOR('X', 125, __u32)
_NO_LOG_FLUSH: Final = 2
LIMIT_S: Final = 200


class Ext4Disk:
    """With the face of ``DroppingDisk``. Skips the test where that takes more than we may."""

    def __init__(self, path: Path, megabytes: int = 512) -> None:
        self.path = path
        path.mkdir()
        image = path.with_name(path.name + ".img")
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        self._device = self._run("losetup", "--find", "--show", os.fspath(image))
        try:
            self._run("mkfs.ext4", "-q", "-F", self._device)
            self._mount()
        except BaseException:
            subprocess.run(["losetup", "-d", self._device], timeout=LIMIT_S, check=False)
            raise

    def _run(self, *words: str) -> str:
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        except FileNotFoundError:
            pytest.skip(f"{words[0]} is not installed")
        if done.returncode:
            pytest.skip(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _mount(self) -> None:
        self._run("mount", "-t", "ext4", self._device, os.fspath(self.path))

    def slow(self, least_s: float, most_s: float) -> None:
        """It is as it is."""

    def cut(self, keep: Keep = "synced", seed: int = 0) -> float:
        """The power goes, and whoever uses the disk gets EIO. Returns a moment (time.monotonic) just before."""
        at = time.monotonic()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)
        return at

    def revive(self) -> None:
        """Mount it anew, once nobody uses it any more. Another mount namespace, of another test, may hold it a while:
        then what is mounted is what was shut down."""
        limit, probe = time.monotonic() + LIMIT_S, self.path / "probe"
        while True:
            self._unmount()
            self._mount()
            try:
                probe.touch()
            except OSError as e:
                if e.errno != errno.EIO or time.monotonic() > limit:
                    raise
                time.sleep(0.02)
                continue
            probe.unlink()
            return

    def _unmount(self) -> None:
        limit = time.monotonic() + LIMIT_S
        while (done := subprocess.run(["umount", self.path], capture_output=True, text=True)).returncode:
            assert time.monotonic() < limit, done.stderr
            time.sleep(0.02)

    def close(self) -> None:
        try:
            self._unmount()
        finally:
            subprocess.run(["losetup", "-d", self._device], timeout=LIMIT_S, check=True)

    def __enter__(self) -> Ext4Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
