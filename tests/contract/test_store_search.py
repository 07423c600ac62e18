"""The contract of a store: what searching is made of, and that nothing in it tells of what the asker cannot see."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.search import signals
from avmfs.search.engine import Answer, Engine
from avmfs.search.indexer import embed_pending
from avmfs.search.recall import recall
from avmfs.store.commands.renaming import EXCHANGE
from avmfs.store.identity import OPERATOR
from avmfs.store.index import passage_columns
from avmfs.store.index import scan as scanning
from avmfs.store.index.columns import SESSION_GAP, Columns, arrange, ordered
from avmfs.store.index.passage_columns import PassageColumns
from avmfs.store.index.postings import PostingsCache
from avmfs.store.index.vectors import VectorTable
from avmfs.store.schema import database
from avmfs.text import passages, segment
from avmfs.text.tokens import TokenCounter
from tests.contract.store_world import ALICE, BOB, World
from tests.hashing import HashingEmbedding

EMBEDDER = HashingEmbedding()
MODEL = EMBEDDER.model_id
COUNTER = TokenCounter()
NOW = 1_772_879_400 * 10**9  # 2026-03-07 10:30
WORDS = [
    "market",
    "risk",
    "coffee",
    "garden",
    "plan",
    "budget",
    "NVDA",
    "chips",
    "tea",
    "lisbon",
    "flight",
    "dentist",
    "vacuum",
    "disk",
    "backup",
    "tabs",
]


def text(random_: random.Random, length: int) -> bytes:
    return " ".join(random_.choices(WORDS, k=length)).encode()


def indexed(data: str) -> list[str]:
    return [term for start, stop in passages.cut(data) for term in segment.terms(data[start:stop])]


def settled(world: World) -> None:
    embed_pending(world.store, EMBEDDER, MODEL)
    assert world.store.queue_lengths() == (0, 0)


def ask(world: World, who: Principal, q: str, **more: Any) -> Answer:
    return Engine(world.store.search_index, EMBEDDER, COUNTER).search(who, q, limit=50, now=NOW, **more)


def columns(table: Columns) -> list[object]:
    """All that a score can be made of, but the numbers of voices, which mean nothing across processes."""
    return [
        column.tobytes()
        for column in (
            table.passages,
            table.documents,
            table.lengths,
            table.times,
            table.flags,
            table.previous,
            table.next,
            table.sessions,
        )
    ]


def shown(answer: Answer) -> list[object]:
    return [
        (s.hit.path, s.hit.passage, s.score, s.relevance, dict(s.parts), dict(s.evidence), s.hit.text, s.hit.version)
        for s in answer.hits
    ]


def test_postings_lengths_and_corpus_are_those_of_the_visible_text(world: World) -> None:
    random_ = random.Random(1)
    seen: Counter[str] = Counter()
    count = total = 0
    for number in range(30):
        data = text(random_, random_.randrange(1, 400))
        world.write(ALICE, f"/memory/n/{number}.md", data)
        terms = indexed(data.decode())
        seen.update(terms)
        count += len(passages.cut(data.decode()))
        total += len(terms) + 1  # its name
    for number in range(10):
        world.write(ALICE, f"/memory/private/alice/{number}.md", text(random_, 100))
    world.drain()
    index = world.store.search_index(BOB)
    for term in set(seen) | {"nowhere"}:
        assert len(index.postings([term])[0]) == seen[term], term
    every = np.unique(np.concatenate([one.passages for one in index.postings(list(seen))]))
    assert index.table().passages.tolist() == every.tolist() and len(every) == count
    assert index.table().lengths.sum() == total
    assert index.below((b"memory", b"n")) == frozenset(every.tolist()) and index.below(()) is None
    assert index.below((b"memory", b"private", b"alice")) == frozenset() == index.below((b"nowhere",))
    assert len(world.store.search_index(ALICE).postings(["tea"])[0]) > seen["tea"] > 0


def test_a_file_is_found_by_the_words_of_its_name(world: World) -> None:
    engine = Engine(world.store.search_index, None, COUNTER)

    def hits(q: str, who: Principal = BOB) -> list[str]:
        world.drain()
        return [scored.hit.path.decode() for scored in engine.search(who, q).hits]

    world.write(ALICE, "/memory/Quarterly-Report_2026.md", b"Revenue of the second quarter rose. " * 100)
    world.write(ALICE, "/memory/plan.md", b"the plan is to plan")
    world.write(ALICE, "/memory/private/alice/report.md", b"hers")
    assert hits("reports") == ["/memory/Quarterly-Report_2026.md"]
    assert set(hits("report", ALICE)) == {*hits("reports"), "/memory/private/alice/report.md"}
    assert hits("2026") == ["/memory/Quarterly-Report_2026.md"]
    assert hits("md") == [] and len(world.store.search_index(BOB).postings(["plan"])[0]) == 2  # it says that itself
    world.rename(ALICE, "/memory/Quarterly-Report_2026.md", "/memory/summary.md")
    assert hits("2026") == [] and hits("summary") == ["/memory/summary.md"] == hits("revenue")
    world.rename(ALICE, "/memory/summary.md", "/memory/plan.md", EXCHANGE)
    assert hits("summary") == ["/memory/summary.md"] and hits("revenue") == ["/memory/plan.md"]


def test_what_moves_out_of_what_is_ignored_is_found_and_what_moves_there_is_not(world: World) -> None:
    def found() -> list[str]:
        world.drain()
        engine = Engine(world.store.search_index, None, COUNTER)
        return sorted(scored.hit.path.decode() for scored in engine.search(BOB, "vault code").hits)

    world.write(ALICE, "/memory/plan.swp", b"The vault code is 4711")
    world.write(ALICE, "/memory/repo/.git/x/note.md", b"The other vault code is 12")
    assert found() == []
    for old, new, expected in (
        ("/memory/plan.swp", "/memory/plan.md", ["/memory/plan.md"]),
        ("/memory/plan.md", "/memory/plan.md~", []),
        ("/memory/plan.md~", "/memory/plan", ["/memory/plan"]),
        ("/memory/repo/.git/x/note.md", "/memory/repo/note.md", ["/memory/plan", "/memory/repo/note.md"]),
        ("/memory/repo/note.md", "/memory/repo/.git/x/note.md", ["/memory/plan"]),
        ("/memory/repo/.git/x", "/memory/repo/x", ["/memory/plan", "/memory/repo/x/note.md"]),
        ("/memory/repo", "/memory/.git", ["/memory/plan"]),
        ("/memory/.git", "/memory/git", ["/memory/git/x/note.md", "/memory/plan"]),
    ):
        world.rename(ALICE, old, new)
        assert found() == expected, (old, new)
    with world.reading(ALICE) as reader:
        assert reader.unindexed(world.document(ALICE, "/memory/plan").id) is None
    world.mkdir(ALICE, "/memory/.git")
    world.write(ALICE, "/memory/tea.swp", b"tea")
    found()
    world.rename(ALICE, "/memory/git", "/memory/.git", EXCHANGE)
    world.rename(ALICE, "/memory/plan", "/memory/tea.swp", EXCHANGE)
    assert found() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  \n ",
        b"\0\1",
        b"\xff\xfe",
        "日本語の文書".encode(),
        "İıſΣ ÀÉ x_y-z".encode(),
        b"a" * 30_000,
        bytes(range(1, 256)),
        "𝔘𝔫𝔦 ﷺ \u0300\u0301 \u200d".encode(),
    ],
)
def test_any_bytes_can_be_drained_and_removed(world: World, data: bytes) -> None:
    world.write(ALICE, "/memory/f", data)
    world.drain()
    index = world.store.search_index(BOB)
    try:
        words = indexed(data.decode())
    except UnicodeDecodeError:
        words = []
    document = world.document(ALICE, "/memory/f").id
    with world.reading(ALICE) as reader:
        if reader.unindexed(document) is None:
            for word, times in Counter(words).items():
                assert len(index.postings([word])[0]) == times, word
    world.write(ALICE, "/memory/f", b"something else")
    world.drain()
    assert len(np.concatenate([one.passages for one in index.postings(["els", "someth"])])) >= 1
    world.unlink(ALICE, "/memory/f")
    assert len(index.table().passages) == 0


def test_remembered_postings_are_those_that_sqlite_would_give_now(world: World) -> None:
    random_ = random.Random(5)
    index = world.store.search_index(ALICE)

    def now() -> list[list[object]]:
        table, found = index.table(), []
        for one in index.postings(["coffe", "tea", "nvda", "unheardof"]):
            here = table.find(one.passages) >= 0
            found.append([one.passages[here].tolist(), one.times[here].tolist()])
        return found

    def anew() -> list[list[object]]:
        index._catalogue.postings = PostingsCache()
        return now()

    for round_ in range(6):
        for n in range(60):
            where = ("/memory", "/memory/private/alice")[n % 2]
            world.write(ALICE, f"{where}/{round_}-{n}", text(random_, 20))
        if round_:
            for n in range(0, 60, 7):
                world.write(ALICE, f"/memory/{round_ - 1}-{2 * (n // 2)}", text(random_, 30))
        settled(world)
        known = now()
        assert known == anew()
        assert len(known[0][0]) > 50 * round_  # type: ignore[arg-type]
    assert now() == now()


class Counting(apsw.Connection):
    registered = 0

    def register_fts5_function(self, name: str, function: Any) -> None:
        self.registered += 1
        super().register_fts5_function(name, function)


def test_a_connection_gets_what_counts_occurrences_once(tmp_path: Path) -> None:
    """SQLite keeps each function until the connection is closed."""
    database.prepare(tmp_path / "avm.db")
    known = PostingsCache()
    with contextlib.closing(Counting(str(tmp_path / "avm.db"))) as db:
        for count in range(1, 60):
            db.execute(
                "insert into passage(document, part, scope, len, start, stop, flags) values(1, 0, 1, 2, 0, 1, 0)"
            )
            db.execute("insert into terms(rowid, t) values(?, '1xtea 1xtea')", (db.last_insert_rowid(),))
            assert known.of(db, ["1xtea"]).times.tolist() == [2] * count
        assert db.registered == 1


def test_a_phrase_is_found_where_it_stands_and_may_be_seen(world: World) -> None:
    world.write(ALICE, "/memory/a", b"we met at the White House on Monday")
    world.write(ALICE, "/memory/b", b"the house is white")
    world.write(ALICE, "/memory/private/alice/c", b"my white house")
    settled(world)
    wanted = segment.terms("white houses")
    for who, count in ((ALICE, 2), (BOB, 1)):
        index = world.store.search_index(who)
        ids = index.phrase(wanted)
        assert len(ids) == count and (index.table().find(ids) >= 0).all()
    assert not len(world.store.search_index(BOB).phrase(["my", "white"]))
    answer = ask(world, BOB, 'the "white house"')
    assert answer.hits[0].hit.path == b"/memory/a" and answer.hits[0].parts["phrase"] > 0


def test_what_is_not_indexed_has_a_reason(world: World) -> None:
    for name, data in (("a.swp", b"words"), (".git/config", b"words"), ("big", b"words " * 20_000), ("bin", b"\0")):
        world.write(ALICE, f"/memory/{name}", data)
    world.do(ALICE, "symlink", **world.at(ALICE, "/memory/l"), target=b"words")
    world.drain()
    with world.reading(BOB) as reader:
        reasons = [
            reader.unindexed(world.document(BOB, f"/memory/{n}").id) for n in ("a.swp", ".git/config", "big", "bin")
        ]
    assert all(reasons) and len(world.store.search_index(BOB).postings(["word"])[0]) == 0
    world.rename(ALICE, "/memory/bin", "/memory/text")
    world.write(ALICE, "/memory/text", b"words")
    world.drain()
    with world.reading(BOB) as reader:
        assert reader.unindexed(world.document(BOB, "/memory/text").id) is None


def test_draining_goes_in_steps_and_only_once(world: World) -> None:
    for number in range(10):
        world.write(ALICE, f"/memory/{number}", b"word %d" % number)
        world.write(ALICE, f"/memory/{number}", b"word %d again" % number)
    before = world.store.queue_lengths()[0]
    assert before <= 10, "a document is queued once"
    if world.mode == "direct":
        assert world.do(ALICE, "drain_lexical", limit=4) == {"done": 4, "left": 6}
    world.drain()
    assert world.do(ALICE, "drain_lexical") == {"done": 0, "left": 0}
    assert len(world.store.search_index(BOB).postings(["word"])[0]) == 10


def test_a_drain_stops_before_it_has_held_the_writer_up(world: World) -> None:
    """Documents of half a megabyte are indexed a few at a time: others wait for the transaction."""
    lines = " ".join(WORDS).encode() * 100
    for number in range(40):
        world.write(ALICE, f"/memory/{number}.md", lines[:60_000])
    reply = world.do(ALICE, "drain_lexical", limit=40)
    assert reply["done"] < 40 or world.mode == "attached"
    world.drain()
    assert len(world.store.search_index(BOB).table().passages) == 40 * len(passages.cut(lines[:60_000].decode()))


def vector(text_: str, embedder: HashingEmbedding = EMBEDDER) -> NDArray[np.float32]:
    return embedder.embed_batch([text_]).vectors[0]


def nearest(
    world: World, who: Principal, q: str = "coffee", embedder: HashingEmbedding = EMBEDDER, model: str | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All that ``who`` may see of the model's vectors."""
    index = world.store.search_index(who)
    return index.nearest(model or embedder.model_id, vector(q, embedder), 10_000, np.zeros(0, np.int64))


