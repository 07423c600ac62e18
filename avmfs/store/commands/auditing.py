"""What keeps the audit: windows of refusals that are over, the next batch of the chain, what other doors refused."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.errors import Denied, Invalid, OverQuota
from avmfs.store.commands import command
from avmfs.store.rows import hash_chain
from avmfs.store.tx import audit_rows
from avmfs.store.tx.transaction import Tx

_CODES = {"EACCES": Denied, "EDQUOT": OverQuota}


@command(durable=False, frees_space=True)
def settle_refusals(tx: Tx, all_of_them: bool = False) -> dict[str, Any]:
    """Refusals whose window is over become rows of the log, or all of them. {"rows"}."""
    tx.require_operator()
    return {"rows": audit_rows.settle(tx, all_of_them=all_of_them)}


@command(durable=False, frees_space=True)
def extend_chain(tx: Tx, first: int, last: int, hashes: bytes, head: bytes) -> dict[str, Any]:
    """Append a batch, computed by whoever keeps the chain from committed rows, which do not change. {"taken"} is false
    when somebody else was quicker."""
    tx.require_operator()
    if not first <= last or len(hashes) != hash_chain.SHORT * (last - first + 1) or len(head) != len(hash_chain.START):
        raise Invalid("extend_chain: not a batch")
    newest = tx.db.execute("select max(seq) from log").get or 0
    reached = tx.db.execute("select max(last) from chain").get
    if reached is None:
        reached = tx.db.execute("select max(seq) from checkpoint").get or 0
    if first != reached + 1 or last > newest:
        return {"taken": False}
    tx.db.execute(
        "insert into chain(first, last, at, hashes, head) values(?, ?, ?, ?, ?)", (first, last, tx.now, hashes, head)
    )
    return {"taken": True}


@command(durable=False, frees_space=True)
def note_refusal(tx: Tx, verb: str, code: str, path: bytes, count: int = 1) -> dict[str, Any]:
    """A door or a mount has refused something ``count`` times, without asking the store."""
    refusal = _CODES.get(code)
    if refusal is None or not 0 < len(verb) <= 120 or not verb.isprintable() or count < 1:
        raise Invalid("note_refusal: verb and code")
    audit_rows.refused(tx, verb, {}, refusal("", paths.text(path)), count)
    return {}


@command(durable=False, frees_space=True)
def act_as_operator(tx: Tx) -> dict[str, Any]:
    """Somebody has opened a door as the operator: also what is only read then leaves a row."""
    tx.require_operator()
    tx.note("operator")
    return {}
