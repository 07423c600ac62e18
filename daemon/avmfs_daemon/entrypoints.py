"""What runs in each child process: one entry function per kind, given to the supervisor as parameters.

Each takes a ChildSpec, composes its parts, says that it is ready, and works until it is told to stop. The parts
are imported here, in the child: the fork server has most of them already (see `preload`).
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from avmfs_config import Mount, Paths

from avmfs.errors import AvmError, Invalid, ReadOnly, StoreFailed
from avmfs.extras import bring
from avmfs.store.sharedlog.engines import host_name, shared_log
from avmfs_daemon import mount_links, mountpoint
from avmfs_daemon.child_runtime import GRACE_S, ChildRuntime, living
from avmfs_daemon.child_spec import ChildSpec, Kind, rules_from, rules_message
from avmfs_daemon.embedding import WAITED_S, PipeEmbedder
from avmfs_daemon.sharing import Forgetting, Head, House

if TYPE_CHECKING:
    from avmfs.access import Policy
    from avmfs.memory import Memory
    from avmfs.store.store import Store
    from avmfs.store.tx.transaction import IndexRules
    from avmfs.store.writer.following import ReplicatedWriter
    from avmfs.store.writer.replicated import ReplicatedApplier
    from avmfs_daemon.deliveries import Deliverer

log = logging.getLogger(__name__)

INDEXING_TIMEOUT_S: Final = 120.0
LAST_COMMIT_S: Final = 1.0
CACHES_DROPPED_S: Final = 0.1
DESCRIPTORS: Final = 65_536

Entry = Callable[[ChildSpec], None]


def have_descriptors() -> None:
    """As many as the system lets this process have: clients and waiting readers take some each, and 1,024 is usual."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def run_writer(spec: ChildSpec) -> None:
    """The one process that changes the store."""
    from avmfs.store.identity import OPERATOR
    from avmfs.store.rows.log_position import position
    from avmfs.store.writer.applier import Applier
    from avmfs.store.writer.loop import Writer

    have_descriptors()
    with living(spec) as runtime:
        assert spec.listener is not None
        runtime.figures("writer", {})  # what a writer before said of its end does not hold any more
        policy, index = rules_from(rules_message(spec.settings))
        if not spec.first:
            # Mounts learn of the old writer's end from their connections, and drop what their kernels cached. Not
            # before they all have had the time may a change be acknowledged that they were not told of.
            time.sleep(CACHES_DROPPED_S)
        applier: Applier
        writer: Writer
        if spec.settings.store.log is not None:
            applier, writer = shared_writer(spec, policy, index, partial(runtime.figures, "cluster"))
        else:
            applier = Applier(spec.database, policy, index, orphans=True, clock=time.time_ns)
            if position(applier.db) is not None:
                raise Invalid(
                    "this store is shared with other hosts: put `store.log` back into config.yaml; to go on alone,"
                    " avm cluster leave, and then take it out"
                )
            applier.alone(OPERATOR, "settle", {})
            if spec.first:  # later, mounts may hold unlinked files open while the writer is replaced
                applier.alone(OPERATOR, "reap_all_orphans", {})
            writer = Writer(spec.listener, spec.key, applier)
        ended = threading.Event()

        def set_rules(message: dict[str, Any]) -> None:
            answer = {"rules": message["number"]}
            try:
                writer.set_rules(*rules_from(message["rules"]))
            except AvmError as e:  # the old ones are in force, and what frees space has to go on
                runtime.tell({**answer, "refused": str(e)})
            else:
                runtime.tell(answer)

        def last_commit() -> None:
            writer.stop()
            ended.wait(LAST_COMMIT_S)

        runtime.on_rules = lambda message: writer.call(lambda: set_rules(message))
        runtime.on_stop = lambda message: writer.stop()
        runtime.on_orphaned = last_commit
        writer.on_failure = lambda reason: runtime.figures(
            "writer", {"error": f"every change is refused: {reason}"} if reason else {}
        )
        runtime.ready()
        writer.run()
        if writer.clean:
            runtime.figures("writer", {"clean": True})
        ended.set()


