"""What is said about a document: tags, links, sharing, ttl, metadata, marks."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from avmfs import paths, wire
from avmfs.errors import NO_TEXT, Denied, Invalid, OverQuota
from avmfs.node import DERIVES, Kind, Node
from avmfs.store.commands import command, scoping, versions
from avmfs.store.commands.versions import LINKS_MAX, TAGS_MAX
from avmfs.store.rows.scopes import seen_with
from avmfs.store.tx.transaction import Tx
from avmfs.text.escapes import visible

KEYS_MAX, KEYS_DEEP, USER_LIMIT = 256, 16, 64 * 1024  # of :meta: keys, nesting, characters as JSON


def check_tags(named: int) -> None:
    """Raise OverQuota where a document cannot have so many tags, before anything is looked at."""
    if named > TAGS_MAX:
        raise OverQuota(f"a file may have {TAGS_MAX} tags; {named} are named")


def check_tag(tag: str) -> str:
    """A tag as stored: trimmed, without a leading #. Raises Invalid for an empty one or one with a comma."""
    name = unicodedata.normalize("NFC", tag.strip().removeprefix("#"))
    if not name or len(name) > 64 or "," in name or not name.isprintable() or visible(name) != name or name[0] in "+-":
        raise Invalid(f"{tag!r} cannot be a tag (1 to 64 printable characters, no comma, no leading + or -)")
    return name


def pack_user(user: dict[str, Any]) -> str:
    """User keys of :meta as they are stored. Raises OverQuota for too many, Invalid for what is too long, no plain
    JSON, or cannot be sent: whoever asks for it would get nothing."""
    if len(user) > KEYS_MAX:
        raise OverQuota(f"metadata may have {KEYS_MAX} keys, this has {len(user)}")
    level: list[Any] = [user]
    for _ in range(KEYS_DEEP + 1):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            break
    else:
        raise Invalid(f"metadata may be nested {KEYS_DEEP} deep")
    try:
        packed = json.dumps({key: value for key, value in user.items() if value is not None}, sort_keys=True)
    except (TypeError, ValueError) as e:
        raise Invalid(f"metadata: {e}") from None
    for key, value in user.items():
        try:
            json.dumps(value, allow_nan=False)
            wire.pack([key, value])
        except UnicodeEncodeError:
            raise Invalid(f"metadata: {key!r}: {NO_TEXT}") from None
        except OverflowError:
            raise Invalid(f"metadata: {key!r}: a whole number has at most 64 bits") from None
        except ValueError:
            raise Invalid(f"metadata: {key!r}: no number that JSON can tell") from None
    if len(packed) > USER_LIMIT:
        raise Invalid(f"metadata may have {USER_LIMIT} characters in all, this has {len(packed)}")
    return packed


@command
def set_tags(tx: Tx, node: int, add: list[str], remove: list[str], replace: bool) -> dict[str, Any]:
    """Add and remove tags; ``replace`` first removes all."""
    check_tags(max(len(add), len(remove)))
    found, document = _document(tx, node, "tags")
    before = {tag for (tag,) in tx.db.execute("select tag from tag where document = ?", (document,))}
    if replace:
        tx.db.execute("delete from tag where document = ?", (document,))
    for name in remove:
        tx.db.execute("delete from tag where document = ? and tag = ?", (document, name))
    for name in add:
        tx.db.execute("insert or ignore into tag(document, tag) values(?, ?)", (document, name))
    check_tags(tx.db.execute("select count(*) from tag where document = ?", (document,)).get)
    if before & set(remove) or (replace and before - set(add)):
        versions.enqueue(tx, document)  # only its text can tell whether it has the topic without the tag
    elif tx.db.execute("select 1 from passage where document = ?", (document,)).get:  # else it is yet to be indexed
        versions.add_topics(tx, document, found.scope, add)
        tx.db.execute("insert into passage_log(document) values(?)", (document,))
    _changed(tx, "tags", found)
    return {}


@command
def add_link(tx: Tx, node: int, target: int, type: str) -> dict[str, Any]:
    """An edge from one document to another that the asker can see."""
    found, document = _document(tx, node, "links")
    other = _linked(tx, target)
    if other == document:
        raise Invalid("a file cannot link to itself")
    tx.db.execute(
        "insert or ignore into link(source, target, type, agent, at) values(?, ?, ?, ?, ?)",
        (document, other, type, tx.who.name, tx.now),
    )
    own = "select count(*) from link where source = ? and agent = ?"  # others' may lead to what the asker cannot see
    if tx.db.execute(own, (document, tx.who.name)).get > LINKS_MAX:
        raise OverQuota(f"{LINKS_MAX} links of an agent may lead from a file")
    if type in DERIVES:
        scoping.taint(tx, found, tx.origin(tx.node(target).scope))
        found = tx.node(node)
    _linked_otherwise(tx, found, [tx.node(target).scope])
    return {}


@command
def remove_link(tx: Tx, node: int, target: int | None, type: str | None = None) -> dict[str, Any]:
    """``target`` None: all that lead from it, those to what the asker cannot see, too."""
    found, document = _document(tx, node, "links")
    other = None if target is None else _linked(tx, target)
    if other is None and tx.states is not None:
        ends: list[Any] = tx.db.execute("select target from link where source = ?", (document,)).fetchall()
        for (end,) in ends:
            tx.states.says(end, "links")
    gone: list[Any] = tx.db.execute(
        "delete from link where source = ?1 and (?2 is null or target = ?2) and (?3 is null or type = ?3)"
        " returning (select scope from document join node on node.id = node where document.id = target)",
        (document, other, type),
    ).fetchall()
    _linked_otherwise(tx, found, [scope for (scope,) in gone])
    return {}


