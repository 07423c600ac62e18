"""The daemon as a service, of the user (systemd's unit, launchd's property list) or of the machine under a user of its
own (systemd): filled in and put in place.

Owns the quoting of both formats and where they go. The files beside this module are the templates. Called by
`avm-daemon install-service`; starts nothing.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

from avmfs.cli.needs import closed_to
from avmfs.transfer.files import output

Platform = Literal["systemd", "launchd"]

MARK = "Written by `avm-daemon install-service`"
UNIT, PLIST = "avm-daemon.service", "org.avmfs.daemon.plist"
SYSTEM_UNIT = "avm-daemon.system.service"
# What finds the same configuration, programs and weights as the shell that installs. Others can read the file: no
# variable that may be a secret is in it.
_PLACES = ("AVM_CONFIG", "AVM_CONFIG_DIR", "AVM_DATA_DIR", "AVM_DB", "AVM_MOUNTS", "AVM_RUNTIME_DIR")
_PROGRAMS = ("PATH", "PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
KEPT = frozenset({*_PLACES, *_PROGRAMS, "AVM_AUTOSTART", "AVM_FRONT_END", "AVM_HOLD_S"})

# The machine's daemon finds no program in a directory of whoever installs it.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SYSTEMD_NEXT = """\
next:
  systemctl --user daemon-reload
  systemctl --user enable --now avm-daemon
  systemctl --user status avm-daemon        # and: journalctl --user -u avm-daemon
It starts when you log in and ends with your last session. To have it from boot on, without anybody logged in:
  loginctl enable-linger
"""
SYSTEM_PLACES = {"AVM_CONFIG_DIR": "/etc/avm", "AVM_DATA_DIR": "/var/lib/avm", "AVM_RUNTIME_DIR": "/run/avm"}
SYSTEM_NEXT = """\
next, as root:
  useradd --system --home-dir /var/lib/avm --shell /usr/sbin/nologin {user}
  echo user_allow_other >> /etc/fuse.conf      # once
  install -d -m 755 /etc/avm
  $EDITOR /etc/avm/mounts.yaml                 # per agent: mountpoint: /run/avm/mounts/NAME, agent_id: NAME, uid: N
  systemctl daemon-reload && systemctl enable --now avm-daemon
Each user then links their home to their mount, and names the daemon to avm:
  ln -s /run/avm/mounts/NAME ~/avm
  export AVM_RUNTIME_DIR=/run/avm AVM_DATA_DIR=/var/lib/avm AVM_AGENT=NAME
"""
LAUNCHD_NEXT = """\
next:
  launchctl bootstrap gui/$(id -u) {path}
  launchctl print gui/$(id -u)/org.avmfs.daemon
