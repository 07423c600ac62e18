"""What an agent has subscribed to. Owns :subscriptions (docs/FORMATS.md)."""

from __future__ import annotations

from avmfs.agents import subscriptions as looks
from avmfs.views.registry import Context, view


@view("subscriptions", "root", summary="your subscriptions, where they go, and what waits for them")
def subscriptions(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        return looks.listing(reader.outbox.subscriptions(), ctx.memory.zone)
