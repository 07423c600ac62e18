"""What comes from outside the store: its bytes, its names, and what is known of its source.

Owns the table live, and all that is made outside /memory. Called, as operator, by who fetches it (``providers``);
nobody else changes anything there (``Visible.writable``). It has no past: what is kept is what was fetched last, and
versions where the provider wants them. Which source a path has is not known here.
"""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import Invalid, OverQuota
from avmfs.node import Kind, Node
from avmfs.store.commands import command, namespace, versions, writing
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import Tx

MOST, MOST_BYTES = 10_000, 256 * 1024 * 1024  # kept at once: who reads made-up names shall not fill the disk


@command(durable=False)
def mirror(
    tx: Tx,
    path: list[bytes],
    data: bytes,
    source: str,
    until: int,
    searched: bool = False,
    history: bool = False,
    by: list[Any] | None = None,
) -> dict[str, Any]:
    """The source has this now, until then nobody asks again. Other bytes are a new version; those of before are kept
    with ``history`` alone. ``by``: the agent that wrote it to the source, its door, and whether as the operator: the
    version is that one's, and nothing else here. {"node", "changed"}."""
    _check(tx, path)
    found = _standing(tx, _directory(tx, path[:-1]), path[-1], Kind.FILE)
    where = paths.join(tuple(path))
    was_searched = tx.db.execute("select searched from live where path = ?", (where,)).get
    tx.db.execute(
        "insert or replace into live(path, source, fetched, until, error, searched, size) values(?, ?, ?, ?, '', ?, ?)",
        (where, source, tx.now, until, int(searched), len(data)),
    )
    _make_room(tx)
    node, newest = versions.to_write(tx, found.id)
    if newest.number and node.size == len(data) and versions.whole(tx, node) == data:
        if was_searched != searched:
            versions.enqueue(tx, tx.document_of(node))
        return {"node": node.id, "changed": False}
    fetcher = tx.who
    if by:
        tx.who = Principal(by[0], operator=by[2], route=by[1])
    written = writing.write(tx, node, newest, None, [("t", 0), ("w", 0, data)])
    tx.who = fetcher
    if not history and node.document is not None and written["version"] > 1:
        versions.drop(tx, node.document, written["version"] - 1)
    return {"node": node.id, "changed": True}


@command(durable=False)
def mirror_failed(tx: Tx, path: list[bytes], source: str, until: int, error: str, gone: bool) -> dict[str, Any]:
    """The source cannot be asked, or (``gone``) has no such thing: then the file goes."""
    where = paths.join(tuple(path))
    _check(tx, path)
    tx.db.execute("delete from live where fetched is null and until < ?", (tx.now,))
    tx.db.execute(
        "insert into live(path, source, fetched, until, error, searched, size) values(?, ?, null, ?, ?, 0, 0)"
        " on conflict(path) do update set until = excluded.until, error = excluded.error",
        (where, source, until, error),
    )
    if gone:
        tx.db.execute("update live set fetched = null where path = ?", (where,))
        found = namespace.descend(tx, tx.node(ROOT), path)
        if found is not None and found.parent is not None:
            _clear(tx, tx.node(found.parent), found)
    return {}


@command(durable=False)
def mirror_names(
    tx: Tx, path: list[bytes], names: list[bytes] | None, source: str, until: int, whole: bool = True
) -> dict[str, Any]:
    """A live directory, which is made where it is not there; ``names``, what its source lists: one that ends in ``/``
    is a directory. What is not listed goes where that is the ``whole`` of it. {"node"}."""
    _check(tx, path)
    directory = _directory(tx, path)
    if names is not None:
        wanted = {name.removesuffix(b"/"): name.endswith(b"/") for name in names}
        if len(wanted) > MOST:
            raise OverQuota(f"a live directory has {MOST} names at most")
        for name, deeper in wanted.items():
            _standing(tx, directory, name, Kind.DIRECTORY if deeper else Kind.FILE)
        rows: list[Any] = tx.db.execute("select id, name from node where parent = ?", (directory.id,)).fetchall()
        for node, name in rows if whole else ():
            if bytes(name) not in wanted:
                _clear(tx, directory, tx.node(node))
        tx.db.execute(
            "insert or replace into live(path, source, fetched, until, error, searched, size)"
            " values(?, ?, ?, ?, '', 0, 0)",
            (paths.join(tuple(path)), source, tx.now, until),
        )
        _make_room(tx)
    return {"node": directory.id}


