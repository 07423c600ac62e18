"""What agents take up: how it is counted, and the table usage."""

from __future__ import annotations

from typing import Any, Final

import apsw

# What version rows of a document take: an old one that is a map of blocks counts as if all of them were its own.
KEPT_BYTES: Final = "case {0}.encoding when 4 then {0}.size else coalesce(length({0}.body), 0) end"

# Who pays for what is kept and said of a document, but for links: each is its agent's, who alone may know of it.
CHARGED: Final = "coalesce({0}.charged, {0}.creator)"

_PAYS: Final = CHARGED.format("document")

CREATOR: Final = f"(select {_PAYS} from document where id = {{}}.document)"

# A tag stands in its own index, and as a topic in two more.
TAG_BYTES: Final = "128 + 8 * length({}.tag)"

LINK_BYTES: Final = 256

USER_BYTES: Final = "coalesce(length({}.user), 0)"

# Every agent's sums, from the rows themselves.
RECOUNT: Final = f"""
select agent, sum(nodes), sum(bytes), sum(history) from (
  select owner as agent, 1 as nodes, size as bytes, 0 as history from node where owner is not null
  union all
  select {_PAYS}, 0, 0, {KEPT_BYTES.format("version")} from version join document on document.id = version.document
  union all
  select {_PAYS}, 0, {TAG_BYTES.format("tag")}, 0 from tag join document on document.id = tag.document
  union all
  select agent, 0, {LINK_BYTES}, 0 from link
  union all
  select {_PAYS}, 0, {USER_BYTES.format("document")}, 0 from document where user is not null
) group by agent"""

Used = tuple[int, int, int]  # nodes, bytes, history


def wrong(db: apsw.Connection) -> list[str]:
    """Counters that a recount contradicts; empty when they are right, or not kept."""
    if not db.execute("select 1 from setting where key = 'charged'").get:
        return []
    right: dict[str, Used] = {row[0]: tuple(row[1:]) for row in db.execute(RECOUNT)}
    kept: dict[str, Used] = {
        row[0]: tuple(row[1:]) for row in db.execute("select agent, nodes, bytes, history from usage")
    }
    nothing = (0, 0, 0)
    return [
        f"{agent} is charged (nodes, bytes, history) {kept.get(agent, nothing)}, {right.get(agent, nothing)} is right"
        for agent in sorted(right.keys() | kept.keys())
        if kept.get(agent, nothing) != right.get(agent, nothing)
    ]


def used_by(db: apsw.Connection, agent: str) -> Used | None:
    """What an agent takes up; None while nothing is counted."""
    row: Any = db.execute(
        "select nodes, bytes, history from setting left join usage on agent = ? where key = 'charged'", (agent,)
    ).fetchone()
    return None if row is None else (row[0] or 0, row[1] or 0, row[2] or 0)
