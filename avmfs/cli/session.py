"""What commands share: a door for whoever asks, how results are printed, what is asked before files go."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from avmfs_config import Paths
from avmfs_config.paths import not_own

from avmfs.api.connect import asked, located, open_door, who_asks
from avmfs.cli.main import Globals, complain
from avmfs.errors import AvmError, Busy, StoreFailed
from avmfs.rpc.client import Door
from avmfs.text.escapes import json_safe

SILENT_S, REDRAW_S = 0.7, 0.2  # work that takes longer is told of, on a terminal; and how often
BAR: Final = 24  # characters
URGENT_S: Final = 3600.0  # until the same urgent messages are told of again
ERRORS: Final = 20  # of one command that are told
S = TypeVar("S")
T = TypeVar("T")


class _Local(click.Path):
    """A path outside the memory. An empty one, as of a variable that is not set, would be the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


LOCAL: Final = _Local(path_type=Path)


def _given() -> Globals:
    """What the global options say."""
    return click.get_current_context().ensure_object(Globals)


def locations() -> Paths:
    """Where everything is, as the environment and the global options say."""
    return located(elsewhere(), _given().db, _given().config)


def locations_here() -> Paths:
    """The same, for what works on the files of this machine. Raises UsageError where another one is asked."""
    if elsewhere().get("AVM_AT"):
        raise click.UsageError(
            "works on files of this machine: run it on the store's, without AVM_AT and the --at before the command"
        )
    return locations()


def elsewhere() -> dict[str, str]:
    """The environment, with what --at and --ca say laid over it, and without AVM_AT where --db or --config names
    files."""
    given = _given()
    return asked(os.environ, at=given.at, ca=given.ca, db=given.db, config=given.config)


@contextlib.contextmanager
def door(*, embeddings: bool = False) -> Iterator[Door]:
    """A door as the agent (or operator) of the global options. Unread urgent mail goes to stderr at the end.

    ``embeddings``: without a daemon, load the model in this process; else searches use words alone.
    """
    given = _given()
    where = locations()
    nameless = given.agent is None and given.operator and not os.environ.get("AVM_AGENT")
    agent = who_asks("operator" if nameless else given.agent, os.environ)
    environ = elsewhere()
    before = _damage()
    opened = open_door(where, agent, environ=environ, operator=given.operator, embeddings=embeddings, route="cli")
    try:
        yield opened
        for error in sorted(_damage() - before):
            complain(StoreFailed(error))
        if opened.urgent and _due(opened, where.runtime_dir, given.as_json):
            sys.stdout.flush()
            print(opened.urgent, end="", file=sys.stderr)
    finally:
        opened.close()


def _damage() -> frozenset[str]:
    """What this process has met, if it had a store open itself."""
    found = sys.modules.get("avmfs.store.schema.database")
    return frozenset() if found is None else frozenset(found.MET)


def _due(opened: Door, runtime_dir: Path, as_json: bool) -> bool:
    """Whether unread urgent mail is told of: with AVM_URGENT=1 always, with 0 never, else to a person (a terminal, no
    --json) once an hour, and at once where there is more of it."""
    asked = os.environ.get("AVM_URGENT", "")
    if asked in ("0", "1"):
        return asked == "1"
    if as_json or not sys.stderr.isatty():
        return False
    mark, now = runtime_dir / f"urgent-{opened.agent}", str(zlib.crc32(opened.urgent.encode()))
    with contextlib.suppress(OSError):  # where it cannot be noted, it is told again
        if not_own(runtime_dir):
            return True
        if mark.exists() and time.time() - mark.stat().st_mtime < URGENT_S and mark.read_text() == now:
            return False
        mark.write_text(now)
    return True


at_option = click.option("--at", "at", metavar="TIME", help="As it was: yesterday, -2h, 2026-03-01T12:00, snap.NAME.")


def then(path: str, at: str | None) -> str:
    """The path, as it was at that instant."""
    return path if at is None else f"/@{at}/{path.lstrip('/')}"


