"""Into a store: what of a source is new, what is there already, what is refused, and how it is brought in.

Owns that rule. A record of the product's own formats is its path; one of a foreign source is what its ``source`` says,
which stands in the metadata of the file that was made of it, wherever that has been moved since. So a second run adds
nothing, and one that was cut off goes on where it was. Anybody can say anything in metadata: only a file of the asker's
own is written to for it, and none that others may see where the record would be private.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from avmfs import paths, wire
from avmfs.errors import NO_TEXT, AvmError, Invalid, NotFound
from avmfs.transfer import exporting
from avmfs.transfer.files import beside
from avmfs.transfer.record import IMPORTED, Door, Record, Refusal, authored, digest_of_said, plain

BATCH, BATCH_BYTES, PIECE = 200, 4 * 1024 * 1024, 8 * 1024 * 1024
_DIFFERS: Final = "there is another one of that name (--replace: a new version of it)"
_TWICE: Final = "the source has it twice"
_EXPIRED: Final = "its ttl has passed"
_BOTH: Final = "changed here and in the source since it was imported (--replace takes the source's)"


@dataclass(slots=True)
class Report:
    """``read`` = added + updated + same + refused (those of links apart). ``became``: (what it was, path, what was done
    or would be)."""

    read: int = 0
    added: int = 0
    updated: int = 0
    same: int = 0
    linked: int = 0
    refused: list[Refusal] = field(default_factory=list)
    links_refused: list[Refusal] = field(default_factory=list)
    became: list[tuple[str, str, str]] = field(default_factory=list)


class Import:
    """One run. ``into`` is an absolute path; ``progress`` hears how many records have been read."""

    def __init__(
        self,
        door: Door,
        into: str,
        *,
        dry: bool = False,
        replacing: bool = False,
        progress: Callable[[int], None] = lambda read: None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.report = Report()
        self._door, self._into, self._dry, self._replacing = door, into.rstrip("/"), dry, replacing
        self._progress, self._now = progress, now
        self._there: dict[str, dict[str, Any]] = {}
        self._from: dict[str, list[str]] = {}  # source: paths
        self._claimed: set[str] = set()
        self._sources: set[str | None] = set()
        self._named: dict[str, str] = {}  # a record's own path: where it went
        self._links: list[tuple[str, Record]] = []
        self._waiting: list[tuple[Record, str, dict[str, Any]]] = []
        # Directories that take no more: after what is in them.
        self._closed: list[tuple[Record, str, dict[str, Any]]] = []
        # Directories, whose times what comes into them changes, and whether each is new.
        self._dated: list[tuple[Record, str, bool]] = []
        self._bytes = 0

    def run(self, source: Iterator[Record | Refusal]) -> Report:
        self._look()
        for each in source:
            self.report.read += 1
            if isinstance(each, Refusal):
                self.report.refused.append(each)
            else:
                self._take(each)
            if self.report.read % BATCH == 0:
                self._progress(self.report.read)
        self._flush()
        while self._closed:
            self._waiting.append(self._closed.pop())
            if len(self._waiting) >= BATCH or not self._closed:
                self._flush()
        self._date()
        self._link()
        self._let_out()
        return self.report

    def _look(self) -> None:
        """What is there, and what was imported before."""
        try:
            for each in exporting.told(self._door, "/memory"):
                if isinstance(source := _imported(each).get("source"), str):
                    self._from.setdefault(source, []).append(each["path"])
                    self._there[each["path"]] = each
            for each in exporting.told(self._door, self._into, digest=True):
                self._there[each["path"]] = each
        except NotFound:
            return

    def _take(self, record: Record) -> None:
        parts = record.path.split("/")
        if not all(parts) or {".", ".."} & {*parts} or "\0" in record.path:
            return self._refuse(record, f"{record.path!r} is no path below a folder")
        if record.source is not None and record.source in self._sources:
            return self._refuse(record, _TWICE)
        if record.expires is not None and record.expires <= self._now():
            return self._refuse(record, _EXPIRED)
        self._sources.add(record.source)
        where = f"{self._into}/{record.path}"
        if record.source is not None and where.startswith("/memory/private/"):
            record = replace(record, shared=None)  # what is private is nobody else's
        if (before := self._before(record, where)) is not None:
            return self._again(record, *before)
        if record.source is not None:
            where = self._free(where)
        elif where in self._claimed:
            return self._refuse(record, _TWICE)
        self._claimed.add(where)
        self._named.setdefault(record.path, where)
        there = self._there.get(where)
        if there is None:
            return self._bring(record, where, None)
        mine = exporting.record(there, self._into)
        if mine.kind != record.kind:
            return self._refuse(record, f"there is a {mine.kind} of that name")
        if (
            mine.target == record.target
            and _alike(mine, record, there.get("author"))
            and there.get("digest", record.digest) == record.digest
        ):
            return self._same(record, where)
        if mine.kind == "symlink" or not self._replacing:
            return self._refuse(record, _DIFFERS)
        return self._bring(record, where, there.get("digest"))

    def _before(self, record: Record, where: str) -> tuple[str, bool] | None:
        """The file that was made of a foreign record which would be ``where``, and whether it may be written to for it:
        else it counts while its bytes are those of the record."""
        run = self._run(record)
        alike: tuple[str, bool] | None = None
        for path in self._from.get(record.source or "", ()):
            said, own = _imported(self._there[path]), self._there[path]["author"] == self._door.agent
            below = path.startswith(f"{self._into}/")
            old = "run" not in said  # of before it was noted: then the names of a folder may be those of another
            same = own and (said.get("run") == run or (old and record.folder is None))
            space = _space(path)
            if same and space == _space(where) and (below or space is not None):
                return path, True
            if said.get("digest") == record.digest.hex() and (same or below or (own and old)):
                alike = path, False
        return alike

    def _run(self, record: Record) -> str:
        """Which import it is: of which folder, into which. Whoever reads the metadata learns neither."""
        folder = b"" if record.folder is None else os.fsencode(record.folder.resolve())
        return hashlib.sha256(folder + b"\0" + paths.raw(self._into)).hexdigest()[:16]

    def _again(self, record: Record, where: str, writable: bool) -> None:
        """A foreign record that was imported before."""
        self._claimed.add(where)
        self._named.setdefault(record.path, where)
        before = _imported(self._there[where])
        mine = exporting.record(self._there[where], self._into)
        here, says = (digest_of_said(each, self._door.agent) for each in (mine, record))
        said = before.get("said", here if self._replacing else says)  # of before it was noted: not looked for unasked
        if before.get("digest") == record.digest.hex() and (not writable or said == says):
            return self._same(record, where)
        now = next(exporting.told(self._door, where, digest=True))["digest"]
        untouched = now.hex() == before.get("digest") and (said == says or here in (before.get("here", said), says))
        if not (self._replacing or untouched):
            return self._refuse(record, _BOTH)
        return self._bring(record, where, now, mine)

    def _free(self, where: str) -> str:
        stem, dot = posixpath.splitext(where)
        number, name = 1, where
        while name in self._claimed or name in self._there:
            number += 1
            name = f"{stem}-{number}{dot}"
        return name

    def _same(self, record: Record, where: str) -> None:
        self.report.same += 1
        self._links.append((where, record))
        self.report.became.append((_name(record), where, "same"))

    def _refuse(self, record: Record, reason: str) -> None:
        self.report.refused.append(Refusal(_name(record), reason))

    def _bring(self, record: Record, where: str, instead_of: bytes | None, over: Record | None = None) -> None:
        item: dict[str, Any] = {
            "path": where,
            "mode": record.mode,
            "created": record.created,
            "mtime": record.updated if record.updated is not None else record.created,
            "tags": list(record.tags),
            "sources": sorted({*record.sources, *(["imported"] if record.source is not None else [])}),
            "released": record.released,
            "importance": record.importance,
            "expires": record.expires,
            "shared": None if record.shared is None else list(record.shared),
            "user": authored(record, self._door.agent, self._run(record), over) if record.kind == "file" else None,
        }
        try:
            if record.target is not None:
                item["target"] = record.target.encode("utf-8", "surrogateescape")
            size = len(record.data or b"") + len(wire.pack(item))
        except UnicodeEncodeError:
            self._refuse(record, NO_TEXT)
            return
        except (OverflowError, TypeError, ValueError) as e:  # a number beyond 64 bits, or no value of JSON
            self._refuse(record, str(e))
            return
        if instead_of is not None:
            item["instead_of"] = instead_of
        if record.kind == "directory" and record.mode is not None and not record.mode & 0o222:
            self._closed.append((record, where, item))
            return
        self._waiting.append((record, where, item))
        self._bytes += size
        if len(self._waiting) >= BATCH or self._bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        answers: list[Any] = [None] * len(waiting)
        if self._dry and waiting:
            asked = [{"path": where, "tags": item["tags"]} for _, where, item in waiting]
            answers = self._door.call("put", items=asked, dry=True)
        elif waiting:
            items, numbers = [], []
            for number, (record, where, item) in enumerate(waiting):
                try:
                    if record.data is not None and len(record.data) > PIECE:
                        self._lay(where, record.data, item)
                        continue
                    if record.data is not None:
                        item["data"] = record.data
                except AvmError as e:
                    answers[number] = [e.code, e.reason]
                    continue
                items.append({name: value for name, value in item.items() if value is not None})
                numbers.append(number)
            for number, answer in zip(numbers, self._door.call("put", items=items), strict=True):
                answers[number] = answer
        for (record, where, _), answer in zip(waiting, answers, strict=True):
            if answer is not None:
                self._refuse(record, answer[1])
                continue
            new = where not in self._there
            if record.kind == "directory" and record.updated is not None and not self._dry:
                self._dated.append((record, where, new))
            self.report.added += new
            self.report.updated += not new
            self._links.append((where, record))
            self.report.became.append((_name(record), where, "added" if new else "updated"))

    def _lay(self, where: str, data: bytes, item: dict[str, Any]) -> None:
        """What is too large for one call comes under another name, limited and marked as it is to be, and takes its own
        when it is whole, in one step with all that is said of it: refused, it is not there."""
        folder, name = posixpath.split(where)
        laid, mode = beside(name, ".importing"), item["mode"]
        coming = f"{folder}/{laid}"
        with suppress(NotFound):  # of an import that was cut off
            self._door.call("remove", path=coming, permanently=True)
        writable = None if mode is None else mode | 0o200  # or no further piece could come by path
        said = {"mode": writable, "shared": item["shared"], "sources": item["sources"]}
        with laid_beside(self._door, coming, data, where, said):
            _put(self._door, {**item, "laid": paths.raw(laid)}, where)

    def _date(self) -> None:
        for start in range(0, len(self._dated), BATCH):
            some = self._dated[start : start + BATCH]
            items = [{"path": where, "mtime": record.updated} for record, where, _ in some]
            for (record, _, new), refused in zip(some, self._door.call("put", items=items), strict=True):
                if refused is not None:
                    self.report.added -= new
                    self.report.updated -= not new
                    self._refuse(record, refused[1])

    def _link(self) -> None:
        for where, record in self._links:
            have: set[tuple[str, str]] = {tuple(each) for each in self._there.get(where, {}).get("links", ())}
            for target, type in record.links:
                to = target if target.startswith("/") else self._named.get(target, f"{self._into}/{target}")
                if (to, type) in have:
                    continue
                if self._dry:
                    self.report.linked += 1
                    continue
                try:
                    self._door.call("link", path=where, target=to, type=type)
                    self.report.linked += 1
                except AvmError as e:
                    self.report.links_refused.append(Refusal(f"{_name(record)} -> {target} ({type})", e.reason))

    def _let_out(self) -> None:
        """What a link leads to may be held, and holds again what was let out."""
        for where, record in self._links:
            if record.released and not self._dry:
                with suppress(AvmError):  # it has gone
                    _put(self._door, {"path": where, "released": True}, where)


def _name(record: Record) -> str:
    return record.place or record.path


def _space(path: str) -> str | None:
    return paths.agent_space(paths.split(paths.raw(path)))


def _imported(each: dict[str, Any]) -> dict[str, Any]:
    said = each.get("user", {}).get(IMPORTED)
    return said if isinstance(said, dict) else {}


def _alike(mine: Record, record: Record, owner: str | None) -> bool:
    """Return whether all that the record says is said here already, where more may be: keys of its metadata, how it
    came in, and its ``owner`` among those who share it. Links come later, of a directory the store keeps but its mode,
    and the time of the last change is another one in each copy of a folder."""
    if record.kind == "directory":
        return record.mode in (None, mine.mode)
    here, said = (
        plain(
            replace(
                each,
                links=(),
                tags=tuple(sorted(each.tags)),
                meta={},
                sources=(),
                released=False,
                updated=None,
                shared=None if each.shared is None else tuple(sorted({*each.shared} - {owner})),
            )
        )
        for each in (mine, record)
    )
    return (
        all(here.get(name) == value for name, value in said.items())
        and all(mine.meta.get(key) == value for key, value in record.meta.items())
        and {*record.sources} <= {*mine.sources}
        and (mine.released or not (record.released and record.sources))
    )


@contextmanager
def laid_beside(door: Door, beside: str, data: bytes, where: str, said: dict[str, Any]) -> Iterator[None]:
    """What is too large for one call lies whole at the path ``beside`` during the block, in which it is to come to be
    ``where``. What fails leaves nothing."""
    try:
        _put(door, {"path": beside, "data": data[:PIECE], **said}, where)
        for offset in range(PIECE, len(data), PIECE):
            door.call("write", path=beside, data=data[offset : offset + PIECE], mode="append")
        yield
    except AvmError:
        with suppress(NotFound):
            door.call("remove", path=beside, permanently=True)
        raise


def _put(door: Door, item: dict[str, Any], where: str) -> None:
    [refused] = door.call("put", items=[{name: value for name, value in item.items() if value is not None}])
    if refused is not None:
        raise Invalid(refused[1], where)
