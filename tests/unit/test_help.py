"""avm help: the documents that messages name are topics, and the package has them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from avmfs.cli import helping
from avmfs.cli.commands import COMMANDS
from avmfs.cli.main import avm

TREE = Path(__file__).parents[2]
CODE = [path for part in ("avmfs", "daemon", "config") for path in sorted((TREE / part).rglob("*.py"))]


def texts(path: Path) -> Iterator[str]:
    """Every string of a program but its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("topic", helping.TOPICS)
def test_every_topic_has_a_text_that_the_wheel_contains(topic: str) -> None:
    assert helping.document(topic).startswith("# ")
    built = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied, (file, _) = built["force-include"], helping.TOPICS[topic]
    assert copied.get(f"docs/{file}", copied.get("docs/guides", "")) in (f"avmfs/docs/{file}", "avmfs/docs/guides")
    if not file.startswith("guides/"):
        assert copied[f"docs/{file}"] == f"avmfs/docs/{file}"


def test_messages_name_topics_and_not_files() -> None:
    """A wheel has no docs/ beside it."""
    said = {path: list(texts(path)) for path in CODE}
    files = [(path.name, text) for path, all_ in said.items() for text in all_ if re.search(r"docs/\w+\.md", text)]
    assert [
        (name, text) for name, text in files if not text.strip().startswith("--") and "create table" not in text
    ] == []
    named = {topic for all_ in said.values() for text in all_ for topic in re.findall(r"avm help ([a-z-]+)", text)}
    assert {"security", "embedding", "audit"} <= named <= {*helping.TOPICS, *COMMANDS}


def test_a_topic_a_file_and_a_command_are_found_and_nothing_else() -> None:
    run = CliRunner().invoke
    for asked in ("security", "SECURITY", "docs/SECURITY.md"):
        assert run(avm, ["help", asked]).output == helping.document("security")
    assert run(avm, ["help", "tell"]).output.startswith("Usage: avm tell ")
    wrong = run(avm, ["help", "securty"])
    assert wrong.exit_code == 2 and "Did you mean security?" in wrong.output
    listed = run(avm, ["help"]).output
    assert all(f"  {topic} " in listed for topic in helping.TOPICS)
