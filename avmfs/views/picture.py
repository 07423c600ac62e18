"""A picture of links, drawn by Graphviz' `dot` where it is installed.

Owns the colours, what is marked and how a name becomes a label. Called by `avm graph` and the page for people, with
what the door's method ``graph`` gives: no more is drawn than the asker sees. Runs one process with limits; never in a
mount's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final

from avmfs.errors import Busy, NotSupported
from avmfs.text.escapes import escaped

DRAWING_S: Final = 20.0
NO_DOT: Final = "Graphviz draws it, and its `dot` is not installed: apt-get install graphviz, or brew install graphviz"
_DISPUTED, _OLD, _INK, _LINE = "#c0392b", "#8a8f98", "#2f6f9f", "#7d8590"
_LABEL: Final = 40  # characters of a name
_PAGE: Final = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Links</title>
<style>
  body {{ margin: 1rem; font: 15px/1.5 system-ui, sans-serif; background: Canvas; color: CanvasText }}
  :root {{ color-scheme: light dark }}
  svg {{ max-width: 100%; height: auto }}
</style>
{svg}
</html>
"""


def available() -> bool:
    return shutil.which("dot") is not None


def dot(found: Mapping[str, Any], link: Callable[[str], str] | None = None) -> str:
    """DOT of {"path", "nodes", "edges"}: contradictions red, what is superseded grey and dashed. ``link`` gives the URL
    of a node."""
    old = {each["target"] for each in found["edges"] if each["type"] == "supersedes"}
    disputed = {
        name for each in found["edges"] if each["type"] == "contradicts" for name in (each["source"], each["target"])
    }
    top = found["path"].rstrip("/") + "/"
    lines = []
    for name in found["nodes"]:
        colour = _OLD if name in old else _DISPUTED if name in disputed else _INK
        label = escaped(name.removeprefix(top))
        label = label if len(label) <= _LABEL else f"…{label[1 - _LABEL :]}"
        style = ', style="rounded,dashed"' if name in old else ""
        url = "" if link is None else f", URL={_quoted(link(name))}"
        lines.append(
            f'{_quoted(name)} [label={_quoted(label)}, tooltip={_quoted(escaped(name))}, color="{colour}",'
            f' fontcolor="{colour}"{style}{url}];'
        )
    for each in found["edges"]:
        kind = escaped(each["type"])
        colour = _DISPUTED if kind == "contradicts" else _OLD if kind == "supersedes" else _LINE
        label = "" if kind == "related" else kind
        lines.append(
            f"{_quoted(each['source'])} -> {_quoted(each['target'])}"
            f' [label={_quoted(label)}, color="{colour}", fontcolor="{colour}"];'
        )
    looks = (
        'rankdir=LR; bgcolor="transparent"; nodesep=0.15; ranksep=0.6;'
        ' node [shape=box, style=rounded, fontname="Helvetica", fontsize=11, height=0.3, margin="0.12,0.05"];'
        ' edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];'
    )
    return "\n".join(["digraph memory {", looks, *lines, "}"]) + "\n"


def svg(found: Mapping[str, Any], link: Callable[[str], str] | None = None) -> str:
    """An <svg> element. Raises NotSupported without `dot`, Busy where it takes too long."""
    text = _drawn(dot(found, link), "svg").decode()
    return text[text.index("<svg") :]


def png(found: Mapping[str, Any]) -> bytes:
    return _drawn(dot(found), "png")


def page(found: Mapping[str, Any]) -> str:
    """One file of HTML that needs no network."""
    return _PAGE.format(svg=svg(found))


def _drawn(text: str, form: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise NotSupported(NO_DOT)
    try:
        done = subprocess.run(
            [program, f"-T{form}"], input=text.encode(), capture_output=True, timeout=DRAWING_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise Busy(
            f"dot needs more than {DRAWING_S:g} s for so many links: name a directory below, or a --limit"
        ) from None
    except subprocess.CalledProcessError as e:
        raise NotSupported(f"dot: {escaped(e.stderr.decode(errors='replace').strip()[:200])}") from None
    return done.stdout


def _quoted(name: str) -> str:
    """A string of DOT; what is no text (half of a surrogate pair) and what XML lacks is U+FFFD."""
    safe = re.sub("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", name)
    return json.dumps(safe, ensure_ascii=False)
