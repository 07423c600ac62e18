"""The pages for people: each shows what its agent may see, as text, and changes something only where it may."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from avmfs.http import pages
from avmfs.http.markup import Html
from avmfs.text.escapes import escaped
from tests.http.http_world import SETTINGS, Answer, Visitor, Web, of, started
from tests.log_lines import unexpected
from tests.sweep import forging

CANARY = "canaryofalice"
HOSTILE = (
    "<script>boom()</script>",
    "<img src=x onerror=boom()>",
    '"><svg onload=boom()>',
    "' autofocus onfocus='boom()",
    "</pre></textarea></title><script>boom()</script>",
    "javascript:boom()",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "\u202eevil\u2066",
)
PLAIN = "html head meta link title body a header nav ul li p main h1 h2 pre form label input button textarea"
TABLES = "dl dt dd div table caption thead tbody tr th td time span strong code img footer"


class Strict(HTMLParser):
    """Collects what no page of ours has."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.strange: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in f"{PLAIN} {TABLES}".split():
            self.strange.append(tag)
        for key, value in attrs:
            if key.startswith("on") or key in ("style", "srcdoc", "autofocus"):
                self.strange.append(f"{tag} {key}")
            if key in ("href", "src", "action"):
                self.links.append(value or "")
                if not (value or "").startswith(("/", "#")):
                    self.strange.append(f"{tag} {key}={value}")

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(answer: Answer) -> Strict:
    found = Strict()
    found.feed(answer.body.decode())
    assert found.strange == []
    return found


@pytest.fixture(scope="module")
def filled(web: Web) -> Web:
    with contextlib.closing(web.door("alice")) as alice, contextlib.closing(web.door("bob")) as bob:
        bob.call("write", path="/memory/shared/by bob.md", data=b"bob")  # from now on mail finds him
        alice.call("write", path=f"/memory/private/alice/{CANARY}.md", data=CANARY.encode())
        for at, text in enumerate(HOSTILE):
            path = f"/memory/shared/{quote(text, safe='')} {at}.md"
            alice.call("write", path=path, data=f"{text} umbrella\n".encode())
            alice.call("write", path=path, data=f"{text} umbrella\nmore {text}\n".encode())
            if text.isprintable():  # as tags have to be
                alice.call("tag", path=path, add=[text.replace(",", "").replace(" ", "-")[:40]])
            alice.call("link", path=path, target=f"/memory/private/alice/{CANARY}.md", type="cites")
            alice.call("tell", recipient="bob", body=text, priority="urgent" if at == 0 else "normal")
            bob.call("write", path=f"/memory/shared/by bob {at}.md", data=text.encode())
        alice.call("snapshot", name="then")
    return web


def every(visitor: Visitor, files: Sequence[str | bytes]) -> Iterator[tuple[str, Answer]]:
    for where in pages.PAGES:
        yield where, visitor.get(where)
    for path in files:
        said = os.fsdecode(path)
        for tab in ("text", "history", "diff", "blame"):
            yield f"{said} {tab}", visitor.get("/note", path=path, tab=tab)
        yield f"{said} then", visitor.get("/note", path=path, at="snap.then")
        yield f"below {said}", visitor.get("/tree", path=path)
        yield f"drawn {said}", visitor.get("/graph.svg", path=path)
    for q in ("umbrella", CANARY, *HOSTILE):
        yield f"recall {q}", visitor.get("/recall", q=q)


def test_every_page_shows_its_agents_own_and_others_writing_as_text(filled: Web) -> None:
    alice = Visitor(filled, "alice")
    listing = seen(alice.get("/tree", path="/memory/shared"))
    files = [f"/memory/shared/{quote(text, safe='')} {at}.md" for at, text in enumerate(HOSTILE)]
    for what, answer in every(alice, files):
        if what.startswith("drawn"):
            assert answer.status in (200, 400, 404, 409, 422), (what, answer)
            continue
        assert answer.status in (200, 400, 404, 409), (what, answer.body[-600:])
        seen(answer)
    assert "boom()" in seen(alice.get("/note", path=files[0])).text and "by bob 3.md" in listing.text
    assert CANARY in seen(alice.get("/recall", q=CANARY)).text
    assert "umbrella" in seen(alice.get("/tree", path="/memory/shared", at="snap.then")).text
    assert seen(alice.get("/note", path="/memory/shared/by bob 0.md", tab="blame")).text.count("bob") >= 2


