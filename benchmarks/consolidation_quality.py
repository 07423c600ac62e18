"""What consolidation does to a shared memory of four agents: what it finds, what it costs, and whether it comes back.

    python benchmarks/consolidation_quality.py DATA [--notes 5000] [--questions 300] [--sets agent notes locomo]

DATA has NAME.memories.jsonl and NAME.queries.jsonl as recall_quality.py reads them, and perhaps dups.dev.jsonl: pairs
{"a", "b", "same"} worded by hand. The memories of the sets become shared notes of four agents, a session a directory.
To these come, made here and labelled: repeats of some of them by another agent, days later (as they are, with other
blanks, case, punctuation or marks, without articles, with a label, with one more sentence or without the last one), and
contradictions (another number, day, name, word or a denial). A tenth of the repeats stands twice in an agent's private
space, with a word that nobody else has.

Every agent consolidates in turn, as the keeper lets them. Told are, of the notes put away: how many were labelled
repeats of what stayed (precision; a note of the sets that says the same words as another counts as one), how many of
the repeats went (recall), how many contradictions went; the share of the evidence in recalls of 500 and 1,000 tokens
before and after, on the same questions; notes and tokens saved; whether after undoing everything that each agent sees
is as it was, by checksum; and whether a private word was ever told to another agent. Exits with 1 where a contradiction
was put away, something did not come back, a word was told, or more than a point of evidence is lost.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TZ", "UTC")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import avm_adapter  # isort: skip  (it says where the product lies)
from avmfs_config import default_settings

from avmfs.embed import engines
from avmfs.rpc.local import LocalDoor
from avmfs.search.duplicates import NEAR, Note, likeness, redundant
from avmfs.text.tokens import TokenCounter
from benchmarks.recall_quality import grams, interval, read_lines

AGENTS = ("alice", "bob", "carol", "dave")
BUDGETS = (500, 1000)
COVERED = 0.8
DAY_NS = 24 * 3600 * 10**9
BATCH = 200
REPEATS, CONTRADICTIONS = 0.14, 0.07  # shares of the notes
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
_NUMBER = re.compile(r"\b\d+\b")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OPPOSITES = {"enabled": "disabled", "before": "after", "always": "sometimes", "up": "down", "first": "second"}
_MORE = "It was written down for whoever comes later."


@dataclass(frozen=True)
class Made:
    """A note to be written. ``of``: the path of what it repeats or contradicts."""

    agent: str
    path: str
    text: str
    created: int
    of: str = ""
    kind: str = ""


def originals(data: Path, names: list[str], count: int) -> tuple[list[Made], dict[str, str]]:
    """Notes of the sets, and their paths by id."""
    found: list[Made] = []
    places: dict[str, str] = {}
    for name in names:
        for one in read_lines(data / f"{name}.memories.jsonl"):
            if len(found) < count:
                path = avm_adapter.place(one)
                made = avm_adapter.nanoseconds(one.get("date")) or 0
                agent = AGENTS[int(hashlib.sha256(path.encode()).hexdigest(), 16) % len(AGENTS)]
                found.append(Made(agent, path, avm_adapter.note(one), made))
                places[one["id"]] = path
    return found, places


def repeated(text: str, chance: random.Random) -> tuple[str, str]:
    """The same said again, and how."""
    parts = re.split(r"(?<=[.!?])\s+", text)
    ways = {
        "as it is": text,
        "blanks": "  " + re.sub(r" ", lambda _: chance.choice((" ", " ", "  ")), text) + "\n\n",
        "case": text.upper(),
        "label": f"Note: {text}",
        "articles": re.sub(r"\b(?:the|a|an) ", "", text, flags=re.IGNORECASE),
        "marks": f"- **{text}**",
        "punctuation": text.rstrip(".!") + (" ." if text[-1:] in ".!" else ""),
        "one more sentence": f"{text if text[-1:] in '.!?' else text + '.'} {_MORE}",
        "one sentence less": " ".join(parts[:-1]) if len(parts) > 2 else text,
    }
    way = chance.choice(sorted(ways))
    return ways[way], way


def contradicted(text: str, chance: random.Random) -> tuple[str, str] | None:
    """The same with another value, and of what; None where there is nothing to change."""
    ways: dict[str, str] = {}
    if found := _NUMBER.search(text):
        ways["number"] = text[: found.start()] + str(int(found[0]) + 1) + text[found.end() :]
    for day, other in zip(_WEEKDAYS, (*_WEEKDAYS[1:], _WEEKDAYS[0]), strict=True):
        if day in text:
            ways["day"] = text.replace(day, other)
    if found := _NAME.search(text):
        ways["name"] = text[: found.start()] + "Quillon" + text[found.end() :]
    if found := re.search(r"\b(?:is|are|was|were|will|can|should|must)\b(?! not)", text):
        ways["denial"] = text[: found.end()] + " not" + text[found.end() :]
    for word, other in _OPPOSITES.items():
        if re.search(rf"\b{word}\b", text):
            ways["opposite"] = re.sub(rf"\b{word}\b", other, text, count=1)
    way = chance.choice(sorted(ways)) if ways else None
    return None if way is None or ways[way] == text else (ways[way], way)


def derived(notes: list[Made], count: int, chance: random.Random) -> list[Made]:
    """Repeats and contradictions of some of the notes, beside them."""
    made: list[Made] = []
    shuffled = chance.sample(notes, len(notes))
    for number, one in enumerate(shuffled):
        agent = chance.choice([each for each in AGENTS if each != one.agent])
        later, beside = one.created + chance.randint(1, 30) * DAY_NS, one.path.rpartition("/")[0]
        if len(made) < REPEATS * count:
            text, way = repeated(one.text, chance)
            if number % 10 == 0:
                word = f"zq{hashlib.sha256(one.path.encode()).hexdigest()[:10]}"
                twice = [
                    Made(agent, f"/memory/private/{agent}/{number}{k:05}.md", f"{one.text} {word}.", later)
                    for k in (1, 2)
                ]
                made += [twice[0], Made(agent, twice[1].path, twice[1].text, later + 1, twice[0].path, "private")]
            else:
                made.append(Made(agent, f"{beside}/9{number:05}.md", text, later, one.path, way))
        elif (found := contradicted(one.text, chance)) and len(made) < (REPEATS + CONTRADICTIONS) * count:
            made.append(Made(agent, f"{beside}/9{number:05}.md", found[0], later, one.path, f"other {found[1]}"))
    return made


def written(doors: Mapping[str, LocalDoor], notes: list[Made]) -> None:
    for agent, door in doors.items():
        own = [each for each in notes if each.agent == agent]
        for first in range(0, len(own), BATCH):
            items = [{"content": e.text, "path": e.path, "created": e.created} for e in own[first : first + BATCH]]
            door.call("remember_many", items=items)


def records(door: LocalDoor) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = door.call("records", data=True, after=after)
        yield from page["records"]
        after = page["next"]
        if after is None:
            return


def seen(door: LocalDoor) -> tuple[str, dict[str, str]]:
    """A checksum over all that an agent sees (bodies, modes, times, tags, links, metadata), and the texts by path."""
    total, texts = hashlib.sha256(), {}
    for each in records(door):
        left_out = "mtime" if each["kind"] == "directory" else "seq"  # names have come and gone in it
        total.update(repr(sorted((key, value) for key, value in each.items() if key != left_out)).encode())
        if each["kind"] == "file":
            texts[each["path"]] = each["data"].decode()
    return total.hexdigest(), texts


def evidence(door: LocalDoor, questions: list[dict[str, Any]], told: Mapping[str, str]) -> dict[int, list[float]]:
    """By budget, of each question the share of its relevant memories that stands in the recall."""
    found: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    known = {each: grams(told[each]) for one in questions for each in one["relevant"]}
    for one in questions:
        for budget in BUDGETS:
            text = grams(door.call("recall", q=one["text"], max_tokens=budget)["text"])
            hits = [len(known[each] & text) >= COVERED * len(known[each]) for each in one["relevant"]]
            found[budget].append(sum(hits) / len(hits))
    return found


def said(text: str) -> tuple[str, ...]:
    """The words of a text, as somebody would compare them who knows nothing of the product."""
    return tuple(re.findall(r"[^\W_]+", text.casefold()))


def judged(pairs: list[tuple[str, str]], notes: Mapping[str, Made], repeats: list[Made]) -> dict[str, Any]:
    """``pairs``: what went and for what."""
    roots = {path: each.of if each.of and not each.kind.startswith("other") else path for path, each in notes.items()}
    right = natural = 0
    wrong: list[tuple[str, str]] = []
    for gone, kept in pairs:
        if roots[gone] == roots[kept]:
            right += 1
        elif said(notes[gone].text) == said(notes[kept].text) or said(notes[roots[gone]].text) == said(
            notes[roots[kept]].text
        ):
            natural += 1
        else:
            wrong.append((notes[gone].text, notes[kept].text))
    went = {gone for gone, _ in pairs}
    # Of a repeat and what it repeats one goes: either.
    by_way = Counter(each.kind for each in repeats if each.path in went or each.of in went)
    return {"right": right, "natural": natural, "wrong": wrong, "found": by_way, "went": went}


def by_hand(data: Path) -> None:
    path = data / "dups.dev.jsonl"
    if not path.exists():
        return
    pairs = read_lines(path)
    for what, same in (("the same", True), ("deceptive", False)):
        some = [each for each in pairs if each["same"] is same]
        near = sum(likeness(each["a"], each["b"]) >= NEAR for each in some)
        put = sum(bool(redundant([Note(each["a"], 0), Note(each["b"], 0)])) for each in some)
        print(f"pairs worded by hand, {what}: {len(some)}; remember names {near}, consolidation merges {put}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--notes", type=int, default=5000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--sets", nargs="+", default=["agent", "notes", "locomo"])
    parser.add_argument("--summaries", action="store_true", help="draw summaries, too")
    parser.add_argument("--seed", type=int, default=22)
    options = parser.parse_args()
    if os.environ.get("AVM_BENCH_VECTORS"):
        engines.LocalEmbedding = avm_adapter.KeptVectors  # type: ignore[attr-defined]
    chance = random.Random(options.seed)
    notes, places = originals(options.data, options.sets, round(options.notes * (1 - REPEATS - CONTRADICTIONS)))
    more = derived(notes, options.notes, chance)
    everything = {each.path: each for each in (*notes, *more)}
    repeats = [each for each in more if each.of and not each.kind.startswith("other")]
    others = [each for each in more if each.kind.startswith("other")]
    print(f"{len(everything)} notes: {len(notes)} of the sets, {len(repeats)} repeats, {len(others)} contradictions")
    by_hand(options.data)
    questions = [
        each
        for name in options.sets
        for each in read_lines(options.data / f"{name}.queries.jsonl")
        if each["category"] != "adversarial" and each["relevant"] and all(one in places for one in each["relevant"])
    ]
    questions = chance.sample(questions, min(options.questions, len(questions)))
    told = {one: everything[places[one]].text for each in questions for one in each["relevant"]}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        doors = {
            name: LocalDoor(Path(folder) / "avm.db", default_settings(), name, embeddings=name == "alice")
            for name in AGENTS
        }
        for door in doors.values():
            ending.callback(door.close)
        written(doors, list(everything.values()))
        given = {"limit": 10_000, "summaries": options.summaries}
        return consolidated(doors, everything, repeats, others, questions, told, given)


def consolidated(
    doors: Mapping[str, LocalDoor],
    notes: Mapping[str, Made],
    repeats: list[Made],
    others: list[Made],
    questions: list[dict[str, Any]],
    told: Mapping[str, str],
    given: Mapping[str, Any],
) -> int:
    before = {name: seen(door) for name, door in doors.items()}
    covered = evidence(doors["alice"], questions, told)
    pairs: list[tuple[str, str]] = []
    plans: dict[str, str] = {}
    runs: dict[str, int] = {}
    for name, door in doors.items():
        plan = door.call("consolidate", **given)
        plans[name] = repr(plan)
        merges = [step for step in plan["steps"] if step["step"] == "merge"]
        pairs += [(gone["path"], step["into"]["path"]) for step in merges for gone in step["gone"]]
        if given["summaries"]:
            print(f"{name}: {len(plan['steps']) - len(merges)} summaries")
        if plan["steps"]:
            runs[name] = door.call("consolidate", **given, agreed=plan["agreed"])["run"]
    after = {name: seen(door) for name, door in doors.items()}
    merged = told_of_pairs(pairs, judged(pairs, notes, repeats), repeats, others)
    lost = told_of_evidence(covered, evidence(doors["alice"], questions, told))
    told_of_size(before, after)
    leaks = told_of_secrets(notes, plans, after)
    for name in reversed(runs):
        doors[name].call("unconsolidate", run=runs[name])
    same = sum(seen(door)[0] == before[name][0] for name, door in doors.items())
    print(f"undone: of {len(AGENTS)} agents {same} see exactly what they saw before, by checksum")
    return int(bool(merged or leaks or same < len(AGENTS) or lost > 1.0))


def told_of_pairs(
    pairs: list[tuple[str, str]], found: dict[str, Any], repeats: list[Made], others: list[Made]
) -> list[Made]:
    """The contradictions that went for what they contradict."""
    merged = [each for each in others if (each.path, each.of) in pairs or (each.of, each.path) in pairs]
    good = found["right"] + found["natural"]
    print(f"put away: {len(pairs)}; labelled repeats {found['right']}", end=", ")
    print(f"the same words in the sets {found['natural']}, wrong {len(found['wrong'])}")
    for gone, kept in found["wrong"][:5]:
        print(f"  wrong: {gone[:150]!r} for {kept[:150]!r}")
    print(f"precision {good / max(len(pairs), 1):.4f}, recall {sum(found['found'].values()) / len(repeats):.4f}")
    for way, number in sorted(Counter(each.kind for each in repeats).items()):
        print(f"  {way:18} {found['found'][way]:4} of {number}")
    print(f"contradictions put away for what they contradict, or it for them: {len(merged)} of {len(others)}")
    return merged


def told_of_evidence(before: dict[int, list[float]], after: dict[int, list[float]]) -> float:
    """How many points are lost at most."""
    lost = 0.0
    for budget in BUDGETS:
        old, new = before[budget], after[budget]
        change = 100 * (sum(new) - sum(old)) / len(old)
        lost = max(lost, -change)
        print(f"evidence in {budget} tokens, {len(old)} questions:", end=" ")
        print(f"{interval(old)} -> {interval(new)}, {change:+.2f} points")
    return lost


def told_of_size(before: dict[str, tuple[str, dict[str, str]]], after: dict[str, tuple[str, dict[str, str]]]) -> None:
    count = TokenCounter("cl100k_base").count
    sides = [{path: text for _, texts in side.values() for path, text in texts.items()} for side in (before, after)]
    notes, tokens = [len(each) for each in sides], [sum(map(count, each.values())) for each in sides]
    print(f"notes {notes[0]} -> {notes[1]}; tokens {tokens[0]} -> {tokens[1]}", end=" ")
    print(f"({100 * tokens[1] / tokens[0] - 100:+.1f} %)")


def told_of_secrets(
    notes: Mapping[str, Made], plans: dict[str, str], after: dict[str, tuple[str, dict[str, str]]]
) -> int:
    """How many words and paths of a private space another agent got to see, in a plan or in a note."""
    leaks = 0
    for name in AGENTS:
        theirs = [each for each in notes.values() if each.kind in ("private", "") and each.agent != name]
        words = {each.text.rsplit(" ", 1)[1].rstrip(".") for each in theirs if each.path.startswith("/memory/private/")}
        leaks += sum(word in plans[name] or any(word in text for text in after[name][1].values()) for word in words)
        leaks += sum(f"/memory/private/{other}/" in plans[name] for other in AGENTS if other != name)
    print(f"private words or paths told to another agent: {leaks}")
    return leaks


if __name__ == "__main__":
    sys.exit(main())
