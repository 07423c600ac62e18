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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avmfs_config import Paths, check_agent_id, find_paths

from avmfs.errors import Invalid
from avmfs.rpc.client import Door, RemoteDoor, await_mail
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
        self._environ = environ = os.environ if environ is None else environ
        self._where = where = located(environ, db, config)
        self.database = where.database
        self._door = open_door(where, who_asks(agent, environ), environ=environ, embeddings=embeddings, route="python")
        self.agent = self._door.agent

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

    # Permissions -----------------------------------------------------------------------------------------------

    def init_permissions(self, permissions: Mapping[str, Any]) -> int:
        """Register agents, in place of those registered before; returns how many. Asks to be the operator for it.

        ``{"users": {NAME: {"groups": [...], "capabilities": ["search_all", "write", "sudo"]}}}``; docs/SECURITY.md
        says what a capability is. What config.yaml says of an agent stands above it.
        """
        unknown = sorted(permissions.keys() - {"users"})
        if unknown or not isinstance(permissions.get("users"), Mapping):
            raise Invalid(f"permissions: expected users, a mapping{f', not {unknown[0]!r}' if unknown else ''}")
        users = {name: dict(said) if isinstance(said, Mapping) else said for name, said in permissions["users"].items()}
        return int(self._as_operator("init_permissions", users=users)["users"])

    def get_user(self, name: str | None = None) -> User:
        """What an agent may do (None: this one)."""
        found = self._door.call("user", name=self.agent if name is None else name)
        return User(found["name"], tuple(found["groups"]), tuple(found["capabilities"]))

    def check_permission(self, user: User | str, path: str, action: str) -> bool:
        """May this agent do that there? ``action``: "read", "search", "list", "write" or "delete". Of what this AVM's
        agent cannot see, the answer follows from place and rules alone, whether there is anything or not."""
        name = user if isinstance(user, str) else user.name
        return bool(self._door.call("check_permission", user=name, path=path, action=action))

    def create_api_key(
        self, user: User | str | None = None, paths: Sequence[str] = ("/",),
        actions: Sequence[str] = ("read", "search"), *, expires: str | None = None, label: str = "",
    ) -> str:  # fmt: skip
        """A new API key, shown this once; only its hash is kept. For a program that shows it in AVM_API_KEY.

        ``paths``: such as ``/memory/a/*``, that with all below it; ``actions``: "read", "write", "search", "tell",
        "inbox"; ``expires``: such as "30d". For another agent than this one it asks to be the operator.
        """
        name = self.agent if user is None else user if isinstance(user, str) else user.name
        call = self._door.call if name == self.agent else self._as_operator
        made = call(
            "create_key", agent=name, paths=[*paths], actions=[*actions], expires=expires, label=label
        )  # fmt: skip
        return str(made["key"])

    def api_keys(self) -> builtins.list[dict[str, Any]]:
        """This agent's API keys, without their secrets: id, label, paths, actions, expires, state ..."""
        return builtins.list(self._door.call("list_keys"))

    def revoke_api_key(self, id: str) -> None:
        """From now on nobody gets in with this key: its id, or the key itself."""
        self._door.call("revoke_key", id=id.split("_")[1] if id.startswith("avm_") else id)

    def _as_operator(self, method: str, **arguments: Any) -> Any:
        door = open_door(self._where, self.agent, environ=self._environ, operator=True, embeddings=False)
        try:
            return door.call(method, **arguments)
        finally:
            door.close()

    # Discovery -----------------------------------------------------------------------------------------------

    def who(self, q: str, *, limit: int = 10, via: str = "librarian") -> builtins.list[dict[str, Any]]:
        """Who knows about it: agent (None: somebody), host (None: this one), how ("files", "private", "digest"), files,
        topics, handle and path of the newest file. ``via`` "gossip" asks the digests alone."""
        return builtins.list(self._door.call("who", q=q, limit=limit, via=via)["knows"])

    def ask(
        self, question: str, *, max_tokens: int | None = None, to: str | None = None, forward: bool = False
    ) -> dict[str, Any]:
        """What memory holds on the question ("recalled"), who knows about it ("knows") and, where it was sent ``to`` an
        agent or ``forward`` to whoever knows best, "asked": {"recipient", "id"}; "text" is all of it."""
        asked: dict[str, Any] = self._door.call("ask", question=question, max_tokens=max_tokens, to=to, forward=forward)
        return asked

    def privacy(self, mode: str | None = None) -> str:
        """How much others may learn of what this agent alone can read ("full", "owner", "existence", "none"), changed
        to ``mode`` first."""
        return str(self._door.call("privacy", mode=mode)["mode"])

    # Subscriptions -------------------------------------------------------------------------------------------

    def subscribe(
        self, pattern: str, *, mode: str = "realtime", every_s: float | None = None, url: str | None = None
    ) -> dict[str, Any]:
        """Be told of changes below a pattern: number, secret (``whsec_...``, only of a new webhook and only now), new,
        every_s. ``mode``: realtime, throttled, batched or digest; ``url`` None: into notices()."""
        return dict(self._door.call("subscribe", pattern=pattern, mode=mode, every_s=every_s, url=url))

    def unsubscribe(self, pattern: str, *, url: str | None = None) -> int:
        """End the subscriptions to a pattern, or the one with that webhook; returns how many."""
        return int(self._door.call("unsubscribe", pattern=pattern, url=url)["ended"])

    def subscriptions(self) -> builtins.list[dict[str, Any]]:
        return builtins.list(self._door.call("subscriptions")["subscriptions"])

    def notices(self, *, mark_read: bool = False) -> builtins.list[dict[str, Any]]:
        """What subscriptions without a webhook have to tell; ``mark_read``: what is returned does not come again."""
        return builtins.list(self._door.call("notices", mark_read=mark_read)["notices"])

    def dead_letters(self) -> builtins.list[dict[str, Any]]:
        """What webhooks could not deliver."""
        return builtins.list(self._door.call("dead_letters")["letters"])

    def redeliver(self, messages: Sequence[str] | None = None) -> int:
        """Try dead letters anew, all or those with these ids; returns how many."""
        return int(
            self._door.call("redeliver", messages=None if messages is None else builtins.list(messages))["count"]
        )

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

    # Messages ------------------------------------------------------------------------------------------------

    def tell(
        self, recipient: str, body: str, *, priority: str = "normal", expires: str | None = None, re: int | None = None
    ) -> int:
        """Send a message to an agent or "@all"; returns its number in your own mail. ``re`` is the number of the
        message that it answers. Raises OverQuota where a limit is reached."""
        return int(
            self._door.call("tell", recipient=recipient, body=body, priority=priority, expires=expires, re=re)["id"]
        )

    def inbox(
        self, *, unread_only: bool = False, mark_read: bool = False, wait: float = 0, thread: int | None = None
    ) -> builtins.list[dict[str, Any]]:
        """Your messages, unread first, urgent first: at, body, expires, id, priority, re, read, recipient, sender,
        thread. ``wait``: first for unread mail, at most so many seconds. ``thread``: only those of that thread."""
        return builtins.list(
            await_mail(
                lambda step: self._door.call(
                    "inbox", unread_only=unread_only, mark_read=mark_read, wait=step, thread=thread
                ),
                wait,
            )["messages"]
        )

    def delete_mail(self, messages: Sequence[int] | None = None) -> int:
        """Remove messages from your mail by number, or all that are read; returns how many."""
        return int(self._door.call("delete_mail", messages=None if messages is None else [*messages])["count"])

    def _write(self, path: str, content: str | bytes, mode: str) -> int | None:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)
        version = self._door.call("write", path=path, data=data, mode=mode)["version"]
        return None if version is None else int(version)

    def _search(self, q: str, limit: int, under: str, mode: str) -> builtins.list[dict[str, Any]]:
        return builtins.list(self._door.call("search", q=q, limit=limit, under=under, mode=mode)["hits"])


