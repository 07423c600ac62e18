"""The Python API in one process, beside bare SQLite, in one run.

    python -m benchmarks.bench_api [--quick] [--local DIR] [--json FILE]

What a program pays for one call: writing a note, remembering one, a batch, reading, listing a directory, statistics
(which are remembered until the next commit: so after one, too), a search by words. "avmfs" opens the store itself,
"avmfs daemon" asks a running daemon; neither has a model. Bare SQLite (bare_sqlite.py: WAL, synchronous=FULL) does the
least that the operation needs, without search, rights or versions of what is read. The column "published" has the
figures of the earlier AVM, on other hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from avmfs import AVM
from benchmarks.bare_sqlite import SqliteWriter
from benchmarks.clients import breaking_off
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import Round, summarize, timed_loop
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, options, positive, run_script

VARIANTS = ("SQLite", "avmfs", "avmfs daemon")
BATCH = 100
LISTED = 100
PUBLISHED = {"write": "4-8 ms", "batch of 100": "160 notes/s", "list": "0.6 ms", "stats": "1.4 ms"}
OPERATIONS = (
    "write",
    "overwrite",
    "remember",
    "batch of 100",
    "read",
    "list",
    "stats",
    "overwrite, then stats",
    "search",
)
LIMIT_S = 60.0
BODY = ("Silicon vendors look frothy; trim NVDA before earnings, and look again when the numbers are in. " * 6).encode()

Operation = Callable[[str], object]


def measure(run: Run) -> Findings:
    times = run.options.times or (10 if run.quick else 200)
    rounds = run.options.rounds or (1 if run.quick else 5)
    alone = run.ending.enter_context(scratch_directory(run.local))
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents("bench")))
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        each=f"{times} a round (batches: {max(1, times // 20)}), {len(BODY)} bytes; a list of {LISTED} names",
        rounds=f"{rounds}, interleaved; figures are medians of rounds",
    )
    failures: dict[str, str] = {}
    doing: dict[str, Mapping[str, Operation]] = {}
    with breaking_off("SQLite", failures):
        doing["SQLite"] = _sqlite(alone / "bare.db", run.ending)
    for variant, environ in (("avmfs", _alone(alone)), ("avmfs daemon", daemon.environment)):
        with breaking_off(variant, failures):
            avm = run.ending.enter_context(AVM(agent="bench", environ=environ, embeddings=False))
            doing[variant] = _avmfs(avm)

    def one(operation: str, variant: str, loop: int) -> Round | None:
        do = doing[variant].get(operation)
        if do is None:
            return None
        count = max(1, times // 20) if operation.startswith("batch") else times
        return summarize([timed_loop(do, (f"{loop}-{number}" for number in range(count)), LIMIT_S)])

    outcome = take_turns(rounds, OPERATIONS, VARIANTS, failures, one)
    rows: list[Sequence[Value]] = []
    for operation in OPERATIONS:
        rows += [()] if rows else []
        for variant in VARIANTS:
            if (figure := outcome.figure(operation, variant)) is not None:
                notes = BATCH if operation.startswith("batch") else 1
                rows.append(
                    (
                        operation,
                        variant,
                        figure.n,
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.p99_us / 1e3,
                        figure.per_second * notes,
                        outcome.ratio_median(operation, variant, "SQLite"),
                        PUBLISHED.get(operation, "-") if variant == "avmfs" else "",
                    )
                )
    columns = ("operation", "variant", "N", "median ms", "of rounds", "p99 ms", "per second", "x SQLite", "published")
    return Findings([Table("one call of the Python API", columns, rows)], failures=outcome.failures)


def _alone(folder: Path) -> Mapping[str, str]:
    """The environment of a store that no daemon holds."""
    (folder / "config.yaml").write_text("embedding: {enabled: false}\n")
    return {f"AVM_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}


def _avmfs(avm: AVM) -> Mapping[str, Operation]:
    memory = avm.agent_memory()
    for number in range(LISTED):
        avm.write(f"/private/listed/{number}.md", BODY)
    avm.write("/private/one.md", BODY)
    text = BODY.decode()
    memory.recall("frothy"), memory.stats()
    return {
        "write": lambda name: avm.write(f"/private/written/{name}.md", BODY),
        "overwrite": lambda name: avm.write("/private/over.md", BODY + name.encode()),
        "remember": lambda name: memory.remember(text, title=f"note {name}"),
        "batch of 100": lambda name: memory.batch_remember(
            {"content": text, "title": f"batch {name} {number}"} for number in range(BATCH)
        ),
        "read": lambda name: avm.read_bytes("/private/one.md"),
        "list": lambda name: avm.list("/private/listed"),
        "stats": lambda name: memory.stats(),
        "overwrite, then stats": lambda name: (avm.write("/private/over.md", BODY + name.encode()), memory.stats()),
        "search": lambda name: avm.search("trim NVDA", under="/private/listed"),
    }


def _sqlite(database: Path, ending: ExitStack) -> Mapping[str, Operation]:
    import apsw

    writer = SqliteWriter(database)
    ending.callback(writer.close)
    for number in range(LISTED):
        writer.create(f"/listed/{number}.md", BODY)
    writer.create("/over.md", BODY)
    reader = apsw.Connection(str(database))
    ending.callback(reader.close)

    def ask(statement: str) -> Operation:
        def asked(name: str) -> Any:
            return reader.execute(statement).fetchall()

        return asked

    def batch(name: str) -> None:
        for number in range(BATCH):
            writer.create(f"/batch/{name}/{number}.md", BODY)

    count = ask("select count(*), sum(size), sum(version) from node")

    def count_after(name: str) -> None:
        writer.update("/over.md", BODY + name.encode())
        count(name)

    newest = "select body from version join node on node.id = version.node and node.version = version.number"
    return {
        "write": lambda name: writer.create(f"/written/{name}.md", BODY),
        "overwrite": lambda name: writer.update("/over.md", BODY + name.encode()),
        "remember": lambda name: writer.create(f"/remembered/{name}.md", BODY),
        "batch of 100": batch,
        "read": ask(f"{newest} where path = '/listed/1.md'"),
        "list": ask("select path, size, changed_ns from node where path >= '/listed/' and path < '/listed0'"),
        "stats": count,
        "overwrite, then stats": count_after,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_api", "one round of ten calls")
    parser.add_argument("--times", type=positive, metavar="N", help="200 a round, or 10 with --quick")
    return run_script("the Python API", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
