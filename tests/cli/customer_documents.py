"""What the first documents show, in their words: commands, Python, YAML; and which of it README.md has otherwise.

The documents use names that stand for a reader's own. Wherever they are run, ``PLACES`` stand for them; nothing else is
changed. ``WRITTEN`` and ``PREPARED`` are what the texts take for granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Snippet:
    """``text`` as it is written. ``gives``: a regular expression for what it prints, commands on either stream.

    ``row``: the first cell of README's table, where it does not run as written. Then ``gives`` is what it says today
    (None: it is not run), and ``instead`` stands in the row's second cell and does run. ``by``: at whose mount.
    """

    text: str
    gives: str | None = ""
    row: str | None = None
    instead: str | None = None
    by: str = "myagent"


PLACES: Final = (
    # as written, what stands for it: {home}, {mount}, {handle} of /memory/lesson.md
    ("/mnt/avm/@abc", "{mount}/{handle}"),
    ("/mnt/avm", "{mount}"),
    ("/shared/report.md", "{mount}/shared/report.md"),
    ("/path/to/custom.db", "{home}/custom.db"),
    ("/path/to/project", "{home}/project"),
    ("/custom/path", "{home}/custom"),
    ("from avm.", "from avmfs."),
    ("from avm import", "from avmfs import"),
)

NAMED = "`from avm import …`"
NOBODY = "`AVM()`, `avm read …`, without an agent"
WEBHOOK = "`-w http://localhost:3000/hook`"
URGENT = "`urgent`: “injected into next file read”"
PLAYGROUND = "`python playground.py`"
FUSEPY = "`pip install fusepy`"
INSTALLS = "`pip install …`, `apt install fuse3`, `brew install macfuse`"
CLONES = "`git clone …`, `cd avm/benchmarks`"
BENCHMARKS = "`python run_….py`, `python benchmarks/bench_….py …`"
FIGURES = "`plot_latency_cdf` and the other plots"
AGENTEVAL = "`agenteval bench memory …`"
OLD_STORE = "`~/.local/share/vfs/avm.db`"
PLACE_NAMES = "`/mnt/avm`, `@abc`"
PICTURES = "📁, 🏷️, 📌, ✓ in what is printed"

ROWS_WITHOUT_A_SNIPPET: Final = {NAMED, URGENT, FIGURES, OLD_STORE, PLACE_NAMES, PICTURES}

MOUNTS_YAML: Final = """\
# Example:
#   mounts:
#     - mountpoint: ~/.openclaw/workspace/avm
#       agent_id: myagent
"""

CONFIG_YAML: Final = """\
# config.yaml
providers:
  # HTTP API
  - pattern: "/live/prices/{symbol}"
    handler: http
    config:
      url: "https://api.example.com/prices/${symbol}"
      headers:
        Authorization: "Bearer ${API_KEY}"
    ttl: 60

  # Script
  - pattern: "/system/status"
    handler: script
    config:
      command: "uptime"

  # Plugin
  - pattern: "/live/indicators/*"
    handler: plugin
    config:
      plugin: "my_plugins.talib"

permissions:
  - pattern: "/memory/*"
    access: rw
  - pattern: "/live/*"
    access: ro

default_access: ro
"""

MCP_SERVERS_YAML: Final = """\
# mcp_servers.yaml
avm-memory:
  command: avm-mcp
  args: ["--user", "akashi"]
