"""avm tell, inbox."""

from __future__ import annotations

import click

from avmfs.cli.main import Command
from avmfs.cli.session import content_of, door, show


@click.command("tell", cls=Command)
@click.argument("recipient")
@click.argument("text", required=False)
@click.option("--priority", "-p", default="normal", help="urgent, normal or low.", show_default=True)
@click.option("--expires", metavar="DURATION", help="Such as 2h or 1d.")
@click.pass_context
def tell_(ctx: click.Context, recipient: str, text: str | None, priority: str, expires: str | None) -> None:
    """Send TEXT (or stdin) to an agent, or to @all."""
    body = content_of(text, None).decode("utf-8", "surrogateescape").removesuffix("\n")
    with door(ctx) as memory:
        sent = memory.call("tell", recipient=recipient, body=body, priority=priority, expires=expires)
        show(ctx, sent, f"sent #{sent['id']} to {recipient}\n")


@click.command("inbox", cls=Command)
@click.option("--unread", is_flag=True, help="Only what is unread.")
@click.option("--mark-read", "-m", is_flag=True, help="Mark what is shown as read.")
@click.pass_context
def inbox_(ctx: click.Context, unread: bool, mark_read: bool) -> None:
    """Your messages: unread first, urgent first."""
    with door(ctx) as memory:
        found = memory.call("inbox", unread_only=unread, mark_read=mark_read)
        show(ctx, found["messages"], found["text"])
        memory.urgent = ""  # it has just been shown
