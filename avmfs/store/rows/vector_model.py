"""The model that a store's vectors are to be of, and how far its passages have been looked through for it.

Owns one row of ``setting``. Written by the command ``follow_model``; read by the index process, the keeper, and
whoever reports. A store holds vectors of several models while it changes over; only those of one are compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

import apsw

KEY: Final = "vector_model"


@dataclass(frozen=True, slots=True)
class Walk:
    """Passages up to ``walked``, out of those up to ``until``, have been queued if they lack a vector of ``model``;
    ``settled``: every one."""

    model: str
    dimension: int
    walked: int
    until: int

    @property
    def settled(self) -> bool:
        return self.walked >= self.until


def read(db: apsw.Connection) -> Walk | None:
    value = db.execute("select value from setting where key = ?", (KEY,)).get
    return None if value is None else Walk(**json.loads(value))


def write(db: apsw.Connection, walk: Walk) -> None:
    db.execute(
        "insert or replace into setting(key, value) values(?, ?)", (KEY, json.dumps(asdict(walk), sort_keys=True))
    )
