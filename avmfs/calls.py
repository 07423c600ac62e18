"""On whose behalf a thread works, and whether it is to go on.

Owns what a front end and the work behind it tell each other: who serves a call says in ``working`` what this thread
works for, and may give it up from another thread; work that may take long asks ``go_on`` now and then. Called from all
layers. Knows nothing of requests. And work in a thread of its own: ``within`` for as long as somebody waits for it,
``Background`` where nobody does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, TypeVar

from avmfs.errors import Busy, Interrupted, TimedOut

T = TypeVar("T")
OVER_S: Final = 0.5
"""That work with a time limit of its own may be late by itself."""
working = threading.local()
"""``call`` is what this thread works for at the moment, None or absent for nothing that can be given up."""


class Call:
    """What somebody waits for. ``given_up`` stays true. ``look_every_s``: where nobody can tell that it was given up,
    as often the thread that waits looks for itself (`rest`)."""

    __slots__ = ("given_up", "wake")
    look_every_s: ClassVar[float | None] = None

    def __init__(self) -> None:
        self.given_up = False
        self.wake: Callable[[], None] | None = None

    def look(self) -> None:
        """In the thread that works for this: return whether it has been given up. May wait for others' turn, and raise
        what refuses to go on."""

    def rest(self) -> None:
        """In the thread that works for this, before and while it sleeps: return whether it has been given up. Never
        waits, and holds nothing that others wait for afterwards."""
        self.look()

    def give_way(self) -> None:
        """In the thread that works for this, between two steps of what may take minutes, while it holds nothing: let
        those come first that wait for its turn."""

    def give_up(self) -> None:
        """From any thread: nobody waits for this any more."""
        self.given_up = True
        if (wake := self.wake) is not None:
            wake()


class Background:
    """Work in a thread of its own, one piece after the other. Whoever starts one has seen that it is not ``busy``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._since = self._pause = 0.0

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[..., object], *arguments: Any) -> None:
        self._thread = threading.Thread(target=work, args=arguments, name=self._name, daemon=True)
        self._thread.start()

    def pause(self, now: float, length: float) -> None:
        """There is nothing to be done for so long, in the unit of a clock that says ``now``."""
        self._since, self._pause = now, length

    def due(self, now: float) -> bool:
        """Neither busy nor in a pause. One that is to come began before the clock was set back: it is over."""
        return not (self.busy or 0 <= now - self._since < self._pause)

    def wait(self, limit_s: float) -> bool:
        """Return whether what was started is over, at the latest after ``limit_s``."""
        if self._thread is not None:
            self._thread.join(limit_s)
        return not self.busy


def go_on() -> None:
    """To be asked now and then by work that may take long. Raises Interrupted once nobody waits for what it makes."""
    call: Call | None = getattr(working, "call", None)
    if call is not None:
        call.look()
        if call.given_up:
            raise Interrupted("nobody waits any more")


def going_on(each_of: Iterable[T]) -> Iterator[T]:
    """These, with ``go_on`` before each."""
    for each in each_of:
        go_on()
        yield each


def next_step() -> None:
    """``go_on`` of work that may take minutes, between two of its steps. It holds no snapshot there."""
    call: Call | None = getattr(working, "call", None)
    if call is not None:
        call.give_way()
    go_on()


def within(limit_s: float, room: threading.Semaphore, name: str, work: Callable[[], T]) -> T:
    """What ``work`` makes in a thread ``name``. That one gives back ``room``, which was taken for it, when it ends,
    however late: neither foreign code nor the system's resolver heeds a limit. Raises what ``work`` raises, whatever it
    is; TimedOut; Busy where no thread is to be had."""
    made: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            made.append(work())
        except BaseException as e:  # raised by who waits
            failure.append(e)
        finally:
            room.release()
            done.set()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as e:  # no more threads
        room.release()
        raise Busy(str(e)) from None
    if not done.wait(limit_s + OVER_S):
        raise TimedOut(f"no answer within {limit_s:g} s")
    if failure:
        raise failure[0]
    return made[0]
