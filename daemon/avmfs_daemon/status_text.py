"""The status of the daemon as people read it.

Owns the text of `avm-daemon status`; the figures are the supervisor's, and `--json` prints them as they are.
"""

from __future__ import annotations

import time
from typing import Any

from avmfs.store.sharedlog.protocol import CLOCK_S
from avmfs.text.escapes import escaped, visible

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def status_text(answer: dict[str, Any]) -> str:
    embedding, store = answer["embedding"], answer["store"]
    because = f" ({answer['isolation_reason']})" if answer.get("isolation_reason") else ""
    lines = [f"avm-daemon {answer['version']}, pid {answer['pid']}, isolation {answer['isolation']}{because}", ""]
    if answer.get("automatic"):
        lines[1:1] = ["started by a command: it mounts nothing, and ends when nobody asks for long"]
    rows = [("AGENT", "STATE", "PID", "RESTARTS", "SINCE", "UNREAD", "MOUNTPOINT")]
    rows += [
        (
            mount["agent_id"],
            mount["state"],
            str(mount["pid"] or "-"),
            str(mount["restarts"]),
            _ago(mount["since"]),
            str(mount["unread"]),
            escaped(mount["mountpoint"]),
        )
        for mount in answer["mounts"]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines[1:1] = [f"  {answer['problem']}"] if answer.get("problem") else []
    for what in ("error", "link_problem"):
        lines += [f"  {mount['agent_id']}: {mount[what]}" for mount in answer["mounts"] if mount.get(what)]
    model = f" {embedding['model']}, {embedding['dimension']} dimensions" if embedding["model"] else ""
    reason = f" ({embedding['reason']})" if embedding.get("reason") else ""
    lines += ["", f"embedding  {embedding['state']}{model}{reason}", f"store      {store['path']}"]
    second = answer.get("reranker", {"state": "off"})
    if second["state"] != "off":
        because = f" ({second['reason']})" if second.get("reason") else ""
        lines.insert(-1, f"re-ranker  {second['state']} {second['name']}{because}")
    index = answer.get("index", {})
    if "vectors" in index:
        lines.insert(-1, f"index      {index['state']}, {index['vectors']} vectors, pid {index['pid'] or '-'}")
    lines += _gossip(answer.get("gossip", {"state": "off"})) + _outbox(answer.get("outbox", {}))
    lines += _http(answer.get("http", {"state": "off"}))
    lines += _cluster(answer.get("cluster", {})) + _backup(answer.get("backup", {}))
    if "error" in store:
        lines.append(f"           {store['error']}")
    else:
        lines.append(f"waiting    {store['waiting_lexical']} for words, {store['waiting_semantic']} for vectors")
    return "\n".join(map(visible, lines))


def _gossip(said: dict[str, Any]) -> list[str]:
    """How the exchange with other hosts is; nothing where there is none."""
    if said["state"] in ("off", "starting"):
        return []
    if said["state"] != "on":
        return [f"gossip     {said['state']}"]
    peers = [f"           {peer}: {state['state']}" for peer, state in said["peers"].items()]
    return [f"gossip     {said.get('digests', 0)} digests of {said.get('hosts', 0)} hosts", *peers]


def _cluster(said: dict[str, Any]) -> list[str]:
    """How far this host is in the log that it shares; nothing where it shares none."""
    if not said:
        return []
    behind = "" if not said["behind"] else f", {said['behind']} behind"
    lines = [f"shared log {said['host']}, record {said['record']}{behind}"]
    if abs(ahead := said["ahead_s"]) > CLOCK_S:
        way = "ahead of" if ahead > 0 else "behind"
        lines.append(f"           its clock is {abs(ahead):.0f} s {way} the log's: it does not keep house")
    return lines


def _outbox(said: dict[str, Any]) -> list[str]:
    """How deliveries are; nothing while nobody wants any."""
    if not (said.get("subscriptions") or said.get("hooks")):
        return []
    due = "" if said["oldest_s"] is None else f", the oldest due for {_ago(time.time() - said['oldest_s'])}"
    lines = [
        f"outbox     {said['subscriptions']} subscriptions and {said['hooks']} hooks: {said['waiting']} waiting"
        f" ({said['retrying']} being repeated), {said['delivering']} at work, {said['unread']} unread,"
        f" {said['sent']} delivered{due}"
    ]
    if said["dead"]:
        lines.append(
            f"           {said['dead']} dead letters: avm subscriptions --dead -a AGENT (of hooks: --operator)"
        )
    return lines


def _http(said: dict[str, Any]) -> list[str]:
    """Where browsers and programs reach it; nothing where nothing listens."""
    if said["state"] == "off":
        return []
    error = f" ({said['error']})" if said.get("error") else ""
    return [" ".join(["http      ", said["state"], *(["at", said["url"]] if said["url"] else [])]) + error]


def _backup(said: dict[str, Any]) -> list[str]:
    """How old the last good backup is; nothing where there is none and none is wanted."""
    if not said:
        return []
    good = "none yet" if said["at"] is None else f"{_ago(said['at'])} old, up to change {said['seq']}"
    lines = [f"backup     {good}, in {said['folder']}"]
    return lines + ([f"           the last one failed: {said['error']}"] if said["error"] else [])


def _ago(since: float) -> str:
    """The two largest units of the time that has passed: 3h 20m."""
    left = max(0, int(time.time() - since))
    parts: list[str] = []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
