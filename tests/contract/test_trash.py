"""The trash and the archive: what goes there, under whose rights it stands, who finds it, and the way back."""

from __future__ import annotations

import contextlib
import hashlib
from datetime import UTC
from functools import partial
from pathlib import Path

import apsw
import pytest
from avmfs_config import Limits, SearchSettings

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import Denied, Exists, Invalid, NameTooLong, NotFound, NotPermitted, Stale
from avmfs.memory import Memory
from avmfs.node import Kind
from avmfs.rpc import methods
from avmfs.search.engine import Engine
from avmfs.services import Services
from avmfs.store.commands import renaming
from avmfs.store.commands.aside import YOUNG_NS
from avmfs.store.identity import OPERATOR
from avmfs.text.tokens import TokenCounter
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, World

COUNTER = TokenCounter()


def note(world: World, who: Principal, path: str, data: bytes = b"the harvest begins in June") -> None:
    world.write(who, path, data)
    world.drain()
    world.clock.advance(YOUNG_NS / 1e9)


def remove(world: World, who: Principal, path: str, trash: bool = True) -> bool:
    kept: bool = world.do(who, "unlink", **world.at(who, path), trash=trash)["kept"]
    return kept


def found(world: World, who: Principal, q: str = "harvest", *, archive: bool = False) -> list[bytes]:
    world.drain()
    engine = Engine(world.store.search_index, None, COUNTER)
    answer = (engine.searching("archive") if archive else engine).search(who, q, limit=9)
    return [scored.hit.path for scored in answer.hits]


def test_a_removed_note_is_in_the_trash_and_comes_back_as_the_document_it_was(world: World) -> None:
    note(world, ALICE, "/memory/farm/plan.md")
    world.tag(ALICE, "/memory/farm/plan.md", "farm")
    before = world.document(ALICE, "/memory/farm/plan.md")
    assert remove(world, BOB, "/memory/farm/plan.md")
    assert not world.exists(ALICE, "/memory/farm/plan.md") and not found(world, ALICE)
    with world.reading(ALICE) as reader:
        [kept] = reader.removed(10)
        assert (kept.path, kept.agent) == (b"/memory/farm/plan.md", "bob")
        assert reader.path(kept.node.id) == b"/trash/farm/plan.md"
        assert reader.by_handle(before.handle) == kept.node
    world.do(ALICE, "rmdir", **world.at(ALICE, "/memory/farm"))
    assert world.do(BOB, "put_back", node=kept.node.id)["path"] == b"/memory/farm/plan.md"
    after = world.document(ALICE, "/memory/farm/plan.md")
    assert (after.id, after.handle, after.head) == (before.id, before.handle, before.head)
    with world.reading(ALICE) as reader:
        assert reader.tags(after.id) == ["farm"] and reader.removed(10) == []
    assert world.bytes(ALICE, "/memory/farm/plan.md") == b"the harvest begins in June"
    assert found(world, ALICE) == [b"/memory/farm/plan.md"]
    assert not world.exists(ALICE, "/trash/farm")  # its mirror went when it was empty


def test_a_note_that_is_dated_in_the_future_goes_to_the_trash_like_others(world: World) -> None:
    later = world.clock() + 86_400 * 10**9
    world.do(ALICE, "put", path=[b"memory", b"a.md"], data=b"the harvest", created=later, mtime=later)
    world.drain()
    world.clock.advance(3600)
    assert remove(world, ALICE, "/memory/a.md") and world.exists(ALICE, "/trash/a.md")


