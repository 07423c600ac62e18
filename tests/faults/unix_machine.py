"""A machine of its own with several Unix users, as far as a mount namespace can give one.

Real users, real modes, a real setuid fusermount3: only the files that say who exists (/etc/passwd, /etc/group), what
fusermount3 allows (/etc/fuse.conf) and the mode of /dev/fuse are private copies, bound over the machine's own in a
mount namespace. Nothing on the machine is changed, and whatever happens to the test, all of it, mounts too, goes with
the namespace's last process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from avmfs_daemon import control

from tests.faults.daemons import QUIET, REPOSITORY

USERS = {"alice": 41001, "bob": 41002, "avmfs": 41003}
LIMIT_S = 200
PATHS = [REPOSITORY, REPOSITORY / "daemon", REPOSITORY / "config"]
_READ = "import json, os, sys\nfrom pathlib import Path\n"
_SAID = """
def said(do, *arguments):
    try:
        return do(*arguments)
    except OSError as e:
        return e.errno
"""


def missing() -> str | None:
    """Why there can be no such machine here."""
    if os.geteuid() != 0:
        return "only root can become another Unix user"
    for name in ("unshare", "nsenter", "setpriv", "fusermount3"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, timeout=LIMIT_S)
    return f"no mount namespace of one's own: {tried.stderr.strip()}" if tried.returncode else None


class Machine:
    """See the module. ``user`` runs the daemon; its files are below ``root``, the homes in ``root/home``."""

    def __init__(self, user: str, *, user_allow_other: bool = True, front_end: str = "") -> None:
        self.root = Path(tempfile.mkdtemp(prefix="avmu-", dir="/tmp"))
        self.root.chmod(0o711)
        self.user, self._front_end = user, front_end
        self.config, self.run, self.data = self.root / "config", self.root / "run", self.root / "data"
        self.config.mkdir(mode=0o755)
        self.config.chmod(0o755)
        for path in (self.run, self.data):
            path.mkdir(mode=0o700)
            os.chown(path, self.uid(user), self.uid(user))
        (self.root / "home").mkdir()
        (self.root / "home").chmod(0o755)
        for name, uid in USERS.items():
            self.home(name).mkdir(mode=0o700)
            os.chown(self.home(name), uid, uid)
        self.settings(QUIET)
        self._namespace = self._made(user_allow_other)

    # What it is made of ------------------------------------------------------------------------------------

    def _made(self, user_allow_other: bool) -> subprocess.Popen[str]:
        etc = self.root / "etc"
        etc.mkdir()
        etc.chmod(0o755)
        for name, lines in (
            ("passwd", [f"{user}:x:{uid}:{uid}::{self.home(user)}:/bin/sh" for user, uid in USERS.items()]),
            ("group", [f"{user}:x:{uid}:" for user, uid in USERS.items()]),
        ):
            before = Path("/etc", name).read_text().rstrip("\n").splitlines()
            (etc / name).write_text("\n".join([*before, *lines]) + "\n")
        (etc / "fuse.conf").write_text("user_allow_other\n" if user_allow_other else "")
        for path in etc.iterdir():
            path.chmod(0o644)
        # A copy of somebody else's mount would keep that alive after its daemon has unmounted it.
        commands = ["umount --all --lazy --types fuse.avmfs || true"]
        commands += [f"mount --bind {etc / name} /etc/{name}" for name in ("passwd", "group")]
        commands += [
            f"mkdir {self.root}/dev && mount -t tmpfs -o mode=755 dev {self.root}/dev",
            f"mknod {self.root}/dev/fuse c 10 229 && chmod 666 {self.root}/dev/fuse",
            f"mount --bind {self.root}/dev/fuse /dev/fuse",
            "{ test -e /etc/fuse.conf || : > /etc/fuse.conf; }",
            f"mount --bind {etc}/fuse.conf /etc/fuse.conf",
        ]
        commands += self._opened([Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY.resolve()])
        script = "\n".join([*commands, "echo made; exec sleep 600"])
        made = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert made.stdout is not None
        line = made.stdout.readline()
        assert line == "made\n", line + made.stdout.read()
        return made

    def _opened(self, wanted: list[Path]) -> list[str]:
        """Commands by which other users get at what lies below a home that is closed to them (an interpreter of
        root's, say): an empty folder over the closed one, and in it only this."""
        closed = {
            path: next(each for each in reversed([path, *path.parents]) if not each.stat().st_mode & 0o001)
            for path in sorted(set(wanted))
            if any(not each.stat().st_mode & 0o001 for each in path.parents)
        }
        asides = {path: self.root / f"kept{number}" for number, path in enumerate(closed)}
        return [
            *(f"mkdir {aside} && mount --bind {path} {aside}" for path, aside in asides.items()),
            *(f"mount -t tmpfs -o mode=755 closed {folder}" for folder in sorted(set(closed.values()))),
            *(f"mkdir -p {path} && mount --move {aside} {path}" for path, aside in asides.items()),
        ]

    def uid(self, user: str) -> int:
        return USERS.get(user, 0)

    def home(self, user: str) -> Path:
        return self.root / "home" / user

    def at(self, agent: str) -> Path:
        """Where the agent's mount is."""
        return self.run / "mounts" / agent

    def settings(self, text: str) -> None:
        (self.config / "config.yaml").write_text(text)

    def mounts(self, *entries: dict[str, Any]) -> None:
        whole = [{"mountpoint": str(self.at(entry["agent_id"])), **entry} for entry in entries]
        (self.config / "mounts.yaml").write_text(json.dumps({"mounts": whole}))

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AVM_", "XDG_"))}
        return {
            **kept,
            "AVM_CONFIG_DIR": str(self.config),
            "AVM_DATA_DIR": str(self.data),
            "HF_HUB_OFFLINE": "1",
            "AVM_RUNTIME_DIR": str(self.run),
            "AVM_AUTOSTART": "0",
            "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AVM_FRONT_END": self._front_end,
        }

    # Doing things on it --------------------------------------------------------------------------------------

    def done(
        self, user: str, *command: str | Path, agent: str | None = None, mask: int = 0o022
    ) -> subprocess.CompletedProcess[str]:
        """A program run by a user (also "root")."""
        return subprocess.run(
            **self._as(user, command, agent),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=LIMIT_S,
            umask=mask,
        )

    def begun(self, user: str, *command: str | Path, agent: str | None = None) -> subprocess.Popen[str]:
        """As `done`, while it runs."""
        return subprocess.Popen(
            **self._as(user, command, agent), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def _as(self, user: str, command: Sequence[str | Path], agent: str | None) -> dict[str, Any]:
        uid = str(self.uid(user))
        become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"] if self.uid(user) else []
        more = {"HOME": str(self.home(user)) if self.uid(user) else "/root", "USER": user}
        more |= {"AVM_AGENT": agent} if agent else {}
        return {
            "args": ["nsenter", "--mount", "--target", str(self._namespace.pid), *become, *command],
            "env": {**self.environ, **more},
            "cwd": "/",
        }

    def told(self, user: str, *command: str | Path, agent: str | None = None, code: int = 0) -> str:
        done = self.done(user, *command, agent=agent)
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr, self.log()[-4000:])
        return done.stdout + done.stderr

    def python(self, user: str, code: str, *arguments: object) -> Any:
        """What a program of a user's gives by ``print(json.dumps(...))``. ``said(do, ...)`` in it is a result or an
        errno, ``sys.argv[1:]`` the arguments."""
        done = self.done(user, sys.executable, "-c", _READ + _SAID + code, *map(str, arguments))
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def avm(self, user: str, *arguments: str, agent: str, code: int = 0) -> str:
        return self.told(user, sys.executable, "-m", "avmfs.cli", *arguments, agent=agent, code=code)

    def daemon(self, *arguments: str, code: int = 0, mask: int = 0o022) -> str:
        done = self.done(self.user, sys.executable, "-m", "avmfs_daemon", *arguments, mask=mask)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr, self.log()[-4000:])
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """Asked from here: root is listened to as well, and sockets are the same in every namespace of mounts."""
        try:
            found: dict[str, Any] = control.ask(self.run / "control.sock", "status")
        except (control.NotRunning, control.ControlError) as e:
            raise AssertionError(f"{e}\n{self.log()[-4000:]}") from None
        return found

    def log(self) -> str:
        path = self.data / "logs/avm-daemon.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        """The daemon, then the namespace and with it every mount."""
        try:
            self.done(self.user, sys.executable, "-m", "avmfs_daemon", "stop")
        finally:
            self._namespace.kill()
            self._namespace.wait(LIMIT_S)
            if self._namespace.stdout is not None:
                self._namespace.stdout.close()
            shutil.rmtree(self.root, ignore_errors=True)


def as_entries(*agents: str, **more: Any) -> Sequence[dict[str, Any]]:
    """Mounts of these agents, each of its own user."""
    return [{"agent_id": agent, "uid": USERS[agent], **more} for agent in agents]
