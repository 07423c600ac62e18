"""The index of code of a real project: what a scan takes, its names beside ctags', its answers beside ripgrep's.

    python -m benchmarks.bench_code_index DIRECTORY [MORE ...]

The questions are about Django 5.2's unpacked sdist, which DIRECTORY has to be; ctags is compared over all. Needs
universal-ctags and rg. Seconds of the wall and of this process, which opens the store by itself.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avmfs_config import default_settings

from avmfs.codeindex import finding, scanning
from avmfs.rpc.local import LocalDoor
from avmfs.text import segment
from avmfs.transfer import exporting

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
QUESTIONS: tuple[tuple[str, str], ...] = (
    ("how is a password checked against its hash", "check_password|verify_password"),
    ("where are passwords hashed", r"make_password|\w*PasswordHasher(\.encode)?"),
    ("which middleware checks the CSRF token", r"CsrfViewMiddleware(\.\w+)?"),
    ("how does a URL resolve to a view", r"URL(Resolver|Pattern)\.resolve|resolve"),
    ("build a URL from the name of a view", r"reverse"),
    ("close database connections when a request ends", "close_old_connections"),
    ("run a function after the transaction commits", r"(\w+\.)?on_commit"),
    ("make a slug from text", "slugify"),
    ("shorten html after a number of words", r"truncatewords_html|Truncator\.words|TruncateWordsHTMLParser"),
    ("human readable file size", "filesizeformat"),
    ("parse a datetime from a string", "parse_datetime"),
    ("how much time has passed since a date", r"timesince(_filter)?"),
    ("split a long list into pages", r"Paginator(\.\w+)?"),
    ("detect which model changes need migrations", r"MigrationAutodetector(\.\w+)?"),
    ("record that a migration was applied", r"MigrationRecorder\.record_applied|\w+\.record_migration"),
    ("sign a value with the secret key", r"(Timestamp)?Signer(\.sign(_object)?)?|dumps"),
    ("generate a random secret key", "get_random_secret_key"),
    ("send an email to the administrators", "mail_admins"),
    ("email backend that talks SMTP", r"EmailBackend(\.\w+)?"),
    ("uploaded files that are kept in memory", "InMemoryUploadedFile|MemoryFileUploadHandler"),
    ("check that an email address is valid", r"EmailValidator(\.\w+)?|validate_email"),
    ("refuse passwords that are too common", r"CommonPasswordValidator(\.\w+)?"),
    ("fetch related objects ahead of time", r"prefetch_related_objects|QuerySet\.(prefetch|select)_related|Prefetch"),
    ("insert many objects with one query", r"QuerySet\.a?bulk_create"),
    ("get an object or create it", r"\w+\.a?get_or_create"),
    ("send a signal to its receivers", r"(Model)?Signal\.a?send(_robust)?"),
    ("restart the development server when code changes", r"run_with_reloader|\w*Reloader(\.\w+)?|trigger_reload"),
    ("how long may a session last", r"SessionBase\.get_(session_cookie|expiry)_(age|date)"),
    ("which language does the browser prefer", r"get_language_from_request|parse_accept_lang_header"),
    ("cache a whole page", r"cache_page|\w*CacheMiddleware(\.\w+)?"),
)  # fmt: skip


Names = dict[str, Counter[tuple[str, str]]]
Tags = dict[str, tuple[str, Counter[tuple[str, str]]]]


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


def compared(ours: Names, theirs: Tags) -> list[str]:
    met: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for source, (language, said) in theirs.items():
        if language not in KINDS:
            continue
        kinds = KINDS[language][0].split(",")
        named = [name for name, kind in said if kind in kinds and not name.startswith(("__anon", "anonymous"))]
        tags = {name.rpartition("::")[2] for name in named}
        mine = {name for (name, kind) in ours.get(source, Counter()) if kind in KINDS[language][1]}
        total = met[language]
        total[0] += 1
        total[1] += len(tags & mine)
        total[2] += len(tags)
        total[3] += len(mine)
    return [
        f"| {name} | {files:,} | {tags:,} | {mine:,} | {both / max(mine, 1):.3f} | {both / max(tags, 1):.3f} |"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("more", type=Path, nargs="*")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "django"
        shutil.copytree(given.directory, copy)
        store = Path(folder) / "avm.db"
        door = LocalDoor(store, default_settings(), "alice", embeddings=False)
        report, wall, cpu = timed(lambda: scanning.scan(door, "django", copy))
        files = sum(1 for each in copy.rglob("*") if each.is_file())
        print(f"files {files:,}, indexed {report.files:,}, symbols {report.symbols:,}, left out {report.left_out}")
        print(f"scan {wall:.1f} s, {cpu:.1f} s of processor")
        source = sum((copy / each).stat().st_size for each in names(door, "django"))
        changed = copy / "django/db/models/query.py"
        changed.write_text(changed.read_text() + "\n\ndef added_for_the_benchmark():\n    pass\n")
        again, wall, cpu = timed(lambda: scanning.scan(door, "django"))
        assert (again.changed, again.added) == (1, 0)
        print(f"after one changed file {wall:.2f} s, {cpu:.2f} s of processor")
        door.call("search", q="password", under="/index/django", mode="lexical")  # indexes the words
        notes = sum(each["size"] for each in exporting.told(door, "/index/django") if each["kind"] == "file")
        size = sum(each.stat().st_size for each in Path(folder).glob("avm.db*"))
        print(f"source {source / 1e6:.1f} MB, notes {notes / 1e6:.1f} MB, store {size / 1e6:.1f} MB")
        met = {"index": 0, "rg": 0}
        spent: list[float] = []
        defined = [each for each in finding.sigs(door, "django") if not each.source.startswith("tests/")]
        where = {
            question: {(each.source, each.symbol.line) for each in defined if re.fullmatch(wanted, each.symbol.name)}
            for question, wanted in QUESTIONS
        }
        assert all(where.values()), "a question about what is not there"
        for question, wanted in QUESTIONS:
            right = re.compile(rf"({wanted})\Z")
            found, wall, cpu = timed(lambda question=question: finding.find(door, question, "django", 5))  # type: ignore[misc]
            spent.append(cpu)
            mine = any(right.match(each.symbol.name) and not each.source.startswith("tests/") for each in found)
            lines = ripgrep(copy, question)
            theirs = any((path.removeprefix("./"), line) in where[question] for path, line, _ in lines)
            met["index"] += mine
            met["rg"] += theirs
            if given.verbose and not mine:
                print("   missed:", question, "->", [f"{each.source}:{each.symbol.name}" for each in found])
        median = sorted(spent)[len(spent) // 2]
        print(f"of {len(QUESTIONS)} questions: index {met['index']}, rg {met['rg']}; {median:.2f} s of processor each")
        print("| language | files | ctags | index | precision | recall |")
        for root in (copy, *given.more):
            project = re.sub(r"[^A-Za-z0-9.-]", "-", root.name)
            if root != copy:
                scanning.scan(door, project, root)
            ours = names(door, project)
            for line in compared(ours, ctags(root, list(ours))):
                print(f"{line} {root.name}")


if __name__ == "__main__":
    main()
