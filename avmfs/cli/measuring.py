"""avm bench: what this machine does, with a store of its own in a temporary folder; and what another setting would do.

Owns the quick measurement, in which nothing of the user's store is touched, `bench mine`, which shows what the door
answers under two settings, with the same vectors and the same memory, and the options of `bench memory`, which
`evaluating` runs. Figures of the first are of the API in this process, without a daemon and without a mount; the full
benchmarks, with baselines, are in benchmarks/.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from avmfs.cli.main import Command, CommandGroup, subcommand
from avmfs.cli.session import door, locations, show, working
from avmfs.errors import Invalid
from avmfs.evaluation.runner import PRESETS
from avmfs.node import notice
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped

if TYPE_CHECKING:
    from avmfs_config import Settings


@dataclass(frozen=True, slots=True)
class Figure:
    """``median_ms`` and ``p99_ms`` of one operation; ``per_second`` counts what it works on (notes of a batch)."""

    operation: str
    n: int
    median_ms: float
    p99_ms: float
    per_second: float


@subcommand("bench", "Measure this machine with a store of its own.", cls=CommandGroup, invoke_without_command=True)
@click.option("--notes", "-n", default=100, show_default=True, type=click.IntRange(10, 5000), help="How many of each.")
@click.option("--disk", metavar="DIR", default=None, help="Where the temporary store lies.  [default: beside yours]")
def bench_(ctx: click.Context, notes: int, disk: str | None) -> None:
    """Measure writes, reads, lists and searches with a temporary store; takes some seconds."""
    if ctx.invoked_subcommand is not None:
        return

    beside = locations().data_dir
    place = disk if disk is not None else str(beside) if beside.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="avm-bench-", dir=place) as folder, working(f"{notes} of each"):
        found = measure(Path(folder), notes)
    lines = [f"{'operation':<22}  {'N':>5}  {'median ms':>9}  {'p99 ms':>8}  {'per second':>10}\n"]
    lines += [
        f"{each.operation:<22}  {each.n:>5}  {each.median_ms:>9.3f}  {each.p99_ms:>8.3f}  {each.per_second:>10,.0f}\n"
        for each in found
    ]
    show([asdict(each) for each in found], "".join(lines))


@bench_.command("mine", cls=Command)
@click.option("--before", metavar="FILE", help="A config.yaml.  [default: yours]")
@click.option("--after", metavar="FILE", help="A config.yaml.  [default: as before]")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Laid over --after; may be repeated.")
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1, 10_000), help="The last so many.")
@click.option("--forget", is_flag=True, help="Delete the questions that are kept of you.")
def mine_(
    ctx: click.Context, before: str | None, after: str | None, changes: tuple[str, ...], limit: int, forget: bool
) -> None:
    """Replay your own questions under two settings: what is found, in which order, for how many tokens, how fast.

    Questions to recall are kept where config.yaml says how many (search.query_log; 0 by default), for you alone. The
    settings may differ in search.weights, search.max_tokens and search.min_relevance:

    \b
      avm bench mine --set search.weights.words=0.5 --set search.min_relevance=0.2
    """
    import os

    from avmfs_config import changed_settings, load_settings

    from avmfs.api.connect import located

    if forget:
        with door() as memory:
            gone = memory.call("questions", forget=True)
            show(gone, f"{gone['forgotten']} questions forgotten\n")
        return
    if after is None and not changes:
        raise click.UsageError("nothing to compare: name --after FILE, or --set KEY=VALUE")
    usual = ctx.obj.config
    first, second = (
        located(os.environ, ctx.obj.db, each).config_file for each in (before or usual, after or before or usual)
    )
    old, new = load_settings(first, os.environ), changed_settings(second, os.environ, changes)
    comparable(old, new)
    with door() as memory:
        asked = memory.call("questions", limit=limit)["questions"]
        if not asked:
            show({"queries": [], "summary": None}, NONE_KEPT)
            return
        with working(f"{len(asked)} questions"):
            found = replayed(memory, asked, old, new)
    told = {"queries": [asdict(each) for each in found], "summary": summary(found)}
    show(told, _compared(found))


@bench_.command("memory", cls=Command)
@click.option("--preset", required=True, type=click.Choice([*PRESETS]), help="How much: see below.")
@click.option("--subject", required=True, metavar="NAME", help="What the results are of; names their folder.")
@click.option("--endpoint", metavar="URL", help="Of a model: up to /v1, or the host of azure and anthropic.")
@click.option("--kind", type=click.Choice(("openai", "azure", "anthropic")), default="openai", show_default=True)
@click.option("--model", metavar="NAME", help="Its name; of azure, the deployment.")
@click.option("--key-variable", metavar="NAME", default="OPENAI_API_KEY", show_default=True, help="Holds the key.")
@click.option("--judge", metavar="NAME", help="A model of the same endpoint grades.  [default: assertions alone]")
@click.option("--no-memory", is_flag=True, help="The conversation alone, without avmfs.")
@click.option("--language", type=click.Choice(("en", "zh", "all")), default="all", show_default=True)
@click.option("--inject", type=click.IntRange(0), metavar="TOKENS", help="In place of the preset's.")
@click.option("--calls", type=click.IntRange(0), metavar="N", help="Filler calls, in place of the preset's.")
@click.option("--sent", type=click.IntRange(0), metavar="TOKENS", help="By the last filler call.")
@click.option("--window", type=click.IntRange(1), metavar="TOKENS", default=128_000, show_default=True, help="In all.")
@click.option("--max-answer", type=click.IntRange(1), metavar="TOKENS", default=300, show_default=True)
@click.option("--scenarios", metavar="NAME,...", help="Some alone.  [default: all of the preset]")
@click.option("--output", metavar="DIR", default=".agenteval", show_default=True, help="Below which runs are kept.")
@click.option("--baseline", metavar="RUN", help="The folder of an earlier run.")
def memory_(preset: str, subject: str, **chosen: Any) -> None:
    """Evaluate an agent's memory: 0 to 100 in up to twelve dimensions.

    Presets: quick (3 dimensions), standard (8), full (12), diagnostic (12 under 50,000 tokens of other talk), overflow
    (8, beyond a window of 128,000). Without an endpoint a reader answers that concludes nothing and quotes what it was
    shown. What is not answered counts 0. Exit status 0 from 50 points on (PASS from 70, WARN below), else 2, and 2 when
    it is worse than a baseline, which is a run under the same conditions.

    \b
      avm bench memory --preset quick --subject reader
      avm bench memory --preset standard --subject mine --endpoint http://127.0.0.1:8080/v1 --model NAME --judge NAME
    """
    from avmfs.cli import evaluating

    evaluating.evaluate(preset, subject, SimpleNamespace(**chosen))


def measure(folder: Path, notes: int) -> list[Figure]:
    """Figures of a store in ``folder``, which is the caller's to remove."""
    from avmfs.avm import AVM

    (folder / "config.yaml").write_text("embedding: {enabled: false}\n")
    environ = {f"AVM_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}
    with AVM(folder / "bench.db", agent="bench", environ=environ, embeddings=False) as avm:
        memory = avm.agent_memory()
        text = [
            f"note {i}: the {_word(i)} of the {_word(i * 7)} meets {_word(i * 13)} on day {i}" for i in range(notes)
        ]
        memory.remember("warms up")
        memory.recall("warms up"), memory.stats(), avm.list("/private")
        batch = [f"batch {each}" for each in text]
        return [
            _timed("remember", notes, lambda i: memory.remember(text[i])),
            _timed("write", notes, lambda i: avm.write(f"/private/w/{i}.md", text[i])),
            _timed("batch_remember", 1, lambda i: memory.batch_remember(batch), each=notes),
            _timed("read", notes, lambda i: avm.read(f"/private/w/{i}.md")),
            _timed("list", notes, lambda i: avm.list("/private/w")),
            _timed("stats", notes, lambda i: memory.stats()),
            _timed("recall (by words)", notes, lambda i: memory.recall(f"{_word(i)} {_word(i * 7)}")),
        ]


_SYLLABLES = ("ka", "lo", "mi", "ru", "te", "sa", "no", "vi", "de", "pu")


def _word(number: int) -> str:
    """A word that only some notes have."""
    return "".join(_SYLLABLES[int(digit)] for digit in f"{number * 7919 % 1000:03}")


def _timed(operation: str, times: int, do: Callable[[int], object], each: int = 1) -> Figure:
    took = []
    for number in range(times):
        before = time.perf_counter()
        do(number)
        took.append((time.perf_counter() - before) * 1000)
    took.sort()
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    return Figure(operation, times * each, statistics.median(took), p99, times * each * 1000 / sum(took))


NONE_KEPT = "(no questions are kept: set search.query_log in config.yaml to how many, and ask)\n"


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure under each of the two settings."""

    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """One question. ``overlap``: the share, 0 to 1, of files found under either setting that both found; ``moved``:
    files with another rank, {"path", "before", "after"}, a rank None where it was not found. ``ms``: one call each,
    the vector of the question known."""

    q: str
    under: str
    overlap: float
    moved: tuple[Mapping[str, Any], ...]
    tokens: Pair
    ms: Pair
    degraded: str | None  # why words alone were searched


def comparable(before: Settings, after: Settings) -> None:
    """Raises Invalid where two settings differ in what a replay cannot change."""

    def rest(settings: Settings) -> dict[str, Any]:
        usual = replace(settings.search, weights=before.search.weights, max_tokens=1, min_relevance=0.0)
        return asdict(replace(settings, search=usual))

    mine, theirs = rest(before), rest(after)
    apart = sorted(name for name in mine if mine[name] != theirs[name])
    if apart:
        raise Invalid(
            f"the settings differ in {', '.join(apart)}: replayed are search.weights, search.max_tokens and"
            " search.min_relevance"
        )


def replayed(door: Door, asked: Sequence[Mapping[str, Any]], before: Settings, after: Settings) -> list[Replayed]:
    """Each question under both, in turns."""
    found = []
    for number, question in enumerate(asked):
        _answer(door, question, before)  # so that its vector and its rows are at hand for both
        order = (before, after) if number % 2 == 0 else (after, before)
        timed = [_answer(door, question, settings) for settings in order]
        (old, old_ms), (new, new_ms) = timed if number % 2 == 0 else reversed(timed)
        ranks = [{path: rank for rank, path in enumerate(each["paths"], 1)} for each in (old, new)]
        either, both = ranks[0].keys() | ranks[1].keys(), ranks[0].keys() & ranks[1].keys()
        moved = [{"path": path, "before": ranks[0].get(path), "after": ranks[1].get(path)} for path in either]
        moved = [each for each in moved if each["before"] != each["after"]]
        moved.sort(key=lambda each: (each["after"] or 10**9, each["before"] or 10**9))
        found.append(
            Replayed(
                question["q"],
                question["under"],
                len(both) / len(either) if either else 1.0,
                tuple(moved),
                Pair(old["tokens"], new["tokens"]),
                Pair(old_ms, new_ms),
                old["degraded"] or new["degraded"],
            )
        )
    return found


def _answer(door: Door, question: Mapping[str, Any], settings: Settings) -> tuple[Mapping[str, Any], float]:
    search = settings.search
    named = {name: question[name] for name in ("max_tokens", "min_relevance") if question[name] is not None}
    usual = {"max_tokens": search.max_tokens, "min_relevance": search.min_relevance}
    began = time.perf_counter()
    found: Mapping[str, Any] = door.call(
        "replay",
        q=question["q"],
        under=question["under"],
        strategy=question["strategy"],
        weights=asdict(search.weights),
        **{**usual, **named},
    )
    return found, round((time.perf_counter() - began) * 1000, 3)


def summary(found: Sequence[Replayed]) -> dict[str, Any]:
    """{"queries", "same", "overlap", "tokens", "ms"}: ``same`` are those with the same files in the same order; the
    overlap and tokens are means, ms medians."""

    def both(of: str, middle: Any) -> dict[str, float]:
        pairs = [getattr(each, of) for each in found]
        return {name: round(middle([getattr(pair, name) for pair in pairs]), 2) for name in ("before", "after")}

    return {
        "queries": len(found),
        "same": sum(not each.moved for each in found),
        "overlap": round(statistics.fmean(each.overlap for each in found), 3),
        "tokens": both("tokens", statistics.fmean),
        "ms": both("ms", statistics.median),
    }


def _compared(found: Sequence[Replayed]) -> str:
    """For a person: what is the same in one line for all, what is not with its files."""
    lines = [notice(why).rstrip() for why in {each.degraded for each in found} - {None}]
    for each in sorted(found, key=lambda one: one.overlap):
        if not each.moved:
            continue
        tokens, ms = f"{each.tokens.before:g} -> {each.tokens.after:g}", f"{each.ms.before:.1f} -> {each.ms.after:.1f}"
        lines.append(f"overlap {each.overlap:.2f}  tokens {tokens}  ms {ms}  {escaped(' '.join(each.q.split()))}")
        lines += [
            f"  {_rank(one['before']):>4} -> {_rank(one['after']):<4}  {escaped(one['path'])}" for one in each.moved
        ]
    total = summary(found)
    lines.append(
        f"{total['queries']} questions, {total['same']} answered alike; overlap {total['overlap']:.2f};"
        f" tokens {total['tokens']['before']:g} -> {total['tokens']['after']:g};"
        f" ms {total['ms']['before']:g} -> {total['ms']['after']:g}"
    )
    return "\n".join(lines) + "\n"


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)
