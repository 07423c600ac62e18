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
from typing import Any, Final, Literal, NamedTuple

from avmfs import calls, paths
from avmfs.agents.chat import written
from avmfs.errors import AvmError, Denied, Exists, Invalid, NotFound, OverQuota, Stale
from avmfs.localtime import DAY_NS
from avmfs.memory import Memory, slug
from avmfs.node import Document, Kind, Node
from avmfs.rpc.aside import DAYS_MOST
from avmfs.rpc.methods import method
from avmfs.rpc.transferring import below
from avmfs.search.duplicates import NEAR, Note, redundant
from avmfs.store.commands.consolidating import SUMMARIZES, TOGETHER
from avmfs.store.queries.nodes import Reader
from avmfs.text import segment, sniff, topics
from avmfs.text.extract import central

MOST: Final = 10_000  # notes that one run puts away
LOOKED_AT: Final = 100_000  # notes that one plan compares
MANY: Final = 8  # notes of one topic in one directory, from which it has a summary
IMPORTANT: Final = 0.7  # what is so important is never cold
_LARGEST: Final = 64 * 1024  # bytes of a note that is compared
_TOGETHER: Final = 64  # cold notes of one step: where one has changed, all of it stays
_REFUSED: Final = (Denied, Exists, NotFound, OverQuota, Stale)  # of one step: others are done
_TOPICS: Final = 5  # of a directory that are summarised,
_SUMMARIES: Final = 20  # and of all
_SENTENCES: Final = 12


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
    summarizes: frozenset[str]  # paths of what it is a summary of
    own: bool  # its author's own words

    @property
    def told(self) -> dict[str, Any]:
        return {"path": self.path, "handle": f"@{self.document.handle}"}


@dataclass(slots=True)
class _Step:
    """One command of the store. merge: ``notes`` but the first go into the archive, since that says what they say.
    cold: all go. summary: ``text`` is drawn from them, for ``path``, in the place of ``older``."""

    what: Literal["merge", "cold", "summary"]
    notes: list[_Found]
    likeness: list[float] = field(default_factory=list)
    path: str = ""
    text: str = ""
    older: _Found | None = None

    @property
    def gone(self) -> list[_Found]:
        return {"merge": self.notes[1:], "cold": self.notes, "summary": [self.older] if self.older else []}[self.what]

    @property
    def said(self) -> tuple[Any, ...]:
        """What tells it from another step."""
        return (self.what, self.path, [(each.node.id, each.node.ctime) for each in (*self.notes, *self.gone)])

    @property
    def told(self) -> dict[str, Any]:
        gone = [each.told for each in self.gone]
        for each, much in zip(gone, self.likeness, strict=False):
            each["likeness"] = round(much, 2)
        told = {"step": self.what, "into": None, "gone": gone}
        if self.what == "merge":
            return {**told, "into": self.notes[0].told}
        if self.what == "cold":
            return told
        into = {"path": self.path, "handle": None}
        return {**told, "into": into, "from": [each.told for each in self.notes], "text": self.text}

    def submit(self, memory: Memory, run: int) -> None:
        planned = {
            "run": run,
            "nodes": [each.node.id for each in self.notes],
            "ctimes": [each.node.ctime for each in self.notes],
        }
        if self.what == "summary":
            where = list(memory.real_parts(paths.raw(self.path)))
            older = None if self.older is None else self.older.node.id
            memory.submit("summarise", **planned, path=where, data=self.text.encode(), older=older)
        else:
            memory.submit("merge" if self.what == "merge" else "archive_cold", **planned)


