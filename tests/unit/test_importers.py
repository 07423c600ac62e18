"""What other programs kept, in samples of their shapes with odd ones among them: counted in is counted out or refused,
a second run adds nothing, dates and authors are kept, and what changed in the source comes."""

# ruff: noqa: F811, E501
from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from avmfs.errors import Invalid, StoreFailed
from avmfs.transfer import formats
from avmfs.transfer.record import Record, digest_of_said, nanoseconds
from tests.unit.test_transfer import OPERATOR, Open, brought, exported, newest, store  # noqa: F401

INTO = "/memory/shared/in"


def earlier_avm(at: Path) -> Path:
    path = at / "avm.db"
    with apsw.Connection(str(path)) as db:
        db.execute(
            "create table nodes(id integer primary key autoincrement, path text unique not null, content text not null,"
            " meta text not null, node_type text not null default 'file', created_at text not null,"
            " updated_at text not null, version integer not null default 1, content_h text)"
        )
        db.execute(
            "create table edges(id integer primary key, source text, target text, edge_type text, weight real, meta text,"
            " created_at text)"
        )
        later = "2199-01-01T00:00:00"
        rows: list[tuple[Any, ...]] = [
            (
                "/memory/shared/market/BTC.md",
                "BTC rose\n",
                {"tags": ["btc", "a,b"], "importance": 0.8, "created_by": "akashi"},
            ),
            ("/memory/private/akashi/own.md", "hers\n", {"author": "akashi", "expires_at": later, "x": [1]}),
            (
                "/memory/shared/limited.md",
                "for two\n",
                {"created_by": "akashi", "shared_with": ["akashi", "kearsarge"]},
            ),
            ("/memory/shared/odd.md", "bad meta\n", "no json {"),
            ("/memory/shared/gone.md", "expired\n", {"expires_at": "2020-01-01T00:00:00"}),
            ("/trash/memory/x.md", "removed\n", {}),
            ("/memory/shared/empty.md", "", {}),
        ]
        for name, text, meta in rows:
            said = meta if isinstance(meta, str) else json.dumps(meta)
            db.execute(
                "insert into nodes(path, content, meta, created_at, updated_at) values(?, ?, ?, ?, ?)",
                (name, text, said, "2026-03-06T10:00:00.5", "2026-03-07T11:00:00"),
            )
        db.execute(
            "insert into nodes(path, content, meta, created_at, updated_at) values('/memory/shared/bytes.md',"
            " cast(x'ff00fe' as text), '{}', 'then', '2026-03-07T11:00:00')"
        )
        for source, target in (("shared/market/BTC.md", "shared/limited.md"), ("shared/odd.md", "none.md")):
            db.execute(
                "insert into edges(source, target, edge_type) values(?, ?, 'derived from')",
                (f"/memory/{source}", f"/memory/{target}"),
            )
    return path


def server_memory(at: Path) -> Path:
    lines: list[Any] = [
        {"type": "entity", "name": "Kim Lee", "entityType": "person", "observations": ["likes tea", "was in Rome"]},
        {"type": "entity", "name": "kim-lee", "entityType": "alias", "observations": []},
        {"type": "entity", "name": "多云", "entityType": "", "observations": ["c", 3]},
        {"type": "entity", "name": "Kim Lee", "entityType": "twice", "observations": []},
        {"type": "relation", "from": "Kim Lee", "to": "kim-lee", "relationType": "is called"},
        {"type": "relation", "from": "kim-lee", "to": "Kim Lee", "relationType": "is"},
        {"type": "relation", "from": "nobody", "to": "Kim Lee", "relationType": "knows"},
        {"type": "entity", "name": " "},
        [1],
    ]
    path = at / "memory.json"
    path.write_bytes("\n".join(map(json.dumps, lines)).encode() + b"\n{broken\n\xff\xfe\n")
    return path


