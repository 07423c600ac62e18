"""The table of ``avm``'s sub-commands: every function below ``@subcommand`` (``main``).

Owns in which order and groups they are listed, and their examples. Reads the modules' text and imports none of them:
the help page, completion and the references need names and one-line help alone.
"""

from __future__ import annotations

from typing import Final

from avmfs.registration import declarations

GROUPS: Final[dict[str, dict[str, str]]] = {
    "Begin": {
        "playground": "avm playground",
        "init": "avm init alice bob",
        "setup": "avm setup claude",
        "help": "avm help quick-start",
    },
    "Remember and recall": {
        "remember": "avm remember 'Releases are frozen on Fridays.' --tag release",
        "recall": "avm recall 'when may we release?' --max-tokens 500",
        "search": "avm search 'release freeze'",
        "semantic": "avm semantic 'when must software not go out'",
        "ask": "avm ask 'who broke the build?'",
        "browse": "avm browse 'release freeze'",
        "fetch": "avm fetch /shared/plan.md @k7f2",
        "retrieve": "avm retrieve 'release freeze' --depth 2",
        "synthesize": "avm synthesize 'what went wrong in October'",
        "topics": "avm topics /shared",
        "timeline": "avm timeline --days 7",
        "cold": "avm cold /shared --days 90",
        "explore": "avm explore /shared/plan.md",
        "graph": "avm graph /shared --format svg",
        "digest": "avm digest --days 7",
        "bundle": "avm bundle 'release freeze' --under /shared --max-tokens 1000",
        "savings": "avm savings",
    },
    "Files": {
        "read": "avm read /shared/plan.md:history",
        "write": "echo 'Ship on Monday.' | avm write /shared/plan.md -",
        "append": "avm append /shared/plan.md ' Not before.'",
        "ls": "avm ls /shared",
        "tree": "avm tree /memory --depth 2",
        "mv": "avm mv /memory/2024- /memory/old/2024-",
        "rm": "avm rm -r /shared/drafts",
        "trash": "avm trash",
        "archive": "avm archive /shared/drafts",
        "history": "avm history /shared/plan.md",
        "diff": "avm diff /shared/plan.md",
        "blame": "avm blame /shared/plan.md",
        "delta": "avm delta /shared",
        "changes": "avm changes /shared --minutes 60",
        "watch": "avm watch '/shared/*' --json",
        "link": "avm link /shared/a.md /shared/b.md follows",
        "verify": "avm verify /shared/report.md",
        "links": "avm links /shared/a.md",
        "tag": "avm tag /shared/plan.md release",
        "stats": "avm stats /shared",
    },
    "Together": {
        "tell": "avm tell bob 'Numbers are in.' --priority urgent",
        "inbox": "avm inbox --wait 30",
        "pending": "avm pending",
        "who": "avm who NVDA",
        "subscribe": "avm subscribe '/shared/*' -m digest",
        "unsubscribe": "avm unsubscribe '/shared/*'",
        "subscriptions": "avm subscriptions",
        "agents": "avm agents",
        "claim": "avm claim --next /shared/queue",
        "quarantine": "avm quarantine release @k7f2",
        "release": "avm release /shared/queue/job-1.md",
    },
    "Keep and move": {
        "backup": "avm backup /media/usb/avm",
        "restore": "avm restore /shared/plan.md --at yesterday",
        "snapshot": "avm snapshot make before-cleanup",
        "consolidate": "avm consolidate /shared --dry-run",
        "purge": "avm purge /private/secret.md",
        "export": "avm export tar memory.tar.gz /shared",
        "import": "avm import markdown notes --into /shared/notes",
        "sync": "avm sync ~/notes /shared/notes",
        "mount": "avm mount alice ~/avm",
    },
    "Run": {
        "open": "avm open",
        "top": "avm top",
        "doctor": "avm doctor",
        "config": "avm config check",
        "model": "avm model list",
        "warmup": "avm warmup",
        "index": "avm index find 'where is the retry policy'",
        "keys": "avm keys create --path '/shared/*'",
        "audit": "avm audit --limit 20",
        "cluster": "avm cluster status",
        "bench": "avm bench",
        "repair": "avm repair",
        "hook": "avm hook prompt -a claude < event.json",
        "completion": 'eval "$(avm completion bash)"',
    },
}
"""Groups of the help page, in order; of each command an example. What one needs first comes first; a command that is
not here follows, by name."""


def _declared() -> dict[str, tuple[str, str]]:
    found = {}
    for module, strings in declarations("avmfs.cli", "subcommand"):
        if len(strings) != 2:
            raise ValueError(f"{module}: @subcommand takes name and one-line help, each a plain string")
        found[strings[0]] = (module, strings[1])
    place = {name: number for number, name in enumerate(name for group in GROUPS.values() for name in group)}
    return {name: found[name] for name in sorted(found, key=lambda each: (place.get(each, len(place)), each))}


COMMANDS: Final = _declared()
"""By name: the module and the one-line help."""


def example(name: str) -> str:
    """A line that a person can type, or ""."""
    return next((group[name] for group in GROUPS.values() if name in group), "")
