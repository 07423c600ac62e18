"""avm doctor, completion."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
from avmfs_config import ConfigError, Paths, Settings, load_mounts, load_settings

from avmfs.cli.main import subcommand
from avmfs.cli.needs import Finding, mounting
from avmfs.cli.session import elsewhere, locations, show
from avmfs.cli.storing import storing
from avmfs.extras import bring, version_text
from avmfs.providers.handler import check_providers
from avmfs.text.escapes import visible


@subcommand("doctor", "Look for what is wrong with installation, configuration and store.")
@click.option("--quick", is_flag=True, help="Of the store, look at the files alone: not at every page and every byte.")
def doctor_(ctx: click.Context, quick: bool) -> None:
    """Look at the installation, both configuration files, FUSE, the daemon, the model and the whole store; exit 1 when
    something is wrong, and say what mends it. Changes nothing, of a damaged store not a byte."""
    where = locations()
    found = [
        *_asked(),
        *_installation(),
        *_configuration(where),
        *mounting(where),
        *_model(where),
        *storing(where, quick=quick),
    ]
    marks = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
    text = "".join(
        f"{marks[each.state]}  {visible(f'{each.about:<14}  {each.says}')}\n"
        + (f"{'':27}{visible(each.todo)}\n" if each.todo else "")
        for each in found
    )
    show([asdict(each) for each in found], text)
    if any(each.state == "problem" for each in found):
        ctx.exit(1)


def _asked() -> Iterator[Finding]:
    if at := elsewhere().get("AVM_AT"):
        yield Finding("AVM_AT", "note", f"commands ask {at}; this is about the machine here", "run it there")


def _installation() -> Iterator[Finding]:
    version = version_text()
    yield Finding("avmfs", "ok", f"{version}, Python {sys.version.split()[0]}, {Path(__file__).parents[1]}")
    try:
        yield Finding("mcp", "ok", importlib.metadata.version("mcp"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("mcp", "note", "not installed; avm-mcp needs it", bring("mcp"))


def _configuration(where: Paths) -> Iterator[Finding]:
    def mounts() -> str:
        return f"{len(load_mounts(where.mounts_file, os.environ))} mounts"

    def settings() -> str:
        check_providers(where.config_file.name, load_settings(where.config_file, os.environ).providers)
        return "read" if where.config_file.exists() else "not there: the defaults hold"

    looks: tuple[tuple[Path, Callable[[], str]], ...] = ((where.mounts_file, mounts), (where.config_file, settings))
    for path, look in looks:
        try:
            if look is mounts and not path.exists():
                yield Finding(path.name, "note", f"{path}: not there", "avm init AGENT... writes one")
                continue
            yield Finding(path.name, "ok", f"{path}: {look()}")
        except ConfigError as e:
            yield Finding(path.name, "problem", str(e), f"edit {path}; avm-daemon check")
        except OSError as e:
            yield Finding(path.name, "problem", str(e), "run it as the user whose configuration it is")


def _model(where: Paths) -> Iterator[Finding]:
    from avmfs.embed.protocol import EmbeddingUnavailable
    from avmfs.embed.weights import resolve

    try:
        settings = load_settings(where.config_file, os.environ)
    except ConfigError:
        return  # said above
    yield from _reranker(settings)
    wanted = settings.embedding
    if not wanted.enabled:
        yield Finding("model", "note", "turned off (config.yaml: embedding.enabled): searches use words alone")
        return
    try:
        weights = resolve(wanted.model, wanted.path, allow_download=False)
        yield Finding("model", "ok", f"{weights.model_id}, {weights.source}: {weights.path}")
    except EmbeddingUnavailable as e:
        todo = "avm model pull, or avm model import FOLDER"
        yield Finding("model", "note" if wanted.allow_download else "problem", e.reason, todo)


def _reranker(settings: Settings) -> Iterator[Finding]:
    """Asked for real, where there is one."""
    from avmfs.agents import reranking
    from avmfs.embed.protocol import EmbeddingUnavailable

    second = reranking.made(settings)
    if second is None:
        return
    try:
        second.judged("ready", ["ready"])
        yield Finding("re-ranker", "ok", str(settings.search.rerank.model or settings.search.rerank.endpoint))
    except EmbeddingUnavailable as e:
        yield Finding("re-ranker", "problem", e.reason, "config.yaml: search.rerank; avm help embedding")


_OPEN = {
    'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD': (  # which are cut within a word (completing.Bash)
        'COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_CWORD=-1 COMP_WORDBREAKS="$COMP_WORDBREAKS"'
    ),
    "COMPREPLY+=($value)": 'COMPREPLY+=("$value"); [[ $value == */ ]] && compopt -o nospace',
    "compadd -U -V unsorted -a completions": (
        "local -a open=(${(M)completions:#*/}); completions=(${completions:#*/})\n"
        "        (( $#open )) && compadd -U -S '' -V unsorted -a open\n"
        "        (( $#completions )) && compadd -U -V unsorted -a completions"
    ),
}


@subcommand("completion", "Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_(shell: str) -> None:
    """Print the script that completes commands, options, paths, agents and snapshots in SHELL.

    bash: eval "$(avm completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish: avm completion fish >
    ~/.config/fish/completions/avm.fish.
    """
    from click.shell_completion import get_completion_class

    from avmfs.cli.main import avm

    found = get_completion_class(shell)
    assert found is not None
    script = found(avm, {}, "avm", "_AVM_COMPLETE").source()
    for theirs, ours in _OPEN.items():  # a directory is not the end of a path: no blank behind it
        script = script.replace(theirs, ours)
    show({"shell": shell, "script": script}, script)