def test_what_was_nearest_is_remembered_until_a_vector_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "ANSWERED", 3 * 21 + 1)
    for number in range(20):
        world.write(ALICE, f"/memory/{number}", b"coffee %d" % number)
    world.write(ALICE, "/memory/private/alice/own", b"coffee of my own")
    settled(world)
    scans: list[frozenset[int]] = []
    scan = VectorTable.nearest

    def counted(table: VectorTable, scopes: frozenset[int], *more: Any) -> Any:
        scans.append(scopes)
        return scan(table, scopes, *more)

    monkeypatch.setattr(VectorTable, "nearest", counted)

    def ids(who: Principal, q: str = "coffee") -> list[int]:
        found, cosines = nearest(world, who, q)
        assert len(found) == len(cosines)
        return found.tolist()

    assert (len(ids(BOB)), len(ids(ALICE)), len(ids(BOB, "tea"))) == (20, 21, 20) and len(scans) == 3
    assert (len(ids(BOB)), len(ids(ALICE)), len(ids(BOB, "tea"))) == (20, 21, 20) and len(scans) == 3
    world.rename(ALICE, "/memory/private/alice/own", "/memory/own")
    settled(world)
    assert len(ids(BOB)) == 21 and len(scans) == 4
    world.unlink(ALICE, "/memory/3")
    settled(world)  # its vectors go with the next step of making words
    assert len(ids(BOB)) == len(ids(BOB)) == 20 and len(scans) == 5
    assert ids(BOB, "one") == ids(BOB, "two") and len(scans) == 7
    ids(BOB)
    assert len(scans) == 7, "three fit"
    ids(BOB, "three")
    assert len(scans) == 8
    ids(BOB)
    assert len(scans) == 8, "asked for since"
    ids(BOB, "one")
    assert len(scans) == 9, "the memory is bounded"


