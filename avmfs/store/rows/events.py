"""One change as a subscriber hears of it, and which changes a pattern is about.

Owns the shape in which events lie in the outbox. Called by the outbox's commands and its reader. Pure: knows no SQL and
no transaction.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.store.rows.globs import Glob, wildcards
from avmfs.store.rows.log_ops import ops_where

PATTERN_MAX, WILDCARDS_MAX = 1024, 32
MAIL = "/tell/"
_WILD = re.compile(r"[*?\[]")
_SILENT = ops_where(lambda op: not op.subscribed)


@dataclass(frozen=True, slots=True)
class Event:
    """A row of the log for one subscription. ``event`` is the row's op, or "remove" where a rename took the path out of
    the pattern. ``path`` keeps undecodable bytes as surrogate escapes. ``count``: of how many changes of the path this
    is the last, in a digest."""

    seq: int
    at: int
    event: str
    path: str
    node: int
    version: int | None
    scope: int
    author: str
    count: int = 1


def pack(events: Iterable[Event]) -> str:
    """As they lie in the outbox."""
    return json.dumps(
        [[e.seq, e.at, e.event, e.path, e.node, e.version, e.scope, e.author, e.count] for e in events],
        separators=(",", ":"),
    )


def unpack(text: str) -> list[Event]:
    return [Event(*row) for row in json.loads(text)]


def latest_by_path(events: Iterable[Event]) -> list[Event]:
    """One event per path, the last, with the count of all; in order of their first."""
    found: dict[str, Event] = {}
    for event in events:
        earlier = found.get(event.path)
        found[event.path] = event if earlier is None else replace(event, count=earlier.count + event.count)
    return list(found.values())


def place_of(pattern: str, agent: str) -> str:
    """A pattern with the aliases /shared and /private spelled out, as paths in the log are. Raises Invalid for one that
    can match nothing, or mail that is not the agent's own."""
    if not pattern.startswith("/") or not pattern.isprintable():
        raise Invalid(f"pattern {pattern[:80]!r}: expected an absolute path, in which * stands for anything")
    if len(pattern) > PATTERN_MAX:
        raise Invalid(f"pattern {pattern[:80]!r}: at most {PATTERN_MAX} characters, it has {len(pattern)}")
    if (wild := wildcards(pattern)) > WILDCARDS_MAX:
        raise Invalid(f"pattern {pattern[:80]!r}: at most {WILDCARDS_MAX} of * ? and [, it has {wild}")
    first, slash, rest = pattern[1:].partition("/")
    if first == "tell" and rest not in (agent, "me"):
        raise Invalid(f"pattern {pattern[:80]!r}: of mail only your own can be followed: /tell/{agent}")
    alias = {"shared": "/memory/shared", "private": f"/memory/private/{agent}", "tell": "/tell"}.get(first)
    if first == "tell":
        rest = agent
    return pattern if alias is None else f"{alias}{slash}{rest}"


@lru_cache(maxsize=4096)
def _globs(place: str) -> tuple[Glob, ...]:
    return (Glob(place), Glob(place[:-2])) if place.endswith("/*") else (Glob(place),)


def matches(place: str, path: str) -> bool:
    """As rules match (access.Rule): ``*`` also crosses ``/``, and ``/x/*`` is about /x itself too. Mail is matched by a
    pattern that says so only."""
    if path.startswith(MAIL) and not place.startswith(MAIL):
        return False
    return any(glob.matches(path) for glob in _globs(place))


@lru_cache(maxsize=4096)
def prefix_of(place: str) -> str:
    """What every path that matches begins with."""
    return _WILD.split(place.removesuffix("/*"), maxsplit=1)[0]


def of_row(
    seq: int, at: int, op: str, by: str, node: int, version: int | None, scope: int, path: bytes, other: bytes | None
) -> tuple[Event, ...]:
    """What a row of the log may be to a subscriber: the first of these that its pattern is about. The old name of a
    rename is told where the new one is not what was asked for, and to who is told of paths (``by_path``)."""
    if op in _SILENT or not path:
        return ()
    event = Event(seq, at, op, paths.text(path), node, version, scope, by)
    if op == "rename" and other is not None:
        return event, replace(event, event="remove", path=paths.text(other))
    return (event,)


def message_id(subscription: int, first: Event) -> str:
    """Of the delivery that begins with this event: the same if power loss makes us find it again. Keyed with what
    nobody outside knows, so that it tells nothing of how many changes there were."""
    begins = first.seq.to_bytes(8, "big") + paths.raw(first.path)  # a rename may be an event of two paths
    digest = hmac.digest(subscription.to_bytes(8, "big"), begins, hashlib.sha256)
    return "msg_" + base64.b32encode(digest[:15]).decode().lower()
