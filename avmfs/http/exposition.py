"""/metrics: what the daemon's processes have counted and how it stands now, as Prometheus reads it (text 0.0.4).

Owns names, help and the form. Figures over all agents, so it is for the operator, or whoever holds the token in
metrics.token of the data directory (0600). Nothing is computed here that a scrape would have the daemon wait for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from avmfs import metrics
from avmfs.errors import AvmError, Denied
from avmfs.http import identity, values
from avmfs.http.doors import Unauthorized
from avmfs.http.rest import Service

TOKEN: Final = "metrics.token"
_HELP: Final = {
    "avm_door_seconds": "Time to answer a method of the door, waiting included",
    "avm_door_errors_total": "Calls of the door that were refused or failed",
    "avm_fuse_requests_total": "Requests of the kernel to mounts",
    "avm_commit_requests": "Requests in one transaction of the writer",
    "avm_commit_seconds": "Time of a transaction of the writer",
    "avm_sync_seconds": "Time of a sync of the log that the writer waits for",
    "avm_recalls_total": "Recalls: answered, silent (nothing relevant), degraded (without vectors)",
    "avm_recall_tokens_total": "Tokens that recalls have handed out",
    "avm_http_seconds": "Time to answer a request over HTTP",
    "avm_build_info": "1, with the version",
    "avm_process_up": "1 while this process of the daemon serves",
    "avm_process_restarts_total": "How often a mount's process was replaced",
    "avm_waiting_documents": "Written, and not yet found by words or by vectors",
    "avm_unread_messages": "Mail that agents with a mount have not read",
    "avm_index_vectors": "Vectors in the index",
    "avm_index_bytes": "Memory of the vectors",
    "avm_embedded_total": "Passages that got a vector since the daemon began",
    "avm_searchable_after_seconds": "How long the last burst of writes took to be found by meaning",
    "avm_model_ready": "1 while the embedding model answers",
    "avm_outbox_waiting": "Deliveries that wait",
    "avm_outbox_dead": "Deliveries that were given up",
    "avm_store_bytes": "Size of the store's files",
    "avm_store_refuses_writes": "1 while no change is taken",
    "avm_backup_age_seconds": "Since the last good backup",
}
_Sample = tuple[dict[str, str], float]


def route(
    service: Service, folder: Path, database: Path, status: Callable[[], dict[str, Any]], clock: Callable[[], float]
) -> Route:
    """``folder``: where processes count; ``status``: the daemon's; ``clock`` gives seconds since the epoch."""
    kept = hashlib.sha256(_token(database.with_name(TOKEN)).encode()).digest()

    def shown() -> str:
        return "".join([*_counted(metrics.read(folder)), *_standing(status(), database, clock())])

    async def answer(request: Request) -> Response:
        try:
            await _check(request, service, kept)
            return Response(await service.in_thread(shown), media_type="text/plain; version=0.0.4; charset=utf-8")
        except AvmError as e:
            return values.refusal(e, False)

    return Route("/metrics", answer, methods=["GET"])


