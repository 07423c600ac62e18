"""Who knows what: what the librarian and the digests tell, and what they never do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Access, Person, Policy, Principal, Rule
from avmfs.agents import bloom, digest_cache
from avmfs.agents.librarian import topic_keys
from avmfs.errors import Denied, Invalid, NotFound
from avmfs.memory import Memory
from avmfs.rpc import aside, files
from avmfs.rpc.people import create_key
from avmfs.rpc.remembering import remember
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.discovery import DiscoveryReader
from avmfs.store.rows.scopes import Scopes
from avmfs.text.tokens import TokenCounter
from avmfs.trust import Trusted
from avmfs.views.who import Via, ask, who_knows
from tests.unit.views_fixtures import Agent, World, opened

MODES = ("full", "owner", "existence", "none")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as found:
        yield found


def mode(agent: Agent, word: str) -> None:
    agent.echo(word, "/:who")


def digest_rows(world: World) -> list[tuple[str, int, bytes]]:
    with world.store.reading(OPERATOR) as reader:
        return [(row.agent, row.version, row.bits) for row in reader.discovery.digests()]


def keyed(world: World, agent: Agent, *actions: str) -> Memory:
    """Of somebody who shows an API key for all of memory."""
    made = create_key(agent.memory, paths=["/memory/*"], actions=[*actions])
    with world.store.reading(Principal("")) as reader:
        return Memory(world.around, reader.people.shown(made["key"]))


# The librarian


@pytest.mark.parametrize("to", [None, "alice"])
def test_an_answer_with_who_knows_keeps_to_its_budget(world: World, to: str | None) -> None:
    alice, bob, counter = world.agent("alice"), world.agent("bob"), TokenCounter()
    for name in ("one", "two", "three"):
        alice.put(f"/shared/{name}.md", f"The RSI of NVDA was 72 when we looked the {name} time.")
    for question in ("what is the RSI of NVDA?", "where do zebras sleep?"):
        for budget in (1, *range(12, 160, 4)):
            found = ask(bob.memory, question, max_tokens=budget, to=to)
            told = "" if to is None else f"asked {to} (#{found.sent})\n"
            fits = counter.count(found.text) <= max(budget, 2 * counter.count(told))
            assert told in found.text and (fits or found.text == "(nothing fits)\n"), budget
            assert "nobody is known" not in found.text or "zebras" in question
    assert ask(bob.memory, "zebras?", max_tokens=3).text == "(nothing fits)\n"
    assert "## Who knows\n\nalice  3 files: NVDA, RSI" in ask(bob.memory, "what is the RSI of NVDA?").text
    assert ask(bob.memory, "zebras?").text == "(nothing relevant)\n\n## Who knows\n\n(nobody is known to know)\n"


def test_who_writes_about_a_topic_is_named_with_the_newest_file(world: World) -> None:
    alice, bob, carol = (world.agent(name) for name in ("alice", "bob", "carol"))
    alice.put("/shared/one.md", "# NVDA outlook")
    world.clock.pass_(1)
    alice.put("/shared/two.md", "We sold NVDA to Jensen Huang.")
    bob.put("/shared/three.md", "I read about NVDA, once.")
    assert world.still(carol.cat("/:who?q=NVDA")) == (
        "alice  2 files: NVDA  @hdl1 /memory/shared/two.md\nbob  1 file: NVDA  @hdl2 /memory/shared/three.md\n"
    )
    assert carol.cat("/:who?q=what does Jensen Huang say?").startswith("alice  1 file: Jensen Huang  @")
    assert carol.cat("/:who?q=nvda&limit=1").count("\n") == 1
    assert carol.cat("/:who?q=zebra") == "(nobody is known to know)\n"


def test_a_file_is_known_to_its_maker_and_to_who_wrote_it_last(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "# NVDA")
    bob.put("/shared/one.md", "# NVDA and TSMC")
    assert [line.split()[0] for line in bob.cat("/:who?q=TSMC").splitlines()] == ["alice", "bob"]


def test_topics_in_scripts_without_spaces_are_found(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "《红楼梦》 #阅读 #반도체 #株式会社")
    for question in ("谁读过红楼梦？", "阅读", "반도체", "株式会社の話"):
        assert bob.cat(f"/:who?q={question}").startswith("alice  1 file"), question
    alice.put("/private/two.md", "#量子计算")
    mode(alice, "full")
    assert bob.cat("/:who?q=谁懂量子计算") == "alice  private: 量子计算 (1)\n"
    digest_cache.publish(world.store)
    assert bob.cat("/:who?q=量子计算&via=gossip") == "alice  perhaps\n"


def test_a_question_without_a_known_topic_is_searched_for(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "the zebra crossing on main street was painted anew")
    assert bob.cat("/:who?q=zebra crossing").startswith("alice  1 file  @")
    assert bob.cat("/:who?q=NOT zebra crossing") == bob.cat("/:who?q=zebra crossing")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("full", "bob  private: NVDA (2)\n"),
        ("owner", "bob  private\n"),
        ("existence", "(somebody)  private\n"),
        ("none", ""),
    ],
)
def test_a_mode_tells_so_much_and_no_more(world: World, word: str, told: str) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.put("/private/one.md", "# NVDA zqcanary")
    bob.put("/private/two.md", "# NVDA plan")
    mode(bob, word)
    assert alice.cat("/:who?q=NVDA") == (told or "(nobody is known to know)\n")
    assert bob.cat("/:who?q=NVDA").startswith("bob  2 files: NVDA  @")
    assert bob.cat("/:who") == f"privacy: {word}\n"
    # Later notes too, and not those that are gone.
    bob.put("/private/three.md", "# TSMC")
    assert ("bob" in alice.cat("/:who?q=TSMC")) == (word in ("full", "owner"))
    bob.memory.delete("/private/three.md")
    assert alice.cat("/:who?q=TSMC") == "(nobody is known to know)\n"


def test_who_takes_its_word_back_is_forgotten_at_once(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    bob.put("/private/one.md", "# NVDA")
    mode(bob, "owner")
    alice.memory.make_searchable()
    digest_cache.publish(world.store)
    assert "bob" in alice.cat("/:who?q=NVDA") and "bob" in alice.cat("/:who?q=NVDA&via=gossip")
    mode(bob, "none")
    assert "bob" not in alice.cat("/:who?q=NVDA") + alice.cat("/:who?q=NVDA&via=gossip")
    assert alice.cat("/:agents") == "alice  (you)\nbob\n"
    assert world.dump("revealed") == {"revealed": []}
    mode(bob, "existence")
    alice.memory.make_searchable()
    digest_cache.publish(world.store)
    assert alice.cat("/:who?q=NVDA&via=gossip") == "(somebody)  perhaps\n"
    mode(bob, "none")
    assert alice.cat("/:who?q=NVDA&via=gossip") == "(nobody is known to know)\n"


def test_a_digest_that_was_being_made_does_not_undo_a_stricter_mode(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, submit = world.agent("alice"), world.agent("bob"), world.store.submit
    bob.put("/private/one.md", "# NVDA")
    mode(bob, "full")
    alice.memory.make_searchable()
    digest_cache.publish(world.store)

    def stricter_first(who: Principal, command: str, **arguments: Any) -> Any:
        monkeypatch.undo()
        mode(bob, "none")
        return submit(who, command, **arguments)

    monkeypatch.setattr(world.store, "submit", stricter_first)
    assert digest_cache.publish(world.store) == 0
    assert alice.cat("/:who?q=NVDA&via=gossip") == "(nobody is known to know)\n"


def test_what_expired_or_moved_is_not_told(world: World) -> None:
    alice, bob, _ = (world.agent(name) for name in ("alice", "bob", "carol"))
    mode(bob, "full")
    for name in ("gone.md", "moved.md"):
        bob.put(f"/private/{name}", "# NVDA")
    bob.echo("5m", "/private/gone.md:ttl")
    assert "NVDA (2)" in alice.cat("/:who?q=NVDA")
    bob.memory.move("/private/moved.md", "/shared/moved.md")
    world.clock.pass_(6)
    assert alice.cat("/:who?q=NVDA").startswith("bob  1 file: NVDA  @")
    bob.echo("bob", "/shared/moved.md:shared")  # limited to himself: his alone
    assert alice.cat("/:who?q=NVDA") == "bob  private: NVDA (1)\n"
    bob.echo("bob,carol", "/shared/moved.md:shared")  # carol has a say in it as well
    assert alice.cat("/:who?q=NVDA") == "(nobody is known to know)\n"


@pytest.mark.parametrize("place", ["trash", "archive"])
def test_what_is_out_of_the_way_is_told_by_nobody(world: World, place: str) -> None:
    """In the trash and the archive: neither by the librarian nor by digests, until it is back."""
    alice, bob = world.agent("alice"), world.agent("bob")
    mode(bob, "full")
    paths = ("/memory/shared/one.md", "/memory/private/bob/two.md")
    for path, topic in zip(paths, ("NVDA", "TSMC"), strict=True):
        bob.put(path, f"# {topic}")
    world.clock.pass_(2)

    def told() -> list[str]:
        alice.memory.make_searchable()
        digest_cache.publish(world.store)
        questions = [f"/:who?q={topic}{via}" for topic in ("NVDA", "TSMC") for via in ("", "&via=gossip")]
        return [alice.cat(question).partition("  ")[0].strip() for question in questions]

    assert told() == ["bob"] * 4
    for path in paths:
        (files.remove if place == "trash" else aside.archive)(bob.memory, path)
    assert told() == ["(nobody is known to know)"] * 4
    for path in paths:
        aside.put_back(bob.memory, path.replace("/memory", f"/{place}"))
    assert told() == ["bob"] * 4


def test_only_the_agent_itself_or_an_operator_sets_a_mode(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    for wrong in ("loud", "", "FULL", "owner,full"):
        with pytest.raises(Invalid):
            mode(alice, wrong)
    with pytest.raises(Denied):
        alice.memory.submit("set_privacy", mode="full", agent="bob")
    with pytest.raises(Denied), alice.memory.reading() as reader:
        reader.discovery.privacy("bob")
    with pytest.raises(Denied), alice.memory.reading() as reader:
        reader.discovery.known_to_all()
    operator = Memory(world.around, Principal("root", operator=True))
    operator.submit("set_privacy", mode="owner", agent="bob")
    with operator.reading() as reader:
        assert [reader.discovery.privacy(name) for name in ("alice", "bob")] == ["none", "owner"]
    assert bob.cat("/:who") == "privacy: owner\n"
    with pytest.raises(NotFound):
        operator.submit("set_privacy", mode="owner", agent="nobody-yet")
    for command in (
        {"name_host": {"name": "x"}},
        {"publish_digests": {"digests": [], "privacy": 0}},
        {"forget_hosts": {"before": 1}},
    ):
        for name, arguments in command.items():
            with pytest.raises(Denied):
                alice.memory.submit(name, **arguments)


def test_setting_a_mode_shows_in_nobodys_changes(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    before = [agent.cat("/:changes?minutes=60") for agent in (alice, bob)]
    mode(bob, "owner")
    assert [agent.cat("/:changes?minutes=60") for agent in (alice, bob)] == before


def test_rules_that_hide_a_note_from_its_owner_hide_it_from_the_librarian(tmp_path: Path) -> None:
    rules = (("/memory/private/bob/vault/*", "none", None), ("/memory/private/bob/read/*", "ro", None))
    with opened(tmp_path, Policy.from_words(rules, "rw")) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        operator = Memory(world.around, Principal("root", operator=True))
        mode(bob, "full")
        for where, topic in (("vault", "TSMC"), ("read", "NVDA")):
            parts = [b"memory", b"private", b"bob", where.encode(), b"x.md"]
            operator.submit("write_path", path=parts, data=f"# {topic}".encode())
        assert alice.cat("/:who?q=TSMC") == "(nobody is known to know)\n"
        assert alice.cat("/:who?q=NVDA") == "bob  private: NVDA (1)\n"


def test_tags_are_topics_as_long_as_they_stand(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "plain words about the #market")
    bob.memory.make_searchable()
    alice.echo("+crypto\n+市场\n+market\n", "/shared/one.md:tags")
    digest_cache.publish(world.store)
    for question in ("crypto", "市场"):
        assert bob.cat(f"/:who?q={question}").startswith("alice  1 file: "), question
        assert bob.cat(f"/:who?q={question}&via=gossip") == "alice  perhaps\n"
    assert "crypto" in bob.cat("/shared/:topics")
    alice.echo("-crypto\n-market\n", "/shared/one.md:tags")
    assert bob.cat("/:who?q=crypto") == "(nobody is known to know)\n"
    assert bob.cat("/:who?q=market").startswith("alice  1 file: market")  # the text has it still
    remember(alice.memory, "nothing but words", tags=["macro"])
    alice.echo("full", "/:who")
    assert bob.cat("/:who?q=macro") == "alice  private: macro (1)\n"


def test_what_is_in_quarantine_is_told_by_nobody_until_it_is_let_out(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(trusted=(Trusted("web", "/*", "quarantine"),))) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        mode(alice, "full")
        for path in ("/shared/page.md", "/private/page.md"):
            alice.put(path, "# TSMC")
            alice.memory.make_searchable()
            alice.memory.submit("set_sources", node=alice.node(path).id, sources=["web"])
            alice.echo("+crypto\n", f"{path}:tags")  # before it is looked at anew, and after
            alice.memory.make_searchable()
            alice.echo("+urgent\n", f"{path}:tags")
        digest_cache.publish(world.store)
        operator = Agent(Memory(world.around, Principal("root", operator=True)))
        for who in (alice, bob, operator):
            for question in ("TSMC", "crypto", "urgent"):
                for via in ("librarian", "gossip"):
                    assert who.cat(f"/:who?q={question}&via={via}") == "(nobody is known to know)\n", question
        for path in ("/shared/page.md", "/private/page.md"):
            alice.memory.submit("let_out", node=alice.node(path).id)
        alice.memory.make_searchable()
        digest_cache.publish(world.store)
        assert bob.cat("/:who?q=crypto").startswith("alice  1 file: crypto")
        assert alice.cat("/:who?q=urgent").startswith("alice  2 files: urgent")
        assert bob.cat("/:who?q=crypto&via=gossip") == "alice  perhaps\n"


@pytest.mark.parametrize("via", ["librarian", "gossip"])
def test_a_key_that_may_not_search_does_not_learn_who_knows(world: World, via: Via) -> None:
    alice = world.agent("alice")
    alice.put("/private/one.md", "# NVDA")
    for action in ("write", "search"):
        shown = keyed(world, alice, action)
        if action == "search":
            assert (who_knows(shown, "NVDA", via=via).lines != ()) == (via == "librarian")
        else:
            with pytest.raises(Denied, match="search"):
                who_knows(shown, "NVDA", via=via)


def test_words_of_a_given_title_are_topics(world: World) -> None:
    """What is remembered with a title has it beside its text, which need not say it again."""
    alice, bob = world.agent("alice"), world.agent("bob")
    path = remember(alice.memory, "it begins on the first", title="Release freeze", namespace="shared")["path"]
    bob.memory.make_searchable()
    assert bob.cat("/:who?q=freeze") == f"alice  1 file: freeze  @{bob.handle(path)} {path}\n"
    for title, said in (('"moratorium"', "moratorium"), ('"# \\u0001 pause"', "pause")):
        alice.echo(f'{{"title": {title}}}', f"{path}:meta")
        bob.memory.make_searchable()
        assert said in bob.cat("/shared/:topics") and "freeze" not in bob.cat("/shared/:topics")
    for title in ("null", "7", '["freeze"]', '{"title": "freeze"}'):
        alice.echo(f'{{"title": {title}}}', f"{path}:meta")
        bob.memory.make_searchable()
        assert bob.cat("/shared/:topics") == "(no topics)\n"
    alice.put(path, "# Its own heading\n")
    alice.echo('{"title": "freeze"}', f"{path}:meta")
    bob.memory.make_searchable()
    assert "freeze" not in bob.cat("/shared/:topics")


# Whoever else may read it

# The permissions of the customer's documents: one agent with search_all, one without any capability.
SAMPLE = {
    "akashi": Person(("trading", "admin"), ("search_all", "write", "sudo")),
    "guest": Person((), ()),
}


@pytest.mark.parametrize(
    ("word", "told", "perhaps"),
    [
        ("full", "bob  private: NVDA (2)\n", "bob  perhaps\n"),
        ("owner", "bob  private\n", "bob  perhaps\n"),
        ("existence", "(somebody)  private\n", "(somebody)  perhaps\n"),
        ("none", "", ""),
    ],
)
@pytest.mark.parametrize("other", ["search_all", "key"])
def test_a_mode_tells_as_much_when_somebody_else_may_read_everything(
    tmp_path: Path, word: str, told: str, perhaps: str, other: str
) -> None:
    """Modes are about what others may learn. A capability of one agent, or an API key for a part of the tree, says
    nothing to anybody else."""
    nobody = "(nobody is known to know)\n"
    with opened(tmp_path, Policy(people=SAMPLE if other == "search_all" else {})) as world:
        alice, bob, akashi, guest = (world.agent(name) for name in ("alice", "bob", "akashi", "guest"))
        bob.put("/private/one.md", "# NVDA zqcanary")
        if other == "key":
            made = {"id": "k1", "agent": "alice", "hash": bytes(32), "label": "", "expires": None}
            alice.memory.submit("create_key", **made, within=[b"/memory/private/*"], actions=["read"])
        bob.put("/private/two.md", "# NVDA plan")
        mode(bob, word)
        assert alice.cat("/:who?q=NVDA") == guest.cat("/:who?q=NVDA") == (told or nobody)
        digest_cache.publish(world.store)
        assert alice.cat("/:who?q=NVDA&via=gossip") == (perhaps or nobody)
        seen = akashi.cat("/:who?q=NVDA")
        if other == "search_all":  # who can read the files is told of them, once
            assert seen.startswith("bob  2 files: NVDA  @") and seen.count("\n") == 1
        else:
            assert seen == (told or nobody)
        bob.echo("none", "/:who")
        assert alice.cat("/:who?q=NVDA") == nobody and world.dump("revealed") == {"revealed": []}


def test_what_two_share_is_theirs_alone_whoever_else_may_read_it(tmp_path: Path) -> None:
    """The class of a file that two share reads like that of one agent's own beside somebody with search_all."""
    with opened(tmp_path, Policy(people={**SAMPLE, "akashi": Person((), ("search_all",))})) as world:
        alice, bob, akashi = (world.agent(name) for name in ("alice", "bob", "akashi"))
        bob.put("/shared/both.md", "# NVDA")
        bob.echo("akashi,bob", "/shared/both.md:shared")
        mode(bob, "full")
        akashi.memory.submit("set_privacy", mode="full")
        assert alice.cat("/:who?q=NVDA") == "(nobody is known to know)\n"
        bob.echo("bob", "/shared/both.md:shared")
        assert alice.cat("/:who?q=NVDA") == "bob  private: NVDA (1)\n"
        assert akashi.cat("/:who?q=NVDA").startswith("bob  1 file: NVDA")


