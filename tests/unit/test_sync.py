"""A folder kept in step with a directory of the store: nothing is lost, whoever writes where and when."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import default_settings

from avmfs.agents import backups
from avmfs.errors import Busy, Invalid, IsDirectory, NotEmpty, NotFound, Stale
from avmfs.transfer.files import beside
from avmfs.transfer.record import Refusal
from avmfs.transfer.sync import _OLD, LARGEST, STATE, Sync, Synced
from tests.disk_model import Names
from tests.dropping_disk import DroppingDisk
from tests.unit.test_transfer import Door, Open, door, exported, store  # noqa: F401
from tests.unit.views_fixtures import World, opened

ROUNDS = int(os.environ.get("AVM_SYNC_ROUNDS", "200"))
ROOT = "/memory/shared/notes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.fixture
def world(store: Open) -> World:  # noqa: F811
    made = store("store")
    made.agent("alice").put(f"{ROOT}/there.md", "there\n")
    return made


def synced(world: World, folder: Path, door_: Any = None, **how: Any) -> Synced:
    return Sync(door_ or door(world, "alice"), folder, ROOT, **how).run()


def here(folder: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def there(world: World) -> dict[str, bytes]:
    found = exported(world, "alice", ROOT).items()
    return {path: each.data for path, each in found if each.data is not None}


def test_what_one_side_has_comes_to_the_other(world: World, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "here.md").write_text("here\n")
    (folder / "not.txt").write_text("of no interest")
    report = synced(world, folder)
    assert (report.to_folder, report.to_store) == (["there.md"], ["a/here.md"])
    assert there(world) == {"there.md": b"there\n", "a/here.md": b"here\n"}
    assert here(folder) == {**there(world), "not.txt": b"of no interest"}
    again = synced(world, folder)
    assert again == Synced(), "a second run does nothing"
    (folder / "a" / "here.md").unlink()
    world.agent("alice").put(f"{ROOT}/there.md", "there, changed\n")
    report = synced(world, folder)
    assert (report.to_folder, report.removed_there) == (["there.md"], ["a/here.md"])
    world.agent("alice").memory.delete(f"{ROOT}/there.md")
    assert synced(world, folder, many=True).removed_here == ["there.md"]
    assert there(world) == {} and here(folder) == {"not.txt": b"of no interest"}


def test_what_comes_new_into_the_folder_is_its_owner_s_alone(world: World, folder: Path) -> None:
    world.agent("alice").put(f"{ROOT}/a/b/new.md", "one\n")
    (folder / "here.md").write_text("here\n")
    (folder / "here.md").chmod(0o644)
    before = os.umask(0o022)
    try:
        synced(world, folder)
        world.agent("alice").put(f"{ROOT}/here.md", "changed\n")
        synced(world, folder)
    finally:
        os.umask(before)
    assert (folder / "here.md").read_text() == "changed\n"
    open_to_others = {each.name for each in folder.rglob("*") if each.stat().st_mode & 0o077}
    assert open_to_others == {"here.md"}, "as it was"


def test_what_both_changed_stays_as_both_and_what_one_removed_comes_back(world: World, folder: Path) -> None:
    world.agent("alice").put(f"{ROOT}/gone.md", "one\n")
    synced(world, folder)
    (folder / "there.md").write_text("mine\n")
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    (folder / "gone.md").unlink()
    world.agent("alice").put(f"{ROOT}/gone.md", "two\n")
    report = synced(world, folder)
    [(name, other)] = report.conflicts
    assert name == "there.md" and other.startswith("there (conflict ") and other.endswith(").md")
    assert here(folder) == there(world) == {"there.md": b"theirs\n", other: b"mine\n", "gone.md": b"two\n"}
    assert synced(world, folder) == Synced()


@pytest.mark.parametrize("method", ["read_bytes", "lstat", "iterdir"])
def test_what_cannot_be_read_of_the_folder_is_listed_and_left_alone_on_both_sides(
    method: str, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not removed from the memory either; what has gone since it was listed is not refused."""
    for name in ("sub/a.md", "gone/a.md", "b.md"):
        world.agent("alice").put(f"{ROOT}/{name}", "one\n")
    synced(world, folder)
    for name in ("sub/a.md", "gone/a.md", "b.md"):
        world.agent("alice").put(f"{ROOT}/{name}", "two\n")
    real, unread = getattr(Path, method), ("sub", "gone") if method == "iterdir" else ("sub/a.md", "gone/a.md")
    going = iter([folder / "gone"])

    def read(self: Path) -> Any:
        if self == folder / unread[0]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if self == folder / unread[1] and (gone := next(going, None)):
            shutil.rmtree(gone)
        return real(self)

    monkeypatch.setattr(Path, method, read)
    report = synced(world, folder)
    assert report.refused == [Refusal(unread[0], os.strerror(errno.EACCES))]
    monkeypatch.undo()
    assert (folder / "sub" / "a.md").read_text() == "one\n" and there(world)["sub/a.md"] == b"two\n"
    assert here(folder)["b.md"] == here(folder)["gone/a.md"] == b"two\n"
    assert synced(world, folder) == Synced(to_folder=["sub/a.md"]), "and is no conflict later"


