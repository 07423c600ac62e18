"""Resources: what a client may read and watch by URI.

Owns the mapping between URIs and paths. ``avm:/`` before a path is the path's URI (avm://memory/shared/note.md, also
with a view: note.md:meta); names are percent-encoded. Called by the server and by the watcher. Knows nothing of
sessions or transports.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from mcp_types import Resource, ResourceTemplate

from avmfs import paths
from avmfs.errors import Invalid, IsDirectory
from avmfs.mcp.content import Content, minute, read
from avmfs.mcp.registry import Call
from avmfs.text.escapes import escaped

LIMIT = 4_000_000  # bytes of one resource
LISTED = 50  # files that a list of resources names
PREFIX = "avm:/"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A resource of every agent; ``path`` is what is read."""

    uri: str
    path: str
    title: str
    description: str
    mail: bool = False  # it changes with mail, else with files


FIXED = (
    Fixed("avm://inbox", "/:inbox", "Inbox", "Messages, unread first, urgent first. Reading marks nothing.", mail=True),
    Fixed("avm://urgent", "/:urgent", "Urgent messages", "Urgent messages that are unread.", mail=True),
    Fixed("avm://recent", "/memory/:changes", "Recent changes", "Files changed, newest first, with author and time."),
    Fixed("avm://stats", "/:stats", "Statistics", "Counts of what you may see, as JSON."),
    Fixed("avm://help", "/:help", "Views", "Every view that a path can have, with its parameters."),
)
_BY_URI = {each.uri: each for each in FIXED}

TEMPLATES = (
    ResourceTemplate(
        uri_template="avm://memory/{+path}",
        name="memory",
        title="A file of the memory",
        description="shared/NAME, private/AGENT/NAME; a view of it behind a colon: shared/note.md:history. "
        "A directory gives its listing.",
    ),
    ResourceTemplate(
        uri_template="avm://recall/{query}",
        name="recall",
        title="What is relevant to a question",
        description="At most 4000 tokens, best first.",
        mime_type="text/markdown",
    ),
    ResourceTemplate(
        uri_template="avm://search/{query}",
        name="search",
        title="Paths that answer a question",
        description="With relevance and one line each.",
        mime_type="text/plain",
    ),
)

COMPLETED = TEMPLATES[0].uri_template
"""That whose ``path`` can be completed."""


def uri_of(path: str) -> str:
    """The URI of an absolute path."""
    return PREFIX + quote(path, safe="/:@-._~!$&'()*+,;=")


def path_of(uri: str) -> str:
    """The path that a URI names. Raises Invalid for one that is not ours."""
    if (fixed := _BY_URI.get(uri)) is not None:
        return fixed.path
    if not uri.startswith("avm://"):
        raise Invalid(f"{uri!r}: expected avm://...")
    kind, _, rest = uri.removeprefix("avm://").partition("/")
    text = unquote(rest, errors="surrogateescape")
    if kind in ("recall", "search") and text:
        return f"/:{kind}?q={quote(text, safe='', errors='surrogateescape')}"  # its slashes make no names
    if kind != "memory":
        raise Invalid(f"{uri!r}: no such resource")
    if "\0" in text or any(part == ".." for part in text.split("/")):
        raise Invalid(f"{uri!r}: a path has no '..' and no NUL")
    return f"/memory/{text}" if text else "/memory"


def read_uri(call: Call, uri: str) -> tuple[Content, str]:
    """What a resource holds, and its MIME type. Raises AvmError; Invalid for one that is too large."""
    path = path_of(uri)
    try:
        found = read(call, path, 0, LIMIT)
    except IsDirectory:
        path = f"{path.rstrip('/')}/:list"
        found = read(call, path, 0, LIMIT)
    if found.more:
        raise Invalid(f"more than {LIMIT} bytes: read it in pieces with avm_read", uri)
    return found, mime_type(path, found)


def mime_type(path: str, found: Content) -> str:
    if found.encoding == "base64":
        return mimetypes.guess_type(path)[0] or "application/octet-stream"
    name = path.rpartition("/")[2]
    view = paths.view_at(path)[1]
    if view is not None:
        return {"meta": "application/json", "stats": "application/json", "recall": "text/markdown"}.get(
            view.view, "text/plain"
        )
    guessed = mimetypes.guess_type(name)[0] or "text/plain"
    return "text/markdown" if name.endswith((".md", ".markdown")) else guessed


def listed(call: Call) -> list[Resource]:
    """The fixed ones, and the files that changed last."""
    fixed = [
        Resource(uri=each.uri, name=each.uri.removeprefix("avm://"), title=each.title, description=each.description)
        for each in FIXED
    ]
    recent = call.door("recent", path="/memory", limit=LISTED)["changes"]
    files = [
        Resource(
            uri=uri_of(each["path"]),
            name=escaped(each["path"]),
            description=f"changed {minute(each['at'])} by {each['author']}",
        )
        for each in recent
        if each["status"] != "removed" and "\ufffd" not in each["path"]
    ]
    return fixed + files


@dataclass(frozen=True)
class News:
    """What is another since: ``paths``; ``everything``: more than can be named; ``mail``: something else is unread."""

    paths: Sequence[str]
    everything: bool
    mail: bool

    @property
    def of_files(self) -> bool:
        return bool(self.paths) or self.everything


def touched(uri: str, news: News) -> bool:
    """Whether what a subscription names may be another since."""
    fixed = _BY_URI.get(uri)
    if fixed is not None and fixed.mail:
        return news.mail
    if fixed is not None or uri.startswith(("avm://recall/", "avm://search/")):
        return news.of_files
    if news.everything:
        return True
    parts, last = paths.view_at(path_of(uri))
    if last is not None:
        parts = (*parts[:-1], last.base) if last.base else parts[:-1]
    path = paths.text(paths.join(parts)).rstrip("/")
    return any(each == path or each.startswith(f"{path}/") or path.startswith(f"{each}/") for each in news.paths)
