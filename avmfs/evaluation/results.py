"""The files of an evaluation's run, and what became worse since an earlier one.

Below FOLDER/subjects/agents/SUBJECT/runs/RUN: ``report-native.json`` (all of a Result), ``manifest.json`` (run, content
hash of the report, time, verdict, metrics), ``summary.json`` (what a dashboard shows). A folder appears whole or not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from avmfs.errors import Invalid
from avmfs.evaluation.runner import Result

OVERALL_WORSE, CATEGORY_WORSE = 5.0, 10.0  # points
_SUBJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def native(result: Result, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """``conditions``: what was asked how, beside the preset; two runs are compared under the same alone."""
    return {**asdict(result), "passed": result.passed, "verdict": result.verdict, "conditions": dict(conditions)}


def subject(name: str) -> str:
    if not _SUBJECT.match(name):
        raise Invalid(f"subject {name!r}: letters, digits, '.', '_' and '-', since it names a folder")
    return name


def write(folder: Path, result: Result, conditions: Mapping[str, Any], worse: list[str]) -> Path:
    """The run's folder."""
    at = datetime.now(UTC)
    run = f"{at:%Y%m%dT%H%M%SZ}-{result.preset}-{secrets.token_hex(2)}"
    report = json.dumps(native(result, conditions), indent=1, ensure_ascii=False).encode() + b"\n"
    metrics = {one.name: one.score for one in result.categories}
    manifest = {
        "run_id": run,
        "content_hash": f"sha256:{hashlib.sha256(report).hexdigest()}",
        "timestamp": at.isoformat(timespec="seconds"),
        "verdict": result.verdict,
        "metrics": {"overall_score": result.overall_score, **metrics},
    }
    summary = {
        "subject": result.subject,
        "preset": result.preset,
        "overall_score": result.overall_score,
        "grade": result.grade,
        "verdict": result.verdict,
        "passed": result.passed,
        "categories": metrics,
        "unanswered": sum(bool(each.error) for one in result.categories for each in one.scenarios),
        "judge_failures": judge_failures(result),
        "worse_than_baseline": worse,
    }
    runs = folder / "subjects" / "agents" / result.subject / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=runs))
    (making / "report-native.json").write_bytes(report)
    for name, value in (("manifest.json", manifest), ("summary.json", summary)):
        (making / name).write_text(json.dumps(value, indent=1) + "\n")
    making.chmod(0o755)
    os.rename(making, runs / run)
    return runs / run


def judge_failures(result: Result) -> int:
    everything = [each for one in result.categories for each in one.scenarios]
    return sum(each.graded_by == "assertions" and bool(each.judge) for each in everything)


def read(baseline: Path) -> Mapping[str, Any]:
    """A run's folder, or its report-native.json. Raises Invalid naming it."""
    path = baseline / "report-native.json" if baseline.is_dir() else baseline
    try:
        found = json.loads(path.read_text("utf-8"))
        _ = found["overall_score"], found["preset"], found["conditions"]
        _ = [(one["name"], one["score"]) for one in found["categories"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{path}: no report of an evaluation ({error!r})") from error
    return dict(found)


def comparable(before: Mapping[str, Any], preset: str, conditions: Mapping[str, Any]) -> None:
    """Raises Invalid when an earlier run was of another preset, or asked under other conditions."""
    for what, old, new in (("preset", before["preset"], preset), ("conditions", before["conditions"], conditions)):
        if old != new:
            raise Invalid(f"the baseline is not to be compared: its {what} {old}, now {new}")


def worse(before: Mapping[str, Any], now: Result) -> list[str]:
    """What fell by more than 5 points overall, or 10 in a category."""
    old = {one["name"]: one["score"] for one in before["categories"]}
    lines = []
    if now.overall_score < before["overall_score"] - OVERALL_WORSE:
        lines.append(f"overall: {before['overall_score']:.1f} -> {now.overall_score:.1f}")
    for one in now.categories:
        if old.get(one.name) is not None and one.score < old[one.name] - CATEGORY_WORSE:
            lines.append(f"{one.name}: {old[one.name]:.1f} -> {one.score:.1f}")
    return lines