def vault(at: Path) -> Path:
    folder = at / "vault"
    (folder / "sub").mkdir(parents=True)
    (folder / ".obsidian").mkdir()
    (folder / ".obsidian" / "app.json").write_text("{}")
    front = "---\ntags: [one, two/three]\naliases: [The A]\ncreated: 2025-01-02T03:04:05\n---\n"
    (folder / "A.md").write_text(front + "To [[sub/B|b]] and [[C#part]], not [[none]]. #inline `#code` [[A]]\n")
    (folder / "sub" / "B.md").write_text("Back to [[the a]]. ![[pic.png]] #1 #x1\n```\n[[C]] #no\n```\n")
    (folder / "C.md").write_bytes(b"\xff broken, to [[B]]\n")
    (folder / "sub" / "C.md").write_text("---\nbad: [\n---\nanother C\n")
    (folder / "pic.png").write_bytes(b"\x89PNG\x00")
    (folder / "out.md").symlink_to("/etc/hostname")
    os.utime(folder / "C.md", ns=(5 * 10**18 // 4, 5 * 10**18 // 4))
    return folder


def basic_memory(at: Path) -> Path:
    folder = at / "basic"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "Coffee.md").write_text(
        "---\ntitle: Coffee Brewing\ntype: note\ntags: [coffee]\npermalink: notes/coffee\n---\n\n# Coffee\n\n"
        "- [method] Pour over gives clarity #brewing\n- requires [[Grinding Technique]]\n- see [[none]]\n"
    )
    (folder / "notes" / "Grind.md").write_text(
        "---\ntitle: Grinding Technique\npermalink: notes/grind\n---\n- part of [[notes/coffee]] (always)\n"
    )
    return folder


def mem0(at: Path) -> Path:
    path = at / "export.json"
    memories: list[Any] = [
        {
            "id": "1",
            "memory": "Likes tea",
            "user_id": "kim",
            "created_at": "2025-01-02T03:04:05-08:00",
            "categories": ["a"],
        },
        {
            "id": "2",
            "memory": "Likes tea",
            "agent_id": "bot",
            "metadata": {"k": 1},
            "updated_at": "2025-02-02T00:00:00Z",
        },
        {"id": "3", "memory": ""},
        {"id": "1", "memory": "the first again"},
        {"memory": "no id \ud800"},
        "text",
    ]
    path.write_text(json.dumps({"results": memories}))
    return path


def chatgpt(at: Path) -> Path:
    def node(parent: str | None, role: str, text: Any, when: Any = None, **more: Any) -> dict[str, Any]:
        message = {"author": {"role": role}, "create_time": when, "content": {"content_type": "text", "parts": [text]}}
        return {"parent": parent, "children": [], "message": {**message, **more}}

    long = {str(n): node(str(n - 1) if n else None, "user", f"message {n}", 1_700_000_000 + n) for n in range(5000)}
    said: list[Any] = [
        {
            "id": "c1",
            "title": "Tea",
            "create_time": 1_735_787_045.25,
            "update_time": 1_735_787_999,
            "current_node": "d",
            "mapping": {
                "a": {"parent": None, "children": ["b"], "message": None},
                "b": node("a", "user", "Which tea?", 1_735_787_046),
                "c": node("b", "assistant", "Green.", 1_735_787_047),
                "d": node("b", "assistant", {"content_type": "image_asset_pointer"}, 1_735_787_048),
                "h": node("b", "system", "hidden", metadata={"is_visually_hidden_from_conversation": True}),
            },
        },
        {"id": "c2", "title": "Tea", "create_time": 1_735_787_045, "current_node": "a",
         "mapping": {"a": node("b", "user", "round"), "b": node("a", "user", "and round")}},
        {"id": "c3", "title": "Long", "create_time": 1_700_000_000, "current_node": "none", "mapping": long},
        {"id": "c4", "title": "empty", "mapping": {}},
        {"id": "c5", "title": "\ud800", "create_time": "then", "current_node": "a", "mapping": {"a": node(None, "user", "x\ud800")}},
        7,
    ]  # fmt: skip
    with zipfile.ZipFile(at / "export.zip", "w") as whole:
        whole.writestr("export/conversations.json", json.dumps(said))
        whole.writestr("export/user.json", "{}")
    return at / "export.zip"


def claude(at: Path) -> Path:
    said: list[Any] = [
        {
            "uuid": "u1",
            "name": "Plans",
            "created_at": "2026-01-16T09:00:00.100010Z",
            "updated_at": "2026-01-16T10:00:00Z",
            "chat_messages": [
                {"sender": "human", "text": "Plan?", "created_at": "2026-01-16T09:00:01Z",
                 "attachments": [{"file_name": "x.txt", "extracted_content": "inside"}]},
                {"sender": "assistant", "text": "", "content": [{"type": "text", "text": "A plan."}, {"type": "tool_use"}]},
            ],
        },
        {"uuid": "u2", "name": "", "chat_messages": [{"sender": "human", "text": "no title"}]},
        {"uuid": "u3", "name": "empty", "chat_messages": []},
        {"uuid": "u4"},
    ]  # fmt: skip
    (at / "claude").mkdir()
    (at / "claude" / "conversations.json").write_text(json.dumps(said))
    return at / "claude"


def claude_md(at: Path) -> Path:
    tree = at / "tree"
    (tree / "p" / ".claude" / "memory").mkdir(parents=True)
    (tree / "p" / "node_modules" / "q").mkdir(parents=True)
    (tree / "p" / "CLAUDE.md").write_text("See @.claude/memory/MEMORY.md and [it](other.md)\n")
    (tree / "p" / "other.md").write_text("not named so\n")
    (tree / "p" / "node_modules" / "q" / "CLAUDE.md").write_text("of a package\n")
    (tree / "p" / ".claude" / "memory" / "MEMORY.md").write_text("- [tea](tea.md)\n")
    (tree / "p" / ".claude" / "memory" / "tea.md").write_bytes(b"green \xff\n")
    (tree / "AGENTS.md").symlink_to("p/CLAUDE.md")
    return tree


SAMPLES: dict[str, tuple[Callable[[Path], Path], int, int]] = {  # added and refused of each
    "avm-db": (earlier_avm, 6, 2),
    "server-memory": (server_memory, 3, 6),
    "obsidian": (vault, 5, 1),
    "basic-memory": (basic_memory, 2, 0),
    "mem0": (mem0, 3, 3),
    "chatgpt": (chatgpt, 4, 2),
    "claude": (claude, 2, 2),
    "claude-md": (claude_md, 3, 1),
}


def imported(world: Any, format: str, source: Path) -> dict[str, Record]:
    brought(world, OPERATOR, format, source, INTO)
    return exported(world, OPERATOR, INTO)


def test_every_reader_has_a_sample() -> None:
    assert set(SAMPLES) | {"tar", "jsonl", "markdown"} == set(formats.readers())


@pytest.mark.parametrize("format", SAMPLES)
def test_what_is_read_is_added_or_refused_and_a_second_run_adds_nothing(
    format: str,
    store: Open,
    tmp_path: Path,
) -> None:
    make, added, refused = SAMPLES[format]
    world, source = store("store"), make(tmp_path)
    dry = brought(world, OPERATOR, format, source, INTO, dry=True)
    assert (dry.added, len(dry.refused)) == (added, refused), dry.refused
    assert not [each for each in exported(world, OPERATOR).values() if each.kind == "file"], "a dry run adds nothing"
    report = brought(world, OPERATOR, format, source, INTO)
    assert (report.added, len(report.refused), report.same) == (added, refused, 0), report.refused
    assert [each.became for each in (dry, report)] == [dry.became] * 2
    assert all(each.where and each.reason for each in report.refused)
    files = [each for each in exported(world, OPERATOR, INTO).values() if each.kind == "file"]
    assert len(files) == added
    at = newest(world)
    again = brought(world, OPERATOR, format, source, INTO)
    assert (again.added, again.updated, again.same, again.linked) == (0, 0, added, 0)
    assert newest(world) == at, "not one change"


@pytest.mark.parametrize("format", list(SAMPLES))
def test_an_agent_imports_into_its_own_space_and_moves_are_followed(
    format: str,
    store: Open,
    tmp_path: Path,
) -> None:
    make, added, _ = SAMPLES[format]
    world, source, mine = store("store"), make(tmp_path), "/memory/private/kim/in"
    assert brought(world, "kim", format, source, mine).added == added
    assert not [each for each in exported(world, "bob").values() if each.kind == "file"]
    world.agent("kim").memory.rename(b"/memory/private/kim/in", b"/memory/private/kim/elsewhere")
    report = brought(world, "kim", format, source, mine)
    assert (report.added, report.same) == (0, added)


def test_the_earlier_avm(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "avm-db", earlier_avm(tmp_path))
    btc = got["shared/market/BTC.md"]
    assert (btc.data, btc.author, btc.tags, btc.importance) == (b"BTC rose\n", "akashi", ("ab", "btc"), 0.8)
    assert btc.created == nanoseconds("2026-03-06T10:00:00.5Z") and btc.updated == nanoseconds("2026-03-07T11:00:00Z")
    assert btc.links == (("shared/limited.md", "derived-from"),)
    assert got["private/akashi/own.md"].expires == nanoseconds("2199-01-01T00:00:00Z")
    assert got["private/akashi/own.md"].meta["x"] == [1]
    assert got["shared/limited.md"].shared == ("akashi", "kearsarge")
    assert got["shared/odd.md"].meta["meta"] == "no json {" and got["shared/bytes.md"].data == b"\xff\x00\xfe"


def test_directories_of_the_earlier_avm_are_there_already_the_second_time(store: Open, tmp_path: Path) -> None:
    path = earlier_avm(tmp_path)
    with apsw.Connection(str(path)) as db:
        for name in ("/memory/shared/market", "/memory/shared/alone"):
            db.execute(
                "insert into nodes(path, content, meta, node_type, created_at, updated_at) values(?, '', ?, 'directory',"
                " '2026-03-06T10:00:00', '2026-03-07T11:00:00')",
                (name, '{"created_by": "akashi"}'),
            )
    world = store("store")
    first, again = (brought(world, OPERATOR, "avm-db", path, INTO) for _ in range(2))
    assert "shared/alone" in exported(world, OPERATOR, INTO) and first.refused == again.refused
    assert (again.added, again.updated, again.same) == (0, 0, first.added + first.same)


def test_metadata_nested_too_deeply_of_the_earlier_avm_is_kept_as_text(store: Open, tmp_path: Path) -> None:
    path, deep = earlier_avm(tmp_path), '{"a":' * 3000 + "1" + "}" * 3000
    with apsw.Connection(str(path)) as db:
        db.execute("update nodes set meta = ? where path = '/memory/shared/odd.md'", (deep,))
    got = imported(store("store"), "avm-db", path)
    assert got["shared/odd.md"].data == b"bad meta\n" and deep.startswith(got["shared/odd.md"].meta["meta"])
    assert "shared/empty.md" in got, "what comes behind it is brought in, too"


def test_another_database_is_refused(tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "x.db")) as db:
        db.execute("create table t(a)")
    for name, error in (("x.db", Invalid), ("text.db", StoreFailed)):
        (tmp_path / "text.db").write_text("text" * 1000)
        with pytest.raises(error):
            list(formats.readers()["avm-db"].call(tmp_path / name))  # type: ignore[call-overload]