def test_no_page_shows_a_name_as_it_is(filled: Web) -> None:
    """Newlines, escape sequences and marks of direction; text of a page, whose fields hold names as they are sent."""
    files = [f"/memory/shared/h{name}.md" for name in forging.ALL]
    with contextlib.closing(filled.door("mallory")) as mallory:
        mallory.call("write", path="/memory/shared/by mallory.md", data=b"umbrella\n")
        for path in files:
            mallory.call("write", path=path, data=b"umbrella of mallory\n")
            mallory.call("write", path=path, data=b"umbrella of mallory, again\n")
            mallory.call("link", path="/memory/shared/by mallory.md", target=path)
            mallory.call("write", path=f"{path}.gone", data=b"umbrella\n")
            mallory.call("remove", path=f"{path}.gone")
    alice, shown = Visitor(filled, "alice"), ""
    for what, answer in every(alice, ["/memory/shared/by mallory.md", *map(os.fsencode, files)]):
        text = answer.body.decode() if what.startswith("drawn") else seen(answer).text
        forging.shows(what, text)
        shown += text
    listing = seen(alice.get("/tree", path="/memory/shared")).text
    assert all(escaped(path.rpartition("/")[2]) in listing for path in files) and forging.FORGED in shown


def test_no_page_shows_another_agent_what_is_private(filled: Web) -> None:
    bob = Visitor(filled, "bob")
    files = [f"/memory/private/alice/{CANARY}.md", "/memory/private/alice", "/@snap.then/memory/private/alice"]
    files += [f"/memory/shared/{quote(text, safe='')} {at}.md" for at, text in enumerate(HOSTILE[:3])]
    for what, answer in every(bob, files):
        body = answer.body.decode()
        given = f"{CANARY}.md", CANARY
        assert CANARY not in body or CANARY in what, what
        if CANARY in what:  # what he has typed is repeated to him, and no more
            assert all(each in what for each in given[1:]) and "cites" not in body, what


def test_who_is_not_signed_in_sees_nothing(filled: Web) -> None:
    for where in (*pages.PAGES, "/graph.svg"):
        answer = filled.ask("GET", where)
        assert answer.status == 401 and b"umbrella" not in answer.body, where
    stranger = filled.ask("GET", "/tree", cookie="avm_session_1=x")
    assert stranger.status == 401
    assert filled.ask("POST", "/do/tell", b"to=bob&body=x", origin=filled.url).status == 401


def test_forms_change_nothing_unless_the_configuration_says_so(filled: Web) -> None:
    alice = Visitor(filled, "alice")
    assert "textarea" not in alice.get("/note", path="/memory/shared/by bob 0.md").body.decode()
    for form in ("write", "tell", "restore", "put-back"):
        assert alice.send(form, path="/memory/shared/by bob 0.md", version=1, text="x").status == 403
    assert alice.send("nothing").status == 404


def test_sign_out_of_a_page_ends_the_session(filled: Web) -> None:
    alice = Visitor(filled, "alice")
    assert alice.get("/").status == 200
    assert alice.post("/sign-out").status == 303
    assert alice.get("/").status == 401


def test_a_slider_of_hours_is_a_time_of_the_path(filled: Web) -> None:
    alice = Visitor(filled, "alice")
    moved = alice.get("/tree", path="/memory/shared", ago="24")
    assert moved.status == 303 and "at=-24h" in moved.headers["location"]
    assert alice.get("/tree", path="/memory/shared", at="-24h").status == 404  # before the store began
    assert "at=" not in alice.get("/tree", path="/memory/shared", ago="0").headers["location"]
    assert alice.get("/tree", path="/memory/shared", at="nonsense").status in (400, 404)


def made(page: str, visit: pages.Visit) -> tuple[str, Html]:
    async def make() -> tuple[str, Html]:
        return await pages.PAGES[page].make(visit)

    return asyncio.run(make())


def hashed(data: bytes) -> str:
    """As a form tells what its page has shown."""
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    root = Path("/tmp") / f"avm-{tmp_path_factory.mktemp('w').name}-{id(tmp_path_factory) % 10_000}"
    root.mkdir()
    held = "trust: [{source: web, pattern: '/memory/shared/held/*', action: quarantine}]\n"
    daemon = started(root, SETTINGS.replace("0'}", "0', write: true}") + held + "search: {query_log: 10}\n")
    try:
        yield of(daemon)
        assert unexpected(daemon.log(), []) == [], daemon.log()[-6000:]
    finally:
        with contextlib.suppress(AssertionError):
            daemon.command("stop")
        daemon.clean_up()
        shutil.rmtree(root, ignore_errors=True)


