"""What commands share: a door for whoever asks, how results are printed, what is asked before files go."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import click

from avmfs.api.connect import located, open_door, who_asks
from avmfs.cli.main import Globals
from avmfs.rpc.client import Door
from avmfs.text.escapes import json_safe

SILENT_S = 0.7  # work that takes longer is told of, on a terminal


@contextlib.contextmanager
def door(ctx: click.Context, *, embeddings: bool = False) -> Iterator[Door]:
    """A door as the agent (or operator) of the global options. Unread urgent mail goes to stderr at the end.

    ``embeddings``: without a daemon, load the model in this process; else searches use words alone.
    """
    given: Globals = ctx.obj
    where = located(os.environ, given.db, given.config)
    nameless = given.agent is None and given.operator and not os.environ.get("AVM_AGENT")
    agent = who_asks("operator" if nameless else given.agent, os.environ)
    opened = open_door(where, agent, environ=os.environ, operator=given.operator, embeddings=embeddings, route="cli")
    try:
        yield opened
        if opened.urgent:
            sys.stdout.flush()
            print(opened.urgent, end="", file=sys.stderr)
    finally:
        opened.close()


at_option = click.option("--at", "at", metavar="TIME", help="As it was: yesterday, -2h, 2026-03-01T12:00, snap.NAME.")


def then(path: str, at: str | None) -> str:
    """The path, as it was at that instant."""
    return path if at is None else f"/@{at}/{path.lstrip('/')}"


def show(ctx: click.Context, value: Any, text: str, *, prose: bool = True) -> None:
    """``value`` as JSON when asked for, else ``text`` (which ends its own lines), in colours where a terminal shows it
    and it is ``prose``."""
    if ctx.obj.as_json:
        text = json_safe(value) + "\n"
    elif prose and sys.stdout.isatty():
        from avmfs.cli import colour

        if colour.wanted(sys.stdout, os.environ, refused=ctx.obj.no_color):
            text = colour.painted(text)
    data = text.encode("utf-8", "surrogateescape")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def content_of(argument: str | None, option: str | None) -> bytes:
    """What to write: an option, an argument, or stdin ("-" or nothing)."""
    given = option if option is not None else argument
    if given is None or given == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(given)


def words_of(given: tuple[str, ...]) -> str:
    """A question from arguments; from stdin for a single "-"."""
    if given == ("-",):
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").strip()
    return " ".join(given)


def names_of(given: tuple[str, ...], *, null: bool = False) -> list[str]:
    """Paths from arguments; from stdin, one a line, or each ended by a NUL, for a single "-"."""
    if given == ("-",):
        said = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        return [name for name in said.split("\0" if null else "\n") if name]
    return [*given]


def show_names(ctx: click.Context, value: Any, names: Iterable[str]) -> None:
    """``value`` as JSON when asked for, else names as they are, each ended by a NUL: for xargs -0 and the like."""
    if ctx.obj.as_json:
        show(ctx, value, "")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(os.fsencode(name) + b"\0" for name in names))


null_option = click.option(
    "--null", "-0", is_flag=True, help="Names as they are, each ended by a NUL and not by a line end."
)


def asking(ctx: click.Context) -> bool:
    """Whether somebody sits there who can be asked. A program that runs this has said what it wants."""
    return not ctx.obj.as_json and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(what: str) -> None:
    """Ask, before something is destroyed that was not named one by one. Raises Abort for a no."""
    click.confirm(what, abort=True, err=True)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what takes so long, once it does, and take it away again."""
    if not sys.stderr.isatty():
        yield
        return
    told, over = threading.Event(), threading.Event()

    def tell() -> None:
        if not over.wait(SILENT_S):
            told.set()
            print(f"{what} ...", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        if told.is_set():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
