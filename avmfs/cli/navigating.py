"""avm tree, browse, fetch, timeline, cold, explore, graph, digest, bundle, retrieve, synthesize, who, ask, topics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import at_option, content_of, door, names_of, show, then, words_of
from avmfs.errors import NotFound
from avmfs.node import notice
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("tree", "Show directories and files, level by level.")
@click.argument("path", default="/memory")
@click.option("--depth", "-d", default=3, show_default=True, help="Levels, 1 to 16.")
@click.option("--limit", "-n", default=1000, show_default=True, help="Entries in the JSON.")
@at_option
def tree_(memory: Door, path: str, depth: int, limit: int, at: str | None) -> None:
    """Show the directories and files below PATH."""
    found = memory.call("tree", path=then(path, at), depth=depth, limit=limit)
    show({name: found[name] for name in ("path", "entries", "more")}, found["text"])


@subcommand("browse", "Look before reading: a directory, or hits of a question.")
@click.argument("target", nargs=-1, required=True)
@click.option("--depth", "-d", default=1, show_default=True, help="Levels below a directory, 1 to 16.")
@click.option("--limit", "-n", default=50, show_default=True, help="At most so many.")
def browse_(target: tuple[str, ...], depth: int, limit: int) -> None:
    """Look before reading: a directory level by level, or one line for each answer to a question.

    TARGET beginning with / is a directory; anything else is a question (- reads it from stdin). Read what you chose
    with avm fetch.
    """
    asked = words_of(target)
    with door() as memory:
        if asked.startswith("/"):
            found = memory.call("tree", path=asked, depth=depth, limit=limit)
            places = [{**each, "handle": None, "relevance": None, "summary": ""} for each in found["entries"]]
            more, degraded, text = found["more"], None, found["text"]
        else:
            most = min(limit, 999)
            found = memory.call("search", q=asked, limit=most + (most > 0))  # whether there are more
            places = [{**hit, "kind": "file", "depth": 0} for hit in found["hits"][:most]]
            more, degraded = len(found["hits"]) > most, found["degraded"]
            text = notice(degraded) + _lines(places) + ("(there are more)\n" if more else "")
        keys = ("path", "kind", "depth", "handle", "relevance", "summary")
        shown = [{key: place[key] for key in keys} for place in places]
        show({"places": shown, "more": more, "degraded": degraded}, text)


def _lines(hits: Sequence[Mapping[str, Any]]) -> str:
    lines = (f"{hit['handle']}  [{hit['relevance']:.2f}]  {escaped(hit['path'])}  {hit['summary']}\n" for hit in hits)
    return "".join(lines) or "(nothing found)\n"


@subcommand("fetch", "Print several files at once, by path or handle.")
@click.argument("targets", nargs=-1, required=True)
@click.option("--max-bytes", "-b", default=50_000, show_default=True, help="Of each; longer ones are cut.")
@click.option("--null", "-0", is_flag=True, help="On stdin each name ends in a NUL, as of avm search -0.")
def fetch_(targets: tuple[str, ...], max_bytes: int, null: bool) -> None:
    """Print several files at once, by path or handle (@k7f2); - reads the names from stdin, one a line.

    Only lines with the six digits of the first line are this command's; all others are what stands in the files.
    Exits 1 when one of them cannot be read; the others are printed all the same.
    """
    wanted = names_of(targets, null=null)
    with door() as memory:
        items, missing = [], []
        for at in range(0, len(wanted), 50):
            found = memory.call("fetch", targets=wanted[at : at + 50], max_bytes=max_bytes)
            items += found["items"]
            missing += found["missing"]
        nonce = memory.call("nonce", about="\n".join(map(escaped, wanted)))["nonce"]
        text = "".join(
            f"=== {nonce} {escaped(each['path'])}{' (cut)' if each['more'] else ''}"
            f"{' (untrusted: ' + each['untrusted'] + ')' if each['untrusted'] else ''}\n"
            f"{each['data'].decode('utf-8', 'surrogateescape').rstrip()}\n\n"
            for each in items
        )
        shown = [
            {
                **{key: each[key] for key in ("path", "more", "untrusted")},
                "content": each["data"].decode("utf-8", "replace"),
            }
            for each in items
        ]
        show({"items": shown, "missing": missing}, text, prose=False)
        if missing:
            raise NotFound("; ".join(f"{escaped(each['target'])}: {each['reason']}" for each in missing))


@subcommand("timeline", "What was noted in the last days.")
@click.argument("path", default="/memory")
@click.option("--days", default=7.0, show_default=True, help="How far back.")
@click.option("--limit", "-n", default=100, show_default=True, help="At most so many.")
def timeline_(memory: Door, path: str, days: float, limit: int) -> None:
    """What was noted below PATH in the last days, newest first."""
    found = memory.call("timeline", path=path, days=days, limit=limit)
    show({name: found[name] for name in ("notes", "more", "degraded")}, found["text"])


@subcommand("cold", "What has not been touched for long.")
@click.argument("path", default="/memory")
@click.option("--days", default=90.0, show_default=True, help="Dated so many days ago, or before.")
@click.option("--limit", "-n", default=100, show_default=True, help="At most so many.")
def cold_(memory: Door, path: str, days: float, limit: int) -> None:
    """Notes below PATH that nobody has changed for long, oldest first: what to archive, or to look at again."""
    found = memory.call("timeline", path=path, days=days, limit=limit, cold=True)
    show({name: found[name] for name in ("notes", "more", "degraded")}, found["text"])


@subcommand("explore", "What a file is linked with, hop by hop.")
@click.argument("path")
@click.option("--depth", "-d", default=2, show_default=True, help="Links away, 1 to 5.")
def explore_(memory: Door, path: str, depth: int) -> None:
    """What the file PATH is linked with, hop by hop."""
    found = memory.call("explore", path=path, depth=depth)
    show({"path": found["path"], "hops": found["hops"]}, found["text"])


@subcommand("graph", "The links below a directory, as text, picture or GraphML.")
@click.argument("path", default="/memory")
@click.option(
    "--format",
    "-f",
    "shape",
    type=click.Choice(["text", "mermaid", "dot", "graphml", "json", "svg", "png", "html"]),
    default="text",
    show_default=True,
)
@click.option("--limit", "-n", default=1000, show_default=True, help="Files looked at.")
def graph_(ctx: click.Context, memory: Door, path: str, shape: str, limit: int) -> None:
    """The links between files below PATH, as lines, or for a program that draws or reads graphs.

    svg, png and html are drawn by Graphviz' dot: contradictions are red, what is superseded is dashed.
    """
    drawn = shape in ("svg", "png", "html")
    found = memory.call("graph", path=path, limit=limit, format="text" if drawn else shape)
    text = found.pop("text")
    if drawn and not ctx.obj.as_json:
        from avmfs.views import picture

        if shape == "png":
            data = picture.png(found)
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            return
        text = picture.page(found) if shape == "html" else picture.svg(found)
    show(found, text, prose=shape == "text")


@subcommand("digest", "What is new, urgent, disputed and cold.")
@click.argument("path", default="/memory")
@click.option("--days", default=1.0, show_default=True, help="What is new: of so many days.")
@click.option("--cold", default=90.0, show_default=True, help="What is cold: dated so many days ago, or more.")
@click.option("--limit", "-n", default=10, show_default=True, help="Of each at most so many.")
def digest_(memory: Door, path: str, days: float, cold: float, limit: int) -> None:
    """What you should know of PATH today: unread urgent mail, new notes, standing disputes, notes of long ago."""
    found = memory.call("digest", path=path, days=days, cold=cold, limit=limit)
    text = found.pop("text")
    show(found, text)


@subcommand("bundle", "A handoff: notes on a question, what happened to them, their links.")
@click.argument("query", nargs=-1, required=True)
@click.option("--max-tokens", "-t", default=4000, show_default=True, help="Budget of the whole, at least 100.")
@click.option("--under", default="/", metavar="DIR", help="Only below this directory, such as /memory/shared.")
def bundle_(memory: Door, query: tuple[str, ...], max_tokens: int, under: str) -> None:
    """What another agent or session needs to go on with QUERY (- reads it from stdin), within a budget of tokens.

    It has what you may read, private notes too unless --under leaves them out: whom you give it to can read it all.
    """
    found = memory.call("bundle", q=words_of(query), max_tokens=max_tokens, under=under)
    above = notice(found["degraded"])
    show(found, found["text"] or f"{above}(nothing relevant)\n")


@subcommand("retrieve", "Search, and what the hits are linked with.")
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", "-n", default=10, show_default=True, help="Hits.")
@click.option("--depth", "-d", default=1, show_default=True, help="Links away from them, 0 to 5.")
@click.option("--under", default="/", metavar="DIR", help="Only below this directory.")
def retrieve_(memory: Door, query: tuple[str, ...], limit: int, depth: int, under: str) -> None:
    """Like search, with what the hits are linked with (- reads QUERY from stdin)."""
    found = memory.call("retrieve", q=words_of(query), limit=limit, depth=depth, under=under)
    show({name: found[name] for name in ("hits", "linked", "degraded")}, found["text"])


@subcommand("synthesize", "A document drawn from several memories, cited.")
@click.argument("query", nargs=-1, required=True)
@click.option("--path", default="/", help="From this file and what it is linked with, or from below this directory.")
@click.option("--sentences", "-n", default=12, show_default=True, help="At most so many.")
def synthesize_(memory: Door, query: tuple[str, ...], path: str, sentences: int) -> None:
    """A document on QUERY drawn from several memories, each sentence cited (- reads QUERY from stdin)."""
    found = memory.call("synthesize", q=words_of(query), path=path, sentences=sentences)
    above = notice(found["degraded"])
    show(found, found["text"] or f"{above}(nothing relevant)\n")


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
    given = " ".join(question) if question else None
    asked = content_of(given, None).decode("utf-8", "surrogateescape").removesuffix("\n")
    with door() as memory:
        found = memory.call("ask", question=asked, max_tokens=max_tokens, to=to, forward=forward)
        show({key: value for key, value in found.items() if key != "text"}, found["text"])


@subcommand("topics", "What files are about.")
@click.argument("path", default="/memory")
@click.option("--name", metavar="TOPIC", help="The files of one topic, newest first.")
@click.option("--limit", "-n", default=30, help="At most so many.", show_default=True)
def topics_(ctx: click.Context, memory: Door, path: str, name: str | None, limit: int) -> None:
    """What the files below PATH are about."""
    found = memory.call("topics", path=path, name=name, limit=limit)
    if ctx.obj.as_json:  # a list, which cannot say so itself
        click.echo(notice(found["degraded"]), err=True, nl=False)
    show(found["files"] if name is not None else found["topics"], found["text"])
