"""Which instants of the past can be asked for: times, changes, snapshots.

Called by the reader. ``queries.past`` reads the tree as it was then.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any, Final

import apsw

from avmfs.access import Principal
from avmfs.errors import NotFound
from avmfs.node import Moment, Snapshot
from avmfs.store.rows.scopes import Visible

LOOKS: Final = 200  # at rows of the log, in one pass of a search
_BESIDE: Final = 10  # so many steps on either side of what one has found the next looks at, closer


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
        unkept = db.execute("select value from setting where key = 'unkept'").get
        lost = found is not None and unkept is not None and found[0] < int(unkept)
        if found is None or (lost and visible.who.key is not None):  # nobody knows whether it had something for the key
            raise NotFound(f"there is no snapshot {when!r}")
        if lost:
            raise NotFound(f"snapshot {when!r} is lost: an earlier avmfs kept nothing for it (limits.past_days: 0)")
        return Moment(*found)
    begins = db.execute("select value from setting where key = 'past_from'").get
    if begins is None:
        raise NotFound("but for snapshots no past is kept: limits.past_days is 0")
    first, since = map(int, str(begins).split())
    if isinstance(when, Moment):
        seq = min(when.seq, newest)
        seen = newest_seen(db, visible, seq)
        unchanged = seen == newest_seen(db, visible)
        at = now if unchanged else db.execute("select at from log where seq = ?", (seen,)).get or 0
    else:
        if when // 1000 > now // 1000:  # times are told in us
            raise NotFound("that is yet to come")
        seq, at = _newest_until(db, when, now, max(first, 1) - 1, newest), when
    if seq < max(first, 1):
        whole = -(-since // 10**9)  # the first second that is not refused
        raise NotFound(f"the past is kept from {datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%SZ} on")
    return Moment(seq, at or since)


def _newest_until(db: apsw.Connection, at: int, now: int, low: int, high: int) -> int:
    """The last change above ``low`` that was committed by then. The log is in the order of commits, and its times are
    those of clocks, of which one may have been wrong for a while: changes of then vote, and the few that are wrong are
    outvoted. One that claims to be of later than now is wrong anyway."""
    step = max(1, (high - low) // LOOKS)
    found, votes, most = low, 0, 0
    for seq in range(low + step, high + 1, step):
        said = db.execute("select at from log where seq = ?", (seq,)).get
        if said is not None and said <= now:
            votes += 1 if said <= at else -1
            if votes >= most:
                found, most = seq, votes
    if step == 1:
        return found
    return _newest_until(db, at, now, max(low, found - _BESIDE * step), min(high, found + _BESIDE * step))


def snapshots(db: apsw.Connection, who: Principal) -> list[Snapshot]:
    """The asker's own and the operators', the newest first."""
    rows = db.execute(
        "select name, agent, seq, at, root from snapshot where agent in ('', ?) order by at desc, name", (who.name,)
    )
    return [Snapshot(name, agent, Moment(*then)) for name, agent, *then in rows]
