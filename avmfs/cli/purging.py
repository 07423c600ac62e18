"""avm purge: forgetting that cannot be undone, and the proof."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click
from avmfs_config import load_settings

from avmfs.cli.main import REFUSED, subcommand
from avmfs.cli.session import asking, confirm, door, locations_here, show, working
from avmfs.errors import Denied
from avmfs.localtime import minute
from avmfs.store.repair import traces
from avmfs.text.escapes import escaped

_AGAIN_S = 0.5


@subcommand("purge", "Forget for good: files, their past, and every trace of them.")
@click.argument("path", required=False)
@click.option("--tag", help="Only what has this tag.")
@click.option("--author", metavar="AGENT", help="Only what this agent has made.")
@click.option("--before", metavar="TIME", help="Only what has not been changed since (ISO 8601, local).")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be forgotten, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--verify", metavar="STRING", help="Look for these bytes in every file of the store; - reads stdin.")
def purge_(ctx: click.Context, dry_run: bool, yes: bool, verify: str | None, **named: str | None) -> None:
    """Forget PATH with all below it, and what was removed there: contents, versions, the past, snapshots of it, words,
    vectors, notices, kept questions and the names in the log. It cannot be undone. Where nobody can be asked, --yes has
    to say so.

    Backups made before stay as they are, and so does mail. The store's file is written anew: others wait meanwhile.
    --verify, with --operator, says where something still is, in the log that hosts share too, and exits with 1.
    """
    if verify is not None:
        _verified(ctx, sys.stdin.read().rstrip("\n") if verify == "-" else verify)
        return
    if not any(named.values()):
        raise click.UsageError("expected PATH, --tag, --author, --before or --verify")
    with door() as memory:
        plan = memory.call("purge", **named)
        if dry_run or not plan["count"]:
            show(plan, _text(plan), prose=False)
            return
        if not yes:
            if not asking():
                raise click.UsageError("it cannot be undone: --yes says that it is meant, --dry-run what it would be")
            click.echo(_text(plan), nl=False, err=True)
            confirm("forget this for good?")
        with working("purging"):
            done = memory.call("purge", **named, agreed=plan["agreed"])
            while not memory.call("wipe")["wiped"]:
                time.sleep(_AGAIN_S)
        show(done, f"{done['purged']} purged\n", prose=False)


def _text(plan: dict[str, Any]) -> str:
    lines = [f"{each['state']:<7}  {each['size']:>9}  {escaped(each['path'])}\n" for each in plan["files"]]
    if plan["count"] > len(lines):
        lines.append(f"and {plan['count'] - len(lines)} more\n")
    if not lines:
        lines.append("(nothing to purge)\n")
    if plan["refused"]:
        lines.append(f"# {plan['refused']} more are not yours to change, and stay\n")
    if plan["snapshots"]:
        lines.append(f"# out of the snapshots {', '.join(plan['snapshots'])}\n")
    if plan["backed_up"] is not None:
        lines.append(f"# backups stay as they are; the last is of {minute(plan['backed_up'])}\n")
    return "".join(lines)


def _verified(ctx: click.Context, text: str) -> None:
    if not ctx.obj.operator:
        raise Denied("it reads what is everybody's: --operator")
    if not text:
        raise click.UsageError("--verify: expected what to look for")
    where = locations_here()
    with working("looking"):
        found = list(traces.of(where.database, text))
        if load_settings(where.config_file, os.environ).store.log is not None:
            from avmfs.cli.keeping import log_of_settings
            from avmfs.store.backup import cluster

            with log_of_settings() as (log, _):
                found += cluster.traces_of(log, text)
    lines = [f"{escaped(each.file)}: {escaped(each.where)}\n" for each in found]
    told = {"found": [{"file": each.file, "where": each.where} for each in found]}
    show(told, "".join(lines) or "(nowhere)\n", prose=False)
    if found:
        ctx.exit(REFUSED)
