"""At the edges of the doors: streams that are closed or full, input that is too much, and what an error says."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest

from avmfs import AVM
from avmfs.cli.main import Globals
from avmfs.cli.watching import watch_
from avmfs.errors import Denied, Invalid, IsDirectory, NotFound, NotSupported, TooBig
from avmfs.rpc import times
from avmfs.rpc.client import REQUEST_LIMIT
from tests.behind import connect
from tests.cli.shells import LIMIT_S, Shell
from tests.mount.mount_world import World

Open = Callable[[str], AVM]
WRONG = "damaged: its bytes are not those that were written"


def bash(shell: Shell, line: str, module: str = "avmfs.cli") -> tuple[int, str, str]:
    """A line of bash in which $P is the program: (exit code, stdout, stderr)."""
    done = subprocess.run(
        ["bash", "-c", line.replace("$P", f"{sys.executable} -m {module}")],
        env={**shell.environ, "AVM_AGENT": "alice"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_closed_and_full_streams_are_an_error_and_no_traceback(alone: Shell) -> None:
    alone.run("write", "/private/a", "kept")
    for line in ("$P ls /memory >&-", "$P ls --json >&-", "$P --help >/dev/full", "$P ls /memory >/dev/full"):
        code, _, said = bash(alone, line)
        assert code == 1 and "[Errno " in said and len(said.splitlines()) == 1, (line, said)
    # An input that was not there must not empty the file.
    code, _, said = bash(alone, "$P write /private/a - <&-")
    assert code == 1 and said.startswith("avm: ") and alone.out("read", "/private/a") == "kept"
    assert bash(alone, "$P ls /none 2>&-")[0] == 1
    assert bash(alone, "$P ls / 2>&- <&-") == (0, alone.out("ls", "/"), "")
    for line in ("<&-", "<&- >&- 2>&-"):  # a hook never breaks its client
        assert bash(alone, f"$P hook --client claude -a alice prompt {line}") == (0, "", "")


def test_a_hook_ends_well_wherever_its_output_goes(world: World) -> None:
    shell = Shell({**world.environ, "AVM_HOOK_S": "60"})
    shell.run("write", "/shared/port.md", "Порт базы данных теперь 6543.", agent="alice")
    hook = "$P hook --client claude -a alice"
    asked = json.dumps({"prompt": "какой теперь порт базы данных"})
    assert bash(shell, f"echo '{{}}' | {hook} session-start >/dev/full") == (0, "", "")
    assert bash(shell, f"echo '{{}}' | {hook} --json session-start >/dev/full") == (0, "", "")
    assert bash(shell, f"head -c 500000 /dev/zero | tr '\\0' '[' | {hook} prompt") == (0, "", "")
    code, out, said = bash(shell, f"echo '{asked}' | PYTHONIOENCODING=ascii {hook} prompt")
    assert (code, said) == (0, "") and "теперь 6543" in json.loads(out)["hookSpecificOutput"]["additionalContext"]


def test_what_could_not_be_printed_stays_unread(alone: Shell) -> None:
    alone.run("write", "/private/a", "whoever has written can be told")
    alone.run("subscribe", "/shared/*")
    alone.run("write", "/shared/b", "x", agent="bob")
    alone.run("tell", "alice", "hello", agent="bob")
    mail, notices = ("inbox", "--unread"), ("subscriptions", "notices")
    for line in ("inbox --unread -m --jsonl", "subscriptions notices --mark-read"):
        code, _, said = bash(alone, f"$P {line} >/dev/full")
        assert code == 1 and "[Errno " in said
    for shown, marks in ((mail, "-m"), (notices, "--mark-read")):
        assert (found := json.loads(alone.out("--json", *shown)))
        assert json.loads(alone.out("--json", *shown, marks)) == found
        assert json.loads(alone.out("--json", *shown)) == []


def test_a_daemon_and_an_mcp_server_start_with_all_streams_closed(alone: Shell, tmp_path: Path) -> None:
    (Path(alone.environ["AVM_CONFIG_DIR"]) / "mounts.yaml").write_text("mounts: []\n")
    assert bash(alone, "$P status >/dev/full", "avmfs_daemon")[0] == 1
    assert bash(alone, "$P start --daemon <&- >&- 2>&-", "avmfs_daemon") == (0, "", "")
    try:
        code, out, said = bash(alone, "$P status --json >/dev/full", "avmfs_daemon")
        assert (code, out) == (1, "") and said == "avm-daemon: [Errno 28] No space left on device\n"
    finally:
        assert bash(alone, "$P stop", "avmfs_daemon")[0] == 0
    assert bash(alone, "$P --user alice <&-", "avmfs.mcp")[0] == 0  # its client is gone


def test_wrong_usage_is_json_where_json_was_asked_for(alone: Shell) -> None:
    for arguments in (["read", "--json"], ["--json", "raed", "/x"], ["recall", "x", "--max-tokens", "many", "--json"]):
        (line,) = alone.complaint(*arguments, code=2).splitlines()
        error = json.loads(line)
        assert sorted(error) == ["errno", "error", "hint"] and "--help" in error["hint"]


def damaged(alone: Shell) -> None:
    """A store of which the disk has turned a byte of /shared/n1.md, and left nothing of the index of words."""
    for number in range(3):
        alone.run("write", f"/shared/n{number}.md", f"what is known of pump {number}\n" + "x" * 3000)
    alone.run("write", "/shared/\x1b[31m.md", "what is known of pump red\n" + "x" * 3000)
    database = Path(alone.environ["AVM_DATA_DIR"]) / "avm.db"
    data = database.read_bytes()
    for word in (b"pump 1", b"pump red"):
        data = data.replace(b"what is known of " + word, b"What is known of " + word)
    database.write_bytes(data)


def test_damage_is_told_once_and_by_avm_alone(alone: Shell) -> None:
    """Python's logging adds no line of its own, which would be neither JSON nor escaped; what an answer leaves out is
    told, too."""
    damaged(alone)
    for arguments, code in (
        (["read", "/shared/n1.md"], 1),
        (["append", "/shared/n1.md", "more"], 1),
        (["search", "pump", "--under", "/shared"], 0),
    ):
        names = ["\\x1b[31m.md", "n1.md"] if code == 0 else ["n1.md"]
        said = alone.run(*arguments, code=code).stderr.decode().splitlines()
        told = [line for line in said if not line.startswith("     ")]
        assert told == [f"avm: /memory/shared/{name}: {WRONG}" for name in names], said
        lines = alone.run(*arguments, "--json", code=code).stderr.decode().splitlines()
        assert [json.loads(line)["error"] for line in lines] == [f"/memory/shared/{name}: {WRONG}" for name in names]
    database = Path(alone.environ["AVM_DATA_DIR"]) / "avm.db"
    with contextlib.closing(connect(database)) as db:
        pages: list[Any] = db.execute(
            "select pageno from dbstat where name = 'terms_data' and pagetype = 'leaf'"
        ).fetchall()
    with open(database, "r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * 4096)
            file.write(bytes(4096))
    (line,) = alone.complaint("search", "pump", "--json", code=1).splitlines()
    assert "the store is damaged" in json.loads(line)["error"]
    done = subprocess.run(
        [sys.executable, "-c", "from avmfs import AVM\nwith AVM(agent='alice') as a: a.read('/shared/n1.md')"],
        env=alone.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stderr.startswith("Traceback") and done.stderr.count("damaged: ") == 1, done.stderr


def test_an_empty_name_is_nobody(alone: Shell) -> None:
    assert "who is asking" in alone.complaint("--agent", "", "ls", agent="alice", code=2)
    assert "who is asking" in alone.complaint("ls", "--agent=", "--operator", agent="alice", code=2)


def test_watch_says_where_there_were_more_changes_than_it_was_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    change = {"path": "/memory/a", "status": "added", "was": None, "handle": "k7f2a", "author": "bob"}
    change["at"] = "2026-03-01T12:00:00+00:00"

    class Crowded:
        agent, urgent = "alice", ""

        def call(self, method: str, /, **arguments: Any) -> Any:
            return {"watch": {"seq": 9, "unread": 0}, "recent": {"changes": [change], "more": True, "seq": 9}}[method]

        def close(self) -> None: ...

    with click.Context(watch_, obj=Globals()) as ctx:
        assert watch_.callback is not None
        watch = inspect.unwrap(watch_.callback)
        watch(ctx, Crowded(), "/memory/*", since="0", count=1, wait=0)
        sys.stdout.flush()
    told = capfd.readouterr()
    assert "/memory/a" in told.out and told.err == "(only the newest 10,000 changes: there were more)\n"


def test_watch_goes_on_where_a_restore_has_gone_back(capfd: pytest.CaptureFixture[str]) -> None:
    change = {"path": "/memory/a", "status": "added", "was": None, "handle": "k7f2a", "author": "bob"}
    change["at"] = "2026-03-01T12:00:00+00:00"
    newest = iter([10, 10, 5, 5, 6, 6])  # watch and recent, by turns

    class Restored:
        agent, urgent = "alice", ""

        def call(self, method: str, /, **arguments: Any) -> Any:
            seq = next(newest)
            if method == "watch":
                return {"seq": seq, "unread": 0}
            return {"changes": [change] if seq > int(arguments["since"]) else [], "more": False, "seq": seq}

        def close(self) -> None: ...

    with click.Context(watch_, obj=Globals()) as ctx:
        assert watch_.callback is not None
        inspect.unwrap(watch_.callback)(ctx, Restored(), "/memory/*", since=None, count=1, wait=None)
        sys.stdout.flush()
    told = capfd.readouterr()
    assert "/memory/a" in told.out and "as by a restore" in told.err


def test_times_to_read_are_those_of_the_reader(alone: Shell) -> None:
    alone.run("write", "/shared/a.md", "one")
    there = Shell({**alone.environ, "TZ": "XST-9"})
    view = there.out("read", "/shared/a.md:history").split()[1:3]
    assert there.out("history", "/shared/a.md").split()[1:3] == view
    assert there.out("changes", "/shared").split()[:2] == view
    assert alone.out("history", "/shared/a.md").split()[1:3] != view


def test_more_than_a_daemon_takes_at_once_is_told_before_it_is_sent(world: World) -> None:
    big = b"x" * (REQUEST_LIMIT + 1)
    avm = Shell(world.environ)
    said = avm.complaint("write", "/private/big", data=big, code=1)
    assert "at once" in said and "mount" in said and "append" in said
    with AVM(agent="alice", environ=world.environ) as api:
        with pytest.raises(TooBig):
            api.write("/private/big", big)
        api.write("/private/big", big[: REQUEST_LIMIT - 1000])  # the connection is as good as before
        for _ in range(3):
            api.append("/private/big", big[: REQUEST_LIMIT - 1000])
        assert len(api.read_bytes("/private/big")) == 4 * (REQUEST_LIMIT - 1000)
        with pytest.raises(TooBig, match="of a view"):
            api.read_bytes("/private/big:data")
        api.delete("/private/big")


def test_news_that_no_answer_can_carry_are_not_marked_as_read(world: World) -> None:
    avm = Shell(world.environ)
    for _ in range(5):
        avm.run("append", "/shared/long", data=b"x" * (13 * 1024 * 1024))
    assert "mount" in avm.complaint("delta", "/shared/long", agent="bob", code=1)
    assert avm.out("read", "/shared/long:mark", agent="bob").startswith("marked: never")
    avm.run("rm", "/shared/long")


def test_an_error_names_the_path_and_its_advice_is_about_it(opened: Open) -> None:
    avm = opened("alice")
    avm.write("/shared/f.md", "x")
    for call, kind, path in (
        (lambda: avm.read("/memory"), IsDirectory, "/memory"),
        (lambda: avm.write("/nope/x", "x"), Denied, "/nope/x"),
        (lambda: avm.history("/memory"), NotFound, "/memory"),
        (lambda: avm.move("/shared/f.md", "/nope/x"), Denied, "/shared/f.md -> /nope/x"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value).startswith(f"{path}: "), caught.value


def test_a_mailbox_of_nobody_is_not_there_and_questions_are_asked_at_mounts(opened: Open, alone: Shell) -> None:
    avm = opened("alice")
    for path in ("/tell/nobody", "/tell/Alice?priority=urgent"):
        with pytest.raises(FileNotFoundError, match="no agent is called") as caught:
            avm.write(path, "x")
        assert caught.value.filename == path
        assert "no agent is called" in alone.complaint("write", path, "x", code=1)
    with pytest.raises(NotSupported, match="at a mount") as asked:
        avm.write("/:ask/q", "melons?")
    assert asked.value.filename == "/:ask/q"


def test_a_view_that_is_written_of_what_is_not_there_is_not_found(opened: Open, alone: Shell) -> None:
    avm = opened("alice")
    avm.write("/shared/there.md", "x")
    for path in ("/shared/nope.md:ttl", "/shared/nope/nope.md:tags", "/shared/there.md:list"):
        with pytest.raises(FileNotFoundError) as caught:
            avm.write(path, "2h")
        assert caught.value.filename == path
    with pytest.raises(FileNotFoundError):
        avm.agent_memory().share("/shared/nope.md", ["bob"])
    assert "no such" in alone.complaint("write", "/shared/nope.md:ttl", "2h", code=1).lower()


def test_what_cannot_be_sent_is_refused_by_name_with_a_daemon_and_without(opened: Open) -> None:
    avm = opened("alice")
    memory = avm.agent_memory()
    now, large = datetime.now(), 10**30
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: avm.audit(since=now), "since: wrong type datetime"),  # type: ignore[arg-type]
        (lambda: avm.purge(before=now, dry_run=True), "before: wrong type datetime"),  # type: ignore[arg-type]
        (lambda: memory.remember("x", created=now.date()), "created: wrong type date"),  # type: ignore[arg-type]
        (lambda: memory.remember("x", created=large), "created: "),
        (lambda: avm.delete_mail([large]), "message"),
    ]
    for when in ("9999-01-01", datetime(1600, 1, 1)):
        calls.append((lambda when=when: memory.remember("x", created=when), "expected a time from 1677 to 2262"))
    for call, said in calls:
        with pytest.raises(Invalid) as caught:
            call()
        assert said in caught.value.reason, caught.value


def test_advice_fits(alone: Shell) -> None:
    alone.run("write", "/shared/f.md", "x")
    assert "avm ls" in alone.complaint("history", "/shared/none.md", code=1)
    assert "which versions" in alone.complaint("history", "/shared/f.md", "--read", "99", code=1)
    assert "which versions" in alone.complaint("diff", "/shared/f.md", "1", "99", code=1)
    assert "avm read PATH:shared" in alone.complaint("append", "/f.md", "x", code=1)
    assert "avm subscriptions" in alone.complaint("unsubscribe", "/none/*", code=1)
    for arguments in (["audit", "verify"], ["rm", "/"], ["keys", "create", "--for", "bob"]):
        said = alone.complaint(*arguments, code=1)
        assert len(said.splitlines()) == 1, said  # nothing about files


def test_the_python_api_refuses_what_only_looks_right(opened: Open) -> None:
    avm = opened("alice")
    memory = avm.agent_memory()
    avm.write("/private/there.md", "x")
    for call in (
        lambda: avm.write("/private/n", 5),  # type: ignore[arg-type]
        lambda: avm.append("/private/n", ["x"]),  # type: ignore[arg-type]
        lambda: memory.remember("x", tags="market"),
        lambda: memory.batch_remember("one text"),
        lambda: memory.batch_remember([{"content": "x", "tags": "market"}]),
        lambda: avm.write("/private/n", "\ud800"),
        lambda: memory.remember("\ud800"),
        lambda: avm.search("\ud800"),
        lambda: avm.read("/private/\ud800"),
        lambda: avm.create_api_key(paths="/memory/*"),
        lambda: avm.create_api_key(actions="read"),
        lambda: avm.tell("bob", ""),
    ):
        with pytest.raises(Invalid):
            call()
    assert {each["name"] for each in avm.list("/private")} == {"there.md"}
    assert memory.browse(path="/memory", depth=1).startswith("/memory\n")


@pytest.fixture(params=["XST-9", "XST9"])  # whichever the daemon's is, one is another
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A time zone, for the time of a test this process's too."""
    monkeypatch.setenv("TZ", str(request.param))
    time.tzset()
    yield str(request.param)
    monkeypatch.undo()
    time.tzset()


