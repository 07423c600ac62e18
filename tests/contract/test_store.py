"""The contract of a store: names, visibility, rules, metadata, mail, the log; in both modes.

Documents and bytes are in test_store_documents and test_store_content, searching in test_store_search, opening of
files that may or may not be stores in test_store_opening. Every test ends with an audit of the tables.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from avmfs.access import Principal
from avmfs.errors import (
    AvmError,
    Denied,
    Exists,
    Invalid,
    IsDirectory,
    NameTooLong,
    NotDirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    NotSupported,
    OverQuota,
    Stale,
)
from avmfs.node import UNOWNED, Change, Kind
from avmfs.store.commands import names as command_names
from avmfs.store.identity import OPERATOR
from avmfs.store.rows.nodes import node_of
from avmfs.store.schema.tables import MEMORY, PRIVATE, ROOT, SHARED
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, CAROL, World

Build = Callable[..., World]
EXCHANGE, NOREPLACE = 2, 1


# What every tree has -------------------------------------------------------------------------------------------


def test_a_new_store_has_the_fixed_directories_and_private_spaces(world: World) -> None:
    assert world.names(ALICE, "/") == ["archive", "index", "memory", "trash"]
    assert world.names(ALICE, "/memory") == ["private", "shared"]
    assert world.names(ALICE, "/memory/private") == ["alice"]
    assert world.names(BOB, "/memory/private") == ["bob"]
    assert world.names(OPERATOR, "/memory/private") == ["alice", "bob"]
    with world.reading(ALICE) as reader:
        assert reader.path(MEMORY) == b"/memory" and reader.path(ROOT) == b"/"
        assert reader.node(ROOT).parent is None
        assert reader.agents() == ["alice", "bob"]
        assert reader.subdirectories(MEMORY) == 2 and reader.subdirectories(PRIVATE) == 1


def test_enrolling_twice_changes_nothing(world: World) -> None:
    seq = world.newest_seq()
    assert world.do(ALICE, "enroll") == {"new": False}
    assert world.newest_seq() == seq
    assert world.do(CAROL, "enroll") == {"new": True}
    assert world.exists(CAROL, "/memory/private/carol")


@pytest.mark.parametrize(
    ("parent", "name"), [(ROOT, b"x"), (PRIVATE, b"dave"), (PRIVATE, b"bob2")], ids=["root", "private", "private2"]
)
def test_nothing_can_be_made_or_moved_where_the_system_makes_names(world: World, parent: int, name: bytes) -> None:
    world.write(ALICE, "/memory/a.md", b"a")
    world.mkdir(ALICE, "/memory/d")
    for command, more in (
        ("create", {"mode": 0o644, "exclusive": True}),
        ("mkdir", {"mode": 0o755}),
        ("symlink", {"target": b"/x"}),
    ):
        with pytest.raises(Denied):
            world.do(ALICE, command, parent=parent, name=name, **more)
    for moved in (b"a.md", b"d"):
        with pytest.raises(Denied):
            world.do(ALICE, "rename", parent=MEMORY, name=moved, new_parent=parent, new_name=name)
    for who in (ALICE, OPERATOR):
        with pytest.raises((Denied, NotFound)):
            world.do(who, "rename", parent=MEMORY, name=b"a.md", new_parent=parent, new_name=name)
    with pytest.raises(Denied):
        world.write(ALICE, f"/{name.decode()}" if parent == ROOT else f"/memory/private/{name.decode()}", b"x")
    assert world.names(OPERATOR, "/") == ["archive", "index", "memory", "trash"]


@pytest.mark.parametrize("path", ["/memory", "/memory/shared", "/memory/private", "/memory/private/alice"])
def test_what_every_tree_has_stays_where_it_is(world: World, path: str) -> None:
    world.mkdir(ALICE, "/memory/d")
    for who in (ALICE, OPERATOR):
        with pytest.raises((NotPermitted, Denied, NotFound)):
            world.rmdir(who, path)
        with pytest.raises((NotPermitted, Denied, NotFound, Invalid)):
            world.rename(who, path, "/memory/d/x")
        with pytest.raises((NotPermitted, Denied, NotFound, Invalid)):
            world.rename(who, "/memory/d", path)
        with pytest.raises((NotPermitted, Denied, NotFound, Invalid)):
            world.rename(who, "/memory/d", path, EXCHANGE)
        with pytest.raises((IsDirectory, NotFound)):
            world.unlink(who, path)
    assert world.exists(ALICE, path)


@pytest.mark.parametrize("path", ["/", "/memory", "/memory/shared", "/memory/private", "/trash"])
def test_no_agent_closes_what_all_go_through(world: World, path: str) -> None:
    """Neither by its owner's bits, whoever that is to a mount, nor by an owner; what others may is another thing."""
    node = world.node(ALICE, path)
    for closing in ({"mode": 0}, {"mode": 0o377}, {"mode": 0o555}, {"uid": 7}, {"gid": 7}):
        with pytest.raises((NotPermitted, Denied)):
            world.do(ALICE, "set_attributes", node=node.id, **closing)
    assert world.node(BOB, path) == node
    if path != "/trash":  # where agents write nothing
        world.do(ALICE, "set_attributes", node=node.id, mode=0o750, mtime=1)
        assert world.node(BOB, path).mode == 0o750
    world.do(OPERATOR, "set_attributes", node=node.id, mode=0o500)
    assert world.node(BOB, path).mode == 0o500


# Names ---------------------------------------------------------------------------------------------------------


def test_create_is_decided_by_the_store(world: World) -> None:
    made = world.create(ALICE, "/memory/a.md")
    assert made["new"] is True
    with pytest.raises(Exists):
        world.create(BOB, "/memory/a.md")
    assert world.create(BOB, "/memory/a.md", exclusive=False) == {"node": made["node"], "new": False}
    world.mkdir(ALICE, "/memory/d")
    with pytest.raises(IsDirectory):
        world.create(BOB, "/memory/d", exclusive=False)
    with pytest.raises(Exists):
        world.mkdir(BOB, "/memory/a.md")
    with pytest.raises(Exists):
        world.do(BOB, "symlink", **world.at(BOB, "/memory/d"), target=b"x")


def test_many_threads_creating_one_name_make_one_file(world: World) -> None:
    done: list[object] = []

    def one() -> None:
        try:
            done.append(world.create(ALICE, "/memory/one")["node"])
        except Exists:
            done.append(None)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(done) == 8 and len([made for made in done if made is not None]) == 1


def test_files_directories_and_symlinks_have_what_stat_needs(world: World) -> None:
    made = world.do(ALICE, "create", **world.at(ALICE, "/memory/f"), mode=0o100640, exclusive=True, uid=7, gid=8)[
        "node"
    ]
    world.mkdir(ALICE, "/memory/d")
    link = world.do(ALICE, "symlink", **world.at(ALICE, "/memory/l"), target=b"/memory/f\xff")["node"]
    file, directory = world.node(BOB, "/memory/f"), world.node(BOB, "/memory/d")
    assert (file.id, file.kind, file.mode, file.uid, file.gid, file.size) == (made, Kind.FILE, 0o640, 7, 8, 0)
    assert (directory.kind, directory.uid, directory.size) == (Kind.DIRECTORY, None, 0)
    assert file.document is not None and directory.document is None
    with world.reading(BOB) as reader:
        assert reader.target(link) == b"/memory/f\xff"
        assert reader.node(link).size == len(b"/memory/f\xff") and reader.node(link).document is None
        assert [node.name for node in reader.children(MEMORY)] == [b"d", b"f", b"l", b"private", b"shared"]
        assert reader.path(link) == b"/memory/l"
    before = world.node(BOB, "/memory/d")
    world.clock.advance(1)
    world.write(BOB, "/memory/d/x", b"1")
    assert world.node(BOB, "/memory/d").mtime > before.mtime, "a name came: the directory's time changes"


