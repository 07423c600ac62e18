"""What a run found: tables, targets, and their three forms: text, JSON, Markdown.

A script builds one `Report`; nothing here measures. Values stay numbers until they are printed, so that the JSON has
every digit.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.figures import interval, percentile

DIFFERS = 0.1
"""The share by which a figure differs from an earlier one before it is told: two runs of one commit do by less."""
_IN_TEXT = re.compile(r"(\d+)/(\d+)|([\d.]+) %")
_WHERE = re.compile(r" --local[ =]('[^']*'|\S+)")  # a disk is not what is measured
NEXT = ",\n  "
Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """`columns` name their units. An empty row is a blank line."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


Relation = Literal[">=", "<="]
VERDICTS = ("met", "MISSED", "undecided", "not measured")
FEWEST = 3
"""Readings that decide a measured target; fewer say nothing of how far they stray."""


@dataclass(frozen=True)
class Target:
    """A bound that the product sets itself. `value` None: this run could not measure it. `least` and `most` are the
    ends of the interval in which the value of `readings` rounds lies; None: a count, which has no spread."""

    what: str
    value: float | None
    relation: Relation
    bound: float
    least: float | None = None
    most: float | None = None
    readings: int = 0

    @property
    def verdict(self) -> str:
        """A measured target is met, or missed, when its whole interval is."""
        if self.value is None:
            return "not measured"
        ends = [self.value] if self.least is None or self.most is None else [self.least, self.most]
        holding = [one >= self.bound if self.relation == ">=" else one <= self.bound for one in ends]
        if len(ends) == 2 and (self.readings < FEWEST or holding[0] != holding[1]):
            return "undecided"
        return "met" if holding[0] else "MISSED"


def measured(what: str, readings: Sequence[float], relation: Relation, bound: float, share: float = 0.5) -> Target:
    """A target on the median of readings, or another percentile, with its interval; none: it was not measured."""
    if not readings:
        return Target(what, None, relation, bound)
    least, most = interval(readings, share)
    value = statistics.median(readings) if share == 0.5 else percentile(sorted(readings), share)
    return Target(what, value, relation, bound, least, most, len(readings))


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
            print(f"  {target.verdict:<12}  {target.what}: {_sentence(target)}")
    for variant, reason in report.failures.items():
        print(f"\n{variant} broke off: {reason}")