def test_times_that_are_written_are_those_of_the_writer(world: World, there: str) -> None:
    shell, folder = Shell({**world.environ, "TZ": there}), f"/shared/zone{there}"
    begun = datetime.now().isoformat()
    shell.run("write", f"{folder}/a.md", "one")
    between = datetime.now().isoformat()
    shell.run("write", f"{folder}/a.md", "two")
    over = datetime.now().isoformat()
    assert shell.out("history", f"{folder}/a.md", "--read", between) == "one"
    assert shell.out("read", f"{folder}/a.md", "--at", between) == "one"
    assert shell.out("read", f"/@{between}{folder}/a.md") == "one"
    assert "one" in shell.out("fetch", f"/@{between}{folder}/a.md")
    for since, some in ((between, True), (over, False)):
        assert ("a.md" in shell.out("changes", folder, "--since", since)) == some
        assert ("a.md" in shell.out("read", f"{folder}/:changes?since={since}&limit=5")) == some
        assert ("a.md" in shell.out("audit", "--path", folder, "--since", since)) == some
    assert shell.out("purge", folder, "--before", begun, "-n") == "(nothing to purge)\n"
    assert "a.md" in shell.out("purge", folder, "--before", over, "-n")
    with AVM(agent="alice", environ=world.environ) as avm:
        assert avm.read_at(f"{folder}/a.md", datetime.fromisoformat(between)) == "one"
        assert avm.purge(folder, before=begun, dry_run=True) == []
        assert avm.restore(folder, at=between, dry_run=True) == [(f"/memory{folder}/a.md", "write")]
    with AVM(agent="alice", environ=world.environ, at=between) as then:
        assert then.read(f"{folder}/a.md") == "one"
    shell.run("restore", f"{folder}/a.md", "--at", between)
    assert shell.out("read", f"{folder}/a.md") == "one"


