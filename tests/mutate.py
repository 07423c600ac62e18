"""Does a test notice when the code is wrong? ``./run mutate [-n N] [--seed S] [--room ROOM] [-j COPIES] [--list]``

Owns the mutation run: one small change to a module at a time, in a copy of the checkout, and the tests that guard the
module. A mutation that no test notices has *survived*: it is given a test, or shown to change nothing and listed in
``equivalent_mutants.txt`` with the reason. Child processes of the tests import the copy too. A module's constants are
left alone (how long, how many: a matter of measuring), as are texts, unless they are SQL. Of tests for each mode of the
store, those in one process are run; of those, the ones that execute what was changed (coverage.py tells which).

Each row of the table: room, place, mutation, and the test that noticed. Exit code 1 when more than 3 % survive.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
SURVIVORS = 0.03
LEAST_S, TIMES = 30.0, 3  # a mutant may hang: so long, and so many times what the room's tests take without it

_GENERAL = "contract/test_store.py contract/test_permissions.py unit/test_policy_everywhere.py"
# By room: its modules, the tests that are asked first, and those that are asked about what these have not noticed.
ROOMS: dict[str, tuple[str, str, str]] = {
    "access": ("access store/rows/scopes", "unit/test_access.py unit/test_policy_everywhere.py", _GENERAL),
    "writer": (
        "store/writer/loop store/writer/scheduler store/writer/wal_sync store/writer/applier",
        "unit/test_turns.py contract/test_loop.py contract/test_wal_sync.py contract/test_applier.py"
        " contract/test_durable.py",
        "contract/test_store_opening.py contract/test_news.py contract/test_store_piecemeal.py contract/test_sinks.py"
        " contract/test_permissions.py contract/test_writer.py",
    ),
    "versions": (
        "store/commands/versions",
        "contract/test_store_documents.py contract/test_store_content.py contract/test_applier.py",
        "contract/test_known_hits.py contract/test_store_search.py contract/test_store_veils.py contract/test_events.py"
        f" contract/test_store_past.py unit/test_discovery.py unit/test_views_history.py {_GENERAL}",
    ),
    "mail": (
        "store/commands/messages store/queries/mail store/rows/mail_limits",
        "contract/test_store_mail.py unit/test_views_messages.py",
        _GENERAL,
    ),
    "claims": (
        "store/commands/claims store/client/inflight",
        "unit/test_claims.py unit/test_inflight.py contract/test_lanes.py contract/test_store_work.py"
        " unit/test_frontend_successors.py",
        _GENERAL,
    ),
    "content": (
        "store/rows/content",
        "unit/test_content.py contract/test_store_content.py",
        f"contract/test_store_documents.py contract/test_store_piecemeal.py {_GENERAL}",
    ),
    "packing": (
        "search/pack",
        "unit/test_pack_choices.py unit/test_pack.py",
        "unit/test_views_finding.py unit/test_search.py unit/test_views_formats.py",
    ),
}

_PAIRS = (
    "Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In Lt:LtE LtE:Lt Gt:GtE GtE:Gt And:Or Or:And"
    " Add:Sub Sub:Add Mult:FloorDiv FloorDiv:Mult BitOr:BitAnd"
)
_OTHER = dict(re.findall(r"(\w+):(\w+)", _PAIRS))
_SQL = re.compile(r"\b(select|update|delete|insert|where|order by|returning|values)\b| [<>=] ?\?")
_IN_SQL = re.findall(
    r"([^~|]+)~([^|]*)",
    " and ~ or | or ~ and |<=~<|>=~>| < ~ <= | > ~ >= | = ?~ <> ?|is null~is not null|is not null~is null|min(~max("
    "|max(~min(| desc~|not exists~exists| + 1~ + 2| - 1~",
)
_UNTOLD = re.compile(r"log\.|super\(|self\._(took|recent)\.append")  # nothing to be noticed


@dataclass(frozen=True)
class Mutation:
    room: str
    path: str
    line: int
    last: int
    where: str  # function
    old: str  # lines
    new: str
    start: int  # of the bytes that are replaced
    stop: int
    by: bytes

    @property
    def text(self) -> str:
        """What differs, with a few letters around it."""
        old, new = (" ".join(each.split()) for each in (self.old, self.new))
        least = min(len(old), len(new))
        begin = next((at for at in range(least) if old[at] != new[at]), least)
        end = next((at for at in range(least - begin) if old[-1 - at] != new[-1 - at]), least - begin)
        shown = (each[max(0, begin - 30) : len(each) - max(0, end - 30)] for each in (old, new))
        return f"{self.where}: {' -> '.join(shown)}"

    def made(self, source: bytes) -> bytes:
        return source[: self.start] + self.by + source[self.stop :]


def _changes(node: ast.AST, source: str) -> Iterator[str | ast.AST]:
    """What may stand instead of a node."""
    match node:
        case ast.Compare(left, ops, right):
            for place, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:place], _other(op), *ops[place + 1 :]], right)
            if len(ops) == 1 and isinstance(ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                yield ast.UnaryOp(ast.Not(), node)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(_other(op), values)
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(ast.Not(), operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.BinOp(left, op, right) if type(op).__name__ in _OTHER and not _is_text(left):
            yield ast.BinOp(left, _other(op), right)
        case ast.IfExp(test, one, other):
            yield ast.IfExp(test, other, one)
        case ast.Call(ast.Name(called) as function, [ast.Name() | ast.Attribute() as one, second, *rest], keywords):
            if called not in ("max", "min", "isinstance", "getattr"):
                yield ast.Call(function, [second, one, *rest], keywords)
        case ast.Constant(bool() as value):
            yield repr(not value)
        case ast.Constant(int() as value):
            yield repr(value + 1)
        case ast.Constant(str() as value) if _SQL.search(value):
            for old, new in _IN_SQL:
                for hit in re.finditer(re.escape(old), source):
                    yield source[: hit.start()] + new + source[hit.end() :]
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield "return None"
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            if not _UNTOLD.match(ast.unparse(node)):
                yield "pass"
        case ast.Continue() | ast.Break():
            yield "pass"


def _other(op: ast.AST) -> Any:
    return getattr(ast, _OTHER[type(op).__name__])()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _nodes(node: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST]]:
    """(function, what may be changed in it): no annotations, decorators, assertions, messages and documentation; of a
    module itself its SQL alone."""
    children = [*ast.iter_child_nodes(node)]
    match node:
        case ast.Module(body=body):
            children = body[ast.get_docstring(node) is not None :]
        case ast.FunctionDef(name=name, args=given, body=body):
            where = f"{where}.{name}".lstrip(".")
            body = body[1:] if ast.get_docstring(node, clean=False) is not None else body
            children = [*given.defaults, *filter(None, given.kw_defaults), *body]
        case ast.ClassDef(name=name, body=body):
            children = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
            where = f"{where}.{name}".lstrip(".")
        case ast.AnnAssign(value=value):
            children = [value] if value is not None else []
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.keyword(arg="strict"):  # of zip: as an assertion
            children = []
    if where or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield where or "(module)", node
    for child in children:
        yield from _nodes(child, where)


def mutations(room: str) -> list[Mutation]:
    found = []
    for path in (f"avmfs/{name}.py" for name in ROOMS[room][0].split()):
        source = (ROOT / path).read_bytes()
        begins = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
        for where, node in _nodes(ast.parse(source)):
            if isinstance(node, ast.expr | ast.stmt):
                start = begins[node.lineno - 1] + node.col_offset
                last = node.end_lineno or node.lineno
                stop = begins[last - 1] + (node.end_col_offset or 0)
                begin, end = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", stop)
                for new in _changes(node, source[start:stop].decode()):
                    by = (new if isinstance(new, str) else f"({ast.unparse(new)})").encode()
                    lines = source[begin:end].decode(), (source[begin:start] + by + source[stop:end]).decode()
                    each = Mutation(room, path, node.lineno, last, where, *lines, start, stop, by)
                    with contextlib.suppress(SyntaxError):
                        ast.parse(each.made(source))
                        found.append(each)
    return found


@dataclass
class Guards:
    """What guards a room: its tests, those asked first in front, and which of them execute which line."""

    seconds: float = 0.0  # all of them, with nothing changed
    tests: list[str] = field(default_factory=list)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)  # by path

    def of(self, mutation: Mutation) -> list[str]:
        """Tests that execute what is changed; all where the module executes it as it is read: its SQL, defaults."""
        lines = self.lines.get(mutation.path, {})
        there = {test for line in range(mutation.line, mutation.last + 1) for test in lines.get(line, ())}
        return self.tests if "" in there else [test for test in self.tests if test in there]


class Copy:
    """The checkout as it is, for one mutation after the other."""

    def __init__(self, where: Path) -> None:
        self.root = where
        listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, text=True)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (where / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, where / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "avmfs", "daemon", "config"], cwd=where, check=True)
        self.environ = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.environ["PYTHONPATH"] = os.pathsep.join(str(where / each) for each in ("", "daemon", "config"))
        self.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant must not be taken for what stood there before
        asked = [sys.executable, "-c", "import avmfs; print(avmfs.__file__)"]
        there = subprocess.check_output(asked, env=self.environ, cwd="/", text=True)
        assert there.startswith(f"{where}/"), f"tests would import {there}"

    def run(self, tests: list[str], limit_s: float, *options: str) -> tuple[str | None, float]:
        """The test that failed first, None for none; and the seconds that it took."""
        began = time.monotonic()
        usual = f"-x -q --no-header -p no:cacheprovider --tb=line --timeout={limit_s} --basetemp={self.root}/tmp"
        command = [sys.executable, "-m", "pytest", *usual.split(), "-k", "not attached", *options, *tests]
        there = self.root / "tests"
        process = subprocess.Popen(
            command,
            cwd=there,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=limit_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # fixtures put away what they made
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=LEAST_S)
            said = "FAILED (no end)"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert "file or directory not found" not in said, said
        took = time.monotonic() - began
        hit = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.M)
        return (None if process.returncode == 0 else hit[1] if hit else said[-300:]), took

    def guards(self, room: str) -> Guards:
        """Runs a room's tests with nothing changed."""
        names, *files = ROOMS[room]
        found = self.root / f"{room}.coverage"
        found.with_suffix(".ini").write_text(f"[run]\ndata_file = {found}\n")
        self.environ["COVERAGE_CORE"] = "ctrace"  # the one that tells tests apart
        sources = [f"--cov={self.root}/avmfs/{Path(name).parent}" for name in names.split()]
        options = [f"--cov-config={found.with_suffix('.ini')}", "--cov-context=test", "--cov-report="]
        failed, took = self.run(" ".join(files).split(), 1800, *dict.fromkeys(sources), *options)
        if failed is not None:
            sys.exit(f"without any mutation {failed} fails")
        data, guards = CoverageData(str(found)), Guards(took)
        data.read()
        for path in (f"avmfs/{name}.py" for name in names.split()):
            told = data.contexts_by_lineno(str(self.root / path))
            guards.lines[path] = {
                line: [each.partition("|")[0].removeprefix("tests/") for each in tests] for line, tests in told.items()
            }
        known = {test for lines in guards.lines.values() for tests in lines.values() for test in tests} - {""}
        order = {name: place for place, name in enumerate(" ".join(files).split())}
        guards.tests = sorted(known, key=lambda test: (order[test.partition("::")[0]], test))
        return guards

    def ask(self, mutation: Mutation, guards: Guards) -> tuple[str | None, float]:
        """The test that notices a mutation, None for none; and the seconds that it took."""
        there, tests = self.root / mutation.path, guards.of(mutation)
        if not tests:
            return None, 0.0  # no test comes here
        source = there.read_bytes()
        for stale in (there.parent / "__pycache__").glob(f"{there.stem}.*"):
            stale.unlink()
        there.write_bytes(mutation.made(source))
        try:
            return self.run(tests, max(LEAST_S, TIMES * guards.seconds))
        finally:
            there.write_bytes(source)


