"""Each promise alone: when a call has returned, the change is on the disk, whatever else happens.

The store lies on a disk that drops what was not synced, and is looked at as it would be if the power went in the moment
after the call: nothing that is done later can have helped. Opened there without a daemon. AVM_FRONT_END=portable runs
it through the other front end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.fuse.serve import front_end
from avmfs.rpc.client import RemoteDoor
from avmfs.store.schema import database
from tests.dropping_disk import DroppingDisk
from tests.faults.daemons import LIMIT_S, wait
from tests.faults.machines import Machine, machine

pytestmark = pytest.mark.mount


class World:
    """The machine, and one agent's ways to it."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine, self.root = machine, root
        self.mount = machine.daemon.at("alice")
        self.door = RemoteDoor(machine.daemon.run / "avm.sock", "alice", timeout_s=LIMIT_S)
        self.operator = RemoteDoor(machine.daemon.run / "avm.sock", "alice", operator=True, timeout_s=LIMIT_S)
        self.bob = RemoteDoor(machine.daemon.run / "avm.sock", "bob", timeout_s=LIMIT_S)
        self._copies = itertools.count()
        self.stirred = self.made("stirred")

    def close(self) -> None:
        for door in (self.door, self.operator, self.bob):
            door.close()

    def __truediv__(self, name: str) -> Path:
        return self.mount / "memory" / name

    def made(self, name: str, text: str = "old") -> Path:
        """A file that is on the disk."""
        path = self / name
        path.write_text(text)
        return path

    def stir(self) -> None:
        """A relaxed change, so that what comes next is not synced because a second is over."""
        self.stirred.chmod(self.stirred.stat().st_mode ^ 0o100)

    def replace_mount(self) -> None:
        """Its process is killed, and another one goes on at once."""
        if front_end(os.environ) == "portable":
            pytest.skip("a mount of the portable front end does not outlive its process")
        old = self.machine.daemon.family()["alice"]
        os.kill(old, signal.SIGKILL)
        wait(lambda: self.machine.daemon.family().get("alice", old) != old)
        wait(lambda: self.machine.daemon.state("alice") == "ready")

    def call(self, method: str, /, **arguments: Any) -> Any:
        return self.door.call(method, **arguments)

    def command(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "avmfs.cli", "-a", "alice", *words],
            env=self.machine.daemon.environ,
            timeout=200,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def lost(self) -> Iterator[AVM]:
        """Alice's memory as the disk has it now."""
        assert isinstance(self.machine.disk, DroppingDisk)
        at = self.machine.disk.durable(self.root / f"copy{next(self._copies)}")
        environ = {**self.machine.daemon.environ, "AVM_DATA_DIR": f"{at}/data", "AVM_RUNTIME_DIR": f"{at}/run"}
        environ["AVM_AUTOSTART"] = "0"
        with AVM(db=at / "data/avm.db", agent="alice", embeddings=False, environ=environ) as avm:
            yield avm
        assert database.integrity(at / "data/avm.db") == []


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name,
        machine(Path(name), DroppingDisk(Path(name, "disk"), "posix")) as made,
    ):
        made.daemon.start()
        made.disk.slow(0.02, 0.02)  # who answers before a sync is over does so long before
        world = World(made, Path(name))
        yield world
        world.close()


Check = Callable[[AVM], object]
Promise = Callable[[World], Check]
_PROMISES: list[Promise] = []


def promise(function: Promise) -> Promise:
    """A function that makes one change in its last line, and returns what is to hold on the disk then."""
    _PROMISES.append(function)
    return function


def reads(path: str, text: str) -> Check:
    return lambda avm: avm.read(f"/memory/{path}") == text


def absent(path: str) -> Check:
    above, _, name = f"/memory/{path}".rpartition("/")
    return lambda avm: name not in [entry["name"] for entry in avm.list(above)]


def listed(path: str) -> Check:
    return lambda avm: not absent(path)(avm)


@promise
def close(w: World) -> Check:
    with open(w / "close", "x") as out:
        out.write("text")
    return reads("close", "text")


@promise
def close_of_what_was_there(w: World) -> Check:
    w.made("over").write_text("new")
    return reads("over", "new")


@promise
def fsync(w: World) -> Check:
    out = open(w / "fsync", "x")  # noqa: SIM115 - it stays open
    out.write("text")
    out.flush()
    os.fsync(out.fileno())
    return lambda avm: (reads("fsync", "text")(avm), out.close())[0]


