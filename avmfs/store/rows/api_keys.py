"""API keys as the store keeps them: what a key is, whose, and whether it still opens anything.

Owns the shape of a key, its hash, and the judgement of one that is shown. Called by readers, by the applier in each
transaction of a principal with a key, and by the doors, which only pass keys on. A key is
``avm_ID_SECRET``: ID is public and names the row, SECRET is 256 random bits, of which the row has the SHA-256 (a slow
hash protects what people choose, not what is random). Nothing here logs or raises anything that holds a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import apsw

from avmfs import paths
from avmfs.access import Key, Principal
from avmfs.errors import Denied, Invalid

SECRET_BYTES: Final = 32
ID_BYTES: Final = 5
_KEY: Final = re.compile(r"avm_([a-z2-7]{8})_([A-Za-z0-9_-]{43})")
_UNKNOWN: Final = "no such API key"
_THERE: Final = "select count(*) from area where id in (select value from json_each(?))"


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key without its secret. Times are ns since the epoch."""

    id: str
    agent: str
    label: str
    paths: tuple[str, ...]
    actions: tuple[str, ...]
    made: int
    maker: str
    expires: int | None
    revoked: int | None


_COLUMNS: Final = "id, agent, label, paths, actions, made, maker, expires, revoked"


def compose(id_: str, secret: str) -> str:
    return f"avm_{id_}_{secret}"


def hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def shown(db: apsw.Connection, text: str, now: int) -> Principal:
    """Whom a key that somebody shows speaks for. Raises Denied, with a reason, when for nobody: never a new agent."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise Denied("this is not an API key (avm_ID_SECRET)")
    row: Any = db.execute("select agent, hash from api_key where id = ?", (found[1],)).fetchone()
    if row is None or not hmac.compare_digest(row[1], hashed(found[2])):
        raise Denied(_UNKNOWN)
    return limited(db, row[0], found[1], now)


def principal(db: apsw.Connection, name: str, rights: bool | str, now: int) -> Principal:
    """Inverse of Principal.rights, for a process that another one asks. Raises Denied."""
    return limited(db, name, rights, now) if isinstance(rights, str) else Principal(name, operator=rights)


def limited(db: apsw.Connection, agent: str, id_: str, now: int) -> Principal:
    """The agent, by its key of this id. Raises Denied when that opens nothing any more."""
    row: Any = db.execute(
        "select areas, actions, expires, revoked, paths from api_key where id = ? and agent = ?", (id_, agent)
    ).fetchone()
    if row is None:
        raise Denied(_UNKNOWN)
    areas, actions, expires, revoked, said = row
    if revoked is not None:
        raise Denied(f"this API key was revoked on {_day(revoked)}")
    if expires is not None and expires <= now:
        raise Denied(f"this API key expired on {_day(expires)}")
    tops = {parse_path(paths.raw(path)) for path in json.loads(said)}
    limits = None if () in tops else tuple(sorted(json.loads(areas or "[]")))  # null beside /memory: an older avmfs
    if limits and db.execute(_THERE, (areas,)).get < len(limits):
        raise Denied("the paths of this API key were given up when the clock was ahead of its end: make a new key")
    return Principal(agent, key=Key(id_, limits, tuple(sorted(json.loads(actions))), (paths.MEMORY,) in tops))


def require_valid(db: apsw.Connection, who: Principal, now: int) -> None:
    """Raises Denied for a principal whose key has been revoked or has expired since it was shown."""
    if who.key is not None:
        limited(db, who.name, who.key.id, now)


def rows(db: apsw.Connection, agent: str | None) -> list[KeyRow]:
    """An agent's keys, or all, the newest first."""
    found = db.execute(
        f"select {_COLUMNS} from api_key where ?1 is null or agent = ?1 order by made desc, id", (agent,)
    )
    return [
        KeyRow(id_, agent, label, tuple(json.loads(paths)), tuple(json.loads(actions)), made, maker, expires, revoked)
        for id_, agent, label, paths, actions, made, maker, expires, revoked in found
    ]


def live_areas(db: apsw.Connection, now: int) -> dict[str, set[int]]:
    """By agent: areas that its keys name which open something."""
    live: dict[str, set[int]] = {}
    for agent, areas in db.execute(
        "select agent, areas from api_key where areas is not null and revoked is null"
        " and (expires is null or expires > ?)",
        (now,),
    ):
        live.setdefault(agent, set()).update(json.loads(areas))
    return live


def idle_areas(db: apsw.Connection, now: int) -> set[int]:
    """Areas that no key names which opens anything; ``now`` 0: whose keys were all revoked."""
    return {number for (number,) in db.execute("select id from area")}.difference(*live_areas(db, now).values())


def forget_areas(db: apsw.Connection, areas: set[int]) -> None:
    """The caller reads anew what is known of them."""
    db.execute("delete from area where id in (select value from json_each(?))", (json.dumps(sorted(areas)),))


def next_area(db: apsw.Connection) -> int:
    """A number that no area has ever had: rows of the log keep the scope that they were written with, so a number that
    came again would show a key what was done elsewhere. Keys are never removed, and so remember."""
    highest: int = db.execute(
        "select max(coalesce((select max(id) from area), 0),"
        " coalesce((select max(value) from api_key, json_each(api_key.areas)), 0))"
    ).get
    return highest + 1


def parse_path(path: bytes) -> tuple[bytes, ...]:
    """``/memory/a``, or ``/memory/a/*``, which says the same: that directory or file with all below it. Matched name
    by name, so never ``/memory/ab``. Raises Invalid."""
    text = paths.text(path)
    if not path.startswith(b"/"):
        raise Invalid(f"an API key's path begins with /, not {text!r}")
    parts = paths.split(path.removesuffix(b"/*") if path != b"/*" else b"/")
    if any(b"*" in part or b"?" in part for part in parts):
        raise Invalid(f"an API key's path may have a * at its end alone: {text!r}")
    return parts


def _day(at: int) -> str:
    return datetime.fromtimestamp(at / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")