def test_what_comes_back_takes_a_free_name_or_the_one_that_is_said(world: World) -> None:
    for text in (b"first harvest", b"second harvest"):
        note(world, ALICE, "/memory/a.md", text)
        assert remove(world, ALICE, "/memory/a.md")
    assert world.exists(ALICE, "/trash/a.md") and world.exists(ALICE, "/trash/(2)/a.md")
    world.write(ALICE, "/memory/a.md", b"third")
    put = [
        world.do(ALICE, "put_back", node=world.node(ALICE, path).id, **more)["path"]
        for path, more in (("/trash/(2)/a.md", {}), ("/trash/a.md", {"to": [b"memory", b"new", b"b.md"]}))
    ]
    assert put == [b"/memory/a (2).md", b"/memory/new/b.md"]
    assert world.bytes(ALICE, "/memory/a (2).md") == b"second harvest"
    assert world.bytes(ALICE, "/memory/new/b.md") == b"first harvest"
    assert world.bytes(ALICE, "/memory/a.md") == b"third"


def test_what_is_new_binary_managed_or_not_meant_to_be_kept_is_gone_at_once(world: World) -> None:
    world.write(ALICE, "/memory/new.md", b"made a moment ago")
    world.drain()
    assert not remove(world, ALICE, "/memory/new.md")
    world.write(ALICE, "/memory/repo/.git/config", b"x")
    for path, data in (("/memory/i", b"\0\1"), ("/memory/x.swp", b"words"), ("/memory/repo/src/a.c", b"int main")):
        note(world, ALICE, path, data)
        assert not remove(world, ALICE, path), path
    note(world, ALICE, "/memory/b.md")
    assert not remove(world, ALICE, "/memory/b.md", trash=False)
    with world.reading(ALICE) as reader:
        assert reader.removed(10) == []


@pytest.mark.parametrize("drained", [True, False])
def test_what_has_got_a_name_that_is_not_ignored_is_kept_if_it_is_text(world: World, drained: bool) -> None:
    for name, data in (("plan", b"the harvest begins in June"), ("image", b"\0\1")):
        note(world, ALICE, f"/memory/{name}.swp", data)
        world.rename(ALICE, f"/memory/{name}.swp", f"/memory/{name}.md")
        if drained:
            world.drain()
        assert remove(world, ALICE, f"/memory/{name}.md") is (name == "plan")
    assert world.bytes(ALICE, "/trash/plan.md") == b"the harvest begins in June"


def test_removing_it_from_the_trash_is_for_good(world: World) -> None:
    note(world, ALICE, "/memory/a.md")
    remove(world, ALICE, "/memory/a.md")
    assert not remove(world, ALICE, "/trash/a.md")
    with world.reading(OPERATOR) as reader:
        assert reader.removed(10) == []


@pytest.mark.parametrize("place", ["trash", "archive"])
def test_it_stands_under_the_rights_of_where_it_came_from(world: World, place: str) -> None:
    note(world, ALICE, "/memory/private/alice/diary.md")
    note(world, ALICE, "/memory/limited.md")
    world.share(ALICE, "/memory/limited.md", "alice")
    for path in ("/memory/private/alice/diary.md", "/memory/limited.md"):
        if place == "trash":
            assert remove(world, ALICE, path)
        else:
            world.do(ALICE, "archive", **world.at(ALICE, path))
    assert world.exists(ALICE, f"/{place}/private/alice/diary.md") and world.exists(ALICE, f"/{place}/limited.md")
    for path in (f"/{place}/private/alice", f"/{place}/private/alice/diary.md", f"/{place}/limited.md"):
        assert not world.exists(BOB, path), path
    assert "limited.md" not in world.names(BOB, f"/{place}")
    with world.reading(BOB) as reader:
        assert reader.removed(10) == []
    diary = world.node(ALICE, f"/{place}/private/alice/diary.md").id
    with pytest.raises(NotFound):
        world.do(BOB, "put_back", node=diary)
    world.restart(rules=[("/memory/limited.md", "none", None), ("/memory/*", "rw", None)], default="ro")
    assert not world.exists(ALICE, f"/{place}/limited.md")  # a rule that came since holds there too
    assert world.do(ALICE, "put_back", node=diary)["path"] == b"/memory/private/alice/diary.md"


def aside(world: World, place: str, path: str) -> None:
    """Put a new file of alice's away."""
    note(world, ALICE, path, path.encode())
    if place == "trash":
        assert remove(world, ALICE, path)
    else:
        world.do(ALICE, "archive", **world.at(ALICE, path))


