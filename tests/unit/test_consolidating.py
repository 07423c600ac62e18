"""Consolidation: what says the same becomes one note, for whoever could read both, and comes back as it was."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from avmfs_config import ConsolidateSettings
from avmfs_daemon.consolidation import Consolidation

from avmfs import calls
from avmfs.access import Person, Policy, Principal
from avmfs.cli.consolidating import _back
from avmfs.errors import AvmError, Denied, Invalid, NotFound, Stale
from avmfs.memory import Memory
from avmfs.rpc import methods
from avmfs.search.duplicates import NEAR, Note, redundant
from avmfs.services import Services
from avmfs.store.commands.versions import TAGS_MAX
from tests.unit.views_fixtures import Agent, World, opened

FACT = "The release train leaves every second Thursday at 14:00 from the staging branch."
ALIKE = [
    FACT,
    f"  {FACT}\n\n",
    FACT.upper(),
    f"Note: {FACT}",
    FACT.replace("The ", "").rstrip("."),
    f"- **{FACT}**",
    FACT.replace(" every second", "  \n every second"),
]
OTHER = [
    FACT.replace("14:00", "15:00"),
    FACT.replace("Thursday", "Monday"),
    FACT.replace("leaves", "never leaves"),
    FACT.replace("staging", "main"),
    FACT.replace("leaves", "left"),
    FACT.replace("leaves", "departs"),
    FACT.replace(".", "?"),
    f"{FACT} Ask Tomasz about it.",
    f"{FACT} Its number is 7.",
    f"{FACT} It is not announced.",
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        yield made


def call(agent: Agent, name: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = methods.call(agent.memory, name, arguments)
    return found


def plan(agent: Agent, **arguments: Any) -> list[tuple[str, list[str]]]:
    steps = call(agent, "consolidate", **arguments)["steps"]
    return [((step["into"] or {}).get("path", ""), [each["path"] for each in step["gone"]]) for step in steps]


def apply(agent: Agent, **arguments: Any) -> dict[str, Any]:
    return call(agent, "consolidate", **arguments, agreed=call(agent, "consolidate", **arguments)["agreed"])


def checksum(agent: Agent) -> str:
    """Of all that the agent sees: bodies, modes, times of content, metadata, tags, links."""
    records = call(agent, "records", data=True)["records"]
    unsaid = {"file": ("seq",), "directory": ("mtime",), "symlink": ()}
    kept = [{key: value for key, value in each.items() if key not in unsaid[each["kind"]]} for each in records]
    return hashlib.sha256(repr(kept).encode()).hexdigest()


@pytest.mark.parametrize("text", ALIKE)
def test_what_says_the_same_is_redundant(text: str) -> None:
    for notes in ([FACT, text], [text, FACT]):
        (found,) = redundant([Note(each, 1) for each in notes])
        stays = notes.index(FACT) if len(text.split()) < len(FACT.split()) else 0
        assert (found.gone, found.kept) == (1 - stays, stays)


@pytest.mark.parametrize("text", OTHER)
def test_another_number_name_day_denial_or_word_is_not(text: str) -> None:
    assert redundant([Note(FACT, 1), Note(text, 1)]) == redundant([Note(text, 1), Note(FACT, 1)]) == []


def test_the_one_that_says_more_stays_and_else_the_first() -> None:
    more = f"{FACT} It stops for the freeze in winter."
    assert [found[:2] for found in redundant([Note(FACT, 1), Note(more, 1)])] == [(0, 1)]
    assert [found[:2] for found in redundant([Note(FACT, 1), Note(FACT, 2), Note(FACT, 3)])] == [(1, 0), (2, 0)]


def test_today_of_another_day_is_another_day() -> None:
    said = "The nightly export has failed today because of the full disk."
    assert redundant([Note(said, 1), Note(said, 2)]) == []
    assert len(redundant([Note(said, 1), Note(said, 1)])) == 1


@pytest.mark.parametrize(
    ("said", "of_its_day"),
    [
        ("The export just failed because of the full disk.", True),
        ("We have just got a new disk for the export.", True),
        ("The export is just a copy of the ledger.", False),
    ],
)
def test_just_is_of_its_day_where_something_has_just_happened(said: str, of_its_day: bool) -> None:
    assert len(redundant([Note(said, 1), Note(said, 2)])) == (not of_its_day)


def test_the_order_of_what_is_to_be_done_is_kept() -> None:
    steps = "Stop the ingest workers first.\nThen drain the queue.\nThen restart the ledger service.\n"
    lines = steps.splitlines(keepends=True)
    assert redundant([Note(steps, 1), Note(lines[0] + lines[2] + lines[1], 1)]) == []


def test_repeats_go_to_the_archive_and_what_stays_says_so(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/memory/shared/2.md", f"{FACT}\n")
    world.clock.pass_(1)
    bob.put("/memory/shared/1.md", FACT)
    bob.echo("train,bob", "/memory/shared/1.md:tags")
    bob.echo('{"importance": 0.9}', "/memory/shared/1.md:meta")
    alice.put("/memory/shared/3.md", FACT.replace("14", "15"))
    before = [checksum(agent) for agent in (alice, bob)]
    old = alice.handle("/memory/shared/1.md")
    assert plan(alice) == [("/memory/shared/2.md", ["/memory/shared/1.md"])]
    assert [checksum(agent) for agent in (alice, bob)] == before  # a plan changes nothing
    done = apply(alice)
    assert (done["fewer"], done["left_out"], done["notes"]) == (1, 0, 3)
    assert alice.cat(f"/@{old}:path") == "/archive/shared/1.md\n"
    assert "supersedes" in alice.cat("/memory/shared/2.md:links")
    assert alice.cat("/memory/shared/2.md:tags") == "bob,train\n"
    assert '"importance": 0.9' in alice.cat("/memory/shared/2.md:meta")
    assert plan(alice) == []
    assert call(alice, "unconsolidate", dry=True)["back"][0]["was"] == "/memory/shared/1.md"
    assert call(alice, "unconsolidate")["back"] == [
        {"path": "/memory/shared/1.md", "was": "/memory/shared/1.md", "kind": "merged"}
    ]
    assert [checksum(agent) for agent in (alice, bob)] == before
    with pytest.raises(NotFound, match="consolidation"):
        call(alice, "unconsolidate")


def test_a_stale_plan_is_refused_and_so_is_a_stale_step(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/1.md", FACT)
    world.clock.pass_(1)
    alice.put("/memory/shared/2.md", FACT)
    agreed = call(alice, "consolidate")["agreed"]
    nodes = [alice.node(f"/memory/shared/{name}.md") for name in "21"]
    world.clock.pass_(1)
    alice.echo("seen", "/memory/shared/1.md:tags")
    with pytest.raises(Stale, match="look at the plan again"):
        call(alice, "consolidate", agreed=agreed)
    with pytest.raises(Stale, match="changed"):
        alice.memory.submit("merge", run=1, nodes=[n.id for n in nodes], ctimes=[n.ctime for n in nodes])
    assert call(alice, "listing", path="/shared")["total"] == 2


@pytest.mark.parametrize(
    ("other", "how"),
    [
        ("/memory/private/alice/2.md", {}),
        ("/memory/shared/2.md", {":shared": "bob"}),
        ("/memory/shared/2.md", {":ttl": "2h"}),
        ("/memory/shared/elsewhere/2.md", {}),
        ("/memory/shared/hapag-contract.md", {}),
    ],
)
def test_other_readers_place_ttl_or_matter_are_never_mixed(world: World, other: str, how: dict[str, str]) -> None:
    alice, _ = world.agent("alice"), world.agent("bob")
    alice.put("/memory/shared/1.md", FACT)
    alice.put(other, FACT)
    for view, value in how.items():
        alice.echo(value, other + view)
    assert plan(alice) == []


def test_another_mode_is_another_class(world: World) -> None:
    alice = world.agent("alice")
    for name in "12":
        alice.put(f"/memory/shared/{name}.md", FACT)
    alice.memory.submit("set_attributes", node=alice.node("/memory/shared/2.md").id, mode=0o600)
    assert plan(alice) == []
    found = [alice.node(f"/memory/shared/{name}.md") for name in "12"]
    with pytest.raises(Stale, match="mode"):
        alice.memory.submit("merge", run=1, nodes=[n.id for n in found], ctimes=[n.ctime for n in found])


def test_agents_directories_are_one_place(world: World) -> None:
    alice = world.agent("alice")
    world.agent("bob").put("/memory/shared/bob/trains/1.md", FACT)
    world.clock.pass_(1)
    alice.put("/memory/shared/alice/trains/1.md", FACT)
    assert plan(alice) == [("/memory/shared/bob/trains/1.md", ["/memory/shared/alice/trains/1.md"])]


def test_private_notes_are_for_whoever_wrote_them(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in "12":
        alice.put(f"/memory/private/alice/{name}.md", FACT)
        alice.put(f"/memory/shared/{name}.md", FACT)
        alice.echo("bob", f"/memory/shared/{name}.md:shared")
    assert plan(bob) == []
    operator = Memory(world.around, Principal("alicia", operator=True))
    assert methods.call(operator, "consolidate", {})["steps"] == []
    nodes = [alice.node(f"/memory/shared/{name}.md") for name in "12"]
    for who in (bob.memory, operator):
        with pytest.raises(Denied, match="alice"):
            who.submit("merge", run=1, nodes=[n.id for n in nodes], ctimes=[n.ctime for n in nodes])
    assert len(plan(alice)) == 2


def test_what_may_only_be_read_is_not_put_away(tmp_path: Path) -> None:
    policy = Policy.from_words([("/memory/open/*", "ro", ("bob",))], "rw")
    with opened(tmp_path, policy) as world:
        for name in "12":
            world.agent("alice").put(f"/memory/open/{name}.md", FACT)
        assert plan(world.agent("bob")) == [] and len(plan(world.agent("alice"))) == 1


def test_claimed_and_disputed_notes_stay(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for name in "12":
        alice.put(f"/memory/shared/{name}.md", FACT)
    call(bob, "claim", path="/memory/shared/1.md")
    assert plan(alice) == [] and len(plan(bob)) == 1
    call(bob, "release", path="/memory/shared/1.md")
    alice.put("/memory/shared/3.md", "No train leaves at all.")
    call(alice, "link", path="/memory/shared/3.md", target="/memory/shared/1.md", type="contradicts")
    assert plan(alice) == []


def test_undo_leaves_what_was_changed_since_and_finds_another_name(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/2.md", FACT)
    world.clock.pass_(1)
    alice.put("/memory/shared/1.md", FACT)
    alice.echo('{"importance": 0.4}', "/memory/shared/1.md:meta")
    run = apply(alice)["run"]
    alice.echo('{"importance": 0.7}', "/memory/shared/2.md:meta")
    alice.put("/memory/shared/1.md", "something else by now")
    with pytest.raises(NotFound):
        call(world.agent("bob"), "unconsolidate", run=run)
    assert call(alice, "unconsolidate", run=run)["back"] == [
        {"path": "/memory/shared/1 (2).md", "was": "/memory/shared/1.md", "kind": "merged"}
    ]
    assert '"importance": 0.7' in alice.cat("/memory/shared/2.md:meta")
    assert alice.cat("/memory/shared/1.md:data") == "something else by now"


def test_undo_does_what_it_may_and_says_what_is_left(tmp_path: Path) -> None:
    with opened(tmp_path) as world:
        for name in "abc":
            for number in "12":
                world.agent("alice").put(f"/memory/shared/{name}/{number}.md", f"{name}: {FACT}")
                world.clock.pass_(1)
        assert apply(world.agent("alice"))["fewer"] == 3
    with opened(tmp_path, Policy.from_words([("/memory/shared/b/*", "ro", None)], "rw")) as world:
        alice = world.agent("alice")
        done = call(alice, "unconsolidate")
        assert [each["path"] for each in done["back"]] == ["/memory/shared/a/2.md", "/memory/shared/c/2.md"]
        assert [each["was"] for each in done["left"]] == ["/memory/shared/b/2.md"] and done["left"][0]["why"]
        with pytest.raises(Denied):
            call(alice, "unconsolidate")
    with opened(tmp_path) as world:
        (back,) = call(world.agent("alice"), "unconsolidate")["back"]
        assert back["path"] == "/memory/shared/b/2.md"


def test_limits_are_held_and_said(world: World) -> None:
    alice = world.agent("alice")
    for name in "1234":
        alice.put(f"/memory/shared/{name}.md", FACT)
    assert [len(gone) for _, gone in plan(alice, limit=2)] == [2]
    for wrong in ({"limit": 0}, {"likeness": 0.1}, {"likeness": 1.5}, {"path": "/archive"}):
        with pytest.raises(Invalid, match=r"limit|likeness|archive"):
            call(alice, "consolidate", **wrong)
    assert NEAR == 0.6


def test_a_step_is_done_whole_or_not_at_all(world: World) -> None:
    alice = world.agent("alice")
    for name in "12":
        alice.put(f"/memory/shared/{name}.md", FACT)
        alice.echo(",".join(f"{name}{n}" for n in range(TAGS_MAX - 1)), f"/memory/shared/{name}.md:tags")
    before = checksum(alice)
    assert apply(alice)["left_out"] == 1
    assert checksum(alice) == before and plan(alice)


def about_trains(world: World, count: int, agent: str = "alice", where: str = "/memory/shared/trains") -> list[str]:
    """Notes of one topic, and their sentences."""
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    towns = (
        "Ghent",
        "Bruges",
        "Liege",
        "Namur",
        "Mons",
        "Ostend",
        "Leuven",
        "Hasselt",
        "Genk",
        "Arlon",
        "Dinant",
        "Spa",
    )
    said = []
    for number in range(count):
        world.clock.pass_(1)
        line = f"The timetable of NMBS has {number + 3} trains to {towns[number]} on {days[number % 7]}."
        world.agent(agent).put(f"{where}/{number}.md", f"{line}\nSo much for that.\n")
        said.append(line)
    return said


def test_a_summary_is_whole_sentences_with_links_to_its_sources(world: World) -> None:
    alice = world.agent("alice")
    said = about_trains(world, 9)
    before = checksum(alice)
    step = call(alice, "consolidate", summaries=True)["steps"][0]
    assert (step["step"], step["into"]["path"]) == ("summary", "/memory/shared/trains/summary-of-nmbs.md")
    assert len(step["from"]) == 9 and checksum(alice) == before
    lines = step["text"].splitlines()[2:]
    handles = {f"@{alice.handle(f'/memory/shared/trains/{number}.md')}": line for number, line in enumerate(said)}
    assert lines and all(line == f"- {handles[line[-6:-1]]} ({line[-6:-1]})" for line in lines)
    apply(alice, summaries=True)
    path = step["into"]["path"]
    assert alice.cat(f"{path}:data") == step["text"] and alice.cat(f"{path}:tags") == "summary\n"
    assert alice.cat(f"{path}:links").count("summarizes") == 9
    assert call(alice, "consolidate", summaries=True)["steps"] == []  # it is there
    world.clock.pass_(1)
    about_trains(world, 10)
    newer = call(alice, "consolidate", summaries=True)["steps"][0]
    assert [each["path"] for each in newer["gone"]] == [path] and len(newer["from"]) == 10
    middle = checksum(alice)
    apply(alice, summaries=True)
    done = call(alice, "unconsolidate")
    assert done["back"] == [
        {"path": None, "was": path, "kind": "summary"},
        {"path": path, "was": path, "kind": "merged"},
    ]
    assert _back(done) == f"{path} (removed)\n{path}\n"
    assert checksum(alice) == middle


def test_a_strangers_words_are_in_no_summary(world: World) -> None:
    alice = world.agent("alice")
    about_trains(world, 8, where="/memory/shared/web")
    about_trains(world, 8)
    for number in range(8):
        node = alice.node(f"/memory/shared/web/{number}.md")
        alice.memory.submit("set_sources", node=node.id, sources=["web"])
    steps = call(alice, "consolidate", summaries=True)["steps"]
    assert [step["into"]["path"] for step in steps] == ["/memory/shared/trains/summary-of-nmbs.md"]


def test_undone_a_summary_is_gone_unless_somebody_has_written_on(world: World) -> None:
    alice = world.agent("alice")
    about_trains(world, 8)
    before = checksum(alice)
    apply(alice, summaries=True)
    call(alice, "unconsolidate")
    assert checksum(alice) == before
    apply(alice, summaries=True)
    world.clock.pass_(5)
    world.agent("bob").put("/memory/shared/trains/summary-of-nmbs.md", "better in own words")
    assert call(alice, "unconsolidate")["back"][0]["path"] == "/memory/shared/trains/summary-of-nmbs.md"
    assert alice.cat("/memory/shared/trains/summary-of-nmbs.md:data") == "better in own words"


def test_a_summary_has_the_readers_and_the_mode_of_its_sources(tmp_path: Path) -> None:
    with opened(tmp_path, Policy.from_words([("/memory/open/*", "none", ("bob",))], "rw")) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        about_trains(world, 8, where="/memory/private/alice/trains")
        about_trains(world, 8, where="/memory/open/trains")
        for number in range(8):
            call(alice, "write", path=f"/memory/shared/{number}.md", data=b"The timetable of NMBS is long.\n")
            alice.echo("bob", f"/memory/shared/{number}.md:shared")
        alone = alice.node("/memory/open/trains/3.md")
        alice.memory.submit("set_attributes", node=alone.id, mode=0o600)
        into = [step["into"]["path"] for step in call(alice, "consolidate", summaries=True)["steps"]]
        assert [each for each in into if "summary" in each] == ["/memory/private/alice/trains/summary-of-nmbs.md"]
        apply(alice, summaries=True)
        assert [step for step in call(bob, "consolidate", summaries=True)["steps"] if step["step"] == "summary"] == []
        with pytest.raises(NotFound):
            bob.cat("/memory/private/alice/trains/summary-of-nmbs.md:data")


def test_what_is_old_and_not_important_goes_when_told(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/memory/shared/old.md", "The old office was in Ghent.")
    alice.put("/memory/shared/kept.md", "The master key is with Mrs Peeters.")
    alice.echo('{"importance": 0.8}', "/memory/shared/kept.md:meta")
    before = checksum(alice)
    world.clock.pass_(60 * 24 * 100)
    alice.put("/memory/shared/new.md", "The office is in Mons.")
    assert plan(alice) == []
    assert plan(alice, cold=90.0) == [("", ["/memory/shared/old.md"])]
    assert apply(alice, cold=90.0)["fewer"] == 1
    assert alice.cat("/archive/shared/old.md:data") == "The old office was in Ghent."
    call(alice, "unconsolidate")
    alice.memory.delete("/memory/shared/new.md", permanently=True)
    assert checksum(alice) == before
    for days in (0.0, 1e9, float("nan")):
        with pytest.raises(Invalid, match="cold"):
            call(alice, "consolidate", cold=days)


# By the daemon, and by a model ----------------------------------------------------------------------------------


def wanted(world: World, **keys: Any) -> Services:
    return replace(world.around, consolidate=ConsolidateSettings(**keys))


def test_the_keeper_does_nothing_as_an_agent_that_has_not_come(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(people={"aaron": Person()})) as world:
        alice = world.agent("alice")
        for name in "12":
            alice.put(f"/memory/shared/{name}.md", FACT)
        heard: list[dict[str, Any]] = []
        Consolidation(wanted(world, every=86_400.0), heard.append).run()
        assert heard == [{"notes": 1, "agents": 1, "error": ""}]
        with pytest.raises(NotFound):
            alice.node("/memory/private/aaron")
        assert len(call(alice, "unconsolidate")["back"]) == 1


def test_the_keeper_consolidates_for_each_agent_as_often_as_is_wanted(world: World) -> None:
    for agent in ("alice", "bob"):
        for name in "12":
            world.agent(agent).put(f"/memory/private/{agent}/{name}.md", FACT)
    now = [0.0]
    heard: list[dict[str, Any]] = []

    def round_(**keys: Any) -> None:
        keeper = Consolidation(wanted(world, **keys), heard.append, lambda: now[0])
        for _ in range(3):
            keeper.step()
            assert keeper.work.wait(300)

    round_()
    assert heard == []
    round_(every=86_400.0, limit=1)
    assert heard == [{"notes": 1, "agents": 1, "error": ""}]
    now[0] += 3600
    world.clock.pass_(60)
    round_(every=86_400.0)  # another process: what the store knows decides
    assert len(heard) == 1
    now[0] += 86_400
    world.clock.pass_(24 * 60)
    round_(every=86_400.0)
    assert heard[1:] == [{"notes": 1, "agents": 1, "error": ""}]
    keeper = Consolidation(wanted(world, every=86_400.0), heard.append, lambda: now[0])
    keeper.step()
    now[0] -= 30 * 86_400
    world.clock.pass_(24 * 60)
    keeper.step()  # whatever a clock says that is set back meanwhile
    assert keeper.work.wait(300) and len(heard) == 3
    for agent in ("alice", "bob"):
        assert len(call(world.agent(agent), "unconsolidate")["back"]) == 1
        assert len(plan(world.agent(agent))) == 1


class Answering(BaseHTTPRequestHandler):
    said: tuple[int, bytes] = (200, b"")
    asked: ClassVar[list[tuple[str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.headers["Authorization"], json.loads(body)))
        status, data = self.said
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[str]:
    Answering.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions"
        server.shutdown()


def test_a_model_writes_the_summary_where_one_is_configured(
    world: World, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUMMARY_KEY", "s3cret")
    about_trains(world, 8)
    settings = ConsolidateSettings(endpoint=endpoint, model="small", key_env="SUMMARY_KEY")
    alice = replace(world.agent("alice").memory, around=replace(world.around, consolidate=settings))
    step = methods.call(alice, "consolidate", {"summaries": True})
    assert Answering.asked == []  # a plan asks nobody
    Answering.said = 200, json.dumps({"choices": [{"message": {"content": "Trains go to eight towns."}}]}).encode()
    methods.call(alice, "consolidate", {"summaries": True, "agreed": step["agreed"]})
    ((key, body),) = Answering.asked
    assert key == "Bearer s3cret" and body["model"] == "small"
    sentences = step["steps"][0]["text"].partition("\n\n")[2]
    assert body["messages"][1]["content"] == f"BEGIN\n{sentences}END"
    text = world.agent("alice").cat("/memory/shared/trains/summary-of-nmbs.md:data")
    assert "written by small\n\nTrains go to eight towns.\n\nFrom @" in text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, b"oops"), "answered 500"),
        ((302, b""), "redirects are not followed"),
        ((200, b"<html>"), "not that of a /chat/completions"),
        ((200, b'{"choices": []}'), "not that of a /chat/completions"),
        ((200, b'{"choices": [{"message": {"content": "  "}}]}'), "not that of a /chat/completions"),
        ((200, b" " * 2_000_000), "more than 1048576 bytes"),
    ],
)
def test_a_model_that_answers_wrongly_changes_nothing_and_is_named(
    world: World, endpoint: str, answer: tuple[int, bytes], reason: str
) -> None:
    about_trains(world, 8)
    Answering.said = answer
    settings = ConsolidateSettings(endpoint=endpoint, model="small")
    alice = replace(world.agent("alice").memory, around=replace(world.around, consolidate=settings))
    agreed, before = methods.call(alice, "consolidate", {"summaries": True})["agreed"], checksum(world.agent("alice"))
    with pytest.raises(AvmError, match=f"consolidate.endpoint 127.0.0.1: .*{reason}"):
        methods.call(alice, "consolidate", {"summaries": True, "agreed": agreed})
    assert checksum(world.agent("alice")) == before


def test_it_gives_way_with_each_note_that_it_reads_compares_and_sums_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(calls.Call):
        ways = 0

        def give_way(self) -> None:
            self.ways += 1

    alice, notes = world.agent("alice"), 9
    for number in range(notes):
        alice.put(f"/memory/n{number}.md", f"The quay of Gate {number} is #harbour.\n")
    counted = Counted()
    monkeypatch.setattr(calls.working, "call", counted, raising=False)
    call(alice, "consolidate", path="/memory", summaries=True)
    assert counted.ways >= 3 * notes
