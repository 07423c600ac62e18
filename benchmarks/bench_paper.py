"""The whole performance suite, by sections of the customer's paper: one results file, one page, pictures, a comparison.

    python benchmarks/bench_paper.py --all --output DIR [--short | --quick] [--compare DIR/results.json]
    python benchmarks/bench_paper.py --sections latency,contention --output DIR
    python benchmarks/bench_paper.py --all --output DIR --resume      # what a stopped run had not come to

Runs the scripts of its sections one after the other, none of which needs a model behind an endpoint. Into DIR go
``results.json`` (machine, versions, and each script's figures with all digits), ``report.md`` (benchmarks.report's
page), and with the extra `bench` pictures; all three are written anew after each script, so a run that is stopped
loses the script that it was at. --short has smaller sizes and as many rounds; each result in benchmarks/results names
which it is. --compare tells of every figure what it was in an earlier results file, where it differs by more than a
tenth; only ratios from two machines or two loads mean something.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.report import document  # noqa: E402
from benchmarks.results import Report, comparison, machine, read_json, read_reports  # noqa: E402
from benchmarks.script import command  # noqa: E402

SECTIONS = {
    "latency": ("api", "mount", "recall"),
    "scalability": ("index", "vectors"),
    "cache": ("ablation",),
    "contention": ("contention", "coherence"),
    "tokens": ("agent_efficiency",),
    "discovery": ("discovery",),
    "guards": ("guarded", "audit", "outbox", "attacks"),
    "operations": ("programs", "files", "mail", "past"),
    "peers": ("peers",),
    "start": ("start", "idle"),
    "value": ("value",),
}

SHORT = {
    "api": "--times 50",
    "mount": "--variants 'ext4,C,C+SQLite,avmfs strict,avmfs'",
    "recall": "--engines onnx-int8 --rounds 3 --questions 20 --programs 3",
    "index": "--sizes 0,100000 --questions 60 --rounds 3",
    "vectors": "--sizes 1000,10000 --queries 20",
    "ablation": "--rounds 3 --seconds 0.7",
    "contention": "--agents 1,4,16 --seconds 2",
    "coherence": "--checks 2000",
    "discovery": "--agents 2,16,128 --questions 100",
    "guarded": "--seconds 2",
    "outbox": "--seconds 1.5",
    "attacks": "--seconds 2",
    "programs": "--notes 2000",
    "mail": "--messages 200",
    "past": "--notes 10000 --rounds 12 --edits 200",
    "start": "--rounds 7",
    "idle": "--nodes 20000",
}
"""Of sizes, never of rounds below three: what decides no target is no figure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 when a script failed (the others are in the report); 2 when nothing could be run or compared."""
    parser = argparse.ArgumentParser(prog="bench_paper.py", description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help=f"every section: {', '.join(SECTIONS)}")
    what.add_argument("--sections", metavar="NAME,…")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--short", action="store_true", help="smaller sizes, as many rounds")
    forms.add_argument("--quick", action="store_true", help="does it run, not how fast")
    parser.add_argument(
        "--resume", action="store_true", help="only what DIR/results.json has no figures of with these options"
    )
    parser.add_argument("--local", type=Path, metavar="DIR", default=Path("/var/tmp"), help="the disk (%(default)s)")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="an earlier results.json, or a directory of results"
    )
    chosen = parser.parse_args(arguments)
    names = list(SECTIONS) if chosen.all else chosen.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    try:
        earlier = chosen.compare
        before = read_reports(earlier) if earlier else None
        earlier = chosen.output / "results.json"
        found = read_reports(earlier) if chosen.resume and earlier.exists() else []
    except (OSError, ValueError) as error:
        parser.error(f"{earlier}: {error}")
    chosen.output.mkdir(parents=True, exist_ok=True)
    words = {
        script: [
            *("--local", str(chosen.local)),
            *(["--quick"] if chosen.quick else shlex.split(SHORT.get(script, "")) if chosen.short else []),
        ]
        for name in names
        for script in SECTIONS[name]
    }
    asked = {script: command(f"python -m benchmarks.bench_{script}", its) for script, its in words.items()}
    failed: list[str] = []
    reports = [one for one in found if not one.failures and asked.get(one.benchmark, one.command) == one.command]
    had = {report.benchmark for report in reports}
    for script in (script for script in words if script not in had):
        result = chosen.output / f"{script}.json"
        result.unlink(missing_ok=True)
        run = [sys.executable, "-m", f"benchmarks.bench_{script}", "--json", str(result), *words[script]]
        print(f"\n== {script}", flush=True)
        if subprocess.run(run, cwd=ROOT, check=False).returncode or not result.exists():
            failed.append(script)
        if result.exists():
            reports.append(read_json(result))
            result.unlink()
            _write(chosen.output, reports)
    if not reports:
        print("bench_paper: no script has a result", file=sys.stderr)
        return 2
    if before is not None:
        print(f"\n{comparison(before, reports)}")
    if failed:
        print(f"bench_paper: failed, in whole or in part: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _write(folder: Path, reports: Sequence[Report]) -> None:
    found = {"machine": machine(), "reports": [asdict(report) for report in reports]}
    (folder / "results.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    single = []
    for report in reports:  # benchmarks.plots reads single results
        single.append(plots / f"{report.benchmark}.json")
        single[-1].write_text(json.dumps(asdict(report)))
    drawn = subprocess.run([sys.executable, "-m", "benchmarks.plots", "--out", plots, *single], cwd=ROOT, check=False)
    for path in single:
        path.unlink()
    pictures = [f"plots/{path.name}" for path in sorted(plots.glob("*.svg"))] if not drawn.returncode else []
    (folder / "report.md").write_text(document(reports, pictures))
    print(f"\n{folder}: results.json, report.md, {len(pictures)} pictures")


if __name__ == "__main__":
    sys.exit(main())