@pytest.mark.parametrize("place", ["trash", "archive"])
def test_what_is_put_away_again_stands_under_the_rights_of_its_own_name(world: World, place: str) -> None:
    """Under those of a rule that comes later as well; a file that really has such a name keeps its own."""
    world.restart(rules=[("/memory/desk/plan.md", "none", ("bob",)), ("/memory/diary (2).md", "none", ("bob",))])
    for path in ("/memory/desk/plan.md", "/memory/diary.md", "/memory/private/alice/own.md"):
        for _ in range(5):
            aside(world, place, path)
    for path in ("/memory/diary (2).md", "/memory/(2)"):
        aside(world, place, path)
    mirrors = [f"/{place}", *(f"/{place}/({number})" for number in range(2, 6))]
    assert all(world.exists(ALICE, f"{mirror}/desk/plan.md") for mirror in mirrors)
    assert [world.exists(BOB, f"{mirror}/diary.md") for mirror in mirrors] == [True] * 5
    assert [world.names(BOB, f"{mirror}/desk") for mirror in mirrors] == [[]] * 5
    assert world.exists(ALICE, f"/{place}/private/alice/(5)/own.md")  # nobody else learns how many there are
    assert not world.exists(BOB, f"/{place}/private/alice")
    assert world.exists(ALICE, f"/{place}/diary (2).md") and not world.exists(BOB, f"/{place}/diary (2).md")
    assert world.exists(BOB, f"/{place}/(2)/(2)")
    with world.reading(BOB) as reader:
        assert {each.path for each in reader.removed(99)} <= {b"/memory/diary.md", b"/memory/(2)"}
    world.restart(rules=[("/memory/diary.md", "none", ("bob",))])
    assert not any(world.exists(BOB, f"{mirror}/diary.md") for mirror in mirrors)
    assert all(world.exists(BOB, f"{mirror}/desk/plan.md") for mirror in mirrors)
    for number, back in ((3, b"/memory/diary.md"), (2, b"/memory/diary (2).md")):  # its own name, while that is free
        node = world.node(ALICE, f"/{place}/({number})/diary.md").id
        assert world.do(ALICE, "put_back", node=node)["path"] == back
    assert not world.exists(ALICE, f"/{place}/(3)/diary.md")


@pytest.mark.parametrize("place", ["trash", "archive"])
def test_a_file_that_is_in_the_way_of_a_directory_opens_nothing_of_it(world: World, place: str) -> None:
    world.restart(rules=[("/memory/desk/*", "none", ("bob",))])
    aside(world, place, "/memory/desk")
    world.mkdir(ALICE, "/memory/desk")
    aside(world, place, "/memory/desk/secret.md")
    assert world.bytes(ALICE, f"/{place}/(2)/desk/secret.md") == b"/memory/desk/secret.md"
    assert world.names(BOB, f"/{place}/(2)") == []
    node = world.node(ALICE, f"/{place}/(2)/desk/secret.md").id
    assert world.do(ALICE, "put_back", node=node)["path"] == b"/memory/desk/secret.md"
    assert world.names(ALICE, f"/{place}") == ["desk"]  # the mirror went when it was empty


def test_directories_that_are_archived_again_are_joined_but_for_what_is_there_already(world: World) -> None:
    world.restart(rules=[("/memory/desk/plan.md", "none", ("bob",))])
    for number in (1, 2):
        for name in ("plan.md", "open.md", f"{number}.md"):
            note(world, ALICE, f"/memory/desk/{name}")
        assert world.do(ALICE, "archive", **world.at(ALICE, "/memory/desk"))["path"] == b"/archive/desk"
    assert world.names(BOB, "/archive/desk") == ["1.md", "2.md", "open.md"]
    assert world.names(BOB, "/archive/(2)/desk") == ["open.md"]
    assert world.names(ALICE, "/archive/(2)/desk") == ["open.md", "plan.md"]
    for path in ("/archive/desk", "/archive/(2)/desk"):
        assert world.do(ALICE, "put_back", node=world.node(ALICE, path).id)["path"] == b"/memory/desk"
    assert world.names(ALICE, "/archive") == [] and len(world.names(ALICE, "/memory/desk")) == 6


