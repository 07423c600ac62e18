"""The typed values that configuration becomes, with their defaults.

Built by the loader and by tests, read by every layer above. Values only: nothing here reads a file, looks at
the environment or checks anything. A field's name is its key in the file, and its type, with the bounds of a number,
what the key may hold; `schema.json` describes both files for editors, and a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from avmfs_config.consolidate import ConsolidateSettings, DigestSettings
from avmfs_config.gossip import GossipSettings
from avmfs_config.http import HttpSettings
from avmfs_config.outbox import Hook, WebhookSettings
from avmfs_config.parse import Range
from avmfs_config.people import AgentSettings

Access = Literal["rw", "ro", "none"]
Coherence = Literal["strict", "close-to-open"]
Device = Literal["auto", "cpu", "mps", "cuda"]
Engine = Literal["auto", "torch", "onnx", "onnx-int8", "static", "universal"]
Encoding = Literal["cl100k_base", "o200k_base"]
Urgent = Literal["banner", "inject"]
Source = Literal["imported", "live", "tool", "web"]
Trust = Literal["allow", "mark", "quarantine"]
LogFormat = Literal["text", "json"]
Weight = Annotated[float, Range(-10.0, 10.0)]

MAX_UID = 2**32 - 2  # the one above it means "unchanged" to chown

_NEVER_INDEXED = (  # 4913: vim's probe for a writable directory
    ".git/* .hg/* .svn/* *.swp *.swo *.swx 4913 *~ .#* #*# *.bak *.tmp *.temp *.part *.crdownload ~$* .~lock.*"
    " .fuse_hidden* .nfs* ._* .DS_Store"
)
NEVER_INDEXED = tuple(_NEVER_INDEXED.split())


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Where the daemon makes backups (None: nowhere), how many seconds apart, and how many of them stay."""

    folder: Path | None = None
    every_s: Annotated[float, Range(60.0, 31_536_000.0)] = 86_400.0
    keep: Annotated[int, Range(1, 10_000)] = 14


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where the heads of the audit's hash chain are noted (None: beside the database, NAME.anchors), and how many
    seconds the newest of them may be behind."""

    anchors: Path | None = None
    interval_s: Annotated[float, Range(1.0, 86_400.0)] = 60.0


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of mounts.yaml: where one agent sees the store.

    `mountpoint` is absolute and normalised by its text alone: the filesystem is not asked, since a mountpoint
    may be a dead mount. `uid` is the Unix user that the mount belongs to, and the only one who may use it (root too
    with `allow_root`, everybody with `allow_other`); None is the daemon's own. `link` is where a symbolic link to the
    mountpoint is made. `trash`: what rm(1) removes of notes goes there.
    """

    mountpoint: Path
    agent_id: str
    uid: Annotated[int | None, Range(0, MAX_UID)] = None
    read_only: bool = False
    urgent: Urgent = "banner"
    xattr: bool = False
    coherence: Coherence = "close-to-open"
    allow_other: bool = False
    allow_root: bool = False
    link: Path | None = None
    trash: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """What `agents` and the members of `groups` may do with paths that match `pattern`; both None is every agent."""

    pattern: str
    access: Access
    agents: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TrustRule:
    """What becomes of text that came from `source` and stands at a path that matches `pattern`: it is found like any
    other, found and marked, or found by nobody until somebody lets it out."""

    source: Source
    action: Trust
    pattern: str = "/*"


