"""Which door: the running daemon's, or one into the store itself; and who asks.

Owns the choice and the identity of whoever sits at this terminal or runs this program. Called by the command line, the
MCP server and the Python API.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avmfs_config import Paths, check_agent_id, find_paths

from avmfs import wire
from avmfs.errors import Busy, Invalid
from avmfs.rpc.client import Door, OpenDoor, RemoteDoor
from avmfs.store.files.store_lock import StoreLock

SETTLED_S = 15.0  # for a daemon that was started by a command to listen, or to be gone


def is_url(text: object) -> bool:
    """Whether it names a service, and no instant."""
    return isinstance(text, str) and text.lower().startswith(("http://", "https://"))


def asked(
    environ: Mapping[str, str],
    *,
    at: str | None = None,
    ca: str | None = None,
    db: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """The environment, with the service that a caller names laid over it. Files that are named are meant, whatever
    AVM_AT says. Raises Invalid for a database and a service: they are two memories."""
    if at and db is not None:
        raise Invalid("a database and an address are two memories: name one of them (--db, --at)")
    if at is None and not (db is None and config is None):
        at = ""
    named = {"AVM_AT": at, "AVM_CA": ca}
    return {**environ, **{name: value for name, value in named.items() if value is not None}}


def located(
    environ: Mapping[str, str], db: str | os.PathLike[str] | None, config: str | os.PathLike[str] | None
) -> Paths:
    """Where everything is, with what a caller names laid over the environment. Raises Invalid for an empty name, and
    for a configuration file that a caller names and that is not there: defaults would be another policy."""
    if db is not None and not os.fspath(db):
        raise Invalid("an empty name of a database")
    if config is not None and not os.path.isfile(config):
        raise Invalid("no such configuration file", os.fspath(config))
    named = {"AVM_DB": db, "AVM_CONFIG": config}
    given = {key: os.path.abspath(os.fspath(value)) for key, value in named.items() if value is not None}
    return find_paths({**environ, **given})


def who_am_i(agent: str | None, environ: Mapping[str, str]) -> str:
    """The agent named, else AVM_AGENT. Raises Invalid when there is none or the name is bad."""
    name = agent if agent is not None else environ.get("AVM_AGENT", "")
    if not name:
        raise Invalid("who is asking? name the agent: --agent NAME, or AVM_AGENT=NAME")
    try:
        return check_agent_id(name)
    except ValueError as e:
        raise Invalid(str(e)) from None


def who_asks(agent: str | None, environ: Mapping[str, str], *, nobody: bool = False) -> str | None:
    """As who_am_i; None where only an API key (AVM_API_KEY) says it. With ``nobody``, "" where nothing does."""
    if agent is None and not environ.get("AVM_AGENT"):
        if environ.get("AVM_API_KEY"):
            return None
        if nobody:
            return ""
    return who_am_i(agent, environ)


def open_door(
    where: Paths,
    agent: str | None,
    *,
    environ: Mapping[str, str],
    operator: bool = False,
    embeddings: bool = True,
    route: str = "",
    autostart: bool = True,
) -> OpenDoor:
    """The door of the daemon that holds this store, of one that is started for it (see ``autostart``), or one into the
    store itself. With AVM_API_KEY in the environment it speaks for the key's agent (``agent`` None, or the same name),
    within the key's limits. ``route``: "cli", "mcp", "http" or "python", as the audit shall name it. With AVM_AT in the
    environment it is the door of the daemon whose HTTP service that is, on whatever machine."""
    if environ.get("AVM_AT"):
        return _elsewhere(agent, environ, operator=operator)
    asks: dict[str, Any] = {"operator": operator, "key": environ.get("AVM_API_KEY", ""), "route": route}
    if (served := _served(where, agent, environ, autostart, asks)) is not None:
        return served
    # Only now: a command that asks a daemon never imports the store, numpy or YAML.
    from avmfs_config import load_settings

    from avmfs.rpc.local import LocalDoor

    try:
        settings = load_settings(where.config_file, environ)
        return LocalDoor(where.database, settings, agent, embeddings=embeddings, **asks)
    except Busy:
        begun = StoreLock(where.database).holder()
        if begun is None or not begun.get("automatic"):
            raise
    # One that was begun meanwhile has the store, and will have a door.
    return open_door(
        where, agent, environ=environ, operator=operator, embeddings=embeddings, route=route, autostart=False
    )


def _elsewhere(agent: str | None, environ: Mapping[str, str], **how: Any) -> OpenDoor:
    """The door at AVM_AT."""
    from avmfs.rpc.over_http import HttpDoor

    return HttpDoor(environ["AVM_AT"], agent, environ.get("AVM_API_KEY", ""), ca=environ.get("AVM_CA", ""), **how)


def _served(
    where: Paths, agent: str | None, environ: Mapping[str, str], autostart: bool, asks: dict[str, Any]
) -> RemoteDoor | None:
    """The door of the daemon that has the store, or of one that is started for it; None where none does."""
    reason: str | None = None
    deadline = time.monotonic() + SETTLED_S
    while True:
        holder = _holder(where)
        if holder is None and autostart and reason is None:
            from avmfs.api.autostart import sought

            reason = sought(where, environ)
            if reason == "":
                continue
        if holder is None:
            break
        try:
            return RemoteDoor(Path(holder["socket"]), agent, owner=holder["uid"], **asks)
        except Busy as e:
            # One that comes or goes by itself is a moment without a socket.
            if not holder.get("automatic") or not isinstance(e.__cause__, (OSError, EOFError)):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    if reason:
        import logging  # which a command that asks a daemon can do without

        logging.getLogger(__name__).warning("working without a daemon, which could not be started: %s", reason)
    return None


def _holder(where: Paths) -> dict[str, Any] | None:
    """Who has the store. Of another user's its daemon decides, and only that can give anything."""
    try:
        return StoreLock(where.database).holder()
    except PermissionError:
        return {"socket": where.runtime_dir / "avm.sock", "uid": None}


def running(where: Paths, agent: str | None, within_s: float, environ: Mapping[str, str]) -> Door | None:
    """The door of a daemon that serves, for whoever has only so long for each answer; None where none does, and never
    with AVM_AT. Raises Busy, and what the daemon refuses."""
    if environ.get("AVM_AT"):
        return _elsewhere(agent, environ, timeout_s=within_s)
    holder = _holder(where)
    if holder is None:
        return None
    asks: dict[str, Any] = {"key": environ.get("AVM_API_KEY", ""), "route": "cli"}
    return RemoteDoor(Path(holder["socket"]), agent, timeout_s=within_s, owner=holder["uid"], **asks)


def read_all(door: Door, path: str) -> bytes:
    """A whole file or view, piece by piece."""
    return wire.pieces(lambda offset: door.call("read", path=path, offset=offset))
