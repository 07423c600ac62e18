"""The handler ``plugin``: a Python module of the operator's.

``plugin`` names it, ``my_plugins.talib`` or ``my_plugins.talib:Talib``: a subclass of BaseHandler in it, or the
module's own functions ``read(path, context)``, ``write``, ``list``, ``search``. It runs where all is fetched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from avmfs.errors import Invalid, NotSupported
from avmfs.providers.handler import BaseHandler, Context, Names, text_of


class PluginHandler(BaseHandler):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        name, _, attribute = text_of(config, "plugin").partition(":")
        if "path" in config and config["path"] not in sys.path:
            sys.path.append(text_of(config, "path"))
        try:
            module = import_module(name)
        except Exception as e:  # of a module that is not ours: whatever it is, its provider says so
            raise Invalid(f"plugin {name}: {type(e).__name__}: {e}") from None
        own = [
            each
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, BaseHandler) and each.__module__ == module.__name__
        ]
        made = getattr(module, attribute, None) if attribute else own[0] if len(own) == 1 else None
        if attribute and not (isinstance(made, type) and issubclass(made, BaseHandler)):
            raise Invalid(f"plugin {name}: {attribute} is no subclass of BaseHandler")
        self._source: Any = module if made is None else made(config)
        if not callable(getattr(self._source, "read", None)):
            raise Invalid(
                f"plugin {name}: it has neither one subclass of BaseHandler nor a function read(path, context)"
            )

    def read(self, path: str, context: Context) -> str | bytes | None:
        answer: str | bytes | None = self._source.read(path, context)
        return answer

    def write(self, path: str, data: bytes, context: Context) -> None:
        part = getattr(self._source, "write", None)
        if part is None:
            raise NotSupported("this plugin does not write")
        part(path, data, context)

    def list(self, path: str, context: Context) -> Names | None:
        part = getattr(self._source, "list", None)
        names: Names | None = None if part is None else part(path, context)
        return names

    def search(self, path: str, query: str, context: Context) -> Names | None:
        part = getattr(self._source, "search", None)
        names: Names | None = None if part is None else part(path, query, context)
        return names
