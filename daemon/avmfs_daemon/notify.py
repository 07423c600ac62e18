"""What systemd is told: readiness, reloads, the end, a line for `systemctl status`, and that the loop still turns.

Owns the sd_notify(3) protocol, and when the watchdog has to hear of us next. Used by the supervisor's loop alone;
without systemd it does nothing. Sending never waits: the socket is a datagram's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

from avmfs.text.escapes import visible

BEATS_PER_LIMIT = 3  # sd_watchdog_enabled(3) advises two: one may be late


class Notifier:
    """`next_beat` is when `beat` has to be called, on the monotonic clock; infinity without a watchdog."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        named = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL of an abstract name; other kinds of address (vsock) are not of this machine.
        self._address = "\0" + named[1:] if named.startswith("@") else named if named.startswith("/") else ""
        self._pause = float("inf")
        limit = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", "") in ("", str(pid))
        if self._address and ours and limit.isascii() and limit.isdigit() and int(limit) > 0:
            self._pause = int(limit) / 1e6 / BEATS_PER_LIMIT
        self.next_beat = time.monotonic() + self._pause

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """`ready` follows."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_line(status)}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def beat(self, now: float) -> None:
        """Called with every turn of the loop; tells the watchdog when it is time."""
        if now >= self.next_beat:
            self.next_beat = now + self._pause
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # One whose reader is gone or full: systemd notices by itself.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)


def _line(text: str) -> str:
    return visible(" ".join(text.split()))[:500]


def from_environment() -> Notifier:
    return Notifier(os.environ, os.getpid())
