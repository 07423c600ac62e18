"""One agent that does its worst through the door and its mount, until its standard input ends.

    python -m benchmarks.attack_ops NAME AGENT

It prints "ready" when what it needs is there and the attack begins. What is refused is tried smaller, or again: a
refusal is an answer, and what it costs the others is what is measured.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from avmfs.errors import AvmError
from avmfs.rpc.client import RemoteDoor

MOUNT = "AVM_ATTACKERS_MOUNT"
MEGABYTE = 10**6
CLIENTS = 15
Step = Callable[[], object]


def door(agent: str) -> RemoteDoor:
    return RemoteDoor(Path(os.environ["AVM_RUNTIME_DIR"], "avm.sock"), agent, timeout_s=600)


def patterns(agent: str) -> Iterator[Step]:
    """100 patterns of as many wildcards as are allowed, and a note with a long path to match them with."""
    client = door(agent)
    for number in range(100):
        for wild in (1900, 1000, 31):
            with contextlib.suppress(AvmError):
                client.call("subscribe", pattern=f"/*{'?' * (wild - 1 - number % 8)}{number}", mode="digest")
                break
    path = "/private/" + f"{'d' * 200}/" * 18 + "note.md"
    while True:
        yield lambda: client.call("write", path=path, data=os.urandom(8).hex().encode())


def tags(agent: str) -> Iterator[Step]:
    """A megabyte of tags at once."""
    client, text = door(agent), "".join(f"t{n}," for n in range(150_000))[:MEGABYTE].encode()
    client.call("write", path="/private/note.md", data=b"note")
    while True:
        yield lambda: client.call("write", path="/private/note.md:tags", data=text)


def keys(agent: str) -> Iterator[Step]:
    """A megabyte of keys of :meta."""
    client = door(agent)
    text = ("{" + ",".join(f'"k{n}":{n}' for n in range(70_000)) + "}").encode()
    client.call("write", path="/private/note.md", data=b"note")
    while True:
        yield lambda: client.call("write", path="/private/note.md:meta", data=text)


def depth(agent: str) -> Iterator[Step]:
    """Notes as deep below long names as the mount allows, in shared space, about what the others ask for."""
    os.chdir(os.path.join(os.environ[MOUNT], "memory/shared"))
    with contextlib.suppress(OSError):
        for _ in range(443):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    for number in range(30):
        with contextlib.suppress(OSError):
            Path(f"{number}.md").write_text(f"weather in the mountains {number}")
    while True:
        yield lambda: Path("0.md").write_text("weather in the mountains")


def diffs(agent: str) -> Iterator[Step]:
    """15 clients that ask for the dearest diff."""
    client = door(agent)
    for between in ("x", "y"):
        text = "".join(f"{n + 1}\n{between}\n{n}\n{between}\n" for n in range(12_000))
        client.call("write", path="/private/long.md", data=text.encode())
    client.call("history", path="/private/long.md")
    for _ in range(CLIENTS - 1):
        threading.Thread(target=_ask_again, args=(agent,), daemon=True).start()
    while True:
        yield lambda: client.call("history", path="/private/long.md", older=1, newer=2)


def _ask_again(agent: str) -> None:
    client = door(agent)
    while True:
        with contextlib.suppress(OSError):  # refused, as one of too many
            client.call("history", path="/private/long.md", older=1, newer=2)


def words(agent: str) -> Iterator[Step]:
    """The dearest question."""
    client, chance = door(agent), random.Random(1)
    question = " ".join(f"w{chance.randrange(10_000)}" for _ in range(2000))
    while True:
        yield lambda: client.call("recall", q=question)


ATTACKS = {each.__name__: each for each in (patterns, tags, keys, depth, diffs, words)}


def main() -> None:
    name, agent = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=_until_its_end, args=(over,), daemon=True).start()
    for number, step in enumerate(ATTACKS[name](agent)):
        if number == 0:
            print("ready", flush=True)
        with contextlib.suppress(OSError):
            step()
        if over.is_set():
            break
    os._exit(0)  # as a client that hangs up in the middle of it


def _until_its_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
