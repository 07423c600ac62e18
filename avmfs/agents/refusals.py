"""What a mount or a door refuses by itself, on its way to the audit.

Owns a short memory of refusals and the thread that tells the store of them: who is refused gets the answer at once,
and a thousand refusals of one kind are one submission. The store counts its own refusals in its own transactions; an
error that came from there says so (``recorded``) and is not told again. One per process, made where the process's
memory is put together; the thread starts with the first refusal, after any fork.
"""

from __future__ import annotations

import errno
import logging
import threading
from typing import Final

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import AvmError
from avmfs.store.store import Store
from avmfs.store.tx.audit_rows import PATH_KEPT, REFUSALS

log = logging.getLogger(__name__)

VARIETY: Final = 256
PAUSE_S: Final = 0.2
_Key = tuple[Principal, str, str, str, bytes]  # and the route, which does not tell principals apart


class Refusals:
    """``tell`` may come from any thread; nobody waits for the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._waiting: dict[_Key, int] = {}
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def tell(self, who: Principal, verb: str, error: AvmError, path: str | None = None) -> None:
        """If this is a refusal that the store does not know of yet."""
        if not isinstance(error, REFUSALS) or error.recorded:
            return
        error.recorded = True
        where = paths.raw(str(error.filename or path or ""))[:PATH_KEPT]
        key = (who, who.route, verb, errno.errorcode[error.code], where)
        with self._mutex:
            if key not in self._waiting and len(self._waiting) >= VARIETY:
                key = (who, who.route, "various", key[3], b"")
            self._waiting[key] = self._waiting.get(key, 0) + 1
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="refusals", daemon=True)
                try:
                    thread.start()
                except RuntimeError as e:  # whoever is refused is to hear of that, and the next one starts it
                    log.error("refusals are not in the audit yet: %s", e)
                else:
                    self._thread = thread
        self._woken.set()

    def flush(self) -> None:
        """Tell the store of all that waits."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
        for (who, _, verb, code, where), count in waiting.items():
            try:
                # As the agent itself: a key that has expired or was revoked could not say so.
                asker = Principal(who.name, who.operator, route=who.route)
                self._store.submit(asker, "note_refusal", verb=verb, code=code, path=where, count=count)
            except AvmError as e:
                log.error("a refusal of %s (%s, %s) is not in the audit: %s", who.name, verb, code, e)

    def close(self) -> None:
        """Tell the store what waits, and use it no more."""
        self._over.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._over.is_set():
            self._woken.wait()
            self._woken.clear()
            self.flush()
            self._over.wait(PAUSE_S)
