"""An index of code of real projects: what a scan takes, its names beside ctags', its answers beside ripgrep's.

    python -m benchmarks.bench_code_index DIRECTORY [MORE ...]

Of each directory: the scan, the scan after one changed file, sizes, and names; of the sdists of Django, Celery, Scrapy
and ansible-core also how many of the questions of ``code_questions`` have a right symbol among the first five. Needs
universal-ctags and rg. Seconds of the wall and of this process, which opens the store by itself.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from avmfs_config import default_settings

from avmfs.codeindex import finding, scanning
from avmfs.embed.local import LocalEmbedding
from avmfs.rpc.local import LocalDoor
from avmfs.text import segment
from avmfs.transfer import exporting
from benchmarks.code_questions import ANSIBLE, CELERY, DJANGO, SCRAPY
from benchmarks.results import Report, Table, Value, machine, print_findings, write_json

# What each language has in common: ctags' kinds, and ours. ctags' names are without what they are in.
KINDS = {
    "Python": ("class,function,member", {"class", "function", "method"}),
    "JavaScript": ("class,function,method,generator", {"class", "function", "method"}),
    "TypeScript": (
        "class,function,method,interface,enum,alias",
        {"class", "function", "method", "interface", "enum", "type"},
    ),
    "Go": ("func,struct,interface,methodSpec,talias,type", {"function", "method", "struct", "interface", "type"}),
    "Rust": (
        "function,method,struct,enum,interface,typedef,macro",
        {"function", "method", "struct", "enum", "trait", "type", "macro"},
    ),
    "Java": ("class,interface,enum,method,annotation", {"class", "interface", "enum", "method"}),
    "C": ("function,struct,enum,union,typedef,macro", {"function", "struct", "enum", "union", "type", "macro"}),
    "C++": (
        "class,function,struct,enum,union,typedef,macro,namespace",
        {"class", "function", "method", "struct", "enum", "union", "type", "macro", "namespace"},
    ),
}
QUESTIONS = {"django": DJANGO, "celery": CELERY, "scrapy": SCRAPY, "ansible": ANSIBLE}
TESTS = ("tests/", "test/", "t/")
Names = dict[str, Counter[tuple[str, str]]]
Tags = dict[str, tuple[str, Counter[tuple[str, str]]]]


class Meaning:
    """A door without a model, and the model: it embeds nothing but what is asked."""

    def __init__(self, door: LocalDoor, embedder: LocalEmbedding) -> None:
        self.agent, self._door, self._embedder = door.agent, door, embedder

    def call(self, method: str, /, **arguments: Any) -> Any:
        if method != "nearness":
            return self._door.call(method, **arguments)
        vectors = self._embedder.embed_batch([arguments["q"], *arguments["texts"]]).vectors
        return {"cosines": (vectors[1:] @ vectors[0]).tolist(), "degraded": None}


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    out = work()
    return out, time.perf_counter() - wall, time.process_time() - cpu


def names(door: LocalDoor, project: str) -> dict[str, Counter[tuple[str, str]]]:
    """Of each file: (name without what it is in, kind)."""
    found: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for each in finding.sigs(door, project):
        found[each.source][each.symbol.name.rpartition(".")[2] or each.symbol.name, each.symbol.kind] += 1
    return found


def ctags(root: Path, sources: list[str]) -> dict[str, tuple[str, Counter[tuple[str, str]]]]:
    """Of each file: (language, names with their kind)."""
    done = subprocess.run(
        ["ctags", "--output-format=json", "--fields=+lK", "--langmap=C++:+.h", "-L", "-", "-f", "-"],
        cwd=root,
        input="\n".join(sources).encode(),
        capture_output=True,
        check=True,
    )
    found: dict[str, tuple[str, Counter[tuple[str, str]]]] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        tag = json.loads(line)
        _, counted = found.setdefault(tag["path"], (tag["language"], Counter()))
        counted[tag["name"], tag["kind"]] += 1
    return found


def compared(project: str, ours: Names, theirs: Tags) -> list[Sequence[Value]]:
    met: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for source, (language, said) in theirs.items():
        if language not in KINDS:
            continue
        kinds = KINDS[language][0].split(",")
        # What has no name in the source has one that ctags made up.
        named = [name for name, kind in said if kind in kinds and not re.match("(__)?anon", name, re.IGNORECASE)]
        tags = {name.rpartition("::")[2] for name in named}
        mine = {name for (name, kind) in ours.get(source, Counter()) if kind in KINDS[language][1]}
        total = met[language]
        total[0] += 1
        total[1] += len(tags & mine)
        total[2] += len(tags)
        total[3] += len(mine)
    return [
        (project, name, files, tags, mine, both / max(mine, 1), both / max(tags, 1))
        for name, (files, both, tags, mine) in sorted(met.items())
    ]


def ripgrep(root: Path, question: str) -> list[tuple[str, int, str]]:
    """Lines that define something, those first that have the most of the question's words; tests last."""
    words = segment.query_terms(question)
    pattern = r"^\s*(async\s+)?(def|class|function)\s+\w*(" + "|".join(map(re.escape, words)) + r")\w*"
    done = subprocess.run(["rg", "-ni", "--no-heading", pattern, "."], cwd=root, capture_output=True)
    lines = [line.split(":", 2) for line in done.stdout.decode("utf-8", "replace").splitlines()]

    def rank(line: list[str]) -> tuple[bool, int, int]:
        return "test" in line[0].lower(), -sum(word in line[2].lower() for word in words), len(line[2])

    return [(path, int(number), text) for path, number, text in sorted(lines, key=rank)[:5]]


