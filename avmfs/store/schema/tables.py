"""The tables as they are, as prose, and what brings an older store to them.

Owns every CREATE statement. ``database.prepare`` runs them: TABLES makes a new store, in one transaction; MIGRATIONS
bring a store of an earlier version to the same, each in a transaction with its ``user_version``. A change of the tables
is made in TABLES and appended to MIGRATIONS (``migrations``), never edited; test_store_dumps.py has a store of every
version and compares. A new column stands behind the others of its table, where ``alter table`` puts it, and may be
null or has a default: the repair takes rows that are shorter for older ones.

Ids of nodes and documents are random 63-bit integers, so that neither an inode number nor an order of creation tells
how busy others are. Sentinels and invariants are stated beside the column that has them. docs/SCHEMA.md is the guide.
"""

from __future__ import annotations

from typing import Final

from avmfs.store.schema.migrations import MIGRATIONS as MIGRATIONS
from avmfs.store.schema.migrations import OLDEST as OLDEST

APPLICATION_ID: Final = 0x41564D46  # "AVMF"
ROOT: Final = 1  # node ids below 16 are fixed: directories that every tree has
MEMORY: Final = 2
SHARED: Final = 3
PRIVATE: Final = 4
TRASH: Final = 5
ARCHIVE: Final = 6
INDEX: Final = 7
INDEX_PRIVATE: Final = 8
ASIDE: Final = (TRASH, ARCHIVE, INDEX)
"""What lists and searches of the rest do not have."""
NOBODYS: Final = 0  # a scope that is never interned: log rows in it are for the audit alone

INLINE_LIMIT: Final = 64 * 1024  # a body up to this size is one row of `body`
BLOCK: Final = 64 * 1024  # larger ones are blocks of this size, the last one shorter

