"""The path grammar: names, view suffixes, queries, handles.

Owns every rule about ``:``, ``?``, ``%`` and ``@``; nobody else looks at them.
Called by the vfs to resolve names and by the doors to parse what users type. Knows nothing of
the store: whether a name exists is not its question. Which names are views it reads from the sources of ``views``.

Grammar of a view name::

    name  := base ":" view [ "?" pair *( "&" pair ) | ":" key "=" literal ]
    pair  := key "=" value            value: well-formed %XX is decoded, any other % and + are themselves

The leftmost suffix that reads as a view wins, so a query may contain colons.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from functools import lru_cache

from avmfs.errors import Invalid, NameTooLong
from avmfs.registration import declarations
from avmfs.text.escapes import escaped

NAME_MAX, PATH_MAX, DEPTH_MAX = 255, 4096, 128  # bytes of a name and of a path, names of a path that is made
MEMORY = b"memory"
PRIVATE = b"private"
SHARED = b"shared"
TELL = b"tell"
INDEX = b"index"
TRASH = b"trash"
ARCHIVE = b"archive"
EVERYONE = "@all"

PLANNED_VIEWS = frozenset(("ask",))
"""Suffixes of later releases: a name that could be created today must not become unreachable tomorrow."""
CORE_VIEWS = PLANNED_VIEWS.union(*(strings[:1] for _, strings in declarations("avmfs.views", "view")))
"""All views, as the text of their modules says: the writer refuses their names and must not import what they are made
of."""

_SUFFIX = re.compile(rb":([a-z][a-z0-9-]*)(?=$|[?:])")
_LITERAL = re.compile(rb":([a-z_]+)=(.*)\Z", re.DOTALL)
_HANDLE = re.compile(rb"@([a-z2-7]{4,})\Z")
SNAPSHOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a snapshot may be called: its name is part of a path."""
_MOMENT = re.compile(
    rb"@(yesterday|-[0-9][^/]{0,40}|seq\.[0-9]{1,18}|snap\.[A-Za-z0-9][A-Za-z0-9._-]{0,63}|[0-9]{4}-[0-9]{2}-[0-9]{2}[^/]{0,40})\Z"
)
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_MIRROR = re.compile(rb"\(([2-9]|[1-9][0-9]+)\)")


@dataclass(frozen=True, slots=True)
class ViewName:
    """A name that reads as a view. ``base`` is the file it is of, empty for the directory's own view.
    ``query`` is the raw text after ``?``; ``literal`` a (key, value) taken as it stands."""

    base: bytes
    view: str
    query: bytes | None = None
    literal: tuple[str, str] | None = None

    def parameters(self) -> dict[str, str]:
        """The decoded query. Raises Invalid for a pair without ``=`` and for a key given twice."""
        if self.literal is not None:
            return {self.literal[0]: self.literal[1]}
        return parse_query(self.query or b"")


def parse_view(name: bytes, plugins: frozenset[str] = frozenset()) -> ViewName | None:
    """The view that ``name`` addresses, or None when it is an ordinary name."""
    for found in _SUFFIX.finditer(name):
        view = found[1].decode()
        if view not in CORE_VIEWS and view not in plugins:
            continue
        base, rest = name[: found.start()], name[found.end() :]
        if not rest:
            return ViewName(base, view)
        if rest.startswith(b"?"):
            return ViewName(base, view, query=rest[1:])
        if literal := _LITERAL.match(rest):
            return ViewName(base, view, literal=(literal[1].decode(), text(literal[2])))
    return None


def parse_mailbox(name: bytes) -> tuple[str, dict[str, str]]:
    """``alice?priority=urgent`` or its twin ``alice:priority=urgent`` -> (recipient, parameters)."""
    recipient, mark, query = name.partition(b"?")
    if mark:
        return text(recipient), parse_query(query)
    recipient, mark, pair = name.partition(b":")
    if mark:
        key, equals, value = pair.partition(b"=")
        if not equals:
            raise Invalid(f"mailbox parameter {text(pair)!r}: expected KEY=VALUE")
        return text(recipient), {text(key): text(value)}
    return text(name), {}


def parse_query(query: bytes) -> dict[str, str]:
    """``k=v&k=v`` with well-formed ``%XX`` decoded; ``+`` is itself. Raises Invalid, naming the pair."""
    parameters: dict[str, str] = {}
    for pair in query.split(b"&") if query else ():
        key, equals, value = pair.partition(b"=")
        name = text(key)
        if not equals or not key:
            raise Invalid(f"query {text(pair)!r}: expected KEY=VALUE")
        if name in parameters:
            raise Invalid(f"query parameter {name!r}: given twice")
        parameters[name] = text(_ESCAPE.sub(lambda hit: bytes([int(hit[1], 16)]), value))
    return parameters


