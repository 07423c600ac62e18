"""Notes of others: names, tags and links as they write them, made such that a store takes them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from avmfs.errors import Invalid
from avmfs.transfer import front_matter
from avmfs.transfer.files import files
from avmfs.transfer.formats.markdown import NOTES, foreign
from avmfs.transfer.record import Record, Refusal, moment, of_plain, time_or_none

WIKI: Final = re.compile(r"!?\[\[([^\]|#^\n]+)(?:[#^|][^\]\n]*)?\]\]")
RELATION: Final = re.compile(r"^\s*[-*]\s+([^\[\]\n]{1,80}?)\s*\[\[([^\]|#\n]+)(?:[#|][^\]\n]*)?\]\]", re.MULTILINE)
_TAG: Final = re.compile(r"(?<![\w&/#])#([^\W\d_][\w/-]*|\d+[\w/-]*[^\W\d][\w/-]*)")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_WORDS: Final = re.compile(r"[^\W_]+")


def slug(text: str, usual: str = "memory") -> str:
    """The stem of a file name from a title: ``NVDA risk!`` -> ``nvda-risk``."""
    words = _WORDS.findall(unicodedata.normalize("NFKC", text[:400]).casefold())[:10]
    return "-".join(words).encode("utf-8", "ignore")[:80].decode("utf-8", "ignore").strip("-") or usual


def tags_of(said: Any) -> tuple[str, ...]:
    """Tags that a store takes: text without what no tag may have, 64 characters of it."""
    found = []
    for word in front_matter.words(said):
        tag = unicodedata.normalize("NFC", "".join(sign for sign in word if sign.isprintable() and sign != ","))
        found.append(tag.lstrip("+-# ")[:64].strip())
    return tuple(sorted({tag for tag in found if tag}))[:256]


def kind_of(said: str) -> str:
    """The type of a link as a word."""
    return re.sub(r"[^\w.-]+", "-", said.strip()).strip("-._")[:64] or "related"


def importance_of(said: Any) -> float | None:
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= 1:
        return None
    return float(said)


def text_of(said: Any) -> str:
    """Text that has bytes: halves of surrogate pairs are replaced."""
    return str(said).encode("utf-8", "replace").decode()


def vault(folder: Path, name: str, relations: bool) -> Iterator[Record | Refusal]:
    """A folder of notes that link to each other by name; other files come as they are. ``relations``: a list item
    before a link says what the link is."""
    known = _Names(folder)
    for each in files(folder):
        if isinstance(each, Refusal):
            yield each
            continue
        path, file = each
        try:
            at, data = file.stat().st_mtime_ns, file.read_bytes()
            said: dict[str, Any] = {}
            links: dict[tuple[str, str], None] = {}
            if path.endswith(NOTES):
                front, body = _front(data)
                text = body.decode("utf-8", "replace")
                said = foreign(front)
                plain = _CODE.sub(" ", text)
                said["tags"] = tags_of([*said["tags"], *_TAG.findall(plain)])
                said["meta"] = {
                    key: str(front[key]) for key in ("title", "type", "permalink") if front.get(key) is not None
                }
                typed = {target: kind for kind, target in RELATION.findall(plain)} if relations else {}
                for target in WIKI.findall(plain):
                    if (found := known.find(target, path)) is not None and found != path:
                        links[found, kind_of(typed.get(target, "related"))] = None
            made = of_plain(path, data, said, path)
        except (OSError, Invalid) as e:
            yield Refusal(path, str(e))
            continue
        made = replace(made, created=made.created or at, updated=made.updated or at, links=tuple(links))
        yield replace(made, source=f"{name}:{path}", folder=folder)


def _front(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Front matter that is no YAML is text."""
    try:
        return front_matter.parse(data)
    except Invalid:
        return {}, data


class _Names:
    """What a link may name: a path, a name without its suffix, a title or permalink; the nearest of several."""

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, list[str]] = {}
        for each in files(folder):
            if isinstance(each, Refusal):
                continue
            path, file = each
            stem = path.rpartition(".")[0] if path.endswith(NOTES) else path
            names = {stem, stem.rpartition("/")[2], path, path.rpartition("/")[2]}
            if path.endswith(NOTES):
                try:
                    with file.open("rb") as opened:
                        front = _front(opened.read(65536))[0]
                except OSError:
                    continue  # it is refused when it is read whole
                aliases = front.get("aliases")
                names |= {str(front[key]) for key in ("title", "permalink") if front.get(key)}
                names |= set(map(str, aliases)) if isinstance(aliases, list) else set()
            for name in names:
                self._paths.setdefault(name.casefold(), []).append(path)

    def find(self, target: str, near: str) -> str | None:
        found = self._paths.get(target.strip().removeprefix("/").casefold(), ())
        here = near.rpartition("/")[0]
        return min(found, key=lambda path: (path.rpartition("/")[0] != here, path.count("/"), path), default=None)


def conversation(
    title: str, messages: Iterable[tuple[str, int | None, str]], kind: str, id: str, **said: Any
) -> Record:
    """Messages (who, when, text) as one note, its name of its title and day."""
    created = time_or_none(said.pop("created", None))
    lines = [f"# {' '.join(text_of(title).split()) or 'Conversation'}\n"]
    for who, at, text in messages:
        when = f" ({moment(at)[:16].replace('T', ' ')})" if at is not None else ""
        lines.append(f"\n## {who}{when}\n\n{text_of(text).strip()}\n")
    day = "" if created is None else moment(created)[:10] + "-"
    return Record(
        f"{day}{slug(title, 'conversation')}.md",
        "".join(lines).encode(),
        created=created,
        updated=time_or_none(said.pop("updated", None)) or created,
        source=f"{kind}:{id}",
        place=f"{kind} {id}",
        **said,
    )
