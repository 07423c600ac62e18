"""avm init, warmup."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import avmfs_config
import click
from avmfs_config import check_agent_id, load_mounts
from avmfs_config.editing import alone, commit, scalar

from avmfs.cli.main import subcommand
from avmfs.cli.session import door, locations, show, working
from avmfs.embed import universal
from avmfs.errors import Exists, Invalid
from avmfs.extras import bring
from avmfs.text.escapes import escaped

_MOUNTS = """\
# yaml-language-server: $schema={schema}
# Who sees the shared memory, and where. avm-daemon check says what is wrong with it, avm-daemon reload takes it up.
mounts:
"""
_MOUNT = """\
  - mountpoint: {mountpoint}
    agent_id: {agent}
"""
_MOUNT_KEYS = """\
    # the mountpoint is made if it is missing, and must be empty
    # read_only: true            # every change is refused
    # coherence: strict          # the kernel keeps no names, no attributes
    # xattr: true                # user.avm.* extended attributes
    # trash: false               # what is removed is gone
"""
_CONFIG = """\
# yaml-language-server: $schema={schema}
# All keys are optional; what is commented out here are examples. avm config shows what is in force.

# permissions:                 # the first rule that matches path and agent decides; replaces the default list
#   - {{pattern: "/memory/finance/*", access: none, agents: [guest]}}
#   - {{pattern: "/memory/*", access: rw}}
# default_access: ro           # where no rule matches

{embedding}#   model: all-MiniLM-L6-v2    # English; for others see: avm help embedding
#   enabled: true              # false: searches use words alone
#   allow_download: true       # weights that are not here yet

# search:
#   max_tokens: 4000           # of a recall that names no budget
#   min_relevance: 0.3         # 0 to 1
#   ignore: [...]              # never indexed; replaces the list that avm config shows

# autostart: true              # false: no command starts a daemon where none runs

# uids: {{1001: [alice]}}        # which agents another Unix user may be
"""


@subcommand("init", "Write example configuration files.")
@click.argument("agents", nargs=-1)
@click.option("--root", default="~/agents", show_default=True, help="Each agent is mounted at ROOT/AGENT/avm.")
@click.option("--force", is_flag=True, help="Replace an existing mounts.yaml (config.yaml is never replaced).")
@click.option(
    "--multilingual/--english",
    default=None,
    help="Whether notes are in other languages than English; asked at a terminal.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be written, and write nothing.")
def init_(agents: tuple[str, ...], root: str, force: bool, multilingual: bool | None, dry_run: bool) -> None:
    """Write mounts.yaml for AGENTS (alice and bob, if none are named) and an example config.yaml, and say what comes
    next. What is there already stays as it is."""
    where = locations()
    if not root:
        raise Invalid("--root: an empty name of a directory")
    root = root if root.startswith(("~", "$", "/")) else os.path.abspath(root)
    names = [check_agent_id(name) for name in agents or ("alice", "bob")]
    if len({*names}) < len(names):
        raise Invalid("the same agent twice")
    if where.mounts_file.exists() and not force:
        raise Exists(
            "already there: edit it (avm-daemon add AGENT MOUNTPOINT), or replace it with --force",
            str(where.mounts_file),
        )
    schema = Path(avmfs_config.__file__).with_name("schema.json").as_uri()
    text = _MOUNTS.format(schema=schema)
    for number, name in enumerate(names):
        point, agent = scalar(f"{root}/{name}/avm"), scalar(name)
        text += _MOUNT.format(mountpoint=point, agent=agent) + ("" if number else _MOUNT_KEYS)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, where.mounts_file.name)
        made.write_text(text)
        mounts = load_mounts(made, os.environ)  # raises where nobody could use it
    wanted = {where.mounts_file: text}
    if where.config_file.exists():
        if multilingual is not None:
            raise Exists("already there: avm model use universal (or auto) changes it", str(where.config_file))
    else:
        if multilingual is None and not dry_run and sys.stdin.isatty() and sys.stderr.isatty():
            multilingual = click.confirm("Are notes written in other languages than English?", default=False, err=True)
        chosen = "embedding:\n  engine: universal            # 16 languages\n" if multilingual else "# embedding:\n"
        wanted[where.config_file] = _CONFIG.format(schema=schema, embedding=chosen)
    for path, content in ({} if dry_run else wanted).items():
        with alone(path):
            commit(path, content)
    did = "would write" if dry_run else "wrote"
    written = "".join(f"{did} {escaped(str(path))}\n" for path in wanted)
    kept = "" if where.config_file in wanted else f"kept {escaped(str(where.config_file))}\n"
    first = os.fspath(Path(root, names[0], "avm/memory/hello.md"))
    if shlex.quote(first[1:]) != first[1:]:  # behind a ~ or $ that a shell is to expand
        first = shlex.quote(os.fspath(mounts[0].mountpoint / "memory/hello.md"))
    value = {
        "mounts_file": str(where.mounts_file),
        "config_file": str(where.config_file),
        "agents": names,
        "written": [str(path) for path in wanted] if not dry_run else [],
    }
    following = (
        *((bring("multilingual"),) if multilingual and universal.lacking() else ()),
        "avm-daemon start --daemon",
        f"echo hello > {escaped(first)}",
        f"avm -a {names[0]} recall hello",
    )
    text = written + kept + "next:\n" + "".join(f"  {line}\n" for line in following)
    show(value, text, prose=False)


@subcommand("warmup", "Load the embedding model and say which.")
def warmup_(ctx: click.Context) -> None:
    """Load the embedding model if need be; print its name, dimension and the milliseconds it took."""
    ctx.obj.agent = ctx.obj.agent or os.environ.get("AVM_AGENT") or (None if "AVM_API_KEY" in os.environ else "warmup")
    before = time.perf_counter()
    with door(embeddings=True) as memory:
        with working("loading the model"):
            found = memory.call("warmup")
        took = {**found, "ms": round((time.perf_counter() - before) * 1000)}
        show(took, f"model: {took['model']}\ndimension: {took['dimension']}\nms: {took['ms']}\n")
