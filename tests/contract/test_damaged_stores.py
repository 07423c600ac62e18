"""Damaged stores: nothing throws away what was promised, doctor names what is wrong and changes nothing, repair saves
what can be saved and says what it could not. Each state is made by hand from one store of 300 notes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from avmfs.access import Policy, Principal
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer
from avmfs.cli.main import avm
from avmfs.errors import AvmError, StoreFailed
from avmfs.store.client.client import DirectWriter
from avmfs.store.files import loss_check, sync_note, wal_frames
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.identity import OPERATOR
from avmfs.store.repair.btree import Pages
from avmfs.store.schema import tables
from avmfs.store.store import Store, open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.contract.store_world import faults
from tests.contract.test_store_dumps import VERSIONS, load
from tests.small_disks import small_disk

pytestmark = pytest.mark.slow

ALICE, BOB = Principal("alice"), Principal("bob")
NOTES = 300
FRAME = 24 + 4096
BIG = bytes(range(256)) * 1000  # four blocks


def note(number: int) -> bytes:
    return b"# Note %d\n\nWhat was learnt of pump %d and its valve.\n" % (number, number) + b"more words\n" * (
        number % 40
    )


def place(number: int) -> list[bytes]:
    return [b"memory", b"shared", b"d%d" % (number % 10), b"note-%d.md" % number]


def opened(path: Path) -> Store:
    return open_direct(path, Policy(), IndexRules(), at_least=anchors.newest(anchors.beside(path)))


def written(store: Store, first: int = 0, last: int = NOTES) -> None:
    for number in range(first, last):
        store.submit(ALICE, "write_path", path=place(number), data=note(number))


def chained(store: Store, path: Path) -> None:
    Chainer(store, anchors.beside(path), 0.0, time.time_ns).step()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two images of the store: "crash", as a killed process leaves it, with all of the notes in the log,
    and "clean"."""
    root = tmp_path_factory.mktemp("made")
    path = root / "live" / "avm.db"
    store = opened(path)
    assert isinstance(store._submitter, DirectWriter)
    store._submitter._applier.db.execute("pragma wal_autocheckpoint = 0")
    store.submit(BOB, "enroll")
    store.submit(BOB, "write_path", path=[b"memory", b"private", b"bob", b"own.md"], data=b"bob's own pump\n")
    written(store)
    for number in range(0, 30, 3):
        store.submit(BOB, "write_path", path=place(number), data=b"a second version\n" + note(number))
    store.submit(ALICE, "write_path", path=[b"memory", b"shared", b"big.bin"], data=BIG)
    store.submit(
        ALICE,
        "tell",
        recipient="bob",
        body="a letter",
        priority="normal",
        expires=None,
        body_limit=100,
        unread_limit=10,
    )
    while store.submit(OPERATOR, "drain_lexical", limit=100)["left"]:
        pass
    chained(store, path)
    shutil.copytree(path.parent, root / "crash", ignore=shutil.ignore_patterns("*-shm"))
    store.close()
    shutil.copytree(path.parent, root / "clean")
    return root


@pytest.fixture
def crash(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "crash", tmp_path / "data")
    return tmp_path / "data" / "avm.db"


@pytest.fixture
def clean(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "clean", tmp_path / "data")
    return tmp_path / "data" / "avm.db"


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        each.name: (each.stat().st_mtime_ns, each.stat().st_mode, each.read_bytes())
        for each in folder.iterdir()
        if each.is_file()
    }


def unchanged(folder: Path, before: dict[str, Any]) -> bool:
    """But for the lock, and the index that SQLite makes of a log that it has looked at."""
    after = snapshot(folder)
    return {name for name in after if not name.endswith("-shm")} == before.keys() and all(
        after[name] == before[name] for name in before if not name.endswith(".lock")
    )


def poke(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, length: int = 8) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(length)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in old))


def notes_in(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute("select count(*) from node where cast(name as text) like 'note-%'").fetchone()[0])


# The log ---------------------------------------------------------------------------------------------------------


def test_the_log_is_read_as_sqlite_reads_it(crash: Path) -> None:
    found = wal_frames.look(wal_frames.beside(crash))
    assert found is not None and found.whole and found.good.all() and found.behind == 0
    with contextlib.closing(sqlite3.connect(crash)) as db:
        assert db.execute("pragma wal_checkpoint").fetchone()[1] == found.frames
    assert found.before > NOTES


