"""Steps of consolidation, each whole or not at all, and the way back.

Owns the table consolidated. What is put away goes to /archive as it is, with its document: tags, links, history, mode.
A step says in which state its notes were when it was planned and gets Stale where one has changed. Notes of one step
have the same readers and the same mode; a private note, or one that is shared with some, is for whoever wrote it alone.
Called by the door, for what it has shown the asker before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Denied, Invalid, NotFound, Stale
from avmfs.node import DISPUTES, Kind, Node
from avmfs.store.commands import aside, command, documents, namespace, writing
from avmfs.store.rows.claims import OVER
from avmfs.store.rows.nodes import SEEN_JOINED
from avmfs.store.tx.transaction import Tx

TOGETHER: Final = 256  # notes of one step: others wait for it
_SUPERSEDES, _CONTRADICTS = DISPUTES
SUMMARIZES: Final = "summarizes"  # the type of the links from a summary to its sources
_CONTESTED: Final = f"""
select exists(select 1 from claim where document = :document and agent <> :agent and not {OVER})
  or exists(select 1 from link join document on document.id = iif(source = :document, target, source)
    join node on node.id = document.node
    where (source = :document or target = :document) and type = '{_CONTRADICTS}' and {SEEN_JOINED})
"""


@command
def begin_consolidation(tx: Tx, every: int) -> dict[str, Any]:
    """Note that the keeper begins a run, where the last is ``every`` ns ago. {"wait"}: else for how long it is not."""
    tx.require_operator()
    last = int(tx.db.execute("select value from setting where key = 'consolidated'").get or 0)
    wait = max(0, last + every - tx.now) if last <= tx.now else 0
    if not wait:
        tx.db.execute("insert or replace into setting(key, value) values('consolidated', ?)", (str(tx.now),))
    return {"wait": wait}


@command
def merge(tx: Tx, run: int, nodes: list[int], ctimes: list[int]) -> dict[str, Any]:
    """Put all but the first of ``nodes`` into the archive: the first says what they say. It gets a link to each
    ("supersedes"), their tags and the highest importance. ``ctimes``: when each was changed last. {"paths"}: where they
    are now."""
    heir, *gone = _planned(tx, nodes, ctimes)
    if not gone:
        raise Invalid("merge: expected two notes or more")
    for each in gone:
        if (each.scope, each.mode, each.expires) != (heir.scope, heir.mode, heir.expires):
            raise Stale("its readers, mode or ttl are no longer those of the other", paths.text(each.name))
    gone.sort(key=lambda each: -(_importance(tx, each.document) or 0.0))  # so that one of them alone hands it on
    return {"paths": [_put_away(tx, run, each, "merged", _inherit(tx, heir, each), heir) for each in gone]}


@command
def archive_cold(tx: Tx, run: int, nodes: list[int], ctimes: list[int]) -> dict[str, Any]:
    """Put notes into the archive. {"paths"}: where they are now."""
    return {"paths": [_put_away(tx, run, each, "cold", {}, None) for each in _planned(tx, nodes, ctimes)]}


@command
def summarise(
    tx: Tx, run: int, path: list[bytes], data: bytes, nodes: list[int], ctimes: list[int], older: int | None = None
) -> dict[str, Any]:
    """Write a summary of ``nodes``, with a link to each ("summarizes") and their readers and mode; the summary
    ``older`` goes to the archive for it. {"paths"}: where it is."""
    sources = _planned(tx, nodes, ctimes)
    before = None if older is None else tx.writable(older)
    if before is not None:  # it may have the name
        _planned(tx, [before.id], [before.ctime])
        _put_away(tx, run, before, "merged", {}, None)
    made = tx.node(writing.write_path(tx, path, data, mode="create")["node"])
    if made.mode != sources[0].mode:
        namespace.set_attributes(tx, made.id, mode=sources[0].mode)
    if {(each.scope, each.mode, each.expires) for each in sources} != {(made.scope, sources[0].mode, None)}:
        raise Stale("its sources have other readers, modes or ttls", paths.text(paths.join(tuple(path))))
    for each in sources:
        documents.add_link(tx, made.id, each.id, SUMMARIZES)
    documents.set_tags(tx, made.id, ["summary"], [], replace=False)
    if before is not None:
        documents.add_link(tx, made.id, before.id, _SUPERSEDES)
    _note(tx, run, made, "summary", {"version": 1}, None)
    return {"paths": [paths.join(tuple(path))]}


@command
def take_back(tx: Tx, run: int, document: int) -> dict[str, Any]:
    """Undo what the asker's run did with a document: back to where it was, under a free name where that is taken, and
    what another one got from it is taken away, unless somebody has changed it since. {"path"}: where it is now; None
    where it has left the archive by itself."""
    found: Any = tx.db.execute(
        "select heir, path, said from consolidated where document = ? and run = ? and agent = ?",
        (document, run, tx.who.name),
    ).fetchone()
    if found is None:
        raise NotFound("there is no such step of yours")
    heir, was, said = found
    node = tx.node(tx.db.execute("select node from document where id = ?", (document,)).get)
    at = None
    if "version" in json.loads(said):
        return {"path": _unwritten(tx, run, node, json.loads(said)["version"])}
    if paths.aside(tx.parts_of(node)) == "archive":
        at = aside.put_back(tx, node.id, to=list(paths.split(bytes(was))))["path"]
    _disinherit(tx, heir, tx.node(node.id), json.loads(said))
    _forget(tx, run, document)
    return {"path": at}


def _unwritten(tx: Tx, run: int, node: Node, version: int) -> bytes | None:
    """Remove a summary that nobody has written on since. Returns where it is; None: it is gone."""
    document = tx.document_of(tx.writable(node.id))
    _forget(tx, run, document)
    head = tx.db.execute("select head from document where id = ?", (document,)).get
    if head != version or node.parent is None or paths.aside(tx.parts_of(node)):
        return None if node.parent is None else paths.join(tx.parts_of(node))
    aside.unlink(tx, node.parent, node.name)
    return None


def _forget(tx: Tx, run: int, document: int) -> None:
    tx.do("delete from consolidated where document = ? and run = ?", (document, run))


def _planned(tx: Tx, nodes: Sequence[int], ctimes: Sequence[int]) -> list[Node]:
    """The notes, as they were when the step was planned, and the asker's to put away."""
    if not 0 < len(nodes) <= TOGETHER or len(set(nodes)) != len(nodes) or len(nodes) != len(ctimes):
        raise Invalid(f"a step is of 1 to {TOGETHER} different notes, with the time of each")
    found = []
    for number, ctime in zip(nodes, ctimes, strict=True):
        node = tx.writable(number)
        parts, document = tx.parts_of(node), tx.document_of(node)
        if node.kind is not Kind.FILE or node.ctime != ctime or paths.aside(parts):
            raise Stale("it has changed since it was looked at", paths.text(paths.join(parts)))
        asked = {"document": document, "agent": tx.who.name, "now": tx.now, "scopes": tx.visible.told_json}
        if tx.db.execute(_CONTESTED, asked).get:  # neither changes its ctime
            raise Stale("others have claimed or disputed it since it was looked at", paths.text(paths.join(parts)))
        row: Any = tx.db.execute("select creator, shared from document where id = ?", (document,)).fetchone()
        creator, shared = row
        if creator != tx.who.name and (shared is not None or paths.agent_space(parts) is not None):
            raise Denied(f"only who wrote it, {creator}, consolidates it", paths.text(paths.join(parts)))
        found.append(node)
    return found


