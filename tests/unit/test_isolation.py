"""Who is kept apart by Unix users, who may use a mount, and what the doctor says mounting needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import ConfigError, Mount, Settings, find_paths, load_mounts
from avmfs_config.isolation import entitled, isolation
from avmfs_daemon import mount_links

from avmfs.cli import needs
from avmfs.cli.storing import storing
from avmfs.fuse.protocol import Op
from avmfs.fuse.uid_gate import FENCED, admitted, needs_allow_other
from avmfs.store.files.store_lock import StoreLock

OWN = 900
ALICE = Mount(Path("/run/avm/mounts/alice"), "alice", uid=1001)
BOB = Mount(Path("/run/avm/mounts/bob"), "bob", uid=1002)
SETTINGS = Settings(providers=(), permissions=(), default_access="ro")


@contextmanager
def held(database: Path, about: dict[str, Any]) -> Iterator[StoreLock]:
    """The store's lock, as a daemon has it."""
    lock = StoreLock(database)
    descriptor = lock.acquire(0)
    try:
        lock.note(descriptor, about)
        yield lock
    finally:
        lock.release(descriptor, clean=True)


def of(*mounts: Mount, uids: dict[int, tuple[str, ...]] | None = None) -> tuple[str, str]:
    return isolation(mounts, entitled(replace(SETTINGS, uids=uids or {}), mounts).uids, OWN)


def test_agents_are_apart_when_each_has_a_uid_of_its_own() -> None:
    assert of(ALICE, BOB) == ("by uid", "")
    assert of(ALICE, uids={1002: ("bob",), 1001: ("alice",)}) == ("by uid", "")
    assert of(uids={1002: ("bob",)}) == ("by uid", "")


@pytest.mark.parametrize(
    ("mounts", "uids", "reason"),
    [
        ((), {}, "no agent has a uid of its own"),
        ((ALICE, replace(BOB, uid=None)), {}, "the mount of bob has no uid of its own"),
        ((replace(ALICE, allow_other=True),), {}, "allow_other lets every user into the mount of alice"),
        ((ALICE, replace(BOB, uid=1001)), {}, "uid 1001 is alice and bob"),
        ((ALICE,), {1001: ("helper",)}, "uid 1001 is helper and alice"),
        ((replace(ALICE, uid=OWN),), {}, "alice runs as the daemon"),
        ((replace(ALICE, uid=0),), {}, "alice runs as root"),
    ],
)
def test_everything_else_is_advisory(mounts: tuple[Mount, ...], uids: dict[int, tuple[str, ...]], reason: str) -> None:
    assert of(*mounts, uids=uids) == ("advisory", reason)


def test_a_mount_s_user_speaks_for_its_agent_at_the_door() -> None:
    found = entitled(replace(SETTINGS, uids={1001: ("alice",), 5: ("zoe",)}), (ALICE, BOB)).uids
    assert found == {1001: ("alice",), 5: ("zoe",), 1002: ("bob",)}


def test_a_mount_is_for_its_user_and_for_root_where_that_is_asked_for() -> None:
    assert admitted(replace(ALICE, uid=None)) is None
    assert admitted(replace(ALICE, allow_other=True)) is None
    assert admitted(ALICE) == {1001}
    assert admitted(replace(ALICE, allow_root=True)) == {0, 1001}
    assert [needs_allow_other(each) for each in (ALICE, replace(ALICE, uid=None), replace(ALICE, uid=os.getuid()))] == [
        True,
        False,
        False,
    ]


def test_every_request_that_names_something_is_fenced() -> None:
    """What is not: requests on what is open, and those that the kernel makes by itself."""
    assert set(Op) - FENCED == {
        Op.FORGET,
        Op.BATCH_FORGET,
        Op.INIT,
        Op.INTERRUPT,
        Op.DESTROY,
        Op.READ,
        Op.WRITE,
        Op.RELEASE,
        Op.FSYNC,
        Op.FLUSH,
        Op.READDIR,
        Op.RELEASEDIR,
        Op.FSYNCDIR,
        Op.GETLK,
        Op.SETLK,
        Op.SETLKW,
        Op.FALLOCATE,
        Op.LSEEK,
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("allow_root: true", "mounts[0].allow_root: needs `uid`"),
        ("link: /m/alice/x", "mounts[0].link: cannot lie in the mount that it leads to (/m/alice)"),
        ("link: /m/alice", "mounts[0].link: cannot lie in the mount"),
        ("link: relative", "mounts[0].link: must be an absolute path"),
    ],
)
def test_a_bad_entry_names_its_key(tmp_path: Path, entry: str, problem: str) -> None:
    file = tmp_path / "mounts.yaml"
    file.write_text(f"mounts:\n  - {{mountpoint: /m/alice, agent_id: alice, {entry}}}\n")
    with pytest.raises(ConfigError, match="mounts") as caught:
        load_mounts(file, {"HOME": "/h"})
    assert problem in str(caught.value)


def test_a_link_is_made_once_and_replaces_nothing(tmp_path: Path) -> None:
    link, target = tmp_path / "avm", tmp_path / "mounts/alice"
    for _ in range(2):
        assert mount_links.make(link, target, None, 0) == ""
        assert os.readlink(link) == str(target)
    assert "something else is there" in mount_links.make(link, tmp_path / "other", None, 0)
    (tmp_path / "file").write_text("x")
    assert "something else is there" in mount_links.make(tmp_path / "file", target, os.geteuid(), 0)
    said = mount_links.make(tmp_path / "no/such/avm", target, None, 0)
    assert "No such file" in said and f"ln -s {target} " in said
    assert os.readlink(link) == str(target) and (tmp_path / "file").read_text() == "x"


