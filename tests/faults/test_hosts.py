"""One store on several hosts: a daemon with a home of its own for each, and a PostgreSQL that keeps their log."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.behind import connect
from tests.equal_stores import differing
from tests.faults.daemons import LIMIT_S, QUIET, Daemon, alive, wait
from tests.links import Link
from tests.log_lines import tracebacks

ROUNDS = int(os.environ.get("AVM_HOSTS_ROUNDS", "1"))  # the long form is of 20
pytestmark = [pytest.mark.mount, pytest.mark.timeout(600 * ROUNDS)]
WHOLE = int(os.environ.get("AVM_HOSTS_WHOLE", "2"))  # hosts that are killed, one in five with its disk; 50 are
WRITERS = 2 if ROUNDS == 1 else 8  # that are killed in a round
PAUSE_S = 0.01 if ROUNDS == 1 and WHOLE == 2 else 0.02  # between two notes of a long form, whose stores are compared
T = TypeVar("T")


class Hosts:
    """``a`` has made the log; the others join."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, address
        self.all: list[Daemon] = []

    def host(self, name: str, *agents: str, address: str = "", more: str = "", strict: bool = False) -> Daemon:
        (self.root / name).mkdir()
        made = Daemon(self.root / name)
        made.mounts(*agents, more=", coherence: strict" if strict else "")
        made.settings(f"{QUIET}store: {{log: '{address or self.address}', host: {name}{more}}}\n")
        self.all.append(made)
        return made

    def first(self, *agents: str) -> Daemon:
        made = self.host("a", *agents)
        avm(made, "cluster", "init")
        made.start()
        return made

    def joined(self, name: str, *agents: str, address: str = "", more: str = "", strict: bool = False) -> Daemon:
        made = self.host(name, *agents, address=address, more=more, strict=strict)
        avm(made, "cluster", "join")
        made.start()
        return made


def avm(daemon: Daemon, *arguments: str, expect: int = 0) -> str:
    done = daemon.avm(*arguments)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr, daemon.log())
    return done.stdout + done.stderr


@pytest.fixture
def hosts(root: Path, postgres: Any) -> Iterator[Hosts]:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    found = Hosts(root, postgres.database(secrets.token_hex(8)))
    yield found
    for daemon in found.all:
        daemon.clean_up()
    for daemon in found.all:
        no_tracebacks(daemon)


def no_tracebacks(daemon: Daemon) -> None:
    """But of a child that was to be started by a supervisor that is killed at that moment: it is told nothing more."""
    assert set(tracebacks(daemon.log())) <= {"EOFError: Ran out of input"}, daemon.log()[-4000:]


def reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except FileNotFoundError:
        return False


def test_what_is_written_on_one_host_is_read_on_the_other(hosts: Hosts) -> None:
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    (a.at("alice") / "memory/one.md").write_text("from a")
    wait(lambda: reads(b.at("bob") / "memory/one.md", "from a"))
    (b.at("bob") / "memory/one.md").write_text("from b")
    wait(lambda: reads(a.at("alice") / "memory/one.md", "from b"))
    (b.at("bob") / "tell/alice").write_text("hello")
    wait(lambda: "hello" in (a.at("alice") / ":inbox").read_text())
    assert not (b.at("bob") / "memory/private/alice").exists()
    wait(lambda: a.status()["cluster"].get("record"))  # it is told every few seconds
    said = a.status()["cluster"]
    assert said["host"] == "a" and said["error"] == ""
    assert "shared log a, record" in a.command("status")
    wait(lambda: "b " in avm(a, "cluster", "status"))


class Load:
    """Agents that write through a mount: files of their own, and lines appended to one file. ``acknowledged``: what
    they were told is done."""

    def __init__(self, *mounts: Path) -> None:
        self.acknowledged: list[tuple[str, str]] = []
        self.refused = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(mount,)) for mount in mounts]
        for thread in self._threads:
            thread.start()

    def _run(self, mount: Path) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            name = f"{mount.name}-{number}"
            try:
                (mount / f"memory/{name}.md").write_text(name)
                self.acknowledged.append(("file", name))
                with (mount / "memory/lines.txt").open("a") as out:
                    out.write(f"{name}\n")
                self.acknowledged.append(("line", name))
            except OSError:
                self.refused += 1
                time.sleep(0.05)
            time.sleep(PAUSE_S)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def check(self, mount: Path) -> None:
        lines = (mount / "memory/lines.txt").read_text().splitlines()
        assert len(lines) == len(set(lines)), "applied twice"
        there = set(lines)
        for what, name in self.acknowledged:
            assert name in there if what == "line" else reads(mount / f"memory/{name}.md", name), (what, name)