def test_where_it_may_write_a_form_does_and_says_when_it_could_not(writable: Web) -> None:
    with contextlib.closing(writable.door("bob")) as door:
        door.call("write", path="/memory/private/bob/own.md", data=b"own\n")
    with contextlib.closing(writable.door("alice")) as door:
        path = "/memory/shared/plan.md"
        door.call("write", path=path, data=b"one\n")
        alice, bob = Visitor(writable, "alice"), Visitor(writable, "bob")
        assert "textarea" in alice.get("/note", path=path).body.decode()
        assert alice.send("write", path=path, instead_of=hashed(b"one\n"), text="two\r\nlines\r\n").status == 303
        assert door.call("read", path=path)["data"] == b"two\nlines\n"
        door.call("write", path="/memory/shared/windows.md", data=b"one\r\n")
        windows = "/memory/shared/windows.md"
        changed = alice.send("write", path=windows, instead_of=hashed(b"one\r\n"), text="one\r\ntwo\r\n")
        assert changed.status == 303
        assert door.call("read", path="/memory/shared/windows.md")["data"] == b"one\r\ntwo\r\n", "as it was"
        late = bob.send("write", path=path, instead_of=hashed(b"one\n"), text="lost")
        assert late.status == 409 and b"That did not work" in late.body
        assert (
            alice.send("write", origin=False, path=path, instead_of=hashed(b"two\nlines\n"), text="forged").status
            == 403
        )
        assert door.call("read", path=path)["data"] == b"two\nlines\n"
        assert alice.send("restore", path=path, version=1).status == 303
        assert door.call("read", path=path)["data"] == b"one\n"
        assert alice.send("restore", path=path, version="x").status == 400
        assert alice.send("write", path="/memory/private/bob/own.md", instead_of=hashed(b"own\n"), text="x").status in (
            403,
            404,
        )
        assert alice.send("write", path=path, instead_of="x", text="x").status == 400
        assert alice.send("tell", to="bob", body="look at it", urgent="1").status == 303
        assert "look at it" in seen(bob.get("/inbox")).text and "look at it" in seen(bob.get("/")).text
        assert alice.send("tell", to="nobody at all", body="x").status == 404
        door.call("archive", path=path)
        assert alice.send("put-back", path="/archive/shared/plan.md").headers["location"].endswith("plan.md")
        assert door.call("read", path=path)["data"] == b"one\n"


def test_a_form_of_a_file_that_is_changed_while_its_page_is_made_changes_nothing(writable: Web) -> None:
    path, alice = "/memory/shared/raced.md", Visitor(writable, "alice")
    with contextlib.closing(writable.door("alice")) as door, contextlib.closing(writable.door("bob")) as bob:
        door.call("write", path=path, data=b"one\n")

        async def ask(method: str, **given: Any) -> Any:
            found = door.call(method, **given)
            if method == "read" and given["path"] == path:
                bob.call("write", path=path, data=b"of bob\n")
            return found

        _, shown = made("/note", pages.Visit(ask, {"path": path}, True, False))
        form = str(shown).partition('action="/do/write"')[2].partition("</form>")[0]
        given = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert ">\none\n<" in form and given["path"] == path
        assert alice.send("write", **given, text="one and two\n").status == 409
        assert door.call("read", path=path)["data"] == b"of bob\n"


def test_no_form_is_offered_for_what_a_browser_does_not_send_back_as_it_is(writable: Web) -> None:
    """A browser sends every line end as CRLF, and NUL as another character."""
    path = "/memory/shared/ends.txt"
    with contextlib.closing(writable.door("alice")) as door:
        for body, kept in (
            (b"a\nb\n", True),
            (b"a\r\nb\r\n", True),
            (b"a\r\nb\n", False),
            (b"a\rb\n", False),
            (b"a\r\nb\r\r\n", False),
            (b"a\rb", False),
            (b"one\0two\0", False),
        ):
            door.call("write", path=path, data=body)
            shown = Visitor(writable, "alice").get("/note", path=path).body.decode()
            assert ("<textarea" in shown) == kept and ("no form sends back" in shown) != kept, body


