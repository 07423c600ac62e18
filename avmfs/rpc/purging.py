"""Methods of the door about forgetting for good: what it would be, and doing it. Called through the registry.

Owns the plan: what the asker names, as far as it may change it. Nothing else decides what is purged; whoever asks for
it says which plan was agreed to, and gets Stale where there is another one by now.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from avmfs import calls, paths
from avmfs.agents import backups
from avmfs.agents.mail import iso
from avmfs.errors import Busy, Denied, Invalid, NotFound, Stale
from avmfs.localtime import nanoseconds
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.rpc.aside import LOOKED_AT
from avmfs.rpc.methods import method
from avmfs.rpc.transferring import below
from avmfs.store.commands.documents import check_tag
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.past import PastReader
from avmfs.store.schema.tables import ROOT
from avmfs.text import segment

PLANNED = 1000  # paths that one answer names
AT_ONCE = 100  # in one transaction, for which others wait
_TOPS = ("/memory", "/archive", "/trash")


class _Part(NamedTuple):
    where: tuple[bytes, ...]
    node: Node | None  # None: it has ended
    document: int | None
    head: int
    created: int


@method
def purge(
    memory: Memory,
    path: str | None = None,
    tag: str | None = None,
    author: str | None = None,
    before: str | None = None,
    agreed: str | None = None,
) -> dict[str, Any]:
    """What is to be forgotten for good: all that is below ``path``, or was when it was removed; with a tag; made by an
    author; not changed since ``before`` (ISO 8601). {"files": [{"path", "size", "state": "there" or "removed"}] the
    first 1000, "count", "bytes", "refused": how many of them the asker may not change, "snapshots": which had some of
    it, "backed_up": when the last backup was made, which stays as it is (None: none is known), "agreed", "purged"}.
    Given "agreed" back, it is done, unless it would be something else by now (Stale), and as far as nothing of it is
    changed or moved meanwhile (Stale)."""
    if path is None and tag is None and author is None and before is None:
        raise Invalid("purge takes a path, a tag, an author or a time")
    store = memory.around.store
    while store.anything_expired() and store.submit(OPERATOR, "reap_expired")["reaped"]:
        calls.go_on()  # nobody sees it any more, and it is there: so it has ended, and is in the plan
    plan, refused = _planned(memory, path, tag, author, before)
    files = [each for each in plan if each.node is None or each.node.kind is not Kind.DIRECTORY]
    said = [(0 if each.node is None else each.node.id, each.document, each.head) for each in plan]
    digest = hashlib.sha256(repr(sorted(said, key=str)).encode()).hexdigest()
    with memory.reading() as reader:
        instants = reader.snapshots()
    # Not inside that reading: the log of the store grows for as long as one lasts.
    snapshots = [each.name for each in instants if _had(memory, each.then, files)]
    found = {
        "files": [
            {
                "path": paths.text(paths.join(each.where)),
                "size": 0 if each.node is None else each.node.size,
                "state": "removed" if each.node is None else "there",
            }
            for each in files[:PLANNED]
        ],
        "count": len(files),
        "bytes": sum(each.node.size for each in files if each.node is not None),
        "refused": refused,
        "snapshots": snapshots,
        "backed_up": None if (backup := backups.last(store.path)) is None else iso(backup["at"]),
        "agreed": digest,
        "purged": 0,
    }
    if agreed is None:
        return found
    if agreed != digest:
        raise Stale("what would be purged is not what it was: look at the plan again", path)
    memory.enroll()
    _forget_questions(memory, plan)
    _carry_out(memory, plan)
    return {**found, "purged": len(files)}


def _carry_out(memory: Memory, plan: list[_Part]) -> None:
    """Raises Stale where a part of it has been changed or moved; what stands before that is done."""
    gone: set[int] = set()  # what became of others, and went with them
    for first in range(0, len(plan), AT_ONCE):
        calls.go_on()
        piece = plan[first : first + AT_ONCE]
        there = [(each.node, paths.join(each.where)) for each in piece if each.node is not None]
        done = memory.submit(
            "purge",
            nodes=[node.id for node, _ in there],
            documents=[each.document for each in piece if each.node is None and each.document not in gone],
            places=[place for _, place in there],
            ctimes=[0 if node.kind is Kind.DIRECTORY else node.ctime for node, _ in there],
        )
        gone.update(done["documents"])


def _had(memory: Memory, then: Moment, files: list[_Part]) -> bool:
    """Return whether some of it was there then; of the whole tree, what has ended counts as such."""
    if then.root == ROOT:
        return any(one.created <= then.at for one in files)
    with memory.at(then).reading() as past:
        assert isinstance(past, PastReader)
        for one in files:
            calls.go_on()
            if one.document is not None:  # after a save by rename, another node carries it
                if past.node_with(one.document) is not None:
                    return True
            elif one.node is not None:
                with contextlib.suppress(NotFound):
                    past.node(one.node.id)
                    return True
    return False


@method
def wipe(memory: Memory) -> dict[str, Any]:
    """{"wiped"}: nothing that was purged is in the store's file any more. False: ask again in a while."""
    if not memory.store.unwiped():  # who waits for other hosts gives them nothing more to follow
        return {"wiped": memory.store.uncut() is None}
    try:
        return {"wiped": bool(memory.submit("wipe")["wiped"])}
    except Busy:
        return {"wiped": False}


