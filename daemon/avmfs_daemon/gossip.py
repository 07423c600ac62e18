"""Digests as the keeper's work: publishing this store's, and exchanging them with other hosts where configured.

Composed by `entrypoints.run_keeper`. Holds no state that a restart would lose. What it says of itself is the section
`gossip` of `avm-daemon status`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from avmfs_config import GossipSettings

from avmfs.agents.digest_cache import Publisher
from avmfs.agents.gossip import ALIVE_NS, StoreKnowledge
from avmfs.agents.gossip_link import Gossip
from avmfs.errors import AvmError
from avmfs.store.identity import OPERATOR
from avmfs.store.store import Store

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0  # before it is begun again, where it could not be
FORGOTTEN_NS: Final = 14 * 24 * 3600 * 10**9  # a host that has not been alive for so long


class Digests:
    """`step` is for the keeper's rounds; `close` ends what listens. `report` hears how it is."""

    def __init__(
        self,
        store: Store,
        settings: GossipSettings,
        report: Callable[[dict[str, Any]], None],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._report = report
        self._publisher = Publisher(store)
        self._gossip: Gossip | None = None
        self._problem = ""
        self._next_try = 0.0
        self._begin()

    def step(self) -> None:
        self._publisher.step()
        if self._problem and time.monotonic() >= self._next_try:
            self._begin()

    def close(self) -> None:
        if self._gossip is not None:
            self._gossip.close()

    def _begin(self) -> None:
        said, problem = {"state": "off"}, ""
        if self._settings.enabled:
            try:
                self._gossip = Gossip(self._settings, StoreKnowledge(self._store), self._alive, self._heard)
                said = self._gossip.status()
            except OSError as e:  # AvmError is one: memory goes on without other hosts
                said, problem = {"state": f"failed: {e}"}, str(e)
        again, self._problem, self._next_try = problem == self._problem, problem, time.monotonic() + RETRY_S
        if problem and again:
            return
        if problem:
            log.error("gossip does not start: %s", problem)
        self._heard(said)

    def _alive(self) -> None:
        """Say, now and then, that this host lives, and forget those that have not for long."""
        with self._store.reading(OPERATOR) as reader:
            hosts = reader.discovery.hosts()
        own, now = next((host for host in hosts if host.own), None), self._clock()
        name = self._settings.name
        if own is None or now - own.alive >= ALIVE_NS or (name is not None and own.name != name):
            self._store.submit(OPERATOR, "name_host", name=name)
        if any(not host.own and now - host.alive > FORGOTTEN_NS for host in hosts):
            self._store.submit(OPERATOR, "forget_hosts", before=now - FORGOTTEN_NS)

    def _heard(self, said: dict[str, Any]) -> None:
        known: dict[str, Any] = {}
        try:
            with self._store.reading(OPERATOR) as reader:
                hosts = reader.discovery.hosts()
                known = {"hosts": len(hosts), "digests": sum(bool(row.bits) for row in reader.discovery.digests())}
        except AvmError as e:
            log.warning("gossip: %s", e)
        self._report({**said, **known})