def test_what_rules_hide_from_its_owner_is_not_told_by_who_may_still_read_it(tmp_path: Path) -> None:
    rules = [Rule("/memory/private/bob/vault/*", Access.NONE, ("bob",))]
    with opened(tmp_path, Policy(rules, people=SAMPLE)) as world:
        alice, bob, akashi = (world.agent(name) for name in ("alice", "bob", "akashi"))
        mode(bob, "full")
        akashi.memory.submit("set_privacy", mode="full")
        operator = Memory(world.around, Principal("root", operator=True))
        operator.submit("write_path", path=[b"memory", b"private", b"bob", b"vault", b"x.md"], data=b"# TSMC")
        assert alice.cat("/:who?q=TSMC") == "(nobody is known to know)\n"
        assert akashi.cat("/:who?q=TSMC").startswith("root  1 file: TSMC")


# Nothing leaks


@pytest.mark.parametrize("word", ["none", "existence"])
def test_a_hundred_private_notes_change_nothing_that_another_learns(world: World, word: str) -> None:
    """By default not a byte; with "existence" nothing about topics that were known already."""
    alice, bob, carol = (world.agent(name) for name in ("alice", "bob", "carol"))
    alice.put("/shared/one.md", "# NVDA #chips")
    bob.put("/shared/two.md", "# NVDA #chips and TSMC")
    bob.put("/private/first.md", "# NVDA #chips TSMC")
    mode(bob, word)
    questions = [
        f"/:who?q={q}{via}"
        for q in ("NVDA", "chips", "TSMC", "alpha", "chips in Taipei")
        for via in ("", "&via=gossip")
    ]

    def learnt() -> list[object]:
        carol.memory.make_searchable()
        digest_cache.publish(world.store)
        told: list[object] = [carol.cat(each) for each in [*questions, "/:agents", "/:who", "/:topics"]]
        with carol.memory.reading() as reader:
            told += [reader.discovery.digests(), reader.discovery.hosts(), reader.discovery.digest_state()]
        return told

    before = learnt()
    for number in range(100):
        text = "NVDA #chips TSMC" if word == "existence" else f"Taipei #chips #word{number} NVDA alpha"
        bob.put(f"/private/{number}.md", f"# {text}")
    assert learnt() == before