def test_a_log_and_an_image_as_large_as_a_store_are_looked_at_piece_by_piece(tmp_path: Path) -> None:
    """After a purge the log is as large: a start that needed its size in memory would be killed each time."""
    pages = 16 * 1024
    for name, size in (("log", 32 + pages * FRAME), ("image", pages * 4096)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
    tracemalloc.start()
    try:
        found, image = wal_frames.look(tmp_path / "log"), Pages(tmp_path / "image")
        assert found is not None and found.frames == pages == image.count and not found.ours.any()
        assert {image.kind(number) for number in range(1, pages + 1)} == {0} and image.page(pages) == bytes(4096)
        assert tracemalloc.get_traced_memory()[1] < pages * 4096 // 3
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("frame", [0, 400, 900])
def test_a_log_with_one_bad_frame_is_not_thrown_away(crash: Path, frame: int) -> None:
    flip(wal_frames.beside(crash), 32 + frame * FRAME + 24 + 1000)
    found = wal_frames.look(wal_frames.beside(crash))
    assert found is not None and found.chained == frame and (~found.good).sum() == 1 and found.behind > 100
    before = snapshot(crash.parent)
    with pytest.raises(StoreFailed, match=rf"frame {frame + 1} of .* {found.behind} behind.*avm repair"):
        opened(crash)
    assert unchanged(crash.parent, before)


def test_a_log_whose_header_is_damaged_is_not_thrown_away(crash: Path) -> None:
    poke(wal_frames.beside(crash), 0, os.urandom(32))
    before = snapshot(crash.parent)
    with pytest.raises(StoreFailed, match="avm repair"):
        opened(crash)
    assert unchanged(crash.parent, before)


@pytest.mark.parametrize("what", ["gone", "empty", "cut"])
def test_a_log_that_vanished_is_missed(crash: Path, what: str) -> None:
    log = wal_frames.beside(crash)
    if what == "gone":
        log.unlink()
    else:
        os.truncate(log, 0 if what == "empty" else log.stat().st_size // 2)
    with pytest.raises(StoreFailed, match=r"changes up to \d+ were kept.*avm repair"):
        opened(crash)


@pytest.mark.parametrize("what", ["gone", "empty", "older"])
def test_a_database_that_is_not_the_one_it_was_is_missed(clean: Path, made: Path, what: str) -> None:
    clean.unlink()
    if what == "empty":
        clean.touch()
    elif what == "older":
        older = opened(made / "older" / "avm.db")
        written(older, 0, 3)
        older.close()
        shutil.copy(made / "older" / "avm.db", clean)
    with pytest.raises(StoreFailed, match=r"changes up to \d+ were kept.*avm repair"):
        opened(clean)
    assert clean.exists() == (what != "gone")


def test_anchors_alone_know_what_is_missing(clean: Path) -> None:
    sync_note.beside(clean).unlink()
    clean.unlink()
    with pytest.raises(StoreFailed, match="is not there, though changes up to"):
        opened(clean)


def test_a_torn_tail_after_a_crash_is_no_loss(crash: Path) -> None:
    """What was never promised: the last transaction came half to the disk."""
    log = wal_frames.beside(crash)
    found = wal_frames.look(log)
    assert found is not None
    whole = notes_in_copy(crash)
    with open(log, "r+b") as file:  # frames of one more transaction, the first of them torn
        file.seek(0, os.SEEK_END)
        file.write(struct.pack(">II", 5, 0) + found.salt + bytes(8) + bytes(4096))
    opened(crash).close()
    assert notes_in(crash) == whole == NOTES
    assert loss_check.asides(log) == []


def notes_in_copy(path: Path) -> int:
    copy = path.parent.parent / "copy"
    shutil.copytree(path.parent, copy)
    return notes_in(copy / path.name)


def test_commits_nobody_was_promised_are_put_aside_and_said(crash: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that lost power keeps some of what was not synced: nobody knows which, so it stands aside, and the store
    is opened."""
    log = wal_frames.beside(crash)
    found = wal_frames.look(log)
    assert found is not None
    last = found.frames - 10
    flip(log, 32 + last * FRAME + 24 + 1000)
    with contextlib.closing(sqlite3.connect(f"file:{crash}?mode=ro", uri=True)) as db:
        seq = db.execute("select max(seq) from log").fetchone()[0]
    anchors.beside(crash).unlink()
    sync_note.beside(crash).unlink()
    keeper = sync_note.SyncNote(crash)
    keeper.write(seq)
    keeper.close()
    damaged = log.read_bytes()
    opened(crash).close()
    (aside,) = loss_check.asides(log)
    assert aside.read_bytes() == damaged and aside.stat().st_mode & 0o777 == 0o600
    assert "nobody was told" in caplog.text and aside.name in caplog.text


def test_commits_nobody_was_promised_stop_no_start_where_there_is_no_room_for_a_copy(
    crash: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = wal_frames.beside(crash)
    found = wal_frames.look(log)
    assert found is not None
    flip(log, 32 + (found.frames - 10) * FRAME + 24 + 1000)
    anchors.beside(crash).unlink()
    sync_note.beside(crash).unlink()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    opened(crash).close()
    assert loss_check.asides(log) == [] and "no copy could be made: No space left on device" in caplog.text


def test_what_was_put_aside_just_now_is_kept_whatever_the_clock_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "avm.db-wal"
    for number in range(3):
        log.with_name(f"{log.name}.aside-2999010{number + 1}T000000Z").write_bytes(b"of tomorrow")
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 11, 28, 12, 0, 0, 5, 332, 0)))
    made = []
    for text in (b"one", b"two"):  # in one second
        log.write_bytes(text)
        made.append(loss_check.put_aside(log))
        assert made[-1].read_bytes() == text and len(loss_check.asides(log)) == loss_check.KEPT
    assert made[0] != made[1]


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("AVM_")]:
        monkeypatch.delenv(name)
    yield


# Checksums -------------------------------------------------------------------------------------------------------


def sql(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_wrong_bytes_are_never_told_silently(clean: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the disk has turned is an error that names the file, and one line of the log; the rest is served."""
    data = clean.read_bytes()
    small, big = (
        data.index(b"pump 77 and its"),
        data.index(bytes(range(256)) * 3, data.index(bytes(range(256)) * 3) + 8192),
    )
    flip(clean, small, 1)
    flip(clean, big, 1)
    store = opened(clean)
    try:
        for name in (place(77), [b"memory", b"shared", b"big.bin"]):
            shown = b"/" + b"/".join(name)
            with store.reading(ALICE) as reader:
                node = reader.child(1, b"memory")
                for part in name[1:]:
                    assert node is not None
                    node = reader.child(node.id, part)
                assert node is not None
                for _ in range(2):
                    with pytest.raises(StoreFailed, match="not those that were written") as told:
                        reader.read(node.id, 0, 1 << 20)
            assert told.value.filename == shown.decode() and told.value.errno == errno.EIO
            with pytest.raises(StoreFailed):
                store.cached_read(ALICE, node.id, 0, 1 << 20)
            with pytest.raises(StoreFailed):
                for at in range(100, node.size, 1 << 16):
                    store.submit(ALICE, "commit", node=node.id, handle=None, edits=[["w", at, b"more"]])
        written(store, 78, 80)
    finally:
        store.close()
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


def test_contents_of_an_older_store_get_their_checksums(clean: Path) -> None:
    sql(
        clean,
        "update body set crc = null",
        "update block set crc = null",
        "insert or replace into setting(key, value) values('unsummed', 'body')",
    )
    store = opened(clean)
    while store.submit(OPERATOR, "sum_contents", most=10_000)["more"]:
        pass
    store.close()
    with contextlib.closing(sqlite3.connect(clean)) as db:
        rows = db.execute("select data, crc from body union all select data, crc from block").fetchall()
    assert len(rows) > NOTES and all(zlib.crc32(data) == crc for data, crc in rows)


# Every state: what doctor says, and what repair saves ------------------------------------------------------------


Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`avm ... --json` in this process, on the store below ``tmp_path``: its exit code, and what it says."""
    for name, place in (("DATA_DIR", "data"), ("RUNTIME_DIR", "run"), ("CONFIG_DIR", "config")):
        monkeypatch.setenv(f"AVM_{name}", os.fspath(tmp_path / place))
    monkeypatch.setenv("AVM_AGENT", "alice")

    def do(*arguments: str) -> tuple[int, Any]:
        done = CliRunner().invoke(avm, ["--json", *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit | AvmError), done.exc_info
        if isinstance(done.exception, AvmError):
            return 1, str(done.exception)
        return done.exit_code, json.loads(done.stdout)

    return do


def problems(run: Run) -> list[dict[str, str]]:
    code, found = run("doctor")
    wrong = [
        each for each in found if each["state"] == "problem" and not each["about"].startswith(("/dev/fuse", "fuser"))
    ]
    assert code == (1 if any(each["state"] == "problem" for each in found) else 0)
    assert all(each["todo"] for each in wrong), wrong
    return wrong


def leaf(path: Path, table: str, *, kind: str = "leaf") -> int:
    """A page in the middle of a table's."""
    db = connect(path)
    pages = [n for (n,) in db.execute("select pageno from dbstat where name = ? and pagetype = ?", (table, kind))]
    db.close()
    return int(pages[len(pages) // 2])


def page_of(path: Path, table: str, data: bytes, **which: str) -> None:
    poke(path, (leaf(path, table, **which) - 1) * 4096, data)


def older(path: Path) -> None:
    path.unlink()
    store = open_direct(path.with_name("older.db"), Policy(), IndexRules())
    written(store, 0, 3)
    store.close()
    path.with_name("older.db").rename(path)
    for left in path.parent.glob("older.db*"):
        left.unlink()


def without(path: Path) -> None:
    path.unlink()


def turn(path: Path, what: bytes) -> None:
    flip(path, path.read_bytes().index(what) + 4, 1)


def cut_anchors(path: Path) -> None:
    at = anchors.beside(path)
    at.write_text("627 6e34zz\n" + at.read_text())


def forged(path: Path, seq: int | None = None) -> None:
    at = anchors.beside(path)
    number = int(at.read_text().split()[0]) if seq is None else seq
    at.write_text(f"{number} {'ab' * 32} 2026-01-01T00:00:00Z\n")


ZEROS, NOISE = bytes(4096), random.Random(1).randbytes(4096)
CLEAN, CRASH = "clean", "crash"
# What is done to the store; the image it is done to; what doctor has to say of it; how repair is called; how many of
# the notes it saves at least; does it have to list a loss?
STATES: dict[str, tuple[Callable[[Path], Any], str, str, tuple[str, ...], int, bool]] = {
    "header: magic": (lambda p: poke(p, 0, b"nothing at all"), CLEAN, "header", (), 300, False),
    "header: page size": (lambda p: poke(p, 16, b"\x02\x00"), CLEAN, "header", (), 300, False),
    "page 1 zeroed": (lambda p: poke(p, 0, ZEROS), CLEAN, "header", (), 300, False),
    "page 1 noise": (lambda p: poke(p, 0, NOISE), CLEAN, "header", (), 300, False),
    **{
        f"{table}: a page of {name}": (
            lambda p, table=table, data=data: page_of(p, table, data),
            CLEAN,
            said,
            (),
            least,
            loses,
        )
        for table, said, least, loses in (
            ("node", "table node", 240, True),
            ("body", "table body", 300, True),
            ("document", "table document", 300, True),
            ("version", "table version", 300, False),
            ("log", "table log", 300, True),
            ("block", "table block", 300, True),
            ("extent", "table extent", 300, True),
            ("chain", "table chain", 300, False),
            ("passage", "table passage", 300, False),
            ("terms_data", "table terms", 300, False),
            ("dirent", "table node", 300, False),
            ("sqlite_schema", "malformed", 300, False),
        )
        for name, data in (("zeros", ZEROS), ("noise", NOISE))
    },
    "node: its root": (lambda p: page_of(p, "node", ZEROS, kind="internal"), CLEAN, "node", (), 300, False),
    "body: its root": (lambda p: page_of(p, "body", NOISE, kind="internal"), CLEAN, "body", (), 300, False),
    "log: a bad frame": (
        lambda p: flip(wal_frames.beside(p), 32 + 400 * FRAME + 1024),
        CRASH,
        "frame 401 of",
        (),
        300,
        False,
    ),
    "log: cut": (
        lambda p: os.truncate(wal_frames.beside(p), wal_frames.beside(p).stat().st_size // 2),
        CRASH,
        "changes up to",
        ("--accept-loss",),
        100,
        True,
    ),
    "log: header": (lambda p: poke(wal_frames.beside(p), 0, NOISE[:32]), CRASH, "header", (), 300, False),
    "log: gone": (lambda p: wal_frames.beside(p).unlink(), CRASH, "changes up to", ("--accept-loss",), 0, True),
    "database: empty": (lambda p: os.truncate(p, 0), CLEAN, "is empty", ("--accept-loss",), 0, True),
    "database: gone": (without, CLEAN, "is not there", ("--accept-loss",), 0, True),
    "database: gone, its log is there": (without, CRASH, "is not there", (), 300, False),
    "database: an older one": (older, CLEAN, "changes up to", ("--accept-loss",), 3, True),
    "database: half of it": (
        lambda p: os.truncate(p, p.stat().st_size // 8192 * 4096),
        CLEAN,
        "pages",
        ("--accept-loss",),
        0,
        True,
    ),
    "keys: a class that is not there": (
        lambda p: sql(p, "update node set scope = 99999 where name in (cast('bob' as blob), cast('own.md' as blob))"),
        CLEAN,
        "keys: 2: node",
        (),
        300,
        False,
    ),
    "index: sums": (lambda p: sql(p, "update scope_stat set passages = 1"), CLEAN, "sums", (), 300, False),
    "index: vectors of nothing": (
        lambda p: sql(p, "insert into vector values(99999, 1, 1, 'm', x'00')"),
        CLEAN,
        "vectors",
        (),
        300,
        False,
    ),
    "anchors: gone": (lambda p: anchors.beside(p).unlink(), CLEAN, "none", (), 300, False),
    "anchors: not anchors": (cut_anchors, CLEAN, "not an anchor", (), 300, False),
    "anchors: forged": (forged, CLEAN, "an anchor differs", (), 300, False),
    "anchors: newer": (lambda p: forged(p, 5000), CLEAN, "changes up to 5000", ("--accept-loss",), 300, True),
    "a bit of a body": (lambda p: turn(p, b"pump 88 and"), CLEAN, "note-88.md", (), 300, True),
    "a bit of a block": (lambda p: turn(p, BIG[:256]), CLEAN, "big.bin", (), 300, True),
    "a row of the log": (
        lambda p: sql(p, "drop trigger log_is_append_only", "update log set agent = 'eve' where seq = 40"),
        CLEAN,
        "row 40 is not as it was chained",
        (),
        300,
        False,
    ),
}


@pytest.mark.parametrize("image", [CLEAN, CRASH])
def test_doctor_finds_nothing_in_what_no_damage_was_done_to(made: Path, tmp_path: Path, run: Run, image: str) -> None:
    shutil.copytree(made / image, tmp_path / "data")
    assert problems(run) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_wrong_with_a_store_of_an_older_version(tmp_path: Path, run: Run, version: int) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    path = load(version, tmp_path / "data")
    path.chmod(0o600)
    before = path.read_bytes()
    assert problems(run) == []
    code, done = run("repair", "--dry-run")
    assert code == 0 and done["found"] == []
    assert path.read_bytes() == before


def test_of_an_older_store_rows_below_a_lost_page_are_saved(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    path = load(tables.OLDEST, tmp_path / "data")
    path.chmod(0o600)
    pieces = [b"piece %d\n" % number * 60 for number in range(60)]
    with contextlib.closing(connect(path)) as db:
        large = "(select id from node where name = cast('large.bin' as blob))"
        for number, piece in enumerate(pieces, 100):
            db.execute("insert into block(id, data) values(?, ?)", (number, piece))
            db.execute(f"insert into extent(node, n, block) values({large}, ?, ?)", (number, number))
        db.execute(f"update node set size = ? where id = {large}", (160 * tables.BLOCK,))
    page_of(path, "block", ZEROS, kind="internal")
    code, told = run("repair")
    assert code == 0 and not any("belong to no table" in line for line in told["lost"]), told
    data = everything(path, ALICE, b"large.bin")
    assert [data[at * tables.BLOCK :][: len(piece)] for at, piece in enumerate(pieces, 100)] == pieces
    assert data.startswith(b"head") and problems(run) == []


def test_doctor_waits_for_the_first_anchors_of_what_has_just_been_chained(
    clean: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, away = anchors.beside(clean), clean.with_name("away")
    kept.rename(away)
    monkeypatch.setattr(time, "sleep", lambda seconds: away.exists() and away.rename(kept))
    assert problems(run) == [] and not away.exists()


@pytest.mark.parametrize("state", STATES)
def test_doctor_finds_it_and_repair_saves_the_rest(made: Path, tmp_path: Path, run: Run, state: str) -> None:
    damage, image, said, options, least, loses = STATES[state]
    shutil.copytree(made / image, tmp_path / "data")
    path = tmp_path / "data" / "avm.db"
    damage(path)
    before = snapshot(path.parent), (names := sorted(os.listdir(path.parent)))
    found = problems(run)
    assert any(said in each["says"] for each in found), found
    # Who wrote what a changed row of the log tells of, nobody can say any more: it stays as it is.
    left = "row 40 of the log says" if state == "a row of the log" else "nothing"
    assert all("avm repair" in each["todo"] or left in each["says"] for each in found), found
    assert (snapshot(path.parent), sorted(os.listdir(path.parent))) == before, "doctor has changed something"

    if options:  # nothing is given up without being told to
        code, told = run("repair")
        assert code == 1 and told["state"] == "refused" and told["missing"] > 0, told
        assert snapshot(path.parent).keys() == before[0].keys() and not loss_check.rescued(path)
    assert run("repair", "--dry-run", *options)[1]["state"] == "dry run" and sorted(os.listdir(path.parent)) == names
    code, told = run("repair", *options)
    assert code == 0 and told["state"] == "repaired", told
    assert bool(told["lost"] or told["kept"]) >= loses, told
    (aside,) = loss_check.rescued(path)
    assert os.fspath(aside) == told["aside"] and aside.stat().st_mode & 0o777 == 0o700
    for name, (_, _, data) in before[0].items():
        if name.endswith((".db", "-wal", ".anchors", ".synced")):
            assert (aside / name).read_bytes() == data, name

    assert [each for each in problems(run) if left not in each["says"]] == []
    assert notes_in(path) >= least
    wrong = [line for line in faults(path, Policy()) if "has scope" not in line and left not in line]
    assert wrong == []
    store = opened(path)
    try:
        written(store, NOTES, NOTES + 5)
        with store.reading(Principal("alice")) as reader:  # nothing is shown to more agents than before
            private = reader.child(4, b"bob")
        assert private is None and store.life(), "who noted its numbers elsewhere can tell"
    finally:
        store.close()
    assert run("repair")[1]["state"] == "sound"


def at(reader: Any, *names: bytes) -> Any:
    """The node below /memory."""
    node = reader.child(tables.ROOT, b"memory")
    for name in names:
        assert node is not None, names
        node = reader.child(node.id, name)
    return node


def everything(path: Path, who: Principal, *names: bytes) -> bytes:
    store = opened(path)
    try:
        with store.reading(who) as reader:
            node = at(reader, *names)
            return bytes(reader.read(node.id, 0, node.size))
    finally:
        store.close()


LOST_AND_FOUND = Principal("lost-and-found")
FOUND = (b"private", b"lost-and-found", b"lost+found")


def found_by(path: Path, beginning: str) -> list[bytes]:
    """What is in lost+found under such names, in their order."""
    store = opened(path)
    try:
        with store.reading(LOST_AND_FOUND) as reader:
            nodes = [
                node for node in reader.children(at(reader, *FOUND).id) if node.name.startswith(beginning.encode())
            ]
            return [bytes(reader.read(node.id, 0, node.size)) for node in nodes]
    finally:
        store.close()


def test_blocks_of_which_nobody_knows_the_file_are_kept_and_files_with_gaps_are_named(clean: Path, run: Run) -> None:
    page_of(clean, "extent", ZEROS)
    code, told = run("repair")
    assert code == 0, told
    assert any(f"big.bin: bytes 0 to {len(BIG)}, now zeros: a hole, or lost" in line for line in told["lost"]), told
    assert any("lost+found, as block-" in line for line in told["lost"]), told
    assert b"".join(found_by(clean, "block-")) == BIG
    assert everything(clean, ALICE, b"shared", b"big.bin") == bytes(len(BIG))
    assert problems(run) == [] and faults(clean, Policy()) == []


def test_a_file_whose_end_was_in_a_lost_page_is_named(clean: Path, run: Run) -> None:
    store = opened(clean)
    with store.reading(ALICE) as reader:
        node = at(reader, b"shared", b"big.bin").id
    store.submit(ALICE, "commit", node=node, handle=None, edits=[["w", len(BIG), b"a line\n"]])
    store.close()
    page_of(clean, "tail", NOISE)
    told = run("repair")[1]
    assert any(f"big.bin: bytes {len(BIG)} to {len(BIG) + 7}, now zeros" in line for line in told["lost"]), told
    assert everything(clean, ALICE, b"shared", b"big.bin") == BIG + bytes(7)


def test_a_large_file_whose_entry_is_lost_is_in_lost_and_found_as_a_small_one_is(clean: Path, run: Run) -> None:
    store = opened(clean)
    store.submit(ALICE, "write_path", path=[b"memory", b"shared", b"unlinked.bin"], data=BIG)
    store.close()
    sql(  # what was unlinked and still open is nobody's loss
        clean,
        "delete from node where name = cast('big.bin' as blob)",
        "update node set parent = null where name = cast('unlinked.bin' as blob)",
    )
    told = run("repair")[1]
    assert any(f"the name of {len(BIG)} bytes" in line for line in told["lost"]), told
    assert found_by(clean, "node-") == [BIG] and not found_by(clean, "block-")
    assert problems(run) == [] and faults(clean, Policy()) == []


@pytest.mark.parametrize("sparse", [False, True])
def test_a_large_version_becomes_the_file_whose_newest_bytes_are_lost(clean: Path, run: Run, sparse: bool) -> None:
    store = opened(clean)
    store.submit(ALICE, "write_path", path=[b"memory", b"shared", b"file"], data=b"first" * 100)
    with store.reading(ALICE) as reader:
        node = at(reader, b"shared", b"file").id
    edits = [["w", 150_000, b"end"] if sparse else ["w", 0, BIG]]
    store.submit(ALICE, "commit", node=node, handle=None, edits=[["t", 0], *edits])
    store.submit(ALICE, "write_path", path=[b"memory", b"shared", b"file"], data=b"small again")
    store.close()
    sql(clean, f"delete from body where id = (select body from node where id = {node})")
    told = run("repair")[1]
    assert any("/memory/shared/file: its newest bytes; v2 is there again" in line for line in told["lost"]), told
    assert everything(clean, ALICE, b"shared", b"file") == (bytes(150_000) + b"end" if sparse else BIG)
    assert problems(run) == [] and faults(clean, Policy()) == []


@contextlib.contextmanager
def unreadable(path: Path, at: int) -> Iterator[None]:
    """A sector of the disk that this file has there."""
    pread, number = os.pread, path.stat().st_ino

    def failing(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == number and offset <= at < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, size, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", failing)
        yield


@pytest.mark.parametrize("page", [1, "passage"])
def test_a_page_that_the_disk_does_not_give_is_one_that_is_damaged(clean: Path, run: Run, page: int | str) -> None:
    number = page if isinstance(page, int) else leaf(clean, page)
    before = clean.read_bytes()
    with unreadable(clean, number * 4096 - 1):
        code, told = run("repair", "--dry-run")
        assert (code, told["state"]) == (0, "dry run"), told
        code, told = run("repair")
    assert (code, told["state"]) == (0, "repaired"), told
    assert f"{clean}: the disk does not give 1 of its pages, such as {number}" in told["found"], told
    aside = (Path(told["aside"]) / clean.name).read_bytes()
    assert aside == before[: number * 4096 - 4096] + bytes(4096) + before[number * 4096 :]
    assert notes_in(clean) == NOTES and problems(run) == []


def test_a_log_that_the_disk_does_not_give_whole_is_repaired(crash: Path, run: Run) -> None:
    log = wal_frames.beside(crash)
    size = log.stat().st_size
    with unreadable(log, 32 + 400 * FRAME + 1024):
        assert any("frame 40" in each["says"] and str(log) in each["says"] for each in problems(run))
        code, told = run("repair")
    assert (code, told["state"]) == (0, "repaired"), told
    assert (Path(told["aside"]) / log.name).stat().st_size == size and notes_in(crash) == NOTES


def test_doctor_names_a_file_that_the_disk_does_not_give(crash: Path, run: Run) -> None:
    with unreadable(crash, 5):
        (found,) = problems(run)
    assert found["says"] == f"{crash}: Input/output error" and found["todo"] == "avm repair"


def test_classes_that_cannot_be_read_any_more_are_given_to_nobody_else(clean: Path, run: Run) -> None:
    """The log names them by number: under a number given anew its rows would show to others."""
    agents = [Principal(name) for name in ("carol", "dave", "erin", "frank")]
    store = opened(clean)
    for who in agents:
        store.submit(who, "enroll")
        at = [b"memory", b"private", who.name.encode()]
        store.submit(who, "write_path", path=[*at, b"secret-of-%s.md" % who.name.encode()], data=b"x")
    store.close()
    with contextlib.closing(sqlite3.connect(clean)) as db:
        [root] = db.execute("select rootpage from sqlite_schema where name = 'scope'").fetchone()
    poke(clean, (root - 1) * 4096, b"\xa5" * 4096)
    assert run("repair", "--accept-loss")[1]["state"] == "repaired"
    store = opened(clean)
    try:
        for who in agents:
            store.submit(who, "write_path", path=[b"memory", b"private", who.name.encode(), b"new.md"], data=b"y")
        for who in agents:
            with store.reading(who) as reader:
                told = {change.path for change in reader.changes(tables.ROOT, limit=10_000)}
                named = reader.child(4, who.name.encode())
                assert named is not None and len(reader.children(named.id)) == 2  # its own is there, as before
            assert b"/memory/private/%s/new.md" % who.name.encode() in told
            private = [path for path in told if path.startswith(b"/memory/private/")]
            assert [path for path in private if not path.startswith(b"/memory/private/%s" % who.name.encode())] == []
    finally:
        store.close()


def schema_page(path: Path, *names: str) -> int:
    """The page that names these tables."""
    db = connect(path)
    pages = [n for (n,) in db.execute("select pageno from dbstat where name = 'sqlite_schema' and pagetype = 'leaf'")]
    db.close()
    data = path.read_bytes()
    texts = {page: data[(page - 1) * 4096 : page * 4096] for page in pages}
    return next(page for page, text in texts.items() if all(f"CREATE TABLE {name}(".encode() in text for name in names))


def test_contents_of_which_the_schema_is_lost_are_told_from_each_other_by_what_names_them(
    clean: Path, run: Run
) -> None:
    """Small and large ones are rows of one shape; and rows of an index look like agents."""
    page = schema_page(clean, "body", "block")
    poke(clean, (page - 1) * 4096, ZEROS)
    code, told = run("repair", "--accept-loss")
    assert code == 0, told
    assert not any("newest bytes" in line or "now zeros" in line for line in told["lost"]), told
    assert everything(clean, ALICE, b"shared", b"big.bin") == BIG
    assert notes_in(clean) == NOTES
    with contextlib.closing(opened(clean)) as store, store.reading(ALICE) as reader:
        assert reader.agents() == ["bob"]
    assert problems(run) == [] and faults(clean, Policy()) == []


@pytest.mark.parametrize(
    ("table", "column", "data"),
    [
        ("message", "body", b"a l\xaatter"),
        ("document", "creator", b"alic\xaa"),
        ("scope", "spec", b"*=none;bo\xaa=rw"),
        ("scope", "spec", b"*=none;bob=rq"),
    ],
)
def test_a_text_that_is_none_is_found_and_its_row_given_up(
    clean: Path, run: Run, table: str, column: str, data: bytes
) -> None:
    with contextlib.closing(sqlite3.connect(clean)) as db:
        which = "where spec like '%bob=rw%'" if table == "scope" else ""
        db.execute(
            f"update {table} set {column} = cast(? as text) where rowid = (select rowid from {table} {which} limit 1)",
            (data,),
        )
        db.commit()
    assert problems(run), "doctor finds it"
    code, told = run("repair", "--accept-loss")
    assert code == 0 and told["state"] == "repaired", told
    assert problems(run) == [] and notes_in(clean) == NOTES
    with contextlib.closing(opened(clean)) as store, store.reading(BOB) as reader:
        assert b"bob's own pump" in everything(clean, BOB, b"private", b"bob", b"own.md")
        assert len(reader.changes(tables.ROOT, limit=10_000)) >= NOTES
    assert faults(clean, Policy()) == []


def test_a_snapshot_can_be_read_though_the_settings_are_lost(clean: Path, run: Run) -> None:
    store = open_direct(clean, Policy(), IndexRules(past_days=30))
    store.submit(OPERATOR, "snapshot", name="s")
    store.submit(ALICE, "write_path", path=place(7), data=b"another")
    store.close()
    with contextlib.closing(sqlite3.connect(clean)) as db:
        [root] = db.execute("select rootpage from sqlite_schema where name = 'setting'").fetchone()
    poke(clean, (root - 1) * 4096, ZEROS)
    told = run("repair")[1]
    assert any("snapshots alone can be seen" in line for line in told["lost"]), told
    store = opened(clean)
    try:
        with store.reading(ALICE) as reader:
            then = reader.moment("s")
        with store.reading_at(ALICE, then) as reader:
            node = at(reader, *place(7)[1:])
            assert reader.read(node.id, 0, node.size) == note(7)
    finally:
        store.close()


# What is beside the store ----------------------------------------------------------------------------------------


def test_a_newer_and_a_foreign_database_are_left_alone(clean: Path, run: Run) -> None:
    for statement, said in (
        (f"pragma user_version = {tables.VERSION + 1}", "newer avmfs"),
        ("pragma application_id = 7", "another program"),
    ):
        sql(clean, statement)
        before = snapshot(clean.parent)
        (found,) = problems(run)
        assert said in found["says"] and "AVM_DB" in found["todo"]
        assert said != "another program" or "avm --operator import avm-db FILE" in found["says"]
        code, told = run("repair")
        assert code == 1 and said in told and unchanged(clean.parent, before)
        sql(clean, f"pragma user_version = {tables.VERSION}")


def test_a_lock_that_a_killed_daemon_left_is_no_problem(clean: Path, run: Run) -> None:
    lock = StoreLock(clean).path
    lock.write_text(json.dumps({"pid": 4_000_000, "socket": "/nowhere"}))
    assert problems(run) == [] and "nobody holds it" in json.dumps(run("doctor")[1])
    opened(clean).close()
    lock.unlink()
    lock.mkdir()
    found, *more = problems(run)
    assert more == [], more
    assert f"{lock} is a directory" in found["says"] and found["todo"] == f"mv {lock} {lock}.away"
    subprocess.run(found["todo"], shell=True, check=True)
    assert problems(run) == []


def test_advice_about_a_folder_with_a_blank_is_a_command(
    clean: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = clean.parent.rename(tmp_path / "it's mine")
    monkeypatch.setenv("AVM_DATA_DIR", os.fspath(folder))
    (folder / "avm.db").chmod(0o644)
    lock = StoreLock(folder / "avm.db").path
    lock.unlink(missing_ok=True)
    lock.mkdir()
    for found in problems(run):
        subprocess.run(found["todo"], shell=True, check=True)
    assert problems(run) == []


def test_modes_and_the_runtime_folder_are_looked_at(clean: Path, run: Run, tmp_path: Path) -> None:
    clean.chmod(0o644)
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    found = problems(run)
    assert [each["about"] for each in found] == ["modes", "runtime"]
    for each in found:
        subprocess.run(each["todo"], shell=True, check=True)
    assert problems(run) == []
    (tmp_path / "run").rmdir()
    (tmp_path / "run").touch()
    assert "is not a directory" in problems(run)[0]["says"]


def fill(folder: Path, left: int) -> Path:
    """A file that leaves so many bytes of the disk."""
    other = folder / "other"
    with contextlib.suppress(OSError), open(other, "wb", buffering=0) as file:
        while (disk := os.statvfs(folder)).f_bavail * disk.f_frsize > left:
            file.write(bytes(4096))
    return other


@pytest.mark.parametrize("left", [0, 1 << 20])
def test_a_full_disk_is_said_and_what_is_advised_helps(
    made: Path, tmp_path: Path, run: Run, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVM_AUTOSTART", "0")
    folder, text = tmp_path / "data", "words " * 10_000
    with small_disk(folder, "24m"):
        shutil.copytree(made / CLEAN, folder, dirs_exist_ok=True)
        assert run("write", "/memory/shared/large.md", text)[0] == 0
        other = fill(folder, left)
        (found,) = problems(run)
        assert found["about"] == "disk" and ("little" if left else "nothing") + " can be written" in found["says"]
        look, free, *until = found["todo"].split("; ")
        done = subprocess.run(look, shell=True, check=True, capture_output=True, text=True)
        assert f" {folder}\n" in done.stdout and free == "free some of that disk"
        assert until == (["until then, avm rm makes room for what is written"] if left else [])
        # What it does to a daemon that refuses everything else: tests/mount/test_mount_full_disk.py.
        assert run("rm", "/memory/shared/large.md")[0] == (0 if left else 1)
        other.unlink()
        assert problems(run) == []
        assert run("write", "/memory/shared/new.md", text)[0] == 0


def test_a_disk_for_reading_alone_is_said_and_what_is_advised_helps(made: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "data"
    with small_disk(folder, "24m"):
        shutil.copytree(made / CLEAN, folder, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", os.fspath(folder)], check=True)
        (found,) = problems(run)
        assert found["about"] == "data" and "mounted for reading alone" in found["says"]
        way, other = found["todo"].split(", or ")
        assert "AVM_DATA_DIR" in other
        subprocess.run(way, shell=True, check=True)
        assert problems(run) == [] and os.access(folder, os.W_OK)


def test_a_repair_that_was_cut_short_is_finished_by_the_next(
    crash: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(wal_frames.beside(crash), 32 + 400 * FRAME + 1024)
    with monkeypatch.context() as dying:
        dying.setattr(loss_check, "finish", lambda path, kept: None)
        assert run("repair")[0] == 0
    wal_frames.beside(crash).unlink()  # as far as it came
    sync_note.beside(crash).unlink()
    with pytest.raises(StoreFailed, match="repair was begun"):
        opened(crash)
    assert run("repair", "--dry-run")[0] == 1 and loss_check.repaired(crash).exists()
    assert any("repair was begun" in each["says"] for each in problems(run))
    assert run("repair")[1]["state"] == "sound" and problems(run) == [] and notes_in(crash) == NOTES


def test_the_copy_of_a_repair_that_was_killed_is_told_and_goes_with_the_next(clean: Path, run: Run) -> None:
    left = clean.with_name(f"{clean.name}.repairing-x7")
    left.mkdir()
    (left / "image.db").write_bytes(clean.read_bytes())
    (found,) = [each for each in run("doctor", "--quick")[1] if os.fspath(left) in each["says"]]
    assert found["state"] == "note" and "avm repair" in found["todo"] and left.exists()
    assert run("repair")[0] == 0 and not left.exists()


def test_of_two_repairs_within_a_second_both_copies_are_kept(
    clean: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260102T030405Z")
    for words in (b"pump 88 and", b"pump 89 and"):
        turn(clean, words)
        code, told = run("repair")
        assert code == 0 and told["state"] == "repaired", told
    first, second = loss_check.rescued(clean)
    assert os.fspath(second) == told["aside"] != os.fspath(first)


def test_who_has_the_store_open_writes_nothing_that_a_begun_repair_throws_away(clean: Path) -> None:
    store = opened(clean)
    lock = StoreLock(clean)
    lock.release(lock.acquire(1.0), clean=False)
    loss_check.repaired(clean).touch()
    with pytest.raises(StoreFailed, match="repair was begun"):
        written(store, NOTES, NOTES + 1)
    loss_check.repaired(clean).unlink()
    written(store, NOTES, NOTES + 1)
    store.close()


def test_anchors_that_cannot_be_written_leave_the_store_as_it_was(
    crash: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(wal_frames.beside(crash), 32 + 400 * FRAME + 1024)
    anchors.beside(crash).write_bytes(b"no anchors\n")
    before, copy = snapshot(crash.parent), loss_check.copy

    def failing(path: Path, to: Path, lost: list[int] | None = None) -> None:
        if path.name == "anchors":
            raise OSError(errno.ENOSPC, "no room")
        copy(path, to, lost)

    with monkeypatch.context() as full:
        full.setattr(loss_check, "copy", failing)
        with pytest.raises(AssertionError, match="no room"):
            run("repair")
    assert unchanged(crash.parent, before)
    assert run("repair")[0] == 0 and problems(run) == [] and anchors.newest(anchors.beside(crash)) > NOTES


def test_no_note_of_the_old_store_stands_beside_the_new_one(
    crash: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(wal_frames.beside(crash), 32 + 400 * FRAME + 1024)
    replace, seen = Path.replace, []

    def noting(path: Path, to: Path) -> Path:
        if to == crash:
            seen.append(sync_note.beside(crash).exists() or wal_frames.beside(crash).exists())
        return replace(path, to)

    monkeypatch.setattr(Path, "replace", noting)
    assert run("repair")[0] == 0 and seen == [False]


def test_repair_needs_the_store_for_itself(crash: Path, run: Run) -> None:
    lock = StoreLock(crash)
    held = lock.acquire(1.0)
    lock.note(held, {"pid": os.getpid(), "socket": "/nowhere"})
    try:
        code, told = run("repair")
        assert code == 1 and f"pid {os.getpid()}" in told and "avm-daemon stop" in told
    finally:
        lock.release(held, clean=True)


def test_a_quick_look_says_what_it_leaves_out(clean: Path, run: Run) -> None:
    turn(clean, b"pump 88 and")
    code, found = run("doctor", "--quick")
    (said,) = [each for each in found if each["about"] == "store"]
    assert said["state"] == "ok" and "(--quick)" in said["says"]
    assert problems(run) != [] and code in (0, 1)


def test_an_anchor_never_knows_more_than_the_disk(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a store would be refused after an ordinary loss of power."""
    store = opened(clean)
    done: list[str] = []
    submit, append = store.submit, anchors.append

    def noted(who: Principal, command: str, **more: Any) -> Any:
        done.append(command)
        return submit(who, command, **more)

    monkeypatch.setattr(store, "submit", noted)
    monkeypatch.setattr(anchors, "append", lambda *given: (done.append("append"), append(*given)))
    store.submit(ALICE, "enroll")
    chained(store, clean)
    store.close()
    assert done[-3:] == ["extend_chain", "sync", "append"]
