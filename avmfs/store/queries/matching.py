"""Which changes are for which subscriptions: the log's rows matched with the patterns that agents chose.

Owns what is read of the log for that, and the matching. Done by the keeper, and by who asks for notices, with neither a
transaction nor a snapshot open: an agent's pattern keeps no writer waiting. ``outbox_fill`` queues what was found.
"""

from __future__ import annotations

import json
from typing import Any, Final

import apsw

from avmfs.access import Access, Principal, Scope
from avmfs.store.rows.deliveries import COLUMNS, Subscription, Unmatched
from avmfs.store.rows.events import Event, matches, of_row, pack, prefix_of

LOOKED_AT: Final = 1000  # rows of the log at once,
MATCHED: Final = 20_000  # and so many of them times subscriptions,
FOUND: Final = 2000  # until so much was found, or paths of so many characters: the writer, who queues it, has others
CHARACTERS: Final = 256 * 1024  # to serve


def unmatched(db: apsw.Connection, limit: int = LOOKED_AT) -> Unmatched | None:
    """The next rows, at most ``limit``; None when there is nothing to look at, or nobody to look for."""
    subscriptions = [Subscription(*row) for row in db.execute(f"select {COLUMNS} from subscription order by id")]
    if not subscriptions:
        return None
    limit = max(1, min(limit, MATCHED // len(subscriptions)))
    after = int(db.execute("select seq from outbox_cursor").get)
    rows: list[Any] = db.execute(
        "select seq, at, op, agent, node, version, scope, path, other from log where seq > ? order by seq limit ?",
        (after, limit),
    ).fetchall()
    if not rows:
        return None
    scopes = db.execute(
        "select id, spec from scope where id in (select value from json_each(?))",
        (json.dumps([*{row[6] for row in rows}]),),
    )
    return Unmatched(
        after, rows, subscriptions, {number: Scope.parse(spec) for number, spec in scopes}, len(rows) == limit
    )


def matched(these: Unmatched) -> dict[str, Any]:
    """What of it is for whom, as ``outbox_fill`` takes it: of each row and subscription at most one event, or two that
    are told by path, at its place and visible to it. Asks the database nothing."""
    sees: dict[tuple[Principal, int], bool] = {}
    asked = [(prefix_of(one.place), one, one.who) for one in these.subscriptions]
    events: list[Event] = []
    found: dict[int, list[int]] = {}
    count = characters = upto = 0
    # A shell that redirects closes a copy of the handle first, and so commits that the file is empty: what is written
    # then is the same version. Of what an agent made of a version meanwhile the last is told.
    last = {row[2:8]: row[0] for row in these.rows}  # all but the number, the time and where it was before
    for row in these.rows:
        upto = row[0]
        if row[2] == "write" and last[row[2:8]] != upto:
            continue
        told: set[int] = set()
        for event in of_row(*row):
            path, wanted = event.path, False  # most patterns are about other places: what a hundred of them cost is
            for one, who in [(one, who) for prefix, one, who in asked if path.startswith(prefix)]:  # this line
                if event.seq <= one.since or (one.id in told and not one.by_path):
                    continue
                key = who, event.scope
                if key not in sees:
                    scope = these.scopes.get(event.scope)
                    sees[key] = scope is not None and scope.access(who) >= Access.READ
                if sees[key] and matches(one.place, path):
                    told.add(one.id)
                    if one.wants(event):
                        found.setdefault(one.id, []).append(len(events))
                        wanted = True
            if wanted:
                events.append(event)
                characters += len(path)
        count += len(told)
        if count >= FOUND or characters >= CHARACTERS:
            break
    return {"after": these.after, "upto": upto, "events": pack(events), "found": [[*item] for item in found.items()]}
