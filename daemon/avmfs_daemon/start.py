"""Running the supervisor in this process, in the foreground or detached from the terminal.

Owns the log of a detached daemon and what the launching command is told through a pipe. Imports next to nothing before
it must: `start --daemon` forks, and that has to be while there is no thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click
from avmfs_config import ConfigError, Paths

from avmfs.text.escapes import visible
from avmfs_daemon.cli_context import Failure, complain, log_path

if TYPE_CHECKING:
    from avmfs_daemon.entrypoints import Entries

LOG_LIMIT = 16 * 1024 * 1024  # bytes; a longer log is put aside at the next start


def serve(
    paths: Paths,
    environ: Mapping[str, str],
    started: Callable[[list[str]], None],
    failed: Callable[[str], None],
    entries: Entries | None = None,
    idle_s: float | None = None,
) -> int:
    """Run the supervisor in this process; the exit code. `failed` is told why it could not start. One that a command
    started is ended first, unless this one is of that kind (`idle_s`)."""
    from avmfs.errors import AvmError
    from avmfs.logs import log_of_daemon
    from avmfs_daemon import control
    from avmfs_daemon.entrypoints import Entries, have_descriptors
    from avmfs_daemon.runtime import RuntimeProblem
    from avmfs_daemon.supervisor import Supervisor

    log_of_daemon("supervisor")
    have_descriptors()
    try:
        if idle_s is None:
            control.dismiss_automatic(paths)
        Supervisor(paths, environ, entries or Entries(), started, idle_s).run()
    except (ConfigError, RuntimeProblem, AvmError, control.ControlError) as e:
        failed(str(e))
        return 1
    return 0


def mend(paths: Paths, environ: Mapping[str, str]) -> None:
    """Repair a damaged store, and give up what is lost."""
    from avmfs_config import load_settings

    from avmfs.agents.repairing import repair
    from avmfs.errors import AvmError

    try:
        with repair(paths.database, load_settings(paths.config_file, environ)) as done:
            if not done.sound:
                done.install()
                lines = [*done.lost, *done.kept, f"the store was repaired; the old one is in {done.aside}"]
                click.echo("\n".join(map(visible, lines)), err=True)
    except (AvmError, ConfigError) as e:
        raise Failure(str(e)) from None


def leave(code: int) -> NoReturn:
    """End the process at once: a thread may be computing vectors, and nothing is left to be tidied."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_detached(paths: Paths, environ: Mapping[str, str], idle_s: float | None = None) -> None:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        command = os.fdopen(writing, "w")  # it prints what is written here, until it is told how the start went
        try:
            _detach_and_serve(paths, environ, command, idle_s)
        except BaseException as e:
            if not command.closed:
                _tell(command, {"error": str(e) or type(e).__name__})
            elif isinstance(e, Exception):  # no second signal at the end
                logging.getLogger(__name__).exception("ended by an error")
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    if not said:
        raise Failure(f"the daemon died while starting; see {log_path(paths)}")
    outcome = json.loads(said)
    if "error" in outcome:
        raise Failure(outcome["error"])
    for problem in outcome["problems"]:
        complain(problem)
    click.echo(f"avm-daemon is running (pid {outcome['pid']})")
    if outcome["problems"]:
        sys.exit(1)


def _tell(command: TextIO, outcome: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError), command:  # whoever called `start` was killed meanwhile: the daemon is up
        json.dump(outcome, command)


def _detach_and_serve(paths: Paths, environ: Mapping[str, str], command: TextIO, idle_s: float | None) -> NoReturn:
    from daemon.daemon import DaemonContext  # python-daemon's, not the folder that this package is in

    os.umask(0o077)  # the directories above the log are made here, before DaemonContext sets it
    path = log_path(paths)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    log = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a")

    with DaemonContext(
        detach_process=True, umask=0o077, files_preserve=[command, log], stdout=log, stderr=log, working_directory="/"
    ):
        leave(
            serve(
                paths,
                environ,
                started=lambda problems: _tell(command, {"pid": os.getpid(), "problems": problems}),
                failed=lambda reason: complain(reason) if command.closed else _tell(command, {"error": reason}),
                idle_s=idle_s,
            )
        )
