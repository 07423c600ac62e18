"""The entry point of ``avm``: global options, lazy sub-commands, exit codes.

Owns how errors and urgent mail reach the terminal: data goes to stdout, everything else to stderr. A sub-command's
module is imported when it is called. Exit codes: 0 ok, 1 not found or
refused, 2 usage, 75 temporary.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, overload

import click

from avmfs.cli.commands import COMMANDS, GROUPS, example
from avmfs.closed_streams import drop_output, stand_in_for_closed
from avmfs.errors import AvmError, Busy, Interrupted, Invalid
from avmfs.text.escapes import visible

OK, REFUSED, USAGE, TEMPORARY = 0, 1, 2, 75


@dataclass(slots=True)
class Globals:
    """What the options before or after the sub-command say."""

    db: str | None = None
    config: str | None = None
    agent: str | None = None
    operator: bool = False
    as_json: bool = False
    no_color: bool = False
    at: str | None = None
    ca: str | None = None

    def merge(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            if value not in (None, False):
                setattr(self, name, value)


# Whether the caller may read them says nothing: the daemon of another user does.
_FILE: Final = click.Path(readable=False)
_OPTIONS = (
    click.Option(["--db"], type=_FILE, metavar="FILE", help="The database (AVM_DB)."),
    click.Option(["--config"], type=_FILE, metavar="FILE", help="config.yaml (AVM_CONFIG)."),
    click.Option(["--agent", "-a"], metavar="NAME", help="Who you are (AVM_AGENT)."),
    click.Option(["--operator"], is_flag=True, help="Act as the operator."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
    click.Option(["--no-color"], is_flag=True, help="No colours, on a terminal too."),
)


class Offered(click.types.StringParamType):
    """Text for which the shell offers what memory has of a kind: paths, agents, moments, snapshots."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from avmfs.cli.completing import offered

        return offered(ctx, self.kind, incomplete)


SNAPSHOT: Final = Offered("snapshots")
_OFFERED: Final = {
    **dict.fromkeys(("path", "paths", "under", "where", "into", "source", "target", "targets"), Offered("paths")),
    **dict.fromkeys(("agent", "recipient", "of", "whose", "by", "who"), Offered("agents")),
    **dict.fromkeys(("at", "when"), Offered("moments")),
}
"""By the name of the option or argument, where it is plain text."""


