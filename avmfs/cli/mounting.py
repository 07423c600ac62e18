"""avm mount: one agent's memory as files, for as long as the command runs.

Owns the one-mount daemon. A mount needs the store's lock, a writer and an index, and other commands have to go on
working meanwhile: so this is a supervisor of its own, in a process of its own, with a mounts.yaml of one entry. Other
commands find it by the store's lock, as they find any daemon. It is started as a program, since it stands right of this
layer. SIGTERM, SIGINT and the end of this command unmount.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from avmfs_config import ConfigError, Paths, check_agent_id, load_mounts, load_settings
from avmfs_config.paths import not_own, too_long

from avmfs.cli.main import subcommand
from avmfs.cli.session import LOCAL, locations_here, show
from avmfs.errors import Busy, Denied, Invalid, StoreFailed
from avmfs.store.files.store_lock import StoreLock, daemon_in
from avmfs.text.escapes import escaped

START_S = 90.0
# -P: nothing is imported from the working directory, whose files may be anybody's.
_DAEMON = [sys.executable, "-P", "-m", "avmfs_daemon", "start"]


@subcommand("mount", "Mount the memory of one agent, without a daemon.")
@click.argument("who", metavar="AGENT")
@click.argument("mountpoint", type=LOCAL)
@click.option("--background", "-b", is_flag=True, help="Return once it is mounted; avm-daemon stop unmounts.")
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--strict", is_flag=True, help="The kernel keeps nothing (coherence: strict).")
def mount_(who: str, mountpoint: Path, background: bool, read_only: bool, strict: bool) -> None:
    """Mount the memory of AGENT at MOUNTPOINT until Ctrl-C, without a daemon and without mounts.yaml.

    Other avm commands go on working meanwhile. Where a daemon runs already, avm-daemon add AGENT MOUNTPOINT adds a
    mount to it.
    """
    where = locations_here()
    try:
        name = check_agent_id(who)
    except ValueError as e:
        raise Invalid(str(e)) from None
    target = Path(os.path.abspath(mountpoint))
    entry = {
        "mountpoint": str(target),
        "agent_id": name,
        "read_only": read_only,
        "coherence": "strict" if strict else "close-to-open",
    }
    listing = where.runtime_dir / "mount.yaml"
    environ = {
        **os.environ,
        "AVM_MOUNTS": str(listing),
        "AVM_DB": str(where.database),
        "AVM_CONFIG": str(where.config_file),
        "AVM_RUNTIME_DIR": str(where.runtime_dir),
    }

    def told() -> None:
        how = "avm-daemon stop unmounts" if background else "Ctrl-C unmounts"
        value = {"agent": name, "mountpoint": str(target)}
        show(value, f"{name} is mounted at {escaped(str(target))}; {how}\n")
        sys.stdout.flush()

    with _alone(where, f"avm-daemon add {name} {shlex.quote(str(mountpoint))}"):
        try:
            listing.touch(0o600)
            listing.write_text(json.dumps({"mounts": [entry]}))
            _check(where.config_file, listing, target, environ)
            if background:
                _start(environ)
                told()
                return
            _serve(where.runtime_dir, environ, told)
        except BaseException:
            listing.unlink(missing_ok=True)
            raise
        listing.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(where: Paths, instead: str) -> Iterator[None]:
    """While no other command's supervisor goes by the runtime directory's mount.yaml, or is about to. Raises Busy, and
    Denied for a directory of somebody else, Invalid for one with too long a name."""
    if problem := too_long(where.runtime_dir):
        raise Invalid(problem, str(where.runtime_dir))
    _unserved(where, instead)  # which says more than that another command has the lock
    where.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if problem := not_own(where.runtime_dir):
        raise Denied(problem, str(where.runtime_dir))
    lock = StoreLock(where.runtime_dir / "mount")
    held = lock.acquire(0)
    try:
        _unserved(where, instead)
        yield
    finally:
        lock.release(held, clean=True)


def _unserved(where: Paths, instead: str) -> None:
    """Raises Busy for a daemon of the store, and for another store's in this runtime directory."""
    found = {where.database: StoreLock(where.database).holder(), where.runtime_dir: daemon_in(where.runtime_dir)}
    for path, holder in found.items():
        if holder is None or holder.get("automatic"):  # that one gives way
            continue
        if path == where.database:
            raise Busy(
                f"served by pid {holder['pid']} already: {instead} (where that is an avm mount: end it, and then"
                " avm-daemon start)",
                str(path),
            )
        raise Busy(
            f"the daemon of another store has it (pid {holder['pid']}): name another with AVM_RUNTIME_DIR",
            str(path),
        )


