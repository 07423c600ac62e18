"""The file operations that bench_mount measures; runs in client processes, through the ordinary system calls.

Under BASE/memory, PREFIX naming the run:
    PREFIX-names/n0000…   what is looked up, read and listed; never changed
    PREFIX-cI/o000…       client I's files to overwrite
    PREFIX-cI/newN/…      what client I creates, in a directory for each loop
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until

OPERATIONS = ("stat", "read", "overwrite", "create", "readdir")
NAMES = 1000
OVERWRITTEN = 100
BODY = (b"A line of plain text, about as long as a note has; " * 20)[:1023] + b"\n"


def commands() -> Mapping[str, Command]:
    return {"prepare": prepare, "measure": measure, "forget_created": forget_created, "clear": clear}


def prepare(base: str, prefix: str, clients: int) -> None:
    """Make the directories and files of a run. `base`/memory is made where it is missing."""
    memory = Path(base, "memory")
    memory.mkdir(exist_ok=True)
    names = memory / f"{prefix}-names"
    names.mkdir()
    for i in range(NAMES):
        (names / f"n{i:04}").write_bytes(BODY)
    for client in range(clients):
        own = memory / f"{prefix}-c{client}"
        own.mkdir()
        for i in range(OVERWRITTEN):
            (own / f"o{i:03}").write_bytes(BODY)


def clear(base: str, prefix: str) -> None:
    """Remove what a run made."""
    for folder in Path(base, "memory").glob(f"{prefix}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    operation: str, base: str, prefix: str, client: int, number: int, n: int, start_ns: int, limit_s: float
) -> list[object]:
    """Do one operation `n` times from `start_ns` on. `number` tells the loops of a run apart."""
    memory = f"{base}/memory"
    own = f"{memory}/{prefix}-c{client}"
    names = f"{memory}/{prefix}-names"
    choose = random.Random(f"{number}/{client}")
    call: Callable[[str], object]
    items: Iterable[str]
    match operation:
        case "stat":
            call, items = os.stat, _shuffled(names, choose)
        case "read":
            call, items = _read, _shuffled(names, choose)
        case "overwrite":
            call = _overwrite
            items = itertools.cycle([f"{own}/o{i:03}" for i in range(OVERWRITTEN)])
        case "create":
            os.mkdir(_created(own, number))
            call, items = _create, [f"{_created(own, number)}/f{i:06}" for i in range(n)]
        case "readdir":
            call, items = _list, itertools.repeat(names)
        case _:
            raise ValueError(f"unknown operation: {operation}")
    wait_until(start_ns)
    return reply_of(timed_loop(call, itertools.islice(items, n), limit_s))


def forget_created(base: str, prefix: str, client: int, number: int) -> None:
    """Remove what `measure("create")` made, outside the measurement."""
    shutil.rmtree(_created(f"{base}/memory/{prefix}-c{client}", number))


def _created(own: str, number: int) -> str:
    return f"{own}/new{number}"


def _shuffled(names: str, choose: random.Random) -> Iterable[str]:
    paths = [f"{names}/n{i:04}" for i in range(NAMES)]
    choose.shuffle(paths)
    return itertools.cycle(paths)


def _read(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        body = os.read(handle, 4096)
    finally:
        os.close(handle)
    if len(body) != len(BODY):
        raise ValueError(f"{path}: {len(body)} bytes read, {len(BODY)} written")


def _overwrite(path: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, BODY)
    finally:
        os.close(handle)


def _create(path: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(handle, BODY)
    finally:
        os.close(handle)


def _list(directory: str) -> None:
    names = os.listdir(directory)
    for name in names:
        os.stat(f"{directory}/{name}")
    if len(names) < NAMES:
        raise ValueError(f"{directory}: {len(names)} names listed, {NAMES} made")
