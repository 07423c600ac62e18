"""avm setup and avm hook: the configuration of agents' clients, and what is said at their events."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from avmfs_config import find_paths

from avmfs.api.connect import running
from avmfs.cli import clients, hooked, jsonc
from avmfs.cli.clients import CLIENTS
from avmfs.errors import Busy
from tests.cli.shells import QuickShell, Shell, configured, environment
from tests.mount.mount_world import World

THEIRS = """\
{
    // mine, and it stays
    "theme": "dark",
    "mcpServers": {
        "other": {"command": "x", "args": ["a"]}, /* as it is */
    },
    "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "mine.sh"}]}]}
}
"""
KEYS = {"vscode": "servers", "opencode": "mcp", "zed": "context_servers"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Shell]:
    with configured("embedding: {enabled: false}\n") as root:
        environ = {**environment(root), "HOME": str(tmp_path / "home")}
        (tmp_path / "home").mkdir()
        yield QuickShell(environ, root)


def files(shell: Shell) -> dict[str, str]:
    root = Path(shell.environ["HOME"])
    return {str(each.relative_to(root)): each.read_text() for each in sorted(root.rglob("*")) if each.is_file()}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_set_up_once_and_leaves_nothing_behind(home: Shell, client: str) -> None:
    home.run("setup", client)
    made = files(home)
    server = next(text for name, text in made.items() if name.endswith((".json", ".toml")) and "avm-mcp" in text)
    if client == "codex":
        entry = tomllib.loads(server)["mcp_servers"]["avm"]
    else:
        entry = json.loads(server)[KEYS.get(client, "mcpServers")]["avm"]
    command = entry["command"] if client == "opencode" else [entry["command"], *entry["args"]]
    assert os.path.isabs(command[0]) and command[1:] == ["--user", client]
    assert json.loads(home.out("setup", client, "--json"))["changed"] == []
    assert files(home) == made
    status = {(each["client"], each["there"]) for each in json.loads(home.out("setup", "status", "--json"))}
    assert (client, True) in status and (client, False) not in status
    home.run("setup", client, "--remove")
    assert files(home) == {}


def test_a_client_is_told_where_its_server_cannot_run_yet(home: Shell, tmp_path: Path) -> None:
    assert "avmfs[mcp]" not in home.out("setup", "claude")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    home.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    told = Shell(home.environ).out("setup", "claude")  # an interpreter reads what its variables say
    assert told.endswith("avm-mcp needs more: pip install 'avmfs[mcp]'\n")


@pytest.mark.parametrize(
    ("client", "file"),
    [("claude", ".claude/settings.json"), ("gemini", ".gemini/settings.json"), ("claude", ".claude.json")],
)
def test_what_others_have_in_a_file_stays_as_it_is(home: Shell, client: str, file: str) -> None:
    place = Path(home.environ["HOME"], file)
    place.parent.mkdir(exist_ok=True)
    place.write_text(THEIRS)
    place.chmod(0o640)
    home.run("setup", client)
    assert place.stat().st_mode & 0o777 == 0o640
    now = place.read_text()
    for line in (
        "    // mine, and it stays\n",
        '    "theme": "dark",\n',
        '"args": ["a"]}',
        "/* as it is */",
        "mine.sh",
    ):
        assert line in now
    jsonc.parse(now)
    home.run("setup", client, "--remove")
    after = place.read_text()
    assert jsonc.parse(after).value == jsonc.parse(THEIRS).value
    assert "// mine, and it stays" in after and "/* as it is */" in after


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "cursor"])
def test_hooks_that_stand_beside_ours_stay_where_they_are(home: Shell, client: str) -> None:
    name = {"claude": "settings", "gemini": "settings"}.get(client, "hooks")
    place = Path(home.environ["HOME"], f".{client}/{name}.json")
    home.run("setup", client)
    event = "sessionStart" if client == "cursor" else "SessionStart"
    mine = {"type": "command", "command": "mine.sh"}
    value = json.loads(place.read_text())
    (ours,) = value["hooks"][event]
    more = [{"hooks": [mine]}, mine]  # a group, and what is none of any client's forms
    if client == "cursor":
        value["hooks"][event] = [ours, mine]
    else:
        value["hooks"][event] = [{"matcher": "startup", "hooks": [*ours["hooks"], mine]}, *more]
    place.write_text(json.dumps(value))
    assert json.loads(home.out("setup", client, "--json"))["changed"] == []
    home.run("setup", client, "--agent", "other")
    other = json.loads(json.dumps(value["hooks"]).replace(f"-a {client} ", "-a other "))
    assert json.loads(place.read_text())["hooks"] == other
    home.run("setup", client, "--remove")
    left = json.loads(place.read_text())["hooks"]
    assert left == {event: [mine] if client == "cursor" else [{"matcher": "startup", "hooks": [mine]}, *more]}


def test_a_group_goes_with_the_last_of_its_hooks(home: Shell) -> None:
    place = Path(home.environ["HOME"], ".claude/settings.json")
    home.run("setup", "claude")
    value = json.loads(place.read_text())
    (group,) = value["hooks"]["SessionStart"]
    value["hooks"]["SessionStart"] = [{"matcher": "startup", **group, "hooks": group["hooks"] * 2}]
    place.write_text(json.dumps(value))
    home.run("setup", "claude")
    assert json.loads(place.read_text())["hooks"]["SessionStart"] == [{"matcher": "startup", **group}]
    home.run("setup", "claude", "--remove")
    assert not place.exists()


def test_a_file_keeps_its_line_ends(home: Shell) -> None:
    root = Path(home.environ["HOME"])
    theirs = {
        ".codex/AGENTS.md": b"# Rules\r\nBe kind.\r\n",
        ".codex/config.toml": b'model = "x"\r\n\r\n[tui]\r\na = 1\r\n',
        ".config/zed/settings.json": b'{\r\n  "theme": "dark"\r\n}\r\n',
        ".gemini/GEMINI.md": b"mixed\r\nas it is\n",
    }
    for name, data in theirs.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    for client in ("codex", "zed", "gemini"):
        home.run("setup", client)
    for name, data in theirs.items():
        now = (root / name).read_bytes()
        assert len(now) > len(data) + 50 and (b"avm" in now)
        if data.count(b"\n") == data.count(b"\r\n"):
            assert now.count(b"\n") == now.count(b"\r\n")
        else:
            assert now.startswith(data)
    assert json.loads(home.out("setup", "codex", "--json"))["changed"] == []
    for client in ("codex", "zed", "gemini"):
        home.run("setup", client, "--remove")
    assert {name: (root / name).read_bytes() for name in theirs} == theirs


def test_what_others_may_not_read_they_cannot_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file has the tokens of other servers."""
    place = tmp_path / "mcp.json"
    place.write_text('{"token": "secret"}')
    place.chmod(0o600)
    tmp_path.chmod(0o755)
    seen: list[bool] = []

    def copymode(source: Path, target: Path, **how: bool) -> None:
        ways = [each.stat().st_mode & 0o077 for each in (target, *target.parents) if tmp_path in (each, *each.parents)]
        seen.append(all(ways))
        real(source, target, **how)

    real = shutil.copymode
    monkeypatch.setattr(shutil, "copymode", copymode)
    before = os.umask(0o022)
    try:
        clients._write(place, '{"token": "secret", "avm": {}}')
    finally:
        os.umask(before)
    assert seen == [False] and place.stat().st_mode & 0o777 == 0o600
    assert "avm" in place.read_text() and list(tmp_path.iterdir()) == [place]


