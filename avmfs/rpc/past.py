"""Methods of the door about the past: snapshots, what differs between two instants, restoring, who wrote which line.

Paths below ``/@TIME`` are the registry's (``methods``); here are the acts that need two instants, or change something
of today by what was. Called through the registry.
"""

from __future__ import annotations

import hashlib
from typing import Any

from avmfs import calls, paths
from avmfs.agents import mail
from avmfs.errors import Exists, Invalid, IsDirectory, NotFound, TooBig
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.rpc.documents import LARGEST
from avmfs.rpc.methods import Page, method
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows.kept_versions import WHOLE_MAX
from avmfs.store.schema.tables import ROOT
from avmfs.trust import OWN
from avmfs.views.history import attributed
from avmfs.views.shape import size

PLANNED = 1000  # paths that one answer names
_PIECE = 4 * 1024 * 1024  # bytes of a file, compared at a time


@method
def snapshot(memory: Memory, name: str, path: str | None = None) -> dict[str, Any]:
    """Give the tree as it is, or what is at a path, a name that keeps it. {"name", "at"}."""
    root = ROOT
    if path is not None:
        with memory.reading() as reader:
            root = memory.resolve(reader, path).id
    made = memory.submit("snapshot", name=name, root=root)
    return {"name": made["name"], "at": mail.iso(made["at"])}


@method
def snapshots(memory: Memory) -> dict[str, Any]:
    """{"snapshots": [{"name", "agent", "at", "path", "gone"}]}: the agent's own and the operators' (agent ""), the
    newest first. ``path``: what each has, None where that is ``gone``, or not for the asker: an agent makes one of what
    it sees alone, and an operator sees all. An API key is told of those alone that have something for it."""
    found = []
    with memory.reading() as reader:
        for each in reader.snapshots():
            path = _top(memory, each.then)
            if path is None and memory.who.key is not None:
                continue
            gone = path is None and bool(each.agent or memory.who.operator)
            found.append(
                {"name": each.name, "agent": each.agent, "at": mail.iso(each.then.at), "path": path, "gone": gone}
            )
    return {"snapshots": found}


def _top(memory: Memory, then: Moment) -> str | None:
    """The path of what an instant has."""
    if then.root == ROOT:
        return "/"
    with memory.at(then).reading() as past:
        try:
            return paths.text(past.path(then.root))
        except NotFound:
            return None


@method
def remove_snapshot(memory: Memory, name: str) -> dict[str, Any]:
    memory.submit("remove_snapshot", name=name)
    return {}


@method
def compare(
    memory: Memory, older: str, newer: str | None = None, path: str = "/memory", limit: Page = PLANNED
) -> dict[str, Any]:
    """What differs below a directory between two instants, each as after the ``@`` of a path; ``newer`` None: now. Of a
    snapshot of a part, below that. {"changes": [{"path", "status": "added", "removed" or "modified"}], "more"}."""
    moments = [memory.moment(each) for each in (older, newer) if each is not None]
    before, after = memory.at(moments[0]), memory if newer is None else memory.at(moments[1])
    found: list[dict[str, Any]] = []
    where = memory.real_parts(paths.raw(path))
    for moment in moments:
        top = _top(memory, moment)
        place = paths.split(paths.raw(top or ""))
        if top is None or where[: len(place)] != place[: len(where)]:
            raise NotFound("no part of the snapshot", path)
        where = max(where, place, key=len)
    with before.reading() as then, after.reading() as now:
        waiting = [(where, _at(then, where), _at(now, where))]
        if waiting[0][1:] == (None, None):
            raise NotFound(path=path)
        while waiting and len(found) <= limit:
            calls.go_on()
            place, old, new = waiting.pop()
            if status := _status(then, now, old, new):
                found.append({"path": paths.text(paths.join(place)), "status": status})
            inside = _children(then, old), _children(now, new)
            names = sorted(inside[0].keys() | inside[1].keys(), reverse=True)
            waiting += [((*place, name), inside[0].get(name), inside[1].get(name)) for name in names]
    return {"changes": found[:limit], "more": len(found) > limit}


