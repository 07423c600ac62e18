"""Live content through the mounts of two agents: good, slow, failing and hostile sources of every handler."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.mount.mount_world import LIMIT_S, PORTABLE, World, cat, code_of, echo, line_from, meta, running, sh, until

pytestmark = pytest.mark.mount
SECRET = "hush-hush-7391"
BRIEF = {"timeout_s": 1.0}  # of sources that do not answer; who answers has, on a busy machine, any time
ENDLESS = "86399.731"  # seconds of a sleep that nothing else on this machine sleeps

DESK = """
import errno
import os
import time
from avmfs import BaseHandler

class Desk(BaseHandler):
    tickets = {}

    def read(self, path, context):
        self.wait()
        return self.tickets.get(context.params["id"])

    def list(self, path, context):
        self.wait()
        return list(self.tickets)

    def wait(self):
        if os.path.exists(self.config["log"] + "-held"):
            open(self.config["log"] + "-asked", "a").close()
        while os.path.exists(self.config["log"] + "-held"):
            time.sleep(0.02)

    def write(self, path, data, context):
        what = data.decode()
        if what == "denied":
            raise PermissionError("no denied")
        if what == "full":
            raise OSError(errno.ENOSPC, "no full")
        if what == "odd":
            raise RuntimeError("no odd")
        if what.startswith("slow"):
            open(self.config["log"] + "-asked", "a").close()
            while not os.path.exists(self.config["log"] + "-go"):
                time.sleep(0.02)
        with open(self.config["log"], "a") as file:
            file.write(context.params["id"] + " " + what + "\\n" * (not what.endswith("\\n")))
        self.tickets[context.params["id"]] = data

    def search(self, path, query, context):
        if query == "down":
            raise ConnectionError("the desk is closed")
        return [id for id, said in self.tickets.items() if "print" in query and b"toner" in said] + ["../x", "none"]
"""


ODD = {
    "latin": (("Content-Type", "text/plain; charset=latin-1"), "é".encode("latin-1")),
    "liar": (("Content-Type", "text/plain; charset=utf-16"), b"abc"),
    "short": (("Content-Length", "100"), b"cut"),
}
BAD = """
import time

def read(path, context):
    what = path.rpartition("/")[2]
    if what == "raises":
        raise ValueError("as it is")
    if what == "hangs":
        time.sleep(600)
    if what == "exits":
        raise SystemExit(3)
    return 7