def test_vectors_come_and_go_with_their_passages(world: World) -> None:
    for name, data in (("a", b"coffee beans"), ("b", b"tea leaves"), ("long", text(random.Random(3), 900))):
        world.write(ALICE, f"/memory/{name}", data)
    world.write(ALICE, "/memory/private/alice/p", b"coffee secrets")
    assert world.store.pending_passages(MODEL, 100) == [] or world.mode == "attached", "words come first"
    world.drain()
    waiting = world.store.pending_passages(MODEL, 100)
    stored = world.rows("select id, document from passage order by id")
    assert sorted((number, document) for number, document, _ in waiting) == stored
    assert "coffee beans" in [found for _, _, found in waiting]
    assert len(world.store.pending_passages(MODEL, 2)) == 2
    assert b"".join(t.encode() for n, d, t in sorted(waiting) if d == world.document(ALICE, "/memory/long").id) == (
        world.bytes(ALICE, "/memory/long")
    )
    settled(world)
    ids, cosines = nearest(world, BOB)
    assert len(ids) == len(waiting) - 1 == len(cosines)
    assert ids.tolist() == sorted(ids.tolist()) and max(cosines) > 0.5
    assert len(nearest(world, ALICE)[0]) == len(waiting)
    assert len(nearest(world, BOB, model="another model")[0]) == 0
    world.write(ALICE, "/memory/a", b"cocoa")
    world.drain()
    assert world.do(OPERATOR, "put_vectors", model=MODEL, vectors=[[int(ids[0]), vector("coffee").tobytes()]])[
        "stored"
    ] in (
        0,
        1,
    )
    assert len(world.store.pending_passages(MODEL, 100)) == 1
    assert world.store.idle_documents(MODEL, 10) == []
    settled(world)
    found, cosines = nearest(world, BOB, "cocoa")
    assert len(found) == len(ids)
    assert max(cosines) > 0.99
    world.rename(ALICE, "/memory/b", "/memory/private/alice/b")
    assert len(nearest(world, BOB)[0]) == len(ids) - 1
    settled(world)
    assert len(nearest(world, ALICE)[0]) == len(waiting)
    world.unlink(ALICE, "/memory/a")
    world.drain()
    assert len(nearest(world, BOB)[0]) == len(ids) - 2


