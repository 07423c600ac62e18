"""avm search, semantic, recall, remember, stats."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from avmfs.api.connect import read_all
from avmfs.cli.main import subcommand
from avmfs.cli.session import at_option, content_of, door, null_option, show, show_names, then, words_of
from avmfs.localtime import nanoseconds
from avmfs.node import NO_ROOM
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped
from avmfs.trust import SOURCES


def _searching(function: Callable[..., None]) -> Callable[..., None]:
    """What both kinds of search take."""
    query = click.argument("query", nargs=-1, required=True)
    limit = click.option("--limit", "-n", default=10, show_default=True)
    under = click.option("--under", default="/", metavar="DIR", help="Only below this directory.")
    return query(limit(under(null_option(at_option(function)))))


def _search(query: tuple[str, ...], under: str, null: bool, at: str | None, **asked: Any) -> None:
    with door() as memory:
        found = memory.call("search", q=words_of(query), under=then(under, at), **asked)
        if null:
            show_names(found, (hit["path"] for hit in found["hits"]))
        else:
            show(found, found["text"])


_include = click.option("--include", type=click.Choice(["archive"]), help="What is archived too.")


@subcommand("search", "Search by words and meaning.")
@_searching
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "lexical", "semantic"]),
    default="hybrid",
    show_default=True,
    help="Words and meaning, words alone, meaning alone.",
)
@_include
def search_(include: str | None, **asked: Any) -> None:
    """Paths that match QUERY by words or meaning, best first, each with a line of context.

    A word or a quotation after NOT is in none of them, unless QUERY asks for nothing else.
    """
    _search(archive=include is not None, **asked)


@subcommand("semantic", "Search by meaning alone.")
@_searching
def semantic_(**asked: Any) -> None:
    """Like search, by meaning alone (needs a running daemon for its model)."""
    _search(mode="semantic", **asked)


@subcommand("recall", "What is relevant, within a token budget.")
@click.argument("query", nargs=-1, required=True)
@click.option("--max-tokens", "-t", type=int, help="The budget, in exact tokens.  [default: 4000]")
@click.option("--min-relevance", type=float, help="Leave out what is less relevant, 0 to 1.  [default: 0.3]")
@click.option("--strategy", default="balanced", help="balanced, relevance, importance or recency.", show_default=True)
@click.option("--under", default="/", metavar="DIR", help="Only below this directory.")
@click.option("--cite", is_flag=True, help="Name path and version of every item.")
@click.option("--scores", is_flag=True, help="Handle and relevance, 0 to 1, of every item.")
@click.option(
    "--format",
    type=click.Choice(["text", "markdown", "jsonl", "xml"]),
    default="text",
    help="How it is written.",
    show_default=True,
)
@_include
@at_option
def recall_(
    memory: Door, query: tuple[str, ...], under: str, cite: bool, include: str | None, at: str | None, **asked: Any
) -> None:
    """What memory has that is relevant to QUERY, within a token budget."""
    how = {"under": then(under, at), "cite": "path" if cite else None, "archive": include is not None}
    found = memory.call("recall", q=words_of(query), **how, **asked)
    told = found["text"]
    if asked["format"] in ("text", "markdown") and not found["items"] and not told.endswith(")\n"):
        told += NO_ROOM  # beside what could not be searched, perhaps
    show(found, told)


@subcommand("remember", "Store a new memory.")
@click.argument("text", required=False)
@click.option("--title", help="Also names the file.")
@click.option("--path", "where", metavar="PATH", help="The file's path, instead of a name from the text.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="May be given several times, or comma-joined.")
@click.option("--importance", type=float, help="0 to 1.")
@click.option("--namespace", "-n", help="private (default), shared, or a directory.")
@click.option("--created", metavar="TIME", help="ISO 8601: when it happened.")
@click.option(
    "--on-duplicate",
    type=click.Choice(["keep", "update", "refuse"]),
    default="keep",
    show_default=True,
    help="Where a note that you see says the same: store both, write it into the older one, or exit 1.",
)
@click.option("--ttl", metavar="DURATION", help="How long it lives, such as 2h or 30d.")
@click.option("--supersedes", metavar="PATH", help="The file, by path or handle, that this one replaces.")
@click.option(
    "--source",
    type=click.Choice(["own", *SOURCES]),
    default="own",
    show_default=True,
    help="Whose words TEXT is: what is not your own may be marked, or wait in quarantine (avm help security).",
)
def remember_(
    ctx: click.Context,
    memory: Door,
    text: str | None,
    where: str | None,
    tags: tuple[str, ...],
    created: str | None,
    **said: Any,
) -> None:
    """Store TEXT (or stdin) as a new memory and print its path; on stderr which older note says the same, if any."""
    made = memory.call(
        "remember",
        content=content_of(text, None).decode("utf-8", "surrogateescape"),
        path=where,
        tags=[tag for given in tags for tag in given.split(",")],
        created=None if created is None else nanoseconds(created),
        **said,
    )
    show(made, f"{escaped(made['path'])}\n")
    if (same := made["duplicate"]) and not ctx.obj.as_json:
        done = "updated" if made["done"] == "updated" else "kept, beside the new one"
        says = f"{same['handle']} {escaped(same['path'])} says the same ({same['likeness']:.2f}): {done}"
        print(says, file=sys.stderr)
    for other in () if ctx.obj.as_json else made["contradicts"]:
        says = f"{other['handle']} {escaped(other['path'])} seems to say something else; if it no longer holds"
        print(f"{says}: avm link {_quoted(made['path'])} {other['handle']} supersedes", file=sys.stderr)


def _quoted(path: str) -> str:
    """As bash, zsh and ksh take it, on one line."""
    shown = escaped(path)
    return shlex.quote(path) if shown == path else "$'" + shown.replace("'", "\\'") + "'"


@subcommand("stats", "Counts of what you may see, as JSON.")
@click.argument("path", default="/")
@click.option("--plot", is_flag=True, help="Instead: files by the time of their last change, in a day and in 30 days.")
def stats_(memory: Door, path: str, plot: bool) -> None:
    """Counts of what you may see below a directory, as JSON."""
    if plot:
        from avmfs.text.sparkline import per_slot, sparkline

        found = memory.call("recent", path=path, minutes=30 * 24 * 60.0, limit=10_000)
        now, at = datetime.now(UTC), [each["at"] for each in found["changes"]]
        hours, days = per_slot(at, now, 3600, 24), per_slot(at, now, 86400, 30)
        lines = [
            f"hours  {sparkline(hours)}  {sum(hours)} in a day\n",
            f"days   {sparkline(days)}  {sum(days)} in 30 days\n",
        ]
        more = "(older ones left out)\n" if found["more"] else ""
        show({"hours": hours, "days": days, "more": found["more"]}, "".join(lines) + more)
        return
    text = read_all(memory, f"{path.rstrip('/')}/:stats").decode()
    show(json.loads(text), text)
