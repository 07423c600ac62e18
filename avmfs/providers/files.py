"""The handler ``file``: files of this machine below one directory.

``path`` names one, with parameters, or ``root`` a directory that the rest of the path lies in (``*``). Nothing leads
out of the directory before the first parameter: every step is opened in the one before, and no symlink is followed.
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
from avmfs.providers.handler import BaseHandler, Context, Names, text_of

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileHandler(BaseHandler):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        whole = f"{text_of(config, 'root').rstrip('/')}/${{*}}" if "root" in config else text_of(config, "path")
        head = re.split(r"\$\{(?!file:)", whole, maxsplit=1)[0]
        self._root = os.path.expanduser(head.rpartition("/")[0] or "/")
        self._below = whole[head.rindex("/") + 1 if "/" in head else 0 :]
        if not os.path.isabs(self._root):
            raise Invalid("config.path, config.root: expected an absolute path")

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
        with self._directory(context) as (directory, name):
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
        if self._below != "${*}" and not re.fullmatch(r"\$\{\w+\}", self._below):
            return None
        inside = context.params.get("*", "")
        place = self._opened(context, os.O_RDONLY) if inside else self._start()
        with place as (descriptor, _, _), os.scandir(descriptor) as entries:
            return [
                each.name + ("/" if each.is_dir(follow_symlinks=False) else "")
                for each in entries
                if each.is_file(follow_symlinks=False) or (self._below == "${*}" and each.is_dir(follow_symlinks=False))
            ]

    @contextlib.contextmanager
    def _start(self) -> Iterator[tuple[int, int, str]]:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor, descriptor, ""
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _directory(self, context: Context) -> Iterator[tuple[int, str]]:
        """The directory that the file is in, and its name."""
        *steps, name = context.fill(self._below).split("/")
        if any(step in ("", ".", "..") or "\0" in step for step in (*steps, name)):
            raise NotFound("no such file")
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(self._start())[0]
            for step in steps:
                place = os.open(step, _STEP, dir_fd=place)
                stack.callback(os.close, place)
            yield place, name

    @contextlib.contextmanager
    def _opened(self, context: Context, flags: int) -> Iterator[tuple[int, int, str]]:
        with self._directory(context) as (directory, name):
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
