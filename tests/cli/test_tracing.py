"""Spans that a program gets which has set OpenTelemetry up, and that nothing is loaded where none has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import NotFound

LIMIT_S = 200.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``spans()`` gives what has ended since the last time: (name, kind, status, attributes)."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="pip install 'avmfs[otel]'")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))

    def ended() -> list[tuple[str, str, str, dict[str, Any]]]:
        found = exporter.get_finished_spans()
        exporter.clear()
        return [
            (each.name, each.kind.name, each.status.status_code.name, dict(each.attributes or {})) for each in found
        ]

    yield ended
    provider.shutdown()


def environ(folder: Path) -> dict[str, str]:
    return {f"AVM_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}


def test_operations_of_memory_are_spans_by_the_conventions(
    spans: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AVM(agent="alice", environ=environ(tmp_path), embeddings=False) as avm:
        memory, store = avm.agent_memory(), str(tmp_path / "data/avm.db")
        avm.write("/shared/a.md", "the ferry leaves at nine")
        name, kind, status, told = spans()[0]
        assert (name, kind, status) == ("upsert_memory", "CLIENT", "UNSET")
        assert told == {
            "gen_ai.operation.name": "upsert_memory",
            "gen_ai.memory.store.id": store,
            "gen_ai.memory.record.id": "/shared/a.md",
            "gen_ai.memory.record.count": 1,
        }
        memory.batch_remember(["one and one", "two and two"])
        assert [each[3]["gen_ai.memory.record.count"] for each in spans() if each[0] == "upsert_memory"] == [2]
        assert "nine" in memory.recall("ferry")
        [searched] = [each[3] for each in spans() if each[0] == "search_memory"]
        assert searched["gen_ai.memory.record.count"] == 1 and "gen_ai.memory.query.text" not in searched
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        avm.search("ferry")
        assert spans()[0][3]["gen_ai.memory.query.text"] == "ferry"
        avm.delete("/shared/a.md")
        assert spans()[-1][0] == "delete_memory"
        with pytest.raises(NotFound):
            avm.delete("/shared/a.md")
        name, _, status, told = spans()[-1]
        assert (name, status, told["error.type"]) == ("delete_memory", "ERROR", "ENOENT")
        avm.list("/shared")
        assert spans() == []


def test_where_nobody_traces_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom avmfs import AVM\n"
        "with AVM(agent='alice', embeddings=False) as avm:\n    avm.write('/shared/a.md', 'x'); avm.search('x')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ(tmp_path) | {"PATH": ""}, capture_output=True, text=True,
        timeout=LIMIT_S, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
