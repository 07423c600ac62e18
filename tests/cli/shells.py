"""Hands for running `avm`: as a process of its own, forked from one that has it loaded, or in the test's own."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from avmfs.cli import __main__ as program
from tests import forked

LIMIT_S = 300.0
PROGRAMS = {"avm": "avmfs.cli", "avm-daemon": "avmfs_daemon"}
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\!]*\"")
_SIGNS = re.compile(r"[^\w\s./:@,+%=-]|\n")  # what may mean something to a shell


@dataclass
class Shell:
    """Runs `avm` as an agent in one environment."""

    environ: dict[str, str]

    def run(
        self, *arguments: str, agent: str | None = "alice", data: bytes | None = None, code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """What it printed; fails unless its exit code is ``code`` (None: any), and always on a traceback."""
        environ = {**self.environ, **({"AVM_AGENT": agent} if agent is not None else {})}
        done = self._execute(arguments, environ, data)
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def _execute(
        self, arguments: tuple[str, ...], environ: dict[str, str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "avmfs.cli", *arguments],
            env=environ,
            capture_output=True,
            timeout=LIMIT_S,
            input=data or b"",
        )

    def out(self, *arguments: str, **more: Any) -> str:
        return self.run(*arguments, **more).stdout.decode("utf-8", "surrogateescape")

    def complaint(self, *arguments: str, code: int, **more: Any) -> str:
        """What a refused command says; it prints no data."""
        done = self.run(*arguments, code=code, **more)
        assert done.stdout == b"", done.stdout
        return done.stderr.decode("utf-8", "surrogateescape")


class QuickShell(Shell):
    """The same, forked from a process that has the program loaded (`tests.forked`): loading is most of the time."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        super().__init__(environ)
        self._folder = folder  # some commands write where they are

    def _execute(
        self, arguments: tuple[str, ...], environ: dict[str, str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        return forked.run("avmfs.cli", arguments, environ, self._folder, data or b"", LIMIT_S)


class InProcessShell(QuickShell):
    """The same in this process, for the thousands of lines of a sweep; ``ALONE`` are forked: they start programs, run
    for as long as they are let, or print past sys.stdout."""

    ALONE = frozenset({"bench", "hook", "mount", "open", "playground", "top", "warmup"})

    def _execute(
        self, arguments: tuple[str, ...], environ: dict[str, str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        if self.ALONE.intersection(arguments):
            return super()._execute(arguments, environ, data)
        stdin = io.TextIOWrapper(io.BytesIO(data or b""), "utf-8", "surrogateescape")
        out, err = io.BytesIO(), io.BytesIO()
        stdout = io.TextIOWrapper(out, "utf-8", "surrogateescape")
        stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", write_through=True)
        argv = [program.__file__, *arguments]
        with (
            patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr, argv=argv),
            patch.dict(os.environ, environ, clear=True),
            chdir(self._folder),
        ):
            try:
                program.main()
                code: Any = 0
            except SystemExit as e:
                code = e.code
            stdout.flush()
        return subprocess.CompletedProcess(argv, code or 0, out.getvalue(), err.getvalue())


def bash(line: str, environ: dict[str, str], cwd: Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[bytes]:
    """A line of a shell, without input; of one that only runs a program of ours, the program forked."""
    words = [] if _SIGNS.search(_QUOTED.sub("", line)) else shlex.split(line)
    if words and words[0] in PROGRAMS:
        return forked.run(PROGRAMS[words[0]], words[1:], environ, cwd, timeout=limit_s)
    return subprocess.run(
        ["bash", "-c", line], env=environ, cwd=cwd, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL
    )


def environment(root: Path) -> dict[str, str]:
    """Of commands whose configuration, data and sockets are below ``root``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
    return {
        **kept,
        "AVM_CONFIG_DIR": str(root / "config"),
        "AVM_DATA_DIR": str(root / "data"),
        "AVM_RUNTIME_DIR": str(root / "run"),
        "AVM_AUTOSTART": "0",  # what has no daemon is meant to have none; test_autostart has its own
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "LC_ALL": "C.UTF-8",
    }


@contextmanager
def configured(settings: str) -> Iterator[Path]:
    """A directory with this config.yaml and nothing else, for commands without a daemon (`environment`); not below
    pytest's, since the paths of sockets are limited to 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="avmc-", dir="/tmp") as name:
        root = Path(name)
        (root / "config").mkdir()
        (root / "config/config.yaml").write_text(settings)
        yield root