def agreed(*daemons: Daemon) -> None:
    """Every table of every host is the same."""
    paths = [daemon.root / "data" / "avm.db" for daemon in daemons]
    wait(lambda: len({newest(path) for path in paths}) == 1 and not differing(*paths))


def newest(store: Path) -> int:
    """The last row of its log: cheaper to ask than every table, while one of them is behind."""
    with contextlib.closing(connect(store, read_only=True)) as db:
        return int(db.execute("select max(seq) from log").get)


def more(load: Load) -> None:
    """Some more is acknowledged."""
    before = len(load.acknowledged)
    wait(lambda: len(load.acknowledged) > before + 20)


def nothing_lost(load: Load, a: Daemon, b: Daemon) -> None:
    """After some more, alice of ``a`` and bob of ``b`` have all that was acknowledged."""
    more(load)
    load.end()
    agreed(a, b)
    for daemon, agent in ((a, "alice"), (b, "bob")):
        load.check(daemon.at(agent))


def test_kills_lose_nothing_and_double_nothing(hosts: Hosts, postgres: Any) -> None:
    """Of a host's writer, of all of a host, of the server that keeps the log; each while notes are written."""
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    load = Load(a.at("alice"), b.at("bob"))
    for _ in range(ROUNDS):
        for number in range(WRITERS):
            victim = (a, b)[number % 2]
            more(load)
            os.kill(victim.whole_family()["writer"], signal.SIGKILL)
        more(load)
        for victim in (a, b)[ROUNDS == 1 :]:
            victim.kill_all()
            victim.start()
            more(load)
        postgres.kill()
        time.sleep(0.2)
        postgres.start()
    nothing_lost(load, a, b)


@pytest.mark.timeout(3600 if WHOLE > 2 else 600)
def test_hosts_that_are_killed_at_any_moment_come_back_with_all(hosts: Hosts) -> None:
    """Supervisor, writer and mounts of one at once, each host in turn; now and then its store is gone with it."""
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    load = Load(a.at("alice"), b.at("bob"))
    chance = random.Random(25)
    for number in range(WHOLE):
        victim = (a, b)[number % 2]
        more(load)
        time.sleep(chance.random() * 0.1)
        victim.kill_all()
        if number % 5 == 1:
            shutil.rmtree(victim.root / "data")
            avm(victim, "cluster", "join")
        victim.start()
    nothing_lost(load, a, b)
    print(f"{WHOLE} hosts killed, {len(load.acknowledged)} acknowledged, {load.refused} refused")


def test_a_failover_to_the_standby_loses_nothing_and_doubles_nothing(root: Path) -> None:
    """Of PostgreSQL, killed while notes are written; the killed one comes back as the standby of the other."""
    pytest.importorskip("psycopg")
    from tests.postgres import programs, running

    if programs() is None or not os.path.exists("/dev/fuse"):
        pytest.skip("there is no PostgreSQL, or no /dev/fuse")
    with contextlib.ExitStack() as ending:
        first = ending.enter_context(running(Path(f"/tmp/avm-pg-{secrets.token_hex(4)}")))
        primary, number = first, 0
        first.database("shared")
        standby = first.standby(f"s{number}")
        ending.callback(standby.remove)
        link = Link(standby.port)  # the hosts know two addresses: which servers are behind them changes
        ending.callback(link.close)
        near = Link(first.port)
        ending.callback(near.close)
        hosts = Hosts(
            root, f"postgresql://avm@127.0.0.1:{near.port},127.0.0.1:{link.port}/shared?target_session_attrs=read-write"
        )
        ending.callback(lambda: [daemon.clean_up() for daemon in hosts.all])
        a = hosts.first("alice")
        b = hosts.joined("b", "bob")
        load = Load(a.at("alice"), b.at("bob"))
        for _ in range(ROUNDS):
            more(load)
            primary.kill()
            standby.promote()
            near.to, link.to = link.to, near.to
            primary, number = standby, number + 1
            more(load)
            standby = primary.standby(f"s{number}")
            ending.callback(standby.remove)
            link.to = standby.port
        more(load)
        load.end()
        agreed(a, b)
        for daemon, agent in ((a, "alice"), (b, "bob")):
            load.check(daemon.at(agent))
            no_tracebacks(daemon)


def test_a_machine_whose_disk_is_gone_gets_all_that_was_acknowledged(hosts: Hosts) -> None:
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    load = Load(b.at("bob"))
    more(load)
    b.kill_all()
    load.end()
    shutil.rmtree(b.root / "data")
    what, name = load.acknowledged[-1]  # a file whose line was not: the kill may come between the two
    file, lines = a.at("alice") / f"memory/{name}.md", a.at("alice") / "memory/lines.txt"
    wait(lambda: name in lines.read_text().splitlines() if what == "line" else reads(file, name))
    load.check(a.at("alice"))
    avm(b, "cluster", "join")
    b.start()
    agreed(a, b)
    load.check(b.at("bob"))


