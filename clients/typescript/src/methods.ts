// Made from the OpenAPI description by ./run docs; not to be edited.

import type { Bytes, Memory } from "./memory.js";

type Json = Record<string, any>;

export type AgentsArguments = {};

export interface ArchiveArguments {
  path: string;
}

export interface AskArguments {
  question: string;
  max_tokens?: number | null;
  to?: string | null;
  forward?: boolean;
}

export interface AuditArguments {
  since?: string | null;
  agent?: string | null;
  path?: string | null;
  limit?: number;
}

export type AuditAnchorArguments = {};

export interface AuditVerifyArguments {
  anchor?: string | null;
}

export interface BlameArguments {
  path: string;
}

export interface BundleArguments {
  q: string;
  max_tokens?: number;
  under?: string;
}

export interface CheckPermissionArguments {
  user: string;
  path: string;
  action: string;
}

export type CheckUsageArguments = {};

export interface ClaimArguments {
  path: string;
  lease?: string;
}

export interface ClaimNextArguments {
  path: string;
  lease?: string;
}

export type ClaimsArguments = {};

export interface CompareArguments {
  older: string;
  newer?: string | null;
  path?: string;
  limit?: number;
}

export interface ConsolidateArguments {
  path?: string;
  likeness?: number;
  limit?: number;
  cold?: number | null;
  summaries?: boolean;
  agreed?: string | null;
}

export interface CreateKeyArguments {
  paths?: string[] | null;
  actions?: string[] | null;
  agent?: string | null;
  label?: string;
  expires?: string | null;
}

export type DeadLettersArguments = {};

export interface DeleteMailArguments {
  messages?: number[] | null;
}

export interface DeltaArguments {
  path?: string;
  peek?: boolean;
}

export interface DigestArguments {
  path?: string;
  days?: number;
  cold?: number;
  limit?: number;
}

export interface EmptyTrashArguments {
  older_than_days?: number;
  under?: string | null;
}

export interface EntriesArguments {
  path?: string;
}

export interface ExploreArguments {
  path: string;
  depth?: number;
}

export interface FetchArguments {
  targets: string[];
  max_bytes?: number;
}

export interface GraphArguments {
  path?: string;
  limit?: number;
  format?: string;
}

export interface HistoryArguments {
  path: string;
  older?: number | null;
  newer?: number | null;
  limit?: number;
}

export interface InboxArguments {
  unread_only?: boolean;
  mark_read?: boolean;
  wait?: number;
  thread?: number | null;
}

export interface IndexStatusArguments {
  path?: string;
}

export interface InitPermissionsArguments {
  users: Json;
}

export interface LetOutArguments {
  path: string;
}

export interface LinkArguments {
  path: string;
  target: string;
  type?: string | null;
  remove?: boolean;
}

export interface LinksArguments {
  path: string;
}

export type ListKeysArguments = {};

export interface ListingArguments {
  path?: string;
  limit?: number;
  offset?: number;
  q?: string | null;
  tag?: string | null;
}

export interface LocateArguments {
  path: string;
  follow?: boolean;
}

export interface MakeDirectoryArguments {
  path: string;
}

export interface MarkReadArguments {
  messages?: number[] | null;
  notices?: string[] | null;
}

export interface MoveArguments {
  source: string;
  target: string;
  dry_run?: boolean;
  instead_of?: Bytes | null;
}

export interface NamesLogArguments {
  path?: string;
  after?: number;
  limit?: number;
}

export interface NearnessArguments {
  q: string;
  texts: any[];
}

export interface NonceArguments {
  about: string;
}

export interface NoticesArguments {
  mark_read?: boolean;
}

export type PendingArguments = {};

export interface PrivacyArguments {
  mode?: string | null;
  agent?: string | null;
}

export interface PurgeArguments {
  path?: string | null;
  tag?: string | null;
  author?: string | null;
  before?: string | null;
  agreed?: string | null;
}

export interface PutArguments {
  items: any[];
  dry?: boolean;
}

export interface PutBackArguments {
  path: string;
  to?: string | null;
  archived?: boolean;
}

export interface QuarantineArguments {
  limit?: number;
}

export interface QuestionsArguments {
  limit?: number;
  forget?: boolean;
}

export interface ReadArguments {
  path: string;
  offset?: number;
  limit?: number;
  banner?: boolean;
  whole?: boolean;
}

