"""What recalls have saved. Owns :savings (docs/FORMATS.md).

Measured, not estimated: the tokens that this agent's recalls gave, against those of the files that they were drawn
from, each counted whole and once a recall, as it stands now: what the agent would have read instead. Since this mount
or program started; files that are gone are left out on both sides.
"""

from __future__ import annotations

from avmfs.errors import NotFound
from avmfs.store.protocol.store import Reader
from avmfs.text.tokens import TokenCounter
from avmfs.views.registry import Context, view
from avmfs.views.shape import json_text, whole


@view("savings", "root", summary="tokens that recalls gave, against the files they were drawn from, as JSON")
def savings(ctx: Context) -> str:
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
