"""What one agent must not learn of another, on every route: planted words that may turn up nowhere.

Alice plants words in everything that is hers. Then bob (and agents whose names begin like hers) look everywhere:
through the mount, the command line, Python and MCP, with a daemon and without.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp.shared.exceptions import MCPError

from avmfs import AVM
from avmfs.errors import AvmError
from avmfs.rpc.client import RemoteDoor
from avmfs.views import registry
from tests.cli.shells import QuickShell, Shell, environment
from tests.mcp import peers
from tests.mount.mount_world import World, cat, echo, housekeeping_is_done, release_claims, until, view

pytestmark = pytest.mark.mount

CONTROL = "zqnothingqz"  # a word that is planted nowhere
WORDS = (
    "content",
    "name",
    "tag",
    "meta",
    "type",
    "linked",
    "old",
    "removed",
    "renamed",
    "expired",
    "limname",
    "limtext",
    "limold",
    "limtag",
    "message",
    "question",
    "asked",
    "error",
    "directory",
    "target",
    "born",
    "hidden",
    "exchanged",
    "spare",
    "vault",
    "later",
    "reach",
)
NAMED = {word: f"zq{word}qz" for word in WORDS}  # every word that alice plants
# These in any case; whatever looks like them, but for a key drawn at random that mixes cases.
CANARY = re.compile(f"(?i:{'|'.join(NAMED.values())})|[Zz]q[a-z]+qz|ZQ[A-Z]+QZ")
EXCHANGE = 2
QUERIES = ("market", "a", "the", "*", "open team market", "NOT", '"', "芯片", "alice", "private")


@pytest.fixture(scope="module")
def agents() -> list[str]:
    return ["alice", "bob", "carol"]


@pytest.fixture(scope="module")
def settings() -> str:
    return """
embedding: {enabled: false}
permissions:
  - {pattern: "/memory/vault/*", access: none, agents: [bob, carol, ali, alice2]}
  - {pattern: "/memory/fixed/*", access: ro, agents: [bob]}
  - {pattern: "/memory/*", access: rw}
default_access: ro
"""


class Planted:
    """What alice has, once planted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alice, self.bob, self.carol = (world.mounts[name] for name in ("alice", "bob", "carol"))
        self.handles: list[str] = []
        self.names: list[str] = []
        self.environ = {**world.environ, "AVM_AGENT": "bob"}

    def avm(self, agent: str) -> AVM:
        return AVM(agent=agent, environ=self.world.environ)


@pytest.fixture(scope="module")
def planted(world: World) -> Planted:
    found = Planted(world)
    alice, bob = found.alice, found.bob
    w = NAMED
    with found.avm("alice2") as near, found.avm("ali") as nearer:
        near.write("/private/mine.md", "my own")
        nearer.write("/private/mine.md", "my own")
    mine, open_ = alice / "private", alice / "shared"

    # What bob may see: the ground on which counts and scores are taken.
    (open_ / "team").mkdir()
    for number in range(4):
        (open_ / f"team/open{number}.md").write_text(f"market report {number}: the team looked at the open market\n")
    echo("+shown", view(open_ / "team/open0.md", ":tags"))
    (alice / "memory/fixed").mkdir()
    (alice / "memory/fixed/note.md").write_text("market rules that bob may only read\n")
    (bob / "private/mine.md").write_text("bob's own market note\n")

    # Hers alone.
    (mine / "note.md").write_text(f"market {w['content']}\n")
    (mine / f"{w['name']}.md").write_text("market\n")
    echo(f"+{w['tag']}", view(mine / "note.md", ":tags"))
    echo(json.dumps({w["meta"]: w["meta"], "importance": 0.9}), view(mine / "note.md", ":meta"))
    echo(f"/shared/team/open1.md {w['type']}", view(mine / f"{w['name']}.md", ":links"))
    (mine / f"{w['linked']}.md").write_text("market\n")
    echo(f"/private/{w['linked']}.md {w['type']}", view(open_ / "team/open1.md", ":links"))
    (mine / "old.md").write_text(f"market {w['old']}\n")
    (mine / "old.md").write_text("market, newer\n")
    (mine / f"{w['removed']}.md").write_text(f"market {w['removed']}\n")
    (mine / f"{w['removed']}.md").unlink()
    (mine / f"{w['renamed']}.md").write_text("market\n")
    (mine / f"{w['renamed']}.md").rename(mine / "other.md")
    (mine / w["directory"] / "below").mkdir(parents=True)
    (mine / w["directory"] / "below/note.md").write_text("market\n")
    (mine / "link").symlink_to(w["target"])
    (mine / f"{w['expired']}.md").write_text(f"market {w['expired']}\n")
    echo("1s", view(mine / f"{w['expired']}.md", ":ttl"))
    (open_ / "team/brief.md").write_text(f"market {w['expired']}\n")
    echo("1s", view(open_ / "team/brief.md", ":ttl"))

    # In shared space, for her alone. What it was before is another matter: everybody could read it.
    limited = open_ / "team/limited.md"
    limited.write_text(f"market {w['limold']}\n")
    echo("alice", view(limited, ":shared"))
    limited.write_text(f"market {w['limtext']}\n")
    echo(f"+{w['limtag']}", view(limited, ":tags"))
    limited.rename(open_ / f"team/{w['limname']}.md")
    limited = open_ / f"team/{w['limname']}.md"
    echo(f"/shared/team/open2.md {w['type']}", view(limited, ":links"))
    echo(f"/shared/team/{w['limname']}.md {w['type']}", view(open_ / "team/open2.md", ":links"))
    (alice / "memory/vault").mkdir()
    (alice / f"memory/vault/{w['vault']}.md").write_text(f"market {w['vault']}\n")

    # Between hers and what is shared.
    (mine / f"{w['born']}.md").write_text("market\n")
    (mine / f"{w['born']}.md").rename(open_ / "team/born.md")
    (mine / w["spare"]).mkdir()
    (mine / w["spare"] / "inside.md").write_text("market\n")
    (mine / w["spare"]).rename(open_ / "team/moved")
    (open_ / "team/leaves.md").write_text("market\n")
    (open_ / "team/leaves.md").rename(mine / f"{w['hidden']}.md")
    (mine / f"{w['exchanged']}.md").write_text("market\n")
    (open_ / "team/swapped.md").write_text("market\n")
    exchange(mine / f"{w['exchanged']}.md", open_ / "team/swapped.md")
    (mine / f"{w['later']}.md").write_text("the open market, saved by renaming\n")
    (mine / f"{w['later']}.md").rename(open_ / "team/open3.md")

    # Said, asked, marked, done wrong.
    echo(w["message"], alice / "tell/carol?priority=urgent")
    echo(f"what about {w['asked']}", alice / f":ask/{w['question']}")
    cat(view(mine / "note.md", ":delta"))
    with pytest.raises(OSError):
        cat(alice / f":list?{w['error']}=1")
    assert w["error"] in cat(alice / ":error")

    time.sleep(1.1)  # the ttl
    hers = [*mine.rglob("*"), limited, *(alice / "memory/vault").iterdir()]
    for path in hers:
        if path.is_file():
            found.handles.append(json.loads(cat(view(path, ":meta")))["id"])
    found.names = sorted({path.name for path in hers} | {f"{word}{end}" for word in w.values() for end in ("", ".md")})
    assert w["content"] in cat(alice / "private/note.md") and len(found.handles) >= 8
    assert w["message"] in cat(found.carol / ":inbox")
    assert w["limtext"] in cat(alice / f":recall?q={w['limtext']}")
    return found


def exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


def code_of(do: Callable[[], Any]) -> str:
    """The name of the errno that doing so raises, or what it gave."""
    try:
        return f"done: {do()!r}"
    except OSError as e:
        return errno.errorcode[e.errno or 0]


def clean(said: object, where: object) -> None:
    text = said if isinstance(said, str) else repr(said)
    assert not (hit := CANARY.search(text)), f"{where}: {hit[0]} in {text[max(0, hit.start() - 200) : hit.end() + 200]}"


def views_of(place: str, *, root: bool = False) -> Iterator[str]:
    """Suffixes of all views there, those with a question once for each of many."""
    for each in registry.all_views():
        if place not in each.on and not (root and "root" in each.on):
            continue
        if each.read is None:
            continue
        names = [parameter.name for parameter in each.parameters]
        asks = "q=market&" if "q" in names else ""
        if not any(parameter.name == "q" and parameter.default is not None for parameter in each.parameters):
            yield f":{each.name}"
        if "q" in names:
            yield from (f":{each.name}?q={query}" for query in QUERIES)
        if "peek" in names:
            yield f":{each.name}?peek=1"
        if "limit" in names:
            yield f":{each.name}?{asks}limit=100"
        if "min_relevance" in names:
            more = {"max_tokens": "20000", "cite": "path"}
            extra = "".join(f"&{name}={value}" for name, value in more.items() if name in names)
            yield f":{each.name}?{asks}min_relevance=0{extra}"
        if "since" in names:
            yield f":{each.name}?since=0"
        if "format" in names:
            yield f":{each.name}?{asks}format={'json' if each.name == 'graph' else 'jsonl'}"


def a_third(suffixes: Iterator[str], number: int) -> list[str]:
    """What one of three doors asks of a place: all of them together ask it everything, and so does each mount."""
    return [*suffixes][number % 3 :: 3]


def seen_by(mount: Path) -> tuple[list[Path], list[Path]]:
    """Directories and files of a mount, mailboxes and aliases apart."""
    directories, files = [mount], []
    for top, below, names in os.walk(mount / "memory"):
        directories.append(Path(top))
        files += [Path(top, name) for name in names if not Path(top, name).is_symlink()]
        clean([*below, *names], top)
    return directories, files


# --- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["bob", "carol"])
def test_no_view_of_anything_that_is_seen_tells_of_what_is_not(planted: Planted, who: str) -> None:
    mount = planted.world.mounts[who]
    directories, files = seen_by(mount)
    assert len(directories) >= 5 and len(files) >= 8
    read = 0
    for place, suffixes in (
        *((path, [*views_of("file")]) for path in files),
        *((path, [*views_of("directory", root=path == mount)]) for path in directories),
    ):
        for suffix in suffixes:
            where = view(place, suffix) if place in files else place / suffix
            try:
                said = cat(where)
            except OSError as e:
                assert e.errno in (errno.EINVAL, errno.EACCES), (where, e)
                said = cat(mount / ":error")
            if who == "carol":  # alice wrote to her
                said = said.replace(NAMED["message"], "")
            clean(said, where)
            read += 1
    for path in files:
        clean(path.read_text(), path)
    assert read > 200


