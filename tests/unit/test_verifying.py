"""What a text cites is checked like links: :verify, and the door's method of the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs.errors import Invalid
from avmfs.rpc import methods
from avmfs.store.queries.nodes import Reader
from avmfs.views import verifying
from avmfs.views.receipts import replayed
from tests.unit.views_fixtures import World, opened

ASKED = "ingress proxy of atlas"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        alice = made.agent("alice")
        alice.put("/shared/atlas/plan.md", "atlas moves the ingress proxy to Envoy in May\nwith 3 backends\n")
        alice.put("/shared/atlas/old.md", "atlas: the ingress proxy is HAProxy\n")
        made.agent("bob").put("/private/quagga.md", "a quagga\n")
        made.clock.pass_(5)
        yield made


def says(world: World, text: str, agent: str = "alice", q: str | None = None) -> list[str]:
    world.agent(agent).put("/private/cites.md", text)
    found = world.agent(agent).cat("/private/cites.md:verify" + (f"?q={q}" if q else ""))
    value = methods.call(world.agent(agent).memory, "verify", {"text": text, "q": q})
    assert value["text"] == found
    assert value["good"] == all(
        line.startswith(("stands", "proved", "not proved", "(no ")) for line in found.splitlines()
    )
    return found.splitlines()


def test_a_citation_stands_until_its_note_changes_is_superseded_moves_or_goes(world: World) -> None:
    alice = world.agent("alice")
    plan, cited = "/memory/shared/atlas/plan.md", "As [/memory/shared/atlas/plan.md@1] has it.\n"
    handle = alice.handle(plan)
    assert says(world, cited) == [f"stands  {plan}@1"]
    alice.echo("plan.md supersedes\n", "/shared/atlas/old.md:links")
    assert says(world, cited) == [f"superseded  {plan}@1  by /memory/shared/atlas/old.md"]
    alice.echo("-plan.md\n", "/shared/atlas/old.md:links")
    alice.memory.rename(b"/shared/atlas/plan.md", b"/shared/atlas/done.md")
    moved = f"@{handle} [{plan}@1] has it"
    assert says(world, moved) == [f"stands  {plan}@1  now /memory/shared/atlas/done.md"]
    assert says(world, cited) == [f"gone  {plan}@1"]
    alice.put("/shared/atlas/done.md", "atlas stays\n")
    assert says(world, moved) == [f"changed  {plan}@1  the newest is 2"]
    assert says(world, moved.replace("@1]", "@9]")) == [f"never  {plan}@9  there is no such version: the newest is 2"]
    assert len(says(world, f"{moved} and {moved}, {moved}")) == 3
    assert says(world, "nothing of the kind [1] [see@2] user@host\n") == ["(no citations)"]


def test_an_answer_is_proved_for_its_question_and_its_agent_alone(world: World) -> None:
    given = world.agent("alice").cat(f"/:bundle?q={ASKED}")
    seq = re.search(r"seq=(\d+)", given)[1]  # type: ignore[index]
    first = f"answer of seq={seq}  "
    assert says(world, given, q=ASKED)[0] == f"proved  {first}this memory gave it to you for that question"
    assert [line.split()[0] for line in says(world, given, q=ASKED)] == ["proved", "stands", "stands"]
    assert says(world, given)[0] == f"not proved  {first}for that its question is needed"
    assert says(world, given, q="another")[0].startswith("forged  ")
    assert says(world, given, agent="bob", q=ASKED)[0].startswith("forged  ")
    memory = world.agent("alice").memory
    nonce = memory.store.nonce(memory.who, 999_999, ASKED)
    later = f"## Relevant Memory (0 items, 9 tokens) {nonce}\n(seq=999999 {nonce})\n"  # of a state that is yet to come
    for asked in (ASKED, None):
        assert says(world, later, q=asked)[0].startswith("forged  ")
    for text in (later, f"999999:{nonce}"):
        assert [each.state for each in replayed(memory, text, None)] == ["forged", "holds"]


def test_an_answer_that_was_altered_says_where(world: World) -> None:
    given = world.agent("alice").cat(f"/:bundle?q={ASKED}")
    assert "with 3 backends" in given
    altered = given.replace("with 3 backends", "with 4 backends")
    assert [line for line in says(world, altered, q=ASKED) if "misquoted" in line] == [
        "misquoted  /memory/shared/atlas/plan.md@1  it does not say: with 4 backends"
    ]
    # The words beside a citation of an agent's own text are its own.
    assert says(world, "@zzzz [/memory/shared/atlas/plan.md@1] has 4\n") == ["gone  /memory/shared/atlas/plan.md@1"]
    assert says(world, "[/memory/shared/atlas/plan.md@1] has 4 backends\n") == [
        "stands  /memory/shared/atlas/plan.md@1"
    ]


def test_words_that_look_like_a_day_are_words_but_before_what_is_quoted(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/atlas/room.md", "the atlas proxy room opens at nine: do it on 12Mar at noon\n")
    alice.put("/shared/atlas/links.md", "Use 10Gbe atlas proxy switches when the room opens\n\nand 12Mar cables\n")
    for q in ("when does the atlas proxy room open", "atlas proxy switches"):
        given = alice.cat(f"/shared/:bundle?q={q}")
        assert {line.split()[0] for line in says(world, given, q=q)} == {"proved", "stands"}
        for word in ("10Not ", "10Mar ", "10Mar26 "):
            altered = given.replace("room opens", f"room {word}opens").replace("Gbe atlas", f"Gbe {word}atlas")
            assert altered != given and any("misquoted" in line for line in says(world, altered, q=q))
    dated = given.replace("Use 10Gbe", "7Mar Use 10Gbe")
    assert {line.split()[0] for line in says(world, dated, q=q)} == {"proved", "stands"}


def test_what_an_answer_quotes_is_checked_without_its_handle_too(world: World) -> None:
    given = world.agent("alice").cat(f"/:bundle?q={ASKED}")
    bare = re.sub(r"(?m)^@\w+ (?=\[/memory/shared/atlas/plan)", "", given)
    assert bare != given and not any("misquoted" in line for line in says(world, bare, q=ASKED))
    altered = bare.replace("with 3 backends", "with 4 backends")
    assert any(line.endswith("it does not say: with 4 backends") for line in says(world, altered, q=ASKED))


def test_what_was_put_aside_supersedes_nothing(world: World) -> None:
    alice = world.agent("alice")
    alice.echo("plan.md supersedes\n", "/shared/atlas/old.md:links")
    methods.call(alice.memory, "archive", {"path": "/memory/shared/atlas/old.md"})
    assert says(world, "[/memory/shared/atlas/plan.md@1]") == ["stands  /memory/shared/atlas/plan.md@1"]
    assert "old.md" not in alice.cat(f"/:bundle?q={ASKED}")


def test_each_version_is_read_once_and_only_so_much_of_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    plain = Reader.version_bytes
    monkeypatch.setattr(Reader, "version_bytes", lambda self, *which: read.append(which) or plain(self, *which))
    given = world.agent("alice").cat(f"/:bundle?q={ASKED}")
    (item,) = re.findall(r"(?m)^@\w+ .*plan\.md@1\].*\n(?:  .*\n)*", given)
    given = given.replace(item, item * 5)
    assert len(says(world, given, q=ASKED)) == 7 and len(set(read)) == 2
    assert sorted(read) == sorted([*set(read)] * 2)  # by the view and by the door
    monkeypatch.setattr(verifying, "COMPARED", 60)
    found = [line.split("  ")[0] for line in says(world, given, q=ASKED)]
    assert set(found) == {"proved", "stands", "not compared"}


def test_a_directory_whose_name_ends_as_a_citation_begins_can_be_cited(world: World) -> None:
    world.agent("alice").put("/shared/odd[/b.md", "the walrus dives\n")
    given = world.agent("alice").cat("/:bundle?q=walrus")
    assert says(world, given, q="walrus")[1:] == ["stands  /memory/shared/odd[/b.md@1"]
    assert len(says(world, "@aaaa [/x] and [/y@1]\n@aaaa [/x@1] [/y@1]\n")) == 3


def test_one_odd_byte_does_not_hide_what_is_cited(world: World) -> None:
    world.agent("alice").put("/private/odd.md", b"caf\xe9 [/memory/shared/atlas/plan.md@1]\n")
    assert world.agent("alice").cat("/private/odd.md:verify") == "stands  /memory/shared/atlas/plan.md@1\n"


def test_a_citation_of_what_is_not_seen_is_one_of_what_is_not_there(world: World) -> None:
    handle = world.agent("bob").handle("/private/quagga.md")
    for path in ("/memory/private/bob/quagga.md", "/memory/private/bob/none.md"):
        assert says(world, f"[{path}@1]") == [f"gone  {path}@1"]
        assert says(world, f"@{handle} [{path}@1]") == [f"gone  {path}@1"]
    assert says(world, f"@{handle} [/memory/private/bob/quagga.md@1]", agent="bob")[0].startswith("stands")


def test_text_is_looked_through_within_bounds_and_shown_on_one_line(world: World) -> None:
    (line,) = says(world, "[/memory/sha\x1b[2Jred@1]")
    assert line == "gone  /memory/sha\\x1b[2Jred@1"
    with pytest.raises(Invalid, match="citations"):
        methods.call(world.agent("alice").memory, "verify", {"text": "[/x@1]\n" * 1001})
    with pytest.raises(Invalid, match="characters"):
        methods.call(world.agent("alice").memory, "verify", {"text": "x" * (1024 * 1024 + 1)})
    world.agent("alice").put("/private/blob", b"\xff\x00\xfe")
    assert world.agent("alice").cat("/private/blob:verify") == "(no citations)\n"


@pytest.mark.parametrize(
    "part", ["[/", "@aaaa (", "@aaaa [/x", "## Relevant Memory (1 item) 123456\n", ") ", "(seq=1 "]
)
def test_no_text_can_make_it_look_again_and_again(world: World, part: str) -> None:
    alice = world.agent("alice").memory
    assert methods.call(alice, "verify", {"text": part * (1024 * 1024 // len(part))})["text"] == "(no citations)\n"