It starts when you log in.
"""


class ServiceProblem(Exception):
    """It cannot be installed; `str()` is why."""


@dataclass(frozen=True, slots=True)
class Service:
    """A filled-in file: where it goes, what it holds, and what a person does next."""

    path: Path
    text: str
    following: str


def make(platform: Platform, command: Sequence[str], environ: Mapping[str, str], home: Path, log: Path) -> Service:
    """The service that runs ``command`` (the daemon's, without `start`). Raises ServiceProblem for a value that the
    format cannot hold."""
    kept = {name: value for name, value in sorted(environ.items()) if value and name in KEPT}
    if "PATH" in kept:
        kept["PATH"] = os.pathsep.join(each for each in kept["PATH"].split(os.pathsep) if not _is_anybodys(each))
    for value in (*command, *kept.values(), os.fspath(log)):
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise ServiceProblem(f"{value!r}: a control character cannot stand in a service's file")
    if platform == "systemd":
        named = environ.get("XDG_CONFIG_HOME", "")
        base = Path(named) if os.path.isabs(named) else home / ".config"
        text = _filled(
            UNIT,
            EXEC=" ".join(_for_systemd(part, command=True) for part in command),
            ENVIRONMENT="\n".join(f"Environment={_for_systemd(f'{name}={value}')}" for name, value in kept.items()),
        )
        return Service(base / "systemd" / "user" / UNIT, text, SYSTEMD_NEXT)
    text = _filled(
        PLIST,
        EXEC="\n".join(f"    <string>{escape(part)}</string>" for part in command),
        ENVIRONMENT="\n".join(
            f"    <key>{escape(name)}</key>\n    <string>{escape(value)}</string>" for name, value in kept.items()
        ),
        LOG=escape(os.fspath(log)),
    )
    path = home / "Library" / "LaunchAgents" / PLIST
    return Service(path, text, LAUNCHD_NEXT.format(path=path))


def make_system(command: Sequence[str], environ: Mapping[str, str], user: str) -> Service:
    """The machine's service, run as ``user``. What agents and root have set for themselves (AVM_*, PATH) is not taken
    over: its places are those of the system. Raises ServiceProblem for a name that no user can have."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user) or user == "root":
        raise ServiceProblem(f"{user!r}: expected the name of a user made for the daemon, such as avmfs")
    names = ("HF_HUB_OFFLINE", *(() if len(command) == 1 else ("PYTHONPATH",)))  # an installed program needs no path
    kept = {name: environ[name] for name in names if environ.get(name)}
    values = {"PATH": _system_path(environ), **kept, **SYSTEM_PLACES}
    for value in (*command, *values.values()):
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise ServiceProblem(f"{value!r}: a control character cannot stand in a service's file")
    text = _filled(
        SYSTEM_UNIT,
        EXEC=" ".join(_for_systemd(part, command=True) for part in command),
        USER=user,
        ENVIRONMENT="\n".join(f"Environment={_for_systemd(f'{name}={value}')}" for name, value in values.items()),
    )
    return Service(Path("/etc/systemd/system") / UNIT, text, SYSTEM_NEXT.format(user=user))


def check_reach(command: Sequence[str], user: str) -> None:
    """Raises ServiceProblem where that user could not start it, as what uv and pipx put into root's home."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = -1  # still to be made
    program, interpreter = Path(command[0]), Path(sys.executable)
    for folder in (program.parent, program.resolve().parent, Path(sys.prefix), interpreter.resolve().parent):
        if (closed := closed_to(folder, uid)) is not None:
            raise ServiceProblem(
                f"{user} cannot get through {closed} to {folder}: install avmfs where it can, as in a venv below /opt"
                " (uv: UV_TOOL_DIR and UV_PYTHON_INSTALL_DIR, pipx: PIPX_HOME)"
            )


def put(service: Service, *, force: bool) -> bool:
    """Write the file, whole or not at all; whether it is another one now. Raises ServiceProblem for a file that was not
    written by us, unless forced, and OSError."""
    try:
        before: str | None = service.path.read_text("utf-8")
    except FileNotFoundError:
        before = None
    if before == service.text:
        return False
    if before is not None and MARK not in before and not force:
        raise ServiceProblem(f"{service.path}: was written by somebody else; --force replaces it")
    service.path.parent.mkdir(parents=True, exist_ok=True)
    with output(service.path) as file:
        file.write(service.text.encode())
        os.fchmod(file.fileno(), 0o644)
    return True


def own_command(argv0: str) -> list[str]:
    """How this very program is started from anywhere."""
    program = os.path.abspath(argv0)
    if os.path.basename(program) == "avm-daemon" and os.access(program, os.X_OK):
        return [program]
    return [sys.executable, "-P", "-m", "avmfs_daemon"]


def _system_path(environ: Mapping[str, str]) -> str:
    """With the directory that fusermount3 is in, where a system has it elsewhere and root alone can change it."""
    found = os.path.dirname(shutil.which("fusermount3", path=environ.get("PATH")) or "")
    if found in SYSTEM_PATH.split(os.pathsep) or _is_anybodys(found) or os.stat(found).st_uid != 0:
        return SYSTEM_PATH
    return f"{SYSTEM_PATH}{os.pathsep}{found}"


def _is_anybodys(directory: str) -> bool:
    """Return whether others than its owner may put programs there: it is relative to wherever a program is started, or
    writable."""
    try:
        return not os.path.isabs(directory) or bool(os.stat(directory).st_mode & 0o022)
    except OSError:
        return True


def _filled(name: str, **values: str) -> str:
    text = files("avmfs_daemon.service").joinpath(name).read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@\n" if not value else f"@{key}@", value)
    return text


def _for_systemd(text: str, *, command: bool = False) -> str:
    """One word of a unit's line: % begins a specifier, and $ a variable in a command; quotes and backslashes."""
    safe = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if command:
        safe = safe.replace("$", "$$")
    return f'"{safe}"' if not command or any(character in text for character in " \t'\"\\;#") or not text else safe
