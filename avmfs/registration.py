"""Registries without a list of their modules: a decorator in a source file is all that it takes to be found.

Owns how the functions below a decorator are found: in the text of a package's modules, so that whoever wants only their
names (the path grammar, the help page) imports none of them. A decorator is found where it begins a line. Called by the
registries of views, door methods, store commands, tools and sub-commands, and by ``paths``.
"""

from __future__ import annotations

import os
from importlib import import_module


def declarations(package: str, decorator: str) -> list[tuple[str, list[str]]]:
    """Return (module, the first two arguments that are plain strings) of every use of ``@decorator`` in the package's
    own modules, by module and line; fewer of one that does not begin with such. Raise RuntimeError where there is no
    use, as in an installation without its sources."""
    folder = os.path.join(os.path.dirname(__file__), *package.split(".")[1:])
    mark = b"\n@" + decorator.encode()
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                pieces = file.read().split(mark)[1:]
            module = f"{package}.{name[:-3]}"
            found += [(module, _strings(piece)) for piece in pieces if piece[:1] in (b"(", b"\n")]
    if not found:
        raise RuntimeError(f"nothing in {folder} is marked @{decorator}: are the sources installed?")
    return found


def _strings(call: bytes) -> list[str]:
    before, *rest = call.split(b'"', 4)  # no regular expression: to compile it takes longer than all this
    if before.strip() != b"(" or len(rest) < 2:
        return []
    return [each.decode() for each in (rest[::2] if rest[1].strip() == b"," and len(rest) == 4 else rest[:1])][:2]


def load(package: str, decorator: str) -> None:
    """Import every module of the package in which something is marked ``@decorator``."""
    for module in dict.fromkeys(module for module, _ in declarations(package, decorator)):
        import_module(module)
