"""What was acknowledged is in the database and its log as they lie on the disk at any moment, whatever lies behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from store_world import ALICE, WriterProcess, faults

from avmfs.access import Policy
from avmfs.store import database
from avmfs.store.checkpoint import FRAME

pytestmark = pytest.mark.timeout(180)

WRITERS = 3
COPIES = int(os.environ.get("AVM_POWER_ROUNDS", "5"))


def valid_frames(log: bytes) -> int:
    """Frames from the beginning whose salt is the log's (fileformat2.html, "4.1. WAL File Format")."""
    count = 0
    while (at := 32 + count * FRAME) + FRAME <= len(log) and log[at + 8 : at + 16] == log[16:24]:
        count += 1
    return count


def torn(log: bytes, random_: random.Random) -> bytes:
    """As when power went while the next commit was being written: half a frame, then what lay there before."""
    end = 32 + valid_frames(log) * FRAME
    half = random_.randrange(24, FRAME)
    begun = random_.randbytes(8) + log[16:24] + random_.randbytes(half - 16)
    return log[:end] + begun + log[end + half :]


def test_copies_of_any_moment_hold_what_was_acknowledged(tmp_path: Path) -> None:
    writer = WriterProcess(tmp_path / "avm.db", tmp_path / "clock")
    first = writer.attach("*")
    first.submit(ALICE, "enroll")
    over = threading.Event()
    done: list[list[bytes]] = [[] for _ in range(WRITERS)]

    def write(number: int) -> None:
        store, random_ = writer.attach("*"), random.Random(number)
        while not over.is_set():
            name = b"%d-%d" % (number, len(done[number]))
            data = name + b" " + random_.randbytes(random_.choice((100, 3000, 60_000)))
            store.submit(ALICE, "write_path", path=[b"memory", name], data=data)
            done[number].append(name)
        store.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    random_, copies = random.Random(1), []
    assert writer.process is not None
    for number in range(COPIES):
        time.sleep(random_.uniform(0.2, 1.0))
        kept = [list(each) for each in done]
        writer.process.send_signal(signal.SIGSTOP)
        try:
            copy = tmp_path / f"copy{number}"
            copy.mkdir()
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{writer.database}{suffix}", copy / f"avm.db{suffix}")
        finally:
            writer.process.send_signal(signal.SIGCONT)
        copies.append((copy, kept))
    over.set()
    for thread in threads:
        thread.join(30)
    first.close()
    writer.close()
    assert sum(map(len, copies[-1][1])) > 20 * COPIES, "they hardly got to work"
    for copy, kept in copies:
        log = (copy / "avm.db-wal").read_bytes()
        assert valid_frames(log) > 0
        (copy / "avm.db-wal").write_bytes(torn(log, random_))
        with contextlib.closing(database.connect(copy / "avm.db", writable=True)) as db:
            there = {bytes(name) for (name,) in db.execute("select name from node where name is not null")}
        assert {name for each in kept for name in each} - there == set()
        assert database.integrity(copy / "avm.db") == [] and faults(copy / "avm.db", Policy()) == []
