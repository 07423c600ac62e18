"""The sections `consolidate` and `digest` of config.yaml: how often the daemon consolidates, who writes summaries, and
when agents get their digests.

Owns the values, their readers and the rules that span its keys. Called by `readers`.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from avmfs_config.parse import Range, Readers, Value

EVERY = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
AT = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
ADDRESS = re.compile(r"https?://[^/@\s]+(/\S*)?")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}


@dataclass(frozen=True, slots=True)
class ConsolidateSettings:
    """Consolidation by the daemon, for each agent as that agent, `every` so many seconds (written 12h, 1d, 1w; None:
    never), of at most `limit` notes together; `cold_days` and `summaries` as the command has them.

    Summaries, also those of the command, are sentences of the notes, unless `endpoint` names the address of a
    /chat/completions as OpenAI has it: then `model` writes them there. The key is the value of the environment variable
    `key_env` or the text of `key_file`.
    """

    every: float | None = None
    limit: Annotated[int, Range(1, 10_000)] = 100
    cold_days: Annotated[float | None, Range(1.0, 36_500.0)] = None
    summaries: bool = False
    endpoint: str | None = None
    model: str | None = None
    key_env: str | None = None
    key_file: Path | None = None
    timeout_s: Annotated[float, Range(1.0, 600.0)] = 60.0


@dataclass(frozen=True, slots=True)
class DigestSettings:
    """A digest in the inbox of each agent, every day `at` an hour of local time, in minutes since midnight (written
    "08:00"; None: never). `cold_days` as the command's `--cold`."""

    at: int | None = None
    cold_days: Annotated[float, Range(0.0, 100_000.0)] = 90.0


def read_consolidate(value: Value) -> ConsolidateSettings:
    """The section. Raises ConfigError, also for keys that do not go together."""
    found = value.record(ConsolidateSettings, CONSOLIDATE)
    if (found.endpoint is None) != (found.model is None):
        raise value.error("`endpoint`, the address of a /chat/completions, and `model` go together")
    check_key(value, found, "key_env", "key_file")
    return found


def check_key(value: Value, found: Any, *of_endpoint: str) -> None:
    """Raise ConfigError unless a service's keys go together."""
    for name in of_endpoint if found.endpoint is None else ():
        if getattr(found, name) is not None:
            raise value.child(name).error("is for an `endpoint`")
    if found.key_env is not None and found.key_file is not None:
        raise value.error("either `key_env` or `key_file`")


def _every(value: Value) -> float | None:
    text = value.optional(Value.text)
    if text is None:
        return None
    found = EVERY.fullmatch(text)
    if found is None:
        raise value.error(f"expected a duration such as 30m, 12h, 1d or 1w, not {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _time_of_day(value: Value) -> int | None:
    """Minutes."""
    text = value.optional(Value.text)
    found = None if text is None else AT.fullmatch(text)
    if text is not None and found is None:
        raise value.error(f"expected a time of day such as 08:00, not {text!r}")
    return None if found is None else int(found[1]) * 60 + int(found[2])


def endpoint(value: Value, service: str) -> str | None:
    """The address of a service; ``service`` is how such a one ends."""
    text = value.optional(Value.text)
    if text is not None and not ADDRESS.fullmatch(text):
        raise value.error(f"expected an address such as https://api.example.com/v1/{service}, not {text!r}")
    return text


CONSOLIDATE: Readers = {"every": _every, "endpoint": partial(endpoint, service="chat/completions")}
DIGEST: Readers = {"at": _time_of_day}
