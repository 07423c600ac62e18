"""HTML that is made of elements, so that what others wrote can be text and nothing else.

Owns escaping: a string becomes text or a quoted attribute unless it is ``Html``, which this module alone makes.
"""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import quote_plus

from avmfs.text.escapes import escaped

_EMPTY: Final = frozenset({"input", "link", "meta", "img", "br"})


class Html(str):
    """HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as text; what is ``Html`` as it is."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def name(value: str) -> Html:
    """The name of a file or agent, which says what it is in one line, whatever signs it has."""
    return Html(escape(escaped(value)))


def many(*parts: object) -> Html:
    return Html("".join(text(part) for part in parts if part is not None))


def el(kind: str, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None or False are left out; True has no value; a trailing _ is dropped."""
    told = ""
    for key, value in attributes.items():
        if value is True:
            told += f" {key.rstrip('_')}"
        elif value is not None and value is not False:
            told += f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
    return Html(f"<{kind}{told}>" if kind in _EMPTY else f"<{kind}{told}>{many(*children)}</{kind}>")


def table(head: tuple[str, ...], rows: list[list[object]], caption: str) -> Html:
    """A table with names of its columns; a sentence where it has no rows."""
    if not rows:
        return el("p", f"{caption}: none.", class_="none")
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", el("tr", *(el("th", each, scope="col") for each in head))),
            el("tbody", *(el("tr", *(el("td", cell) for cell in row)) for row in rows)),
        ),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def address(page: str, **query: object) -> str:
    """A page's URL. Bytes of a path that are no UTF-8 stay what they are."""
    given = [
        f"{key}={quote_plus(str(value), errors='surrogateescape')}"
        for key, value in query.items()
        if value is not None and value != ""
    ]
    return page + ("?" + "&".join(given) if given else "")


def link(label: object, page: str, *, current: bool = False, **query: object) -> Html:
    """``current``: to what is shown."""
    return el("a", label, href=address(page, **query), aria_current="page" if current else None)


def field(kind: str, key: str, label: str, value: object = "", **attributes: object) -> Html:
    """A labelled input."""
    return el("label", label, " ", el("input", type=kind, name=key, value=value, **attributes))
