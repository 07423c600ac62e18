"""What every accept loop does with a client that has gone, and without a free descriptor."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from avmfs import wire
from avmfs.listener import Listener


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0avmfs-test-" + os.urandom(8).hex())  # an abstract name: no file
        sock.listen(8)
        yield sock, sock.getsockname()


def connected(address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(address)
    return client


def test_nobody_is_no_client_and_a_client_is_blocking(listening: tuple[socket.socket, str]) -> None:
    listener = Listener(listening[0], "test")
    assert listener.accept() is None
    with connected(listening[1]) as client:
        accepted = listener.accept()
        assert accepted is not None and accepted.getblocking() and wire.peer_uid(accepted) == os.getuid()
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"
        accepted.close()


def test_without_a_free_descriptor_it_says_so_once_and_goes_on(
    listening: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture
) -> None:
    asked = []
    listener = Listener(listening[0], "test", lambda: asked.append(1))
    with connected(listening[1]), caplog.at_level(logging.ERROR):
        with no_free_descriptor():
            assert listener.accept() is None and listener.accept() is None
        assert asked == [1, 1] and caplog.text.count("test: cannot accept") == 1
        accepted = listener.accept()
        assert accepted is not None, "who waited is served once there is room"
        accepted.close()


def test_clients_come_until_it_is_over(listening: tuple[socket.socket, str]) -> None:
    stop = threading.Event()
    coming: Any = Listener(listening[0], "test").clients(stop)
    with connected(listening[1]), contextlib.closing(coming) as clients:
        first = next(clients)
        assert first is not None
        first.close()
        assert next(clients) is None, "it looks at the time when nobody comes"
        stop.set()
        assert next(clients, "over") == "over"
