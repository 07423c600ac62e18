"""Methods of the door about who may do what, and who works on what: agents, permissions, API keys, claims, the sign-in
at the HTTP service. Called through the registry.

The secret of a key is made here and goes to whoever asked for it; the store gets its hash. What an agent takes up is
told to itself and to the operator. Of a sign-in the service learns from the supervisor, and keeps a one-time code."""

from __future__ import annotations

import base64
import secrets
from dataclasses import asdict
from typing import Any

from avmfs import paths
from avmfs.access import CAPABILITIES, Access
from avmfs.agents import mail
from avmfs.agents.told import told
from avmfs.errors import NAMELESS, Busy, Denied, Invalid, NameTooLong, NotDirectory, NotSupported, StoreFailed
from avmfs.memory import PATH_MAX, Memory
from avmfs.node import Kind
from avmfs.paths import text  # create_key has an argument ``paths``
from avmfs.rpc.methods import method
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows import api_keys
from avmfs.store.rows.api_keys import KeyRow
from avmfs.views import claims as claiming
from avmfs.views.who import present, working

_NEEDS = dict.fromkeys(("read", "search", "list"), Access.READ) | dict.fromkeys(("write", "delete"), Access.WRITE)


@method
def agents(memory: Memory) -> list[dict[str, Any]]:
    """Every agent that is known or configured, by name: [{"name", "groups", "capabilities", "quota", "used", "here",
    "claims"}]. "used" is {"nodes", "bytes", "history_bytes"}, or None where it is not counted or not for the asker;
    "here" {route: since}; "claims" [{"path", "until"}] of what the asker sees."""
    here = present(memory)
    with memory.reading() as reader:
        names, works = reader.agents(), working(reader)
        return [
            {
                **_agent(reader, name),
                "here": {route: mail.iso(at) for route, at in here.get(name, {}).items()},
                "claims": [{"path": paths.text(path), "until": mail.iso(at)} for path, at in works.get(name, [])],
            }
            for name in names
        ]


@method
def user(memory: Memory, name: str) -> dict[str, Any]:
    """One agent, as in ``agents``. One that nobody has heard of may what every agent without an entry may."""
    with memory.reading() as reader:
        return _agent(reader, _checked(name))


@method
def check_permission(memory: Memory, user: str, path: str, action: str) -> bool:
    """Return whether this agent may do that there. ``action``: read, search, list, write or delete. Of what the asker
    cannot see the answer follows from place and rules alone."""
    if action not in _NEEDS:
        raise Invalid(f"action {action!r}: expected one of {', '.join(_NEEDS)}")
    name = _checked(user)
    with memory.reading() as reader:
        parts = paths.split(_spelled(name, path))
        if parts and paths.parse_handle(parts[0]) is not None:
            parts = paths.split(reader.path(memory.resolve(reader, path).id))
        if action == "delete" and reader.people.access(name, parts[:-1]) < Access.WRITE:
            return False
        if _NEEDS[action] is Access.WRITE and parts[:1] != (paths.MEMORY,):
            return False  # nothing can be made at the root
        return reader.people.access(name, parts) >= _NEEDS[action]


@method
def init_permissions(memory: Memory, users: dict[str, Any]) -> dict[str, Any]:
    """Register agents with their groups and capabilities. Operator only. {"users": how many}."""
    done: dict[str, Any] = memory.submit("init_permissions", users=users)
    return done


@method
def create_key(
    memory: Memory,
    paths: list[str] | None = None,
    actions: list[str] | None = None,
    agent: str | None = None,
    label: str = "",
    expires: str | None = None,
) -> dict[str, Any]:
    """A new API key: {"id", "key", "agent", "paths", "actions", "expires"}. ``key`` is shown this once. ``paths`` as
    ``/memory/a/*`` (default: everything), ``actions`` (default: read and search), ``expires`` such as 30d."""
    name = memory.who.name if agent is None else _checked(agent)
    within = [_spelled(name, path) for path in (["/"] if paths is None else paths)]
    wanted = ["read", "search"] if actions is None else actions
    id_ = base64.b32encode(secrets.token_bytes(api_keys.ID_BYTES)).decode().lower()
    secret = secrets.token_urlsafe(api_keys.SECRET_BYTES)
    until = None if expires is None else memory.now() + mail.parse_duration(expires)
    key = {"id": id_, "agent": name, "actions": wanted}
    memory.submit("create_key", **key, hash=api_keys.hashed(secret), label=label, within=within, expires=until)
    shown = {"paths": list(map(text, within)), "expires": mail.iso(until)}
    return {**key, **shown, "key": api_keys.compose(id_, secret)}


