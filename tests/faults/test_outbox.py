"""What a subscription promises, with a daemon and real receivers: at least once, signed, in order, and never to a place
that may not be reached; whatever the receiver does and whoever is killed.

A short run by default; AVM_OUTBOX_DELIVERIES=500 makes it the long one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from avmfs.agents.webhooks import verify
from avmfs.errors import AvmError, Denied
from avmfs.rpc.client import RemoteDoor
from tests.faults.daemons import KILLED, LIMIT_S, QUIET, SOON_S, Daemon, alive, kill_and_wait, wait
from tests.faults.receivers import Delivery, Fate, Receiver, receiving

DELIVERIES = int(os.environ.get("AVM_OUTBOX_DELIVERIES", "60"))
QUEUES = 4
REFUSED = "127.0.0.2"

pytestmark = pytest.mark.timeout(2 * LIMIT_S + DELIVERIES)


def configured(daemon: Daemon, *allow: str, more: str = "", backoff_s: float = 0.05, attempts: int = 100) -> None:
    allowed = ", ".join(allow)
    daemon.settings(
        QUIET
        + f"webhooks: {{allow: [{allowed}], attempts: {attempts}, timeout_s: 0.5, backoff_s: {backoff_s}}}\n"
        + more
    )


def fates(seed: int) -> Any:
    """Four of ten are not taken; of one subscription never more than three in a row, so that pauses stay short."""
    chance, row = random.Random(seed), Counter[str]()

    def decide(target: str) -> Fate:
        bad: tuple[Fate, ...] = ("fail", "hang", "redirect", "hang up")
        if row[target] < 3 and chance.random() < 0.4:
            row[target] += 1
            return chance.choice(bad)
        row[target] = 0
        return "take"

    return decide


class Writer(threading.Thread):
    """Writes files, one after the other, each until it is acknowledged."""

    def __init__(self, daemon: Daemon, count: int) -> None:
        super().__init__(daemon=True)
        self.daemon_, self.count = daemon, count
        self.done: list[str] = []

    def run(self) -> None:
        client: RemoteDoor | None = None
        n = 0
        while n < self.count:
            try:
                client = client or self.daemon_.door("bob")
                client.call("write", path=f"/memory/q{n % QUEUES}/{n}", data=b"x")
            except AvmError:
                if client is not None:
                    client.close()
                client = None
                time.sleep(0.05)
                continue
            self.done.append(f"/memory/q{n % QUEUES}/{n}")
            n += 1
            time.sleep(0.02)
        if client is not None:
            client.close()


def test_every_delivery_arrives_signed_and_none_where_it_may_not_whoever_is_killed(daemon: Daemon) -> None:
    refused = Receiver(host=REFUSED)
    receiver = Receiver(fates(7), away=refused.url("/away"))
    with receiving(receiver, refused):
        configured(daemon, "127.0.0.1", REFUSED)
        daemon.mounts()
        daemon.start()
        client = daemon.door("alice")
        secrets = {
            f"/q{n}": client.call("subscribe", pattern=f"/memory/q{n}/*", url=receiver.url(f"/q{n}"))["secret"]
            for n in range(QUEUES)
        }
        client.call("subscribe", pattern="/memory/*", url=refused.url("/all"))
        client.close()
        configured(daemon, "127.0.0.1")
        daemon.command("reload")
        before = refused.connections
        writer = Writer(daemon, DELIVERIES // 2)  # a file is made, and written
        writer.start()
        chance = random.Random(11)
        rounds = 0

        def missing() -> set[str]:
            return set(writer.done) - {each.said["path"] for each in receiver.taken() if each.said["event"] == "write"}

        # Until nearly all has arrived, so that deliveries are what is killed; the rest then needs nobody's death.
        while writer.is_alive() or rounds < 4 or (len(missing()) > DELIVERIES / 10 and rounds < 100):
            rounds += 1
            time.sleep(chance.uniform(0.4, 0.9))
            victim = ["keeper", "supervisor", "writer", "receiver", "keeper", "door"][rounds % 6]
            if victim == "receiver":
                receiver.die()
                time.sleep(0.5)
                receiver.open()
                continue
            family = daemon.family()
            with contextlib.suppress(ProcessLookupError):
                os.kill(family[victim], signal.SIGKILL)
            if victim == "supervisor":
                wait(lambda family=family: not any(alive(pid) for name, pid in family.items() if name != "holder"))
                daemon.start()
            wait(lambda victim=victim, pid=family[victim]: daemon.whole_family().get(victim) not in (pid, None))
        writer.join(300)
        assert len(writer.done) == DELIVERIES // 2
        try:
            wait(lambda: not missing(), LIMIT_S + DELIVERIES / 5)
        except AssertionError:
            pytest.fail(f"missing: {sorted(missing())}; {daemon.status()['outbox']}; {daemon.log()[-3000:]}")
        wait(lambda: daemon.status()["outbox"].get("waiting") == 0)
        taken = receiver.taken()
        for each in receiver.got:
            assert verify(secrets[each.target], each.headers, each.body, time.time()), each
        for queue, secret in secrets.items():
            mine = [each for each in taken if each.target == queue]
            assert {each.said["pattern"] for each in mine} == {f"/memory{queue}/*"}
            assert (
                not any(
                    verify(secrets[other], mine[0].headers, mine[0].body, time.time())
                    for other in secrets
                    if other != queue
                )
                and secret
            )
            _check_order_and_ids(mine)
        assert refused.connections == before, "a refused address was reached"
        status = daemon.status()["outbox"]
        assert status["dead"] >= DELIVERIES and status["subscriptions"] == QUEUES + 1
        client = daemon.door("alice")
        letters = client.call("dead_letters")["letters"]
        client.close()
        assert {letter["url"] for letter in letters} == {refused.url("/all")}
        assert "webhooks.allow in config.yaml" in letters[0]["error"]
        print(
            f"{len({each.headers['webhook-id'] for each in taken})} messages, {len(taken)} taken,"
            f" {len(receiver.got)} tries, {rounds} rounds"
        )
    daemon.command("stop")


def _check_order_and_ids(mine: list[Delivery]) -> None:
    """An id is of one event, and events come in their order: a kill repeats, it never reorders."""
    by_id: dict[str, str] = {}
    first: list[tuple[str, str]] = []
    for each in mine:
        said = each.said
        assert said["id"] == each.headers["webhook-id"] and "x" not in said.values()
        known = by_id.setdefault(said["id"], json.dumps(said, sort_keys=True))
        assert known == json.dumps(said, sort_keys=True)
        if (said["timestamp"], said["id"]) not in first:
            first.append((said["timestamp"], said["id"]))
    assert [at for at, _ in first] == sorted(at for at, _ in first)


def test_a_receiver_that_hangs_delays_nobody_else(daemon: Daemon) -> None:
    slow, quick = Receiver(lambda target: "hang"), Receiver()
    with receiving(slow, quick):
        configured(daemon, "127.0.0.1")
        daemon.mounts()
        daemon.start()
        eve, alice = daemon.door("eve"), daemon.door("alice")
        for n in range(30):
            eve.call("subscribe", pattern="/memory/*", url=slow.url(f"/{n}"))
        alice.call("subscribe", pattern="/memory/*", url=quick.url("/"))
        for n in range(3):
            alice.call("write", path=f"/memory/{n}", data=b"x")
            wait(lambda n=n: len(quick.taken()) >= 2 * n + 2, SOON_S)
        eve.close()
        alice.close()
        assert len(slow.got) > 0
    daemon.command("stop")


def test_mail_notices_and_hooks_in_one_daemon(daemon: Daemon, tmp_path: Path) -> None:
    said, loud = tmp_path / "said", tmp_path / "loud.sh"
    loud.write_text(f'#!/bin/sh\ncat >> {said}.input\necho "$@" >> {said}.part\nmv {said}.part {said}.arguments\n')
    loud.chmod(0o755)
    hooks = (
        f'hooks:\n  - {{pattern: "/memory/shared/*", event: write, command: [{loud}, "$HOME; rm x"]}}\n'
        '  - {pattern: "/memory/shared/*", event: write, command: [/bin/sh, -c, "sleep 60"], timeout_s: 0.2}\n'
    )
    receiver = Receiver()
    with receiving(receiver):
        configured(daemon, "127.0.0.1", more=hooks)
        daemon.mounts()
        daemon.start()
        alice, bob = daemon.door("alice"), daemon.door("bob")
        with pytest.raises(Denied, match=r"webhooks\.allow"):
            bob.call("subscribe", pattern="/memory/*", url="http://10.0.0.1/")
        secret = bob.call("subscribe", pattern="/tell/me", url=receiver.url("/mail"))["secret"]
        bob.call("subscribe", pattern="/shared/*")
        alice.call("tell", recipient="bob", body="the words themselves", priority="urgent")
        wait(lambda: receiver.taken())
        (mail,) = receiver.taken()
        assert verify(secret, mail.headers, mail.body, time.time())
        assert (mail.said["event"], mail.said["path"], mail.said["agent_id"]) == ("tell", "/tell/bob", "bob")
        assert b"words" not in mail.body
        alice.call("write", path="/shared/a.md", data=b"x")
        wait(Path(f"{said}.arguments").exists)
        assert Path(f"{said}.arguments").read_text() == "$HOME; rm x\n"
        hook = json.loads(Path(f"{said}.input").read_text())
        assert (hook["event"], hook["path"], hook["agent_id"]) == ("write", "/memory/shared/a.md", "alice")
        found = bob.call("notices", mark_read=True)["notices"]
        assert [event["path"] for each in found for event in each["events"]] == ["/memory/shared/a.md"] * 2
        assert bob.call("notices")["notices"] == []
        wait(lambda: "not done within 0.2 s" in daemon.log())
        wait(lambda: daemon.status()["outbox"]["dead"] == 1)
        assert not _sleepers(daemon), "a hook outlived its time"
        alice.close()
        bob.close()
        database = daemon.root / "data" / "avm.db"
        assert stat.S_IMODE(database.stat().st_mode) == 0o600, "secrets are in there"
    daemon.command("stop")


@pytest.mark.logs(KILLED)
def test_a_hook_under_way_runs_once_across_a_reload_and_never_beside_another(daemon: Daemon, tmp_path: Path) -> None:
    """Where the keeper is killed it runs again: after it has ended."""
    ran, go = tmp_path / "ran", tmp_path / "go"
    script = f"echo b >> {ran}; until [ -e {go} ]; do sleep 0.05; done; sleep 0.2; echo e >> {ran}"
    hook = f'pattern: "/memory/shared/*", event: write, command: [/bin/sh, -c, "{script}"], timeout_s: 600'
    hooks = f"hooks: [{{{hook}}}]\n"

    def lines() -> str:
        return ran.read_text().replace("\n", "") if ran.exists() else ""

    configured(daemon, more=hooks)
    daemon.mounts()
    daemon.start()
    alice = daemon.door("alice")
    alice.call("write", path="/shared/a.md", data=b"x")
    wait(lambda: lines() == "b")
    keeper = daemon.whole_family()["keeper"]
    configured(daemon, more=hooks + "limits: {trash_days: 7}\n")
    daemon.command("reload")
    alice.close()
    alice = daemon.door("alice")
    alice.call("write", path="/shared/b.md", data=b"x")
    time.sleep(1.5)  # for a second run to begin, if it did
    assert lines() == "b" and alive(keeper)
    go.touch()
    wait(lambda: lines() == "bebe" and not alive(keeper))
    wait(lambda: daemon.status()["outbox"].get("waiting") == 0)
    assert lines() == "bebe"
    go.unlink()
    alice.call("write", path="/shared/c.md", data=b"x")
    wait(lambda: lines() == "bebeb")
    kill_and_wait(daemon.whole_family()["keeper"])
    wait(lambda: daemon.whole_family()["keeper"] != keeper)
    time.sleep(1.5)
    assert lines() == "bebeb"
    go.touch()
    wait(lambda: lines() == "bebebebe")
    wait(lambda: daemon.status()["outbox"].get("waiting") == 0)
    alice.close()
    daemon.command("stop")


def _sleepers(daemon: Daemon) -> list[int]:
    pids = {daemon.family()["keeper"]}
    return [
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/stat")
        if _parent(entry) in pids and b"sleep" in (entry.parent / "cmdline").read_bytes()
    ]


def _parent(entry: Path) -> int:
    with contextlib.suppress(OSError):
        return int(entry.read_text().rpartition(")")[2].split()[1])
    return 0
