"""docs/guides: what they show on a console happens, snippets parse, commands and links exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from avmfs_daemon.main import cli as daemon

from avmfs.cli.main import avm
from avmfs.mcp.main import avm_mcp
from tests.cli.shells import environment

pytestmark = pytest.mark.mount

TREE = Path(__file__).parents[2]
GUIDES = sorted((TREE / "docs/guides").glob("*.md"))
PROGRAMS = {"avm": "avmfs.cli", "avm-daemon": "avmfs_daemon"}
OWN_DAEMON = "avm-daemon start"
MARK = "=== end of step ==="


def blocks(path: Path, language: str) -> list[str]:
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def steps(path: Path) -> list[tuple[str, str]]:
    """(command, what it prints) of every console block, in order."""
    found: list[tuple[str, str]] = []
    for block in blocks(path, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed.rstrip("\n")))
    return found


@pytest.fixture
def shell() -> Iterator[dict[str, str]]:
    """The environment of an empty home with the programs on its PATH."""
    root = Path(tempfile.mkdtemp(prefix="avmg-", dir="/tmp"))
    for name in ("config", "bin"):
        (root / name).mkdir()
    (root / "config/config.yaml").write_text("embedding: {enabled: false}\n")
    (root / "config/mounts.yaml").write_text("mounts: []\n")
    for name, module in PROGRAMS.items():
        program = root / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        program.chmod(0o755)
    environ = {**environment(root), "HOME": str(root), "PATH": f"{root}/bin:/usr/bin:/bin", "TZ": "UTC"}
    yield environ
    subprocess.run([sys.executable, "-m", "avmfs_daemon", "stop"], env=environ, capture_output=True, timeout=300)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{root}/"):
            subprocess.run(["fusermount3", "-uz", line.split()[1]], check=False, timeout=300)
    shutil.rmtree(root)


@pytest.mark.parametrize("guide", [path for path in GUIDES if steps(path)], ids=lambda path: path.stem)
def test_what_a_console_shows_is_what_happens(guide: Path, shell: dict[str, str]) -> None:
    """With a daemon, unless the guide starts one itself: both ways give the same."""
    told = steps(guide)
    root = Path(shell["HOME"])
    if any(command.startswith(OWN_DAEMON) for command, _ in told):
        (root / "config/mounts.yaml").unlink()
    else:
        subprocess.run(
            [sys.executable, "-m", "avmfs_daemon", "start", "--daemon"],
            env=shell,
            check=True,
            timeout=300,
            capture_output=True,
        )
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in told)
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=shell, cwd=root, capture_output=True, text=True, timeout=500
    )
    said = [_plain(each, root) for each in done.stdout.split(f"{MARK}\n")][:-1]
    assert len(said) == len(told), done.stderr
    for (command, expected), printed in zip(told, said, strict=True):
        assert printed == _plain(expected, root), f"{command}\n{done.stderr}"


def _plain(text: str, root: Path) -> str:
    """Without what differs from run to run: pids, the home, whether the model is there."""
    lines = re.sub(r"pid \d+|#\d{6}\b", "N", text.replace(str(root), "~")).splitlines()
    return "\n".join(line for line in lines if not line.startswith("# semantic search unavailable"))


def commands(path: Path) -> list[str]:
    """Calls of the programs in shell blocks and in the text."""
    lines = [line.strip() for block in blocks(path, "sh") for line in block.splitlines()]
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`(avm(?:-daemon|-mcp)? [a-z-][^`]*)`", prose)
    return [re.split(r" [|>;#] ?|\s+#", line)[0] for line in lines if re.match(r"avm(-daemon|-mcp)? ", line)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_commands_parse_snippets_are_whole_and_links_lead_somewhere(guide: Path) -> None:
    for line in commands(guide):
        program, *arguments = shlex.split(line)
        group: click.Command = {"avm": avm, "avm-daemon": daemon, "avm-mcp": avm_mcp}[program]
        with group.make_context(program, arguments) as context:
            if isinstance(group, click.Group):
                name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
                assert command is not None
                try:
                    command.make_context(name, rest, parent=context).close()
                except click.MissingParameter:
                    assert len(rest) == 0, line  # `avm fetch` is the command's name, in a sentence
    for block in blocks(guide, "json"):
        for server in (found := json.loads(block)).get("mcpServers", found.get("servers")).values():
            assert server.get("args", ["--user"])[0] == "--user" and ("command" in server or "url" in server)
    for block in blocks(guide, "toml"):
        assert tomllib.loads(block)["mcp_servers"]["avm"]["command"] == "avm-mcp"
    for target in re.findall(r"\]\(([^)#:]+)\)", guide.read_text("utf-8")):
        assert (guide.parent / target).exists(), target


def test_the_index_names_every_guide() -> None:
    index = (TREE / "docs/guides/README.md").read_text("utf-8")
    for guide in GUIDES:
        assert guide.name == "README.md" or f"({guide.name})" in index
