"""Two agents and an operator move, archive, remove and bring back whatever they can, while rules and keys come and go.

Nobody ever reads what another has kept to itself, whoever has moved what is above it, and the store is sound.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import AvmError, StoreFailed
from avmfs.node import Kind, Node
from avmfs.store.commands import renaming
from avmfs.store.identity import OPERATOR
from avmfs.store.schema.tables import ROOT
from tests.contract.store_world import ALICE, BOB, Rule, World, faults
from tests.contract.test_permissions import new_key

STEPS = 250
WALKS = int(os.environ.get("AVM_WALKS", "3"))
NAMES = (b"a", b"plan", b"alice", b"bob", b"private", b"(2)", b"(3)")
RULES: list[list[Rule]] = [[], [("/memory/a/*", "ro", ("bob",))], [("*/plan", "none", ("alice",))]]


class Walk:
    """What one keeps to itself says whose it is, in a place or under a limit that its keeper never leaves."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance, self.number = world, random.Random(seed), 0

    def tree(self, who: Principal) -> list[tuple[tuple[bytes, ...], Node]]:
        found: list[tuple[tuple[bytes, ...], Node]] = []
        with self.world.reading(who) as reader:
            waiting: list[tuple[tuple[bytes, ...], Node]] = [((), reader.node(ROOT))]
            while waiting:
                place, node = waiting.pop()
                found.append((place, node))
                if node.kind is Kind.DIRECTORY:
                    waiting += [((*place, each.name), each) for each in reader.children(node.id)]
        return found

    def step(self) -> None:
        who = self.chance.choice((ALICE, BOB))
        self.world.clock.advance(self.chance.choice((1, 1, 1, 70)))
        try:
            self.change(who)
        except StoreFailed:
            raise
        except AvmError:
            pass  # refused

    def change(self, who: Principal) -> None:
        world, chance, kind = self.world, self.chance, self.chance.randrange(12)
        tree = [each for each in self.tree(who) if each[0]]
        wanted: dict[str, Callable[[tuple[bytes, ...], Node], bool]] = {
            "archive": lambda place, node: not paths.aside(place),
            "put_back": lambda place, node: paths.aside(place) != "" and node.id >= 16,
            "rename": lambda place, node: node.id >= 16 and (len(place) == 2 or chance.randrange(3) == 0),
            "save": lambda place, node: node.kind is Kind.FILE,
        }
        kinds = "own open limited mkdir rename rename archive remove put_back key rules save"
        what = kinds.split()[kind]
        found = [each for each in tree if wanted.get(what, lambda place, node: node.id >= 16)(*each)]
        shared = [each for each in found if paths.agent_space(each[0]) is None]
        often = chance.randrange(3)
        place, node = chance.choice((shared if often else []) or found or tree)
        hers = paths.agent_space(place) == who.name  # what is so stays there
        mine, top = who.name if hers else None, chance.choice((b"memory", b"archive"))
        directories = [each for each in tree if each[1].kind is Kind.DIRECTORY and paths.agent_space(each[0]) == mine]
        near = [each for each in directories if len(each[0]) == chance.randrange(1, 4) and each[0][0] == top]
        there, into = chance.choice(near or directories)
        limited = node.kind is Kind.FILE and not hers and world.document(who, self.text(place)).shared is not None
        name, parent, kept = chance.choice(NAMES), node.parent, b"of " + who.name.encode()
        assert parent is not None
        if what == "own":
            self.number += 1
            self.write(who, (b"memory", b"private", who.name.encode(), name, b"%d" % self.number), kept)
        elif what in ("open", "limited") and not hers:
            self.write(who, (*there, name), b"open" if what == "open" else kept, limited=what == "limited")
        elif what == "mkdir":
            world.do(who, "mkdir", parent=into.id, name=name, mode=0o755)
        elif what == "rename" and not limited:
            flags = chance.choice((0, 0, renaming.NOREPLACE, renaming.EXCHANGE))
            world.do(who, "rename", parent=parent, name=node.name, new_parent=into.id, new_name=name, flags=flags)
        elif what == "archive":
            world.do(who, "archive", parent=parent, name=node.name)
        elif what == "remove":
            command, more = ("rmdir", {}) if node.kind is Kind.DIRECTORY else ("unlink", {"trash": True})
            world.do(who, command, parent=parent, name=node.name, **more)
        elif what == "put_back":
            world.do(who, "put_back", node=node.id, **chance.choice(({}, {"to": [*there, name]})))
        elif what == "key":
            new_key(world, who, self.text(there))
        elif what == "rules":
            world.restart(rules=chance.choice(RULES))
            self.operate()
        elif what == "save" and not (hers or limited):
            world.rename(who, self.text(place), self.text(place) + "~", renaming.NOREPLACE)
            self.write(who, place, kept, limited=True)

    def write(self, who: Principal, place: tuple[bytes, ...], data: bytes, *, limited: bool = False) -> None:
        more = {"shared": [who.name]} if limited else {}
        self.world.write(who, self.text(place), data, mode="create", **more)
        self.world.drain()

    def operate(self) -> None:
        """An operator keeps something from all, and gives it other names."""
        world = self.world
        path = f"/memory/shared/nobodys {self.chance.randrange(3)}"
        if not world.exists(OPERATOR, path):
            world.write(OPERATOR, path, b"of nobody", shared=[])
            world.drain()
        world.rename(OPERATOR, path, f"/memory/shared/nobodys {self.chance.randrange(3)}")

    def text(self, place: tuple[bytes, ...]) -> str:
        return paths.text(paths.join(place))

    def look(self) -> None:
        for who, kept in ((ALICE, (b"of bob", b"of nobody")), (BOB, (b"of alice", b"of nobody"))):
            for place, node in self.tree(who):
                if paths.origin(place)[:2] == (paths.MEMORY, paths.PRIVATE):
                    assert place[1] == paths.PRIVATE, "no agent's space is anywhere else"
                if node.kind is Kind.FILE:
                    data = self.world.bytes(who, self.text(place))
                    assert not data.startswith(kept), f"{who.name} reads {data!r} at {self.text(place)}"


@pytest.mark.parametrize("seed", range(1, WALKS + 1))
def test_nobody_ever_reads_what_another_keeps_to_itself(tmp_path: Path, seed: int) -> None:
    with contextlib.closing(World(tmp_path, "direct")) as world:
        walk = Walk(world, seed)
        for number in range(STEPS):
            walk.step()
            walk.look()
            if number % 25 == 0:
                assert faults(world.path, world.policy) == []
