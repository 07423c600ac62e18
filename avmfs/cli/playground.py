"""avm playground: a guided tour on a memory of its own.

Owns the tour: two agents, a shared file, recall by meaning, tags and links, privacy, messages. Everything is in a
temporary folder that is gone afterwards, however the tour ends; the user's own memory is not touched, no daemon and no
mount is needed. Each step says the command that does the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import click

from avmfs.avm import AVM
from avmfs.cli.main import subcommand
from avmfs.cli.session import asking, locations, show, working
from avmfs.errors import NotFound, StoreFailed

WIDTH = 100
NOTE = "/shared/market.md"


@dataclass(frozen=True, slots=True)
class Step:
    """``command`` is what a person types for it, ``answer`` what it gave."""

    title: str
    says: str
    command: str
    answer: str


@subcommand("playground", "A guided tour on a memory of its own, which is removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not wait for Enter between the steps.")
@click.option("--words-only", is_flag=True, help="Do not load the model: recall by words.")
def playground_(ctx: click.Context, yes: bool, words_only: bool) -> None:
    """Walk through what the memory does, with two agents in a temporary store; nothing is left behind."""
    config = locations().config_file
    waits = asking() and sys.stdout.isatty() and not yes
    steps: list[Step] = []
    with _stores(config, words_only) as opened:
        alice, bob = opened("alice"), opened("bob")
        for number, step in enumerate(chain(_reading(alice, bob), _keeping(alice, bob)), 1):
            steps.append(step)
            if not ctx.obj.as_json:
                show(None, _told(number, step))
                sys.stdout.flush()
                if waits:
                    click.prompt("\nEnter goes on", default="", show_default=False, prompt_suffix=" ", err=True)
    done = "Done; nothing is left behind. Your own memory: avm init AGENT..., then avm-daemon start --daemon\n"
    show([asdict(step) for step in steps], f"\n{done}")


def _told(number: int, step: Step) -> str:
    said = textwrap.fill(step.says, WIDTH)
    return f"\n## {number}. {step.title}\n{said}\n\n$ {step.command}\n{step.answer}"


@contextmanager
def _stores(config: Path, words_only: bool) -> Iterator[Callable[[str], AVM]]:
    """AVM of an agent, on a store that is gone afterwards. The model is the user's own, if it is here already."""
    from avmfs_config import load_settings

    with tempfile.TemporaryDirectory(prefix="avm-playground-") as name:
        wanted = load_settings(config, os.environ).embedding
        here = Path(name, "config.yaml")
        said = [f"embedding: {{engine: {wanted.engine}, allow_download: false, device: {wanted.device}"]
        said += [f", model: {json.dumps(wanted.model)}"]
        said += [f", path: {json.dumps(str(wanted.path))}"] if wanted.path else []
        here.write_text("".join([*said, "}\n"]))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AVM_")}
        environ = {**kept, "AVM_AUTOSTART": "0", **{f"AVM_{each}_DIR": name for each in ("CONFIG", "DATA", "RUNTIME")}}
        embeddings = wanted.enabled and not words_only
        made: list[AVM] = []

        def opened(agent: str) -> AVM:
            made.append(AVM(agent=agent, environ=environ, config=here, embeddings=embeddings))
            return made[-1]

        try:
            yield opened
        finally:
            for avm in made:
                avm.close()


def _reading(alice: AVM, bob: AVM) -> Iterator[Step]:
    """What one agent writes and the other reads, in three steps."""
    alice.write(NOTE, "Silicon vendors look frothy; trim NVDA before earnings.\n")
    yield Step(
        "Two agents, one memory",
        "alice writes a file in the shared space; bob reads it. Through a mount this is echo and cat on plain files.",
        f"avm -a alice write {NOTE} ...; avm -a bob read {NOTE}",
        bob.read(NOTE),
    )
    bob.write(f"{NOTE}:mark", "")
    alice.append(NOTE, "RSI at 72, momentum fading.\n")
    yield Step(
        "Only what is new",
        "alice adds a line. bob has read the file before, so its :delta tells him just the"
        " change; asked again, it says that there is none.",
        f"avm -a bob delta {NOTE}",
        bob._door.call("delta", path=NOTE)["text"] + bob._door.call("delta", path=NOTE)["text"],
    )
    for text in (
        "Deploys are frozen on Fridays after the October outage.",
        "The team lunch moved to the Thai place on 4th street.",
    ):
        alice.agent_memory().remember(text, namespace="shared", tags=["team"])
    question = "are semiconductor stocks overvalued"
    with working("loading the model"):
        found = bob.agent_memory().recall(question, max_tokens=300)
    if not found:  # by words alone
        question = "is NVDA frothy before earnings"
        found = bob.agent_memory().recall(question, max_tokens=300)
    if "frothy" not in found:
        raise StoreFailed("the tour's own note was not recalled")
    yield Step(
        "Recall by meaning, within a budget",
        "bob asks in words of his own. What is relevant comes back, packed"
        " into at most 300 tokens, each with its handle and its relevance.",
        f"avm -a bob recall '{question}' -t 300",
        found,
    )


def _keeping(alice: AVM, bob: AVM) -> Iterator[Step]:
    """What stays with one agent, what stays with a file, and a message."""
    private = alice.agent_memory().remember("My own plan: buy after the dip.", title="plan")
    try:
        refused = str(bob.read(private))
    except NotFound as e:
        refused = f"avm: {e}\n"
    yield Step(
        "Private is private",
        "alice's own notes do not exist for bob: not in lists, not in recalls, not in counts or scores.",
        f"avm -a bob read {private}",
        refused,
    )
    alice.link(private, NOTE, "derived")
    alice.write(f"{private}:tags", "market,plan")
    yield Step(
        "Tags, links, history",
        "What is known of a file stays with it, also when an editor saves it anew.",
        f"avm -a alice explore {private}; avm -a alice read {NOTE}:history",
        alice.agent_memory().explore(private) + alice.read(f"{NOTE}:history"),
    )
    bob.agent_memory().remember("My own notes are here.")  # whoever has a space of his own can be told
    alice.tell("bob", "Numbers are in, please look.", priority="urgent")
    yield Step(
        "Messages",
        "alice tells bob something urgent. It stands in his inbox, and on stderr of whatever he runs next,"
        " until he has read it.",
        "avm -a alice tell bob 'Numbers are in ...' -p urgent; avm -a bob inbox --mark-read",
        bob._door.call("inbox", mark_read=True)["text"],
    )
