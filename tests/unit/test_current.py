"""What is true now before what it replaced, and the other way round for a question about the past."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from avmfs.node import Hit
from avmfs.search import signals
from avmfs.search.current import ordered
from avmfs.search.engine import Scored

NOW = int(datetime(2026, 11, 24, tzinfo=UTC).timestamp()) * 10**9
ASIDE = ("Lunch is at noon.", "Oak is harder than pine.", "The lift is broken again.")


def day(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


def hits(*texts: tuple[str, str]) -> list[Scored]:
    """Best first, each with its day; and what stands beside them."""
    rows = [*texts, *((text, "2026-05-05") for text in ASIDE)]
    return [
        Scored(
            Hit(n, n, n, b"/m/%d" % n, f"k{n}", "a", day(at), day(at), None, 1, (), text, 0, len(text), True),
            1 - n / 10, 0.9 - n / 10, {"cosine": 1 - n / 10}, {},
        )
        for n, (text, at) in enumerate(rows)
    ]  # fmt: skip


def order(found: list[Scored], q: str, weight: float = 1.0) -> list[int]:
    spans = signals.spans(signals.asked(q, NOW, UTC), NOW, UTC)
    return [scored.hit.passage for scored in ordered(found, q, spans, weight)]


PORT = [
    ("Port of the staging database is 5433.", "2026-03-02"),
    ("The staging database moved to port 6432.", "2026-09-01"),
]
BACKUPS = [
    ("Backups older than 30 days are deleted by cron.", "2026-03-02"),
    ("Backups older than 30 days are moved to Glacier now.", "2026-09-01"),
]
MERGE = [
    ("Checks before the merge: make lint.", "2026-03-02"),
    ("Checks before the merge are run by tox now.", "2026-09-01"),
]
ROOM = [("会议室在三楼。", "2026-03-02"), ("会议室搬到五楼了。", "2026-09-01")]


@pytest.mark.parametrize(
    ("pair", "q", "first"),
    [
        (PORT, "port of the staging database", 1),
        (PORT, "port of the staging database before the move", 0),
        (PORT, "former port of the staging database", 0),
        (PORT, "which port did the staging database have in April", 0),
        (PORT, "staging database port in October", 1),
        (PORT, "staging database port since April", 1),
        (PORT, "which port has the staging database had after May 2026", 1),
        (PORT, "which port did the staging database have from April to May", 0),
        (PORT, "how old is the staging database port", 1),
        (BACKUPS, "what happens to backups older than 30 days", 1),
        (BACKUPS, "what did we do with backups older than 30 days before Glacier", 0),
        (MERGE, "what must I run before I merge", 1),
        (MERGE, "checks before the merge", 1),  # both have the word
        (PORT, "which port before the move, staging database", 0),
        (ROOM, "会议室在几楼", 1),
        (ROOM, "会议室之前在几楼", 0),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_newer_of_two_comes_first_unless_the_past_is_asked_for(
    pair: list[tuple[str, str]], q: str, first: int, turned: bool
) -> None:
    found = order(hits(*(pair[::-1] if turned else pair)), q)
    assert found[:2] == ([1 - first, first] if turned else [first, 1 - first]) and found[2:] == [2, 3, 4]


@pytest.mark.parametrize(
    ("newer", "q"),
    [
        ("Port of the production queue is 5672.", "port of the staging database"),
        ("Anna moved her desk to the window.", "port of the staging database"),
        ("The staging database has a dashboard.", "which port"),
        ("Every port has a crane now.", "port"),
    ],
)
def test_notes_of_other_matters_stay_where_they_are(newer: str, q: str) -> None:
    assert order(hits(PORT[0], (newer, "2026-09-01")), q) == [0, 1, 2, 3, 4]


def test_of_two_statements_that_share_a_word_the_newer_is_first_where_nothing_else_answers_as_well() -> None:
    pair = (("Zoe works from Oslo.", "2026-03-02"), ("Zoe relocated to Bergen in spring.", "2026-09-01"))
    asked = "where does Zoe work from"
    found = ordered(hits(*pair), asked, (), 1.0)
    assert [each.hit.passage for each in found] == [1, 0, 2, 3, 4]
    assert not found[0].replaces  # nor is it surely so
    assert order(hits(*pair), asked + " before")[:2] == [0, 1]
    assert order(hits(*pair), "Zoe") == [0, 1, 2, 3, 4]
    third = replace(hits(*pair)[2], score=0.85)
    assert order([*hits(*pair)[:2], third], asked) == [0, 1, 2]
    best, other, *_ = hits(*pair)
    assert order([best, replace(other, score=0.6)], asked) == [0, 1]


def test_of_three_the_newest_is_first_and_the_past_begins_with_the_oldest() -> None:
    fees = [
        (f"The course fee is {fee} per person now.", f"2026-0{month}-01")
        for month, fee in ((2, 90), (8, 140), (5, 120))
    ]
    assert order(hits(*fees), "course fee per person")[:3] == [1, 2, 0]
    assert order(hits(*fees), "original course fee per person")[:3] == [0, 2, 1]


def test_what_moves_keeps_a_score_that_its_parts_add_up_to_and_figures_that_fall() -> None:
    found = ordered(hits(*PORT), "port of the staging database", (), 1.0)
    assert [scored.hit.passage for scored in found[:2]] == [1, 0]
    for scored in found:
        assert sum(scored.parts.values()) == pytest.approx(scored.score)
    assert [scored.score for scored in found] == sorted((scored.score for scored in found), reverse=True)
    assert [scored.relevance for scored in found] == sorted((scored.relevance for scored in found), reverse=True)
    assert found[0].replaces == ("k0",) and found[1].replaced


def test_no_weight_no_difference_and_one_document_replaces_no_part_of_itself() -> None:
    found = hits(*PORT)
    assert ordered(found, "port of the staging database", (), 0.0) == found
    assert order(found, "port of the staging database", 1e-9) == [0, 1, 2, 3, 4]
    same = [found[0], replace(found[1], hit=replace(found[1].hit, document=found[0].hit.document)), *found[2:]]
    assert [scored.hit.passage for scored in ordered(same, "port of the staging database", (), 1.0)] == [0, 1, 2, 3, 4]
    level = [found[0], replace(found[1], hit=replace(found[1].hit, updated=found[0].hit.updated)), *found[2:]]
    assert ordered(level, "port of the staging database", (), 1.0) == level


def test_words_that_a_question_quotes_are_not_put_behind_a_newer_note_without_them() -> None:
    older, newer, *aside = hits(*PORT)
    quoted = [replace(older, parts={**older.parts, "phrase": 0.1}), newer, *aside]
    assert order(quoted, 'port of the "staging database is"') == [0, 1, 2, 3, 4]


def test_what_is_said_to_replace_another_comes_first_whatever_texts_and_times_say() -> None:
    found = hits(("Lunch menu of the canteen.", "2026-03-02"), ("Dishes are listed on the door.", "2026-01-01"))
    swapped = ordered(found, "lunch menu", (), 1.0, {1: frozenset((0,))})
    assert [scored.hit.passage for scored in swapped] == [1, 0, 2, 3, 4]
    assert swapped[0].replaces == ("k0",) and swapped[1].replaced
    assert [s.hit.passage for s in ordered(found, "former lunch menu", (), 1.0, {1: frozenset((0,))})][:2] == [0, 1]


def test_no_passage_of_what_replaces_another_is_replaced() -> None:
    found = hits(*PORT, ("Its replica has port 6433.", "2026-09-01"))
    found[2] = replace(found[2], hit=replace(found[2].hit, document=1, handle="k1"))
    told = ordered(found, "staging database port", (), 1.0, {1: frozenset({0})})
    assert [(each.hit.handle, each.replaces) for each in told if each.replaces] == [("k1", ("k0",))]
    assert [each.hit.handle for each in told if each.replaced] == ["k0"]


def test_pages_and_what_was_written_in_one_sitting_replace_nothing() -> None:
    texts = [" ".join(f"word{n}" for n in range(low, low + 40)) for low in (0, 20)]
    days = ("2026-03-02", "2026-09-01")
    pages = hits(*((f"Port of the staging database. {text}", at) for text, at in zip(texts, days, strict=True)))
    assert order(pages, "port of the staging database") == [0, 1, 2, 3, 4]
    told = day("2026-03-02")
    texts = ("Port of the staging database is 5433.", "The database of staging listens on 6432.")
    pair = hits(*((text, "2026-03-02") for text in texts))[:2]
    for minutes, expected in ((1, [0, 1]), (61, [1, 0])):
        later = replace(pair[1], hit=replace(pair[1].hit, updated=told + minutes * 60 * 10**9))
        assert order([pair[0], later], "port of the staging database") == expected


def test_the_newer_one_says_what_it_replaces_where_it_stood_first_already() -> None:
    found = ordered(hits(*PORT[::-1]), "port of the staging database", (), 1.0)
    assert found[0].replaces == ("k1",) and found[1].replaced


def test_a_copy_replaces_nothing() -> None:
    texts = [("The Brolga service listens on port 9090.", at) for at in ("2026-03-02", "2026-09-01")]
    found = ordered(hits(*texts), "Brolga service port", (), 1.0)
    assert not any(each.replaces or each.replaced for each in found)


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (("pg-upgrade.md", "pg-upgrade-done.md"), 1),
        (("outline.md", "outline-v2.md"), 1),
        (("pg-upgrade.md", "other/pg-upgrade-done.md"), 0),
        (("pg.md", "pg-client.md"), 0),
        (("pg.md", "pg-2.md"), 0),
    ],
)
def test_a_file_whose_name_says_that_it_follows_up_on_another_is_of_its_matter(
    names: tuple[str, str], newest: int
) -> None:
    texts = (
        ("We go to Postgres 16 in the night of 4 October, in two hours.", "2026-08-20"),
        ("Upgraded to 16.4. Took 2h25, replicas rebuilt.", "2026-10-04"),
    )
    found = hits(*texts)
    named = [
        replace(each, hit=replace(each.hit, path=b"/m/" + name.encode()))
        for each, name in zip(found, names, strict=False)
    ]
    assert order([*named, *found[2:]], "when is the postgres upgrade")[0] == newest
