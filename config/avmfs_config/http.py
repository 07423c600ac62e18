"""The section `http` of config.yaml: whether the daemon listens for HTTP, and as whom browsers and programs know it.

Owns the values, their readers and the rules that span its keys. Called by `readers`. It must not know what is served.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from avmfs_config.errors import ConfigError
from avmfs_config.gossip import Endpoint, is_loopback, read_endpoint
from avmfs_config.parse import Readers, Value

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP service.

    `listen` None: it is off (port 0: any free one). Beyond this machine only with TLS: `cert` and `key` are PEM files,
    the key readable by its owner alone. `hosts` are the names, beside the address, by which clients may reach it.
    `write`: the page in a browser may change things; programs may by their tokens. `metrics`: the daemon's processes
    count what they do, for /metrics.
    """

    listen: Endpoint | None = None
    hosts: tuple[str, ...] = ()
    cert: Path | None = None
    key: Path | None = None
    write: bool = False
    metrics: bool = True


def read_http(value: Value) -> HttpSettings:
    """The section. Raises ConfigError, also for keys that do not go together."""
    found = value.record(HttpSettings, HTTP)
    for name, other in (("cert", found.key), ("key", found.cert)):
        if other is not None and getattr(found, name) is None:
            raise value.child(name).error("required: TLS needs both `cert` and `key`")
    if found.listen is not None and not is_loopback(found.listen.host):
        if found.cert is None:
            raise value.child("listen").error(f"others can reach {found.listen}: only with TLS (`cert` and `key`)")
        if not found.hosts:
            raise value.child("hosts").error(f"required where others can reach {found.listen}: the names they use")
    return found


def check_tls(found: HttpSettings) -> None:
    """Raise ConfigError where the service cannot begin with this certificate and key as they are now. For who serves:
    who reads the settings may be another user."""
    if found.listen is None or found.cert is None or found.key is None:
        return
    import ssl  # not for every command that reads the settings

    where, path = "http.key", f"{found.key}"
    try:
        with open(found.key, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError("", where, f"{path}: others may read it: chmod 600")
        where, path = "http.cert", f"{found.cert} with {path}"
        # Without a password OpenSSL would ask for that of a key at the terminal, and wait.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(found.cert, found.key, password="")
    except OSError as e:  # an SSLError is one
        raise ConfigError("", where, f"{path}: {e.strerror}") from None


def _host(value: Value) -> str:
    text = value.text()
    if not _NAME.fullmatch(text):
        raise value.error(f"expected a host name or address without a port, not {text!r}")
    return text.lower()


HTTP: Readers = {
    "listen": lambda value: value.optional(lambda given: read_endpoint(given, 0)),
    "hosts": lambda value: value.items(_host),
}
