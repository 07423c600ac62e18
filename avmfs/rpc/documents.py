"""Methods of the door about what is known of files: listings, tags, links, versions, changes and waiting for the next
one, the state of the index.

Owns the plain values that these become; the views of the same things own their texts. Called through the registry.
Nothing here decides who may see what: the store's reader does.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from datetime import datetime
from typing import Any

from avmfs import paths
from avmfs.agents import mail, waiting
from avmfs.agents.changes import Touched
from avmfs.agents.told import told
from avmfs.errors import Invalid, NotFound, NotSupported
from avmfs.memory import Memory
from avmfs.node import Entry, Version
from avmfs.rpc.methods import Page, method
from avmfs.store.commands.documents import check_tag, check_tags
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows.events import matches, place_of
from avmfs.store.schema.tables import ROOT
from avmfs.views.difference import unified
from avmfs.views.documents import DEFAULT_LINK, LINK_TYPE
from avmfs.views.history import between
from avmfs.views.listing import changed, parse_since
from avmfs.views.shape import heading

WAIT_S = 60.0  # the longest that one call of ``watch`` waits
POLL_S = 0.5  # between two looks where nobody says when something has changed
LARGEST = 10**15  # of a number that a query is asked for: SQLite's integers end at 2**63
TOLD = 1000  # paths that one answer of ``watch`` names; more count as "anything"
_STATUS = {"A": "added", "M": "modified", "D": "removed", "R": "renamed"}


@method
def listing(
    memory: Memory,
    path: str = "/memory",
    limit: Page = 100,
    offset: int = 0,
    q: str | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    """What a directory holds, or with ``q`` or ``tag`` the files below it that have them. {"entries", "total"}; an
    entry is {"path", "kind", "handle", "size", "modified", "line"} with the first line of a text."""
    if not 0 <= offset <= LARGEST:
        raise Invalid(f"offset {offset}: expected 0 or more")
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        found, total = reader.listing(
            node.id, limit=limit, offset=offset, query=q, tag=None if tag is None else check_tag(tag)
        )
        return {"entries": [_entry(entry, line) for entry, line in found], "total": total}


@method
def links(memory: Memory, path: str) -> dict[str, Any]:
    """Links from a file and to it. {"path", "links": [{"direction": "out" or "in", "path", "type"}]}."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        found = reader.links(reader.document(node).id)
        return {
            "path": paths.text(reader.path(node.id)),
            "links": [
                {"direction": "out" if link.outgoing else "in", "path": paths.text(link.path), "type": link.type}
                for link in found
            ],
        }


