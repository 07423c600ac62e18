"""avm tell, inbox, pending, subscribe, unsubscribe, subscriptions, claim, release, quarantine, agents, keys."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from avmfs.cli.main import CommandGroup, subcommand
from avmfs.cli.session import content_of, door, show, to_each
from avmfs.localtime import minute
from avmfs.rpc.client import Door, await_mail
from avmfs.text.escapes import escaped


@subcommand("tell", "Send a message to an agent or @all.")
@click.argument("recipient")
@click.argument("text", required=False)
@click.option("--priority", "-p", default="normal", help="urgent, normal or low.", show_default=True)
@click.option("--expires", metavar="DURATION", help="Such as 2h or 1d.")
@click.option("--re", "re", type=click.IntRange(min=1), metavar="ID", help="The message that this one answers.")
def tell_(recipient: str, text: str | None, **how: Any) -> None:
    """Send TEXT (or stdin) to an agent, or to @all."""
    body = content_of(text, None).decode("utf-8", "surrogateescape").removesuffix("\n")
    with door() as memory:
        sent = memory.call("tell", recipient=recipient, body=body, **how)
        show(sent, f"sent #{sent['id']} to {recipient}\n")


@subcommand("inbox", "Show messages, unread first.")
@click.option("--unread", is_flag=True, help="Only what is unread.")
@click.option("--mark-read", "-m", is_flag=True, help="Mark what is shown as read.")
@click.option(
    "--wait",
    "-w",
    type=click.FloatRange(0, 86400),
    default=0,
    metavar="SECONDS",
    help="Wait for unread mail, at most so long.",
)
@click.option("--thread", type=click.IntRange(min=1), metavar="ID", help="Only the thread that begins with it.")
@click.option("--jsonl", is_flag=True, help="One JSON object a line.")
@click.option(
    "--delete", multiple=True, type=click.IntRange(min=1), metavar="ID", help="Remove this message; repeatable."
)
@click.option("--delete-read", is_flag=True, help="Remove all that are read.")
def inbox_(
    ctx: click.Context, unread: bool, wait: float, jsonl: bool, delete: tuple[int, ...], delete_read: bool, **asked: Any
) -> None:
    """Your messages: unread first, urgent first. With --wait, exit code 1 when none has come."""
    removes = bool(delete) + delete_read
    if removes > 1:
        raise click.UsageError("--delete and --delete-read: one of them")
    if removes and (unread or wait or jsonl or asked["mark_read"] or asked["thread"]):
        raise click.UsageError("--delete and --delete-read show nothing: leave the other options out")
    with door() as memory:
        if removes:
            gone = memory.call("delete_mail", messages=[*delete] or None)
            show(gone, f"removed {gone['count']}\n")
            return
        marks = asked.pop("mark_read")
        found = await_mail(lambda step: memory.call("inbox", unread_only=unread, wait=step, **asked), wait)
        show(found["messages"], _lines(found["messages"]) if jsonl else found["text"])
        if marks and (unseen := [message["id"] for message in found["messages"] if not message["read"]]):
            _mark_printed(memory, messages=unseen)
        if asked["thread"] is None:
            memory.urgent = ""  # it has just been shown
    if wait and all(message["read"] for message in found["messages"]):
        ctx.exit(1)


@subcommand("pending", "What waits for you: messages, and changes since you last looked.")
def pending_(memory: Door) -> None:
    """What waits for you: unread messages, and files that have changed since you marked them as read."""
    found = memory.call("pending")
    text = found.pop("text")
    show(found, text)


def _mark_printed(memory: Door, **which: Any) -> None:
    """Mark these as read, once they are out: what could not be printed comes again."""
    sys.stdout.flush()
    memory.call("mark_read", **which)


def _lines(messages: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(message, sort_keys=True) + "\n" for message in messages)


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
    if everybody and (dead or action != "list"):
        raise click.UsageError("--all to the list of subscriptions alone")
    with door() as memory:
        if action == "redeliver":
            found = memory.call("redeliver", messages=[*ids] or None)
            show(found, f"{found['count']} will be delivered anew\n")
        elif action == "notices":
            found = memory.call("notices")
            show(found["notices"], found["text"])
            if mark_read and found["notices"]:
                _mark_printed(memory, notices=[each["id"] for each in found["notices"]])
        elif dead:
            found = memory.call("dead_letters")
            show(found["letters"], found["text"])
        else:
            found = memory.call("subscriptions", everybody=everybody)
            show(found["subscriptions"], found["text"])


@subcommand("claim", "Take a file to work on, or the next one of a directory.")
@click.argument("path", required=False)
@click.option("--next", "-n", "next_", is_flag=True, help="The oldest file of the directory PATH that nobody has.")
@click.option("--lease", default="10m", show_default=True, metavar="DURATION", help="Until it is free again by itself.")
def claim_(ctx: click.Context, memory: Door, path: str | None, next_: bool, lease: str) -> None:
    """Say that you work on the file PATH, so that no other agent does; without PATH, who works on what.

    Exactly one agent has a file. Exits 75 where another has claimed PATH, 1 where --next finds none. Claim it again to
    renew the lease; it ends with the file, too.
    """
    if path is None:
        if next_:
            raise click.UsageError("--next: of which directory? name its PATH")
        found = memory.call("claims")
        lines = [f"{each['agent']}  {minute(each['until'])}  {escaped(each['path'])}\n" for each in found["claims"]]
        show(found, "".join(lines) or "(nothing is claimed)\n")
        return
    made = memory.call("claim_next" if next_ else "claim", path=path, lease=lease)
    show(made, f"{escaped(made['path'])}\n" if made["path"] else "(nothing to claim)\n")
    if made["path"] is None:
        ctx.exit(1)


@subcommand("release", "Give up what you have claimed.")
@click.argument("path")
def release_(memory: Door, path: str) -> None:
    """Give up your claim of the file PATH, so that others may take it."""
    done = memory.call("release", path=path)
    says = "released" if done["released"] else "nobody had claimed"
    show(done, f"{says} {escaped(done['path'])}\n")


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
    to_each(
        paths,
        lambda each: str(memory.call(method, path=f"/{each}" if each.startswith("@") else each)["path"]),
        lambda done: show({"action": verb, "paths": done}, "".join(f"{verb} {escaped(each)}\n" for each in done)),
    )


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
    ctx: click.Context, memory: Door, paths: tuple[str, ...], actions: tuple[str, ...], whose: str | None, **said: Any
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    made = memory.call("create_key", paths=[*paths] or None, actions=[*actions] or None, agent=whose, **said)
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
