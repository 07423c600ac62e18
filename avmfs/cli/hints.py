"""What a person can do about an error: one line below its message, or nothing.

Owns the advice. It depends on the kind of error and on the command alone, never on what a store holds: an invisible
file and a missing one get the same words. Loaded when something went wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from avmfs.cli.commands import COMMANDS
from avmfs.errors import AvmError, Busy, Denied, Exists, IsDirectory, NotDirectory, NotFound, StoreFailed

_NOT_ON_FILES = frozenset(
    {"tell", "index", "mount", "playground", "bench", "warmup", "config", "init", "doctor", "repair", "import", "sync"}
)
"""Commands whose paths are no files of the memory: advice on these would not help."""

_RIGHTS = "avm read PATH:shared says who may; /private and /shared are for everybody's own and common files"
_PLACES = "files belong below /memory: /shared is for common ones, /private for your own"
# By what ``access``, the tree and the store say. Any other refusal says by itself what it is about.
_DENIED = {
    "read-only for you": _RIGHTS,
    "not writable for you": _RIGHTS,
    "nothing can be created here": _PLACES,
    "nothing can be created or removed here": _PLACES,
}


def hint(error: Exception, arguments: Sequence[str]) -> str | None:
    """Advice on an error of the command line ``arguments``; None where the message says it all."""
    command = _command(arguments)
    if not isinstance(error, AvmError):
        return "avm config check looks at both files" if type(error).__name__ == "ConfigError" else None
    if isinstance(error, IsDirectory):
        return {"rm": "avm rm -r removes it with all below it"}.get(command, "avm ls lists it, avm tree shows it whole")
    if isinstance(error, NotDirectory):
        return "a name on the way is a file: avm ls shows what is there"
    if isinstance(error, NotFound):
        if command == "tell":
            return "avm ls /tell lists who can be told"
        if command == "unsubscribe":
            return "by its pattern, as avm subscriptions shows it"
        if command in ("history", "diff") and error.reason != os.strerror(error.code):
            return "avm history shows which versions are kept"
        # Without a path it is something else that is not there: a subscription, a key.
        on_files = command not in _NOT_ON_FILES and error.filename is not None
        return "avm ls and avm tree show what there is; avm search finds by words" if on_files else None
    if isinstance(error, Denied):
        return _DENIED.get(error.reason)
    if isinstance(error, Exists):
        return "leave out --new to replace it" if command == "write" and "--new" in arguments else None
    if isinstance(error, Busy):
        return "try again; avm-daemon status and avm doctor say how it is"
    return "avm doctor looks for the reason" if isinstance(error, StoreFailed) else None


def _command(arguments: Sequence[str]) -> str:
    return next((each for each in arguments if each in COMMANDS), "")
