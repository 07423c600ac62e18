"""All views at once: they derive from the registry, change nothing by being read, and tell no secrets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import paths, views
from avmfs.access import Policy
from avmfs.errors import Invalid, NotFound
from avmfs.node import Kind
from avmfs.trust import Trusted
from avmfs.views import View, about, registry
from tests import references
from tests.unit.views_fixtures import World, opened

ALL = views.all_views()
STILL = [view for view in ALL if view.name != "next"]  # which is there to take a file
FILES = ("/shared/note.md", "/shared/sub/other.md", "/shared/blob")
DIRECTORIES = ("/", "/shared/", "/shared/sub/", "/memory/private/")
# Everything but what answering derives (indexes and their queues) and what a reader's end moves (mark, delivery).
KEPT = (
    "agent",
    "block",
    "body",
    "delivery",
    "document",
    "extent",
    "link",
    "log",
    "mark",
    "message",
    "node",
    "scope",
    "tag",
    "version",
)
PROSE = {"help", "list", "recall", "search", "timeline", "topics"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Alice's secrets are all called quagga, as are things that were said about them."""
    with opened(tmp_path) as made:
        alice, bob = made.agent("alice"), made.agent("bob")
        alice.put("/shared/note.md", "# Note\nRSI at 72\n")
        alice.put("/shared/note.md", "# Note\nRSI at 75\n")
        alice.put("/shared/sub/other.md", "other\n")
        alice.put("/shared/blob", b"\0" * 70_000)
        alice.echo("market\n", "/shared/note.md:tags")
        alice.echo("sub/other.md\n", "/shared/note.md:links")
        alice.put("/private/quagga.md", "quagga RSI at 99\n")
        alice.put("/private/quagga.md", "quagga RSI at 98\n")
        alice.echo("quagga-tag,market\n", "/private/quagga.md:tags")
        alice.echo("/shared/note.md quagga-type\n", "/private/quagga.md:links")
        alice.echo('{"quagga": "quagga"}\n', "/private/quagga.md:meta")
        alice.put("/shared/quagga-limited.md", "quagga for eve\n")
        made.agent("eve")
        alice.memory.submit("mkdir", parent=alice.node("/private").id, name=b"quagga", mode=0o755)
        alice.memory.tell("eve", "quagga", priority="urgent")
        bob.memory.tell("bob", "to myself", priority="urgent")
        alice.memory.rename(b"/shared/quagga-limited.md", b"/private/was-limited.md")
        alice.cached_bytes("/:search?q=RSI")  # whoever asks first has words made: `document.due` says so
        yield made


def names(view: View) -> list[str]:
    """The view of everything that has it, with a question where one is required."""
    query = "?q=RSI" if any(each.default is inspect.Parameter.empty for each in view.parameters) else ""
    on = [*(FILES if "file" in view.on else ()), *(DIRECTORIES if "directory" in view.on else ())]
    on += ["/"] if "root" in view.on else []
    return [f"{each}:{view.name}{query}" for each in on]


def queries(view: View) -> list[str]:
    """The same with every parameter at something else than its default."""
    given = {
        "q": "quagga",
        "tag": "quagga-tag",
        "limit": "3",
        "offset": "1",
        "minutes": "999999",
        "since": "0",
        "peek": "1",
        "from": "1",
        "to": "2",
        "max_tokens": "100",
        "min_relevance": "0",
        "strategy": "recency",
        "mode": "lexical",
        "cite": "path",
        "scores": "1",
        "include": "archive",
        "mark": "read",
        "wait": "0.01",
        "depth": "2",
        "days": "9",
        "cold": "9",
        "name": "RSI",
        "path": "/shared/note.md",
        "sentences": "3",
        "via": "gossip",
        "unread": "1",
        "agent": "alice",
        "lease": "5m",
    }
    given["format"] = "json" if view.name == "graph" else "jsonl"
    asked = [each.name for each in view.parameters if not (view.name == "list" and each.name == "offset")]
    one = "&".join(f"{name}={given[name]}" for name in asked)
    bare = [each.partition("?")[0] for each in names(view) if view.name != "diff" or "note" in each]
    return [f"{each}?{one}" for each in bare if one]


