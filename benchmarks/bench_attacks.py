"""What one agent can do to the others: their delay under each attack, and what a megabyte of quota can grow to.

    python -m benchmarks.bench_attacks [--quick] [--local DIR] [--json FILE]

A neighbour writes, reads and recalls through the door, first alone and then while another agent does its worst
(attack_ops); each pair is one run, and its figures are a ratio. "after" is what the neighbour's first call took once
the attacker had hung up. Then, in a store of its own for each kind, as much is made of that kind as 1,000,000 bytes of
quota allow, at most MOST times: by how much the store grew for each byte of the quota.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

from avmfs.access import Person, Policy, Principal, Quota
from avmfs.errors import OverQuota
from avmfs.rpc.client import RemoteDoor
from avmfs.store.identity import OPERATOR
from avmfs.store.store import Store, open_direct
from avmfs.store.tx.transaction import IndexRules
from benchmarks.attack_ops import ATTACKS, MOUNT
from benchmarks.daemons import Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError
from benchmarks.harness import ROOT, filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value
from benchmarks.script import Findings, Run, names_among, options, run_script

READY_S = 300.0
QUOTA = 1_000_000
MOST = 4000
WHO = Principal("alice")


def measure(run: Run) -> Findings:
    seconds = run.options.seconds or (0.5 if run.quick else 8.0)
    run.begin(
        store=f"on {filesystem_of(run.local)}", neighbour=f"{seconds:g} s alone and {seconds:g} s under each attack"
    )
    rows: list[Sequence[Value]] = []
    failures: dict[str, str] = {}
    targets: list[Target] = []
    for name in run.options.attacks:
        try:
            rows += _under(run, name, seconds, targets)
        except BenchmarkError as e:
            failures[name] = str(e)
    columns = (
        "attack",
        "neighbour",
        "N",
        "alone ms",
        "median ms",
        "x alone",
        "longest alone ms",
        "longest ms",
        "after ms",
    )
    grown = [_growth(run, kind, made) for kind, made in KINDS.items()]
    return Findings(
        [
            Table("a neighbour's calls", columns, rows),
            Table("what a quota of 1 MB grows to", ("kind", "made", "charged", "store grew by", "x quota"), grown),
        ],
        targets,
        failures,
    )


def _under(run: Run, name: str, seconds: float, targets: list[Target]) -> list[Sequence[Value]]:
    with temporary_daemon(run.local, agents("alice", "mallory")) as daemon:
        neighbour = RemoteDoor(Path(daemon.environment["AVM_RUNTIME_DIR"], "avm.sock"), "alice", timeout_s=600)
        neighbour.call("write", path="/private/note.md", data=b"weather in the mountains")
        calls: dict[str, Callable[[], Any]] = {
            "write": lambda: neighbour.call("write", path="/private/w.md", data=os.urandom(8)),
            "read": lambda: neighbour.call("read", path="/private/note.md"),
            "recall": lambda: neighbour.call("recall", q="weather in the mountains"),
        }
        alone = _timed(calls, seconds)
        with _attack(daemon, name):
            beside = _timed(calls, seconds)
        after = {}
        for call, do in calls.items():
            began = time.monotonic()
            do()
            after[call] = (time.monotonic() - began) * 1e3
        neighbour.close()
    rows: list[Sequence[Value]] = []
    for call in calls:
        one, other = statistics.median(alone[call]), statistics.median(beside[call])
        rows.append(
            (name, call, len(beside[call]), one, other, other / one, max(alone[call]), max(beside[call]), after[call])
        )
        targets.append(Target(f"{name}: longest {call}, ms", max(beside[call]), "<=", 1000))
    return rows


def _timed(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, in turn."""
    found: dict[str, list[float]] = {call: [] for call in calls}
    until = time.monotonic() + seconds
    while time.monotonic() < until or not all(found.values()):
        for call, do in calls.items():
            began = time.monotonic()
            do()
            found[call].append((time.monotonic() - began) * 1e3)
    return found


