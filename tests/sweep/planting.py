"""What alice has that bob may not learn of: one planted word for each way in which something can be hers.

A planted word (``zq...qz``) is random to the eye and stands nowhere else, so one look at an answer tells whether it
leaks. Planted through mounts, as agents would; the sweeps then read it from everywhere as bob.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import World, cat, echo, view

KINDS = (
    "content",
    "name",
    "folder",
    "tag",
    "metakey",
    "metavalue",
    "linktype",
    "linkname",
    "old",
    "deleted",
    "renamed",
    "expired",
    "expiredshared",
    "limitedname",
    "limitedtext",
    "limitedold",
    "limitedtag",
    "limitedlater",
    "message",
    "urgent",
    "question",
    "asked",
    "error",
    "symlink",
    "born",
    "moved",
    "gone",
    "hidden",
    "hiddenname",
    "draft",
    "topic",
    "drafted",
    "draftedbelow",
    "widened",
    "livename",
    "livetext",
)
WORD = {kind: f"zq{kind}qz" for kind in KINDS}
CONTROL = "zqnowhereqz"  # like them, and planted nowhere
# What is planted in any case; whatever looks like it, but for a key drawn at random that mixes cases.
CANARY = re.compile(f"(?i:{'|'.join(WORD.values())})|[Zz]q[a-z]+qz|ZQ[A-Z]+QZ")
SETTINGS = """
embedding: {enabled: false}
providers:
  - {pattern: "/live/hers/{name}", handler: script, config: {command: "echo zqlivetextqz"}, search: true, ttl: 3600}
  - {pattern: "/live/open/{name}", handler: script, config: {command: "echo market"}, search: true, ttl: 3600}
permissions:
  - {pattern: "/live/hers/*", access: none, agents: [bob, ali, alice2]}
  - {pattern: "/memory/hidden/*", access: none, agents: [bob, ali, alice2]}
  - {pattern: "/memory/fixed/*", access: ro, agents: [bob]}
  - {pattern: "/memory/*", access: rw}
