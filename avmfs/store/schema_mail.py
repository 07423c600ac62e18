"""The schema's part for mail: threads, numbers that are never given twice, what housekeeping and limits look at.

Owns the statements of one migration. Called by ``schema`` alone.
"""

from __future__ import annotations

from typing import Final

MAIL: Final = """
-- Each agent's mail is numbered by one counter, for what it sends and what it is sent: a number names one message to
-- one agent, and says nothing of others' mail. It only grows, also when mail is deleted. told of the messages that it
-- may send in a minute were sent since `since` (ns).
create table mailbox(agent text primary key, number int not null, since int not null default 0,
                     told int not null default 0) without rowid;
insert into mailbox(agent, number)
  select agent, max(number) from (select sender as agent, number from message
                                  union all select agent, number from delivery) group by agent;

-- Threads. root: message.id of the thread's first, null when it is this one. re, thread: the message answered and the
-- thread's first, as the one who holds the row knows them: by number in its own mail, null for what it does not have
-- (re) or for a thread that begins here (thread). Written once, so that deleting mail changes nothing of it.
alter table message add column root int;
alter table message add column re int;
alter table message add column thread int;
create index answers on message(root) where root is not null;

-- What limits, banners and housekeeping ask of a delivery, copied from its message. everyone: was it to @all?
alter table delivery add column sender text not null default '';
alter table delivery add column priority text not null default 'normal';
alter table delivery add column everyone int not null default 0;
alter table delivery add column expires int;
alter table delivery add column re int;
alter table delivery add column thread int;
update delivery set (sender, priority, everyone, expires) =
  (select sender, priority, recipient = '@all', expires from message where id = delivery.message);
drop index unread;
create index unread on delivery(agent, sender, everyone, expires, message) where read_at is null;
create index urgent on delivery(agent, expires, message) where read_at is null and priority = 'urgent';
-- What an agent has marked, wherever it is.
create index marked on mark(agent);
create index delivered on delivery(message);
create index delivery_expiring on delivery(expires) where expires is not null;
"""
