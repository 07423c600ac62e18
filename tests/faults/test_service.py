"""The daemon as a service: what it tells systemd, the commands that change mounts.yaml, and the installed file."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.daemons import LIMIT_S, Daemon, alive, wait

pytestmark = pytest.mark.mount


class Manager:
    """systemd's end of the notify socket."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.setblocking(False)
        self.heard: list[str] = []

    def until(self, word: str, limit_s: float = LIMIT_S) -> str:
        """The next message that has this in it, from now on."""
        at = len(self.heard)

        def there() -> bool:
            self.drain()
            return any(word in message for message in self.heard[at:])

        wait(there, limit_s)
        return next(message for message in self.heard[at:] if word in message)

    def drain(self) -> None:
        while True:
            try:
                self.heard.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, root: Path) -> Iterator[Manager]:
    address = str(root / "notify") if request.param == "path" else f"@avm-test-{os.getpid()}-{time.monotonic_ns()}"
    manager = Manager(address)
    manager.address = address  # type: ignore[attr-defined]
    yield manager
    manager.sock.close()


def test_systemd_hears_of_readiness_reloads_the_end_and_every_beat(daemon: Daemon, manager: Manager) -> None:
    daemon.mounts("alice")
    environ = {
        **daemon.environ,
        "NOTIFY_SOCKET": manager.address,  # type: ignore[attr-defined]
        "WATCHDOG_USEC": "3000000",
    }
    with open(daemon.root / "log", "wb") as log:
        process = subprocess.Popen(
            [*_python(), "start"], env=environ, cwd=daemon.root, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        first = manager.until("READY=1")
        assert first == "READY=1\nSTATUS=1 of 1 mounts are ready"
        assert daemon.mounted("alice")  # ready means mounted
        daemon.family()
        manager.until("WATCHDOG=1")
        manager.drain()
        started, before = time.monotonic(), sum("WATCHDOG" in each for each in manager.heard)
        time.sleep(6.0)
        manager.drain()
        beats, took = sum("WATCHDOG" in each for each in manager.heard) - before, time.monotonic() - started
        assert took / 3 <= beats <= took + 2  # each second; on a busy machine fewer, but enough for the watchdog

        os.kill(process.pid, signal.SIGHUP)
        assert re.search(r"^MONOTONIC_USEC=\d+$", manager.until("RELOADING=1"), re.MULTILINE)
        daemon.mounts("alice", "bob")
        os.kill(process.pid, signal.SIGHUP)
        manager.until("STATUS=2 of 2 mounts are ready")
        assert daemon.mounted("bob")
        (daemon.config / "mounts.yaml").write_text("mounts: nonsense\n")
        os.kill(process.pid, signal.SIGHUP)
        said = manager.until("READY=1")
        assert said.startswith("READY=1\nSTATUS=2 of 2 mounts are ready; mounts.yaml: mounts: ")

        # A loop that stands still is not heard of: that is what the watchdog is for.
        os.kill(process.pid, signal.SIGSTOP)
        manager.drain()
        count = len(manager.heard)
        time.sleep(1.0)
        manager.drain()
        assert len(manager.heard) == count
        os.kill(process.pid, signal.SIGCONT)
        manager.until("WATCHDOG=1")

        os.kill(process.pid, signal.SIGTERM)
        assert "STOPPING=1" in manager.until("STOPPING=1")
        assert process.wait(LIMIT_S) == 0
        assert not daemon.mounted("alice") and not daemon.mounted("bob")
    finally:
        process.kill()
        process.wait()


def test_without_a_manager_or_with_one_that_has_gone_nothing_is_different(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.environ["NOTIFY_SOCKET"] = str(daemon.root / "nobody")
    daemon.environ["WATCHDOG_USEC"] = "100000"
    daemon.start()
    assert daemon.state("alice") == "ready"
    daemon.command("stop")
    assert daemon.gone()


def test_add_and_remove_change_the_file_and_the_running_daemon(daemon: Daemon) -> None:
    daemon.mounts("alice")
    file = daemon.config / "mounts.yaml"
    file.write_text("# mine\n" + file.read_text())
    daemon.start()
    daemon.agents.append("bob")
    assert "added bob" in daemon.command("add", "bob", str(daemon.at("bob")), "--read-only")
    assert daemon.mounted("bob") and daemon.state("bob") == "ready"
    with pytest.raises(OSError):
        (daemon.at("bob") / "shared/x.md").write_text("x")
    text = file.read_text()
    assert text.startswith("# mine\n") and "read_only: true" in text
    assert "already" in daemon.command("add", "bob", "/elsewhere", expect=1)
    assert "no mount of carol" in daemon.command("remove", "carol", expect=1)
    assert file.read_text() == text
    assert "removed bob" in daemon.command("remove", "bob")
    wait(lambda: not daemon.mounted("bob"))
    assert file.read_text().startswith("# mine\n") and daemon.state("bob") is None
    daemon.command("add", "bob", "relative/bob", "--no-reload")  # seen from where the command is given
    assert f"mountpoint: {daemon.root}/relative/bob" in file.read_text() and daemon.state("bob") is None
    daemon.command("stop")
    assert "removed bob" in daemon.command("remove", "bob")  # also without a daemon
    assert daemon.command("check").startswith("ok: 1 mount in ")


def test_the_service_is_printed_shown_and_installed(daemon: Daemon) -> None:
    daemon.environ["HOME"] = str(daemon.root)
    daemon.environ.pop("XDG_CONFIG_HOME", None)
    unit = daemon.root / ".config/systemd/user/avm-daemon.service"
    printed = daemon.command("install-service", "--platform", "systemd", "--print")
    assert "Type=notify" in printed and f'"AVM_CONFIG_DIR={daemon.config}"' in printed
    assert str(unit) in daemon.command("install-service", "--platform", "systemd", "--dry-run")
    assert not unit.exists()
    assert "systemctl --user enable --now avm-daemon" in daemon.command("install-service", "--platform", "systemd")
    assert unit.read_text() == printed
    assert "as it was" in daemon.command("install-service", "--platform", "systemd")
    unit.write_text("[Unit]\n")
    assert "--force" in daemon.command("install-service", "--platform", "systemd", expect=1)
    assert "<key>Label</key>" in daemon.command("install-service", "--platform", "launchd", "--print")


def test_the_mounts_wait_where_systemd_starts_a_killed_supervisor_again(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    file = daemon.at("alice") / "memory/x.md"
    client = subprocess.Popen(  # not we: to start a command means to close there what is open here, which would wait
        [sys.executable, "-c", CLIENT, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    daemon.pids.add(client.pid)
    assert client.stdout is not None and client.stdout.readline() == "before\n"
    killed = daemon.status()["pid"]
    os.kill(killed, signal.SIGKILL)
    wait(lambda: not any(alive(pid) for pid in {*daemon.pids} - {daemon.holder, client.pid}))
    daemon.environ["SERVICE_RESULT"] = "signal"
    assert "its mounts wait" in daemon.command("stop", "--as-stop-post")
    assert daemon.mounted("alice") and alive(daemon.holder)
    held = daemon.holder
    daemon.start()
    assert daemon.holder == held and daemon.status()["pid"] != killed
    assert client.communicate("go on\n", timeout=LIMIT_S)[0] == "after\n" and client.returncode == 0
    assert file.read_text() == "before and after"

    daemon.environ["SERVICE_RESULT"] = "success"
    assert "already running" in daemon.command("stop", "--as-stop-post", expect=1)
    assert daemon.state("alice") == "ready"  # one that runs outside of the unit is not ended by the unit's end

    os.kill(daemon.status()["pid"], signal.SIGKILL)
    wait(daemon.orphaned)
    daemon.environ["SERVICE_RESULT"] = "timeout"
    assert daemon.command("stop", "--as-stop-post") == ""
    assert daemon.gone() and not daemon.mounted("alice") and not (daemon.run / "state.json").exists()
    assert daemon.command("stop", "--as-stop-post") == ""  # nothing to do is no failure
    del daemon.environ["SERVICE_RESULT"]
    assert "SERVICE_RESULT" in daemon.command("stop", "--as-stop-post", expect=1)


CLIENT = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, b"before")
print("before", flush=True)
sys.stdin.readline()
os.write(file, b" and after")
os.close(file)
print("after")
"""


LEFT = """
import os, subprocess, sys, time
from avmfs_daemon import stale_mounts
group, went = sys.argv[1:]
with open(group + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
stale_mounts.GOING_S = 1.0
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"]
kept, hanging = (subprocess.Popen(sleep) for _ in range(2))
going = subprocess.Popen(["sh", "-c", "sleep 0.3; : > " + went])
assert stale_mounts.end_service(keep=kept.pid) == []
assert kept.poll() is None and hanging.wait() == -9 and going.wait() == 0, (kept.poll(), hanging.poll(), going.poll())
assert stale_mounts.end_service(keep=None) == [] and kept.wait() == -9
"""


def test_what_outlives_the_supervisor_in_its_service_is_ended_and_nothing_outside(tmp_path: Path) -> None:
    group = _control_group(f"avm-test-{os.getpid()}.service")
    outside = subprocess.Popen(["sleep", "60"])
    try:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", LEFT, str(group), str(tmp_path / "went")],
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "went").exists() and outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        wait(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.parametrize("system", [False, True])
def test_the_units_leave_the_holder_to_the_supervisor_that_systemd_starts_next(daemon: Daemon, system: bool) -> None:
    which = ["--system", "avmfs"] if system else ["--platform", "systemd"]
    unit = daemon.command("install-service", *which, "--print").splitlines()
    assert "KillMode=process" in unit and "Restart=on-failure" in unit and "OOMPolicy=continue" in unit
    (after,) = [line for line in unit if line.startswith("ExecStopPost=")]
    assert after.startswith("ExecStopPost=-") and after.endswith(" stop --as-stop-post")
    # Removing it means looking at the mounts in it, which may be waiting: it would be the first process that waits.
    assert ("RuntimeDirectoryPreserve=yes" in unit) is system


def _control_group(name: str) -> Path:
    """A new one, where systemd has its own: in the second version's tree, or in that of its name."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        if (Path(root) / "cgroup.procs").exists() and os.access(root, os.W_OK):
            group = Path(root) / name
            group.mkdir()
            return group
    pytest.skip("no control group can be made here")


def _python() -> list[str]:
    return [sys.executable, "-m", "avmfs_daemon"]