@pytest.mark.parametrize(
    "name", [b"caf\xe9", b"a\nb", b" ", b"-rf", b"@x", b"a:b", b"100%", "日本".encode(), b"x" * 255]
)
def test_any_bytes_are_a_name(world: World, name: bytes) -> None:
    node = world.do(ALICE, "create", parent=MEMORY, name=name, mode=0o644, exclusive=True)["node"]
    with world.reading(BOB) as reader:
        found = reader.child(MEMORY, name)
        assert found is not None and found.id == node and found.name == name
        assert reader.path(node) == b"/memory/" + name
    world.do(ALICE, "unlink", parent=MEMORY, name=name)
    assert not world.rows("select 1 from node where parent = ? and name = ?", MEMORY, name)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        (b"", Invalid),
        (b".", Invalid),
        (b"..", Invalid),
        (b"a/b", Invalid),
        (b"a\0b", Invalid),
        (b"n.md:shared", Invalid),
        (b"n.md:meta?x=1", Invalid),
        (b"n:recall:q=1", Invalid),
        (b"x" * 256, NameTooLong),
    ],
)
def test_bad_names_and_view_names_cannot_be_made(world: World, name: bytes, refusal: type[AvmError]) -> None:
    world.write(ALICE, "/memory/a", b"1")
    seq = world.newest_seq()
    with pytest.raises(refusal):
        world.do(ALICE, "create", parent=MEMORY, name=name, mode=0o644, exclusive=True)
    with pytest.raises(refusal):
        world.do(ALICE, "mkdir", parent=MEMORY, name=name, mode=0o755)
    with pytest.raises(refusal):
        world.do(ALICE, "rename", parent=MEMORY, name=b"a", new_parent=MEMORY, new_name=name)
    with pytest.raises(refusal):
        world.do(ALICE, "write_path", path=[b"memory", name], data=b"x")
    assert world.newest_seq() == seq


def test_unlink_and_rmdir_tell_the_kinds_apart(world: World) -> None:
    world.write(ALICE, "/memory/d/f", b"1")
    with pytest.raises(NotFound):
        world.do(ALICE, "unlink", parent=MEMORY, name=b"none")
    with pytest.raises(IsDirectory):
        world.unlink(ALICE, "/memory/d")
    with pytest.raises(NotDirectory):
        world.rmdir(ALICE, "/memory/d/f")
    with pytest.raises(NotEmpty):
        world.rmdir(ALICE, "/memory/d")
    world.unlink(BOB, "/memory/d/f")
    world.rmdir(BOB, "/memory/d")
    assert not world.exists(ALICE, "/memory/d")


def test_a_directory_with_a_child_that_the_asker_cannot_see_is_not_empty(world: World) -> None:
    world.write(ALICE, "/memory/d/secret", b"1")
    world.share(ALICE, "/memory/d/secret", "alice")
    assert world.names(BOB, "/memory/d") == []
    with pytest.raises(NotEmpty):
        world.rmdir(BOB, "/memory/d")
    with pytest.raises(Exists):
        world.create(BOB, "/memory/d/secret", exclusive=False)
    with pytest.raises(Exists):
        world.mkdir(BOB, "/memory/d/secret")
    with pytest.raises(Exists):
        world.write(BOB, "/memory/d/secret", b"mine")
    world.write(BOB, "/memory/other", b"2")
    with pytest.raises(Exists):
        world.rename(BOB, "/memory/other", "/memory/d/secret")
    with pytest.raises(NotFound):
        world.unlink(BOB, "/memory/d/secret")
    assert world.bytes(ALICE, "/memory/d/secret") == b"1"


# Visibility ----------------------------------------------------------------------------------------------------


def test_a_private_space_does_not_exist_for_others(world: World) -> None:
    world.write(ALICE, "/memory/private/alice/diary.md", b"dear diary")
    world.tag(ALICE, "/memory/private/alice/diary.md", "secret")
    node = world.node(ALICE, "/memory/private/alice/diary.md")
    home = world.node(ALICE, "/memory/private/alice").id
    document = world.document(ALICE, "/memory/private/alice/diary.md")
    assert node.document == document.id
    questions: list[Callable[..., object]] = [
        lambda r: r.node(node.id),
        lambda r: r.path(node.id),
        lambda r: r.read(node.id, 0, 100),
        lambda r: r.open_node(node.id),
        lambda r: r.target(node.id),
        lambda r: r.children(home),
        lambda r: r.subdirectories(home),
        lambda r: r.document(node),
        lambda r: r.versions(document.id),
        lambda r: r.version_bytes(document.id, 1),
        lambda r: r.tags(document.id),
        lambda r: r.links(document.id),
        lambda r: r.unindexed(document.id),
        lambda r: r.changes(home),
        lambda r: r.listing(home, limit=9, offset=0),
        lambda r: r.counts(home),
        lambda r: r.tag_counts(home),
    ]
    leaked = []
    for number, ask in enumerate(questions):
        with world.reading(BOB) as reader:
            try:
                leaked.append((number, ask(reader)))
            except (NotFound, Stale):
                continue
    assert leaked == []
    with world.reading(BOB) as reader:
        assert reader.child(PRIVATE, b"alice") is None and reader.child(home, b"diary.md") is None
        assert reader.by_handle(document.handle) is None
        assert reader.tag_counts(ROOT) == []
        assert all(b"alice" not in change.path for change in reader.changes(ROOT))
        assert all(b"alice" not in entry.path for entry, _ in reader.listing(ROOT, limit=99, offset=0, query="")[0])


@pytest.mark.parametrize("path", ["/memory/private/alice/f", "/memory/private/alice"])
def test_no_command_reaches_into_anothers_private_space(world: World, path: str) -> None:
    world.write(ALICE, "/memory/private/alice/f", b"1")
    world.write(BOB, "/memory/mine", b"2")
    mine, node, home = world.node(BOB, "/memory/mine").id, world.node(ALICE, path).id, world.node(ALICE, path).parent
    name = path.rpartition("/")[2].encode()
    attempts: list[tuple[str, dict[str, object]]] = [
        ("create", {"parent": node, "name": b"x", "mode": 0, "exclusive": True}),
        ("mkdir", {"parent": node, "name": b"x", "mode": 0}),
        ("symlink", {"parent": node, "name": b"x", "target": b"y"}),
        ("unlink", {"parent": home, "name": name}),
        ("rmdir", {"parent": home, "name": name}),
        ("rename", {"parent": home, "name": name, "new_parent": MEMORY, "new_name": b"got"}),
        ("rename", {"parent": MEMORY, "name": b"mine", "new_parent": node, "new_name": b"f"}),
        ("set_attributes", {"node": node, "mode": 0}),
        ("commit", {"node": node, "handle": None, "edits": [["w", 0, b"evil"]]}),
        ("append", {"node": node, "handle": None, "data": b"evil"}),
        ("write_path", {"path": [b"memory", b"private", b"alice", b"f"], "data": b"evil"}),
        ("write_path", {"path": [b"memory", b"private", b"alice", b"new"], "data": b"evil"}),
        ("write_many", {"items": [[[b"memory", b"private", b"alice", b"new"], b"evil"]]}),
        ("remember", {"path": [b"memory", b"private", b"alice", b"new"], "data": b"evil"}),
        ("set_tags", {"node": node, "add": ["x"], "remove": [], "replace": True}),
        ("add_link", {"node": mine, "target": node, "type": "t"}),
        ("add_link", {"node": node, "target": mine, "type": "t"}),
        ("remove_link", {"node": mine, "target": node, "type": None}),
        ("set_shared", {"node": node, "agents": ["bob"]}),
        ("set_ttl", {"node": node, "expires": 1}),
        ("merge_meta", {"node": node, "importance": 1.0, "user": {}}),
        ("mark", {"node": node}),
    ]
    seq = world.newest_seq()
    for command, arguments in attempts:
        with pytest.raises(NotFound):
            print(command, arguments, world.do(BOB, command, **arguments))
    assert world.newest_seq() == seq
    assert world.bytes(ALICE, "/memory/private/alice/f") == b"1"


def test_operators_see_and_change_all(world: World) -> None:
    world.write(ALICE, "/memory/private/alice/f", b"1")
    assert world.bytes(OPERATOR, "/memory/private/alice/f") == b"1"
    world.write(OPERATOR, "/memory/private/alice/f", b"2")
    assert world.bytes(ALICE, "/memory/private/alice/f") == b"2"


