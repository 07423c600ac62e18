"""Who may do what: agents that a program registers, API keys, and who asks to be the operator.

A key's paths are folded into the scopes of what lies there, so that every query filters by them as by everything else.
The first key of a path therefore costs a walk over what is below it; later ones of that path, and revoking, nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

from avmfs_config.agent_id import AGENT_ID
from avmfs_config.people import Capability

from avmfs import paths
from avmfs.access import ACTIONS, NOBODY, Person, Principal
from avmfs.errors import Denied, Invalid, NotFound, OverQuota
from avmfs.node import Kind, Node
from avmfs.store.commands import aside, command, renaming, scoping, upkeep
from avmfs.store.rows import api_keys
from avmfs.store.rows.stored_policy import store_people
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import Tx

KEYS_MOST = 64  # that one agent may have at a time
PATHS_MOST = 16  # of one key
AREAS_MOST = 256  # that keys name which open something: each costs every write a comparison, and scopes their text
AREAS_OF_ONE = 64  # of them an agent's, so that nobody takes the room of all
AREAS_IDLE = 32  # that no such key names any more, kept for the next key of that path
LABEL_MOST = 200
_SYSTEM = Principal("avmfs", operator=True)


@command
def create_key(
    tx: Tx, id: str, agent: str, hash: bytes, label: str, within: list[bytes], actions: list[str], expires: int | None
) -> dict[str, Any]:
    """A key for the asker, or for anybody if that is the operator. ``within``: paths, see keys.parse_path; ``expires``
    in ns. {"id"}. Nobody's rights grow: what a key allows is at most what its agent may."""
    tx.agent(agent)
    _check_maker(tx, agent)
    if not actions or not within:
        raise Invalid("an API key needs paths and actions")
    for action in actions:
        if action not in ACTIONS:
            raise Invalid(f"action {action!r}: expected {', '.join(ACTIONS)}")
    if expires is not None and expires <= tx.now:
        raise Invalid("an API key that has expired already")
    if len(label) > LABEL_MOST or not label.isprintable():
        raise Invalid(f"a label has at most {LABEL_MOST} printable characters")
    if len(hash) != 32 or tx.db.execute("select 1 from api_key where id = ?", (id,)).get:
        raise Invalid("a new API key needs an id and a hash of its own")
    _check_room(tx, agent)
    if len(within) > PATHS_MOST:
        raise Invalid(f"an API key has at most {PATHS_MOST} paths")
    areas = _areas(tx, agent, [api_keys.parse_path(path) for path in within])
    spelled = json.dumps([paths.text(path) for path in within])
    places = None if areas is None else json.dumps(areas)
    may = json.dumps(sorted(set(actions)))
    tx.db.execute(
        "insert into api_key(id, agent, hash, label, paths, areas, actions, made, maker, expires)"
        " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (id, agent, hash, label, spelled, places, may, tx.now, tx.who.name, expires),
    )
    _note(tx, "key")
    return {"id": id}


def _check_maker(tx: Tx, agent: str) -> None:
    """Check that the asker may make keys for this agent."""
    if tx.who.key is not None:
        raise Denied("an API key cannot make others")
    if agent != tx.who.name and not tx.who.operator:
        raise Denied("only an operator makes keys for other agents")


def _check_room(tx: Tx, agent: str) -> None:
    live = tx.db.execute(
        "select count(*) from api_key where agent = ? and revoked is null and (expires is null or expires > ?)",
        (agent, tx.now),
    ).get
    if live >= KEYS_MOST:
        raise OverQuota(f"{agent} has {live} API keys: revoke some")


@command(frees_space=True)
def revoke_key(tx: Tx, id: str) -> dict[str, Any]:
    """The asker's own key, or anybody's if that is the operator. Whoever uses it is refused from now on."""
    agent = tx.db.execute("select agent from api_key where id = ? and revoked is null", (id,)).get
    if agent is None or (agent != tx.who.name and not tx.who.operator):
        raise NotFound(f"you have no API key {id!r} that could be revoked")
    if tx.who.key is not None and tx.who.key.id != id:
        raise Denied("an API key can revoke itself and no other")
    tx.db.execute("update api_key set revoked = ? where id = ?", (tx.now, id))
    _note(tx, "key")
    return {"agent": agent}


