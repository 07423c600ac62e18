"""Operations on open directories.

Owns listings under way and what the kernel's own cache of a listing stands for.

A listing is read from the store a page at a time, in order of name, each page from the name that the last one ended
with: what is there throughout comes exactly once, whatever is made or removed meanwhile, and a directory of any size
takes little memory and keeps nobody waiting. An entry's offset is its ordinal number in its page, behind all offsets of
the pages that were read before. Who goes back, or on with a successor, has a page that begins behind the name that the
last reply before it ended with (``Handover.listed``).

A listing of one page is a snapshot, and remembered: when names of the directory have changed since, these alone are
asked for anew. The kernel may keep it too (FOPEN_CACHE_DIR) and, while it is the newest, use it again
(FOPEN_KEEP_CACHE). It drops the old one in the opener's own time, so, as in ``page_cache``, a listing counts as the
kernel's once a request on the new handle was seen. Where open listings are of different snapshots, the later one is not
to be cached: the earlier one might still be filling the kernel's cache. So might one that a predecessor of this process
had opened, until it is closed.

READDIRPLUS is not offered: the kernel stamps what it links from such a reply with the epoch of that moment, not of the
request (fs/fuse/readdir.c, fuse_direntplus_link, 6.18), so that a name which another mount changes in between would
outlive the notice of its change.
"""

from __future__ import annotations

import stat
import threading

from avmfs.errors import BadHandle, NotFound, Stale
from avmfs.fuse import protocol as p
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.handover import Handover
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.listing_cache import CachedListing
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Later, Request
from avmfs.fuse.session import Session
from avmfs.vfs import listings
from avmfs.vfs.address import Address, Real
from avmfs.vfs.tree import Tree

PAGE = 2048  # names that are read from the store at once
_SPAN = 1 << 32  # offsets of a page: of what is not the store's, all names are one
_FIRST = 2  # the offset of the first entry after . and ..
_MOST_NAMES = 50_000  # of snapshots that are remembered: some 10 MB
_MIXED = -1  # no state of the store
_BODY = p.IN_HEADER.size
_DOTS = (p.dirent(1, 1, stat.S_IFDIR, b"."), p.dirent(1, 2, stat.S_IFDIR, b".."))
_MOST_CHANGED = 64  # names that are asked for one by one; of more, the directory is read again
_TRIES = 3


class Listing:
    """One open directory, at one page. ``fills``: the kernel may put what it is told into its cache; ``given``: it has
    been told something. ``whole``: the page is all there is, and the store tells of whatever changes it."""

    __slots__ = ("fills", "given", "more", "node", "page", "pages", "snapshot", "state", "where", "whole")

    def __init__(self, node: int, where: Address | None, state: int, snapshot: CachedListing, *, more: bool) -> None:
        self.node, self.where, self.state, self.snapshot, self.more = node, where, state, snapshot, more
        self.page = self.pages = 0  # its number, and the greatest
        self.fills = self.given = self.whole = False

    @property
    def start(self) -> int:
        """The offset of the page's first entry."""
        return _FIRST + self.page * _SPAN


class Known:
    """The newest snapshot of a directory that was listed, and the state of the store in which it still is. ``kernels``:
    the one that the kernel has."""

    __slots__ = ("kernels", "snapshot", "state")

    def __init__(self, state: int, snapshot: CachedListing) -> None:
        self.state, self.snapshot = state, snapshot
        self.kernels: CachedListing | None = None


