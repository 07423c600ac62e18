"""The table of ``avm``'s sub-commands: every function below ``@subcommand`` (``main``).

Owns in which order they are listed. Reads the modules' text and imports none of them: the help page, completion and the
references need names and one-line help alone.
"""

from __future__ import annotations

from typing import Final

from avmfs.registration import declarations

_LISTED_FIRST: Final = (
    "init", "read", "write", "append", "ls", "mv", "rm", "search", "semantic", "recall", "remember", "who",
    "ask", "topics", "tell", "inbox", "subscribe", "unsubscribe", "subscriptions", "pending", "stats", "tree",
    "browse", "fetch", "timeline", "explore", "graph", "retrieve", "synthesize", "history", "diff", "links",
    "link", "tag", "changes", "delta", "savings", "index", "warmup", "agents", "keys", "audit", "config",
    "mount", "playground", "bench", "export", "import", "sync", "backup", "restore", "doctor", "repair",
    "completion", "help",
)  # fmt: skip
"""What one needs first comes first; a command that is not here follows, by name."""


def _declared() -> dict[str, tuple[str, str]]:
    found = {}
    for module, strings in declarations("avmfs.cli", "subcommand"):
        if len(strings) != 2:
            raise ValueError(f"{module}: @subcommand takes name and one-line help, each a plain string")
        found[strings[0]] = (module, strings[1])
    place = {name: number for number, name in enumerate(_LISTED_FIRST)}
    return {name: found[name] for name in sorted(found, key=lambda each: (place.get(each, len(place)), each))}


COMMANDS: Final = _declared()
"""By name: the module and the one-line help."""
