"""The file operations that bench_mount measures; runs in client processes, through the ordinary system calls.

The loop that is timed is in C (cfs/fileops.c, loaded here) where the script could compile it and no SQLite goes with an
operation. Paths are relative to BASE, so that what lies above it costs no variant anything.

Under BASE/memory, PREFIX naming the run and the variant:
    PREFIX-names/n0000…   what is looked up, read and listed; never changed
    PREFIX-cI/o000…       client I's files to overwrite and append to
    PREFIX-cI/newN/…      what client I creates, renames and removes, in a directory for each loop

With a database, every operation also does the SQLite statements that it needs at least (bare_rows.py).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import processes
from benchmarks.clients import Command, reply_of
from benchmarks.figures import Timing, timed_loop, wait_until

if TYPE_CHECKING:
    from benchmarks.bare_rows import BareRows

OPERATIONS = ("stat", "miss", "read", "overwrite", "append", "create", "rename", "unlink", "readdir")
COMMITTING = ("overwrite", "append", "create", "rename", "unlink")
NAMES, FEW_NAMES = 1000, 100
OWN = 100
BODY = (b"A line of plain text, about as long as a note has; " * 20)[:1023] + b"\n"
LINE = BODY[:99] + b"\n"


def commands() -> Mapping[str, Command]:
    client = MountClient()
    return {
        "prepare": client.prepare,
        "measure": client.measure,
        "forget": client.forget,
        "cpu": client.cpu,
        "clear": clear,
    }


@dataclass(frozen=True)
class Place:
    """Where one client process works: the paths of one variant."""

    memory: str
    prefix: str
    client: int

    @property
    def names(self) -> str:
        return f"{self.memory}/{self.prefix}-names"

    @property
    def own(self) -> str:
        return f"{self.memory}/{self.prefix}-c{self.client}"

    def new(self, number: int) -> str:
        """The directory of one loop."""
        return f"{self.own}/new{number}"


class MountClient:
    """One client process of one variant."""

    _rows: BareRows | None = None
    _library: ctypes.CDLL | None = None
    _names: int
    _servers: list[int]
    _spent_s: float
    _place: Place

    def prepare(
        self,
        base: str,
        prefix: str,
        client: int,
        names: int,
        database: str | None,
        servers: list[int],
        library: str | None = None,
    ) -> None:
        """Make this client's files, and the first one what all share. `base`/memory is made where it is missing."""
        os.chdir(base)
        self._place = Place("memory", prefix, client)
        self._library = ctypes.CDLL(library) if library is not None and database is None else None
        self._names = names
        self._servers = servers
        if database is not None:
            from benchmarks.bare_rows import BareRows  # apsw: only where it is measured

            self._rows = BareRows(Path(database), prefix + str(client))
        if client == 0:
            os.makedirs(self._place.memory, exist_ok=True)
            self._fill(self._place.names, "n", self._names)
        self._fill(self._place.own, "o", OWN)

    def _fill(self, folder: str, letter: str, count: int) -> None:
        os.mkdir(folder)
        for path in (f"{folder}/{letter}{i:04}" for i in range(count)):
            _create(path)
            if self._rows is not None:
                self._rows.create(path, BODY)

    def measure(self, operation: str, number: int, n: int, start_ns: int, limit_s: float) -> list[object]:
        """Do one operation at most `n` times from `start_ns` on. `number` tells the loops of a run apart. Names that
        are only looked at have been looked at once before, so that what may be cached is."""
        place = self._place
        choose = random.Random(f"{number}/{place.client}")
        items: list[str]
        match operation:
            case "stat" | "read":
                items = _shuffled([f"{place.names}/n{i:04}" for i in range(self._names)], choose)
            case "miss":
                items = _shuffled([f"{place.names}/absent{i:04}" for i in range(self._names)], choose)
            case "overwrite" | "append":
                items = [f"{place.own}/o{i:04}" for i in range(OWN)]
            case "create":
                os.mkdir(place.new(number))
                items = [f"{place.new(number)}/f{i:06}" for i in range(n)]
            case "rename" | "unlink":
                self._fill(place.new(number), "f", n)
                items = [f"{place.new(number)}/f{i:04}" for i in range(n)]
            case "readdir":
                items = [place.names]
            case _:
                raise ValueError(f"unknown operation: {operation}")
        call = self._call(operation)
        if operation in ("stat", "miss", "read", "readdir"):
            for item in items[:n]:
                call(item)
        before = processes.cpu_s(self._servers)
        if self._library is not None:
            timing = self._in_c(self._library, operation, items, n, start_ns, limit_s)
        else:
            wait_until(start_ns)
            timing = timed_loop(call, itertools.islice(itertools.cycle(items), n), limit_s)
        self._spent_s = processes.cpu_s(self._servers) - before
        return reply_of(timing)

    def _in_c(
        self, library: ctypes.CDLL, operation: str, items: Sequence[str], n: int, start_ns: int, limit_s: float
    ) -> Timing:
        paths = (ctypes.c_char_p * len(items))(*map(os.fsencode, items))
        samples, ends = (ctypes.c_longlong * n)(), (ctypes.c_longlong * 2)()
        data = LINE if operation == "append" else BODY
        size = self._names if operation == "readdir" else len(data)
        library.run.restype = ctypes.c_long
        done = library.run(
            operation.encode(),
            paths,
            ctypes.c_long(len(items)),
            data,
            ctypes.c_long(size),
            ctypes.c_long(n),
            ctypes.c_longlong(start_ns),
            ctypes.c_longlong(int(limit_s * 1e9)),
            samples,
            ends,
        )
        if done < 0:
            raise OSError(-done, os.strerror(-done), items[ends[0] % len(items)])
        return Timing(samples[:done], ends[0], ends[1])

    def cpu(self) -> float:
        """Seconds of CPU that the servers spent during this client's last loop."""
        return self._spent_s

    def _call(self, operation: str) -> Callable[[str], object]:
        through_mount: Callable[[str], object]
        if operation == "readdir":
            through_mount = functools.partial(_list, made=self._names)
        else:
            through_mount = _FILE_OPERATIONS[operation]
        rows = self._rows
        if rows is None:
            return through_mount
        statements: dict[str, Callable[[str], object]] = {
            "stat": rows.look,
            "miss": rows.look,
            "read": rows.read,
            "overwrite": lambda path: rows.overwrite(path, BODY),
            "append": lambda path: rows.append(path, LINE),
            "create": lambda path: rows.create(path, BODY),
            "rename": lambda path: rows.rename(path, f"{path}.moved"),
            "unlink": rows.unlink,
            "readdir": lambda folder: [rows.look(f"{folder}/{name.decode()}") for name in rows.names(folder)],
        }
        in_sqlite = statements[operation]

        def both(path: str) -> None:
            through_mount(path)
            in_sqlite(path)

        return both

    def forget(self, number: int) -> None:
        """Remove what a loop made, outside the measurement."""
        shutil.rmtree(self._place.new(number), ignore_errors=True)


