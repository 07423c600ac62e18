"""Times that a caller writes, as whoever is asked takes them: in the caller's zone.

Owns which arguments of methods are such times. Called by the doors to a daemon, whose zone may be another; light, as
they are. One that names no zone gets the offset that this process's zone has then.
"""

from __future__ import annotations

import re
from typing import Any, Final

_PLACES: Final = ("path", "under", "source")
_DATED: Final = re.compile(r"/*@[0-9]{4}-")
_SINCE: Final = re.compile(r"([?&:]since=)([^&]*)")


def told(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with their times as every zone reads them."""
    own: dict[str, Any] = {}
    for name in ("at", "before", "older", "newer", "since"):
        if isinstance(text := arguments.get(name), str) and not (name == "since" and text.isdecimal()):  # a seq
            own[name] = _zoned(text)
    for name in _PLACES:
        if isinstance(path := arguments.get(name), str):
            own[name] = _place(path)
    if isinstance(targets := arguments.get("targets"), list):
        own["targets"] = [_place(each) if isinstance(each, str) else each for each in targets]
    return {**arguments, **own} if own else arguments


def _zoned(text: str) -> str:
    """What is no time, or has an offset, as it is: it is refused, or means the same, wherever it comes to."""
    from datetime import datetime  # which most calls do without

    try:
        when = datetime.fromisoformat(text)
        return text if when.tzinfo is not None else when.astimezone().isoformat()
    except (ValueError, OverflowError):
        return text


def _place(path: str) -> str:
    """``/@2026-03-01T12:00/x`` and ``/:changes?since=2026-03-01T12:00``."""
    if "since=" not in path and not _DATED.match(path):
        return path
    from avmfs import paths  # which reads the names of all views

    moment, _ = paths.split_moment(paths.raw(path))
    if moment is not None:
        path = path.replace(moment, _zoned(moment), 1)
    name = paths.split(paths.raw(path))[-1:]
    if name and (view := paths.parse_view(name[0])) is not None and view.view == "changes":
        end = paths.text(name[0])
        path = path.removesuffix(end) + _SINCE.sub(_since, end)
    return path


def _since(found: re.Match[str]) -> str:
    from urllib.parse import unquote

    text = unquote(found[2])
    return found[0] if text.isdecimal() or (own := _zoned(text)) == text else found[1] + own