export interface RecallArguments {
  q: string;
  max_tokens?: number | null;
  min_relevance?: number | null;
  strategy?: string;
  under?: string;
  cite?: string | null;
  scores?: boolean;
  archive?: boolean;
  preview?: boolean;
  format?: string;
}

export interface RecentArguments {
  path?: string;
  minutes?: number | null;
  since?: string | null;
  limit?: number;
  pattern?: string | null;
}

export interface RecordsArguments {
  path?: string;
  after?: string | null;
  limit?: number;
  data?: boolean;
  digest?: boolean;
}

export interface RedeliverArguments {
  messages?: string[] | null;
}

export interface RejectArguments {
  path: string;
}

export interface ReleaseArguments {
  path: string;
}

export interface RememberArguments {
  content: string;
  title?: string | null;
  path?: string | null;
  tags?: string[] | null;
  importance?: number | null;
  namespace?: string | null;
  created?: number | null;
  on_duplicate?: string;
  ttl?: string | null;
  supersedes?: string | null;
  source?: string;
}

export interface RememberManyArguments {
  items: any[];
}

export interface RemoveArguments {
  path: string;
  recursive?: boolean;
  dry_run?: boolean;
  permanently?: boolean;
  instead_of?: Bytes | null;
}

export interface RemoveSnapshotArguments {
  name: string;
}

export interface ReplayArguments {
  q: string;
  weights: Json;
  max_tokens?: number | null;
  min_relevance?: number | null;
  strategy?: string;
  under?: string;
}

export interface RestoreArguments {
  path: string;
  at?: string | null;
  version?: number | null;
  dry_run?: boolean;
}

export interface RetrieveArguments {
  q: string;
  limit?: number;
  depth?: number;
  under?: string;
}

export interface RevokeKeyArguments {
  id: string;
}

export interface SearchArguments {
  q: string;
  limit?: number;
  under?: string;
  mode?: string;
  archive?: boolean;
}

export interface SignInArguments {
  start?: boolean;
}

export interface SnapshotArguments {
  name: string;
  path?: string | null;
}

export type SnapshotsArguments = {};

export interface SubscribeArguments {
  pattern: string;
  mode?: string;
  every_s?: number | null;
  url?: string | null;
}

export interface SubscriptionsArguments {
  everybody?: boolean;
}

export interface SynthesizeArguments {
  q: string;
  path?: string;
  sentences?: number;
}

export interface TagArguments {
  path: string;
  add?: string[] | null;
  remove?: string[] | null;
  clear?: boolean;
}

export interface TagsArguments {
  path?: string;
}

export interface TellArguments {
  recipient: string;
  body: string;
  priority?: string;
  expires?: string | null;
  re?: number | null;
}

export interface TimelineArguments {
  path?: string;
  days?: number;
  limit?: number;
  cold?: boolean;
}

export interface TopicsArguments {
  path?: string;
  name?: string | null;
  limit?: number;
}

export interface TrashArguments {
  limit?: number;
}

export interface TreeArguments {
  path?: string;
  depth?: number;
  limit?: number;
}

export interface UnconsolidateArguments {
  run?: number | null;
  dry?: boolean;
}

export type UnreadArguments = {};

export interface UnsubscribeArguments {
  pattern: string;
  url?: string | null;
}

export type UrgentArguments = {};

export interface UserArguments {
  name: string;
}

export interface VerifyArguments {
  text: string;
  q?: string | null;
  replay?: boolean;
}

export interface VersionArguments {
  path: string;
  number?: number | null;
  at?: string | null;
  offset?: number;
}

export type WarmupArguments = {};

export interface WatchArguments {
  since?: number | null;
  unread?: number | null;
  wait?: number;
}

export interface WhoArguments {
  q: string;
  limit?: number;
  via?: string;
}

export type WipeArguments = {};

export interface WriteArguments {
  path: string;
  data: Bytes;
  mode?: string;
  instead_of?: Bytes | null;
  if_version?: number | null;
}

export interface WriteIndexArguments {
  project: string;
  items: any[];
  private?: boolean;
}