def test_maintenance_is_for_operators(world: World) -> None:
    world.write(ALICE, "/memory/private/alice/f", b"words here")
    world.drain()
    passage = world.rows("select id from passage")[0][0]
    for command, arguments in (
        ("settle", {}),
        ("reap_orphans", {"nodes": []}),
        ("reap_all_orphans", {}),
        ("forget_clients", {"before": 0}),
        ("put_vectors", {"model": "m", "vectors": [[passage, b"\0" * 8]]}),
        ("drop_vectors", {"passages": [passage]}),
        ("follow_model", {"model": "m", "dimension": 2}),
        ("skip_vectors", {"documents": [], "model": "m"}),
        ("reap_expired", {}),
    ):
        with pytest.raises(Denied):
            world.do(BOB, command, **arguments)


def test_rules_by_pattern_make_read_only_and_hidden_places(build: Build) -> None:
    world = build(
        [
            ("/memory/ro/*", "ro", None),
            ("/memory/own/*", "rw", ("alice",)),
            ("/memory/own/*", "ro", None),
            ("/memory/dark/*", "none", ("bob",)),
            ("*.secret", "none", ("bob",)),
        ]
    )
    world.mkdir(ALICE, "/memory/plain")
    with pytest.raises(Denied):
        world.mkdir(ALICE, "/memory/ro")
    world.write(ALICE, "/memory/own/f", b"1")
    world.write(ALICE, "/memory/dark/f", b"2")
    world.write(ALICE, "/memory/plain/x.secret", b"3")
    assert world.bytes(BOB, "/memory/own/f") == b"1"
    with pytest.raises(Denied):
        world.write(BOB, "/memory/own/f", b"x")
    with pytest.raises(Denied):
        world.create(BOB, "/memory/own/g")
    with pytest.raises(Denied):
        world.unlink(BOB, "/memory/own/f")
    with pytest.raises(Denied):
        world.rename(BOB, "/memory/own/f", "/memory/plain/f")
    with pytest.raises(Denied):
        world.tag(BOB, "/memory/own/f", "t")
    with pytest.raises(Denied):
        world.do(BOB, "set_attributes", node=world.node(BOB, "/memory/own/f").id, mode=0)
    world.do(BOB, "mark", node=world.node(BOB, "/memory/own/f").id)  # reading is allowed, so is remembering it
    assert not world.exists(BOB, "/memory/dark") and not world.exists(BOB, "/memory/plain/x.secret")
    assert world.names(BOB, "/memory/plain") == []
    with pytest.raises(Exists):
        world.mkdir(BOB, "/memory/dark")
    with pytest.raises(NotFound):
        world.write(BOB, "/memory/dark/g", b"")
    with pytest.raises(Denied):
        world.create(BOB, "/memory/plain/y.secret")


def test_the_default_may_be_read_only(build: Build) -> None:
    world = build([("/memory/*", "rw", ("alice",)), ("/memory/open/*", "rw", None)], default="ro")
    world.write(ALICE, "/memory/f", b"1")
    with pytest.raises(Denied):
        world.write(BOB, "/memory/f", b"2")
    world.mkdir(ALICE, "/memory/open")
    world.write(BOB, "/memory/open/f", b"2")
    with pytest.raises(Denied):
        world.write(BOB, "/memory/private/bob/f", b"private, and still read-only by the default")


def test_a_changed_rule_rescopes_when_the_store_settles(build: Build) -> None:
    world = build()
    world.write(ALICE, "/memory/plans/a.md", b"the plan is secret")
    world.write(ALICE, "/memory/plans/deep/b.md", b"the other plan")
    world.write(ALICE, "/memory/private/alice/c.md", b"mine")
    world.drain()
    assert world.exists(BOB, "/memory/plans/deep/b.md")
    world.restart([("/memory/plans/*", "none", ("bob",))])
    assert not world.exists(BOB, "/memory/plans")
    if world.mode == "direct":  # a writer that finds the time indexes them meanwhile
        assert world.rows("select count(*) from lexical_queue") == [(2,)], "hidden at once, indexed anew"
    index = world.store.search_index(BOB)
    assert [len(index.postings(["plan"])[0]), len(index.postings(["secret"])[0])] == [0, 0]
    world.drain()
    assert len(world.store.search_index(ALICE).postings(["plan"])[0]) == 2
    world.restart([("/memory/plans/*", "ro", None)])
    assert world.bytes(BOB, "/memory/plans/a.md") == b"the plan is secret"
    with pytest.raises(Denied):
        world.write(ALICE, "/memory/plans/a.md", b"x")
    world.restart()
    if world.mode == "direct":
        assert world.rows("select count(*) from lexical_queue") == [(2,)], "the same rules: nothing is folded again"


def test_settling_and_moving_survive_very_deep_trees(build: Build) -> None:
    world = build()
    if world.log:
        pytest.skip("the tree is put into one host's tables, behind the log")
    world.create(ALICE, "/memory/f")
    bottom = world.deepen(world.mkdir(ALICE, "/memory/deep"), 1200)
    db = connect(world.path)  # nor can a file be made there any more
    db.execute("update node set parent = ? where name = cast('f' as blob)", (bottom,))
    db.close()
    world.restart()
    world.rename(ALICE, "/memory/deep", "/memory/deeper")
    world.restart([("/memory/deeper/*", "none", ("bob",))])
    assert not world.exists(BOB, "/memory/deeper")


def test_shared_limits_a_file_to_some_agents(world: World) -> None:
    world.write(ALICE, "/memory/f", b"1")
    with pytest.raises(Denied):
        world.do(BOB, "set_shared", node=world.node(BOB, "/memory/f").id, agents=["bob"])
    world.share(ALICE, "/memory/f", "bob")
    assert world.document(BOB, "/memory/f").shared == ("alice", "bob")
    world.write(BOB, "/memory/f", b"2")
    assert not world.exists(CAROL, "/memory/f")
    world.share(ALICE, "/memory/f", "carol")
    assert not world.exists(BOB, "/memory/f") and world.bytes(CAROL, "/memory/f") == b"2"
    world.share(ALICE, "/memory/f")
    assert world.document(BOB, "/memory/f").shared is None
    world.write(ALICE, "/memory/private/alice/g", b"3")
    with pytest.raises(Invalid):
        world.share(ALICE, "/memory/private/alice/g", "bob")
    with pytest.raises((IsDirectory, Denied)):
        world.share(ALICE, "/memory/shared", "bob")


@pytest.mark.parametrize("name", ["", "x;y", "x=rw", "eve,bob", "*", "Bob", "all", "a" * 65])
def test_shared_takes_agent_ids_alone(world: World, name: str) -> None:
    world.write(ALICE, "/memory/f", b"1")
    with pytest.raises(Invalid):
        world.share(ALICE, "/memory/f", name)
    assert world.bytes(BOB, "/memory/f") == b"1"


def test_shared_never_widens_what_a_rule_narrowed(build: Build) -> None:
    world = build([("/memory/f", "ro", ("bob",)), ("/memory/f", "none", ("carol",))])
    world.write(ALICE, "/memory/f", b"1")
    world.share(ALICE, "/memory/f", "bob", "carol")
    assert world.bytes(BOB, "/memory/f") == b"1" and not world.exists(CAROL, "/memory/f")
    with pytest.raises(Denied):
        world.write(BOB, "/memory/f", b"2")


def test_an_open_file_that_moved_out_of_sight_is_not_read_on(world: World) -> None:
    world.write(ALICE, "/memory/f", b"public")
    node = world.node(BOB, "/memory/f").id
    world.rename(ALICE, "/memory/f", "/memory/private/alice/f")
    world.write(ALICE, "/memory/private/alice/f", b"private now")
    with world.reading(BOB) as reader, pytest.raises((Stale, NotFound)):
        reader.read(node, 0, 100)
    # The quick way too, whoever of this process has had the bytes just before.
    assert world.store.cached_read(ALICE, node, 0, 100) == b"private now"
    with pytest.raises(Stale):
        world.store.cached_read(BOB, node, 0, 100)
    with pytest.raises(NotFound):
        world.do(BOB, "append", node=node, handle=None, data=b"x")


# Renaming ------------------------------------------------------------------------------------------------------


