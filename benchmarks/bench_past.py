"""What the past costs: entering it, keeping it, backing it up and forgetting for good, in a store of many notes.

    python -m benchmarks.bench_past [--notes 100000] [--rounds 30] [--edits 500] [--quick] [--json FILE]

*Entering*: through a mount, in turn in the present and in a moment that nobody has asked for before (`/@seq.N`), with a
change in the directory before each round, so that neither side has an answer left from the last: the root is listed, a
directory of 1,000 notes is, a note is read that nobody has read, and a new question is asked by words. *Keeping*: notes
are edited, a line each time, more than a second apart; the same edits as full copies, and as commits of git. *Backups*
are the program's, with its start; "beside 8 agents" is while these write as fast as they can. *Purging*: the plan, the
transactions, and the writing anew of the store's file, for which the second purge waits: that is done for at most a
twentieth of the time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from avmfs import AVM
from avmfs.access import Policy
from avmfs.rpc.client import RemoteDoor
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from benchmarks.clients import Client, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, Round, Timing, over_rounds, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value, measured
from benchmarks.script import Findings, Run, options, positive, run_script
from benchmarks.texts import notes as texts
from benchmarks.vector_store import BENCH

FOLDER = 1000  # notes of a directory
BATCH = 256
WRITERS = 8
EDITED = 100  # notes whose history is weighed, and those changed before the second backup
LIMIT_S = 300.0
WAYS = ("list the root", "list 1,000 notes", "first read", "recall")
BOUND = 3.0
MB = 1e6


class Stock:
    """A store that this process writes, many commands to a transaction, at a time of its own."""

    def __init__(self, path: Path) -> None:
        self.now = time.time_ns() - 10**15
        database.prepare(path)
        self._applier = Applier(path, Policy(), IndexRules(past_days=30), orphans=True, clock=lambda: self.now)
        database.run(self._applier.db, "pragma synchronous = normal")
        self._applier.alone(OPERATOR, "settle", {})
        self._applier.alone(BENCH, "enroll", {})

    def write(self, some: Sequence[tuple[list[bytes], bytes]]) -> None:
        self._applier.begin()
        for path, data in some:
            self._applier.apply(BENCH, "write_path", {"path": path, "data": data})
        self._applier.commit()

    def close(self) -> None:
        """With the words indexed."""
        while self._applier.alone(OPERATOR, "drain_lexical", {"limit": BATCH})["left"]:
            pass
        self._applier.close()


def measure(run: Run) -> Findings:
    count: int = run.options.notes or (300 if run.quick else 100_000)
    rounds: int = run.options.rounds or (2 if run.quick else 30)
    edits: int = run.options.edits or (30 if run.quick else 500)
    run.begin(
        notes=f"{count:,}, {FOLDER:,} a directory, of 15 to 70 words; on {filesystem_of(run.local)}; no vectors",
        rounds=f"{rounds}, present and past in turn",
        history=f"{edits:,} edits of {EDITED} notes of 4 kB, a line each",
        purges="one after the other: the second waits, since the file is written anew for a twentieth of the time",
    )
    with scratch_directory(run.local) as folder:
        kept = _history(folder, edits)

    def stock(path: Path) -> None:
        store, bodies = Stock(path), texts(count, 1)
        for at in range(0, count, BATCH):
            store.write([(_place(number), bodies[number].encode()) for number in range(at, min(at + BATCH, count))])
        store.close()

    with contextlib.ExitStack() as ending:
        daemon = ending.enter_context(temporary_daemon(run.local, agents("bench"), WORDS_ONLY, stock=stock))
        (client,) = ending.enter_context(started_clients("benchmarks.index_ops", 1, os.environ))
        avm = ending.enter_context(AVM(agent="bench", environ=dict(daemon.environment)))
        entering, ratios = _entering(daemon, client, avm, count, rounds)
        backing = _backups(daemon, avm, run, count)
        purging = _purges(daemon, count)
    targets = [measured(f"{way} in a past view, times the present", ratios[way], "<=", BOUND) for way in WAYS]
    return Findings([entering, kept, backing, purging], targets)


def _place(number: int) -> list[bytes]:
    return [b"memory", b"notes", b"%d" % (number // FOLDER), b"%d.md" % number]


# ---- entering ----


def _entering(
    daemon: Daemon, client: Client, avm: AVM, count: int, rounds: int
) -> tuple[Table, dict[str, list[float]]]:
    mount = daemon.mountpoints["bench"]
    first = _newest(daemon)
    avm.snapshots()
    began = time.perf_counter()
    avm.snapshot("bench")
    snapshot_ms = (time.perf_counter() - began) * 1e3
    chosen = random.Random(3).sample(range(count), min(count, 6 * rounds + 4))
    fresh = itertools.cycle(chosen)
    for _ in range(2 * rounds + 2):  # what differs now; each is a moment
        avm.write(_text(next(fresh)), "changed")
    found: dict[tuple[str, str], list[Round]] = {}
    words = texts(4 * rounds + 4, 9)
    for number in range(rounds + 1):
        place = next(fresh)
        folder = _text(place).rpartition("/")[0]
        avm.write(f"{folder}/new {number}.md", "new")
        sides = [("now", mount), ("then", mount / f"@seq.{first + number + 1}")]
        notes = {side: Path(_text(next(fresh)).lstrip("/")) for side, _ in sides}
        for side, root in sides if number % 2 else reversed(sides):
            calls: list[tuple[str, str, dict[str, object]]] = [
                (WAYS[0], "listing", {"places": [str(root)]}),
                (WAYS[1], "listing", {"places": [f"{root}{folder}"]}),
                (WAYS[2], "read", {"places": [str(root / notes[side])]}),
                (WAYS[3], "recall", {"mountpoint": str(root), "tokens": 1000, "questions": [_question(words.pop())]}),
            ]
            for way, command, arguments in calls:
                took = summarize([Timing(*client.call(command, LIMIT_S, limit_s=LIMIT_S, **arguments))])
                if number:  # the first warms both up
                    found.setdefault((way, side), []).append(took)
    rows: list[Sequence[Value]] = []
    ratios: dict[str, list[float]] = {}
    for way in WAYS:
        now, then = (over_rounds(found[way, side]) for side in ("now", "then"))
        ratios[way] = [
            after.median_us / before.median_us
            for before, after in zip(found[way, "now"], found[way, "then"], strict=True)
        ]
        for side, figure, ratio in (("now", now, None), ("then", then, statistics.median(ratios[way]))):
            slowest = max(each.median_us for each in found[way, side])
            rows.append((way, side, figure.n, figure.median_us / 1e3, slowest / 1e3, ratio))
    rows.append(("make a snapshot", "now", 1, snapshot_ms, snapshot_ms, None))
    columns = ("what", "where", "N", "median ms", "slowest ms", "times the present")
    return Table("entering the past", columns, rows), ratios


def _text(number: int) -> str:
    return "/" + os.fsdecode(b"/".join(_place(number)))


def _question(text: str) -> str:
    return " ".join(word for word in text.split() if word.isalpha())[:60]


def _newest(daemon: Daemon) -> int:
    db = apsw.Connection(os.fspath(daemon.data / "avm.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(db.execute("select max(seq) from log").get)
    finally:
        db.close()


# ---- keeping ----


def _history(folder: Path, edits: int) -> Table:
    chance = random.Random(5)
    bodies = ["\n".join(textwrap.wrap(" ".join(texts(18, 100 + number)), 100)) for number in range(EDITED)]
    store, path = Stock(folder / "avm.db"), folder / "avm.db"
    repository = folder / "git"
    repository.mkdir()
    git = _git(repository)
    git("init", "-q", ".")
    places = [[b"memory", b"%d.md" % number] for number in range(EDITED)]
    for number, body in enumerate(bodies):
        (repository / f"{number}.md").write_text(body)
    git("add", ".")
    git("commit", "-q", "-m", "0")
    git("gc", "-q")
    store.write([(place, body.encode()) for place, body in zip(places, bodies, strict=True)])
    store.close()
    stored, packed = path.stat().st_size, _size(repository)
    store, copies = Stock(path), 0
    for number in range(edits):
        at = chance.randrange(EDITED)
        lines = bodies[at].split("\n")
        lines[chance.randrange(len(lines))] = f"What stood here was found to be wrong, see {chance.random()}."
        bodies[at] = "\n".join(lines)
        copies += len(bodies[at])
        store.now += 10**10
        store.write([(places[at], bodies[at].encode())])
        (repository / f"{at}.md").write_text(bodies[at])
        git("commit", "-q", "-a", "-m", str(number))
    store.close()
    db = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    deltas: Any = db.execute("select sum(length(body)) from version").get
    db.close()
    loose = _size(repository) - packed
    git("gc", "-q")
    packed = _size(repository) - packed
    sizes = {
        "full copies": copies,
        "avmfs, bodies of the versions before": deltas,
        "avmfs, all that the file has grown": path.stat().st_size - stored,
        "git, a commit an edit, loose objects": loose,
        "git, the same after gc": packed,
    }
    rows = [(way, size / edits, size / copies) for way, size in sizes.items()]
    return Table("bytes of history", ("way", "bytes an edit", "times full copies"), rows)


def _git(repository: Path) -> Callable[..., None]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    said = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]

    def git(*words: str) -> None:
        command = ["git", *said, *words]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"git {words[0]}: {done.stderr.strip()}")

    return git


def _size(repository: Path) -> int:
    return sum(each.stat().st_size for each in (repository / ".git" / "objects").rglob("*") if each.is_file())


# ---- backups ----


def _backups(daemon: Daemon, avm: AVM, run: Run, count: int) -> Table:
    rows: list[Sequence[Value]] = []
    with scratch_directory(run.local) as folder:

        def back_up(what: str) -> None:
            began = time.perf_counter()
            made = json.loads(_program(daemon, "--json", "backup", str(folder)))
            took = time.perf_counter() - began
            rows.append((what, took, made["new_bytes"] / MB, made["bytes"] / MB))

        back_up("the first")
        back_up("nothing has changed")
        for number in random.Random(6).sample(range(count), min(EDITED, count)):
            avm.write(_text(number), "changed before the backup")
        back_up(f"{EDITED} notes have changed")
        with _writing(daemon) as written:
            back_up(f"beside {WRITERS} agents")
        rows.append((f"  writes acknowledged meanwhile: {sum(written):,}", None, None, None))
    return Table("backups", ("what", "seconds", "MB written", "MB in all"), rows)


@contextlib.contextmanager
def _writing(daemon: Daemon) -> Iterator[list[int]]:
    """As many agents who write; how often each has, once it is over."""
    over, written = threading.Event(), [0] * WRITERS

    def write(number: int) -> None:
        with contextlib.closing(_door(daemon, f"agent{number}")) as door:
            while not over.is_set():
                path = f"/memory/shared/{number}/{written[number]}.md"
                door.call("write", path=path, data=os.urandom(400).hex().encode())
                written[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for each in threads:
        each.start()
    try:
        yield written
    finally:
        over.set()
        for each in threads:
            each.join()


def _door(daemon: Daemon, agent: str) -> RemoteDoor:
    return RemoteDoor(Path(daemon.environment["AVM_RUNTIME_DIR"]) / "avm.sock", agent, timeout_s=LIMIT_S)


def _program(daemon: Daemon, *words: str) -> str:
    command = [sys.executable, "-m", "avmfs.cli", "-a", "bench", *words]
    done = subprocess.run(
        command, env=dict(daemon.environment), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"avm {words[0]}: {done.stderr.strip()}")
    return done.stdout


# ---- purging ----


def _purges(daemon: Daemon, count: int) -> Table:
    rows: list[Sequence[Value]] = []
    with contextlib.closing(_door(daemon, "bench")) as door:
        last = (count - 1) // FOLDER
        for what, path in (("one note", _text(0)), ("a directory of notes", f"/memory/notes/{last}")):
            before, times = _used(daemon), []
            began = time.perf_counter()
            plan = door.call("purge", path=path)
            times.append(time.perf_counter() - began)
            door.call("purge", path=path, agreed=plan["agreed"])
            times.append(time.perf_counter() - began)
            while not door.call("wipe")["wiped"]:
                time.sleep(0.05)
            times.append(time.perf_counter() - began)
            steps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
            rows.append((what, plan["count"], *steps, before / MB, _used(daemon) / MB))
    began = time.perf_counter()
    _program(daemon, "--operator", "purge", "--verify", "a string that is nowhere")
    rows.append(("look for a string (--verify)", None, None, None, time.perf_counter() - began, None, None))
    columns = ("what", "notes", "plan s", "purge s", "file anew s", "MB before", "MB after")
    return Table("forgetting for good", columns, rows)


def _used(daemon: Daemon) -> int:
    return sum(each.stat().st_size for each in daemon.data.glob("avm.db*") if each.is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_past", "300 notes, 2 rounds, 30 edits")
    parser.add_argument("--notes", type=positive, metavar="N", help="100000")
    parser.add_argument("--edits", type=positive, metavar="N", help="500")
    return run_script("the past", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
