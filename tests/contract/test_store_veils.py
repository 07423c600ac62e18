"""What a file was before others could see it stays with those who could: its earlier versions keep their audience."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import default_settings
from avmfs_config.settings import Rule

from avmfs.errors import Exists, Invalid, NotFound
from avmfs.memory import Memory
from avmfs.rpc.local import LocalDoor
from tests.contract.store_world import ALICE, BOB, World


class Doors:
    """alice, bob and carol at one store without a daemon."""

    def __init__(self, path: Path) -> None:
        self._open = {
            name: LocalDoor(path / "avm.db", default_settings(), name, embeddings=False)
            for name in ("alice", "bob", "carol")
        }
        for name in self._open:
            self.write("/private/own.md", "x", name)  # from now on it is known

    def door(self, who: str) -> LocalDoor:
        return self._open[who]

    def write(self, path: str, text: str, who: str = "alice") -> None:
        self._open[who].call("write", path=path, data=text.encode())

    def move(self, source: str, target: str) -> None:
        self._open["alice"].call("move", source=source, target=target)

    def read(self, path: str, who: str = "bob") -> str:
        return str(self._open[who].call("read", path=path)["data"].decode())

    def versions(self, path: str, who: str = "bob") -> list[int]:
        return [each["version"] for each in self._open[who].call("history", path=path)["versions"]]

    def diff(self, path: str, **of: int) -> str:
        return str(self._open["bob"].call("history", path=path, **of)["diff"])

    def close(self) -> None:
        for door in self._open.values():
            door.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    doors = Doors(tmp_path)
    yield doors
    doors.close()


def test_versions_that_one_may_not_read_are_not_counted(doors: Doors) -> None:
    doors.write("/private/n.md", "one")
    doors.write("/private/n.md", "two")
    doors.move("/private/n.md", "/shared/n.md")
    assert [json.loads(doors.read("/shared/:stats", who))["versions"] for who in ("alice", "bob")] == [2, 1]


def test_versions_from_before_a_file_was_moved_into_shared_space_are_not_for_others(doors: Doors) -> None:
    doors.write("/private/n.md", "zqsecretqz\n")
    doors.write("/private/n.md", "clean\n")
    doors.move("/private/n.md", "/shared/n.md")
    assert doors.read("/shared/n.md") == "clean\n"
    assert doors.versions("/shared/n.md") == [2] and doors.versions("/shared/n.md", "alice") == [2, 1]
    for query in ("from=1&to=2", "from=1", "to=1"):
        with pytest.raises(Invalid, match="v1 is no longer kept; the oldest version is v2"):
            doors.read(f"/shared/n.md:diff?{query}")
        assert "zqsecretqz" in doors.read(f"/shared/n.md:diff?{query}", "alice")
    for query in ("", "?to=2"):
        assert doors.read(f"/shared/n.md:diff{query}") == "--- (no longer kept)\n+++ v2\n@@ -0,0 +1 @@\n+clean\n"
        assert "zqsecretqz" in doors.read(f"/shared/n.md:diff{query}", "alice")
    assert doors.diff("/shared/n.md", newer=2) == doors.read("/shared/n.md:diff")
    with pytest.raises(NotFound, match="v1 is no longer kept"):
        doors.diff("/shared/n.md", older=1, newer=2)
    assert "zqsecretqz" not in doors.read("/shared/n.md:history") + doors.read("/shared/n.md:delta")
    doors.write("/shared/n.md", "further\n", "bob")
    assert doors.versions("/shared/n.md") == [3, 2]  # what was published as it stood is history for all
    assert "-clean" in doors.read("/shared/n.md:diff")
    doors.write("/shared/n.md", "and on\n")
    assert "-further" in doors.read("/shared/n.md:delta") and "zqsecretqz" not in doors.read("/shared/n.md:history")


def test_a_directory_that_is_published_does_not_publish_what_its_files_were(doors: Doors) -> None:
    doors.write("/private/d/e/n.md", "zqsecretqz\n")
    doors.write("/private/d/e/n.md", "clean\n")
    doors.move("/private/d", "/shared/d")
    assert doors.versions("/shared/d/e/n.md") == [2] and doors.versions("/shared/d/e/n.md", "alice") == [2, 1]


def test_what_was_limited_stays_with_those_it_was_limited_to(doors: Doors) -> None:
    doors.write("/shared/l.md", "open\n")
    doors.write("/shared/l.md:shared", "carol")
    doors.write("/shared/l.md", "zqlimitedqz\n")
    doors.write("/shared/l.md", "clean\n")
    doors.write("/shared/l.md:shared", "all")
    assert doors.versions("/shared/l.md") == [3]
    assert doors.versions("/shared/l.md", "carol") == doors.versions("/shared/l.md", "alice") == [3, 2, 1]
    with pytest.raises(Invalid, match="no longer kept"):
        doors.read("/shared/l.md:diff?from=1&to=2")
    assert "zqlimitedqz" in doors.read("/shared/l.md:diff?from=2&to=3", "carol")


def test_a_draft_that_is_saved_over_a_shared_file_leaves_its_history_to_all(doors: Doors) -> None:
    doors.write("/shared/n.md", "one\n")
    doors.write("/shared/n.md", "two\n")
    doors.write("/private/draft.md", "zqdraftqz\n")
    doors.write("/private/draft.md", "three\n")
    doors.move("/private/draft.md", "/shared/n.md")
    assert doors.read("/shared/n.md") == "three\n"
    assert doors.versions("/shared/n.md") == [3, 2, 1]
    assert "-one" in doors.read("/shared/n.md:diff?from=1&to=2")


def test_a_private_file_that_takes_the_place_of_a_symlink_is_published_as_it_stands(doors: Doors) -> None:
    doors.write("/private/n.md", "zqsecretqz\n")
    doors.write("/private/n.md", "clean\n")
    assert doors.door("alice").call("put", items=[{"path": "/shared/current", "target": b"nowhere"}]) == [None]
    doors.move("/private/n.md", "/shared/current")
    assert doors.read("/shared/current") == "clean\n"
    assert doors.versions("/shared/current") == [2] and doors.versions("/shared/current", "alice") == [2, 1]


def test_a_backup_that_comes_back_to_its_name_is_published_as_it_stands(build: Callable[..., World]) -> None:
    world = build([("/memory/*.bak", "none", ("bob",))])
    world.write(ALICE, "/memory/n.md", b"open")
    world.rename(ALICE, "/memory/n.md", "/memory/n.md.bak")
    for text in (b"zqsecretqz", b"clean"):
        world.write(ALICE, "/memory/n.md.bak", text)
    world.rename(ALICE, "/memory/n.md.bak", "/memory/n.md")
    assert world.history(BOB, "/memory/n.md") == [b"clean"]
    assert world.history(ALICE, "/memory/n.md") == [b"open", b"zqsecretqz", b"clean"]


def test_made_private_again_and_published_again_it_shows_what_it_is_then(doors: Doors) -> None:
    doors.write("/shared/n.md", "one\n")
    doors.read("/shared/n.md:delta")
    doors.move("/shared/n.md", "/private/n.md")
    doors.write("/private/n.md", "zqsecretqz\n")
    doors.write("/private/n.md", "two\n")
    doors.move("/private/n.md", "/shared/n.md")
    assert doors.versions("/shared/n.md") == [3]
    told = doors.read("/shared/n.md:delta")
    assert "zqsecretqz" not in told and "two" in told
    doors.move("/shared/n.md", "/shared/m.md")  # within one scope nothing changes
    assert doors.versions("/shared/m.md") == [3]


def instant(doors: Doors) -> str:
    doors.door("alice").call("snapshot", name="then")
    return "snap.then"


@pytest.mark.parametrize("place", ["/shared/d", "/archive/shared/d"])
@pytest.mark.parametrize("what", ["", "/n.md"])
def test_a_limited_file_that_is_restored_is_limited_as_before(doors: Doors, place: str, what: str) -> None:
    doors.write("/shared/d/n.md", "zqlimitedqz\n")
    doors.write("/shared/d/n.md:shared", "carol")
    if place.startswith("/archive"):
        doors.door("alice").call("archive", path="/shared/d")
    doors.door("alice").call("write", path=f"{place}/open.md", data=b"open\n")
    then = instant(doors)
    doors.door("alice").call("remove", path=place, recursive=True, permanently=True)
    doors.door("alice").call("restore", path=f"{place}{what}", at=then)
    assert doors.read(f"{place}/n.md:shared", "alice") == "alice,carol\n"
    assert doors.read(f"{place}/n.md", "carol") == "zqlimitedqz\n"
    with pytest.raises(NotFound):
        doors.read(f"{place}/n.md")
    assert "n.md" not in doors.read("/memory/:changes").replace("own.md", "").replace("open.md", "")
    assert what or doors.read(f"{place}/open.md") == "open\n"


@pytest.mark.parametrize("since", ["moved into a private space", "shared with all"])
def test_a_file_that_was_limited_then_is_restored_for_those_who_could_read_it(doors: Doors, since: str) -> None:
    doors.write("/shared/n.md", "zqlimitedqz\n")
    doors.write("/shared/n.md:shared", "carol")
    then = instant(doors)
    if since == "shared with all":
        doors.write("/shared/n.md:shared", "all")
        doors.write("/shared/n.md", "clean\n")
        doors.door("alice").call("remove", path="/shared/n.md", permanently=True)
    else:
        doors.move("/shared/n.md", "/private/n.md")
    doors.door("alice").call("restore", path="/shared/n.md", at=then)
    assert doors.read("/shared/n.md:shared", "alice") == "alice,carol\n"
    with pytest.raises(NotFound):
        doors.read("/shared/n.md")


def test_a_limited_file_is_not_restored_into_another_that_more_may_read(doors: Doors) -> None:
    doors.write("/shared/n.md", "zqlimitedqz\n")
    doors.write("/shared/n.md:shared", "carol")
    then = instant(doors)
    doors.door("alice").call("remove", path="/shared/n.md", permanently=True)
    doors.write("/shared/n.md", "another\n")
    with pytest.raises(Exists, match="for others too"):
        doors.door("alice").call("restore", path="/shared", at=then)
    assert doors.read("/shared/n.md") == "another\n"
    doors.write("/shared/n.md:shared", "alice")
    doors.door("alice").call("restore", path="/shared", at=then)
    assert doors.read("/shared/n.md", "alice") == "zqlimitedqz\n"


def test_what_nobody_could_read_is_restored_for_nobody(tmp_path: Path) -> None:
    hiding = (Rule("/memory/hr/*", "none"),)

    def door(agent: str, *rules: Rule, **more: Any) -> LocalDoor:
        settings = replace(default_settings(), permissions=rules or default_settings().permissions)
        return LocalDoor(tmp_path / "avm.db", settings, agent, embeddings=False, **more)

    with contextlib.closing(door("root", *hiding, operator=True)) as operator:
        operator.call("write", path="/memory/hr/pay.md", data=b"zqpayqz")
        operator.call("snapshot", name="then")
        operator.call("remove", path="/memory/hr/pay.md", permanently=True)
    with contextlib.closing(door("root", operator=True)) as operator, contextlib.closing(door("bob")) as bob:
        operator.call("restore", path="/memory/hr/pay.md", at="snap.then")
        for before, path in (("pay.md", "/memory/hr/new.md"), ("new.md", "/memory/hr/new2.md")):
            operator.call("snapshot", name=before)
            operator.call("move", source=f"/memory/hr/{before}", target=path)
            operator.call("restore", path=f"/memory/hr/{before}", at=f"snap.{before}")
            for each in (path, f"/memory/hr/{before}"):
                assert operator.call("read", path=f"{each}:shared")["data"] == b"(nobody)\n"
                with pytest.raises(NotFound):
                    bob.call("read", path=each)


def test_what_is_restored_has_its_mode_from_the_first(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    doors.write("/shared/d/n.md", "own\n")
    modes = [{"path": "/shared/d/n.md", "mode": 0o400}, {"path": "/shared/d", "mode": 0o700}]
    assert doors.door("alice").call("put", items=modes) == [None, None]
    then = instant(doors)
    doors.door("alice").call("remove", path="/shared/d", recursive=True, permanently=True)
    real, seen = Memory.submit, set()

    def submit(memory: Memory, command: str, /, **arguments: Any) -> Any:
        answer = real(memory, command, **arguments)
        there = [each["mode"] for each in doors.door("bob").call("entries", path="/shared") if each["name"] == "d"]
        if there and (inside := doors.door("bob").call("entries", path="/shared/d")):
            seen.add((there[0], inside[0]["mode"]))
        return answer

    monkeypatch.setattr(Memory, "submit", submit)
    doors.door("alice").call("restore", path="/shared/d", at=then)
    assert seen == {("drwx------", "-r--------")}


def test_what_was_for_all_comes_back_for_all_and_what_was_private_is_private(doors: Doors) -> None:
    doors.write("/shared/n.md", "open\n")
    doors.write("/private/p.md", "own\n")
    then = instant(doors)
    for path in ("/shared/n.md", "/private/p.md"):
        doors.door("alice").call("remove", path=path, permanently=True)
        doors.door("alice").call("restore", path=path, at=then)
    assert doors.read("/shared/n.md") == "open\n" and doors.read("/shared/n.md:shared") == "all\n"
    assert doors.read("/private/p.md", "alice") == "own\n"
