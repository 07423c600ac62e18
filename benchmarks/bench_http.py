"""The HTTP service: how soon a page is seen, with thousands of notes; and what counting for /metrics costs.

    python -m benchmarks.bench_http [--quick] [--parts A,B] [--sizes A,B] [--pairs N] [--local DIR] [--json FILE]

``pages``: each page of one agent, asked for again and again: until its last byte, and where playwright and chromium are
installed until the browser has painted something. ``metrics``: two daemons that differ in ``http.metrics`` alone, short
slices of work on each in turn, and the ratio of each pair: on the clock, in which all that the machine does beside has
a part, and of the processor time of mount and writer, which the target is on.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import statistics
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from avmfs.rpc.client import RemoteDoor
from benchmarks.bench_past import BATCH, FOLDER, Stock
from benchmarks.clients import breaking_off, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, names_among, options, positive, run_script
from benchmarks.texts import notes as texts

PARTS = ("pages", "metrics")
SIZES = (10_000, 100_000)
PAINTED_MS, COST = 1000.0, 1.02
LIMIT_S = 600.0
PAINTED = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"
SERVING = {**WORDS_ONLY, "http": {"listen": "127.0.0.1:0"}}


def measure(run: Run) -> Findings:
    parts, sizes = run.options.parts, run.options.sizes or ((300,) if run.quick else SIZES)
    times, pairs = (2 if run.quick else 9), run.options.pairs or (10 if run.quick else 400)
    run.begin(
        pages=f"each asked for {times} times; {', '.join(f'{size:,}' for size in sizes)} notes, {FOLDER:,} a directory",
        metrics=f"{pairs} pairs of slices of reads, and of writes, on the mounts of two daemons",
    )
    failures: dict[str, str] = {}
    tables: list[Table] = []
    targets: list[Target] = []
    if "pages" in parts:
        for size in sizes:
            with breaking_off(f"pages, {size:,} notes", failures):
                table, painted = _pages(run.local, size, times)
                tables.append(table)
                targets += [
                    measured(f"{page} with {size:,} notes painted, ms", each, "<=", PAINTED_MS)
                    for page, each in painted.items()
                ]
    if "metrics" in parts:
        with breaking_off("metrics", failures):
            ratios = _cost(run.local, pairs)
            rows: list[Sequence[Value]] = [
                (what, len(each), statistics.median(each), percentile(sorted(each), 0.9))
                for what, each in ratios.items()
            ]
            tables.append(Table("time with counting on, times off", ("operation", "pairs", "median", "p90"), rows))
            targets += [
                measured(f"{what} with counting on, times off", each, "<=", COST) for what, each in ratios.items()
            ]
    return Findings(tables, targets, failures)


def _pages(local: Path, size: int, times: int) -> tuple[Table, dict[str, list[float]]]:
    """Milliseconds of each page: to its last byte, to its first paint."""

    def stock(path: Path) -> None:
        store, bodies = Stock(path), texts(size, 1)
        for at in range(0, size, BATCH):
            store.write([(_place(number), bodies[number].encode()) for number in range(at, min(at + BATCH, size))])
        store.close()

    rows: list[Sequence[Value]] = []
    painted: dict[str, list[float]] = {}
    with contextlib.ExitStack() as ending:
        daemon = ending.enter_context(temporary_daemon(local, agents("bench"), SERVING, stock=stock))
        where, cookie = _signed_in(daemon)
        word = texts(size, 1)[size // 2].split()[3]
        pages = {
            "now": "/",
            "a full directory": "/tree?path=/memory/shared/0",
            "all directories": "/tree?path=/memory/shared",
            "a note": f"/note?path=/memory/shared/0/{_place(1)[-1].decode()}",
            "recall": f"/recall?q={urllib.parse.quote(word)}",
            "inbox": "/inbox",
            "agents": "/agents",
            "links": "/links",
            "trash": "/trash",
            "upkeep": "/upkeep",
        }
        paint = ending.enter_context(_browser(f"http://{where}", cookie))
        for name, page in pages.items():
            took = [_whole(where, page, cookie) for _ in range(times)]
            row: list[Value] = [name, len(took), statistics.median(took), max(took)]
            if paint is not None:
                painted[name] = [paint(page) for _ in range(times)]
                row += [statistics.median(painted[name]), max(painted[name])]
            rows.append(row)
    columns = ("page", "N", "last byte, p50 ms", "longest ms", "first paint, p50 ms", "longest ms")
    return Table(f"pages with {size:,} notes", columns if painted else columns[:4], rows), painted


def _place(number: int) -> list[bytes]:
    return [b"memory", b"shared", b"%d" % (number // FOLDER), b"%06d.md" % number]


def _signed_in(daemon: Daemon) -> tuple[str, str]:
    """The service's host and port, and a cookie of the agent's."""
    give_up = time.monotonic() + 60
    while not (url := daemon.status().get("http", {}).get("url")):
        if time.monotonic() > give_up:
            raise BenchmarkError("the HTTP service does not come up")
        time.sleep(0.2)
    door = RemoteDoor(Path(daemon.environment["AVM_RUNTIME_DIR"]) / "avm.sock", "bench")
    try:
        code = door.call("sign_in")["code"]
    finally:
        door.close()
    where = url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(where, timeout=LIMIT_S)) as connection:
        connection.request("GET", f"/sign-in?code={code}")
        return where, str(connection.getresponse().headers["set-cookie"]).partition(";")[0]


def _whole(where: str, page: str, cookie: str) -> float:
    with contextlib.closing(http.client.HTTPConnection(where, timeout=LIMIT_S)) as connection:
        began = time.perf_counter()
        connection.request("GET", page, headers={"cookie": cookie})
        answer = connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - began) * 1000
    if answer.status != 200:
        raise BenchmarkError(f"{page}: {answer.status}: {body[-300:].decode()}")
    return took


@contextlib.contextmanager
def _browser(url: str, cookie: str) -> Iterator[Any]:
    """What opens a page and gives the milliseconds until something was painted; None without a browser."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        yield None
        return
    name, _, value = cookie.partition("=")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=LIMIT_S * 1000)
        context = browser.new_context()
        context.add_cookies([{"name": name, "value": value, "url": url}])
        tab = context.new_page()
        tab.set_default_timeout(LIMIT_S * 1000)

        def paint(page: str) -> float:
            tab.goto(url + page)
            give_up = time.monotonic() + LIMIT_S
            while not (found := tab.evaluate(PAINTED)):  # the page's own policy lets nothing wait in it
                if time.monotonic() > give_up:
                    raise BenchmarkError(f"{page}: nothing was painted")
                time.sleep(0.01)
            return float(found[0])

        paint("/")  # the browser's own beginning
        yield paint
        browser.close()


def _cost(local: Path, pairs: int) -> dict[str, list[float]]:
    with contextlib.ExitStack() as ending:
        daemons = [
            ending.enter_context(temporary_daemon(local, agents("bench"), {**WORDS_ONLY, "http": {"metrics": on}}))
            for on in (True, False)
        ]
        (client,) = ending.enter_context(started_clients("benchmarks.http_ops", 1, os.environ))
        places = [str(daemon.mountpoints["bench"]) for daemon in daemons]
        ran = [[pid for role in ("mount", "writer") for pid in daemon.roles()[role]] for daemon in daemons]
        found: dict[str, list[float]] = client.call("pairs", LIMIT_S, places=places, processes=ran, pairs_of=pairs)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_http", "300 notes, 10 pairs")
    parser.add_argument("--parts", type=names_among(PARTS), metavar="A,B", default=PARTS, help="default: all")
    parser.add_argument("--sizes", type=_sizes, metavar="A,B", help="how many notes: 10000,100000")
    parser.add_argument("--pairs", type=positive, metavar="N", help="of slices: 400")
    return run_script("the HTTP service", parser, measure, arguments)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(positive(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
