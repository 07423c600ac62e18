"""Open virtual nodes: views, mailboxes, questions.

Owns what happens between open and close of a node that has no bytes of its own. A view is rendered once, at
open; a reader that was handed all of it and reads on runs its ``at_end`` (a mark advances), which neither ``head`` nor
a jump past the end does.
What is written is applied as early as an error can still reach the writer: shells ignore close(2).
"""

from __future__ import annotations

import codecs
import threading

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import AvmError, BadHandle, Denied, Invalid, NotFound, OverQuota, Stale, from_wire
from avmfs.memory import Memory
from avmfs.node import Node
from avmfs.store.commands.messages import PRIORITIES
from avmfs.store.rows.mail_limits import too_long
from avmfs.views import Context, Rendered, View

WRITE_LIMIT = 1024 * 1024
QUESTIONS_KEPT = 64
AT_OPEN = 128 * 1024  # of a file of the past
PIECE = 4 * 1024 * 1024  # of it, read at once where more is asked for
_SMALL = 4096  # what came below stdio's buffer is usually the whole text, or a line of one


class Remembering:
    """A block of which a refusal is kept for the audit, and its reason for /:error: of files that of EINVAL and EDQUOT,
    of views and mailboxes (``every``) whatever it is. Programs run into the other errors of files all day. Reusable."""

    __slots__ = ("_memory", "_told")

    def __init__(self, memory: Memory, *, every: bool = False) -> None:
        self._memory = memory
        self._told: type[AvmError] | tuple[type[AvmError], ...] = AvmError if every else (Invalid, OverQuota)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AvmError):
            if isinstance(error, self._told):
                self._memory.error = str(error)
            self._memory.refused(error.reason[:100], error)


class VirtualHandle:
    """Common part: bytes to read, bytes written so far. All virtual handles bypass the page cache."""

    direct = True
    appends = False

    def __init__(self, memory: Memory, readable: bool, writable: bool) -> None:
        self.memory = memory
        self.readable, self.writable = readable, writable
        self.lock = threading.Lock()
        self.rendered: Rendered | None = None
        self.ended = False
        self.reached = 0  # of what is shown, so much from its beginning was handed out
        self.written = bytearray()

    @property
    def pending(self) -> bool:
        """Return whether a flush or release may have something to do."""
        return self.writable

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            if self.rendered is None:
                raise BadHandle("not open for reading")
            piece = self.rendered.data[offset : offset + length]
            over = offset >= self.reached == len(self.rendered.data) and length > 0 and not self.ended
            self.ended = self.ended or over
            if offset <= self.reached:
                self.reached = max(self.reached, offset + len(piece))
        if over and self.rendered.at_end is not None:
            self.rendered.at_end()
        return piece

    def write(self, offset: int, data: bytes, *, append: bool = False, sync: bool = False) -> int:
        """Bytes count in order of arrival; where and how they are to be written means nothing to a view."""
        if not self.writable:
            raise BadHandle("not open for writing")
        with self.lock, Remembering(self.memory, every=True):
            if len(self.written) + len(data) > WRITE_LIMIT:
                raise OverQuota(f"a view takes {WRITE_LIMIT} bytes")
            before = len(self.written)
            self.written += data
            try:
                self.took(len(data))
            except BaseException:
                del self.written[before:]
                raise
        return len(data)

    def framed(self, offset: int, data: bytes, *, append: bool) -> bytes:
        """A write as a successor of this process makes it again (``edit``)."""
        return data

    def edit(self, framed: bytes) -> None:
        self.written += framed

    def took(self, count: int) -> None:
        """After the last ``count`` bytes arrived. An error refuses that write."""

    def truncate(self, size: int) -> None:
        """O_TRUNC and ftruncate: a virtual node has nothing to cut."""

    def flush(self) -> None: ...

    def fsync(self) -> None:
        self.flush()

    def release(self) -> None: ...

    def text(self, since: int = 0) -> str:
        return self.written[since:].decode("utf-8", "surrogateescape")


class ViewHandle(VirtualHandle):
    """A view of one node. Text that is refused is no part of what is written next, nor is its beginning applied."""

    def __init__(
        self,
        memory: Memory,
        view: View,
        node: Node,
        path: bytes,
        name: paths.ViewName,
        readable: bool,
        writable: bool,
        rendered: Rendered | None = None,
    ) -> None:
        """``rendered``: what a predecessor of this process had made of it."""
        super().__init__(memory, readable, writable)
        self.view = view
        self.context = Context(memory, node, path)
        self.name = name
        self.applied: int | None = None
        self.undo: str | None = None
        self.refused = False  # as what has come since is none
        parameters = name.parameters()
        if rendered is not None:
            self.rendered = rendered
        elif readable:
            self.rendered = view.render(self.context, parameters)
        elif parameters:
            raise Invalid(f":{view.name}: parameters are for reading")

    def took(self, count: int) -> None:
        self.refused = False
        self._take(done=False)

    def flush(self) -> None:
        with self.lock, Remembering(self.memory, every=True):
            if not self.writable or self.applied == len(self.written):
                return
            if self.written or (self.view.empty_write and not self.refused):
                self._take(done=True)

    def touch(self) -> None:
        """touch(1): a write of nothing."""
        with self.lock:
            if self.view.empty_write and self.applied is None:
                self._take(done=True)

    def _take(self, *, done: bool) -> None:
        """Apply what has come, where it is whole. A shell that redirects closes a copy of the handle first, a write of
        nothing: where text means nothing what follows is that same write, and where it is refused that is undone."""
        try:
            since, once = self.applied or 0, self.view.once
            text = self.text(since)
            text = text if (once(text) if callable(once) else once) else self.text()
            complete = done or self.view.check is None or self.view.check(text) is not False
            if done or (complete and len(self.written) - since < _SMALL and self.written.endswith(b"\n")):
                if self.applied != 0 or self.view.check is not None:
                    self._apply(text)
                self.applied = len(self.written)
        except BaseException as e:
            self.refuse()
            if isinstance(e, Invalid) and self.applied == 0 and self.undo is not None:
                self._apply(self.undo)
                self.undo = None
            raise

    def refuse(self) -> None:
        """Forget what has come since text was applied."""
        self.refused = True
        del self.written[self.applied or 0 :]

    def _apply(self, text: str) -> None:
        if self.view.write is None:
            raise BadHandle(f":{self.view.name} cannot be written")
        self.undo = self.view.write(self.context, text)


