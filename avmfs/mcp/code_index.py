"""The tool that looks into the index of code. It reads alone: a server scans no directory for a client."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from avmfs.codeindex import finding, scanning
from avmfs.errors import Invalid
from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.node import notice


class Found(Result):
    name: str
    kind: str
    source: str = Field(description="The file, in its project.")
    line: int
    signature: str
    doc: str
    project: str
    path: str = Field(description="Its note; avm_read takes it.")
    calls: list[str]


class Indexed(Result):
    symbols: list[Found]
    projects: list[dict[str, Any]] = Field(description="status: what each has, and where its files are.")


class _Door:
    def __init__(self, call: Call) -> None:
        self.agent, self.call = call.agent, call.door


@tool("Index of code", reads=True)
def avm_index(
    call: Call,
    action: Annotated[
        Literal["find", "sigs", "callers", "callees", "status"], Field(description="status: which projects there are.")
    ],
    query: Annotated[str, Field(description="find: a question or name; else a name, or for sigs a file or glob.")] = "",
    project: Annotated[str | None, Field(description="Only in this one; sigs needs it.", min_length=1)] = None,
    limit: Annotated[int, Field(description="At most so many.", ge=1, le=500)] = 10,
) -> Answer[Indexed]:
    """Where something is in the indexed code: file, line and signature. callers and callees go by names alone."""
    door = _Door(call)
    if action == "status":
        if project is None:
            known = scanning.projects(door)
        else:
            where, facts = scanning.found(door, project)
            known = [{"project": project, "path": where, **facts}]
        lines = [f"{each['project']}: {each['files']} files, {each['symbols']} symbols\n" for each in known]
        return Answer("".join(lines) or "(no project is indexed)\n", Indexed(symbols=[], projects=known))
    if not query and action != "sigs":
        raise Invalid(f"query: {action} needs one")
    reasons: list[str] = []
    if action == "sigs":
        if project is None:
            raise Invalid("project: sigs needs one")
        found = list(finding.sigs(door, project, query))
    elif action == "find":
        found = finding.find(door, query, project, limit, reasons.append)
    else:
        found = (finding.callers if action == "callers" else finding.callees)(door, query, project)
    more = f"({len(found) - limit} more)\n" if len(found) > limit else ""
    found = found[:limit]
    text = "".join(f"{line}\n" for line in finding.lines(found, project=project is None))
    if action == "callees":
        text = "".join(f"{each.symbol.name}: {', '.join(each.symbol.calls) or '(none)'}\n" for each in found)
    value = Indexed(symbols=[Found(**each.plain()) for each in found], projects=[])
    return Answer("".join(map(notice, reasons)) + (text + more or "(nothing found)\n"), value)
