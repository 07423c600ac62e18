"""Methods of the door about subscriptions, and what has come of them. Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs import calls
from avmfs.agents import subscriptions as looks
from avmfs.agents.destinations import Allowed, check
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.rpc.methods import method

SHOWN = 1000


@method
def subscribe(
    memory: Memory, pattern: str, mode: str = "realtime", every_s: float | None = None, url: str | None = None
) -> dict[str, Any]:
    """{"number", "secret", "new", "every_s"}: the secret (``whsec_...``) of a new webhook is shown this once."""
    if url is not None:  # what the text tells; who delivers looks at the address itself, each time
        check(url, Allowed(memory.around.webhooks.allow, memory.who.operator))
    _check_text(pattern)
    memory.enroll()
    made = memory.submit("subscribe", pattern=pattern, mode=mode, every=looks.every_ns(every_s), url=url)
    return {"number": made["number"], "secret": made["secret"], "new": made["new"], "every_s": made["every"] / 1e9}


@method
def unsubscribe(memory: Memory, pattern: str, url: str | None = None) -> dict[str, Any]:
    """{"ended"}."""
    _check_text(pattern)
    return dict(memory.submit("unsubscribe", pattern=pattern, url=url))


@method
def subscriptions(memory: Memory, everybody: bool = False) -> dict[str, Any]:
    """{"text", "subscriptions"}: the asker's own, or everybody's for an operator."""
    with memory.reading() as reader:
        found = reader.outbox.subscriptions(everybody=everybody)
    return {
        "text": looks.listing(found, memory.zone, whose=everybody),
        "subscriptions": [looks.as_values(each) for each in found],
    }


@method
def dead_letters(memory: Memory) -> dict[str, Any]:
    """{"text", "letters"}: what could not be delivered for the asker; for an operator what hooks failed at, too."""
    with memory.reading() as reader:
        found = reader.outbox.dead(SHOWN)
    return {"text": looks.dead_listing(found, memory.zone), "letters": [looks.letter_values(each) for each in found]}


@method
def redeliver(memory: Memory, messages: list[str] | None = None) -> dict[str, Any]:
    """Try the asker's dead letters anew, or these; an operator's are those of the hooks too. {"count"}."""
    return dict(memory.submit("redeliver", messages=messages))


@method
def notices(memory: Memory, mark_read: bool = False) -> dict[str, Any]:
    """{"text", "notices"}: what subscriptions without a webhook have for the asker; ``mark_read``: and never again."""
    memory.store.match_subscriptions(calls.go_on)
    memory.submit("collect_notices")
    with memory.reading() as reader:
        found = reader.outbox.notices(SHOWN)
    if mark_read and found:
        memory.submit("forget_notices", messages=[each.message for each in found])
    return {
        "text": looks.notice_listing(found, memory.zone),
        "notices": [looks.notice_values(each, memory.who.name) for each in found],
    }


def _check_text(pattern: str) -> None:
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise Invalid("a pattern is UTF-8 text") from None
