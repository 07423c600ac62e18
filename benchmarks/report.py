"""docs/BENCHMARKS.md from the JSON of benchmark runs: every figure under the command that made it.

    python -m benchmarks.report [PLACE...]
    python -m benchmarks.report --against PLACE [PLACE...]

PLACE is a result, or a directory of results: those of benchmarks/results unless given. ./run docs writes their page,
with the pictures that benchmarks.plots has drawn in docs/plots, and the README's table. --against tells what differs
from earlier results by more than a tenth, figure by figure and verdict by verdict; from two machines, or under two
loads, only ratios mean something.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.results import VERDICTS, Report, Value, comparison, markdown, read_reports, shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
ORDER = ("mount", "programs", "beside", "contention", "coherence", "files", "recall", "peers", "idle", "start", "mail")
INTRODUCTION = """\
# Benchmarks

Written by `./run docs` from [benchmarks/results](../benchmarks/results), which the commands named
below have written; not by hand. What each script measures, and what its baselines are:
[benchmarks/README.md](../benchmarks/README.md). `python -m benchmarks.report --against benchmarks/results NEW.json`
compares a run of yours.

Each section names its commit, date, machine, load and rounds. The machine had other work to do meanwhile, so believe
ratios, which hold within one run, where the variants take turns, rather than times. "Of rounds" is how far the medians
of the rounds strayed, as shares of the median of all. A measured target is *met* or *MISSED* when its whole interval
is (that of the median with 95 %; in brackets, and of how many readings), *undecided* when the bound lies within it or
there were fewer than three. What a warm kernel cache or a remembered answer gives stands in the tables and has no
target. "Published" figures are the earlier AVM's, on an Apple M2 Pro: another machine and program.

**The interpreter** is named in each section: CPython as the machine has it, without profile-guided optimization, which
is worth a tenth of what a mount's own Python costs. Cython and mypyc were tried on the mount's modules and gained
nothing there; so avmfs is not compiled.

