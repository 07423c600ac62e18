"""The service with TLS: which certificates a client of it takes, and that the others get no token."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import find_paths
from avmfs_config.http import HttpSettings

from avmfs.errors import Busy, Denied, Invalid
from avmfs.http import service
from avmfs.http.service import Server
from avmfs.mcp import patience
from avmfs.rpc.over_http import HttpDoor
from tests.faults.daemons import LIMIT_S, QUIET, Daemon, wait
from tests.http.http_world import of, started

OURS, THEIRS = "IP:127.0.0.1", "DNS:elsewhere.example"
_CONF = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = any
x509_extensions = names
unique_subject = no
[any]
commonName = supplied
[names]
subjectAltName = {names}
basicConstraints = critical, CA:true
"""


def certificate(folder: Path, name: str, names: str, until: str = "20500101000000Z") -> Path:
    """A self-signed one from 2020 on, in NAME.pem, with its key in NAME.key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = folder / name
    folder.mkdir()
    conf, key, asked, made = (folder / f"{name}.{end}" for end in ("conf", "key", "csr", "pem"))
    conf.write_text(_CONF.format(folder=folder, names=names))
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    for command in (
        f"req -new -newkey rsa:2048 -nodes -subj /CN={name} -keyout {key} -out {asked}",
        f"ca -batch -notext -selfsign -config {conf} -keyfile {key} -in {asked} -out {made}"
        f" -startdate 20200101000000Z -enddate {until}",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, timeout=LIMIT_S)
    key.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "good": certificate(folder, "good", OURS),
        "renewed": certificate(folder, "renewed", OURS),
        "foreign": certificate(folder, "foreign", THEIRS),
        "expired": certificate(folder, "expired", OURS, "20200201000000Z"),
    }


def settings(made: Path, key: Path | None = None) -> str:
    return QUIET + f"http: {{listen: '127.0.0.1:0', cert: {made}, key: {key or made.with_suffix('.key')}}}\n"


@pytest.fixture
def serving(root: Path) -> Iterator[Callable[[Path], tuple[Daemon, str, str]]]:
    """Starts a daemon with this certificate: it, its address, and a key of alice's."""
    with contextlib.ExitStack() as held:

        def start(made: Path) -> tuple[Daemon, str, str]:
            daemon = started(root, settings(made))
            held.callback(daemon.clean_up)
            held.callback(daemon.command, "stop")
            web = of(daemon)
            assert web.url.startswith("https://127.0.0.1:")
            with contextlib.closing(web.door("alice")) as door:
                return daemon, web.url, str(door.call("create_key", actions=["read", "write"])["key"])

        yield start


