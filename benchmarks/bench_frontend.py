"""The read path of a mount, with and without kernel caches, beside a local disk, tmpfs and a minimal C filesystem.

    python -m benchmarks.bench_frontend [--quick] [--ops A,B] [--variants A,B] [--clients 1,4] [--rounds N]
                                        [--disturbed] [--trees] [--json FILE]

One daemon, three mounts of one store: `strict` (nothing cached), `cached` (the default) and one for another agent.
Operations: stat of a path; open+read+close of 1 KiB; ls, which is opendir+readdir+lstat of 1,000 names. `--disturbed`
repeats them while the other agent creates, renames and deletes 10 and 100 names a second, elsewhere and in the very
directory, and while views are read. `--trees` runs `grep -r` and `git status` over 10,000 notes. The baseline is
minifs, one C thread on libfuse3 without kernel caching; a ratio above 1 is faster. "server us" is the
processor time that the serving process used for an operation, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.clients import Client, Command, reply_of, run_together, started_clients
from benchmarks.figures import (
    BenchmarkError,
    Figure,
    Round,
    machine,
    names_among,
    over_rounds,
    positive_numbers,
    print_header,
    print_table,
    rotated,
    rounded,
    summarize,
    timed_loop,
    wait_until,
    write_json,
)
from benchmarks.harness import ROOT, end_child, scratch_directory, start_child, stop_on_terminate, tail
from benchmarks.minifs import mounted_minifs

NAMES = 1000
BODY = (b"A line of plain text, about as long as a note has; " * 20)[:1023] + b"\n"
OPERATIONS = ("stat", "read", "ls")
VARIANTS = ("local", "tmpfs", "minifs", "strict", "cached")
BASELINE = "minifs"
N = {"stat": 4000, "read": 2000, "ls": 10}
QUICK = {"stat": 1000, "read": 500, "ls": 3}
LIMIT_S = 20.0
PREPARE_S = 300.0
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED, <linux/posix-timers.h>: with a process id, that process' own clock
NOTES, FOLDERS = 10_000, 100

# ---- what the clients do ----


def commands() -> Mapping[str, Command]:
    return {
        "prepare": prepare, "warm": warm, "measure": measure, "churn": churn, "read_views": read_views,
        "notes": notes, "timed": timed,
    }  # fmt: skip


def prepare(base: str) -> None:
    """BASE/memory/names with NAMES files, BASE/memory/elsewhere for others to work in."""
    memory = Path(base, "memory")
    memory.mkdir(exist_ok=True)
    (memory / "names").mkdir()
    (memory / "elsewhere").mkdir()
    for i in range(NAMES):
        (memory / f"names/n{i:04}").write_bytes(BODY)


def measure(operation: str, base: str, n: int, seed: str, start_ns: int, limit_s: float) -> list[object]:
    """Do one operation `n` times from `start_ns` on."""
    names = f"{base}/memory/names"
    paths = [f"{names}/n{i:04}" for i in range(NAMES)]
    random.Random(seed).shuffle(paths)
    call: Callable[[str], object] = {"stat": os.stat, "read": _read, "ls": _ls}[operation]
    items = itertools.repeat(names) if operation == "ls" else itertools.cycle(paths)
    wait_until(start_ns)
    return reply_of(timed_loop(call, itertools.islice(items, n), limit_s))


def warm(operation: str, base: str) -> None:
    """Do it once for every name: what is measured is how it goes from the second time on."""
    names = f"{base}/memory/names"
    _ls(names)
    if operation == "read":
        for i in range(NAMES):
            _read(f"{names}/n{i:04}")


def _read(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        body = os.read(handle, 4096)
    finally:
        os.close(handle)
    if len(body) != len(BODY):
        raise ValueError(f"{path}: {len(body)} bytes read, {len(BODY)} written")


def _ls(directory: str) -> None:
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another agent's, gone meanwhile
                os.lstat(entry.path)
            count += 1
    if count < NAMES:
        raise ValueError(f"{directory}: {count} names listed, {NAMES} made")


def churn(directory: str, rate: float, seconds: float) -> int:
    """Create, rename and delete `rate` names a second in turn; how many were done."""
    started, done = time.monotonic(), 0
    while (now := time.monotonic()) - started < seconds:
        due = started + done / rate
        if now < due:
            time.sleep(due - now)
        number = done // 3
        old, new = f"{directory}/churn{number}", f"{directory}/moved{number}"
        if done % 3 == 0:
            os.close(os.open(old, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644))
        elif done % 3 == 1:
            os.rename(old, new)
        else:
            os.unlink(new)
        done += 1
    for left in (f"{directory}/churn{done // 3}", f"{directory}/moved{done // 3}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)
    return done


def read_views(view: str, seconds: float) -> list[float]:
    """Read a view over and over, one after the other; milliseconds of each."""
    started, took = time.monotonic(), []
    while (before := time.monotonic()) - started < seconds:
        handle = os.open(view, os.O_RDONLY)
        while os.read(handle, 131072):
            pass
        os.close(handle)
        took.append((time.monotonic() - before) * 1e3)
    return took


def notes(base: str) -> None:
    """A git repository with NOTES notes in FOLDERS folders below BASE/memory/notes, all committed."""
    top = Path(base, "memory/notes")
    for folder in range(FOLDERS):
        (top / f"d{folder:03}").mkdir(parents=True)
    for i in range(NOTES):
        (top / f"d{i % FOLDERS:03}/n{i:05}.md").write_bytes(b"# Note %d\n\n" % i + BODY)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "gc.auto=0", *words],
            cwd=top, check=True, timeout=PREPARE_S, capture_output=True,
        )  # fmt: skip


def timed(words: Sequence[str], cwd: str) -> float:
    """Seconds that a program takes."""
    before = time.monotonic()
    done = subprocess.run(words, cwd=cwd, check=False, timeout=LIMIT_S * 5, stdout=subprocess.DEVNULL)
    if done.returncode > 1:  # 1: grep has found nothing
        raise ValueError(f"{words[0]} ended with {done.returncode}")
    return time.monotonic() - before


# ---- the daemon ----


@dataclass(frozen=True)
class Mounted:
    """Where something is mounted, and the process that serves it."""

    path: Path
    server: int

    def busy_us(self) -> float:
        """Processor time that the server has used, in all threads: a load of the machine does not change it much."""
        return time.clock_gettime(~self.server << 3 | _PROCESS_CLOCK) * 1e6


def server_of(path: Path) -> int:
    """The process that was started with a mountpoint as its last argument."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")[-1] == os.fsencode(path):
                return int(folder.name)
    raise BenchmarkError(f"nothing serves {path}")