def clear(base: str, prefix: str) -> None:
    """Remove what a run made."""
    for folder in Path(base, "memory").glob(f"{prefix}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _shuffled(paths: list[str], choose: random.Random) -> list[str]:
    choose.shuffle(paths)
    return paths


def _stat_absent(path: str) -> None:
    try:
        os.stat(path)
    except FileNotFoundError:
        return
    raise ValueError(f"{path} exists")


def _read(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        body = os.read(handle, 4096)
    finally:
        os.close(handle)
    if len(body) != len(BODY):
        raise ValueError(f"{path}: {len(body)} bytes read, {len(BODY)} written")


def _written(path: str, flags: int, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def _create(path: str) -> None:
    _written(path, os.O_CREAT | os.O_EXCL, BODY)


def _list(directory: str, made: int) -> None:
    names = os.listdir(directory)
    for name in names:
        try:
            os.stat(f"{directory}/{name}")
        except FileNotFoundError:
            continue  # another one's, who makes and removes names there: bench_beside
    if len(names) < made:
        raise ValueError(f"{directory}: {len(names)} names listed, {made} made")


_FILE_OPERATIONS: Mapping[str, Callable[[str], object]] = {
    "stat": os.stat,
    "miss": _stat_absent,
    "read": _read,
    "overwrite": lambda path: _written(path, os.O_TRUNC, BODY),
    "append": lambda path: _written(path, os.O_APPEND, LINE),
    "create": _create,
    "rename": lambda path: os.rename(path, f"{path}.moved"),
    "unlink": os.unlink,
}
