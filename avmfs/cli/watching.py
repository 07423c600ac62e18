"""avm watch, top: what happens in the memory, as it happens.

Owns how it is laid out in a terminal. All that is shown came through the door as whoever asks, so it is what that one
may see. The times to answer are those of this command's own calls.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import show
from avmfs.errors import Busy
from avmfs.localtime import minute
from avmfs.rpc.client import Door, RemoteDoor
from avmfs.text.escapes import escaped
from avmfs.text.sparkline import per_slot, sparkline

WAIT_S: Final = 25.0  # of one call
AGAIN_S: Final = 0.5  # between two, while the daemon is away
FOUND: Final = 10_000  # changes of one call
MINUTES: Final = 60
SHOWN: Final = 20  # changes of a snapshot


class _Lasting:
    """A door for a command that goes on: while the daemon is away it waits for the next one, ``until`` then."""

    def __init__(self, door: Door, until: float) -> None:
        self._door, self._until, self.agent = door, until, door.agent

    def call(self, method: str, /, **arguments: Any) -> Any:
        told = False
        while True:
            try:
                if isinstance(self._door, RemoteDoor) and self._door.ended():
                    self._door = self._door.again()
                return self._door.call(method, **arguments)
            except Busy as e:
                if time.monotonic() >= self._until:
                    raise
                if not told:
                    end = ", until ^C" if self._until == float("inf") else ""
                    print(f"avm: {e}; waiting for an answer{end}", file=sys.stderr)
                told = True
                time.sleep(AGAIN_S)


@subcommand("watch", "Print changes as they happen.")
@click.argument("pattern", default="/memory/*")
@click.option("--since", metavar="TIME", help="First what changed after this ISO 8601 time, or after a seq.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after so many.")
@click.option("--wait", "-w", type=click.FloatRange(min=0), metavar="SECONDS", help="End after so long.")
def watch_(
    ctx: click.Context, memory: Door, pattern: str, since: str | None, count: int | None, wait: float | None
) -> None:
    """Print each change of a file that PATTERN names (as in avm subscribe: * also crosses /), as it happens, until ^C.

    With --json one object a line. Several changes of a file at once are one. With --wait, exit code 1 when none came. A
    daemon that has gone away is waited for, which is said once on stderr; with --wait, exit code 75 when none answers.
    """
    until = float("inf") if wait is None else time.monotonic() + wait
    asked = _Lasting(memory, until)
    at = asked.call("watch")
    since, told = since or str(at["seq"]), 0
    while True:
        found = asked.call("recent", path="/", since=since, limit=FOUND, pattern=pattern)
        if found["more"]:
            print(f"(only the newest {FOUND:,} changes: there were more)", file=sys.stderr)
        for each in reversed(found["changes"]):
            show(each, _change(each) + "\n", prose=False)
            told += 1
            if told == count:
                return
        sys.stdout.buffer.flush()
        since = str(found["seq"])
        while at["seq"] <= found["seq"]:
            left = until - time.monotonic()
            if left <= 0:
                ctx.exit(0 if told else 1)
            at = asked.call("watch", since=found["seq"], unread=at["unread"], wait=min(WAIT_S, left))
            if at["seq"] < found["seq"]:
                print("(the newest change is gone, as by a restore: what comes from now on is told)", file=sys.stderr)
                since = str(at["seq"])
                break


def _change(each: dict[str, Any]) -> str:
    was = "" if each["was"] is None else f" (was {escaped(each['was'])})"
    return f"{minute(each['at'])}  {each['author']}  {each['status']}  {escaped(each['path'])}{was}"


@subcommand("top", "Agents, activity, what waits and what changes, at a glance.")
@click.option("--once", is_flag=True, help="Print it once and end, as where the output is no terminal.")
@click.option("--interval", "-i", type=click.FloatRange(0.2, 300), default=2.0, show_default=True, metavar="SECONDS")
def top_(ctx: click.Context, memory: Door, once: bool, interval: float) -> None:
    """Who is here, what waits, how busy the memory is and what changes, again and again. q ends it."""
    # The daemon ends a connection after ten minutes of silence, which bounds the interval.
    took: deque[float] = deque(maxlen=500)
    if once or ctx.obj.as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        found = _looked(memory, took)
        show(found, "\n".join(_laid_out(found, 100)) + "\n")
        return
    asked, lines = _Lasting(memory, until=0.0), [""]
    with _screen() as woken:
        while True:
            size, pause = shutil.get_terminal_size(), interval
            try:
                lines = _laid_out(_looked(asked, took), size.columns)
            except Busy as e:  # keys are heard meanwhile
                lines[0], pause = f"waiting for an answer: {e}"[: size.columns], min(interval, AGAIN_S)
            shown = "".join(f"{line}\x1b[K\r\n" for line in lines[: size.lines - 1])
            os.write(1, f"\x1b[H{shown}\x1b[J".encode(errors="replace"))
            ready, _, _ = select.select([0, woken], [], [], pause)
            if woken in ready:
                os.read(woken, 64)
            if 0 in ready and os.read(0, 64)[:1] in (b"q", b"Q", b"\x03", b""):
                return


def _looked(memory: Door | _Lasting, took: deque[float]) -> dict[str, Any]:
    def ask(method: str, **arguments: Any) -> Any:
        began = time.perf_counter()
        answer = memory.call(method, **arguments)
        took.append((time.perf_counter() - began) * 1000)
        return answer

    now = datetime.now(UTC)
    changes = ask("recent", path="/", minutes=float(MINUTES), limit=FOUND)["changes"]
    index, stats = ask("index_status"), json.loads(ask("read", path="/:stats", banner=False)["data"])
    agents, unread = ask("agents"), ask("unread")
    times = sorted(took)
    return {
        "agent": memory.agent,
        "at": now.isoformat(timespec="seconds"),
        "agents": [{name: each[name] for name in ("name", "here", "used", "claims")} for each in agents],
        "stats": {name: stats[name] for name in ("files", "bytes", "versions")},
        "index": index,
        "unread": unread,
        "activity": per_slot((each["at"] for each in changes), now, 60, MINUTES),
        "changes": changes[:SHOWN],
        "answers_ms": {
            "median": round(times[len(times) // 2], 2),
            "p99": round(times[min(len(times) - 1, len(times) * 99 // 100)], 2),
            "calls": len(times),
        },
    }


def _laid_out(found: dict[str, Any], width: int) -> list[str]:
    stats, index, active, took = found["stats"], found["index"], found["activity"], found["answers_ms"]
    waiting, unread = index["waiting"], found["unread"]
    model = f"{index['model'] or 'no model'}{'' if index['state'] is None else ', ' + index['state']}"
    now = datetime.fromisoformat(found["at"])
    lines = [
        f"# {found['agent']}  {minute(found['at'])}:{now.second:02}   {stats['files']:,} files"
        f"   {_size(stats['bytes'])}   {stats['versions']:,} versions",
        f"model    {escaped(model)}",
        f"waiting  {waiting['words']:,} for words, {waiting['vectors']:,} for vectors",
        f"mail     {sum(unread.values())} unread, {unread['urgent']} urgent",
        f"answers  {took['median']} ms, p99 {took['p99']} ms of {took['calls']} calls from here",
        f"changed  {sparkline(active)}  {sum(active)} files in an hour, {active[-1]} in the last minute",
        "",
        f"## {'agent':<18}{'here':<26}{'files':>8}{'size':>10}  claims",
    ]
    for each in sorted(found["agents"], key=lambda each: (not each["here"], each["name"])):
        here = (
            ", ".join(f"{route or 'door'} {_ago(now, since)}" for route, since in sorted(each["here"].items())) or "-"
        )
        used = each["used"] or {}
        files, size = (f"{used['nodes']:,}", _size(used["bytes"])) if used else ("", "")
        claims = ", ".join(escaped(one["path"]) for one in each["claims"])
        lines.append(f"{each['name']:<18.17}{here:<26.25}{files:>8}{size:>10}  {claims}")
    lines += ["", "## changes", *(map(_change, found["changes"]) if found["changes"] else ["(none in an hour)"])]
    return [line[:width].rstrip() for line in lines]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"


def _ago(now: datetime, since: str) -> str:
    gone = max(now - datetime.fromisoformat(since), timedelta())
    return (
        f"{gone.days} d"
        if gone.days
        else f"{gone.seconds // 3600} h"
        if gone.seconds >= 3600
        else f"{gone.seconds // 60} min"
    )


@contextmanager
def _screen() -> Iterator[int]:
    """A screen of its own, keys at once, and a descriptor to read from when the window has another size."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    handler, kept = signal.signal(signal.SIGWINCH, lambda *_: None), signal.set_wakeup_fd(wake)
    try:
        tty.setcbreak(0)
        os.write(1, b"\x1b[?1049h\x1b[?25l\x1b[?7l")
        yield woken
    finally:
        os.write(1, b"\x1b[?7h\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(kept)
        signal.signal(signal.SIGWINCH, handler)
        os.close(woken)
        os.close(wake)
