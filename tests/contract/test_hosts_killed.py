"""Two hosts of one store whose writers, links and log are killed while clients write: nothing that was acknowledged is
lost, nothing is done twice, and every table is the same.

Writers are processes, the log is a real PostgreSQL, each host reaches it by a link of its own. ``AVM_HOST_KILLS``: how
often each writer is killed; links are cut half as often, and the server a tenth. ``AVM_HOST_REPLIES``: how often each
host does not hear that its record was appended.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy
from avmfs.errors import AvmError
from avmfs.store.backup import cluster
from avmfs.store.store import Store, open_direct
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, RULES, WriterProcess
from tests.equal_stores import differing
from tests.links import Link

KILLS = int(os.environ.get("AVM_HOST_KILLS", "4"))
REPLIES = int(os.environ.get("AVM_HOST_REPLIES", "1"))
APPEND = 400  # bytes: all else that a writer asks its log is shorter
LIMIT_S = 300.0
PAUSE_S = 0.01


class Forked(WriterProcess):
    """A writer that is there as soon as it is forked, of a process that has imported all it needs."""

    _parent: subprocess.Popen[str] | None = None
    _pid = 0

    def start(self) -> None:
        if self._parent is None:
            script = Path(__file__).with_name("store_writer.py")
            with open(self.said, "ab") as said:
                self._parent = subprocess.Popen(
                    [sys.executable, os.fspath(script), "fork"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    pass_fds=[self.listener.fileno()],
                    text=True,
                )
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(json.dumps(self.asked()), file=self._parent.stdin, flush=True)
        self._pid = int(self._parent.stdout.readline())

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGTERM)
        assert self._parent is not None
        with self._parent:
            self._parent.kill()
        self.listener.close()

    def _end(self, by: signal.Signals) -> None:
        os.kill(self._pid, by)
        wait(lambda: not Path(f"/proc/{self._pid}").exists())


class Clients:
    """Two threads at a host. A request that is answered late is sent again until it is answered: ``done`` has what was,
    ``refused`` how many were refused."""

    def __init__(self, host: str, writer: WriterProcess) -> None:
        self.done: list[str] = []
        self.refused = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f"{host}{n}", writer)) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str, writer: WriterProcess) -> None:
        with contextlib.closing(writer.attach()) as store:
            number = 0
            while not self._over.is_set():
                number += 1
                try:
                    self._write(store, f"{name}-{number}")
                    self.done.append(f"{name}-{number}")
                except AvmError:
                    self.refused += 1
                    time.sleep(0.05)
                time.sleep(PAUSE_S)

    def _write(self, store: Store, text: str) -> None:
        store.submit(ALICE, "write_path", path=[b"memory", text.encode()], data=text.encode() * 50)
        limits = {"body_limit": 100, "unread_limit": 10**9}
        store.submit(BOB, "tell", recipient="alice", body=text, priority="normal", expires=None, **limits)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def wait(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def more(clients: Clients) -> None:
    before = len(clients.done)
    wait(lambda: len(clients.done) > before + 3)


def cut(link: Link, kind: int, clients: Clients) -> None:
    """Four ways in which a link fails."""
    match kind:
        case 0:
            link.cut()
        case 1:  # what is asked is done, and no answer comes
            link.deaf = True
            time.sleep(0.2)
            link.cut()
            link.deaf = False
        case 2:  # nobody gets through for a while
            link.down = True
            link.cut()
            time.sleep(0.5)
            link.down = False
        case _:  # half open: no word, and no end either
            link.stopped = True
            time.sleep(0.3)
            link.stopped = False
            link.cut()
    more(clients)


def lose_reply(link: Link, clients: Clients) -> None:
    """The link is half open from the next append on: the record is in the log, and its host does not hear so."""
    link.deaf_after = APPEND
    wait(lambda: link.deaf)
    time.sleep(0.1)
    link.cut()
    link.deaf = False
    more(clients)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * (KILLS + REPLIES - 5))
def test_whatever_is_killed_nothing_is_lost_or_doubled_and_hosts_are_equal(tmp_path: Path, postgres: Any) -> None:
    from avmfs.store.sharedlog.postgres import PostgresLog

    name = secrets.token_hex(8)
    log = PostgresLog(postgres.database(name))
    paths = [tmp_path / host / "avm.db" for host in "ab"]
    paths[0].parent.mkdir()
    policy = Policy.from_words([], "rw")
    with contextlib.closing(open_direct(paths[0], policy, RULES)) as store:
        store.submit(ALICE, "enroll")
    cluster.init(paths[0], log, "a")
    cluster.join(paths[1], log, policy)
    log.close()
    links = [Link(postgres.port) for _ in paths]
    writers = []
    for path, link in zip(paths, links, strict=True):
        address = Path(tempfile.mkdtemp(prefix="avm-", dir="/tmp")) / "w"  # the names of sockets have to be short
        over = postgres.over_tcp(link.port, name)
        writers.append(Forked(path, path.with_name("clock"), socket_path=address, log=over))
    clients = [Clients(path.parent.name, writer) for path, writer in zip(paths, writers, strict=True)]
    doubts: list[int] = []
    chance = random.Random(25)
    todo = [("kill", at) for at in (0, 1)] * KILLS + [("cut", at) for at in (0, 1)] * max(2, KILLS // 4)
    todo += [("reply", at) for at in (0, 1)] * REPLIES
    todo += [("server", 0)] * max(1, KILLS // 5)
    chance.shuffle(todo)
    try:
        for number, (what, at) in enumerate(todo):
            more(clients[at])
            if what == "kill":
                time.sleep(chance.random() * 0.02)
                writers[at].kill()
                writers[at].start()
            elif what == "cut":
                cut(links[at], number % 4, clients[at])
            elif what == "reply":
                lose_reply(links[at], clients[at])
            else:
                postgres.kill()
                postgres.start()
        for each in clients:
            more(each)
    finally:
        for each in clients:
            each.end()
        for writer in writers:
            writer.close()
            said = writer.log()
            shutil.rmtree(writer.address.parent)
            assert "Traceback" not in said, said[-4000:]
            doubts.append(said.count("it is not known whether"))
        for link in links:
            link.close()
    done = [name for each in clients for name in each.done]
    refused = sum(each.refused for each in clients)
    print(f"{len(done)} acknowledged, {refused} refused; {Counter(what for what, _ in todo)}, {sum(doubts)} in doubt")
    assert min(doubts) >= REPLIES
    log = PostgresLog(postgres.address(name))
    settle(paths, log, policy)
    log.close()
    assert differing(*paths) == []
    with contextlib.closing(connect(paths[1], read_only=True)) as db:
        bodies = [body for (body,) in db.execute("select body from message")]
        names = {bytes(name).decode("utf-8", "replace") for (name,) in db.execute("select name from node")}
    assert len(bodies) == len(set(bodies)), "done twice"
    assert set(done) <= set(bodies) and set(done) <= names, "lost"


def settle(paths: list[Path], log: Any, policy: Policy) -> None:
    """Each applies what it has not yet."""
    from avmfs.store.writer.replicated import ReplicatedApplier

    for path in paths:
        host = ReplicatedApplier(
            path, policy, RULES, orphans=True, clock=time.time_ns, shared_log=log, host=path.parent.name
        )
        host.resolve()
        host.close()