def test_another_model_queues_what_lacks_its_vectors(world: World) -> None:
    world.write(ALICE, "/memory/a", b"coffee")
    settled(world)
    other = HashingEmbedding(32)
    assert world.do(OPERATOR, "follow_model", model=MODEL, dimension=64)["queued"] == 0
    assert world.do(OPERATOR, "follow_model", model=other.model_id, dimension=32)["queued"] == 1
    embed_pending(world.store, other, other.model_id)
    assert len(nearest(world, BOB, "coffee", other)[0]) == 1
    assert len(nearest(world, BOB)[0]) == 0
    world.reindex()
    embed_pending(world.store, other, other.model_id)
    assert len(nearest(world, BOB, "coffee", other)[0]) == 1
    world.write(ALICE, "/memory/blank", b" ")
    embed_pending(world.store, other, other.model_id)
    assert world.store.queue_lengths() == (0, 0), "nothing to embed: not queued for ever"


def test_nothing_private_moves_a_score(world: World) -> None:
    random_ = random.Random(2)
    questions = [
        "coffee",
        "market risk",
        "flight to lisbon",
        "budget plan garden",
        "NVDA",
        "unheard-of word",
        "when does tea risk",
        "what did carol say about coffee in March 2026?",
        "what did alice plan yesterday",
    ]
    for number in range(60):
        said = (b"", b"Carol: ", b"[2026-03-05] Dave: ")[number % 3]
        world.write(ALICE, f"/memory/pub/{number}.md", said + text(random_, random_.randrange(3, 60)))
    world.write(BOB, "/memory/private/bob/own.md", b"coffee budget of bob")
    settled(world)
    bob = {q: [shown(ask(world, BOB, q, mode=mode)) for mode in ("hybrid", "lexical", "semantic")] for q in questions}
    alice = {q: shown(ask(world, ALICE, q)) for q in questions}
    index = world.store.search_index(BOB)
    statistics = columns(index.table()), [part.tobytes() for part in nearest(world, BOB)]
    for number in range(80):
        world.write(ALICE, f"/memory/private/alice/{number}.md", text(random_, random_.randrange(3, 300)))
        if number % 7 == 0:
            # Between bob's own notes, in place and time: neither his context nor his sessions may know of it.
            world.write(ALICE, f"/memory/pub/limited{number}.md", b"Carol: " + text(random_, 50) + b"?")
            world.share(ALICE, f"/memory/pub/limited{number}.md", "alice")
            at = world.node(ALICE, f"/memory/pub/{number % 60}.md").mtime + 1
            world.do(ALICE, "set_attributes", node=world.node(ALICE, f"/memory/pub/limited{number}.md").id, mtime=at)
    settled(world)
    for q in questions:
        for mode, before in zip(("hybrid", "lexical", "semantic"), bob[q], strict=True):
            assert shown(ask(world, BOB, q, mode=mode)) == before, (q, mode)
    index = world.store.search_index(BOB)
    assert (columns(index.table()), [part.tobytes() for part in nearest(world, BOB)]) == statistics
    assert any(shown(ask(world, ALICE, q)) != alice[q] for q in questions), "hers did move"
    for number in range(80):
        world.unlink(ALICE, f"/memory/private/alice/{number}.md")
    for q in questions:
        assert shown(ask(world, BOB, q)) == bob[q][0]