def follow_patterns(tx: Tx, patterns: list[str]) -> None:
    """Providers come and go: what none of them has any more goes, and what is there of each by its pattern alone comes.
    Of the past of what goes nothing is shown (``Visible.remembered``)."""
    tx.mirrors = True
    tops: list[Any] = tx.db.execute("select id, name from node where parent = ?", (ROOT,)).fetchall()
    waiting: list[tuple[int, tuple[bytes, ...]]] = [
        (top, (bytes(name),)) for top, name in tops if paths.is_live((bytes(name),))
    ]
    while waiting:
        number, parts = waiting.pop()
        node = tx.node(number)
        if any(paths.matches(each, parts) for each in patterns):
            continue
        if node.kind is Kind.DIRECTORY and any(paths.leads_to(each, parts) for each in patterns):
            below: list[Any] = tx.db.execute("select id, name from node where parent = ?", (number,)).fetchall()
            waiting += [(child, (*parts, bytes(name))) for child, name in below]
        elif node.parent is not None:
            _clear(tx, tx.node(node.parent), node)
    for pattern in patterns:
        fixed = paths.fixed_part(pattern)
        if paths.matches(pattern, fixed):
            _standing(tx, _directory(tx, [*fixed[:-1]]), fixed[-1], Kind.FILE)
        else:
            _directory(tx, [*fixed])


def _check(tx: Tx, path: list[bytes]) -> None:
    tx.require_operator()
    if not paths.is_live(tuple(path)):
        raise Invalid("what comes from outside the store lies outside /memory")
    tx.mirrors, tx.states = True, None


def _directory(tx: Tx, path: list[bytes]) -> Node:
    directory = tx.node(ROOT)
    for name in path:
        directory = _standing(tx, directory, name, Kind.DIRECTORY)
    return directory


def _standing(tx: Tx, directory: Node, name: bytes, kind: Kind) -> Node:
    """What has that name, made where it is not there. What is of another kind goes: the source has it so no more."""
    found = tx.child(directory.id, name)
    if found is not None and found.kind is not kind:
        _clear(tx, directory, found)
        found = None
    return found or namespace.make(tx, directory, name, kind, 0o755 if kind is Kind.DIRECTORY else 0o644)


def _make_room(tx: Tx) -> None:
    """What was fetched longest ago goes, where there is more than is kept; not a directory that has something in it."""
    kept: Any = tx.db.execute("select count(*), sum(size) from live where fetched is not null").fetchone()
    over, bytes_over = kept[0] - MOST, kept[1] - MOST_BYTES
    if over <= 0 and bytes_over <= 0:
        return
    rows: list[Any] = tx.db.execute(
        "select path, size from live where fetched is not null and fetched < ? order by fetched", (tx.now,)
    ).fetchall()
    for path, size in rows:
        node = namespace.descend(tx, tx.node(ROOT), paths.split(path))
        if node is not None and node.parent is not None and namespace.is_empty(tx, node.id):
            _clear(tx, tx.node(node.parent), node)
            over, bytes_over = over - 1, bytes_over - size
        if over <= 0 and bytes_over <= 0:
            return


def _clear(tx: Tx, directory: Node, node: Node) -> None:
    where = paths.join(tx.parts(node.id))
    if node.kind is Kind.DIRECTORY:
        below: list[Any] = tx.db.execute("select id from node where parent = ?", (node.id,)).fetchall()
        for (child,) in below:
            _clear(tx, node, tx.node(child))
        namespace.remove_directory(tx, directory, node)
    else:
        namespace.remove(tx, directory, node)
    tx.db.execute("delete from live where path = ? and fetched is not null", (where,))