@method
def restore(
    memory: Memory, path: str, at: str | None = None, version: int | None = None, dry_run: bool = False
) -> dict[str, Any]:
    """Make a file what it was in a ``version``, or a file or subtree what it was ``at`` an instant (as after the ``@``
    of a path), as a change of now. What came since stays, tags and links that are gone come back to files that have
    something to be told of. {"restored": [{"path", "action": "make", "write", "mode", "tags", "links" or
    "lost"}], "more"}: of the first 1000; "lost": its bytes of then are no longer kept, and it stays as it is.
    ``dry_run``: what would be done. A file that is made is limited as it was. Before anything is done raises Exists
    where something else stands in the way, TooBig where a file has more than 256 MiB, NotFound where the one at
    ``path`` is lost."""
    if (at is None) == (version is None):
        raise Invalid("restore takes a time or a version")
    if version is not None:
        if not 1 <= version <= LARGEST:
            raise Invalid(f"version {version}: expected 1 or more")
        return _restored_version(memory, path, version, dry_run)
    past = memory.at(memory.moment(str(at)))
    where = memory.real_parts(paths.raw(path))
    plan: list[tuple[str, tuple[bytes, ...], Node]] = []
    with past.reading() as then, memory.reading() as now:
        top = _at(then, where)
        if top is None or not where:
            raise NotFound("there was nothing of that name", path)
        waiting = [(where, top, _at(now, where))]
        while waiting:
            calls.go_on()
            place, old, new = waiting.pop()
            action = _action(then, now, place, old, new)
            if action == "lost" and place == where:
                then.read(old.id, 0, 1)  # says so
            if action is not None:
                plan.append((action, place, old))
            if action == "lost":
                continue
            lost = _lost(then, now, old, new, where)
            plan += [(what, place, old) for what, some in zip(("tags", "links"), lost, strict=True) if some]
            inside = _children(now, new)
            waiting += [
                ((*place, name), below, inside.get(name))
                for name, below in sorted(_children(then, old).items(), reverse=True)
            ]
    for action, place, old in plan:
        if action in ("make", "write") and old.size > WHOLE_MAX:
            raise TooBig(f"{size(old.size)} at once: copy it from /@TIME", paths.text(paths.join(place)))
    if not dry_run:
        memory.enroll()
        said = [one for one in plan if one[0] in ("tags", "links")]
        for action, place, old in plan:
            if action not in ("tags", "links", "lost"):
                _do(memory, past, action, place, old)
        for action, place, old in said:  # once all is there that a link may lead to
            _say(memory, past, action, place, old)
        for _, place, old in reversed(plan):  # now that all is in them, directories may refuse to take more
            if old.kind is Kind.DIRECTORY:
                _set_mode(memory, place, old.mode)
    told = [{"path": paths.text(paths.join(place)), "action": action} for action, place, _ in plan[:PLANNED]]
    return {"restored": told, "more": len(plan) > PLANNED}


