"""Views of what is said about a file: metadata, tags, links, sharing, ttl.

Owns their formats (docs/FORMATS.md) and the parsing of what is written to them. A text is parsed whole before
anything changes; the store's commands check the rights.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import Invalid, NotFound, OverQuota
from avmfs.node import Document, Node
from avmfs.signatures import Range
from avmfs.store.commands.documents import USER_LIMIT, check_tag, check_tags, pack_user
from avmfs.store.commands.versions import LINKS_MAX
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT
from avmfs.text import sniff
from avmfs.text.escapes import escaped
from avmfs.trust import SOURCES, origin_of
from avmfs.views.registry import Context, by_lines, view, writes
from avmfs.views.shape import json_text, lines, parts, whole

_SYSTEM_WORDS: Final = (
    "author claim created creator id indexed live path route shared size tokens trust updated version"
)
SYSTEM: Final = frozenset(_SYSTEM_WORDS.split())
"""Keys of :meta that tell what is; nobody writes them."""

_WORD: Final = re.compile(r"[,\n]|\s+(?=[+-])")
LINK_TYPE: Final = re.compile(r"[^\W_][\w.-]{0,63}")
_NUMBER_GOES_ON: Final = re.compile(r"\.|[eE][+-]?")
_LITERALS: Final = ("true", "false", "null", "-", "NaN", "Infinity", "-Infinity")
DEFAULT_LINK: Final = "related"
_NO_TAGS: Final = "no tags"  # in parentheses, as one file's are copied to another
_TAGS_TEXT: Final = 32 * 1024  # characters, of all tags that a file can have
_META_TEXT: Final = 4 * USER_LIMIT  # with blanks between


@dataclass(frozen=True, slots=True)
class _Meta:
    """What a JSON object written to :meta asks for. ``ttl`` is a pair so that "never" differs from not given."""

    user: dict[str, Any]
    importance: float | None = None
    tags: list[str] | None = None
    ttl: tuple[int | None] | None = None
    sources: list[str] | None = None


# :meta -----------------------------------------------------------------------------------------------------


@view("meta", "file", summary="everything known about the file, as JSON", past=True)
def meta(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        document = reader.document(node)
        known: dict[str, Any] = {
            "author": document.author,
            "created": mail.iso(document.created),
            "creator": document.creator,
            "id": f"@{document.handle}",
            "importance": document.importance,
            "indexed": _indexed(reader.unindexed(document.id), reader.awaits_vectors(document.id)),
            "path": paths.text(reader.path(node.id)),
            "route": document.route or None,
            "shared": _shared_json(reader, node, document),
            "size": node.size,
            "sources": [*reader.visible.origin(reader.trusted_as(node)).sources],
            "tags": reader.tags(document.id),
            "trust": reader.visible.trust(reader.trusted_as(node)),
            "ttl": _remaining(ctx, node),
            "updated": mail.iso(document.updated),
            "version": document.head,
        }
        if (live := reader.live(paths.raw(known["path"]))) is not None:
            known["live"] = {
                "error": live.error or None,
                "fetched": None if live.fetched is None else mail.iso(live.fetched),
                "source": live.source,
                "until": mail.iso(live.until),
            }
        claim = None if ctx.memory.then is not None else reader.claims.of(node.id)
        text = sniff.decode(whole(reader, node)) if node.size <= ctx.memory.around.search.max_index_bytes else None
    known["claim"] = None if claim is None else {"agent": claim.agent, "until": mail.iso(claim.until)}
    known["tokens"] = None if text is None else ctx.memory.around.engine.counter.count(text)
    return json_text({**document.user, **known})


@writes(
    "meta",
    "a JSON object, merged: user keys (null removes one), `importance` 0 to 1, `tags`, `ttl`, `sources`",
    check=lambda text: _parse_meta(text) is not None,
)
def write_meta(ctx: Context, text: str) -> None:
    asked = _parse_meta(text)
    if asked is None:
        raise Invalid(":meta: the JSON object is incomplete")
    node = ctx.node.id
    if asked.user or asked.importance is not None:
        ctx.memory.submit("merge_meta", node=node, importance=asked.importance, user=asked.user)
    if asked.tags is not None:
        ctx.memory.submit("set_tags", node=node, add=asked.tags, remove=[], replace=True)
    if asked.ttl is not None:
        _set_ttl(ctx, asked.ttl[0])
    if asked.sources is not None:
        ctx.memory.submit("set_sources", node=node, sources=asked.sources)


def _parse_meta(text: str) -> _Meta | None:
    """None while the text may still become a JSON object. Raises Invalid when it never can, OverQuota when it is too
    large."""
    if len(text) > _META_TEXT:
        raise OverQuota(f":meta: takes {_META_TEXT} characters")
    try:
        given = json.loads(text, parse_constant=_no_constant)
        json.dumps(given, ensure_ascii=False).encode()
    except json.JSONDecodeError as e:
        rest = text[e.pos :].rstrip()
        if (
            any(word.startswith(rest) for word in _LITERALS)  # also an empty rest
            or _NUMBER_GOES_ON.fullmatch(rest)
            or e.msg.startswith("Unterminated")
            or (e.msg.startswith("Invalid \\") and '"' not in rest)
        ):
            return None
        raise Invalid(f":meta: no JSON object: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except UnicodeEncodeError:
        raise Invalid(":meta: not UTF-8") from None
    except RecursionError:
        raise Invalid(":meta: nested too deeply") from None
    except ValueError as e:
        raise Invalid(f":meta: no JSON object: {e}") from None
    if not isinstance(given, dict):
        raise Invalid(':meta: expected a JSON object, {"key": value}')
    refused = sorted(SYSTEM.intersection(given))
    if refused:
        raise Invalid(f":meta: {refused[0]!r} is kept by the system and cannot be set")
    user = {key: value for key, value in given.items() if key not in ("importance", "tags", "ttl", "sources")}
    pack_user(user)
    return _Meta(
        user,
        importance=_parse_importance(given["importance"]) if "importance" in given else None,
        tags=_parse_tag_list(given["tags"]) if "tags" in given else None,
        ttl=(_parse_json_ttl(given["ttl"]),) if "ttl" in given else None,
        sources=_parse_sources(given["sources"]) if "sources" in given else None,
    )


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _parse_importance(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise Invalid(f":meta: importance {value!r}: expected 0 to 1")
    return float(value)


def _parse_tag_list(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise Invalid(f":meta: tags {str(value)[:80]}: expected a list of strings")
    check_tags(len(value))
    return sorted({check_tag(tag) for tag in value})


def _parse_sources(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Invalid(f":meta: sources {str(value)[:80]}: expected a list of {', '.join(SOURCES)}")
    return [*origin_of(value).sources]


def _parse_json_ttl(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Invalid(f':meta: ttl {value!r}: expected a string, "2h" or "never"')
    return _parse_ttl(value)


def _indexed(reason: str | None, awaits_vectors: bool) -> bool | str:
    if reason is None:
        return "words" if awaits_vectors else True
    return reason or "waiting"


def _shared_json(reader: Reader, node: Node, document: Document) -> list[str] | str | None:
    if paths.agent_space(parts(reader.path(node.id))) is not None:
        return None
    return "all" if document.shared is None else list(document.shared)


# :tags -----------------------------------------------------------------------------------------------------


@view("tags", "file", summary="its tags, with commas between", past=True)
def tags(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        found = reader.tags(reader.document(reader.node(ctx.node.id)).id)
    return lines([escaped(",".join(found))] if found else [], _NO_TAGS)


@writes(
    "tags",
    "`a,b` sets, `+x` adds, `-x` removes; an empty line removes all",
    check=lambda text: _check_tags(text),
    once=lambda text: text.lstrip().startswith(("+", "-")),
)
def write_tags(ctx: Context, text: str) -> None:
    add, remove, replace = _parse_tags(text)
    ctx.memory.submit("set_tags", node=ctx.node.id, add=add, remove=remove, replace=replace)


def _check_tags(text: str) -> bool:
    """Only whole lines are judged: the last one may go on."""
    if len(text) > _TAGS_TEXT:
        raise OverQuota(f":tags: takes {_TAGS_TEXT} characters")
    complete = text[: text.rfind("\n") + 1]
    _parse_tags(complete)
    return complete == text


def _parse_tags(text: str) -> tuple[list[str], list[str], bool]:
    """(to add, to remove, whether the others go)."""
    words = [word for word in (piece.strip() for piece in _WORD.split(text)) if word and word != f"({_NO_TAGS})"]
    check_tags(len(words))
    signed = [word for word in words if word[0] in "+-"]
    if signed and len(signed) != len(words):
        odd = next(word for word in words if word[0] not in "+-")
        raise Invalid(f":tags: {odd!r}: either a list of tags, or + or - before every one")
    if not signed:
        return sorted({check_tag(word) for word in words}), [], True
    last = {check_tag(word[1:]): word[0] for word in words}
    return (
        sorted(tag for tag, sign in last.items() if sign == "+"),
        sorted(tag for tag, sign in last.items() if sign == "-"),
        False,
    )


# :links ----------------------------------------------------------------------------------------------------


@view("links", "file", summary="links from it (`->`) and to it (`<-`), with their types", past=True)
def links(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        found = reader.links(reader.document(reader.node(ctx.node.id)).id)
    return lines(
        (f"{'->' if link.outgoing else '<-'} {paths.printable(link.path)} ({escaped(link.type)})" for link in found),
        "no links",
    )


@writes(
    "links",
    "`TARGET [type]` adds, `-TARGET [type]` removes, `-*` all, one a line; TARGET is a path or a handle",
    check=by_lines(lambda text: _parse_links(text)),
    once=True,
)
def write_links(ctx: Context, text: str) -> None:
    asked: list[tuple[bool, int | None, str | None]] = []
    with ctx.memory.reading() as reader:
        here = reader.path(ctx.node.id).rpartition(b"/")[0]
        for remove, said in _parse_links(text):
            if remove and said == "*":
                asked.append((True, None, None))
                continue
            target, kind = _linked(ctx, reader, here, said)
            if target.document is None or (target.id == ctx.node.id and not remove):
                raise Invalid(f":links: {said[:80]!r}: a file is linked to other files")
            asked.append((remove, target.id, kind))
    for remove, target_id, kind in asked:
        if remove:
            ctx.memory.submit("remove_link", node=ctx.node.id, target=target_id, type=kind)
        else:
            ctx.memory.submit("add_link", node=ctx.node.id, target=target_id, type=kind or DEFAULT_LINK)


def _parse_links(text: str) -> list[tuple[bool, str]]:
    """(whether it goes, what is linked) of each line."""
    found = [
        (line.startswith("-"), line.removeprefix("-").strip())
        for line in (piece.strip() for piece in text.split("\n"))
        if line
    ]
    if len(found) > LINKS_MAX:
        raise OverQuota(f":links: {len(found)} at once: {LINKS_MAX} links of an agent may lead from a file")
    if any(not said for _, said in found):
        raise Invalid(":links: '-': expected -TARGET")
    return found


def _linked(ctx: Context, reader: Reader, here: bytes, line: str) -> tuple[Node, str | None]:
    """The target and the type. A path may hold blanks: what is a path as a whole has no type behind it."""
    target, _, kind = line.rpartition(" ")
    try:
        return _target(ctx, reader, here, line), None
    except NotFound:
        if not target.strip():
            raise
    if not LINK_TYPE.fullmatch(kind):
        raise Invalid(f":links: type {kind!r}: expected a word of letters, digits, '.', '_' or '-'")
    return _target(ctx, reader, here, target.strip()), kind


def _target(ctx: Context, reader: Reader, here: bytes, written: str) -> Node:
    name = paths.raw(written)
    if paths.parse_handle(name) is not None:
        return ctx.memory.resolve(reader, b"/" + name)
    return ctx.memory.resolve(reader, name if name.startswith(b"/") else here + b"/" + name)


@view("disputes", "root", summary="notes that contradict each other by a link, and who says so")
def disputes(ctx: Context, *, limit: Annotated[int, Range(1, 1000)] = 100) -> str:
    with ctx.memory.reading() as reader:
        return lines(map(str, disputed(reader, limit)[0]), "no disputes")


@dataclass(frozen=True, slots=True)
class Disputed:
    """Two files that contradict each other, by a link of ``agent`` from the first to the second."""

    handles: tuple[str, str]
    paths: tuple[bytes, bytes]
    agent: str

    def __str__(self) -> str:
        both = zip(self.handles, self.paths, strict=True)
        return "  contradicts  ".join(f"@{it} {paths.printable(path)}" for it, path in both) + f"  ({self.agent})"


def disputed(reader: Reader, limit: int, under: int = ROOT) -> tuple[list[Disputed], int]:
    """The newest ``limit`` disputes of files that the reader sees both, one of them below a directory, which nothing
    has settled; and how many there are in all."""

    def handle(node: int) -> str:
        return reader.document(reader.node(node)).handle

    rows, in_all = reader.disputes(limit, under)
    found = [
        Disputed((handle(one), handle(other)), (reader.path(one), reader.path(other)), agent)
        for one, other, agent in rows
    ]
    return found, in_all


# :shared ---------------------------------------------------------------------------------------------------


@view("shared", "file", summary="who may read and write it: `all`, or agents with commas between")
def shared(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        owner = paths.agent_space(parts(reader.path(node.id)))
        document = reader.document(node)
    if owner is not None:
        return f"(private to {owner})\n"
    return "all\n" if document.shared is None else (",".join(document.shared) or "(nobody)") + "\n"


@writes("shared", "`all`, or `alice,bob`: only these, and its owner", check=by_lines(lambda text: _parse_shared(text)))
def write_shared(ctx: Context, text: str) -> None:
    agents = _parse_shared(text)
    with ctx.memory.reading() as reader:
        if paths.agent_space(parts(reader.path(ctx.node.id))) is not None:
            raise Invalid(":shared: a private file cannot be shared: move it to /shared")
        strangers = sorted(set(agents or ()).difference(reader.agents()))
    if strangers:
        raise Invalid(f":shared: no agent is called {', '.join(map(repr, strangers))}")
    ctx.memory.submit("set_shared", node=ctx.node.id, agents=agents)


def _parse_shared(text: str) -> list[str] | None:
    """Agents, or None for all."""
    names = sorted(set(re.split(r"[,\s]+", text.strip())) - {""})
    if not names:
        raise Invalid(":shared: expected all, or agents with commas between")
    if names == ["all"]:
        return None
    if "all" in names:
        raise Invalid(":shared: either all, or agents")
    return names


# :ttl ------------------------------------------------------------------------------------------------------


@view("ttl", "file", summary="how long it still lives: `never`, or `1h 59m`")
def ttl(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        return _remaining(ctx, reader.node(ctx.node.id)) + "\n"


@writes("ttl", "`5m`, `2h`, `1d`, `never`", check=by_lines(lambda text: _parse_ttl(text)), once=True)
def write_ttl(ctx: Context, text: str) -> None:
    _set_ttl(ctx, _parse_ttl(text))


def _set_ttl(ctx: Context, duration: int | None) -> None:
    expires = None if duration is None else ctx.memory.now() + duration
    ctx.memory.submit("set_ttl", node=ctx.node.id, expires=expires)


def _remaining(ctx: Context, node: Node) -> str:
    return "never" if node.expires is None else mail.show_duration(node.expires - ctx.memory.now())


def _parse_ttl(text: str) -> int | None:
    """A duration in ns, or None for never."""
    return None if text.strip() == "never" else mail.parse_duration(text)
