"""What the writer adds to a command for the audit: a row for what has none of its own, and the count of refusals.

Owns the rule that every change and every refusal leaves a row. Called by the applier around each command, in its
transaction; a successful command costs no statement here unless it would leave no row at all.

A refusal is EACCES or EDQUOT of something that the asker may see: what does not exist for it is no refusal. Repeated
ones are counted in table ``refusal``, which is bounded: an agent that is refused in more than VARIETY different ways
within a window has the others summed up.
"""

from __future__ import annotations

import errno
from typing import Any, Final

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import AvmError, Denied, NotFound, OverQuota, Stale
from avmfs.store.rows.hash_chain import packed
from avmfs.store.tx.transaction import Tx

REFUSALS: Final = (Denied, OverQuota)
WINDOW_NS: Final = 60_000_000_000
VARIETY: Final = 64
PATH_KEPT: Final = 4096  # bytes

UNTOLD: Final = frozenset({"drain_lexical", "hold", "note_refusal", "sync"})
"""Commands of agents' own requests that change only what is derived, or keep an open file's bytes alive."""


def told(tx: Tx, command: str, changed: bool) -> None:
    """After a command: if it has changed something and left no row, one for the audit alone. Housekeeping of the
    store's own (route ``daemon``) logs what is worth a row by itself."""
    if changed and not tx.rows and tx.who.route != "daemon" and command not in UNTOLD:
        tx.note(command)


def refused(tx: Tx, command: str, arguments: dict[str, Any], error: AvmError, count: int = 1) -> None:
    """Count a refusal, in a transaction from which the command itself was rolled back."""
    node, path = _place(tx, arguments, error)
    code = errno.errorcode[error.code]
    who = tx.who
    key = (who.name, who.route, int(who.operator), command, code)
    known = tx.db.execute(
        "select 1 from refusal"
        " where agent = ? and route = ? and elevated = ? and command = ? and code = ? and path = ?",
        (*key, path),
    ).get
    if not known and tx.db.execute("select count(*) from refusal where agent = ?", (who.name,)).get >= VARIETY:
        key, node, path = (who.name, who.route, int(who.operator), "various", code), 0, b""
    tx.db.execute(
        "insert into refusal(agent, route, elevated, command, code, path, node, count, first, last)"
        " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " on conflict do update set count = count + excluded.count, first = min(first, excluded.first),"
        " last = max(last, excluded.last)",
        (*key, path, node, count, tx.now, tx.now),
    )
    error.recorded = True


def settle(tx: Tx, *, all_of_them: bool = False) -> int:
    """Windows that are over become rows of the log, and those of a time to come: the clock was ahead. Returns how
    many."""
    before = tx.now + 1 if all_of_them else tx.now - WINDOW_NS
    rows: list[Any] = tx.db.execute(
        "select agent, route, elevated, command, code, path, node, count, first, last from refusal where first < ?"
        " or first > ? order by first, agent, command",
        (before, tx.now),
    ).fetchall()
    for agent, route, elevated, command, code, path, node, count, first, last in rows:
        who = Principal(agent, operator=bool(elevated), route=route)
        about = {"command": command, "code": code, "count": count, "first": first, "last": last}
        tx.note("refused", about=packed(about), who=who, node=node, path=bytes(path))
    tx.db.execute("delete from refusal where first < ? or first > ?", (before, tx.now))
    return len(rows)


def _place(tx: Tx, arguments: dict[str, Any], error: AvmError) -> tuple[int, bytes]:
    """The node and path that the asker named, as far as they can be told."""
    node = arguments.get("node", arguments.get("parent"))
    name = arguments.get("name")
    path = b""
    if type(node) is int:
        try:
            path = paths.join(tx.parts(tx.seen(node).id))
            if "node" not in arguments and type(name) is bytes:
                path = path.rstrip(b"/") + b"/" + name
        except (NotFound, Stale):  # the asker reads these rows: they may not name what it cannot see
            node = 0
    elif type(arguments.get("path")) is list:
        path = b"/" + b"/".join(part for part in arguments["path"] if type(part) is bytes)
    elif error.filename is not None:
        path = paths.raw(str(error.filename))
    return node if type(node) is int else 0, path[:PATH_KEPT]
