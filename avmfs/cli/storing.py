"""What is wrong with the store, the files beside it and the daemon that serves it: a part of `avm doctor`.

Looks and changes nothing. What the store itself says is found by ``avmfs.store.repair.examine``; each problem names the
command that mends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from avmfs_config import ConfigError, Paths, Settings, load_settings

from avmfs import wire
from avmfs.agents import anchors, auditing
from avmfs.cli.needs import Finding
from avmfs.embed import universal
from avmfs.errors import Invalid
from avmfs.store.files import loss_check, wal_frames
from avmfs.store.files.room import reserve
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import examine
from avmfs.text.escapes import escaped, visible

REPAIR: Final = "avm repair"
ASK_S: Final = 10.0  # for the daemon to answer
FIRST_S: Final = 2.0  # for the first anchors, which follow the sync of what they are of
_SAMPLE = 30  # files, written last
_SOME = 0.2  # share of them in other scripts from which it is said
# By its name: all-MiniLM-L6-v2 and bge-small-en-v1.5 know English alone; one that says nothing may know any.
_ENGLISH = re.compile(r"^(?!.*multilingual).*(?:(?:^|/)(?:all-|wordllama)|(?:^|[-_])en(?:$|[-_]))", re.IGNORECASE)


def storing(where: Paths, *, quick: bool = False) -> Iterator[Finding]:
    """All of it. ``quick``: of the store no more than its files and its ends."""
    try:
        settings = load_settings(where.config_file, os.environ)
    except ConfigError:
        return  # said where the file itself is looked at
    path = where.database
    try:
        lock = StoreLock(path)
        holder = None if lock.path.is_dir() else lock.holder()
        runtime = where.runtime_dir if holder is None else Path(holder["socket"]).parent
        yield from _host(path, runtime, running=holder is not None)
        kept = settings.audit.anchors or anchors.beside(path)
        known = loss_check.known(path, anchors.newest(kept))
    except OSError as e:
        yield Finding("store", "problem", f"{path}: {e.strerror or e}", "run it as the user whose store it is")
        return
    if holder is None:
        yield Finding("daemon", "note", "not running", "avm-daemon start --daemon")
    else:
        by = ", started by a command: it mounts nothing" if holder.get("automatic") else ""
        yield Finding("daemon", "ok", f"pid {holder['pid']}, {holder['socket']}{by}")
        yield from _daemon(runtime)
    repair = REPAIR if holder is None else f"avm-daemon stop && {REPAIR}"
    try:
        yield from _store(path, settings, kept, known, live=holder is not None, quick=quick, repair=repair)
    except examine.BROKEN as e:
        strange = isinstance(e, Invalid) and (not known or examine.strange(path))
        todo = "install the avmfs that wrote it, or choose another path with --db or AVM_DB" if strange else repair
        yield Finding("store", "problem", str(e), todo)
    except OSError as e:
        yield Finding("store", "problem", f"{e.filename or path}: {e.strerror or e}", repair)


def _host(path: Path, runtime: Path, *, running: bool) -> Iterator[Finding]:
    """The folders, what is left in them, and room."""
    folder = path.parent
    if folder.exists():
        named = _quoted(folder)
        free = os.statvfs(folder)
        if (fixed := free.f_flag & os.ST_RDONLY) or not os.access(folder, os.W_OK | os.X_OK):
            says = "is on a disk that is mounted for reading alone" if fixed else "cannot be written"
            todo = f'mount -o remount,rw "$(findmnt -n -o TARGET -T {named})"' if fixed else f"chmod u+rwx {named}"
            way = f"{todo}, or choose another place with AVM_DATA_DIR"
            yield Finding("data", "problem", f"{folder} {says}", way)
        if folder.stat().st_mode & 0o044:
            says = f"{folder}: others may list it, and see when something is written and how much"
            yield Finding("data", "note", says, f"chmod 700 {named}")
        room, least = free.f_bavail * free.f_frsize, 2 * reserve(free)
        removable = room >= least // 4  # a removal is written to the log, too
        if room <= least:
            left = "little" if removable else "nothing"
            says = f"{folder}: {room >> 10} kB are free, and {least >> 10} kB stay free: {left} can be written"
            more = "; until then, avm rm makes room for what is written" if removable else ""
            yield Finding("disk", "problem", says, f"df {named}; free some of that disk{more}")
    lock = StoreLock(path)
    for each in (path, wal_frames.beside(path), lock.path):
        with contextlib.suppress(FileNotFoundError):
            if (mode := each.stat().st_mode) & 0o077 and not stat.S_ISDIR(mode):
                yield Finding("modes", "problem", f"{each}: others may open it", f"chmod 600 {_quoted(each)}")
            elif stat.S_ISDIR(mode):
                yield Finding("modes", "problem", f"{each} is a directory", f"mv {_quoted(each)} {_quoted(each)}.away")
    if not running and lock.path.is_file() and not lock.clean:
        yield Finding("lock", "note", f"{lock.path}: left by one that was killed; nobody holds it, a start takes it")
    if runtime.is_dir():
        found = runtime.stat()
        # Root may look at the daemon of a user of its own.
        if found.st_uid != (lock.path.stat().st_uid if running else os.geteuid()):
            says = f"{runtime} belongs to uid {found.st_uid}"
            yield Finding("runtime", "problem", says, "set AVM_RUNTIME_DIR to a folder of your own")
        elif stat.S_IMODE(found.st_mode) & 0o066:
            yield Finding(
                "runtime", "problem", f"{runtime}: others may read or change it", f"chmod 700 {_quoted(runtime)}"
            )
    elif runtime.exists():
        yield Finding(
            "runtime", "problem", f"{runtime} is not a directory", f"mv {_quoted(runtime)} {_quoted(runtime)}.away"
        )
    elif running:
        says = f"{runtime} is not there, though the daemon runs: nobody finds it"
        yield Finding("runtime", "problem", says, "avm-daemon start --daemon, after ending the daemon by its pid")
    if loss_check.repaired(path).exists():
        yield Finding("store", "problem", "a repair was begun and is not finished", REPAIR)
    for aside in (*loss_check.asides(wal_frames.beside(path)), *loss_check.rescued(path)):
        yield Finding(
            "kept aside", "note", f"{aside}: of a damaged store", f"rm -r {_quoted(aside)} once you do not need it"
        )
    for folder in loss_check.unfinished(path):
        says, todo = "a copy of the store, of a repair that is under way or was killed", f"{REPAIR} removes it"
        yield Finding("kept aside", "note", f"{folder}: {says}", todo)


def _quoted(path: Path) -> str:
    """The path as a shell takes it."""
    return shlex.quote(os.fspath(path))


def _daemon(runtime: Path) -> Iterator[Finding]:
    """What the daemon says of itself."""
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as asked:
            wire.limit_waiting(asked, ASK_S)
            asked.connect(os.fspath(runtime / "control.sock"))
            wire.send(asked, {"v": wire.PROTOCOL, "do": "status"})
            said = wire.receive(asked)["ok"]
    except (OSError, EOFError, KeyError, wire.FrameError) as e:
        yield Finding("daemon", "problem", f"does not answer: {e}", "avm-daemon stop; avm-daemon start --daemon")
        return
    for mount in said["mounts"]:
        if mount["state"] != "ready":
            reason = f"{mount['state']}: {mount.get('error') or 'not mounted'}"
            yield Finding(f"mount {mount['agent_id']}", "problem", reason, "avm-daemon status; avm-daemon reload")
    store, model = said["store"], said["embedding"]
    why = store.get("error") or said["problem"]
    if why or store["writer_state"] != "ready":
        says = f"its writer is {store['writer_state']}" + (f": {why}" if why else "")
        todo = "avm help scaling" if said["cluster"].get("error") else "avm-daemon stop; avm doctor"
        yield Finding("daemon", "problem", says, todo)
    if model["state"] == "failed":
        says = f"the daemon's: {model.get('reason')}"
        yield Finding("model", "problem", says, "avm model list; then avm warmup, which tries again")


def _store(
    path: Path, settings: Settings, kept: Path, known: int, *, live: bool, quick: bool, repair: str
) -> Iterator[Finding]:
    left = None if live else wal_frames.look(wal_frames.beside(path), [])
    if not path.exists() and left is None and not known:
        yield Finding("store", "note", f"{path}: not there yet; the first write makes it")
        return
    found = [] if live else list(examine.files(path, left, known))
    give_up = f"put the right files back, or {repair} --accept-loss"
    for each in found:
        yield Finding(each.about, "problem", each.says, give_up if each.lost else repair)
    if any(each.about == "database" for each in found):
        return
    with (
        examine.frozen(path, left, migrated=not live) as at,
        contextlib.closing(examine.FrozenStore(at, not live)) as store,
    ):
        if (newest := examine.newest(store)) < known:
            says = f"the store ends at change {newest}, though changes up to {known} were kept"
            yield Finding("database", "problem", says, repair if left is not None and left.behind else give_up)
            return
        damage = [] if quick else list(examine.rows(store))
        yield from (Finding(each.about, "problem", each.says, repair) for each in damage)
        if not damage:
            words, vectors = examine.waiting(store)
            seen = "its files and ends alone were looked at (--quick)" if quick else "every page and byte is whole"
            says = f"{path}: answers; {words} files wait for words, {vectors} for vectors; {seen}"
            yield Finding("store", "ok", says)
            yield from _quotas(store)
            yield from _languages(store, settings)
        if not quick:
            yield from _audit(store, kept, repair)


def _quotas(store: examine.FrozenStore) -> Iterator[Finding]:
    with store.reading(OPERATOR) as reader:
        for line in reader.people.miscounted():
            todo = "take all quotas out of config.yaml, reload, put them back, reload"
            yield Finding("quotas", "problem", line, todo)


def _audit(store: examine.FrozenStore, kept: Path, repair: str) -> Iterator[Finding]:
    """The chain over the log, and the anchors beside the database."""
    try:
        noted = anchors.read(kept)
    except Invalid as e:
        yield Finding("anchors", "problem", str(e), repair)
        return
    found = auditing.verify(store, OPERATOR, noted)
    verdict = found.verdict
    if verdict.bad is not None:
        yield Finding("audit", "problem", f"row {verdict.bad} {verdict.reason}", repair)
    elif not noted and verdict.last and store.followed() < 0 and not _come(kept):  # one of several hosts keeps them
        yield Finding("anchors", "problem", f"{kept}: none; whether the log was cut cannot be told", repair)
    if found.altered:
        says = f"triggers or tables are not as avmfs made them: {', '.join(map(escaped, found.altered))}"
        yield Finding("audit", "problem", says, repair)
    for line in found.forged:
        yield Finding("audit", "problem", visible(line), "keep a copy, and compare with a backup: avm help audit")


def _come(kept: Path) -> bool:
    until = time.monotonic() + FIRST_S
    while not (there := kept.exists()) and time.monotonic() < until:
        time.sleep(FIRST_S / 20)
    return there


def _languages(store: examine.FrozenStore, settings: Settings) -> Iterator[Finding]:
    """Whether the model knows the language of what was written last."""
    wanted = settings.embedding
    model = {"static": "wordllama", "universal": "multilingual"}.get(wanted.engine, wanted.model)
    if not wanted.enabled or not _ENGLISH.search(model if wanted.path is None else wanted.path.name):
        return
    texts = (text.decode("utf-8", "replace") for text in examine.recent(store, _SAMPLE))
    other = [_other_script(text) for text in texts]
    if sum(other) > _SOME * len(other):
        says = f"{sum(other)} of the {len(other)} files written last are in other scripts; {model} knows English only"
        yield Finding("languages", "note", says, universal.way())


def _other_script(text: str) -> bool:
    """Return whether most of its letters are not Latin."""
    letters = [sign for sign in text if sign.isalpha()]
    return 2 * sum(sign > "\u024f" for sign in letters) > len(letters)
