"""A daemon and a damaged store: it is not started over a loss, and damage under a running one stays what it is."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer
from avmfs.store.client.client import DirectWriter
from avmfs.store.files import loss_check, sync_note, wal_frames
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.faults.daemons import Daemon

NOTES = 120
OLDER = 20  # of them are in the older database, and in the one whose log is gone


def written(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(NOTES):
        (folder / f"note-{number}.md").write_text(f"what is known of pump {number}\n" * 20)


def there(folder: Path) -> int:
    return sum(each.read_text().startswith("what is known of pump") for each in folder.glob("note-*.md"))


def damaged(database: Path, what: str) -> None:
    """A store of so many notes that lacks something, as anchors beside it tell."""
    store = open_direct(database, Policy(), IndexRules())
    for number in range(NOTES):
        if number == OLDER:
            store.close()
            shutil.copy(database, database.with_name("older"))
            store = open_direct(database, Policy(), IndexRules())
            assert isinstance(store._submitter, DirectWriter)
            store._submitter._applier.db.execute("pragma wal_autocheckpoint = 0")
        path, data = [b"memory", b"shared", b"note-%d.md" % number], b"what is known of pump %d\n" % number
        store.submit(Principal("alice"), "write_path", path=path, data=data)
    Chainer(store, anchors.beside(database), 0.0, time.time_ns).step()
    older, log = database.with_name("older"), wal_frames.beside(database)
    left, whole = database.read_bytes(), log.read_bytes()  # by one that is killed
    store.close()
    if what == "empty":
        os.truncate(database, 0)
    elif what == "missing":
        database.unlink()
    elif what == "older":
        older.replace(database)
        sync_note.beside(database).unlink()
    else:
        database.write_bytes(left)
    if what == "a frame of its log is bad":  # of a page that is written again behind it, so that nothing is lost
        log.write_bytes(whole)
        found = wal_frames.look(log)
        assert found is not None and found.behind == 0
        pages = [int(page) for page in found.pages]
        frame = next(n for n in range(len(pages) // 4, len(pages)) if pages[n] in pages[n + 1 :])
        at = 32 + frame * 4120 + 24 + 2000
        log.write_bytes(whole[:at] + bytes(byte ^ 0xFF for byte in whole[at : at + 8]) + whole[at + 8 :])
    older.unlink(missing_ok=True)


def contents(data: Path) -> dict[str, bytes]:
    """But for the lock, and for what SQLite makes in order to look: an empty log, and its index."""
    files = {each.name: each.read_bytes() for each in data.iterdir() if each.is_file()}
    return {name: said for name, said in files.items() if said and not name.endswith((".lock", "-shm"))}


@pytest.mark.parametrize(
    ("what", "said", "left"),
    [
        ("empty", "the database is empty, though changes up to", 0),
        ("missing", "the database is not there, though changes up to", 0),
        ("older", "the database is an older one", OLDER),
        ("a frame of its log is bad", "commits stand before it", NOTES),
        ("its log is gone", "its write-ahead log is gone", OLDER),
    ],
)
def test_a_store_that_has_lost_something_is_not_gone_on_with_unless_told_to(
    daemon: Daemon, what: str, said: str, left: int
) -> None:
    daemon.mounts("alice")
    data = daemon.root / "data"
    damaged(data / "avm.db", what)
    before = contents(data)
    listed = daemon.avm("-a", "alice", "ls", "/memory/shared")
    assert listed.returncode == 1 and not listed.stdout, listed
    for told in (listed.stderr, daemon.command("start", "--daemon", expect=1)):
        assert said in told and "avm repair" in told and "--accept-loss" in told, told
    assert contents(data) == before
    told = daemon.command("start", "--daemon", "--accept-loss")
    assert "the store was repaired" in told
    daemon.family()
    shared = daemon.at("alice") / "memory" / "shared"
    assert there(shared) == left
    (shared / "note-new.md").write_text("what is known of pump new")
    assert there(shared) == left + 1
    (aside,) = loss_check.rescued(data / "avm.db")
    assert all((aside / name).read_bytes() == before[name] for name in before if name.startswith("avm.db"))


def test_damage_below_a_running_daemon_is_an_error_of_what_it_touches(daemon: Daemon) -> None:
    """EIO for the files whose pages are bad, a line of the log that no process says twice, and everybody else is
    served."""
    daemon.mounts("alice")
    daemon.start()
    notes = daemon.at("alice") / "memory" / "shared" / "notes"
    written(notes)
    daemon.command("stop")
    database = daemon.root / "data" / "avm.db"
    db = connect(database)
    leaves = "select pageno from dbstat where name = ? and pagetype = 'leaf' order by path"
    # Not the last leaf of the bodies: a new body goes there, so that every write would have to fail. Without the first
    # one of the words, none can be indexed or found.
    bodies, words = (db.execute(leaves, (table,)).fetchall() for table in ("body", "terms_data"))
    pages: list[Any] = [random.choice(bodies[:-1])[0], words[0][0]]
    db.close()
    with open(database, "r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(bytes(4096))
    daemon.start()
    good, bad = 0, 0
    for each in notes.glob("note-*.md"):
        try:
            each.read_text()
            good += 1
        except OSError as e:
            assert e.errno == errno.EIO
            bad += 1
    assert good > NOTES // 2 and 0 < bad < NOTES // 3
    for number in range(5):
        (notes / f"new-{number}.md").write_text("pumps, and more of them\n" * 50)
        with contextlib.suppress(OSError):
            (daemon.at("alice") / ":recall?q=pumps").read_text()
    assert (notes / "new-4.md").read_text().startswith("pumps")
    status = daemon.status()
    assert status["store"]["writer_state"] == "ready" and daemon.state("alice") == "ready"
    log = daemon.log()
    assert "Traceback" not in log, log
    said = [line.split(" ", 2)[2] for line in log.splitlines() if " ERROR " in line or " WARNING " in line]
    assert len(said) == len(set(said)), log
    for process in ("mount alice", "writer"):
        assert any(line.startswith(f"{process}: ERROR {database}: the store is damaged: ") for line in said), log
