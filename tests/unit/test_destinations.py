"""Where a webhook may go: every way that is known to write a private address, and names that resolve to one."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import subprocess
import sys
from typing import Any

import pytest

from avmfs.agents.destinations import Allowed, check, is_own, parse, public, vetted
from avmfs.errors import Denied, Invalid

NOBODY = Allowed()
ASK = (
    "import ipaddress; from avmfs.agents.destinations import is_own; print(*[each for each in"
    ' ("8.8.4.4", "8.8.4.5", "8.8.8.8", "2606:4700::2", "2606:4700::3") if is_own(ipaddress.ip_address(each))])'
)
needs_namespaces = pytest.mark.skipif(
    shutil.which("ip") is None
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rn", "true"], capture_output=True, timeout=200).returncode != 0,
    reason="no network namespaces here",
)
PRIVATE = (
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.5",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.88.99.1",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "64:ff9b::7f00:1",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "2001::1",
    "2001:db8::1",
    "100::1",
    # SIIT (RFC 7915), with a private and with a public address inside; ISATAP (RFC 5214), both forms, in any network
    "::ffff:0:127.0.0.1",
    "::ffff:0:8.8.8.8",
    "2606:4700::5efe:7f00:1",
    "2606:4700::200:5efe:a00:1",
    "2606:4700::5efe:808:808",
    "fe80::5efe:a00:1",
    # documentation (RFC 9637), segment routing (RFC 9602), NAT64's ends, benchmarking, ORCHID, Teredo, dummy prefix
    "3fff::1",
    "3fff:fff:ffff::1",
    "5f00::1",
    "64:ff9b:1:ffff::a00:1",
    "2001:2::1",
    "2001:20::1",
    "2001:0:4136::1",
    "100:0:0:1::1",
    "4000::1",
    "8000::1",
    "e000::1",
    "::ffff:224.0.0.1",
    "ff0e::1",
    # clouds: AWS, Azure's host agent, Alibaba, Oracle, Google's in IPv6, ECS tasks
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd20:ce::254",
    "169.254.170.2",
    "fe80::a9fe:a9fe",
)
PUBLIC = (
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "172.32.0.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "168.63.129.17",
    "2a00:1450:4001::5eff:808:808",
    "2400:cb00::1",
    "3ffe:ffff::1",
)


def url(host: str) -> str:
    return f"http://[{host}]/hook" if ":" in host else f"http://{host}/hook"


@pytest.mark.parametrize("host", PRIVATE)
def test_a_private_address_is_refused_when_named_and_when_resolved(host: str) -> None:
    assert not public(ipaddress.ip_address(host))
    with pytest.raises(Denied, match=r"webhooks\.allow in config\.yaml"):
        check(url(host), NOBODY)
    with pytest.raises(Denied, match=r"webhooks\.allow in config\.yaml"):
        vetted(parse("https://example.com/"), NOBODY, answering(host))


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_address_may_be_reached(host: str) -> None:
    assert check(url(host), NOBODY).host == host
    assert vetted(parse("https://example.com/"), NOBODY, answering(host))[0][4][0] == host


@pytest.mark.parametrize(
    "odd",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.0x1",
        "127.0.0.1.1",
        "1.2.3",
        "0",
        "0x",
        "256.256.256.256",
    ],
)
def test_an_address_in_odd_numbers_is_no_address(odd: str) -> None:
    with pytest.raises(Invalid):
        check(f"http://{odd}/", Allowed(("127.0.0.0/8",), operator=True))


@pytest.mark.parametrize(
    "bad",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://x/",
        "//example.com/",
        "example.com",
        "http://",
        "http:///x",
        "http://user@example.com/",
        "http://a:b@example.com/",
        "http://evil.com@127.0.0.1/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://example.com/a b",
        "http://ex\u00e4mple.com/",
        "http://example.com#x",
        "http://example.com\\@127.0.0.1/",
        "http://[::1%25lo]/",
        "http://[::1%lo]/",
        "http://[127.0.0.1]/",
        "http://[::1",
        "http://-a.com/",
        "http://a..b/",
        "http://" + "a" * 64 + ".com/",
        "http://exam\tple.com/",
    ],
)
def test_what_is_no_plain_address_is_refused(bad: str) -> None:
    with pytest.raises(Invalid):
        check(bad, Allowed(("127.0.0.0/8", "::1/128"), operator=True))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "ip6-localhost"])
def test_names_of_this_machine_are_refused_before_anybody_is_asked(host: str) -> None:
    with pytest.raises(Denied):
        check(f"http://{host}:3000/hook", NOBODY)
    assert check(f"http://{host}:3000/hook", Allowed((), operator=True)).port == 3000
    assert check(f"http://{host}:3000/hook", Allowed(("127.0.0.1/32",)))


def test_an_operator_may_name_this_machine_and_nothing_else_private() -> None:
    operator = Allowed((), operator=True)
    for host in ("127.0.0.1", "::1"):
        assert check(url(host), operator)
    for host in ("10.0.0.1", "169.254.169.254", "0.0.0.0", "::", "fe80::1"):
        with pytest.raises(Denied):
            check(url(host), operator)
    # A name that says it is elsewhere does not become this machine by what it resolves to.
    with pytest.raises(Denied):
        vetted(parse("http://example.com/"), operator, answering("127.0.0.1"))
    assert vetted(parse("http://localhost/"), operator, answering("127.0.0.1"))


def test_the_allow_list_takes_networks_addresses_and_names() -> None:
    allowed = Allowed(("10.0.0.0/8", "192.168.1.5/32", "build.internal", "fd00::/8"))
    for host in ("10.255.0.1", "192.168.1.5", "fd12::1", "::ffff:10.1.1.1"):
        assert check(url(host), allowed)
    for host in ("192.168.1.6", "127.0.0.1", "fe80::1"):
        with pytest.raises(Denied):
            check(url(host), allowed)
    assert vetted(parse("http://build.internal/"), allowed, answering("172.16.0.9"))
    with pytest.raises(Denied):
        vetted(parse("http://other.internal/"), allowed, answering("172.16.0.9"))


def test_of_several_addresses_only_good_ones_are_connected_to() -> None:
    found = vetted(parse("http://example.com/"), NOBODY, answering("127.0.0.1", "8.8.8.8", "fe80::1%eth0", "10.0.0.1"))
    assert [each[4][0] for each in found] == ["8.8.8.8"]


def test_this_machines_own_public_addresses_are_refused() -> None:
    own = Allowed(own=lambda address: str(address) in ("8.8.4.4", "2606:4700::2"))
    for host in ("8.8.4.4", "::ffff:8.8.4.4", "2606:4700::2"):
        with pytest.raises(Denied, match="another machine"):
            check(url(host), own)
        with pytest.raises(Denied, match="another machine"):
            vetted(parse("https://example.com/"), own, answering(host))
    found = vetted(parse("https://example.com/"), own, answering("8.8.4.4", "8.8.8.8"))
    assert [each[4][0] for each in found] == ["8.8.8.8"]
    assert check(url("8.8.4.4"), Allowed(("8.8.4.4/32",), own=own.own)), "but for those that are allowed by name"


def test_an_address_is_this_machines_own_when_it_is_on_an_interface() -> None:
    for host in ("127.0.0.1", "127.9.9.9"):
        assert is_own(ipaddress.ip_address(host))
    for host in ("8.8.8.8", "192.0.2.1", "2606:4700:4700::1111"):
        assert not is_own(ipaddress.ip_address(host))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("8.8.8.8", 9))
        except OSError:
            return  # no network here
        assert is_own(ipaddress.ip_address(sock.getsockname()[0]))


@needs_namespaces
def test_a_public_address_on_any_interface_is_own_also_where_foreign_ones_can_be_bound() -> None:
    """On interfaces of a network namespace: a first and a second address of a network, and IPv6."""
    said = subprocess.run(
        [
            "unshare",
            "-rn",
            "sh",
            "-c",
            f"""
        ip link set lo up && ip addr add 8.8.4.4/24 dev lo && ip addr add 8.8.4.5/24 dev lo
        ip -6 addr add 2606:4700::2/128 dev lo nodad || exit 3
        {sys.executable} -c '{ASK}' && echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && {sys.executable} -c '{ASK}'
        """,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    usual, foreign = said.stdout.splitlines()
    assert usual == "8.8.4.4 8.8.4.5 2606:4700::2"
    assert foreign.split()[0] == "8.8.4.4" and "8.8.8.8" not in foreign, "the first of each network is still known"


def test_parts_of_an_address() -> None:
    found = parse("HTTPS://Example.com./a/b?c=d&e")
    assert (found.secure, found.host, found.port, found.target) == (True, "example.com", 443, "/a/b?c=d&e")
    assert found.header == "example.com" and parse("http://[::1]:8080").header == "[::1]:8080"
    assert parse("http://example.com:443/").header == "example.com:443" and parse("http://a.b").target == "/"


def answering(*hosts: str) -> Any:
    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, port, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in hosts
        ]

    return resolve