@pytest.mark.parametrize("view", STILL, ids=lambda view: view.name)
def test_rendering_changes_nothing_at_all(world: World, view: View) -> None:
    bob = world.agent("bob")
    before = world.dump(*KEPT)
    for name in [*names(view), *queries(view)]:
        bob.cached_bytes(name)
    assert world.dump(*KEPT) == before


def _but_for_the_audit(rows: dict[str, Any]) -> dict[str, Any]:
    """Without the rows that say that somebody marked something: scope 0, nobody's but the audit's."""
    return {**rows, "log": [row for row in rows["log"] if row[7] != 0]}


@pytest.mark.parametrize("view", STILL, ids=lambda view: view.name)
def test_reading_to_the_end_moves_only_the_readers_own_marks(world: World, view: View) -> None:
    bob = world.agent("bob")
    kept = [name for name in KEPT if name not in ("mark", "delivery")]
    before, marks = _but_for_the_audit(world.dump(*kept)), world.dump("mark", "delivery")
    for name in [*names(view), *queries(view)]:
        rendered = bob.rendered(name)
        if rendered.at_end is not None:
            rendered.at_end()
    assert _but_for_the_audit(world.dump(*kept)) == before
    after = world.dump("mark", "delivery")
    for table_name, rows in after.items():
        assert {row for row in rows if row[0] != "bob"} == {row for row in marks[table_name] if row[0] != "bob"}
    if view.name not in ("delta", "inbox"):
        assert after == marks


@pytest.mark.parametrize("view", ALL, ids=lambda view: view.name)
def test_no_view_tells_of_anothers_private_files(world: World, view: View) -> None:
    bob = world.agent("bob")
    for name in [*names(view), *queries(view)]:
        said = bob.cached_bytes(name)
        # Where it once stood in shared space is everybody's to know: it was created there, and went.
        assert b"quagga" not in said.replace(b"/memory/shared/quagga-limited.md", b""), name
        assert b"private/alice" not in said, name


@pytest.mark.parametrize("view", ALL, ids=lambda view: view.name)
def test_an_answer_is_lines_of_text_or_raw_bytes(world: World, view: View) -> None:
    for name in names(view):
        said = world.agent("bob").cached_bytes(name)
        if "blob" in name and view.name in ("annotated", "data", "delta"):
            continue
        assert said.endswith(b"\n") and not said.startswith(b"\n") and said.decode().strip(), name


@pytest.mark.parametrize("view", ALL, ids=lambda view: view.name)
def test_the_urgent_banner_stands_on_prose_and_nowhere_else(world: World, view: View) -> None:
    assert view.prose == (view.name in PROSE)
    for name in names(view):
        shows = world.agent("bob").cached_bytes(name).startswith(b"=== 1 urgent message")
        assert shows == (view.prose or view.name == "annotated"), name


@pytest.mark.parametrize("view", ALL, ids=lambda view: view.name)
def test_a_view_is_a_core_suffix_and_describes_itself(view: View) -> None:
    assert view.name in paths.CORE_VIEWS
    assert view.summary and not view.summary.endswith(".") and len(view.summary) < 80
    assert bool(view.writes) == (view.write is not None)
    assert view.on <= {"file", "directory", "root"}


@pytest.mark.parametrize("view", ALL, ids=lambda view: view.name)
def test_unknown_parameters_are_refused_by_name(world: World, view: View) -> None:
    for name in names(view)[:1]:
        with pytest.raises(Invalid, match="'no_such'"):
            world.agent("bob").cached_bytes(f"{name}{'&' if '?' in name else '?'}no_such=1")


def test_a_view_is_found_only_where_it_belongs(world: World) -> None:
    bob = world.agent("bob")
    file, directory, root = (bob.node(path) for path in ("/shared/note.md", "/shared", "/"))
    assert views.find("meta", file) and not views.find("meta", directory)
    assert views.find("list", directory) and views.find("list", root) and not views.find("list", file)
    assert views.find("inbox", root) and not views.find("inbox", directory)
    assert views.find("nothing", file) is None
    assert directory.kind is Kind.DIRECTORY and {each.name for each in registry.of_node(directory)} == {
        "bundle",
        "changes",
        "cold",
        "delta",
        "digest",
        "feed",
        "graph",
        "list",
        "mark",
        "next",
        "plan",
        "recall",
        "search",
        "stats",
        "synthesis",
        "timeline",
        "topics",
        "tree",
        "why",
    }


