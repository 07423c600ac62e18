"""What a webhook carries, and how it is signed: Standard Webhooks (https://www.standardwebhooks.com).

Owns the payloads and the headers. A payload tells that something changed and where, never what it says: a receiver that
may read it asks with its own rights. Pure; called by the deliverer, and by listings that show what an event is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from avmfs.agents.mail import iso
from avmfs.store.rows.events import Event, latest_by_path

DIGEST_SHOWN: Final = 1000  # paths in one digest
LONGEST_PAUSE_S: Final = 6 * 3600.0
GROWTH: Final = 3.0
_EXPONENT_MAX: Final = 20  # far past the longest pause


def payload(message: str, mode: str, pattern: str, agent: str, events: Sequence[Event]) -> bytes:
    """The body of one delivery, JSON: an object for an event, an array of them for a batch and what another mode had
    gathered, and for a digest an object with ``counts`` by event and the ``changes`` of each path."""
    if mode == "digest":
        return _json(_digest(message, pattern, agent, events))
    if mode == "batched" or len(events) > 1:
        return _json([one_event(f"{message}.{n}", pattern, agent, event) for n, event in enumerate(events)])
    return _json(one_event(message, pattern, agent, events[-1]))


def one_event(id_: str, pattern: str, agent: str, event: Event) -> dict[str, Any]:
    """``agent_id`` is the subscriber. ``version`` is null for what has none."""
    return {
        "agent_id": agent,
        "event": event.event,
        "id": id_,
        "path": shown(event.path),
        "pattern": shown(pattern),
        "timestamp": iso(event.at),
        "version": event.version,
    }


def shown(path: str) -> str:
    """JSON is UTF-8: bytes of a name that are not become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def signed(secret: bytes, message: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers; ``timestamp`` is of this try, in seconds since the epoch."""
    content = f"{message}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
    return {"webhook-id": message, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float, tolerance_s: float = 300.0) -> bool:
    """For receivers in Python: return whether this delivery is recent, and from one who knows the ``whsec_`` secret.
    ``headers`` by lower-case name."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    try:
        message, timestamp = headers["webhook-id"], int(headers["webhook-timestamp"])
        given = headers["webhook-signature"].encode().split()
        recent = abs(now - timestamp) <= tolerance_s
        wanted = signed(key, message, timestamp, body)["webhook-signature"].encode()
    except (KeyError, ValueError, OverflowError):
        return False
    return recent and any(hmac.compare_digest(wanted, each) for each in given)


def pause_s(failures: int, first_s: float, chance: random.Random) -> float:
    """How long to wait after so many tries in a row have failed: exponential, and by chance up to half of it less, so
    that many who lost the same receiver do not come back at once."""
    whole = min(LONGEST_PAUSE_S, first_s * GROWTH ** min(failures - 1, _EXPONENT_MAX))
    return whole * chance.uniform(0.5, 1.0)


def _digest(message: str, pattern: str, agent: str, events: Sequence[Event]) -> dict[str, Any]:
    paths = latest_by_path(events)
    counts: Counter[str] = Counter()
    for event in paths:
        counts[event.event] += event.count
    changes = [
        {
            "count": event.count,
            "event": event.event,
            "path": shown(event.path),
            "timestamp": iso(event.at),
            "version": event.version,
        }
        for event in paths[:DIGEST_SHOWN]
    ]
    return {
        "agent_id": agent,
        "changes": changes,
        "counts": dict(counts),
        "event": "digest",
        "id": message,
        "more": max(0, len(paths) - DIGEST_SHOWN),
        "path": None,
        "pattern": shown(pattern),
        "timestamp": iso(max(event.at for event in paths)),
        "version": None,
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
