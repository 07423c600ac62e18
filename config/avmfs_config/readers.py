"""What each key of the two files may hold: one table of readers per dataclass, named by its fields.

Called by the loader. A rule about one value lives here, a rule that spans entries in the loader. It must not
know which handlers, agents or models exist: whoever has the registry checks names against it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from avmfs_config.agent_id import check_agent_id
from avmfs_config.backup import BackupSettings
from avmfs_config.gossip import read_gossip
from avmfs_config.outbox import WEBHOOKS, Hook, WebhookSettings, hook_readers
from avmfs_config.parse import Reader, Value
from avmfs_config.paths import expand_path
from avmfs_config.people import check_groups, read_agents, read_group
from avmfs_config.settings import (
    Access,
    AuditSettings,
    Coherence,
    Device,
    EmbeddingSettings,
    Encoding,
    Engine,
    Limits,
    Mount,
    Provider,
    Rule,
    SearchSettings,
    SearchWeights,
    Settings,
    Urgent,
)

Readers = Mapping[str, Reader[Any]]
T = TypeVar("T")

MAX_UID = 2**32 - 2  # the one above it means "unchanged" to chown
HANDLER = re.compile(r"[a-z][a-z0-9_-]{0,63}")
TAKEN = ("memory", "shared", "private", "tell", "trash", "archive", "index")  # what the root has or will have itself
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_INJECT = "inject needs read_only: true (on a writable mount an editor would save the banner into the file)"


def read_mount(value: Value, environ: Mapping[str, str]) -> Mount:
    """One entry of `mounts`."""
    mount = value.record(Mount, mount_readers(environ))
    if mount.urgent == "inject" and not mount.read_only:
        raise value.child("urgent").error(_INJECT)
    if mount.allow_root and mount.uid is None:
        raise value.child("allow_root").error("needs `uid`: it lets root into a mount that belongs to another user")
    if mount.link is not None and (mount.link == mount.mountpoint or mount.link.is_relative_to(mount.mountpoint)):
        raise value.child("link").error(f"cannot lie in the mount that it leads to ({mount.mountpoint})")
    return mount


def read_settings(value: Value, environ: Mapping[str, str]) -> Settings:
    """All of config.yaml."""
    settings = value.record(Settings, settings_readers(environ))
    named = {index: rule.groups for index, rule in enumerate(settings.permissions) if rule.groups is not None}
    check_groups(value.child("permissions"), named, settings.agents)
    return settings


def mount_readers(environ: Mapping[str, str]) -> Readers:
    """Readers of one entry of `mounts`; `environ` is for the variables in its path."""
    return {
        "mountpoint": _path(environ),
        "agent_id": _agent_id,
        "uid": lambda value: value.optional(lambda given: given.integer(0, MAX_UID)),
        "read_only": Value.boolean,
        "urgent": _choice(Urgent),
        "xattr": Value.boolean,
        "coherence": _choice(Coherence),
        "allow_other": Value.boolean,
        "allow_root": Value.boolean,
        "link": lambda value: value.optional(_path(environ)),
        "trash": Value.boolean,
    }


def settings_readers(environ: Mapping[str, str]) -> Readers:
    """Readers of config.yaml; `environ` is for the variables in its paths, never in a provider's `config`."""
    embedding, audit, backup = (read(environ) for read in (embedding_readers, audit_readers, backup_readers))
    return {
        "providers": _providers,
        "permissions": lambda value: value.items(lambda item: item.record(Rule, RULE)),
        "default_access": _choice(Access),
        "uids": _uids,
        "embedding": lambda value: value.record(EmbeddingSettings, embedding),
        "search": lambda value: value.record(SearchSettings, SEARCH),
        "limits": lambda value: value.record(Limits, LIMITS),
        "agents": read_agents,
        "gossip": lambda value: read_gossip(value, environ),
        "webhooks": lambda value: value.record(WebhookSettings, WEBHOOKS),
        "hooks": lambda value: value.items(lambda item: item.record(Hook, hook_readers(_pattern))),
        "audit": lambda value: value.record(AuditSettings, audit),
        "backup": lambda value: value.record(BackupSettings, backup),
        "autostart": Value.boolean,
    }


def embedding_readers(environ: Mapping[str, str]) -> Readers:
    """Readers of the section `embedding`; `environ` is for the variables in its path."""
    return {
        "enabled": Value.boolean,
        "engine": _choice(Engine),
        "model": Value.text,
        "path": lambda value: value.optional(_path(environ)),
        "device": _choice(Device),
        "allow_download": Value.boolean,
        "timeout_s": lambda value: value.number(0.0, 3600.0),
    }


def audit_readers(environ: Mapping[str, str]) -> Readers:
    """Readers of the section `audit`; `environ` is for the variables in its path."""
    return {
        "anchors": lambda value: value.optional(_path(environ)),
        "interval_s": lambda value: value.number(1.0, 86_400.0),
    }


def backup_readers(environ: Mapping[str, str]) -> Readers:
    """Readers of the section `backup`; `environ` is for the variables in its path."""
    return {
        "folder": lambda value: value.optional(_path(environ)),
        "every_s": lambda value: value.number(60.0, 31_536_000.0),
        "keep": lambda value: value.integer(1, 10_000),
    }


def _choice(literal: Any) -> Reader[Any]:
    options: tuple[str, ...] = get_args(literal)
    return lambda value: value.choice(options)


