"""The pages for people: what each asks the door, and how the answer is laid out. They work without a script.

Owns the registry: ``@shown("/address", "Name")`` alone adds a page, to the navigation too. All that is shown came
through the door as whoever is signed in. Called by ``page``, which owns the frame and who that is.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from avmfs.errors import AvmError
from avmfs.http.markup import Html, address, el, field, link, many, name, table, text
from avmfs.localtime import minute
from avmfs.node import DISPUTES, NO_ROOM
from avmfs.text.escapes import visible, visible_lines
from avmfs.text.sniff import is_crlf
from avmfs.trust import heading
from avmfs.views import picture

SHOWN: Final = 256 * 1024  # bytes of a file
ROWS: Final = 100
_AGO: Final = (("1h", "an hour ago"), ("24h", "a day ago"), ("168h", "a week ago"))
_HOURS: Final = 30 * 24  # that the slider reaches back
_HIT: Final = re.compile(r"(\d+\. \[\d\.\d\d] )(@\w+)( .*)")  # of :why (docs/FORMATS.md)

Ask = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page: what it asks with, what its address says, and whether it may offer to change things."""

    ask: Ask
    query: dict[str, str]
    write: bool
    operator: bool

    def get(self, key: str, otherwise: str = "") -> str:
        return self.query.get(key) or otherwise

    def place(self, path: str) -> str:
        """A path as of the time that the address names."""
        at = self.get("at")
        return f"/@{at}{path}" if at else path


@dataclass(frozen=True, slots=True)
class Page:
    label: str
    make: Callable[[Visit], Awaitable[tuple[str, Html]]]


PAGES: Final[dict[str, Page]] = {}


def shown(where: str, label: str = "") -> Callable[[Any], Any]:
    """Register a page; one without a label is not in the navigation."""

    def add(make: Any) -> Any:
        PAGES[where] = Page(label, make)
        return make

    return add


@shown("/", "Now")
async def now(visit: Visit) -> tuple[str, Html]:
    unread, changes = await visit.ask("unread"), await visit.ask("recent", path="/", limit=30)
    pending, stats = await visit.ask("pending"), json.loads(await _text(visit, "/:stats"))
    told = {each: stats[each] for each in ("files", "bytes", "versions")}
    return "Now", many(
        _facts({**told, "unread messages": sum(unread.values()), "urgent": unread["urgent"]}),
        _asking("/recall", "Ask the memory"),
        _changes(changes["changes"], "What has changed"),
        el("h2", "What waits for you"),
        el("pre", visible_lines(pending["text"])),
    )


@shown("/tree", "Files")
async def tree(visit: Visit) -> tuple[str, Html]:
    path, offset = visit.get("path", "/memory"), _number(visit.get("offset"))
    found = await visit.ask("listing", path=visit.place(path), limit=ROWS, offset=offset)
    rows: list[list[object]] = [
        [_to(each, visit), each["handle"] or "", _size(each), _time(each["modified"]), visible_lines(each["line"])]
        for each in found["entries"]
    ]
    more = None
    if found["total"] > offset + ROWS:
        more = el("p", link("More", "/tree", path=path, at=visit.get("at"), offset=offset + ROWS))
    return _last(path), many(
        _crumbs(path, visit),
        await _times(visit, "/tree", path),
        table(("name", "handle", "size", "changed", "first line"), rows, f"{found['total']} entries"),
        more,
    )


@shown("/note")
async def note(visit: Visit) -> tuple[str, Html]:
    path, tab = visit.get("path"), visit.get("tab", "text")
    body = {"history": _history, "diff": _diff, "blame": _blame}.get(tab, _content)
    tabs = [
        el("li", link(each, "/note", path=path, tab=each, at=visit.get("at"), current=each == tab))
        for each in ("text", "history", "diff", "blame")
    ]
    return _last(path), many(
        _crumbs(path, visit),
        await _times(visit, "/note", path),
        el("nav", el("ul", *tabs), aria_label="of this note"),
        await body(visit, path),
    )


async def _content(visit: Visit, path: str) -> Html:
    got = await visit.ask("read", path=visit.place(path), limit=SHOWN, banner=False)
    meta = json.loads(await _text(visit, f"{path}:meta"))
    links = (await visit.ask("links", path=visit.place(path)))["links"]
    standing = [each for each in links if each["type"] in DISPUTES]
    words: str | None = None
    with contextlib.suppress(UnicodeDecodeError):
        words, _ = codecs.utf_8_decode(got["data"], "strict", not got["more"])  # it may be cut within a character
    body = el("p", f"{meta['size']} bytes that are no text.", class_="none")
    if words is not None:
        body = el("pre", visible_lines(words), tabindex=0)
    more = el("p", f"The first {SHOWN} bytes; avm read has all.", class_="quiet") if got["more"] else None
    told = {key: value for key, value in meta.items() if value not in (None, "", [])}
    rows: list[list[object]] = [[each["direction"], each["type"], _file(each["path"], visit)] for each in links]
    return many(
        *(el("p", _standing(each), " ", _file(each["path"], visit), class_="warn") for each in standing),
        _came(got["untrusted"]),
        body,
        more,
        None if got["more"] else _editing(visit, path, words, got["data"]),
        el("h2", "About it"),
        _facts(told),
        table(("direction", "type", "file"), rows, "Links"),
    )


