"""A real daemon with the HTTP service on, and a client that shows what it likes."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from avmfs.rpc.client import RemoteDoor
from tests.faults.daemons import LIMIT_S, QUIET, Daemon, wait

SETTINGS = QUIET + "http: {listen: '127.0.0.1:0'}\n"
_FORM = {  # what Chromium 156 sends with a form, but for Origin, Referer and the cookie
    "cache_control": "max-age=0",
    "sec_ch_ua": '"Not:A-Brand";v="8", "Chromium";v="156"',
    "sec_ch_ua_mobile": "?0",
    "sec_ch_ua_platform": '"Linux"',
    "upgrade_insecure_requests": "1",
    "content_type": "application/x-www-form-urlencoded",
    "user_agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0 Safari/537.36",
    "accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/jxl,image/avif,image/webp,*/*;q=0.8",
    "sec_fetch_site": "same-origin",
    "sec_fetch_mode": "navigate",
    "sec_fetch_user": "?1",
    "sec_fetch_dest": "document",
    "accept_encoding": "gzip, deflate, br, zstd",
    "accept_language": "en-US,en;q=0.9",
}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Web:
    """One daemon's service, as a stranger on this machine meets it."""

    def __init__(self, url: str, runtime: Path) -> None:
        self.url, self.runtime = url, runtime
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def connection(self) -> HTTPConnection:
        return HTTPConnection(self.host, self.port, timeout=LIMIT_S)

    def ask(self, verb: str, path: str, body: Any = None, token: str = "", **headers: str) -> Answer:
        """``body``: bytes, or what is sent as JSON. Header names with _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent.setdefault("authorization", f"Bearer {token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        with contextlib.closing(self.connection()) as connection:
            connection.request(verb, path, body, sent)
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())

    def call(self, token: str, method: str, **arguments: Any) -> Answer:
        return self.ask("POST", f"/api/{method}", arguments, token)

    def door(self, agent: str, **more: Any) -> RemoteDoor:
        return RemoteDoor(self.runtime / "avm.sock", agent, timeout_s=LIMIT_S, **more)

    def code(self, agent: str, **more: Any) -> str:
        with contextlib.closing(self.door(agent, **more)) as door:
            return str(door.call("sign_in")["code"])

    def token(self, agent: str, **more: Any) -> str:
        """A session's."""
        got = self.ask("POST", "/session", {"code": self.code(agent, **more)})
        assert got.status == 200, got
        return str(got.json["result"]["token"])


class Visitor:
    """A browser in which somebody has signed in."""

    def __init__(self, web: Web, agent: str, **more: Any) -> None:
        self.web = web
        self._last = got = web.ask("GET", f"/sign-in?code={web.code(agent, **more)}")
        assert got.status == 303, got
        self.cookie = got.headers["set-cookie"].partition(";")[0]

    def get(self, where: str, **query: Any) -> Answer:
        asked = where + ("?" + urllib.parse.urlencode(query) if query else "")
        self._last = self.web.ask("GET", asked, cookie=self.cookie)
        return self._last

    def send(self, form: str, origin: bool = True, **given: Any) -> Answer:
        return self.post(f"/do/{form}", origin, **given)

    def post(self, action: str, origin: bool = True, **given: Any) -> Answer:
        """As Chromium sends a form of the page that it shows, whose referrer policy says which Origin that has (Fetch
        standard, "append a request `Origin` header"). ``origin``: False for a program that names none."""
        policy = self._last.headers["referrer-policy"]
        sent = dict(_FORM)
        if origin:
            sent["origin"] = "null" if policy == "no-referrer" else self.web.url
        if policy != "no-referrer":
            sent["referer"] = f"{self.web.url}/"
        return self.web.ask("POST", action, urllib.parse.urlencode(given).encode(), cookie=self.cookie, **sent)


def of(daemon: Daemon) -> Web:
    return Web(daemon.status()["http"]["url"], daemon.run)


def started(root: Path, settings: str = SETTINGS, *, on: bool = True) -> Daemon:
    daemon = Daemon(root)
    daemon.mounts()
    daemon.settings(settings)
    daemon.start()
    if on:
        wait(lambda: daemon.status()["http"]["state"] == "ready")
    return daemon
