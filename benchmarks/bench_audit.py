"""What the audit costs: chaining every row beside the writes, counting refusals, verifying.

    python -m benchmarks.bench_audit [--quick] [--local DIR] [--json FILE]

In one process and one thread, on the store's own commands in batches as the writer commits them, so that nothing hides
on another core: "chained" computes, stores and anchors the chain over what each batch has written, and its time counts
as writing. A daemon does that in another process. "refused" is a write that the rules refuse, counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from avmfs.access import Policy, Principal
from avmfs.agents import anchors, auditing
from avmfs.agents.auditing import Chainer
from avmfs.errors import Denied
from avmfs.store.client.client import Submitter
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.store import Store
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from benchmarks.figures import Round, summarize, timed_loop
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, options, run_script

OFF, CHAINED, REFUSED = "write", "write, chained", "write, refused"
VARIANTS = (OFF, CHAINED, REFUSED)
BATCH = 64
WRITER = Principal("bench", route="mount")


class _Applying(Submitter):
    """Commands as the writer applies them, in this process."""

    def __init__(self, path: Path) -> None:
        database.prepare(path)
        rules = Policy.from_words([("/memory/law/*", "ro", None)], "rw")
        self.applier = Applier(path, rules, IndexRules(), orphans=True, clock=time.time_ns)
        database.run(self.applier.db, "pragma synchronous = normal")
        self.applier.alone(OPERATOR, "settle", {})

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        return self.applier.alone(who, command, arguments)

    def close(self) -> None:
        self.applier.close()


def measure(run: Run) -> Findings:
    rounds = run.options.rounds or (1 if run.quick else 15)
    batches = 2 if run.quick else 40
    folder = run.ending.enter_context(scratch_directory(run.local))
    applying = _Applying(folder / "avm.db")
    store = Store(folder / "avm.db", applying)
    run.ending.callback(store.close)
    chainer = Chainer(store, folder / "anchors", 0.001, time.time_ns)
    run.begin(
        disk=filesystem_of(run.local),
        rounds=f"{rounds}, interleaved; a round is {batches} batches of {BATCH} commands",
    )

    def batch(number: int, directory: bytes) -> None:
        applier = applying.applier
        applier.begin()
        for file in range(BATCH):
            try:
                applier.apply(
                    WRITER, "write_path", {"path": [b"memory", directory, b"n%d" % file], "data": b"note %d" % number}
                )
            except Denied:
                assert directory == b"law"
        applier.commit()

    def chained(number: int) -> None:
        batch(number, b"free")
        chainer.step()

    operations: dict[str, Callable[[int], None]] = {
        OFF: lambda number: batch(number, b"free"),
        CHAINED: chained,
        REFUSED: lambda number: batch(number, b"law"),
    }
    for number in range(3):
        for name in VARIANTS:
            operations[name](number)

    def one(cell: str, name: str, loop: int) -> Round:
        chainer.step()  # what the others have left
        return summarize([timed_loop(operations[name], range(loop * batches, (loop + 1) * batches), 60.0)])

    outcome = take_turns(rounds, ["batch"], VARIANTS, {}, one)
    chainer.step()
    began = time.perf_counter()
    found = auditing.verify(store, OPERATOR, anchors.read(folder / "anchors"))
    took, verdict = time.perf_counter() - began, found.verdict
    assert found.ok, found
    verified = Table(
        "avm audit verify",
        ("rows", "anchors", "seconds", "rows a second"),
        [(verdict.rows, verdict.anchors, took, verdict.rows / took)],
    )
    target = measured(
        "writes with every row chained in the same thread, beside writes alone",
        outcome.ratios("batch", CHAINED, OFF),
        ">=",
        0.8,
    )
    return Findings([_table(outcome), verified], [target], failures=outcome.failures)


def _table(outcome: Outcome[str]) -> Table:
    rows: list[Sequence[Value]] = []
    for name in VARIANTS:
        figure, ratio = outcome.figure("batch", name), outcome.ratio("batch", name, OFF)
        if figure is not None:
            rows.append(
                (
                    name,
                    len(outcome.of("batch", name)),
                    figure.median_us / BATCH,
                    figure.rounds,
                    figure.p99_us / BATCH,
                    ratio.median if ratio is not None else None,
                )
            )
    return Table(
        "a command, in batches",
        ("what", "rounds", "median us", "of rounds", "p99 us", "commands a second, of write"),
        rows,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_script(
        "What the audit costs", options(__doc__, "bench_audit", "one round of two batches"), measure, arguments
    )


if __name__ == "__main__":
    sys.exit(main())
