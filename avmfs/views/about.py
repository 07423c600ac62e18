"""Views of the program itself. Owns :help, :version, :error and :savings."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final

from avmfs.errors import NotFound
from avmfs.store.queries.nodes import Reader
from avmfs.text.tokens import TokenCounter
from avmfs.views import registry
from avmfs.views.registry import Context, view
from avmfs.views.shape import json_text, whole
from avmfs.views.table import accepts, access, call, places

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
    would have read instead. Files that are gone are left out on both sides."""
    memory, counter = ctx.memory, ctx.memory.around.engine.counter
    sizes: dict[int, int | None] = {}
    given = read = counted = 0
    recalls = list(memory.recalled)
    with memory.reading() as reader:
        for tokens, nodes in recalls:
            for node in nodes:
                if node not in sizes:
                    sizes[node] = _tokens(reader, node, counter)
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


def _tokens(reader: Reader, node: int, counter: TokenCounter) -> int | None:
    """Of the whole file; None where it is gone."""
    try:
        return counter.count(whole(reader, reader.node(node)).decode("utf-8", "replace"))
    except NotFound:
        return None


@lru_cache(maxsize=1)
def version_text() -> str:
    """As installed; from a bare checkout, as pyproject.toml says."""
    try:
        return metadata.version("avmfs")
    except metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])