"""


class Site(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str | None]]] = []
    over = threading.Event()

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        what = self.path.rpartition("/")[2]
        if what in ODD:
            self.send_response(200)
            self.send_header(*ODD[what][0])
            self.end_headers()
            self.wfile.write(ODD[what][1])
            return
        status = {"bad": 500, "none": 404, "away": 302}.get(what, 200)
        self.send_response(status)
        if what == "away":
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/prices/in")  # type: ignore[attr-defined]
        self.end_headers()
        with contextlib.suppress(OSError):
            said = f"{self.path if self.path.startswith('/web') else what} {len(self.asked)}\n".encode()
            self.wfile.write(b"x" * 10_000_000 if what == "big" else said)
            while what == "slow" and not self.over.wait(0.1):
                self.wfile.write(b".")

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="avml-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def settings(place: Path) -> Iterator[str]:
    (place / "files/sub").mkdir(parents=True)
    (place / "files/sub/a.txt").write_text("from a file\n")
    (place / "secret").write_text("not for agents\n")
    (place / "files/out").symlink_to(place / "secret")
    (place / "shelf/poems").mkdir(parents=True)
    (place / "shelf/novel").write_text("call me\n")
    (place / "shelf/poems/ode").write_text("to a tree\n")
    (place / "put").mkdir()
    (place / "put/a").write_text("old\n")
    (place / "news").write_text("the harvest of quinces was early\n")
    (place / "code").mkdir()
    (place / "code/plug_of_a_test.py").write_text("def read(path, context):\n    return context.params['*'].upper()\n")
    (place / "code/bad_of_a_test.py").write_text(BAD)
    (place / "files/away").symlink_to(place)
    os.mkfifo(place / "files/pipe")
    (place / "code/desk_of_a_test.py").write_text(DESK)
    with contextlib.closing(sqlite3.connect(place / "d.db")) as db:
        db.executescript("create table price(symbol, at); insert into price values('NVDA', 7);")
    os.environ["API_KEY_OF_TEST"] = SECRET
    wait = f"sh -c 'echo x >> {place}/asked-$0; while [ ! -e {place}/go-$0 ]; do sleep 0.05; done; echo gone on'"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{site.server_port}/prices/${{symbol}}"
        http_config = {"url": url, "headers": {"Authorization": "Bearer ${API_KEY_OF_TEST}"}}
        providers: list[dict[str, Any]] = [
            {"pattern": "/live/prices/{symbol}", "handler": "http", "config": http_config, "ttl": 60},
            {
                "pattern": "/live/web/slow",
                "handler": "http",
                "config": {"url": f"http://127.0.0.1:{site.server_port}/web/slow"},
                **BRIEF,
            },
            {
                "pattern": "/live/web/{what}",
                "handler": "http",
                "config": {"url": f"http://127.0.0.1:{site.server_port}/web/${{what}}"},
            },
            {
                "pattern": "/live/head/{v}",
                "handler": "http",
                "config": {"url": f"http://127.0.0.1:{site.server_port}/", "headers": {"X-V": "${v}"}},
            },
            {"pattern": "/live/host/{name}", "handler": "http", "config": {"url": "http://${name}/"}},
            {
                "pattern": "/live/rows",
                "handler": "sqlite",
                "config": {
                    "database": str(place / "d.db"),
                    "query": "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n",
                },
            },
            *(
                {
                    "pattern": f"/live/bad/{what}",
                    "handler": "plugin",
                    "config": {"plugin": "bad_of_a_test", "path": str(place / "code")},
                    **limit,
                }
                for what, limit in (("hangs", BRIEF), ("{what}", {}))
            ),
            {"pattern": "/live/unset/{n}", "handler": "http", "config": {"url": "http://127.0.0.1/${NOT_SET_HERE}"}},
            {"pattern": "/live/echo/{word}", "handler": "script", "config": {"command": "printf %s ${word}"}},
            {"pattern": "/live/hung/{n}", "handler": "script", "config": {"command": wait + " ${n}"}, "timeout_s": 300},
            {"pattern": "/live/stuck", "handler": "script", "config": {"command": f"sleep {ENDLESS}"}, **BRIEF},
            {"pattern": "/live/flood", "handler": "script", "config": {"command": "yes"}, "timeout_s": 60},
            {
                "pattern": "/live/forks",
                "handler": "script",
                "config": {"command": f"sh -c 'sleep {ENDLESS} & sleep {ENDLESS} & wait'"},
                **BRIEF,
            },
            {"pattern": "/live/files/*", "handler": "file", "config": {"root": str(place / "files")}, "ttl": 0},
            {"pattern": "/live/shelf/*", "handler": "file", "config": {"root": str(place / "shelf")}, "ttl": 0},
            {
                "pattern": "/live/put/{name}",
                "handler": "file",
                "config": {"path": f"{place}/put/${{name}}"},
                "writable": True,
                "ttl": 0,
            },
            {
                "pattern": "/live/sql/{symbol}",
                "handler": "sqlite",
                "config": {
                    "database": str(place / "d.db"),
                    "query": "select at from price where symbol = :symbol",
                    "list": "select symbol from price",
                },
            },
            {
                "pattern": "/live/plug/*",
                "handler": "plugin",
                "config": {"plugin": "plug_of_a_test", "path": str(place / "code")},
            },
            {
                "pattern": "/live/news",
                "handler": "script",
                "config": {"command": f"cat {place}/news"},
                "ttl": 0,
                "search": True,
                "history": True,
            },
            {"pattern": "/live/once", "handler": "script", "config": {"command": f"cat {place}/news"}, "ttl": 0},
            {
                "pattern": "/live/tickets/{id}",
                "handler": "plugin",
                "config": {"plugin": "desk_of_a_test", "path": str(place / "code"), "log": str(place / "tickets")},
                "writable": True,
                "search": True,
                "history": True,
                "ttl": 0,
            },
            {
                "pattern": "/live/queue/{id}",
                "handler": "plugin",
                "config": {"plugin": "desk_of_a_test", "path": str(place / "code"), "log": str(place / "queue")},
                "writable": True,
                "ttl": 0,
            },
            {"pattern": "/system/status", "handler": "script", "config": {"command": "uptime"}},
            {"pattern": "/live/chosen/{city}", "handler": "script", "config": {"command": "echo ${city}"}}
            | {"values": {"city": ["Oslo", "Rome"]}},
        ]
        rules = [
            {"pattern": "/live/prices/*", "access": "none", "agents": ["bob"]},
            {"pattern": "/live/put/*", "access": "ro", "agents": ["bob"]},
            {"pattern": "/*", "access": "rw"},
        ]
        patient = [{"timeout_s": 300.0, **each} for each in providers]
        yield json.dumps({"embedding": {"enabled": False}, "providers": patient, "permissions": rules})
        Site.over.set()
        site.shutdown()


@pytest.fixture
def live(alice: Path) -> Path:
    return alice / "live"


def sleeping() -> int:
    """How many sleeps of a source are left."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += each.read_bytes().split(b"\0")[:2] == [b"sleep", ENDLESS.encode()]
    return found


