"""``AvmStore``: a LangGraph store whose items are files in one agent's memory.

Owns what an item is: ``("users", "u1")`` and key ``prefs`` are ``ROOT/users/u1/prefs.json``, which holds the value, so
that shells, other agents and recalls find it too. Called by programs that have LangGraph (``avmfs[langgraph]``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from avmfs.adapters import as_json, file_name, files_below, name_of, root_of
from avmfs.avm import AVM
from avmfs.errors import Invalid

log = logging.getLogger(__name__)

_MOST: Final = 1000  # hits of one search
_SUFFIX: Final = ".json"
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class AvmStore(BaseStore):
    """A store for ``graph.compile(store=…)``, in the memory of the agent of ``avm``.

    ``root`` is a directory by its path below /memory: /memory/private/AGENT/langgraph by default; below /memory/shared
    all agents have one store. Every value is indexed as a whole, whatever ``index`` says; a search with a query leaves
    out what is not relevant and has the relevance (0 to 1) as score; one without goes from the newest to the oldest.
    Operations of a batch are done in their order. Raises what ``AVM`` raises.
    """

    supports_ttl = True

    def __init__(self, avm: AVM, root: str | None = None) -> None:
        self._avm = avm
        self._root = root_of(avm, root, "langgraph")

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        return [self._done(op) for op in ops]

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        return await asyncio.to_thread(self.batch, list(ops))

    def _done(self, op: Any) -> Any:
        validate_op_namespace(op)
        match op:
            case GetOp():
                return self._item(self._path(op.namespace, op.key), op.refresh_ttl)
            case PutOp():
                return self._put(self._path(op.namespace, op.key), op.value, op.ttl)
            case SearchOp():
                return [self._renewed(item, op) for item in islice(self._found(op), op.offset, op.offset + op.limit)]
            case ListNamespacesOp():
                return self._namespaces(op)
        raise Invalid(f"{type(op).__name__}: no operation of a store")

    def _path(self, namespace: tuple[str, ...], key: str) -> str:
        return f"{self._folder(namespace)}/{file_name(key)}{_SUFFIX}"

    def _folder(self, namespace: tuple[str, ...]) -> str:
        return "/".join([self._root, *map(file_name, namespace)])

    def _put(self, path: str, value: dict[str, Any] | None, ttl: float | None) -> None:
        if value is None:
            with contextlib.suppress(FileNotFoundError):
                self._avm.delete(path)
            return
        self._avm.write(path, as_json(value, indent=2) + "\n")
        with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
            if ttl is not None or self._meta(path).get("ttl_minutes") is not None:
                self._avm.write(f"{path}:meta", json.dumps({"ttl": _lasting(ttl), "ttl_minutes": ttl}))

    def _meta(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._avm.read(f"{path}:meta"))
        return found

    def _item(self, path: str, refresh: bool, **score: float | None) -> Any:
        """None when there is none; a SearchItem where a score is given. Raises Invalid for a file that is no JSON."""
        try:
            text, meta = self._avm.read(path), self._meta(path)
            if refresh and (minutes := meta.get("ttl_minutes")) is not None:
                self._avm.write(f"{path}:ttl", _lasting(minutes))
        except FileNotFoundError:  # also one that has ended, or was deleted, meanwhile
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise Invalid(f"not JSON: {e}", path) from None
        *namespace, key = map(name_of, path.removeprefix(f"{self._root}/").removesuffix(_SUFFIX).split("/"))
        parts = {"value": value, "key": key, "namespace": (*namespace,)}
        times = {"created_at": meta["created"], "updated_at": meta["updated"]}
        return (SearchItem if score else Item)(**parts, **times, **score)

    def _found(self, op: Any) -> Iterator[Any]:
        for path, score in self._scored(op, self._folder(op.namespace_prefix)):
            try:
                item = self._item(path, False, score=score)
            except Invalid as e:
                log.warning("a file beside the items: %s", e)
                continue
            if item is not None and _agrees(item.value, op.filter or {}):
                yield item

    def _scored(self, op: Any, under: str) -> Iterator[tuple[str, float | None]]:
        """Best first, and more for as long as somebody takes them: among the hits are files that are no items."""
        if not op.query:
            newest = sorted(self._files(under), key=lambda each: (-each["mtime"], each["path"]))
            yield from ((each["path"], None) for each in newest)
            return
        told: set[str] = set()
        limit = _MOST if op.filter else min(_MOST, op.offset + op.limit)
        while True:
            try:
                hits = self._avm.search(op.query, limit=limit, under=under)
            except FileNotFoundError:
                return
            for hit in hits:
                if hit["path"].endswith(_SUFFIX) and hit["path"] not in told:
                    told.add(hit["path"])
                    yield hit["path"], hit["relevance"]
            if len(hits) < limit or limit == _MOST:
                return
            limit = min(_MOST, 8 * limit)

    def _renewed(self, item: Any, op: Any) -> Any:
        """What is handed over lives on, not what was looked at."""
        if op.refresh_ttl:
            self._item(self._path(item.namespace, item.key), True)
        return item

    def _files(self, folder: str) -> Iterator[dict[str, Any]]:
        return files_below(self._avm, folder, lambda name: name.endswith(_SUFFIX))

    def _namespaces(self, op: Any) -> list[tuple[str, ...]]:
        below = (each["path"].removeprefix(f"{self._root}/").split("/")[:-1] for each in self._files(self._root))
        found = {tuple(map(name_of, each)) for each in below}
        kept = (each for each in found if all(_matches(each, condition) for condition in op.match_conditions or ()))
        return sorted({each[: op.max_depth] for each in kept})[op.offset : op.offset + op.limit]


def _lasting(minutes: float | None) -> str:
    return "never" if minutes is None else f"{max(1, round(minutes * 60))}s"


def _matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    wanted = condition.path
    if len(namespace) < len(wanted):
        return False
    part = namespace[: len(wanted)] if condition.match_type == "prefix" else namespace[len(namespace) - len(wanted) :]
    return all(said in ("*", label) for label, said in zip(part, wanted, strict=True))


def _agrees(value: Any, wanted: Any) -> bool:
    """As LangGraph's own stores filter: equal, by $ operators, nested. Raises Invalid for an unknown operator."""
    if not isinstance(wanted, dict):
        return bool(value == (list(wanted) if isinstance(wanted, tuple) else wanted))
    if not any(name.startswith("$") for name in wanted):
        return isinstance(value, dict) and all(_agrees(value.get(name), each) for name, each in wanted.items())
    for name, each in wanted.items():
        if name not in _COMPARED:
            raise Invalid(f"filter operator {name}: expected one of {', '.join(_COMPARED)}")
        ordered = name not in ("$eq", "$ne")
        if (ordered and value is None) or not _COMPARED[name](value, each):
            return False
    return True
