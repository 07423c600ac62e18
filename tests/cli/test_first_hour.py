"""Mistakes of a first hour: each ends with a code and a line that says what to do, and doing it works."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import shells

PROGRAMS = {"avm": "avmfs.cli", "avm-daemon": "avmfs_daemon", "avm-mcp": "avmfs.mcp"}
HOMELESS = "XDG_DATA_HOME=$R/d XDG_CONFIG_HOME=$R/c"
FULL = (
    "unshare -m sh -c 'mkdir -p $R/disk; mount -t tmpfs -o size=8m d $R/disk;"
    " cat /dev/zero >$R/disk/filling 2>/dev/null"
)
# What a program needs of /dev, and no more.
NO_FUSE = (
    "unshare -m sh -c 'mkdir $R/dev; mount -t tmpfs d $R/dev; mkdir $R/dev/shm;"
    " cp -a /dev/null /dev/zero /dev/urandom /dev/random /dev/fd $R/dev/; mount --bind $R/dev /dev"
)
OLD_PYTHON = (
    "mkdir $R/old; for n in 3 3.11 3.12 3.13 3.14; do"
    " printf '#!/bin/sh\\nexit 1\\n' >$R/old/python$n; done; chmod +x $R/old/*"
)
NEEDS_ROOT = ("no room on the disk", "no FUSE")


@dataclass(frozen=True)
class Mistake:
    """``before`` makes it possible, ``says`` is in what ``line`` prints, ``then`` is what it says to do."""

    line: str
    code: int
    says: str
    then: str = ""
    before: str = ""


MISTAKES = {
    "nobody asks": Mistake("avm ls", 2, "--agent NAME", "avm --agent alice ls"),
    "the daemon's command": Mistake("avm -a alice status", 2, "Did you mean avm-daemon status?"),
    "another memory's word": Mistake("avm -a alice list", 2, "Did you mean ls?", "avm -a alice ls"),
    "a command misspelt": Mistake("avm -a alice recal x", 2, "Did you mean recall", "avm -a alice recall x"),
    "an option of another": Mistake("avm -a alice ls --budget 3", 2, "No such option", "avm ls --help"),
    "a bad agent": Mistake("avm -a 'A B' ls", 2, "a-z 0-9", "avm -a a-b ls"),
    "no such file": Mistake("avm -a alice read /shared/none.md", 1, "avm ls", "avm -a alice ls /shared"),
    "a file at the root": Mistake("avm -a alice write /a.md x", 1, "/shared", "avm -a alice write /shared/a.md x"),
    "nobody of that name": Mistake("avm -a alice tell nobdy hi", 1, "avm ls /tell", "avm -a alice ls /tell"),
    "no daemon to stop": Mistake("avm-daemon stop", 1, "nothing to stop"),
    "no daemon to ask": Mistake("avm-daemon status", 1, "not running"),
    "no mounts.yaml": Mistake("avm-daemon start --daemon", 1, "mounts.yaml: no such file", "avm init alice"),
    "broken YAML": Mistake(
        "avm-daemon check",
        1,
        "mounts.yaml: 3:",
        "avm init --force",
        before="mkdir -p ~/.config/avm; printf 'mounts:\\n- {' > ~/.config/avm/mounts.yaml",
    ),
    "a key misspelt": Mistake(
        "avm -a alice ls",
        2,
        "did you mean embedding",
        before="mkdir -p ~/.config/avm; echo 'embeding: {}' > ~/.config/avm/config.yaml",
    ),
    "init again": Mistake("avm init", 1, "--force", "avm init --force", before="avm init"),
    "another program's database": Mistake("avm -a alice --db ~/x ls", 2, "not a database", before="seq 999 > ~/x"),
    "no such configuration": Mistake("avm -a alice --config /none.yaml ls", 2, "no such configuration"),
    "a socket's path too long": Mistake(
        "AVM_RUNTIME_DIR=$R/$(printf 'x%.0s' $(seq 120)) AVM_AUTOSTART=1 avm -a alice ls",
        0,
        "set AVM_RUNTIME_DIR",
        "avm -a alice ls",
    ),
    "a socket's path too long for a mount": Mistake(
        "AVM_RUNTIME_DIR=$R/$(printf 'x%.0s' $(seq 120)) avm mount alice ~/m", 2, "set AVM_RUNTIME_DIR"
    ),
    "no HOME, no home directory": Mistake(f"env -u HOME {HOMELESS} avm -a alice ls", 0, ""),
    "a home that cannot be written": Mistake(
        "HOME=/proc avm -a alice ls", 1, "/proc", f"HOME=/proc {HOMELESS} avm -a alice ls"
    ),
    "an MCP server of nobody": Mistake("avm-mcp", 2, "--user NAME", "avm-mcp --user alice"),
    "a tool that is none": Mistake(
        "avm-mcp --user a --tools avm_recal", 2, "core, all, or some of", "avm-mcp --user a --tools all"
    ),
    "no weights": Mistake(
        "avm model list",
        1,
        "avm model import FOLDER",
        before="mkdir -p ~/.config/avm; echo 'embedding: {model: none/such}' > ~/.config/avm/config.yaml",
    ),
    "a second daemon": Mistake(
        "avm-daemon start --daemon",
        1,
        "avm-daemon stop",
        "avm-daemon stop && avm-daemon start --daemon; avm-daemon stop",
        before="avm init && echo 'mounts: []' > $HOME/.config/avm/mounts.yaml && avm-daemon start --daemon",
    ),
    "no room on the disk": Mistake(
        f"{FULL}; avm -a alice --db $R/disk/avm.db remember x'",
        1,
        "full",
        f"{FULL}; rm $R/disk/filling; avm -a alice --db $R/disk/avm.db remember x'",
    ),
    "no FUSE": Mistake(
        f"{NO_FUSE}; avm-daemon start --daemon; code=$?; avm doctor; avm-daemon stop; exit $code'",
        1,
        "modprobe fuse",
        "avm-daemon start --daemon && avm-daemon stop",
        before="avm init alice",
    ),
    "a Python that is too old": Mistake(
        "cd $R && cp $RUN . && PATH=$R/old:/usr/bin:/bin ./run setup",
        1,
        "apt-get install -y python3",
        before=OLD_PYTHON,
    ),
    "a client that is none": Mistake("avm setup emacs", 2, "claude-desktop", "avm setup status"),
}


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    root = Path(tempfile.mkdtemp(prefix="avmf-", dir="/tmp"))
    for folder in ("bin", "home"):
        (root / folder).mkdir()
    for name, module in PROGRAMS.items():
        (root / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (root / "bin" / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AVM_", "XDG_"))}
    own = {
        "RUN": str(Path(__file__).parents[2] / "run"),
        "AVM_AUTOSTART": "0",
        "AVM_RUNTIME_DIR": str(root / "run"),
        "HF_HUB_OFFLINE": "1",
    }
    path = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    yield {**kept, **own, "HOME": str(root / "home"), "R": str(root), "PATH": path}
    shutil.rmtree(root)


def bash(line: str, environ: dict[str, str]) -> tuple[int, str]:
    done = shells.bash(line, environ, Path.cwd())
    said = (done.stdout + done.stderr).decode()
    assert "Traceback" not in said, said
    return done.returncode, said


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_what_mends_it(environ: dict[str, str], name: str) -> None:
    mistake = MISTAKES[name]
    if name in NEEDS_ROOT and (os.geteuid() or shutil.which("unshare") is None):
        pytest.skip("only root can mount")
    if mistake.before:
        assert bash(mistake.before, environ)[0] == 0
    code, said = bash(mistake.line, environ)
    assert code == mistake.code and mistake.says in said, (code, said)
    if mistake.then:
        code, said = bash(mistake.then, environ)
        assert code == 0, (code, said)
