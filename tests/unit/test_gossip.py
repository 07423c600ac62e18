"""Digests between hosts: what an exchange brings across, who may take part, and what is refused."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import avmfs_daemon.gossip
import pytest
from avmfs_config import ConfigError, Endpoint, GossipSettings, load_settings
from avmfs_daemon.gossip import Digests

from avmfs import wire
from avmfs.agents import digest_cache, gossip, gossip_link
from avmfs.agents.bloom import digest
from avmfs.agents.gossip import StoreKnowledge
from avmfs.agents.gossip_link import Gossip, allowed_networks, is_allowed, read_key
from avmfs.errors import AvmError, Denied, Invalid, NotFound
from avmfs.store.identity import OPERATOR
from tests.threads import refused_once
from tests.unit.views_fixtures import World, opened

KEY = b"k" * 32


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(opened(tmp_path / name)) for name in ("mars", "venus", "pluto")]


def named(world: World, name: str) -> StoreKnowledge:
    world.store.submit(OPERATOR, "name_host", name=name)
    return StoreKnowledge(world.store)


def wrote(world: World, agent: str, text: str, path: str = "/shared/one.md") -> None:
    hand = world.agent(agent)
    hand.put(path, text)
    hand.memory.make_searchable()
    digest_cache.publish(world.store)


def exchange(asker: StoreKnowledge, other: StoreKnowledge) -> int:
    """By hand, without a connection; how many digests were new on either side."""
    answered = gossip.answer(other, gossip.summary(asker))
    learnt, lacking = gossip.settle(asker, answered)
    return learnt + gossip.take(other, lacking)


def bits(knowledge: StoreKnowledge) -> dict[tuple[str, str], bytes]:
    return {
        (each.host, each.agent): each.bits for host in knowledge.hosts() for each in knowledge.digests(host.host, 0)
    }


def test_two_hosts_know_the_same_after_one_exchange(worlds: list[World]) -> None:
    mars, venus = named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    wrote(worlds[1], "bob", "# TSMC")
    assert exchange(mars, venus) == 2 and bits(mars) == bits(venus) and len(bits(mars)) == 2
    assert exchange(mars, venus) == exchange(venus, mars) == 0
    assert worlds[1].agent("carol").cat("/:who?q=NVDA") == "alice@mars  perhaps\n"
    assert worlds[0].agent("carol").cat("/:who?q=TSMC&via=gossip") == "bob@venus  perhaps\n"


def test_what_the_system_has_fetched_is_told_too(worlds: list[World]) -> None:
    mars, venus = named(worlds[0], "mars"), named(worlds[1], "venus")
    worlds[0].store.submit(OPERATOR, "publish_digests", digests=[[OPERATOR.name, digest({"nvda"})]], privacy=0)
    assert exchange(mars, venus) == 1 and bits(mars) == bits(venus)


def test_what_is_taken_back_is_taken_back_everywhere_and_others_pass_it_on(worlds: list[World]) -> None:
    mars, venus, pluto = (named(world, f"host{number}") for number, world in enumerate(worlds))
    hand = worlds[0].agent("alice")
    hand.echo("owner", "/:who")
    wrote(worlds[0], "alice", "# NVDA", "/private/one.md")
    exchange(mars, venus)
    exchange(pluto, venus)  # never met mars
    assert worlds[2].agent("bob").cat("/:who?q=NVDA") == "alice@host0  perhaps\n"
    hand.echo("none", "/:who")
    exchange(venus, mars)
    exchange(venus, pluto)
    assert worlds[2].agent("bob").cat("/:who?q=NVDA") == "(nobody is known to know)\n"
    assert set(bits(pluto).values()) == {b""}


def test_private_topics_never_cross_unless_their_owner_says_so(worlds: list[World]) -> None:
    mars, venus = named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    exchange(mars, venus)
    before = bits(venus), venus.hosts()
    for number in range(30):
        wrote(worlds[0], "alice", f"# Canary{number}", f"/private/{number}.md")
    assert exchange(mars, venus) == 0 and (bits(venus), venus.hosts()) == before


def test_many_digests_come_in_pages_without_a_gap(worlds: list[World], monkeypatch: pytest.MonkeyPatch) -> None:
    mars, venus = named(worlds[0], "mars"), named(worlds[1], "venus")
    made = [[f"agent{number}", digest([f"topic {number}"])] for number in range(50)]
    worlds[0].store.submit(OPERATOR, "publish_digests", digests=made, privacy=0)
    monkeypatch.setattr(gossip, "PAGE_BYTES", 7 * (128 + 64))
    learnt: list[int] = []
    while not learnt or learnt[-1]:
        learnt.append(exchange(venus, mars))
        with worlds[1].store.reading(OPERATOR) as reader:
            rows = reader.discovery.digests()
        assert len(rows) == sum(learnt) and rows[-1].version == venus.hosts()[1].version
    assert sum(learnt) == 50 and len(learnt) > 5


def test_a_host_that_was_forgotten_meanwhile_is_not_learnt_in_part(worlds: list[World]) -> None:
    mars, venus = named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    exchange(mars, venus)
    wrote(worlds[0], "bob", "# TSMC", "/shared/two.md")
    answered = gossip.answer(mars, gossip.summary(venus))
    worlds[1].store.submit(OPERATOR, "forget_hosts", before=2**62)
    assert gossip.settle(venus, answered)[0] == 0
    assert exchange(venus, mars) == 2 and bits(venus) == bits(mars)


def test_hosts_of_random_meetings_all_come_to_know_everything() -> None:
    for seed in range(3):
        rounds = simulate(40, random.Random(seed))
        assert rounds <= 10, rounds


def simulate(count: int, chance: random.Random) -> int:
    from benchmarks.discovery_ops import Shelf, converge

    return converge(
        [Shelf(f"{number:016x}", {f"a{number}": digest([f"t{number}"])}) for number in range(count)], chance
    )


def test_a_summary_that_is_none_is_refused(worlds: list[World]) -> None:
    mars = named(worlds[0], "mars")
    for message in (
        None,
        [],
        {},
        {"hosts": []},
        {"hosts": {"x": [1, 1]}},
        {"hosts": {"0" * 16: 1}},
        {"hosts": {"0" * 16: [-1, 0]}},
        {"hosts": {"0" * 16: [1, 2**63]}},
        {"hosts": {"0" * 16: [True, 1]}},
        {"hosts": {b"0" * 16: [1, 1]}},
        {"hosts": {f"{number:016x}": [1, 1] for number in range(2000)}},
    ):
        with pytest.raises(Invalid):
            gossip.answer(mars, message)


GOOD = ["ab" * 8, "saturn", 5, 0, 9, [["alice", 9, bytes(128)]]]
WRONG: tuple[tuple[int, Any], ...] = (
    (0, "zz"),
    (0, 5),
    (0, "AB" * 8),
    (1, ""),
    (1, "a b"),
    (1, "x" * 65),
    (1, "a\nb"),
    (2, -1),
    (3, None),
    (4, 8),
    (5, {}),
    (5, [["alice", 9, bytes(100)]]),
    (5, [["alice", 9, "x" * 128]]),
    (5, [["Alice!", 9, bytes(128)]]),
    (5, [["all", 9, bytes(128)]]),
    (5, [["a", 9, bytes(128)], ["b", 9, bytes(128)]]),
    (5, [["a", 0, bytes(128)]]),
    (5, [["a", 9]]),
    (5, [[7, 9, bytes(128)]]),
    (5, [["a", 9, bytes(192)]]),
    (5, [["a", 9, bytes(1 << 21)]]),
)


def test_digests_that_are_none_are_refused_before_anything_is_learnt(worlds: list[World]) -> None:
    mars = named(worlds[0], "mars")
    for at, value in WRONG:
        bad = [value if each == at else good for each, good in enumerate(GOOD)]
        with pytest.raises(Invalid):
            gossip.take(mars, {"deltas": [GOOD, bad]})
        assert len(mars.hosts()) == 1, (at, value)
    assert gossip.take(mars, {"deltas": [GOOD]}) == 1


def test_nobody_speaks_for_another_host(worlds: list[World]) -> None:
    mars = named(worlds[0], "mars")
    own = mars.hosts()[0]
    assert gossip.take(mars, {"deltas": [[own.host, "evil", 5, 0, 9, [["alice", 9, bytes(128)]]]]}) == 0
    assert mars.hosts() == [own] and bits(mars) == {}
    with pytest.raises(Invalid, match="speaks for this one"):
        worlds[0].store.submit(
            OPERATOR, "merge_digests", host=own.host, name="evil", alive=5, after=0, version=9, digests=[]
        )


# The connection


def pair(
    key: bytes, worlds: list[World], tamper: Callable[[int, bytes], list[bytes]] | None = None
) -> tuple[list[BaseException | int], list[bytes]]:
    """An exchange over sockets, each frame passed through ``tamper`` (how many came before it in its direction, its
    bytes): what both sides ended with, and the frames that the asker sent."""
    left, right = (StoreKnowledge(world.store) for world in worlds[:2])
    ends: list[BaseException | int] = [0, 0]
    near, near_far = socket.socketpair()
    far, far_near = socket.socketpair()
    sent: list[bytes] = []

    def run(at: int, work: Callable[[], int]) -> None:
        try:
            ends[at] = work()
        except (OSError, EOFError, wire.FrameError) as e:
            ends[at] = e

    def carry(source: socket.socket, target: socket.socket, mine: bool) -> None:
        count = 0
        with contextlib.suppress(OSError, EOFError):
            while True:
                body = wire.receive(source)
                sent.extend([wire.frame(body)] if mine else [])
                for frame in tamper(count, wire.frame(body)) if tamper is not None and mine else [wire.frame(body)]:
                    target.sendall(frame)
                count += 1
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def asked() -> None:
        run(0, lambda: gossip_link.ask_peer(near, KEY, left))
        near.close()

    def answered() -> None:
        run(1, lambda: gossip_link.answer_peer(far, key, right))
        far.close()

    threads = [
        threading.Thread(target=asked),
        threading.Thread(target=answered),
        threading.Thread(target=carry, args=(near_far, far_near, True)),
        threading.Thread(target=carry, args=(far_near, near_far, False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for sock in (near, near_far, far, far_near):
        sock.close()
    return ends, sent


def test_an_exchange_over_a_connection(worlds: list[World]) -> None:
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    wrote(worlds[1], "bob", "# TSMC")
    assert pair(KEY, worlds)[0] == [1, 1]


def test_without_the_key_neither_side_learns_anything(worlds: list[World]) -> None:
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    wrote(worlds[1], "bob", "# TSMC")
    ends, sent = pair(b"x" * 32, worlds)
    assert isinstance(ends[0], Denied) and isinstance(ends[1], (OSError, EOFError))
    assert len(sent) == 1  # nothing but its nonce
    assert [len(StoreKnowledge(world.store).hosts()) for world in worlds[:2]] == [1, 1]


@pytest.mark.parametrize("how", ["flip", "repeat", "swap", "drop the body", "from before"])
def test_a_frame_that_was_meddled_with_ends_the_exchange(worlds: list[World], how: str) -> None:
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    before = pair(KEY, worlds[::2])[1]  # recorded: with another peer that has the key
    held: list[bytes] = []

    def tamper(count: int, frame: bytes) -> list[bytes]:
        if count == 0:
            return [frame]
        if how == "flip":
            middle = len(frame) // 2
            return [frame[:middle] + bytes([frame[middle] ^ 1]) + frame[middle + 1 :]]
        if how == "repeat":
            return [frame, frame]
        if how == "from before":
            return [before[count]]
        if how == "swap":
            held.append(frame)
            return held[::-1] if len(held) == 2 else [wire.frame([b"", b""])]
        return [wire.frame([])]

    ends, _ = pair(KEY, worlds, tamper)
    assert isinstance(ends[1], (Denied, wire.FrameError, EOFError, OSError)), ends
    assert "alice" not in worlds[1].agent("bob").cat("/:who?q=NVDA")


def test_a_recorded_exchange_is_of_no_use_again(worlds: list[World]) -> None:
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    _, sent = pair(KEY, worlds)
    near, far = socket.socketpair()
    with near, far:
        for frame in sent:
            near.sendall(frame)
        near.shutdown(socket.SHUT_WR)
        with pytest.raises(Denied, match="without proof"):
            gossip_link.answer_peer(far, KEY, StoreKnowledge(worlds[1].store))


def listening(
    world: World, tmp_path: Path, peers: tuple[Endpoint, ...] = (), allow: tuple[str, ...] = (), key: bytes = KEY
) -> Gossip:
    path = tmp_path / f"key{key[0]}"
    path.write_bytes(key)
    path.chmod(0o600)
    settings = GossipSettings(True, Endpoint("127.0.0.1", 0), peers, allow, path, 0.2)
    return Gossip(settings, StoreKnowledge(world.store), lambda: None, chance=random.Random(1))


def test_rounds_bring_hosts_together_and_status_says_how_they_went(worlds: list[World], tmp_path: Path) -> None:
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    one = listening(worlds[0], tmp_path)
    assert one.port is not None
    dead = Endpoint("127.0.0.1", 1)
    two = listening(worlds[1], tmp_path, (Endpoint("127.0.0.1", one.port), dead))
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            peers = two.status()["peers"]
            if peers[f"127.0.0.1:{one.port}"]["state"] == "ok" and "refused" in peers[str(dead)]["state"]:
                break
            time.sleep(0.05)
        assert worlds[1].agent("bob").cat("/:who?q=NVDA") == "alice@mars  perhaps\n"
        assert one.status()["answered"] >= 1
    finally:
        one.close()
        two.close()


def test_strangers_and_junk_hold_nobody_up(
    worlds: list[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossip_link, "HELLO_S", 300.0)
    named(worlds[0], "mars"), named(worlds[1], "venus")
    wrote(worlds[0], "alice", "# NVDA")
    one = listening(worlds[0], tmp_path)
    other = listening(worlds[1], tmp_path, key=b"y" * 40)
    assert one.port is not None
    where = Endpoint("127.0.0.1", one.port)
    try:
        for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, wire.frame({"v": 1, "nonce": b"short"}), b"\0\0"):
            # It may have been hung up on before all is sent.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", one.port), timeout=300) as sock:
                sock.sendall(junk)
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(100) == b""
        with pytest.raises(Denied, match="does not have the key"):
            other.ask(where)
        monkeypatch.setattr(gossip_link, "HELLO_S", 0.5)
        held = [socket.create_connection(("127.0.0.1", one.port), timeout=300) for _ in range(20)]
        for sock in held:
            assert sock.recv(1) == b"", "who says nothing is hung up on"
            sock.close()
        monkeypatch.setattr(gossip_link, "HELLO_S", 300.0)
        deadline = time.monotonic() + 300
        while one._room._value < gossip_link.CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.01)
        third = listening(worlds[2], tmp_path)
        try:
            assert third.ask(where) == 1
        finally:
            third.close()
    finally:
        one.close()
        other.close()


def test_a_host_that_finds_no_thread_once_answers_the_next_who_asks(worlds: list[World], tmp_path: Path) -> None:
    one = listening(worlds[0], tmp_path)
    assert one.port is not None
    with refused_once("gossip answer") as refused:
        two = listening(worlds[1], tmp_path, (Endpoint("127.0.0.1", one.port),))
        try:
            assert refused.wait(300)
            deadline = time.monotonic() + 300
            while not one.status()["answered"] and time.monotonic() < deadline:
                time.sleep(0.05)
            assert one.status()["answered"] and one.status()["refused"] == 1
        finally:
            two.close()
            one.close()


def test_only_this_machine_and_those_who_are_named_may_connect() -> None:
    settings = GossipSettings(
        peers=(Endpoint("10.1.2.3", 1), Endpoint("host.example", 1), Endpoint("fe80::1", 1)), allow=("192.168.0.0/24",)
    )
    networks = allowed_networks(settings)
    for address in ("127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "192.168.0.77", "::ffff:192.168.0.1", "fe80::1%eth0"):
        assert is_allowed(address, networks), address
    for address in ("10.1.2.4", "192.168.1.1", "8.8.8.8", "::ffff:10.0.0.1", "fe80::2"):
        assert not is_allowed(address, networks), address


def test_a_key_is_long_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(NotFound):
        read_key(path)
    path.write_bytes(KEY + b"\n")
    path.chmod(0o640)
    with pytest.raises(Denied, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    assert read_key(path) == KEY
    path.write_bytes(b"short")
    with pytest.raises(Invalid, match="at least 32"):
        read_key(path)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("{enabled: true, listen: '127.0.0.1:7946'}", "gossip.key_file: required"),
        ("{enabled: true, key_file: /k}", "neither `listen` nor `peers`"),
        ("{listen: '0.0.0.0:7946'}", "gossip.allow: required"),
        ("{listen: '127.0.0.1'}", "gossip.listen: expected host:port"),
        ("{listen: '127.0.0.1:70000'}", "gossip.listen: expected host:port"),
        ("{peers: ['a b:1']}", "gossip.peers[0]: expected host:port"),
        ("{allow: ['10.0.0.1/8']}", "gossip.allow[0]: expected an address or network"),
        ("{name: 'a b'}", "gossip.name: a host's name"),
        ("{interval_s: 0}", "gossip.interval_s"),
        ("{key: x}", "gossip.key: unknown key"),
    ],
)
def test_a_bad_section_names_its_place(tmp_path: Path, section: str, reason: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"gossip: {section}\n")
    with pytest.raises(ConfigError) as error:
        load_settings(path, {"HOME": "/home/ada"})
    assert reason in str(error.value)


def test_a_whole_section(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "gossip: {enabled: true, listen: '[::1]:7946', peers: ['mars.example:7946', '10.0.0.2:1'], key_file: ~/key,"
        " allow: ['10.0.0.0/24'], interval_s: 5, name: venus}\n"
    )
    found = load_settings(path, {"HOME": "/home/ada"}).gossip
    assert found == GossipSettings(
        True,
        Endpoint("::1", 7946),
        (Endpoint("mars.example", 7946), Endpoint("10.0.0.2", 1)),
        ("10.0.0.0/24",),
        Path("/home/ada/key"),
        5.0,
        "venus",
    )
    assert [str(each) for each in (found.listen, *found.peers)] == ["[::1]:7946", "mars.example:7946", "10.0.0.2:1"]
    path.write_text("default_access: rw\n")
    assert load_settings(path, os.environ).gossip == GossipSettings() and not GossipSettings().enabled
    assert issubclass(Denied, AvmError)


def test_an_address_that_is_taken_at_the_start_is_tried_again(
    worlds: list[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(avmfs_daemon.gossip, "RETRY_S", 0.0)
    key, said = tmp_path / "key", list[dict[str, Any]]()
    key.write_bytes(KEY)
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = Endpoint("127.0.0.1", taken.getsockname()[1])
        digests = Digests(worlds[0].store, GossipSettings(enabled=True, listen=where, key_file=key), said.append)
        try:
            digests.step()
            assert "failed" in said[-1]["state"] and len(caplog.records) == 1  # what stays as it is is said once
            taken.close()
            digests.step()
            assert said[-1]["state"] == "on"
        finally:
            digests.close()
