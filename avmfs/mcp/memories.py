"""The tool ``memory``: the commands of the memory tool that models are trained on (memory_20250818), over /memories.

Owns the mapping of /memories to the agent's own /memory/private/NAME/memories, the line arithmetic of the edits, and
the texts that models trained on that tool expect. A path that leaves /memories, by a link too, or that would name a
view, is refused before anything is read or changed.

An edit reads, changes, and writes only over just what it has read; where somebody else was faster, it begins anew with
the file as it is then, so that of two edits in the same instant none is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from pydantic import Field

from avmfs import paths
from avmfs.errors import AvmError, Exists, Invalid, IsDirectory, NotDirectory, NotFound, Stale
from avmfs.mcp.content import UNREADABLE, Content, read
from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.text.escapes import escaped
from avmfs.trust import heading

ROOT = "/memories"
WHOLE = 4_000_000  # bytes of a file that can be viewed or edited
LINES = 999_999
SHOWN_LEVELS, ENTRIES = 2, 10_000
AROUND = 4  # lines shown before and after an edit
TRIES = 20  # of an edit, while others keep changing the file

Where = Annotated[str | None, Field(description="Absolute, below /memories.")]


class Done(Result):
    command: str
    path: str


@tool("Memory directory", destroys=True)
def memory(
    call: Call,
    command: Literal["view", "create", "str_replace", "insert", "delete", "rename"],
    path: Where = None,
    view_range: Annotated[
        list[int] | None,
        Field(description="view: first and last line, from 1; -1 is the end.", min_length=2, max_length=2),
    ] = None,
    file_text: Annotated[str | None, Field(description="create: the content.")] = None,
    old_str: Annotated[str | None, Field(description="str_replace: what stands there, exactly once.")] = None,
    new_str: Annotated[str | None, Field(description="str_replace: what shall; nothing by default.")] = None,
    insert_line: Annotated[int | None, Field(description="insert: after this line; 0 is the beginning.")] = None,
    insert_text: Annotated[str | None, Field(description="insert: the text.")] = None,
    old_path: Annotated[str | None, Field(description="rename: from.")] = None,
    new_path: Annotated[str | None, Field(description="rename: to.")] = None,
) -> Answer[Done]:
    """Your own notes that last between conversations, as files below /memories that only you see.

    view PATH [view_range]; create PATH file_text; str_replace PATH old_str new_str;
    insert PATH insert_line insert_text; delete PATH; rename old_path new_path.
    Look at /memories before you begin a task, and note progress as you go.
    """
    given = {
        "path": path,
        "file_text": file_text,
        "old_str": old_str,
        "insert_line": insert_line,
        "insert_text": insert_text,
        "old_path": old_path,
        "new_path": new_path,
    }
    needed = {
        "view": ("path",),
        "create": ("path", "file_text"),
        "str_replace": ("path", "old_str"),
        "insert": ("path", "insert_line", "insert_text"),
        "delete": ("path",),
        "rename": ("old_path", "new_path"),
    }[command]
    if missing := [name for name in needed if given[name] is None]:
        raise Invalid(f"{command} needs {' and '.join(missing)}")
    where = old_path if command == "rename" else path
    assert where is not None
    # What removes or moves a name means a link itself, not what it leads to.
    place, named = _place(call, where, follow=command not in ("delete", "rename")), escaped(where)
    with _own_names(call):
        match command:
            case "view":
                text = _view(call, named, place, view_range)
            case "create":
                text = _create(call, named, place, file_text or "")
            case "str_replace":
                text = _replace(call, named, place, old_str or "", new_str or "")
            case "insert":
                text = _insert(call, named, place, insert_line or 0, insert_text or "")
            case "delete":
                text = _delete(call, named, place)
            case "rename":
                text = _rename(call, named, place, new_path or "")
    return Answer(text, Done(command=command, path=where))


@contextlib.contextmanager
def _own_names(call: Call) -> Iterator[None]:
    """An error that has no words of this tool names the place in the store."""
    try:
        yield
    except AvmError as e:
        if isinstance(e.filename, str):
            e.filename = e.filename.replace(_top(call), ROOT)
        raise


def _place(call: Call, path: str, *, follow: bool) -> str:
    """Where a path below /memories really is, by links among them and, where ``follow``, by that of its last name.
    Raises Invalid for one that leads out of it or names no file."""
    parts = path.split("/")
    if parts[:2] != ["", "memories"]:
        raise Invalid(f"{path!r} is not below {ROOT}")
    below = parts[2:-1] if parts[-1] == "" else parts[2:]
    for name in below:
        # Also in disguise: a client may have decoded %2e%2e, or not.
        plain = name.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\")
        if plain in ("", ".", "..") or "/" in plain or "\\" in plain or "\0" in name:
            raise Invalid(f"{path!r} is not below {ROOT}")
        paths.check_name(paths.raw(name))
    root = _top(call)
    place = str(call.door("locate", path="/".join([root, *below]), follow=follow or not below)["path"])
    if place != root and not place.startswith(f"{root}/"):
        raise Invalid(f"{path!r} leads out of {ROOT}")
    return place


def _top(call: Call) -> str:
    return f"/memory/private/{call.agent}/memories"


def _is_root(place: str) -> bool:
    return place.endswith("/memories") and place.count("/") == 4


def _view(call: Call, path: str, place: str, view_range: list[int] | None) -> str:
    try:
        found = _found(call, path, place)
    except IsDirectory:
        if view_range is not None:
            raise Invalid(f"{path} is a directory; view_range is for files") from None
        return _tree(call, path, place)
    except (NotFound, NotDirectory):
        if _is_root(place):  # nothing was ever kept
            return _heading(path) + f"0\t{path}\n"
        raise NotFound(f"The path {path} does not exist. Please provide a valid path.") from None
    lines = found.content.split("\n")
    if len(lines) > LINES:
        raise Invalid(f"File {path} exceeds maximum line limit of {LINES:,} lines.")
    first, last = (1, len(lines)) if view_range is None else (view_range[0], view_range[1])
    last = len(lines) if last == -1 else last
    if not 1 <= first <= last <= len(lines):
        raise Invalid(f"Invalid `view_range` parameter: {view_range}. The file has the lines [1, {len(lines)}]")
    above = f"Here's the content of {path} with line numbers:\n"
    return above + heading(found.untrusted) + _numbered(lines[first - 1 : last], first)


def _tree(call: Call, path: str, place: str) -> str:
    top = path.rstrip("/")
    lines, more = [], []
    waiting = [(place, top, SHOWN_LEVELS)]
    while waiting:
        real, shown, levels = waiting.pop()
        size, entries, total = "?", [], 0
        try:
            size = _size(_bytes_below(call, real))
            if levels:
                found = call.door("listing", path=real, limit=ENTRIES)
                entries, total = found["entries"], found["total"]
        except UNREADABLE:
            if real == place:
                raise
        lines.append(f"{size}\t{shown}\n")
        if total > len(entries):
            more.append(f"({total - len(entries)} more in {shown})\n")
        for entry in entries:
            name = entry["path"].rpartition("/")[2]
            if name.startswith(".") or name == "node_modules":
                continue
            if entry["kind"] == "directory":
                waiting.append((entry["path"], f"{shown}/{escaped(name)}", levels - 1))
            else:
                lines.append(f"{_size(entry['size'])}\t{shown}/{escaped(name)}\n")
    return _heading(path) + "".join(sorted(lines, key=lambda line: line.partition("\t")[2]) + more)


def _bytes_below(call: Call, directory: str) -> int:
    """Also of what is not listed: hidden, or deeper."""
    return int(json.loads(call.door("read", path=f"{directory}/:stats")["data"])["bytes"])


def _heading(path: str) -> str:
    return (
        f"Here're the files and directories up to {SHOWN_LEVELS} levels deep in {path}, "
        "excluding hidden items and node_modules:\n"
    )


def _create(call: Call, path: str, place: str, text: str) -> str:
    if _is_root(place):  # a file there would leave no room for any
        raise Invalid(f"Error: {path} is a directory")
    try:
        call.door("write", path=place, data=text.encode(), mode="create")
    except Exists:
        raise Exists(f"Error: File {path} already exists") from None
    except IsDirectory:
        raise Invalid(f"Error: {path} is a directory") from None
    return f"File created successfully at: {path}"


def _replace(call: Call, path: str, place: str, old: str, new: str) -> str:
    if not old:
        raise Invalid("No replacement was performed, old_str is empty.")

    def change(text: str) -> tuple[str, str]:
        count = text.count(old)
        if count == 0:
            raise Invalid(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
        if count > 1:
            numbers, at = [], text.find(old)
            while at >= 0:
                numbers.append(text.count("\n", 0, at) + 1)
                at = text.find(old, at + 1)
            raise Invalid(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{', '.join(map(str, numbers))}. Please ensure it is unique"
            )
        at = text.index(old)
        changed = text[:at] + new + text[at + len(old) :]
        first = text.count("\n", 0, at)
        return changed, "The memory file has been edited.\n" + _snippet(path, changed, first, new.count("\n"))

    return _edit(call, path, place, change, f"Error: The path {path} does not exist. Please provide a valid path.")


def _insert(call: Call, path: str, place: str, line: int, inserted: str) -> str:
    def change(text: str) -> tuple[str, str]:
        lines = _lines(text)
        if not 0 <= line <= len(lines):
            raise Invalid(
                f"Error: Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: "
                f"[0, {len(lines)}]"
            )
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\n"
        piece = inserted if inserted.endswith("\n") or line == len(lines) else inserted + "\n"
        changed = "".join([*lines[:line], piece, *lines[line:]])
        return changed, f"The file {path} has been edited.\n" + _snippet(
            path, changed, line, piece.rstrip("\n").count("\n")
        )

    return _edit(call, path, place, change, f"Error: The path {path} does not exist")


def _edit(call: Call, path: str, place: str, change: Callable[[str], tuple[str, str]], missing: str) -> str:
    """Write what ``change`` makes of the text, and answer with what it says of that. ``missing``: where there is no
    such file."""
    for _ in range(TRIES):
        try:
            found = _found(call, path, place)
        except (NotFound, NotDirectory, IsDirectory):
            raise NotFound(missing) from None
        changed, said = change(found.content)
        read = hashlib.sha256(found.content.encode()).digest()
        try:
            call.door("write", path=place, data=changed.encode(), mode="replace", instead_of=read)
        except Stale:
            continue
        return heading(found.untrusted) + said
    raise Stale(f"Error: {path} was changed by others {TRIES} times while it was edited. View it and try again")


def _delete(call: Call, path: str, place: str) -> str:
    if _is_root(place):
        raise Invalid(f"{ROOT} itself cannot be deleted")
    try:
        call.door("remove", path=place, recursive=True)
    except (NotFound, NotDirectory):
        raise NotFound(f"Error: The path {path} does not exist") from None
    return f"Successfully deleted {path}"


def _rename(call: Call, path: str, place: str, new_path: str) -> str:
    target, named = _place(call, new_path, follow=False), escaped(new_path)
    try:
        if _exists(call, target):  # a file has its own name already, which to move it to is no error
            raise Exists
        if not _exists(call, place):  # no directories are made for what is not there
            raise NotFound
        call.door("move", source=place, target=target, instead_of=b"")
    except Exists:
        raise Exists(f"Error: The destination {named} already exists") from None
    except (NotFound, NotDirectory):
        if _exists(call, place):
            raise NotDirectory(f"Error: The destination {named} is below what is no directory") from None
        raise NotFound(f"Error: The path {path} does not exist") from None
    return f"Successfully renamed {path} to {named}"


def _exists(call: Call, place: str) -> bool:
    """Also of a link that leads nowhere."""
    return bool(call.door("locate", path=place, follow=False)["exists"])


def _found(call: Call, path: str, place: str) -> Content:
    found = read(call, place, 0, WHOLE)
    if found.more:
        raise Invalid(f"{path} has more than {WHOLE} bytes; read it with avm_read")
    if found.encoding != "utf-8":
        raise Invalid(f"{path} is no text")
    return found


def _lines(text: str) -> list[str]:
    """With their line feeds. Not str.splitlines(), which also ends a line where ``view`` shows none: at a form feed,
    at U+2028."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _snippet(path: str, text: str, line: int, more: int) -> str:
    """The lines around an edit that begins at ``line`` (from 0) and has ``more`` further lines."""
    lines = text.split("\n")
    first = max(0, line - AROUND)
    return (
        f"Here's the part of {path} that was edited:\n{_numbered(lines[first : line + more + AROUND + 1], first + 1)}"
    )


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def _size(count: int) -> str:
    value = float(count)
    for unit in ("", "K", "M"):
        if value < 1024:
            return f"{value:.0f}{unit}" if not unit else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}G"
