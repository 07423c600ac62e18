"""Methods of the door about what is out of the way: the trash, the archive, quarantine. Called through the registry."""

from __future__ import annotations

from typing import Annotated, Any

from avmfs import paths
from avmfs.agents.told import told
from avmfs.errors import Invalid, NotFound
from avmfs.localtime import DAY_NS
from avmfs.memory import Memory
from avmfs.rpc import files
from avmfs.rpc.methods import Limit, method
from avmfs.signatures import Range
from avmfs.views import quarantine as views

LOOKED_AT = 100_000  # removals among which one of that name is looked for
DAYS_MOST = 36_500
WHENEVER = (1 << 63) - 1  # after all there is
AT_ONCE = 256  # removed in one transaction, for which others wait


@method
def trash(memory: Memory, limit: Limit = 100) -> dict[str, Any]:
    """{"files": [{"path", "was", "at", "agent", "size"}]}: what is in the trash, the newest removal first."""
    with memory.reading() as reader:
        files = [
            told(each, "at agent", path=reader.path(each.node.id), was=each.path, size=each.node.size)
            for each in reader.removed(limit)
        ]
    return {"files": files}


@method
def archive(memory: Memory, path: str) -> dict[str, Any]:
    """{"path"}: where it is now."""
    memory.enroll()
    with memory.reading() as reader:
        node = memory.resolve(reader, path, follow=False)
        if node.parent is None:
            raise Invalid("the root cannot be archived", path)
        parent, name = node.parent, node.name
    return {"path": paths.text(memory.submit("archive", parent=parent, name=name)["path"])}


@method
def put_back(memory: Memory, path: str, to: str | None = None, archived: bool = False) -> dict[str, Any]:
    """``path``: in the trash or the archive, or what a removed file was called (the newest of that name), or, with
    ``archived``, what in the archive was. {"path"}: where it is now."""
    memory.enroll()
    where = memory.real_parts(paths.raw(path))
    if archived and where[:1] == (paths.MEMORY,):
        where = paths.mirror(where, paths.ARCHIVE)
    if archived and paths.aside(where) != "archive":
        raise Invalid("not in the archive", path)
    with memory.reading() as reader:
        if paths.aside(where):
            number = memory.resolve(reader, paths.text(paths.join(where)), follow=False).id
        else:
            here = paths.join(where)
            found = next((each for each in reader.removed(LOOKED_AT) if each.path == here), None)
            if found is None:
                raise NotFound("nothing of that name is in the trash", path)
            number = found.node.id
    target = {} if to is None else {"to": list(memory.real_parts(paths.raw(to)))}
    return {"path": paths.text(memory.submit("put_back", node=number, **target)["path"])}


@method
def empty_trash(
    memory: Memory, older_than_days: Annotated[float, Range(0, DAYS_MOST)] = 0.0, under: str | None = None
) -> dict[str, Any]:
    """{"removed"}: how many files are gone for good, of those that this agent may remove; ``under``: that were called
    something below it. Raises Invalid for a path in the trash."""
    memory.enroll()
    below = {} if under is None else {"under": list(memory.real_parts(paths.raw(under)))}
    if below and paths.aside(tuple(below["under"])) == "trash":
        raise Invalid("name what it was called, or remove it where it is (avm rm): that is for good, too", under)
    # Without an age no time counts: what was removed while the clock was ahead is dated in the future.
    before = memory.now() - int(older_than_days * DAY_NS) if older_than_days else WHENEVER
    total, more = 0, True
    while more:
        done = memory.submit("empty_trash", before=before, limit=AT_ONCE, **below)
        total, more = total + done["removed"], done["more"]
    return {"removed": total}


@method
def quarantine(memory: Memory, limit: int = 100) -> dict[str, Any]:
    """Files that are found by nobody until they are let out, those changed last first. {"held": [{"path", "handle",
    "sources", "author", "route", "updated"}], "more": how many were left out}."""
    if not 1 <= limit <= 1000:
        raise Invalid(f"limit {limit}: expected 1 to 1000")
    found, in_all = views.quarantined(memory, limit)
    held = [told(each, "path handle sources updated", author=each.by, route=each.route or None) for each in found]
    return {"held": held, "more": in_all - len(held)}


@method
def let_out(memory: Memory, path: str) -> dict[str, Any]:
    """Let a file out of quarantine: it is found again, and marked. {"path"}. Raises Invalid where it is not there."""
    return {"path": views.let_out(memory, path)}


@method
def reject(memory: Memory, path: str) -> dict[str, Any]:
    """Remove a file that is in quarantine, into the trash. {"path"}. Raises Invalid where it is not there."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        if node.scope not in reader.visible.held:
            raise Invalid("not in quarantine", path)
        where = paths.text(reader.path(node.id))
    files.remove(memory, where)
    return {"path": where}
