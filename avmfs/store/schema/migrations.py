"""What brings an older store to the tables as they are, a step for each version. Owned by ``tables``: appended to with
each change of them, never edited."""

from __future__ import annotations

from typing import Final

# 10 -> 11: contents have a checksum.
_CHECKSUMS: Final = """
alter table body add column crc int;
alter table block add column crc int;
alter table tail add column crc int;
alter table version add column crc int;
insert into setting(key, value) values('unsummed', 'body');
"""

# 11 -> 12: the past is kept. What was before is not known: `settle` says from when on it is.
_PAST: Final = """
alter table node add column since int not null default 0;
create table past(
  id integer primary key, until int not null, since int not null, node int not null,
  parent int not null, name blob not null, kind int not null, mode int not null, uid int, gid int,
  size int not null, mtime int not null, scope int not null, document int, version int not null default 0,
  expires int, target blob
);
create index past_name on past(parent, name, until);
create index past_node on past(node, until);
create table past_version(
  id integer primary key, document int not null, number int not null, since int not null, until int not null,
  at int not null, author text not null, route text not null, size int not null,
  encoding int not null, body blob, crc int
);
create unique index past_version_number on past_version(document, number);
create table past_said(document int, what text, until int, value text not null, primary key(document, what, until))
  without rowid;
create table snapshot(agent text, name text, seq int not null, at int not null, primary key(agent, name)) without rowid;
"""

# 12 -> 13: a trash. Its directory and the archive's are made as the first thing of each start.
_TRASH: Final = """
create table removed(node integer primary key, at int not null, agent text not null, path blob not null, owner text);
create index removed_at on removed(at);
"""

# 13 -> 14: claims.
_CLAIMS: Final = """
create table claim(document integer primary key, agent text not null, since int not null, until int not null);
create index claim_over on claim(until);
"""

# 14 -> 15: live content.
_LIVE: Final = """
create table live(path blob primary key, source text not null, fetched int, until int not null, error text not null,
                  searched int not null, size int not null) without rowid;
"""

# 15 -> 16: snapshots of a part.
_PARTS: Final = """
alter table snapshot add column root int not null default 1;
create index snapshot_root on snapshot(root, seq);
create index past_document on past(document, until);
"""

# 16 -> 17: consolidation.
_CONSOLIDATED: Final = """
create table consolidated(
  document int, run int, agent text not null, kind text not null, heir int, path blob not null, said text not null,
  primary key(document, run)
) without rowid;
create index consolidated_run on consolidated(agent, run);
"""

# 17 -> 18: copies of others' words. `settle` learns what there is.
_COPIES: Final = """
alter table node add column came int;
create index copied on node(size, came) where came is not null;
insert into setting(key, value) values('unknown_copies', '');
"""

# 18 -> 19: of a document in a private space all is charged to its agent. The first request counts anew.
_CHARGED: Final = """
alter table document add column charged text;
with recursive below(id, agent) as (
  select id, cast(name as text) from node
  where parent in (4, 8) or parent in (select id from node where parent in (5, 6) and name = cast('private' as blob))
  union all
  select node.id, agent from below join node on node.parent = below.id
) update document set charged = agent from below where below.id = document.node and creator <> agent;
"""

# 19 -> 20: terms of other scripts (segment.REVISION 2). What has such letters is to be indexed anew.
_SCRIPTS: Final = """
update document set due = (select coalesce(max(due), 0) + 1 from document) where due is null and id in (
  select node.document from node left join body on body.id = node.body where extents
  or cast(data as text) glob '*[øđħıłŧØĐĦİŁŦͰ-῿⺀-퟿豈-﫿𖿠-𿿽]*'
  or cast(name as text) glob '*[øđħıłŧØĐĦİŁŦͰ-῿⺀-퟿豈-﫿𖿠-𿿽]*');
"""

OLDEST: Final = 10  # the first version whose stores are opened; earlier ones were made before any release
# The first one takes OLDEST to the next version.
MIGRATIONS: Final[tuple[str, ...]] = (
    _CHECKSUMS,
    _PAST,
    _TRASH,
    _CLAIMS,
    _LIVE,
    _PARTS,
    _CONSOLIDATED,
    _COPIES,
    _CHARGED,
    _SCRIPTS,
)
