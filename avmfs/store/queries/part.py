"""What readers of one subject have in common. They are attributes of ``nodes.Reader``; this knows no subject."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import apsw

from avmfs.access import Principal
from avmfs.store.rows.scopes import Visible


class Part:
    """Questions about one subject, on the snapshot and for the asker of a reader, as long as that lives."""

    __slots__ = ("_db", "_now", "_visible", "_who")

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible, now: int) -> None:
        self._db, self._who, self._visible, self._now = db, who, visible, now

    def _all(self, sql: str, **bindings: Any) -> list[Any]:
        """The rows; bound are :agent (who asks), :scopes and :now as well."""
        bound = {"agent": self._who.name, "scopes": self._visible.json, "now": self._now, **bindings}
        return self._db.execute(sql, bound).fetchall()


_Part = TypeVar("_Part", bound=Part)


class PartOf(Generic[_Part]):
    """An attribute of a reader: its part of this kind."""

    def __init__(self, kind: type[_Part]) -> None:
        self._kind = kind

    def __get__(self, reader: Any, owner: object = None) -> _Part:
        return self._kind(reader._db, reader.who, reader.visible, reader.now)
