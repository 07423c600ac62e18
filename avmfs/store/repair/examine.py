"""Looking at a store without changing a byte of it.

Owns what can be wrong with one, as far as the files tell. A store that nobody has open is looked at as it lies there;
one with a write-ahead log as a private copy, since SQLite would recover the log into a file beside it. A daemon's is
read as its other readers do. Called by `avm doctor` and by the repair.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.access import Scope
from avmfs.errors import AvmError, NoSpace, StoreFailed
from avmfs.store.files import loss_check, wal_frames
from avmfs.store.files.io import read_all
from avmfs.store.files.wal_frames import WalFrames
from avmfs.store.queries.connections import Connections, Lone
from avmfs.store.rows import checksums, content
from avmfs.store.schema import database
from avmfs.store.schema import tables as schema
from avmfs.store.store import Store

MAGIC: Final = b"SQLite format 3\0"
SHOWN: Final = 3  # lines of a kind
BROKEN: Final = (AvmError, apsw.Error, UnicodeDecodeError)  # what looking at a damaged store may raise
# Texts with signs beyond ASCII: a damaged byte makes one of them, or another text that is none.
_BEYOND_ASCII: Final = f"glob '*[{chr(0x80)}-{chr(0x10FFFF)}]*'"

# Rows that something else in the store speaks of, and that are not there.
_MISSING: Final = {
    "files whose bytes are not there":
        "select id from node where body is not null and body not in (select id from body)"
        " union select node from extent where block not in (select id from block)",
    "names below a directory that is not there":
        "select id from node where parent is not null and parent not in (select id from node where kind = 2)",
    "nodes of a visibility class that is not there": "select id from node where scope not in (select id from scope)",
    "nodes of a document that is not there":
        "select id from node where document is not null and document not in (select id from document)",
    "documents whose file is not there":
        "select document.id from document left join node on node.id = document.node where node.id is null",
    "documents without their versions":
        "select id from document where head > 0 and not exists"
        " (select 1 from version where document = document.id and number = head)",
    "letters without a message": "select message from delivery where message not in (select id from message)",
}  # fmt: skip
# What is made from the rest.
_DERIVED: Final = {
    "vectors of no passage": "select id from vector where id not in (select id from passage)",
    "passages of no document":
        "select id from passage where document not in (select id from document union select document from ended)",
    "counts of passages that are not their sums":
        "select scope from scope_stat as kept where passages <> (select count(*) from passage where scope = kept.scope)"
        " or terms <> (select coalesce(sum(len), 0) from passage where scope = kept.scope)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong. ``lost``: the store ends before what is known to have been kept."""

    about: str
    says: str
    lost: bool = False


class FrozenStore(Store):
    """A store that is only looked at. ``frozen``: nobody has it open, and it has no log."""

    def __init__(self, path: Path, frozen: bool) -> None:
        super().__init__(path)
        self._connections = Connections(path, frozen)


