"""Domain errors: each is an OSError with its errno.

Owns the one mapping between what can go wrong and an errno; no errno literal stands
elsewhere. Python users catch FileNotFoundError and friends, the mount returns
``error.errno``, the command line prints ``error.reason``. Every layer may raise these;
this module imports none of them. What others chose and a reason quotes is made safe to show here; ``filename`` is
the path as it is.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import ClassVar

from avmfs.text.escapes import escaped, visible

NO_TEXT = "half of a surrogate pair (\\ud800 to \\udfff) is no text"  # those that stand for odd bytes can be stored
NAMELESS = "nobody in particular may only read: name the agent (agent=NAME in Python, or AVM_AGENT)"


class AvmError(OSError):
    """Base of all domain errors. ``reason`` is one line for a person, without the path."""

    code: ClassVar[int] = _errno.EIO
    recorded = False  # the store has this refusal in its audit already

    def __init_subclass__(cls, code: int | None = None) -> None:
        cls.code = cls.code if code is None else code

    def __init__(self, reason: str = "", path: str | None = None) -> None:
        self.reason = visible(reason) if reason else os.strerror(self.code)
        super().__init__(self.code, self.reason, path)

    def __reduce__(self) -> tuple[type[AvmError], tuple[str, str | None], dict[str, object]]:
        """So that an error survives pickling and copying: OSError would give its own three arguments."""
        return type(self), (self.reason, self.filename), self.__dict__

    def __str__(self) -> str:
        return f"{escaped(self.filename)}: {self.reason}" if self.filename else self.reason


class NotFound(AvmError, FileNotFoundError, code=_errno.ENOENT):
    """No such thing, or none that the asker may see: the two are told alike."""


class Denied(AvmError, PermissionError, code=_errno.EACCES):
    """Visible, but the policy refuses this verb."""


class NotPermitted(AvmError, PermissionError, code=_errno.EPERM):
    """An operation that this filesystem never offers (hard links, device nodes)."""


class Exists(AvmError, FileExistsError, code=_errno.EEXIST): ...


class Invalid(AvmError, code=_errno.EINVAL):
    """Bad input: a parameter, a name, a value. The reason names the place."""


class IsDirectory(AvmError, IsADirectoryError, code=_errno.EISDIR): ...


class NotDirectory(AvmError, NotADirectoryError, code=_errno.ENOTDIR): ...


class NotEmpty(AvmError, code=_errno.ENOTEMPTY): ...


class NameTooLong(AvmError, code=_errno.ENAMETOOLONG): ...


class TooBig(AvmError, code=_errno.EFBIG):
    """The file or value would pass a size limit."""


class OverQuota(AvmError, code=_errno.EDQUOT): ...


class NoSpace(AvmError, code=_errno.ENOSPC): ...


class ReadOnly(AvmError, code=_errno.EROFS): ...


class Busy(AvmError, code=_errno.EAGAIN):
    """Try again later: a lock is held elsewhere or the writer is restarting."""


class WouldDeadlock(AvmError, code=_errno.EDEADLK):
    """Whoever holds the lock waits for the asker."""


class Interrupted(AvmError, InterruptedError, code=_errno.EINTR): ...


class TimedOut(AvmError, TimeoutError, code=_errno.ETIMEDOUT):
    """A request took more of the daemon's time than one may."""


class BadHandle(AvmError, code=_errno.EBADF): ...


class Stale(AvmError, code=_errno.ESTALE):
    """What the caller goes by is no longer so: the inode behind a handle is gone, or bytes have changed since they
    were read."""


class StoreFailed(AvmError, code=_errno.EIO):
    """The store could not answer: I/O error, corruption, an unreachable writer."""


class NotSupported(AvmError, code=_errno.ENOTSUP): ...


class NoAttribute(AvmError, code=getattr(_errno, "ENODATA", 93)):
    """No such extended attribute (ENODATA on Linux, ENOATTR on macOS)."""


class TooSmall(AvmError, code=_errno.ERANGE):
    """The caller's buffer cannot hold the answer."""


class PastEnd(AvmError, code=_errno.ENXIO):
    """There is nothing of the kind from this offset on: lseek(2)."""


_BY_CODE: dict[int, type[AvmError]] = {cls.code: cls for cls in AvmError.__subclasses__()}


def from_wire(code: int, reason: str, path: str | None, *, recorded: bool = False) -> AvmError:
    """Rebuild an error that crossed a process boundary as (errno, reason, path)."""
    error = _BY_CODE.get(code, StoreFailed)(reason, path)
    error.recorded = recorded
    return error