def _check(config: Path, listing: Path, target: Path, environ: dict[str, str]) -> None:
    """Raises ConfigError as other commands do, Invalid for what was typed."""
    load_settings(config, environ)
    try:
        (mount,) = load_mounts(listing, environ)
    except ConfigError as e:  # of a file that nobody has written
        raise Invalid(e.reason) from None
    if "$" in str(target) and mount.mountpoint != target:
        raise Invalid(f"a $ in it begins the name of a variable ({mount.mountpoint})", str(target))


def _start(environ: dict[str, str]) -> None:
    """A supervisor that goes on without this process. Raises StoreFailed where it has not mounted all."""
    done = subprocess.run([*_DAEMON, "--daemon"], env=environ, capture_output=True, text=True, check=False)
    problem = done.stderr.strip()
    if done.stdout and problem:  # it runs, without the mount
        subprocess.run([*_DAEMON[:-1], "stop"], env=environ, capture_output=True, check=False)
    if done.returncode or problem:
        raise StoreFailed(_reason(problem))


def _serve(runtime_dir: Path, environ: dict[str, str], ready: Callable[[], None]) -> None:
    """Run the supervisor until it ends; what this process is told to do, it is told. It says by the protocol of
    systemd (sd_notify) when the mount is there."""
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    before = [
        (number, signal.signal(number, lambda number, frame: None))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ]
    old = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    address = runtime_dir / "mount.notify"
    address.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(os.fspath(address))
        child = subprocess.Popen(
            _DAEMON,
            env={**environ, "NOTIFY_SOCKET": os.fspath(address)},
            stdin=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,
        )
        try:
            with selectors.DefaultSelector() as selector:
                for source in (wake, notices):
                    selector.register(source, selectors.EVENT_READ)
                _watch(child, selector, wake, notices, ready)
            if child.returncode:
                said.seek(0)
                raise StoreFailed(_reason(said.read().decode(errors="replace")))
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait(30)
            address.unlink(missing_ok=True)
            for each in (wake, woken):
                each.close()
            signal.set_wakeup_fd(old)
            for number, handler in before:
                signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the child, before it becomes the supervisor: a command killed by -9 takes its mount with it (prctl(2),
    PR_SET_PDEATHSIG). There is no thread yet that could hold a lock across the fork."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)


def _watch(
    child: subprocess.Popen[bytes],
    selector: selectors.BaseSelector,
    wake: socket.socket,
    notices: socket.socket,
    ready: Callable[[], None],
) -> None:
    mounted, deadline = False, time.monotonic() + START_S
    while child.poll() is None:
        for key, _ in selector.select(0.2):
            if key.fileobj is wake:
                for number in wake.recv(64):
                    child.send_signal(number if number == signal.SIGHUP else signal.SIGTERM)
            elif b"READY=1" in (message := notices.recv(4096)) and not mounted:
                mounted = b"1 of 1 mounts" in message
                if not mounted:
                    child.terminate()
                    child.wait(30)
                    raise StoreFailed(message.decode(errors="replace").partition("mounts are ready; ")[2])
                ready()
        if not mounted and time.monotonic() > deadline:
            raise Busy(f"not mounted after {START_S:g} s")


def _reason(log: str) -> str:
    """What a daemon complained of, else the last that it said."""
    lines = [line for line in log.strip().splitlines() if line.strip()]
    told = [line.removeprefix("avm-daemon: ") for line in lines if line.startswith("avm-daemon: ")]
    return "; ".join(told or lines[-1:] or ["the mount did not come up"])
