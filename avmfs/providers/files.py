"""The handler ``file``: files of this machine below one directory.

``path`` names one, with parameters, or ``root`` a directory that the rest of the path lies in (``*``). Nothing leads
out of the directory before the first parameter, which configuration and environment say: every step is opened in the
one before, and no symlink is followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from avmfs.errors import Denied, Invalid, NotFound, TooBig
from avmfs.providers.handler import PLACE, BaseHandler, Context, Names, text_of

_RELATIVE = "config.path, config.root: expected an absolute path"
_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileHandler(BaseHandler):
    KEYS = ("root", "path")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._whole = f"{text_of(config, 'root').rstrip('/')}/${{*}}" if "root" in config else text_of(config, "path")
        if not os.path.isabs(os.path.expanduser(self._whole)) and not self._whole.startswith("${"):
            raise Invalid(_RELATIVE)

    def read(self, path: str, context: Context) -> bytes:
        with self._opened(context, os.O_RDONLY | os.O_NONBLOCK) as (descriptor, _, _):
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(path)
            if not stat.S_ISREG(found.st_mode):
                raise Denied("not a regular file")
            if found.st_size > context.max_bytes:
                raise TooBig(f"more than {context.max_bytes} bytes")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(context.max_bytes + 1)

    def write(self, path: str, data: bytes, context: Context) -> None:
        with self._directory(context, self._whole) as (directory, name):
            new = f".{secrets.token_hex(8)}.new"
            before = _file(name, directory)
            mode = 0o644 if before is None else 0o600  # until it is known whose it is
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
            try:
                with open(descriptor, "wb") as file:
                    if before is not None:
                        _open_as(before, descriptor)
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.unlink(new, dir_fd=directory)
                raise
            os.fsync(directory)

    def list(self, path: str, context: Context) -> Names | None:
        above, _, last = self._whole.rpartition("/")
        if not re.fullmatch(r"\$\{(\*|\w+)\}", last):
            return None
        if last == "${*}" and context.params.get("*"):
            above = self._whole
        with self._directory(context, f"{above}/x") as (place, _), os.scandir(place) as entries:
            return [
                each.name + ("/" if each.is_dir(follow_symlinks=False) else "")
                for each in entries
                if each.is_file(follow_symlinks=False) or (last == "${*}" and each.is_dir(follow_symlinks=False))
            ]

    @contextlib.contextmanager
    def _directory(self, context: Context, text: str) -> Iterator[tuple[int, str]]:
        """The directory that the file is in which a text of the configuration names, and the file's name."""
        at = next((each.start() for each in PLACE.finditer(text) if each[1] in context.params), len(text))
        root, slash, start = os.path.expanduser(context.fill(text[:at])).rpartition("/")
        if not os.path.isabs(root + slash):
            raise Invalid(_RELATIVE)
        *steps, name = (start + context.fill(text[at:])).split("/")
        if any(step in ("", ".", "..") or "\0" in step for step in (*steps, name)):
            raise NotFound("no such file")
        with contextlib.ExitStack() as stack:
            place = os.open(root + slash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, place)
            for step in steps:
                place = os.open(step, _STEP, dir_fd=place)
                stack.callback(os.close, place)
            yield place, name

    @contextlib.contextmanager
    def _opened(self, context: Context, flags: int) -> Iterator[tuple[int, int, str]]:
        with self._directory(context, self._whole) as (directory, name):
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                yield descriptor, directory, name
            finally:
                os.close(descriptor)


def _file(name: str, directory: int) -> os.stat_result | None:
    """The regular file of that name; None where there is none."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _open_as(before: os.stat_result, descriptor: int) -> None:
    """Whose the file was, and to whom it was open. Where it cannot be its owner's, another group is not the one that
    it was open to."""
    mode = before.st_mode & 0o777
    try:
        os.fchown(descriptor, before.st_uid, before.st_gid)
    except PermissionError:
        mode = mode & 0o707 | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)
