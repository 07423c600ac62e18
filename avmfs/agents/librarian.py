"""Who knows about it: topics of a question, and the order of those who know.

Owns which topics a question may mean, how evidence becomes one line for an agent, and what a line looks like
(docs/FORMATS.md). Called by the view :who and the door. Pure: it is given only what the asker may learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from avmfs import paths
from avmfs.agents.bloom import Asked
from avmfs.agents.told import told
from avmfs.store.queries.discovery import Evidence, Host, Revealed
from avmfs.text import segment
from avmfs.text.topics import NAME_MAX

TERMS_READ: Final = 48  # of a question; later ones mean no topic
_READ: Final = 2000  # characters of it
_SPAN_TERMS: Final = 20

How = Literal["files", "private", "digest"]


@dataclass(frozen=True, slots=True)
class Knows:
    """One line of an answer. ``agent`` None: somebody who stays unnamed. ``host`` None: this one.

    ``how``: "files" that the asker can see, ``files`` of them about ``topics``, ``node`` being the newest; "private"
    ones of which the agent lets no more be learnt than is here, ``topics`` with how many files; by its "digest", which
    may be mistaken. ``path`` and ``handle`` are the newest file's.
    """

    agent: str | None
    how: How
    host: str | None = None
    files: int = 0
    topics: tuple[str, ...] = ()
    node: int | None = None
    handle: str | None = None
    path: bytes | None = None


def topic_keys(question: str) -> tuple[str, ...]:
    """The keys of all topics that a question may name: runs of its terms that begin and end with a word that means
    something, and the whole of a short one. Never raises."""
    text = question[:_READ]
    terms = segment.terms(text)[:TERMS_READ]
    content = set(segment.content_terms(text))
    runs = {" ".join(terms): None} if terms and len("".join(terms)) <= NAME_MAX else {}
    for start, first in enumerate(terms):
        if first not in content:
            continue
        for stop in range(start + 1, min(start + _SPAN_TERMS, len(terms)) + 1):
            if len("".join(terms[start:stop])) > 2 * NAME_MAX:
                break
            if terms[stop - 1] in content:
                runs[" ".join(terms[start:stop])] = None
    return tuple(key for key in runs if not key.isdigit())


def by_files(evidence: Iterable[Evidence]) -> list[Knows]:
    """Those whose files the asker can see, most telling first: an agent's share of all visible files about a topic,
    so that few files of a rare topic weigh as much as many of a common one; then who wrote last."""
    rows = list(evidence)
    everybody: dict[str, set[int]] = {}
    for row in rows:
        everybody.setdefault(row.key, set()).add(row.document)
    own: dict[str, list[Evidence]] = {}
    for row in rows:
        own.setdefault(row.agent, []).append(row)
    ranked: list[tuple[tuple[float, int, str], Knows]] = []
    for agent, found in own.items():
        shares = Counter(row.key for row in found)
        score = sum(count / (len(everybody[key]) + 1) for key, count in sorted(shares.items()))
        newest = max(found, key=lambda row: (row.modified, row.node))
        names: dict[str, str] = {}
        for row in found:
            names[row.key] = min(row.name, names.get(row.key, row.name))
        topics = tuple(names[key] for key in sorted(names, key=lambda key: (-shares[key], key)))
        files = len({row.document for row in found})
        line = Knows(agent, "files", files=files, topics=topics, node=newest.node, handle=newest.handle)
        ranked.append(((-round(score, 6), -newest.modified, agent), line))
    return [line for _, line in sorted(ranked, key=lambda pair: pair[0])]


def by_word(revealed: Iterable[Revealed]) -> list[Knows]:
    """Those who let it be learnt."""
    return [
        Knows(each.agent, "private", topics=tuple(f"{name} ({count})" for name, count in each.topics))
        for each in revealed
    ]


def by_digest(asked: Iterable[Asked], hosts: Sequence[Host], *, local: bool) -> list[Knows]:
    """Those whose digests say so: of this store when ``local``, and of other hosts."""
    known = {host.host: host for host in hosts}
    lines = []
    for each in asked:
        host = known.get(each.member.host)
        if host is not None and (local or not host.own):
            lines.append(Knows(each.member.agent or None, "digest", host=None if host.own else host.name))
    return lines


def shown(line: Knows) -> str:
    """``alice  2 files: NVDA, RSI  @k7f2 /memory/shared/nvda.md``, ``carol  private: NVDA (2)``, ``(somebody)
    private``, ``dave@mars  perhaps``."""
    name = line.agent if line.agent is not None else "(somebody)"
    name = name if line.host is None else f"{name}@{_plain(line.host)}"
    about = f": {', '.join(map(_plain, line.topics))}" if line.topics else ""
    if line.how == "digest":
        return f"{name}  perhaps"
    if line.how == "private":
        return f"{name}  private{about}"
    where = "" if line.path is None else f"  @{line.handle} {paths.printable(line.path)}"
    return f"{name}  {line.files} file{'' if line.files == 1 else 's'}{about}{where}"


def plain(line: Knows) -> dict[str, Any]:
    """For programs."""
    return told(line, "agent host how files topics handle path")


def _plain(text: str) -> str:
    return segment.one_line(text, NAME_MAX)