def test_codex_keeps_what_stands_around_our_table(home: Shell) -> None:
    place = Path(home.environ["HOME"], ".codex/config.toml")
    place.parent.mkdir()
    theirs = '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y"\n\n[tui]\na = 1\n'
    place.write_text(theirs)
    (place.parent / "AGENTS.md").write_text("# Mine\n")
    home.run("setup", "codex")
    assert place.read_text().startswith(theirs) and "avm-mcp" in place.read_text()
    home.run("setup", "codex", "--agent", "other-name")
    assert tomllib.loads(place.read_text())["mcp_servers"]["avm"]["args"] == ["--user", "other-name"]
    home.run("setup", "codex", "--remove")
    assert place.read_text() == theirs and (place.parent / "AGENTS.md").read_text() == "# Mine\n"
    place.write_text('mcp_servers.avm = {command = "z"}\n')
    assert "by hand" in home.complaint("setup", "codex", code=2)


def test_codex_keeps_what_others_wrote_in_and_below_our_table(home: Shell) -> None:
    place = Path(home.environ["HOME"], ".codex/config.toml")
    place.parent.mkdir()
    place.write_text("")
    home.run("setup", "codex")
    ours = place.read_text()
    theirs = "# about the terminal\n[tui]\na = 1\n"
    more = "startup_timeout_sec = 20 # slow\n"
    below = '[mcp_servers.avm.env]\nAVM_AT = "https://far:7654"\n'
    place.write_text(f"{ours}{more}\n{below}\n{theirs}")
    assert json.loads(home.out("setup", "codex", "--json"))["changed"] == []
    home.run("setup", "codex", "--agent", "other-name")
    now = place.read_text()
    assert now == f"{ours}{more}\n{below}\n{theirs}".replace('"codex"', '"other-name"')
    home.run("setup", "codex", "--remove")
    assert place.read_text() == theirs
    place.write_text(f"{below}\n{theirs}\n{ours}# the end\n")
    home.run("setup", "codex", "--remove")
    assert place.read_text() == f"{theirs}# the end\n"


