"""Client processes: where every operation that is measured, or that may hang, takes place.

A client is `python -m benchmarks.clients MODULE`: it calls MODULE's `commands()` once and serves what that
returns, one JSON request a line on its standard input, one JSON reply a line on its standard output. It
ends when its input does, so it does not outlive the script. The script waits for each reply with a time limit
and kills a client that misses it; a process inside a FUSE request dies only when the request ends, so nothing
waits for that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.figures import BenchmarkError, Timing
from benchmarks.harness import ROOT

Command = Callable[..., Any]
START_DELAY_S = 0.05
REPLY_GRACE_S = 20.0
"""What a reply may take beyond the loop's own time limit: one last slow operation, and the way back."""


class ClientFailed(BenchmarkError):
    """A client raised, died or did not answer in time."""


class Client:
    """The script's end of one client process; owns the process."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=ROOT,
            start_new_session=True,  # an interrupt at the terminal is the script's to handle
        )
        self._received = b""

    def send(self, command: str, arguments: Mapping[str, object]) -> None:
        """Send a request; the client must have answered the one before."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([command, dict(arguments)]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientFailed("client process died") from None

    def receive(self, give_up: float) -> Any:
        """The reply, or ClientFailed once the monotonic clock passes `give_up` seconds."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._received:
            ready, _, _ = select.select([pipe], [], [], max(0.0, give_up - time.monotonic()))
            if not ready:
                raise ClientFailed("no answer in time (a hung mount?)")
            chunk = os.read(pipe, 1 << 20)
            if not chunk:
                raise ClientFailed("client process died")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise ClientFailed(reply["error"])
        return reply["result"]

    def receive_within(self, timeout_s: float) -> Any:
        return self.receive(time.monotonic() + timeout_s)

    def call(self, command: str, timeout_s: float, **arguments: object) -> Any:
        self.send(command, arguments)
        return self.receive_within(timeout_s)

    def close(self) -> None:
        """End the process without waiting for what it may be stuck in."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.stdout.close()


@contextlib.contextmanager
def started_clients(module: str, count: int, environment: Mapping[str, str]) -> Iterator[list[Client]]:
    """`count` clients of `module`, closed at the end."""
    with contextlib.ExitStack() as ending:
        clients = []
        for _ in range(count):
            client = Client(module, environment)
            ending.callback(client.close)
            clients.append(client)
        yield clients


def run_together(
    clients: Sequence[Client], command: str, limit_s: float, arguments: Sequence[Mapping[str, object]]
) -> list[Timing]:
    """One timed command on every client at once; adds `start_ns` and `limit_s` to each client's arguments."""
    start_ns = time.monotonic_ns() + int(START_DELAY_S * 1e9)
    for client, own in zip(clients, arguments, strict=True):
        client.send(command, {**own, "start_ns": start_ns, "limit_s": limit_s})
    give_up = time.monotonic() + START_DELAY_S + limit_s + REPLY_GRACE_S
    return [Timing(*client.receive(give_up)) for client in clients]


@contextlib.contextmanager
def breaking_off(variant: str, failures: dict[str, str]) -> Iterator[None]:
    """Note a BenchmarkError as the variant's failure, so that the others go on without it."""
    try:
        yield
    except BenchmarkError as error:
        failures[variant] = str(error)


def reply_of(timing: Timing) -> list[object]:
    """A Timing as a command returns it."""
    return [timing.samples_ns, timing.started_ns, timing.ended_ns]


def main(module: str) -> None:
    """Serve `module`'s commands until the input ends."""
    # Whatever a library prints must not reach the protocol's pipe.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        commands: Mapping[str, Command] = importlib.import_module(module).commands()
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                reply = {"result": commands[name](**arguments)}
            except Exception as error:  # the boundary: the script prints it beside the figure it cost
                reply = {"error": f"{name}: {type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the script is gone: nobody is left to tell
        main(sys.argv[1])
