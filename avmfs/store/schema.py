"""The schema, version by version, as prose.

Owns every CREATE statement. Called by ``database.prepare`` alone. Rules: migrations are appended, never
edited; each runs in one transaction with its ``user_version``; ids of nodes and documents are random
63-bit integers, so that neither an inode number nor an order of creation tells how busy others are.

Sentinels and invariants are stated beside the column that has them. docs/SCHEMA.md is the guide.
"""

from __future__ import annotations

from typing import Final

from avmfs.store import schema_audit, schema_veils
from avmfs.store.schema_bodies import BODIES
from avmfs.store.schema_discovery import DISCOVERY
from avmfs.store.schema_due import DUE
from avmfs.store.schema_mail import MAIL
from avmfs.store.schema_outbox import OUTBOX
from avmfs.store.schema_people import PEOPLE

APPLICATION_ID: Final = 0x41564D46  # "AVMF"
ROOT: Final = 1  # node ids below 16 are fixed: directories that every tree has
MEMORY: Final = 2
SHARED: Final = 3
PRIVATE: Final = 4
NOBODYS: Final = 0  # a scope that is never interned: log rows in it are for the audit alone

INLINE_LIMIT: Final = 64 * 1024  # a body up to this size is one row of `body`
BLOCK: Final = 64 * 1024  # larger ones are blocks of this size, the last one shorter

