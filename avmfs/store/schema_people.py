"""What the store keeps of who may do what: owners of nodes, areas and API keys, what each agent takes up.

Owns its part of the schema, as prose; ``schema`` runs it. Called by nobody else.
"""

from __future__ import annotations

from typing import Final

PEOPLE: Final = """
-- Whom a node's quota is charged to: the agent in whose private space it stands, elsewhere the one that made it.
-- null: nobody (what every tree has, and an unlinked file until somebody writes to it again).
alter table node add column owner text;
update node set owner = (select creator from document where document.id = node.document) where document is not null;
with recursive space(id, agent) as (
  select node.id, cast(space.name as text) from node join node as space on node.parent = space.id
    where space.parent = 4 and space.kind = 2
  union all
  select node.id, agent from node join space on node.parent = space.id
)
update node set owner = (select agent from space where space.id = node.id) where id in (select id from space);

-- Paths that an API key is limited to, with all below them. A scope names the areas that it lies in (@n), and those
-- that it is on the way to (^n): see avmfs.access.Scope. Never given another path.
create table area(id integer primary key, path blob not null unique);

-- API keys. The key itself is nowhere: hash is the SHA-256 of its 256 random bits. paths and actions are JSON lists,
-- paths as they were given; areas a JSON list of area ids, null for the whole tree. maker is who made it.
create table api_key(
  id text primary key, agent text not null, hash blob not null, label text not null,
  paths text not null, areas text, actions text not null,
  made int not null, maker text not null, expires int, revoked int
) without rowid;
create index key_agent on api_key(agent);

-- What each agent takes up, kept in step by charging.py while a quota is configured (setting 'charged' says so).
create table usage(agent text primary key, nodes int not null, bytes int not null, history int not null) without rowid;
"""