def _checked(value: Value, check: Callable[[str], T]) -> T:
    """`check` of the text of `value`; the ValueError by which it refuses becomes an error with a place."""
    text = value.text()
    try:
        return check(text)
    except ValueError as problem:
        raise value.error(str(problem)) from None


def _agent_id(value: Value) -> str:
    return _checked(value, check_agent_id)


def _path(environ: Mapping[str, str]) -> Reader[Path]:
    return lambda value: _checked(value, lambda text: expand_path(text, environ))


def _pattern(value: Value) -> str:
    """A pattern over paths of the tree, as written: absolute, without ``//``, ``.`` or ``..``."""
    text = value.text()
    if not text.startswith("/"):
        raise value.error(f"must begin with '/', not {text!r}")
    steps = text[1:].split("/")
    if text != "/" and any(step in ("", ".", "..") for step in steps):
        raise value.error(f"must have no empty, '.' or '..' part: {text!r}")
    return text


def _provider_pattern(value: Value) -> str:
    """A pattern that may name parts of the path: ``/live/prices/{symbol}``."""
    text = _pattern(value)
    names = _PLACEHOLDER.findall(text)
    if re.search(r"[{}]", _PLACEHOLDER.sub("", text)):
        raise value.error(f"a placeholder is a name in braces, such as {{symbol}}: {text!r}")
    if len(set(names)) < len(names):
        raise value.error(f"the same placeholder twice: {text!r}")
    if "*" in text[:-1]:
        raise value.error(f"'*' stands for all that is left of a path: only at the end: {text!r}")
    top = text[1:].partition("/")[0]
    if top in TAKEN or top[:1] in ("@", ":", "{", "*", ""):
        raise value.error(f"must begin with a directory of its own, beside /memory, such as /live: {text!r}")
    return text


def _handler(value: Value) -> str:
    text = value.text()
    if not HANDLER.fullmatch(text):
        raise value.error(f"a handler's name is a-z, 0-9, '_' and '-', not {text!r}")
    return text


def _providers(value: Value) -> tuple[Provider, ...]:
    providers = value.items(lambda item: item.record(Provider, PROVIDER))
    first: dict[str, int] = {}
    for index, provider in enumerate(providers):
        earlier = first.setdefault(provider.pattern, index)
        if earlier != index:
            raise value.child(index).child("pattern").error(f"already used by {value.child(earlier).key}")
        for name in provider.values.keys() - set(_PLACEHOLDER.findall(provider.pattern)):
            raise value.child(index).child("values").error(f"the pattern has no placeholder {name!r}")
    return providers


def _names(read: Reader[str]) -> Reader[tuple[str, ...]]:
    def reader(value: Value) -> tuple[str, ...]:
        names = value.items(read)
        if not names:
            raise value.error("names nobody (leave the key out for every agent)")
        return names

    return reader


def _uids(value: Value) -> dict[int, tuple[str, ...]]:
    result: dict[int, tuple[str, ...]] = {}
    for uid, agents in value.entries().items():
        if not isinstance(uid, int) or not 0 <= uid <= MAX_UID:
            raise agents.error("the key must be a Unix uid, a number without quotes")
        result[uid] = agents.items(_agent_id)
    return result


RULE: Readers = {
    "pattern": _pattern,
    "access": _choice(Access),
    "agents": _names(_agent_id),
    "groups": _names(read_group),
}
PROVIDER: Readers = {
    "pattern": _provider_pattern,
    "handler": _handler,
    "config": Value.plain,
    "ttl": lambda value: value.optional(lambda given: given.number(0.0)),
    "stale_s": lambda value: value.optional(lambda given: given.number(0.0)),
    "timeout_s": lambda value: value.number(0.01, 300.0),
    "max_bytes": lambda value: value.integer(1, 32 * 1024 * 1024),
    "writable": Value.boolean,
    "search": Value.boolean,
    "history": Value.boolean,
    "values": lambda value: {str(name): each.items(Value.text) for name, each in value.entries().items()},
}
WEIGHTS: Readers = {field.name: lambda value: value.number(-10.0, 10.0) for field in fields(SearchWeights)}
SEARCH: Readers = {
    "encoding": _choice(Encoding),
    "ignore": lambda value: value.items(Value.text),
    "max_index_bytes": lambda value: value.integer(0),
    "min_relevance": lambda value: value.number(0.0, 1.0),
    "max_tokens": lambda value: value.integer(1),
    "weights": lambda value: value.record(SearchWeights, WEIGHTS),
    "query_log": lambda value: value.integer(0, 10_000),
    "half_life_days": lambda value: value.number(0.01, 36_500.0),
}
LIMITS: Readers = {
    "message_bytes": lambda value: value.integer(1),
    "unread": lambda value: value.integer(1),
    "messages_per_minute": lambda value: value.integer(1, 10**9),
    "read_messages": lambda value: value.integer(0, 10**9),
    "read_days": lambda value: value.integer(0, 36_500),
    "versions": lambda value: value.integer(16),
    "history_bytes": lambda value: value.integer(0),
    "past_days": lambda value: value.integer(0, 36_500),
    "past_bytes": lambda value: value.integer(0),
    "trash_days": lambda value: value.integer(0, 36_500),
    "trash_bytes": lambda value: value.integer(0),
}