def test_an_owner_tells_that_it_knows_but_not_what(world: World) -> None:
    """Whatever bob's notes are about and however many: to a question that one of them meets, the same answer."""
    alice, bob = world.agent("alice"), world.agent("bob")
    mode(bob, "owner")
    bob.put("/private/one.md", "# NVDA")
    before = alice.cat("/:who?q=NVDA and TSMC")
    for number in range(20):
        bob.put(f"/private/{number}.md", "# NVDA TSMC #secretive")
    assert alice.cat("/:who?q=NVDA and TSMC") == before == "bob  private\n"


def test_questions_touch_no_row_of_those_who_let_nothing_be_learnt(world: World) -> None:
    """The time of an answer tells of nobody's private notes: by steps of SQLite's machine."""
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "# NVDA")

    def steps() -> int:
        alice.memory.make_searchable()
        with world.store.connection() as (db, _):
            count = 0

            def step() -> bool:
                nonlocal count
                count += 1
                return False

            who = alice.memory.who
            asked = DiscoveryReader(db, who, Scopes().visible(db, who), world.clock())
            db.set_progress_handler(step, 1)
            try:
                asked.evidence(["nvda"])
                asked.revealed(["nvda"])
            finally:
                db.set_progress_handler(None)
            return count

    steps()
    before = steps()
    for number in range(50):
        bob.put(f"/private/{number}.md", "# NVDA")
    assert abs(steps() - before) <= 3  # what a seek lands beside