def test_codex_refuses_a_table_that_it_cannot_read_line_by_line(home: Shell) -> None:
    """A text of several lines may have what looks like a heading or a key."""
    place = Path(home.environ["HOME"], ".codex/config.toml")
    place.parent.mkdir()
    odd = '[mcp_servers.avm]\ncommand = "x"\nargs = [\n  "a",\n]\nnote = """\n[tui]\n"""\n'
    place.write_text(odd)
    assert "by hand" in home.complaint("setup", "codex", code=2) and place.read_text() == odd


@pytest.mark.parametrize("client", ["claude", "cursor", "vscode", "opencode"])
def test_what_others_wrote_into_our_entry_stays_in_it(home: Shell, client: str) -> None:
    home.run("setup", client)
    key = KEYS.get(client, "mcpServers")
    place = next(each for each in Path(home.environ["HOME"]).rglob("*.json") if f'"{key}"' in each.read_text())
    value = json.loads(place.read_text())
    value[key]["avm"]["env"] = {"AVM_AT": "https://far:7654"}
    place.write_text(json.dumps(value))
    home.run("setup", client, "--agent", "other-name")
    now = json.loads(place.read_text())[key]["avm"]
    assert now["env"] == {"AVM_AT": "https://far:7654"} and "other-name" in str(now)
    home.run("setup", client, "--remove")
    assert "avm-mcp" not in (place.read_text() if place.exists() else "")


def test_a_file_that_cannot_be_read_is_a_row_of_the_status(home: Shell) -> None:
    home.run("setup", "claude")
    bad = Path(home.environ["HOME"], ".cursor/mcp.json")
    bad.parent.mkdir()
    bad.write_text("{")
    rows = {each["file"]: each for each in json.loads(home.out("setup", "status", "--json"))}
    assert rows[str(bad)]["there"] is None and "line 1" in rows[str(bad)]["reason"]
    assert rows[str(Path(home.environ["HOME"], ".claude.json"))]["there"]
    said = home.out("setup", "status")
    assert "line 1" in said and ".claude.json" in said


