"""Configuration: where the files are, what they may say, and typed values of what they said.

Called by every program that starts (CLI, MCP server, daemon) and by the library's `AVM`. The bottom layer: it
imports nothing of avmfs, and knows of no store, no policy and no registry of handlers. Importing it reads no
file and loads no YAML. Names load with their module at first use: a short-lived command that only asks where
the daemon's socket is should not pay for the readers of two files.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avmfs_config.agent_id import check_agent_id
    from avmfs_config.consolidate import ConsolidateSettings, DigestSettings
    from avmfs_config.errors import ConfigError
    from avmfs_config.gossip import Endpoint, GossipSettings
    from avmfs_config.loader import changed_settings, check, default_settings, load_mounts, load_settings
    from avmfs_config.outbox import Hook, WebhookSettings
    from avmfs_config.paths import Paths, find_paths
    from avmfs_config.people import AgentSettings, QuotaSettings
    from avmfs_config.settings import (
        AuditSettings,
        BackupSettings,
        EmbeddingSettings,
        Limits,
        Mount,
        Provider,
        RerankSettings,
        Rule,
        SearchSettings,
        SearchWeights,
        Settings,
        StoreSettings,
    )

__all__ = [
    "AgentSettings",
    "AuditSettings",
    "BackupSettings",
    "ConfigError",
    "ConsolidateSettings",
    "DigestSettings",
    "EmbeddingSettings",
    "Endpoint",
    "GossipSettings",
    "Hook",
    "Limits",
    "Mount",
    "Paths",
    "Provider",
    "QuotaSettings",
    "RerankSettings",
    "Rule",
    "SearchSettings",
    "SearchWeights",
    "Settings",
    "StoreSettings",
    "WebhookSettings",
    "changed_settings",
    "check",
    "check_agent_id",
    "default_settings",
    "find_paths",
    "load_mounts",
    "load_settings",
]

_MODULES = {
    "agent_id": ("check_agent_id",),
    "consolidate": ("ConsolidateSettings", "DigestSettings"),
    "errors": ("ConfigError",),
    "gossip": ("Endpoint", "GossipSettings"),
    "loader": ("changed_settings", "check", "default_settings", "load_mounts", "load_settings"),
    "outbox": ("Hook", "WebhookSettings"),
    "paths": ("Paths", "find_paths"),
    "people": ("AgentSettings", "QuotaSettings"),
}
"""Where names are; the others are of ``settings``."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in __all__:
        module = next((each for each, names in _MODULES.items() if name in names), "settings")
        value: object = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