# Digests


def test_nothing_that_is_in_a_digest_is_missed_and_little_else_is_found() -> None:
    chance = random.Random(5)
    for count in (1, 100, 204, 205, 258, 1000, 5000):
        topics = [f"topic {chance.getrandbits(60)}" for _ in range(count)]
        made = bloom.digest(topics)
        assert len(made) >= 128 and 8 * len(made) >= 4 * count
        assert all(bloom.holds(made, topic) for topic in topics)
        wrong = sum(bloom.holds(made, f"other {number}") for number in range(10_000))
        assert wrong <= 1500, (count, wrong)
        assert abs(wrong / 10_000 - bloom.mistaken(made)) < 0.03
        assert made == bloom.digest(topics[::-1])
    assert bloom.size(0) == bloom.size(1) == 128
    assert not bloom.holds(b"", "nvda")


def test_digests_mean_the_same_in_every_process_and_release() -> None:
    assert bloom.hashes("nvda") == NVDA and bloom.hashes("阅读") == YUEDU


NVDA, YUEDU = (240231251, 2552252005, 4015953362), (2208923565, 1838107879, 647521125)


def test_a_directory_answers_like_each_digest_alone() -> None:
    chance = random.Random(7)
    own = {
        f"a{number}": {f"t{chance.randrange(3000)}" for _ in range(chance.choice((0, 5, 300)))} for number in range(40)
    }
    made = {agent: bloom.digest(topics) for agent, topics in own.items()}
    directory = bloom.Directory(
        [(bloom.Member("h", agent), bits) for agent, bits in made.items()] + [(bloom.Member("h", "withdrawn"), b"")]
    )
    for _ in range(100):
        keys = [f"t{chance.randrange(3000)}" for _ in range(3)]
        alone = {agent: sum(bloom.holds(bits, key) for key in keys) for agent, bits in made.items()}
        asked = {each.member.agent: each.topics for each in directory.ask(keys)}
        assert asked == {agent: count for agent, count in alone.items() if count}