@pytest.mark.parametrize(
    ("client", "file", "text", "said"),
    [
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {"a": 1,, }}', "line 1, column 24"),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": []}', "expected an object"),
        ("claude", ".claude.json", '{"a": 1, "a": 2}', "a key twice"),
        ("codex", ".codex/config.toml", "a = \n", "line 1"),
        ("zed", ".config/zed/settings.json", "[1]", "expected an object"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_with_the_place(
    home: Shell, client: str, file: str, text: str, said: str
) -> None:
    place = Path(home.environ["HOME"], file)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    complaint = home.complaint("setup", client, code=2)
    assert said in complaint and file in complaint and "nothing was changed" in complaint
    assert files(home) == {file: text}


def test_print_writes_nothing_and_a_project_has_its_own_files_and_agent(home: Shell, tmp_path: Path) -> None:
    said = json.loads(home.out("setup", "claude", "--print", "--json"))
    assert files(home) == {} and any("SessionStart" in text for text in said.values())
    (tmp_path / "My App").mkdir()
    command = [sys.executable, "-m", "avmfs.cli", "setup", "claude", "--project"]
    subprocess.run(command, env=home.environ, cwd=tmp_path / "My App", check=True, capture_output=True)
    made = json.loads((tmp_path / "My App/.mcp.json").read_text())
    assert made["mcpServers"]["avm"]["args"] == ["--user", "claude-my-app"] and files(home) == {}
    assert "no settings of a project" in home.complaint("setup", "claude-desktop", "--project", code=2)


@pytest.mark.parametrize(
    "text", ["{}", "{\n}\n", '{"a": {}}', '{\n  "a": {\n    "b": [1, 2], // c\n  },\n}\n', "{ // x\n}"]
)
def test_what_is_put_into_json_can_be_dropped_again(text: str) -> None:
    made = jsonc.put(text, ["k", "l", 0], {"m": "ü"})
    assert jsonc.parse(made).value == {**jsonc.parse(text).value, "k": {"l": [{"m": "ü"}]}}
    assert jsonc.parse(jsonc.drop(made, ["k", "l", 0])).value == jsonc.parse(text).value
    assert jsonc.drop(text, ["k"]) == text


# Hooks ---------------------------------------------------------------------------------------------------------


def hook(environ: dict[str, str], event: str, said: object, client: str = "claude") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "avmfs.cli", "hook", "--client", client, "-a", "alice", event]
    text = said if isinstance(said, str) else json.dumps(said)
    return subprocess.run(command, env=environ, input=text, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def patient(world: World) -> dict[str, str]:
    """The module's daemon, with a note and a message; hooks wait for as long as a busy machine takes."""
    shell = QuickShell(world.environ, world.root)
    shell.run("write", "/shared/release.md", "Releases are frozen on Fridays.")
    shell.run("tell", "alice", "look at the plan", agent="bob")
    return {**world.environ, "AVM_HOOK_S": "30"}


@pytest.mark.mount
@pytest.mark.parametrize(
    ("client", "name"), [("claude", "UserPromptSubmit"), ("codex", "UserPromptSubmit"), ("gemini", "BeforeAgent")]
)
def test_a_prompt_gets_what_memory_has_on_it(patient: dict[str, str], client: str, name: str) -> None:
    done = hook(patient, "prompt", {"prompt": "when are releases frozen?", "cwd": "/x"}, client)
    said = json.loads(done.stdout)["hookSpecificOutput"]
    assert said["hookEventName"] == name and "frozen on Fridays" in said["additionalContext"] and done.returncode == 0
    assert hook(patient, "prompt", {"prompt": "the colour of zebras in winter"}, client).stdout == ""
    assert hook(patient, "prompt", {"prompt": "yes"}, client).stdout == ""


@pytest.mark.mount
def test_a_session_begins_with_mail_and_notes_on_the_project(patient: dict[str, str]) -> None:
    said = json.loads(hook(patient, "session-start", {"cwd": "/src/release"}, "cursor").stdout)["additional_context"]
    assert "you are alice" in said and "1 unread message: avm_inbox" in said and "frozen on Fridays" in said


SPOKEN = [
    {"type": "user", "message": {"role": "user", "content": "<command-name>/clear</command-name>"}},
    {"type": "user", "message": {"role": "user", "content": "move the parser"}},
    {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "tool_use", "id": 1}]}},
    {"type": "user", "isSidechain": True, "message": {"role": "user", "content": "not the person"}},
    {
        "type": "assistant",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Moved; tests pass."}]},
    },
]
DOCUMENT = {
    "messages": [{"type": "user", "content": "move the parser"}, {"type": "gemini", "content": "Moved; tests pass."}]
}