def _came(untrusted: str) -> Html | None:
    """What stands above the words of a file, as everywhere, that are marked."""
    return el("p", heading(untrusted).rstrip("\n"), class_="warn") if untrusted else None


def _standing(link_: dict[str, Any]) -> str:
    if link_["type"] == "contradicts":
        return "Disputed by"
    return "Superseded by" if link_["direction"] == "in" else "Supersedes"


def _editing(visit: Visit, path: str, words: str | None, data: bytes) -> Html | None:
    """The form holds what was read by its hash: a version's number, asked for later, may be of what nobody has seen."""
    if not visit.write or visit.get("at") or words is None:
        return None
    if "\0" in words or "\r" in (words.replace("\r\n", "\n") if is_crlf(words) else words):
        return el("p", "It has line ends, or NULs, that no form sends back as they are.", class_="quiet")
    area = el("label", "Change it", el("textarea", "\n", words, name="text"), class_="whole")
    return _form("write", many(area, el("button", "Save")), path=path, instead_of=hashlib.sha256(data).hexdigest())


async def _history(visit: Visit, path: str) -> Html:
    found = await visit.ask("history", path=visit.place(path), limit=ROWS)
    rows: list[list[object]] = []
    for each in found["versions"]:
        number = each["version"]
        against = link("diff", "/note", path=path, tab="diff", newer=number, at=visit.get("at"))
        back = _form("restore", el("button", "Bring back"), path=path, version=number) if visit.write else None
        told = [f"v{number}", _time(each["at"]), name(each["author"]), each["route"], each["type"], each["size"]]
        rows.append([*told, many(against, back)])
    head = ("version", "when", "author", "by", "what", "bytes", "do")
    return table(head, rows, f"{found['total']} versions")


async def _diff(visit: Visit, path: str) -> Html:
    older, newer = visit.get("older"), visit.get("newer")
    if not newer:
        newest = (await visit.ask("history", path=visit.place(path), limit=1))["versions"]
        newer = str(newest[0]["version"]) if newest else "1"
    since = _number(older) if older else None
    found = await visit.ask("history", path=visit.place(path), older=since, newer=_number(newer), limit=1)
    kinds = {"+": "add", "-": "gone"}
    lines = visible_lines(found["diff"] or "(no difference)\n").split("\n")
    return many(
        el(
            "form",
            _hidden(path=path, tab="diff", at=visit.get("at")),
            field("number", "older", "from version", older or str(max(0, _number(newer) - 1)), min=0),
            field("number", "newer", "to version", newer, min=0),
            el("button", "Compare"),
        ),
        el("pre", *(many(el("span", line, class_=kinds.get(line[:1])), "\n") for line in lines), tabindex=0),
    )


async def _blame(visit: Visit, path: str) -> Html:
    found = await visit.ask("blame", path=visit.place(path))
    lines = found["lines"]
    rows: list[list[object]] = [
        [f"v{each['version']}", name(each["author"]), _time(each["at"]), el("code", visible_lines(each["text"]))]
        for each in lines[:5000]
    ]
    return many(_came(found["untrusted"]), table(("version", "author", "when", "line"), rows, f"{len(lines)} lines"))


@shown("/recall", "Recall")
async def recall(visit: Visit) -> tuple[str, Html]:
    q, budget = visit.get("q"), min(100_000, _number(visit.get("tokens"), 1000))
    asking = _asking("/recall", "Ask", q, field("number", "tokens", "tokens", budget, min=1, max=100_000))
    if not q:
        return "Recall", asking
    told = await visit.ask("recall", q=q, max_tokens=budget, scores=True, preview=True)
    why = await _text(visit, f"/:why?q={quote(q, safe='', errors='surrogateescape')}&limit=20")
    who = await visit.ask("who", q=q)
    return f"Recall: {q}", many(
        asking,
        el("h2", f"What an agent gets: {told['tokens']} of {budget} tokens"),
        el("pre", visible_lines(told["text"] or NO_ROOM), tabindex=0),
        el("h2", "Why this, and why not that"),
        el("pre", *(_hit(line, visit) for line in visible_lines(why).splitlines()), tabindex=0),
        el("h2", "Who knows"),
        el("pre", visible_lines(who["text"] or "(nobody)\n")),
    )


