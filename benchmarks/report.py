"""docs/BENCHMARKS.md from the JSON of benchmark runs: every figure under the command that made it.

python -m benchmarks.report RESULT.json... > docs/BENCHMARKS.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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


def document(reports: Sequence[Report]) -> str:
    """The page; one section a report, in the order that a reader would ask."""
    known = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(reports, key=lambda report: known.get(report.benchmark, len(known)))
    return "\n".join([INTRODUCTION, _targets(ordered), *map(markdown, ordered)])


def _targets(reports: Sequence[Report]) -> str:
    """How many of the targets of each script were met, on one look."""
    lines = ["| script | met | missed | not measured |", "|---|---|---|---|"]
    for report in reports:
        met = [target.met for target in report.targets]
        if met:
            lines.append(f"| bench_{report.benchmark} | {met.count(True)} | {met.count(False)} | {met.count(None)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """0; 2 for a file that is no result."""
    if not arguments:
        print("usage: python -m benchmarks.report RESULT.json...", file=sys.stderr)
        return 2
    try:
        print(document([read_json(Path(argument)) for argument in arguments]), end="")
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