@pytest.mark.mount
@pytest.mark.parametrize("client", ["claude", "gemini"])
def test_the_end_of_a_session_leaves_a_note_that_only_its_agent_sees(
    patient: dict[str, str], tmp_path: Path, client: str
) -> None:
    lines = '"cut of a li\n' + "\n".join(map(json.dumps, SPOKEN)) if client == "claude" else json.dumps(DOCUMENT)
    (tmp_path / "t").write_text(lines)
    given = {"session_id": f"{client}-01/../x", "transcript_path": str(tmp_path / "t"), "cwd": "/src/parser"}
    for _ in range(2):
        done = hook(patient, "session-end", given, client)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shell, path = QuickShell(patient, tmp_path), f"/private/sessions/{client}01x.md"
    note = shell.out("read", path)
    assert note.startswith("# Session in parser, 20") and note.endswith(
        "Asked: move the parser\n\nAnswered: Moved; tests pass.\n"
    )
    assert "29d" in shell.out("read", f"{path}:ttl") and "No such" in shell.complaint("read", path, agent="bob", code=1)
    hook(patient, "session-end", {**given, "compact_summary": "The parser was moved."}, client)
    assert "The parser was moved." in shell.out("read", f"/private/sessions/{client}01x-summary.md")
    assert shell.out("read", path) == note


@pytest.mark.mount
def test_the_note_of_a_session_never_stays_for_good_where_an_answer_comes_too_late(
    patient: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(json.dumps(DOCUMENT))
    given = {"session_id": "late", "transcript_path": str(tmp_path / "t"), "cwd": "/src/parser"}
    door = running(find_paths(patient), "alice", 300, patient)
    assert door is not None
    call = door.call

    def late(method: str, /, **arguments: Any) -> Any:
        call(method, **arguments)
        raise Busy("it was done, but nobody waits any more")

    with contextlib.closing(door), patch.object(door, "call", late):
        for _ in range(2):  # also of a note that is there
            with pytest.raises(Busy):
                hooked._kept(door, given)
    shell = QuickShell(patient, tmp_path)
    assert "move the parser" in shell.out("read", "/private/sessions/late.md")
    assert "29d" in shell.out("read", "/private/sessions/late.md:ttl")


@pytest.mark.mount
def test_a_session_of_which_nothing_is_known_leaves_no_note(patient: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "other").write_text('{"messages": 5}')
    shell = QuickShell(patient, tmp_path)
    before = shell.out("tree", "/private")
    for path in ("", "/none", "fifo", "other"):
        given = {"session_id": "s2", "transcript_path": path and str(tmp_path / path)}
        done = hook(patient, "session-end", given)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert hook(patient, "session-end", {"compact_summary": "of no session"}).returncode == 0
    assert shell.out("tree", "/private") == before


def test_sessions_are_kept_only_where_that_is_asked_for(home: Shell) -> None:
    settings = Path(home.environ["HOME"], ".claude/settings.json")
    home.run("setup", "claude")
    assert {*json.loads(settings.read_text())["hooks"]} == {"SessionStart", "UserPromptSubmit"}
    home.run("setup", "claude", "--sessions")
    assert {"SessionEnd", "PostCompact"} < {*json.loads(settings.read_text())["hooks"]}
    home.run("setup", "claude")
    assert "SessionEnd" not in settings.read_text()


def test_a_hook_loads_no_command_line(home: Shell) -> None:
    code = (
        "import sys; sys.argv[1:] = ['hook', '--client', 'claude', '-a', 'alice', 'prompt']\n"
        "from avmfs.cli.__main__ import main\nmain()\n"
        "print({'click', 'logging', 'numpy', 'avmfs_config.settings'} & {*sys.modules})"
    )
    environ = {**home.environ, "AVM_AUTOSTART": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, input="{}", capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.mount
@pytest.mark.parametrize(
    "said", ["", "no json", "[1]", '{"prompt": 5, "cwd": null}', '{"prompt": "' + "x" * 99_999 + '"}']
)
def test_no_input_breaks_the_client(patient: dict[str, str], said: str) -> None:
    done = hook(patient, "prompt", said)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_options_that_contradict_each_other_do_not_break_the_client(home: Shell) -> None:
    command = [sys.executable, "-m", "avmfs.cli", "--at", "http://127.0.0.1:1", "--db", "x", "hook", "prompt"]
    done = subprocess.run(
        command, env=home.environ, input="{}", capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_daemon_a_hook_says_nothing(home: Shell) -> None:
    done = hook(home.environ, "prompt", {"prompt": "when are releases frozen?"})
    assert (done.returncode, done.stdout) == (0, "")
