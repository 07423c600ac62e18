"""What a run found: tables, targets, and their three forms: text, JSON, Markdown.

A script builds one `Report`; nothing here measures. Values stay numbers until they are printed, so that the JSON has
every digit.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import platform
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """`columns` name their units. An empty row is a blank line."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Target:
    """A bound that the product sets itself. `value` None: this run could not measure it."""

    what: str
    value: float | None
    relation: Literal[">=", "<="]
    bound: float

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound


@dataclass(frozen=True)
class Report:
    """One run of one script. `facts` say what it was measured on; `data` is for plots."""

    benchmark: str
    title: str
    command: str
    facts: Mapping[str, str]
    tables: Sequence[Table]
    targets: Sequence[Target] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


# ---- forms ----


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """A title, and a line for each fact; before the measurement, which may take minutes."""
    width = max(map(len, facts))
    print(title)
    for name, fact in facts.items():
        print(f"  {name:<{width}}  {fact}", flush=True)


def print_findings(report: Report) -> None:
    """Everything but the facts."""
    for table in report.tables:
        print(f"\n{table.title}")
        _print_table(table)
    if report.targets:
        print("\ntargets")
        for target in report.targets:
            print(f"  {_verdict(target):<12}  {target.what}: {_sentence(target)}")
    for variant, reason in report.failures.items():
        print(f"\n{variant} broke off: {reason}")


def write_json(path: Path, report: Report) -> None:
    path.write_text(json.dumps(asdict(report), indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Report:
    """What `write_json` wrote. Raises ValueError that names the file."""
    try:
        found = json.loads(path.read_text())
        tables = [Table(**table) for table in found.pop("tables")]
        targets = [Target(**target) for target in found.pop("targets")]
        return Report(tables=tables, targets=targets, **found)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not the result of a benchmark ({error})") from error


def markdown(report: Report) -> str:
    """A section of docs/BENCHMARKS.md: the command, the facts, each table, each target."""
    lines = [f"## {report.title}", "", f"`{report.command}`", ""]
    lines += [f"- {name}: {_escaped(fact)}" for name, fact in report.facts.items()]
    for table in report.tables:
        lines += ["", f"### {table.title}", "", _cells(table.columns), _cells(["---"] * len(table.columns))]
        lines += [_cells([shown(value) for value in row]) for row in table.rows if row]
    if report.targets:
        lines += ["", "### Targets", "", _cells(["target", "measured", ""]), _cells(["---"] * 3)]
        lines += [_cells([target.what, _sentence(target), _verdict(target)]) for target in report.targets]
    lines += [f"\n{variant} broke off: {_escaped(reason)}" for variant, reason in report.failures.items()]
    return "\n".join(lines) + "\n"


def shown(value: Value) -> str:
    """A value as a table has it: '-' for none, whole numbers in full, others to three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else rounded(value)


def rounded(value: float, digits: int = 3) -> str:
    """A figure with `digits` significant digits but every whole one: 0.0123, 4.56, 12,345."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _verdict(target: Target) -> str:
    return {True: "met", False: "MISSED", None: "not measured"}[target.met]


def _sentence(target: Target) -> str:
    return f"{shown(target.value)} {target.relation} {rounded(target.bound)}"


def _print_table(table: Table) -> None:
    lines = [[shown(value) for value in row] for row in table.rows]
    columns = list(table.columns)
    widths = [max(len(line[i]) for line in [columns, *lines] if line) for i in range(len(columns))]
    for line in [columns, ["-" * width for width in widths], *lines]:
        cells = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=bool(line))][1:]
        print("  ".join([f"{line[0]:<{widths[0]}}", *cells]).rstrip() if line else "")


def _cells(values: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, values)) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# ---- what was measured on ----


def machine() -> dict[str, str]:
    """The machine and the versions that a figure depends on, as text by name."""
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()) + " when the run began",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {_optimized()}",
        "libfuse": _first_line(["pkg-config", "--modversion", "fuse3"]) or "not installed",
        "sqlite": _sqlite_version(),
    }


def _optimized() -> str:
    """How the interpreter was compiled: profile-guided optimization makes the mount's own Python a tenth quicker."""
    how = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "with PGO" if "--enable-optimizations" in how else "without PGO"


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _first_line(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.processor() or "unknown"


def _sqlite_version() -> str:
    try:
        apsw = importlib.import_module("apsw")
    except ImportError:
        return "apsw not installed"
    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()