def test_links_that_are_cut_lose_nothing_and_double_nothing(hosts: Hosts, postgres: Any) -> None:
    link = Link(postgres.port)
    a = hosts.first("alice")
    b = hosts.joined("b", "bob", address=postgres.over_tcp(link.port, hosts.address.split("/")[3].split("?")[0]))
    load = Load(a.at("alice"), b.at("bob"))
    for round in range(3 * ROUNDS):
        more(load)
        if round % 3 == 0:
            link.deaf = True  # what it appends is appended, and it does not hear so
            time.sleep(0.3)
        link.cut()
        link.deaf = False
        if round % 3 == 1:
            link.down = True
            time.sleep(0.5)
            link.down = False
    more(load)
    load.end()
    agreed(a, b)
    load.check(a.at("alice"))
    link.close()


def test_a_host_without_its_log_can_be_read(hosts: Hosts, postgres: Any) -> None:
    link = Link(postgres.port)
    a = hosts.first("alice")
    b = hosts.joined("b", "bob", address=postgres.over_tcp(link.port, hosts.address.split("/")[3].split("?")[0]))
    note = b.at("bob") / "memory/note.md"
    note.write_text("the falcon nests high")
    wait(lambda: "falcon" in (b.at("bob") / "memory/:search?q=falcon").read_text())
    for number in range(30):  # of which some wait for their words when the log goes
        (b.at("bob") / f"memory/n{number}.md").write_text("a heron")
    link.down = True
    link.cut()
    wait(lambda: b.status()["cluster"].get("error"))
    with pytest.raises(OSError, match="Read-only"):
        (b.at("bob") / "memory/new.md").write_text("refused")
    assert not (b.at("bob") / "memory/new.md").exists()
    assert note.read_text() == "the falcon nests high"
    assert "note.md" in (b.at("bob") / "memory/:search?q=falcon").read_text()
    (a.at("alice") / "memory/other.md").write_text("meanwhile")
    link.down = False
    wait(lambda: reads(b.at("bob") / "memory/other.md", "meanwhile"))
    note.write_text("written again")
    wait(lambda: reads(a.at("alice") / "memory/note.md", "written again"))
    link.stopped = True  # no answer, and no end of the connection either
    with pytest.raises(OSError, match=r"Read-only|Input/output|temporarily unavailable"):
        note.write_text("lost")
    link.stopped = False
    link.cut()
    wait(lambda: not b.status()["cluster"]["error"])
    note.write_text("and again")
    agreed(a, b)
    link.close()


def test_a_host_whose_log_was_away_keeps_house_again_while_a_hook_of_before_still_runs(
    hosts: Hosts, postgres: Any, tmp_path: Path
) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    script = f"echo b >> {ran}; until [ -e {go} ]; do sleep 0.05; done; echo e >> {ran}"
    link = Link(postgres.port)
    a = hosts.host("a", "alice", address=postgres.over_tcp(link.port, hosts.address.split("/")[3].split("?")[0]))
    with (a.config / "config.yaml").open("a") as settings:
        hook = f'pattern: "/memory/shared/*", event: write, command: [/bin/sh, -c, "{script}"], timeout_s: 3600'
        settings.write(f"hooks: [{{{hook}}}]\n")
    avm(a, "cluster", "init")
    a.start()
    (a.at("alice") / "memory/shared/told.md").write_text("x")
    wait(ran.exists)
    keeper = a.whole_family()["keeper"]
    brief = a.at("alice") / "memory/brief.md"
    brief.write_text("x")
    Path(f"{brief}:ttl").write_text("1s")
    link.down = True
    link.cut()
    wait(lambda: not alive(keeper))
    link.down = False

    def reaped() -> bool:
        with contextlib.closing(connect(a.root / "data" / "avm.db", read_only=True)) as db:
            return db.execute("select 1 from node where parent > 0 and name = cast('brief.md' as blob)").get is None

    wait(reaped)
    assert ran.read_text().split() == ["b"]
    go.touch()
    twice = ["b", "e"] * 2  # the store has not heard what became of the first
    wait(lambda: ran.read_text().split() == twice)
    wait(lambda: a.status()["outbox"].get("waiting") == 0)
    assert ran.read_text().split() == twice
    link.close()


