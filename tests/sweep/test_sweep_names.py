"""Names are data: mallory calls files, folders, links, tags, questions and patterns so that they would forge lines,
move the cursor, turn the direction of writing or hide; alice then asks everything of every door.

Commands, tools, resources, prompts and views are walked by their registries, as in the other sweeps. No answer has a
character that `avmfs.text.escapes` calls hidden, no line begins with what mallory wrote, and JSON gives it all back.
What is exempt is named here: the bytes of files and of the view `:path`, which are raw by their purpose.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_type_hints
from urllib.parse import quote

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.shared.exceptions import MCPError

from avmfs import signatures
from avmfs.cli.commands import COMMANDS
from avmfs.errors import AvmError
from avmfs.mcp import registry as tools
from avmfs.text.escapes import escaped
from avmfs.views import registry as views
from tests.cli.shells import InProcessShell, environment
from tests.mcp import peers
from tests.mcp.peers import Peer
from tests.sweep.forging import ALL, FILES, FOLDERS, FORGED, GROUND, GUESSES, OUTSIDE, door_of, forge, shows
from tests.sweep.recipes import EACH, FULL, Parameter, cases, command_cases, of_function

pytestmark = pytest.mark.timeout(600)

# Whose text is bytes of files: what mallory has written in one of them is taken out before looking.
CONTENT_COMMANDS, CONTENT_TOOLS = (
    {"read", "fetch", "diff", "delta", "history"},
    {"avm_read", "avm_fetch", "avm_history"},
)
CONTENT_VIEWS = {"data", "delta", "diff", "annotated"}
RAW_VIEWS = {"path", "next"}
# Content is not a name: what is stored under it comes back as bytes.
BODIES = {"content", "text", "body", "data", "file_text", "insert_text", "old_str", "new_str"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("names")
    forge(root)
    return root


def with_forged(parameters: list[Parameter], given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the recipes try, and every text argument forged."""
    for number, each in enumerate(given):
        if not number:
            for one in parameters:
                if str(one.hint).find("str") >= 0 and one.name not in BODIES:
                    yield from (
                        {**each, one.name: text} for text in ALL[:1] if not isinstance(each.get(one.name), list)
                    )
        if not BODIES & {name for name, value in each.items() if FORGED in repr(value)}:
            yield each


# --- the command line -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(root: Path) -> InProcessShell:
    environ = {**environment(root), "HOME": str(root), "AVM_MOUNTS": str(root / "config/mounts.yaml")}
    return InProcessShell(environ, root)


@pytest.fixture(scope="module")
def names(root: Path, shell: InProcessShell) -> None:
    """Every name is there: those that the sweep of the commands has moved and removed are written again."""
    mallory = door_of(root, "mallory")
    for path in FILES:
        mallory.call("write", path=path, data=b"market note, later still\n")
    mallory.close()


def lines_of(name: str) -> Iterator[list[str]]:
    yield from command_cases(GROUND, name, EACH if FULL else 2)
    yield from ([name, f"--{ALL[0]}"], [name, "-n", ALL[0]])  # an option that there is not, a number that is none
    for text in () if name in ("write", "append", "remember", "tell") else ALL:  # as any argument but content
        yield from ([name, text], [name, "/shared/plain.md", text])


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - OUTSIDE))
def test_no_command_says_a_name_as_it_is(root: Path, shell: InProcessShell, name: str) -> None:
    for number, line in enumerate(lines_of(name)):
        for as_json in (False, True) if FULL or number % 3 == 0 else (False,):
            asked = [*(["--json"] if as_json else []), *line]
            if name == "audit" and "--operator" not in asked:
                asked.insert(0, "--operator")
            done = shell.run(*asked, code=None)
            out = done.stdout.decode("utf-8", "surrogateescape")
            if as_json and done.returncode == 0:
                said = done.stdout.decode("utf-8", "strict")
                for each in said.splitlines() if name == "watch" else [said]:  # which has one object a line
                    json.loads(each)
            raw = "--null" in line or (name == "read" and any(part.endswith(":path") for part in line))
            if not raw:
                shows(("avm", *asked), out, content=name in CONTENT_COMMANDS)
            shows(("avm", *asked), done.stderr.decode("utf-8", "surrogateescape"))


