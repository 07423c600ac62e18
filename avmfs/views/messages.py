"""Views of what comes to an agent. Owns :inbox, :urgent and :subscriptions; how these look is ``avmfs.agents``'."""

from __future__ import annotations

from typing import Annotated, Literal

from avmfs import calls
from avmfs.agents import mail, waiting
from avmfs.agents import subscriptions as subscribed
from avmfs.errors import Invalid, NotSupported
from avmfs.memory import Memory
from avmfs.signatures import Range
from avmfs.views.registry import AtEnd, Context, Rendered, ending, view, writes


@view("inbox", "root", summary="messages, unread first, urgent first")
def inbox(
    ctx: Context,
    *,
    mark: Literal["read"] | None = None,
    format: Literal["jsonl"] | None = None,
    wait: Annotated[float, Range(0, 3600)] = 0,
    unread: bool = False,
) -> Rendered:
    memory = ctx.memory
    if wait:
        try:
            await_mail(memory, wait)
        except NotSupported:
            raise Invalid(":inbox: waiting needs a running daemon (avm-daemon start)") from None
    if format is None:
        text, messages = memory.inbox_text(unread_only=unread)
    else:
        messages = memory.inbox(unread_only=unread)
        text = mail.jsonl(messages)
    calls.go_on()  # who has gone meanwhile sees none of it
    shown = [message.id for message in messages if message.read_at is None]
    at_end = AtEnd("_mark_read", ctx, [shown]) if mark == "read" and shown else None
    return Rendered(text.encode("utf-8", "surrogateescape"), at_end)


@writes("inbox", "anything, even nothing: all messages are read", empty_write=True)
def write_inbox(ctx: Context, text: str) -> None:
    ctx.memory.mark_read()


@view("urgent", "root", summary="urgent messages that are unread")
def urgent(ctx: Context) -> str:
    return mail.urgent(ctx.memory.inbox(unread_only=True, priority="urgent"), ctx.memory.zone)


@view("subscriptions", "root", summary="your subscriptions, where they go, and what waits for them")
def subscriptions(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        return subscribed.listing(reader.outbox.subscriptions(), ctx.memory.zone)


@ending
def _mark_read(ctx: Context, messages: list[int]) -> None:
    ctx.memory.mark_read(messages)


def await_mail(memory: Memory, seconds: float, thread: int | None = None) -> bool:
    """Return True once there is unread mail (of a ``thread``), False after ``seconds``. Raises NotSupported without a
    daemon, Interrupted when nobody waits any more."""

    def arrived() -> bool:
        with memory.reading() as reader:
            return reader.mail.any_unread(thread)

    return waiting.until(memory.store, arrived, seconds)