@promise
def fdatasync_after_appending(w: World) -> Check:
    out = os.open(w.made("fdatasync"), os.O_WRONLY | os.O_APPEND)
    os.write(out, b" and new")
    os.fdatasync(out)
    return lambda avm: (reads("fdatasync", "old and new")(avm), os.close(out))[0]


@promise
def write_with_o_dsync(w: World) -> Check:
    out = os.open(w.made("dsync"), os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
    os.write(out, b" and new")
    return lambda avm: (reads("dsync", "old and new")(avm), os.close(out))[0]


@promise
def close_after_appending(w: World) -> Check:
    with open(w.made("append"), "a") as out:
        out.write(" and new")
    return reads("append", "old and new")


@promise
def close_by_who_did_not_write(w: World) -> Check:
    """The last close of a file on whose other handle something was appended."""
    first = os.open(w.made("two"), os.O_WRONLY | os.O_APPEND)
    second = os.open(w / "two", os.O_RDWR)
    os.write(first, b" and new")
    os.close(second)
    return lambda avm: (reads("two", "old and new")(avm), os.close(first))[0]


@promise
def msync(w: World) -> Check:
    with open(w.made("map", "old" * 2000), "r+b") as file, mmap.mmap(file.fileno(), 6000) as pages:
        pages[0:3] = b"new"
        pages.flush()
        os.fsync(file.fileno())
    return reads("map", "new" + "old" * 1999)


@promise
def close_of_a_new_file_that_is_only_read(w: World) -> Check:
    """As lock files are made."""
    w.stir()
    os.close(os.open(w / "lock", os.O_RDONLY | os.O_CREAT))
    return listed("lock")


@promise
def fsync_after_chmod(w: World) -> Check:
    file = os.open(w.made("chmod"), os.O_RDONLY)
    w.stir()
    os.chmod(w / "chmod", 0o600)
    os.fsync(file)
    os.close(file)
    return lambda avm: [entry["mode"] for entry in avm.list("/memory") if entry["name"] == "chmod"] == ["-rw-------"]


@promise
def fsync_of_a_directory(w: World) -> Check:
    """Its own mode, and the name of a file that is still open."""
    (w / "directory").mkdir()
    folder = os.open(w / "directory", os.O_RDONLY)
    w.stir()
    os.chmod(folder, 0o700)
    file = os.open("open", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder)
    os.fsync(folder)
    modes = {"directory": "drwx------", "open": "-rw-r--r--"}

    def check(avm: AVM) -> bool:
        os.close(file)
        os.close(folder)
        found = {each["name"]: each["mode"] for each in (*avm.list("/memory"), *avm.list("/memory/directory"))}
        assert modes.items() <= found.items(), found
        return True

    return check


@promise
def mknod(w: World) -> Check:
    w.stir()
    os.mknod(w / "mknod", 0o644)
    return listed("mknod")


@promise
def close_after_the_mount_was_replaced(w: World) -> Check:
    out = os.open(w.made("replaced"), os.O_WRONLY | os.O_APPEND)
    os.write(out, b" and new")
    w.replace_mount()
    w.stir()
    os.close(out)
    return reads("replaced", "old and new")


@promise
def close_of_a_new_file_after_the_mount_was_replaced(w: World) -> Check:
    out = os.open(w / "replaced2", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    w.replace_mount()
    w.stir()
    os.close(out)
    return listed("replaced2")


@promise
def rename(w: World) -> Check:
    w.made("rename").rename(w / "renamed")
    return lambda avm: reads("renamed", "old")(avm) and absent("rename")(avm)


@promise
def replace(w: World) -> Check:
    w.made("target")
    w.made("tmp", "new").rename(w / "target")
    return lambda avm: reads("target", "new")(avm) and absent("tmp")(avm)


@promise
def unlink(w: World) -> Check:
    w.made("unlink").unlink()
    return absent("unlink")


@promise
def mkdir(w: World) -> Check:
    (w / "mkdir").mkdir()
    return listed("mkdir")


@promise
def rmdir(w: World) -> Check:
    (w / "rmdir").mkdir()
    (w / "rmdir").rmdir()
    return absent("rmdir")


@promise
def symlink(w: World) -> Check:
    (w / "symlink").symlink_to("elsewhere")
    return listed("symlink")


@promise
def ftruncate(w: World) -> Check:
    with open(w.made("ftruncate"), "r+") as out:
        out.truncate(1)
    return reads("ftruncate", "o")


@promise
def truncate(w: World) -> Check:
    os.truncate(w.made("truncate"), 1)
    return reads("truncate", "o")


@promise
def tell(w: World) -> Check:
    (w.mount / "tell/alice").write_text("by a mount")
    return lambda avm: "by a mount" in [each["body"] for each in avm.inbox()]


@promise
def read_mail(w: World) -> Check:
    w.call("tell", recipient="alice", body="to be read")
    (w.mount / ":inbox").write_text("x")
    return lambda avm: avm.inbox(unread_only=True) == []


@promise
def tags(w: World) -> Check:
    w.made("tags")
    (w / "tags:tags").write_text("one")
    return lambda avm: avm.read("/memory/tags:tags").strip() == "one"


@promise
def meta(w: World) -> Check:
    w.made("meta")
    (w / "meta:meta").write_text('{"importance": 0.25}')
    return lambda avm: json.loads(avm.read("/memory/meta:meta"))["importance"] == 0.25


@promise
def ttl(w: World) -> Check:
    w.made("ttl")
    (w / "ttl:ttl").write_text("1h")
    return lambda avm: avm.read("/memory/ttl:ttl").strip() != "never"


@promise
def shared(w: World) -> Check:
    w.made("shared/limited")
    (w / "shared/limited:shared").write_text("alice")
    return lambda avm: avm.read("/memory/shared/limited:shared").strip() == "alice"


@promise
def links(w: World) -> Check:
    w.made("from"), w.made("to")
    (w / "from:links").write_text("/memory/to")
    return lambda avm: [link["path"] for link in avm.links("/memory/from")] == ["/memory/to"]


@promise
def mark(w: World) -> Check:
    w.bob.call("write", path="/memory/marked", data=b"by bob")
    (w / "marked:mark").write_text("x")
    return lambda avm: avm.read("/memory/marked:mark").strip() == "marked: v1, current: v1"


@promise
def command_write(w: World) -> Check:
    w.command("write", "/memory/command", "text")
    return reads("command", "text")


@promise
def command_rm(w: World) -> Check:
    w.made("rm")
    w.command("rm", "/memory/rm")
    return absent("rm")


@promise
def door_write(w: World) -> Check:
    w.call("write", path="/memory/door", data=b"text")
    return reads("door", "text")


@promise
def door_append(w: World) -> Check:
    w.made("door-append")
    w.call("write", path="/memory/door-append", data=b" and new", mode="append")
    return reads("door-append", "old and new")


@promise
def door_remember(w: World) -> Check:
    path = w.call("remember", content="to be remembered")["path"]
    return lambda avm: "to be remembered" in avm.read(path)


@promise
def door_move(w: World) -> Check:
    w.made("door-move")
    w.call("move", source="/memory/door-move", target="/memory/door-moved")
    return reads("door-moved", "old")


@promise
def door_mkdir(w: World) -> Check:
    w.call("make_directory", path="/memory/door-mkdir/below")
    return listed("door-mkdir/below")


@promise
def subscribe(w: World) -> Check:
    w.call("subscribe", pattern="/memory/subscribed/*")
    return lambda avm: "/memory/subscribed/*" in [each["pattern"] for each in avm.subscriptions()]


@promise
def unsubscribe(w: World) -> Check:
    w.call("subscribe", pattern="/memory/over/*")
    w.call("unsubscribe", pattern="/memory/over/*")
    return lambda avm: "/memory/over/*" not in [each["pattern"] for each in avm.subscriptions()]


@promise
def outbox(w: World) -> Check:
    """Whatever was to be delivered is not forgotten with the change: it still follows from the log."""
    w.call("subscribe", pattern="/memory/watched/*")
    w.bob.call("write", path="/memory/watched/file", data=b"x")
    return lambda avm: "/memory/watched/file" in str(avm.notices())


@promise
def create_key(w: World) -> Check:
    w.call("create_key", label="a key")
    return lambda avm: "a key" in [key["label"] for key in avm.api_keys()]


@promise
def revoke_key(w: World) -> Check:
    made = w.call("create_key", label="a key to revoke")["id"]
    w.call("revoke_key", id=made)
    return lambda avm: [key["revoked"] for key in avm.api_keys() if key["id"] == made] != [None]


@promise
def privacy(w: World) -> Check:
    w.call("privacy", mode="existence")
    return lambda avm: avm.privacy() == "existence"


@promise
def init_permissions(w: World) -> Check:
    w.operator.call("init_permissions", users={"zoe": {"capabilities": ["write"]}})
    return lambda avm: avm.get_user("zoe").name == "zoe"


@pytest.mark.parametrize("kept", _PROMISES, ids=lambda function: function.__name__)
def test_it_is_on_the_disk_when_the_call_returns(world: World, kept: Promise) -> None:
    world.stir()
    check = kept(world)
    with world.lost() as avm:
        assert check(avm)
