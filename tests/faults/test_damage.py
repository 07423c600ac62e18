"""A daemon and a damaged store: it is not started over a loss, and damage under a running one stays what it is."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import apsw

from avmfs.store.files import loss_check, wal_frames
from tests.faults.daemons import Daemon

NOTES = 120


def written(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(NOTES):
        (folder / f"note-{number}.md").write_text(f"what is known of pump {number}\n" * 20)


def there(folder: Path) -> int:
    return sum(each.read_text().startswith("what is known of pump") for each in folder.glob("note-*.md"))


def test_a_start_does_not_throw_away_what_a_bad_frame_hides(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    written(daemon.at("alice") / "memory" / "shared" / "notes")
    daemon.kill_all()
    database = daemon.root / "data" / "avm.db"
    log = wal_frames.beside(database)
    whole = wal_frames.look(log)
    assert whole is not None and whole.behind == 0
    data = bytearray(log.read_bytes())
    at = 32 + whole.frames // 4 * 4120 + 24 + 2000
    data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    log.write_bytes(data)
    for _ in range(2):
        said = daemon.command("start", "--daemon", expect=1)
        assert "commits stand before it" in said and "avm repair" in said, said
    assert log.read_bytes() == data
    said = daemon.command("start", "--daemon", "--accept-loss")
    assert "the store was repaired" in said
    daemon.family()
    assert there(daemon.at("alice") / "memory" / "shared" / "notes") == NOTES
    (aside,) = loss_check.rescued(database)
    assert (aside / log.name).read_bytes() == data


def test_damage_below_a_running_daemon_is_an_error_of_what_it_touches(daemon: Daemon) -> None:
    """EIO for the files whose pages are bad, one line of the log each, and everybody else is served."""
    daemon.mounts("alice")
    daemon.start()
    notes = daemon.at("alice") / "memory" / "shared" / "notes"
    written(notes)
    daemon.command("stop")
    database = daemon.root / "data" / "avm.db"
    db = apsw.Connection(os.fspath(database))
    leaves = "select pageno from dbstat where name = ? and pagetype = 'leaf' order by path"
    # Not the last leaf of the bodies: a new body goes there, so that every write would have to fail.
    pages: list[Any] = [
        random.choice(db.execute(leaves, (table,)).fetchall()[:-1])[0] for table in ("body", "terms_data")
    ]
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
    assert (notes / "new-4.md").read_text().startswith("pumps")
    status = daemon.status()
    assert status["store"]["writer_state"] == "ready" and daemon.state("alice") == "ready"
    log = daemon.log()
    assert "Traceback" not in log, log
    assert log.count("damaged") < 40, log
