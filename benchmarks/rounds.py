"""Taking turns: every variant of every cell once a round, so that a slow minute hits all of them.

Owns the order of measuring and what was measured by cell, variant and round. Scripts give it one function that
measures; a variant that breaks off costs its own column only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.clients import breaking_off
from benchmarks.figures import Figure, Ratio, Round, over_rounds, ratio, rotated

Cell = TypeVar("Cell")
"""What is measured: hashable, the same for every variant."""


@dataclass(frozen=True)
class Outcome(Generic[Cell]):
    """Rounds by cell, variant and number, and for each variant that broke off, why."""

    rounds: Mapping[tuple[Cell, str], Mapping[int, Round]]
    failures: Mapping[str, str]

    def of(self, cell: Cell, variant: str) -> Mapping[int, Round]:
        return self.rounds.get((cell, variant), {})

    def figure(self, cell: Cell, variant: str) -> Figure | None:
        found = self.of(cell, variant)
        return over_rounds(found.values()) if found else None

    def ratio(self, cell: Cell, variant: str, baseline: str, baseline_cell: Cell | None = None) -> Ratio | None:
        """Of operations a second, within the same rounds."""
        return ratio(self.of(cell, variant), self.of(cell if baseline_cell is None else baseline_cell, baseline))

    def ratio_median(self, cell: Cell, variant: str, baseline: str, baseline_cell: Cell | None = None) -> float | None:
        found = self.ratio(cell, variant, baseline, baseline_cell)
        return found.median if found is not None else None

    def ratios(self, cell: Cell, variant: str, baseline: str, baseline_cell: Cell | None = None) -> Sequence[float]:
        """Of each round that has both."""
        found = self.ratio(cell, variant, baseline, baseline_cell)
        return found.each if found is not None else ()


def take_turns(
    rounds: int,
    cells: Sequence[Cell],
    variants: Sequence[str],
    failures: dict[str, str],
    measure: Callable[[Cell, str, int], Round | None],
) -> Outcome[Cell]:
    """Call `measure(cell, variant, loop)` for each; `loop` is a number that no other cell or round has. None: this
    variant has nothing to say to this cell. What `failures` names already is left out."""
    found: dict[tuple[Cell, str], dict[int, Round]] = {}
    for number in range(rounds):
        for place, cell in enumerate(cells):
            for variant in rotated(variants, number + place):
                if variant in failures:
                    continue
                with breaking_off(variant, failures):
                    one = measure(cell, variant, number * len(cells) + place)
                    if one is not None:
                        found.setdefault((cell, variant), {})[number] = one
    return Outcome(found, failures)
