"""The Python API: ``AgentMemory``, what one agent does with its memory.

Owns the verbs of an agent: remember, recall, and the ways to find out what there is. Made by ``AVM.agent_memory()``,
whose connection it uses; texts are meant to be shown to a model as they are, lists and mappings are for programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from avmfs.errors import Invalid
from avmfs.localtime import nanoseconds
from avmfs.rpc.client import Door
from avmfs.rpc.reconnect import ReconnectingDoor

BATCH_ITEMS, BATCH_BYTES = 100, 4 * 1024 * 1024  # of one transaction: others wait while it is applied


class AgentMemory:
    """One agent's memory. Threads may share it.

    >>> from avmfs import AVM
    >>> with AVM(agent="trader", embeddings=False) as avm:
    ...     memory = avm.agent_memory()
    ...     memory.remember("NVDA RSI at 72, reduce exposure", tags=["market"], importance=0.9)
    ...     "RSI at 72" in memory.recall("NVDA exposure", max_tokens=200)
    ...     memory.tag_cloud()
    '/memory/private/trader/nvda-rsi-at-72-reduce-exposure.md'
    True
    {'market': 1}
    """

    def __init__(self, connection: ReconnectingDoor) -> None:
        self._connection = connection

    @property
    def _door(self) -> Door:
        return self._connection.door

    # Remembering -----------------------------------------------------------------------------------------------

    def remember(
        self,
        content: str,
        *,
        title: str | None = None,
        path: str | None = None,
        tags: Sequence[str] = (),
        importance: float | None = None,
        namespace: str | None = None,
        created: int | str | datetime | None = None,
        on_duplicate: str = "keep",
        ttl: str | None = None,
        supersedes: str | None = None,
        source: str = "own",
    ) -> str:
        """Store a new memory; returns its path. It never replaces one: a taken name gets a number.

        Where a note that this agent sees says the same, ``on_duplicate`` "update" writes into that and returns its
        path, if the same agents may read it; "refuse" raises Exists, which names it. ``supersedes``: a file, by path
        or handle, that holds no more: recalls give this one first. ``source``: "own" words, or "tool", "web" or
        "imported", which may be marked in answers, or wait in quarantine.

        Without ``path`` the name comes from the title or the first words; ``namespace`` is "private" (default),
        "shared" or a directory. ``importance`` is 0 to 1, ``created`` ns since the epoch, a datetime, or ISO 8601;
        after ``ttl``, such as "2h", it is gone.
        """
        return str(
            self._door.call(
                "remember",
                content=content,
                title=title,
                path=path,
                tags=several("tags", tags),
                importance=importance,
                namespace=namespace,
                created=_ns(created),
                on_duplicate=on_duplicate,
                ttl=ttl,
                supersedes=supersedes,
                source=source,
            )["path"]
        )

    def batch_remember(self, items: Iterable[str | Mapping[str, Any]]) -> list[str]:
        """Store many memories in few transactions; returns their paths in order. An item is a text, or a mapping with
        the arguments of remember() but on_duplicate ("content" at least).

        A hundred at a time, each hundred whole or not at all: Invalid names the first bad item by its place in its
        hundred, and what came before that hundred stays.

        >>> from avmfs import AVM
        >>> with AVM(agent="alice") as avm:
        ...     avm.agent_memory().batch_remember(["first", {"content": "second", "namespace": "shared"}])
        ['/memory/private/alice/first.md', '/memory/shared/second.md']
        """
        if isinstance(items, (str, Mapping)):
            raise Invalid("items: expected several; remember() takes one")
        paths: list[str] = []
        batch: list[dict[str, Any]] = []
        size = 0
        for item in items:
            made: dict[str, Any] = {"content": item} if isinstance(item, str) else dict(item)
            if "created" in made:
                made["created"] = _ns(made["created"])
            if "tags" in made:
                made["tags"] = several("tags", made["tags"])
            bytes_more = len(str(made.get("content", "")).encode("utf-8", "surrogatepass"))
            if batch and (len(batch) == BATCH_ITEMS or size + bytes_more > BATCH_BYTES):
                paths += self._door.call("remember_many", items=batch)["paths"]
                batch, size = [], 0
            batch.append(made)
            size += bytes_more
        if batch:
            paths += self._door.call("remember_many", items=batch)["paths"]
        return paths

    def forget(self, path: str, *, recursive: bool = False) -> int:
        """Remove a memory; returns how many nodes went."""
        return int(self._door.call("remove", path=path, recursive=recursive)["removed"])

    def share(self, path: str, agents: Sequence[str] | str = "all") -> None:
        """Say who may read and write a file in shared space: "all", or agents; its owner always may. A private file
        raises Invalid: move it to /shared first."""
        said = agents if isinstance(agents, str) else ",".join(agents)
        if not said:
            raise Invalid("share with whom? name agents, or all")
        self._door.call("write", path=f"{path}:shared", data=said.encode() + b"\n")

    # Finding ---------------------------------------------------------------------------------------------------

    def recall(
        self, query: str, max_tokens: int | None = None, min_relevance: float | None = None, strategy: str = "balanced"
    ) -> str:
        """What is relevant to the query, in at most ``max_tokens`` tokens; "" when nothing is. What is not named is as
        config.yaml has it: 4000 tokens, a relevance of 0.3."""
        found = self._door.call(
            "recall", q=query, max_tokens=max_tokens, min_relevance=min_relevance, strategy=strategy
        )
        return str(found["text"]) if found["items"] else ""

    def browse(self, path: str = "/memory", depth: int = 2, limit: int = 50) -> str:
        """Look before reading. A directory (it begins with /) as a tree, ``depth`` levels deep; any other text is a
        question, answered by paths with one line each. Read what you chose with fetch()."""
        if path.startswith("/"):
            return str(self._door.call("tree", path=path, depth=depth)["text"])
        return str(self._door.call("search", q=path, limit=limit)["text"])

    def fetch(self, *targets: str | Iterable[str], max_bytes: int = 50_000) -> list[dict[str, Any]]:
        """Several files at once, by path or handle, one by one or in a list: [{"path", "content", "more",
        "untrusted"}], cut at ``max_bytes`` each; ``untrusted``: where it came from, if that is to be marked. Raises
        Invalid naming those that cannot be read."""
        wanted = [each for given in targets for each in ([given] if isinstance(given, str) else given)]
        found = self._door.call("fetch", targets=wanted, max_bytes=max_bytes)
        if found["missing"]:
            raise Invalid("; ".join(f"{each['target']}: {each['reason']}" for each in found["missing"]))
        return [
            {
                **{key: each[key] for key in ("path", "more", "untrusted")},
                "content": each["data"].decode("utf-8", "surrogateescape"),
            }
            for each in found["items"]
        ]

    def timeline(self, days: float = 7, limit: int = 100, path: str = "/memory") -> str:
        """What was noted in the last days, by day, newest first."""
        return str(self._door.call("timeline", path=path, days=float(days), limit=limit)["text"])

    def explore(self, path: str, depth: int = 2) -> str:
        """What a memory is linked with, hop by hop."""
        return str(self._door.call("explore", path=path, depth=depth)["text"])

    def topics(self, path: str = "/memory", *, name: str | None = None, limit: int = 30) -> str:
        """What there is below a directory, ``COUNT  NAME`` a line: by category (directories), by tag, by topic; with
        ``name`` the files of one topic."""
        return str(self._door.call("topics", path=path, name=name, limit=limit)["text"])

    def tag_cloud(self, path: str = "/") -> dict[str, int]:
        """How many memories have each tag, the most frequent first."""
        return dict(self._door.call("tags", path=path)["tags"])

    def recent(self, limit: int = 50, minutes: float | None = None, path: str = "/memory") -> list[dict[str, Any]]:
        """What changed, newest first: path, status, was, handle, at, author."""
        return list(self._door.call("recent", path=path, minutes=minutes, limit=limit)["changes"])

    def stats(self, path: str = "/") -> dict[str, Any]:
        """Counts of what this agent may see below a directory: files, bytes, versions, links, tags, ..."""
        found: dict[str, Any] = json.loads(self._door.call("read", path=f"{path.rstrip('/')}/:stats")["data"])
        return found


def several(name: str, given: Iterable[str]) -> list[str]:
    """A list of texts. Raises Invalid for one text, which would else be taken for as many as it has letters."""
    if isinstance(given, (str, bytes)):
        raise Invalid(f"{name}: expected a list, such as [{given!r}]")
    return [*given]


def _ns(when: int | str | datetime | None) -> int | None:
    """Nanoseconds since the epoch; a datetime without an offset is local, and so is a text."""
    return nanoseconds(when, "created") if isinstance(when, (str, datetime)) else when
