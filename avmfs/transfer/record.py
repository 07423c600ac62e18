"""What goes out of a store and comes into it: one type for every format, and its plain form.

Owns the shape of a record, how times are written, and what a refusal is. Imports no store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from avmfs.errors import Invalid

IMPORTED: Final = "imported"
"""The key of a document's metadata that says where it came from: {"author", "source", "digest", "said", "here",
"run"}."""

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9})\d*)?\s*(Z|z|[+-]\d\d:?\d\d)?")
_DIGITS = re.compile(r"(?:19|20)\d{6}(?:\d{4}(?:\d\d)?)?")


class Door(Protocol):
    """Where methods can be called (avmfs.rpc.client)."""

    @property
    def agent(self) -> str: ...

    def call(self, method: str, /, **arguments: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Record:
    """A file (``data``), symlink (``target``) or directory (neither). ``path`` is relative to what is exported, and so
    is a link's when it does not begin with a slash. Times in ns since the epoch. ``sources``: how the text came in, if
    it is not its author's own words (avmfs.trust). ``source`` names what a foreign record was in its own place, the
    same whenever it is read there; ``folder`` is that place, where another may have the same names; ``place`` says to
    a person where the record stands."""

    path: str
    data: bytes | None = None
    target: str | None = None
    mode: int | None = None
    author: str | None = None
    created: int | None = None
    updated: int | None = None
    tags: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    importance: float | None = None
    expires: int | None = None
    shared: tuple[str, ...] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    released: bool = False
    source: str | None = None
    folder: Path | None = None
    place: str = ""

    @property
    def kind(self) -> str:
        return "file" if self.data is not None else "symlink" if self.target is not None else "directory"

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.data or b"").digest()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is not taken: where it stands, and why."""

    where: str
    reason: str


_APART: Final = ("path", "data", "source", "folder", "place")
_PLAIN: Final = tuple(each.name for each in fields(Record) if each.name not in _APART)
_TIMES: Final = ("created", "updated", "expires")
_STATED: Final = ("importance", "expires", "shared")  # where they are not None


def plain(record: Record) -> dict[str, Any]:
    """All that is said of a record, as JSON has it: what is not said is not there."""
    said: dict[str, Any] = {}
    for name in _PLAIN:
        value = getattr(record, name)
        if value is None or value is False or (value in ((), {}) and name != "shared"):
            continue
        if name in _TIMES:
            value = moment(value)
        elif name == "mode":
            value = f"{value:04o}"
        elif name == "links":
            value = [list(each) for each in value]
        said[name] = list(value) if isinstance(value, tuple) else value
    return said


def of_plain(path: str, data: bytes | None, said: Mapping[str, Any], place: str) -> Record:
    """Inverse of ``plain``; other keys are left alone. Raises Invalid, naming the place and the key."""
    made: dict[str, Any] = {}
    for name in _PLAIN:
        value = said.get(name)
        if value is None:
            continue
        try:
            made[name] = _value(name, value)
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Invalid(f"{place}: {name}: {str(value)[:80]!r} is none") from None
    if data is not None:
        made.pop("target", None)
    return Record(path, data, place=place, **made)


def _value(name: str, value: Any) -> Any:
    if name in _TIMES:
        return at if (at := time_or_none(value)) is not None else _none()
    if name == "mode":
        return int(value, 8) & 0o7777
    if name == "importance":
        return float(value)
    if name in ("tags", "shared", "sources"):
        return tuple(str(each) for each in value) if isinstance(value, list | tuple) else _none()
    if name == "links":
        return tuple((str(path), str(type)) for path, type in value)
    if name == "released":
        return value if isinstance(value, bool) else _none()
    if name == "meta":
        return dict(value.items())
    return value if isinstance(value, str) else _none()


def _none() -> Any:
    raise ValueError


def moment(at: int) -> str:
    """ISO 8601, UTC, to the nanosecond where there is a part of a second."""
    whole, part = divmod(at, 10**9)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text + (f".{part:09d}".rstrip("0") if part else "") + "Z"


def nanoseconds(said: Any) -> int:
    """A time as others write it: ISO 8601 (UTC where it names no zone), a date, digits that read as one, with a time or
    without, (milli)seconds since the epoch. Raises ValueError."""
    if isinstance(said, datetime):
        return round((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() * 1e6) * 1000
    if isinstance(said, bool) or said is None:
        raise ValueError(f"{said!r} is no time")
    text = str(said).strip()
    if _DIGITS.fullmatch(text):
        with suppress(ValueError):
            at = datetime.strptime(text, "%Y%m%d%H%M%S"[: len(text) - 2])
            return int(at.replace(tzinfo=UTC).timestamp()) * 10**9
    if isinstance(said, int | float):
        return round((said if abs(said) < 10**11 else said / 1000) * 1e6) * 1000
    found = _TIME.fullmatch(text)
    if found is None:
        return int(datetime.fromisoformat(text[:10]).replace(tzinfo=UTC).timestamp()) * 10**9
    zone = (found[4] or "Z").upper().replace("Z", "+00:00")
    at = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
    return int(at.timestamp()) * 10**9 + int((found[3] or "").ljust(9, "0"))


def time_or_none(said: Any) -> int | None:
    """Like ``nanoseconds``; None for what is no time: a foreign record without one is still a record."""
    try:
        at = nanoseconds(said)
    except (ValueError, OverflowError, OSError):
        return None
    return at if abs(at) < 2**63 else None


def digest_of_said(record: Record, owner: str) -> str:
    """Of all that a foreign record says beside its bytes, links and times, as a store has it that took it over."""
    shared = None if record.shared is None else sorted({*record.shared} - {owner})
    meta = {name: value for name, value in record.meta.items() if name != IMPORTED and value is not None}
    said = [sorted(record.tags), record.importance, record.expires, shared, meta]
    with suppress(RecursionError):  # no store takes it
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
    return ""


def _laid(record: Record, over: Record) -> Record:
    """What a store has once it has taken a record over another one: what that alone says stays."""
    said = {name: value for name in _STATED if (value := getattr(record, name)) is not None}
    return replace(over, tags=record.tags or over.tags, meta={**over.meta, **record.meta}, **said)


def authored(record: Record, asker: str, run: str, over: Record | None = None) -> dict[str, Any]:
    """The metadata under which ``asker`` keeps a record: with its author, where that is another, its source, what that
    said and what the store then has where it is taken ``over`` another one, and which import it was."""
    before = record.meta.get(IMPORTED)
    said: dict[str, Any] = {**before} if isinstance(before, dict) else {}
    if record.author and record.author != asker:
        said["author"] = record.author
    if record.source is not None:
        said |= {"source": record.source, "run": run}
        said |= {"digest": record.digest.hex(), "said": digest_of_said(record, asker)}
        said["here"] = digest_of_said(_laid(record, over or record), asker)
    kept = {name: value for name, value in record.meta.items() if name != IMPORTED}
    return {**kept, **({IMPORTED: said} if said else {})}


def known(record: Record) -> Record:
    """Inverse of ``authored``: the author that the metadata tells of stands in its place."""
    said = record.meta.get(IMPORTED)
    if not isinstance(said, dict) or "author" not in said:
        return record
    rest = {name: value for name, value in said.items() if name != "author"}
    meta = {name: value for name, value in record.meta.items() if name != IMPORTED}
    return replace(record, author=str(said["author"]), meta={**meta, **({IMPORTED: rest} if rest else {})})
