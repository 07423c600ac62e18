"""What a directory shows: the names in it with their numbers and kinds. Views are never among them."""

from __future__ import annotations

import stat
from collections.abc import Iterable

from avmfs import paths
from avmfs.errors import NotDirectory
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ASIDE, ROOT
from avmfs.vfs import address
from avmfs.vfs.address import ASK, Address, Alias, Place, Real, Then
from avmfs.vfs.attributes import TYPE, inode

Entry = tuple[bytes, int, int]
"""(name, ino, type bits)"""


def entry(node: Node) -> Entry:
    return node.name, node.id, TYPE[node.kind]


def names(memory: Memory, found: Address) -> list[Entry]:
    """All entries but . and .., in order of name. Raises NotDirectory."""
    if isinstance(found, Then):
        return _names_then(memory.at(found.moment), found)
    with memory.reading() as reader:
        if isinstance(found, Place):
            return _names_of_place(memory, reader, found)
        if not isinstance(found, Real) or found.node.kind is not Kind.DIRECTORY:
            raise NotDirectory()
        # Neither the trash nor what else is aside: grep -r and cp -r of a whole mount mean what is there.
        entries = [entry(node) for node in reader.children(found.node.id) if node.id not in ASIDE]
        if found.node.id == ROOT:
            entries += _linked(address.aliases(memory))
            entries.append((paths.TELL, inode(paths.TELL), stat.S_IFDIR))
            entries.sort()
        return entries


def _linked(aliases: Iterable[Alias]) -> list[Entry]:
    return [(alias.name, inode(alias.name), stat.S_IFLNK) for alias in aliases]


def _names_then(past: Memory, found: Then) -> list[Entry]:
    if found.kind is not Kind.DIRECTORY:
        raise NotDirectory()
    with past.reading() as reader:
        entries = [
            (node.name, inode(b"%d@%s" % (node.id, found.moment.key)), TYPE[node.kind])
            for node in reader.children(found.node)
            if node.id not in ASIDE
        ]
        if found.node == ROOT:
            linked = [alias for alias in address.aliases(past) if address.leads(past, reader, alias)]
            entries = sorted(entries + _linked(linked))
    return entries


def page(memory: Memory, found: Address, after: bytes, limit: int) -> tuple[list[Entry], bool, bool]:
    """Like names(), of a directory of the store only those after a name and no more than ``limit``; whether there are
    more; and whether they stay the same while nothing is committed."""
    if not isinstance(found, Real) or found.node.id == ROOT:
        return names(memory, found), False, False
    if found.node.kind is not Kind.DIRECTORY:
        raise NotDirectory()
    if found.node.parent is None:  # it has been removed
        return [], False, False
    nodes, more = memory.store.cached_children(memory.who, found.node.id, after, limit)
    lasting = {node.expires for node in nodes} <= {None}
    return [(node.name, node.id, TYPE[node.kind]) for node in nodes], more, lasting


def _names_of_place(memory: Memory, reader: Reader, found: Place) -> list[Entry]:
    if found.name == ASK:
        with memory.mutex:
            known = [paths.raw(name) for name in memory.questions]
    else:
        known = [paths.raw(name) for name in [paths.EVERYONE, *reader.agents()]]
    return [(name, inode(found.name + b"/" + name), stat.S_IFREG) for name in sorted(known)]
