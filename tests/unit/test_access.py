"""The policy: a scope folds the place, the :shared set and the rules; it never widens either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from avmfs_config.loader import load_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs import paths
from avmfs.access import Access, Key, Person, Policy, Principal, Quota, Rule, Scope
from avmfs.errors import Denied, NotFound
from avmfs.store.rows.scopes import Scopes, Visible
from avmfs.store.tx.memo import WriterMemo
from avmfs.trust import QUARANTINED, Origin, Trusted

CONFIGURED = """
permissions: [{pattern: "/memory/x/*", access: ro, agents: [bob], groups: [desk]}, {pattern: "/*", access: none}]
default_access: ro
providers:
- {pattern: /live/a, handler: http, config: {url: "https://example.com"}}
- {pattern: /live/b, handler: script, config: {command: uptime}, writable: true}
trust: [{source: tool, pattern: "/memory/x/*", action: quarantine}]
agents: {alice: {groups: [desk], capabilities: [write], quota: {nodes: 1, bytes: 2, history_bytes: 3, unread: 4}}}
"""
NAMES = ["alice", "bob", "carol", "a.b_c-d"]
ACCESS = st.sampled_from(list(Access))
PATTERNS = st.sampled_from(
    ["/memory/*", "/memory/x/*", "/memory/x", "*.md", "/memory/private/*", "*", "/memory/[xy]/*", "/none/*", "/"]
)
AGENTS = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(tuple)
RULES = st.lists(st.builds(Rule, PATTERNS, ACCESS, st.one_of(st.none(), AGENTS)), max_size=5)
PLACES = st.sampled_from(
    [
        (),
        (b"memory",),
        (b"memory", b"x"),
        (b"memory", b"x", b"f.md"),
        (b"memory", b"private"),
        (b"memory", b"private", b"bob"),
        (b"memory", b"private", b"bob", b"x.md"),
        (b"memory", b"shared", b"f"),
        (b"memory", b"caf\xe9\n.md"),
    ]
)
SHARED = st.one_of(st.none(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple))


def matches(pattern: str, parts: tuple[bytes, ...]) -> bool:
    import fnmatch

    where = paths.text(paths.join(parts))
    return fnmatch.fnmatchcase(where, pattern) or (pattern.endswith("/*") and fnmatch.fnmatchcase(where, pattern[:-2]))


@given(RULES, ACCESS, PLACES, SHARED, st.sampled_from([*NAMES, "stranger"]))
@settings(max_examples=600)
def test_a_scope_is_the_lesser_of_place_and_first_matching_rule(
    rules: list[Rule], default: Access, parts: tuple[bytes, ...], shared: tuple[str, ...] | None, name: str
) -> None:
    owner = paths.agent_space(parts)
    if owner is not None:
        base = Access.WRITE if name == owner else Access.NONE
    else:
        base = Access.WRITE if shared is None or name in shared else Access.NONE
    ruled = next(
        (
            rule.access
            for rule in rules
            if (rule.agents is None or name in rule.agents)
            and any(
                matches(rule.pattern, parts[:length])
                for length in range(len(parts), -1 if rule.access is Access.NONE else len(parts) - 1, -1)
            )
        ),
        default,
    )
    scope = Policy(rules, default).scope(parts, shared)
    assert scope.access(Principal(name)) == min(base, ruled)
    assert scope.access(Principal(name, operator=True)) == Access.WRITE
    assert Scope.parse(scope.spec) == scope


@given(RULES, ACCESS, PLACES, SHARED)
@settings(max_examples=300)
def test_equal_visibility_has_one_spec(
    rules: list[Rule], default: Access, parts: tuple[bytes, ...], shared: tuple[str, ...] | None
) -> None:
    scope = Policy(rules, default).scope(parts, shared)
    assert scope.agents == tuple(sorted(scope.agents)) and all(may != scope.everyone for _, may in scope.agents)
    again = Policy(list(rules), default).scope(parts, tuple(reversed(shared)) if shared else shared)
    assert again.spec == scope.spec


@given(RULES, PLACES, SHARED, st.sets(st.sampled_from(NAMES)), st.booleans())
@settings(max_examples=300)
def test_a_scope_knows_whose_it_is_whoever_else_may_read_it(
    rules: list[Rule], parts: tuple[bytes, ...], shared: tuple[str, ...] | None, able: set[str], area: bool
) -> None:
    policy = Policy(rules, people={name: Person((), ("write", "search_all")) for name in able})
    scope = policy.scope(parts, shared, [(1, (b"memory",))] if area else [])
    place = paths.agent_space(parts)
    meant = place if place is not None else shared[0] if shared is not None and len(shared) == 1 else None
    if scope.everyone is not Access.NONE or meant is None or scope.of(meant) is Access.NONE:
        meant = None
    assert scope.owner == meant
    assert Scope.parse(scope.spec) == scope


def test_a_pattern_with_a_star_at_the_end_covers_the_directory_and_all_below() -> None:
    policy = Policy.from_words([("/memory/plans/*", "ro", None)], "rw")
    for path, may in (
        ("/memory/plans", Access.READ),
        ("/memory/plans/a/b/c", Access.READ),
        ("/memory/plansX", Access.WRITE),
        ("/memory", Access.WRITE),
    ):
        assert policy.scope(paths.split(path.encode())).everyone == may, path


def test_the_digest_changes_with_what_a_scope_could() -> None:
    rules = [("/memory/a/*", "ro", None), ("/memory/*", "rw", ("bob",))]
    digests = {
        Policy.from_words(one, default).digest
        for one, default in ((rules, "rw"), (rules, "ro"), (rules[::-1], "rw"), (rules[:1], "rw"), ([], "rw"))
    }
    assert len(digests) == 5 and Policy.from_words(rules, "rw").digest in digests


@pytest.mark.parametrize(
    ("scope", "spec"),
    [
        (Scope(Access.READ), "*=ro"),
        (Scope(Access.NONE, (("bob", Access.WRITE),), owner="bob"), "*=none;bob=rw"),
        (Scope(Access.NONE, (("bob", Access.READ),)), "*=none;bob=ro;!"),
        (Scope(Access.NONE, (("al", Access.READ), ("bob", Access.READ)), owner="bob"), "*=none;al=ro;bob=ro;!bob"),
        (Scope(Access.WRITE, inside=frozenset({12, 3}), leads=frozenset({20, 4})), "*=rw;@3;@12;^4;^20"),
        (Scope(Access.READ, aside="trash", live=True), "*=ro;~trash;+"),
        (Scope(Access.WRITE, origin=Origin(("tool", "web")), trust="mark"), "*=rw;#tool,web:mark"),
        (Scope(Access.WRITE, origin=Origin(("web",), True), trust="quarantine"), "*=rw;#web!:quarantine"),
    ],
)
def test_a_scope_is_written_as_a_text_and_read_again(scope: Scope, spec: str) -> None:
    assert scope.spec == spec and Scope.parse(spec) == scope
    assert scope.taken is ("rw" in spec)
    assert scope.of("") == min(scope.everyone, *(may for _, may in scope.agents), Access.WRITE)


def test_a_key_allows_its_actions_in_its_areas_and_the_way_there() -> None:
    inside, way, beside = (
        Scope(Access.WRITE, inside=frozenset(one), leads=frozenset(other))
        for one, other in (({1}, ()), ((), {1}), ((), ()))
    )
    for areas, actions, allowed in (
        ((1,), ("write",), (2, 1, 0)),
        ((1,), ("read",), (1, 1, 0)),
        ((1,), ("search", "tell"), (1, 1, 0)),
        ((1,), ("tell", "inbox"), (0, 0, 0)),
        ((2,), ("write",), (0, 0, 0)),
        (None, ("write", "read"), (2, 2, 2)),
        (None, ("read",), (1, 1, 1)),
        (None, ("tell",), (0, 0, 0)),
    ):
        key = Key("k", areas, actions)
        assert tuple(key.access(scope) for scope in (inside, way, beside)) == allowed
        assert tuple(scope.access(Principal("x", key=key)) for scope in (inside, way, beside)) == allowed
    memory, live = Key("k", (), ("write",), memory=True), Scope(Access.WRITE, live=True)
    aside = [Scope(Access.WRITE, aside=top) for top in ("trash", "archive", "index")]
    assert [memory.access(scope) for scope in (beside, *aside, live)] == [2, 2, 2, 0, 0]


def test_who_shows_a_key_is_that_key_and_no_operator() -> None:
    alice, key, operator = Principal("alice"), Principal("alice", key=Key("k", None, ("read",))), Principal("x", True)
    assert (alice.rights, key.rights, operator.rights) == (False, "k", True)
    assert [who.nameless for who in (alice, key, operator, Principal(""), Principal("", True))] == [
        *(False, False, False, True, False)
    ]
    assert key.may("read") and not key.may("tell") and alice.may("tell")
    alice.require_itself()
    operator.require_operator()
    for refused in (lambda: key.require("tell"), key.require_itself, alice.require_operator):
        with pytest.raises(Denied):
            refused()


def test_an_empty_file_counts_where_only_bytes_are_limited() -> None:
    quotas = (Quota(), Quota(nodes=5), Quota(bytes=10_239), Quota(bytes=1_048_576), Quota(nodes=5, bytes=99_999))
    assert [quota.most_nodes for quota in quotas] == [None, 5, 64 + 9, 64 + 1024, 5]


def test_visible_tells_invisible_from_read_only() -> None:
    scopes = {
        1: Scope(Access.WRITE),
        2: Scope(Access.READ),
        3: Scope(Access.NONE, (("bob", Access.WRITE),)),
        4: Scope(Access.READ, (("alice", Access.NONE),)),
    }
    alice, bob, operator = (
        Visible(who, scopes) for who in (Principal("alice"), Principal("bob"), Principal("x", operator=True))
    )
    assert (alice.ids, bob.ids, operator.ids) == ({1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4})
    assert alice.json == "[1,2]" and alice.highest == 4 and 1 in alice and 3 not in alice and 99 not in alice
    alice.require(1)
    with pytest.raises(Denied):
        alice.require(2)
    for number in (3, 4, 99):
        with pytest.raises(NotFound):
            alice.require(number)
    assert bob.writable(3) and not bob.writable(4) and operator.writable(4) and not alice.writable(99)
    nothing = Visible(Principal("alice"), {})
    assert (nothing.json, nothing.highest) == ("[]", 0)


def test_what_stands_aside_is_searched_where_that_is_asked_for() -> None:
    aside = ["", "archive", "trash", "index"]
    scopes = {number: Scope(Access.READ, aside=place) for number, place in enumerate(aside, 1)}
    scopes[5] = Scope(Access.NONE, aside="trash")
    alice = Visible(Principal("alice"), scopes)
    assert [alice.searched(place) for place in ("", "archive", "past", "index")] == [
        ({1}, "[1]"),
        ({1, 2}, "[1,2]"),
        ({1, 2, 3}, "[1,2,3]"),
        ({4}, "[4]"),
    ]
    assert alice.trash_json == "[3]" and alice.told_json == alice.json == "[1,2,3,4]"


def test_what_is_live_is_written_by_its_source_alone_and_has_no_past() -> None:
    scopes = {1: Scope(Access.WRITE), 2: Scope(Access.READ, live=True), 3: Scope(Access.WRITE, live=True)}
    scopes[4] = Scope(Access.READ)
    alice, operator = (Visible(who, scopes) for who in (Principal("alice"), Principal("x", operator=True)))
    for who, more in ((alice, []), (operator, [4])):
        assert [number for number in scopes if who.writable(number)] == [1, *more]
        assert [number for number in scopes if who.shown_writable(number)] == [1, 3, *more], "no source takes 2"
        assert [number for number in scopes if who.live(number)] == [2, 3]
        assert who.remembered.ids == {1, 4} and who.remembered.who == who.who
        assert who.remembered.remembered is who.remembered


def test_what_is_not_to_be_trusted_is_marked_and_what_is_held_is_told_to_nobody() -> None:
    web, held = Origin(("tool", "web")), Origin(("imported",))
    scopes = {
        1: Scope(Access.READ),
        2: Scope(Access.READ, origin=web, trust="mark"),
        3: Scope(Access.READ, origin=held, trust="quarantine"),
        4: Scope(Access.READ, origin=held),
        5: Scope(Access.READ, origin=held, trust="quarantine", aside="index"),
    }
    alice = Visible(Principal("alice"), scopes)
    assert alice.ids == {1, 2, 3, 4, 5} and alice.held == {3, 5} and alice.told_json == "[1,2,4]"
    assert [alice.searched(place)[0] for place in ("", "archive", "past", "index")] == [*[{1, 2, 4}] * 3, set()]
    assert [alice.untrusted(number) for number in (1, 2, 4)] == ["", "tool,web", ""]
    assert [alice.quoted(number, "said") for number in (1, 2, 3, 4)] == [
        *("said", "(untrusted: tool,web) said", QUARANTINED, "said")
    ]
    assert (alice.origin(2), alice.trust(3), alice.trust(1)) == (web, "quarantine", "allow")


def test_scopes_are_those_of_the_table_whoever_has_interned_them() -> None:
    db = apsw.Connection(":memory:")
    db.execute("create table scope(id integer primary key, spec text not null unique)")
    db.execute("create table sole(scope integer primary key, agent text not null)")
    bob, shared = Principal("bob"), Scope(Access.WRITE)
    own = Scope(Access.NONE, (("bob", Access.WRITE),), owner="bob")
    mine, other = Scopes(), Scopes()
    assert (mine.visible(db, bob).ids, other.visible(db, bob).ids, mine.highest) == (set(), set(), 0)
    first = mine.intern(db, shared)
    assert Scopes().of(db, first) == shared and other.visible(db, bob).ids == {first}
    second = mine.intern(db, own)
    assert mine.intern(db, own) == second and mine.interned == 2 and mine.highest == second
    assert db.execute("select scope, agent from sole").fetchall() == [(second, "bob")]
    assert other.intern(db, own) == second and other.interned == 0 and other.visible(db, bob).ids == {first, second}
    assert other.visible(db, Principal("eve")).ids == {first}
    seen = mine.visible(db, bob)
    third = other.intern(db, Scope(Access.READ))
    assert mine.visible_as_loaded(bob) is seen and mine.visible(db, bob).ids == {first, second, third}
    assert mine.visible(db, Principal("eve")).ids == {first, third}
    db.execute("delete from scope where id > ?", (first,))  # a rollback
    for each in (mine, other):
        each.forget()
        assert each.visible(db, bob).ids == {first} and each.highest == first
    assert mine.intern(db, Scope(Access.READ)) == second and mine.intern(db, own) == third
    assert mine.visible(db, Principal("eve")).ids == other.visible(db, Principal("eve")).ids == {first, second}


@pytest.mark.parametrize("word", ["", "RW", "w", "read"])
def test_an_unknown_word_is_no_access(word: str) -> None:
    with pytest.raises(KeyError):
        Policy.from_words([("/x", word, None)], "rw")


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/memory/secret", False),
        ("/memory/secret/plan.md", False),
        ("/memory/secret/deep/plan.md", False),
        ("/memory/secret/open/plan.md", True),
        ("/memory/secrets/plan.md", True),
        ("/memory/plan.md", True),
    ],
)
def test_a_rule_that_hides_a_directory_hides_what_is_below_it(path: str, seen: bool) -> None:
    """A path to it does not exist, so a search must not find it either; an earlier rule may except something."""
    policy = Policy.from_words([("/memory/secret/open/*", "rw", None), ("/memory/secret", "none", None)], "rw")
    scope = policy.scope(paths.split(path.encode()))
    assert (scope.access(Principal("bob")) is not Access.NONE) is seen


BELOW = st.lists(st.sampled_from([b"x", b"y", b"f.md", b"bob", b"a"]), min_size=1, max_size=3).map(tuple)
DIRECTORIES = st.sampled_from(
    [
        (b"memory", b"x"),
        (b"memory", b"y"),
        (b"memory", b"xy"),
        (b"memory", b"x", b"y"),
        (b"memory", b"shared", b"x"),
        (b"memory", b"private", b"bob", b"x"),
        (b"memory", b"private", b"carol", b"x"),
        (b"trash",),
        (b"trash", b"(2)"),
        (b"trash", b"x"),
        (b"trash", b"private", b"bob", b"(2)"),
    ]
)
MORE_PATTERNS = st.one_of(
    PATTERNS,
    st.sampled_from(["/memory/x*", "/memory/x/f.md", "/memory/x/y/*", "/memory/?/f*", "/memory/xy", "/*/x", "/memory"]),
)
MORE_RULES = st.lists(st.builds(Rule, MORE_PATTERNS, ACCESS, st.one_of(st.none(), AGENTS)), max_size=3)
AREAS = st.lists(st.one_of(DIRECTORIES, st.just((b"memory",)), st.just((b"memory", b"x", b"f.md"))), max_size=2)


@given(MORE_RULES, DIRECTORIES, DIRECTORIES, BELOW, SHARED, AREAS)
@settings(max_examples=800)
def test_what_is_below_two_directories_that_are_alike_has_the_same_scope(
    rules: list[Rule],
    one: tuple[bytes, ...],
    other: tuple[bytes, ...],
    below: tuple[bytes, ...],
    shared: tuple[str, ...] | None,
    tops: list[tuple[bytes, ...]],
) -> None:
    policy, areas = Policy(rules), list(enumerate(tops))
    if policy.alike(one, other, areas):
        assert policy.scope((*one, *below), shared, areas) == policy.scope((*other, *below), shared, areas)


@given(MORE_RULES, st.lists(st.tuples(DIRECTORIES, BELOW, SHARED), min_size=2, max_size=8))
@settings(max_examples=400)
def test_a_place_that_was_folded_before_keeps_its_own_scope(
    rules: list[Rule], places: list[tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[str, ...] | None]]
) -> None:
    policy, known = Policy(rules), WriterMemo()
    db = apsw.Connection(":memory:")
    db.execute("create table scope(id integer primary key, spec text not null unique)")
    db.execute("create table sole(scope integer primary key, agent text not null)")
    for directory, below, shared in places:
        for parts in (directory, (*directory, *below), (*directory, b"y", *below), (*directory, b"z")):
            found = known.scope(db, policy, parts, shared)
            spec = db.execute("select spec from scope where id = ?", (found,)).get
            assert spec == policy.scope(parts, shared).spec


@pytest.mark.parametrize(
    ("rule", "mirror"), [("/memory", b"/trash/(2)"), ("/memory/private/bob", b"/trash/private/bob/(2)")]
)
def test_the_top_of_a_mirror_is_not_what_is_beside_it(rule: str, mirror: bytes) -> None:
    policy, known = Policy([Rule(rule, Access.READ)]), WriterMemo()
    db = apsw.Connection(":memory:")
    db.execute("create table scope(id integer primary key, spec text not null unique)")
    db.execute("create table sole(scope integer primary key, agent text not null)")
    top = paths.split(mirror)
    for parts in (top, (*top, b"x"), (*top[:-1], b"x"), top):
        found = db.execute("select spec from scope where id = ?", (known.scope(db, policy, parts, None),)).get
        assert found == policy.scope(parts).spec
        assert policy.scope(parts) == replace(policy.scope(paths.origin(parts)), aside="trash")


def test_the_usual_rules_are_folded_once_for_all_that_is_in_a_space() -> None:
    class Counted(Policy):
        folded = 0

        def scope(self, *place: Any, **more: Any) -> Scope:
            self.folded += 1
            return super().scope(*place, **more)

    policy, known = Counted([Rule("/memory/*", Access.WRITE), Rule("/live/*", Access.READ)]), WriterMemo()
    db = apsw.Connection(":memory:")
    db.execute("create table scope(id integer primary key, spec text not null unique)")
    db.execute("create table sole(scope integer primary key, agent text not null)")
    for name in (b"a", b"b", b"c"):
        known.scope(db, policy, (b"memory", b"shared", name), None)
        known.scope(db, policy, (b"memory", b"private", b"bob", name), None)
        known.scope(db, policy, (b"memory", b"private", b"bob", name, name), None)
    assert policy.folded == 2


@pytest.mark.parametrize(
    "rules", [[], [Rule("/memory/*", Access.WRITE), Rule("/live/*", Access.READ)], [Rule("/live/*.md", Access.READ)]]
)
def test_directories_under_the_usual_rules_are_alike(rules: list[Rule]) -> None:
    policy = Policy(rules)
    assert policy.alike((b"memory", b"x"), (b"memory", b"shared", b"y"), [(1, (b"memory", b"z"))])
    assert not policy.alike((b"memory", b"x"), (b"memory", b"y"), [(1, (b"memory", b"y", b"z"))])
    assert not policy.alike((b"memory", b"x"), (b"memory", b"private", b"bob", b"x"))
    for one, other in ((b"memory", b"live"), (b"live", b"memory"), (b"live", b"live")):
        assert not policy.alike((one, b"x"), (other, b"y")), "what is live depends on its name"
    x, y, area = (b"memory", b"x"), (b"memory", b"y"), [(1, (b"memory", b"x"))]
    assert policy.alike((*x, b"a"), (*x, b"b"), area) and not policy.alike((*x, b"a"), (*y, b"b"), area)
    assert not policy.alike(x, (*y, b"a"), area), "the area itself is one of them"
    for pattern in ("/memory/x/*", "*.md", "/memory/?/f*"):
        assert not Policy([*rules, Rule(pattern, Access.READ)]).alike(x, y)
    for one, other in ((b"trash", b"memory"), (b"archive", b"trash"), (b"index", b"memory")):
        assert not policy.alike((one, b"x"), (other, b"x")) and policy.alike((one, b"x"), (one, b"y"))
    way = (b"archive", b"private")
    assert not policy.alike(way, (b"archive", b"pub")) and not policy.alike((b"archive", b"pub"), way)
    assert not policy.alike((b"archive", b"(2)"), (b"archive", b"x")), "agents' own spaces would be below"
    assert policy.alike((b"archive", b"(2)"), (b"archive", b"(3)")), "which are the same there"
    assert [policy.alike(one, other) for one in ((), (b"memory",)) for other in ((), (b"memory",))] == [
        *(True, False, False, True)
    ]


@pytest.mark.parametrize(
    ("path", "may", "sources", "trust"),
    [
        ("/live/x/in", Access.WRITE, ("live",), "allow"),
        ("/live/x", Access.WRITE, (), "allow"),  # what is made here may be /live/x/in
        ("/live/x/out", Access.READ, (), "allow"),
        ("/feed", Access.READ, (), "allow"),
        ("/feed/b", Access.READ, ("live", "web"), "quarantine"),
        ("/feed/c", Access.READ, ("web",), "mark"),
        ("/box/q/r", Access.WRITE, ("live",), "allow"),
        ("/box", Access.WRITE, ("live",), "allow"),
        ("/other", Access.READ, (), "allow"),
    ],
)
def test_what_is_live_is_changed_where_its_source_takes_it_and_trusted_as_that_is(
    path: str, may: Access, sources: tuple[str, ...], trust: str
) -> None:
    live = [
        ("/live/{a}/in", True, "live"),
        ("/feed/{n}", False, "web"),
        ("/feed/b", False, "live"),
        ("/box*", True, "live"),
    ]
    policy = Policy(live=live, trusted=[Trusted("live", "/feed/b", "quarantine")])
    scope = policy.scope(paths.split(path.encode()))
    assert (scope.everyone, scope.live, scope.origin, scope.trust) == (may, True, Origin(sources), trust)


def test_a_place_knows_the_areas_that_it_is_in_and_those_it_leads_to() -> None:
    areas = list(enumerate([(b"memory",), (b"memory", b"x"), (b"memory", b"x", b"y"), (b"memory", b"xy")], 1))
    for parts, inside, leads in (
        ((), "", "1234"),
        ((b"memory",), "1", "234"),
        ((b"memory", b"x"), "12", "3"),
        ((b"trash", b"x"), "12", "3"),
        ((b"memory", b"x", b"y", b"z"), "123", ""),
        ((b"memory", b"q"), "1", ""),
        ((b"live", b"x"), "", ""),
    ):
        scope = Policy().scope(parts, areas=areas)
        assert (scope.inside, scope.leads) == ({*map(int, inside)}, {*map(int, leads)}), parts


def test_what_came_in_is_trusted_by_where_it_lies() -> None:
    rules, tool = [Trusted("tool", "/memory/x", "quarantine"), Trusted("web", "/memory/y", "allow")], Origin(("tool",))
    policy = Policy(trusted=rules)

    def trust(top: bytes, name: bytes, origin: Origin = tool) -> str:
        return policy.scope((top, name), origin=origin).trust

    assert [trust(top, b"x") for top in (b"memory", b"trash", b"archive", b"index")] == ["quarantine"] * 3 + ["allow"]
    assert policy.scope((b"trash", b"(2)", b"x"), origin=tool).trust == "quarantine"
    assert [trust(b"memory", name, Origin(("web",))) for name in (b"x", b"y")] == ["mark", "allow"]
    assert trust(b"memory", b"y") == trust(b"memory", b"x", Origin(())) == "allow"
    for one, other in ((b"x", b"q"), (b"y", b"x"), (b"q", b"r")):
        assert policy.alike((b"memory", one), (b"memory", other)), "each rule is about one file"
    assert not policy.uniform((b"memory",)) and not Policy(trusted=[rules[0]]).alike((b"memory",), (b"memory",))


def test_what_a_group_may_its_members_may_and_nobody_else() -> None:
    people = {
        "alice": Person(("desk",)),
        "bob": Person(("desk", "night")),
        "carol": Person(("night",), ()),
        "dave": Person((), ("write", "search_all")),
    }

    def seen(rules: list[Rule], parts: tuple[bytes, ...] = (b"memory", b"f"), anybody: Person | None = None) -> str:
        policy = Policy(rules, Access.NONE, people | ({"*": anybody} if anybody else {}))
        scope = policy.scope(parts)
        assert Scope.parse(scope.spec) == scope and "*" not in dict(scope.agents)
        return " ".join(f"{name}={scope.of(name):d}" for name in ("alice", "bob", "carol", "dave", "eve"))

    def rule(access: Access, agents: tuple[str, ...] | None = None, *groups: str) -> Rule:
        return Rule("/memory/*", access, agents, groups or None)

    read, write = Access.READ, Access.WRITE
    assert seen([rule(write, None, "desk")]) == "alice=2 bob=2 carol=0 dave=0 eve=0"
    assert seen([rule(write, ("eve",), "desk")]) == "alice=2 bob=2 carol=0 dave=0 eve=2"
    assert seen([rule(read, None, "night"), rule(write, None, "desk")]) == "alice=2 bob=1 carol=1 dave=0 eve=0"
    assert seen([rule(write, None, "none")]) == "alice=0 bob=0 carol=0 dave=0 eve=0"
    assert seen([rule(read, ()), rule(write, ("eve",))]) == "alice=0 bob=0 carol=0 dave=0 eve=2"
    assert seen([rule(read, ("alice",)), rule(write)]) == "alice=1 bob=2 carol=1 dave=2 eve=2", "carol cannot write"
    assert seen([rule(write)], (b"memory", b"private", b"bob")) == "alice=0 bob=2 carol=0 dave=1 eve=0"
    assert seen([rule(write)], (b"index", b"f")) == "alice=0 bob=0 carol=0 dave=0 eve=0"
    assert seen([Rule("*", write)], (b"index", b"f")) == "alice=1 bob=1 carol=1 dave=1 eve=1"
    anybody = Person(("desk",), ("search_all",))
    assert seen([rule(write, None, "desk")], anybody=anybody) == "alice=2 bob=2 carol=0 dave=0 eve=1"
    assert seen([rule(write)], (b"memory", b"private", b"bob"), anybody) == "alice=0 bob=2 carol=0 dave=1 eve=1"
    policy = Policy(people=people | {"*": anybody})
    assert policy.groups() == {"desk", "night"} and policy.person("eve") == anybody


@pytest.mark.parametrize(
    ("pattern", "covers", "hiding"),
    [
        *((pattern, True, True) for pattern in ("/memory/x/y/*", "/memory/x/*", "/memory/x*", "*")),
        *((pattern, False, True) for pattern in ("/", "/memory", "/memory/x", "/memory/x/y")),
        ("/memory/?/y", None, True),
        *((f"/memory/x/y/{name}", None, None) for name in ("z", "z*", "z/*", "*.md")),
        *((pattern, None, None) for pattern in ("/memory/x/*.md", "*.md", "/memory/?/*z", "/memory/[xy]/z")),
        *((f"/memory/{name}", False, False) for name in ("x/z", "x/yy", "x/z*", "y/*", "y/*.md")),
    ],
)
def test_a_rule_is_known_to_match_all_below_a_directory_nothing_or_some(
    pattern: str, covers: bool | None, hiding: bool | None
) -> None:
    """Which decides whether a directory of any size can be moved at once."""
    here, there = (b"memory", b"x", b"y"), (b"memory", b"q", b"q")
    for access, expected in ((Access.READ, covers), (Access.NONE, hiding)):
        policy = Policy([Rule(pattern, access)])
        both = pattern == "*" or (pattern in ("/", "/memory") and access is Access.NONE)
        assert policy.uniform(here) is policy.alike(here, here) is (expected is not None)
        assert policy.alike(here, there) is policy.alike(there, here) is (both or expected is False)
        assert policy.uniform((b"trash", *here[1:])) is policy.uniform((b"archive", *here[1:])) is policy.uniform(here)


def test_the_policy_is_what_the_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIGURED)
    policy = Policy.from_settings(load_settings(tmp_path / "config.yaml", {}))
    assert policy.rules == (Rule("/memory/x/*", Access.READ, ("bob",), ("desk",)), Rule("/*", Access.NONE, None, None))
    assert policy.default is Access.READ
    assert policy.people == {"alice": Person(("desk",), ("write",), Quota(1, 2, 3, 4))}
    told = Policy.from_plain(policy.plain)
    assert (told.rules, told.default, told.people) == (policy.rules, policy.default, policy.people)
    assert told.digest == policy.digest and policy.joined({}) is policy
    more = policy.joined({"alice": Person(), "carol": Person(("desk",), ("search_all",))})
    assert (more.rules, more.default, more.live, more.trust) == (
        policy.rules,
        policy.default,
        policy.live,
        policy.trust,
    )
    assert more.people == policy.people | {"carol": Person(("desk",), ("search_all",))}
    assert more.digest != policy.digest and more.groups() == {"desk"}
    assert more.person("carol").groups == ("desk",) and more.person("eve") == Person()
    for who, capability in (
        (Principal("carol"), "search_all"),
        (Principal("x", True), "sudo"),
        (Principal("eve"), "write"),
    ):
        more.require(who, capability)
    for who, capability in ((Principal("carol"), "write"), (Principal("eve"), "sudo")):
        with pytest.raises(Denied, match=capability):
            more.require(who, capability)
    assert policy.live == (("/live/a", False, "web"), ("/live/b", True, "live"))
    assert policy.trust == told.trust == (Trusted("tool", "/memory/x/*", "quarantine"),)
    assert policy.quotas and not Policy().quotas


def test_a_policy_is_read_as_it_was_written_and_as_earlier_versions_wrote_it() -> None:
    rules = (Trusted("tool", "/memory/*", "quarantine"),)
    policy = Policy(default=Access.READ, live=[("/live/a", True, "web"), ("/live/b", False, "live")], trusted=rules)
    assert [policy.uniform((top, b"x")) for top in (b"live", b"memory")] == [False, True]
    assert Policy().uniform((b"live", b"x")), "where nothing is live nothing depends on its name"
    told = Policy.from_plain(policy.plain)
    assert (told.live, told.trust, told.default, told.digest) == (policy.live, rules, Access.READ, policy.digest)
    others = (Policy(), Policy(live=policy.live), Policy(live=policy.live[:1]), Policy(trusted=rules))
    others += (Policy(trusted=(Trusted("web", "/x", "mark"),)),)
    assert len({each.digest for each in (policy, *others)}) == 6
    old = Policy.from_plain('{"rules": [], "default": "rw", "people": {}, "live": [["/live/a", true]]}')
    assert old.live == (("/live/a", True, "live"),) and old.trust == () and old.default is Access.WRITE
    assert Policy.from_plain('{"rules": [], "default": "none", "people": {}}').live == ()


def test_nobody_who_is_called_as_everyone_is_in_a_text_gets_anything_by_a_rule() -> None:
    """No agent can be called so (the configuration says it); a policy that says it all the same opens nothing."""
    scope = Policy.from_words([("/memory/*", "rw", ("*", "bob"))], "none").scope((b"memory", b"f"))
    assert (scope.everyone, dict(scope.agents)) == (Access.NONE, {"bob": Access.WRITE})
    assert Scope.parse(scope.spec) == scope
