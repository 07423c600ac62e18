"""The request loop on /dev/fuse: read, dispatch, reply, interrupt.

Owns the device descriptor, the threads and the state of requests under way. One thread at a time *leads*: it reads
requests and answers what cannot wait. When it comes to one that may block it lets another thread lead and goes on with
that request itself, so no request is handed from thread to thread (leader and followers: Schmidt et al., POSA 2). A
hundred parked readers of ``:inbox?wait=`` keep nobody waiting.

A request that waits for the writer and nothing else is run by the leader, which goes on leading: it waits for the
writer's answer and the next request at once (``answer_from``). Only when a request comes first does another thread
lead, so that a lone client, who waits for the answer too, costs no change of threads. What takes longer than an answer
(a writer that has gone, another thread's commit) is waited for where another leads (``aside``).

Knows the protocol's envelope, not what requests mean: handlers are given by opcode.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

from avmfs import calls, metrics
from avmfs.errors import AvmError, Invalid
from avmfs.fuse import protocol as p
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import VIRTUAL, Handler, Later, Quick, Request
from avmfs.fuse.uid_gate import FENCED

log = logging.getLogger(__name__)

MAX_WRITE = 1 << 20
_BUFFER = MAX_WRITE + 64 * 1024
_MOST = 512  # threads; what may block beyond that waits for one of them, but for what is ``apart``
_SPARE = 4  # threads that wait for their turn to lead
_DROP_S = 1.0  # that pages which a request holds are waited for, here; they are dropped all the same
_DRAINS_S, _TAKEN_IN_MS = 1.0, 100  # that what has waited for a successor may take, and the last answer to it
_ANSWER_MS = 1000  # a writer that takes longer is waited for where another leads
_AGAIN_MS = 1000  # until a thread is asked for again where there was none
_WANTED = (
    p.Init.ASYNC_READ
    | p.Init.POSIX_LOCKS
    | p.Init.ATOMIC_O_TRUNC
    | p.Init.BIG_WRITES
    | p.Init.FLOCK_LOCKS
    | p.Init.AUTO_INVAL_DATA
    | p.Init.PARALLEL_DIROPS
    | p.Init.MAX_PAGES
    | p.Init.CACHE_SYMLINKS
    | p.Init.HANDLE_KILLPRIV_V2
    | p.Init.INIT_EXT
    | p.Init.DIRECT_IO_ALLOW_MMAP
    | p.Init.HAS_RESEND
)
_BY_NAME = p.SetAttr.MODE | p.SetAttr.UID | p.SetAttr.GID | p.SetAttr.ATIME | p.SetAttr.MTIME
_WITHOUT_REPLY = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)


_GONE = (errno.ENOENT, errno.ENODEV)  # interrupted for good; unmounted


class Session:
    """One mounted device. ``forget`` takes FORGET and BATCH_FORGET, which have no reply. ``once``, of a plain unique,
    spans what may change something, until it is answered; ``settled(resent)`` follows once every request that is sent
    again has been read. ``admitted``: the only Unix users who may use the mount (see ``uid_gate``)."""

    def __init__(
        self,
        descriptor: int,
        forget: Callable[[Request], None],
        once: Callable[[int], contextlib.AbstractContextManager[None]],
        settled: Callable[[set[int]], None],
        admitted: frozenset[int] | None = None,
    ) -> None:
        self._once = once
        self._settled = settled
        self._admitted = admitted
        self.has_open: Callable[[int], bool] = lambda node: False
        """Has anybody a node of the store open here? Its attributes are then for who was handed the descriptor."""
        self.asks: Callable[[int], bool] | None = None
        """May a source have to be asked for what is done to a node of the store, or be given it?"""
        self._resent: set[int] | None = None  # while requests are sent again: those that were read
        self.drained: Callable[[], None] | None = None
        """Called once what has waited for a successor is answered, or after a while all the same."""
        self._fd = descriptor
        self._handlers: dict[int, Handler] = {}
        self._quick: dict[int, Quick] = {}
        self._blocking: set[int] = set()
        self._committing: set[int] = set()
        self._forget = forget
        self._turn = threading.Lock()  # to lead
        self._leader = 0  # its thread
        self._turned = threading.local()  # asker: of the request with which this thread has led last, and waited
        self._attends = False  # does the leader run what may wait for the writer?
        self._device = select.poll()  # for whoever leads
        self._device.register(descriptor, select.POLLIN)
        self._polls: dict[int, select.poll] = {}  # by the descriptor of an answer: that and the device
        self._threads = self._followers = 0  # of these, and those of them that wait for their turn
        self._overflow: deque[Callable[[], object]] = deque()  # what waits for a thread
        self._short = False  # was the last thread that was asked for refused?
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._buffer = bytearray(_BUFFER)  # of whoever leads
        # A process that is killed while it reads into pages that are not there yet makes the kernel fail the request.
        page = os.sysconf("SC_PAGE_SIZE")
        self._buffer[::page] = b"\1" * len(range(0, _BUFFER, page))
        self._pending: dict[int, Request] = {}
        self._tally: dict[int, metrics.Counter] = {}  # by opcode
        self._mutex = threading.Lock()
        self.minor = 0  # of the kernel's protocol, once it has greeted
        self.agreed = 0  # the Init flags that both sides have

    def serves(self, handlers: Mapping[int, Handler], *, blocking: bool = False, committing: bool = False) -> None:
        """Add handlers by opcode. ``blocking``: they always may block; another handler that finds it would have to
        wait raises Later. ``committing``: for a node of the store they wait for the writer at most."""
        self._handlers.update(handlers)
        if blocking or committing:
            self._blocking.update(handlers)
        if committing:
            self._committing.update(handlers)

    def answers(self, quick: Mapping[int, Quick]) -> None:
        """Add by opcode what answers from memory, in the leading thread, before the handlers are asked."""
        self._quick.update(quick)

    def precede(self, ops: Collection[int], first: Callable[[], None]) -> None:
        """What has been added for these waits for ``first`` before it looks at anything."""

        def behind(handler: Handler) -> Handler:
            def handle(request: Request) -> bytes:
                first()
                return handler(request)

            return handle

        for op in ops:
            self._quick.pop(op, None)
            self._handlers[op] = behind(self._handlers[op])
        self._blocking.update(ops)

    def apart(self, handler: Handler) -> Handler:
        """One that waits for another client: its thread counts for none meanwhile, as that one may need one."""

        def handle(request: Request) -> bytes:
            with self._mutex:
                self._threads -= 1
            try:
                return handler(request)
            finally:
                with self._mutex:
                    self._threads += 1

        return handle

    def serve(self, ready: Callable[[], None], minor: int = 0, agreed: int = 0) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted, or at once on
        a mount that is taken over; ``minor`` and ``agreed`` are then what the predecessor had."""
        self._ready = ready
        if minor:
            self.minor, self.agreed, self._resent = minor, agreed, set()
            os.write(self._fd, p.RESEND)
            ready()
            self._drains_until = time.monotonic() + _DRAINS_S
        try:
            with self._mutex:
                self._add_thread()
            self._over.wait()
        finally:
            os.close(self._fd)
        if self._failure is not None:
            raise self._failure

    # Threads -------------------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        """Whoever calls holds the mutex: it counts once it is there."""
        threading.Thread(target=self._work, name="request", daemon=True).start()
        self._threads += 1
        self._followers += 1

    def _work(self) -> None:
        """Lead, until another thread does; see to what else waits; again."""
        me = threading.get_ident()
        while True:
            self._turn.acquire()
            with self._mutex:
                self._followers -= 1
            self._leader = me
            goes_on = False
            try:
                goes_on = not self._over.is_set() and self._lead(me)
            except BaseException as e:
                if self._leader != me:
                    raise
                self._failure = e
            if not goes_on:
                self._over.set()
                self._leader = 0
                self._turn.release()
                return
            while True:
                with self._mutex:
                    if not self._overflow:
                        if self._followers >= _SPARE:
                            self._threads -= 1
                            return
                        self._followers += 1
                        break
                    work = self._overflow.popleft()
                work()

    def _step_down(self) -> bool:
        """Let another thread lead, so that this one may wait for anything. False when there is none."""
        with self._mutex:
            if self._followers == 0:
                if self._threads >= _MOST:
                    return False
                try:
                    self._add_thread()
                except RuntimeError as e:
                    if not self._short:
                        log.error("what may block waits for a thread: %s", e)
                    self._short = True
                    return False
                self._short = False
        self._leader, self._attends = 0, False
        self._turn.release()
        return True

    def later(self, work: Callable[[], object]) -> None:
        """Have this done in a thread that does not lead, as soon as there is one."""
        with self._mutex:
            self._overflow.append(work)

    def _catch_up(self) -> bool:
        """Let another thread lead, so that this one may see to what waits for one. False: a request comes first."""
        while self._overflow:
            if self._step_down():
                return True
            if self._device.poll(_AGAIN_MS):
                break
        return False

    def _lead(self, me: int) -> bool:
        """Read and answer. False when the mount is gone, True once another thread leads."""
        buffer, view, buffers = self._buffer, memoryview(self._buffer), [self._buffer]
        brief, quick, fd, admitted = p.IN_BRIEF.unpack_from, self._quick, self._fd, self._admitted
        tally = self._tally
        if self.drained is not None:
            self._drain()
        while True:
            if self._overflow and self._catch_up():
                return True
            try:
                size = os.readv(fd, buffers)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue  # ENOENT: the request was interrupted before it could be read
                if e.errno == errno.ENODEV:
                    return False
                raise
            op, unique, node, uid = brief(buffer)
            (tally.get(op) or self._counted(op)).add()
            if self._resent is not None and op not in _WITHOUT_REPLY:
                self._count_resent(unique, self._resent)
            if admitted is not None and uid not in admitted and op in FENCED and not self._by_handle(op, node):
                self.send(p.OUT_HEADER.pack(p.OUT_HEADER.size, -errno.EACCES, unique))
                continue
            answer = quick.get(op) if unique < p.RESENT or op not in self._handlers else None
            reply = None
            if answer is not None:
                try:
                    reply = answer(unique, node, view, size)
                except Exception as e:
                    # It goes wrong once more below, where errors are answered.
                    if not isinstance(e, AvmError):
                        log.exception("quick answer to request %d on node %d failed", op, node)
                    if self._leader != me:  # another request has come in its place
                        code = e.code if isinstance(e, AvmError) else errno.EIO
                        reply = p.OUT_HEADER.pack(p.OUT_HEADER.size, -code, unique)
            if reply:
                self.send(reply)
            elif reply is None and (request := self._one(op, view, size)) is not None:
                self._pending[request.unique] = request
                if op in self._committing and not node & VIRTUAL:
                    self._attends = True
                    self._run(request)
                elif self._step_down():
                    self._run(request)
                else:
                    self.later(partial(self._run, request))
            if self._leader != me:
                return True
            self._attends = False
            if self.drained is not None:
                self._drain()

    def _drain(self) -> None:
        """Call ``drained`` where nothing waits any more. Who has just been answered may still have to take that in."""
        if time.monotonic() > self._drains_until or not self._device.poll(_TAKEN_IN_MS):
            drained, self.drained = self.drained, None
            if drained is not None:
                drained()

    def _by_handle(self, op: int, node: int) -> bool:
        """Return whether this is fstat(2), which read(2) does as well: the kernel does not say by which handle. Of a
        virtual node it keeps no name, so that whoever asks has it open. Or ftruncate(2), of which it does say that."""
        if op == Op.SETATTR:
            (valid,) = p.SETATTR_VALID.unpack_from(self._buffer)
            return bool(valid & p.SetAttr.FH) and not valid & _BY_NAME
        return op == Op.GETATTR and (node & VIRTUAL != 0 or self.has_open(node))

    def _counted(self, op: int) -> metrics.Counter:
        """Where requests of this kind are counted."""
        name = Op(op).name.lower() if op in Op.__members__.values() else "other"
        return self._tally.setdefault(op, metrics.counter("avm_fuse_requests_total", op=name))

    # Waiting, in whichever thread --------------------------------------------------------------------------

    def answer_from(self, descriptor: int) -> None:
        """This thread is about to wait for what can be read there, which will not take long. If it leads, it goes on
        leading until a request comes before the answer."""
        if self._leader != threading.get_ident():
            return
        poll = self._polls.get(descriptor)
        if poll is None:
            poll = self._polls[descriptor] = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.register(self._fd, select.POLLIN)
        for ready, _ in poll.poll(_ANSWER_MS):
            if ready == descriptor:
                return
        self.aside()

    def aside(self) -> None:
        """This thread is about to wait, for who knows how long. If it leads, another thread does from now on."""
        if self._leader == threading.get_ident():
            self._turned.asker = self.asker()  # the next request will lie in its place
            self._step_down()

    def _count_resent(self, unique: int, resent: set[int]) -> None:
        """Requests sent again come before all others."""
        if unique >= p.RESENT:
            resent.add(p.plain_unique(unique))
        else:
            self._resent = None
            self._settled(resent)

    def _one(self, op: int, view: memoryview, size: int) -> Request | None:
        """Answer a request, or return it when it may block."""
        _, _, unique, node, uid, gid, thread, _, _ = p.IN_HEADER.unpack_from(view)
        request = Request(op, unique, node, uid, gid, bytes(view[p.IN_HEADER.size : size]), thread)
        if op == Op.INIT:
            self._greet(request)
            self._ready()
        elif op in (Op.FORGET, Op.BATCH_FORGET):
            self._forget(request)
        elif op == Op.INTERRUPT:
            self._interrupt(*p.INTERRUPT_IN.unpack_from(request.body))
        elif op in self._blocking or not self._handle(request):
            return request
        return None

    def _handle(self, request: Request) -> bool:
        """Run a request and reply. The boundary: no error leaves here. False: it has to be run where it may block."""
        handler = self._handlers.get(request.op)
        try:
            if handler is None:
                self._reply(request, errno.ENOSYS)
            else:
                if self._attends and self.asks is not None and self.asks(request.node):
                    self.aside()
                self._reply(request, 0, handler(request))
        except Later:
            return False
        except AvmError as e:
            self._reply(request, e.code)
        except OSError as e:
            log.warning("request %d on node %d: %s", request.op, request.node, e)
            self._reply(request, e.errno or errno.EIO)
        except Exception:  # one request must not end the mount
            log.exception("request %d on node %d failed", request.op, request.node)
            self._reply(request, errno.EIO)
        return True

    def _run(self, request: Request) -> None:
        calls.working.call = request
        try:
            with self._once(request.unique & ~p.RESENT):
                done = self._handle(request)
            if not done:
                log.error("a handler of request %d says Later where it may block", request.op)
                self._reply(request, errno.EIO)
        finally:
            calls.working.call = None
            self._pending.pop(request.unique, None)

    def may_block(self) -> bool:
        """Return whether this thread may wait, because another one leads, or for the writer alone."""
        return self._attends or self._leader != threading.get_ident()

    def _reply(self, request: Request, error: int, body: bytes = b"") -> None:
        if request.abandonable:
            with self._mutex:
                if request.answered:
                    return
                request.answered = True
        self.send(p.OUT_HEADER.pack(p.OUT_HEADER.size + len(body), -error, request.unique) + body)

    def send(self, reply: bytes) -> None:
        try:
            os.write(self._fd, reply)
        except OSError as e:
            if e.errno not in _GONE:
                raise

    def _greet(self, request: Request) -> None:
        major, minor, readahead, low = p.INIT_IN.unpack_from(request.body)
        offered = low
        if low & p.Init.INIT_EXT and len(request.body) >= 20:
            offered |= int.from_bytes(request.body[16:20], sys.byteorder) << 32
        if major != p.MAJOR:
            raise Invalid(f"the kernel speaks FUSE {major}.{minor}, this front end {p.MAJOR}.x")
        self.minor = minor
        self.agreed = wanted = int(_WANTED) & offered
        low, high, pages = wanted & 0xFFFFFFFF, wanted >> 32, MAX_WRITE // 4096
        reply = (p.MAJOR, min(minor, p.MINOR), readahead, low, 64, 48, MAX_WRITE, 1, pages, 0, high, 0, 0)
        self._reply(request, 0, p.INIT_OUT.pack(*reply))

    @property
    def resends(self) -> bool:
        """Whether the kernel can send again what a killed process has not answered."""
        return bool(self.agreed & p.Init.HAS_RESEND)

    def notify(self, notice: bytes) -> None:
        """Tell the kernel something by itself, from any thread. Nothing happens once it is unmounted, or when it does
        not have the node (ENOENT)."""
        with contextlib.suppress(OSError):
            os.write(self._fd, notice)

    def drop_attributes(self, node: int) -> None:
        """What the kernel has cached of a node's attributes is asked anew. Takes no lock in the kernel."""
        self.notify(p.inval_attributes(node))

    def drop_pages(self, node: int) -> None:
        """So are its bytes. The kernel waits for requests under way that have pages of it locked, which other threads
        answer meanwhile, and for the truncation that this thread may be at, which is why nobody waits for all of it."""
        self.aside()
        drop = partial(self.notify, p.inval_pages(node))
        dropping = threading.Thread(target=drop, name="drop", daemon=True)
        try:
            dropping.start()
        except RuntimeError:
            self.later(drop)  # no more threads: who is free next does it
        else:
            dropping.join(_DROP_S)

    def asker(self) -> int:
        """The thread whose request this one works for, as the kernel numbers it; 0 for none that it knows."""
        request = getattr(calls.working, "call", None)
        if isinstance(request, Request):
            return request.thread
        leads = self._leader == threading.get_ident()
        asker: int = p.IN_PID.unpack_from(self._buffer)[0] if leads else getattr(self._turned, "asker", 0)
        return asker

    @property
    def descriptor(self) -> int:
        return self._fd

    def _interrupt(self, unique: int) -> None:
        """The client gave up. A waiting open is answered at once; what it renders is thrown away."""
        request = self._pending.get(unique)
        if request is not None:
            with self._mutex:
                given_up = request.abandonable and not request.answered
                request.answered = request.answered or given_up
            if given_up:
                self.send(p.OUT_HEADER.pack(p.OUT_HEADER.size, -errno.EINTR, unique))
            request.give_up()

    def keeps(self, request: Request) -> bool:
        """Return whether nobody has answered a request, which nobody but its handler does from now on."""
        with self._mutex:
            request.abandonable = request.answered
            return not request.answered

    def interrupted(self) -> bool:
        request: calls.Call | None = getattr(calls.working, "call", None)
        return request is not None and request.given_up