@command
def init_permissions(tx: Tx, users: dict[str, Any]) -> dict[str, Any]:
    """Register agents: {name: {"groups": [...], "capabilities": [...]}}, in place of those registered before. What
    config.yaml says of an agent stands above it. {"users": how many}. All scopes are folded anew."""
    tx.require_operator()
    found: dict[str, Person] = {}
    for name, said in users.items():
        tx.agent(name)
        place = f"users.{name}"
        if type(said) is not dict or not said.keys() <= {"groups", "capabilities"}:
            raise Invalid(f"{place}: expected groups and capabilities, two lists of names")
        groups, capabilities = said.get("groups", []), said.get("capabilities", ["write"])
        for key, names in (("groups", groups), ("capabilities", capabilities)):
            if type(names) is not list or not all(type(each) is str and AGENT_ID.fullmatch(each) for each in names):
                raise Invalid(f"{place}.{key}: expected a list of names (a-z 0-9 . _ -)")
        for each in capabilities:
            if each not in get_args(Capability):
                raise Invalid(f"{place}.capabilities: {each!r}: expected {', '.join(get_args(Capability))}")
        found[name] = Person(tuple(sorted(set(groups))), tuple(sorted(set(capabilities))))
    store_people(tx.db, found)
    tx.policy = tx.configured.joined(found)
    upkeep.settle(tx)
    _note(tx, "people")
    return {"users": len(found)}


def _areas(tx: Tx, agent: str, tops: list[tuple[bytes, ...]]) -> list[int] | None:
    """The areas of these paths, made where they are new; None for the whole tree. All of /memory needs none."""
    for top in tops:
        owner = paths.agent_space(top)
        if owner is not None and owner != agent:
            raise Denied(f"{agent} has nothing there", paths.text(paths.join(top)))
    if () in tops:
        return None
    if (paths.MEMORY,) in tops:
        tops = [top for top in tops if top[0] != paths.MEMORY]
    known = {top: number for number, top in tx.known.areas}
    wanted = {known[top] for top in tops if top in known}
    new = {top for top in tops if top not in known}
    if new:
        _require_room(tx, agent, wanted, len(new))
        wanted |= _make_areas(tx, new, wanted)
    return sorted(wanted)


def _require_room(tx: Tx, agent: str, wanted: set[int], new: int) -> None:
    live = api_keys.live_areas(tx.db, tx.now)
    if len(live.get(agent, set()) | wanted) + new > AREAS_OF_ONE:
        raise OverQuota(f"API keys of {agent} would name more than {AREAS_OF_ONE} paths: revoke some")
    if len(set().union(*live.values()) | wanted) + new > AREAS_MOST:
        raise OverQuota(f"API keys of this store would name more than {AREAS_MOST} paths")


def _make_areas(tx: Tx, tops: set[tuple[bytes, ...]], wanted: set[int]) -> set[int]:
    """Their numbers. They are folded into the scopes of what is there, and of the directories on the way, all at once,
    since each step would leave a scope behind; and so is what idle areas leave, when there are too many of them."""
    changed = set(tops)
    idle = api_keys.idle_areas(tx.db, tx.now) - wanted
    if len(idle) > AREAS_IDLE:
        changed |= {top for number, top in tx.known.areas if number in idle}
        api_keys.forget_areas(tx.db, idle)
    number = first = api_keys.next_area(tx.db)
    for number, top in enumerate(sorted(tops), first):
        tx.db.execute("insert into area(id, path) values(?, ?)", (number, paths.join(top)))
    tx.known.moved = True  # to be forgotten should this be rolled back
    tx.known.read_areas(tx.db)
    _fold(replace(tx, who=_SYSTEM), changed)
    tx.events.append(("rules", ROOT, None, b""))
    return set(range(first, number + 1))


def _fold(system: Tx, tops: set[tuple[bytes, ...]]) -> None:
    """The scopes of these places, of all below them and of the directories on the way."""
    above: set[tuple[bytes, ...]] = set()
    mirrors = {each for top in tops if top[:1] == (paths.MEMORY,) for each in aside.mirrors(system, top)}
    for top in sorted(tops | mirrors):
        node: Node | None = system.node(ROOT)
        for depth, name in enumerate(top):
            assert node is not None
            if top[:depth] not in above:
                above.add(top[:depth])
                scoping.set_scope(system, node, system.scope_at(top[:depth]))
            node = system.child(node.id, name)
            if node is None:
                break
            if node.kind is not Kind.DIRECTORY and depth + 1 < len(
                top
            ):  # a file has the name of a directory on the way
                renaming.rescope(system, node, top[: depth + 1])
                break
        else:
            assert node is not None
            renaming.rescope(system, node, top)


def _note(tx: Tx, op: str) -> None:
    """A row of the log that only an operator sees: rights have changed, or somebody uses all there are."""
    tx.log(op, tx.node(ROOT), b"/", scope=tx.known.scopes.intern(tx.db, NOBODY))
