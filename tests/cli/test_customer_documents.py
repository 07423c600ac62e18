"""The first documents, in their words: every command and snippet runs, or README.md's table says why not.

In one fresh home, with a daemon, a mount and the model. What is run stands in ``customer_documents``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from avmfs import AVM
from avmfs.embedding import EmbeddingBackend, EmbeddingStore
from tests.cli import customer_documents as documents
from tests.cli.customer_documents import Snippet
from tests.cli.shells import bash
from tests.mount.mount_world import sh, until

pytestmark = pytest.mark.mount

TREE = Path(__file__).parents[2]
LIMIT_S, MODEL_S = 200.0, 240.0
SAID_SO = f"{documents.CONFIG_YAML}webhooks: {{allow: [localhost]}}\n"

# Each statement as a Python prompt would run it, with what it gives printed.
RUNNER = """
import ast, contextlib, io, json, sys, traceback
sys.displayhook = lambda value: None if value is None else print(value)
prepared, snippets = json.load(sys.stdin)
names = {}
exec(prepared, names)
told = []
for text in snippets:
    said, error = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            for node in ast.parse(text).body:
                exec(compile(ast.Interactive([node]), "<as written>", "single"), names)
        except Exception as e:
            error = "".join(traceback.format_exception_only(e))
    told.append([said.getvalue(), error])
print(json.dumps(told))
"""


@dataclass
class Home:
    """Of a user of its own: nothing but XDG folders, the programs on its PATH, and AVM_AGENT where README says so."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("AVM_", "XDG_")) and key != "HOME"
        }
        return {
            **kept,
            "HOME": str(self.root),
            "XDG_CONFIG_HOME": str(self.root / ".config"),
            "XDG_DATA_HOME": str(self.root / ".local/share"),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "LC_ALL": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "AVM_AGENT": "akashi",
            "API_KEY": "of nobody",
            "PYTHONPATH": str(self.root),
        }

    def mount(self, agent: str) -> Path:
        return self.root / (".openclaw/workspace/avm" if agent == "myagent" else agent)

    def placed(self, text: str, by: str = "myagent") -> str:
        for written, stands in documents.PLACES:
            if written in text:
                handle = self.handle() if "{handle}" in stands else ""
                text = text.replace(written, stands.format(home=self.root, mount=self.mount(by), handle=handle))
        return text

    def handle(self) -> str:
        return str(json.loads(self.run("avm read /memory/lesson.md:meta"))["id"])

    def run(self, text: str, by: str = "myagent", *, code: int | None = 0, agent: str | None = "akashi") -> str:
        """What it prints, on both streams."""
        environ = {**self.environ, **({} if agent is None else {"AVM_AGENT": agent})}
        if agent is None:
            del environ["AVM_AGENT"]
        done = bash(self.placed(text, by), environ, self.root, MODEL_S)
        said = (done.stdout + done.stderr).decode()
        assert code is None or done.returncode == code, f"$ {text}\nexit {done.returncode}\n{said}"
        return said

    def check(self, snippet: Snippet, *, agent: str | None = "akashi") -> list[str]:
        """What is wrong with it: as written it gives what it should, or refuses what the table is about."""
        if snippet.gives is None:
            return []
        try:
            printed = self.run(snippet.text, snippet.by, code=0 if snippet.row is None else None, agent=agent)
        except AssertionError as e:
            return [str(e)]
        return [] if re.search(snippet.gives, printed, re.MULTILINE) else [f"$ {snippet.text}\n{printed}"]


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="avmu-", dir="/tmp") as name:
        home = Home(Path(name))
        for folder in ("run", ".config/avm"):
            (home.root / folder).mkdir(parents=True)
        mounts = re.sub(r"^# {0,3}", "", documents.MOUNTS_YAML.split("\n", 1)[1], flags=re.MULTILINE)
        mounts += f"  - mountpoint: {home.mount('trader')}\n    agent_id: trader\n"
        (home.root / ".config/avm/mounts.yaml").write_text(mounts)
        (home.root / ".config/avm/config.yaml").write_text(documents.CONFIG_YAML)
        try:
            yield home
        finally:
            home.run("avm-daemon stop", code=None)
            left = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
            for path in left:
                subprocess.run(["fusermount3", "-uz", path], check=False, timeout=LIMIT_S)
            assert not left, "still mounted"


def table() -> dict[str, tuple[str, str]]:
    """README's: what is written; what there is here, and why."""
    text = (TREE / "README.md").read_text("utf-8")
    found = re.search(r"<!-- first documents.*?-->\n(.*?)<!-- end of first documents -->", text, re.DOTALL)
    assert found is not None
    rows = [re.split(r"(?<!\\)\|", line.strip()) for line in found[1].strip().splitlines()[2:]]
    assert {len(row) for row in rows} == {5}
    return {row[1].strip(): (row[2].strip(), row[3].strip()) for row in rows}


def snippets() -> list[Snippet]:
    return [*documents.FIRST, *documents.COMMANDS, *documents.ON_A_MOUNT, *documents.PYTHON]


def test_the_readme_names_just_what_does_not_run_as_written() -> None:
    rows = table()
    assert rows.keys() == documents.ROWS_WITHOUT_A_SNIPPET | {each.row for each in snippets() if each.row is not None}
    for each in snippets():
        if each.row is not None and each.instead is not None:
            assert each.instead in rows[each.row][0], each.text
        assert each.row is not None or each.gives is not None, f"{each.text}: it runs, or says why not"
        if each.gives is None:
            written = [
                re.escape(one).replace("\\ …", ".*").replace("…", ".*")
                for one in re.findall("`([^`]+)`", each.row or "")
            ]
            assert any(re.fullmatch(one, each.text) for one in written), f"{each.text}: in the row's own words"
    assert [row for row, (_, why) in rows.items() if len(why.split()) < 4] == [], "each says why"


