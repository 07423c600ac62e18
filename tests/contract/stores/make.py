"""Write a dump of a small store, as the code that Python finds makes it: ``python make.py v11.sql``.

A dump is made once, by the code that has this version of the schema first, and never edited: test_store_dumps.py opens
each.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import apsw
import apsw.shell
from avmfs_config import default_settings

from avmfs.access import Principal
from avmfs.rpc.local import LocalDoor

AGENTS = ("alice", "bob", "carol")


def fill(path: Path) -> None:
    """Make a store with something of every kind that does not need the embedding model."""
    doors = {name: LocalDoor(path, default_settings(), name, embeddings=False) for name in AGENTS}
    alice, bob, carol = (doors[name].call for name in AGENTS)
    bob("subscribe", pattern="/shared/*")
    bob("subscribe", pattern="/memory/*", mode="digest", url="https://example.org/hook")
    for number in range(3):
        alice("write", path="/shared/plan.md", data=b"# Plan\n\n" + b"step %d\n" % number * (number + 1))
    bob("write", path="/shared/plan.md", data=b"second step\n", mode="append")
    alice("write", path="/private/draft.md", data=b"the secret draft\n")
    alice("write", path="/private/draft.md", data=b"the published draft\n")
    alice("move", source="/private/draft.md", target="/shared/draft.md")
    carol("write", path="/private/diary.md", data=b"nobody reads this\n")
    alice("write", path="/memory/for-bob.md", data=b"what bob may read\n")
    alice("write", path="/memory/for-bob.md:shared", data=b"bob\n")
    alice("write", path="/memory/empty", data=b"")
    alice("make_directory", path="/memory/deep/er")
    for tags in (["roadmap", "q3"], ["q4"]):
        alice("tag", path="/shared/plan.md", add=tags)
    bob("link", path="/shared/draft.md", target="/shared/plan.md", type="depends-on")
    alice("write", path="/memory/large.bin", data=b"head")
    store, who = doors["alice"]._store, Principal("alice")
    with store.reading(who) as reader:
        memory = reader.child(1, b"memory")
        assert memory is not None
        large = reader.child(memory.id, b"large.bin")
        assert large is not None
    store.submit(who, "commit", node=large.id, handle=None, edits=[["t", 200_000], ["w", 199_997, b"end"]])
    store.submit(who, "commit", node=large.id, handle=None, edits=[["w", 200_000, b" and a tail"]])
    store.submit(who, "symlink", parent=memory.id, name=b"latest", target=b"shared/plan.md")
    first = alice("tell", recipient="bob", body="please read the plan", priority="urgent")["id"]
    bob("inbox", mark_read=True)
    answer = bob("tell", recipient="alice", body="done", re=first)
    assert answer["id"]
    carol("tell", recipient="@all", body="hello all")
    carol("privacy", mode="existence")
    bob("claim", path="/shared/plan.md", lease="30d")
    alice("create_key", paths=["/memory/deep"], label="a key")
    bob("read", path="/shared/:delta")
    alice("write", path="/memory/gone.md", data=b"removed\n")
    alice("remove", path="/memory/gone.md")
    alice("snapshot", name="plan", path="/shared/plan.md")
    for number in "12":
        alice("write", path=f"/memory/deep/er/{number}.md", data=b"Said twice, and once is enough for all.\n")
    alice("consolidate", agreed=alice("consolidate")["agreed"])
    alice("search", q="plan")  # indexes what waits
    alice("write", path="/memory/late.md", data=b"written after the last search\n")
    alice("write", path="/memory/late.md:meta", data=b'{"sources": ["web"]}\n')
    for door in doors.values():
        door.close()


def dump(path: Path) -> str:
    """The store as SQL text. SQLite's own shell would need fts5vocab's table to be there before its rows."""
    out = io.StringIO()
    with contextlib.closing(apsw.Connection(os.fspath(path))) as db:
        apsw.shell.Shell(stdout=out, db=db).process_command(".dump")
        marks = [f"PRAGMA {name} = {db.execute(f'pragma {name}').get};" for name in ("application_id", "user_version")]
    return "\n".join([*marks, re.sub(r"^-- (Database|User|Date|SQLite).*\n", "", out.getvalue(), flags=re.MULTILINE)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "avm.db")
        Path(sys.argv[1]).write_text(dump(Path(folder) / "avm.db"), "utf-8")
