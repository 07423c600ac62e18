"""avm who, ask, topics."""

from __future__ import annotations

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import content_of, door, show
from avmfs.rpc.client import Door


@subcommand("who", "Who knows about something; how much others may learn of you.")
@click.argument("query", nargs=-1)
@click.option("--limit", "-n", default=10, help="At most so many lines.", show_default=True)
@click.option("--gossip", is_flag=True, help="Ask the digests alone: quick, but they may be mistaken.")
@click.option(
    "--privacy",
    metavar="MODE",
    help="Set how much others may learn of what only you can read: full, owner, existence or none.",
)
@click.option("--of", metavar="AGENT", help="Whose privacy; for the operator.")
def who_(query: tuple[str, ...], limit: int, gossip: bool, privacy: str | None, of: str | None) -> None:
    """Who knows about QUERY; without it, how much others may learn of you."""
    if query and (privacy is not None or of is not None):
        raise click.UsageError("--privacy and --of go without a query")
    with door() as memory:
        if not query:
            found = memory.call("privacy", mode=privacy, agent=of)
            show(found, f"privacy of {found['agent']}: {found['mode']}\n")
            return
        found = memory.call("who", q=" ".join(query), limit=limit, via="gossip" if gossip else "librarian")
        show({"degraded": found["degraded"], "knows": found["knows"]}, found["text"])


@subcommand("ask", "What memory holds on a question, and who knows about it.")
@click.argument("question", nargs=-1)
@click.option("--max-tokens", "-t", type=int, help="Budget of the whole answer.")
@click.option("--to", metavar="AGENT", help="Send the question to this agent too.")
@click.option("--forward", is_flag=True, help="Send it to whoever else knows best.")
def ask_(question: tuple[str, ...], max_tokens: int | None, to: str | None, forward: bool) -> None:
    """What memory holds on QUESTION (or stdin), and who knows about it."""
    asked = content_of(" ".join(question) or None, None).decode("utf-8", "surrogateescape").removesuffix("\n")
    with door() as memory:
        found = memory.call("ask", question=asked, max_tokens=max_tokens, to=to, forward=forward)
        show({key: value for key, value in found.items() if key != "text"}, found["text"])


@subcommand("topics", "What files are about.")
@click.argument("path", default="/memory")
@click.option("--name", metavar="TOPIC", help="The files of one topic, newest first.")
@click.option("--limit", "-n", default=30, help="At most so many.", show_default=True)
def topics_(memory: Door, path: str, name: str | None, limit: int) -> None:
    """What the files below PATH are about."""
    found = memory.call("topics", path=path, name=name, limit=limit)
    show(found["files"] if name is not None else found["topics"], found["text"])
