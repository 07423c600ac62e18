"""avmfs.adapters.langgraph: what LangGraph's own store in memory does, and what is there as files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from avmfs import AVM
from avmfs.errors import Invalid
from tests.cli.shells import Shell

pytest.importorskip("langgraph.store.base")

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from avmfs.adapters.langgraph import AvmStore

KEYS = ("prefs", "a/b", ".hidden", "..", "50% off?", "x:meta", "über ☂", "@all", "%2F", "tab\there", "a.json")


@pytest.fixture
def avm(alone: Shell) -> Iterator[AVM]:
    with AVM(agent="alice", environ=alone.environ, embeddings=False) as avm:
        yield avm


def filled(store: BaseStore) -> BaseStore:
    for number, key in enumerate(KEYS):
        store.put(
            ("users", f"u{number % 3}"), key, {"n": number, "text": f"likes thing{number}", "in": {"k": number % 2}}
        )
    store.put(("users", "u1", "deep:er", "@x"), "one", {"n": 100, "text": "umbrella", "list": [1, "two"]})
    store.put(("users", "u1"), "gone", {"n": 1})
    store.delete(("users", "u1"), "gone")
    return store


def content(items: Any) -> list[Any]:
    return sorted((item.namespace, item.key, item.value) for item in items)


def test_what_langgraphs_own_store_answers_this_answers(avm: AVM) -> None:
    ours, theirs = filled(AvmStore(avm)), filled(InMemoryStore())
    ours.delete(("nobody",), "never there")
    for number, key in enumerate(KEYS):
        mine, other = (store.get(("users", f"u{number % 3}"), key) for store in (ours, theirs))
        assert mine is not None and other is not None
        assert (mine.namespace, mine.key, mine.value) == (other.namespace, other.key, other.value)
        assert mine.created_at.tzinfo is not None and mine.updated_at >= mine.created_at
    assert ours.get(("users", "u1"), "gone") is None and ours.get(("x",), "y") is None
    filters: list[dict[str, Any] | None] = [
        None,
        {"n": 3},
        {"n": {"$gte": 4, "$lt": 9}},
        {"n": {"$ne": 3}},
        {"in": {"k": 1}},
        {"list": [1, "two"]},
        {"none": None},
    ]
    for prefix in (("users",), ("users", "u1"), ("users", "u1", "deep:er"), ("nobody",)):
        for wanted in filters:
            both = [content(each.search(prefix, filter=wanted, limit=100)) for each in (ours, theirs)]
            assert both[0] == both[1], (prefix, wanted)
    for given in (
        {},
        {"prefix": ("users", "*", "deep:er")},
        {"suffix": ("u2",)},
        {"max_depth": 1},
        {"prefix": ("users",), "max_depth": 2, "limit": 2, "offset": 1},
        {"suffix": ("none",)},
    ):
        assert ours.list_namespaces(**given) == theirs.list_namespaces(**given), given


def test_a_search_ranks_pages_and_scores(avm: AVM) -> None:
    store = AvmStore(avm)
    for number in range(5):
        store.put(("notes",), f"k{number}", {"text": f"Umbrella {number}", "even": number % 2 == 0})
    store.put(("notes",), "other", {"text": "Invoices are paid on Fridays."})
    store.put(("elsewhere",), "k", {"text": "Umbrella"})
    found = store.search(("notes",), query="umbrella", limit=10)
    assert {each.key for each in found} == {f"k{number}" for number in range(5)}
    assert all(each.score is not None and 0 < each.score <= 1 for each in found)
    pages = [store.search(("notes",), query="umbrella", limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [each.key for page in pages for each in page] == [each.key for each in found]
    assert {each.key for each in store.search(("notes",), query="umbrella", filter={"even": False})} == {"k1", "k3"}
    assert [each.key for each in store.search(("notes",), limit=2)] == ["other", "k4"]  # the newest first
    assert all(each.score is None for each in store.search(("notes",)))
    assert store.search(("nowhere",), query="umbrella") == []


def test_files_that_stand_beside_the_items_take_no_places_of_a_search(avm: AVM) -> None:
    store = AvmStore(avm, "/memory/shared/team")
    for number in range(12):
        avm.write(f"/shared/team/{number}.md", "umbrella " * 5)
    for number in range(3):
        store.put(
            ("items",),
            f"k{number}",
            {"text": f"One umbrella, and {number} other things that are not to be lost in the rain"},
        )
    found = store.search((), query="umbrella", limit=20)
    assert {each.key for each in found} == {"k0", "k1", "k2"}
    pages = [store.search((), query="umbrella", limit=1, offset=offset) for offset in range(4)]
    assert [[each.key for each in page] for page in pages] == [*([each.key] for each in found), []]
    assert len(store.search((), query="umbrella", limit=5)) == 3


def test_items_are_files_with_a_past_and_a_ttl(avm: AVM, caplog: pytest.LogCaptureFixture) -> None:
    store = AvmStore(avm)
    store.put(("users", "u1"), "prefs", {"theme": "dark"}, ttl=90)
    path = "/memory/private/alice/langgraph/users/u1/prefs.json"
    assert avm.read(path) == '{\n  "theme": "dark"\n}\n' and avm.read(f"{path}:ttl").startswith("1h")
    avm.write(f"{path}:ttl", "5m")
    store.get(("users", "u1"), "prefs", refresh_ttl=False)
    assert not avm.read(f"{path}:ttl").startswith("1h")
    store.get(("users", "u1"), "prefs")
    assert avm.read(f"{path}:ttl").startswith("1h")
    store.put(("users", "u1"), "prefs", {"theme": "light"})
    assert avm.read(f"{path}:ttl").strip() == "never" and len(avm.history(path)) == 2
    avm.write(path, "by hand")
    with pytest.raises(Invalid, match=r"prefs\.json.*not JSON|not JSON.*prefs\.json"):
        store.get(("users", "u1"), "prefs")
    store.put(("users", "u2"), "prefs", {"theme": "by hand"})
    for query in ("hand", None):
        assert [item.namespace for item in store.search(("users",), query=query)] == [("users", "u2")]
    assert "prefs.json" in caplog.text


def test_a_search_renews_what_it_hands_over_and_nothing_else(avm: AVM) -> None:
    store = AvmStore(avm)
    for number in range(3):
        store.put(("t",), f"k{number}", {"n": number}, ttl=60)
        avm.write(f"/memory/private/alice/langgraph/t/k{number}.json:ttl", "5m")
    store.search(("t",), filter={"n": 1}, limit=1)
    store.search(("t",), offset=3)
    lives = [avm.read(f"/memory/private/alice/langgraph/t/k{number}.json:ttl")[:2] for number in range(3)]
    assert lives == ["4m", "59", "4m"] or lives == ["5m", "1h", "5m"], lives
    with pytest.raises(Invalid, match="below /memory"):
        AvmStore(avm, "/shared/x")


def test_an_item_that_goes_while_it_is_asked_for_is_no_error(avm: AVM, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = AvmStore(avm), avm.write

    def put() -> None:
        for key in ("goes", "stays"):
            store.put(("t",), key, {"key": key}, ttl=60)

    def deleted(path: str, *said: Any) -> int | None:
        """By another process, just before the item is renewed or is given its ttl."""
        if path.endswith(("goes.json:ttl", "goes.json:meta")):
            avm.delete(path.rpartition(":")[0])
        return write(path, *said)

    put()
    monkeypatch.setattr(avm, "write", deleted)
    assert "stays" in {item.key for item in store.search(("t",))}
    monkeypatch.undo()
    put()
    monkeypatch.setattr(avm, "write", deleted)
    assert store.get(("t",), "goes") is None and store.get(("t",), "stays") is not None
    put()
    assert store.get(("t",), "goes") is None


def test_agents_share_a_store_below_shared_and_no_other(alone: Shell, avm: AVM) -> None:
    with AVM(agent="bob", environ=alone.environ, embeddings=False) as bobs:
        AvmStore(avm).put(("a",), "mine", {"x": 1})
        AvmStore(avm, "/memory/shared/graph").put(("a",), "ours", {"x": 2})
        assert AvmStore(bobs).search(("a",)) == [] and AvmStore(bobs).list_namespaces() == []
        found = AvmStore(bobs, "/memory/shared/graph").get(("a",), "ours")
        assert found is not None and found.value == {"x": 2}


def test_a_batch_does_its_operations_in_order_and_refuses_what_is_none(avm: AVM) -> None:
    store = AvmStore(avm)
    ops = [PutOp(("a",), "k", {"x": 1}), GetOp(("a",), "k"), PutOp(("a",), "k", None), SearchOp(("a",))]
    done = asyncio.run(store.abatch(ops))
    assert done[0] is None and done[1].value == {"x": 1} and done[3] == []
    store.put(("a",), "k", {"x": 1})
    with pytest.raises(Invalid, match=r"\$like"):
        store.search(("a",), filter={"x": {"$like": "1"}})
    with pytest.raises(ValueError, match=r"u\.1"):
        store.batch([GetOp(("u.1",), "k")])


def test_a_graph_has_it_as_its_store(avm: AVM) -> None:
    graphs = pytest.importorskip("langgraph.graph")

    def note(state: dict[str, Any], *, store: BaseStore) -> dict[str, Any]:
        store.put(("facts",), "one", {"text": state["said"]})
        return {"said": str(len(store.search(("facts",))))}

    graph = graphs.StateGraph(dict)
    graph.add_node("note", note)
    graph.add_edge(graphs.START, "note")
    assert graph.compile(store=AvmStore(avm)).invoke({"said": "it rains"})["said"] == "1"
    found = AvmStore(avm).get(("facts",), "one")
    assert found is not None and found.value == {"text": "it rains"}
