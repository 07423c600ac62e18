"""Questions of the audit to the SQLite store, reached as ``reader.audit``."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import apsw

from avmfs import calls
from avmfs.store.queries.part import Part
from avmfs.store.queries.standing import Standing
from avmfs.store.rows.hash_chain import START, Anchor, Batch, Row, packed
from avmfs.store.rows.log_ops import CARRIED
from avmfs.store.schema import tables

Subject = tuple[int, int]  # a version: document and number


@dataclass(frozen=True, slots=True)
class Act:
    """A row of the audit as its reader may see it."""

    seq: int
    at: int
    agent: str
    elevated: bool
    route: str
    op: str
    path: bytes
    other: bytes | None
    version: int | None
    about: str | None


def _guarded(columns: str, right: str, wrong: str) -> str:
    """Columns of a table that somebody may have laid hands on: a value of another type than is ever stored becomes one
    that no row has, so that it reads as a change and not as an error."""
    return ", ".join(f"case when {right.format(name)} then {name} else {wrong} end" for name in columns.split())


_TEXT: Final = "typeof({0}) in ('text', 'null')"
_NUMBER: Final = "typeof({0}) in ('integer', 'null')"
_BLOB: Final = "typeof({0}) in ('blob', 'null')"
_NO_BLOB: Final = "x'00'"


def _bytes_of(columns: str) -> str:
    """Texts as bytes: one that is no UTF-8 is another text, and no error."""
    shown = (
        f"case when {_TEXT.format(name)} then cast({name} as blob) else {_NO_BLOB} end" for name in columns.split()
    )
    return ", ".join(shown)


_ROW: Final = ", ".join(
    (
        _guarded("seq at", _NUMBER, "-1"),
        _bytes_of("op agent route"),
        _guarded("elevated node document version scope", _NUMBER, "-1"),
        _bytes_of("about"),
        _guarded("path other salt", _BLOB, _NO_BLOB),
    )
)
_BATCH: Final = ", ".join((_guarded("first last", _NUMBER, "-1"), _guarded("hashes head", _BLOB, _NO_BLOB)))
_ACT: Final = "seq, at, agent, elevated, route, op, path, other, version, about"
# What an act may do beside what was asked for, to what its agent cannot see: where text came from is passed on to all
# that is made of it, and what has expired goes with its directory.
_REACH: Final = ("trust", "remove")
# An agent's acts as the operator are the operator's to see: they may name what the agent itself cannot see. "+" keeps
# the planner from sorting all that is visible: the log's own order, until there are enough.
_SEEN: Final = "+scope in (select value from json_each(:scopes))"
_MINE: Final = f"((agent = :who and not elevated and op not in {_REACH}) or {_SEEN})"
_AT: Final = (
    "(path = :path or substr(path, 1, :length) = :below or other = :path or substr(other, 1, :length) = :below)"
)


# What a version says of itself, and what the row of the log says in which it was made, or amended last: as one text,
# in which a value of another type shows as what it is.
_VERSIONS: Final = """
select version.document, number, document.handle, version.seq, log.op,
  quote(author) || ' ' || quote(version.route) || ' at ' || version.at,
  iif(log.op = 'write' and log.document is version.document and coalesce(log.version, number) = number,
    quote(log.agent) || ' ' || quote(log.route) || ' at ' || log.at, null)
