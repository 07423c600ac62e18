"""How subscriptions, notices and dead letters look, and which times they take.

Owns the text of :subscriptions and of the command line (docs/FORMATS.md), and the plain values that doors return. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

from avmfs import paths
from avmfs.agents.mail import show_duration, show_time
from avmfs.agents.told import told
from avmfs.agents.webhooks import one_event, shown
from avmfs.errors import Invalid
from avmfs.store.queries.outbox import Letter, Notice, Subscription


def every_ns(seconds: float | None) -> int | None:
    """What ``-t`` says, in ns. Raises Invalid."""
    if seconds is None:
        return None
    if not 0 <= seconds <= 31 * 86400:  # also refuses nan
        raise Invalid("the time of a subscription is 0 to 2678400 seconds")
    return int(seconds * 1e9)


def listing(found: Sequence[Subscription], zone: tzinfo, *, whose: bool = False) -> str:
    """A line each: ``#1  /memory/shared/*  throttled 1m  -> URL  12 delivered, 3 waiting``."""
    if not found:
        return "(no subscriptions)\n"
    return "".join(_line(each, zone, whose) for each in found)


def _line(each: Subscription, zone: tzinfo, whose: bool) -> str:
    mode = each.mode if each.mode == "realtime" else f"{each.mode} {show_duration(each.every)}"
    where = "-> :pending" if each.url is None else f"-> {each.url}"
    counts = [f"{each.sent} delivered"] if each.url is not None else [f"{each.unread} unread"]
    counts += [f"{each.waiting} waiting"] if each.waiting else []
    counts += [f"{each.dead} dead"] if each.dead else []
    owner = f"{each.agent} " if whose else ""
    text = f"{owner}#{each.number}  {_printable(each.pattern)}  {mode}  {where}  {', '.join(counts)}"
    if each.error is not None:
        again = "" if each.retry_at is None else f"; again at {show_time(each.retry_at, zone)}"
        text += f"  (failing: {_printable(each.error)}{again})"
    return text + "\n"


def dead_listing(letters: Sequence[Letter], zone: tzinfo) -> str:
    """What could not be delivered: a header each, and its events below."""
    if not letters:
        return "(no dead letters)\n"
    blocks = []
    for each in letters:
        tries = "1 try" if each.attempts == 1 else f"{each.attempts} tries"
        events = "".join(f"  {event.event}  {_printable(event.path)}\n" for event in each.events[:10])
        blocks.append(
            f"{each.message}  #{each.number} {_printable(each.pattern)} -> {each.url}\n"
            f"  {tries}: {_printable(each.error)}\n{events}"
        )
    return "".join(blocks)


def notice_listing(notices: Sequence[Notice], zone: tzinfo) -> str:
    """What subscriptions without a webhook have to tell: ``2026-03-07 10:30  write  /memory/shared/a.md v3``."""
    if not notices:
        return "(nothing pending)\n"
    return "".join(
        f"{show_time(event.at, zone)}  {event.author}  {event.event}  {_printable(event.path)}"
        f"{'' if event.version is None else f' v{event.version}'}{'' if event.count == 1 else f' ({event.count}x)'}\n"
        for each in notices
        for event in each.events
    )


def as_values(each: Subscription) -> dict[str, Any]:
    plain = "agent created dead error mode number pattern retry_at unread url waiting"
    return told(each, plain, delivered=each.sent, every_s=each.every / 1e9)


def letter_values(each: Letter) -> dict[str, Any]:
    where = [shown(event.path) for event in each.events]
    return told(each, "at attempts error number pattern url", id=each.message, paths=where)


def notice_values(each: Notice, agent: str) -> dict[str, Any]:
    events = [
        one_event(each.message, each.pattern, agent, event) | {"author": event.author, "count": event.count}
        for event in each.events
    ]
    return told(each, "at mode number pattern", id=each.message, events=events)


def _printable(text: str) -> str:
    return paths.printable(paths.raw(text))
