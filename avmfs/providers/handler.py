"""What a source is asked by: the class that all handlers are written on, what each call is told, and their registry.

Called by ``fetching`` in the one process that fetches, and by programs that bring a handler of their own. Handlers come
from this package, from ``register_handler`` and from the entry points ``avmfs.handlers`` of installed packages. Knows
neither store nor tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Final

from avmfs_config import ConfigError, Provider

from avmfs.errors import Invalid, NotSupported

_BUILT_IN: Final = {
    "file": ("avmfs.providers.files", "FileHandler"),
    "http": ("avmfs.providers.web", "HttpHandler"),
    "script": ("avmfs.providers.script", "ScriptHandler"),
    "sqlite": ("avmfs.providers.database", "SqliteHandler"),
    "plugin": ("avmfs.providers.plugin", "PluginHandler"),
}
_OF_ONE_HOST: Final = ("file", "script", "sqlite", "plugin")
_TTL_S: Final = {"file": 1.0, "script": 10.0, "sqlite": 5.0}
DEFAULT_TTL_S: Final = 60.0
PLACE: Final = re.compile(r"\$\{(file:[^}]+|[A-Za-z_][A-Za-z0-9_]*|\*)\}")
_HIDDEN: Final = "***"
Names = list[str]
_registered: dict[str, type[BaseHandler]] = {}


@dataclass(frozen=True, slots=True)
class Context:
    """What one call is about. ``params`` are what the pattern found in the path; ``*`` the rest of it. The call has
    ``timeout_s`` and may bring ``max_bytes``. ``secrets``: what ``fill`` took from the environment and from files,
    which nobody is shown."""

    path: str
    params: Mapping[str, str]
    timeout_s: float
    max_bytes: int
    environ: Mapping[str, str]
    allowed: tuple[str, ...] = ()
    secrets: set[str] = field(default_factory=set)

    def fill(self, text: str, encode: Callable[[str], str] = lambda value: value) -> str:
        """``${NAME}`` in a text of the configuration: a parameter of the path, encoded for its place, else a variable
        of the environment; ``${file:/path}`` is the text of a file. What stands in a value is never filled again."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name in self.params:
                return encode(self.params[name])
            if name.startswith("file:"):
                try:
                    secret = Path(name[5:]).read_text("utf-8").strip()
                except (OSError, ValueError) as e:
                    raise Invalid(f"${{{name}}}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from None
            elif name in self.environ:
                secret = self.environ[name]
            else:
                raise Invalid(f"${{{name}}} is no parameter of the pattern, and not set in the environment")
            self.secrets.add(secret)
            return secret

        return PLACE.sub(value, text)

    def safe(self, said: str) -> str:
        """A text in which no secret stands."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) > 1:
                said = said.replace(secret, _HIDDEN)
        return said


class BaseHandler:
    """A source. One is made per provider, with its ``config``; threads may share it.

    ``read`` returns text or bytes; it raises FileNotFoundError for what the source does not have (None is the same),
    IsADirectoryError for what is a directory there, any other exception for a failure, whose text readers are shown.
    """

    KEYS: ClassVar[tuple[str, ...] | None] = None  # that ``config`` may have, of this very class; None: any

    def __init__(self, config: Mapping[str, Any]) -> None:
        if (known := vars(type(self)).get("KEYS")) is not None:  # not those of a class that somebody extends
            for key in sorted(config.keys() - {*known}, key=str):
                raise Invalid(f"config.{key}: unknown key; known keys: {', '.join(known)}")
        self.config = config

    def read(self, path: str, context: Context) -> str | bytes | None:
        raise NotSupported("this handler does not read")

    def write(self, path: str, data: bytes, context: Context) -> None:
        """Raises what refuses it: the writer gets the error."""
        raise NotSupported("this handler does not write")

    def list(self, path: str, context: Context) -> Names | None:
        """Names in a directory, those of directories with ``/`` at the end; None: they cannot be listed."""
        return None

    def search(self, path: str, query: str, context: Context) -> Names | None:
        """Paths below the directory that answer a question, best first; None: the source cannot be searched."""
        return None

    def close(self) -> None:
        """The program ends: what is under way is given up."""


def register_handler(name: str, handler: type[BaseHandler]) -> None:
    """Make a handler known to this program under a name for ``handler:`` in config.yaml. The daemon finds those of
    installed packages (entry points ``avmfs.handlers``)."""
    if not (isinstance(handler, type) and issubclass(handler, BaseHandler)):
        raise Invalid(f"handler {name!r}: expected a subclass of BaseHandler")
    _registered[name] = handler


def find_handler(name: str) -> type[BaseHandler]:
    """Raises Invalid for a name that nobody has, and whatever importing its package does."""
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        found: type[BaseHandler] = getattr(import_module(module), attribute)
        return found
    for entry in entry_points(group="avmfs.handlers", name=name):
        register_handler(name, entry.load())
        return _registered[name]
    raise Invalid(f"no handler {name!r}: there are {', '.join(sorted({*_BUILT_IN, *_registered}))}")


def check_providers(file: str, providers: Iterable[Provider]) -> None:
    """Raises ConfigError for the first one that no handler can be made of by what ``file`` says alone. Code that is not
    ours is not run for that: it may need what is not there yet, and each read tries again."""
    for index, each in enumerate(providers):
        try:
            if each.handler == "plugin":
                text_of(each.config, "plugin")
            elif each.handler not in _registered and not entry_points(group="avmfs.handlers", name=each.handler):
                find_handler(each.handler)(each.config)
        except Invalid as e:
            raise unusable(file, index, e.reason) from None


def unusable(file: str, index: int, reason: str) -> ConfigError:
    """The error about a provider, with the key of its ``config`` that the reason begins with, or else its handler's."""
    key, _, why = reason.partition(": ")
    own = key.startswith("config.")
    return ConfigError(file, f"providers[{index}].{key if own else 'handler'}", why if own else reason)


def ttl_of(handler: str, ttl: float | None) -> float:
    """Seconds for which an answer holds."""
    return _TTL_S.get(handler, DEFAULT_TTL_S) if ttl is None else ttl


def apart(providers: Iterable[Provider]) -> Iterator[str]:
    """Of each whose source the hosts of one store may have otherwise, what to do about it."""
    for each in providers:
        if each.handler in _OF_ONE_HOST:
            yield (
                f"provider {each.pattern}: what one host fetches all hosts show, and what it does not find goes on all:"
                f" the source of {each.handler} has to be the same on each"
            )


def text_of(config: Mapping[str, Any], key: str) -> str:
    """A text that a handler cannot do without. Raises Invalid."""
    if not isinstance(found := config.get(key), str) or not found:
        raise Invalid(f"config.{key}: expected a text")
    return found


def texts_of(config: Mapping[str, Any], key: str) -> dict[str, str]:
    """Texts by name, of which there may be none. Raises Invalid."""
    found = config.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise Invalid(f"config.{key}: expected texts by name")
    return found
