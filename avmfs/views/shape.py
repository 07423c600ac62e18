"""What the texts of several views have in common.

Owns the shape of lists, sizes, JSON and times in views (docs/FORMATS.md). Pure functions but for ``whole``, which
bounds what a view takes into memory. Knows no single view.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avmfs import trust
from avmfs.errors import TooBig
from avmfs.node import Node
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows.kept_versions import WHOLE_MAX
from avmfs.text.escapes import json_safe


def lines(items: Iterable[str], nothing: str) -> str:
    """One item a line; without any, ``(nothing)``."""
    text = "".join(f"{item}\n" for item in items)
    return text or f"({nothing})\n"


def size(count: int) -> str:
    """``34 bytes``, ``1.2 KiB``."""
    if count < 1024:
        return f"{count} byte" + ("" if count == 1 else "s")
    units = ["KiB", "MiB", "GiB", "TiB"]
    value = count / 1024
    while value >= 1023.95 and len(units) > 1:  # would be shown as 1024.0
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}"


def json_text(value: dict[str, Any]) -> str:
    """Indented, keys sorted, a line end at the end."""
    return json_safe(value, indent=2) + "\n"


def parts(path: bytes) -> tuple[bytes, ...]:
    """Components of a path that the store gave: no name in it is a view's, whatever it looks like."""
    return tuple(part for part in path.split(b"/") if part)


def heading(reader: Reader, node: Node) -> str:
    """A line above what quotes a file that is not to be trusted, else nothing."""
    return trust.heading(reader.visible.untrusted(reader.trusted_as(node)))


def whole(reader: Reader, node: Node) -> bytes:
    """All bytes of a file. Raises TooBig past WHOLE_MAX: a view is rendered in memory, a larger file is read as one."""
    if node.size > WHOLE_MAX:
        raise TooBig(f"{size(node.size)} are too much for a view; read the file itself")
    return reader.read(node.id, 0, node.size)
