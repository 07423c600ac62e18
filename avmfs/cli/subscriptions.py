"""avm subscribe, unsubscribe, subscriptions."""

from __future__ import annotations

import click

from avmfs.cli.main import subcommand
from avmfs.cli.session import door, show
from avmfs.rpc.client import Door
from avmfs.text.escapes import escaped

_MODES = ["realtime", "throttled", "batched", "digest"]


@subcommand("subscribe", "Be told of changes, by webhook or in what you read.")
@click.argument("pattern")
@click.option("--mode", "-m", type=click.Choice(_MODES), default="realtime", show_default=True)
@click.option("--time", "-t", "seconds", type=float, metavar="SECONDS", help="Of throttled and batched: 60 by default.")
@click.option("--webhook", "-w", metavar="URL", help="Deliver there. Without it, notices wait for you.")
def subscribe_(memory: Door, pattern: str, mode: str, seconds: float | None, webhook: str | None) -> None:
    """Be told of changes below PATTERN, in which * stands for anything, also for slashes.

    realtime: each change. throttled: at most one in SECONDS for each path, the last state. batched: what came together
    in SECONDS, as a list. digest: a summary, each day or every SECONDS. /tell/YOU follows your mail.

    A webhook's secret is printed once; receivers check signatures with it (Standard Webhooks).
    """
    made = memory.call("subscribe", pattern=pattern, mode=mode, every_s=seconds, url=webhook)
    said = f"#{made['number']}  {escaped(pattern)}  {mode}{'' if made['new'] else '  (changed)'}\n"
    if made["secret"] is not None:
        said += f"secret: {made['secret']}\nkeep it: it is not shown again\n"
    show(made, said)


@subcommand("unsubscribe", "End a subscription.")
@click.argument("pattern")
@click.option("--webhook", "-w", metavar="URL", help="Only the one that is delivered there.")
def unsubscribe_(memory: Door, pattern: str, webhook: str | None) -> None:
    """End your subscriptions to PATTERN, as it was written when they were made."""
    found = memory.call("unsubscribe", pattern=pattern, url=webhook)
    show(found, f"ended {found['ended']}\n")


@subcommand("subscriptions", "Subscriptions, their notices and dead letters.")
@click.argument("action", type=click.Choice(["list", "notices", "redeliver"]), default="list")
@click.argument("ids", nargs=-1)
@click.option("--dead", is_flag=True, help="What could not be delivered.")
@click.option("--mark-read", is_flag=True, help="Of notices: they are not shown again.")
@click.option("--all", "everybody", is_flag=True, help="Of all agents; for the operator.")
def subscriptions_(action: str, ids: tuple[str, ...], dead: bool, mark_read: bool, everybody: bool) -> None:
    """Your subscriptions; with `notices`, what those without a webhook have for you; with `redeliver`, try dead letters
    anew, all or those with these IDS (of --dead)."""
    if (ids and action != "redeliver") or (mark_read and action != "notices") or (dead and action != "list"):
        raise click.UsageError("IDS belong to redeliver, --mark-read to notices, --dead to the list")
    with door() as memory:
        if action == "redeliver":
            found = memory.call("redeliver", messages=[*ids] or None)
            show(found, f"{found['count']} will be delivered anew\n")
        elif action == "notices":
            found = memory.call("notices", mark_read=mark_read)
            show(found["notices"], found["text"])
        elif dead:
            found = memory.call("dead_letters")
            show(found["letters"], found["text"])
        else:
            found = memory.call("subscriptions", everybody=everybody)
            show(found["subscriptions"], found["text"])