def test_rename_has_the_errors_of_renameat2(world: World) -> None:
    for path in ("/memory/d/f", "/memory/e/g"):
        world.write(ALICE, path, path.encode())
    world.mkdir(ALICE, "/memory/empty")
    with pytest.raises(NotFound):
        world.rename(ALICE, "/memory/none", "/memory/x")
    with pytest.raises(Invalid):
        world.rename(ALICE, "/memory/d", "/memory/d/sub")
    with pytest.raises(IsDirectory):
        world.rename(ALICE, "/memory/d/f", "/memory/empty")
    with pytest.raises(NotDirectory):
        world.rename(ALICE, "/memory/empty", "/memory/d/f")
    with pytest.raises(NotEmpty):
        world.rename(ALICE, "/memory/d", "/memory/e")
    with pytest.raises(Exists):
        world.rename(ALICE, "/memory/d/f", "/memory/e/g", NOREPLACE)
    with pytest.raises(NotFound):
        world.rename(ALICE, "/memory/d/f", "/memory/none", EXCHANGE)
    with pytest.raises(Invalid):
        world.rename(ALICE, "/memory/d/f", "/memory/e/g", EXCHANGE | NOREPLACE)
    with pytest.raises(Invalid):
        world.rename(ALICE, "/memory/d/f", "/memory/e/g", 8)
    seq = world.newest_seq()
    world.rename(ALICE, "/memory/d/f", "/memory/d/f")
    assert world.newest_seq() == seq, "to itself: nothing happens"
    world.rename(ALICE, "/memory/d", "/memory/empty")
    assert world.bytes(BOB, "/memory/empty/f") == b"/memory/d/f" and not world.exists(BOB, "/memory/d")
    world.rename(ALICE, "/memory/empty/f", "/memory/h", NOREPLACE)
    assert world.bytes(BOB, "/memory/h") == b"/memory/d/f"


def test_a_replaced_directory_leaves_nothing(world: World) -> None:
    world.mkdir(ALICE, "/memory/a")
    world.mkdir(ALICE, "/memory/b")
    world.do(BOB, "mark", node=world.node(BOB, "/memory/b").id)
    world.rename(ALICE, "/memory/a", "/memory/b")
    assert world.names(ALICE, "/memory") == ["b", "private", "shared"]


def test_exchange_swaps_two_names(world: World) -> None:
    world.write(ALICE, "/memory/f", b"file")
    world.write(ALICE, "/memory/private/alice/d/x", b"below")
    world.tag(ALICE, "/memory/f", "t")
    world.rename(ALICE, "/memory/f", "/memory/private/alice/d", EXCHANGE)
    assert world.bytes(BOB, "/memory/f/x") == b"below"
    assert world.bytes(ALICE, "/memory/private/alice/d") == b"file"
    assert world.tags(ALICE, "/memory/private/alice/d") == ["t"]
    with pytest.raises(Invalid):
        world.rename(ALICE, "/memory/f/x", "/memory/f", EXCHANGE)


def test_moving_a_directory_moves_the_scope_of_all_below(world: World) -> None:
    for name in ("a", "s/b", "s/t/c"):
        world.write(ALICE, f"/memory/private/alice/d/{name}", name.encode())
    world.drain()
    assert not len(world.store.search_index(BOB).postings(["b"])[0])
    world.rename(ALICE, "/memory/private/alice/d", "/memory/d")
    assert world.bytes(BOB, "/memory/d/s/t/c") == b"s/t/c"
    world.rename(ALICE, "/memory/d", "/memory/private/alice/d")
    assert not world.exists(BOB, "/memory/d")
    with world.reading(BOB) as reader:
        assert reader.counts(ROOT).files == 0
        rows = reader.changes(ROOT, limit=100)
    assert all(b"private" not in change.path + (change.other or b"") for change in rows if change.agent == "alice")
    assert [change.op for change in rows if change.path == b"/memory/d"] == ["remove", "create"]


def changes(world: World, who: Principal, after: int) -> list[Change]:
    """What ``who`` is told below /memory since then, in its order."""
    with world.reading(who) as reader:
        return reader.changes(MEMORY, after_seq=after, newest_first=False)


def test_what_is_below_a_directory_that_changes_hands_is_told_file_by_file(world: World) -> None:
    """As of a file that moves by itself: who sees it now is told that it came, who does not any more that it went; and
    nobody where it was or is while it is not theirs to see."""
    old, new = "/memory/private/alice/d", "/memory/shared/d"
    for name in ("a.md", "s/t/b.md"):
        world.write(ALICE, f"{old}/{name}", b"x")
    world.do(ALICE, "symlink", **world.at(ALICE, f"{old}/l"), target=b"a.md")
    documents = {f"{new}/{name}".encode(): world.document(ALICE, f"{old}/{name}").id for name in ("a.md", "s/t/b.md")}
    names = [b"", b"/a.md", b"/l", b"/s/t/b.md"]

    def told(who: Principal, after: int) -> list[tuple[str, bytes, int | None]]:
        rows = changes(world, who, after)
        assert all(change.other is None for change in rows)
        return [(change.op, change.path, change.document) for change in rows]

    for source, target in ((old, new), (new, old)):
        before = world.newest_seq()
        world.rename(ALICE, source, target)
        op, shared = ("create" if target == new else "remove"), new.encode()
        seen = [(op, shared + name, documents.get(shared + name)) for name in names]
        assert told(BOB, before) == seen
        both = told(ALICE, before)
        assert [row for row in both if row[1].startswith(shared)] == seen
        assert sorted(path for op, path, _ in both) == sorted(
            top.encode() + name for top in (old, new) for name in names
        )


def test_what_is_below_two_directories_that_are_exchanged_is_told_file_by_file(world: World) -> None:
    ours, theirs = "/memory/private/alice/d", "/memory/shared/d"
    for path in (f"{ours}/both", f"{ours}/mine", f"{theirs}/both", f"{theirs}/ours"):
        world.write(ALICE, path, b"x")
    before = world.newest_seq()
    world.rename(ALICE, ours, theirs, EXCHANGE)
    assert [(change.op, change.path) for change in changes(world, BOB, before)] == [
        ("rename", b"/memory/shared/d"),
        ("remove", b"/memory/shared/d/both"),
        ("remove", b"/memory/shared/d/ours"),
        ("create", b"/memory/shared/d/both"),
        ("create", b"/memory/shared/d/mine"),
    ]


def test_of_what_is_below_a_directory_only_what_changes_hands_is_told(build: Build) -> None:
    world = build([("/memory/e/kept/*", "ro", ("bob",))])
    for path in ("/memory/d/kept/f", "/memory/d/g"):
        world.write(ALICE, path, b"x")
    before = world.newest_seq()
    world.rename(ALICE, "/memory/d", "/memory/e")
    assert [(change.op, change.path) for change in changes(world, BOB, before)] == [
        ("remove", b"/memory/d/kept/f"),
        ("rename", b"/memory/e"),
        ("create", b"/memory/e/kept/f"),
    ]


def test_a_failing_rename_leaves_nothing_behind(build: Build) -> None:
    world = build([("/memory/d/locked/*", "ro", ("bob",))])
    for name in ("a", "b", "locked/c", "z"):
        world.write(ALICE, f"/memory/d/{name}", b"x")
    world.drain()
    before = [world.rows(f"select * from {table} order by 1, 2") for table in ("node", "document", "log", "passage")]
    for target in ("/memory/private/bob/d", "/memory/moved"):
        with pytest.raises((NotEmpty, Denied)):
            world.rename(BOB, "/memory/d", target)
    assert before == [
        world.rows(f"select * from {table} order by 1, 2") for table in ("node", "document", "log", "passage")
    ]


@pytest.mark.parametrize("way", ["move", "exchange", "put back"])
def test_nothing_comes_with_a_directory_to_where_its_mover_may_not_write(build: Build, way: str) -> None:
    world = build([("/memory/e/kept/*", "ro", ("bob",))])
    world.write(BOB, "/memory/d/kept/f", b"x")
    source = "/memory/d"
    if way == "exchange":
        world.mkdir(BOB, "/memory/e")
    if way == "put back":
        source = world.do(BOB, "archive", **world.at(BOB, source))["path"].decode()
    with pytest.raises(Denied):
        if way == "put back":
            world.do(BOB, "put_back", node=world.node(BOB, source).id, to=[b"memory", b"e"])
        else:
            world.rename(BOB, source, "/memory/e", EXCHANGE if way == "exchange" else 0)
    assert world.bytes(BOB, f"{source}/kept/f") == b"x" and not world.exists(ALICE, "/memory/e/kept")
    world.rename(ALICE, source, "/memory/e")
    assert world.bytes(BOB, "/memory/e/kept/f") == b"x"