def asked(
    door: LocalDoor, project: str, root: Path, questions: tuple[tuple[str, str], ...], verbose: bool
) -> Sequence[Value]:
    met = {"words": 0, "index": 0, "rg": 0}
    spent: list[float] = []
    embedder = LocalEmbedding(allow_download=False)
    embedder.load()
    defined = [each for each in finding.sigs(door, project) if not each.source.startswith(TESTS)]
    where = {
        question: {(each.source, each.symbol.line) for each in defined if re.fullmatch(wanted, each.symbol.name)}
        for question, wanted in questions
    }
    assert all(where.values()), [each for each in where if not where[each]]
    for question, _ in questions:
        by_words = finding.find(door, question, project, 5)
        met["words"] += any((each.source, each.symbol.line) in where[question] for each in by_words)
        meaning = Meaning(door, embedder)
        found, _, cpu = timed(partial(finding.find, meaning, question, project, 5))
        spent.append(cpu)
        mine = any((each.source, each.symbol.line) in where[question] for each in found)
        met["index"] += mine
        met["rg"] += any(
            (path.removeprefix("./"), line) in where[question] for path, line, _ in ripgrep(root, question)
        )
        if verbose and not mine:
            print("   missed:", question, "->", [f"{each.source}:{each.symbol.name}" for each in found])
    return project, len(questions), met["words"], met["index"], met["rg"], statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    named = " ".join(each.name for each in given.directories)
    facts = {**machine(), "what": "unpacked sdists of PyPI, source packages of Debian 12"}
    scans: list[Sequence[Value]] = []
    alike: list[Sequence[Value]] = []
    answers: list[Sequence[Value]] = []
    for directory in given.directories:
        with tempfile.TemporaryDirectory() as folder:
            project = re.sub(r"[^A-Za-z0-9.-]", "-", directory.name)
            root = Path(folder) / project
            shutil.copytree(directory, root, symlinks=True)
            door = LocalDoor(Path(folder) / "avm.db", default_settings(), "alice", embeddings=False)
            report, wall, cpu = timed(lambda: scanning.scan(door, project, root))  # noqa: B023
            ours = names(door, project)
            theirs = ctags(root, list(ours))
            source = sum((root / each).stat().st_size for each in ours)
            changed = root / max(ours, key=lambda each: len(ours[each]))
            changed.write_bytes(changed.read_bytes() + b"\n")
            again, wall_1, cpu_1 = timed(lambda: scanning.scan(door, project))  # noqa: B023
            assert (again.changed, again.added) == (1, 0)
            door.call("search", q="a", under=f"/index/{project}", mode="lexical")  # indexes the words
            notes = sum(each["size"] for each in exporting.told(door, f"/index/{project}") if each["kind"] == "file")
            size = sum(each.stat().st_size for each in Path(folder).glob("avm.db*"))
            files = sum(each.is_file() for each in root.rglob("*"))
            scans.append((project, files, report.files, report.symbols, wall, cpu, wall_1, cpu_1))
            scans[-1] = (*scans[-1], source / 1e6, notes / 1e6, size / 1e6)
            if questions := QUESTIONS.get(project.lower().partition("-")[0]):
                answers.append(asked(door, project, root, questions, given.verbose))
            alike += compared(project, ours, theirs)
            own = {each: said for each, said in theirs.items() if "/vendor/" not in each}
            alike += compared(f"{project}, but vendor/", ours, own) if len(own) < len(theirs) else []
            door.close()
    table = ("project", "files", "source files", "symbols", "scan s", "CPU s", "one file changed s", "CPU s")
    tables = [
        Table("scan", (*table, "source MB", "notes MB", "store MB"), scans),
        Table("names beside ctags'", ("project", "language", "files", "ctags", "index", "precision", "recall"), alike),
        Table(
            "a right symbol among five",
            ("project", "questions", "by words", "and by meaning", "ripgrep's best", "CPU s each"),
            answers,
        ),
    ]
    command = f"python -m benchmarks.bench_code_index {named}"
    made = Report("code_index", "an index of code", command, facts, [each for each in tables if each.rows])
    print_findings(made)
    if given.json:
        write_json(given.json, made)


if __name__ == "__main__":
    main()
