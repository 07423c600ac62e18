"""Who may see and change what: the one policy for every door.

Owns scopes (interned visibility classes) and the rules that produce them. A node's scope is folded
at write time from its place, its ``:shared`` set and the rules by pattern; afterwards a question
"may X read this node" is a look at its scope alone, so the store can ask it inside every query
(DESIGN 3.4). Called by the store in its write transactions and by readers through ``visible``.
Knows no SQL. Groups, capabilities, API keys and quotas will join here.

Two rules compose by taking the lesser access: a pattern can narrow a private space or a ``:shared``
set, never widen it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from avmfs import paths
from avmfs.errors import Denied, NotFound


class Access(IntEnum):
    """Ordered: the lesser of two is the narrower."""

    NONE = 0
    READ = 1
    WRITE = 2


_WORD = {"none": Access.NONE, "ro": Access.READ, "rw": Access.WRITE}
_SHOWN = {access: word for word, access in _WORD.items()}


ROUTES = ("", "cli", "daemon", "http", "mcp", "mount", "python")
"""By which door somebody asks; "" is one that did not say."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. The operator sees and may change everything; a caller must ask to be one. ``route`` is for the audit
    alone: whoever asks is the same by every door, so what is remembered of a principal holds for all of them."""

    name: str
    operator: bool = False
    route: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """A visibility class: what everyone may, and which agents may otherwise.

    ``spec`` is its canonical text, ``*=rw;eve=none``, by which the store interns it.
    """

    everyone: Access
    agents: tuple[tuple[str, Access], ...] = ()

    @property
    def spec(self) -> str:
        return ";".join([f"*={_SHOWN[self.everyone]}", *(f"{name}={_SHOWN[may]}" for name, may in self.agents)])

    @staticmethod
    def parse(spec: str) -> Scope:
        head, *rest = (item.split("=") for item in spec.split(";"))
        return Scope(_WORD[head[1]], tuple((name, _WORD[word]) for name, word in rest))

    def access(self, who: Principal) -> Access:
        if who.operator:
            return Access.WRITE
        for name, may in self.agents:
            if name == who.name:
                return may
        return self.everyone


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern`` is a glob over the absolute path in which ``*`` also crosses ``/``; one that ends in ``/*``
    covers the directory itself too. ``agents`` None means all."""

    pattern: str
    access: Access
    agents: tuple[str, ...] | None = None


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    whole = fnmatch.translate(pattern)
    return re.compile(f"{whole}|{fnmatch.translate(pattern[:-2])}" if pattern.endswith("/*") else whole)


class Policy:
    """The rules in force. The first rule whose pattern and agents match decides; else the default."""

    def __init__(self, rules: Iterable[Rule] = (), default: Access = Access.WRITE) -> None:
        self.rules = tuple(rules)
        self.default = default

    @staticmethod
    def from_words(rules: Iterable[tuple[str, str, tuple[str, ...] | None]], default: str) -> Policy:
        """Build from configuration words: (pattern, "rw" | "ro" | "none", agents or None)."""
        return Policy((Rule(pattern, _WORD[word], agents) for pattern, word, agents in rules), _WORD[default])

    @property
    def digest(self) -> str:
        """Changes whenever a stored scope could: the store re-scopes when it differs."""
        return hashlib.sha256(repr((self.rules, self.default)).encode()).hexdigest()

    def scope(self, parts: tuple[bytes, ...], shared: tuple[str, ...] | None = None) -> Scope:
        """The scope of the node at ``parts``; ``shared`` limits it to those agents in shared space."""
        owner = paths.agent_space(parts)
        if owner is not None:
            base = Scope(Access.NONE, ((owner, Access.WRITE),))
        elif shared is not None:
            base = Scope(Access.NONE, tuple((name, Access.WRITE) for name in sorted(shared)))
        else:
            base = Scope(Access.WRITE)
        where = paths.text(paths.join(parts))
        matching = [rule for rule in self.rules if _glob(rule.pattern).match(where)]
        named = {name for name, _ in base.agents}
        named.update(name for rule in matching for name in rule.agents or ())
        everyone = min(base.everyone, self._ruled(matching, None))
        folded = {name: min(base.access(Principal(name)), self._ruled(matching, name)) for name in sorted(named)}
        return Scope(everyone, tuple((name, may) for name, may in folded.items() if may != everyone))

    def _ruled(self, matching: list[Rule], agent: str | None) -> Access:
        for rule in matching:
            if rule.agents is None or (agent is not None and agent in rule.agents):
                return rule.access
        return self.default


class Visible:
    """The scopes that one principal may see, out of those interned so far.

    ``ids`` goes into every query; ``require`` decides on one node. Rebuilt when the store has
    interned a new scope (the caller compares ``highest``).
    """

    def __init__(self, who: Principal, scopes: Mapping[int, Scope]) -> None:
        self.who = who
        self.highest = max(scopes, default=0)
        self._access = {number: scope.access(who) for number, scope in scopes.items()}
        self.ids = frozenset(number for number, may in self._access.items() if may >= Access.READ)
        self.json = "[" + ",".join(map(str, sorted(self.ids))) + "]"

    def __contains__(self, scope: int) -> bool:
        return scope in self.ids

    def writable(self, scope: int) -> bool:
        return self._access.get(scope, Access.NONE) >= Access.WRITE

    def require(self, scope: int, path: str | None = None) -> None:
        """Raise NotFound when the scope is invisible, Denied when it is visible but not writable."""
        if scope not in self.ids:
            raise NotFound(path=path)
        if not self.writable(scope):
            raise Denied("read-only for you", path)
