"""What a person at a terminal has: completion in real shells, how far long work is, urgent mail now and then."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from avmfs.cli.session import Progress
from tests.cli.shells import LIMIT_S, Shell
from tests.mount.mount_world import World, needs

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(avm completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'unsetopt prompt_sp; autoload -U compinit; compinit -u -D; eval "$(avm completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "avm completion fish | source"),
}


class Terminal:
    """A program that sits at one."""

    def __init__(self, command: Sequence[str], environ: dict[str, str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], [*command], environ)
        self.said = ""

    def typed(self, keys: str, expected: str = "") -> str:
        """What it prints until ``expected``, an expression, is in it; without it, until it ends."""
        os.write(self._file, keys.encode())
        said, deadline = b"", time.monotonic() + LIMIT_S
        while not expected or not re.search(expected, said.decode(errors="replace")):
            assert time.monotonic() < deadline, said
            if select.select([self._file], [], [], 1)[0]:
                try:
                    said += os.read(self._file, 65536)
                except OSError:  # it has ended
                    break
        text = said.decode(errors="replace")
        self.said += text
        assert re.search(expected, text), text
        return text

    def end(self) -> None:
        os.close(self._file)
        os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def programs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of alice's terminal, with `avm` in its PATH, and something to complete."""
    shell = Shell(world.environ)
    for name in ("plan.md", "notes/one.md", "two words.md", "a=b.md", "c@d.md"):
        shell.run("write", f"/shared/{name}", "x")
    shell.run("write", "/private/own.md", "x", agent="bob")
    shell.run("snapshot", "make", "before")
    folder: Path = tmp_path_factory.mktemp("bin")
    line = "import sys; sys.argv[0] = 'avm'; from avmfs.cli.main import main; main()"
    (folder / "avm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{line}" "$@"\n')
    (folder / "avm").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**world.environ, "AVM_AGENT": "alice", "PATH": path, "TERM": "xterm", "HOME": str(folder), "PS1": "> "}


@pytest.mark.mount
@pytest.mark.parametrize("name", [pytest.param(each, marks=needs(each)) for each in SHELLS])
def test_a_shell_completes_paths_agents_and_snapshots(programs: dict[str, str], name: str) -> None:
    command, setup = SHELLS[name]
    terminal = Terminal(command, programs | {"TERM": "xterm" if name == "fish" else "dumb"})
    clear = "\x15"
    try:
        terminal.typed(f"{setup}; echo rea''dy\n", r"ready\r\n[\s\S]*[>#] ")  # the prompt: it may drop what came before
        # What is typed already may not be printed again.
        terminal.typed("avm read /sha\t", "red/")
        terminal.typed("pl\t", r"an\.md ")  # no blank after the directory, one after the file
        terminal.typed(f"{clear}avm read /memory/private/b\t/x; avm --agent bob read /private/o\t", r"wn\.md ")
        terminal.typed(f"{clear}avm tell bo\t", "b ")
        terminal.typed(f"{clear}avm snapshot rm be\t", "fore ")
        terminal.typed(f"{clear}avm ls --at sna\t", r"p\.before ")
        terminal.typed(f"{clear}avm read /shared/a=\t", r"b\.md ")
        terminal.typed(f"{clear}avm read /shared/c@\t", r"d\.md ")
        if name != "fish":  # which offers nothing behind a =
            terminal.typed(f"{clear}avm ls --at=sna\t", r"p\.before ")
        terminal.typed(f"{clear}exit\n")
    finally:
        terminal.end()
    assert "bob/" not in terminal.said  # what alice cannot see is not offered


def test_without_a_daemon_nothing_is_offered_and_none_is_started(alone: Shell) -> None:
    asked = {"_AVM_COMPLETE": "bash_complete", "COMP_WORDS": "avm read /sh", "COMP_CWORD": "2", "AVM_AUTOSTART": "1"}
    code = "import sys; sys.argv[:] = ['avm']; from avmfs.cli.main import main; main()"
    terminal = Terminal([sys.executable, "-c", code], {**alone.environ, **asked, "AVM_AGENT": "alice"})
    assert terminal.typed("").strip() == ""
    terminal.end()
    assert not Path(alone.environ["AVM_RUNTIME_DIR"]).exists()


def test_how_far_something_is_stands_in_one_line() -> None:
    progress = Progress("importing")
    assert progress.line() == "importing ..."
    progress(1234)
    assert progress.line() == "importing ... 1,234"
    progress(3, 4)
    assert re.fullmatch(r"importing \[#{18}-{6}\] 75 %, \d+ s left", progress.line())
    progress(5, 4)  # there are more than were counted
    assert "100 %, 0 s left" in progress.line()
    assert [*progress.counted("ab", 2)] == ["a", "b"] and (progress.done, progress.of) == (2, 2)


WORKING = """
import sys, threading, click
from avmfs.cli.main import Globals
from avmfs.cli.session import working
with click.Context(click.Command("x"), obj=Globals(as_json=sys.argv[1] == "json")), working("counting") as progress:
    progress(1, 2)
    if threading.active_count() > 1:
        sys.stdin.readline()
print("over")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_terminal_is_told_and_a_program_is_not(form: str) -> None:
    terminal = Terminal([sys.executable, "-c", WORKING, form], {**os.environ, "TERM": "xterm"})
    try:
        if form == "text":
            terminal.typed("", r"counting \[#{12}-{12}\] 50 %")
            assert terminal.typed("\n").endswith("\x1b[Kover\r\n")
        else:
            assert terminal.typed("") == "over\r\n"
    finally:
        terminal.end()


@pytest.fixture
def urgent(world: World) -> Iterator[dict[str, str]]:
    shell = Shell(world.environ)
    shell.run("tell", "alice", "fire in the server room", "-p", "urgent", agent="bob")
    yield {**world.environ, "AVM_AGENT": "alice", "TERM": "xterm"}
    shell.run("inbox", "--delete-read")
    shell.run("inbox", "-m")


def at_terminal(environ: dict[str, str], *arguments: str) -> str:
    terminal = Terminal([sys.executable, "-m", "avmfs.cli", *arguments], environ)
    try:
        return terminal.typed("")
    finally:
        terminal.end()


@pytest.mark.mount
def test_urgent_mail_is_told_once_an_hour_to_a_person(world: World, urgent: dict[str, str]) -> None:
    assert "fire" not in at_terminal(urgent, "ls", "--json") and "fire" in at_terminal(urgent, "ls")
    assert "fire" not in at_terminal(urgent, "ls")
    assert "fire" in at_terminal({**urgent, "AVM_URGENT": "1"}, "ls", "--json")
    Shell(world.environ).run("tell", "alice", "and water", "-p", "urgent", agent="bob")
    assert "and water" in at_terminal(urgent, "ls") and "water" not in at_terminal(urgent, "ls")
    mark = Path(urgent["AVM_RUNTIME_DIR"], "urgent-alice")
    os.utime(mark, (0, 0))
    assert "water" not in at_terminal({**urgent, "AVM_URGENT": "0"}, "ls") and "water" in at_terminal(urgent, "ls")