def test_a_scope_that_was_rolled_back_is_not_remembered(build: Build) -> None:
    """The failing command interns new scopes first; whoever gets their numbers next must not be mixed up with them."""
    world = build([("/memory/x/*", "ro", ("dave",)), ("/memory/x/locked", "ro", ("alice",))])
    world.write(ALICE, "/memory/d/a", b"1")
    world.write(ALICE, "/memory/d/locked", b"2")
    world.share(ALICE, "/memory/d/locked", "alice")
    for _ in range(2):
        with pytest.raises(NotEmpty):
            world.rename(BOB, "/memory/d", "/memory/x")
        with pytest.raises(NotFound):
            tell(world, BOB, "nobody", "x")
    for who in (CAROL, Principal("dave"), Principal("erin")):
        world.do(who, "enroll")
        world.write(who, f"/memory/private/{who.name}/f", who.name.encode())
    for who in (CAROL, Principal("dave"), Principal("erin")):
        assert world.names(who, "/memory/private") == [who.name]


# Attributes, ttl -----------------------------------------------------------------------------------------------


def test_attributes_stay_as_set(world: World) -> None:
    world.write(ALICE, "/memory/f", b"1")
    node = world.node(ALICE, "/memory/f")
    world.do(ALICE, "set_attributes", node=node.id, mode=0o600, uid=5, gid=6, atime=10, mtime=20)
    found = world.node(BOB, "/memory/f")
    assert (found.mode, found.uid, found.gid, found.atime, found.mtime) == (0o600, 5, 6, 10, 20)
    assert found.ctime > node.ctime
    world.do(ALICE, "set_attributes", node=node.id, atime=11, explicit=False)
    assert world.node(BOB, "/memory/f").ctime == found.ctime
    world.do(ALICE, "set_attributes", node=node.id, uid=UNOWNED)
    disowned = world.node(BOB, "/memory/f")
    assert (disowned.uid, disowned.gid) == (None, 6) and disowned.ctime > found.ctime
    seq = world.newest_seq()
    world.do(ALICE, "set_attributes", node=node.id)
    assert world.newest_seq() == seq
    with world.reading(BOB) as reader:
        assert "attributes" not in {change.op for change in reader.changes(ROOT)}


def test_a_file_whose_ttl_has_passed_is_gone_from_every_route(world: World) -> None:
    world.write(ALICE, "/memory/d/f", b"soon gone")
    world.write(ALICE, "/memory/g", b"stays")
    world.tag(ALICE, "/memory/d/f", "t")
    node, target = world.node(ALICE, "/memory/d/f"), world.node(ALICE, "/memory/g")
    document = world.document(ALICE, "/memory/d/f")
    world.do(ALICE, "add_link", node=target.id, target=node.id, type="see")
    world.do(ALICE, "set_ttl", node=node.id, expires=world.clock() + 60 * 10**9)
    world.drain()
    assert world.node(BOB, "/memory/d/f").expires is not None
    world.clock.advance(61)
    assert not world.exists(ALICE, "/memory/d/f") and world.names(ALICE, "/memory/d") == []
    with world.reading(ALICE) as reader:
        assert reader.by_handle(document.handle) is None
        assert reader.links(world.document(ALICE, "/memory/g").id) == []
        assert reader.tag_counts(ROOT) == [] and reader.counts(ROOT).files == 1
        assert [entry.path for entry, _ in reader.listing(ROOT, limit=9, offset=0, query="")[0]] == [b"/memory/g"]
        with pytest.raises(NotFound):
            reader.versions(document.id)
        assert reader.open_node(node.id).id == node.id and reader.read(node.id, 0, 9) == b"soon gone", "held open"
        hits = world.store.search_index(ALICE)
        assert hits.hits([row[0] for row in world.rows("select id from passage")], ())[0].path == b"/memory/g"
    with pytest.raises(NotFound):
        world.tag(ALICE, "/memory/d/f", "x")
    with pytest.raises(NotFound):
        world.unlink(ALICE, "/memory/d/f")
    world.write(BOB, "/memory/d/f", b"anew")
    assert world.document(BOB, "/memory/d/f").id != document.id
    world.do(BOB, "set_ttl", node=world.node(BOB, "/memory/d/f").id, expires=world.clock() + 10**9)
    world.clock.advance(2)
    world.rmdir(BOB, "/memory/d")


@pytest.mark.parametrize("way", ["move", "exchange", "archive"])
def test_what_has_expired_below_a_directory_holds_it_no_more(still: World, way: str) -> None:
    """Of another agent, who could be told where the directory went."""
    world, old, new = still, "/memory/d", "/memory/private/alice/d"
    for path in (f"{old}/x", f"{old}/s/t/y"):
        world.write(BOB, path, b"soon gone")
        world.share(BOB, path, "bob")
        world.do(BOB, "set_ttl", node=world.node(BOB, path).id, expires=world.clock() + 60 * 10**9)
    world.write(ALICE, f"{old}/z", b"stays")
    world.mkdir(ALICE, new)
    if way == "archive":
        world.mkdir(ALICE, "/memory/again")
        world.rename(ALICE, "/memory/again", "/archive/d")
        new = "/archive/d"
    world.clock.advance(61)
    before = world.newest_seq()
    if way == "archive":  # into the directory of that name
        world.do(ALICE, "archive", **world.at(ALICE, old))
    else:
        world.rename(ALICE, old, new, EXCHANGE if way == "exchange" else 0)
    assert world.bytes(ALICE, f"{new}/z") == b"stays"
    gone = [change.path for change in changes(world, BOB, before) if change.path.endswith((b"/x", b"/y"))]
    assert sorted(gone) == [b"/memory/d/s/t/y", b"/memory/d/x"]


def test_who_knows_the_number_of_an_expired_file_can_say_nothing_more_about_it(world: World) -> None:
    """Least of all that it lives on."""
    world.write(ALICE, "/memory/f", b"x")
    world.write(ALICE, "/memory/g", b"x")
    node, other = world.node(ALICE, "/memory/f").id, world.node(ALICE, "/memory/g").id
    world.do(ALICE, "set_ttl", node=node, expires=world.clock() + 10**9)
    world.clock.advance(2)
    before = world.newest_seq()
    for command, arguments in (
        ("set_ttl", {"expires": None}),
        ("set_tags", {"add": ["t"], "remove": [], "replace": False}),
        ("set_shared", {"agents": ["bob"]}),
        ("merge_meta", {"importance": 1.0, "user": {}}),
        ("add_link", {"target": other, "type": "see"}),
        ("remove_link", {"target": other}),
        ("set_attributes", {"mode": 0o600}),
        ("mark", {"version": 1}),
    ):
        for who in (ALICE, BOB):
            with pytest.raises(NotFound):
                world.do(who, command, node=node, **arguments)
    with pytest.raises(NotFound):
        world.do(ALICE, "add_link", node=other, target=node, type="see")
    for command, arguments in (("commit", {"edits": [["w", 0, b"y"]]}), ("append", {"data": b"y"})):
        for who, handle in ((ALICE, None), (ALICE, 7), (BOB, None)):  # 7: as who has held it open since before
            with pytest.raises(Stale):
                world.do(who, command, node=node, handle=handle, **arguments)
    assert not world.exists(ALICE, "/memory/f") and world.newest_seq() == before


