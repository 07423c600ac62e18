"""Configuration: where the files are, what they may say, and typed values of what they said.

Called by every program that starts (CLI, MCP server, daemon) and by the library's `AVM`. The bottom layer: it
imports nothing of avmfs, and knows of no store, no policy and no registry of handlers. Importing it reads no
file and loads no YAML. Names load with their module at first use: a short-lived command that only asks where
the daemon's socket is should not pay for the readers of two files.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avmfs_config.agent_id import check_agent_id as check_agent_id
    from avmfs_config.consolidate import ConsolidateSettings as ConsolidateSettings
    from avmfs_config.consolidate import DigestSettings as DigestSettings
    from avmfs_config.errors import ConfigError as ConfigError
    from avmfs_config.gossip import Endpoint as Endpoint
    from avmfs_config.gossip import GossipSettings as GossipSettings
    from avmfs_config.loader import changed_settings as changed_settings
    from avmfs_config.loader import check as check
    from avmfs_config.loader import default_settings as default_settings
    from avmfs_config.loader import load_mounts as load_mounts
    from avmfs_config.loader import load_settings as load_settings
    from avmfs_config.outbox import Hook as Hook
    from avmfs_config.outbox import WebhookSettings as WebhookSettings
    from avmfs_config.paths import Paths as Paths
    from avmfs_config.paths import find_paths as find_paths
    from avmfs_config.people import AgentSettings as AgentSettings
    from avmfs_config.people import QuotaSettings as QuotaSettings
    from avmfs_config.settings import AuditSettings as AuditSettings
    from avmfs_config.settings import BackupSettings as BackupSettings
    from avmfs_config.settings import EmbeddingSettings as EmbeddingSettings
    from avmfs_config.settings import Limits as Limits
    from avmfs_config.settings import Mount as Mount
    from avmfs_config.settings import Provider as Provider
    from avmfs_config.settings import RerankSettings as RerankSettings
    from avmfs_config.settings import Rule as Rule
    from avmfs_config.settings import SearchSettings as SearchSettings
    from avmfs_config.settings import SearchWeights as SearchWeights
    from avmfs_config.settings import Settings as Settings
    from avmfs_config.settings import StoreSettings as StoreSettings

_NAMES = {
    "agent_id": "check_agent_id",
    "consolidate": "ConsolidateSettings DigestSettings",
    "errors": "ConfigError",
    "gossip": "Endpoint GossipSettings",
    "loader": "changed_settings check default_settings load_mounts load_settings",
    "outbox": "Hook WebhookSettings",
    "paths": "Paths find_paths",
    "people": "AgentSettings QuotaSettings",
    "settings": (
        "AuditSettings BackupSettings EmbeddingSettings Limits Mount Provider RerankSettings Rule SearchSettings"
        " SearchWeights Settings StoreSettings"
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