def test_server_memory(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "server-memory", server_memory(tmp_path))
    assert got["kim-lee.md"].data == b"# Kim Lee\n\n- likes tea\n- was in Rome\n" and got["kim-lee.md"].tags == (
        "person",
    )
    assert got["kim-lee.md"].links == (("kim-lee-2.md", "is-called"),)
    assert got["kim-lee-2.md"].links == (("kim-lee.md", "is"),), "a circle is no trouble"
    assert got["多云.md"].data == "# 多云\n\n- c\n- 3\n".encode()


def test_a_vault(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "obsidian", vault(tmp_path))
    assert set(got) - {"sub"} == {"A.md", "C.md", "sub/B.md", "sub/C.md", "pic.png"}
    assert got["A.md"].tags == ("inline", "one", "two/three")
    assert got["A.md"].created == nanoseconds("2025-01-02T03:04:05Z")
    assert got["A.md"].links == (("C.md", "related"), ("sub/B.md", "related"))
    assert got["sub/B.md"].links == (("A.md", "related"), ("pic.png", "related")) and got["sub/B.md"].tags == ("x1",)
    assert got["C.md"].data == b"\xff broken, to [[B]]\n" and got["C.md"].updated == 5 * 10**18 // 4


def test_basic_memory(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "basic-memory", basic_memory(tmp_path))
    assert got["notes/Coffee.md"].links == (("notes/Grind.md", "requires"),)
    assert got["notes/Grind.md"].links == (("notes/Coffee.md", "part-of"),)
    assert got["notes/Coffee.md"].tags == ("brewing", "coffee")
    assert got["notes/Coffee.md"].meta["title"] == "Coffee Brewing"


