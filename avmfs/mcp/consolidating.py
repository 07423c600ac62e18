"""The tool that keeps memory good: consolidate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from avmfs.mcp.overview import Below
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
    under: Below = "/memory",
    agreed: Annotated[str, Field(description="apply: of the plan.")] = "",
) -> Answer[Consolidated]:
    """Archive notes that only repeat others: plan, then apply; undo brings the last back."""
    if action == "undo":
        done = call.door("unconsolidate")
        text = "".join(f"{escaped(each['path'] or '(gone)')}\n" for each in done["back"])
        text += "".join(
            f"{escaped(each['was'])} stays{' in the archive' * (each['kind'] != 'summary')}: {each['why']}\n"
            for each in done["left"]
        )
        return Answer(text, Consolidated(agreed=None, run=done["run"], notes=len(done["back"])))
    found = call.door("consolidate", path=under, agreed=agreed if action == "apply" else None)
    text = "".join(
        f"{escaped(each['path'])} ({each['handle']}) repeats {escaped(step['into']['path'])}\n"
        for step in found["steps"]
        for each in step["gone"]
    )
    value = Consolidated(agreed=found["agreed"], run=found["run"], notes=found["fewer"])
    if text and action == "plan":
        text += f"(apply: agreed={value.agreed})\n"
    return Answer(text or "(nothing repeats another note)\n", value)
