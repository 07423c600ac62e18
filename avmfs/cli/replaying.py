"""avm bench mine: what another setting would make of the questions that an agent has really asked.

Owns the comparison and how it is shown. The door answers each question under both settings, with the same vectors and
the same memory; nothing is changed by it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from avmfs.errors import Invalid
from avmfs.node import notice
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped

if TYPE_CHECKING:
    from avmfs_config import Settings

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


def text(found: Sequence[Replayed]) -> str:
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
