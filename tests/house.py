"""The figures of the code itself: ``python -m tests.house``. Nothing is imported of the product, all is read as text.

Prints the rooms of the store (``ROOMS`` of test_layers.py) with what each may import, and of all that is shipped how
long files and functions are, and how many there are of what there should be few of.
"""

from __future__ import annotations

import ast
import re
from statistics import median

from tests.unit.test_layers import ROOMS, SOURCES, modules, room, tree

FEW = {
    "fmt: skip": r"# fmt: skip",
    "type: ignore": r"# type: ignore",
    "accept loops of their own (listener.py is one)": r", _ = \S+\.accept\(\)",
    "bounded caches (lru.py)": r"\b(?:LRU|FIFO)(?:\[.*?\])?\(",
    "functools caches": r"^\s*@(?:functools\.)?(?:lru_)?cache\b",
    "registries (registration.load, .declarations)": r"(?<!def )\b(?:load|declarations)\((?:__name__|\")",
    "uses of the two binders (signatures.py)": r"(?<!class )\b(?:Arguments|Query)\(",
}


def lengths() -> list[tuple[int, str]]:
    """(lines, place) of every function."""
    found = []
    for name in modules():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(((node.end_lineno or 0) - node.lineno + 1, f"{name}.{node.name}"))
    return sorted(found)


def main() -> None:
    texts = {name: path.read_text("utf-8") for name, path in modules().items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    print(f"{'room of the store':<20}{'files':>6}{'lines':>7}  may import")
    for each, may in ROOMS.items():
        own = [name for name in texts if name.startswith("avmfs.store.") and room(name) == each]
        print(f"{each:<20}{len(own):>6}{sum(lines[name] for name in own):>7}  {' '.join(sorted(may)) or '-'}")
    functions = lengths()
    print(f"\n{' + '.join(source.name for source in SOURCES)}: {len(texts)} files, {sum(lines.values()):,} lines")
    print(f"median file {median(lines.values()):g} lines, longest {max(lines.values())}")
    print(f"median function {median(each for each, _ in functions):g} lines, the longest:")
    for count, place in functions[:-6:-1]:
        print(f"{count:>5}  {place}")
    print()
    for what, pattern in FEW.items():
        found = [name for name, text in texts.items() for _ in re.findall(pattern, text, re.MULTILINE)]
        print(f"{what:<50}{len(found):>4}  in {len(set(found))} files")


if __name__ == "__main__":
    main()