def test_expired_files_are_reaped_and_a_ttl_can_be_taken_back(world: World) -> None:
    for name in ("a", "b", "c"):
        world.write(ALICE, f"/memory/{name}", b"x" * 100_000)
        world.do(ALICE, "set_ttl", node=world.node(ALICE, f"/memory/{name}").id, expires=world.clock() + 10**9)
    world.do(ALICE, "set_ttl", node=world.node(ALICE, "/memory/c").id, expires=None)
    world.clock.advance(5)
    assert world.do(OPERATOR, "reap_expired", limit=1) == {"reaped": 1}
    assert world.do(OPERATOR, "reap_expired") == {"reaped": 1}
    assert world.do(OPERATOR, "reap_expired") == {"reaped": 0}
    assert world.names(ALICE, "/memory") == ["c", "private", "shared"]


def test_unlinked_files_keep_their_bytes_while_held(world: World) -> None:
    world.write(ALICE, "/memory/f", b"x" * 200_000)
    node = world.node(ALICE, "/memory/f")
    world.unlink(ALICE, "/memory/f")
    if world.mode == "direct":
        assert world.store.orphans() == [] and world.rows("select * from block") == []
        return
    assert world.store.orphans() == [(node.id, 0)]
    with world.reading(ALICE) as reader:
        assert reader.open_node(node.id).parent is None and len(reader.read(node.id, 0, node.size)) == node.size
        with pytest.raises(NotFound):
            reader.path(node.id)
        with pytest.raises(NotFound):
            reader.node(node.id)
    world.do(ALICE, "hold", holder=b"mount-1", nodes=[node.id, 12345])
    assert world.store.orphans()[0][1] > 0
    assert world.do(ALICE, "append", node=node.id, handle=1, data=b"y")["version"] is None
    assert world.do(OPERATOR, "reap_orphans", nodes=[node.id, ROOT, MEMORY, 99]) == {"reaped": 1, "more": False}
    assert world.rows("select * from block") == [] and world.store.orphans() == []
    with pytest.raises(Stale):
        world.do(ALICE, "append", node=node.id, handle=1, data=b"y")


def test_a_new_daemon_frees_all_unlinked_files(world: World) -> None:
    for size in (10, 200_000):
        world.write(ALICE, "/memory/f", b"x" * size)
        world.unlink(ALICE, "/memory/f")
    world.do(OPERATOR, "reap_all_orphans")
    assert world.store.orphans() == [] and world.rows("select id from node where kind = 1") == []


# Said about documents ------------------------------------------------------------------------------------------


def test_tags_links_and_metadata(world: World) -> None:
    world.write(ALICE, "/memory/a", b"1")
    world.write(ALICE, "/memory/b", b"2")
    a, b = world.node(ALICE, "/memory/a"), world.node(ALICE, "/memory/b")
    world.tag(ALICE, "/memory/a", "x", "y")
    world.do(BOB, "set_tags", node=a.id, add=["z"], remove=["x"], replace=False)
    assert world.tags(ALICE, "/memory/a") == ["y", "z"]
    world.do(BOB, "set_tags", node=a.id, add=["only"], remove=[], replace=True)
    assert world.tags(ALICE, "/memory/a") == ["only"]
    world.do(ALICE, "add_link", node=a.id, target=b.id, type="cites")
    world.do(ALICE, "add_link", node=a.id, target=b.id, type="cites")
    world.do(ALICE, "add_link", node=a.id, target=b.id, type="see")
    with pytest.raises(Invalid):
        world.do(ALICE, "add_link", node=a.id, target=a.id, type="see")
    assert a.document is not None and b.document is not None
    with world.reading(BOB) as reader:
        assert [(link.outgoing, link.path, link.type) for link in reader.links(a.document)] == [
            (True, b"/memory/b", "cites"),
            (True, b"/memory/b", "see"),
        ]
        assert [(link.outgoing, link.path) for link in reader.links(b.document)] == [(False, b"/memory/a")] * 2
        assert reader.tag_counts(ROOT) == [("only", 1)]
    world.share(ALICE, "/memory/b", "alice")
    with world.reading(BOB) as reader:
        assert reader.links(a.document) == [] and reader.counts(ROOT).links == 0
    world.do(ALICE, "remove_link", node=a.id, target=b.id, type="see")
    with world.reading(ALICE) as reader:
        assert len(reader.links(a.document)) == 1
    world.do(ALICE, "merge_meta", node=a.id, importance=0.5, user={"k": [1, "ü"], "gone": 1})
    world.do(ALICE, "merge_meta", node=a.id, importance=None, user={"gone": None, "n": 2})
    document = world.document(BOB, "/memory/a")
    assert document.importance == 0.5 and document.user == {"k": [1, "ü"], "n": 2}
    with pytest.raises(Invalid):
        world.do(ALICE, "merge_meta", node=a.id, importance=None, user={"big": "x" * 70_000})
    with pytest.raises(IsDirectory):
        world.do(ALICE, "set_tags", node=MEMORY, add=[], remove=[], replace=False)


def test_many_memories_are_remembered_or_none(world: World) -> None:
    good = {"path": [b"memory", b"m.md"], "data": b"x", "tags": ["t"], "importance": 0.5, "title": "T", "created": 5}
    written = world.do(ALICE, "remember_many", items=[good, good, {"path": [b"memory", b"o.md"], "data": b"y"}])
    assert [item["path"] for item in written] == [b"/memory/m.md", b"/memory/m-2.md", b"/memory/o.md"]
    with world.reading(BOB) as reader:
        assert reader.tag_counts(ROOT) == [("t", 2)]
    for bad in ({"path": [b"memory", b"p.md"]}, {**good, "data": "text"}, {**good, "colour": 1}, {**good, "path": "x"}):
        with pytest.raises(Invalid):
            world.do(ALICE, "remember_many", items=[good, bad])
    with pytest.raises(AvmError):
        world.do(ALICE, "remember_many", items=[good, {**good, "path": [b"memory", b"private", b"bob", b"x"]}])
    with world.reading(ALICE) as reader:
        assert reader.counts(ROOT).files == 3


def test_handles_are_unique_and_found(world: World) -> None:
    written = world.do(ALICE, "write_many", items=[[[b"memory", b"many", b"n.md"], b"x"] for _ in range(300)])
    assert len({item["path"] for item in written}) == 300
    handles = [row[0] for row in world.rows("select handle from document")]
    assert len(set(handles)) == 300 and all(len(handle) >= 4 for handle in handles)
    with world.reading(BOB) as reader:
        nodes = [reader.by_handle(handle) for handle in handles]
    assert len({node.id for node in nodes if node is not None}) == 300
    with world.reading(BOB) as reader:
        assert reader.by_handle("zzzz22") is None


def test_marks_of_files_and_directories(world: World) -> None:
    world.write(ALICE, "/memory/d/f", b"1")
    file, directory = world.node(ALICE, "/memory/d/f"), world.node(ALICE, "/memory/d")
    assert file.document is not None

    def mark(who: Principal, subject: int) -> object:
        with world.reading(who) as reader:
            found = reader.mark(subject)
            return found and (found.version, found.seq)

    assert mark(ALICE, file.document) == (1, world.newest_seq()), "its own writes are read"
    assert mark(BOB, file.document) is None
    world.clock.advance(2)
    world.write(BOB, "/memory/d/f", b"2")
    assert mark(ALICE, file.document) == (1, world.rows("select seq from version where number = 1")[0][0])
    assert mark(BOB, file.document) is None, "he wrote without having read"
    assert world.do(ALICE, "mark", node=file.id)["version"] == 2
    assert world.do(ALICE, "mark", node=file.id, version=1)["version"] == 1
    for bad in (3, -2):
        with pytest.raises(Invalid):
            world.do(ALICE, "mark", node=file.id, version=bad)
    seq = world.newest_seq()
    assert world.do(BOB, "mark", node=directory.id) == {"version": 0, "seq": seq}
    assert world.do(BOB, "mark", node=directory.id, seq=seq + 100) == {"version": 0, "seq": seq}
    assert mark(BOB, directory.id) == (0, seq) and mark(ALICE, directory.id) is None
    for reader, subject in ((ALICE, file.document), (BOB, file.document), (BOB, directory.id)):
        node = directory.id if subject == directory.id else file.id
        reached: list[object] = []
        for number in (1, 2, 1):  # the last is slower than the one before it
            ask = {"seq": seq - 2 + number} if node == directory.id else {"version": number}
            world.do(reader, "mark", node=node, **ask)  # where it is told, whatever was there
            reached.append(mark(reader, subject))
            world.do(reader, "mark", node=node, forward=True, **({"seq": seq - 1} if "seq" in ask else {"version": 1}))
            assert mark(reader, subject) == reached[-1]
        assert reached[0] == reached[2] != reached[1]
        world.do(reader, "mark", node=node, forward=True)
        assert mark(reader, subject) == reached[1]
    world.unlink(ALICE, "/memory/d/f")
    world.rmdir(ALICE, "/memory/d")
    assert world.rows("select * from mark") == []