def test_a_price_is_read_as_a_file_and_asked_for_once_while_it_holds(live: Path) -> None:
    first = cat(live / "prices/NVDA")
    assert first.startswith("NVDA ") and cat(live / "prices/NVDA") == first
    assert Site.asked.count(("/prices/NVDA", f"Bearer {SECRET}")) == 1
    assert (live / "prices/NVDA").stat().st_size == len(first) and os.listdir(live / "prices") == ["NVDA"]


def test_each_handler_brings_its_own(live: Path, alice: Path) -> None:
    assert cat(live / "echo/hello") == "hello"
    assert cat(live / "files/sub/a.txt") == "from a file\n"
    assert cat(live / "sql/NVDA") == "7\n"
    assert cat(live / "plug/name") == "NAME"
    assert "load average" in cat(alice / "system/status")


def test_listings_show_what_can_be_known(live: Path, alice: Path) -> None:
    assert sorted(os.listdir(live / "files")) == ["sub"] and os.listdir(live / "files/sub") == ["a.txt"]
    assert os.listdir(live / "sql") == ["NVDA"] and sorted(os.listdir(live / "chosen")) == ["Oslo", "Rome"]
    assert os.listdir(live / "put") == ["a"] and os.listdir(alice / "system") == ["status"]
    assert "from a file" in sh(f"grep -r . {live}/files").stdout and {"live", "system"} < set(os.listdir(alice))


def test_views_show_what_a_source_has_where_nobody_has_looked_before(live: Path, bob: Path, place: Path) -> None:
    assert "  novel" in cat(live / "shelf/:list") and "ode" in cat(bob / "live/shelf/poems/:tree")
    for said in ("as [/memory/none@1] says", "as [/memory/nobody@2] says"):
        cat(live / "shelf/novel")
        (place / "shelf/novel").write_text(f"{said}\n")
        assert said in cat(live / "shelf/novel:blame")
    (place / "shelf/novel").write_text("as [/memory/nothing@3] says\n")
    assert "/memory/nothing" in cat(bob / "live/shelf/novel:verify")


