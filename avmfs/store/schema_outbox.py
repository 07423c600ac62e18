"""Tables of subscriptions and of what waits to be delivered to them, as prose.

Owned by the outbox (commands/outbox.py has the reasons); appended to the migrations by ``schema``.
"""

from __future__ import annotations

from typing import Final

OUTBOX: Final = """
-- Who wants to hear of changes below a pattern. id is random and never shown; number counts the agent's own. A hook of
-- the configuration is one too: agent '', with its command and event in `hook` (JSON).
-- pattern: as it was given; place: with /shared and /private spelled out. every: ns, what the mode makes of it.
-- url null: its notices wait in the outbox until the agent has read them. secret: what deliveries are signed with.
-- trusted: an operator made it, so it may name this machine. since: changes after this seq. sent: deliveries made.
-- failures: tries in a row that failed; retry_at: nothing is tried before; tried_at: when something was taken last.
create table subscription(
  id integer primary key,
  agent text not null, number int not null,
  pattern text not null, place text not null, mode text not null, every int not null,
  url text, secret blob, hook text, trusted int not null default 0,
  since int not null, created int not null,
  sent int not null default 0, failures int not null default 0, retry_at int, tried_at int not null default 0
);
create unique index subscription_number on subscription(agent, number);
create unique index subscribed on subscription(agent, pattern, coalesce(url, ''), coalesce(hook, ''));

-- Deliveries that have not been made: one message each. turn is their order, never shown. message: the webhook-id,
-- the same at every try. state: 0 open (what comes may still join it), 1 sealed, 2 a dead letter, 3 a notice that
-- waits to be read, 4 what an open digest has gathered since. due: ns, 0 at once. path: of a throttled one. events:
-- JSON (store/events.py), size of them.
create table outbox(
  turn integer primary key autoincrement,
  subscription int not null, message text not null unique, state int not null, due int not null,
  attempts int not null default 0, path blob, events text not null, size int not null, at int not null, error text
);
create index outbox_waiting on outbox(subscription, state, due);
-- The one that what comes next of a path may join.
create index outbox_open on outbox(subscription, path) where state = 0;
-- When a throttled subscription was last sent something of a path.
create table outbox_throttle(subscription int, path blob, at int not null, primary key(subscription, path))
  without rowid;
-- One row: the log has been looked through up to here for all subscriptions there are.
create table outbox_cursor(seq int not null);
insert into outbox_cursor(seq) values(0);
"""
