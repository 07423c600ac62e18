"""avm tell, inbox, pending."""

from __future__ import annotations

import json
from typing import Any

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import content_of, door, show
from avmfs.rpc.client import Door, await_mail


@subcommand("tell", "Send a message to an agent or @all.")
@click.argument("recipient")
@click.argument("text", required=False)
@click.option("--priority", "-p", default="normal", help="urgent, normal or low.", show_default=True)
@click.option("--expires", metavar="DURATION", help="Such as 2h or 1d.")
@click.option("--re", "re", type=click.IntRange(min=1), metavar="ID", help="The message that this one answers.")
def tell_(recipient: str, text: str | None, priority: str, expires: str | None, re: int | None) -> None:
    """Send TEXT (or stdin) to an agent, or to @all."""
    body = content_of(text, None).decode("utf-8", "surrogateescape").removesuffix("\n")
    with door() as memory:
        sent = memory.call("tell", recipient=recipient, body=body, priority=priority, expires=expires, re=re)
        show(sent, f"sent #{sent['id']} to {recipient}\n")


@subcommand("inbox", "Show messages, unread first.")
@click.option("--unread", is_flag=True, help="Only what is unread.")
@click.option("--mark-read", "-m", is_flag=True, help="Mark what is shown as read.")
@click.option(
    "--wait",
    "-w",
    type=click.FloatRange(0, 86400),
    default=0,
    metavar="SECONDS",
    help="Wait for unread mail, at most so long.",
)
@click.option("--thread", type=click.IntRange(min=1), metavar="ID", help="Only the thread that begins with it.")
@click.option("--jsonl", is_flag=True, help="One JSON object a line.")
@click.option(
    "--delete", multiple=True, type=click.IntRange(min=1), metavar="ID", help="Remove this message; repeatable."
)
@click.option("--delete-read", is_flag=True, help="Remove all that are read.")
def inbox_(
    ctx: click.Context,
    unread: bool,
    mark_read: bool,
    wait: float,
    thread: int | None,
    jsonl: bool,
    delete: tuple[int, ...],
    delete_read: bool,
) -> None:
    """Your messages: unread first, urgent first. With --wait, exit code 1 when none has come."""
    with door() as memory:
        if delete or delete_read:
            if delete and delete_read:
                raise click.UsageError("--delete and --delete-read: one of them")
            gone = memory.call("delete_mail", messages=[*delete] or None)
            show(gone, f"removed {gone['count']}\n")
            return
        found = await_mail(
            lambda step: memory.call("inbox", unread_only=unread, mark_read=mark_read, wait=step, thread=thread), wait
        )
        show(found["messages"], _lines(found["messages"]) if jsonl else found["text"])
        memory.urgent = ""  # it has just been shown
    if wait and all(message["read"] for message in found["messages"]):
        ctx.exit(1)


@subcommand("pending", "What waits for you: messages, and changes since you last looked.")
def pending_(memory: Door) -> None:
    """What waits for you: unread messages, and files that have changed since you marked them as read."""
    found = memory.call("pending")
    text = found.pop("text")
    show(found, text)


def _lines(messages: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(message, sort_keys=True) + "\n" for message in messages)
