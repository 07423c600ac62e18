"""jsonl: a record a line, ``content`` for text and ``base64`` for anything else."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avmfs.errors import Invalid
from avmfs.transfer.files import output
from avmfs.transfer.formats import reader, writer
from avmfs.transfer.record import Record, Refusal, of_plain, plain


@writer("jsonl", "a line of JSON for each file")
def write(path: Path, records: Iterator[Record]) -> int:
    count = 0
    with output(path) as out:
        for record in records:
            count += 1
            said: dict[str, Any] = {"path": record.path, **plain(record)}
            if record.data is not None:
                try:
                    said["content"] = record.data.decode()
                except UnicodeDecodeError:
                    said["base64"] = base64.b64encode(record.data).decode()
            out.write(json.dumps(said, sort_keys=True).encode() + b"\n")
    return count


@reader("jsonl", "lines of avm export", native=True)
def read(path: Path) -> Iterator[Record | Refusal]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                said = json.loads(line)
                if not isinstance(said, dict) or not isinstance(said.get("path"), str):
                    raise Invalid("expected an object with a path")
                yield of_plain(said["path"], _bytes(said), said, place)
            except Invalid as e:
                yield Refusal(place, e.reason)
            except (ValueError, RecursionError) as e:
                yield Refusal(place, f"no JSON: {e}")


def _bytes(said: dict[str, Any]) -> bytes | None:
    text, coded = said.get("content"), said.get("base64")
    if not isinstance(text, str | None) or not isinstance(coded, str | None):
        raise Invalid("content and base64 are text")
    try:
        return base64.b64decode(coded, validate=True) if coded is not None else None if text is None else text.encode()
    except (binascii.Error, UnicodeEncodeError) as e:
        raise Invalid(f"its content cannot be read: {e}") from None
