"""Where a webhook may go: the guard against being made to call what only this machine can reach.

Owns the reading of a webhook's address and the verdict on it. Asked when a subscription is made (what the text alone
tells), and at every try on the very address that is connected to, so that a name that resolves otherwise by then
changes nothing. Called by the door and by the deliverer. Knows no store; the network is asked through ``resolve``.

What is refused unless config.yaml allows it (``webhooks.allow``): every address that is not globally reachable, every
address of this machine, also a public one, what clouds have behind public addresses, and addresses that carry another
one inside (IPv4-mapped, SIIT, 6to4, Teredo, ISATAP, NAT64), which is judged in its place or refused.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from avmfs.errors import Denied, Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[..., Sequence[tuple[Any, ...]]]
KEY: Final = "webhooks.allow in config.yaml"
_NUMBER: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_LABELS: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.IGNORECASE)
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
# Of IPv6 all that is given to hosts of the internet is here: translation (SIIT, NAT64), segment routing, local use,
# groups, and what nobody has been given are not.
_UNICAST: Final = ipaddress.ip_network("2000::/3")
# Beside what the library calls not global: translation, tunnels, documentation, what is never one host; and Azure's
# host agent, which answers on a public address, in the virtual machine alone.
_NEVER_PUBLIC: Final = (
    "0.0.0.0/8 100.64.0.0/10 168.63.129.16/32 192.0.0.0/24 192.88.99.0/24 198.18.0.0/15 224.0.0.0/4 240.0.0.0/4"
    " 2001::/23 2001:db8::/32 2002::/16 3fff::/20"
)
_NEVER: Final = tuple(map(ipaddress.ip_network, _NEVER_PUBLIC.split()))
_ISATAP: Final = (0x00005EFE, 0x02005EFE)  # the third quarter of an IPv6 address whose last one is an IPv4 address
_NOBODYS: Final = {4: "192.0.2.1", 6: "2001:db8::1"}  # of documentation: no machine has them


@dataclass(frozen=True, slots=True)
class Destination:
    """A webhook's address, taken apart. ``host`` is lower-case ASCII, without brackets; ``target`` path and query."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def header(self) -> str:
        """For ``Host:``."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == (443 if self.secure else 80) else f"{shown}:{self.port}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What ``webhooks.allow`` names, and whether an operator made the subscription: that may name this machine."""

    entries: tuple[str, ...] = ()
    operator: bool = False
    own: Callable[[Address], bool] = field(default=lambda address: is_own(address), repr=False)

    def name(self, host: str) -> bool:
        return host in self.entries

    def address(self, host: str, address: Address) -> bool:
        """Return whether this address of this host may be connected to."""
        inner = _inner(address)
        if self.name(host) or any(inner in network for network in self._networks if network.version == inner.version):
            return True
        if self.operator and inner.is_loopback and _names_this_machine(host):
            return True
        return public(address) and not self.own(inner)

    @property
    def _networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        found = []
        for entry in self.entries:
            try:
                found.append(ipaddress.ip_network(entry))
            except ValueError:
                continue  # a host name
        return found


def public(address: Address) -> bool:
    """Return whether this is one host on the public internet."""
    inner = _inner(address)
    if inner.version == 6 and (inner not in _UNICAST or int(inner) >> 32 & 0xFFFFFFFF in _ISATAP):
        return False
    return inner.is_global and not any(inner in network for network in _NEVER if network.version == inner.version)


def is_own(address: Address) -> bool:
    """Return whether this machine has the address. bind(2) takes no other. Where that is turned off
    (net.ipv4.ip_nonlocal_bind), it shows by a datagram that would come from the address that it goes to: then but the
    first address of each network."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    if not _takes(family, str(address)):
        return False
    if not _takes(family, _NOBODYS[address.version]):
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(address), 9))  # nothing is sent
        except OSError:
            return False
        return ipaddress.ip_address(sock.getsockname()[0]) == address


def _takes(family: socket.AddressFamily, host: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except OSError as e:
        if e.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise Invalid(f"webhook: cannot find out whether {host} is this machine's own: {e.strerror}") from None
    return True


def parse(url: str) -> Destination:
    """Raises Invalid for what is no plain http or https address, naming what is wrong."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise Invalid("webhook: the address has characters that an address cannot have")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise Invalid(f"webhook: {e}") from None
    if parts.scheme not in ("http", "https"):
        raise Invalid("webhook: expected an address that begins with https:// or http://")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise Invalid("webhook: no user or password in the address; deliveries are signed")
    if not host or parts.fragment or "#" in url or port == 0:
        raise Invalid("webhook: expected an address such as https://example.com/hook")
    host = host.lower().rstrip(".")
    if ":" in parts.netloc.rpartition("]")[0] or parts.netloc.startswith("["):
        if "%" in host or not isinstance(_literal(host), ipaddress.IPv6Address):
            raise Invalid("webhook: not an IPv6 address (and no zone is taken)")
    else:
        _check_name(host)
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(secure, host, port or (443 if secure else 80), target)


def check(url: str, allowed: Allowed) -> Destination:
    """What can be said before anybody is asked to resolve the name. Raises Invalid, or Denied for a place that is
    private as it stands."""
    found = parse(url)
    address = _literal(found.host)
    if address is not None and not allowed.address(found.host, address):
        raise refused(found.host)
    if address is None and _names_this_machine(found.host) and not (allowed.name(found.host) or allowed.operator):
        loopback = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
        if not any(allowed.address(found.host, each) for each in loopback):
            raise refused(found.host)
    return found


def vetted(destination: Destination, allowed: Allowed, resolve: Resolve = socket.getaddrinfo) -> list[tuple[Any, ...]]:
    """Where to connect to, as getaddrinfo gives it: the addresses of the host that may be reached. Raises Denied when
    there are only others, OSError when the name has none."""
    found = resolve(destination.host, destination.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    good = [
        each
        for each in found
        if each[0] in (socket.AF_INET, socket.AF_INET6)
        and allowed.address(destination.host, ipaddress.ip_address(str(each[4][0]).partition("%")[0]))
    ]
    if not good:
        raise refused(destination.host)
    return good


def refused(host: str) -> Denied:
    return Denied(f"webhook: {host} is no public address of another machine; to reach it, name it in {KEY}")


def _inner(address: Address) -> Address:
    """An IPv4 address in its IPv6 clothes is what it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _names_this_machine(host: str) -> bool:
    literal = _literal(host)
    if literal is not None:
        return _inner(literal).is_loopback
    return host in _LOCAL_NAMES or host.endswith(".localhost")


def _check_name(host: str) -> None:
    """A name, or an IPv4 address written as four plain numbers: a resolver reads 0x7f.1 and 2130706433 as addresses."""
    if not _LABELS.fullmatch(host) or len(host) > 253:
        raise Invalid("webhook: not a host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and _literal(host) is None:
        raise Invalid("webhook: an address in numbers is written as four plain ones: 192.0.2.1")
