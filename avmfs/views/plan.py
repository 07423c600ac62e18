"""What a budget of tokens would buy. Owns :plan (docs/FORMATS.md)."""

from __future__ import annotations

from typing import Annotated, Final

from avmfs.signatures import Range
from avmfs.views.registry import Context, view
from avmfs.views.shape import parts

BUDGETS: Final = (250, 500, 1000, 2000, 4000)


@view("plan", "directory", summary="what recalls of 250 to 4000 tokens for `q` would hold", slow=True)
def plan(ctx: Context, *, q: str, min_relevance: Annotated[float | None, Range(0, 1)] = None) -> str:
    with ctx.memory.reading() as reader:
        under = parts(reader.path(ctx.node.id))
    rows, whole = [], 0
    for budget in BUDGETS:
        found = ctx.memory.recall(q, max_tokens=budget, min_relevance=min_relevance, under=under, handed_out=False)
        if not found.hits:
            rows.append(f"{budget:>6}  nothing fits" if found.text and whole == 0 and "fits" in found.text else "")
            continue
        documents = len({scored.hit.document for scored in found.hits})
        least = min(scored.relevance for scored in found.hits)
        more = "" if len(found.hits) > whole else "  (no more)"
        whole = len(found.hits)
        rows.append(
            f"{budget:>6}  {found.tokens:>5} tokens  {whole:>3} item{' ' if whole == 1 else 's'}"
            f"  {documents:>3} file{' ' if documents == 1 else 's'}  relevance from {least:.2f}{more}"
        )
    rows = [row for row in rows if row]
    return "".join(f"{row}\n" for row in rows) or "(nothing relevant)\n"