def shared_writer(
    spec: ChildSpec, policy: Policy, index: IndexRules, tell: Callable[[dict[str, Any]], None]
) -> tuple[ReplicatedApplier, ReplicatedWriter]:
    """Of a store that is shared with other hosts. What mounts of theirs hold open is not known: unlinked files keep
    their bytes as long as somebody renews a hold."""
    from avmfs.store.writer.following import ReplicatedWriter
    from avmfs.store.writer.replicated import ReplicatedApplier

    assert spec.listener is not None
    applier = ReplicatedApplier(
        spec.database,
        policy,
        index,
        orphans=True,
        clock=time.time_ns,
        shared_log=shared_log(spec.settings.store),
        host=host_name(spec.settings.store),
    )
    writer = ReplicatedWriter(
        spec.listener,
        spec.key,
        applier,
        shared_log(spec.settings.store),
        spec.settings.store.wait_s,
        tell,
    )
    return applier, writer


def _store(spec: ChildSpec, index: Path | None = None) -> Store:
    from avmfs.store.store import open_attached

    return open_attached(spec.database, spec.writer_socket, spec.speaks_for, spec.proof, index=index)


def run_index(spec: ChildSpec) -> None:
    """All vectors of the store, and which of them are near to a query, for every other process."""
    from avmfs.store.identity import OPERATOR
    from avmfs.store.index.server import IndexServer

    with living(spec) as runtime:
        assert spec.listener is not None
        store = _store(spec)

        def repair(passages: list[int]) -> None:
            store.submit(OPERATOR, "drop_vectors", passages=passages)

        def model() -> tuple[str, int] | None:
            found = store.vector_model() if spec.settings.embedding.enabled else None
            return None if found is None else (found.model, found.dimension)

        server = IndexServer(
            spec.listener, spec.key, store.connection, model, repair, partial(runtime.figures, "index")
        )
        runtime.on_stop = lambda message: server.stop()
        runtime.ready()
        server.run()


def _open_among(runtime: ChildRuntime, nodes: list[int]) -> list[int] | None:
    """Which of these files mounts have open; None where that is not known."""
    try:
        found: list[int] | None = runtime.ask("open", {"nodes": nodes})
    except AvmError as e:
        log.warning("not known which files are open: %s", e)
        return None
    return found


def _for_agents(spec: ChildSpec, store: Store, runtime: ChildRuntime) -> tuple[Callable[[], None], ...]:
    """What the keeper does for each agent as that agent."""
    from avmfs.providers.live import SOCKET, RemoteAsker
    from avmfs.services import composed
    from avmfs_daemon.consolidation import Consolidation
    from avmfs_daemon.daily_digest import DailyDigest

    asker = partial(RemoteAsker, spec.runtime_dir / SOCKET, spec.settings.providers)
    around = composed(store, spec.settings, None, None, asker, of_daemon=True)
    consolidation = Consolidation(around, partial(runtime.figures, "consolidation"))
    digest = spec.settings.digest
    return consolidation.step, DailyDigest(around, digest.at, digest.cold_days).step


def _deliverer(runtime: ChildRuntime, spec: ChildSpec, store: Store) -> Deliverer:
    from avmfs_daemon.deliveries import Deliverer
    from avmfs_daemon.runtime import OUTBOX

    return Deliverer(
        store,
        spec.settings.webhooks,
        spec.settings.hooks,
        home=os.fspath(spec.database.parent),
        lock=spec.runtime_dir / OUTBOX,
        report=partial(runtime.figures, "outbox"),
    )


