"""Anti-entropy: how two hosts come to know the same digests.

Owns the four messages of an exchange and what may stand in them. Each host numbers its own digests with one rising
version; whoever knows a host up to a version knows all of that host's digests up to it, since they are passed on in
that order. So a summary is one number a host, and what is missing follows from two of them. Nobody coordinates: a host
learns of others from whomever it talks to.

Called by ``gossip_link``, which brings the messages across, and by the simulation in benchmarks/. Knows no sockets.
What comes from another host has shown the key but is still checked: sizes, types, and that nobody speaks for this host.

A. Demers et al., Epidemic algorithms for replicated database maintenance, PODC 1987 (push-pull).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from avmfs_config import check_agent_id

from avmfs.agents import bloom
from avmfs.errors import Invalid
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.discovery import Digest, Host
from avmfs.store.store import Store

PAGE_BYTES: Final = 512 * 1024  # of digests in one message; what is left comes with the next exchange
MESSAGE_LIMIT: Final = 4 * 1024 * 1024
SUMMARY_LIMIT: Final = 128 * 1024
HOSTS: Final = 1024
ALIVE_NS: Final = 3600 * 10**9  # that a host lives is passed on when it is newer by this
_HOST: Final = re.compile(r"[0-9a-f]{16}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Delta:
    """Digests of one host, in order of version: all from ``after``, which the receiver has, up to ``version``."""

    host: str
    name: str
    alive: int
    after: int
    version: int
    digests: tuple[Digest, ...]


class Knowledge(Protocol):
    """What a host knows, and where it puts what it learns."""

    def hosts(self) -> Sequence[Host]: ...
    def digests(self, host: str, after: int) -> Sequence[Digest]:
        """In order of version."""
        ...

    def merge(self, delta: Delta) -> int:
        """Take it over; how many digests were new."""
        ...


class StoreKnowledge:
    """That of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def hosts(self) -> list[Host]:
        with self._store.reading(OPERATOR) as reader:
            return reader.discovery.hosts()

    def digests(self, host: str, after: int) -> list[Digest]:
        with self._store.reading(OPERATOR) as reader:
            return reader.discovery.digests(host, after, PAGE_BYTES // bloom.LEAST)

    def merge(self, delta: Delta) -> int:
        done = self._store.submit(
            OPERATOR,
            "merge_digests",
            host=delta.host,
            name=delta.name,
            alive=delta.alive,
            after=delta.after,
            version=delta.version,
            digests=[[each.agent, each.version, each.bits] for each in delta.digests],
        )
        return int(done["merged"])


# The exchange: the one who asks sends `summary`; the other sends `answer` to it; the first `settle`s that, and sends
# what the other lacks, which the other `take`s.


def summary(knowledge: Knowledge) -> dict[str, Any]:
    """Up to which version each host is known here, and when it was last known to live."""
    return {"hosts": {host.host: [host.version, host.alive] for host in knowledge.hosts()}}


def answer(knowledge: Knowledge, asked: Any) -> dict[str, Any]:
    """What the asker lacks, and what is known here. Raises Invalid."""
    return {**summary(knowledge), "deltas": [_packed(each) for each in _missing(knowledge, _summary(asked))]}


def settle(knowledge: Knowledge, answered: Any) -> tuple[int, dict[str, Any]]:
    """Learn from the answer: (how many digests were new, what the other lacks). Raises Invalid."""
    theirs = _summary(answered)
    lacking = _missing(knowledge, theirs)  # before it is learnt: what came from there is known there
    return take(knowledge, answered), {"deltas": [_packed(each) for each in lacking]}


def take(knowledge: Knowledge, sent: Any) -> int:
    """Learn from what was sent; how many digests were new. Raises Invalid before anything that is wrong is learnt."""
    deltas = _deltas(sent)
    own = {host.host for host in knowledge.hosts() if host.own}
    return sum(knowledge.merge(delta) for delta in deltas if delta.host not in own)


def _missing(knowledge: Knowledge, theirs: dict[str, tuple[int, int]]) -> list[Delta]:
    found: list[Delta] = []
    room = PAGE_BYTES
    for host in knowledge.hosts():
        version, alive = theirs.get(host.host, (-1, 0))
        if room <= 0 or (host.version <= version and host.alive - alive < ALIVE_NS):
            continue
        digests: list[Digest] = []
        whole = True
        for digest in knowledge.digests(host.host, max(version, 0)) if host.version > version else ():
            if digests and room < len(digest.bits):
                whole = False
                break
            digests.append(digest)
            room -= len(digest.bits) + 64
        # A page of the store may end before its last version, too.
        reached = digests[-1].version if digests else host.version
        whole = whole and (not digests or reached >= host.version)
        upto = max(host.version, reached) if whole else reached
        found.append(Delta(host.host, host.name, host.alive, max(version, 0), upto, tuple(digests)))
    return found


def _packed(delta: Delta) -> list[Any]:
    digests = [[each.agent, each.version, each.bits] for each in delta.digests]
    return [delta.host, delta.name, delta.alive, delta.after, delta.version, digests]


def _summary(message: Any) -> dict[str, tuple[int, int]]:
    hosts = message.get("hosts") if isinstance(message, dict) else None
    if not isinstance(hosts, dict) or len(hosts) > HOSTS:
        raise Invalid("gossip: a summary of hosts was expected")
    found = {}
    for host, value in hosts.items():
        if not isinstance(value, list) or len(value) != 2:
            raise Invalid("gossip: a host has a version and a time")
        found[_checked(host, _HOST, "host")] = _number(value[0]), _number(value[1])
    return found


def _deltas(message: Any) -> list[Delta]:
    deltas = message.get("deltas") if isinstance(message, dict) else None
    if not isinstance(deltas, list) or len(deltas) > HOSTS:
        raise Invalid("gossip: a list of hosts was expected")
    return [_delta(each) for each in deltas]


def _delta(packed: Any) -> Delta:
    if not isinstance(packed, list) or len(packed) != 6 or not isinstance(packed[5], list):
        raise Invalid("gossip: a host's digests were expected")
    host, name = _checked(packed[0], _HOST, "host"), _checked(packed[1], _NAME, "host's name")
    alive, after, upto = map(_number, packed[2:5])
    digests: list[Digest] = []
    before = after
    for item in packed[5]:
        if not isinstance(item, list) or len(item) != 3 or not isinstance(item[2], bytes) or not bloom.fits(item[2]):
            raise Invalid("gossip: not a digest")
        if not before < (version := _number(item[1])) <= upto:
            raise Invalid("gossip: digests are not in order of version")
        before = version
        digests.append(Digest(host, _agent(item[0]), version, item[2]))
    return Delta(host, name, alive, after, upto, tuple(digests))


def _agent(value: Any) -> str:
    try:
        return str(value) if value in ("", OPERATOR.name) else check_agent_id(value)  # that is who fetches live paths
    except (ValueError, TypeError):
        raise Invalid("gossip: not an agent") from None


def _checked(value: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Invalid(f"gossip: not a {what}")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise Invalid("gossip: not a number that can be")
    return value
