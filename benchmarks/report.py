"""docs/BENCHMARKS.md from the JSON of benchmark runs: every figure under the command that made it.

    python -m benchmarks.report [--pictures DIR] RESULT.json... > docs/BENCHMARKS.md

DIR, below docs, is where benchmarks.plots has drawn them; a section shows its own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results import Report, markdown, read_json

ORDER = ("mount", "programs", "beside", "contention", "coherence", "files", "idle", "mail", "store", "ablation")
INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks.report` from the results of the commands named below; not by hand. What each script
measures, and what its baselines are: [benchmarks/README.md](../benchmarks/README.md).

Ratios hold within one run, where the variants take turns; times belong to the machine and to what else it did.
"Published" figures are the earlier AVM's, on an Apple M2 Pro: another machine and program.
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
    lines = ["| script | met | missed | not measured |", "|---|---|---|---|"]
    for apart, report in told:
        met = [target.met for target in report.targets]
        if met:
            figures = f"{met.count(True)} | {met.count(False)} | {met.count(None)}"
            lines.append(f"| bench_{report.benchmark}{apart} | {figures} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 for a file that is no result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="below docs")
    options = parser.parse_args(arguments)
    docs = Path(__file__).parent.parent / "docs"
    found = sorted(options.pictures.resolve().glob("*.svg")) if options.pictures else []
    try:
        pictures = [picture.relative_to(docs.resolve()).as_posix() for picture in found]
        print(document([read_json(path) for path in options.results], pictures), end="")
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