@method
def consolidate(
    memory: Memory,
    path: str = "/memory",
    likeness: float = NEAR,
    limit: int = 1000,
    cold: float | None = None,
    summaries: bool = False,
    agreed: str | None = None,
) -> dict[str, Any]:
    """What would go into the archive of the notes below ``path``, ``limit`` at most: of those that say the same, at
    least so alike, all but one; and what is older than ``cold`` days and not important. ``summaries``: of topics with
    many notes one is drawn from them. {"steps": [{"step": "merge", "cold", "summary", "into": {"path", "handle"} or
    None, "gone": [{"path", "handle", "likeness"}], "from", "text"}], "notes": compared, "fewer", "bytes": of these,
    "agreed", "run", "left_out"}. Given "agreed" back, it is done, unless it would be something else by now (Stale):
    "run" is its number, for ``unconsolidate``, and "left_out" how many steps were not done, since a note has changed or
    others have claimed or disputed it meanwhile, or would have too many tags or links."""
    if not NEAR <= likeness <= 1:  # also refuses nan
        raise Invalid(f"likeness {likeness}: expected {NEAR} to 1")
    if not 1 <= limit <= MOST:
        raise Invalid(f"limit {limit}: expected 1 to {MOST}")
    if cold is not None and not 1 <= cold <= DAYS_MOST:
        raise Invalid(f"cold {cold}: expected 1 to {DAYS_MOST} days")
    # Of notes that say the same the first stays: its handle is known, and its date is when it was so.
    found = sorted(_notes(memory, path), key=lambda each: (each.kind, each.document.created, each.node.id))
    steps = _planned(memory, found, likeness, limit, cold, summaries)
    gone = [each for step in steps for each in step.gone]
    digest = hashlib.sha256(repr([step.said for step in steps]).encode()).hexdigest()
    if agreed not in (None, digest):
        raise Stale("what would be put away is not what it was: look at the plan again", path)
    run, left = (None, 0) if agreed is None else _applied(memory, _written(memory, steps))
    return {
        "steps": [step.told for step in steps],
        "notes": len(found),
        "fewer": len(gone),
        "bytes": sum(each.node.size for each in gone),
        "agreed": digest,
        "run": run,
        "left_out": left,
    }


@method
def unconsolidate(memory: Memory, run: int | None = None, dry: bool = False) -> dict[str, Any]:
    """Undo this agent's last run, or that with this number: all is where it was, and says of itself what it said, and
    summaries are gone. {"run", "back": [{"path", "was", "kind"}], "left": [{"was", "kind", "why"}]}, ``kind`` "merged",
    "cold" or "summary", ``path`` None for what has left the archive by itself, and for summaries; "left" is what is
    refused now, and can be asked for again. ``dry``: what it would be. Raises NotFound where there is none, and what
    refuses all that there is."""
    if run is not None and not 0 < run < 1 << 63:
        raise Invalid(f"run {run}: expected the number that a consolidation said")
    with memory.reading() as reader:
        number, rows = reader.consolidated(run)
    if not rows:
        raise NotFound("no consolidation of yours that could be undone")
    back: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    refused: AvmError | None = None
    for document, kind, was in rows:
        calls.next_step()
        try:
            at = (
                (None if kind == "summary" else was)
                if dry
                else memory.submit("take_back", run=number, document=document)["path"]
            )
        except _REFUSED as e:
            refused = refused or e
            left.append({"was": paths.text(was), "kind": kind, "why": e.reason})
        else:
            back.append({"path": None if at is None else paths.text(at), "was": paths.text(was), "kind": kind})
    if refused is not None and not back:
        raise refused
    return {"run": number, "back": back, "left": left}


def _planned(
    memory: Memory, found: list[_Found], least: float, limit: int, cold: float | None, summaries: bool
) -> list[_Step]:
    """The steps in the order in which they are done: a summary changes none of its sources."""
    plain = [each for each in found if not each.summarizes]
    merges: dict[int, _Step] = {}
    for _, group in groupby(plain, key=lambda each: each.kind):
        calls.next_step()
        notes = list(group)
        for gone, kept, much in redundant([each.note for each in notes], least):
            step = merges.setdefault(notes[kept].node.id, _Step("merge", [notes[kept]]))
            if limit > 0 and len(step.notes) < TOGETHER:
                step.notes.append(notes[gone])
                step.likeness.append(much)
                limit -= 1
    steps = [merges[number] for number in sorted(merges) if len(merges[number].notes) > 1]
    gone_ids = {each.node.id for step in steps for each in step.gone}
    touched = {each.node.id for step in steps for each in step.notes}
    if summaries:
        steps = [*_summaries(found, gone_ids), *steps]
    if cold is not None:
        before = memory.now() - int(cold * DAY_NS)
        old = [
            each
            for each in sorted(plain, key=lambda each: (each.node.mtime, each.node.id))
            if each.node.mtime < before and each.node.id not in touched and (each.document.importance or 0) < IMPORTANT
        ][: max(limit, 0)]
        steps += [_Step("cold", old[at : at + _TOGETHER]) for at in range(0, len(old), _TOGETHER)]
    return steps