def test_nothing_is_moved_to_where_it_would_be_a_mirror(world: World) -> None:
    """What is below it would have the rights of other places."""
    world.restart(rules=[("/memory/(2)/*", "none", ("bob",))])
    note(world, ALICE, "/memory/(2)/a.md")
    aside(world, "archive", "/memory/private/alice/own.md")
    for path in ("/archive/(2)", "/archive/private/alice/(2)"):
        with pytest.raises(Invalid):
            world.rename(ALICE, "/memory/(2)", path)
    assert world.do(ALICE, "archive", **world.at(ALICE, "/memory/(2)"))["path"] == b"/archive/(2)/(2)"
    assert world.names(BOB, "/archive/(2)") == []
    with pytest.raises(Denied):
        world.mkdir(ALICE, "/archive/(2)/private")  # agents' spaces have their mirrors elsewhere
    world.mkdir(BOB, "/memory/foo")
    world.write(BOB, "/memory/foo/alice/note.md", b"planted")
    world.do(BOB, "archive", **world.at(BOB, "/memory/foo"))
    with pytest.raises(Denied):
        world.rename(BOB, "/archive/foo", "/archive/(2)/private")
    for path in ("/archive/(3)", "/archive/private/alice/(2)"):
        with pytest.raises(Invalid):
            world.mkdir(ALICE, path)


@pytest.mark.parametrize("place", ["trash", "archive"])
def test_the_ways_to_what_others_put_away_are_nobodys_to_move_or_to_close(world: World, place: str) -> None:
    for path in ("/memory/private/alice/diary.md", "/memory/desk/plan.md", "/memory/desk/plan.md"):
        aside(world, place, path)
    way, node = f"/{place}/private", world.node(BOB, f"/{place}/private").id
    world.mkdir(BOB, "/memory/pub")
    for who in (BOB, OPERATOR):
        for target in (f"/{place}/pub", f"/{place}/(2)/private", "/memory/other"):
            with pytest.raises(NotPermitted):
                world.rename(who, way, target)
        with pytest.raises(NotPermitted):
            world.rename(who, "/memory/pub", way, renaming.EXCHANGE)
        with pytest.raises(NotPermitted):
            world.rmdir(who, way)
        with pytest.raises(NotPermitted):
            world.do(who, "put_back", node=node)
    for closed in (way, f"/{place}/(2)", f"/{place}"):
        for change in ({"mode": 0o077}, {"uid": 5}):
            with pytest.raises(NotPermitted):
                world.do(BOB, "set_attributes", node=world.node(BOB, closed).id, **change)
    world.do(BOB, "set_attributes", node=node, mode=0o755, mtime=5)
    assert world.bytes(ALICE, f"{way}/alice/diary.md") == b"/memory/private/alice/diary.md"
    assert world.names(BOB, way) == []


def test_nothing_stands_in_the_way_of_what_others_put_away(world: World) -> None:
    world.write(BOB, "/memory/note.md", b"mine")
    for make in (world.mkdir, world.create):
        with pytest.raises(Denied):
            make(BOB, "/archive/private")
    with pytest.raises(Denied):
        world.do(BOB, "symlink", **world.at(BOB, "/archive/private"), target=b"x")
    with pytest.raises(Denied):
        world.rename(BOB, "/memory/note.md", "/archive/private")
    aside(world, "archive", "/memory/private/alice/diary.md")
    assert world.exists(ALICE, "/archive/private/alice/diary.md")


