"""Who may do what, through the store's own commands and questions: capabilities, groups, areas of keys, quotas.

Both modes. Every world is audited when it closes: each node's scope against the policy, each counter against a recount.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import default_settings
from avmfs_config.people import AgentSettings, QuotaSettings

from avmfs import paths
from avmfs.access import Access, Person, Policy, Principal, Quota, Rule
from avmfs.errors import Denied, Invalid, NotFound, OverQuota
from avmfs.rpc.local import LocalDoor
from avmfs.store.commands import aside, people
from avmfs.store.identity import ANYBODY, OPERATOR
from avmfs.store.rows import api_keys
from avmfs.store.schema import database, tables
from avmfs.store.store import open_direct
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, CAROL, RULES, Mode, World, faults, rows

EXEC = Principal("eve")
OPERATOR_ALICE = Principal("alice", operator=True)
Make = Callable[..., World]


class PolicyWorld(World):
    """A world with a whole policy, not only rules."""

    def __init__(self, root: Path, policy: Policy) -> None:
        self._policy = policy
        super().__init__(root, "direct")

    @property
    def policy(self) -> Policy:
        stored = self.rows("select value from setting where key = 'people'") if self.path.exists() else []
        people = (
            {name: Person(tuple(g), tuple(c)) for name, (g, c) in json.loads(stored[0][0]).items()} if stored else {}
        )
        return self._policy.joined(people)

    def _open(self) -> Any:
        return open_direct(self.path, self._policy, RULES, self.clock)

    def reopen(self, policy: Policy) -> None:
        self.store.close()
        self._policy = policy
        self.store = self._open()


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[Callable[..., PolicyWorld]]:
    made: list[PolicyWorld] = []

    def make(people: dict[str, Person] | None = None, *rules: Rule, default: Access = Access.WRITE) -> PolicyWorld:
        made.append(PolicyWorld(tmp_path, Policy(rules, default, people)))
        return made[-1]

    yield make
    for world in made:
        world.close()


def person(*capabilities: str, groups: tuple[str, ...] = (), **quota: int) -> Person:
    return Person(groups, capabilities, Quota(**quota))


def new_key(
    world: World, who: Principal, *within: str, actions: tuple[str, ...] = ("read", "search"), **more: Any
) -> str:
    id_ = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(8))
    secret = secrets.token_urlsafe(32)
    world.do(
        who,
        "create_key",
        id=id_,
        agent=more.pop("agent", who.name),
        hash=api_keys.hashed(secret),
        label="",
        within=[paths.raw(each) for each in within],
        actions=list(actions),
        expires=more.pop("expires", None),
    )
    return api_keys.compose(id_, secret)


def shown(world: World, key: str) -> Principal:
    with world.reading(Principal("")) as reader:
        return reader.people.shown(key)


# --- capabilities and groups


def test_an_agent_without_write_is_read_only_everywhere(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"bob": person()})
    world.write(ALICE, "/memory/shared/a.md", b"x")
    assert world.bytes(BOB, "/memory/shared/a.md") == b"x"
    for path in ("/memory/shared/a.md", "/memory/shared/new.md", "/memory/private/bob/new.md"):
        with pytest.raises(Denied):
            world.write(BOB, path, b"y")
    node = world.node(BOB, "/memory/shared/a.md").id
    refused: dict[str, dict[str, Any]] = {
        "set_tags": {"add": ["t"], "remove": [], "replace": False},
        "set_ttl": {"expires": 1},
        "merge_meta": {"importance": 1.0, "user": {}},
        "set_attributes": {"mode": 0o777},
        "commit": {"handle": None, "edits": [["t", 0]]},
        "append": {"handle": None, "data": b"z"},
    }
    for command, arguments in refused.items():
        with pytest.raises(Denied):
            world.do(BOB, command, node=node, **arguments)
    with pytest.raises(Denied):
        world.do(BOB, "tell", recipient="alice", body="b", priority="low", expires=None, body_limit=9, unread_limit=9)
    with pytest.raises(Denied):
        beforehand(world, BOB, "alice")
    world.do(BOB, "mark", node=node)  # what an agent has read is its own affair


def test_everybody_may_be_read_only_but_some(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({ANYBODY: person(), "alice": person("write")})
    world.write(ALICE, "/memory/shared/a.md", b"x")
    for who in (BOB, CAROL):
        with pytest.raises(Denied):
            world.write(who, "/memory/shared/a.md", b"y")


def test_search_all_reads_what_is_private_and_changes_none_of_it(ruled: Callable[..., PolicyWorld]) -> None:
    rule = Rule("/memory/private/alice/vault/*", Access.NONE, ("bob",))
    world = ruled({"bob": person("write", "search_all")}, rule)
    world.write(ALICE, "/memory/private/alice/a.md", b"quokka")
    world.write(ALICE, "/memory/private/alice/vault/b.md", b"quokka")
    world.write(ALICE, "/memory/shared/c.md", b"quokka")
    world.share(ALICE, "/memory/shared/c.md", "alice")
    world.drain()
    assert world.bytes(BOB, "/memory/private/alice/a.md") == b"quokka" and world.exists(BOB, "/memory/shared/c.md")
    assert not world.exists(BOB, "/memory/private/alice/vault/b.md"), "a rule that names it stands above"
    assert len(world.store.search_index(BOB).postings(["quokka"])[0]) == 2
    assert len(world.store.search_index(CAROL).postings(["quokka"])[0]) == 0
    for path in ("/memory/private/alice/a.md", "/memory/shared/c.md", "/memory/private/alice/new.md"):
        with pytest.raises(Denied):
            world.write(BOB, path, b"y")


def test_a_rule_about_a_group_is_about_its_members(ruled: Callable[..., PolicyWorld]) -> None:
    rules = (
        Rule("/memory/desk/*", Access.WRITE, None, ("trading",)),
        Rule("/memory/desk/*", Access.NONE),
    )
    world = ruled({"alice": person("write", groups=("trading",)), "bob": person("write", groups=("other",))}, *rules)
    world.mkdir(ALICE, "/memory/desk")
    world.write(ALICE, "/memory/desk/a.md", b"x")
    assert not world.exists(BOB, "/memory/desk") and not world.exists(CAROL, "/memory/desk/a.md")
    world.reopen(Policy(rules, Access.WRITE, {"bob": person("write", groups=("trading",))}))
    assert world.bytes(BOB, "/memory/desk/a.md") == b"x" and not world.exists(ALICE, "/memory/desk")


def paths_told(world: World, who: Principal) -> tuple[set[bytes], set[bytes]]:
    """All that the changes name, and all that the audit does."""
    with world.reading(who) as reader:
        changes, acts = reader.changes(tables.ROOT, limit=10_000), reader.audit.acts(limit=10_000)
    rows: tuple[Iterable[Any], Iterable[Any]] = changes, acts
    told = [{path for row in each for path in (row.path, row.other) if path is not None} for each in rows]
    return told[0], told[1]


def versions_counted(world: World, who: Principal) -> int:
    with world.reading(who) as reader:
        return reader.counts(tables.ROOT).versions


def test_search_all_that_is_withdrawn_shows_no_older_version_and_no_name(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"eve": person("write", "search_all")})
    for path in ("/memory/private/alice/plan", "/memory/shared/hers"):
        world.write(ALICE, path, b"1")
        if "shared" in path:
            world.share(ALICE, path, "alice")
        for text in (b"2", b"3"):
            world.clock.advance(5)
            world.write(ALICE, path, text)
    limits = {"priority": "low", "expires": None, "body_limit": 9, "unread_limit": 9}
    world.do(BOB, "enroll")
    world.do(ALICE, "tell", recipient="bob", body="hi", **limits)
    world.rename(ALICE, "/memory/private/alice/plan", "/memory/plan")
    world.share(ALICE, "/memory/shared/hers")
    whole = [b"1", b"2", b"3"]
    assert world.history(EXEC, "/memory/plan") == world.history(EXEC, "/memory/shared/hers") == whole
    assert b"/memory/private/alice/plan" in paths_told(world, EXEC)[0] and versions_counted(world, EXEC) == 6
    world.reopen(Policy(people={"eve": person("write")}))
    for who in (EXEC, BOB):
        assert world.history(who, "/memory/plan") == world.history(who, "/memory/shared/hers") == [b"3"]
        assert versions_counted(world, who) == 2
        for told in paths_told(world, who):
            assert {b"/memory/plan", b"/memory/shared/hers"} <= told
            assert not [path for path in told if path.startswith(b"/memory/private/alice/")]
    with world.reading(EXEC) as reader:
        limited = [each.op for each in reader.changes(tables.ROOT) if each.path == b"/memory/shared/hers"]
        assert limited == ["shared", "remove", "write", "create"], "of the time when it was hers nothing is told"
    assert b"/tell/bob" in paths_told(world, BOB)[1] and b"/tell/bob" not in paths_told(world, EXEC)[1]
    assert world.history(ALICE, "/memory/plan") == world.history(ALICE, "/memory/shared/hers") == whole
    assert b"/memory/private/alice/plan" in paths_told(world, ALICE)[0] and versions_counted(world, ALICE) == 6


def test_mail_is_its_receivers_whatever_the_rules_say_of_the_mailboxes(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled(None, Rule("/memory/*", Access.WRITE), default=Access.NONE)
    world.do(BOB, "enroll")
    limits = {"priority": "low", "expires": None, "body_limit": 9, "unread_limit": 9}
    world.do(ALICE, "tell", recipient="bob", body="hi", **limits)
    assert [b"/tell/bob" in paths_told(world, who)[1] for who in (ALICE, BOB, CAROL)] == [True, True, False]


DESK = (Rule("/memory/desk/*", Access.WRITE, None, ("trading",)), Rule("/memory/desk/*", Access.NONE))


def test_who_leaves_a_group_leaves_what_the_group_wrote(ruled: Callable[..., PolicyWorld]) -> None:
    trader = person("write", groups=("trading",))
    world = ruled({"alice": trader, "bob": trader, "carol": trader}, *DESK)
    world.mkdir(ALICE, "/memory/desk")
    world.write(ALICE, "/memory/private/alice/note", b"1")
    world.rename(ALICE, "/memory/private/alice/note", "/memory/desk/note")
    for text in (b"2", b"3"):
        world.clock.advance(5)
        world.write(ALICE, "/memory/desk/note", text)
    world.write(ALICE, "/memory/private/alice/memo", b"1")
    world.rename(ALICE, "/memory/private/alice/memo", "/memory/desk/memo")
    world.write(ALICE, "/memory/desk/memo", b"2")
    world.write(ALICE, "/memory/desk/short-nvda", b"x")
    world.write(BOB, "/memory/desk/long-nvda", b"x")
    world.write(ALICE, "/memory/desk/log", b"1")
    world.clock.stand_still()
    log = world.edit(ALICE, "/memory/desk/log", ["t", 0], ["w", 0, b"2"], handle=7)
    for name in ("note", "memo", "log"):
        world.rename(ALICE, f"/memory/desk/{name}", f"/memory/{name}")
    assert world.edit(ALICE, "/memory/log", ["w", 1, b"+"], handle=7)["version"] == log["version"] == 2, "amended since"
    whole = {"/memory/note": [b"1", b"2", b"3"], "/memory/memo": [b"1", b"2"], "/memory/log": [b"1", b"2+"]}
    assert {path: world.history(BOB, path) for path in whole} == whole
    world.reopen(Policy(DESK, people={"alice": trader, "carol": trader}))
    assert {path: world.history(BOB, path) for path in whole} == {path: texts[-1:] for path, texts in whole.items()}
    assert {path: world.history(CAROL, path) for path in whole} == whole, "1 as it came to the desk, from elsewhere"
    changes, acts = paths_told(world, BOB)
    assert not [path for path in changes if b"/desk" in path] and b"/memory/note" in changes
    assert {path for path in acts if b"/desk" in path} == {b"/memory/desk/long-nvda"}, "what it did itself it knows"
    with world.reading(BOB) as reader:
        assert {act.agent for act in reader.audit.acts() if b"/desk" in act.path} == {"bob"}
    assert {b"/memory/desk/short-nvda", b"/memory/desk/long-nvda"} <= paths_told(world, CAROL)[0]


def test_a_rule_that_hides_a_place_hides_what_was_told_of_it(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.mkdir(ALICE, "/memory/desk")
    world.mkdir(ALICE, "/memory/open")
    for path in ("/memory/desk/a", "/memory/open/b", "/memory/open/c", "/memory/open/draft"):
        world.write(ALICE, path, b"x")
    start = world.newest_seq()
    world.rename(ALICE, "/memory/open/draft", "/memory/e")
    world.rename(ALICE, "/memory/desk/a", "/memory/open/a")
    world.rename(ALICE, "/memory/open/b", "/memory/desk/b")
    world.rename(ALICE, "/memory/open/c", "/memory/open/d")
    for number in range(5):
        world.write(ALICE, f"/memory/desk/secret{number}", b"x")
    hidden = [Rule(pattern, Access.NONE, ("bob", "newcomer")) for pattern in ("/memory/desk/*", "/memory/open/draft*")]
    world.reopen(Policy(hidden))
    newcomer = Principal("newcomer")
    told = [
        ("create", b"/memory/e", None),
        ("create", b"/memory/open/a", None),
        ("remove", b"/memory/open/b", None),
        ("rename", b"/memory/open/d", b"/memory/open/c"),
    ]
    for who in (BOB, newcomer):
        assert not [path for each in paths_told(world, who) for path in each if b"/desk" in path]
        with world.reading(who) as reader:
            found = reader.changes(tables.ROOT, after_seq=start, newest_first=False)
            assert [(each.op, each.path, each.other) for each in found] == told
            assert [each.path for each in reader.changes(tables.ROOT, limit=1)] == [b"/memory/open/d"]
            below = reader.changes(world.node(who, "/memory/open").id, after_seq=start, newest_first=False)
            assert below == found[1:]
            assert [act.path for act in reader.audit.acts(limit=1)] == [b"/memory/open/d"]
            assert reader.audit.acts(path=b"/memory/desk") == []
    assert b"/memory/desk/secret4" in paths_told(world, CAROL)[0]


def test_registered_agents_outlive_the_process_and_stand_below_the_configuration(
    ruled: Callable[..., PolicyWorld],
) -> None:
    world = ruled({"alice": person("write")})
    users = {"alice": {"capabilities": []}, "bob": {"groups": ["g"], "capabilities": []}}
    with pytest.raises(Denied):
        world.do(ALICE, "init_permissions", users=users)
    assert world.do(OPERATOR, "init_permissions", users=users) == {"users": 2}
    for _ in range(2):
        with pytest.raises(Denied):
            world.write(BOB, "/memory/b.md", b"x")
        world.write(ALICE, "/memory/a.md", b"x")
        with world.reading(CAROL) as reader:
            assert reader.people.policy().person("bob") == Person(("g",), ())
        world.reopen(world._policy)
    world.do(OPERATOR, "init_permissions", users={})
    world.write(BOB, "/memory/b.md", b"x")


@pytest.mark.parametrize(
    ("users", "place"),
    [
        ({"All": {}}, "All"),
        ({"bob": []}, "users.bob"),
        ({"bob": {"group": []}}, "users.bob"),
        ({"bob": {"capabilities": ["root"]}}, "users.bob.capabilities"),
        ({"bob": {"groups": ["A b"]}}, "users.bob.groups"),
        ({"bob": {"groups": "g"}}, "users.bob.groups"),
    ],
)
def test_a_bad_registration_names_its_place(ruled: Callable[..., PolicyWorld], users: Any, place: str) -> None:
    with pytest.raises(Invalid, match=place):
        ruled().do(OPERATOR, "init_permissions", users=users)


def test_only_the_owner_shares_and_only_where_it_may_write(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/shared/a.md", b"x")
    with pytest.raises(Denied, match="owner"):
        world.share(BOB, "/memory/shared/a.md", "bob")
    world.reopen(Policy([Rule("/memory/shared/*", Access.READ, ("alice",))]))
    with pytest.raises(Denied):
        world.share(ALICE, "/memory/shared/a.md", "alice")


def test_what_the_operator_does_can_be_told_apart(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/a.md", b"x")
    world.do(OPERATOR_ALICE, "act_as_operator")
    world.write(OPERATOR_ALICE, "/memory/private/bob/b.md", b"x")
    told = world.rows("select op, elevated from log where agent = 'alice' and seq > 2 order by seq")
    assert told == [("create", 0), ("write", 0), ("operator", 1), ("create", 1), ("write", 1)]
    with pytest.raises(Denied):
        world.do(ALICE, "act_as_operator")
    with world.reading(ALICE) as reader:
        assert "operator" not in {change.op for change in reader.changes(tables.ROOT)}
        seen = reader.newest_seq()
    world.do(OPERATOR_ALICE, "act_as_operator")
    with world.reading(ALICE) as reader:
        assert reader.newest_seq() == seen, "nobody sees that somebody else was the operator"


def test_a_mode_without_a_write_bit_stops_who_writes_by_path(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    node = world.write(ALICE, "/memory/d/a.md", b"x")["node"]
    directory = world.node(ALICE, "/memory/d").id
    world.do(ALICE, "set_attributes", node=node, mode=0o444)
    for who in (ALICE, BOB):
        with pytest.raises(Denied, match="mode of the file"):
            world.write(who, "/memory/d/a.md", b"y", mode="append")
    world.do(ALICE, "append", node=node, handle=None, data=b"z")  # who has it open may go on
    world.do(ALICE, "set_attributes", node=directory, mode=0o555)
    with pytest.raises(Denied, match="mode of its directory"):
        world.do(ALICE, "remember", path=[b"memory", b"d", b"m.md"], data=b"m")
    world.write(OPERATOR_ALICE, "/memory/d/a.md", b"y")
    world.do(BOB, "set_attributes", node=node, mode=0o600)
    world.write(BOB, "/memory/d/a.md", b"not limited to its maker: rules and :shared say who is")


# --- API keys


@pytest.fixture
def any_world(tmp_path: Path, mode: Mode) -> Iterator[World]:
    world = World(tmp_path, mode)
    yield world
    world.close()


def test_a_key_is_limited_by_names_and_not_by_letters(any_world: World) -> None:
    world = any_world
    for path in ("/memory/a/x.md", "/memory/ab/y.md", "/memory/a.md", "/memory/private/alice/z.md"):
        world.write(ALICE, path, b"quokka")
    world.drain()
    who = shown(world, new_key(world, ALICE, "/memory/a/*"))
    world.write(BOB, "/memory/a/later/w.md", b"quokka")
    world.drain()
    assert world.names(who, "/memory") == ["a"] and world.names(who, "/memory/a") == ["later", "x.md"]
    for path in ("/memory/ab", "/memory/ab/y.md", "/memory/a.md", "/memory/private", "/memory/private/alice/z.md"):
        assert not world.exists(who, path)
    index = world.store.search_index(who)
    assert len(index.postings(["quokka"])[0]) == 2 and len(index.table().passages) == 2
    with world.reading(who) as reader:
        assert reader.counts(tables.ROOT).files == 2
        assert all(change.path.startswith(b"/memory/a/") for change in reader.changes(tables.ROOT))
    assert len(world.store.search_index(ALICE).postings(["quokka"])[0]) == 5


def test_a_link_is_told_to_those_alone_who_see_both_ends(any_world: World) -> None:
    world = any_world
    plan = world.write(ALICE, "/memory/plan", b"x")["node"]
    others = {name: world.write(ALICE, f"/memory/{name}", b"x")["node"] for name in ("open", "private/alice/n", "some")}
    world.share(ALICE, "/memory/some", "alice", "carol")
    made = world.node(ALICE, "/memory/plan").ctime
    world.clock.advance(2)
    world.do(ALICE, "add_link", node=plan, target=others["open"], type="y")
    assert world.node(ALICE, "/memory/plan").ctime > made, "all see it, and no key only one of them"
    whole, part = (shown(world, new_key(world, ALICE, path)) for path in ("/memory/*", "/memory/plan"))

    def told(command: str, **more: Any) -> tuple[str, bool]:
        world.clock.advance(2)
        since, before = world.newest_seq(), world.node(ALICE, "/memory/plan").ctime
        world.do(ALICE, command, node=plan, **more)
        names = ""
        for name, who in {"a": ALICE, "b": BOB, "c": CAROL, "w": whole, "p": part}.items():
            with world.reading(who) as reader:
                rows = [row.path for row in reader.changes(tables.ROOT, after_seq=since)]
                acts = [act.path for act in reader.audit.acts(limit=10) if act.seq > since]
                assert reader.newest_seq() > since if rows else reader.newest_seq() <= since
            assert acts == rows or who.key is not None
            names += name * len(rows)
        return names, world.node(ALICE, "/memory/plan").ctime != before

    private = others["private/alice/n"]
    for command in ("add_link", "remove_link"):
        assert told(command, target=private, type="x") == ("aw", False), command
        assert told(command, target=others["some"], type="x") == ("acw", False), command
        assert told(command, target=others["open"], type="x") == ("abcw", False), command
    world.do(BOB, "add_link", node=plan, target=others["open"], type="x")
    world.do(ALICE, "add_link", node=plan, target=private, type="x")
    assert told("remove_link", target=None) == ("aabcww", False)
    assert told("remove_link", target=None) == ("", False), "nothing is otherwise"
    assert world.rows("select * from link") == []


def test_a_key_opens_what_was_put_away_of_its_paths_however_often(any_world: World) -> None:
    world = any_world
    for path in ("/memory/a/x.md", "/memory/private/alice/a/x.md", "/memory/b.md"):
        for number in range(2):
            world.write(ALICE, path, b"%d" % number)
            world.do(ALICE, "archive", **world.at(ALICE, path))
    who = shown(world, new_key(world, ALICE, "/memory/a/*", "/memory/private/alice/a/*"))
    for mirror in ("/archive", "/archive/(2)", "/archive/private/alice", "/archive/private/alice/(2)"):
        assert world.exists(who, f"{mirror}/a/x.md"), mirror
    assert not world.exists(who, "/archive/b.md") and not world.exists(who, "/archive/(2)/b.md")


def test_a_key_for_all_of_memory_has_what_was_put_away_and_no_index_whoever_made_it(any_world: World) -> None:
    world = any_world
    world.write(ALICE, "/memory/a/x.md", b"x")
    world.do(ALICE, "archive", **world.at(ALICE, "/memory/a/x.md"))
    world.do(ALICE, "write_index", project=b"house", items=[{"path": [b"x.py.md"], "data": b"# x.py"}])
    key, everything = new_key(world, ALICE, "/memory/*", "/live/x"), new_key(world, ALICE, "/")
    for before in (False, True):  # an older avmfs noted no areas of such a key
        if before:
            db = connect(world.path)
            db.execute("update api_key set areas = null")
            db.close()
        assert "a" in world.names(shown(world, key), "/memory")
        assert world.exists(shown(world, key), "/archive/a/x.md")
        assert not world.exists(shown(world, key), "/index")
        assert world.exists(shown(world, everything), "/index/house/x.py.md")


def test_a_key_reads_the_versions_that_its_agent_reads_back_to_one_from_outside_its_paths(any_world: World) -> None:
    world = any_world

    def written(path: str, *texts: bytes) -> None:
        for text in texts:
            world.write(ALICE, path, text)
            world.clock.advance(2)

    def moved(path: str, name: str) -> None:
        world.rename(ALICE, path, f"/memory/market/{name}")

    for directory in ("/memory/market", "/memory/market/sub", "/memory/else"):
        world.mkdir(ALICE, directory)
    written("/memory/market/all", b"1", b"2", b"3")
    for name in ("came", "went on", "sub/down"):
        path = f"/memory/{'market' if '/' in name else 'else'}/{name[-4:]}"
        written(path, b"1", b"2")
        moved(path, name)
    written("/memory/market/went on", b"3", b"4")
    written("/memory/market/hers", b"1", b"2")
    world.share(ALICE, "/memory/market/hers", "alice", "bob")
    written("/memory/market/hers", b"3")
    key = shown(world, new_key(world, ALICE, "/memory/market/*"))
    below = shown(world, new_key(world, ALICE, "/memory/market/sub"))
    of_key = {"all": b"123", "went on": b"34", "came": b"2", "sub/down": b"12", "hers": b"23"}
    for path, versions in of_key.items():
        assert b"".join(world.history(key, f"/memory/market/{path}")) == versions, path
    assert world.history(below, "/memory/market/sub/down") == [b"2"]
    written("/memory/else/later", b"1", b"2")
    moved("/memory/else/later", "later")
    assert world.history(key, "/memory/market/later") == [b"2"]
    for name in ("all", "came", "went on", "sub/down", "later"):
        assert world.history(BOB, f"/memory/market/{name}")[0] == b"1", name
    assert versions_counted(world, key) == 3 + 2 + 1 + 2 + 2 + 1
    written("/memory/market/sub/down", b"3")
    world.rename(ALICE, "/memory/market/sub/down", "/memory/market/up")
    assert world.history(key, "/memory/market/up") == [b"1", b"2", b"3"]


def test_a_move_across_the_border_of_a_key_is_a_move_to_all_but_that_key(any_world: World) -> None:
    """Agents read the same as of any other move, one row; a key reads what came or went, file by file, and no more."""
    world = any_world
    for directory in ("/memory/kd", "/memory/nokd"):
        world.mkdir(ALICE, directory)
    for name in ("one", "dir/a", "dir/sub/b"):
        world.write(BOB, f"/memory/{name}", b"quokka")
    at_end, elsewhere = (shown(world, new_key(world, ALICE, path)) for path in ("/memory/kd", "/memory/private/alice"))
    at_both = shown(world, new_key(world, ALICE, "/memory/kd", "/memory/nokd"))

    def told(who: Principal, after: int) -> list[tuple[str, bytes, bytes | None]]:
        with world.reading(who) as reader:
            rows = reader.changes(tables.ROOT, after_seq=after, newest_first=False)
            acts = reader.audit.acts(after_seq=after)[::-1]
        seen = [(change.op, change.path, change.other) for change in rows]
        assert [(act.op, act.path, act.other) for act in acts] == [row for row in seen if row[2]], "not half of it"
        return seen

    inside = [f"/memory/kd/{name}".encode() for name in ("one", "dir", "dir/a", "dir/sub/b")]
    for source, target in (("", "/nokd"), ("/nokd", ""), ("", "/kd"), ("/kd", "/nokd"), ("/nokd", "/kd"), ("/kd", "")):
        before = world.newest_seq()
        whole: list[tuple[str, bytes, bytes | None]] = []
        for name in ("one", "dir"):
            old, new = (f"/memory{top}/{name}" for top in (source, target))
            world.rename(BOB, old, new)
            whole.append(("rename", new.encode(), old.encode()))
        assert told(ALICE, before) == told(BOB, before) == whole
        half = "create" if target == "/kd" else "remove"
        assert told(at_end, before) == [(half, path, None) for path in inside if "/kd" in (source, target)]
        assert told(elsewhere, before) == []
        if source and target:
            assert told(at_both, before) == whole


def test_a_note_of_an_index_moves_into_a_key_s_path_and_out_of_it(any_world: World) -> None:
    world, here, there = any_world, [b"src", b"x.py.md"], [b"lib", b"x.py.md"]
    world.do(ALICE, "write_index", project=b"house", items=[{"path": here, "data": b"# x.py"}])
    new_key(world, ALICE, "/index/house/src/*")
    for old, new in ((here, there), (there, here)):
        moved = {"path": new, "was": old, "data": b"# x.py"}
        assert world.do(ALICE, "write_index", project=b"house", items=[moved]) == {"written": 1}
    assert world.names(ALICE, "/index/house/src") == ["x.py.md"]
    assert world.document(ALICE, "/index/house/src/x.py.md").head == 3


def test_scores_under_a_key_come_from_its_own_paths_alone(any_world: World) -> None:
    world = any_world
    world.write(ALICE, "/memory/a/x.md", b"quokka")
    world.drain()
    who = shown(world, new_key(world, ALICE, "/memory/a"))
    world.drain()

    def figures() -> Any:
        index = world.store.search_index(who)
        with world.reading(who) as reader:
            return index.table().lengths.tolist(), reader.counts(tables.ROOT), reader.newest_seq()

    before = figures()
    for number in range(20):
        world.write(ALICE, f"/memory/b/{number}.md", b"quokka " * number)
    world.drain()
    assert figures() == before


@pytest.mark.parametrize(
    "actions", [("read",), ("search",), ("write",), ("tell",), ("inbox",), ("read", "write"), ("tell", "inbox")]
)
def test_a_key_allows_its_actions_and_no_other(any_world: World, actions: tuple[str, ...]) -> None:
    world = any_world
    node = world.write(ALICE, "/memory/a/x.md", b"x")["node"]
    who = shown(world, new_key(world, ALICE, "/memory/a/*", actions=actions))

    def allowed(do: Callable[[], Any]) -> bool:
        try:
            do()
        except (Denied, NotFound):
            return False
        return True

    def read() -> None:
        with world.reading(who) as reader:
            reader.read(node, 0, 1)

    def inbox() -> None:
        with world.reading(who) as reader:
            reader.mail.messages()

    def tell(re: int | None = None) -> None:
        limits = {"body_limit": 9, "unread_limit": 9}
        world.do(who, "tell", recipient="bob", body="b", priority="low", expires=None, re=re, **limits)

    assert allowed(read) == ("read" in actions)
    assert allowed(lambda: world.store.cached_read(who, node, 0, 1)) == ("read" in actions)
    assert allowed(lambda: world.store.search_index(who).table()) == ("search" in actions)
    if {"read", "write", "search"} & {*actions}:
        with world.reading(who) as reader:
            line = reader.listing(world.node(who, "/memory/a").id, limit=9, offset=0)[0][0][1]
        assert line == ("x" if {"read", "search"} & {*actions} else "")
    assert allowed(lambda: world.do(who, "append", node=node, handle=None, data=b"y")) == ("write" in actions)
    assert allowed(lambda: world.write(who, "/memory/a/new.md", b"y")) == ("write" in actions)
    assert not allowed(lambda: world.write(who, "/memory/b.md", b"y"))

    def answer() -> None:
        with world.reading(who) as reader:
            reader.mail.refusal("bob", 1, asked, body_limit=9, unread_limit=9, rate_limit=9)

    asked = world.do(
        BOB, "tell", recipient="alice", body="?", priority="low", expires=None, body_limit=9, unread_limit=9
    )["id"]
    assert allowed(tell) == ("tell" in actions)
    assert allowed(answer) == allowed(lambda: tell(asked)) == ({"tell", "inbox"} <= {*actions})
    with world.reading(who) as reader:
        for ask in (inbox, reader.mail.counts, reader.mail.any_unread):
            assert allowed(ask) == ("inbox" in actions)
    for command in ("mark_read", "delete_mail"):
        assert allowed(lambda command=command: world.do(who, command)) == ("inbox" in actions)
    assert not allowed(lambda: world.do(who, "act_as_operator"))
    assert not allowed(lambda: new_key(world, who, "/memory/a/*"))


def test_a_memory_that_may_not_be_made_is_refused_by_name(tmp_path: Path) -> None:
    settings = replace(default_settings(), agents={"bob": AgentSettings(capabilities=())})
    with contextlib.closing(LocalDoor(tmp_path / "avm.db", settings, "bob", embeddings=False)) as bob:
        for more, named in (
            ({}, "/memory/private/bob"),
            ({"namespace": "shared"}, "/memory/shared"),
            ({"path": "/shared/x.md"}, "/shared/x.md"),
        ):
            with pytest.raises(Denied) as caught:
                bob.call("remember", content="melons", source="own", **more)
            assert str(caught.value) == f"{named}: read-only for you"
        with pytest.raises(Invalid, match="source '@yesterday'"):
            bob.call("remember", content="melons", source="@yesterday")


def test_what_a_key_has_done_is_done_though_it_may_read_no_mail_any_more(tmp_path: Path) -> None:
    path, settings = tmp_path / "avm.db", default_settings()
    alice = LocalDoor(path, settings, "alice", embeddings=False)
    made = alice.call("create_key", actions=["write", "inbox"])
    alice.call("tell", recipient="alice", body="urgent", priority="urgent")
    key = LocalDoor(path, settings, None, key=made["key"], embeddings=False)
    key.call("make_directory", path="/memory/d")
    assert "=== 1 urgent message" in key.urgent
    key.call("revoke_key", id=made["id"])
    assert key.urgent == "" and [each["state"] for each in alice.call("list_keys")] == ["revoked"]
    with pytest.raises(Denied):
        key.call("make_directory", path="/memory/e")
    alice.close()
    key.close()


def test_a_key_is_not_told_what_is_its_agent_s_as_a_whole(tmp_path: Path) -> None:
    path, settings = tmp_path / "avm.db", default_settings()
    settings = replace(settings, agents={"alice": AgentSettings(quota=QuotaSettings(bytes=10**6))})
    alice = LocalDoor(path, settings, "alice", embeddings=False)
    alice.call("write", path="/memory/market/m.md", data=b"m")
    for name in (1, 2):
        alice.call(
            "write",
            path=f"/private/health/{name}.md",
            data=b"the same words of the doctor on the heart in June and his advice\n",
        )
    alice.call("search", q="heart")  # they are indexed
    plan = alice.call("consolidate", path="/private")
    assert alice.call("consolidate", path="/private", agreed=plan["agreed"])["run"]
    keyed = alice.call("create_key", paths=["/memory/market"], actions=["read", "search", "write"])["key"]
    for name, of in (("health", "/private/health"), ("market", "/memory/market")):
        alice.call("snapshot", name=name, path=of)
    key = LocalDoor(path, settings, None, key=keyed, embeddings=False)
    with pytest.raises(Denied, match="for the agent itself"):
        key.call("unconsolidate", dry=True)
    assert [(each["name"], each["gone"]) for each in key.call("snapshots")["snapshots"]] == [("market", False)]
    told = set()
    for name in ("health", "nothing"):
        asks: list[tuple[str, dict[str, Any]]] = [
            ("entries", {"path": f"/@snap.{name}"}),
            ("recall", {"q": "m", "under": f"/@snap.{name}/memory/market"}),
            ("compare", {"older": f"snap.{name}"}),
        ]
        for method, arguments in asks:
            with pytest.raises(NotFound) as refused:
                key.call(method, **arguments)
            told.add((method, str(refused.value).replace(name, "NAME")))
    assert len(told) == 3
    assert key.call("read", path="/@snap.market/memory/market/m.md")["data"] == b"m"
    assert key.call("user", name="alice")["used"] is None
    assert len(alice.call("unconsolidate", dry=True)["back"]) == 1 and alice.call("user", name="alice")["used"]
    assert {each["name"] for each in alice.call("snapshots")["snapshots"]} == {"health", "market"}
    alice.close()
    key.close()


def test_a_key_that_may_not_read_is_not_told_whether_it_guesses_what_a_file_holds(any_world: World) -> None:
    world = any_world
    world.write(ALICE, "/memory/a/pin", b"4711")
    there = world.at(ALICE, "/memory/a/pin")
    who = shown(world, new_key(world, ALICE, "/memory/a/*", actions=("write",)))
    world.write(who, "/memory/a/mine", b"x")
    world.do(who, "symlink", **world.at(who, "/memory/a/link"), target=b"x")
    world.drain()
    world.clock.advance(aside.YOUNG_NS / 1e9)  # it would go to the trash
    over = {"new_parent": there["parent"], "new_name": there["name"]}
    asks: list[tuple[str, dict[str, Any]]] = [
        ("write_path", {"path": [b"memory", b"a", b"pin"], "data": b"y"}),
        ("put", {"path": [b"memory", b"a", b"pin"], "data": b"y"}),
        ("unlink", there),
        ("rename", {**world.at(who, "/memory/a/mine"), **over}),
        ("rename", {**world.at(who, "/memory/a/link"), **over, "trash": True}),
    ]
    for command, arguments in asks:
        for guess in (b"4711", b"0000"):
            with pytest.raises(Denied, match="'read'"):
                world.do(who, command, **arguments, instead_of=hashlib.sha256(guess).digest())
    assert world.bytes(ALICE, "/memory/a/pin") == b"4711"


@pytest.mark.parametrize("actions", [("write",), ("read", "write")])
def test_what_a_key_writes_is_marked_as_a_copy_of_what_it_may_read_alone(
    any_world: World, actions: tuple[str, ...]
) -> None:
    world, text = any_world, b"the words of a page\n"
    world.write(ALICE, "/memory/a/page", text, sources=["web"])
    who = shown(world, new_key(world, ALICE, "/memory/a/*", actions=actions))
    world.write(who, "/memory/a/guess", text)
    scope = world.node(ALICE, "/memory/a/guess").scope
    with world.reading(ALICE) as reader:
        assert reader.visible.origin(scope).sources == (("web",) if "read" in actions else ())


def test_a_key_never_has_more_than_its_agent(any_world: World) -> None:
    world = any_world
    world.write(BOB, "/memory/private/bob/secret.md", b"x")
    who = shown(world, new_key(world, ALICE, "/", actions=("read", "write", "search", "tell", "inbox")))
    assert not world.exists(who, "/memory/private/bob") and world.exists(who, "/memory/private/alice")
    with pytest.raises(Denied):
        new_key(world, ALICE, "/memory/private/bob/*")
    with pytest.raises(Denied):
        new_key(world, ALICE, "/memory/*", agent="bob")
    assert shown(world, new_key(world, OPERATOR, "/memory/*", agent="bob")).name == "bob"


def test_a_revoked_or_expired_key_opens_nothing_even_to_who_is_in(any_world: World) -> None:
    world = any_world
    node = world.write(ALICE, "/memory/a/x.md", b"x")["node"]
    until = world.clock() + 3600 * 10**9
    for end in ("revoke", "expire"):
        key = new_key(world, ALICE, "/memory/a/*", actions=("read", "write"), expires=until)
        who = shown(world, key)
        world.do(who, "append", node=node, handle=None, data=b"y")
        if end == "revoke":
            with pytest.raises(NotFound):
                world.do(BOB, "revoke_key", id=key.split("_")[1])
            world.do(ALICE, "revoke_key", id=key.split("_")[1])
        else:
            world.clock.advance(3601)
        with pytest.raises(Denied, match=end):
            shown(world, key)
        with pytest.raises(Denied, match=end), world.reading(who):
            pass
        if end == "revoke" or world.mode == "direct":  # the writer process has the real time
            with pytest.raises(Denied, match=end):
                world.do(who, "append", node=node, handle=None, data=b"y")


@pytest.mark.parametrize("key", ["", "avm_", "hello", "avm_aaaaaaaa_" + "A" * 43, "avm_aaaaaaaa_" + "A" * 42])
def test_a_wrong_key_is_a_clear_error_and_never_a_new_agent(any_world: World, key: str) -> None:
    before = any_world.rows("select name from agent")
    with pytest.raises(Denied, match="API key"):
        shown(any_world, key)
    made = new_key(any_world, ALICE, "/")
    with pytest.raises(Denied, match="no such"):
        shown(any_world, made[:-1] + ("A" if made[-1] != "A" else "B"))
    assert any_world.rows("select name from agent") == before


def test_the_store_has_the_hash_of_a_key_and_nothing_else_of_it(any_world: World) -> None:
    key = new_key(any_world, ALICE, "/memory/*")
    any_world.store.close()
    for file in any_world.path.parent.iterdir():
        if file.is_file() and not file.is_socket():
            assert key.split("_", 2)[2].encode() not in file.read_bytes()
    any_world.store = any_world._open()
    assert shown(any_world, key).name == "alice"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"within": ["memory/a"]}, "begins with /"),
        ({"within": ["/memory/*/b"]}, "at its end"),
        ({"within": []}, "paths"),
        ({"actions": ()}, "actions"),
        ({"actions": ("fly",)}, "fly"),
        ({"actions": ("sudo",)}, "sudo"),
        ({"expires": 5}, "expired"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(any_world: World, more: dict[str, Any], error: str) -> None:
    rest = {name: value for name, value in more.items() if name != "within"}
    with pytest.raises(Invalid, match=error):
        new_key(any_world, ALICE, *more.get("within", ["/memory/*"]), **rest)


def test_areas_that_no_key_names_any_more_come_apart_with_the_next_rules(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/a/x.md", b"x")
    key = new_key(world, ALICE, "/memory/a/*")
    kept = new_key(world, ALICE, "/memory/b/*")
    world.do(ALICE, "revoke_key", id=key.split("_")[1])
    world.reopen(Policy([Rule("/memory/zzz/*", Access.READ)]))
    assert world.rows("select path from area") == [(b"/memory/b",)] and shown(world, kept).name == "alice"


def test_a_key_that_seemed_to_have_expired_while_the_clock_was_ahead_opens_what_it_did(
    ruled: Callable[..., PolicyWorld],
) -> None:
    world = ruled()
    world.write(ALICE, "/memory/a/x.md", b"x")
    key = new_key(world, ALICE, "/memory/a/*", expires=world.clock() + 30 * 86_400 * 10**9)
    world.clock.advance(31 * 86_400)
    world.reopen(Policy([Rule("/memory/zzz/*", Access.READ)]))
    world.clock.advance(-31 * 86_400)
    assert world.bytes(shown(world, key), "/memory/a/x.md") == b"x"


def test_a_key_whose_paths_were_given_up_while_the_clock_was_ahead_says_so(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    key = new_key(world, ALICE, "/memory/a/*", expires=world.clock() + 30 * 86_400 * 10**9)
    world.clock.advance(31 * 86_400)
    for number in range(3):
        more = new_key(world, ALICE, *(f"/memory/p{number}-{each}/*" for each in range(16)))
        world.do(ALICE, "revoke_key", id=more.split("_")[1])
    new_key(world, ALICE, "/memory/b/*")
    world.clock.advance(-31 * 86_400)
    with pytest.raises(Denied, match="the clock was ahead"):
        shown(world, key)


@pytest.mark.parametrize("path", ["/memory/private/alice/x", "/memory/f/x"])
def test_a_mirror_and_a_file_on_the_way_to_a_key_s_path_are_folded_with_it(
    ruled: Callable[..., PolicyWorld], path: str
) -> None:
    """What is wrong the audit of every world says."""
    world = ruled()
    for _ in range(2):
        world.write(ALICE, "/memory/a", b"x")
        world.do(ALICE, "archive", **world.at(ALICE, "/memory/a"))
    assert world.exists(ALICE, "/archive/(2)/a")
    world.write(ALICE, "/memory/f", b"x", shared=["alice"])
    new_key(world, ALICE, path)


def test_an_area_s_number_is_never_another_s(ruled: Callable[..., PolicyWorld]) -> None:
    """The log keeps the scopes that its rows were written with."""
    world = ruled()
    old = new_key(world, ALICE, "/memory/a/*")
    world.write(ALICE, "/memory/a/secret-name.md", b"x")
    world.do(ALICE, "revoke_key", id=old.split("_")[1])
    world.reopen(Policy([Rule("/memory/zzz/*", Access.READ)]))
    assert world.rows("select path from area") == []
    key = shown(world, new_key(world, ALICE, "/memory/b/*"))
    world.write(ALICE, "/memory/b/x.md", b"x")
    with world.reading(key) as reader:
        assert {act.path for act in reader.audit.acts()} == {b"/memory/b", b"/memory/b/x.md"}


def test_one_agent_s_keys_do_not_take_the_paths_of_all(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/p0/x.md", b"x")
    scopes = world.rows("select count(*) from scope")[0][0]
    for number in range(40):  # made and revoked: each leaves nothing that grows
        key = new_key(world, ALICE, *(f"/memory/p{number}-{each}/*" for each in range(16)))
        assert shown(world, key).name == "alice"
        world.do(ALICE, "revoke_key", id=key.split("_")[1])
        assert world.rows("select count(*) from area")[0][0] <= people.AREAS_IDLE + 32
    assert world.rows("select count(*) from scope")[0][0] - scopes <= 4 * 40 + 4  # of /, /memory and its mirrors
    kept = [
        new_key(world, ALICE, *(f"/memory/p{number}-{each}/*" for each in range(16)))
        for number in range(people.AREAS_OF_ONE // 16)
    ]
    with pytest.raises(OverQuota, match="alice would name more than"):
        new_key(world, ALICE, "/memory/one-more/*")
    new_key(world, ALICE, "/memory/p0-3/*")  # one that is there is no more
    who = shown(world, new_key(world, BOB, "/memory/p0/*"))
    assert world.exists(who, "/memory/p0/x.md") and not world.exists(who, "/memory/p0-1")
    world.do(ALICE, "revoke_key", id=kept[0].split("_")[1])
    new_key(world, ALICE, "/memory/one-more/*")


# --- quotas


def refused(do: Callable[[], Any]) -> bool:
    try:
        do()
    except OverQuota:
        return True
    return False


def used(world: World, agent: str) -> Any:
    with world.reading(OPERATOR) as reader:
        return reader.people.used(agent)


def test_nothing_is_counted_without_a_quota(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/a.md", b"x")
    assert used(world, "alice") is None and world.rows("select count(*) from usage") == [(0,)]


def test_bytes_are_bounded_on_every_route(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=1000)})
    node = world.write(ALICE, "/memory/a.md", b"x" * 900)["node"]
    big = b"y" * 200
    assert refused(lambda: world.write(ALICE, "/memory/b.md", big))
    assert not world.exists(ALICE, "/memory/b.md"), "none of it happened"
    assert refused(lambda: world.write(ALICE, "/memory/a.md", big, mode="append"))
    assert refused(lambda: world.do(ALICE, "append", node=node, handle=None, data=big))
    assert refused(lambda: world.edit(ALICE, "/memory/a.md", ["w", 900, big]))
    assert refused(lambda: world.edit(ALICE, "/memory/a.md", ["w", 10**6, b"after a gap"]))
    assert refused(lambda: world.edit(ALICE, "/memory/a.md", ["t", 1 << 40]))
    assert refused(lambda: world.do(ALICE, "remember", path=[b"memory", b"m.md"], data=big))
    assert refused(lambda: world.do(ALICE, "write_many", items=[[[b"memory", b"m.md"], big]]))
    assert refused(lambda: world.do(ALICE, "symlink", **world.at(ALICE, "/memory/s"), target=big))
    assert refused(lambda: world.edit(BOB, "/memory/a.md", ["w", 900, big])), "another's writing in her file too"
    world.edit(ALICE, "/memory/a.md", ["t", 100])
    world.write(ALICE, "/memory/b.md", big)
    assert used(world, "alice") == (2, 300, used(world, "alice")[2])
    world.write(BOB, "/memory/bobs.md", b"z" * 5000)


def test_a_refusal_tells_no_other_and_no_key_what_an_agent_takes_up(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=1000)})
    world.write(ALICE, "/memory/d/a.md", b"x" * 100)
    world.write(ALICE, "/memory/private/alice/p.md", b"x" * 777)
    key = shown(world, new_key(world, ALICE, "/memory/d", actions=("read", "write")))
    for who, total in ((ALICE, "1027"), (BOB, "more"), (key, "more")):
        with pytest.raises(OverQuota, match=f"alice may have 1000 bytes, this would be {total}$"):
            world.write(who, "/memory/d/a.md", b"y" * 250)


def test_what_is_moved_into_a_private_space_is_charged_to_its_agent(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", nodes=4), "bob": person("write", nodes=100)})
    for number in range(5):
        world.write(BOB, f"/memory/d/{number}.md", b"x")
    before = used(world, "bob")
    assert refused(lambda: world.rename(ALICE, "/memory/d", "/memory/private/alice/d"))
    assert used(world, "bob") == before and world.exists(BOB, "/memory/d/0.md")
    for number in (3, 4):
        world.unlink(BOB, f"/memory/d/{number}.md")
    world.rename(ALICE, "/memory/d", "/memory/private/alice/d")
    assert used(world, "alice")[0] == 4 and used(world, "bob")[0] == 0
    assert refused(lambda: world.mkdir(ALICE, "/memory/private/alice/e"))
    assert refused(lambda: world.create(ALICE, "/memory/e"))
    world.rename(ALICE, "/memory/private/alice/d", "/memory/d")
    assert used(world, "alice")[0] == 4, "and it stays so when it leaves"
    world.write(BOB, "/memory/swap.md", b"x")
    world.rename(ALICE, "/memory/d/0.md", "/memory/swap.md", 2)


def test_what_is_said_about_a_file_takes_up_bytes_of_its_maker(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=100_000)})
    node = world.write(ALICE, "/memory/a.md", b"x" * 100)["node"]
    other = world.write(ALICE, "/memory/b.md", b"x" * 100)["node"]
    world.tag(BOB, "/memory/a.md", "four", "three")
    assert used(world, "alice")[:2] == (2, 200 + 2 * 128 + 8 * len("fourthree"))
    world.do(ALICE, "add_link", node=node, target=other, type="about")
    world.do(ALICE, "merge_meta", node=node, importance=None, user={"key": "v" * 1000})
    said = used(world, "alice")[1]
    assert said == 200 + 2 * 128 + 8 * len("fourthree") + 256 + len('{"key": ""}') + 1000
    world.write(ALICE, "/memory/c.md", b"x" * 100)
    world.tag(ALICE, "/memory/c.md", "four", "new")
    world.rename(ALICE, "/memory/c.md", "/memory/a.md")  # its tags join
    assert used(world, "alice")[1] == said + 128 + 8 * len("new")
    world.unlink(ALICE, "/memory/b.md")  # and the link with it
    world.do(ALICE, "merge_meta", node=world.node(ALICE, "/memory/a.md").id, importance=None, user={"key": None})
    world.do(ALICE, "set_tags", node=world.node(ALICE, "/memory/a.md").id, add=[], remove=[], replace=True)
    assert used(world, "alice")[:2] == (1, 100 + len("{}"))
    world.unlink(ALICE, "/memory/a.md")
    assert used(world, "alice") == (0, 0, 0)


def test_a_link_is_charged_to_who_makes_it_whosever_file_it_leads_from(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"bob": person("write", bytes=1_000)})
    node = world.write(BOB, "/memory/plan.md", b"x")["node"]
    hers = world.write(ALICE, "/memory/private/alice/n.md", b"x")["node"]
    for number in range(10):
        world.do(ALICE, "add_link", node=node, target=hers, type=f"t{number}")
    world.write(BOB, "/memory/draft.md", b"y")
    world.rename(BOB, "/memory/draft.md", "/memory/plan.md")
    assert (used(world, "bob")[1], used(world, "alice")[1]) == (1, 1 + 10 * 256)
    world.unlink(BOB, "/memory/plan.md")
    assert (used(world, "bob")[1], used(world, "alice")[1]) == (0, 1)


def test_what_is_kept_and_said_of_a_file_in_a_private_space_is_charged_to_its_agent(
    ruled: Callable[..., PolicyWorld],
) -> None:
    world = ruled({"alice": person("write", history_bytes=30_000), "bob": person("write", history_bytes=9_000)})
    other = world.write(BOB, "/memory/o.md", b"x")["node"]
    for path in ("/memory/d/n.md", "/memory/e.md"):
        world.write(BOB, path, secrets.token_bytes(3000))
        world.write(BOB, path, secrets.token_bytes(3000))
        world.tag(BOB, path, "four")
        node = world.node(BOB, path).id
        world.do(BOB, "add_link", node=node, target=other, type="about")
        world.do(BOB, "merge_meta", node=node, importance=None, user={"key": "v"})
    both = used(world, "bob")
    said = 128 + 8 * len("four") + len('{"key": "v"}')
    assert both[:2] == (4, 1 + 2 * (3000 + said + 256)) and both[2] > 6000, "four with the directory"
    world.rename(ALICE, "/memory/d", "/memory/private/alice/d")
    mine, his = used(world, "alice"), used(world, "bob")
    assert mine[:2] == (2, 3000 + said) and his[:2] == (2, 1 + 3000 + said + 512) and mine[2] + his[2] == both[2]
    for number in range(4):
        world.write(ALICE, "/memory/private/alice/d/n.md", secrets.token_bytes(3000))
        world.tag(ALICE, "/memory/private/alice/d/n.md", str(number))
    assert used(world, "bob") == his, "it tells bob nothing, and bob's quota holds up nobody there"
    mine = used(world, "alice")
    assert mine[2] > 15_000
    world.rename(ALICE, "/memory/private/alice/d/n.md", "/memory/n.md")
    assert (used(world, "alice"), used(world, "bob")) == (mine, his), "and it stays so when it leaves"
    world.write(ALICE, "/memory/private/alice/e.md", b"")
    world.rename(ALICE, "/memory/private/alice/e.md", "/memory/e.md", 2)  # an exchange
    assert (used(world, "alice")[2], used(world, "bob")[2]) == (mine[2] + his[2], 0)
    world.unlink(ALICE, "/memory/n.md")
    world.unlink(ALICE, "/memory/private/alice/e.md")
    assert used(world, "alice") == (2, 0, 0) and used(world, "bob") == (1, 1, 0)
    world.rename(BOB, "/memory/o.md", "/memory/private/bob/o.md")
    world.write(BOB, "/memory/private/bob/o.md", b"xy")


def test_history_that_is_too_much_for_a_private_space_does_not_enter_it(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", history_bytes=5_000)})
    for _ in range(3):
        world.write(BOB, "/memory/n.md", secrets.token_bytes(3000))
    before = used(world, "bob")
    assert refused(lambda: world.rename(ALICE, "/memory/n.md", "/memory/private/alice/n.md"))
    assert used(world, "bob") == before and used(world, "alice") == (0, 0, 0) and world.exists(BOB, "/memory/n.md")


def test_what_an_operator_makes_in_a_private_space_is_charged_to_its_agent(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"bob": person("write", history_bytes=1_000)})
    for _ in range(2):
        world.write(OPERATOR_ALICE, "/memory/private/bob/n.md", secrets.token_bytes(3000))
    assert used(world, "bob")[2] > 2_000 and used(world, "alice") == (0, 0, 0)
    assert refused(lambda: world.write(BOB, "/memory/private/bob/n.md", b""))


def test_a_quota_of_bytes_bounds_tags_links_keys_and_empty_files(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=10_000)})
    nodes = [world.create(ALICE, f"/memory/{n}")["node"] for n in range(2)]
    routes: dict[str, Callable[[int], Any]] = {
        "tags": lambda n: world.tag(ALICE, "/memory/0", f"tag {n}"),
        "links": lambda n: world.do(ALICE, "add_link", node=nodes[0], target=nodes[1], type=f"t{n}"),
        "keys": lambda n: world.do(ALICE, "merge_meta", node=nodes[0], importance=None, user={f"k{n}": "v" * 100}),
        "empty files": lambda n: world.create(ALICE, f"/memory/e{n}"),
    }
    for name, route in routes.items():
        done = 0
        while done < 200 and not refused(lambda: route(done)):  # noqa: B023
            done += 1
        assert 5 < done < 100, name
        world.do(ALICE, "set_tags", node=nodes[0], add=[], remove=[], replace=True)
        world.do(ALICE, "remove_link", node=nodes[0], target=nodes[1])
        world.do(ALICE, "merge_meta", node=nodes[0], importance=None, user={f"k{n}": None for n in range(done)})
    with pytest.raises(OverQuota, match=r"alice may have 73 files and directories \(as its bytes allow"):
        world.create(ALICE, "/memory/more")


def test_counters_of_a_store_that_counted_less_are_made_anew(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=100_000)})
    world.write(ALICE, "/memory/a.md", b"x")
    world.tag(ALICE, "/memory/a.md", "t")
    policy = Policy(people={"alice": person("write", bytes=100_000)})
    world.store.close()
    db = connect(world.path)
    db.execute("update setting set value = 'yes' where key = 'charged'")
    db.execute("update usage set bytes = 1")
    db.close()
    world.reopen(policy)
    assert used(world, "alice")[1] == 1 + 128 + 8


def test_history_is_bounded_and_freed_with_the_file(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", history_bytes=20_000)})

    def fill() -> int:
        for number in range(50):
            if refused(lambda: world.write(ALICE, "/memory/a.md", secrets.token_bytes(3000))):
                return number
        return 50

    assert 5 <= fill() < 12
    assert 0 < used(world, "alice")[2] <= 20_000
    world.unlink(ALICE, "/memory/a.md")
    assert used(world, "alice") == (0, 0, 0)
    assert fill() >= 5
    large = secrets.token_bytes(100_000)  # in blocks: its old version counts whole
    world.write(BOB, "/memory/big.md", large)
    world.edit(BOB, "/memory/big.md", ["w", 0, b"z"])
    assert used(world, "bob")[2] == 100_000


def test_a_version_that_is_amended_is_counted_once(ruled: Callable[..., PolicyWorld]) -> None:
    """What one handle writes within a second is one version; the one before it is stated anew each time."""
    world = ruled({"alice": person("write", history_bytes=6_000)})
    node = world.write(ALICE, "/memory/a.md", secrets.token_bytes(8_000))["node"]
    for _ in range(20):
        edits = [["w", 0, secrets.token_bytes(4_000)]]
        assert world.do(ALICE, "commit", node=node, handle=7, edits=edits)["version"] == 2
        assert 4_000 <= used(world, "alice")[2] <= 5_000
    large = secrets.token_bytes(100_000)
    node = world.write(BOB, "/memory/big.md", large)["node"]
    for place in range(5):
        world.do(BOB, "commit", node=node, handle=8, edits=[["w", place, b"z"]])
        assert used(world, "bob")[2] == 100_000


def test_history_is_bounded_on_every_route_and_the_refusal_changes_nothing(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", history_bytes=5_000)})
    first, big = secrets.token_bytes(4_000), secrets.token_bytes(4_000)
    world.write(ALICE, "/memory/a.md", first)
    world.write(ALICE, "/memory/a.md", big)
    world.clock.advance(5)
    routes: dict[str, Callable[[], Any]] = {
        "replace": lambda: world.write(ALICE, "/memory/a.md", first),
        "another's": lambda: world.write(BOB, "/memory/a.md", first),
        "a handle": lambda: world.edit(ALICE, "/memory/a.md", ["t", 0], ["w", 0, first]),
        "truncate": lambda: world.edit(ALICE, "/memory/a.md", ["t", 0]),
        "rename": lambda: world.rename(ALICE, "/memory/b.md", "/memory/a.md"),
        "editor": lambda: (
            world.rename(ALICE, "/memory/a.md", "/memory/a.md~"),
            world.write(ALICE, "/memory/a.md", first),
        ),
    }
    world.write(BOB, "/memory/b.md", first)
    for name, change in routes.items():
        with pytest.raises(OverQuota, match="alice may have 5000 bytes of history, this would be"):
            change()
        there = "/memory/a.md~" if name == "editor" else "/memory/a.md"
        assert world.bytes(ALICE, there) == big and len(world.history(ALICE, there)) == 2, name
    world.write(ALICE, "/memory/new.md", first)  # what keeps nothing is as before


def test_a_removed_file_is_free_at_once_and_one_written_on_is_not(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=1000)})
    node = world.write(ALICE, "/memory/a.md", b"x" * 900)["node"]
    world.unlink(ALICE, "/memory/a.md")
    world.write(ALICE, "/memory/b.md", b"x" * 900)
    assert not rows(world.path, "select 1 from node where id = ?", node), "no mount holds it without a daemon"


def test_an_unlinked_file_that_is_written_on_is_charged_again(tmp_path: Path) -> None:
    from avmfs.store.writer.applier import Applier

    database.prepare(tmp_path / "avm.db")
    policy = Policy(people={"alice": person("write", bytes=1000)})
    applier = Applier(tmp_path / "avm.db", policy, RULES, orphans=True, clock=lambda: 10**18)
    try:
        applier.alone(OPERATOR, "settle", {})
        node = applier.alone(ALICE, "write_path", {"path": [b"memory", b"a"], "data": b"x" * 900})["node"]
        applier.alone(ALICE, "unlink", {"parent": tables.MEMORY, "name": b"a"})
        applier.alone(ALICE, "write_path", {"path": [b"memory", b"b"], "data": b"x" * 900})
        with pytest.raises(OverQuota):
            applier.alone(ALICE, "append", {"node": node, "handle": None, "data": b"y"})
        applier.alone(ALICE, "unlink", {"parent": tables.MEMORY, "name": b"b"})
        applier.alone(ALICE, "append", {"node": node, "handle": None, "data": b"y"})
        assert faults(tmp_path / "avm.db", policy) == []
        applier.alone(OPERATOR, "reap_orphans", {"nodes": [node]})
        assert faults(tmp_path / "avm.db", policy) == []
    finally:
        applier.close()


def test_a_mailbox_of_an_agent_may_be_smaller_than_those_of_others(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"bob": person("write", unread=2)})

    def tell(recipient: str = "bob", who: Principal = ALICE, expires: int | None = None) -> None:
        limits = {"body_limit": 9, "unread_limit": 9}
        world.do(who, "tell", recipient=recipient, body="b", priority="low", expires=expires, **limits)

    world.do(CAROL, "enroll")
    world.clock.stand_still()
    tell(expires=world.clock() + 2 * 10**9)
    tell(who=CAROL)
    world.clock.advance(1)
    with pytest.raises(OverQuota, match="the mailbox of bob is full"):
        tell()
    assert refused(lambda: tell(who=CAROL))
    tell("carol")
    world.clock.advance(1)
    tell()
    assert refused(tell), "what has expired has made room for one"
    tell("@all")
    assert refused(tell)
    assert refused(lambda: beforehand(world, CAROL, "bob"))
    beforehand(world, CAROL, "@all")
    world.do(BOB, "mark_read")
    beforehand(world, CAROL, "bob")
    tell()


def beforehand(world: World, who: Principal, recipient: str) -> None:
    """What a mailbox asks when a message begins."""
    with world.reading(who) as reader:
        reader.mail.refusal(recipient, 1, None, body_limit=9, unread_limit=9, rate_limit=9)


def test_the_operator_is_counted_and_not_bounded(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", bytes=10)})
    world.write(OPERATOR_ALICE, "/memory/a.md", b"x" * 100)
    assert used(world, "alice")[1] == 100
    assert refused(lambda: world.write(ALICE, "/memory/b.md", b"x"))
    world.edit(ALICE, "/memory/a.md", ["t", 50])  # less is always possible


def test_a_quota_that_comes_later_counts_what_is_there(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled()
    world.write(ALICE, "/memory/a.md", b"x" * 100)
    world.write(ALICE, "/memory/a.md", b"y" * 100)
    world.mkdir(BOB, "/memory/private/bob/d")
    world.reopen(Policy(people={ANYBODY: person("write", nodes=1)}))
    assert used(world, "alice")[:2] == (1, 100) and used(world, "bob") == (1, 0, 0)
    assert refused(lambda: world.create(ALICE, "/memory/b"))
    world.reopen(Policy())
    world.create(ALICE, "/memory/b")
    assert used(world, "alice") is None


def test_an_agent_is_told_what_it_takes_up_and_not_what_others_do(ruled: Callable[..., PolicyWorld]) -> None:
    world = ruled({"alice": person("write", nodes=9)})
    with world.reading(ALICE) as reader:
        assert reader.people.used("alice") == (0, 0, 0) and reader.people.used("bob") is None

    def lines(who: Principal) -> list[str]:
        with world.reading(who) as reader:
            return reader.people.miscounted()

    assert lines(OPERATOR) == []
    db = connect(world.path)
    db.execute("insert into usage values('carol', 7, 0, 0)")
    assert len(lines(OPERATOR)) == 1 and "carol" in lines(OPERATOR)[0]
    assert len(lines(ALICE)) == 1 and "carol" not in lines(ALICE)[0]
    db.execute("delete from usage where agent = 'carol'")
    db.close()


_BUSY = """
import sys, time
from pathlib import Path
from avmfs.access import Person, Policy, Principal, Quota
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
store = open_direct(Path(sys.argv[1]), Policy(people={"*": Person(quota=Quota(nodes=10**6))}), IndexRules())
who = Principal("alice")
for number in range(10**6):
    path = [b"memory", b"%d" % (number % 7)]
    store.submit(who, "write_path", path=path, data=b"x" * (number * 7919 % 90_000))
    if number % 5 == 4:
        store.submit(who, "rename", parent=2, name=path[1], new_parent=2, new_name=b"moved")
        store.submit(who, "unlink", parent=2, name=b"moved")
    print(number, flush=True)
"""


def test_the_counters_are_right_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    path, policy = tmp_path / "avm.db", Policy(people={ANYBODY: Person(quota=Quota(nodes=10**6))})
    for after in (3, 17, 40):
        process = subprocess.Popen([sys.executable, "-c", _BUSY, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while int(process.stdout.readline() or -1) < after:
            assert process.poll() is None
        process.kill()
        process.wait(300)
        process.stdout.close()
        assert rows(path, "select nodes > 0 from usage where agent = 'alice'") == [(1,)]
        assert faults(path, policy) == []
