"""avm bench memory: an agent's memory evaluated, its results kept, and told.

Owns what the options mean, the table that is shown, and the exit status. The evaluation is avmfs.evaluation's.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click

from avmfs.cli.session import show, working
from avmfs.evaluation import PRESETS, Result, agents, results, run_memory_benchmark
from avmfs.evaluation.grading import judging
from avmfs.evaluation.models import ChatModel, Endpoint, OfflineReader
from avmfs.text.escapes import visible
from avmfs.text.tokens import TokenCounter


def evaluate(preset: str, subject: str, chosen: SimpleNamespace) -> None:
    """``chosen`` has the other options, by their names."""
    results.subject(subject)
    before = results.read(Path(chosen.baseline)) if chosen.baseline is not None else None
    counter = TokenCounter()
    model, judge = _models(chosen, counter)
    usual = PRESETS[preset]
    injected = usual.injected if chosen.inject is None else chosen.inject
    calls = usual.calls if chosen.calls is None else chosen.calls
    sent = usual.sent if chosen.sent is None else chosen.sent
    only = sorted(chosen.scenarios.split(",")) if chosen.scenarios else []
    conditions = {
        "language": chosen.language,
        "injected": injected,
        "calls": calls,
        "sent": sent,
        "window": chosen.window,
        "scenarios": only,
        "model": model.name,
        "judge": chosen.judge,
        "max_answer": chosen.max_answer,
        "memory": not chosen.no_memory,
    }
    if before is not None:
        results.comparable(before, preset, conditions)
    with ExitStack() as ending:
        store = None
        if not chosen.no_memory:
            folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="avm-evaluation-")))
            store = ending.enter_context(agents.own_store(folder, "subject"))
        progress = ending.enter_context(working(f"preset {preset}"))
        found = run_memory_benchmark(
            agents.factory(model, store, counter, chosen.window),
            replace(usual, injected=injected, calls=calls, sent=sent),
            subject=subject,
            judge=judge,
            languages=("en", "zh") if chosen.language == "all" else (chosen.language,),
            only=only,
            told=lambda what: setattr(progress, "what", what),
        )
    fell = results.worse(before, found) if before is not None else []
    kept_at = results.write(Path(chosen.output), found, conditions, fell)
    kept = {"answered_by": model.name, "worse_than_baseline": fell, "folder": str(kept_at)}
    told = {**results.native(found, conditions), **kept}
    show(told, _text(found, model.name, fell, kept_at))
    if fell or found.verdict == "FAIL":
        click.get_current_context().exit(2)


def _models(chosen: SimpleNamespace, counter: TokenCounter) -> tuple[ChatModel, ChatModel | None]:
    if chosen.endpoint is None:
        if chosen.judge is not None or chosen.model is not None:
            raise click.UsageError("--model and --judge need an --endpoint")
        return OfflineReader(counter.count), None
    if chosen.model is None:
        raise click.UsageError("--endpoint needs --model")
    key = os.environ.get(chosen.key_variable, "")
    model = Endpoint(chosen.kind, chosen.endpoint, chosen.model, key, chosen.max_answer)
    return model, judging(replace(model, name=chosen.judge)) if chosen.judge else None


def _text(found: Result, model: str, fell: list[str], folder: Path) -> str:
    lines = [f"{'dimension':<26}  {'score':>5}  {'scenarios':>9}  {'weight':>6}"]
    for one in found.categories:
        lines.append(f"{one.name:<26}  {one.score:>5.0f}  {len(one.scenarios):>9}  {one.weight:>6.1f}")
    failed = [f"  {each.scenario}: {each.error}" for one in found.categories for each in one.scenarios if each.error]
    lines += [f"unanswered: {len(failed)}", *failed] if failed else []
    if broken := results.judge_failures(found):
        lines.append(f"judge failed: {broken}, graded by assertions")
    lines.append(f"{found.verdict}: {found.overall_score:.1f}, grade {found.grade} (preset {found.preset}, {model})")
    lines += [f"worse than the baseline: {one}" for one in fell]
    return "\n".join(map(visible, [*lines, str(folder), ""]))
