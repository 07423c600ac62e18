"""Pictures of benchmark results: SVG or PNG by matplotlib (the extra `bench`).

    python -m benchmarks.plots [--format svg|png] [--out DIR] RESULT.json...

One picture a result that has one: operations beside their baselines, contention, coherence, cache hits, ablation, the
latency of recalls (their distribution, and by the size of the store), peers, the academic sets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from benchmarks.results import Report, Table, read_json

Draw = Callable[[Any, Report], Any]
"""Given matplotlib.pyplot and a report, a figure; None where the report has not what it needs."""

COLOURS: Final = {
    "avmfs": "tab:blue",
    "avmfs strict": "tab:cyan",
    "SQLite": "tab:orange",
    "C+SQLite": "tab:brown",
    "C": "tab:gray",
    "ext4": "tab:green",
    "tmpfs": "tab:olive",
    "mfusepy": "tab:purple",
    "published": "tab:red",
    "cosine": "tab:gray",
    "mem0": "tab:red",
    "chroma": "tab:orange",
    "langgraph": "tab:green",
    "lancedb": "tab:purple",
    "vector, in process": "tab:gray",
    "search, in process": "tab:orange",
    "recall, in process": "tab:green",
    "recall, mount": "tab:blue",
    "recall, MCP": "tab:purple",
    "open and first recall": "tab:olive",
    "avm --help": "tab:pink",
    "avm recall": "tab:red",
    "1 clients": "tab:blue",
    "16 clients": "tab:orange",
    "multi-hop": "tab:blue",
    "open-domain": "tab:orange",
    "single-hop": "tab:green",
    "temporal": "tab:purple",
    "all": "black",
}
"""By how a name begins: a thing has one colour in all pictures, whatever else was measured with it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 when a file is no result or matplotlib is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots", metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["svg.hashsalt"] = "avmfs"  # the same figures make the same file
        from matplotlib import pyplot
    except ImportError:
        print("plots need matplotlib: pip install 'avmfs[bench]'", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        reports = [read_json(path) for path in options.results]
    except (OSError, ValueError) as error:
        print(f"plots: {error}", file=sys.stderr)
        return 2
    for report in reports:
        draw = DRAWERS.get(report.benchmark)
        figure = draw(pyplot, report) if draw is not None else None
        if figure is None:
            print(f"{report.benchmark}: nothing to draw")
            continue
        figure.text(0.01, 0.005, f"{report.command} · {report.facts.get('cpu', '')}", fontsize=6, color="gray")
        place = options.out / f"{report.benchmark}.{options.format}"
        figure.tight_layout(rect=(0, 0.02, 1, 1))
        metadata = {"Date": None} if options.format == "svg" else None
        figure.savefig(place, dpi=150, metadata=metadata)
        pyplot.close(figure)
        print(place)
    return 0


# ---- one drawer a benchmark ----


def _mount(pyplot: Any, report: Report) -> Any:
    """Operations a second of each variant, C as 1; one panel a number of clients."""
    tables = [table for table in report.tables if "operation" in table.columns]
    if not tables:
        return None
    figure, panels = pyplot.subplots(len(tables), 1, figsize=(11, 3.6 * len(tables)), squeeze=False)
    for panel, table in zip(panels[:, 0], tables, strict=True):
        rows = _dicts(table)
        operations = list(dict.fromkeys(row["operation"] for row in rows))
        values = {(row["variant"], row["operation"]): row["x C"] for row in rows}
        _grouped(panel, operations, values)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set(yscale="log", ylabel="operations/s, C = 1", title=table.title)
        _legend(panel, 4)
    return figure


def _contention(pyplot: Any, report: Report) -> Any:
    """Total rate, and the 99th percentile, over the number of agents."""
    curves: Mapping[str, Sequence[Sequence[float]]] | None = report.data.get("agents, total per second, p99 in ms")
    if not curves:
        return None
    figure, (rate, tail) = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, points in curves.items():
        style = "--" if name == "published" else "-"
        for panel, at in ((rate, 1), (tail, 2)):
            panel.plot([p[0] for p in points], [p[at] for p in points], f"o{style}", color=_colour(name), label=name)
    for panel, label in ((rate, "durable writes/s together"), (tail, "99th percentile, ms")):
        panel.set(xscale="log", xlabel="agents", ylabel=label)
        panel.minorticks_off()
        panel.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        panel.legend(fontsize=8)
    rate.set_ylim(bottom=0)
    tail.set_yscale("log")
    return figure


def _coherence(pyplot: Any, report: Report) -> Any:
    """How long after its acknowledgement a change was seen, median and 99th percentile."""
    tables = [table for table in report.tables if "change" in table.columns]
    if not tables:
        return None
    figure, panels = pyplot.subplots(len(tables), 1, figsize=(11, 3.4 * len(tables)), squeeze=False)
    for panel, table in zip(panels[:, 0], tables, strict=True):
        rows = [row for row in _dicts(table) if row["variant"] != "loopback"]
        kinds = list(dict.fromkeys(row["change"] for row in rows))
        values = {
            (f"{row['variant']}, {short}", row["change"]): row[column]
            for row in rows
            for short, column in (("median", "p50 ms"), ("p99", "p99 ms"))
        }
        _grouped(panel, kinds, values)
        panel.set(yscale="log", ylabel="seen after, ms", title=table.title)
        _legend(panel, 3)
    return figure


def _ablation(pyplot: Any, report: Report) -> Any:
    """Hit rates as a field of pattern by size, and what each part of the writer is worth."""
    hits: Mapping[str, Mapping[str, float]] | None = report.data.get("hit rate by pattern and size")
    writes = next((table for table in report.tables if "x all on" in table.columns), None)
    if not hits or writes is None:
        return None
    figure, (field, bars) = pyplot.subplots(1, 2, figsize=(12, 4))
    sizes = sorted(next(iter(hits.values())), key=int)  # JSON made text of them
    shades = [[by_size[size] for size in sizes] for by_size in hits.values()]
    field.imshow(shades, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto")
    for y, line in enumerate(shades):
        for x, value in enumerate(line):
            field.text(x, y, f"{value:.1%}", ha="center", va="center", color="black" if value < 0.7 else "white")
    field.set_xticks(range(len(sizes)), sizes)
    field.set_yticks(range(len(hits)), list(hits))
    field.set(xlabel="bodies kept", title="cache hit rate by access pattern and size")
    rows = _dicts(writes)
    names = list(dict.fromkeys(row["writer"] for row in rows))
    _grouped(bars, names, {(f"{row['clients']} clients", row["writer"]): row["ops/s"] for row in rows})
    bars.set(ylabel="durable writes/s", title="one part taken out of the writer")
    for label in bars.get_xticklabels():
        label.set(rotation=20, ha="right", rotation_mode="anchor")
    _legend(bars, 2)
    return figure


def _recall(pyplot: Any, report: Report) -> Any:
    """How the times of each way of asking are distributed, and how their medians grow with the store."""
    curves: Mapping[str, Sequence[float]] | None = report.data.get("percentiles, ms")
    rows = [row for table in report.tables for row in _dicts(table) if row.get("question") == "new"]
    if not curves or not rows:
        return None
    figure, (shares, growth) = pyplot.subplots(1, 2, figsize=(12, 4.2))
    for name, curve in curves.items():
        style = "--" if name.endswith("known") else "-"
        parts = [at / (len(curve) - 1) for at in range(len(curve))]
        shares.plot(curve, parts, style, color=_colour(name), label=name.rstrip(", "))
    shares.set(xscale="log", xlabel="ms", ylabel="share of questions", title="each way of asking")
    for way, engine in dict.fromkeys((row["way"], row["engine"]) for row in rows):
        some = [row for row in rows if (row["way"], row["engine"]) == (way, engine)]
        sizes = [int(row["notes"].replace(",", "")) for row in some]
        style = "o--" if engine == "torch" else "o-"
        growth.plot(sizes, [row["median ms"] for row in some], style, color=_colour(way), label=f"{way}, {engine}")
    growth.set(xscale="log", yscale="log", xlabel="notes", ylabel="median ms", title="a new question, by size")
    for panel in (shares, growth):
        panel.legend(fontsize=6, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))  # curves are everywhere else
    return figure


def _peers(pyplot: Any, report: Report) -> Any:
    """Evidence found, some and all of it, and what finding and adding take."""
    rows = [row for table in report.tables for row in _dicts(table) if "memory" in row]
    if not rows:
        return None
    figure, (found, took) = pyplot.subplots(1, 2, figsize=(12, 4))
    depths = [name for name in rows[0] if "@" in name]
    _grouped(found, depths, {(row["memory"], depth): row[depth] for row in rows for depth in depths})
    found.set(ylabel="share of questions", title="evidence among the first k")
    times = ["add, median ms", "first find ms", "find, median ms"]
    timed = [row for row in rows if row[times[0]] is not None]
    _grouped(took, times, {(row["memory"], name): row[name] for row in timed for name in times})
    took.set(ylabel="ms", title="without the model's time")
    for panel in (found, took):
        _legend(panel, 2)
    return figure


def _academic(pyplot: Any, report: Report) -> Any:
    """By category: some and all of the evidence among the first k, and coverage by tokens."""
    by_turn, _, covered = ([_dicts(table) for table in report.tables] + [[], [], []])[:3]
    if not covered:
        return None
    figure, (first, budgets) = pyplot.subplots(1, 2, figsize=(12, 4))
    depths = [name for name in by_turn[0] if "@" in name]
    _grouped(first, depths, {(row["questions"], depth): row[depth] for row in by_turn for depth in depths})
    first.set(ylabel="share of questions", title="evidence among the first k turns")
    first.tick_params(axis="x", rotation=30)
    tokens = [name for name in covered[0] if name.replace(",", "").isdigit()]
    for row in covered:
        sizes, kind = [int(name.replace(",", "")) for name in tokens], row["questions"]
        budgets.plot(sizes, [row[name] for name in tokens], "o-", color=_colour(kind), label=kind)
    budgets.set(xlabel="tokens of recall", ylabel="share of the evidence", title="coverage")
    budgets.legend(fontsize=8)
    _legend(first, 3)
    return figure


DRAWERS: Mapping[str, Draw] = {
    "mount": _mount,
    "contention": _contention,
    "coherence": _coherence,
    "ablation": _ablation,
    "recall": _recall,
    "peers": _peers,
    "academic": _academic,
}


def _dicts(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows if row]


def _colour(name: str) -> str:
    """That of ``COLOURS``; for a name that is not there one that depends on the name alone."""
    known = [each for each in COLOURS if name.startswith(each)]
    return COLOURS[max(known, key=len)] if known else f"C{crc32(name.encode()) % 10}"


def _grouped(panel: Any, groups: Sequence[str], values: Mapping[tuple[str, str], float | None]) -> None:
    """Bars: one group a name, one bar a series, a 99th percentile in a lighter shade; `values` by (series, group)."""
    series = list(dict.fromkeys(name for name, _ in values))
    width = 0.85 / len(series)
    for number, name in enumerate(series):
        places = [i + (number - (len(series) - 1) / 2) * width for i in range(len(groups))]
        heights, shade = [values.get((name, group)) or 0 for group in groups], 0.5 if name.endswith("p99") else 1.0
        panel.bar(places, heights, width, color=_colour(name), alpha=shade, label=name)
    panel.set_xticks(range(len(groups)), groups, fontsize=8)


def _legend(panel: Any, columns: int) -> None:
    """Above all bars."""
    low, high = panel.get_ylim()
    panel.set_ylim(top=high * (high / low) ** 0.2 if panel.get_yscale() == "log" else high * 1.2)
    panel.legend(fontsize=7, ncols=columns, loc="upper left")


if __name__ == "__main__":
    sys.exit(main())