@dataclass(frozen=True, slots=True)
class User:
    """What an agent may do: see AVM.get_user."""

    name: str
    groups: tuple[str, ...]
    capabilities: tuple[str, ...]


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

    # Discovery -----------------------------------------------------------------------------------------------

    def topics(self, path: str = "/memory", *, name: str | None = None, limit: int = 30) -> str:
        """What the files below a directory are about, ``COUNT  TOPIC`` a line; with ``name`` the files of one topic."""
        return str(self._door.call("topics", path=path, name=name, limit=limit)["text"])


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


def who_asks(agent: str | None, environ: Mapping[str, str]) -> str | None:
    """As who_am_i; None where only an API key (AVM_API_KEY) says it."""
    if agent is None and not environ.get("AVM_AGENT") and environ.get("AVM_API_KEY"):
        return None
    return who_am_i(agent, environ)


def open_door(
    where: Paths, agent: str | None, *, environ: Mapping[str, str], operator: bool = False, embeddings: bool = True,
    route: str = "",
) -> Door:  # fmt: skip
    """The door of the daemon that holds this store, or one into the store itself. With AVM_API_KEY in the environment
    it speaks for the key's agent (``agent`` None, or the same name), within the key's limits. ``route``: "cli", "mcp",
    "http" or "python", as the audit shall name it."""
    key = environ.get("AVM_API_KEY", "")
    try:
        holder = StoreLock(where.database).holder()
    except PermissionError:  # another user's store: its daemon decides, and only that can give anything
        holder = {"socket": where.runtime_dir / "avm.sock"}
    if holder is not None:
        return RemoteDoor(Path(holder["socket"]), agent, operator=operator, key=key, route=route)
    # Only now: a command that asks a daemon never imports the store, numpy or YAML.
    from avmfs_config import load_settings

    from avmfs.rpc.local import LocalDoor

    return LocalDoor(
        where.database, load_settings(where.config_file, environ), agent, operator=operator, embeddings=embeddings,
        key=key, route=route,
    )  # fmt: skip


def read_all(door: Door, path: str) -> bytes:
    """A whole file or view, piece by piece."""
    pieces, offset = [], 0
    while True:
        piece = door.call("read", path=path, offset=offset)
        pieces.append(piece["data"])
        offset += len(piece["data"])
        if not piece["more"]:
            return b"".join(pieces)
