"""tar.gz: an archive that any tar unpacks, with what is said of each file in a PAX header, ``AVM.record``."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from avmfs.errors import AvmError, Invalid
from avmfs.transfer.files import output
from avmfs.transfer.formats import reader, writer
from avmfs.transfer.record import Record, Refusal, of_plain, plain

HEADER: Final = "AVM.record"


@writer("tar", "an archive of the files, with their metadata")
def write(path: Path, records: Iterator[Record]) -> int:
    count = 0
    with output(path) as out, tarfile.open(fileobj=out, mode="w|gz", format=tarfile.PAX_FORMAT) as tar:
        for record in records:
            count += 1
            member = tarfile.TarInfo(record.path)
            member.mtime = (record.updated or 0) / 1e9
            member.uname, member.pax_headers = record.author or "", {HEADER: json.dumps(plain(record), sort_keys=True)}
            if record.data is not None:
                member.size, member.mode = len(record.data), record.mode or 0o644
            elif record.target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, record.target
            else:
                member.type, member.mode = tarfile.DIRTYPE, record.mode or 0o755
            tar.addfile(member, None if record.data is None else io.BytesIO(record.data))
    return count


@reader("tar", "an archive of avm export, or any other tar", native=True)
def read(path: Path) -> Iterator[Record | Refusal]:
    try:
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./").rstrip("/")
                place = f"{path.name}:{name}"
                if member.isfile():
                    data = (tar.extractfile(member) or io.BytesIO()).read()
                elif member.isdir() or member.issym():
                    if name in ("", "."):
                        continue
                    data = None
                else:
                    yield Refusal(place, "neither a file, a folder nor a symlink")
                    continue
                said = {"mode": f"{member.mode:04o}", "updated": member.mtime} if member.isfile() else {}
                if member.issym():
                    said = {"target": member.linkname}
                try:
                    if (own := member.pax_headers.get(HEADER)) is not None:
                        said = json.loads(own)
                        if not isinstance(said, dict):
                            raise Invalid("expected an object")
                    yield of_plain(name, data, said, place)
                except (ValueError, RecursionError, AvmError) as e:
                    yield Refusal(place, f"its header {HEADER}: {e}")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as e:
        if isinstance(e, FileNotFoundError):
            raise
        raise Invalid(f"no archive that can be read to its end: {e}", os.fspath(path)) from None
