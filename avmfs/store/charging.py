"""What each agent takes up, and whether it may take up more.

Owns the table usage while a quota is configured. Triggers of the one writing connection tell of every row of node and
version that comes, grows, changes hands or goes, whatever command did it: no route can forget to. A request's sum is
added to the counters, and held against the quota, in one statement per agent at the request's end, in its own
transaction, so that the counters are right after a crash. Without any quota there are no triggers, and nothing is
counted. Called by the applier, by ``settle`` and, for a look, by readers. Same thread as the connection.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from avmfs.access import Quota
from avmfs.errors import OverQuota
from avmfs.store.transaction import Tx

# What version rows of a document take: an old one that is a map of blocks counts as if all of them were its own.
_KEPT: Final = "case {0}.encoding when 4 then {0}.size else coalesce(length({0}.body), 0) end"
_CREATOR: Final = "(select creator from document where id = {}.document)"
# Of the connection and not of the database: who opens the store without quotas has none of them.
_TRIGGERS: Final = {
    "node_comes": "after insert on main.node when new.owner is not null"
                  " begin select avm_charge(new.owner, 1, new.size, 0)",
    "node_grows": "after update of size on main.node when new.owner is not null and old.owner is new.owner"
                  " and new.size <> old.size begin select avm_charge(new.owner, 0, new.size - old.size, 0)",
    "node_changes_hands": "after update of owner on main.node when old.owner is not new.owner"
                          " begin select avm_charge(old.owner, -1, -old.size, 0);"
                          " select avm_charge(new.owner, 1, new.size, 0)",
    "node_goes": "after delete on main.node when old.owner is not null"
                 " begin select avm_charge(old.owner, -1, -old.size, 0)",
    "version_comes": "after insert on main.version when new.body is not null"
                     f" begin select avm_charge({_CREATOR.format('new')}, 0, 0, {_KEPT.format('new')})",
    "version_is_kept": "after update of encoding, body, size on main.version begin select avm_charge("
                       f"{_CREATOR.format('new')}, 0, 0, {_KEPT.format('new')} - {_KEPT.format('old')})",
    "version_goes": "after delete on main.version"
                    f" begin select avm_charge({_CREATOR.format('old')}, 0, 0, -{_KEPT.format('old')})",
}  # fmt: skip
# Every agent's sums, from the rows themselves.
_RECOUNT: Final = f"""
select agent, sum(nodes), sum(bytes), sum(history) from (
  select owner as agent, 1 as nodes, size as bytes, 0 as history from node where owner is not null
  union all
  select creator, 0, 0, {_KEPT.format("version")} from version join document on document.id = version.document
) group by agent"""

Used = tuple[int, int, int]  # nodes, bytes, history


class Charges:
    """See the module. ``keep`` before the first request under a policy; ``settle`` at the end of each request."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._kept: bool | None = False
        self._pending: dict[str, list[int]] = {}
        db.create_scalar_function("avm_charge", self._charge, 4)

    def _charge(self, *told: Any) -> None:
        agent, nodes, size, history = told
        if agent is not None:
            sums = self._pending.setdefault(agent, [0, 0, 0])
            for place, change in enumerate((nodes, size, history)):
                sums[place] += change

    def keep(self, wanted: bool) -> None:
        """Count from now on, or no longer."""
        if wanted != self._kept:
            for name, does in _TRIGGERS.items():
                if wanted:
                    self._db.execute(f"create temp trigger if not exists {name} {does}; end")
                else:
                    self._db.execute(f"drop trigger if exists temp.{name}")
        self._kept = wanted

    def begin(self) -> None:
        """A request begins; what one before it did was rolled back if it is still here."""
        self._pending.clear()

    def forget(self) -> None:
        """The transaction was rolled back, and the triggers with it if they were made in it."""
        self._kept = None

    def settle(self, tx: Tx) -> None:
        """Add what this request changed. Raises OverQuota where somebody who is no operator took more than there is."""
        for agent, change in self._pending.items():
            if not any(change):
                continue
            used: Any = self._db.execute(
                "insert into usage(agent, nodes, bytes, history) values(?, ?, ?, ?) on conflict(agent) do update set"
                " nodes = nodes + excluded.nodes, bytes = bytes + excluded.bytes, history = history + excluded.history"
                " returning nodes, bytes, history",
                (agent, *change),
            ).fetchone()
            if not tx.who.operator:
                _refuse_more(agent, tx.policy.person(agent).quota, change, used)
        self._pending.clear()


def _refuse_more(agent: str, quota: Quota, change: list[int], used: Used) -> None:
    most = ((quota.nodes, "files and directories"), (quota.bytes, "bytes"), (quota.history_bytes, "bytes of history"))
    for (limit, what), more, now in zip(most, change, used, strict=True):
        if limit is not None and more > 0 and now > limit:
            raise OverQuota(f"{agent} may have {limit} {what}, this would be {now}")


def recount(tx: Tx) -> None:
    """Once, when the first quota is configured: count what is there. And forget it all with the last one."""
    kept = tx.db.execute("select 1 from setting where key = 'charged'").get is not None
    if kept == tx.policy.quotas:
        return
    tx.db.execute("delete from usage")
    if tx.policy.quotas:
        tx.db.execute(f"insert into usage(agent, nodes, bytes, history) {_RECOUNT}")
        tx.db.execute("insert into setting(key, value) values('charged', 'yes')")
    else:
        tx.db.execute("delete from setting where key = 'charged'")


def wrong(db: apsw.Connection) -> list[str]:
    """Counters that a recount contradicts; empty when they are right, or not kept."""
    if not db.execute("select 1 from setting where key = 'charged'").get:
        return []
    right: dict[str, Used] = {row[0]: tuple(row[1:]) for row in db.execute(_RECOUNT)}
    kept: dict[str, Used] = {
        row[0]: tuple(row[1:]) for row in db.execute("select agent, nodes, bytes, history from usage")
    }
    nothing = (0, 0, 0)
    return [
        f"{agent} is charged (nodes, bytes, history) {kept.get(agent, nothing)}, {right.get(agent, nothing)} is right"
        for agent in sorted(right.keys() | kept.keys())
        if kept.get(agent, nothing) != right.get(agent, nothing)
    ]


def used_by(db: apsw.Connection, agent: str) -> Used | None:
    """What an agent takes up; None while nothing is counted."""
    row: Any = db.execute(
        "select nodes, bytes, history from setting left join usage on agent = ? where key = 'charged'", (agent,)
    ).fetchone()
    return None if row is None else (row[0] or 0, row[1] or 0, row[2] or 0)