@contextlib.contextmanager
def _attack(daemon: Daemon, name: str) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attack_ops", name, "mallory"],
        cwd=ROOT,
        env={**daemon.environment, MOUNT: str(daemon.mountpoints["mallory"])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        if not ready or process.stdout.readline() != b"ready\n":
            raise BenchmarkError(f"the attacker was not ready within {READY_S:g} s")
        yield
    finally:
        process.kill()
        process.communicate()


# Growth --------------------------------------------------------------------------------------------------------


def _notes(store: Store, number: int) -> None:
    text = " ".join(f"word{(number * 7919 + at * 104_729) % 50_000}" for at in range(400))
    store.submit(WHO, "write_path", path=[b"memory", b"%d.md" % number], data=text.encode())


def _named(store: Store, number: int) -> None:
    store.submit(WHO, "write_path", path=[b"memory", b"%0240d" % number], data=b"")


def _directories(store: Store, number: int) -> None:
    store.submit(WHO, "mkdir", parent=2, name=b"%0240d" % number, mode=0o755)


def _symlinks(store: Store, number: int) -> None:
    store.submit(WHO, "symlink", parent=2, name=b"%d" % number, target=b"t" * 100)


def _tags(store: Store, number: int) -> None:
    store.submit(WHO, "set_tags", node=_file(store, number // 5), add=_words("t", number, 50), remove=[], replace=False)


def _links(store: Store, number: int) -> None:
    one, other = _file(store, number // 900), _file(store, 1_000_000)
    store.submit(WHO, "add_link", node=one, target=other, type=f"t{number}")


def _keys(store: Store, number: int) -> None:
    user = {f"k{n}": "v" * 900 for n in range(50)}
    store.submit(WHO, "merge_meta", node=_file(store, number), importance=None, user=user)


KINDS: dict[str, Callable[[Store, int], None]] = {
    "notes of 4 kB": _notes,
    "empty files, long names": _named,
    "directories, long names": _directories,
    "symlinks": _symlinks,
    "tags, 50 at once": _tags,
    "links": _links,
    "keys of :meta": _keys,
}


def _words(prefix: str, number: int, count: int) -> list[str]:
    return [f"{prefix}{number * count + n:050}" for n in range(count)]


def _file(store: Store, number: int) -> int:
    with store.reading(WHO) as reader:
        found = reader.child(2, b"f%d" % number)
    if found is not None:
        return found.id
    return int(store.submit(WHO, "write_path", path=[b"memory", b"f%d" % number], data=b"x")["node"])


def _growth(run: Run, kind: str, made: Callable[[Store, int], None]) -> Sequence[Value]:
    policy = Policy(people={"alice": Person(quota=Quota(bytes=QUOTA))})
    with scratch_directory(run.local) as folder:
        path = folder / "avm.db"
        store = open_direct(path, policy, IndexRules())
        store.submit(WHO, "enroll")
        before, count = _size(path), 0
        with contextlib.suppress(OverQuota):
            for count in range(100 if run.quick else MOST):
                made(store, count)
        while store.queue_lengths()[0]:
            store.submit(OPERATOR, "drain_lexical")
        with store.reading(WHO) as reader:
            used = reader.people.used("alice")
        store.close()
        grew = _size(path) - before
        charged = used[1] if used is not None else 0
    return kind, count, charged, grew, grew / QUOTA


def _size(path: Path) -> int:
    db = apsw.Connection(str(path))
    try:
        pages, free, size = (db.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * size)
    finally:
        db.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_attacks", "half a second each")
    parser.add_argument("--seconds", type=float, metavar="S", help="alone and under each attack")
    parser.add_argument(
        "--attacks", type=names_among(list(ATTACKS)), default=list(ATTACKS), metavar="NAMES", help=", ".join(ATTACKS)
    )
    return run_script("attacks: one agent against the others", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