def test_help_lists_every_view_and_parameter(world: World) -> None:
    text = world.agent("bob").cat("/:help")
    for view in ALL:
        assert f"\n{about.call(view)}  [" in text
        assert view.summary in text and view.writes in text
        for parameter in view.parameters:
            assert f"    {parameter.name}: " in text


def test_info_is_the_same_list_for_one_file(world: World) -> None:
    lines = world.agent("bob").cat("/shared/note.md:info").splitlines()
    assert [line.split()[0] for line in lines] == [about.call(view) for view in ALL if "file" in view.on]


def test_error_tells_the_last_reason(world: World) -> None:
    bob = world.agent("bob")
    bob.memory.error = ":list: limit='x': expected a number"
    assert bob.cat("/:error") == ":list: limit='x': expected a number\n"


def test_version_is_the_projects(world: World) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{world.agent("bob").cat("/:version").split()[1]}"' in project


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PAGE.md").write_text("# Views\n")
    with pytest.raises(ValueError, match=r"PAGE.md: expected the lines"):
        references.between(tmp_path / "PAGE.md", "views", "")


def test_what_is_let_out_line_by_line_is_let_out_once(tmp_path: Path) -> None:
    with opened(tmp_path, Policy(trusted=(Trusted("web", "/*", "quarantine"),))) as world:
        alice = world.agent("alice")
        for name in "abc":
            alice.put(f"/shared/{name}.md", f"page {name}")
            alice.memory.submit("set_sources", node=alice.node(f"/shared/{name}.md").id, sources=["web"])
        handle = alice.to_write("/:quarantine")
        for line in (b"/shared/a.md\n", b"/shared/b.", b"md\n", b"/shared/c.md"):
            handle.write(0, line)
        handle.flush()
        handle.flush()
        assert alice.cat("/:quarantine") == "(nothing in quarantine)\n"
        with pytest.raises(Invalid, match="not in quarantine"):
            alice.echo("/shared/a.md\n", "/:quarantine")


@pytest.mark.parametrize(("bad", "error"), [("/shared/none.md", NotFound), ("/shared/free.md", Invalid)])
def test_one_bad_line_lets_nothing_out(tmp_path: Path, bad: str, error: type[Exception]) -> None:
    with opened(tmp_path, Policy(trusted=(Trusted("web", "/*", "quarantine"),))) as world:
        alice = world.agent("alice")
        for name in ("held", "free"):
            alice.put(f"/shared/{name}.md", f"page {name}")
        alice.memory.submit("set_sources", node=alice.node("/shared/held.md").id, sources=["web"])
        with pytest.raises(error):
            alice.echo(f"/shared/held.md\n{bad}\n", "/:quarantine")
        assert alice.cat("/:quarantine").endswith("/memory/shared/held.md\n")


def test_a_handle_that_is_kept_open_takes_one_value_after_the_other(world: World) -> None:
    """As the shell's ``while sleep 600; do echo 30m; done > job:claim``, whatever their bytes come to in all."""
    alice = world.agent("alice")
    for name, values, shown in (
        ("claim", ["30m"] * 1400 + ["20m"], "alice until 2026-03-07 10:50 (20m left)"),
        ("claim", ["30m", "release"], "(unclaimed)"),
        ("ttl", ["1h"] * 1400 + ["2h"], "2h"),
        ("ttl", ["1h", "never"], "never"),
        ("mark", ["v1", "now", "v0"], "marked: v0, current: v2"),
    ):
        handle = alice.to_write(f"/shared/note.md:{name}")
        for value in values:
            handle.write(0, f"{value}\n".encode())
        assert alice.cat(f"/shared/note.md:{name}") == f"{shown}\n", name
        handle.flush()
        assert alice.cat(f"/shared/note.md:{name}") == f"{shown}\n", name
    handle = alice.to_write("/:who")
    for value in (b"full\n", b"no", b"ne\n"):
        handle.write(0, value)
    assert alice.cat("/:who") == "privacy: none\n"
