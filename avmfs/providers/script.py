"""The handler ``script``: what a program of this machine writes to its standard output.

``command`` is split like a shell would and run without one: each word stays one argument, whatever a parameter has in
it. The program gets a small environment (and ``env``), no descriptor of ours and no input; it and all of its process
group end with the time or size limit. See agents/hooks.py.
"""

from __future__ import annotations

import itertools
import re
import selectors
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from avmfs.agents import hooks
from avmfs.errors import Invalid, StoreFailed, TimedOut, TooBig
from avmfs.providers.handler import BaseHandler, Context, Names, texts_of

_CODE: Final = re.compile(r"-[a-zA-Z]*[ce]|--eval|--command")  # what follows is a program's text
_PARAMETER: Final = re.compile(r"\$\{(?!file:)")


class ScriptHandler(BaseHandler):
    KEYS = ("command", "write", "list", "search", "env")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._command = _words(config.get("command"), "config.command")
        self._list = _words(config["list"], "config.list") if "list" in config else None
        self._search = _words(config["search"], "config.search") if "search" in config else None
        self._env = texts_of(config, "env")
        self._running: set[subprocess.Popen[bytes]] = set()

    def read(self, path: str, context: Context) -> bytes:
        return self._run(self._command, b"", context)

    def write(self, path: str, data: bytes, context: Context) -> None:
        if "write" not in self.config:
            raise Invalid("config.write: the command that takes what is written is missing")
        self._run(_words(self.config["write"], "config.write"), data, context)

    def list(self, path: str, context: Context) -> Names | None:
        if self._list is None:
            return None
        return self._run(self._list, b"", context).decode("utf-8", "surrogateescape").splitlines()

    def search(self, path: str, query: str, context: Context) -> Names | None:
        if self._search is None:
            return None
        asked = replace(context, params={**context.params, "query": query})
        return self._run(self._search, b"", asked).decode("utf-8", "surrogateescape").splitlines()

    def close(self) -> None:
        for child in [*self._running]:
            hooks.end(child)

    def _run(self, words: Names, given: bytes, context: Context) -> bytes:
        command = [_argument(word, context) for word in words]
        program = shutil.which(command[0], path=hooks.PATH)
        if program is None:
            raise StoreFailed(f"{command[0]}: no such program in {hooks.PATH}")
        environ = {"PATH": hooks.PATH, "HOME": "/", "LANG": "C.UTF-8"}
        environ |= {name: context.fill(value).replace("\0", "") for name, value in self._env.items()}
        child = hooks.start([program, *command[1:]], environ, context.timeout_s, subprocess.PIPE)
        self._running.add(child)
        try:
            out, said = _talk(child, given, context)
            status = child.wait()
        finally:
            self._running.discard(child)
            hooks.end(child)
        if status != 0:
            shown = context.safe(said.decode("utf-8", "replace"))  # before it is cut, or half a secret would be left
            if len(said) >= hooks.SAID_BYTES * 4:  # cut already, at its end
                shown = shown[: -max([1, *map(len, context.secrets)])]
            raise StoreFailed(f"{command[0]}: {hooks.ended(status, shown.encode())}")
        return out


def _words(command: Any, key: str) -> list[str]:
    """Raises Invalid for what is no command, and for a parameter in the text of a shell or another interpreter."""
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as e:
        raise Invalid(f"{key}: {e}") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise Invalid(f"{key}: expected a command")
    for option, word in itertools.pairwise(words):
        if _CODE.fullmatch(option) and _PARAMETER.search(word):
            raise Invalid(f"{key}: what follows {option} is run as a program: pass ${{…}} as an argument behind it")
    return words


def _argument(word: str, context: Context) -> str:
    made = context.fill(word)
    if "\0" in made:
        raise Invalid("an argument cannot have a NUL")
    if made.startswith("-") and not word.startswith("-"):
        raise Invalid("a parameter cannot become an option: it begins with '-'")
    return made


def _talk(child: subprocess.Popen[bytes], given: bytes, context: Context) -> tuple[bytes, bytes]:
    """What it writes until it closes both streams. Raises TimedOut, TooBig."""
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    deadline = time.monotonic() + context.timeout_s
    taken: dict[Any, bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in taken:
            waiting.register(stream, selectors.EVENT_READ)
        if given:
            waiting.register(child.stdin, selectors.EVENT_WRITE)
        else:
            child.stdin.close()
        while waiting.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise TimedOut(f"not done within {context.timeout_s:g} s")
            for key, _ in waiting.select(left):
                stream = key.fileobj
                if stream is child.stdin:
                    try:
                        given = given[child.stdin.raw.write(given[:4096]) or 0 :]  # type: ignore[attr-defined]
                    except BrokenPipeError:
                        given = b""
                    if not given:
                        waiting.unregister(stream)
                        child.stdin.close()
                    continue
                piece = stream.read1(65536)  # type: ignore[union-attr]
                if not piece:
                    waiting.unregister(stream)
                elif stream is child.stdout or len(taken[stream]) < hooks.SAID_BYTES * 4:
                    taken[stream] += piece
            if len(taken[child.stdout]) > context.max_bytes:
                raise TooBig(f"more than {context.max_bytes} bytes")
    return bytes(taken[child.stdout]), bytes(taken[child.stderr])