@method
def history(
    memory: Memory, path: str, older: int | None = None, newer: int | None = None, limit: Page = 50
) -> dict[str, Any]:
    """The versions of a file, newest first. {"path", "versions": [{"version", "at", "type", "author", "route",
    "size"}], "total", "diff"}: the type is "create" or "write"; the unified diff from version ``older`` to ``newer``
    where either is given."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        document = reader.document(node)
        versions = reader.versions(document.id)
        texts = None
        if older is not None or newer is not None:
            after = document.head if newer is None else newer
            if not (0 <= (older or 0) <= LARGEST and 0 <= after <= LARGEST):
                raise Invalid("a version is 0 (nothing) or more", path)
            try:
                texts = between(reader, document.id, older, after)
            except Invalid as e:  # as ``version`` has it
                raise NotFound(e.reason, path) from None
        where, above = paths.text(reader.path(node.id)), heading(reader, node)
    return {
        "path": where,
        "versions": [
            told(each, "at type author size", version=each.number, route=each.route or None)
            for each in versions[:limit]
        ],
        "total": len(versions),
        "diff": None if texts is None else above + unified(*texts),  # which may take long, with no snapshot open
    }


@method
def recent(
    memory: Memory,
    path: str = "/memory",
    minutes: float | None = None,
    since: str | None = None,
    limit: Page = 50,
    pattern: str | None = None,
) -> dict[str, Any]:
    """Files changed below a directory, newest first. {"changes": [{"path", "status", "was", "handle", "at", "author"}],
    "more", "seq"}; ``since`` is an ISO 8601 time or a seq. "status" is against what there was before the oldest change
    that had to be looked at for so many files, which is ``since`` at the earliest: with a small ``limit`` a file made
    after that may be "modified". Of the newest ``limit`` those that a subscription with this
    ``pattern`` would tell of."""
    after, earliest = parse_since(memory, since)
    if minutes is not None:
        if not 0 <= minutes <= 1e8:
            raise Invalid(f"minutes {minutes}: expected 0 to 100000000")
        earliest = max(earliest, memory.now() - int(minutes * 60e9))
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        found, more = changed(reader, node.id, after, max(0, earliest), limit)
        told = [_change(reader, each) for each in found]
        if pattern is not None:
            place = place_of(pattern, memory.who.name)
            told = [one for one in told if any(one[of] and matches(place, one[of]) for of in ("path", "was"))]
        return {"changes": told, "more": more, "seq": reader.newest_seq()}


@method
def watch(memory: Memory, since: int | None = None, unread: int | None = None, wait: float = 25.0) -> dict[str, Any]:
    """Wait for the next change that this agent may see, or for mail, at most ``wait`` seconds.

    {"seq", "unread", "paths", "all"}: give ``seq`` and ``unread`` back with the next call. The first call (without
    them) answers at once, as does one where ``since`` is above the newest: that change is lost, as by a restore, or
    hidden by now. ``paths`` have changed since, under old and new names; ``all``: more than can be named, also then.
    """
    if not 0 <= wait <= WAIT_S:
        raise Invalid(f"wait {wait}: expected 0 to {WAIT_S:g} seconds")
    if since is not None and not 0 <= since <= LARGEST:
        raise Invalid(f"since {since}: expected the seq of an answer before")
    deadline = time.monotonic() + wait
    found: dict[str, Any] | None = None

    def look() -> dict[str, Any] | None:
        now = _unread(memory)
        with memory.reading() as reader:
            seq = reader.newest_seq()
            if since is None or unread is None or seq != since or now != unread or time.monotonic() >= deadline:
                rows = [] if since is None else reader.changes(ROOT, after_seq=since, limit=TOLD)
                names = {name for row in rows for name in (row.path, row.other) if name is not None}
                more = len(rows) == TOLD or seq < (since or 0)
                return {"seq": seq, "unread": now, "paths": sorted(map(paths.text, names)), "all": more}
        return None

    def ready() -> bool:
        nonlocal found
        found = look()
        return found is not None

    with contextlib.suppress(NotSupported):  # no daemon: nobody wakes us
        waiting.until(memory.store, ready, wait, mail=False)
    while found is None:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        found = look()
    return found


def _unread(memory: Memory) -> int:
    """A number that is another one whenever something else is unread."""
    if not memory.who.may("inbox"):
        return 0
    with memory.reading() as reader:
        numbers = reader.mail.unread()
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=6).digest()) if numbers else 0


def _entry(entry: Entry, line: str) -> dict[str, Any]:
    return {
        "path": paths.text(entry.path),
        "kind": entry.node.kind.name.lower(),
        "handle": None if entry.handle is None else f"@{entry.handle}",
        "size": entry.node.size,
        "modified": mail.iso(entry.node.mtime),
        "line": line,
    }


def _change(reader: Reader, touched: Touched) -> dict[str, Any]:
    status, handle = _STATUS[touched.status], None
    if touched.status != "D":
        try:
            node = reader.node(touched.last.node)
            handle = None if node.document is None else f"@{reader.document(node).handle}"
        except NotFound:  # its ttl has passed
            status = "removed"
    return {
        "path": paths.text(touched.path),
        "status": status,
        "handle": handle,
        "was": None if touched.was is None else paths.text(touched.was),
        "at": mail.iso(touched.last.at),
        "author": touched.last.agent,
    }


PIECE = 8 * 1024 * 1024


@method
def tag(
    memory: Memory, path: str, add: list[str] | None = None, remove: list[str] | None = None, clear: bool = False
) -> dict[str, Any]:
    """Change the tags of a file, or ask for them: ``clear`` takes all away before ``add``. {"path", "tags"}."""
    check_tags(max(len(add or ()), len(remove or ())))
    wanted, unwanted = (sorted({check_tag(each) for each in given or ()}) for given in (add, remove))
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        reader.document(node)
    if wanted or unwanted or clear:
        memory.submit("set_tags", node=node.id, add=wanted, remove=unwanted, replace=clear)
    with memory.reading() as reader:
        node = reader.node(node.id)
        return {"path": paths.text(reader.path(node.id)), "tags": reader.tags(reader.document(node).id)}


@method
def tags(memory: Memory, path: str = "/") -> dict[str, Any]:
    """How many files below a directory have each tag. {"tags": {name: count}}, the most frequent first."""
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        return {"tags": dict(reader.tag_counts(node.id))}


@method
def link(memory: Memory, path: str, target: str, type: str | None = None, remove: bool = False) -> dict[str, Any]:
    """Link a file to another, or take the link away (of every type when none is named). {"path", "target", "type"}."""
    if type is not None and not LINK_TYPE.fullmatch(type):
        raise Invalid(f"link type {type!r}: expected a word of letters, digits, '.', '_' or '-'")
    with memory.reading() as reader:
        node, other = memory.resolve(reader, path), memory.resolve(reader, target)
        names = {"path": paths.text(reader.path(node.id)), "target": paths.text(reader.path(other.id))}
    if remove:
        memory.submit("remove_link", node=node.id, target=other.id, type=type)
        return {**names, "type": type}
    memory.submit("add_link", node=node.id, target=other.id, type=type or DEFAULT_LINK)
    return {**names, "type": type or DEFAULT_LINK}


@method
def version(
    memory: Memory, path: str, number: int | None = None, at: str | None = None, offset: int = 0
) -> dict[str, Any]:
    """A file as it was: version ``number``, or the one that stood at the ISO 8601 time ``at``. {"path", "version",
    "at", "author", "size", "data", "more", "untrusted"}: bytes from ``offset``, at most 8 MiB. Raises NotFound for a
    version that is not kept, or a time before the first."""
    if (number is None) == (at is None):
        raise Invalid("name a version, or a time: one of the two")
    if not 0 <= offset <= LARGEST:
        raise Invalid(f"offset {offset}: expected 0 or more")
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        versions = reader.versions(reader.document(node).id)
        found = _standing(memory, versions, number, at)
        if found is None:
            raise NotFound("no such version is kept", path)
        data = reader.version_bytes(found.document, found.number)
        return {
            "path": paths.text(reader.path(node.id)),
            **told(found, "at author size", version=found.number),
            "data": data[offset : offset + PIECE],
            "more": len(data) > offset + PIECE,
            "untrusted": reader.visible.untrusted(reader.trusted_as(node)),
        }


@method
def index_status(memory: Memory, path: str = "/") -> dict[str, Any]:
    """How far the index is. {"files", "waiting": {"words", "vectors"}, "model", "dimension", "state", "reason"}: the
    counts are of what the asker may see below ``path``; ``state`` is of the model, null without a daemon."""
    with memory.reading() as reader:
        node = memory.directory(reader, path).id
        past = None if memory.then is None else reader.counts(node)
    counts = past or memory.store.cached_counts(memory.who, node)
    host = memory.around.host
    known = host("status", {})["embedding"] if host is not None else {}
    stored = memory.store.vector_model()
    return {
        "files": counts.files,
        "waiting": {"words": counts.waiting_lexical, "vectors": counts.waiting_semantic},
        "model": known.get("model") or (stored.model if stored is not None else None),
        "dimension": known.get("dimension") or (stored.dimension if stored is not None else None),
        "state": known.get("state"),
        "reason": known.get("reason"),
    }


def _standing(memory: Memory, versions: list[Version], number: int | None, at: str | None) -> Version | None:
    if number is not None:
        return next((each for each in versions if each.number == number), None)
    assert at is not None
    try:
        when = datetime.fromisoformat(at)
        moment = int((when if when.tzinfo else when.replace(tzinfo=memory.zone)).timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        raise Invalid(f"time {at[:80]!r}: expected ISO 8601, such as 2026-03-07T10:30") from None
    return next((each for each in versions if each.at // 1000 <= moment // 1000), None)  # times are told in us