def test_what_has_ended_is_in_no_answer_while_its_index_rows_are_there(world: World) -> None:
    random_ = random.Random(6)
    for number in range(40):
        world.write(ALICE, f"/memory/{number}.md", text(random_, random_.randrange(3, 60)))
    settled(world)
    before = shown(ask(world, BOB, "coffee budget"))
    for number in range(0, 30, 3):
        world.unlink(ALICE, f"/memory/{number}.md")
        world.rename(ALICE, f"/memory/{number + 1}.md", f"/memory/{number + 2}.md")
    ended = {f"/memory/{number}.md".encode() for number in range(30) if number % 3 < 2}
    answers: Any = [[shown(ask(world, BOB, q)) for q in ("coffee budget", "tea", "lisbon flight")]]
    world.drain()
    answers.append([shown(ask(world, BOB, q)) for q in ("coffee budget", "tea", "lisbon flight")])
    paths = [{hit[0] for hit in answer} for answer in answers[0]]
    assert answers[0][0] != before and not any(ended & found for found in paths) and all(paths)
    # What a rename has replaced has no words until they are made anew; nothing else may have changed.
    anew = {f"/memory/{number}.md".encode() for number in range(30) if number % 3 == 2}
    assert [{path for path in found if path not in anew} for found in paths] == [
        {hit[0] for hit in answer if hit[0] not in anew} for answer in answers[1]
    ]
    assert world.rows("select count(*) from ended") == [(0,)]