def _hit(line: str, visit: Visit) -> Html:
    """A line of :why; the file that one names by its handle is a link."""
    if found := _HIT.fullmatch(line):
        before, handle, where = found.groups()
        return many(before, link(many(handle, where), "/note", path=f"/{handle}", at=visit.get("at")), "\n")
    return text(line + "\n")


@shown("/inbox", "Inbox")
async def inbox(visit: Visit) -> tuple[str, Html]:
    thread = _number(visit.get("thread")) or None
    found = await visit.ask("inbox", thread=thread)
    rows: list[list[object]] = [
        [
            link(f"#{each['id']}", "/inbox", thread=each["thread"]),
            _time(each["at"]),
            name(each["sender"]),
            many(el("strong", "urgent") if each["priority"] == "urgent" else each["priority"]),
            "read" if each["read"] else el("strong", "unread"),
            el("pre", visible_lines(each["body"])),
        ]
        for each in found["messages"][:ROWS]
    ]
    send = None
    if visit.write:
        send = _form(
            "tell",
            many(
                field("text", "to", "to", required=True),
                field("text", "body", "message", required=True),
                el("label", field("checkbox", "urgent", "urgent", "1")),
                el("button", "Send"),
            ),
        )
    head = ("number", "when", "from", "priority", "state", "message")
    title = "Messages" if thread is None else f"Thread of #{thread}"
    return "Inbox", many(send, table(head, rows, title), _more(len(found["messages"]) > ROWS, "avm inbox"))


@shown("/agents", "Agents")
async def agents(visit: Visit) -> tuple[str, Html]:
    rows: list[list[object]] = [
        [
            name(each["name"]),
            many(*(many(route or "here", " since ", _time(since), " ") for route, since in each["here"].items())),
            many(*(many(_file(claim["path"], visit), " ") for claim in each["claims"])),
            "" if each["used"] is None else f"{each['used']['nodes']} files, {each['used']['bytes']} bytes",
            ", ".join(each["groups"] + each["capabilities"]),
        ]
        for each in await visit.ask("agents")
    ]
    return "Agents", table(("name", "here", "works on", "uses", "may"), rows, "Agents")


@shown("/links", "Links")
async def links(visit: Visit) -> tuple[str, Html]:
    path = visit.get("path", "/memory")
    found = await visit.ask("graph", path=path, limit=ROWS * 5)
    rows: list[list[object]] = [
        [_file(each["source"], visit), each["type"], _file(each["target"], visit)] for each in found["edges"][:ROWS]
    ]
    drawn = None
    if rows and picture.available():
        picture_ = el("img", src=address("/graph.svg", path=path), alt="The links below, drawn")
        drawn = el("div", picture_, class_="wide", tabindex=0, role="region", aria_label="Picture of the links")
    return "Links", many(
        el("form", field("text", "path", "below", path), el("button", "Show")),
        drawn,
        table(("file", "is linked", "to"), rows, "Links"),
        _more(len(found["edges"]) > ROWS or found["more"] > 0, "avm graph"),
        el("h2", "Disputes"),
        el("pre", visible_lines(await _text(visit, "/:disputes"))),
    )


@shown("/trash", "Trash")
async def trash(visit: Visit) -> tuple[str, Html]:
    rows: list[list[object]] = []
    removed = (await visit.ask("trash", limit=ROWS + 1))["files"]
    for each in removed[:ROWS]:
        back = _form("put-back", el("button", "Bring back"), path=each["path"]) if visit.write else ""
        rows.append([_file(each["path"], visit), name(each["was"]), _time(each["at"]), name(each["agent"]), back])
    held: list[list[object]] = []
    kept = await visit.ask("quarantine", limit=ROWS)
    for each in kept["held"]:
        buttons = many(
            _form("let-out", el("button", "Let it be found"), path=each["path"]),
            _form("reject", el("button", "Remove"), path=each["path"]),
        )
        told = [_file(each["path"], visit), ", ".join(each["sources"]), name(each["author"]), _time(each["updated"])]
        held.append([*told, buttons if visit.write else ""])
    return "Trash", many(
        table(("file", "was", "removed", "by", "do"), rows, "Removed"),
        _more(len(removed) > ROWS, "avm trash --limit 1000"),
        table(("file", "came from", "author", "changed", "do"), held, "In quarantine, found by nobody"),
        _more(kept["more"] > 0, "avm quarantine --limit 1000"),
    )