**Not claimed**: that avmfs is as fast as ext4 where something is made durable; that times hold on another machine;
that scenarios answered by the offline reader say what a model would answer; that recall is as good on texts unlike
those that it was measured on.
"""


def document(reports: Sequence[Report], pictures: Collection[str] = ()) -> str:
    """The page; one section a report, in the order that a reader would ask. ``pictures``: paths as the page names them,
    called like the benchmark."""
    known = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(reports, key=lambda report: known.get(report.benchmark, len(known)))
    runs = Counter(report.benchmark for report in ordered)
    told = [(_arguments(report) if runs[report.benchmark] > 1 else "", report) for report in ordered]
    sections = []
    for apart, report in told:
        sections.append(markdown(replace(report, title=report.title + apart)))
        sections += [f"![{report.title}]({path})\n" for path in pictures if Path(path).stem == report.benchmark]
    return "\n".join([INTRODUCTION, _targets(told), *sections])


def _arguments(report: Report) -> str:
    """What tells apart two runs of one script, which have the same name and title."""
    words = report.command.partition(f"bench_{report.benchmark} ")[2]
    return f", {words}" if words else ""


def _targets(told: Sequence[tuple[str, Report]]) -> str:
    """How many of the targets of each run were met, on one look."""
    lines = [f"| script | {' | '.join(VERDICTS)} |", "|---|" + "---|" * len(VERDICTS)]
    for apart, report in told:
        if found := Counter(target.verdict for target in report.targets):
            figures = " | ".join(str(found[verdict]) for verdict in VERDICTS)
            lines.append(f"| bench_{report.benchmark}{apart} | {figures} |")
    return "\n".join(lines) + "\n"


# ---- the README's table ----


@dataclass(frozen=True)
class Pick:
    """One row of it: a cell of a result, by the beginning of its row, and what the earlier AVM published of that."""

    what: str
    command: str
    """A pattern of how that of the result goes on after "bench_"."""
    row: tuple[str, ...]
    column: str
    unit: str
    published: str

    def found(self, reports: Sequence[Report]) -> tuple[Report, Value] | None:
        for report in reports:
            mine = re.search(f"bench_{self.command}", report.command) is not None
            for table in report.tables if mine else ():
                for row in table.rows if self.column in table.columns else ():
                    if tuple(map(str, row[: len(self.row)])) == self.row:
                        return report, row[list(table.columns).index(self.column)]
        return None


SAVED, CAREFUL = "saved against all", "saved against a careful reader"
PICKS = (
    Pick("write a note, Python, with a daemon: median", "api", ("write", "avmfs daemon"), "median ms", "ms", "4–8 ms"),
    Pick("read one that is known", "api", ("read", "avmfs daemon"), "median ms", "ms", "–"),
    Pick("list", "api", ("list", "avmfs daemon"), "median ms", "ms", ".6 ms"),
    Pick("counts", "api", ("stats", "avmfs daemon"), "median ms", "ms", "1.4 ms"),
    *(
        Pick(
            f"recall, 10,000 notes, {way}, {kind}",
            "recall",
            ("10,000", "onnx-int8", row, asked),
            "median ms",
            "ms",
            said,
        )
        for way, row in (("mount", "recall, mount"), ("MCP", "recall, MCP"), ("command line", "avm recall"))
        for kind, asked, said in (("cold: a new question", "new", "100 ms"), ("warm: asked before", "known", "62 ms"))
    ),
    Pick(
        "tokens saved by a recall of 500, of all of 500 notes",
        "agent",
        ("configuration", "500"),
        SAVED,
        "",
        "97 % and more",
    ),
    Pick("the same, of what a careful reader would open", "agent", ("configuration", "500"), CAREFUL, "", "–"),
    Pick("cache hits, accesses by Zipf's law, 100 bodies kept", "ablation", ("Zipf", "100"), "hit rate", "", ".971"),
    *(
        Pick(
            f"48 scenarios of several agents, answered right by a reader that quotes, {what}",
            "value$",
            ("all",),
            column,
            "",
            "–",
        )
        for what, column in (("from their talk alone", "context: right"), ("with avmfs", "avmfs: right"))
    ),
    *(
        Pick(f"LoCoMo: some evidence among the first five, {name}", "peers", (row,), "any@5", "", "–")
        for name, row in (
            ("avmfs, which is fitted on it", "avmfs"),
            ("mem0", "mem0 2.2.1"),
            ("Chroma", "chroma 1.5.9"),
            ("LanceDB", "lancedb 0.40.0"),
        )
    ),
    Pick("16 agents writing at once, durable, together", "contention", ("16", "avmfs"), "total /s", "/s", "210/s"),
    Pick("99th percentile of that", "contention", ("16", "avmfs"), "p99 ms", "ms", "513 ms"),
    Pick("who knows about it, 16 agents", "discovery", ("16", "librarian, owner"), "p50 ms", "ms", ".51–2.82 ms"),
    *(
        Pick(f"memory of an idle daemon, 16 mounts, {what}", command, ("all together",), "proportional MiB", "MiB", "–")
        for what, command in (("with the default model", "idle --embedding"), ("without a model", "idle --nodes"))
    ),
)


def readme_table() -> str:
    """A row for each pick that benchmarks/results has, with its commit and load."""
    reports = read_reports(RESULTS)
    lines = ["| | avmfs | the earlier AVM, as published | measured at, under a load of |", "|---|---|---|---|"]
    for pick in PICKS:
        if (found := pick.found(reports)) is not None:
            facts = found[0].facts
            load = facts.get("load", "-").partition(" ")[0]
            commit = facts.get("commit", "-").partition(",")[0]
            lines.append(
                f"| {pick.what} | {f'{shown(found[1])} {pick.unit}'.strip()} | {pick.published} | {commit}, {load} |"
            )
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/BENCHMARKS.md."""
    docs = ROOT / "docs"
    pictures = [path.relative_to(docs).as_posix() for path in sorted((docs / "plots").glob("*.svg"))]
    return document(read_reports(RESULTS), pictures)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 for a file that is no result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("places", nargs="*", type=Path, metavar="PLACE", default=[RESULTS])
    parser.add_argument("--against", type=Path, metavar="PLACE", help="tell what differs from the results there")
    options = parser.parse_args(arguments)
    try:
        reports = [report for place in options.places for report in read_reports(place)]
        if options.against:
            print(comparison(read_reports(options.against), reports))
        else:
            print(document(reports), end="")
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