def _put_away(tx: Tx, run: int, node: Node, kind: str, said: dict[str, Any], heir: Node | None) -> bytes:
    assert node.parent is not None
    _note(tx, run, node, kind, said, heir)
    return bytes(aside.archive(tx, node.parent, node.name)["path"])


def _note(tx: Tx, run: int, node: Node, kind: str, said: dict[str, Any], heir: Node | None) -> None:
    other = None if heir is None else heir.document
    tx.do(
        "insert into consolidated(document, run, agent, kind, heir, path, said) values(?, ?, ?, ?, ?, ?, ?)",
        (node.document, run, tx.who.name, kind, other, paths.join(tx.parts_of(node)), json.dumps(said)),
    )


def _inherit(tx: Tx, heir: Node, gone: Node) -> dict[str, Any]:
    """Give ``heir`` what is said of ``gone``. Returns what it did not have: {"link", "tags", "importance": [before,
    after]}."""
    said: dict[str, Any] = {}
    if not _linked(tx, heir, gone):
        documents.add_link(tx, heir.id, gone.id, _SUPERSEDES)
        said["link"] = True
    if more := sorted(_tags(tx, gone) - _tags(tx, heir)):
        documents.set_tags(tx, heir.id, more, [], replace=False)
        said["tags"] = more
    before, theirs = (_importance(tx, each.document) for each in (heir, gone))
    if theirs is not None and (before is None or theirs > before):
        documents.merge_meta(tx, heir.id, theirs, {})
        said["importance"] = [before, theirs]
    return said


def _disinherit(tx: Tx, document: int | None, gone: Node, said: dict[str, Any]) -> None:
    number = tx.db.execute("select node from document where id = ?", (document,)).get
    if number is None:  # it has ended
        return
    try:
        heir = tx.writable(number)
    except (NotFound, Denied):  # others have taken it, and with it what it says
        return
    if "link" in said and gone.scope in tx.visible:
        documents.remove_link(tx, heir.id, gone.id, _SUPERSEDES)
    if "tags" in said:
        documents.set_tags(tx, heir.id, [], said["tags"], replace=False)
    before, given = said.get("importance", (None, None))
    if given is not None and _importance(tx, document) == given:
        documents.merge_meta(tx, heir.id, before, {})
        tx.do("update document set importance = ? where id = ?", (before, document))


def _linked(tx: Tx, heir: Node, gone: Node) -> bool:
    said = (heir.document, gone.document, _SUPERSEDES)
    return bool(tx.db.execute("select 1 from link where source = ? and target = ? and type = ?", said).get)


def _tags(tx: Tx, node: Node) -> set[str]:
    return {tag for (tag,) in tx.db.execute("select tag from tag where document = ?", (node.document,))}


def _importance(tx: Tx, document: int | None) -> float | None:
    found: Any = tx.db.execute("select importance from document where id = ?", (document,)).get
    return None if found is None else float(found)