def write_json(path: Path, report: Report) -> None:
    """A row a line: small, and its changes can be read."""
    told = asdict(report)
    lines = [f" {json.dumps(name)}: {_rows(told[name])}" for name in sorted(told)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _rows(part: Any) -> str:
    if isinstance(part, list | tuple) and any(isinstance(one, dict | list | tuple) for one in part):
        return f"[{NEXT.join(map(_rows, part))}]"
    if isinstance(part, dict) and any(isinstance(one, list | tuple) for one in part.values()):
        return "{" + NEXT.join(f"{json.dumps(str(name))}: {_rows(one)}" for name, one in part.items()) + "}"
    return json.dumps(part)


def read_json(path: Path) -> Report:
    """What `write_json` wrote. Raises ValueError that names the file."""
    [report] = read_reports(path)
    return report


def _report(found: dict[str, Any]) -> Report:
    tables = [Table(**table) for table in found.pop("tables")]
    targets = [Target(**target) for target in found.pop("targets")]
    return Report(tables=tables, targets=targets, **found)


def read_reports(place: Path) -> list[Report]:
    """Of a file of `write_json`, of bench_paper's results.json, or of all files of a directory. Raises ValueError."""
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    found: list[Report] = []
    for path in files:
        try:
            told = json.loads(path.read_text())
            found += [_report(one) for one in told.get("reports", [told])]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not the result of a benchmark ({error})") from error
    if not found:
        raise ValueError(f"{place}: no results there")
    return found


def comparison(before: Sequence[Report], after: Sequence[Report]) -> str:
    """How many figures there are in both, and what `compared` tells of them."""
    old, new = _figures(before), _figures(after)
    lines = compared(before, after) or ["  nothing differs by a tenth"]
    return "\n".join([f"{len(old.keys() & new.keys())} of {len(new)} figures have an earlier one", *lines])


def compared(before: Sequence[Report], after: Sequence[Report]) -> list[str]:
    """A line for each figure that differs by more than DIFFERS from the same one before, each verdict that does, and
    each of either that a command of both has no more."""
    old, new = _figures(before), _figures(after)
    commands = {key[0] for key in new}
    lines = []
    for key, (value, text) in new.items():
        was, before_text = old.get(key, (value, text))
        change = f"  {': '.join(key)}: {before_text} -> {text}"
        if isinstance(was, str) or isinstance(value, str) or not was:
            lines += [change] if was != value else []
        elif abs(value / was - 1) > DIFFERS:
            lines.append(f"{change} ({value / was - 1:+.0%})")
    gone = [(key, text) for key, (_, text) in old.items() if key not in new and key[0] in commands]
    return lines + [f"  {': '.join(key)}: {text} -> nothing" for key, text in gone]


def _figures(reports: Sequence[Report]) -> dict[tuple[str, ...], tuple[str | int | float, str]]:
    """Every number, and every verdict, with its text, under its command, table, row and column. A row is named by its
    first texts, and by its number among those of one name."""
    found: dict[tuple[str, ...], tuple[str | int | float, str]] = {}
    for report in reports:
        command = _WHERE.sub("", report.command)
        for table in report.tables:
            rows, columns = [row for row in table.rows if row], _apart(table.columns)
            for name, row in zip(_apart(map(_name, rows)), rows, strict=True):
                for column, cell in zip(columns, row, strict=False):
                    if (number := _number(cell)) is not None:
                        found[command, table.title, name, column] = number, shown(cell)
        found |= {(command, "target", one.what): (one.verdict, one.verdict) for one in report.targets}
    return found


def _name(row: Sequence[Value]) -> str:
    def names(cell: Value) -> bool:
        return isinstance(cell, str) and ".." not in cell and _number(cell) is None  # "a..b" is a spread

    named = itertools.dropwhile(lambda cell: not names(cell), row)
    return " ".join(str(cell) for cell in itertools.takewhile(names, named))


def _apart(names: Iterable[str]) -> list[str]:
    """The second of a name is "NAME (2)"."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})".strip() if seen[name] > 1 else name)
    return found


def _number(cell: Value) -> int | float | None:
    """Of "3/4" the share, of "95.0 %" the 95."""
    if not isinstance(cell, str):
        return cell
    found = _IN_TEXT.fullmatch(cell)
    if found is None:
        return None
    return float(found[3]) if found[3] else int(found[1]) / max(int(found[2]), 1)


def markdown(report: Report) -> str:
    """A section of docs/BENCHMARKS.md: the command, the facts, each table, each target."""
    lines = [f"## {report.title}", "", f"`{report.command}`", ""]
    lines += [f"- {name}: {_escaped(fact)}" for name, fact in report.facts.items()]
    for table in report.tables:
        lines += ["", f"### {table.title}", "", _cells(table.columns), _cells(["---"] * len(table.columns))]
        lines += [_cells([shown(value) for value in row]) for row in table.rows if row]
    if report.targets:
        lines += ["", "### Targets", "", _cells(["target", "measured", ""]), _cells(["---"] * 3)]
        lines += [_cells([target.what, _sentence(target), target.verdict]) for target in report.targets]
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


def _sentence(target: Target) -> str:
    ends = None if target.least is None or target.most is None else (target.least, target.most)
    within = f" ({rounded(ends[0])}..{rounded(ends[1])} of {target.readings})" if ends else ""
    return f"{shown(target.value)}{within} {target.relation} {rounded(target.bound)}"


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
        "commit": _commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg())
        + " when the run began"
        + (f"; at nice {priority}" if (priority := os.nice(0)) else ""),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {_optimized()}",
        "libfuse": _first_line(["pkg-config", "--modversion", "fuse3"]) or "not installed",
        "sqlite": _sqlite_version(),
    }


def _commit() -> str:
    """Of the checkout that this lies in, and whether anything of it has been changed since."""
    here = ["git", "-C", str(Path(__file__).parent)]
    changed = _first_line([*here, "status", "--porcelain", "--untracked-files=no", "--", "..", ":!/benchmarks/results"])
    return (_first_line([*here, "rev-parse", "--short=8", "HEAD"]) or "unknown") + (", changed" if changed else "")


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