def test_hits_are_below_the_directory_and_say_what_is_known(world: World) -> None:
    world.write(ALICE, "/memory/a/x.md", b"coffee at nine")
    world.write(ALICE, "/memory/ab/y.md", b"coffee at ten")
    world.tag(ALICE, "/memory/a/x.md", "t")
    world.do(ALICE, "merge_meta", node=world.node(ALICE, "/memory/a/x.md").id, importance=0.9, user={})
    settled(world)
    answer = ask(world, BOB, "coffee", under=(b"memory", b"a"))
    assert [s.hit.path for s in answer.hits] == [b"/memory/a/x.md"]
    hit, document = answer.hits[0].hit, world.document(ALICE, "/memory/a/x.md")
    assert (hit.handle, hit.author, hit.importance, hit.tags, hit.version, hit.text, hit.whole) == (
        document.handle,
        "alice",
        0.9,
        ("t",),
        1,
        "coffee at nine",
        True,
    )
    assert hit.created == document.created and hit.document == document.id
    assert ask(world, BOB, "coffee", under=(b"memory", b"nowhere")).hits == ()
    assert answer.seq == world.newest_seq()


def test_a_snapshots_number_does_not_tell_of_others(world: World) -> None:
    world.write(ALICE, "/memory/f", b"1")
    before = world.store.search_index(BOB).seq()
    world.write(ALICE, "/memory/private/alice/f", b"1")
    assert world.store.search_index(BOB).seq() == before
    assert world.store.search_index(ALICE).seq() == world.newest_seq() > before


def test_the_columns_follow_moves_times_and_ttls(world: World) -> None:
    for number in range(4):
        world.write(ALICE, f"/memory/a/{number}.md", b"Carol: tea %d" % number)
        at = NOW + number * 10**9
        world.do(ALICE, "set_attributes", node=world.node(ALICE, f"/memory/a/{number}.md").id, mtime=at)
    world.drain()
    index = world.store.search_index(BOB)

    def chain() -> list[list[str]]:
        """Names in the order of each session."""
        table = index.table()
        names = {hit.passage: hit.path.rpartition(b"/")[2].decode() for hit in index.hits(table.passages.tolist(), ())}
        found = []
        for first in np.flatnonzero(table.previous < 0).tolist():
            found.append([names[int(table.passages[first])]])
            while (first := int(table.next[first])) >= 0:
                found[-1].append(names[int(table.passages[first])])
        return sorted(found)

    assert chain() == [["0.md", "1.md", "2.md", "3.md"]]
    world.do(ALICE, "set_attributes", node=world.node(ALICE, "/memory/a/0.md").id, mtime=NOW + 10**10)
    assert chain() == [["1.md", "2.md", "3.md", "0.md"]]
    world.do(ALICE, "mkdir", **world.at(ALICE, "/memory/b"), mode=0o755)
    world.rename(ALICE, "/memory/a/2.md", "/memory/b/2.md")
    assert chain() == [["1.md", "3.md", "0.md"], ["2.md"]]
    world.do(ALICE, "set_attributes", node=world.node(ALICE, "/memory/a/3.md").id, mtime=NOW + 10 * SESSION_GAP)
    assert chain() == [["1.md", "0.md"], ["2.md"], ["3.md"]]
    world.do(ALICE, "set_ttl", node=world.node(ALICE, "/memory/a/1.md").id, expires=1)
    assert chain() == [["0.md"], ["2.md"], ["3.md"]]
    world.unlink(ALICE, "/memory/a/0.md")
    assert chain() == [["2.md"], ["3.md"]]
    assert set(index.table().voices_of) == {"carol"}


