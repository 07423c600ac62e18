"""Who may see and change what: the one policy for every door.

Owns scopes (interned visibility classes) and the rules that produce them. A node's scope is folded
at write time from its place, its ``:shared`` set, what agents are capable of, the rules by pattern, and the areas that
API keys are limited to; afterwards a question "may X read this node" is a look at its scope alone, so the store can ask
it inside every query (ARCHITECTURE, decision 3). Called by the store in its write transactions and by readers through
``visible``. Knows no SQL. docs/SECURITY.md is the guide.

Two rules compose by taking the lesser access: a pattern can narrow a private space or a ``:shared``
set, never widen it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, get_args

from avmfs import paths, trust
from avmfs.errors import Denied
from avmfs.trust import LEVELS, OWN, Origin, Trust, Trusted

if TYPE_CHECKING:  # a command that asks a daemon should not pay for it
    from avmfs_config import Settings


class Access(IntEnum):
    """Ordered: the lesser of two is the narrower."""

    NONE = 0
    READ = 1
    WRITE = 2


_WORD = {"none": Access.NONE, "ro": Access.READ, "rw": Access.WRITE}
_SHOWN = {access: word for word, access in _WORD.items()}

CAPABILITIES: Final = ("search_all", "write", "sudo")
ACTIONS: Final = ("read", "write", "search", "tell", "inbox")  # of an API key; none makes an operator
Privacy = Literal["full", "owner", "existence", "none"]  # how much others may learn of what its owner alone may read
PRIVACY: Final = get_args(Privacy)
UNSAID: Final = "none"  # the privacy of whoever has said nothing
ANYBODY: Final = "*"  # in the section ``agents``: every agent that has no entry of its own

Area = tuple[int, tuple[bytes, ...]]  # its number, and the path of what it covers with all below


@dataclass(frozen=True, slots=True)
class Key:
    """What an API key leaves of the rights of its agent. ``areas`` None: the whole tree. ``memory``: all of /memory and
    what was put away of it, which is no area, so that it costs no walk."""

    id: str
    areas: tuple[int, ...] | None
    actions: tuple[str, ...]
    memory: bool = False

    def access(self, scope: Scope) -> Access:
        """The most that this key allows in a scope. The way to an area can be walked, and no more."""
        here = self.areas is None or not scope.inside.isdisjoint(self.areas)
        here = here or (self.memory and not scope.live and scope.aside != "index")
        if "write" in self.actions and here:
            return Access.WRITE
        seen = here or not scope.leads.isdisjoint(self.areas or ())
        return Access.READ if seen and not {"read", "write", "search"}.isdisjoint(self.actions) else Access.NONE


ROUTES = ("", "cli", "daemon", "http", "live", "mcp", "mount", "python")
"""By which door somebody asks; "" is one that did not say, "live" what a provider has fetched."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. The operator sees and may change everything; a caller must ask to be one. ``key``: the API key that
    was shown, which can only narrow. ``route`` is for the audit alone: whoever asks is the same by every door, so what
    is remembered of a principal holds for all of them. ``stranger``: asks as another Unix user than the store's."""

    name: str
    operator: bool = False
    key: Key | None = None
    route: str = field(default="", compare=False)
    stranger: bool = field(default=False, compare=False)

    @property
    def nameless(self) -> bool:
        """Nobody in particular, who sees what every agent may see and changes nothing."""
        return not self.name and not self.operator

    @property
    def rights(self) -> bool | str:
        """As whom a name asks, as a plain value: the id of its key, or whether it is the operator. Who receives this
        looks the key up by itself (keys.principal)."""
        return self.operator if self.key is None else self.key.id

    def may(self, action: str) -> bool:
        """Return whether the key that was shown, if any, allows this action."""
        return self.key is None or action in self.key.actions

    def require(self, action: str) -> None:
        """Raises Denied."""
        if not self.may(action):
            raise Denied(f"this API key does not allow {action!r}")

    def require_itself(self) -> None:
        """Raises Denied for who shows an API key: what is the agent's as a whole is not a key's, which may be for a
        part of the tree."""
        if self.key is not None:
            raise Denied("no API key allows this: it is for the agent itself")

    def require_operator(self, why: str = "only an operator may ask this") -> None:
        """Raises Denied, with the reason, for who is none."""
        if not self.operator:
            raise Denied(why)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that an agent may have; None: no limit. ``bytes`` counts sizes, holes too, and tags, links and keys of
    :meta; ``history_bytes`` what older versions take, each of a large file whole; ``unread`` messages in its inbox."""

    nodes: int | None = None
    bytes: int | None = None
    history_bytes: int | None = None
    unread: int | None = None

    @property
    def most_nodes(self) -> int | None:
        """An empty file takes room too: where only bytes are limited, so are nodes, as on ext4 (mke2fs -i)."""
        return 64 + self.bytes // 1024 if self.nodes is None and self.bytes is not None else self.nodes


@dataclass(frozen=True, slots=True)
class Person:
    """What the configuration says of an agent."""

    groups: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ("write",)
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True)
class Scope:
    """A visibility class: what everyone may, and which agents may otherwise. ``inside``: the areas of API keys that it
    lies in; ``leads``: those that it is on the way to. ``owner``: the one agent whose it is by place and ``:shared``,
    whoever may read it beside that by a capability; None where it is nobody's, several agents' or everyone's.
    ``aside``: "trash", "archive" or "index" for what stands there, and is found there alone: the first two under the
    rights of where it came from. ``live``: it comes from outside the store (see providers), and changes only by those
    who bring it. ``origin``: how a file's text came in, and ``trust``, what follows of it.

    ``spec`` is its canonical text, ``*=rw;eve=none;@2;^3``, by which the store interns it. It names the owner
    (``!bob``, ``!`` for none) only where that is not the one agent that it speaks of.
    """

    everyone: Access
    agents: tuple[tuple[str, Access], ...] = ()
    inside: frozenset[int] = frozenset()
    leads: frozenset[int] = frozenset()
    owner: str | None = None
    aside: str = ""
    live: bool = False
    origin: Origin = OWN
    trust: Trust = "allow"

    @property
    def spec(self) -> str:
        said = ";".join(
            [
                f"*={_SHOWN[self.everyone]}",
                *(f"{name}={_SHOWN[may]}" for name, may in self.agents),
                *(f"@{area}" for area in sorted(self.inside)),
                *(f"^{area}" for area in sorted(self.leads)),
                *([f"~{self.aside}"] if self.aside else ()),
                *(("+",) if self.live else ()),
                *([f"#{self.origin.plain}{'!' * self.origin.released}:{self.trust}"] if self.origin.sources else ()),
            ]
        )
        return said if self.owner == _alone(said) else f"{said};!{self.owner or ''}"

    @staticmethod
    @lru_cache(maxsize=65536)  # each connection has them all, and they do not change
    def parse(spec: str) -> Scope:
        said, marked, owner = spec.partition(";!")
        head, *rest = said.split(";")
        agents = (item.split("=") for item in rest if item[0] not in "@^~+#")
        came, _, level = next((item[1:] for item in rest if item[0] == "#"), "").partition(":")
        return Scope(
            _WORD[head[2:]],
            tuple((name, _WORD[word]) for name, word in agents),
            frozenset(int(item[1:]) for item in rest if item[0] == "@"),
            frozenset(int(item[1:]) for item in rest if item[0] == "^"),
            (owner or None) if marked else _alone(said),
            "".join(item[1:] for item in rest if item[0] == "~"),
            "+" in rest,
            Origin(tuple(came.rstrip("!").split(",")), came.endswith("!")) if came else OWN,
            LEVELS[LEVELS.index(level)] if level else "allow",
        )

    @property
    def taken(self) -> bool:
        """Return whether some agent may write: an operator may everywhere, also where no source takes it."""
        return Access.WRITE in (self.everyone, *(may for _, may in self.agents))

    @property
    def readers(self) -> frozenset[str] | None:
        """The agents that may read it; None: all that it does not name."""
        return None if self.everyone else frozenset(name for name, may in self.agents if may)

    def access(self, who: Principal) -> Access:
        may = Access.WRITE if who.operator else self.of(who.name)
        return may if who.key is None else min(may, who.key.access(self))

    def of(self, agent: str) -> Access:
        """What an agent may, as itself and without a key; "", nobody in particular, what every agent may."""
        if not agent:
            return min([self.everyone, *(may for _, may in self.agents)])
        for name, may in self.agents:
            if name == agent:
                return may
        return self.everyone


def _alone(spec: str) -> str | None:
    found = re.fullmatch(r"\*=none;([^=;]+)=r[ow]", spec)
    return None if found is None else found[1]


_FOLDING: Final = 4  # how rules are folded into scopes: another number makes every store fold them anew
NOBODY: Final = Scope(Access.NONE)  # of what only an operator may see


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern`` is a glob over the absolute path in which ``*`` also crosses ``/``; one that ends in ``/*``
    covers the directory itself too, and one that hides a directory all that is below it. It is about ``agents`` and the
    members of ``groups``; both None: about all."""

    pattern: str
    access: Access
    agents: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    whole = fnmatch.translate(pattern)
    return re.compile(f"{whole}|{fnmatch.translate(pattern[:-2])}" if pattern.endswith("/*") else whole)


