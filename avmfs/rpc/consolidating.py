"""Methods of the door that keep memory good: what consolidation would put away, doing it, and undoing it.

Owns the plan. Notes are compared with those alone that have the same readers, the same mode and ttl and the same place
but for agents' names; whoever asks for it says which plan was agreed to, and gets Stale where there is another one by
now. Called through the registry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from avmfs import calls, paths
from avmfs.errors import Denied, Invalid, NotFound, OverQuota, Stale
from avmfs.memory import Memory
from avmfs.node import Document, Kind, Node
from avmfs.rpc.documents import LARGEST
from avmfs.rpc.methods import method
from avmfs.rpc.transferring import below
from avmfs.search.duplicates import NEAR, Note, redundant
from avmfs.store.commands.consolidating import TOGETHER
from avmfs.store.queries.nodes import Reader
from avmfs.text import segment, sniff

MOST: Final = 10_000  # notes that one run puts away
LOOKED_AT: Final = 100_000  # notes that one plan compares
_LARGEST: Final = 64 * 1024  # bytes of a note that is compared
_DAY_NS: Final = 24 * 3600 * 10**9


class _Class(NamedTuple):
    """What notes that are compared have in common."""

    scope: int
    mode: int
    expires: int
    place: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    node: Node
    document: Document
    path: str
    kind: _Class
    note: Note

    @property
    def told(self) -> dict[str, Any]:
        return {"path": self.path, "handle": f"@{self.document.handle}"}


@dataclass(slots=True)
class _Step:
    """Notes that go into the archive; for ``heir`` if there is one, which says what they say."""

    heir: _Found | None
    gone: list[_Found] = field(default_factory=list)
    likeness: list[float] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return [each.node for each in ([self.heir] if self.heir else []) + self.gone]

    @property
    def told(self) -> dict[str, Any]:
        gone = [{**each.told, "likeness": round(much, 2)} for each, much in zip(self.gone, self.likeness, strict=True)]
        return {"into": self.heir.told if self.heir else None, "gone": gone}


@method
def consolidate(
    memory: Memory,
    path: str = "/memory",
    likeness: float = NEAR,
    limit: int = 1000,
    agreed: str | None = None,
) -> dict[str, Any]:
    """What would go into the archive of the notes below ``path``, ``limit`` at most: of those that say the same, at
    least so alike, all but one. {"steps": [{"into": {"path", "handle"}, "gone": [{"path", "handle", "likeness"}]}],
    "notes": compared, "fewer", "bytes": of these, "agreed", "run", "left_out"}. Given "agreed" back, it is done, unless
    it would be something else by now (Stale): "run" is its number, for ``unconsolidate``, and "left_out" how many steps
    were not done, since a note has changed meanwhile or would have too many tags or links."""
    if not NEAR <= likeness <= 1:  # also refuses nan
        raise Invalid(f"likeness {likeness}: expected {NEAR} to 1")
    if not 1 <= limit <= MOST:
        raise Invalid(f"limit {limit}: expected 1 to {MOST}")
    looked, steps = _planned(memory, path, likeness, limit)
    said = [[(each.id, each.ctime) for each in step.nodes] for step in steps]
    digest = hashlib.sha256(repr(said).encode()).hexdigest()
    if agreed not in (None, digest):
        raise Stale("what would be put away is not what it was: look at the plan again", path)
    run, left = (None, 0) if agreed is None else _applied(memory, steps)
    return {
        "steps": [step.told for step in steps],
        "notes": looked,
        "fewer": sum(len(step.gone) for step in steps),
        "bytes": sum(each.node.size for step in steps for each in step.gone),
        "agreed": digest,
        "run": run,
        "left_out": left,
    }


@method
def unconsolidate(memory: Memory, run: int | None = None, dry: bool = False) -> dict[str, Any]:
    """Undo this agent's last run, or that with this number: all is where it was, and says of itself what it said.
    {"run", "back": [{"path", "was"}]}, ``path`` None for what has left the archive by itself. ``dry``: what it would
    be. Raises NotFound where there is none."""
    if run is not None and not 1 <= run <= LARGEST:
        raise Invalid(f"run {run}: expected the number that a consolidation said")
    with memory.reading() as reader:
        number, rows = reader.consolidated(run)
    if not rows:
        raise NotFound("no consolidation of yours that could be undone")
    back = []
    for document, _, was in rows:
        calls.go_on()
        at = was if dry else memory.submit("take_back", run=number, document=document)["path"]
        back.append({"path": None if at is None else paths.text(at), "was": paths.text(was)})
    return {"run": number, "back": back}


def _planned(memory: Memory, path: str, least: float, limit: int) -> tuple[int, list[_Step]]:
    """How many notes were compared, and the steps, by the paths of what stays."""
    found = sorted(_notes(memory, path), key=lambda each: (each.kind, -each.document.created, each.node.id))
    steps: dict[int, _Step] = {}
    left = limit
    for _, group in groupby(found, key=lambda each: each.kind):
        calls.go_on()
        notes = list(group)
        for gone, kept, much in redundant([each.note for each in notes], least):
            step = steps.setdefault(notes[kept].node.id, _Step(notes[kept]))
            if left > 0 and len(step.gone) < TOGETHER - 1:
                step.gone.append(notes[gone])
                step.likeness.append(much)
                left -= 1
    return len(found), sorted((step for step in steps.values() if step.gone), key=lambda step: step.nodes[0].id)


def _notes(memory: Memory, path: str) -> Iterator[_Found]:
    """Notes below a path that the asker may consolidate."""
    with memory.reading() as reader:
        top = memory.resolve(reader, path)
        where = paths.split(reader.path(top.id))
        agents = frozenset(map(paths.raw, reader.agents()))
    if paths.aside(where):
        raise Invalid(f"what is in the {paths.aside(where)} is out of the way already", path)
    looked = 0
    for place, node in below(memory, top, where, ()) if top.kind is Kind.DIRECTORY else iter([(where, top)]):
        calls.go_on()
        if node.kind is not Kind.FILE or not 0 < node.size <= _LARGEST or paths.aside(place):
            continue
        if not memory.store.cached_writable(memory.who, node.scope) or memory.store.cached_live(memory.who, node.scope):
            continue
        looked += 1
        if looked > LOOKED_AT:
            raise Invalid(f"more than {LOOKED_AT} notes: name a directory below it", path)
        with memory.reading() as reader:
            try:
                found = _found(reader, reader.node(node.id), place, agents)
            except (NotFound, Stale):
                continue  # it went meanwhile
        if found is not None:
            yield found


def _found(reader: Reader, node: Node, place: tuple[bytes, ...], agents: frozenset[bytes]) -> _Found | None:
    """None for what is no text that is searched, and for a private note of somebody else's, one that another agent
    works on, and one about whose truth there is a dispute."""
    document = reader.document(node)
    if reader.unindexed(document.id) or not document.head:
        return None
    if document.creator != reader.who.name and (document.shared is not None or paths.agent_space(place) is not None):
        return None
    claim = reader.claims.of(node.id)
    if claim is not None and claim.agent != reader.who.name:
        return None
    if any(link.type == "contradicts" for link in reader.links(document.id)):
        return None
    text = sniff.decode(reader.read(node.id, 0, node.size))
    if text is None or not text.strip():
        return None
    name = _matter(paths.text(place[-1]), text)
    where = (*(part for part in place[:-1] if part not in agents), name)
    kind = _Class(node.scope, node.mode, node.expires or 0, where)
    return _Found(node, document, paths.text(paths.join(place)), kind, Note(text, document.created // _DAY_NS))


def _matter(name: str, text: str) -> bytes:
    """What a file's name says beyond its text: two notes of the same words about two matters are two notes. Nothing,
    where the name was made of the first words, or is but a number."""
    stem = name.rpartition(".")[0] or name
    said = set(segment.name_terms(stem)) - set(segment.terms(text))
    return b"" if all(term.isdigit() for term in said) else " ".join(sorted(said)).encode()


def _applied(memory: Memory, steps: list[_Step]) -> tuple[int, int]:
    """The number of the run, and how many steps were not done."""
    memory.enroll()
    run, left = memory.now(), 0
    for step in steps:
        calls.go_on()
        planned = {"nodes": [each.id for each in step.nodes], "ctimes": [each.ctime for each in step.nodes]}
        try:
            memory.submit("merge", run=run, **planned)
        except (Denied, NotFound, OverQuota, Stale):
            left += 1
    return run, left
