"""Large files, many appends, endless rewrites, wide directories: what bench_files runs; runs in client processes."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import time
from collections.abc import Mapping

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until

MIB = 1 << 20
RECORD = (b"one more line of a log, with a time and a few words in it, as agents write them " * 2)[:99] + b"\n"


def commands() -> Mapping[str, Command]:
    return {
        "write_large": write_large,
        "read_large": read_large,
        "append_prepare": append_prepare,
        "append": append,
        "rewrite_prepare": rewrite_prepare,
        "rewrite": rewrite,
        "fill": fill,
        "list_wide": list_wide,
        "fill_by_api": fill_by_api,
    }


def write_large(path: str, mib: int, start_ns: int, limit_s: float) -> list[object]:
    """Write `mib` MiB in pieces of 1 MiB, then fsync and close; each piece is one operation, the end the last one."""
    data = random.Random(0).randbytes(MIB)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def piece(number: int) -> None:
        if number < mib:
            os.write(handle, data)
        else:
            os.fsync(handle)
            os.close(handle)

    wait_until(start_ns)
    return reply_of(timed_loop(piece, range(mib + 1), limit_s))


def read_large(path: str, mib: int, start_ns: int, limit_s: float) -> list[object]:
    """Read it in pieces of 1 MiB, not from the page cache of this machine's client side."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        data = random.Random(0).randbytes(MIB)

        def piece(number: int) -> None:
            if number == 0:
                got = os.pread(handle, MIB, 0)
                if got != data[: len(got)] or not got:
                    raise ValueError(f"{path}: other bytes than were written")
                os.pread(handle, MIB - len(got), len(got))
            elif len(os.pread(handle, MIB, number * MIB)) == 0:
                raise ValueError(f"{path}: ends at {number} MiB")

        wait_until(start_ns)
        return reply_of(timed_loop(piece, range(mib), limit_s))
    finally:
        os.close(handle)


def append_prepare(folder: str, files: int) -> None:
    os.makedirs(f"{folder}/many")
    for i in range(files):
        _append(f"{folder}/many/f{i:05}")
    _append(f"{folder}/one")


def append(folder: str, to: str, files: int, first: int, n: int, start_ns: int, limit_s: float) -> list[object]:
    """open(O_APPEND), write 100 bytes, close: `to` "one" file, or "many" files in turn from `first` on; or "held", to
    the one file through a handle that stays open."""
    wait_until(start_ns)
    if to == "held":
        handle = os.open(f"{folder}/one", os.O_WRONLY | os.O_APPEND)
        try:
            return reply_of(timed_loop(lambda _: os.write(handle, RECORD), range(n), limit_s))
        finally:
            os.close(handle)
    paths = [f"{folder}/one" if to == "one" else f"{folder}/many/f{i % files:05}" for i in range(first, first + n)]
    return reply_of(timed_loop(_append, paths, limit_s))


def rewrite_prepare(path: str, size: int) -> None:
    _replace(path, random.Random(1).randbytes(size).hex().encode()[:size])


def rewrite(path: str, size: int, n: int, start_ns: int, limit_s: float) -> list[object]:
    """Write a note of `size` bytes anew, a few words of it changed each time."""
    choose = random.Random(time.monotonic_ns())
    text = bytearray(random.Random(1).randbytes(size).hex().encode()[:size])

    def once(_: int) -> None:
        place = choose.randrange(size - 40)
        text[place : place + 40] = choose.randbytes(20).hex().encode()
        _replace(path, bytes(text))

    wait_until(start_ns)
    return reply_of(timed_loop(once, range(n), limit_s))


def fill(folder: str, first: int, count: int) -> None:
    """Small files with the numbers from `first` on, by ordinary system calls."""
    os.makedirs(folder, exist_ok=True)
    for i in range(first, first + count):
        _replace(f"{folder}/n{i:06}", b"a note\n")


def fill_by_api(agent: str, folder: str, first: int, count: int) -> None:
    """The same through the daemon's door, one commit a file."""
    from avmfs import AVM

    with AVM(agent=agent) as memory:
        for i in range(first, first + count):
            memory.write(f"{folder}/n{i:06}", "a note\n")


def list_wide(folder: str, expected: int, stat: bool) -> dict[str, float]:
    """readdir(3) to the end, by the C library so that Python makes no object per name: seconds until the first entry
    and until the last; then, with `stat`, until each name has been looked up."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype, libc.readdir64.restype = ctypes.c_void_p, ctypes.c_void_p
    libc.opendir.argtypes = [ctypes.c_char_p]
    libc.readdir64.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    begun = time.monotonic()
    stream = libc.opendir(os.fsencode(folder))
    if not stream:
        raise OSError(ctypes.get_errno(), "opendir", folder)
    count = 1 if libc.readdir64(stream) else 0
    first = time.monotonic() - begun
    while libc.readdir64(stream):
        count += 1
    whole = time.monotonic() - begun
    libc.closedir(stream)
    if count < expected + 2:  # . and ..
        raise ValueError(f"{folder}: {count} entries of {expected} and two")
    looked = 0.0
    if stat:
        begun = time.monotonic()
        for i in itertools.count():
            if i == expected:
                break
            os.stat(f"{folder}/n{i:06}")
        looked = time.monotonic() - begun
    return {"first_s": first, "whole_s": whole, "stat_s": looked}


def _append(path: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, RECORD)
    finally:
        os.close(handle)


def _replace(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