def test_a_host_that_has_other_rules_says_so_and_leaves_the_house_to_one_that_can_write(
    hosts: Hosts, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    a = hosts.first("alice")  # which keeps house
    b = hosts.joined("b", "bob")
    with (b.config / "config.yaml").open("a") as settings:
        hook = f'pattern: "/memory/shared/*", event: write, command: [/bin/sh, -c, "echo >> {ran}"]'
        rule = 'permissions: [{pattern: "/memory/other/*", access: none}]\ndefault_access: rw\n'
        settings.write(f"hooks: [{{{hook}}}]\n{rule}")
    b.command("reload")
    wait(lambda: "error" in a.status()["store"])
    said = a.status()
    assert "not those in force" in said["store"]["error"] == said["cluster"]["error"]
    assert said["store"]["writer_state"] == "refusing" and b.status()["store"]["writer_state"] == "ready"
    assert "not those in force" in a.command("status", expect=1)
    doctor = avm(a, "doctor", expect=1)
    assert "PROBLEM  daemon" in doctor and "not those in force" in doctor and "help scaling" in doctor
    wait(lambda: "hooks" in b.status()["outbox"])  # its keeper delivers
    (b.at("bob") / "memory/shared/told.md").write_text("x")
    wait(ran.exists)
    (a.config / "config.yaml").write_text((b.config / "config.yaml").read_text().replace("host: b", "host: a"))
    a.command("reload")
    wait(lambda: "error" not in a.status()["store"])
    a.command("status")
    (a.at("alice") / "memory/shared/too.md").write_text("x")


def test_what_is_purged_is_nowhere_on_any_host_nor_in_the_log(hosts: Hosts, postgres: Any) -> None:
    secret = "zqxcanary"
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    note = a.at("alice") / "memory/secret.md"
    note.write_text(f"the {secret} lives in the attic\n" * 30)
    note.write_text(f"the {secret} lives in the cellar\n" * 30)
    for daemon in (a, b):
        wait(lambda at=daemon: reads(at.at(at.agents[0]) / "memory/secret.md", note.read_text()))
        avm(daemon, "cluster", "snapshot")
    note.write_text(f"the {secret} has moved\n" * 30)
    said = avm(a, "--operator", "purge", "--verify", secret, expect=1)
    assert "shared log, record" in said and "shared log, snapshot" in said
    before = records(hosts.address)
    avm(a, "-a", "alice", "purge", "/memory/secret.md", "--yes")
    for daemon in (a, b):
        wait(lambda at=daemon: nowhere(at, secret))
    (a.at("alice") / "memory/other.md").write_text("after")
    wait(lambda: reads(b.at("bob") / "memory/other.md", "after"))
    agreed(a, b)
    assert not {number for number, _ in before} & {number for number, _ in records(hosts.address)}
    with psycopg_to(postgres.address()) as db:
        db.execute("checkpoint")
    files = [each.read_bytes() for each in (postgres.folder / "data/base").rglob("*") if each.is_file()]
    marks = [data[8:40] for _, data in before if secret.encode() in zlib.decompress(data)]
    assert marks and not any(mark in file for mark in marks for file in files)
    c = hosts.joined("c", "carol")
    agreed(a, c)


def nowhere(daemon: Daemon, text: str) -> bool:
    return daemon.avm("--operator", "purge", "--verify", text).stdout == "(nowhere)\n"


def psycopg_to(address: str) -> Any:
    import psycopg

    return psycopg.connect(address, autocommit=True)


def records(address: str) -> list[tuple[int, bytes]]:
    with psycopg_to(address) as db:
        return [(number, bytes(data)) for number, data in db.execute("select number, data from avm_record")]


def test_a_strict_mount_shows_what_was_acknowledged_anywhere_however_slow_its_link(hosts: Hosts, postgres: Any) -> None:
    """The host hears of records late; what it opens and looks for is never older than what the other was told is
    done. Without its log it says so, and shows nothing that may be old."""
    link = Link(postgres.port)
    a = hosts.first("alice")
    over = postgres.over_tcp(link.port, hosts.address.split("/")[3].split("?")[0])
    b = hosts.joined("b", "bob", address=over, strict=True)
    link.delay_s = 0.05
    note = "memory/note.md"
    for number in range(30):
        if number % 3 == 2:
            (a.at("alice") / note).unlink()
            assert not (b.at("bob") / note).exists()
        else:
            (a.at("alice") / note).write_text(str(number))
            assert told((b.at("bob") / note).read_text) == str(number)
        (a.at("alice") / f"memory/of-{number}").mkdir()
        assert f"of-{number}" in told(lambda: os.listdir(b.at("bob") / "memory"))
    (a.at("alice") / note).write_text("last")
    link.down = True
    link.cut()
    with pytest.raises(OSError, match="Input/output"):
        (b.at("bob") / note).read_text()
    (a.at("alice") / note).write_text("later")
    link.down = False
    assert told((b.at("bob") / note).read_text) == "later"
    link.close()


def told(look: Callable[[], T]) -> T:
    """What a strict mount shows; asked again while it says that it could not hear of the newest in time."""
    found: list[T] = []

    def shows() -> bool:
        try:
            found.append(look())
        except OSError as e:
            assert e.errno == errno.EIO
            return False
        return True

    wait(shows)
    return found[0]
