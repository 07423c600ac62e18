"""The supervisor: a plain loop in one thread that keeps every child alive.

Owns the store's lock, the listening sockets, the mountpoints, the children and the one embedding model. Nothing
else creates, ends or replaces any of them. Signals write a byte; children and the control socket are descriptors
in the same selector; nothing in the loop waits for a peer.

Order of forks and threads: lock, store, sockets, fork server, and only then the first thread (the model's).
Children come from the fork server and have never seen torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import multiprocessing
import os
import secrets
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from avmfs.errors import AvmError, Busy
from avmfs.store import database
from avmfs.store.lock import StoreLock
from avmfs.store.sqlite import SqliteStore, open_attached
from avmfs.store.writer import ANYBODY, proof
from avmfs_config import ConfigError, Mount, Paths, Settings, load_mounts, load_settings
from avmfs_daemon import control, runtime
from avmfs_daemon.children import Entries
from avmfs_daemon.embedding import EmbeddingService, factory_for
from avmfs_daemon.mountpoint import Mountpoint, MountpointError, detach_stale, unmount
from avmfs_daemon.runtime import RuntimeProblem
from avmfs_daemon.slot import STOP_S, Child, Slot
from avmfs_daemon.spec import ChildSpec, Descriptor, Kind, rules_message
from avmfs_daemon.stream import Closed

log = logging.getLogger(__name__)

START_S = 60.0  # for the first readiness of every child; each attempt has its own, shorter limit
RULES_S = 20.0
STORE_LOCK_S = 10.0
"""A writer whose supervisor was killed finishes its commit before it lets go."""


class Supervisor:
    """`run` serves until `stop`, SIGTERM or SIGINT. Raises RuntimeProblem, ConfigError or AvmError if it cannot start.

    `started` is called once every mount is ready or has failed; `entries` are what children run.
    """

    def __init__(
        self, paths: Paths, environ: Mapping[str, str], entries: Entries = Entries(),  # noqa: B008 - immutable
        started: Callable[[list[str]], None] = lambda problems: None,
    ) -> None:  # fmt: skip
        self._paths = paths
        self._environ = environ
        self._entries = entries
        self._started = started
        self._selector = selectors.DefaultSelector()
        self._service = EmbeddingService()
        self._slots: list[Slot] = []
        self._stopping = False
        self._reloads: list[Callable[[dict[str, Any]], None]] = []
        self._reload_wanted = False
        self._rules_pending = False
        self._key = secrets.token_bytes(32)
        self._mounts = load_mounts(paths.mounts_file, environ)
        self._settings = load_settings(paths.config_file, environ)

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            self._take_hold(stack)
            stack.callback(self._end)
            self._start_all()
            while not self._stopping:
                self._turn(None)
                if self._reload_wanted:
                    self._reload()
            log.info("stopping")

    # Beginning -------------------------------------------------------------------------------------------

    def _take_hold(self, stack: contextlib.ExitStack) -> None:
        """Everything that must be ours alone, in the order in which a second daemon has to notice."""
        directory, database_path = self._paths.runtime_dir, self._paths.database
        runtime.make_directory(directory, traversable=runtime.serves_others(self._settings))
        about = {"pid": os.getpid(), "socket": os.fspath(directory / runtime.DOOR)}
        stack.enter_context(hold(directory / "daemon", 2.0, about))
        self._lock = stack.enter_context(hold(database_path, STORE_LOCK_S, about))
        database.prepare(database_path)
        runtime.clean_up(directory)
        self._listeners = {
            name: stack.enter_context(runtime.listen(directory / name, mode))
            for name, mode in (
                (runtime.WRITER, 0o600), (runtime.DOOR, runtime.door_mode(self._settings)), (runtime.CONTROL, 0o600),
            )
        }  # fmt: skip
        stack.callback(runtime.clean_up, directory)
        self._store: SqliteStore = open_attached(
            database_path, directory / runtime.WRITER, ANYBODY, proof(self._key, ANYBODY)
        )
        stack.callback(self._store.close)
        self._context = start_fork_server(directory)
        stack.callback(stop_fork_server)
        self._catch_signals(stack)
        self._control = control.ControlServer(self._listeners[runtime.CONTROL], self._selector, self._requested)
        stack.callback(self._control.close)

    def _catch_signals(self, stack: contextlib.ExitStack) -> None:
        reading, writing = socket.socketpair()
        for end in (reading, writing):
            end.setblocking(False)
            stack.enter_context(end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, lambda number, frame: None))
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False))
        self._selector.register(reading, selectors.EVENT_READ, lambda mask: self._signalled(reading.recv(256)))

    def _signalled(self, numbers: bytes) -> None:
        if {signal.SIGTERM, signal.SIGINT} & set(numbers):
            self._stopping = True
        elif signal.SIGHUP in numbers:
            self._reload_wanted = True

    def _start_all(self) -> None:
        writer = self._writer = Slot("writer", "writer")
        self._slots = [writer]
        self._launch(writer)
        if not self._turn_until(lambda: writer.settled, START_S) or writer.state == "failed":
            raise RuntimeProblem(f"the store's writer does not start: {writer.error or 'no answer'}")
        self._slots += [Slot("door", "door"), Slot("keeper", "keeper")]
        self._slots += [self._mount_slot(mount) for mount in self._mounts]
        for slot in self._slots[1:]:
            if slot.state != "failed":
                self._launch(slot)
        self._turn_until(lambda: all(slot.settled for slot in self._slots), START_S)
        problems = [f"{slot.name}: {slot.error}" for slot in self._slots if slot.state == "failed"]
        for problem in problems:
            log.error("%s", problem)
        if not self._stopping:
            log.info("ready: %d of %d mounts", self._ready_mounts(), len(self._mounts))
            notify_systemd("READY=1")
            self._started(problems)
        self._load_model()

    def _load_model(self) -> None:
        embedding = self._settings.embedding
        self._service.load(
            factory_for(
                embedding.enabled, embedding.model, embedding.path, embedding.device, embedding.allow_download
            )
        )  # fmt: skip

    def _mount_slot(self, mount: Mount) -> Slot:
        """A slot whose directory is open and guarded; a failed one if the directory cannot be used."""
        name = f"mount {mount.agent_id}"
        try:
            detach_stale(mount.mountpoint)
            directory = Mountpoint.prepare(mount.mountpoint)
        except MountpointError as problem:
            slot = Slot(name, "mount", mount)
            slot.change("failed", str(problem))
            return slot
        slot = Slot(name, "mount", mount, directory)
        self._remember([*self._slots, slot])
        directory.protect()
        return slot

    def _remember(self, slots: Iterable[Slot]) -> None:
        directories = [slot.mountpoint for slot in slots if slot.mountpoint is not None]
        runtime.remember(self._paths.runtime_dir, {directory.path: directory.mode for directory in directories})

    # Children --------------------------------------------------------------------------------------------

    def _launch(self, slot: Slot) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control_end, control_theirs = self._context.Pipe()
            ours.enter_context(control_end)
            theirs.enter_context(control_theirs)
            spec = self._spec(slot, control_theirs)
            if slot.kind != "writer":
                served, asking = self._context.Pipe()
                ours.enter_context(served)
                theirs.enter_context(asking)
                spec = replace(spec, embedding=asking)
            try:
                child = slot.start(self._context, self._entries.of(slot.kind), spec, control_end)
            except (OSError, EOFError) as e:
                log.error("%s: cannot be started: %s", slot.name, e)
                slot.lost(None, f"cannot be started: {e}")
                return
            ours.pop_all()
        if slot.kind != "writer":
            self._service.serve(served, slot.name)
        self._selector.register(child.sentinel, selectors.EVENT_READ, lambda mask: self._died(slot, child))
        self._selector.register(
            child.stream.descriptor, selectors.EVENT_READ, lambda mask: self._heard(slot, child, mask)
        )

    def _spec(self, slot: Slot, control_end: Any) -> ChildSpec:
        agent = slot.mount.agent_id if slot.mount else ANYBODY
        spec = ChildSpec(
            name=slot.name, kind=slot.kind, database=self._paths.database, runtime_dir=self._paths.runtime_dir,
            settings=self._settings, speaks_for=agent, proof=proof(self._key, agent), agent=agent, operator=False,
            control=control_end, mount=slot.mount,
            restore_mode=slot.mountpoint.restore_mode if slot.mountpoint else None,
        )  # fmt: skip
        if slot.kind == "writer":
            lock, first = Descriptor(self._lock), slot.starts == 0
            return replace(spec, listener=self._listeners[runtime.WRITER], key=self._key, lock=lock, first=first)
        if slot.kind == "door":
            return replace(spec, listener=self._listeners[runtime.DOOR])
        return spec

    def _heard(self, slot: Slot, child: Child, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                child.stream.flush()
                self._await_stream(slot, child)
            messages = child.stream.read() if mask & selectors.EVENT_READ else []
        except Closed as e:
            # Its end follows; one that lives on without its pipe could not be told to stop.
            self._selector.unregister(child.stream.descriptor)
            child.stream.close()
            if str(e) != "closed":
                log.error("%s: %s", slot.name, e)
            child.kill_at = min(child.kill_at, time.monotonic() + 1.0)
            return
        for message in messages:
            self._obey(slot, child, message if isinstance(message, dict) else {})

    def _obey(self, slot: Slot, child: Child, message: dict[Any, Any]) -> None:
        if "ready" in message and child is slot.current and child.ready_at is None:
            child.kill_at = float("inf")
            slot.became_ready(child)
            self._retire_predecessors(slot)
            if slot.mountpoint is not None:
                slot.mountpoint.release()
            if slot.kind == "writer":
                self._rules_pending = False
        elif "error" in message:
            child.error = str(message["error"])[:500]
        elif message.get("done") == "rules":
            self._rules_pending = False
        elif "ask" in message and slot.kind != "writer":
            number = message["ask"]
            self._asked(message.get("do"), lambda answer: self._tell(slot, child, {"answer": number, **answer}))

    def _asked(self, operation: Any, answer: Callable[[dict[str, Any]], None]) -> None:
        if operation == "status":
            answer({"value": self.status()})
        else:
            answer({"error": f"unknown question {operation!r}"})

    def _tell(self, slot: Slot, child: Child, message: dict[str, Any]) -> None:
        if child.stream.descriptor < 0:
            return
        with contextlib.suppress(Closed):  # reading notices as well
            child.stream.send(message)
            self._await_stream(slot, child)

    def _await_stream(self, slot: Slot, child: Child) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.stream.unsent else 0)
        self._selector.modify(child.stream.descriptor, wanted, lambda mask: self._heard(slot, child, mask))

    def _died(self, slot: Slot, child: Child) -> None:
        self._selector.unregister(child.sentinel)
        if child.stream.descriptor >= 0:
            with contextlib.suppress(Closed):  # its last words
                for message in child.stream.read():
                    self._obey(slot, child, message if isinstance(message, dict) else {})
            self._selector.unregister(child.stream.descriptor)
        code = child.process.exitcode
        child.bury()
        if child in slot.retiring:
            slot.retiring.remove(child)
        elif child is slot.current:
            if slot.mountpoint is not None:
                slot.mountpoint.protect()
            slot.lost(child, child.error or _how_it_ended(code))
            if slot.wanted and not child.told_to_stop:
                log.warning("%s (pid %d) ended: %s", slot.name, child.pid, slot.error)
            self._retire_predecessors(slot)
        if not slot.wanted and not slot.children:
            self._dismantle(slot)
        elif slot.current is None and slot.wanted and slot.retry_at is not None and slot.retry_at <= time.monotonic():
            self._launch(slot)

    def _retire(self, slot: Slot, child: Child, *, detached: bool) -> None:
        if not child.told_to_stop:
            child.told_to_stop = True
            child.kill_at = min(child.kill_at, time.monotonic() + STOP_S)
            self._tell(slot, child, {"stop": True, "detached": detached})

    def _retire_predecessors(self, slot: Slot) -> None:
        for child in slot.retiring:
            self._retire(slot, child, detached=True)

    def _dismiss(self, slot: Slot) -> None:
        """End a slot for good: its mount goes, its directory becomes ordinary once the last process has ended."""
        slot.wanted, slot.retry_at = False, None
        if slot.mountpoint is not None:
            slot.mountpoint.protect()
        self._retire_predecessors(slot)
        if slot.current is not None:
            self._retire(slot, slot.current, detached=False)
        elif not slot.children:
            self._dismantle(slot)

    def _dismantle(self, slot: Slot) -> None:
        self._slots.remove(slot)
        if slot.mountpoint is not None:
            unmount(slot.mountpoint.path)
            slot.mountpoint.close()
            slot.mountpoint = None
            self._remember(self._slots)

    # The loop --------------------------------------------------------------------------------------------

    def _turn(self, until: float | None) -> None:
        """Wait for something to happen, at most until then, and deal with it."""
        due = [until, self._control.next_deadline()]
        for slot in self._slots:
            due += [slot.retry_at, *(child.kill_at for child in slot.children)]
        soonest = min((moment for moment in due if moment is not None), default=float("inf"))
        timeout = None if soonest == float("inf") else max(0.0, soonest - time.monotonic())
        for key, mask in self._selector.select(timeout):
            # An event of this round may have closed what a later one is about.
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        now = time.monotonic()
        self._control.expire(now)
        for slot in list(self._slots):
            for child in slot.children:
                if child.kill_at <= now:
                    child.kill_at = now + STOP_S
                    child.error = child.error or ("" if child.told_to_stop else "did not get ready in time")
                    child.kill()
            if slot.retry_at is not None and slot.retry_at <= now and slot.current is None and not self._stopping:
                self._launch(slot)

    def _turn_until(self, condition: Callable[[], bool], limit_s: float, *, stopping: bool = False) -> bool:
        """Turn until the condition holds, the time is over, or a stop is wanted (unless this is part of it)."""
        deadline = time.monotonic() + limit_s
        while not condition() and time.monotonic() < deadline and (stopping or not self._stopping):
            self._turn(deadline)
        return condition()

    def _end(self) -> None:
        """Mounts, door and keeper go first, the writer last: what a release still commits gets in."""
        notify_systemd("STOPPING=1")
        self._stopping = True
        self._service.load(None)
        others: list[Kind] = ["mount", "door", "keeper"]
        for kinds in (others, ["writer"]):
            group = [slot for slot in self._slots if slot.kind in kinds]
            for slot in group:
                self._dismiss(slot)
            self._turn_until(lambda group=group: not any(slot in self._slots for slot in group), STOP_S + 1, stopping=True)  # type: ignore[misc]
            for slot in group:
                for child in slot.children:
                    child.kill()
                    child.process.join(1)
                    self._died(slot, child)

    # Requests --------------------------------------------------------------------------------------------

    def _requested(self, operation: str, peer: control.Peer) -> None:
        if operation == "status":
            peer.reply({"ok": self.status()})
        elif operation == "stop":
            peer.deadline = float("inf")  # closed by our end: that is what the client waits for
            peer.reply({"ok": {"pid": os.getpid()}})
            self._stopping = True
        elif operation == "reload":
            self._reloads.append(peer.reply)
            self._reload_wanted = True
        else:
            peer.reply({"error": f"unknown request {operation!r}"})

    def status(self) -> dict[str, Any]:
        """What `avm-daemon status --json` prints."""
        store: dict[str, Any] = {"path": os.fspath(self._paths.database)}
        try:
            store["waiting_lexical"], store["waiting_semantic"] = self._store.queue_lengths()
        except AvmError as e:
            store["error"] = str(e)
        writer = next((slot.current for slot in self._slots if slot.kind == "writer"), None)
        return {
            "pid": os.getpid(),
            "version": version(),
            "mounts": [slot.status() for slot in self._slots if slot.mount is not None and slot.wanted],
            "embedding": self._service.status(),
            "store": store | {"writer_pid": writer.pid if writer else None},
            "isolation": "by uid" if runtime.serves_others(self._settings) else "advisory",
        }

    def _ready_mounts(self) -> int:
        return sum(slot.kind == "mount" and slot.state == "ready" for slot in self._slots)

    def _reload(self) -> None:
        self._reload_wanted, replies = False, self._reloads
        self._reloads = []
        answer: dict[str, Any]
        try:
            mounts = load_mounts(self._paths.mounts_file, self._environ)
            settings = load_settings(self._paths.config_file, self._environ)
        except ConfigError as problem:
            log.error("the configuration stays as it was: %s", problem)
            answer = {"error": str(problem)}
        else:
            answer = {"ok": self._change(mounts, settings)}
        for reply in replies:
            reply(answer)

    def _change(self, mounts: tuple[Mount, ...], settings: Settings) -> dict[str, Any]:
        """Bring what runs to another configuration; returns how many mounts were added, removed, restarted."""
        before, self._settings, self._mounts = self._settings, settings, mounts
        directory = self._paths.runtime_dir
        directory.chmod(0o711 if runtime.serves_others(settings) else 0o700)
        (directory / runtime.DOOR).chmod(runtime.door_mode(settings))
        if rules_message(settings) != rules_message(before):
            # Scopes are folded anew before any mount acts on the rest of the new settings.
            self._rules_pending = True
            if self._writer.current is not None:
                self._tell(self._writer, self._writer.current, {"rules": rules_message(settings)})
            self._turn_until(lambda: not self._rules_pending, RULES_S)
        if settings.embedding != before.embedding:
            self._load_model()
        # Rules live in the writer; with anything else children are started anew.
        same = replace(settings, permissions=before.permissions, default_access=before.default_access) == before
        wanted = {(mount.agent_id, mount.mountpoint): mount for mount in mounts}
        running = {(slot.mount.agent_id, slot.mount.mountpoint): slot for slot in self._slots if slot.mount}
        removed = [slot for place, slot in running.items() if place not in wanted]
        for slot in removed:
            self._dismiss(slot)
        self._turn_until(lambda: not any(slot in self._slots for slot in removed), STOP_S + 1)
        restarted = 0
        for place, slot in running.items():
            mount = wanted.get(place)
            if mount is None:
                continue
            if slot.mountpoint is None:  # it had failed before anything was started
                self._slots.remove(slot)
                del wanted[place]
                self._add(mount)
            elif mount != slot.mount or not same:
                slot.mount = mount
                self._replace(slot)
                restarted += 1
        added = [mount for place, mount in wanted.items() if place not in running]
        for mount in added:
            self._add(mount)
        if not same:
            for slot in self._slots:
                if slot.kind in ("door", "keeper"):
                    self._replace(slot)
        self._turn_until(lambda: all(slot.settled for slot in self._slots), control.ANSWER_S / 2)
        problems = [f"{slot.name}: {slot.error}" for slot in self._slots if slot.state == "failed"]
        log.info("reloaded: %d added, %d removed, %d restarted", len(added), len(removed), restarted)
        return {"added": len(added), "removed": len(removed), "restarted": restarted, "problems": problems}

    def _add(self, mount: Mount) -> None:
        slot = self._mount_slot(mount)
        self._slots.append(slot)
        if slot.state != "failed":
            self._launch(slot)

    def _replace(self, slot: Slot) -> None:
        """Start a successor now; the process that serves ends once that has taken over."""
        if slot.current is not None:
            slot.retiring.append(slot.current)
            slot.current = None
        if slot.mountpoint is not None:
            slot.mountpoint.protect()
        slot.change("restarting")
        self._launch(slot)


@contextlib.contextmanager
def hold(path: Path, wait_s: float, about: dict[str, Any]) -> Any:
    """The lock beside `path`, for as long as the block lasts. Raises RuntimeProblem naming who has it."""
    lock = StoreLock(path)
    try:
        descriptor = lock.acquire(wait_s, about)
    except Busy as e:
        raise RuntimeProblem(str(e)) from None
    try:
        yield descriptor
    finally:
        lock.release(descriptor)


def start_fork_server(directory: Path) -> Any:
    """The context that children come from. Its server is running, with the light modules loaded."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")  # system libraries of macOS do not survive a fork
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["avmfs_daemon.preload"])
    before = tempfile.tempdir
    if len(os.fsencode(directory)) < runtime.LONGEST_SOCKET_PATH - 40:
        tempfile.tempdir = os.fspath(directory)  # its socket: where nobody else comes, and clean_up finds it
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = before
    return context


def stop_fork_server() -> None:
    """Nothing of ours outlives us. The standard library stops both at exit of the process, without waiting."""
    helpers: tuple[Any, ...] = (forkserver._forkserver, resource_tracker._resource_tracker)
    for helper in helpers:
        with contextlib.suppress(AttributeError, OSError):
            helper._stop()
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    if (left := config.pop("tempdir", None)) is not None:
        shutil.rmtree(left, ignore_errors=True)


def notify_systemd(state: str) -> None:
    """sd_notify(3), when systemd started us."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(state.encode())


def version() -> str:
    try:
        return importlib.metadata.version("avmfs")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