def test_mem0(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "mem0", mem0(tmp_path))
    assert got["likes-tea.md"].author == "kim" and got["likes-tea.md"].created == nanoseconds("2025-01-02T11:04:05Z")
    assert got["likes-tea-2.md"].author == "bot" and got["likes-tea-2.md"].meta["mem0"] == {"k": 1}
    assert got["no-id.md"].data == b"no id ?\n"


def test_chatgpt(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "chatgpt", chatgpt(tmp_path))
    tea = got["2025-01-02-tea.md"]
    assert tea.data == (
        b"# Tea\n\n## user (2025-01-02 03:04)\n\nWhich tea?\n\n## assistant (2025-01-02 03:04)\n\n[image_asset_pointer]\n"
    )
    assert tea.meta["other_branches"] == 1 and tea.created == nanoseconds("2025-01-02T03:04:05.25Z")
    assert b"and round" in (got["2025-01-02-tea-2.md"].data or b"")
    assert (got["2023-11-14-long.md"].data or b"").count(b"## user") == 5000


def test_claude(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "claude", claude(tmp_path))
    plans = got["2026-01-16-plans.md"]
    assert plans.data == (
        b"# Plans\n\n## human (2026-01-16 09:00)\n\nPlan?\n\n[attached: x.txt]\n\ninside\n\n## assistant\n\nA plan.\n"
    )
    assert plans.created == nanoseconds("2026-01-16T09:00:00.100010Z") and "conversation.md" in got