@shown("/upkeep", "Upkeep")
async def upkeep(visit: Visit) -> tuple[str, Html]:
    index = await visit.ask("index_status")
    letters = await visit.ask("dead_letters")
    told = {key: value for key, value in index.items() if key != "waiting" and value is not None}
    log = await visit.ask("audit", limit=50)
    rows: list[list[object]] = [
        [_time(each["at"]), name(each["agent"]), each["route"], each["op"], name(each["path"] or "")] for each in log
    ]
    verified = el("p", link("Verify the log's chain", "/upkeep", verify=1)) if visit.operator else None
    if visit.operator and visit.get("verify"):  # it reads all of it
        chain = await visit.ask("audit_verify")
        good = f"The log's chain holds: {chain['rows']} rows."
        verified = el("p", good if chain["ok"] else f"The log's chain is broken: {chain['reason']}")
    return "Upkeep", many(
        _facts({**told, **{f"waiting for {what}": count for what, count in index["waiting"].items()}}),
        el("h2", "Not delivered"),
        el("pre", visible_lines(letters["text"])),
        verified,
        table(("when", "agent", "by", "what", "path"), rows, "What was done last"),
    )


# --- parts -----------------------------------------------------------------------------------------------------


async def _text(visit: Visit, path: str) -> str:
    got = await visit.ask("read", path=visit.place(path), banner=False)
    return str(got["data"].decode("utf-8", "replace"))


def _number(given: str, otherwise: int = 0) -> int:
    return int(given) if given.isdecimal() and len(given) < 18 else otherwise


def _time(at: str) -> Html:
    return el("time", minute(at), datetime=at)


def _size(entry: dict[str, Any]) -> object:
    return entry["size"] if entry["kind"] == "file" else ""


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or "/"


def _to(entry: dict[str, Any], visit: Visit) -> Html:
    if entry["kind"] == "directory":
        return link(many(name(_last(entry["path"])), "/"), "/tree", path=entry["path"], at=visit.get("at"))
    return el("span", link(name(_last(entry["path"])), "/note", path=entry["path"], at=visit.get("at")), class_="file")


def _file(path: str, visit: Visit) -> Html:
    return el("span", link(name(path), "/note", path=path, at=visit.get("at")), class_="file")


def _crumbs(path: str, visit: Visit) -> Html:
    parts, above = [link("/", "/tree", path="/", at=visit.get("at"))], ""
    for part in path.strip("/").split("/")[:-1]:
        above += f"/{part}"
        parts.append(link(many(name(part), "/"), "/tree", path=above, at=visit.get("at")))
    here = el("span", name(_last(path))) if path.strip("/") else None
    return el("nav", *parts, here, aria_label="where this is")


async def _times(visit: Visit, page: str, path: str) -> Html:
    """When it is looked at: a slider of hours, some instants, and the snapshots."""
    at = visit.get("at")
    hours = _number(at[1:-1]) if at.startswith("-") and at.endswith("h") else 0
    kept = (await visit.ask("snapshots"))["snapshots"][:20]
    instants = [link("now", page, path=path), *(link(label, page, path=path, at=f"-{ago}") for ago, label in _AGO)]
    instants += [link(f"snapshot {each['name']}", page, path=path, at=f"snap.{each['name']}") for each in kept]
    slider = el(
        "form",
        _hidden(path=path, tab=visit.get("tab")),
        field("range", "ago", "hours ago", min(hours, _HOURS), min=0, max=_HOURS, step=1),
        el("button", "Look"),
        many(*(many(each, " ") for each in instants)),
    )
    return many(el("p", f"As it was: {at}", class_="warn") if at else None, slider)


def _asking(page: str, label: str, q: str = "", *more: Html) -> Html:
    return el("form", field("search", "q", "question", q), *more, el("button", label), action=page, role="search")


def _facts(told: dict[str, Any]) -> Html:
    pairs = []
    for key, value in told.items():
        pairs += [el("dt", name(key)), el("dd", _fact(value))]
    return el("dl", *pairs)


def _fact(value: object) -> Html:
    if isinstance(value, str) and value[10:11] == "T":
        with contextlib.suppress(ValueError):
            datetime.fromisoformat(value)
            return _time(value)
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return text(visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def _more(left: bool, command: str) -> Html | None:
    return el("p", f"There are more: {command} shows them.", class_="quiet") if left else None


def _changes(changes: list[dict[str, Any]], caption: str) -> Html:
    rows: list[list[object]] = [
        [
            _time(each["at"]),
            name(each["author"] or ""),
            each["status"],
            link(name(each["path"]), "/note", path=each["path"]) if each["status"] != "removed" else name(each["path"]),
        ]
        for each in changes
    ]
    return table(("when", "author", "what", "file"), rows, caption)


def _hidden(**given: object) -> Html:
    return many(*(el("input", type="hidden", name=key, value=value) for key, value in given.items() if value))


def _form(do: str, body: Html, **given: object) -> Html:
    """What changes something: ``page`` takes it where the service may write."""
    return el("form", _hidden(**given), body, method="post", action=f"/do/{do}")


def refused(error: AvmError) -> tuple[str, Html]:
    return "That did not work", el("p", visible_lines(error.reason), class_="warn", role="alert")
