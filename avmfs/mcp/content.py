"""Bytes of the memory as what JSON can carry.

Owns how a file becomes text or base64, and cleaning text of what is no Unicode: names and contents may hold any
bytes, a JSON string may not.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Literal

from pydantic import Field

from avmfs import paths
from avmfs.agents.mail import iso
from avmfs.errors import Invalid, NotDirectory, NotFound
from avmfs.mcp.registry import Call, Result

UNREADABLE: Final = (NotFound, NotDirectory, Invalid)
"""Of a directory that was just listed: it has gone since, or its name is shown as another one (``clean``)."""
_PLACES: Final = ((), (paths.TELL,))


class Content(Result):
    path: str
    content: str
    encoding: Literal["utf-8", "base64"] = Field(description="base64 for what is no text.")
    offset: int = Field(description="Of the first byte.")
    next_offset: int = Field(description="Where to read on.")
    more: bool = Field(description="There is more after this.")
    untrusted: str = Field(description="Where it came from, if that is not to be trusted.")


def read(call: Call, path: str, offset: int, limit: int) -> Content:
    """Up to ``limit`` bytes of a file or view from ``offset``; a character is not cut in two. Raises AvmError;
    Invalid for what claims (a client may ask again, and read on its own account) or waits."""
    view = paths.view_at(path)[1]
    if view is not None and view.view == "next":
        raise Invalid("reading it claims a file: avm_write 10m to FILE:claim does, for one that you choose", path)
    if view is not None and "wait" in view.parameters():
        raise Invalid("it would keep all other tools waiting: avm_inbox with wait does not", path)
    found = call.door("read", path=path, offset=offset, limit=limit, banner=False, whole=False)
    data, more = bytes(found["data"]), bool(found["more"])
    text, used, encoding = decoded(data, more)
    return Content(
        path=path,
        content=text,
        encoding=encoding,
        offset=offset,
        next_offset=offset + used,
        more=more or used < len(data),
        untrusted=found["untrusted"],
    )


def listed(call: Call, path: str, **how: Any) -> dict[str, Any]:
    """The door's ``listing`` of a directory. The root and /tell, of which the store has a part or nothing, are told as
    a mount shows them."""
    if any(how.get(name) is not None for name in ("q", "tag")) or paths.split(paths.raw(path)) not in _PLACES:
        return dict(call.door("listing", path=path, **how))
    found = [
        {"path": each["path"], "kind": each["kind"], "size": each["size"], "modified": iso(each["mtime"])}
        | {"handle": None, "line": ""}
        for each in call.door("entries", path=path)
    ]
    first = how.get("offset", 0)
    return {"entries": found[first : first + how["limit"]], "total": len(found)}


def minute(at: str) -> str:
    """The door's time of something, as people read it."""
    return f"{at[:16]}Z"


def decoded(data: bytes, more: bool) -> tuple[str, int, Literal["utf-8", "base64"]]:
    """(text, bytes that are in it, how). With ``more`` to come, a character whose end is missing is left for then."""
    try:
        return data.decode("utf-8"), len(data), "utf-8"
    except UnicodeDecodeError as e:
        if more and e.reason == "unexpected end of data" and e.start > 0:
            return data[: e.start].decode("utf-8"), e.start, "utf-8"
    return base64.b64encode(data).decode("ascii"), len(data), "base64"


def clean(value: Any) -> Any:
    """The same with every text valid Unicode: bytes of a name that are none show as U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {clean(key): clean(each) for key, each in value.items()}
    return [clean(each) for each in value] if isinstance(value, (list, tuple)) else value
