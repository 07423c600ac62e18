"""Forgetting for good: nothing of it is in any file of the store, nobody is refused what is another's, and the audit
still verifies."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from avmfs_config import Limits, SearchSettings, load_settings

from avmfs import calls
from avmfs.access import Principal
from avmfs.agents import auditing, backups
from avmfs.agents.questions import QuestionLog
from avmfs.errors import Denied, Invalid, NoSpace, NotFound, Stale
from avmfs.memory import Memory
from avmfs.node import Moment
from avmfs.rpc import purging
from avmfs.search.engine import Engine
from avmfs.services import Services
from avmfs.store.backup import archive
from avmfs.store.commands.aside import YOUNG_NS
from avmfs.store.files import wal_frames
from avmfs.store.files.wal_header import PAGE
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import traces
from avmfs.store.schema import database
from avmfs.store.schema.tables import ROOT
from avmfs.store.writer import rewriting
from avmfs.text.tokens import TokenCounter
from tests.behind import connect
from tests.contract import store_world
from tests.contract.store_world import ALICE, BOB, World

COUNTER = TokenCounter()
PLANTED = ("zqxcanary", "zqxpigeon", "zqxmagpie", "zqxsparrow", "zqxname", "zqxdir", "zqxtag", "zqxmeta", "zqxlink")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """A store that keeps its past."""
    monkeypatch.setattr(store_world, "RULES", replace(store_world.RULES, past_days=30))
    made: list[World] = []

    def make(rules: list[Any] | None = None) -> World:
        made.append(World(tmp_path / "store", "direct", rules))
        return made[-1]

    (tmp_path / "store").mkdir()
    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(build: Callable[..., World]) -> World:
    return build()


def memory(world: World, who: Principal) -> Memory:
    search = SearchSettings(query_log=9)
    engine = Engine(world.store.search_index, None, COUNTER)
    log = QuestionLog(world.path, search)
    return Memory(Services(world.store, engine, search, Limits(), world.clock, UTC, questions=log), who)


def purge(world: World, who: Principal, path: str | None = None, **more: Any) -> dict[str, Any]:
    asked = memory(world, who)
    plan = purging.purge(asked, path, **more)
    done = purging.purge(asked, path, **more, agreed=plan["agreed"])
    while not purging.wipe(asked)["wiped"]:
        pass
    return done


def left(world: World, *words: str) -> list[str]:
    return [f"{word}: {each}" for word in words for each in traces.of(world.path, word)]


def planted(world: World) -> None:
    """Words in everything that a store keeps of a file: past versions as deltas, blocks and appended pieces, names that
    it had, what was said of it, the trash, ended documents, a snapshot, notices, questions, words, vectors."""
    world.do(BOB, "subscribe", pattern="/memory/*", mode="digest", every=10**15, url=None)
    world.mkdir(ALICE, "/memory/zqxdir")
    path = "/memory/zqxdir/zqxname.md"
    world.write(ALICE, path, b"the zqxcanary lives here\n" + b"and a line that stays\n" * 40)
    world.drain()
    for number, word in enumerate((b"zqxpigeon", b"zqxmagpie", b"zqxsparrow")):
        world.clock.advance(2)
        text = b"the %b lives here\n" % word + b"and a line that stays\n" * (40 + number)
        world.write(ALICE, path, text, mode="replace")
        world.drain()
    world.tag(ALICE, path, "zqxtag")
    world.write(ALICE, "/memory/other.md", b"owls are of no concern")
    world.do(ALICE, "merge_meta", node=world.node(ALICE, path).id, importance=None, user={"title": "zqxmeta"})
    other = world.node(ALICE, "/memory/other.md").id
    world.do(ALICE, "add_link", node=other, target=world.node(ALICE, path).id, type="zqxlink")
    world.clock.advance(2)
    world.do(ALICE, "add_link", node=other, target=world.node(ALICE, path).id, type="another")
    world.do(ALICE, "snapshot", name="before")
    world.clock.advance(2)
    world.rename(ALICE, path, "/memory/zqxdir/plain.md")
    world.write(ALICE, "/memory/zqxdir/large.md", os.urandom(70_000).hex().encode() + b"zqxcanary zqxpigeon")
    world.clock.advance(2)
    world.edit(ALICE, "/memory/zqxdir/large.md", ["w", 65_530, b"zqxmagpie over two blocks"])
    world.write(ALICE, "/memory/zqxdir/gone.md", b"zqxsparrow was removed")
    for _ in range(2):
        world.write(ALICE, "/memory/zqxdir/binned.md", b"zqxcanary in the trash")
        world.drain()
        world.clock.advance(YOUNG_NS / 1e9)
        world.do(ALICE, "unlink", **world.at(ALICE, "/memory/zqxdir/binned.md"), trash=True)
    world.write(ALICE, "/memory/zqxdir/binned.md", b"zqxcanary in the trash")
    world.do(ALICE, "symlink", **world.at(ALICE, "/memory/zqxdir/link"), target=b"zqxcanary")
    world.drain()
    world.clock.advance(YOUNG_NS / 1e9)
    world.do(ALICE, "unlink", **world.at(ALICE, "/memory/zqxdir/binned.md"), trash=True)
    world.unlink(ALICE, "/memory/zqxdir/gone.md")
    passages = world.rows("select id from passage")
    world.do(OPERATOR, "put_vectors", model="m", vectors=[[each, b"1234"] for (each,) in passages])
    world.store.match_subscriptions()
    assert world.rows("select 1 from outbox where instr(events, 'zqxname')")
    log = memory(world, ALICE).around.questions
    assert log is not None
    log.note(ALICE, 1, "where is the zqxcanary?", (), "balanced", None, None)
    log.note(BOB, 2, "what of owls?", (), "balanced", None, None)


def test_what_is_planted_everywhere_is_found_and_after_a_purge_nowhere(world: World, tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "none.yaml", {})
    planted(world)
    for word in PLANTED:
        assert left(world, word), word
    world.clock.advance(100)
    backups.backup(world.path, settings, tmp_path / "kept", 3)
    assert auditing.Chainer(world.store, tmp_path / "anchors", 1.0, world.clock).step()
    assert purging.purge(memory(world, ALICE), "/memory/zqxdir")["snapshots"] == ["before"]
    assert purge(world, ALICE, "/memory/zqxdir")["purged"] == 7
    assert left(world, *PLANTED) == []
    assert world.bytes(BOB, "/memory/other.md") == b"owls are of no concern"
    log = memory(world, BOB).around.questions
    assert log is not None and [each["q"] for each in log.asked("bob")] == ["what of owls?"]
    assert log.asked("alice") == []
    found = auditing.verify(world.store, OPERATOR, [])
    assert found.ok and found.verdict.purged > 5
    [(about,)] = world.rows("select about from log where op = 'purge'")
    assert json.loads(about).keys() == {"documents", "nodes"}
    made = backups.backup(world.path, settings, tmp_path / "kept", 3)
    (tmp_path / "again").mkdir()
    archive.lay_out(tmp_path / "kept", made, tmp_path / "again" / "avm.db")
    assert [each for word in PLANTED for each in traces.of(tmp_path / "again" / "avm.db", word)] == []
    assert b"zqxcanary" in b"".join(file.read_bytes() for file in (tmp_path / "kept").iterdir()), "of the one before"
    archive.prune(tmp_path / "kept", 1)
    data = b"".join(file.read_bytes() for file in (tmp_path / "kept").iterdir())
    assert [word for word in PLANTED if word.encode() in data] == []


def test_a_kept_question_about_one_ideograph_goes_with_the_last_text_that_has_it(world: World) -> None:
    """The index has it in pairs."""
    world.write(ALICE, "/memory/cat.md", "猫が好き".encode())
    world.write(ALICE, "/memory/other.md", b"owls are of no concern")
    world.drain()
    log = memory(world, BOB).around.questions
    assert log is not None
    log.note(BOB, 1, "猫は何", (), "balanced", None, None)
    purge(world, ALICE, "/memory/other.md")
    assert [each["q"] for each in log.asked("bob")] == ["猫は何"]
    purge(world, ALICE, "/memory/cat.md")
    assert log.asked("bob") == []


def test_who_may_purge_what(build: Callable[..., World]) -> None:
    world = build([("/memory/fixed/*", "ro", None)])
    world.do(ALICE, "enroll")
    world.write(ALICE, "/memory/private/alice/hers.md", b"zqxcanary")
    world.write(OPERATOR, "/memory/fixed/all.md", b"zqxpigeon")
    world.write(ALICE, "/memory/both.md", b"zqxmagpie")
    with pytest.raises(NotFound):
        purging.purge(memory(world, BOB), "/memory/private/alice/hers.md")
    with pytest.raises(Denied):
        purging.purge(memory(world, BOB), "/memory/fixed/all.md")
    node = world.node(ALICE, "/memory/private/alice/hers.md")
    fixed = world.node(BOB, "/memory/fixed/all.md")
    both = world.node(BOB, "/memory/both.md")
    for refused, error in ((node, NotFound), (fixed, Denied)):
        with pytest.raises(error):
            world.do(BOB, "purge", nodes=[both.id, refused.id], documents=[])
    assert world.exists(ALICE, "/memory/both.md")  # all or nothing
    found = purging.purge(memory(world, BOB), "/memory")
    assert [each["path"] for each in found["files"]] == ["/memory/both.md"] and found["refused"] == 1
    assert purge(world, BOB, "/memory/both.md")["purged"] == 1 and left(world, "zqxmagpie") == []
    assert purge(world, ALICE, "/memory/private/alice/hers.md")["purged"] == 1 and left(world, "zqxcanary") == []
    operator = replace(ALICE, operator=True)
    assert purge(world, operator, "/memory/fixed")["purged"] == 1 and left(world, "zqxpigeon") == []


def test_what_has_ended_is_purged_by_who_could_write_it_and_by_nobody_else(world: World) -> None:
    for who, path in ((ALICE, "/memory/private/alice/s.md"), (ALICE, "/memory/s.md")):
        world.do(who, "enroll")
        world.write(who, path, b"zqxcanary " + path.encode())
        document = world.document(who, path).id
        world.clock.advance(2)
        world.unlink(who, path)
        if "private" in path:
            with pytest.raises(NotFound):
                world.do(BOB, "purge", nodes=[], documents=[document])
            with pytest.raises(NotFound):
                purging.purge(memory(world, BOB), path)
    assert [each["path"] for each in purging.purge(memory(world, BOB), "/memory")["files"]] == ["/memory/s.md"]
    assert purge(world, ALICE, "/memory")["purged"] == 2 and left(world, "zqxcanary") == []


def test_what_has_ended_goes_by_the_rules_of_now_and_of_then(build: Callable[..., World]) -> None:
    world = build([("/memory/then/*", "ro", ("bob",))])
    ended = {}
    for path in ("/memory/then/a.md", "/memory/now/a.md"):
        world.write(ALICE, path, b"zqxcanary")
        ended[path] = world.document(ALICE, path).id
        world.clock.advance(2)
        world.unlink(ALICE, path)
    world.restart([("/memory/now/*", "ro", ("bob",))])
    for document in ended.values():
        with pytest.raises(Denied):
            world.do(BOB, "purge", nodes=[], documents=[document])
    with pytest.raises(Denied):
        purging.purge(memory(world, BOB), "/memory/now")
    assert purging.purge(memory(world, BOB), "/memory")["files"] == []
    assert purge(world, ALICE, "/memory", author="alice")["purged"] == 2 and left(world, "zqxcanary") == []


def test_tag_author_and_time_choose_and_a_plan_that_is_no_longer_so_is_refused(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"zqxcanary")
    world.write(BOB, "/memory/b.md", b"zqxpigeon")
    world.tag(BOB, "/memory/b.md", "secret")
    between = world.clock() // 10**9 + 5
    world.clock.advance(10)
    world.write(BOB, "/memory/c.md", b"zqxmagpie")
    asked = memory(world, ALICE)
    stamp = datetime.fromtimestamp(between, UTC).isoformat()

    def paths(**named: Any) -> list[str]:
        return [each["path"] for each in purging.purge(asked, **named)["files"]]

    assert paths(tag="secret") == paths(tag=" #secret") == ["/memory/b.md"] and paths(author="alice") == [
        "/memory/a.md"
    ]
    assert sorted(paths(before=stamp)) == ["/memory/a.md", "/memory/b.md"]
    assert paths(author="bob", before=stamp) == ["/memory/b.md"]
    assert paths(before="20991101") == paths(before="2099-11-01T00:00")  # no seq
    with pytest.raises(Invalid, match="before 'yesterday': expected ISO 8601"):
        paths(before="yesterday")
    plan = purging.purge(asked, author="bob")
    world.write(BOB, "/memory/d.md", b"later")
    with pytest.raises(Stale):
        purging.purge(asked, author="bob", agreed=plan["agreed"])
    assert world.exists(ALICE, "/memory/b.md")


def test_a_file_that_an_editor_saved_by_renaming_is_forgotten_with_what_it_was_saved_from(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"first")
    world.clock.advance(2)
    world.write(ALICE, "/memory/a.md.tmp", b"zqxcanary")
    world.rename(ALICE, "/memory/a.md.tmp", "/memory/a.md")
    world.clock.advance(2)
    world.write(ALICE, "/memory/a.md", b"third", mode="replace")
    assert left(world, "zqxcanary")
    purge(world, ALICE, "/memory/a.md")
    assert left(world, "zqxcanary") == [] and world.rows("select 1 from past_version") == []


def drafted(world: World, who: Principal, draft: str, final: str) -> None:
    """Written twice, each a version, and saved over another file."""
    world.write(who, draft, b"first")
    world.drain()
    world.clock.advance(2)
    world.write(who, draft, b"zqxcanary", mode="replace")
    world.do(who, "merge_meta", node=world.node(who, draft).id, importance=None, user={"title": "zqxmeta"})
    world.clock.advance(2)
    world.rename(who, draft, final)
    world.clock.advance(2)


def test_a_draft_of_several_versions_is_forgotten_with_what_it_became(world: World) -> None:
    world.write(ALICE, "/memory/final.md", b"one")
    drafted(world, ALICE, "/memory/zqxname.md", "/memory/final.md")
    assert left(world, "zqxcanary", "zqxname")
    purge(world, ALICE, "/memory/final.md")
    assert left(world, "zqxcanary", "zqxname", "zqxmeta") == []
    assert world.rows("select 1 from past_version union all select 1 from past_said") == []


def test_drafts_of_drafts_are_forgotten_too(world: World) -> None:
    for name in ("c", "b"):
        world.write(ALICE, f"/memory/{name}.md", b"one")
    drafted(world, ALICE, "/memory/zqxname.md", "/memory/b.md")
    world.rename(ALICE, "/memory/b.md", "/memory/c.md")
    purge(world, ALICE, "/memory/c.md")
    assert left(world, "zqxcanary", "zqxname", "zqxmeta") == []


def test_the_backup_that_an_editor_made_and_removed_is_forgotten_with_the_file(world: World) -> None:
    world.write(ALICE, "/memory/zqxname.md", b"zqxcanary")
    world.clock.advance(2)
    world.rename(ALICE, "/memory/zqxname.md", "/memory/zqxname.md~")
    world.write(ALICE, "/memory/zqxname.md", b"second")
    world.drain()
    world.clock.advance(2)
    world.unlink(ALICE, "/memory/zqxname.md~")
    purge(world, ALICE, "/memory/zqxname.md")
    assert left(world, "zqxcanary", "zqxname") == []


@pytest.mark.parametrize("how", ["removed", "saved over", "an editor's backup"])
def test_what_lost_its_name_while_a_mount_had_it_open_is_forgotten_with_it(world: World, how: str) -> None:
    world.applier._orphans = True  # as beside a daemon
    world.do(BOB, "subscribe", pattern="/memory/*", mode="digest", every=10**15, url=None)
    world.write(ALICE, "/memory/zqxname.md", b"zqxcanary" * 30_000)
    held = world.node(ALICE, "/memory/zqxname.md").id
    world.store.match_subscriptions()
    world.clock.advance(2)
    if how == "saved over":
        world.write(ALICE, "/memory/zqxname.new", b"second")
        world.rename(ALICE, "/memory/zqxname.new", "/memory/zqxname.md")
    else:
        if how == "an editor's backup":
            world.rename(ALICE, "/memory/zqxname.md", "/memory/zqxname.md~")
            world.write(ALICE, "/memory/zqxname.md", b"second")
        world.unlink(ALICE, "/memory/zqxname.md" + "~" * (how == "an editor's backup"))
    world.do(BOB, "hold", holder=b"a mount", nodes=[held])
    world.clock.advance(2)
    purge(world, ALICE, "/memory/zqxname.md")
    assert left(world, "zqxcanary", "zqxname") == []


def test_what_was_saved_over_and_is_open_is_forgotten_with_its_last_name_and_not_with_a_draft(world: World) -> None:
    world.applier._orphans = True
    world.write(ALICE, "/memory/f", b"first")
    drafted(world, ALICE, "/memory/draft", "/memory/f")
    held = world.node(ALICE, "/memory/f").id
    world.write(ALICE, "/memory/tmp", b"third")
    world.rename(ALICE, "/memory/tmp", "/memory/f")
    world.clock.advance(2)
    purge(world, ALICE, "/memory/draft")
    assert held in dict(world.store.orphans())
    purge(world, ALICE, "/memory/f")
    assert world.store.orphans() == [] and left(world, "zqxcanary") == []


@pytest.mark.parametrize("path", ["/memory/zqxdir", "/memory/zqxdir/zqxname.md", "/memory"])
def test_what_has_expired_and_takes_room_still_is_forgotten_too(world: World, path: str) -> None:
    for name, text in (("zqxname.md", b"zqxcanary"), ("zqxpigeon.md", b"zqxmagpie")):
        world.write(ALICE, f"/memory/zqxdir/{name}", text)
    node = world.node(ALICE, "/memory/zqxdir/zqxname.md").id
    world.do(ALICE, "set_ttl", node=node, expires=world.clock() + 60 * 10**9)
    world.drain()
    world.clock.advance(61)
    assert purge(world, ALICE, path)["purged"] == (1 if path.endswith(".md") else 2)
    assert left(world, "zqxcanary", "zqxname") == []
    assert bool(left(world, "zqxdir", "zqxpigeon", "zqxmagpie")) == path.endswith(".md")


def as_it_was(world: World, path: str, seq: int) -> bytes:
    with world.store.reading_at(ALICE, Moment(seq, world.clock())) as reader:
        node = reader.node(ROOT)
        for name in path.encode().split(b"/")[1:]:
            child = reader.child(node.id, name)
            assert child is not None
            node = child
        return reader.read(node.id, 0, node.size)


def test_an_editors_backup_is_forgotten_alone_and_the_file_keeps_its_past(world: World) -> None:
    world.write(ALICE, "/memory/f", b"first")
    began = world.newest_seq()
    world.clock.advance(2)
    world.rename(ALICE, "/memory/f", "/memory/f~")
    world.write(ALICE, "/memory/f", b"second")
    world.clock.advance(2)
    purge(world, ALICE, "/memory/f~")
    assert as_it_was(world, "/memory/f", began) == b"first"
    assert world.rows("select 1 from log where path = cast('/memory/f' as blob) and seq <= ?", began)
    assert not world.rows("select 1 from log where cast('/memory/f~' as blob) in (path, other)")


def test_a_draft_that_had_been_removed_is_forgotten_and_the_file_keeps_its_past(world: World) -> None:
    world.write(ALICE, "/memory/f", b"first")
    drafted(world, ALICE, "/memory/zqxname", "/memory/f")
    was = world.newest_seq()
    world.write(ALICE, "/memory/tmp", b"third")
    world.rename(ALICE, "/memory/tmp", "/memory/f")
    world.clock.advance(2)
    purge(world, ALICE, "/memory/zqxname")
    assert as_it_was(world, "/memory/f", was) == b"zqxcanary"
    assert left(world, "zqxname") == []


def test_what_became_of_a_draft_that_is_forgotten_is_kept(world: World) -> None:
    world.write(ALICE, "/memory/final.md", b"zqxpigeon")
    drafted(world, ALICE, "/memory/draft.md", "/memory/final.md")
    world.unlink(ALICE, "/memory/final.md")
    world.clock.advance(2)
    purge(world, ALICE, "/memory/draft.md")
    assert left(world, "zqxpigeon"), "another file, of which nothing was said"
    purge(world, ALICE, "/memory/final.md")
    assert left(world, "zqxpigeon", "zqxcanary", "zqxmeta") == []


def test_the_draft_of_another_agent_is_for_that_one_to_forget(world: World) -> None:
    world.do(ALICE, "enroll")
    world.write(BOB, "/memory/final.md", b"one")
    drafted(world, ALICE, "/memory/private/alice/zqxname.md", "/memory/final.md")
    purge(world, BOB, "/memory/final.md")
    [document] = purging.purge(memory(world, ALICE), "/memory/private/alice/zqxname.md")["files"]
    assert document["state"] == "removed"
    purge(world, ALICE, "/memory/private/alice/zqxname.md")
    assert left(world, "zqxcanary", "zqxname", "zqxmeta") == []


def test_the_draft_of_another_agent_is_that_ones_also_when_little_is_known_of_it_any_more(world: World) -> None:
    world.do(ALICE, "enroll")
    world.write(BOB, "/memory/final.md", b"one")
    drafted(world, ALICE, "/memory/private/alice/draft.md", "/memory/final.md")
    drafted(world, BOB, "/memory/own.md", "/memory/final.md")
    db = connect(world.path)
    db.execute("delete from past_said")  # as the past is trimmed
    db.close()
    purge(world, BOB, "/memory/final.md")
    paths = [bytes(path) for (path,) in world.rows("select distinct path from log where path <> x'' order by path")]
    assert b"/memory/private/alice/draft.md" in paths and b"/memory/own.md" not in paths


@pytest.mark.parametrize("settled", [False, True])
def test_refusals_no_longer_name_what_was_purged(build: Callable[..., World], *, settled: bool) -> None:
    world = build([("/memory/shared/*", "ro", ("bob",))])
    world.do(ALICE, "enroll")
    world.write(ALICE, "/memory/shared/zqxdir/zqxname.md", b"x")
    world.write(ALICE, "/memory/private/alice/zqxmeta.md", b"x")
    for name in ("zqxname.md", "zqxtag.md"):
        with pytest.raises(Denied):
            world.write(BOB, f"/memory/shared/zqxdir/{name}", b"x")
    refused = {
        BOB: (b"/shared/zqxdir/zqxname.md:tags", b"/shared/zqxdir/:recall?q=x", b"/private/alice.md", b"/shared/o.md"),
        ALICE: (b"/private//zqxmeta.md:shared",),
    }
    for who, named in refused.items():
        for path in named:
            world.do(who, "note_refusal", verb="v", code="EACCES", path=path)
    if settled:
        world.do(OPERATOR, "settle_refusals", all_of_them=True)
    assert auditing.Chainer(world.store, world.path.parent / "anchors", 1.0, world.clock).step()
    purge(world, ALICE, "/shared/zqxdir")
    purge(world, ALICE, "/private/zqxmeta.md")
    assert left(world, *PLANTED) == []
    table = "log where op = 'refused'" if settled else "refusal where true"
    kept = world.rows(f"select path from {table} and path <> x'' order by path")
    assert [bytes(path) for (path,) in kept] == [b"/private/alice.md", b"/shared/o.md"], "of something else"
    assert auditing.verify(world.store, OPERATOR, []).ok


@pytest.mark.parametrize("state", ["there", "in the trash", "removed", "saved over another"])
def test_versions_that_one_may_not_see_are_not_for_him_to_forget(world: World, state: str) -> None:
    world.do(ALICE, "enroll")
    for text in (b"zqxcanary", b"harmless"):
        world.write(ALICE, "/memory/private/alice/plan.md", text, mode="replace")
        world.clock.advance(2)
    world.rename(ALICE, "/memory/private/alice/plan.md", "/memory/plan.md")
    world.write(BOB, "/memory/plan.md", b"third", mode="replace")
    node, document = world.node(BOB, "/memory/plan.md").id, world.document(BOB, "/memory/plan.md").id
    world.write(BOB, "/memory/other.md", b"zqxpigeon")
    world.clock.advance(YOUNG_NS / 1e9)
    if state == "saved over another":
        world.rename(BOB, "/memory/plan.md", "/memory/other.md")
    elif state != "there":
        world.do(BOB, "unlink", **world.at(BOB, "/memory/plan.md"), trash=state == "in the trash")
    asked = {"nodes": [], "documents": [document]} if state == "removed" else {"nodes": [node], "documents": []}
    if state != "saved over another":
        with pytest.raises(Denied, match="earlier versions of it are not for you"):
            world.do(BOB, "purge", **asked)
        with pytest.raises((Denied, NotFound)):
            purging.purge(memory(world, BOB), "/memory/plan.md")
        assert purging.purge(memory(world, BOB), author="alice")["files"] == []
    assert purge(world, BOB, "/memory/other.md")["purged"] == 1 and left(world, "zqxpigeon") == []
    assert left(world, "zqxcanary")
    if state == "there":
        assert world.history(ALICE, "/memory/plan.md") == [b"zqxcanary", b"harmless", b"third"]
    purge(world, ALICE, author="alice")
    assert left(world, "zqxcanary", "plan.md") == []


def test_versions_of_a_time_when_nobody_might_change_the_file_go_with_it(build: Callable[..., World]) -> None:
    world = build()
    for text in (b"zqxcanary", b"zqxpigeon"):
        world.write(ALICE, "/memory/d/plan.md", text, mode="replace")
        world.clock.advance(2)
    world.restart([("/memory/d/*", "ro", None)])
    world.restart([])
    purge(world, BOB, "/memory/d/plan.md")
    assert left(world, "zqxcanary", "zqxpigeon") == []


@pytest.mark.parametrize("what", ["directories", "files", "removed files"])
def test_the_log_is_walked_as_often_for_many_as_for_one(world: World, what: str) -> None:
    """The writer is held up for as long."""
    for number in range(21):
        if what == "directories":
            world.mkdir(ALICE, f"/memory/{number}")
        else:
            world.write(ALICE, f"/memory/{number}", b"x")
    nodes = [world.node(ALICE, f"/memory/{number}").id for number in range(21)]
    if what == "removed files":
        for number in range(21):
            world.unlink(ALICE, f"/memory/{number}")
        nodes = [document for (document,) in world.rows("select document from past_said where what = 'document'")]
    for number in range(200):
        world.write(ALICE, "/memory/other", b"%d" % number, handle=number)
    asked, db, steps = "documents" if what == "removed files" else "nodes", world.applier.db, list[int]()
    for some in (nodes[:1], nodes[1:]):
        steps.append(0)

        def count(told: dict[str, Any]) -> None:
            steps[-1] += told["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]

        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
        assert world.do(ALICE, "purge", **{"nodes": [], "documents": [], asked: some})["purged"] == len(some)
        db.trace_v2(0, None)
    assert len(nodes) == 21 and steps[1] < 1.5 * steps[0]


def test_a_plan_names_the_snapshots_of_parts_that_had_the_text_and_no_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.mkdir(ALICE, "/memory/d")
    world.mkdir(ALICE, "/memory/e")
    for name in ("saved", "gone"):
        world.write(ALICE, f"/memory/d/{name}", b"first")
    for name in ("d", "e"):
        world.do(ALICE, "snapshot", name=name, root=world.node(ALICE, f"/memory/{name}").id)
    world.do(ALICE, "snapshot", name="full")
    world.clock.advance(2)
    world.write(ALICE, "/memory/d/tmp", b"second")
    world.rename(ALICE, "/memory/d/tmp", "/memory/d/saved")  # on another node now
    world.write(ALICE, "/memory/d/later", b"came after them")
    world.unlink(ALICE, "/memory/d/gone")
    asked, looks = memory(world, ALICE), []
    monkeypatch.setattr(calls, "go_on", lambda: looks.append(1))
    for name, snapshots in (("saved", ["d", "full"]), ("gone", ["d", "full"]), ("later", [])):
        looks.clear()
        assert sorted(purging.purge(asked, f"/memory/d/{name}")["snapshots"]) == snapshots, name
        assert len(looks) >= 2  # of each part's snapshot whoever asks may give up


def test_while_somebody_reads_the_store_as_it_was_the_bytes_are_there_and_go_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "PATIENCE_MS", 1)
    world.write(ALICE, "/memory/a.md", b"zqxcanary")
    asked, log = memory(world, ALICE), wal_frames.beside(world.path)
    plan = purging.purge(asked, "/memory/a.md")
    with world.store.connection() as (db, _):
        assert db.execute("select count(*) from node").get
        purging.purge(asked, "/memory/a.md", agreed=plan["agreed"])
        size = log.stat().st_size
        for _ in range(3):
            assert purging.wipe(asked) == {"wiped": False} and world.store.unwiped()
            assert log.stat().st_size <= size, "each try wrote all of the store"
    assert purging.wipe(asked) == {"wiped": True} and not world.store.unwiped()
    assert left(world, "zqxcanary") == []


def test_without_room_for_the_store_twice_more_nothing_is_written(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"zqxcanary")
    world.do(ALICE, "purge", nodes=[world.node(ALICE, "/memory/a.md").id], documents=[])
    disk = SimpleNamespace(f_frsize=PAGE, f_blocks=1 << 18, f_bavail=world.path.stat().st_size // PAGE // 2)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(os, "statvfs", lambda path: disk)
        with pytest.raises(NoSpace, match="have to be free"):
            world.do(ALICE, "wipe")
    assert wal_frames.beside(world.path).stat().st_size == 0 and left(world, "zqxcanary")
    assert world.do(ALICE, "wipe") == {"wiped": True} and left(world, "zqxcanary") == []


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has open is told by Linux")
def test_what_is_written_meanwhile_lies_on_the_disk_that_was_asked_for_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(ALICE, "/memory/a.md", os.urandom(1 << 20))
    world.write(ALICE, "/memory/b.md", b"zqxcanary")
    world.do(ALICE, "purge", nodes=[world.node(ALICE, "/memory/b.md").id], documents=[])
    run, seen = database.run, set()

    def nameless() -> set[str]:
        found = set()
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(each))
        return {to for to in found if to.endswith(" (deleted)")}

    def look() -> bool:
        seen.update(nameless() - before)
        return False

    before = nameless()

    def watched(db: apsw.Connection, script: str) -> None:
        if script == "vacuum":
            run(db, "pragma cache_size = 10")  # the copy is no small one
            db.set_progress_handler(look, 10)
        run(db, script)

    monkeypatch.setattr(database, "run", watched)
    assert world.do(ALICE, "wipe") == {"wiped": True}
    assert {os.path.dirname(each) for each in seen} == {os.path.realpath(world.path.parent)}


def test_a_purge_that_was_killed_before_the_file_was_written_anew_is_finished_by_the_next_start(world: World) -> None:
    world.write(ALICE, "/memory/a.md", b"zqxcanary")
    world.do(ALICE, "purge", nodes=[world.node(ALICE, "/memory/a.md").id], documents=[])
    assert left(world, "zqxcanary")
    world.restart()
    assert left(world, "zqxcanary") == [] and not world.store.unwiped()


@pytest.mark.parametrize("meanwhile", ["moved", "written", "untagged", "replaced", "removed"])
def test_what_is_changed_or_moved_while_a_purge_is_under_way_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Nobody has agreed to that."""
    world.mkdir(ALICE, "/memory/old")
    for name in ("a", "b"):
        world.write(ALICE, f"/memory/old/{name}", b"first")
        world.tag(ALICE, f"/memory/old/{name}", "old")
    world.clock.advance(2)
    monkeypatch.setattr(purging, "AT_ONCE", 1)
    submit, kept = Memory.submit, []

    def interrupted(asked: Memory, command: str, **arguments: Any) -> Any:
        done = submit(asked, command, **arguments)
        if command == "purge":
            [name] = world.names(ALICE, "/memory/old")
            kept.append(path := f"/memory/old/{name}")
            if meanwhile == "moved":
                kept[0] = "/memory/keep"
                world.rename(BOB, path, "/memory/keep")
            elif meanwhile == "written":
                world.write(BOB, path, b"second", mode="replace")
            elif meanwhile == "replaced":  # as by an editor
                world.write(BOB, "/memory/new", b"second")
                world.rename(BOB, "/memory/new", path)
            elif meanwhile == "removed":
                world.unlink(BOB, path)
            else:
                world.do(BOB, "set_tags", node=world.node(BOB, path).id, add=[], remove=["old"], replace=False)
        return done

    asked = memory(world, ALICE)
    plan = purging.purge(asked, tag="old")
    monkeypatch.setattr(Memory, "submit", interrupted)
    with pytest.raises(Stale, match="look at the plan again") as refused:
        purging.purge(asked, tag="old", agreed=plan["agreed"])
    assert str(refused.value.filename).startswith("/memory/old/")
    [path] = kept
    if meanwhile == "removed":
        assert not world.exists(BOB, path)
    else:
        second = meanwhile in ("written", "replaced")
        assert world.bytes(BOB, path) == (b"second" if second else b"first")
        assert len(world.history(BOB, path)) == 1 + second


@pytest.mark.parametrize("at_once", [1, 100])
def test_what_goes_with_others_of_the_plan_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Directories of the trash with the last that is in them, drafts with the files that they became."""
    monkeypatch.setattr(purging, "AT_ONCE", at_once)
    world.mkdir(ALICE, "/memory/d")
    for name in ("a.md", "final.md"):
        world.write(ALICE, f"/memory/d/{name}", b"zqxpigeon")
    drafted(world, ALICE, "/memory/d/draft.md", "/memory/d/final.md")
    world.clock.advance(YOUNG_NS / 1e9)
    world.do(ALICE, "unlink", **world.at(ALICE, "/memory/d/a.md"), trash=True)
    assert purge(world, ALICE, "/trash")["purged"] == 1
    assert purge(world, ALICE, "/memory/d")["purged"] == 2
    assert left(world, "zqxpigeon", "zqxcanary") == [] and not world.exists(ALICE, "/memory/d")