def test_a_file_that_an_older_version_let_stand_there_is_told_of_and_can_be_removed(world: World) -> None:
    if world.mode != "direct":
        pytest.skip("it is put into the tables, behind the writer")
    note(world, BOB, "/archive/privately")
    note(world, ALICE, "/memory/private/alice/diary.md")
    with contextlib.closing(connect(world.path)) as db:
        db.execute("update node set name = cast('private' as blob) where name = cast('privately' as blob)")
    diary = world.at(ALICE, "/memory/private/alice/diary.md")
    with pytest.raises(Exists, match="/archive/private"):
        world.do(ALICE, "archive", **diary)
    assert not remove(world, BOB, "/archive/private")
    assert world.do(ALICE, "archive", **diary)["path"] == b"/archive/private/alice/diary.md"


def test_nothing_comes_back_to_where_it_would_be_in_itself(world: World) -> None:
    note(world, ALICE, "/memory/d/note.md")
    world.do(ALICE, "archive", **world.at(ALICE, "/memory/d"))
    node = world.node(ALICE, "/archive/d").id
    for to in ([b"archive", b"d", b"x"], [b"archive", b"e"], [b"x"], [b"trash", b"d"]):
        with pytest.raises(Invalid):
            world.do(ALICE, "put_back", node=node, to=to)
    assert world.do(ALICE, "put_back", node=node)["path"] == b"/memory/d"


@pytest.mark.parametrize("path", ["/memory/a.md", "/memory/private/alice/a.md", "/memory/(2)/a.md"])
def test_what_is_archived_can_be_removed_and_comes_back_to_the_archive(world: World, path: str) -> None:
    space = path.startswith("/memory/private/") * "/private/alice"
    name = path.removeprefix("/memory").removeprefix(space)
    for _ in (1, 2):
        aside(world, "archive", path)
    was = [f"/archive{space}{mirror}{name}" for mirror in ("", "/(2)")]
    if "(2)" in path:
        was = [f"/archive/({number}){name}" for number in (2, 3)]
    for each in was:
        assert remove(world, ALICE, each)
    with world.reading(ALICE) as reader:
        kept = {paths.text(each.path): (reader.path(each.node.id), each.node.id) for each in reader.removed(9)}
        there = [paths.raw(each.replace("/archive", "/trash")) for each in was]
        assert [kept[each][0] for each in was] == there
        nodes = [kept[each][1] for each in was]
    assert [world.do(ALICE, "put_back", node=node)["path"] for node in nodes] == list(map(paths.raw, was))


def test_what_an_agent_may_only_read_it_can_neither_archive_nor_bring_back(world: World) -> None:
    world.restart(rules=[("/memory/a.md", "ro", ("bob",)), ("/memory/*", "rw", None)])
    note(world, ALICE, "/memory/a.md")
    with pytest.raises(Denied):
        world.do(BOB, "archive", **world.at(BOB, "/memory/a.md"))
    world.do(ALICE, "archive", **world.at(ALICE, "/memory/a.md"))
    assert world.exists(BOB, "/archive/a.md")
    with pytest.raises(Denied):
        world.do(BOB, "put_back", node=world.node(BOB, "/archive/a.md").id)
    with pytest.raises(Invalid):
        world.do(ALICE, "archive", **world.at(ALICE, "/archive/a.md"))


def test_the_archive_is_found_where_it_is_asked_for_and_its_words_do_not_weigh_elsewhere(world: World) -> None:
    for n in range(4):
        note(world, ALICE, f"/memory/2024/n{n}.md", b"harvest number %d" % n)
    note(world, ALICE, "/memory/now.md", b"the harvest of today")
    assert len(found(world, BOB)) == 5
    assert world.do(ALICE, "archive", **world.at(ALICE, "/memory/2024"))["path"] == b"/archive/2024"
    assert found(world, BOB) == [b"/memory/now.md"]
    assert sorted(found(world, BOB, archive=True)) == [
        *(b"/archive/2024/n%d.md" % n for n in range(4)),
        b"/memory/now.md",
    ]
    with world.reading(BOB) as reader:
        root, memory = world.node(BOB, "/").id, world.node(BOB, "/memory").id
        assert reader.counts(root).files == reader.counts(memory).files == 1
        assert reader.counts(world.node(BOB, "/archive").id).files == 4
        assert [e.path for e, _ in reader.listing(root, limit=9, offset=0, query="harvest")[0]] == [b"/memory/now.md"]
    note(world, ALICE, "/memory/2024/late.md")
    world.do(ALICE, "archive", **world.at(ALICE, "/memory/2024"))
    assert world.exists(BOB, "/archive/2024/late.md") and world.exists(BOB, "/archive/2024/n0.md")
    assert not world.exists(BOB, "/memory/2024")
    world.do(BOB, "put_back", node=world.node(BOB, "/archive/2024").id)
    assert len(found(world, BOB)) == 6 and not world.exists(BOB, "/archive/2024")


