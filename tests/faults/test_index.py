"""The index process of a running daemon: killed, hung, and what mounts hold while it has many vectors."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from avmfs.access import Policy, Principal
from avmfs.store.identity import OPERATOR
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from tests.behind import connect
from tests.faults.daemons import KILLED, Daemon, wait
from tests.faults.static_table import make

pytestmark = pytest.mark.mount

UNAVAILABLE = "# semantic search unavailable"


def embedding(daemon: Daemon, dimension: int = 64) -> None:
    folder = daemon.root / "table"
    if not folder.exists():
        make(folder, dimension)
    daemon.settings(f"embedding: {{engine: static, path: {folder}}}\n")


def recall(daemon: Daemon, agent: str, q: str) -> str:
    return (daemon.at(agent) / f":recall?min_relevance=0&q={q}").read_text()


def by_meaning(asked: Path) -> str:
    """The answer, asked for again where a busy machine's index was later than a mount waits for it."""
    answers: list[str] = []

    def answered() -> bool:
        answers.append(asked.read_text())
        return UNAVAILABLE not in answers[-1]

    wait(answered)
    return answers[-1]


def semantic(daemon: Daemon, agent: str, q: str = "espresso") -> bool:
    """Whether a note about coffee is found by a word of its topic."""
    answer = recall(daemon, agent, q)
    return UNAVAILABLE not in answer and "coffee" in answer


def ready(daemon: Daemon) -> None:
    wait(lambda: daemon.status()["embedding"]["state"] == "ready")
    wait(lambda: daemon.status()["store"]["waiting_semantic"] == 0)


def with_notes(daemon: Daemon, notes: dict[str, str]) -> None:
    """Started, alice has written these notes on coffee, and they are found by what they mean."""
    embedding(daemon)
    daemon.mounts("alice")
    daemon.start()
    for name, text in notes.items():
        (daemon.at("alice") / "memory" / name).write_text(text)
    ready(daemon)
    wait(lambda: semantic(daemon, "alice"))


def test_a_killed_index_is_replaced_and_answers_again(daemon: Daemon) -> None:
    with_notes(daemon, {"a.md": "coffee is nearly out"})
    status = daemon.status()["index"]
    assert status["state"] == "ready" and status["embedding"]["embedded"] >= 1
    for _ in range(3):
        victim = daemon.status()["index"]["pid"]
        os.kill(victim, signal.SIGSTOP)
        (daemon.at("alice") / "memory/b.md").write_text("tea as well")  # which waits for no index
        os.kill(victim, signal.SIGKILL)
        assert "coffee" in recall(daemon, "alice", "coffee"), "words answer meanwhile"
        wait(lambda: semantic(daemon, "alice"))
        assert daemon.status()["index"]["pid"] != victim


