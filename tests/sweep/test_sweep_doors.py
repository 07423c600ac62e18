"""Every method of the door, every method of the Python class, every command and every tool, asked by bob for what is
alice's: nothing planted comes back, nothing of hers changes, and what he gets is the same however much she writes.

All four are walked by their registries, so that what is added later is swept too (`recipes`). Each works on its own
copy of the planted store, without a daemon: what decides is the same code (`avmfs.rpc`, `avmfs.memory`, `avmfs.store`)
behind the daemon's door, which tests/cli/test_canaries.py asks over its socket.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest
from avmfs_config import load_settings
from click.testing import CliRunner

from avmfs import AVM
from avmfs.api.agent_memory import AgentMemory
from avmfs.cli.commands import COMMANDS
from avmfs.cli.main import avm
from avmfs.errors import AvmError
from avmfs.mcp import registry as mcp_registry
from avmfs.rpc import methods
from avmfs.rpc.local import LocalDoor
from tests.cli.shells import environment
from tests.sweep.planting import CANARY, Planted
from tests.sweep.recipes import Ground, cases, command_cases, of_function

pytestmark = pytest.mark.mount

# Commands that are not about what is remembered: they write files of this machine, mount, make or replace stores.
ELSEWHERE = {
    "sync",
    "export",
    "import",
    "backup",
    "cluster",
    "restore",
    "init",
    "completion",
    "bench",
    "mount",
    "playground",
    "warmup",
    "open",
    "purge",  # the door's methods have it, with plans that nobody agreed to
    "repair",
    "setup",
    "model",
    "hook",
}
PROBES = (
    "/:list?q=&limit=1000",
    "/:search?q=market&limit=200",
    "/:recall?q=market&min_relevance=0&max_tokens=20000",
    "/:stats",
    "/:changes?since=0&limit=1000",
    "/shared/team/:list?q=",
    "/:inbox",
    "/memory/shared/team/open1.md:links",
)
# Not `:links`: a link of hers goes with the shared file that bob may remove.
HERS = ("", ":meta", ":tags", ":history", ":shared", ":ttl", ":diff")


class Copy:
    """A copy of the planted store: bob's door to it, and alice's to see that hers is as it was."""

    def __init__(self, root: Path, planted: Planted) -> None:
        self.root, self._planted = root, planted
        self.bob, self._alice = door_of(root, "bob"), door_of(root, "alice")
        self._typed: set[str] = set()
        self._before = self.hers()

    def hers(self) -> dict[str, str]:
        """All that alice has for herself, whatever its path has become."""
        alice, said = self._alice, {}
        for handle in self._planted.handles:
            for suffix in HERS:
                said[handle + suffix] = _outcome(lambda where=f"/{handle}{suffix}": alice.call("read", path=where))
        messages = alice.call("inbox")["messages"]
        said["inbox"] = repr([each for each in messages if each["sender"] != "bob"])
        return said

    def ask(self, what: str, given: Any, do: Callable[[], Any]) -> str:
        """What bob gets, clean. What he has typed may be repeated to him."""
        self._typed |= set(CANARY.findall(repr(given)))
        said = _outcome(do)
        text = said
        for word in self._typed:
            text = text.replace(word, "")
        hit = CANARY.search(text)
        assert hit is None, f"{what}({given}): {hit[0]} in {text[max(0, hit.start() - 300) : hit.end() + 300]}"
        return said

    def end(self, what: str) -> None:
        """Whatever bob did, he has gained nothing by it and taken nothing from her."""
        for path in PROBES:
            self.ask(f"after {what}: read", path, lambda path=path: self.bob.call("read", path=path))
        after = self.hers()
        assert {key: after[key] for key in after if after[key] != self._before[key]} == {}, what
        self.bob.close()
        self._alice.close()


def door_of(root: Path, agent: str) -> LocalDoor:
    settings = load_settings(root / "config/config.yaml", {})
    return LocalDoor(root / "data/avm.db", settings, agent, embeddings=False)


def _outcome(do: Callable[[], Any]) -> str:
    """What doing so gives or how it is refused, as text."""
    try:
        return repr(do())
    except (AvmError, ValueError, click.ClickException) as e:
        return f"{type(e).__name__} {getattr(e, 'errno', '')}: {e}"


# --- what there is to ask --------------------------------------------------------------------------------------


def method_cases(ground: Ground, name: str) -> Iterator[dict[str, Any]]:
    function = methods._loaded()[name]
    return cases(ground, name, of_function(function, get_type_hints(function), skip=1))


def python_cases(ground: Ground) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """("AVM" or "AgentMemory", method, arguments)."""
    for kind in (AVM, AgentMemory):
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in ("close", "agent_memory"):
                continue
            hints = get_type_hints(function)
            for given in cases(ground, f"{kind.__name__}.{name}", of_function(function, hints, skip=1)):
                yield kind.__name__, name, given


class LocalCall:
    """What a tool works with (avmfs.mcp.registry.Call), without a server around it."""

    agent = "bob"

    def __init__(self, door: LocalDoor) -> None:
        self._door = door

    def door(self, method: str, /, **arguments: Any) -> Any:
        return self._door.call(method, **arguments)

    def progress(self, done: float, total: float, message: str) -> None:
        pass

    def urgent_is_shown(self) -> None:
        pass


# --- nothing comes back, nothing changes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", methods.names())
def test_no_method_of_the_door_tells_or_changes_what_is_hers(
    planted: Planted, ground: Ground, copies: Callable[..., Path], name: str
) -> None:
    copy, asked = Copy(copies(), planted), 0
    for given in method_cases(ground, name):
        copy.ask(name, given, lambda given=given: copy.bob.call(name, **given))
        asked += 1
    copy.end(name)
    assert asked


@pytest.mark.parametrize("name", sorted(mcp_registry.tools()))
def test_no_tool_tells_or_changes_what_is_hers(
    planted: Planted, ground: Ground, copies: Callable[..., Path], name: str
) -> None:
    copy, tool = Copy(copies(), planted), mcp_registry.tools()[name]
    call, asked = LocalCall(copy.bob), 0

    def run(given: dict[str, Any]) -> Any:
        answer = tool.run(call, **mcp_registry.bind(tool, given))
        return answer.text, answer.value

    for given in cases(ground, name, of_function(tool.run, get_type_hints(tool.run), skip=1)):
        copy.ask(name, given, lambda given=given: run(given))
        asked += 1
    copy.end(name)
    assert asked


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """With these arguments, one that takes any number of them (``*targets``) as one."""
    any_number = [
        name for name, each in inspect.signature(function).parameters.items() if each.kind is each.VAR_POSITIONAL
    ]
    return function(*(given[name] for name in any_number), **{k: v for k, v in given.items() if k not in any_number})


def test_no_method_of_the_python_class_tells_or_changes_what_is_hers(
    planted: Planted, ground: Ground, copies: Callable[..., Path]
) -> None:
    copy, names = Copy(copies(), planted), set()
    with AVM(agent="bob", environ=environment(copy.root), embeddings=False) as bob:
        for kind, name, given in python_cases(ground):
            holder = bob if kind == "AVM" else bob.agent_memory()
            copy.ask(name, given, lambda holder=holder, name=name, given=given: _called(getattr(holder, name), given))
            names.add(name)
    copy.end("Python")
    assert {"read", "search", "recall", "inbox", "list"} <= names


def test_no_command_tells_or_changes_what_is_hers(
    planted: Planted, ground: Ground, copies: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, asked = Copy(copies(), planted), 0
    runner = CliRunner()
    for name, value in {**environment(copy.root), "AVM_AGENT": "bob"}.items():
        monkeypatch.setenv(name, value)
    (copy.root / "config/mounts.yaml").write_text("mounts: []\n")

    def run(line: list[str]) -> str:
        done = runner.invoke(avm, line, standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            if not isinstance(done.exception, (AvmError, ValueError, OSError, click.ClickException, click.Abort)):
                raise done.exception
            return f"{done.output} {done.exception}"
        return str(done.output)

    for name in sorted(COMMANDS.keys() - ELSEWHERE):
        for line in command_cases(ground, name):
            copy.ask("avm", line, lambda line=line: run(line))
            asked += 1
    copy.end("avm")
    assert asked > 100


# --- nor is anything of hers in what he may have ------------------------------------------------------------------


def write_a_hundred(root: Path, planted: Planted) -> None:
    """Alice is busy: notes, tags, links, mail to herself, what is gone again, what only she has in shared space."""
    door, carol = door_of(root, "alice"), door_of(root, "carol")
    for number in range(100):
        path = f"/private/busy/market{number}.md"
        door.call("write", path=path, data=b"market report open team " * (number % 7 + 1))
        if number % 10 == 0:
            door.call("write", path=f"{path}:tags", data=b"+shown")
            door.call("write", path=f"{path}:links", data=b"/shared/team/open0.md cites")
            door.call("tell", recipient="alice", body="market")
            carol.call("tell", recipient="alice", body="market", priority="urgent")
        if number % 9 == 0:
            door.call("remove", path=path)
    hidden = next(path for path in planted.hers if path.startswith("/memory/shared/team/"))
    door.call("write", path=hidden, data=b"market report " * 300)
    door.call("write", path="/memory/hidden/more.md", data=b"market report")
    door.call("move", source="/private/busy/market1.md", target="/private/elsewhere.md")
    door.call("search", q="market")
    carol.close()
    door.close()


@pytest.fixture(scope="module")
def busy(planted: Planted, copies: Callable[..., Path]) -> Path:
    root: Path = copies()
    write_a_hundred(root, planted)
    return root


@pytest.mark.parametrize("name", methods.names())
def test_a_hundred_private_notes_change_no_answer(
    planted: Planted, ground: Ground, copies: Callable[..., Path], busy: Path, name: str
) -> None:
    """Counts, scores, order, sizes, sequence numbers, error texts: all that bob is told, compared. The same questions
    to the store as it was, to the one in which alice was busy, and to the first again: what differs between the first
    and the last (random names, the time) says nothing."""
    answers: list[list[str]] = []
    asked = list(method_cases(ground, name))
    for source in (None, busy, None):
        bob = door_of(copies(source), "bob")
        answers.append([_outcome(lambda given=given, bob=bob: bob.call(name, **given)) for given in asked])
        bob.close()
    before, after, again = answers
    told = {
        json.dumps(given, default=repr): (before[number], after[number])
        for number, given in enumerate(asked)
        if before[number] == again[number] != after[number]
    }
    assert told == {}
    steady = sum(before[number] == again[number] for number in range(len(asked)))
    assert steady >= len(asked) * STEADY.get(name, 0.6), (
        f"{steady} of {len(asked)} answers are steady enough to compare"
    )


# Where most answers tell the time or a name made at random.
STEADY = {"create_key": 0.5, "remember": 0.0, "write": 0.0, "make_directory": 0.0, "tell": 0.0, "snapshot": 0.0}
