"""Adding a mount to mounts.yaml and taking one out, with all else in the file as it was: comments, order, style.

Owns the surgery on the text. YAML's own parser says where an entry stands; the new text is read again, and it is only
written if it means exactly what was asked for. The file is replaced as a whole, never left half written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avmfs_config import ConfigError, Mount, load_mounts
from avmfs_config.editing import BY_HAND, EditProblem, alone, candidate, commit, composed, line_end, read_text, scalar


def add(path: Path, environ: Mapping[str, str], agent: str, mountpoint: str, options: Mapping[str, Any]) -> Mount:
    """Append a mount; a missing file is made. Raises EditProblem."""
    with alone(path):
        text = read_text(path) if path.exists() else ""
        before = () if not _says_anything(text) else _load(path, environ)
        changed = _added(text, {"mountpoint": mountpoint, "agent_id": agent, **options})
        after = _write(path, environ, changed)
        if after[:-1] != before:
            raise EditProblem(f"{path.name}: {BY_HAND}")
        commit(path, changed)
    return after[-1]


def remove(path: Path, environ: Mapping[str, str], agent: str) -> Mount:
    """Take an agent's mount out. Raises EditProblem, also when there is none."""
    with alone(path):
        before = _load(path, environ)
        places = [number for number, mount in enumerate(before) if mount.agent_id == agent]
        if not places:
            known = ", ".join(mount.agent_id for mount in before) or "nobody"
            raise EditProblem(f"{path.name}: no mount of {agent}; it has {known}")
        (number,) = places
        text = _removed(read_text(path), number)
        if _write(path, environ, text) != (*before[:number], *before[number + 1 :]):
            raise EditProblem(f"{path.name}: {BY_HAND}")
        commit(path, text)
    return before[number]


def _added(text: str, entry: Mapping[str, Any]) -> str:
    root, mounts = _mounts_of(text)
    if root is None or mounts is None:
        start = text if not text or text.endswith("\n") else f"{text}\n"
        return f"{start}mounts:\n{_block(entry, 2)}"
    if not mounts.value and root.flow_style:
        return f"{text[: mounts.start_mark.index]}[{_flow(entry)}]{text[mounts.end_mark.index :]}"
    if not mounts.value:
        stop = text.find("\n", mounts.end_mark.index)
        stop = len(text) if stop < 0 else stop
        rest = text[mounts.end_mark.index : stop]  # a comment
        return (
            f"{text[: mounts.start_mark.index].rstrip(' ')}{' ' * bool(rest.strip())}{rest.strip()}\n"
            f"{_block(entry, 2)}{text[stop + 1 :]}"
        )
    if mounts.flow_style:
        close = mounts.end_mark.index - 1
        comma = "" if text[:close].rstrip().endswith(",") else ", "
        return f"{text[:close].rstrip()}{comma or ' '}{_flow(entry)}{text[close:]}"
    at = line_end(text, _end(mounts.value[-1]))
    above = text[:at] if text[:at].endswith("\n") else f"{text[:at]}\n"
    return f"{above}{_block(entry, mounts.start_mark.column)}{text[at:]}"


def _removed(text: str, number: int) -> str:
    _, mounts = _mounts_of(text)
    assert mounts is not None
    item = mounts.value[number]
    if mounts.flow_style:
        start, stop = item.start_mark.index, item.end_mark.index
        after = re.match(r"\s*,[ \t]*", text[stop:])
        if after:
            return text[:start] + text[stop + after.end() :]
        return re.sub(r",\s*\Z", "", text[:start]) + text[stop:]
    # From the "-" to the end of the entry's last line; comments above the next entry are the next one's.
    start = text.rfind("-", 0, item.start_mark.index)
    start = text.rfind("\n", 0, start) + 1
    stop = line_end(text, _end(item))
    if len(mounts.value) > 1:
        return text[:start] + text[stop:]
    key = text.rfind(":", 0, start)
    return f"{text[: key + 1]} []{text[key + 1 : start]}{text[stop:]}"


def _says_anything(text: str) -> bool:
    """More than comments."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _mounts_of(text: str) -> tuple[Any, Any]:
    """The document's node, and that of `mounts`; None where there is none."""
    root = composed(text)
    if root is None:
        return None, None
    for key, value in root.value:
        if key.value == "mounts":
            return root, value
    return root, None


def _end(node: Any) -> int:
    """Where the last scalar or bracket of a node ends: a block's own end mark is past the comments that follow."""
    if getattr(node, "flow_style", False) or isinstance(node.value, str):
        return int(node.end_mark.index)
    parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
    return max((_end(part) for part in parts), default=int(node.end_mark.index))


def _block(entry: Mapping[str, Any], indent: int) -> str:
    lines = [f"{key}: {scalar(value)}\n" for key, value in entry.items()]
    return "".join(f"{' ' * indent}{'- ' if number == 0 else '  '}{line}" for number, line in enumerate(lines))


def _flow(entry: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {scalar(value)}" for key, value in entry.items()) + "}"


def _load(path: Path, environ: Mapping[str, str]) -> tuple[Mount, ...]:
    try:
        return load_mounts(path, environ)
    except ConfigError as e:
        raise EditProblem(str(e)) from None


def _write(path: Path, environ: Mapping[str, str], text: str) -> tuple[Mount, ...]:
    """What the text means, read from a file of the same name beside the real one. Raises EditProblem."""
    with candidate(path, text) as new:
        return _load(new, environ)
