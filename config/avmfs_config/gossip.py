"""The section `gossip` of config.yaml: which other hosts exchange digests with this one.

Owns the values, their readers and the rules that span its keys. Called by `readers`. It must not know what a digest is.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from avmfs_config.parse import Range, Readers, Value

_ENDPOINT = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a host listens; written as `host:port`, an IPv6 address in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GossipSettings:
    """Exchanging digests of who knows what with other hosts.

    `listen` None: this host asks others and answers nobody. Who may connect: the machine itself, the addresses of
    `peers`, and the addresses and networks in `allow`. `key_file` holds the secret that all hosts share, at least 32
    bytes, readable by its owner alone. `name` is what other hosts show for this one; None is a random one.
    """

    enabled: bool = False
    listen: Endpoint | None = None
    peers: tuple[Endpoint, ...] = ()
    allow: tuple[str, ...] = ()
    key_file: Path | None = None
    interval_s: Annotated[float, Range(0.1, 86_400.0)] = 30.0
    name: str | None = None


def read_gossip(value: Value) -> GossipSettings:
    """The section. Raises ConfigError, also for keys that do not go together."""
    found = value.record(GossipSettings, GOSSIP)
    if found.enabled and found.key_file is None:
        raise value.child("key_file").error("required where gossip is enabled")
    if found.enabled and found.listen is None and not found.peers:
        raise value.error("enabled, but there is neither `listen` nor `peers`")
    if found.listen is not None and not is_loopback(found.listen.host) and not found.allow:
        raise value.child("allow").error(f"required where others can reach {found.listen}: who may connect")
    return found


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_endpoint(value: Value, least: int = 1) -> Endpoint:
    """`host:port`, a port of at least so much."""
    found = _ENDPOINT.fullmatch(value.text())
    if found is None or not least <= int(found["port"]) < 65_536:
        raise value.error(f"expected host:port, not {value.data!r}")
    return Endpoint(found["six"] or found["name"], int(found["port"]))


def _network(value: Value) -> str:
    try:
        return str(ipaddress.ip_network(value.text()))
    except ValueError as problem:
        raise value.error(f"expected an address or network: {problem}") from None


def host_name(value: Value) -> str:
    text = value.text()
    if not _NAME.fullmatch(text):
        raise value.error(f"a host's name is letters, digits, '.', '_' and '-', not {text!r}")
    return text


GOSSIP: Readers = {
    "listen": lambda value: value.optional(read_endpoint),
    "peers": lambda value: value.items(read_endpoint),
    "allow": lambda value: value.items(_network),
    "name": lambda value: value.optional(host_name),
}
