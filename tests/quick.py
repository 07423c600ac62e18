"""Print the test files of the quick tier, one a line: the unit tests, and the contract tests of what changed.

Changed is what git says that differs from where this branch left main, with what is not committed and not yet known to
git. A contract test belongs to a module if it imports it by name, whether at its head or within. It is a guess that is
made in a second: ``./run test`` decides.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[1]
ROOTS = ("daemon", "config")  # packages that do not lie at the top


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints. Raises CalledProcessError."""
    done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed(base: str) -> set[Path]:
    """Return the files that differ from where this branch left ``base``, relative to the tree."""
    (left,) = git("merge-base", "HEAD", base)
    return {Path(name) for name in git("diff", "--name-only", left) + git("ls-files", "-o", "--exclude-standard")}


def module(path: Path) -> str:
    """Return the name by which tests import a file: avmfs.store.store, tests.contract.store_world."""
    parts = path.with_suffix("").parts
    return ".".join(parts[parts[0] in ROOTS :]).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Return every module that a file names in an import, and every name taken from one, dotted."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return found


def chosen(files: set[Path], tests: Path) -> list[Path]:
    """Return the tests of a folder that are themselves among the changed files or import one of them, as all of them
    import the folder's conftest.py."""
    modules = {module(path) for path in files if path.suffix == ".py"}
    conftest = tests / "conftest.py"
    fixtures = {"tests.conftest", module(conftest.relative_to(TREE))} | imports(conftest)
    return [
        path
        for path in sorted(tests.glob("test_*.py"))
        if path.relative_to(TREE) in files or (imports(path) | fixtures) & modules
    ]


if __name__ == "__main__":
    base = os.environ.get("AVM_BASE", "main")
    try:
        files = changed(base)
    except subprocess.CalledProcessError as e:
        sys.exit(f"{e.stderr.strip()}\nset AVM_BASE to the branch that this one is compared with")
    for path in (TREE / "tests/unit", *chosen(files, TREE / "tests/contract")):
        print(path.relative_to(TREE))
