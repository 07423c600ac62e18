"""A project's source into its notes below /index, and what has changed since.

Owns the rule: a note holds the digest of the source that it was made of, and only what has another is parsed; a file
of a gone one's digest is that one, moved, and its note moves as the same document. Called by the doors for people and
programs; reads the project and parses in their process, never in a daemon's. Must not know how a store keeps notes.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from avmfs.codeindex import modules, parsing, sources
from avmfs.codeindex.languages import BY_SUFFIX
from avmfs.errors import Busy, Invalid, NotFound
from avmfs.transfer import exporting
from avmfs.transfer.record import Door

REVISION: Final = 1
"""Of what a note says of a source: another number makes all of them anew."""
BATCH, BATCH_BYTES = 200, 2 * 1024 * 1024


@dataclass(slots=True)
class Report:
    """What a scan found and did, in files. ``left_out`` by reason; ``refused``: [source, why] of what the store did not
    take. ``broken``, ``not_utf8``: indexed all the same, of those looked at anew."""

    project: str
    path: str
    root: str
    files: int = 0
    symbols: int = 0
    added: int = 0
    changed: int = 0
    moved: int = 0
    removed: int = 0
    broken: int = 0
    not_utf8: int = 0
    languages: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    refused: list[list[str]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Look:
    """What is on disk beside what is in the store: digests by source, and what the notes say by source."""

    now: dict[str, str]
    notes: dict[str, dict[str, Any]]
    left_out: Counter[str]

    @property
    def new(self) -> list[str]:
        return [each for each in self.now if each not in self.notes]

    @property
    def changed(self) -> list[str]:
        return [each for each, digest in self.now.items() if each in self.notes and _of(self, each) != digest]

    @property
    def gone(self) -> list[str]:
        return [each for each in self.notes if each not in self.now]


def _of(look: _Look, source: str) -> str:
    return str(look.notes[source]["digest"])


def scan(door: Door, project: str, root: str | os.PathLike[str] | None = None, *, private: bool = False) -> Report:
    """Bring the notes of a project up to date with its files. ``root`` None: where it was. ``private``: for this agent
    alone. Raises Invalid, NotFound for an unknown project without a root, Denied for another agent's."""
    where = modules.folder(project, door.agent if private else "")
    known = overview(door, where)
    if root is None and known is None:
        raise NotFound("no such project; name its directory", project)
    top = Path(root if root is not None else (known or {})["root"]).resolve()
    if known is not None:  # before all the work: whether this agent may
        door.call("write_index", project=project, items=[], private=private)
    look = _look(door, where, top)
    report = Report(project, where, os.fspath(top))
    items: list[tuple[str, dict[str, Any]]] = []
    gone = {_of(look, each): each for each in look.gone}
    moved: set[str] = set()
    size = 0
    for source in (*look.new, *look.changed):
        try:
            data = (top / source).read_bytes()
        except OSError:  # gone since, or on its way: the next scan has it as it is then
            look.now.pop(source)
            continue
        digest = _digest(data)
        was = gone.pop(digest, None) if source not in look.notes else None
        if not _utf8(data):
            report.not_utf8 += 1
            data = data.decode("latin-1").encode()
        made = parsing.parse(data, BY_SUFFIX[os.path.splitext(source)[1].lower()])
        report.broken += made.broken
        said = {"source": source, "digest": digest, "language": made.language, "symbols": len(made.symbols)}
        look.notes[source] = {**said, "was": look.notes.get(source)}
        item: dict[str, Any] = {"path": f"{source}.md", "data": modules.written(source, made).encode()}
        item["user"] = {modules.META: said}
        if was is not None:
            item["was"] = f"{was}.md"
            moved.add(was)
            report.moved += 1
        items.append((source, item))
        size += len(item["data"])
        if len(items) >= BATCH or size >= BATCH_BYTES:
            _send(door, project, private, items, report, look)
            items, size = [], 0
    items += [(each, {"path": f"{each}.md"}) for each in look.gone if each not in moved]
    for first in range(0, max(len(items), 1), BATCH):
        _send(door, project, private, items[first : first + BATCH], report, look)
    for each in moved:
        look.notes.pop(each, None)
    kept = [each for name, each in look.notes.items() if name in look.now]
    report.files, report.symbols = len(kept), sum(each["symbols"] for each in kept)
    report.languages = dict(sorted(Counter(each["language"] for each in kept).items()))
    report.left_out = dict(sorted(look.left_out.items()))
    facts = {name: getattr(report, name) for name in ("root", "files", "symbols", "languages", "left_out")}
    if known != facts or report.added + report.changed + report.moved + report.removed:
        told = {"path": modules.OVERVIEW, "data": _overview(report).encode(), "user": {modules.META: facts}}
        _send(door, project, private, [("", told)], report, look)
    return report