def test_a_file_that_somebody_writes_to_all_the_time_holds_up_no_other(world: World, folder: Path) -> None:
    world.agent("alice").put(f"{ROOT}/log.md", "one\n")
    synced(world, folder)

    class Writing(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if method == "read" and arguments["path"] == f"{ROOT}/log.md":
                raise Busy("it changes faster than it is read")
            return super().call(method, **arguments)

    for name in ("log.md", "new.md"):
        world.agent("alice").put(f"{ROOT}/{name}", "two\n")
    (folder / "here.md").write_text("here\n")
    report = synced(world, folder, Writing(world.agent("alice").memory))
    assert report.refused == [Refusal("log.md", "it changes faster than it is read")]
    assert here(folder) == {"log.md": b"one\n", "there.md": b"there\n", "new.md": b"two\n", "here.md": b"here\n"}
    assert synced(world, folder).to_folder == ["log.md"]
    assert here(folder) == there(world)


def test_a_folder_that_cannot_be_read_at_all_is_not_an_empty_one(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(world, folder)
    for error in (PermissionError(errno.EACCES, "no"), FileNotFoundError(errno.ENOENT, "no")):

        def listed(self: Path, error: OSError = error) -> Any:
            raise error

        with monkeypatch.context() as patched, pytest.raises(type(error)):
            patched.setattr(Path, "iterdir", listed)
            synced(world, folder, many=True)
    assert set(there(world)) == {"there.md"}


def test_what_is_too_large_on_one_side_is_listed_and_left_alone_on_both(world: World, folder: Path) -> None:
    for name in ("big.md", "bigger.md"):
        world.agent("alice").put(f"{ROOT}/{name}", b"x" * (LARGEST + 1))
    world.agent("alice").put(f"{ROOT}/grown.md", "small\n")
    (folder / "bigger.md").write_text("small\n")
    report = synced(world, folder)
    assert {each.where for each in report.refused} == {"big.md", "bigger.md"}
    assert here(folder) == {"there.md": b"there\n", "grown.md": b"small\n", "bigger.md": b"small\n"}
    world.agent("alice").put(f"{ROOT}/grown.md", b"x" * (LARGEST + 1))
    (folder / "grown.md").unlink()
    assert {each.where for each in synced(world, folder).refused} == {"big.md", "bigger.md", "grown.md"}
    assert set(there(world)) == {"there.md", "big.md", "bigger.md", "grown.md"} and len(here(folder)) == 2


def test_what_is_refused_of_the_folder_ends_no_sync_too_early(world: World, folder: Path) -> None:
    synced(world, folder)
    (folder / "link.md").symlink_to("there.md")
    (folder / "there.md").write_text("mine\n")
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    report = synced(world, folder)
    assert [each.where for each in report.refused] == ["link.md"] and len(report.conflicts) == 1
    (folder / "link.md").unlink()
    assert here(folder) == there(world) and len(there(world)) == 2


def limited(world: World, name: str) -> list[str] | None:
    """Whom a file of the memory is limited to."""
    found = {each["path"]: each.get("shared") for each in door(world, "alice").call("records", path=ROOT)["records"]}
    shared: list[str] | None = found[f"{ROOT}/{name}"]
    return shared


def limit(world: World, name: str) -> None:
    alice = world.agent("alice")
    alice.put(f"{ROOT}/{name}", "for carol\n")
    alice.memory.submit("set_shared", node=alice.node(f"{ROOT}/{name}").id, agents=["carol"])


def test_a_limited_file_that_is_renamed_in_the_folder_stays_limited(world: World, folder: Path) -> None:
    limit(world, "deal.md")
    synced(world, folder)
    for name, other in (("deal.md", "a deal.md"), ("a deal.md", "z/deal.md")):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / name).rename(folder / other)
        report = synced(world, folder)
        assert (report.to_store, report.removed_there) == ([other], [name])
        assert limited(world, other) == ["alice", "carol"] and limited(world, "there.md") is None
    (folder / "new.md").write_text("for all\n")
    synced(world, folder)
    assert limited(world, "new.md") is None
    world.agent("alice").memory.submit(
        "set_shared", node=world.agent("alice").node(f"{ROOT}/new.md").id, agents=["carol"]
    )
    (folder / "new.md").rename(folder / "newer.md")
    synced(world, folder)
    assert limited(world, "newer.md") == ["alice", "carol"], "limited since"


def test_a_limited_file_that_comes_back_is_limited(world: World, folder: Path) -> None:
    limit(world, "plan.md")
    synced(world, folder)
    synced(world, folder)
    world.agent("carol").memory.delete(f"{ROOT}/plan.md")
    (folder / "plan.md").write_text("for carol, changed\n")
    assert synced(world, folder).to_store == ["plan.md"]
    assert limited(world, "plan.md") == ["alice", "carol"]
    node = world.agent("alice").node(f"{ROOT}/plan.md").id
    world.agent("alice").memory.submit("set_shared", node=node, agents=None)
    synced(world, folder)
    world.agent("alice").memory.delete(f"{ROOT}/plan.md")
    (folder / "plan.md").write_text("for all by now\n")
    synced(world, folder)
    assert limited(world, "plan.md") is None, "as it was when both were alike"


@pytest.mark.parametrize("renamed", [False, True])
def test_a_limited_file_in_conflict_is_limited_under_its_own_name_too(
    renamed: bool, world: World, folder: Path
) -> None:
    """Whatever the memory has of that name by now."""
    limit(world, "deal.md")
    synced(world, folder)
    name = "other.md" if renamed else "deal.md"
    if renamed:
        (folder / "deal.md").rename(folder / name)
    else:
        (folder / name).write_text("for carol, changed\n")
        world.agent("alice").memory.delete(f"{ROOT}/{name}")
    world.agent("bob").put(f"{ROOT}/{name}", "bob's, for all\n")
    [(_, other)] = synced(world, folder).conflicts
    assert limited(world, other) == ["alice", "carol"] and limited(world, name) is None


def test_a_sync_that_is_cut_off_between_the_removal_and_the_new_name_leaves_it_limited(
    world: World, folder: Path
) -> None:
    limit(world, "a.md")
    synced(world, folder)
    (folder / "a.md").rename(folder / "b.md")
    cut = Meddling(door(world, "alice").memory)
    calls = iter(["remove"])

    def before() -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt

    cut.before = before
    with pytest.raises(KeyboardInterrupt):
        synced(world, folder, cut)
    assert set(there(world)) == {"there.md"}, "it was removed, and has not come yet"
    synced(world, folder)
    assert limited(world, "b.md") == ["alice", "carol"]


def test_the_first_time_takes_nothing_away(world: World, folder: Path) -> None:
    (folder / "there.md").write_text("another\n")
    report = synced(world, folder)
    assert len(report.conflicts) == 1 and sorted(here(folder).values()) == [b"another\n", b"there\n"]


def test_an_emptied_folder_does_not_empty_the_memory(world: World, folder: Path) -> None:
    for number in range(30):
        world.agent("alice").put(f"{ROOT}/{number}.md", str(number))
    synced(world, folder)
    for path in folder.glob("*.md"):
        path.unlink()
    with pytest.raises(Invalid, match="--many"):
        synced(world, folder)
    assert len(there(world)) == 31
    assert len(synced(world, folder, many=True).removed_there) == 31


def test_where_all_of_one_side_is_gone_however_little_nothing_is_removed(world: World, folder: Path) -> None:
    """The directory of the memory was moved, or the agent may not see it any more; or the folder is not mounted."""
    (folder / "mine.md").write_text("mine\n")
    synced(world, folder)
    world.agent("alice").memory.move(ROOT, "/memory/shared/elsewhere")
    with pytest.raises(Invalid, match=r"2 of 2 files are gone from the memory.*--many"):
        synced(world, folder)
    assert set(here(folder)) == {"there.md", "mine.md"}
    world.agent("alice").memory.move("/memory/shared/elsewhere", ROOT)
    for path in folder.glob("*.md"):
        path.unlink()
    with pytest.raises(Invalid, match="2 of 2 files are gone from the folder"):
        synced(world, folder)
    assert set(there(world)) == {"there.md", "mine.md"}


def test_a_directory_of_the_memory_that_goes_while_it_is_listed_takes_nothing_of_the_folder_with_it(
    world: World, folder: Path
) -> None:
    """What was listed of it until then is not all that there was."""
    for number in range(4):
        world.agent("alice").put(f"{ROOT}/{number}.md", str(number))
    synced(world, folder)

    class Moving(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if method == "records":
                arguments["limit"] = 4
                if arguments["after"] is not None:
                    world.agent("alice").memory.move(ROOT, "/memory/shared/elsewhere")
            return super().call(method, **arguments)

    with pytest.raises(NotFound):
        synced(world, folder, Moving(door(world, "alice").memory))
    assert len(here(folder)) == 5


def test_another_store_is_not_taken_for_the_one_that_the_folder_was_kept_in_step_with(
    world: World,
    store: Open,  # noqa: F811
    folder: Path,
) -> None:
    (folder / "mine.md").write_text("mine\n")
    synced(world, folder)
    other = store("other")
    other.agent("alice").put(f"{ROOT}/there.md", "there\n")
    for many in (False, True):
        with pytest.raises(Invalid, match="kept in step with another memory"):
            synced(other, folder, many=many)
    (folder / STATE).unlink()
    assert synced(other, folder).to_store == ["mine.md"], "begun anew, nothing is removed"
    assert set(here(folder)) == {"there.md", "mine.md"}


def test_a_store_that_was_restored_is_another_and_nothing_of_the_folder_goes(
    world: World, folder: Path, tmp_path: Path
) -> None:
    """What is newer than the backup is in the folder alone, and its numbers are given out again."""
    (folder / "mine.md").write_text("v1\n")
    synced(world, folder)
    backups.backup(world.store.path, default_settings(), tmp_path / "kept", 1)
    world.agent("alice").put(f"{ROOT}/there.md", "there, changed\n")
    (folder / "mine.md").write_text("v2\n")
    (folder / "new.md").write_text("new\n")
    synced(world, folder)
    for name in ("one", "two"):
        backups.restore(tmp_path / "kept", tmp_path / name / "avm.db")
    with opened(tmp_path / "one") as restored, opened(tmp_path / "two") as again:
        for many in (False, True):
            with pytest.raises(Invalid, match="before it was restored or repaired"):
                synced(restored, folder, many=many)
        (folder / STATE).unlink()
        synced(restored, folder)
        assert {b"v1\n", b"v2\n", b"there\n", b"there, changed\n", b"new\n"} <= set(here(folder).values())
        with pytest.raises(Invalid, match="before it was restored"):
            synced(again, folder)
        assert not list((tmp_path / "one").glob("avm.db.restored*"))


def test_a_folder_that_became_a_symlink_is_left_alone_on_both_sides(world: World, folder: Path, tmp_path: Path) -> None:
    world.agent("alice").put(f"{ROOT}/sub/note.md", "a note\n")
    synced(world, folder)
    (folder / "sub").rename(tmp_path / "elsewhere")
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    (folder / "picture.png").symlink_to(folder / "there.md")
    world.agent("alice").put(f"{ROOT}/sub/new.md", "new\n")
    for _ in range(2):
        report = synced(world, folder)
        assert [each.where for each in report.refused] == ["sub"], "what is of no interest is not told of"
        assert set(there(world)) == {"there.md", "sub/note.md", "sub/new.md"}
        assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["note.md"]
    (folder / "sub").unlink()
    (tmp_path / "elsewhere").rename(folder / "sub")
    assert synced(world, folder).to_folder == ["sub/new.md"]
    (folder / "sub").rename(tmp_path / "gone")
    (folder / "sub").symlink_to(tmp_path / "not mounted")
    assert [each.where for each in synced(world, folder).refused] == ["sub"] and len(there(world)) == 3


def test_nothing_is_written_through_a_link_that_comes_while_it_works(
    world: World, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    world.agent("alice").put(f"{ROOT}/sub/agent.md", "an agent's\n")

    class Linking(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            if method == "read" and not (folder / "sub").exists():
                (folder / "sub").symlink_to(tmp_path / "outside")
            return super().call(method, **arguments)

    synced(world, folder, Linking(door(world, "alice").memory))
    assert not list((tmp_path / "outside").iterdir()) and set(there(world)) == {"there.md", "sub/agent.md"}


def test_a_folder_without_hard_links_is_kept_in_step(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    assert synced(world, folder).to_folder == ["there.md"]
    world.agent("alice").put(f"{ROOT}/there.md", "changed\n")
    (folder / "there.md").chmod(0o640)
    assert synced(world, folder).to_folder == ["there.md"]
    assert here(folder) == there(world) == {"there.md": b"changed\n"}
    assert (folder / "there.md").stat().st_mode & 0o777 == 0o640
    (folder / "there.md").rename(folder / ".there.md.avm-sync-old")
    assert synced(world, folder) == Synced(), "what a killed one has put aside comes back"
    assert sorted(each.name for each in folder.iterdir()) == [STATE, "there.md"]


def test_a_file_that_cannot_be_replaced_stays(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced(world, folder)
    world.agent("alice").put(f"{ROOT}/there.md", "changed\n")
    real = os.link

    def full(file: Any, name: Any) -> None:
        if os.fspath(file).endswith("-new"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, name)

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copystat", lambda file, name: full(file, name))
    assert [each.where for each in synced(world, folder).refused] == ["there.md"]
    assert here(folder) == {"there.md": b"there\n"}
    monkeypatch.undo()
    assert synced(world, folder).to_folder == ["there.md"]


def test_a_dry_run_tells_and_changes_nothing(world: World, folder: Path) -> None:
    (folder / "here.md").write_text("here\n")
    report = Sync(door(world, "alice"), folder, ROOT).run(dry=True)
    assert (report.to_folder, report.to_store) == (["there.md"], ["here.md"])
    assert (
        here(folder) == {"here.md": b"here\n"} and set(there(world)) == {"there.md"} and not (folder / STATE).exists()
    )


def test_a_dry_run_names_what_a_conflict_would_make(world: World, folder: Path) -> None:
    synced(world, folder)
    (folder / "there.md").write_text("mine\n")
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    told = Sync(door(world, "alice"), folder, ROOT).run(dry=True)
    assert told.conflicts == synced(world, folder).conflicts != []


def test_a_folder_knows_what_it_is_kept_in_step_with(world: World, folder: Path) -> None:
    with pytest.raises(Invalid, match="name the directory"):
        Sync(door(world, "alice"), folder, None)
    synced(world, folder)
    assert Sync(door(world, "alice"), folder, None).run() == Synced()
    with pytest.raises(Invalid, match="kept in step with /memory/shared/notes"):
        Sync(door(world, "alice"), folder, "/memory/shared/other")
    (folder / STATE).write_text("{")
    with pytest.raises(Invalid, match="nothing is lost"):
        synced(world, folder)
    (folder / STATE).unlink()
    assert synced(world, folder) == Synced(), "what is alike is found to be"
    with pytest.raises(NotFound):
        Sync(door(world, "alice"), folder / "none", ROOT)


def test_what_an_agent_may_not_write_is_listed_and_stays(world: World, folder: Path) -> None:
    world.agent("bob").put(f"{ROOT}/bobs.md", "bob's\n")
    bob = world.agent("bob").node(f"{ROOT}/bobs.md")
    world.agent("bob").memory.submit("set_shared", node=bob.id, agents=["carol"])
    (folder / "bobs.md").write_text("mine\n")
    report = synced(world, folder)
    assert [each.where for each in report.refused] == ["bobs.md"] and here(folder)["bobs.md"] == b"mine\n"


def test_names_of_both_kinds_are_a_refusal_and_the_rest_goes_on(world: World, folder: Path) -> None:
    (folder / "there.md").mkdir()
    (folder / "there.md" / "x.md").write_text("x")
    (folder / "ok.md").write_text("ok")
    (folder / "link.md").symlink_to("ok.md")
    report = synced(world, folder)
    assert {each.where for each in report.refused} == {"there.md", "there.md/x.md", "link.md"}
    assert there(world) == {"there.md": b"there\n", "ok.md": b"ok"}


def test_a_folder_that_became_a_file_is_one_on_the_other_side_too(world: World, folder: Path) -> None:
    (folder / "a.md" / "deep").mkdir(parents=True)
    (folder / "a.md" / "deep" / "x.md").write_text("x\n")
    synced(world, folder)
    shutil.rmtree(folder / "a.md")
    (folder / "a.md").write_text("a\n")
    assert synced(world, folder).refused == []
    assert here(folder) == there(world) == {"there.md": b"there\n", "a.md": b"a\n"}
    world.agent("alice").memory.delete(f"{ROOT}/a.md")
    world.agent("alice").put(f"{ROOT}/a.md/y.md", "y\n")
    synced(world, folder)
    assert here(folder) == there(world) == {"there.md": b"there\n", "a.md/y.md": b"y\n"}


def test_a_directory_of_the_memory_stays_where_anything_is_in_it_or_the_folder_has_it(
    world: World, folder: Path
) -> None:
    for name in ("kept/x.md", "others/x.md", "gone/x.md"):
        world.agent("alice").put(f"{ROOT}/{name}", "x\n")
    world.agent("alice").put(f"{ROOT}/others/y.txt", "of no interest\n")
    synced(world, folder)
    (folder / "kept" / "x.md").unlink()
    shutil.rmtree(folder / "others")
    shutil.rmtree(folder / "gone")
    assert synced(world, folder, many=True).removed_there == ["gone/x.md", "kept/x.md", "others/x.md"]
    found = door(world, "alice").call("records", path=ROOT)["records"]
    assert [each["path"].removeprefix(f"{ROOT}/") for each in found] == ["kept", "others", "others/y.txt", "there.md"]


@pytest.mark.parametrize("recursive", [False, True])
def test_a_directory_is_removed_in_place_of_nothing_only_while_nothing_is_in_it(recursive: bool, world: World) -> None:
    def remove(name: str, instead_of: bytes) -> Any:
        asked = {"path": f"{ROOT}/{name}", "instead_of": instead_of, "recursive": recursive}
        return door(world, "alice").call("remove", **asked)

    world.agent("alice").put(f"{ROOT}/a/b/empty.md", "")
    for name, instead_of, error in (
        ("a", b"", NotEmpty),
        ("a/b/empty.md", b"", Stale),
        ("a", hashlib.sha256(b"x").digest(), NotEmpty if recursive else IsDirectory),
    ):
        with pytest.raises(error):
            remove(name, instead_of)
    world.agent("alice").memory.delete(f"{ROOT}/a/b/empty.md")
    assert remove("a/b", b"") == remove("a", b"") == {"removed": 1}
    assert set(there(world)) == {"there.md"}


class Meddling(Door):
    """Calls ``before`` ahead of each call that changes something."""

    before: Any = None

    def call(self, method: str, /, **arguments: Any) -> Any:
        if method in ("put", "remove") and self.before is not None:
            self.before()
        return super().call(method, **arguments)


@pytest.mark.parametrize("removing", [False, True])
def test_an_edit_between_the_look_and_the_change_is_not_lost(removing: bool, world: World, folder: Path) -> None:
    alice = world.agent("alice")
    synced(world, folder)
    if removing:
        (folder / "there.md").unlink()
    else:
        (folder / "there.md").write_text("mine\n")
    meddling = Meddling(door(world, "alice").memory)
    meddling.before = lambda: (setattr(meddling, "before", None), alice.put(f"{ROOT}/there.md", "just now\n"))
    synced(world, folder, meddling, many=True)
    assert here(folder) == there(world) and b"just now\n" in there(world).values()
    assert removing or b"mine\n" in there(world).values()


def test_a_file_that_is_missing_for_a_moment_stays_the_document_that_it_is(world: World, folder: Path) -> None:
    """An editor renames it away before it writes it anew, a checkout removes it first."""
    synced(world, folder)
    document = world.agent("alice").node(f"{ROOT}/there.md").document
    (folder / "there.md").unlink()

    class Saving(Door):
        def call(self, method: str, /, **arguments: Any) -> Any:
            found = super().call(method, **arguments)
            if method == "records":
                (folder / "there.md").write_text("written anew\n")
            return found

    synced(world, folder, Saving(door(world, "alice").memory), many=True)
    assert here(folder) == there(world) == {"there.md": b"written anew\n"}
    assert world.agent("alice").node(f"{ROOT}/there.md").document == document


def test_a_name_that_is_another_on_a_disk_without_case_goes(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(world, folder)
    (folder / "there.md").rename(folder / "There.md")
    real = Path.lstat
    monkeypatch.setattr(
        Path, "lstat", lambda self: real(self.with_name("There.md") if self.name == "there.md" else self)
    )
    synced(world, folder)
    assert set(there(world)) == {"There.md"}


def test_an_edit_in_the_folder_between_the_look_and_the_change_is_not_lost(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(world, folder)
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    real = Sync._aside
    monkeypatch.setattr(Sync, "_aside", lambda self, to, *rest: (to.write_text("just now\n"), real(self, to, *rest))[1])
    Sync(door(world, "alice"), folder, ROOT).run()
    monkeypatch.undo()
    synced(world, folder)
    assert here(folder) == there(world) and {b"theirs\n", b"just now\n"} <= set(here(folder).values())


@pytest.mark.parametrize("removing", [False, True])
@pytest.mark.parametrize(("of", "method"), [(Sync, "_aside"), (Path, "rename")], ids=["looked at", "put aside"])
def test_a_folder_that_takes_the_name_of_a_file_before_it_is(
    of: type, method: str, removing: bool, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(world, folder)
    to = folder / "there.md"
    if removing:
        world.agent("alice").memory.delete(f"{ROOT}/there.md")
    else:
        world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    real = getattr(of, method)

    def meddling(self: Any, *rest: Any) -> Any:
        monkeypatch.undo()
        to.unlink()
        to.mkdir()
        (to / "x.txt").write_text("not to be lost")
        return real(self, *rest)

    monkeypatch.setattr(of, method, meddling)
    synced(world, folder, many=True)
    assert sorted(each.name for each in folder.iterdir()) == [STATE, "there.md"]
    assert (to / "x.txt").read_text() == "not to be lost"


def test_a_file_that_cannot_be_read_any_more_is_not_put_aside(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(world, folder)
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    real = Path.read_bytes

    def read(self: Path) -> bytes:
        if self.name.endswith("-old"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert [each.where for each in synced(world, folder).refused] == ["there.md"]
    assert here(folder) == {"there.md": b"there\n"}


def test_a_folder_that_was_put_aside_comes_back(world: World, folder: Path) -> None:
    synced(world, folder)
    aside, inside = folder / ".sub.md.avm-sync-old", ".x.md.avm-sync-old"
    aside.mkdir()
    (aside / inside).write_text("x\n")
    synced(world, folder)
    assert there(world) == here(folder) == {"there.md": b"there\n", "sub.md/x.md": b"x\n"}
    (folder / "sub.md").rename(aside)
    (folder / "sub.md").write_text("another\n")
    with pytest.raises(Invalid, match="names are taken"):
        synced(world, folder)
    assert (aside / "x.md").read_text() == "x\n" and (folder / "sub.md").read_text() == "another\n"


@pytest.mark.parametrize("stage", ["put aside", "coming", "both"])
def test_what_a_killed_sync_has_left_comes_back(stage: str, world: World, folder: Path) -> None:
    synced(world, folder)
    if stage in ("put aside", "both"):
        (folder / "there.md").rename(folder / ".there.md.avm-sync-old")
    if stage in ("coming", "both"):
        (folder / ".there.md.avm-sync-new").write_text("half")
    assert synced(world, folder) == Synced()
    assert here(folder) == there(world) == {"there.md": b"there\n"}
    assert sorted(each.name for each in folder.iterdir()) == [STATE, "there.md"]


def test_names_as_long_as_names_may_be_are_kept_in_step(world: World, folder: Path) -> None:
    alice, name = world.agent("alice"), "é" * 126 + ".md"
    alice.put(f"{ROOT}/{name}", "one\n")
    assert synced(world, folder).refused == []
    assert here(folder)[name] == b"one\n"
    alice.put(f"{ROOT}/{name}", "theirs\n")
    assert synced(world, folder).to_folder == [name]
    (folder / name).rename(folder / beside(name, _OLD))
    assert synced(world, folder) == Synced() and here(folder)[name] == b"theirs\n"
    alice.put(f"{ROOT}/{name}", "theirs again\n")
    (folder / name).write_text("mine\n")
    ((both, own),) = synced(world, folder).conflicts
    assert both == name and own.endswith(").md") and len(own.encode()) in (254, 255)
    assert here(folder) == there(world) == {"there.md": b"there\n", name: b"theirs again\n", own: b"mine\n"}


def test_a_sync_that_is_killed_once_the_memorys_has_its_name_makes_no_conflict(world: World, folder: Path) -> None:
    synced(world, folder)
    world.agent("alice").put(f"{ROOT}/there.md", "theirs\n")
    (folder / "there.md").rename(folder / ".there.md.avm-sync-old")
    (folder / ".there.md.avm-sync-new").write_text("theirs\n")
    os.link(folder / ".there.md.avm-sync-new", folder / "there.md")
    assert synced(world, folder) == Synced()
    assert here(folder) == there(world) == {"there.md": b"theirs\n"}
    assert sorted(each.name for each in folder.iterdir()) == [STATE, "there.md"]


@pytest.mark.mount
@pytest.mark.parametrize("names", ["posix", "ext4"])
def test_what_is_lost_with_the_power_is_in_step_again_after_the_next_sync(
    names: Names, world: World, tmp_path: Path
) -> None:
    alice = world.agent("alice")
    with DroppingDisk(tmp_path / "disk", names) as disk:
        disk.power_loss()
        for seed in range(10):
            texts = {f"{sub}/{seed}.md": f"{seed} {sub}\n".encode() * 500 for sub in ("a", "b")}
            texts["there.md"] = f"there {seed}\n".encode() * 500
            for name, data in texts.items():
                alice.put(f"{ROOT}/{name}", data)
            mine = {"mine.md": f"mine {seed}\n".encode() * 500, f"new {seed}/saved.md": b"saved"}
            for name, data in mine.items():
                (disk.path / name).parent.mkdir(exist_ok=True)
                (disk.path / f"{name}.part").write_bytes(data)
                (disk.path / f"{name}.part").rename(disk.path / name)
            both = f"both {seed}.md"
            alice.put(f"{ROOT}/{both}", "alike\n")
            (disk.path / both).write_text("alike\n")
            report = synced(world, disk.path)
            assert (sorted(report.to_folder), sorted(report.to_store)) == (sorted(texts), sorted(mine))
            texts |= {**mine, both: b"alike\n"}
            disk.power_loss("some" if seed % 2 else "synced", seed)
            synced(world, disk.path, many=True)
            assert {name: there(world).get(name) for name in texts} == texts
            assert here(disk.path) == there(world)


def test_what_was_put_aside_is_not_lost_where_both_its_names_are_taken(world: World, folder: Path) -> None:
    synced(world, folder)
    aside = folder / ".there.md.avm-sync-old"
    aside.write_text("put aside\n")
    other = folder / f"there (conflict {hashlib.sha256(b'put aside' + bytes([10])).hexdigest()[:8]}).md"
    other.write_text("edited since\n")
    with pytest.raises(Invalid, match="names are taken"):
        synced(world, folder)
    assert aside.read_text() == "put aside\n"
    aside.rename(folder / "another.md")
    synced(world, folder)
    assert b"put aside\n" in there(world).values()
    (folder / "another.md").rename(aside)
    other.write_text("put aside\n")
    synced(world, folder)
    assert not aside.exists() and here(folder) == there(world), "what is there already is no other file"


def test_two_syncs_of_a_folder_do_not_disturb_each_other(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    tried: list[Any] = []

    def link(file: Any, name: Any) -> None:
        tried.append(name)
        with pytest.raises(Busy, match="another sync of this folder is at work"):
            synced(world, folder)
        Sync(door(world, "alice"), folder, ROOT).run(dry=True)
        real(file, name)

    monkeypatch.setattr(os, "link", link)
    assert synced(world, folder).to_folder == ["there.md"] and tried
    monkeypatch.undo()
    assert here(folder) == there(world)
    assert synced(world, folder) == Synced(), "the first is over"


def test_a_folder_that_cannot_be_locked_is_kept_in_step(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", locked)
    assert synced(world, folder).to_folder == ["there.md"]


class Oracle:
    """What each side should lose: nothing but what was replaced or removed on the side where it was."""

    def __init__(self, world: World, folder: Path, seed: int) -> None:
        self._alice, self._folder, self._chance = world.agent("alice"), folder, random.Random(seed)
        self._world, self._count = world, 0
        self.lost_ok: set[bytes] = set()
        self.made: set[bytes] = set()

    def _name(self) -> str:
        return self._chance.choice(["a.md", "b.md", "c.md", "d/e.md", "d/f.md", "多/g h.md"])

    def _text(self) -> bytes:
        self._count += 1
        self.made.add(text := f"text {self._count}\n".encode())
        return text

    def in_folder(self) -> None:
        path = self._folder / self._name()
        before = path.read_bytes() if path.is_file() else None
        if before is not None and self._chance.random() < 0.3:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._text())
        if before is not None:
            self.lost_ok.add(before)

    def in_store(self) -> None:
        name = self._name()
        before = there(self._world).get(name)
        if before is not None and self._chance.random() < 0.3:
            self._alice.memory.delete(f"{ROOT}/{name}")
        else:
            self._alice.put(f"{ROOT}/{name}", self._text())
        if before is not None:
            self.lost_ok.add(before)

    def any(self) -> None:
        for _ in range(self._chance.randrange(4)):
            self._chance.choice([self.in_folder, self.in_store])()

    def check(self) -> None:
        assert here(self._folder) == there(self._world)
        now = set(here(self._folder).values())
        assert self.made - self.lost_ok <= now, "a text that nobody replaced or removed is not there any more"
        assert now <= self.made | {b"there\n"}


@pytest.mark.slow
def test_rounds_of_edits_on_both_sides_lose_nothing(world: World, folder: Path) -> None:
    """Removed on one side and as it was on the other, a text may go; changed on both, both texts stay."""
    oracle = Oracle(world, folder, 20)
    for number in range(ROUNDS):
        oracle.any()
        if number % 3 == 0:  # and some while it is at work
            meddling = Meddling(door(world, "alice").memory)
            meddling.before = lambda: oracle.any() if oracle._chance.random() < 0.5 else None
            synced(world, folder, meddling, many=True)
        synced(world, folder, many=True)
        oracle.check()


def test_a_sync_beside_a_writer_of_each_side_ends_with_both_alike(world: World, folder: Path) -> None:
    over = threading.Event()
    oracle = Oracle(world, folder, 21)
    (folder / "w.md").write_text("0\n")

    def write() -> None:
        count = 0
        while not over.is_set():
            count += 1
            (folder / ".new").write_text(f"{count}\n")
            (folder / ".new").replace(folder / "w.md")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            oracle.in_store()
            synced(world, folder, many=True)
    finally:
        over.set()
        thread.join()
    synced(world, folder, many=True)
    assert here(folder) == there(world)
