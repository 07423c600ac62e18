"""Live content in one process: when a source is asked and what is kept of it. docs/PROVIDERS.md runs here."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from avmfs_config import Provider, Settings, default_settings, load_settings

from avmfs import calls, paths
from avmfs.access import Principal
from avmfs.errors import Busy, Denied, NotFound, StoreFailed, TooBig
from avmfs.providers import live
from avmfs.providers.fetching import SLOTS, Fetcher, Source
from avmfs.providers.handler import BaseHandler, Context, find_handler, register_handler
from avmfs.providers.live import LiveTree
from avmfs.rpc.local import LocalDoor
from avmfs.store.commands import mirroring
from avmfs.vfs import handover
from avmfs.vfs.live_handle import LiveHandle
from tests.threads import refused_once

WHERE = (b"live", b"x")
ALICE = Principal("alice")
LIMIT_S = 120.0
TEXT = (Path(__file__).parents[2] / "docs/PROVIDERS.md").read_text("utf-8")


class Counted(BaseHandler):
    """Answers how often it was asked, once ``go`` is set."""

    asked = 0
    go = threading.Event()
    fails = False

    def read(self, path: str, context: Context) -> str:
        type(self).asked += 1
        if not self.go.wait(LIMIT_S):
            raise TimeoutError
        if self.fails:
            raise OSError("the wire is cut")
        return f"{type(self).asked}\n"


@pytest.fixture
def counted() -> Iterator[type[Counted]]:
    Counted.asked, Counted.fails = 0, False
    Counted.go.set()
    register_handler("counted", Counted)
    yield Counted
    Counted.go.set()


def settings(*providers: Provider) -> Settings:
    return replace(default_settings(), providers=providers)


class Desk:
    """A store with one provider and a clock that a test sets forward."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.provider = Provider("/live/{name}", "counted", ttl=60.0, timeout_s=LIMIT_S, **given)
        self.door = LocalDoor(folder / "avm.db", settings(self.provider), "alice", embeddings=False)
        self.later_s = 0
        store = self.door._store
        fetcher = Fetcher(store, (self.provider,), self.now, {}, ())
        self.live = LiveTree(store, (self.provider,), fetcher, self.now, lasting=True)
        self.store = store

    def now(self) -> int:
        return time.time_ns() + self.later_s * 10**9

    def kept(self) -> bytes:
        with self.store.reading(ALICE) as reader:
            node = reader.node(1)
            for name in WHERE:
                found = reader.child(node.id, name)
                if found is None:
                    raise NotFound()
                node = found
            return reader.read(node.id, 0, node.size)


@pytest.fixture
def desk(tmp_path: Path, counted: type[Counted]) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.door.close()


def test_a_hundred_readers_at_the_expiry_are_one_fetch(desk: Desk, counted: type[Counted]) -> None:
    desk.live.appear(ALICE, WHERE)
    desk.later_s = 121  # beyond what may be shown while it is fetched anew
    counted.go.clear()
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(desk.live.refresh, WHERE) for _ in range(100)]
        deadline = time.monotonic() + LIMIT_S
        while counted.asked < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        counted.go.set()
        for each in waiting:
            each.result(LIMIT_S)
    assert counted.asked == 2 and desk.kept() == b"2\n"


def test_a_source_that_found_no_thread_has_all_its_room_afterwards(desk: Desk, counted: type[Counted]) -> None:
    source = Source(desk.provider, {}, ())
    context = source.context(WHERE)
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        for _ in range(SLOTS):
            with pytest.raises(Busy, match="new thread"):
                source.call(context, lambda handler: handler)
    assert isinstance(source.call(replace(context, timeout_s=1.0), lambda handler: handler), counted)


def test_who_waits_for_a_source_can_be_interrupted_and_that_is_no_failure_of_it(
    desk: Desk, counted: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, over = threading.main_thread(), threading.Event()

    def interrupts(self: Counted, path: str, context: Context) -> str:
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)
        over.wait(LIMIT_S)
        return "too late"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(counted, "read", interrupts)
            desk.live.appear(ALICE, WHERE)
    finally:
        signal.signal(signal.SIGINT, before)
        over.set()
    desk.live.appear(ALICE, WHERE)
    assert desk.kept() == b"1\n"


def test_what_is_stale_is_shown_while_it_is_fetched(desk: Desk, counted: type[Counted]) -> None:
    desk.live.appear(ALICE, WHERE)
    desk.later_s = 90
    counted.go.clear()
    desk.live.refresh(WHERE)  # comes back although the source does not answer
    assert desk.kept() == b"1\n"
    counted.go.set()
    deadline = time.monotonic() + LIMIT_S
    while desk.kept() != b"2\n" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert desk.kept() == b"2\n" and counted.asked == 2


