"""Where a store stands in the shared log of several hosts, if it is one of them: the setting 'shared_log'.

Owns that row, which every host writes for itself. Called by whoever writes, and by whoever must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import apsw

KEY: Final = "shared_log"


@dataclass(frozen=True, slots=True)
class Position:
    """``cluster``: the log's id. ``number``: of the newest record that is applied. ``rules``: digest of the rules with
    which this host was last at one with the others, "" before the first time. ``last``: that record's token in hex, ""
    where it is not known."""

    cluster: str
    number: int
    rules: str = ""
    last: str = ""


def position(db: apsw.Connection) -> Position | None:
    """None of a store that is not one of several."""
    text = db.execute("select value from setting where key = ?", (KEY,)).get
    if text is None:
        return None
    cluster, number, rules, *last = text.split(" ")
    return Position(cluster, int(number), rules, *last)


def place(db: apsw.Connection, at: Position | None) -> None:
    """No session may see this."""
    if at is None:  # nobody cuts a log for it any more
        db.execute("delete from setting where key in (?, 'uncut')", (KEY,))
    else:
        value = f"{at.cluster} {at.number} {at.rules} {at.last}"
        db.execute("insert or replace into setting(key, value) values(?, ?)", (KEY, value))