def test_trees_of_memory_files(store: Open, tmp_path: Path) -> None:
    got = imported(store("store"), "claude-md", claude_md(tmp_path))
    assert got["p/CLAUDE.md"].links == (("p/.claude/memory/MEMORY.md", "imports"),)
    assert got["p/.claude/memory/MEMORY.md"].links == (("p/.claude/memory/tea.md", "imports"),)


@pytest.mark.parametrize("format", ["markdown", "obsidian", "basic-memory", "claude-md"])
def test_what_cannot_be_read_of_a_folder_is_refused_and_the_rest_comes(
    format: str, store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEMORY.md", "a.md", "gone.md", "sub/b.md"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("text\n")

    def refusing(method: str, unread: Path) -> None:
        real = getattr(Path, method)

        def read(self: Path, *how: Any, **named: Any) -> Any:
            if self == unread and named != {"follow_symlinks": False}:  # as it was listed
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(self, *how, **named)

        monkeypatch.setattr(Path, method, read)

    refusing("iterdir", tmp_path / "in" / "sub")
    refusing("open", tmp_path / "in" / "a.md")
    refusing("stat", tmp_path / "in" / "gone.md")
    report = brought(made := store("store"), "bob", format, tmp_path / "in", MINE)
    monkeypatch.undo()
    assert {each.where for each in report.refused} == {"a.md", "gone.md", "sub"} and report.added == 1
    assert [name for name in exported(made, "bob", MINE) if name.endswith(".md")] == ["MEMORY.md"]


def test_what_changed_in_the_source_comes_and_what_changed_in_both_is_asked_about(
    store: Open,
    tmp_path: Path,
) -> None:
    world, source = store("store"), mem0(tmp_path)
    brought(world, "kim", "mem0", source, INTO)
    source.write_text(source.read_text().replace("Likes tea", "Likes green tea"))
    report = brought(world, "kim", "mem0", source, INTO)
    assert (report.added, report.updated, report.same) == (0, 2, 1)
    world.agent("kim").put(f"{INTO}/likes-tea.md", "corrected here\n")
    assert brought(world, "kim", "mem0", source, INTO).same == 3, "what was corrected here stays"
    source.write_text(source.read_text().replace("green tea", "black tea"))
    report = brought(world, "kim", "mem0", source, INTO)
    assert (report.updated, len(report.refused)) == (1, 4) and "--replace" in report.refused[0].reason
    assert exported(world, "kim", INTO)["likes-tea.md"].data == b"corrected here\n"
    assert brought(world, "kim", "mem0", source, INTO, replacing=True).updated == 1
    assert exported(world, "kim", INTO)["likes-tea.md"].data == b"Likes black tea\n"


def test_what_the_source_says_otherwise_comes_and_what_is_said_otherwise_here_too_is_asked_about(
    store: Open, tmp_path: Path
) -> None:
    world, source = store("store"), mem0(tmp_path)
    kim, memories = world.agent("kim"), json.loads(source.read_text())

    def says(who: str, *tags: str, **how: Any) -> tuple[int, int, tuple[str, ...]]:
        memories["results"][0] |= {"categories": tags, "metadata": {"k": tags}}
        source.write_text(json.dumps(memories))
        report = brought(world, who, "mem0", source, INTO, **how)
        assert report.added + report.updated + report.same + len(report.refused) == report.read == 6
        return report.updated, report.same, exported(world, "kim", INTO)["likes-tea.md"].tags

    brought(world, "kim", "mem0", source, INTO)
    assert says("bob", "b") == (0, 3, ("a",)), "it is not his"
    assert says("kim", "b") == (1, 2, ("b",)) and says("kim", "b") == (0, 3, ("b",))
    assert says("kim") == (1, 2, ("b",)) and says("kim") == (0, 3, ("b",)), "what is only no longer said stays"
    assert says("kim", "c") == (1, 2, ("c",)) and says("kim") == (1, 2, ("c",)) and says("kim", "b") == (1, 2, ("b",))
    note = exported(world, "kim", INTO)["likes-tea.md"]
    assert note.meta["mem0"] == {"k": ["b"]} and note.data == b"Likes tea\n"
    node = kim.node(f"{INTO}/likes-tea.md").id
    kim.memory.submit("set_tags", node=node, add=["own"], remove=[], replace=False)
    assert says("kim", "b") == (0, 3, ("b", "own")), "what was said here stays"
    assert says("kim", "c") == (0, 2, ("b", "own")) and says("kim", "c", replacing=True) == (1, 2, ("c",))
    before = exported(world, "kim", INTO)["likes-tea.md"].meta["imported"]
    del before["said"]  # as imports of before have it
    kim.memory.submit("merge_meta", node=node, importance=None, user={"imported": before})
    assert says("kim", "d") == (0, 3, ("c",)) and says("kim", "d", replacing=True) == (1, 2, ("d",))
    kim.memory.submit("set_tags", node=node, add=["e"], remove=[], replace=True)
    kim.memory.submit("merge_meta", node=node, importance=None, user={"mem0": {"k": ["e"]}})
    assert says("kim", "e") == (1, 2, ("e",)), "the same is said here and there"


def test_what_is_limited_in_the_source_since_is_so_here(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), earlier_avm(tmp_path)
    brought(world, OPERATOR, "avm-db", source, INTO)
    assert "shared/market/BTC.md" in exported(world, "bob", INTO)
    with apsw.Connection(str(source)) as db:
        db.execute(
            "update nodes set meta = json_set(meta, '$.shared_with', json_array('akashi'))"
            " where path like '%/BTC.md' or path like '%/limited.md' or path like '%/own.md'"
        )
    assert brought(world, OPERATOR, "avm-db", source, INTO).updated == 3
    assert "shared/market/BTC.md" not in exported(world, "bob", INTO)
    assert exported(world, OPERATOR, INTO)["shared/limited.md"].shared == ("akashi",)


def test_metadata_that_is_nested_too_deep_to_be_told_ends_no_import() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert digest_of_said(Record("a.md", b"", meta={"k": deep}), "kim") == ""


def test_a_name_that_somebody_has_is_not_taken(store: Open, tmp_path: Path) -> None:
    world = store("store")
    world.agent("bob").put(f"{INTO}/likes-tea.md", "bob's\n")
    brought(world, "kim", "mem0", mem0(tmp_path), INTO)
    got = exported(world, "kim", INTO)
    assert got["likes-tea.md"].data == b"bob's\n" and {"likes-tea-2.md", "likes-tea-3.md"} <= set(got)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "\x00"])
