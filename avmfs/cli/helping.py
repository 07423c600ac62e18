"""avm help: the documents that messages name, for those who installed a wheel and have no docs/ beside it.

Owns which documents are topics (the build copies them into the package) and what their names are.
"""

from __future__ import annotations

import importlib.resources
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from avmfs.cli.main import avm, subcommand
from avmfs.cli.session import show

# Name: (file below docs/, what it is about). A topic that is a command too: `avm NAME --help` has the options.
TOPICS: Final = {
    "quick-start": ("guides/quick-start.md", "from nothing to two agents that share a memory"),
    "two-agents": ("guides/two-agents.md", "two agents that work together"),
    "what-to-remember": ("guides/what-to-remember.md", "what is worth a note, and how to write it"),
    "recall": ("guides/recall.md", "asking: recall, search, filters"),
    "shell": ("guides/shell.md", "scripts and pipes"),
    "json": ("guides/json.md", "what every command prints with --json"),
    "mcp-clients": ("guides/mcp-clients.md", "the memory as tools of an MCP client"),
    "frameworks": ("guides/frameworks.md", "LangGraph, OpenAI Agents SDK, LlamaIndex and CrewAI on the memory"),
    "service": ("guides/service.md", "the daemon at login or at boot"),
    "troubleshooting": ("guides/troubleshooting.md", "what goes wrong, and what mends it"),
    "views": ("VIEWS.md", "every :view of a file or directory"),
    "formats": ("FORMATS.md", "what views and commands print, exactly"),
    "cli": ("CLI.md", "every command with its options"),
    "mcp": ("MCP.md", "every MCP tool"),
    "messages": ("MESSAGES.md", "mail between agents"),
    "subscriptions": ("SUBSCRIPTIONS.md", "being told of changes, webhooks"),
    "discovery": ("DISCOVERY.md", "who knows what, and what others may learn of you"),
    "embedding": ("EMBEDDING.md", "models, engines, other languages"),
    "security": ("SECURITY.md", "permissions, modes, API keys, quotas, isolation"),
    "http": ("HTTP.md", "the HTTP service: REST, events, MCP, metrics, from another machine"),
    "audit": ("AUDIT.md", "who changed what, and how to verify it"),
    "operations": ("OPERATIONS.md", "running the daemon: reload, upgrade, backup, repair"),
    "scaling": ("SCALING.md", "one memory on many hosts"),
    "transfer": ("TRANSFER.md", "export, import, and what they keep"),
    "providers": ("PROVIDERS.md", "live content: prices, builds, tickets as files; handlers of your own"),
    "posix": ("POSIX.md", "where a mount differs from a local filesystem"),
}


def document(topic: str) -> str:
    """Return the text of a topic. Raises FileNotFoundError where the installation lacks it."""
    return _folder().joinpath(TOPICS[topic][0]).read_text(encoding="utf-8")


def _folder() -> Traversable:
    """The documents of an installed package, else those of the source tree that this file is in."""
    packed = importlib.resources.files("avmfs").joinpath("docs")
    return packed if packed.is_dir() else Path(__file__).parents[2] / "docs"


@subcommand("help", "Print a document: security, operations, troubleshooting and more.")
@click.argument("topic", required=False)
def help_(ctx: click.Context, topic: str | None) -> None:
    """Print a document, such as security; without TOPIC, which there are. Of a command that is no topic, its --help."""
    if topic is None:
        wide = max(map(len, TOPICS))
        lines = [f"  {name:<{wide}}  {about}\n" for name, (_, about) in TOPICS.items()]
        show(
            {name: about for name, (_, about) in TOPICS.items()},
            "".join(["Topics: avm help TOPIC\n\n", *lines, "\nCommands: avm --help\n"]),
        )
        return
    name = Path(topic).stem.lower()  # docs/SECURITY.md is as good as security
    if name in TOPICS:
        text = document(name)
    elif (command := avm.get_command(ctx, name)) is not None:
        with click.Context(command, parent=ctx.parent, info_name=name) as asked:
            text = command.get_help(asked) + "\n"
    else:
        near = get_close_matches(name, TOPICS, n=1)
        also = f" Did you mean {near[0]}?" if near else ""
        ctx.fail(f"No topic {topic!r}.{also} For a list: avm help")
    show({"topic": name, "text": text}, text)
