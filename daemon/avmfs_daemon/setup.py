"""Sub-commands of `avm-daemon` that change files, not the running daemon: add, remove, install-service.

Owns their options and what they print. `main` registers them; what they do is in `mounts_file` and `service`, imported
when they are called, since every child of the daemon imports this module with `main`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from avmfs.text.escapes import visible, visible_lines
from avmfs_daemon.cli_context import Failure, complain, log_path, paths_and_environ


@click.command()
@click.argument("agent")
@click.argument("mountpoint")
@click.option("--read-only", is_flag=True, help="Refuse every change through this mount.")
@click.option("--uid", type=click.IntRange(0, 2**32 - 2), help="The Unix user who owns the mount.")
@click.option("--allow-other", is_flag=True, help="Other Unix users may use the mount.")
@click.option("--link", help="Where a symbolic link to the mountpoint is made.")
@click.option("--coherence", type=click.Choice(["strict", "close-to-open"]), help="What the kernel may cache.")
@click.option("--no-reload", is_flag=True, help="Leave a running daemon as it is.")
def add(
    agent: str,
    mountpoint: str,
    read_only: bool,
    uid: int | None,
    allow_other: bool,
    coherence: str | None,
    link: str | None,
    no_reload: bool,
) -> None:
    """Add AGENT, mounted at MOUNTPOINT, to mounts.yaml; a running daemon mounts it at once."""
    from avmfs_daemon import mounts_file

    given = {
        "uid": uid,
        "read_only": read_only or None,
        "allow_other": allow_other or None,
        "coherence": coherence,
        "link": link,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if mountpoint and not mountpoint.startswith(("~", "$", "/")):
        mountpoint = os.path.abspath(mountpoint)
    _change(lambda path, environ: mounts_file.add(path, environ, agent, mountpoint, options), "added", no_reload)


@click.command()
@click.argument("agent")
@click.option("--no-reload", is_flag=True, help="Leave a running daemon as it is.")
def remove(agent: str, no_reload: bool) -> None:
    """Take AGENT's mount out of mounts.yaml; a running daemon unmounts it. Its memory stays."""
    from avmfs_daemon import mounts_file

    _change(lambda path, environ: mounts_file.remove(path, environ, agent), "removed", no_reload)


@click.command("install-service")
@click.option("--platform", type=click.Choice(["systemd", "launchd"]), help="[default: this machine's]")
@click.option("--system", "user", metavar="USER", help="The machine's service, run as this user of its own (systemd).")
@click.option("--print", "only_print", is_flag=True, help="Print the file; write nothing.")
@click.option("--dry-run", is_flag=True, help="Say what would be written where; write nothing.")
@click.option("--force", is_flag=True, help="Replace a file that somebody else wrote.")
def install_service(platform: Any, user: str | None, only_print: bool, dry_run: bool, force: bool) -> None:
    """Have the daemon started at login: a systemd user unit, or a launchd agent on macOS; with --system, at boot."""
    from avmfs_daemon import service

    paths, fixed = paths_and_environ()
    environ = {name: fixed[name] for name, given in os.environ.items() if given}
    if "AVM_DB" in environ:  # by the link that it may be, which can be made to lead elsewhere
        environ["AVM_DB"] = os.path.abspath(os.path.expanduser(os.environ["AVM_DB"]))
    platform = platform or ("launchd" if sys.platform == "darwin" else "systemd")
    command = service.own_command(sys.argv[0])
    try:
        if user is None:
            made = service.make(platform, command, environ, Path.home(), log_path(paths))
        elif platform == "systemd":
            made = service.make_system(command, environ, user)
        else:
            raise service.ServiceProblem("--system is for systemd")
        if only_print:
            click.echo(made.text, nl=False)
            return
        if user is not None:
            service.check_reach(command, user)
        if dry_run:
            click.echo(f"would write {visible(str(made.path))}\n{visible_lines(made.following)}", nl=False)
            return
        changed = service.put(made, force=force)
    except (service.ServiceProblem, OSError) as e:
        raise Failure(str(e)) from None
    click.echo(
        f"{'wrote' if changed else 'as it was:'} {visible(str(made.path))}\n{visible_lines(made.following)}", nl=False
    )


def _change(change: Any, what: str, no_reload: bool) -> None:
    from avmfs_config.editing import EditProblem

    from avmfs_daemon import control

    paths, environ = paths_and_environ()
    try:
        mount = change(paths.mounts_file, environ)
    except (EditProblem, OSError) as e:
        raise Failure(str(e)) from None
    click.echo(visible(f"{what} {mount.agent_id} at {mount.mountpoint} ({paths.mounts_file})"))
    if no_reload:
        return
    try:
        done = control.reached(paths, lambda path: control.ask(path, "reload"))
    except control.NotRunning:
        return
    except control.ControlError as e:
        raise Failure(f"the file is changed, but the daemon did not take it up: {e}") from None
    if done["automatic"]:
        click.echo(
            "it is mounted by: avm-daemon start --daemon (what runs was started by a command, and mounts nothing)"
        )
    for problem in done["problems"]:
        complain(problem)
    if os.path.realpath(other := done["mounts_file"]) != os.path.realpath(paths.mounts_file):
        raise Failure(
            f"the daemon that runs mounts what is in {other}, as avm mount starts one: end it (avm-daemon stop), then"
            " avm-daemon start mounts what is in this file"
        )
    if done["problems"]:
        sys.exit(1)


COMMANDS = (add, remove, install_service)
