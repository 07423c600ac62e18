"""Messages under hard conditions: refusals that a shell hears of, waiters that go, kills at every step, and reads that
carry what is urgent on a mount that wants it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import (
    LIMIT_S,
    Place,
    World,
    cat,
    cat_bytes,
    code_of,
    echo,
    line_from,
    linux_only,
    running,
    sh,
    until,
)

pytestmark = pytest.mark.mount

HAS_SUCCESSOR = linux_only("libfuse keeps its threads and has no successor")


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [
        {"agent_id": "alice"},
        {"agent_id": "bob"},
        {"agent_id": "eve", "read_only": True, "urgent": "inject"},
    ]


@pytest.fixture(scope="module")
def settings() -> str:
    return "embedding: {enabled: false}\nlimits: {messages_per_minute: 3000, unread: 60, message_bytes: 200000}\n"


@pytest.fixture
def eve(world: World) -> Path:
    return world.mounts["eve"]


@pytest.fixture(autouse=True)
def _all_read(alice: Path, bob: Path, eve: Path) -> Iterator[None]:
    yield
    for mount in (alice, bob):
        echo("", mount / ":inbox")
    cat(eve / ":inbox?mark=read")


def unread(mount: Path) -> list[dict[str, Any]]:
    """Oldest first."""
    rows = [json.loads(line) for line in cat(mount / ":inbox?format=jsonl&unread=1").splitlines()]
    return sorted(rows, key=lambda row: str(row["at"]))


def bodies(mount: Path) -> list[str]:
    return [row["body"] for row in unread(mount)]


# What a shell hears of -----------------------------------------------------------------------------------------


def test_an_answer_is_one_parameter(alice: Path, bob: Path) -> None:
    echo("shall we?", alice / "tell/bob")
    (asked,) = unread(bob)
    sh(f"echo yes > 'tell/alice?re={asked['id']}'; echo really > 'tell/alice:re=#{asked['id']}'", cwd=bob)
    first, second = unread(alice)
    assert first["re"] == second["re"] == first["thread"] == second["thread"]
    text = cat(alice / ":inbox?unread=1")
    assert f"bob re #{first['re']}\n> really" in text and "shall we" not in text
    echo("good", alice / f"tell/bob?re={first['id']}")
    assert [row["thread"] for row in unread(bob)] == [asked["id"]] * 2


@pytest.mark.parametrize(
    ("name", "said"),
    [("bob?re=99999", "no message #99999"), ("bob?re=x", "the number of a message"), ("bob?re=-1", "the number of a")],
)
def test_a_bad_answer_is_an_error_of_the_command_that_writes_it(alice: Path, bob: Path, name: str, said: str) -> None:
    assert sh(f"echo x > 'tell/{name}'", cwd=alice, check=False).returncode != 0
    assert said in cat(alice / ":error") and bodies(bob) == []


def test_the_reason_is_still_there_when_a_library_has_written_again_while_it_closed(alice: Path) -> None:
    with pytest.raises(OSError, match="Invalid"), (alice / "tell/bob?re=99999").open("w") as mailbox:
        mailbox.write("hello")
    assert "no message #99999" in cat(alice / ":error")


def test_a_full_mailbox_is_an_error_of_echo(alice: Path, bob: Path) -> None:
    done = sh("for i in $(seq 63); do echo m$i > tell/bob || echo refused; done", cwd=alice, check=False)
    assert done.stdout.split() == ["refused"] * 3 and "Disk quota exceeded" in done.stderr
    assert bodies(bob) == [f"m{number}" for number in range(1, 61)]
    sh("echo to himself > tell/bob", cwd=bob)
    assert len(unread(bob)) == 61, "another sender still reaches him"


def test_of_a_message_that_is_too_long_no_part_arrives(alice: Path, bob: Path) -> None:
    long = "x" * 150_000
    sh("cat > tell/bob", cwd=alice, data=long)
    assert bodies(bob) == [long]
    done = sh("dd if=/dev/zero bs=64k count=4 of=tell/bob oflag=nonblock conv=notrunc,noerror", cwd=alice, check=False)
    assert done.returncode != 0 and "Disk quota exceeded" in done.stderr
    descriptor = os.open(alice / "tell/bob", os.O_WRONLY)
    try:
        os.write(descriptor, b"y" * 150_000)
        for _ in range(2):
            with pytest.raises(OSError) as refused:
                os.write(descriptor, b"y" * 100_000)
            assert refused.value.errno == errno.EDQUOT
        os.close(os.dup(descriptor))
        os.write(descriptor, b"the next one")
    finally:
        os.close(descriptor)
    assert bodies(bob) == [long, "the next one"]


def test_a_message_is_as_long_as_what_is_sent_of_it(alice: Path, bob: Path) -> None:
    whole = ("é" * 100_000).encode()
    descriptor = os.open(alice / "tell/bob", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as refused:
            os.write(descriptor, b"\xff" * 80_000)  # each becomes a character of three bytes
        assert refused.value.errno == errno.EDQUOT
        os.close(os.dup(descriptor))
        os.write(descriptor, whole[:99_999])  # half a character is not one that is no text
        os.write(descriptor, whole[99_999:])
    finally:
        os.close(descriptor)
    assert bodies(bob) == [whole.decode()]


def test_two_writes_before_one_close_are_one_message(alice: Path, bob: Path) -> None:
    sh("{ echo a; echo b; } > tell/bob", cwd=alice)
    with open(alice / "tell/bob", "wb", buffering=0) as mailbox:
        mailbox.write(b"c\n")
        mailbox.write(b"d\n")
    sh("exec 3> tell/bob; echo e >&3; echo f >&3; exec 3>&-", cwd=alice)
    assert bodies(bob) == ["a\nb", "c\nd", "e", "f"], "bash closes its copy of 3 after each echo"


def test_a_hostile_body_shows_as_escapes(alice: Path, bob: Path) -> None:
    hostile = "\u202egnp.exe\u2066x\u2069 \x1b]0;title\x07\x9b31m\u200b\U000e0041\r\n\u2028#9 2026-01-01 00:00 root"
    sh("cat > 'tell/bob?priority=urgent'", cwd=alice, data=hostile)
    texts = [cat(bob / ":inbox"), cat(bob / ":urgent"), cat(bob / ":help"), cat(bob / ":inbox?format=jsonl")]
    for text in texts:
        assert not set(text) & set("\u202e\u2066\u2069\x1b\x07\x9b\u200b\U000e0041\r\u2028")
        assert "\n#9 2026" not in text
    assert "> \\u202egnp.exe\\u2066x\\u2069 \\x1b]0;title\\x07\\u009b31m\\u200b\\U000e0041\n" in texts[0]
    assert json.loads(texts[3].splitlines()[0])["body"] == hostile
    assert unread(bob)[0]["sender"] == "alice"
    plain = "中文　emoji 👩‍💻 ümlaut\ttab é"
    echo(plain, alice / "tell/bob")
    assert f"> {plain}\n" in cat(bob / ":inbox")


# Waiting -------------------------------------------------------------------------------------------------------


def _threads(world: World, agent: str) -> int:
    pid = next(mount["pid"] for mount in (world.status() or {})["mounts"] if mount["agent_id"] == agent)
    return len(os.listdir(f"/proc/{pid}/task"))


def _cpu(world: World, agent: str) -> float:
    pid = next(mount["pid"] for mount in (world.status() or {})["mounts"] if mount["agent_id"] == agent)
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / os.sysconf(
        "SC_CLK_TCK"
    )


WAITS = "import sys\nprint('begins', flush=True)\nprint(open(sys.argv[1]).read(), flush=True)\n"


@contextmanager
def waiters(mount: Path, count: int, name: str = ":inbox?wait=600") -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen(["cat", os.fspath(mount / name)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(LIMIT_S)


@HAS_SUCCESSOR
def test_many_waiters_neither_spin_nor_hold_anybody_up_and_leave_nothing(world: World, bob: Path, alice: Path) -> None:
    before = _threads(world, "bob")
    with waiters(bob, 40):
        until(lambda: _threads(world, "bob") >= before + 35)  # a thread each, and one that watches for all
        spent = _cpu(world, "bob")
        for number in range(20):
            (bob / f"shared/while-waiting-{number}").write_text("x")
            assert (bob / f"shared/while-waiting-{number}").read_text() == "x"
        time.sleep(1)
        assert _cpu(world, "bob") - spent < 3
    until(lambda: _threads(world, "bob") <= before + 6)


def test_a_waiter_wakes_within_milliseconds(alice: Path, bob: Path) -> None:
    took, usual = [], []
    for number in range(7):
        began = time.monotonic()
        (alice / "shared/wakes").write_text(f"{number}")
        cat(bob / ":inbox")
        usual.append(time.monotonic() - began)
        with running(WAITS, bob / ":inbox?wait=300&unread=1") as waiting:
            assert line_from(waiting) == "begins"
            time.sleep(0.1)
            began = time.monotonic()
            echo(f"{number}", alice / "tell/bob")
            assert "## Inbox" in line_from(waiting)
            took.append(time.monotonic() - began)
        echo("", bob / ":inbox")
    # On a busy machine not each; looking once a second would take half of one, and nothing longer than usual.
    assert sorted(took)[2] < 0.25 + 10 * sorted(usual)[2], (took, usual)


@HAS_SUCCESSOR
def test_a_waiter_outlives_its_mount_process(world: World, alice: Path, bob: Path) -> None:
    with running(WAITS, bob / ":inbox?wait=60&unread=1") as waiting:
        assert line_from(waiting) == "begins"
        time.sleep(0.3)
        _kill_mount(world, "bob")
        assert waiting.poll() is None
        echo("after the kill", alice / "tell/bob")
        assert "## Inbox" in line_from(waiting)


# Kills ---------------------------------------------------------------------------------------------------------


def _kill_mount(world: World, agent: str) -> None:
    """kill -9 of the process behind one mount; returns once its successor serves."""
    world.expected.append("ended: killed by SIGKILL")
    old = next(mount["pid"] for mount in (world.status() or {})["mounts"] if mount["agent_id"] == agent)
    os.kill(old, 9)

    def replaced() -> bool:
        found = next(
            m
            for m in (world.status() or {"mounts": [{"agent_id": agent, "pid": old, "state": ""}]})["mounts"]
            if m["agent_id"] == agent
        )
        return bool(found["pid"] != old and found["state"] == "ready")

    until(replaced)
    world.note_pids()


def test_a_client_killed_between_write_and_close_has_sent_what_it_wrote(alice: Path, bob: Path) -> None:
    code = "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY)\nos.write(fd, b'last words')\nprint('written')\n"
    with running(code + "input()\n", alice / "tell/bob") as writer:
        assert line_from(writer) == "written"
        assert bodies(bob) == []
        writer.kill()
        writer.wait(LIMIT_S)
    assert until(lambda: bodies(bob)) == ["last words"]


HANDS = "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY)\nfor line in sys.stdin:\n exec(line)\n print('done')\n"


@HAS_SUCCESSOR
def test_unsent_bytes_are_sent_once_by_the_successor_of_a_killed_mount(world: World, alice: Path, bob: Path) -> None:
    # In a process of its own: each program that this one starts closes a copy of its descriptors, which is a flush.
    with running(HANDS, alice / "tell/bob") as writer:

        def does(*steps: str) -> None:
            assert writer.stdin is not None
            for step in steps:
                writer.stdin.write(f"{step}\n")
                writer.stdin.flush()
                assert line_from(writer) == "done"

        does("os.write(fd, b'sent before')", "os.close(os.dup(fd))", "os.write(fd, b'half of ')")
        _kill_mount(world, "alice")
        does("os.write(fd, b'a message')")
        _kill_mount(world, "alice")
        assert bodies(bob) == ["sent before"]
        does("os.close(os.dup(fd))")
        _kill_mount(world, "alice")
        does("os.close(os.dup(fd))", "os.close(fd)")
    assert bodies(bob) == ["sent before", "half of a message"]


@HAS_SUCCESSOR
def test_each_message_arrives_once_while_mounts_are_killed(world: World, alice: Path, bob: Path) -> None:
    over = threading.Event()

    def send() -> list[str]:
        sent: list[str] = []
        while not over.is_set() and len(sent) < 59:
            echo(f"m{len(sent)}", alice / "tell/bob")
            sent.append(f"m{len(sent)}")
            time.sleep(0.03)
        return sent

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        for _ in range(2):
            time.sleep(0.2)
            _kill_mount(world, "alice")
        over.set()
        sent = sending.result(300)
    assert len(sent) > 2 and bodies(bob) == sent


# What is urgent and files --------------------------------------------------------------------------------------


def test_pending_urgent_mail_changes_no_byte_of_a_file(place: Place, alice: Path, bob: Path) -> None:
    data = os.urandom(100_000)
    (place.bob / "blob").write_bytes(data)
    (place.bob / "list.txt").write_text("one\ntwo\n")
    echo("now!", alice / "tell/bob?priority=urgent")
    assert sh("sha256sum blob", cwd=place.bob).stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert (place.bob / "blob").stat().st_size == len(data)
    sh(
        "sed -i s/two/TWO/ list.txt && cp list.txt copy.txt && cat copy.txt >> list.txt && tar cf all.tar *.txt",
        cwd=place.bob,
    )
    assert (place.alice / "list.txt").read_text() == "one\nTWO\none\nTWO\n"
    assert b"now!" not in (place.alice / "all.tar").read_bytes()
    echo("one normal", alice / "tell/bob")
    assert cat(place.bob / ":list").startswith(
        "=== 1 urgent message, 1 more unread (mark read: cat '/:inbox?mark=read') ===\n"
    )
    for name in (":topics", ":timeline", ":list", ":recall?q=one", ":search?q=one"):
        assert cat(place.bob / name).startswith("=== 1 urgent"), name
    for name in ("list.txt:data", "list.txt:meta", "list.txt:diff", "list.txt:history", "list.txt:delta?peek=1"):
        assert "now!" not in cat(place.bob / name), name


def _sizes(path: Path) -> tuple[int, int, int, bytes]:
    """As told before open, after it, found by seeking; and what is read."""
    told = os.stat(path).st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        after, end = os.fstat(descriptor).st_size, os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, 0, os.SEEK_SET)
        pieces = []
        while piece := os.read(descriptor, 1000):
            pieces.append(piece)
        return told, after, end, b"".join(pieces)
    finally:
        os.close(descriptor)


def test_a_read_only_mount_that_injects_has_the_banner_in_file_reads(alice: Path, eve: Path) -> None:
    (alice / "shared/inj.md").write_text("alpha\n" * 100)
    path = eve / "shared/inj.md"
    data = b"alpha\n" * 100
    assert _sizes(path) == (600, 600, 600, data)
    echo("stop the press", alice / "tell/eve?priority=urgent")
    *sizes, read = _sizes(path)
    assert read.startswith(b"=== 1 urgent message (mark read: cat '/:inbox?mark=read') ===\n#")
    assert b"\n> stop the press\n=== end of urgent ===\n\nalpha\n" in read and read.endswith(data)
    assert sizes == [len(read)] * 3
    assert sh(
        "wc -c < inj.md; tail -c 6 inj.md; tail -n 1 inj.md; grep -c alpha inj.md", cwd=eve / "shared"
    ).stdout == (f"{len(read)}\nalpha\nalpha\n100\n")
    assert (
        sh(
            "cat inj.md | sha256sum; cp inj.md /tmp/avmt-inj-$$ && sha256sum < /tmp/avmt-inj-$$; rm /tmp/avmt-inj-$$",
            cwd=eve / "shared",
        ).stdout.split()[::2]
        == [hashlib.sha256(read).hexdigest()] * 2
    )
    with open(path, "rb", buffering=0) as file:
        seek = partial(os.lseek, file.fileno())
        assert (seek(3, os.SEEK_DATA), seek(3, os.SEEK_HOLE)) == (3, len(read)), "all of it is data"
        assert code_of(seek, len(read), os.SEEK_DATA) == errno.ENXIO
    assert (alice / "shared/inj.md").read_bytes() == data, "for eve alone"
    assert cat(eve / "shared/inj.md:data") == data.decode()


def test_a_mount_that_injects_has_but_the_bytes_of_what_is_not_to_be_trusted(alice: Path, eve: Path) -> None:
    (alice / "shared/web.md").write_text("x\n")
    echo('{"sources": ["web"]}', alice / "shared/web.md:meta")
    path = eve / "shared/web.md"
    assert _sizes(path) == (2, 2, 2, b"x\n")
    assert cat(eve / "shared/web.md:annotated") == "(no urgent messages shown)\n\n# untrusted: web\nx\n"
    echo("stop the press", alice / "tell/eve?priority=urgent")
    *sizes, read = _sizes(path)
    assert read.startswith(b"=== 1 urgent message") and read.endswith(b"\n=== end of urgent ===\n\nx\n")
    assert sizes == [len(read)] * 3


def test_an_open_file_stays_as_it_was_while_mail_comes_and_goes(alice: Path, eve: Path) -> None:
    (alice / "shared/held.md").write_text("held\n")
    path = eve / "shared/held.md"
    with open(path, "rb", buffering=0) as plain:
        assert os.fstat(plain.fileno()).st_size == 5
        echo("first", alice / "tell/eve?priority=urgent")
        assert os.fstat(plain.fileno()).st_size == 5 and plain.read() == b"held\n"
    with open(path, "rb", buffering=0) as marked:
        size = os.fstat(marked.fileno()).st_size
        beginning = marked.read(10)
        echo("second", alice / "tell/eve?priority=urgent")
        cat(eve / ":inbox?mark=read")
        assert os.fstat(marked.fileno()).st_size == size == len(beginning) + len(marked.read())
    assert _sizes(path) == (5, 5, 5, b"held\n")


@HAS_SUCCESSOR
def test_an_open_file_stays_as_it_was_over_a_kill(world: World, alice: Path, eve: Path) -> None:
    (alice / "shared/killed.md").write_text("held\n")
    path = eve / "shared/killed.md"
    with open(path, "rb", buffering=0) as plain:
        assert os.fstat(plain.fileno()).st_size == 5
        echo("first", alice / "tell/eve?priority=urgent")
        _kill_mount(world, "eve")
        assert os.fstat(plain.fileno()).st_size == 5 and plain.read() == b"held\n"
    assert os.stat(path).st_size == len(cat_bytes(path)) > 5


def test_an_injecting_mount_can_mark_but_write_nothing(alice: Path, eve: Path) -> None:
    (alice / "shared/ro.md").write_text("ro\n")
    echo("now", alice / "tell/eve?priority=urgent")
    assert b"urgent" in cat_bytes(eve / "shared/ro.md")
    for write in ("echo x >> shared/ro.md", ": > shared/ro.md", "sed -i s/ro/RO/ shared/ro.md", "echo > :inbox"):
        assert sh(write, cwd=eve, check=False).returncode != 0, write
    assert "now" in cat(eve / ":inbox?mark=read")
    assert cat_bytes(eve / "shared/ro.md") == b"ro\n" == (alice / "shared/ro.md").read_bytes()


# Two shell scripts ---------------------------------------------------------------------------------------------

TALKER = r"""
# $1: where I am mounted, $2: whom I talk to, $3: how many, $4: "first" begins
cd "$1" || exit 1
n=0
[ "$4" = first ] && { n=1; echo "$n" > "tell/$2"; }
while [ "$n" -lt "$3" ]; do
    for body in $(cat ':inbox?wait=30&mark=read&unread=1&format=jsonl' | sed -n 's/.*"body": "\([0-9]*\)".*/\1/p'); do
        echo "got $body"
        n=$((body + 1))
        [ "$n" -le "$3" ] && echo "$n" > "tell/$2"
    done
done
exit 0
"""


def test_two_shell_scripts_talk_and_no_message_is_lost_or_comes_twice(tmp_path: Path, alice: Path, bob: Path) -> None:
    (tmp_path / "talk.sh").write_text(TALKER)
    count = int(os.environ.get("AVM_TALK", "100"))

    def talk(mount: Path, other: str, role: str) -> list[int]:
        done = subprocess.run(
            ["sh", os.fspath(tmp_path / "talk.sh"), os.fspath(mount), other, str(count), role],
            capture_output=True,
            text=True,
            timeout=300 + count / 5,
        )
        assert done.returncode == 0, done.stderr
        return [int(line.split()[1]) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(talk, alice, "bob", "first"), pool.submit(talk, bob, "alice", "second")
        heard, told = one.result(300), two.result(300)
    assert told == list(range(1, count + 1, 2)) and heard == list(range(2, count + 1, 2))
    assert bodies(alice) == bodies(bob) == []
