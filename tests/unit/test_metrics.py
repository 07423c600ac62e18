"""Counting in memory that others read: sums over processes, threads, successors, what is full."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from avmfs import metrics

_COUNTING = """
import sys
from pathlib import Path
from avmfs import metrics
metrics.begin(Path(sys.argv[1]), sys.argv[2])
metrics.counter("done_total", kind="a").add(float(sys.argv[3]))
metrics.histogram("took_seconds", (0.1, 1.0)).observe(float(sys.argv[3]))
"""
DONE: metrics.Key = ("counter", "done_total", (("kind", "a"),), ())
TOOK: metrics.Key = ("histogram", "took_seconds", (), (0.1, 1.0))


def count(folder: Path, process: str, amount: float) -> None:
    subprocess.run([sys.executable, "-c", _COUNTING, folder, process, str(amount)], check=True, timeout=200)


def test_processes_are_summed_and_a_successor_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    for process, amount in (("mount alice", 0.05), ("mount alice", 0.5), ("door", 7.0)):
        count(folder, process, amount)
    found = metrics.read(folder)
    assert found[DONE] == [pytest.approx(7.55)]
    assert found[TOOK] == [1.0, 1.0, 1.0, pytest.approx(7.55)]
    assert len(list(folder.iterdir())) == 2  # the second of alice's took up the first one's
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_a_process_that_lives_keeps_what_it_counts_in(tmp_path: Path) -> None:
    (tmp_path / f"door.{os.getpid()}").write_bytes(bytes(metrics.SIZE))
    count(tmp_path, "door", 1.0)
    assert len(list(tmp_path.iterdir())) == 2


def test_no_count_of_many_threads_is_lost() -> None:
    meter = metrics.Meter(mmap.mmap(-1, metrics.SIZE))

    def work() -> None:
        for _ in range(5000):
            meter.counter("all_total").add()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert meter._values[meter._place(("counter", "all_total", (), ()))] == 20_000


def test_a_file_that_is_being_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "door.1").write_bytes(b"")
    assert metrics.read(tmp_path) == {} == metrics.read(tmp_path / "none")


def test_half_a_line_of_a_process_that_was_killed_is_written_over() -> None:
    memory = mmap.mmap(-1, metrics.SIZE)
    metrics.Meter(memory).counter("first_total").add(3)
    end = memory.find(b"\0")
    memory[end : end + 200] = b'["counter", "torn' + b"x" * 183
    again = metrics.Meter(memory)
    again.counter("second_total").add()
    names = [key[1] for key, _ in metrics._listed(memory[: metrics.NAMES])]
    assert names == ["first_total", "second_total"]
    assert again._values[again._place(("counter", "first_total", (), ()))] == 3


def test_more_series_than_there_is_room_for_are_refused() -> None:
    meter = metrics.Meter(mmap.mmap(-1, metrics.SIZE))
    with pytest.raises(ValueError, match="too many series"):
        for number in range(100_000):
            meter.histogram("took_seconds", of=str(number))