class PastHandle(VirtualHandle):
    """A file as it was; ``memory`` is of then. Its bytes do not change, so kernels may keep them while it is open."""

    direct = False

    def __init__(self, memory: Memory, node: int) -> None:
        super().__init__(memory, True, False)
        self.node = node
        with memory.reading() as reader:
            self.size = reader.node(node).size
            self.head, self.start = reader.read(node, 0, AT_OPEN), 0  # says whether they are kept

    def read(self, offset: int, length: int) -> bytes:
        stop = min(offset + length, self.size)
        with self.lock, self.memory.reading() as reader:
            try:
                reader.node(self.node)
                if offset < self.start or self.start + len(self.head) < stop:
                    start = offset - offset % PIECE
                    self.head = reader.read(self.node, start, max(PIECE, stop - start))
                    self.start = start
            except NotFound:  # purged since, its bytes no longer kept, or no longer for the asker
                raise Stale() from None
            return self.head[offset - self.start : max(0, stop - self.start)]


class MailHandle(VirtualHandle):
    """A mailbox: each flush that carries unsent bytes sends exactly those, an empty one nothing; what it refuses is not
    sent with the next. Shells ignore what close(2) says, so a message that would be refused is refused when its first
    bytes are written."""

    def __init__(self, memory: Memory, name: bytes) -> None:
        super().__init__(memory, False, True)
        self.name = name
        self.recipient, parameters = paths.parse_mailbox(name)
        self.priority = parameters.pop("priority", "normal")
        self.expires = parameters.pop("expires", None)
        re = parameters.pop("re", None)
        if parameters:
            raise Invalid(f"mailbox parameter {next(iter(parameters))!r}: expected priority, expires or re")
        if self.priority not in PRIORITIES:
            raise Invalid(f"priority {self.priority!r}: expected one of {', '.join(PRIORITIES)}")
        if self.expires is not None:
            mail.parse_duration(self.expires)
        self.re = None if re is None else mail.parse_number(re)
        self.refused = 0  # as what the beginning of this message was (errno),
        self.why = "the beginning of this message was refused"  # for all that a successor knows

    def took(self, count: int) -> None:
        body = bytes(self.written)
        text, whole = codecs.utf_8_decode(body, "replace", False)  # the beginning of a character is none yet
        size = len(text.encode()) + len(body) - whole  # as it is sent: a byte that is no text takes three
        if self.refused:
            raise from_wire(self.refused, self.why, None)  # libraries write again as they close
        try:
            if len(body) == count:
                self.memory.may_tell(self.recipient, size, self.re)
            elif size > (limit := self.memory.around.limits.message_bytes):
                raise OverQuota(too_long(limit))
        except (Denied, Invalid, OverQuota) as e:
            self.refused, self.why = e.code, e.reason  # the rest of it is no message
            raise

    def flush(self) -> None:
        with self.lock, Remembering(self.memory, every=True):
            try:
                if self.written and not self.refused:
                    text = self.text().removesuffix("\n")
                    self.memory.tell(self.recipient, text, priority=self.priority, expires=self.expires, re=self.re)
            finally:  # whoever is told that it could not be sent sends it again
                self.written.clear()
                self.refused = 0


class QuestionHandle(VirtualHandle):
    """/:ask/NAME: what is written is the question, what is read its recall."""

    def __init__(
        self,
        memory: Memory,
        name: bytes,
        readable: bool,
        writable: bool,
        recall: View | None,
        root: Node | None,
        rendered: Rendered | None = None,
    ) -> None:
        """``rendered``: what a predecessor of this process had made of it; nothing is asked then."""
        super().__init__(memory, readable, writable)
        stem, _, query = name.partition(b"?")
        self.name = paths.text(stem)
        self.whole_name = name
        self.asked = 0  # length of what was asked last
        self.rendered = rendered
        if readable and rendered is None and recall is not None and root is not None:
            parameters = paths.parse_query(query)
            with memory.mutex:
                question = memory.questions.get(self.name, "")
            if not question:
                self.rendered = Rendered(b"(no question asked: write it to this file first)\n")
            else:
                self.rendered = recall.render(Context(memory, root, b"/"), {"q": question, **parameters})

    def flush(self) -> None:
        with self.lock:
            if len(self.written) > self.asked:  # a shell closes copies of the handle all day
                ask(self.memory, self.name, self.text().strip())
                self.asked = len(self.written)


def ask(memory: Memory, name: str, question: str) -> None:
    """Keep a question; the oldest of too many is forgotten."""
    with memory.mutex:
        memory.questions.pop(name, None)
        memory.questions[name] = question
        while len(memory.questions) > QUESTIONS_KEPT:
            memory.questions.pop(next(iter(memory.questions)))