def parse_handle(name: bytes) -> str | None:
    """``@k7f2`` -> ``k7f2``, or None when it is no short handle."""
    found = _HANDLE.match(name)
    return found[1].decode() if found else None


def split_moment(path: bytes) -> tuple[str | None, bytes]:
    """``/@yesterday/memory/x`` -> ``("yesterday", "/memory/x")``; (None, path) for one of today. An instant is
    ``@yesterday``, ``@-2h``, ``@2026-03-01T12:00``, ``@seq.7``, ``@snap.NAME``."""
    first, slash, rest = path.lstrip(b"/").partition(b"/")
    if not first.startswith(b"@"):
        return None, path
    view = parse_view(first)
    found = _MOMENT.match(first if view is None else view.base)
    if found is None:
        return None, path
    return found[1].decode("ascii", "replace"), b"/" + (
        rest if view is None else first[len(view.base) :] + slash + rest
    )


def check_name(name: bytes) -> bytes:
    """A name that may be created. Raises Invalid for a core view's, NameTooLong past 255 bytes."""
    if len(name) > NAME_MAX:
        raise NameTooLong(f"a name may have {NAME_MAX} bytes, this has {len(name)}")
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise Invalid(f"{text(name)!r} cannot be a name")
    if (view := parse_view(name)) is not None:
        raise Invalid(f"{text(name)!r} reads as the view :{view.view}; no file can have that name")
    return name


def check_path(parts: tuple[bytes, ...]) -> None:
    """A place where something may be made. Raises NameTooLong."""
    check_depth(len(parts))
    check_length(length(parts))


def check_depth(names: int) -> None:
    if names > DEPTH_MAX:
        raise NameTooLong(f"a path may have {DEPTH_MAX} names, this has {names}")


def check_length(size: int) -> None:
    if size > PATH_MAX:
        raise NameTooLong(f"a path may have {PATH_MAX} bytes, this has {size}")


def length(parts: tuple[bytes, ...]) -> int:
    """Of the path, in bytes."""
    return sum(map(len, parts)) + len(parts)


def split(path: bytes) -> tuple[bytes, ...]:
    """Components of an absolute path; ``//`` and ``.`` vanish, ``..`` is resolved lexically at the root.

    A view's query may contain slashes when it comes from a door that is not the kernel, so the
    first component that reads as a view takes the rest of the path.
    """
    parts: list[bytes] = []
    pieces = path.split(b"/")
    for index, piece in enumerate(pieces):
        view = parse_view(piece)
        if view is not None and (view.query is not None or view.literal is not None):
            parts.append(b"/".join(pieces[index:]))
            break
        if piece == b"..":
            parts[-1:] = []
        elif piece not in (b"", b"."):
            parts.append(piece)
    return tuple(parts)


def view_at(path: str) -> tuple[tuple[bytes, ...], ViewName | None]:
    """A path's components, and the view that the last one addresses, as a door takes both."""
    parts = split(raw(path))
    return parts, parse_view(parts[-1]) if parts else None


def join(parts: tuple[bytes, ...]) -> bytes:
    return b"/" + b"/".join(parts)


def text(value: bytes) -> str:
    """Bytes of a name or query as str; bytes that are no UTF-8 survive as surrogate escapes."""
    return os.fsdecode(value)


def raw(value: str) -> bytes:
    """Inverse of text()."""
    return os.fsencode(value)


def printable(value: bytes) -> str:
    """A path for a person or a line-based view: one line, and nothing in it that redraws, reorders or hides."""
    return escaped(text(value))


def spelled_out(parts: tuple[bytes, ...], agent: str) -> tuple[bytes, ...]:
    """The place that an agent means by one below /shared or /private."""
    if parts[:1] == (SHARED,):
        return (MEMORY, *parts)
    return (MEMORY, PRIVATE, raw(agent), *parts[1:]) if parts[:1] == (PRIVATE,) else parts


def is_live(parts: tuple[bytes, ...]) -> bool:
    """Return whether this is a place apart from /memory, /trash, /archive and /index: it shows what is outside the
    store."""
    return bool(parts) and parts[0] not in (MEMORY, TRASH, ARCHIVE, INDEX)


