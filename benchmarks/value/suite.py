"""Playing a scenario: once with the conversation alone, once with avmfs beside it.

*context*: the asker is shown what it has said and heard, the newest of it up to the scenario's window. *avmfs*: the
same, and before it what a recall of the question gives as that agent, from a store in which every agent has noted what
it said (idle talk too: agents remember their outputs). The store is the product's own, with its default model, read
through its Python API; a note that is private is private.

Answers are kept as they come, one line each in a file that is synced, under a key of everything that they depend on: a
run that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from avmfs.evaluation.agents import own_store
from avmfs.evaluation.grading import grade, judged
from avmfs.evaluation.models import ChatModel, Endpoint, ModelError, Reply
from avmfs.text.tokens import TokenCounter
from benchmarks.figures import BenchmarkError
from benchmarks.value.scenario import Event, Scenario

ARMS = ("context", "avmfs")
RECALL_TOKENS = 500


@dataclass(frozen=True)
class Verdict:
    passed: tuple[bool, ...]
    """One for each assertion."""
    right: bool | None = None
    """What the judge said; None where none was asked, or none could be understood."""
    judge: str = ""
    """The judge's reason, or why it failed."""
    tokens_in: int = 0
    """Of all that the judge was asked."""
    tokens_out: int = 0


@dataclass(frozen=True)
class Answer:
    """One scenario in one arm. `error`: the model did not answer; nothing is graded then."""

    scenario: str
    category: str
    arm: str
    text: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    verdict: Verdict | None = None
    error: str = ""

    @property
    def right(self) -> bool:
        """All that is asserted holds."""
        return self.verdict is not None and all(self.verdict.passed)


def conversation(scenario: Scenario, counter: TokenCounter) -> str:
    """What the asker still has of its conversation: the newest turns that fit its window, oldest first."""
    turns = [_turn(event) for event in scenario.events if event.heard_by(scenario.asker)]
    if scenario.window is None:
        return "\n".join(turns)
    kept, room = [], scenario.window
    for turn in reversed(turns):
        room -= counter.count(turn + "\n")
        if room < 0:
            break
        kept.append(turn)
    return "\n".join(reversed(kept))


def recalled(scenario: Scenario, folder: Path) -> str:
    """What avmfs hands the asker for its question, from an empty store in which the scenario has happened."""
    with own_store(folder, scenario.asker) as avm:
        for number, event in enumerate(scenario.events):
            space = f"private/{event.by}" if event.private else "shared"
            path = f"/memory/{space}/{event.path or f'log/{event.by}-{number:03}.md'}"
            avm.agent_memory(event.by).remember(event.text, path=path, created=event.at)
        avm.search("warm", limit=1)  # vectors of what was just written
        return avm.agent_memory().recall(scenario.question, max_tokens=RECALL_TOKENS)


def graded(answer: Answer, passed: tuple[bool, ...], judge: ChatModel | None, question: str, gold: str) -> Answer:
    """With its verdict. A judge that failed before is asked again, and what that cost is added to."""
    if answer.error:
        return answer
    right, why, said = (None, "", None) if judge is None else judged(judge, question, gold, answer.text)
    costs = [one for one in (answer.verdict, said) if one is not None]
    spent = (sum(one.tokens_in for one in costs), sum(one.tokens_out for one in costs))
    return replace(answer, verdict=Verdict(passed, right, why, *spent))


def settled(answer: Answer, judge: ChatModel | None) -> bool:
    """Nothing about it is to be asked again."""
    return judge is None or (answer.verdict is not None and answer.verdict.right is not None)


def play(scenario: Scenario, arm: str, model: ChatModel, counter: TokenCounter) -> Answer:
    shown = conversation(scenario, counter)
    if arm == "avmfs":
        with tempfile.TemporaryDirectory(prefix="avm-value-") as folder:
            shown = f"{recalled(scenario, Path(folder))}\n{shown}".strip()
    try:
        reply: Reply = model.ask(shown, scenario.question)
    except ModelError as error:
        return Answer(scenario.id, scenario.category, arm, error=str(error))
    return Answer(scenario.id, scenario.category, arm, reply.text, reply.tokens_in, reply.tokens_out)


def run(
    scenarios: Sequence[Scenario], model: ChatModel, judge: ChatModel | None, kept: Path | None, threads: int
) -> Iterator[Answer]:
    """Every scenario in both arms, in the order in which they end; what ``kept`` holds already is not asked again, but
    for a judge that failed."""
    counter = TokenCounter()
    before = read_answers(kept) if kept is not None else {}
    lock = threading.Lock()
    wanted = []
    for scenario in scenarios:
        for arm in ARMS:
            key = _key(scenario, arm, model, judge)
            if key in before and settled(before[key], judge):
                yield before[key]
            else:
                wanted.append((key, scenario, arm))

    def asking(key: str, scenario: Scenario, arm: str) -> Answer:
        answer = before.get(key) or play(scenario, arm, model, counter)
        return graded(answer, grade(scenario.assertions, answer.text), judge, scenario.question, scenario.answer)

    with ThreadPoolExecutor(threads) as pool:
        asked = {pool.submit(asking, *each): each[0] for each in wanted}
        try:
            for done in as_completed(asked):
                answer = done.result()
                if kept is not None and not answer.error:
                    with lock:
                        append_answer(kept, asked[done], answer)
                yield answer
        finally:
            pool.shutdown(cancel_futures=True)


# ---- what is kept ----


def _key(scenario: Scenario, arm: str, model: ChatModel, judge: ChatModel | None) -> str:
    """Names everything that an answer depends on."""
    return key_of(scenario, arm, *(one if isinstance(one, Endpoint) else one and one.name for one in (model, judge)))


def key_of(*parts: object) -> str:
    """Of an answer that depends on these, and on the version of the product; the same in every process, as the order of
    a set is not."""

    def told(one: Any) -> object:
        if isinstance(one, Endpoint):
            return {**asdict(one), "key": ""}  # another key is the same model
        return sorted(one) if isinstance(one, frozenset) else str(one) if isinstance(one, datetime) else asdict(one)

    return hashlib.sha256(json.dumps([*parts, version("avmfs")], default=told).encode()).hexdigest()[:32]


def append_answer(kept: Path, key: str, answer: Answer) -> None:
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, **asdict(answer)}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_answers(kept: Path) -> Mapping[str, Answer]:
    """By key. A last line without its end is what a killed run was writing: it is cut off, to be asked again."""
    if not kept.exists():
        return {}
    data = kept.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        os.truncate(kept, len(whole))
    found = {}
    for number, line in enumerate(whole.decode("utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            key, verdict = entry.pop("key"), entry.pop("verdict")
            verdict["passed"] = tuple(verdict["passed"])
            found[key] = Answer(**entry, verdict=Verdict(**verdict))
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{kept}, line {number}: not an answer of this suite ({error})") from error
    return found


def _turn(event: Event) -> str:
    return f"[{event.at:%Y-%m-%d %H:%M}] {event.by}: {event.text}"