def run_keeper(spec: ChildSpec) -> None:
    """Housekeeping: words and vectors of what was written, what has expired, what nobody holds open, what is to be
    delivered."""
    from avmfs.agents.anchors import beside
    from avmfs.agents.auditing import Chainer
    from avmfs.agents.backups import Schedule
    from avmfs.vfs import locks
    from avmfs_daemon.gossip import Digests
    from avmfs_daemon.housekeeping import Housekeeper
    from avmfs_daemon.runtime import LOCKS

    with living(spec) as runtime:
        assert spec.embedding is not None
        store = _store(spec)
        embedder = PipeEmbedder(spec.embedding, INDEXING_TIMEOUT_S) if spec.settings.embedding.enabled else None
        kept = spec.settings.audit
        house, also = None, []
        if spec.settings.store.log is not None:
            kept_log, host = partial(shared_log, spec.settings.store), host_name(spec.settings.store)
            house = House(kept_log(), lambda: str(runtime.ask("refused", {})))
            also = [Forgetting(store, kept_log, spec.database, host).step]
        chainer = Chainer(store, kept.anchors or beside(spec.database), kept.interval_s, time.time_ns)
        digests = Digests(store, spec.settings.gossip, partial(runtime.figures, "gossip"))
        backups = Schedule(spec.database, spec.settings, lambda error: runtime.figures("backup", {"error": error}))
        keeper = Housekeeper(
            store,
            embedder,
            report=partial(runtime.figures, "keeper"),
            also=(digests.step, backups.step, *_for_agents(spec, store, runtime), *also),
            limits=spec.settings.limits,
            chainer=chainer,
            # What other hosts' mounts hold is in the store alone.
            open_among=partial(_open_among, runtime) if house is None else lambda nodes: None,
            may=(lambda: True) if house is None else house.mine,
            gone=partial(locks.forget_files, spec.runtime_dir / LOCKS),
        )
        deliverer = _deliverer(runtime, spec, store)
        finishing_s: float | None = GRACE_S

        def stop(message: dict[str, object]) -> None:
            nonlocal finishing_s
            # A successor runs already, and waits for what is under way. Else none does, and it is delivered again.
            finishing_s = None if message.get("detached") else GRACE_S
            deliverer.stop()
            keeper.stop()

        runtime.on_stop = stop
        runtime.lingers = lambda message: deliverer.under_way_s() if message.get("detached") else 0.0
        if house is not None:
            house.begins, house.ends = deliverer.start, lambda: stop({})
        with keeper.watching(deliverer.wake):
            if house is None:
                deliverer.start()
            runtime.ready()
            keeper.run()
        deliverer.finish(finishing_s)
        digests.close()


def open_memory(
    spec: ChildSpec, embedder: PipeEmbedder, host: Callable[[str, dict[str, Any]], Any] | None = None
) -> Memory:
    """The memory of the spec's agent, with the store and the engine below it. A model is the supervisor's to run; what
    is elsewhere each process asks by itself."""
    from avmfs.access import Principal
    from avmfs.agents import reranking
    from avmfs.agents.presence import FOLDER, Presence
    from avmfs.memory import Memory
    from avmfs.providers.live import SOCKET, RemoteAsker
    from avmfs.services import composed
    from avmfs.store.index import allocator

    allocator.one_heap()
    store = _store(spec, spec.index_socket)

    def asker() -> RemoteAsker:
        return RemoteAsker(spec.runtime_dir / SOCKET, spec.settings.providers)

    presence = Presence(spec.runtime_dir / FOLDER)
    second = embedder if spec.settings.search.rerank.model is not None else reranking.made(spec.settings)
    around = composed(store, spec.settings, embedder, host, asker, of_daemon=True, presence=presence, reranker=second)
    return Memory(around, Principal(spec.agent, spec.operator, route="mount"))


def _embedder(spec: ChildSpec) -> PipeEmbedder:
    assert spec.embedding is not None
    settings = spec.settings
    return PipeEmbedder(spec.embedding, settings.embedding.timeout_s, WAITED_S, settings.search.rerank.timeout_s)


def run_door(spec: ChildSpec) -> None:
    """The socket for commands, MCP servers and Python."""
    from collections import deque

    from avmfs.access import Principal
    from avmfs.memory import Memory
    from avmfs.rpc.server import serve_door

    have_descriptors()
    with living(spec) as runtime:
        assert spec.listener is not None
        embedder = _embedder(spec)
        around = open_memory(spec, embedder, runtime.ask).around  # one store and one engine for all clients
        stop = threading.Event()
        runtime.on_stop = lambda message: stop.set()
        runtime.ready()
        recalled: dict[Principal, deque[tuple[int, frozenset[int]]]] = {}  # :savings is of an agent, not of a client

        def open_for(who: Principal) -> Memory:
            memory = Memory(around, who)
            memory.recalled = recalled.setdefault(who, memory.recalled)
            return memory

        idle = None if spec.idle_s is None else (spec.idle_s, lambda: runtime.tell({"idle": True}))
        serve_door(spec.listener, open_for, spec.settings, runtime.ask, stop, idle)


def _enroll(memory: Memory) -> None:
    """An agent with a mount is known, and has its private space. Raises StoreFailed or ReadOnly where it has none and
    nothing can be written."""
    try:
        memory.submit("enroll")
    except (StoreFailed, ReadOnly) as e:
        with memory.reading() as reader:
            if memory.who.name not in reader.agents(enrolled=True):
                raise
        log.warning("%s", e)  # what is there can be read


