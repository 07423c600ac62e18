"""Which files of a project are its source.

Owns what is left out: what .gitignore names, links, what is large, made by a program, or no text. .gitignore is read
here and git is not asked: the answer is the same where there is no repository (an unpacked release) and no git.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from avmfs.codeindex.languages import BY_SUFFIX
from avmfs.errors import Invalid
from avmfs.extras import bring

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LARGE: Final = 1024 * 1024
_NEVER: Final = frozenset(("node_modules", "__pycache__", "venv", "site-packages"))
_MADE: Final = re.compile(
    rb"(?i)@generated|do not (?:edit|modify)[^\n]{0,40}generated|generated[^\n]{0,80}do not (?:edit|modify)"
    rb"|auto-?generated (?:by|from|file|code)"
)
_LONG_LINE: Final = 400  # bytes a line: a program packed it


def files(root: Path, left_out: Counter[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Paths below ``root`` that have a language's suffix and may be read, in the order of their names; what is left out
    is counted by reason. Links are not followed, so there is no loop. Raises Invalid for what is no directory."""
    try:
        import pathspec
    except ImportError:
        raise Invalid(f"the index of code needs its parsers (pathspec): {bring('index')}") from None
    if not root.is_dir():
        raise Invalid("not a directory", os.fspath(root))
    waiting: list[tuple[str, list[tuple[str, GitIgnoreSpec]]]] = [("", [])]
    while waiting:
        below, rules = waiting.pop()
        try:
            with os.scandir(root / below) as listed:
                entries = sorted(listed, key=lambda each: each.name, reverse=True)
        except OSError:
            left_out["unreadable"] += 1
            continue
        if any(each.name == ".gitignore" and each.is_file(follow_symlinks=False) for each in entries):
            rules = [*rules, (below, pathspec.GitIgnoreSpec(_patterns(root / below / ".gitignore", left_out)))]
        folders = []
        for each in reversed(entries):
            path = below + each.name
            folder = each.is_dir(follow_symlinks=False)
            wanted = folder or os.path.splitext(each.name)[1].lower() in BY_SUFFIX
            if not wanted or (folder and (each.name.startswith(".") or each.name in _NEVER)):
                continue
            if not each.name.isprintable():  # of bytes that are no text, too
                left_out["name"] += 1
            elif each.is_symlink():
                left_out["link"] += 1
            elif _ignored(path + "/" * folder, rules):
                left_out["ignored"] += 1
            elif folder:
                folders.append((path + "/", rules))
            else:
                with suppress(FileNotFoundError):  # since it was listed
                    if stat.S_ISREG((found := each.stat(follow_symlinks=False)).st_mode):
                        yield path, found
        waiting += reversed(folders)


def text(path: Path, size: int, left_out: Counter[str]) -> bytes | None:
    """The bytes of a source file; None where it is left out."""
    reason = "large" if size > LARGE else ""
    data = b""
    if not reason:
        try:
            data = path.read_bytes()
        except OSError:
            reason = "unreadable"
    if not reason:
        lines = data.count(b"\n") + 1
        packed = len(data) > 4096 and len(data) / lines > _LONG_LINE
        reason = "not text" if b"\0" in data else "generated" if packed or _MADE.search(data[:2000]) else ""
    if reason:
        left_out[reason] += 1
    return None if reason else data


def _patterns(gitignore: Path, left_out: Counter[str]) -> list[Any]:
    """Its lines, but for those that are no pattern: git has these match nothing."""
    import pathspec

    found: list[Any] = []
    try:
        for line in gitignore.read_text("utf-8", "replace").splitlines():
            try:
                found += pathspec.GitIgnoreSpec.from_lines([line]).patterns
            except (ValueError, re.error):
                left_out["no pattern"] += 1
    except OSError:
        left_out["unreadable"] += 1
    return found


def _ignored(path: str, rules: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """The last rule that names it decides, those of the nearest .gitignore last."""
    said = False
    for below, rule in rules:
        included = rule.check_file(path[len(below) :]).include
        said = said if included is None else included
    return said
