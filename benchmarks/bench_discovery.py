"""Who knows about it: the librarian, digests, and asking every agent's memory in turn, with 2 to 1,000 agents.

    python -m benchmarks.bench_discovery [--agents 2,16,128,1000] [--questions N] [--quick] [--json FILE]

Every agent has the same number of notes, half of them private, and every topic is known to five agents, however many
agents there are: what grows is the number of those who do not know. The same store is copied for every privacy mode of
all agents; a question goes to all variants in turn. "Each in turn" searches, by words, as each agent one after the
other: what somebody could do who were all of them. A hop is a step in one memory, four to a search, as the customer's
documents count: a definition, which no run could miss. Digests are made once and asked in the same process.

Then the digests' mistakes, over probes of present and of absent topics, and the rounds in which simulated hosts come to
know all digests when each asks one other a round: the product's exchange, between dictionaries.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from avmfs.access import Principal
from avmfs.agents.bloom import digest, holds
from avmfs.memory import Memory
from avmfs.services import Services
from avmfs.views.who import who_knows
from benchmarks.discovery_ops import Shelf, converge, opened, populate, set_modes
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, positive, positive_numbers, run_script

EXPERTS, NOTES = 5, 4
SEARCH_HOPS = 4
MODES = ("none", "existence", "owner", "full")
IN_TURN, DIGESTS = "each in turn", "by digests"
FULL, OWNER, OPERATOR = "librarian, full", "librarian, owner", "librarian, as operator"
PUBLISHED = {
    IN_TURN: "3.57 / 11.5 (5 agents)",
    "librarian, full": "1.79 / -",
    "librarian, owner": "2.82 / -",
    DIGESTS: "0.5 / -",
}

Ask = Callable[[str], object]


def measure(run: Run) -> Findings:
    sizes: Sequence[int] = run.options.agents
    questions: int = run.options.questions or (20 if run.quick else 200)
    folder = run.ending.enter_context(scratch_directory(run.local))
    run.begin(
        store=f"on {filesystem_of(run.local)}, read in this process; no vectors",
        agents=f"{NOTES} notes each, half of them private; a topic is known to {EXPERTS} agents",
        questions=f"{questions}, one topic each; of each in turn so many that it takes some seconds",
        order="every question goes to all variants in turn",
    )
    rows: list[Sequence[Value]] = []
    medians: dict[tuple[int, str], float] = {}
    times_of: dict[tuple[int, str], Sequence[float]] = {}
    for agents in sizes:
        rows += [()] if rows else []
        found = _latencies(folder / f"{agents}", agents, questions)
        times_of |= {(agents, variant): times for variant, times, _ in found}
        medians |= {(agents, variant): statistics.median(times) for variant, times, _ in found}
        for variant, times, hops in found:
            median = medians[agents, variant]
            over = [
                100 * (median / medians[agents, base] - 1) if variant == OWNER else None for base in (OPERATOR, FULL)
            ]
            rows.append(
                (
                    agents,
                    variant,
                    len(times),
                    hops,
                    median,
                    percentile(sorted(times), 0.99),
                    medians[agents, IN_TURN] / median,
                    *over,
                    PUBLISHED.get(variant, ""),
                )
            )
    probes, worst, missed = _mistakes(2000 if run.quick else 10_000)
    hosts, rounds, most = _rounds(20 if run.quick else 100, 3 if run.quick else 10)
    few, many = min(sizes), max(sizes)
    grown = _quotients(times_of[many, OWNER], times_of[few, OWNER])
    overheads = [_quotients(times_of[size, OWNER], times_of[size, OPERATOR]) for size in sizes]
    overhead = [100 * (one - 1) for one in max(overheads, key=statistics.median)]
    targets = [
        measured(f"{OWNER}: p50 ms with {many} agents", times_of[many, OWNER], "<=", 1.67),
        measured(f"{OWNER}: p50 with {many} agents / with {few}", grown, "<=", 1.5),
        measured("privacy overhead at most, % of asking as operator", overhead, "<=", 57.8),
        Target("false positives of digests, %", worst, "<=", 15),
        Target("false negatives of digests", missed, "<=", 0),
    ]
    columns = (
        "agents",
        "variant",
        "N",
        "hops",
        "p50 ms",
        "p99 ms",
        f"x {IN_TURN}",
        "overhead % of operator",
        "overhead % of full",
        "published p50 / p99 ms",
    )
    tables = [
        Table("who knows about a topic", columns, rows),
        Table("mistakes of digests", ("topics", "bytes", "probes", "false positives %", "false negatives"), probes),
        Table(
            "rounds until all hosts know all digests",
            ("hosts", "runs", "median", "most"),
            [(hosts, rounds[0], rounds[1], most)],
        ),
    ]
    return Findings(tables, targets)


def _quotients(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of the medians of each part, of ten parts in the order of asking."""
    parts = min(10, len(some))
    return [statistics.median(some[at::parts]) / statistics.median(others[at::parts]) for at in range(parts)]


