"""Views of an agent's mail. Owns :inbox and :urgent; how a message looks is ``avmfs.agents.mail``'s."""

from __future__ import annotations

import threading
import time
from typing import Annotated, Literal

from avmfs.agents import mail
from avmfs.errors import Invalid, NotSupported
from avmfs.memory import Memory
from avmfs.views.registry import AtEnd, Context, Range, Rendered, ending, view, writes


@view("inbox", "root", summary="messages, unread first, urgent first", slow=True)
def inbox(
    ctx: Context,
    *,
    mark: Literal["read"] | None = None,
    format: Literal["jsonl"] | None = None,
    wait: Annotated[float, Range(0, 3600)] = 0,
) -> Rendered:
    memory = ctx.memory
    if wait:
        _await_unread(memory, wait)
    messages = memory.inbox()
    text = mail.listing(messages, memory.zone) if format is None else mail.jsonl(messages)
    unread = [message.id for message in messages if message.read_at is None]
    at_end = AtEnd("_mark_read", ctx, [unread]) if mark == "read" and unread else None
    return Rendered(text.encode("utf-8", "surrogateescape"), at_end)


@writes("inbox", "anything, even nothing: all messages are read", empty_write=True)
def write_inbox(ctx: Context, text: str) -> None:
    ctx.memory.mark_read()


@view("urgent", "root", summary="urgent messages that are unread")
def urgent(ctx: Context) -> str:
    return mail.urgent(ctx.memory.inbox(unread_only=True, priority="urgent"), ctx.memory.zone)


@ending
def _mark_read(ctx: Context, messages: list[int]) -> None:
    ctx.memory.mark_read(messages)


def _await_unread(memory: Memory, seconds: float) -> None:
    """Return once there is unread mail, or after ``seconds``. The store wakes us after commits; it also does so
    when the watch begins, so that nothing falls between the first look and that."""
    deadline = time.monotonic() + seconds
    woken = threading.Event()
    if memory.inbox(unread_only=True):
        return
    try:
        with memory.store.watch(lambda seq: woken.set()):
            while (left := deadline - time.monotonic()) > 0 and woken.wait(left):
                woken.clear()
                if memory.inbox(unread_only=True):
                    return
    except NotSupported:
        raise Invalid(":inbox: waiting needs a running daemon (avm-daemon start)") from None
