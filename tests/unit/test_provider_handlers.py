"""The built-in handlers with good, slow, failing and hostile input: what each attempt comes to."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from avmfs_daemon.main import cli
from click.testing import CliRunner

from avmfs import paths
from avmfs.errors import AvmError, Denied, Invalid, NotFound, StoreFailed, TimedOut, TooBig
from avmfs.providers.handler import BaseHandler, Context, find_handler, register_handler
from avmfs.store.schema.database import prepare


def read(
    handler: str,
    config: dict[str, Any],
    /,
    environ: dict[str, str] | None = None,
    *,
    outcome: type[AvmError] | None = None,
    **params: Any,
) -> bytes:
    """``outcome``: what is expected. It has the time that a busy machine needs where that is not to time out."""
    context = Context("/live/x", params, 2.0 if outcome is TimedOut else 60.0, 10_000, environ or {})
    found = find_handler(handler)(config).read("/live/x", context)
    assert found is not None
    return found.encode() if isinstance(found, str) else found


def star(value: str) -> dict[str, Any]:
    return {"*": value}


@contextlib.contextmanager
def server(timeout: float = 2.0) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    seen: list[tuple[str, dict[str, str]]] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers)))
            what = self.path.strip("/")
            if what == "slow":
                self.send_response(200)
                self.end_headers()
                while not over.wait(0.1):
                    with contextlib.suppress(OSError):
                        self.wfile.write(b".")
            elif what.startswith("to="):
                self.send_response(302)
                self.send_header("Location", what[3:].replace("|", "/"))
                self.end_headers()
            elif what == "latin":
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; charset=latin-1")
                self.end_headers()
                self.wfile.write("é".encode("latin-1"))
            elif what == "liar":
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; charset=utf-16")
                self.end_headers()
                self.wfile.write(b"abc")
            elif what == "short":
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"cut")
            else:
                self.send_response({"bad": 500, "none": 404}.get(what, 200))
                self.end_headers()
                self.wfile.write(b"x" * 10_000_000 if what == "big" else b"fine")

        def log_message(self, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}", seen
        finally:
            over.set()
            serving.shutdown()


def test_an_answer_of_http_is_the_text() -> None:
    with server() as (url, seen):
        config = {"url": url + "/p/${symbol}", "headers": {"Authorization": "Bearer ${API_KEY}"}}
        assert read("http", config, {"API_KEY": "k"}, symbol="NVDA") == b"fine"
        assert seen[0][0] == "/p/NVDA" and seen[0][1]["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("big", TooBig),
        ("slow", TimedOut),
        ("bad", StoreFailed),
        ("none", NotFound),
        ("short", StoreFailed),
        ("to=http:||169.254.169.254|latest", Denied),
        ("to=file:|||etc|passwd", Invalid),
    ],
)
def test_what_http_answers_badly_is_an_error(what: str, outcome: type[AvmError]) -> None:
    with server() as (url, _), pytest.raises(outcome):
        read("http", {"url": f"{url}/{what}"}, outcome=outcome)


def test_a_redirect_may_not_name_this_machine_though_the_operator_may() -> None:
    with server() as (other, seen), server() as (url, _):
        with pytest.raises(Denied):
            read("http", {"url": f"{url}/to={other.replace('/', '|')}"})
        assert seen == []


def test_charsets() -> None:
    with server() as (url, _):
        assert read("http", {"url": f"{url}/latin"}) == "é".encode()
        assert read("http", {"url": f"{url}/liar"}) == b"abc"


@pytest.mark.parametrize("value", ["a?b=c#d", "x y\r\nHost: evil", "%2e%2e", "@evil.example", "${API_KEY}", "é"])
def test_a_parameter_stays_in_its_place_of_the_address(value: str) -> None:
    with server() as (url, seen):
        read("http", {"url": url + "/p/${symbol}/end"}, {"API_KEY": "secret"}, symbol=value)
        path, headers = seen[0]
        assert path.startswith("/p/") and path.endswith("/end") and "?" not in path and "secret" not in path
        assert headers["Host"] == url[7:]


def test_a_parameter_brings_no_header_and_no_host() -> None:
    with server() as (url, seen):
        with pytest.raises(Invalid):
            read("http", {"url": url, "headers": {"X-Name": "${name}"}}, name="a\r\nX-Admin: 1")
        with pytest.raises(Invalid, match="host"):
            read("http", {"url": "http://${name}/"}, name="127.0.0.1")
        assert seen == []


@pytest.mark.parametrize("value", ["$(touch hit)", "; touch hit", "`touch hit`", "a' 'b", "a\nb", "$HOME", "${SECRET}"])
def test_a_parameter_is_one_argument(value: str) -> None:
    assert read("script", {"command": "printf %s ${v}"}, {"SECRET": "s"}, v=value) == value.encode()


@pytest.mark.parametrize("value", ["-rf", "--help", "a\0b"])
def test_a_parameter_is_no_option(value: str) -> None:
    with pytest.raises(Invalid):
        read("script", {"command": "printf ${v}"}, v=value)


@pytest.mark.parametrize("command", ["sh -c 'echo ${v}'", "python3 -c 'print(${v})'", "bash -lc ${v}"])
def test_no_parameter_in_the_text_of_a_shell(command: str) -> None:
    with pytest.raises(Invalid, match="run as a program"):
        find_handler("script")({"command": command})


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("sleep 600", TimedOut),
        ("yes", TooBig),
        ("sh -c 'sleep 600 & sleep 600'", TimedOut),
        ("false", StoreFailed),
        ("no-such-program", StoreFailed),
    ],
)
def test_a_program_that_does_not_end_well(command: str, outcome: type[AvmError]) -> None:
    with pytest.raises(outcome):
        read("script", {"command": command}, outcome=outcome)


def test_a_program_has_a_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    said = read("script", {"command": "env", "env": {"TOKEN": "${TOKEN}"}}, {"TOKEN": "t"}).decode()
    names = {line.partition("=")[0] for line in said.splitlines()}
    assert names - {"LC_CTYPE", "PWD", "SHLVL", "_"} == {"PATH", "HOME", "LANG", "TOKEN"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(tmp_path / "d.db")) as db:
        db.executescript("create table price(symbol, at); insert into price values('NVDA', 7), ('AMD', 3);")
    return tmp_path / "d.db"


def test_a_query_binds_what_is_asked(database: Path) -> None:
    config = {"database": str(database), "query": "select at from price where symbol = :symbol"}
    assert read("sqlite", config, symbol="NVDA") == b"7\n"
    for value in ("' or 1=1 --", 'NVDA"; drop table price; --'):
        with pytest.raises(NotFound):
            read("sqlite", config, symbol=value)


def test_what_sqlite_has_and_text_has_not(tmp_path: Path) -> None:
    at = {"database": str(tmp_path / "d.db")}
    with contextlib.closing(sqlite3.connect(at["database"])) as db:
        db.executescript("create table t(id, v); insert into t values('b', x'ff00'), ('n', null), ('i', 9e999)")
    one = {**at, "query": "select v from t where id = :id"}
    assert [read("sqlite", one, id=which) for which in "bn"] == [b"\xff\x00", b""]
    query = "select id, v from t order by id desc"
    said = [json.loads(line) for line in read("sqlite", {**at, "query": query}).splitlines()]
    assert said == [{"id": "n", "v": None}, {"id": "i", "v": None}, {"id": "b", "v": "\ufffd\0"}]
    table = read("sqlite", {**at, "query": query, "format": "csv"}).decode()
    assert table == "id,v\nn,\ni,\nb,\ufffd\0\n"
    names = find_handler("sqlite")({**one, "list": "select v from t where id <> 'i'", "search": "select null"})
    asked = Context("/live/x", {}, 60.0, 10_000, {})
    assert (names.list("/live/x", asked), names.search("/live/x", "q", asked)) == (["\ufffd\0"], [])


@pytest.mark.parametrize(
    ("query", "outcome"),
    [
        ("delete from price", StoreFailed),
        ("attach '/tmp/other.db' as o", StoreFailed),
        ("pragma writable_schema = 1", StoreFailed),
        ("select 1; select 2", StoreFailed),
        ("select load_extension('/tmp/x')", StoreFailed),
        ("with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n", TimedOut),
        ("with recursive n(i) as (select 1 union all select i + 1 from n) select i from n", TooBig),
    ],
)
def test_a_query_only_reads_and_ends(database: Path, query: str, outcome: type[AvmError]) -> None:
    with pytest.raises(outcome):
        read("sqlite", {"database": str(database), "query": query}, outcome=outcome)


def test_a_query_beside_another_leaves_it_its_locks(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()

    class Paused(sqlite3.Connection):
        def execute(self, *given: Any) -> sqlite3.Cursor:
            found = super().execute(*given)  # its first row is read
            if threading.current_thread() is first:
                inside.set()
                go.wait()
            return found

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Paused))
    config = {"database": str(database), "query": "select at from price order by at"}
    first = threading.Thread(target=read, args=("sqlite", config), daemon=True)
    writes = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).executescript('delete from price')"
    command = [sys.executable, "-c", writes, str(database)]
    first.start()
    inside.wait()
    assert read("sqlite", config) == b'{"at": 3}\n{"at": 7}\n'
    beside = subprocess.run(command, capture_output=True, text=True)
    go.set()
    first.join()
    assert "database is locked" in beside.stderr
    subprocess.run(command, check=True)


def test_a_store_of_avmfs_is_no_database_for_it(tmp_path: Path) -> None:
    prepare(tmp_path / "avm.db")
    for _ in range(2):
        with pytest.raises(Invalid, match="a store of avmfs"):
            read("sqlite", {"database": str(tmp_path / "avm.db"), "query": "select 1"})


def test_files_stay_below_their_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("here")
    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    config = {"root": str(root)}
    assert read("file", config, **star("a.txt")) == b"here"
    for value in ("../secret", "sub/../../secret", "out", "up/secret", "/etc/passwd", "a.txt\0", "pipe", ".."):
        with pytest.raises(OSError):
            read("file", config, **star(value))
    with pytest.raises(IsADirectoryError):
        read("file", config, **star("sub"))
    context = Context("/live", {"*": ""}, 2.0, 100, {})
    assert sorted(find_handler("file")(config).list("/live", context) or ()) == ["a.txt", "sub/"]


@pytest.mark.parametrize(
    "config",
    [
        {"root": "${HOME}/docs"},
        {"root": "${DOCS}"},
        {"root": "~/docs"},
        {"path": "${HOME}/docs/${name}"},
        {"path": "${HOME}/${KIND}/${name}"},
        {"path": "${HOME}/${folder}/${name}"},
    ],
)
def test_the_environment_says_where_files_are(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("here")
    (tmp_path / "secret").write_text("secret")
    environ = {"HOME": str(tmp_path), "DOCS": f"{tmp_path}/docs", "KIND": "docs", "name": "none"}
    known: dict[str, Any] = {"folder": "docs"} if "folder" in str(config) else {}
    for value in ("../secret", "..", "/etc/passwd"):
        with pytest.raises(OSError):
            read("file", config, environ, **known, **star(value), name=value)
    assert read("file", config, environ, **known, **star("a.txt"), name="a.txt") == b"here"
    context = Context("/live", {**known, "*": ""}, 2.0, 100, environ)
    assert find_handler("file")(config).list("/live", context) == ["a.txt"]


@pytest.mark.parametrize("path", ["${name}", "${name}/x", "${NOWHERE}/${name}", "${RELATIVE}/${name}"])
def test_a_parameter_is_no_beginning_of_a_path(path: str) -> None:
    for value in ("etc", "/etc/passwd"):
        with pytest.raises(Invalid):
            read("file", {"path": path}, {"RELATIVE": "a"}, name=value)


def test_the_environment_says_which_database_and_a_path_does_not(database: Path) -> None:
    config = {"database": "${HOME}/d.db", "query": "select at from price where symbol = :symbol"}
    assert read("sqlite", config, {"HOME": str(database.parent)}, symbol="NVDA") == b"7\n"
    with pytest.raises(Invalid, match="folder"):
        read("sqlite", {**config, "database": "${folder}/d.db"}, folder=str(database.parent), symbol="NVDA")


def test_the_environment_says_which_host_and_a_path_does_not() -> None:
    with server() as (url, seen):
        config = {"url": "${API_BASE}/p/${symbol}"}
        assert read("http", config, {"API_BASE": url, "symbol": "x"}, symbol="NVDA") == b"fine"
        assert [path for path, _ in seen] == ["/p/NVDA"]
        for bad in ("${symbol}/p", "${API_BASE}${symbol}/p", "${API_BASE}.${symbol}/p", "${NOTHING}${symbol}/p"):
            with pytest.raises(Invalid, match="host"):
                read("http", {"url": bad}, {"API_BASE": url, "NOTHING": ""}, symbol=url)
        assert len(seen) == 1


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o640, 0o666])
def test_a_file_that_is_written_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    run = tmp_path / "run.sh"
    run.write_text("old")
    run.chmod(mode)
    umask = os.umask(0o077)
    try:
        context = Context("/live", {"*": "run.sh"}, 2.0, 100, {})
        find_handler("file")({"root": str(tmp_path)}).write("/live/run.sh", b"new", context)
    finally:
        os.umask(umask)
    assert run.read_text() == "new" and stat.S_IMODE(run.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_that_is_written_keeps_its_owner(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.chown(tmp_path / "a", 1234, 2345)
    context = Context("/live", {"*": "a"}, 2.0, 100, {})
    find_handler("file")({"root": str(tmp_path)}).write("/live/a", b"new", context)
    found = (tmp_path / "a").stat()
    assert (found.st_uid, found.st_gid) == (1234, 2345)


def test_a_file_whose_owner_cannot_be_kept_is_open_to_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chown(*given: Any) -> None:
        raise PermissionError

    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o660)
    monkeypatch.setattr(os, "fchown", chown)
    context = Context("/live", {"*": "a"}, 2.0, 100, {})
    find_handler("file")({"root": str(tmp_path)}).write("/live/a", b"new", context)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_secret_is_nowhere_shown() -> None:
    context = Context("/live/x", {"p": "${KEY}"}, 1.0, 100, {"KEY": "hush-hush"})
    assert context.fill("${KEY} ${p}") == "hush-hush ${KEY}"
    assert context.safe("answered: hush-hush") == "answered: ***"
    with pytest.raises(Invalid, match="not set"):
        context.fill("${ABSENT}")


@pytest.mark.parametrize("said", [("a", 1, "x" * 280), ("a", 5000, "z"), ("y" * 30_000, 1000, "z")])
def test_no_part_of_a_secret_is_in_what_a_program_said(said: tuple[str, int, str]) -> None:
    """Whatever is cut off before it or behind it."""
    secret = "".join(map(chr, range(48, 88)))
    program = "import os, sys; a, n, b = sys.argv[1:]; sys.exit(a + os.environ['KEY'] * int(n) + b)"
    config = {"command": [sys.executable, "-c", program, *map(str, said)], "env": {"KEY": "${KEY}"}}
    with pytest.raises(StoreFailed) as failed:
        read("script", config, {"KEY": secret})
    assert not [at for at in range(33) if secret[at : at + 8] in str(failed.value)], failed.value
    assert "status 1" in str(failed.value) and (said[2] != "x" * 280 or said[2] in str(failed.value))


def test_a_program_brings_a_handler_of_its_own() -> None:
    class Redis(BaseHandler):
        def read(self, path: str, context: Context) -> str:
            return f"{self.config['prefix']}{context.params['key']}"

    register_handler("redis-of-this-test", Redis)
    assert read("redis-of-this-test", {"prefix": "p:"}, key="k") == b"p:k"


def test_the_check_names_each_provider_whose_handler_breaks(tmp_path: Path) -> None:
    class Breaks(BaseHandler):
        def __init__(self, config: Mapping[str, Any]) -> None:
            raise RuntimeError("no licence")

    register_handler("breaks-in-this-test", Breaks)
    (tmp_path / "mounts.yaml").write_text("mounts: []\n")
    providers = "".join(f" - {{pattern: /live/{name}, handler: breaks-in-this-test}}\n" for name in "ab")
    (tmp_path / "config.yaml").write_text(f"providers:\n{providers}")
    (tmp_path / "config.yaml").chmod(0o600)
    done = CliRunner().invoke(cli, ["check"], env={f"AVM_{each}_DIR": str(tmp_path) for each in ("CONFIG", "RUNTIME")})
    assert done.exit_code == 1 and done.stderr.count("RuntimeError: no licence") == 2, (done.stderr, done.exception)


def test_a_plugin_is_a_module(tmp_path: Path) -> None:
    (tmp_path / "my_plugin_of_a_test.py").write_text("def read(path, context):\n    return path\n")
    assert read("plugin", {"plugin": "my_plugin_of_a_test", "path": str(tmp_path)}) == b"/live/x"
    with pytest.raises(Invalid, match="No module named"):
        find_handler("plugin")({"plugin": "no_plugins_of_a_test.talib"})


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("/live/prices/{symbol}", "/live/prices/NVDA", {"symbol": "NVDA"}),
        ("/live/prices/{symbol}", "/live/prices/a/b", None),
        ("/live/{a}-{b}.md", "/live/x-y.md", {"a": "x", "b": "y"}),
        ("/live/indicators/*", "/live/indicators/rsi/NVDA", {"*": "rsi/NVDA"}),
        ("/live/indicators/*", "/live/indicators", None),
        ("/system/status", "/system/status", {}),
    ],
)
def test_a_pattern_finds_parameters(pattern: str, path: str, found: dict[str, str] | None) -> None:
    assert paths.parameters(pattern, paths.split(path.encode())) == found


def test_a_search_of_a_handler_has_the_question_as_text(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "d.db")) as db:
        db.executescript("create table t(id, said); insert into t values(7, 'toner'), (8, 'chair');")
    context = Context("/live", {}, 60.0, 10_000, {})
    sql = {"database": str(tmp_path / "d.db"), "query": "select 1", "search": "select id from t where said = :query"}
    script = {"command": "true", "search": "printf '%s\\n' ${query}"}
    for handler, config, asked in (
        ("sqlite", sql, {"toner": ["7"], "' or 1=1 --": []}),
        ("script", script, {"$(id) `id`": ["$(id) `id`"], "a\nb": ["a", "b"]}),
        ("sqlite", {**sql, "search": "delete from t"}, {"toner": None}),
        ("script", script, {"--version": None}),
    ):
        made = find_handler(handler)(config)
        for query, found in asked.items():
            if found is None:
                with pytest.raises(AvmError):
                    made.search("/live", query, context)
            else:
                assert made.search("/live", query, context) == found
    for handler, config in (("sqlite", sql), ("script", script)):
        del config["search"]
        assert find_handler(handler)(config).search("/live", "x", context) is None
