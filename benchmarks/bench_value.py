"""What a shared memory is worth to agents: 48 scenarios in five categories, from the conversation alone and with avmfs.

    python -m benchmarks.bench_value [--categories NAME,…] [--scenarios NAME,…] [--answers FILE] [--json FILE] [--quick]
        [--endpoint URL --model NAME [--kind openai|azure|anthropic] [--key-variable NAME] [--judge]]

Without an endpoint a reader that concludes nothing answers with what it was shown: how much
the memory makes *available*. With one, the model answers, and with --judge grades as well; never compare the two.
--answers keeps what was answered, so that a run that was stopped goes on. A scenario is right when all that it asserts
holds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from avmfs.evaluation.grading import judging
from avmfs.evaluation.models import ChatModel, Endpoint, OfflineReader
from avmfs.text.tokens import TokenCounter
from benchmarks.figures import BenchmarkError
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, options, positive, run_script
from benchmarks.value.scenario import load
from benchmarks.value.suite import ARMS, RECALL_TOKENS, Answer, Verdict
from benchmarks.value.suite import run as play_all

PUBLISHED = {"context_overflow": "4/8 -> 7/8", "knowledge_retrieval": "24/51 -> 34/51 assertions"}


def measure(run: Run) -> Findings:
    chosen = run.options
    scenarios = load(categories=chosen.categories.split(",") if chosen.categories else ())
    if chosen.scenarios:
        names = chosen.scenarios.split(",")
        scenarios = [one for one in scenarios if one.id in names]
        if missing := set(names) - {one.id for one in scenarios}:
            raise BenchmarkError(f"no scenario {', '.join(sorted(missing))}")
    if run.quick:  # one of each category
        scenarios = list({one.category: one for one in reversed(scenarios)}.values())
    model = _model(chosen)
    judge = judging(model) if chosen.judge and isinstance(model, Endpoint) else None
    run.begin(
        scenarios=f"{len(scenarios)}, each in two arms",
        answers_by=model.name + (", which also judges" if judge else ", graded by assertions"),
        recall=f"{RECALL_TOKENS} tokens of the default model, beside the conversation",
    )
    answers = list(play_all(scenarios, model, judge, chosen.answers, chosen.threads))
    failures = {f"{one.scenario}, {one.arm}": one.error for one in answers if one.error}
    prices = (chosen.price_in, chosen.price_out)
    tables = [
        _by_category(answers, judge is not None),
        _tokens(answers, prices, judge is not None),
        _by_scenario(answers),
    ]
    return Findings(tables, failures=failures, data={"answers": [_plain(one) for one in answers]})


def _model(chosen: argparse.Namespace) -> ChatModel:
    found = endpoint(chosen)
    if found is None and chosen.judge:
        raise BenchmarkError("--judge needs an --endpoint: the offline reader judges nothing")
    return found or OfflineReader(TokenCounter().count)


def endpoint(chosen: argparse.Namespace) -> Endpoint | None:
    """What `add_endpoint`'s options name; None: none is named."""
    if not chosen.endpoint:
        return None
    if not chosen.model:
        raise BenchmarkError("--endpoint needs --model")
    return Endpoint(
        chosen.kind, chosen.endpoint, chosen.model, os.environ.get(chosen.key_variable, ""), chosen.max_answer
    )


def _by_category(answers: Sequence[Answer], with_judge: bool) -> Table:
    columns = ["category", "scenarios"]
    kinds = ("right", "assertions", *(("judged", "judge failed") if with_judge else ()))
    columns += [f"{arm}: {what}" for arm in ARMS for what in kinds]
    rows: list[list[Value]] = []
    for category in [*dict.fromkeys(sorted(one.category for one in answers)), "all"]:
        row: list[Value] = [category, sum(_in(one, category, ARMS[0]) for one in answers)]
        for arm in ARMS:
            there = [one for one in answers if _in(one, category, arm)]
            passed = [held for one in there if one.verdict for held in one.verdict.passed]
            row += [sum(one.right for one in there), f"{sum(passed)}/{len(passed)}"]
            if with_judge:
                verdicts = [one.verdict.right for one in there if one.verdict]
                said = [right for right in verdicts if right is not None]
                row += [f"{sum(said)}/{len(said)}", len(verdicts) - len(said)]
        rows.append([*row, PUBLISHED.get(category)])
    return Table("right answers", [*columns, "published"], rows)


def _tokens(answers: Sequence[Answer], prices: tuple[float | None, float | None], with_judge: bool) -> Table:
    spent: dict[str, list[Answer | Verdict]] = {arm: [one for one in answers if one.arm == arm] for arm in ARMS}
    if with_judge:
        spent["judge"] = [one.verdict for one in answers if one.verdict]
    rows: list[list[Value]] = []
    for what, there in spent.items():
        given, got = sum(one.tokens_in for one in there), sum(one.tokens_out for one in there)
        cost = None if None in prices else (given * (prices[0] or 0) + got * (prices[1] or 0)) / 1e6
        rows.append([what, given, got, given / max(len(there), 1), cost])
    return Table("tokens", ["arm", "in", "out", "in, a scenario", "cost"], rows)


def _by_scenario(answers: Sequence[Answer]) -> Table:
    by = {(one.scenario, one.arm): one for one in answers}
    rows: list[list[Value]] = []
    for one in sorted(answers, key=lambda one: (one.category, one.scenario)):
        if one.arm == ARMS[0]:
            pair = [by[one.scenario, arm] for arm in ARMS]
            rows.append([one.scenario, one.category, *map(_held, pair)])
    return Table("each scenario: assertions that held", ["scenario", "category", *ARMS], rows)


def _held(one: Answer) -> str:
    return f"{sum(one.verdict.passed)}/{len(one.verdict.passed)}" if one.verdict else "no answer"


def _in(one: Answer, category: str, arm: str) -> bool:
    return one.arm == arm and category in (one.category, "all")


def _plain(one: Answer) -> dict[str, Value | list[bool]]:
    verdict = one.verdict
    passed = list(verdict.passed) if verdict else []
    return {
        "scenario": one.scenario,
        "arm": one.arm,
        "text": one.text,
        "passed": passed,
        "judge": verdict.judge if verdict else "",
    }


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answers", type=Path, metavar="FILE", help="keep answers there, and go on from it")
    parser.add_argument("--endpoint", metavar="URL", help="up to /v1 (openai), or the host (azure, anthropic)")
    parser.add_argument("--kind", choices=("openai", "azure", "anthropic"), default="openai")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="holds the key (%(default)s)")
    parser.add_argument("--max-answer", type=positive, default=300, metavar="TOKENS", help="%(default)s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_value", "one scenario of each category")
    parser.add_argument("--scenarios", metavar="NAME,…", help="some alone")
    parser.add_argument("--categories", metavar="NAME,…", help="some of the files of benchmarks/value/scenarios")
    parser.add_argument("--threads", type=positive, default=4, metavar="N", help="at once (%(default)s)")
    add_endpoint(parser)
    parser.add_argument("--judge", action="store_true", help="the model grades as well")
    parser.add_argument("--price-in", type=float, metavar="X", help="of a million tokens")
    parser.add_argument("--price-out", type=float, metavar="X")
    return run_script("What a shared memory is worth", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
