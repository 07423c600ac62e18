"""The tables of the audit: by which door a change came, what was refused, the hash chain over the log.

Owns its CREATE statements; appended to ``schema.MIGRATIONS``. docs/AUDIT.md is the guide.
"""

from __future__ import annotations

from typing import Final

AUDIT: Final = """
-- By which door a change came (access.ROUTES), '' for what was written before this was known. elevated 1: the asker
-- acted as the operator. about: what a row of the audit alone (scope 0, a class that nobody sees: no cursor over the
-- log but the audit takes it) is about, such as '{"code": "EACCES", ...}' of a refusal. Never content, never a path.
alter table log add column route text not null default '';
alter table log add column elevated int not null default 0;
alter table log add column about text;
alter table version add column route text not null default '';

-- Refusals that are not rows of the log yet: the first one opens a window, further ones of the same kind are counted,
-- and once the window is over the sum becomes one row. path '' is the sum of what is too various to be told apart.
create table refusal(
  agent text, route text, elevated int, command text, code text, path blob,
  node int not null, count int not null, first int not null, last int not null,
  primary key(agent, route, elevated, command, code, path)
) without rowid;

-- The hash chain, a row for a batch of log rows first..last without gaps. hashes: of each the first eight bytes of its
-- running hash, head: the whole hash of the last one (avmfs.store.chain says over what).
create table chain(
  first integer primary key, last int not null, at int not null, hashes blob not null, head blob not null
);
-- Log rows up to seq may be removed; head is the running hash there, from which the chain is then verified.
create table checkpoint(seq integer primary key, head blob not null, at int not null);

-- Append-only. A purge may take the path out of a row, and leaves its commitment (32 bytes) in the place of the salt.
create trigger log_is_append_only before update on log
  when not (new.seq = old.seq and new.at = old.at and new.op = old.op and new.agent = old.agent and new.node = old.node
    and new.document is old.document and new.version is old.version and new.scope = old.scope
    and new.route = old.route and new.elevated = old.elevated and new.about is old.about
    and old.path <> x'' and new.path = x'' and new.other is null and length(new.salt) = 32)
  begin select raise(abort, 'the log is append-only'); end;
create trigger log_is_kept before delete on log
  when old.seq > coalesce((select max(seq) from checkpoint), 0)
  begin select raise(abort, 'the log is append-only'); end;
create trigger chain_is_append_only before update on chain begin select raise(abort, 'the chain is append-only'); end;
create trigger chain_is_kept before delete on chain
  when old.last > coalesce((select max(seq) from checkpoint), 0)
  begin select raise(abort, 'the chain is append-only'); end;

-- What the nonces of answers are made with: known to the store and to nobody who writes notes.
insert into setting(key, value) values('fence', lower(hex(randomblob(32))));
"""

TRIGGERS: Final = ("chain_is_append_only", "chain_is_kept", "log_is_append_only", "log_is_kept")
