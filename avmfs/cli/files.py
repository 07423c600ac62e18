"""avm read, write, append, ls, mv, rm, trash, archive."""

from __future__ import annotations

import base64
import sys
from datetime import datetime

import click

from avmfs.api.connect import read_all
from avmfs.cli.main import subcommand
from avmfs.cli.session import (
    asking,
    at_option,
    confirm,
    content_of,
    door,
    names_of,
    null_option,
    show,
    show_names,
    then,
    to_each,
    working,
)
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("read", "Print a file or view.")
@click.argument("path")
@at_option
def read_(ctx: click.Context, memory: Door, path: str, at: str | None) -> None:
    """Print the bytes of a file, or a view such as note.md:meta or '/:recall?q=NVDA risk'.

    With --json, what is no UTF-8 is in base64 as well."""
    data = read_all(memory, then(path, at))
    if ctx.obj.as_json:
        told = {"path": path, "content": data.decode("utf-8", "replace")}
        if told["content"].encode() != data:
            told["base64"] = base64.b64encode(data).decode()
        show(told, "")
    else:
        sys.stdout.buffer.write(data)


def _write(path: str, data: bytes, mode: str, if_version: int | None = None) -> None:
    only = {} if if_version is None else {"if_version": if_version}
    with door() as memory:
        written = memory.call("write", path=path, data=data, mode=mode, **only)
        version = "" if written["version"] is None else f" v{written['version']}"
        show(written, f"{escaped(written['path'])}{version}\n")


@subcommand("write", "Replace a file, or write to a view.")
@click.argument("path")
@click.argument("text", required=False)
@click.option("--content", metavar="TEXT", help="The content, instead of TEXT or stdin.")
@click.option("--new", is_flag=True, help="Refuse to replace a file.")
@click.option("--if-version", type=click.IntRange(0), metavar="N", help="Only over version N; 0: while there is none.")
def write_(path: str, text: str | None, content: str | None, new: bool, if_version: int | None) -> None:
    """Replace a file with TEXT (or stdin), making directories as needed; write to a view likewise.

    At most 16 MiB while a daemon runs; more through a mount, or in pieces with append."""
    _write(path, content_of(text, content), "create" if new else "replace", if_version)


@subcommand("append", "Add to the end of a file.")
@click.argument("path")
@click.argument("text", required=False)
@click.option("--content", metavar="TEXT", help="The content, instead of TEXT or stdin.")
def append_(path: str, text: str | None, content: str | None) -> None:
    """Add TEXT (or stdin) at the end of a file, as one piece."""
    data = content_of(text, content)
    # A line given as an argument is meant as a line; stdin is taken as it is.
    if (content if content is not None else text) not in (None, "-") and not data.endswith(b"\n"):
        data += b"\n"
    _write(path, data, "append")


