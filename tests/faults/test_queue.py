"""Many agents, one directory of work, a mount each: every item is taken once, whoever is killed meanwhile.

The long form: AVM_QUEUE_AGENTS=16 AVM_QUEUE_ITEMS=5000.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.daemons import KILLED, LIMIT_S, SOON_S, Daemon, wait

pytestmark = pytest.mark.mount
AGENTS, ITEMS = int(os.environ.get("AVM_QUEUE_AGENTS", "4")), int(os.environ.get("AVM_QUEUE_ITEMS", "120"))
# Takes items until there are none, notes each before it is done, and removes it. An error of a killed process is tried
# again; an item whose removal failed so has gone, or is somebody's once the lease is over.
WORKER = """
import os, sys
from pathlib import Path
mount, noted = Path(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
print("ready", flush=True)
while True:
    with open(mount / "memory/shared/q:next") as view:
        item = view.read().strip()
    if not item.startswith("/"):
        break
    noted.write(item + "\\n")
    os.unlink(mount / item[1:])
"""


@pytest.mark.logs(KILLED)
def test_each_item_of_a_queue_is_taken_once_though_mounts_and_the_writer_are_killed(
    daemon: Daemon, tmp_path: Path
) -> None:
    names = [f"agent{number:02}" for number in range(AGENTS)]
    daemon.mounts(*names)
    daemon.start()
    queue = daemon.at(names[0]) / "memory/shared/q"
    queue.mkdir()
    for number in range(ITEMS):
        (queue / f"{number:05}").write_text(f"item {number}\n")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(daemon.at(name)), str(tmp_path / f"{name}.taken")], stdout=-1
        )
        for name in names
    ]

    def taken() -> list[str]:
        return [line for each in tmp_path.glob("*.taken") for line in each.read_text().splitlines()]

    try:
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        for step, victim in enumerate(("avm-mount", "writer", "avm-mount"), 1):
            wait(lambda step=step: len(taken()) >= ITEMS * step // 5)
            os.kill(daemon.family()[names[step] if victim == "avm-mount" else victim], signal.SIGKILL)
        for worker in workers:
            worker.communicate(timeout=LIMIT_S * (1 + ITEMS // 500))
            assert worker.returncode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    counts = Counter(taken())
    assert [*filter(lambda each: counts[each] > 1, counts)] == []
    assert len(counts) == ITEMS and not [*queue.iterdir()]


@pytest.mark.logs(KILLED)
def test_the_last_item_that_a_killed_mount_had_claimed_is_given_to_who_asked_for_it(daemon: Daemon) -> None:
    """Killed with the claim committed and the reader not answered: the request, sent again, finds nothing free."""
    daemon.mounts("alice", "bob")
    daemon.start()
    shared = {name: daemon.at(name) / "memory/shared" for name in ("alice", "bob")}
    (shared["bob"] / "job.md").write_text("a job\n")
    take = "import sys; print('ready', flush=True); print(open(sys.argv[1]).read())"
    Path(f"{shared['alice']}/job.md:claim").write_text("10m\n")  # enrolled, and its process has a lane to the writer
    Path(f"{shared['alice']}/job.md:claim").write_text("release\n")
    family = daemon.family()
    os.kill(family["writer"], signal.SIGSTOP)
    asking = subprocess.Popen(
        [sys.executable, "-c", take, f"{shared['alice']}:next"], stdin=-1, stdout=subprocess.PIPE, text=True
    )
    try:
        assert asking.stdout is not None and asking.stdout.readline() == "ready\n"
        time.sleep(1)  # the mount submits its claim; where a busy machine has not come to that, its successor does
    finally:
        os.kill(family["alice"], signal.SIGSTOP)
        os.kill(family["writer"], signal.SIGCONT)
    with contextlib.suppress(AssertionError):
        wait(lambda: Path(f"{shared['bob']}/job.md:claim").read_text().startswith("alice until"), SOON_S)
    os.kill(family["alice"], signal.SIGKILL)
    assert asking.communicate(timeout=LIMIT_S)[0] == "/memory/shared/job.md\n\n"


@pytest.mark.logs(KILLED)
def test_the_claim_of_one_that_is_killed_is_free_after_its_lease(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    shared = {name: daemon.at(name) / "memory/shared" for name in ("alice", "bob")}
    (shared["alice"] / "job.md").write_text("a job\n")
    (shared["alice"] / "kept.md").write_text("another\n")
    Path(f"{shared['alice']}/kept.md:claim").write_text("10m\n")
    take = "import sys; print(open(sys.argv[1]).read(), flush=True); sys.stdin.read()"
    before = time.time()
    holder = subprocess.Popen(
        [sys.executable, "-c", take, f"{shared['alice']}:next?lease=3s"], stdin=-1, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"/memory/shared/job.md\n"
    agents = Path(f"{daemon.at('bob')}/:agents").read_text()
    assert "alice  here: mount since" in agents and "works on /memory/shared/kept.md until" in agents
    holder.kill()
    holder.communicate()
    os.kill(daemon.family()["alice"], signal.SIGKILL)
    wait(lambda: Path(f"{shared['bob']}:next").read_text() == "/memory/shared/job.md\n")
    assert time.time() >= before + 3, "nobody has it before the lease is over"