def test_the_trash_is_emptied_by_who_may_write_there_and_by_age_and_size(world: World) -> None:
    for n in range(3):
        note(world, ALICE, f"/memory/{n}.md", b"%d" % n * 100)
    note(world, BOB, "/memory/private/bob/b.md")
    times = []
    for n in range(3):
        times.append(world.clock())
        remove(world, ALICE, f"/memory/{n}.md")
        world.clock.advance(1)
    remove(world, BOB, "/memory/private/bob/b.md")
    world.do(OPERATOR, "trim_trash", before=0, most=250)
    assert not world.exists(ALICE, "/trash/0.md") and world.exists(ALICE, "/trash/1.md")
    world.do(OPERATOR, "trim_trash", before=times[2], most=10**9)
    assert not world.exists(ALICE, "/trash/1.md") and world.exists(ALICE, "/trash/2.md")
    with pytest.raises(Denied):
        world.do(ALICE, "trim_trash", before=0, most=0)
    assert world.do(ALICE, "empty_trash", before=world.clock() + 1, under=[b"memory", b"other"])["removed"] == 0
    assert world.do(ALICE, "empty_trash", before=world.clock() + 1)["removed"] == 1
    assert world.exists(BOB, "/trash/private/bob/b.md")


def test_all_of_the_trash_is_emptied_though_the_clock_was_ahead(world: World) -> None:
    day = 86_400
    for ahead in (0, day):
        note(world, ALICE, "/memory/a.md")
        world.clock.advance(ahead)
        assert remove(world, ALICE, "/memory/a.md")
        world.clock.advance(-ahead)
    who = Memory(
        Services(
            world.store, Engine(world.store.search_index, None, COUNTER), SearchSettings(), Limits(), world.clock, UTC
        ),
        ALICE,
    )
    assert methods.call(who, "empty_trash", {"older_than_days": 1e-9})["removed"] == 1
    assert methods.call(who, "empty_trash", {})["removed"] == 1
    with world.reading(ALICE) as reader:
        assert reader.removed(10) == []


def test_emptying_ones_trash_asks_nothing_of_what_others_have_there(tmp_path: Path) -> None:
    world = World(tmp_path, "direct")
    try:
        applier = world.applier
        taken = []
        for size in (2, 40):
            for n in range(size):
                world.write(BOB, f"/memory/private/bob/{n}.md", b"the harvest begins in June")
            note(world, ALICE, "/memory/a.md")
            for n in range(size):
                assert remove(world, BOB, f"/memory/private/bob/{n}.md")
            assert remove(world, ALICE, "/memory/a.md")
            ran: list[str] = []
            applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event, ran=ran: ran.append(event["sql"]))
            assert world.do(ALICE, "empty_trash", before=world.clock() + 1) == {"removed": 1, "more": False}
            applier.db.trace_v2(0)
            taken.append(len(ran))
        assert taken[0] == taken[1] > 3
    finally:
        world.close()


