"""What bench_discovery measures on: stores of many agents, and hosts without a store or a network.

Of the simulated hosts the exchange is the product's own (avmfs.agents.gossip); what a host knows is kept in two
dictionaries.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

from avmfs_config import Limits, SearchSettings

from avmfs.access import Policy, Principal
from avmfs.agents import digest_cache, gossip
from avmfs.agents.gossip import Delta
from avmfs.memory import Memory
from avmfs.search.engine import Engine
from avmfs.services import Services
from avmfs.store.client.client import Submitter
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.discovery import Digest, Host
from avmfs.store.schema import database
from avmfs.store.store import Store
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from avmfs.text.tokens import TokenCounter

ROUNDS_AT_MOST = 1000


class Shelf:
    """What one host knows, with its own digests; as gossip.Knowledge."""

    def __init__(self, host: str, own: Mapping[str, bytes]) -> None:
        self.host = host
        made = [Digest(host, agent, version, bits) for version, (agent, bits) in enumerate(own.items(), 1)]
        self._digests: dict[str, dict[str, Digest]] = {host: {each.agent: each for each in made}}
        self._hosts = {host: Host(host, f"h{host}", len(made), 0, True)}

    def hosts(self) -> list[Host]:
        return [self._hosts[name] for name in sorted(self._hosts)]

    def digests(self, host: str, after: int) -> list[Digest]:
        found = self._digests.get(host, {}).values()
        return sorted((each for each in found if each.version > after), key=lambda each: each.version)

    def merge(self, delta: Delta) -> int:
        known = self._hosts.get(delta.host)
        reached = 0 if known is None else known.version
        if reached < delta.after:
            return 0
        new = [each for each in delta.digests if each.version > reached]
        self._digests.setdefault(delta.host, {}).update((each.agent, each) for each in new)
        self._hosts[delta.host] = Host(delta.host, delta.name, max(reached, delta.version), delta.alive, False)
        return len(new)


def exchange(asker: gossip.Knowledge, other: gossip.Knowledge) -> int:
    """One whole exchange; how many digests were new on either side."""
    learnt, lacking = gossip.settle(asker, gossip.answer(other, gossip.summary(asker)))
    return learnt + gossip.take(other, lacking)


def converge(hosts: Sequence[Shelf], chance: random.Random) -> int:
    """Rounds, in each of which every host asks one other at random, until all know all."""
    for rounds in range(1, ROUNDS_AT_MOST + 1):
        for asker in hosts:
            exchange(asker, chance.choice([other for other in hosts if other is not asker]))
        if all(len(shelf.hosts()) == len(hosts) for shelf in hosts):
            return rounds
    raise RuntimeError(f"{len(hosts)} hosts do not know each other after {ROUNDS_AT_MOST} rounds")


# ---- stores of many agents ----


class AppliedHere(Submitter):
    """Commands of a store in this process, without the lock and the sync of each that a program has."""

    def __init__(self, path: Path) -> None:
        database.prepare(path)
        self._applier = Applier(path, Policy(), IndexRules(), orphans=False, clock=time.time_ns)
        self._applier.alone(OPERATOR, "settle", {})

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        return self._applier.alone(who, command, arguments)

    def close(self) -> None:
        self._applier.close()


@contextmanager
def opened(path: Path) -> Iterator[Services]:
    """A store, made if need be, and what memories on it share; no vectors."""
    store = Store(path, AppliedHere(path))
    try:
        engine = Engine(store.search_index, None, TokenCounter())
        yield Services(store, engine, SearchSettings(), Limits(), time.time_ns, UTC)
    finally:
        store.close()


def populate(around: Services, agents: int, experts: int, notes: int) -> list[str]:
    """``agents`` with ``notes`` notes each, half of them private. Every topic is known to ``experts`` agents, half of
    them in private only, however many agents there are. Returns the topics."""
    topics = [f"Topic{number:05d}x" for number in range(max(1, agents * notes // experts))]
    turn = 0
    for number in range(agents):
        memory = Memory(around, Principal(f"agent{number:04d}"))
        memory.submit("enroll")
        for note in range(notes):
            topic, where = topics[turn % len(topics)], (b"private", b"shared")[turn // len(topics) % 2]
            turn += 1
            path = memory.real_parts(b"/" + where + f"/n{number}-{note}.md".encode())
            text = f"Notes of the day: the team spoke about #{topic} and what follows from it, item {note}.\n"
            memory.submit("write_path", path=list(path), data=text.encode())
    while around.store.submit(OPERATOR, "drain_lexical", limit=512)["left"]:
        pass
    return topics


def set_modes(around: Services, agents: int, mode: str) -> None:
    for number in range(agents):
        around.store.submit(OPERATOR, "set_privacy", mode=mode, agent=f"agent{number:04d}")
    digest_cache.publish(around.store)
