"""Where avmfs keeps its files, and how a path written by a person becomes an absolute one.

Called by every program once, at start, and by the loader for paths inside the files. It creates nothing,
opens nothing, follows no link but a database, and takes the environment as an argument. It must not know what the
files contain.
"""

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from avmfs_config.errors import ConfigError

LONGEST_SOCKET_PATH = 103  # sun_path holds 104 bytes on macOS, 108 on Linux
_VARIABLE = re.compile(r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\}|(?P<broken>\{))", re.ASCII)


class Paths(NamedTuple):
    """Absolute paths; none of them need exist.

    `runtime_dir` holds sockets. Where it lies in /tmp, whoever creates it or writes to it must refuse one that belongs
    to somebody else (`not_own`).
    """

    config_dir: Path
    data_dir: Path
    runtime_dir: Path
    mounts_file: Path
    config_file: Path
    database: Path


def find_paths(environ: Mapping[str, str]) -> Paths:
    """The paths for this user: AVM_* variables first, then the XDG base directories, then their defaults.

    An AVM_* path may begin with ``~`` and may be relative (to the working directory, as on a command line);
    an empty variable counts as unset, as does a relative XDG one (the XDG specification says so). A database that is a
    symlink is where that leads: there are its log and its lock. Raises ConfigError where a home directory is needed and
    there is none.
    """

    def override(name: str) -> Path | None:
        text = environ.get(name)
        if not text:
            return None
        try:
            return Path(os.path.abspath(_expand_user(text, environ)))
        except ValueError as problem:
            raise ConfigError("environment", name, str(problem)) from None

    def base(name: str, fallback: str) -> Path:
        text = environ.get(name, "")
        if os.path.isabs(text):
            return Path(text) / "avm"
        try:
            return _home(environ) / fallback / "avm"
        except ValueError as problem:
            raise ConfigError("environment", "HOME", str(problem)) from None

    config_dir = override("AVM_CONFIG_DIR") or base("XDG_CONFIG_HOME", ".config")
    data_dir = override("AVM_DATA_DIR") or base("XDG_DATA_HOME", ".local/share")
    database = override("AVM_DB") or data_dir / "avm.db"
    return Paths(
        config_dir=config_dir,
        data_dir=data_dir,
        runtime_dir=override("AVM_RUNTIME_DIR") or _runtime_dir(environ),
        mounts_file=override("AVM_MOUNTS") or config_dir / "mounts.yaml",
        config_file=override("AVM_CONFIG") or config_dir / "config.yaml",
        database=Path(os.path.realpath(database)) if os.path.islink(database) else database,
    )


def not_own(directory: Path) -> str:
    """Why nothing may be written to this runtime directory: in /tmp anybody can have made it, with links to anywhere in
    it. "" where it is this user's own. Raises OSError where it is not there."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "not a directory"
    return "" if found.st_uid == os.geteuid() else f"belongs to another user (uid {found.st_uid})"


def require_own(directory: Path) -> None:
    """Raises PermissionError for a directory of somebody else: see ``not_own``."""
    if problem := not_own(directory):
        raise PermissionError(errno.EACCES, problem)


def too_long(runtime_dir: Path) -> str:
    """Why no socket can be in this runtime directory; "" where one can."""
    if len(os.fsencode(runtime_dir / "control.sock")) <= LONGEST_SOCKET_PATH:
        return ""
    return "too long for the names of sockets; set AVM_RUNTIME_DIR to a shorter path"


def real_place(mountpoint: Path) -> Path:
    """As the kernel's table of mounts has it, without symbolic links. The last name is not resolved: it may be a dead
    or hanging mount."""
    return Path(os.path.realpath(mountpoint.parent), mountpoint.name)


def expand_path(text: str, environ: Mapping[str, str]) -> Path:
    """`text` with a leading ``~`` or ``~user`` and every ``$NAME`` or ``${NAME}`` expanded, made plain.

    The result is absolute, without ``//`` or a trailing slash; symbolic links are left alone. Raises
    ValueError with the reason: a variable that is unset or empty, no such user, a relative path, ``..``
    (which means another place once a link lies on the way), a NUL.
    """

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if not name:
            raise ValueError(f"'${{' without a name and '}}' in {text!r}")
        found = environ.get(name)
        if not found:
            raise ValueError(f"${name} is not set in the environment")
        return found

    if "\0" in text:
        raise ValueError("a path cannot contain a NUL character")
    expanded = _VARIABLE.sub(value, text)
    if expanded.startswith("~"):
        expanded = _expand_user(expanded, environ)
    if not os.path.isabs(expanded):
        raise ValueError(f"must be an absolute path or begin with ~, not {expanded!r}")
    if ".." in expanded.split("/"):
        raise ValueError(f"must not contain '..': {expanded!r}")
    # POSIX keeps a leading '//' apart, and so does normpath; nobody means it.
    return Path("/" + os.path.normpath(expanded).lstrip("/"))


def _expand_user(text: str, environ: Mapping[str, str]) -> str:
    if not text.startswith("~"):
        return text
    user, slash, rest = text[1:].partition("/")
    return f"{_home(environ) if not user else _home_of(user)}{slash}{rest}"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return Path(home)
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise ValueError(f"not set, and uid {os.getuid()} has no home directory") from None


def _home_of(user: str) -> Path:
    import pwd

    try:
        return Path(pwd.getpwnam(user).pw_dir)
    except KeyError:
        raise ValueError(f"no user named {user!r}") from None


def _runtime_dir(environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(named):
        return Path(named) / "avm"
    usual = Path(f"/run/user/{os.getuid()}")
    return usual / "avm" if usual.is_dir() else Path(f"/tmp/avm-{os.getuid()}")
