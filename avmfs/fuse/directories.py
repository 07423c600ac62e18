"""Operations on open directories.

Owns listings under way and what the kernel's own cache of a listing stands for.

A listing is read from the store a page at a time, in order of name, each page from the name that the last one ended
with: what is there throughout comes exactly once, whatever is made or removed meanwhile, and a directory of any size
takes little memory and keeps nobody waiting. An entry's offset is its ordinal number.

A listing of one page is a snapshot. The kernel may keep it (FOPEN_CACHE_DIR) and, while no entry of the directory has
changed since, use it again (FOPEN_KEEP_CACHE). It drops the old one in the opener's own time, so, as in ``pages``, a
listing counts as kept once a request on the new handle was seen. Where open listings are of different states of the
store, the later one is not to be cached: the earlier one might still be filling the kernel's cache.

READDIRPLUS is not offered: the kernel stamps what it links from such a reply with the epoch of that moment, not of the
request (fs/fuse/readdir.c, fuse_direntplus_link, 6.18), so that a name which another mount changes in between would
outlive the notice of its change.
"""

from __future__ import annotations

import stat
import threading

from avmfs.errors import BadHandle
from avmfs.fuse import protocol as p
from avmfs.fuse.numbers import Numbers
from avmfs.fuse.protocol import Op
from avmfs.fuse.replies import Replies
from avmfs.fuse.resume import Continuity
from avmfs.fuse.session import Later, Request, Session
from avmfs.vfs import listings
from avmfs.vfs.address import Address
from avmfs.vfs.tree import Tree

PAGE = 1024  # names that are read from the store at once
_FIRST = 2  # the offset of the first entry after . and ..
_MOST_NAMES = 50_000  # of snapshots that are remembered: some 10 MB
_MIXED = -1  # no state of the store
_BODY = p.IN_HEADER.size
_DOTS = ((b".", 1, stat.S_IFDIR), (b"..", 1, stat.S_IFDIR))

Entries = list[listings.Entry]


class Listing:
    """One open directory, at one page. ``fills``: the kernel may put what it is told into its cache."""

    __slots__ = ("begins", "entries", "fills", "more", "node", "page", "state", "where")

    def __init__(self, node: int, where: Address | None, state: int, entries: Entries, *, more: bool) -> None:
        self.node, self.where, self.state, self.entries, self.more = node, where, state, entries, more
        self.page = 0
        self.begins = [b"", *([entries[-1][0]] if more else [])]  # by page: the name that it begins after
        self.fills = False

    @property
    def start(self) -> int:
        """The offset of the page's first entry."""
        return _FIRST + self.page * PAGE


