"""The door's socket: who a client is, and one thread for each.

Owns accepting, identity, limits. A client's Unix uid comes from the kernel (SO_PEERCRED): the daemon's own uid
and root may be any agent, or the operator when they ask; another uid only the agents that ``uids`` in
config.yaml gives it; and whoever shows an API key is its agent, within its limits (``identity``). Frames are
capped, clients are counted per uid, silent ones are dropped, long work takes turns (``fairness``), so that nobody can
exhaust the door for the others.

Protocol, in ``avmfs.wire`` frames. Greeting: {"v", "agent", "operator", "route"}, and "key" where one is shown (then
"agent" may be None; "" is nobody in particular); "stranger": true of one who asks for another Unix user, as the HTTP
service does -> {"ok": {...}} or {"error": [errno, reason, path]}. Request: {"id", "method", "arguments"} -> {"id",
"error", "result", "urgent"}; ``urgent`` is the banner of unread urgent mail, shown apart from every result.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from avmfs_config import Settings, check_agent_id

from avmfs import calls, metrics, wire
from avmfs.access import Principal
from avmfs.errors import AvmError, Busy, Denied, Invalid, StoreFailed, TooBig
from avmfs.listener import Listener, in_thread
from avmfs.memory import Memory
from avmfs.rpc import identity, methods
from avmfs.rpc.client import REQUEST_LIMIT
from avmfs.rpc.fairness import ClientsCall, Fairness

log = logging.getLogger(__name__)

GREETING_LIMIT, GREETING_S = 4096, 5.0
IDLE_S = 600.0
SEND_S, TAKEN = 30.0, 64 * 1024  # as the HTTP service's: what a client takes of an answer within so long
CLIENTS, CLIENTS_PER_UID = 384, 256
DOOR_ROUTES = ("", "cli", "http", "mcp", "python")
STRANGERS, STRANGERS_PER_UID = 128, 16  # many users together leave room for the daemon's own
SWITCH_S: Final = 0.0005  # as a mount: who asks for little waits less for threads that compute
LAST_ANSWERS_S = 2.0  # for what was accepted before the stop; less than a child is given to end


def serve_door(
    listener: socket.socket,
    open_for: Callable[[Principal], Memory],
    settings: Settings,
    control: Callable[[str, dict[str, Any]], Any],
    stop: threading.Event,
    idle: tuple[float, Callable[[], None]] | None = None,
) -> None:
    """Accept until ``stop`` is set. ``idle``: what to call, again and again, once nobody has asked for so many seconds,
    and nobody waits for an answer. Returns once every client accepted has its answer, except for those that wait for
    something to happen, or after LAST_ANSWERS_S; connections end with the process."""
    door = _Door(open_for, settings, control)
    sys.setswitchinterval(SWITCH_S)
    for client in Listener(listener, "door").clients(stop):
        if client is not None:
            door.admit(client)
        if idle is not None and door.quiet_s() > idle[0]:
            idle[1]()
    door.answer_the_last()


class _Door:
    def __init__(
        self, open_for: Callable[[Principal], Memory], settings: Settings, control: Callable[[str, dict[str, Any]], Any]
    ) -> None:
        self._open_for = open_for
        self._settings = settings
        self._control = control
        self._fairness = Fairness()
        self._clients: Counter[int] = Counter()
        self._owed: dict[socket.socket, ClientsCall | None] = {}  # an answer; None before its request has come
        self._took: dict[str, metrics.Histogram] = {}  # by method
        self._mutex = threading.Lock()
        self._asked = time.monotonic()  # when somebody last asked or was answered

    def quiet_s(self) -> float:
        """Seconds since the last request was answered; 0 while somebody is owed an answer."""
        with self._mutex:
            return 0.0 if self._owed else time.monotonic() - self._asked

    def admit(self, client: socket.socket) -> None:
        uid = wire.peer_uid(client)
        own = uid in (os.geteuid(), 0)
        with self._mutex:
            full = self._clients.total() >= CLIENTS or self._clients[uid] >= (
                CLIENTS_PER_UID if own else STRANGERS_PER_UID
            )
            if not own:
                strangers = sum(count for each, count in self._clients.items() if each not in (os.geteuid(), 0))
                full = full or strangers >= STRANGERS
            if not full:
                self._clients[uid] += 1
                self._owed[client] = None
        if full or not in_thread(f"client uid {uid}", self._serve, client, uid):
            if not full:
                self._gone(client, uid)
            client.settimeout(1)
            _try_send(client, {"error": _error(Busy("too many clients"))})
            client.close()

    def answer_the_last(self) -> None:
        """Wait until nobody is owed an answer who can be given it soon, LAST_ANSWERS_S at most."""
        until = time.monotonic() + LAST_ANSWERS_S
        while time.monotonic() < until:
            with self._mutex:
                if all(call is not None and call.resting for call in self._owed.values()):
                    return
            time.sleep(0.005)

    def _serve(self, client: socket.socket, uid: int) -> None:
        try:
            with client:
                self._talk(client, uid)
        except (EOFError, OSError):
            pass  # the client went away, or was silent for too long
        except wire.FrameError as e:
            log.warning("door: dropping a client of uid %d: %s", uid, e)
        finally:
            self._gone(client, uid)

    def _gone(self, client: socket.socket, uid: int) -> None:
        with self._mutex:
            self._clients[uid] -= 1
            self._owed.pop(client, None)

    def _talk(self, client: socket.socket, uid: int) -> None:
        client.settimeout(GREETING_S)
        try:
            who = self._identify(wire.receive(client, GREETING_LIMIT), uid)
            memory = self._open_for(who)
            if who.operator:
                memory.submit("act_as_operator")
        except AvmError as e:
            self._open_for(Principal(f"uid:{uid}")).refused("greeting", e)  # no agent has such a name
            wire.send(client, {"error": _error(e)})
            return
        presence = memory.around.presence
        with contextlib.ExitStack() as while_here:
            if presence is not None and who.name:
                while_here.enter_context(presence.entered(who.name, who.route or "door", memory.now()))
            self._converse(client, memory)

    def _converse(self, client: socket.socket, memory: Memory) -> None:
        who = memory.who
        wire.send(client, {"ok": {"agent": who.name, "operator": who.operator}})
        client.settimeout(IDLE_S)
        while True:
            _deliver(client, self._replied(client, memory))  # and nothing else of either is kept until the next one
            with self._mutex:
                del self._owed[client]
                self._asked = time.monotonic()

    def _replied(self, client: socket.socket, memory: Memory) -> bytes:
        """The next request's answer, as a frame."""
        request = wire.receive(client, REQUEST_LIMIT, wire.ITEMS)
        if not isinstance(request, dict) or not isinstance(request.get("id"), int):
            raise wire.FrameError("not a request")
        calls.working.call = call = self._fairness.call(client, memory.who)
        with self._mutex:
            self._owed[client] = call
        try:
            answer = self._answer(memory, request)
        finally:
            calls.working.call = None
            call.done()
        return _reply(request["id"], answer)

    def _identify(self, greeting: Any, uid: int) -> Principal:
        if not isinstance(greeting, dict) or greeting.get("v") != wire.PROTOCOL:
            raise Invalid("this client speaks another version of the protocol")
        agent, operator, key = greeting.get("agent"), greeting.get("operator", False), greeting.get("key")
        route = greeting.get("route", "")
        if route not in DOOR_ROUTES:
            raise Invalid(f"no client comes by route {route!r}")
        if isinstance(key, str) and isinstance(agent, str | None) and isinstance(operator, bool):
            return identity.by_key(self._open_for(identity.NOBODY), key, agent, operator, route)
        if key is not None or not isinstance(agent, str) or not isinstance(operator, bool):
            raise Invalid("a client says who it is")
        try:
            if agent or operator:  # "": nobody in particular, who only reads
                check_agent_id(agent)
        except ValueError as e:
            raise Invalid(str(e)) from None
        own = uid in (os.geteuid(), 0)
        if not own and agent not in self._settings.uids.get(uid, ()):
            raise Denied(f"uid {uid} may not speak for {agent!r}: see `uids` in config.yaml")
        who = Principal(agent, operator, route=route, stranger=not own or greeting.get("stranger") is True)
        if operator:
            identity.require_sudo(self._open_for(who))
        return who

    def _answer(self, memory: Memory, request: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        answer = self._answered(memory, request)
        name = request.get("method")
        if (took := self._took.get(name) if isinstance(name, str) else None) is None:
            known = str(name) if name in methods.names() else "unknown"  # what a client makes up is no series
            took = metrics.histogram("avm_door_seconds", method=known)
            if known == name:
                self._took[known] = took
        took.observe(time.perf_counter() - began)
        if answer["error"] is not None:
            code = errno.errorcode.get(answer["error"][0], "unknown")
            metrics.counter("avm_door_errors_total", code=code).add()
        return answer

    def _answered(self, memory: Memory, request: dict[str, Any]) -> dict[str, Any]:
        name, arguments = request.get("method"), request.get("arguments", {})
        try:
            if (
                not isinstance(name, str)
                or not isinstance(arguments, dict)
                or not all(isinstance(key, str) for key in arguments)
            ):
                raise Invalid("a request has a method and named arguments")
            identity.require_valid(memory)
            result = methods.call(memory, name, arguments)
            return {"error": None, "result": result, "urgent": methods.urgent(memory) if name != "urgent" else ""}
        except AvmError as e:
            return {"error": _error(e), "result": None, "urgent": ""}
        except Exception:  # a defect in one method must not end the door
            log.exception("door: method %r failed", name)
            return {
                "error": _error(StoreFailed("internal error; the daemon's log has the details")),
                "result": None,
                "urgent": "",
            }


def _deliver(client: socket.socket, reply: bytes) -> None:
    """Raises TimeoutError for a client that does not take TAKEN bytes in SEND_S: what is kept for it is in everybody's
    way. For all of it there is no limit."""
    client.settimeout(SEND_S)
    whole = memoryview(reply)
    for start in range(0, len(reply), TAKEN):
        client.sendall(whole[start : start + TAKEN])
    client.settimeout(IDLE_S)


def _reply(number: int, answer: dict[str, Any]) -> bytes:
    """The frame of an answer; of one that no frame can carry (a number beyond 64 bits, or too many bytes), why not."""
    try:
        packed = wire.pack({"id": number, **answer})
        if len(packed) <= wire.LIMIT:
            return wire.framed(packed)
        said = _error(TooBig(f"an answer of {len(packed)} bytes: ask for less, or through a mount"))
    except (OverflowError, ValueError) as e:
        log.error("door: an answer cannot be sent: %s", e)
        said = _error(StoreFailed(f"the answer cannot be sent: {e}"))
    return wire.frame({"id": number, "error": said, "result": None, "urgent": ""})


def _error(error: AvmError) -> list[Any]:
    return [error.code, error.reason, error.filename]


def _try_send(client: socket.socket, value: Any) -> None:
    try:
        wire.send(client, value)
    except OSError:
        log.debug("a refused client did not wait for its refusal")