@lru_cache(maxsize=1024)
def _steps(pattern: str) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(_step(each), re.DOTALL) for each in pattern[1:].split("/"))


def _step(step: str) -> bytes:
    pieces = re.split(r"(\{[A-Za-z_][A-Za-z0-9_]*\}|\*)", step)
    return b"".join(
        b"(.*)" if each == "*" else b"(?P<%s>.+?)" % raw(each[1:-1]) if each[:1] == "{" else re.escape(raw(each))
        for each in pieces
    )


def parameters(pattern: str, parts: tuple[bytes, ...]) -> dict[str, str] | None:
    """What a provider's pattern finds in a path: ``/live/{market}/{symbol}``. A name in braces is in one component and
    never empty; a ``*`` that ends the pattern takes what is left of the path, under the key ``*``. None: no match."""
    steps, rest = _steps(pattern), pattern.endswith("*")
    if len(parts) < len(steps) or (len(parts) > len(steps) and not rest):
        return None
    found: dict[str, str] = {}
    for number, step in enumerate(steps):
        part = b"/".join(parts[number:]) if rest and number == len(steps) - 1 else parts[number]
        if (hit := step.fullmatch(part)) is None:
            return None
        found.update({name: text(value) for name, value in hit.groupdict().items()})
        if rest and number == len(steps) - 1:
            found["*"] = text(hit[hit.re.groups])
    return found


def matches(pattern: str, parts: tuple[bytes, ...]) -> bool:
    return parameters(pattern, parts) is not None


def fixed_part(pattern: str) -> tuple[bytes, ...]:
    """The components of a provider's pattern before the first that has a parameter."""
    steps = [raw(each) for each in pattern[1:].split("/")]
    return tuple(itertools.takewhile(lambda step: not set(step) & set(b"{*"), steps))


def leads_to(pattern: str, parts: tuple[bytes, ...]) -> bool:
    """Return whether paths that match the pattern may lie below this directory."""
    steps = _steps(pattern)
    return len(parts) < len(steps) and all(step.fullmatch(part) for step, part in zip(steps, parts, strict=False))


def is_directly_above(pattern: str, parts: tuple[bytes, ...]) -> bool:
    """Return whether names in this directory may match the pattern."""
    return (len(parts) + 1 == len(_steps(pattern)) and leads_to(pattern, parts)) or matches(pattern, (*parts, b"x"))


def aside(parts: tuple[bytes, ...]) -> str:
    """``trash``, ``archive`` or ``index`` for what stands there, which no search and no list of the rest has; else
    empty."""
    return text(parts[0]) if parts[:1] in ((TRASH,), (ARCHIVE,), (INDEX,)) else ""


def searched(under: tuple[bytes, ...], archive: bool = False) -> str:
    """What a search below ``under`` looks through, for the index of an asker: the ``archive`` from there, or where it
    is asked for, and an ``index`` of code only from there; else empty."""
    return "index" if under[:1] == (INDEX,) else "archive" * (archive or under[:1] == (ARCHIVE,))


def origin(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Where it stands, or stood before it came to the trash or the archive, which mirror /memory: see ``mirror``."""
    if parts[:1] not in ((TRASH,), (ARCHIVE,)):
        return parts
    at = len(space(parts))
    rest = parts[at + 1 :] if parts[at:] and _MIRROR.fullmatch(parts[at]) else parts[at:]
    return (MEMORY, *parts[1:at], *rest)


def mirror(place: tuple[bytes, ...], top: bytes, number: int = 1) -> tuple[bytes, ...]:
    """Where what is called ``place`` stands in the trash or the archive, ``top``. The first mirror of a space is there
    itself, others are directories ``(2)``, ``(3)`` at the space's top, so that each thing keeps its name, and with it
    its rights. What is called as such a directory has no place in the first one: ``origin`` would say another."""
    at = len(space(place))
    return (top, *place[1:at], *([b"(%d)" % number] if number > 1 else []), *place[at:])


def space(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The top of the agent's space that holds a path, or of all that is no agent's."""
    return parts[: 3 if parts[1:2] == (PRIVATE,) else 1]


def agent_space(parts: tuple[bytes, ...]) -> str | None:
    """The agent whose private space holds this path, or None for shared space."""
    parts = origin(parts)
    if len(parts) >= 3 and parts[0] in (MEMORY, INDEX) and parts[1] == PRIVATE:
        return text(parts[2])
    return None
