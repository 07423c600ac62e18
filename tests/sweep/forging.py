"""A store whose names would forge lines, move the cursor, turn the direction of writing or hide: mallory's, for alice
to ask for; and what fails where one of them is shown as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from avmfs_config import load_settings

from avmfs.errors import AvmError
from avmfs.rpc.local import LocalDoor
from avmfs.text.escapes import visible_lines
from tests.sweep.recipes import Ground

FORGED = "FORGED"
SIGNS = (
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x0b",
    "\x0c",
    "\x1b[2J\x1b[H",
    "\x07",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x7f",
    "\x85",
    "\x9b2J",
    "\u2028",
    "\u2029",
    "\u202a",
    "\u202b",
    "\u202c",
    "\u202d",
    "\u202e",
    "\u2066",
    "\u2067",
    "\u2068",
    "\u2069",
    "\u200e",
    "\u200f",
    "\u061c",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u3164",
    "\U000e0041",
    "\udcff",
    "\udc85",
    "\\n",
)
# All of them in names that are short enough, to be told back as arguments and in refusals.
ALL = tuple("".join(f"{sign}{FORGED}" for sign in SIGNS[at : at + 12]) for at in range(0, len(SIGNS), 12))
TOPIC = "“Evil\u202e\x1b[31m Topic”"  # the only content that hides anything: raw where files are
PRINTABLE = f"x\u3164{FORGED}"  # what may be the type of a link, and once could be a tag
FILES = tuple(f"/memory/shared/h/{name}.md" for name in (*(f"a{sign}{FORGED} b" for sign in SIGNS), *ALL))
FOLDERS = tuple(f"/memory/shared/{name}" for name in ALL)
GUESSES = tuple(f"/memory/shared/none{name}" for name in ALL)
GROUND = Ground((*FILES[-len(ALL) :], *FILES[:4]), FOLDERS, GUESSES)
# Commands that are about files of this machine, or about what is forgotten: test_sweep_names_outside has them.
OUTSIDE = frozenset(
    {"export", "import", "sync", "backup", "restore", "purge", "init", "model", "mount", "hook", "open", "cluster"}
    | {"completion", "bench", "playground", "warmup"}
)
SETTINGS = "embedding: {enabled: false}\n"


def shows(what: object, text: str, *, content: bool = False) -> None:
    """Fails where a name does what only data may."""
    if content:
        text = text.replace(TOPIC, "")
    hidden = [
        (sign, at) for at, (sign, plain) in enumerate(zip(text, visible_lines(text), strict=False)) if sign != plain
    ]
    assert not hidden, f"{what}: {hidden[0][0]!r} in {text[max(0, hidden[0][1] - 200) : hidden[0][1] + 100]!r}"
    forged = [line for line in text.splitlines() if line.strip().startswith(FORGED)]
    assert not forged, f"{what}: a forged line {forged[0]!r} in {text!r}"


def forge(root: Path) -> None:
    """Make the store and its configuration below ``root``."""
    (root / "config").mkdir()
    (root / "config/config.yaml").write_text(SETTINGS)
    (root / "config/mounts.yaml").write_text("mounts: []\n")
    mallory = door_of(root, "mallory")
    alice = door_of(root, "alice")
    alice.call("remember", content="own")  # makes her known

    def write(path: str, text: str) -> None:
        mallory.call("write", path=path, data=text.encode())

    for path in FILES:
        write(path, "market note\n")
        tag(mallory, path, "market", PRINTABLE)
    for folder in FOLDERS:
        write(f"{folder}/below.md", "market below\n")
    write("/shared/topic.md", f"# market\nWe spoke of {TOPIC} and {TOPIC} #market\n")
    write("/shared/plain.md", "market\n")
    alice.call("delta", path="/memory")  # what comes now is news
    for path in FILES:
        mallory.call("link", path="/shared/plain.md", target=path, type=PRINTABLE)
        mallory.call("link", path=path, target="/shared/plain.md")
        write(path, "market note, later\n")
    write("/shared/plain.md:meta", json.dumps({PRINTABLE: ALL[0], "x\n\u202e": [*SIGNS[:30]]}, ensure_ascii=False))
    for number, name in enumerate(ALL):
        write(f"/shared/gone{name}.md", "market\n")
        mallory.call("remove", path=f"/shared/gone{name}.md")
        write(f"/shared/old{name}.md", "market\n")
        mallory.call("move", source=f"/shared/old{name}.md", target=f"/shared/new{name}.md")
        symlink(mallory, f"/memory/shared/way{number}", name.encode("utf-8", "surrogateescape"))
        said = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        mallory.call("tell", recipient="alice", body=f"market {said}", priority=("urgent", "normal")[number % 2])
        with pytest.raises(AvmError):
            alice.call("subscribe", pattern=f"/memory/shared/{said}*")
        with pytest.raises(AvmError):
            alice.call("write", path=f"/nowhere{name}", data=b"x")
    alice.call("subscribe", pattern="/memory/shared/*")
    alice.call("subscribe", pattern=f"/memory/{PRINTABLE}*")
    mallory.call("remember", content="market remembered", title=ALL[0], namespace="shared")
    for path in FILES:
        write(path, "market note, later still\n")
    alice.call("create_key", label=PRINTABLE, paths=[FILES[0]])
    mallory.close()
    alice.close()


def door_of(root: Path, agent: str) -> LocalDoor:
    return LocalDoor(root / "data/avm.db", load_settings(root / "config/config.yaml", {}), agent, embeddings=False)


def symlink(door: LocalDoor, path: str, target: bytes) -> None:
    """What a mount does for symlink(2)."""
    memory = door._memory
    with memory.reading() as reader:
        parent = memory.resolve(reader, path.rpartition("/")[0]).id
    memory.submit("symlink", parent=parent, name=path.rpartition("/")[2].encode(), target=target)


def tag(door: LocalDoor, path: str, *names: str) -> None:
    """As older versions let it be done."""
    memory = door._memory
    with memory.reading() as reader:
        node = memory.resolve(reader, path).id
    memory.submit("set_tags", node=node, add=[*names], remove=[], replace=True)