def test_a_name_or_a_question_with_a_time_in_it_stays_as_it_is(world: World) -> None:
    shell = Shell({**world.environ, "TZ": "XST-9"})
    for name in ("x:since=2026-03-01T12:00", "x?since=2026-03-01"):
        shell.run("write", f"/shared/{name}", "kept")
        assert shell.out("read", f"/shared/{name}") == "kept"
    question = {"path": "/:recall?q=what is :changes?since=2026-03-01T12:00"}
    assert times.told(question) == question


def test_a_folder_is_not_exported_to_stdout(alone: Shell) -> None:
    alone.run("write", "/private/a.md", "a secret")
    assert "a folder cannot go to stdout" in alone.complaint("export", "markdown", "-", code=2)
    code, said, _ = bash(alone, 'cd "$AVM_DATA_DIR" && $P export markdown - ; test ! -e ./-')
    assert (code, said) == (0, "")
    assert '"a secret"' in alone.out("export", "jsonl", "-", "/private")


def test_a_command_that_is_told_can_be_pasted(alone: Shell) -> None:
    for name, day in (("a", "Monday"), ("$(touch HIT);b", "Tuesday")):
        done = alone.run("remember", f"The release freeze begins on {day}.", "--path", f"/shared/my notes/{name}.md")
    (command,) = re.findall(r"avm (link .*)", done.stderr.decode())
    code, said, _ = bash(alone, f'cd "$AVM_DATA_DIR" && $P {command} && test ! -e HIT')
    assert code == 0 and "supersedes" in said


