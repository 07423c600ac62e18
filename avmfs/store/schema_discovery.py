"""The tables of discovery: what agents let others learn, and digests of it. As prose, like ``schema``.

Owns these CREATE statements. Called by ``schema`` alone, which appends them to its migrations.
"""

from __future__ import annotations

from typing import Final

DISCOVERY: Final = """
-- What an agent lets others learn of what it alone may read (docs/DISCOVERY.md): 'full', 'owner' or 'existence'.
-- No row: nothing, which is what holds until an agent says otherwise.
create table privacy(agent text primary key, mode text not null) without rowid;

-- Visibility classes of which one agent alone may read. It follows `scope` by itself, so that whoever interns a class
-- need not know of it.
create table sole(scope integer primary key, agent text not null);
create trigger scope_is_sole after insert on scope
  when new.spec glob '[*]=none;*=r[ow]' and instr(substr(new.spec, 8), ';') = 0
begin
  insert into sole(scope, agent) values(new.id, substr(new.spec, 8, instr(substr(new.spec, 8), '=') - 1));
end;
insert into sole(scope, agent)
  select id, substr(spec, 8, instr(substr(spec, 8), '=') - 1) from scope
  where spec glob '[*]=none;*=r[ow]' and instr(substr(spec, 8), ';') = 0;

-- By class: what all may learn, and what becomes of an agent's own when its mode changes.
create index topic_scope on topic(scope);

-- Topics of documents that `agent` alone may read, of agents that let something of them be learnt; nobody else's are
-- touched by a question. It follows `topic` by itself. A question still looks at the node: its ttl may have passed.
create table revealed(key text, document int, agent text not null, name text not null, primary key(key, document))
  without rowid;
create index revealed_agent on revealed(agent);
create trigger topic_revealed after insert on topic
  when exists (select 1 from sole join privacy on privacy.agent = sole.agent where sole.scope = new.scope)
begin
  insert or replace into revealed(key, document, agent, name)
    select new.key, new.document, agent, new.name from sole where scope = new.scope;
end;
create trigger topic_concealed after delete on topic
begin
  delete from revealed where key = old.key and document = old.document;
end;

-- Hosts whose digests are known here; own 1: this store. version: all digests of the host up to it are here.
-- alive: when the host was last heard to live, by its own clock.
create table digest_host(host text primary key, name text not null, version int not null, alive int not null,
                         own int not null default 0) without rowid;
-- Bloom digests of the topics that an agent knows about and that everybody may learn of (avmfs/agents/bloom.py).
-- agent '' is all of those together who let be learnt only that somebody knows. version: of the host, ever rising,
-- never below its clock in microseconds, so that a store restored from a copy is heard again. bits empty: withdrawn.
create table digest(host text, agent text, version int not null, bits blob not null, primary key(host, agent))
  without rowid;
create index digest_version on digest(host, version);
"""
