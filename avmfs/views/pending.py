"""What waits for an agent, and what agents do. Owns :pending and :feed (docs/FORMATS.md)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

from avmfs import calls, paths
from avmfs.agents import mail
from avmfs.agents import subscriptions as looks
from avmfs.agents.changes import Fold
from avmfs.memory import Memory
from avmfs.node import Change
from avmfs.signatures import Range
from avmfs.store.queries.nodes import Reader
from avmfs.store.queries.outbox import Notice
from avmfs.store.queries.pending import Behind
from avmfs.store.rows.log_ops import OPS
from avmfs.store.schema.tables import ROOT
from avmfs.views.history import rows_since, standing
from avmfs.views.registry import Context, view, writes
from avmfs.views.shape import lines

NOTICES: Final = 100  # that are shown
FILES: Final = 100  # that are named; of more the rest is counted
DIRECTORIES: Final = 50
_ROWS: Final = 2000  # of the log, that one directory's count looks at
_FEED_ROWS: Final = 4  # of the log, for one line of the feed
_DID: Final = {op.name: op.verb for op in OPS if op.verb is not None}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for an agent. ``unread``: urgent and normal; what is low waits in the inbox alone. ``notices``: of its
    subscriptions without a webhook, oldest first; none for an API key, which has no part in them. ``files`` with their
    paths; ``directories``: paths and how many files others have changed in each since it was marked, and whether
    there is more to look at, which may add files or end some of these."""

    unread: dict[str, int]
    notices: list[Notice]
    files: list[tuple[bytes, Behind]]
    directories: list[tuple[bytes, int, bool]]


def waiting(memory: Memory) -> Waiting:
    with memory.reading() as reader:
        files = [(reader.path(each.node), each) for each in reader.pending.files(FILES)]
        marked = [_changed_below(reader, node, seq) for node, seq in reader.pending.directories(DIRECTORIES)]
        counts = reader.mail.counts().unread
        unread = {name: counts[name] for name in ("urgent", "normal")}
        notices = reader.outbox.notices(NOTICES) if memory.who.key is None else []
        memory.noticed = [each.message for each in notices]
        return Waiting(unread, notices, files, [each for each in marked if each[1]])


def _changed_below(reader: Reader, node: int, seq: int) -> tuple[bytes, int, bool]:
    path = reader.path(node)
    rows = [*islice(rows_since(reader, node, seq), _ROWS)]
    fold = Fold(b"" if node == ROOT else path, but_by=reader.who.name)
    for row in rows:
        fold.take(row)
    return path, len(standing(reader, fold.touched())), len(rows) == _ROWS


def shown(found: Waiting, memory: Memory) -> str:
    """``:pending`` as a person reads it."""
    rows: list[str] = []
    if count := sum(found.unread.values()):
        urgent = f" ({found.unread['urgent']} urgent)" if found.unread["urgent"] else ""
        rows.append(f"{count} unread message{'s' * (count > 1)}{urgent}: /:inbox")
    if count := len(found.notices):
        many = f"{'at least ' * (count == NOTICES)}{count} notice{'s' * (count > 1)}"
        rows.append(f"{many} of your subscriptions (mark read: echo > /:pending)")
        rows += [f"  {line}" for line in looks.notice_listing(found.notices, memory.zone).splitlines()]
    for path, each in found.files:
        rows.append(
            f"@{each.handle}  v{each.read} -> v{each.version}  {mail.show_time(each.at, memory.zone)}  {each.author}"
            f"  {paths.printable(path)}:delta"
        )
    if len(found.files) == FILES:
        rows.append(f"(only the newest {FILES} files are named)")
    for path, changed, more in found.directories:
        count_text = f"{'about ' * more}{changed} file{'s' * (changed != 1)}"
        rows.append(f"{count_text} changed by others since you marked it: {paths.printable(path).rstrip('/')}/:delta")
    return lines(rows, "nothing waits")


@view("pending", "root", summary="unread mail, notices of subscriptions, and what has changed since it was read")
def pending(ctx: Context) -> str:
    return shown(waiting(ctx.memory), ctx.memory)


@writes("pending", "anything, even nothing: the notices of subscriptions it showed last are read", empty_write=True)
def write_pending(ctx: Context, text: str) -> None:
    shown, hidden = ctx.memory.noticed, set[str]()
    with ctx.memory.reading() as reader:
        found = [each.message for each in reader.outbox.notices(NOTICES)]
        if len(found) < NOTICES:
            hidden = {*reader.outbox.arrived()}.difference(found)  # with them goes what cannot be shown
    ctx.memory.submit("forget_notices", messages=[*(found if shown is None else shown), *hidden])


@view("feed", "directory", summary="what agents did below it, newest first")
def feed(
    ctx: Context,
    *,
    agent: str | None = None,
    minutes: Annotated[float | None, Range(0, 10**8)] = None,
    limit: Annotated[int, Range(1, 10_000)] = 50,
) -> str:
    since = 0 if minutes is None else max(0, ctx.memory.now() - int(minutes * 60e9))
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        rows: list[tuple[Change, str, int]] = []
        wanted = limit * _FEED_ROWS
        while True:
            found = reader.changes(node.id, since=since, limit=wanted)
            rows = _deeds(found if agent is None else [each for each in found if each.agent == agent])
            if len(rows) > limit or len(found) < wanted:
                break
            wanted *= 4
    told = [
        f"{mail.show_time(last.at, ctx.memory.zone)}  {last.agent}  {did}{f' {count} times' * (count > 1)}"
        f"  {paths.printable(last.path)}{_from(last)}"
        for last, did, count in rows[:limit]
    ]
    if len(rows) > limit:
        told.append(f"(older ones left out: limit={limit})")
    return lines(told, "no activity")


def _deeds(changes: list[Change]) -> list[tuple[Change, str, int]]:
    """Newest first: the same deed on the same path, one after the other, is one. (its newest row, what, how often)"""
    deeds: list[tuple[Change, str, int]] = []
    for each in calls.going_on(changes):
        did = _DID.get(each.op, each.op)
        if deeds and (deeds[-1][0].agent, deeds[-1][1], deeds[-1][0].path) == (each.agent, did, each.path):
            last, _, count = deeds[-1]
            deeds[-1] = last, did, count + 1
        elif not (deeds and did == "made" and _same_file_written(deeds[-1], each)):
            deeds.append((each, did, 1))
        else:  # made and written is made
            deeds[-1] = deeds[-1][0], "made", 1
    return deeds


def _same_file_written(deed: tuple[Change, str, int], made: Change) -> bool:
    last, did, _ = deed
    return did == "wrote" and (last.agent, last.path) == (made.agent, made.path)


def _from(change: Change) -> str:
    if change.op != "rename" or change.other is None:
        return ""
    return f" (from {paths.printable(change.other)})"
