"""How a view is written down: for :help and :info, and in the documents (tests/references.py)."""

from __future__ import annotations

import inspect
from typing import Final

from avmfs.signatures import Parameter
from avmfs.views.registry import View

_ORDER: Final = ("file", "directory", "root")


def call(view: View) -> str:
    """``:list?limit=100&offset=0&q=&tag=``: the name with all parameters at their defaults, required ones ``…``."""
    if not view.parameters:
        return f":{view.name}"
    return f":{view.name}?" + "&".join(f"{each.name}={_default(each)}" for each in view.parameters)


def access(view: View) -> str:
    """``r``, ``w`` or ``rw``."""
    return ("r" if view.read is not None else "") + ("w" if view.write is not None else "")


def places(view: View) -> str:
    """``file``, ``directory``, ``root``; what is on directories is on the root, too."""
    return ", ".join(place for place in _ORDER if place in view.on)


def accepts(parameter: Parameter) -> str:
    """What a value may be, in a few words."""
    if parameter.choices:
        return " or ".join(parameter.choices)
    if parameter.type is bool:
        return "1 or 0"
    if parameter.low is not None and parameter.high is not None and parameter.high < 10**6:
        return f"{parameter.low:g} to {parameter.high:g}"
    return "text" if parameter.type is str else "a number"


def _default(parameter: Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "…"
    if parameter.default is None:
        return ""
    if isinstance(parameter.default, bool):
        return str(int(parameter.default))
    return f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)
