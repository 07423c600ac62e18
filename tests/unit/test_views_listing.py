"""Lists of what is there and of what changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs.errors import Invalid
from avmfs.rpc import methods
from avmfs.store.schema.tables import ROOT
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        made.agent("alice")
        made.agent("bob")
        yield made


def names(text: str) -> list[str]:
    """Second column."""
    return [line.split("  ")[1].strip() if line[0] == "@" else line for line in text.splitlines()]


# :list -----------------------------------------------------------------------------------------------------


def test_nothing_is_said_in_parentheses(world: World) -> None:
    alice = world.agent("alice")
    assert alice.cat("/shared/:list") == "(empty)\n"
    assert alice.cat("/shared/:list?q=x") == alice.cat("/shared/:list?tag=x") == "(no matches)\n"
    assert alice.cat("/shared/:changes") == "(no changes)\n"


def test_what_is_aside_is_in_no_list_of_the_root_and_there_by_name(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a.md", "x")
    assert alice.cat("/:list") == "-      memory/\n" and "trash" not in alice.cat("/:tree?depth=1")
    told = methods.call(alice.memory, "tree", {"path": "/", "depth": 3})["entries"]
    assert [entry["path"] for entry in told if entry["depth"] == 1] == ["/memory"]
    assert "/memory/shared/a.md" in [entry["path"] for entry in told]
    with alice.memory.reading() as reader:
        assert [entry.path for entry, _ in reader.listing(ROOT, limit=9, offset=0)[0]] == [b"/memory"]
        assert reader.listing(ROOT, limit=9, offset=0)[1] == 1
    assert alice.cat("/trash/:list") == alice.cat("/archive/:list") == "(empty)\n"


def test_a_list_is_cut_and_goes_on_at_its_offset(world: World) -> None:
    alice = world.agent("alice")
    for name in "abcde":
        alice.put(f"/shared/{name}", "x")
    seen, query = [], "limit=2"
    while True:
        *rows, last = alice.cat(f"/shared/:list?{query}").splitlines()
        seen += names("\n".join(rows))
        if not last.startswith("("):
            break
        query = f"limit=2&{last.rstrip(')').rpartition(' ')[2]}"
    assert [*seen, *names(last)] == list("abcde")
    assert alice.cat("/shared/:list?offset=9") == "(no more: there are 5)\n"


def test_rows_show_kind_handle_and_a_short_first_line(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a.md", "\n---\n## Risk   rules\nmore")
    alice.put("/shared/b.md", "x" * 500)
    alice.put("/shared/c\n\x1b[31m", b"\0\1")
    alice.put("/shared/d/e", "x")
    alice.memory.submit("symlink", parent=alice.node("/shared").id, name=b"f", target=b"a.md")
    alice.put("/shared/g", "")
    assert world.still(alice.cat("/shared/:list")) == (
        "@hdl1  a.md  Risk   rules\n@hdl2  b.md  " + "x" * 99 + "…\n@hdl3  c\\n\\x1b[31m  (binary)\n-      d/\n"
        "-      f -> a.md\n@hdl4  g\n"
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_what_windows_has_saved_is_listed_and_compared_like_other_text(world: World, encoding: str) -> None:
    alice, mark = world.agent("alice"), "\ufeff" if encoding == "utf-16-be" else ""
    text = "# Plan of the Räuberhöhle\nThe zebra crosses the road at noon.\n"
    alice.put("/shared/a.md", (mark + text * 40).encode(encoding))
    alice.put("/shared/b.md", text)
    for number in range(20):
        alice.put(f"/shared/more/{number}.md", "\n".join("abcdefghijklmnopqrstuvwxyz"))
    assert alice.cat("/shared/:list?q=räuberhöhle").splitlines()[0].endswith("  a.md  Plan of the Räuberhöhle")
    assert "/memory/shared/b.md" in alice.cat("/shared/a.md:related").splitlines()[0]
    assert alice.cat("/shared/a.md:blame").splitlines()[0].endswith("  alice  # Plan of the Räuberhöhle")


def test_a_handle_in_a_list_is_the_file(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a.md", "x")
    handle = alice.cat("/shared/:list").split()[0]
    assert alice.cat(f"/{handle}:path") == "/memory/shared/a.md\n"


def test_a_query_or_tag_finds_files_below_by_relative_name(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/x/one.md", "RSI high")
    alice.put("/shared/x/y/two.md", "nothing")
    alice.put("/shared/rsi.md", "other")
    alice.echo("t\n", "/shared/x/y/two.md:tags")
    assert names(alice.cat("/shared/:list?q=rsi")) == ["x/one.md", "rsi.md"]
    assert names(alice.cat("/shared/x/:list?tag=t")) == ["y/two.md"]
    assert names(alice.cat("/:list?q=one")) == ["memory/shared/x/one.md"]


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "offset=-1", "page=2", "tag=", "tag=%ff"])
def test_bad_list_parameters_are_refused_by_name(world: World, query: str) -> None:
    with pytest.raises(Invalid, match=query.partition("=")[0]):
        world.agent("alice").cat(f"/shared/:list?{query}")


# :changes --------------------------------------------------------------------------------------------------


def test_changes_are_newest_first_one_line_a_path(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/a.md", "1")
    world.clock.pass_(1)
    alice.put("/shared/b.md", "1")
    world.clock.pass_(1)
    bob.put("/shared/a.md", "2")
    world.clock.pass_(1)
    alice.memory.delete("/shared/b.md")
    alice.memory.rename(b"/shared/a.md", b"/shared/c.md")
    handle = alice.handle("/shared/c.md")
    assert bob.cat("/shared/:changes") == f"@{handle}  2026-03-07 10:33  alice  /memory/shared/c.md\n"
    alice.put("/shared/d.md", "1")
    world.clock.pass_(10)
    alice.memory.delete("/shared/d.md")
    assert bob.cat("/shared/:changes?minutes=5") == "-      2026-03-07 10:43  alice  /memory/shared/d.md (removed)\n"


def test_changes_since_a_time_a_zone_or_a_seq(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a.md", "1")
    cursor = alice.cat("/shared/:delta").rpartition(" ")[2].strip()
    world.clock.pass_(5)
    alice.put("/shared/b.md", "1")
    later = alice.cat("/shared/:changes?minutes=2")
    assert later.endswith("/memory/shared/b.md\n") and later.count("\n") == 1
    for since in ("2026-03-07T10:35", "2026-03-07T11:35%2B01:00", "2026-03-07 10:34:59", cursor):
        assert alice.cat(f"/shared/:changes?since={since}") == later
    assert alice.cat("/shared/:changes?since=2026-03-07").count("\n") == 2
    for bad in ("yesterday", "", "2026-13-01", "-5"):
        with pytest.raises(Invalid, match="since"):
            alice.cat(f"/shared/:changes?since={bad}")


def test_many_changes_are_cut_and_say_so(world: World) -> None:
    alice = world.agent("alice")
    for name in "abc":
        alice.put(f"/shared/{name}", "1")
        for _ in range(10):
            alice.put("/shared/busy", "1")
    found = alice.cat("/shared/:changes?limit=2").splitlines()
    assert [line.rpartition("/")[2] for line in found[:-1]] == ["busy", "c"]
    assert found[-1] == "(older ones left out: limit=2)"
    assert len(alice.cat("/shared/:changes?limit=4").splitlines()) == 4


def test_an_expired_file_shows_as_removed(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a.md", "1")
    alice.echo("1m\n", "/shared/a.md:ttl")
    world.clock.pass_(2)
    assert alice.cat("/shared/:changes") == "-      2026-03-07 10:30  alice  /memory/shared/a.md (removed)\n"


# :stats ----------------------------------------------------------------------------------------------------


def test_stats_count_what_is_below_and_visible(world: World) -> None:
    alice, bob = world.agent("alice"), world.agent("bob")
    alice.put("/shared/a.md", "1234")
    alice.put("/private/s.md", "12345678")
    alice.echo("t\n", "/private/s.md:tags")
    alice.echo("/shared/a.md\n", "/private/s.md:links")
    seen, own = json.loads(bob.cat("/:stats")), json.loads(alice.cat("/:stats"))
    assert (seen["files"], seen["bytes"], seen["versions"], seen["tags"], seen["links"]) == (1, 4, 1, {}, 0)
    assert (own["files"], own["bytes"], own["versions"], own["tags"], own["links"]) == (2, 12, 2, {"t": 1}, 1)
    assert seen["waiting"] == {"vectors": 1, "words": 1}


def test_stats_keep_the_most_used_tags(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/a", "x")
    alice.put("/shared/b", "x")
    alice.echo(",".join(f"t{n:02}" for n in range(30)), "/shared/a:tags")
    alice.echo("t29", "/shared/b:tags")
    tags = json.loads(alice.cat("/shared/:stats"))["tags"]
    assert len(tags) == 20 and tags["t29"] == 2 and "t18" in tags


def test_no_time_is_too_late_to_be_asked_for(world: World) -> None:
    alice = world.agent("alice")
    alice.put("/shared/note.md", "x")
    assert alice.cat("/:changes?since=9999-12-31T23:59") == "(no changes)\n"
    assert methods.call(alice.memory, "recent", {"since": "9999-12-31"})["changes"] == []
    assert methods.call(alice.memory, "audit", {"since": "9999-12-31"}) == []
    assert "note.md" in alice.cat("/:changes?since=0001-01-02")