@contextlib.contextmanager
def frozen(path: Path, left: WalFrames | None, *, migrated: bool = False) -> Iterator[Path]:
    """A database without a log that says what this one says with its own: itself, or a private copy. ``migrated``: with
    this version's tables."""
    if left is None and not (migrated and older(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="avm-") as folder:
        size = path.stat().st_size if path.exists() else 0
        wanted = size if left is None else size + left.frames * left.page_size
        free = shutil.disk_usage(folder).free
        if wanted > free:
            raise NoSpace(f"{wanted >> 20} MB are needed to look at a copy, TMPDIR names another place", folder)
        image(path, left, made := Path(folder) / path.name)
        if migrated and older(made):
            migrate(made)
        yield made


def older(path: Path) -> bool:
    """Return whether an earlier version wrote this database."""
    header = _header(path)
    return header[:16] == MAGIC and schema.OLDEST <= int.from_bytes(header[60:64], "big") < schema.VERSION


def migrate(image: Path) -> None:
    """Bring a copy to this version's tables, as a start does the store, and leave no log. Raises what is ``BROKEN``."""
    database.prepare(image)
    with contextlib.closing(database.connect(image, writable=True)) as db:
        db.execute("pragma journal_mode = delete")


def image(path: Path, left: WalFrames | None, to: Path, lost: list[int] | None = None) -> list[int]:
    """Make a copy of the database with its log laid over it, and return which of its pages are damaged frames. Raises
    OSError. To salvage all that there is, ``lost`` gets the pages that the disk does not give."""
    if path.exists():
        loss_check.copy(path, to, lost)
    else:
        os.close(os.open(to, os.O_CREAT | os.O_WRONLY, 0o600))
    bad = [] if left is None else left.laid_over(to, salvage=lost is not None)
    with open(to, "r+b") as file:
        file.seek(18)
        if file.read(2) == b"\2\2":  # of a database that has a log; without one it is opened as any other
            file.seek(18)
            file.write(b"\1\1")
    return bad


def files(path: Path, left: WalFrames | None, known: int) -> Iterator[Damage]:
    """What the files themselves tell, before SQLite looks at them."""
    if not path.exists() or not path.stat().st_size:
        if known or (left is not None and left.good.any()):
            what = "is empty" if path.exists() else "is not there"
            yield Damage("database", f"{path} {what}, though changes up to {known} were kept", lost=True)
        return
    header = _header(path)
    in_log = left is not None and bool((left.ours & (left.pages == 1))[: left.chained].any())
    if not in_log:
        page = int.from_bytes(header[16:18], "big") or 65536
        pages = int.from_bytes(header[28:32], "big")
        if header[:16] != MAGIC:
            yield Damage("database", f"{path} does not begin as a database does: its header is damaged")
        elif page != wal_frames.DEFAULT_PAGE:
            yield Damage("database", f"{path}: its header names pages of {page} bytes, not {wal_frames.DEFAULT_PAGE}")
        elif left is None and pages * page > path.stat().st_size:
            yield Damage("database", f"{path} has {path.stat().st_size // page} of its {pages} pages", lost=True)
    if left is not None and (not left.whole or left.behind):
        where = f"frame {left.chained + 1} of {left.frames} is damaged" if left.whole else "the header is damaged"
        says = f"{left.path}: {where}; {left.before} commits stand before it, {left.behind} behind it"
        yield Damage("log", says)


def newest(store: Store) -> int:
    """The seq of the newest row of the log; 0 when there is none."""
    with store.connection() as (db, _):
        return int(db.execute("select max(seq) from log").get or 0)


def waiting(store: Store) -> tuple[int, int]:
    """How many files wait for words, and for vectors."""
    return store.queue_lengths()


def counts(store: Store) -> dict[str, int]:
    """How much there is of what people would miss."""
    of = {"files": "node where kind = 1", "versions": "version", "messages": "message", "changes": "log"}
    with store.connection() as (db, _):
        return {name: int(db.execute(f"select count(*) from {table}").get) for name, table in of.items()}


def recent(store: Store, count: int) -> list[bytes]:
    """How the files begin that were written last."""
    with store.connection() as (db, _):
        files: list[Any] = db.execute(
            "select id, size, extents from node where kind = 1 and parent is not null order by mtime desc limit ?",
            (count,),
        ).fetchall()
        return [content.read(db, node, size, bool(extents), 0, 1 << 16) for node, size, extents in files]


def rows(store: Store) -> Iterator[Damage]:
    """All that the database says, question by question, each in a read of its own."""
    with Lone(store._connections) as db:
        tables = _names(db, "type = 'table' and rootpage > 0") + _names(db, "sql like 'create virtual table%'")
        for table in tables:
            about = "words" if table.startswith(("terms", "posting")) else "structure"
            yield from _told(about, f"table {table}", lambda name=table: _structure(db, name))
        keys = "pragma foreign_key_check"
        yield from _told("structure", "keys", lambda: [f"{row[0]} {row[1]}" for row in db.execute(keys)])
        for table in _names(db, "type = 'table' and rootpage > 0"):
            yield from _told("contents", f"texts of table {table} that are none", lambda name=table: _no_text(db, name))
        yield from _told("contents", "visibility classes that say nothing", lambda: unreadable_classes(db))
        yield from _told("contents", "wrong bytes", lambda: _contents(db))
        for questions, about in ((_MISSING, "rows"), (_DERIVED, "index")):
            for what, question in questions.items():
                yield from _told(about, what, lambda sql=question: [str(row[0]) for row in db.execute(sql)])


def _names(db: apsw.Connection, which: str) -> list[str]:
    return [name for (name,) in db.execute(f"select name from sqlite_schema where {which} order by name")]


def _told(about: str, what: str, look: Any) -> Iterator[Damage]:
    try:
        found = look()
    except (apsw.Error, StoreFailed, UnicodeDecodeError) as e:
        found = [str(e)]
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield Damage(about, f"{what}: {len(found)}: {'; '.join(found[:SHOWN])}{more}")


def _structure(db: apsw.Connection, table: str) -> list[str]:
    return [line for (line,) in db.execute(f'pragma quick_check("{table}")') if line != "ok"]


def _no_text(db: apsw.Connection, table: str) -> list[str]:
    columns = db.execute("select name from pragma_table_info(?) where lower(type) = 'text'", (table,)).fetchall()
    texts = (
        (name, data)
        for (name,) in columns
        for (data,) in db.execute(f'select cast("{name}" as blob) from "{table}" where "{name}" {_BEYOND_ASCII}')
    )
    return [f"{name} {data[:40]!r}" for name, data in texts if not _is_text(data)]


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def unreadable_classes(db: apsw.Connection) -> list[str]:
    """Numbers of visibility classes of which nobody could say who sees what is of them."""
    found = []
    for number, data in db.execute("select id, cast(spec as blob) from scope"):
        try:
            Scope.parse(data.decode("utf-8"))
        except (ValueError, LookupError):
            found.append(str(number))
    return found


def _contents(db: apsw.Connection) -> list[str]:
    return sorted({name for table, key in checksums.wrong(db) for name in owners(db, table, key)})


def owners(db: apsw.Connection, table: str, key: tuple[Any, ...]) -> list[str]:
    """The files, or versions, that a piece of contents belongs to."""
    if table == "version":
        nodes = _all(db, "select node from document where id = ?", key[:1])
        return [f"{checksums.path_of(db, node)} v{key[1]}" for (node,) in nodes] or ["a version of nothing"]
    if table == "past_version":
        numbers = _all(db, "select number from past_version where id = ?", key)
        return [f"v{number} of a removed file" for (number,) in numbers]
    if table == "block":
        nodes = _all(db, "select distinct node from extent where block = ?", key)
    else:
        nodes = [key[:1]] if table == "tail" else _all(db, "select id from node where body = ?", key)
    return [checksums.path_of(db, node) for (node,) in nodes] or [f"{table} {key[0]} of an old version"]


def _all(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> list[Any]:
    return db.execute(sql, values).fetchall()


def _header(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return read_all(file.fileno(), 100, 0, [])


def strange(path: Path) -> bool:
    """Return whether the file begins as a database of another program, or of an avmfs that this one does not read."""
    with contextlib.suppress(FileNotFoundError):
        header = _header(path)
        application, version = int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")
        foreign = application not in (0, schema.APPLICATION_ID)
        known = not version or schema.OLDEST <= version <= schema.VERSION
        return header[:16] == MAGIC and (foreign or not known)
    return False