# What is attempted, at which path below /live, and what it comes to: the bytes, or errno and reason.
ATTEMPTS = (
    ("http", "an answer of 500", "web/bad", "EIO answered 500"),
    ("http", "an answer of 404", "web/none", "ENOENT"),
    ("http", "a body of 10 MB", "web/big", "EIO more than 1048576 bytes"),
    ("http", "a body that never ends", "web/slow", "EIO within 1 s"),
    ("http", "a body that ends early", "web/short", "EIO"),
    ("http", "a redirect to this machine", "web/away", "EIO 127.0.0.1"),
    ("http", "latin-1", "web/latin", "é"),
    ("http", "a charset that the body is not in", "web/liar", "abc"),
    *(
        ("http", "a parameter that is more of an address", f"web/{each}", "/web/")
        for each in ("a?b=c#d", "x y", "a\r\nHost: evil", "%2e%2e", "@evil.example", "${API_KEY_OF_TEST}")
    ),
    ("http", "a line break in a header", "head/a\r\nX: y", "EIO printable ASCII"),
    ("http", "a parameter as the host", "host/127.0.0.1", "EIO"),
    ("http", "a variable that is not set", "unset/1", "EIO ${NOT_SET_HERE} is no parameter"),
    ("script", "hangs", "stuck", "EIO not done within 1 s"),
    ("script", "leaves children behind", "forks", "EIO not done within 1 s"),
    ("script", "floods", "flood", "EIO more than 1048576 bytes"),
    *(
        ("script", "the text of a shell", f"echo/{each}", each)
        for each in ("$(touch hit)", "; touch hit", "`id`", "${API_KEY_OF_TEST}", "a b\nc", "%2e%2e", "&|<>", "$HOME")
    ),
    ("script", "an option", "echo/--version", "EIO cannot become an option"),
    ("sqlite", "a condition", "sql/' or 1=1 --", "ENOENT"),
    ("sqlite", "a statement", 'sql/x"; drop table price; --', "ENOENT"),
    ("sqlite", "rows without end", "rows", "EIO"),
    ("file", "..", "files/../secret", "ENOENT"),
    ("file", "a symlink to a file", "files/out", "EIO symbolic links"),
    ("file", "a symlink to a directory", "files/away/secret", "EIO"),
    ("file", "a fifo", "files/pipe", "EIO"),
    ("file", "nothing", "files/nothing", "ENOENT"),
    ("plugin", "raises", "bad/raises", "EIO ValueError: as it is"),
    ("plugin", "hangs", "bad/hangs", "EIO no answer within 1 s"),
    ("plugin", "is no text", "bad/number", "EIO the handler returned int"),
    ("plugin", "would end the process", "bad/exits", "EIO SystemExit"),
)


def outcome(agent: Path, path: str) -> str:
    try:
        return cat(agent / "live" / path).strip()
    except OSError as e:
        said = cat(agent / ":error").strip()
        return f"{errno.errorcode[e.errno or 0]} {said if '/' + path.rpartition('/')[0] in said else ''}"


def test_each_attempt_of_two_agents_comes_to_what_the_table_says(alice: Path, bob: Path, place: Path) -> None:
    """Prints the table: pytest -s."""
    wrong = []
    for handler, attempt, path, expected in ATTEMPTS:
        for name, agent in (("alice", alice), ("bob", bob)):
            told = outcome(agent, path)
            print(f"| {handler} | {attempt} | {name} | `{path!r}` | {told!r:.110} |")
            code, _, reason = expected.partition(" ")
            right = told.startswith(code) and reason in told if code.startswith("E") else expected in told
            beside = cat(agent / "live/echo/still") == "still"
            if not right or SECRET in told or not beside:
                wrong.append((name, path, expected, told))
    assert not wrong
    until(lambda: sleeping() == 0)
    assert not list(place.rglob("hit")) and not Path("hit").exists()
    assert {path.partition("/")[0] + path[:5] for path, _ in Site.asked if path.startswith("/web")} == {"/web/"}
    assert all("\n" not in path and " " not in path and SECRET not in path for path, _ in Site.asked)
    with contextlib.closing(sqlite3.connect(place / "d.db")) as db:
        assert db.execute("select count(*) from price").fetchone() == (1,)


def test_meta_tells_the_source_without_secrets(live: Path) -> None:
    cat(live / "prices/AMD")
    told = meta(live / "prices/AMD")["live"]
    assert (
        told["error"] is None and told["source"].startswith("http http://127.0.0.1") and told["until"] > told["fetched"]
    )
    assert SECRET not in json.dumps(meta(live / "prices/AMD"))


def test_readers_of_a_hung_source_keep_nobody_waiting(live: Path, alice: Path, bob: Path, place: Path) -> None:
    for number in range(20):
        (alice / f"memory/beside-{number}.md").write_text(f"{number}\n")
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(cat, mount / f"live/hung/{n}") for mount in (alice, bob) for n in range(10)]
        until(lambda: len(list(place.glob("asked-*"))) >= 8)
        for mount in (alice, bob):
            for number in range(20):
                assert cat(mount / f"memory/beside-{number}.md") == f"{number}\n"
            assert "beside-3.md" in os.listdir(mount / "memory") and cat(mount / "live/echo/beside") == "beside"
            echo("said", mount / "memory/beside-0.md")
            echo("0", mount / "memory/beside-0.md")
        assert not any(each.done() for each in waiting)
        for n in range(10):
            (place / f"go-{n}").touch()
        assert {each.result() for each in waiting} == {"gone on\n"}
    assert {each.read_text() for each in place.glob("asked-*")} == {"x\n"}  # one fetch for the readers of both mounts


