"""Values of the store as JSON and msgpack carry them: bytes of a path as text, times in ISO 8601.

Owns that rule, which goes by the names of fields. Called by the door's methods and by listings. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from avmfs import paths
from avmfs.agents.mail import iso

_TIMES: Final = frozenset(["at", "created", "expires", "made", "retry_at", "revoked", "since", "until", "updated"])


def told(value: object, names: str, **more: Any) -> dict[str, Any]:
    """{name: field} of the fields that ``names`` has, with blanks between, and ``more``. A handle has its sign."""
    fields = {name: getattr(value, name) for name in names.split()} | more
    return {name: _plain(name, field) for name, field in fields.items()}


def _plain(name: str, field: Any) -> Any:
    if isinstance(field, bytes):
        return paths.text(field)
    if name in _TIMES and isinstance(field, int):
        return iso(field)
    if name == "handle" and field is not None:
        return f"@{field}"
    return [*field] if isinstance(field, tuple) else field