def test_the_doctor_says_what_is_missing_for_mounting(tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    assert needs.others_allowed((ALICE,), 0, conf) is None
    assert needs.others_allowed((replace(ALICE, uid=None),), OWN, conf) is None
    for text, state in (
        ("", "problem"),
        ("# user_allow_other\n", "problem"),
        ("mount_max = 9\nuser_allow_other\n", "ok"),
    ):
        conf.write_text(text)
        found = needs.others_allowed((ALICE,), OWN, conf)
        assert found is not None and found.state == state
    assert needs.device(tmp_path / "none").state == "problem"
    assert needs.helper(None).todo == "apt-get install fuse3"


def test_the_doctor_sees_a_folder_that_the_mount_s_user_cannot_pass(tmp_path: Path) -> None:
    way = tmp_path / "closed/mounts"
    way.mkdir(parents=True)
    for path in (way, *way.parents):
        if path.is_relative_to(tmp_path.parents[2]) and path != Path("/tmp"):
            path.chmod(0o755)
    mount = replace(ALICE, mountpoint=way / "alice", link=tmp_path / "link")
    stranger = replace(mount, uid=424242)
    assert [each.state for each in needs.reach(stranger, OWN)] == ["note"]  # only that there is no link
    (tmp_path / "closed").chmod(0o700)
    problem = next(iter(needs.reach(stranger, OWN)))
    assert problem.state == "problem" and str(tmp_path / "closed") in problem.says
    (tmp_path / "link").symlink_to("/elsewhere")
    assert "leads to /elsewhere" in [each.says for each in needs.reach(stranger, OWN)][-1]


def test_the_doctor_sees_a_mount_that_is_not_there(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    point = tmp_path / "of alice"
    mount = replace(ALICE, mountpoint=point)
    table.write_text("22 1 0:21 / /proc rw - proc proc rw\n")
    assert not list(needs.place(mount, False, table))  # neither daemon nor directory: nothing is wrong
    (problem,) = needs.place(mount, True, table)
    assert problem.state == "problem" and "not mounted" in problem.says and "avm-daemon status" in problem.todo
    point.mkdir()
    assert not list(needs.place(mount, False, table))
    (point / "x").touch()
    (problem,) = needs.place(mount, False, table)
    assert problem.state == "problem" and "not empty" in problem.says
    escaped = str(point).replace(" ", "\\040")
    table.write_text(f"36 22 0:41 / {escaped} rw,nosuid - fuse avm rw\n")
    assert not list(needs.place(mount, True, table)) and not list(needs.place(mount, False, table))


def test_the_doctor_finds_a_mount_by_any_name_of_its_folder(tmp_path: Path) -> None:
    """The table has the name without symbolic links, and names of other mounts that are no UTF-8."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    table = tmp_path / "mountinfo"
    table.write_bytes(b"30 22 0:40 / /media/B\xfccher rw - cifs x rw\n")
    mount = replace(ALICE, mountpoint=tmp_path / "link/alice")
    assert [each.state for each in needs.place(mount, True, table)] == ["problem"]
    with table.open("ab") as file:
        file.write(b"36 22 0:41 / %s/real/alice rw,nosuid - fuse avm rw\n" % os.fsencode(tmp_path))
    assert not list(needs.place(mount, True, table))


def test_the_doctor_knows_the_daemon_s_mounts_yaml_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/mounts.yaml").write_text(f"mounts: [{{mountpoint: {tmp_path}/alice, agent_id: alice}}]\n")
    where = find_paths({"AVM_CONFIG_DIR": str(tmp_path / "real"), "AVM_DATA_DIR": str(tmp_path / "data")})
    about = {"pid": os.getpid(), "socket": "/x/avm.sock", "mounts_file": str(tmp_path / "link/mounts.yaml")}
    with held(where.database, about):
        assert [each.about for each in needs.mounting(where) if "not mounted" in each.says] == ["mount alice"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_doctor_says_of_a_mountpoint_that_a_killed_daemon_guards_what_opens_it(tmp_path: Path) -> None:
    table, point = tmp_path / "mountinfo", tmp_path / "alice"
    table.touch()
    point.mkdir(mode=0)
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to(tmp_path.parents[2]) and path != Path("/tmp"):
            path.chmod(0o755)
    os.chown(point, 65534, 65534)
    os.seteuid(65534)
    try:
        (found,) = needs.place(replace(ALICE, mountpoint=point), False, table)
    finally:
        os.seteuid(0)
    assert found.state == "note" and "Permission denied" in found.says and "the next start opens it" in found.todo


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_the_doctor_of_root_looks_for_the_runtime_directory_of_the_daemon_s_user(tmp_path: Path) -> None:
    names = {"CONFIG": "config", "DATA": "data", "RUNTIME": "run"}
    where = find_paths({f"AVM_{name}_DIR": str(tmp_path / folder) for name, folder in names.items()})
    where.runtime_dir.mkdir(mode=0o711)
    with held(where.database, {"pid": os.getpid(), "socket": str(where.runtime_dir / "avm.sock")}) as lock:
        for each in (where.runtime_dir, where.data_dir, lock.path):
            os.chown(each, 65534, 65534)
        assert not [each for each in storing(where, quick=True) if each.about == "runtime"]
        os.chown(where.runtime_dir, 65533, 65533)
        (told,) = [each for each in storing(where, quick=True) if each.about == "runtime"]
        assert told.state == "problem" and "belongs to uid 65533" in told.says
