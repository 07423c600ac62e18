"""Tokens an agent is spared by recall, in eight kinds of memory, told in two ways, and what it costs in facts.

    python -m benchmarks.bench_agent_efficiency [--sizes 50,500] [--budgets 100,500,1000,2000,4000] [--json FILE]

Each kind is a store of made-up notes of its shape (an error log's entries, decisions, tickets, ...), each with a fact
of its own that is asked for by what surrounds it. *Against everything*: the tokens of a recall beside those of all
notes of the store, the customer's documents' way, which any answer to a large store makes large. *Against a careful
reader*: beside the tokens that somebody spends who lists the directory and opens just the one note that has it.
Negative: the recall cost more than that. *Found*: the share of questions whose fact stands in what was handed over,
without which a saving is none.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from avmfs import AVM
from avmfs.evaluation.agents import own_store
from avmfs.text.tokens import TokenCounter
from benchmarks.harness import scratch_directory
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, options, positive, positive_numbers, run_script

PUBLISHED = {"error log": "98.5 %", "long-term memory": "98.2 %", "all": "93.6 %"}
PUBLISHED_COVERAGE = {100: "6 %", 500: "30 %", 1000: "56 %", 2000: "84 %", 4000: "100 %"}

# What notes are about: three of the names, and a place.
_NAMES = "amber cedar dune ember fjord garnet heron iris jade kelp lotus maple nectar onyx pearl quartz reed slate fern"
_PLACES = "Aarhus Cork Delft Evora Faro Ghent Hamar Imola Jena Kiel Lund Malmo Narvik Olomouc Pula Riga Split Turku"


@dataclass(frozen=True)
class Note:
    name: str
    text: str
    question: str
    fact: str


Maker = Callable[[random.Random, int], Note]


def _made(shape: str, question: str, fact: str) -> Maker:
    """A note of a shape: {n} its number, {name} and {place} what it is about, {fact} what is asked for."""

    def make(draw: random.Random, number: int) -> Note:
        names, places = _NAMES.split(), _PLACES.split()
        name = "-".join(names[number // each % 19] for each in (1, 19, 361))
        words = {"n": number, "name": name, "place": draw.choice(places), "x": draw.randrange(10**4, 10**5)}
        said = fact.format(**words)
        return Note(f"{number:04}-{name}.md", shape.format(**words, fact=said), question.format(**words), said)

    return make


KINDS: dict[str, Maker] = {
    "error log": _made(
        "2026-03-{n} ERROR service {name} in {place}: request timed out after 30 s.\n"
        + "  at handler.dispatch (worker.py:88)\n  at pool.run (pool.py:141)\n" * 6
        + "Cause found: {fact}.",
        "What was the cause of the error of service {name}?",
        "lock held by job {x}",
    ),
    "long-term memory": _made(
        "The user told me about {name}, met in {place}: works on instruments, likes long walks and strong tea, "
        "asks for "
        "short answers with sources, and reads them in the evening. Favourite figure, often repeated: {fact}.",
        "What is the favourite figure of {name}?",
        "number {x}",
    ),
    "decisions": _made(
        "Decision on module {name}: we keep it in one process, since nobody can run more of them. Considered: a "
        "queue, a "
        "second host in {place}, a rewrite. Consequences: releases stay slow, and so does the test suite. Signed "
        "as {fact}.",
        "As what was the decision on module {name} signed?",
        "ADR-{x}",
    ),
    "tickets": _made(
        "Ticket of customer {name} from {place}: the label printer stops in the middle of a roll; cleaned twice, "
        "driver "
        "renewed, cable changed. The customer was friendly and waits for a call. Agreed: {fact}.",
        "What was agreed with customer {name}?",
        "credit note {x}",
    ),
    "meetings": _made(
        "Meeting about project {name} in {place}. Present: six. We went through the list of open points, moved two"
        " to the "
        "next month and dropped one; the demo went well, the plan for the summer is not settled. Action: {fact}.",
        "What is the action from the meeting about project {name}?",
        "book slot {x}",
    ),
    "market data": _made(
        "Session of {place} for symbol {name}: opened weak, rose to noon on rumours of a merger, fell back in the "
        "last hour; "
        "volume above the mean of twenty days, spread narrow, no news after the close. Closing auction: {fact}.",
        "What was the closing auction of symbol {name}?",
        "{x} lots",
    ),
    "code review": _made(
        "Review of branch {name}: naming is good, the loop over pages allocates too much, tests cover the error "
        "path but "
        "not the empty input; please split the commit in two. Reviewed by the team in {place}. Blocking: {fact}.",
        "What is blocking branch {name} in review?",
        "issue #{x}",
    ),
    "configuration": _made(
        "host {name} in {place}\n"
        "log.level = info\nlog.rotate = daily\ncache.size = 512\ncache.ttl = 60\n" * 3 + "listen.{fact}",
        "What does the configuration of host {name} say on listen?",
        "port = {x}",
    ),
}


@contextmanager
def stocked(run: Run, notes: Sequence[Note]) -> Iterator[AVM]:
    with scratch_directory(run.local) as folder, own_store(folder, "reader") as avm:
        memory = avm.agent_memory()
        for note in notes:
            memory.remember(note.text, path=f"/memory/shared/notes/{note.name}")
        avm.search("warm", limit=1)  # vectors of what was just written
        yield avm


def measure(run: Run) -> Findings:
    sizes: Sequence[int] = [30] if run.quick else run.options.sizes
    budgets: Sequence[int] = run.options.budgets
    asked: int = 3 if run.quick else run.options.questions
    kinds = dict(list(KINDS.items())[:2]) if run.quick else KINDS
    run.begin(stores=f"{', '.join(map(str, sizes))} notes each", questions=f"{asked} of each kind and size")
    count = TokenCounter().count
    savings: list[list[Value]] = []
    coverage: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for size in sizes:
        for kind, make in kinds.items():
            draw = random.Random(f"{kind} {size}")
            notes = [make(draw, number) for number in range(size)]
            everything = sum(count(note.text) for note in notes)
            listing = count("\n".join(note.name for note in notes))
            against_all, against_careful, found = [], [], []
            with stocked(run, notes) as avm:
                for note in draw.sample(notes, min(asked, size)):
                    careful = listing + count(note.text)
                    for budget in budgets:
                        text = avm.agent_memory().recall(note.question, max_tokens=budget)
                        spent = count(text)
                        coverage.setdefault((size, budget), []).append((spent, note.fact in text))
                        if budget == run.options.budget:
                            against_all.append(1 - spent / everything)
                            against_careful.append(1 - spent / careful)
                            found.append(note.fact in text)
            row = [_percent(statistics.mean(values)) for values in (against_all, against_careful, found)]
            savings.append([kind, size, everything, *row, PUBLISHED.get(kind)])
    by_budget: list[list[Value]] = []
    for (size, budget), each in sorted(coverage.items()):
        given, held = statistics.mean(spent for spent, _ in each), statistics.mean(held for _, held in each)
        by_budget.append([size, budget, given, _percent(held), PUBLISHED_COVERAGE.get(budget)])
    columns = ["memory", "notes", "tokens of all", "saved against all", "saved against a careful reader", "found"]
    tables = [
        Table(f"tokens saved by a recall of {run.options.budget}", [*columns, "published"], savings),
        Table("by budget", ["notes", "budget", "tokens given", "found", "published coverage"], by_budget),
    ]
    return Findings(tables)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_agent_efficiency", "two kinds of 30 notes, three questions")
    parser.add_argument("--sizes", type=positive_numbers, default=[50, 500], metavar="N,…", help="notes of a store")
    parser.add_argument("--budgets", type=positive_numbers, default=[100, 500, 1000, 2000, 4000], metavar="N,…")
    parser.add_argument("--budget", type=positive, default=500, help="that savings are told of (%(default)s)")
    parser.add_argument("--questions", type=positive, default=20, metavar="N")
    return run_script("Tokens saved by recall", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
