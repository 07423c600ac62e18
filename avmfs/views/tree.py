"""The shape of a directory. Owns :tree (docs/FORMATS.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from avmfs import calls, paths
from avmfs.node import Kind, Node
from avmfs.signatures import Range
from avmfs.store.protocol.store import Reader
from avmfs.views.registry import Context, view

MOST: Final = 50
"""Entries of one directory that are shown; the others are counted."""


@view("tree", "directory", summary="directories and files below it, `depth` deep", past=True)
def tree(ctx: Context, *, depth: Annotated[int, Range(1, 16)] = 3) -> str:
    with ctx.memory.reading() as reader:
        lines = [paths.printable(reader.path(ctx.node.id)), *_below(reader, ctx.node, depth, "")]
    return "\n".join(lines) + "\n" if len(lines) > 1 else "(empty)\n"


def _below(reader: Reader, directory: Node, depth: int, indent: str) -> Iterator[str]:
    calls.go_on()
    children = sorted(reader.children(directory.id), key=lambda node: (node.kind is not Kind.DIRECTORY, node.name))
    for node in children[:MOST]:
        name = paths.printable(node.name)
        if node.kind is Kind.SYMLINK:
            yield f"{indent}  {name} -> {paths.printable(reader.target(node.id))}"
        elif node.kind is Kind.FILE:
            yield f"{indent}  {name}"
        elif depth > 1:
            yield f"{indent}  {name}/"
            yield from _below(reader, node, depth - 1, indent + "  ")
        else:
            inside = len(reader.children(node.id))
            yield f"{indent}  {name}/" + (f"  ({inside})" if inside else "")
    if len(children) > MOST:
        yield f"{indent}  ({len(children) - MOST} more)"
