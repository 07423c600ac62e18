"""Asking the sources: in one process, one fetch at a time for each path, and what came of it into the store.

Called by whoever serves ``live`` (a process of the daemon, or a program without one). A call of a handler runs in a
thread of its own and is given up after its time; a provider has SLOTS of them, so that one that hangs takes no room
from others. Knows nothing of who asks: that was judged before.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from avmfs_config import Provider

from avmfs import paths
from avmfs.calls import within
from avmfs.errors import AvmError, Busy, Invalid, StoreFailed, TooBig, from_wire
from avmfs.node import Live
from avmfs.providers.handler import BaseHandler, Context, find_handler, ttl_of
from avmfs.store.identity import OPERATOR
from avmfs.store.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

_PARAMETER: Final = re.compile(r"\{([^}]*)\}")
SLOTS: Final = 8  # calls of one provider that are under way
RETRY_S: Final = 5.0  # before a source that failed is asked again
NAMES_S: Final = 3600.0  # at most, before a directory is listed again
NAMES: Final = "names"  # the source of a directory
_CODES: Final = (
    (PermissionError, errno.EACCES),
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (TimeoutError, errno.ETIMEDOUT),
)
"""Of exceptions that a handler makes without an errno."""
GONE: Final = "the source has no such thing"
SECOND: Final = 1_000_000_000
ANSWERS: Final = 20  # of a source to one question
By = tuple[str, str, bool]  # the agent that writes, its door, and whether it does as the operator
NOBODY: Final[By] = ("", "", False)
FETCHED: Final = replace(OPERATOR, route="live")  # by whom what is fetched is written


def holds(known: Live | None, now: int, ttl_s: float) -> bool:
    """Whether nobody is to be asked again. What would hold for longer than anything is given was noted by a clock that
    has been set back since."""
    if known is None:
        return False
    given = RETRY_S if known.error else NAMES_S if known.source == NAMES else ttl_s
    return 0 < known.until - now <= given * SECOND


class Source:
    """One provider and its handler."""

    def __init__(self, provider: Provider, environ: Mapping[str, str], allowed: tuple[str, ...]) -> None:
        self.provider = provider
        self.ttl_s = ttl_of(provider.handler, provider.ttl)
        self._environ, self._allowed = environ, allowed
        self._handler: BaseHandler | None = None
        self._making = threading.Lock()
        self._slots = threading.BoundedSemaphore(SLOTS)

    def context(self, parts: tuple[bytes, ...]) -> Context:
        provider = self.provider
        params = paths.parameters(provider.pattern, parts) or {}
        where = paths.text(paths.join(parts))
        return Context(where, params, provider.timeout_s, provider.max_bytes, self._environ, self._allowed)

    def call(self, context: Context, work: Callable[[BaseHandler], T]) -> T:
        """``work`` of the handler, for as long as the provider may take. Raises what it raises, TimedOut, Busy."""

        def asked() -> T:
            try:
                return work(self._made())
            except Exception:
                raise
            except BaseException as e:  # of code that is not ours: it would end who called, too
                raise StoreFailed(f"{type(e).__name__}: {e}") from None

        if not self._slots.acquire(timeout=context.timeout_s):
            raise Busy(f"{SLOTS} calls of this source do not end")
        return within(context.timeout_s, self._slots, f"fetch {context.path}", asked)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()

    def _made(self) -> BaseHandler:
        with self._making:
            if self._handler is None:
                self._handler = find_handler(self.provider.handler)(self.provider.config)
            return self._handler


class _Read:
    """One that is under way. ``old``, under ``storing``: the source has taken something else since it began."""

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        self.parts, self.old, self.storing = parts, False, threading.Lock()


class Fetcher:
    """See the module. ``environ`` is where ``${NAME}`` of the configuration comes from."""

    def __init__(
        self,
        store: Store,
        providers: tuple[Provider, ...],
        clock: Callable[[], int],
        environ: Mapping[str, str],
        allowed: tuple[str, ...],
    ) -> None:
        self._store, self._clock = store, clock
        self._sources = [Source(each, environ, allowed) for each in providers]
        self._flights: dict[tuple[str, tuple[bytes, ...]], threading.Event] = {}
        self._reads: set[_Read] = set()
        self._mutex = threading.Lock()

    def close(self) -> None:
        """What is under way is given up."""
        for source in self._sources:
            source.close()

    def ask(
        self, operation: str, parts: tuple[bytes, ...], data: bytes = b"", *, wait: bool = True, by: By = NOBODY
    ) -> list[bytes]:
        """``fetch`` what is there, list its ``names``, ``write`` it for an agent, ``place`` a name that is about to be
        written, or ``search`` a directory: returns paths below it, best first. What a source fails to fetch or list is
        in the store afterwards (Reader.live); a refused write or search is raised."""
        if operation == "search":
            return self._search(parts, data.decode("utf-8", "replace"))
        if operation == "write":
            self._write(parts, data, by)
        elif operation == "place":
            self._source(parts)
            self._submit("mirror_names", path=[*parts[:-1]], names=[parts[-1]], source=NAMES, until=0, whole=False)
        elif wait:
            self._once(operation, parts)
        elif not self._under_way(operation, parts):
            with contextlib.suppress(RuntimeError):  # no more threads: the next reader begins it
                threading.Thread(target=self._once, args=(operation, parts), name="refresh", daemon=True).start()
        return []

    def _under_way(self, operation: str, parts: tuple[bytes, ...]) -> bool:
        with self._mutex:
            return (operation, parts) in self._flights

    def _once(self, operation: str, parts: tuple[bytes, ...]) -> None:
        key = operation, parts
        with self._mutex:
            flight, mine = self._flights.get(key), key not in self._flights
            if flight is None:
                flight = self._flights[key] = threading.Event()
        if not mine:
            flight.wait()
            return
        try:
            with self._store.reading(OPERATOR) as reader:
                known = reader.live(paths.join(parts))
            ttl_s = self._source(parts).ttl_s if operation == "fetch" else NAMES_S
            if not holds(known, self._clock(), ttl_s):  # nobody was faster
                (self._fetch if operation == "fetch" else self._names)(parts)
        finally:
            with self._mutex:
                del self._flights[key]
            flight.set()

    def _source(self, parts: tuple[bytes, ...]) -> Source:
        for source in self._sources:
            if paths.matches(source.provider.pattern, parts):
                return source
        raise Invalid("no provider has this path", paths.text(paths.join(parts)))

    def _fetch(self, parts: tuple[bytes, ...], written: bytes | None = None, by: By = NOBODY) -> None:
        """``written``: what ``by`` has just given the source; the version is theirs where that is what it has now."""
        source, old = self._source(parts), True
        while old:
            read = _Read(parts)
            with self._mutex:
                self._reads.add(read)
            try:
                command, found = self._read(source, parts, written, by)
                with read.storing:
                    old = read.old
                    if not old:
                        self._submit(command, path=[*parts], source=_shown(source.provider), **found)
            finally:
                with self._mutex:
                    self._reads.discard(read)

    def _overtake(self, parts: tuple[bytes, ...]) -> None:
        """The source has taken something: what is being read there may be what it had before."""
        with self._mutex:
            reads = [read for read in self._reads if read.parts == parts]
        for read in reads:
            with read.storing:
                read.old = True

    def _read(
        self, source: Source, parts: tuple[bytes, ...], written: bytes | None, by: By
    ) -> tuple[str, dict[str, Any]]:
        """The command that keeps what the source has now, or why it does not say."""
        provider, context = source.provider, source.context(parts)
        gone = False
        try:
            answer = source.call(context, lambda handler: handler.read(context.path, context))
            data = answer.encode("utf-8", "surrogateescape") if isinstance(answer, str) else answer
            if data is not None and not isinstance(data, bytes | bytearray):
                raise StoreFailed(f"the handler returned {type(data).__name__}, not text or bytes")
            if data is not None and len(data) > provider.max_bytes:
                raise TooBig(f"more than {provider.max_bytes} bytes")
            gone, error = data is None, GONE
        except IsADirectoryError:
            return "mirror_names", {"names": None, "until": 0}
        except FileNotFoundError:
            data, gone, error = None, True, GONE
        except Exception as e:  # of code that is not ours: readers are told, and it is in the log
            data, error = None, context.safe(e.reason if isinstance(e, AvmError) else f"{type(e).__name__}: {e}")[:300]
            log.info("%s: %s", context.path, error)
        if data is None:
            until = self._clock() + int(min(RETRY_S, max(source.ttl_s, 1.0)) * SECOND)
            return "mirror_failed", {"until": until, "error": error, "gone": gone}
        return "mirror", {
            "data": bytes(data),
            "until": self._clock() + int(source.ttl_s * SECOND),
            "searched": provider.search,
            "history": provider.history,
            "by": [*by] if data == written else [],
        }

    def _names(self, parts: tuple[bytes, ...]) -> None:
        """Of a live directory: what patterns, their ``values`` and handlers' lists say is in it."""
        names: set[bytes] = set()
        whole, until = True, self._clock() + int(NAMES_S * SECOND)
        for source in self._sources:
            provider = source.provider
            steps = provider.pattern[1:].split("/")
            below = provider.pattern.endswith("/*") and paths.matches(provider.pattern, (*parts, b"x"))
            if not below and not paths.leads_to(provider.pattern, parts):
                continue
            step, tail = ("*", "") if below else (steps[len(parts)], "" if len(parts) == len(steps) - 1 else "/")
            if "{" not in step and step != "*":
                names.add(paths.raw(step + tail))
                continue
            before, name, after = [*_PARAMETER.split(step), "", ""][:3]
            found = [before + each + after for each in provider.values.get(name, ())]
            listed = None if tail else self._listed(source, parts, len(steps) - 1)
            whole = whole and listed is not None
            names |= {paths.raw(each + tail) for each in (*found, *(listed or ()))}
            until = min(until, self._clock() + int(max(source.ttl_s, 1.0) * SECOND))
        good = sorted(each for each in names if _is_name(each))
        self._submit("mirror_names", path=[*parts], names=good, source=NAMES, until=until, whole=whole)

    def _listed(self, source: Source, parts: tuple[bytes, ...], fixed: int) -> list[str] | None:
        above = paths.parameters(source.provider.pattern.rpartition("/")[0], parts[:fixed]) or {}
        context = replace(source.context(parts), params={**above, "*": paths.text(b"/".join(parts[fixed:]))})
        try:
            return source.call(context, lambda handler: handler.list(context.path, context))
        except Exception as e:  # as in _fetch
            log.info("%s: cannot be listed: %s", context.path, context.safe(str(e))[:300])
            return None

    def _search(self, parts: tuple[bytes, ...], query: str) -> list[bytes]:
        found: dict[bytes, None] = {}
        for source in self._sources:
            pattern = source.provider.pattern
            if not source.provider.search or paths.fixed_part(pattern) != parts:
                continue
            context = source.context(parts)
            try:
                named = source.call(context, lambda handler: handler.search(context.path, query, context))  # noqa: B023
            except Exception as e:  # as in _fetch
                raise _refusal(e, context) from None
            for name in map(paths.raw, named or ()):
                if paths.matches(pattern, (*parts, *name.split(b"/"))) and all(map(_is_name, name.split(b"/"))):
                    found[name] = None
        return [*found][:ANSWERS]

    def _write(self, parts: tuple[bytes, ...], data: bytes, by: By) -> None:
        source = self._source(parts)
        context, most = source.context(parts), source.provider.max_bytes
        if len(data) > most:
            raise TooBig(f"the source takes {most} bytes (max_bytes)")
        try:
            source.call(context, lambda handler: handler.write(context.path, data, context))
        except Exception as e:  # as in _fetch
            with self._store.reading(OPERATOR) as reader:
                known = reader.live(paths.join(parts))
            if known is None or known.fetched is None:  # its name was there for this alone
                self._submit(
                    "mirror_failed", path=[*parts], source=_shown(source.provider), until=0, error=GONE, gone=True
                )
            raise _refusal(e, context) from None
        self._overtake(parts)
        self._fetch(parts, data, by)

    def _submit(self, command: str, **arguments: Any) -> None:
        self._store.submit(FETCHED, command, **arguments)


def _shown(provider: Provider) -> str:
    """The source as the configuration has it: what is a secret there is ``${NAME}``."""
    key = next(
        (each for each in ("url", "command", "path", "root", "database", "plugin") if each in provider.config), ""
    )
    return f"{provider.handler} {provider.config[key]}" if key else provider.handler


def _is_name(name: bytes) -> bool:
    try:
        paths.check_name(name.removesuffix(b"/"))
    except AvmError:
        return False
    return True


def _refusal(e: Exception, context: Context) -> AvmError:
    """What the asker gets, with the errno of what a handler has raised."""
    if isinstance(e, AvmError):
        return type(e)(context.safe(e.reason))
    said = context.safe(f"{type(e).__name__}: {e}")[:300]
    code = getattr(e, "errno", None) or next((each for kind, each in _CODES if isinstance(e, kind)), errno.EIO)
    return from_wire(code, said, None)