def run_mount(spec: ChildSpec) -> None:
    """One agent's mount.

    At SIGTERM, and when the supervisor is gone, the mount is left rather than taken away: the bare directory below it
    would take writes that nobody sees again, and a successor may go on with it (`fd_entry`). Only the supervisor, which
    guards it, says when to unmount.
    """
    from avmfs.fuse.serve import serve, tree_of
    from avmfs_daemon.fdstore_client import FdStoreEntry, identity

    have_descriptors()
    with living(spec) as runtime:
        assert spec.mount is not None
        mount, path, device = spec.mount, spec.mount.mountpoint, ""

        def stop(message: dict[str, object]) -> None:
            if not device:
                os._exit(0)
            tree.commit_all()
            if not message.get("detached"):
                mountpoint.unmount(path, device)

        def before_mount() -> None:
            _enroll(tree.memory)
            mountpoint.detach_predecessor(path)
            if spec.restore_mode is not None:
                path.chmod(spec.restore_mode)

        def ready() -> None:
            nonlocal device
            device = mountpoint.mounts_at(path)[-1].device
            if fd_entry is not None:
                fd_entry.tell(identity(spec.mount, spec.database, device))
            runtime.ready()
            if mount.link is not None:
                threading.Thread(target=_link, args=(runtime, mount), name="link", daemon=True).start()

        runtime.on_stop = stop
        runtime.on_terminated = lambda: os._exit(0)
        embedder = _embedder(spec)
        tree = tree_of(open_memory(spec, embedder, runtime.ask), mount)
        if mount.coherence == "strict" and spec.settings.store.log is not None:
            tree.fresh = Head(shared_log(spec.settings.store), tree.memory.store.followed).wait
        fd_entry = FdStoreEntry(spec.runtime_dir, spec.fd_entry) if spec.fd_entry is not None else None
        assert tree.memory.around.presence is not None
        with tree.memory.around.presence.entered(mount.agent_id, "mount", time.time_ns()):
            serve(
                tree,
                mount,
                ready=ready,
                before_mount=before_mount,
                runtime_dir=spec.runtime_dir,
                report=lambda about: runtime.tell({"mount": about}),
                fd_entry=fd_entry,
            )


def _link(runtime: ChildRuntime, mount: Mount) -> None:
    from avmfs.fuse.serve import group_of

    assert mount.link is not None
    problem = mount_links.make(mount.link, mount.mountpoint, mount.uid, group_of(mount.uid))
    if problem:
        log.warning("%s", problem)
    runtime.tell({"mount": {"link": problem}})


def run_live(spec: ChildSpec) -> None:
    """All that providers fetch, for every other process: what hangs or ends by it is this one alone."""
    from avmfs.providers.fetching import Fetcher
    from avmfs.providers.live import serve

    with living(spec) as runtime:
        assert spec.listener is not None
        store = _store(spec)
        settings, stop = spec.settings, threading.Event()
        fetcher = Fetcher(store, settings.providers, time.time_ns, os.environ, settings.webhooks.allow)
        runtime.on_stop = lambda message: stop.set()
        runtime.ready()
        serve(spec.listener, fetcher, stop)
        fetcher.close()


def run_http(spec: ChildSpec) -> None:
    """REST, events, MCP, metrics and the page, by the door's own socket. What fails or hangs here is this one alone."""
    with living(spec) as runtime:
        try:
            from avmfs.http.service import Server
        except ImportError as e:
            raise StoreFailed(f"the HTTP service needs more: {bring('http')} ({e})") from None
        from avmfs.http.doors import Caller

        assert spec.listener is not None
        folder = spec.database.parent
        where = Paths(folder, folder, spec.runtime_dir, folder, folder, spec.database)  # what a client of the door uses
        server = Server(spec.listener, spec.settings.http, where, lambda: runtime.ask("status", {}))

        def admit(message: dict[str, Any]) -> None:
            caller = Caller(message["agent"], message["operator"], stranger=message["stranger"])
            runtime.tell({"admitted": message["number"], "code": server.sessions.code(caller)})

        runtime.on_admit = admit
        runtime.on_stop = lambda message: server.stop()
        server.run(runtime.ready)


class Entries:
    """The entry function of each kind; ``others`` in place of ours."""

    def __init__(self, **others: Entry) -> None:
        self._others = others

    def of(self, kind: Kind) -> Entry:
        own: Entry = globals()[f"run_{kind}"]
        return self._others.get(kind, own)
