"""What is said about a file: what its views take, refuse and leave alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs import views
from avmfs.access import Policy
from avmfs.errors import Denied, Invalid, NotFound, OverQuota
from avmfs.node import Node
from avmfs.vfs import handover
from avmfs.vfs.virtual_handles import VirtualHandle
from tests.unit.views_fixtures import World, opened

NOTE = "/shared/note.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.agent("alice").put(NOTE, "# Note\n")
        made.agent("bob")
        yield made


def meta(world: World, path: str = NOTE, agent: str = "alice") -> dict[str, object]:
    found = json.loads(world.agent(agent).cat(f"{path}:meta"))
    assert isinstance(found, dict)
    return found


# :meta -----------------------------------------------------------------------------------------------------


def test_meta_is_merged_and_null_removes_a_user_key(world: World) -> None:
    alice = world.agent("alice")
    alice.echo('{"title": "T", "n": {"deep": [1, 2]}}', f"{NOTE}:meta")
    alice.echo('{"title": null, "other": false}\n', f"{NOTE}:meta")
    found = meta(world)
    assert "title" not in found
    assert (found["n"], found["other"]) == ({"deep": [1, 2]}, False)


def test_meta_sets_importance_tags_and_ttl_as_their_views_do(world: World) -> None:
    world.agent("alice").echo('{"importance": 1, "tags": ["b", "#a"], "ttl": "1h 30m"}', f"{NOTE}:meta")
    found = meta(world)
    assert (found["importance"], found["tags"], found["ttl"]) == (1.0, ["a", "b"], "1h 30m")
    world.agent("alice").echo('{"tags": null, "ttl": null}', f"{NOTE}:meta")
    assert (meta(world)["tags"], meta(world)["ttl"]) == ([], "never")


@pytest.mark.parametrize(
    "key", ["id", "path", "version", "size", "tokens", "creator", "shared", "updated", "indexed", "live"]
)
def test_meta_refuses_the_systems_keys_naming_the_key(world: World, key: str) -> None:
    before = meta(world)
    with pytest.raises(Invalid, match=f":meta: '{key}'"):
        world.agent("alice").echo(json.dumps({"title": "T", key: 1}), f"{NOTE}:meta")
    assert meta(world) == before


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '"text"',
        "{bad}",
        '{"a": 1} x',
        '{"a" 1}',
        '{"importance": 2}',
        '{"importance": true}',
        '{"importance": null}',
        '{"tags": "a"}',
        '{"tags": [""]}',
        '{"tags": ["a,b"]}',
        '{"ttl": "0s"}',
        '{"ttl": 5}',
        '{"ttl": "soon"}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": [{"b": -1e400}]}',
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"a": ' + "1" * 5000 + "}",
    ],
)
def test_meta_refuses_early_what_can_never_be_right(world: World, text: str) -> None:
    view = next(each for each in views.all_views() if each.name == "meta")
    assert view.check is not None
    with pytest.raises(Invalid):
        view.check(text + "\n")
    with pytest.raises(Invalid):
        world.agent("alice").echo(text, f"{NOTE}:meta")


def test_meta_waits_for_the_rest_of_any_json_object() -> None:
    view = next(each for each in views.all_views() if each.name == "meta")
    assert view.check is not None
    whole = '{"a": [true, null, -1.5e3], "b": "x\\u00e9\\n\\"", "c": {"d": false}}'
    for stop in range(len(whole)):
        assert view.check(whole[:stop]) is False, whole[:stop]
    assert view.check(whole) is True


def test_incomplete_json_is_refused_when_the_writer_is_done(world: World) -> None:
    with pytest.raises(Invalid, match="incomplete"):
        world.agent("alice").echo('{"a": 1', f"{NOTE}:meta")


def test_meta_tells_why_a_file_is_not_indexed(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/blob", b"\0\1\2")
    alice.put("/shared/draft.tmp", "words")
    assert meta(world)["indexed"] == "waiting"
    alice.memory.make_searchable()
    assert meta(world)["indexed"] is True
    assert (meta(world, "/shared/blob")["indexed"], meta(world, "/shared/blob")["tokens"]) == ("not text", None)
    assert meta(world, "/shared/draft.tmp")["indexed"] == "its name is on the ignore list"


def test_meta_counts_tokens_exactly(world: World) -> None:
    assert meta(world)["tokens"] == world.around.engine.counter.count("# Note\n")


def test_user_keys_cannot_hide_the_systems(world: World) -> None:
    # A later program may know more keys than the one that stored these.
    alice = world.agent("alice")
    alice.memory.submit("merge_meta", node=alice.node(NOTE).id, importance=None, user={"size": "huge"})
    assert meta(world)["size"] == 7


def test_meta_of_a_name_that_is_no_utf8_is_json(world: World) -> None:
    alice = world.agent("alice")
    alice.memory.submit("write_path", path=[b"memory", b"shared", b"\xff\n.md"], data=b"x")
    node = next(node for node in alice_children(world) if node.name == b"\xff\n.md")
    view = views.find("meta", node)
    assert view is not None
    rendered = view.render(views.Context(alice.memory, node, b"/memory/shared/\xff\n.md"), {})
    assert json.loads(rendered.data)["path"] == "/memory/shared/\udcff\n.md"


def alice_children(world: World) -> list[Node]:
    with world.agent("alice").memory.reading() as reader:
        return reader.children(world.agent("alice").node("/shared").id)


# :tags -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n", "a,b"),
        ("+c\n", "c,x,y"),
        ("-x\n", "y"),
        ("+c -x, +d\n", "c,d,y"),
        ("#new work, b ,b", "b,new work"),
        ("a\nb\n", "a,b"),
        ("+a\n+b\n", "a,b,x,y"),
        ("-x +x", "x,y"),
        ("\n", None),
    ],
)
def test_tags_are_set_added_and_removed(world: World, text: str, expected: str | None) -> None:
    alice = world.agent("alice")
    alice.echo("x,y\n", f"{NOTE}:tags")
    alice.echo(text, f"{NOTE}:tags")
    assert alice.cat(f"{NOTE}:tags") == (f"{expected}\n" if expected else "(no tags)\n")


@pytest.mark.parametrize("text", ["a,+b\n", "+a b,c\n", "+\n", "x" * 65 + "\n", "a\x1b\n", "--x\n", "\udcff\n"])
def test_bad_tags_are_refused_and_change_nothing(world: World, text: str) -> None:
    alice = world.agent("alice")
    alice.echo("x\n", f"{NOTE}:tags")
    with pytest.raises(Invalid):
        alice.echo(text, f"{NOTE}:tags")
    assert alice.cat(f"{NOTE}:tags") == "x\n"


@pytest.mark.parametrize("end", ["at once", "at close"])
@pytest.mark.parametrize("taken_over", [False, True])
def test_of_text_that_is_refused_nothing_is_applied_nor_part_of_the_next(
    world: World, end: str, taken_over: bool
) -> None:
    alice = world.agent("alice")
    alice.echo("x\n", f"{NOTE}:tags")
    handle: VirtualHandle = alice.to_write(f"{NOTE}:tags")
    known, begun = handover.plain_handle(handle), ",".join("y" * 60 for _ in range(80)).encode()
    assert handle.write(0, begun) == len(begun) > 4096  # not yet looked at: more may come
    with pytest.raises(Invalid):
        handle.write(0, b",\x1b" + b"\n" * (end == "at once"))
        handle.flush()
    if taken_over:
        progress, handle = handover.plain_progress(handle), handover.handle_from(alice.memory, known)
        handover.set_progress(handle, [False, None, None, False], begun)
        handover.set_progress(handle, progress, b"")
    handle.flush()  # as the writer is done
    assert alice.cat(f"{NOTE}:tags") == "x\n"
    handle.write(0, b"z\n")
    handle.flush()
    assert alice.cat(f"{NOTE}:tags") == "z\n"


# :links ----------------------------------------------------------------------------------------------------


def test_a_link_target_is_absolute_relative_or_a_handle(world: World) -> None:
    alice = world.agent("alice")
    for path in ("/shared/a b.md", "/shared/sub/c.md", "/shared/-d.md", "/shared/e.md"):
        alice.put(path, "x")
    alice.echo(f"a b.md\n/shared/sub/c.md cites\n./-d.md x.y-z\n@{alice.handle('/shared/e.md')}\n", f"{NOTE}:links")
    assert alice.cat(f"{NOTE}:links") == (
        "-> /memory/shared/-d.md (x.y-z)\n-> /memory/shared/a b.md (related)\n"
        "-> /memory/shared/e.md (related)\n-> /memory/shared/sub/c.md (cites)\n"
    )
    assert alice.cat("/shared/sub/c.md:links") == "<- /memory/shared/note.md (cites)\n"
    alice.echo("-a b.md other\n", f"{NOTE}:links")  # of another type: stays
    assert "a b.md" in alice.cat(f"{NOTE}:links")
    alice.echo("-a b.md\n-sub/c.md cites\n-./-d.md\n-e.md\n", f"{NOTE}:links")
    assert alice.cat(f"{NOTE}:links") == "(no links)\n"
    alice.echo("a b.md\nsub/c.md cites\n", f"{NOTE}:links")
    alice.echo("-*\n", f"{NOTE}:links")
    assert alice.cat(f"{NOTE}:links") == "(no links)\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [("nothing.md\n", NotFound), ("note.md\n", Invalid), ("other.md a/b\n", Invalid), ("-\n", Invalid)],
)
def test_a_bad_link_changes_nothing(world: World, text: str, error: type[Exception]) -> None:
    alice = world.agent("alice")
    alice.put("/shared/other.md", "x")
    with pytest.raises(error):
        alice.echo(f"{text}", f"{NOTE}:links")
    assert alice.cat(f"{NOTE}:links") == "(no links)\n"


@pytest.mark.parametrize(
    ("bad", "error"),
    [("nothing.md", NotFound), ("note.md", Invalid), ("sub", Invalid), ("-sub", Invalid)],
)
def test_one_bad_line_refuses_all_lines(world: World, bad: str, error: type[Exception]) -> None:
    alice = world.agent("alice")
    alice.put("/shared/other.md", "x")
    alice.put("/shared/sub/c.md", "x")
    alice.echo("sub/c.md\n", f"{NOTE}:links")
    with pytest.raises(error):
        alice.echo(f"other.md\n-sub/c.md\n{bad}\n", f"{NOTE}:links")
    assert alice.cat(f"{NOTE}:links") == "-> /memory/shared/sub/c.md (related)\n"


def test_what_a_handle_has_applied_is_not_applied_again_with_its_next_lines(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    names = [f"{number}.md" for number in range(20)]
    for name in names:
        alice.put(f"/shared/{name}", name)
    links, tags = alice.to_write(f"{NOTE}:links"), alice.to_write(f"{NOTE}:tags")
    before = len(world.dump("log")["log"])
    for name in names:
        links.write(0, f"{name}\n".encode())
        tags.write(0, f"+{name}\n".encode())
        bob.echo(f"-{names[0]}\n", f"{NOTE}:links")
        bob.echo(f"-{names[0]}\n", f"{NOTE}:tags")
    links.flush()
    tags.flush()
    assert [line.split("/")[-1].split()[0] for line in alice.cat(f"{NOTE}:links").splitlines()] == sorted(names[1:])
    assert alice.cat(f"{NOTE}:tags") == ",".join(sorted(names[1:])) + "\n"
    assert len(world.dump("log")["log"]) - before <= 4 * len(names)


def test_tags_are_copied_from_one_file_to_another(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/other.md", "x")
    for tags in ("a,b\n", "(no tags)\n"):
        alice.echo("" if tags.startswith("(") else tags, "/shared/other.md:tags")
        alice.echo(alice.cat("/shared/other.md:tags"), f"{NOTE}:tags")
        assert alice.cat(f"{NOTE}:tags") == tags
        assert meta(world)["tags"] == ([] if tags.startswith("(") else ["a", "b"])


def test_a_list_of_tags_in_several_writes_is_one_list(world: World) -> None:
    alice = world.agent("alice")
    handle = alice.to_write(f"{NOTE}:tags")
    for text in (b"old,ol", b"der\n", b"new\n", b"\n"):
        handle.write(0, text)
    assert alice.cat(f"{NOTE}:tags") == "new,old,older\n"
    handle.write(0, b"-old\n")
    assert alice.cat(f"{NOTE}:tags") == "new,older\n"


def test_a_link_to_what_one_may_not_see_is_as_if_there_were_nothing(world: World) -> None:
    world.agent("alice").put("/private/secret.md", "x")
    with pytest.raises(NotFound):
        world.agent("bob").echo("/memory/private/alice/secret.md\n", f"{NOTE}:links")
    world.agent("alice").echo("/private/secret.md\n", f"{NOTE}:links")
    assert world.agent("bob").cat(f"{NOTE}:links") == "(no links)\n"


# :shared ---------------------------------------------------------------------------------------------------


def test_shared_limits_a_file_to_its_agents_and_its_owner(world: World) -> None:
    alice, bob, eve = (world.agent(name) for name in ("alice", "bob", "eve"))
    alice.echo("bob\n", f"{NOTE}:shared")
    assert bob.cat(f"{NOTE}:shared") == "alice,bob\n"
    assert meta(world)["shared"] == ["alice", "bob"]
    with pytest.raises(NotFound):
        eve.node(NOTE)
    with pytest.raises(Denied, match="alice"):
        bob.echo("all\n", f"{NOTE}:shared")
    alice.echo("all\n", f"{NOTE}:shared")
    assert eve.cat(f"{NOTE}:shared") == "all\n"


def test_unknown_agents_are_refused_by_name(world: World) -> None:
    with pytest.raises(Invalid, match="'carol', 'dave'"):
        world.agent("alice").echo("bob, dave carol\n", f"{NOTE}:shared")
    assert world.agent("alice").cat(f"{NOTE}:shared") == "all\n"


@pytest.mark.parametrize("text", ["\n", "all,bob\n"])
def test_shared_needs_all_or_agents(world: World, text: str) -> None:
    with pytest.raises(Invalid):
        world.agent("alice").echo(text, f"{NOTE}:shared")


def test_a_private_file_is_not_shared_but_moved(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/private/p.md", "x")
    assert alice.cat("/private/p.md:shared") == "(private to alice)\n"
    with pytest.raises(Invalid, match="move it to /shared"):
        alice.echo("nobody\n", "/private/p.md:shared")


# :ttl ------------------------------------------------------------------------------------------------------


def test_ttl_counts_down_and_hides_the_file_when_it_has_passed(world: World) -> None:
    alice = world.agent("alice")
    assert alice.cat(f"{NOTE}:ttl") == "never\n"
    alice.echo("2h\n", f"{NOTE}:ttl")
    world.clock.pass_(1)
    assert alice.cat(f"{NOTE}:ttl") == "1h 59m\n"
    world.clock.pass_(119)
    with pytest.raises(NotFound):
        alice.node(NOTE)


def test_ttl_never_keeps_the_file(world: World) -> None:
    alice = world.agent("alice")
    alice.echo("5m", f"{NOTE}:ttl")
    alice.echo("never\n", f"{NOTE}:ttl")
    assert alice.cat(f"{NOTE}:ttl") == "never\n"


@pytest.mark.parametrize("text", ["0\n", "0m\n", "5\n", "-5m\n", "tomorrow\n", "\n", "5m 3\n", "５m\n", "5ſ\n"])
def test_a_bad_ttl_is_refused(world: World, text: str) -> None:
    with pytest.raises(Invalid):
        world.agent("alice").echo(text, f"{NOTE}:ttl")
    assert world.agent("alice").cat(f"{NOTE}:ttl") == "never\n"


# Rights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "text"), [("meta", '{"a": 1}'), ("tags", "a\n"), ("links", "-other.md\n"), ("ttl", "1h\n")]
)
def test_what_is_read_only_can_be_looked_at_and_not_described(tmp_path: Path, view: str, text: str) -> None:
    rules = Policy.from_words([("/memory/shared/*", "ro", ("bob",))], "rw")
    with opened(tmp_path, rules) as world:
        alice, bob = world.agent("alice"), world.agent("bob")
        alice.put(NOTE, "x")
        alice.put("/shared/other.md", "x")
        bob.cat(f"{NOTE}:{view}")
        with pytest.raises(Denied):
            bob.echo(text, f"{NOTE}:{view}")
        assert bob.cat(f"{NOTE}:delta") == "x"
        bob.echo("", f"{NOTE}:mark")  # a mark is the reader's own


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("tags", "".join(f"t{n}\n" for n in range(300))),
        ("tags", "+" + "t," * 20_000),
        ("tags", " " * 40_000),
        ("links", "/a\n" * 1001),
        ("meta", '{"k": "' + "v" * 300_000),
        ("meta", json.dumps({f"k{n}": n for n in range(300)})),
        ("meta", json.dumps({"tags": [f"t{n}" for n in range(300)]})),
    ],
)
def test_what_names_too_much_is_refused_while_it_is_being_written(view: str, text: str) -> None:
    found = next(each for each in views.registry.all_views() if each.name == view)
    assert found.check is not None
    with pytest.raises(OverQuota):
        found.check(text)
