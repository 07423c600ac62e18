"""Names are data, also those of this machine's files: commands that read and write such, in a home whose own name is
forged, `avm-daemon`, the texts of the Python class and of what stands before it. As in `test_sweep_names`, and with its
store: nothing hides, no line begins with what mallory wrote.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

import pytest
from avmfs_daemon.main import cli
from click.testing import CliRunner

from avmfs import AVM
from avmfs.adapters.openai_agents import AvmSession
from avmfs.cli import hooked
from avmfs.cli.commands import COMMANDS
from avmfs.errors import AvmError
from avmfs.text.escapes import escaped
from tests import forked
from tests.cli.shells import InProcessShell, QuickShell, Shell, environment
from tests.sweep.forging import ALL, FILES, FOLDERS, FORGED, GROUND, GUESSES, OUTSIDE, door_of, forge, shows
from tests.sweep.recipes import cases, of_function

pytestmark = pytest.mark.timeout(3600)

NAME = f"home\n{FORGED}\x1b[2J\u202e"
SHORT = (ALL[0][:60], ALL[-1][-60:])
PLACES = {"doctor", "config", "setup", "repair"}  # which tell where the home is


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outside")
    forge(root)
    return root


@pytest.fixture
def home(forged: Path, tmp_path: Path) -> Path:
    """A copy of the store in a home with a forged name, and notes with such names to bring in."""
    home = tmp_path / NAME
    shutil.copytree(forged, home)
    (home / "notes").mkdir()
    for number, name in enumerate(ALL):
        (home / "notes" / f"n{number}{name}.md").write_text("market brought in\n")
        (home / f"bad{name}").write_text("no export\n")
    (home / "notes" / f"\n{FORGED}").mkdir()
    (home / "notes" / f"\n{FORGED}" / "below.md").write_bytes(b"market\n")
    return home


@pytest.fixture
def shell(home: Path) -> InProcessShell:
    environ = {**environment(home), "HOME": str(home), "AVM_MOUNTS": str(home / "config/mounts.yaml")}
    return InProcessShell(environ, home)


def lines_of(name: str) -> Iterator[list[str]]:
    """What is asked of one of OUTSIDE, in this order; without the store's own word a name that there is not."""
    for each in (*ALL, NAME):
        yield from ([name, each], [name, f"--{each}"])
    for number, each in enumerate(SHORT):
        match name:
            case "export":
                for form in ("tar", "jsonl", "markdown", "git"):
                    yield from [[name, form, f"{form}{each}", "/shared"]] * 2
                yield from ([name, "tar", f"none{each}/x"], [name, "jsonl", "x", f"/shared/none{each}"])
            case "import":
                for form in ("markdown", "jsonl", "tar", each):
                    yield from ([name, form, f"none{each}"], [name, form, f"bad{ALL[0]}"], [name, form, "notes"])
                for into in ((), ("--into", f"/nowhere{each}"), ("--into", f"/shared/in{each}")):
                    yield from ([name, "markdown", "notes", *into, "-n"], [name, "markdown", "notes", *into])
            case "sync":
                yield from ([name, f"folder{each}", "/shared/h", "-n"], [name, f"folder{each}", "/shared/h"])
                yield ["write", FILES[number], "market, changed there"]
                yield from ([name, f"folder{each}", "-n"], [name, f"folder{each}"])
                yield from ([name, "notes", f"/nowhere{each}"], [name, "notes", f"/shared/s{number}", "--name", each])
                yield from ([name, "notes", f"/shared/s{number}"], [name, f"bad{ALL[0]}", "/shared/t"])
            case "backup":
                for action in ("make", "make", "list", "check", each):
                    yield from ([name, action, f"kept{each}"], [name, action, f"none{each}"])
                yield from [[name, "restore", f"kept{each}", "--to", f"to{each}"]] * 2
                yield from ([name, "restore", f"none{each}"], [name, "restore", f"kept{each}"])
            case "restore":
                yield from (["backup", f"kept{each}"], [name, "--from", f"kept{each}", "--to", f"to{each}"])
                yield from ([name, path, "--version", "1"] for path in (*FILES[-3:], *GUESSES))
                yield from ([name, path, "--at", "-1s", "-n"] for path in (*FOLDERS, *GUESSES, "/shared/h"))
                yield from ([name, "/shared/h", "--at", each], [name, "--from", f"none{each}"])
            case "purge":
                yield from (["backup", f"kept{each}"], [name, "--tag", "market", "-n"], [name, "--tag", each, "-n"])
                yield from (
                    [name, path, *sure] for path in (FILES[-1], GUESSES[0]) for sure in ((), ("-n",), ("--yes",))
                )
                yield ["--operator", name, "--verify", "market"]
            case "init":
                yield from (
                    [name, "alice", "--root", f"{each}", *more] for more in (["--force", "-n"], [], ["--force"])
                )
            case "model":
                yield from ([name, "list"], [name, "import", f"none{each}"], [name, "import", "notes"])
                yield from ([name, "use", "static"], [name, "use", each])
            case "mount":
                yield from ([name, each, "x"], [name, "alice", f"bad{ALL[0]}"], [name, "alice", f"bad{ALL[0]}", "-b"])
            case "hook":
                yield from (
                    [name, "prompt"],
                    [name, "session-start", "-a", "alice"],
                    [name, "prompt", "--client", each],
                )
            case "bench":
                evaluated = [name, "memory", "--preset", "quick", "--no-memory", "--language", "en"]
                yield from ([*evaluated, "--subject", each], [*evaluated, "--subject", "x", "--baseline", each])
                yield from ([*evaluated, "--subject", "x", "--scenarios", each], [name, "mine", "--set", each])
                if not number:
                    yield [*evaluated, "--subject", "x", "--output", f"out{each}"]
            case "doctor" | "config" | "setup":
                yield from ([name], [name, "--quick"], [name, "check"], [name, "--status"])
                yield from ([name, client, *more] for client in ("claude", "codex") for more in (["--print"], []))
            case "repair":
                yield from ([name, "--dry-run"], [name, "--yes"])
            case "cluster":
                yield from ([name, "status"], [name, "init"], [name, each])
            case "completion":
                yield [name, "bash"]
            case "playground":
                if not number:
                    yield [name, "--yes", "--words-only"]
            case "open" | "warmup":
                yield [name]
            case _:
                pytest.fail(f"what may {name} be asked?")


