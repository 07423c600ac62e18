"""What the README shows exists: commands parse, and the generated tables are up to date."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from avmfs_daemon.main import cli as daemon

from avmfs.cli.commands import COMMANDS, GROUPS
from avmfs.cli.main import avm
from avmfs.embed.weights import PACKAGE as WEIGHTS
from avmfs.mcp.main import avm_mcp as avm_mcp
from benchmarks.results import read_json
from tests import references

TREE = Path(__file__).parents[2]
README = (TREE / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    """Every line of a console or shell example that calls one of the programs."""
    lines = []
    for language, block in BLOCKS:
        for line in block.splitlines():
            said = line.removeprefix("$ ") if language == "console" and line.startswith("$ ") else line
            if language in ("sh", "console") and (language == "sh" or line.startswith("$ ")):
                lines.append(said)
            elif (found := re.search(r"bin/(avm-daemon \w+)$", line)) is not None:  # the service file
                lines.append(found[1])
    inline = re.findall(r"`(avm(?:-daemon)? [a-z][^`]*)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    return [line for line in [*lines, *inline] if re.match(r"avm(-daemon)? ", line)]


def parse(line: str) -> None:
    """As click would, without running it. Raises UsageError."""
    program, *arguments = shlex.split(line, comments=True)
    group = {"avm": avm, "avm-daemon": daemon}[program]
    with group.make_context(program, arguments, resilient_parsing=False) as context:
        assert isinstance(group, click.Group)
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None and name is not None
        command.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("line", commands())
def test_the_commands_of_the_examples_exist_with_their_options(line: str) -> None:
    parse(line)


def test_the_recording_is_of_the_commands_that_are_shown_and_the_picture_of_the_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TREE / "examples"))
    import recording

    recorded = recording.CAST.read_text("utf-8")
    shown = "".join(json.loads(line)[2] for line in recorded.splitlines()[1:])
    assert [line.removeprefix("$ ") for line in shown.split("\r\n") if line.startswith("$ ")] == recording.commands()
    assert "trim NVDA before earnings.\r\n  RSI at 72" in shown  # what the recall found
    assert recording.picture(recorded) == recording.PICTURE.read_text("utf-8")
    import recording_top

    _, *told = map(json.loads, recording_top.CAST.read_text("utf-8").splitlines())
    assert recording_top.picture([(at, said) for at, _, said in told]) == recording_top.PICTURE.read_text("utf-8")


def test_the_dockerfile_calls_what_there_is() -> None:
    lines = (TREE / "Dockerfile").read_text("utf-8").splitlines()
    program, *options = json.loads(next(line for line in lines if line.startswith("CMD ")).removeprefix("CMD "))
    assert program == "avm-mcp"
    avm_mcp.make_context(program, options).close()
    assert any(line.startswith("RUN") and line.endswith(WEIGHTS.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize(("name", "line"), [pair for group in GROUPS.values() for pair in group.items()])
def test_the_example_of_a_command_is_one(name: str, line: str) -> None:
    with click.Context(avm, info_name="avm") as above:
        command = avm.get_command(above, name)
        assert command is not None
        assert line in command.get_help(click.Context(command, parent=above, info_name=name))
    said = re.search(rf"\bavm {name}\b[^<|)]*", line)
    assert said is not None
    parse(said[0])


def test_there_are_examples_and_a_wrong_one_would_be_noticed() -> None:
    assert len(commands()) >= 8 and {line.split()[0] for line in commands()} == {"avm", "avm-daemon"}
    for wrong in ("avm nonsense", "avm recall x --nonsense", "avm-daemon nonsense", "avm tell"):
        with pytest.raises(click.UsageError):
            parse(wrong)


def test_the_list_of_commands_is_the_list_of_commands() -> None:
    said = re.search(r"Commands today: `([^`]+)`", README)
    assert said is not None and said[1].split() == [*COMMANDS]


def test_no_tilde_is_quoted_in_an_example() -> None:
    """The shell would take it as the name of a directory."""
    assert not re.search(r"""['"]~/""", "".join(block for language, block in BLOCKS if language in ("sh", "console")))


def test_what_it_says_of_recall_is_what_was_measured() -> None:
    (table,) = read_json(TREE / "benchmarks/results/recall_quality.json").tables
    (row,) = (row for row in table.rows if str(row[0]).startswith("locomo,"))
    share = row[list(table.columns).index("c1000")]
    said = re.search(r"(\d+) % of the evidence stands within 1,000 tokens", README)
    assert said is not None and isinstance(share, float) and said[1] == f"{100 * share:.0f}"


def test_what_run_is_said_to_do_it_can_do() -> None:
    script = (TREE / "run").read_text()
    for name in {found for _, block in BLOCKS for found in re.findall(r"^\./run (\w+)", block, re.MULTILINE)}:
        assert re.search(rf"^    {name}\)", script, re.MULTILINE), name


@pytest.mark.parametrize("path", references.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == references.pages()[path], "run: ./run docs"


def test_files_that_are_linked_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (TREE / target).exists(), target