@pytest.mark.usefixtures("names")
def test_json_gives_every_name_as_it_is(shell: InProcessShell) -> None:
    names = {entry["name"] for entry in json.loads(shell.out("--json", "ls", "/shared/h"))}
    assert names == {path.removeprefix("/memory/shared/h/") for path in FILES}
    for path in FILES:
        known = json.loads(shell.out("read", f"{path}:meta"))
        assert known["path"] == path
        assert json.loads(shell.out("--json", "read", path))["path"] == path


@pytest.mark.usefixtures("names")
def test_a_listed_name_can_be_had_back(shell: InProcessShell) -> None:
    listed = shell.out("ls", "/shared/h").split("\n")[:-1]
    assert sorted(listed) == sorted(escaped(path.removeprefix("/memory/shared/h/")) for path in FILES)


@pytest.mark.usefixtures("names")
def test_names_go_from_command_to_command_as_they_are(shell: InProcessShell) -> None:
    listed = shell.run("ls", "-0", "/shared/h").stdout
    assert sorted(map(os.fsdecode, listed.split(b"\0")[:-1])) == sorted(
        path.removeprefix("/memory/shared/h/") for path in FILES
    )
    for path in FILES:  # other tests may have changed them
        shell.run("write", path, "market note, later still")
    found = shell.run("search", "-0", "market", "--under", "/shared/h", "-n", "200").stdout
    assert {*map(os.fsdecode, found.split(b"\0")[:-1])} == {*FILES}
    assert shell.out("fetch", "-0", "-", data=found).count("market note, later still") == len(FILES)
    going = shell.run("rm", "-n", "-0", "-", data=found).stdout
    assert sorted(going.split(b"\0")) == sorted(found.split(b"\0"))


# --- views ------------------------------------------------------------------------------------------------------


def suffixes(place: str) -> Iterator[tuple[views.View, str]]:
    for each in views.all_views():
        if each.read is None or not each.on.intersection((place, *(["directory"] if place == "root" else []))):
            continue
        wanted = [Parameter(one.name, _hint(one), one.default is inspect.Parameter.empty) for one in each.parameters]
        for given in with_forged(wanted, cases(GROUND, f":{each.name}", wanted)):
            spoken = {name: int(value) if isinstance(value, bool) else value for name, value in given.items()}
            query = "&".join(f"{name}={quote(os.fsencode(str(value)), safe='')}" for name, value in spoken.items())
            yield each, f":{each.name}" + (f"?{query}" if query else "")


def _hint(found: signatures.Parameter) -> Any:
    if found.choices:
        return Literal[found.choices]
    return found.type if found.type in (bool, int, float, str) else int


@pytest.mark.parametrize("place", ["file", "directory", "root"])
def test_no_view_says_a_name_as_it_is(root: Path, place: str) -> None:
    where = {
        "file": (*GROUND.files, "/memory/shared/plain.md", "/memory/shared/topic.md"),
        "directory": (*FOLDERS, "/memory/shared/h", "/memory/shared"),
        "root": ("",),
    }[place]
    door, count = door_of(root, "alice"), 0
    for each, suffix in suffixes(place):
        for path in where:
            asked = f"{path}{suffix}" if place == "file" else f"{path}/{suffix}"
            said = _outcome(
                lambda asked=asked: door.call("read", path=asked)["data"].decode("utf-8", "surrogateescape")
            )
            if each.name not in RAW_VIEWS:
                shows(asked, said, content=each.name in CONTENT_VIEWS)
            shows(f"{asked} :error", door.call("read", path="/:error")["data"].decode())
            count += 1
    assert count > 30
    door.close()