def _token(path: Path) -> str:
    """What the file holds, made when there is none. Raises Denied for a file that others can read."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise Denied("others may read it: chmod 600", os.fspath(path)) from None
    text = path.read_text().strip()
    if len(text) < 16:
        raise Denied("a token has at least 16 characters", os.fspath(path))
    return text


async def _check(request: Request, service: Service, kept: bytes) -> None:
    """Raises Unauthorized, Denied, and Busy where the door cannot be asked who is the operator."""
    given = request.headers.get("authorization", "").partition(" ")[2].strip(" ")
    if hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(), kept):
        return
    try:
        caller = identity.bearer(request, service.sessions)
    except Unauthorized:
        raise Unauthorized(f"the token in {TOKEN} of the data directory is needed, or an operator's") from None
    if not caller.operator:
        raise Denied("figures over all agents are for the operator")
    await service.in_thread(lambda: service.doors.call(caller, "nonce", {"about": "metrics"}))  # it may be none by now


def _counted(found: dict[metrics.Key, list[float]]) -> Iterable[str]:
    families: dict[str, list[tuple[metrics.Key, list[float]]]] = {}
    for key, own in sorted(found.items(), key=lambda item: item[0][1:3]):
        families.setdefault(key[1], []).append((key, own))
    for name, series in families.items():
        kind = series[0][0][0]
        yield _head(name, kind)
        for (_, _, labels, bounds), own in series:
            if kind == "counter":
                yield _line(name, dict(labels), own[0])
                continue
            sums = [*accumulate(own[:-1])]
            edges = [*(f"{each:g}" for each in bounds), "+Inf"]
            for edge, count in zip(edges, sums, strict=True):
                yield _line(f"{name}_bucket", {**dict(labels), "le": edge}, count)
            yield _line(f"{name}_sum", dict(labels), own[-1]) + _line(f"{name}_count", dict(labels), sums[-1])


def _standing(status: dict[str, Any], database: Path, now: float) -> Iterable[str]:
    store, index, outbox, backup = (status[name] for name in ("store", "index", "outbox", "backup"))
    mounts: list[dict[str, Any]] = status["mounts"]
    up = {"writer": store["writer_state"] == "ready", "index": index["pid"] is not None, "http": True}
    up |= {f"mount {each['agent_id']}": each["state"] == "ready" for each in mounts}
    yield from _gauge("avm_build_info", [({"version": status["version"]}, 1.0)])
    yield from _gauge("avm_process_up", [({"process": name}, float(serves)) for name, serves in up.items()])
    restarts = [({"process": f"mount {each['agent_id']}"}, float(each["restarts"])) for each in mounts]
    yield from _gauge("avm_process_restarts_total", restarts, "counter")
    waiting = [({"for": kind}, float(store[each])) for kind, each in _WAITING if each in store]
    yield from _gauge("avm_waiting_documents", waiting)
    yield from _gauge("avm_unread_messages", [({}, float(sum(each["unread"] for each in mounts)))])
    embedded = index["embedding"]
    for name, value, kind in (
        ("avm_index_vectors", index.get("vectors"), "gauge"),
        ("avm_index_bytes", index.get("bytes"), "gauge"),
        ("avm_embedded_total", embedded.get("embedded"), "counter"),
        ("avm_searchable_after_seconds", embedded.get("searchable_after_s"), "gauge"),
        ("avm_model_ready", float(status["embedding"]["state"] == "ready"), "gauge"),
        ("avm_outbox_waiting", outbox.get("waiting"), "gauge"),
        ("avm_outbox_dead", outbox.get("dead"), "gauge"),
        ("avm_store_refuses_writes", float("error" in store), "gauge"),
        ("avm_backup_age_seconds", now - backup["at"] if backup.get("at") else None, "gauge"),
    ):
        if value is not None:
            yield from _gauge(name, [({}, float(value))], kind)
    files = [({"file": name}, _size(database.with_name(database.name + end))) for name, end in _FILES]
    yield from _gauge("avm_store_bytes", [(labels, size) for labels, size in files if size is not None])


_WAITING: Final = (("words", "waiting_lexical"), ("vectors", "waiting_semantic"))
_FILES: Final = (("database", ""), ("log", "-wal"))


def _size(path: Path) -> float | None:
    try:
        return float(path.stat().st_size)
    except FileNotFoundError:
        return None


def _gauge(name: str, samples: Sequence[_Sample], kind: str = "gauge") -> Iterable[str]:
    if samples:
        yield _head(name, kind)
        for labels, value in samples:
            yield _line(name, labels, value)


def _head(name: str, kind: str) -> str:
    return f"# HELP {name} {_HELP[name]}\n# TYPE {name} {kind}\n"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_quoted(each)}"' for key, each in labels.items())
    return f"{name}{{{inner}}} {value!r}\n" if inner else f"{name} {value!r}\n"


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