def _summaries(found: list[_Found], gone: set[int]) -> list[_Step]:
    """Of each directory, the topics with the most notes, but for those whose summary there is already. Others' words
    are left out: a summary is called by its topic, and a name has no mark."""
    steps: list[_Step] = []
    standing = {each.path: each for each in found if each.summarizes}
    whole = [
        each
        for each in found
        if each.own and not (each.summarizes or each.kind.expires or each.document.shared is not None)
    ]

    def home(each: _Found) -> tuple[int, int, str]:
        return each.kind.scope, each.kind.mode, each.path.rpartition("/")[0]

    for (_, _, directory), group in groupby(sorted(whole, key=lambda each: (home(each), each.node.mtime)), key=home):
        about: dict[str, list[_Found]] = {}
        shown: dict[str, str] = {}
        for each in group:
            calls.next_step()
            for key, name in topics.topics(each.note.text):
                shown.setdefault(key, name)
                if each.node.id not in gone:
                    about.setdefault(key, []).append(each)
        many = sorted((key for key, notes in about.items() if len(notes) >= MANY), key=lambda key: -len(about[key]))
        for key in many[:_TOPICS]:
            notes = about[key][-TOGETHER + 1 :]
            path = f"{directory}/{paths.text(slug(f'summary of {shown[key]}'))}"
            older = standing.get(path)
            if older is None or older.summarizes != {each.path for each in notes}:
                steps.append(_Step("summary", notes, path=path, text=_summary(shown[key], notes), older=older))
    return steps[:_SUMMARIES]


def _summary(topic: str, notes: list[_Found]) -> str:
    """Whole sentences of the notes, each with the handle of its source."""
    told = central([each.note.text for each in notes], _SENTENCES)
    lines = [f"- {segment.one_line(text, 400)} (@{notes[number].document.handle})\n" for number, text in told]
    return f"# {segment.one_line(topic, 80)}: a summary of {len(notes)} notes\n\n" + "".join(lines)


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
        calls.next_step()
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
    links = reader.links(document.id, told=True)
    if any(link.type == "contradicts" for link in links):
        return None
    text = sniff.decode(reader.read(node.id, 0, node.size))
    if text is None or not text.strip():
        return None
    name = _matter(paths.text(place[-1]), text)
    where = (*(part for part in place[:-1] if part not in agents), name)
    kind = _Class(node.scope, node.mode, node.expires or 0, where)
    sources = frozenset(paths.text(link.path) for link in links if link.outgoing and link.type == SUMMARIZES)
    note = Note(text, document.created // DAY_NS)
    own = not reader.visible.origin(node.scope).sources
    return _Found(node, document, paths.text(paths.join(place)), kind, note, sources, own)


def _matter(name: str, text: str) -> bytes:
    """What a file's name says beyond its text: two notes of the same words about two matters are two notes. Nothing,
    where the name was made of the first words, or is but a number."""
    stem = name.rpartition(".")[0] or name
    said = set(segment.name_terms(stem)) - set(segment.terms(text))
    return b"" if all(term.isdigit() for term in said) else " ".join(sorted(said)).encode()


def _written(memory: Memory, steps: list[_Step]) -> list[_Step]:
    """With the text of each summary by who is configured to write it: all, before anything is changed."""
    settings = memory.around.consolidate
    for step in steps if settings.endpoint is not None else ():
        if step.what == "summary":
            calls.next_step()
            heading, _, sentences = step.text.partition("\n\n")
            text = written(settings, memory.around.webhooks.allow, sentences)
            sources = " ".join(f"@{each.document.handle}" for each in step.notes)
            step.text = f"{heading}, written by {settings.model}\n\n{text}\n\nFrom {sources}\n"
    return steps


def _applied(memory: Memory, steps: list[_Step]) -> tuple[int, int]:
    """The number of the run, and how many steps were not done."""
    memory.enroll()
    run, left = memory.now(), 0
    for step in steps:
        calls.next_step()
        try:
            step.submit(memory, run)
        except _REFUSED:
            left += 1
    return run, left