"""

MCP_TOOLS: Final = (
    "avm_recall",
    "avm_browse",
    "avm_fetch",
    "avm_remember",
    "avm_search",
    "avm_list",
    "avm_read",
    "avm_tags",
    "avm_recent",
    "avm_stats",
)

# What the commands are about.
WRITTEN: Final = """\
mkdir /path/to/project && echo 'def keep_rain_out(): ...' > /path/to/project/roof.py
avm write /memory/old-name.md --content old
avm write /memory/news-1.md --content one && avm write /memory/news-2.md --content two
avm write /memory/2024/x.md --content "of 2024"
avm write /memory/market/NVDA.md --content "NVDA: RSI at 72, overbought. BTC market and trading: no risk taken."
avm write /memory/analysis.md --content "Data analysis of the NVDA options market"
avm write /memory/geo.md --content "Tensions in the Middle East: military conflict with Iran"
avm -a analyst write shared/report.md --content $'Old finding\\n'
for agent in kearsarge trader; do avm -a $agent remember "known to all"; done
avm --db /path/to/custom.db write /memory/note.md --content "a note elsewhere"
XDG_DATA_HOME=/custom/path avm write /memory/note.md --content "a note of another home"
"""
# And what is read at a mount, once the commands have run.
MARKED: Final = """\
avm tag /memory/lesson.md work
avm link /memory/lesson.md /memory/geo.md
avm write /memory/lesson.md:ttl --content 2h
avm -a trader delta shared/report.md
avm -a kearsarge tell myagent "hello back"
"""

# Before a store or a daemon is there.
FIRST: Final = (
    Snippet("avm read /memory/lesson.md", "AVM_AGENT", NOBODY, "export AVM_AGENT=akashi"),
    Snippet("python playground.py", "No such file", PLAYGROUND, "avm playground"),
    Snippet("pip install -e .", None, INSTALLS),
    Snippet("pip install tiktoken sentence-transformers", None, INSTALLS),
    Snippet("brew install macfuse", None, INSTALLS),
    Snippet("apt install fuse3", None, INSTALLS),
    Snippet("pip install fusepy", None, FUSEPY),
    Snippet("git clone https://github.com/aivmem/avm", None, CLONES),
    Snippet("cd avm/benchmarks", None, CLONES),
    Snippet("python run_unit_benchmark.py", None, BENCHMARKS),
    Snippet("python run_parallel.py", None, BENCHMARKS),
    Snippet("python run_context_overflow.py", None, BENCHMARKS),
    Snippet("python run_knowledge_retrieval.py", None, BENCHMARKS),
    Snippet("git clone https://github.com/bkmashiro/avm", None, CLONES),
    Snippet("python benchmarks/bench_paper.py --all --output results/", None, BENCHMARKS),
    Snippet("python benchmarks/bench_ablation.py", None, BENCHMARKS),
    Snippet("python benchmarks/bench_agent_efficiency.py", None, BENCHMARKS),
    Snippet(
        "agenteval bench memory --preset quick --subject MyAgent",
        "not found",
        AGENTEVAL,
        "avm bench memory --preset quick --subject MyAgent",
    ),
    Snippet("agenteval bench memory --preset standard --subject MyAgent", None, AGENTEVAL),
    Snippet("agenteval bench memory --preset full --subject MyAgent", None, AGENTEVAL),
    Snippet("agenteval bench memory --preset diagnostic --subject MyAgent", None, AGENTEVAL),
    Snippet("agenteval bench memory --preset overflow --subject MyAgent", None, AGENTEVAL),
    Snippet("avm-daemon start --daemon   # background (double-fork)", "running"),
    Snippet("avm-daemon status", "(?m)^myagent +ready"),
    Snippet("avm-daemon reload", "reloaded"),
    Snippet("avm warmup", r"all-MiniLM-L6-v2.*\n.*384.*\n.*ms"),
)

COMMANDS: Final = (
    Snippet('avm write /memory/lesson.md --content "New lesson"', r"/memory/lesson\.md v1"),
    Snippet("avm read /memory/lesson.md", "^New lesson$"),
    Snippet('time avm recall -a test "data analysis"', r"(?s)## Relevant Memory.*NVDA.*\nreal"),
    Snippet('avm search "RSI"', r"\[[01]?\.\d\d\] /memory/market/NVDA\.md"),
    Snippet(
        "avm mv /memory/old-name.md /memory/new-name.md        # single node",
        r"/memory/old-name\.md -> /memory/new-name\.md",
    ),
    Snippet(
        "avm mv /memory/news- /memory/archive/news-            # prefix tree (all children)",
        r"/memory/news-1\.md -> /memory/archive/news-1\.md\n/memory/news-2\.md -> /memory/archive/news-2\.md",
    ),
    Snippet(
        "avm mv /memory/2024/ /archive/2024/                   # directory-style move",
        "/memory/2024 -> /archive/2024",
    ),
    Snippet('avm semantic "Iran conflict news"           # semantic similarity', r"\] /memory/geo\.md"),
    Snippet('avm semantic "BTC market" --limit 5         # limit results', r"\] /memory/"),
    Snippet('avm semantic "trading" --agent akashi       # agent context', r"\] /memory/"),
    Snippet('avm recall "NVDA risk" --agent akashi --max-tokens 4000', r"(?s)## Relevant Memory \(\d.*NVDA"),
    Snippet("avm savings -a akashi", '"percent"'),
    Snippet("avm index scan myapp /path/to/project", "1 "),
    Snippet("avm index status myapp", r"symbols +1"),
    Snippet("avm index sigs myapp", "keep_rain_out"),
    Snippet(
        'avm subscribe "/memory/shared/market/*" -a trader -m realtime -w http://localhost:3000/hook',
        r"webhooks\.allow",
        WEBHOOK,
        "webhooks: {allow: [localhost]}",
    ),
    Snippet('avm subscribe "/memory/shared/*" -a analyst -m throttled -t 60', "#1  /memory/shared/.*  throttled$"),
    Snippet("avm subscriptions --agent trader", "localhost:3000/hook"),
    Snippet('avm unsubscribe "/memory/shared/market/*" -a trader', "ended 1"),
    Snippet("avm --db /path/to/custom.db read /memory/note.md", "a note elsewhere"),
    Snippet("XDG_DATA_HOME=/custom/path avm read /memory/note.md", "a note of another home"),
    Snippet("avm-mcp --user akashi < /dev/null"),
)

ON_A_MOUNT: Final = (
    Snippet("ls /mnt/avm/memory/", "lesson.md"),
    Snippet("cat /mnt/avm/memory/lesson.md", "# Trading Lesson"),
    Snippet('echo "New insight" > /mnt/avm/memory/log.md'),
    Snippet("cat /mnt/avm/memory/lesson.md:meta      # Metadata (JSON)", r'"path": "/memory/lesson\.md"'),
    Snippet("cat /mnt/avm/memory/lesson.md:links     # Related nodes", r"-> /memory/geo\.md \(related\)"),
    Snippet("cat /mnt/avm/memory/lesson.md:tags      # Tags", "^work$"),
    Snippet("cat /mnt/avm/memory/lesson.md:ttl       # Time-to-live", r"^2h$|^1h 59m$"),
    Snippet("cat /mnt/avm/memory/lesson.md:history   # Version history", r"v1  .{16}  create  akashi"),
    Snippet("cat /mnt/avm/memory/:list               # Directory listing", r"@\w{4,}  lesson\.md  Trading Lesson"),
    Snippet("cat '/mnt/avm/memory/:list?limit=10'    # Paginated", "lesson.md"),
    Snippet("cat '/mnt/avm/memory/:list?tag=work'    # Filter by tag", r"^@\w{4,}  lesson\.md  Trading Lesson$"),
    Snippet("cat '/mnt/avm/memory/:changes?minutes=5' # Recent changes", "/memory/log.md"),
    Snippet("cat /mnt/avm/memory/:stats              # Statistics", '"files"'),
    Snippet('cat "/mnt/avm/:search?q=RSI"            # Search', "/memory/market/NVDA.md"),
    Snippet('cat "/mnt/avm/:recall?q=NVDA"           # Token-aware recall', "## Relevant Memory"),
    Snippet("cat /mnt/avm/@abc                       # Access file by shortcut", "RSI > 70 = overbought"),
    Snippet("cat /mnt/avm/@abc:meta                  # Works with suffixes too", r"/memory/lesson\.md"),
    # The table of virtual nodes: what is written to each, and those that are not shown above.
    Snippet("echo '{\"k\": 1}' > /mnt/avm/memory/lesson.md:meta; cat /mnt/avm/memory/lesson.md:meta", '"k": 1'),
    Snippet("echo all > /mnt/avm/memory/log.md:shared; cat /mnt/avm/memory/log.md:shared", "^all$"),
    Snippet("cat /mnt/avm/memory/lesson.md:path", "^/memory/lesson.md$"),
    Snippet("cat /mnt/avm/memory/lesson.md:info", ":delta"),
    Snippet("cat /mnt/avm/memory/lesson.md:data", "# Trading Lesson"),
    Snippet("echo never > /mnt/avm/memory/lesson.md:ttl; cat /mnt/avm/memory/lesson.md:ttl", "^never$"),
    Snippet("cat '/mnt/avm/memory/:list?limit=1&offset=1'", r"\w"),
    Snippet("cat '/mnt/avm/memory/:list?q=lesson'", "lesson.md"),
    Snippet(
        "echo > /mnt/avm/memory/lesson.md:mark; cat /mnt/avm/memory/lesson.md:mark", r"marked: v(\d+), current: v\1"
    ),
    # Incremental collaboration.
    Snippet('echo "New finding" >> /shared/report.md'),
    Snippet(
        "cat /shared/report.md:delta",
        r"(?s)^# v2 \(\d{4}-\d\d-\d\d \d\d:\d\d\) .*\n--- .*\+\+\+ .*\n\+New finding\n",
        by="trader",
    ),
    Snippet("cat /shared/report.md:delta", r"^\(no changes\)$", by="trader"),
    # Messages.
    Snippet('echo "DB schema changed!" > /mnt/avm/tell/kearsarge?priority=urgent'),
    Snippet('echo "FYI: New API deployed" > /mnt/avm/tell/kearsarge'),
    Snippet('echo "Team meeting at 3pm" > /mnt/avm/tell/@all'),
    Snippet("cat /mnt/avm/:inbox", r"(?s)kearsarge.*\n> hello back"),
    Snippet('cat "/mnt/avm/:inbox?mark=read"', "1 unread"),
    # Two phases.
    Snippet('cat "/mnt/avm/memory/:search?q=NVDA"', r"(?m)^\[[01]?\.\d\d\] /memory/market/NVDA\.md"),
    Snippet("cat /mnt/avm/memory/market/NVDA.md", "RSI"),
    Snippet("avm-daemon stop", "stopped"),
)

PYTHON: Final = (
    Snippet(
        """\