def test_what_is_no_json_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(text)
    for format in ("chatgpt", "claude", "mem0"):
        with pytest.raises(Invalid, match="no JSON"):
            list(formats.readers()[format].call(tmp_path / "conversations.json"))  # type: ignore[call-overload]


def odd_ones(said: Any) -> Iterator[Any]:
    """It with each value in it replaced by each kind of another one."""
    yield from (None, True, 5, -1e400, "x", [1], [[1]], {"a": 1})
    if isinstance(said, dict | list):
        for key, value in [*said.items()] if isinstance(said, dict) else [*enumerate(said)]:
            for odd in odd_ones(value):
                yield {**said, key: odd} if isinstance(said, dict) else [*said[:key], odd, *said[key + 1 :]]


_SAID: dict[str, Any] = {
    "author": {"role": "user"},
    "metadata": {"k": 1},
    "create_time": 1.5,
    "content": {"parts": ["tea"]},
}
_ENTITY = {"name": "tea", "entityType": "drink", "observations": ["green"]}


@pytest.mark.parametrize(
    ("format", "one"),
    [
        ("chatgpt", {"id": "c", "title": "Tea", "create_time": 1, "current_node": "a", "mapping": {"a": {"parent": None, "message": _SAID}, "b": {"parent": "a", "message": _SAID}}}),
        ("claude", {"uuid": "u", "name": "Tea", "created_at": "2026-01-16", "chat_messages": [{"sender": "human", "text": "tea", "content": [{"text": "tea"}], "attachments": [{"file_name": "x", "extracted_content": "y"}]}]}),
        ("mem0", {"id": "1", "memory": "tea", "created_at": "2026-01-16", "metadata": {"k": 1}, "categories": ["a"], "agent_id": "bot"}),
    ],
)  # fmt: skip
def test_no_odd_record_ends_an_import(format: str, one: Any, tmp_path: Path) -> None:
    """Neither what is said of it nor what it says: what is beside it comes."""
    odd = [*odd_ones(one)]
    (tmp_path / "it.json").write_text(json.dumps([*odd, one]))
    read: Any = formats.readers()[format].call(tmp_path / "it.json")
    *others, last = read
    assert len(others) == len(odd) and isinstance(last, Record) and b"tea" in (last.data or b"")


