"""Writes and reads of bench_ablation, at the store's own door; runs in client processes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until
from benchmarks.store_ops import endless_writes

if TYPE_CHECKING:
    from avmfs.store.store import Store

MEMORIES = 500
BODY = ("A memory of middling length, as agents keep them: what was decided, by whom, and why. " * 12)[:1024]
WARM = 2000
PATTERNS = ("Zipf", "working set", "temporal", "uniform")


def commands() -> Mapping[str, Command]:
    client = StoreClient()
    return {
        "attach": client.attach,
        "open": client.open,
        "begin": client.begin,
        "write": client.write,
        "remember": client.remember,
        "read": client.read,
        "load_model": client.load_model,
        "pattern": client.pattern,
    }


class StoreClient:
    """One client process: a store, and the loop that comes next."""

    _store: Store
    _writes: Iterator[Any]
    _embed: Callable[[Sequence[str]], object] | None = None

    def attach(self, database: str, socket: str, key: str, client: int) -> None:
        """To a running writer, as an agent of its own."""
        from avmfs.access import Principal
        from avmfs.store.identity import proof
        from avmfs.store.store import open_attached

        self._who = Principal(f"c{client}")
        self._store = open_attached(
            Path(database), Path(socket), self._who.name, proof(bytes.fromhex(key), f"c{client}")
        )
        self._client = client

    def open(self, database: str, parts: list[str]) -> None:
        """A store of this process' own with MEMORIES memories, its journal as `parts` of ablation_writer say. Each
        write is a transaction with synchronous=FULL."""
        from benchmarks.ablation_writer import choose_journal

        choose_journal(parts)
        from avmfs.access import Policy, Principal
        from avmfs.store.store import open_direct
        from avmfs.store.tx.transaction import IndexRules

        self._who, self._client = Principal("bench"), 0
        self._path = Path(database)
        self._store = open_direct(self._path, Policy(), IndexRules())
        path = [b"memory", b"read"]
        made = [
            self._store.submit(self._who, "write_path", path=[*path, b"m%04d" % i], data=f"{i:04} {BODY}".encode())
            for i in range(MEMORIES)
        ]
        self._nodes = [int(one["node"]) for one in made]
        with self._store.reading(self._who) as reader:
            self._folder = reader.node(self._nodes[0]).parent

    def load_model(self) -> None:
        from avmfs.embed.local import LocalEmbedding

        embedding = LocalEmbedding(allow_download=False)
        self._embed = embedding.embed_batch
        self._embed(["warm"])

    # Writing -------------------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        self._writes = endless_writes(f"/memory/w{self._client}/r{number}", random.Random(f"{number}/{self._client}"))

    def write(self, start_ns: int, limit_s: float) -> list[object]:
        """30 % new notes, 70 % written anew, as in bench_store."""
        wait_until(start_ns)
        return reply_of(timed_loop(self._write, self._writes, limit_s))

    def _write(self, write: Any) -> None:
        path = write.path.encode().split(b"/")[1:]
        self._store.submit(self._who, "write_path", path=path, data=write.body)

    def remember(self, embed: bool, start_ns: int, limit_s: float) -> list[object]:
        """The same; with `embed`, each text's vector is computed first, as without a background embedder."""
        embedder = self._embed

        def embed_and_write(write: Any) -> None:
            if embedder is not None and embed:
                embedder([write.body.decode()])
            self._write(write)

        wait_until(start_ns)
        return reply_of(timed_loop(embed_and_write, self._writes, limit_s))

    # Reading -------------------------------------------------------------------------------------------

    def read(self, how: str, n: int, start_ns: int, limit_s: float) -> list[object]:
        """Name to bytes, `n` times, in random order; everything has been read once before."""
        choose = random.Random(5)
        order = [choose.randrange(MEMORIES) for _ in range(n)]
        once = self._reader(how)
        for i in range(MEMORIES):
            if once(i) != 1029:
                raise ValueError(f"{how}: another size than was written")
        wait_until(start_ns)
        return reply_of(timed_loop(once, order, limit_s))

    def _reader(self, how: str) -> Callable[[int], int]:
        import apsw

        from avmfs.store.cache.follow import FollowedCache
        from benchmarks.ablation_cache import NoBodies, NoNodes, remember

        store, who, folder, nodes = self._store, self._who, self._folder, self._nodes
        kept = {"store, no node remembered": NoNodes, "store, no body remembered": NoBodies}.get(how, FollowedCache)
        remember(store, kept())
        assert folder is not None
        names = [b"m%04d" % i for i in range(MEMORIES)]
        by_name = "select body.data from node join body on body.id = node.body where parent = ? and name = ?"

        def cold(i: int) -> int:
            db = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return len(bytes(db.execute(by_name, (folder, names[i])).get))
            finally:
                db.close()

        def through_sql(i: int) -> int:
            with store.reading(who) as reader:
                found = reader.child(folder, names[i])
                assert found is not None
                return len(reader.read(found.id, 0, found.size))

        def remembered(i: int) -> int:
            found = store.cached_child(who, folder, names[i])
            assert found is not None
            return len(store.cached_read(who, found.id, 0, found.size))

        match how:
            case "open, SELECT, close":
                return cold
            case "SELECT, prepared":
                connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
                return lambda i: len(bytes(connection.execute(by_name, (folder, names[i])).get))
            case "store, by SQL":
                return through_sql
            case "store, no node remembered" | "store, no body remembered" | "store, remembered":
                return remembered
            case "dict":
                held = {names[i]: store.cached_read(who, nodes[i], 0, 4096) for i in range(MEMORIES)}
                return lambda i: len(held[names[i]])
            case _:
                raise ValueError(f"unknown way to read: {how}")

    def pattern(self, pattern: str, size: int, n: int, start_ns: int, limit_s: float) -> dict[str, object]:
        """`n` reads in an order of `pattern` while only `size` bodies may be remembered. The timing, and the share of
        reads that found theirs: here, and in a least-recently-used cache of the same size. Nodes are all remembered."""
        from avmfs.store.cache.follow import FollowedCache
        from benchmarks.ablation_cache import Counting, bodies_limited, remember

        order = list(accesses(pattern, MEMORIES, WARM + n, random.Random(7)))
        store, who, nodes = self._store, self._who, self._nodes
        whole = len(store.cached_read(who, nodes[0], 0, 4096))
        counting = Counting()
        with bodies_limited(size * whole):
            remember(store, counting)
            for i in order[:WARM]:
                store.cached_read(who, nodes[i], 0, 4096)
            counting.missed = 0
            wait_until(start_ns)
            timing = timed_loop(lambda i: store.cached_read(who, nodes[i], 0, 4096), order[WARM:], limit_s)
        remember(store, FollowedCache())
        done = len(timing.samples_ns)
        return {"timing": reply_of(timing), "hits": 1 - counting.missed / done, "lru_hits": lru_hits(order, size, WARM)}