_FIRST = """
-- One row of settings that belong to the store itself: 'policy' is the digest of the rules that the scopes
-- were folded with; 'minimum_reader' the lowest user_version whose programs may open this store.
create table setting(key text primary key, value text not null) without rowid;

-- Visibility classes, interned by their canonical text (avmfs.access.Scope.spec). Never deleted.
create table scope(id integer primary key, spec text not null unique);

-- Agents that have ever had a mount or spoken: recipients of @all, and who a mailbox may name.
create table agent(name text primary key, enrolled int not null) without rowid;

-- Inodes. kind: 1 file, 2 directory, 3 symlink. parent is null for the root, and for a file that was
-- unlinked while it may be open (an orphan, see `hold`). uid, gid null: the mount's own. atime null: as mtime.
-- size of a directory is 0. expires copies the document's ttl so that every listing can leave it out.
-- extents 1: the bytes are in `extent` and `tail`, otherwise in `body` (no row there: empty).
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
  extents int not null default 0
);
create unique index dirent on node(parent, name);
create index expiring on node(expires) where expires is not null;
create index orphan on node(id) where parent is null;
-- A directory's link count is the number of directories in it, however many files it has.
create index subdirectory on node(parent) where kind = 2;

-- Small contents, and the target of a symlink.
create table body(node integer primary key, data blob not null);

-- Large contents: block n of a node. No row: a hole, read as zeros. A block may be shorter than BLOCK: the
-- rest is zeros. Blocks are shared between a node and the version maps of its document; `shared` counts the
-- owners beyond the first and has no row for a block with one owner, which may be changed in place.
create table block(id integer primary key, data blob not null);
create table shared(block integer primary key, others int not null);
create table extent(node int, n int, block int not null, primary key(node, n)) without rowid;
-- What was appended to a node in extents and is in no block yet: pieces that follow the blocks' bytes and each other
-- without a gap, so that an append costs what it appends and not the block that it ends in.
create table tail(node int, at int, data blob not null, primary key(node, at)) without rowid;

-- Documents: the lineage of a name. node is the one that now carries it. head is the newest version,
-- 0 for a file that was never written. One node carries one document (node.document says the same).
-- shared: comma-joined agents, null for all. user: JSON object of :meta.
-- away_*: where it was last renamed from, so that an editor's rename-away-then-create continues it.
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
  away_parent int, away_name blob, away_at int
);
create index away on document(away_parent, away_name) where away_parent is not null;

-- Versions, append-only. The newest one (number = document.head) has encoding 0 and no body: its bytes are the
-- node's. encoding, for the others: 1 zlib keyframe, 2 reverse delta against the next version, 3 the first
-- `size` bytes of the next version, 4 a map of block ids. handle: the writing handle that may still amend it.
create table version(
  document int not null, number int not null,
  at int not null, author text not null, size int not null, seq int not null,
  encoding int not null, body blob, handle int,
  primary key(document, number)
) without rowid;

create table tag(document int, tag text, primary key(document, tag)) without rowid;
create index tagged on tag(tag);
create table link(source int, target int, type text, agent text not null, at int not null,
                  primary key(source, target, type)) without rowid;
create index linked on link(target);

-- Where an agent stopped reading. node: a document's id for a file, a directory's node id otherwise.
create table mark(agent text, subject int, version int not null, seq int not null,
                  primary key(subject, agent)) without rowid;

-- The one log: a row per change, in the transaction of the change. at is commit time. path is where
-- the node stood after the change (before it, for a removal), other the old path of a rename. salt is there
-- for the audit chain, which covers content-free rows only. The newest row is never deleted, so a seq is never
-- given twice.
create table log(
  seq integer primary key,
  at int not null, op text not null, agent text not null,
  node int not null, document int, version int, scope int not null,
  path blob not null, other blob, salt blob not null
);
create index log_scope on log(scope, seq) where op <> 'tell';

-- Mail. recipient is what the sender wrote, an agent or '@all'; one delivery row per receiver. number counts what the
-- sender has sent, or the receiver was sent: a number that others' mail moved would tell how much of it there is.
create table message(id integer primary key autoincrement, sender text not null, number int not null,
                     recipient text not null, priority text not null, body text not null, at int not null,
                     expires int);
create unique index sent on message(sender, number);
create table delivery(agent text, number int, message int not null, read_at int, primary key(agent, number))
  without rowid;
create index unread on delivery(agent, number, message) where read_at is null;

-- The last reply to each client of the writer: a resent request gets it again (ARCHITECTURE, decision 2).
create table applied(client blob primary key, num int not null, reply blob not null, at int not null) without rowid;

-- Derived data. Queues name documents whose index rows are older than their bytes.
-- Words are made in turn: who waits for what was queued before need not wait for what is queued meanwhile.
create table lexical_queue(turn integer primary key autoincrement, document int not null unique);
create table semantic_queue(document integer primary key);
-- why a document is in no index: 'binary', 'too big', 'ignored name'
create table unindexed(document integer primary key, reason text not null);
-- passage ids are never reused; len is in terms. Feeding: '<scope>x<term>'. voice: index terms of who
-- speaks in it, null for nobody named; at: when, by its own heading, null for the file's time; flags: text/speech.py.
create table passage(id integer primary key autoincrement, document int not null, part int not null,
                     scope int not null, len int not null, start int not null, stop int not null,
                     voice text, at int, flags int not null);
create index passage_document on passage(document);
-- Documents whose passages came or went, for those who keep their columns in memory.
create table passage_log(seq integer primary key autoincrement, document int not null);
create virtual table terms using fts5(t, content='', contentless_delete=1, tokenize='ascii');
create virtual table posting using fts5vocab(terms, instance);
create table scope_stat(scope integer primary key, passages int not null, terms int not null);
-- What documents are about: key is index terms with blanks between, name as it is written there.
create table topic(document int, key text, name text not null, scope int not null, primary key(document, key))
  without rowid;
create index topic_key on topic(key, scope);
-- vector.data: float32, L2-normalised, of passage `id`. model names what computed it; models never mix.
create table vector(id integer primary key, document int not null, scope int not null, model text not null,
                    data blob not null);
create index vector_document on vector(document);
create table vector_log(seq integer primary key autoincrement, id int not null);

-- Leases that keep an unlinked file's bytes while some mount has it open (renewed by that mount).
create table hold(node int, holder blob, at int not null, primary key(node, holder)) without rowid;
"""

# A segment of the words' index is rewritten once so many of a hundred of its passages are gone, in place of ten: notes
# are changed again and again, and that was a seventh of what it costs to index them anew.
_FEWER_MERGES: Final = "insert into terms(terms, rank) values('deletemerge', 40);"

MIGRATIONS: Final[tuple[str, ...]] = (
    _FIRST,
    PEOPLE,
    DISCOVERY,
    OUTBOX,
    MAIL,
    schema_veils.SQL,
    schema_audit.AUDIT,
    DUE,
    BODIES,
    _FEWER_MERGES,
)
VERSION: Final = len(MIGRATIONS)
