"""The section `backup` of config.yaml. Values only."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Where the daemon makes backups (None: nowhere), how many seconds apart, and how many of them stay."""

    folder: Path | None = None
    every_s: float = 86_400.0
    keep: int = 14
