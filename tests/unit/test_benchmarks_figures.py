"""The arithmetic of the benchmarks: what a figure is made of, and what the judges judge."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import bench_files, bench_paper, bench_recovery, report
from benchmarks.ablation_ops import PATTERNS, accesses, lru_hits
from benchmarks.bench_recovery import CLIENT
from benchmarks.figures import (
    BenchmarkError,
    Round,
    Timing,
    interval,
    over_rounds,
    percentile,
    ratio,
    rotated,
    summarize,
)
from benchmarks.race_ops import EMPTY, judge
from benchmarks.report import document
from benchmarks.results import (
    Report,
    Table,
    Target,
    Value,
    compared,
    markdown,
    measured,
    read_json,
    read_reports,
    rounded,
    shown,
    write_json,
)
from benchmarks.rounds import take_turns
from benchmarks.script import _without_json
from benchmarks.script import command as named

MS = 1_000_000


def _round(per_second: float, **other: float) -> Round:
    values = {"n": 10, "median_us": 1.0, "p99_us": 2.0, "max_us": 3.0, "fairness": 1.0, **other}
    return Round(per_second=per_second, **values)  # type: ignore[arg-type]


def test_a_percentile_is_by_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1) == 100
    assert percentile(values, 0) == 1
    assert percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3  # of fewer than 100 the last
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_a_round_spans_from_the_first_start_to_the_last_end() -> None:
    slow = Timing([4 * MS, 4 * MS], started_ns=0, ended_ns=8 * MS)
    fast = Timing([1 * MS] * 8, started_ns=2 * MS, ended_ns=10 * MS)
    found = summarize([slow, fast])
    assert found.n == 10
    assert found.per_second == 10 / 0.010
    assert (found.median_us, found.p99_us, found.max_us) == (1000, 4000, 4000)
    assert found.fairness == 2 / 8


def test_a_client_that_got_nothing_done_makes_a_round_wholly_unfair() -> None:
    assert summarize([Timing([MS], 0, MS), Timing([], 0, 0)]).fairness == 0


def test_a_round_without_any_operation_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(BenchmarkError, match="no operation"):
        summarize([Timing([], 0, 0)])


def test_a_figure_is_the_median_of_rounds_but_for_the_worst_wait() -> None:
    found = over_rounds([_round(100, max_us=5.0), _round(300, max_us=50.0), _round(110, max_us=7.0)])
    assert (found.per_second, found.max_us, found.n) == (110, 50, 30)


def test_a_ratio_compares_within_rounds_so_that_a_slow_round_does_not_count() -> None:
    variant = {0: _round(50), 1: _round(5), 2: _round(60)}
    baseline = {0: _round(100), 1: _round(10), 2: _round(100), 3: _round(1)}
    found = ratio(variant, baseline)
    assert found is not None
    assert (found.median, found.least, found.most) == (0.5, 0.5, 0.6)
    assert ratio({7: _round(1)}, baseline) is None


def test_every_variant_goes_first_in_turn() -> None:
    assert [rotated("abc", by)[0] for by in range(4)] == ["a", "b", "c", "a"]
    order: list[str] = []
    take_turns(2, ["x"], ["a", "b"], {}, lambda cell, variant, loop: order.append(variant))
    assert order == ["a", "b", "b", "a"]


def test_a_variant_that_breaks_off_costs_its_own_column_only() -> None:
    failures: dict[str, str] = {}

    def one(cell: str, variant: str, loop: int) -> Round:
        if variant == "bad":
            raise BenchmarkError("hung")
        return _round(10)

    outcome = take_turns(3, ["x"], ["good", "bad"], failures, one)
    assert outcome.figure("x", "bad") is None
    assert outcome.figure("x", "good") is not None
    assert outcome.failures == {"bad": "hung"}
    assert len(outcome.of("x", "good")) == 3


def test_a_look_is_judged_by_what_had_been_acknowledged_before_it_and_begun_after_it() -> None:
    assert judge(False, acked=3, state=3, begun=3)
    assert judge(False, acked=3, state=4, begun=4)  # overlaps a change: the new state may be seen
    assert not judge(False, acked=3, state=2, begun=3)  # older than acknowledged
    assert not judge(False, acked=3, state=4, begun=3)  # of a change that has not begun
    assert not judge(False, acked=3, state=EMPTY, begun=3)
    assert judge(False, acked=3, state=EMPTY, begun=4)
    assert judge(True, acked=3, state=1, begun=3)
    assert not judge(True, acked=3, state=0, begun=3)
    assert judge(True, acked=3, state=0, begun=4)


def test_a_target_says_whether_it_is_met_and_nothing_where_nothing_was_measured() -> None:
    assert Target("a", 0.6, ">=", 0.6).verdict == "met"
    assert Target("a", 0.59, ">=", 0.6).verdict == "MISSED"
    assert Target("a", 20.1, "<=", 20).verdict == "MISSED"
    assert Target("a", None, "<=", 20).verdict == "not measured"
    assert measured("a", [], "<=", 20).verdict == "not measured"


def test_what_was_measured_meets_a_target_when_its_interval_does() -> None:
    assert measured("a", [0.7, 0.8, 0.6], ">=", 0.6).verdict == "met"
    assert measured("a", [0.7, 0.8, 0.59], ">=", 0.6).verdict == "undecided"  # the median alone would do
    assert measured("a", [0.5, 0.4, 0.59], ">=", 0.6).verdict == "MISSED"
    assert measured("a", [0.9, 0.9], ">=", 0.6).verdict == "undecided"  # two rounds decide nothing
    many = [1.0] * 30 + [9.0]  # a single stray round of many
    assert measured("a", many, "<=", 2).verdict == "met"
    tail = measured("a", [float(n) for n in range(1, 1001)], "<=", 996, share=0.99)
    assert (tail.value, tail.verdict) == (990, "undecided")


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    chance = random.Random(1)
    for n in (5, 15, 60):
        held = [
            least <= 0 <= most
            for least, most in (interval([chance.gauss(0, 1) for _ in range(n)]) for _ in range(1000))
        ]
        assert 0.92 <= sum(held) / len(held) <= 1.0


def test_an_earlier_result_is_compared_figure_by_figure_and_verdict_by_verdict(tmp_path: Path) -> None:
    def result(rate: float, spread: str, ratios: list[float]) -> Report:
        table = Table("t", ("who", "of rounds", "ops/s", "N"), [("avmfs", spread, rate, 10)])
        return Report("store", "s", "python -m x", {}, [table], [measured("r", ratios, ">=", 0.5)])

    before, after = tmp_path / "old", tmp_path / "new"
    for folder, found in (
        (before, result(100.0, "0.9..1.1", [0.6] * 3)),
        (after, result(80.0, "0.8..1.2", [0.4] * 3)),
    ):
        folder.mkdir()
        write_json(folder / "store.json", found)
    assert compared(read_reports(before), read_reports(before)) == []
    assert compared(read_reports(before), read_reports(after)) == [
        "  python -m x: t: avmfs: ops/s: 100 -> 80.0 (-20%)",
        "  python -m x: target: r: met -> MISSED",
    ]
    told = _run_module("benchmarks.report", "--against", before, after)
    assert told.returncode == 0 and "MISSED" in told.stdout and "3 of 3 figures" in told.stdout
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no results"):
        read_reports(tmp_path / "empty")


@pytest.mark.parametrize("path", sorted(report.RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_a_result_differs_from_itself_in_nothing(path: Path) -> None:
    assert compared(read_reports(path), read_reports(path)) == []


def test_figures_in_words_from_nothing_and_to_nothing_are_compared_wherever_the_files_lay() -> None:
    def result(command: str, *rows: tuple[Value, ...]) -> Report:
        return Report("x", "x", f"python -m x{command}", {}, [Table("t", ("kind", "size", "held", "ms", "ms"), rows)])

    before = result(" --local tmp -n 3", ("a", 10, "45/52", 0, 5.0), ("a", 20, "95.0 %", 1.0, 6.0), ("b", 10, "1/2"))
    after = result(" -n 3", ("a", 10, "30/52", 0.3, 5.0), ("a", 20, "50.0 %", 1.0, 6.0))
    assert compared([before], [after, result(" -n 4", ("a", 10, "1/52"))]) == [
        "  python -m x -n 3: t: a: held: 45/52 -> 30/52 (-33%)",
        "  python -m x -n 3: t: a: ms: 0 -> 0.300",
        "  python -m x -n 3: t: a (2): held: 95.0 % -> 50.0 % (-47%)",
        "  python -m x -n 3: t: b: size: 10 -> nothing",
        "  python -m x -n 3: t: b: held: 1/2 -> nothing",
    ]


def test_a_report_survives_its_json_and_names_its_command_in_markdown(tmp_path: Path) -> None:
    table = Table("t", ("a", "b us"), [("x|y", 1234.5), (), ("z", None)])
    report = Report("store", "title", "python -m x", {"cpu": "c"}, [table], [Target("t", 1.0, ">=", 2)], {"v": "why"})
    write_json(tmp_path / "r.json", report)
    again = read_json(tmp_path / "r.json")
    assert markdown(again) == markdown(report)
    assert "`python -m x`" in markdown(report)
    assert "| x\\|y | 1,234 |" in markdown(report)
    assert "| t | 1.00 >= 2.00 | MISSED |" in markdown(report)
    (tmp_path / "bad.json").write_text('{"tables": 3}')
    with pytest.raises(ValueError, match=r"bad\.json"):
        read_json(tmp_path / "bad.json")


def test_the_command_that_makes_a_figure_again_says_nothing_of_where_its_json_went() -> None:
    assert list(_without_json(["--quick", "--json", "/x/y", "--rounds", "2"])) == ["--quick", "--rounds", "2"]
    assert list(_without_json(["--json=/x", "--quick"])) == ["--quick"]


def test_figures_are_shown_with_three_significant_digits_and_all_whole_ones() -> None:
    assert [rounded(x) for x in (0.0123456, 4.5678, 12345.6, 0)] == ["0.0123", "4.57", "12,346", "0"]
    assert [shown(x) for x in (None, "text", 12345, 0.5)] == ["-", "text", "12,345", "0.500"]


def test_the_hits_of_an_lru_are_counted_after_the_warm_part() -> None:
    assert lru_hits([1, 2, 1, 2, 3, 1], size=2, warm=2) == 2 / 4
    assert lru_hits([1, 2, 3] * 10, size=2, warm=3) == 0  # a loop one longer than the cache


def test_access_patterns_are_what_they_are_called() -> None:
    n = 20_000
    orders = {pattern: list(accesses(pattern, 500, n, random.Random(1))) for pattern in PATTERNS}
    assert all(len(order) == n and min(order) >= 0 and max(order) < 500 for order in orders.values())
    hits = {pattern: lru_hits(order, 50, 1000) for pattern, order in orders.items()}
    assert hits["Zipf"] > hits["temporal"] > hits["uniform"]
    assert hits["uniform"] == pytest.approx(0.1, abs=0.02)
    distinct = {pattern: len(set(order[-400:])) for pattern, order in orders.items()}
    assert distinct["working set"] < distinct["uniform"]


def test_a_client_that_hangs_after_a_kill_waits_until_the_end_and_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "mount/memory"
    place.mkdir(parents=True)
    hangs = CLIENT.replace(
        '    if kind == "read":', '    while kind == "read" and os.path.exists(f"{place}/hang"):\n', 1
    )
    hangs = hangs.replace('hang"):\n', 'hang"):\n        time.sleep(60)\n    if kind == "read":', 1)
    monkeypatch.setattr(bench_recovery, "CLIENT", hangs)
    monkeypatch.setattr(bench_recovery, "HUNG_S", 0.5, raising=False)

    def killed(environment: object, victim: str) -> list[int]:
        limit = time.monotonic() + 60
        while not bench_recovery._began(tmp_path / "client0") and time.monotonic() < limit:
            time.sleep(0.01)
        (place / "hang").touch()
        return []

    monkeypatch.setattr(bench_recovery, "_ready", killed)
    daemon = SimpleNamespace(mountpoints={"bench": place.parent}, data=tmp_path / "data", environment={})
    waits, quiet, errors = bench_recovery._measure(cast(Any, daemon), "child", 2, 1)
    assert min(*waits, *quiet) > bench_recovery.WINDOW_S["child"], "what is still open counts until now"
    assert [error for error in errors if "client0" in error]


def test_a_wide_directory_is_judged_by_its_first_listing_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.wide.fill", lambda *_: None)
    listed: set[str] = set()

    def call(command: str, limit_s: float, folder: str, **_: Any) -> dict[str, float]:
        if command == "fill":
            return {}
        known = folder in listed
        listed.add(folder)
        return {"first_s": 0.001 if known else 2.0, "whole_s": 3.0, "stat_s": 0.0}

    clients: Any = dict.fromkeys(bench_files.VARIANTS, SimpleNamespace(call=call))
    table, first_ms = bench_files._wide(3, {name: Path(name) for name in clients}, clients, 9, cast(Any, None))
    assert measured("x", first_ms, "<=", 1000).verdict == "MISSED" and len(table.rows) == 6


def test_results_become_a_page_and_pictures(tmp_path: Path) -> None:
    curves = {name: [(1, 100.0, 5.0), (16, 90.0, 50.0)] for name in ("published", "avmfs")}
    data = {"agents, total per second, p99 in ms": curves}
    result = tmp_path / "contention.json"
    table = Table("t", ("agents", "total /s"), [("1", 100.0)])
    target = Target("x", 1.0, ">=", 0.5)
    write_json(result, Report("contention", "writers", "python -m y", {"cpu": "c"}, [table], [target], data=data))

    page = _run_module("benchmarks.report", result)
    assert page.returncode == 0
    assert "## writers" in page.stdout
    assert "| bench_contention | 1 | 0 | 0 | 0 |" in page.stdout
    shown = document([read_json(result)], ["plots/contention.svg", "plots/mount.svg"])
    assert shown == page.stdout + "\n![writers](plots/contention.svg)\n"
    bad = _run_module("benchmarks.report", tmp_path / "missing.json")
    assert bad.returncode == 2
    assert "missing.json" in bad.stderr

    drawn = _run_module("benchmarks.plots", "--out", tmp_path / "plots", result)
    if importlib.util.find_spec("matplotlib") is None:
        assert drawn.returncode == 2
        assert "avmfs[bench]" in drawn.stderr
    else:
        assert drawn.returncode == 0, drawn.stderr
        assert "<svg" in (tmp_path / "plots/contention.svg").read_text()


def test_two_runs_of_one_script_are_told_apart_by_their_arguments() -> None:
    target = Target("x", 1.0, ">=", 0.5)
    runs = [
        Report(name, f"what {name} is", f"python -m benchmarks.bench_{name}{words}", {}, [], [target])
        for name, words in (("recall", ""), ("recall", " --sizes 9 --rounds 2"), ("idle", " --nodes 3"))
    ]
    lines = document(runs).splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## what recall is",
        "## what recall is, --sizes 9 --rounds 2",
        "## what idle is",
    ]
    assert [line for line in lines if line.startswith("| bench_")] == [
        "| bench_recall | 1 | 0 | 0 | 0 |",
        "| bench_recall, --sizes 9 --rounds 2 | 1 | 0 | 0 | 0 |",
        "| bench_idle | 1 | 0 | 0 | 0 |",
    ]


def test_the_readme_takes_its_figures_from_the_results_that_it_names() -> None:
    table = Table("t", ("agents", "variant", "total /s"), [("1", "avmfs", 5.0), (), ("16", "avmfs", 801.4)])
    facts = {"commit": "abc, changed", "load": "9.6 8.0 7.0 when the run began"}
    quick = Report("contention", "c", "python -m benchmarks.bench_contention --quick", facts, [table])
    pick = report.Pick("together", "contention", ("16", "avmfs"), "total /s", "/s", "210/s")
    assert pick.found([quick]) == (quick, 801.4)
    assert report.Pick("", "contention$", ("16", "avmfs"), "total /s", "", "").found([quick]) is None  # another form
    assert report.Pick("", "contention", ("16", "avmfs"), "p99", "", "").found([quick]) is None
    told = report.readme_table()
    for each in report.PICKS:  # what is named there has been measured, or the table is short of it
        assert each.what in told, each


def test_a_suite_that_was_stopped_goes_on_with_what_has_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    broken = {"idle"}

    real = subprocess.run

    def measured_by(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        script = str(command[2]).partition("benchmarks.bench_")[2]
        if not script:  # pictures, versions
            return real(command, **options)
        asked.append(script)
        failures = {"avmfs": "broke off"} if script in broken else {}
        write_json(
            Path(command[command.index("--json") + 1]),
            Report(
                script, script, named(f"python -m benchmarks.bench_{script}", command[3:]), {}, [], failures=failures
            ),
        )
        return subprocess.CompletedProcess(command, int(bool(failures)))

    monkeypatch.setattr(subprocess, "run", measured_by)
    words = ["--output", str(tmp_path), "--resume", "--sections"]
    assert bench_paper.main([*words, "start"]) == 1
    assert {report.benchmark for report in read_reports(tmp_path / "results.json")} == {"start", "idle"}
    broken.clear()
    assert bench_paper.main([*words, "start,tokens"]) == 0
    assert asked == ["start", "idle", "idle", "agent_efficiency"], "what has figures is not measured again"
    reports = read_reports(tmp_path / "results.json")
    assert sorted(report.benchmark for report in reports) == ["agent_efficiency", "idle", "start"]
    assert not any(report.failures for report in reports)
    assert bench_paper.main([*words, "start", "--quick"]) == 0 and asked[4:] == ["start", "idle"], "not of other sizes"
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(SystemExit) as refused:
        bench_paper.main([*words, "start"])
    assert refused.value.code == 2


def _run_module(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parent.parent.parent
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=root, capture_output=True, text=True, timeout=300
    )