def show(value: Any, text: str, *, prose: bool = True) -> None:
    """``value`` as JSON when asked for, else ``text`` (which ends its own lines), in colours where a terminal shows it
    and it is ``prose``."""
    given = _given()
    if given.as_json:
        text = json_safe(value) + "\n"
    elif prose and sys.stdout.isatty():
        from avmfs.cli import colour

        if colour.wanted(sys.stdout, os.environ, refused=given.no_color):
            text = colour.painted(text)
    data = text.encode("utf-8", "surrogateescape")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def content_of(argument: str | None, option: str | None) -> bytes:
    """What to write: an option, an argument, or stdin ("-" or nothing)."""
    if argument is not None and option is not None:
        raise click.UsageError("TEXT and --content: one of them")
    given = option if option is not None else argument
    if given is None or given == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(given)


def words_of(given: tuple[str, ...]) -> str:
    """A question from arguments; from stdin for a single "-"."""
    if given == ("-",):
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape").strip()
    return " ".join(given)


def to_each(items: Iterable[S], do: Callable[[S], T], tell: Callable[[list[T]], None]) -> None:
    """``do`` to each, also behind one that it fails for, and ``tell`` what came of it; then raise what failed. Several
    errors are one, of the first's kind; where nobody answers (Busy) the rest is not tried."""
    done: list[T] = []
    failed: list[AvmError] = []
    for each in items:
        try:
            done.append(do(each))
        except AvmError as e:
            failed.append(e)
            if isinstance(e, Busy):
                break
    if done or not failed:
        tell(done)
    if len(failed) > 1:
        more = f"; and {len(failed) - ERRORS} more" if len(failed) > ERRORS else ""
        raise type(failed[0])("; ".join(map(str, failed[:ERRORS])) + more)
    if failed:
        raise failed[0]


def names_of(given: tuple[str, ...], *, null: bool = False) -> list[str]:
    """Paths from arguments; from stdin, one a line, or each ended by a NUL, for a single "-"."""
    if given == ("-",):
        said = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        return [name for name in said.split("\0" if null else "\n") if name]
    return [*given]


def show_names(value: Any, names: Iterable[str]) -> None:
    """``value`` as JSON when asked for, else names as they are, each ended by a NUL: for xargs -0 and the like."""
    if _given().as_json:
        show(value, "")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(os.fsencode(name) + b"\0" for name in names))


null_option = click.option(
    "--null", "-0", is_flag=True, help="Names as they are, each ended by a NUL and not by a line end."
)


def asking() -> bool:
    """Whether somebody sits there who can be asked. A program that runs this has said what it wants."""
    return not _given().as_json and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(what: str) -> None:
    """Ask, before something is destroyed that was not named one by one. Raises Abort for a no."""
    click.confirm(what, abort=True, err=True)


class Progress:
    """How far something is that ``working`` tells of: ``done``, and of how many where that is known (else 0)."""

    def __init__(self, what: str) -> None:
        self.what, self.done, self.of = what, 0, 0
        self._began = time.monotonic()

    def __call__(self, done: int, of: int = 0) -> None:
        self.done, self.of = done, of

    def counted(self, source: Iterable[T], of: int = 0) -> Iterator[T]:
        """``source``, and how far it has been taken."""
        for number, each in enumerate(source, 1):
            yield each
            self(number, of)

    def line(self) -> str:
        done = min(self.done, self.of) if self.of else self.done
        if not done or not self.of:
            return f"{self.what} ..." + (f" {done:,}" if done else "")
        left = (time.monotonic() - self._began) * (self.of - done) / done
        return f"{self.what} [{'#' * (BAR * done // self.of):-<{BAR}}] {100 * done // self.of} %, {left:.0f} s left"


@contextlib.contextmanager
def working(what: str) -> Iterator[Progress]:
    """Say on a terminal what takes so long and how far it is, once it does, and take it away again. Nothing with
    ``--json``, which a program reads."""
    ctx, told = click.get_current_context(silent=True), Progress(what)
    if not sys.stderr.isatty() or (ctx is not None and isinstance(ctx.obj, Globals) and ctx.obj.as_json):
        yield told
        return
    import shutil  # which imports all that compresses

    over = threading.Event()

    def tell() -> None:
        wait, shown = SILENT_S, ""
        while not over.wait(wait):
            wait, line = REDRAW_S, told.line()[: shutil.get_terminal_size().columns - 1]
            if line != shown:
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
                shown = line
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield told
    finally:
        over.set()
        teller.join()
