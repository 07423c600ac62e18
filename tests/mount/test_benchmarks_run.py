"""Each benchmark script runs to its end with the smallest sizes, and leaves nothing behind.

Those in SELDOM run only with AVM_TEST_BENCHMARKS=all: they start several daemons and share their parts with the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.results import read_json

pytestmark = pytest.mark.mount

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = {
    "bench_mount": ["--variants", "ext4,avmfs", "--ops", "stat,read,overwrite,append,create,unlink", "--clients", "2"],
    "bench_api": ["--times", "2"],
    "bench_store": ["--clients", "2", "--seconds", "0.2"],
    "bench_outbox": ["--clients", "2", "--seconds", "0.2"],
    "bench_audit": [],
    "bench_past": ["--notes", "60", "--rounds", "1", "--edits", "10"],
    "bench_attacks": ["--attacks", "tags,diffs", "--seconds", "0.2"],
    "bench_guarded": ["--agents", "1,2", "--seconds", "0.2"],
    "bench_contention": ["--agents", "1,2", "--seconds", "0.2"],
    "bench_coherence": ["--mounts", "2", "--checks", "64", "--variants", "ext4,avmfs"],
    "bench_programs": ["--notes", "60", "--variants", "ext4,avmfs"],
    "bench_beside": ["--ops", "stat"],
    "bench_files": [],
    "bench_http": ["--sizes", "60", "--pairs", "2"],
    "bench_idle": ["--mounts", "2"],
    "bench_live": [],
    "bench_mail": ["--messages", "20"],
    "bench_recovery": ["--kills", "1", "--victims", "child"],
    "bench_start": ["--programs", "avm read,avm-mcp: first answer,hook claude prompt"],
    "bench_vectors": ["--sizes", "200", "--queries", "5"],
    "bench_index": ["--sizes", "0,300", "--questions", "6"],
    "bench_recall": ["--sizes", "60"],
    "bench_engines": ["--queries", "4", "--memories", "32"],
    "bench_embedding": ["--engine", "static", "--notes", "10", "--burst", "10"],
    "bench_discovery": ["--agents", "2,8", "--questions", "5"],
    "bench_agent_efficiency": ["--budgets", "100,500"],
    "bench_academic": [str(ROOT / "benchmarks/data/longmemeval.json"), "--budgets", "200"],
    "bench_value": ["--categories", "real_world"],
    "bench_hosts": ["--hosts", "2"],
    "bench_ablation": ["--parts", "writer,reads", "--seconds", "0.1"],
}
SELDOM = {
    "bench_ablation",
    "bench_api",
    "bench_store",
    "bench_outbox",
    "bench_guarded",
    "bench_programs",
    "bench_beside",
    "bench_files",
    "bench_http",
    "bench_idle",
    "bench_live",
    "bench_mail",
    "bench_vectors",
    "bench_index",
    "bench_recall",
    "bench_engines",
    "bench_embedding",
    "bench_discovery",
    "bench_agent_efficiency",
    "bench_academic",
    "bench_value",
    "bench_recovery",
    "bench_attacks",
    "bench_past",
    "bench_hosts",
}
ALL = os.environ.get("AVM_TEST_BENCHMARKS") == "all"


@pytest.fixture
def world() -> None:
    """Not the module's daemon: the scripts start their own."""


@pytest.fixture(autouse=True)
def _no_hanging() -> None:
    """The scripts have time limits of their own, and the call below has one."""


@pytest.mark.parametrize("script", [script for script in RUNS if ALL or script not in SELDOM])
def test_a_script_measures_every_variant_and_leaves_no_mount(script: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", f"benchmarks.{script}", "--quick", "--local", str(tmp_path), "--json", str(result)]
    done = subprocess.run(
        [*command, *RUNS[script]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), f"{ROOT}/daemon", f"{ROOT}/config"])},
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    report = read_json(result)
    assert report.failures == {}
    assert report.tables
    assert all(row for table in report.tables for row in table.rows[:1])
    assert [target.what for target in report.targets if "wrong of" in target.what and target.verdict != "met"] == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