def test_a_full_digest_is_not_named_for_every_long_question() -> None:
    full = bloom.digest([f"topic {number}" for number in range(204)])
    directory = bloom.Directory([(bloom.Member("h", "full"), full), (bloom.Member("h", "small"), bloom.digest(["x"]))])
    absent = [f"absent {number}" for number in range(400)]
    assert directory.ask(absent) == []
    assert [each.member.agent for each in directory.ask([*absent, "x"])] == ["small"]
    meets = [f"topic {number}" for number in range(60)]
    assert directory.ask([*absent, *meets])[0].member.agent == "full"
    for number in range(200):  # few topics: nobody is missed
        assert directory.ask([f"topic {number}", *absent[number : number + 9]])[0].member.agent == "full"
    assert directory.ask([]) == []


def test_librarian_and_gossip_agree(world: World) -> None:
    """What the librarian tells somebody with whom nothing is shared, the digests have; beyond it they are rarely
    mistaken. Over random worlds of changes."""
    chance = random.Random(11)
    names = [f"agent{number}" for number in range(8)]
    stranger = world.agent("stranger")
    words = [f"Topic{chr(65 + number)}" for number in range(26)]
    mistaken = asked = 0
    for _ in range(12):
        for _ in range(12):
            agent = world.agent(chance.choice(names))
            where = chance.choice(("/private", "/shared")) + f"/{agent.memory.who.name}{chance.randrange(6)}.md"
            act = chance.random()
            if act < 0.7:
                agent.put(where, "about " + ", ".join(f"#{word}" for word in chance.sample(words, 3)))
            elif act < 0.85:
                mode(agent, chance.choice(MODES))
            else:
                try:
                    agent.memory.delete(where)
                except NotFound:
                    continue
        stranger.memory.make_searchable()
        digest_cache.publish(world.store)
        for word in [*words, *(f"absent{number}" for number in range(20))]:
            exact = {line.agent for line in who_knows(stranger.memory, f"#{word}", limit=100).lines}
            perhaps = {line.agent for line in who_knows(stranger.memory, f"#{word}", limit=100, via="gossip").lines}
            assert exact <= perhaps, word
            mistaken += len(perhaps - exact)
            asked += len(names) + 1
    assert mistaken / asked < 0.15, (mistaken, asked)