@command
def set_shared(tx: Tx, node: int, agents: list[str] | None) -> dict[str, Any]:
    """Limit a file in shared space to some agents (its owner always among them); None: all. Owner only."""
    found = tx.seen(node)
    document = tx.document_of(found)
    parts = tx.parts(node)
    if paths.agent_space(parts) is not None:
        raise Invalid("a private file cannot be shared: move it to /shared")
    creator = tx.db.execute("select creator from document where id = ?", (document,)).get
    if creator != tx.who.name and not tx.who.operator:
        raise Denied(f"only its owner, {creator}, can change who shares it")
    tx.visible.require(found.scope)
    scope = tx.scope_at(parts, versions.share(tx, document, creator, agents), tx.origin(found.scope))
    if scope != found.scope:
        tx.log("remove", found, paths.join(parts))
        scoping.set_scope(tx, found, scope)
        tx.log("shared", tx.node(node), paths.join(parts))
    else:  # the rules leave no difference, today
        tx.log("shared", found, paths.join(parts))
    return {}


@command
def set_ttl(tx: Tx, node: int, expires: int | None) -> dict[str, Any]:
    """When the file vanishes (ns since the epoch), or None for never."""
    found, _ = _document(tx, node)
    tx.db.execute("update node set expires = ? where id = ?", (expires, node))
    _changed(tx, "ttl", found)
    return {}


@command
def merge_meta(tx: Tx, node: int, importance: float | None, user: dict[str, Any]) -> dict[str, Any]:
    """Merge user keys (a value of None removes its key) and set the importance when given."""
    if importance is not None and not 0 <= importance <= 1:
        raise Invalid(f"importance {importance}: expected 0 to 1")
    found, document = _document(tx, node, "meta")
    pack_user(user)  # before it is merged with as much again
    kept = json.loads(tx.db.execute("select user from document where id = ?", (document,)).get or "{}")
    packed = pack_user({key: value for key, value in {**kept, **user}.items() if value is not None})
    tx.db.execute("update document set user = ? where id = ?", (packed, document))
    if importance is not None:
        tx.db.execute("update document set importance = ? where id = ?", (importance, document))
    if "title" in user:
        versions.enqueue(tx, document)  # its words are topics
    _changed(tx, "meta", found)
    return {}


@command
def mark(
    tx: Tx, node: int, version: int | None = None, seq: int | None = None, forward: bool = False
) -> dict[str, Any]:
    """The asker has read a file up to ``version`` (None: the newest), or a directory up to ``seq``; -1: not at
    all. ``forward``: a mark that is further already stays, as another reader of the same agent has been quicker.
    {"version", "seq"} asked for."""
    found, creator = tx.seen(node), None
    if found.kind is Kind.DIRECTORY:
        newest: int = (
            tx.db.execute(
                "select max((select seq from log where scope = value and op <> 'tell' order by seq desc limit 1))"
                " from json_each(?)",
                (tx.visible.json,),
            ).get
            or 0
        )
        subject, number, at = node, 0, newest if seq is None else min(seq, newest)
    else:
        subject = tx.document_of(found)
        row: Any = tx.db.execute("select head, creator from document where id = ?", (subject,)).fetchone()
        head, creator = row
        number = head if version is None else version
        if not -1 <= number <= head:
            raise Invalid(f"v{number}: the newest version is v{head}")
        at = tx.db.execute("select seq from version where document = ? and number = ?", (subject, number)).get or 0
    if creator == tx.who.name:
        tx.db.execute(
            "update document set read = nullif(?1, -1) where id = ?2 and not (?3 and coalesce(read, -1) >= ?1)",
            (number, subject, forward),
        )
    elif -1 in (number, at):
        tx.db.execute("delete from mark where agent = ? and subject = ?", (tx.who.name, subject))
    else:
        tx.db.execute(
            "insert into mark(agent, subject, version, seq) values(?1, ?2, ?3, ?4)"
            " on conflict(agent, subject) do update set version = ?3, seq = ?4"
            " where not (?5 and (version, seq) >= (?3, ?4))",
            (tx.who.name, subject, number, at, forward),
        )
    return {"version": number, "seq": at}


def _document(tx: Tx, node: int, what: str | None = None) -> tuple[Node, int]:
    """``what`` is about to be said of it otherwise."""
    found = tx.writable(node)
    document = tx.document_of(found)
    if tx.states is not None and what is not None:
        tx.states.says(document, what)
    return found, document


def _linked(tx: Tx, target: int) -> int:
    other = tx.document_of(tx.seen(target))
    if tx.states is not None:
        tx.states.says(other, "links")
    return other


def _linked_otherwise(tx: Tx, node: Node, ends: list[int]) -> None:
    """``ends``: scopes of what links lead to. Whoever sees the file and not that is told of nothing, by its times
    neither."""
    known = tx.known.scopes
    for end in sorted(set(ends)):
        scope = known.intern(tx.db, seen_with(known.of(tx.db, node.scope), known.of(tx.db, end)))
        if scope == node.scope:
            _changed(tx, "links", node)
        else:
            tx.log("links", node, paths.join(tx.parts(node.id)), scope=scope)


def _changed(tx: Tx, op: str, node: Node) -> None:
    tx.db.execute("update node set ctime = ? where id = ?", (tx.now, node.id))
    tx.log(op, node, paths.join(tx.parts(node.id)))
