"""The command `avm-daemon`.

Parses the command line, prints, and chooses exit codes: 0 done, 1 failed or not running, 2 usage. What a command
does is in `supervisor` (start) and `control` (the others). Imports next to nothing before it must: `start --daemon`
has to fork while there is no thread, and every child of the daemon imports this module again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from avmfs_config import ConfigError, Paths, find_paths

from avmfs.closed_streams import stand_in_for_closed
from avmfs_daemon.setup import COMMANDS

if TYPE_CHECKING:
    from avmfs_daemon.children import Entries

LOG_LIMIT = 16 * 1024 * 1024
STOP_S = 15.0
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


class Failure(click.ClickException):
    """Printed as one line; exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"avm-daemon: {self.message}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="avmfs", prog_name="avm-daemon")
def cli() -> None:
    """Serve one shared memory to the agents of mounts.yaml, each through a mount of its own."""


@cli.command()
@click.option("--daemon", "detached", is_flag=True, help="Return once the mounts are up; log to a file.")
def start(detached: bool) -> None:
    """Mount everything and keep it running, in the foreground."""
    paths, environ = _surroundings()
    if detached:
        _start_detached(paths, environ)
    else:
        os.umask(0o077)
        leave(serve(paths, environ, started=lambda problems: None, failed=_complain))


@cli.command()
def stop() -> None:
    """Unmount everything and end the daemon; return when it has gone."""
    from avmfs_daemon import control, runtime

    paths, _ = _surroundings()
    try:
        pid = control.stop(paths.runtime_dir / runtime.CONTROL, STOP_S)
    except control.NotRunning:
        if not _clean_up(paths.runtime_dir):
            raise Failure("not running; nothing to stop") from None
        click.echo("avm-daemon was not running; took away what a killed one had left")
    except control.ControlError as e:
        raise Failure(str(e)) from None
    else:
        click.echo(f"avm-daemon (pid {pid}) has stopped")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(as_json: bool) -> None:
    """Show the daemon, its mounts, the embedding model and the store."""
    answer = _ask("status")
    click.echo(json.dumps(answer, indent=2, sort_keys=True) if as_json else _shown(answer))


@cli.command()
def reload() -> None:
    """Read both configuration files again; on an error the old configuration keeps running."""
    done = _ask("reload")
    for problem in done["problems"]:
        click.echo(f"avm-daemon: {problem}", err=True)
    counts = ", ".join(f"{done[what]} {what}" for what in ("added", "removed", "restarted"))
    click.echo(f"reloaded; mounts: {counts}")


@cli.command()
def check() -> None:
    """Check both configuration files; exit 1 if one cannot be used."""
    import avmfs_config

    paths, environ = _surroundings()
    problems = avmfs_config.check(paths, environ)
    for problem in problems:
        click.echo(str(problem), err=True)
    if problems:
        sys.exit(1)
    mounts = avmfs_config.load_mounts(paths.mounts_file, environ)
    click.echo(f"ok: {len(mounts)} mount{'' if len(mounts) == 1 else 's'} in {paths.mounts_file}")


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> None:
    """The entry point."""
    stand_in_for_closed(drop=True)
    try:
        cli()
    except OSError as e:  # of this machine's files: an unwritable directory, a full disk below stdout
        print(f"avm-daemon: {e}", file=sys.stderr)
        # What stdout did not take is dropped, or the interpreter would try again and end with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def serve(
    paths: Paths, environ: Mapping[str, str], started: Callable[[list[str]], None], failed: Callable[[str], None],
    entries: Entries | None = None,
) -> int:  # fmt: skip
    """Run the supervisor in this process; the exit code. `failed` is told why it could not start."""
    import logging

    from avmfs.errors import AvmError
    from avmfs_daemon.children import Entries
    from avmfs_daemon.runtime import RuntimeProblem
    from avmfs_daemon.supervisor import Supervisor

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s supervisor: %(levelname)s %(message)s", force=True
    )
    try:
        Supervisor(paths, environ, entries or Entries(), started).run()
    except (ConfigError, RuntimeProblem, AvmError) as e:
        failed(str(e))
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End the process at once: a thread may be computing vectors, and nothing is left to be tidied."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _start_detached(paths: Paths, environ: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            _detach_and_serve(paths, environ, writing)
        except BaseException as e:  # the launching command prints what is written here
            os.write(writing, json.dumps({"error": str(e) or type(e).__name__}).encode())
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    if not said:
        raise Failure(f"the daemon died while starting; see {_log_path(paths)}")
    outcome = json.loads(said)
    if "error" in outcome:
        raise Failure(outcome["error"])
    for problem in outcome["problems"]:
        click.echo(f"avm-daemon: {problem}", err=True)
    click.echo(f"avm-daemon is running (pid {outcome['pid']})")


def _detach_and_serve(paths: Paths, environ: Mapping[str, str], writing: int) -> NoReturn:
    from daemon.daemon import DaemonContext  # python-daemon's, not the folder that this package is in

    os.umask(0o077)  # the directories above the log are made here, before DaemonContext sets it
    path = _log_path(paths)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    log = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a")

    def tell(outcome: dict[str, Any]) -> None:
        os.write(writing, json.dumps(outcome).encode())
        os.close(writing)

    with DaemonContext(
        detach_process=True, umask=0o077, files_preserve=[writing, log], stdout=log, stderr=log, working_directory="/"
    ):
        leave(
            serve(
                paths, environ,
                started=lambda problems: tell({"pid": os.getpid(), "problems": problems}),
                failed=lambda reason: tell({"error": reason}),
            )
        )  # fmt: skip


