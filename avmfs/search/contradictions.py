"""Whether a new note says something else of the matter of an older one: told to its writer, and never acted upon.

Called when a memory is stored, with what a search for its words has found. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from avmfs.search import current
from avmfs.search.duplicates import NEAR, aligned, likeness, says, steps, words
from avmfs.text import segment

if TYPE_CHECKING:
    from avmfs.search.engine import Scored

# Weights of a logistic fit on pairs of notes with and without another value for the same thing, beside what else a
# search for the newer one finds (benchmarks/truth_quality.py; the half that it was fitted on is "dev").
LOOKED_AT: Final = 3  # best hits
_BIAS: Final = -6.8
_CONTAINED: Final = 3.1  # of the share of the rarer words of the shorter note that the other has
_LEVEL: Final = 5.5  # of the hit's score, as a share of the best
_ALIGNED: Final = 0.8  # half of the words go alike,
_EARLY: Final = -2.2  # and the nearer to its beginning the older one differs, the likelier it is of another thing
_CHANGE: Final = 0.8  # a word of change in the newer alone
_LONG: Final = -3.5  # of the logarithm of how many times longer than a statement one is
_SAME: Final = -3.2  # they are near duplicates


def contradicted(content: str, hits: Sequence[Scored]) -> list[Scored]:
    """Those of the best ``hits`` of a search for ``content`` of whose matter it seems to say something else."""
    if not hits or hits[0].score <= 0:
        return []
    rarity = current.Rarity(hits[: current.RIVALS], content)
    return [each for each in hits[:LOOKED_AT] if _proof(content, each, rarity, each.score / hits[0].score) > 0]


def _proof(new: str, older: Scored, rarity: current.Rarity, level: float) -> float:
    old = older.hit.text
    terms = max(len(frozenset(segment.content_terms(text))) for text in (new, old))
    proof = _BIAS + _CONTAINED * rarity.contained(new, old) + _LEVEL * level
    proof += _LONG * max(math.log(terms / current.STATEMENT), 0.0) if terms else -math.inf
    proof += _CHANGE * (current.tells_of_change(new) and not current.tells_of_change(old))
    was, now = words(old), words(new)
    if aligned(steps(was, now), was, now):
        there = frozenset(now)
        first = next((at for at, word in enumerate(was) if says(word) and word not in there), None)
        proof += _ALIGNED + (0.0 if first is None else _EARLY * (1 - first / max(1, len(was) - 1)))
    return proof + (_SAME if likeness(new, old) >= NEAR else 0.0)