def test_the_trash_is_emptied_of_what_was_below_a_place_and_so_many_at_a_time(world: World) -> None:
    for name in ("d/1.md", "d/2.md", "d/e/3.md", "dd/4.md", "d.md"):
        note(world, ALICE, f"/memory/{name}")
        assert remove(world, ALICE, f"/memory/{name}")
    below = {"before": world.clock() + 1, "under": [b"memory", b"d"], "limit": 2}
    assert world.do(ALICE, "empty_trash", **below) == {"removed": 2, "more": True}
    assert world.do(ALICE, "empty_trash", **below) == {"removed": 1, "more": False}
    below["under"] = [b"memory", b"d.md"]
    assert world.do(ALICE, "empty_trash", **below) == {"removed": 1, "more": False}
    below["under"] = []
    assert world.do(ALICE, "empty_trash", **below) == {"removed": 1, "more": False}


def test_nobody_is_charged_for_the_trash_and_who_was_is_again_afterwards(world: World) -> None:
    note(world, ALICE, "/memory/a.md")
    owner = "select owner from node where id = ?"
    node = world.node(ALICE, "/memory/a.md").id
    remove(world, BOB, "/memory/a.md")
    assert world.rows(owner, node) == [(None,)]
    world.do(BOB, "put_back", node=node)
    assert world.rows(owner, node) == [("alice",)]
    remove(world, BOB, "/memory/a.md")
    world.rename(BOB, "/trash/a.md", "/memory/b.md")
    assert world.rows(owner, node) == [("bob",)]
    with pytest.raises(Denied):
        world.rename(BOB, "/memory/b.md", "/trash/b.md")
    with pytest.raises(Denied):
        world.create(BOB, "/trash/b.md")


def test_the_two_directories_stay_and_hold_nothing_at_their_top_for_agents(world: World) -> None:
    for path in ("/trash", "/archive"):
        for command in ("rmdir", "archive"):
            with pytest.raises(Exception, match=r"part of every tree|already|root"):
                world.do(ALICE, command, **world.at(ALICE, path))
    assert paths.origin((b"trash", b"x")) == (b"memory", b"x") and paths.aside((b"memory", b"trash")) == ""


@pytest.mark.parametrize("over", [False, True])
def test_what_was_moved_out_of_the_trash_is_not_emptied_with_it(world: World, over: bool) -> None:
    """A file, over another one or not, and a directory; whoever empties, and before the keeper has looked."""
    for path in ("/memory/a.md", "/memory/dir/b.md", "/memory/stays.md"):
        note(world, ALICE, path)
        assert remove(world, ALICE, path)
    if over:
        world.write(ALICE, "/memory/a.md", b"another")
    world.rename(ALICE, "/trash/a.md", "/memory/a.md")
    world.rename(ALICE, "/trash/dir", "/memory/back")
    with world.reading(ALICE) as reader:
        assert [each.path for each in reader.removed(10)] == [b"/memory/stays.md"]
    assert world.do(BOB, "empty_trash", before=world.clock() + 1)["removed"] == 1
    assert world.bytes(BOB, "/memory/a.md") == world.bytes(BOB, "/memory/back/b.md") == b"the harvest begins in June"


def test_a_row_that_an_older_version_left_behind_empties_nothing(world: World) -> None:
    if world.mode != "direct":
        pytest.skip("the row is put into the tables, behind the writer")
    note(world, ALICE, "/memory/a.md")
    world.write(ALICE, "/memory/b.md", b"lives")
    assert remove(world, ALICE, "/memory/a.md")
    with contextlib.closing(connect(world.path)) as db:
        db.execute("update removed set node = ?", (world.node(ALICE, "/memory/b.md").id,))
    assert world.do(ALICE, "empty_trash", before=world.clock() + 1)["removed"] == 0
    assert world.bytes(ALICE, "/memory/b.md") == b"lives"


def test_an_archived_file_comes_back_to_where_it_was_archived_though_it_was_in_the_trash_before(world: World) -> None:
    note(world, ALICE, "/memory/f.md")
    assert remove(world, ALICE, "/memory/f.md")
    world.rename(ALICE, "/trash/f.md", "/memory/g.md")
    world.do(ALICE, "archive", **world.at(ALICE, "/memory/g.md"))
    assert world.do(ALICE, "put_back", node=world.node(ALICE, "/archive/g.md").id)["path"] == b"/memory/g.md"