@contextlib.contextmanager
def three_mounts(under: Path) -> Iterator[dict[str, Mounted]]:
    """A daemon with an empty store and the mounts `strict`, `cached` and `other`; stopped at the end."""
    with scratch_directory(under) as home:
        log = home / "daemon.log"
        folders = {f"AVM_{name.upper()}_DIR": home / name for name in ("config", "data", "runtime")}
        mountpoints = {name: home / name for name in ("strict", "cached", "other")}
        for folder in (*folders.values(), *mountpoints.values()):
            folder.mkdir(mode=0o700)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
        environment |= {name: str(folder) for name, folder in folders.items()}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [ROOT, ROOT / "daemon", ROOT / "config"]))
        entries = [
            {"mountpoint": str(path), "agent_id": name, "coherence": "strict" if name == "strict" else "close-to-open"}
            for name, path in mountpoints.items()
        ]
        config, settings = folders["AVM_CONFIG_DIR"], {"embedding": {"enabled": False}}
        (config / "mounts.yaml").write_text(json.dumps({"mounts": entries}))  # JSON is YAML
        (config / "config.yaml").write_text(json.dumps(settings))
        child = start_child([sys.executable, "-m", "avmfs_daemon", "start"], log, environment)
        try:
            give_up = time.monotonic() + 60
            while not (found := _ready(environment)):
                if child.poll() is not None or time.monotonic() > give_up:
                    raise BenchmarkError(f"the mounts are not ready:{tail(log)}")
            yield {name: Mounted(mountpoints[name], found[name]) for name in mountpoints}
        finally:
            with contextlib.suppress(subprocess.SubprocessError):
                _daemon(environment, "stop")
            end_child(child, patience_s=10)


def _ready(environment: Mapping[str, str]) -> dict[str, int]:
    """The children by agent, once all mounts are ready."""
    time.sleep(0.1)
    with contextlib.suppress(ValueError, subprocess.TimeoutExpired):
        mounts = json.loads(_daemon(environment, "status", "--json"))["mounts"]
        if [mount["state"] for mount in mounts] == ["ready"] * 3:
            return {mount["agent_id"]: mount["pid"] for mount in mounts}
    return {}


def _daemon(environment: Mapping[str, str], *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "avmfs_daemon", *words], env=dict(environment), cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=15, check=False,
    ).stdout  # fmt: skip


# ---- the runs ----

