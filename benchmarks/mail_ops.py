"""Sending and waiting for mail, and two shell scripts in conversation: what bench_mail asks of its client processes.

Two ways to carry a message, each for the other's baseline: ``avmfs`` writes to a mailbox and waits in the inbox,
``fifo`` appends the message to a file on the disk, with fdatasync, and writes it into a named pipe that the other one
waits at. Both have the message on the disk before the sender goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping

from benchmarks.clients import Command
from benchmarks.figures import BenchmarkError, timed_loop

_INBOX = ":inbox?wait=60&mark=read&unread=1&format=jsonl"
_BUFFER = 1 << 16

# One script for both ways: $1 is where it stands, $2 whom it talks to, $3 how many messages there are in all, $4 says
# who begins, $5 is how it gets its messages, $6 how it sends $n. A message is a number; the answer is the next one.
_TALK = r"""
cd "$1" || exit 1
n=0
if [ "$4" = first ]; then n=1; eval "$6"; fi
while [ "$n" -lt "$3" ]; do
    for body in $(eval "$5"); do
        echo "$body"
        n=$((body + 1))
        if [ "$n" -le "$3" ]; then eval "$6"; fi
    done
done
"""
_READ = r"""sed -n 's/.*"body": "\([0-9]*\)".*/\1/p'"""
_WAYS = {
    "avmfs": (f"cat '{_INBOX}' | {_READ}", 'echo "$n" > "tell/$2"'),
    "fifo": (
        "cat to-me | sed -n 's/^\\([0-9]*\\)$/\\1/p'",
        'echo "$n" | dd of=sent oflag=append conv=notrunc,fdatasync status=none; echo "$n" > "to-$2"',
    ),
}


def commands() -> Mapping[str, Command]:
    return {"send": send, "receive": receive, "talk": talk, "park": park, "busy": busy}


def send(place: str, way: str, to: str, count: int, pause_s: float) -> list[int]:
    """Send ``count`` messages that say when (monotonic, ns) they were begun; how long each call took, in ns."""
    took = []
    log = os.open(f"{place}/sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if way == "fifo" else -1
    for _ in range(count):
        time.sleep(pause_s)
        begun = time.monotonic_ns()
        message = b"%d\n" % begun
        if way == "fifo":
            os.write(log, message)
            os.fdatasync(log)
        target = os.open(f"{place}/to-{to}" if way == "fifo" else f"{place}/tell/{to}", os.O_WRONLY)
        os.write(target, message)
        os.close(target)
        took.append(time.monotonic_ns() - begun)
    return took


def receive(place: str, way: str, count: int, limit_s: float) -> list[int]:
    """Wait for ``count`` messages: the time from the beginning of each one's sending until it was read, ns."""
    took: list[int] = []
    give_up = time.monotonic() + limit_s
    while len(took) < count:
        if time.monotonic() > give_up:
            raise BenchmarkError(f"{len(took)} of {count} messages came")
        source = os.open(f"{place}/to-me" if way == "fifo" else f"{place}/{_INBOX}", os.O_RDONLY)
        data = b""
        while piece := os.read(source, _BUFFER):
            data += piece
        now = time.monotonic_ns()
        os.close(source)
        lines = data.split() if way == "fifo" else [json.loads(line)["body"] for line in data.splitlines()]
        took += [now - int(line) for line in lines]
    return took


def talk(place: str, way: str, to: str, count: int, begins: str, limit_s: float) -> list[list[int]]:
    """Be one of two sh scripts in conversation: [message, when it was there (monotonic, ns)] of each that it got."""
    get, put = _WAYS[way]
    script = subprocess.Popen(
        ["sh", "-c", _TALK, "talk", place, to, str(count), begins, get, put],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None and script.stderr is not None
    timer = subprocess.Popen(["sh", "-c", 'sleep "$1"; kill "$2" 2> /dev/null', "limit", str(limit_s), str(script.pid)])
    try:
        got = [[int(line), time.monotonic_ns()] for line in script.stdout]
        said = script.stderr.read()
        if script.wait() != 0:
            raise BenchmarkError(f"the script ended with {script.returncode} after {len(got)} messages: {said[-300:]}")
        return got
    finally:
        timer.kill()
        timer.wait()
        script.kill()
        script.wait()


def park(place: str) -> str:
    """Wait in the inbox until mail comes."""
    with open(f"{place}/:inbox?wait=600&unread=1", "rb") as inbox:
        return inbox.readline().decode()


def busy(place: str, start_ns: int, limit_s: float) -> list[object]:
    """Write and read small files."""
    from benchmarks.clients import reply_of
    from benchmarks.figures import wait_until

    def once(number: int) -> None:
        path = f"{place}/memory/shared/busy-{number % 20}"
        with open(path, "wb", buffering=0) as file:
            file.write(b"x" * 100)
        with open(path, "rb", buffering=0) as file:
            file.read()

    wait_until(start_ns)
    return reply_of(timed_loop(once, range(1_000_000), limit_s))
