"""The daemon under kill -9, bad configuration and stop, with real processes and real mounts."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avmfs.errors import Busy, Denied
from avmfs.rpc.client import RemoteDoor
from tests.faults.daemons import (
    FORK_SERVER_KILLED,
    HOLDER_KILLED,
    KILLED,
    LIMIT_S,
    QUIET,
    SOON_S,
    Daemon,
    alive,
    is_immutable,
    kill_and_wait,
    set_immutable,
    wait,
)
from tests.faults.hostile import running
from tests.faults.static_table import make

pytestmark = [pytest.mark.mount, pytest.mark.logs(KILLED)]


def duration_of(*command: str) -> float:
    """Seconds that a program takes on this machine now."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return time.monotonic() - started


@contextlib.contextmanager
def writing(write: Callable[[int], object]) -> Iterator[list[int]]:
    """A thread that writes again and again while the block lasts; the numbers of the writes that have succeeded."""
    stop = threading.Event()
    written: list[int] = []

    def work() -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count(1)):
            with contextlib.suppress(OSError):
                write(number)
                written.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join(LIMIT_S)


def answers(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return path.read_text() == text
    return False


# --- start, status, stop


def test_agents_share_a_memory_and_stop_leaves_nothing(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note.md").write_text("hello")
    assert (daemon.at("bob") / "memory/note.md").read_text() == "hello"
    family = daemon.family()
    assert family.keys() == {
        "supervisor",
        "holder",
        "fork server",
        "writer",
        "index",
        "door",
        "keeper",
        "alice",
        "bob",
    }
    daemon.command("stop")
    wait(daemon.gone, SOON_S)
    assert not daemon.mounted("alice") and not daemon.mounted("bob")
    assert not is_immutable(daemon.at("alice"))
    assert sorted(path.name for path in daemon.run.iterdir()) == ["daemon.lock", "outbox.lock"]
    log = daemon.root / "data/avm.db-wal"
    assert not log.exists() or log.stat().st_size == 0, "the database's file alone is the store"
    assert "not running" in daemon.command("stop", expect=1)
    daemon.start()
    assert (daemon.at("bob") / "memory/note.md").read_text() == "hello"


def test_status_tells_what_runs(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    status = daemon.status()
    assert status.keys() == {
        "pid",
        "version",
        "mounts",
        "embedding",
        "reranker",
        "http",
        "index",
        "cluster",
        "gossip",
        "outbox",
        "store",
        "isolation",
        "isolation_reason",
        "holder_pid",
        "problem",
        "automatic",
        "backup",
        "consolidation",
    }
    (mount,) = status["mounts"]
    assert mount.keys() == {
        "agent_id",
        "mountpoint",
        "pid",
        "state",
        "restarts",
        "since",
        "survives",
        "caching",
        "caching_reason",
        "unread",
    }
    assert (mount["agent_id"], mount["state"], mount["restarts"]) == ("alice", "ready", 0)
    assert mount["mountpoint"] == str(daemon.at("alice"))
    assert status["embedding"]["state"] == "off"
    assert status["store"].keys() == {
        "path",
        "waiting_lexical",
        "waiting_semantic",
        "writer_pid",
        "writer_state",
    }
    assert status["isolation"] == "advisory"
    table = daemon.command("status")
    assert "alice" in table and "ready" in table and str(daemon.at("alice")) in table


def test_files_are_private_whatever_the_umask(daemon: Daemon) -> None:
    daemon.mounts("alice")
    before = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(daemon.run.stat().st_mode) == 0o700
    for path in [*daemon.run.glob("*.sock"), *daemon.root.glob("data/**/*")]:
        assert not path.stat().st_mode & 0o077, path


def test_other_users_reach_the_door_and_only_that(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.settings(QUIET + "uids: {12345: [alice]}\n")
    daemon.start()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in daemon.run.glob("*.sock")}
    assert modes == {
        "avm.sock": 0o666,
        "index.sock": 0o600,
        "writer.sock": 0o600,
        "control.sock": 0o600,
        "hold.sock": 0o600,
        "live.sock": 0o600,
    }
    assert stat.S_IMODE(daemon.run.stat().st_mode) == 0o711
    status = daemon.status()  # the door is not all: alice's mount belongs to the daemon's own user
    assert (status["isolation"], status["isolation_reason"]) == ("advisory", "the mount of alice has no uid of its own")


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    pid = daemon.status()["pid"]
    assert f"already running (pid {pid})" in daemon.command("start", expect=1)
    assert f"already running (pid {pid})" in daemon.command("start", "--daemon", expect=1)
    assert daemon.mount("alice")["restarts"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_daemon_in_the_foreground_in_order(daemon: Daemon, number: signal.Signals) -> None:
    daemon.mounts("alice")
    with subprocess.Popen(
        [sys.executable, "-m", "avmfs_daemon", "start"], env=daemon.environ, stderr=subprocess.DEVNULL
    ) as process:
        daemon.pids.add(process.pid)
        wait(lambda: daemon.mounted("alice") and (daemon.run / "control.sock").exists())
        wait(lambda: daemon.state("alice") == "ready")
        daemon.family()
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
    wait(daemon.gone, SOON_S)
    assert not daemon.mounted("alice")


def test_files_that_are_open_cannot_hold_up_a_stop(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    with open(daemon.at("alice") / "memory/open", "w") as file:
        file.write("text")
        file.flush()
        daemon.command("stop")  # which gives up after a minute
        with contextlib.suppress(OSError):
            file.close()
    wait(daemon.gone, SOON_S)
    assert not daemon.mounted("alice")


@pytest.mark.parametrize("how", ["stop", "remove", "SIGTERM"])
def test_what_open_files_have_been_given_is_kept_by_a_stop(daemon: Daemon, how: str) -> None:
    """By a daemon that gives its children as long as they need: a busy machine's may need more than four seconds."""
    daemon.mounts("alice")
    memory = daemon.at("alice") / "memory"
    code = """
import os, sys
for name, flags in (("new", os.O_CREAT), ("cut", os.O_CREAT), ("old", 0)):
    file = os.open(f"{sys.argv[1]}/{name}", os.O_WRONLY | flags)
    os.write(file, name.encode() * 3)
    if name == "cut":
        os.ftruncate(file, 4)
print("written", flush=True)
sys.stdin.read()
"""
    with running(daemon, STOP_S="50"):
        (memory / "old").write_text("old and long")
        program = subprocess.Popen(
            [sys.executable, "-c", code, os.fspath(memory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert program.stdout is not None and program.stdout.readline() == "written\n"
            if how == "SIGTERM":
                os.kill(daemon.status()["pid"], signal.SIGTERM)
                wait(lambda: not daemon.mounted("alice"))
            else:
                daemon.command(how, *(["alice"] if how == "remove" else []))
        finally:
            program.kill()
            program.communicate(timeout=LIMIT_S)
        if how == "remove":
            daemon.command("stop")
    wait(daemon.gone)
    daemon.mounts("alice")
    daemon.start()
    assert {name: (memory / name).read_text() for name in ("new", "cut", "old")} == {
        "new": "newnewnew",
        "cut": "cutc",
        "old": "oldoldold" + "ong",
    }


def test_a_stopped_child_cannot_hold_up_a_stop(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    family = daemon.family()
    for name in ("alice", "keeper", "writer"):
        os.kill(family[name], signal.SIGSTOP)
    daemon.command("stop")  # which gives up after a minute
    wait(daemon.gone, SOON_S)
    assert not daemon.mounted("alice")


# --- configuration


def test_bad_mounts_are_named_and_nothing_starts(daemon: Daemon) -> None:
    (daemon.config / "mounts.yaml").write_text("mounts:\n  - {mountpoint: /tmp/x}\n")
    for command in (["start"], ["start", "--daemon"], ["check"]):
        assert "mounts.yaml: mounts[0].agent_id: required" in daemon.command(*command, expect=1)
    assert not list(daemon.run.glob("*.sock"))


def test_one_process_fetches_while_there_are_providers(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    assert "live" not in daemon.family()
    provider = {"pattern": "/live/{word}", "handler": "script", "config": {"command": "printf %s ${word}"}, "ttl": 0}
    daemon.settings(json.dumps({"providers": [provider]}))
    daemon.command("reload")
    place = daemon.at("alice") / "live"
    wait(lambda: daemon.state("alice") == "ready")
    assert (place / "hello").read_bytes() == b"hello"
    before = daemon.family()["live"]
    os.kill(before, signal.SIGKILL)
    wait(lambda: daemon.family().get("live", before) != before)
    assert (place / "hello").read_bytes() == b"hello" and (place / "again").read_bytes() == b"again"
    daemon.settings(json.dumps({"providers": []}))
    daemon.command("reload")
    wait(lambda: not place.exists() and "live" not in daemon.family())


def test_a_missing_mounts_file_is_named(daemon: Daemon) -> None:
    assert "mounts.yaml: no such file" in daemon.command("start", "--daemon", expect=1)


def test_a_foreign_database_is_refused(daemon: Daemon) -> None:
    daemon.mounts("alice")
    (daemon.root / "data").mkdir()
    (daemon.root / "data/avm.db").write_bytes(b"precious bytes of something else" * 100)
    daemon.command("start", "--daemon", expect=1)
    assert (daemon.root / "data/avm.db").read_bytes().startswith(b"precious")
    assert not daemon.mounted("alice")


@pytest.mark.logs("another name of the directory")
def test_a_second_name_of_one_directory_is_refused_at_a_start_too(daemon: Daemon) -> None:
    (daemon.root / "way").symlink_to(daemon.root)
    daemon.mounts("alice")  # to be unmounted at the end
    places = {"alice": daemon.at("alice"), "bob": daemon.root / "way/alice"}
    lines = [f"  - {{mountpoint: {place}, agent_id: {agent}}}\n" for agent, place in places.items()]
    (daemon.config / "mounts.yaml").write_text("mounts:\n" + "".join(lines))
    said = daemon.command("start", "--daemon", expect=1)
    assert f"mount bob: {places['bob']}: another name of the directory of mount alice" in said
    (daemon.at("alice") / "private/own.md").write_text("alice's")
    assert (daemon.state("alice"), daemon.state("bob")) == ("ready", "failed")
    assert daemon.avm("read", "/private/own.md", agent="alice").stdout == "alice's"


@pytest.mark.logs("the directory is not empty")
def test_a_directory_with_something_in_it_is_not_covered(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.at("alice").mkdir()
    (daemon.at("alice") / "mine").write_text("keep")
    assert "not empty" in daemon.command("start", "--daemon", expect=1)
    assert daemon.mount("alice")["state"] == "failed"
    assert daemon.mount("bob")["state"] == "ready"
    assert "not empty" in daemon.command("status", "--json", expect=1)
    bare, found = daemon.doctor("mount alice", "mount bob")
    assert bare["state"] == found["state"] == "problem" and bare["says"].endswith("not mounted, though the daemon runs")
    assert found["says"].startswith("failed: ") and "not empty" in found["says"]
    assert found["todo"] == "avm-daemon status; avm-daemon reload"
    assert "not empty" in daemon.command("reload", expect=1)
    (daemon.at("alice") / "mine").unlink()
    daemon.command("reload")
    assert daemon.mount("alice")["state"] == "ready"
    assert daemon.doctor("mount alice", "mount bob") == []


@pytest.mark.logs("model")
def test_doctor_tells_of_a_model_that_failed_and_of_a_daemon_that_does_not_answer(daemon: Daemon) -> None:
    table = daemon.root / "table"
    table.mkdir()
    daemon.settings(f"embedding: {{engine: static, path: {table}}}\n")
    daemon.mounts("alice")
    daemon.command("start", "--daemon")
    wait(lambda: daemon.status()["embedding"]["state"] == "failed")
    daemon.command("status", "--json", expect=1)
    (found,) = [each for each in daemon.doctor("model") if each["says"].startswith("the daemon's: ")]
    assert found["state"] == "problem" and str(table) in found["says"] and "avm warmup" in found["todo"], found
    table.rmdir()
    make(table, 64)
    warmed = daemon.avm("-a", "alice", "warmup")
    assert "does not know the words of the question" in warmed.stderr  # by now loaded; there are few in the table
    assert not any(each["state"] == "problem" for each in daemon.doctor("model", "daemon"))
    supervisor = daemon.family()["supervisor"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        found = daemon.doctor("daemon")[-1]
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert found["state"] == "problem" and found["says"].startswith("does not answer: ")
    assert found["todo"] == "avm-daemon stop; avm-daemon start --daemon"
    assert not any(each["state"] == "problem" for each in daemon.doctor("daemon"))


def test_reload_touches_only_what_changed(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    before = daemon.family()
    daemon.mounts("alice", "carol")
    assert "1 added, 1 removed, 0 restarted" in daemon.command("reload")
    assert daemon.mounted("carol") and not daemon.mounted("bob")
    assert not alive(before["bob"])
    (daemon.at("bob") / "ordinary").write_text("a directory like any other")
    after = daemon.family()
    assert {name: after[name] for name in ("alice", "writer", "index", "door", "keeper")} == {
        name: before[name] for name in ("alice", "writer", "index", "door", "keeper")
    }


def test_a_changed_mount_is_replaced_without_a_gap(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.mount("alice")["pid"]
    stop, failed, late = threading.Event(), [], [0.0]

    def lag() -> None:
        while not stop.is_set():
            started = time.monotonic()
            time.sleep(0.01)
            late.append(time.monotonic() - started)

    def look() -> None:
        while not stop.is_set():
            try:
                with open(daemon.at("alice") / "memory/note") as file:
                    assert file.read() == "text"
            except OSError:
                failed.append(time.monotonic())

    threads = [threading.Thread(target=each) for each in (look, lag)]
    for thread in threads:
        thread.start()
    daemon.mounts("alice", more=", read_only: true")
    assert "0 added, 0 removed, 1 restarted" in daemon.command("reload")
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    # Between detaching and mounting lies one run of fusermount3: milliseconds where the machine has nothing else to do,
    # which is what a sleep tells that takes longer than it should. Daemon, program and reader may each be as late.
    # A remount that first waited for the old process to end, or for the new one to start, would be seen for longer.
    assert not failed or failed[-1] - failed[0] < 0.25 + 10 * duration_of("fusermount3", "--version") + 3 * max(late)
    assert daemon.mount("alice")["pid"] != before
    with pytest.raises(OSError, match="Read-only"):
        (daemon.at("alice") / "memory/note").write_text("more")
    wait(lambda: not alive(before))


@pytest.mark.logs("the configuration stays as it was")
def test_a_bad_reload_keeps_the_old_configuration(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    before = daemon.family()
    daemon.settings("default_access: sometimes\n")
    assert "config.yaml: default_access" in daemon.command("reload", expect=1)
    os.kill(before["supervisor"], signal.SIGHUP)
    wait(lambda: daemon.log().count("config.yaml: default_access") == 2)
    assert daemon.family() == before
    (daemon.at("alice") / "memory/note").write_text("still works")


@pytest.mark.logs("the configuration stays as it was")
def test_a_provider_that_no_handler_can_be_made_of_is_refused_by_reload_and_start(daemon: Daemon) -> None:
    def provided(handler: str, config: str) -> None:
        daemon.settings(f'providers: [{{pattern: "/live/up", handler: {handler}, config: {{{config}}}}}]\n')

    daemon.mounts("alice")
    provided("script", 'command: "echo works"')
    daemon.start()
    for handler, config, key in (
        ("scrpt", 'command: "echo x"', "handler: no handler 'scrpt'"),
        ("http", "", "config.url"),
        ("sqlite", "query: q", "config.database"),
        ("script", 'command: "echo \'x"', "config.command"),
        ("script", "command: echo, timeout: 2", "config.timeout: unknown key; known keys: command, write"),
        ("plugin", "", "config.plugin"),
    ):
        provided(handler, config)
        assert f"config.yaml: providers[0].{key}" in daemon.command("reload", expect=1)
        assert (daemon.at("alice") / "live/up").read_text() == "works\n"
    provided("plugin", "plugin: no_such_module_of_a_test")  # which may come yet: each read says so
    daemon.command("reload")
    daemon.command("stop")
    provided("scrpt", "")
    assert "config.yaml: providers[0].handler: no handler 'scrpt'" in daemon.command("start", "--daemon", expect=1)


@pytest.mark.logs("the configuration stays as it was")
def test_whether_the_store_is_shared_is_nothing_that_a_reload_changes(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    before = daemon.family()
    daemon.settings(QUIET + "store: {log: 'postgresql://localhost:1/avm'}\n")
    assert "store.log" in daemon.command("reload", expect=1)
    assert daemon.family() == before
    (daemon.at("alice") / "memory/note").write_text("still works")


def test_changed_rules_hold_without_a_restart(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.family()
    daemon.settings(QUIET + 'permissions:\n  - {pattern: "/memory/*", access: ro, agents: [bob]}\ndefault_access: rw\n')
    daemon.command("reload")

    def refused() -> bool:
        with contextlib.suppress(PermissionError):
            (daemon.at("bob") / "memory/note").write_text("no")
            return False
        return True

    wait(refused)  # a reload does not wait for all children of a busy machine
    (daemon.at("alice") / "memory/note").write_text("yes")
    assert daemon.family() == before


def test_what_is_left_out_of_the_index_by_new_settings_holds_for_what_is_there(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    note, asked = daemon.at("alice") / "memory/plan.md", daemon.at("alice") / "memory/:search?q=vault code"
    note.write_text("the vault code is 4711")
    assert "plan.md" in asked.read_text()
    for ignored in (True, False):
        daemon.settings(QUIET + ("search: {ignore: ['plan*']}\n" if ignored else ""))
        daemon.command("reload")
        wait(lambda ignored=ignored: ("plan.md" in asked.read_text()) is not ignored)


@pytest.mark.parametrize("slow", [False, True])
def test_commands_go_on_during_reloads_and_the_next_one_finds_the_new_settings(daemon: Daemon, slow: bool) -> None:
    """Who had been let in by the door of before gets the answer; who comes after the reload comes to the next door."""
    address = daemon.run / "avm.sock"
    daemon.mounts("alice")
    daemon.start()
    url, pattern = "http://localhost:9/hook", "/memory/*"
    failed: list[Exception] = []
    stop = threading.Event()

    def command() -> None:
        while not stop.is_set():
            try:
                with contextlib.closing(RemoteDoor(address, "alice")) as door:
                    time.sleep(0.1 if slow else 0)  # between greeting and request
                    door.call("read", path="/:stats")
            except Exception as e:
                failed.append(e)

    with contextlib.closing(RemoteDoor(address, "alice")) as door, pytest.raises(Denied):
        door.call("subscribe", pattern=pattern, url=url)
    threads = [threading.Thread(target=command) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for allow in ("[localhost]", "[]", "[localhost]"):
            before = daemon.family()["door"]
            daemon.settings(QUIET + f"webhooks: {{allow: {allow}}}\n")
            daemon.command("reload")
            wait(lambda before=before: not alive(before))  # on a busy machine a reload may return before that
            with contextlib.closing(RemoteDoor(address, "alice")) as door:
                allowed = contextlib.nullcontext() if allow == "[localhost]" else pytest.raises(Denied)
                with allowed:
                    door.call("subscribe", pattern=pattern, url=url)
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not failed


def test_a_command_that_waits_holds_up_no_reload(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    with contextlib.closing(RemoteDoor(daemon.run / "avm.sock", "alice")) as door:

        def wait_for_mail() -> None:
            with pytest.raises(Busy):
                door.call("inbox", wait=60.0)

        waiting = threading.Thread(target=wait_for_mail)
        waiting.start()
        time.sleep(0.5)
        before = daemon.family()["door"]
        daemon.settings(QUIET + "webhooks: {timeout_s: 3}\n")
        daemon.command("reload")
        assert not alive(before), "it has not waited for the message"
        waiting.join(200)
    assert not waiting.is_alive()


# --- kill -9


@pytest.mark.parametrize("victim", ["alice", "writer", "index", "door", "keeper"])
def test_a_killed_child_is_back_soon(daemon: Daemon, victim: str) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("bob") / "memory/before").write_text("1")
    before = daemon.family()
    os.kill(before[victim], signal.SIGKILL)
    wait(lambda: daemon.family().get(victim) not in (before[victim], None))
    wait(lambda: answers(daemon.at("alice") / "memory/before", "1"))
    (daemon.at("alice") / "memory/after").write_text("2")
    assert (daemon.at("bob") / "memory/after").read_text() == "2"
    after = daemon.family()
    assert {name for name in before if before[name] != after[name]} == {victim}
    assert daemon.mount("alice")["restarts"] == (victim == "alice")
    assert daemon.mount("bob")["restarts"] == 0


def test_connecting_to_a_killed_door_or_writer_never_fails(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    family = daemon.family()
    stop, failures = threading.Event(), []

    def connect(name: str) -> None:
        while not stop.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(300)
                    sock.connect(str(daemon.run / name))
            except OSError as e:
                failures.append(e)
            time.sleep(0.02)  # so that what waits while a busy machine starts a successor has room in the backlog

    threads = [threading.Thread(target=connect, args=(name,)) for name in ("avm.sock", "writer.sock")]
    for thread in threads:
        thread.start()
    for name in ("door", "writer"):
        os.kill(family[name], signal.SIGKILL)
        time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures


def test_no_acknowledged_write_is_lost_when_the_writer_is_killed_again_and_again(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            name = f"n{len(written)}"
            (daemon.at("alice") / "memory" / name).write_text(name)
            written.append(name)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(4):
        count = len(written)
        wait(lambda count=count: len(written) > count)
        time.sleep(0.3)
        os.kill(daemon.whole_family()["writer"], signal.SIGKILL)
    stop.set()
    thread.join(LIMIT_S)
    assert all((daemon.at("bob") / "memory" / name).read_text() == name for name in written)


@pytest.mark.logs(FORK_SERVER_KILLED)
def test_a_killed_fork_server_takes_nothing_with_it(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.family()
    os.kill(before["fork server"], signal.SIGKILL)
    for name in ("writer", "index", "door", "keeper", "alice"):
        wait(lambda name=name: not alive(before[name]))
    wait(lambda: daemon.family().keys() == before.keys() and daemon.mount("alice")["state"] == "ready")
    wait(lambda: answers(daemon.at("alice") / "memory/note", "text"))


def test_after_a_killed_supervisor_and_holder_the_children_go_and_start_just_works(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.family()
    for name in ("supervisor", "holder"):
        os.kill(before[name], signal.SIGKILL)
    wait(lambda: not any(alive(pid) for pid in before.values()))
    assert daemon.mounted("alice")  # dead rather than a bare directory that takes writes
    with pytest.raises(OSError, match="not connected"):
        (daemon.at("alice") / "lost").write_text("never acknowledged")
    daemon.start()
    assert (daemon.at("bob") / "memory/note").read_text() == "text"
    assert {mount["state"] for mount in daemon.status()["mounts"]} == {"ready"}


@pytest.mark.logs(HOLDER_KILLED)
def test_start_at_once_after_a_killed_supervisor(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    for _ in range(3):
        kill_and_wait(daemon.family()["supervisor"])
        daemon.start()
        (daemon.at("alice") / "memory/note").write_text("text")
    assert len([name for name in daemon.family() if name == "alice"]) == 1


def test_a_daemon_goes_on_when_the_command_that_started_it_is_killed(daemon: Daemon) -> None:
    daemon.mounts("alice")
    command = subprocess.Popen(
        [sys.executable, "-m", "avmfs_daemon", "start", "--daemon"],
        env=daemon.environ,
        cwd=daemon.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait(lambda: (daemon.run / "control.sock").exists())  # it waits to be told of the mounts
    finally:
        command.kill()
        command.wait(LIMIT_S)
    wait(lambda: daemon.state("alice") == "ready")
    wait(lambda: "ready: 1 of 1 mounts" in daemon.log())
    time.sleep(0.5)
    assert daemon.state("alice") == "ready"
    (daemon.at("alice") / "memory/note").write_text("goes on")
    daemon.command("stop")
    assert " ERROR " not in daemon.log() and "Traceback" not in daemon.log(), daemon.log()


ENDS = """
import sys
from avmfs_daemon import start, supervisor
from avmfs_daemon.cli_context import paths_and_environ
from avmfs.errors import StoreFailed
def ends(self):
    raise eval(sys.argv[1])("out of luck")
supervisor.Supervisor._load_model = ends  # the first thing after a start
start.start_detached(*paths_and_environ())
"""


@pytest.mark.logs("ended by an error", "RuntimeError: out of luck")
@pytest.mark.parametrize("error", ["RuntimeError", "StoreFailed"])
def test_a_detached_daemon_that_ends_by_an_error_says_so_in_its_log(daemon: Daemon, error: str) -> None:
    daemon.mounts()
    command = [sys.executable, "-c", ENDS, error]
    done = subprocess.run(command, env=daemon.environ, cwd=daemon.root, capture_output=True, text=True, timeout=LIMIT_S)
    assert "is running" in done.stdout, done
    wait(lambda: not alive(int(done.stdout.rpartition(" ")[2].strip(")\n"))))
    assert "out of luck" in daemon.log() and "Bad file descriptor" not in daemon.log(), daemon.log()
    assert ("Traceback" in daemon.log()) == (error == "RuntimeError")


@pytest.mark.logs("cannot note the mountpoints")
def test_a_runtime_directory_that_takes_no_note_holds_up_neither_a_start_nor_a_stop(daemon: Daemon) -> None:
    """As on a full disk."""
    (daemon.run / "state.json.new").mkdir(parents=True)
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("kept")
    os.kill(daemon.family()["supervisor"], signal.SIGKILL)
    wait(daemon.orphaned)
    daemon.start()
    daemon.mounts("alice")
    assert "1 removed" in daemon.command("reload")
    assert (daemon.at("alice") / "memory/note").read_text() == "kept"
    daemon.command("stop")
    wait(daemon.gone)  # the holder is not the new supervisor's child: nobody waits for its last moment
    assert not daemon.mounted("alice")
    assert "cannot note the mountpoints" in daemon.log()


@pytest.mark.logs("ended a writer ")
def test_a_writer_that_hangs_after_its_supervisor_was_killed_keeps_nobody_from_starting(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("kept")
    family = daemon.family()
    os.kill(family["writer"], signal.SIGSTOP)
    kill_and_wait(family["supervisor"])
    daemon.start()
    assert not alive(family["writer"])
    assert (daemon.at("alice") / "memory/note").read_text() == "kept"
    (daemon.at("alice") / "memory/note").write_text("written on")
    daemon.command("stop")


@pytest.mark.logs(HOLDER_KILLED)
def test_mounts_of_a_killed_run_are_removed_even_when_no_longer_configured(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    os.kill(daemon.family()["supervisor"], signal.SIGKILL)
    wait(daemon.orphaned, SOON_S)
    daemon.mounts("alice")
    daemon.start()
    assert not daemon.mounted("bob")
    (daemon.at("bob") / "ordinary").write_text("text")


def test_stop_cleans_up_after_a_killed_supervisor(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    os.kill(daemon.family()["supervisor"], signal.SIGKILL)
    wait(daemon.orphaned, SOON_S)
    assert daemon.mounted("alice")
    assert "killed" in daemon.command("stop")
    assert not daemon.mounted("alice")
    daemon.command("stop", expect=1)


def test_a_protection_that_a_killed_supervisor_left_is_taken_off(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.at("alice").mkdir()
    set_immutable(daemon.at("alice"), True)
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    daemon.command("stop")
    assert not is_immutable(daemon.at("alice"))


def test_the_bare_directory_refuses_writes_while_nothing_covers_it(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    at = daemon.at("alice")
    (at / "memory/note").write_text("text")
    # Nothing can be created at the root of a mount.
    with writing(lambda number: (at / f"stray{number}").write_text("x")) as hidden:
        for _ in range(5):
            pid = daemon.mount("alice")["pid"]
            os.kill(pid, signal.SIGKILL)
            wait(lambda pid=pid: daemon.mount("alice")["pid"] not in (pid, None))
            wait(lambda: answers(at / "memory/note", "text"))
    assert hidden == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reaches a directory below a dead mount")
def test_a_dead_mount_covers_its_directory_until_there_is_another(daemon: Daemon) -> None:
    """After everything was killed a program that makes the directories it needs would otherwise make them below."""
    daemon.mounts("alice")
    daemon.start()
    at = daemon.at("alice")

    def write(number: int) -> None:
        (at / "memory/shared/a").mkdir(parents=True, exist_ok=True)
        (at / f"memory/shared/a/{number}").write_text("x")

    with writing(write) as kept:
        before = daemon.family()
        for name in ("supervisor", "holder"):  # the others end with it
            os.kill(before[name], signal.SIGKILL)
        wait(lambda: not any(alive(pid) for pid in before.values()))
        daemon.start()
        count = len(kept)
        wait(lambda: len(kept) > count + 3)
    assert [number for number in kept if not (at / f"memory/shared/a/{number}").exists()] == []
    daemon.command("stop")
    assert os.listdir(at) == []


@pytest.mark.logs("ended: ended with status 0")
def test_a_terminated_mount_child_leaves_no_bare_directory(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    pid = daemon.mount("alice")["pid"]
    (daemon.at("alice") / "memory/note").write_text("text")
    os.kill(pid, signal.SIGTERM)
    while daemon.mount("alice")["pid"] == pid:
        with contextlib.suppress(OSError):  # dead, or the tree; never an empty directory
            assert "memory" in os.listdir(daemon.at("alice"))
    wait(lambda: daemon.mount("alice")["pid"] not in (pid, None))
    wait(lambda: answers(daemon.at("alice") / "memory/note", "text"))


# --- the control socket


def test_silent_and_garbled_peers_do_not_disturb_the_loop(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    with contextlib.ExitStack() as stack:
        for data in (b"", b"\0\0\0\x10half", b"\xff" * 64, b"\0\0\0\x01\xc1", b"GET / HTTP/1.1\r\n\r\n") * 3:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(daemon.run / "control.sock"))
            with contextlib.suppress(OSError):
                sock.sendall(data)
        assert daemon.status()["mounts"][0]["state"] == "ready"


def test_programs_can_read_the_status(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    assert json.loads(daemon.command("status", "--json"))["mounts"][0]["agent_id"] == "alice"
    daemon.command("stop")
    assert "not running" in daemon.command("status", expect=1)
    assert "not running" in daemon.command("reload", expect=1)
    daemon.command("dance", expect=2)


def test_what_runs_tells_its_own_version_when_another_one_is_installed(daemon: Daemon) -> None:
    told = daemon.root / "installed/avmfs-9.9.dist-info/METADATA"
    told.parent.mkdir(parents=True)
    told.write_text("Metadata-Version: 2.1\nName: avmfs\nVersion: 9.9\n")
    daemon.environ["PYTHONPATH"] = f"{told.parent.parent}{os.pathsep}{daemon.environ['PYTHONPATH']}"
    daemon.forks = False
    daemon.mounts("alice")
    daemon.start()
    told.write_text("Metadata-Version: 2.1\nName: avmfs\nVersion: 9.10\n")
    assert daemon.status()["version"] == "9.9"


@pytest.mark.logs("the configuration stays as it was", "the writer has the rules in force")
def test_a_reload_whose_rules_the_writer_has_not_confirmed_is_none(daemon: Daemon) -> None:
    daemon.settings(QUIET + "default_access: rw\n")
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.family()
    hidden = 'permissions:\n  - {pattern: "/memory/note", access: none, agents: [bob]}\n'
    daemon.settings(QUIET + "default_access: rw\n" + hidden)
    os.kill(before["writer"], signal.SIGSTOP)
    try:
        said = daemon.command("reload", expect=1)
        assert "the store cannot take these rules now: the writer has not confirmed" in said
        assert "not confirmed" in daemon.status()["problem"]
    finally:
        os.kill(before["writer"], signal.SIGCONT)
    wait(lambda: not daemon.status()["problem"])
    assert (daemon.at("bob") / "memory/note").read_text() == "text"
    daemon.command("reload")
    with pytest.raises(FileNotFoundError):
        (daemon.at("bob") / "memory/note").read_text()
    assert daemon.family() == before


@pytest.mark.logs("the configuration stays as it was", "the store is locked by another program")
def test_rules_that_the_store_cannot_take_leave_all_as_it_was(daemon: Daemon) -> None:
    """The writer goes on: where the reason is a full disk, files have to be removed."""
    daemon.settings(QUIET + "default_access: rw\n")
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("text")
    before = daemon.family()
    hidden = 'permissions:\n  - {pattern: "/memory/note", access: none, agents: [bob]}\n'
    daemon.settings(QUIET + "default_access: rw\n" + hidden)
    with contextlib.closing(sqlite3.connect(daemon.root / "data/avm.db", isolation_level=None)) as db:
        db.execute("begin immediate")  # as another program would
        said = daemon.command("reload", expect=1)
        db.execute("rollback")
    assert "the store cannot take these rules now" in said and "locked by another program" in said
    assert daemon.family() == before
    assert (daemon.at("bob") / "memory/note").read_text() == "text"
    (daemon.at("alice") / "memory/note").write_text("goes on")
    daemon.command("reload")
    with pytest.raises(FileNotFoundError):
        (daemon.at("bob") / "memory/note").read_text()
    assert daemon.family() == before
