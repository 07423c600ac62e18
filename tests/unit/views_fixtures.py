"""A real store with a clock that the test moves, and agents who read views of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from avmfs_config import Limits, SearchSettings

from avmfs import calls, paths, views
from avmfs.access import Policy, Principal
from avmfs.memory import Memory
from avmfs.node import Node
from avmfs.search.engine import Engine
from avmfs.services import Services
from avmfs.store.client.client import Submitter
from avmfs.store.schema import database
from avmfs.store.store import Store
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from avmfs.text.tokens import TokenCounter
from avmfs.vfs.virtual_handles import ViewHandle
from avmfs.views import Context, Rendered, View
from tests.hashing import HashingEmbedding

START = int(datetime(2026, 3, 7, 10, 30, tzinfo=UTC).timestamp()) * 10**9
MINUTE = 60 * 10**9


@dataclass
class Clock:
    at: int = START

    def __call__(self) -> int:
        return self.at

    def pass_(self, minutes: float) -> None:
        self.at += int(minutes * MINUTE)


class AppliedHere(Submitter):
    """Submits to an applier in this process: direct mode, with the test's clock."""

    def __init__(self, path: Path, policy: Policy, index: IndexRules, clock: Clock) -> None:
        database.prepare(path)
        self.applier = Applier(path, policy, index, orphans=False, clock=clock)
        self.applier.alone(Principal("avmfs", operator=True), "settle", {})

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        return self.applier.alone(who, command, arguments)

    def close(self) -> None:
        self.applier.close()


@dataclass
class Agent:
    """One agent's hands: writes files, reads and writes views by name, as typed at a mount."""

    memory: Memory

    def put(self, path: str, data: str | bytes) -> str:
        raw = data.encode() if isinstance(data, str) else data
        self.memory.submit("write_path", path=list(self.memory.real_parts(path.encode())), data=raw)
        return path

    def rendered(self, name: str) -> Rendered:
        view, context, parsed = self._view(name)
        return view.render(context, parsed.parameters())

    def peek(self, name: str) -> str:
        """Like `head`: the bytes, but not to their end."""
        return self.rendered(name).data.decode()

    def cached_bytes(self, name: str) -> bytes:
        return self.rendered(name).data

    def cat(self, name: str) -> str:
        rendered = self.rendered(name)
        if rendered.at_end is not None:
            rendered.at_end()
        return rendered.data.decode()

    def echo(self, text: str, name: str) -> None:
        """As a mount does it: checked first, then applied."""
        view, context, _ = self._view(name)
        assert view.write is not None
        if view.check is not None:
            view.check(text)
        view.write(context, text)

    def to_write(self, name: str) -> ViewHandle:
        """As a shell holds it open."""
        view, context, parsed = self._view(name)
        return ViewHandle(self.memory, view, context.node, context.path, parsed, False, True)

    def to_read(self, name: str) -> ViewHandle:
        view, context, parsed = self._view(name)
        return ViewHandle(self.memory, view, context.node, context.path, parsed, True, False)

    def node(self, path: str) -> Node:
        with self.memory.reading() as reader:
            return self.memory.resolve(reader, path)

    def handle(self, path: str) -> str:
        with self.memory.reading() as reader:
            return reader.document(self.memory.resolve(reader, path)).handle

    def _view(self, name: str) -> tuple[View, Context, paths.ViewName]:
        directory, _, last = name.rpartition("/") if "?" not in name else _cut(name)
        parsed = paths.parse_view(paths.raw(last))
        assert parsed is not None, name
        at = f"{directory}/{parsed.base.decode()}"
        node = self.node(at)
        view = views.find(parsed.view, node)
        assert view is not None, name
        return view, Context(self.memory, node, paths.raw(at)), parsed


def _cut(name: str) -> tuple[str, str, str]:
    head, _, query = name.partition("?")
    directory, slash, last = head.rpartition("/")
    return directory, slash, f"{last}?{query}"


@dataclass
class World:
    clock: Clock
    applied: AppliedHere
    store: Store
    around: Services
    agents: dict[str, Agent] = field(default_factory=dict)

    def agent(self, name: str) -> Agent:
        if name not in self.agents:
            self.agents[name] = Agent(Memory(self.around, Principal(name, route="mount")))
            self.agents[name].memory.submit("enroll")
        return self.agents[name]

    def keep_versions(self, count: int) -> None:
        self.applied.applier.index = IndexRules(versions=count, past_days=30)

    def still(self, text: str) -> str:
        """``text`` with the random handles replaced, in order of appearance."""
        seen: dict[str, str] = {}
        return re.sub(r"@[a-z2-7]{4}\b", lambda hit: seen.setdefault(hit[0], f"@hdl{len(seen) + 1}"), text)

    def dump(self, *tables: str) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of the tables."""
        with self.store.connection() as (db, _):
            return {table: db.execute(f"select * from {table}").fetchall() for table in tables}


@contextmanager
def given_up() -> Iterator[None]:
    """What runs in this is waited for by nobody."""
    calls.working.call = call = calls.Call()
    call.give_up()
    try:
        yield
    finally:
        calls.working.call = None


@contextmanager
def opened(tmp_path: Path, policy: Policy | None = None) -> Iterator[World]:
    clock, path = Clock(), tmp_path / "avm.db"
    rules = policy or Policy()
    applied = AppliedHere(path, rules, IndexRules(ignore=("*.tmp",), past_days=30), clock)
    store = Store(path, applied, clock)
    engine = Engine(store.search_index, HashingEmbedding(), TokenCounter())
    try:
        yield World(clock, applied, store, Services(store, engine, SearchSettings(), Limits(), clock, UTC))
    finally:
        store.close()
