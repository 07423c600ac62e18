"""What a daemon asks of the log that hosts share: who keeps house, and what a strict mount waits for."""

from __future__ import annotations

import threading
import time

import pytest
from avmfs_daemon import sharing
from avmfs_daemon.sharing import Head, House

from avmfs import calls
from avmfs.errors import Interrupted, StoreFailed
from avmfs.store.sharedlog.protocol import CLOCK_S, Unreachable
from tests.contract.memory_log import MemoryLog, MemoryServer

LIMIT_S = 120.0


class End(MemoryLog):
    """A log that can be asked for its end, which ``link`` may take long to bring, or fail."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.asked, self.newest, self.broken = 0, 7, False
        self.begun, self.link = threading.Event(), threading.Event()
        self.link.set()

    def head(self) -> int:
        self.asked += 1
        self.begun.set()
        assert self.link.wait(LIMIT_S)
        if self.broken:
            raise Unreachable("the link is dead")
        return self.newest


def test_who_waits_while_the_log_does_not_answer_does_not_ask_once_more() -> None:
    """A link that is dead takes ten seconds to say so, to each who asks after the other."""
    log = End()
    head = Head(log, lambda: 7)
    log.broken = True
    began = time.monotonic()
    for now in (began, began):
        with pytest.raises(StoreFailed, match="strict: the link is dead"):
            head._ask(now)
    assert log.asked == 1
    with pytest.raises(StoreFailed, match="the link is dead"):
        head.wait()
    log.broken = False
    head.wait()
    assert log.asked == 3, "who begins later asks anew"
    assert head._ask(began) == 7 and log.asked == 3


def test_who_waits_for_the_answer_that_another_one_gets_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = End()
    head = Head(log, lambda: 7)
    log.link.clear()
    first = threading.Thread(target=head.wait)
    first.start()
    assert log.begun.wait(LIMIT_S)
    ends = threading.Timer(LIMIT_S / 4, log.link.set)  # what hangs
    ends.start()
    given_up = calls.Call()
    given_up.give_up()
    monkeypatch.setattr(calls.working, "call", given_up, raising=False)
    with pytest.raises(Interrupted):
        head.wait()
    ends.cancel()
    log.link.set()
    first.join(LIMIT_S)
    assert log.asked == 1


def test_a_host_whose_clock_is_not_that_of_the_log_keeps_no_house(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end what has not expired, on all hosts."""
    server = MemoryServer()
    ahead, other = House(MemoryLog(server)), House(MemoryLog(server))
    monkeypatch.setattr(sharing, "ASKED_S", 0.0)
    told: list[str] = []
    ahead.begins, ahead.ends = lambda: told.append("begins"), lambda: told.append("ends")
    assert ahead.mine() and not other.mine()
    server.clock = lambda: time.time() - 2 * CLOCK_S
    assert not ahead.mine() and not other.mine()
    server.clock = time.time
    assert other.mine() and not ahead.mine() and told == ["begins", "ends"]


def test_a_host_that_takes_no_change_keeps_no_house(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it does could be written down."""
    server, refused = MemoryServer(), [""]
    mute, other = House(MemoryLog(server), lambda: refused[0]), House(MemoryLog(server))
    monkeypatch.setattr(sharing, "ASKED_S", 0.0)
    told: list[str] = []
    mute.begins, mute.ends = lambda: told.append("begins"), lambda: told.append("ends")
    assert mute.mine() and not other.mine()
    refused[0] = "record 7698 of the shared log is missing"
    assert not mute.mine() and other.mine() and told == ["begins", "ends"]
    assert not mute.mine(), "nor does it take it"
    refused[0] = ""
    assert not mute.mine() and other.mine()
