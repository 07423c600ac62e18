"""Methods of the door about what comes to an agent: messages, subscriptions and their notices. Called through the
registry."""

from __future__ import annotations

import time
from typing import Any

from avmfs import calls, paths, wire
from avmfs.agents import mail
from avmfs.agents import subscriptions as looks
from avmfs.agents.destinations import Allowed, check
from avmfs.agents.told import told
from avmfs.errors import Invalid, NotSupported
from avmfs.memory import Memory
from avmfs.rpc.methods import method
from avmfs.views.messages import await_mail
from avmfs.views.pending import shown, waiting

WAIT_S = 60.0  # the longest that one call of ``inbox`` waits: whoever wants more asks again
POLL_S = 0.5  # between two looks where nobody says when something has come
LARGEST = 10**15  # of a message's number
EACH_BYTES = 1024  # of a message beside its body, and more
ANSWER_BYTES = wire.LIMIT - 1024 * EACH_BYTES  # of messages, beside a banner: a client takes no larger frame


@method
def tell(
    memory: Memory,
    recipient: str,
    body: str,
    priority: str = "normal",
    expires: str | None = None,
    re: int | None = None,
) -> dict[str, Any]:
    """Send a message. {"id"}: its number, as ``re`` is that of the message that it answers."""
    if re is not None:
        _check_number(re)
    return {"id": memory.tell(recipient, body, priority=priority, expires=expires, re=re)}


@method
def inbox(
    memory: Memory, unread_only: bool = False, mark_read: bool = False, wait: float = 0.0, thread: int | None = None
) -> dict[str, Any]:
    """{"text", "messages", "more"}: how many did not fit into one answer. ``mark_read`` marks just what is shown.
    ``wait``: first, for unread mail, at most so many seconds. ``thread``: only messages of that thread, and waiting for
    them."""
    if not 0 <= wait <= WAIT_S:
        raise Invalid(f"wait {wait}: expected 0 to {WAIT_S:g} seconds")
    if thread is not None:
        _check_number(thread)
    if wait:
        _wait(memory, wait, thread)
    messages = memory.inbox(unread_only=unread_only)
    if thread is not None:
        messages = [message for message in messages if message.thread == thread]
    shown = messages[: sum(message.read_at is None for message in messages) + mail.READ_SHOWN]
    blocks, told, room = list[str](), list[dict[str, Any]](), ANSWER_BYTES
    for number, message in enumerate(messages):
        block = mail.block(message, memory.zone) if number < len(shown) else ""
        room -= len((block + message.body).encode("utf-8", "surrogateescape")) + EACH_BYTES
        if room < 0:
            break
        blocks += [block] if block else []
        told.append(mail.plain(message))
    text = mail.listing(shown, memory.zone, len(messages) - len(shown), blocks)
    if mark_read:
        calls.go_on()  # who has gone meanwhile sees none of it
        memory.mark_read([message.id for message in messages[: len(told)] if message.read_at is None])
    return {"text": text, "messages": told, "more": len(messages) - len(told)}


@method
def mark_read(memory: Memory, messages: list[int] | None = None, notices: list[str] | None = None) -> dict[str, Any]:
    """These messages and notices count as read, for who marks what it has shown. {"count"}: how many were unread."""
    for number in messages or ():
        _check_number(number)
    count = memory.mark_read(messages) if messages else 0
    return {"count": count + (memory.submit("forget_notices", messages=notices)["count"] if notices else 0)}


@method
def delete_mail(memory: Memory, messages: list[int] | None = None) -> dict[str, Any]:
    """Remove messages from one's own mail by number, or all that are read. {"count"}."""
    for number in messages or ():
        _check_number(number)
    return {"count": int(memory.submit("delete_mail", messages=messages)["count"])}


@method
def unread(memory: Memory) -> dict[str, int]:
    """How much is unread: {"urgent", "normal", "low"}."""
    with memory.reading() as reader:
        return reader.mail.counts().unread


@method
def pending(memory: Memory) -> dict[str, Any]:
    """What waits for this agent. {"unread", "notices": as notices() has them, "files": [{"path", "handle", "read",
    "version", "author", "at"}], "directories": [{"path", "changed", "more"}], "text"}."""
    if memory.who.key is None:
        with memory.reading() as reader:
            subscribed = reader.outbox.subscribed()
        if subscribed:  # what they are to tell by now; the keeper does it too, where a daemon runs
            _collect_notices(memory)
    found = waiting(memory)
    return {
        "unread": found.unread,
        "notices": [looks.notice_values(each, memory.who.name) for each in found.notices],
        "files": [told(each, "handle read version author at", path=path) for path, each in found.files],
        "directories": [
            {"path": paths.text(path), "changed": changed, "more": more} for path, changed, more in found.directories
        ],
        "text": shown(found, memory),
    }


@method
def urgent(memory: Memory) -> str:
    """The banner of unread urgent mail, empty when there is none."""
    return memory.banner()


def _wait(memory: Memory, seconds: float, thread: int | None) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            await_mail(memory, left, thread)
            return
        except NotSupported:  # no daemon: nobody wakes us
            time.sleep(min(POLL_S, left))
            calls.go_on()


def _check_number(number: int) -> None:
    if not 0 < number <= LARGEST:
        raise Invalid(f"{number} is no message's number")


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
    _collect_notices(memory)
    with memory.reading() as reader:
        found = reader.outbox.notices(SHOWN)
    memory.noticed = [each.message for each in found]
    if mark_read and found:
        memory.submit("forget_notices", messages=[each.message for each in found])
    return {
        "text": looks.notice_listing(found, memory.zone),
        "notices": [looks.notice_values(each, memory.who.name) for each in found],
    }


def _collect_notices(memory: Memory) -> None:
    memory.store.match_subscriptions(calls.go_on)
    while memory.submit("collect_notices")["more"]:
        calls.go_on()


def _check_text(pattern: str) -> None:
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise Invalid("a pattern is UTF-8 text") from None