def _served(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with what it names beside its options: ``ctx``, the context, and ``memory``, a door as whoever the
    global options name, open while it runs."""
    named = inspect.signature(function).parameters

    @functools.wraps(function)
    def served(**options: Any) -> Any:
        if "ctx" in named:
            options["ctx"] = click.get_current_context()
        if "memory" not in named:
            return function(**options)
        from avmfs.cli.session import door

        with door() as memory:
            return function(**options, memory=memory)

    return served


class _Shared(click.Command):
    """Takes the global options, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.callback is not None:
            self.callback = _served(self.callback)
        self.params.extend(_OPTIONS)
        for each in self.params:
            if each.type is click.STRING and each.name in _OFFERED:
                each.type = _OFFERED[each.name]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = ctx.parent is not None and ctx.parent.parent is None
        if own and self.name in COMMANDS and (line := example(self.name)) and line not in (self.help or ""):
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        shared = ctx.ensure_object(Globals)
        # What is ``--at`` here is a moment.
        shared.merge({name: ctx.params.pop(name, None) for name in Globals.__dataclass_fields__ if name != "at"})
        return super().invoke(ctx)


class Command(_Shared):
    """A sub-command."""


class CommandGroup(_Shared, click.Group):
    """A sub-command with sub-commands of its own."""

    command_class = Command


_IMPORTED: dict[str, Command | CommandGroup] = {}


@overload
def subcommand(name: str, summary: str) -> Callable[[Callable[..., Any]], Command]: ...
@overload
def subcommand(
    name: str, summary: str, *, cls: type[CommandGroup], **attributes: Any
) -> Callable[[Callable[..., Any]], CommandGroup]: ...
def subcommand(name: str, summary: str, *, cls: type[Any] = Command, **attributes: Any) -> Callable[..., Any]:
    """Make a function a sub-command of ``avm``, with ``summary`` as its line on the help page. Both are plain strings:
    ``commands`` reads them from the source text."""
    if name not in COMMANDS:
        raise ValueError(f"@subcommand must begin a line and name {name} with a plain string")

    def register(function: Callable[..., Any]) -> Any:
        _IMPORTED[name] = click.command(name, cls=cls, **attributes)(function)
        return _IMPORTED[name]

    return register


_MEANT: Final = {name: f"avm-daemon {name}" for name in ("start", "stop", "status", "reload")} | {
    **dict.fromkeys(("cat", "get", "show"), "read"),
    **dict.fromkeys(("add", "save", "store"), "remember"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    "list": "ls",
    "find": "search",
    "query": "recall",
}
"""What people type who know the daemon, or another memory, where the nearest letters would mislead."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        importlib.import_module(COMMANDS[name][0])
        return _IMPORTED[name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            meant = _MEANT.get(args[0])
            if guess := [meant] if meant else get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {guess[0]}?")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)  # which prints --help and --version
        except BrokenPipeError:  # the reader has gone (head): no error, which click makes it
            raise click.exceptions.Exit(OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        with contextlib.suppress(BrokenPipeError):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: importing every command to print one help page would cost ten times as much.
        listed = {name for group in GROUPS.values() for name in group}
        rest = {"More": [name for name in COMMANDS if name not in listed]}
        for title, names in {**GROUPS, **rest}.items():
            if rows := [(name, COMMANDS[name][1]) for name in names if name in COMMANDS]:
                with formatter.section(title):
                    formatter.write_dl(rows)


_ELSEWHERE: Final = (
    click.Option(["--at"], metavar="URL", help="A daemon's HTTP service, on whatever machine (AVM_AT)."),
    click.Option(["--ca"], type=_FILE, metavar="FILE", help="Who signed its certificate, in PEM (AVM_CA)."),
)


@click.group(cls=_Lazy, params=[*_OPTIONS, *_ELSEWHERE], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="avmfs", prog_name="avm")
@click.pass_context
def avm(ctx: click.Context, /, **given: Any) -> None:
    """One shared, searchable memory for the agents on this machine.

    Who you are: --agent NAME, or AVM_AGENT in the environment. The daemon is asked, and one without mounts is started
    where none runs (avm help operations).
    """
    ctx.ensure_object(Globals).merge(given)


def main() -> None:
    """Run the command line; never returns."""
    stand_in_for_closed()
    if "_AVM_COMPLETE" in os.environ:  # a shell asks: by this class of its own
        importlib.import_module("avmfs.cli.completing")
    try:
        code = avm.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as e:
        if "--json" in sys.argv and not isinstance(e, click.exceptions.NoArgsIsHelpError):
            _tell_json(e.format_message(), errno.EINVAL, f"{_path_of(e)} --help says what it takes")
        else:
            if not isinstance(e, click.exceptions.NoArgsIsHelpError):  # whose message is the help page
                # It repeats what was typed, which may be a name that was found.
                e.message = visible(e.message)  # type: ignore[misc]
            e.show()
        code = USAGE
    except BrokenPipeError:
        code = OK
    except AvmError as e:
        complain(e)
        code = _code(e)
    except OSError as e:  # of this machine's files, not of the memory: an unwritable directory, a full disk
        complain(e)
        code = REFUSED
    except ValueError as e:  # ConfigError: the message names file, key and reason
        complain(e)
        code = USAGE
    try:
        sys.stdout.flush()
    except OSError:  # said above
        drop_output()
    sys.exit(code if isinstance(code, int) else OK)


def complain(error: Exception) -> None:
    """Print it to stderr with advice; as an object where --json was asked for."""
    from avmfs.cli.hints import hint

    advice = hint(error, sys.argv[1:])
    if "--json" in sys.argv:
        _tell_json(str(error), (error.errno if isinstance(error, OSError) else None) or errno.EINVAL, advice)
    else:
        print(f"avm: {visible(str(error))}" + (f"\n     {advice}" if advice else ""), file=sys.stderr)


def _tell_json(error: str, code: int, advice: str | None) -> None:
    print(json.dumps({"error": error, "errno": code, "hint": advice}, sort_keys=True), file=sys.stderr)


def _path_of(error: click.ClickException) -> str:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return "avm" if ctx is None else ctx.command_path


def _code(error: AvmError) -> int:
    if isinstance(error, Invalid):
        return USAGE
    return TEMPORARY if isinstance(error, (Busy, Interrupted)) else REFUSED
