"""The command `avm-daemon`.

Parses the command line, prints, and chooses exit codes: 0 done, 1 failed or not running, 2 usage. What a command
does is in `start` (start) and `control` (the others). Imports next to nothing before it must: `start --daemon`
has to fork while there is no thread, and every child of the daemon imports this module again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import click

from avmfs.closed_streams import drop_output, stand_in_for_closed
from avmfs.errors import AvmError
from avmfs.providers.handler import apart, find_handler, unusable
from avmfs.text.escapes import visible
from avmfs_daemon.cli_context import Failure, complain, paths_and_environ
from avmfs_daemon.setup import COMMANDS
from avmfs_daemon.start import leave, mend, serve, start_detached
from avmfs_daemon.status_text import status_text

STOP_S = 60.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="avmfs", prog_name="avm-daemon")
def cli() -> None:
    """Serve one shared memory to the agents of mounts.yaml, each through a mount of its own."""


@cli.command()
@click.option("--daemon", "detached", is_flag=True, help="Return once the mounts are up; log to a file.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="Mount nothing, end after so long without a request, and give way to a start without --idle: what a command "
    "starts where no daemon runs.",
)
@click.option("--accept-loss", is_flag=True, help="First `avm repair --accept-loss`: go on without what is lost.")
def start(detached: bool, idle: float | None, accept_loss: bool) -> None:
    """Mount everything and keep it running, in the foreground."""
    paths, environ = paths_and_environ()
    if accept_loss:
        mend(paths, environ)
    if detached:
        start_detached(paths, environ, idle)
    else:
        os.umask(0o077)
        os.chdir("/")  # the fork server imports from its working directory, and files of this one may be anybody's
        leave(serve(paths, environ, started=lambda problems: None, failed=complain, idle_s=idle))


@cli.command()
@click.option(
    "--as-stop-post",
    is_flag=True,
    help="As a systemd unit's ExecStopPost: end what is left of a service whose main process has ended, but keep the "
    "mounts where $SERVICE_RESULT says that systemd starts it again.",
)
def stop(as_stop_post: bool) -> None:
    """Unmount everything and end the daemon; return when it has gone."""
    from avmfs_daemon import control, runtime, stale_mounts

    paths, environ = paths_and_environ()
    try:
        if as_stop_post:
            if not (result := environ.get("SERVICE_RESULT")):
                raise Failure("--as-stop-post is for systemd, which sets SERVICE_RESULT")
            if stale_mounts.after_service(paths.runtime_dir, result):
                click.echo(f"the service has ended ({result}); its mounts wait for the next one")
            return
        pid = control.reached(paths, lambda path: control.stop(path, STOP_S))
    except control.NotRunning:
        try:
            cleaned = stale_mounts.clean_up(paths.runtime_dir)
        except runtime.RuntimeProblem as e:
            raise Failure(str(e)) from None
        if not cleaned:
            raise Failure("not running; nothing to stop") from None
        click.echo("avm-daemon was not running; took away what a killed one had left")
    except (control.ControlError, runtime.RuntimeProblem) as e:
        raise Failure(str(e)) from None
    else:
        with contextlib.suppress(runtime.RuntimeProblem):  # somebody has started another one, or it is not ours
            stale_mounts.clean_up(paths.runtime_dir)  # one that a command started leaves a killed one's mounts
        click.echo(f"avm-daemon (pid {pid}) has stopped")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(as_json: bool) -> None:
    """Show the daemon, its mounts, the embedding model and the store; exit 1 where one of them has failed."""
    answer = _ask("status")
    click.echo(json.dumps(answer, indent=2, sort_keys=True) if as_json else status_text(answer))
    failed = answer["problem"] or answer["embedding"]["state"] == "failed" or "error" in answer["store"]
    if failed or any(mount["state"] == "failed" for mount in answer["mounts"]):
        sys.exit(1)


@cli.command()
def reload() -> None:
    """Read both configuration files again; on an error the old configuration keeps running. Exit 1 on one, and where a
    mount or another part then has a problem."""
    done = _ask("reload")
    for problem in done["problems"]:
        complain(problem)
    counts = ", ".join(f"{done[what]} {what}" for what in ("added", "removed", "restarted"))
    click.echo(f"reloaded; mounts: {counts}")
    if done["problems"]:
        sys.exit(1)


@cli.command()
def check() -> None:
    """Check both configuration files; exit 1 if one, or a provider in it, cannot be used."""
    import avmfs_config

    paths, environ = paths_and_environ()
    problems = avmfs_config.check(paths, environ)
    for problem in problems:
        click.echo(visible(str(problem)), err=True)
    if problems:
        sys.exit(1)
    unmade = False
    settings = avmfs_config.load_settings(paths.config_file, environ)
    for index, provider in enumerate(settings.providers):
        try:
            find_handler(provider.handler)(provider.config)
        except Exception as e:  # of code that is not ours
            reason = e.reason if isinstance(e, AvmError) else f"{type(e).__name__}: {e}"
            click.echo(visible(str(unusable(paths.config_file.name, index, reason))), err=True)
            unmade = True
    if unmade:
        sys.exit(1)
    for said in apart(settings.providers) if settings.store.log is not None else ():
        click.echo(visible(f"config.yaml: {said}"), err=True)
    mounts = avmfs_config.load_mounts(paths.mounts_file, environ)
    click.echo(visible(f"ok: {len(mounts)} mount{'' if len(mounts) == 1 else 's'} in {paths.mounts_file}"))


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> None:
    """The entry point."""
    stand_in_for_closed(drop=True)
    try:
        cli()
    except OSError as e:  # of this machine's files: an unwritable directory, a full disk below stdout
        complain(str(e))
        drop_output()
        sys.exit(1)


def _ask(operation: str) -> dict[str, Any]:
    from avmfs_daemon import control

    paths, _ = paths_and_environ()
    try:
        answer: dict[str, Any] = control.reached(paths, lambda path: control.ask(path, operation))
    except control.NotRunning:
        raise Failure("not running") from None
    except control.ControlError as e:
        raise Failure(str(e)) from None
    return answer
