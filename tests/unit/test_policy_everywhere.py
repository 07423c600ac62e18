"""No route skips the policy: every question to the store, every command, every method of the door, asked about what
the asker may not see.

Two worlds are the same but for one thing: in the second, alice has nothing private. Whatever bob asks, and whatever a
program asks that holds a key of alice's for another directory, the two must answer alike, down to counts and scores,
and no command may change anything of hers. The tables below name every question; one that is added without a line here
fails.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from avmfs import paths, views
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Denied, NotFound, Stale
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.rpc import methods
from avmfs.search.index import SearchIndex
from avmfs.search.indexer import embed_pending
from avmfs.store import commands
from avmfs.store.queries.audit import AuditReader
from avmfs.store.queries.claims import ClaimsReader
from avmfs.store.queries.discovery import DiscoveryReader
from avmfs.store.queries.mail import MailReader
from avmfs.store.queries.nodes import Reader
from avmfs.store.queries.outbox import OutboxReader
from avmfs.store.queries.pending import PendingReader
from avmfs.store.queries.people import PeopleReader
from avmfs.store.queries.quarantine import QuarantineReader
from avmfs.store.rows import api_keys, hash_chain
from avmfs.store.schema.tables import MEMORY, PRIVATE, ROOT
from avmfs.store.store import Store
from avmfs.views import Context
from tests.hashing import HashingEmbedding
from tests.unit.views_fixtures import World, opened

CANARY = "zebrafinch"
EMBEDDER = HashingEmbedding()
SPACE = "/memory/private/alice"
OPERATOR = Principal("avmfs", operator=True)
_GONE = 2**61 + 7  # an id that no node has

# What a question is about, by name: the ids of alice's private file (or of nothing, in the world without one).
Place = SimpleNamespace
Ask = Callable[[Any, Any], Any]


@dataclass
class Side:
    """One of the two worlds, as one asker sees it."""

    world: World
    who: Principal
    it: Any

    @property
    def memory(self) -> Memory:
        return Memory(self.world.around, self.who)


def populated(tmp_path: Path, *, private: bool) -> tuple[Iterator[World], World, Any]:
    context = opened(tmp_path, Policy())
    world = context.__enter__()
    alice, bob, carol = world.agent("alice"), world.agent("bob"), world.agent("carol")
    alice.put("/memory/shared/common.md", f"a {CANARY} is a bird that everybody knows\n")
    alice.put("/memory/a/inside.md", "inside the key's own area\n")
    bob.put("/memory/private/bob/own.md", "what bob has himself\n")
    alice.memory.submit("write_index", project=b"hers", items=[{"path": [b"x.md"], "data": b"for all to read"}])
    carol.memory.submit("mark_read")
    id_, secret = "a" * 8, "s" * 43
    alice.memory.submit(
        "create_key",
        id=id_,
        agent="alice",
        hash=api_keys.hashed(secret),
        label="",
        within=[b"/memory/a/*"],
        actions=["read", "write", "search"],
        expires=None,
    )
    world.clock.pass_(1)
    it = Place(
        file=_GONE,
        directory=_GONE + 1,
        other=_GONE + 2,
        symlink=_GONE + 3,
        document=_GONE + 4,
        handle="zzzzzz",
        passages=[_GONE],
        node=Node(_GONE, _GONE + 1, b"x.md", Kind.FILE, 0o644, None, None, 5, 0, 0, 0, 0, _GONE + 4, None),
        scope=_GONE,
        key=api_keys.compose(id_, secret),
        open=_GONE + 5,
        gone=_GONE + 6,
        common=alice.node("/memory/shared/common.md").document,
    )
    if private:
        alice.put(f"{SPACE}/{CANARY}/x.md", f"the {CANARY} secret #finch\n")
        alice.memory.rename(f"{SPACE}/{CANARY}".encode(), f"{SPACE}/d".encode())
        alice.put(f"{SPACE}/d/x.md", f"the {CANARY} secret, again #finch\n")
        alice.put(f"{SPACE}/d/y.md", f"another {CANARY}\n")
        secret_note = {"path": [b"y.md"], "data": f"the {CANARY} secret, indexed".encode()}
        alice.memory.submit("write_index", project=b"own", items=[secret_note], private=True)
        node, other = alice.node(f"{SPACE}/d/x.md"), alice.node(f"{SPACE}/d/y.md")
        directory = alice.node(f"{SPACE}/d")
        alice.memory.submit("set_tags", node=node.id, add=[CANARY], remove=[], replace=False)
        alice.memory.submit("add_link", node=node.id, target=other.id, type=CANARY)
        alice.memory.submit("claim", nodes=[node.id], lease=60 * 10**9)
        common = alice.node("/memory/shared/common.md")
        alice.memory.submit("add_link", node=node.id, target=common.id, type=CANARY)
        link = alice.memory.submit("symlink", parent=directory.id, name=b"l", target=CANARY.encode())["node"]
        alice.memory.submit(
            "tell", recipient="carol", body=CANARY, priority="urgent", expires=None, body_limit=999, unread_limit=9
        )
        gone = alice.memory.submit("mkdir", parent=directory.id, name=b"gone", mode=0o755, uid=None, gid=None)["node"]
        assert world.store.cached_node(alice.memory.who, gone)
        alice.memory.submit("rmdir", parent=directory.id, name=b"gone")
        assert world.store.cached_gone(alice.memory.who, gone)
        document = node.document
        assert document is not None
        it = Place(
            file=node.id,
            directory=directory.id,
            other=other.id,
            symlink=link,
            document=document,
            passages=[],
            handle=alice.handle(f"{SPACE}/d/x.md"),
            node=node,
            scope=node.scope,
            key=it.key,
            open=node.id,
            gone=gone,
            common=common.document,
        )
        alice.memory.submit("add_link", node=node.id, target=common.id, type="supersedes")
        alice.memory.submit("add_link", node=node.id, target=common.id, type="contradicts")
    while world.store.queue_lengths()[0]:
        world.applied.submit(OPERATOR, "drain_lexical", {})
    # Nonces are made with it.
    world.applied.applier.db.execute("update setting set value = ? where key = 'fence'", ("5" * 64,))
    # Handles are random, and tokens are counted with them.
    for number, path in enumerate(("/memory/shared/common.md", "/memory/a/inside.md")):
        document = alice.node(path).document
        world.applied.applier.db.execute(
            "update document set handle = ? where id = ?", (f"aaa{'bc'[number]}", document)
        )
    embed_pending(world.store, EMBEDDER, EMBEDDER.model_id)
    if private:
        with world.store.connection() as (db, _):
            it.passages = [row[0] for row in db.execute("select id from passage where document = ?", (it.document,))]
        assert it.passages
    return context, world, it  # type: ignore[return-value]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[World, Any]]]:
    made = [populated(tmp_path_factory.mktemp(str(private)), private=private) for private in (True, False)]
    yield [(world, it) for _, world, it in made]
    for context, _, _ in made:
        context.__exit__(None, None, None)  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=["another agent", "a key for elsewhere"])
def sides(request: pytest.FixtureRequest, worlds: list[tuple[World, Any]]) -> list[Side]:
    found = []
    for world, it in worlds:
        who = Principal("bob")
        if request.param != "another agent":
            with world.store.reading(Principal("")) as reader:
                who = reader.people.shown(it.key)
            assert who.name == "alice" and who.key is not None
        found.append(Side(world, who, it))
    return found


_READER: dict[str, Ask] = {
    "node": lambda r, it: r.node(it.file),
    "child": lambda r, it: r.child(it.directory, b"x.md"),
    "children": lambda r, it: r.children(it.directory),
    "subdirectories": lambda r, it: r.subdirectories(PRIVATE),
    "path": lambda r, it: r.path(it.file),
    "trusted_as": lambda r, it: r.trusted_as(r.node(it.file)),
    "open_node": lambda r, it: r.open_node(it.open),
    "was_removed": lambda r, it: r.was_removed(it.file),
    "read": lambda r, it: r.read(it.file, 0, 99),
    "seek": lambda r, it: r.seek(it.file, 0, hole=True),
    "target": lambda r, it: r.target(it.symlink),
    "moment": lambda r, it: [
        r.moment(Moment(2**40, 0)).at,
        outcome(lambda: r.moment("s")),
        outcome(lambda: r.moment(1)),
    ],
    "snapshots": lambda r, it: r.snapshots(),
    "document": lambda r, it: r.document(it.node),
    "by_handle": lambda r, it: r.by_handle(it.handle),
    "versions": lambda r, it: r.versions(it.document),
    "version_bytes": lambda r, it: r.version_bytes(it.document, 1),
    "tags": lambda r, it: r.tags(it.document),
    "links": lambda r, it: [r.links(it.document)],
    "disputes": lambda r, it: r.disputes(99),
    "mark": lambda r, it: r.mark(it.document),
    "unindexed": lambda r, it: r.unindexed(it.document),
    "awaits_vectors": lambda r, it: r.awaits_vectors(it.document),
    "without_vectors": lambda r, it: r.without_vectors(2**62, 99),
    "newest_seq": lambda r, it: r.newest_seq(),
    "live": lambda r, it: r.live(b"/memory/private/alice/x.md"),
    "changes": lambda r, it: r.changes(ROOT),
    "listing": lambda r, it: r.listing(ROOT, limit=99, offset=0, query="e"),
    "counts": lambda r, it: r.counts(ROOT),
    "tag_counts": lambda r, it: r.tag_counts(ROOT),
    "file_counts": lambda r, it: [r.file_counts(each, 99) for each in (ROOT, MEMORY, PRIVATE)],
    "agents": lambda r, it: r.agents(),
    "removed": lambda r, it: r.removed(99),
    "consolidated": lambda r, it: r.consolidated(),
    "ended": lambda r, it: r.ended(),
    "may_purge_past": lambda r, it: r.may_purge_past(it.document),
    "within": lambda r, it: r.within(it.directory),
}
# The parts of the reader, each with a class of its own.
_DISCOVERY: dict[str, Ask] = {
    "digest_state": lambda d, it: d.digest_state(),
    "digests": lambda d, it: d.digests(),
    "hosts": lambda d, it: d.hosts(),
    "evidence": lambda d, it: d.evidence([CANARY, "finch"]),
    "revealed": lambda d, it: d.revealed([CANARY, "finch"]),
    "known_to_all": lambda d, it: list(d.known_to_all()),
    "privacy": lambda d, it: d.privacy("alice"),
    "has_term": lambda d, it: d.has_term("finch", set()),
    "topics_state": lambda d, it: d.topics_state(),
}
_MAIL: dict[str, Ask] = {
    "any_unread": lambda m, it: m.any_unread(),
    "counts": lambda m, it: m.counts(),
    "messages": lambda m, it: m.messages(),
    "unread": lambda m, it: m.unread(),
    "urgent": lambda m, it: m.urgent(9),
    "unread_of_all": lambda m, it: m.unread_of_all(),
    "refusal": lambda m, it: m.refusal("carol", 3, 1, body_limit=9, unread_limit=9, rate_limit=9),
}
_OUTBOX: dict[str, Ask] = {
    "unmatched": lambda o, it: o.unmatched(),
    "behind": lambda o, it: o.behind(),
    "dead": lambda o, it: o.dead(),
    "figures": lambda o, it: o.figures(),
    "next_due": lambda o, it: o.next_due(),
    "arrived": lambda o, it: o.arrived(),
    "notices": lambda o, it: o.notices(),
    "subscribed": lambda o, it: o.subscribed(),
    "subscriptions": lambda o, it: [o.subscriptions(), outcome(lambda: o.subscriptions(everybody=True))],
}
_AUDIT: dict[str, Ask] = {
    "acts": lambda a, it: [(act.agent, act.op, act.path) for act in a.acts()],
    "batches": lambda a, it: a.batches(0, 99),
    "bounds": lambda a, it: a.bounds(),
    "altered": lambda a, it: a.altered(),
    "misattributed": lambda a, it: a.misattributed(1, (-1, 0), 99),
    "missent": lambda a, it: a.missent(99),
    "trim_is_told": lambda a, it: a.trim_is_told(hash_chain.Anchor(1, b"")),
    "rows": lambda a, it: a.rows(1, 99),
    "refusals_before": lambda a, it: a.refusals_before(2**62),
    "start": lambda a, it: a.start(),
    "tip": lambda a, it: a.tip(),
    "unchained": lambda a, it: a.unchained(99),
}
_PENDING: dict[str, Ask] = {
    "directories": lambda p, it: p.directories(99),
    "files": lambda p, it: p.files(99),
    "places": lambda p, it: p.places(f"{SPACE}/d".encode(), 0),
}
_CLAIMS: dict[str, Ask] = {
    "of": lambda c, it: c.of(it.file),
    "held": lambda c, it: c.held(99),
    "free": lambda c, it: [c.free(each, 99) for each in (it.directory, PRIVATE)],
}
_PARTS: dict[str, tuple[type, dict[str, Ask]]] = {
    "claims": (ClaimsReader, _CLAIMS),
    "quarantine": (QuarantineReader, {"held": lambda q, it: q.held(99)}),
    "people": (PeopleReader, {}),
    "discovery": (DiscoveryReader, _DISCOVERY),
    "mail": (MailReader, _MAIL),
    "outbox": (OutboxReader, _OUTBOX),
    "audit": (AuditReader, _AUDIT),
    "pending": (PendingReader, _PENDING),
}
_PEOPLE: dict[str, Ask] = {
    "policy": lambda p, it: p.policy().plain,
    "used": lambda p, it: p.used("carol"),
    "miscounted": lambda p, it: p.miscounted(),
    "api_keys": lambda p, it: p.api_keys(),
    "shown": lambda p, it: p.shown("avm_" + "a" * 8 + "_" + "A" * 43),
    "access": lambda p, it: [
        p.access(name, paths.split(paths.raw(f"{SPACE}/d/{leaf}")))
        for name in ("alice", "bob")
        for leaf in ("x.md", "none.md")
    ],
}
_INDEX: dict[str, Ask] = {
    "table": lambda i, it: [getattr(i.table(), name).tolist() for name in ("passages", "lengths", "flags", "next")],
    "postings": lambda i, it: i.postings([CANARY, "secret", "finch"]),
    "nearest": lambda i, it: [
        each.tolist()
        for each in i.nearest(
            EMBEDDER.model_id, EMBEDDER.embed_batch([CANARY]).vectors[0], 9, np.array(it.passages, np.int64)
        )
    ],
    "hits": lambda i, it: [i.hits(it.passages, ()), i.hits(range(50), ())],
    "below": lambda i, it: i.below((b"memory", b"private", b"alice")),
    "topics": lambda i, it: i.topics(()),
    "about": lambda i, it: [i.about(each, (), 9) for each in ("finch", CANARY)],
    "seq": lambda i, it: i.seq(),
    "disputed": lambda i, it: i.disputed([it.document, it.common]),
    "phrase": lambda i, it: i.phrase([CANARY, "secret"]),
}


def _past(side: Side, it: Any, back: int) -> list[Any]:
    """All that can be seen of the tree as it was so many changes ago, and what of hers."""
    store = side.world.store
    with store.connection() as (db, _):
        newest = db.execute("select max(seq) from log").get
    seen: list[Any] = []
    with store.reading_at(side.who, Moment(max(0, newest - back), side.world.clock())) as reader:
        waiting = [reader.node(ROOT)]
        while waiting:
            below = reader.children(waiting.pop().id)
            waiting += [node for node in below if node.kind is Kind.DIRECTORY]
            seen += [reader.path(node.id) for node in below]
        for ask in ("node", "child", "children", "path", "read", "document", "versions", "tags", "counts", "listing"):
            seen.append(outcome(lambda name=ask, past=reader: _READER[name](past, it)))
    return [each for each in seen if SPACE.encode() in repr(each).encode()]


_STORE: dict[str, Ask] = {
    "cached_node": lambda s, it: s.world.store.cached_node(s.who, it.file),
    "cached_gone": lambda s, it: s.world.store.cached_gone(s.who, it.gone),
    "cached_child": lambda s, it: s.world.store.cached_child(s.who, it.directory, b"x.md"),
    "cached_children": lambda s, it: [
        s.world.store.cached_children(s.who, PRIVATE, b"", 99),
        outcome(lambda: s.world.store.cached_children(s.who, it.directory, b"", 99)),
    ],
    "cached_read": lambda s, it: s.world.store.cached_read(s.who, it.file, 0, 99),
    "cached_subdirectories": lambda s, it: s.world.store.cached_subdirectories(s.who, PRIVATE),
    "cached_counts": lambda s, it: [
        s.world.store.cached_counts(s.who, ROOT),
        outcome(lambda: s.world.store.cached_counts(s.who, it.directory)),
    ],
    "reading_at": lambda s, it: [_past(s, it, back) for back in range(12)],
    "cached_writable": lambda s, it: s.world.store.cached_writable(s.who, it.scope),
    "cached_shown_writable": lambda s, it: s.world.store.cached_shown_writable(s.who, it.scope),
    "cached_in_trash": lambda s, it: s.world.store.cached_in_trash(s.who, it.scope),
    "cached_live": lambda s, it: s.world.store.cached_live(s.who, it.scope),
}
# Asked by the daemon's own processes and answered to nobody, with those who may use them among the parts that answer
# an agent: what these do with the answers is said there.
_OF_THE_HOUSE: dict[str, set[str]] = {
    "reading": {"*"},
    "search_index": {"*"},
    "submit": {"*"},
    "close": {"*"},  # the ways to what is in the tables
    "capacity": {"avmfs.vfs.statfs"},
    "nonce": {"*"},
    "cached_state": {"*"},
    "cached_changes": {"*"},  # what caches of the mount's own answers go by
    "queue_lengths": set(),
    "words_wait": {"avmfs.search.fresh"},
    "vectors_wait": {"avmfs.search.fresh"},
    "newest_passage": {"avmfs.search.fresh"},
    "orphans": {"avmfs.vfs.tree"},
    "life": {"avmfs.rpc.files"},
    "lineage": {"avmfs.agents.backups"},
    "vector_model": {"avmfs.rpc.documents"},
    "pending_passages": set(),
    "idle_documents": set(),
    "anything_expired": {"avmfs.rpc.purging"},
    "unwiped": {"avmfs.rpc.purging"},
    "followed": {"avmfs.agents.repairing", "avmfs.cli.storing", "avmfs.rpc.local"},
    "uncut": {"avmfs.rpc.purging"},
    "connection": set(),
    "match_subscriptions": {"avmfs.rpc.mail"},
}

_NEW = {"mode": 0o644, "name": b"new"}
_COMMANDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "add_link": lambda it: {"node": it.file, "target": it.other, "type": ""},
    "append": lambda it: {"node": it.file, "handle": None, "data": b"x"},
    "claim": lambda it: {"nodes": [it.file], "lease": 10**9},
    "release": lambda it: {"node": it.file},
    "archive": lambda it: {"parent": it.directory, "name": b"x.md"},
    "merge": lambda it: {"run": 1, "nodes": [it.file, it.other], "ctimes": [it.node.ctime if it.node else 0] * 2},
    "summarise": lambda it: {"run": 1, "path": [b"memory", b"s"], "data": b"x", "nodes": [it.file], "ctimes": [0]},
    "begin_consolidation": lambda it: {"every": 1},
    "deliver_digest": lambda it: {"agent": "bob", "due": 1, "told": 1, "body": "x"},
    "archive_cold": lambda it: {"run": 1, "nodes": [it.file], "ctimes": [0]},
    "take_back": lambda it: {"run": 1, "document": it.document},
    "put_back": lambda it: {"node": it.file},
    "write_index": lambda it: {"project": b"hers", "items": [{"path": [b"x.md"], "data": b"x"}]},
    "trim_trash": lambda it: {"before": 2**62, "most": 0},
    "commit": lambda it: {"node": it.file, "handle": None, "edits": [["t", 0]]},
    "create": lambda it: {"parent": it.directory, "exclusive": True, **_NEW},
    "create_key": lambda it: {
        "id": "b" * 8,
        "agent": "alice",
        "hash": b"x" * 32,
        "label": "",
        "within": [b"/"],
        "actions": ["read"],
        "expires": None,
    },
    "mirror": lambda it: {"path": [b"live", b"x"], "data": b"x", "source": "s", "until": 0},
    "mirror_failed": lambda it: {"path": [b"live", b"x"], "source": "s", "until": 0, "error": "e", "gone": True},
    "mirror_names": lambda it: {"path": [b"live"], "names": [b"x"], "source": "s", "until": 0},
    "drop_vectors": lambda it: {"passages": it.passages},
    "act_as_operator": lambda it: {},
    "extend_chain": lambda it: {"first": 1, "last": 1, "hashes": b"x" * 8, "head": b"x" * 32},
    "forget_hosts": lambda it: {"before": 0},
    "name_host": lambda it: {"name": "x"},
    "merge_digests": lambda it: {"host": "h", "name": "n", "alive": 1, "after": 0, "version": 1, "digests": []},
    "publish_digests": lambda it: {"digests": [], "privacy": 0},
    "outbox_tidy": lambda it: {},
    "outbox_fill": lambda it: {"after": 0, "upto": 1, "events": "[]", "found": []},
    "outbox_report": lambda it: {
        "subscription": 1,
        "sent": [],
        "failed": None,
        "error": "",
        "dead": False,
        "retry_at": None,
    },
    "outbox_take": lambda it: {"busy": [], "full": [], "limit": 1, "each": 1},
    "set_hooks": lambda it: {"hooks": []},
    "remember_many": lambda it: {"items": [{"path": [b"memory", b"private", b"alice", b"d", b"x.md"], "data": b"x"}]},
    "set_privacy": lambda it: {"mode": "full", "agent": "carol"},
    "settle_refusals": lambda it: {},
    "trim_mail": lambda it: {"before": 2**62, "keep": 0},
    "follow_model": lambda it: {"model": "m", "dimension": 3},
    "forget_clients": lambda it: {"before": 0},
    "init_permissions": lambda it: {"users": {}},
    "mark": lambda it: {"node": it.file},
    "merge_meta": lambda it: {"node": it.file, "importance": 1.0, "user": {}},
    "mkdir": lambda it: {"parent": it.directory, **_NEW},
    "put": lambda it: {"path": [b"memory", b"private", b"alice", b"d", b"x.md"], "importance": 1.0},
    "put_many": lambda it: {"items": [{"path": [b"memory", b"private", b"alice", b"d", b"z.md"], "data": b"x"}]},
    "put_vectors": lambda it: {"model": "m", "vectors": [[each, b"1234"] for each in it.passages]},
    "sum_contents": lambda it: {},
    "purge": lambda it: {"nodes": [it.file], "documents": []},
    "reap_all_orphans": lambda it: {},
    "reap_expired": lambda it: {},
    "reap_orphans": lambda it: {"nodes": [it.file]},
    "remember": lambda it: {"path": [b"memory", b"private", b"alice", b"d", b"x.md"], "data": b"x"},
    "remove_link": lambda it: {"node": it.file, "target": it.other},
    "rename": lambda it: {"parent": it.directory, "name": b"x.md", "new_parent": it.directory, "new_name": b"z"},
    "remove_snapshot": lambda it: {"name": "s"},
    "trim_past": lambda it: {},
    "revoke_key": lambda it: {"id": "c" * 8},
    "rmdir": lambda it: {"parent": PRIVATE, "name": b"alice"},
    "set_attributes": lambda it: {"node": it.file, "mode": 0o777},
    "set_shared": lambda it: {"node": it.file, "agents": ["bob"]},
    "set_sources": lambda it: {"node": it.file, "sources": ["web"]},
    "let_out": lambda it: {"node": it.file},
    "set_tags": lambda it: {"node": it.file, "add": ["t"], "remove": [], "replace": True},
    "set_ttl": lambda it: {"node": it.file, "expires": 1},
    "settle": lambda it: {},
    "skip_vectors": lambda it: {"documents": [it.document], "model": "m"},
    "symlink": lambda it: {"parent": it.directory, "name": b"s", "target": b"t"},
    "unlink": lambda it: {"parent": it.directory, "name": b"x.md", "trash": True},
    "write_many": lambda it: {"items": [[[b"memory", b"private", b"alice", b"d", b"x.md"], b"x"]]},
    "write_path": lambda it: {"path": [b"memory", b"private", b"alice", b"d", b"x.md"], "data": b"x"},
}
# These change nothing of anybody else's, so they are not refused; what they do is counted below.
_HARMLESS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "drain_lexical": lambda it: {},
    "enroll": lambda it: {},
    "snapshot": lambda it: {"name": "s"},
    "wipe": lambda it: {},
    "mark_read": lambda it: {},
    "sync": lambda it: {},
    "hold": lambda it: {"holder": b"h", "nodes": [it.file]},
    "delete_mail": lambda it: {},
    "empty_trash": lambda it: {"before": 2**62},
    "collect_notices": lambda it: {},
    "forget_notices": lambda it: {"messages": ["x"]},
    "redeliver": lambda it: {},
    "note_refusal": lambda it: {"verb": "open", "code": "EACCES", "path": b"/memory/x"},
    "subscribe": lambda it: {"pattern": f"{SPACE}/*", "mode": "realtime", "every": None, "url": None},
    "unsubscribe": lambda it: {"pattern": f"{SPACE}/*"},
    "tell": lambda it: {
        "recipient": "nobody-of-that-name",
        "body": "b",
        "priority": "low",
        "expires": None,
        "body_limit": 9,
        "unread_limit": 9,
    },
}
_X = f"{SPACE}/d/x.md"
_METHODS: dict[str, list[dict[str, Any]]] = {
    "agents": [{}],
    "archive": [{"path": _X}],
    "consolidate": [{}, {"path": SPACE}, {"path": _X}, {"summaries": True, "cold": 1.0}],
    "unconsolidate": [{}, {"run": 1}],
    "claim": [{"path": _X}],
    "claim_next": [{"path": f"{SPACE}/d"}],
    "claims": [{}],
    "release": [{"path": _X}],
    "quarantine": [{}],
    "let_out": [{"path": _X}],
    "reject": [{"path": _X}],
    "put_back": [{"path": _X}, {"path": f"/trash{SPACE.removeprefix('/memory')}/d/x.md"}],
    "trash": [{}],
    "empty_trash": [{}, {"under": SPACE}],
    "user": [{"name": "alice"}],
    "list_keys": [{}],
    "check_usage": [{}],
    "check_permission": [{"user": name, "path": _X, "action": "read"} for name in ("alice", "bob")],
    "create_key": [{"agent": "alice"}],
    "revoke_key": [{"id": "c" * 8}],
    "init_permissions": [{"users": {}}],
    "entries": [{"path": f"{SPACE}/d"}, {"path": "/memory/private"}, {"path": "/"}],
    "history": [{"path": _X}, {"path": f"/@seq.99{_X}"}],
    "blame": [{"path": _X}, {"path": f"/@seq.99{_X}"}],
    "compare": [{"older": "seq.1"}, {"older": "-0.1s", "path": SPACE}],
    "restore": [
        {"path": _X, "version": 1},
        {"path": SPACE, "at": "seq.9"},
        {"path": "/memory", "at": "seq.1", "dry_run": True},
    ],
    "purge": [
        {"path": _X},
        {"path": SPACE},
        {"path": "/"},
        {"author": "alice"},
        {"tag": CANARY},
        {"before": "2100-01-01"},
    ],
    "wipe": [{}],
    "snapshot": [{"name": "bobs"}, {"name": "part", "path": _X}, {"name": "space", "path": SPACE}],
    "snapshots": [{}],
    "remove_snapshot": [{"name": "none"}],
    "inbox": [{}],
    "urgent": [{}],
    "links": [{"path": _X}, {"path": "/shared/common.md"}],
    "listing": [{"path": f"{SPACE}/d"}, {"path": "/memory", "q": "e"}, {"path": "/memory", "tag": CANARY}],
    "locate": [{"path": _X}, {"path": f"{SPACE}/none/x"}, {"path": f"{SPACE}/d", "follow": False}],
    "make_directory": [{"path": f"{SPACE}/new"}],
    "move": [{"source": _X, "target": f"{SPACE}/z"}],
    "read": [{"path": _X}, {"path": f"{_X}:meta"}, {"path": f"/:recall?q={CANARY}"}],
    "recall": [{"q": f"the {CANARY} secret"}, {"q": "finch", "under": SPACE}],
    "recent": [{"path": "/memory"}, {"path": "/", "pattern": "/memory/*"}],
    "remember": [
        {"content": "x", "path": f"{SPACE}/d/new.md"},
        {"content": f"the {CANARY} secret, again #finch", "on_duplicate": "refuse", "path": f"{SPACE}/d/new.md"},
    ],
    "remove": [{"path": _X}],
    "search": [{"q": f"the {CANARY} secret", "mode": "lexical"}, {"q": "finch", "under": f"{SPACE}/d"}],
    "tell": [{"recipient": "nobody-of-that-name", "body": "x"}],
    "warmup": [{}],
    "nearness": [{"q": "x", "texts": ["y", "z"]}],
    "verify": [{"text": f"[{_X}@{number}]"} for number in (1, 2, 9)],
    "watch": [{}],
    "write": [{"path": _X, "data": b"x"}, {"path": f"{_X}:tags", "data": b"t"}],
    "ask": [{"question": f"the {CANARY} secret"}],
    "who": [{"q": "finch"}, {"q": CANARY, "via": "gossip"}],
    "audit": [{}, {"path": _X}, {"agent": "alice"}],
    "audit_anchor": [{}],
    "audit_verify": [{}],
    "dead_letters": [{}],
    "notices": [{}],
    "redeliver": [{}],
    "subscriptions": [{}, {"everybody": True}],
    "subscribe": [{"pattern": f"{SPACE}/*"}],
    "unsubscribe": [{"pattern": f"{SPACE}/*"}],
    "delete_mail": [{}],
    "mark_read": [{}, {"messages": [1]}, {"notices": ["x"]}],
    "pending": [{}],
    "unread": [{}],
    "delta": [{"path": "/memory", "peek": True}, {"path": _X, "peek": True}],
    "explore": [{"path": _X}],
    "nonce": [{"about": "x"}],
    "sign_in": [{}, {"start": True}],
    "fetch": [{"targets": [_X, f"{SPACE}/d/none.md"]}],
    "graph": [{}, {"path": SPACE}, {"format": "graphml"}],
    "digest": [{"days": 9.0}, {"cold": 0.0, "days": 0.0}, {"path": SPACE}],
    "bundle": [{"q": f"the {CANARY} secret"}, {"q": "finch", "under": SPACE}],
    "index_status": [{}, {"path": SPACE}],
    "write_index": [{"project": "hers", "items": [{"path": "x.md", "data": b"x"}]}],
    "link": [{"path": _X, "target": "/shared/common.md"}],
    "privacy": [{"mode": "full", "agent": "carol"}],
    "remember_many": [{"items": [{"content": "x", "path": f"{SPACE}/d/new.md"}]}],
    "retrieve": [{"q": f"the {CANARY} secret"}],
    "synthesize": [{"q": CANARY}, {"q": CANARY, "path": SPACE}],
    "tag": [{"path": _X, "add": ["t"]}],
    "tags": [{}, {"path": SPACE}],
    "timeline": [{}, {"path": SPACE}, {"cold": True, "days": 0.0}],
    "topics": [{}, {"path": SPACE}, {"name": "finch"}],
    "tree": [{}, {"path": SPACE}],
    "version": [{"path": _X, "number": 1}],
    "questions": [{}, {"forget": True}],
    "records": [{"data": True, "digest": True}, {"path": SPACE}, {"after": _X}],
    "put": [{"items": [{"path": _X, "data": b"x"}, {"path": _X, "importance": 1.0}, {"path": f"{SPACE}/d/z.md"}]}],
    "names_log": [{}, {"path": SPACE}],
    "replay": [{"q": f"the {CANARY} secret", "weights": {}}, {"q": "finch", "under": SPACE, "weights": {"words": 1.0}}],
}


def outcome(ask: Callable[[], Any]) -> str:
    """What an asker learns: the answer with ids, times and handles of its own things made alike, or the error."""
    try:
        found = ask()
    except (NotFound, Stale):
        return "nothing there"
    except AvmError as e:
        return f"{type(e).__name__}: {e.reason}"
    text = repr(found)
    text = re.sub(r"handle[=':\" ]+@?[a-z2-7]{4,}'|@[a-z2-7]{4}\b", "HANDLE", text)
    return re.sub(r"'[0-9a-f]{64}'|\d{10,}", "N", text)  # a digest is of ids


def alike(sides: list[Side], ask: Callable[[Side], Any]) -> str:
    with_it, without = (outcome(lambda side=side: ask(side)) for side in sides)
    assert with_it == without
    assert "secret" not in with_it.replace("'secret': None", "") and str(sides[0].it.file) not in with_it
    return with_it


def questions_of(reader: type) -> set[str]:
    return {name for name in vars(reader) if not name.startswith("_")}


def test_the_tables_name_every_question_command_and_method() -> None:
    assert set(_READER) == questions_of(Reader) - set(_PARTS), "a part of the reader needs a table of its own"
    for name, (reader, table) in _PARTS.items():
        assert set(table or _PEOPLE) == questions_of(reader), name
    assert set(_PEOPLE) == questions_of(PeopleReader)
    assert set(_INDEX) == questions_of(SearchIndex)
    assert set(_STORE) | set(_OF_THE_HOUSE) == questions_of(Store) and not set(_STORE) & set(_OF_THE_HOUSE)
    assert set(_COMMANDS) | set(_HARMLESS) == set(commands.names()) and not set(_COMMANDS) & set(_HARMLESS)
    assert set(_METHODS) == set(methods.names())


@pytest.mark.parametrize("name", sorted(_READER))
def test_a_question_of_the_reader_tells_nothing(sides: list[Side], name: str) -> None:
    def ask(side: Side) -> Any:
        with side.world.store.reading(side.who) as reader:
            return _READER[name](reader, side.it)

    alike(sides, ask)


@pytest.mark.parametrize("name", sorted(_PEOPLE))
def test_a_question_about_people_tells_nothing(sides: list[Side], name: str) -> None:
    def ask(side: Side) -> Any:
        with side.world.store.reading(side.who) as reader:
            return _PEOPLE[name](reader.people, side.it)

    alike(sides, ask)


@pytest.mark.parametrize(
    ("part", "name"), sorted((part, name) for part, (_, table) in _PARTS.items() for name in table)
)
def test_a_question_of_a_part_of_the_reader_tells_nothing(sides: list[Side], part: str, name: str) -> None:
    def ask(side: Side) -> Any:
        with side.world.store.reading(side.who) as reader:
            return _PARTS[part][1][name](getattr(reader, part), side.it)

    alike(sides, ask)


@pytest.mark.parametrize("name", sorted(_INDEX))
def test_a_question_of_the_index_tells_nothing(sides: list[Side], name: str) -> None:
    alike(sides, lambda side: _INDEX[name](side.world.store.search_index(side.who), side.it))


@pytest.mark.parametrize("name", sorted(_STORE))
def test_a_question_of_the_store_tells_nothing(sides: list[Side], name: str) -> None:
    alike(sides, lambda side: _STORE[name](side, side.it))


@pytest.mark.parametrize("name", sorted(name for name, users in _OF_THE_HOUSE.items() if "*" not in users))
def test_what_only_the_house_asks_is_asked_nowhere_else(name: str) -> None:
    tree = Path(methods.__file__).parents[1]
    parts = ("views", "vfs", "rpc", "cli", "mcp", "fuse", "agents", "search")
    answering = [tree / "memory.py", *(path for part in parts for path in (tree / part).rglob("*.py"))]
    users = {
        ".".join(path.relative_to(tree.parent).with_suffix("").parts)
        for path in answering
        if re.search(rf"store\.{name}\(", path.read_text())
    }
    assert users - {"avmfs.search.indexer"} == _OF_THE_HOUSE[name]


@pytest.mark.parametrize("name", sorted(_METHODS))
def test_a_method_of_the_door_tells_nothing_and_changes_nothing(sides: list[Side], name: str) -> None:
    before = hers(sides[0].world)
    for arguments in _METHODS[name]:
        alike(sides, lambda side, given=arguments: methods.call(side.memory, name, given))
    assert hers(sides[0].world) == before


def test_an_empty_path_is_nothing_and_never_the_root(worlds: list[tuple[World, Any]]) -> None:
    """What a shell makes of a variable that is not set."""
    memory = Side(worlds[0][0], Principal("bob"), worlds[0][1]).memory
    places = {"path", "target", "under"}
    for name in set(_METHODS) - {"check_permission"}:  # that asks of a place, not of what is there
        for taken in places.intersection(inspect.signature(methods.function(name)).parameters):
            there = {each: "/shared/common.md" for each in (*places, "source") if each in _METHODS[name][-1]}
            with pytest.raises(NotFound, match=r"empty|^No such"):
                methods.call(memory, name, {**_METHODS[name][-1], **there, taken: ""})


@pytest.mark.parametrize("name", sorted({view.name for view in views.all_views()}))
def test_a_view_of_the_root_or_of_hers_tells_nothing(sides: list[Side], name: str) -> None:
    def ask(side: Side) -> Any:
        with side.world.store.reading(side.who) as reader:
            root = reader.node(ROOT)
        found = []
        for node, path in ((root, b"/"), (side.it.node, paths.raw(_X))):
            view = views.find(name, node)
            if view is not None and view.read is not None:
                given = {"q": CANARY} if any(each.name == "q" for each in view.parameters) else {}
                found.append(
                    outcome(
                        lambda node=node, path=path, view=view, given=given: (
                            view.render(Context(side.memory, node, path), given).data
                        )
                    )
                )
        return found

    alike(sides, ask)


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_a_command_about_what_is_not_the_askers_is_refused_and_changes_nothing(sides: list[Side], name: str) -> None:
    before = hers(sides[0].world)
    for side in sides:
        with pytest.raises((NotFound, Stale, Denied)):
            side.world.store.submit(side.who, name, **_COMMANDS[name](side.it))
    assert hers(sides[0].world) == before
    alike(sides, lambda side: side.world.store.submit(side.who, name, **_COMMANDS[name](side.it)))


@pytest.mark.parametrize("name", sorted(_HARMLESS))
def test_a_harmless_command_changes_nothing_of_others(sides: list[Side], name: str) -> None:
    before = hers(sides[0].world)
    alike(sides, lambda side: side.world.store.submit(side.who, name, **_HARMLESS[name](side.it)))
    assert hers(sides[0].world) == before


def hers(world: World) -> dict[str, Any]:
    """Every row that says something of alice's things."""
    tables = ("document", "tag", "link", "message", "delivery", "passage", "vector", "topic", "api_key", "area")
    kept: dict[str, Any] = world.dump(*tables)
    with world.store.connection() as (db, _):
        kept["node"] = db.execute("select * from node where name not in (x'', 'memory') order by id").fetchall()
        kept["body"] = db.execute("select * from body order by id").fetchall()
        kept["version"] = db.execute("select * from version order by document, number").fetchall()
        kept["mark"] = db.execute("select * from mark where agent = 'alice'").fetchall()
    return kept


def test_the_worlds_differ_for_who_may_see_it(worlds: list[tuple[World, Any]]) -> None:
    """Else the tests above could not fail."""
    sides = [Side(world, Principal("alice"), it) for world, it in worlds]
    for name in ("node", "read", "by_handle", "versions", "version_bytes", "tags", "links", "target", "counts"):
        told = set()
        for side in sides:
            with side.world.store.reading(side.who) as reader:
                told.add(outcome(lambda reader=reader, side=side, name=name: _READER[name](reader, side.it)))
        assert len(told) == 2, name
    for name in ("search", "recall"):
        asked = _METHODS[name][0]
        assert len({outcome(lambda side=side: methods.call(side.memory, name, asked)) for side in sides}) == 2  # noqa: B023
