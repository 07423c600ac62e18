"""What an answer is made of, for many corpora and budgets, held against what it was.

The weights, limits and shapes of packing were chosen by measuring (docs/BENCHMARKS.md): none of them may change by
accident. ``pack_choices.txt`` has a line for each corpus: for each budget the items, best first, ``~`` behind one that
is cut, and a checksum of all the texts. Who changes packing knowingly writes it anew, by running this module.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, timedelta, timezone
from functools import cache
from pathlib import Path

import pytest

from avmfs.node import Hit
from avmfs.search.engine import Scored
from avmfs.search.forms import FORMS
from avmfs.search.pack import SKIMMED, SMALL, Frame, pack
from avmfs.text.tokens import TokenCounter

RECORD = Path(__file__).with_name("pack_choices.txt")
DAY = 86_400 * 10**9
NOW = 20_519 * DAY + DAY // 2
SAID = (
    "zebra river lion the a crossed slept at dawn near old acacia while it rained NVDA fell two percent (9 %) 2026 中东"
    " #tag @home — reduce exposure until evening"
)
WORDS = SAID.split()
FOLDERS = ("/memory/shared/projects/aurora/notes-of-the-whole-team", "/memory/diary", "/memory", "", "/feeds/news")
FOLDERS += tuple(f"{FOLDERS[0]}/{month}" for month in ("may", "june", "july"))
COUNTER = TokenCounter()


class Draw(random.Random):
    """Draws with ``random()`` alone, whose sequence no release of Python changes."""

    def below(self, stop: int) -> int:
        return int(self.random() * stop)

    def sentence(self) -> str:
        said = " ".join(WORDS[self.below(len(WORDS))] for _ in range(4 + self.below(9)))
        return said + (". ", "!\n", "? ", "\n- ", "。")[int(self.random() ** 3 * 5)]

    def text(self, most: int) -> str:
        return "".join(self.sentence() for _ in range(1 + int(most * self.random() ** 2)))

    def some(self, share: float) -> bool:
        return self.random() < share


def corpus(number: int) -> list[Scored]:
    """What a search might find. Of eight one has very many documents, and two have one that is too long, which is the
    best or not."""
    draw = Draw(number)
    kind, found = number % 8, list[tuple[float, Scored]]()
    wild, spread = draw.some(0.5), 1 + draw.below(len(FOLDERS))
    for document in range(90 if kind == 7 else 2 + draw.below(12)):
        long = document == {5: 0, 6: 1}.get(kind)
        path = f"{FOLDERS[draw.below(spread)]}/{document}".encode()
        hit = Hit(0, document, document, path, f"h{document}", "alice", NOW, NOW, None, document, (), "", 0, 0, True)
        if wild:
            hit = replace(hit, author=("alice", "bob b", "eve")[draw.below(3)], route=("cli", "mcp", "")[draw.below(3)])
        hit = replace(hit, updated=NOW - draw.below(400 if wild else 2) * DAY)
        hit = replace(hit, untrusted="web" if wild and draw.some(0.1) else "")
        rank, at = draw.random() * (kind != 5 or not long), 0
        for part in range(5 if long else 1 + int(4 * draw.random() ** 3)):
            said = found[0][1].hit.text if found and draw.some(0.1) else draw.text(90 if long else 30 if part else 12)
            at += 7 * draw.below(2) * (part > 0)
            place = replace(hit, passage=len(found), text=said, start=at, stop=at + len(said), whole=not part)
            at = place.stop
            item = Scored(place, 0.0 if part and draw.some(0.4) else 1.0, 1 - rank, {}, {})
            if wild:
                said = draw.below(20)
                item = replace(item, standing=("superseded by @mdcl",) * (said < 2), replaces=("h1", "h2")[: said == 2])
                item = replace(item, replaced=said == 3)
            found.append((rank + 0.2 * part * draw.random(), item))
    return [item for _, item in sorted(found, key=lambda each: each[0])]


def frames(number: int) -> Iterator[Frame]:
    draw = Draw(-number - 1)
    drawn = (
        most * (0.7 + 0.3 * draw.random()) for most in (25, 40, 60, 80, 105, 140, 200, 300, 450, 700, 1000, 2050, 3000)
    )
    for budget in (*map(int, drawn), SMALL, 2 * SMALL, SKIMMED):
        frame = Frame(budget, budget, "balanced", None, 7, UTC, nonce="482913", terms=("zebra", "river"))
        if number % 3 == 1:
            frame = replace(frame, scores=draw.some(0.5), cite=draw.some(0.5), timed=draw.some(0.5), nonce="")
        elif number % 3 == 2:
            form = (None, *FORMS.values())[draw.below(1 + len(FORMS))]
            tz = timezone(timedelta(hours=13))
            frame = replace(frame, strategy="recency", degraded="no engine", max_tokens=4000, form=form, tz=tz)
        yield frame


def choices(number: int) -> str:
    items, told, sums = corpus(number), list[str](), 0
    for frame in frames(number):
        found = pack(items, frame, COUNTER)
        assert found.tokens == COUNTER.count(found.text) <= frame.budget
        sums = zlib.crc32(found.text.encode(), sums)
        names = (f"{one.hit.passage}{'' if shown(one, found.text) else '~'}" for one in found.hits)
        told.append(f"{frame.budget}={found.tokens}:{','.join(names)}")
    return f"{number} {' '.join(told)} {sums:08x}"


def shown(one: Scored, text: str) -> bool:
    """Whether its last sentence is in the text."""
    return one.hit.text.rstrip("\n- 。").splitlines()[-1].rpartition(". ")[2] in text


@cache
def recorded() -> list[str]:
    return RECORD.read_text().splitlines()


@pytest.mark.parametrize("number", range(48))
def test_an_answer_is_made_of_what_it_was_made_of(number: int) -> None:
    assert choices(number) == recorded()[number]


if __name__ == "__main__":
    RECORD.write_text("".join(f"{choices(number)}\n" for number in range(48)))