def _covers(rule: Rule, directory: tuple[bytes, ...]) -> bool | None:
    """Return whether a rule matches all that is below a directory, None where that depends on the name. See
    Policy._matching."""
    top = paths.text(paths.join(directory)) + "/"
    head = re.split(r"[*?[]", rule.pattern)[0]
    if rule.pattern == f"{head}*" and top.startswith(head):
        return True
    if rule.access is Access.NONE and any(map(_glob(rule.pattern).match, _above(top))):
        return True
    return None if head.startswith(top) or (rule.pattern != head and top.startswith(head)) else False


def _above(where: str) -> list[str]:
    """The directories above a path; with a slash at its end itself too."""
    return ["/", *(where[: slash.start()] for slash in re.finditer("(?!^)/", where))]


class Policy:
    """The rules in force. The first rule whose pattern and agents match decides; else the default. ``people`` are the
    agents that the configuration knows something of; ``*`` among them stands for all others. Outside /memory nobody but
    an operator changes anything, except for what providers let agents write: ``live`` has their patterns, which, and
    from which source each brings text. ``trust``: the first rule about a source that matches decides (avmfs.trust).
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        default: Access = Access.WRITE,
        people: Mapping[str, Person] | None = None,
        live: Iterable[tuple[str, bool, str]] = (),
        trusted: Iterable[Trusted] = (),
    ) -> None:
        self.rules = tuple(rules)
        self.live = tuple((pattern, bool(takes), via) for pattern, takes, via in live)
        self.trust = tuple(trusted)
        self._placing = (*self.rules, *(Rule(each.pattern, Access.READ) for each in self.trust))
        self.default = default
        self.people = dict(sorted((people or {}).items()))
        self.named = frozenset(self.people).difference((ANYBODY,))
        self._anybody = self.people.get(ANYBODY, Person())
        self.quotas = any(person.quota != Quota() for person in self.people.values())
        usual = self._sight(self._anybody)
        self._apart = {name for name, each in self.people.items() if self._sight(each) != usual}
        self._members: dict[str, set[str]] = {}
        for name, person in self.people.items():
            for group in person.groups:
                self._members.setdefault(group, set()).add(name)

    @staticmethod
    def from_words(rules: Iterable[tuple[str, str, tuple[str, ...] | None]], default: str) -> Policy:
        """Build from configuration words: (pattern, "rw" | "ro" | "none", agents or None)."""
        return Policy((Rule(pattern, _WORD[word], agents) for pattern, word, agents in rules), _WORD[default])

    @staticmethod
    def from_settings(settings: Settings) -> Policy:
        people = {
            name: Person(each.groups, each.capabilities, Quota(*astuple(each.quota)))
            for name, each in settings.agents.items()
        }
        rules = (Rule(each.pattern, _WORD[each.access], each.agents, each.groups) for each in settings.permissions)
        live = (
            (each.pattern, each.writable, "web" if each.handler == "http" else "live") for each in settings.providers
        )
        trusted = (Trusted(each.source, each.pattern, each.action) for each in settings.trust)
        return Policy(rules, _WORD[settings.default_access], people, live, trusted)

    @property
    def plain(self) -> str:
        """All of it as text, for other processes and for the store: see from_plain."""
        return json.dumps(
            {
                "rules": [[rule.pattern, _SHOWN[rule.access], rule.agents, rule.groups] for rule in self.rules],
                "default": _SHOWN[self.default],
                "people": {
                    name: [each.groups, each.capabilities, astuple(each.quota)] for name, each in self.people.items()
                },
                "live": self.live,
                "trust": self.trust,
            },
            sort_keys=True,
        )

    @staticmethod
    def from_plain(text: str) -> Policy:
        data = json.loads(text)
        return Policy(
            (
                Rule(pattern, _WORD[word], _tuple(agents), _tuple(groups))
                for pattern, word, agents, groups in data["rules"]
            ),
            _WORD[data["default"]],
            {
                name: Person(tuple(groups), tuple(capabilities), Quota(*quota))
                for name, (groups, capabilities, quota) in data["people"].items()
            },
            ((pattern, takes, *(via or ["live"])) for pattern, takes, *via in data.get("live", ())),
            (Trusted(*each) for each in data.get("trust", ())),
        )

    def joined(self, people: Mapping[str, Person]) -> Policy:
        """With more agents; what this policy says of one already stands."""
        return Policy(self.rules, self.default, {**people, **self.people}, self.live, self.trust) if people else self

    @property
    def digest(self) -> str:
        """Changes whenever a stored scope could: the store re-scopes when it differs."""
        sights = {name: (each.groups, self._sight(each)) for name, each in self.people.items()}
        more = ((self.live,) if self.live else ()), (("trust", self.trust),) if self.trust else ()
        folded = (_FOLDING, self.rules, self.default, sights, *more[0], *more[1])
        return hashlib.sha256(repr(folded).encode()).hexdigest()

    def person(self, name: str) -> Person:
        return self.people.get(name, self._anybody)

    def groups(self) -> frozenset[str]:
        return frozenset(self._members)

    def require(self, who: Principal, capability: str) -> None:
        """Raises Denied."""
        if not who.operator and capability not in self.person(who.name).capabilities:
            raise Denied(f"{who.name} lacks the capability {capability!r}")

    def scope(
        self,
        parts: tuple[bytes, ...],
        shared: tuple[str, ...] | None = None,
        areas: Iterable[Area] = (),
        origin: Origin = OWN,
    ) -> Scope:
        """The scope of the node at ``parts``; ``shared`` limits it to those agents in shared space."""
        aside, live, parts = paths.aside(parts), paths.is_live(parts), paths.origin(parts)
        where = paths.text(paths.join(parts)) if origin.sources or live else ""
        owner = paths.agent_space(parts)
        if live:
            takes = any(
                takes and (paths.matches(pattern, parts) or paths.is_directly_above(pattern, parts))
                for pattern, takes, _ in self.live
            )
            base = Scope(Access.WRITE if takes else Access.READ)
            origin = Origin(tuple(sorted({via for pattern, _, via in self.live if paths.matches(pattern, parts)})))
        elif owner is not None:
            base = Scope(Access.NONE, ((owner, Access.WRITE),))
        elif shared is not None:
            base = Scope(Access.NONE, tuple((name, Access.WRITE) for name in sorted(shared)))
        else:
            base = Scope(Access.WRITE)
        if aside == "index":  # only the command that makes one writes there
            base = Scope(min(base.everyone, Access.READ), tuple((name, Access.READ) for name, _ in base.agents))
        matching = self._matching(parts)
        named = {name for name, _ in base.agents} | self._apart
        for rule in matching:
            named.update(rule.agents or ())
            named.update(name for group in rule.groups or () for name in self._members.get(group, ()))
        named.discard(ANYBODY)  # in a scope's text it stands for everyone
        everyone = min(self._able(self._anybody, base.everyone), self._ruled(matching, None))
        folded = {
            name: min(self._able(self.person(name), base.of(name)), self._ruled(matching, name))
            for name in sorted(named)
        }
        owners = [name for name, _ in base.agents if everyone is Access.NONE]
        return Scope(
            everyone,
            tuple((name, may) for name, may in folded.items() if may != everyone),
            frozenset(number for number, top in areas if parts[: len(top)] == top),
            frozenset(number for number, top in areas if len(parts) < len(top) and top[: len(parts)] == parts),
            owners[0] if len(owners) == 1 and folded[owners[0]] else None,
            aside,
            live,
            origin,
            trust.level(self.trust, origin, lambda pattern: bool(_glob(pattern).match(where))),
        )

    def uniform(self, directory: tuple[bytes, ...]) -> bool:
        """Return whether the rules say the same of all that is below a directory, whatever it is called."""
        if self.live and paths.is_live(directory):
            return False
        directory = paths.origin(directory)
        return all(_covers(rule, directory) is not None for rule in self._placing)

    def alike(self, one: tuple[bytes, ...], other: tuple[bytes, ...], areas: Iterable[Area] = ()) -> bool:
        """Return whether all that is below a directory has the same scope below another. False where that depends on
        its name, so that a directory of any size can be moved at once in all other cases."""
        if paths.agent_space(one) != paths.agent_space(other) or paths.aside(one) != paths.aside(other):
            return False
        if paths.is_live(one) or paths.is_live(other):
            return False
        if not (one and other):
            return one == other  # below the root is what stands aside
        one, other = paths.origin(one), paths.origin(other)
        way = (paths.MEMORY, paths.PRIVATE)
        if one != other and any(way[: len(place)] == place for place in (one, other)):
            return False  # agents' own spaces are below
        for rule in self._placing:
            if (covered := _covers(rule, one)) is None or covered != _covers(rule, other):
                return False
        tops = [top for _, top in areas]
        leads = any(top[: len(place)] == place for top in tops for place in (one, other))
        return not leads and all((one[: len(top)] == top) == (other[: len(top)] == top) for top in tops)

    def _matching(self, parts: tuple[bytes, ...]) -> list[Rule]:
        """In order. What cannot be reached because a directory above is hidden is hidden from searches too."""
        if not self.rules:
            return []
        where = paths.text(paths.join(parts))
        above = _above(where)
        return [
            rule
            for rule in self.rules
            if (glob := _glob(rule.pattern)).match(where)
            or (rule.access is Access.NONE and any(map(glob.match, above)))
        ]

    @staticmethod
    def _able(person: Person, may: Access) -> Access:
        """What capabilities make of the access that place and ``:shared`` give."""
        if "search_all" in person.capabilities:
            may = max(may, Access.READ)
        return may if "write" in person.capabilities else min(may, Access.READ)

    @staticmethod
    def _sight(person: Person) -> tuple[bool, bool]:
        """The capabilities that scopes depend on."""
        return "search_all" in person.capabilities, "write" in person.capabilities

    def _ruled(self, matching: list[Rule], agent: str | None) -> Access:
        """An agent of which nothing is known to differ is everyone: see ``named``."""
        groups = self.person(agent).groups if agent is not None else self._anybody.groups
        for rule in matching:
            if rule.agents is None and rule.groups is None:
                return rule.access
            if agent in (rule.agents or ()):
                return rule.access
            if not set(groups).isdisjoint(rule.groups or ()):
                return rule.access
        return self.default


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
