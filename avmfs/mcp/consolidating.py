"""The tool that keeps memory good: consolidate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.text.escapes import escaped


class Consolidated(Result):
    agreed: str | None = Field(description="Give it back to apply.")
    run: int | None
    notes: int = Field(description="Put away, or back.")


@tool("Consolidate", repeatable=True)
def avm_consolidate(
    call: Call,
    action: Literal["plan", "apply", "undo"] = "plan",
    under: str = "/memory",
    agreed: Annotated[str | None, Field(description="apply: of the plan.")] = None,
    run: Annotated[int | None, Field(description="undo: which; your last.")] = None,
) -> Answer[Consolidated]:
    """Archive notes that only repeat another one: plan, then apply; undo brings them back."""
    if action == "undo":
        done = call.door("unconsolidate", run=run)
        text = "".join(f"{escaped(each['path'] or '(gone)')}\n" for each in done["back"])
        return Answer(text, Consolidated(agreed=None, run=done["run"], notes=len(done["back"])))
    found = call.door("consolidate", path=under, agreed=(agreed or "") if action == "apply" else None)
    rows = (
        f"{escaped(each['path'])} ({each['handle']}) repeats {escaped(step['into']['path'])}\n"
        for step in found["steps"]
        for each in step["gone"]
    )
    value = Consolidated(agreed=found["agreed"], run=found["run"], notes=found["fewer"])
    return Answer("".join(rows) or "(nothing repeats another note)\n", value)
