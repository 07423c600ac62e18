"""Views of a file's bytes and of its place. Owns :data, :path, :info and :annotated."""

from __future__ import annotations

from avmfs.views import registry
from avmfs.views.registry import Context, view
from avmfs.views.shape import heading, lines, whole
from avmfs.views.table import access, call


@view("data", "file", summary="its bytes, as they are", past=True)
def data(ctx: Context) -> bytes:
    return _bytes(ctx)


@view("path", "file", summary="its path in the mount", past=True)
def path(ctx: Context) -> bytes:
    with ctx.memory.reading() as reader:
        return reader.path(reader.node(ctx.node.id).id) + b"\n"


@view("info", "file", summary="the views that it has")
def info(ctx: Context) -> str:
    found = [(call(each), access(each), each.summary) for each in registry.of_node(ctx.node)]
    wide, deep = (max(len(row[column]) for row in found) for column in (0, 1))
    return lines((f"{name:<{wide}}  {may:<{deep}}  {summary}" for name, may, summary in found), "no views")


@view("annotated", "file", summary="its bytes, below a banner of unread urgent messages")
def annotated(ctx: Context) -> bytes:
    with ctx.memory.reading() as reader:
        above = heading(reader, reader.node(ctx.node.id))
    return (ctx.memory.banner() + above).encode("utf-8", "surrogateescape") + _bytes(ctx)


def _bytes(ctx: Context) -> bytes:
    with ctx.memory.reading() as reader:
        return whole(reader, reader.node(ctx.node.id))
