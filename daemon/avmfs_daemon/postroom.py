"""What the daemon does about mail: expired messages go, of what was read only so much is kept, and status counts.

Called by the keeper, every few minutes, and by whoever tells the daemon's status. Unread mail is never trimmed: how
much of it there can be is limited where it is sent.
"""

from __future__ import annotations

from typing import Final

from avmfs_config import Limits

from avmfs.store.identity import OPERATOR
from avmfs.store.protocol.store import Store

EVERY_S: Final = 300.0
_DAY_NS: Final = 24 * 3600 * 1_000_000_000
_AT_ONCE: Final = 1000  # in one transaction, for which others wait
_ROUNDS: Final = 100


def trim(store: Store, limits: Limits, now: int) -> int:
    """Remove what is too old or too many; ``now`` is ns since the epoch. How many deliveries."""
    before, total = now - limits.read_days * _DAY_NS, 0
    for _ in range(_ROUNDS):
        done = store.submit(OPERATOR, "trim_mail", before=before, keep=limits.read_messages, limit=_AT_ONCE)
        total += done["count"]
        if done["count"] < _AT_ONCE:
            break
    return total


def unread(store: Store) -> dict[str, int]:
    """How many messages each agent has that it has not read, without those of low priority."""
    with store.reading(OPERATOR) as reader:
        return reader.mail.unread_of_all()