def test_no_odd_entity_or_relation_ends_an_import(tmp_path: Path) -> None:
    relation = {"from": "tea", "to": "tea", "relationType": "is"}
    texts = [json.dumps(odd) for odd in odd_ones({"entities": [_ENTITY], "relations": [relation]})]
    good = json.dumps({"type": "entity", "name": "mate"})
    for one in ({"type": "entity", **_ENTITY}, {"type": "relation", **relation}):
        texts += [f"{json.dumps(odd)}\n{'[' * 100_000}\n{good}" for odd in odd_ones(one)]
    for text in texts:
        (tmp_path / "memory.json").write_text(text)
        read: Any = formats.readers()["server-memory"].call(tmp_path / "memory.json")
        found = {each.path for each in read if isinstance(each, Record)}
        assert "mate.md" in found or good not in text, text


def test_ten_thousand_are_imported_in_few_calls(store: Open, tmp_path: Path) -> None:
    world = store("store")
    (tmp_path / "m.json").write_text(json.dumps([{"id": str(n), "memory": f"note {n}"} for n in range(2000)]))
    from avmfs.transfer.importing import Import
    from tests.unit.test_transfer import door

    kim = door(world, "kim")
    report = Import(kim, INTO).run(formats.readers()["mem0"].call(tmp_path / "m.json"))  # type: ignore[arg-type]
    assert report.added == 2000 and kim.calls < 40


def notes(at: Path, **said: str) -> Path:
    at.mkdir(exist_ok=True)
    for name, text in said.items():
        (at / f"{name}.md").write_text(text)
    return at


MINE = "/memory/private/bob/mine"


def test_what_another_agent_imported_under_the_same_names_is_left_alone(store: Open, tmp_path: Path) -> None:
    world = store("store")
    brought(world, "alice", "obsidian", notes(tmp_path / "a", README="alice's\n"), "/memory/shared/alice-vault")
    report = brought(world, "bob", "obsidian", notes(tmp_path / "b", README="bob's secret\n"), MINE)
    assert (report.added, report.updated) == (1, 0)
    assert exported(world, "carol")["shared/alice-vault/README.md"].data == b"alice's\n"
    assert exported(world, "bob", MINE)["README.md"].data == b"bob's secret\n"


@pytest.mark.parametrize("whose", ["mallory", "bob"])
def test_no_metadata_draws_an_import_out_of_a_private_space(whose: str, store: Open, tmp_path: Path) -> None:
    """Of a file that anybody may write, anybody may say what it was, and all that an import would say of it."""
    world, source = store("store"), notes(tmp_path / "b", diary="bob's\n")
    brought(world, "bob", "obsidian", source, MINE)
    user = exported(world, "bob", MINE)["diary.md"].meta
    world.agent("bob").memory.delete(f"{MINE}/diary.md", recursive=False, permanently=True)
    world.agent(whose).put("/memory/shared/trap.md", "x")
    trap = world.agent("mallory").node("/memory/shared/trap.md")
    world.agent("mallory").memory.submit("merge_meta", node=trap.id, importance=None, user=dict(user))
    notes(source, diary="bob's secret\n")
    assert brought(world, "bob", "obsidian", source, MINE, replacing=True).added == 1
    assert exported(world, "carol")["shared/trap.md"].data == b"x"
    assert exported(world, "bob", MINE)["diary.md"].data == b"bob's secret\n"


