"""What a process remembers of the store, with a part taken out: what the reads of bench_ablation compare.

Like ablation_writer.py it reaches into the store: it gives a Store a memory that keeps less, or counts. Answers
stay right whatever it leaves out, for what is not remembered is read by SQL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

from avmfs.node import Node
from avmfs.store.cache import follow
from avmfs.store.cache import nodes as held
from avmfs.store.store import Store
from benchmarks.figures import BenchmarkError


class NoBodies(follow.FollowedCache):
    """Nodes, names and what an agent may see; every read fetches its bytes."""

    def add_body(self, moment: int, node: int, data: bytes) -> None:
        pass


class NoNodes(NoBodies):
    """Only what an agent may see: each step of a path is a SELECT, and so are the bytes."""

    def add(self, moment: int, *nodes: Node) -> None:
        pass

    def add_absent(self, moment: int, parent: int, name: bytes) -> None:
        pass


class Counting(follow.FollowedCache):
    """Everything, as the product does it; `missed` counts the bodies that were not remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.missed = 0

    def add_body(self, moment: int, node: int, data: bytes) -> None:
        self.missed += 1
        super().add_body(moment, node, data)


def remember(store: Store, kept: follow.FollowedCache) -> None:
    """From now on; what was remembered before is gone. No thread of the process may be reading."""
    store._kept = kept


@contextlib.contextmanager
def bodies_limited(most: int) -> Iterator[None]:
    """No more than `most` bytes of bodies are remembered in this process."""
    before = replace(held, "_BODY_BYTES", most)
    try:
        yield
    finally:
        replace(held, "_BODY_BYTES", before)


def replace(module: ModuleType | type, name: str, value: object) -> object:
    """Change a constant or a function of the product in this process; what it was. Raises BenchmarkError when there is
    none of that name any more: a variant that changed nothing would be measured as if it had."""
    if not hasattr(module, name):
        raise BenchmarkError(f"{module.__name__} has no {name} any more: the variant takes out nothing")
    before: object = getattr(module, name)
    setattr(module, name, value)
    return before
