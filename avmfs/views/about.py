"""Views of the program itself and of a file as it is. Owns :help, :version, :error, :savings, :data, :path, :info and
:annotated, and how a view is written down: here, and in the documents (tests/references.py)."""

from __future__ import annotations

import inspect
from typing import Final

from avmfs import calls
from avmfs.errors import NotFound
from avmfs.extras import version_text
from avmfs.memory import Memory
from avmfs.signatures import Parameter
from avmfs.text import sniff
from avmfs.views import registry
from avmfs.views.registry import Context, View, view
from avmfs.views.shape import heading, json_text, lines, whole

_INTRO: Final = """\
A view is read like a file (cat 'note.md:meta') and written like one (echo +urgent > note.md:tags).
Parameters follow a ? with & between them: cat '/:recall?q=RSI&max_tokens=500'. One taken as it stands, whatever
signs are in it: cat '/:recall:q=R&D, 50%'. What was wrong with the last one: cat /:error.
"""


@view("help", "root", summary="all views: what they are on, what they take", prose=True)
def help_text(ctx: Context) -> str:
    blocks = [f"avmfs {version_text()}\n", _INTRO]
    for each in registry.all_views():
        block = [f"{call(each)}  [{places(each)}; {access(each)}]", f"    {each.summary}"]
        block += [f"    {parameter.name}: {accepts(parameter)}" for parameter in each.parameters]
        block += [f"    write: {each.writes}"] if each.write is not None else []
        blocks.append("\n".join(block) + "\n")
    return "\n".join(blocks)


@view("version", "root", summary="the program's name and version")
def version(ctx: Context) -> str:
    return f"avmfs {version_text()}\n"


@view("error", "root", summary="why the last view or value of this agent was refused")
def error(ctx: Context) -> str:
    return f"{ctx.memory.error}\n" if ctx.memory.error else "(no error)\n"


@view("savings", "root", summary="tokens that recalls gave, against the files they were drawn from, as JSON")
def savings(ctx: Context) -> str:
    """Measured, not estimated: the tokens that this agent's recalls gave since this mount or program started, against
    those of the files that they were drawn from, each counted whole and once a recall, as it stands now: what the agent
    would have read instead. Files that are gone, or have grown beyond what is searched, are left out on both sides."""
    memory = ctx.memory
    sizes: dict[int, int | None] = {}
    given = read = counted = 0
    for tokens, nodes in list(memory.recalled):
        for node in nodes:
            if node not in sizes:
                sizes[node] = _tokens(memory, node)
        there = [size for node in nodes if (size := sizes[node]) is not None]
        if there:
            counted, given, read = counted + 1, given + tokens, read + sum(there)
    return json_text(
        {
            "files": sum(size is not None for size in sizes.values()),
            "given": given,
            "recalls": counted,
            "percent": round(100 * (read - given) / read, 1) if read else 0.0,
            "saved": read - given,
            "whole": read,
        }
    )


def _tokens(memory: Memory, node: int) -> int | None:
    """Of the whole file; None where it is gone, or no text of a size that is searched any more. It takes a second for a
    megabyte, and no snapshot is held meanwhile."""
    calls.go_on()
    try:
        with memory.reading() as reader:
            found = reader.node(node)
            if found.size > memory.around.search.max_index_bytes:
                return None
            data = whole(reader, found)
    except NotFound:
        return None
    text = sniff.decode(data)
    return None if text is None else memory.around.engine.counter.count(text)


@view("data", "file", summary="its bytes, as they are", past=True, shows_bytes=True)
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


NO_BANNER: Final = "(no urgent messages shown)\n\n"  # or a file could begin with one


@view("annotated", "file", summary="its bytes, below a banner of unread urgent messages", shows_bytes=True)
def annotated(ctx: Context) -> bytes:
    with ctx.memory.reading() as reader:
        above = heading(reader, reader.node(ctx.node.id))
    return ((ctx.memory.banner() or NO_BANNER) + above).encode("utf-8", "surrogateescape") + _bytes(ctx)


def _bytes(ctx: Context) -> bytes:
    with ctx.memory.reading() as reader:
        return whole(reader, reader.node(ctx.node.id))


_ORDER: Final = ("file", "directory", "root")


def call(view: View) -> str:
    """``:list?limit=100&offset=0&q=&tag=``: the name with all parameters at their defaults, required ones ``…``."""
    if not view.parameters:
        return f":{view.name}"
    return f":{view.name}?" + "&".join(f"{each.name}={_default(each)}" for each in view.parameters)


def access(view: View) -> str:
    """``r``, ``w`` or ``rw``."""
    return ("r" if view.read is not None else "") + ("w" if view.write is not None else "")


def places(view: View) -> str:
    """``file``, ``directory``, ``root``; what is on directories is on the root, too."""
    return ", ".join(place for place in _ORDER if place in view.on)


def accepts(parameter: Parameter) -> str:
    """What a value may be, in a few words."""
    if parameter.choices:
        return " or ".join(parameter.choices)
    if parameter.type is bool:
        return "1 or 0"
    if parameter.low is not None and parameter.high is not None and parameter.high < 10**6:
        return f"{parameter.low:g} to {parameter.high:g}"
    return "text" if parameter.type is str else "a number"


def _default(parameter: Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "…"
    if parameter.default is None:
        return ""
    if isinstance(parameter.default, bool):
        return str(int(parameter.default))
    return f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)