def test_what_has_changed_leads_to_files_that_are_there(writable: Web) -> None:
    with contextlib.closing(writable.door("alice")) as door:
        door.call("write", path="/memory/shared/goes.md", data=b"x")
        seq = str(door.call("recent", path="/")["seq"])
        door.call("write", path="/memory/shared/stays.md", data=b"x")
        door.call("remove", path="/memory/shared/goes.md", permanently=True)

        async def ask(method: str, **given: Any) -> Any:
            return door.call(method, **given, **({"since": seq} if method == "recent" else {}))

        _, shown = made("/", pages.Visit(ask, {}, True, False))
    assert "goes.md" in str(shown) and "stays.md" in str(shown)
    found = re.findall(r'href="([^"]*)"', str(shown))
    assert any("stays.md" in each for each in found) and not any("goes.md" in each for each in found), found


def test_a_page_says_what_it_leaves_out(writable: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(writable.door("lou")) as lou, contextlib.closing(writable.door("alice")) as alice:
        lou.call("write", path="/memory/private/lou/to.md", data=b"x")
        for number in range(2):
            alice.call("tell", recipient="lou", body=f"number {number}")
            path = f"/memory/private/lou/{number}.md"
            lou.call("write", path=path, data=b"x")
            lou.call("link", path=path, target="/memory/private/lou/to.md")
            lou.call("remember", content=f"page {number}", path=f"/shared/held/left {number}.md", source="web")
            gone = f"/memory/private/lou/gone {number}.md"
            lou.call("remember", content="x", path=gone, created=10**18)  # what is young is gone for good
            lou.call("remove", path=gone)

        async def ask(method: str, **given: Any) -> Any:
            return lou.call(method, **given)

        def shown(page: str) -> str:
            visit = pages.Visit(ask, {"path": "/memory/private/lou"}, False, False)
            return str(made(page, visit)[1])

        for rows, left in ((1, 1), (100, 0)):
            monkeypatch.setattr(pages, "ROWS", rows)
            said = {page: shown(page).count("There are more") for page in ("/inbox", "/links", "/trash")}
            assert said == {"/inbox": left, "/links": left, "/trash": 2 * left}, said
        for number in range(2):  # nothing is left to the others
            lou.call("reject", path=f"/shared/held/left {number}.md")


def test_a_text_that_is_shown_in_part_may_be_cut_within_a_character(writable: Web) -> None:
    with contextlib.closing(writable.door("alice")) as door:
        for start in ("", "x", "xx"):
            door.call("write", path="/shared/wide.md", data=(start + "\u6f22" * 100_000).encode())
            shown = seen(Visitor(writable, "alice").get("/note", path="/shared/wide.md")).text
            assert "no text" not in shown and start + "\u6f22" * 80_000 in shown


def test_what_waits_in_quarantine_is_let_out_or_removed_from_the_page(writable: Web) -> None:
    alice = Visitor(writable, "alice")
    with contextlib.closing(writable.door("alice")) as door:
        for number in (1, 2):
            door.call("remember", content=f"page {number}", path=f"/shared/held/{number}.md", source="web")
        shown = seen(alice.get("/trash")).text
        assert "/memory/shared/held/1.md" in shown and "web" in shown
        assert alice.send("let-out", path="/shared/held/1.md").status == 303
        assert alice.send("reject", path="/shared/held/2.md").status == 303
        assert door.call("quarantine")["held"] == []
        assert door.call("read", path="/shared/held/1.md")["data"] == b"page 1\n"
        assert alice.send("reject", path="/shared/held/1.md").status == 400


def test_looking_at_a_recall_is_no_question_of_the_agents(writable: Web) -> None:
    alice = Visitor(writable, "alice")
    with contextlib.closing(writable.door("alice")) as door:
        door.call("write", path="/shared/ferry.md", data=b"the ferry leaves at nine\n")
        looked = seen(alice.get("/recall", q="ferry")).text
        assert "the ferry leaves at nine" in looked and "score" in looked
        assert door.call("questions")["questions"] == []
        handle = door.call("listing", path="/shared", q="ferry")["entries"][0]["handle"]
        at = f"/note?path=%2F{quote(handle)}"
        assert at in seen(alice.get("/recall", q="ferry")).links
        assert "the ferry leaves at nine" in seen(writable.ask("GET", at, cookie=alice.cookie)).text
        door.call("recall", q="ferry")
        assert [each["q"] for each in door.call("questions")["questions"]] == ["ferry"]


def test_the_logs_chain_is_verified_where_the_operator_asks_for_it(writable: Web) -> None:
    operator, alice = Visitor(writable, "operator", operator=True), Visitor(writable, "alice")
    assert "/upkeep?verify=1" in seen(operator.get("/upkeep")).links
    assert "The log's chain holds" in seen(operator.get("/upkeep", verify="1")).text
    assert "chain" not in seen(alice.get("/upkeep", verify="1")).text
