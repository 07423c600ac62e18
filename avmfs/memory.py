"""One agent's memory: what all doors share, above the store and the search engine.

Owns resolving of paths as people type them, and the operations that are more than one command or one query: search,
recall, remember, mail. A ``Memory`` is bound to one principal; everything it returns is what that principal may see.
Called by views, vfs and the doors. Knows nothing of FUSE or sockets.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import partial
from typing import Any

from avmfs_config import SearchWeights

from avmfs import paths
from avmfs.access import Principal
from avmfs.agents import mail, moments, pieces
from avmfs.errors import NAMELESS, AvmError, Denied, Exists, Invalid, IsDirectory, NameTooLong, NotDirectory, NotFound
from avmfs.node import Kind, Message, Moment, Node
from avmfs.search import fresh, then
from avmfs.search.engine import Answer, Engine, Mode
from avmfs.search.forms import structured
from avmfs.search.recall import Recall, counted, recall
from avmfs.services import Services
from avmfs.store.commands.documents import check_tag, check_tags
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows.system_dirs import refuse_fixed
from avmfs.store.schema.tables import ROOT, SHARED
from avmfs.store.store import Store
from avmfs.trust import named_by, sources_of

SYMLINKS_FOLLOWED = 16
PATH_MAX, DEPTH_MAX = paths.PATH_MAX, 255  # of paths that people type: a store of before may have deeper ones
QUESTION_MAX = 1024 * 1024  # bytes; folding and cutting a longer one would keep others waiting
RECALLS_KEPT = 10_000  # of the last ones: tokens and nodes, for :savings
_WORDS = re.compile(r"[^\W_]+", re.UNICODE)


@dataclass(slots=True)
class Memory:
    """See the module. Threads may share it."""

    around: Services
    who: Principal
    error: str = ""  # the last reason for EINVAL, for /:error
    enrolled: bool = False
    quiet: bool = False  # views carry no banner: whoever asks shows urgent mail apart
    questions: dict[str, str] = field(default_factory=dict)  # /:ask, newest last
    recalled: deque[tuple[int, frozenset[int]]] = field(default_factory=lambda: deque(maxlen=RECALLS_KEPT))
    noticed: list[str] | None = None  # notices that were shown last; None: none were yet
    mutex: threading.Lock = field(default_factory=threading.Lock)
    then: Moment | None = None  # the instant of the past that this is the memory of
    moments: moments.Moments = field(default_factory=moments.Moments)
    pieces: pieces.Pieces = field(default_factory=pieces.Pieces)

    # Of ``around``: asked for so often that a property's frame counts.
    store: Store = field(init=False, repr=False, compare=False)
    zone: tzinfo = field(init=False, repr=False, compare=False)
    now: Callable[[], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.store, self.zone, self.now = self.around.store, self.around.zone, self.around.clock

    def reading(self) -> AbstractContextManager[Reader]:
        if self.then is not None:
            return self.around.store.reading_at(self.who, self.then)
        return self.around.store.reading(self.who)

    def at(self, moment: Moment) -> Memory:
        """This memory as it was then, which cannot be changed."""
        return replace(self, then=moment)

    def moment(self, text: str) -> Moment:
        """The instant that is meant. Raises NotFound, which says from when on the past is kept."""
        return self.moments.named(self.store, self.who, text, self.now(), self.zone)

    def submit(self, command: str, **arguments: Any) -> Any:
        if self.then is not None:
            then.refuse(command)
        if self.who.nameless and command != "drain_lexical":
            raise Denied(NAMELESS)
        return self.around.store.submit(self.who, command, **arguments)

    def refused(self, verb: str, error: AvmError, path: str | None = None) -> None:
        """Something was refused here, perhaps without asking the store: for the audit."""
        if self.around.refusals is not None:
            self.around.refusals.tell(self.who, verb, error, path)

    def enroll(self) -> None:
        """Make this agent known, with its private space: before it first writes or speaks."""
        if not self.enrolled:
            self.submit("enroll")
            self.enrolled = True

    # Names -------------------------------------------------------------------------------------------------

    def resolve(self, reader: Reader, path: str | bytes, *, follow: bool = True) -> Node:
        """The node at a path as a person writes it: absolute or relative to the root, the aliases /shared and
        /private, @handles; symlinks inside the tree are followed. Raises NotFound, NotDirectory."""
        parts = list(self.real_parts(path if isinstance(path, bytes) else paths.raw(path)))
        shown = paths.text(paths.join(tuple(parts)))
        node, budget = reader.node(ROOT), SYMLINKS_FOLLOWED
        while parts:
            name = parts.pop(0)
            handle = paths.parse_handle(name) if node.id == ROOT else None
            if node.kind is not Kind.DIRECTORY:
                raise NotDirectory(path=shown)
            child = reader.by_handle(handle) if handle is not None else reader.child(node.id, name)
            if child is None:
                raise NotFound(path=shown)
            if child.kind is Kind.SYMLINK and (parts or follow):
                budget -= 1
                if budget < 0:
                    raise Invalid("too many symlinks", shown)
                target = reader.target(child.id)
                base = b"" if target.startswith(b"/") else reader.path(node.id)
                parts = [*self.real_parts(base + b"/" + target), *parts]
                node = reader.node(ROOT)
            else:
                node = child
        return node

    def directory(self, reader: Reader, path: str) -> Node:
        """The directory at a path. Raises Invalid for anything else, and what ``resolve`` raises."""
        node = self.resolve(reader, path)
        if node.kind is not Kind.DIRECTORY:
            raise Invalid("not a directory", path)
        return node

    def real_parts(self, path: bytes) -> tuple[bytes, ...]:
        """Components with /shared and /private spelled out. Raises NotFound for an empty path, as every system call
        does, and NameTooLong; only the last one, which may be a view with a long question, has no limit here."""
        if not path:
            raise NotFound("a path is empty")
        parts = paths.split(path)
        if parts[:1] == (paths.PRIVATE,) and self.who.nameless:
            raise Denied(NAMELESS)
        parts = paths.spelled_out(parts, self.who.name)
        if len(parts) > DEPTH_MAX or sum(len(part) + 1 for part in parts[:-1]) > PATH_MAX:
            raise NameTooLong(f"a path may have {PATH_MAX} bytes and {DEPTH_MAX} names")
        return parts

    # Finding -----------------------------------------------------------------------------------------------

    def _engine(self, under: tuple[bytes, ...], archive: bool, q: str, mode: Mode = "hybrid") -> Engine:
        """Live paths are asked themselves, before words are indexed: what they answer is written by that."""
        aside = paths.searched(under, archive)
        aside = aside if self.then is None else then.among(aside)
        engine = self.around.engine.searching(aside) if aside else self.around.engine
        live = self.around.live if self.then is None and q.strip() else None
        documents, failed = ([], None) if live is None else live.search(self.who, under, q)
        reasons = filter(None, (failed, self.make_searchable()))
        engine = engine.vouching(documents, "; ".join(reasons) or None)
        if mode != "lexical":
            self.around.embed()
        return engine if self.then is None else engine.without_links()  # the index has those of today

    def search(
        self,
        q: str,
        *,
        limit: int = 10,
        under: tuple[bytes, ...] = (),
        within: Collection[int] | None = None,
        mode: Mode = "hybrid",
        archive: bool = False,
    ) -> Answer:
        """Ranked hits, one per document, of these ``within``. ``mode``: hybrid, lexical, semantic. ``archive``: too."""
        _check_question(q)
        least, now, tz = self.around.search.min_relevance, self.now(), self.zone
        find = partial(then.search, self.store, self.then, self._engine(under, archive, q, mode).search, archive)
        ask = partial(
            find, self.who, q, limit=limit, under=under, within=within, min_relevance=least, mode=mode, now=now, tz=tz
        )
        embedded = self.around.embedded and self.then is None and mode != "lexical"
        return fresh.once_embedded(self.store, self.reading, ask, embedded)

    def unsearched(self, under: tuple[bytes, ...] = (), archive: bool = False, form: str = "text") -> str:
        """Of a memory of the past, a line on what no search could look at, unless a ``form`` says it itself."""
        aside = paths.searched(under, archive)
        return "" if structured(form) else then.unsearched(self.store, self.who, self.then, self.zone, aside)

    def recall(
        self,
        q: str,
        *,
        max_tokens: int | None = None,
        min_relevance: float | None = None,
        strategy: str = "balanced",
        under: tuple[bytes, ...] = (),
        cite: str | None = None,
        scores: bool = False,
        form: str = "text",
        reserve: int = 0,
        handed_out: bool = True,
        weights: SearchWeights | None = None,
        archive: bool = False,
    ) -> Recall:
        """What is relevant to ``q``, in at most ``max_tokens`` less ``reserve``. ``handed_out`` False: nobody reads it,
        so it saved nothing and was not asked. ``weights``: not those configured. ``archive``: what is archived too."""
        _check_question(q)
        settings, engine = self.around.search, self._engine(under, archive, q)
        engine = engine if weights is None else engine.weighing(weights)
        how: dict[str, Any] = {"cite": cite, "scores": scores, "form": form, "reserve": reserve}
        ask = partial(
            recall,
            engine,
            self.who,
            q,
            now=self.now(),
            tz=self.zone,
            find=partial(then.search, self.store, self.then, engine.search, archive),
            max_tokens=settings.max_tokens if max_tokens is None else max_tokens,
            min_relevance=settings.min_relevance if min_relevance is None else min_relevance,
            under=under,
            strategy=strategy,
            about=self.unsearched(under, archive).strip().removeprefix("# ") if structured(form) else "",
            **how,
            nonce=lambda seq: self.store.nonce(self.who, seq, q),
        )
        found = fresh.once_embedded(self.store, self.reading, ask, self.around.embedded and self.then is None)
        if handed_out and self.around.questions is not None:
            how |= {"seq": found.seq, "archive": archive, "then": self.then}
            self.around.questions.note(self.who, self.now(), q, under, strategy, max_tokens, min_relevance, how)
        if found.hits and handed_out:
            self.recalled.append((found.tokens, frozenset(scored.hit.node for scored in found.hits)))
        return counted(found) if handed_out else found

    def make_searchable(self) -> str | None:
        """Whatever was committed before this call is in the lexical index after it, or else why it is not."""
        return fresh.in_words(self.store, self.submit)

    # Writing -----------------------------------------------------------------------------------------------

    def new_memory(
        self,
        content: str,
        title: str | None = None,
        path: str | None = None,
        tags: Sequence[str] = (),
        importance: float | None = None,
        namespace: str | None = None,
        created: int | None = None,
        ttl: str | None = None,
        supersedes: str | None = None,
        source: str = "own",
    ) -> dict[str, Any]:
        """What the store is to be told for ``remember``. ``path`` names the file; else it is made from the title or the
        first words, in ``namespace`` ("private", the default, "shared", or a directory). ``ttl`` as ``:ttl`` takes it.
        ``supersedes``: a file, by path or handle. Raises Invalid, and NotFound or IsDirectory for that."""
        if not content.strip():
            raise Invalid("nothing to remember: the content is empty")
        if importance is not None and not 0 <= importance <= 1:
            raise Invalid(f"importance {importance}: expected 0 to 1")
        check_tags(len(tags))
        if path is not None:
            where = self.real_parts(paths.raw(path))
        else:
            where = (*self._namespace(namespace or "private"), slug(title or named_by(content, source)))
        if len(where) < 2:
            raise Invalid(f"{path!r} is not below /memory")
        body = content if content.endswith("\n") else content + "\n"
        return {
            "path": list(where),
            "data": body.encode("utf-8", "surrogateescape"),
            "title": title,
            "tags": sorted({check_tag(tag) for tag in tags}),
            "importance": importance,
            "created": created,
            "expires": None if ttl is None or ttl == "never" else self.now() + mail.parse_duration(ttl),
            "supersedes": None if supersedes is None else self._file(supersedes).id,
            "sources": sources_of(source),
        }

    def _file(self, path: str) -> Node:
        with self.reading() as reader:
            node = self.resolve(reader, path)
        if node.kind is Kind.DIRECTORY:
            raise IsDirectory(path=path)
        if node.document is None:
            raise Invalid("not a regular file in the tree", path)
        return node

    def _namespace(self, namespace: str) -> tuple[bytes, ...]:
        parts = self.real_parts(paths.raw(namespace))
        if parts[:1] == (paths.MEMORY,):
            return parts
        # A slip of the pen would make a directory of all agents, with what was to be private in it.
        with self.reading() as reader:
            there = parts and reader.child(SHARED, parts[0])
        near = not there and get_close_matches(namespace.lower(), ("private", "shared"), 1, 0.85)
        if near or namespace.startswith("/"):
            raise Invalid(f"namespace {namespace!r}: expected private, shared, or one below /memory (/shared/team)")
        return (paths.MEMORY, paths.SHARED, *parts)

    def move(self, source: str, target: str) -> list[tuple[bytes, bytes]]:
        """Move a node, or every path with the string prefix ``source``. Returns the (old, new) paths. Like mv(1): into
        ``target`` when that is a directory. Each node moves atomically; a prefix of many is one node after the other,
        and an error leaves those before it moved."""
        done: list[tuple[bytes, bytes]] = []
        for old, new in self.moves(source, target):
            self.rename(old, new)
            done.append((old, new))
        return done

    def moves(self, source: str, target: str) -> list[tuple[bytes, bytes]]:
        """What ``move`` would do, as things are."""
        with self.reading() as reader:
            return self._moves(reader, source, target)

    def rename(self, old: bytes, new: bytes, instead_of: bytes | None = None) -> None:
        """One rename(2) by path, ``instead_of`` as the store's. Missing parent directories of ``new`` are made."""
        self.make_directories(self.real_parts(new)[:-1])
        with self.reading() as reader:
            here, name = self._entry(reader, old)
            there, new_name = self._entry(reader, new)
        only = {} if instead_of is None else {"instead_of": instead_of}
        self.submit("rename", parent=here, name=name, new_parent=there, new_name=new_name, trash=True, **only)

    def make_directories(self, parts: tuple[bytes, ...]) -> None:
        """mkdir -p."""
        paths.check_path(parts)
        for length in range(1, len(parts) + 1):
            with self.reading() as reader:
                try:
                    self.resolve(reader, paths.join(parts[:length]))
                    continue
                except NotFound:
                    parent = self._changed(reader, self.resolve(reader, paths.join(parts[: length - 1])).id)
            try:
                self.submit("mkdir", parent=parent, name=parts[length - 1], mode=0o755)
            except Exists:
                continue  # another agent was faster

    def delete(
        self, path: str, *, recursive: bool = False, permanently: bool = False, instead_of: bytes | None = None
    ) -> int:
        """Remove a file, or a directory with all below it when ``recursive``: notes to the trash, unless
        ``permanently``. Returns how many nodes went. A file with ``instead_of`` only while that is its SHA-256, else
        Stale; with b"" a directory alone, while nothing is in it, else NotEmpty."""
        with self.reading() as reader:
            node = self.resolve(reader, path, follow=False)
            where = reader.path(node.id)
            refuse_fixed(node, lambda: where)
            assert node.parent is not None
            parent, name = self._changed(reader, node.parent), node.name
            below = reader.children(node.id) if node.kind is Kind.DIRECTORY and instead_of is None else []
        if node.kind is not Kind.DIRECTORY:
            only = {} if instead_of is None else {"instead_of": instead_of}
            self.submit("unlink", parent=parent, name=name, trash=not permanently, **only)
            return 1
        if not recursive and instead_of != b"":
            raise IsDirectory(path=path)
        count = sum(
            self.delete(paths.text(where + b"/" + child.name), recursive=True, permanently=permanently)
            for child in below
        )
        self.submit("rmdir", parent=parent, name=name)
        return count + 1

    def _entry(self, reader: Reader, path: bytes) -> tuple[int, bytes]:
        parts = self.real_parts(path)
        if not parts:
            raise Invalid("the root cannot be moved")
        if (handle := paths.parse_handle(parts[0])) is not None and len(parts) == 1:
            node = reader.by_handle(handle)
            if node is None or node.parent is None:
                raise NotFound(path=paths.text(path))
            return self._changed(reader, node.parent), node.name
        return self._changed(reader, self.resolve(reader, paths.join(parts[:-1])).id), parts[-1]

    def _changed(self, reader: Reader, directory: int) -> int:
        """A directory in which names are to change. At a mount the kernel asks its mode (docs/SECURITY.md, Modes)."""
        if not reader.node(directory).mode & 0o222 and not self.who.operator:
            raise Denied("the mode of the directory allows no writing", paths.text(reader.path(directory)))
        return directory

    def _moves(self, reader: Reader, source: str, target: str) -> list[tuple[bytes, bytes]]:
        old, new = paths.raw(source), paths.raw(target)
        try:
            node = self.resolve(reader, old, follow=False)
        except NotFound:
            return self._prefix_moves(reader, old, new)
        here = reader.path(node.id)
        refuse_fixed(node, lambda: here)
        try:
            into = self.resolve(reader, new)
        except NotFound:
            into = None
        if into is not None and into.kind is Kind.DIRECTORY:
            return [(here, reader.path(into.id) + b"/" + node.name)]
        return [(here, paths.join(self.real_parts(new)))]

    def _prefix_moves(self, reader: Reader, old: bytes, new: bytes) -> list[tuple[bytes, bytes]]:
        directory, _, stem = old.rpartition(b"/")
        there, _, new_stem = new.rpartition(b"/")
        holder = self.resolve(reader, directory or b"/")
        names = [child.name for child in reader.children(holder.id) if child.name.startswith(stem)]
        if not names or not stem:
            raise NotFound(path=paths.text(old))
        base, there = reader.path(holder.id), paths.join(self.real_parts(there or b"/")).rstrip(b"/")
        return [(base + b"/" + name, there + b"/" + new_stem + name[len(stem) :]) for name in names]

    # Mail --------------------------------------------------------------------------------------------------

    def tell(
        self, recipient: str, text: str, *, priority: str = "normal", expires: str | None = None, re: int | None = None
    ) -> int:
        """Send a message to an agent or "@all"; returns its number. ``expires`` is a duration
        ("2h"); ``re`` the number of the message that this one answers. Raises Invalid for an empty one."""
        if not text:
            raise Invalid("nothing to tell: the message is empty")
        limits = self.around.limits
        until = None if expires is None else self.now() + mail.parse_duration(expires)
        self.enroll()
        body = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # the store keeps text
        sent = self.submit(
            "tell",
            recipient=recipient,
            body=body,
            priority=priority,
            expires=until,
            re=re,
            body_limit=limits.message_bytes,
            unread_limit=limits.unread,
            rate_limit=limits.messages_per_minute,
        )
        return int(sent["id"])

    def may_tell(self, recipient: str, size: int, re: int | None = None) -> None:
        """Raises what sending a message of ``size`` bytes would raise now: OverQuota, Invalid, Denied."""
        limits = self.around.limits
        with self.reading() as reader:
            reader.mail.refusal(
                recipient,
                size,
                re,
                body_limit=limits.message_bytes,
                unread_limit=limits.unread,
                rate_limit=limits.messages_per_minute,
            )

    def inbox(
        self, *, unread_only: bool = False, priority: str | None = None, read: int | None = None
    ) -> list[Message]:
        """Unread first, urgent first, newest first; of what is read at most ``read``."""
        with self.reading() as reader:
            return reader.mail.messages(unread_only=unread_only, priority=priority, read=read)

    def inbox_text(self, *, unread_only: bool = False) -> tuple[str, list[Message]]:
        """The inbox as a person reads it, and the messages that stand in it."""
        with self.reading() as reader:
            found = reader.mail.messages(unread_only=unread_only, read=mail.READ_SHOWN)
            older = 0 if unread_only else reader.mail.counts().messages - len(found)
        return mail.listing(found, self.zone, older), found

    def mark_read(self, messages: Sequence[int] | None = None) -> int:
        """These messages, or all, count as read; returns how many were unread."""
        reply = self.submit("mark_read", messages=None if messages is None else list(messages))
        return int(reply["count"])

    def urgent_banner(self) -> tuple[str, str]:
        """What prose views put on top while urgent mail is unread, whole and as one line; empty otherwise, and for who
        is ``quiet``, and for an API key that does not open the inbox."""
        if self.quiet or not self.who.may("inbox"):
            return "", ""
        with self.reading() as reader:
            urgent = reader.mail.urgent(mail.BANNER_MESSAGES)
            unread = reader.mail.counts().unread if urgent else {}
        return mail.banner(urgent, unread, self.zone), mail.short_banner(unread.get("urgent", 0))

    def banner(self) -> str:
        return self.urgent_banner()[0]

    # Times -------------------------------------------------------------------------------------------------

    def local(self, at: int) -> datetime:
        """Nanoseconds since the epoch in the zone for showing."""
        return datetime.fromtimestamp(at // 10**9, UTC).astimezone(self.zone)


def _check_question(q: str) -> None:
    if len(q) > QUESTION_MAX or len(q.encode("utf-8", "surrogateescape")) > QUESTION_MAX:
        raise Invalid(f"a question may have {QUESTION_MAX} bytes")


def slug(text: str) -> bytes:
    """A file name from a title or the first words: ``NVDA risk!`` -> ``nvda-risk.md``."""
    words = _WORDS.findall(unicodedata.normalize("NFKC", text[:400]).casefold())[:8]
    stem = "-".join(words).encode("utf-8", "ignore")[:80].decode("utf-8", "ignore").strip("-") or "memory"
    return f"{stem}.md".encode()
