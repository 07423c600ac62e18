"""Standard streams that the caller has closed (``avm ls >&-``).

Owns what stands in for them. Python has None then, at which every print and read falls over; and the next file that is
opened, such as the database, would get the stream's number. Imports nothing of this package.
"""

from __future__ import annotations

import os
import sys


def stand_in_for_closed(*, drop: bool = False) -> None:
    """Reading from a closed stdin and writing to a closed stdout fail with EBADF, as they do for any other program: an
    empty file must not be written for an input that was not there. What goes to a closed stderr is dropped.

    ``drop``: a closed stdin is at its end instead, and what goes to a closed stdout is dropped: for a service, which is
    started with whatever it is started with."""
    reading, writing = (os.O_RDONLY, os.O_WRONLY) if drop else (os.O_WRONLY, os.O_RDONLY)
    for number, name, mode, how in (
        (0, "stdin", "r", reading),
        (1, "stdout", "w", writing),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, how)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def drop_output() -> None:
    """What stdout did not take is dropped: at its end the interpreter would try again, and have a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
