"""avm hook: what an agent's client runs at its events, to put memory into the conversation.

Owns what is said at each event and in which form a client takes it. It must never break or delay the client: whatever
happens, it exits with 0, and it waits WITHIN_S (AVM_HOOK_S) for the daemon at most. Where none runs it has one started,
without waiting. It leaves no other process behind, and stores nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from avmfs.api.connect import located, who_am_i
from avmfs.cli.main import subcommand
from avmfs.errors import AvmError
from avmfs.rpc.client import RemoteDoor
from avmfs.store.files.store_lock import StoreLock

WITHIN_S: Final = 0.1  # for all that the daemon is asked; the interpreter takes about as long again to start
AGAIN_S: Final = 30.0  # before a daemon is started once more
SHORTEST: Final = 12  # characters of a prompt that asks something
SESSION, PROMPT = "session-start", "prompt"
# What the event is called in the answer, where the client names it there.
NATIVE: Final = {
    "claude": {SESSION: "SessionStart", PROMPT: "UserPromptSubmit"},
    "codex": {SESSION: "SessionStart", PROMPT: "UserPromptSubmit"},
    "gemini": {SESSION: "SessionStart", PROMPT: "BeforeAgent"},
    "cursor": {SESSION: "sessionStart"},
}


@subcommand("hook", "Answer an event of an agent's client; avm setup registers it.")
@click.argument("event", type=click.Choice([SESSION, PROMPT]))
@click.option(
    "--client", type=click.Choice([*NATIVE]), default="claude", show_default=True, help="Whose form to answer in."
)
@click.option("--tokens", default=400, show_default=True, type=click.IntRange(50, 4000), help="Of what is recalled.")
@click.pass_context
def hook_(ctx: click.Context, event: str, client: str, tokens: int) -> None:
    """Read the client's event from stdin (JSON) and answer what memory has to say: at the start of a session unread
    mail and notes on the project, at a prompt notes on what it asks. Exits with 0 whatever happens, at once.

    \b
      echo '{"prompt": "when may we release?"}' | avm hook prompt -a claude
    """
    try:
        said = _said(ctx, event, tokens)
    except (AvmError, OSError, ValueError) as e:
        print(f"avm hook: {e}", file=sys.stderr)
        return
    if said:
        print(json.dumps(_formed(client, event, said), ensure_ascii=False))


def _formed(client: str, event: str, said: str) -> dict[str, Any]:
    if client == "cursor":
        return {"additional_context": said}
    return {"hookSpecificOutput": {"hookEventName": NATIVE[client][event], "additionalContext": said}}


def _said(ctx: click.Context, event: str, tokens: int) -> str:
    given = json.loads(sys.stdin.read() or "{}") if not sys.stdin.isatty() else {}
    if not isinstance(given, dict):
        raise ValueError("expected a JSON object on stdin")
    agent = who_am_i(ctx.obj.agent, os.environ)
    project = Path(str(given.get("cwd") or os.getcwd())).name
    question = str(given.get("prompt") or "").strip() if event == PROMPT else project
    if event == PROMPT and len(question) < SHORTEST:
        return ""
    where = located(os.environ, ctx.obj.db, ctx.obj.config)
    holder = StoreLock(where.database).holder()
    if holder is None:
        _have_one_started(where.database.with_name("autostart.lock"))
        return ""
    within = float(os.environ.get("AVM_HOOK_S") or WITHIN_S)
    door = RemoteDoor(Path(holder["socket"]), agent, timeout_s=within, route="cli")
    try:
        found = door.call("recall", q=question[:2000], max_tokens=tokens)
        parts = [found["text"]] if found["items"] else []
        if event == SESSION:
            unread = door.call("unread")
            count = unread["urgent"] + unread["normal"]
            mail = f" {count} unread message{'s' * (count > 1)}: avm_inbox." if count else ""
            parts.insert(0, f"You share a memory (avm) with other agents; you are {agent}.{mail}")
        return "\n".join([*([door.urgent] if door.urgent else []), *parts])
    finally:
        door.close()


def _have_one_started(lock: Path) -> None:
    """For the next event; not waited for. Every prompt asks, so one that has just been tried is left alone."""
    if os.environ.get("AVM_AUTOSTART") == "0":
        return
    with contextlib.suppress(FileNotFoundError):
        if time.time() - lock.stat().st_mtime < AGAIN_S:
            return
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.touch(mode=0o600)
    command = [sys.executable, "-P", "-m", "avmfs.api.autostart"]
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
