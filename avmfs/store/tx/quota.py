"""What each agent takes up, and whether it may take up more.

Owns the table usage while a quota is configured. Triggers of the one writing connection tell of every row of node,
version, tag and link that comes, grows, changes hands or goes, and of the keys of :meta, whatever command did it: no
route can forget to. What is said about a document counts as bytes of who made it, or in whose private space it has come
to stand, as its history does; a link as those of who made the link. A request's sum is added to the counters, and held
against the quota, in one statement per agent at the request's end, in its own transaction, so that the counters are
right after a crash. Without any quota there are no triggers, and nothing is counted. Called by the applier, by
``settle`` and, for a look, by readers. Same thread as the connection.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from avmfs.access import Quota
from avmfs.errors import OverQuota
from avmfs.store.rows.usage import (
    CHARGED,
    CREATOR,
    KEPT_BYTES,
    LINK_BYTES,
    RECOUNT,
    TAG_BYTES,
    USER_BYTES,
    Used,
)
from avmfs.store.tx.states import Triggers
from avmfs.store.tx.transaction import Tx

_COUNTED: Final = "nodes, versions, what is said, by private space; links"  # in the setting; older stores have less
_KEPT: Final = f"(select coalesce(sum({KEPT_BYTES.format('version')}), 0) from version where document = new.id)"
_SAID: Final = (
    f"{USER_BYTES.format('new')}"
    f" + (select coalesce(sum({TAG_BYTES.format('tag')}), 0) from tag where document = new.id)"
)
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
    f" begin select avm_charge({CREATOR.format('new')}, 0, 0, {KEPT_BYTES.format('new')})",
    "version_is_kept": "after update of encoding, body, size on main.version begin select avm_charge("
    f"{CREATOR.format('new')}, 0, 0, {KEPT_BYTES.format('new')} - {KEPT_BYTES.format('old')})",
    "version_goes": "after delete on main.version"
    f" begin select avm_charge({CREATOR.format('old')}, 0, 0, -{KEPT_BYTES.format('old')})",
    "tag_comes": f"after insert on main.tag begin select avm_charge({CREATOR.format('new')}, 0,"
    f" {TAG_BYTES.format('new')}, 0)",
    "tag_moves": "after update on main.tag begin"
    f" select avm_charge({CREATOR.format('old')}, 0, -({TAG_BYTES.format('old')}), 0);"
    f" select avm_charge({CREATOR.format('new')}, 0, {TAG_BYTES.format('new')}, 0)",
    "tag_goes": f"after delete on main.tag begin select avm_charge({CREATOR.format('old')}, 0,"
    f" -({TAG_BYTES.format('old')}), 0)",
    "link_comes": f"after insert on main.link begin select avm_charge(new.agent, 0, {LINK_BYTES}, 0)",
    "link_goes": f"after delete on main.link begin select avm_charge(old.agent, 0, -{LINK_BYTES}, 0)",
    "keys_change": f"after update of user on main.document begin select avm_charge({CHARGED.format('new')}, 0,"
    f" {USER_BYTES.format('new')} - {USER_BYTES.format('old')}, 0)",
    "keys_go": "after delete on main.document when old.user is not null"
    f" begin select avm_charge({CHARGED.format('old')}, 0, -{USER_BYTES.format('old')}, 0)",
    "document_changes_hands": "after update of charged on main.document"
    f" begin select avm_charge({CHARGED.format('old')}, 0, -({_SAID}), -({_KEPT}));"
    f" select avm_charge({CHARGED.format('new')}, 0, {_SAID}, {_KEPT})",
}


class Charges(Triggers):
    """See the module. ``keep`` before the first request under a policy; ``settle`` at the end of each request."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(db, _TRIGGERS)
        self._pending: dict[str, list[int]] = {}
        db.create_scalar_function("avm_charge", self._charge, 4)

    def _charge(self, *told: Any) -> None:
        agent, nodes, size, history = told
        if agent is not None:
            sums = self._pending.setdefault(agent, [0, 0, 0])
            for place, change in enumerate((nodes, size, history)):
                sums[place] += change

    def begin(self) -> None:
        """A request begins; what one before it did was rolled back if it is still here."""
        self._pending.clear()

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
                itself = agent == tx.who.name and tx.who.key is None
                _refuse_more(agent, tx.policy.person(agent).quota, change, used, itself)
        self._pending.clear()


def _refuse_more(agent: str, quota: Quota, change: list[int], used: Used, itself: bool) -> None:
    """What it takes up is told to an agent ``itself`` alone: it counts what others cannot see."""
    nodes = "files and directories" + (" (as its bytes allow: `nodes` says otherwise)" if quota.nodes is None else "")
    most = ((quota.most_nodes, nodes), (quota.bytes, "bytes"), (quota.history_bytes, "bytes of history"))
    for (limit, what), more, now in zip(most, change, used, strict=True):
        if limit is not None and more > 0 and now > limit:
            raise OverQuota(f"{agent} may have {limit} {what}, this would be {now if itself else 'more'}")


def recount(tx: Tx) -> None:
    """Once, when the first quota is configured, or what is counted is something else than before: count what is there.
    And forget it all with the last one."""
    kept = tx.db.execute("select value from setting where key = 'charged'").get
    if kept == (_COUNTED if tx.policy.quotas else None):
        return
    tx.db.execute("delete from usage")
    if tx.policy.quotas:
        tx.db.execute(f"insert into usage(agent, nodes, bytes, history) {RECOUNT}")
        tx.db.execute("insert or replace into setting(key, value) values('charged', ?)", (_COUNTED,))
    else:
        tx.db.execute("delete from setting where key = 'charged'")
