"""A daemon that a command starts: once, without mounts, and gone when nobody asks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from avmfs_daemon.embedding import FOUND_WITHIN_S

from avmfs.store.files.store_lock import StoreLock
from avmfs.store.index import client
from tests.cli.shells import Shell, configured, environment
from tests.cli.test_terminal import Terminal
from tests.mount.mount_world import until


@pytest.fixture
def settings() -> str:
    return "embedding: {enabled: false}\n"


@pytest.fixture
def fresh(settings: str) -> Iterator[Shell]:
    """No daemon yet, and a command may start one."""
    with configured(settings) as root:
        environ = environment(root)
        del environ["AVM_AUTOSTART"]
        environ["AVM_AGENT"] = "alice"
        try:
            yield Shell(environ)
        finally:
            daemon(environ, "stop")


def daemon(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "avmfs_daemon", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def holder(environ: dict[str, str]) -> dict[str, object] | None:
    return StoreLock(Path(environ["AVM_DATA_DIR"]) / "avm.db").holder()


def python(environ: dict[str, str], text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_command_starts_a_daemon_that_mounts_nothing_and_the_next_one_uses_it(fresh: Shell) -> None:
    root = Path(fresh.environ["AVM_CONFIG_DIR"]).parent
    (root / "config/mounts.yaml").write_text(f"mounts:\n  - {{mountpoint: {root}/alice, agent_id: alice}}\n")
    fresh.run("write", "/shared/a.md", "hello")
    first = holder(fresh.environ)
    assert first is not None and first["automatic"]
    assert fresh.out("read", "/shared/a.md") == "hello"
    assert holder(fresh.environ) == first
    said = json.loads(daemon(fresh.environ, "status", "--json").stdout)
    assert said["mounts"] == [] and said["automatic"] and not (root / "alice").exists()


def test_the_daemon_has_no_secret_of_whoever_started_it(fresh: Shell) -> None:
    fresh.environ["AVM_MCP_TOKEN"] = "bearer"
    fresh.run("ls", "/shared")
    found = holder(fresh.environ)
    assert found is not None and b"bearer" not in Path(f"/proc/{found['pid']}/environ").read_bytes()


@pytest.mark.parametrize("left", [bytes(20), b"[1]"])
def test_what_a_power_loss_has_left_of_a_failed_start_s_note_keeps_nobody_from_starting_one(
    fresh: Shell, left: bytes
) -> None:
    lock = Path(fresh.environ["AVM_DATA_DIR"]) / "autostart.lock"
    lock.parent.mkdir()
    lock.write_bytes(left)
    fresh.run("ls", "/shared")
    assert holder(fresh.environ) is not None and lock.read_bytes() == b""


def test_many_at_once_start_one(fresh: Shell) -> None:
    said: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: said.append(fresh.run("write", f"/shared/{i}.md", "x").returncode))
        for i in range(6)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert said == [0] * 6
    log = (Path(fresh.environ["AVM_DATA_DIR"]) / "logs/avm-daemon.log").read_text()
    assert log.count("ready: 0 of 0 mounts") == 1
    assert len(json.loads(fresh.out("ls", "/shared", "--json"))) == 6


def test_python_starts_it_too_but_not_for_a_store_that_is_named(fresh: Shell, tmp_path: Path) -> None:
    named = f"from avmfs import AVM; print(AVM(db={str(tmp_path / 'x.db')!r}).write('/shared/a.md', 'x'))"
    assert python(fresh.environ, named) == "1" and holder(fresh.environ) is None
    assert python(fresh.environ, "from avmfs import AVM; print(AVM(embeddings=False).list('/shared'))") == "[]"
    assert holder(fresh.environ) is None
    assert python(fresh.environ, "from avmfs import AVM; print(AVM().list('/shared'))") == "[]"
    assert holder(fresh.environ) is not None


def test_an_mcp_server_begins_one_and_does_not_wait_for_it(fresh: Shell) -> None:
    command = [sys.executable, "-m", "avmfs.mcp", "--user", "alice"]
    with subprocess.Popen(command, env=fresh.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        until(lambda: (found := holder(fresh.environ)) is not None and bool(found["automatic"]))
        assert server.poll() is None
        server.communicate(timeout=300)
    assert server.returncode == 0


@pytest.mark.parametrize("how", ["variable", "key"])
def test_it_can_be_turned_off(fresh: Shell, how: str) -> None:
    if how == "variable":
        fresh.environ["AVM_AUTOSTART"] = "0"
    else:
        config = Path(fresh.environ["AVM_CONFIG_DIR"]) / "config.yaml"
        config.write_text(config.read_text() + "autostart: false\n")
    fresh.run("ls", "/shared")
    assert holder(fresh.environ) is None


@pytest.mark.mount
def test_one_that_somebody_starts_takes_its_place(fresh: Shell) -> None:
    root = Path(fresh.environ["AVM_CONFIG_DIR"]).parent
    (root / "config/mounts.yaml").write_text(f"mounts:\n  - {{mountpoint: {root}/alice, agent_id: alice}}\n")
    fresh.run("write", "/shared/a.md", "hello")
    done = daemon(fresh.environ, "start", "--daemon")
    assert done.returncode == 0, done.stderr
    assert (root / "alice/shared/a.md").read_text() == "hello"
    now = holder(fresh.environ)
    assert now is not None and "automatic" not in now
    again = daemon(fresh.environ, "start", "--daemon")
    assert again.returncode == 1 and "already running" in again.stderr


@pytest.mark.mount
def test_start_and_status_fail_with_a_mount_that_has_failed(fresh: Shell) -> None:
    root = Path(fresh.environ["AVM_CONFIG_DIR"]).parent
    (root / "alice").mkdir()
    (root / "alice/in the way").touch()
    (root / "config/mounts.yaml").write_text(f"mounts:\n  - {{mountpoint: {root}/alice, agent_id: alice}}\n")
    done = daemon(fresh.environ, "start", "--daemon")
    assert done.returncode == 1 and "not empty" in done.stderr and "is running" in done.stdout
    assert daemon(fresh.environ, "status").returncode == 1
    (root / "alice/in the way").unlink()
    assert daemon(fresh.environ, "reload").returncode == 0
    assert daemon(fresh.environ, "status").returncode == 0


def test_it_ends_when_nobody_asks_and_the_next_request_has_another(fresh: Shell) -> None:
    assert daemon(fresh.environ, "start", "--daemon", "--idle", "1").returncode == 0
    first = holder(fresh.environ)
    assert first is not None
    process = os.pidfd_open(int(str(first["pid"])))
    assert select.select([process], [], [], 300)[0], "it has not ended"
    os.close(process)
    fresh.run("ls", "/shared")
    second = holder(fresh.environ)
    assert second is not None and second["pid"] != first["pid"]


def test_a_watched_index_goes_on_with_the_next_one(fresh: Shell, tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter")
    code, told = tmp_path / "house", tmp_path / "told"
    code.mkdir()
    (code / "early.py").write_text("def early(): pass\n")
    command = [sys.executable, "-m", "avmfs.cli", "index", "watch", str(code), "--every", "0.1"]
    with told.open("wb") as out, subprocess.Popen(command, env=fresh.environ, stdout=out, stderr=out) as watching:
        try:
            until(lambda: b"1 added" in told.read_bytes() or watching.poll() is not None)
            daemon(fresh.environ, "stop")
            (code / "late.py").write_text("def late(): pass\n")
            until(lambda: told.read_bytes().count(b"1 added") == 2 or watching.poll() is not None)
        finally:
            watching.terminate()
    assert (watching.returncode, told.read_bytes().count(b"1 added")) == (0, 2), told.read_text()


def test_who_watches_changes_waits_for_the_next_one(fresh: Shell, tmp_path: Path) -> None:
    told, said = tmp_path / "told", tmp_path / "said"
    fresh.run("write", "/shared/early.md", "x")
    command = [sys.executable, "-m", "avmfs.cli", "watch", "/memory/shared/*", "--since", "0", "--count", "2"]
    with (
        told.open("wb") as out,
        said.open("wb") as err,
        subprocess.Popen(command, env=fresh.environ, stdout=out, stderr=err) as watching,
    ):
        try:
            until(lambda: b"early.md" in told.read_bytes() or watching.poll() is not None)
            daemon(fresh.environ, "stop")
            until(lambda: b"waiting for an answer" in said.read_bytes() or watching.poll() is not None)
            fresh.run("write", "/shared/late.md", "x")
            until(lambda: watching.poll() is not None)
        finally:
            watching.terminate()
    assert watching.returncode == 0 and b"late.md" in told.read_bytes(), said.read_text()
    assert said.read_text().count("\n") == 1


def test_who_looks_at_what_happens_is_heard_while_there_is_none(fresh: Shell) -> None:
    fresh.run("write", "/shared/early.md", "x")
    command = [sys.executable, "-m", "avmfs.cli", "top", "--interval", "0.2"]
    terminal = Terminal(command, {**fresh.environ, "TERM": "xterm"})
    try:
        terminal.typed("", "early.md")
        daemon(fresh.environ, "stop")
        terminal.typed("", "waiting for an answer")
        fresh.run("write", "/shared/late.md", "x")
        terminal.typed("", "late.md")
        daemon(fresh.environ, "stop")
        terminal.typed("", "waiting for an answer")
        terminal.typed("q")
    finally:
        terminal.end()


def test_who_watches_changes_of_one_that_is_gone_for_good_says_so_and_how_that_ends(
    fresh: Shell, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    fresh.run("write", "/shared/early.md", "x")
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's job ignores it
    command = [sys.executable, "-c", code + "from avmfs.cli.main import main; main()", "watch", "--since", "0"]
    with (
        said.open("wb") as err,
        subprocess.Popen(command, env=fresh.environ, stdout=subprocess.PIPE, stderr=err) as watching,
    ):
        try:
            assert watching.stdout is not None and b"early.md" in watching.stdout.readline()
            daemon(fresh.environ, "stop")
            until(lambda: b"waiting for an answer, until ^C\n" in said.read_bytes() or watching.poll() is not None)
            watching.send_signal(signal.SIGINT)
            until(lambda: watching.poll() is not None)
        finally:
            watching.kill()
    assert watching.returncode == 130 and said.read_text().count("until ^C") == 1, said.read_text()


def test_one_that_cannot_start_is_told_of_once_and_the_command_works_without(fresh: Shell) -> None:
    run = Path(fresh.environ["AVM_RUNTIME_DIR"])
    run.write_text("a file is in its place")
    said = fresh.run("write", "/shared/a.md", "hello").stderr.decode()
    assert "could not be started" in said and "run: File exists" in said
    assert fresh.out("read", "/shared/a.md") == "hello"
    log = Path(fresh.environ["AVM_DATA_DIR"]) / "autostart.lock"
    noted = json.loads(log.read_text())
    fresh.run("read", "/shared/a.md")
    assert json.loads(log.read_text()) == noted, "it was tried again at once"
    run.unlink()
    mounts = Path(fresh.environ["AVM_CONFIG_DIR"]) / "mounts.yaml"
    mounts.write_text("mounts: []\n")
    for what in (("start", "--daemon"), ("stop",)):
        assert daemon(fresh.environ, *what).returncode == 0
    said = fresh.run("read", "/shared/a.md").stderr.decode()
    assert "could not be started" not in said and holder(fresh.environ) is not None, "one did start since"


@pytest.mark.model
@pytest.mark.parametrize("settings", ["embedding: {timeout_s: 300}\n"])
def test_a_question_that_comes_before_the_model_is_loaded_is_answered_by_meaning(fresh: Shell) -> None:
    began = time.monotonic()
    fresh.run("remember", "Silicon vendors look frothy; trim NVDA before earnings.")
    said = fresh.out("recall", "are semiconductor stocks overvalued")
    # Who is told that there is no meaning has waited for it first; a busy machine takes longer than one waits.
    waited_s = client.PATIENCE_S if client.SILENT in said else FOUND_WITHIN_S
    assert "unavailable" not in said or time.monotonic() - began > waited_s, said

    def by_meaning() -> bool:
        said = fresh.out("recall", "are semiconductor stocks overvalued")
        return "trim NVDA" in said and "unavailable" not in said

    until(by_meaning)


@pytest.mark.parametrize("settings", ["embedding: {engine: static}\n"])
def test_the_playground_starts_none_for_its_own_memory(fresh: Shell) -> None:
    folder = Path(fresh.environ["AVM_CONFIG_DIR"]).parent / "tmp"
    folder.mkdir()
    fresh.environ["TMPDIR"] = str(folder)
    assert "nothing is left behind" in fresh.out("playground", "--yes")
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"AVM_DATA_DIR={folder}/".encode() in (process / "environ").read_bytes():
                left.append(int(process.name))
    for pid in left:  # of its own, and of no use to anybody
        os.kill(pid, signal.SIGKILL)
    assert not left