def equivalent() -> set[str]:
    """Path and text of what changes nothing."""
    rows = Path(__file__).with_name("equivalent_mutants.txt").read_text().splitlines()
    return {row.rpartition(" # ")[0] for row in rows if not row.startswith("#")}


def sample(rooms: list[str], count: int, seed: int) -> list[Mutation]:
    """From each room as many as from any other, as long as there are."""
    known = equivalent()
    drawn = [random.Random(f"{seed} {room}").sample(found := mutations(room), len(found)) for room in rooms]
    even = (each for row in itertools.zip_longest(*drawn) for each in row if each is not None)
    return list(itertools.islice((each for each in even if f"{each.path} {each.text}" not in known), count))


def _row(mutation: Mutation, noticed: str) -> str:
    what = mutation.text.replace("|", "\\|")
    return f"| {mutation.room} | {mutation.path}:{mutation.line} | {what} | {noticed} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=150, help="mutations (150)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", choices=[*ROOMS])
    parser.add_argument("--list", action="store_true", help="only what there would be to do")
    parser.add_argument("-j", type=int, default=2, metavar="COPIES", help="so many at a time (2)")
    asked = parser.parse_args()
    chosen = sample(asked.room or [*ROOMS], asked.n, asked.seed)
    if asked.list:
        for each in chosen:
            print(_row(each, ""))
        return 0
    copies: SimpleQueue[Copy] = SimpleQueue()
    guards: dict[str, Guards] = {}

    def with_copy(work: Callable[[Copy], Any]) -> Any:
        copy = copies.get()
        try:
            return work(copy)
        finally:
            copies.put(copy)

    def guard(room: str) -> None:
        guards[room] = with_copy(lambda copy: copy.guards(room))

    with tempfile.TemporaryDirectory(prefix="avmm-", dir="/tmp") as name, ThreadPoolExecutor(asked.j) as pool:
        for place in range(asked.j):
            copies.put(Copy(Path(name) / str(place)))
        deque(pool.map(guard, {each.room: None for each in chosen}), 0)
        print("| room | place | mutation | noticed by |\n|---|---|---|---|", flush=True)
        survivors = 0
        told = pool.map(lambda each: with_copy(lambda copy: copy.ask(each, guards[each.room])), chosen)
        for each, (failed, took) in zip(chosen, told, strict=True):
            survivors += failed is None
            print(_row(each, f"{'**survived**' if failed is None else failed} ({took:.0f} s)"), flush=True)
    print(f"\n{len(chosen)} mutations, seed {asked.seed}: {survivors} survived ({survivors / max(1, len(chosen)):.1%})")
    return int(survivors > SURVIVORS * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
