"""The section `backup` of config.yaml. Values only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from avmfs_config.parse import Range


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Where the daemon makes backups (None: nowhere), how many seconds apart, and how many of them stay."""

    folder: Path | None = None
    every_s: Annotated[float, Range(60.0, 31_536_000.0)] = 86_400.0
    keep: Annotated[int, Range(1, 10_000)] = 14