def test_a_digest_gets_another_version_only_when_it_changes(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/one.md", "# NVDA")
    bob.put("/shared/two.md", "# TSMC")
    alice.memory.make_searchable()
    assert digest_cache.publish(world.store) == 2 and digest_cache.publish(world.store) == 0
    first = {agent: version for agent, version, _ in digest_rows(world)}
    alice.put("/shared/one.md", "# NVDA and AMD")
    alice.memory.make_searchable()
    assert digest_cache.publish(world.store) == 1
    second = {agent: version for agent, version, _ in digest_rows(world)}
    assert second["bob"] == first["bob"] and second["alice"] > max(first.values())
    alice.memory.delete("/shared/one.md")
    assert digest_cache.publish(world.store) == 1
    rows = {agent: (version, bits) for agent, version, bits in digest_rows(world)}
    assert rows["alice"][0] > second["alice"] and rows["alice"][1] == b""
    assert "alice\n" in bob.cat("/:agents") and "bob  (you)  digest 128 bytes\n" in bob.cat("/:agents")


def test_the_publisher_works_when_topics_or_modes_have_changed_and_not_too_often(world: World) -> None:
    now = 100.0
    publisher = digest_cache.Publisher(world.store, lambda: now)
    alice = world.agent("alice")
    alice.put("/private/one.md", "# NVDA")
    alice.memory.make_searchable()
    publisher.step()
    assert digest_rows(world) == []
    mode(alice, "owner")
    publisher.step()
    assert digest_rows(world) == []  # too early
    now += 2 * digest_cache.PAUSE_S
    publisher.step()
    assert [agent for agent, _, _ in digest_rows(world)] == ["alice"]


# Questions, the schema


def test_any_question_has_topics_or_none() -> None:
    assert topic_keys("What does Jensen Huang think?") == (
        "what doe jensen huang think",
        "jensen",
        "jensen huang",
        "jensen huang think",
        "huang",
        "huang think",
        "think",
    )
    assert topic_keys("2026") == () and topic_keys("") == () and topic_keys("?!") == ()
    for text in ("x " * 100_000, "芯" * 100_000, "\udcff\udc80", "\0", "a" * 100_000, "𝔘" * 5000):
        assert len(topic_keys(text)) <= 1000