# Mail ----------------------------------------------------------------------------------------------------------


def tell(
    world: World, who: Principal, to: str, body: str, priority: str = "normal", **more: object
) -> dict[str, object]:
    limits = {"expires": None, "body_limit": 100, "unread_limit": 5, **more}
    return dict(world.do(who, "tell", recipient=to, body=body, priority=priority, **limits))


def bodies(world: World, who: Principal, **more: object) -> list[str]:
    with world.reading(who) as reader:
        return [message.body for message in reader.mail.messages(**more)]  # type: ignore[arg-type]


def test_mail_is_read_by_each_receiver_for_itself(world: World) -> None:
    world.do(CAROL, "enroll")
    assert tell(world, ALICE, "@all", "hello")["recipients"] == ["bob", "carol"]
    tell(world, ALICE, "bob", "ümlaut", "urgent")
    world.clock.advance(1)
    tell(world, CAROL, "bob", "psst", "low")
    assert bodies(world, BOB) == ["ümlaut", "hello", "psst"]
    assert bodies(world, CAROL) == ["hello"] and bodies(world, ALICE) == []
    with world.reading(BOB) as reader:
        urgent = reader.mail.messages(priority="urgent")
    assert [(message.sender, message.recipient, message.read_at) for message in urgent] == [("alice", "bob", None)]
    assert world.do(BOB, "mark_read", messages=[urgent[0].id]) == {"count": 1}
    assert world.do(BOB, "mark_read", messages=[urgent[0].id]) == {"count": 0}
    assert world.do(BOB, "mark_read", messages=[]) == {"count": 0}
    assert bodies(world, BOB, unread_only=True) == ["hello", "psst"]
    assert bodies(world, BOB) == ["hello", "psst", "ümlaut"], "unread first"
    assert world.do(BOB, "mark_read") == {"count": 2}
    assert bodies(world, BOB, unread_only=True) == [] and len(bodies(world, BOB)) == 3
    assert bodies(world, CAROL, unread_only=True) == ["hello"]
    assert world.do(CAROL, "mark_read", messages=[urgent[0].id]) == {"count": 0}, "not her message"


def test_mail_expires_and_has_limits(world: World) -> None:
    tell(world, ALICE, "bob", "brief", expires=world.clock() + 10**9)
    assert bodies(world, BOB) == ["brief"]
    world.clock.advance(2)
    assert bodies(world, BOB) == []
    for number in range(5):
        tell(world, ALICE, "bob", str(number))
    with pytest.raises(OverQuota):
        tell(world, ALICE, "bob", "full")
    tell(world, ALICE, "@all", "a broadcast still comes")
    world.do(BOB, "mark_read")
    tell(world, ALICE, "bob", "again")
    with pytest.raises(OverQuota, match="a message may have 100 bytes"):
        tell(world, ALICE, "bob", "ü" * 51)
    tell(world, ALICE, "bob", "ü" * 50)
    with pytest.raises(NotFound):
        tell(world, ALICE, "nobody", "x")
    with pytest.raises(Invalid):
        tell(world, ALICE, "bob", "x", "loud")
    assert world.rows("select count(*) from message where body in ('full', 'x')") == [(0,)]


# The log -------------------------------------------------------------------------------------------------------


def test_each_change_is_one_monotonic_row_of_the_log(world: World) -> None:
    expected = []
    start = world.newest_seq()

    def did(op: str, *arguments: object) -> None:
        expected.append((op, *arguments))

    world.mkdir(ALICE, "/memory/d")
    did("mkdir", "alice", b"/memory/d", None)
    world.create(ALICE, "/memory/d/f")
    did("create", "alice", b"/memory/d/f", None)
    world.edit(BOB, "/memory/d/f", ["w", 0, b"x"])
    did("write", "bob", b"/memory/d/f", None)
    world.rename(BOB, "/memory/d/f", "/memory/d/g")
    did("rename", "bob", b"/memory/d/g", b"/memory/d/f")
    world.tag(ALICE, "/memory/d/g", "t")
    did("tags", "alice", b"/memory/d/g", None)
    world.unlink(ALICE, "/memory/d/g")
    did("remove", "alice", b"/memory/d/g", None)
    world.rmdir(ALICE, "/memory/d")
    did("rmdir", "alice", b"/memory/d", None)
    log = world.rows("select op, agent, path, other from log where seq > ? order by seq", start)
    assert log == expected
    numbers = [row[0] for row in world.rows("select seq from log order by seq")]
    assert numbers == list(range(1, len(numbers) + 1))
    times = [row[0] for row in world.rows("select at from log order by seq")]
    assert times == sorted(times)


def test_changes_are_limited_by_place_time_number_and_sight(world: World) -> None:
    for number in range(6):
        world.write(ALICE, f"/memory/a/{number}", b"x")
        world.write(ALICE, f"/memory/ab/{number}", b"x")
        world.write(ALICE, f"/memory/private/alice/{number}", b"x")
        world.clock.advance(10)
    a = world.node(BOB, "/memory/a").id
    with world.reading(BOB) as reader:
        newest = reader.changes(a, limit=3)
        assert [change.path for change in newest] == [b"/memory/a/5", b"/memory/a/5", b"/memory/a/4"]
        assert [change.seq for change in newest] == sorted((change.seq for change in newest), reverse=True)
        oldest = reader.changes(a, limit=3, newest_first=False)
        assert [change.op for change in oldest] == ["create", "write", "create"], "not the directory itself"
        rest = reader.changes(a, after_seq=oldest[-1].seq, limit=100, newest_first=False)
        assert len(rest) == 9 and rest[0].seq > oldest[-1].seq
        recent = reader.changes(a, since=reader.now - 25 * 10**9)
        assert {change.path for change in recent} == {b"/memory/a/4", b"/memory/a/5"}
        everything = reader.changes(ROOT, limit=10_000)
        assert len(everything) == len({change.seq for change in everything}) == 2 + 24 + 1  # its own home
        assert reader.changes(ROOT, limit=0) == []
        assert reader.changes(ROOT, after_seq=reader.newest_seq()) == []
    write = next(change for change in newest if change.op == "write")
    assert (write.agent, write.version, write.other) == ("alice", 1, None)


# Listings ------------------------------------------------------------------------------------------------------


def test_listings_have_first_lines_pages_and_filters(world: World) -> None:
    world.write(ALICE, "/memory/l/a.md", b"# Heading of A\nbody")
    world.write(ALICE, "/memory/l/b.bin", b"\0\1\2")
    world.write(ALICE, "/memory/l/c.md", b"\n\n---\nthird LINE\n")
    world.write(ALICE, "/memory/l/big.md", b"large file\n" * 20_000)
    world.write(ALICE, "/memory/l/sub/d.md", b"deep heading")
    world.write(ALICE, "/memory/l/hidden.md", b"heading nobody sees")
    world.share(ALICE, "/memory/l/hidden.md", "alice")
    world.tag(ALICE, "/memory/l/c.md", "t")
    world.tag(ALICE, "/memory/l/hidden.md", "t")
    under = world.node(BOB, "/memory/l").id
    with world.reading(BOB) as reader:
        found, total = reader.listing(under, limit=10, offset=0)
        assert total == 5
        assert [(entry.path.rpartition(b"/")[2], line) for entry, line in found] == [
            (b"a.md", "# Heading of A"),
            (b"b.bin", "(binary)"),
            (b"big.md", "large file"),
            (b"c.md", "third LINE"),
            (b"sub", ""),
        ]
        assert found[-1][0].handle is None and all(entry.handle for entry, _ in found[:-1])
        for offset in range(6):
            assert reader.listing(under, limit=2, offset=offset) == (found[offset : offset + 2], 5)
        whole, total = reader.listing(under, limit=10, offset=0, query="HEADING")
        assert [entry.path for entry, _ in whole] == [b"/memory/l/a.md", b"/memory/l/sub/d.md"] and total == 2
        assert [e.path for e, _ in reader.listing(under, limit=9, offset=0, query="big")[0]] == [b"/memory/l/big.md"]
        assert [e.path for e, _ in reader.listing(ROOT, limit=9, offset=0, tag="t")[0]] == [b"/memory/l/c.md"]
        assert reader.listing(under, limit=9, offset=0, query="large", tag="t") == ([], 0)
        counts = reader.counts(under)
        assert (counts.files, counts.directories, counts.symlinks, counts.tags) == (5, 1, 0, (("t", 1),))
        assert counts.bytes == sum(
            len(world.bytes(BOB, f"/memory/l/{n}")) for n in ("a.md", "b.bin", "c.md", "big.md", "sub/d.md")
        )
        assert counts.versions == 5 and reader.tag_counts(under) == [("t", 1)]
    world.drain()
    with world.reading(BOB) as reader:
        assert reader.counts(under).waiting_lexical == 0
        assert reader.unindexed(world.document(BOB, "/memory/l/b.bin").id) == "not text"
        assert reader.unindexed(world.document(BOB, "/memory/l/a.md").id) is None
        assert "larger" in str(reader.unindexed(world.document(BOB, "/memory/l/big.md").id))


