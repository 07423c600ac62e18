"""What avm hook answers to an event of an agent's client, and what it keeps.

Owns what is said at each event, in which form a client takes it, and the note of a session that ends. A client waits
for this before each prompt: nothing is imported that it can do without, click among that. It must never break or delay
the client: it waits WITHIN_S (at a session's end END_S; AVM_HOOK_S) for each answer of the daemon, has one started
where none runs and AVM_AT names none, without waiting, says nothing of what failed, and leaves no other process behind.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from avmfs.api.connect import asked, located, running, who_asks
from avmfs.closed_streams import drop_output
from avmfs.errors import AvmError, NotFound
from avmfs.rpc.client import Door

WITHIN_S: Final = 0.1
END_S: Final = 1.0  # Claude Code gives the hooks of a session's end 1.5 s
SHORTEST: Final = 12  # characters of a prompt that asks something
KEPT, TAIL = 4000, 256 * 1024  # characters of a session's note; bytes of a transcript that are looked at
TTL: Final = "30d"
SESSION, PROMPT, END = "session-start", "prompt", "session-end"
EVENTS: Final = (SESSION, PROMPT, END)
# The client's own names. At a session's end or before its compaction the transcript says what it was about; Claude Code
# hands the summary over once it has compacted.
NATIVE: Final = {
    "claude": {"SessionStart": SESSION, "UserPromptSubmit": PROMPT, "PostCompact": END, "SessionEnd": END},
    "codex": {"SessionStart": SESSION, "UserPromptSubmit": PROMPT},
    "gemini": {"SessionStart": SESSION, "BeforeAgent": PROMPT, "PreCompress": END, "SessionEnd": END},
    "cursor": {"sessionStart": SESSION, "preCompact": END, "sessionEnd": END},
}


def quick(arguments: Sequence[str]) -> bool:
    """Do what ``avm setup`` has written; False for a line of another form, which the command reads."""
    match arguments:
        case ["--client", client, "-a", agent, event] if client in NATIVE and event in EVENTS:
            answer(client, event, agent)
            return True
    return False


def answer(
    client: str,
    event: str,
    agent: str | None,
    *,
    tokens: int = 400,
    db: str | None = None,
    config: str | None = None,
    at: str | None = None,
    ca: str | None = None,
) -> None:
    """Print what memory has to say, or nothing. A person at a terminal is told why."""
    try:
        given = json.loads(sys.stdin.read() or "{}") if not sys.stdin.isatty() else {}
        if not isinstance(given, dict):
            raise ValueError("expected a JSON object on stdin")
        environ = asked(os.environ, at=at, ca=ca, db=db, config=config)
        where = located(environ, db, config)
        limit = float(environ.get("AVM_HOOK_S") or (END_S if event == END else WITHIN_S))
        door = running(where, who_asks(agent, environ), limit, environ)
        if door is None:
            from avmfs.api.autostart import begin

            begin(where, environ)
            return
        try:
            said = _kept(door, given) if event == END else _said(door, given, event, tokens)
        finally:
            door.close()
    except (AvmError, OSError, ValueError, RecursionError) as e:
        if sys.stderr.isatty():
            print(f"avm hook: {e}", file=sys.stderr)
        return
    try:
        if said:
            print(json.dumps(_formed(client, event, said)), flush=True)  # ASCII: stdout may take no other
    except OSError:
        drop_output()


def _formed(client: str, event: str, said: str) -> dict[str, Any]:
    if client == "cursor":
        return {"additional_context": said}
    native = next(name for name, each in NATIVE[client].items() if each == event)
    return {"hookSpecificOutput": {"hookEventName": native, "additionalContext": said}}


def _project(given: dict[str, Any]) -> str:
    return os.path.basename(str(given.get("cwd") or os.getcwd()))


def _said(door: Door, given: dict[str, Any], event: str, tokens: int) -> str:
    question = str(given.get("prompt") or "").strip() if event == PROMPT else _project(given)
    if event == PROMPT and len(question) < SHORTEST:
        return ""
    found = door.call("recall", q=question[:2000], max_tokens=tokens)
    parts = [found["text"]] if found["items"] else []
    if event == SESSION:
        unread = door.call("unread")
        count = unread["urgent"] + unread["normal"]
        mail = f" {count} unread message{'s' * (count > 1)}: avm_inbox." if count else ""
        parts.insert(0, f"You share a memory (avm) with other agents; you are {door.agent}.{mail}")
    return "\n".join([*([door.urgent] if door.urgent else []), *parts])


def _kept(door: Door, given: dict[str, Any]) -> str:
    """Keep a note of the session in private space, a later one of the same session in its place."""
    session = "".join(
        each for each in str(given.get("session_id") or given.get("conversation_id") or "") if each.isalnum()
    )
    summary = given.get("compact_summary")
    if isinstance(summary, str) and summary.strip():
        name, text = f"{session[:12]}-summary", summary.strip()
    else:
        name, text = session[:12], _matters([*_spoken(str(given.get("transcript_path") or ""))])
    if session and text:
        path = f"/private/sessions/{name}.md"
        said = f"# Session in {_project(given)}, {time.strftime('%Y-%m-%d')}\n\n{text[:KEPT]}\n"
        note = said.encode("utf-8", "replace")
        try:  # its end first: each call may be the last one that is waited for
            door.call("write", path=f"{path}:ttl", data=TTL.encode())
        except NotFound:
            door.call("remember_many", items=[{"path": path, "content": note.decode(), "ttl": TTL}])
        else:
            door.call("write", path=path, data=note)
    return ""


def _matters(spoken: list[tuple[str, str]]) -> str:
    """What was asked last, and the last answer: without a model to sum it up that says the most."""
    asked = [text for who, text in spoken if who == "user"][-3:]
    answers = [text for who, text in spoken if who != "user"][-1:]
    return "\n\n".join([*(f"Asked: {text[:600]}" for text in asked), *(f"Answered: {text[:1800]}" for text in answers)])


def _spoken(transcript: str) -> Iterator[tuple[str, str]]:
    """("user" or "assistant", text) of a transcript's end: lines of JSON, or one document with "messages"."""
    if not transcript or not stat.S_ISREG(os.stat(transcript).st_mode):
        return
    with open(transcript, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        data = file.read(TAIL)
    try:
        whole = json.loads(data)
        entries = whole["messages"] if isinstance(whole, dict) and isinstance(whole.get("messages"), list) else [whole]
    except ValueError:
        entries = [*map(_entry, data.split(b"\n"))]
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("isMeta") or entry.get("isSidechain"):
            continue
        message = entry["message"] if isinstance(entry.get("message"), dict) else entry
        who, content = message.get("role") or entry.get("type"), message.get("content")
        pieces = content if isinstance(content, list) else [{"text": content}]
        texts = [each["text"] for each in pieces if isinstance(each, dict) and isinstance(each.get("text"), str)]
        text = "\n".join(texts).strip()
        if who in ("user", "assistant", "gemini", "model") and text and not text.startswith("<"):  # what clients put in
            yield "user" if who == "user" else "assistant", text


def _entry(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # the first is cut, the last may not be written out