TABLES: Final = """
-- One row a setting that belongs to the store itself: 'policy' is the digest of the rules that the scopes were folded
-- with; docs/SCHEMA.md has the others.
create table setting(key text primary key, value text not null) without rowid;
-- What the nonces of answers are made with: known to the store and to nobody who writes notes.
insert into setting(key, value) values('fence', lower(hex(randomblob(32))));

-- Visibility classes, interned by their canonical text (avmfs.access.Scope.spec). Never deleted.
create table scope(id integer primary key, spec text not null unique);

-- Agents that have ever had a mount or spoken: recipients of @all, and who a mailbox may name.
create table agent(name text primary key, enrolled int not null) without rowid;


-- THE TREE

-- Inodes. kind: 1 file, 2 directory, 3 symlink. parent is null for the root, and for a file that was
-- unlinked while it may be open (an orphan, see `hold`). uid, gid null: the mount's own. atime null: as mtime.
-- size of a directory is 0. expires copies the document's ttl so that every listing can leave it out.
-- extents 1: the bytes are in `extent` and `tail`, otherwise in `body`.
-- owner: whom the node's quota is charged to: the agent in whose private space it stands, elsewhere the one that made
-- it. null: nobody (what every tree has, and an unlinked file until somebody writes to it again).
-- body: the row of `body` with the bytes of a small file, or the target of a symlink; null: empty, or in extents.
-- since: the change with which the state that it is in began, while the past is kept (see `past`).
-- came: CRC-32 of the first block of a file of 16 bytes or more whose scope says where its text came from, else null.
create table node(
  id integer primary key,
  parent int,
  name blob not null,
  kind int not null,
  mode int not null,
  uid int, gid int,
  size int not null default 0,
  atime int, mtime int not null, ctime int not null,
  scope int not null references scope,
  document int,
  expires int,
  extents int not null default 0,
  owner text,
  body int,
  since int not null default 0,
  came int
);
create index expiring on node(expires) where expires is not null;
create index orphan on node(id) where parent is null;
-- Copies of such a text are known by it (rows/copies.py). No write of other files comes here.
create index copied on node(size, came) where came is not null;
-- A directory's link count is the number of directories in it, however many files it has.
create index subdirectory on node(parent) where kind = 2;
-- Names are of what is in the tree: an unlinked file needs no entry.
create unique index dirent on node(parent, name) where parent is not null;

-- crc, here and below: CRC-32 of the bytes beside it (of a version: of its body), null for what version 10 wrote.
-- Housekeeping gives bodies and blocks theirs, a slice at a time, as far as the setting 'unsummed' says; what is
-- written anew has one at once.

-- Small contents, and the target of a symlink. The numbers follow each other: under its node's number, which is random,
-- a body came somewhere into a full page, every third time into one that had to be divided among its neighbours: some
-- two pages of the log more for each new file. The number of a body is told to nobody.
create table body(id integer primary key, data blob not null, crc int);

-- Large contents: block n of a node. No row: a hole, read as zeros. A block may be shorter than BLOCK: the
-- rest is zeros. Blocks are shared between a node and the version maps of its document; `shared` counts the
-- owners beyond the first and has no row for a block with one owner, which may be changed in place.
create table block(id integer primary key, data blob not null, crc int);
create table shared(block integer primary key, others int not null);
create table extent(node int, n int, block int not null, primary key(node, n)) without rowid;
-- What was appended to a node in extents and is in no block yet: pieces that follow the blocks' bytes and each other
-- without a gap, so that an append costs what it appends and not the block that it ends in.
create table tail(node int, at int, data blob not null, crc int, primary key(node, at)) without rowid;

-- Leases that keep an unlinked file's bytes while some mount has it open (renewed by that mount).
create table hold(node int, holder blob, at int not null, primary key(node, holder)) without rowid;


-- DOCUMENTS

-- What a write says of a document stands in the document's row: a command pays for every page that it changes, which
-- is copied into the log, checksummed and later moved into the database.

-- Documents: the lineage of a name. node is the one that now carries it. head is the newest version,
-- 0 for a file that was never written. One node carries one document (node.document says the same).
-- shared: comma-joined agents, null for all. user: JSON object of :meta.
-- away_*: where it was last renamed from, so that an editor's rename-away-then-create continues it; of documents alone
-- that an editor has renamed to a backup beside the name.
-- due: the words changed, and the index rows are to be made anew; the smallest number is next. null: nothing is due.
-- Words are made in turn: who waits for what was queued before need not wait for what is queued meanwhile.
-- read: the version up to which the creator has read it, null: never marked. `mark` has everybody else's.
-- charged: whom versions, tags and keys are charged to: the agent in whose private space it has come to stand.
-- null: the creator.
create table document(
  id integer primary key,
  node int not null,
  handle text not null unique,
  creator text not null,
  created int not null,
  importance real,
  shared text,
  user text,
  head int not null default 0,
  away_parent int, away_name blob, away_at int,
  due int,
  read int,
  charged text
);
create index away on document(away_parent, away_name) where away_parent is not null;
create index document_due on document(due) where due is not null;
create index document_behind on document(creator) where read < head;

-- Versions, append-only. The newest one (number = document.head) has encoding 0 and no body: its bytes are the
-- node's. encoding, for the others: 1 zlib keyframe, 2 reverse delta against the next version, 3 the first
-- `size` bytes of the next version, 4 a map of block ids. handle: the writing handle that may still amend it.
-- route: by which door it came, see `log`.
create table version(
  document int not null, number int not null,
  at int not null, author text not null, size int not null, seq int not null,
  encoding int not null, body blob, handle int, route text not null default '', crc int,
  primary key(document, number)
) without rowid;
-- Versions of the document with a number below `before` were written while it was in this scope; only who may see that
-- scope may read them. A row per change of scope, none while there is no version but the newest.
create table veil(document int, before int, scope int, primary key(document, before, scope)) without rowid;

-- Files in the trash: when and by whom they were removed, from which path, and who is charged once they are back. A row
-- of a file that has left the trash otherwise means nothing, and goes in time.
create table removed(node integer primary key, at int not null, agent text not null, path blob not null, owner text);
create index removed_at on removed(at);

create table tag(document int, tag text, primary key(document, tag)) without rowid;
create index tagged on tag(tag);
create table link(source int, target int, type text, agent text not null, at int not null,
                  primary key(source, target, type)) without rowid;
create index linked on link(target);

-- Who works on a document, since and until when (ns). A row that is over means nothing, and goes with the next claim.
create table claim(document integer primary key, agent text not null, since int not null, until int not null);
create index claim_over on claim(until);

-- What consolidation did, for its undoing: a row a document that it put away or wrote. run: ns, of that agent's plan.
-- kind: 'merged' into the document `heir`, 'cold', 'summary'. path: where it stood. said: JSON of what the heir got.
create table consolidated(
  document int, run int, agent text not null, kind text not null, heir int, path blob not null, said text not null,
  primary key(document, run)
) without rowid;
create index consolidated_run on consolidated(agent, run);

-- Where an agent stopped reading. node: a document's id for a file, a directory's node id otherwise. What the creator
-- of a document has read of it is in document.read.
create table mark(agent text, subject int, version int not null, seq int not null,
                  primary key(subject, agent)) without rowid;
-- What an agent has marked, wherever it is.
create index marked on mark(agent);


-- THE PAST (tx/states.py writes it, queries/past.py reads it)

-- What nodes of the tree were: a state each that is over, from the change `since` until before the change `until`, in
-- the order in which they ended. The state that a node is in now is in `node`. version: the newest of its document
-- then, whose bytes it had, or the first `size` of them; 0: none. target: of a symlink.
create table past(
  id integer primary key, until int not null, since int not null, node int not null,
  parent int not null, name blob not null, kind int not null, mode int not null, uid int, gid int,
  size int not null, mtime int not null, scope int not null, document int, version int not null default 0,
  expires int, target blob
);
create index past_name on past(parent, name, until);
create index past_node on past(node, until);
create index past_document on past(document, until);
-- Versions that no document has any more: it has ended, or they were too many and a snapshot has them. The newest
-- until before the change `until`. A body is as in `version`, and stated against the next number here.
create table past_version(
  id integer primary key, document int not null, number int not null, since int not null, until int not null,
  at int not null, author text not null, route text not null, size int not null,
  encoding int not null, body blob, crc int
);
create unique index past_version_number on past_version(document, number);
-- What was said of a document until before the change `until`, as JSON. what: 'tags', 'links' (both ways), 'meta'; or
-- 'document', all of the row of one that has ended, and the scope that it was in.
create table past_said(document int, what text, until int, value text not null, primary key(document, what, until))
  without rowid;
-- Instants that are kept whatever else is forgotten, by the name that an agent gave them: of the node root and what was
-- below it.
create table snapshot(agent text, name text, seq int not null, at int not null, root int not null default 1,
                      primary key(agent, name)) without rowid;
create index snapshot_root on snapshot(root, seq);


-- LOG AND AUDIT (docs/AUDIT.md is the guide)

-- The one log: a row per change, in the transaction of the change. at is commit time. path is where
-- the node stood after the change (before it, for a removal), other the old path of a rename. salt is there
-- for the audit chain, which covers content-free rows only. The newest row is never deleted, so a seq is never
-- given twice.
-- route: by which door the change came (access.ROUTES), '' for what was written before this was known. elevated 1: the
-- asker acted as the operator. about: what a row of the audit alone (scope 0, a class that nobody sees: no cursor over
-- the log but the audit takes it) is about, such as '{"code": "EACCES", ...}' of a refusal. Never content or a path.
create table log(
  seq integer primary key,
  at int not null, op text not null, agent text not null,
  node int not null, document int, version int, scope int not null,
  path blob not null, other blob, salt blob not null,
  route text not null default '', elevated int not null default 0, about text
);
create index log_scope on log(scope, seq) where op <> 'tell';

-- Refusals that are not rows of the log yet: the first one opens a window, further ones of the same kind are counted,
-- and once the window is over the sum becomes one row. path '' is the sum of what is too various to be told apart.
create table refusal(
  agent text, route text, elevated int, command text, code text, path blob,
  node int not null, count int not null, first int not null, last int not null,
  primary key(agent, route, elevated, command, code, path)
) without rowid;

-- The hash chain, a row for a batch of log rows first..last without gaps. hashes: of each the first eight bytes of its
-- running hash, head: the whole hash of the last one (avmfs.store.rows.hash_chain says over what).
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

-- The last reply to each client of the writer: a resent request gets it again (ARCHITECTURE, decision 2).
create table applied(client blob primary key, num int not null, reply blob not null, at int not null) without rowid;


-- MAIL

-- What an agent sends: told of the messages that it may send in a minute were sent since `since` (ns). number is of
-- older stores, whose mail a counter numbered; nothing reads it.
create table mailbox(agent text primary key, number int not null, since int not null default 0,
                     told int not null default 0) without rowid;

-- recipient is what the sender wrote, an agent or '@all'. number: random, the same for the sender and all receivers, of
-- no other message that any of them has: a counter would tell how much mail there is.
-- id: the seq of the first row of the log about the message, or a smaller number that none has; never given twice.
-- Threads. root: message.id of the thread's first, null when it is this one. re, thread: the message answered and the
-- thread's first, as the one who holds the row knows them: by number in its own mail, null for what it does not have
-- (re) or for a thread that begins here (thread). Written once, so that deleting mail changes nothing of it. A root
-- that nobody has any more stays, without its body, as long as one of its thread does.
create table message(id integer primary key, sender text not null, number int not null,
                     recipient text not null, priority text not null, body text not null, at int not null,
                     expires int, root int, re int, thread int);
create unique index sent on message(sender, number);
create index answers on message(root) where root is not null;

-- One row per receiver, with the message's number. What limits, banners and housekeeping ask of a delivery is copied
-- from its message. everyone: was it to @all?
create table delivery(
  agent text, number int, message int not null, read_at int,
  sender text not null default '', priority text not null default 'normal', everyone int not null default 0,
  expires int, re int, thread int,
  primary key(agent, number)
) without rowid;
create index unread on delivery(agent, sender, everyone, expires, message) where read_at is null;
create index urgent on delivery(agent, expires, message) where read_at is null and priority = 'urgent';
create index delivered on delivery(message);
create index delivery_expiring on delivery(expires) where expires is not null;


-- SUBSCRIPTIONS (commands/outbox.py has the reasons)

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
-- JSON (store/rows/events.py), size of them.
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


-- RIGHTS AND QUOTAS

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

-- What each agent takes up, kept in step by tx/quota.py while a quota is configured (setting 'charged' says so).
create table usage(agent text primary key, nodes int not null, bytes int not null, history int not null) without rowid;


-- DERIVED DATA: the indexes

-- Queues name documents whose index rows are older than their bytes.
create view lexical_queue(turn, document) as select due, id from document where due is not null;
create table semantic_queue(document integer primary key);
-- Documents that have ended and whose index rows (passage, terms, topic, vector) are still to be removed, as one of the
-- next steps of making words. No question finds them meanwhile: each asks for the document, which is gone.
create table ended(document integer primary key);
-- why a document is in no index: 'binary', 'too big', 'ignored name'
create table unindexed(document integer primary key, reason text not null);
-- passage ids are never reused; len is in terms. Feeding: '<scope>x<term>'. voice: index terms of who
-- speaks in it, null for nobody named; at: when, by its own heading, null for the file's time; flags: text/speech.py.
create table passage(id integer primary key autoincrement, document int not null, part int not null,
                     scope int not null, len int not null, start int not null, stop int not null,
                     voice text, at int, flags int not null);
create index passage_document on passage(document);
-- Documents whose passages came or went, for those who keep their columns in memory. The newest row is never removed,
-- here and in vector_log: no number is given twice without autoincrement.
create table passage_log(seq integer primary key, document int not null);
create virtual table terms using fts5(t, content='', contentless_delete=1, tokenize='ascii');
-- A segment of the words' index is rewritten once so many of a hundred of its passages are gone, in place of ten: notes
-- are changed again and again, and that was a seventh of what it costs to index them anew.
insert into terms(terms, rank) values('deletemerge', 40);
create virtual table posting using fts5vocab(terms, instance);
create table scope_stat(scope integer primary key, passages int not null, terms int not null);
-- What documents are about: key is index terms with blanks between, name as it is written there.
create table topic(document int, key text, name text not null, scope int not null, primary key(document, key))
  without rowid;
create index topic_key on topic(key, scope);
-- By class: what all may learn, and what becomes of an agent's own when its mode changes.
create index topic_scope on topic(scope);
-- vector.data: float32, L2-normalised, of passage `id`. model names what computed it; models never mix.
create table vector(id integer primary key, document int not null, scope int not null, model text not null,
                    data blob not null);
create index vector_document on vector(document);
create table vector_log(seq integer primary key, id int not null);


-- DISCOVERY (docs/DISCOVERY.md is the guide)

-- What an agent lets others learn of what it alone may read: 'full', 'owner' or 'existence'.
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


-- LIVE CONTENT (avmfs/providers): what is known of the sources of paths outside /memory. The bytes are those of the
-- file there (size); fetched null: never, there may be no file; until: nobody asks again before; searched: it is
-- indexed.
create table live(path blob primary key, source text not null, fetched int, until int not null, error text not null,
                  searched int not null, size int not null) without rowid;
"""

VERSION: Final = OLDEST + len(MIGRATIONS)