@pytest.mark.parametrize("name", sorted(OUTSIDE | PLACES))
def test_no_command_says_a_name_of_this_machine_as_it_is(shell: Shell, home: Path, name: str) -> None:
    assert name in COMMANDS
    for number, line in enumerate(lines_of(name)):
        for as_json in (False, True) if number % 3 == 0 else (False,):
            asked = [*(["--json"] if as_json else []), *line]
            done = shell.run(*asked, code=None)
            out = done.stdout.decode("utf-8", "surrogateescape")
            if "--print" in line:  # what would be written is bytes of files
                out = "\n".join(each for each in out.split("\n") if each.startswith("# "))
            shows(("avm", *asked), out)
            shows(("avm", *asked), done.stderr.decode("utf-8", "surrogateescape"))


def test_nothing_that_is_said_of_a_damaged_or_misplaced_home_is_as_it_is(shell: Shell, home: Path) -> None:
    shell = QuickShell(shell.environ, home)  # a process tells once of each damage that it meets
    wrong = f"mounts:\n  - {{mountpoint: {json.dumps(f'/tmp/x{NAME}')}, agent_id: {json.dumps(NAME)}, {FORGED}: 1}}\n"
    for config, mounts, database in (
        (f'embedding: {{path: {json.dumps(NAME)}}}\n"{FORGED}\\n{FORGED}": 1\n', wrong, b""),
        (f"embedding: {{path: {json.dumps(NAME)}}}\n", "mounts: []\n", b"no database"),
        (
            f"providers: [{{pattern: {json.dumps('/live/x' + NAME)}, handler: {json.dumps(NAME)}}}]\n",
            f"- {FORGED}\n",
            b"",
        ),
    ):
        (home / "config/config.yaml").write_text(config)
        (home / "config/mounts.yaml").write_text(mounts)
        if database:
            (home / "data/avm.db").write_bytes(database)
        for line in (
            ["doctor"],
            ["config"],
            ["config", "check"],
            ["ls"],
            ["repair", "-y"],
            ["model", "list"],
            ["init"],
        ):
            done = shell.run(*line, code=None)
            shows(line, done.stdout.decode("utf-8", "surrogateescape"))
            shows(line, done.stderr.decode("utf-8", "surrogateescape"))


def test_the_place_of_a_model_is_not_told_as_it_is(shell: Shell, home: Path) -> None:
    (home / "weights").mkdir()
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        (home / "weights" / name).write_text("{}")
    (home / "config/config.yaml").write_text(f"embedding: {{path: {json.dumps(str(home / 'weights'))}}}\n")
    for line in (["model", "list"], ["doctor"], ["config"]):
        said = Shell(shell.environ).out(*line, code=None)
        assert escaped(NAME) + "/weights" in said
        shows(line, said)


# --- avm-daemon -------------------------------------------------------------------------------------------------


def daemon(environ: dict[str, str], *words: str) -> str:
    """What it says, on both streams."""
    done = forked.run("avmfs_daemon", words, environ)
    return (done.stdout + done.stderr).decode("utf-8", "surrogateescape")


