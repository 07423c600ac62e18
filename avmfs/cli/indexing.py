"""avm index: the state of the search index, and the index of code."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from avmfs.cli.main import REFUSED, Command, CommandGroup, complain, subcommand
from avmfs.cli.session import LOCAL, door, show, words_of, working
from avmfs.codeindex import finding, scanning
from avmfs.codeindex.modules import Place
from avmfs.errors import Invalid
from avmfs.node import notice
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped

_LOOK_S = 0.5  # between two looks at what waits
_private = click.option("--private", is_flag=True, help="For you alone, below /index/private.")
_one = click.option("--project", "-p", help="In this one.  [default: all that you may see]")


@subcommand("index", "What can be found: the search index, and an index of a project's code.", cls=CommandGroup)
def index_() -> None:
    """The search index, and an index of code: what a project's files define, as notes below /index.

    It needs its parsers: pip install 'avmfs[index]'. Searches and recalls have it only with --under /index."""


@index_.command("status", cls=Command)
@click.argument("what", default="/")
@click.option("--wait", is_flag=True, help="Of a PATH: until nothing waits any more, or nobody is there to do it.")
def index_status_(memory: Door, what: str, wait: bool) -> None:
    """How many files below a PATH can be found by words and by meaning already, and by which model; or, of a PROJECT,
    what its index has, and how many files are new, changed or gone since."""
    if not what.startswith("/"):
        found = scanning.status(memory, what)
        show(found, _project(found), prose=False)
        return
    found = memory.call("index_status", path=what)
    with working("indexing") as progress:
        while wait and _at_work(found):
            progress(found["files"] - max(found["waiting"].values()), found["files"])
            time.sleep(_LOOK_S)
            found = memory.call("index_status", path=what)
    waiting = found["waiting"]
    model = f"{found['model']}, {found['dimension']} dimensions" if found["model"] else "none"
    state = f" ({found['state']}{': ' + found['reason'] if found['reason'] else ''})" if found["state"] else ""
    text = (
        f"files    {found['files']}\n"
        f"words    {found['files'] - waiting['words']} indexed, {waiting['words']} wait\n"
        f"vectors  {waiting['vectors']} files wait\nmodel    {model}{state}\n"
    )
    found["projects"] = scanning.projects(memory) if what == "/" else []
    for each in found["projects"]:
        count = f"{each['files']} files, {each['symbols']} symbols"
        text += f"code     {each['path']}: {count} of {escaped(each['root'])}\n"
    show(found, text)


@index_.command("scan", cls=Command)
@click.argument("project", required=False)
@click.argument("directory", required=False, type=LOCAL)
@_private
def index_scan_(ctx: click.Context, project: str | None, directory: Path | None, private: bool) -> None:
    """Index the code in DIRECTORY, or what has changed in it since: avm index scan [PROJECT] DIRECTORY.

    PROJECT is what the directory is called where you do not say; known already, it needs no DIRECTORY. .gitignore is
    respected. All agents may see the index, as rules for /index say, and you alone may scan again; --private is for
    you alone.
    """
    project = _given(project)
    with door() as memory, working("indexing"):
        name, root = named(memory, project, directory, private=private)
        report = scanning.scan(memory, name, root, private=private)
        show(report.plain(), _told(report), prose=False)
    if report.refused:
        ctx.exit(REFUSED)


@index_.command("watch", cls=Command)
@click.argument("project", required=False)
@click.argument("directory", required=False, type=LOCAL)
@_private
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
def index_watch_(project: str | None, directory: Path | None, private: bool, every: float) -> None:
    """Like scan, now and whenever a file changes, until ^C."""
    project = _given(project)
    with door() as memory:
        name, root = named(memory, project, directory, private=private)
        where = root if root is not None else Path(scanning.found(memory, name)[1]["root"])

    def scanned() -> None:
        with door() as memory:  # one that is held is closed for its silence, or with its daemon
            report = scanning.scan(memory, name, where, private=private)
            show(report.plain(), _told(report), prose=False)
        sys.stdout.flush()

    scanning.watch(scanned, where, every, threading.Event(), complain)


@index_.command("sigs", cls=Command)
@click.argument("project")
@click.argument("pattern", default="")
@click.option("--kind", default="", help="function, method, class, struct, interface, constant, ...")
def index_sigs_(memory: Door, project: str, pattern: str, kind: str) -> None:
    """Signatures, by file and line. PATTERN: a file or folder of the project, a glob, or a symbol's name."""
    _show(list(finding.sigs(memory, project, pattern, kind=kind)), "(no such symbol)")


