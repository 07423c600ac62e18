"""A decorator is enough: names are found in source text, and what is found is what importing registers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from avmfs import paths, registration, views
from avmfs.cli import commands, main
from avmfs.mcp.registry import tools
from avmfs.rpc import methods
from avmfs.store import commands as store_commands

TREE = Path(__file__).parents[2]
ADDED = {
    "views/about.py": """

@view("zzadded", "file", summary="how many words it has")
def zzadded(context: Context) -> str:
    return "2"
""",
    "cli/files.py": """

@subcommand("zzadded", "Count the words of a file.")
def count_zzadded(ctx: click.Context) -> None:
    '''Count.'''
    print("two", ctx.info_name)
""",
    "rpc/files.py": """

@method
def zzadded(memory: Memory) -> int:
    return 2
""",
    "mcp/files.py": """

@tool("Count words", reads=True)
def avm_zzadded(call: Call, text: str) -> Answer[Any]:
    '''Count.'''
    raise AssertionError
""",
    "store/commands/auditing.py": """

@command
def zzadded(tx: Tx) -> int:
    return 2
""",
}


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sources with one function more in each of five modules, and nothing else changed."""
    place = tmp_path_factory.mktemp("added")
    shutil.copytree(TREE / "avmfs", place / "avmfs", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in ADDED.items():
        with (place / "avmfs" / name).open("a", encoding="utf-8") as file:
            file.write(text)
    yield place


def run(place: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, check=True, capture_output=True, text=True, timeout=120
    ).stdout


@pytest.mark.parametrize(
    "asked",
    [
        "from avmfs import paths, views; assert 'zzadded' in {each.name for each in views.all_views()}"
        "; assert paths.parse_view(b'n.md:zzadded') and not paths.parse_view(b'n.md:zzadde')",
        "from avmfs.rpc import methods; assert 'zzadded' in methods.names()",
        "from avmfs.mcp.registry import tools; assert 'avm_zzadded' in tools()",
        "from avmfs.store import commands; assert 'zzadded' in commands.names()",
    ],
    ids=["view", "method", "tool", "command"],
)
def test_a_decorator_alone_registers(added: Path, asked: str) -> None:
    run(added, "-c", asked)


def test_a_subcommand_needs_its_decorator_alone(added: Path) -> None:
    assert run(added, "-m", "avmfs.cli", "zzadded") == "two zzadded\n"
    lines = run(added, "-m", "avmfs.cli", "--help").splitlines()
    assert lines[-1].split(maxsplit=1) == ["zzadded", "Count the words of a file."]


def test_what_is_read_from_the_sources_is_what_importing_registers() -> None:
    assert {each.name for each in views.all_views()} == paths.CORE_VIEWS - paths.PLANNED_VIEWS
    assert len({each.name for each in views.all_views()} & paths.PLANNED_VIEWS) == 0
    for name, (module, _) in commands.COMMANDS.items():
        import_module(module)
        assert main._IMPORTED[name].name == name
    assert main._IMPORTED.keys() == commands.COMMANDS.keys()
    assert {name for group in commands.GROUPS.values() for name in group} <= commands.COMMANDS.keys()
    for package, decorator, names in (
        ("avmfs.rpc", "method", methods.names()),
        ("avmfs.mcp", "tool", tools()),
        ("avmfs.store.commands", "command", store_commands.names()),
    ):
        assert len(registration.declarations(package, decorator)) == len(names)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "from avmfs.views import registry as r; r.view('odd', 'file', summary='s')(lambda ctx: ''); r.all_views()",
            "odd",
        ),
        ("from avmfs.cli.main import subcommand; subcommand('odd', 'Odd.')(lambda: None)", "odd"),
    ],
    ids=["view", "subcommand"],
)
def test_what_could_be_called_and_not_be_found_is_refused(code: str, reason: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "must begin a line" in done.stderr and reason in done.stderr


def test_a_package_without_sources_is_refused() -> None:
    with pytest.raises(RuntimeError, match="@nothing"):
        registration.declarations("avmfs.views", "nothing")


def test_only_plain_strings_are_read() -> None:
    assert registration._strings(b'("a", "b", c)\n') == ["a", "b"]
    assert registration._strings(b'(\n    "a",\n    "b",\n)\n') == ["a", "b"]
    assert registration._strings(b'("a", x="b")\n') == ["a"]
    assert registration._strings(b'("a")\ndef f(): "x"\n') == ["a"]
    assert registration._strings(b'(A, "b")\n') == registration._strings(b"\ndef f(): ...\n") == []
