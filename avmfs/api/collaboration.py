"""The Python API: what ``AVM`` has to do with other agents.

Owns permissions, messages, subscriptions, discovery and the audit as a program calls them. The base of ``AVM``, which
has the door.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from avmfs.api.agent_memory import several
from avmfs.errors import NAMELESS, Denied, Invalid
from avmfs.rpc.client import Door, await_mail


@dataclass(frozen=True, slots=True)
class User:
    """What an agent may do: see AVM.get_user."""

    name: str
    groups: tuple[str, ...]
    capabilities: tuple[str, ...]


class Collaboration:
    """See the module."""

    agent: str

    @property
    @abstractmethod
    def _door(self) -> Door: ...

    @abstractmethod
    def _as_operator(self, method: str, **arguments: Any) -> Any:
        """Call a method of the door as the operator, who this agent asks to be for it."""

    def _name(self, user: User | str | None) -> str:
        """Of the agent named, else of this one. Raises Denied where nobody in particular asks."""
        name = self.agent if user is None else user if isinstance(user, str) else user.name
        if not name:
            raise Denied(NAMELESS)
        return name

    # Messages ------------------------------------------------------------------------------------------------

    def tell(
        self, recipient: str, body: str, *, priority: str = "normal", expires: str | None = None, re: int | None = None
    ) -> int:
        """Send a message to an agent or "@all"; returns its number, which the receivers see too. ``re`` is the
        number of the message that it answers. Raises OverQuota where a limit is reached."""
        return int(
            self._door.call("tell", recipient=recipient, body=body, priority=priority, expires=expires, re=re)["id"]
        )

    def inbox(
        self, *, unread_only: bool = False, mark_read: bool = False, wait: float = 0, thread: int | None = None
    ) -> builtins.list[dict[str, Any]]:
        """Your messages, unread first, urgent first: at, body, expires, id, priority, re, read, recipient, sender,
        thread. ``wait``: first for unread mail, at most so many seconds. ``thread``: only those of that thread. As many
        as fit into one answer, 64 MiB; ``mark_read`` marks those."""
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

    # Sharing work --------------------------------------------------------------------------------------------

    def claim(self, path: str, *, lease: str = "10m") -> dict[str, Any]:
        """Say that this agent works on a file, for so long: {"path", "until"}. Raises Busy where another does."""
        return dict(self._door.call("claim", path=path, lease=lease))

    def claim_next(self, path: str, *, lease: str = "10m") -> str | None:
        """Claim the oldest file of a directory that nobody has claimed; its path, None where there is none."""
        found: str | None = self._door.call("claim_next", path=path, lease=lease)["path"]
        return found

    def release(self, path: str) -> bool:
        """Give up a claim; whether there was one."""
        return bool(self._door.call("release", path=path)["released"])

    def claims(self) -> builtins.list[dict[str, Any]]:
        """Who works on what: path, agent, since, until."""
        return builtins.list(self._door.call("claims")["claims"])

    def quarantine(self, limit: int = 100) -> builtins.list[dict[str, Any]]:
        """What is found by nobody until it is let out: path, handle, sources, author, route, updated."""
        return builtins.list(self._door.call("quarantine", limit=limit)["held"])

    def let_out(self, path: str) -> str:
        """Let a file out of quarantine, by path or handle; returns its path."""
        return str(self._door.call("let_out", path=path)["path"])

    def reject(self, path: str) -> str:
        """Remove a file that is in quarantine, into the trash; returns its path."""
        return str(self._door.call("reject", path=path)["path"])

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
        found = self._door.call("user", name=self._name(name))
        return User(found["name"], tuple(found["groups"]), tuple(found["capabilities"]))

    def check_permission(self, user: User | str, path: str, action: str) -> bool:
        """Return whether this agent may do that there. ``action``: "read", "search", "list", "write" or "delete". Of
        what this AVM's agent cannot see, the answer follows from place and rules alone, whether there is anything or
        not."""
        return bool(self._door.call("check_permission", user=self._name(user), path=path, action=action))

    def create_api_key(
        self,
        user: User | str | None = None,
        paths: Sequence[str] = ("/",),
        actions: Sequence[str] = ("read", "search"),
        *,
        expires: str | None = None,
        label: str = "",
    ) -> str:
        """A new API key, shown this once; only its hash is kept. For a program that shows it in AVM_API_KEY.

        ``paths``: such as ``/memory/a/*``, that with all below it; ``actions``: "read", "write", "search", "tell",
        "inbox"; ``expires``: such as "30d". For another agent than this one it asks to be the operator.
        """
        name = self._name(user)
        call = self._door.call if name == self.agent else self._as_operator
        made = call(
            "create_key",
            agent=name,
            paths=several("paths", paths),
            actions=several("actions", actions),
            expires=expires,
            label=label,
        )
        return str(made["key"])

    def api_keys(self) -> builtins.list[dict[str, Any]]:
        """This agent's API keys, without their secrets: id, label, paths, actions, expires, state ..."""
        return builtins.list(self._door.call("list_keys"))

    def revoke_api_key(self, id: str) -> None:
        """From now on nobody gets in with this key: its id, or the key itself."""
        self._door.call("revoke_key", id=id.split("_")[1] if id.startswith("avm_") else id)

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
