"""Which life of its a store is in: the setting 'incarnation', random, made anew where a store goes back behind what was
acknowledged. Its numbers are given out again then, and whoever noted any of them elsewhere can tell."""

from __future__ import annotations

from typing import Final

import apsw

BEGUN: Final = "insert or replace into setting(key, value) values('incarnation', lower(hex(randomblob(16))))"


def read(db: apsw.Connection) -> str:
    """Empty for the first one."""
    return str(db.execute("select value from setting where key = 'incarnation'").get or "")
