"""A view that takes its time, for bench_beside: with AVM_BENCH_SLOW=help:50, `:help` sleeps 50 ms before it answers.

Python imports this file by itself, before anything else, in every process whose PYTHONPATH names this folder: those of
one daemon of a benchmark. The product has no plug-ins yet, so an existing view is slowed down as it is registered.
Nothing of the product is imported here.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from typing import Any

REGISTRY = "avmfs.views.registry"
SLOW, _, MILLISECONDS = os.environ.get("AVM_BENCH_SLOW", "").partition(":")


class _AfterRegistry(importlib.abc.MetaPathFinder):
    """Finds the registry as the others do; when it has run, its decorator slows that one view down."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != REGISTRY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            register = module.view

            def view(name: str, *on: str, **about: Any) -> Any:
                if name != SLOW:
                    return register(name, *on, **about)
                return lambda function: register(name, *on, **about)(_slowed(function))

            module.view = view

        loader.exec_module = exec_module
        return spec


def _slowed(function: Any) -> Any:
    @functools.wraps(function)
    def sleeping(*arguments: Any, **parameters: Any) -> Any:
        time.sleep(float(MILLISECONDS) / 1000)
        return function(*arguments, **parameters)

    return sleeping


if SLOW:
    sys.meta_path.insert(0, _AfterRegistry())
