"""avm hook: what an agent's client runs at its events, as a command; ``hooked`` has what it does."""

from __future__ import annotations

import click

from avmfs.cli.hooked import EVENTS, NATIVE, answer
from avmfs.cli.main import subcommand


@subcommand("hook", "Answer an event of an agent's client; avm setup registers it.")
@click.argument("event", type=click.Choice(EVENTS))
@click.option(
    "--client", type=click.Choice([*NATIVE]), default="claude", show_default=True, help="Whose form to answer in."
)
@click.option("--tokens", default=400, show_default=True, type=click.IntRange(50, 4000), help="Of what is recalled.")
def hook_(ctx: click.Context, event: str, client: str, tokens: int) -> None:
    """Read the client's event from stdin (JSON) and answer what memory has to say: at the start of a session unread
    mail and notes on the project, at a prompt notes on what it asks. At its end nothing is said, and a note of the
    session kept (avm help mcp-clients). Exits with 0 whatever happens, at once.

    \b
      echo '{"prompt": "when may we release?"}' | avm hook prompt -a claude
    """
    given = ctx.obj
    answer(
        client,
        event,
        given.agent,
        tokens=tokens,
        db=given.db,
        config=given.config,
        at=given.at,
        ca=given.ca,
    )