@subcommand("ls", "List a directory.")
@click.argument("path", default="/memory")
@click.option("--long", "-l", is_flag=True, help="Mode, size and time too.")
@null_option
@at_option
def ls_(memory: Door, path: str, long: bool, null: bool, at: str | None) -> None:
    """List a directory; directories end in /. What would break a line or hide is escaped: \\n, \\x1b."""
    entries = memory.call("entries", path=then(path, at))
    if null:
        show_names(entries, (entry["name"] for entry in entries))
        return
    lines = []
    for entry in entries:
        name = escaped(entry["name"]) + {"directory": "/", "symlink": "@", "file": ""}[entry["kind"]]
        when = datetime.fromtimestamp(entry["mtime"] // 10**9).strftime("%Y-%m-%d %H:%M")
        lines.append(f"{entry['mode']} {entry['size']:>10} {when} {name}\n" if long else f"{name}\n")
    show(entries, "".join(lines))


_dry_run = click.option("--dry-run", "-n", is_flag=True, help="Say what would be done, and do nothing.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask (on a terminal).")


@subcommand("mv", "Move a node, a directory, or every path with a prefix.")
@click.argument("source")
@click.argument("target")
@_dry_run
@_yes
def mv_(memory: Door, source: str, target: str, dry_run: bool, yes: bool) -> None:
    """Move SOURCE to TARGET: a file, a directory, or every path with the string prefix SOURCE."""
    if not dry_run and not yes and asking():
        planned = memory.call("move", source=source, target=target, dry_run=True)["moved"]
        if len(planned) > 1:
            confirm(f"move {len(planned)} paths that begin with {escaped(source)}?")
    moved = memory.call("move", source=source, target=target, dry_run=dry_run)
    show(moved, "".join(f"{escaped(old)} -> {escaped(new)}\n" for old, new in moved["moved"]), prose=False)


@subcommand("rm", "Remove a file or directory.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--recursive", "-r", is_flag=True, help="Directories with all below them.")
@click.option("--permanently", "-P", is_flag=True, help="Not to the trash.")
@_dry_run
@_yes
@null_option
def rm_(paths: tuple[str, ...], recursive: bool, permanently: bool, dry_run: bool, yes: bool, null: bool) -> None:
    """Remove files and, with -r, directories; - reads the paths from stdin, one a line, or with -0 each ended by a
    NUL.

    Notes older than a minute go to the trash (avm trash), from which they come back."""
    wanted = names_of(paths, null=null)
    with door() as memory:
        if dry_run:
            found = [memory.call("remove", path=path, recursive=recursive, dry_run=True) for path in wanted]
            value = {"removed": sum(each["removed"] for each in found), "paths": [p for e in found for p in e["paths"]]}
            if null:
                show_names(value, value["paths"])
            else:
                show(value, "".join(f"{escaped(path)}\n" for path in value["paths"]), prose=False)
            return
        if recursive and not yes and asking():
            found = [memory.call("remove", path=path, recursive=True, dry_run=True) for path in wanted]
            confirm(f"remove {sum(each['removed'] for each in found)} files and directories?")
        how = {"recursive": recursive, "permanently": permanently}
        with working(f"removing {len(wanted)} paths"):
            to_each(
                wanted,
                lambda path: int(memory.call("remove", path=path, **how)["removed"]),
                lambda gone: show({"removed": sum(gone)}, ""),
            )


@subcommand("trash", "What was removed: list it, bring it back, empty it.")
@click.argument("action", type=click.Choice(("ls", "restore", "empty")), default="ls")
@click.argument("paths", nargs=-1)
@click.option("--to", metavar="PATH", help="restore: another name for it.")
@click.option("--older-than", type=click.FloatRange(0), default=0.0, metavar="DAYS", help="empty: only these.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="ls: at most so many.")
@click.option("--yes", "-y", is_flag=True, help="empty: do not ask.")
def trash_(action: str, paths: tuple[str, ...], to: str | None, older_than: float, limit: int, yes: bool) -> None:
    """Notes that were removed, under the rights of where they were.

    restore PATH: a path in /trash, or what the file was called; it comes back under its old name, or a free one beside
    it. empty [PATH]: what was below PATH, or all, is gone for good."""
    if action != "restore" and to is not None:
        raise click.UsageError("--to is for restore")
    if action != "empty" and older_than:
        raise click.UsageError("--older-than is for empty")
    with door() as memory:
        if action == "ls":
            if paths:
                raise click.UsageError("ls takes no PATH")
            found = memory.call("trash", limit=limit)
            lines = (
                f"{minute(each['at'])}  {each['agent']}  {escaped(each['was'])}  {escaped(each['path'])}\n"
                for each in found["files"]
            )
            show(found, "".join(lines) or "(nothing in the trash)\n", prose=False)
        elif action == "restore":
            if not paths or (to is not None and len(paths) > 1):
                raise click.UsageError("restore takes a PATH, with --to exactly one")
            more = {} if to is None else {"to": to}
            to_each(
                paths,
                lambda path: str(memory.call("put_back", path=path, **more)["path"]),
                lambda back: show({"paths": back}, "".join(f"{escaped(path)}\n" for path in back), prose=False),
            )
        else:
            if not yes and asking():
                confirm("remove for good what is in the trash?")
            to_each(
                paths or (None,),
                lambda path: int(memory.call("empty_trash", older_than_days=older_than, under=path)["removed"]),
                lambda gone: show({"removed": sum(gone)}, f"{sum(gone)} removed\n", prose=False),
            )


@subcommand("archive", "Put notes out of the way, still readable; --back brings them back.")
@click.argument("paths", nargs=-1, required=True)
@click.option("--back", is_flag=True, help="Bring back what is in the archive.")
def archive_(memory: Door, paths: tuple[str, ...], back: bool) -> None:
    """Move files and directories to the same place below /archive.

    They keep their tags, links, history and handle, and who could read them can. No recall, search or list has them,
    unless it is asked below /archive or with --include archive. --back PATH: in /archive, or where it was before."""
    method, how = ("put_back", {"archived": True}) if back else ("archive", {})
    to_each(
        paths,
        lambda path: (path, str(memory.call(method, path=path, **how)["path"])),
        lambda moved: show({"moved": moved}, "".join(f"{escaped(a)} -> {escaped(b)}\n" for a, b in moved), prose=False),
    )