def test_a_listing_of_the_root_and_of_questions_is_one_s_own(planted: Planted) -> None:
    assert sorted(os.listdir(planted.bob)) == ["memory", "private", "shared", "tell"]
    assert os.listdir(planted.bob / "memory/private") == ["bob"]
    assert os.listdir(planted.bob / ":ask") == []
    assert {"alice", "alice2", "ali", "bob", "carol", "@all"} == {*os.listdir(planted.bob / "tell")}


def test_names_that_bob_guesses_are_not_there(planted: Planted) -> None:
    suffixes = ["", *(f":{each.name}" for each in registry.all_views() if "file" in each.on)]
    directories, files = seen_by(planted.bob)
    known = {path.name for path in files}
    hers = [planted.bob / "memory/private/alice", planted.bob / "memory/vault"]
    tried = 0
    for directory in [*directories, *hers]:
        for name in planted.names:
            if directory in directories and name in known:
                continue
            for suffix in suffixes:
                where = directory / f"{name}{suffix}"
                assert code_of(lambda where=where: os.lstat(where)) == "ENOENT", where
                tried += 1
            assert code_of(lambda where=directory / name: os.open(where, os.O_RDONLY)) == "ENOENT", where
    assert tried > 1000


@pytest.mark.parametrize("name", ["alice", "Alice", "ALICE", "alic%", "a_ice", "%", "_____", "alice2", "ali", "carol"])
def test_a_private_space_of_another_does_not_exist(planted: Planted, name: str) -> None:
    for base in ("memory/private", "private/..", "memory/shared/../private", "memory/./private"):
        for rest in ("", "/note.md", "/mine.md", ":list", "/:list", "/:stats", "/:recall?q=market", "/note.md:meta"):
            where = f"{planted.bob}/{base}/{name}{rest}"
            assert code_of(lambda where=where: os.stat(where)) == "ENOENT", where
            assert code_of(lambda where=where: os.open(where, os.O_RDONLY)) == "ENOENT", where


def test_handles_of_what_is_hers_do_not_exist(planted: Planted) -> None:
    for handle in planted.handles:
        for name in (handle, f"{handle}:meta", f"{handle}:history", f"{handle}:data", handle.upper(), f"{handle}/x"):
            assert code_of(lambda name=name: os.lstat(planted.bob / name)) == "ENOENT", name
        with planted.avm("bob") as bob:
            for path in (f"/{handle}", f"/{handle}:meta", f"/{handle}/x"):
                assert code_of(lambda path=path: bob.read(path)) == "ENOENT"
        # Nor can it be linked to.
        before = cat(planted.bob / "memory/shared/team/open0.md:links")
        for line in (handle, f"-{handle}", "/memory/private/alice/note.md related"):
            assert code_of(lambda line=line: echo(line, planted.bob / "memory/shared/team/open0.md:links")) == "ENOENT"
        assert cat(planted.bob / "memory/shared/team/open0.md:links") == before


def test_a_symlink_into_her_space_leads_nowhere(planted: Planted) -> None:
    made = planted.bob / "private/way"
    for target in ("../alice", "../alice/note.md", "/memory/private/alice/note.md", str(planted.bob / "memory/vault")):
        made.symlink_to(target)
        try:
            assert code_of(lambda: os.stat(made)) == "ENOENT"
            with planted.avm("bob") as bob:
                for path in ("/private/way", "/private/way/note.md", "/private/way:meta", "/private/way/:list"):
                    assert code_of(lambda path=path: bob.read(path)) in ("ENOENT", "ENOTDIR"), (target, path)
                    assert code_of(lambda path=path: bob.write(path, "x")) in ("ENOENT", "ENOTDIR", "EINVAL", "EEXIST")
                assert code_of(lambda: bob.list("/private/way")) in ("ENOENT", "ENOTDIR") or "way" in str(
                    bob.list("/private/way")
                )
        finally:
            made.unlink()
    assert sorted(os.listdir(planted.alice / "private")) == sorted(set(os.listdir(planted.alice / "private")))
    assert NAMED["content"] in (planted.alice / "private/note.md").read_text()


def test_asking_for_a_planted_word_is_like_asking_for_any_other(planted: Planted) -> None:
    """The answers differ in nothing but the word asked for."""
    mount, views = (
        planted.bob,
        (
            ":recall?q=",
            ":search?q=",
            ":list?q=",
            ":list?tag=",
            "shared/team/:list?tag=",
            ":who?q=",
            ":who?via=gossip&q=",
            ":topics?name=",
        ),
    )
    for suffix in views:
        plain = cat(mount / f"{suffix}{CONTROL}")
        for word in NAMED.values():
            assert cat(mount / f"{suffix}{word}").replace(word, CONTROL) == plain, (suffix, word)
    with planted.avm("bob") as bob:
        for word in NAMED.values():
            assert bob.search(word) == [] and bob.agent_memory().recall(word) == ""


