"""Sentences that stand for several texts: whole, as they were written.

Owns the choice. Called by consolidation. Knows no notes: texts have numbers. Deterministic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from avmfs.text import passages, segment

_WORDS: Final = 4  # fewer tell nothing by themselves
_LONGEST: Final = 400  # characters; what is longer is no sentence
_SAID: Final = 0.6  # the share of a sentence's words that sentences before it have, from which it says nothing new


def central(texts: Sequence[str], most: int) -> list[tuple[int, str]]:
    """At most ``most`` (number of the text, sentence), in the order of the texts: those whose words most of the texts
    share, by the number of texts that have each (as in centroid summaries: Radev et al., 2004), none that says what
    another has said. Headings and questions are left out."""
    pieces = [
        (number, place, piece.strip(" -*\t"), frozenset(segment.content_terms(piece)))
        for number, text in enumerate(texts)
        for place, piece in enumerate(passages.sentences(text))
        if len(piece) <= _LONGEST and not piece.lstrip().startswith("#") and not piece.rstrip().endswith(("?", "？"))
    ]
    holders = Counter(term for terms in (frozenset(segment.content_terms(text)) for text in texts) for term in terms)
    worth = {
        at: sum(math.log(1 + holders[term]) for term in terms) / math.sqrt(len(terms))
        for at, (_, _, _, terms) in enumerate(pieces)
        if len(terms) >= _WORDS and not segment.only_function_words(pieces[at][2])
    }
    chosen: list[int] = []
    for at in sorted(worth, key=lambda at: (-worth[at], at)):
        terms = pieces[at][3]
        if all(len(terms & pieces[other][3]) < _SAID * len(terms) for other in chosen):
            chosen.append(at)
        if len(chosen) == most:
            break
    return [(pieces[at][0], pieces[at][2]) for at in sorted(chosen)]