/** Every method of the memory. */
export interface Methods {
  /**
   * Every agent that is known or configured, by name: [{"name", "groups", "capabilities", "quota", "used", "here",
   * "claims"}]. "used" is {"nodes", "bytes", "history_bytes"}, or None where it is not counted or not for the asker;
   * "here" {route: since}; "claims" [{"path", "until"}] of what the asker sees.
   */
  agents(given?: AgentsArguments): Promise<Json[]>;
  /**
   * {"path"}: where it is now.
   */
  archive(given: ArchiveArguments): Promise<Json>;
  /**
   * {"text", "recalled", "tokens", "knows", "degraded", "asked": None or {"recipient", "id"}}.
   */
  ask(given: AskArguments): Promise<Json>;
  /**
   * Acts, newest first: [{"at", "agent", "operator", "route", "op", "path", "was", "version", "about"}], for the
   * operator with "seq". ``since`` is an ISO 8601 time or a seq; ``path`` stands for what is below it too, and need not
   * exist any more.
   */
  audit(given?: AuditArguments): Promise<Json[]>;
  /**
   * The head of the chain as a line, to be kept somewhere else. The operator's.
   */
  audit_anchor(given?: AuditAnchorArguments): Promise<string>;
  /**
   * Walk the chain: {"ok", "bad", "reason", "rows", "last", "head", "unchained", "purged", "trimmed", "anchors",
   * "anchor_file", "unguarded", "forged"}. ``anchor`` is one that was kept elsewhere, ``SEQ:HASH``. The operator's.
   */
  audit_verify(given?: AuditVerifyArguments): Promise<Json>;
  /**
   * Of each line of a text, with which version it came: {"path", "untrusted", "lines": [{"version", "author", "at",
   * "text"}]}. What is older than the oldest version that is kept counts as of that one.
   */
  blame(given: BlameArguments): Promise<Json>;
  /**
   * What somebody else needs to go on with it. {"text", "tokens", "paths", "degraded", "seq"}; ``text`` is empty when
   * nothing is relevant.
   */
  bundle(given: BundleArguments): Promise<Json>;
  /**
   * Return whether this agent may do that there. ``action``: read, search, list, write or delete. Of what the asker
   * cannot see the answer follows from place and rules alone.
   */
  check_permission(given: CheckPermissionArguments): Promise<boolean>;
  /**
   * Counters of quotas that a recount contradicts, one line each; whose and how is told to the operator.
   */
  check_usage(given?: CheckUsageArguments): Promise<string[]>;
  /**
   * Claim a file, or renew the claim. {"path", "until"}. Raises Busy where another agent has claimed it.
   */
  claim(given: ClaimArguments): Promise<Json>;
  /**
   * Claim the oldest file of a directory that nobody has claimed. {"path", "until"}; None where there is none.
   */
  claim_next(given: ClaimNextArguments): Promise<Json>;
  /**
   * {"claims": [{"path", "agent", "since", "until"}]}, those that are over last first.
   */
  claims(given?: ClaimsArguments): Promise<Json>;
  /**
   * What differs below a directory between two instants, each as after the ``@`` of a path; ``newer`` None: now. Of a
   * snapshot of a part, below that. {"changes": [{"path", "status": "added", "removed" or "modified"}], "more"}.
   */
  compare(given: CompareArguments): Promise<Json>;
  /**
   * What would go into the archive of the notes below ``path``, ``limit`` at most: of those that say the same, at
   * least so alike, all but one; and what is older than ``cold`` days and not important. ``summaries``: of topics with
   * many notes one is drawn from them. {"steps": [{"step": "merge", "cold", "summary", "into": {"path", "handle"} or
   * None, "gone": [{"path", "handle", "likeness"}], "from", "text"}], "notes": compared, "fewer", "bytes": of these,
   * "agreed", "run", "left_out"}. Given "agreed" back, it is done, unless it would be something else by now (Stale):
   * "run" is its number, for ``unconsolidate``, and "left_out" how many steps were not done, since a note has changed or
   * others have claimed or disputed it meanwhile, or would have too many tags or links.
   */
  consolidate(given?: ConsolidateArguments): Promise<Json>;
  /**
   * A new API key: {"id", "key", "agent", "paths", "actions", "expires"}. ``key`` is shown this once. ``paths`` as
   * ``/memory/a/*`` (default: everything), ``actions`` (default: read and search), ``expires`` such as 30d.
   */
  create_key(given?: CreateKeyArguments): Promise<Json>;
  /**
   * {"text", "letters"}: what could not be delivered for the asker; for an operator what hooks failed at, too.
   */
  dead_letters(given?: DeadLettersArguments): Promise<Json>;
  /**
   * Remove messages from one's own mail by number, or all that are read. {"count"}.
   */
  delete_mail(given?: DeleteMailArguments): Promise<Json>;
  /**
   * What is new in a file or below a directory since this agent's mark, which then moves unless it is a ``peek``.
   * {"path", "changed", "text"}.
   */
  delta(given?: DeltaArguments): Promise<Json>;
  /**
   * What an agent should know today. {"text", "unread", "urgent": [message], "new": [note], "disputes": [{"handles",
   * "paths", "agent"}], "cold": [note], "more": {"urgent", "new", "disputes", "cold"}, "degraded"}: notes as timeline()
   * has them, ``more`` of each were left out.
   */
  digest(given?: DigestArguments): Promise<Json>;
  /**
   * {"removed"}: how many files are gone for good, of those that this agent may remove; ``under``: that were called
   * something below it. Raises Invalid for a path in the trash.
   */
  empty_trash(given?: EmptyTrashArguments): Promise<Json>;
  /**
   * The entries of a directory, or the file itself: [{"name", "path", "kind", "size", "mtime", "mode"}] by name.
   */
  entries(given?: EntriesArguments): Promise<Json[]>;
  /**
   * What a file is linked with, hop by hop. {"path", "text", "hops": [[{"path", "type", "direction", "via"}]]}.
   */
  explore(given: ExploreArguments): Promise<Json>;
  /**
   * Several files or views at once, by path or handle. {"items": [{"target", "path", "data", "more", "untrusted"}],
   * "missing": [{"target", "reason"}]}; ``more``: cut at ``max_bytes``; ``untrusted`` as ``read`` has it.
   */
  fetch(given: FetchArguments): Promise<Json>;
  /**
   * The files below a directory and the links that lead from them. {"path", "nodes": [path], "edges": [{"source",
   * "target", "type"}], "more", "text"}: ``nodes`` are those with a link, their targets included; ``more`` files were
   * left unread for ``limit``; ``format`` is of the text: "text", "mermaid", "dot", "graphml", "json".
   */
  graph(given?: GraphArguments): Promise<Json>;
  /**
   * The versions of a file, newest first. {"path", "versions": [{"version", "at", "type", "author", "route",
   * "size"}], "total", "diff"}: the type is "create" or "write"; the unified diff from version ``older`` to ``newer``
   * where either is given.
   */
  history(given: HistoryArguments): Promise<Json>;
  /**
   * {"text", "messages", "more"}: how many did not fit into one answer. ``mark_read`` marks just what is shown.
   * ``wait``: first, for unread mail, at most so many seconds. ``thread``: only messages of that thread, and waiting for
   * them.
   */
  inbox(given?: InboxArguments): Promise<Json>;
  /**
   * How far the index is. {"files", "waiting": {"words", "vectors"}, "model", "dimension", "state", "reason"}: the
   * counts are of what the asker may see below ``path``; ``state`` is of the model, null without a daemon.
   */
  index_status(given?: IndexStatusArguments): Promise<Json>;
  /**
   * Register agents with their groups and capabilities. Operator only. {"users": how many}.
   */
  init_permissions(given: InitPermissionsArguments): Promise<Json>;
  /**
   * Let a file out of quarantine: it is found again, and marked. {"path"}. Raises Invalid where it is not there.
   */
  let_out(given: LetOutArguments): Promise<Json>;
  /**
   * Link a file to another, or take the link away (of every type when none is named). {"path", "target", "type"}.
   */
  link(given: LinkArguments): Promise<Json>;
  /**
   * Links from a file and to it. {"path", "links": [{"direction": "out" or "in", "path", "type"}]}.
   */
  links(given: LinksArguments): Promise<Json>;
  /**
   * The asker's API keys, for the operator everybody's, the newest first: [{"id", "agent", "label", "paths",
   * "actions", "made", "maker", "expires", "revoked", "state"}]; "state" is valid, expired or revoked.
   */
  list_keys(given?: ListKeysArguments): Promise<Json[]>;
  /**
   * What a directory holds, or with ``q`` or ``tag`` the files below it that have them. {"entries", "total"}; an
   * entry is {"path", "kind", "handle", "size", "modified", "line"} with the first line of a text.
   */
  listing(given?: ListingArguments): Promise<Json>;
  /**
   * Where a path leads by symlinks, by that of its last name where ``follow``. {"path", "exists", "store": which
   * store that is of, another one once it is restored or repaired}; what does not exist of it stays as it is at its end,
   * a symlink to nowhere among that.
   */
  locate(given: LocateArguments): Promise<Json>;
  /**
   * make_directory
   */
  make_directory(given: MakeDirectoryArguments): Promise<Json>;
  /**
   * These messages and notices count as read, for who marks what it has shown. {"count"}: how many were unread.
   */
  mark_read(given?: MarkReadArguments): Promise<Json>;
  /**
   * {"moved": [[old, new]]}; with ``dry_run`` nothing is, and these would be. With ``instead_of`` one path becomes
   * just the other, in the place of the file of that SHA-256 alone, else Stale, or (b"") of nothing, else Exists.
   */
  move(given: MoveArguments): Promise<Json>;
  /**
   * Rows of the log about what is below a directory, oldest first: {"rows": [[seq, at, op, agent, document, version,
   * path, was]], "next"}: give that back as ``after`` until it is None.
   */
  names_log(given?: NamesLogArguments): Promise<Json>;
  /**
   * How near texts are to a question in meaning. {"cosines", "degraded"}: None, and why, where there are no vectors.
   * NEAR texts at most, of which NEAR_TEXT characters each count.
   */
  nearness(given: NearnessArguments): Promise<Json>;
  /**
   * What a door shows beside its own lines where it quotes several memories: {"nonce", "seq"}, the same for the same
   * words in the same state of the memory.
   */
  nonce(given: NonceArguments): Promise<Json>;
  /**
   * {"text", "notices"}: what subscriptions without a webhook have for the asker; ``mark_read``: and never again.
   */
  notices(given?: NoticesArguments): Promise<Json>;
  /**
   * What waits for this agent. {"unread", "notices": as notices() has them, "files": [{"path", "handle", "read",
   * "version", "author", "at"}], "directories": [{"path", "changed", "more"}], "text"}.
   */
  pending(given?: PendingArguments): Promise<Json>;
  /**
   * How much others may learn of what an agent alone can read, its own unless an operator asks; changed to ``mode``
   * first. {"agent", "mode"}.
   */
  privacy(given?: PrivacyArguments): Promise<Json>;
  /**
   * What is to be forgotten for good: all that is below ``path``, or was when it was removed; with a tag; made by an
   * author; not changed since ``before`` (ISO 8601). {"files": [{"path", "size", "state": "there" or "removed"}] the
   * first 1000, "count", "bytes", "refused": how many of them the asker may not change, "snapshots": which had some of
   * it, "backed_up": when the last backup was made, which stays as it is (None: none is known), "agreed", "purged"}.
   * Given "agreed" back, it is done, unless it would be something else by now (Stale), and as far as nothing of it is
   * changed or moved meanwhile (Stale).
   */
  purge(given?: PurgeArguments): Promise<Json>;
  /**
   * Bring files, directories and symlinks in: each with what the store's command ``put`` takes, ``path`` as text. For
   * each None, or why not: [errno, reason]. All in one transaction, or, where one is refused, each in its own. ``dry``:
   * nothing is brought in, and of each only its place and tags are judged.
   */
  put(given: PutArguments): Promise<any[]>;
  /**
   * ``path``: in the trash or the archive, or what a removed file was called (the newest of that name), or, with
   * ``archived``, what in the archive was. {"path"}: where it is now.
   */
  put_back(given: PutBackArguments): Promise<Json>;
  /**
   * Files that are found by nobody until they are let out, those changed last first. {"held": [{"path", "handle",
   * "sources", "author", "route", "updated"}], "more": how many were left out}.
   */
  quarantine(given?: QuarantineArguments): Promise<Json>;
  /**
   * What this agent has asked through recall, newest first, each once, as far as it is kept (``search.query_log``).
   * {"questions": [{"at", "q", "under", "strategy", "max_tokens", "min_relevance"}], "kept": all there are}; with
   * ``forget`` {"forgotten"}: they are deleted. Raises Denied for an API key: they are its agent's.
   */
  questions(given?: QuestionsArguments): Promise<Json>;
  /**
   * A file or view from ``offset``. {"data", "more", "untrusted", "etag"}: a real file comes in pieces of ``limit``
   * bytes (at most 8 MiB), a view whole; without ``whole`` a view does so, too, and only its last piece marks it as
   * read, and only where all are of one rendering: one of up to 8 MiB is kept for this connection. Without ``banner`` no
   * view has urgent mail on top: the caller shows that apart. ``untrusted``: where a file came from, if that is to be
   * marked; views do so by themselves. ``etag``: pieces of a file that have the same one are of the same bytes; null of
   * a view.
   */
  read(given: ReadArguments): Promise<Json>;
  /**
   * {"text", "tokens", "degraded", "seq", "items"}; ``text`` is empty when nothing is relevant. ``preview``: somebody
   * looks at what an agent would get, which counts neither as a question nor as a saving. ``format``: "text",
   * "markdown", "jsonl" or "xml".
   */
  recall(given: RecallArguments): Promise<Json>;
  /**
   * Files changed below a directory, newest first. {"changes": [{"path", "status", "was", "handle", "at", "author"}],
   * "more", "seq"}; ``since`` is an ISO 8601 time or a seq. "status" is against what there was before the oldest change
   * that had to be looked at for so many files, which is ``since`` at the earliest: with a small ``limit`` a file made
   * after that may be "modified". Of the newest ``limit`` those that a subscription with this
   * ``pattern`` would tell of.
   */
  recent(given?: RecentArguments): Promise<Json>;
  /**
   * All below a directory, or a file alone, in the order of their names, a directory before what is in it. {"root",
   * "kind", "records", "next"}: give ``next`` back as ``after`` until it is None. A record is {"path", "kind", "size",
   * "mode", "mtime"}, of a symlink "target", of a file "document", "seq", "author", "created", "tags", "links" [[path,
   * type]], "importance", "expires", "shared", "user", "sources", "released" (let out) and what is asked for: "data" of
   * one that is not too large for an answer, "digest" (SHA-256). Times in ns. Each page is a moment of its own.
   */
  records(given?: RecordsArguments): Promise<Json>;
  /**
   * Try the asker's dead letters anew, or these; an operator's are those of the hooks too. {"count"}.
   */
  redeliver(given?: RedeliverArguments): Promise<Json>;
  /**
   * Remove a file that is in quarantine, into the trash. {"path"}. Raises Invalid where it is not there.
   */
  reject(given: RejectArguments): Promise<Json>;
  /**
   * Give up a claim. {"path", "released": whether there was one}.
   */
  release(given: ReleaseArguments): Promise<Json>;
  /**
   * {"path", "done", "duplicate": {"path", "handle", "likeness"} or None, "contradicts": [{"path", "handle"}]}: the
   * older note that says the same, if any, ``likeness`` 1 being the same text; and those that seem to say something else
   * of the same matter, of which nothing is done. ``on_duplicate``: "keep" both (done "stored"), "update" the older one
   * (done "updated", with the longer ttl of the two; where others may read it than what was to be made, "stored"),
   * "refuse": raises Exists, which names it. ``supersedes``: a file, by path or handle, that holds no more; it is no
   * duplicate then. ``source``: "own" words, or how the text came in: "tool", "web", "imported", "live".
   */
  remember(given: RememberArguments): Promise<Json>;
  /**
   * Several new memories, all or none: each a mapping with what ``remember`` takes but ``on_duplicate``. {"paths"} in
   * their order.
   */
  remember_many(given: RememberManyArguments): Promise<Json>;
  /**
   * {"removed"}: how many nodes went, or would with ``dry_run``, which also has their "paths" (the first 1000). Notes
   * go to the trash, unless ``permanently``. ``instead_of`` is the SHA-256 of the file that is to go: Stale where it has
   * other bytes by now; or nothing (b""), for a directory in which nothing is: NotEmpty where something is by now.
   */
  remove(given: RemoveArguments): Promise<Json>;
  /**
   * remove_snapshot
   */
  remove_snapshot(given: RemoveSnapshotArguments): Promise<Json>;
  /**
   * What recall would find with these ``weights`` (of ``search.weights``; those not named as by default), the rest
   * as recall has it. {"paths", "tokens", "degraded"}: each file once, best first. It counts neither as a question nor
   * as a saving.
   */
  replay(given: ReplayArguments): Promise<Json>;
  /**
   * Make a file what it was in a ``version``, or a file or subtree what it was ``at`` an instant (as after the ``@``
   * of a path), as a change of now. What came since stays, tags and links that are gone come back to files that have
   * something to be told of. {"restored": [{"path", "action": "make", "write", "mode", "tags", "links" or
   * "lost"}], "more"}: of the first 1000; "lost": its bytes of then are no longer kept, and it stays as it is.
   * ``dry_run``: what would be done. A file that is made is limited as it was. Before anything is done raises Exists
   * where something else stands in the way, TooBig where a file has more than 256 MiB, NotFound where the one at
   * ``path`` is lost.
   */
  restore(given: RestoreArguments): Promise<Json>;
  /**
   * A search, and what the hits are linked with: search()'s {"text", "hits", "degraded"} and "linked": [{"path",
   * "type", "direction", "via"}].
   */
  retrieve(given: RetrieveArguments): Promise<Json>;
  /**
   * From now on nobody gets in with it. {"agent"}.
   */
  revoke_key(given: RevokeKeyArguments): Promise<Json>;
  /**
   * {"text", "hits": [{"path", "handle", "relevance", "score", "summary"}], "degraded"}.
   */
  search(given: SearchArguments): Promise<Json>;
  /**
   * A one-time code for the daemon's HTTP service: {"url", "code", "agent", "operator"}. Good once, within a minute,
   * for a session as the asker. ``start``: where the configuration has the service off, begin it (operator only).
   * Raises NotSupported where it is off, Busy while it starts.
   */
  sign_in(given?: SignInArguments): Promise<Json>;
  /**
   * Give the tree as it is, or what is at a path, a name that keeps it. {"name", "at"}.
   */
  snapshot(given: SnapshotArguments): Promise<Json>;
  /**
   * {"snapshots": [{"name", "agent", "at", "path", "gone"}]}: the agent's own and the operators' (agent ""), the
   * newest first. ``path``: what each has, None where that is ``gone``, or not for the asker: an agent makes one of what
   * it sees alone, and an operator sees all. An API key is told of those alone that have something for it.
   */
  snapshots(given?: SnapshotsArguments): Promise<Json>;
  /**
   * {"number", "secret", "new", "every_s"}: the secret (``whsec_...``) of a new webhook is shown this once.
   */
  subscribe(given: SubscribeArguments): Promise<Json>;
  /**
   * {"text", "subscriptions"}: the asker's own, or everybody's for an operator.
   */
  subscriptions(given?: SubscriptionsArguments): Promise<Json>;
  /**
   * What several memories say on a question, cited. {"q", "path", "text", "degraded"}; ``text`` is empty when nothing
   * is.
   */
  synthesize(given: SynthesizeArguments): Promise<Json>;
  /**
   * Change the tags of a file, or ask for them: ``clear`` takes all away before ``add``. {"path", "tags"}.
   */
  tag(given: TagArguments): Promise<Json>;
  /**
   * How many files below a directory have each tag. {"tags": {name: count}}, the most frequent first.
   */
  tags(given?: TagsArguments): Promise<Json>;
  /**
   * Send a message. {"id"}: its number, as ``re`` is that of the message that it answers.
   */
  tell(given: TellArguments): Promise<Json>;
  /**
   * Notes by time, newest first; ``cold``: those of ``days`` ago and before, oldest first. {"text", "notes":
   * [{"path", "handle", "author", "at", "line"}], "more", "degraded"}.
   */
  timeline(given?: TimelineArguments): Promise<Json>;
  /**
   * What the files below a directory are about, or with ``name`` the files of one topic.
   *
   * {"text", "topics": [{"topic", "files"}], "files": [{"path", "handle", "line"}], "degraded"}: one of the two lists is
   * empty.
   */
  topics(given?: TopicsArguments): Promise<Json>;
  /**
   * {"files": [{"path", "was", "at", "agent", "size"}]}: what is in the trash, the newest removal first.
   */
  trash(given?: TrashArguments): Promise<Json>;
  /**
   * The shape of a directory. {"path", "text", "entries": [{"path", "kind", "depth"}], "more"}: in the order of the
   * text, ``depth`` from 1; ``more``: there are more than ``limit``.
   */
  tree(given?: TreeArguments): Promise<Json>;
  /**
   * Undo this agent's last run, or that with this number: all is where it was, and says of itself what it said, and
   * summaries are gone. {"run", "back": [{"path", "was", "kind"}], "left": [{"was", "kind", "why"}]}, ``kind`` "merged",
   * "cold" or "summary", ``path`` None for what has left the archive by itself, and for summaries; "left" is what is
   * refused now, and can be asked for again. ``dry``: what it would be. Raises NotFound where there is none, and what
   * refuses all that there is.
   */
  unconsolidate(given?: UnconsolidateArguments): Promise<Json>;
  /**
   * How much is unread: {"urgent", "normal", "low"}.
   */
  unread(given?: UnreadArguments): Promise<Json>;
  /**
   * {"ended"}.
   */
  unsubscribe(given: UnsubscribeArguments): Promise<Json>;
  /**
   * The banner of unread urgent mail, empty when there is none.
   */
  urgent(given?: UrgentArguments): Promise<string>;
  /**
   * One agent, as in ``agents``. One that nobody has heard of may what every agent without an entry may.
   */
  user(given: UserArguments): Promise<Json>;
  /**
   * What a text cites, checked. {"text", "verdicts": [{"what", "version", "state", "about"}], "good"}: of answers,
   * whose ``version`` is None, then of citations; ``good``: all stand. ``q``: the question of the answers. ``replay``:
   * then of each answer (the text may be its ``SEQ:NONCE`` alone) asked again as of its seq, and of the chain.
   */
  verify(given: VerifyArguments): Promise<Json>;
  /**
   * A file as it was: version ``number``, or the one that stood at the ISO 8601 time ``at``. {"path", "version",
   * "at", "author", "size", "data", "more", "untrusted"}: bytes from ``offset``, at most 8 MiB. Raises NotFound for a
   * version that is not kept, or a time before the first.
   */
  version(given: VersionArguments): Promise<Json>;
  /**
   * Wait until the model is there and has embedded a word; one that could not be loaded is tried again at once.
   * {"model", "dimension"}. Raises StoreFailed with the reason when there is none, Busy when it takes longer than
   * WARMUP_S.
   */
  warmup(given?: WarmupArguments): Promise<Json>;
  /**
   * Wait for the next change that this agent may see, or for mail, at most ``wait`` seconds.
   *
   * {"seq", "unread", "paths", "all"}: give ``seq`` and ``unread`` back with the next call. The first call (without
   * them) answers at once, as does one where ``since`` is above the newest: that change is lost, as by a restore, or
   * hidden by now. ``paths`` have changed since, under old and new names; ``all``: more than can be named, also then.
   */
  watch(given?: WatchArguments): Promise<Json>;
  /**
   * {"text", "knows": [{"agent", "host", "how", "files", "topics", "handle", "path"}], "degraded"}.
   */
  who(given: WhoArguments): Promise<Json>;
  /**
   * {"wiped"}: nothing that was purged is in the store's file any more. False: ask again in a while.
   */
  wipe(given?: WipeArguments): Promise<Json>;
  /**
   * Write a file (``mode``: replace, create, append) or a view. {"path", "version"}. With ``instead_of``, the SHA-256
   * of what was read, it is written only over just that; else Stale. With ``if_version`` only while that is the newest
   * version's number; 0: while there is no file.
   */
  write(given: WriteArguments): Promise<Json>;
  /**
   * Bring notes of a project's index up to date: items with what the store's command takes, ``path`` and ``was`` as
   * text below the project. For each None, or why the store refused it.
   */
  write_index(given: WriteIndexArguments): Promise<any[]>;
}