def test_while_the_index_hangs_words_answer_within_its_time_limit_and_say_so(daemon: Daemon) -> None:
    with_notes(daemon, {"a.md": "coffee is nearly out"})
    pid = daemon.status()["index"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        answer = recall(daemon, "alice", "coffee")
        assert time.monotonic() - started < 200
        assert answer.startswith(f"{UNAVAILABLE}: the vector index does not answer") and "nearly out" in answer
        (daemon.at("alice") / "memory/b.md").write_text("tea as well")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait(lambda: semantic(daemon, "alice"))


def test_another_model_takes_over_while_searches_go_on(daemon: Daemon) -> None:
    with_notes(daemon, {f"{number}.md": f"coffee number {number}" for number in range(40)})
    before = daemon.status()["embedding"]["model"]
    other = make(daemon.root / "other", 32)
    daemon.settings(f"embedding: {{engine: static, path: {other}}}\n")
    daemon.command("reload")
    assert "coffee" in recall(daemon, "alice", "coffee")
    ready(daemon)
    wait(lambda: semantic(daemon, "alice"))
    wait(lambda: daemon.status()["index"]["vectors"] == 40)
    status = daemon.status()
    assert status["embedding"]["model"] != before and status["index"]["model"] == status["embedding"]["model"]


def pss(pid: int) -> int:
    """Proportional memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def plant(path: Path, model: str, dimension: int, count: int) -> None:
    """Random vectors for ``count`` passages of one file. The passages are rows made here: writing that much text
    would take minutes."""
    store = open_direct(path, Policy(), IndexRules())
    store.submit(Principal("alice"), "write_path", path=[b"memory", b"big"], data=b"coffee " * 100)
    store.submit(OPERATOR, "drain_lexical", limit=10)
    db = connect(path)
    row = db.execute("select max(id), document, scope from passage").fetchone()
    assert row is not None
    first, document, scope = row
    with db:
        db.executemany(
            "insert into passage(document, part, scope, len, start, stop, flags) values(?, ?, ?, 1, 0, 6, 0)",
            [(document, part, scope) for part in range(1, count)],
        )
    db.close()
    rows = np.random.default_rng(0).standard_normal((count, dimension)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    store.submit(OPERATOR, "follow_model", model=model, dimension=dimension, limit=10**9)
    for at in range(0, count, 5000):
        vectors = [[first + at + n, row.tobytes()] for n, row in enumerate(rows[at : at + 5000])]
        assert store.submit(OPERATOR, "put_vectors", model=model, vectors=vectors)["stored"] == len(vectors)
    store.close()


def test_a_mount_that_searches_holds_no_vectors(daemon: Daemon) -> None:
    """The same daemon with 20,000 vectors of 512 numbers (41 MB), and without."""
    from avmfs.embed.static import StaticEmbedding

    embedding(daemon, 512)
    model = StaticEmbedding(daemon.root / "table").model_id
    daemon.mounts("alice")
    sizes = []
    for count in (0, 20_000):
        if count:
            plant(daemon.root / "data" / "avm.db", model, 512, count)
        daemon.start()
        ready(daemon)
        if count:
            wait(lambda: daemon.status()["index"].get("vectors", 0) >= 20_000)
        questions = random.Random(1).choices(["coffee", "market", "dentist", "tea"], k=20)
        for q in questions:
            if count:
                by_meaning(daemon.at("alice") / f":recall?q={q}")
            else:
                recall(daemon, "alice", q)
        sizes.append({name: pss(pid) for name, pid in daemon.family().items() if name in ("alice", "index")})
        daemon.command("stop")
    assert sizes[1]["alice"] - sizes[0]["alice"] < 25_000_000
    assert sizes[1]["index"] - sizes[0]["index"] > 40_000_000, "somebody holds them"


@pytest.mark.model
@pytest.mark.logs(KILLED)  # a mount that is replaced on a busy machine may be late to leave
def test_the_command_that_an_answer_names_has_the_notes_found_by_what_they_mean(daemon: Daemon) -> None:
    daemon.settings("embedding: {allow_download: false, timeout_s: 300}\n")
    daemon.mounts("alice")
    daemon.start()
    for name, text in (("news", "中东局势紧张"), ("dinner", "今天晚饭吃了面条")):
        (daemon.at("alice") / f"memory/{name}.md").write_text(text)
    ready(daemon)
    asked = daemon.at("alice") / ":recall?max_tokens=400&q=伊朗军事冲突"
    wait(lambda: "; avm " in asked.read_text())  # and not that a busy machine's index is late
    first, *rest = asked.read_text().splitlines()
    assert rest == ["(nothing relevant)"]
    command = first.partition("; avm ")[2].partition(" changes")[0]
    assert command == "model use universal", first

    done = daemon.avm("--json", *command.split())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reloaded"] is True
    wait(lambda: daemon.status()["embedding"]["model"] == "use-multilingual-3")
    ready(daemon)
    wait(lambda: "中东局势紧张" in by_meaning(asked))
    assert "面条" not in by_meaning(asked)
    wait(lambda: daemon.status()["index"]["vectors"] == 2)  # which is told from time to time
