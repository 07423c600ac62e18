"""The request loop on /dev/fuse: read, dispatch, reply, interrupt.

Owns the device descriptor and the state of requests under way. One thread reads and runs what cannot wait; handlers
that may block run in a pool and are answered when they are done. Knows the protocol's envelope, not what requests
mean: handlers are given by opcode.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping

from avmfs.errors import AvmError, Invalid
from avmfs.fuse import protocol as p
from avmfs.fuse.pool import Pool
from avmfs.fuse.protocol import Op
from avmfs.vfs.attributes import Caller

log = logging.getLogger(__name__)

MAX_WRITE = 1 << 20
_BUFFER = MAX_WRITE + 64 * 1024
_WANTED = (
    p.Init.ASYNC_READ
    | p.Init.POSIX_LOCKS
    | p.Init.ATOMIC_O_TRUNC
    | p.Init.BIG_WRITES
    | p.Init.FLOCK_LOCKS
    | p.Init.AUTO_INVAL_DATA
    | p.Init.PARALLEL_DIROPS
    | p.Init.MAX_PAGES
    | p.Init.HANDLE_KILLPRIV_V2
    | p.Init.INIT_EXT
    | p.Init.DIRECT_IO_ALLOW_MMAP
)


class Request:
    """One request of the kernel. ``answered`` guards against a second reply after an interrupt."""

    __slots__ = ("abandonable", "answered", "body", "gid", "interrupted", "node", "op", "uid", "unique")

    def __init__(self, op: int, unique: int, node: int, uid: int, gid: int, body: bytes) -> None:
        self.op, self.unique, self.node, self.uid, self.gid, self.body = op, unique, node, uid, gid, body
        self.answered = self.interrupted = self.abandonable = False

    @property
    def caller(self) -> Caller:
        return Caller(self.uid, self.gid)


class Later(Exception):
    """Raised by a handler in the reading thread: the request may block, run it again in the pool."""


Handler = Callable[[Request], bytes]


class Session:
    """One mounted device. ``pooled`` are opcodes whose handlers always may block; another handler that finds it
    would have to wait raises Later. ``forget`` takes FORGET and BATCH_FORGET, which have no reply."""

    def __init__(
        self,
        descriptor: int,
        handlers: Mapping[int, Handler],
        pooled: frozenset[int],
        forget: Callable[[Request], None],
    ) -> None:
        self._fd = descriptor
        self._handlers = handlers
        self._pooled = pooled
        self._forget = forget
        self._pool = Pool()
        self._pending: dict[int, Request] = {}
        self._mutex = threading.Lock()
        self._current = threading.local()
        self.minor = 0  # of the kernel's protocol, once it has greeted
        self.caching = False  # may replies say that names and attributes stay valid?

    def serve(self, ready: Callable[[], None]) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted."""
        buffer = bytearray(_BUFFER)
        view = memoryview(buffer)
        try:
            while True:
                try:
                    size = os.readv(self._fd, [buffer])
                except OSError as e:
                    if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue  # ENOENT: the request was interrupted before it could be read
                    if e.errno == errno.ENODEV:
                        return
                    raise
                _, op, unique, node, uid, gid, _, _, _ = p.IN_HEADER.unpack_from(buffer)
                request = Request(op, unique, node, uid, gid, bytes(view[p.IN_HEADER.size : size]))
                if op == Op.INIT:
                    self._greet(request)
                    ready()
                elif op in (Op.FORGET, Op.BATCH_FORGET):
                    self._forget(request)
                elif op == Op.INTERRUPT:
                    self._interrupt(*p.INTERRUPT_IN.unpack_from(request.body))
                elif op in self._pooled:
                    self._defer(request)
                else:
                    self._handle(request)
        finally:
            os.close(self._fd)

    def _handle(self, request: Request) -> None:
        """Run a request and reply. The boundary: no error leaves here but Later, and that only to be deferred."""
        handler = self._handlers.get(request.op)
        try:
            if handler is None:
                self._reply(request, errno.ENOSYS)
                return
            self._reply(request, 0, handler(request))
        except Later:
            self._defer(request)
        except AvmError as e:
            self._reply(request, e.code)
        except OSError as e:
            log.warning("request %d on node %d: %s", request.op, request.node, e)
            self._reply(request, e.errno or errno.EIO)
        except Exception:  # one request must not end the mount
            log.exception("request %d on node %d failed", request.op, request.node)
            self._reply(request, errno.EIO)

    def _defer(self, request: Request) -> None:
        self._pending[request.unique] = request
        self._pool.submit(lambda: self._deferred(request))

    def _deferred(self, request: Request) -> None:
        self._current.request = request
        try:
            self._handle(request)
        finally:
            self._current.request = None
            self._pending.pop(request.unique, None)

    def may_block(self) -> bool:
        """Is this a pool thread, which may wait?"""
        return getattr(self._current, "request", None) is not None

    def _reply(self, request: Request, error: int, body: bytes = b"") -> None:
        with self._mutex:
            if request.answered:
                return
            request.answered = True
        header = p.OUT_HEADER.pack(p.OUT_HEADER.size + len(body), -error, request.unique)
        try:
            os.writev(self._fd, [header, body] if body else [header])
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV):  # interrupted for good; unmounted
                raise

    def _greet(self, request: Request) -> None:
        major, minor, readahead, low = p.INIT_IN.unpack_from(request.body)
        offered = low
        if low & p.Init.INIT_EXT and len(request.body) >= 20:
            offered |= int.from_bytes(request.body[16:20], sys.byteorder) << 32
        if major != p.MAJOR:
            raise Invalid(f"the kernel speaks FUSE {major}.{minor}, this front end {p.MAJOR}.x")
        self.minor = minor
        wanted = int(_WANTED) & offered
        self._reply(
            request, 0,
            p.INIT_OUT.pack(
                p.MAJOR, min(minor, p.MINOR), readahead, wanted & 0xFFFFFFFF, 64, 48, MAX_WRITE, 1,
                MAX_WRITE // 4096, 0, wanted >> 32, 0, 0,
            ),
        )  # fmt: skip

    def switch_caching(self, on: bool) -> None:
        """From now on replies may be cached, or must not be; what was cached before is then dropped."""
        self.caching = on
        if not on:
            with contextlib.suppress(OSError):  # unmounted: there is no cache any more
                os.write(self._fd, p.INC_EPOCH)

    def drop_attributes(self, node: int) -> None:
        """What the kernel has cached of a node's attributes is asked anew. Takes no lock in the kernel."""
        with contextlib.suppress(OSError):  # ENOENT: it does not have the node; unmounted
            os.write(self._fd, p.inval_attributes(node))

    @property
    def descriptor(self) -> int:
        return self._fd

    def _interrupt(self, unique: int) -> None:
        """The client gave up. A waiting open is answered at once; what it renders is thrown away."""
        request = self._pending.get(unique)
        if request is not None:
            request.interrupted = True
            if request.abandonable:
                self._reply(request, errno.EINTR)

    def interrupted(self) -> bool:
        request: Request | None = getattr(self._current, "request", None)
        return request is not None and request.interrupted
