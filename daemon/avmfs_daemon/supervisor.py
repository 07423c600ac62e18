"""The supervisor: a plain loop in one thread that keeps the daemon whole.

Owns the store's lock, the listening sockets, the mountpoints, the configuration in force and the one embedding
model; the crew owns the children. Signals write a byte; children and the control socket are descriptors in the
same selector; nothing in the loop waits for a peer.

Order of forks and threads: locks, store, sockets, fork server, and only then the first thread (the model's).
Children come from the fork server and have never seen torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from avmfs_config import ConfigError, Mount, Paths, Settings, isolation, load_mounts, load_settings

from avmfs.errors import AvmError
from avmfs.store import database
from avmfs.store.peers import proof
from avmfs.store.sqlite import open_attached
from avmfs.store.writer import ANYBODY
from avmfs_daemon import control, forking, postroom, runtime
from avmfs_daemon.children import Entries
from avmfs_daemon.crew import Crew
from avmfs_daemon.embedding import EmbeddingService, factory_for
from avmfs_daemon.legacy import Legacy
from avmfs_daemon.mountpoint import Mountpoint, MountpointError
from avmfs_daemon.notify import from_environment
from avmfs_daemon.runtime import RuntimeProblem
from avmfs_daemon.slot import ABOUT, STOP_S, Child, Slot
from avmfs_daemon.spec import ChildSpec, Descriptor, rules_message

log = logging.getLogger(__name__)

START_S = 60.0  # for the first readiness of every child; each attempt has its own, shorter limit
RELOAD_S = 15.0
RULES_S = 20.0
STORE_LOCK_S = 10.0  # a writer whose supervisor was killed finishes its commit before it lets go


class Supervisor:
    """`run` serves until SIGTERM, SIGINT or a stop request. Raises RuntimeProblem, ConfigError or AvmError when it
    cannot start.

    `started` is called with what went wrong once every mount is ready or has failed; `entries` are what children
    run.
    """

    def __init__(
        self, paths: Paths, environ: Mapping[str, str], entries: Entries, started: Callable[[list[str]], None]
    ) -> None:
        self._paths = paths
        self._environ = environ
        self._entries = entries
        self._started = started
        self._selector = selectors.DefaultSelector()
        self._service = EmbeddingService()
        self._notifier = from_environment()
        self._stopping = False
        self._reload_wanted = False
        self._reload_replies: list[Callable[[dict[str, Any]], None]] = []
        self._rules_pending = False
        self._key = secrets.token_bytes(32)
        self._mounts = load_mounts(paths.mounts_file, environ)
        self._settings = isolation.entitled(load_settings(paths.config_file, environ), self._mounts)
        self._figures: dict[str, Any] = {}  # what the index and the keeper last said of their work
        self._to_come = list(self._mounts)  # while starting: mounts that have no slot yet

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            self._take_hold(stack)
            self._legacy.watch(self._selector, lambda: self._crew.slots)
            stack.callback(self._end)
            self._start()
            while not self._stopping:
                self._turn(float("inf"))
                if self._reload_wanted:
                    self._reload()
            log.info("stopping")

    # Beginning and end -------------------------------------------------------------------------------------

    def _take_hold(self, stack: contextlib.ExitStack) -> None:
        """Everything that must be ours alone, in the order in which a second daemon has to notice."""
        directory, path = self._paths.runtime_dir, self._paths.database
        runtime.make_directory(directory, traversable=runtime.serves_others(self._settings))
        about = {"pid": os.getpid(), "socket": os.fspath(directory / runtime.DOOR)}
        stack.enter_context(runtime.hold(directory / "daemon", 0.5, about))
        self._lock = stack.enter_context(runtime.hold(path, STORE_LOCK_S, about))
        database.prepare(path)
        self._legacy = Legacy(directory, self._mounts, path, self._environ)
        stack.callback(self._legacy.end)
        runtime.clean_up(directory, self._legacy.mountpoints, [mount.mountpoint for mount in self._mounts])
        modes = {
            runtime.WRITER: 0o600, runtime.INDEX: 0o600, runtime.CONTROL: 0o600,
            runtime.DOOR: runtime.door_mode(self._settings),
        }  # fmt: skip
        self._listeners = {
            name: stack.enter_context(runtime.listen(directory / name, mode)) for name, mode in modes.items()
        }
        stack.callback(runtime.clean_up, directory)
        self._store = open_attached(path, directory / runtime.WRITER, ANYBODY, proof(self._key, ANYBODY))
        stack.callback(self._store.close)
        context = forking.start(directory, runtime.LONGEST_SOCKET_PATH)
        stack.callback(forking.stop)
        self._catch_signals(stack)
        self._control = control.ControlServer(self._listeners[runtime.CONTROL], self._selector, self._requested)
        stack.callback(self._control.close)
        self._crew = Crew(
            self._selector, context, self._entries, spec_for=self._spec, serve=self._service.serve,
            heard=self._heard, lost=self._lost, gone=lambda slot: self._remember(self._crew.slots),
            boxes=self._legacy,
        )  # fmt: skip

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

    def _start(self) -> None:
        self._writer = Slot("writer", "writer")
        self._crew.add(self._writer)
        self._turn_until(lambda: self._writer.settled, START_S)
        if self._stopping:
            return
        if self._writer.state != "ready":
            raise RuntimeProblem(f"the store's writer does not start: {self._writer.error or 'no answer'}")
        self._crew.add(Slot("index", "index"))
        self._crew.add(Slot("door", "door"))
        self._crew.add(Slot("keeper", "keeper"))
        for mount in self._mounts:
            self._add(mount)
            self._to_come.remove(mount)
        self._turn_until(self._settled, START_S)
        if not self._stopping:
            self._tell_of_ignored()
            problems = self._problems()
            for problem in problems:
                log.error("%s", problem)
            ready = sum(slot.mount is not None and slot.state == "ready" for slot in self._crew.slots)
            log.info("ready: %d of %d mounts", ready, len(self._mounts))
            self._notifier.ready(self._summary())
            self._started(problems)
            self._load_model()

    def _end(self) -> None:
        """Mounts, door and keeper go first, the writer last: what a release still commits gets in."""
        self._notifier.stopping()
        self._stopping = True
        self._service.load(None)
        slots = list(self._crew.slots)
        others = [slot for slot in slots if slot is not self._writer]
        for group in (others, [slot for slot in slots if slot is self._writer]):
            self._dismiss(group)
            self._crew.finish(slot for slot in group if slot in self._crew.slots)

    def _load_model(self) -> None:
        self._service.load(factory_for(self._settings.embedding, self._paths.database.parent / "models"))

    # The loop ----------------------------------------------------------------------------------------------

    def _turn(self, until: float) -> None:
        """Wait for something to happen, at most until then, and deal with it."""
        soonest = min(until, self._control.next_deadline(), self._crew.next_deadline(), self._notifier.next_beat)
        timeout = None if soonest == float("inf") else max(0.0, soonest - time.monotonic())
        for key, mask in self._selector.select(timeout):
            # An event of this round may have closed what a later one is about.
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        self._control.expire(time.monotonic())
        self._notifier.beat(time.monotonic())
        self._crew.tend()

    def _turn_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Turn until the condition holds, the time is over, or a stop was asked for meanwhile."""
        deadline, stopping = time.monotonic() + limit_s, self._stopping
        while not condition() and time.monotonic() < deadline and self._stopping == stopping:
            self._turn(deadline)
        return condition()

    def _settled(self) -> bool:
        return all(slot.settled for slot in self._crew.slots)

    def _summary(self) -> str:
        """One line for `systemctl status`."""
        ready = sum(slot.mount is not None and slot.state == "ready" for slot in self._crew.slots)
        return "; ".join([f"{ready} of {len(self._mounts)} mounts are ready", *self._problems()])

    def _tell_of_ignored(self) -> None:
        for line in self._settings.ignored():
            log.warning("%s", line)

    def _problems(self) -> list[str]:
        return [f"{slot.name}: {slot.error}" for slot in self._crew.slots if slot.state == "failed"]

    # Children ----------------------------------------------------------------------------------------------

    def _spec(self, slot: Slot, control: Connection, embedding: Connection) -> ChildSpec:
        agent = slot.mount.agent_id if slot.mount else ANYBODY
        spec = ChildSpec(
            name=slot.name, kind=slot.kind, database=self._paths.database, runtime_dir=self._paths.runtime_dir,
            settings=self._settings, speaks_for=agent, proof=proof(self._key, agent), agent=agent, operator=False,
            control=control, embedding=embedding, mount=slot.mount, box=slot.box,
            restore_mode=slot.mountpoint.restore_mode if slot.mountpoint else None,
        )  # fmt: skip
        if slot.kind == "writer":
            return replace(
                spec, embedding=None, listener=self._listeners[runtime.WRITER], key=self._key,
                lock=Descriptor(self._lock), first=slot.starts == 0 and not self._legacy.mountpoints,
            )  # fmt: skip
        if slot.kind == "index":
            return replace(spec, listener=self._listeners[runtime.INDEX], key=self._key)
        return replace(spec, listener=self._listeners[runtime.DOOR]) if slot.kind == "door" else spec

    def _heard(self, slot: Slot, child: Child, message: dict[Any, Any]) -> None:
        if slot.mount is not None and child is slot.current and isinstance(said := message.get("mount"), dict):
            slot.about |= {key: str(said[key])[:500] for key in said.keys() & ABOUT}
        if slot.kind == "writer":
            if "ready" in message or message.get("done") == "rules":
                self._rules_pending = False
        elif "figures" in message and slot.kind in ("index", "keeper"):
            self._figures[str(message.get("of", slot.kind))] = message["figures"]
        elif "ask" in message:
            answer: dict[str, Any] = {"error": f"unknown question {message.get('do')!r}"}
            if message.get("do") == "status":
                answer = {"value": self.status()}
            elif message.get("do") == "open" and slot.kind == "keeper":
                answer = {"value": self._legacy.open_among(self._crew.slots, message["arguments"]["nodes"])}
            self._crew.tell(slot, child, {"answer": message["ask"], **answer})

    def _lost(self, slot: Slot) -> None:
        if slot.kind == "writer":
            self._legacy.forget_cached(self._crew.slots)
        elif slot.hopeless:
            self._legacy.give_up(slot)

    def _add(self, mount: Mount) -> None:
        """A slot whose directory is open and guarded; a failed one if the directory cannot be used."""
        slot = Slot(f"mount {mount.agent_id}", "mount", mount)
        if not self._legacy.bequeath(slot):
            try:
                slot.mountpoint = Mountpoint.prepare(mount.mountpoint, for_others=mount.uid not in (None, os.geteuid()))
            except MountpointError as problem:
                slot.change("failed", str(problem))
            else:
                self._legacy.give_box(slot)
        if slot.mountpoint is not None:
            self._remember([*self._crew.slots, slot])
        self._crew.add(slot)

    def _remember(self, slots: Iterable[Slot]) -> None:
        directories = [slot.mountpoint for slot in slots if slot.mountpoint is not None]
        runtime.remember(self._paths.runtime_dir, {directory.path: directory.mode for directory in directories})

    def _dismiss(self, slots: list[Slot]) -> None:
        for slot in slots:
            self._crew.dismiss(slot)
        self._turn_until(lambda: not any(slot in self._crew.slots for slot in slots), STOP_S + 0.5)

    # Requests ----------------------------------------------------------------------------------------------

    def _requested(self, operation: str, peer: control.Peer) -> None:
        if operation == "status":
            peer.reply({"ok": self.status()})
        elif operation == "stop":
            peer.reply_and_stay({"ok": {"pid": os.getpid()}})
            self._stopping = True
        elif operation == "reload":
            self._reload_replies.append(peer.reply)
            self._reload_wanted = True
        else:
            peer.reply({"error": f"unknown request {operation!r}"})

    def status(self) -> dict[str, Any]:
        """What `avm-daemon status --json` prints."""
        store: dict[str, Any] = {"path": os.fspath(self._paths.database)}
        unread: dict[str, int] = {}
        try:
            unread = postroom.unread(self._store)
            store["waiting_lexical"], store["waiting_semantic"] = self._store.queue_lengths()
        except AvmError as e:
            store["error"] = str(e)
        # Whoever waits until all mounts are ready must not find none.
        to_come = [Slot(f"mount {mount.agent_id}", "mount", mount) for mount in self._to_come]
        store["writer_pid"] = self._writer.current.pid if self._writer.current else None
        store["writer_state"] = self._writer.state
        return {
            "pid": os.getpid(),
            "version": importlib.metadata.version("avmfs"),
            "mounts": [
                slot.status() | {"unread": unread.get(slot.mount.agent_id, 0)}
                for slot in [*self._crew.slots, *to_come]
                if slot.mount is not None and slot.wanted
            ],
            "embedding": self._service.status(),
            "index": self._index_status(),
            "gossip": self._figures.get("gossip", {"state": "starting"}),
            "store": store,
            "outbox": self._figures.get("outbox", {}),
            "holder_pid": self._legacy.holder_pid,
        } | isolation.status(self._mounts, self._settings, os.geteuid())

    def _index_status(self) -> dict[str, Any]:
        slot = next((slot for slot in self._crew.slots if slot.kind == "index"), None)
        status: dict[str, Any] = {
            "state": "starting" if slot is None else slot.state,
            "pid": None if slot is None or slot.current is None else slot.current.pid,
            "embedding": self._figures.get("keeper", {}),
        }
        return status | (self._figures.get("index", {}) if status["pid"] is not None else {})

    def _reload(self) -> None:
        replies, self._reload_replies, self._reload_wanted = self._reload_replies, [], False
        answer: dict[str, Any]
        self._notifier.reloading()
        try:
            mounts = load_mounts(self._paths.mounts_file, self._environ)
            settings = isolation.entitled(load_settings(self._paths.config_file, self._environ), mounts)
        except ConfigError as problem:
            log.error("the configuration stays as it was: %s", problem)
            answer = {"error": str(problem)}
        else:
            answer = {"ok": self._change(mounts, settings)}
        self._notifier.ready(self._summary() + (f"; {answer['error']}" if "error" in answer else ""))
        for reply in replies:
            reply(answer)

    def _change(self, mounts: tuple[Mount, ...], settings: Settings) -> dict[str, Any]:
        """Bring what runs to another configuration; how many mounts were added, removed and restarted."""
        before, self._settings, self._mounts = self._settings, settings, mounts
        self._tell_of_ignored()
        self._change_rules(before)
        if settings.embedding != before.embedding:
            self._load_model()
        running = [slot for slot in self._crew.slots if slot.mount is not None]
        wanted = {_place(mount): mount for mount in mounts}
        places = {_place(slot.mount) for slot in running if slot.mount}
        counts = {"added": len(wanted.keys() - places), "removed": len(places - wanted.keys())}
        # One whose directory could not be used starts from the beginning, as if it were new.
        kept = [slot for slot in running if slot.mount and _place(slot.mount) in wanted and slot.mountpoint is not None]
        self._dismiss([slot for slot in running if slot not in kept])
        for slot in kept:
            assert slot.mount is not None
            slot.stale = wanted[_place(slot.mount)] != slot.mount
            slot.mount = wanted.pop(_place(slot.mount))
            if slot.stale:  # what a mount can do is fixed when it is made
                self._legacy.give_box(slot)
        # Rules live in the writer. Whatever else changed, children take it in by starting anew.
        if settings.apart_from_rules() != before.apart_from_rules():
            for slot in self._crew.slots:
                slot.stale = slot.kind != "writer"
        restarted = [slot for slot in self._crew.slots if slot.stale]
        for slot in restarted:
            self._crew.replace(slot)
        for mount in wanted.values():
            self._add(mount)
        self._turn_until(self._settled, RELOAD_S)
        counts["restarted"] = sum(slot.mount is not None for slot in restarted)
        log.info("reloaded; mounts: %s", ", ".join(f"{count} {what}" for what, count in counts.items()))
        return {**counts, "problems": self._problems()}

    def _change_rules(self, before: Settings) -> None:
        """Scopes are folded anew before any mount acts on the rest of the new settings."""
        settings, directory = self._settings, self._paths.runtime_dir
        directory.chmod(0o711 if runtime.serves_others(settings) else 0o700)
        (directory / runtime.DOOR).chmod(runtime.door_mode(settings))
        if rules_message(settings) == rules_message(before):
            return
        self._rules_pending = True  # a writer that starts meanwhile reads the new ones by itself
        if self._writer.current is not None:
            self._crew.tell(self._writer, self._writer.current, {"rules": rules_message(settings)})
        if not self._turn_until(lambda: not self._rules_pending, RULES_S):
            log.error("the writer has not confirmed the new rules")


def _place(mount: Mount) -> tuple[str, str]:
    return mount.agent_id, os.fspath(mount.mountpoint)
