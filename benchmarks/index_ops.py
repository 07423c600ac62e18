"""Asking a mount: what bench_index, bench_recall and bench_past leave to a client process, for it may hang in one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop


def commands() -> Mapping[str, Command]:
    return {"search": search, "recall": recall, "listing": listing, "read": read}


def search(mountpoint: str, questions: list[str], limit_s: float) -> list[object]:
    """Read `:search` for each question; one is one operation."""
    paths = [Path(mountpoint, f":search?q={question}") for question in questions]
    return reply_of(timed_loop(lambda path: path.read_bytes(), paths, limit_s))


def recall(mountpoint: str, questions: list[str], tokens: int, limit_s: float) -> list[object]:
    """Read `:recall` for each question; one is one operation."""
    paths = [Path(mountpoint, f":recall?q={question}&max_tokens={tokens}") for question in questions]
    return reply_of(timed_loop(lambda path: path.read_bytes(), paths, limit_s))


def listing(places: list[str], limit_s: float) -> list[object]:
    """List directories."""
    return reply_of(timed_loop(os.listdir, places, limit_s))


def read(places: list[str], limit_s: float) -> list[object]:
    """Open, read and close files."""
    return reply_of(timed_loop(lambda place: Path(place).read_bytes(), places, limit_s))