def _send(
    door: Door, project: str, private: bool, items: list[tuple[str, dict[str, Any]]], report: Report, look: _Look
) -> None:
    if not items:
        return
    answers = door.call("write_index", project=project, items=[item for _, item in items], private=private)
    for (source, item), refused in zip(items, answers, strict=True):
        if refused is not None:
            report.refused.append([source, refused])
            look.now.pop(source, None)
        elif "data" not in item:
            report.removed += 1
        elif source and "was" not in item:
            new = look.notes[source]["was"] is None
            report.added += new
            report.changed += not new


def status(door: Door, project: str) -> dict[str, Any]:
    """What the store has of a project, and, where its files are on this machine, how many are new, changed or gone.
    Raises NotFound."""
    where, known = found(door, project)
    said = {"project": project, "path": where, **known}
    top = Path(known["root"])
    if not top.is_dir():
        return {**said, "here": False}
    look = _look(door, where, top)
    return {**said, "here": True, "new": len(look.new), "changed": len(look.changed), "gone": len(look.gone)}


def projects(door: Door) -> list[dict[str, Any]]:
    """Those that this agent may see: {"project", "path", "root", "files", "symbols", "languages", "left_out"}."""
    told = []
    for top in (modules.TOP, f"{modules.TOP}/private/{door.agent}"):
        try:
            entries = door.call("entries", path=top)
        except NotFound:
            continue
        for each in entries:
            if (known := overview(door, each["path"])) is not None:
                told.append({"project": each["name"], "path": each["path"], **known})
    return told


def found(door: Door, project: str) -> tuple[str, dict[str, Any]]:
    """Where a project's notes are, the agent's own first, and what its overview says. Raises NotFound."""
    for agent in (door.agent, ""):
        where = modules.folder(project, agent)
        if (known := overview(door, where)) is not None:
            return where, known
    raise NotFound("no such project", project)


def root(door: Door, project: str, *, private: bool = False) -> str | None:
    """The directory of a project that is known."""
    known = overview(door, modules.folder(project, door.agent if private else ""))
    return None if known is None else str(known["root"])


def drop(door: Door, project: str, *, private: bool = False) -> int:
    """Take a project's notes away; returns how many. Raises NotFound, Denied for another agent's."""
    where = modules.folder(project, door.agent if private else "")
    if overview(door, where) is None:
        raise NotFound("no such project", project)
    names = [each["path"] for each in exporting.told(door, where) if each["kind"] == "file"]
    names.sort(key=lambda each: each.endswith(f"/{project}/{modules.OVERVIEW}"))  # last: until then it is a project
    for first in range(0, len(names), BATCH):
        items = [{"path": each[len(where) + 1 :]} for each in names[first : first + BATCH]]
        answers = door.call("write_index", project=project, items=items, private=private)
        if refused := [each for each in answers if each is not None]:
            raise Invalid(refused[0])
    return len(names)


def watch(
    scanned: Callable[[], None],
    root: Path,
    every_s: float,
    over: threading.Event,
    tell: Callable[[Busy], None],
    *,
    signals: bool = True,
) -> None:
    """Call ``scanned`` now and whenever a file has come, gone or changed its time or size, until ``over``, SIGINT or
    SIGTERM. By looking, every ``every_s`` seconds: what tells of changes knows no network disks and no FUSE. Where it
    raises Busy, ``tell``, and call it again at the next look."""
    if signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
    before: object = None
    while not over.is_set():
        now = [(path, each.st_mtime_ns, each.st_size) for path, each in sources.files(root, Counter())]
        if now != before:
            try:
                scanned()
                before = now
            except Busy as e:
                tell(e)
        over.wait(every_s)


def overview(door: Door, where: str) -> dict[str, Any] | None:
    """What a project's overview says of it; None where there is none, or none that this agent may see."""
    try:
        page = door.call("records", path=f"{where}/{modules.OVERVIEW}")["records"]
    except NotFound:
        return None
    said = page[0].get("user", {}).get(modules.META) if page else None
    return said if isinstance(said, dict) and "root" in said else None


def _look(door: Door, where: str, root: Path) -> _Look:
    left_out: Counter[str] = Counter()
    now: dict[str, str] = {}
    notes: dict[str, dict[str, Any]] = {}
    try:
        for each in exporting.told(door, where):
            said = each.get("user", {}).get(modules.META)
            if isinstance(said, dict) and "source" in said:
                notes[said["source"]] = said
    except NotFound:
        pass
    for path, stat in sources.files(root, left_out):
        if (data := sources.text(root / path, stat.st_size, left_out)) is not None:
            now[path] = _digest(data)
    return _Look(now, notes, left_out)


def _digest(data: bytes) -> str:
    return f"{REVISION}:{hashlib.sha256(data).hexdigest()}"


def _utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _overview(report: Report) -> str:
    by = ", ".join(f"{name} {count}" for name, count in report.languages.items()) or "nothing"
    out = ", ".join(f"{count} {name}" for name, count in report.left_out.items()) or "nothing"
    return (
        f"# {report.project}\n\nAn index of the code in {report.root}: a note for each source file.\n\n"
        f"{report.files} files, {report.symbols} symbols: {by}\nleft out: {out}\n"
        f"made {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
    )
