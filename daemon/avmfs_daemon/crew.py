"""Keeping the children alive: every process in the supervisor's selector, from its start to its replacement.

Owns the slots and what happens to them: a child that dies is replaced, one that does not get ready or does not
stop in time is killed, a successor takes a mount over before its predecessor is told to go, and the directory
below a mount is guarded whenever nothing may cover it. Called by the supervisor's loop alone. Knows nothing of
configuration: what a child is told comes from `spec_for`, what else it says goes to `heard`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from avmfs_daemon.children import Entries
from avmfs_daemon.mountpoint import unmount
from avmfs_daemon.slot import STOP_S, Child, Slot
from avmfs_daemon.spec import ChildSpec
from avmfs_daemon.stream import Closed

log = logging.getLogger(__name__)

MESSAGES_PER_S = 500  # more would keep the loop from the other children
HANG_UP_S = 1.0  # for a child to end after its control pipe did

Message = dict[Any, Any]


class Boxes(Protocol):
    def give_box(self, slot: Slot) -> None:
        """Another one: what is mounted next has nothing to do with what was."""
        ...

    def discard(self, box: str) -> None:
        """Close what is in it: the mount whose device that was ends for whoever still uses it."""
        ...


class Crew:
    """`spec_for(slot, control, embedding)` says what a new child is told; `serve(connection, name)` takes our end of
    its embedding pipe; `heard(slot, child, message)` gets every message; `lost(slot)` follows the unwanted end of its
    process, `gone(slot)` the slot's own. In `boxes` lies what processes leave to their successors."""

    def __init__(
        self, selector: selectors.BaseSelector, context: BaseContext, entries: Entries, *,
        spec_for: Callable[[Slot, Connection, Connection], ChildSpec], serve: Callable[[Connection, str], None],
        heard: Callable[[Slot, Child, Message], None], lost: Callable[[Slot], None], gone: Callable[[Slot], None],
        boxes: Boxes,
    ) -> None:  # fmt: skip
        self.slots: list[Slot] = []
        self._selector = selector
        self._context = context
        self._entries = entries
        self._spec_for = spec_for
        self._serve = serve
        self._heard_by = heard
        self._lost = lost
        self._gone = gone
        self._boxes = boxes

    def add(self, slot: Slot) -> None:
        """Keep this slot filled from now on, unless it has failed already."""
        self.slots.append(slot)
        if slot.mountpoint is not None:
            slot.mountpoint.protect()
        if slot.state != "failed":
            self._launch(slot)

    def replace(self, slot: Slot) -> None:
        """Start a successor now; the process that serves ends once that has taken over. Where the successor goes on
        with the mount as it is, the process is simply killed: no client notices. Two must never share a box."""
        if slot.current is not None and slot.box is not None and slot.current.box == slot.box:
            if slot.resumes or slot.current.ready_at is None:
                slot.change("restarting")
                slot.current.kill()
                return
            self._boxes.give_box(slot)
        if slot.current is not None:
            slot.retiring.append(slot.current)
            slot.current = None
        if slot.mountpoint is not None:
            slot.mountpoint.protect()
        slot.change("restarting")
        self._launch(slot)

    def dismiss(self, slot: Slot) -> None:
        """End a slot for good: its mount goes, its directory becomes ordinary once the last process has ended."""
        slot.wanted, slot.retry_at = False, None
        if slot.mountpoint is not None:
            slot.mountpoint.protect()
        self._retire_predecessors(slot)
        if slot.current is not None:
            self._retire(slot, slot.current, detached=False)
        elif not slot.children:
            self._dismantle(slot)

    def finish(self, slots: Iterable[Slot]) -> None:
        """By force: these slots' processes and mounts are gone afterwards. Waits for up to a second each."""
        for slot in list(slots):
            for child in slot.children:
                child.kill()
                child.process.join(1)
                self._died(slot, child)

    def tell(self, slot: Slot, child: Child, message: Message) -> None:
        if child.stream.descriptor < 0:
            return
        try:
            child.stream.send(message)
            self._await_stream(slot, child)
        except Closed as e:
            self._hang_up(slot, child, e)

    def next_deadline(self) -> float:
        """When `tend` has to be called, whatever else happens; infinity for never."""
        moments = [slot.retry_at for slot in self.slots if slot.retry_at is not None]
        return min([*moments, *(child.kill_at for slot in self.slots for child in slot.children)], default=float("inf"))

    def tend(self) -> None:
        """Do what is due: kill who is late, start who was to wait."""
        now = time.monotonic()
        for slot in list(self.slots):
            for child in slot.children:
                if child.kill_at <= now:
                    child.kill_at = now + STOP_S
                    if not child.told_to_stop and child.ready_at is None:
                        child.error = child.error or "did not get ready in time"
                    child.kill()
            if slot.wanted and slot.current is None and slot.retry_at is not None and slot.retry_at <= now:
                self._launch(slot)

    def _launch(self, slot: Slot) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control, control_theirs = self._context.Pipe()
            embedding, embedding_theirs = self._context.Pipe()
            for end in (control, embedding):
                ours.enter_context(end)
            for end in (control_theirs, embedding_theirs):
                theirs.enter_context(end)
            spec = self._spec_for(slot, control_theirs, embedding_theirs)
            try:
                child = slot.start(self._context, self._entries.of(slot.kind), spec, control)
            except (OSError, EOFError) as e:
                log.error("%s: cannot be started: %s", slot.name, e)
                slot.lost(None, f"cannot be started: {e}")
                return
            ours.pop_all()
        if spec.embedding is None:
            embedding.close()
        else:
            self._serve(embedding, slot.name)
        self._selector.register(child.sentinel, selectors.EVENT_READ, lambda mask: self._died(slot, child))
        self._selector.register(
            child.stream.descriptor, selectors.EVENT_READ, lambda mask: self._ready(slot, child, mask)
        )

    def _ready(self, slot: Slot, child: Child, mask: int) -> None:
        """The child's control pipe can be read or written."""
        try:
            if mask & selectors.EVENT_WRITE:
                child.stream.flush()
                self._await_stream(slot, child)
            if mask & selectors.EVENT_READ and child.stream.descriptor >= 0:
                self._listen(slot, child)
        except Closed as e:
            self._hang_up(slot, child, e)

    def _hang_up(self, slot: Slot, child: Child, reason: Closed) -> None:
        """The child's end follows; one that lives on without its pipe could not be told to stop."""
        if child.stream.descriptor < 0:
            return
        self._selector.unregister(child.stream.descriptor)
        child.stream.close()
        if str(reason) != "closed":
            child.error = f"control pipe: {reason}"
        child.kill_at = min(child.kill_at, time.monotonic() + HANG_UP_S)

    def _listen(self, slot: Slot, child: Child) -> None:
        messages = child.stream.read()
        now = int(time.monotonic())
        child.heard = (now, len(messages) + (child.heard[1] if child.heard[0] == now else 0))
        if child.heard[1] > MESSAGES_PER_S:
            raise Closed("too many messages")
        for message in messages:
            if not isinstance(message, dict):
                raise Closed("not a message")
            if "ready" in message and child is slot.current and child.ready_at is None:
                child.kill_at = float("inf")
                slot.became_ready(child)
                self._retire_predecessors(slot)
                if slot.mountpoint is not None:
                    slot.mountpoint.release()
            elif "error" in message:
                child.error = str(message["error"])[:500]
            self._heard_by(slot, child, message)

    def _await_stream(self, slot: Slot, child: Child) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.stream.unsent else 0)
        self._selector.modify(child.stream.descriptor, wanted, lambda mask: self._ready(slot, child, mask))

    def _died(self, slot: Slot, child: Child) -> None:
        self._selector.unregister(child.sentinel)
        if child.stream.descriptor >= 0:
            with contextlib.suppress(Closed):  # its last words
                self._listen(slot, child)
        if child.stream.descriptor >= 0:
            self._selector.unregister(child.stream.descriptor)
        code = child.process.exitcode
        child.bury()
        if child in slot.retiring:
            slot.retiring.remove(child)
            if child.box is not None and child.box != slot.box:
                self._discard(child.box)
        elif child is slot.current:
            if slot.mountpoint is not None:
                slot.mountpoint.protect()
            by_others = code == -signal.SIGKILL and not child.error
            slot.lost(child, child.error or how_it_ended(code), killed=by_others)
            self._lost(slot)
            if not child.told_to_stop:
                log.warning("%s (pid %d) ended: %s", slot.name, child.pid, slot.error)
            self._retire_predecessors(slot)
        if not slot.wanted and not slot.children:
            self._dismantle(slot)
        else:
            self.tend()

    def _retire(self, slot: Slot, child: Child, *, detached: bool) -> None:
        if not child.told_to_stop:
            child.told_to_stop = True
            child.kill_at = min(child.kill_at, time.monotonic() + STOP_S)
            self.tell(slot, child, {"stop": True, "detached": detached})

    def _retire_predecessors(self, slot: Slot) -> None:
        for child in slot.retiring:
            self._retire(slot, child, detached=True)

    def _discard(self, box: str) -> None:
        self._boxes.discard(box)

    def _dismantle(self, slot: Slot) -> None:
        self.slots.remove(slot)
        if slot.mountpoint is not None:
            unmount(slot.mountpoint.path)
            if slot.box is not None:
                self._discard(slot.box)
            slot.mountpoint.close()
            slot.mountpoint = None
        self._gone(slot)


def how_it_ended(code: int | None) -> str:
    """An exit code of multiprocessing, for a person."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