@pytest.mark.parametrize("name", ["a\\b.md", "it's\nover two lines.md", "a\\'b\x1b.md"])
def test_a_command_that_is_told_names_a_file_whatever_its_name(alone: Shell, name: str) -> None:
    for path, day in (("/shared/first.md", "Monday"), (f"/shared/{name}", "Tuesday")):
        done = alone.run("remember", f"The release freeze begins on {day}.", "--path", path)
    (command,) = re.findall(r"avm (link .*)", done.stderr.decode())
    code, said, error = bash(alone, f"$P {command}")
    assert code == 0 and "supersedes" in said, error


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("option", ["--db", "--config", "--ca"])
def test_a_file_that_only_the_daemon_may_read_can_be_named(option: str) -> None:
    """As that of another user's daemon, which answers; here only the option is read."""
    program = f"""
import os, tempfile
from click.testing import CliRunner
from avmfs.cli.main import avm
with tempfile.NamedTemporaryFile() as file:
    os.chmod(file.name, 0o600)
    os.setreuid(65534, 0)  # access(2) asks for the first, imports for the second
    print(CliRunner().invoke(avm, [{option!r}, file.name, "help", "nothing such"]).output)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "not readable" not in done.stdout and done.stdout, done.stderr


@pytest.mark.parametrize(
    ("into", "refused"),
    [
        (None, ["x:meta"]),
        ("/index/x", ["n.md", "x:meta"]),
        ("/tell/bob", ["n.md", "x:meta"]),
        ("/memory/private/bob/x", ["n.md", "x:meta"]),
        ("/shared/is a file.md", ["n.md", "x:meta"]),
    ],
)
def test_a_dry_run_refuses_what_the_import_does(
    world: World, tmp_path: Path, into: str | None, refused: list[str]
) -> None:
    avm = Shell(world.environ)
    for name in ("n.md", "x:meta"):
        (tmp_path / name).write_text("x")
    avm.run("write", "/shared/is a file.md", "x")
    asked = ["import", "obsidian", str(tmp_path), *([] if into is None else ["--into", into]), "--json"]
    dry, real = (json.loads(avm.out(*asked, *more, code=1)) for more in (["-n"], []))
    assert [each["where"] for each in dry["refused"]] == [each["where"] for each in real["refused"]] == refused
    assert dry["added"] == real["added"]


def test_what_is_not_on_this_machine_is_named_and_not_looked_for_in_the_memory(alone: Shell) -> None:
    for line in ("import tar /nope", "sync /nope /shared/x", "export tar /nope/x.tar"):
        said = alone.complaint(*line.split(), code=1)
        assert "/nope" in said and "/nope/." not in said and "avm ls" not in said, said