@pytest.mark.parametrize("name", [b"x.md:meta", b"x:recall?q=a", b"x:meta?a=b/c", b"a/b", b"..", b"n" * 256, b"\0"])
def test_nothing_comes_back_under_a_name_that_could_not_be_made(world: World, name: bytes) -> None:
    note(world, ALICE, "/memory/a.md")
    assert remove(world, ALICE, "/memory/a.md")
    node = world.node(ALICE, "/trash/a.md").id
    with pytest.raises((Invalid, NameTooLong)):
        world.do(ALICE, "put_back", node=node, to=[b"memory", name])
    assert world.exists(ALICE, "/trash/a.md")


def test_who_lets_a_file_in_the_trash_grow_is_charged_for_it(world: World) -> None:
    note(world, ALICE, "/memory/a.md")
    node = world.node(ALICE, "/memory/a.md").id
    assert remove(world, ALICE, "/memory/a.md")
    world.write(BOB, "/trash/a.md", b"less")
    owner = "select owner from node where id = ?"
    assert world.rows(owner, node) == [(None,)]
    world.write(BOB, "/trash/a.md", b"more" * 100)
    assert world.rows(owner, node) == [("bob",)]


@pytest.mark.parametrize("checked", [False, True])
def test_a_note_over_which_a_symlink_is_moved_is_removed_by_whatever_door(world: World, checked: bool) -> None:
    note(world, ALICE, "/memory/plan.md")
    before = world.document(ALICE, "/memory/plan.md")
    world.do(BOB, "symlink", **world.at(BOB, "/memory/link"), target=b"v2/plan.md")
    engine = Engine(world.store.search_index, None, COUNTER)
    memory = Memory(Services(world.store, engine, SearchSettings(), Limits(), world.clock, UTC), BOB)
    move = partial(memory.rename, b"/memory/link", b"/memory/plan.md")
    for instead_of, error in ((b"", Exists), (hashlib.sha256(b"another").digest(), Stale)):
        with pytest.raises(error):
            move(instead_of)
    assert world.document(ALICE, "/memory/plan.md").id == before.id
    move(hashlib.sha256(b"the harvest begins in June").digest() if checked else None)
    assert world.node(ALICE, "/memory/plan.md").kind is Kind.SYMLINK
    kept = world.node(ALICE, "/trash/plan.md")
    world.unlink(ALICE, "/memory/plan.md")
    assert world.do(ALICE, "put_back", node=kept.id)["path"] == b"/memory/plan.md"
    assert world.document(ALICE, "/memory/plan.md").handle == before.handle


def test_a_search_of_a_directory_with_its_archive_finds_what_was_archived_from_there(world: World) -> None:
    for path in ("shared/farm/plan.md", "shared/farm/plan.md", "shared/other/plan.md", "private/alice/farm/plan.md"):
        note(world, ALICE, f"/memory/{path}")
        world.do(ALICE, "archive", **world.at(ALICE, f"/memory/{path}"))
    note(world, ALICE, "/memory/shared/farm/new.md")
    world.drain()

    def told(who: Principal, under: str) -> list[bytes]:
        engine = Engine(world.store.search_index, None, COUNTER).searching("archive")
        found = engine.search(who, "harvest", under=paths.split(under.encode()), limit=9)
        return sorted(scored.hit.path for scored in found.hits)

    farm = [b"/archive/(2)/shared/farm/plan.md", b"/archive/shared/farm/plan.md", b"/memory/shared/farm/new.md"]
    assert told(ALICE, "/memory/shared/farm") == told(BOB, "/memory/shared/farm") == farm
    assert told(ALICE, "/archive/shared/farm") == farm[1:2]
    hers = b"/archive/private/alice/farm/plan.md"
    assert told(ALICE, "/memory/private/alice") == [hers] and told(BOB, "/memory/private/alice") == []
    assert told(BOB, "/memory") == sorted([*farm, b"/archive/shared/other/plan.md"])
    assert hers in told(ALICE, "/memory") and told(ALICE, "/trash") == []
