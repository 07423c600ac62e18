"""Spans of OpenTelemetry around what a program asks of its memory, by the GenAI conventions for memory operations.

Owns which method of the door is which operation. Spans are made where the program has loaded OpenTelemetry's SDK
(``pip install 'avmfs[otel]'``), with the provider that it has set up; elsewhere nothing is imported and no call is
wrapped. Contents stay out, but for questions where OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for them.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from avmfs.rpc.client import Door

_SDK: Final = "opentelemetry.sdk.trace"
_CONTENT: Final = ("true", "1", "span_only", "span_and_event")
_OPERATIONS: Final = {
    **dict.fromkeys(("ask", "bundle", "recall", "retrieve", "search", "synthesize"), "search_memory"),
    # What is there already is changed by the same methods, and alike memories are one.
    **dict.fromkeys(("remember", "remember_many", "write"), "upsert_memory"),
    **dict.fromkeys(("link", "move", "restore", "tag"), "update_memory"),
    **dict.fromkeys(("purge", "remove"), "delete_memory"),
}


def traced(door: Door, store: str) -> Door:
    """The door, or one that makes spans; ``store`` names the memory in them."""
    return _TracedDoor(door, store) if _SDK in sys.modules else door


class _TracedDoor:
    def __init__(self, door: Door, store: str) -> None:
        self._door, self._store = door, store
        self.agent, self.urgent = door.agent, door.urgent

    def call(self, method: str, /, **arguments: Any) -> Any:
        result = self._traced(method, arguments) if method in _OPERATIONS else self._door.call(method, **arguments)
        self.urgent = self._door.urgent
        return result

    def close(self) -> None:
        self._door.close()

    def _traced(self, method: str, arguments: dict[str, Any]) -> Any:
        from opentelemetry import trace

        operation = _OPERATIONS[method]
        about = {"gen_ai.operation.name": operation, "gen_ai.memory.store.id": self._store} | _asked(arguments)
        tracer = trace.get_tracer("avmfs")
        with tracer.start_as_current_span(operation, kind=trace.SpanKind.CLIENT, attributes=about) as span:
            try:
                result = self._door.call(method, **arguments)
            except OSError as e:
                span.set_attribute("error.type", errno.errorcode.get(e.errno or 0, type(e).__name__))
                raise
            if (count := _count(method, arguments, result)) is not None:
                span.set_attribute("gen_ai.memory.record.count", count)
            return result


def _asked(arguments: dict[str, Any]) -> dict[str, str]:
    told = {"gen_ai.memory.record.id": arguments.get("path") or arguments.get("source")}
    if os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").lower() in _CONTENT:
        told["gen_ai.memory.query.text"] = arguments.get("q") or arguments.get("question")
    return {key: value for key, value in told.items() if isinstance(value, str)}


def _count(method: str, arguments: dict[str, Any], result: Any) -> int | None:
    """How many records it gave, or was about."""
    if method == "remember_many":
        return len(arguments["items"])
    found = result.get({"recall": "items", "search": "hits", "remove": "removed"}.get(method, ""))
    if isinstance(found, (int, list)):
        return found if isinstance(found, int) else len(found)
    return 1 if method in ("link", "remember", "tag", "write") else None
