"""docs/BENCHMARKS.md from the JSON of benchmark runs: every figure under the command that made it.

    python -m benchmarks.report [--pictures docs/plots] [PLACE...] > docs/BENCHMARKS.md
    python -m benchmarks.report --against PLACE [PLACE...]

PLACE is a result, or a directory of results: those of benchmarks/results unless given. --pictures: below docs, where
benchmarks.plots has drawn them; a section shows its own. --against tells what differs from earlier results by more than
a tenth, figure by figure and verdict by verdict; from two machines, or under two loads, only ratios mean something.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results import VERDICTS, Report, compared, markdown, read_reports

RESULTS = Path(__file__).parent / "results"
ORDER = ("mount", "programs", "beside", "contention", "coherence", "files", "recall", "peers", "idle", "start", "mail")
INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks.report` from [benchmarks/results](../benchmarks/results), which the commands named
below have written; not by hand. What each script measures, and what its baselines are:
[benchmarks/README.md](../benchmarks/README.md). `python -m benchmarks.report --against benchmarks/results NEW.json`
compares a run of yours.

Each section names its commit, date, machine, load and rounds. The machine had other work to do meanwhile, so believe
ratios, which hold within one run, where the variants take turns, rather than times. "Of rounds" is how far the medians
of the rounds strayed, as shares of the median of all. A measured target is *met* or *MISSED* when its whole interval
is (that of the median with 95 %; in brackets, and of how many readings), *undecided* when the bound lies within it or
there were fewer than three. What a warm kernel cache or a remembered answer gives stands in the tables and has no
target. "Published" figures are the earlier AVM's, on an Apple M2 Pro: another machine and program.

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


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 for a file that is no result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("places", nargs="*", type=Path, metavar="PLACE", default=[RESULTS])
    parser.add_argument("--against", type=Path, metavar="PLACE", help="tell what differs from the results there")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="below docs")
    options = parser.parse_args(arguments)
    docs = Path(__file__).parent.parent / "docs"
    found = sorted(options.pictures.resolve().glob("*.svg")) if options.pictures else []
    try:
        pictures = [picture.relative_to(docs.resolve()).as_posix() for picture in found]
        reports = [report for place in options.places for report in read_reports(place)]
        if options.against:
            print("\n".join(compared(read_reports(options.against), reports) or ["nothing differs by a tenth"]))
        else:
            print(document(reports, pictures), end="")
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
