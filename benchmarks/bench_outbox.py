"""What subscriptions cost those who write, and how soon a change has been delivered.

    python -m benchmarks.bench_outbox [--quick] [--local DIR] [--json FILE]

Clients write through the Python API as in bench_store, with no subscription as the baseline, and with others in turn
within each round. The receiver is a thread of this script and takes everything; it shares the machine with what is
measured. Then one client writes a new file at a time, and each delivery is timed from the reply to that write.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import processes
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, Round, summarize
from benchmarks.harness import filesystem_of
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, options, positive_numbers, run_script

NONE = "none"
WRITTEN = "/memory/bench/*"
VARIANTS: Mapping[str, Sequence[tuple[str, str, str, bool]]] = {
    NONE: (),
    "100 of other paths": [(f"other{n % 10}", f"/memory/other/{n}/*", "realtime", False) for n in range(100)],
    "throttled, in what is read": [("reader", WRITTEN, "throttled", False)],
    "a batched webhook": [("reader", WRITTEN, "batched", True)],
    "a realtime webhook": [("reader", WRITTEN, "realtime", True)],
}
"""What there is to be told: (agent, pattern, mode, by webhook)."""
CONNECT_S = 60.0
DELIVERED_WITHIN_S = 20.0


class Receiver:
    """Takes every delivery. ``seen``: when the first of each path came, on the monotonic clock."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    self._take(client)

    def _take(self, client: socket.socket) -> None:
        client.settimeout(5)
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        while len(body) < length:
            body += client.recv(65536)
        client.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
        self.count += 1
        said = json.loads(body)
        if isinstance(said, dict):
            self.seen.setdefault(said["path"], time.monotonic())


def measure(run: Run) -> Findings:
    widths: Sequence[int] = run.options.clients
    rounds = run.options.rounds or (1 if run.quick else 5)
    seconds = run.options.seconds or (0.5 if run.quick else 3.0)
    settings = {"embedding": {"enabled": False}, "webhooks": {"allow": ["127.0.0.1"]}}
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents("bench"), settings))
    receiver = Receiver()
    run.ending.callback(receiver.close)
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
    )
    roles = {role: pids for role, pids in daemon.roles().items() if role in ("writer", "keeper", "door")}
    cpu: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    failures: dict[str, str] = {}
    clients = run.ending.enter_context(started_clients("benchmarks.store_ops", max(widths), daemon.environment))
    with breaking_off(NONE, failures):
        for i, client in enumerate(clients):
            client.call("connect", CONNECT_S, variant="avmfs", client=i, database="")

    def one(width: int, variant: str, loop: int) -> Round:
        number = loop * len(VARIANTS) + [*VARIANTS].index(variant)  # each measurement makes files of its own
        with _subscribed(daemon, variant, receiver.url):
            before = {role: processes.cpu_s(pids) for role, pids in roles.items()}
            found = _round(clients[:width], number, seconds)
            spent = {role: (processes.cpu_s(pids) - before[role]) * 1e6 / found.n for role, pids in roles.items()}
        if width == widths[-1]:
            cpu[variant].append(spent)
        return found

    outcome = take_turns(rounds, widths, [*VARIANTS], failures, one)
    rows: list[Sequence[Value]] = []
    for width in widths:
        rows += [()] if rows else []
        for variant in VARIANTS:
            if (figure := outcome.figure(width, variant)) is not None:
                rows.append(
                    (
                        f"{width}",
                        variant,
                        figure.n,
                        figure.per_second,
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.p99_us / 1e3,
                        outcome.ratio_median(width, variant, NONE),
                    )
                )
    columns = ("clients", "subscriptions", "N", "ops/s", "median ms", "of rounds", "p99 ms", "x none")
    tables = [Table("writes, by what is subscribed to", columns, rows), _cpu(cpu, widths[-1])]
    with breaking_off("deliveries", failures):
        tables.append(_deliveries(daemon, receiver, 20 if run.quick else 200))
    targets = [
        measured(
            f"writes with {variant} / with none, {widths[-1]} clients",
            outcome.ratios(widths[-1], variant, NONE),
            ">=",
            0.8,
        )
        for variant in VARIANTS
        if variant != NONE
    ]
    return Findings(tables, targets, failures=outcome.failures)


def _cpu(spent: Mapping[str, Sequence[Mapping[str, float]]], width: int) -> Table:
    """What a write costs the daemon, whatever else the machine does: the median of rounds. Deliveries are in it."""
    known = sorted({role for rounds in spent.values() for one in rounds for role in one})
    rows: list[Sequence[Value]] = [
        (variant, *(statistics.median(one[role] for one in rounds) for role in known))
        for variant, rounds in spent.items()
        if rounds
    ]
    return Table(f"CPU of the daemon's processes a write, us; {width} clients", ("subscriptions", *known), rows)


def _round(clients: Sequence[Client], number: int, seconds: float) -> Round:
    for client in clients:
        client.call("begin", CONNECT_S, number=number)
    return summarize(run_together(clients, "write", seconds, [{} for _ in clients]))


@contextlib.contextmanager
def _subscribed(daemon: Daemon, variant: str, url: str) -> Iterator[None]:
    """The variant's subscriptions, and none afterwards; what waits for them goes with them."""
    from avmfs.avm import AVM

    environment = {name: value for name, value in daemon.environment.items() if name != "AVM_AGENT"}
    with contextlib.ExitStack() as stack:
        opened: dict[str, AVM] = {}
        for agent, pattern, mode, by_webhook in VARIANTS[variant]:
            if agent not in opened:
                opened[agent] = stack.enter_context(AVM(agent=agent, environ=environment))
            opened[agent].subscribe(pattern, mode=mode, url=url if by_webhook else None)
            stack.callback(opened[agent].unsubscribe, pattern)
        yield


def _deliveries(daemon: Daemon, receiver: Receiver, count: int) -> Table:
    from avmfs.avm import AVM

    took: list[float] = []
    with _subscribed(daemon, "a realtime webhook", receiver.url), AVM(agent="w", environ=daemon.environment) as writer:
        for n in range(count):
            path = f"/memory/bench/timed/{n}"
            writer.write(path, b"x")
            written = time.monotonic()
            while path not in receiver.seen:
                if time.monotonic() - written > DELIVERED_WITHIN_S:
                    raise BenchmarkError(f"{path} has not been delivered within {DELIVERED_WITHIN_S:g} s")
                time.sleep(0.0005)
            took.append(max(0.0, receiver.seen[path] - written) * 1e3)
    took.sort()
    row: Sequence[Value] = ("realtime webhook", len(took), statistics.median(took), took[int(len(took) * 0.99)])
    return Table("from a write's reply to its delivery", ("", "N", "median ms", "p99 ms"), [row])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_outbox", "one round of half a second")
    parser.add_argument("--clients", type=positive_numbers, default=[1, 8], metavar="N,N", help="(1,8)")
    parser.add_argument("--seconds", type=float, metavar="S", help="3 a round, or 0.5 with --quick")
    return run_script("avmfs outbox benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
