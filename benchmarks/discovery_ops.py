"""Hosts that exchange digests without a store or a network: what the simulation of gossip is made of.

The exchange is the product's own (avmfs.agents.gossip); what a host knows is kept in two dictionaries.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from avmfs.agents import gossip
from avmfs.agents.gossip import Delta
from avmfs.store.protocol_discovery import Digest, Host

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
