"""Which instants of the past can be asked for: times, changes, snapshots.

Called by the reader. ``queries.past`` reads the tree as it was then.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import apsw

from avmfs.access import Principal
from avmfs.errors import NotFound
from avmfs.node import Moment, Snapshot
from avmfs.store.rows.scopes import Visible


def newest_seen(db: apsw.Connection, visible: Visible, until: int = sys.maxsize) -> int:
    """The newest change that the asker may see: the store's own newest would tell of others' doings."""
    found = db.execute(
        "select max((select seq from log where scope = value and seq <= ?2 and op <> 'tell' order by seq desc limit 1))"
        " from json_each(?1)",
        (visible.json, until),
    )
    return int(found.get or 0)


def moment(db: apsw.Connection, visible: Visible, now: int, when: Moment | int | str) -> Moment:
    """What can be asked for: a time in ns, the name of a snapshot, or ``Moment(seq, 0)`` for after a change. Raises
    NotFound for what is not kept, and for what is yet to come; a ``seq`` after which the asker has seen no change is
    now, and one of others has the time of the last that it has seen, or these would tell how much others do, and when.
    """
    newest = db.execute("select max(seq) from log").get or 0
    if isinstance(when, str):
        found: Any = db.execute(
            "select seq, at, root from snapshot where name = ? and agent in ('', ?) order by agent desc limit 1",
            (when, visible.who.name),
        ).fetchone()
        if found is None:
            raise NotFound(f"there is no snapshot {when!r}")
        return Moment(*found)
    if isinstance(when, Moment):
        seq = min(when.seq, newest)
        seen = newest_seen(db, visible, seq)
        unchanged = seen == newest_seen(db, visible)
        at = now if unchanged else db.execute("select at from log where seq = ?", (seen,)).get or 0
    else:
        if when // 1000 > now // 1000:  # times are told in us
            raise NotFound("that is yet to come")
        seq, at = _newest_until(db, when, newest), when
    begins = db.execute("select value from setting where key = 'past_from'").get
    if begins is None:
        raise NotFound("no past is kept: limits.past_days is 0")
    first, since = map(int, str(begins).split())
    if seq < max(first, 1):
        whole = -(-since // 10**9)  # the first second that is not refused
        raise NotFound(f"the past is kept from {datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%SZ} on")
    return Moment(seq, at or since)


def _newest_until(db: apsw.Connection, at: int, newest: int) -> int:
    """The last change that was committed by then: the log is in the order of commits."""
    low, high = 0, newest
    while low < high:
        middle = (low + high + 1) // 2
        row: Any = db.execute("select seq, at from log where seq >= ? order by seq limit 1", (middle,)).fetchone()
        if row is None or row[1] > at:
            high = middle - 1
        else:
            low = row[0]
    return low


def snapshots(db: apsw.Connection, who: Principal) -> list[Snapshot]:
    """The asker's own and the operators', the newest first."""
    rows = db.execute(
        "select name, agent, seq, at, root from snapshot where agent in ('', ?) order by at desc, name", (who.name,)
    )
    return [Snapshot(name, agent, Moment(*then)) for name, agent, *then in rows]
