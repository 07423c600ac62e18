"""Questions to the SQLite store about who knows what.

Nothing that the asker may not learn ever leaves it: of what it cannot see, only what the owner's privacy mode allows.
What others let be learnt is a table of its own (``revealed``), so that neither an answer nor its time depends on
documents of which nothing may be learnt.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from avmfs.access import UNSAID, Privacy
from avmfs.store.queries.part import Part
from avmfs.text import segment

# Each document with its maker and who wrote it last.
_MADE = """
  join document on document.id = topic.document join node on node.id = document.node
  left join version on version.document = document.id and version.number = document.head
"""
# What is out of the way, or in quarantine, says nothing of who knows, as no search has it.
_STANDS = """node.parent is not null and (node.expires is null or node.expires > :now) and not exists
  (select 1 from scope where scope.id = node.scope and (spec glob '*;~*' or spec glob '*;#*:quarantine*'))"""
# By key and class, cross being an order to SQLite: rows of other classes are not touched.
_BY_CLASS = """from json_each(:keys) as wanted cross join json_each(:scopes) as class
  cross join topic indexed by topic_key on topic.key = wanted.value and topic.scope = class.value"""
_BY_KEY = "from json_each(:keys) as wanted cross join topic indexed by topic_key on topic.key = wanted.value"
_OPEN = "(spec glob '[*]=r[ow]*' and spec not glob '*=none*')"  # everybody may read it


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document about a topic that the asker can see, and an agent that made it or wrote it last."""

    agent: str
    key: str
    name: str
    document: int
    node: int
    modified: int
    handle: str


@dataclass(frozen=True, slots=True)
class Revealed:
    """That an agent knows of what the asker cannot see. ``agent`` None: somebody. ``topics``: (name, documents), empty
    unless the agent's mode is full."""

    agent: str | None
    topics: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """A Bloom digest; ``agent`` "" is of those who stay unnamed, ``bits`` b"" of who has withdrawn it."""

    host: str
    agent: str
    version: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class Host:
    """A store whose digests are known. ``version``: all of its digests up to it; ``alive``: ns, by its own clock."""

    host: str
    name: str
    version: int
    alive: int
    own: bool


class DiscoveryReader(Part):
    """``keys`` are topics as index terms with blanks between."""

    def evidence(self, keys: Sequence[str]) -> list[Evidence]:
        """Of all visible documents about any of the topics."""
        rows = self._all(
            "select topic.key, topic.name, document.id, node.id, node.mtime, document.handle, document.creator,"
            " coalesce(version.author, document.creator)"
            f" {_BY_KEY if self._who.operator else _BY_CLASS} {_MADE} where {_STANDS}"
            " and node.scope in (select value from json_each(:scopes))",
            keys=json.dumps(keys),
        )
        return [Evidence(agent, *row[:6]) for row in rows for agent in dict.fromkeys((row[6], row[7]))]

    def revealed(self, keys: Sequence[str]) -> list[Revealed]:
        """What the owners of documents that the asker cannot see let be learnt; named ones in order of name, then at
        most one of somebody. Nothing for an operator, who sees everything."""
        if self._who.operator:
            return []
        rows = self._all(
            "select revealed.agent, privacy.mode, revealed.name from json_each(:keys) as wanted"
            " cross join revealed on revealed.key = wanted.value join privacy on privacy.agent = revealed.agent"
            " join document on document.id = revealed.document join node on node.id = document.node"
            " join sole on sole.scope = node.scope and sole.agent = revealed.agent"
            " where revealed.agent <> :agent and node.scope not in (select value from json_each(:scopes))"
            f" and {_STANDS}",
            keys=json.dumps(keys),
        )
        topics: dict[str, Counter[str]] = {}
        somebody = False
        for agent, mode, name in rows:
            if mode == "existence":
                somebody = True
            else:
                topics.setdefault(agent, Counter()).update([name] if mode == "full" else [])
        found = [Revealed(agent, tuple(sorted(names.items()))) for agent, names in sorted(topics.items())]
        return [*found, Revealed(None, ())] if somebody else found

    def privacy(self, agent: str) -> Privacy:
        """Raises Denied unless it is the asker's own or the asker is an operator."""
        if agent != self._who.name:
            self._who.require_operator()
        return cast(Privacy, self._db.execute("select mode from privacy where agent = ?", (agent,)).get or UNSAID)

    def hosts(self) -> list[Host]:
        rows: Any = self._db.execute("select host, name, version, alive, own from digest_host order by own desc, host")
        return [Host(host, name, version, alive, bool(own)) for host, name, version, alive, own in rows]

    def digests(self, host: str | None = None, after: int = 0, limit: int = -1) -> list[Digest]:
        """In order of version within a host."""
        rows = self._all(
            "select host, agent, version, bits from digest where (:host is null or host = :host) and version > :after"
            " order by host, version limit :limit",
            host=host,
            after=after,
            limit=limit,
        )
        return [Digest(given, agent, version, bytes(bits)) for given, agent, version, bits in rows]

    def digest_state(self) -> int:
        """The same number for as long as no digest has changed."""
        return int(self._db.execute("select value from setting where key = 'digest_state'").get or 0)

    def topics_state(self) -> tuple[int, int]:
        """The same for as long as ``known_to_all`` gives the same, but for what expires. For housekeeping."""
        self._who.require_operator()
        row: Any = self._db.execute(
            "select coalesce((select max(seq) from passage_log), 0),"
            " coalesce((select value from setting where key = 'privacy_state'), 0)"
        ).fetchone()
        return row[0], int(row[1])

    def known_to_all(self) -> Iterator[tuple[str, str]]:
        """(agent, key) of all that everybody may learn, in order of agent; "" for those who stay unnamed. For
        housekeeping: raises Denied unless the asker is an operator."""
        self._who.require_operator()
        shared = f"from scope cross join topic on topic.scope = scope.id {_MADE} where {_OPEN} and {_STANDS}"
        return self._db.execute(
            f"select agent, key from (select document.creator as agent, topic.key {shared}"
            f" union select coalesce(version.author, document.creator), topic.key {shared}"
            " union select iif(privacy.mode = 'existence', '', revealed.agent), revealed.key from revealed"
            " join privacy on privacy.agent = revealed.agent join document on document.id = revealed.document"
            " join node on node.id = document.node"
            f" join sole on sole.scope = node.scope and sole.agent = revealed.agent where {_STANDS}"
            ") order by agent",
            {"now": self._now},
        )

    def has_term(self, term: str, but: set[int]) -> bool:
        """For an operator: whether the text of any document but these has an index term, or, of one character alone in
        a script without spaces, one that begins with it, as a search goes by."""
        self._who.require_operator()
        found = self._db.execute(
            "select 1 from scope cross join posting on posting.term >= scope.id || 'x' || ?1"
            " and posting.term <= scope.id || 'x' || ?1 || ?2 join passage on passage.id = posting.doc"
            " where document not in (select value from json_each(?3)) limit 1",
            (term, chr(sys.maxunicode) if segment.lone(term) else "", json.dumps(sorted(but))),
        )
        return bool(found.get)
