"""Whether a note says what another one says: exactly, nearly, or something else of the same matter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import calls
from avmfs.access import Policy
from avmfs.errors import Exists, Invalid, OverQuota
from avmfs.rpc import methods
from avmfs.search.duplicates import NEAR, Note, gist, likeness, opposed, redundant, steps, words
from avmfs.store.commands.versions import TAGS_MAX
from tests.unit.views_fixtures import World, opened

FACT = "The release train leaves every second Thursday at 14:00 from the staging branch."
SAME = "Every second Thursday at 14:00 the release train leaves, from the staging branch"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        yield made


def remember(world: World, agent: str, content: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = methods.call(world.agent(agent).memory, "remember", {"content": content, **more})
    return found


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (FACT, 1.0),
        (f"  {FACT}\n\n", 1.0),
        (SAME, NEAR),
        (FACT.replace("every", "each"), NEAR),
        (FACT.replace("leaves", "departs"), None),  # which may be another thing, as "rejects" for "accepts" is
        (FACT.replace("staging", "main"), None),
        (FACT.replace("14:00", "15:00"), None),
        (FACT.replace("leaves", "never leaves"), None),
        (FACT.replace("Thursday", "Monday"), None),
        ("The release notes are written by whoever merged last.", None),
        ("ok", None),
        ("", None),
    ],
)
def test_what_is_the_same_and_what_only_reads_alike(other: str, same: float | None) -> None:
    found = likeness(FACT, other)
    assert found == likeness(other, FACT)
    assert (found == 1.0) == (same == 1.0) and (found >= NEAR) == (same is not None)


def test_notes_of_few_words_that_come_again_and_again_are_not_aligned_for_minutes(world: World) -> None:
    one, other = "ay bee ay cee " * 2000, "ay dee ay eff " * 2000
    began, asked = time.process_time(), Counter[str]()

    class Waited(calls.Call):
        def look(self) -> None:
            asked["looked"] += 1

    calls.working.call = Waited()
    try:
        assert likeness(one, other) == 0
        assert not steps(words(one), words(other))
    finally:
        calls.working.call = None
    assert asked["looked"] and time.process_time() - began < 60


def test_both_are_kept_and_the_older_is_named(world: World) -> None:
    first = remember(world, "bob", FACT, namespace="shared")
    assert first == {"path": first["path"], "done": "stored", "duplicate": None, "contradicts": []}
    again = remember(world, "alice", SAME)
    assert again["done"] == "stored" and again["path"].startswith("/memory/private/alice/")
    assert again["duplicate"]["path"] == first["path"]
    assert again["duplicate"]["handle"] == f"@{world.agent('bob').handle(first['path'])}"
    assert remember(world, "alice", FACT)["duplicate"]["likeness"] == 1.0
    assert remember(world, "alice", FACT.replace("second", "third"))["duplicate"] is None


def test_nothing_tells_of_a_note_that_the_asker_cannot_see(world: World) -> None:
    remember(world, "alice", FACT)
    limited = remember(world, "alice", SAME, namespace="shared")["path"]
    world.agent("alice").echo("alice\n", f"{limited}:shared")
    for how in ("keep", "update", "refuse"):
        done = remember(world, "bob", FACT, on_duplicate=how)
        assert done == {"path": done["path"], "done": "stored", "duplicate": None, "contradicts": []}
        world.agent("bob").memory.delete(done["path"])


def test_refused_is_said_with_the_older_and_nothing_is_written(world: World) -> None:
    older = remember(world, "alice", FACT, namespace="shared")["path"]
    with pytest.raises(Exists, match=f"@{world.agent('alice').handle(older)} says it already") as refused:
        remember(world, "alice", FACT, namespace="shared", on_duplicate="refuse")
    assert refused.value.filename == older
    assert len(methods.call(world.agent("alice").memory, "listing", {"path": "/shared"})["entries"]) == 1
    with pytest.raises(Invalid, match="on_duplicate"):
        remember(world, "alice", FACT, on_duplicate="merge")


def test_update_writes_the_older_with_what_is_new_about_it(world: World) -> None:
    older = remember(world, "alice", FACT, namespace="shared", tags=["a"])["path"]
    done = remember(
        world, "bob", SAME, namespace="shared", tags=["b"], importance=0.9, title="Train", on_duplicate="update"
    )
    assert (done["path"], done["done"]) == (older, "updated")
    alice = world.agent("alice")
    assert alice.cat(f"{older}:data") == f"{SAME}\n" and alice.cat(f"{older}:tags") == "a,b\n"
    assert '"importance": 0.9' in alice.cat(f"{older}:meta") and '"title": "Train"' in alice.cat(f"{older}:meta")
    assert len(alice.cat(f"{older}:history").splitlines()) == 2


@pytest.mark.parametrize(
    ("older", "newer", "left"),
    [
        (None, "1m", "never"),
        ("never", "1m", "never"),
        ("1m", None, "never"),
        ("1m", "never", "never"),
        ("1m", "2h", "2h"),
        ("2h", "1m", "2h"),
        ("2h", "2h", "2h"),
    ],
)
def test_update_keeps_the_longer_of_both_lives(world: World, older: str | None, newer: str | None, left: str) -> None:
    path = remember(world, "alice", FACT, namespace="shared", ttl=older)["path"]
    done = remember(world, "bob", FACT, namespace="shared", ttl=newer, on_duplicate="update")
    assert (done["path"], done["done"]) == (path, "updated")
    assert world.agent("alice").cat(f"{path}:ttl") == f"{left}\n"


def test_update_never_carries_a_note_to_other_readers(tmp_path: Path) -> None:
    with opened(tmp_path, Policy.from_words([("/memory/open/*", "ro", ("eve",))], "rw")) as world:
        shared = remember(world, "alice", FACT, namespace="shared")["path"]
        mine = remember(world, "alice", FACT, on_duplicate="update")
        assert mine["done"] == "stored" and mine["duplicate"]["path"] == shared
        assert mine["path"].startswith("/memory/private/alice/")
        elsewhere = remember(world, "alice", FACT, path="/memory/open/a.md", on_duplicate="update")
        assert (elsewhere["path"], elsewhere["done"]) == ("/memory/open/a.md", "stored")


@pytest.mark.parametrize("content", ['"quoted" NOT words', "“", "NOT", "x" * 100_000, "@k7f2:meta?q=%"])
def test_any_text_can_be_remembered(world: World, content: str) -> None:
    assert remember(world, "alice", content)["duplicate"] is None
    assert remember(world, "alice", content)["done"] == "stored"


def test_an_update_is_done_whole_or_not_at_all(world: World) -> None:
    older = remember(world, "alice", FACT, namespace="shared", tags=[f"t{n}" for n in range(TAGS_MAX)])["path"]
    given = {"namespace": "shared", "title": "Train", "importance": 0.9, "on_duplicate": "update"}
    with pytest.raises(OverQuota):
        remember(world, "alice", SAME, tags=["more"], **given)
    alice = world.agent("alice")
    assert alice.cat(f"{older}:data") == f"{FACT}\n" and "Train" not in alice.cat(f"{older}:meta")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Der Server ist nicht erreichbar.", "Der Server ist erreichbar."),
        ("Сервер не доступен", "Сервер доступен"),
        ("Most customers renewed", "Few customers renewed"),
        ("The flag is on", "The flag is off"),
        ("Margin of the shop moved +3 %", "Margin of the shop moved -3 %"),
        ("Margin of the shop moved −3 %", "Margin of the shop moved 3 %"),
        ("Sync direction of contacts: CRM -> ERP", "Sync direction of contacts: CRM <- ERP"),
        ("Sync direction of contacts: CRM → ERP", "Sync direction of contacts: CRM ← ERP"),
        ("Alert where free disk space < 9", "Alert where free disk space > 9"),
        ("Retry where the status code != 3", "Retry where the status code == 3"),
        ("The licence of the tool costs $300", "The licence of the tool costs €300"),
        ("The office in Recife is at UTC + 3", "The office in Recife is at UTC - 3"),
        ("The office in Recife is at UTC+3", "The office in Recife is at UTC-3"),
    ],
)
def test_what_says_the_opposite_has_another_gist(one: str, other: str) -> None:
    assert gist(one) != gist(other)
    assert gist(one) == gist(f" {one} ")
    assert likeness(one, other) == 0 and not redundant([Note(one, 1), Note(other, 1)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The audit of the shop is on 2026-11-24", "The audit of the shop is on 2026 11 24"),
        ("The shop opens in the season 9 - 17", "The shop opens in the season 9–17"),
        ("Covid-19 tests are in the upper drawer", "Covid 19 tests are in the upper drawer"),
        ("To buy for the shop:\n- 3 apples\n  + 4 pears\n", "To buy for the shop:\n3 apples\n4 pears"),
        ("> The shop keeps 3 spare keys", "The shop keeps 3 spare keys"),
    ],
)
def test_hyphens_bullets_and_quotes_are_no_signs(one: str, other: str) -> None:
    assert gist(one) == gist(other) and likeness(one, other) >= NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Alice owns billing, Bob owns search.", "Bob owns billing, Alice owns search."),
        ("Bach in June, Brahms in May", "Brahms in June, Bach in May"),
        ("Alice pays Bob", "Bob pays Alice"),
        (
            "The primary is not reachable, the replica is reachable",
            "The primary is reachable, the replica is not reachable",
        ),
        ("The flight to Oslo leaves from terminal B at noon", "The flight to Oslo leaves from terminal D at noon"),
        ("The contract with Vitesse ends in May 2024", "The contract with Vitesse ends in March 2024"),
        ("Anna may sign customs forms", "Only Anna may sign customs forms"),
        (
            "The bus to Oslo leaves from gate A at noon, as a rule",
            "The bus to Oslo leaves from gate B at noon, as a rule",
        ),
        ("They may ship the frames to Vitesse in May", "They may ship the frames to Vitesse in March"),
        ("Meyer signed the audit of phase I", "Meyer signed the audit of phase II"),
        ("Yesterday I signed the audit of the hall", "Yesterday Meyer signed the audit of the hall"),
    ],
)
def test_what_is_exchanged_is_no_repetition(one: str, other: str) -> None:
    assert opposed(one, other) and opposed(other, one)
    assert likeness(one, other) == 0 and not redundant([Note(one, 1), Note(other, 1)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FACT, SAME),
        (FACT, SAME.replace("Every", "At every")),
        ("The port of the staging database is 5433", "5433 is the port of the staging database"),
        ("The zebra crossed 12 roads at dawn.", "At dawn zebras crossed 12 roads!"),
        ("The zebra never crossed the road at dawn.", "At dawn, the zebra never crossed the road."),
        ("Born in 1951 in Tallinn: Maja's father.", "Maja's father was born in Tallinn in 1951."),
        ("Only Renata can sign customs forms.", "Customs forms can be signed by Renata only."),
        ("I think that I left the key of the bike there", "I left the key of the bike there, I think"),
        ("A key of the bike lies in hall A, I think", "I think, a key of the bike lies in hall A"),
        ("The Way To The Office Of The Notary", "The way to the office of the notary"),
    ],
)
def test_what_is_moved_is_a_repetition(one: str, other: str) -> None:
    assert not opposed(one, other) and likeness(one, other) >= NEAR
