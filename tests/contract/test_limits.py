"""What one file and one path may have: refused early, whoever asks, before it costs the others anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from avmfs import paths
from avmfs.errors import AvmError, Invalid, NameTooLong, NotEmpty, OverQuota
from avmfs.store.commands.documents import KEYS_DEEP, KEYS_MAX
from avmfs.store.commands.versions import LINKS_MAX, TAGS_MAX
from avmfs.store.queries.nodes import Reader
from tests.contract.store_world import ALICE, BOB, Mode, World

Build = Callable[..., World]


@pytest.fixture(params=["direct"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


def changed(world: World, do: Any) -> int:
    """How many statements of the writer changed something, when it refused. 0 where it is another process."""
    if world.log:
        with pytest.raises(OverQuota):
            do()
        return 0
    applier = world.applier
    ran: list[str] = []
    applier.db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
    try:
        with pytest.raises(OverQuota):
            do()
    finally:
        applier.db.trace_v2(0)
    return sum(sql.lstrip().startswith(("insert", "update", "delete")) and "refus" not in sql for sql in ran)


def test_a_file_has_so_many_tags_and_more_are_refused_before_anything_is_done(world: World) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]
    many = [f"t{n}" for n in range(100_000)]

    def tag(add: list[str], *, replace: bool = False) -> Any:
        return world.do(ALICE, "set_tags", node=node, add=add, remove=[], replace=replace)

    few = changed(world, lambda: tag(many[: TAGS_MAX + 1]))
    assert changed(world, lambda: tag(many)) == few < 10
    assert changed(world, lambda: world.do(ALICE, "set_tags", node=node, add=[], remove=many, replace=False)) == few
    tag(many[:TAGS_MAX])
    with pytest.raises(OverQuota):
        tag(["more"])
    tag([*many[: TAGS_MAX - 1], "more"], replace=True)
    assert len(world.tags(ALICE, "/memory/a")) == TAGS_MAX
    with pytest.raises(OverQuota):
        world.do(ALICE, "remember", path=[b"memory", b"m"], data=b"x", tags=many)
    assert not world.exists(ALICE, "/memory/m")


def test_what_replaces_a_file_brings_as_many_tags_and_links_as_there_is_room_for(world: World) -> None:
    world.write(ALICE, "/memory/a", b"x")
    world.tag(ALICE, "/memory/a", *(f"a{n}" for n in range(200)))
    for _ in range(2):
        world.write(ALICE, "/memory/b", b"y")
        world.tag(ALICE, "/memory/b", "a1", *(f"b{n}" for n in range(200)))
        world.rename(ALICE, "/memory/b", "/memory/a")
        assert len(world.tags(ALICE, "/memory/a")) in (TAGS_MAX, TAGS_MAX - 1)


def test_a_file_has_so_many_links(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node, other = (world.write(ALICE, path, b"x")["node"] for path in ("/memory/a", "/memory/b"))
    for n in range(LINKS_MAX):
        world.do(ALICE, "add_link", node=node, target=other, type=f"t{n}")
    with pytest.raises(OverQuota):
        world.do(ALICE, "add_link", node=node, target=other, type="more")
    world.do(ALICE, "add_link", node=node, target=other, type="t1")  # which it has
    world.do(BOB, "add_link", node=other, target=node, type="back")


def test_links_of_another_to_what_one_cannot_see_take_no_room_and_can_be_taken_away(world: World) -> None:
    node, other, draft = (world.write(BOB, f"/memory/{name}", b"x")["node"] for name in ("plan", "other", "draft"))
    hers = world.write(ALICE, "/memory/private/alice/n", b"x")["node"]
    for n in range(LINKS_MAX):
        world.do(ALICE, "add_link", node=node, target=hers, type=f"t{n}")
    world.do(BOB, "add_link", node=node, target=other, type="see")
    world.do(BOB, "add_link", node=draft, target=other, type="about")
    world.rename(BOB, "/memory/draft", "/memory/plan")
    by = "select agent, count(*) from link group by agent order by agent"
    assert world.rows(by) == [("alice", LINKS_MAX), ("bob", 2)]
    world.do(BOB, "remove_link", node=world.node(BOB, "/memory/plan").id, target=None)
    assert world.rows(by) == []


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ({f"k{n}": n for n in range(KEYS_MAX + 1)}, OverQuota),
        ({"k": "v" * 70_000}, Invalid),
        ({"k": ["v"] * 70_000}, Invalid),
        ({"k": b"bytes"}, Invalid),
    ],
)
def test_metadata_has_so_many_keys_and_characters(world: World, user: dict[str, Any], error: type[AvmError]) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]
    with pytest.raises(error):
        world.do(ALICE, "merge_meta", node=node, importance=None, user=user)
    assert world.rows("select user from document") == [(None,)]


def test_metadata_is_nested_so_deep(world: World) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]

    def deep(levels: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return {"k": value}

    world.do(ALICE, "merge_meta", node=node, importance=None, user=deep(KEYS_DEEP - 1))
    for levels in (KEYS_DEEP, 300):
        with pytest.raises(Invalid, match="nested"):
            world.do(ALICE, "merge_meta", node=node, importance=None, user=deep(levels))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [{"n": 10**30}], "\ud800", {"\ud800": 1}])
def test_metadata_that_could_not_be_told_to_others_is_refused_by_its_key(world: World, value: Any) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]
    with pytest.raises(Invalid, match=r"metadata: 'odd': (half of a surrogate|a whole number has at most 64 bits)"):
        world.do(ALICE, "merge_meta", node=node, importance=None, user={"fine": 2**64 - 1, "odd": value})
    world.do(ALICE, "merge_meta", node=node, importance=None, user={"k": [2**64 - 1, -(2**63), "\udcff"]})


@pytest.mark.parametrize("value", [float("inf"), [{"n": float("-inf")}], {"n": float("nan")}])
def test_metadata_is_such_that_json_can_tell_it(world: World, value: Any) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]
    with pytest.raises(Invalid, match="JSON"):
        world.do(ALICE, "merge_meta", node=node, importance=None, user={"k": value})


def test_keys_that_come_one_by_one_are_counted_together(world: World) -> None:
    node = world.write(ALICE, "/memory/a", b"x")["node"]
    half = {f"k{n}": n for n in range(KEYS_MAX // 2)}
    world.do(ALICE, "merge_meta", node=node, importance=None, user=half)
    world.do(ALICE, "merge_meta", node=node, importance=None, user={f"j{n}": n for n in range(KEYS_MAX // 2)})
    with pytest.raises(OverQuota):
        world.do(ALICE, "merge_meta", node=node, importance=None, user={"more": 1})
    world.do(ALICE, "merge_meta", node=node, importance=None, user=dict.fromkeys(half))
    world.do(ALICE, "merge_meta", node=node, importance=None, user={"more": 1})


# Paths


def made(world: World, names: list[bytes]) -> int:
    """The directories of these names, one in the other below /memory; the deepest."""
    node = world.node(ALICE, "/memory").id
    for name in names:
        node = world.do(ALICE, "mkdir", parent=node, name=name, mode=0o755)["node"]
    return node


def test_a_path_has_so_many_names_and_bytes(world: World) -> None:
    bottom = made(world, [b"d"] * (paths.DEPTH_MAX - 1))
    long = made(world, [b"x" * 250] * 16)  # /memory/ and 16 of them: 4023 bytes
    for parent, name in ((bottom, b"f"), (long, b"y" * 73)):
        for command, more in (
            ("mkdir", {"mode": 0o755}),
            ("create", {"mode": 0o644, "exclusive": True}),
            ("symlink", {"target": b"t"}),
        ):
            with pytest.raises(NameTooLong):
                world.do(ALICE, command, parent=parent, name=name, **more)
    world.do(ALICE, "create", parent=long, name=b"y" * 72, mode=0o644, exclusive=True)
    for path in ([b"memory", *[b"e"] * paths.DEPTH_MAX], [b"memory", *[b"x" * 200] * 21]):
        with pytest.raises(NameTooLong):
            world.do(ALICE, "write_path", path=path, data=b"x")
    assert not world.exists(ALICE, "/memory/e")


def test_what_is_moved_brings_all_below_it_to_no_deeper_a_place(world: World) -> None:
    half = paths.DEPTH_MAX // 2
    made(world, [b"a"] * half)
    made(world, [b"b"] * half)
    deep = "/memory" + "/a" * (half - 1)
    world.rename(ALICE, "/memory/b", f"{deep}/b")
    world.rename(ALICE, f"{deep}/b", "/memory/b")
    with pytest.raises(NameTooLong):
        world.rename(ALICE, "/memory/b", f"{deep}/a/b")
    world.mkdir(ALICE, f"{deep}/a/x")
    with pytest.raises(NameTooLong):  # nor where two change places
        world.rename(ALICE, f"{deep}/a/x", "/memory/b", 2)
    world.write(ALICE, f"{deep}/a/f", b"x")
    world.rename(ALICE, f"{deep}/a/f", "/memory/f")


def test_a_longer_name_above_makes_no_path_below_longer_than_it_may_be(world: World) -> None:
    made(world, [b"a", *[b"x" * 250] * 15])
    long, longer = "/memory/" + "b" * 255, "/memory/" + "c" * 70
    world.rename(ALICE, "/memory/a", long)
    world.mkdir(ALICE, longer)
    with pytest.raises(NameTooLong):
        world.rename(ALICE, long, f"{longer}/" + "b" * 255)
    world.rename(ALICE, long, f"{longer}/a")


@pytest.mark.parametrize("names", [["h" * 250], ["h"] * 120], ids=["long", "deep"])
def test_a_move_that_is_refused_tells_nothing_of_directories_that_its_mover_cannot_see(
    build: Build, names: list[str]
) -> None:
    world = build([("/memory/desk/merger/*", "none", ("bob",))])
    world.write(ALICE, "/memory/desk/open/f", b"x")
    world.write(ALICE, "/".join(["/memory/desk/merger", *names, "f"]), b"x")
    far = "/".join(["/memory", *["b" * 250] * 15, "b" * 200])
    world.write(BOB, f"{far}/f", b"x")
    with pytest.raises(NotEmpty):
        world.rename(BOB, "/memory/desk", f"{far}/d")
    with pytest.raises(NameTooLong):
        world.rename(ALICE, "/memory/desk", f"{far}/d")


def test_trees_that_are_deeper_already_can_be_read_and_removed_and_moved_up(world: World) -> None:
    if world.log:
        pytest.skip("the tree is put into one host's tables, behind the log")
    bottom = world.deepen(world.mkdir(ALICE, "/memory/a"), 300)
    world.restart()
    with world.reading(ALICE) as reader:
        assert reader.path(bottom).count(b"/") == 302
        assert reader.children(bottom) == []
    with pytest.raises(NameTooLong):
        world.do(ALICE, "create", parent=bottom, name=b"f", mode=0o644, exclusive=True)
    world.mkdir(ALICE, "/memory/b")
    with pytest.raises(NameTooLong):
        world.rename(ALICE, "/memory/a", "/memory/b/a")
    world.rename(ALICE, "/memory/a/d", "/memory/d")
    with world.reading(ALICE) as reader:
        above = reader.open_node(bottom).parent
    world.do(ALICE, "rmdir", parent=above, name=b"d")


def test_where_files_stand_is_asked_once_for_each_directory(world: World) -> None:
    if world.log:
        pytest.skip("it counts the statements of this process")
    deep = "/memory" + "/d" * 60
    for n in range(50):
        world.write(ALICE, f"{deep}/{n}", b"x")
    with world.reading(ALICE) as reader:
        assert isinstance(reader, Reader)
        ran: list[str] = []
        reader._db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: ran.append(event["sql"]))
        found, _ = reader.listing(world.node(ALICE, deep).id, limit=50, offset=0)
        reader._db.trace_v2(0)
        assert len(found) == 50 and found[0][0].path.startswith(deep.encode())
        assert sum("select parent, name" in sql for sql in ran) <= 50 + 62
