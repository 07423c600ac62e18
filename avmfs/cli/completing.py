"""What a shell offers where a command takes a path, an agent or a moment.

Owns the candidates. Called by click, in a process of the shell's own, when somebody presses Tab: it asks the daemon
that runs, as whoever the line names. It starts none, and offers nothing where none runs or answers soon.
"""

from __future__ import annotations

import os
import re
from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from avmfs.api.connect import asked, located, running, who_asks
from avmfs.errors import AvmError
from avmfs.rpc.client import Door

WITHIN_S: Final = 1.0
_PLAIN: Final = re.compile(r"[\w@%+=./~-]+")  # what bash, zsh and fish take as it is, wherever it stands


@add_completion_class
class Bash(BashComplete):
    """By the line up to the cursor: bash cuts its words at ``=``, ``@`` and ``:`` too, and puts what is offered behind
    the last of these."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        if os.environ["COMP_CWORD"] == "-1":
            args = split_arg_string(os.environ["COMP_WORDS"])[1:]
            incomplete = "" if os.environ["COMP_WORDS"][-1:].isspace() or not args else args.pop()
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        self._before = incomplete[: max((incomplete.rfind(each) for each in breaks), default=-1) + 1]
        return args, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._before)}"


def offered(ctx: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    """Of a kind (``main.Offered``), what begins so. A name that a shell would read as more than one word is not
    offered."""
    try:
        who = who_asks(_said(ctx, "agent"), os.environ)
        root = ctx.find_root().params  # below a command, --at is a moment
        db, config = _said(ctx, "db"), _said(ctx, "config")
        environ = asked(os.environ, at=root.get("at"), ca=root.get("ca"), db=db, config=config)
        door = running(located(environ, db, config), who, WITHIN_S, environ)
        if door is None:
            return []
        try:
            names = _paths(door, incomplete) if kind == "paths" else _names(door, kind)
        finally:
            door.close()
    except (AvmError, OSError, ValueError):
        return []  # there is nowhere to say it: what is typed goes on
    return [CompletionItem(each) for each in names if each.startswith(incomplete) and _PLAIN.fullmatch(each)]


def _said(ctx: click.Context | None, name: str) -> str | None:
    while ctx is not None:
        if value := ctx.params.get(name):
            return str(value)
        ctx = ctx.parent
    return None


def _paths(door: Door, incomplete: str) -> list[str]:
    """One level. A symlink at the root leads to a directory."""
    folder = incomplete.rpartition("/")[0]
    entries = door.call("entries", path=folder or "/")
    slashed = ("directory",) if folder else ("directory", "symlink")
    return [f"{folder}/{each['name']}{'/' * (each['kind'] in slashed)}" for each in entries]


def _names(door: Door, kind: str) -> list[str]:
    if kind == "agents":
        return [each["name"] for each in door.call("agents")]
    kept = [each["name"] for each in door.call("snapshots")["snapshots"]]
    return kept if kind == "snapshots" else ["yesterday", *(f"snap.{name}" for name in kept)]
