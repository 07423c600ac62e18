"""claude-md: MEMORY.md and CLAUDE.md of a tree of projects, and the notes beside a MEMORY.md. What such a file names
with ``@path`` or a Markdown link, and comes along, is linked."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from avmfs.transfer.files import files
from avmfs.transfer.formats import reader
from avmfs.transfer.record import Record, Refusal

NAMES: Final = ("CLAUDE.md", "CLAUDE.local.md", "MEMORY.md", "AGENTS.md", "GEMINI.md")
_PASSED: Final = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_NAMED: Final = re.compile(r"(?:^|\s)@([\w./~-]+)|\]\(([^)\s]+\.md)\)", re.MULTILINE)


@reader("claude-md", "a tree with MEMORY.md, CLAUDE.md, AGENTS.md")
def read(path: Path) -> Iterator[Record | Refusal]:
    """Of folders whose name begins with a dot as well: ``~/.claude`` is such a tree. Packages are passed over."""
    found: dict[str, Path] = {}
    for each in files(path, hidden=True):
        if isinstance(each, Refusal):
            there = path / each.where
            unread = os.path.isdir(there) and not there.is_symlink() and not _PASSED & {*there.parts}
            if unread or there.name in NAMES:
                yield each
            continue
        name, file = each
        beside = name.endswith(".md") and (file.parent / "MEMORY.md").is_file()
        if (file.name in NAMES or beside) and not _PASSED & {*name.split("/")}:
            found[name] = file
    for name, file in found.items():
        try:
            data, at = file.read_bytes(), file.stat().st_mtime_ns
        except OSError as e:
            yield Refusal(name, os.strerror(e.errno or 0))
            continue
        text, here = data.decode("utf-8", "replace"), posixpath.dirname(name)
        named = {posixpath.normpath(posixpath.join(here, one or other)) for one, other in _NAMED.findall(text)}
        links = tuple((target, "imports") for target in sorted(named & found.keys() - {name}))
        source = f"claude-md:{name}"
        yield Record(name, data, created=at, updated=at, links=links, source=source, folder=path, place=name)