@method
def blame(memory: Memory, path: str) -> dict[str, Any]:
    """Of each line of a text, with which version it came: {"path", "untrusted", "lines": [{"version", "author", "at",
    "text"}]}. What is older than the oldest version that is kept counts as of that one."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        if node.kind is not Kind.FILE:
            raise IsDirectory(path=path)
        where = paths.text(reader.path(node.id))
        came = reader.visible.untrusted(reader.trusted_as(node))
        lines = attributed(reader, reader.document(node))
    told = [
        {"version": by.number, "author": by.author, "at": mail.iso(by.at), "text": line.rstrip("\n")}
        for by, line in lines
    ]
    return {"path": where, "untrusted": came, "lines": told}


def _at(reader: Reader, where: tuple[bytes, ...]) -> Node | None:
    node: Node | None = reader.node(1)
    for name in where:
        node = reader.child(node.id, name) if node is not None and node.kind is Kind.DIRECTORY else None
    return node


def _children(reader: Reader, node: Node | None) -> dict[bytes, Node]:
    if node is None or node.kind is not Kind.DIRECTORY:
        return {}
    return {child.name: child for child in reader.children(node.id)}


def _status(then: Reader, now: Reader, old: Node | None, new: Node | None) -> str | None:
    if old is None or new is None:
        return "added" if old is None else "removed"
    if old.kind is not new.kind or (old.kind is not Kind.SYMLINK and old.mode != new.mode):
        return "modified"
    same = old.kind is Kind.DIRECTORY or _same_bytes(then, now, old, new)
    return None if same else "modified"


def _action(then: Reader, now: Reader, place: tuple[bytes, ...], old: Node, new: Node | None) -> str | None:
    """What restoring does with what was at a place."""
    if new is not None and new.kind is not old.kind:
        raise Exists("something else has that name now", paths.text(paths.join(place)))
    if new is not None and (old.kind is Kind.DIRECTORY or _same_bytes(then, now, old, new)):
        return "mode" if old.kind is not Kind.SYMLINK and old.mode != new.mode else None
    if not _kept(then, old):
        return "lost"
    if new is not None and new.document != old.document and (limits := _limits(then, place, old)) is not None:
        shared = now.document(new).shared
        if shared is None or not {*shared} <= {*limits}:
            raise Exists("the file of that name now is for others too", paths.text(paths.join(place)))
    return "make" if new is None else "write"


def _kept(reader: Reader, node: Node) -> bool:
    """Whether the bytes are, if it is a file."""
    try:
        if node.kind is Kind.FILE:
            reader.read(node.id, 0, 1)
    except NotFound:
        return False
    return True


def _same_bytes(then: Reader, now: Reader, old: Node, new: Node) -> bool:
    if old.kind is Kind.SYMLINK:
        return then.target(old.id) == now.target(new.id)
    if old.size != new.size:
        return False
    same = old.document is not None and old.document == new.document
    if same and then.document(old).head == now.document(new).head:
        return True
    if not (_kept(then, old) and _kept(now, new)):
        return False
    for offset in range(0, old.size, _PIECE):
        calls.go_on()
        if then.read(old.id, offset, _PIECE) != now.read(new.id, offset, _PIECE):
            return False
    return True


def _lost(
    then: Reader, now: Reader, old: Node, new: Node | None, where: tuple[bytes, ...] = ()
) -> tuple[list[str], list[tuple[bytes, str]]]:
    """Tags, and links by where they led, that a file had then and does not have now. Links that lead to nothing any
    more are left out, but for what comes back ``where`` all is restored."""
    if old.document is None:
        return [], []
    tags, links = then.tags(old.document), []
    for each in then.links(old.document) if where or new is not None else ():
        end = paths.split(each.path)
        if each.outgoing and (end[: len(where)] == where != () or _at(now, end) is not None):
            links.append((each.path, each.type))
    if new is not None and new.document is not None:
        has = now.tags(new.document)
        leads = {(each.path, each.type) for each in now.links(new.document) if each.outgoing}
        return [tag for tag in tags if tag not in has], [link for link in links if link not in leads]
    return tags, links


def _say(memory: Memory, past: Memory, action: str, place: tuple[bytes, ...], old: Node) -> None:
    """A link comes back where something is at its other end."""
    with past.reading() as then, memory.reading() as now:
        _at(then, place)
        new = _at(now, place)
        assert new is not None
        tags, links = _lost(then, now, old, new)
        ends = [(_at(now, paths.split(path)), kind) for path, kind in links]
    if action == "tags" and tags:
        memory.submit("set_tags", node=new.id, add=tags, remove=[], replace=False)
    for end, kind in ends if action == "links" else ():
        if end is not None and end.document not in (None, new.document):
            memory.submit("add_link", node=new.id, target=end.id, type=kind)


def _do(memory: Memory, past: Memory, action: str, place: tuple[bytes, ...], old: Node) -> None:
    with past.reading() as then, memory.reading() as now:
        data = then.read(old.id, 0, old.size) if old.kind is Kind.FILE and action != "mode" else b""
        target = then.target(old.id) if old.kind is Kind.SYMLINK else b""
        there, came = _at(now, place), then.visible.origin(then.trusted_as(old))
        here = OWN if there is None else now.visible.origin(there.scope)
        # What its file has is no news, and would be held again where it has been let out.
        came = came._replace(sources=tuple(each for each in came.sources if each not in here.sources))
        shared = _limits(then, place, old) if old.kind is Kind.FILE else None
    if old.kind is Kind.DIRECTORY:
        if action == "make":
            memory.make_directories(place)
            _set_mode(memory, place, old.mode | 0o200)  # what is to be in it comes by path
        return
    if old.kind is Kind.SYMLINK:
        memory.make_directories(place[:-1])
        with memory.reading() as now:
            above, there = _at(now, place[:-1]), _at(now, place)
            leads = now.target(there.id) if there is not None and there.kind is Kind.SYMLINK else None
        assert above is not None
        if action == "write" and leads is not None:
            only = hashlib.sha256(leads).digest()
            memory.submit("unlink", parent=above.id, name=place[-1], instead_of=only)
        memory.submit("symlink", parent=above.id, name=place[-1], target=target)
    elif action != "mode":
        mode = "create" if action == "make" else "replace"
        new = {"shared": shared, "bits": old.mode, "sources": [*came.sources], "released": here.joined(came).released}
        memory.submit("write_path", path=list(place), data=data, mode=mode, **new)
    if old.kind is Kind.FILE:
        _set_mode(memory, place, old.mode)


def _limits(then: Reader, place: tuple[bytes, ...], old: Node) -> list[str] | None:
    """Whom a file is limited to when it comes back; None: nobody. Of those it was shared with last, who could read it
    then: its place may have ended the set since, or its owner widened it."""
    said, could = then.document(old).shared, then.visible.readers(old.scope)
    if paths.agent_space(place) is not None:
        return None
    if could is None:
        return None if said is None else [*said]
    policy = then.people.policy()
    if said is not None:
        return sorted(could.intersection(said))
    here, anyway = policy.scope(place).readers, policy.scope(place, ()).readers or frozenset()
    return None if here is not None and here <= could else sorted(could - anyway)


def _set_mode(memory: Memory, place: tuple[bytes, ...], mode: int) -> None:
    with memory.reading() as now:
        made = _at(now, place)
    if made is not None and made.mode != mode:
        memory.submit("set_attributes", node=made.id, mode=mode)


def _restored_version(memory: Memory, path: str, version: int, dry_run: bool) -> dict[str, Any]:
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        document = reader.document(node)
        try:
            data = reader.version_bytes(document.id, version)
        except Invalid as e:
            raise NotFound(e.reason, path) from None
        where = paths.split(reader.path(node.id))
        same = len(data) == node.size and data == reader.read(node.id, 0, node.size)
    if not dry_run and not same:
        memory.submit("write_path", path=list(where), data=data, mode="replace")
    told = [] if same else [{"path": paths.text(paths.join(where)), "action": "write"}]
    return {"restored": told, "more": False}