def test_what_is_stale_is_shown_though_there_is_no_thread_to_fetch_it(desk: Desk, counted: type[Counted]) -> None:
    desk.live.appear(ALICE, WHERE)
    desk.later_s = 90
    with refused_once("refresh") as refused:
        desk.live.refresh(WHERE)
    assert refused.is_set() and desk.kept() == b"1\n"


def test_readers_of_what_is_stale_start_one_fetch_and_no_thread_that_waits_for_it(
    desk: Desk, counted: type[Counted]
) -> None:
    desk.live.appear(ALICE, WHERE)
    desk.later_s = 61
    counted.go.clear()
    fetcher = Fetcher(desk.store, (desk.provider,), desk.now, {}, ())
    fetcher.ask("fetch", WHERE, wait=False)
    deadline = time.monotonic() + LIMIT_S
    while counted.asked < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    before = threading.active_count()
    for _ in range(100):
        fetcher.ask("fetch", WHERE, wait=False)
    after = threading.active_count()
    counted.go.set()
    fetcher.ask("fetch", WHERE)
    assert after <= before and counted.asked == 2


def test_a_source_that_fails_is_left_alone_for_a_while(desk: Desk, counted: type[Counted]) -> None:
    counted.fails = True
    for _ in range(3):
        with pytest.raises(StoreFailed, match="the wire is cut"):
            desk.live.appear(ALICE, WHERE)
    assert counted.asked == 1
    desk.later_s, counted.fails = 6, False
    assert desk.live.appear(ALICE, WHERE) and desk.kept() == b"2\n"


def test_what_was_fetched_is_shown_over_a_failure_until_it_is_too_old(desk: Desk, counted: type[Counted]) -> None:
    desk.live.appear(ALICE, WHERE)
    counted.fails = True
    desk.later_s = 121
    with pytest.raises(StoreFailed, match="the wire is cut"):
        desk.live.refresh(WHERE)
    with desk.store.reading(ALICE) as reader:
        known = reader.live(paths.join(WHERE))
    assert known is not None and known.error == "OSError: the wire is cut" and known.fetched is not None


def test_a_clock_that_is_set_back_keeps_no_reader_from_the_source(desk: Desk, counted: type[Counted]) -> None:
    """Until it was to be asked again may be days from now by then."""
    once = LiveTree(
        desk.store, (desk.provider,), Fetcher(desk.store, (desk.provider,), desk.now, {}, ()), desk.now, lasting=False
    )
    desk.live.appear(ALICE, WHERE)
    once.bring((b"live",), True)
    desk.later_s = -86_400
    once.bring((b"live",), True)
    with desk.store.reading(ALICE) as reader:
        known = reader.live(b"/live")
    assert known is not None and known.until <= desk.now() + 3600 * 10**9
    for _ in range(2):
        desk.live.refresh(WHERE)
    assert counted.asked == 2 and desk.kept() == b"2\n"

    desk.later_s, counted.fails = -2 * 86_400, True
    for _ in range(2):
        with pytest.raises(StoreFailed, match="the wire is cut"):  # how old it is nobody knows
            desk.live.refresh(WHERE)
    assert counted.asked == 3
    desk.later_s, counted.fails = -3 * 86_400, False
    desk.live.refresh(WHERE)
    assert counted.asked == 4 and desk.kept() == b"4\n"


def test_names_that_readers_make_up_do_not_fill_the_disk(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, counted: type[Counted]
) -> None:
    monkeypatch.setattr(mirroring, "MOST", 5)
    for number in range(9):
        desk.live.appear(ALICE, (b"live", b"%d" % number))
    left = [each["name"] for each in desk.door.call("entries", path="/live")]
    assert len(left) <= 6 and "8" in left and "0" not in left
    monkeypatch.setattr(mirroring, "MOST_BYTES", 3)
    desk.live.appear(ALICE, (b"live", b"last"))
    assert [each["name"] for each in desk.door.call("entries", path="/live")] == ["last"]


def test_the_values_of_a_parameter_are_listed_as_names(tmp_path: Path, counted: type[Counted]) -> None:
    values = {"symbol": ("NVDA", "AMD"), "day": ("mon",)}
    one = Provider("/live/prices/{symbol}.json", "counted", values=values)
    given = settings(one, replace(one, pattern="/live/of-{day}/{symbol}"))
    with contextlib.closing(LocalDoor(tmp_path / "avm.db", given, "alice", embeddings=False)) as door:
        for where, names in (
            ("prices", ["AMD.json", "NVDA.json"]),
            ("", ["of-mon", "prices"]),
            ("of-mon", ["AMD", "NVDA"]),
        ):
            assert [each["name"] for each in door.call("entries", path=f"/live/{where}")] == names
        assert door.call("read", path="/live/prices/NVDA.json")["data"] == b"1\n"


