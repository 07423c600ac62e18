"""Asking a mount: what bench_index and bench_recall leave to a client process, for it may hang in one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop


def commands() -> Mapping[str, Command]:
    return {"search": search, "recall": recall}


def search(mountpoint: str, questions: list[str], limit_s: float) -> list[object]:
    """Read `:search` for each question; one is one operation."""
    paths = [Path(mountpoint, f":search?q={question}") for question in questions]
    return reply_of(timed_loop(lambda path: path.read_bytes(), paths, limit_s))


def recall(mountpoint: str, questions: list[str], tokens: int, limit_s: float) -> list[object]:
    """Read `:recall` for each question; one is one operation."""
    paths = [Path(mountpoint, f":recall?q={question}&max_tokens={tokens}") for question in questions]
    return reply_of(timed_loop(lambda path: path.read_bytes(), paths, limit_s))
