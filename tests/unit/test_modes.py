"""A directory without a write bit: what the kernel refuses at a mount, who works by path is refused too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from avmfs.errors import Denied
from avmfs.memory import Memory
from avmfs.rpc import methods
from tests.unit.views_fixtures import World, opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as world:
        alice = world.agent("alice")
        alice.put("/shared/kept/a.md", "as it is\n")
        alice.put("/shared/kept/deep/b.md", "as it is\n")
        alice.put("/shared/c.md", "elsewhere\n")
        alice.memory.submit("set_attributes", node=alice.node("/shared/kept").id, mode=0o555)
        yield world


CHANGES: dict[str, Callable[[Memory], object]] = {
    "remove": lambda m: methods.call(m, "remove", {"path": "/shared/kept/a.md"}),
    "remove all": lambda m: methods.call(m, "remove", {"path": "/shared/kept", "recursive": True}),
    "move away": lambda m: methods.call(m, "move", {"source": "/shared/kept/a.md", "target": "/shared/d.md"}),
    "move here": lambda m: methods.call(m, "move", {"source": "/shared/c.md", "target": "/shared/kept/"}),
    "move within": lambda m: methods.call(m, "move", {"source": "/shared/kept/a.md", "target": "/shared/kept/z.md"}),
    "make a directory": lambda m: methods.call(m, "make_directory", {"path": "/shared/kept/new/er"}),
    "write below a new directory": lambda m: methods.call(m, "write", {"path": "/shared/kept/new/x.md", "data": b"x"}),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("agent", ["alice", "bob"])
def test_names_do_not_change_by_path_either(world: World, agent: str, change: str) -> None:
    memory = world.agent(agent).memory
    with pytest.raises(Denied, match="mode of"):
        CHANGES[change](memory)
    alice = world.agent("alice")
    assert alice.cat("/shared/kept/a.md:data") == "as it is\n" and alice.cat("/shared/c.md:data") == "elsewhere\n"
    CHANGES[change](replace(memory, who=replace(memory.who, operator=True)))


def test_what_is_further_down_has_its_own_mode(world: World) -> None:
    methods.call(world.agent("bob").memory, "remove", {"path": "/shared/kept/deep/b.md"})
