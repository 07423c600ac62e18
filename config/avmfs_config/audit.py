"""The section `audit` of config.yaml. Values only."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where the heads of the audit's hash chain are noted (None: beside the database, NAME.anchors), and how many
    seconds the newest of them may be behind."""

    anchors: Path | None = None
    interval_s: float = 60.0