class Directories:
    """See the module."""

    def __init__(
        self, session: Session, tree: Tree, numbers: Numbers, replies: Replies, continuity: Continuity
    ) -> None:
        self._session, self._tree, self._numbers, self._replies = session, tree, numbers, replies
        self._continuity = continuity
        self._open: dict[int, Listing] = {}
        self._kept: dict[int, tuple[int, Entries]] = {}  # by node: the (state, snapshot) that the kernel has
        self._kept_names = 0
        self._filling: dict[int, list[Listing]] = {}  # by node: open listings that may fill the kernel's cache
        self._mutex = threading.Lock()  # over the last four
        session.answers({Op.OPENDIR: self._open_again, Op.RELEASEDIR: self._release})
        session.serves({Op.READDIR: self._read, Op.FSYNCDIR: lambda request: b""})
        session.serves({Op.OPENDIR: self._open_asking}, blocking=True)

    def _open_again(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """Of a directory whose listing the kernel has, and nothing has changed."""
        kept = self._kept.get(node)
        if kept is None or not self._replies.caching or not self._still_so(node, kept):
            return None
        number = self._keep(Listing(node, None, *kept, more=False), unique, cached=True)
        flags = p.FOPEN_KEEP_CACHE | p.FOPEN_CACHE_DIR
        return p.OPEN_REPLY.pack(p.OPEN_REPLY.size, 0, unique, number, flags, 0)

    def _still_so(self, node: int, kept: tuple[int, Entries]) -> bool:
        """Has no entry of the directory changed since its snapshot?"""
        store = self._tree.memory.store
        state = store.peek_state()
        if kept[0] == state:
            return True
        changes = store.peek_changes(kept[0])
        if changes is None or any(parent == node for parent, _ in changes.names):
            return False
        with self._mutex:
            if self._kept.get(node) is kept:
                self._kept[node] = state, kept[1]
        return True

    def _open_asking(self, request: Request) -> bytes:
        where = self._numbers.address(request.node)
        state = self._tree.memory.store.peek_state()
        entries, more, lasting = listings.page(self._tree.memory, where, b"", PAGE)
        listing = Listing(request.node, where, state, entries, more=more)
        number = self._keep(listing, request.unique, cached=self._replies.caching and lasting and not more)
        return p.OPEN_OUT.pack(number, p.FOPEN_CACHE_DIR if listing.fills else 0, 0)

    def _keep(self, listing: Listing, unique: int, *, cached: bool) -> int:
        number = self._continuity.given(unique) if unique >= p.RESENT else None
        if number is None:
            number = self._continuity.opened_listing(unique)
        with self._mutex:
            self._open[number] = listing
            others = self._filling.get(listing.node, [])
            if cached and all(other.state == listing.state for other in others):
                listing.fills = True
                self._filling[listing.node] = [*others, listing]
        return number

    def _release(self, unique: int, node: int, view: memoryview, size: int) -> bytes:
        fh = p.RELEASE_IN.unpack_from(view, _BODY)[0]
        self._continuity.closed(fh)
        with self._mutex:
            listing = self._open.pop(fh, None)
            if listing is not None and listing.fills:
                left = [other for other in self._filling[listing.node] if other is not listing]
                if left:
                    self._filling[listing.node] = left
                else:
                    del self._filling[listing.node]
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    def _read(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        listing = self._open.get(fh)
        if listing is None:
            listing = self._open[fh] = self._go_on(request.node, fh, offset)
        dots: Entries = []
        if offset < _FIRST:
            if listing.state != self._tree.memory.store.peek_state() or listing.page:
                self._turn_to(listing, 0)  # from the beginning: as it is now
            elif listing.fills:
                self._has(listing)
            dots = list(_DOTS[offset:])
        elif offset < listing.start or offset - listing.start >= len(listing.entries):
            page = (offset - _FIRST) // PAGE
            if page == listing.page and listing.more:  # fewer than there were
                page, offset = page + 1, listing.start + PAGE
            while page < len(listing.begins) and page != listing.page:
                self._turn_to(listing, page)
                if not listing.entries:  # all that was there is gone
                    page, offset = page + 1, listing.start + PAGE
        entries = dots + listing.entries[max(0, offset - listing.start) :]
        pieces = _packed(entries, offset, size)
        if pieces:
            self._continuity.listed(fh, offset + len(pieces), entries[len(pieces) - 1][0])
        return b"".join(pieces)

    def _go_on(self, node: int, fh: int, offset: int) -> Listing:
        """With a predecessor's listing, after the name that it had come to. Raises BadHandle for another's."""
        if not self._continuity.is_listing(fh):
            raise BadHandle()
        last = self._continuity.last_listed(fh, offset)
        if offset < _FIRST or last is None:
            return Listing(node, None, _MIXED, [], more=False)
        if not self._session.may_block():
            raise Later
        after = b"" if offset == _FIRST else last
        page, place = divmod(offset - _FIRST, PAGE)
        where = self._numbers.address(node)
        entries, more, _ = listings.page(self._tree.memory, where, after, PAGE - place)
        entries = [entry for entry in entries if entry[0] > after]  # a page of what is not the store's is all of it
        listing = Listing(node, where, _MIXED, [(after, 1, 0)] * place + entries, more=more and bool(entries))
        listing.page = page
        listing.begins = [b""] * page + [after if place == 0 else b""]
        if listing.more:
            listing.begins.append(entries[-1][0])
        return listing

    def _turn_to(self, listing: Listing, page: int) -> None:
        """Read a page from the store."""
        if not self._session.may_block():
            raise Later  # a page takes its time
        if listing.where is None:
            listing.where = self._numbers.address(listing.node)
        if not page:
            del listing.begins[1:]
        state = self._tree.memory.store.peek_state()
        entries, listing.more, _ = listings.page(self._tree.memory, listing.where, listing.begins[page], PAGE)
        if page + 1 < len(listing.begins):  # once more: what was on the next page then stays there
            entries = [entry for entry in entries if entry[0] <= listing.begins[page + 1]]
            listing.more = True
        elif listing.more:
            listing.begins.append(entries[-1][0])
        listing.page, listing.entries = page, entries
        with self._mutex:
            # The kernel's cache may become a mixture of this and what it was given before.
            listing.state = _MIXED if listing.fills else state
            if listing.fills:
                self._drop(listing.node)

    def _has(self, listing: Listing) -> None:
        """The kernel has dropped what it had of this directory, and is being given a snapshot."""
        with self._mutex:
            kept = self._kept.get(listing.node)
            if kept is not None and kept[0] == listing.state:
                return
            self._drop(listing.node)
            self._kept[listing.node] = listing.state, listing.entries
            self._kept_names += 1 + len(listing.entries)
            while self._kept_names > _MOST_NAMES:
                self._drop(next(iter(self._kept)))

    def _drop(self, node: int) -> None:
        kept = self._kept.pop(node, None)
        if kept is not None:
            self._kept_names -= 1 + len(kept[1])


def _packed(entries: Entries, offset: int, room: int) -> list[bytes]:
    """As many entries as there is room for. ``offset`` is that of the first."""
    pieces: list[bytes] = []
    for after, (name, ino, kind) in enumerate(entries, offset + 1):
        room -= p.DIRENT.size + (len(name) + 7 & -8)
        if room < 0:
            break
        pieces.append(p.dirent(ino or 1, after, kind, name))
    return pieces