@pytest.mark.usefixtures("names")
def test_the_raw_view_is_raw(root: Path) -> None:
    door = door_of(root, "alice")
    for path in FILES:
        assert door.call("read", path=f"{path}:path")["data"] == os.fsencode(path) + b"\n"
    door.close()


def _outcome(do: Callable[[], str]) -> str:
    try:
        return do()
    except AvmError as e:
        return str(e)


# --- mcp --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def alice(root: Path, portal: BlockingPortal) -> Iterator[Peer]:
    with peers.stdio(portal, environment(root), "alice") as peer:
        yield peer


def sendable(value: Any) -> Any:
    """What a client can send: JSON has no odd bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {name: sendable(each) for name, each in value.items()}
    return [sendable(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(tools.tools()))
def test_no_tool_says_a_name_as_it_is(alice: Peer, name: str) -> None:
    tool = tools.tools()[name]
    wanted = of_function(tool.run, get_type_hints(tool.run), skip=1)
    for given in with_forged(wanted, cases(GROUND, name, wanted)):
        try:
            result = alice.ask("call_tool", name, sendable(given))
        except MCPError as e:
            shows((name, given), str(e))
            continue
        for block in result.content:
            shows((name, given), block.text, content=name in CONTENT_TOOLS)


def test_the_memory_tool_shows_no_name_as_it_is(alice: Peer) -> None:
    for number, name in enumerate(map(sendable, ALL)):
        path = f"/memories/{name}"
        lines = [
            {"command": "create", "path": path, "file_text": "kept\n"},
            {"command": "create", "path": path, "file_text": "kept\n"},
            {"command": "view", "path": path},
            {"command": "view", "path": "/memories"},
            {"command": "str_replace", "path": path, "old_str": "kept", "new_str": "held"},
            {"command": "str_replace", "path": path, "old_str": "x", "new_str": "held"},
            {"command": "insert", "path": path, "insert_line": 0, "insert_text": "more\n"},
            {"command": "insert", "path": path, "insert_line": 9, "insert_text": "more\n"},
            {"command": "rename", "old_path": path, "new_path": f"{path}{number}"},
            {"command": "rename", "old_path": path, "new_path": f"{path}{number}"},
            {"command": "view", "path": path},
            {"command": "view", "path": f"{path}/../x"},
            {"command": "delete", "path": path},
            {"command": "delete", "path": f"{path}{number}"},
        ]
        for line in lines:
            result = alice.ask("call_tool", "memory", line)
            shows(line, result.content[0].text)


def test_no_resource_prompt_or_completion_says_a_name_as_it_is(alice: Peer) -> None:
    listed = alice.ask("list_resources").resources
    assert len(listed) > 10
    for each in listed:
        for text in (each.name, each.title or "", each.description or "", each.uri):
            shows(("listed", each.uri), str(text))
        try:
            found = alice.ask("read_resource", each.uri).contents[0]
        except MCPError as e:
            shows(each.uri, str(e))
        else:
            shows(each.uri, getattr(found, "text", ""), content=True)
    for template in alice.ask("list_resource_templates").resource_templates:
        for text in map(sendable, (*FILES[-3:], *FOLDERS, *GUESSES)):
            name, _, _ = template.uri_template.partition("{")
            try:
                found = alice.ask("read_resource", name + quote(text.removeprefix("/memory/"))).contents[0]
            except MCPError as e:
                shows(template.uri_template, str(e))
            else:
                shows(template.uri_template, getattr(found, "text", ""), content=True)
    for prompt in alice.ask("list_prompts").prompts:
        for text in (sendable(" ".join(one.splitlines())) for one in ("", *ALL)):  # what one types may have lines
            arguments = {each.name: text or "market" for each in prompt.arguments or ()}
            try:
                got = alice.ask("get_prompt", prompt.name, arguments)
            except MCPError as e:
                shows(prompt.name, str(e))
            else:
                shows((prompt.name, text), got.messages[0].content.text, content=True)