class DirectoryOps:
    """See the module."""

    def __init__(
        self, session: Session, tree: Tree, numbers: Inodes, replies: EntryCache, continuity: Handover
    ) -> None:
        self._session, self._tree, self._numbers, self._replies = session, tree, numbers, replies
        self._continuity = continuity
        self._open: dict[int, Listing] = {}
        self._known: dict[int, Known] = {}  # by node
        self._known_names = 0
        self._filling: dict[int, list[Listing]] = {}  # by node: open listings that may fill the kernel's cache
        self._left = continuity.listings()  # that a predecessor had opened, and their nodes
        self._mutex = threading.Lock()  # over the last five
        session.answers({Op.OPENDIR: self._open_again, Op.RELEASEDIR: self._release})
        session.serves({Op.READDIR: self._read})
        session.serves({Op.FSYNCDIR: self._sync}, committing=True)
        session.serves({Op.OPENDIR: self._open_asking}, blocking=True)

    def open_nodes(self) -> set[int]:
        with self._mutex:
            return {*self._left.values(), *(listing.node for listing in self._open.values())}

    def _open_again(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """Of a directory that was listed before, and of which no more than a few names have changed."""
        if self._replies.late(node):
            self._session.drop_attributes(node)
        known = self._newest(node)
        if known is None or self._tree.sources.awaits(self._tree.peek(node)):
            return None
        listing = Listing(node, None, known.state, known.snapshot, more=False)
        listing.whole = True
        kept = known.kernels is listing.snapshot and self._replies.caching
        number = self._keep(listing, unique)
        flags = p.FOPEN_CACHE_DIR | p.FOPEN_KEEP_CACHE if kept else p.FOPEN_CACHE_DIR if listing.fills else 0
        return p.OPEN_REPLY.pack(p.OPEN_REPLY.size, 0, unique, number, flags, 0)

    def _sync(self, request: Request) -> bytes:
        """Its names, mode and times are durable; so is all that was committed before."""
        self._tree.memory.submit("sync")
        return b""

    def _newest(self, node: int) -> Known | None:
        """What is known of a directory, as it is now."""
        known = self._known.get(node)
        if known is None:
            return None
        current = self._current(node, known.state, known.snapshot)
        if current is None:
            return None
        if current[1] is known.snapshot:
            known.state = current[0]
            return known
        newer = Known(*current)
        newer.kernels = known.kernels
        with self._mutex:
            if self._known.get(node) is not known:
                return None
            self._known[node] = newer
            self._known_names += len(newer.snapshot) - len(known.snapshot)
        return newer

    def _current(self, node: int, state: int, snapshot: CachedListing) -> tuple[int, CachedListing] | None:
        """The snapshot as it is now, with the state of the store that it is of. None: it has to be read."""
        memory = self._tree.memory
        store = memory.store
        for _ in range(_TRIES):
            now = store.cached_state()
            if now == state:
                return state, snapshot
            changes = store.cached_changes(state) if state != _MIXED else None
            if changes is None:
                return None
            if node in changes.nodes:
                self._tree.node(node)  # may have gone, or out of sight
            changed = [name for parent, name in changes.names if parent == node]
            if not changed:
                return now, snapshot
            if len(changed) > _MOST_CHANGED or b"" in changed:  # or some that nobody knows
                return None
            found: dict[bytes, listings.Entry | None] = {}
            for name in changed:
                child = store.cached_child(memory.who, node, name)
                if child is not None and child.expires is not None:
                    return None
                found[name] = None if child is None else listings.entry(child)
            if store.cached_state() == now:  # else it may be of neither state
                latest = snapshot.with_names(found)
                return None if len(latest) > 2 * PAGE else (now, latest)
        return None

    # The store's own memory has to have taken the nodes of a listing, or it could not tell when one of them goes. What
    # is committed while they are read may keep it from that: such a listing is not whole.

    def _open_asking(self, request: Request) -> bytes:
        where = self._numbers.address(request.node)
        request.abandonable = isinstance(where, Real) and self._tree.sources.awaits(where.node)
        self._tree.sources.fresh(where)
        store = self._tree.memory.store
        state = store.cached_state()
        entries, more, lasting = listings.page(self._tree.memory, where, b"", PAGE)
        listing = Listing(request.node, where, state, CachedListing(entries), more=more)
        listing.whole = lasting and not more and store.cached_state() == state
        if not self._session.keeps(request):  # interrupted meanwhile: nobody will release it
            return b""
        number = self._keep(listing, request.unique)
        if listing.whole:
            self._know(request.node, Known(state, listing.snapshot))
        return p.OPEN_OUT.pack(number, p.FOPEN_CACHE_DIR if listing.fills else 0, 0)

    def _know(self, node: int, known: Known) -> None:
        with self._mutex:
            self._drop(node)
            self._known[node] = known
            self._known_names += 1 + len(known.snapshot)
            while self._known_names > _MOST_NAMES:
                self._drop(next(iter(self._known)))

    def _keep(self, listing: Listing, unique: int) -> int:
        number = self._continuity.given(unique) if unique >= p.RESENT else None
        if number is None:
            number = self._continuity.opened_listing(listing.node, unique)
        with self._mutex:
            self._left.pop(number, None)  # asked for again: the kernel has heard nothing of it yet
            self._open[number] = listing
            if listing.whole and self._replies.caching and self._agree(listing.node, listing.snapshot):
                listing.fills = True
                self._filling[listing.node] = [*self._filling.get(listing.node, []), listing]
        return number

    def _agree(self, node: int, snapshot: CachedListing, but: Listing | None = None) -> bool:
        """Return whether all who may fill the kernel's cache give it this listing."""
        if node in self._left.values():
            return False
        others = self._filling.get(node, [])
        return all(other is but or (other.snapshot is snapshot and other.state != _MIXED) for other in others)

    def _release(self, unique: int, node: int, view: memoryview, size: int) -> bytes:
        fh = p.RELEASE_IN.unpack_from(view, _BODY)[0]
        self._continuity.closed(fh)
        with self._mutex:
            self._left.pop(fh, None)
            listing = self._open.pop(fh, None)
            if listing is not None and listing.fills:
                left = [other for other in self._filling[listing.node] if other is not listing]
                if left:
                    self._filling[listing.node] = left
                else:
                    del self._filling[listing.node]
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    def _read(self, request: Request) -> bytes:
        """Of a directory that another mount has removed since it was opened there is nothing to tell, as usual."""
        try:
            return self._entries(request)
        except Stale:
            raise NotFound() from None

    def _entries(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        listing = self._open.get(fh)
        if listing is None:
            listing = self._open[fh] = self._go_on(request.node, fh)
        dots: tuple[bytes, ...] = ()
        if offset < _FIRST:
            self._begin(listing, fh)
            dots, place = _DOTS[offset:], 0
        else:
            place = self._find(listing, fh, offset)
        listing.given = True
        piece, count = listing.snapshot.packed(listing.start, place, size - sum(map(len, dots)))
        if count:
            last = listing.snapshot.entries[place + count - 1][0]
            self._continuity.listed(fh, listing.start + place + count, last, anew=bool(dots))
        elif dots:
            self._continuity.listed(fh, _FIRST, b"", anew=True)
        return b"".join((*dots, piece))

    def _begin(self, listing: Listing, fh: int) -> None:
        """It is read from the beginning: as it is now."""
        known = self._newest(listing.node) if listing.whole else None
        if known is not None:
            self._now_has(listing, known.state, known.snapshot)
        elif listing.page or listing.state != self._tree.memory.store.cached_state():
            listing.pages = -1
            self._turn_to(listing, fh, b"")

    def _go_on(self, node: int, fh: int) -> Listing:
        """With a predecessor's listing, at no page yet. Raises BadHandle for another's."""
        if fh not in self._continuity.listings():
            raise BadHandle()
        listing = Listing(node, None, _MIXED, CachedListing([]), more=False)
        listing.page, listing.pages = -1, max((at // _SPAN for at, _ in self._continuity.marks(fh)), default=0)
        return listing

    def _find(self, listing: Listing, fh: int, offset: int) -> int:
        """Turn to the page with an offset. Returns its place there."""
        page, place = divmod(offset - _FIRST, _SPAN)
        if page != listing.page:
            marks = [mark for mark in self._continuity.marks(fh) if _FIRST < mark[0] <= offset]
            at, last = max(marks, default=(_FIRST, b""))
            self._turn_to(listing, fh, last)
            place = offset - at
        if place >= len(listing.snapshot) and listing.more:
            self._turn_to(listing, fh, listing.snapshot.entries[-1][0])
            place = 0
        return min(place, len(listing.snapshot))

    def _turn_to(self, listing: Listing, fh: int, after: bytes) -> None:
        """Read a page from the store."""
        if not self._session.may_block():
            raise Later  # a page takes its time
        if listing.where is None:
            listing.where = self._numbers.address(listing.node)
        store = self._tree.memory.store
        state = store.cached_state()
        entries, more, lasting = listings.page(self._tree.memory, listing.where, after, PAGE)
        entries = [entry for entry in entries if entry[0] > after]  # a page of what is not the store's is all of it
        listing.more = more and bool(entries)
        listing.page = listing.pages = listing.pages + 1
        if listing.page:
            self._continuity.listed(fh, listing.start, after, anew=False)
        listing.whole = lasting and not listing.page and not more and store.cached_state() == state
        self._now_has(listing, state, CachedListing(entries))

    def _now_has(self, listing: Listing, state: int, snapshot: CachedListing) -> None:
        """The kernel is being given a snapshot. If it may keep it, it has dropped what it had of this directory."""
        with self._mutex:
            if listing.fills:
                # Its cache may become a mixture of this and what it was given before.
                mixed = listing.state == _MIXED or (listing.given and listing.snapshot is not snapshot)
                mixed = mixed or not listing.whole or not self._agree(listing.node, snapshot, listing)
                if mixed:
                    state = _MIXED
                if (known := self._known.get(listing.node)) is not None:
                    known.kernels = None if mixed else snapshot
            listing.state, listing.snapshot = state, snapshot

    def _drop(self, node: int) -> None:
        known = self._known.pop(node, None)
        if known is not None:
            self._known_names -= 1 + len(known.snapshot)
