"""Adding a mount to mounts.yaml and taking one out, with all else in the file as it was: comments, order, style.

Owns the surgery on the text. YAML's own parser says where an entry stands; the new text is read again, and it is only
written if it means exactly what was asked for. The file is replaced as a whole, never left half written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avmfs_config import ConfigError, Mount, load_mounts

_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@+-]*")
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "~"}
_BY_HAND = "cannot be changed without risk to the rest of the file; please edit it"


class EditProblem(Exception):
    """The file stays as it was; `str()` is why."""


def add(path: Path, environ: Mapping[str, str], agent: str, mountpoint: str, options: Mapping[str, Any]) -> Mount:
    """Append a mount; a missing file is made. Raises EditProblem."""
    text = _read(path) if path.exists() else ""
    before = () if not _says_anything(text) else _load(path, environ)
    changed = _added(text, {"mountpoint": mountpoint, "agent_id": agent, **options})
    after = _write(path, environ, changed)
    if after[:-1] != before:
        raise EditProblem(f"{path.name}: {_BY_HAND}")
    _commit(path, environ, changed)
    return after[-1]


def remove(path: Path, environ: Mapping[str, str], agent: str) -> Mount:
    """Take an agent's mount out. Raises EditProblem, also when there is none."""
    before = _load(path, environ)
    places = [number for number, mount in enumerate(before) if mount.agent_id == agent]
    if not places:
        known = ", ".join(mount.agent_id for mount in before) or "nobody"
        raise EditProblem(f"{path.name}: no mount of {agent}; it has {known}")
    (number,) = places
    text = _removed(_read(path), number)
    if _write(path, environ, text) != (*before[:number], *before[number + 1 :]):
        raise EditProblem(f"{path.name}: {_BY_HAND}")
    _commit(path, environ, text)
    return before[number]


def _added(text: str, entry: Mapping[str, Any]) -> str:
    root, mounts = _composed(text)
    if root is None or mounts is None:
        start = text if not text or text.endswith("\n") else f"{text}\n"
        return f"{start}mounts:\n{_block(entry, 2)}"
    if not mounts.value and root.flow_style:
        return f"{text[: mounts.start_mark.index]}[{_flow(entry)}]{text[mounts.end_mark.index :]}"
    if not mounts.value:
        line_end = text.find("\n", mounts.end_mark.index)
        line_end = len(text) if line_end < 0 else line_end
        rest = text[mounts.end_mark.index : line_end]  # a comment
        return (
            f"{text[: mounts.start_mark.index].rstrip(' ')}{' ' * bool(rest.strip())}{rest.strip()}\n"
            f"{_block(entry, 2)}{text[line_end + 1 :]}"
        )
    if mounts.flow_style:
        close = mounts.end_mark.index - 1
        comma = "" if text[:close].rstrip().endswith(",") else ", "
        return f"{text[:close].rstrip()}{comma or ' '}{_flow(entry)}{text[close:]}"
    at = _line_end(text, _end(mounts.value[-1]))
    above = text[:at] if text[:at].endswith("\n") else f"{text[:at]}\n"
    return f"{above}{_block(entry, mounts.start_mark.column)}{text[at:]}"


def _removed(text: str, number: int) -> str:
    _, mounts = _composed(text)
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
    stop = _line_end(text, _end(item))
    if len(mounts.value) > 1:
        return text[:start] + text[stop:]
    key = text.rfind(":", 0, start)
    return f"{text[: key + 1]} []{text[key + 1 : start]}{text[stop:]}"


def _says_anything(text: str) -> bool:
    """More than comments."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _composed(text: str) -> tuple[Any, Any]:
    """The document's node, and that of `mounts`; None where there is none."""
    import yaml

    try:
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as e:  # it was read before: only surgery gone wrong comes here
        raise EditProblem(_BY_HAND) from e
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


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _block(entry: Mapping[str, Any], indent: int) -> str:
    lines = [f"{key}: {_scalar(value)}\n" for key, value in entry.items()]
    return "".join(f"{' ' * indent}{'- ' if number == 0 else '  '}{line}" for number, line in enumerate(lines))


def _flow(entry: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in entry.items()) + "}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT and not value[0].isdigit():
        return value
    return json.dumps(value, ensure_ascii=False)  # JSON's quotes are YAML's


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise EditProblem(f"{path}: {e}") from None


def _load(path: Path, environ: Mapping[str, str]) -> tuple[Mount, ...]:
    try:
        return load_mounts(path, environ)
    except ConfigError as e:
        raise EditProblem(str(e)) from None


def _write(path: Path, environ: Mapping[str, str], text: str) -> tuple[Mount, ...]:
    """What the text means, read from a file of the same name beside the real one. Raises EditProblem."""
    with _candidate(path, text) as new:
        return _load(new, environ)


def _commit(path: Path, environ: Mapping[str, str], text: str) -> None:
    """Put the text in place: what a link at ``path`` names is replaced, the link stays."""
    real = Path(os.path.realpath(path))
    with _candidate(real, text) as new:
        if real.exists():
            shutil.copymode(real, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, real)
    folder = os.open(real.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _candidate:
    """A new file in a directory of its own beside ``path``; gone afterwards unless it was moved."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def __enter__(self) -> Path:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=self._path.parent, prefix=".new-"))
        new = self._folder / self._path.name
        new.write_bytes(self._text.encode())
        return new

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._folder)