@dataclass(frozen=True, slots=True)
class Provider:
    """Live content under `pattern`, made by the handler of that name.

    `config` is the handler's own, as written: ``${NAME}`` in it is expanded where it is used, so that a
    secret stays out of this value. It is plain data (text, numbers, booleans, None, lists, string-keyed
    dicts). `ttl` is in seconds; None leaves it to the handler, 0 is never cached. For `stale_s` more (None: as long as
    the ttl) what is kept is shown while it is fetched anew. One fetch may take `timeout_s` and bring `max_bytes`.
    `writable` lets agents write where rules do, `search` has what was fetched last found by words, `history` keeps the
    answers of before. `values` are those of a parameter that a listing shows, by its name.
    """

    pattern: str
    handler: str
    config: Mapping[str, Any] = field(default_factory=dict)
    ttl: Annotated[float | None, Range(0.0)] = None
    stale_s: Annotated[float | None, Range(0.0)] = None
    timeout_s: Annotated[float, Range(0.01, 300.0)] = 10.0
    max_bytes: Annotated[int, Range(1, 32 * 1024 * 1024)] = 1024 * 1024
    writable: bool = False
    search: bool = False
    history: bool = False
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The model behind semantic search.

    `engine` computes the vectors: sentence-transformers ("torch"), ONNX Runtime with full or 8-bit weights, a
    static table (in `path`, or wordllama's), or the multilingual universal sentence encoder; "auto" is torch where it
    is installed beside a GPU, else ONNX Runtime. `path` is a folder with the weights, tried before any other place.
    `timeout_s` is how long a query waits for its vector before it is answered from words alone.
    """

    enabled: bool = True
    engine: Engine = "auto"
    model: str = "all-MiniLM-L6-v2"
    path: Path | None = None
    device: Device = "auto"
    allow_download: bool = True
    timeout_s: Annotated[float, Range(0.0, 3600.0)] = 5.0


@dataclass(frozen=True, slots=True)
class SearchWeights:
    """What each signal adds to the score that orders hits; 0 switches it off (benchmarks/README.md has what each is
    worth).

    `cosine`, `words` (BM25 of the passage) and `context` (BM25 of it with what was written around it there) are shares
    of the best; `speaker`, `date`, `when` (it names a time and a time is asked for) and `question` (it asks itself) are
    for yes; `length` is for long ones; `document` is the share of the score that is the mean of the best three passages
    of its document, so that what fits by chance does not stand for all of it; `session` is for the best three of its
    session, `next` for the next passage; `phrase` is for all that the question puts in quotes, `answer` for the passage
    before it, where that one asks; `event`, a share of the cosine, for a note that names a time, whatever is asked: it
    tells of something that happened; `decay` is for what was said today, half as much after each
    `search.half_life_days`. `current` is no share: it puts, of two hits that say different things of one matter, the
    newer first; more of it asks for less proof. `crowd` is for what stands
    in a directory that has more than a tenth of all passages (and thirty), but for the best three there: so much for
    each time that e goes into how many tenths it has.
    """

    cosine: Weight = 1.0
    words: Weight = 0.2
    context: Weight = 0.7
    speaker: Weight = 0.4
    date: Weight = 0.45
    when: Weight = 0.3
    question: Weight = -0.2
    length: Weight = 0.35
    document: Weight = 0.3
    session: Weight = 0.5
    next: Weight = 0.1
    phrase: Weight = 0.5
    answer: Weight = 0.05
    event: Weight = 0.3
    decay: Weight = 0.0
    current: Weight = 1.0
    crowd: Weight = -0.06


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """Who reads the best hits of a question once more; nobody without `model` and `endpoint`.

    `model` is a folder with a cross-encoder (tokenizer.json and an ONNX file), `endpoint` the address of a /rerank as
    Cohere, Jina and others have it, where `name` says which model, and the key is the value of the environment variable
    `key_env` or the text of `key_file`. The first `top` hits get `weight` times what it says of them (0 to 1), in
    shares of the best hit's score, or of 1 where that is more. After `timeout_s` the answer goes out without.
    """

    model: Path | None = None
    endpoint: str | None = None
    name: str | None = None
    key_env: str | None = None
    key_file: Path | None = None
    weight: Annotated[float, Range(0.0, 10.0)] = 1.0
    top: Annotated[int, Range(1, 200)] = 50
    timeout_s: Annotated[float, Range(0.01, 60.0)] = 2.0


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How answers are found and counted.

    `encoding` is the tokenizer of every budget. `ignore` are globs of what is never indexed, and `max_index_bytes` the
    largest file that is; changed, they hold for what is there already too. `min_relevance` (0 to 1) and
    `max_tokens` are what a recall uses when it names none. In `half_life_days` what counts for being recent halves.
    `query_log` is how many of each agent's last questions to recall are kept, for the agent alone, to be replayed under
    other settings; 0 keeps none.
    """

    encoding: Encoding = "cl100k_base"
    ignore: tuple[str, ...] = NEVER_INDEXED
    max_index_bytes: Annotated[int, Range(0)] = 4 * 1024 * 1024
    min_relevance: Annotated[float, Range(0.0, 1.0)] = 0.3
    max_tokens: Annotated[int, Range(1)] = 4000
    weights: SearchWeights = field(default_factory=SearchWeights)
    query_log: Annotated[int, Range(0, 10_000)] = 0
    half_life_days: Annotated[float, Range(0.01, 36_500.0)] = 30.0
    rerank: RerankSettings = field(default_factory=RerankSettings)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Whether the store is shared with other hosts. `log` is the address of the shared log, as libpq has it
    (postgresql://…); None: the store is this machine's alone. `host` is what this host is called there; None: as the
    machine is. For `wait_s` a change waits for a log that is not there, before it is refused."""

    log: str | None = None
    host: str | None = None
    wait_s: Annotated[float, Range(0.0, 20.0)] = 0.0


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The daemon's log. `format`: lines for people, or of each record an object of JSON on a line."""

    format: LogFormat = "text"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one agent can do to another: the size of one message, unread ones per sender, and messages that a
    sender has in a minute. On what is kept of mail: of what an agent has read at most `read_messages`, for `read_days`.
    And on what is kept of a document: at most `versions`, and of a large one as many as fill `history_bytes` if each is
    taken whole, but never fewer than 16. `past_days` is for how long the whole tree can be seen as it was, 0 only at
    snapshots; of what has been removed at most `past_bytes` are kept for that, beside what snapshots have.
    What is removed is in the trash for `trash_days`, of each agent's removals no more than `trash_bytes`."""

    message_bytes: Annotated[int, Range(1)] = 65536
    unread: Annotated[int, Range(1)] = 100
    messages_per_minute: Annotated[int, Range(1, 10**9)] = 1200
    read_messages: Annotated[int, Range(0, 10**9)] = 1000
    read_days: Annotated[int, Range(0, 36_500)] = 30
    versions: Annotated[int, Range(16)] = 1000
    history_bytes: Annotated[int, Range(0)] = 256 * 1024 * 1024
    past_days: Annotated[int, Range(0, 36_500)] = 30
    past_bytes: Annotated[int, Range(0)] = 1 << 30
    trash_days: Annotated[int, Range(0, 36_500)] = 30
    trash_bytes: Annotated[int, Range(0)] = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """All of config.yaml.

    `permissions` are in the file's order, and `default_access` holds where none matches. `uids` says which
    agents a Unix uid may be when it comes through the daemon's socket. `agents` says what each may do and
    have; its entry "*" stands for every agent without one. `autostart`: a command starts a daemon where none runs.
    `trust` is in the file's order; where none of it matches, what came from the web is marked, and the rest allowed.
    """

    providers: tuple[Provider, ...]
    permissions: tuple[Rule, ...]
    default_access: Access
    uids: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    limits: Limits = field(default_factory=Limits)
    agents: Mapping[str, AgentSettings] = field(default_factory=dict)
    gossip: GossipSettings = field(default_factory=GossipSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    hooks: tuple[Hook, ...] = ()
    audit: AuditSettings = field(default_factory=AuditSettings)
    backup: BackupSettings = field(default_factory=BackupSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    consolidate: ConsolidateSettings = field(default_factory=ConsolidateSettings)
    digest: DigestSettings = field(default_factory=DigestSettings)
    autostart: bool = True
    trust: tuple[TrustRule, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)

    def apart_from_rules(self) -> "Settings":
        """Without what only the policy is made of, and what only the HTTP process reads: a change of the rest needs new
        processes."""
        http = HttpSettings(metrics=self.http.metrics)
        return replace(self, permissions=(), default_access="ro", agents={}, http=http, trust=())

    def of_writer(self) -> tuple[object, ...]:
        """What the writer reads when it starts, and no rule is made of."""
        return self.store, self.log, self.http.metrics