def test_reasons_of_errors_and_questions_are_one_s_own(planted: Planted) -> None:
    clean(cat(planted.bob / ":error"), ":error")
    for name in (NAMED["question"], f"{NAMED['question']}?max_tokens=9"):
        assert code_of(lambda name=name: os.stat(planted.bob / ":ask" / name)) == "ENOENT"
    with planted.avm("bob") as bob:
        clean(bob.read("/:error"), ":error")
        assert code_of(lambda: bob.read(f"/:ask/{NAMED['question']}")) == "ENOENT"
        clean(bob.inbox(), "inbox")


def test_a_directory_s_mark_does_not_tell_how_busy_others_are(planted: Planted) -> None:
    where = planted.bob / "shared/team/:mark"
    echo("999999999", where)
    marked, current = re.findall(r"\d+", cat(where))
    assert marked == current


# --- counts and scores -----------------------------------------------------------------------------------------


def test_a_hundred_private_notes_change_nothing_that_bob_can_measure(planted: Planted) -> None:
    directories, files = seen_by(planted.bob)
    wheres = [
        *(path / suffix for path in directories for suffix in views_of("directory", root=path == planted.bob)),
        *(view(path, suffix) for path in files for suffix in views_of("file")),
    ]
    # Reading moves these four by itself.
    wheres = [where for where in wheres if not where.name.endswith((":delta", ":savings", ":error", ":next"))]
    release_claims(planted.world, [str(path.relative_to(planted.bob)) for path in files])

    def measured() -> dict[str, str]:
        said = {}
        # Who is here is no secret, and a client that has hung up is here until the server has heard of it.
        until(lambda: "python since" not in cat(planted.bob / ":agents"))
        for where in wheres:
            try:
                said[str(where)] = cat(where)
            except OSError as e:
                said[str(where)] = str(e.errno)
        with planted.avm("bob") as bob:
            said["hits"] = json.dumps(bob.search("market report", limit=50))
            said["recall"] = bob.agent_memory().recall("market report", min_relevance=0)
        for path in directories:
            found = path.stat()
            said[f"stat {path}"] = f"{found.st_nlink} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_size}"
        return said

    until(lambda: housekeeping_is_done(planted.world, "alice"), 300)
    before = measured()
    assert "seq=" in before["recall"] and len(before) > 200
    with planted.avm("alice") as alice:
        memory = alice.agent_memory()
        for number in range(100):
            memory.remember(
                f"market report {number} {NAMED['reach']} of the open team",
                tags=["market", "shown"],
                importance=1.0,
            )
        path = memory.remember("market report", namespace="/memory/vault")
        alice.write(f"{path}:links", "/shared/team/open0.md cites")
        alice.write(f"/shared/team/{NAMED['limname']}.md", "market report " * 300)
        alice.tell("carol", NAMED["message"])
    after = measured()
    assert {where: (before[where], after[where]) for where in before if before[where] != after[where]} == {}


def test_the_number_of_a_message_does_not_tell_how_much_mail_others_get(planted: Planted) -> None:
    with planted.avm("alice") as alice, planted.avm("bob") as bob, planted.avm("carol") as carol:
        told = [carol.tell("bob", f"number {number}") for number in range(9)]
        alice.tell("carol", "not for bob")
        assert {message["id"] for message in bob.inbox() if message["sender"] == "carol"} >= {*told}
        assert told != sorted(told) and max(told) - min(told) > 9, "drawn, not counted"


# --- writing ---------------------------------------------------------------------------------------------------


def writes_to(where: Path, bob: Path) -> dict[str, Callable[[], Any]]:
    """Every way to change a file, by name; those through its views begin with a colon."""
    mine = bob / "private/mine.md"
    return {
        "write": lambda: os.open(where, os.O_WRONLY),
        "append": lambda: os.open(where, os.O_WRONLY | os.O_APPEND),
        "truncate": lambda: os.truncate(where, 0),
        "unlink": lambda: os.unlink(where),
        "rmdir": lambda: os.rmdir(where),
        "chmod": lambda: os.chmod(where, 0o777),
        "utime": lambda: os.utime(where),
        "move": lambda: os.rename(where, bob / "private/stolen"),
        "exchange": lambda: exchange(where, mine),
        "exchanged": lambda: exchange(mine, where),
        ":tags": lambda: echo("+x", view(where, ":tags")),
        ":meta": lambda: echo("{}", view(where, ":meta")),
        ":shared": lambda: echo("all", view(where, ":shared")),
        ":ttl": lambda: echo("1s", view(where, ":ttl")),
        ":links": lambda: echo("/private/mine.md", view(where, ":links")),
        ":mark": lambda: view(where, ":mark").touch(),
        "plain :tags": lambda: os.open(view(where, ":tags"), os.O_WRONLY),
        "plain :shared": lambda: os.open(view(where, ":shared"), os.O_WRONLY),
    }