def _surroundings() -> tuple[Paths, dict[str, str]]:
    """The paths, and an environment that means the same from any working directory."""
    try:
        paths = find_paths(os.environ)
    except ConfigError as e:
        raise Failure(str(e)) from None
    fixed = {
        "AVM_CONFIG_DIR": paths.config_dir, "AVM_DATA_DIR": paths.data_dir, "AVM_RUNTIME_DIR": paths.runtime_dir,
        "AVM_MOUNTS": paths.mounts_file, "AVM_CONFIG": paths.config_file, "AVM_DB": paths.database,
    }  # fmt: skip
    if given := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in given.split(os.pathsep))
    return paths, {**os.environ, **{name: os.fspath(path) for name, path in fixed.items()}}


def _ask(operation: str) -> dict[str, Any]:
    from avmfs_daemon import control, runtime

    paths, _ = _surroundings()
    try:
        answer: dict[str, Any] = control.ask(paths.runtime_dir / runtime.CONTROL, operation)
    except control.NotRunning:
        raise Failure("not running") from None
    except control.ControlError as e:
        raise Failure(str(e)) from None
    return answer


def _clean_up(directory: Path) -> bool:
    """After a killed daemon: whether there was anything to take away."""
    from avmfs_daemon import box, runtime

    if not (directory / runtime.STATE).exists():
        return False
    try:
        with runtime.hold(directory / "daemon", 2.0, {"pid": os.getpid(), "socket": ""}):
            box.end_left(directory)  # first: nobody answers on the mounts that it holds
            runtime.clean_up(directory)
    except runtime.RuntimeProblem as e:
        raise Failure(str(e)) from None
    return True


def _log_path(paths: Paths) -> Path:
    return paths.data_dir / "logs" / "avm-daemon.log"


def _complain(reason: str) -> None:
    click.echo(f"avm-daemon: {reason}", err=True)


def _shown(answer: dict[str, Any]) -> str:
    embedding, store = answer["embedding"], answer["store"]
    because = f" ({answer['isolation_reason']})" if answer.get("isolation_reason") else ""
    lines = [f"avm-daemon {answer['version']}, pid {answer['pid']}, isolation {answer['isolation']}{because}", ""]
    rows = [("AGENT", "STATE", "PID", "RESTARTS", "SINCE", "UNREAD", "MOUNTPOINT")]
    rows += [
        (
            mount["agent_id"], mount["state"], str(mount["pid"] or "-"), str(mount["restarts"]),
            _ago(mount["since"]), str(mount["unread"]), mount["mountpoint"],
        )
        for mount in answer["mounts"]
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for what in ("error", "link_problem"):
        lines += [f"  {mount['agent_id']}: {mount[what]}" for mount in answer["mounts"] if mount.get(what)]
    model = f" {embedding['model']}, {embedding['dimension']} dimensions" if embedding["model"] else ""
    reason = f" ({embedding['reason']})" if embedding.get("reason") else ""
    lines += ["", f"embedding  {embedding['state']}{model}{reason}", f"store      {store['path']}"]
    index = answer.get("index", {})
    if "vectors" in index:
        lines.insert(-1, f"index      {index['state']}, {index['vectors']} vectors, pid {index['pid'] or '-'}")
    lines += _gossip(answer.get("gossip", {"state": "off"})) + _outbox(answer.get("outbox", {}))
    if "error" in store:
        lines.append(f"           {store['error']}")
    else:
        lines.append(f"waiting    {store['waiting_lexical']} for words, {store['waiting_semantic']} for vectors")
    return "\n".join(lines)


def _gossip(said: dict[str, Any]) -> list[str]:
    """How the exchange with other hosts is; nothing where there is none."""
    if said["state"] in ("off", "starting"):
        return []
    if said["state"] != "on":
        return [f"gossip     {said['state']}"]
    peers = [f"           {peer}: {state['state']}" for peer, state in said["peers"].items()]
    return [f"gossip     {said.get('digests', 0)} digests of {said.get('hosts', 0)} hosts", *peers]


def _outbox(said: dict[str, Any]) -> list[str]:
    """How deliveries are; nothing while nobody wants any."""
    if not (said.get("subscriptions") or said.get("hooks")):
        return []
    due = "" if said["oldest_s"] is None else f", the oldest due for {_ago(time.time() - said['oldest_s'])}"
    lines = [
        f"outbox     {said['subscriptions']} subscriptions and {said['hooks']} hooks: {said['waiting']} waiting"
        f" ({said['retrying']} being repeated), {said['delivering']} at work, {said['unread']} unread,"
        f" {said['sent']} delivered{due}"
    ]
    if said["dead"]:
        lines.append(f"           {said['dead']} dead letters: avm subscriptions --dead (of hooks: --operator)")
    return lines


def _ago(since: float) -> str:
    """The two largest units of the time that has passed: 3h 20m."""
    left = max(0, int(time.time() - since))
    parts: list[str] = []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
