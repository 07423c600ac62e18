"""avm audit: who did what by which door, and whether the log is still as it was written."""

from __future__ import annotations

from typing import Any

import click

from avmfs.cli.main import REFUSED, subcommand
from avmfs.cli.session import show
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped, visible


@subcommand("audit", "Who did what by which door, and whether the log is as it was.")
@click.argument("action", type=click.Choice(["show", "verify", "anchor"]), default="show")
@click.option("--since", metavar="TIME", help="Only after this ISO 8601 time, or after a seq.")
@click.option("--by", metavar="NAME", help="Only what this agent did.")
@click.option("--path", metavar="PATH", help="Only what happened there, or below.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@click.option("--anchor", metavar="SEQ:HASH", help="verify: an anchor that was kept elsewhere.")
def audit_(ctx: click.Context, memory: Door, action: str, by: str | None, anchor: str | None, **asked: Any) -> None:
    """Show the audit, newest first: your own acts and what happened to what you may see; all of it with --operator.

    "verify" (with --operator) walks the hash chain over the whole log, compares it with the anchors that are kept
    beside the database, and names the first row that was changed, removed or moved: exit code 1. "anchor" prints the
    head of the chain, to be kept somewhere else and given to verify later.
    """
    if action == "anchor":
        line = memory.call("audit_anchor")
        show(line.split(), line)
    elif action == "verify":
        found = memory.call("audit_verify", anchor=anchor)
        show(found, _verdict(found))
        if not found["ok"]:
            ctx.exit(REFUSED)
    else:
        acts = memory.call("audit", agent=by, **asked)
        show(acts, "".join(map(_line, acts)) or "(nothing)\n")


def _line(act: dict[str, Any]) -> str:
    who = act["agent"] + ("!" if act["operator"] else "") + (f"/{act['route']}" if act["route"] else "")
    parts = [act["at"], who, act["op"], escaped(act["path"] or "-")]
    if act["was"]:
        parts.append(f"(was {escaped(act['was'])})")
    if act["version"] is not None:
        parts.append(f"v{act['version']}")
    if act["op"] == "refused":
        parts.append(f"{act['about']['command']}: {act['about']['code']}, {act['about']['count']} times")
    return "  ".join(parts) + "\n"


def _verdict(found: dict[str, Any]) -> str:
    lines = []
    if found["bad"] is not None:
        lines.append(f"FAILED: row {found['bad']} {found['reason']}")
    if found["unguarded"]:
        lines.append(f"FAILED: triggers or tables are not as avmfs made them: {escaped(', '.join(found['unguarded']))}")
    lines += [f"FAILED: {visible(line)}" for line in found["forged"]]
    if found["ok"]:
        lines.append(f"ok: {found['rows']} rows as they were written, up to row {found['last']}")
    lines.append(f"head: {found['last']} {found['head']}")
    if found["unchained"]:
        lines.append(f"{found['unchained']} newer rows are not chained yet: nothing protects them")
    if found["trimmed"]:
        lines.append(f"rows up to {found['trimmed']} were trimmed")
    if found["purged"]:
        lines.append(f"{found['purged']} rows have been purged of their paths")
    if found["anchors"]:
        lines.append(f"{found['anchors']} anchors agree ({found['anchor_file']})")
    elif found["bad"] is None:
        lines.append(f"no anchors ({found['anchor_file']}): whether the tail was cut cannot be told")
    return "\n".join(lines) + "\n"