def test_a_directory_is_listed_by_what_its_own_path_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("red/a.txt", "red/b.txt", "blue/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("team", "blue")
    provider = Provider("/live/{team}/{name}", "file", {"path": f"{tmp_path}/${{team}}/${{name}}"})
    with contextlib.closing(LocalDoor(tmp_path / "avm.db", settings(provider), "alice", embeddings=False)) as door:
        assert door.call("read", path="/live/red/a.txt")["data"] == b"red/a.txt"
        assert [each["name"] for each in door.call("entries", path="/live/red")] == ["a.txt", "b.txt"]


def test_what_no_provider_has_any_more_goes(tmp_path: Path, counted: type[Counted]) -> None:
    given = settings(Provider("/live/{name}", "counted"), Provider("/other/deep/{name}", "counted"))
    for number, (providers, seen) in enumerate([(given, {"live", "other"}), (settings(given.providers[1]), {"other"})]):
        door = LocalDoor(tmp_path / "avm.db", providers, "alice", embeddings=False)
        try:
            assert {each["name"] for each in door.call("entries")} & {"live", "other"} == seen
            assert door.call("read", path="/other/deep/x")["data"] == b"1\n"
            if number == 0:
                assert door.call("read", path="/live/x")["data"]
            else:
                with pytest.raises(NotFound):
                    door.call("read", path="/live/x")
        finally:
            door.close()


def test_the_providers_of_the_document_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugins").mkdir()
    (tmp_path / "my_plugins/talib.py").write_text("def read(path, context): return path\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    (tmp_path / "config.yaml").write_text(found[1])
    providers = load_settings(tmp_path / "config.yaml", os.environ).providers
    assert [find_handler(each.handler)(each.config) for each in providers] and len(providers) == 7


def test_the_handler_of_the_document_is_read_and_listed(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    exec(found[1], {})
    given = settings(Provider("/live/upper/{word}", "upper", {"greeting": "hello"}))
    door = LocalDoor(tmp_path / "avm.db", given, "alice", embeddings=False)
    try:
        assert door.call("read", path="/live/upper/one")["data"] == b"hello ONE"
        assert {each["name"] for each in door.call("entries", path="/live/upper")} >= {"alpha", "beta"}
        with pytest.raises(NotFound):
            door.call("read", path="/live/upper/nothing")
    finally:
        door.close()


class Redis:
    """As much of a client as the snippet asks."""

    def get(self, key: str) -> bytes | None:
        return {"/cache/motd": b"welcome\n"}.get(key)


def test_a_handler_of_a_program_without_a_daemon_reads_and_answers_searches(tmp_path: Path) -> None:
    class RedisHandler(BaseHandler):
        redis = Redis()

        def read(self, path, context):  # type: ignore[no-untyped-def]  # as the first documents have it
            return self.redis.get(path)

        def search(self, path: str, query: str, context: Context) -> list[str]:
            return ["motd", "nothing", "../memory/x", "", "motd"] if query == "how do we greet" else []

    register_handler("redis", RedisHandler)
    for search in (True, False):
        given = settings(Provider("/cache/{key}", "redis", search=search))
        door = LocalDoor(tmp_path / f"{search}.db", given, "alice", embeddings=False)
        try:
            assert door.call("read", path="/cache/motd")["data"] == b"welcome\n"
            with pytest.raises(NotFound):
                door.call("read", path="/cache/none")
            found = door.call("search", q="how do we greet", under="/cache")["hits"]
            assert [each["path"] for each in found] == ["/cache/motd"] * search
            assert not door.call("search", q="how do we greet")["hits"]
            assert not door.call("search", q="something else", under="/cache")["hits"]
        finally:
            door.close()


def test_a_source_that_does_not_answer_a_search_is_said_after_its_time(tmp_path: Path, counted: type[Counted]) -> None:
    over = threading.Event()

    class Hangs(Counted):
        def search(self, path: str, query: str, context: Context) -> list[str]:
            over.wait(LIMIT_S)
            return []

    register_handler("hangs", Hangs)
    given = settings(Provider("/live/{name}", "hangs", search=True, timeout_s=0.3))
    door = LocalDoor(tmp_path / "avm.db", given, "alice", embeddings=False)
    try:
        door.call("read", path="/live/x")
        found = door.call("search", q="1", under="/live")
        assert [each["path"] for each in found["hits"]] == ["/live/x"]
        said = "the search of /live: no answer within 0.3 s"
        assert found["degraded"].endswith(said) and said in found["text"].splitlines()[0]
    finally:
        over.set()
        door.close()


def test_an_error_of_a_handler_keeps_its_errno(tmp_path: Path, counted: type[Counted]) -> None:
    class Refuses(Counted):
        def write(self, path: str, data: bytes, context: Context) -> None:
            raise {b"a": PermissionError("x"), b"b": FileExistsError("x"), b"c": KeyError("x")}[data]

    register_handler("refuses", Refuses)
    given = replace(settings(Provider("/live/{name}", "refuses", writable=True)), default_access="rw", permissions=())
    door = LocalDoor(tmp_path / "avm.db", given, "alice", embeddings=False)
    try:
        for data, code in ((b"a", errno.EACCES), (b"b", errno.EEXIST), (b"c", errno.EIO)):
            with pytest.raises(OSError) as told:
                door.call("write", path="/live/x", data=data)
            assert told.value.errno == code
    finally:
        door.close()


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_fetch_that_began_before_a_write_does_not_take_its_place(
    tmp_path: Path, counted: type[Counted], before: bytes | None
) -> None:
    began, go = threading.Event(), threading.Event()

    class Slow(Counted):
        has = before

        def read(self, path: str, context: Context) -> str | None:  # type: ignore[override]
            had = Slow.has
            if had == before:
                began.set()
                assert go.wait(LIMIT_S)
            return None if had is None else had.decode()

        def write(self, path: str, data: bytes, context: Context) -> None:
            Slow.has = data

    register_handler("slow", Slow)
    provider = Provider("/live/{name}", "slow", ttl=60.0, writable=True, timeout_s=LIMIT_S)
    door = LocalDoor(tmp_path / "avm.db", settings(provider), "alice", embeddings=False)
    try:
        fetcher = Fetcher(door._store, (provider,), time.time_ns, {}, ())
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(fetcher.ask, "fetch", WHERE)
            assert began.wait(LIMIT_S)
            fetcher.ask("write", WHERE, b"new", by=("alice", "mount", False))
            go.set()
            reading.result(LIMIT_S)
        assert door.call("read", path="/live/x")["data"] == b"new"
    finally:
        go.set()
        door.close()


def test_a_source_is_given_no_more_than_it_takes_by_the_door_either(tmp_path: Path, counted: type[Counted]) -> None:
    given: list[bytes] = []

    class Takes(Counted):
        def write(self, path: str, data: bytes, context: Context) -> None:
            given.append(data)

    register_handler("takes", Takes)
    provider = Provider("/live/{name}", "takes", writable=True, max_bytes=9)
    door = LocalDoor(tmp_path / "avm.db", replace(settings(provider), permissions=(), default_access="rw"), "alice")
    try:
        with pytest.raises(TooBig):
            door.call("write", path="/live/x", data=b"ten bytes.")
        assert given == []
        door.call("write", path="/live/x", data=b"nine byte")
        assert given == [b"nine byte"]
    finally:
        door.close()


def test_a_key_for_all_of_memory_has_nothing_of_what_stands_beside_it(tmp_path: Path, counted: type[Counted]) -> None:
    given: list[bytes] = []

    class Takes(Counted):
        def write(self, path: str, data: bytes, context: Context) -> None:
            given.append(data)

    register_handler("takes", Takes)
    provider = Provider("/live/{name}", "takes", writable=True)
    database, told = tmp_path / "avm.db", replace(settings(provider), permissions=(), default_access="rw")
    alice = LocalDoor(database, told, "alice", embeddings=False)

    def opened(*within: str) -> LocalDoor:
        key = alice.call("create_key", paths=[*within], actions=["read", "write"])["key"]
        doors.append(LocalDoor(database, told, None, key=key, embeddings=False))
        return doors[-1]

    doors, index = [alice], "/index/private/alice/house/x.py.md"
    try:
        alice.call("write", path="/memory/a.md", data=b"a")
        alice.call("write_index", project="house", items=[{"path": "x.py.md", "data": b"# x.py"}], private=True)
        alice.call("read", path="/live/x")  # so that the store has it
        asked, memory, both, everything = Takes.asked, opened("/memory/*"), opened("/memory/*", index), opened("/")
        for path in ("/live/x", "/live/new", index):
            with pytest.raises(NotFound):
                memory.call("read", path=path)
        for path in ("/live/x", "/live/new"):
            for door in (memory, both):
                with pytest.raises((Denied, NotFound)):
                    door.call("write", path=path, data=b"order")
        assert not given and Takes.asked == asked
        assert not {"live", "index"} & {each["name"] for each in memory.call("entries", path="/")}
        for door in (memory, both, everything):
            assert door.call("read", path="/memory/a.md")["data"] == b"a"
        for door in (both, everything):
            assert door.call("read", path=index)["data"] == b"# x.py"
        everything.call("write", path="/live/x", data=b"order")
        assert given == [b"order"] and everything.call("read", path="/live/new")["data"]
    finally:
        for door in doors:
            door.close()


def test_who_asks_waits_for_all_that_a_write_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's taking it, and the fetch of what it has then: each may need the provider's time."""
    monkeypatch.setattr(live, "LATE_S", 0.2)
    stop = threading.Event()

    class Patient:
        def ask(self, *given: Any, **more: Any) -> list[bytes]:
            time.sleep(3.3)
            return []

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(tmp_path / "live.sock"))
    listener.listen()
    serving = threading.Thread(target=live.serve, args=(listener, Patient(), stop))
    serving.start()
    try:
        provider = Provider("/live/{name}", "takes", writable=True, timeout_s=3.0)
        assert live.RemoteAsker(tmp_path / "live.sock", (provider,)).ask("write", WHERE, b"x") == []
    finally:
        stop.set()
        serving.join(LIMIT_S)
        listener.close()


def test_a_process_that_finds_no_thread_once_answers_the_next_who_asks(tmp_path: Path) -> None:
    stop = threading.Event()
    asker = Mock(ask=Mock(return_value=[b"x"]))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "live.sock"))
        listener.listen()
        serving = threading.Thread(target=live.serve, args=(listener, asker, stop))
        serving.start()
        try:
            with refused_once("live"):
                remote = live.RemoteAsker(tmp_path / "live.sock", ())
                remote._limit = LIMIT_S
                with pytest.raises(Busy):
                    remote.ask("names", WHERE)
                assert remote.ask("names", WHERE) == [b"x"]
        finally:
            stop.set()
            serving.join(LIMIT_S)


def test_an_open_file_that_a_source_takes_goes_on_in_the_next_process(tmp_path: Path, counted: type[Counted]) -> None:
    given: list[bytes] = []

    class Takes(Counted):
        def write(self, path: str, data: bytes, context: Context) -> None:
            given.append(data)

    register_handler("takes", Takes)
    provider = Provider("/live/{name}", "takes", writable=True, max_bytes=9)
    door = LocalDoor(tmp_path / "avm.db", replace(settings(provider), permissions=(), default_access="rw"), "alice")
    try:
        memory = door._memory
        one = LiveHandle(memory, 7, WHERE, b"abc", True, emptied=False)
        left = [handover.plain_handle(one)]
        for framed in (
            one.framed(1, b"XY", append=False),
            one.framed(0, b"!", append=True),
            one.cut(2),
            one.framed(4, b"z", append=False),
        ):
            one.edit(framed)
            left.append([handover.plain_progress(one), framed])
        other = handover.handle_from(memory, left[0])
        for progress, framed in left[1:]:
            handover.set_progress(other, progress, framed)
        other.flush()
        other.flush()
        other.release()
        assert given == [b"aX\0\0z"] == [one.read(0, 9)]
        with pytest.raises(TooBig):
            other.write(5, b"12345")
        other.flush()
        other.release()
        assert len(given) == 1
        LiveHandle(memory, 7, WHERE, b"", False, emptied=True).release()
        assert given[1:] == [b""]
    finally:
        door.close()


def test_a_refusal_that_was_not_waited_for_is_told_by_the_next_fsync(tmp_path: Path, counted: type[Counted]) -> None:
    call = calls.Call()

    class Refuses(Counted):
        def write(self, path: str, data: bytes, context: Context) -> None:
            call.give_up()
            raise PermissionError("no")

    register_handler("refuses", Refuses)
    provider = Provider("/live/{name}", "refuses", writable=True)
    door = LocalDoor(tmp_path / "avm.db", replace(settings(provider), permissions=(), default_access="rw"), "alice")
    try:
        handle = LiveHandle(door._memory, 7, WHERE, b"", False, emptied=False)
        handle.write(0, b"x")
        calls.working.call = call
        with pytest.raises(Denied):
            handle.fsync()
        calls.working.call = None
        with pytest.raises(Denied):
            handle.fsync()
        handle.fsync()
    finally:
        calls.working.call = None
        door.close()
