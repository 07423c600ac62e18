"""One mount changes, others look, as fast as they can: the two sides of bench_coherence; run in client processes.

They share a blackboard, a few words of memory. The changer writes a change's number to BEGUN before its system calls
and to ACKED after they have returned. A looker reads ACKED, looks through its own mount, then reads BEGUN: what it saw
must be the state after some change from ACKED to BEGUN. That is a regular register (Lamport 1986), so a look that
overlaps a change may see either state, and one that starts after the acknowledgement must see it. The changer goes on
when all lookers have seen the change, so that each has the new state in its caches before it is changed again.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import Command
from benchmarks.figures import BenchmarkError

BEGUN, ACKED, ACKED_AT, STOP, SEEN = range(5)
WORDS = 64
RECORD = 8
EMPTY = -1
GIVE_UP_S = 2.0
"""A looker that still sees an old state after this long counts it and goes on."""
SEEN_WITHIN_S = 30.0
PAUSE_S = 0.0002
EXAMPLES = 5

Change = Callable[[str, int], None]
Look = Callable[[str, int], int]


@dataclass(frozen=True)
class Kind:
    """`change(folder, n)` makes the n-th state, from 1 on; `look(folder, acked)` says which state it sees: its number,
    or with `parity` whether that is odd. `promised`: the next look is right on any mount."""

    change: Change
    look: Look
    parity: bool
    promised: bool = True


def commands() -> Mapping[str, Command]:
    return {"prepare": prepare, "change": change, "look": look}


def make_board(path: Path) -> None:
    path.write_bytes(bytes(WORDS * 8))


def prepare(folder: str, kind: str) -> None:
    """State 0, in a directory of its own."""
    os.mkdir(folder)
    if kind in ("overwrite", "replace"):
        _write(f"{folder}/f", os.O_CREAT, _numbered(0))
    elif kind in ("append", "size"):
        _write(f"{folder}/f", os.O_CREAT, b"")
    elif kind == "move":
        os.mkdir(f"{folder}/d0")
        _write(f"{folder}/d0/x", os.O_CREAT, b"x")


def change(kind: str, folder: str, board: str, lookers: int, changes: int, limit_s: float) -> int:
    """Make up to `changes` changes; how many it were."""
    words, choose = _words(board), random.Random(kind)
    give_up = time.monotonic() + limit_s
    done = 0
    try:
        for number in range(1, changes + 1):
            if time.monotonic() > give_up:
                break
            words[BEGUN] = number
            KINDS[kind].change(folder, number)
            words[ACKED_AT] = time.monotonic_ns()
            words[ACKED] = number
            done = number
            patience = time.monotonic() + SEEN_WITHIN_S
            while any(words[SEEN + i] < number for i in range(lookers)):
                if time.monotonic() > patience:
                    raise BenchmarkError(f"{kind}: a looker does not look")
                time.sleep(PAUSE_S / 4)
            time.sleep(choose.random() * PAUSE_S * 4)  # another phase of the lookers each time
    finally:
        words[STOP] = 1
    return done


def look(kind: str, folder: str, board: str, looker: int) -> dict[str, object]:
    """Look until told to stop. The counts, the first few wrong looks, and for each change how long after its
    acknowledgement it was seen, in ns."""
    words, choose, what = _words(board), random.Random(looker), KINDS[kind]
    looks = checks = wrong = late = 0
    seen_after: list[int] = []
    examples: list[list[int]] = []
    checked = 0  # the newest change that a look has been judged against
    while True:
        stopping = words[STOP]
        acked = words[ACKED]
        state = what.look(folder, acked)
        begun, now = words[BEGUN], time.monotonic_ns()
        right = judge(what.parity, acked, state, begun)
        looks += 1
        if acked > checked:
            checks += 1
            checked = acked
            if not right:
                wrong += 1
                examples += [[acked, state, begun]] if len(examples) < EXAMPLES else []
        if acked > words[SEEN + looker]:
            waited = now - words[ACKED_AT]
            overdue = waited > GIVE_UP_S * 1e9
            if right or overdue:
                late += not right
                seen_after.append(waited)
                words[SEEN + looker] = acked
        elif not right:
            wrong += 1  # what was seen once has gone again
        if stopping:
            return {
                "looks": looks,
                "checks": checks,
                "wrong": wrong,
                "late": late,
                "seen_after": seen_after,
                "examples": examples,
            }
        time.sleep(choose.random() * PAUSE_S)


def judge(parity: bool, acked: int, state: int, begun: int) -> bool:
    """May a look that saw `state` have begun after change `acked` was acknowledged and ended when `begun` had begun?"""
    if parity:
        return begun > acked or state == acked % 2
    if state == EMPTY:  # O_TRUNC and write are two steps on most filesystems: empty between them
        return begun > acked
    return acked <= state <= begun


# ---- the kinds ----


def _toggle(folder: str, number: int) -> None:
    if number % 2:
        _write(f"{folder}/f", os.O_CREAT | os.O_EXCL, b"here")
    else:
        os.unlink(f"{folder}/f")


def _replace(folder: str, number: int) -> None:
    _write(f"{folder}/f.new", os.O_CREAT | os.O_EXCL, _numbered(number))
    os.rename(f"{folder}/f.new", f"{folder}/f")


def _contents(folder: str, acked: int) -> int:
    return int(_read(f"{folder}/f") or EMPTY)


def _exists(folder: str, acked: int) -> int:
    return int(os.path.exists(f"{folder}/f"))


def _opens(folder: str, acked: int) -> int:
    try:
        os.close(os.open(f"{folder}/f", os.O_RDONLY))
    except FileNotFoundError:
        return 0
    return 1


KINDS: Mapping[str, Kind] = {
    "create, unlink: stat": Kind(_toggle, _exists, True),
    "create, unlink: open": Kind(_toggle, _opens, True),
    "listing": Kind(_toggle, lambda folder, acked: int("f" in os.listdir(folder)), True),
    "overwrite": Kind(lambda folder, n: _write(f"{folder}/f", os.O_TRUNC, _numbered(n)), _contents, False),
    "append": Kind(
        lambda folder, n: _write(f"{folder}/f", os.O_APPEND, b"%07d\n" % n),
        lambda folder, acked: len(_read(f"{folder}/f")) // RECORD,
        False,
    ),
    "replace": Kind(_replace, _contents, False),
    "move": Kind(
        lambda folder, n: os.rename(f"{folder}/d{(n - 1) % 2}", f"{folder}/d{n % 2}"),
        lambda folder, acked: int(os.path.exists(f"{folder}/d1/x")),
        True,
    ),
    "size": Kind(
        lambda folder, n: os.truncate(f"{folder}/f", n),
        lambda folder, acked: os.stat(f"{folder}/f").st_size,
        False,
        promised=False,
    ),
}


def _numbered(number: int) -> bytes:
    return b"%07d\n" % number


def _write(path: str, flags: int, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.read(handle, 1 << 20)
    finally:
        os.close(handle)


def _words(board: str) -> memoryview:
    with open(board, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), WORDS * 8)).cast("Q")
