"""Out of a store: records of all below a path, as a door tells them."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from avmfs import wire
from avmfs.errors import Busy, IsDirectory, NotDirectory, NotFound, TooBig
from avmfs.transfer.record import IMPORTED, Door, Record, known

_FILE, _EXECUTABLE, _LINK = 0o100644, 0o100755, 0o120000
_GONE = (NotFound, IsDirectory, NotDirectory)  # another thing may have its name by now
HALFWAY: Final = "it was changed each time that it had been read halfway"
GITS: Final = "git checks out no such name (tar has all)"
_GITS = re.compile(r"(?is)(?:\A|/)(?:\.git|git~1)[. ]*(?:[:\\][^/]*)?(?=/|\Z)")  # with those that NTFS takes for .git


@dataclass(slots=True)
class Step:
    """What one agent did at a time (ns): ``written`` are (path, mode as git has it, bytes), ``renamed`` (old, new)."""

    at: int
    agent: str
    says: str
    gone: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    written: list[tuple[str, int, bytes]] = field(default_factory=list)


class _Tree:
    """Files as git has them after the steps until now: one document at a path, and nothing below it."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, tuple[int, bytes]]] = {}  # document, (mode, digest)
        self.placed: dict[int, str] = {}
        self._directories: set[str] = set()  # that there are or were: all files are looked through for these alone

    def below(self, path: str) -> list[str]:
        """What is there, or all that is below it."""
        if path in self.files:
            return [path]
        return [name for name in self.files if _within(name, path)] if path in self._directories else []

    def leave(self, path: str) -> list[str]:
        gone = self.below(path)
        for name in gone:
            del self.placed[self.files.pop(name)[0]]
        return gone

    def put(self, path: str, document: int, what: tuple[int, bytes]) -> None:
        """In place of what cannot be beside it, as git has it."""
        self.leave(path)
        parent = path
        while (parent := posixpath.dirname(parent)) not in ("", "/"):
            if parent in self.files:
                self.leave(parent)
            self._directories.add(parent)
        self.files[path], self.placed[document] = (document, what), path

    def move(self, was: str, path: str) -> bool:
        """False where nothing was there."""
        moved = [(path + name[len(was) :], *self.files[name]) for name in self.below(was)]
        self.leave(was)
        self.leave(path)
        for each in moved:
            self.put(*each)
        return bool(moved)


def root_of(door: Door, path: str) -> str:
    """Where a path leads. Raises NotFound."""
    return str(door.call("records", path=path, limit=1)["root"])


def how_many(door: Door, path: str) -> int:
    """Files at or below a path. Raises NotFound."""
    directory = door.call("records", path=path, limit=1)["kind"] == "directory"
    return int(door.call("index_status", path=path)["files"]) if directory else 1


def told(door: Door, path: str, **wanted: bool) -> Iterator[dict[str, Any]]:
    """What the door says of each node below a path. Raises NotFound."""
    after = None
    while True:
        page = door.call("records", path=path, after=after, **wanted)
        yield from page["records"]
        if (after := page["next"]) is None:
            return


def records(door: Door, path: str, left: dict[str, str] | None = None) -> Iterator[Record]:
    """With their bytes. What goes while it is exported is left out; ``left`` as for ``_now``."""
    root = root_of(door, path)
    for each in told(door, path, data=True):
        if each["kind"] == "file" and "data" not in each:
            if (data := _now(door, each["path"], left)) is None:
                continue
            each["data"] = data
        yield record(each, root)


def record(each: dict[str, Any], root: str) -> Record:
    path = relative(each["path"], root)
    if each["kind"] != "file":
        mode = each["mode"] if each["kind"] == "directory" else None
        return Record(path, target=each.get("target"), mode=mode, updated=each["mtime"])
    return known(
        Record(
            path,
            data=each.get("data", b""),
            mode=each["mode"],
            author=each["author"],
            created=each["created"],
            updated=each["mtime"],
            tags=tuple(each["tags"]),
            links=tuple((relative(target, root), type) for target, type in each["links"]),
            importance=each["importance"],
            expires=each["expires"],
            shared=None if each["shared"] is None else tuple(each["shared"]),
            meta=each["user"],
            sources=tuple(each["sources"]),
            released=each["released"],
        )
    )


def relative(path: str, root: str) -> str:
    """``path`` below ``root``, or as it is where it lies elsewhere. Of a file that is itself the root, its name."""
    if path == root:
        return posixpath.basename(path)
    return path.removeprefix(root.rstrip("/") + "/")