def test_the_rest_of_what_they_name_is_there() -> None:
    tools = (TREE / "docs/MCP.md").read_text("utf-8")
    assert [name for name in documents.MCP_TOOLS if f"`{name}`" not in tools] == []
    (server,) = yaml.safe_load(documents.MCP_SERVERS_YAML).values()
    assert server == {"command": "avm-mcp", "args": ["--user", "akashi"]}


def test_an_engine_as_theirs_is_a_subclass_of_the_backend(tmp_path: Path) -> None:
    class Model:
        asked = 0

        def encode(self, text: str) -> Any:
            import numpy as np

            self.asked += 1
            return np.array([text.count("x"), 1.0])

    names: dict[str, Any] = {"List": list}
    exec(documents.EMBED, names)
    model = Model()
    theirs = type("Theirs", (EmbeddingBackend,), {"embed": names["embed"], "_model": model, "_query_cache": {}})
    with AVM(tmp_path / "avm.db", agent="akashi", embeddings=False, environ={"HOME": str(tmp_path)}) as avm:
        avm.write("/memory/x.md", "xxx"), avm.write("/memory/y.md", "yyy")
        index = EmbeddingStore(avm, theirs())
        index.add_nodes(avm.list("/memory"))
        asked = model.asked
        assert [index.search("xxxx", k=1)[0].node.path for _ in range(3)] == ["/memory/x.md"] * 3
        assert model.asked == asked + 1, "their cache is theirs"


@pytest.mark.timeout(1800)  # all of the documents
def test_every_command_and_snippet_runs_or_says_why_not(home: Home) -> None:
    """From top to bottom: without an agent, with a daemon, at a mount, in Python."""
    assert ".handler: plugin my_plugins.talib" in home.run("avm-daemon check", code=1)
    (home.root / "my_plugins").mkdir()
    (home.root / "my_plugins/talib.py").write_text("def read(path, context):\n    return context.params['*'].upper()\n")
    assert "providers[" not in home.run("avm-daemon check")
    problems = home.check(documents.FIRST[0], agent=None)
    for snippet in documents.FIRST[1:]:
        problems += home.check(snippet)
        if snippet.text.startswith("avm-daemon start"):
            until(lambda: home.run("avm-daemon status").count(" ready ") >= 2, LIMIT_S)
            assert (
                "load average" in home.run("avm read /system/status")
                and home.run("avm read /live/indicators/rsi") == "RSI"
            )
            assert "/live/prices/NVDA" in home.run("avm read /live/prices/NVDA", code=1), "api.example.com is nobody's"
    assert "## 1." in home.run("avm playground --yes --words-only"), "what the table has instead"
    home.run(f"set -e; {documents.WRITTEN}")
    until(
        lambda: re.search(r"waiting +0 for words, 0 for vectors", home.run("avm-daemon status")), MODEL_S, every_s=0.5
    )
    for snippet in documents.COMMANDS:
        problems += home.check(snippet)
        if snippet.row == documents.WEBHOOK:
            (home.root / ".config/avm/config.yaml").write_text(SAID_SO)
            home.run("avm-daemon reload")
            home.run(snippet.text)
        elif snippet.row is not None and snippet.instead is not None:
            home.run(snippet.instead)
    problems += in_python(home)
    home.run(f"set -e; {documents.MARKED}")
    for snippet in documents.ON_A_MOUNT:
        problems += home.check(snippet)
    assert not problems, "\n\n".join(problems)
    in_the_foreground(home)


def in_python(home: Home) -> list[str]:
    problems = []
    given = json.dumps([documents.PREPARED, [home.placed(each.text) for each in documents.PYTHON]])
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=given,
        env=home.environ,
        cwd=home.root,
        capture_output=True,
        text=True,
        timeout=MODEL_S,
    )
    assert done.returncode == 0, done.stderr
    for snippet, (printed, error) in zip(documents.PYTHON, json.loads(done.stdout), strict=True):
        if bool(error) != (snippet.row is not None) or not re.search(snippet.gives or "", printed + error):
            problems.append(f"{snippet.text}\n{printed}{error}")
    nameless = "AVM().list('/memory'); AVM().write('/memory/lesson.md', 'x')"
    said = home.run(f'python -c "from avmfs import AVM; {nameless}"', code=1, agent=None)
    assert "agent=NAME in Python, or AVM_AGENT" in said and "write" in said
    named = "print(AVM().agent_memory('akashi').remember('named later'))"
    said = home.run(f'python -c "from avmfs import AVM; {named}"', agent=None)
    assert "/memory/private/akashi/named-later.md" in said
    return problems


def in_the_foreground(home: Home) -> None:
    """``avm-daemon start            # foreground (for launchd/systemd managed processes)``"""
    with subprocess.Popen(
        ["avm-daemon", "start"], env=home.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            until(lambda: home.run("avm-daemon status", code=None).count(" ready ") >= 2, LIMIT_S)
            sh("avm-daemon stop", env=home.environ, limit_s=LIMIT_S)
            assert daemon.wait(LIMIT_S) == 0
        finally:
            if daemon.poll() is None:
                daemon.terminate()