def _planned(
    memory: Memory, path: str | None, tag: str | None, author: str | None, before: str | None
) -> tuple[list[_Part], int]:
    """In the order in which it goes: what is in a directory before it. And how many the asker may not change."""
    tag = None if tag is None else check_tag(tag)
    until = None if before is None else nanoseconds(before, "before")
    named = tag is not None or author is not None or until is not None
    where = None if path is None else memory.real_parts(paths.raw(path))
    plan, refused, barred, seen = [], 0, 0, set()
    for place, node in _standing(memory, path, where):
        calls.go_on()
        if node.id in seen:
            continue
        seen.add(node.id)
        document, head, created, its_past = node.document, 0, 0, True
        if document is not None:
            with memory.reading() as reader:
                try:
                    about = reader.document(node)
                    changed = next((each.at for each in reader.versions(document)[:1]), about.created)
                    wanted = tag is None or tag in reader.tags(document)
                    its_past = reader.may_purge_past(document)
                except NotFound:
                    continue
            head, created = about.head, about.created
            if not wanted or author not in (None, about.creator) or (until is not None and changed >= until):
                continue
        elif named or _fixed(place):
            continue
        if its_past and memory.store.cached_writable(memory.who, node.scope):
            plan.append(_Part(place, node, document, head, created))
        else:
            barred += 1
            refused += node.kind is not Kind.DIRECTORY
    with memory.reading() as reader:
        for one in reader.ended():
            place = paths.split(one.path)
            wanted = where is None or where in (place[: len(where)], paths.origin(place)[: len(where)])
            wanted = wanted and (tag is None or tag in one.tags) and author in (None, one.creator)
            if wanted and (until is None or one.at < until):
                plan.append(_Part(place, None, one.document, 0, 0))
    if not plan and path is not None and not named and (barred or not seen):
        raise Denied("not writable for you", path) if barred else NotFound(path=path)
    plan.sort(key=lambda each: (each.node is not None and each.node.kind is Kind.DIRECTORY, -len(each.where)))
    return plan, refused


def _standing(
    memory: Memory, path: str | None, where: tuple[bytes, ...] | None
) -> Iterator[tuple[tuple[bytes, ...], Node]]:
    """What is at the path, and below it, and what in the trash was."""
    with memory.reading() as reader:
        trashed = (
            []
            if where is None
            else [
                (paths.split(reader.path(each.node.id)), each.node)
                for each in reader.removed(LOOKED_AT)
                if paths.split(each.path)[: len(where)] == where
            ]
        )
        tops = []
        for top in _TOPS if path is None else (path,):
            try:
                node = memory.resolve(reader, top, follow=False)
            except NotFound:
                continue
            tops.append((paths.split(reader.path(node.id)), node))
    yield from trashed
    for place, node in tops:
        yield place, node
        if node.kind is Kind.DIRECTORY:
            yield from below(memory, node, place, ())


def _fixed(place: tuple[bytes, ...]) -> bool:
    """A directory that every tree has, or the top of an agent's space."""
    inside = paths.origin(place)
    shared, private = (paths.MEMORY, paths.SHARED), (paths.MEMORY, paths.PRIVATE)
    return len(inside) < 2 or inside in (shared, private) or (len(inside) == 3 and inside[:2] == private)


def _forget_questions(memory: Memory, plan: list[_Part]) -> None:
    """Those that have a word which no other text has."""
    log = memory.around.questions
    if log is None:
        return
    documents = {each.document for each in plan if each.document is not None}

    def about(q: str) -> bool:
        with memory.around.store.reading(OPERATOR) as reader:
            return not all(reader.discovery.has_term(term, documents) for term in segment.query_terms(q))

    log.forget_about(about)
