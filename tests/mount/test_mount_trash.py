"""rm at a mount, the trash and the archive as files, and the way back."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from tests.mount.mount_world import Place, World, cat, meta, sh, until, view

pytestmark = pytest.mark.mount
OLD = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice"}, {"agent_id": "bob"}, {"agent_id": "carol", "trash": False}]


def note(world: World, place: Place, name: str, text: str) -> str:
    """A note that was not made just now; its path."""
    with AVM(agent="alice", environ=world.environ) as avm:
        return avm.agent_memory().remember(text, path=f"{place.path}/{name}", created=OLD)


def test_what_rm_removes_is_in_the_trash_of_both_and_comes_back_with_mv(world: World, place: Place) -> None:
    note(world, place, "farm/plan.md", "the harvest begins in June")
    before = meta(place.alice / "farm/plan.md")
    (place.alice / "young.md").write_text("made now")
    with open(place.bob / "farm/plan.md", "rb") as held:
        shutil.rmtree(place.bob / "farm")
        (place.bob / "young.md").unlink()
        assert os.listdir(place.alice) == os.listdir(place.bob) == []
        assert held.read().startswith(b"the harvest")
    for mount in (place.alice, place.bob):
        top = mount.parents[2]
        kept = top / "trash" / mount.relative_to(top / "memory")
        assert os.listdir(kept) == ["farm"] and os.listdir(kept / "farm") == ["plan.md"]
        assert "harvest" not in cat(view(top / "memory", ":search?q=harvest"))
    assert meta(kept / "farm/plan.md")["id"] == before["id"]
    os.rename(kept / "farm/plan.md", place.bob / "again.md")
    assert meta(place.alice / "again.md")["id"] == before["id"]
    assert "the harvest" in (place.alice / "again.md").read_text()
    (place.alice / "again.md").unlink()
    with AVM(agent="bob", environ=world.environ) as avm:
        assert avm.put_back(f"{place.path}/again.md") == f"{place.path}/again.md"
    assert "the harvest" in (place.alice / "again.md").read_text()


def test_who_removes_a_note_finds_it_in_the_trash_though_it_was_not_there_a_moment_ago(
    world: World, place: Place
) -> None:
    kept = world.mounts["alice"] / "trash" / place.path.removeprefix("/memory/")
    for name in ("first.md", "d/second.md", "d/third.md"):
        note(world, place, name, "the harvest begins in June")
        assert not (kept / name).exists()
        (place.alice / name).unlink()
        assert "harvest" in (kept / name).read_text()


def test_a_file_that_was_open_when_it_went_to_the_trash_has_no_link_for_who_has_it_open(
    world: World, place: Place
) -> None:
    """A lock on a file is of no use once that has lost its name: who got it looks, and opens the new one."""
    note(world, place, "service.lock", "1234")
    waits, holds = os.open(place.bob / "service.lock", os.O_RDWR), os.open(place.alice / "service.lock", os.O_RDONLY)
    try:
        assert os.fstat(waits).st_nlink == os.fstat(holds).st_nlink == 1
        (place.alice / "service.lock").unlink()
        assert os.fstat(waits).st_nlink == os.fstat(holds).st_nlink == 0
        os.write(waits, b"5678 late")
        assert os.fstat(waits).st_nlink == 0
        kept = world.mounts["bob"] / "trash" / place.path.removeprefix("/memory/") / "service.lock"
        os.rename(kept, place.bob / "back")
        assert os.fstat(waits).st_nlink == os.fstat(holds).st_nlink == (place.bob / "back").stat().st_nlink == 1
        (place.alice / "back").unlink()
        assert os.fstat(waits).st_nlink == os.fstat(holds).st_nlink == 0
    finally:
        os.close(waits)
        os.close(holds)
    assert until(lambda: (kept.parent / "back").stat().st_nlink == 1)


def test_a_note_whose_place_a_symlink_takes_is_in_the_trash_as_if_it_were_removed(world: World, place: Place) -> None:
    """`ln -sf` makes a link of another name, and renames that."""
    for name in ("plan.md", "gone.md", "file.md"):
        note(world, place, name, "the harvest begins in June")
    before = meta(place.alice / "plan.md")
    sh("ln -sf v2/plan.md plan.md", cwd=place.bob)
    os.symlink("v2", world.mounts["carol"] / place.path[1:] / "link")
    os.rename(*(world.mounts["carol"] / place.path[1:] / name for name in ("link", "gone.md")))  # which has no trash
    (place.bob / "new.md").write_text("another")
    os.rename(place.bob / "new.md", place.bob / "file.md")
    assert [os.readlink(place.alice / name) for name in ("plan.md", "gone.md")] == ["v2/plan.md", "v2"]
    assert (place.alice / "file.md").read_text() == "another"
    kept = world.mounts["alice"] / "trash" / place.path.removeprefix("/memory/")
    assert os.listdir(kept) == ["plan.md"] and meta(kept / "plan.md")["id"] == before["id"]
    (place.alice / "plan.md").unlink()
    os.rename(kept / "plan.md", place.alice / "plan.md")
    assert "the harvest" in (place.bob / "plan.md").read_text()


def test_rm_in_the_trash_and_on_a_mount_without_one_is_for_good(world: World, place: Place) -> None:
    note(world, place, "a.md", "first")
    note(world, place, "b.md", "second")
    (world.mounts["carol"] / place.path[1:] / "a.md").unlink()
    (place.alice / "b.md").unlink()
    kept = world.mounts["alice"] / "trash" / place.path.removeprefix("/memory/")
    assert os.listdir(kept) == ["b.md"]
    (kept / "b.md").unlink()
    assert os.listdir(kept) == []
    with AVM(agent="alice", environ=world.environ) as avm:
        assert not [each for each in avm.trash() if each["was"].startswith(place.path)]


def test_nobody_sees_what_another_has_removed_of_its_own(world: World) -> None:
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    with AVM(agent="alice", environ=world.environ) as avm:
        avm.agent_memory().remember("my own diary", path="/private/diary.md", created=OLD)
    (alice / "private/diary.md").unlink()
    assert (alice / "trash/private/alice/diary.md").read_text().startswith("my own")
    assert "alice" not in sh(f"find '{bob}/trash' '{bob}/archive'", limit_s=300).stdout
    with AVM(agent="bob", environ=world.environ) as avm:
        assert "diary" not in repr(avm.trash())
    assert not os.path.lexists(bob / "trash/private/alice")


def test_mv_to_the_archive_leaves_it_readable_and_out_of_searches(world: World, place: Place) -> None:
    note(world, place, "2024/plan.md", "the orchard was planted")
    top: Path = world.mounts["bob"]
    assert "orchard" in cat(top / ":search?q=orchard")
    (top / "archive" / place.path.removeprefix("/memory/")).mkdir(parents=True)
    os.rename(place.bob / "2024", top / "archive" / place.path.removeprefix("/memory/") / "2024")
    assert "orchard" not in cat(top / ":search?q=orchard")
    assert "orchard" in cat(top / ":search?q=orchard&include=archive")
    assert "orchard" in cat(place.bob / ":search?q=orchard&include=archive")
    assert "orchard" in cat(top / "archive/:recall?q=orchard")
    assert not (place.alice / "2024").exists()
    with AVM(agent="alice", environ=world.environ) as avm:
        assert avm.put_back(f"/archive/{place.path.removeprefix('/memory/')}/2024") == f"{place.path}/2024"
    assert "orchard" in (place.bob / "2024/plan.md").read_text()


@pytest.mark.parametrize("name", ["trash", "archive"])
def test_the_two_directories_stay(alice: Path, name: str) -> None:
    for change in (os.rmdir, lambda path: os.rename(path, alice / "memory/x")):
        with pytest.raises(PermissionError):
            change(alice / name)
    with pytest.raises(PermissionError):
        os.rename(alice / "memory", alice / name / "memory")
