"""avm history, diff, verify, links, link, tag, changes, delta, savings."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from avmfs.api.connect import read_all
from avmfs.cli.main import subcommand
from avmfs.cli.session import at_option, door, show, then, words_of
from avmfs.errors import Invalid
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("history", "The versions of a file, or the file as it was.")
@click.argument("path")
@click.option("--limit", "-n", default=50, show_default=True, help="At most so many.")
@click.option("--read", "number", metavar="VERSION", help="Print the file as it was: a number, or an ISO 8601 time.")
def history_(memory: Door, path: str, limit: int, number: str | None) -> None:
    """The versions of a file, newest first; or the file as it was."""
    if number is not None:
        _old(memory, path, number)
        return
    found = memory.call("history", path=path, limit=limit)
    lines = [
        f"v{each['version']}  {minute(each['at'])}  {each['type']}  {each['author']}"
        f"  {each['size']} byte{'s' * (each['size'] != 1)}\n"
        for each in found["versions"]
    ]
    more = found["total"] - len(found["versions"])
    text = "".join([*lines, *([f"({more} older ones: --limit)\n"] if more else [])]) or "(no versions)\n"
    show({name: found[name] for name in ("path", "versions", "total")}, text)


def _old(memory: Door, path: str, named: str) -> None:
    number = named.removeprefix("v")
    said: dict[str, Any] = {"number": int(number)} if number.isdecimal() and len(number) < 16 else {"at": named}
    data, more, found = b"", True, {}
    while more:
        found = memory.call("version", path=path, offset=len(data), **said)
        data, more = data + found["data"], found["more"]
    value = {name: found[name] for name in ("path", "version", "at", "author", "size")}
    text = data.decode("utf-8", "surrogateescape")
    show({**value, "content": data.decode("utf-8", "replace")}, text, prose=False)


@subcommand("diff", "What changed between two versions.")
@click.argument("path")
@click.argument("older", required=False)
@click.argument("newer", required=False)
@at_option
def diff_(path: str, older: str | None, newer: str | None, at: str | None) -> None:
    """The unified diff between two versions of a file: 3 or v3; OLDER is the last but one, NEWER the last. With --at,
    between the file as it was at that path then and as it is."""
    if at is not None and older is not None:
        raise click.UsageError("--at or versions, not both")
    with door() as memory:
        if at is not None:
            from avmfs.views.difference import unified

            text = unified(read_all(memory, then(path, at)), read_all(memory, path), f"@{at}", "now")
            show({"path": path, "older": f"@{at}", "newer": None, "diff": text}, text)
            return
        head = memory.call("history", path=path, limit=1)["versions"]
        newest = head[0]["version"] if head else 0
        after = newest if newer is None else _version(newer)
        before = None if older is None else _version(older)
        found = memory.call("history", path=path, limit=1, older=before, newer=after)
        shown = max(after - 1, 0) if before is None else before
        value = {"path": found["path"], "older": shown, "newer": after, "diff": found["diff"]}
        show(value, found["diff"])


def _version(text: str) -> int:
    number = text.removeprefix("v")
    if not (number.isdecimal() and len(number) < 16):
        raise Invalid(f"version {text!r}: expected a number, as avm history shows them")
    return int(number)


@subcommand("verify", "Check what a text cites, like links.")
@click.argument("path")
@click.option("--question", "-q", "q", metavar="TEXT", help="What the answers in it are answers to: proves them.")
@click.option("--replay", is_flag=True, help="Ask again as of then, and look whether the audit's chain holds.")
def verify_(ctx: click.Context, memory: Door, path: str, q: str | None, replay: bool) -> None:
    """Check what the file PATH (- reads a text from stdin) cites as [/path@VERSION], as avm recall --cite and avm
    bundle do: whether that version stands, was changed, superseded, is gone, and says what an answer quotes.

    PATH may be a receipt, SEQ:NONCE, the two numbers of an answer's last line (26:482913 of "(seq=26 482913)"): then,
    and with --replay, each answer is asked again as the memory stood at that seq, the notes that it gave are looked at,
    and the audit's chain is verified. The question is known where search.query_log keeps it.

    Exits 1 when something does not stand.
    """
    receipt = re.fullmatch(r"\d{1,15}:\d{6}", path) is not None
    text = path if receipt else words_of((path,)) if path == "-" else read_all(memory, path).decode("utf-8", "replace")
    found = memory.call("verify", text=text, q=q, **({"replay": True} if replay or receipt else {}))
    show({"verdicts": found["verdicts"], "good": found["good"]}, found["text"])
    if not found["good"]:
        ctx.exit(1)


@subcommand("links", "Links from a file and to it.")
@click.argument("path")
def links_(memory: Door, path: str) -> None:
    """Links from a file (->) and to it (<-), with their types."""
    found = memory.call("links", path=path)
    lines = (
        f"{'->' if each['direction'] == 'out' else '<-'} {escaped(each['path'])} ({escaped(each['type'])})\n"
        for each in found["links"]
    )
    show(found, "".join(lines) or "(no links)\n")


@subcommand("link", "Link a file to another.")
@click.argument("source")
@click.argument("target")
@click.argument("type", required=False)
@click.option("--remove", "-r", is_flag=True, help="Take the link away; without TYPE those of every type.")
def link_(memory: Door, source: str, target: str, type: str | None, remove: bool) -> None:
    """Link the file SOURCE to TARGET. TYPE is a word such as follows or derived.  [default: related]"""
    made = memory.call("link", path=source, target=target, type=type, remove=remove)
    sign = "no longer ->" if remove else "->"
    show(made, f"{escaped(made['path'])} {sign} {escaped(made['target'])} ({escaped(made['type'] or 'any type')})\n")


@subcommand("tag", "Tag a file, or count the tags below a directory.")
@click.argument("path", default="/")
@click.argument("tags", nargs=-1)
@click.option("--remove", "-r", "remove", multiple=True, metavar="TAG", help="Take this one away.")
@click.option("--clear", is_flag=True, help="Take all others away.")
def tag_(memory: Door, path: str, tags: tuple[str, ...], remove: tuple[str, ...], clear: bool) -> None:
    """Add TAGS to the file PATH and print what it has; of a directory: how often each tag occurs below it."""
    if tags or remove or clear or (counts := _counts(memory, path)) is None:
        add = [each for given in tags for each in given.split(",")]
        found = memory.call("tag", path=path, add=add, remove=[*remove], clear=clear)
        show(found, f"{escaped(','.join(found['tags']))}\n" if found["tags"] else "(no tags)\n")
    else:
        lines = (f"{count:>5}  {escaped(name)}\n" for name, count in counts.items())
        show({"path": path, "tags": counts}, "".join(lines) or "(no tags)\n")


def _counts(memory: Door, path: str) -> dict[str, int] | None:
    """Of a directory; None for a file."""
    try:
        return dict(memory.call("tags", path=path)["tags"])
    except Invalid:
        return None


@subcommand("changes", "Which files changed lately, by whom.")
@click.argument("path", default="/memory")
@click.option("--minutes", "-m", type=float, help="Only of the last minutes.")
@click.option("--since", metavar="TIME", help="Only after this ISO 8601 time, or after a seq.")
@click.option("--limit", "-n", default=50, show_default=True, help="At most so many.")
def changes_(memory: Door, path: str, minutes: float | None, since: str | None, limit: int) -> None:
    """Which files below PATH were added, changed, moved or removed, by whom and when; newest first."""
    found = memory.call("recent", path=path, minutes=minutes, since=since, limit=limit)
    lines = [
        f"{minute(each['at'])}  {each['author']}  {each['status']}  {escaped(each['path'])}"
        f"{'' if each['was'] is None else ' (was ' + escaped(each['was']) + ')'}\n"
        for each in found["changes"]
    ]
    if found["more"]:
        lines.append("(older ones left out: --limit)\n")
    show(found, "".join(lines) or "(no changes)\n")


@subcommand("delta", "What is new since you last asked.")
@click.argument("path", default="/memory")
@click.option("--peek", is_flag=True, help="Leave the mark where it is: the same again next time.")
def delta_(memory: Door, path: str, peek: bool) -> None:
    """What is new in a file or directory since you last asked, and remember that you have seen it."""
    found = memory.call("delta", path=path, peek=peek)
    show(found, found["text"])


@subcommand("savings", "Tokens that recalls saved, as measured.")
def savings_(memory: Door) -> None:
    """Tokens that your recalls gave, against the files they were drawn from."""
    text = read_all(memory, "/:savings").decode()
    show(json.loads(text), text)