def test_metadata_that_is_none_keeps_nobody_from_importing(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), notes(tmp_path / "b", diary="bob's\n")
    world.agent("mallory").put("/memory/shared/trap.md", "x")
    trap = world.agent("mallory").node("/memory/shared/trap.md")
    world.agent("mallory").memory.submit("merge_meta", node=trap.id, importance=None, user={"imported": {"source": []}})
    assert brought(world, "bob", "obsidian", source, MINE).added == 1


@pytest.mark.parametrize("format", ["claude-md", "obsidian", "basic-memory"])
def test_two_folders_with_the_same_names_are_two(format: str, store: Open, tmp_path: Path) -> None:
    world = store("store")
    one, other = notes(tmp_path / "a", CLAUDE="of a\n"), notes(tmp_path / "b", CLAUDE="of b\n")
    for source in (one, other):
        assert brought(world, "kim", format, source, INTO).added == 1
    assert {each.data for each in exported(world, "kim", INTO).values()} == {b"of a\n", b"of b\n"}
    notes(other, CLAUDE="of b, changed\n")
    assert [brought(world, "kim", format, source, INTO).updated for source in (one, other)] == [0, 1]
    assert {each.data for each in exported(world, "kim", INTO).values()} == {b"of a\n", b"of b, changed\n"}


def test_an_import_into_another_place_is_another(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), notes(tmp_path / "a", README="one\n")
    for into in ("/memory/private/kim/a", "/memory/shared/a"):
        assert brought(world, "kim", "obsidian", source, into).added == 1
        assert brought(world, "kim", "obsidian", source, into).same == 1
    notes(source, README="two\n")
    assert brought(world, "kim", "obsidian", source, "/memory/private/kim/a").updated == 1
    assert exported(world, "bob")["shared/a/README.md"].data == b"one\n"


def test_who_brings_in_what_others_have_brought_to_the_same_place_adds_nothing(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), notes(tmp_path / "a", README="one\n")
    brought(world, "kim", "obsidian", source, INTO)
    assert brought(world, "bob", "obsidian", source, INTO).same == 1
    assert brought(world, OPERATOR, "obsidian", source, INTO).same == 1


def test_what_was_moved_to_where_others_see_it_is_there_already_and_gets_nothing_new(
    store: Open, tmp_path: Path
) -> None:
    world, source = store("store"), notes(tmp_path / "b", diary="one\n")
    brought(world, "bob", "obsidian", source, MINE)
    world.agent("bob").memory.rename(f"{MINE}/diary.md".encode(), b"/memory/shared/diary.md")
    assert brought(world, "bob", "obsidian", source, MINE).same == 1
    notes(source, diary="two, private\n")
    assert brought(world, "bob", "obsidian", source, MINE).added == 1
    assert exported(world, "carol")["shared/diary.md"].data == b"one\n"
    notes(source, diary="three, private\n")
    assert brought(world, "bob", "obsidian", source, MINE).updated == 1, "of the two the private one goes on"


def test_what_a_store_had_imported_before_it_told_folders_apart_is_there_already(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), notes(tmp_path / "a", README="one\n", other="two\n")
    brought(world, "kim", "obsidian", source, INTO)
    kim = world.agent("kim")
    for name in ("README", "other"):
        node = kim.node(f"{INTO}/{name}.md")
        said = {**exported(world, "kim", INTO)[f"{name}.md"].meta["imported"]}
        del said["run"]
        kim.memory.submit("merge_meta", node=node.id, importance=None, user={"imported": said})
    notes(source, other="changed\n")
    report = brought(world, "kim", "obsidian", source, INTO)
    assert (report.same, report.added) == (1, 1)
    assert exported(world, "kim", INTO)["other.md"].data == b"two\n", "it may be that of another folder"
    assert exported(world, "kim", INTO)["other-2.md"].data == b"changed\n"
    again = brought(world, "kim", "obsidian", source, INTO)
    assert (again.same, again.added, again.updated) == (2, 0, 0)


def test_a_folder_that_has_moved_adds_nothing(store: Open, tmp_path: Path) -> None:
    world, source = store("store"), notes(tmp_path / "a", README="one\n")
    brought(world, "kim", "obsidian", source, INTO)
    moved = source.rename(tmp_path / "b")
    assert brought(world, "kim", "obsidian", moved, INTO).same == 1
