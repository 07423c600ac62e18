"""The table scope in memory, and what one principal may see and change: a set of scopes that goes into every query.

Called by the readers and the transactions of the store; ``access`` says what a scope is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import apsw

from avmfs.access import Access, Principal, Scope
from avmfs.errors import Denied, NotFound, StoreFailed
from avmfs.lru import FIFO
from avmfs.trust import QUARANTINED, Origin, Trust, marked

_PRINCIPALS = 4096  # remembered ones


class Visible:
    """The scopes that one principal may see, out of those interned so far. Searches and lists of the whole tree have
    those that are not aside (``Scope.aside``): ``searched``. What is ``held`` in quarantine none of them has
    (``told``: all but that). ``trash``: those of what is there; ``emptied_json``: of these the ones from which it
    may remove.

    ``ids`` goes into every query; ``require`` decides on one node. Rebuilt when the store has
    interned a new scope (the caller compares ``highest``).
    """

    def __init__(self, who: Principal, scopes: Mapping[int, Scope]) -> None:
        self.who = who
        self.highest = max(scopes, default=0)
        self._access = {number: scope.access(who) for number, scope in scopes.items()}
        self.ids = frozenset(number for number, may in self._access.items() if may >= Access.READ)
        self._live = frozenset(number for number in self.ids if scopes[number].live)
        self._scopes = scopes
        write = {number for number, may in self._access.items() if may >= Access.WRITE}
        self._shown_writable = frozenset(each for each in write if each not in self._live or scopes[each].taken)
        self.json = _json(self.ids)
        aside = {number: scope.aside for number, scope in scopes.items() if scope.aside}
        trash = frozenset(each for each in self.ids if aside.get(each) == "trash")
        self.trash, self.trash_json = trash, _json(trash)
        self.emptied_json = _json(trash & write)
        index = frozenset(each for each in self.ids if aside.get(each) == "index")
        self.held = frozenset(each for each in self.ids if scopes[each].trust == "quarantine")
        self.told = told = self.ids - self.held if self.held else self.ids
        self.told_json = self.json if told is self.ids else _json(told)
        self._searched = {"": told.difference(aside), "archive": told - trash - index, "index": index - self.held}
        self._searched["past"] = told - index
        self._searched_json = {also: _json(ids) for also, ids in self._searched.items()}

    def __contains__(self, scope: int) -> bool:
        return scope in self.ids

    def writable(self, scope: int) -> bool:
        return self._access.get(scope, Access.NONE) >= Access.WRITE and scope not in self._live

    def shown_writable(self, scope: int) -> bool:
        """With what a source takes, which is no change of the store."""
        return scope in self._shown_writable

    @cached_property
    def remembered(self) -> Visible:
        """Without what is live: of that there is no past."""
        if not self._live:
            return self
        return Visible(self.who, {number: self._scopes[number] for number in self._access.keys() - self._live})

    @cached_property
    def anothers(self) -> frozenset[int]:
        """Those of one other agent alone, which are seen by a capability."""
        return frozenset(each for each in self.ids if self._scopes[each].owner not in (None, self.who.name))

    def may_purge_past(self, scope: int) -> bool:
        """Return whether versions that were written for this class may be purged with what the file is now: not those
        that it cannot see, or sees by a capability alone."""
        return self.writable(scope) or (scope in self.ids and scope not in self.anothers)

    def origin(self, scope: int) -> Origin:
        return self._scopes[scope].origin

    def readers(self, scope: int) -> frozenset[str] | None:
        """See ``Scope.readers``."""
        return self._scopes[scope].readers

    def trust(self, scope: int) -> Trust:
        return self._scopes[scope].trust

    def untrusted(self, scope: int) -> str:
        """The sources of a class of what is to be marked where it is quoted, ``tool,web``; else nothing."""
        found = self._scopes[scope]
        return "" if found.trust == "allow" else found.origin.plain

    def quoted(self, scope: int, line: str) -> str:
        """A line of what is of this class, as a listing has it."""
        return QUARANTINED if scope in self.held else marked(line, self.untrusted(scope))

    def live(self, scope: int) -> bool:
        """Return whether it is a class of what comes from outside the store."""
        return scope in self._live

    def searched(self, aside: str = "") -> tuple[frozenset[int], str]:
        """What a search looks through, as numbers and as JSON: with "archive" that too, with "past" also the trash,
        with "index" that alone."""
        return self._searched[aside], self._searched_json[aside]

    def require(self, scope: int, path: str | None = None) -> None:
        """Raise NotFound when the scope is invisible, Denied when it is visible but not writable."""
        if scope not in self.ids:
            raise NotFound(path=path)
        if not self.writable(scope):
            raise Denied("read-only for you", path)


def seen_with(scope: Scope, other: Scope) -> Scope:
    """``scope`` for those alone who see what is of ``other``, too."""
    named = sorted({name for name, _ in (*scope.agents, *other.agents)})
    everyone = scope.everyone if other.everyone else Access.NONE
    may = {name: scope.of(name) if other.of(name) else Access.NONE for name in named}
    return replace(
        scope,
        everyone=everyone,
        agents=tuple((name, access) for name, access in may.items() if access != everyone),
        inside=scope.inside & other.inside,
        leads=scope.leads & other.leads,
        owner=scope.owner or other.owner,
        aside="index" if other.aside == "index" else scope.aside,
        live=scope.live or other.live,
    )


def _json(ids: frozenset[int]) -> str:
    return "[" + ",".join(map(str, sorted(ids))) + "]"


class Scopes:
    """The scope table in memory, and what each principal sees of it. One per connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Scope] = {}
        self._by_spec: dict[str, int] = {}
        self._visible: FIFO[Principal, Visible] = FIFO(_PRINCIPALS)
        self._highest = 0
        self.interned = 0  # how many this connection has added; a rollback must be followed by forget()

    def load(self, db: apsw.Connection) -> None:
        """Read the scopes interned since the last look. StoreFailed for one that says nothing."""
        for number, data in db.execute("select id, cast(spec as blob) from scope where id > ?", (self._highest,)):
            try:
                spec = data.decode("utf-8")
                self._add(number, spec, Scope.parse(spec))
            except (ValueError, LookupError) as e:
                raise StoreFailed(f"visibility class {number} is damaged: {data!r}") from e

    def _add(self, number: int, spec: str, scope: Scope) -> None:
        self._by_id[number], self._by_spec[spec] = scope, number
        self._highest = max(self._highest, number)

    def forget(self) -> None:
        """After a rollback: a scope interned in it is no longer there."""
        self._by_id.clear()
        self._by_spec.clear()
        self._visible.clear()
        self._highest = 0

    def of(self, db: apsw.Connection, scope: int) -> Scope:
        if scope not in self._by_id:
            self.load(db)
        return self._by_id[scope]

    def intern(self, db: apsw.Connection, scope: Scope) -> int:
        spec = scope.spec
        if spec not in self._by_spec:
            self.load(db)
        if spec not in self._by_spec:
            db.execute("insert into scope(spec) values(?)", (spec,))
            number = db.last_insert_rowid()
            if scope.owner is not None:  # the table's own trigger knows those that only their owner may read
                db.execute("insert or ignore into sole(scope, agent) values(?, ?)", (number, scope.owner))
            self.interned += 1
            self._add(number, spec, scope)
        return self._by_spec[spec]

    def visible(self, db: apsw.Connection, who: Principal) -> Visible:
        """What ``who`` may see, including scopes that other processes interned."""
        if db.execute("select max(id) from scope").get != self._highest:
            self.load(db)
        return self.visible_as_loaded(who)

    @property
    def highest(self) -> int:
        """The newest scope in memory."""
        return self._highest

    def visible_as_loaded(self, who: Principal) -> Visible:
        """What ``who`` may see of the scopes that are in memory: all, in the one connection that interns them."""
        seen = self._visible.get(who)
        if seen is None or seen.highest != self._highest:
            seen = Visible(who, self._by_id)
            self._visible.put(who, seen)
        return seen
