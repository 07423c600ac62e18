"""The policy in force as the store has it: for readers, which are not configured, and for agents it knows by itself.

Owns the settings ``policy_text`` (all of the policy, written when it is settled) and ``people`` (agents that a program
registered with ``init_permissions``; config.yaml stands above them). Called by the applier, ``settle`` and readers.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

import apsw

from avmfs.access import Person, Policy


def stored_people(db: apsw.Connection) -> dict[str, Person]:
    """Agents that a program registered."""
    text = db.execute("select value from setting where key = 'people'").get
    return _people(text) if text else {}


def store_people(db: apsw.Connection, people: dict[str, Person]) -> None:
    text = json.dumps({name: [each.groups, each.capabilities] for name, each in people.items()}, sort_keys=True)
    db.execute("insert or replace into setting(key, value) values('people', ?)", (text,))


def policy_in_force(db: apsw.Connection) -> Policy:
    """What the scopes of this snapshot were folded with."""
    text = db.execute("select value from setting where key = 'policy_text'").get
    return _policy(text) if text else Policy()


def publish(db: apsw.Connection, policy: Policy) -> None:
    """Let readers know the policy, if they do not."""
    db.execute(
        "insert into setting(key, value) values('policy_text', ?) on conflict(key) do update set value = excluded.value"
        " where value <> excluded.value",
        (policy.plain,),
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest_in_force(db: apsw.Connection) -> str | None:
    """Of the policy in force; None before the first."""
    text = db.execute("select value from setting where key = 'policy_text'").get
    return None if text is None else digest(text)


@lru_cache(maxsize=4)
def _policy(text: str) -> Policy:
    return Policy.from_plain(text)


@lru_cache(maxsize=4)
def _people(text: str) -> dict[str, Person]:
    return {
        name: Person(tuple(groups), tuple(capabilities)) for name, (groups, capabilities) in json.loads(text).items()
    }
