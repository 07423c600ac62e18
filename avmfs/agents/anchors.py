"""Anchors of the audit's chain: its head, noted again and again in a file beside the database.

Owns that file: a line ``SEQ HASH TIME`` each, mode 0600, appended to. Whoever cuts the tail of the log and of the
chain, or computes the chain anew over changed rows, has to find and change this file too, and every copy of it.
Called by whoever keeps the chain, and by the verification. Knows no store.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from avmfs.errors import Invalid
from avmfs.store.rows.hash_chain import Anchor

SUFFIX: Final = ".anchors"
THIN_BYTES: Final = 1024 * 1024
"""A file past this size loses every other line of its older half: any anchor vouches for all rows before it."""

_LONGEST: Final = 256  # bytes of a line
_LINE: Final = re.compile(r"(\d{1,18}) ([0-9a-f]{64})(?: (\S+))?")


def beside(database: Path) -> Path:
    """Where the anchors of a store are, unless the configuration says otherwise."""
    return database.with_name(database.name + SUFFIX)


def line(anchor: Anchor) -> str:
    at = datetime.fromtimestamp(anchor.at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{anchor.seq} {anchor.head.hex()} {at}\n"


def parse(text: str, where: str) -> Anchor:
    """From a line, or from ``SEQ:HASH`` as somebody types it. Raises Invalid."""
    found = _LINE.fullmatch(text.strip().replace(":", " ", 1) if " " not in text.strip() else text.strip())
    if found is None:
        raise Invalid("not an anchor: expected SEQ and 64 hexadecimal digits", where)
    at = 0
    if found[3]:
        try:
            at = int(datetime.fromisoformat(found[3]).timestamp()) * 10**9
        except ValueError:
            raise Invalid(f"not a time: {found[3]}", where) from None
    return Anchor(int(found[1]), bytes.fromhex(found[2]), at)


def read(path: Path) -> list[Anchor]:
    """All of a file, oldest first; none when there is no file. A last line that a crash has cut is left out, and so is
    one of which the disk lacks a part (zeros). Raises Invalid, naming the line, for anything else that is no anchor."""
    try:
        lines = path.read_text("ascii", "replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Invalid(f"the anchors cannot be read: {e.strerror}", os.fspath(path)) from e
    if lines and (not lines[-1].endswith("\n") or "\0" in lines[-1]):
        lines.pop()
    return [parse(each, f"{path}:{at}") for at, each in enumerate(lines, 1)]


def newest(path: Path) -> int:
    """The seq of the last line that is an anchor, of those that stand at the end; 0 when there is none. What else is
    wrong with the file, the verification says."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * _LONGEST))
            lines = file.read().decode("ascii", "replace").splitlines(keepends=True)
    except OSError:
        return 0
    found = [_LINE.fullmatch(each.strip()) for each in lines if each.endswith("\n")]
    return next((int(each[1]) for each in reversed(found) if each is not None), 0)


def append(path: Path, anchor: Anchor) -> None:
    """One more, durably. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _LONGEST, max(0, size - _LONGEST))
        last = end[end.rfind(b"\n", 0, -1) + 1 :]
        if not last.endswith(b"\n") or b"\0" in last:  # a crash has cut it
            size -= len(last)
            os.ftruncate(descriptor, size)
        os.write(descriptor, line(anchor).encode())
        try:
            os.fdatasync(descriptor)
        except OSError:  # told once: the next sync would not bring it to the disk
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if size > THIN_BYTES:
        _thin(path)


def _thin(path: Path) -> None:
    anchors = read(path)
    half = len(anchors) // 2
    kept = [*anchors[:half:2], *anchors[half:]]
    thinner = path.with_name(path.name + ".new")
    descriptor = os.open(thinner, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write("".join(map(line, kept)))
        out.flush()
        os.fsync(out.fileno())
    thinner.replace(path)