def test_writes_to_what_is_invisible_do_not_find_it(planted: Planted) -> None:
    bob, limname = planted.bob, NAMED["limname"]
    team, hers = bob / "memory/shared/team", bob / "memory/private/alice"
    mine = bob / "private/mine.md"
    for where in (hers / "note.md", team / f"{limname}.md", bob / f"memory/vault/{NAMED['vault']}.md"):
        for name, do in writes_to(where, bob).items():
            # open(2) with O_CREAT of a view that is not there asks to create its name: that is EINVAL for all alike.
            assert code_of(do) in ("ENOENT", "EINVAL" if name.startswith(":") else ""), (name, where)
    for where in (hers / "new.md", bob / "memory/vault/new.md"):
        assert code_of(lambda where=where: os.open(where, os.O_WRONLY | os.O_CREAT)) == "ENOENT"
        assert code_of(lambda where=where: os.mkdir(where)) == "ENOENT"
        assert code_of(lambda where=where: os.symlink("x", where)) == "ENOENT"
        assert code_of(lambda where=where: os.rename(mine, where)) == "ENOENT"
    # The one leak that is inherent: the name is taken.
    for do in (
        lambda: os.open(team / f"{limname}.md", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644),
        lambda: os.open(team / f"{limname}.md", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        lambda: os.mkdir(team / f"{limname}.md"),
        lambda: os.symlink("x", team / f"{limname}.md"),
        lambda: os.rename(mine, team / f"{limname}.md"),
        lambda: os.mkdir(hers),
    ):
        assert code_of(do) == "EEXIST"
    assert mine.read_text() == "bob's own market note\n"
    assert NAMED["content"] in (planted.alice / "private/note.md").read_text()
    assert "market" in (planted.alice / f"shared/team/{limname}.md").read_text()


def test_writes_to_what_is_visible_but_not_bob_s_are_refused(planted: Planted) -> None:
    bob = planted.bob
    fixed, note, mine = bob / "memory/fixed", bob / "memory/fixed/note.md", bob / "private/mine.md"
    assert stat.S_IMODE(note.stat().st_mode) & 0o222 == 0
    for name, do in {
        "write": lambda: os.open(note, os.O_WRONLY),
        "truncate": lambda: os.truncate(note, 0),
        "unlink": lambda: os.unlink(note),
        "move out": lambda: os.rename(note, bob / "private/stolen"),
        "move in": lambda: os.rename(mine, fixed / "mine.md"),
        "over": lambda: os.rename(mine, note),
        "exchange": lambda: exchange(mine, note),
        "create": lambda: os.open(fixed / "n", os.O_WRONLY | os.O_CREAT),
        "mkdir": lambda: os.mkdir(fixed / "d"),
        "symlink": lambda: os.symlink("x", fixed / "s"),
        "chmod": lambda: os.chmod(note, 0o777),
        "utime": lambda: os.utime(note),
        "move dir": lambda: os.rename(fixed, bob / "private/fixed"),
        "rmdir": lambda: os.rmdir(fixed),
        "tags": lambda: echo("+x", view(note, ":tags")),
        "meta": lambda: echo('{"a": 1}', view(note, ":meta")),
        "ttl": lambda: echo("1s", view(note, ":ttl")),
        "links": lambda: echo("/private/mine.md", view(note, ":links")),
        "shared": lambda: echo("bob", view(note, ":shared")),
        "not the owner": lambda: echo("bob", bob / "memory/shared/team/open0.md:shared"),
        "root": lambda: os.open(bob / "new", os.O_WRONLY | os.O_CREAT),
        "root dir": lambda: os.mkdir(bob / "new"),
        "private": lambda: os.mkdir(bob / "memory/private/nobody"),
        "mailbox": lambda: os.open(bob / "tell/alice", os.O_RDONLY),
        "alias": lambda: os.unlink(bob / "private"),
    }.items():
        assert code_of(do) == "EACCES", name
    for name, do in {
        "space": lambda: os.rename(bob / "memory/private/bob", bob / "memory/shared/bob"),
        "space away": lambda: os.rmdir(bob / "memory/private/bob"),
        "spaces": lambda: os.rename(bob / "memory/private", bob / "memory/shared/p"),
    }.items():
        assert code_of(do) in ("EPERM", "EACCES"), name
    assert code_of(lambda: os.link(mine, bob / "private/hard")) == "EPERM"
    assert code_of(lambda: echo("alice", view(mine, ":shared"))) == "EINVAL"
    view(note, ":mark").touch()  # his own mark is his
    assert note.read_text() == "market rules that bob may only read\n" and not cat(view(note, ":tags")).startswith("x")


def test_a_directory_with_something_of_hers_inside_does_not_change_hands(planted: Planted) -> None:
    team, bob, limname = planted.bob / "memory/shared/team", planted.bob, NAMED["limname"]
    before = sorted(os.listdir(team))
    (bob / "private/mydir").mkdir()
    try:
        for target in (bob / "private/team", bob / "memory/private/bob/team"):
            assert code_of(lambda target=target: os.rename(team, target)) == "ENOTEMPTY"
        assert code_of(lambda: exchange(team, bob / "private/mydir")) == "ENOTEMPTY"
        assert code_of(lambda: exchange(bob / "private/mydir", team)) == "ENOTEMPTY"
        for source, target in (("/shared/team", "/private/team"), ("/shared/tea", "/private/tea")):
            with planted.avm("bob") as avm, pytest.raises(OSError) as caught:
                avm.move(source, target)
            assert caught.value.errno == errno.ENOTEMPTY
            clean(str(caught.value), "the error's text")
        with planted.avm("bob") as avm:
            avm.write("/memory/temp/own.md", "x")
            with planted.avm("alice") as alice:
                alice.write("/memory/temp/hers.md", "x")
                alice.write("/memory/temp/hers.md:shared", "alice")
                alice.move("/memory/temp/hers.md", f"/memory/temp/{limname}.md")
            with pytest.raises(OSError) as caught:
                avm.delete("/memory/temp", recursive=True)
            assert caught.value.errno == errno.ENOTEMPTY
            clean(str(caught.value), "the error's text")
    finally:
        (bob / "private/mydir").rmdir()
    assert sorted(os.listdir(team)) == before
    assert "market" in (planted.alice / f"shared/team/{limname}.md").read_text()


def test_moved_within_shared_space_it_stays_hers(planted: Planted) -> None:
    bob, limname = planted.bob, NAMED["limname"]
    os.rename(bob / "shared/team", bob / "shared/crew")
    try:
        assert "market" in (planted.alice / f"shared/crew/{limname}.md").read_text()
        assert code_of(lambda: os.stat(bob / f"shared/crew/{limname}.md")) == "ENOENT"
        clean(os.listdir(bob / "shared/crew"), "listdir")
        for suffix in views_of("directory"):
            clean(cat(bob / "shared/crew" / suffix), suffix)
        with planted.avm("bob") as avm:
            clean(avm.search("market", limit=100), "search")
    finally:
        os.rename(bob / "shared/crew", bob / "shared/team")


# --- the other doors -------------------------------------------------------------------------------------------


def sweep(avm: AVM, planted: Planted, agent: str, door: int) -> int:
    """Everything that Python offers, on every path that somebody might guess. ``door``: which third of the views."""
    directories, files = seen_by(planted.bob)
    base = f"{planted.bob}"
    asked = 0

    def ask(do: Callable[[], Any], where: str, allowed: tuple[str, ...] = ()) -> None:
        nonlocal asked
        asked += 1
        try:
            said = do()
        except AvmError as e:
            # What the asker typed may be repeated to him.
            text = str(e)
            for word in CANARY.findall(where):
                text = text.replace(word, "")
            clean(text, where)
            return
        clean(said, where)

    for number, path in enumerate(directories, door):
        where = str(path).removeprefix(base) or "/"
        ask(lambda where=where: avm.list(where), where)
        for suffix in a_third(views_of("directory", root=where == "/"), number):
            ask(lambda where=where, suffix=suffix: avm.read(f"{where.rstrip('/')}/{suffix}"), where + suffix)
    for number, path in enumerate(files, door):
        where = str(path).removeprefix(base)
        for suffix in ("", *a_third(views_of("file"), number)):
            ask(lambda where=where, suffix=suffix: avm.read(where + suffix), where + suffix)
    for query in QUERIES:
        for under in ("/", "/shared", "/memory/private", "/shared/team"):
            ask(lambda query=query, under=under: avm.search(query, under=under, limit=200), f"{query} {under}")
        ask(lambda query=query: avm.agent_memory().recall(query, min_relevance=0, max_tokens=20_000), query)
    for under in ("/memory/private/alice", "/memory/vault", f"/private/../alice/{NAMED['directory']}"):
        with pytest.raises(FileNotFoundError):
            avm.search("market", under=under)
    for name in planted.names:
        for directory in ("/memory/private/alice", "/memory/shared/team", "/memory/vault"):
            if directory == "/memory/vault" and agent != "bob":
                continue
            where = f"{directory}/{name}"
            if where.removeprefix("/") in {str(path).removeprefix(f"{base}/") for path in files}:
                continue
            for do in (avm.read, avm.list, avm.delete, lambda where: avm.move(where, "/private/stolen")):
                with pytest.raises(FileNotFoundError) as caught:
                    do(where)
                text = str(caught.value).replace(name, "")
                clean(text, where)
                asked += 1
            with pytest.raises(FileNotFoundError):
                avm.read(f"{where}:history")
    ask(lambda: avm.inbox(), "inbox")
    return asked


@pytest.mark.parametrize("agent", ["bob", "ali", "alice2"])
def test_python_tells_no_more_than_the_mount(planted: Planted, agent: str) -> None:
    with planted.avm(agent) as avm:
        if agent == "bob":
            assert sweep(avm, planted, agent, 1) > 500
            return
        clean([avm.read("/:list?q="), avm.read("/private/:list"), avm.list("/memory/private")], agent)
        assert [entry["name"] for entry in avm.list("/memory/private")] == [agent]
        for path in ("/memory/private/alice/note.md", f"/{planted.handles[0]}", "/private/note.md"):
            with pytest.raises(FileNotFoundError):
                avm.read(path)
        assert avm.search(NAMED["content"]) == [] and avm.search(NAMED["limtext"]) == []


def test_without_a_daemon_nothing_is_different(planted: Planted, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("config.yaml", "mounts.yaml"):
        (tmp_path / "config" / name).write_text((planted.world.root / "config" / name).read_text())
    source = sqlite3.connect(f"file:{planted.world.root}/data/avm.db?mode=ro", uri=True)
    target = sqlite3.connect(tmp_path / "data/avm.db")
    source.backup(target)
    source.close()
    target.close()
    environ = environment(tmp_path)
    with AVM(agent="bob", environ=environ, embeddings=False) as avm:
        assert sweep(avm, planted, "bob", 2) > 500
    with AVM(agent="alice", environ=environ, embeddings=False) as avm:
        assert NAMED["content"] in avm.read("/private/note.md")
        assert [hit["path"] for hit in avm.search(NAMED["content"])] == ["/memory/private/alice/note.md"]


@pytest.fixture
def shell(planted: Planted, tmp_path: Path) -> Shell:
    return QuickShell({**planted.world.environ, "LC_ALL": "C.UTF-8"}, tmp_path)


def test_the_command_line_tells_no_more_than_the_mount(planted: Planted, shell: Shell) -> None:
    bob = shell
    told = [
        ["ls"],
        ["ls", "-l", "/memory/shared/team"],
        ["ls", "/memory/private"],
        ["ls", "/"],
        ["ls", "/tell"],
        ["search", "market", "-n", "200"],
        ["recall", "market", "--min-relevance", "0", "--cite"],
        ["stats"],
        ["inbox"],
        ["read", "/:changes?since=0"],
        ["read", "/:list?q=&limit=1000"],
        ["read", "/:error"],
        ["who", "market"],
        ["who", "market", "--gossip"],
        ["who", NAMED["content"], "--json"],
        ["who"],
        ["ask", "market"],
        ["ask", "market", "--json"],
        ["topics", "/"],
        ["topics", "--name", "market"],
        ["--json", "search", "market"],
        ["--json", "recall", "market"],
        ["--json", "inbox"],
        *(
            [*shape, *asked]
            for shape in ([], ["--json"])
            for asked in (
                ["tree", "/", "-d", "16"],
                ["browse", "/", "-d", "16"],
                ["browse", "market"],
                ["timeline", "--days", "99"],
                ["graph", "/"],
                ["digest", "/", "--days", "99"],
                ["digest", "/", "--cold", "0", "--days", "0"],
                ["bundle", "market"],
                ["retrieve", "market", "-d", "5"],
                ["synthesize", "market"],
                ["changes", "/"],
                ["tag", "/"],
                ["delta", "/", "--peek"],
                ["index", "status"],
                ["savings"],
                ["rm", "-rn", "/memory/shared/team"],
            )
        ),
    ]
    for arguments in told:
        done = bob.run(*arguments, agent="bob")
        clean((done.stdout + done.stderr).decode(), arguments)
    handle = planted.handles[0]
    refused = [
        ["read", "/memory/private/alice/note.md"],
        ["read", f"/{handle}"],
        ["read", f"/{handle}:meta"],
        ["ls", "/memory/private/alice"],
        ["ls", "/memory/vault"],
        ["rm", "/memory/private/alice/note.md"],
        ["rm", "-r", "/memory/private/alice"],
        ["mv", f"/{handle}", "/private/stolen.md"],
        ["mv", "/memory/private/alice/no", "/private/no"],
        ["append", "/memory/private/alice/note.md", "x"],
        ["write", "/memory/private/alice/note.md", "x"],
        ["write", "/memory/vault/x.md", "x"],
        ["search", "market", "--under", "/memory/private/alice"],
        ["stats", "/memory/private/alice"],
        ["remember", "x", "--path", "/memory/private/alice/x.md"],
        ["remember", "x", "-n", "/memory/vault"],
        ["write", "/memory/fixed/note.md", "x"],
        ["rm", "/memory/fixed/note.md"],
        ["write", "/new.md", "x"],
        ["write", "/memory/shared/team/open0.md:shared", "bob"],
        ["rm", "-r", "/memory/private"],
        ["mv", "/shared/team", "/private/team"],
        ["mv", "/private", "/shared/p"],
        ["tell", "nobody", "x"],
        *(
            [*command, "/memory/private/alice/note.md"]
            for command in (
                ["history"],
                ["history", "--read", "1"],
                ["diff"],
                ["links"],
                ["explore"],
                ["verify"],
                ["delta"],
                ["tag"],
                ["fetch"],
                ["tag", "-r", "x"],
                ["rm", "-n"],
                ["link", "/private/own.md"],
            )
        ),
        ["fetch", handle],
        ["explore", f"/{handle}"],
        ["graph", "/memory/vault"],
        ["digest", "/memory/vault"],
        ["bundle", "market", "--under", "/memory/vault"],
        ["tree", "/memory/private/alice"],
        ["timeline", "/memory/vault"],
        ["index", "status", "/memory/private/alice"],
        ["changes", "/memory/vault"],
        ["mv", "-n", "/memory/private/alice/no", "/private/no"],
        ["retrieve", "market", "--under", "/memory/vault"],
    ]
    bob.run("write", "/private/own.md", "bob's own", agent="bob")
    for arguments in refused:
        said = bob.run(*arguments, agent="bob", code=1)
        assert said.stdout == b"" or json.loads(said.stdout)["items"] == [], said.stdout
        clean(said.stderr.decode(), arguments)
        assert said.stderr.startswith(b"avm: ") and said.stderr.count(b"\n") <= 2, said.stderr  # a line of advice
    assert NAMED["content"] in bob.out("read", "/private/note.md", agent="alice")
    assert bob.out("read", "/memory/private/alice/note.md", "--operator", agent="bob").startswith("market")


# --- MCP -------------------------------------------------------------------------------------------------------


def tool_calls(bob: Path, planted: Planted) -> dict[str, list[dict[str, Any]]]:
    """What bob asks of every tool: all that reads, on every place that he sees or guesses."""
    directories, files = seen_by(bob)
    base = f"{bob}"
    places = [str(path).removeprefix(base) or "/" for path in directories] + ["/memory/private", "/shared"]
    paths = [str(path).removeprefix(base) for path in files]
    guessed = ["/memory/private/alice/note.md", "/memory/vault", "/private/../alice/note.md", *planted.handles[:3]]
    guessed += [f"/memory/shared/team/{NAMED['limname']}.md", f"/memory/private/alice/{NAMED['directory']}"]
    targets = [*paths, *guessed]
    return {
        "avm_recall": [{"query": q, "min_relevance": 0.0, "max_tokens": 20_000, "cite": True} for q in QUERIES]
        + [{"query": "market", "under": place} for place in (*places, *guessed)],
        "avm_search": [{"query": q, "limit": 200, "mode": mode} for q in QUERIES for mode in ("hybrid", "lexical")],
        "avm_browse": [{"target": place, "depth": 5, "limit": 500} for place in (*places, *guessed)]
        + [{"target": q, "limit": 200} for q in QUERIES],
        "avm_fetch": [{"targets": targets[:50]}, {"targets": targets[50:] or targets[:1]}, {"targets": guessed}],
        "avm_recent": [{"under": place, "limit": 1000, "since": "0"} for place in (*places, *guessed)],
        "avm_stats": [{"under": place} for place in (*places, *guessed)],
        "avm_list": [{"path": place, "query": q} for place in (*places, *guessed) for q in (None, "", "market", "zq")],
        "avm_read": [
            {"path": f"{path}{suffix}"}
            for number, path in enumerate(targets)
            for suffix in ("", *a_third(views_of("file"), number))
        ]
        + [
            {"path": f"{place.rstrip('/')}/{suffix}"}
            for number, place in enumerate(places)
            for suffix in a_third(views_of("directory", root=place == "/"), number)
        ],
        "avm_tags": [{}] + [{"path": path} for path in targets],
        "avm_history": [{"path": path, "older": older} for path in targets for older in (None, 0, 1)],
        "avm_link": [{"path": path} for path in targets],
        "avm_topics": [{"under": place, "limit": 1000} for place in (*places, *guessed)]
        + [{"name": name} for name in ("market", NAMED["tag"], NAMED["content"])],
        "avm_ask": [{"question": q} for q in (*QUERIES, NAMED["content"], NAMED["tag"], NAMED["limtext"])],
        "avm_digest": [{"under": place, "days": 9999.0, "limit": 1000} for place in (*places, *guessed)],
        "avm_bundle": [{"query": q, "max_tokens": 20_000} for q in QUERIES],
        "avm_inbox": [{}],
        "avm_consolidate": [{"under": place} for place in (*places, *guessed)] + [{"action": "undo"}],
        "avm_index": [{"action": action, "query": q} for action in ("find", "callers", "callees") for q in QUERIES]
        + [{"action": "sigs", "query": q, "project": "x"} for q in ("", "*")]
        + [{"action": "status"}],
        "avm_remember": [
            {"content": "x", "path": "/memory/private/alice/x.md"},
            {"content": "x", "namespace": "/memory/vault"},
        ],
        "avm_write": [{"path": path, "content": "x", "mode": "append"} for path in guessed],
        "avm_tell": [{"recipient": "nobody-there", "body": "x"}],
        "avm_claim": [{"path": path, "action": action} for path in guessed for action in ("claim", "next", "release")],
        "memory": [{"command": "view", "path": path} for path in ("/memories", "/memories/../alice", "/memories/x.md")],
    }


def test_mcp_tells_no_more_than_the_mount(planted: Planted) -> None:
    from avmfs.mcp import registry, resources

    calls = tool_calls(planted.bob, planted)
    assert set(calls) == set(registry.tools())  # a new tool has to be looked at, too
    with start_blocking_portal() as portal, peers.stdio(portal, planted.world.environ, "bob") as bob:
        asked = 0
        for tool, cases in calls.items():
            for arguments in cases:
                result = bob.ask("call_tool", tool, arguments)
                said = repr(result)
                for word in CANARY.findall(repr(arguments)):  # what the asker typed may be repeated to him
                    said = said.replace(word, "")
                clean(said, (tool, arguments))
                asked += 1
        clean(bob.ask("list_resources"), "resources")
        for uri in [
            *(each.uri for each in resources.FIXED),
            "avm://memory",
            "avm://memory/shared/team",
            "avm://recall/market",
            "avm://search/market",
            "avm://memory/private/alice/note.md",
        ]:
            try:
                clean(bob.ask("read_resource", uri), uri)
            except MCPError as e:
                clean(str(e), uri)
        for prompt, given in (("session_start", {"task": "market"}), ("handoff", {"to": "alice"})):
            clean(bob.ask("get_prompt", prompt, given), prompt)
        assert asked > 300
        with peers.stdio(portal, planted.world.environ, "alice", mode="legacy") as alice:
            assert NAMED["content"] in alice.text("avm_read", path="/private/note.md")
    door = RemoteDoor(planted.world.root / "run/avm.sock", "bob")
    try:
        clean(door.call("watch", since=0, unread=0), "watch")
    finally:
        door.close()