@index_.command("find", cls=Command)
@click.argument("question", nargs=-1, required=True)
@_one
@click.option("--limit", "-n", type=click.IntRange(1, 1000), default=5, show_default=True)
def index_find_(memory: Door, question: tuple[str, ...], project: str | None, limit: int) -> None:
    """Where something is in the code, best first: a name, or a question in plain words."""
    reasons: list[str] = []
    found = finding.find(memory, words_of(question), project, limit, reasons.append)
    _show(found, "(nothing found)", project is None, "".join(map(notice, reasons)))


@index_.command("callers", cls=Command)
@click.argument("name")
@_one
def index_callers_(memory: Door, name: str, project: str | None) -> None:
    """What calls something of this name. By names alone: which of several is meant is not known."""
    _show(finding.callers(memory, name, project), "(none)", project is None)


@index_.command("callees", cls=Command)
@click.argument("name")
@_one
def index_callees_(memory: Door, name: str, project: str | None) -> None:
    """The names that something calls, below each symbol of this name."""
    found = finding.callees(memory, name, project)
    text = "".join(
        f"{line}\n{''.join(f'    {call}{chr(10)}' for call in each.symbol.calls)}"
        for each, line in zip(found, finding.lines(found, project=project is None), strict=True)
    )
    show(_plain(found), text or "(none)\n", prose=False)


@index_.command("drop", cls=Command)
@click.argument("project")
@_private
def index_drop_(memory: Door, project: str, private: bool) -> None:
    """Take a project's index away."""
    removed = scanning.drop(memory, project, private=private)
    show({"removed": removed}, f"{removed} notes removed\n", prose=False)


def _at_work(found: dict[str, Any]) -> bool:
    """Whether a daemon still has to index what waits; vectors, only while there is a model."""
    waiting = found["waiting"]
    return found["state"] is not None and bool(
        waiting["words"] or (waiting["vectors"] and found["state"] in ("loading", "ready"))
    )


def _given(project: str | None) -> str:
    if not project:
        raise click.UsageError("Missing argument: a DIRECTORY")
    return project


def named(memory: Door, project: str, directory: Path | None, *, private: bool = False) -> tuple[str, Path | None]:
    """One argument is a project that is known, else a directory where it could be one. Raises Invalid where that has
    the name of another directory's project."""
    if directory is not None:
        return project, directory
    path = "/" in project or project in (".", "..")
    if not path and scanning.root(memory, project, private=private) is not None:
        return project, None
    if not path and not Path(project).is_dir():
        return project, None
    top = Path(project).resolve()
    if not top.is_dir():
        raise Invalid("not a directory", project)
    if (known := scanning.root(memory, top.name, private=private)) not in (None, os.fspath(top)):
        raise Invalid(f"{top.name} is the project in {known}: avm index scan PROJECT DIRECTORY names this one", project)
    return top.name, top


def _plain(found: Iterable[Place]) -> dict[str, Any]:
    return {"symbols": [each.plain() for each in found]}


def _show(found: list[Place], nothing: str, project: bool = False, above: str = "") -> None:
    text = "".join(f"{line}\n" for line in finding.lines(found, project=project))
    show(_plain(found), above + (text or f"{nothing}\n"), prose=False)


def _told(report: scanning.Report) -> str:
    out = ", ".join(f"{count} {reason}" for reason, count in report.left_out.items())
    text = (
        f"{report.path}: {report.files} files, {report.symbols} symbols; {report.added} added, {report.changed}"
        f" changed, {report.moved} moved, {report.removed} removed\n"
    )
    text += f"left out: {out}\n" * bool(out)
    odd = [f"{report.broken} with broken syntax"] * bool(report.broken)
    odd += [f"{report.not_utf8} not in UTF-8"] * bool(report.not_utf8)
    text += f"indexed all the same: {', '.join(odd)}\n" * bool(odd)
    return text + "".join(f"refused  {escaped(source)}: {escaped(reason)}\n" for source, reason in report.refused)


def _project(found: dict[str, Any]) -> str:
    by = ", ".join(f"{name} {count}" for name, count in found["languages"].items())
    lines = [f"root     {escaped(found['root'])}", f"files    {found['files']}" + (f" ({by})" if by else "")]
    lines.append(f"symbols  {found['symbols']}")
    if found["here"]:
        lines.append(f"since    {found['new']} new, {found['changed']} changed, {found['gone']} gone")
    else:
        lines.append("since    its directory is not on this machine, or not for you")
    return "".join(f"{line}\n" for line in lines)