def _latencies(folder: Path, agents: int, questions: int) -> list[tuple[str, list[float], int]]:
    """(variant, milliseconds of each question, hops), the baseline first."""
    folder.mkdir()
    base = folder / "base.db"
    with opened(base) as around:
        topics = populate(around, agents, min(EXPERTS, agents), NOTES)
    chance = random.Random(agents)
    asked = [chance.choice(topics) for _ in range(questions)]
    found: dict[str, list[float]] = {}
    hops = {IN_TURN: SEARCH_HOPS * agents}
    with _copies(folder, base, agents) as stores:
        variants: dict[str, Ask] = {IN_TURN: _each_in_turn(stores["none"], agents)}
        for mode in ("full", "owner", "existence", "none"):
            variants[f"librarian, {mode}"] = _librarian(stores[mode])
        variants[OPERATOR] = _librarian(stores["none"], operator=True)
        variants[DIGESTS] = _by_digests(stores["owner"])
        few = max(2, min(questions, 2000 // (10 * agents)))  # of each in turn
        for ask in variants.values():
            ask(asked[0])
        for number, question in enumerate(asked):
            for variant, ask in variants.items():
                if variant == IN_TURN and number >= few:
                    continue
                began = time.perf_counter()
                ask(question)
                found.setdefault(variant, []).append((time.perf_counter() - began) * 1e3)
        _check(stores, topics, agents)
    return [(variant, times, hops.get(variant, 1)) for variant, times in found.items()]


@contextlib.contextmanager
def _copies(folder: Path, base: Path, agents: int) -> Iterator[dict[str, Services]]:
    """The store once for each mode that all agents have."""
    with contextlib.ExitStack() as stack:
        with contextlib.closing(apsw.Connection(str(base))) as db:
            db.execute("pragma wal_checkpoint(truncate)").fetchall()
        found = {}
        for mode in MODES:
            path = folder / f"{mode}.db"
            shutil.copy(base, path)
            found[mode] = stack.enter_context(opened(path))
            set_modes(found[mode], agents, mode)
        yield found


def _each_in_turn(around: Services, agents: int) -> Ask:
    memories = [Memory(around, Principal(f"agent{number:04d}")) for number in range(agents)]

    def ask(question: str) -> object:
        return [memory.search(question, limit=5, mode="lexical") for memory in memories]

    return ask


def _librarian(around: Services, operator: bool = False) -> Ask:
    memory = Memory(around, Principal("operator" if operator else "agent0000", operator))
    return lambda question: who_knows(memory, question, limit=100)


def _by_digests(around: Services) -> Ask:
    memory = Memory(around, Principal("agent0000"))
    return lambda question: who_knows(memory, question, limit=100, via="gossip")


def _check(stores: dict[str, Services], topics: Sequence[str], agents: int) -> None:
    """The answers are what the modes say: else there is nothing to measure."""
    for topic in topics[:10]:
        answers = {mode: who_knows(Memory(stores[mode], Principal("agent0000")), topic, limit=100) for mode in MODES}
        named = {mode: {line.agent for line in known.lines} - {None} for mode, known in answers.items()}
        if not named["none"] == named["existence"] <= named["owner"] == named["full"] or not named["full"]:
            raise BenchmarkError(f"{agents} agents, {topic}: the modes name {named}")
        if len(named["full"]) < min(EXPERTS, agents) - 1:
            raise BenchmarkError(f"{agents} agents, {topic}: of {EXPERTS} only {named['full']} are named")
        perhaps = who_knows(Memory(stores["owner"], Principal("agent0000")), topic, limit=1000, via="gossip")
        if not named["owner"] - {"agent0000"} <= {line.agent for line in perhaps.lines}:
            raise BenchmarkError(f"{agents} agents, {topic}: the digests miss somebody")


def _mistakes(probes: int) -> tuple[list[Sequence[Value]], float, int]:
    """A row for each size, the most false positives in per cent, and all false negatives."""
    rows: list[Sequence[Value]] = []
    missed_in_all, worst = 0, 0.0
    for count in (10, 204, 258, 1000, 5000):
        topics = [f"known topic {number}" for number in range(count)]
        made = digest(topics)
        missed = sum(not holds(made, topics[number % count]) for number in range(probes))
        mistaken = 100 * sum(holds(made, f"unknown topic {number}") for number in range(probes)) / probes
        rows.append((count, len(made), probes, mistaken, missed))
        missed_in_all, worst = missed_in_all + missed, max(worst, mistaken)
    return rows, worst, missed_in_all


def _rounds(hosts: int, runs: int) -> tuple[int, tuple[int, float], int]:
    found = []
    for seed in range(runs):
        shelves = [Shelf(f"{number:016x}", {"agent": digest([f"topic {number}"])}) for number in range(hosts)]
        found.append(converge(shelves, random.Random(seed)))
    return hosts, (runs, statistics.median(found)), max(found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_discovery", "20 questions, 2,000 probes, 20 hosts")
    parser.add_argument(
        "--agents", type=positive_numbers, default=[2, 16, 128, 1000], metavar="N,N", help="(2,16,128,1000)"
    )
    parser.add_argument("--questions", type=positive, metavar="N", help="200, or 20 with --quick")
    return run_script("who knows about it", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