from version left join log on log.seq = version.seq left join document on document.id = version.document
where (version.document, number) > (?, ?) order by version.document, number limit ?
"""
_REPAIRED: Final = ("lost", "repair")  # rows by which a repair says that it found none
# A message is in the log once for each receiver, under its number there, which may be given anew once the message is
# gone: by its first row since it was sent, which is when its id was the newest seq.
_MAIL: Final = """
select receiver, number, quote(iif(delivered is told, written, delivered)), seq, quote(told) from (
  select delivery.agent as receiver, delivery.number, delivery.sender as delivered, message.sender as written,
    min(seq) as seq, log.agent as told
  from log join delivery on delivery.number = log.version and log.path = cast('/tell/' || delivery.agent as blob)
    left join message on message.id = delivery.message
  where op = 'tell' and log.seq >= delivery.message group by delivery.agent, delivery.number
) where delivered is not told or coalesce(written, told) is not told order by seq limit ?
"""
_KEPT: Final = ("log", "chain", "checkpoint", "refusal", "version", "message", "delivery")
# A comment, or (the group) a literal, a quoted name, a word, a sign.
_TOKEN: Final = re.compile(r"--[^\n]*|/\*.*?\*/|('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\w+|[^\w\s])", re.DOTALL)
_QUOTED: Final = re.compile(r'\A"([a-z_]+)"\Z')


def guards(db: apsw.Connection) -> dict[str, str]:
    """The statements that made all triggers, and the tables that the audit is of, by name."""
    rows: list[Any] = db.execute(
        "select name, sql from sqlite_schema where type = 'trigger' or name in (select value from json_each(?))",
        (json.dumps(_KEPT),),
    ).fetchall()
    return {name: normalised(sql) for name, sql in rows}


def normalised(sql: str) -> str:
    """Return a statement without what makes no difference to it: comments, blanks, and the quotes that SQLite sets
    around a name when a migration renames a table."""
    return " ".join(_QUOTED.sub(r"\1", token) for token in _TOKEN.findall(sql) if token)


@functools.cache
def _pristine() -> dict[str, str]:
    """Of a store that this version has just made."""
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        for _ in db.execute(tables.TABLES):
            pass
        return guards(db)


def trimmed(start: Anchor) -> str:
    """What a row of the log says is about when it tells of a trim, operation ``trim``."""
    return packed({"head": start.head.hex(), "seq": start.seq})


class AuditReader(Part):
    """All but ``acts`` are the operator's: they raise Denied for anybody else."""

    def acts(
        self,
        *,
        since: int = 0,
        after_seq: int = 0,
        agent: str | None = None,
        path: bytes | None = None,
        limit: int = 100,
    ) -> list[Act]:
        """What the asker did, as itself, and what happened to what it may see, then and today; the operator sees
        everything. Newest first; ``since`` in ns, ``path`` is a node's or that of a directory above it."""
        bound: dict[str, Any] = {"since": since, "after": after_seq}
        wanted = ["seq > :after", "at >= :since"]
        if not self._who.operator:
            wanted += [f"op <> '{CARRIED}'", _MINE if self._who.key is None else _SEEN]
            bound |= {"who": self._who.name, "scopes": self._visible.json}
        if agent is not None:
            wanted.append("agent = :agent")
            bound["agent"] = agent
        if path is not None and path != b"/":
            wanted.append(_AT)
            bound |= {"path": path, "below": path + b"/", "length": len(path) + 1}
        standing = Standing(self._db, self._who, self._visible)
        own = self._who.name if self._who.key is None else None

        def shown(scope: int, act: Act) -> bool:
            if act.agent == own and not act.elevated and (act.op not in _REACH or standing.holds(scope)):
                return True
            ends = () if act.other is None else (act.path, act.other)
            return standing.saw(scope, act.path) and all(map(standing.sees, ends))

        found = self._db.execute(f"select scope, {_ACT} from log where {' and '.join(wanted)} order by seq desc", bound)
        with contextlib.closing(found):  # as in Reader.changes
            rows = calls.going_on(found)
            acts = ((scope, Act(seq, at, who, bool(elevated), *rest)) for scope, seq, at, who, elevated, *rest in rows)
            return [*islice((act for scope, act in acts if shown(scope, act)), limit)]

    def refusals_before(self, at: int) -> bool:
        """Return whether there is a window of refusals that began before ``at`` (ns), or when the clock was ahead."""
        self._require_operator()
        over = "select 1 from refusal where first < ? or first > ? limit 1"
        return self._db.execute(over, (at, self._now)).get is not None

    def tip(self) -> Anchor:
        """Up to where the chain reaches."""
        self._require_operator()
        row = self._db.execute("select last, head, at from chain order by first desc limit 1").fetchone()
        return Anchor(*row) if row is not None else self.start() or Anchor(0, START)

    def start(self) -> Anchor | None:
        """Where it begins when rows were trimmed."""
        self._require_operator()
        row = self._db.execute("select seq, head, at from checkpoint order by seq desc limit 1").fetchone()
        return None if row is None else Anchor(*row)

    def unchained(self, limit: int) -> list[Row]:
        """The rows that come next."""
        reached = self.tip().seq
        rows = self._db.execute(f"select {_ROW} from log where seq > ? order by seq limit ?", (reached, limit))
        return [_row(*row) for row in rows]

    def batches(self, after: int, limit: int) -> list[Batch]:
        """Of the chain, those that begin after row ``after``."""
        self._require_operator()
        rows = self._db.execute(f"select {_BATCH} from chain where first > ? order by first limit ?", (after, limit))
        return [Batch(*row) for row in rows]

    def rows(self, first: int, last: int) -> list[Row]:
        self._require_operator()
        rows = self._db.execute(f"select {_ROW} from log where seq between ? and ? order by seq", (first, last))
        return [_row(*row) for row in rows]

    def bounds(self) -> tuple[int | None, int]:
        """The first and the last seq of the log."""
        self._require_operator()
        first, last = self._db.execute("select min(seq), max(seq) from log").fetchone() or (None, None)
        return first, last or 0

    def trim_is_told(self, start: Anchor) -> bool:
        """Return whether a later row of the log tells that the rows up to ``start`` were removed."""
        self._require_operator()
        found = self._db.execute(
            "select 1 from log where seq > ? and op = 'trim' and about = ?", (start.seq, trimmed(start))
        )
        return found.get is not None

    def altered(self) -> list[str]:
        """What of the schema is not as this version makes it: any trigger, any table of the audit. Their names."""
        self._require_operator()
        found, made = guards(self._db), _pristine()
        return sorted(name for name in found.keys() | made.keys() if found.get(name) != made.get(name))

    def misattributed(self, kept_from: int, after: Subject, limit: int) -> tuple[list[str], Subject | None]:
        """Of ``limit`` versions behind ``after``, those that the log tells otherwise, a line each, and the last one
        looked at; None: there are no more. Rows before ``kept_from`` were trimmed."""
        self._require_operator()
        rows: list[Any] = self._db.execute(_VERSIONS, (*after, limit)).fetchall()
        found = []
        for document, number, handle, seq, op, said, told in rows:
            if said != told and seq >= kept_from and op not in _REPAIRED:
                where = f"@{handle}" if handle else f"document {document}"
                says = "the log has no such row" if told is None else f"row {seq} of the log says {told}"
                found.append(f"version {number} of {where}: {said}; {says}")
        return found, tuple(rows[-1][:2]) if rows else None

    def missent(self, limit: int) -> list[str]:
        """Messages that name another sender than the log does, a line each."""
        self._require_operator()
        rows = self._db.execute(_MAIL, (limit,))
        return [
            f"message {number} to {to}: from {said}; row {seq} of the log says {told}"
            for to, number, said, seq, told in rows
        ]

    def _require_operator(self) -> None:
        self._who.require_operator("the chain of the audit is the operator's")


def _row(seq: int, at: int, op: bytes, agent: bytes, route: bytes, *more: Any) -> Row:
    about = None if more[5] is None else _text(more[5])
    columns: list[Any] = [seq, at, _text(op), _text(agent), _text(route), *more[:5], about, *more[6:]]
    return Row(*columns)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