def test_a_hundred_readers_of_a_path_are_one_fetch(alice: Path, bob: Path, place: Path) -> None:
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(cat, (alice, bob)[n % 2] / "live/hung/all") for n in range(100)]
        until((place / "asked-all").exists)
        (place / "go-all").touch()
        assert {each.result() for each in waiting} == {"gone on\n"}
    assert (place / "asked-all").read_text() == "x\n"


def test_a_reader_that_waits_can_be_interrupted(live: Path) -> None:
    assert sh(f"timeout --signal=INT 1 cat {live}/hung/never", check=False).returncode == 124


OPENS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind itself ignores it
try:
    os.open(sys.argv[1], int(sys.argv[2]))
    print("opened")
except KeyboardInterrupt:
    print("given up")
"""


@pytest.mark.skipif(PORTABLE, reason="libfuse tells of an interrupt only who asks")
@pytest.mark.parametrize(
    ("name", "flags", "waits"),
    [
        ("", os.O_RDONLY | os.O_DIRECTORY, True),
        ("/a", os.O_RDONLY, True),
        ("/a", os.O_RDWR, True),
        ("/a", os.O_WRONLY | os.O_APPEND, True),
        ("/a", os.O_RDWR | os.O_TRUNC, False),
    ],
)
def test_who_opens_what_a_slow_source_has_can_be_interrupted_and_waits_for_nothing_that_it_empties(
    live: Path, place: Path, name: str, flags: int, waits: bool
) -> None:
    held, asked = place / "queue-held", place / "queue-asked"
    if name:
        (live / "queue/a").write_text("first\n")
    assert "queue" in os.listdir(live)
    held.touch()
    try:
        with running(OPENS, f"{live}/queue{name}", flags) as opening:
            try:
                if waits:
                    until(asked.exists)
                    opening.send_signal(signal.SIGINT)
                # Before the source's own time is over, which is 300 s.
                assert line_from(opening, 100.0) == ("given up" if waits else "opened")
                assert asked.exists() == waits
            finally:
                held.unlink()
    finally:
        asked.unlink(missing_ok=True)
    if name and waits:
        assert cat(live / "queue/a") == "first\n"


def test_what_changed_is_kept_where_the_provider_says_so(live: Path, place: Path) -> None:
    for name in ("news", "once"):
        cat(live / f"{name}:delta")
    before = (place / "news").read_text()
    (place / "news").write_text("medlars came late\n")
    try:
        assert "+medlars came late" in cat(live / "news:delta") and "-the harvest" in sh(f"cat {live}/news:diff").stdout
        assert len(cat(live / "news:history").splitlines()) == 2 and "avmfs/live" in cat(live / "news:history")
        assert cat(live / "once") == "medlars came late\n" and len(cat(live / "once:history").splitlines()) == 1
    finally:
        (place / "news").write_text(before)


def test_a_search_finds_what_was_fetched_last_and_marks_it(live: Path, alice: Path, bob: Path) -> None:
    cat(live / "news"), cat(live / "once")
    assert "/live/news  (live, of 20" in cat(bob / ":search?q=quinces") and "/live/once" not in cat(
        bob / ":search?q=quinces"
    )
    assert "quinces" in cat(alice / ":recall?q=quinces") and ") live " in cat(alice / ":recall?q=quinces")


def test_rules_hide_a_source_and_no_one_asks_it_for_whom_it_is_hidden(live: Path, alice: Path, bob: Path) -> None:
    cat(live / "prices/HID")
    asked = len(Site.asked)
    assert code_of(os.stat, bob / "live/prices") == errno.ENOENT == code_of(cat, bob / "live/prices/HID")
    assert code_of(cat, bob / "live/prices/NEW") == errno.ENOENT and len(Site.asked) == asked
    assert "prices" not in os.listdir(bob / "live") and "HID" not in cat(bob / ":changes?limit=500")


def test_nobody_changes_what_is_live_but_through_its_source(
    world: World, live: Path, alice: Path, bob: Path, place: Path
) -> None:
    cat(live / "put/a"), cat(live / "echo/x")
    attempts: list[tuple[Any, ...]] = [
        (os.unlink, live / "echo/x"),
        (os.mkdir, live / "new"),
        (os.rmdir, live / "echo"),
        (os.rename, live / "echo/x", alice / "memory/x"),
        (os.rename, alice / "memory/beside-0.md", live / "put/b"),
        (echo, "mine", live / "echo/x"),
        (echo, "mine", live / "echo/y"),
        (os.chmod, live / "put/a", 0o600),
        (echo, "tag", live / "put/a:tags"),
        (echo, "1h", live / "put/a:ttl"),
    ]
    (alice / "memory/beside-0.md").write_text("0\n")
    for attempt, *given in attempts:
        assert code_of(attempt, *given) in (errno.EACCES, errno.EPERM, errno.EROFS), given
    assert code_of(echo, "mine", bob / "live/put/a") == code_of(echo, "mine", bob / "live/put/new") == errno.EACCES
    assert code_of(os.mkdir, alice / "elsewhere") in (errno.EACCES, errno.EPERM)
    done = cli(world, "alice", "write", "/live/put/a", "-", data="by alice\n")
    assert (
        done == "/live/put/a\n"
        and (place / "put/a").read_text() == "by alice\n"
        and cat(live / "put/a") == "by alice\n"
    )
    assert "read-only" in cli(world, "bob", "write", "/live/put/a", "-", data="by bob\n", fails=True)
    assert (place / "put/a").read_text() == "by alice\n"
    assert cli(world, "bob", "rm", "/live/put/a", fails=True) and cat(live / "put/a") == "by alice\n"


def test_what_is_written_through_a_mount_is_given_to_its_source_as_a_whole(
    live: Path, alice: Path, bob: Path, place: Path
) -> None:
    ticket = live / "tickets/7"
    assert os.access(live / "tickets", os.W_OK) and code_of(cat, ticket) == errno.ENOENT
    ticket.write_text("broken\n")  # made
    assert cat(bob / "live/tickets/7") == "broken\n" and (place / "tickets").read_text() == "7 broken\n"
    sh(f"echo more >> {bob}/live/tickets/7")
    assert cat(ticket) == "broken\nmore\n"
    sh(f"echo fixed > {ticket}")
    with ticket.open("r+") as file:
        file.seek(2)
        file.write("XX")
    os.truncate(ticket, 4)
    assert cat(bob / "live/tickets/7") == "fiXX"
    given = (place / "tickets").read_text().splitlines()
    assert given == ["7 broken", "7 broken", "more", "7 fixed", "7 fiXXd", "7 fiXX"]  # never empty, each once
    told = [line.split() for line in cat(f"{ticket}:history").splitlines()]
    assert [line[4] for line in told] == ["alice/mount", "alice/mount", "alice/mount", "bob/mount", "alice/mount"]


def test_the_end_of_what_is_being_written_is_that_of_who_writes(live: Path, bob: Path, place: Path) -> None:
    ticket = live / "tickets/40"
    ticket.write_text("fixed\n")
    file = os.open(ticket, os.O_RDWR)
    os.write(file, b"0123456789")
    assert os.lseek(file, 0, os.SEEK_END) == 10 == os.fstat(file).st_size
    assert cat(ticket) == cat(bob / "live/tickets/40") == "fixed\n" and ticket.stat().st_size == 10
    os.write(file, b"X")
    os.close(file)
    assert (place / "tickets").read_text().splitlines()[-1] == "40 0123456789X"
    file = os.open(ticket, os.O_RDWR | os.O_TRUNC)
    assert os.lseek(file, 0, os.SEEK_END) == 0
    os.write(file, b"denied")
    assert cat(ticket) == "0123456789X" and os.lseek(file, 0, os.SEEK_END) == 6
    os.ftruncate(file, 7)
    assert os.lseek(file, 0, os.SEEK_END) == 7
    os.ftruncate(file, 6)
    assert code_of(os.close, file) == errno.EACCES and ticket.stat().st_size == 11


def test_what_a_source_refuses_is_the_error_of_close_and_fsync(live: Path, alice: Path, bob: Path) -> None:
    (live / "tickets/8").write_text("kept\n")
    for what, code in (("denied", errno.EACCES), ("full", errno.ENOSPC), ("odd", errno.EIO)):
        file = os.open(live / "tickets/8", os.O_WRONLY | os.O_TRUNC)
        os.write(file, what.encode())
        assert code_of(os.fsync, file) == code
        assert code_of(os.close, file) is None  # told once
        file = os.open(live / "tickets/8", os.O_WRONLY | os.O_TRUNC)
        os.write(file, what.encode())
        assert code_of(os.close, file) == code and f"no {what}" in cat(alice / ":error")
        assert cat(bob / "live/tickets/8") == "kept\n"
    assert code_of((live / "tickets/9").write_text, "denied") == errno.EACCES
    assert code_of(cat, live / "tickets/9") == errno.ENOENT and "9" not in os.listdir(live / "tickets")
    assert code_of((live / "tickets/8").write_bytes, bytes(2 * 1024 * 1024)) == errno.EFBIG
    assert cat(live / "tickets/8") == "kept\n" and cat(live / "echo/still") == "still"


SLOWLY = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind itself ignores it
file = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] != "truncate":
    os.write(file, b"slow")
if sys.argv[2] == "ftruncate":  # which waits for the other one
    threading.Thread(target=os.close, args=(os.dup(file),)).start()
    sys.stdin.readline()
print("calls")
try:
    if sys.argv[2] == "fsync":
        os.fsync(file)
    elif sys.argv[2] == "truncate":
        os.truncate(sys.argv[1], 4)
    else:
        os.ftruncate(file, 4)
except KeyboardInterrupt:
    print("given up")
"""


