"""The past from the command line and from Python: what was read, listed and searched, restored, compared, blamed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from avmfs import AVM
from avmfs.errors import Exists, NotFound, ReadOnly

D = "/shared/p"


def instant() -> datetime:
    time.sleep(0.002)
    found = datetime.now(UTC)
    time.sleep(0.002)
    return found


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folders = {f"AVM_{name}_DIR": str(tmp_path / name.lower()) for name in ("DATA", "CONFIG", "RUNTIME")}
    return {**os.environ, **folders, "AVM_AUTOSTART": "0"}


@pytest.fixture
def avm(environ: dict[str, str]) -> Iterator[AVM]:
    with AVM(agent="alice", environ=environ, embeddings=False) as made:
        yield made


def at(environ: dict[str, str], when: str | datetime, agent: str = "alice") -> AVM:
    return AVM(agent=agent, environ=environ, embeddings=False, at=when)


def test_a_program_reads_lists_and_searches_what_was_and_changes_nothing(environ: dict[str, str]) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as now:
        now.write(f"{D}/a.md", "the owl flies")
        now.write(f"{D}/gone.md", "the owl sleeps")
        then = instant()
        now.write(f"{D}/a.md", "the owl swims")
        now.delete(f"{D}/gone.md", permanently=True)
        now.write(f"{D}/later.md", "the owl sings")
    with at(environ, then) as past:
        assert past.read(f"{D}/a.md") == "the owl flies" and past.read(f"{D}/gone.md") == "the owl sleeps"
        assert [each["name"] for each in past.list(D)] == ["a.md", "gone.md"]
        assert past.search("owl") == []
        assert len(past.history(f"{D}/a.md")) == 1
        assert past.read(f"{D}/:list").count("md") == 2
        for change in (
            lambda: past.write(f"{D}/x.md", "x"), lambda: past.delete(f"{D}/a.md"), lambda: past.snapshot(),
            lambda: past.agent_memory().remember("x"), lambda: past.restore(D, "yesterday"),
        ):  # fmt: skip
            with pytest.raises(ReadOnly):
                change()
    with pytest.raises(NotFound, match="kept from"), at(environ, "1999-01-01") as past:
        past.list("/")


def test_a_subtree_comes_back_as_a_change_of_now(avm: AVM) -> None:
    avm.write(f"{D}/keep/a.md", "one")
    avm.write(f"{D}/keep/deep/b.md", "b" * 100_000)
    then = instant()
    avm.write(f"{D}/keep/a.md", "two")
    avm.delete(f"{D}/keep/deep", recursive=True, permanently=True)
    avm.write(f"{D}/keep/new.md", "new")
    planned = avm.restore(f"{D}/keep", then, dry_run=True)
    assert planned == [
        ("/memory/shared/p/keep/a.md", "write"),
        ("/memory/shared/p/keep/deep", "make"),
        ("/memory/shared/p/keep/deep/b.md", "make"),
    ]
    assert avm.read(f"{D}/keep/a.md") == "two"
    assert avm.restore(f"{D}/keep", then) == planned
    assert avm.read(f"{D}/keep/a.md") == "one" and len(avm.read(f"{D}/keep/deep/b.md")) == 100_000
    assert avm.read(f"{D}/keep/new.md") == "new"
    assert [each["version"] for each in avm.history(f"{D}/keep/a.md")] == [3, 2, 1]
    assert avm.restore(f"{D}/keep", then) == []
    assert avm.restore(f"{D}/keep/a.md", version=2) == [("/memory/shared/p/keep/a.md", "write")]
    assert avm.read(f"{D}/keep/a.md") == "two"
    avm.delete(f"{D}/keep/a.md", permanently=True)
    avm.write(f"{D}/keep/a.md/inside", "a directory now")
    with pytest.raises(Exists, match="something else"):
        avm.restore(f"{D}/keep", then)
    with pytest.raises(NotFound, match="v9"):
        avm.restore(f"{D}/keep/new.md", version=9)


def test_snapshots_are_compared_and_read(environ: dict[str, str]) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        for name in "abc":
            avm.write(f"{D}/{name}", name)
        avm.snapshot("first")
        avm.write(f"{D}/a", "changed")
        avm.move(f"{D}/b", f"{D}/z")
        named = avm.snapshot()
        avm.delete(f"{D}/c", permanently=True)
        assert {each["name"] for each in avm.snapshots()} == {"first", named}
        told = avm._door.call("compare", older="snap.first", newer=f"snap.{named}")["changes"]
        assert {(each["path"][-1], each["status"]) for each in told} == {
            ("a", "modified"),
            ("b", "removed"),
            ("z", "added"),
        }
        told = avm._door.call("compare", older=f"snap.{named}", path=D)["changes"]
        assert [(each["path"], each["status"]) for each in told] == [("/memory/shared/p/c", "removed")]
        with pytest.raises(Exists):
            avm.snapshot("first")
        avm.remove_snapshot("first")
    with at(environ, f"snap.{named}") as past:
        assert past.read(f"{D}/c") == "c"
    with pytest.raises(NotFound, match="no snapshot"), at(environ, f"snap.{named}", "bob") as past:
        past.list("/")


def test_blame_says_who_wrote_each_line(environ: dict[str, str]) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        avm.write(f"{D}/t", "one\ntwo\nthree\n")
    with AVM(agent="bob", environ=environ, embeddings=False) as avm:
        avm.write(f"{D}/t", "zero\none\n2\nthree\n")
        avm.move(f"{D}/t", f"{D}/moved")
        lines = avm._door.call("blame", path=f"{D}/moved")["lines"]
        assert [(each["version"], each["author"], each["text"]) for each in lines] == [
            (2, "bob", "zero"), (1, "alice", "one"), (2, "bob", "2"), (1, "alice", "three")
        ]  # fmt: skip
        assert avm.read(f"{D}/moved:blame").splitlines()[1].startswith("v1  ")
        json.dumps(lines)
