"""What a child is told when it starts.

Built by the supervisor, read by the entry functions. Values, plus the descriptors that the
child inherits; the whole travels once, from the supervisor to the new child, as multiprocessing's start message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any, Literal

from avmfs_config import Mount, Settings

from avmfs.access import Policy
from avmfs.store.tx.transaction import IndexRules

Kind = Literal["writer", "index", "door", "keeper", "mount", "live", "http"]


class Descriptor:
    """A file descriptor that a child inherits. `fd` is open in whichever process holds this."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self.fd),)


def _inherited(carried: Any) -> Descriptor:
    return Descriptor(carried.detach())


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`speaks_for` is the agent whose `proof` the writer accepts ("*": any, named in each request); `agent` and
    `operator` say who asks, for whoever opens a memory from this."""

    name: str  # for logs and the process list: "mount alice"
    kind: Kind
    database: Path
    runtime_dir: Path
    settings: Settings
    speaks_for: str
    proof: bytes
    agent: str
    operator: bool
    control: Connection
    embedding: Connection | None = None  # None: the writer
    mount: Mount | None = None  # of a mount
    restore_mode: int | None = None  # of a mount: the mode that its covered directory gets before mounting
    fd_entry: str | None = None  # of a mount: where it leaves what outlives it; None: it is mounted anew
    listener: socket | None = None  # of those that others connect to
    key: bytes = b""  # of the writer and the index: what proofs are made with
    lock: Descriptor | None = None  # of the writer: the store's lock ends with the last of its holders
    idle_s: float | None = None  # of the door: say so after so long without a request
    first: bool = False  # of the writer: no mount of this daemon can have been up yet

    @property
    def writer_socket(self) -> Path:
        return self.runtime_dir / "writer.sock"

    @property
    def index_socket(self) -> Path:
        return self.runtime_dir / "index.sock"


def rules_message(settings: Settings) -> dict[str, Any]:
    """The rules that the writer folds into scopes, as plain values."""
    return {"policy": Policy.from_settings(settings).plain, "index": astuple(IndexRules.of(settings))}


def rules_from(message: Mapping[str, Any]) -> tuple[Policy, IndexRules]:
    """Inverse of rules_message."""
    ignore, *limits = message["index"]
    return Policy.from_plain(message["policy"]), IndexRules(tuple(ignore), *limits)
