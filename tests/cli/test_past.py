"""The past from the command line and from Python: what was read, listed and searched, restored, compared, blamed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from avmfs import AVM
from avmfs.errors import Exists, NotFound, ReadOnly
from tests.behind import connect

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
            lambda: past.write(f"{D}/x.md", "x"),
            lambda: past.delete(f"{D}/a.md"),
            lambda: past.snapshot(),
            lambda: past.agent_memory().remember("x"),
            lambda: past.restore(D, "yesterday"),
        ):
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


def test_tags_and_links_come_back_with_what_was_restored(avm: AVM) -> None:
    for name in ("a", "b", "out"):
        avm.write(f"{D}/k/{name}.md" if name != "out" else f"{D}/out.md", name)
    avm.write(f"{D}/k/a.md:tags", "red,blue")
    avm.link(f"{D}/k/a.md", f"{D}/k/b.md", "cites")
    avm.link(f"{D}/k/a.md", f"{D}/out.md")
    avm.link(f"{D}/out.md", f"{D}/k/a.md")
    then = instant()
    avm.write(f"{D}/k/b.md:tags", "new")
    avm.delete(f"{D}/k/a.md", permanently=True)
    avm.delete(f"{D}/out.md", permanently=True)
    planned = avm.restore(f"{D}/k", then, dry_run=True)
    assert planned == [(f"/memory{D}/k/a.md", what) for what in ("make", "tags", "links")]
    assert avm.restore(f"{D}/k", then) == planned and avm.restore(f"{D}/k", then) == []
    assert avm.read(f"{D}/k/a.md:tags").strip() == "blue,red" and avm.read(f"{D}/k/b.md:tags").strip() == "new"
    assert avm.read(f"{D}/k/a.md:links").splitlines() == [f"-> /memory{D}/k/b.md (cites)"]
    assert avm.restore(f"{D}/out.md", then)[-1] == (f"/memory{D}/out.md", "links")
    assert "<- /memory/shared/p/out.md" in avm.read(f"{D}/k/a.md:links")


def test_a_handle_leads_to_what_its_file_was(avm: AVM, environ: dict[str, str]) -> None:
    avm.write(f"{D}/h.md", "before")
    handle = json.loads(avm.read(f"{D}/h.md:meta"))["id"]
    then = instant()
    avm.write(f"{D}/h.md", "after")
    avm.move(f"{D}/h.md", f"{D}/i.md")
    with at(environ, then) as past:
        assert past.read(f"/{handle}") == "before"
    avm.delete(f"{D}/i.md", permanently=True)
    with at(environ, then) as past:
        assert past.read(f"/{handle}") == "before"
    with at(environ, then, "bob") as past, pytest.raises(NotFound):
        past.read("/@zzzz")


def test_doctor_finds_damaged_versions_of_what_was_removed_and_repair_says_what_is_lost(
    environ: dict[str, str],
) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        for number in range(3):
            avm.write(f"{D}/d.md", f"{number} of three lines\n" * 50)
            time.sleep(1.1)  # a version each
        avm.delete(f"{D}/d.md", permanently=True)
    db = connect(Path(environ["AVM_DATA_DIR"]) / "avm.db")
    db.execute("update past_version set crc = crc + 1 where number = 2")
    db.close()

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-m", "avmfs.cli", *words], env=environ, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, said = run("doctor")
    assert code == 1 and "v2 of a removed file" in said
    code, said = run("repair", "--yes")
    assert code == 0 and "v2 of a removed file, and those before it" in said, said
    assert "v2 of a removed file" not in run("doctor")[1]


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


def test_a_snapshot_of_a_part_is_compared_below_it(environ: dict[str, str]) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        avm.write(f"{D}/in/a", "a")
        avm.write(f"{D}/out", "out")
        avm.snapshot("part", f"{D}/in")
        avm.write(f"{D}/in/b", "b")
        avm.write(f"{D}/out2", "out")
        assert [each["path"] for each in avm.snapshots()] == ["/memory/shared/p/in"]
        for path in ("/memory", f"{D}/in"):
            told = avm._door.call("compare", older="snap.part", path=path)["changes"]
            assert [(each["path"], each["status"]) for each in told] == [("/memory/shared/p/in/b", "added")]
        with pytest.raises(NotFound, match="no part"):
            avm._door.call("compare", older="snap.part", path=f"{D}/out")
        assert avm._door.call("purge", path=f"{D}/out")["snapshots"] == []
        assert avm._door.call("purge", path=f"{D}/in/a")["snapshots"] == ["part"]
        with pytest.raises(NotFound):
            avm.snapshot("none", f"{D}/nothing")
    with at(environ, "snap.part") as past:
        assert past.read(f"{D}/in/a") == "a" and [each["name"] for each in past.list(D)] == ["in"]


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


def test_no_proof_of_erasure_is_given_of_a_store_that_is_not_there_or_elsewhere(environ: dict[str, str]) -> None:
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        avm.write(f"{D}/kept.md", "the zqxcanary")

    def run(*words: str, **more: str) -> tuple[int, str]:
        words = (sys.executable, "-m", "avmfs.cli", "--operator", *words, "purge", "--verify", "zqxcanary")
        done = subprocess.run(words, env=environ | more, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    code, said = run()
    assert code == 1 and "avm.db: " in said
    for more in ({"AVM_DATA_DIR": f"{environ['AVM_DATA_DIR']}/none"}, {"AVM_DB": f"{environ['AVM_DATA_DIR']}/none.db"}):
        code, said = run(**more)
        assert code == 1 and "there is no store" in said and "nowhere" not in said
    for code, said in (run("--at", "https://host.example:1"), run(AVM_AT="https://host.example:1")):
        assert code == 2 and "AVM_AT" in said and "nowhere" not in said


@pytest.mark.parametrize(
    "words",
    [("backup", "make", "kept"), ("restore", "--from", "kept"), ("repair", "--yes"), ("cluster", "status")],
)
def test_what_works_on_files_of_this_machine_is_refused_where_another_one_is_asked(
    environ: dict[str, str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "avmfs.cli", *words),
        env=environ | {"AVM_AT": "https://host.example:1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2 and "AVM_AT" in done.stderr
    assert not (tmp_path / "kept").exists()
