"""markdown: a folder of files, what is said of a note in its front matter, of anything else in ``.avm.jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from avmfs.errors import Invalid
from avmfs.transfer import front_matter
from avmfs.transfer.files import all_but, files, make_folder, new_folder, private
from avmfs.transfer.formats import reader, writer
from avmfs.transfer.record import Record, Refusal, moment, of_plain, plain, time_or_none

BESIDE: Final = ".avm.jsonl"
NOTES: Final = (".md", ".markdown")


@writer("markdown", "a folder of files, with front matter")
def write(path: Path, records: Iterator[Record]) -> int:
    count, left = 0, list[str]()
    folder = new_folder(path)
    with open(folder / BESIDE, "w", encoding="ascii", opener=private) as beside:
        for record in records:
            said, to = plain(record), folder / record.path
            noted = _noted(record, said)
            try:
                if record.data is not None:
                    make_folder(to.parent)
                    with open(to, "xb", opener=private) as file:
                        file.write(record.data if noted is None else noted)
                    if record.updated is not None:
                        os.utime(to, ns=(record.updated, record.updated))
                elif record.target is None:
                    make_folder(to)
            except FileExistsError:  # BESIDE, or on this disk A.md is a.md
                left.append(record.path)
                continue
            count += 1
            if noted is None:
                beside.write(json.dumps({"path": record.path, "kind": record.kind, **said}, sort_keys=True) + "\n")
    if left:
        raise Invalid(all_but(left, "the folder has another thing under such a name (tar has all)"))
    return count


@reader("markdown", "a folder of files, those of avm export and any other", native=True)
def read(path: Path) -> Iterator[Record | Refusal]:
    said: dict[str, Any] = {}
    if (beside := path / BESIDE).exists():
        for number, line in enumerate(beside.read_bytes().splitlines(), 1):
            try:
                each = json.loads(line)
                if not isinstance(each["path"], str):
                    raise TypeError
                said[each["path"]] = each
            except (ValueError, KeyError, TypeError, RecursionError):
                yield Refusal(f"{BESIDE}:{number}", "no line of avm export")
    for name, each in said.items():
        if each.get("kind") in ("directory", "symlink"):
            yield from _made(name, None, each)
    listed = {name for name in said if _hidden(name) and name != BESIDE}
    for each in files(path, hidden=bool(listed)):
        name = each.where if isinstance(each, Refusal) else each[0]
        if _hidden(name) and name not in listed:
            continue  # what others keep beside notes
        if isinstance(each, Refusal):
            yield each
        else:
            yield from _made(name, each[1], said.get(name))


def _made(name: str, file: Path | None, said: dict[str, Any] | None) -> Iterator[Record | Refusal]:
    try:
        data = None if file is None else file.read_bytes()
        if data is not None and said is None and name.endswith(NOTES):
            said, data, own = front_matter.without_said(data)
            said = {**foreign(own), **said}
            if "title" in said:
                said["meta"] = {**(said.get("meta") or {}), "title": str(said["title"])}
        given = {"updated": moment(file.stat().st_mtime_ns)} if file is not None else {}
        yield of_plain(name, data, {**given, **(said or {})}, name)
    except (Invalid, OSError) as e:
        yield Refusal(name, e.reason if isinstance(e, Invalid) else str(e.strerror))


def foreign(front: dict[str, Any]) -> dict[str, Any]:
    """What the front matter of others says, as far as a record has it."""
    said: dict[str, Any] = {"tags": front_matter.words(front.get("tags", front.get("tag")))}
    for name, keys in (("created", ("created", "created_at", "date")), ("updated", ("updated", "modified"))):
        found = next((at for key in keys if (at := time_or_none(front.get(key))) is not None), None)
        if found is not None:
            said[name] = moment(found)
    return said | {name: front[name] for name in ("author", "title") if isinstance(front.get(name), str)}


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _noted(record: Record, said: dict[str, Any]) -> bytes | None:
    """A note with what is said of it; None where it would not come back as it is: then that is said beside it."""
    if not record.path.endswith(NOTES) or record.data is None or _hidden(record.path):
        return None
    if isinstance(title := record.meta.get("title"), str):
        said = {**said, "title": title}
    data = front_matter.with_said(record.data, said)
    try:
        record.data.decode()
        return data if front_matter.without_said(data) == (said, record.data, {}) else None
    except (UnicodeDecodeError, Invalid):
        return None
