"""The re-ranker of a running daemon: the model is in the supervisor, every door has its word, and its absence shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cross_encoders
from tests.faults.daemons import KILLED, Daemon, wait

pytestmark = pytest.mark.mount

WASH = "the car is clean, the car is red, the car is slow to dry"
BRAKE = "brake stuck in the automobile, which is a car"
Q = ":{}?q=why is the car slow"


def configured(daemon: Daemon, rerank: str) -> None:
    daemon.settings(f"embedding: {{enabled: false}}\nsearch: {{rerank: {rerank}}}\n")


def read(daemon: Daemon, view: str) -> str:
    return (daemon.at("alice") / Q.format(view)).read_text()


def order(daemon: Daemon) -> list[str]:
    return [line.rpartition("/")[2] for line in read(daemon, "search").splitlines() if line.startswith("[")]


@pytest.mark.logs("no re-ranker: ", KILLED)  # a mount that is replaced on a busy machine may be late to leave
def test_a_model_of_ones_own_orders_what_mounts_and_door_find_and_shows_when_it_is_gone(
    daemon: Daemon, tmp_path: Path
) -> None:
    folder = cross_encoders.make(tmp_path / "tiny")
    configured(daemon, f"{{model: {folder}, timeout_s: 60}}")
    daemon.mounts("alice")
    daemon.start()
    for name, text in (("wash.md", WASH), ("brake.md", BRAKE)):
        (daemon.at("alice") / "memory" / name).write_text(text)
    wait(lambda: daemon.status()["reranker"] == {"state": "ready", "name": "tiny"})
    assert "re-ranker  ready tiny" in daemon.command("status")
    assert order(daemon) == ["brake.md", "wash.md"]
    why = read(daemon, "why")
    assert why.count("rerank 0.") == 2
    assert "brake.md is number 1 of 2" in (daemon.at("alice") / f"{Q.format('why')}&path=memory%2Fbrake.md").read_text()
    recalled = read(daemon, "recall")
    assert recalled.index("brake stuck") < recalled.index("the car is clean")

    # The next answers are without it, and say so: above the hits, in :why, in the status.
    (folder / "model.onnx").unlink()
    configured(daemon, f"{{model: {folder}, top: 40, timeout_s: 60}}")
    daemon.command("reload")
    wait(lambda: daemon.status()["reranker"]["state"] == "failed")
    for view in ("search", "recall", "why"):
        assert "re-ranker unavailable: no cross-encoder in" in read(daemon, view).splitlines()[0]
    assert order(daemon)[0] == "wash.md"
    assert f"re-ranker  failed tiny (no cross-encoder in {folder}" in daemon.command("status")

    daemon.settings("embedding: {enabled: false}\n")
    daemon.command("reload")
    assert daemon.status()["reranker"] == {"state": "off"} and "re-ranker" not in read(daemon, "search")


@pytest.mark.logs("no re-ranker: ", KILLED)  # a mount that is replaced on a busy machine may be late to leave
def test_an_endpoint_that_is_not_there_leaves_answers_as_they_were_and_is_told_of(daemon: Daemon) -> None:
    configured(daemon, "{endpoint: 'http://127.0.0.1:1/v1/rerank', name: some}")
    daemon.mounts("alice")
    daemon.start()
    (daemon.at("alice") / "memory/wash.md").write_text(WASH)
    wait(lambda: daemon.status()["reranker"]["state"] == "failed")
    assert "cannot be reached" in daemon.status()["reranker"]["reason"]
    first = read(daemon, "recall").splitlines()[0]
    assert "re-ranker unavailable: cannot be reached" in first
    assert order(daemon) == ["wash.md"]