@pytest.fixture
def here(tmp_path: Path, certificates: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The service in this process, and no door behind it: its address."""
    good, ready = certificates["good"], threading.Event()
    where = find_paths({f"AVM_{name}_DIR": str(tmp_path) for name in ("RUNTIME", "DATA", "CONFIG")})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, HttpSettings(cert=good, key=good.with_suffix(".key")), where, dict)
        thread = threading.Thread(target=server.run, args=[ready.set])
        thread.start()
        try:
            assert ready.wait(LIMIT_S)
            yield listener.getsockname()
        finally:
            server.stop()
            thread.join(LIMIT_S)


def hung_up(sock: socket.socket) -> bool:
    sock.settimeout(30.0)  # asyncio's own patience is a minute
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


def test_who_begins_no_handshake_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(service, "HEAD_S", 1.0)
    with socket.create_connection(request.getfixturevalue("here")) as silent:
        assert hung_up(silent)


def test_no_more_are_connected_than_there_is_room_for_though_they_say_nothing(
    here: tuple[str, int], certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "OPEN", 3)
    context = ssl.create_default_context(cafile=str(certificates["good"]))

    def served() -> bool:
        try:
            with socket.create_connection(here) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1"):
                return True
        except OSError:
            return False

    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(here)) for _ in range(4)]
        assert hung_up(silent[3]) and not served()
        silent[0].close()
        wait(served)


def avm(key: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AVM_", "SSL_"))}
    command = [sys.executable, "-m", "avmfs.cli", *arguments]
    environ = {**kept, "AVM_API_KEY": key, **more}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_certificate_that_is_named_is_trusted_and_no_other(serving: Any, certificates: dict[str, Path]) -> None:
    good, other = str(certificates["good"]), str(certificates["foreign"])
    daemon, url, key = serving(certificates["good"])
    with contextlib.closing(HttpDoor(url, None, key, ca=good)) as door:
        door.call("write", path="/shared/a.md", data=b"over TLS\n")
    assert avm(key, "--at", url, "--ca", good, "read", "/shared/a.md").stdout == "over TLS\n"
    assert avm(key, "read", "/shared/a.md", AVM_AT=url, AVM_CA=good).stdout == "over TLS\n"
    for more in ((), ("--ca", other)):
        refused = avm(key, "--at", url, *more, "read", "/shared/a.md")
        assert refused.returncode == 1 and "certificate is not trusted" in refused.stderr, refused
    for wrong in (str(certificates["good"].with_suffix(".csr")), "/nowhere.pem"):
        with pytest.raises(Invalid, match="no certificates in PEM"):
            HttpDoor(url, None, key, ca=wrong)
    assert avm(key, "--at", url.replace("https:", "http:"), "read", "/shared/a.md").returncode == 75
    context = ssl.create_default_context(cafile=good)
    at = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPSConnection(at, timeout=LIMIT_S, context=context)) as connection:
        connection.request("GET", f"/sign-in?code={of(daemon).code('alice')}")
        assert "Secure" in str(connection.getresponse().headers["set-cookie"])


@pytest.mark.parametrize(("name", "why"), [("foreign", "not valid for '127.0.0.1'"), ("expired", "expired")])
def test_a_certificate_of_another_name_or_time_is_refused(
    serving: Any, certificates: dict[str, Path], name: str, why: str
) -> None:
    _, url, key = serving(certificates[name])
    with pytest.raises(Denied, match=why):
        HttpDoor(url, None, key, ca=str(certificates[name]))


def test_a_key_that_others_may_read_is_not_taken(root: Path, certificates: dict[str, Path]) -> None:
    key = root / "loose.key"
    shutil.copy(certificates["good"].with_suffix(".key"), key)
    key.chmod(0o644)
    daemon = Daemon(root)
    daemon.mounts()
    daemon.settings(settings(certificates["good"], key))
    try:
        assert "others may read it: chmod 600" in daemon.command("start", "--daemon", expect=1)
        assert daemon.status()["http"]["state"] == "failed"  # all else serves
    finally:
        daemon.command("stop")
        daemon.clean_up()


def test_a_reload_with_a_certificate_that_cannot_be_served_keeps_the_one_that_is(
    serving: Any, certificates: dict[str, Path], root: Path
) -> None:
    good = certificates["good"]
    key, loose = good.with_suffix(".key"), root / "loose.key"
    shutil.copy(key, loose)
    loose.chmod(0o644)
    daemon, url, token = serving(good)
    pid = daemon.status()["http"]["pid"]
    for made, its_key, says in (
        (good, loose, f"http.key: {loose}: others may read it: chmod 600"),
        (good, Path("/nowhere.key"), "http.key: /nowhere.key: No such file"),
        (Path("/nowhere.pem"), key, f"http.cert: /nowhere.pem with {key}: No such file"),
        (certificates["renewed"], key, f"http.cert: {certificates['renewed']} with {key}: "),
        (good.with_suffix(".csr"), key, f"http.cert: {good.with_suffix('.csr')} with {key}: "),
    ):
        daemon.settings(settings(made, its_key))
        assert says in daemon.command("reload", expect=1)
    assert daemon.status()["http"]["pid"] == pid
    with contextlib.closing(HttpDoor(url, None, token, ca=str(good))) as door:
        door.call("tags")


def test_a_renewed_certificate_is_served_after_a_reload(
    serving: Any, certificates: dict[str, Path], root: Path
) -> None:
    made = root / "served.pem"

    def put(name: str) -> None:
        for end in (".pem", ".key"):
            shutil.copy(certificates[name].with_suffix(end), root / f"new{end}")
            (root / f"new{end}").rename(made.with_suffix(end))

    def taken(name: str) -> bool:
        try:
            HttpDoor(url, None, token, ca=str(certificates[name])).close()
        except (Busy, Denied):
            return False
        return True

    put("good")
    daemon, url, token = serving(made)
    pid = daemon.status()["http"]["pid"]
    daemon.command("reload")
    assert daemon.status()["http"]["pid"] == pid and taken("good") and not taken("renewed")
    put("renewed")
    daemon.command("reload")
    wait(lambda: taken("renewed"))
