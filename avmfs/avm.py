"""The Python API: ``AVM``, one agent's memory from a program.

Owns the choice between a running daemon's door and the store itself: the daemon is used whenever one holds the
store, so that the one writer and the one model serve everybody; without one the store is opened
directly, under the lock that a daemon's start takes too. Both give the same results and errors.
"""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avmfs_config import Paths, check_agent_id, find_paths

from avmfs.access import Principal
from avmfs.errors import Invalid
from avmfs.rpc.client import Door, RemoteDoor
from avmfs.store.lock import StoreLock


class AVM:
    """One agent's view of one store.

    ``db``: the database, else AVM_DB or the configured one. ``config``: config.yaml. ``agent``: who asks, else
    AVM_AGENT; names are as in SPEC section 6. ``embeddings`` False answers searches from words alone when no daemon
    runs (with one, the daemon's model is used).

    Raises Invalid for a bad agent or a database of another program, Busy when the store is in use by a daemon that
    cannot be reached. Usable as a context manager.
    """

    def __init__(
        self, db: str | os.PathLike[str] | None = None, config: str | os.PathLike[str] | None = None,
        agent: str | None = None, *, embeddings: bool = True, environ: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        environ = os.environ if environ is None else environ
        where = located(environ, db, config)
        self.agent = who_am_i(agent, environ)
        self.database = where.database
        self._door = open_door(where, self.agent, environ=environ, embeddings=embeddings, route="python")

    def __enter__(self) -> AVM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._door.close()

    # Files ---------------------------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        """The text of a file or view; undecodable bytes survive as surrogate escapes."""
        return self.read_bytes(path).decode("utf-8", "surrogateescape")

    def read_bytes(self, path: str) -> bytes:
        return read_all(self._door, path)

    def write(self, path: str, content: str | bytes) -> int | None:
        """Replace (or make) a file; returns its new version. A view gets the text written to it (returns None).
        Missing directories are made. Durable when it returns."""
        return self._write(path, content, "replace")

    def append(self, path: str, content: str | bytes) -> int | None:
        """Add at the end of the file, wherever that is by then."""
        return self._write(path, content, "append")

    def delete(self, path: str, *, recursive: bool = False) -> int:
        """Remove a file, or a directory with all below it; returns how many nodes went."""
        return int(self._door.call("remove", path=path, recursive=recursive)["removed"])

    def move(self, source: str, target: str) -> builtins.list[tuple[str, str]]:
        """Move a node, or every path with the string prefix ``source``; returns the (old, new) paths."""
        return [(old, new) for old, new in self._door.call("move", source=source, target=target)["moved"]]

    def list(self, path: str = "/memory") -> builtins.list[dict[str, Any]]:
        """The entries of a directory: name, kind, size (bytes), mtime (ns), mode."""
        return builtins.list(self._door.call("entries", path=path))

    # Finding -------------------------------------------------------------------------------------------------

    def search(self, q: str, *, limit: int = 10, under: str = "/") -> builtins.list[dict[str, Any]]:
        """Words and meaning together: path, handle, relevance (0-1), score, summary; best first."""
        return self._search(q, limit, under, "hybrid")

    def semantic(self, q: str, *, limit: int = 10, under: str = "/") -> builtins.list[dict[str, Any]]:
        """By meaning alone."""
        return self._search(q, limit, under, "semantic")

    def agent_memory(self, agent: str | None = None) -> AgentMemory:
        """remember() and recall(); for another agent, open another AVM."""
        if agent not in (None, self.agent):
            raise Invalid(f"this AVM speaks for {self.agent!r}: use AVM(agent={agent!r})")
        return AgentMemory(self._door)

    def tell(self, recipient: str, body: str, *, priority: str = "normal", expires: str | None = None) -> int:
        """Send a message to an agent or "@all"; returns its id."""
        return int(self._door.call("tell", recipient=recipient, body=body, priority=priority, expires=expires)["id"])

    def inbox(self, *, unread_only: bool = False, mark_read: bool = False) -> builtins.list[dict[str, Any]]:
        return builtins.list(self._door.call("inbox", unread_only=unread_only, mark_read=mark_read)["messages"])

    # Audit ---------------------------------------------------------------------------------------------------

    def audit(
        self, *, since: str | None = None, agent: str | None = None, path: str | None = None, limit: int = 100
    ) -> builtins.list[dict[str, Any]]:
        """What this agent did, and what happened to what it may see, newest first: at, agent, operator, route, op,
        path, was, version, about. ``since`` is an ISO 8601 time."""
        return builtins.list(self._door.call("audit", since=since, agent=agent, path=path, limit=limit))

    def warmup(self) -> dict[str, Any]:
        """Load the embedding model if need be: {"model", "dimension", "ms"}."""
        before = time.perf_counter()
        found = self._door.call("warmup")
        return {**found, "ms": round((time.perf_counter() - before) * 1000)}

    def _write(self, path: str, content: str | bytes, mode: str) -> int | None:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)
        version = self._door.call("write", path=path, data=data, mode=mode)["version"]
        return None if version is None else int(version)

    def _search(self, q: str, limit: int, under: str, mode: str) -> builtins.list[dict[str, Any]]:
        return builtins.list(self._door.call("search", q=q, limit=limit, under=under, mode=mode)["hits"])


