"""The migration that has a write touch fewer pages: what a write says of a document stands in the document's row.

Owns its statements; appended to ``schema.MIGRATIONS``. A command pays for every page that it changes: it is copied
into the log, checksummed and later moved into the database. So there is no queue and no creator's mark beside the
document whose row is written anyway, no index entry for what has no name any more, and no counter beside a table whose
newest row stays.
"""

from __future__ import annotations

from typing import Final

DUE: Final = """
-- due: the words changed, and the index rows are to be made anew; the smallest number is next. null: nothing is due.
-- Words are made in turn: who waits for what was queued before need not wait for what is queued meanwhile.
alter table document add column due int;
update document set due = (select turn from lexical_queue where lexical_queue.document = document.id)
  where id in (select lexical_queue.document from lexical_queue);
drop table lexical_queue;
create index document_due on document(due) where due is not null;
create view lexical_queue(turn, document) as select due, id from document where due is not null;

-- read: the version up to which the creator has read it, null: never marked. `mark` has everybody else's.
alter table document add column read int;
update document set read = (select version from mark where subject = document.id and agent = creator);
delete from mark where exists (select 1 from document where document.id = subject and creator = agent);
create index document_behind on document(creator) where read < head;

-- Documents that have ended and whose index rows (passage, terms, topic, vector) are still to be removed, as one of the
-- next steps of making words. No question finds them meanwhile: each asks for the document, which is gone.
create table ended(document integer primary key);

-- away_* is of documents alone that an editor has renamed to a backup beside the name; those of older stores pass by.

-- Names are of what is in the tree: an unlinked file needs no entry.
drop index dirent;
create unique index dirent on node(parent, name) where parent is not null;

-- Cursors whose newest row is never removed: no number is given twice without autoincrement.
create table passage_log_(seq integer primary key, document int not null);
insert into passage_log_(seq, document) select seq, document from passage_log;
drop table passage_log;
alter table passage_log_ rename to passage_log;
create table vector_log_(seq integer primary key, id int not null);
insert into vector_log_(seq, id) select seq, id from vector_log;
drop table vector_log;
alter table vector_log_ rename to vector_log;

-- id: the seq of the first row of the log about the message, or a smaller number that none has; never given twice.
create table message_(id integer primary key, sender text not null, number int not null,
                      recipient text not null, priority text not null, body text not null, at int not null,
                      expires int, root int, re int, thread int);
insert into message_(id, sender, number, recipient, priority, body, at, expires, root, re, thread)
  select id, sender, number, recipient, priority, body, at, expires, root, re, thread from message;
drop table message;
alter table message_ rename to message;
create unique index sent on message(sender, number);
create index answers on message(root) where root is not null;
"""
