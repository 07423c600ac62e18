"""What commands share: a door for whoever asks, and how results are printed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from avmfs.avm import located, open_door, who_asks
from avmfs.cli.main import Globals
from avmfs.rpc.client import Door


@contextlib.contextmanager
def door(ctx: click.Context, *, embeddings: bool = False) -> Iterator[Door]:
    """A door as the agent (or operator) of the global options. Unread urgent mail goes to stderr at the end.

    ``embeddings``: without a daemon, load the model in this process; else searches use words alone.
    """
    given: Globals = ctx.obj
    where = located(os.environ, given.db, given.config)
    nameless = given.operator and not os.environ.get("AVM_AGENT")
    agent = who_asks(given.agent or ("operator" if nameless else None), os.environ)
    opened = open_door(where, agent, environ=os.environ, operator=given.operator, embeddings=embeddings, route="cli")
    try:
        yield opened
        if opened.urgent:
            sys.stdout.flush()
            print(opened.urgent, end="", file=sys.stderr)
    finally:
        opened.close()


def show(ctx: click.Context, value: Any, text: str) -> None:
    """``value`` as JSON when asked for, else ``text`` (which ends its own lines)."""
    if ctx.obj.as_json:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"
    data = text.encode("utf-8", "surrogateescape")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def content_of(argument: str | None, option: str | None) -> bytes:
    """What to write: an option, an argument, or stdin ("-" or nothing)."""
    given = option if option is not None else argument
    if given is None or given == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(given)