@method
def list_keys(memory: Memory) -> list[dict[str, Any]]:
    """The asker's API keys, for the operator everybody's, the newest first: [{"id", "agent", "label", "paths",
    "actions", "made", "maker", "expires", "revoked", "state"}]; "state" is valid, expired or revoked."""
    with memory.reading() as reader:
        return [_key(row, memory.now()) for row in reader.people.api_keys()]


@method
def revoke_key(memory: Memory, id: str) -> dict[str, Any]:
    """From now on nobody gets in with it. {"agent"}."""
    done: dict[str, Any] = memory.submit("revoke_key", id=id)
    return done


@method
def check_usage(memory: Memory) -> list[str]:
    """Counters of quotas that a recount contradicts, one line each; whose and how is told to the operator."""
    with memory.reading() as reader:
        return reader.people.miscounted()


def _agent(reader: Reader, name: str) -> dict[str, Any]:
    person = reader.people.policy().person(name)
    used = reader.people.used(name)
    return {
        "name": name,
        "groups": [*person.groups],
        "capabilities": [each for each in CAPABILITIES if each in person.capabilities],
        "quota": asdict(person.quota),
        "used": None if used is None else dict(zip(("nodes", "bytes", "history_bytes"), used, strict=True)),
    }


def _key(row: KeyRow, now: int) -> dict[str, Any]:
    state = "revoked" if row.revoked is not None else "valid"
    if state == "valid" and row.expires is not None and row.expires <= now:
        state = "expired"
    return told(row, "id agent label paths actions made maker expires revoked", state=state)


def _checked(name: str) -> str:
    from avmfs_config import check_agent_id

    try:
        return check_agent_id(name)
    except ValueError as e:
        raise Invalid(str(e)) from None


def _spelled(agent: str, path: str) -> bytes:
    """A key's path as it is shown: /private, /shared and .. spelled out, which the key's agent would write too."""
    raw = paths.raw(path)
    if len(raw) > PATH_MAX:  # rules look at every directory on the way
        raise NameTooLong(f"a path may have {PATH_MAX} bytes here, this has {len(raw)}")
    if not raw.startswith(b"/"):  # which is refused
        return raw
    return paths.join(paths.spelled_out(paths.split(raw), agent))


MOST = 10_000


@method
def claim(memory: Memory, path: str, lease: str = claiming.LEASE) -> dict[str, Any]:
    """Claim a file, or renew the claim. {"path", "until"}. Raises Busy where another agent has claimed it."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path).id
    return _made(claiming.claim(memory, node, lease))


@method
def claim_next(memory: Memory, path: str, lease: str = claiming.LEASE) -> dict[str, Any]:
    """Claim the oldest file of a directory that nobody has claimed. {"path", "until"}; None where there is none."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
    if node.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=path)
    made = claiming.claim_next(memory, node.id, lease)
    return {"path": None, "until": None} if made is None else _made(made)


@method
def release(memory: Memory, path: str) -> dict[str, Any]:
    """Give up a claim. {"path", "released": whether there was one}."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path).id
        where = paths.text(reader.path(node))
    return {"path": where, **memory.submit("release", node=node)}


@method
def claims(memory: Memory) -> dict[str, Any]:
    """{"claims": [{"path", "agent", "since", "until"}]}, those that are over last first."""
    with memory.reading() as reader:
        held = reader.claims.held(MOST)
        return {"claims": [told(each, "agent since until", path=reader.path(each.node)) for each in held]}


def _made(made: dict[str, Any]) -> dict[str, Any]:
    return {"path": paths.text(made["path"]), "until": mail.iso(made["until"])}


@method
def sign_in(memory: Memory, start: bool = False) -> dict[str, Any]:
    """A one-time code for the daemon's HTTP service: {"url", "code", "agent", "operator"}. Good once, within a minute,
    for a session as the asker. ``start``: where the configuration has the service off, begin it (operator only).
    Raises NotSupported where it is off, Busy while it starts."""
    if memory.who.key is not None:
        raise Denied("an API key is shown to the HTTP service itself: Authorization: Bearer KEY")
    if memory.who.nameless:
        raise Denied(NAMELESS)
    if start:
        memory.who.require_operator("only an operator starts the HTTP service")
    host = memory.around.host
    who = memory.who
    asked = {"agent": who.name, "operator": who.operator, "stranger": who.stranger, "start": start}
    found = host("sign_in", asked) if host is not None else {}
    if found.get("state") == "ready":
        return {"url": found["url"], "code": found["code"], "agent": asked["agent"], "operator": asked["operator"]}
    if found.get("state") in (None, "off"):
        raise NotSupported("no HTTP service: http.listen in config.yaml, or avm --operator open")
    if found["problem"]:
        raise StoreFailed(f"the HTTP service does not start: {found['problem']}")
    raise Busy("the HTTP service is starting")
