"""avm agents, keys."""

from __future__ import annotations

import sys
from typing import Any

import click

from avmfs.cli.main import CommandGroup, subcommand
from avmfs.cli.session import show
from avmfs.localtime import minute
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped


@subcommand("agents", "Every agent, with what it may do.")
def agents_(memory: Door) -> None:
    """Every agent that is known here: groups, capabilities, of your own quota how much is used, who is here now, and
    what each has claimed.

    The operator sees how much everybody uses.
    """
    found = memory.call("agents")
    show(found, "".join(map(_agent, found)) or "(no agents yet)\n")


@subcommand("keys", "Make, list and revoke API keys.", cls=CommandGroup)
def keys_() -> None:
    """API keys: an agent's rights, or less of them, for a program.

    A program shows one in AVM_API_KEY and is that agent then, limited to the key's paths and actions.
    """


@keys_.command("create")
@click.option(
    "--path",
    "-p",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Such as /memory/a/*: that with all below it. Repeat it for more. [default: everything]",
)
@click.option(
    "--action",
    "-x",
    "actions",
    multiple=True,
    type=click.Choice(["read", "write", "search", "tell", "inbox"]),
    help="What it allows. Repeat it for more. [default: read and search]",
)
@click.option("--for", "whose", metavar="NAME", help="Whose key (operator only). [default: yours]")
@click.option("--expires", metavar="DURATION", help="Such as 12h or 30d. [default: never]")
@click.option("--label", default="", help="What it is for.")
def create_(
    ctx: click.Context,
    memory: Door,
    paths: tuple[str, ...],
    actions: tuple[str, ...],
    whose: str | None,
    expires: str | None,
    label: str,
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    made = memory.call(
        "create_key", paths=[*paths] or None, actions=[*actions] or None, agent=whose, label=label, expires=expires
    )
    show(made, f"{made['key']}\n")
    if not ctx.obj.as_json:
        until = f" until {made['expires']}" if made["expires"] else ""
        print(
            f"key {made['id']}: {made['agent']}, {', '.join(made['actions'])}, {escaped(' '.join(made['paths']))}"
            f"{until}. It will not be shown again.",
            file=sys.stderr,
        )


@keys_.command("list")
def list_(memory: Door) -> None:
    """Your keys, without their secrets; the operator's view has everybody's."""
    found = memory.call("list_keys")
    show(found, "".join(map(_key, found)) or "(no API keys)\n")


@keys_.command("revoke")
@click.argument("id")
def revoke_(memory: Door, id: str) -> None:
    """Let nobody in with the key ID any more, from now on."""
    done = memory.call("revoke_key", id=id)
    show({"id": id, **done}, f"revoked {id} ({done['agent']})\n")


def _agent(agent: dict[str, Any]) -> str:
    limits = []
    for what, most in agent["quota"].items():
        used = (agent["used"] or {}).get(what)
        if most is not None:
            limits.append(f"{what} {most}" if used is None else f"{what} {used} of {most}")
    groups = f"  groups: {', '.join(agent['groups'])}" if agent["groups"] else ""
    able = ", ".join(agent["capabilities"]) or "read-only"
    here = f"  here: {', '.join(agent['here'])}" if agent["here"] else ""
    works = "".join(f"  works on {escaped(each['path'])} until {minute(each['until'])}\n" for each in agent["claims"])
    quota = f"  quota: {', '.join(limits)}" if limits else ""
    return f"{agent['name']}  {able}{groups}{quota}{here}\n{works}"


def _key(key: dict[str, Any]) -> str:
    state = key["state"] if key["state"] != "valid" or not key["expires"] else f"valid until {key['expires']}"
    label = f"  # {escaped(key['label'])}" if key["label"] else ""
    return (
        f"{key['id']}  {key['agent']}  {','.join(key['actions'])}  {escaped(' '.join(key['paths']))}  {state}{label}\n"
    )