# Trading agent remembers across sessions
trader.remember("NVDA RSI at 72, overbought", importance=0.9, tags=["market"])
# 3 months later...
trader.recall("what did I observe about NVDA?", max_tokens=500)

# Agent forgets what it knows
trader.topics()      # "technical: 12, crypto: 8, macro: 5"
trader.timeline(7)   # "Mon: BTC signal, Tue: Fed notes..."

# Multi-agent collaboration
analyst.remember("SPY pattern", namespace="shared")
trader.recall("market patterns")  # sees analyst's shared memory
""",
        r"(?s)Relevant Memory.*NVDA RSI at 72.*## Memory Topics.*By Tag.*market.*## \d{4}-.*SPY pattern",
    ),
    Snippet("""\
from avm import AVM

avm = AVM()

# Read/Write
avm.write("/memory/lesson.md", "# Trading Lesson\\n\\nRSI > 70 = overbought")
node = avm.read("/memory/lesson.md")

# Search
results = avm.search("RSI")

# Agent Memory
mem = avm.agent_memory("akashi")
mem.remember("NVDA showing weakness", tags=["market", "nvda"])
context = mem.recall("NVDA risk", max_tokens=4000)
"""),
    Snippet(
        """\
mem = avm.agent_memory("trader")

# 1. Topic overview - see what's in memory
mem.topics()

