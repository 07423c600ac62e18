"""avmfs.adapters.crewai: what CrewAI's own storage answers, and what is there as files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import Invalid
from tests.cli.shells import Shell

pytest.importorskip("crewai.memory.storage.backend")

from crewai import Memory
from crewai.memory.storage.backend import EmbeddingDimensionMismatchError, StorageBackend
from crewai.memory.storage.lancedb_storage import LanceDBStorage
from crewai.memory.types import MemoryRecord

from avmfs.adapters.crewai import AvmStorage

pytestmark = pytest.mark.filterwarnings("default")  # CrewAI's own

SCOPES = ("/", "/team", "/team/a:b", "/team/über", "/other")
BORN = datetime(2026, 3, 1)


@pytest.fixture
def avm(alone: Shell) -> Iterator[AVM]:
    with AVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
        yield avm


def records() -> list[MemoryRecord]:
    rnd = random.Random(7)
    made = []
    for number in range(20):
        vector = [rnd.random() for _ in range(5)]
        length = sum(each * each for each in vector) ** 0.5
        made.append(
            MemoryRecord(
                id=f"id-{number}",
                content=f"Umbrella {number}",
                scope=SCOPES[number % len(SCOPES)],
                categories=[f"c{number % 3}", "all"],
                metadata={"n": number, "even": number % 2 == 0},
                created_at=BORN + timedelta(hours=number),
                embedding=[each / length for each in vector],
            )
        )
    return made


def told(storage: Any) -> list[Any]:
    info = [storage.get_scope_info(scope) for scope in ("/", "/team", "/nowhere")]
    return [
        [each.id for each in storage.list_records(limit=7, offset=3)],
        [each.id for each in storage.list_records("/team")],
        [storage.list_scopes(scope) for scope in ("/", "/team", "/nowhere")],
        [storage.list_categories(scope) for scope in (None, "/team")],
        [storage.count(scope) for scope in (None, "/", "/team", "/nowhere")],
        [(each.record_count, each.categories, each.oldest_record, each.newest_record) for each in info],
        [
            [each.id for each, _ in storage.search([1.0, 0, 0, 0, 0], limit=4, **wanted)]
            for wanted in ({}, {"scope_prefix": "/team"}, {"categories": ["c1"]}, {"metadata_filter": {"even": True}})
        ],
    ]


def test_what_crewais_own_storage_answers_this_answers(avm: AVM, tmp_path: Path) -> None:
    ours, theirs = AvmStorage(avm), LanceDBStorage(path=str(tmp_path / "lance"))
    assert isinstance(ours, StorageBackend) and ours.search([1.0]) == [] and ours.count() == 0
    for storage in (ours, theirs):
        storage.save(records())
    assert told(ours) == told(theirs)
    for given in (
        {"record_ids": ["id-3", "none"]},
        {"categories": ["c2"], "scope_prefix": "/team"},
        {"metadata_filter": {"n": 10}},
        {"older_than": BORN + timedelta(hours=3)},
    ):
        assert ours.delete(**given) == theirs.delete(**given) > 0, given
        assert told(ours) == told(theirs), given
    changed = next(each for each in records() if each.id == "id-9").model_copy(update={"content": "A hat"})
    for storage in (ours, theirs):
        storage.update(changed)
        assert storage.get_record("id-9").content == "A hat" and storage.get_record("id-3") is None
    for scope in ("/team", None):
        for storage in (ours, theirs):
            storage.reset(scope)
        assert ours.count() == theirs.count()
    assert ours.count() == 0


def test_records_are_files_that_others_find_and_change(avm: AVM, caplog: pytest.LogCaptureFixture) -> None:
    storage = AvmStorage(avm)
    asyncio.run(storage.asave(records()[:2]))
    assert "Umbrella 1" in avm.read("/memory/private/alice/crewai/team/id-1.json")
    assert {each["path"] for each in avm.search("umbrella")} == {
        "/memory/private/alice/crewai/id-0.json",
        "/memory/private/alice/crewai/team/id-1.json",
    }
    found, score = asyncio.run(storage.asearch([1.0, 0, 0, 0, 0], scope_prefix="/team"))[0]
    assert found.id == "id-1" and 0 < score < 1 and found.embedding == pytest.approx(records()[1].embedding)
    moved = found.model_copy(update={"scope": "/other", "embedding": None})
    AvmStorage(avm).update(moved)  # as another process does
    again = storage.search([1.0, 0, 0, 0, 0], scope_prefix="/other")
    assert [(each.id, value) for each, value in again] == [("id-1", score)] and storage.count("/team") == 0
    same = again[0][0].model_copy(update={"embedding": [0.0, 1.0, 0, 0, 0]})
    AvmStorage(avm).save([same])
    assert storage.search([0.0, 1.0, 0, 0, 0])[0][1] == pytest.approx(1)
    with pytest.raises(EmbeddingDimensionMismatchError):
        storage.search([1.0, 0])
    with pytest.raises(Invalid, match="below /memory"):
        AvmStorage(avm, "/elsewhere")
    whole = storage.count()
    avm.write("/memory/private/alice/crewai/team/broken.json", "by hand")
    assert storage.count() == len(storage.list_records()) == whole and "broken.json" in caplog.text


def test_a_crews_memory_keeps_and_recalls_through_it(avm: AVM) -> None:
    """Without a model: what would ask one is told (scope, categories, importance), and the embedder counts letters."""

    def embedded(texts: list[str]) -> list[list[float]]:
        return [[float(text.lower().count(letter)) + 0.01 for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]

    memory = Memory(storage=AvmStorage(avm, "/memory/shared/crew"), embedder=embedded)
    for text in ("Releases are frozen on Fridays.", "The umbrella is blue."):
        memory.remember(text, scope="/ops", categories=["x"], importance=0.5)
    found = memory.recall("umbrella blue", depth="shallow", limit=1)
    assert [each.record.content for each in found] == ["The umbrella is blue."]
    memory.close()
    assert len([each for each in avm.list("/memory/shared/crew/ops") if each["name"].endswith(".json")]) == 2
