"""Views of how a file came to be, and of what an agent has not read yet.

Owns :history, :blame, :diff, :delta and :mark (docs/FORMATS.md). A mark is where one agent stopped reading: a version
of a file, the seq of a directory's newest change that it was told. :delta moves it when a reader has reached the end,
and rather shows something twice than never.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Container, Iterator
from dataclasses import astuple, replace
from typing import Annotated, Any, Final, NamedTuple

from avmfs import calls, paths
from avmfs.agents import mail
from avmfs.agents.changes import Fold, Touched
from avmfs.errors import Invalid, NotFound
from avmfs.node import Change, Document, Kind, Version, signed
from avmfs.signatures import Range
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT
from avmfs.text import sniff
from avmfs.text.escapes import visible
from avmfs.views.difference import Effort, kept, unified
from avmfs.views.registry import AtEnd, Context, Rendered, by_lines, ending, view, writes
from avmfs.views.shape import heading, lines, size, whole

PAGE: Final = 200  # paths that :delta of a directory tells at a time
BLAMED: Final = 20_000_000  # steps of comparing all versions of a text
TOLD: Final = 16 * 1024 * 1024  # bytes of versions, that :delta of a file tells one by one
NOT_KEPT: Final = "(no longer kept)"  # how a diff names what is compared with nothing
_ROWS: Final = 2000  # of the log, fetched at a time
_CURSOR: Final = re.compile(r"(?:#\s*)?(?:cursor:\s*)?(v?)(-1|[0-9]{1,18})")  # -1: never
_LIKE_A_CURSOR: Final = re.compile(r"#|cursor|v?\d")


class VersionNumber(int):
    """``3``, or ``v3`` as :history prints it."""

    def __new__(cls, text: str) -> VersionNumber:
        return super().__new__(cls, text.removeprefix("v"))


# :history, :diff -------------------------------------------------------------------------------------------


@view("history", "file", summary="its versions, newest first", past=True)
def history(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        versions = reader.versions(reader.document(reader.node(ctx.node.id)).id)
    before = {1: 0} | {version.number + 1: version.size for version in versions}
    return lines((_version(ctx, version, before.get(version.number)) for version in versions), "no versions")


def _version(ctx: Context, version: Version, before: int | None) -> str:
    """``before``: the size of the one before, None where that is not kept."""
    grown = 0 if before is None else version.size - before
    change = "" if before is None else f" ({grown:+d} byte{'' if abs(grown) == 1 else 's'})"
    return (
        f"v{version.number}  {mail.show_time(version.at, ctx.memory.zone)}  {version.type}"
        f"  {signed(version.author, version.route)}  {size(version.size)}{change}"
    )


@view("blame", "file", summary="of each line, with which version it came, and whose", past=True, shows_bytes=True)
def blame(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        found = attributed(reader, reader.document(node := reader.node(ctx.node.id)))
        above = heading(reader, node)
    return above + lines(
        (
            f"v{by.number}  {mail.show_time(by.at, ctx.memory.zone)}  {by.author}  {visible(line.rstrip(chr(10)))}"
            for by, line in found
        ),
        "no lines",
    )


def attributed(reader: Reader, document: Document) -> list[tuple[Version, str]]:
    """The lines of a text, each with the version it came with, of those that are kept. Where comparing becomes dear,
    what is left counts as written anew; what is no text has none."""
    effort = Effort(BLAMED)
    found: list[tuple[Version, str]] = []
    for version in reversed(reader.versions(document.id)):
        data = reader.version_bytes(document.id, version.number)
        text = sniff.decode(data)
        if text is None:
            text = "" if b"\0" in data else data.decode("utf-8", "surrogateescape")
        now = io.StringIO(text).readlines()
        by = [version] * len(now)
        for there, here in kept([line for _, line in found], now, effort):
            by[here] = found[there][0]
        found = list(zip(by, now, strict=True))
    return found


@view(
    "diff",
    "file",
    summary="unified diff between two versions; as it stands, of the last change",
    past=True,
    shows_bytes=True,
)
def diff(
    ctx: Context,
    *,
    from_: Annotated[VersionNumber | None, Range(0, 10**15)] = None,
    to: Annotated[VersionNumber | None, Range(0, 10**15)] = None,
) -> str:
    with ctx.memory.reading() as reader:
        document, above = reader.document(node := reader.node(ctx.node.id)), heading(reader, node)
        if document.head == 0:
            return "(no versions)\n"
        texts = between(reader, document.id, from_, document.head if to is None else to)
    return above + unified(*texts)  # which may take long, with no snapshot open


def between(reader: Reader, document: int, older: int | None, newer: int) -> tuple[bytes, bytes, str, str]:
    """The bytes of two versions, and what a diff names them; 0 is nothing. ``older`` None: the one before, or nothing
    where that is no longer kept. Raises Invalid for others that are not."""
    before = max(newer - 1, 0) if older is None else older
    kept = older is not None or before == 0 or any(each.number == before for each in reader.versions(document))
    old, new = (_bytes(reader, document, number) for number in (before if kept else 0, newer))
    return old, new, f"v{before}" if kept else NOT_KEPT, f"v{newer}"


def _bytes(reader: Reader, document: int, number: int) -> bytes:
    return reader.version_bytes(document, number) if number else b""


# :delta ----------------------------------------------------------------------------------------------------


@view(
    "delta",
    "file",
    "directory",
    summary="what is new since this agent's mark; `peek=1` leaves the mark",
    shows_bytes=True,
)
def delta(ctx: Context, *, peek: bool = False) -> Rendered:
    data, at_end = _of_directory(ctx) if ctx.node.kind is Kind.DIRECTORY else _of_file(ctx)
    return Rendered(data, None if peek else at_end)


def _of_file(ctx: Context) -> tuple[bytes, AtEnd | None]:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        document = reader.document(node).id
        versions, mark = reader.versions(document), reader.mark(document)
        newest = versions[0] if versions else None
        above = heading(reader, node)
        if mark is None:
            return above.encode() + whole(reader, node), AtEnd("_read_up_to", ctx, [_plain(newest)])
        unread = [version for version in reversed(versions) if version.number > mark.version]
        if not unread or newest is None:
            return b"(no changes)\n", None
        steps = _steps(reader, document, versions[-1].number, unread)
    text = "".join([above, *_told(ctx, steps), f"# cursor: v{newest.number}\n"])
    return text.encode("utf-8", "surrogateescape"), AtEnd("_read_up_to", ctx, [_plain(newest)])


class _Step(NamedTuple):
    """What one version made of another, or several versions together. ``older``: what is compared with, as a diff
    names it."""

    first: int
    last: Version
    older: str
    before: bytes
    after: bytes


def _steps(reader: Reader, document: int, oldest: int, unread: list[Version]) -> list[_Step]:
    """One for each version; what is left after TOLD bytes is one."""
    steps: list[_Step] = []
    read = 0
    for version in unread:
        last = unread[-1] if read > TOLD else version
        kept = version.number > oldest or oldest == 1
        older = f"v{version.number - 1}" if kept else NOT_KEPT
        before = steps[-1].after if steps else _bytes(reader, document, version.number - 1) if kept else b""
        steps.append(_Step(version.number, last, older, before, _bytes(reader, document, last.number)))
        read += last.size
        if last is not version:
            break
    return steps


def _told(ctx: Context, steps: list[_Step]) -> Iterator[str]:
    """As texts. What is left when comparing has become dear is told as one change."""
    effort = Effort()
    for step in steps:
        if effort.spent:
            step = step._replace(last=steps[-1].last, after=steps[-1].after)
        at, number = mail.show_time(step.last.at, ctx.memory.zone), step.last.number
        yield (
            f"# v{number} ({at}) {step.last.author}\n"
            if number == step.first
            else f"# v{step.first} to v{number} ({at}), together\n"
        )
        yield unified(step.before, step.after, step.older, f"v{number}", effort)
        if number == steps[-1].last.number:
            return


def _plain(version: Version | None) -> list[Any] | None:
    return None if version is None else list(astuple(version))


@ending
def _read_up_to(ctx: Context, newest: list[Any] | None) -> None:
    """The reader has seen the file as it was at ``newest``. If that version was amended since, it is to be told
    again; a slower reader of the same agent does not move the mark back."""
    with contextlib.suppress(NotFound):  # removed meanwhile
        with ctx.memory.reading() as reader:
            document = reader.document(reader.node(ctx.node.id)).id
            versions = reader.versions(document)
        number = 0 if newest is None else Version(*newest).number
        if newest is not None and Version(*newest) not in versions:
            number -= 1
        ctx.memory.submit("mark", node=ctx.node.id, version=number, forward=True)


def _of_directory(ctx: Context) -> tuple[bytes, AtEnd | None]:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        mark = reader.mark(node.id)
        if mark is None:
            text, cursor = _all_files(reader, node.id), _newest_below(reader, node.id)
        else:
            changed = _changed(reader, node.id, mark.seq, ctx.memory.who.name)
            if changed is None:
                return b"(no changes)\n", None
            text, cursor = changed
    return f"{text}# cursor: {cursor}\n".encode(), AtEnd("_told_up_to", ctx, [cursor])


def _all_files(reader: Reader, under: int) -> str:
    """The first time there is nothing to compare with: what is there."""
    found, total = reader.listing(under, limit=PAGE, offset=0, query="")
    shown = sorted(f"A {paths.printable(entry.path)}\n" for entry, _ in found)
    left = f"({total - len(found)} more: :list?q=&offset={len(found)})\n" if total > len(found) else ""
    return _heading(len(found), total, "file") + "".join(shown) + left


def _changed(reader: Reader, under: int, after: int, asker: str) -> tuple[str, int] | None:
    """What others changed since ``after``, and the seq it reaches; None for nothing. More than a page is told in the
    order of the log: then only what came and went within one page is not told."""
    below = b"" if under == ROOT else reader.path(under)
    everything, cursor = Fold(below, asker), after
    for change in rows_since(reader, under, after):
        everything.take(change)
        cursor = change.seq
    shown, left = everything.touched(), 0
    if len(shown) > PAGE:
        shown, left, cursor = _first_page(reader, under, after, below, asker)
    else:
        shown = standing(reader, shown)
    if not shown and not left:
        return None
    return _heading(len(shown), len(shown) + left, "changed path") + "".join(map(_touched, shown)), cursor


def _first_page(reader: Reader, under: int, after: int, below: bytes, asker: str) -> tuple[list[Touched], int, int]:
    """What it tells, how many paths are left for others, and the seq that it reaches."""
    page, rest = Fold(below, asker), Fold(below, asker)
    cursor, full = after, False
    for change in rows_since(reader, under, after):
        full = full or (page.told >= PAGE and not page.knows(change))
        if full:
            rest.take(change)
        else:
            page.take(change)
            cursor = change.seq
    left = rest.touched()
    return standing(reader, page.touched(), {each.path for each in left if each.status == "D"}), len(left), cursor


def standing(reader: Reader, found: list[Touched], but: Container[bytes] = ()) -> list[Touched]:
    """What was touched as it is now: what has expired is gone before the log has a row of that. ``but``: paths whose
    end later rows tell."""
    told: list[Touched] = []
    for each in calls.going_on(found):
        if each.status == "D" or each.path in but or _stands(reader, each):
            told.append(each)
        elif each.status != "A":
            told.append(replace(each, status="D", path=each.was or each.path, was=None))
    return told


def _stands(reader: Reader, touched: Touched) -> bool:
    with contextlib.suppress(NotFound):
        return bool(reader.node(touched.last.node))
    # The asker itself may have put another file there, as editors save.
    return reader.path(_around(reader, [touched.path])) == touched.path


def rows_since(reader: Reader, under: int, after: int) -> Iterator[Change]:
    """What the log has below a directory, in order. What happened there while the directory, or one above it, had
    another name is told as if it had been where it is now: the mark is the directory's, and not its name's."""
    now = b"" if under == ROOT else reader.path(under)
    before = [] if under == ROOT else reader.pending.places(now, after)
    around = _around(reader, [now, *(was for _, was in before)]) if before else under
    for upto, was in before:
        for change in _rows(reader, around, after):
            if change.seq >= upto:
                break
            if any(each is not None and each.startswith(was + b"/") for each in (change.path, change.other)):
                other = None if change.other is None else _moved(change.other, was, now)
                yield replace(change, path=_moved(change.path, was, now), other=other)
        after = upto
    yield from _rows(reader, under, after)


def _around(reader: Reader, places: list[bytes]) -> int:
    """The nearest directory that all of these are in, and that the asker sees."""
    node = ROOT
    for name in paths.split(os.path.commonpath(places)):
        if (child := reader.child(node, name)) is None:
            break
        node = child.id
    return node


def _moved(path: bytes, was: bytes, now: bytes) -> bytes:
    return now + path[len(was) :] if path.startswith(was + b"/") else path


def _rows(reader: Reader, under: int, after: int) -> Iterator[Change]:
    while rows := reader.changes(under, after_seq=after, limit=_ROWS, newest_first=False):
        yield from rows
        after = rows[-1].seq


def _touched(touched: Touched) -> str:
    was = "" if touched.was is None else f" (was {paths.printable(touched.was)})"
    return f"{touched.status} {paths.printable(touched.path)}{was}\n"


def _heading(shown: int, total: int, noun: str) -> str:
    count = str(total) if shown == total else f"{shown} of {total}"
    return f"# {count} {noun}{'' if total == 1 else 's'}\n"


@ending
def _told_up_to(ctx: Context, cursor: int) -> None:
    """A slower reader of the same agent does not move the mark back."""
    with contextlib.suppress(NotFound):  # removed meanwhile
        ctx.memory.submit("mark", node=ctx.node.id, seq=cursor, forward=True)


def _newest_below(reader: Reader, under: int) -> int:
    """The seq of the newest change that the asker may see there, or of its coming there: the store's own newest would
    tell of others."""
    newest = reader.changes(under, limit=1)
    seq = newest[0].seq if newest else 0
    before = [] if under == ROOT else reader.pending.places(reader.path(under), seq)
    return before[-1][0] if before else seq


# :mark -----------------------------------------------------------------------------------------------------


@view("mark", "file", "directory", summary="how far this agent has read it")
def mark(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        if node.kind is Kind.DIRECTORY:
            found, sign, current = reader.mark(node.id), "", _newest_below(reader, node.id)
            reached = 0 if found is None else found.seq
        else:
            document = reader.document(node)
            found, sign, current = reader.mark(document.id), "v", document.head
            reached = 0 if found is None else found.version
    return f"marked: {'never' if found is None else f'{sign}{reached}'}, current: {sign}{current}\n"


@writes(
    "mark",
    "anything, even nothing: read up to now; a cursor from :delta: up to there",
    check=by_lines(lambda text: _parse_cursor(text)),
    empty_write=True,
    once=True,
)
def write_mark(ctx: Context, text: str) -> str:
    cursor, file = _parse_cursor(text), ctx.node.kind is not Kind.DIRECTORY
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        was = reader.mark(reader.document(node).id if file else node.id)
        newest = 0 if file else _newest_below(reader, node.id)
    if file:
        ctx.memory.submit("mark", node=ctx.node.id, version=None if cursor is None else cursor[1])
        return f"v{-1 if was is None else was.version}"
    if cursor is not None and cursor[0]:
        raise Invalid(f":mark: v{cursor[1]} is a version of a file; a directory's cursor is a plain number")
    ctx.memory.submit("mark", node=ctx.node.id, seq=newest if cursor is None else min(cursor[1], newest))
    return f"{-1 if was is None else was.seq}"


def _parse_cursor(text: str) -> tuple[str, int] | None:
    """("v" or "", number), or None for a text that is no cursor: then the write itself is what counts."""
    said = text.strip()
    found = _CURSOR.fullmatch(said)
    if found is not None:
        return found[1], int(found[2])
    if _LIKE_A_CURSOR.match(said):
        raise Invalid(f":mark: {said[:80]!r}: expected a cursor: v3, or the last line of a :delta")
    return None
