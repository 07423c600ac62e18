"""Frames: what goes in comes out, however it is cut; what is no frame is an error, never code."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs import wire
from avmfs.wire import Assembler, FrameError

SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=30),
    st.text(max_size=20),
    st.binary(max_size=8).map(os.fsdecode),
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=15,
)


@given(VALUE)
@settings(max_examples=300)
def test_values_come_back(value: object) -> None:
    assert wire.unpack(wire.pack(value)) == value


@given(st.lists(VALUE, max_size=5), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=200)
@pytest.mark.slow
def test_frames_come_out_however_the_bytes_arrive(values: list[object], cuts: list[int]) -> None:
    data, frames, found = b"".join(map(wire.frame, values)), Assembler(), []
    at = turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        found += frames.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert found == values


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        Assembler(1000).feed(data)
    with contextlib.suppress(FrameError):
        wire.unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        b"\x81\x90\x01",
        b"\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffx",
        b"\xa1\xff\xa1",
        pickle.dumps({"a": 1}),
        pickle.dumps(os.system),
        msgpack.packb(msgpack.ExtType(5, b"x")),
    ],
)
def test_what_is_no_value_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        wire.unpack(data)


def test_a_timestamp_is_a_plain_number() -> None:
    assert wire.unpack(msgpack.packb(msgpack.Timestamp(5, 0))) == 5.0


def test_a_frame_has_a_limit() -> None:
    with pytest.raises(FrameError, match="1000 are allowed"):
        Assembler(1000).feed(struct.pack(">I", 1001))
    assert Assembler(1000).feed(struct.pack(">I", 1000)) == []
    assert Assembler(11).feed(wire.frame("x" * 10)) == ["x" * 10]


def test_receive_knows_the_end_the_limit_and_the_clock() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(300)
        large = {"data": os.urandom(3 << 20)}
        sender = threading.Thread(target=wire.send, args=(theirs, large))
        sender.start()
        assert wire.receive(ours) == large
        sender.join(300)
        wire.send(theirs, [1])
        wire.send(theirs, [2])
        assert [wire.receive(ours), wire.receive(ours)] == [[1], [2]]
        theirs.sendall(struct.pack(">I", 100))
        with pytest.raises(FrameError):
            wire.receive(ours, limit=99)
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError):
            wire.receive(ours)
        ours.settimeout(300)
        theirs.sendall(b"\0\0")
        theirs.close()
        with pytest.raises(EOFError):
            wire.receive(ours)


def test_an_answer_is_whole_however_it_comes_and_alone() -> None:
    """In one piece, byte by byte, larger than a piece; two at once are refused."""
    for value in ([1, None, {"size": 3}], ["x" * (3 * wire.PIECE)]):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            whole = wire.frame(value)
            sender = threading.Thread(target=_dribble, args=(theirs, whole, 1 if len(whole) < 100 else 5000))
            sender.start()
            assert wire.receive_answer(ours) == value
            sender.join(300)
            theirs.sendall(wire.frame(value)[: wire.PIECE])
            if len(whole) < 100:
                assert wire.receive_answer(ours) == value
                theirs.sendall(whole + whole)
                with pytest.raises(wire.FrameError):
                    wire.receive_answer(ours)


def test_the_kernel_ends_what_waits_too_long() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.limit_waiting(ours, 0.05)
        with pytest.raises(BlockingIOError):
            wire.receive_answer(ours)
        theirs.close()
        with pytest.raises(EOFError):
            wire.receive_answer(ours)


def _dribble(sock: socket.socket, data: bytes, piece: int) -> None:
    for at in range(0, len(data), piece):
        sock.sendall(data[at : at + piece])


BOMBS = {
    "empty maps": b"\xdd" + struct.pack(">I", 3_000_000) + b"\x80" * 3_000_000,
    "empty lists in lists": b"\xdd" + struct.pack(">I", 300) + (b"\xdc\x27\x10" + b"\x90" * 10_000) * 300,
    "short texts": b"\xdd" + struct.pack(">I", 1_000_000) + b"\xa2ab" * 1_000_000,
    "long lists in each other": (b"\xdd" + struct.pack(">I", 190_000)) * 900 + b"\x01" * 3_000_000,
    "a wide map": b"\xdf" + struct.pack(">I", 250_000) + b"\xce\x00\x00\x00\x00\x01" * 250_000,
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.slow
def test_what_would_grow_when_it_is_unpacked_is_refused_before(kind: str) -> None:
    """An empty map is one byte in a frame and 64 in memory."""
    wire.unpack(b"\x90", wire.ITEMS)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            wire.unpack(BOMBS[kind], wire.ITEMS)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_what_is_long_and_not_many_is_taken() -> None:
    value = {"id": 1, "method": "write", "arguments": {"data": b"x" * 1_000_000, "tags": ["t"] * 50_000}}
    assert wire.unpack(wire.pack(value), wire.ITEMS) == value
