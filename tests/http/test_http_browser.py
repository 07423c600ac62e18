"""The pages in a real browser: how they look in every window, what they run (nothing), and what they show to whom."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.faults.daemons import QUIET, Daemon, wait
from tests.http.browser import AXE, SCHEMES, WINDOWS, payloads, tabs
from tests.http.http_world import Visitor, Web, of
from tests.http.two_weeks import PRIVATE
from tests.log_lines import unexpected

PICTURES = os.environ.get("AVM_PICTURES", "")  # a folder: there they are put
HELD = "trust: [{source: web, pattern: '/memory/shared/held/*', action: quarantine}]\n"
NOTE = "/memory/shared/pricing.md"
LOOKED_AT = {
    "now": "/",
    "files": "/tree?path=/memory/shared",
    "files of before": "/tree?path=/memory/shared&at=-168h",
    "note": f"/note?path={NOTE}",
    "history": f"/note?path={NOTE}&tab=history",
    "diff": f"/note?path={NOTE}&tab=diff",
    "blame": f"/note?path={NOTE}&tab=blame",
    "disputed note": "/note?path=/memory/shared/plan-2.md",
    "recall": "/recall?q=what+blocks+pricing",
    "inbox": "/inbox",
    "agents": "/agents",
    "links": "/links",
    "trash": "/trash",
    "upkeep": "/upkeep?verify=1",
    "refused": "/note?path=/memory/none.md",
}


@dataclass
class Lived:
    web: Web
    open: Any

    def cookie(self, agent: str, **more: Any) -> str:
        return Visitor(self.web, agent, **more).cookie


@pytest.fixture(scope="module")
def lived() -> Iterator[Lived]:
    """Two weeks of three agents' work, and a browser."""
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name, contextlib.ExitStack() as held:
        daemon = Daemon(Path(name))
        daemon.mounts()
        daemon.settings(QUIET + HELD + "http: {listen: '127.0.0.1:0', write: true}\n")
        web_of = held.enter_context(_browsing(daemon))
        yield web_of
        assert unexpected(daemon.log(), []) == [], daemon.log()[-6000:]


@contextlib.contextmanager
def _browsing(daemon: Daemon) -> Iterator[Lived]:
    with tabs() as opened:  # first: where there is none, nothing has to be made
        command = [sys.executable, str(Path(__file__).with_name("two_weeks.py")), "14"]
        subprocess.run(command, env=daemon.environ, check=True, timeout=200)
        daemon.start()
        try:
            wait(lambda: daemon.status()["http"]["state"] == "ready")
            yield Lived(of(daemon), opened)
        finally:
            with contextlib.suppress(AssertionError):
                daemon.command("stop")
            daemon.clean_up()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_fits_its_window_and_complains_of_nothing(lived: Lived, window: str, scheme: str) -> None:
    tab = lived.open(lived.web, lived.cookie("alice", operator=True), window, scheme)
    for name, where in LOOKED_AT.items():
        assert tab.go(where) == (404 if name == "refused" else 200), name
        if PICTURES:
            Path(PICTURES).mkdir(exist_ok=True)
            tab.page.screenshot(path=f"{PICTURES}/{name}, {window}, {scheme}.png", full_page=True)
        assert not tab.overflows(), name
    assert tab.said == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_tool_finds_nothing_in_the_way_of_those_who_do_not_see_or_use_no_mouse(lived: Lived, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: ./run web brings it")
    tab = lived.open(lived.web, lived.cookie("alice", operator=True), "phone", scheme)
    found = {}
    for name, where in LOOKED_AT.items():
        tab.go(where)
        found[name] = tab.findings()
    assert {name: each for name, each in found.items() if each} == {}


def test_a_page_of_another_has_nothing_of_alices_private_notes(lived: Lived) -> None:
    looked = [
        *LOOKED_AT.values(),
        f"/recall?q={PRIVATE[:6]}",
        "/tree?path=/memory/private",
        "/links?path=/memory/private",
    ]
    seen = {}
    for agent in ("alice", "bob"):
        tab, seen[agent] = lived.open(lived.web, lived.cookie(agent)), 0
        for where in [*looked, f"/tree?path=/memory/private/{agent}"]:
            tab.go(where)
            text = tab.page.content() + tab.page.evaluate("document.documentElement.innerText")
            assert agent == "alice" or PRIVATE not in text, where
            seen[agent] += PRIVATE in text
    assert seen["alice"] > 0


def test_the_forms_of_a_page_do_what_their_buttons_say(lived: Lived) -> None:
    path = "/memory/shared/pressed.md"
    with contextlib.closing(lived.web.door("alice")) as door:
        door.call("write", path=path, data=b"before\n")
        tab = lived.open(lived.web, lived.cookie("alice"))
        tab.go(f"/note?path={path}")
        tab.page.fill("textarea[name=text]", "after\n")
        with tab.page.expect_navigation():
            tab.page.click('form[action="/do/write"] button')
        assert door.call("read", path=path)["data"] == b"after\n", tab.page.content()
    with tab.page.expect_navigation():
        tab.page.click('form[action="/sign-out"] button')
    assert tab.go("/") == 401
    assert tab.said == []


@pytest.mark.slow
def test_two_hundred_payloads_run_nowhere(lived: Lived) -> None:
    made = payloads()
    assert len(set(made)) == 200
    with contextlib.ExitStack() as held:
        doors = [held.enter_context(contextlib.closing(lived.web.door(agent))) for agent in ("bob", "carol", "dora")]
        for number, each in enumerate(made):
            bob = doors[number % 3]  # nobody may have more than 100 unread with one receiver
            path = f"/memory/shared/x/{each.replace('/', '∕')} {number}.md"
            bob.call("write", path=path, data=f"# {each}\n{each} umbrella #{each}\n".encode())
            bob.call("tell", recipient="alice", body=each, priority="urgent" if number % 20 == 0 else "normal")
            if number % 4 == 0:
                with contextlib.suppress(OSError):  # most are no tags and no types of links
                    bob.call("tag", path=path, add=[each[:40]])
                with contextlib.suppress(OSError):
                    bob.call("link", path=path, target=NOTE, type=each[:40])
    tab = lived.open(lived.web, lived.cookie("alice"))
    many = [
        "/",
        "/tree?path=/memory/shared/x",
        "/inbox",
        "/links",
        "/links?path=/memory/shared/x",
        "/upkeep",
        f"/note?path={NOTE}",
    ]
    for where in many:
        assert tab.go(where) == 200 and tab.said == [], where
    for number, each in enumerate(made):
        path = f"/memory/shared/x/{each.replace('/', '∕')} {number}.md"
        tab_of = ("text", "history", "diff", "blame")[number % 4]
        assert tab.go("/note?" + urlencode({"path": path, "tab": tab_of})) == 200, path
        reflected = ("/recall?q=", "/tree?path=", "/note?path=", "/tree?at=", "/links?path=")[number % 5]
        tab.go(reflected + quote(each, safe=""))
        assert tab.said == [], each
        assert not tab.page.evaluate("document.querySelectorAll('main script, main svg, main iframe').length"), each