default_access: ro
"""


@dataclass
class Planted:
    """Where things are, as paths of the tree. ``hers`` exist for alice alone, by path; ``handles`` are theirs."""

    world: World
    hers: list[str] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)

    def mount(self, agent: str) -> Path:
        return self.world.mounts[agent]


def plant(world: World) -> Planted:
    found, w = Planted(world), WORD
    alice, bob = world.mounts["alice"], world.mounts["bob"]
    mine, team = alice / "private", alice / "shared/team"

    # The ground that bob sees, and on which his counts and scores are taken.
    team.mkdir()
    (alice / "memory/fixed").mkdir()
    (alice / "memory/hidden").mkdir()
    for number in range(4):
        (team / f"open{number}.md").write_text(f"# Report {number}\nmarket report {number}: the open market\n")
    (team / "open0.md").write_text("# Report 0\nmarket report 0: the open market, looked at again\n")
    echo("+shown", view(team / "open0.md", ":tags"))
    echo("/shared/team/open1.md cites", view(team / "open0.md", ":links"))
    (alice / "memory/fixed/note.md").write_text("market rules that bob may only read\n")
    (bob / "private/own.md").write_text("bob's own market note\n")
    echo("for bob", alice / "tell/bob")

    # Hers alone.
    (mine / "note.md").write_text(f"market {w['content']} #{w['topic']}\n")
    (mine / f"{w['name']}.md").write_text("market\n")
    (mine / w["folder"] / "below").mkdir(parents=True)
    (mine / w["folder"] / "below/note.md").write_text("market\n")
    echo(f"+{w['tag']}", view(mine / "note.md", ":tags"))
    echo(json.dumps({w["metakey"]: w["metavalue"], "importance": 0.9}), view(mine / "note.md", ":meta"))
    (mine / f"{w['linkname']}.md").write_text("market\n")
    echo(f"/private/{w['linkname']}.md {w['linktype']}", view(team / "open1.md", ":links"))
    echo(f"/shared/team/open1.md {w['linktype']}", view(mine / f"{w['linkname']}.md", ":links"))
    (mine / "old.md").write_text(f"market {w['old']}\n")
    (mine / "old.md").write_text("market, newer\n")
    (mine / f"{w['deleted']}.md").write_text(f"market {w['deleted']}\n")
    (mine / f"{w['deleted']}.md").unlink()
    (mine / f"{w['renamed']}.md").write_text("market\n")
    (mine / f"{w['renamed']}.md").rename(mine / "other.md")
    (mine / "link").symlink_to(w["symlink"])
    (mine / f"{w['draft']}.md").write_text("market\n")

    assert cat(alice / f"live/hers/{w['livename']}") == f"{w['livetext']}\n" and cat(bob / "live/open/x")

    # With an end, which comes before the sweeps begin; a shared one is gone for everybody.
    for path, word in ((mine / "brief.md", w["expired"]), (team / "brief.md", w["expiredshared"])):
        path.write_text(f"market {word}\n")
        echo("1s", view(path, ":ttl"))

    # In shared space for her alone. What it was before, everybody could read: `limitedold` was never seen by bob.
    limited = team / "limited.md"
    limited.write_text(f"market {w['limitedold']}\n")
    echo("alice", view(limited, ":shared"))
    limited.write_text(f"market {w['limitedtext']}\n")
    echo(f"+{w['limitedtag']}", view(limited, ":tags"))
    limited.rename(team / f"{w['limitedname']}.md")
    limited = team / f"{w['limitedname']}.md"
    echo(f"/shared/team/open2.md {w['linktype']}", view(limited, ":links"))
    limited.write_text(f"market {w['limitedlater']}\n")
    (alice / f"memory/hidden/{w['hiddenname']}.md").write_text(f"market {w['hidden']}\n")

    # Between hers and everybody's.
    (mine / f"{w['born']}.md").write_text("market\n")
    (mine / f"{w['born']}.md").rename(team / "born.md")
    (team / "leaves.md").write_text("market\n")
    (team / "leaves.md").rename(mine / f"{w['moved']}.md")
    (mine / "drafted").mkdir()
    for path, word in ((mine / "drafted.md", w["drafted"]), (mine / "drafted/below.md", w["draftedbelow"])):
        path.write_text(f"market {word}\n")
        path.write_text("market, fit to be seen\n")
    (mine / "drafted.md").rename(team / "drafted.md")
    (mine / "drafted").rename(team / "drafted")
    (team / "widened.md").write_text("market\n")
    for said in ("alice", f"market {w['widened']}", "market, for all again", "all"):
        echo(said, view(team / "widened.md", ":shared") if said in ("alice", "all") else team / "widened.md")
    (team / "ends.md").write_text("market\n")
    echo("alice", view(team / "ends.md", ":shared"))
    (team / "ends.md").write_text(f"market {w['gone']}\n")
    (team / "ends.md").unlink()

    # Said, asked, done wrong.
    echo(w["message"], alice / "tell/alice")
    echo(w["urgent"], alice / "tell/carol?priority=urgent")
    echo(f"what about {w['asked']}", alice / f":ask/{w['question']}")
    with pytest.raises(OSError):
        cat(alice / f":list?{w['error']}=1")
    cat(view(mine / "note.md", ":delta"))

    time.sleep(1.1)  # until what has an end is gone
    for top, _, names in os.walk(mine):
        found.hers += [f"/memory/private/alice/{Path(top, name).relative_to(mine)}" for name in names]
    found.hers += [f"/memory/shared/team/{w['limitedname']}.md", f"/memory/hidden/{w['hiddenname']}.md"]
    found.hers.append(f"/live/hers/{w['livename']}")
    found.hers = sorted(
        (path for path in found.hers if not path.endswith("/link")), key=lambda path: (path[1] == "l", path)
    )
    for path in found.hers:
        known: dict[str, Any] = json.loads(cat(view(alice / path.lstrip("/"), ":meta")))
        found.handles.append(known["id"])
    settle(world)
    # It is there, else the sweeps would show nothing.
    assert w["content"] in (mine / "note.md").read_text() and len(found.handles) >= 9
    assert w["limitedlater"] in cat(alice / f":recall?q={w['limitedlater']}")
    assert w["old"] in cat(view(mine / "old.md", ":diff")) and w["urgent"] in cat(world.mounts["carol"] / ":inbox")
    return found


def settle(world: World) -> None:
    """Words are indexed before a search: let both have searched."""
    for agent in ("alice", "bob"):
        cat(world.mounts[agent] / ":search?q=market")
