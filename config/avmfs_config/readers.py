"""What a key of the two files may hold beyond its field's type: a table of readers per dataclass.

Called by the loader. A rule about one value lives here, a rule that spans entries in the loader. It must not
know which handlers, agents or models exist: whoever has the registry checks names against it.
"""

import re
from functools import partial
from itertools import product

from avmfs_config.agent_id import check_agent_id
from avmfs_config.consolidate import DIGEST, DigestSettings, check_key, endpoint, read_consolidate
from avmfs_config.gossip import host_name, read_gossip
from avmfs_config.http import read_http
from avmfs_config.outbox import WEBHOOKS, Hook, WebhookSettings, read_command
from avmfs_config.parse import Reader, Readers, Value
from avmfs_config.people import check_groups, read_agents, read_group
from avmfs_config.settings import (
    MAX_UID,
    Mount,
    Provider,
    RerankSettings,
    Rule,
    SearchSettings,
    Settings,
    StoreSettings,
    TrustRule,
)

HANDLER = re.compile(r"[a-z][a-z0-9_-]{0,63}")
TAKEN = ("memory", "shared", "private", "tell", "trash", "archive", "index")  # what the root has or will have itself
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_INJECT = "inject needs read_only: true (on a writable mount an editor would save the banner into the file)"


def read_mount(value: Value) -> Mount:
    """One entry of `mounts`."""
    mount = value.record(Mount, MOUNT)
    if mount.urgent == "inject" and not mount.read_only:
        raise value.child("urgent").error(_INJECT)
    if mount.allow_root and mount.uid is None:
        raise value.child("allow_root").error("needs `uid`: it lets root into a mount that belongs to another user")
    if mount.link is not None and (mount.link == mount.mountpoint or mount.link.is_relative_to(mount.mountpoint)):
        raise value.child("link").error(f"cannot lie in the mount that it leads to ({mount.mountpoint})")
    return mount


def read_settings(value: Value) -> Settings:
    """All of config.yaml."""
    settings = value.record(Settings, SETTINGS)
    named = {index: rule.groups for index, rule in enumerate(settings.permissions) if rule.groups is not None}
    check_groups(value.child("permissions"), named, settings.agents)
    return settings


def _agent_id(value: Value) -> str:
    return value.checked(check_agent_id)


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
        for name, step in product(provider.values, provider.pattern.split("/")):
            if f"{{{name}}}" in step and (step.count("{") > 1 or "*" in step):
                said = f"the part of the pattern with {{{name}}} has more that is not fixed: {step!r}"
                raise value.child(index).child("values").error(said)
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


def _log_address(value: Value) -> str:
    text = value.text()
    if not text.startswith(("postgresql://", "postgres://")):
        raise value.error("expected postgresql://HOST/DATABASE")
    return text


def _rerank(value: Value) -> RerankSettings:
    settings = value.record(RerankSettings, {"endpoint": partial(endpoint, service="rerank")})
    if settings.model is not None and settings.endpoint is not None:
        raise value.error("either `model`, a folder, or `endpoint`, an address")
    if settings.model is None and settings.endpoint is None and value.entries():
        raise value.error("needs `model`, a folder with a cross-encoder, or `endpoint`, the address of a /rerank")
    check_key(value, settings, "name", "key_env", "key_file")
    return settings


RULE: Readers = {"pattern": _pattern, "agents": _names(_agent_id), "groups": _names(read_group)}
PROVIDER: Readers = {
    "pattern": _provider_pattern,
    "handler": _handler,
    "config": Value.plain,
    "values": lambda value: {str(name): each.items(Value.text) for name, each in value.entries().items()},
}
HOOK: Readers = {"pattern": _pattern, "command": read_command}
STORE: Readers = {
    "log": lambda value: value.optional(_log_address),
    "host": lambda value: value.optional(host_name),
}
SETTINGS: Readers = {
    "providers": _providers,
    "permissions": lambda value: value.items(lambda item: item.record(Rule, RULE)),
    "trust": lambda value: value.items(lambda item: item.record(TrustRule, {"pattern": _pattern})),
    "uids": _uids,
    "search": lambda value: value.record(SearchSettings, {"rerank": _rerank}),
    "agents": read_agents,
    "gossip": read_gossip,
    "consolidate": read_consolidate,
    "digest": lambda value: value.record(DigestSettings, DIGEST),
    "webhooks": lambda value: value.record(WebhookSettings, WEBHOOKS),
    "http": read_http,
    "hooks": lambda value: value.items(lambda item: item.record(Hook, HOOK)),
    "store": lambda value: value.record(StoreSettings, STORE),
}
MOUNT: Readers = {"agent_id": _agent_id}
