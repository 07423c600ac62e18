"""A disk with a volatile cache, as a model in memory: what is read while the power is on, and what is there afterwards.

Each file and directory exists twice: as programs see it, and as it lies on the disk. A write, a truncation, a name
made, moved or removed changes the first alone. A sync of a file brings its bytes and size to the disk, at its *end*; a
sync of a directory brings its names. What else is on the disk when the power goes is chance ("some"), as with a real
disk that wrote pages back on its own, in any order and torn at sectors; or nothing ("synced").

Names, by the rule that is asked for. "posix": the strictest reading, a name is on the disk once its directory was
synced. "ext4": there is one journal, written in order; the sync of a file that is new, renamed or of another size, or
of any directory, writes all of it, so that a file's sync brings its own new name. Owner, mode and times are on the disk
at once: nothing of ours depends on them.

Errors of a sync are told as Linux tells them (errseq.h): once to each descriptor that was open, or to the first one
opened after, if nobody has heard. The pages are clean from then on, and not on the disk: the next sync returns 0.
"""

from __future__ import annotations

import random
import stat
import time
from dataclasses import dataclass, field
from typing import Final, Literal

PAGE: Final = 4096
SECTOR: Final = 512
MOST_VERSIONS: Final = 8  # of a page that is not synced: what came between is not remembered
Keep = Literal["synced", "some"]
Names = Literal["posix", "ext4"]

Versions = dict[int, list[bytes]]  # of pages, by number


@dataclass(eq=False)
class Node:
    number: int
    mode: int
    mtime: int = field(default_factory=time.time_ns)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(eq=False)
class Directory(Node):
    entries: dict[bytes, Node] = field(default_factory=dict)
    stable: dict[bytes, Node] = field(default_factory=dict)


class Sync:
    """One that is under way: pages as they were when it began."""

    def __init__(self, pages: Versions, sizes: list[int]) -> None:
        self.pages, self.sizes = pages, sizes


@dataclass(eq=False)
class File(Node):
    """``data`` is what programs see, ``stable`` what the disk has; between them lie the syncs under way, oldest first,
    and what was changed since the last one began."""

    data: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    under_way: list[Sync] = field(default_factory=list)
    dirty: Versions = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    failures: int = 0
    failure: int = 0  # errno of the last one,
    heard: bool = True  # by anybody

    def write(self, at: int, data: bytes | memoryview) -> None:
        end = at + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
            self.sizes.append(end)
        self.data[at:end] = data
        self._note(at // PAGE, -(-end // PAGE))

    def truncate(self, size: int) -> None:
        before = len(self.data)
        if size == before:
            return
        if size < before:
            self.data[size:] = b""
            self._note(size // PAGE, -(-before // PAGE))
        else:
            self.data.extend(bytes(size - before))
        self.sizes.append(size)

    def _note(self, first: int, stop: int) -> None:
        for page in range(first, stop):
            versions = self.dirty.setdefault(page, [])
            versions.append(bytes(self.data[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0"))
            if len(versions) > MOST_VERSIONS:
                del versions[0]

    def begin_sync(self) -> Sync:
        sync = Sync(self.dirty, self.sizes)
        self.dirty, self.sizes = {}, []
        self.under_way.append(sync)
        return sync

    def end_sync(self, sync: Sync, error: int = 0) -> None:
        self.under_way.remove(sync)
        if error:  # the pages count as written
            self.failures, self.failure, self.heard = self.failures + 1, error, False
            return
        for page, versions in sync.pages.items():
            self._put(page, versions[-1])
        if sync.sizes:
            _resize(self.stable, sync.sizes[-1])

    def _put(self, page: int, content: bytes) -> None:
        end = (page + 1) * PAGE
        if end > len(self.stable):
            self.stable.extend(bytes(end - len(self.stable)))
        self.stable[page * PAGE : end] = content

    def lose(self, chance: random.Random | None) -> None:
        """The power is gone. Without ``chance`` nothing else than what was synced is there."""
        size = len(self.stable)
        if chance is not None:
            steps = [*self.under_way, Sync(self.dirty, self.sizes)]
            size = chance.choice([size, *(one for sync in steps for one in sync.sizes)])
            for page in {page for sync in steps for page in sync.pages}:
                versions = [version for sync in steps for version in sync.pages.get(page, ())]
                self._put(page, self._torn(page, versions, chance))
        _resize(self.stable, size)
        self.data = bytearray(self.stable)
        self.under_way, self.dirty, self.sizes = [], {}, []
        self.failures, self.failure, self.heard = 0, 0, True

    def _torn(self, page: int, versions: list[bytes], chance: random.Random) -> bytes:
        old = bytes(self.stable[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0")
        versions = [old, *versions]
        if chance.random() < 0.75:  # most pages are written whole
            return chance.choice(versions)
        return b"".join(chance.choice(versions)[at : at + SECTOR] for at in range(0, PAGE, SECTOR))


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


@dataclass(eq=False)
class Symlink(Node):
    target: bytes = b""


Step = list[tuple[Directory, bytes, Node | None]]  # names that change together


class Disk:
    """The tree, and the journal of names that are not on the disk yet."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: dict[int, Node] = {}
        self.journal: list[Step] = []
        self._numbers = 0
        self.root = Directory(self._next(), stat.S_IFDIR | 0o755)
        self.nodes[self.root.number] = self.root

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def make(self, mode: int) -> Node:
        kind = {stat.S_IFDIR: Directory, stat.S_IFREG: File, stat.S_IFLNK: Symlink}[stat.S_IFMT(mode)]
        node = kind(self._next(), mode)
        self.nodes[node.number] = node
        return node

    def set(self, *step: tuple[Directory, bytes, Node | None]) -> None:
        """Names come to be, or are gone (None), all of them or none."""
        for directory, name, node in step:
            _assign(directory.entries, name, node)
        self.journal.append(list(step))

    def begin_sync(self, node: Node) -> list[Step]:
        """The names that a sync of this file or directory brings to the disk, with ``end_sync``."""
        if self.names == "posix":
            return [step for step in self.journal if any(directory is node for directory, _, _ in step)]
        if (
            isinstance(node, File)
            and not node.sizes
            and not any(which is node for s in self.journal for *_, which in s)
        ):
            return []
        return list(self.journal)

    def end_sync(self, steps: list[Step]) -> None:
        for step in steps:
            if step in self.journal:  # else an earlier sync has done so
                self._commit(step)

    def _commit(self, step: Step) -> None:
        for directory, name, node in step:
            _assign(directory.stable, name, node)
        self.journal.remove(step)

    def lose(self, keep: Keep, seed: int) -> None:
        chance = random.Random(seed) if keep == "some" else None
        if chance is not None:
            if self.names == "ext4":
                there = self.journal[: chance.randint(0, len(self.journal))]
            else:
                there = [step for step in self.journal if chance.random() < 0.5]
            for step in there:
                self._commit(step)
        self.journal = []
        self.nodes = {}
        self._lose(self.root, chance)

    def _lose(self, node: Node, chance: random.Random | None) -> None:
        if node.number in self.nodes:
            return
        self.nodes[node.number] = node
        if isinstance(node, File):
            node.lose(chance)
        elif isinstance(node, Directory):
            node.entries = dict(node.stable)
            for child in node.entries.values():
                self._lose(child, chance)


def _assign(entries: dict[bytes, Node], name: bytes, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node
