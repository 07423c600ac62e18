"""What the door's methods take and give, as bodies of HTTP: JSON for everybody, msgpack for our own clients.

Owns the two forms and how an error is told in them. JSON has no bytes: they are {"base64": "..."}, and where an
argument is bytes, text stands for its UTF-8. A name that is no UTF-8 has lone surrogates, as in Python's str. msgpack
carries the door's own values.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
from typing import Any, Final

from starlette.responses import Response

from avmfs import errors, wire
from avmfs.errors import NO_TEXT, AvmError, Invalid
from avmfs.http.doors import Unauthorized
from avmfs.text.escapes import json_safe

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
STATUS: Final[dict[type[AvmError], int]] = {
    Unauthorized: 401,
    errors.Invalid: 400,
    errors.NameTooLong: 400,
    errors.TooSmall: 400,
    errors.Denied: 403,
    errors.NotPermitted: 403,
    errors.ReadOnly: 403,
    errors.NotFound: 404,
    errors.NoAttribute: 404,
    errors.Exists: 409,
    errors.IsDirectory: 409,
    errors.NotDirectory: 409,
    errors.NotEmpty: 409,
    errors.WouldDeadlock: 409,
    errors.BadHandle: 409,
    errors.Stale: 409,
    errors.TooBig: 413,
    errors.PastEnd: 416,
    errors.NotSupported: 422,
    errors.OverQuota: 429,
    errors.StoreFailed: 500,
    errors.Busy: 503,
    errors.Interrupted: 503,
    errors.TimedOut: 504,
    errors.NoSpace: 507,
}
"""An error's HTTP status. ``code`` and ``errno`` in the body tell more."""


def status_of(error: AvmError) -> int:
    return next(status for kind, status in STATUS.items() if isinstance(error, kind))


def arguments(body: bytes, packed: bool, binary: frozenset[str]) -> dict[str, Any]:
    """The named arguments in a body; an empty one has none. ``binary`` are those that are bytes. Raises Invalid."""
    if not body:
        return {}
    try:
        given = wire.unpack(body, wire.ITEMS) if packed else _unbased(_parsed(body))
    except (wire.FrameError, ValueError, RecursionError) as e:
        raise Invalid(f"the body cannot be read: {e}") from None
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise Invalid("the body is an object of named arguments")
    if not packed:
        for name in binary & given.keys():
            if isinstance(given[name], str):
                try:
                    given[name] = given[name].encode("utf-8", "surrogateescape")
                except UnicodeEncodeError:
                    raise Invalid(f"{name}: {NO_TEXT}") from None
    return given


def answer(result: Any, urgent: str, packed: bool, status: int = 200) -> Response:
    if packed:
        return Response(wire.pack({"error": None, "result": result, "urgent": urgent}), status, media_type=MSGPACK)
    return Response(json_text({"result": result, "urgent": urgent}), status, media_type=JSON)


def refusal(error: AvmError, packed: bool, status: int | None = None) -> Response:
    """``status``: another than the error's own."""
    status = status or status_of(error)
    told = [error.code, error.reason, error.filename]
    if packed:
        response = Response(wire.pack({"error": told, "result": None, "urgent": ""}), status, media_type=MSGPACK)
    else:
        about = {"code": errno.errorcode.get(error.code, str(error.code)), **dict(zip(_TOLD, told, strict=True))}
        response = Response(json_text({"error": about}), status, media_type=JSON)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    elif status == 503:
        response.headers["retry-after"] = "1"
    return response


def json_text(value: Any) -> str:
    return json_safe(value, default=_based)


_TOLD: Final = ("errno", "reason", "path")


def _parsed(body: bytes) -> Any:
    _check_items(body)
    return json.loads(body, parse_constant=_no_number)


def _check_items(body: bytes) -> None:
    """Raise ValueError before too many are made. Other threads wait for each step here, so there are few, of the whole:
    a pattern for strings keeps what it has seen, and takes a gigabyte."""
    if _marks(body) <= wire.ITEMS:
        return
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of quotes begins or ends a string
    if bare.count(b'"') > 4 * (wire.ITEMS + 1) or _marks(b"".join(bare.split(b'"')[::2])) > wire.ITEMS:
        raise ValueError(f"more than {wire.ITEMS} items")


def _marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _unbased(value: Any) -> Any:
    if isinstance(value, list):
        return [_unbased(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("base64 that is none") from None
    return {name: _unbased(each) for name, each in value.items()}


def _based(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no form in JSON for {type(value).__name__}")
