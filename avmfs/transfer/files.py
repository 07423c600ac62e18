"""Files of this machine, as formats read and write them: an output that is whole or not there, and a folder's files."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from avmfs.errors import Exists, Invalid, NotFound
from avmfs.paths import NAME_MAX
from avmfs.transfer.record import Refusal

_SHOWN: Final = 20


def all_but(left: list[str], why: str) -> str:
    """What an error says that comes after an export of all but these."""
    names = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
    return f"all is exported but {names}: {why}"


def private(path: str, flags: int) -> int:
    """Opens what is written as a file of its owner alone, where it is new; for ``open``."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def make_folder(path: Path) -> None:
    """With those above it that are missing, for their owner alone: what is in them may be nobody else's to read."""
    missing = itertools.takewhile(lambda each: not each.is_dir(), (path, *path.parents))
    for each in reversed([*missing]):
        each.mkdir(0o700, exist_ok=True)


@contextlib.contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole; "-" is stdout. Raises OSError."""
    if path == Path("-"):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    new = path.parent / beside(path.name, f".{secrets.token_hex(8)}")  # another may write one at once

    def opener(name: str, flags: int) -> int:
        try:
            return private(name, flags)
        except OSError as e:
            e.filename = os.fspath(path)  # as it was asked for
            raise

    with open(new, "xb", opener=opener) as f:
        try:
            yield f
            f.flush()
            os.fsync(f.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)


def beside(name: str, end: str) -> str:
    """A hidden name for what stands beside a file for a while: with the file's own, or where that would be too long,
    with what it alone has."""
    hidden = f".{name}{end}"
    if len(os.fsencode(hidden)) > NAME_MAX:
        return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}{end}"
    return hidden


def new_folder(path: Path) -> Path:
    """A folder with nothing in it. Raises Exists where there is something, Invalid for stdout."""
    if path == Path("-"):
        raise Invalid("a folder cannot go to stdout: name one, or take tar, jsonl or git")
    make_folder(path)
    if any(path.iterdir()):
        raise Exists("the folder is not empty: name a new one (a folder is kept in step by avm sync)", os.fspath(path))
    return path


def files(folder: Path, *, hidden: bool = False) -> Iterator[tuple[str, Path] | Refusal]:
    """(path below it, path) of every regular file below a folder, in the order of their names. Names that begin with a
    dot are passed over unless ``hidden``; symlinks are refused, and what cannot be read below the folder."""
    if not folder.is_dir():
        raise NotFound("no such folder", os.fspath(folder))
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        below = []
        try:
            listed = sorted(here.iterdir())
        except OSError as e:
            if here == folder:
                raise
            if not isinstance(e, FileNotFoundError):
                yield Refusal(os.fspath(here.relative_to(folder)), str(e.strerror))
            continue
        for each in listed:
            if each.name.startswith(".") and not hidden:
                continue
            name = os.fspath(each.relative_to(folder))
            try:
                mode = each.lstat().st_mode
            except FileNotFoundError:
                continue  # it was renamed or removed since it was listed
            except OSError as e:
                yield Refusal(name, str(e.strerror))
                continue
            if stat.S_ISDIR(mode):
                below.append(each)
            elif stat.S_ISREG(mode):
                yield name, each
            else:
                yield Refusal(name, "neither a file nor a folder")
        waiting += reversed(below)


def document(path: Path, name: str) -> Any:
    """The JSON of a file, or of the file ``name`` in a folder or zip: as services hand out what one has there. Raises
    Invalid for what is none."""
    try:
        if path.is_dir():
            path = path / name
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as whole:
                inside = [each for each in whole.namelist() if each.rpartition("/")[2] == name]
                if not inside:
                    raise NotFound(f"no {name} in it", os.fspath(path))
                data = whole.read(inside[0])
        else:
            data = path.read_bytes()
        return json.loads(data.decode("utf-8-sig", "replace"))
    except FileNotFoundError as e:
        raise NotFound(path=e.filename or os.fspath(path)) from None
    except (ValueError, RecursionError, zipfile.BadZipFile) as e:
        raise Invalid(f"no JSON that can be read: {e}", os.fspath(path)) from None
