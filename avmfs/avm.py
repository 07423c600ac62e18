"""The Python API: ``AVM``, one agent's memory from a program.

Owns the choice between a running daemon's door and the store itself: the daemon is used whenever one holds the
store, so that the one writer and the one model serve everybody, and is started where none does (``api.autostart``).
Without one the store is opened directly, under the lock that a daemon's start takes too. Both give the same results and
errors.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from avmfs import wire
from avmfs.api.agent_memory import AgentMemory
from avmfs.api.code_index import CodeIndex
from avmfs.api.collaboration import Collaboration
from avmfs.api.connect import asked, is_url, located, open_door, read_all, who_am_i, who_asks
from avmfs.errors import NO_TEXT, Invalid
from avmfs.node import StoredNode
from avmfs.rpc.client import Door, OpenDoor
from avmfs.rpc.reconnect import PastConnection, ReconnectingDoor


class AVM(Collaboration, CodeIndex):
    """One agent's view of one store.

    ``db``: the database, else AVM_DB or the configured one. ``config``: config.yaml. ``agent``: who asks, else
    AVM_AGENT. Where neither says, nobody in particular asks: that reads and finds what every agent may see, and raises
    Denied (a PermissionError) for anything else; ``agent_memory(NAME)`` names an agent later. ``embeddings`` False
    starts no daemon, and answers searches from words alone when none runs (with one, the daemon's model is used).
    ``at`` an address (https://HOST:PORT): the memory of that daemon's HTTP service, as the agent of the token in
    AVM_API_KEY; without ``at``, ``db`` and ``config`` the one of AVM_AT, where that is set. ``at`` an instant: the
    whole tree as it was then, which can be read, listed and searched: a datetime, or as after the ``@`` of a path:
    "yesterday", "-2h", "2026-03-01T12:00", "snap.NAME".

    Raises Invalid for a bad agent, a database of another program or one beside an address, Busy when the store is in
    use by a daemon that cannot be reached. Usable as a context manager. Threads may share one; after a fork each
    process has a connection of its own (a child whose parent has loaded the model itself, without a daemon, searches
    by words alone).

    >>> with AVM(agent="alice") as avm:
    ...     avm.write("/shared/plan.md", "Ship on Monday.")
    ...     avm.append("/shared/plan.md", " Not before.")
    ...     avm.read("/shared/plan.md")
    1
    2
    'Ship on Monday. Not before.'
    """

    def __init__(
        self,
        db: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        agent: str | None = None,
        *,
        at: str | datetime | None = None,
        embeddings: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        url, at = (str(at), None) if is_url(at) else (None, at)
        environ = asked(environ, at=url, db=db, config=config)
        where = located(environ, db, config)
        self.database = where.database
        self._where, self._environ, self._embeddings = where, environ, embeddings
        self._at = None if at is None else _iso(at)
        self.address = (environ.get("AVM_AT") or self.database.name) + ("" if at is None else f"@{self._at}")
        self._connection = self._stand(who_asks(agent, environ, nobody=True))
        self.agent = self._door.agent
        self._others: dict[str, ReconnectingDoor] = {}

    def __enter__(self) -> AVM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in (self._connection, *self._others.values()):
            connection.close()

    @property
    def _door(self) -> Door:
        return self._connection.door

    def _stand(self, agent: str | None) -> ReconnectingDoor:
        def opened(forked: bool) -> OpenDoor:
            return open_door(
                self._where,
                agent,
                environ=self._environ,
                route="python",
                embeddings=self._embeddings and not (forked and _has_model()),
                autostart=self._embeddings,
            )

        store = self._environ.get("AVM_AT") or str(self._where.database)
        return ReconnectingDoor(opened, store) if self._at is None else PastConnection(opened, store, self._at)

    def _as_operator(self, method: str, **arguments: Any) -> Any:
        door = open_door(
            self._where,
            self._name(None),
            environ=self._environ,
            operator=True,
            embeddings=False,
            route="python",
            autostart=self._embeddings,
        )
        try:
            return door.call(method, **arguments)
        finally:
            door.close()

    # Files ---------------------------------------------------------------------------------------------------

    def read(self, path: str) -> StoredNode:
        """The text of a file or view, as a str that has ``path`` and ``content``; undecodable bytes survive as
        surrogate escapes."""
        return StoredNode(path, self.read_bytes(path).decode("utf-8", "surrogateescape"))

    def read_bytes(self, path: str) -> bytes:
        return read_all(self._door, path)

    def write(self, path: str, content: str | bytes, *, if_version: int | None = None) -> int | None:
        """Replace (or make) a file; returns its new version. A view gets the text written to it (returns None).
        Missing directories are made. Durable when it returns. Raises TooBig for more than 16 MiB at once where a daemon
        runs: write the rest with append(), or the whole through a mount. With ``if_version`` only over that
        version (0: while there is no file); else Stale is raised."""
        return self._write(path, content, "replace", if_version)

    def append(self, path: str, content: str | bytes) -> int | None:
        """Add at the end of the file, wherever that is by then."""
        return self._write(path, content, "append")

    def delete(self, path: str, *, recursive: bool = False, permanently: bool = False) -> int:
        """Remove a file, or a directory with all below it, notes to the trash; returns how many nodes went."""
        return int(self._door.call("remove", path=path, recursive=recursive, permanently=permanently)["removed"])

    def archive(self, path: str) -> str:
        """Move a file or directory to the same place below /archive, which no recall has; returns where it is now."""
        return str(self._door.call("archive", path=path)["path"])

    def trash(self, limit: int = 100) -> builtins.list[dict[str, Any]]:
        """Removed files, the newest removal first: {"path", "was", "at", "agent", "size"}, ``at`` in ISO 8601."""
        return list(self._door.call("trash", limit=limit)["files"])

    def consolidate(
        self,
        path: str = "/memory",
        *,
        likeness: float = 0.6,
        limit: int = 1000,
        cold: float | None = None,
        summaries: bool = False,
        agreed: str | None = None,
    ) -> dict[str, Any]:
        """What would go to the archive since another note below ``path`` says it too: {"steps": [{"step", "into",
        "gone"}], "notes", "fewer", "bytes", "agreed", "run", "left_out"}; with ``cold`` what is older than so many days
        and not important, too; ``summaries``: of topics with many notes one is drawn from them. Given "agreed" back, it
        is done; raises Stale where it would be something else by now."""
        given = {"likeness": likeness, "limit": limit, "cold": cold, "summaries": summaries, "agreed": agreed}
        return dict(self._door.call("consolidate", path=path, **given))

    def unconsolidate(self, run: int | None = None) -> builtins.list[dict[str, Any]]:
        """Undo this agent's last run, or that one: [{"path", "was", "kind"}]. What is refused now stays in the archive,
        and comes with another call; raises where all is."""
        return list(self._door.call("unconsolidate", run=run)["back"])

    def put_back(self, path: str, to: str | None = None) -> str:
        """Bring back what is in the trash or the archive, by its path there or the one it had; returns where it is
        now: its old name, or a free one beside that."""
        return str(self._door.call("put_back", path=path, to=to)["path"])

    def move(self, source: str, target: str) -> builtins.list[tuple[str, str]]:
        """Move a node, or every path with the string prefix ``source``; returns the (old, new) paths."""
        return [(old, new) for old, new in self._door.call("move", source=source, target=target)["moved"]]

    def list(self, path: str = "/memory") -> builtins.list[dict[str, Any]]:
        """The entries of a directory: name, path, kind, size (bytes), mtime (ns), mode."""
        return builtins.list(self._door.call("entries", path=path))

    # Finding -------------------------------------------------------------------------------------------------

    def search(
        self, q: str, *, limit: int = 10, under: str = "/", mode: str = "hybrid"
    ) -> builtins.list[dict[str, Any]]:
        """Words and meaning together, or by ``mode`` "lexical" or "semantic" alone: path, handle, relevance (0-1),
        score, summary; best first. What stands after NOT in ``q``, a word or a quotation, is in none of them."""
        return self._search(q, limit, under, mode)

    def semantic(self, q: str, *, limit: int = 10, under: str = "/") -> builtins.list[dict[str, Any]]:
        """By meaning alone."""
        return self._search(q, limit, under, "semantic")

    def retrieve(self, query: str, k: int = 10, *, depth: int = 1, under: str = "/") -> dict[str, Any]:
        """The best ``k`` hits and what they are linked with, up to ``depth`` links away: {"hits", "linked"}; a hit is
        as of search(), a linked one {"path", "type", "direction": "out" or "in", "via"}."""
        found = self._door.call("retrieve", q=query, limit=k, depth=depth, under=under)
        return {"hits": found["hits"], "linked": found["linked"]}

    def synthesize(self, query: str, *, path: str = "/", sentences: int = 12) -> str:
        """A document drawn from several memories, each sentence cited; "" when nothing is relevant. With ``path`` of a
        file: from that file and what it is linked with."""
        return str(self._door.call("synthesize", q=query, path=path, sentences=sentences)["text"])

    # What is known of a file -----------------------------------------------------------------------------------

    def link(self, source: str, target: str, type: str = "related") -> None:
        """Say that one file has to do with another.

        >>> with AVM(agent="alice") as avm:
        ...     _ = avm.write("/shared/a.md", "a"), avm.write("/shared/b.md", "b")
        ...     avm.link("/shared/a.md", "/shared/b.md", "follows")
        ...     avm.links("/shared/b.md")
        [{'direction': 'in', 'path': '/memory/shared/a.md', 'type': 'follows'}]
        """
        self._door.call("link", path=source, target=target, type=type)

    def unlink(self, source: str, target: str, type: str | None = None) -> None:
        """Take a link away; without ``type`` those of every type."""
        self._door.call("link", path=source, target=target, type=type, remove=True)

    def links(self, path: str) -> builtins.list[dict[str, Any]]:
        """Links from a file and to it: direction ("out" or "in"), path, type."""
        return builtins.list(self._door.call("links", path=path)["links"])

    def history(self, path: str, *, limit: int = 50) -> builtins.list[dict[str, Any]]:
        """Its versions, newest first: version, at (ISO 8601), type ("create" or "write"), author, size
        (bytes)."""
        return builtins.list(self._door.call("history", path=path, limit=limit)["versions"])

    def read_at(self, path: str, when: int | str | datetime) -> str:
        """The text of a file as it was: a version's number, or a time (a datetime or ISO 8601, local unless it has an
        offset). Raises NotFound when that version is not kept, or there was none yet.

        >>> with AVM(agent="alice") as avm:
        ...     _ = avm.write("/shared/v.md", "one"), avm.write("/shared/v.md", "two")
        ...     avm.read_at("/shared/v.md", 1), [each["version"] for each in avm.history("/shared/v.md")]
        ('one', [2, 1])
        """
        said = {"number": when} if isinstance(when, int) else {"at": _iso(when)}
        data = wire.pieces(lambda offset: self._door.call("version", path=path, offset=offset, **said))
        return data.decode("utf-8", "surrogateescape")

    def restore(
        self, path: str, at: str | datetime | None = None, *, version: int | None = None, dry_run: bool = False
    ) -> builtins.list[tuple[str, str]]:
        """Make a file what it was in a ``version``, or a file or subtree what it was ``at`` an instant, as a change of
        now, and bring back tags and links; what came since stays. Returns (path, "make", "write", "mode", "tags",
        "links", or "lost": no longer kept); with ``dry_run`` what would be done."""
        said = None if at is None else _iso(at)
        found = self._door.call("restore", path=path, at=said, version=version, dry_run=dry_run)
        return [(each["path"], each["action"]) for each in found["restored"]]

    def purge(
        self,
        path: str | None = None,
        *,
        tag: str | None = None,
        author: str | None = None,
        before: str | None = None,
        dry_run: bool = False,
    ) -> builtins.list[str]:
        """Forget for good what is below a path, has a tag, was made by an author or has not been changed since an ISO
        8601 time (local unless it has an offset), with its past and every trace; it cannot be undone. Returns the
        paths, the first 1000; with ``dry_run`` what it would be."""
        named = {"path": path, "tag": tag, "author": author, "before": before}
        found = self._door.call("purge", **named)
        if not dry_run and found["count"]:
            self._door.call("purge", **named, agreed=found["agreed"])
            while not self._door.call("wipe")["wiped"]:
                time.sleep(0.5)
        return [each["path"] for each in found["files"]]

    def snapshot(self, name: str | None = None, path: str | None = None) -> str:
        """Keep the whole tree as it is now, or what is at a path, under a name, by default one of the time; returns it.
        It is below ``/@snap.NAME`` and in ``AVM(at="snap.NAME")``, whatever else is forgotten.

        >>> with AVM(agent="alice") as avm:
        ...     _ = avm.write("/shared/s.md", "before"), avm.snapshot("release"), avm.write("/shared/s.md", "after")
        >>> with AVM(agent="alice", at="snap.release") as then:
        ...     then.read("/shared/s.md")
        'before'
        """
        name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ") if name is None else name
        return str(self._door.call("snapshot", name=name, path=path)["name"])

    def snapshots(self) -> builtins.list[dict[str, Any]]:
        """Your snapshots and the operators', the newest first: name, agent ("": an operator), at (ISO 8601), path, and
        whether that is gone."""
        return builtins.list(self._door.call("snapshots")["snapshots"])

    def remove_snapshot(self, name: str) -> None:
        """What it alone has kept goes with the next trimming."""
        self._door.call("remove_snapshot", name=name)

    # Agents --------------------------------------------------------------------------------------------------

    def agent_memory(self, agent: str | None = None) -> AgentMemory:
        """What an agent does with its memory: remember, recall, and the ways around. For another agent than this
        AVM's, a connection as that one is opened (and refused where this user may not speak for it); it ends with this
        AVM."""
        name = self._name(None) if agent is None else who_am_i(agent, {})
        if name == self.agent:
            return AgentMemory(self._connection)
        if name not in self._others:
            self._others[name] = self._stand(name)
        return AgentMemory(self._others[name])

    def warmup(self) -> dict[str, Any]:
        """Load the embedding model if need be: {"model", "dimension", "ms"}."""
        before = time.perf_counter()
        found = self._door.call("warmup")
        return {**found, "ms": round((time.perf_counter() - before) * 1000)}

    def _write(self, path: str, content: str | bytes, mode: str, if_version: int | None = None) -> int | None:
        if isinstance(content, str):
            try:
                data = content.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise Invalid(NO_TEXT, path) from None
        elif isinstance(content, (bytes, bytearray, memoryview)):
            data = bytes(content)
        else:  # bytes(5) would be five zero bytes
            raise Invalid(f"content: expected text or bytes, not {type(content).__name__}", path)
        only = {} if if_version is None else {"if_version": if_version}
        version = self._door.call("write", path=path, data=data, mode=mode, **only)["version"]
        return None if version is None else int(version)

    def _search(self, q: str, limit: int, under: str, mode: str) -> builtins.list[dict[str, Any]]:
        return builtins.list(self._door.call("search", q=q, limit=limit, under=under, mode=mode)["hits"])


def _iso(when: str | datetime) -> str:
    return when.isoformat() if isinstance(when, datetime) else when


def _has_model() -> bool:
    """Whether this process has a model's runtime: a fork's child that computes with it hangs."""
    return "torch" in sys.modules or "onnxruntime" in sys.modules
