"""avm init, warmup."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
from avmfs_config import check_agent_id

from avmfs.avm import located
from avmfs.cli.main import Command
from avmfs.cli.session import door, show
from avmfs.errors import Exists

_MOUNTS = """\
# Who sees the shared memory, and where. Full list of keys: mounts.example.yaml.
mounts:
"""


@click.command("init", cls=Command)
@click.argument("agents", nargs=-1, required=True)
@click.option("--root", default="~/agents", show_default=True, help="Each agent is mounted at ROOT/AGENT/avm.")
@click.option("--force", is_flag=True, help="Replace an existing mounts.yaml.")
@click.pass_context
def init_(ctx: click.Context, agents: tuple[str, ...], root: str, force: bool) -> None:
    """Write mounts.yaml for AGENTS and say what comes next."""
    where = located(os.environ, ctx.obj.db, ctx.obj.config)
    names = [check_agent_id(name) for name in agents]
    if where.mounts_file.exists() and not force:
        raise Exists("already there: edit it, or replace it with --force", str(where.mounts_file))
    where.config_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = "".join(f"  - mountpoint: {root}/{name}/avm\n    agent_id: {name}\n" for name in names)
    made = where.mounts_file.with_suffix(".new")
    made.write_text(_MOUNTS + entries)
    made.rename(where.mounts_file)
    first = Path(root, names[0], "avm")
    show(
        ctx,
        {"mounts_file": str(where.mounts_file), "agents": names},
        f"wrote {where.mounts_file}\nnext:\n  avm-daemon start --daemon\n  echo hello > {first}/memory/hello.md\n",
    )


@click.command("warmup", cls=Command)
@click.pass_context
def warmup_(ctx: click.Context) -> None:
    """Load the embedding model if need be; print its name, dimension and the milliseconds it took."""
    ctx.obj.agent = ctx.obj.agent or os.environ.get("AVM_AGENT") or (None if "AVM_API_KEY" in os.environ else "warmup")
    before = time.perf_counter()
    with door(ctx, embeddings=True) as memory:
        found = memory.call("warmup")
        took = {**found, "ms": round((time.perf_counter() - before) * 1000)}
        show(ctx, took, f"model: {took['model']}\ndimension: {took['dimension']}\nms: {took['ms']}\n")
