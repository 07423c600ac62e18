"""The index process's server, in threads of this one: who may ask for what, and what happens when it is not well."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import Busy, Denied
from avmfs.search.indexer import embed_pending
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.index.client import IndexClient
from avmfs.store.index.server import LOADING, IndexServer
from avmfs.store.index.vectors import Nearest
from avmfs.store.store import Store, open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.hashing import HashingEmbedding
from tests.threads import refused_once

KEY = b"k" * 32
ALICE, BOB = Principal("alice"), Principal("bob")
NOBODY = np.zeros(0, np.int64)


class House:
    """A store, and a server that may be stopped and started again on the same socket."""

    def __init__(self, root: Path) -> None:
        self.address = root / "index.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.address))
        self.listener.listen(16)
        self.store: Store = open_direct(root / "avm.db", Policy(), IndexRules())
        self.embedder = HashingEmbedding()
        self.server: IndexServer | None = None
        self.told: list[dict[str, Any]] = []
        self.clients: list[IndexClient] = []

    def write(self, who: Principal, path: str, text: str) -> None:
        self.store.submit(
            who, "write_path", path=[part.encode() for part in path.strip("/").split("/")], data=text.encode()
        )

    def embed(self) -> None:
        embed_pending(self.store, self.embedder, self.embedder.model_id)

    def start(self, model: Callable[[], tuple[str, int] | None] | None = None) -> None:
        def in_force() -> tuple[str, int] | None:
            found = self.store.vector_model()
            return None if found is None else (found.model, found.dimension)

        def repair(passages: list[int]) -> None:
            self.store.submit(OPERATOR, "drop_vectors", passages=passages)

        self.server = IndexServer(
            self.listener, KEY, self.store.connection, model or in_force, repair, self.told.append
        )
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self._thread.join(300)
            assert not self._thread.is_alive()
            self.server = None

    def client(self, agent: str = ANYBODY, key: bytes = KEY, patience_s: float = 40.0) -> IndexClient:
        self.clients.append(IndexClient(self.address, agent, proof(key, agent), patience_s))
        return self.clients[-1]

    def ask(self, client: IndexClient, who: Principal, q: str = "coffee", k: int = 100) -> Nearest:
        vector = self.embedder.embed_batch([q]).vectors[0]
        return client.nearest(who, self.embedder.model_id, vector, k, NOBODY)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.stop()
        self.listener.close()
        self.store.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    for agent in (ALICE, BOB):
        house.store.submit(agent, "enroll")
    house.write(ALICE, "/memory/a", "coffee beans")
    house.write(ALICE, "/memory/private/alice/p", "coffee secrets")
    house.write(BOB, "/memory/private/bob/q", "coffee of bob")
    house.embed()
    yield house
    house.close()


def test_the_answer_is_that_of_a_scan_in_this_process(house: House) -> None:
    house.start()
    vector = house.embedder.embed_batch(["coffee"]).vectors[0]
    for who in (ALICE, BOB, OPERATOR):
        found = house.ask(house.client(), who)
        here = house.store.search_index(who).nearest(house.embedder.model_id, vector, 100, NOBODY)
        assert found.passages.tolist() == here[0].tolist() and found.cosines.tobytes() == here[1].tobytes()
    assert [len(house.ask(house.client(), who).passages) for who in (ALICE, BOB, OPERATOR)] == [2, 2, 3]


def test_a_mount_gets_scores_of_its_own_agents_rows_alone(house: House) -> None:
    house.start()
    alice = house.client("alice")
    assert len(house.ask(alice, ALICE).passages) == 2
    for other in (BOB, OPERATOR, Principal("alice", operator=True)):
        with pytest.raises(Denied):
            house.ask(alice, other)
    assert len(house.ask(alice, ALICE).passages) == 2, "the refusal left the connection whole"


def test_a_server_that_finds_no_thread_once_answers_the_next_who_asks(house: House) -> None:
    house.start()
    with refused_once("asker"), socket.socket(socket.AF_UNIX) as turned_away:
        turned_away.settimeout(300)
        turned_away.connect(str(house.address))
        assert turned_away.recv(1) == b""
        assert len(house.ask(house.client(), ALICE).passages) == 2


def test_who_cannot_show_whom_it_speaks_for_is_dropped(house: House) -> None:
    house.start()
    with pytest.raises(Busy, match="does not answer"):
        house.ask(house.client("alice", key=b"x" * 32, patience_s=0.5), ALICE)


@pytest.mark.parametrize(
    "change",
    [
        {"k": -1},
        {"k": 10**9},
        {"k": True},
        {"vector": b""},
        {"vector": b"123"},
        {"vector": np.float32(np.nan).tobytes()},
        {"also": b"1"},
        {"within_s": 1e9},
        {"agent": None},
        {"operator": 1},
        {"model": None},
        {"id": "1"},
    ],
)
def test_a_bad_question_ends_its_connection_and_nothing_else(house: House, change: dict[str, Any]) -> None:
    house.start()
    client = house.client()
    house.ask(client, ALICE)
    question = {
        "id": 1,
        "agent": "alice",
        "operator": False,
        "model": "m",
        "k": 1,
        "vector": bytes(256),
        "also": b"",
        "within_s": 1.0,
    }
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(300)
        sock.connect(str(house.address))
        wire.send(sock, {"v": wire.PROTOCOL, "agent": ANYBODY, "proof": proof(KEY, ANYBODY)})
        wire.send(sock, question | change)
        assert sock.recv(1) == b""
    house.ask(client, ALICE)


def test_what_is_committed_is_found_at_once_and_what_is_gone_is_not(house: House) -> None:
    house.start()
    client = house.client()
    before = house.ask(client, BOB).passages
    house.write(ALICE, "/memory/b", "coffee again")
    house.embed()
    after = house.ask(client, BOB).passages
    assert len(after) == len(before) + 1
    with house.store.reading(ALICE) as reader:
        node = reader.child(2, b"b")
        assert node is not None
    house.store.submit(ALICE, "unlink", parent=2, name=b"b")
    house.store.submit(ALICE, "drain_lexical")  # as every search does first
    assert house.ask(client, BOB).passages.tolist() == before.tolist()


def test_vectors_of_another_model_are_never_compared_and_the_new_ones_take_over(house: House) -> None:
    house.start()
    client = house.client()
    assert len(house.ask(client, ALICE).passages) == 2
    old = house.embedder
    house.embedder = HashingEmbedding(32)
    with pytest.raises(Busy, match="nothing has been embedded with hashing-32 yet"):
        house.ask(client, ALICE)
    house.store.submit(OPERATOR, "follow_model", model=house.embedder.model_id, dimension=32)
    assert len(house.ask(client, ALICE).passages) == 0, "the change-over has begun: searching goes on"
    house.embed()
    assert len(house.ask(client, ALICE).passages) == 2
    house.embedder = old
    with pytest.raises(Busy):
        house.ask(client, ALICE)


def test_the_model_of_an_empty_store_is_known_too(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        house.store.submit(OPERATOR, "follow_model", model=house.embedder.model_id, dimension=house.embedder.dimension)
        house.start()
        assert len(house.ask(house.client(), ALICE).passages) == 0
        house.write(ALICE, "/memory/a", "coffee beans")
        house.embed()
        assert len(house.ask(house.client(), ALICE).passages) == 1
    finally:
        house.close()


def test_damaged_vectors_are_left_out_and_made_anew(house: House) -> None:
    db = connect(house.store.path)
    number = db.execute("select min(id) from vector").get
    db.execute("update vector set data = ? where id = ?", (b"\xff" * 256, number))
    db.close()
    house.start()
    assert len(house.ask(house.client(), ALICE).passages) == 1
    deadline = time.monotonic() + 300
    while not house.store.queue_lengths()[1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    house.embed()
    assert len(house.ask(house.client(), ALICE).passages) == 2


def test_a_table_whose_log_was_cut_off_is_loaded_anew(house: House) -> None:
    house.start()
    client = house.client()
    house.ask(client, ALICE)
    house.write(ALICE, "/memory/b", "coffee again")
    house.embed()
    db = connect(house.store.path)
    db.execute("delete from vector_log where seq < (select max(seq) from vector_log)")
    db.execute("insert into vector_log(seq, id) select max(seq) + 7, 999 from vector_log")
    db.execute("delete from vector_log where id <> 999")
    db.close()
    deadline = time.monotonic() + 300
    while True:
        try:
            assert len(house.ask(client, ALICE).passages) == 3
            break
        except Busy as e:
            assert e.reason == LOADING and time.monotonic() < deadline
            time.sleep(0.01)


def test_a_replaced_server_answers_the_same_client(house: House) -> None:
    house.start()
    client = house.client()
    before = house.ask(client, ALICE)
    house.stop()
    threading.Timer(0.3, house.start).start()
    after = house.ask(client, ALICE)
    assert after.passages.tolist() == before.passages.tolist()


def test_without_a_server_the_answer_comes_in_time(house: House) -> None:
    client = house.client(patience_s=0.4)
    started = time.monotonic()
    with pytest.raises(Busy, match=r"does not answer within 0\.4 s"):
        house.ask(client, ALICE)
    assert time.monotonic() - started < 200


def test_a_server_that_hangs_costs_its_time_limit(house: House) -> None:
    stuck = threading.Event()

    def model() -> tuple[str, int] | None:
        stuck.wait(300)
        return None

    house.start(model)
    try:
        started = time.monotonic()
        with pytest.raises(Busy):
            house.ask(house.client(patience_s=0.5), ALICE)
        assert time.monotonic() - started < 200
    finally:
        stuck.set()


def test_many_threads_share_a_client(house: House) -> None:
    house.start()
    client = house.client()
    expected = {who: house.ask(client, who).passages.tolist() for who in (ALICE, BOB)}
    wrong: list[object] = []

    def work(who: Principal) -> None:
        for _ in range(30):
            if house.ask(client, who).passages.tolist() != expected[who]:
                wrong.append(who)

    threads = [threading.Thread(target=work, args=(who,)) for who in (ALICE, BOB) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