# Quick answers, watching, and what else a store has ------------------------------------------------------------


def test_quick_answers_are_those_of_a_reader(world: World) -> None:
    random_ = random.Random(7)
    names = [f"/memory/{letter}" for letter in "abcd"] + ["/memory/private/alice/x", "/memory/private/bob/y"]
    for _ in range(60):
        path = random_.choice(names)
        owner = BOB if "bob" in path else ALICE
        try:
            match random_.randrange(4):
                case 0:
                    world.write(owner, path, random_.randbytes(random_.randrange(50)))
                case 1:
                    world.unlink(owner, path)
                case 2:
                    world.rename(owner, path, random_.choice(names))
                case _:
                    world.share(owner, path, random_.choice(["alice", "bob"]))
        except AvmError:
            pass
        for who in (ALICE, BOB):
            for path in names:
                try:
                    parent, name = world.at(who, path).values()
                except NotFound:
                    continue
                with world.reading(who) as reader:
                    child = reader.child(parent, name)
                    assert world.store.cached_child(who, parent, name) == child
                    if child is not None:
                        assert world.store.cached_node(who, child.id) == reader.open_node(child.id)
                        assert world.store.cached_writable(who, child.scope) == reader.visible.writable(child.scope)
            with world.reading(who) as reader:
                assert world.store.cached_subdirectories(who, MEMORY) == reader.subdirectories(MEMORY)
    with pytest.raises(Stale):
        world.store.cached_node(BOB, world.node(ALICE, "/memory/private/alice").id)
    with pytest.raises(Stale):
        world.store.cached_node(BOB, 987654321)


def test_watching_tells_of_commits_where_a_daemon_runs(world: World) -> None:
    told: list[int] = []
    if world.mode == "direct":
        with pytest.raises(NotSupported):
            world.store.watch(told.append)
        return
    with world.store.watch(told.append):
        world.write(ALICE, "/memory/f", b"1")
        seq, deadline = world.newest_seq(), time.monotonic() + 300
        while seq not in told and time.monotonic() < deadline:
            time.sleep(0.01)
    assert seq in told


def test_capacity_is_of_the_filesystem_below(world: World) -> None:
    assert world.store.capacity().f_blocks > 0


def test_unknown_commands_and_wrong_arguments_are_invalid(world: World) -> None:
    seq = world.newest_seq()
    for command, arguments in (
        ("drop_tables", {}),
        ("mkdir", {}),
        ("mkdir", {"parent": MEMORY, "name": b"x", "mode": 0, "surplus": 1}),
        ("mkdir", {"parent": MEMORY, "name": "text", "mode": 0}),
        ("mkdir", {"parent": "2", "name": b"x", "mode": 0}),
        ("mkdir", {"parent": MEMORY, "name": b"x", "mode": 1.5}),
        ("commit", {"node": MEMORY, "handle": None, "edits": [[]]}),
        ("set_attributes", {"node": SHARED, "mode": "evil"}),
        ("set_attributes", {"node": SHARED, "mtime": 1.5}),
        ("set_attributes", {"node": SHARED, "uid": True}),
        ("mark", {"node": None}),
        ("write_path", {"path": [b"memory", "x"], "data": b""}),
        ("write_path", {"path": [b"memory", b"x"], "data": "text"}),
        ("write_path", {"path": [b"memory", b"x"], "data": b"", "mode": "burn"}),
        ("write_many", {"items": [[[b"memory", b"x"], "text"]]}),
        ("write_many", {"items": [[1]]}),
        (
            "tell",
            {"recipient": "bob", "body": b"x", "priority": "low", "expires": None, "body_limit": 9, "unread_limit": 9},
        ),
        ("mark_read", {"messages": ["1); drop table node; --"]}),
    ):
        with pytest.raises(Invalid):
            print(command, arguments, world.do(ALICE, command, **arguments))
    world.write(ALICE, "/memory/f", b"1")
    node = world.node(ALICE, "/memory/f").id
    for edit in (
        ["w", -1, b"x"],
        ["w", 0, "text"],
        ["w", 0],
        ["t", -1],
        ["t", 1.5],
        ["t", True],
        ["g", -1],
        ["g", 1, 2],
        ["z", 0],
        ["z", 2, 1],
        ["z", 0, b"x"],
        ["x", 1],
        [],
        ["w", "0", b""],
    ):
        with pytest.raises(Invalid):
            print(edit, world.do(ALICE, "commit", node=node, handle=None, edits=[edit]))
    for expires in ("never", 1.5, b"1"):
        with pytest.raises(Invalid):
            world.do(ALICE, "set_ttl", node=node, expires=expires)
    with pytest.raises(Invalid):
        world.do(ALICE, "set_tags", node=node, add=[b"bytes"], remove=[], replace=False)
    assert world.newest_seq() == seq + 2 and world.bytes(ALICE, "/memory/f") == b"1"


def test_every_command_is_covered_by_this_suite() -> None:
    here = Path(__file__).parent
    suite = "".join(
        path.read_text()
        for path in [
            *here.glob("*.py"),
            *here.parent.glob("unit/test_*gossip.py"),
            *here.parent.glob("unit/test_discovery.py"),
        ]
    )
    assert [name for name in command_names() if f'"{name}"' not in suite] == []


def test_who_makes_a_file_is_told_the_row_that_anybody_would_read(world: World) -> None:
    made = world.do(ALICE, "create", parent=MEMORY, name=b"new", mode=0o640, exclusive=True, uid=7, gid=None)
    with world.store.reading(BOB) as reader:
        assert node_of(tuple(made["row"])) == reader.node(made["node"])
    again = world.do(BOB, "create", parent=MEMORY, name=b"new", mode=0o600, exclusive=False, uid=None, gid=None)
    assert again == {"node": made["node"], "new": False}


@pytest.mark.parametrize("flags", [0, EXCHANGE])
def test_moving_a_directory_takes_as_many_statements_however_much_is_in_it(tmp_path: Path, flags: int) -> None:
    world = World(tmp_path, "direct", [("/memory/*", "rw", None), ("/memory/z/*", "ro", None)])
    try:
        taken = []
        for size in (1, 40):
            world.mkdir(ALICE, f"/memory/d{size}")
            world.mkdir(ALICE, f"/memory/e{size}")
            for n in range(size):
                world.write(ALICE, f"/memory/d{size}/{n}", b"x")
            ran: list[str] = []
            applier = world.applier
            world.rename(ALICE, f"/memory/d{size}", f"/memory/e{size}", flags)
            applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event, ran=ran: ran.append(event["sql"]))
            world.rename(ALICE, f"/memory/e{size}", f"/memory/d{size}", flags & EXCHANGE)
            applier.db.trace_v2(0)
            taken.append(len(ran))
        assert taken[0] == taken[1] > 3
    finally:
        world.close()
