"""A link between a host and the shared log that a test can cut, stop or half-close: a proxy of TCP connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Link:
    """``port`` of 127.0.0.1 leads to ``to``, which may change. ``cut`` ends what is open; while ``down`` none gets in.
    While ``deaf`` what the server says is lost, and the connection stays open; ``deaf_after``: it is from the next
    message of more bytes than that, if not 0. While ``stopped`` nothing passes. What the server says takes ``delay_s``
    longer."""

    def __init__(self, to: int) -> None:
        self.to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.down = self.deaf = self.stopped = False
        self.deaf_after = 0
        self.delay_s = 0.0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def close(self) -> None:
        self.down = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if self.down:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for source, target, back in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass, args=(source, target, back), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if back and self.delay_s:
                    time.sleep(self.delay_s)
                if not back and 0 < self.deaf_after < len(data):
                    self.deaf, self.deaf_after = True, 0
                if not self.stopped and not (back and self.deaf):
                    target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