def contents(door: Door, path: str) -> bytes:
    try:
        return wire.pieces(lambda offset: door.call("read", path=path, offset=offset, banner=False))
    except Busy as e:
        raise Busy(e.reason, path) from None


def _now(door: Door, path: str, left: dict[str, str] | None) -> bytes | None:
    """A file's bytes, None where it has gone. Of one that is another each time that it has been read halfway ``left``
    gets the path, and why; without it, raises Busy."""
    try:
        return contents(door, path)
    except _GONE:
        return None
    except Busy:
        if left is None:
            raise
        left[path] = HALFWAY
        return None


def history(door: Door, path: str, left: dict[str, str] | None = None) -> Iterator[Step]:
    """How what is there now came to be, oldest first: each version that is kept, at the path that it had, by its
    author, and the renames between. What was removed has left no bytes. The last step makes the tree as it is, where
    versions are not kept any more, or not for this asker; of what is in ``left`` (see ``_now``), as they are. What is
    in a repository's own directory is as if it lay elsewhere."""
    root = root_of(door, path)
    now: dict[str, dict[str, Any]] = {}
    for each in told(door, path):
        if each["kind"] == "directory":
            continue
        if (own := _gits(each["path"], root)) is None:
            now[each["path"]] = each
        elif left is not None:
            left[own] = GITS
    files = {each["document"]: each for each in now.values() if each["kind"] == "file"}
    kept = {document: _versions(door, each["path"]) for document, each in files.items()}
    last = {(each["document"], each["version"]): each["seq"] for each in _log(door, path)}
    tree = _Tree()
    for row in _log(door, path):
        document, at = row["document"], row["path"]
        directory = document is None and row["op"] == "rename"  # one row for all that is below it
        was = row["was"] if directory else tree.placed.get(document)
        if not _within(at, root) or _gits(at, root) is not None:
            if was and row["was"] and (gone := tree.leave(was)):  # it left
                yield Step(row["at"], row["agent"], f"{row['op']} {was}", gone=[relative(name, root) for name in gone])
            continue
        if not directory and document not in files:
            continue
        step = Step(row["at"], row["agent"], f"{row['op']} {relative(at, root)}")
        if was and was != at and tree.move(was, at):
            step.renamed.append((relative(was, root), relative(at, root)))
        version = row["version"]
        data = None
        if document in files and version in kept[document] and last[document, version] == row["seq"]:
            data = _version(door, files[document], version)
        if data is not None:
            said = files[document]["user"].get(IMPORTED)
            if version == 1 and isinstance(said, dict) and said.get("author"):
                step.agent, step.at = str(said["author"]), files[document]["created"]
            mode = _mode(files[document])
            tree.put(at, document, (mode, _digest(data)))
            step.written.append((relative(at, root), mode, data))
        if step.renamed or step.written:
            yield step
    end = Step(max((each["mtime"] for each in now.values()), default=0), door.agent, "the memory as it was exported")
    stays = set[str]()
    for name, each in now.items():
        if each["kind"] == "file":
            mode, data = _mode(each), _now(door, name, left)
        else:
            mode, data = _LINK, each["target"].encode("utf-8", "surrogateescape")
        if data is not None:
            stays.add(name)
            if name not in tree.files or tree.files[name][1] != (mode, _digest(data)):
                end.written.append((relative(name, root), mode, data))
    end.gone = [relative(name, root) for name in tree.files.keys() - stays.union(left or ())]
    if end.gone or end.written:
        yield end


def _log(door: Door, path: str) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        page = door.call("names_log", path=path, after=after)
        for row in page["rows"]:
            yield dict(zip(("seq", "at", "op", "agent", "document", "version", "path", "was"), row, strict=True))
        after = page["next"]


def _versions(door: Door, path: str) -> set[int]:
    try:
        return {each["version"] for each in door.call("history", path=path, limit=10_000)["versions"]}
    except _GONE:
        return set()


def _version(door: Door, file: dict[str, Any], number: int) -> bytes | None:
    """None where it is not kept any more, or is too large to be read as a whole."""
    try:
        return wire.pieces(lambda offset: door.call("version", path=file["path"], number=number, offset=offset))
    except (*_GONE, TooBig):
        return None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _mode(each: dict[str, Any]) -> int:
    return _EXECUTABLE if each["mode"] & 0o100 else _FILE


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _gits(path: str, root: str) -> str | None:
    """What is git's own of a path below the root: a repository's directory, if it is that or in one."""
    found = _GITS.search(below := relative(path, root))
    return None if found is None else path[: len(path) - len(below) + found.end()]