Cell = tuple[str, str, int, str]
"""(what else goes on, operation, clients, variant)"""


class Run:
    """One run: bases by variant, clients by variant, rounds by cell."""

    def __init__(
        self, bases: Mapping[str, Path], served: Mapping[str, Mounted], other: Path | None, options: argparse.Namespace
    ) -> None:
        self.bases, self.served, self.other, self.options = bases, served, other, options
        self.busy: dict[Cell, list[float]] = {}
        self.n = QUICK if options.quick else N
        self.rounds: dict[Cell, dict[int, Round]] = {}
        self.views: dict[str, list[float]] = {}
        self.pools: dict[str, list[Client]] = {}
        self.background: Client | None = None

    def measure(self, number: int, what: str, operation: str, clients: int, variant: str) -> None:
        arguments = [
            {"operation": operation, "base": str(self.bases[variant]), "n": self.n[operation], "seed": f"{number}/{i}"}
            for i in range(clients)
        ]
        self._timed(number, (what, operation, clients, variant), LIMIT_S, arguments)

    def _timed(self, number: int, cell: Cell, limit_s: float, arguments: Sequence[Mapping[str, object]]) -> None:
        _, operation, clients, variant = cell
        self.pools[variant][0].call("warm", LIMIT_S, operation=operation, base=str(self.bases[variant]))
        server = self.served.get(variant)
        before = server.busy_us() if server else 0.0
        done = summarize(run_together(self.pools[variant][:clients], "measure", limit_s, arguments))
        if server:
            self.busy.setdefault(cell, []).append((server.busy_us() - before) / done.n)
        self.rounds.setdefault(cell, {})[number] = done

    def quiet(self, number: int) -> None:
        cells = list(itertools.product(self.options.clients, self.options.ops))
        for place, (clients, operation) in enumerate(cells):
            for variant in rotated(list(self.bases), number + place):
                self.measure(number, "", operation, clients, variant)

    def disturbed(self, number: int) -> None:
        """The cached mount while another agent works, the strict one while a view is read."""
        assert self.other is not None and self.background is not None
        seconds = 1.0 if self.options.quick else 3.0
        for rate, where in itertools.product((10, 100), ("elsewhere", "names")):
            for operation in self.options.ops:
                directory = f"{self.other}/memory/{where}"
                self.background.send("churn", {"directory": directory, "rate": rate, "seconds": seconds})
                time.sleep(0.2)
                beside = "beside" if where == "names" else where
                self.timed_for(number, f"{rate}/s {beside}", operation, "cached", seconds - 0.4)
                self.background.receive(time.monotonic() + LIMIT_S)
        for view in (":inbox?wait=1", "memory/:list?q=nothing"):
            path = f"{self.bases['strict']}/{view}"
            self.timed_for(number, "before a view", "stat", "strict", seconds / 2)
            self.background.send("read_views", {"view": path, "seconds": seconds})
            time.sleep(0.2)
            self.timed_for(number, view, "stat", "strict", seconds - 0.4)
            self.views.setdefault(view, []).extend(self.background.receive(time.monotonic() + LIMIT_S))

    def timed_for(self, number: int, what: str, operation: str, variant: str, seconds: float) -> None:
        """Like measure(), by one client for a span of time."""
        arguments = {"operation": operation, "base": str(self.bases[variant]), "n": 10**7, "seed": str(number)}
        self._timed(number, (what, operation, 1, variant), seconds, [arguments])

    def figure(self, cell: Cell, beside: str) -> Figure:
        _, operation, clients, _ = cell
        return over_rounds(self.rounds[cell], self.rounds.get(("", operation, clients, beside), {}))

    def report(self) -> None:
        columns = (
            "meanwhile", "clients", "operation", "variant", "N", "median us", "p99 us", "ops/s", "x minifs", "x local",
            "server us",
        )  # fmt: skip
        rows: list[Sequence[str]] = []
        for cell in sorted(self.rounds, key=lambda c: (c[0], c[2], OPERATIONS.index(c[1]), VARIANTS.index(c[3]))):
            what, operation, clients, variant = cell
            figure = self.figure(cell, BASELINE)
            rows.append((
                what or "-", str(clients), operation, variant, f"{figure.n:,}", rounded(figure.median_us),
                rounded(figure.p99_us), rounded(figure.per_second), rounded(figure.ratio),
                rounded(self.figure(cell, "local").ratio),
                rounded(statistics.median(self.busy[cell])) if cell in self.busy else "",
            ))  # fmt: skip
        print_table(columns, rows)
        for view, took in self.views.items():
            print(f"{view}: {len(took)} reads, median {sorted(took)[len(took) // 2]:.1f} ms")


