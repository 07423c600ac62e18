"""Keeping the children alive: every process in the supervisor's selector, from its start to its replacement.

Owns the list of children and what happens to them: a process that dies is replaced, one that does not get ready or does
not stop in time is killed, a successor takes a mount over before its predecessor is told to go, and the directory below
a mount is guarded whenever nothing may cover it. Called by the supervisor's loop alone. Knows nothing of configuration:
what a child is told comes from `spec_for`, what else it says goes to `heard`.
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

from avmfs_daemon.child import STOP_S, Child, ChildProcess
from avmfs_daemon.child_spec import ChildSpec
from avmfs_daemon.entrypoints import Entries
from avmfs_daemon.framed_stream import Closed
from avmfs_daemon.mountpoint import unmount

log = logging.getLogger(__name__)

MESSAGES_PER_S = 500  # more would keep the loop from the other children
QUESTION = 5  # messages: an answer is the state of every child, and an honest one asks 20 times a second of a kind
UNKNOWN = 255  # multiprocessing's code, and none of our children's: the fork server ended, and with it this child
HANG_UP_S = 1.0  # for a child to end after its control pipe did

Message = dict[Any, Any]


class FdStoreEntries(Protocol):
    def renew_fd_entry(self, child: Child) -> None:
        """Another one: what is mounted next has nothing to do with what was."""
        ...

    def discard(self, fd_entry: str) -> None:
        """Close what is in it: the mount whose device that was ends for whoever still uses it."""
        ...


class Children:
    """`spec_for(child, control, embedding)` says what a new child is told; `serve(connection, name)` takes our end of
    its embedding pipe; `heard(child, process, message)` gets every message; `lost(child)` follows the unwanted end of
    its process, `gone(child)` the child's own. In `fd_entries` lies what processes leave to their successors."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        context: BaseContext,
        entries: Entries,
        *,
        spec_for: Callable[[Child, Connection, Connection], ChildSpec],
        serve: Callable[[Connection, str], None],
        heard: Callable[[Child, ChildProcess, Message], None],
        lost: Callable[[Child], None],
        gone: Callable[[Child], None],
        fd_entries: FdStoreEntries,
    ) -> None:
        self.all: list[Child] = []
        self._selector = selector
        self._context = context
        self._entries = entries
        self._spec_for = spec_for
        self._serve = serve
        self._heard_by = heard
        self._lost = lost
        self._gone = gone
        self._fd_entries = fd_entries
        self._halted = False

    def add(self, child: Child) -> None:
        """Keep this child running from now on, unless it has failed already."""
        self.all.append(child)
        if child.mountpoint is not None:
            child.mountpoint.protect()
        if child.state != "failed":
            self._launch(child)

    def replace(self, child: Child) -> None:
        """Start a successor now; the process that serves ends once that has taken over. Where the successor goes on
        with the mount as it is, the process is simply killed: no client notices. Two must never share an entry of the
        fd store, nor write.
        """
        if child.kind == "writer":
            if child.current is not None:
                child.change("restarting")
                self._retire(child.current, detached=False)
            return
        if child.current is not None and child.fd_entry is not None and child.current.fd_entry == child.fd_entry:
            if child.resumes or child.current.ready_at is None:
                child.change("restarting")
                child.current.kill()
                return
            self._fd_entries.renew_fd_entry(child)
        if child.current is not None:
            child.retiring.append(child.current)
            child.current = None
        if child.mountpoint is not None:
            child.mountpoint.protect()
        child.change("restarting")
        self._launch(child)

    def dismiss(self, child: Child) -> None:
        """End a child for good: its mount goes, its directory becomes ordinary once the last process has ended."""
        child.wanted, child.retry_at = False, None
        if child.mountpoint is not None:
            child.mountpoint.protect()
        self._retire_predecessors(child)
        if child.current is not None:
            self._retire(child.current, detached=False)
        elif not child.processes:
            self._dismantle(child)

    def finish(self, children: Iterable[Child]) -> None:
        """By force: these children's processes and mounts are gone afterwards. Waits for up to a second each."""
        for child in list(children):
            for process in child.processes:
                process.kill()
                process.handle.join(1)
                self._died(child, process)

    def halt(self, children: Iterable[Child]) -> None:
        """These children's processes are gone afterwards, and none is started until `go_on`. Waits for up to a second
        each."""
        self._halted = True
        self.finish(children)

    def go_on(self) -> None:
        if self._halted:
            self._halted = False
            self.tend()

    def settled(self) -> bool:
        """Return whether each child serves, or has shown that it does not for now."""
        return all(child.settled for child in self.all)

    def retiring(self) -> bool:
        """Return whether a process still ends whose successor serves already. Not of mounts, where nothing new comes to
        it, nor one that lingers, and begins nothing more."""
        serving = (child for child in self.all if child.mount is None and child.state == "ready")
        return any(not process.lingers for child in serving for process in child.retiring)

    def failed(self) -> str:
        """Which have failed, and why, but for those of which status tells elsewhere."""
        kinds = ("index", "door", "keeper", "live")
        return "; ".join(
            f"{each.name}: {each.error}" for each in self.all if each.state == "failed" and each.kind in kinds
        )

    def next_deadline(self) -> float:
        """When `tend` has to be called, whatever else happens; infinity for never."""
        moments = [child.retry_at for child in self.all if child.retry_at is not None and not self._halted]
        return min(
            [*moments, *(process.kill_at for child in self.all for process in child.processes)], default=float("inf")
        )

    def tend(self) -> None:
        """Do what is due: kill who is late, start who was to wait."""
        now = time.monotonic()
        for child in list(self.all):
            for process in child.processes:
                if process.kill_at > now:
                    continue
                starting = not process.told_to_stop and process.ready_at is None and process.stream.descriptor >= 0
                if starting and process.goes_on(now):
                    continue
                process.kill_at = now + STOP_S
                if not process.told_to_stop and process.ready_at is None:
                    process.error = process.error or "did not get ready in time"
                process.kill()
            if child.wanted and child.current is None and child.retry_at is not None and child.retry_at <= now:
                self._launch(child)

    def _launch(self, child: Child) -> None:
        if self._halted:
            child.retry_at = time.monotonic()
            return
        try:
            with contextlib.ExitStack() as ends:  # of which the child has its own by then
                control, control_theirs = map(ends.enter_context, self._context.Pipe())
                embedding, embedding_theirs = self._context.Pipe()
                ends.enter_context(embedding_theirs)
                spec = self._spec_for(child, control_theirs, embedding_theirs)
                if spec.embedding is None:
                    embedding.close()
                else:
                    self._serve(embedding, child.name)
                process = child.start(self._context, self._entries.of(child.kind), spec, control)
            process.stream.attend(
                self._selector,
                lambda messages: self._listen(child, process, messages),
                lambda reason: self._hang_up(process, reason),
            )
            self._selector.register(process.sentinel, selectors.EVENT_READ, lambda mask: self._died(child, process))
        except (OSError, EOFError, RuntimeError) as e:  # no descriptor, no process, no thread
            log.error("%s: cannot be started: %s", child.name, e)
            if child.current is not None:
                child.current.bury()
            child.lost(None, f"cannot be started: {e}")

    def _hang_up(self, process: ChildProcess, reason: Closed) -> None:
        """The child's end follows; one that lives on without its pipe could not be told to stop."""
        if process.stream.descriptor < 0:
            return
        process.stream.close()
        if str(reason) != "closed":
            process.error = f"control pipe: {reason}"
        process.kill_at = min(process.kill_at, time.monotonic() + HANG_UP_S)

    def _listen(self, child: Child, process: ChildProcess, messages: list[Any]) -> None:
        now = int(time.monotonic())
        weight = sum(QUESTION if isinstance(message, dict) and "ask" in message else 1 for message in messages)
        process.heard = (now, weight + (process.heard[1] if process.heard[0] == now else 0))
        if process.heard[1] > MESSAGES_PER_S:
            raise Closed("too many messages")
        for message in messages:
            if not isinstance(message, dict):
                raise Closed("not a message")
            if "ready" in message and process is child.current and process.ready_at is None:
                process.kill_at = float("inf")
                child.became_ready(process)
                self._retire_predecessors(child)
                if child.mountpoint is not None:
                    child.mountpoint.release()
            elif "lingers" in message and process in child.retiring and process.told_to_stop:
                process.lingers = True
                process.kill_at = time.monotonic() + float(message["lingers"]) + STOP_S
            elif "error" in message:
                process.error = str(message["error"])[:500]
            self._heard_by(child, process, message)

    def _died(self, child: Child, process: ChildProcess) -> None:
        self._selector.unregister(process.sentinel)
        if process.stream.descriptor >= 0:
            with contextlib.suppress(Closed):  # its last words
                self._listen(child, process, process.stream.read())
        code = process.handle.exitcode
        process.bury()
        if process in child.retiring:
            child.retiring.remove(process)
            if process.fd_entry is not None and process.fd_entry != child.fd_entry:
                self._fd_entries.discard(process.fd_entry)
        elif process is child.current:
            if child.mountpoint is not None:
                child.mountpoint.protect()
            by_others = code in (-signal.SIGKILL, UNKNOWN) and not process.error
            child.lost(process, process.error or how_it_ended(code), killed=by_others)
            self._lost(child)
            if not process.told_to_stop:
                log.warning("%s (pid %d) ended: %s", child.name, process.pid, child.error)
            self._retire_predecessors(child)
        if not child.wanted and not child.processes:
            self._dismantle(child)
        else:
            self.tend()

    def _retire(self, process: ChildProcess, *, detached: bool) -> None:
        if not process.told_to_stop:
            process.told_to_stop = True
            process.kill_at = min(process.kill_at, time.monotonic() + STOP_S)
            process.stream.tell({"stop": True, "detached": detached})

    def _retire_predecessors(self, child: Child) -> None:
        for process in child.retiring:
            self._retire(process, detached=True)

    def _dismantle(self, child: Child) -> None:
        self.all.remove(child)
        if child.mountpoint is not None:
            unmount(child.mountpoint.path)
            if child.fd_entry is not None:
                self._fd_entries.discard(child.fd_entry)
            child.mountpoint.close()
            child.mountpoint = None
        self._gone(child)


def how_it_ended(code: int | None) -> str:
    """An exit code of multiprocessing, for a person."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