def test_a_stamp_before_the_words_is_when_it_was_said(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"[2023-05-08 13:56] Caroline: hello")
    world.write(ALICE, "/memory/b.md", b"**Mel** : who is there?")
    world.drain()
    table = world.store.search_index(BOB).table()
    assert table.times[0] == 1_683_554_160 * 10**9 and table.times[1] == world.node(ALICE, "/memory/b.md").mtime
    assert [next(iter(table.voices_of[name])) for name in ("carolin", "mel")] == table.voices.tolist()
    world.write(ALICE, "/memory/c.md", b"of nobody's mouth")
    world.drain()
    table = world.store.search_index(BOB).table()
    assert table.voices[2] == -next(iter(table.voices_of["alic"])), "below 0: it is by alice, and does not say so"


def test_notes_that_are_each_headed_by_a_number_of_one_project_are_read_in_proportion_to_their_number() -> None:
    catalogue, count = PassageColumns(), 80_000
    began = time.process_time()
    rows = catalogue._taken((n, n, 0, 1, 1, n, n, 9, f"proj {n}", "alice", 0, 2**62) for n in range(1, count + 1))
    table = arrange(ordered(rows), catalogue._voices_of)
    asked = signals.asked("what does Proj say of the cache", NOW, UTC)
    assert signals.addressed(table, "what does Proj say of the cache", asked) == "what does you say of the cache"
    assert signals.speaker(table, np.arange(count), asked).shape == (count,)
    assert time.process_time() - began < 20  # minutes where each makes all before it be looked at


def test_who_speaks_is_forgotten_with_what_was_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_columns, "_MANY", 3)
    index = world.store.search_index(ALICE)
    for round_ in range(3):
        for n in range(6):
            world.write(ALICE, f"/memory/{n}.md", f"PROJ-{round_}{n}: the cache is warm".encode())
        world.drain()
        table = index.table()
        said = {term for n in range(6) for term in segment.terms(f"PROJ-{round_}{n}")}
        assert set(table.voices_of) == said and len(set(table.voices.tolist())) == 6


def test_a_long_document_is_found_by_one_sentence_whose_passage_comes_first(world: World) -> None:
    random_ = random.Random(5)
    filler = ["".join(random_.choices("abcdefghijklmnop", k=6)) for _ in range(400)]
    paragraphs = [" ".join(random_.choices(filler, k=14)).capitalize() + "." for _ in range(500)]
    paragraphs.insert(300, "The heron at the weir waits for the evening tide.")
    data = "\n\n".join(paragraphs).encode()
    assert len(data) > 45_000
    world.write(ALICE, "/memory/book.md", data)
    world.write(ALICE, "/memory/other.md", b"coffee market")
    settled(world)
    engine = Engine(world.store.search_index, EMBEDDER, COUNTER)
    found = recall(engine, BOB, "where does the heron wait for the tide?", now=NOW, tz=UTC)
    sentence = "The heron at the weir waits for the evening tide."
    assert sentence in found.text and {scored.hit.path for scored in found.hits} == {b"/memory/book.md"}
    best = max(found.hits, key=lambda scored: scored.score)
    assert all(scored.relevance < best.relevance for scored in found.hits if scored is not best)
    little = recall(engine, BOB, "where does the heron wait for the tide?", max_tokens=60, now=NOW, tz=UTC)
    assert sentence in little.text and len(little.hits) == 1


def test_a_new_note_without_a_vector_stays_among_the_first_ten(world: World) -> None:
    for number in range(60):
        world.write(ALICE, f"/memory/{number}.md", b"coffee market number %d of many" % number)
    settled(world)
    world.write(ALICE, "/memory/new.md", b"coffee market risk number 99 of many")
    world.drain()
    assert b"/memory/new.md" in [scored.hit.path for scored in ask(world, BOB, "coffee market risk").hits[:10]]


def test_a_term_occurs_in_all_its_forms_and_a_passage_is_named_once(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"we went to the lake and they go there too; going is fun")
    world.write(ALICE, "/memory/b.md", b"she has gone")
    world.write(ALICE, "/memory/private/alice/c.md", b"I went alone, I go often")
    world.drain()
    for term in ("go", "went", "gone"):
        found = world.store.search_index(ALICE).postings([term])[0]
        assert len(set(found.passages.tolist())) == len(found.passages) == 3
        assert np.all(np.diff(found.passages) > 0)
        assert sorted(found.times.tolist()) == [1, 2, 3], "a passage has the times of all forms"
        assert sorted(world.store.search_index(BOB).postings([term])[0].times.tolist()) == [1, 3], "what BOB may see"