def trees(run: Run) -> list[dict[str, object]]:
    """grep -r and git status over NOTES notes: cold-ish first, then the median of three more; seconds."""
    found: list[dict[str, object]] = []
    variants = [name for name in ("local", "cached") if name in run.bases]
    for variant in variants:
        run.pools[variant][0].call("notes", PREPARE_S, base=str(run.bases[variant]))
    for program in (["grep", "-r", "no such text", "."], ["git", "status", "--short"]):
        took: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(4):
            for variant in variants:
                cwd = f"{run.bases[variant]}/memory/notes"
                took[variant].append(run.pools[variant][0].call("timed", PREPARE_S, words=program, cwd=cwd))
        for variant, seconds in took.items():
            found.append({"program": " ".join(program), "variant": variant, "first_s": seconds[0],
                          "then_s": sorted(seconds[1:])[1]})  # fmt: skip
    print()
    print_table(
        ("10,000 notes", "variant", "first s", "then s"),
        [(str(f["program"]), str(f["variant"]), f"{f['first_s']:.2f}", f"{f['then_s']:.2f}") for f in found],
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    stop_on_terminate()
    rounds = options.rounds or (2 if options.quick else 3)
    try:
        with contextlib.ExitStack() as ending:
            local, other = options.local.resolve(), None
            bases: dict[str, Path] = {}
            served: dict[str, Mounted] = {}
            wanted = [name for name in VARIANTS if name in options.variants]
            if {"strict", "cached"} & set(wanted):
                mounts = ending.enter_context(three_mounts(local))
                other = mounts["other"].path
            for name in wanted:
                match name:
                    case "local":
                        bases[name] = ending.enter_context(scratch_directory(local))
                    case "tmpfs":
                        bases[name] = ending.enter_context(scratch_directory(Path("/dev/shm")))
                    case "minifs":
                        bases[name] = ending.enter_context(mounted_minifs())
                        served[name] = Mounted(bases[name], server_of(bases[name]))
                    case _:
                        bases[name], served[name] = mounts[name].path, mounts[name]
            facts = {**machine(), "rounds": f"{rounds}, interleaved; figures are medians of rounds"}
            print_header("avmfs front end benchmark", facts)
            sys.stdout.flush()
            run = Run(bases, served, other, options)
            for name in bases:
                run.pools[name] = ending.enter_context(
                    started_clients("benchmarks.bench_frontend", max(options.clients), os.environ)
                )
            prepared = [name for name in bases if name != "cached" or "strict" not in bases]  # one store for both
            for name in prepared:
                run.pools[name][0].call("prepare", PREPARE_S, base=str(bases[name]))
            (run.background,) = ending.enter_context(started_clients("benchmarks.bench_frontend", 1, os.environ))
            for number in range(rounds):
                run.quiet(number)
                if options.disturbed:
                    run.disturbed(number)
            run.report()
            tree_figures = trees(run) if options.trees else []
            if options.json:
                cells = [
                    {"meanwhile": c[0], "operation": c[1], "clients": c[2], "variant": c[3],
                     **asdict(run.figure(c, BASELINE))}
                    for c in run.rounds
                ]  # fmt: skip
                write_json(
                    options.json, {"benchmark": "frontend", "facts": facts, "results": cells, "trees": tree_figures}
                )
    except BenchmarkError as error:
        print(f"bench_frontend: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_frontend", description=(__doc__ or "").partition("\n")[0]
    )
    option = parser.add_argument
    option("--quick", action="store_true", help="a quarter of the operations, two rounds")
    option("--disturbed", action="store_true", help="also while another agent works, and while views are read")
    option("--trees", action="store_true", help="also grep -r and git status over 10,000 notes")
    option("--json", type=Path, metavar="FILE", help="write the figures there as well")
    option("--local", type=Path, metavar="DIR", default=Path("/var/tmp"), help="the disk (%(default)s)")
    option("--variants", type=names_among(VARIANTS), default=VARIANTS, metavar="A,B", help=",".join(VARIANTS))
    option("--ops", type=names_among(OPERATIONS), default=OPERATIONS, metavar="A,B", help=",".join(OPERATIONS))
    option("--clients", type=positive_numbers, default=(1, 4), metavar="N,N", help="client processes (1,4)")
    option("--rounds", type=int, metavar="N", help="3, or 2 with --quick")
    return parser


if __name__ == "__main__":
    sys.exit(main())
