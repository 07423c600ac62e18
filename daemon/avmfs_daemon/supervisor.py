"""The supervisor: a plain loop in one thread that keeps the daemon whole.

Owns the store's lock, the listening sockets, the mountpoints, the configuration in force and the one embedding
model; `Children` owns the processes. Signals write a byte; children and the control socket are descriptors in the
same selector; nothing in the loop waits for a peer.

Order of forks and threads: locks, store, sockets, fork server, and only then the first thread (the model's).
Children come from the fork server and have never seen torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from avmfs_config import ConfigError, Mount, Paths, Settings, isolation, load_mounts, load_settings
from avmfs_config.http import check_tls
from avmfs_config.paths import LONGEST_SOCKET_PATH

from avmfs.agents import anchors, backups, reranking
from avmfs.errors import AvmError, StoreFailed
from avmfs.extras import version_text
from avmfs.logs import log_of_daemon
from avmfs.providers.handler import check_providers
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.schema import database
from avmfs.store.store import open_attached
from avmfs_daemon import control, forkserver, runtime
from avmfs_daemon.child import ABOUT, STOP_S, Child, ChildProcess
from avmfs_daemon.child_spec import ChildSpec, Descriptor
from avmfs_daemon.children import Children
from avmfs_daemon.embedding import EmbeddingService, factory_for
from avmfs_daemon.entrypoints import Entries
from avmfs_daemon.fdstore_client import pid_of_left
from avmfs_daemon.http_service import HttpService
from avmfs_daemon.notify import from_environment
from avmfs_daemon.premises import Premises
from avmfs_daemon.runtime import RuntimeProblem
from avmfs_daemon.takeover import Takeover
from avmfs_daemon.writer_rules import WriterRules

log = logging.getLogger(__name__)

START_S = 60.0  # for the first readiness of every child; each attempt has its own, shorter limit
RELOAD_S = 15.0


class Supervisor:
    """`run` serves until SIGTERM, SIGINT or a stop request. Raises RuntimeProblem, ConfigError or AvmError when it
    cannot start.

    `started` is called with what went wrong once every mount is ready or has failed; children run `entries`. With
    `idle_s` nothing is mounted, and it ends after so many seconds without a request.
    """

    def __init__(
        self,
        paths: Paths,
        environ: Mapping[str, str],
        entries: Entries,
        started: Callable[[list[str]], None],
        idle_s: float | None = None,
    ) -> None:
        self._paths = paths
        self._environ = environ
        self._entries = entries
        self._started = started
        self._selector = selectors.DefaultSelector()
        self._service = EmbeddingService()
        self._notifier = from_environment()
        self._version = version_text()  # of what runs: another one may be installed meanwhile
        self._stopping = self._reload_wanted = False
        self._reload_replies: list[Callable[[dict[str, Any]], None]] = []
        self._key = secrets.token_bytes(32)
        self._idle_s = idle_s
        self._mounts, self._settings = self._configuration()
        self._figures: dict[str, Any] = {"writer": {}}  # what it, the index and the keeper last said of their work
        self._to_come = list(self._mounts)  # while starting: mounts that have no child yet

    def _configuration(self) -> tuple[tuple[Mount, ...], Settings]:
        """What is to be mounted, and the settings. Raises ConfigError."""
        paths = self._paths
        needed = self._idle_s is None or paths.mounts_file.exists()
        mounts = load_mounts(paths.mounts_file, self._environ) if needed else ()
        settings = isolation.entitled(load_settings(paths.config_file, self._environ), mounts)
        check_providers(paths.config_file.name, settings.providers)
        return mounts if self._idle_s is None else (), settings

    def run(self) -> None:
        log_of_daemon("supervisor", as_json=self._settings.log.format == "json")
        with contextlib.ExitStack() as stack:
            self._take_hold(stack)
            self._takeover.watch(self._selector, lambda: self._children.all)
            stack.callback(self._end)
            self._start()
            self._takeover.settle()
            while not self._stopping:
                self._turn(float("inf"))
                if self._reload_wanted:
                    self._reload()
            log.info("stopping")

    # Beginning and end -------------------------------------------------------------------------------------

    def _take_hold(self, stack: contextlib.ExitStack) -> None:
        """Everything that must be ours alone, in the order in which a second daemon has to notice."""
        directory, path = self._paths.runtime_dir, self._paths.database
        self._premises = Premises(
            self._paths,
            self._settings,
            stack,
            lambda: "clean" in self._figures["writer"],
            automatic=self._idle_s is not None,
        )
        # One without mounts would end theirs for good, with all that is open there.
        if self._idle_s is not None and pid_of_left(directory, with_mounts=True):
            raise RuntimeProblem("a killed daemon's mounts wait for avm-daemon start")
        database.prepare(path, anchors.newest(self._settings.audit.anchors or anchors.beside(path)))
        self._takeover = Takeover(directory, None if self._idle_s is not None else self._mounts, path, self._environ)
        stack.callback(self._takeover.end)
        stack.callback(self._takeover.clean_up)
        self._takeover.clean_up()
        writer = directory / runtime.WRITER
        self._takeover.remember([])
        self._premises.open(stack, lambda: open_attached(path, writer, ANYBODY, proof(self._key, ANYBODY)))
        context = forkserver.start(directory, LONGEST_SOCKET_PATH)
        stack.callback(forkserver.stop)
        self._catch_signals(stack)
        self._control = control.ControlServer(self._premises.control, self._selector, self._requested)
        stack.callback(self._control.close)
        self._children = Children(
            self._selector,
            context,
            self._entries,
            spec_for=self._spec,
            serve=self._service.serve,
            heard=self._heard,
            lost=self._lost,
            gone=lambda child: self._takeover.remember(self._children.all),
            fd_entries=self._takeover,
        )
        self._http = HttpService(self._children)
        stack.callback(self._http.close)

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
        self._writer = Child("writer", "writer")
        self._rules = WriterRules(self._writer)
        self._children.add(self._writer)
        self._turn_until(lambda: self._writer.settled, START_S)
        if self._stopping:
            return
        if self._writer.state != "ready":
            raise RuntimeProblem(f"the store's writer does not start: {self._writer.error or 'no answer'}")
        self._children.add(Child("index", "index"))
        self._children.add(Child("door", "door"))
        self._children.add(Child("keeper", "keeper"))
        self._follow_providers()
        self._follow_http()
        for mount in self._mounts:
            self._add(mount)
            self._to_come.remove(mount)
        self._turn_until(self._children.settled, START_S)
        if not self._stopping:
            problems = self._problems()
            for problem in problems:
                log.error("%s", problem)
            ready = sum(child.mount is not None and child.state == "ready" for child in self._children.all)
            log.info("ready: %d of %d mounts", ready, len(self._mounts))
            self._notifier.ready(self._summary())
            self._started(problems)
            self._load_model()
            self._service.reranking.load(reranking.made(self._settings))

    def _end(self) -> None:
        """Mounts, door and keeper go first, the writer last: what a release still commits gets in."""
        self._notifier.stopping()
        self._stopping = True
        self._service.load(None)
        self._service.reranking.load(None)
        children = list(self._children.all)
        others = [child for child in children if child is not self._writer]
        for group in (others, [child for child in children if child is self._writer]):
            self._dismiss(group)
            self._children.finish(child for child in group if child in self._children.all)

    def _load_model(self) -> None:
        self._service.load(factory_for(self._settings.embedding, self._paths.database.parent / "models"))

    # The loop ----------------------------------------------------------------------------------------------

    def _turn(self, until: float) -> None:
        """Wait for something to happen, at most until then, and deal with it."""
        soonest = min(until, self._control.next_deadline(), self._children.next_deadline(), self._notifier.next_beat)
        soonest = min(soonest, self._premises.next_look, self._http.next_try)
        timeout = None if soonest == float("inf") else max(0.0, soonest - time.monotonic())
        events, came = self._selector.select(timeout), time.monotonic()
        for key, mask in events:
            # An event of this round may have closed what a later one is about.
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        self._control.expire(came)  # not by the time now: who asked while a child was started has not been heard yet
        self._notifier.beat(time.monotonic())
        if time.monotonic() >= self._premises.next_look:
            self._premises.attend(self._children, self._renew)
        if time.monotonic() >= self._http.next_try:
            self._follow_http()
        self._children.tend()

    def _turn_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Turn until the condition holds, the time is over, or a stop was asked for meanwhile."""
        deadline, stopping = time.monotonic() + limit_s, self._stopping
        while not condition() and time.monotonic() < deadline and self._stopping == stopping:
            self._turn(deadline)
        return condition()

    def _summary(self) -> str:
        """One line for `systemctl status`."""
        ready = sum(child.mount is not None and child.state == "ready" for child in self._children.all)
        return "; ".join([f"{ready} of {len(self._mounts)} mounts are ready", *self._problems()])

    def _problems(self) -> list[str]:
        failed = [f"{child.name}: {child.error}" for child in self._children.all if child.state == "failed"]
        failed += [f"http: {self._http.problem}"] if self._http.problem else []
        failed += [self._rules.problem] if self._rules.problem else []
        return [self._premises.problem, *failed] if self._premises.problem else failed

    # Children ----------------------------------------------------------------------------------------------

    def _spec(self, child: Child, control: Connection, embedding: Connection) -> ChildSpec:
        agent = child.mount.agent_id if child.mount else ANYBODY
        spec = ChildSpec(
            name=child.name,
            kind=child.kind,
            database=self._paths.database,
            runtime_dir=self._paths.runtime_dir,
            settings=self._settings,
            speaks_for=agent,
            proof=proof(self._key, agent),
            agent=agent,
            operator=False,
            control=control,
            embedding=embedding,
            mount=child.mount,
            fd_entry=child.fd_entry,
            restore_mode=child.mountpoint.restore_mode if child.mountpoint else None,
            listener=self._http.listener if child.kind == "http" else self._premises.listener_of(child.kind),
            idle_s=self._idle_s if child.kind == "door" else None,
        )
        if child.kind == "http":  # also one that nothing but a request has begun
            return replace(spec, embedding=None, settings=replace(spec.settings, http=self._http.settings))
        if child.kind == "writer":
            self._rules.begin(self._settings)
            return replace(
                spec,
                embedding=None,
                key=self._key,
                lock=Descriptor(self._premises.lock),
                first=child.starts == 0 and not self._takeover.mountpoints,
            )
        return replace(spec, key=self._key) if child.kind == "index" else spec

    def _heard(self, child: Child, process: ChildProcess, message: dict[Any, Any]) -> None:
        if child.mount is not None and process is child.current and isinstance(said := message.get("mount"), dict):
            child.about |= {key: str(said[key])[:500] for key in said.keys() & ABOUT}
        if child.kind == "writer" and ("ready" in message or "rules" in message):
            self._rules.heard(message)
        elif "figures" in message and child.kind in ("writer", "index", "keeper"):
            # A writer says at its end that it was clean; of the others a successor has said how it is, perhaps once.
            if child.kind == "writer" or process not in child.retiring:
                self._figures[str(message["of"])] = message["figures"]
        elif "idle" in message and child.kind == "door" and self._idle_s is not None:
            log.info("no request for %g s: ending", self._idle_s)
            self._stopping = True
        elif "admitted" in message and child.kind == "http":
            self._http.admitted(message)
        elif "ask" in message and message.get("do") == "sign_in" and child.kind == "door":
            found = self._http.sign_in(process, message["ask"], message["arguments"])
            if found is not None:
                process.stream.tell({"answer": message["ask"], "value": found})
        elif "ask" in message:
            answer: dict[str, Any] = {"error": f"unknown question {message.get('do')!r}"}
            if message.get("do") in ("status", "warmup"):
                if message["do"] == "warmup" and self._service.status()["state"] == "failed":
                    self._load_model()
                answer = {"value": self.status()}
            elif message.get("do") == "refused" and child.kind == "keeper":
                answer = {"value": self._refused()}
            elif message.get("do") == "open" and child.kind == "keeper":
                answer = {"value": self._takeover.open_among(self._children.all, message["arguments"]["nodes"])}
            process.stream.tell({"answer": message["ask"], **answer})

    def _lost(self, child: Child) -> None:
        if child.kind == "writer":
            if not self._stopping:
                self._premises.attend(self._children, self._renew)  # perhaps it has ended for what is found there
            self._takeover.forget_cached(self._children.all)
        elif child.kind == "http":
            self._http.lost()
        elif child.hopeless:
            self._takeover.give_up(child)

    def _add(self, mount: Mount) -> None:
        child = Child(f"mount {mount.agent_id}", "mount", mount)
        self._takeover.give_directory(child, self._children.all)
        self._children.add(child)

    def _renew(self) -> None:
        """What else lies in the runtime directory."""
        self._control.listen(self._premises.control)
        self._takeover.keep()
        forkserver.keep()
        if self._takeover.noted.displaced():
            self._takeover.remember(self._children.all)

    def _follow_providers(self) -> None:
        """One process fetches for all, while there is anything to fetch."""
        running = [child for child in self._children.all if child.kind == "live" and child.wanted]
        if self._settings.providers and not running:
            self._children.add(Child("live", "live"))
        elif not self._settings.providers:
            self._dismiss(running)

    def _follow_http(self, *, anew: bool = False) -> None:
        if (ending := self._http.follow(self._settings.http, anew=anew)) is not None:
            self._dismiss([ending])

    def _dismiss(self, children: list[Child]) -> None:
        for child in children:
            self._children.dismiss(child)
        self._turn_until(lambda: not any(child in self._children.all for child in children), STOP_S + 0.5)

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
        store: dict[str, Any] = {"path": os.fspath(self._paths.database), **self._figures["writer"]}
        if refused := self._refused():
            store["error"] = refused
        unread: dict[str, int] = {}
        try:
            with self._premises.store.reading(OPERATOR) as reader:
                unread = reader.mail.unread_of_all()
            store["waiting_lexical"], store["waiting_semantic"] = self._premises.store.queue_lengths()
        except AvmError as e:
            store["error"] = str(e)
        # Whoever waits until all mounts are ready must not find none.
        to_come = [Child(f"mount {mount.agent_id}", "mount", mount) for mount in self._to_come]
        store["writer_pid"] = self._writer.current.pid if self._writer.current else None
        store["writer_state"] = "refusing" if refused and self._writer.state == "ready" else self._writer.state
        if self._writer.state == "failed":
            store["error"] = f"no writer: {self._writer.error}"
        return {
            "pid": os.getpid(),
            "version": self._version,
            "mounts": [
                child.status() | {"unread": unread.get(child.mount.agent_id, 0)}
                for child in [*self._children.all, *to_come]
                if child.mount is not None and child.wanted
            ],
            "embedding": self._service.status(),
            "reranker": self._service.reranking.status(),
            "index": self._index_status(),
            "gossip": self._figures.get("gossip", {"state": "starting"}),
            "store": store,
            "http": self._http.status(),
            "outbox": self._figures.get("outbox", {}),
            "cluster": self._figures.get("cluster", {}),
            "consolidation": self._figures.get("consolidation", {}),
            "backup": backups.status(self._paths.database, self._settings.backup, self._figures.get("backup", {})),
            "holder_pid": self._takeover.holder_pid,
            "automatic": self._idle_s is not None,
            "problem": self._premises.problem or self._rules.problem or self._children.failed(),
        } | isolation.status(self._mounts, self._settings, os.geteuid())

    def _refused(self) -> str:
        """Why no change is taken; "" where they are, or where that is not known yet."""
        return str(self._figures["writer"].get("error") or self._figures.get("cluster", {}).get("error", ""))

    def _index_status(self) -> dict[str, Any]:
        child = next((child for child in self._children.all if child.kind == "index"), None)
        status: dict[str, Any] = {
            "state": "starting" if child is None else child.state,
            "pid": None if child is None or child.current is None else child.current.pid,
            "embedding": self._figures.get("keeper", {}),
        }
        return status | (self._figures.get("index", {}) if status["pid"] is not None else {})

    def _reload(self) -> None:
        replies, self._reload_replies, self._reload_wanted = self._reload_replies, [], False
        answer: dict[str, Any]
        self._notifier.reloading()
        try:
            answer = {"ok": self._change(*self._configuration())}
        except (ConfigError, StoreFailed) as problem:
            log.error("the configuration stays as it was: %s", problem)
            answer = {"error": str(problem)}
        self._notifier.ready(self._summary() + (f"; {answer['error']}" if "error" in answer else ""))
        for reply in replies:
            reply(answer)

    def _change(self, mounts: tuple[Mount, ...], settings: Settings) -> dict[str, Any]:
        """Bring what runs to another configuration; how many mounts were added, removed and restarted. Raises
        StoreFailed where the writer cannot take the rules, or ConfigError, and all stays as it was."""
        check_tls(self._http.wanted(settings.http))
        before, mounts_before = self._settings, self._mounts
        if (settings.store.log is None) != (before.store.log is None):
            raise StoreFailed("store.log: whether the store is shared is found out at the start (avm-daemon stop)")
        self._settings, self._mounts = settings, mounts
        self._premises.admit(settings)
        # Scopes are folded anew before any mount acts on the rest of the new settings.
        if refused := self._rules.change(before, settings, self._turn_until):
            self._settings, self._mounts = before, mounts_before
            self._premises.admit(before)
            raise StoreFailed(f"the store cannot take these rules now: {refused}")
        if settings.log != before.log:
            log_of_daemon("supervisor", as_json=settings.log.format == "json")
        if settings.embedding != before.embedding or self._service.status()["state"] == "failed":
            self._load_model()
        if settings.search.rerank != before.search.rerank or self._service.reranking.status()["state"] == "failed":
            self._service.reranking.load(reranking.made(settings))
        running = [child for child in self._children.all if child.mount is not None]
        wanted = {_place(mount): mount for mount in mounts}
        places = {_place(child.mount) for child in running if child.mount}
        counts = {"added": len(wanted.keys() - places), "removed": len(places - wanted.keys())}
        # One whose directory could not be used starts from the beginning, as if it were new.
        kept = [
            child for child in running if child.mount and _place(child.mount) in wanted and child.mountpoint is not None
        ]
        self._dismiss([child for child in running if child not in kept])
        for child in kept:
            assert child.mount is not None
            child.stale = wanted[_place(child.mount)] != child.mount
            child.mount = wanted.pop(_place(child.mount))
            if child.stale:  # what a mount can do is fixed when it is made
                self._takeover.renew_fd_entry(child)
        self._follow_providers()
        # Who has signed in was let in by who might be whom then.
        barred = isolation.identities(before) - isolation.identities(settings)
        self._follow_http(anew=bool(barred) or settings.log != before.log)
        # Rules live in the writer. Whatever else changed, children take it in by starting anew.
        if settings.apart_from_rules() != before.apart_from_rules():
            for child in self._children.all:
                child.stale = child.kind not in ("writer", "http")
        self._writer.stale = settings.of_writer() != before.of_writer()
        restarted = [child for child in self._children.all if child.stale]
        for child in restarted:
            self._children.replace(child)
        for mount in wanted.values():
            self._add(mount)
        # A predecessor still answers by the settings of before.
        self._turn_until(lambda: self._children.settled() and not self._children.retiring(), RELOAD_S)
        counts["restarted"] = sum(child.mount is not None for child in restarted)
        log.info("reloaded; mounts: %s", ", ".join(f"{count} {what}" for what, count in counts.items()))
        answered = {"problems": self._problems(), "automatic": self._idle_s is not None}
        return {**counts, **answered, "mounts_file": os.fspath(self._paths.mounts_file)}


def _place(mount: Mount) -> tuple[str, str]:
    return mount.agent_id, os.fspath(mount.mountpoint)