def test_the_daemons_command_says_no_name_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**environment(home), "HOME": str(home)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    lines = [["check"], ["status"], ["reload"], ["stop"], [NAME], ["install-service", "--dry-run"]]
    for each in (*SHORT, NAME):
        lines += [["add", each, f"/tmp/{each}"], ["add", "alice", f"/tmp/a{each}"], ["add", "alice", each], ["check"]]
        lines += [["remove", each], ["remove", "alice"], ["install-service", "--print", "--system", each]]
        lines += [["add", "bob", "/tmp/b", "--link", each], ["remove", "bob"], ["stop", "--as-stop-post"]]
    for line in lines:
        done = CliRunner().invoke(cli, line)
        assert isinstance(done.exception, (SystemExit, OSError, ValueError, NoneType)), (line, done)
        shows(("avm-daemon", *line), f"{done.output}{done.exception or ''}")
    unused = f"providers: [{{pattern: {json.dumps(NAME)}, handler: http}}]\n"
    for config in (f'"{FORGED}\\n{FORGED}": 1\n', unused, "a: ["):
        (home / "config/config.yaml").write_text(config)
        for line in (["check"], ["start"], ["start", "--daemon"], ["start", "--accept-loss"]):
            shows(("avm-daemon", *line), daemon(environ, *line))


@pytest.mark.mount
def test_a_mount_whose_place_has_a_forged_name_is_told_as_it_is_escaped() -> None:
    with tempfile.TemporaryDirectory(prefix="avmn-", dir="/tmp") as name:
        root, place = Path(name), Path(name, NAME)
        (root / "config").mkdir()
        (root / "config/config.yaml").write_text("embedding: {enabled: false}\n")
        place.mkdir()
        environ = {**environment(root), "AVM_AGENT": "alice"}
        shell = Shell(environ)  # which has all the time that a busy machine takes
        try:
            said = shell.run("mount", "alice", str(place), "--background")
            for line in (["mount", "bob", str(place)], ["doctor", "--quick"], ["top"], ["init", "--root", NAME]):
                done = shell.run(*line, code=None)
                shows(line, (done.stdout + done.stderr).decode("utf-8", "surrogateescape"))
            shows("mount", (said.stdout + said.stderr).decode("utf-8", "surrogateescape"))
            assert (place / "memory").is_dir()
            shows("status", daemon(environ, "status"))
            shows("reload", daemon(environ, "reload"))
        finally:
            daemon(environ, "stop")


# --- Python, hooks, adapters ------------------------------------------------------------------------------------


def test_no_text_of_the_python_class_says_a_name_as_it_is(home: Path) -> None:
    asked = 0
    with AVM(agent="alice", environ=environment(home), embeddings=False) as avm:
        for holder in (avm, avm.agent_memory()):
            for name, function in inspect.getmembers(type(holder), inspect.isfunction):
                hints = get_type_hints(function)
                if name.startswith("_") or name in ("close", "agent_memory"):
                    continue
                for given in cases(GROUND, f"{type(holder).__name__}.{name}", of_function(function, hints, skip=1), 4):
                    said = outcome(getattr(holder, name), function, given)
                    if isinstance(said, AvmError) or (hints["return"] is str and name not in GIVES_A_PATH):
                        shows((name, given), str(said), content=True)
                        asked += 1
    assert asked > 100


GIVES_A_PATH = {"remember", "write", "append", "move", "archive"}


def outcome(method: Any, function: Any, given: dict[str, Any]) -> Any:
    many = [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.VAR_POSITIONAL]
    try:
        return method(*(given[name] for name in many), **{k: v for k, v in given.items() if k not in many})
    except AvmError as e:
        return e
    except (ValueError, TypeError):
        return None


def test_no_hook_says_a_name_as_it_is(forged: Path) -> None:
    door = door_of(forged, "alice")
    for event, given in (
        (hooked.PROMPT, {"prompt": "the market note, later still"}),
        (hooked.SESSION, {"cwd": "market"}),
    ):
        said = hooked._said(door, given, event, 4000)
        assert FORGED in said
        shows(event, said, content=True)
    door.close()


def test_no_adapter_says_a_name_as_it_is(home: Path) -> None:
    with AVM(agent="alice", environ=environment(home), embeddings=False) as avm:
        for name in ALL:
            for root in ("/private/sessions", f"/shared/none{name}", f"/nowhere{name}"):
                session = AvmSession(name, avm, root)
                for do in (
                    lambda session=session: session.add_items([{"role": "user", "content": "x"}]),
                    lambda session=session: asyncio.to_thread(avm.append, session._path, "no JSON\n"),
                    lambda session=session: session.get_items(),
                    lambda session=session: session.pop_item(),
                ):
                    try:
                        asyncio.run(do())
                    except AvmError as e:
                        shows((name, root), str(e))
