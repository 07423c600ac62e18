"""Two daemons that exchange digests: from a file of one to `avm who` beside the other, across kill -9."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.daemons import KILLED, QUIET, Daemon, wait
from tests.log_lines import unexpected

pytestmark = pytest.mark.mount
EXPECTED = (KILLED, "gossip: 127.0.0.1:", "others can read the key")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def two() -> Iterator[list[Daemon]]:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        key = Path(name) / "key"
        key.write_bytes(os.urandom(32).hex().encode())
        key.chmod(0o600)
        ports = [free_port(), free_port()]
        found = []
        for number, host in enumerate(("mars", "venus")):
            root = Path(name) / host
            root.mkdir()
            daemon = Daemon(root)
            stack.callback(daemon.clean_up)
            daemon.mounts("alice" if number == 0 else "bob")
            daemon.settings(
                f"{QUIET}gossip: {{enabled: true, name: {host}, key_file: {key}, interval_s: 0.3,"
                f" listen: '127.0.0.1:{ports[number]}', peers: ['127.0.0.1:{ports[1 - number]}']}}\n"
            )
            daemon.start()
            found.append(daemon)
        yield found
        for daemon in found:
            assert unexpected(daemon.log(), EXPECTED) == [], daemon.log()[-4000:]
            with contextlib.suppress(AssertionError):
                daemon.command("stop")


def avm(daemon: Daemon, agent: str, *words: str) -> str:
    done = daemon.avm(*words, agent=agent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_written_beside_one_daemon_is_known_beside_the_other(two: list[Daemon]) -> None:
    mars, venus = two
    (mars.at("alice") / "shared/nvda.md").write_text("# NVDA #chips")
    (mars.at("alice") / "private/plan.md").write_text("# Zqplanqz")
    wait(lambda: "alice@mars  perhaps" in avm(venus, "bob", "who", "NVDA"))
    assert (venus.at("bob") / ":who?q=chips").read_text().endswith("\nalice@mars  perhaps\n")
    assert "alice" not in avm(venus, "bob", "who", "Zqplanqz")
    status = venus.status()["gossip"]
    assert status["state"] == "on" and status["hosts"] == 2
    assert [peer["state"] for peer in status["peers"].values()] == ["ok"]
    assert "gossip     1 digests of 2 hosts" in venus.command("status")
    # Its keeper is killed: the next one goes on, and what the owner now lets be learnt comes across.
    os.kill(mars.family()["keeper"], signal.SIGKILL)
    avm(mars, "alice", "who", "--privacy", "owner")
    wait(lambda: "alice@mars  perhaps" in avm(venus, "bob", "who", "Zqplanqz"))
    avm(mars, "alice", "who", "--privacy", "none")
    wait(lambda: "alice" not in avm(venus, "bob", "who", "Zqplanqz"))


def test_a_key_that_others_can_read_keeps_gossip_off_and_nothing_else(two: list[Daemon]) -> None:
    """The last one: mars is of no use to others afterwards."""
    mars, _ = two
    key = mars.root.parent / "key"
    key.chmod(0o644)
    mars.settings(f"{QUIET}gossip: {{enabled: true, name: mars, key_file: {key}, listen: '127.0.0.1:{free_port()}'}}\n")
    mars.command("reload")
    wait(lambda: "others can read the key" in mars.status()["gossip"]["state"])
    assert "gossip     failed" in mars.command("status")
    (mars.at("alice") / "shared/x.md").write_text("# TSMC")
    assert avm(mars, "alice", "who", "TSMC").startswith("alice  1 file: TSMC")
