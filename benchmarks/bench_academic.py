"""LoCoMo and LongMemEval: is the evidence found, how much of it fits a budget of tokens, and are answers right.

    python -m benchmarks.bench_academic PATH [--limit N] [--budgets 250,1000] [--json FILE]
        [--endpoint URL --model NAME [--kind openai|azure|anthropic] [--key-variable NAME] [--answers FILE]]

PATH is a published file of either set (benchmarks/academic.py says where they are; benchmarks/data has a few lines of
each shape), or NAME.memories.jsonl. Every history is a store of its own, one note a turn, with its time and speaker.

*any@k* is the share of questions of which some evidence is among the first k hits, *all@k* that of which all is: the
two differ much where an answer needs several turns, and are never mixed. By session, the first hit counts for each.
*Coverage* is the share of the evidence whose text stands in a recall of so many tokens (as recall_quality counts it).
What nothing answers is left out of both. With --endpoint the model answers from a recall of 1,000 tokens and judges the
answers against the gold ones; a judge that fails is counted apart; F1 of words stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from avmfs.evaluation.grading import judging
from avmfs.evaluation.models import Endpoint, ModelError, silent
from benchmarks import academic, avm_adapter
from benchmarks.academic import UNANSWERABLE, History, Question
from benchmarks.bench_value import add_endpoint, endpoint
from benchmarks.recall_quality import COVERED, grams, interval
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, options, positive, positive_numbers, run_script
from benchmarks.value.suite import Answer, append_answer, graded, key_of, read_answers, settled

DEPTHS = (1, 5, 10, 30)
BUDGETS = (250, 500, 1000, 2000, 4000)
SHOWN_TOKENS = 1000
NO_ANSWER = "It is not said."


def measure(run: Run) -> Findings:
    chosen = run.options
    histories = limited(academic.load(chosen.data), 3 if run.quick else chosen.limit)
    model = endpoint(chosen)
    questions = [question for history in histories for question in history.questions]
    run.begin(
        data=f"{chosen.data.name}: {len(histories)} histories of {sum(len(one.turns) for one in histories):,} turns",
        questions=f"{len(questions):,}, spread evenly; {sum(one.unplaced for one in histories)} more name no turn",
        recall="the default model; one note a turn, with its time and speaker",
        fitted_on="LoCoMo's development half",
        **({"answers": f"by {model.name}, from {SHOWN_TOKENS:,} tokens, judged by itself"} if model else {}),
    )
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    answers: list[tuple[Question, Answer]] = []
    before = read_answers(chosen.answers) if chosen.answers else {}
    for history in histories:
        adapter = avm_adapter.Adapter()
        adapter.ingest([dict(turn) for turn in history.turns])
        try:
            for question in history.questions:
                if question.category not in UNANSWERABLE:
                    row = _found(adapter, history, question, chosen.budgets)
                    rows[question.category].append(row)
                    rows["all"].append(row)
                if model is not None and (question.answer or question.category in UNANSWERABLE):
                    answers.append((question, _answered(adapter, history, question, model, before, chosen.answers)))
        finally:
            adapter.close()
    failures = {one.id: answer.error for one, answer in answers if answer.error}
    tables = [*_tables(rows, chosen.budgets), *([_answers(answers)] if answers else [])]
    return Findings(tables, failures=failures)


def limited(histories: Sequence[History], limit: int | None) -> list[History]:
    """So many questions, spread evenly; histories without any are left out."""
    every = [(history, question) for history in histories for question in history.questions]
    if limit is not None and limit < len(every):
        every = [every[at * len(every) // limit] for at in range(limit)]
    kept: dict[int, list[Question]] = defaultdict(list)
    for history, question in every:
        kept[id(history)].append(question)
    return [History(one.name, one.turns, kept[id(one)], one.unplaced) for one in histories if kept[id(one)]]


def _found(
    adapter: avm_adapter.Adapter, history: History, question: Question, budgets: Sequence[int]
) -> dict[str, float]:
    """A figure by column."""
    session = {turn["id"]: turn["session"] for turn in history.turns}
    hits = adapter.search(question.text, max(DEPTHS))
    sessions = list(dict.fromkeys(session[one] for one in hits))
    wanted = frozenset(session[one] for one in question.relevant)
    row: dict[str, float] = {}
    for what, places in (
        ("turn", academic.ranks(hits, question.relevant)),
        ("session", academic.ranks(sessions, wanted)),
    ):
        row |= {f"{what} any@{k}": float(academic.any_at(places, k)) for k in DEPTHS}
        row |= {f"{what} all@{k}": float(academic.all_at(places, k)) for k in DEPTHS}
    texts = {turn["id"]: grams(turn["text"]) for turn in history.turns if turn["id"] in question.relevant}
    for budget in budgets:
        there = grams(adapter.recall(question.text, budget))
        held = [len(each & there) >= COVERED * len(each) for each in texts.values()]
        row[f"{budget:,}"] = statistics.fmean(held)
    return row


def _answered(
    adapter: avm_adapter.Adapter,
    history: History,
    question: Question,
    model: Endpoint,
    before: Mapping[str, Answer],
    kept: Path | None,
) -> Answer:
    """From a recall. What was answered, or judged, before under the same key is not asked again."""
    asked = f"(Asked on {question.asked}) {question.text}" if question.asked else question.text
    key = key_of(question, history.turns, model)
    answer = before.get(key)
    if answer is None:
        shown = adapter.recall(question.text, SHOWN_TOKENS)
        try:
            reply = model.ask(shown, asked)
        except ModelError as error:
            return Answer(question.id, question.category, "avmfs", error=str(error))
        answer = Answer(question.id, question.category, "avmfs", reply.text, reply.tokens_in, reply.tokens_out)
    elif settled(answer, model):
        return answer
    passed = (silent(answer.text),)
    answer = graded(answer, passed, judging(model), question.text, question.answer or NO_ANSWER)
    if kept is not None:
        append_answer(kept, key, answer)
    return answer


# ---- what was found ----


def _tables(rows: Mapping[str, Sequence[Mapping[str, float]]], budgets: Sequence[int]) -> Iterator[Table]:
    categories = sorted(rows, key=lambda name: (name == "all", name))
    for what in ("turn", "session"):
        columns = [f"{what} {kind}@{k}" for kind in ("any", "all") for k in DEPTHS]
        told: list[Sequence[Value]] = [
            (category, len(rows[category]), *(_mean(rows[category], column) for column in columns))
            for category in categories
        ]
        yield Table(f"evidence among the first k, by {what}", ("questions", "N", *columns), told)
    columns = [f"{budget:,}" for budget in budgets]
    covered: list[Sequence[Value]] = []
    for category in categories:
        last = interval([row[columns[-1]] for row in rows[category]]).partition(" ")[2]
        means = (_mean(rows[category], column) for column in columns)
        covered.append((category, len(rows[category]), *means, last.strip("[]").replace(", ", "..")))
    yield Table(
        "share of the evidence that stands in a recall, by tokens",
        ("questions", "N", *columns, f"95 % of {columns[-1]}"),
        covered,
    )


def _mean(rows: Sequence[Mapping[str, float]], column: str) -> float:
    return statistics.fmean(row[column] for row in rows)


def _answers(answers: Sequence[tuple[Question, Answer]]) -> Table:
    by: dict[str, list[tuple[Question, Answer]]] = defaultdict(list)
    for one in answers:
        for category in (one[0].category, "all"):
            by[category].append(one)
    rows: list[Sequence[Value]] = []
    for category in sorted(by, key=lambda name: (name == "all", name)):
        verdicts: list[tuple[Question, Answer, Any]] = [(q, a, a.verdict) for q, a in by[category] if a.verdict]
        said = [verdict.right for _, _, verdict in verdicts if verdict.right is not None]
        silence = [verdict.passed[0] for _, _, verdict in verdicts]
        words = [academic.f1(a.text, q.answer) for q, a, _ in verdicts if q.category not in UNANSWERABLE]
        rows.append(
            (
                category,
                len(by[category]),
                f"{sum(said)}/{len(said)}",
                len(verdicts) - len(said),
                statistics.fmean(words) if words else None,
                sum(silence),
            )
        )
    columns = ("questions", "N", "judged right", "judge failed", "F1", "said that they don't know")
    return Table("answers of the model", columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = options(__doc__, "bench_academic", "three questions")
    parser.add_argument("data", type=Path, metavar="PATH")
    parser.add_argument("--limit", type=positive, metavar="N", help="questions, spread evenly; all unless given")
    parser.add_argument("--budgets", type=positive_numbers, default=list(BUDGETS), metavar="N,N", help="of tokens")
    add_endpoint(parser)
    return run_script("LoCoMo and LongMemEval", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