class AgentMemory:
    """The two verbs an agent needs most."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def remember(
        self, content: str, *, title: str | None = None, path: str | None = None, tags: Sequence[str] = (),
        importance: float | None = None, namespace: str | None = None, created: int | None = None,
    ) -> str:  # fmt: skip
        """Store a new memory; returns its path. It never replaces one: a taken name gets a number.

        Without ``path`` the name comes from the title or the first words; ``namespace`` is "private" (default),
        "shared" or a directory. ``importance`` is 0 to 1, ``created`` ns since the epoch.
        """
        return str(
            self._door.call(
                "remember", content=content, title=title, path=path, tags=[*tags], importance=importance,
                namespace=namespace, created=created,
            )["path"]
        )  # fmt: skip

    def recall(
        self, query: str, *, max_tokens: int = 4000, min_relevance: float = 0.3, strategy: str = "balanced"
    ) -> str:
        """What is relevant to the query, in at most ``max_tokens`` tokens; "" when nothing is."""
        found = self._door.call(
            "recall", q=query, max_tokens=max_tokens, min_relevance=min_relevance, strategy=strategy
        )
        return str(found["text"]) if found["items"] else ""


def located(
    environ: Mapping[str, str], db: str | os.PathLike[str] | None, config: str | os.PathLike[str] | None
) -> Paths:
    """Where everything is, with what a caller names laid over the environment. Raises Invalid for a configuration
    file that a caller names and that is not there: defaults would be another policy."""
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


def open_door(
    where: Paths, agent: str, *, environ: Mapping[str, str], operator: bool = False, embeddings: bool = True,
    route: str = "",
) -> Door:  # fmt: skip
    """The door of the daemon that holds this store, or one into the store itself. ``route``: "cli", "mcp", "http" or
    "python", as the audit shall name it."""
    try:
        holder = StoreLock(where.database).holder()
    except PermissionError:  # another user's store: its daemon decides, and only that can give anything
        holder = {"socket": where.runtime_dir / "avm.sock"}
    if holder is not None:
        return RemoteDoor(Path(holder["socket"]), agent, operator=operator, route=route)
    # Only now: a command that asks a daemon never imports the store, numpy or YAML.
    from avmfs_config import load_settings

    from avmfs.rpc.local import LocalDoor

    who = Principal(agent, operator, route=route)
    return LocalDoor(where.database, load_settings(where.config_file, environ), who, embeddings)


def read_all(door: Door, path: str) -> bytes:
    """A whole file or view, piece by piece."""
    pieces, offset = [], 0
    while True:
        piece = door.call("read", path=path, offset=offset)
        pieces.append(piece["data"])
        offset += len(piece["data"])
        if not piece["more"]:
            return b"".join(pieces)
