"""A peer is asked in a process of its own; one that is not there is told, and costs its own row only."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.embed import engines
from avmfs.embed.static import StaticEmbedding
from benchmarks import academic, bench_peers
from benchmarks.harness import ROOT
from benchmarks.results import read_json

INTERPRETER = """\
#!{python}
import json, sys
told = json.load(sys.stdin)
assert sys.argv[1].endswith("peer_ops.py") and len(told["turns"][0]["vector"]) == len(told["questions"][0]["vector"])
if sys.argv[2] == "chroma":
    sys.exit("ModuleNotFoundError: No module named 'chromadb'")
hits = [[turn["id"] for turn in told["turns"]][:told["k"]] for _ in told["questions"]]
print("a library's greeting")
print(json.dumps({{"version": "9", "added_s": [0.5] * 6, "asked_s": [0.1] * len(hits), "hits": hits}}))
"""


def test_what_avmfs_does_at_the_first_search_is_in_the_time_of_the_first_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("embedding: {engine: static}\n")
    monkeypatch.setenv("AVM_BENCH_CONFIG", str(tmp_path / "config.yaml"))
    [history] = academic.load(ROOT / "benchmarks/data/locomo.json")
    search, asked = AVM.search, list[str]()

    def slow_at_first(avm: AVM, query: str, **options: Any) -> Any:
        if not asked:
            time.sleep(0.5)
        asked.append(query)
        return search(avm, query, **options)

    monkeypatch.setattr(AVM, "search", slow_at_first)
    seen = bench_peers.Seen()
    bench_peers._ours(seen, history, history.questions)
    assert asked and seen.first_s[0] >= 0.5


def test_peers_stand_beside_avmfs_and_one_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(INTERPRETER.format(python=sys.executable))
    python.chmod(0o755)
    (tmp_path / "config.yaml").write_text("embedding: {engine: static}\n")
    monkeypatch.setenv("AVM_BENCH_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setattr(engines, "make", lambda *_: StaticEmbedding())
    result = tmp_path / "r.json"
    chosen = ["--python", str(python), "--peers", "mem0,chroma"]
    code = bench_peers.main([*chosen, "--local", str(tmp_path), "--json", str(result)])
    report = read_json(result)
    assert (code, list(report.failures)) == (1, ["chroma"]) and "chromadb" in report.failures["chroma"]
    rows: dict[str, list[Any]] = {str(row[0]).split()[0]: list(row) for row in report.tables[0].rows}
    assert list(rows) == ["cosine", "avmfs", "mem0"]
    assert rows["mem0"][:3] == ["mem0 9", 3, 500.0]
    assert rows["mem0"][-1] == 1 and rows["mem0"][6] < rows["mem0"][8]  # six turns: ten hits have all, one has not
    assert rows["avmfs"][2] > 0 and rows["cosine"][2] is None