def lru_hits(order: Sequence[int], size: int, warm: int) -> float:
    """The share of accesses after the first `warm` that a least-recently-used cache of `size` would answer."""
    cache = functools.lru_cache(maxsize=size)(lambda i: i)
    for i in order[:warm]:
        cache(i)
    before = cache.cache_info().hits
    for i in order[warm:]:
        cache(i)
    return (cache.cache_info().hits - before) / (len(order) - warm)


def accesses(pattern: str, items: int, n: int, choose: random.Random) -> Iterator[int]:
    """`n` accesses to `items` things.

    Zipf: rank r with a weight of r ** -1.5. Working set: 80 % from 50 things, a fifth of which is exchanged every 500
    accesses. Temporal: 70 % go to one of the last 50 things used, nearer ones oftener. Uniform: any alike.
    """
    shuffled = list(range(items))
    choose.shuffle(shuffled)
    if pattern == "Zipf":
        yield from choose.choices(shuffled, weights=[(rank + 1) ** -1.5 for rank in range(items)], k=n)
    elif pattern == "uniform":
        yield from choose.choices(shuffled, k=n)
    elif pattern == "working set":
        held = shuffled[:50]
        for number in range(n):
            if number % 500 == 499:
                held = held[10:] + choose.sample([i for i in shuffled if i not in held], 10)
            yield choose.choice(held) if choose.random() < 0.8 else choose.choice(shuffled)
    elif pattern == "temporal":
        recent: list[int] = []
        for _ in range(n):
            if recent and choose.random() < 0.7:
                one = recent[-1 - min(int(choose.expovariate(1 / 15)), len(recent) - 1)]
            else:
                one = choose.choice(shuffled)
            recent = [*recent[-49:], one]
            yield one
    else:
        raise ValueError(f"unknown pattern: {pattern}")
