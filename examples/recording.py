"""Record the README's first screen: docs/two-agents.cast (asciicast v2) and its picture, docs/two-agents.svg.

    .venv/bin/python examples/recording.py

What is shown is what was printed (~ for the home directory), when it was; typing and time to read are added. The
picture is the cast's lines, each of which appears at its time, for ever anew, with no pause longer than IDLE_S.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parents[1]
CAST, PICTURE = HERE / "docs/two-agents.cast", HERE / "docs/two-agents.svg"
TYPED_S, READ_S, END_S = 0.025, 0.9, 6.0  # a character; after each answer; before it begins anew
IDLE_S = 1.5
TITLE = "Two agents share a memory"
WIDTH, HEIGHT, FONT, LINE = 100, 32, 14, 19  # columns, rows, pixels

Event = tuple[float, str]


def commands() -> list[str]:
    """Those of the README's first console block."""
    block = (HERE / "README.md").read_text("utf-8").split("```console\n", 1)[1].split("```", 1)[0]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def record(environ: dict[str, str]) -> list[Event]:
    """Every command's typing and output, with seconds since the beginning. Raises CalledProcessError."""
    events: list[Event] = []
    now = 0.5
    for command in commands():
        for character in f"$ {command}":
            events.append((now, character))
            now += TYPED_S
        began = time.monotonic()
        done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=True)
        now += time.monotonic() - began
        events.append((now, "\r\n" + done.stdout.replace(environ["HOME"], "~").replace("\n", "\r\n")))
        now += READ_S
    return events


def cast(events: list[Event]) -> str:
    header = {
        "version": 2,
        "width": WIDTH,
        "height": HEIGHT,
        "idle_time_limit": IDLE_S,
        "title": TITLE,
    }
    return "".join(json.dumps(each) + "\n" for each in (header, *([round(at, 3), "o", text] for at, text in events)))


def picture(recorded: str) -> str:
    """The SVG of a cast whose output has no control sequences."""
    lines: list[tuple[float, str]] = [(0.0, "")]
    before = at = 0.0
    for said, _, text in map(json.loads, recorded.splitlines()[1:]):
        before, at = said, at + min(IDLE_S, said - before)
        first, *more = text.split("\r\n")
        lines[-1] = (lines[-1][0] or at, lines[-1][1] + first)
        lines += [(at, each) for each in more]
    lines.pop()  # below the last answer
    rows = [(at, row[start : start + WIDTH]) for at, row in lines for start in range(0, max(1, len(row)), WIDTH)]
    whole = at + END_S
    rules, shown, moves = [], [], ["0%{transform:translateY(0)}"]
    for number, (at, row) in enumerate(rows):
        share = 100 * at / whole
        rules.append(f"@keyframes l{number}{{0%{{opacity:0}}{share:.2f}%,100%{{opacity:1}}}}")
        kind = ' class="c"' if row.startswith("$ ") else ""
        shown.append(
            f'<text{kind} y="{(number + 1) * LINE}" xml:space="preserve"'
            f' style="animation:l{number} {whole:.1f}s step-end infinite">{escape(row)}</text>'
        )
        if number >= HEIGHT:
            moves.append(f"{share:.2f}%,100%{{transform:translateY(-{(number + 1 - HEIGHT) * LINE}px)}}")
    rules.insert(0, f"g{{animation:m {whole:.1f}s step-end infinite}}@keyframes m{{{''.join(moves)}}}")
    return terminal(TITLE, HEIGHT, "".join(rules), "<g>\n" + "\n".join(shown) + "\n</g>")


def terminal(title: str, height: int, rules: str, rows: str) -> str:
    """An SVG of a terminal with so many rows; class "c" is a command."""
    wide, high = round(WIDTH * FONT * 0.602) + 24, height * LINE + 24
    style = f"text{{font:{FONT}px ui-monospace,Menlo,Consolas,monospace;fill:#c9d1d9}}.c{{fill:#7ee787}}{rules}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">\n'
        f'<title>{title}</title><style>{style}</style>\n<rect width="100%" height="100%" rx="8"'
        f' fill="#0d1117"/>\n<svg x="12" y="8" width="{wide - 24}" height="{high - 16}">{rows}</svg></svg>\n'
    )


@contextlib.contextmanager
def fresh_home() -> Iterator[dict[str, str]]:
    """The environment of somebody whose home is empty; a daemon that was started there is stopped."""
    with tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AVM_", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {**kept, "HOME": home, "XDG_RUNTIME_DIR": home, "PATH": path, "HF_HUB_OFFLINE": "1"}
        try:
            yield environ
        finally:
            subprocess.run(["avm-daemon", "stop"], env=environ, check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    with fresh_home() as environ:
        recorded = cast(record(environ))
    CAST.write_text(recorded, "utf-8")
    PICTURE.write_text(picture(recorded), "utf-8")


if __name__ == "__main__":
    main()
