"""Walks along links: what hangs together with a file, and all links below a directory.

Owns the walks. Called by views and the door. Everything goes through a reader, which follows no link to what its asker
cannot see, and no walk goes from what counts to what was put aside; costs two statements a file looked at. Knows no
text and no view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from avmfs import calls, paths
from avmfs.node import Entry, Link
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT

REACHED = 1000  # files that one walk along links tells


@dataclass(frozen=True, slots=True)
class Step:
    """One link on the way: from a file already known to one that was not."""

    path: bytes
    type: str
    outgoing: bool
    via: bytes


@dataclass(frozen=True, slots=True)
class Edge:
    source: bytes
    target: bytes
    type: str


def hops(reader: Reader, starts: Iterable[bytes], depth: int, limit: int) -> list[list[Step]]:
    """What can be reached from the files ``starts``, link by link, each file once, where it is first met. At most
    ``limit`` files in all; as many lists as there are hops with something in them."""
    edge = list(starts)
    seen, found = set(edge), list[list[Step]]()
    for _ in range(depth):
        further: list[Step] = []
        for here in edge:
            calls.go_on()
            document = document_at(reader, here)
            for link in _links(reader, document, here) if document is not None else ():
                if link.path not in seen and limit > 0:
                    seen.add(link.path)
                    limit -= 1
                    further.append(Step(link.path, link.type, link.outgoing, here))
        if not further:
            break
        found.append(further)
        edge = [step.path for step in further]
    return found


def edges(reader: Reader, entries: Iterable[Entry]) -> list[Edge]:
    """The links that lead away from these files, in order of source and target."""
    found = [
        Edge(entry.path, link.path, link.type)
        for entry in calls.going_on(entries)
        if entry.node.document is not None
        for link in _links(reader, entry.node.document, entry.path)
        if link.outgoing
    ]
    return sorted(found, key=lambda each: (each.source, each.target, each.type))


def _links(reader: Reader, document: int, here: bytes) -> list[Link]:
    """Those of a file, which is ``here``, without those from and to what is in quarantine, or was put aside: the trash
    and the archive count for what stands there itself."""
    known = ("", "index", _aside(here))
    return [link for link in reader.links(document, told=True) if _aside(link.path) in known]


def _aside(path: bytes) -> str:
    return paths.aside((path.split(b"/", 2)[1],))


def document_at(reader: Reader, path: bytes) -> int | None:
    """The document of the file that the store says is at ``path``; None for none."""
    node = reader.node(ROOT)
    for name in path.split(b"/")[1:]:
        child = reader.child(node.id, name)
        if child is None:
            return None
        node = child
    return node.document