# 2. Browse tree - drill down without keywords
mem.browse("/memory", depth=2)

# 3. Timeline - "what did I observe recently?"
mem.timeline(days=7, limit=10)

# 4. Graph exploration - follow links
mem.explore("/memory/private/trader/nvda.md", depth=2)
""",
        r"(?s)### By Category:.*private.*### By Tag:.*trader/.*## \d{4}-.*"
        r"### Hop 1\n.*\[related\].*### Hop 2\n.*\[derived\]",
    ),
    Snippet('agent.recall("BTC RSI market")', "(?s)BTC_20260306.*RSI 68|RSI 68"),
    Snippet("""\
from avm.embedding import EmbeddingStore, LocalEmbedding
store = EmbeddingStore(avm_store, LocalEmbedding())
"""),
    Snippet("""\
from avm.faiss_store import FAISSEmbeddingStore, get_faiss_store
from avm.embedding import LocalEmbedding

# Flat index (exact, <10k docs)
store = FAISSEmbeddingStore(avm_store, LocalEmbedding(), index_type="flat")

# HNSW index (approximate, >10k docs)
store = FAISSEmbeddingStore(avm_store, LocalEmbedding(), index_type="hnsw")

# Batch index documents
store.add_nodes(nodes)
store.save()

# Search
results = store.search("market analysis", k=5)
"""),
    Snippet(
        """\
avm.init_permissions({
    "users": {
        "akashi": {
            "groups": ["trading", "admin"],
            "capabilities": ["search_all", "write", "sudo"]
        },
        "guest": {
            "groups": [],
            "capabilities": []
        }
    }
})

# Check permissions
user = avm.get_user("akashi")
avm.check_permission(user, "/memory/private/akashi/note.md", "write")

# API keys for skills
key = avm.create_api_key(user, paths=["/memory/*"], actions=["read"])
""",
        "True",
    ),
    Snippet(
        """\
from avm import BaseHandler, register_handler

class RedisHandler(BaseHandler):
    def read(self, path, context):
        return self.redis.get(path)

register_handler('redis', RedisHandler)
""",
        "",
    ),
)

# What the Python is about. ``agent`` is kearsarge's, as in the report from production.
PREPARED: Final = """\
from avmfs import AVM
avm = avm_store = AVM()
trader, analyst, agent = (avm.agent_memory(name) for name in ("trader", "analyst", "kearsarge"))
own = "/memory/private/trader"
for name, text in (("nvda", "NVDA RSI at 72"), ("macd_analysis", "MACD crosses"), ("trading_signal", "sell")):
    trader.remember(text, path=f"{own}/{name}.md", tags=["technical"])
as_trader = AVM(agent="trader")
as_trader.link(f"{own}/nvda.md", f"{own}/macd_analysis.md")
as_trader.link(f"{own}/macd_analysis.md", f"{own}/trading_signal.md", "derived")
avm.write("/memory/shared/market/BTC_20260306.md", "BTC market analysis: RSI 68, MACD bullish")
nodes = [*avm.list("/memory"), *avm.search("RSI"), avm.read("/memory/shared/market/BTC_20260306.md")]
"""

# Its parts stand in the documents as parts of their own engine: a method of a subclass of EmbeddingBackend.
EMBED: Final = """\
def embed(self, text: str) -> List[float]:
    cache_key = text[:200]
    if cache_key in self._query_cache:
        return self._query_cache[cache_key]
    result = self._model.encode(text).tolist()
    self._query_cache[cache_key] = result
    return result
"""
