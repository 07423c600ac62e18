"""A real browser for the tests, what it says of a page, and what a page must not run.

Everything here is skipped where playwright, chromium or axe-core is missing; ``./run web`` brings them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import pytest

from tests.http.http_world import Web

AXE = Path(os.environ.get("AVM_AXE") or Path(sys.prefix, "node_modules/axe-core/axe.min.js"))
WINDOWS = {"phone": (390, 844), "wide": (1440, 900)}
SCHEMES = ("light", "dark")
LIMIT_MS = 200_000


class Tab:
    """One window, signed in as whose cookie that is. ``said``: what the console, dialogs and planted calls tell."""

    def __init__(self, page: Any, web: Web) -> None:
        self.page, self._web = page, web
        self.said: list[str] = []
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append("a dialog"), dialog.dismiss()))
        page.expose_function("boom", lambda *_: self.said.append("boom"))
        page.on("request", lambda asked: asked.url.startswith((web.url, "data:")) or self.said.append(asked.url))

    def go(self, where: str) -> int:
        """The status. A page that is refused is a page; that its status is said on the console is no complaint."""
        status = int(self.page.goto(self._web.url + where).status)
        if status >= 400:
            self.said = [each for each in self.said if "Failed to load resource" not in each]
        return status

    def overflows(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def findings(self) -> list[str]:
        """Of axe-core, those that are serious."""
        self.page.evaluate(AXE.read_text())  # by the debugger: the page's own policy lets no script in
        found = self.page.evaluate("axe.run().then(found => found.violations)")
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in serious]


@contextmanager
def tabs() -> Iterator[Any]:
    """``open(web, cookie, window, scheme)`` gives a Tab."""
    driver = pytest.importorskip("playwright.sync_api", reason="./run web brings playwright")
    if (program := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: ./run web brings it")
    with driver.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=LIMIT_MS)

        def opened(web: Web, cookie: str, window: str = "wide", scheme: str = "light") -> Tab:
            width, height = WINDOWS[window]
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            key, _, value = cookie.partition("=")
            context.add_cookies([{"name": key, "value": value, "url": web.url}])
            return Tab(context.new_page(), web)

        try:
            yield opened
        finally:
            browser.close()


def payloads(count: int = 200) -> list[str]:
    """Ways to have ``boom()`` run, each in what ends the text, the attribute or the element that it may stand in."""
    opens = (
        "",
        '"',
        "'",
        '">',
        "'>",
        "-->",
        "</pre>",
        "</title>",
        "</textarea>",
        "</style>",
        "]]>",
        "<!--",
        "`",
        "</a>",
    )
    runs = (
        "<script>boom()</script>",
        "<img src=x onerror=boom()>",
        "<svg onload=boom()>",
        "<body onload=boom()>",
        "<iframe srcdoc='<script>parent.boom()</script>'>",
        "<details open ontoggle=boom()>x</details>",
        "<input autofocus onfocus=boom()>",
        "<math><mtext><img src=x onerror=boom()></mtext></math>",
        "<a href=javascript:boom()>x</a>",
        "<object data=javascript:boom()></object>",
        "<video><source onerror=boom()></video>",
        "<style>@import 'javascript:boom()';</style>",
        "<meta http-equiv=refresh content='0;url=javascript:boom()'>",
        "<scr<script>ipt>boom()</scr</script>ipt>",
        "&lt;script&gt;boom()&lt;/script&gt;",
        "%3Cscript%3Eboom()%3C/script%3E",
        "\\u003cscript\\u003eboom()\\u003c/script\\u003e",
        " onmouseover=boom() style=position:fixed;inset:0 ",
        "javascript:boom()",
        "\u202e<script>boom()</script>\u2066",
    )
    made = [opened + each for opened, each in product(opens, runs)]
    assert len(made) >= count
    return [
        *islice(cycle(made[::7] + made[1::7] + made[2::7] + made[3::7] + made[4::7] + made[5::7] + made[6::7]), count)
    ]
