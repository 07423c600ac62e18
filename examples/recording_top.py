"""Record avm top while three agents work: docs/top.cast (asciicast v2) and its picture, docs/top.svg.

    .venv/bin/python examples/recording_top.py

A terminal of its own runs the program; what it printed is the cast, when it printed it. The picture shows its screens
one after the other, each as long as it stood.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recording import HERE, LINE, WIDTH, fresh_home, terminal

from avmfs import AVM

AGENTS = ("alice", "bob", "carol")
HEIGHT, SECONDS = 30, 16.0
TITLE = "avm top while three agents work"
CAST, PICTURE = HERE / "docs/top.cast", HERE / "docs/top.svg"
WORDS = ["pricing", "deploys", "onboarding", "incident", "roadmap", "billing", "search", "hiring"]

Event = tuple[float, str]


@contextlib.contextmanager
def working(environ: dict[str, str]) -> Iterator[None]:
    """Three agents that write, find and tell, as fast as they may, until it ends."""
    over = threading.Event()

    def work(agent: str) -> None:
        dice = random.Random(agent)
        with AVM(agent=agent, environ=environ) as avm:
            while not over.is_set():
                topic, other = dice.sample(WORDS, 2)
                avm.append(f"/shared/{topic}/{dice.randrange(40)}.md", f"{topic} waits for {other}\n")
                avm.agent_memory().recall(f"what blocks {topic}", max_tokens=200)
                if dice.random() < 0.05:
                    avm.tell(dice.choice([each for each in AGENTS if each != agent]), f"look at {topic}")

    threads = [threading.Thread(target=work, args=[agent]) for agent in AGENTS]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def record(environ: dict[str, str]) -> list[Event]:
    """What ``avm top`` prints in a terminal, with seconds since the beginning."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("avm", ["avm", "-a", "alice", "top", "-i", "1"], {**environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    events, began = [], time.monotonic()
    while (left := began + SECONDS - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            said = os.read(terminal, 1 << 16).decode("utf-8", "replace")
            events.append((round(time.monotonic() - began, 3), said))
    os.write(terminal, b"q")
    os.waitpid(pid, 0)
    os.close(terminal)
    return events


def screens(events: list[Event]) -> list[tuple[float, list[str]]]:
    """Each whole screen, and when it stood. The program begins one at the top and clears what is below."""
    text, found = "", []
    for at, said in events:
        text += said
        *whole, text = text.split("\x1b[J")
        for one in whole:
            lines = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", one.rpartition("\x1b[H")[2]).split("\r\n")
            found.append((at, [line.rstrip("\r")[:WIDTH] for line in lines[:HEIGHT]]))
    return found


def picture(events: list[Event]) -> str:
    shown = screens(events)
    start, whole = shown[0][0], SECONDS - shown[0][0]
    ends = [*(at for at, _ in shown[1:]), SECONDS]
    rules, groups = [], []
    for number, ((at, lines), end) in enumerate(zip(shown, ends, strict=True)):
        first, last = (100 * (each - start) / whole for each in (at, end))
        rules.append(
            f"@keyframes f{number}{{0%{{opacity:0}}{first:.2f}%{{opacity:1}}{last:.2f}%{{opacity:0}}100%{{opacity:0}}}}"
        )
        rows = "".join(
            f'<text{" class=" + chr(34) + "c" + chr(34) if line.startswith("#") else ""} y="{(row + 1) * LINE}"'
            f' xml:space="preserve">{escape(line)}</text>\n'
            for row, line in enumerate(lines)
            if line.strip()
        )
        groups.append(f'<g style="animation:f{number} {whole:.1f}s step-end infinite">\n{rows}</g>')
    return terminal(TITLE, HEIGHT, "".join(rules), "\n".join(groups) + "\n")


def main() -> None:
    with fresh_home() as environ:
        subprocess.run(["avm", "-a", "alice", "warmup"], env=environ, check=True)
        with working(environ):
            events = record(environ)
    header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": TITLE}
    rows = [header, *([at, "o", said] for at, said in events)]
    CAST.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    PICTURE.write_text(picture(events), "utf-8")


if __name__ == "__main__":
    main()