@pytest.mark.parametrize("call", ["fsync", "truncate", "ftruncate"])
def test_who_gives_something_to_a_slow_source_keeps_nobody_waiting(
    live: Path, alice: Path, place: Path, call: str
) -> None:
    ticket, asked, go = live / "tickets/30", place / "tickets-asked", place / "tickets-go"
    (alice / "memory/beside.md").write_text("beside\n")
    go.touch()
    ticket.write_text("slowly\n")
    asked.unlink(), go.unlink()
    try:
        with running(SLOWLY, ticket, call) as giving:
            if call == "ftruncate":
                until(asked.exists)
                assert giving.stdin is not None
                giving.stdin.write("\n"), giving.stdin.flush()
            assert line_from(giving) == "calls"
            until(asked.exists)
            assert cat(alice / "memory/beside.md") == "beside\n" and cat(live / "echo/beside") == "beside"
            if not PORTABLE:
                giving.send_signal(signal.SIGINT)
                assert line_from(giving) == "given up"
            go.touch()
            giving.wait(LIMIT_S)
        assert cat(ticket).startswith("slow")
    finally:
        go.touch()


def test_a_source_that_can_be_searched_is_asked_for_what_no_word_finds(live: Path, alice: Path, bob: Path) -> None:
    (live / "tickets/20").write_text("the toner is empty on the second floor\n")
    (live / "tickets/21").write_text("a chair squeaks\n")
    said = cat(bob / "live/tickets/:search?q=why does nobody print")
    assert len(re.findall(r"(?m)^\[", said)) == 1 and "/live/tickets/20  (live, of 20" in said
    recalled = cat(bob / "live/tickets/:recall?q=why does nobody print")
    assert "the toner is empty" in recalled and ") live " in recalled
    assert "/live/" not in cat(bob / ":search?q=why does nobody print")
    assert "/live/tickets/21" in cat(alice / "live/:search?q=squeaks")
    down = cat(alice / "live/tickets/:search?q=down").splitlines()[0]
    assert down.startswith("# ") and "the search of /live/tickets" in down and "the desk is closed" in down


def test_of_what_is_live_there_is_no_past_and_no_export(world: World, live: Path, alice: Path) -> None:
    cat(live / "echo/past")
    (alice / "memory/here.md").write_text("here\n")
    then = sh("date -u +%Y-%m-%dT%H:%M:%S.%6NZ").stdout.strip()
    assert "memory" in os.listdir(alice / f"@{then}") and "live" not in os.listdir(alice / f"@{then}")
    assert code_of(os.stat, alice / f"@{then}/live/echo/past") == errno.ENOENT
    assert "live/" not in cli(world, "alice", "export", "jsonl", "-", "/")


def cli(world: World, agent: str, *arguments: str, data: str = "", fails: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "avmfs.cli", "-a", agent, *arguments],
        env=world.environ,
        input=data,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout
