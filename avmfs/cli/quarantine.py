"""avm quarantine: what came from untrusted sources and waits."""

from __future__ import annotations

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("quarantine", "What waits to be let out, as config.yaml has it.")
@click.argument("action", type=click.Choice(["ls", "release", "reject"]), default="ls")
@click.argument("paths", nargs=-1)
@click.option("--limit", "-n", default=100, show_default=True, help="ls: at most so many.")
def quarantine_(memory: Door, action: str, paths: tuple[str, ...], limit: int) -> None:
    """What came from untrusted sources and is in no answer until somebody lets it out (config.yaml: trust).

    ls lists it, release lets PATHS out, which are found and marked from then on, reject moves them to the trash. PATHS
    are paths or handles.
    """
    if action == "ls":
        if paths:
            raise click.UsageError("ls takes no paths")
        found = memory.call("quarantine", limit=limit)
        lines = [
            f"{each['handle']}  {minute(each['updated'])}  {each['author']}  from {','.join(each['sources'])}"
            f"  {escaped(each['path'])}\n"
            for each in found["held"]
        ]
        more = f"({found['more']} more: --limit)\n" if found["more"] else ""
        show(found, "".join(lines) + more or "(nothing in quarantine)\n")
        return
    if not paths:
        raise click.UsageError(f"{action} what? name paths or handles")
    method, verb = ("let_out", "released") if action == "release" else ("reject", "rejected")
    done = [memory.call(method, path=f"/{each}" if each.startswith("@") else each)["path"] for each in paths]
    show({"action": verb, "paths": done}, "".join(f"{verb} {escaped(each)}\n" for each in done))
