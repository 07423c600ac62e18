"""docs/FORMATS.md is true: its examples run, from top to bottom in one store, and print what it says."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from avmfs import paths, views
from tests.unit.views_fixtures import Agent, World, opened

FORMATS = Path(__file__).parents[2] / "docs" / "FORMATS.md"
_PROMPT = re.compile(r"^(alice|bob)\$ (.*)$", re.MULTILINE)
_VARIES = (
    (r"(?:\b[01]|(?<=\())\.\d\d\b", "0.00"),
    (r" *\b\d+ tokens\b", " N tokens"),
    (r"(?m)(^#.*|seq=\d+) \d{6}\b", r"\1 NONCE"),  # each store has a secret of its own
    (r'"(given|percent|saved)": -?[\d.]+', r'"\1": N'),  # handles are random, and so are their tokens
    (r"\b(seq=|(?:cursor|marked|current): )\d+", r"\1N"),
    (r"@hdl\d", lambda hit: f"@zzz{'abcd'[int(hit[0][-1]) - 1]}"),
)


def run(world: World, agent: Agent, command: str) -> str:
    """What a shell at this agent's mount would print."""
    words = shlex.split(command)
    if words[0] == "cat":
        return agent.cat(words[1])
    text, target = ("", words[1]) if words[0] == "touch" else (words[1] + "\n", words[3])
    if target.startswith("/tell/"):
        recipient, given = paths.parse_mailbox(target.removeprefix("/tell/").encode())
        parameters: dict[str, Any] = given
        agent.memory.tell(recipient, text, **parameters)
    elif paths.parse_view(target.rpartition("/")[2].encode()) is not None:
        agent.echo(text, target)
    else:
        agent.memory.submit(
            "write_path",
            path=list(agent.memory.real_parts(target.encode())),
            data=text.encode(),
            mode="append" if words[2] == ">>" else "replace",
        )
    if words[0] == "echo":
        world.clock.pass_(5)
    return ""


def examples(document: str) -> list[tuple[str, str, str]]:
    """(agent, command, what it is said to print) of every console block."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", document, re.DOTALL):
        prompts = list(_PROMPT.finditer(block))
        ends = [prompt.start() for prompt in prompts[1:]] + [len(block)]
        found += [(at[1], at[2], block[at.end() + 1 : end]) for at, end in zip(prompts, ends, strict=True)]
    return found


def still(world: World, text: str) -> str:
    numbers: dict[str, str] = {}  # of messages, drawn at random: in order of appearance
    text = re.sub(
        r'(#|"(?:id|thread|re)": )(\d{6})\b',
        lambda hit: f"{hit[1]}{numbers.setdefault(hit[2], str(len(numbers)))}",
        text,
    )
    for pattern, stands in _VARIES:
        text = re.sub(pattern, stands, text)
    return world.still(text)


def test_every_example_prints_what_the_document_says(tmp_path: Path) -> None:
    with opened(tmp_path) as world:
        for name in ("alice", "bob"):
            world.agent(name)
        for name, command, said in examples(FORMATS.read_text(encoding="utf-8")):
            printed = run(world, world.agent(name), command)
            assert still(world, printed) == still(world, said), f"{name}$ {command}"


@pytest.mark.parametrize("view", views.all_views(), ids=lambda view: view.name)
def test_every_view_is_described(view: views.View) -> None:
    assert f"`:{view.name}`" in FORMATS.read_text(encoding="utf-8")


def test_examples_are_found() -> None:
    found = examples(FORMATS.read_text(encoding="utf-8"))
    assert len(found) > 50
    assert all(before != after for before, after in pairwise(found))