const names = ["agents", "archive", "ask", "audit", "audit_anchor", "audit_verify", "blame", "bundle", "check_permission", "check_usage", "claim", "claim_next", "claims", "compare", "consolidate", "create_key", "dead_letters", "delete_mail", "delta", "digest", "empty_trash", "entries", "explore", "fetch", "graph", "history", "inbox", "index_status", "init_permissions", "let_out", "link", "links", "list_keys", "listing", "locate", "make_directory", "mark_read", "move", "names_log", "nearness", "nonce", "notices", "pending", "privacy", "purge", "put", "put_back", "quarantine", "questions", "read", "recall", "recent", "records", "redeliver", "reject", "release", "remember", "remember_many", "remove", "remove_snapshot", "replay", "restore", "retrieve", "revoke_key", "search", "sign_in", "snapshot", "snapshots", "subscribe", "subscriptions", "synthesize", "tag", "tags", "tell", "timeline", "topics", "trash", "tree", "unconsolidate", "unread", "unsubscribe", "urgent", "user", "verify", "version", "warmup", "watch", "who", "wipe", "write", "write_index"] as const;

/** The methods, asked of a memory. */
export function methodsOf(memory: Memory): Methods {
  const ask = (name: string) => [name, (given: object = {}) => memory.call(name, given)];
  return Object.fromEntries(names.map(ask)) as unknown as Methods;
}
